//! People, and who owns what outlives a call.

use std::{collections::BTreeSet, fmt, hash::Hash, sync::Arc};

use nonet_base::text::{hex, line};
use nonet_config::Secret;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

/// The longest name that is shown, in characters.
const MAX_NAME: usize = 80;
/// Between the profile and the person of an owner. No name of a profile has it.
const SEPARATOR: char = '/';
/// The claims that differ from token to token.
const OF_ONE_TOKEN: [&str; 8] = ["exp", "iat", "nbf", "jti", "auth_time", "at_hash", "nonce", "sid"];
/// The claims that say how to call a person, the best first (OpenID Connect Core, section 5.1).
const NAMES: [&str; 5] = ["preferred_username", "email", "upn", "name", "nickname"];

/// Somebody whom an issuer has signed in, as one token describes them. A program with a token of its own
/// counts as one.
#[derive(Clone, Serialize, Deserialize)]
pub struct Person {
    /// Their name in the store: the same for every token of the same subject at the same issuer, and for no
    /// other.
    pub key: Arc<str>,
    /// The issuer (`iss`).
    pub issuer: Arc<str>,
    /// Their id at the issuer (`sub`).
    pub subject: Arc<str>,
    /// Their name, for people. Not unique, and not checked by anybody but the issuer.
    pub name: Arc<str>,
    /// The client that the token was issued to (`client_id` or `azp`), if it says so.
    pub client: Option<Arc<str>>,
    /// What the token is good for (`scope` or `scp`).
    pub scopes: BTreeSet<String>,
    /// All claims of the token.
    pub claims: Map<String, Value>,
    /// For whom the token was issued (`aud`).
    #[serde(default)]
    pub audience: Vec<String>,
    /// When the token ends, in seconds since 1970.
    #[serde(default)]
    pub expires_at: u64,
    /// The token itself, where it is exchanged for tokens for servers. Nothing else may have it.
    #[serde(skip)]
    pub token: Option<Secret>,
}

impl Person {
    /// Reads a person from the claims of a token, which was checked. `None`: the claims name nobody.
    pub fn of(issuer: &str, claims: Map<String, Value>) -> Option<Self> {
        let text = |name: &str| claims.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
        let subject = text("sub")?;
        let name = NAMES.iter().find_map(|name| text(name)).unwrap_or(subject);
        let client = text("client_id").or_else(|| text("azp")).map(Into::into);
        let scopes = scopes(claims.get("scope")).chain(scopes(claims.get("scp"))).collect();
        Some(Self {
            key: key(issuer, subject),
            issuer: issuer.into(),
            subject: subject.into(),
            name: line(name, MAX_NAME).into(),
            client,
            scopes,
            audience: texts(claims.get("aud")),
            expires_at: claims.get("exp").and_then(seconds).unwrap_or_default(),
            token: None,
            claims,
        })
    }

    /// Whether it is about the same person as another token.
    pub fn is_same(&self, other: &Person) -> bool {
        self.key == other.key
    }

    /// Whether it describes the same person in the same way as another token, which differs only in the times,
    /// the id and the like that every token has of its own.
    pub fn says_the_same(&self, other: &Person) -> bool {
        let lasting = |person: &Person| {
            let mut claims = person.claims.clone();
            OF_ONE_TOKEN.iter().for_each(|name| drop(claims.shift_remove(*name)));
            claims
        };
        self.is_same(other)
            && self.scopes == other.scopes
            && self.client == other.client
            && lasting(self) == lasting(other)
    }
}

/// A person as logs and pages name them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PersonName {
    /// The issuer of their token.
    pub issuer: Arc<str>,
    /// Their id at the issuer.
    pub subject: Arc<str>,
    /// Their name, as the issuer says it.
    pub name: Arc<str>,
}

impl PersonName {
    /// Returns the name of a person.
    pub fn of(person: &Person) -> Self {
        Self { issuer: person.issuer.clone(), subject: person.subject.clone(), name: person.name.clone() }
    }
}

/// Shows who it is; claims may say more than a log should hold.
impl fmt::Debug for Person {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Person")
            .field("key", &self.key)
            .field("issuer", &self.issuer)
            .field("subject", &self.subject)
            .finish_non_exhaustive()
    }
}

/// Returns the name of a subject in the store.
fn key(issuer: &str, subject: &str) -> Arc<str> {
    let mut hash = Sha256::new();
    // The length keeps `a` + `bc` and `ab` + `c` apart.
    hash.update((issuer.len() as u64).to_be_bytes());
    hash.update(issuer);
    hash.update(subject);
    format!("person-{}", hex(&hash.finalize()[..16])).into()
}

