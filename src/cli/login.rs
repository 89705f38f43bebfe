//! `nonet login` and `nonet logout`: the user's part of signing in to a server.

use std::{io::IsTerminal, time::Duration};

use anyhow::Context;
use clap::Args;
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::{sync::mpsc, time::timeout};

use super::{FAILED, OK};
use crate::{
    config::{Config, Grant, OAuth, ServerSettings, Transport},
    gateway::last_seen,
    keyring,
    oauth::{Callback, KeptRecord, Record, SignIn, SignInError, SignInRequest, Vault, VaultEntry},
    store,
};

/// How a user wants to sign in.
#[derive(Debug, Args)]
pub struct LoginArgs {
    /// The server, by its name in servers.toml
    pub server: String,
    /// Something to be allowed besides what the server asks for (may be repeated)
    #[arg(long = "scope", value_name = "SCOPE")]
    pub scopes: Vec<String>,
    /// Only print the address to open
    #[arg(long)]
    pub no_browser: bool,
    /// Keep the tokens in the keyring of this system instead of a file of your own; later sign-ins stay there
    #[arg(long)]
    pub keyring: bool,
    /// How long to wait for you
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = humantime::parse_duration)]
    pub timeout: Duration,
}

/// A server that is signed in to.
struct Remote<'a> {
    url: &'a str,
    headers: HeaderMap,
    oauth: &'a OAuth,
    entry: VaultEntry,
}

/// Signs in to a server. Exit code 1: it did not come to that.
pub async fn login(config: &Config, manner: &LoginArgs) -> anyhow::Result<u8> {
    let LoginArgs { server, scopes, no_browser, keyring, timeout: limit } = manner;
    let remote = remote(config, server)?;
    anyhow::ensure!(
        remote.oauth.grant == Grant::AuthorizationCode,
        "`{server}` has `grant = \"client_credentials\"`: Nonet signs in by itself"
    );
    let before = match remote.entry.read() {
        Ok(before) => before,
        Err(error) => {
            eprintln!("nonet: the sign-in of before is not used: {error}");
            None
        }
    };
    // Found out before the user has agreed to anything.
    let in_keyring = *keyring || before.as_ref().is_some_and(|kept| kept.in_keyring);
    remote.entry.check(in_keyring)?;
    let mut callback = Callback::listen(remote.oauth.redirect_uri.as_deref()).await.context(
        "no port for the browser to come back to; another program may have that of `redirect_uri`",
    )?;
    let wish = SignInRequest {
        url: remote.url,
        headers: remote.headers.clone(),
        settings: remote.oauth,
        redirect_uri: callback.redirect_uri.clone(),
        scopes,
        before: before.as_ref().map(|kept| &kept.record),
    };
    let late = |_| SignInError::Failed(format!("it took longer than {}", humantime::format_duration(*limit)));
    let begun = timeout(*limit, SignIn::begin(wish)).await.unwrap_or_else(|error| Err(late(error)));
    let sign_in = match begun {
        Ok(sign_in) => sign_in,
        Err(error) => {
            eprintln!("nonet: no sign-in to `{server}`: {error}");
            return Ok(FAILED);
        }
    };
    eprintln!("Open this address to sign in to `{server}`:\n\n  {}\n", sign_in.address);
    if !no_browser {
        let address = sign_in.address.clone();
        // Beside everything else: a browser in the terminal is waited for.
        tokio::task::spawn_blocking(move || {
            if let Err(error) = webbrowser::open(&address) {
                eprintln!("(No browser could be opened: {error}.)");
            }
        });
    }
    let late =
        |_| SignInError::Failed(format!("nobody came back within {}", humantime::format_duration(*limit)));
    let ended =
        timeout(*limit, come_back(&sign_in, &mut callback)).await.unwrap_or_else(|error| Err(late(error)));
    let record = match ended {
        Ok(record) => record,
        Err(error) => {
            callback.close().await;
            eprintln!("nonet: no sign-in to `{server}`: {error}");
            return Ok(FAILED);
        }
    };
    let allowed = record.credentials.granted_scopes.join(", ");
    let renews = record.renews();
    let entry = &remote.entry;
    // So that a gateway that is just renewing the old tokens does not write them over the new ones.
    let lock = entry.lock().await?;
    entry.write(&KeptRecord { record, in_keyring }, keyring::ATTENDED)?;
    drop(lock);
    callback.close().await;
    if let (Some(folder), Some(settings)) = (config.embedder.cache_folder(), settings(config, server)) {
        last_seen::forget_failure(&folder, server, settings);
    }
    say!(
        "Signed in to `{server}`{}.",
        if allowed.is_empty() { String::new() } else { format!(" for {allowed}") }
    );
    let place = match in_keyring {
        true => "the keyring".into(),
        false => entry.file().display().to_string(),
    };
    let end = if renews { "it is renewed by itself" } else { "when it ends, sign in again" };
    say!("It is kept in {place}; {end}. A gateway that is running takes it up at once.");
    Ok(OK)
}

