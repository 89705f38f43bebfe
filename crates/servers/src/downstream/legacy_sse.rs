//! A server of the legacy SSE transport (HTTP+SSE, MCP 2024-11-05): a GET opens an event stream, whose first
//! event names the address that messages are POSTed to. All answers come on the stream.
//!
//! Own code because rmcp has no client for it.

use std::{future::Future, sync::Arc};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use nonet_base::text::clip;
use nonet_wire::{
    Backlog, BodyStream, EventData, EventReader, Expectations, HeavyParse, Inbox, Message, Scan, StreamEvent,
    Weight,
    http::{HttpFault, SignedClient, Signer, address},
    judge, scan,
};
use reqwest::Url;
use rmcp::{
    RoleClient,
    model::JsonRpcMessage,
    service::{RxJsonRpcMessage, TxJsonRpcMessage},
    transport::Transport,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    stdio::{to_json, unread},
    tap::{IncomingMessage, Tap},
};

/// Why the transport failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum SseError {
    /// A request failed.
    #[error("{0}")]
    Http(#[from] HttpFault),
    /// The server violates the transport's rules.
    #[error("{0}")]
    Wrong(String),
}

/// One connection: the stream to read from, and the address to write to.
pub(super) struct SseConnection {
    events: EventReader<BodyStream>,
    inbox: Inbox,
    /// An event being scanned.
    scanning: HeavyParse<Scan>,
    /// A message being parsed.
    reading: HeavyParse<(Message, IncomingMessage)>,
    post: Arc<PostTarget>,
    pub tap: Tap,
    /// Signals to the connection, on drop, that this transport is gone.
    _open: DropGuard,
}

/// The destination of messages.
struct PostTarget {
    endpoint: SignedClient,
    url: Url,
    headers: HeaderMap,
    /// Messages in transmission.
    backlog: Backlog,
    /// Cancelled when the connection has ended, from either side.
    closed: CancellationToken,
}

impl SseConnection {
    /// Opens the stream and waits for the `endpoint` event. `headers` are sent with every request; `closed` is cancelled when
    /// the connection is gone.
    pub(super) async fn open(
        server: Arc<str>,
        url: &str,
        headers: HeaderMap,
        signer: Option<Arc<dyn Signer>>,
        tap: Tap,
        closed: CancellationToken,
    ) -> Result<Self, SseError> {
        let endpoint = SignedClient::new(signer)?;
        let base = address(url)?;
        let reply = endpoint.stream(base.clone(), headers.clone(), None).await?;
        if !reply.status.is_success() {
            return Err(reply.refused().await.into());
        }
        if !reply.is_events() {
            let status = reply.status;
            return Err(
                HttpFault::Status { status, text: format!("HTTP {status}, but no event stream") }.into()
            );
        }
        let mut events = reply.events(tap.limits().of_server.bytes);
        let named = loop {
            let ended = || SseError::Wrong("its event stream ended before it named an `endpoint`".into());
            if let StreamEvent { kind, data: EventData::Whole(named), .. } =
                events.next(|_| 0).await.ok_or_else(ended)?
                && kind == "endpoint"
            {
                break String::from_utf8_lossy(&named).into_owned();
            }
        };
        let url = named_endpoint(&base, &named)?;
        let backlog = Backlog::new(tap.limits().unread);
        let post = Arc::new(PostTarget { endpoint, url, headers, backlog, closed: closed.clone() });
        let inbox = Inbox::new(server, "an event");
        let (scanning, reading) = (HeavyParse::Idle, HeavyParse::Idle);
        Ok(Self { events, inbox, scanning, reading, post, tap, _open: closed.drop_guard() })
    }

