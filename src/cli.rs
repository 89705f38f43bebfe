//! The command line: arguments in (`args`), exit code out. Results go to stdout, everything else to stderr.

/// Prints a line on stdout.
macro_rules! say {
    ($($text:tt)*) => { $crate::cli::show::line(&format!($($text)*)) };
}

mod args;
mod ask;
mod check;
mod complete;
mod connect;
mod hosts;
mod launchers;
mod log;
mod login;
mod logs;
mod man;
mod secret;
mod setup;
mod show;
mod signal;
mod status;
mod table;

use std::{io::IsTerminal, path::Path, process::ExitCode, sync::Arc, time::Duration};

use anyhow::Context;
use serde_json::json;

use self::args::{Cli, Command};
use crate::{
    config::{self, Loaded, Sources},
    downstream::process_guard,
    fault::Code,
    gateway::{Gateway, Options},
    keyring::{self, Keyring},
    search::{self, Rule, eval::Measure},
    select, serve,
    store::{self, Forgotten},
};

/// A command did what it should.
const OK: u8 = 0;
/// The tool, or a server, failed.
const FAILED: u8 = 1;
/// The command line or the configuration cannot be used.
const UNUSABLE: u8 = 2;
/// How often a gateway that serves HTTP looks whether it may serve the clients of this machine too.
#[cfg(unix)]
const SHARE_AGAIN: Duration = Duration::from_secs(1);
/// How long a command waits for vectors.
const INDEX_LIMIT: Duration = Duration::from_secs(600);

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    if complete::answered() {
        return ExitCode::SUCCESS;
    }
    let cli = args::read();
    if matches!(cli.command, Some(Command::Guard)) {
        process_guard::run(std::io::stdin());
        return ExitCode::SUCCESS;
    }
    if let Some(Command::Select { filter }) = &cli.command {
        return match select::run_child(filter) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::from(FAILED),
        };
    }
    #[cfg(unix)]
    match &cli.command {
        Some(Command::StartShared) => {
            return match crate::shared::start_detached() {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    show::complain(show::causes(&error));
                    ExitCode::from(FAILED)
                }
            };
        }
        Some(Command::Shared) => {
            if let Some(config) = &cli.config {
                crate::shared::settle(config);
            }
        }
        _ => {}
    }
    let serves =
        matches!(cli.command, None | Some(Command::Serve { .. } | Command::Connect { .. } | Command::Shared));
    // What was logged last, and traces that were not sent yet, go out when it is dropped.
    let _log = match log::start(&cli, serves) {
        Ok(log) => log,
        Err(error) => {
            show::complain(show::causes(&error));
            return ExitCode::from(UNUSABLE);
        }
    };
    // One client needs one thread, and an answer that never changes threads is several times faster:
    // waking another core costs more than all else in a small call. Everyone else gets all cores.
    let many =
        cli.http.is_some() || matches!(cli.command, Some(Command::Serve { http: Some(_) } | Command::Shared));
    let mut runtime = match serves && !many {
        true => tokio::runtime::Builder::new_current_thread(),
        false => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = match runtime.enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            show::complain(format_args!("cannot start: {error}"));
            return ExitCode::from(FAILED);
        }
    };
    let wants_json = cli.wants_json();
    let code = match runtime.block_on(run(cli)) {
        Ok(code) => code,
        Err(error) => {
            let code = match error.downcast_ref::<config::NotFound>() {
                Some(_) => Code::NotFound,
                None => Code::InvalidParams,
            };
            show::refuse(code, show::causes(&error), wants_json);
            UNUSABLE
        }
    };
    // The terminal has written `^C` where the prompt would go.
    if code == signal::INTERRUPTED && std::io::stderr().is_terminal() {
        eprintln!();
    }
    // A read of stdin that is still open must not keep the process alive.
    runtime.shutdown_background();
    ExitCode::from(code)
}

