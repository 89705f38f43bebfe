//! Signing in to remote servers with OAuth 2.1, as MCP's revisions since 2025-03-26 ask for it.
//!
//! `nonet login` ([`SignIn`]) leaves a [`Record`] in the [`Vault`]; an [`Account`] gives the requests of one server their
//! access token out of it, and renews it in time. Discovery, registration, PKCE and the token requests are rmcp's; what is
//! kept, when it is renewed and who is told is decided here. rmcp's own store cannot be used, since it forgets the secret of
//! a client that was registered, without which no token of it can be renewed.

mod callback;
mod sign_in;
mod vault;

use std::{
    collections::VecDeque,
    fmt,
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use futures::{FutureExt, future::BoxFuture};
use reqwest::Url;
use rmcp::transport::auth::{
    AuthError, AuthorizationManager, ClientCredentialsConfig, CredentialStore, InMemoryCredentialStore,
    OAuthClientConfig, StoredCredentials,
};

use self::vault::Stamp;
pub use self::{
    callback::{Callback, CameBack},
    sign_in::{SignIn, SignInError, Wish},
    vault::{Entry, Kept, Record, Vault, VaultError},
};
use crate::{
    config::{Grant, OAuth},
    keyring,
    text::clip,
    wire::{
        http::{HttpFault, Signer},
        rmcp::{chain, is_private_address, is_refused_for_good},
        web,
    },
};

/// How long before its end a token is renewed, so that it does not end on the way.
const BEFORE_END: Duration = Duration::from_secs(30);
/// How long a renewal that failed is not tried again, however many requests want it.
const RENEW_AGAIN: Duration = Duration::from_secs(5);
/// How long one renewal may take, with all that has to be found out before it.
const RENEW_LIMIT: Duration = Duration::from_secs(60);
/// How many secrets are remembered that must not be shown.
const MASKED: usize = 8;

/// Why there is no token although there should be one.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RenewError {
    /// It did not come to an answer of the sign-in server. Trying again later may help.
    #[error("its sign-in could not be renewed: {0}")]
    Failed(String),
    /// The sign-in server says no, or has said so before. Only a new sign-in helps, or another client.
    #[error("{0}")]
    Over(String),
}

impl From<VaultError> for RenewError {
    fn from(error: VaultError) -> Self {
        Self::Failed(error.to_string())
    }
}

/// The tokens of one server.
pub struct Account {
    url: String,
    settings: OAuth,
    /// Where a sign-in is kept; none where nothing is kept on this machine, or nobody signs in.
    entry: Option<Entry>,
    /// Locked while a token is renewed: all requests of the server wait for one renewal.
    held: tokio::sync::Mutex<Held>,
    /// What was had last and must not be shown.
    secrets: Mutex<VecDeque<String>>,
}

/// What is in memory of the sign-in.
#[derive(Default)]
struct Held {
    record: Option<Kept>,
    /// The state of the file that it was read from.
    stamp: Option<Stamp>,
    /// The last renewal that failed.
    failed: Option<(Instant, RenewError)>,
}

impl Held {
    fn token(&self) -> Option<String> {
        self.record.as_ref()?.record.token()
    }

    fn is_good_at(&self, moment: Duration) -> bool {
        self.record.as_ref().is_some_and(|kept| kept.record.ends_after(moment))
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Account").field("url", &web::place(&self.url)).finish_non_exhaustive()
    }
}

impl Account {
    /// The account that a server's requests are signed with.
    pub fn new(server: &str, url: &str, settings: OAuth, vault: Option<&Vault>) -> Self {
        let vault = vault.filter(|_| settings.grant == Grant::AuthorizationCode);
        let secret = settings.client_secret.iter().map(|secret| secret.expose().to_string());
        Self {
            url: url.into(),
            entry: vault.map(|vault| vault.entry(server, url)),
            held: tokio::sync::Mutex::default(),
            secrets: Mutex::new(secret.collect()),
            settings,
        }
    }

    /// In whose name it signs in.
    pub fn grant(&self) -> Grant {
        self.settings.grant
    }

    /// The access token for a request, renewed if it is about to end. None if nobody has signed in.
    pub async fn token(self: &Arc<Self>) -> Result<Option<String>, RenewError> {
        let held = {
            let mut held = self.held.lock().await;
            self.look(&mut held).await?;
            if held.is_good_at(now() + BEFORE_END) {
                return Ok(held.token());
            }
            match (&held.record, self.settings.grant) {
                (None, Grant::AuthorizationCode) => return Ok(None),
                (Some(kept), Grant::AuthorizationCode) if kept.record.token().is_none() => {
                    return Err(over());
                }
                _ => held.token(),
            }
        };
        self.renewed(held, true).await
    }

