//! The stdio transport, client side: JSON-RPC over a pair of byte streams, one message per line.
//!
//! Own code because a gateway must tolerate whatever servers print: text that is not JSON, endless lines, answers that are
//! not JSON-RPC. None of it ends the connection, and a request answered by such a line does not wait for ever.

use std::{future::Future, io, sync::Arc};

use nonet_wire::{
    Expectations, HeavyParse, Inbox, Limits, Line, LineReader, LineWriter, Message, Scan, Weight,
    http::HttpFault, judge, scan,
};
use rmcp::{
    RoleClient,
    model::{ClientRequest, GetMeta, JsonRpcMessage, RequestId},
    service::{RxJsonRpcMessage, TxJsonRpcMessage},
    transport::Transport,
};
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::DropGuard;

use super::{
    Era,
    direct::DirectCalls,
    tap::{IncomingMessage, Tap},
};

/// The room for a call on its way to a server, in bytes: that of most calls.
const USUAL_CALL: usize = 256;

/// One connection over byte streams.
pub(super) struct Lines {
    lines: LineReader<Box<dyn AsyncRead + Send + Unpin>>,
    inbox: Inbox,
    /// A line being scanned.
    scanning: HeavyParse<Scan>,
    /// A message being parsed.
    reading: HeavyParse<(Message, IncomingMessage)>,
    writer: ServerWriter,
    pub tap: Tap,
    /// Signals to the connection, on drop, that this transport is gone.
    _open: DropGuard,
}

impl Lines {
    /// Returns a connection that reads the server's output and writes to its input.
    pub(super) fn new(
        server: Arc<str>,
        reader: Box<dyn AsyncRead + Send + Unpin>,
        writer: Box<dyn AsyncWrite + Send + Unpin>,
        tap: Tap,
        open: DropGuard,
    ) -> Self {
        let Limits { of_server, unread, .. } = *tap.limits();
        Self {
            lines: LineReader::new(reader, of_server.bytes),
            inbox: Inbox::new(server, "a line of stdout"),
            scanning: HeavyParse::Idle,
            reading: HeavyParse::Idle,
            writer: ServerWriter(LineWriter::new(writer, unread)),
            tap,
            _open: open,
        }
    }

    /// Returns the writer to the server.
    pub(super) fn writer(&self) -> &ServerWriter {
        &self.writer
    }

    /// Returns the calls that bypass rmcp, which are enabled from now on.
    pub(super) fn direct(&self, era: Era) -> DirectCalls {
        DirectCalls::on_lines(self.writer.clone(), self.tap.open.clone(), era)
    }

    /// Returns the next message, `None` at the end of the stream. Dropping the future early loses nothing.
    pub(super) async fn read(&mut self) -> Option<Message> {
        loop {
            if let Some((scan, _)) = self.scanning.done().await {
                self.inbox.take(scan, &self.tap);
                self.inbox.refusals().for_each(|refusal| self.writer.write_soon(refusal.into()));
            }
            if let Some(message) = self.inbox.pop() {
                return Some(message);
            }
            let tap = &self.tap;
            match self.lines.next_within(|beginning| judge(beginning, tap)).await? {
                Line::Whole(line) => {
                    let most = tap.limits().answer.values;
                    self.scanning.begin(Weight::scanned(line.len()), move || scan(line.freeze(), most));
                }
                Line::TooLong(beginning) => self.inbox.too_long(&beginning, tap),
                Line::TooLongEnd(tail) => self.inbox.too_long_end(&tail),
            }
            self.inbox.refusals().for_each(|refusal| self.writer.write_soon(refusal.into()));
        }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.tap.open.close();
    }
}

/// Writes to a server's input.
#[derive(Clone)]
pub(super) struct ServerWriter(LineWriter<Box<dyn AsyncWrite + Send + Unpin>>);

impl ServerWriter {
    /// Writes one message. A request to a server that does not read fails at once. Answers to such a server's requests are
    /// dropped: the gateway must keep reading its output, or the server might never read again.
    pub(super) fn write(
        &self,
        message: serde_json::Result<Vec<u8>>,
        is_request: bool,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static + use<> {
        let backlog = self.0.backlog();
        let line = match message {
            _ if is_request && backlog.is_stuck() => {
                Err(io::Error::other(HttpFault::Unsent(unread(backlog.bytes()))))
            }
            _ if backlog.is_full() => Ok(None),
            message => message.map(|message| Some(self.0.line(message))).map_err(io::Error::other),
        };
        async move {
            match line? {
                Some(line) => line.write().await,
                None => Ok(()),
            }
        }
    }

    /// Writes a message in a separate task, unless far too much is queued already.
    pub(super) fn write_soon(&self, message: Vec<u8>) {
        self.0.write_soon(message);
    }

    async fn close(&self) {
        self.0.close().await;
    }
}

/// Returns the error for a request to a server that leaves `bytes` unread.
pub(super) fn unread(bytes: usize) -> String {
    format!("it does not read its input: {bytes} bytes are waiting")
}

/// Returns the JSON of a call. rmcp would first convert its arguments into a tree of values, once per layer.
pub(super) fn call_to_json(
    id: &RequestId,
    meta: Option<&impl Serialize>,
    name: &str,
    arguments: Option<&Map<String, Value>>,
) -> serde_json::Result<Vec<u8>> {
    let mut json = Vec::with_capacity(USUAL_CALL);
    json.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
    serde_json::to_writer(&mut json, id)?;
    json.extend_from_slice(b",\"method\":\"tools/call\",\"params\":{");
    if let Some(meta) = meta {
        json.extend_from_slice(b"\"_meta\":");
        serde_json::to_writer(&mut json, meta)?;
        json.push(b',');
    }
    json.extend_from_slice(b"\"name\":");
    serde_json::to_writer(&mut json, name)?;
    if let Some(arguments) = arguments {
        json.extend_from_slice(b",\"arguments\":");
        serde_json::to_writer(&mut json, arguments)?;
    }
    json.extend_from_slice(b"}}");
    Ok(json)
}

/// Returns the JSON of an outgoing message.
pub(super) fn to_json(message: &TxJsonRpcMessage<RoleClient>) -> serde_json::Result<Vec<u8>> {
    if let JsonRpcMessage::Request(request) = message
        && let ClientRequest::CallToolRequest(call) = &request.request
    {
        let params = &call.params;
        if params.meta.is_none() && params.input_responses.is_none() && params.request_state.is_none() {
            let meta = Some(&request.request.get_meta().0).filter(|meta| !meta.is_empty());
            return call_to_json(&request.id, meta, &params.name, params.arguments.as_ref());
        }
    }
    serde_json::to_vec(message)
}

impl Transport<RoleClient> for Lines {
    type Error = io::Error;

