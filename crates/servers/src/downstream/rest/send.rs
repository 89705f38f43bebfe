//! Sends requests to a REST service: with credentials only to the service's own host, through redirects, and
//! never to a private address that nobody named.

use std::{collections::BTreeMap, ops::Deref, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use nonet_base::text::clip;
use nonet_config::Secret;
use nonet_rest::RestRequest;
use nonet_wire::{
    http::{HttpFault, HttpReply, SignedClient, Signer},
    reach::{PrivateAddress, PrivateHosts},
    web,
};
use reqwest::Url;
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::super::{
    CallError, ConnectionState, Remedy,
    credentials::Credentials,
    link::{RequestError, SignInNeeded},
    refusal::Refusal,
};
use crate::oauth::header_map;

/// The most redirects that are followed.
const MOST_REDIRECTS: usize = 5;
/// How long to wait before repeating a call whose token could not be renewed.
const UNSENT: Duration = Duration::from_secs(5);
/// The members of a call's `_meta` that are sent as headers (W3C Trace Context).
const TRACE: [&str; 2] = ["traceparent", "tracestate"];

/// Sends requests to one service.
pub(super) struct Sender {
    pub reach: PrivateHosts,
    client: reqwest::Client,
    /// Sends requests with the account's tokens.
    signed: SignedClient,
    /// Sends requests without the account's tokens.
    unsigned: SignedClient,
    /// The configured headers.
    headers: HeaderMap,
    credentials: Arc<Credentials>,
    has_oauth: bool,
}

/// An answer whose body is not read yet, and its address.
pub(super) struct RestReply {
    pub url: Url,
    reply: HttpReply,
}

impl RestReply {
    /// Reads the body, at most `limit` bytes.
    pub(super) async fn body(self, limit: usize) -> Result<Bytes, HttpFault> {
        let coding = self.reply.headers().get(header::CONTENT_ENCODING);
        let coding = coding.map(|coding| String::from_utf8_lossy(coding.as_bytes()).into_owned());
        let body = self.reply.body(limit).await?;
        match coding {
            // An answer to HEAD names the coding of a body that it does not have.
            Some(coding) if !body.is_empty() && !coding.eq_ignore_ascii_case("identity") => {
                let coding = clip(&coding, 40);
                Err(HttpFault::Wrong(format!("it is compressed (`{coding}`), which was not requested")))
            }
            _ => Ok(body),
        }
    }

    pub(super) async fn refused(self) -> HttpFault {
        self.reply.refused().await
    }
}

impl Deref for RestReply {
    type Target = HttpReply;
    fn deref(&self) -> &HttpReply {
        &self.reply
    }
}

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum SendError {
    /// The service wants a sign-in, or the sign-in has expired.
    #[error("{}", .0.error)]
    SignIn(SignInNeeded),
    /// The request was not sent, because no token is available at the moment.
    #[error("{0}")]
    Unsent(String),
    /// The request was not sent, because it is forbidden or impossible.
    #[error("{0}")]
    Forbidden(String),
    /// The service, or the way to it, failed.
    #[error("{why}")]
    Failed {
        why: String,
        /// Whether the service may have received the request.
        is_sent: bool,
    },
}

impl SendError {
    /// Returns the same failure after an earlier request was redirected, which means that a request was sent.
    fn after_redirect(self, first: &Method) -> Self {
        match self {
            Self::Forbidden(why) => {
                let why = format!("the service redirects the request, but {why}");
                match first.is_safe() {
                    true => Self::Forbidden(why),
                    false => Self::Failed { why, is_sent: true },
                }
            }
            Self::Unsent(why) | Self::Failed { why, .. } if !first.is_safe() => {
                Self::Failed { why, is_sent: true }
            }
            other => other,
        }
    }

    /// Returns the same failure as the error of a call.
    pub(super) fn of_call(self, method: &Method) -> RequestError {
        RequestError::Call(match self {
            Self::SignIn(SignInNeeded { error, remedy }) => CallError::NotAllowed { error, remedy },
            Self::Unsent(error) => {
                CallError::NotReady(ConnectionState::Down { error, retry_at: Instant::now() + UNSENT })
            }
            Self::Forbidden(why) => CallError::NotSent(why),
            Self::Failed { why, is_sent } => {
                let is_open = is_sent && !method.is_idempotent();
                CallError::Upstream { error: why, wait: None, is_open, is_answer: false }
            }
        })
    }
}

impl Sender {
    /// Returns the sender. `headers` are the configured ones. Sends nothing yet.
    pub(super) fn new(
        reach: PrivateHosts,
        headers: &BTreeMap<String, Secret>,
        credentials: Arc<Credentials>,
        has_oauth: bool,
    ) -> Result<Self, reqwest::Error> {
        let client = web::builder().dns_resolver(Arc::new(reach.clone())).build()?;
        let account = credentials.account.clone().map(|account| account as Arc<dyn Signer>);
        Ok(Self {
            reach,
            signed: SignedClient::over(client.clone(), account),
            unsigned: SignedClient::over(client.clone(), None),
            client,
            headers: header_map(headers),
            credentials,
            has_oauth,
        })
    }

    /// Sends a request, with credentials if it `is_home`, and follows redirects: on the same host as HTTP
    /// specifies, to another host only as a GET or HEAD, and from there on without credentials. Returns the
    /// first answer that is not a redirect or must not be followed.
    pub(super) async fn send(
        &self,
        first: &RestRequest,
        mut is_home: bool,
        meta: &Map<String, Value>,
    ) -> Result<RestReply, SendError> {
        let mut url = Url::parse(&first.url)
            .map_err(|error| SendError::Forbidden(format!("its address is not valid ({error})")))?;
        let (mut method, mut headers) = (first.method.clone(), first.headers.clone());
        let mut body = first.body.clone();
        for redirects in 0.. {
            let failed = |unanswered: SendError| match redirects {
                0 => unanswered,
                _ => unanswered.after_redirect(&first.method),
            };
            if !matches!(url.scheme(), "http" | "https") {
                let why = format!("`{}` is not an HTTP address", url.scheme());
                return Err(failed(SendError::Forbidden(why)));
            }
            self.reach.check(&url).map_err(|private| failed(forbidden(&private)))?;
            let mut request = self.client.request(method.clone(), url.clone());
            // Without this header a service may choose any coding.
            request = request.header(header::ACCEPT_ENCODING, "identity").headers(headers.clone());
            if is_home {
                request = request.headers(trace(meta)).headers(self.headers.clone());
            }
            if let Some((kind, body)) = &body {
                request = request.header(header::CONTENT_TYPE, kind).body(body.clone());
            }
            let endpoint = if is_home { &self.signed } else { &self.unsigned };
            let reply = endpoint.send(request).await.map_err(|fault| failed(self.unanswered(fault, &url)))?;
            let Some(next) = target(&reply, &url) else { return Ok(RestReply { url, reply }) };
            let then = method_after(reply.status, &method);
            let stays = is_same_host(&url, &next);
            if !stays && !then.is_safe() || redirects == MOST_REDIRECTS {
                return Ok(RestReply { url, reply });
            }
            if then != method || !stays {
                body = None;
            }
            if !stays {
                let accepted = headers.remove(header::ACCEPT);
                headers = accepted.into_iter().map(|accepted| (header::ACCEPT, accepted)).collect();
            }
            (method, is_home, url) = (then, is_home && stays, next);
        }
        Err(SendError::Failed { why: "too many redirects".into(), is_sent: true })
    }

    /// Returns what the user has to do after a refusal for missing credentials.
    pub(super) async fn refused(&self, refusal: &Refusal) -> SignInNeeded {
        let names_sign_in = refusal.challenge.contains("resource_metadata");
        let mut needed = self.credentials.sign_in(refusal);
        if let Some(account) = &self.credentials.account
            && !self.has_oauth
            && !names_sign_in
            && !matches!(account.token().await, Ok(Some(_)))
        {
            // Most services that do not mention a sign-in want a key.
            needed.remedy = Remedy::Headers;
        }
        needed
    }

    fn unanswered(&self, fault: HttpFault, url: &Url) -> SendError {
        let mask = |text: &str| self.credentials.mask(&clip(text, 400));
        match fault {
            HttpFault::AuthRequired(challenge) => {
                SendError::SignIn(self.credentials.sign_in(&Refusal { challenge, scope: None }))
            }
            HttpFault::Unsent(why) => SendError::Unsent(mask(&why)),
            HttpFault::Broken(error) => match private(&*error) {
                Some(private) => forbidden(private),
                None => {
                    let cause = super::super::deepest(&*error);
                    let why = mask(&format!("{}: {cause}", web::place(url.as_str())));
                    SendError::Failed { why, is_sent: !error.is_connect() }
                }
            },
            fault => SendError::Failed { why: mask(&fault.to_string()), is_sent: true },
        }
    }
}

/// Returns the error of a request that was not sent because it would lead into the own network.
fn forbidden(private: &PrivateAddress) -> SendError {
    SendError::Forbidden(format!(
        "{private}; if the service is in your own network, set `private_addresses = true` for the server"
    ))
}

/// Returns the refused private address that caused an error, if one did.
fn private<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a PrivateAddress> {
    let mut at = Some(error);
    while let Some(error) = at {
        if let Some(private) = error.downcast_ref() {
            return Some(private);
        }
        at = error.source();
    }
    None
}

/// Returns the trace context of a call, as headers.
fn trace(meta: &Map<String, Value>) -> HeaderMap {
    let header = |name: &&'static str| {
        let value = HeaderValue::try_from(meta.get(*name)?.as_str()?).ok()?;
        Some((HeaderName::from_static(name), value))
    };
    TRACE.iter().filter_map(header).collect()
}

