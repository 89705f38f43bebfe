//! The stdio transport, server side: one JSON-RPC message per line, on stdin and stdout or on a socket. Each
//! request is answered by a task that writes its line itself.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use nonet_wire::{
    HeavyParse, Limits, Line, LineReader, LineWriter, Message, MessageFault, MessageHead, MessageKind,
    MessageStart, RefusedMessage, ScannedMessage, SizeLimit, Weight,
};
use parking_lot::Mutex;
use rmcp::model::{ErrorCode, ErrorData, RequestId};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    Handler, answered,
    client::{ClientPeer, ClientWay},
    eras, reply,
    request::{ClientMessage, ClientRequest, RequestContext},
};

/// The JSON-RPC error code for an unusable answer.
const UNUSABLE: i32 = -32603;
/// The JSON-RPC error code for one request too many (from JSON-RPC's range for servers).
const BUSY: i32 = -32000;
/// How long requests in flight may continue after their client has closed its end, or after this side has
/// stopped.
const DRAIN: Duration = Duration::from_secs(5);
const DRAIN_STOPPED: Duration = Duration::from_secs(2);
/// The maximum number of one client's unanswered requests.
const MOST_UNANSWERED: usize = 1_000;

/// The client's messages.
struct ClientLines<R, W> {
    lines: LineReader<R>,
    writer: LineWriter<W>,
    limits: Limits,
    /// A line being parsed.
    reading: HeavyParse<Result<ClientMessage, UnreadableMessage>>,
    /// A message that is too long, kept until its end gives its id.
    open: Option<MessageHead>,
}

/// Unanswered requests, and what cancels them. Of several requests with one id, the first that ends is
/// answered.
#[derive(Default)]
struct UnansweredRequests(Mutex<HashMap<RequestId, CancellationToken>>);

impl UnansweredRequests {
    fn count(&self) -> usize {
        self.0.lock().len()
    }

    fn begin(&self, id: RequestId, cancel: CancellationToken) {
        self.0.lock().insert(id, cancel);
    }

    /// Forgets a request that is answered or cancelled. Returns whether it was waiting.
    fn end(&self, id: &RequestId) -> bool {
        let ended = self.0.lock().remove(id);
        if let Some(cancel) = &ended {
            cancel.cancel();
        }
        ended.is_some()
    }
}

/// Which era a client has chosen.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lifecycle {
    /// It has not chosen yet: `server/discover` and `ping` leave the choice open.
    Open,
    /// It made a handshake.
    Handshake,
    /// Each of its requests carries its own metadata (2026-07-28).
    Inline,
}

/// One client over lines.
struct LineClient<W, H> {
    handler: Arc<H>,
    peer: Arc<ClientPeer>,
    writer: LineWriter<W>,
    unanswered: Arc<UnansweredRequests>,
    lifecycle: Lifecycle,
    tasks: TaskTracker,
    /// Cancels the requests in flight.
    ends: CancellationToken,
}

/// Serves one client until it leaves or `stop` is cancelled. Calls `greeted` once the client has chosen its
/// era.
pub async fn serve<R, W, H>(
    handler: H,
    lines: LineReader<R>,
    writer: W,
    limits: Limits,
    stop: CancellationToken,
    greeted: impl FnOnce(),
) where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
    H: Handler,
{
    let writer = LineWriter::new(writer, limits.unread);
    let mut client = LineClient {
        handler: Arc::new(handler),
        peer: ClientPeer::new(writer.clone()),
        writer: writer.clone(),
        unanswered: Arc::default(),
        lifecycle: Lifecycle::Open,
        tasks: TaskTracker::new(),
        ends: CancellationToken::new(),
    };
    // If this future is dropped, its requests end.
    let _ends = client.ends.clone().drop_guard();
    let mut lines = ClientLines { lines, writer, limits, reading: HeavyParse::Idle, open: None };
    let mut greeted = Some(greeted);
    // Made once: each one enters a list and leaves it.
    let mut stopped = std::pin::pin!(stop.cancelled());
    let left = loop {
        let message = tokio::select! {
            biased;
            () = &mut stopped => break None,
            message = lines.next() => message,
        };
        let Some(message) = message else { break Some(Instant::now()) };
        client.take(message).await;
        if client.lifecycle != Lifecycle::Open
            && let Some(greeted) = greeted.take()
        {
            greeted();
        }
        // Gives the writers their turn in a burst.
        tokio::task::consume_budget().await;
    };
    client.drain(left.map_or(DRAIN_STOPPED, |left| DRAIN.saturating_sub(left.elapsed()))).await;
}

