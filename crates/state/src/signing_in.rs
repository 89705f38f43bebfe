//! A sign-in that starts on the page: the browser opens an address, and returns to this machine.

use std::time::Duration;

use nonet_config::Grant;
use nonet_servers::oauth::{Callback, SignIn, SignInError, SignInPlace, SignInRecord, SignInRequest};

use crate::servers::Servers;

/// How long the sign-in server may take to provide the address, and how long the user may take for the rest.
const BEGIN: Duration = Duration::from_secs(30);
const RETURN: Duration = Duration::from_secs(300);

impl Servers {
    /// Starts the sign-in to a server. Returns the address to open; the rest happens when the browser
    /// returns. Fails with the reason why the sign-in cannot start.
    pub async fn begin_sign_in(&self, server: &str) -> Result<String, String> {
        let config = self.config();
        let settings = config.servers.iter().find(|(name, _)| name.as_str() == server);
        let (_, settings) = settings.ok_or_else(|| format!("there is no server `{server}`"))?;
        let vault = self.around.vault.as_ref();
        let vault = vault.ok_or("there is no folder to store the sign-in in; set XDG_STATE_HOME")?;
        let SignInPlace { url, headers, oauth, entry } = SignInPlace::of(server, settings, vault)?;
        if oauth.grant != Grant::AuthorizationCode {
            return Err(format!("`{server}` has `grant = \"client_credentials\"`: Nonet signs in by itself"));
        }
        let kept = entry.read().ok().flatten();
        let in_keyring = kept.as_ref().is_some_and(|kept| kept.in_keyring);
        // Checked before the user agrees to anything.
        entry.check(in_keyring).map_err(|error| error.to_string())?;
        let mut callback = Callback::listen(oauth.redirect_uri.as_deref()).await.map_err(|error| {
            format!("cannot listen for the browser's return ({error}); another program may use the port of `redirect_uri`")
        })?;
        let request = SignInRequest {
            url,
            headers,
            settings: oauth,
            redirect_uri: callback.redirect_uri.clone(),
            scopes: &[],
            before: kept.as_ref().map(|kept| &kept.record),
        };
        let begun = match tokio::time::timeout(BEGIN, Box::pin(SignIn::begin(request))).await {
            Ok(Ok(begun)) => begun,
            Ok(Err(error)) => {
                callback.close().await;
                return Err(error.to_string());
            }
            Err(_) => {
                callback.close().await;
                return Err(format!("the sign-in server did not answer within {} s", BEGIN.as_secs()));
            }
        };
        let address = begun.address.clone();
        let (server, stop) = (server.to_string(), self.stopping().clone());
        self.life.tasks.spawn(async move {
            let ended = tokio::select! {
                ended = tokio::time::timeout(RETURN, come_back(&begun, &mut callback)) => ended,
                () = stop.cancelled() => return,
            };
            let kept = match ended {
                Ok(Ok(record)) => entry.keep(record, in_keyring).await.map_err(|error| error.to_string()),
                Ok(Err(error)) => Err(error.to_string()),
                Err(_) => Err("the browser did not return in time".into()),
            };
            match kept {
                Ok(()) => tracing::info!(server, "signed in from the live page"),
                Err(why) => tracing::warn!(server, why, "no sign-in from the live page"),
            }
            callback.close().await;
        });
        Ok(address)
    }
}

/// Waits for the browser to return.
async fn come_back(begun: &SignIn, callback: &mut Callback) -> Result<SignInRecord, SignInError> {
    while let Some(browser) = callback.next().await {
        match begun.finish(&browser.address).await {
            Err(SignInError::Foreign(why)) => {
                browser.reply(false, &format!("This address does not complete the sign-in: {why}."));
            }
            Err(error) => {
                browser.reply(false, &error.to_string());
                return Err(error);
            }
            Ok(record) => {
                browser.reply(true, "Nonet has what it needs. You can close this page.");
                return Ok(record);
            }
        }
    }
    Err(SignInError::Failed("the browser can no longer return".into()))
}
