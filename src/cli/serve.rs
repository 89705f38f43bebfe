//! `nonet serve`: a gateway on stdio or over HTTP.

#[cfg(unix)]
use std::time::Duration;
use std::{io::IsTerminal, path::Path, sync::Arc};

use anyhow::Context;
use nonet_config::{FileTrust, LoadedConfig, shell};
use nonet_core::Gateway;
use nonet_hosts::{LaunchCommand, Machine};
use serde_json::json;

use super::{OK, connect, found, gateway, log, reload, signal};
use crate::serve::{self, HttpOptions, ServeAddress};

/// How often a gateway that serves HTTP checks whether it can also serve this machine's clients.
#[cfg(unix)]
const SHARE_AGAIN: Duration = Duration::from_secs(1);

/// Serves MCP on stdio, or over HTTP at an address.
pub(super) async fn run(
    loaded: LoadedConfig,
    profile: Option<String>,
    http: Option<String>,
) -> anyhow::Result<u8> {
    let (file, by_trust) = (loaded.config.file.clone(), loaded.trust != FileTrust::NotNeeded);
    if http.is_none() && loaded.config.gateway.shared {
        return connect::to_shared(&file, profile, by_trust).await;
    }
    let gateway = gateway(loaded, true);
    if let Some(cluster) = &gateway.keeping.cluster {
        log::of_replica(cluster.replicas().name());
    }
    watch(&gateway, &file, by_trust);
    match http {
        Some(address) => {
            let mut addresses = tokio::net::lookup_host(&address).await.with_context(|| {
                format!("cannot listen on `{address}`; use an address such as 127.0.0.1:8931")
            })?;
            let address =
                addresses.next().with_context(|| format!("`{address}` does not resolve to an address"))?;
            let options = HttpOptions { address, profile };
            let sharing = gateway.clone();
            let ready = |serving: ServeAddress| {
                #[cfg(unix)]
                share(&sharing, &file, serving.page.clone());
                #[cfg(not(unix))]
                drop(sharing);
                let address = serving.address;
                eprintln!("nonet: serving MCP at http://{address}/mcp (configuration: {})", file.display());
                if let Some(token) = serving.token_file {
                    eprintln!(
                        "nonet: clients need the token in {}: `nonet connect http://{address}/mcp` sends it, other clients send \
                         it as `Authorization: Bearer TOKEN`",
                        token.display()
                    );
                }
                match serving.page {
                    Some(page) if std::io::stderr().is_terminal() => eprintln!("nonet: live page at {page}"),
                    // A log keeps what it gets, and others may read it.
                    Some(_) => eprintln!("nonet: `{}` opens the live page", shell::nonet("ui", &file)),
                    None => {}
                }
            };
            serve::serve_http(gateway, options, ready, stop_signal()).await?;
        }
        None => {
            if std::io::stdin().is_terminal() {
                eprintln!("{}", welcome(&file));
            }
            serve::serve_stdio(gateway, profile, stop_signal()).await?;
        }
    }
    Ok(OK)
}

/// Makes the folder of a file that does not exist yet: it is to be watched.
pub(super) fn make_folder(file: &Path) {
    if let Some(folder) = file.parent().filter(|_| !file.exists()) {
        let _ = std::fs::create_dir_all(folder);
    }
}

/// Applies changes of the configuration file from now on; if `by_trust`, only those that the user trusts.
pub(super) fn watch(gateway: &Arc<Gateway>, file: &Path, by_trust: bool) {
    make_folder(file);
    let file = file.to_path_buf();
    let read = file.clone();
    let desk = reload::desk(&file);
    tokio::spawn(gateway.clone().watch(file, desk, move |text| {
        let mut loaded = found::load_text(text, &read, by_trust)?;
        loaded.trust = found::trust_in(&read, &loaded, by_trust);
        Ok(loaded)
    }));
}

/// Also serves this machine's clients (`nonet connect`, `[gateway] shared`) as soon as no other gateway does.
#[cfg(unix)]
fn share(gateway: &Arc<Gateway>, file: &Path, page: Option<String>) {
    let (gateway, file) = (gateway.clone(), file.to_path_buf());
    tokio::spawn(async move {
        let mut told = false;
        loop {
            match nonet_store::shared::SharedPlace::of(&file).and_then(|place| place.try_own()) {
                Ok(Some(owner)) => return serve::accept_shared(gateway, owner, page).await,
                Ok(None) if std::mem::replace(&mut told, true) => {}
                Ok(None) => {
                    tracing::info!("another gateway of this configuration serves `nonet connect`")
                }
                Err(error) => {
                    tracing::warn!("`nonet connect` without an address cannot reach this gateway: {error:#}");
                    return;
                }
            }
            tokio::time::sleep(SHARE_AGAIN).await;
        }
    });
}

/// Returns the text for a user who starts Nonet in a terminal.
fn welcome(file: &Path) -> String {
    let config = std::path::absolute(file).unwrap_or_else(|_| file.into());
    let launch = Machine::this().ok().and_then(|machine| LaunchCommand::of(&config, None, &machine).ok());
    let launch = launch.unwrap_or_else(|| LaunchCommand { command: "nonet".into(), args: Vec::new() });
    let entry = json!({ "mcpServers": { "nonet": { "command": launch.command, "args": launch.args } } });
    format!(
        "Nonet {}: one MCP server in front of all of your MCP servers.\n\
         Nonet speaks MCP on stdin and stdout, so an MCP client starts it. For Claude Desktop, Cursor and\n\
         other clients with `mcpServers`, add this to their configuration (more in the README):\n\n{}\n\n\
         From a shell: `nonet check`, `nonet search \"...\"`, `nonet --help`. Waiting for a client; Ctrl-D exits.",
        env!("CARGO_PKG_VERSION"),
        serde_json::to_string_pretty(&entry).unwrap_or_default(),
    )
}

/// Resolves at SIGINT or SIGTERM.
pub(super) async fn stop_signal() {
    signal::stopped().await;
}
