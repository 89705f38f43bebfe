//! The stdio transport, server side: one JSON-RPC message a line.
//!
//! Own code for two reasons. A `tools/call` is read straight into its type, where rmcp's untagged enums would build and
//! throw away a tree of values for each kind of message that it is not. And what rmcp's types do not have (`task` of a call,
//! `tasks` of the capabilities, both of 2025-11-25) is let through. Everything else is rmcp's.

use std::{collections::HashSet, future::Future, io};

use bytes::Bytes;
use rmcp::{
    RoleServer,
    model::{
        CallToolRequest, CallToolRequestParams, ClientNotification, ClientRequest, ErrorCode, ErrorData,
        GetExtensions, GetMeta, JsonObject, JsonRpcMessage, MetaObject, ProtocolVersion, RequestId,
        ServerResult,
    },
    service::{RxJsonRpcMessage, TxJsonRpcMessage},
    transport::Transport,
};
use serde::Deserialize;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};

use super::tasks;
use crate::wire::{
    Head, Heavy, Limits, Line, LineReader, LineWriter, Message, MessageFault, MessageKind, Refused, Scanned,
    SizeLimit, Weight,
};

/// The JSON-RPC error code of an answer that cannot be used.
const UNUSABLE: i32 = -32603;
/// The JSON-RPC error code of an answer to one request too many (JSON-RPC's range for servers).
const BUSY: i32 = -32000;
/// How many requests of one client may have no answer yet.
const MOST_UNANSWERED: usize = 1_000;

/// The client's end: stdin and stdout, or a socket.
pub(super) struct ClientLines<R, W> {
    lines: LineReader<R>,
    writer: LineWriter<W>,
    limits: Limits,
    /// A line that is being read.
    reading: Heavy<Result<RxJsonRpcMessage<RoleServer>, Unreadable>>,
    /// A message that is too long, until its end says whose it is.
    open: Option<Head>,
    /// Requests that have no answer yet.
    unanswered: HashSet<RequestId>,
}

impl<R: AsyncRead + Unpin, W: AsyncWrite + Unpin> ClientLines<R, W> {
    /// The lines are to be of the limits as well.
    pub fn new(lines: LineReader<R>, writer: W, limits: Limits) -> Self {
        let writer = LineWriter::new(writer, limits.unread);
        Self { lines, writer, limits, reading: Heavy::Idle, open: None, unanswered: HashSet::new() }
    }
}

impl<R, W> ClientLines<R, W> {
    /// Counts a request until it is answered or cancelled. Of more than [`MOST_UNANSWERED`], the last is refused: reading must
    /// go on, since what a client answers to questions may be what the others wait for.
    fn counted(
        &mut self,
        message: RxJsonRpcMessage<RoleServer>,
    ) -> Result<RxJsonRpcMessage<RoleServer>, Unreadable> {
        match &message {
            JsonRpcMessage::Request(request) if self.unanswered.len() >= MOST_UNANSWERED => {
                let what =
                    format!("{MOST_UNANSWERED} requests are in flight; wait for answers, then send it again");
                let id = serde_json::to_string(&request.id).unwrap_or_default();
                return Err(Unreadable::Request(Message::failure(&id, BUSY, &what)));
            }
            JsonRpcMessage::Request(request) => {
                self.unanswered.insert(request.id.clone());
            }
            JsonRpcMessage::Notification(notification) => {
                if let ClientNotification::CancelledNotification(cancelled) = &notification.notification
                    && let Some(id) = &cancelled.params.request_id
                {
                    self.unanswered.remove(id);
                }
            }
            _ => {}
        }
        Ok(message)
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
        match &message {
            JsonRpcMessage::Response(response) => drop(self.unanswered.remove(&response.id)),
            JsonRpcMessage::Error(error) => drop(error.id.as_ref().map(|id| self.unanswered.remove(id))),
            _ => {}
        }
        let line = match &message {
            JsonRpcMessage::Response(response) => match &response.result {
                ServerResult::InitializeResult(result)
                    if result.protocol_version == ProtocolVersion::V_2025_11_25 =>
                {
                    serde_json::to_value(&message).and_then(|mut message| {
                        message["result"]["capabilities"]["tasks"] = tasks::capability();
                        serde_json::to_vec(&message)
                    })
                }
                _ => serde_json::to_vec(&message),
            },
            _ => serde_json::to_vec(&message),
        };
        // It waits from now on: what a client does not read must be known before more is read of it.
        let line = line.map(|line| self.writer.line(line)).map_err(io::Error::other);
        async move { line?.write().await }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            if let Some((read, _)) = self.reading.done().await {
                match read.and_then(|message| self.counted(message)) {
                    Ok(message) => return Some(message),
                    Err(Unreadable::Request(refusal)) => self.writer.write_soon(refusal.into()),
                    // Whoever asked the client must not wait for what was skipped.
                    Err(Unreadable::Answer(answer)) => return Some(*answer),
                    Err(Unreadable::Noise) => {}
                }
            }
            // A client that does not read what it asks for may not ask for more.
            self.writer.backlog().unstuck().await;
            let longest = self.limits.of_client.bytes;
            let unread = match self.lines.next().await? {
                Line::Whole(line) => {
                    let limits = self.limits;
                    self.reading.begin(Weight::guessed(&line), move || read(line.freeze(), &limits));
                    continue;
                }
                Line::TooLong(beginning) => {
                    let head = Head::of(&beginning);
                    tracing::warn!(
                        method = head.shown_method(),
                        "a message of the client is longer than {longest} bytes; skipped"
                    );
                    match head.id {
                        Some(_) => Unreadable::of(head, MessageFault::TooLong(longest)),
                        None => {
                            self.open = Some(head);
                            continue;
                        }
                    }
                }
                Line::TooLongEnd(tail) => match self.open.take().map(|head| head.with_tail(&tail)) {
                    Some(head) => Unreadable::of(head, MessageFault::TooLong(longest)),
                    None => continue,
                },
            };
            self.reading = Heavy::Done(Err(unread));
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        self.writer.close().await;
        Ok(())
    }
}