impl<W: AsyncWrite + Unpin + Send + 'static, H: Handler> LineClient<W, H> {
    async fn take(&mut self, message: ClientMessage) {
        match message {
            ClientMessage::Request(request) => self.begin(*request).await,
            ClientMessage::Cancelled(id) => {
                self.unanswered.end(&id);
            }
            ClientMessage::Initialized => self.handler.initialized(&self.peer),
            ClientMessage::Answer(id, answer) => self.peer.answered(&id, answer),
            ClientMessage::Other => {}
        }
    }

    /// Starts to answer a request. Beyond [`MOST_UNANSWERED`] requests, the last one is refused: reading must
    /// go on, since the others may be waiting for the client's answers to questions.
    async fn begin(&mut self, request: ClientRequest) {
        let ClientRequest { id, meta, body } = request;
        if self.unanswered.count() >= MOST_UNANSWERED {
            let what =
                format!("{MOST_UNANSWERED} requests are in flight; wait for answers, then send it again");
            return self.refuse(&id, &ErrorData::new(ErrorCode(BUSY), what, None));
        }
        let cancel = self.ends.child_token();
        let context = RequestContext {
            id,
            meta,
            beside: http::Extensions::new(),
            way: ClientWay::of(self.peer.clone()),
            cancel: cancel.clone(),
            is_inline: self.lifecycle != Lifecycle::Handshake,
        };
        let method = body.method();
        if let Err(error) = eras::check(&body, &context) {
            return self.refuse(&context.id, &error);
        }
        let opens_session = method == "initialize";
        if self.lifecycle == Lifecycle::Open && !matches!(method, "initialize" | "server/discover" | "ping") {
            self.lifecycle = Lifecycle::Inline;
        }
        self.unanswered.begin(context.id.clone(), cancel);
        let (handler, unanswered, writer) =
            (self.handler.clone(), self.unanswered.clone(), self.writer.clone());
        let mut answering = Box::pin(async move {
            let answered = answered(&*handler, body, &context).await;
            let is_done = answered.is_ok();
            let id = &context.id;
            if !unanswered.end(id) {
                tracing::debug!(%id, "a cancelled request gets no answer");
                return false;
            }
            let line = writer.pieces(reply::message(id, answered, true)).queue();
            if unanswered.count() > 0 {
                // Perhaps a burst: others that are ready join this write.
                tokio::task::yield_now().await;
            }
            // Boxed: a larger future of a call costs more than a box.
            if let Err(error) = Box::pin(line.write()).await {
                tracing::error!(%id, %error, "an answer was not written");
            }
            is_done
        });
        if opens_session {
            // What follows depends on the handshake.
            if answering.await {
                self.lifecycle = Lifecycle::Handshake;
            }
        } else if futures::poll!(&mut answering).is_pending() {
            // Polled once before it becomes a task: requests begin in the order in which they came.
            self.tasks.spawn(answering);
        }
    }

    fn refuse(&self, id: &RequestId, error: &ErrorData) {
        let answer = reply::message(id, Err(error.clone()), false);
        self.writer.write_soon(answer.concat());
    }

    /// Waits until the requests in flight have ended, at most for `limit`. Then cancels the rest, and closes.
    async fn drain(&self, limit: Duration) {
        self.tasks.close();
        if tokio::time::timeout(limit, self.tasks.wait()).await.is_err() {
            tracing::warn!(
                requests = self.tasks.len(),
                "requests in flight are abandoned: their client has left"
            );
        }
        self.ends.cancel();
        self.writer.close().await;
    }
}

