//! Access over HTTP by bearer tokens, and the profile of a request.
//!
//! Decides from a configuration, the headers of a request and what is known beside them; knows nothing of MCP
//! except the form of an error. A token is one of the configuration, or one that an issuer of `[auth]` made for
//! a person. Without either in the configuration, the token of this machine's user is the only one.

use std::sync::Arc;

use axum::{body::Body, response::Response};
use http::{
    Extensions, HeaderMap, HeaderValue, StatusCode,
    header::{AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE},
};
use nonet_auth::{
    Issuers, Person, TokenFault,
    metadata::{self, challenge},
    opening::{self, Opening},
};
use nonet_config::{AuthSettings, BearerToken, Config, KnownToken};
use nonet_core::Gateway;
use nonet_store::doors::OwnerToken;
use parking_lot::Mutex;
use serde_json::json;

use super::listen::{InboundConnection, Stranger};

/// The JSON-RPC error code of a refusal: the first in the range for servers.
const REFUSED: i32 = -32000;

/// The warning about a gateway that needs no token.
pub(crate) const WITHOUT_TOKENS: &str = "`allow_without_tokens = true` in [gateway]: over HTTP no token is needed, so whoever reaches the \
                               address can run every tool. Other users of this machine and servers in a sandbox are refused \
                               where the system can tell";

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AccessDenied {
    /// The request has no bearer token, but needs one.
    NoToken(TokenKind),
    /// The token is not in the configuration, or not the user's.
    UnknownToken(TokenKind),
    /// No token is needed, but another user of this machine or a sandboxed server is at the other end.
    NotForThem(Stranger),
    /// The token is for another profile.
    NotWithThisToken,
    /// `[auth]` refuses the request.
    NotSignedIn(Box<SignInRefusal>),
    /// The profile does not exist.
    NoProfile {
        /// The requested profile.
        name: String,
        /// All profiles; absent if access needs a token.
        known: Option<Vec<String>>,
    },
}

/// The refusal of a request whose client can sign in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SignInRefusal {
    status: StatusCode,
    /// The value of `WWW-Authenticate`, where another token would help.
    challenge: Option<String>,
    message: String,
}

/// The kind of token that a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenKind {
    /// One of the configuration's.
    OfFile,
    /// That of this machine's user.
    OfOwner,
}

/// What is known about a request besides its headers and the tokens of the configuration.
#[derive(Clone, Debug, Default)]
pub(super) struct PeerIdentity {
    /// The token of this machine's user, if the configuration has no tokens.
    owner: Option<BearerToken>,
    /// Who sends a request that needs no token.
    stranger: Option<Stranger>,
    /// Whom an issuer has signed in, or why the token is none of theirs.
    person: Option<Result<Arc<Person>, TokenFault>>,
}

/// The door's own knowledge of who may come in.
pub(super) struct Entrance {
    /// None without a state folder.
    owner: Option<OwnerToken>,
    /// The issuers of `[auth]`, and the configuration that names them.
    issuers: Mutex<Option<(Arc<Config>, Arc<Issuers>)>>,
}

impl Entrance {
    pub(super) fn new(gateway: &Gateway) -> Self {
        let owner = gateway.keeping.folder.as_deref().map(OwnerToken::of);
        Self { owner, issuers: Mutex::default() }
    }

    /// Returns the issuers of a configuration. Those of the last one stay, with what they know, unless `[auth]`
    /// has changed.
    pub(super) fn issuers(&self, config: &Arc<Config>, auth: &AuthSettings) -> Result<Arc<Issuers>, String> {
        let mut known = self.issuers.lock();
        if let Some((of, issuers)) = &*known
            && (Arc::ptr_eq(of, config) || issuers.are_of(auth))
        {
            let issuers = issuers.clone();
            *known = Some((config.clone(), issuers.clone()));
            return Ok(issuers);
        }
        let before = known.as_ref().map(|(_, issuers)| &**issuers);
        let issuers = Arc::new(Issuers::new(auth, before)?);
        *known = Some((config.clone(), issuers.clone()));
        Ok(issuers)
    }

