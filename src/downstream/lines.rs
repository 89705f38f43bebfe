//! JSON-RPC over a pair of byte streams, one message a line: the stdio transport, client side.
//!
//! Own code because a gateway must outlive what servers print: text that is no JSON, lines without
//! end, answers that are no JSON-RPC. None of it ends the connection, and no request that such a
//! line answered is left waiting.

use std::{collections::VecDeque, future::Future, io, sync::Arc};

use bytes::BytesMut;
use rmcp::{
    RoleClient,
    service::{RxJsonRpcMessage, TxJsonRpcMessage},
    transport::Transport,
};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::Mutex,
};
use tokio_util::sync::DropGuard;

use super::tap::Tap;
use crate::schema::clip;

/// The longest line that is read, in bytes. A longer one is skipped and its request fails.
pub const MAX_LINE: usize = 256 << 20;
/// How many lines of noise are logged; the rest are counted.
const LOGGED_NOISE: u64 = 5;
/// Where the id of a line that is too long is looked for, in bytes from its start.
const ID_WINDOW: usize = 512;

type Writer = Arc<Mutex<Option<Box<dyn AsyncWrite + Send + Unpin>>>>;

/// One connection over byte streams.
pub struct Lines {
    server: Arc<str>,
    reader: Box<dyn AsyncRead + Send + Unpin>,
    buffer: BytesMut,
    /// How much of `buffer` holds no line end.
    scanned: usize,
    max_line: usize,
    /// Set while the rest of a line that is too long is thrown away.
    skipping: bool,
    ready: VecDeque<Value>,
    noise: u64,
    writer: Writer,
    tap: Tap,
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
        Self {
            server,
            reader,
            buffer: BytesMut::with_capacity(64 << 10),
            scanned: 0,
            max_line: MAX_LINE,
            skipping: false,
            ready: VecDeque::new(),
            noise: 0,
            writer: Arc::new(Mutex::new(Some(writer))),
            tap: Tap::default(),
            _open: open,
        }
    }

    /// The same with another limit on lines, in bytes.
    #[cfg(test)]
    fn with_max_line(mut self, max: usize) -> Self {
        self.max_line = max;
        self
    }

    /// Writes one message.
    pub fn write<T: Serialize>(
        &self,
        message: &T,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static + use<T> {
        let line = serde_json::to_vec(message).map(|mut line| {
            line.push(b'\n');
            line
        });
        let writer = self.writer.clone();
        async move {
            let line = line.map_err(io::Error::other)?;
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
            if let Some(message) = self.ready.pop_front() {
                return Some(message);
            }
            if self.take_line() {
                continue;
            }
            if self.buffer.len() > self.max_line {
                self.give_up_line();
                continue;
            }
            self.buffer.reserve(64 << 10);
            match self.reader.read_buf(&mut self.buffer).await {
                Ok(0) => return None,
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!(server = %self.server, %error, "the connection broke");
                    return None;
                }
            }
        }
    }

    /// Moves one whole line from the buffer to `ready`. `false`: there is none yet.
    fn take_line(&mut self) -> bool {
        let Some(at) = self.buffer[self.scanned..].iter().position(|byte| *byte == b'\n') else {
            self.scanned = self.buffer.len();
            return false;
        };
        let line = self.buffer.split_to(self.scanned + at + 1);
        self.scanned = 0;
        if std::mem::take(&mut self.skipping) {
            return true;
        }
        let line = line.trim_ascii();
        if line.is_empty() {
            return true;
        }
        match serde_json::from_slice(line) {
            Ok(Value::Array(batch)) => self.ready.extend(batch),
            Ok(message) => self.ready.push_back(message),
            Err(error) => {
                let head = String::from_utf8_lossy(&line[..line.len().min(ID_WINDOW)]).into_owned();
                // Almost JSON (a lone surrogate, NaN, too deep) that answers a request fails it now.
                if head.starts_with('{')
                    && !head.contains("\"method\"")
                    && let Some(id) = id_of(&head)
                {
                    self.ready.push_back(unreadable(id, &format!("the answer is no JSON: {error}")));
                }
                self.note_noise(&head);
            }
        }
        true
    }

    /// A line is too long: answers its request with a fault and throws the rest away.
    fn give_up_line(&mut self) {
        if !self.skipping {
            let head = String::from_utf8_lossy(&self.buffer[..self.buffer.len().min(ID_WINDOW)]).into_owned();
            tracing::warn!(server = %self.server, limit = self.max_line, "a line is longer than the limit and was dropped");
            if let Some(id) = id_of(&head) {
                let message = format!("the answer is longer than {} bytes and was dropped", self.max_line);
                self.ready.push_back(unreadable(id, &message));
            }
        }
        self.skipping = true;
        self.buffer.clear();
        self.scanned = 0;
    }

    fn note_noise(&mut self, line: &str) {
        self.noise += 1;
        if self.noise <= LOGGED_NOISE {
            tracing::warn!(server = %self.server, line = %clip(line, 200), "stdout holds a line that is no JSON-RPC; skipped");
        }
        if self.noise == LOGGED_NOISE {
            tracing::warn!(server = %self.server, "further lines of this kind are skipped without a word");
        }
    }
}

/// The answer to a request whose own answer cannot be used.
fn unreadable(id: i64, message: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32603, "message": message}})
}

/// The numeric id in the beginning of a response.
fn id_of(head: &str) -> Option<i64> {
    let after = head.split_once("\"id\"")?.1.trim_start().strip_prefix(':')?.trim_start();
    let end = after.find(|c: char| !c.is_ascii_digit())?;
    after[..end].parse().ok()
}

impl Transport<RoleClient> for Lines {
    type Error = io::Error;

    fn send(
        &mut self,
        mut message: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        self.tap.outgoing(&mut message);
        self.write(&message)
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        loop {
            let message = self.read().await?;
            match self.tap.incoming(message) {
                Ok(Some(message)) => return Some(message),
                Ok(None) => {}
                Err(fault) => self.note_noise(&format!("no JSON-RPC message: {fault}")),
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
    use super::*;

    async fn read_all(text: &[u8], max: usize) -> Vec<Value> {
        let reader = std::io::Cursor::new(text.to_vec());
        let open = tokio_util::sync::CancellationToken::new().drop_guard();
        let mut lines =
            Lines::new("s".into(), Box::new(reader), Box::new(tokio::io::sink()), open).with_max_line(max);
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
