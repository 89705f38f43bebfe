//! One sign-in, from a server's refusal to the tokens.
//!
//! This room knows nothing of browsers and terminals: it returns the address to open, and takes the address
//! that the browser returned to.

use std::{collections::HashSet, time::Duration};

use http::{HeaderMap, StatusCode, header};
use nonet_base::{
    clock::{system_time, unix_ms},
    text::clip,
};
use nonet_config::OAuth;
use nonet_wire::web;
use reqwest::Url;
use rmcp::transport::auth::{
    AuthError, AuthorizationCallback, AuthorizationManager, CredentialStore, InMemoryCredentialStore,
    InMemoryStateStore, OAuthClientConfig, StateStore, StoredAuthorizationState,
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::timeout;

use super::{RegisteredClient, SignInRecord, SignInServer, explain, manager, printable};

/// The name under which Nonet registers.
const CLIENT_NAME: &str = "Nonet";
/// The revision of the probe in the stateless era.
const STATELESS: &str = "2026-07-28";
/// The longest time for the answer to one probe.
const PROBE_LIMIT: Duration = Duration::from_secs(8);

/// Why a sign-in failed.
#[derive(Debug, thiserror::Error)]
pub enum SignInError {
    /// The server answers without a sign-in, and names no sign-in server.
    #[error("it does not ask for a sign-in (it answered HTTP {0})")]
    NotNeeded(StatusCode),
    /// The server did not answer.
    #[error("it cannot be reached: {0}")]
    Unreachable(String),
    /// The sign-in server requires manual registration of clients.
    #[error(
        "its sign-in server does not let clients register themselves. Register Nonet there with the redirect address {0}, and \
         give `client_id`, `redirect_uri` and, if there is one, `client_secret` in `oauth`"
    )]
    NoRegistration(String),
    /// The user, or the sign-in server, refused.
    #[error("the sign-in server refused: {0}")]
    Refused(String),
    /// The address does not belong to this sign-in.
    #[error("that address does not belong to this sign-in: {0}")]
    Foreign(String),
    /// Anything else.
    #[error("{0}")]
    Failed(String),
}

/// The conditions of a sign-in.
pub struct SignInRequest<'a> {
    /// The server's address.
    pub url: &'a str,
    /// The headers of requests to the server.
    pub headers: HeaderMap,
    /// The `oauth` settings.
    pub settings: &'a OAuth,
    /// The address that the browser comes back to.
    pub redirect_uri: String,
    /// Scopes besides the ones that the server requests.
    pub scopes: &'a [String],
    /// The earlier sign-in, whose scopes are requested again (SEP-2350).
    pub before: Option<&'a SignInRecord>,
    /// The gateway as a client for all people. Default: a client for this sign-in.
    pub people: Option<PeopleClient>,
}

/// The gateway as one client for all people at a sign-in server.
#[derive(Clone, Debug, Default)]
pub struct PeopleClient {
    /// The address of its metadata document, which is its id where documents are accepted.
    pub document: Option<String>,
    /// The client that was registered before.
    pub registered: Option<RegisteredClient>,
}

/// A sign-in that waits for the user, as text: any replica can finish it.
#[derive(Clone, Serialize, Deserialize)]
pub struct PendingSignIn {
    stored: StoredAuthorizationState,
    client_id: String,
    client_secret: Option<String>,
    redirect_uri: String,
    challenge: Option<String>,
    issuer: Option<String>,
    scopes: Vec<String>,
}

/// A sign-in that waits for the user.
pub struct SignIn {
    manager: AuthorizationManager,
    store: InMemoryCredentialStore,
    /// The address to open in a browser.
    pub address: String,
    /// The requested scopes; empty if the sign-in server decides.
    pub scopes: Vec<String>,
    /// The value that the browser brings back to identify this sign-in.
    state: String,
    url: String,
    redirect_uri: String,
    client_id: String,
    client_secret: Option<String>,
    challenge: Option<String>,
    issuer: Option<String>,
    states: InMemoryStateStore,
    /// The client that was registered for it, if one was.
    pub registered: Option<RegisteredClient>,
}