    /// Another token after the server refused the one that was `used`; none if there is no other.
    async fn another(self: &Arc<Self>, used: Option<String>) -> Result<Option<String>, RenewError> {
        let mut held = self.held.lock().await;
        self.look(&mut held).await?;
        match held.token() {
            // Somebody else has renewed it, or signed in anew.
            Some(current) if used.as_ref() != Some(&current) => return Ok(Some(current)),
            Some(_) => drop(held),
            None => return Ok(None),
        }
        self.renewed(used, false).await
    }

    /// Renews the token that is held, if it is still the one that was `used`. `serves`: whether that serves until its end.
    /// Goes on where the request that wants it is given up: the sign-in server may take the old refresh token no more.
    async fn renewed(
        self: &Arc<Self>,
        used: Option<String>,
        serves: bool,
    ) -> Result<Option<String>, RenewError> {
        let account = self.clone();
        let renewing = tokio::spawn(async move {
            let mut held = account.held.lock().await;
            if held.token() != used {
                return match (&held.record, held.token()) {
                    (Some(_), None) => Err(over()),
                    (_, token) => Ok(token),
                };
            }
            let error = match &held.failed {
                Some((at, error)) if at.elapsed() < RENEW_AGAIN => error.clone(),
                _ => match account.renew(&mut held).await {
                    Ok(token) => {
                        held.failed = None;
                        return Ok(token);
                    }
                    Err(error) => {
                        tracing::warn!(server = %web::place(&account.url), "{error}");
                        held.failed = Some((Instant::now(), error.clone()));
                        error
                    }
                },
            };
            match error {
                RenewError::Failed(_) if serves && held.is_good_at(now()) => Ok(held.token()),
                error => Err(error),
            }
        });
        renewing.await.unwrap_or_else(|error| Err(RenewError::Failed(error.to_string())))
    }

    /// Ends when somebody has signed in, or out. A renewal is neither.
    pub async fn changed(&self) {
        let Some(entry) = &self.entry else { return std::future::pending().await };
        let before = self.held.lock().await.record.as_ref().map(|kept| kept.record.id.clone());
        while entry.sign_in() == before {
            tokio::time::sleep(vault::LOOK).await;
        }
    }

    /// A text without the tokens, for servers that repeat them.
    pub fn mask(&self, text: String) -> String {
        let secrets = self.secrets.lock().unwrap_or_else(PoisonError::into_inner);
        secrets.iter().fold(text, |text, secret| text.replace(secret.as_str(), "***"))
    }

    fn hide(&self, record: &Record) {
        let mut secrets = self.secrets.lock().unwrap_or_else(PoisonError::into_inner);
        for secret in record.secrets().into_iter().filter(|secret| !secret.is_empty()) {
            if !secrets.contains(&secret) {
                secrets.push_front(secret);
            }
        }
        secrets.truncate(MASKED);
    }

    /// Reads what is kept, if that has changed.
    async fn look(&self, held: &mut Held) -> Result<(), VaultError> {
        let Some(entry) = &self.entry else { return Ok(()) };
        let stamp = entry.stamp();
        if stamp != held.stamp {
            // The stamp is of before the reading: what is written meanwhile is seen the next time.
            let from = entry.clone();
            let record = entry.apart(move || from.read()).await?;
            *held = Held { record, stamp, failed: None };
            if let Some(kept) = &held.record {
                self.hide(&kept.record);
            }
        }
        Ok(())
    }

    /// Renews the token that is held, unless another process has just done so.
    async fn renew(&self, held: &mut Held) -> Result<Option<String>, RenewError> {
        if self.settings.grant == Grant::ClientCredentials {
            // Such a token is not kept: the next one is a request away.
            let record = limited(exchange(&self.url, &self.settings)).await?;
            self.hide(&record);
            held.record = Some(Kept { record, in_keyring: false });
            return Ok(held.token());
        }
        let Some(entry) = &self.entry else { return Ok(None) };
        // One renewal at a time on this machine: many servers take a refresh token only once.
        let _lock = entry.lock().await?;
        let before = held.token();
        self.look(held).await?;
        if held.token() != before && held.is_good_at(now() + BEFORE_END) {
            return Ok(held.token());
        }
        let Some(mut kept) = held.record.clone() else { return Ok(None) };
        let renewed = limited(renew(&self.url, &self.settings, &kept.record)).await;
        match &renewed {
            Ok(credentials) => {
                kept.record.credentials = credentials.clone();
                self.hide(&kept.record);
            }
            // No token is sent any more, and none asked for, until somebody signs in.
            Err(RenewError::Over(_)) => kept.record.credentials.token_response = None,
            Err(RenewError::Failed(_)) => {}
        }
        if matches!(renewed, Ok(_) | Err(RenewError::Over(_)))
            && entry.sign_in().as_ref() == Some(&kept.record.id)
        {
            held.record = Some(kept.clone());
            let to = entry.clone();
            match entry.apart(move || to.write(&kept, keyring::UNATTENDED)).await {
                Ok(()) => held.stamp = entry.stamp(),
                // The token is good all the same, for this process.
                Err(error) => tracing::error!("a sign-in that was renewed is not kept: {error}"),
            }
        }
        renewed.map(|_| held.token())
    }
}