    /// Returns whom a token names that is not the configuration's, if there are issuers.
    async fn person(
        &self,
        config: &Arc<Config>,
        headers: &HeaderMap,
        named: Option<&str>,
    ) -> Option<Result<Arc<Person>, TokenFault>> {
        let auth = config.auth.as_ref()?;
        let text = only_bearer(headers)?;
        let digest = BearerToken::new(text);
        if config.has_token(digest) {
            return None;
        }
        let issuers = match self.issuers(config, auth) {
            Ok(issuers) => issuers,
            Err(why) => return Some(Err(TokenFault::Away(why))),
        };
        Some(Box::pin(issuers.identify(text, digest, &metadata::resource(auth, named))).await)
    }

    /// Returns the token of this machine's user.
    pub(super) fn owner(&self) -> Option<&OwnerToken> {
        self.owner.as_ref()
    }

    /// Returns what is known about a request besides its headers.
    pub(super) async fn beside(
        &self,
        config: &Arc<Config>,
        (headers, extensions): (&HeaderMap, &Extensions),
        named: Option<&str>,
    ) -> PeerIdentity {
        if config.guarded {
            let person = self.person(config, headers, named).await;
            return PeerIdentity { person, ..PeerIdentity::default() };
        }
        if config.gateway.allow_without_tokens {
            let stranger = match InboundConnection::of(extensions) {
                Some(connection) => connection.stranger().await,
                None => Stranger::Admitted,
            };
            return PeerIdentity { stranger: Some(stranger), ..PeerIdentity::default() };
        }
        let token = self.owner.as_ref().map(OwnerToken::current);
        if let Some(Err(error)) = &token {
            tracing::warn!(%error, "the token for HTTP cannot be read, so every request is refused");
        }
        let owner = token.and_then(Result::ok).map(|token| BearerToken::new(&token));
        PeerIdentity { owner, ..PeerIdentity::default() }
    }
}

/// Who sends a request.
#[derive(Clone, Copy, Debug)]
enum Requester<'a> {
    /// Anybody: access needs no token.
    Anybody,
    /// The owner, with access to everything. This machine's user is one.
    Owner,
    /// A client limited to this profile.
    Under(&'a str),
    /// Somebody who has signed in.
    Person(&'a Arc<Person>),
}

/// An admitted request.
#[derive(Clone, Debug)]
pub(super) struct Access {
    /// The profile that applies to it.
    pub profile: Option<String>,
    /// Its token, if that is one of the configuration.
    pub token: Option<KnownToken>,
    /// Who has signed in, if somebody has.
    pub person: Option<Arc<Person>>,
}

/// Admits a request to `/mcp`, or to `/mcp/NAME` if it is `named`. A request to `/mcp` without a profile's
/// token gets the profile `default`.
pub(super) fn access(
    config: &Config,
    headers: &HeaderMap,
    beside: &PeerIdentity,
    named: Option<&str>,
    default: Option<&str>,
) -> Result<Access, AccessDenied> {
    let (who, token) = who(config, headers, beside, named)?;
    let profile = match (who, named) {
        (Requester::Person(person), _) => opened(config, person, named, default)?,
        (Requester::Under(own), None) => Some(own),
        (Requester::Under(own), Some(named)) if own != named => return Err(AccessDenied::NotWithThisToken),
        (_, Some(named)) => Some(named),
        (Requester::Anybody | Requester::Owner, None) => default,
    };
    match profile {
        Some(name) if !config.profiles.contains_key(name) => {
            let known = (!config.guarded).then(|| config.profiles.keys().cloned().collect());
            Err(AccessDenied::NoProfile { name: name.into(), known })
        }
        profile => {
            let token = token.and_then(|token| config.known_token(token));
            let person = match who {
                Requester::Person(person) => Some(person.clone()),
                _ => None,
            };
            Ok(Access { profile: profile.map(Into::into), token, person })
        }
    }
}

/// Checks that a request may see everything, without the limits of a profile.
pub(super) fn to_everything(
    config: &Config,
    headers: &HeaderMap,
    beside: &PeerIdentity,
) -> Result<(), AccessDenied> {
    match who(config, headers, beside, None)?.0 {
        Requester::Anybody | Requester::Owner => Ok(()),
        Requester::Person(person) if opened(config, person, None, None)?.is_none() => Ok(()),
        Requester::Under(_) | Requester::Person(_) => Err(AccessDenied::NotWithThisToken),
    }
}

/// Returns the profile that a person gets at `/mcp`, or at `/mcp/NAME` if it is `named`.
fn opened<'a>(
    config: &'a Config,
    person: &Person,
    named: Option<&'a str>,
    default: Option<&'a str>,
) -> Result<Option<&'a str>, AccessDenied> {
    let auth = config.auth.as_ref().ok_or(AccessDenied::UnknownToken(TokenKind::OfFile))?;
    let closed = |message: String| {
        let refusal = SignInRefusal { status: StatusCode::FORBIDDEN, challenge: None, message };
        Err(AccessDenied::NotSignedIn(Box::new(refusal)))
    };
    match opening::of(config, auth, person, named, default) {
        Opening::Profile(profile) => Ok(profile),
        Opening::NeedsScopes(scopes) => {
            let message = format!("the access token needs the scopes `{}`: sign in for these", scopes.join(" "));
            let error = Some(("insufficient_scope", message.as_str()));
            let challenge = Some(challenge(auth, named, error, &scopes));
            let refusal = SignInRefusal { status: StatusCode::FORBIDDEN, challenge, message };
            Err(AccessDenied::NotSignedIn(Box::new(refusal)))
        }
        Opening::Several(profiles) => {
            let all: Vec<String> = profiles.iter().map(|name| format!("/mcp/{name}")).collect();
            closed(format!("several profiles are yours: choose one of the addresses {}", all.join(", ")))
        }
        Opening::Closed => closed(
            "you have signed in, but no profile at this address is for you: ask whoever runs this gateway for access"
                .into(),
        ),
    }
}