async fn run(cli: Cli) -> anyhow::Result<u8> {
    match cli.command {
        Some(Command::Completions { shell }) => {
            complete::print(shell)?;
            return Ok(OK);
        }
        Some(Command::Man { command, dir }) => return man::run(&command, dir.as_deref()),
        Some(Command::Forget) => return forget(),
        Some(Command::Connect { url: Some(url), header }) => {
            return connect::to_url(&url, &header, cli.profile.as_deref()).await;
        }
        Some(Command::Setup(wishes)) => {
            return setup::run(&wishes, cli.config.as_deref(), cli.profile.as_deref()).await;
        }
        Some(Command::Import { source, replace, keyring, variables, dry_run, json }) => {
            let secrets = match (keyring, variables) {
                (true, _) => hosts::Secrets::Keyring,
                (false, true) => hosts::Secrets::Variables,
                (false, false) => hosts::Secrets::Kept,
            };
            let (source, config) = (source.as_deref(), cli.config.as_deref());
            return hosts::import(source, config, replace, secrets, dry_run, json);
        }
        Some(Command::Secret { action }) => return secret::run(&action, cli.config.as_deref()),
        Some(Command::Install { client, project, replace, dry_run }) => {
            return hosts::install(
                &client,
                cli.config.as_deref(),
                cli.profile.as_deref(),
                project,
                replace,
                dry_run,
            );
        }
        Some(Command::Uninstall { client, project, dry_run }) => {
            return hosts::uninstall(&client, project, dry_run);
        }
        Some(Command::Schema) => {
            say!("{}", serde_json::to_string_pretty(&config::schema())?);
            return Ok(OK);
        }
        Some(Command::Eval { tools, queries, out, without, confidence, replay }) => {
            let measure = Measure { confidence, replay };
            return eval(&tools, &queries, out.as_deref(), &without, measure, cli.config.as_deref()).await;
        }
        _ => {}
    }
    let (config, profile) = (cli.config.as_deref(), cli.profile);
    let command = match cli.command.unwrap_or(Command::Serve { http: None }) {
        Command::Status { json, follow, way } => {
            return status::run(config, profile, status::StatusArgs { json, follow, way }).await;
        }
        Command::Logs { server, lines, follow, json } => {
            let wanted = logs::LogsArgs { server, lines, follow, json };
            return logs::run(cli.log_file.as_deref(), config, wanted).await;
        }
        command @ (Command::Search { .. }
        | Command::Tools { .. }
        | Command::Get { .. }
        | Command::Call { .. }) => {
            return ask::run(command, config, profile).await;
        }
        command => command,
    };
    let file = config::find(config)?;
    let loaded = match &command {
        Command::Check { json, .. } => match load(&file) {
            Ok(loaded) => loaded,
            Err(unusable) => {
                match json {
                    true => show::line(&check::unusable(&unusable).to_string()),
                    false => show::complain(show::causes(&unusable.into())),
                }
                return Ok(UNUSABLE);
            }
        },
        _ => match usable(&file, profile.as_deref(), false)? {
            Some(loaded) => {
                loaded.faults.iter().chain(&loaded.warnings).for_each(show::complain);
                loaded
            }
            None => return Ok(UNUSABLE),
        },
    };
    has_profile(&loaded, profile.as_deref())?;
    match command {
        Command::Serve { http } => serve_it(loaded, profile, http.or(cli.http)).await,
        Command::Connect { .. } => connect::to_shared(&file, profile).await,
        Command::Shared => connect::be_shared(loaded).await,
        Command::Check { json, verbose } => check::run(loaded, json, verbose).await,
        Command::Login(manner) => tokio::select! {
            code = login::login(&loaded.config, &manner) => code,
            code = signal::stopped() => Ok(code),
        },
        Command::Logout { server } => login::logout(&loaded.config, &server).await,
        _ => Ok(OK),
    }
}

/// Reads a configuration; says why and gives none if it cannot be used at all. Fails if it has not the profile that is asked
/// for.
fn usable(file: &Path, profile: Option<&str>, as_json: bool) -> anyhow::Result<Option<Loaded>> {
    let loaded = match load(file) {
        Ok(loaded) => loaded,
        Err(unusable) => {
            show::refuse(Code::InvalidParams, show::causes(&unusable.into()), as_json);
            return Ok(None);
        }
    };
    has_profile(&loaded, profile)?;
    Ok(Some(loaded))
}

fn has_profile(loaded: &Loaded, profile: Option<&str>) -> anyhow::Result<()> {
    let Some(profile) = profile.filter(|profile| !loaded.config.profiles.contains_key(*profile)) else {
        return Ok(());
    };
    let known: Vec<&str> = loaded.config.profiles.keys().map(String::as_str).collect();
    anyhow::bail!(
        "there is no [profiles.{profile}] in {}; there are: {}",
        loaded.config.file.display(),
        or_none(&known)
    );
}

/// Reads a configuration with the environment of this process and the keyring of this system.
fn load(file: &Path) -> Result<Loaded, config::Unusable> {
    let keyring = Keyring::system(keyring::UNATTENDED);
    let sources = Sources { env: &|name| std::env::var(name).ok(), keyring: &|name| keyring.get(name) };
    config::load(file, sources)
}