fn over() -> RenewError {
    RenewError::Over("its sign-in is over".into())
}

async fn limited<T>(work: impl Future<Output = Result<T, RenewError>>) -> Result<T, RenewError> {
    let late = |_| RenewError::Failed(format!("the sign-in server did not answer within {RENEW_LIMIT:?}"));
    tokio::time::timeout(RENEW_LIMIT, work).await.unwrap_or_else(|error| Err(late(error)))
}

impl From<RenewError> for HttpFault {
    fn from(error: RenewError) -> Self {
        match error {
            RenewError::Over(why) => Self::AuthRequired(why),
            RenewError::Failed(_) => Self::Unsent(error.to_string()),
        }
    }
}

impl Signer for Account {
    fn token(self: Arc<Self>) -> BoxFuture<'static, Result<Option<String>, HttpFault>> {
        async move { Ok(Account::token(&self).await?) }.boxed()
    }

    fn another(
        self: Arc<Self>,
        used: Option<String>,
    ) -> BoxFuture<'static, Result<Option<String>, HttpFault>> {
        async move { Ok(Account::another(&self, used).await?) }.boxed()
    }
}

/// A manager that knows where the sign-in server is. `challenge`: what the server said as it refused a request.
async fn manager(url: &str, settings: &OAuth, challenge: Option<&str>) -> Result<Found, AuthError> {
    web::crypto();
    let resource = resource(url);
    let mut manager = match settings.private_addresses {
        true => AuthorizationManager::new_allowing_private_addresses(&resource).await?,
        false => AuthorizationManager::new(&resource).await?,
    };
    let resolution = manager.resolve_metadata_from_challenge(challenge).await?;
    let metadata = &resolution.metadata;
    if let Some(issuer) = &settings.issuer
        && metadata.issuer.as_ref().map(|found| found.trim_end_matches('/'))
            != Some(issuer.trim_end_matches('/'))
    {
        let found = clip(metadata.issuer.as_deref().unwrap_or("none"), 200);
        return Err(AuthError::MetadataError(format!(
            "its sign-in server is `{found}`, and `issuer` says another"
        )));
    }
    let places = [
        Some(&metadata.authorization_endpoint),
        Some(&metadata.token_endpoint),
        metadata.registration_endpoint.as_ref(),
    ];
    for place in places.into_iter().flatten() {
        if !may_have_secrets(place, url) {
            return Err(AuthError::MetadataError(format!(
                "the sign-in server names `{}`, which is no https address",
                clip(place, 200)
            )));
        }
    }
    let takes_documents = metadata.additional_fields.get("client_id_metadata_document_supported");
    let takes_documents = takes_documents.and_then(serde_json::Value::as_bool).unwrap_or(false);
    let issuer = metadata.issuer.clone();
    let registers = metadata.registration_endpoint.is_some();
    let is_told = resolution.source.is_discovered();
    manager.set_metadata(resolution.metadata);
    Ok(Found { manager, issuer, registers, takes_documents, is_told })
}

/// Whether codes, secrets and tokens may go to an address that the server at `url` leads to: over TLS, or as plainly as to the
/// server itself.
fn may_have_secrets(place: &str, url: &str) -> bool {
    let (Ok(place), Ok(url)) = (Url::parse(place), Url::parse(url)) else { return false };
    let here = |url: &Url| matches!(url.host_str(), Some("localhost" | "127.0.0.1" | "[::1]"));
    let beside = place.host_str() == url.host_str() || here(&place) && here(&url);
    place.scheme() == "https" || place.scheme() == "http" && url.scheme() == "http" && beside
}

/// The server as a resource (RFC 8707): its address without what may be a key.
fn resource(url: &str) -> String {
    let Ok(mut url) = Url::parse(url) else { return url.into() };
    url.set_query(None);
    url.set_fragment(None);
    // Fails only for addresses without a host, which the configuration does not let in.
    let _ = (url.set_username(""), url.set_password(None));
    url.into()
}