/// Returns scopes in either form: words in one text (RFC 6749, section 3.3), or a list.
fn scopes(claim: Option<&Value>) -> impl Iterator<Item = String> {
    let words = texts(claim).into_iter();
    words.flat_map(|text| text.split_ascii_whitespace().map(Into::into).collect::<Vec<String>>())
}

/// Returns a claim that is a text or a list of texts.
fn texts(claim: Option<&Value>) -> Vec<String> {
    match claim {
        Some(Value::String(text)) => vec![text.clone()],
        Some(Value::Array(items)) => items.iter().filter_map(Value::as_str).map(Into::into).collect(),
        _ => Vec::new(),
    }
}

/// Reads a NumericDate (RFC 7519, section 2), whose fraction does not count.
fn seconds(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_f64().filter(|number| *number >= 0.0).map(|number| number as u64))
}

/// Who owns what outlives a call: a profile, and in it the person who signed in, if somebody did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner {
    /// As the store knows it: `PROFILE`, `PROFILE/person-…`, `/person-…`, or an empty text.
    text: Arc<str>,
}

impl Owner {
    /// Returns the owner under a profile.
    pub fn new(profile: Option<&str>, person: Option<&Person>) -> Self {
        let profile = profile.unwrap_or_default();
        match person {
            Some(person) => Self { text: format!("{profile}{SEPARATOR}{}", person.key).into() },
            None => Self { text: profile.into() },
        }
    }

    /// Returns the owner that the store knows under this name.
    pub fn of(text: &str) -> Self {
        Self { text: text.into() }
    }

    /// Returns its name in the store.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns its profile.
    pub fn profile(&self) -> Option<&str> {
        let profile = self.text.split_once(SEPARATOR).map_or(&*self.text, |(profile, _)| profile);
        Some(profile).filter(|profile| !profile.is_empty())
    }

    /// Returns the key of its person.
    pub fn person(&self) -> Option<&str> {
        self.text.split_once(SEPARATOR).map(|(_, person)| person)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn person(issuer: &str, claims: Value) -> Option<Person> {
        let Value::Object(claims) = claims else { return None };
        Person::of(issuer, claims)
    }

    #[test]
    fn claims_say_who_it_is() {
        let check = |claims: Value, name: &str, client: Option<&str>, scopes: &[&str]| {
            let found = person("https://id", claims.clone()).expect("a person");
            let known: Vec<&str> = found.scopes.iter().map(String::as_str).collect();
            assert_eq!(
                (&*found.name, found.client.as_deref(), &known[..]),
                (name, client, scopes),
                "{claims}"
            );
        };
        check(json!({ "sub": "7" }), "7", None, &[]);
        check(
            json!({ "sub": "7", "email": "a@b.c", "azp": "cli", "scope": "b a" }),
            "a@b.c",
            Some("cli"),
            &["a", "b"],
        );
        check(
            json!({ "sub": "7", "name": "Ann", "scp": ["x", "y z"], "scope": "" }),
            "Ann",
            None,
            &["x", "y", "z"],
        );
        check(
            json!({ "sub": "7", "name": "A\nB\u{1b}[31m", "client_id": "c", "azp": "d" }),
            "A\\nB\\u{1b}[31m",
            Some("c"),
            &[],
        );
        for nobody in [json!({}), json!({ "sub": "" }), json!({ "sub": 7 })] {
            assert!(person("https://id", nobody.clone()).is_none(), "{nobody}");
        }
    }

    #[test]
    fn an_issuer_and_a_subject_make_one_person() {
        let ann = person("https://id", json!({ "sub": "ann", "exp": 1 })).expect("a person");
        let later = person("https://id", json!({ "sub": "ann", "exp": 2.5, "aud": "x" })).expect("a person");
        let elsewhere = person("https://id2", json!({ "sub": "ann" })).expect("a person");
        let moved = person("https://ida", json!({ "sub": "nn" })).expect("a person");
        assert!(ann.is_same(&later) && !ann.is_same(&elsewhere) && !ann.is_same(&moved));
        assert!(ann.says_the_same(
            &person("https://id", json!({ "sub": "ann", "exp": 9, "jti": "x" })).expect("a person")
        ));
        assert!(!ann.says_the_same(&later) && !ann.says_the_same(&elsewhere));
        assert_eq!((later.expires_at, &later.audience[..]), (2, &["x".to_string()][..]));
    }

    #[test]
    fn an_owner_is_a_profile_and_a_person() {
        let ann = person("https://id", json!({ "sub": "ann" })).expect("a person");
        for (profile, person) in
            [(None, None), (Some("p"), None), (None, Some(&ann)), (Some("p"), Some(&ann))]
        {
            let owner = Owner::new(profile, person);
            assert_eq!(owner, Owner::of(owner.as_str()));
            assert_eq!((owner.profile(), owner.person()), (profile, person.map(|person| &*person.key)));
        }
    }
}
