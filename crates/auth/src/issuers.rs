//! From a token to a person.

use std::{
    collections::BTreeMap,
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use dashmap::DashMap;
use nonet_base::{
    clock::{system_time, unix_ms},
    text::line,
};
use nonet_config::{AuthSettings, BearerToken, Secret};
use parking_lot::Mutex;
use serde_json::{Map, Value};

use crate::{
    introspection::Introspection,
    jwt::{JwtFault, UncheckedToken},
    keys::{IssuerKeys, KeySet},
    person::Person,
};

/// The longest token that is looked at, in bytes.
const MAX_TOKEN: usize = 16 << 10;
/// How long a checked token counts without another look at it.
const CHECKED: Duration = Duration::from_secs(300);
/// The same where its issuer was asked: a token that was revoked there works here until then.
const ASKED: Duration = Duration::from_secs(60);
/// How long an issuer's no counts.
const REFUSED: Duration = Duration::from_secs(10);
/// How many checked tokens are remembered. Beyond that, the oldest quarter is checked again.
const MAX_REMEMBERED: usize = 8_000;
/// How much of a token's audience a fault shows, in characters.
const MAX_AUDIENCE: usize = 200;

/// Why a token names nobody who may come in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenFault {
    /// It is not valid. Holds what is wrong with it, after "the access token is not valid: ".
    #[error("the access token is not valid: {0}")]
    Invalid(String),
    /// It was issued for something else. Holds for what.
    #[error(
        "the access token is for {0}, not for this gateway: sign in with the `resource` of the gateway's metadata"
    )]
    OtherAudience(String),
    /// Its issuer could not be asked. Holds why, which is not for clients.
    #[error("the issuer of the access token cannot be asked at the moment; the gateway's log says why")]
    Away(String),
    /// `blocked` names the person.
    #[error("this person may not use the gateway (`blocked` in [auth] of its servers.toml)")]
    Blocked,
}

/// The issuers of a configuration, and the tokens that were checked.
pub struct Issuers {
    pub(crate) settings: AuthSettings,
    /// By `iss`.
    pub(crate) all: BTreeMap<String, Arc<KnownIssuer>>,
    checked: Arc<DashMap<BearerToken, CheckedToken>>,
    /// Tokens that an issuer has just said not to be active, and until when that counts.
    refused: Arc<DashMap<BearerToken, Instant>>,
    /// Held while room is made.
    clearing: Mutex<()>,
}

pub(crate) struct KnownIssuer {
    pub(super) keys: Arc<IssuerKeys>,
    asking: Introspection,
}

#[derive(Clone)]
struct CheckedToken {
    person: Arc<Person>,
    until: Instant,
    issuer: Arc<IssuerKeys>,
    /// The keys that it was checked with, if it is signed.
    keys: Option<Arc<KeySet>>,
}

/// What `nonet check` says about an issuer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuerCheck {
    /// Its address.
    pub issuer: String,
    /// How many of its keys can be used, and how many cannot; or why they cannot be fetched.
    pub keys: Result<(usize, usize), String>,
    /// Where browsers sign in, if they do at this issuer; or why they cannot.
    pub browser: Option<Result<String, String>>,
}

impl fmt::Debug for Issuers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.all.keys()).finish()
    }
}

impl Issuers {
    /// Returns the issuers of `[auth]`. Those of `before` that are the same stay, with their keys and the tokens
    /// that were checked. Fails only if no HTTP client can be made.
    pub fn new(settings: &AuthSettings, before: Option<&Self>) -> Result<Self, String> {
        let all = settings.issuers.iter().map(|issuer| {
            let same = before.and_then(|before| before.all.get(&issuer.issuer));
            let known = match same.filter(|known| known.keys.issuer() == issuer) {
                Some(known) => known.clone(),
                None => {
                    let keys = Arc::new(IssuerKeys::new(issuer.clone())?);
                    Arc::new(KnownIssuer { keys, asking: Introspection::new() })
                }
            };
            Ok((issuer.issuer.clone(), known))
        });
        let all: BTreeMap<_, _> = all.collect::<Result<_, String>>()?;
        let (checked, refused) = match before {
            Some(before) => (before.checked.clone(), before.refused.clone()),
            None => Default::default(),
        };
        // What an issuer of before has signed has to be checked again.
        let stays = |checked: &CheckedToken| {
            let known = all.get(&*checked.person.issuer);
            known.is_some_and(|known| Arc::ptr_eq(&known.keys, &checked.issuer))
        };
        checked.retain(|_, checked| stays(checked));
        refused.clear();
        Ok(Self { settings: settings.clone(), all, checked, refused, clearing: Mutex::default() })
    }

