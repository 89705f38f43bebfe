//! `nonet login` and `nonet logout`: the user's part of signing in to a server.

use std::{io::IsTerminal, time::Duration};

use anyhow::Context;
use clap::Args;
use nonet_config::{Config, Grant, ServerSettings};
use nonet_servers::oauth::{Callback, SignIn, SignInError, SignInPlace, SignInRecord, SignInRequest, Vault};
use nonet_state::last_seen;
use nonet_store as store;
use tokio::{sync::mpsc, time::timeout};

use super::{FAILED, OK};

/// The arguments of a sign-in.
#[derive(Debug, Args)]
pub(super) struct LoginArgs {
    /// Name of the server in servers.toml
    pub server: String,
    /// Scope to request besides the server's own (repeatable)
    #[arg(long = "scope", value_name = "SCOPE")]
    pub scopes: Vec<String>,
    /// Print the address without opening a browser
    #[arg(long)]
    pub no_browser: bool,
    /// Keep the tokens in the system's keyring instead of a private file; later sign-ins stay there
    #[arg(long)]
    pub keyring: bool,
    /// How long to wait for the sign-in
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = humantime::parse_duration)]
    pub timeout: Duration,
}

/// Signs in to a server. Exit code 1: the sign-in failed.
pub(super) async fn login(config: &Config, args: &LoginArgs) -> anyhow::Result<u8> {
    let server = &args.server;
    let remote = remote(config, server)?;
    anyhow::ensure!(
        remote.oauth.grant == Grant::AuthorizationCode,
        "`{server}` has `grant = \"client_credentials\"`: Nonet signs in by itself"
    );
    let before = remote.entry.read().unwrap_or_else(|error| {
        eprintln!("nonet: the earlier sign-in cannot be used: {error}");
        None
    });
    // Checked before the user agrees to anything.
    let in_keyring = args.keyring || before.as_ref().is_some_and(|kept| kept.in_keyring);
    remote.entry.check(in_keyring)?;
    let mut callback = Callback::listen(remote.oauth.redirect_uri.as_deref()).await.context(
        "cannot listen for the browser's return; another program may use the port of `redirect_uri`",
    )?;
    let before = before.as_ref().map(|kept| &kept.record);
    let record = match sign_in(&remote, args, before, &mut callback).await {
        Ok(record) => record,
        Err(error) => {
            callback.close().await;
            eprintln!("nonet: cannot sign in to `{server}`: {error}");
            return Ok(FAILED);
        }
    };
    let allowed = record.credentials.granted_scopes.join(", ");
    let renews = record.renews();
    let entry = &remote.entry;
    entry.keep(record, in_keyring).await?;
    callback.close().await;
    if let (Some(folder), Some(settings)) = (config.embedder.cache_folder(), settings(config, server)) {
        last_seen::forget_failure(&folder, server, settings);
    }
    let scopes = if allowed.is_empty() { String::new() } else { format!(" for {allowed}") };
    say!("Signed in to `{server}`{scopes}.");
    let place = match in_keyring {
        true => "the keyring".into(),
        false => entry.file().display().to_string(),
    };
    let end = if renews { "Nonet renews it automatically" } else { "sign in again when it expires" };
    say!("The sign-in is stored in {place}; {end}. A running gateway uses it at once.");
    Ok(OK)
}

/// Runs the sign-in until the browser returns.
async fn sign_in(
    remote: &SignInPlace<'_>,
    args: &LoginArgs,
    before: Option<&SignInRecord>,
    callback: &mut Callback,
) -> Result<SignInRecord, SignInError> {
    let limit = args.timeout;
    let request = SignInRequest {
        url: remote.url,
        headers: remote.headers.clone(),
        settings: remote.oauth,
        redirect_uri: callback.redirect_uri.clone(),
        scopes: &args.scopes,
        before,
        people: None,
    };
    let late =
        |what: &str| SignInError::Failed(format!("{what} within {}", humantime::format_duration(limit)));
    let sign_in =
        timeout(limit, Box::pin(SignIn::begin(request))).await.unwrap_or_else(|_| Err(late("no answer")))?;
    eprintln!("Open this address to sign in to `{}`:\n\n  {}\n", args.server, sign_in.address);
    if !args.no_browser {
        let address = sign_in.address.clone();
        // A separate thread: a browser in the terminal blocks.
        tokio::task::spawn_blocking(move || {
            if let Err(error) = webbrowser::open(&address) {
                eprintln!("(Cannot open a browser: {error}.)");
            }
        });
    }
    let ended = timeout(limit, come_back(&sign_in, callback)).await;
    ended.unwrap_or_else(|_| Err(late("the browser did not return")))
}

