//! Streamable HTTP as a client: one message per POST, answers as JSON or as events, and a stream by GET. Used for servers,
//! and for the gateways that a bridge connects to.

use std::{sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use futures::{StreamExt, future::BoxFuture};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use nonet_base::text::clip;
use reqwest::{Client, RequestBuilder, Response, Url};
use tokio::time::timeout;

use super::{
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
    Broken(Arc<reqwest::Error>),
    /// The answer is longer than this number of bytes.
    #[error("the answer is longer than the limit of {0} bytes; it was dropped")]
    TooLong(usize),
    /// The answer violates the transport's rules.
    #[error("{0}")]
    Wrong(String),
}

impl From<reqwest::Error> for HttpFault {
    /// Drops the address, which may contain keys.
    fn from(error: reqwest::Error) -> Self {
        Self::Broken(Arc::new(error.without_url()))
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

/// Returns the headers of a request of the stateless era added to others, which already have the version. `about` is its tool,
/// prompt, resource or task.
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

/// Sends requests, each with the token of an account, if there is one.
#[derive(Clone)]
pub struct SignedClient {
    client: Client,
    signer: Option<Arc<dyn Signer>>,
}

impl SignedClient {
    /// Returns an endpoint. Sends nothing yet.
    pub fn new(signer: Option<Arc<dyn Signer>>) -> Result<Self, HttpFault> {
        Ok(Self::over(web::client()?, signer))
    }

    /// Returns an endpoint with the caller's own client.
    pub fn over(client: Client, signer: Option<Arc<dyn Signer>>) -> Self {
        Self { client, signer }
    }

    /// Posts one message. `headers` are sent with it, including the session's.
    pub async fn post(
        &self,
        url: impl reqwest::IntoUrl,
        mut headers: HeaderMap,
        message: Bytes,
    ) -> Result<HttpReply, HttpFault> {
        let in_session = headers.contains_key(SESSION);
        headers.insert(header::ACCEPT, BOTH);
        headers.insert(header::CONTENT_TYPE, JSON);
        let reply = self.send(self.client.post(url).headers(headers).body(message)).await?;
        match reply.status == StatusCode::NOT_FOUND && in_session {
            true => Err(HttpFault::SessionExpired),
            false => Ok(reply),
        }
    }

    /// Opens a stream after the last event seen.
    pub async fn stream(
        &self,
        url: impl reqwest::IntoUrl,
        mut headers: HeaderMap,
        last_event: Option<&str>,
    ) -> Result<HttpReply, HttpFault> {
        headers.insert(header::ACCEPT, BOTH);
        put(&mut headers, LAST_EVENT, last_event);
        self.send(self.client.get(url).headers(headers)).await
    }

    /// Ends a session. A server that does not support this is not at fault.
    pub async fn end_session(&self, url: &str, headers: HeaderMap) -> Result<(), HttpFault> {
        let reply = self.send(self.client.request(Method::DELETE, url).headers(headers)).await?;
        match reply.status.is_success() || reply.status == StatusCode::METHOD_NOT_ALLOWED {
            true => Ok(()),
            false => Err(reply.refused().await),
        }
    }

    /// Sends a request with the account's token, and once more if the token was refused and there is another.
    pub async fn send(&self, request: RequestBuilder) -> Result<HttpReply, HttpFault> {
        let Some(signer) = &self.signer else { return Ok(HttpReply::new(request.send().await?)) };
        let mut token = signer.clone().current().await?;
        let mut renewed = false;
        loop {
            let signed = request.try_clone().map(|request| match &token {
                Some(token) => request.bearer_auth(token),
                None => request,
            });
            let signed = signed.ok_or_else(|| HttpFault::Wrong("the request cannot be repeated".into()))?;
            let reply = HttpReply::new(signed.send().await?);
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
    response: Response,
}

impl HttpReply {
    fn new(response: Response) -> Self {
        Self { status: response.status(), response }
    }

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

    /// Returns its events. `limit` is the maximum size of an event's data unless its content allows more, in bytes.
    pub fn events(self, limit: usize) -> EventReader<BodyStream> {
        EventReader::of(self.response, limit)
    }

    /// Returns its body, at most `limit` bytes.
    pub async fn body(self, limit: usize) -> Result<Bytes, HttpFault> {
        let mut body = BytesMut::new();
        let mut chunks = self.response.bytes_stream();
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk?;
            if body.len() + chunk.len() > limit {
                return Err(HttpFault::TooLong(limit));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body.freeze())
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
                let scope = scope_of(&challenge, self.response.url());
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
        let first = timeout(REFUSAL_LIMIT, self.response.chunk()).await;
        let body = first.ok().and_then(Result::ok).flatten().unwrap_or_default();
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

/// Parses an address for requests.
pub fn address(url: &str) -> Result<Url, HttpFault> {
    Url::parse(url).map_err(|error| HttpFault::Wrong(format!("the url is not an address: {error}")))
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
