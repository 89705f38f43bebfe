//! Asks an issuer about a token (RFC 7662).

use std::time::Duration;

use nonet_wire::{issuer::ClientSecret, web};
use serde_json::{Map, Value};
use tokio::{sync::Semaphore, time::timeout};

use crate::keys::IssuerKeys;

/// How many questions of a kind to an issuer are open at the same time, and how long others wait. Each token that
/// nobody knows costs a question.
const AT_ONCE: usize = 8;
const PATIENCE: Duration = Duration::from_secs(5);
/// The questions to one issuer.
pub(crate) struct Introspection {
    /// About tokens that nobody knows.
    unknown: Semaphore,
    /// About tokens that were good a while ago.
    known: Semaphore,
}

impl Introspection {
    pub(super) fn new() -> Self {
        Self { unknown: Semaphore::new(AT_ONCE), known: Semaphore::new(AT_ONCE) }
    }

    /// Returns what the issuer says about a token, or `None` if the token is not active. `Err`: the issuer did
    /// not say.
    pub(super) async fn ask(
        &self,
        of: &IssuerKeys,
        token: &str,
        was_good: bool,
    ) -> Result<Option<Map<String, Value>>, String> {
        let issuer = of.issuer();
        let Some(url) = &issuer.introspection else { return Ok(None) };
        let busy = || "too many questions about tokens are open".to_string();
        let turns = if was_good { &self.known } else { &self.unknown };
        let _turn = timeout(PATIENCE, turns.acquire()).await.map_err(|_| busy())?.map_err(|_| busy())?;
        let client = ClientSecret {
            id: issuer.client_id.as_deref().unwrap_or_default(),
            secret: issuer.client_secret.as_ref().map(|secret| secret.expose()),
            is_in_body: false,
        };
        let said = async {
            let fields = [("token", token), ("token_type_hint", "access_token")];
            let answer = of.client.form(url, &fields, client).await?;
            match answer.is_success {
                true => Ok(answer.body),
                false => Err(format!("{}: it answered HTTP {}", web::place(url), answer.status.as_u16())),
            }
        };
        let said = said.await.inspect_err(|why| {
            tracing::warn!(issuer = issuer.issuer, why, "an issuer does not answer about a token");
        });
        let Value::Object(claims) = said? else {
            return Err("its answer about a token is not an object".into());
        };
        if claims.get("active") != Some(&Value::Bool(true)) {
            return Ok(None);
        }
        // Some issuers call every token of theirs active.
        let is_other = ["token_type", "token_use"].iter().any(|name| {
            claims
                .get(*name)
                .and_then(Value::as_str)
                .is_some_and(|kind| kind.contains("refresh") || kind == "id")
        });
        if is_other {
            return Ok(None);
        }
        let is_from_it = claims.get("iss").is_none_or(|said| *said == *issuer.issuer);
        Ok(is_from_it.then_some(claims))
    }
}