/// Forgets the sign-in to a server.
pub async fn logout(config: &Config, server: &str) -> anyhow::Result<u8> {
    let entry = remote(config, server)?.entry;
    // So that a gateway that is just renewing the tokens does not bring them back.
    let _lock = entry.lock().await?;
    match entry.remove()? {
        true => say!(
            "Signed out of `{server}`: its tokens are forgotten here. The service itself may list Nonet still."
        ),
        false => say!("Nobody was signed in to `{server}`."),
    }
    Ok(OK)
}

/// Waits for the browser, or for an address that somebody pastes whose browser runs on another machine.
async fn come_back(sign_in: &SignIn, callback: &mut Callback) -> Result<Record, SignInError> {
    let mut pasted = pasted();
    loop {
        tokio::select! {
            Some(browser) = callback.next() => match sign_in.finish(&browser.address).await {
                Err(SignInError::Foreign(why)) => browser.reply(false, &format!("This is not the end of the sign-in: {why}.")),
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
                Err(SignInError::Foreign(why)) => eprintln!("nonet: that is not the address that the browser ended at: {why}"),
                done => return done,
            },
            else => return Err(SignInError::Failed("nobody can come back any more".into())),
        }
    }
}

/// The lines that are typed into the terminal, if there is one.
fn pasted() -> mpsc::Receiver<String> {
    let (sender, lines) = mpsc::channel(1);
    if std::io::stdin().is_terminal() {
        eprintln!(
            "Waiting for the browser. If it runs on another machine, paste the address here that it ends at."
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

/// What is needed to sign in to a server of the configuration.
fn remote<'a>(config: &'a Config, server: &str) -> anyhow::Result<Remote<'a>> {
    let Some(settings) = settings(config, server) else {
        let known = config.servers.iter().filter(|(_, settings)| settings.transport.is_signed_in_to());
        let known: Vec<&str> = known.map(|(name, _)| name.as_str()).collect();
        anyhow::bail!(
            "there is no [servers.{server}] in {}; servers that can be signed in to: {}",
            config.file.display(),
            super::or_none(&known)
        );
    };
    let Transport::Http { url, headers, oauth, .. } = &settings.transport else {
        anyhow::bail!("`{server}` is a program, which gets what it needs in `env`; a sign-in is for a `url`");
    };
    anyhow::ensure!(
        settings.transport.is_signed_in_to(),
        "`{server}` has a header `Authorization` in its `headers`, which is sent instead; take it out to sign in"
    );
    let state =
        store::folder().context("there is no home folder to keep a sign-in in; set XDG_STATE_HOME")?;
    let headers = headers.iter().filter_map(|(name, value)| {
        Some((HeaderName::try_from(name).ok()?, HeaderValue::try_from(value.expose()).ok()?))
    });
    let entry = Vault::in_state(&state).entry(server, url);
    Ok(Remote { url, headers: headers.collect(), oauth, entry })
}