impl SignIn {
    /// Discovers the sign-in server, registers Nonet there if necessary, and builds the address to open.
    pub async fn begin(wish: SignInRequest<'_>) -> Result<Self, SignInError> {
        let (status, challenge) = refusal(wish.url, &wish.headers).await?;
        let found = manager(wish.url, wish.settings, challenge.as_deref()).await.map_err(failed)?;
        if !found.is_named && status != StatusCode::UNAUTHORIZED {
            return Err(SignInError::NotNeeded(status));
        }
        let scopes = scopes(&found, &wish).await;
        let names: Vec<&str> = scopes.iter().map(String::as_str).collect();
        let SignInServer { mut manager, registers, takes_documents, issuer, .. } = found;
        let (store, states) = (InMemoryCredentialStore::new(), InMemoryStateStore::new());
        manager.set_credential_store(store.clone());
        manager.set_state_store(states.clone());
        let redirect_uri = wish.redirect_uri;
        let PeopleClient { document, registered } = wish.people.unwrap_or_default();
        let configured = wish.settings.client_id.as_ref();
        let configured = configured.filter(|id| takes_documents || !id.starts_with("https://"));
        let known = registered.filter(|client| client.issuer == issuer);
        let mut registered = None;
        let mut client_secret = None;
        let client_id = if let Some(id) = configured {
            let mut client = OAuthClientConfig::new(id, &redirect_uri);
            client.client_secret = wish.settings.client_secret.as_ref().map(|it| it.expose().into());
            manager.configure_client(client).map_err(failed)?;
            id.clone()
        } else if let Some(document) = document.filter(|_| takes_documents) {
            manager.configure_client(OAuthClientConfig::new(&document, &redirect_uri)).map_err(failed)?;
            document
        } else if let Some(known) = known {
            let mut client = OAuthClientConfig::new(&known.client_id, &redirect_uri);
            client_secret.clone_from(&known.client_secret);
            client.client_secret = known.client_secret;
            manager.configure_client(client).map_err(failed)?;
            known.client_id
        } else if registers {
            let client = manager.register_client(CLIENT_NAME, &redirect_uri, &names).await;
            let client = client.map_err(failed)?;
            client_secret.clone_from(&client.client_secret);
            registered = Some(RegisteredClient {
                client_id: client.client_id.clone(),
                client_secret: client.client_secret,
                issuer: issuer.clone(),
                at: unix_ms(system_time()) / 1_000,
            });
            client.client_id
        } else {
            return Err(SignInError::NoRegistration(redirect_uri));
        };
        let address = manager.get_authorization_url(&names).await.map_err(failed)?;
        let state = query(&address, "state").unwrap_or_default();
        let url = wish.url.into();
        Ok(Self {
            manager,
            store,
            address,
            scopes,
            state,
            url,
            redirect_uri,
            client_id,
            client_secret,
            challenge,
            issuer,
            states,
            registered,
        })
    }

    /// Returns the sign-in as text.
    pub async fn pending(&self) -> Result<PendingSignIn, SignInError> {
        let stored = self.states.load(&self.state).await.map_err(failed)?;
        Ok(PendingSignIn {
            stored: stored.ok_or_else(|| SignInError::Failed("it has no `state`".into()))?,
            client_id: self.client_id.clone(),
            client_secret: self.client_secret.clone(),
            redirect_uri: self.redirect_uri.clone(),
            challenge: self.challenge.clone(),
            issuer: self.issuer.clone(),
            scopes: self.scopes.clone(),
        })
    }

    /// Goes on with a sign-in that was begun here or elsewhere. Discovers the sign-in server again, which must be
    /// the same.
    pub async fn resume(url: &str, settings: &OAuth, pending: PendingSignIn) -> Result<Self, SignInError> {
        let found = manager(url, settings, pending.challenge.as_deref()).await.map_err(failed)?;
        if found.issuer != pending.issuer {
            return Err(SignInError::Failed("the server has another sign-in server now".into()));
        }
        let (mut manager, store, states) =
            (found.manager, InMemoryCredentialStore::new(), InMemoryStateStore::new());
        manager.set_credential_store(store.clone());
        manager.set_state_store(states.clone());
        let state = pending.stored.csrf_token.clone();
        states.save(&state, pending.stored).await.map_err(failed)?;
        let mut client = OAuthClientConfig::new(&pending.client_id, &pending.redirect_uri);
        let is_configured = settings.client_id.as_ref() == Some(&pending.client_id);
        client.client_secret = match &settings.client_secret {
            Some(secret) if is_configured => Some(secret.expose().into()),
            _ => pending.client_secret.clone(),
        };
        manager.configure_client(client).map_err(failed)?;
        Ok(Self {
            manager,
            store,
            address: String::new(),
            scopes: pending.scopes,
            state,
            url: url.into(),
            redirect_uri: pending.redirect_uri,
            client_id: pending.client_id,
            client_secret: pending.client_secret,
            challenge: pending.challenge,
            issuer: pending.issuer,
            states,
            registered: None,
        })
    }