    /// Sends one message. Its answer comes on the stream. While the server does not read, requests fail at once and answers
    /// are dropped.
    pub(super) fn post(
        &self,
        message: serde_json::Result<Vec<u8>>,
        is_request: bool,
    ) -> impl Future<Output = Result<(), SseError>> + Send + 'static + use<> {
        let post = self.post.clone();
        let waiting = post.backlog.enter(message.as_ref().map_or(0, Vec::len));
        async move {
            let _waiting = waiting;
            if is_request && post.backlog.is_stuck() {
                return Err(HttpFault::Unsent(unread(post.backlog.bytes())).into());
            }
            if post.backlog.is_full() {
                return Ok(());
            }
            let message = message
                .map_err(|error| SseError::Wrong(format!("the message cannot be written: {error}")))?;
            // A server may keep the request open while it works, so it ends with the connection.
            tokio::select! {
                sent = post.send(message.into()) => sent,
                () = post.closed.cancelled() => Err(SseError::Wrong("the connection closed".into())),
            }
        }
    }

    /// Returns the next message, `None` at the end of the stream. Dropping the future early loses nothing.
    pub(super) async fn read(&mut self) -> Option<Message> {
        loop {
            if let Some((scan, _)) = self.scanning.done().await {
                self.inbox.take(scan, &self.tap);
                self.send_refusals();
            }
            if let Some(message) = self.inbox.pop() {
                return Some(message);
            }
            let tap = &self.tap;
            let event = tokio::select! {
                event = self.events.next(|beginning| judge(beginning, tap)) => event?,
                () = self.post.closed.cancelled() => return None,
            };
            if let Some(text) = self.inbox.take_event(event, tap) {
                let most = tap.limits().answer.values;
                self.scanning.begin(Weight::of(text.len()), move || scan(text, most));
            }
            self.send_refusals();
        }
    }

    fn send_refusals(&mut self) {
        let refusals: Vec<Bytes> = self.inbox.refusals().collect();
        for refusal in refusals {
            tokio::spawn(self.post(Ok(refusal.into()), false));
        }
    }
}

impl PostTarget {
    async fn send(&self, message: Bytes) -> Result<(), SseError> {
        let reply = self.endpoint.post(self.url.clone(), self.headers.clone(), message).await?;
        let status = reply.status;
        if status.is_success() {
            return Ok(());
        }
        let fault = reply.refused().await;
        if matches!(status, StatusCode::NOT_FOUND | StatusCode::GONE) {
            // The server has forgotten the session: only a new stream helps.
            self.closed.cancel();
        }
        Err(fault.into())
    }
}

/// Returns the address that an `endpoint` event names. Headers contain secrets, so the address must be on the configured
/// origin.
fn named_endpoint(base: &Url, named: &str) -> Result<Url, SseError> {
    let unreadable = |error| SseError::Wrong(format!("its `endpoint` event has no valid address: {error}"));
    let mut url = base.join(named.trim()).map_err(unreadable)?;
    if url.origin() != base.origin() {
        let (there, here) = (url.origin().ascii_serialization(), base.origin().ascii_serialization());
        return Err(SseError::Wrong(clip(
            &format!(
                "its `endpoint` event names {there}, which is not the origin of its url ({here}): nothing \
                 is sent there, because `headers` would be sent, too"
            ),
            400,
        )));
    }
    // User name and password of the configured address are for the server, however the server writes its own address.
    let _ = url.set_username(base.username());
    let _ = url.set_password(base.password());
    Ok(url)
}

impl Transport<RoleClient> for SseConnection {
    type Error = SseError;

    fn send(
        &mut self,
        mut message: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), SseError>> + Send + 'static {
        self.tap.outgoing(&mut message);
        self.post(to_json(&message), matches!(message, JsonRpcMessage::Request(_)))
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        loop {
            if let Some((read, share)) = self.reading.done().await {
                let message = self.tap.take_or_refuse(read, share, &mut self.inbox);
                self.send_refusals();
                if message.is_some() {
                    return message;
                }
            }
            let message = self.read().await?;
            let reading = self.tap.reading(&message);
            self.reading.begin(message.weight(), move || (message, reading()));
        }
    }

    async fn close(&mut self) -> Result<(), SseError> {
        self.post.closed.cancel();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_endpoint_is_where_the_address_is() {
        let check = |base: &str, named: &str, expected: Result<&str, &str>| {
            let base = Url::parse(base).expect("an address");
            match (named_endpoint(&base, named), expected) {
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
        check("https://h/sse", "https://", Err("no valid address"));
    }
}
