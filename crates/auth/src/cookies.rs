//! The cookies of a browser: its session, and the sign-ins that are under way. All are sealed, and have
//! `HttpOnly`, `Secure`, `SameSite=Lax` and the prefix `__Host-`, so that no other host can set them.

use std::{io, sync::Arc, time::Duration};

use http::{HeaderMap, HeaderValue, header};
use nonet_api::page::PageRole;
use nonet_base::clock::{system_time, unix_ms};
use nonet_wire::sealing::{SealSource, Sealer};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::{BrowserSignIn, Person, PersonName, browser::is_origin_of};

const SESSION: &str = "__Host-nonet-session";
const SIGN_IN: &str = "__Host-nonet-sign-in";
const ACCOUNT: &str = "__Host-nonet-account";
/// How long a sign-in may take.
const SIGN_IN_LASTS: Duration = Duration::from_secs(600);
/// The longest cookie that browsers keep, in bytes (RFC 6265, section 6.1).
const MAX_COOKIE: usize = 4_000;

/// A browser that has signed in.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BrowserSession {
    /// Who they are.
    pub person: PersonName,
    /// Their key.
    pub key: Arc<str>,
    /// What they may do on the page.
    pub role: Option<PageRole>,
    /// What only pages of this gateway know.
    pub csrf: String,
    /// The digest of the settings that it was made under.
    pub of: String,
    /// When it ends, in seconds since 1970.
    pub until: u64,
}

/// A sign-in under way.
#[derive(Serialize, Deserialize)]
pub enum OpenSignIn {
    /// At the issuer.
    Page {
        /// The sign-in.
        sign_in: BrowserSignIn,
        /// Where the browser goes afterwards.
        to: String,
    },
    /// At a server, with the person's own account.
    Account {
        /// The server.
        server: String,
        /// Its address.
        url: String,
        /// The key of the person.
        person: Arc<str>,
        /// The sign-in.
        pending: Value,
    },
}

/// Where a sign-in is under way. One of each kind may be.
#[derive(Clone, Copy)]
pub enum SignInKind {
    /// At the issuer.
    Page,
    /// At a server.
    Account,
}

impl SignInKind {
    fn cookie(self) -> &'static str {
        match self {
            Self::Page => SIGN_IN,
            Self::Account => ACCOUNT,
        }
    }
}

/// A text with its end, which is sealed with it.
#[derive(Serialize, Deserialize)]
struct Timed<T> {
    content: T,
    until: u64,
}

impl BrowserSession {
    /// Returns the session of somebody who has signed in.
    ///
    /// # Errors
    ///
    /// If the system has no random numbers.
    pub fn new(
        cookies: &Cookies,
        person: &Person,
        role: Option<PageRole>,
        of: String,
        lasts: Duration,
    ) -> io::Result<Self> {
        Ok(Self {
            person: PersonName::of(person),
            key: person.key.clone(),
            role,
            csrf: cookies.random()?,
            of,
            until: now() + lasts.as_secs(),
        })
    }

    /// Whether its browser made an order on a page of the gateway at this address: it has the value that only such
    /// a page knows, and the browser names no other origin.
    pub fn sent(&self, address: &str, headers: &HeaderMap, given: Option<&str>) -> bool {
        let knows = given.is_some_and(|given| Sha256::digest(given) == Sha256::digest(&self.csrf));
        let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
        knows
            && text("origin").is_none_or(|origin| is_origin_of(origin, address))
            && text("sec-fetch-site").is_none_or(|site| matches!(site, "same-origin" | "none"))
    }
}

fn now() -> u64 {
    unix_ms(system_time()) / 1_000
}

/// Reads and writes cookies.
pub struct Cookies {
    sealer: Sealer,
}

impl Cookies {
    /// Returns the cookies that are sealed with a key of this source.
    ///
    /// # Errors
    ///
    /// If there is no key.
    pub fn new(seals: &SealSource) -> io::Result<Self> {
        Ok(Self { sealer: seals.sealer("cookies of browsers")? })
    }

    /// Returns an unguessable text.
    ///
    /// # Errors
    ///
    /// If the system has no random numbers.
    pub fn random(&self) -> io::Result<String> {
        self.sealer.random()
    }

    /// Returns the session of a browser, unless it is over.
    pub fn session(&self, headers: &HeaderMap) -> Option<BrowserSession> {
        self.read::<BrowserSession>(headers, SESSION)
    }

    /// Sets the session.
    ///
    /// # Errors
    ///
    /// If it cannot be sealed, or is longer than browsers keep.
    pub fn set_session(&self, headers: &mut HeaderMap, session: &BrowserSession) -> io::Result<()> {
        self.write(headers, SESSION, session, session.until)
    }

