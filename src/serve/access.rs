//! Access over HTTP by bearer tokens, and the profile of a request.
//!
//! Decides from a configuration and the headers of a request; knows nothing of MCP except the form of an error.

use axum::{body::Body, response::Response};
use http::{
    HeaderMap, HeaderValue, StatusCode,
    header::{AUTHORIZATION, CONTENT_TYPE, WWW_AUTHENTICATE},
};
use serde_json::json;

use crate::config::{BearerToken, Config, KnownToken};

/// The JSON-RPC error code of a refusal: the first in the range for servers.
const REFUSED: i32 = -32000;

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AccessDenied {
    /// The request has no bearer token, but needs one.
    NoToken,
    /// The token is not in the configuration.
    UnknownToken,
    /// The token is for another profile.
    NotWithThisToken,
    /// The profile does not exist.
    NoProfile {
        /// The requested profile.
        name: String,
        /// All profiles; absent if access needs a token.
        known: Option<Vec<String>>,
    },
}

/// Who sends a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who<'a> {
    /// Anybody: access needs no token.
    Anybody,
    /// The owner, with access to everything.
    Owner,
    /// A client limited to this profile.
    Under(&'a str),
}

/// An admitted request.
#[derive(Clone, Debug)]
pub(super) struct Access {
    /// The profile that applies to it.
    pub profile: Option<String>,
    /// Its token, if access needs one.
    pub token: Option<KnownToken>,
}

/// Admits a request to `/mcp`, or to `/mcp/NAME` if it is `named`. A request to `/mcp` without a profile's token gets the
/// profile `default`.
pub(super) fn access(
    config: &Config,
    headers: &HeaderMap,
    named: Option<&str>,
    default: Option<&str>,
) -> Result<Access, AccessDenied> {
    let (who, token) = who(config, headers)?;
    let profile = match (who, named) {
        (Who::Under(own), None) => Some(own),
        (Who::Under(own), Some(named)) if own != named => return Err(AccessDenied::NotWithThisToken),
        (_, Some(named)) => Some(named),
        (Who::Anybody | Who::Owner, None) => default,
    };
    match profile {
        Some(name) if !config.profiles.contains_key(name) => {
            let known = (!config.guarded).then(|| config.profiles.keys().cloned().collect());
            Err(AccessDenied::NoProfile { name: name.into(), known })
        }
        profile => {
            let token = token.and_then(|token| config.known_token(token));
            Ok(Access { profile: profile.map(Into::into), token })
        }
    }
}

/// Checks that a request may see everything, without the limits of a profile.
pub(super) fn to_everything(config: &Config, headers: &HeaderMap) -> Result<(), AccessDenied> {
    match who(config, headers)?.0 {
        Who::Anybody | Who::Owner => Ok(()),
        Who::Under(_) => Err(AccessDenied::NotWithThisToken),
    }
}

/// Returns who sends a request, and the token if access needs one.
fn who<'a>(config: &'a Config, headers: &HeaderMap) -> Result<(Who<'a>, Option<BearerToken>), AccessDenied> {
    if !config.guarded {
        return Ok((Who::Anybody, None));
    }
    let mut given = headers.get_all(AUTHORIZATION).iter();
    let only = given.next().filter(|_| given.next().is_none());
    let token = BearerToken::new(only.and_then(bearer).ok_or(AccessDenied::NoToken)?);
    if config.gateway.tokens.contains(&token) {
        return Ok((Who::Owner, Some(token)));
    }
    let profile = config.profiles.iter().find(|(_, profile)| profile.tokens.contains(&token));
    profile.map(|(name, _)| (Who::Under(name), Some(token))).ok_or(AccessDenied::UnknownToken)
}

fn bearer(header: &HeaderValue) -> Option<&str> {
    let (scheme, token) = header.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim()).filter(|token| !token.is_empty())
}

impl AccessDenied {
    fn status(&self) -> StatusCode {
        match self {
            Self::NoToken | Self::UnknownToken => StatusCode::UNAUTHORIZED,
            Self::NotWithThisToken => StatusCode::FORBIDDEN,
            Self::NoProfile { .. } => StatusCode::NOT_FOUND,
        }
    }

    /// Returns the value of `WWW-Authenticate` (RFC 6750).
    fn challenge(&self) -> Option<&'static str> {
        match self {
            Self::NoToken => Some("Bearer"),
            Self::UnknownToken => Some("Bearer error=\"invalid_token\""),
            Self::NotWithThisToken => Some("Bearer error=\"insufficient_scope\""),
            Self::NoProfile { .. } => None,
        }
    }

    fn message(&self) -> String {
        match self {
            Self::NoToken => {
                "this gateway requires a token: send the header `Authorization: Bearer TOKEN` with one of \
                              `tokens` in its servers.toml"
                    .into()
            }
            Self::UnknownToken => {
                "unknown bearer token: use one of the current `tokens` in the gateway's servers.toml".into()
            }
            Self::NotWithThisToken => {
                "this token is for one profile only: use the address `/mcp`, or a token of \
                                       [gateway]"
                    .into()
            }
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
        if let Some(challenge) = self.challenge() {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::{self, Sources};

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
        config::parse(text, Path::new("servers.toml"), Sources { env: &env, ..Sources::NONE })
            .expect("usable")
            .config
    }

    /// Checks the result of a request with this token to `/mcp` or `/mcp/NAME`, where `--profile plain` may be the default.
    fn check(config: &Config, token: Option<&str>, named: Option<&str>, expected: Result<Option<&str>, u16>) {
        let mut headers = HeaderMap::new();
        if let Some(token) = token {
            headers.insert(AUTHORIZATION, HeaderValue::from_str(&format!("bearer  {token}")).unwrap());
        }
        let found = access(config, &headers, named, Some("plain"));
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
    fn without_tokens_anybody_comes_in() {
        let config = config("[profiles.plain]\n[profiles.reader]\ntokens = []\n");
        check(&config, None, None, Ok(Some("plain")));
        check(&config, Some("whatever"), Some("reader"), Ok(Some("reader")));
        check(&config, None, Some("nothing"), Err(404));
        let told = access(&config, &HeaderMap::new(), Some("nothing"), None).unwrap_err();
        assert_eq!(told.message(), "there is no profile `nothing`; profiles: plain, reader");
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
            access(&config, &headers, None, None).map(|access| access.profile)
        };
        let good = format!("Bearer {READER}");
        assert_eq!(with(&[&good]), Ok(Some("reader".into())));
        for bad in
            [&[&*good, "Bearer x"][..], &[READER], &[&format!("Basic {READER}")], &["Bearer "], &["Bearer"]]
        {
            assert_eq!(with(bad), Err(AccessDenied::NoToken), "{bad:?}");
        }
    }

    #[test]
    fn only_the_owner_sees_everything() {
        let config = config(&format!("[gateway]\ntokens = ['${{OWNER}}']\n{PROFILES}"));
        let with = |token: &str| {
            let value = HeaderValue::from_str(&format!("Bearer {token}")).unwrap();
            to_everything(&config, &HeaderMap::from_iter([(AUTHORIZATION, value)]))
        };
        assert_eq!(with(OWNER), Ok(()));
        assert_eq!(with(READER), Err(AccessDenied::NotWithThisToken));
        assert_eq!(to_everything(&config, &HeaderMap::new()), Err(AccessDenied::NoToken));
    }
}
