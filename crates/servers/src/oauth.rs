//! Signs in to remote servers with OAuth 2.1, as MCP's revisions since 2025-03-26 require.
//!
//! `nonet login` ([`SignIn`]) stores a [`SignInRecord`] in the [`Vault`]; an [`TokenAccount`] signs the
//! requests of one server with the access token of that record and renews the token in time. Discovery,
//! registration, PKCE and the token requests are rmcp's; storage, renewal and messages are decided here.
//! rmcp's own store drops the secret of a registered client, without which no token of that client can be
//! renewed.

mod callback;
mod exchange;
mod people;
mod place;
mod sign_in;
mod store;
mod vault;

use std::{
    collections::VecDeque,
    fmt,
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{FutureExt, future::BoxFuture};
use nonet_base::{clock::Clock, text::clip};
use nonet_config::{Grant, OAuth};
use nonet_wire::{
    http::{HttpFault, Signer},
    rmcp::{chain, is_private_address, is_refused_for_good},
    web,
};
use parking_lot::Mutex;
use reqwest::Url;
use rmcp::transport::auth::{
    AuthError, AuthorizationManager, ClientCredentialsConfig, CredentialStore, InMemoryCredentialStore,
    OAuthClientConfig, StoredCredentials,
};

pub(crate) use self::exchange::PersonExchange;
use self::store::{SignInStore, StoreStamp};
pub use self::{
    callback::{Callback, ReturnedBrowser},
    exchange::SubjectToken,
    people::{PeopleVault, PersonEntry, RegisteredClient},
    place::{SignInPlace, header_map},
    sign_in::{PendingSignIn, PeopleClient, SignIn, SignInError, SignInRequest},
    vault::{KeptRecord, SignInRecord, Vault, VaultEntry, VaultError},
};

/// How long before its expiry a token is renewed, so that it does not expire on the way.
const BEFORE_END: Duration = Duration::from_secs(30);
/// The delay after a failed renewal, however many requests need a token.
const RENEW_AGAIN: Duration = Duration::from_secs(5);
/// The longest time for one renewal, discovery included.
const RENEW_LIMIT: Duration = Duration::from_secs(60);
/// The longest time for the question whether a server offers a sign-in.
const DISCOVERY_LIMIT: Duration = Duration::from_secs(8);
/// The number of recent tokens and secrets that are masked.
const MASKED: usize = 8;

/// Why a sign-in yields no token.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RenewError {
    /// The sign-in server did not answer. Another attempt later may help.
    #[error("its sign-in could not be renewed: {0}")]
    Failed(String),
    /// The sign-in server refused, now or earlier. Only a new sign-in helps, or another client.
    #[error("{0}")]
    Over(String),
}

impl From<VaultError> for RenewError {
    fn from(error: VaultError) -> Self {
        Self::Failed(error.to_string())
    }
}

/// The tokens of one server.
pub struct TokenAccount {
    url: String,
    settings: OAuth,
    /// The place of the sign-in; absent without a vault, or if no user signs in.
    entry: Option<SignInStore>,
    /// How a person's own token becomes one for the server, if their account works so.
    exchange: Option<PersonExchange>,
    /// Locked during a renewal, so that all of the server's requests wait for one renewal.
    held: tokio::sync::Mutex<HeldSignIn>,
    /// The last tokens and secrets, for [`TokenAccount::mask`].
    secrets: Mutex<VecDeque<String>>,
    clock: Clock,
}

/// The sign-in in memory.
#[derive(Default)]
struct HeldSignIn {
    record: Option<KeptRecord>,
    /// The stamp of the place that the record was read from.
    stamp: Option<StoreStamp>,
    /// The last renewal that failed.
    failed: Option<(Instant, RenewError)>,
    /// Whether the record was renewed and could not be stored: what is stored may be spent.
    is_unsaved: bool,
}

impl HeldSignIn {
    fn token(&self) -> Option<String> {
        self.record.as_ref()?.record.token()
    }

    /// Returns whether the token is still valid after this time.
    fn is_good_in(&self, time: Duration, clock: &Clock) -> bool {
        let moment = Duration::from_millis(clock.unix_ms()) + time;
        self.record.as_ref().is_some_and(|kept| kept.record.ends_after(moment))
    }
}

