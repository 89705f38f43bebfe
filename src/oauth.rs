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
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use oauth2::TokenResponse;
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
    schema::clip,
    web,
};

/// How long before its end a token is renewed, so that it does not end on the way.
const BEFORE_END: Duration = Duration::from_secs(30);

/// Why there is no token although there should be one. Trying again later may help.
#[derive(Debug, thiserror::Error)]
pub enum RenewError {
    /// The sign-in server did not do it.
    #[error("its sign-in could not be renewed: {0}")]
    Failed(String),
    /// What was kept cannot be read or written.
    #[error(transparent)]
    Vault(#[from] VaultError),
}

/// The tokens of one server.
pub struct Account {
    url: String,
    settings: OAuth,
    /// Where a sign-in is kept; none where nothing is kept on this machine, or nobody signs in.
    entry: Option<Entry>,
    /// Locked while a token is renewed: all requests of the server wait for one renewal.
    held: tokio::sync::Mutex<Held>,
    /// The token that was given out last, which must not be shown.
    last: Mutex<Option<String>>,
}

/// What is in memory of the sign-in.
#[derive(Default)]
struct Held {
    record: Option<Kept>,
    /// The state of the file that it was read from.
    stamp: Option<Stamp>,
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Account").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Account {
    /// The account that a server's requests are signed with.
    pub fn new(server: &str, url: &str, settings: OAuth, vault: Option<&Vault>) -> Self {
        let vault = vault.filter(|_| settings.grant == Grant::AuthorizationCode);
        Self {
            url: url.into(),
            entry: vault.map(|vault| vault.entry(server, url)),
            settings,
            held: tokio::sync::Mutex::default(),
            last: Mutex::default(),
        }
    }

    /// The access token for a request, renewed if it is about to end. None if nobody has signed in.
    pub async fn token(&self) -> Result<Option<String>, RenewError> {
        let mut held = self.held.lock().await;
        self.look(&mut held).await?;
        let now = now();
        let token = match &held.record {
            Some(kept) if kept.record.ends_after(now + BEFORE_END) => kept.record.token(),
            Some(_) => self.renew_held(&mut held, true).await?,
            None if self.settings.grant == Grant::ClientCredentials => self.exchange(&mut held).await?,
            None => None,
        };
        Ok(self.gives(token))
    }

    /// Another token after the server refused the one that was `used`; none if there is no other.
    pub async fn renewed(&self, used: Option<&str>) -> Result<Option<String>, RenewError> {
        let mut held = self.held.lock().await;
        self.look(&mut held).await?;
        let current = held.record.as_ref().and_then(|kept| kept.record.token());
        let token = match current {
            // Somebody else has renewed it, or signed in anew.
            Some(current) if used != Some(&current) => Some(current),
            Some(_) => self.renew_held(&mut held, false).await?,
            None => None,
        };
        Ok(self.gives(token))
    }

    /// Ends when somebody has signed in, or out.
    pub async fn changed(&self) {
        let Some(entry) = &self.entry else { return std::future::pending().await };
        let before = self.held.lock().await.stamp;
        while entry.stamp() == before {
            tokio::time::sleep(vault::LOOK).await;
        }
    }

    /// A text without the token, for servers that repeat it.
    pub fn mask(&self, text: String) -> String {
        match &*self.last.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(token) if !token.is_empty() => text.replace(token.as_str(), "***"),
            _ => text,
        }
    }

    fn gives(&self, token: Option<String>) -> Option<String> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&token);
        token
    }

    /// Reads what is kept, if that has changed.
    async fn look(&self, held: &mut Held) -> Result<(), VaultError> {
        let Some(entry) = &self.entry else { return Ok(()) };
        let stamp = entry.stamp();
        if stamp != held.stamp {
            // The stamp is of before the reading: what is written meanwhile is seen the next time.
            let from = entry.clone();
            *held = Held { record: entry.apart(move || from.read()).await?, stamp };
        }
        Ok(())
    }

    /// Renews the token that is held, unless another process has just done so. `serves`: whether the old one serves until
    /// its end.
    async fn renew_held(&self, held: &mut Held, serves: bool) -> Result<Option<String>, RenewError> {
        if self.settings.grant == Grant::ClientCredentials {
            return self.exchange(held).await;
        }
        let Some(entry) = &self.entry else { return Ok(None) };
        // One renewal at a time on this machine: many servers take a refresh token only once.
        let _lock = entry.lock().await?;
        let before = held.record.as_ref().and_then(|kept| kept.record.token());
        self.look(held).await?;
        let Some(kept) = &mut held.record else { return Ok(None) };
        if kept.record.token() != before && kept.record.ends_after(now() + BEFORE_END) {
            return Ok(kept.record.token());
        }
        match renew(&self.url, &self.settings, &kept.record).await {
            Ok(Some(credentials)) => {
                kept.record.credentials = credentials;
                tracing::debug!(url = %web::place(&self.url), "the sign-in was renewed");
            }
            // It is over: no token is sent any more, and none asked for, until somebody signs in.
            Ok(None) => {
                kept.record.credentials.token_response = None;
                tracing::warn!(url = %web::place(&self.url), "the sign-in is over");
            }
            Err(error) if serves && kept.record.ends_after(now()) => {
                tracing::warn!(url = %web::place(&self.url), "the sign-in could not be renewed yet: {error}");
                return Ok(kept.record.token());
            }
            Err(error) => return Err(RenewError::Failed(error)),
        }
        let token = kept.record.token();
        let (to, kept) = (entry.clone(), kept.clone());
        entry.apart(move || to.write(&kept, keyring::UNATTENDED)).await?;
        held.stamp = entry.stamp();
        Ok(token)
    }

    /// Signs in as the gateway itself. Such a token is not kept: the next one is a request away.
    async fn exchange(&self, held: &mut Held) -> Result<Option<String>, RenewError> {
        let record = exchange(&self.url, &self.settings).await.map_err(RenewError::Failed)?;
        let token = record.token();
        held.record = Some(Kept { record, in_keyring: false });
        Ok(token)
    }
}