    /// Ends the session.
    pub fn drop_session(&self, headers: &mut HeaderMap) {
        forget(headers, SESSION);
    }

    /// Returns the sign-in that is under way.
    pub fn sign_in(&self, headers: &HeaderMap, kind: SignInKind) -> Option<OpenSignIn> {
        self.read(headers, kind.cookie())
    }

    /// Notes a sign-in that begins, in place of another one of its kind.
    ///
    /// # Errors
    ///
    /// As for [`Cookies::set_session`].
    pub fn set_sign_in(&self, headers: &mut HeaderMap, open: &OpenSignIn) -> io::Result<()> {
        let kind = match open {
            OpenSignIn::Page { .. } => SignInKind::Page,
            OpenSignIn::Account { .. } => SignInKind::Account,
        };
        self.write(headers, kind.cookie(), open, now() + SIGN_IN_LASTS.as_secs())
    }

    /// Ends a sign-in.
    pub fn drop_sign_in(&self, headers: &mut HeaderMap, kind: SignInKind) {
        forget(headers, kind.cookie());
    }

    fn read<T: DeserializeOwned>(&self, headers: &HeaderMap, name: &str) -> Option<T> {
        let all = headers.get_all(header::COOKIE).iter().filter_map(|cookie| cookie.to_str().ok());
        let mut pairs = all.flat_map(|all| all.split(';')).filter_map(|pair| pair.trim().split_once('='));
        let (_, sealed) = pairs.find(|(known, _)| *known == name)?;
        let text = self.sealer.open(name, sealed)?;
        let timed: Timed<T> = serde_json::from_slice(&text).ok()?;
        (timed.until > now()).then_some(timed.content)
    }

    fn write(
        &self,
        headers: &mut HeaderMap,
        name: &str,
        content: &impl Serialize,
        until: u64,
    ) -> io::Result<()> {
        let text = serde_json::to_vec(&Timed { content, until })?;
        let sealed = self.sealer.seal(name, &text)?;
        if sealed.len() > MAX_COOKIE {
            return Err(io::Error::other("the cookie would be longer than browsers keep"));
        }
        let lasts = until.saturating_sub(now());
        put(headers, &format!("{name}={sealed}; Path=/; Max-Age={lasts}; HttpOnly; Secure; SameSite=Lax"));
        Ok(())
    }
}

fn forget(headers: &mut HeaderMap, name: &str) {
    put(headers, &format!("{name}=; Path=/; Max-Age=0; HttpOnly; Secure; SameSite=Lax"));
}

fn put(headers: &mut HeaderMap, cookie: &str) {
    if let Ok(cookie) = HeaderValue::from_str(cookie) {
        headers.append(header::SET_COOKIE, cookie);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_cookie_is_read_until_its_end_and_under_its_own_name() {
        let seals = SealSource::new(Some("a secret of at least 32 characters"), None);
        let cookies = Cookies::new(&seals).expect("a key");
        let claims = json!({ "sub": "ann", "name": "Ann" }).as_object().cloned().expect("claims");
        let ann = Person::of("https://id", claims).expect("a person");
        let session = |lasts: u64| {
            let lasts = Duration::from_secs(lasts);
            BrowserSession::new(&cookies, &ann, Some(PageRole::Look), "x".into(), lasts).expect("random")
        };
        let sent = |session: &BrowserSession| {
            let mut headers = HeaderMap::new();
            cookies.set_session(&mut headers, session).expect("sealed");
            let cookie = headers[header::SET_COOKIE].to_str().expect("text").to_owned();
            for part in ["HttpOnly", "Secure", "SameSite=Lax", "Path=/"] {
                assert!(cookie.contains(part), "{cookie}");
            }
            assert!(cookie.starts_with("__Host-") && !cookie.contains("Ann"), "{cookie}");
            cookie.split(';').next().expect("a pair").to_owned()
        };
        let read = |cookie: &str| {
            let headers =
                HeaderMap::from_iter([(header::COOKIE, HeaderValue::from_str(cookie).expect("a header"))]);
            cookies.session(&headers).map(|session| session.key.to_string())
        };
        let good = sent(&session(60));
        assert_eq!(read(&format!("a=b; {good}; c=d")).as_deref(), Some(&*ann.key));
        assert_eq!(read(&sent(&session(0))), None, "it is over");
        assert_eq!(read(&good.replace("session", "sign-in")), None, "its name is sealed with it");
        assert_eq!(read(&format!("{SESSION}=forged")), None);
    }
}