    fn send(
        &mut self,
        mut message: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        self.tap.outgoing(&mut message);
        self.writer.write(to_json(&message), matches!(message, JsonRpcMessage::Request(_)))
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        loop {
            if let Some((read, share)) = self.reading.done().await {
                let message = self.tap.take_or_refuse(read, share, &mut self.inbox);
                self.inbox.refusals().for_each(|refusal| self.writer.write_soon(refusal.into()));
                if message.is_some() {
                    return message;
                }
            }
            let message = self.read().await?;
            let reading = self.tap.reading(&message);
            self.reading.begin(message.weight(), move || (message, reading()));
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        // Closing the server's stdin asks it to exit.
        self.writer.close().await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use rmcp::model::{CallToolRequest, CallToolRequestParams};

    use super::{
        super::{deepest, refusal::is_unsent, tap::AwaitedAnswer},
        *,
    };

    fn tap() -> Tap {
        Tap::new(Arc::default(), Limits::default())
    }

    async fn read_all(text: &[u8]) -> Vec<Value> {
        let reader = std::io::Cursor::new(text.to_vec());
        let open = tokio_util::sync::CancellationToken::new().drop_guard();
        let writer = Box::new(tokio::io::sink());
        let mut lines = Lines::new("s".into(), Box::new(reader), writer, tap(), open);
        let mut all = Vec::new();
        while let Some(message) = lines.read().await {
            all.push(serde_json::from_slice(message.bytes()).expect("JSON"));
        }
        all
    }

    #[tokio::test]
    async fn noise_is_skipped_and_batches_are_opened() {
        let text = b"hello\n\n{\"a\":1}\r\n[{\"b\":2},{\"c\":3}]\n\xff\xfe\n{\"d\":4}\n";
        assert_eq!(read_all(text).await, [json!({"a":1}), json!({"b":2}), json!({"c":3}), json!({"d":4})]);
    }

    #[tokio::test]
    async fn a_line_without_end_fails_its_request_alone() {
        let mut text = b"{\"jsonrpc\":\"2.0\",\"id\": 7,\"result\":\"".to_vec();
        text.extend(std::iter::repeat_n(b'x', 3 << 20));
        text.extend(b"\"}\n{\"after\":true}\n");
        let all = read_all(&text).await;
        assert_eq!(all.len(), 2);
        assert_eq!(all[0]["id"], 7);
        assert!(all[0]["error"]["message"].as_str().is_some_and(|m| m.contains("longer than")));
        assert_eq!(all[1], json!({"after": true}));
    }

    #[tokio::test]
    async fn a_server_that_does_not_read_gets_no_more_requests() {
        let (input, _unread) = tokio::io::duplex(100);
        let open = tokio_util::sync::CancellationToken::new().drop_guard();
        let tap = Tap::new(Arc::default(), Limits { unread: 1_000, ..Limits::default() });
        let lines = Lines::new("s".into(), Box::new(tokio::io::empty()), Box::new(input), tap, open);
        let first = tokio::spawn(lines.writer.write(Ok(vec![b'x'; 900]), true));
        let refused = lines.writer.write(Ok(vec![b'x'; 900]), true).await.expect_err("it is stuck");
        assert!(is_unsent(&refused) && deepest(&refused).contains("1401 bytes are waiting"), "{refused}");
        // Answers may wait longer.
        let second = tokio::spawn(lines.writer.write(Ok(vec![b'x'; 900]), false));
        assert!(lines.writer.write(Ok(vec![b'x'; 900]), false).await.is_ok(), "it is dropped");
        assert!(!first.is_finished() && !second.is_finished());
    }

    #[tokio::test]
    async fn an_answer_that_is_almost_json_fails_its_request() {
        let mut tap = tap();
        let mut call = ClientRequest::CallToolRequest(CallToolRequest::new(CallToolRequestParams::new("x")));
        for n in [3, 4] {
            tap.awaited.insert(RequestId::Number(n), AwaitedAnswer::of(&mut call));
        }
        for text in
            ["{\"jsonrpc\":\"2.0\",\"id\":3,\"result\":{\"text\":\"\\ud83d\"}}", "{\"id\":4,\"result\":NaN}"]
        {
            let message = Message::of(text).expect("it looks like a message");
            let incoming = tap.reading(&message)();
            let Ok(Some(JsonRpcMessage::Error(error))) = tap.take(incoming, None) else { panic!("{text}") };
            assert_eq!((error.id, error.error.code.0), (message.id(), -32603));
        }
    }
}