/// One request to a server that may want a token. It is sent again, once, with a token that was renewed because of it.
pub struct Attempt<'a> {
    account: Option<&'a Account>,
    token: Option<String>,
    renewed: bool,
}

impl<'a> Attempt<'a> {
    /// The first one.
    pub async fn first(account: Option<&'a Arc<Account>>) -> Result<Self, RenewError> {
        let account = account.map(|account| &**account);
        let token = match account {
            Some(account) => account.token().await?,
            None => None,
        };
        Ok(Self { account, token, renewed: false })
    }

    /// What goes with it as a bearer token.
    pub fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// Whether to send it again after the server wanted a sign-in.
    pub async fn again(&mut self) -> Result<bool, RenewError> {
        let Some(account) = self.account.filter(|_| !std::mem::replace(&mut self.renewed, true)) else {
            return Ok(false);
        };
        match account.renewed(self.token()).await? {
            None => Ok(false),
            fresh => {
                self.token = fresh;
                Ok(true)
            }
        }
    }
}

/// A manager that knows where the sign-in server is. `challenge`: what the server said as it refused a request.
async fn manager(url: &str, settings: &OAuth, challenge: Option<&str>) -> Result<Found, AuthError> {
    web::crypto();
    let mut manager = match settings.private_addresses {
        true => AuthorizationManager::new_allowing_private_addresses(url).await?,
        false => AuthorizationManager::new(url).await?,
    };
    let resolution = manager.resolve_metadata_from_challenge(challenge).await?;
    // Codes, secrets and tokens go there.
    let (metadata, plain) = (&resolution.metadata, url.starts_with("http://"));
    let places = [
        Some(&metadata.authorization_endpoint),
        Some(&metadata.token_endpoint),
        metadata.registration_endpoint.as_ref(),
    ];
    for place in places.into_iter().flatten() {
        if !(place.starts_with("https://") || plain && place.starts_with("http://")) {
            return Err(AuthError::MetadataError(format!(
                "the sign-in server names `{}`, which is no https address",
                clip(place, 200)
            )));
        }
    }
    let takes_documents = resolution.metadata.additional_fields.get("client_id_metadata_document_supported");
    let takes_documents = takes_documents.and_then(serde_json::Value::as_bool).unwrap_or(false);
    let issuer = resolution.metadata.issuer.clone();
    let registers = resolution.metadata.registration_endpoint.is_some();
    let is_told = resolution.source.is_discovered();
    manager.set_metadata(resolution.metadata);
    Ok(Found { manager, issuer, registers, takes_documents, is_told })
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

/// Renews a token. None: the sign-in is over, and only a new one helps.
async fn renew(url: &str, settings: &OAuth, record: &Record) -> Result<Option<StoredCredentials>, String> {
    let has_refresh =
        record.credentials.token_response.as_ref().is_some_and(|token| token.refresh_token().is_some());
    if !has_refresh {
        return Ok(None);
    }
    let store = InMemoryCredentialStore::new();
    let renewed = async {
        let Found { mut manager, .. } = manager(url, settings, record.challenge.as_deref()).await?;
        store.save(record.credentials.clone()).await?;
        manager.set_credential_store(store.clone());
        // False where the server has another sign-in server than the one that gave the tokens.
        if !manager.initialize_from_store().await? {
            return Ok(None);
        }
        let mut client =
            OAuthClientConfig::new(record.credentials.client_id.clone(), record.redirect_uri.clone());
        client.client_secret.clone_from(&record.client_secret);
        manager.configure_client(client)?;
        manager.refresh_token().await?;
        store.load().await
    };
    match renewed.await {
        Ok(credentials) => Ok(credentials),
        Err(AuthError::TokenRefreshRejected(_) | AuthError::AuthorizationRequired) => Ok(None),
        Err(error) => Err(explain(&error)),
    }
}

/// Gets a token in the name of the gateway itself.
async fn exchange(url: &str, settings: &OAuth) -> Result<Record, String> {
    let store = InMemoryCredentialStore::new();
    let config = ClientCredentialsConfig::ClientSecret {
        client_id: settings.client_id.clone().unwrap_or_default(),
        client_secret: settings.client_secret.as_ref().map(|it| it.expose().into()).unwrap_or_default(),
        scopes: settings.scopes.clone(),
        resource: Some(url.into()),
    };
    let exchanged = async {
        let Found { mut manager, .. } = manager(url, settings, None).await?;
        manager.set_credential_store(store.clone());
        manager.validate_client_credentials_metadata(&config)?;
        manager.configure_client_credentials(&config)?;
        manager.exchange_client_credentials(&config).await?;
        store.load().await
    };
    let credentials = exchanged.await.map_err(|error| explain(&error))?;
    let credentials = credentials.ok_or("the sign-in server gave no token")?;
    Ok(Record {
        url: url.into(),
        credentials,
        client_secret: None,
        redirect_uri: String::new(),
        challenge: None,
    })
}

/// What went wrong, down to the cause, with what to do where that is known.
fn explain(error: &AuthError) -> String {
    let mut text = error.to_string();
    let mut at: &dyn std::error::Error = error;
    while let Some(source) = at.source() {
        let said = source.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        at = source;
    }
    let text = clip(&text, 600);
    if text.contains("address not allowed") {
        return format!(
            "{text}. If that is a server of your own network, set `private_addresses = true` in its `oauth`"
        );
    }
    text
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