/// A sign-in server that was found.
struct Found {
    manager: AuthorizationManager,
    issuer: Option<String>,
    /// Whether clients can register themselves.
    registers: bool,
    /// Whether the id of a client may be the address of its metadata document.
    takes_documents: bool,
    /// Whether the server told of it; else it is where servers of 2025-03-26 have it.
    is_told: bool,
}

/// Renews a token.
async fn renew(url: &str, settings: &OAuth, record: &Record) -> Result<StoredCredentials, RenewError> {
    if !record.renews() {
        return Err(over());
    }
    let credentials = &record.credentials;
    let found = manager(url, settings, record.challenge.as_deref()).await.map_err(judged)?;
    // What another sign-in server gave is shown to nobody else (SEP-2352).
    if credentials.issuer.is_some() && credentials.issuer != found.issuer {
        return Err(match found.is_told {
            true => RenewError::Over("its sign-in is over: the server has another sign-in server now".into()),
            false => RenewError::Failed("the server does not tell its sign-in server just now".into()),
        });
    }
    let store = InMemoryCredentialStore::new();
    let renewed = async {
        let mut manager = found.manager;
        store.save(credentials.clone()).await?;
        manager.set_credential_store(store.clone());
        let mut client = OAuthClientConfig::new(credentials.client_id.clone(), record.redirect_uri.clone());
        let configured = settings.client_id.as_ref() == Some(&credentials.client_id);
        client.client_secret = match &settings.client_secret {
            Some(secret) if configured => Some(secret.expose().into()),
            _ => record.client_secret.clone(),
        };
        manager.configure_client(client)?;
        manager.refresh_token().await?;
        store.load().await
    };
    renewed.await.map_err(judged)?.ok_or_else(over)
}

/// Gets a token in the name of the gateway itself.
async fn exchange(url: &str, settings: &OAuth) -> Result<Record, RenewError> {
    let store = InMemoryCredentialStore::new();
    let config = ClientCredentialsConfig::ClientSecret {
        client_id: settings.client_id.clone().unwrap_or_default(),
        client_secret: settings.client_secret.as_ref().map(|it| it.expose().into()).unwrap_or_default(),
        scopes: settings.scopes.clone(),
        resource: Some(resource(url)),
    };
    let Found { mut manager, is_told, .. } = manager(url, settings, None).await.map_err(judged)?;
    if !is_told {
        return Err(RenewError::Failed("the server does not tell its sign-in server".into()));
    }
    let exchanged = async {
        manager.set_credential_store(store.clone());
        manager.validate_client_credentials_metadata(&config)?;
        manager.configure_client_credentials(&config)?;
        manager.exchange_client_credentials(&config).await?;
        store.load().await
    };
    let credentials = exchanged.await.map_err(judged)?;
    let credentials =
        credentials.ok_or_else(|| RenewError::Failed("the sign-in server gave no token".into()))?;
    Ok(Record::of_client(url, credentials))
}

/// Whether a failure is an answer of the sign-in server, or may pass.
fn judged(error: AuthError) -> RenewError {
    let text = explain(&error);
    let refused = is_refused_for_good(&error);
    match error {
        AuthError::TokenRefreshRejected(_) | AuthError::AuthorizationRequired => over(),
        _ if refused => RenewError::Over(text),
        _ => RenewError::Failed(text),
    }
}

/// What went wrong, down to the cause, with what to do where that is known.
fn explain(error: &AuthError) -> String {
    let text = clip(&printable(&chain(error)), 600);
    if is_private_address(error) {
        return format!(
            "{text}. If that is a server of your own network, set `private_addresses = true` in its `oauth`"
        );
    }
    text
}

/// A text of others without what steers a terminal.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_go_over_tls_or_as_plainly_as_to_the_server() {
        let check = |place: &str, url: &str, expected: bool| {
            assert_eq!(may_have_secrets(place, url), expected, "{place} of {url}");
        };
        check("https://login.example.com/token", "https://a.example.com/mcp", true);
        check("http://login.example.com/token", "https://a.example.com/mcp", false);
        check("file:///bin/sh", "https://a.example.com/mcp", false);
        check("javascript:alert(1)", "http://localhost:1/mcp", false);
        check("http://localhost:2/token", "http://127.0.0.1:1/mcp", true);
        check("http://10.0.0.1/reboot", "http://localhost:1/mcp", false);
        check("http://a.example.com/token", "http://a.example.com:8080/mcp", true);
        check("http://b.example.com/token", "http://a.example.com/mcp", false);
        check("nonsense", "http://a.example.com/mcp", false);
    }

    #[test]
    fn a_resource_is_told_without_keys() {
        assert_eq!(resource("https://ann:pw@example.com/mcp?key=s3cret#x"), "https://example.com/mcp");
        assert_eq!(resource("https://example.com/mcp/"), "https://example.com/mcp/");
    }
}
