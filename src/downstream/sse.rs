//! A server of the old HTTP+SSE transport (MCP 2024-11-05): a GET opens an event stream, whose first
//! event names the address that messages are POSTed to. All answers come on the stream.
//!
//! Own code because rmcp has no client for it. The stream is read by lines and not through
//! `web::events`: there a broken event takes its neighbours along, and one that is too long ends the
//! stream. Here the one is skipped, and the other fails its request.

use std::{future::Future, io, sync::Arc, time::Duration};

use bytes::{Buf, Bytes, BytesMut};
use futures::{StreamExt, stream::BoxStream};
use http::{HeaderMap, StatusCode, header};
use reqwest::{Client, RequestBuilder, Response, Url};
use rmcp::{
    RoleClient,
    service::{RxJsonRpcMessage, TxJsonRpcMessage},
    transport::{
        Transport,
        auth::WWWAuthenticateParams,
        streamable_http_client::{AuthRequiredError, InsufficientScopeError},
    },
};
use serde_json::Value;
use tokio::{io::AsyncRead, time::timeout};
use tokio_util::{
    io::StreamReader,
    sync::{CancellationToken, DropGuard},
};

use super::{inbox::Inbox, lines::to_json, tap::Tap};
use crate::{
    lines::{Line, LineReader},
    oauth::{Account, Attempt, RenewError},
    text::clip,
    web::{self, MAX_ANSWER},
};

/// How long the text of a refusal is waited for.
const REFUSAL: Duration = Duration::from_secs(1);