/// Deletes the tokens of a server.
pub(super) async fn logout(config: &Config, server: &str) -> anyhow::Result<u8> {
    let left_over = match (settings(config, server), store::folder()) {
        (None, Some(state)) => Vault::in_state(&state).entries_of(server),
        _ => Vec::new(),
    };
    if !left_over.is_empty() {
        for entry in left_over {
            let _lock = entry.lock().await?;
            entry.remove()?;
        }
        say!("The sign-in to `{server}`, which is no longer in {}, was deleted here.", config.file.display());
        return Ok(OK);
    }
    let entry = remote(config, server)?.entry;
    // A gateway that is renewing the tokens must not write them back.
    let _lock = entry.lock().await?;
    match entry.remove()? {
        true => say!(
            "Signed out of `{server}`: its tokens were deleted here. The service may still list Nonet as authorized."
        ),
        false => say!("There was no sign-in to `{server}`."),
    }
    Ok(OK)
}

/// Waits for the browser, or for a pasted address if the browser runs on another machine.
async fn come_back(sign_in: &SignIn, callback: &mut Callback) -> Result<SignInRecord, SignInError> {
    let mut pasted = pasted();
    loop {
        tokio::select! {
            Some(browser) = callback.next() => match sign_in.finish(&browser.address).await {
                Err(SignInError::Foreign(why)) => browser.reply(false, &format!("This address does not complete the sign-in: {why}.")),
                Err(error) => {
                    browser.reply(false, &error.to_string());
                    return Err(error);
                }
                Ok(record) => {
                    browser.reply(true, "Nonet has what it needs. You can close this page.");
                    return Ok(record);
                }
            },
            Some(line) = pasted.recv() => match sign_in.finish(line.trim()).await {
                Err(SignInError::Foreign(why)) => eprintln!("nonet: this is not the browser's final address: {why}"),
                done => return done,
            },
            else => return Err(SignInError::Failed("neither the browser nor the terminal can answer".into())),
        }
    }
}

/// Returns the lines typed into the terminal, if there is a terminal.
fn pasted() -> mpsc::Receiver<String> {
    let (sender, lines) = mpsc::channel(1);
    if std::io::stdin().is_terminal() {
        eprintln!(
            "Waiting for the browser. If the browser runs on another machine, paste its final address here."
        );
        std::thread::spawn(move || {
            for line in std::io::stdin().lines().map_while(Result::ok).filter(|line| !line.trim().is_empty())
            {
                if sender.blocking_send(line).is_err() {
                    return;
                }
            }
        });
    }
    lines
}

fn settings<'a>(config: &'a Config, server: &str) -> Option<&'a ServerSettings> {
    config.servers.iter().find(|(name, _)| name.as_str() == server).map(|(_, settings)| settings)
}

/// Returns what is needed to sign in to a server of the configuration.
fn remote<'a>(config: &'a Config, server: &str) -> anyhow::Result<SignInPlace<'a>> {
    let Some(settings) = settings(config, server) else {
        let known = config.servers.iter().filter(|(_, settings)| settings.transport.sign_in().is_some());
        let known: Vec<&str> = known.map(|(name, _)| name.as_str()).collect();
        anyhow::bail!(
            "there is no [servers.{server}] in {}; servers with a sign-in: {}",
            config.file.display(),
            super::or_none(&known)
        );
    };
    let state =
        store::folder().context("there is no home folder to store the sign-in in; set XDG_STATE_HOME")?;
    SignInPlace::of(server, settings, &Vault::in_state(&state)).map_err(anyhow::Error::msg)
}