impl fmt::Debug for TokenAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenAccount").field("url", &web::place(&self.url)).finish_non_exhaustive()
    }
}

impl TokenAccount {
    /// Returns the account for a server's requests.
    pub fn new(server: &str, url: &str, settings: OAuth, vault: Option<&Vault>) -> Self {
        let vault = vault.filter(|_| settings.grant == Grant::AuthorizationCode);
        let entry = vault.map(|vault| SignInStore::Machine(vault.entry(server, url)));
        Self::over(url, settings, entry, None)
    }

    /// Returns a person's account, for the requests of their connection.
    pub fn of_person(url: &str, settings: OAuth, entry: PersonEntry) -> Self {
        Self::over(url, settings, Some(SignInStore::Person(entry)), None)
    }

    /// Returns a person's account whose tokens are exchanged for their own.
    pub(crate) fn exchanging(url: &str, settings: OAuth, exchange: PersonExchange) -> Self {
        Self::over(url, settings, None, Some(exchange))
    }

    fn over(
        url: &str,
        settings: OAuth,
        entry: Option<SignInStore>,
        exchange: Option<PersonExchange>,
    ) -> Self {
        let secret = settings.client_secret.iter().map(|secret| secret.expose().to_string());
        Self {
            url: url.into(),
            entry,
            exchange,
            held: tokio::sync::Mutex::default(),
            secrets: Mutex::new(secret.collect()),
            settings,
            clock: Clock::default(),
        }
    }

    /// Returns the kind of sign-in.
    pub fn grant(&self) -> Grant {
        self.settings.grant
    }

    /// Whether its tokens are exchanged for a person's own.
    pub(crate) fn is_exchanged(&self) -> bool {
        self.exchange.is_some()
    }

    /// Whether the person has called with a token that was not exchanged yet.
    fn has_untried_token(&self) -> bool {
        self.exchange.as_ref().is_some_and(PersonExchange::is_untried)
    }

    /// Whether it gets a token without a user: as itself, or for a person's own.
    fn is_by_itself(&self) -> bool {
        self.exchange.is_some() || self.settings.grant == Grant::ClientCredentials
    }

    /// Returns whether a sign-in may succeed: the server's refusal, its host or the settings name a sign-in
    /// server, or the user has signed in before.
    pub async fn is_offered(&self, challenge: &str) -> bool {
        let is_known = challenge.contains("resource_metadata")
            || self.settings.client_id.is_some()
            || self.settings.issuer.is_some();
        if is_known {
            return true;
        }
        if let Some(entry) = &self.entry
            && entry.sign_in().await.is_some()
        {
            return true;
        }
        let found = manager(&self.url, &self.settings, Some(challenge));
        match tokio::time::timeout(DISCOVERY_LIMIT, found).await {
            Ok(found) => found.is_ok_and(|found| found.is_named),
            // Nothing is known.
            Err(_) => true,
        }
    }

    /// Returns the access token for a request, renewed if it is about to expire; `None` if nobody has signed
    /// in.
    pub async fn token(self: &Arc<Self>) -> Result<Option<String>, RenewError> {
        let held = {
            let mut held = self.held.lock().await;
            self.look(&mut held).await?;
            if held.is_good_in(BEFORE_END, &self.clock) {
                return Ok(held.token());
            }
            match &held.record {
                _ if self.is_by_itself() => held.token(),
                None => return Ok(None),
                Some(kept) if kept.record.token().is_none() => return Err(over()),
                Some(_) => held.token(),
            }
        };
        self.renewed(held, true).await
    }

    /// Returns a different token after the server refused the `used` one, if there is one.
    async fn another(self: &Arc<Self>, used: Option<String>) -> Result<Option<String>, RenewError> {
        let mut held = self.held.lock().await;
        self.look(&mut held).await?;
        match held.token() {
            // Another process has renewed the token, or the user has signed in again.
            Some(current) if used.as_ref() != Some(&current) => return Ok(Some(current)),
            Some(_) => drop(held),
            None => return Ok(None),
        }
        self.renewed(used, false).await
    }