fn or_none(names: &[&str]) -> String {
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

/// A gateway over a configuration. `embed`: whether search by meaning is wanted.
fn gateway(loaded: Loaded, embed: bool) -> Arc<Gateway> {
    let cache = loaded.config.embedder.cache_folder();
    let options = Options {
        executable: std::env::current_exe().ok(),
        without_embedder: !embed,
        cache,
        state: store::folder(),
        ..Options::default()
    };
    Gateway::new(loaded.config, options)
}

async fn serve_it(loaded: Loaded, profile: Option<String>, http: Option<String>) -> anyhow::Result<u8> {
    let file = loaded.config.file.clone();
    if http.is_none() && loaded.config.gateway.shared {
        return connect::to_shared(&file, profile).await;
    }
    let gateway = gateway(loaded, true);
    watch(&gateway, &file);
    match http {
        Some(address) => {
            let mut addresses = tokio::net::lookup_host(&address).await.with_context(|| {
                format!("`{address}` is no address to listen on; give one such as 127.0.0.1:8931")
            })?;
            let address = addresses.next().with_context(|| format!("`{address}` has no address"))?;
            let options = serve::HttpOptions { address, profile };
            #[cfg(unix)]
            share(&gateway, &file);
            let ready = |serving: serve::Serving| {
                let address = serving.address;
                eprintln!("nonet: serving MCP at http://{address}/mcp (configuration: {})", file.display());
                if let Some(page) = serving.page {
                    eprintln!("nonet: live page at {page}");
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

/// Takes up changes of the configuration from now on.
fn watch(gateway: &Arc<Gateway>, file: &Path) {
    let file = file.to_path_buf();
    let read = file.clone();
    tokio::spawn(gateway.clone().watch(file, move || load(&read)));
}

/// Serves the clients of this machine too, those of `nonet connect` and of `[gateway] shared`, as soon as no other gateway does.
#[cfg(unix)]
fn share(gateway: &Arc<Gateway>, file: &Path) {
    let (gateway, file) = (gateway.clone(), file.to_path_buf());
    tokio::spawn(async move {
        let mut told = false;
        loop {
            match crate::shared::SharedPlace::of(&file).and_then(|place| place.try_own()) {
                Ok(Some(owner)) => return serve::accept_shared(gateway, owner).await,
                Ok(None) if std::mem::replace(&mut told, true) => {}
                Ok(None) => {
                    tracing::info!("another gateway of this configuration serves `nonet connect` for now")
                }
                Err(error) => {
                    tracing::warn!("`nonet connect` without an address does not lead here: {error:#}");
                    return;
                }
            }
            tokio::time::sleep(SHARE_AGAIN).await;
        }
    });
}

/// What somebody reads who starts Nonet by hand.
fn welcome(file: &Path) -> String {
    let exe = std::env::current_exe().map_or_else(|_| "nonet".into(), |exe| exe.display().to_string());
    let config = std::path::absolute(file).unwrap_or_else(|_| file.into());
    let entry = json!({ "mcpServers": { "nonet": { "command": exe, "args": ["--config", config] } } });
    format!(
        "Nonet {}: one MCP server in front of all of your MCP servers.\n\
         It speaks MCP on stdin and stdout, so an MCP client starts it. For Claude Desktop, Cursor and\n\
         others with `mcpServers`, put this into their configuration (more in the README):\n\n{}\n\n\
         From a shell: `nonet check`, `nonet search \"...\"`, `nonet --help`. Waiting for a client; Ctrl-D ends.",
        env!("CARGO_PKG_VERSION"),
        serde_json::to_string_pretty(&entry).unwrap_or_default(),
    )
}

/// Ends with SIGINT or SIGTERM.
async fn stop_signal() {
    signal::stopped().await;
}

/// Empties the store: outcomes, kept results and tasks. A gateway that is running goes on with what it has read.
fn forget() -> anyhow::Result<u8> {
    let folder = store::folder().context("there is no home folder, so nothing was kept")?;
    let Forgotten { outcomes, kept } = store::forget(&folder)?;
    say!(
        "forgot {}, and what was kept of calls ({}, {}), in {}",
        show::count(outcomes as u64, "outcome"),
        show::count(kept.entries, "result"),
        show::count(kept.bytes, "byte"),
        folder.display()
    );
    Ok(OK)
}

async fn eval(
    tools: &Path,
    queries: &Path,
    out: Option<&Path>,
    without: &[Rule],
    measure: Measure,
    config: Option<&Path>,
) -> anyhow::Result<u8> {
    // Only the embedder's settings matter here, and only if a configuration was named.
    let mut settings = match config {
        Some(file) => load(file)?.config.embedder,
        None => search::Settings::default(),
    };
    settings.rules = without.iter().fold(settings.rules, |rules, rule| rules.without(*rule));
    let bar = show::bar("indexing");
    let progress = bar.clone();
    // In a task of its own: what is measured may keep this one busy.
    let shown = bar.clone();
    tokio::spawn(async move {
        let code = signal::stopped().await;
        shown.finish_and_clear();
        std::process::exit(code.into());
    });
    let report = search::eval::run(tools, queries, out, &settings, measure, move |done, total| {
        progress.set_length(total as u64);
        progress.set_position(done as u64);
    })
    .await;
    bar.finish_and_clear();
    say!("{}", serde_json::to_string(&report?)?);
    Ok(OK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_is_as_promised() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
        let mut help = Cli::command().render_long_help().to_string();
        let mut all = Cli::command();
        all.build();
        for command in all.get_subcommands_mut().filter(|command| !command.is_hide_set()) {
            help.push_str(&format!(
                "\n--- nonet {}\n{}",
                command.get_name(),
                command.clone().render_long_help()
            ));
        }
        insta::assert_snapshot!(help);
    }
}