impl<R, W> ClientLines<R, W>
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    /// Returns the client's next message that can be read. Dropping the future early loses nothing.
    async fn next(&mut self) -> Option<ClientMessage> {
        loop {
            if let Some((read, _)) = self.reading.done().await {
                match read {
                    Ok(message) => return Some(message),
                    Err(UnreadableMessage::Request(refusal)) => self.writer.write_soon(refusal.into()),
                    // The caller that asked the client must not wait for a skipped answer.
                    Err(UnreadableMessage::Answer(id, error)) => {
                        return Some(ClientMessage::Answer(id, Err(*error)));
                    }
                    Err(UnreadableMessage::Noise) => {}
                }
            }
            // A client that does not read its answers may not send more requests.
            self.writer.backlog().unstuck().await;
            let longest = self.limits.of_client.bytes;
            let unread = match self.lines.next().await? {
                Line::Whole(line) => {
                    let limits = self.limits;
                    self.reading.begin(Weight::guessed(&line), move || read(line.freeze(), &limits));
                    continue;
                }
                Line::TooLong(beginning) => {
                    let head = MessageHead::of(&beginning);
                    tracing::warn!(
                        method = head.shown_method(),
                        "a message of the client is longer than {longest} bytes; skipped"
                    );
                    match head.id {
                        Some(_) => UnreadableMessage::of(head, MessageFault::TooLong(longest)),
                        None => {
                            self.open = Some(head);
                            continue;
                        }
                    }
                }
                Line::TooLongEnd(tail) => match self.open.take().map(|head| head.with_tail(&tail)) {
                    Some(head) => UnreadableMessage::of(head, MessageFault::TooLong(longest)),
                    None => continue,
                },
            };
            self.reading = HeavyParse::Done(Err(unread));
        }
    }
}

/// What happens to a message that could not be read.
enum UnreadableMessage {
    /// A request: it gets this answer.
    Request(Bytes),
    /// An answer to our request, which fails with this.
    Answer(RequestId, Box<ErrorData>),
    /// Noise: nothing happens.
    Noise,
}

impl UnreadableMessage {
    fn of(head: MessageHead, fault: MessageFault) -> Self {
        let (code, message) = fault.of_request();
        match (head.kind, head.id) {
            (MessageKind::Notification, _) | (_, None) => Self::Noise,
            (MessageKind::Result | MessageKind::Error, Some(id)) => {
                Self::answered(serde_json::from_str(&id).ok(), format!("the client's answer is {fault}"))
            }
            (MessageKind::Request | MessageKind::Other, Some(id)) => {
                Self::Request(Message::failure(&id, code, &message))
            }
        }
    }

    fn answered(id: Option<RequestId>, what: String) -> Self {
        let Some(id) = id else { return Self::Noise };
        Self::Answer(id, Box::new(ErrorData::new(ErrorCode(UNUSABLE), what, None)))
    }
}

/// Reads one message.
fn read(line: Bytes, limits: &Limits) -> Result<ClientMessage, UnreadableMessage> {
    let scanned = ScannedMessage::of(line, limits.of_client.values);
    let message = match scanned.within(|start| of_client(start, limits)) {
        Ok(message) => message,
        Err(RefusedMessage { head, fault, bytes }) if fault.is_syntax() => {
            let begins = bytes.trim_ascii_start().first();
            return Err(match (head.id.filter(|_| head.method.is_some()), begins) {
                // Almost JSON: the sender waits for an answer.
                (Some(id), _) => {
                    let (code, message) = fault.of_request();
                    UnreadableMessage::Request(Message::failure(&id, code, &message))
                }
                (None, Some(b'{' | b'[')) => unreadable(&bytes),
                // Two peers that answer each other's noise would never stop.
                (None, _) if serde_json::from_slice::<serde::de::IgnoredAny>(&bytes).is_err() => {
                    tracing::debug!("a line on stdin is not JSON");
                    UnreadableMessage::Noise
                }
                (None, _) => unreadable(&bytes),
            });
        }
        Err(RefusedMessage { head, fault, .. }) => return Err(UnreadableMessage::of(head, fault)),
    };
    ClientMessage::of(&message).map_err(|why| match message.kind() {
        MessageKind::Result | MessageKind::Error => {
            UnreadableMessage::answered(message.id(), format!("the client's answer cannot be read: {why}"))
        }
        MessageKind::Notification => UnreadableMessage::Noise,
        MessageKind::Request | MessageKind::Other => {
            let id = message.id_text().unwrap_or_else(|| "null".into());
            UnreadableMessage::Request(Message::failure(&id, -32600, &format!("Invalid Request: {why}")))
        }
    })
}