    /// Renews the token if it is still the `used` one. `serves`: whether the used token is valid until its
    /// expiry. The renewal continues if the request is cancelled, because the sign-in server may no longer
    /// accept the old refresh token.
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
                Some((at, error)) if at.elapsed() < RENEW_AGAIN && !account.has_untried_token() => {
                    error.clone()
                }
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
                RenewError::Failed(_) if serves && held.is_good_in(Duration::ZERO, &account.clock) => {
                    Ok(held.token())
                }
                error => Err(error),
            }
        });
        renewing.await.unwrap_or_else(|error| Err(RenewError::Failed(error.to_string())))
    }

    /// Resolves once the user has signed in or out, or has another token to exchange. A renewal is neither.
    pub async fn changed(&self) {
        match &self.exchange {
            Some(exchange) => exchange.changed().await,
            None => self.replaced().await,
        }
    }

    /// Resolves once the user has signed in or out.
    pub(crate) async fn replaced(&self) {
        let Some(entry) = &self.entry else { return std::future::pending().await };
        let before = self.held.lock().await.record.as_ref().map(|kept| kept.record.id.clone());
        while entry.sign_in().await == before {
            entry.changed().await;
        }
    }

    /// Returns a text with tokens and secrets masked, because servers may repeat them.
    pub fn mask(&self, text: String) -> String {
        let secrets = self.secrets.lock();
        secrets.iter().fold(text, |text, secret| text.replace(secret.as_str(), "***"))
    }

    fn hide(&self, record: &SignInRecord) {
        self.hide_all(record.secrets());
    }

    fn hide_all(&self, all: Vec<String>) {
        let mut secrets = self.secrets.lock();
        for secret in all.into_iter().filter(|secret| !secret.is_empty()) {
            if !secrets.contains(&secret) {
                secrets.push_front(secret);
            }
        }
        secrets.truncate(MASKED);
    }

    /// Reads the vault if it has changed.
    async fn look(&self, held: &mut HeldSignIn) -> Result<(), VaultError> {
        let Some(entry) = &self.entry else { return Ok(()) };
        let stamp = Some(entry.stamp());
        if stamp != held.stamp {
            // The stamp is taken before the read, so that a write in between is noticed next time.
            let record = entry.read().await?;
            if held.is_unsaved && same_sign_in(record.as_ref(), held.record.as_ref()) {
                if let Some(kept) = held.record.clone() {
                    held.is_unsaved = entry.replace(kept).await.is_err();
                }
                return Ok(());
            }
            *held = HeldSignIn { record, stamp, failed: None, is_unsaved: false };
            if let Some(kept) = &held.record {
                self.hide(&kept.record);
            }
        }
        Ok(())
    }

    /// Renews the token, unless another process has just done so.
    async fn renew(&self, held: &mut HeldSignIn) -> Result<Option<String>, RenewError> {
        if self.is_by_itself() {
            // Such a token is not stored: a request yields the next one.
            let record = match &self.exchange {
                Some(exchange) => {
                    self.hide_all(exchange.secrets());
                    limited(Box::pin(exchange.token(&self.url, &self.settings))).await.map_err(|error| {
                        match error {
                            RenewError::Failed(why) => RenewError::Failed(self.mask(why)),
                            RenewError::Over(why) => RenewError::Over(self.mask(why)),
                        }
                    })?
                }
                None => limited(Box::pin(exchange(&self.url, &self.settings))).await?,
            };
            self.hide(&record);
            held.record = Some(KeptRecord { record, in_keyring: false });
            return Ok(held.token());
        }
        let Some(entry) = &self.entry else { return Ok(None) };
        // One renewal at a time on this machine: many servers accept a refresh token only once.
        let _lock = entry.lock().await?;
        let before = held.token();
        held.stamp = None;
        self.look(held).await?;
        if held.token() != before && held.is_good_in(BEFORE_END, &self.clock) {
            return Ok(held.token());
        }
        let Some(mut kept) = held.record.clone() else { return Ok(None) };
        let renewed = limited(Box::pin(renew(&self.url, &self.settings, &kept.record))).await;
        match &renewed {
            Ok(credentials) => {
                kept.record.credentials = credentials.clone();
                self.hide(&kept.record);
            }
            // Until the next sign-in, no token is sent and none is requested.
            Err(RenewError::Over(_)) => kept.record.credentials.token_response = None,
            Err(RenewError::Failed(_)) => {}
        }
        if matches!(renewed, Ok(_) | Err(RenewError::Over(_)))
            && entry.sign_in().await.as_ref() == Some(&kept.record.id)
        {
            held.record = Some(kept.clone());
            match entry.replace(kept).await {
                Ok(()) => (held.stamp, held.is_unsaved) = (Some(entry.stamp()), false),
                // The token is still valid in this process.
                Err(error) => {
                    held.is_unsaved = true;
                    tracing::error!("a renewed sign-in could not be stored: {error}");
                }
            }
        }
        renewed.map(|_| held.token())
    }
}