    /// Whether they are those of these settings.
    pub fn are_of(&self, settings: &AuthSettings) -> bool {
        self.settings == *settings
    }

    /// Returns the person that a token names, if it is for this `resource`, the address that the client uses.
    /// `digest` is the token's own.
    pub async fn identify(
        &self,
        token: &str,
        digest: BearerToken,
        resource: &str,
    ) -> Result<Arc<Person>, TokenFault> {
        let person = match self.remembered(digest) {
            Some(person) => person,
            None => self.check(token, digest).await?,
        };
        self.admit(person, resource)
    }

    /// Returns the person of a token that was checked just now.
    fn remembered(&self, digest: BearerToken) -> Option<Arc<Person>> {
        let known = self.checked.get(&digest)?;
        let holds = known.until > Instant::now()
            && !self.is_over(&known.person)
            && known.keys.as_ref().is_none_or(|keys| known.issuer.holds(keys));
        holds.then(|| known.person.clone())
    }

    fn is_over(&self, person: &Person) -> bool {
        let ends = person.expires_at.saturating_add(self.settings.skew.as_secs());
        person.expires_at > 0 && unix_ms(system_time()) / 1_000 >= ends
    }

    /// Checks for whom a token is, and whether the person may come in.
    fn admit(&self, person: Arc<Person>, resource: &str) -> Result<Arc<Person>, TokenFault> {
        let configured = self.all.get(&*person.issuer).map(|known| &known.keys.issuer().audience);
        let is_same =
            |audience: &String, wanted: &str| audience.trim_end_matches('/') == wanted.trim_end_matches('/');
        let is_for_us = match configured {
            Some(wanted) if !wanted.is_empty() => {
                person.audience.iter().any(|audience| wanted.iter().any(|one| is_same(audience, one)))
            }
            _ => person.audience.iter().any(|audience| is_same(audience, resource)),
        };
        if !is_for_us {
            let whom = match person.audience.is_empty() {
                true => "nobody in particular".to_string(),
                false => format!("`{}`", line(&person.audience.join("`, `"), MAX_AUDIENCE)),
            };
            return Err(TokenFault::OtherAudience(whom));
        }
        match self.settings.still_admits(&person.issuer, &person.subject) {
            true => Ok(person),
            false => Err(TokenFault::Blocked),
        }
    }

    async fn check(&self, token: &str, digest: BearerToken) -> Result<Arc<Person>, TokenFault> {
        let invalid = |why: &str| TokenFault::Invalid(why.into());
        if token.len() > MAX_TOKEN {
            return Err(TokenFault::Invalid(format!("it has more than {MAX_TOKEN} bytes")));
        }
        let checked = match UncheckedToken::read(token) {
            Some(unchecked) => {
                let issuer = self.all.get(&unchecked.issuer);
                let issuer = issuer.ok_or_else(|| invalid("its issuer (`iss`) is not one of `[auth]`"))?;
                self.check_signed(issuer, &unchecked, (token, digest)).await?
            }
            None => self.check_opaque(token, digest).await?,
        };
        if self.is_over(&checked.person) {
            return Err(invalid(&JwtFault::Expired.to_string()));
        }
        let person = checked.person.clone();
        self.remember(digest, checked);
        Ok(person)
    }

    /// Returns the claims of a token that its issuer has signed, with the keys that it was checked with.
    pub(super) async fn signed_claims(
        &self,
        issuer: &Arc<IssuerKeys>,
        token: &UncheckedToken<'_>,
    ) -> Result<(Map<String, Value>, Arc<KeySet>), TokenFault> {
        let allowed = &issuer.issuer().algorithms;
        let check = |keys: &KeySet| token.check(&keys.keys, allowed, self.settings.skew.as_secs());
        let mut keys = issuer.current().await.map_err(TokenFault::Away)?;
        let mut claims = check(&keys);
        if let Err(fault) = &claims
            && token.may_be_of_new_key(fault)
        {
            match issuer.newer(&keys).await {
                Ok(Some(newer)) => {
                    keys = newer;
                    claims = check(&keys);
                }
                Ok(None) => {}
                // Perhaps the token is good, and only its key is not known yet.
                Err(why) => return Err(TokenFault::Away(why)),
            }
        }
        let claims = claims.map_err(|fault| TokenFault::Invalid(fault.to_string()))?;
        Ok((claims, keys))
    }

