//! The stdio transport, server side: one JSON-RPC message a line.
//!
//! Own code for two reasons. A `tools/call` is read straight into its type, where rmcp's untagged enums would build and
//! throw away a tree of values for each kind of message that it is not. And what rmcp's types do not have (`task` of a call,
//! `tasks` of the capabilities, both of 2025-11-25) is let through. Everything else is rmcp's.

use std::{future::Future, io};

use bytes::Bytes;
use rmcp::{
    RoleServer,
    model::{
        CallToolRequest, CallToolRequestParams, ClientRequest, ErrorCode, ErrorData, GetExtensions, GetMeta,
        JsonObject, JsonRpcMessage, MetaObject, ProtocolVersion, RequestId, ServerResult,
    },
    service::{RxJsonRpcMessage, TxJsonRpcMessage},
    transport::Transport,
};
use serde::Deserialize;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};

use super::tasks;
use crate::wire::{
    Head, Line, LineReader, LineWriter, Message, MessageFault, MessageKind, OF_CLIENT, Refused,
};

/// The JSON-RPC error code of an answer that cannot be used.
const UNUSABLE: i32 = -32603;

/// The client's end: stdin and stdout, or a socket.
pub(super) struct ClientLines<R, W> {
    lines: LineReader<R>,
    writer: LineWriter<W>,
    /// A message that is too long, until its end says whose it is.
    open: Option<Head>,
}

impl<R: AsyncRead + Unpin, W: AsyncWrite + Unpin> ClientLines<R, W> {
    pub fn new(lines: LineReader<R>, writer: W) -> Self {
        Self { lines, writer: LineWriter::new(writer), open: None }
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
        let writer = self.writer.clone();
        async move { writer.write(line).await }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            let unread = match self.lines.next().await? {
                Line::Whole(line) => match read(line.freeze()) {
                    Ok(message) => return Some(message),
                    Err(unread) => unread,
                },
                Line::TooLong(beginning) => {
                    let head = Head::of(&beginning);
                    tracing::warn!(
                        method = head.method,
                        "a message of the client is longer than {} bytes; skipped",
                        OF_CLIENT.bytes
                    );
                    match head.id {
                        Some(_) => Unreadable::of(head, MessageFault::TooLong(OF_CLIENT.bytes)),
                        None => {
                            self.open = Some(head);
                            continue;
                        }
                    }
                }
                Line::TooLongEnd(tail) => match self.open.take().map(|head| head.with_tail(&tail)) {
                    Some(head) => Unreadable::of(head, MessageFault::TooLong(OF_CLIENT.bytes)),
                    None => continue,
                },
            };
            match unread {
                Unreadable::Request(refusal) => self.writer.write_soon(refusal.into()),
                // Whoever asked the client must not wait for what was skipped.
                Unreadable::Answer(answer) => return Some(*answer),
                Unreadable::Noise => {}
            }
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

#[derive(Deserialize)]
struct CallParams {
    name: String,
    #[serde(default)]
    arguments: Option<JsonObject>,
    #[serde(default, rename = "_meta")]
    meta: Option<JsonObject>,
    #[serde(default)]
    task: Option<Value>,
    #[serde(default, rename = "inputResponses")]
    input_responses: Option<Value>,
    #[serde(default, rename = "requestState")]
    request_state: Option<Value>,
}

/// Reads one message.
fn read(line: Bytes) -> Result<RxJsonRpcMessage<RoleServer>, Unreadable> {
    let message = match Message::within(line, |_| OF_CLIENT) {
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
