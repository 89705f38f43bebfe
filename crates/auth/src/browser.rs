//! Sign-ins of people in a browser (OpenID Connect Core, section 3.1, with PKCE: RFC 7636).
//!
//! This room knows no cookies: it returns the address to open and what the sign-in needs when the browser
//! returns, which the caller seals into the browser.

use nonet_base::text::line;
use nonet_config::PageSettings;
use nonet_wire::{
    issuer::{ClientSecret, address_in, encoded},
    web,
};
use reqwest::Url;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    Issuers, Person,
    issuers::{KnownIssuer, TokenFault},
    jwt::UncheckedToken,
};

/// How much of an issuer's own words a fault has, in characters.
const MAX_SAID: usize = 300;

/// A sign-in whose browser is at the issuer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrowserSignIn {
    /// The value that the browser brings back.
    pub state: String,
    /// The value that the ID token has.
    pub nonce: String,
    /// The secret of PKCE.
    pub verifier: String,
    /// The issuer, which alone may answer.
    pub issuer: String,
    /// Where the browser returns to.
    pub redirect_uri: String,
}

/// The query that a browser brings back (RFC 6749, section 4.1.2, and RFC 9207).
#[derive(Clone, Debug, Default, Deserialize)]
pub struct BroughtBack {
    /// The `state` of the sign-in.
    #[serde(default)]
    pub state: String,
    /// The code for the tokens.
    pub code: Option<String>,
    /// Why there is none.
    pub error: Option<String>,
    /// The same in words.
    pub error_description: Option<String>,
    /// Who answers.
    pub iss: Option<String>,
}

/// Why a browser is not signed in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BrowserFault {
    /// The issuer refused. Holds its words.
    #[error("the issuer refused: {0}")]
    Refused(String),
    /// The answer is not to be believed. Holds what is wrong with it.
    #[error("the answer of the issuer does not hold: {0}")]
    Forged(String),
    /// The issuer could not be asked. Holds why, which is for the log.
    #[error("the issuer cannot be asked at the moment; the gateway's log says why")]
    Away(String),
    /// `blocked` names the person.
    #[error("this person may not use the gateway (`blocked` in [auth] of its servers.toml)")]
    Blocked,
}

impl BrowserSignIn {
    /// Returns the sign-in of these random values, each unguessable.
    pub fn new(page: &PageSettings, redirect_uri: String, [state, nonce, verifier]: [String; 3]) -> Self {
        Self { state, nonce, verifier, issuer: page.issuer.clone(), redirect_uri }
    }
}

impl Issuers {
    fn known(&self, issuer: &str) -> Result<&KnownIssuer, BrowserFault> {
        let known = self.all.get(issuer).map(|known| &**known);
        known.ok_or_else(|| BrowserFault::Forged("its issuer is not one of `[auth]` any more".into()))
    }

    /// Returns the address to open in the browser. `challenge` is that of the sign-in's verifier (RFC 7636,
    /// section 4.2).
    pub async fn address_for_browser(
        &self,
        page: &PageSettings,
        sign_in: &BrowserSignIn,
        challenge: &str,
    ) -> Result<String, BrowserFault> {
        let known = self.known(&sign_in.issuer)?;
        let endpoint = known.keys.client.endpoint(&sign_in.issuer, "authorization_endpoint").await;
        let endpoint = endpoint.map_err(BrowserFault::Away)?;
        let separator = if endpoint.contains('?') { '&' } else { '?' };
        let scopes = page.scopes.join(" ");
        let pairs = [
            ("response_type", "code"),
            ("client_id", &page.client_id),
            ("redirect_uri", &sign_in.redirect_uri),
            ("scope", &scopes),
            ("state", &sign_in.state),
            ("nonce", &sign_in.nonce),
            ("code_challenge", challenge),
            ("code_challenge_method", "S256"),
        ];
        let pairs = pairs.map(|(name, value)| format!("{name}={}", encoded(value)));
        Ok(format!("{endpoint}{separator}{}", pairs.join("&")))
    }