fn same_sign_in(one: Option<&KeptRecord>, other: Option<&KeptRecord>) -> bool {
    one.zip(other).is_some_and(|(one, other)| one.record.id == other.record.id)
}

fn over() -> RenewError {
    RenewError::Over("its sign-in has expired".into())
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

impl Signer for TokenAccount {
    fn current(self: Arc<Self>) -> BoxFuture<'static, Result<Option<String>, HttpFault>> {
        async move { Ok(self.token().await?) }.boxed()
    }

    fn replacement(
        self: Arc<Self>,
        used: Option<String>,
    ) -> BoxFuture<'static, Result<Option<String>, HttpFault>> {
        async move { Ok(self.another(used).await?) }.boxed()
    }
}

/// Discovers the sign-in server. `challenge` comes from the server's refusal.
async fn manager(url: &str, settings: &OAuth, challenge: Option<&str>) -> Result<SignInServer, AuthError> {
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
            "its sign-in server is `{found}`, not the configured `issuer`"
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
                "the sign-in server names `{}`, which is not an https address",
                clip(place, 200)
            )));
        }
    }
    let takes_documents = metadata.additional_fields.get("client_id_metadata_document_supported");
    let takes_documents = takes_documents.and_then(serde_json::Value::as_bool).unwrap_or(false);
    let issuer = metadata.issuer.clone();
    let token_endpoint = metadata.token_endpoint.clone();
    let registers = metadata.registration_endpoint.is_some();
    let is_named = resolution.source.is_discovered();
    manager.set_metadata(resolution.metadata);
    Ok(SignInServer { manager, issuer, token_endpoint, registers, takes_documents, is_named })
}

/// Returns whether codes, secrets and tokens may go to an address that the server at `url` names: over TLS,
/// or in plain text if the server itself is reached that way on the same host.
fn may_have_secrets(place: &str, url: &str) -> bool {
    let (Ok(place), Ok(url)) = (Url::parse(place), Url::parse(url)) else { return false };
    let here = |url: &Url| matches!(url.host_str(), Some("localhost" | "127.0.0.1" | "[::1]"));
    let beside = place.host_str() == url.host_str() || here(&place) && here(&url);
    place.scheme() == "https" || place.scheme() == "http" && url.scheme() == "http" && beside
}

/// Returns the server as a resource (RFC 8707): its address without parts that may be keys.
fn resource(url: &str) -> String {
    let Ok(mut url) = Url::parse(url) else { return url.into() };
    url.set_query(None);
    url.set_fragment(None);
    // Fails only for addresses without a host, which the configuration rejects.
    let _ = (url.set_username(""), url.set_password(None));
    url.into()
}

/// A discovered sign-in server.
struct SignInServer {
    manager: AuthorizationManager,
    issuer: Option<String>,
    token_endpoint: String,
    registers: bool,
    /// Whether a client id may be the address of the client's metadata document.
    takes_documents: bool,
    /// Whether the server named it; otherwise it is at the default place of 2025-03-26.
    is_named: bool,
}

