//! Streamable HTTP as a client: one message per POST, answers as JSON or as events, and a stream by GET. Used
//! for servers, and for the gateways that a bridge connects to.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy;
use nonet_base::text::clip;
use reqwest::{Body, Client, RequestBuilder, Url};
use tokio::time::timeout;

use super::{
    direct::{self, DirectClient},
    message::Message,
    rmcp::scope_of,
    sse::{BodyStream, EventReader},
    web,
};

const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");
const LAST_EVENT: HeaderName = HeaderName::from_static("last-event-id");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const BOTH: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");
/// How long to wait for the text of a refusal.
const REFUSAL_LIMIT: Duration = Duration::from_secs(1);
/// How many characters of a refusal's text are shown.
const SHOWN: usize = 300;

/// Why a request over HTTP has no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum HttpFault {
    /// The server wants a sign-in: its challenge, or else why there is no longer a token.
    #[error("it requires sign-in: {0}")]
    AuthRequired(String),
    /// The server wants a sign-in with a wider scope.
    #[error("it requires sign-in with more scopes: {challenge}")]
    Narrow {
        /// The server's challenge.
        challenge: String,
        /// The required scopes, separated by spaces.
        scope: Option<String>,
    },
    /// The request was not sent: no token is available at the moment, although somebody has signed in.
    #[error("{0}")]
    Unsent(String),
    /// The server no longer knows the session.
    #[error("the session has expired (HTTP 404)")]
    SessionExpired,
    /// The server answered with a status that is not a success.
    #[error("{text}")]
    Status {
        /// The status.
        status: StatusCode,
        /// The status with the server's text.
        text: String,
    },
    /// The request or its answer was interrupted.
    #[error(transparent)]
    Broken(Arc<BrokenExchange>),
    /// The answer is longer than this number of bytes.
    #[error("the answer is longer than the limit of {0} bytes; it was dropped")]
    TooLong(usize),
    /// The answer violates the transport's rules.
    #[error("{0}")]
    Wrong(String),
}

impl<E: Into<BrokenExchange>> From<E> for HttpFault {
    fn from(error: E) -> Self {
        Self::Broken(Arc::new(error.into()))
    }
}