    /// Returns who has signed in, from what the browser brought back, and why claims may be missing, if the
    /// issuer's userinfo could not be read.
    pub async fn of_browser(
        &self,
        page: &PageSettings,
        sign_in: &BrowserSignIn,
        back: &BroughtBack,
    ) -> Result<(Person, Option<String>), BrowserFault> {
        let forged = |why: &str| BrowserFault::Forged(why.into());
        let mut missing = None;
        if back.state != sign_in.state {
            return Err(forged("its `state` is that of another sign-in"));
        }
        let known = self.known(&sign_in.issuer)?;
        let client = &known.keys.client;
        let metadata =
            client.metadata(&sign_in.issuer, "token_endpoint").await.map_err(BrowserFault::Away)?;
        // Before anything else of the answer counts (RFC 9207, section 2.4).
        match &back.iss {
            Some(said) if *said != sign_in.issuer => return Err(forged("another issuer answers (`iss`)")),
            None if metadata["authorization_response_iss_parameter_supported"] == true => {
                return Err(forged("it does not say who answers (`iss`)"));
            }
            _ => {}
        }
        if let Some(error) = &back.error {
            let more = back.error_description.as_ref().map(|more| format!(" ({more})"));
            return Err(BrowserFault::Refused(line(
                &format!("{error}{}", more.unwrap_or_default()),
                MAX_SAID,
            )));
        }
        let code = back.code.as_deref().ok_or_else(|| forged("it has no `code`"))?;
        let fields = [
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", &sign_in.redirect_uri),
            ("code_verifier", &sign_in.verifier),
        ];
        let secret = page.client_secret.as_ref().map(|secret| secret.expose());
        let own = ClientSecret::of(&metadata, &page.client_id, secret);
        let endpoint = metadata["token_endpoint"].as_str().unwrap_or_default();
        let answer = client.form(endpoint, &fields, own).await.map_err(BrowserFault::Away)?;
        if !answer.is_success {
            return Err(BrowserFault::Refused(answer.refusal()));
        }
        let token = answer.body["id_token"].as_str().ok_or_else(|| forged("it has no ID token"))?;
        let mut claims = self.claims_of_id_token(known, page, sign_in, token).await?;
        if let (Some(access), Ok(at)) = (
            answer.body["access_token"].as_str(),
            address_in(&metadata, &sign_in.issuer, "userinfo_endpoint"),
        ) {
            let said = client.json(at, |url| client.client().get(url).bearer_auth(access)).await;
            match said {
                // Else it may be about somebody else (OpenID Connect Core, section 5.3.2).
                Ok(Value::Object(more)) if more.get("sub") == claims.get("sub") => {
                    for (name, value) in more {
                        claims.entry(name).or_insert(value);
                    }
                }
                Ok(_) => return Err(forged("its userinfo is about somebody else")),
                Err(why) => missing = Some(why),
            }
        }
        let person =
            Person::of(&sign_in.issuer, claims).ok_or_else(|| forged("its ID token names nobody (`sub`)"))?;
        match self.settings.still_admits(&person.issuer, &person.subject) {
            true => Ok((person, missing)),
            false => Err(BrowserFault::Blocked),
        }
    }

    /// Checks an ID token (OpenID Connect Core, section 3.1.3.7).
    async fn claims_of_id_token(
        &self,
        known: &KnownIssuer,
        page: &PageSettings,
        sign_in: &BrowserSignIn,
        token: &str,
    ) -> Result<Map<String, Value>, BrowserFault> {
        let forged = |why: &str| BrowserFault::Forged(why.into());
        let unchecked = UncheckedToken::read(token).ok_or_else(|| forged("its ID token is not signed"))?;
        if unchecked.issuer != sign_in.issuer {
            return Err(forged("its ID token is from another issuer"));
        }
        let checked = self.signed_claims(&known.keys, &unchecked).await;
        let (claims, _) = checked.map_err(|fault| match fault {
            TokenFault::Away(why) => BrowserFault::Away(why),
            TokenFault::Invalid(why) => BrowserFault::Forged(format!("its ID token: {why}")),
            other => BrowserFault::Forged(other.to_string()),
        })?;
        let own = page.client_id.as_str();
        let is_for_us = match claims.get("aud") {
            Some(Value::String(audience)) => audience == own,
            // Of several, the party that it was issued to has to be named.
            Some(Value::Array(all)) if all.len() > 1 && !claims.contains_key("azp") => false,
            Some(Value::Array(all)) => all.iter().any(|audience| audience == own),
            _ => false,
        };
        if !is_for_us || claims.get("azp").is_some_and(|party| party != own) {
            return Err(forged("its ID token is for another client"));
        }
        if claims.get("nonce").and_then(Value::as_str) != Some(&sign_in.nonce) {
            return Err(forged("its ID token is that of another sign-in (`nonce`)"));
        }
        Ok(claims)
    }

    /// Returns where browsers would sign in; or why the issuer does not say it.
    pub(crate) async fn look_for_browser(&self, page: &PageSettings) -> Result<String, String> {
        let known = self.known(&page.issuer).map_err(|fault| fault.to_string())?;
        let endpoint = known.keys.client.endpoint(&page.issuer, "authorization_endpoint").await?;
        Ok(web::place(&endpoint))
    }
}

/// Returns where a browser goes after its sign-in: to the page or to an account, never elsewhere.
pub fn local_target(to: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/-_.?=&%+:".contains(c);
    let is_ours = to == "/ui" || to == "/accounts" || to.starts_with("/accounts/");
    match is_ours && to.len() <= 1_000 && to.chars().all(is_plain) && !to.contains("//") {
        true => to.into(),
        false => "/ui".into(),
    }
}

/// Whether an `Origin` is that of an address.
pub(crate) fn is_origin_of(origin: &str, address: &str) -> bool {
    match (Url::parse(origin), Url::parse(address)) {
        (Ok(origin), Ok(address)) => origin.origin() == address.origin(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_browser_returns_to_this_gateway_only() {
        let check = |to: &str, expected: &str| assert_eq!(local_target(to), expected, "{to}");
        check("/ui", "/ui");
        check("/accounts", "/accounts");
        check("/accounts/github?scope=repo%20user", "/accounts/github?scope=repo%20user");
        for elsewhere in [
            "",
            "https://evil.example",
            "//evil.example",
            "/\\evil.example",
            "/accounts//evil.example",
            "/ui/logout",
            "/accounts/a\r\nset-cookie: x=1",
            "/accountsx",
            "javascript:alert(1)",
            "/accounts/@evil",
        ] {
            check(elsewhere, "/ui");
        }
    }

    #[test]
    fn an_origin_is_compared_whole() {
        let check = |origin: &str, expected: bool| {
            assert_eq!(is_origin_of(origin, "https://nonet.example.com"), expected, "{origin}");
        };
        check("https://nonet.example.com", true);
        check("https://nonet.example.com:443", true);
        check("http://nonet.example.com", false);
        check("https://nonet.example.com.evil.example", false);
        check("null", false);
        check("", false);
    }
}
