//! A token for a server in exchange for a person's own: RFC 8693, and ID-JAG with RFC 7523 (the extension
//! "enterprise-managed authorization" of MCP).
//!
//! The person's token goes to the issuer that made it, or where the configuration says, and never to a server.

use std::sync::Arc;

use nonet_base::clock::{system_time, unix_ms};
use nonet_config::{BearerToken, OAuth, Secret, TokenExchange};
use nonet_wire::{
    issuer::{ClientSecret, FormAnswer, IssuerClient},
    web,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{RenewError, SignInRecord, judged, manager, may_have_secrets, resource};

const EXCHANGE: &str = "urn:ietf:params:oauth:grant-type:token-exchange";
const ACCESS_TOKEN: &str = "urn:ietf:params:oauth:token-type:access_token";
const ID_JAG: &str = "urn:ietf:params:oauth:token-type:id-jag";
const JWT_BEARER: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";
/// How long a token counts whose issuer does not say how long, in seconds.
const UNSAID: u64 = 300;

/// The last token with which a person called, and its issuer.
pub struct SubjectToken(watch::Sender<Option<(Secret, Arc<str>)>>);

impl Default for SubjectToken {
    fn default() -> Self {
        Self(watch::Sender::new(None))
    }
}

impl std::fmt::Debug for SubjectToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SubjectToken")
    }
}

impl SubjectToken {
    /// Notes the token of a request. Returns whether it is another one.
    pub fn set(&self, token: &Secret, issuer: &Arc<str>) -> bool {
        if self.0.borrow().as_ref().is_some_and(|(known, _)| known == token) {
            return false;
        }
        self.0.send_replace(Some((token.clone(), issuer.clone())));
        true
    }

    /// Returns a digest of the token, if there is one.
    fn digest(&self) -> Option<BearerToken> {
        self.0.borrow().as_ref().map(|(token, _)| BearerToken::new(token.expose()))
    }
}

/// How the tokens of one person at one server are made.
pub(crate) struct PersonExchange {
    settings: Arc<TokenExchange>,
    subject: Arc<SubjectToken>,
    /// The person's token that was tried last; the outer `None` before the first try.
    tried: Mutex<Option<Option<BearerToken>>>,
}

impl PersonExchange {
    pub(crate) fn new(settings: Arc<TokenExchange>, subject: Arc<SubjectToken>) -> Self {
        Self { settings, subject, tried: Mutex::default() }
    }

    /// Whether the person has called with another token since the last try.
    pub(super) fn is_untried(&self) -> bool {
        *self.tried.lock() != Some(self.subject.digest())
    }

    /// Resolves when the person has called with another token than the one that was tried.
    pub(super) async fn changed(&self) {
        let mut token = self.subject.0.subscribe();
        while !self.is_untried() {
            if token.changed().await.is_err() {
                std::future::pending().await
            }
        }
    }

    /// Returns the secrets that its requests have, which may come back in an answer.
    pub(super) fn secrets(&self) -> Vec<String> {
        let own = self.settings.client_secret.as_ref().map(|secret| secret.expose().to_owned());
        let subject = self.subject.0.borrow().as_ref().map(|(token, _)| token.expose().to_owned());
        own.into_iter().chain(subject).collect()
    }

    /// Returns a token for the server.
    pub(super) async fn token(&self, url: &str, oauth: &OAuth) -> Result<SignInRecord, RenewError> {
        *self.tried.lock() = Some(self.subject.digest());
        let subject = self.subject.0.borrow().clone();
        let (subject, issuer) = subject.ok_or_else(|| {
            RenewError::Over(
                "the token for it is exchanged for the person's own, and this call came without one: the person has to call it \
                 themselves once"
                    .into(),
            )
        })?;
        let exchanged = self.exchanged(url, oauth, &subject, &issuer).await?;
        let token = match self.settings.id_jag {
            true => for_assertion(url, oauth, &exchanged).await?,
            false => exchanged,
        };
        let seconds = token["expires_in"].as_u64().unwrap_or(UNSAID);
        let credentials = json!({
            "client_id": self.settings.client_id.as_deref().unwrap_or_default(),
            "granted_scopes": [],
            "token_received_at": unix_ms(system_time()) / 1_000,
            "token_response": {
                "access_token": token["access_token"], "token_type": "bearer", "expires_in": seconds,
            },
        });
        let credentials =
            serde_json::from_value(credentials).map_err(|_| failed("its answer has no token"))?;
        Ok(SignInRecord::of_client(url, credentials))
    }