/// Why the transport did not do its work.
#[derive(Debug, thiserror::Error)]
pub enum SseError {
    /// It wants a sign-in.
    #[error("it wants a sign-in")]
    AuthRequired(#[source] AuthRequiredError),
    /// It answered with another status than the transport has.
    #[error("{0}")]
    Refused(String),
    /// The request broke off.
    #[error("the request failed: {0}")]
    Broken(#[source] reqwest::Error),
    /// It wants a sign-in that allows more.
    #[error("it wants a sign-in that allows more")]
    Narrow(#[source] InsufficientScopeError),
    /// There is no token for it just now, although somebody has signed in.
    #[error("{0}")]
    Unsigned(#[source] RenewError),
    /// It does not do as the transport asks.
    #[error("{0}")]
    Wrong(String),
}

impl From<RenewError> for SseError {
    fn from(error: RenewError) -> Self {
        match error {
            RenewError::Over(why) => SseError::AuthRequired(AuthRequiredError::new(why)),
            RenewError::Failed(_) => SseError::Unsigned(error),
        }
    }
}

impl From<reqwest::Error> for SseError {
    /// Without the address: keys stand in it.
    fn from(error: reqwest::Error) -> Self {
        SseError::Broken(error.without_url())
    }
}

/// One connection: the stream that is read, and the address that is written to.
pub struct Events {
    events: EventReader<StreamReader<BoxStream<'static, io::Result<Bytes>>, Bytes>>,
    post: Arc<Post>,
    pub tap: Tap,
    /// Tells the connection that this transport is gone, by being dropped with it.
    _open: DropGuard,
}

/// Where messages go.
struct Post {
    client: Client,
    endpoint: Url,
    headers: HeaderMap,
    account: Option<Arc<Account>>,
    /// Cancelled when the connection has come to its end, from either side.
    closed: CancellationToken,
}

impl Events {
    /// Opens the stream and waits for the `endpoint`. `headers` go with every request; `closed` is cancelled when the
    /// connection is gone.
    pub async fn open(
        server: Arc<str>,
        url: &str,
        headers: HeaderMap,
        account: Option<Arc<Account>>,
        closed: CancellationToken,
    ) -> Result<Self, SseError> {
        let client = web::client()?;
        let base =
            Url::parse(url).map_err(|error| SseError::Wrong(format!("the url is no address: {error}")))?;
        let request = client.get(base.clone()).header(header::ACCEPT, "text/event-stream");
        let response = send(account.as_ref(), request.headers(headers.clone())).await?;
        if !response.status().is_success() {
            return Err(refusal(response).await);
        }
        let kind =
            response.headers().get(header::CONTENT_TYPE).map(|kind| kind.as_bytes().to_ascii_lowercase());
        if !kind.is_some_and(|kind| kind.starts_with(b"text/event-stream")) {
            let status = response.status();
            return Err(SseError::Refused(format!("HTTP {status}, and no event stream")));
        }
        let bytes = response.bytes_stream().map(|chunk| chunk.map_err(io::Error::other)).boxed();
        let mut events = EventReader::new(server, StreamReader::new(bytes), MAX_ANSWER);
        let named = loop {
            let ended = || SseError::Wrong("its event stream ended before it named an `endpoint`".into());
            events.step().await.ok_or_else(ended)?;
            if let Some(named) = events.endpoint.take() {
                break named;
            }
        };
        let post =
            Post { client, endpoint: endpoint(&base, &named)?, headers, account, closed: closed.clone() };
        Ok(Self { events, post: Arc::new(post), tap: Tap::default(), _open: closed.drop_guard() })
    }

    /// Sends one message. Its answer comes on the stream.
    pub fn post(
        &self,
        message: serde_json::Result<Vec<u8>>,
    ) -> impl Future<Output = Result<(), SseError>> + Send + 'static + use<> {
        let post = self.post.clone();
        async move {
            let message =
                message.map_err(|error| SseError::Wrong(format!("it cannot be written: {error}")))?;
            // A server may keep the request open while it works; the connection's end is its end too.
            tokio::select! {
                sent = post.send(message) => sent,
                () = post.closed.cancelled() => Err(SseError::Wrong("the connection closed".into())),
            }
        }
    }

    /// The next JSON value, `None` at the end of the stream. Nothing is lost if the future is dropped before it is done.
    pub async fn read(&mut self) -> Option<Value> {
        tokio::select! {
            message = self.events.read() => message,
            () = self.post.closed.cancelled() => None,
        }
    }
}

impl Post {
    async fn send(&self, message: Vec<u8>) -> Result<(), SseError> {
        let request =
            self.client.post(self.endpoint.clone()).header(header::CONTENT_TYPE, "application/json");
        let request = request.headers(self.headers.clone()).body(message);
        let response = send(self.account.as_ref(), request).await?;
        let status = response.status();
        if status.is_success() {
            return Ok(());
        }
        let error = refusal(response).await;
        if matches!(status, StatusCode::NOT_FOUND | StatusCode::GONE) {
            // It has forgotten the session: only a new stream helps.
            self.closed.cancel();
        }
        Err(error)
    }
}

/// Sends a request with the account's token, and once more where that was refused and could be renewed.
async fn send(account: Option<&Arc<Account>>, request: RequestBuilder) -> Result<Response, SseError> {
    let mut attempt = Attempt::first(account).await?;
    loop {
        let signed = request.try_clone().map(|request| match attempt.token() {
            Some(token) => request.bearer_auth(token),
            None => request,
        });
        let signed = signed.ok_or_else(|| SseError::Wrong("the request cannot be sent twice".into()))?;
        let response = signed.send().await?;
        if response.status() != StatusCode::UNAUTHORIZED || !attempt.again().await? {
            return Ok(response);
        }
    }
}

/// The address that an `endpoint` event names. Headers hold secrets, so it must be where the configuration says.
fn endpoint(base: &Url, named: &str) -> Result<Url, SseError> {
    let unreadable = |error| SseError::Wrong(format!("its `endpoint` event names no address: {error}"));
    let mut url = base.join(named.trim()).map_err(unreadable)?;
    if url.origin() != base.origin() {
        let (there, here) = (url.origin().ascii_serialization(), base.origin().ascii_serialization());
        return Err(SseError::Wrong(clip(
            &format!(
                "its `endpoint` event names {there}, which is not the origin of its url ({here}): nothing is sent \
                 there, because `headers` would go along"
            ),
            400,
        )));
    }
    // A name and a password in the configured address are for the server, however it writes its own.
    let _ = url.set_username(base.username());
    let _ = url.set_password(base.password());
    Ok(url)
}

/// What an answer says that is no success.
async fn refusal(mut response: Response) -> SseError {
    let status = response.status();
    if status == StatusCode::UNAUTHORIZED {
        let challenge = web::challenge(response.headers()).unwrap_or_else(|| format!("HTTP {status}"));
        return SseError::AuthRequired(AuthRequiredError::new(challenge));
    }
    if status == StatusCode::FORBIDDEN
        && let Some(challenge) = web::challenge(response.headers())
        && challenge.contains("insufficient_scope")
    {
        let scope = WWWAuthenticateParams::parse(&challenge, response.url()).scope;
        return SseError::Narrow(InsufficientScopeError::new(challenge, scope));
    }
    let body =
        timeout(REFUSAL, response.chunk()).await.ok().and_then(Result::ok).flatten().unwrap_or_default();
    let said = match String::from_utf8_lossy(&body).trim() {
        "" => format!("HTTP {status}"),
        body => format!("HTTP {status}: {}", clip(body, 300)),
    };
    SseError::Refused(said)
}

impl Transport<RoleClient> for Events {
    type Error = SseError;

    fn send(
        &mut self,
        mut message: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), SseError>> + Send + 'static {
        self.tap.outgoing(&mut message);
        self.post(to_json(&message))
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        loop {
            let message = self.read().await?;
            match self.tap.incoming(message) {
                Ok(Some(message)) => return Some(message),
                Ok(None) => {}
                Err(fault) => self.events.inbox.note_noise(&format!("no JSON-RPC message: {fault}")),
            }
        }
    }

    async fn close(&mut self) -> Result<(), SseError> {
        self.post.closed.cancel();
        Ok(())
    }
}

/// The events of a stream whose lines end in `\n` or `\r\n`.
struct EventReader<R> {
    lines: LineReader<R>,
    inbox: Inbox,
    /// What the first `endpoint` event says, until it is taken.
    endpoint: Option<String>,
    /// The most bytes of one event.
    limit: usize,
    /// The kind and the data of the event that is being read.
    kind: String,
    data: Option<BytesMut>,
    /// Set where the rest of it is thrown away.
    skipping: bool,
}

impl<R: AsyncRead + Unpin> EventReader<R> {
    fn new(server: Arc<str>, from: R, limit: usize) -> Self {
        Self {
            lines: LineReader::new(from, limit),
            inbox: Inbox::new(server, "an event"),
            endpoint: None,
            limit,
            kind: String::new(),
            data: None,
            skipping: false,
        }
    }

    /// The next message.
    async fn read(&mut self) -> Option<Value> {
        loop {
            if let Some(message) = self.inbox.pop() {
                return Some(message);
            }
            self.step().await?;
        }
    }

    /// Reads one line. `None` at the end of the stream, where an event that is not whole does not count.
    async fn step(&mut self) -> Option<()> {
        match self.lines.next_or_empty().await? {
            Line::Whole(line) if line.is_empty() => self.end_event(),
            Line::Whole(line) => self.field(line),
            Line::TooLong(head) => self.give_up(head.as_bytes()),
            Line::TooLongEnd(tail) => self.inbox.too_long_end(&tail),
        }
        Some(())
    }

    fn field(&mut self, mut line: BytesMut) {
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        let name = line.split_to(colon);
        line.advance(line.len().min(1));
        if line.first() == Some(&b' ') {
            line.advance(1);
        }
        match name.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(&name) {
            b"event" => self.kind = String::from_utf8_lossy(&line).into_owned(),
            b"data" if !self.skipping => match &mut self.data {
                None => self.data = Some(line),
                Some(data) if data.len() + line.len() >= self.limit => self.give_up(b""),
                Some(data) => {
                    data.extend_from_slice(b"\n");
                    data.extend_from_slice(&line);
                }
            },
            // `id`, `retry` and comments.
            _ => {}
        }
    }

    /// Throws an event away that is too long. `rest` is the beginning of what is not there yet.
    fn give_up(&mut self, rest: &[u8]) {
        self.skipping = true;
        let beginning = self.data.take().unwrap_or_default();
        self.inbox.too_long(if beginning.is_empty() { rest } else { &beginning });
    }

    fn end_event(&mut self) {
        self.skipping = false;
        let kind = std::mem::take(&mut self.kind);
        let Some(data) = self.data.take() else { return };
        match kind.as_str() {
            "" | "message" => self.inbox.take(&data),
            "endpoint" => self.endpoint = Some(String::from_utf8_lossy(&data).into_owned()),
            // Pings and the like.
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    async fn read_all(text: &[u8], limit: usize) -> (Option<String>, Vec<Value>) {
        let mut events = EventReader::new("s".into(), text, limit);
        let mut all = Vec::new();
        while let Some(message) = events.read().await {
            all.push(message);
        }
        (events.endpoint, all)
    }

    #[tokio::test]
    async fn events_are_read_as_servers_write_them() {
        let text = b"\xEF\xBB\xBFevent: endpoint\r\ndata: /messages?a=1\r\n\r\n: ping\r\n\r\n\
            event:message\ndata:{\"a\":1}\nid: 7\nretry: x\nodd\n\n\
            data: {\ndata:   \"b\": 2\ndata: }\n\n\
            event: ping\ndata: now\n\n\
            data: [{\"c\":3},{\"d\":4}]\n\n\
            data: {\"cut\":1}\n";
        let (endpoint, all) = read_all(text, 1_000).await;
        assert_eq!(endpoint.as_deref(), Some("/messages?a=1"));
        assert_eq!(all, [json!({"a":1}), json!({"b":2}), json!({"c":3}), json!({"d":4})]);
    }

    #[tokio::test]
    async fn a_broken_event_costs_itself_alone() {
        let text = b"data: hello\n\ndata: {\"id\":3,\"result\":NaN}\n\ndata: \xff\xfe\n\ndata: {\"a\":1}\n\n";
        let (_, all) = read_all(text, 1_000).await;
        assert_eq!(all.len(), 2, "{all:?}");
        assert_eq!((&all[0]["id"], &all[0]["error"]["code"]), (&json!(3), &json!(-32603)));
        assert_eq!(all[1], json!({"a":1}));
    }

    #[tokio::test]
    async fn an_event_that_is_too_long_fails_its_request() {
        let long = "x".repeat(300_000);
        let check = async |event: String| {
            let text = format!("{event}\n\ndata: {{\"after\":true}}\n\n");
            let (_, all) = read_all(text.as_bytes(), 1_000).await;
            assert_eq!(all.len(), 2, "{all:?}");
            assert_eq!(all[0]["id"], 7);
            assert!(all[0]["error"]["message"].as_str().is_some_and(|m| m.contains("longer than")));
            assert_eq!(all[1], json!({"after": true}));
        };
        check(format!("data: {{\"jsonrpc\":\"2.0\",\"id\": 7,\"result\":\"{long}\"}}")).await;
        check(format!("data: {{\"result\":\"{long}\",\"id\": 7}}")).await;
        check(format!("data: {{\"id\": 7,\ndata: \"result\":\"{long}\"}}")).await;
        let lines = "data: \"some text\",\n".repeat(100);
        check(format!("data: {{\"id\": 7, \"result\": [\n{lines}data: 1]}}")).await;
    }

    #[test]
    fn the_endpoint_is_where_the_address_is() {
        let check = |base: &str, named: &str, expected: Result<&str, &str>| {
            let base = Url::parse(base).expect("an address");
            match (endpoint(&base, named), expected) {
                (Ok(url), Ok(expected)) => assert_eq!(url.as_str(), expected),
                (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
                (found, _) => panic!("{named}: {found:?}"),
            }
        };
        check("https://h/v1/sse?key=1", "/messages?s=2", Ok("https://h/messages?s=2"));
        check("https://h/v1/sse", "messages?s=2", Ok("https://h/v1/messages?s=2"));
        check("https://h/sse", "?s=2\n", Ok("https://h/sse?s=2"));
        check("https://h/sse", "https://h:443/m", Ok("https://h/m"));
        check("https://ann:pw@h/sse", "https://h/m", Ok("https://ann:pw@h/m"));
        check("https://h/sse", "https://bob@h/m", Ok("https://h/m"));
        check("https://h/sse", "http://h/m", Err("names http://h"));
        check("https://h/sse", "https://h:8443/m", Err("names https://h:8443"));
        check("https://h/sse", "//other/m", Err("names https://other"));
        check("https://h/sse", "file:///etc/passwd", Err("not the origin"));
        check("https://h/sse", "https://", Err("no address"));
    }
}