/// Returns who sends a request, and the token if it is the configuration's.
fn who<'a>(
    config: &'a Config,
    headers: &HeaderMap,
    beside: &'a PeerIdentity,
    named: Option<&str>,
) -> Result<(Requester<'a>, Option<BearerToken>), AccessDenied> {
    let needed = if config.guarded { TokenKind::OfFile } else { TokenKind::OfOwner };
    if needed == TokenKind::OfOwner && config.gateway.allow_without_tokens {
        return match beside.stranger {
            Some(Stranger::Admitted) => Ok((Requester::Anybody, None)),
            Some(stranger) => Err(AccessDenied::NotForThem(stranger)),
            // The configuration has just changed.
            None => Err(AccessDenied::NoToken(needed)),
        };
    }
    let text = only_bearer(headers).ok_or_else(|| match &config.auth {
        Some(auth) => unknown(config, auth, named, None),
        None => AccessDenied::NoToken(needed),
    })?;
    match (&config.auth, &beside.person) {
        (Some(_), Some(Ok(person))) => return Ok((Requester::Person(person), None)),
        (Some(auth), Some(Err(fault))) => return Err(unknown(config, auth, named, Some(fault))),
        _ => {}
    }
    let token = BearerToken::new(text);
    if needed == TokenKind::OfOwner {
        // It opens the door and changes nothing else: each session has its own quotas.
        return match beside.owner == Some(token) {
            true => Ok((Requester::Owner, None)),
            false => Err(AccessDenied::UnknownToken(needed)),
        };
    }
    if config.gateway.tokens.contains(&token) {
        return Ok((Requester::Owner, Some(token)));
    }
    let profile = config.profiles.iter().find(|(_, profile)| profile.tokens.contains(&token));
    profile.map(|(name, _)| (Requester::Under(name), Some(token))).ok_or(AccessDenied::UnknownToken(needed))
}