/// Why a request or its answer was interrupted, without the address, which may contain keys.
#[derive(Debug, thiserror::Error)]
pub enum BrokenExchange {
    /// The request went through `reqwest`.
    #[error(transparent)]
    Web(reqwest::Error),
    /// The request went directly to its server.
    #[error(transparent)]
    Direct(#[from] legacy::Error),
}

impl From<reqwest::Error> for BrokenExchange {
    fn from(error: reqwest::Error) -> Self {
        Self::Web(error.without_url())
    }
}

impl BrokenExchange {
    /// Returns whether the request was not sent, because there was no connection.
    pub fn is_connect(&self) -> bool {
        match self {
            Self::Web(error) => error.is_connect(),
            Self::Direct(error) => error.is_connect(),
        }
    }
}

/// Supplies the bearer tokens of requests.
pub trait Signer: Send + Sync {
    /// Returns the token for a request; `None` if nobody has signed in.
    fn current(self: Arc<Self>) -> BoxFuture<'static, Result<Option<String>, HttpFault>>;
    /// Returns a different token after the server refused the `used` one; `None` if there is no other.
    fn replacement(
        self: Arc<Self>,
        used: Option<String>,
    ) -> BoxFuture<'static, Result<Option<String>, HttpFault>>;
}

/// The session of a connection, for its headers.
#[derive(Clone, Debug, Default)]
pub struct SessionHeaders {
    /// The server's id for the session.
    pub id: Option<String>,
    /// The negotiated protocol version.
    pub version: Option<String>,
}

impl SessionHeaders {
    /// Returns these headers added to others.
    pub fn beside(&self, headers: &HeaderMap) -> HeaderMap {
        let mut headers = headers.clone();
        put(&mut headers, SESSION, self.id.as_deref());
        put(&mut headers, VERSION, self.version.as_deref());
        headers
    }
}

/// Returns a stateless request's headers added to others: they repeat parts of the message (SEP-2243).
pub fn stateless_headers(message: &Message, version: &str, headers: &HeaderMap) -> HeaderMap {
    let mut headers = headers.clone();
    put(&mut headers, VERSION, Some(version));
    put(&mut headers, METHOD, message.method().as_deref());
    put(&mut headers, NAME, message.about().as_deref().map(header_value).as_deref());
    headers
}

/// Returns the headers of a request of the stateless era added to others, which already have the version.
/// `about` is its tool, prompt, resource or task.
pub fn request_headers(method: &'static str, about: Option<&str>, headers: &HeaderMap) -> HeaderMap {
    let mut headers = headers.clone();
    headers.insert(METHOD, HeaderValue::from_static(method));
    if let Some(about) = about {
        put_text(&mut headers, NAME, about);
    }
    headers
}

/// Adds a header with any text.
pub(crate) fn put_text(headers: &mut HeaderMap, name: HeaderName, text: &str) {
    put(headers, name, Some(&header_value(text)));
}

fn put(headers: &mut HeaderMap, name: HeaderName, value: Option<&str>) {
    if let Some(value) = value.and_then(|value| HeaderValue::try_from(value).ok()) {
        headers.insert(name, value);
    }
}

/// Returns a text if a header may contain it; else in base64 between markers (SEP-2243).
fn header_value(text: &str) -> String {
    use base64::prelude::{BASE64_STANDARD, Engine};
    let plain = text.bytes().all(|byte| (0x20..=0x7e).contains(&byte)) && text.trim() == text;
    match plain && !text.starts_with("=?base64?") {
        true => text.into(),
        false => format!("=?base64?{}?=", BASE64_STANDARD.encode(text)),
    }
}

/// An address for requests, and how it is reached.
#[derive(Clone, Debug)]
pub struct Address {
    url: Url,
    /// `None` if it needs TLS, a proxy or a user name.
    direct: Option<Uri>,
}

impl From<Url> for Address {
    fn from(url: Url) -> Self {
        Self { direct: direct::direct(&url), url }
    }
}

impl Address {
    /// Parses an address.
    pub fn parse(url: &str) -> Result<Self, HttpFault> {
        let url = Url::parse(url);
        url.map(Self::from).map_err(|error| HttpFault::Wrong(format!("the url is not an address: {error}")))
    }

    /// Returns the address.
    pub fn url(&self) -> &Url {
        &self.url
    }
}

/// Sends requests, each with the token of an account, if there is one.
#[derive(Clone)]
pub struct SignedClient {
    direct: Arc<DirectClient>,
    /// For what is not reached directly; made with the first request.
    client: Arc<OnceLock<Client>>,
    signer: Option<Arc<dyn Signer>>,
}

/// A request that can be sent twice.
enum Unsent<'a> {
    Direct(&'a DirectClient, Request<Full<Bytes>>),
    Web(RequestBuilder),
}

impl Unsent<'_> {
    fn copy(&self) -> Option<Self> {
        Some(match self {
            Self::Direct(client, request) => Self::Direct(client, request.clone()),
            Self::Web(request) => Self::Web(request.try_clone()?),
        })
    }

    fn with_token(self, token: Option<&str>) -> Result<Self, HttpFault> {
        Ok(match (self, token) {
            (Self::Web(request), Some(token)) => Self::Web(request.bearer_auth(token)),
            (Self::Direct(client, mut request), Some(token)) => {
                let mut value = HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| {
                    HttpFault::Wrong("its token cannot be sent in a header; sign in again".into())
                })?;
                value.set_sensitive(true);
                request.headers_mut().insert(header::AUTHORIZATION, value);
                Self::Direct(client, request)
            }
            (request, None) => request,
        })
    }

    async fn send(self) -> Result<HttpReply, HttpFault> {
        let response = match self {
            Self::Direct(client, request) => client.request(request).await?.map(Body::wrap),
            Self::Web(request) => request.send().await?.into(),
        };
        Ok(HttpReply { status: response.status(), response })
    }
}