/// Returns the target of an answer, if it is a redirect.
pub(super) fn target(reply: &HttpReply, from: &Url) -> Option<Url> {
    if !matches!(reply.status.as_u16(), 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    from.join(reply.headers().get(header::LOCATION)?.to_str().ok()?).ok()
}

/// Returns the method of the request after a redirect, as browsers choose it.
fn method_after(status: StatusCode, method: &Method) -> Method {
    match status.as_u16() {
        301 | 302 if *method == Method::POST => Method::GET,
        303 if *method != Method::HEAD => Method::GET,
        _ => method.clone(),
    }
}

/// Returns whether content for one address may go to the other: the same host and port, and not from TLS to
/// plain text.
pub(super) fn is_same_host(one: &Url, other: &Url) -> bool {
    let ports = (one.port_or_known_default(), other.port_or_known_default());
    one.host_str() == other.host_str()
        && match (one.scheme(), other.scheme()) {
            ("http", "https") => ports.0 == ports.1 || ports == (Some(80), Some(443)),
            (before, after) => before == after && ports.0 == ports.1,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_stay_on_their_host() {
        let check = |one: &str, other: &str, expected: bool| {
            let url = |text: &str| Url::parse(text).expect("an address");
            assert_eq!(is_same_host(&url(one), &url(other)), expected, "{one} {other}");
        };
        check("https://a.example/v1", "https://a.example/v2?x=1", true);
        check("https://a.example/", "https://A.example:443/", true);
        check("http://a.example/", "https://a.example/", true);
        check("https://a.example/", "http://a.example/", false);
        check("https://a.example/", "https://a.example:8443/", false);
        check("https://a.example/", "https://b.example/", false);
        check("https://a.example/", "https://www.a.example/", false);
    }

    #[test]
    fn a_redirect_has_a_method() {
        let check = |status: u16, method: Method, expected: Method| {
            let status = StatusCode::from_u16(status).expect("a status");
            assert_eq!(method_after(status, &method), expected, "{status} {method}");
        };
        check(301, Method::POST, Method::GET);
        check(302, Method::POST, Method::GET);
        check(302, Method::PUT, Method::PUT);
        check(303, Method::DELETE, Method::GET);
        check(303, Method::HEAD, Method::HEAD);
        check(307, Method::POST, Method::POST);
        check(308, Method::PATCH, Method::PATCH);
    }
}