/// Returns the refusal of a request without a token, or with one that names nobody who may come in.
fn unknown(
    config: &Config,
    auth: &AuthSettings,
    named: Option<&str>,
    fault: Option<&TokenFault>,
) -> AccessDenied {
    let scopes = metadata::needed_scopes(config, auth, named);
    let message = match fault {
        Some(fault) => fault.to_string(),
        None => "this gateway requires a sign-in: a client that can sign in finds out where by the header \
                 `WWW-Authenticate`; others send `Authorization: Bearer TOKEN`"
            .into(),
    };
    let (status, challenge) = match fault {
        None => (StatusCode::UNAUTHORIZED, Some(challenge(auth, named, None, &scopes))),
        Some(TokenFault::Invalid(_) | TokenFault::OtherAudience(_)) => {
            let error = Some(("invalid_token", message.as_str()));
            (StatusCode::UNAUTHORIZED, Some(challenge(auth, named, error, &scopes)))
        }
        Some(TokenFault::Away(_)) => (StatusCode::SERVICE_UNAVAILABLE, None),
        Some(TokenFault::Blocked) => (StatusCode::FORBIDDEN, None),
    };
    AccessDenied::NotSignedIn(Box::new(SignInRefusal { status, challenge, message }))
}

/// Returns the bearer token of a request that has exactly one.
pub(super) fn only_bearer(headers: &HeaderMap) -> Option<&str> {
    let mut given = headers.get_all(AUTHORIZATION).iter();
    given.next().filter(|_| given.next().is_none()).and_then(bearer)
}

fn bearer(header: &HeaderValue) -> Option<&str> {
    let (scheme, token) = header.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim()).filter(|token| !token.is_empty())
}

impl AccessDenied {
    fn status(&self) -> StatusCode {
        match self {
            Self::NoToken(_) | Self::UnknownToken(_) => StatusCode::UNAUTHORIZED,
            Self::NotWithThisToken | Self::NotForThem(_) => StatusCode::FORBIDDEN,
            Self::NotSignedIn(refusal) => refusal.status,
            Self::NoProfile { .. } => StatusCode::NOT_FOUND,
        }
    }

    /// Returns the value of `WWW-Authenticate` (RFC 6750).
    fn challenge(&self) -> Option<&str> {
        match self {
            Self::NoToken(_) => Some("Bearer"),
            Self::UnknownToken(_) => Some("Bearer error=\"invalid_token\""),
            Self::NotWithThisToken => Some("Bearer error=\"insufficient_scope\""),
            Self::NotSignedIn(refusal) => refusal.challenge.as_deref(),
            Self::NotForThem(_) | Self::NoProfile { .. } => None,
        }
    }

    fn message(&self) -> String {
        match self {
            Self::NoToken(TokenKind::OfFile) => {
                "this gateway requires a token: send the header `Authorization: Bearer TOKEN` with one of \
                              `tokens` in its servers.toml"
                    .into()
            }
            Self::NoToken(TokenKind::OfOwner) => {
                "this gateway requires the token of this machine's user: start `nonet connect URL` in the client, which sends \
                 it, or send the header `Authorization: Bearer TOKEN` with the token in `http.token` of Nonet's state folder \
                 (~/.local/state/nonet), or list `tokens` in [gateway] of servers.toml"
                    .into()
            }
            Self::UnknownToken(TokenKind::OfFile) => {
                "unknown bearer token: use one of the current `tokens` in the gateway's servers.toml".into()
            }
            Self::UnknownToken(TokenKind::OfOwner) => {
                "unknown bearer token: use the one in `http.token` of Nonet's state folder (~/.local/state/nonet), or list \
                 `tokens` in [gateway] of servers.toml"
                    .into()
            }
            Self::NotForThem(Stranger::Sandboxed) => {
                "servers in a sandbox have no access to the gateway's own address".into()
            }
            Self::NotForThem(_) => {
                "without tokens only programs of the gateway's own user have access on this machine: list `tokens` in \
                 [gateway] of servers.toml, and send one"
                    .into()
            }
            Self::NotWithThisToken => {
                "this token is for one profile only: use the address `/mcp`, or a token of \
                                       [gateway]"
                    .into()
            }
            Self::NotSignedIn(refusal) => refusal.message.clone(),
            Self::NoProfile { name, known: Some(known) } if known.is_empty() => {
                format!("there is no profile `{name}`, nor any other: use the address `/mcp`")
            }
            Self::NoProfile { name, known: Some(known) } => {
                format!("there is no profile `{name}`; profiles: {}", known.join(", "))
            }
            Self::NoProfile { name, known: None } => format!("there is no profile `{name}`"),
        }
    }