    async fn check_signed(
        &self,
        issuer: &Arc<KnownIssuer>,
        token: &UncheckedToken<'_>,
        (text, digest): (&str, BearerToken),
    ) -> Result<CheckedToken, TokenFault> {
        let of = issuer.keys.issuer();
        let (mut claims, keys) = self.signed_claims(&issuer.keys, token).await?;
        let mut until = Instant::now() + CHECKED;
        if of.introspection.is_some() {
            until = Instant::now() + ASKED;
            let said = self.asked(issuer, text, digest).await?;
            // The signed claims count more.
            for (name, value) in said {
                claims.entry(name).or_insert(value);
            }
        }
        let person = self.named(of.issuer.as_str(), claims, text)?;
        Ok(CheckedToken { person, until, issuer: issuer.keys.clone(), keys: Some(keys) })
    }

    /// Checks a token that only its issuer can read.
    async fn check_opaque(&self, token: &str, digest: BearerToken) -> Result<CheckedToken, TokenFault> {
        let asked = self.all.values().find(|known| known.keys.issuer().introspection.is_some());
        let Some(issuer) = asked else {
            return Err(TokenFault::Invalid(
                "it is neither a token of servers.toml nor a signed token".into(),
            ));
        };
        let said = self.asked(issuer, token, digest).await?;
        let person = self.named(&issuer.keys.issuer().issuer, said, token)?;
        let (issuer, until) = (issuer.keys.clone(), Instant::now() + ASKED);
        Ok(CheckedToken { person, until, issuer, keys: None })
    }

    /// Returns what an issuer says about a token. A token that was good before does not wait behind others.
    async fn asked(
        &self,
        issuer: &KnownIssuer,
        token: &str,
        digest: BearerToken,
    ) -> Result<Map<String, Value>, TokenFault> {
        let not_active = || TokenFault::Invalid("its issuer says that it is not active".into());
        if self.refused.get(&digest).is_some_and(|until| *until > Instant::now()) {
            return Err(not_active());
        }
        let was_good = self.checked.contains_key(&digest);
        let said = issuer.asking.ask(&issuer.keys, token, was_good).await.map_err(TokenFault::Away)?;
        if said.is_none() {
            if self.refused.len() >= MAX_REMEMBERED {
                self.refused.clear();
            }
            self.refused.insert(digest, Instant::now() + REFUSED);
        }
        said.ok_or_else(not_active)
    }

    fn remember(&self, digest: BearerToken, checked: CheckedToken) {
        if self.checked.len() >= MAX_REMEMBERED
            && let Some(_alone) = self.clearing.try_lock()
        {
            let mut ends: Vec<Instant> = self.checked.iter().map(|known| known.until).collect();
            let quarter = ends.len() / 4;
            let (_, until, _) = ends.select_nth_unstable(quarter);
            let until = (*until).max(Instant::now());
            self.checked.retain(|_, known| known.until > until);
        }
        self.checked.insert(digest, checked);
    }

    /// Fetches the keys of every issuer, for `nonet check`.
    pub async fn look(&self) -> Vec<IssuerCheck> {
        let mut all = Vec::new();
        for (issuer, known) in &self.all {
            let keys = known.keys.current().await;
            let keys = keys.map(|set| (set.keys.len(), set.unused));
            let page = self.settings.page.as_ref().filter(|page| page.issuer == *issuer);
            let browser = match page {
                Some(page) => Some(self.look_for_browser(page).await),
                None => None,
            };
            all.push(IssuerCheck { issuer: issuer.clone(), keys, browser });
        }
        all
    }

    fn named(
        &self,
        issuer: &str,
        claims: Map<String, Value>,
        token: &str,
    ) -> Result<Arc<Person>, TokenFault> {
        let person = Person::of(issuer, claims);
        let mut person = person.ok_or_else(|| TokenFault::Invalid("it names nobody (`sub`)".into()))?;
        person.token = self.settings.exchanges.then(|| Secret::new(token));
        Ok(Arc::new(person))
    }
}
