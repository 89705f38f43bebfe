//! JSON-RPC over a pair of byte streams, one message a line: the stdio transport, client side.
//!
//! Own code because a gateway must outlive what servers print: text that is no JSON, lines without
//! end, answers that are no JSON-RPC. None of it ends the connection, and no request that such a
//! line answered is left waiting.

use std::{future::Future, io, sync::Arc};

use rmcp::{
    RoleClient,
    model::{ClientRequest, GetMeta, JsonRpcMessage, JsonRpcRequest, RequestId},
    service::{RxJsonRpcMessage, TxJsonRpcMessage},
    transport::Transport,
};
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    sync::Mutex,
};
use tokio_util::sync::DropGuard;

use super::{inbox::Inbox, tap::Tap};
use crate::{
    lines::{Line, LineReader},
    web::MAX_ANSWER,
};

type Writer = Arc<Mutex<Option<Box<dyn AsyncWrite + Send + Unpin>>>>;

/// One connection over byte streams.
pub struct Lines {
    lines: LineReader<Box<dyn AsyncRead + Send + Unpin>>,
    inbox: Inbox,
    writer: Writer,
    pub tap: Tap,
    /// Tells the connection that this transport is gone, by being dropped with it.
    _open: DropGuard,
}

impl Lines {
    /// A connection that reads what the server writes and writes what it reads.
    pub fn new(
        server: Arc<str>,
        reader: Box<dyn AsyncRead + Send + Unpin>,
        writer: Box<dyn AsyncWrite + Send + Unpin>,
        open: DropGuard,
    ) -> Self {
        Self::with_max_line(server, reader, writer, open, MAX_ANSWER)
    }

    fn with_max_line(
        server: Arc<str>,
        reader: Box<dyn AsyncRead + Send + Unpin>,
        writer: Box<dyn AsyncWrite + Send + Unpin>,
        open: DropGuard,
        limit: usize,
    ) -> Self {
        Self {
            lines: LineReader::new(reader, limit),
            inbox: Inbox::new(server, "a line of stdout"),
            writer: Arc::new(Mutex::new(Some(writer))),
            tap: Tap::default(),
            _open: open,
        }
    }

    /// Writes one message.
    pub fn write<T: Serialize>(
        &self,
        message: &T,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static + use<T> {
        self.write_line(serde_json::to_vec(message))
    }

    fn write_line(
        &self,
        line: serde_json::Result<Vec<u8>>,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static + use<> {
        let writer = self.writer.clone();
        async move {
            let mut line = line.map_err(io::Error::other)?;
            line.push(b'\n');
            let mut writer = writer.lock().await;
            let Some(writer) = writer.as_mut() else { return Err(io::ErrorKind::BrokenPipe.into()) };
            writer.write_all(&line).await?;
            writer.flush().await
        }
    }

    /// The next JSON value, `None` at the end of the stream. Nothing is lost if the future is
    /// dropped before it is done.
    pub async fn read(&mut self) -> Option<Value> {
        loop {
            if let Some(message) = self.inbox.pop() {
                return Some(message);
            }
            match self.lines.next().await? {
                Line::Whole(line) => self.inbox.take(&line),
                Line::TooLong(head) => self.inbox.too_long(head.as_bytes()),
                Line::TooLongEnd(tail) => self.inbox.too_long_end(&tail),
            }
        }
    }
}

/// A call as it is written. rmcp would turn its arguments into a tree of values first, once for each layer.
#[derive(Serialize)]
struct Call<'a> {
    jsonrpc: &'static str,
    id: &'a RequestId,
    method: &'static str,
    params: CallParams<'a>,
}

#[derive(Serialize)]
struct CallParams<'a> {
    #[serde(rename = "_meta", skip_serializing_if = "Map::is_empty")]
    meta: &'a Map<String, Value>,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments: Option<&'a Map<String, Value>>,
}

/// A message as it is sent.
pub fn to_json(message: &TxJsonRpcMessage<RoleClient>) -> serde_json::Result<Vec<u8>> {
    let call = match message {
        JsonRpcMessage::Request(request) => as_call(request),
        _ => None,
    };
    match call {
        Some(call) => serde_json::to_vec(&call),
        None => serde_json::to_vec(message),
    }
}

/// A request as a call that can be written at once.
fn as_call(request: &JsonRpcRequest<ClientRequest>) -> Option<Call<'_>> {
    let ClientRequest::CallToolRequest(call) = &request.request else { return None };
    let params = &call.params;
    if params.meta.is_some() || params.input_responses.is_some() || params.request_state.is_some() {
        return None;
    }
    let params = CallParams {
        meta: &request.request.get_meta().0,
        name: &params.name,
        arguments: params.arguments.as_ref(),
    };
    Some(Call { jsonrpc: "2.0", id: &request.id, method: "tools/call", params })
}

impl Transport<RoleClient> for Lines {
    type Error = io::Error;

    fn send(
        &mut self,
        mut message: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        self.tap.outgoing(&mut message);
        self.write_line(to_json(&message))
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        loop {
            let message = self.read().await?;
            match self.tap.incoming(message) {
                Ok(Some(message)) => return Some(message),
                Ok(None) => {}
                Err(fault) => self.inbox.note_noise(&format!("no JSON-RPC message: {fault}")),
            }
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        // Dropping the writer closes the server's stdin: it is asked to leave.
        self.writer.lock().await.take();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    async fn read_all(text: &[u8], max: usize) -> Vec<Value> {
        let reader = std::io::Cursor::new(text.to_vec());
        let open = tokio_util::sync::CancellationToken::new().drop_guard();
        let writer = Box::new(tokio::io::sink());
        let mut lines = Lines::with_max_line("s".into(), Box::new(reader), writer, open, max);
        let mut all = Vec::new();
        while let Some(message) = lines.read().await {
            all.push(message);
        }
        all
    }

    #[tokio::test]
    async fn noise_is_skipped_and_batches_are_opened() {
        let text = b"hello\n\n{\"a\":1}\r\n[{\"b\":2},{\"c\":3}]\n\xff\xfe\n{\"d\":4}\n";
        assert_eq!(
            read_all(text, 1000).await,
            [json!({"a":1}), json!({"b":2}), json!({"c":3}), json!({"d":4})]
        );
    }

    #[tokio::test]
    async fn an_answer_that_is_almost_json_fails_its_request() {
        let text =
            b"{\"jsonrpc\":\"2.0\",\"id\":3,\"result\":{\"text\":\"\\ud83d\"}}\n{\"id\":4,\"result\":NaN}\n";
        let all = read_all(text, 1000).await;
        assert_eq!(all.len(), 2, "{all:?}");
        assert_eq!((&all[0]["id"], &all[1]["id"]), (&json!(3), &json!(4)));
        assert_eq!(all[0]["error"]["code"], -32603);
    }

    #[tokio::test]
    async fn a_line_without_end_fails_its_request_alone() {
        let mut text = b"{\"jsonrpc\":\"2.0\",\"id\": 7,\"result\":\"".to_vec();
        text.extend(std::iter::repeat_n(b'x', 300_000));
        text.extend(b"\"}\n{\"after\":true}\n");
        let all = read_all(&text, 1000).await;
        assert_eq!(all.len(), 2, "{all:?}");
        assert_eq!(all[0]["id"], 7);
        assert!(all[0]["error"]["message"].as_str().is_some_and(|m| m.contains("longer than")));
        assert_eq!(all[1], json!({"after": true}));
    }
}
