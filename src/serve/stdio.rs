//! The stdio transport, server side: one JSON-RPC message per line.
//!
//! Own code for three reasons. A `tools/call` is parsed straight into its type, where rmcp's untagged enums would build and
//! discard a tree of values for each kind of message that does not match. After a handshake, it is answered outside rmcp's
//! loop, which takes several tasks and channels for each (`direct`). And fields that rmcp's types lack (`task` of a call,
//! `tasks` of the capabilities, both of 2025-11-25) are passed through. rmcp does everything else.

use std::{
    future::Future,
    io,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use bytes::Bytes;
use nonet_base::json::set_member;
use nonet_wire::{
    HeavyParse, Limits, Line, LineReader, LineWriter, Message, MessageFault, MessageHead, MessageKind,
    MessageStart, RefusedMessage, ScannedMessage, SizeLimit, Weight,
};
use rmcp::{
    RoleServer,
    model::{
        ClientNotification, CustomResult, ErrorCode, ErrorData, JsonRpcMessage, ProtocolVersion, RequestId,
        ServerResult,
    },
    service::{
        RunningService, RxJsonRpcMessage, ServerInitializeError, TxJsonRpcMessage, serve_server_with_ct,
    },
    transport::Transport,
};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use super::{
    NonetServer,
    direct::{CallResponder, ToolCall, UnansweredRequests},
    tasks,
    verbatim::VerbatimServer,
};

/// The JSON-RPC error code for an unusable answer.
const UNUSABLE: i32 = -32603;
/// The JSON-RPC error code for one request too many (from JSON-RPC's range for servers).
const BUSY: i32 = -32000;
/// How long calls in flight may continue after their client has closed its end and this side has stopped: as long as rmcp
/// gives other requests.
const DRAIN: Duration = Duration::from_secs(5);
const DRAIN_STOPPED: Duration = Duration::from_secs(2);
/// The maximum number of one client's unanswered requests.
const MOST_UNANSWERED: usize = 1_000;

/// The client's side: stdin and stdout, or a socket.
pub(super) struct ClientLines<R, W> {
    lines: LineReader<R>,
    writer: LineWriter<W>,
    limits: Limits,
    /// A line being parsed.
    reading: HeavyParse<Result<ReadMessage, UnreadableMessage>>,
    /// A message that is too long, kept until its end gives its id.
    open: Option<MessageHead>,
    /// Unanswered requests.
    unanswered: Arc<UnansweredRequests>,
    /// Answers calls once the handshake is done.
    direct: Arc<OnceLock<CallResponder>>,
    /// When the client closed its end.
    left: Option<Instant>,
}

/// A message that was read.
enum ReadMessage {
    Call(Box<ToolCall>),
    Message(Box<RxJsonRpcMessage<RoleServer>>),
}

/// Serves one client over lines that are subject to the same limits.
pub(super) async fn serve<R, W>(
    server: NonetServer,
    lines: LineReader<R>,
    writer: W,
    limits: Limits,
) -> Result<RunningService<RoleServer, VerbatimServer>, ServerInitializeError>
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let client = ClientLines::new(lines, writer, limits);
    let (direct, ended) = (client.direct.clone(), CancellationToken::new());
    let serving = serve_server_with_ct(VerbatimServer(server.clone()), client, ended.clone());
    let running = Box::pin(serving).await?;
    // A client of the stateless era has made no handshake.
    if running.peer().peer_info().is_some() {
        let _ = direct.set(CallResponder::new(server, running.peer().clone(), &ended));
    }
    Ok(running)
}

impl<R: AsyncRead + Unpin, W: AsyncWrite + Unpin> ClientLines<R, W> {
    fn new(lines: LineReader<R>, writer: W, limits: Limits) -> Self {
        let writer = LineWriter::new(writer, limits.unread);
        let (unanswered, direct) = (Arc::default(), Arc::default());
        Self { lines, writer, limits, reading: HeavyParse::Idle, open: None, unanswered, direct, left: None }
    }
}

impl<R, W: AsyncWrite + Unpin + Send + 'static> ClientLines<R, W> {
    /// Starts a call here, or counts a request until it is answered or cancelled. Returns the message for rmcp. Beyond
    /// [`MOST_UNANSWERED`] requests, the last one is refused: reading must go on, since the others may be waiting for the
    /// client's answers to questions.
    fn counted(&self, read: ReadMessage) -> Result<Option<RxJsonRpcMessage<RoleServer>>, UnreadableMessage> {
        let id = match &read {
            ReadMessage::Call(call) => Some(&call.id),
            ReadMessage::Message(message) => match &**message {
                JsonRpcMessage::Request(request) => Some(&request.id),
                JsonRpcMessage::Notification(notification) => {
                    if let ClientNotification::CancelledNotification(cancelled) = &notification.notification
                        && let Some(id) = &cancelled.params.request_id
                    {
                        self.unanswered.end(id);
                    }
                    None
                }
                _ => None,
            },
        };
        if let Some(id) = id
            && self.unanswered.count() >= MOST_UNANSWERED
        {
            let what =
                format!("{MOST_UNANSWERED} requests are in flight; wait for answers, then send it again");
            let id = serde_json::to_string(id).unwrap_or_default();
            return Err(UnreadableMessage::Request(Message::failure(&id, BUSY, &what)));
        }
        let message = match (read, self.direct.get()) {
            (ReadMessage::Call(call), Some(direct)) => {
                match direct.begin(*call, &self.unanswered, &self.writer) {
                    None => return Ok(None),
                    Some(call) => call.into_message(),
                }
            }
            (ReadMessage::Call(call), None) => call.into_message(),
            (ReadMessage::Message(message), _) => *message,
        };
        if let JsonRpcMessage::Request(request) = &message {
            self.unanswered.begin(request.id.clone(), None);
        }
        Ok(Some(message))
    }
}

