//! A server of the legacy SSE transport (HTTP+SSE, MCP 2024-11-05): a GET opens an event stream, whose first
//! event names the address that messages are POSTed to. All answers come on the stream.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use nonet_base::text::clip;
use nonet_wire::{
    Backlog, BodyStream, EventData, EventReader, Expectations, StreamEvent,
    http::{Address, HttpFault, SignedClient, Signer},
};
use reqwest::Url;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{
    events::EventStream,
    incoming::{Incoming, SendSoon},
    lines::unread,
};

/// One connection.
pub(super) struct SseServer {
    post: PostTarget,
    _reader: AbortOnDropHandle<()>,
}

/// The destination of messages.
#[derive(Clone)]
struct PostTarget(Arc<Target>);

struct Target {
    endpoint: SignedClient,
    address: Address,
    headers: HeaderMap,
    /// Messages in transmission.
    backlog: Backlog,
    /// Cancelled when the connection has ended, from either side.
    closed: CancellationToken,
}

impl SseServer {
    /// Opens the stream, waits for the `endpoint` event and starts to read the stream. `headers` are sent
    /// with every request.
    pub(super) async fn open(
        incoming: Arc<Incoming>,
        url: &str,
        headers: HeaderMap,
        signer: Option<Arc<dyn Signer>>,
    ) -> Result<Self, HttpFault> {
        let endpoint = SignedClient::new(signer);
        let base = Address::parse(url)?;
        let reply = endpoint.stream(&base, headers.clone(), None).await?;
        if !reply.status.is_success() {
            return Err(reply.refused().await);
        }
        if !reply.is_events() {
            let status = reply.status;
            return Err(HttpFault::Status { status, text: format!("HTTP {status}, but no event stream") });
        }
        let limits = *incoming.pending.limits();
        let mut events = reply.events(limits.of_server.bytes);
        let named = loop {
            let ended = || HttpFault::Wrong("its event stream ended before it named an `endpoint`".into());
            if let StreamEvent { kind, data: EventData::Whole(named), .. } =
                events.next(|_| 0).await.ok_or_else(ended)?
                && kind == "endpoint"
            {
                break String::from_utf8_lossy(&named).into_owned();
            }
        };
        let address = named_endpoint(base.url(), &named).map_err(HttpFault::Wrong)?.into();
        let (backlog, closed) = (Backlog::new(limits.unread), incoming.closed.clone());
        let post = PostTarget(Arc::new(Target { endpoint, address, headers, backlog, closed }));
        let reading = tokio::spawn(read(incoming, events, post.clone()));
        Ok(Self { post, _reader: AbortOnDropHandle::new(reading) })
    }

    /// Sends a message. Its answer comes on the stream. While the server does not read, requests fail at
    /// once.
    pub(super) async fn send(&self, message: Vec<u8>) -> Result<(), HttpFault> {
        let target = &self.post.0;
        if target.backlog.is_stuck() {
            return Err(HttpFault::Unsent(unread(target.backlog.bytes())));
        }
        self.post.send(message.into()).await
    }

    /// Sends a message in a separate task.
    pub(super) fn send_soon(&self, message: Bytes) {
        self.post.send_soon(message);
    }
}

impl PostTarget {
    async fn send(&self, message: Bytes) -> Result<(), HttpFault> {
        let Target { endpoint, address, headers, backlog, closed } = &*self.0;
        let _waiting = backlog.enter(message.len());
        let sent = async {
            let reply = endpoint.post(address, headers.clone(), message).await?;
            if reply.status.is_success() {
                return Ok(());
            }
            if matches!(reply.status, StatusCode::NOT_FOUND | StatusCode::GONE) {
                // The server has forgotten the session: only a new stream helps.
                closed.cancel();
            }
            Err(reply.refused().await)
        };
        // A server may keep the request open while it works, so it ends with the connection.
        tokio::select! {
            biased;
            sent = sent => sent,
            () = closed.cancelled() => Err(HttpFault::Wrong("the connection closed".into())),
        }
    }
}

impl SendSoon for PostTarget {
    fn send_soon(&self, message: Bytes) {
        if self.0.backlog.is_full() {
            return;
        }
        let post = self.clone();
        tokio::spawn(async move { post.send(message).await });
    }
}

/// Reads the stream to its end.
async fn read(incoming: Arc<Incoming>, events: EventReader<BodyStream>, post: PostTarget) {
    let closed = post.0.closed.clone();
    let mut events = EventStream::new(events, incoming.clone(), post);
    while let Some(Some(_)) = closed.run_until_cancelled(events.next(None)).await {}
    incoming.close();
}

/// Returns the address that an `endpoint` event names. Headers contain secrets, so the address must be on the
/// configured origin.
fn named_endpoint(base: &Url, named: &str) -> Result<Url, String> {
    let unreadable = |error| format!("its `endpoint` event has no valid address: {error}");
    let mut url = base.join(named.trim()).map_err(unreadable)?;
    if url.origin() != base.origin() {
        let (there, here) = (url.origin().ascii_serialization(), base.origin().ascii_serialization());
        return Err(clip(
            &format!(
                "its `endpoint` event names {there}, which is not the origin of its url ({here}): nothing \
                 is sent there, because `headers` would be sent, too"
            ),
            400,
        ));
    }
    // User name and password of the configured address are for the server, however the server writes its own
    // address.
    let _ = url.set_username(base.username());
    let _ = url.set_password(base.password());
    Ok(url)
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
                (Err(error), Err(part)) => assert!(error.contains(part), "{error}"),
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