    /// Asks the issuer (RFC 8693, section 2.1).
    async fn exchanged(
        &self,
        url: &str,
        oauth: &OAuth,
        subject: &Secret,
        issuer: &str,
    ) -> Result<Value, RenewError> {
        let settings = &self.settings;
        let named = [Some(issuer), settings.token_url.as_deref()];
        let client = IssuerClient::new(named.into_iter().flatten()).map_err(RenewError::Failed)?;
        let metadata = client.metadata(issuer, "token_endpoint").await;
        let place = match (&settings.token_url, &metadata) {
            (Some(url), _) => url.clone(),
            (None, Ok(metadata)) => metadata["token_endpoint"].as_str().unwrap_or_default().to_owned(),
            (None, Err(why)) => return Err(RenewError::Failed(why.clone())),
        };
        let scopes = settings.scopes.join(" ");
        let wanted = if settings.id_jag { ID_JAG } else { ACCESS_TOKEN };
        let resource = resource(url);
        let mut fields = vec![
            ("grant_type", EXCHANGE),
            ("subject_token", subject.expose()),
            ("subject_token_type", ACCESS_TOKEN),
            ("requested_token_type", wanted),
            ("resource", &resource),
        ];
        let own = match (&settings.audience, settings.id_jag) {
            (Some(audience), _) => Some(audience.clone()),
            (None, true) => manager(url, oauth, None).await.map_err(judged)?.issuer,
            (None, false) => None,
        };
        fields.extend(own.as_ref().map(|audience| ("audience", audience.as_str())));
        fields.extend((!scopes.is_empty()).then_some(("scope", scopes.as_str())));
        let secret = settings.client_secret.as_ref().map(|secret| secret.expose());
        let id = settings.client_id.as_deref().unwrap_or_default();
        let own = ClientSecret::of(metadata.as_ref().unwrap_or(&Value::Null), id, secret);
        let answer = client.form(&place, &fields, own).await.map_err(RenewError::Failed)?;
        let token = accepted(answer, &place)?;
        let said = token["issued_token_type"].as_str();
        if settings.id_jag && said != Some(ID_JAG) {
            return Err(failed(&format!("{} gave no ID-JAG (`issued_token_type`)", web::place(&place))));
        }
        Ok(token)
    }
}

/// Asks the server's own sign-in for a token, with the issuer's assertion (RFC 7523, section 2.1).
async fn for_assertion(url: &str, oauth: &OAuth, assertion: &Value) -> Result<Value, RenewError> {
    let found = manager(url, oauth, None).await.map_err(judged)?;
    let place = found.token_endpoint;
    if !may_have_secrets(&place, url) {
        return Err(failed(&format!("its sign-in is at {}, without TLS", web::place(&place))));
    }
    let named = oauth.private_addresses.then_some(place.as_str()).into_iter().chain([url]);
    let client = IssuerClient::new(named).map_err(RenewError::Failed)?;
    let assertion = assertion["access_token"].as_str().unwrap_or_default();
    let resource = resource(url);
    let scopes = oauth.scopes.join(" ");
    let mut fields = vec![("grant_type", JWT_BEARER), ("assertion", assertion), ("resource", &resource)];
    fields.extend((!scopes.is_empty()).then_some(("scope", scopes.as_str())));
    let own = ClientSecret {
        id: oauth.client_id.as_deref().unwrap_or_default(),
        secret: oauth.client_secret.as_ref().map(|secret| secret.expose()),
        is_in_body: false,
    };
    accepted(client.form(&place, &fields, own).await.map_err(RenewError::Failed)?, &place)
}

/// Returns the answer of a token endpoint, unless it refuses.
fn accepted(answer: FormAnswer, place: &str) -> Result<Value, RenewError> {
    let said = || format!("{} gives no token for this person: {}", web::place(place), answer.refusal());
    match answer.is_success {
        true if answer.body["access_token"].is_string() => Ok(answer.body),
        true => Err(failed(&format!("{}: its answer has no token", web::place(place)))),
        false if answer.is_final() => Err(RenewError::Over(said())),
        false => Err(RenewError::Failed(said())),
    }
}

fn failed(why: &str) -> RenewError {
    RenewError::Failed(why.into())
}