    /// Takes the address that the browser returned to, and exchanges its code for tokens.
    pub async fn finish(&self, came_back_to: &str) -> Result<SignInRecord, SignInError> {
        if query(came_back_to, "state").as_deref() != Some(&self.state) {
            return Err(SignInError::Foreign("its `state` differs".into()));
        }
        // Checked before the rest of the address (RFC 9207, section 2.4).
        if let (Some(said), Some(issuer)) = (query(came_back_to, "iss"), &self.issuer)
            && said != *issuer
        {
            return Err(SignInError::Failed("the answer came from another sign-in server".into()));
        }
        if let Some(error) = query(came_back_to, "error") {
            let more = query(came_back_to, "error_description").map(|more| format!(" ({more})"));
            let said = printable(&format!("{error}{}", more.unwrap_or_default()));
            return Err(SignInError::Refused(clip(&said, 400)));
        }
        let callback = AuthorizationCallback::from_redirect_url(came_back_to).map_err(failed)?;
        let (code, state, issuer) = (&callback.code, &callback.csrf_token, callback.issuer.as_deref());
        self.manager.exchange_code_for_token_with_issuer(code, state, issuer).await.map_err(failed)?;
        let credentials = self.store.load().await.map_err(failed)?;
        Ok(SignInRecord {
            id: uuid::Uuid::new_v4().simple().to_string(),
            url: self.url.clone(),
            credentials: credentials
                .ok_or_else(|| SignInError::Failed("the sign-in server issued no token".into()))?,
            client_secret: self.client_secret.clone(),
            redirect_uri: self.redirect_uri.clone(),
            challenge: self.challenge.clone(),
        })
    }
}

/// Returns the scopes to request: the configured ones, else the server's and the earlier sign-in's.
async fn scopes(found: &SignInServer, wish: &SignInRequest<'_>) -> Vec<String> {
    let mut scopes = wish.settings.scopes.clone();
    if scopes.is_empty() {
        scopes = found.manager.select_initial_scopes(&[]).await;
        let before = wish.before.map(|record| &record.credentials);
        if let Some(before) = before.filter(|before| before.issuer == found.issuer) {
            scopes.extend(before.granted_scopes.iter().cloned());
        }
    }
    scopes.extend(wish.scopes.iter().cloned());
    let mut seen = HashSet::new();
    scopes.retain(|scope| seen.insert(scope.clone()));
    scopes
}

/// Sends requests without a token. Returns the status and the `WWW-Authenticate` of the answer. There is a
/// probe for each era, since a server of the other era may fail before it asks for a token.
async fn refusal(url: &str, headers: &HeaderMap) -> Result<(StatusCode, Option<String>), SignInError> {
    let unreachable = |error: reqwest::Error| SignInError::Unreachable(web::cause(error));
    let client = web::client().map_err(unreachable)?;
    let accept = "application/json, text/event-stream";
    let info = json!({ "name": "nonet", "version": env!("CARGO_PKG_VERSION") });
    let meta = |name: &str| format!("io.modelcontextprotocol/{name}");
    let about = json!({
        meta("protocolVersion"): STATELESS, meta("clientCapabilities"): {}, meta("clientInfo"): info,
    });
    let discover = json!({
        "jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": { "_meta": about },
    });
    let initialize = json!({
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": { "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info },
    });
    let stateless = [("mcp-protocol-version", STATELESS), ("mcp-method", "server/discover")];
    let stateless = stateless
        .into_iter()
        .fold(client.post(url).json(&discover), |request, (name, value)| request.header(name, value));
    let mut answer = None;
    // The old HTTP+SSE transport starts with a GET.
    for probe in [stateless, client.post(url).json(&initialize), client.get(url)] {
        let probe = probe.headers(headers.clone()).header(header::ACCEPT, accept);
        let response = match timeout(PROBE_LIMIT, probe.send()).await {
            Ok(response) => response.map_err(unreachable)?,
            Err(_) => continue,
        };
        let (status, challenge) = (response.status(), web::challenge(response.headers()));
        if status == StatusCode::UNAUTHORIZED || challenge.is_some() {
            return Ok((status, challenge));
        }
        if answer.is_none() || status.is_success() {
            answer = Some(status);
        }
        if status.is_success() {
            break;
        }
    }
    let late = || SignInError::Unreachable(format!("it did not answer within {PROBE_LIMIT:?}"));
    answer.map(|status| (status, None)).ok_or_else(late)
}

fn query(address: &str, name: &str) -> Option<String> {
    let address = Url::parse(address).ok()?;
    address.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
}

fn failed(error: AuthError) -> SignInError {
    SignInError::Failed(explain(&error))
}
