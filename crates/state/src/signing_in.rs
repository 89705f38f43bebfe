//! Sign-ins to servers that start on the page or in an answer, where the browser returns to this machine, and those
//! that a call asks its person for.

use std::time::Duration;

use nonet_config::Grant;
use nonet_servers::{
    downstream::{ClientChannel, Connection, ConnectionState, ELICITATION, InputRequests},
    oauth::{Callback, SignIn, SignInError, SignInPlace, SignInRecord, SignInRequest},
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::{servers::Servers, session::Caller};

/// How long the sign-in server may take to provide the address, and how long the user may take for the rest.
const BEGIN: Duration = Duration::from_secs(30);
const RETURN: Duration = Duration::from_secs(300);
/// How long an answer waits for the address.
const LINK: Duration = Duration::from_secs(5);
/// The key of the question.
const SIGN_IN: &str = "sign_in";

impl Servers {
    /// Starts the sign-in to a server. Returns the address to open; the rest happens when the browser
    /// returns. Fails with the reason why the sign-in cannot start.
    pub async fn begin_sign_in(&self, server: &str) -> Result<String, String> {
        self.open_sign_in(server).await.map(|open| open.address)
    }

    /// Returns the address at which the user of this machine signs in to a server, for an answer; none if that
    /// cannot be known soon. Calls share a sign-in as long as it is open.
    pub async fn sign_in_link(&self, server: &str) -> Option<String> {
        if !self.config().servers.keys().any(|name| name.as_str() == server) {
            return None;
        }
        let place = self.sign_ins.entry(server.into()).or_default().clone();
        // Calls of one server wait for each other, and for nothing else.
        let mut open = place.lock().await;
        if let Some(open) = open.as_ref().filter(|open| !open.ended.is_cancelled()) {
            return Some(open.address.clone());
        }
        let begun = tokio::time::timeout(LINK, Box::pin(self.open_sign_in(server))).await.ok()?;
        let begun = begun.inspect_err(|why| tracing::debug!(server, why, "no link for the sign-in")).ok()?;
        Some(open.insert(begun).address.clone())
    }

    async fn open_sign_in(&self, server: &str) -> Result<OpenSignIn, String> {
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
            people: None,
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
        let ended = CancellationToken::new();
        let open = OpenSignIn { address, ended: ended.clone() };
        let (server, stop) = (server.to_string(), self.stopping().clone());
        self.life.tasks.spawn(async move {
            let _ended = ended.drop_guard();
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
                Ok(()) => tracing::info!(server, "signed in from a link"),
                Err(why) => tracing::warn!(server, why, "no sign-in from a link"),
            }
            callback.close().await;
        });
        Ok(open)
    }
}

/// A sign-in whose browser has not returned yet.
#[derive(Debug)]
pub(crate) struct OpenSignIn {
    address: String,
    /// Cancelled once the browser has returned, or can no longer return.
    ended: CancellationToken,
}

/// Asks the person of a call to sign in to a server at a link, where their client can show it (elicitation by URL), and
/// waits until they have. Returns whether the call can be made now.
pub async fn ask_to_sign_in(caller: &Caller, connection: &Connection, link: &str) -> bool {
    let Some(asker) = asker_of_links(caller) else { return false };
    let server = &connection.name;
    let mut states = connection.watch();
    let params = json!({
        "mode": "url",
        "message": format!("`{server}` requires sign-in with your account. Sign in there, and this call goes on."),
        "url": link,
        "elicitationId": uuid::Uuid::new_v4().simple().to_string(),
    });
    let question = json!({ "method": ELICITATION, "params": params });
    let asked = asker.put(InputRequests::from_iter([(SIGN_IN.to_string(), question)]));
    let replies = tokio::select! {
        replies = asked => replies,
        () = caller.cancel.cancelled() => return false,
    };
    let has_agreed = replies
        .and_then(|mut replies| replies.remove(SIGN_IN)?.ok())
        .is_some_and(|reply| reply["action"] == "accept");
    if !has_agreed {
        return false;
    }
    // The client says that the user opens the link; the user still has to come back. A connection that was refused
    // only for want of scopes is ready all the while, and connects anew then.
    let signed_in = async {
        let is_changed = |state: &ConnectionState| !matches!(state, ConnectionState::Ready { .. });
        if states.wait_for(is_changed).await.is_ok() {
            let _ = states.wait_for(|state| matches!(state, ConnectionState::Ready { .. })).await;
        }
    };
    tokio::select! {
        ended = tokio::time::timeout(RETURN, signed_in) => ended.is_ok(),
        // Another one has taken its place.
        () = connection.retired().cancelled() => true,
        () = caller.cancel.cancelled() => false,
    }
}

/// Returns the channel to a client that shows links to its user.
pub fn asker_of_links(caller: &Caller) -> Option<&ClientChannel> {
    let asker = caller.asker.as_ref().filter(|_| !caller.unasked && !caller.session.unattended);
    asker.filter(|asker| asker.can_answer(ELICITATION, &json!({ "mode": "url" })))
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