/// What becomes of a message that was not read.
enum Unreadable {
    /// It gets this answer.
    Request(Bytes),
    /// It answers a question of ours, which fails like this.
    Answer(Box<RxJsonRpcMessage<RoleServer>>),
    /// Nothing.
    Noise,
}

impl Unreadable {
    fn of(head: Head, fault: MessageFault) -> Self {
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

/// The params of a `tools/call`.
#[derive(Deserialize)]
pub(super) struct CallParams {
    pub name: String,
    #[serde(default)]
    pub arguments: Option<JsonObject>,
    #[serde(default, rename = "_meta")]
    pub meta: Option<JsonObject>,
    #[serde(default)]
    pub task: Option<Value>,
    #[serde(default, rename = "inputResponses")]
    pub input_responses: Option<Value>,
    #[serde(default, rename = "requestState")]
    pub request_state: Option<Value>,
}

/// Reads one message.
fn read(line: Bytes, limits: &Limits) -> Result<RxJsonRpcMessage<RoleServer>, Unreadable> {
    let scanned = Scanned::of(line, limits.of_client.values);
    let message = match scanned.within(|head| of_client(head, limits)) {
        Ok(message) => message,
        Err(Refused { head, fault, bytes }) if fault.is_syntax() => {
            let begins = bytes.trim_ascii_start().first();
            return Err(match (head.id.filter(|_| head.method.is_some()), begins) {
                // Almost JSON. Whoever sends it waits for an answer.
                (Some(id), _) => {
                    let (code, message) = fault.of_request();
                    Unreadable::Request(Message::failure(&id, code, &message))
                }
                (None, Some(b'{' | b'[')) => unreadable(&bytes),
                // Two who answer each other's noise never end.
                (None, _) if serde_json::from_slice::<serde::de::IgnoredAny>(&bytes).is_err() => {
                    tracing::debug!("a line on stdin is not JSON");
                    Unreadable::Noise
                }
                (None, _) => unreadable(&bytes),
            });
        }
        Err(Refused { head, fault, .. }) => return Err(Unreadable::of(head, fault)),
    };
    if let Some(call) = call(&message) {
        return Ok(call);
    }
    serde_json::from_slice(message.bytes()).map_err(|error| {
        if matches!(message.kind(), MessageKind::Result | MessageKind::Error) {
            return Unreadable::answered(
                message.id(),
                format!("the client's answer cannot be read: {error}"),
            );
        }
        let id = message.id_text().unwrap_or_else(|| "null".into());
        let (code, what) = match error.is_data() {
            true => (-32600, "Invalid Request"),
            false => (-32700, "Parse error"),
        };
        Unreadable::Request(Message::failure(&id, code, &format!("{what}: {error}")))
    })
}

/// How large a message of a client may be. Arguments of calls are read once; rmcp reads everything else many times over.
pub(super) fn of_client(head: &Head, limits: &Limits) -> SizeLimit {
    let SizeLimit { bytes, values } = limits.of_client;
    match head.method.as_deref() {
        Some("tools/call") => limits.of_client,
        _ => SizeLimit { bytes, values: values / 10 },
    }
}

/// The answer to a line that is not a JSON object.
fn unreadable(line: &[u8]) -> Unreadable {
    let (code, what) = match serde_json::from_slice::<serde::de::IgnoredAny>(line) {
        Ok(_) => (-32600, "Invalid Request: not a JSON-RPC message".into()),
        Err(error) => (-32700, format!("Parse error: {error}")),
    };
    Unreadable::Request(Message::failure("null", code, &what))
}

/// A `tools/call`, if that is what the message is and nothing in it is out of the ordinary.
fn call(message: &Message) -> Option<RxJsonRpcMessage<RoleServer>> {
    if message.method().as_deref() != Some("tools/call") || !message.is_versioned() {
        return None;
    }
    let given: CallParams = serde_json::from_slice(message.params()?).ok()?;
    if given.input_responses.is_some() || given.request_state.is_some() {
        return None;
    }
    let mut params = CallToolRequestParams::new(given.name);
    params.arguments = given.arguments;
    let mut request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
    if let Some(meta) = given.meta {
        request.get_meta_mut().0 = MetaObject(meta);
    }
    if given.task.is_some_and(|task| task.is_object()) {
        request.extensions_mut().insert(tasks::WantsTask);
    }
    Some(JsonRpcMessage::request(request, message.id()?))
}