    /// Returns the answer: a JSON-RPC error with a remedy.
    pub(super) fn response(&self) -> Response {
        let error = json!({ "code": REFUSED, "message": self.message() });
        let body = json!({ "jsonrpc": "2.0", "id": null, "error": error });
        let mut response = Response::new(Body::from(body.to_string()));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(challenge) = self.challenge().and_then(|text| HeaderValue::from_str(text).ok()) {
            headers.insert(WWW_AUTHENTICATE, challenge);
        }
        if self.status() == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("5"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use nonet_config::{self as config, ValueSources};

    const OWNER: &str = "owner-0123456789";
    const READER: &str = "reader-0123456789";
    const WRITER: &str = "writer-0123456789";

    fn config(text: &str) -> Config {
        let env = |name: &str| match name {
            "OWNER" => Some(OWNER.to_string()),
            "READER" => Some(READER.to_string()),
            "WRITER" => Some(WRITER.to_string()),
            _ => None,
        };
        config::parse(text, Path::new("servers.toml"), ValueSources { env: &env, ..ValueSources::NONE })
            .expect("usable")
            .config
    }

    /// Checks the result of a request with this token to `/mcp` or `/mcp/NAME`, where `--profile plain` may
    /// be the default.
    fn check(config: &Config, token: Option<&str>, named: Option<&str>, expected: Result<Option<&str>, u16>) {
        let mut headers = HeaderMap::new();
        if let Some(token) = token {
            headers.insert(AUTHORIZATION, HeaderValue::from_str(&format!("bearer  {token}")).unwrap());
        }
        let found = access(config, &headers, &PeerIdentity::default(), named, Some("plain"));
        let found = found.as_ref().map(|access| access.profile.as_deref());
        let found = found.map_err(|refusal| refusal.status().as_u16());
        assert_eq!(found, expected, "{token:?} at {named:?}");
    }

    const PROFILES: &str = "[profiles.plain]\n[profiles.reader]\ntokens = ['${READER}']\n\
                            [profiles.writer]\ntokens = ['${WRITER}']\n";

    #[test]
    fn a_token_says_who_comes_in_and_where() {
        let config = config(&format!("[gateway]\ntokens = ['${{OWNER}}']\n{PROFILES}"));
        for named in [None, Some("reader"), Some("nothing")] {
            check(&config, None, named, Err(401));
            check(&config, Some("reader"), named, Err(401));
            check(&config, Some("reader-012345678"), named, Err(401));
        }
        check(&config, Some(OWNER), None, Ok(Some("plain")));
        check(&config, Some(OWNER), Some("reader"), Ok(Some("reader")));
        check(&config, Some(OWNER), Some("nothing"), Err(404));
        check(&config, Some(READER), None, Ok(Some("reader")));
        check(&config, Some(READER), Some("reader"), Ok(Some("reader")));
        check(&config, Some(READER), Some("writer"), Err(403));
        check(&config, Some(READER), Some("nothing"), Err(403));
        check(&config, Some(WRITER), None, Ok(Some("writer")));
    }

    #[test]
    fn without_tokens_in_the_file_the_owners_token_opens_every_profile() {
        let config = config("[profiles.plain]\n[profiles.reader]\ntokens = []\n");
        let beside = PeerIdentity { owner: Some(BearerToken::new(OWNER)), ..PeerIdentity::default() };
        let with = |token: Option<&str>, beside: &PeerIdentity, named| {
            let value = |token| HeaderValue::from_str(&format!("Bearer {token}")).unwrap();
            let headers = token.map(|token| (AUTHORIZATION, value(token)));
            let found = access(&config, &HeaderMap::from_iter(headers), beside, named, Some("plain"));
            found.map(|access| (access.profile, access.token.is_some()))
        };
        let open = |profile: &str| Ok((Some(profile.to_string()), false));
        assert_eq!(with(Some(OWNER), &beside, None), open("plain"));
        assert_eq!(with(Some(OWNER), &beside, Some("reader")), open("reader"));
        for named in [None, Some("reader"), Some("nothing")] {
            assert_eq!(with(None, &beside, named), Err(AccessDenied::NoToken(TokenKind::OfOwner)));
            assert_eq!(
                with(Some(READER), &beside, named),
                Err(AccessDenied::UnknownToken(TokenKind::OfOwner))
            );
            let unread = with(Some(OWNER), &PeerIdentity::default(), named);
            assert_eq!(unread, Err(AccessDenied::UnknownToken(TokenKind::OfOwner)));
        }
        let told = with(Some(OWNER), &beside, Some("nothing")).unwrap_err();
        assert_eq!(told.message(), "there is no profile `nothing`; profiles: plain, reader");
    }

    #[test]
    fn without_any_token_whoever_is_known_as_another_stays_out() {
        let config = config("[gateway]\nallow_without_tokens = true\n");
        let with = |stranger| {
            let beside = PeerIdentity { stranger, ..PeerIdentity::default() };
            access(&config, &HeaderMap::new(), &beside, None, None).map(|access| access.profile)
        };
        assert_eq!(with(Some(Stranger::Admitted)), Ok(None));
        for other in [Stranger::OfUser(7), Stranger::Sandboxed, Stranger::Gone] {
            assert_eq!(with(Some(other)), Err(AccessDenied::NotForThem(other)));
        }
        assert_eq!(with(None), Err(AccessDenied::NoToken(TokenKind::OfOwner)));
    }

    #[test]
    fn a_fault_in_a_profile_opens_nothing() {
        for fault in [
            "tokens = ['${UNSET}']",
            "tokens = ['short']",
            "tokens = 5",
            "token = ['x']",
            "tokens = ['${READER}', '${READER}']",
        ] {
            let config = config(&format!("[profiles.plain]\n[profiles.reader]\n{fault}\n"));
            check(&config, None, None, Err(401));
            check(&config, None, Some("reader"), Err(401));
            check(&config, None, Some("plain"), Err(401));
            check(&config, Some(READER), None, Err(401));
            check(&config, Some("${UNSET}"), None, Err(401));
        }
    }

    #[test]
    fn two_headers_and_other_schemes_are_no_token() {
        let config = config(PROFILES);
        let with = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            values.iter().for_each(|value| {
                headers.append(AUTHORIZATION, HeaderValue::from_str(value).unwrap());
            });
            access(&config, &headers, &PeerIdentity::default(), None, None).map(|access| access.profile)
        };
        let good = format!("Bearer {READER}");
        assert_eq!(with(&[&good]), Ok(Some("reader".into())));
        for bad in
            [&[&*good, "Bearer x"][..], &[READER], &[&format!("Basic {READER}")], &["Bearer "], &["Bearer"]]
        {
            assert_eq!(with(bad), Err(AccessDenied::NoToken(TokenKind::OfFile)), "{bad:?}");
        }
    }

    #[test]
    fn only_the_owner_sees_everything() {
        let config = config(&format!("[gateway]\ntokens = ['${{OWNER}}']\n{PROFILES}"));
        let with = |token: &str| {
            let value = HeaderValue::from_str(&format!("Bearer {token}")).unwrap();
            to_everything(&config, &HeaderMap::from_iter([(AUTHORIZATION, value)]), &PeerIdentity::default())
        };
        assert_eq!(with(OWNER), Ok(()));
        assert_eq!(with(READER), Err(AccessDenied::NotWithThisToken));
        let nothing = to_everything(&config, &HeaderMap::new(), &PeerIdentity::default());
        assert_eq!(nothing, Err(AccessDenied::NoToken(TokenKind::OfFile)));
    }
}