impl<R, W> Transport<RoleServer> for ClientLines<R, W>
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    type Error = io::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let is_wanted = match &message {
            JsonRpcMessage::Response(response) => self.unanswered.end(&response.id),
            JsonRpcMessage::Error(error) => error.id.as_ref().is_none_or(|id| self.unanswered.end(id)),
            _ => true,
        };
        let line = match &message {
            JsonRpcMessage::Response(response) => match &response.result {
                ServerResult::InitializeResult(result)
                    if result.protocol_version == ProtocolVersion::V_2025_11_25 =>
                {
                    serde_json::to_value(&message).and_then(|mut message| {
                        if let Some(capabilities) = message.pointer_mut("/result/capabilities") {
                            set_member(capabilities, "tasks", tasks::capability());
                        }
                        serde_json::to_vec(&message)
                    })
                }
                // The result of a call, as JSON.
                ServerResult::CustomResult(CustomResult(Value::String(json))) => {
                    serde_json::to_string(&response.id).map(|id| {
                        format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{json}}}").into_bytes()
                    })
                }
                _ => serde_json::to_vec(&message),
            },
            _ => serde_json::to_vec(&message),
        };
        // The line counts as waiting from now on: unread output must be known before more input is read.
        let line = line.map(|line| is_wanted.then(|| self.writer.line(line))).map_err(io::Error::other);
        async move {
            match line? {
                Some(line) => line.write().await,
                // A request with the same id was answered, and nobody waits for two answers.
                None => Ok(()),
            }
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            if let Some((read, _)) = self.reading.done().await {
                match read.and_then(|read| self.counted(read)) {
                    Ok(Some(message)) => return Some(message),
                    // Gives the writers their turn in a burst.
                    Ok(None) => tokio::task::consume_budget().await,
                    Err(UnreadableMessage::Request(refusal)) => self.writer.write_soon(refusal.into()),
                    // The caller that asked the client must not wait for a skipped answer.
                    Err(UnreadableMessage::Answer(answer)) => return Some(*answer),
                    Err(UnreadableMessage::Noise) => {}
                }
            }
            // A client that does not read its answers may not send more requests.
            self.writer.backlog().unstuck().await;
            let longest = self.limits.of_client.bytes;
            let Some(line) = self.lines.next().await else {
                self.left.get_or_insert_with(Instant::now);
                return None;
            };
            let unread = match line {
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

    async fn close(&mut self) -> io::Result<()> {
        if let Some(direct) = self.direct.get() {
            direct.drain(self.left.map_or(DRAIN_STOPPED, |left| DRAIN.saturating_sub(left.elapsed()))).await;
        }
        self.writer.close().await;
        Ok(())
    }
}

/// What happens to a message that could not be read.
enum UnreadableMessage {
    /// A request: it gets this answer.
    Request(Bytes),
    /// An answer to our request, which fails with this.
    Answer(Box<RxJsonRpcMessage<RoleServer>>),
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
        Self::Answer(Box::new(JsonRpcMessage::error(ErrorData::new(ErrorCode(UNUSABLE), what, None), id)))
    }
}

/// Reads one message.
fn read(line: Bytes, limits: &Limits) -> Result<ReadMessage, UnreadableMessage> {
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
    if let Some(call) = ToolCall::of(&message) {
        return Ok(ReadMessage::Call(Box::new(call)));
    }
    serde_json::from_slice(message.bytes()).map(|message| ReadMessage::Message(Box::new(message))).map_err(
        |error| {
            if matches!(message.kind(), MessageKind::Result | MessageKind::Error) {
                return UnreadableMessage::answered(
                    message.id(),
                    format!("the client's answer cannot be read: {error}"),
                );
            }
            let id = message.id_text().unwrap_or_else(|| "null".into());
            let (code, what) = match error.is_data() {
                true => (-32600, "Invalid Request"),
                false => (-32700, "Parse error"),
            };
            UnreadableMessage::Request(Message::failure(&id, code, &format!("{what}: {error}")))
        },
    )
}

/// Returns the size limit of a client's message. Arguments of calls are parsed once; rmcp parses everything else many times.
pub(super) fn of_client(start: &MessageStart<'_>, limits: &Limits) -> SizeLimit {
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