/// Returns the size limit of a client's message. Only calls have large params.
pub fn of_client(start: &MessageStart<'_>, limits: &Limits) -> SizeLimit {
    let SizeLimit { bytes, values } = limits.of_client;
    match start.method().as_deref() {
        Some("tools/call") => limits.of_client,
        _ => SizeLimit { bytes, values: values / 10 },
    }
}

/// Returns the fault of a line that is not a JSON object.
fn unreadable(line: &[u8]) -> UnreadableMessage {
    let (code, what) = match serde_json::from_slice::<serde::de::IgnoredAny>(line) {
        Ok(_) => (-32600, "Invalid Request: not a JSON-RPC message".into()),
        Err(error) => (-32700, format!("Parse error: {error}")),
    };
    UnreadableMessage::Request(Message::failure("null", code, &what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Answered, reply::Reply, request::RequestBody};
    use nonet_wire::SizeLimit;
    use serde_json::{Value, json};
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

    /// Answers `ping`, panics at `tools/list`, and waits for ever at `prompts/list`.
    struct Shaky;

    impl Handler for Shaky {
        async fn handle(&self, request: RequestBody, _: &RequestContext) -> Answered {
            match request.method() {
                "tools/list" => panic!("a fault"),
                "prompts/list" => std::future::pending().await,
                _ => Ok(Reply::Verbatim(json!({ "protocolVersion": "2025-11-25" }).into())),
            }
        }

        fn initialized(&self, _: &Arc<ClientPeer>) {}

        fn ended(&self) {}
    }

    fn limits() -> Limits {
        let limit = SizeLimit { bytes: 1 << 20, values: 10_000 };
        Limits { of_client: limit, ..Limits::HIGHEST }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_costs_no_other_anything() {
        let (near, far) = tokio::io::duplex(1 << 16);
        let (reader, writer) = tokio::io::split(far);
        let lines = LineReader::new(reader, 1 << 20);
        let serving = tokio::spawn(serve(Shaky, lines, writer, limits(), CancellationToken::new(), || {}));
        let (answers, mut requests) = tokio::io::split(near);
        let mut answers = BufReader::new(answers).lines();
        let mut ask = async |id: i32, method: &str, params: Value| {
            let message = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
            requests.write_all(format!("{message}\n").as_bytes()).await.expect("it reads");
        };
        let hello = json!({
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" },
        });
        ask(1, "initialize", hello).await;
        ask(2, "tools/list", json!({})).await;
        ask(3, "prompts/list", json!({})).await;
        ask(4, "ping", json!({})).await;
        let mut next = async || {
            let line = answers.next_line().await.expect("it writes").expect("an answer");
            serde_json::from_str::<Value>(&line).expect("JSON")
        };
        assert_eq!(next().await["result"]["protocolVersion"], "2025-11-25");
        assert_eq!(next().await["error"]["code"], -32603);
        assert_eq!(next().await["id"], 4, "the third one has no answer yet");
        drop((requests, answers));
        tokio::time::timeout(DRAIN * 2, serving).await.expect("it ends with its client").expect("no panic");
    }
}