impl SignedClient {
    /// Returns a client. Sends nothing yet.
    pub fn new(signer: Option<Arc<dyn Signer>>) -> Self {
        Self { direct: Arc::new(direct::client()), client: Arc::default(), signer }
    }

    /// Returns a client for the caller's own requests.
    pub fn over(client: Client, signer: Option<Arc<dyn Signer>>) -> Self {
        Self { client: Arc::new(client.into()), ..Self::new(signer) }
    }

    fn client(&self) -> Result<&Client, HttpFault> {
        match self.client.get() {
            Some(client) => Ok(client),
            None => {
                let client = web::client()?;
                Ok(self.client.get_or_init(|| client))
            }
        }
    }

    /// Posts one message. `headers` are sent with it, including the session's.
    pub async fn post(
        &self,
        to: &Address,
        mut headers: HeaderMap,
        message: Bytes,
    ) -> Result<HttpReply, HttpFault> {
        let in_session = headers.contains_key(SESSION);
        headers.insert(header::ACCEPT, BOTH);
        headers.insert(header::CONTENT_TYPE, JSON);
        let reply = self.request(Method::POST, to, headers, message).await?;
        match reply.status == StatusCode::NOT_FOUND && in_session {
            true => Err(HttpFault::SessionExpired),
            false => Ok(reply),
        }
    }

    /// Opens a stream after the last event seen.
    pub async fn stream(
        &self,
        to: &Address,
        mut headers: HeaderMap,
        last_event: Option<&str>,
    ) -> Result<HttpReply, HttpFault> {
        headers.insert(header::ACCEPT, BOTH);
        put(&mut headers, LAST_EVENT, last_event);
        self.request(Method::GET, to, headers, Bytes::new()).await
    }

    /// Ends a session. A server that does not support this is not at fault.
    pub async fn end_session(&self, to: &Address, headers: HeaderMap) -> Result<(), HttpFault> {
        let reply = self.request(Method::DELETE, to, headers, Bytes::new()).await?;
        match reply.status.is_success() || reply.status == StatusCode::METHOD_NOT_ALLOWED {
            true => Ok(()),
            false => Err(reply.refused().await),
        }
    }

    async fn request(
        &self,
        method: Method,
        to: &Address,
        mut headers: HeaderMap,
        body: Bytes,
    ) -> Result<HttpReply, HttpFault> {
        let unsent = match &to.direct {
            Some(uri) => {
                headers.entry(header::USER_AGENT).or_insert(web::USER_AGENT);
                let mut request = Request::new(Full::new(body));
                (*request.method_mut(), *request.uri_mut()) = (method, uri.clone());
                *request.headers_mut() = headers;
                Unsent::Direct(&self.direct, request)
            }
            None => Unsent::Web(self.client()?.request(method, to.url.clone()).headers(headers).body(body)),
        };
        self.signed(unsent).await
    }

    /// Sends a request with the account's token, and once more if the token was refused and there is another.
    pub async fn send(&self, request: RequestBuilder) -> Result<HttpReply, HttpFault> {
        self.signed(Unsent::Web(request)).await
    }

    async fn signed(&self, request: Unsent<'_>) -> Result<HttpReply, HttpFault> {
        let Some(signer) = &self.signer else { return request.send().await };
        let mut token = signer.clone().current().await?;
        let mut renewed = false;
        loop {
            let copy =
                request.copy().ok_or_else(|| HttpFault::Wrong("the request cannot be repeated".into()))?;
            let reply = copy.with_token(token.as_deref())?.send().await?;
            if reply.status != StatusCode::UNAUTHORIZED || std::mem::replace(&mut renewed, true) {
                return Ok(reply);
            }
            match signer.clone().replacement(token.take()).await? {
                None => return Ok(reply),
                fresh => token = fresh,
            }
        }
    }
}