async fn renew(url: &str, settings: &OAuth, record: &SignInRecord) -> Result<StoredCredentials, RenewError> {
    if !record.renews() {
        return Err(over());
    }
    let credentials = &record.credentials;
    let found = manager(url, settings, record.challenge.as_deref()).await.map_err(judged)?;
    // Tokens never go to a sign-in server other than their own (SEP-2352).
    if credentials.issuer.is_some() && credentials.issuer != found.issuer {
        return Err(match found.is_named {
            true => RenewError::Over(
                "its sign-in is no longer valid: the server now has another sign-in server".into(),
            ),
            false => RenewError::Failed("the server does not name its sign-in server at the moment".into()),
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

/// Gets a token for the gateway itself.
async fn exchange(url: &str, settings: &OAuth) -> Result<SignInRecord, RenewError> {
    let store = InMemoryCredentialStore::new();
    let config = ClientCredentialsConfig::ClientSecret {
        client_id: settings.client_id.clone().unwrap_or_default(),
        client_secret: settings.client_secret.as_ref().map(|it| it.expose().into()).unwrap_or_default(),
        scopes: settings.scopes.clone(),
        resource: Some(resource(url)),
    };
    let SignInServer { mut manager, is_named, .. } = manager(url, settings, None).await.map_err(judged)?;
    if !is_named {
        return Err(RenewError::Failed("the server does not name its sign-in server".into()));
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
        credentials.ok_or_else(|| RenewError::Failed("the sign-in server issued no token".into()))?;
    Ok(SignInRecord::of_client(url, credentials))
}

/// Distinguishes the sign-in server's refusal from a passing failure.
fn judged(error: AuthError) -> RenewError {
    let text = explain(&error);
    let refused = is_refused_for_good(&error);
    match error {
        AuthError::TokenRefreshRejected(_) | AuthError::AuthorizationRequired => over(),
        _ if refused => RenewError::Over(text),
        _ => RenewError::Failed(text),
    }
}

/// Returns the chain of causes, with a remedy if one is known.
fn explain(error: &AuthError) -> String {
    let text = clip(&printable(&chain(error)), 600);
    if is_private_address(error) {
        return format!(
            "{text}. If the server is in your own network, set `private_addresses = true` in its `oauth`"
        );
    }
    text
}

/// Returns an external text without control characters.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns an account without a network, whose token was issued just now, is valid for an hour, and
    /// cannot be renewed.
    fn signed_in(folder: &std::path::Path) -> TokenAccount {
        let vault = Vault::in_state(folder);
        let url = "https://a.example/mcp";
        let account = TokenAccount::new("docs", url, OAuth::default(), Some(&vault));
        let credentials = json!({
            "client_id": "c", "granted_scopes": [], "token_received_at": account.clock.unix_secs(),
            "token_response": { "access_token": "t0k3n", "token_type": "bearer", "expires_in": 3_600 },
        });
        let record = SignInRecord {
            id: "1".into(),
            url: url.into(),
            credentials: serde_json::from_value(credentials).expect("credentials"),
            client_secret: None,
            redirect_uri: String::new(),
            challenge: None,
        };
        let kept = KeptRecord { record, in_keyring: false };
        vault.entry("docs", url).write(&kept, Duration::ZERO).expect("stored");
        account
    }

    #[tokio::test]
    async fn a_token_is_renewed_thirty_seconds_before_its_expiry() {
        let folder = tempfile::tempdir().expect("a folder");
        let account = Arc::new(signed_in(folder.path()));
        let told = |token: Result<Option<String>, RenewError>| token.map_err(|error| error.to_string());
        assert_eq!(told(TokenAccount::token(&account).await), Ok(Some("t0k3n".into())));
        account.clock.advance(Duration::from_secs(3_600 - 35));
        assert_eq!(told(TokenAccount::token(&account).await), Ok(Some("t0k3n".into())));
        account.clock.advance(Duration::from_secs(10));
        // A token without a refresh token cannot be renewed: the attempt ends the sign-in.
        assert_eq!(told(TokenAccount::token(&account).await), Err("its sign-in has expired".into()));
    }

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
    fn a_resource_has_no_keys() {
        assert_eq!(resource("https://ann:pw@example.com/mcp?key=s3cret#x"), "https://example.com/mcp");
        assert_eq!(resource("https://example.com/mcp/"), "https://example.com/mcp/");
    }
}
