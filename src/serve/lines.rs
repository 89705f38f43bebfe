//! The stdio transport, server side: one JSON-RPC message a line.
//!
//! Own code for two reasons. A `tools/call` is read straight into its type, where rmcp's untagged enums would build and
//! throw away a tree of values for each kind of message that it is not. And what rmcp's types do not have (`task` of a call,
//! `tasks` of the capabilities, both of 2025-11-25) is let through. Everything else is rmcp's.

use std::{future::Future, io, sync::Arc};

use rmcp::{
    RoleServer,
    model::{
        CallToolRequest, CallToolRequestParams, ClientRequest, GetExtensions, GetMeta, JsonObject,
        JsonRpcMessage, MetaObject, ProtocolVersion, RequestId, ServerResult,
    },
    service::{RxJsonRpcMessage, TxJsonRpcMessage},
    transport::Transport,
};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    sync::Mutex,
};

use super::{MAX_MESSAGE, tasks};
use crate::lines::{Line, LineReader, id_at_end, id_in};

fn too_long() -> String {
    format!("Invalid Request: longer than {MAX_MESSAGE} bytes")
}

/// The client's end: stdin and stdout, or a socket.
pub(super) struct ClientLines<R, W> {
    lines: LineReader<R>,
    writer: Arc<Mutex<Option<W>>>,
}

impl<R: AsyncRead + Unpin, W: AsyncWrite + Unpin> ClientLines<R, W> {
    pub fn new(lines: LineReader<R>, writer: W) -> Self {
        Self { lines, writer: Arc::new(Mutex::new(Some(writer))) }
    }
}

/// Writes one line.
async fn write<W: AsyncWrite + Unpin>(
    writer: &Mutex<Option<W>>,
    line: serde_json::Result<Vec<u8>>,
) -> io::Result<()> {
    let mut line = line.map_err(io::Error::other)?;
    line.push(b'\n');
    let mut writer = writer.lock().await;
    let Some(writer) = writer.as_mut() else { return Err(io::ErrorKind::NotConnected.into()) };
    writer.write_all(&line).await?;
    writer.flush().await
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
        async move { write(&writer, line).await }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            let (id, code, why) = match self.lines.next().await? {
                Line::Whole(line) => match read(&line) {
                    Ok(message) => return Some(message),
                    Err(error) if error.is_syntax() || error.is_eof() => {
                        let text = String::from_utf8_lossy(&line);
                        // Almost JSON: a lone surrogate, or too deep. Whoever sends it waits for an answer.
                        match id_in(&text).filter(|_| text.contains("\"method\"")) {
                            Some(id) => (Some(id), -32700, format!("Parse error: {error}")),
                            None if text.trim_start().starts_with(['{', '[']) => {
                                (None, -32700, format!("Parse error: {error}"))
                            }
                            // Two who answer each other's noise never end.
                            None => {
                                tracing::debug!(%error, "a line on stdin is no JSON");
                                continue;
                            }
                        }
                    }
                    Err(error) => {
                        let id =
                            serde_json::from_slice::<Value>(&line).ok().and_then(|m| m.get("id").cloned());
                        (id, -32600, format!("Invalid Request: {error}"))
                    }
                },
                Line::TooLong(head) => match id_in(&head) {
                    Some(id) => (Some(id), -32600, too_long()),
                    None => continue,
                },
                Line::TooLongEnd(tail) => match id_at_end(&tail) {
                    Some(id) => (Some(id), -32600, too_long()),
                    None => continue,
                },
            };
            let id = id.filter(|id| id.is_number() || id.is_string()).unwrap_or_default();
            let error = json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": why } });
            // In a task of its own: this future may be dropped, and half a line with it.
            let writer = self.writer.clone();
            tokio::spawn(async move {
                let _ = write(&writer, serde_json::to_vec(&error)).await;
            });
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        self.writer.lock().await.take();
        Ok(())
    }
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    method: Option<std::borrow::Cow<'a, str>>,
    id: Option<RequestId>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    jsonrpc: Option<std::borrow::Cow<'a, str>>,
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
fn read(line: &[u8]) -> serde_json::Result<RxJsonRpcMessage<RoleServer>> {
    match call(line) {
        Some(call) => Ok(call),
        None => serde_json::from_slice(line),
    }
}

/// A `tools/call`, if that is what the line is and nothing in it is out of the ordinary.
fn call(line: &[u8]) -> Option<RxJsonRpcMessage<RoleServer>> {
    let message: Message<'_> = serde_json::from_slice(line).ok()?;
    if message.method.as_deref() != Some("tools/call") || message.jsonrpc.as_deref() != Some("2.0") {
        return None;
    }
    let given: CallParams = serde_json::from_str(message.params?.get()).ok()?;
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
    Some(JsonRpcMessage::request(request, message.id?))
}