/// An answer whose body is not read yet.
pub struct HttpReply {
    /// Its status.
    pub status: StatusCode,
    response: Response<Body>,
}

impl HttpReply {
    fn header(&self, name: &HeaderName) -> Option<&str> {
        self.response.headers().get(name)?.to_str().ok()
    }

    /// Returns all of its headers.
    pub fn headers(&self) -> &HeaderMap {
        self.response.headers()
    }

    /// Returns the id of the session that the server has opened.
    pub fn session(&self) -> Option<String> {
        self.header(&SESSION).map(String::from)
    }

    /// Returns the declared type of its body, in lower case.
    pub fn kind(&self) -> String {
        self.header(&header::CONTENT_TYPE).unwrap_or_default().to_ascii_lowercase()
    }

    /// Returns when the request may be repeated, if the answer says so in seconds.
    pub fn retry_after(&self) -> Option<Duration> {
        self.header(&header::RETRY_AFTER)?.trim().parse().ok().map(Duration::from_secs)
    }

    /// Returns whether it is an event stream.
    pub fn is_events(&self) -> bool {
        self.status.is_success() && self.kind().starts_with("text/event-stream")
    }

    /// Returns its events. `limit` is the maximum size of an event's data unless its content allows more, in
    /// bytes.
    pub fn events(self, limit: usize) -> EventReader<BodyStream> {
        EventReader::of(self.response.into_body(), limit)
    }

    /// Returns its body, at most `limit` bytes.
    pub async fn body(self, limit: usize) -> Result<Bytes, HttpFault> {
        let (mut frames, mut chunks, mut len) = (self.response.into_body(), Vec::new(), 0);
        while let Some(frame) = frames.frame().await.transpose()? {
            let Ok(chunk) = frame.into_data() else { continue };
            len += chunk.len();
            if len > limit {
                return Err(HttpFault::TooLong(limit));
            }
            chunks.push(chunk);
        }
        Ok(match chunks.len() {
            0 | 1 => chunks.pop().unwrap_or_default(),
            _ => chunks.concat().into(),
        })
    }

    /// Returns the fault if the server wants a sign-in, or one with a wider scope.
    pub fn wants_sign_in(&self) -> Option<HttpFault> {
        let challenge = web::challenge(self.response.headers());
        match (self.status, challenge) {
            (StatusCode::UNAUTHORIZED, challenge) => {
                let challenge = challenge.unwrap_or_else(|| format!("HTTP {}", self.status));
                Some(HttpFault::AuthRequired(challenge))
            }
            (StatusCode::FORBIDDEN, Some(challenge)) if challenge.contains("insufficient_scope") => {
                let scope = scope_of(&challenge);
                Some(HttpFault::Narrow { challenge, scope })
            }
            _ => None,
        }
    }

    /// Returns the fault of an answer that is not a success.
    pub async fn refused(mut self) -> HttpFault {
        if let Some(fault) = self.wants_sign_in() {
            return fault;
        }
        let first = timeout(REFUSAL_LIMIT, self.response.frame()).await;
        let frame = first.ok().flatten().and_then(Result::ok);
        let body = frame.and_then(|frame| frame.into_data().ok()).unwrap_or_default();
        let status = self.status;
        HttpFault::Status { status, text: said(status, &body) }
    }
}

/// Returns a status with the server's text.
pub fn said(status: StatusCode, body: &[u8]) -> String {
    match String::from_utf8_lossy(&body[..body.len().min(4 * SHOWN)]).trim() {
        "" => format!("HTTP {status}"),
        body => format!("HTTP {status}: {}", clip(body, SHOWN)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_into_headers() {
        for (name, header) in [
            ("read_file", "read_file"),
            ("a b", "a b"),
            (" a", "=?base64?IGE=?="),
            ("é", "=?base64?w6k=?="),
            ("=?base64?x?=", "=?base64?PT9iYXNlNjQ/eD89?="),
        ] {
            assert_eq!(header_value(name), header);
        }
    }
}
