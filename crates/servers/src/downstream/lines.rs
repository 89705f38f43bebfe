//! JSON-RPC with a server over a pair of byte streams, one message per line.
//!
//! A gateway must tolerate whatever servers print: text that is not JSON, endless lines, answers that are not
//! JSON-RPC. None of it ends the connection, and a request answered by such a line does not wait for ever.

use std::sync::Arc;

use bytes::Bytes;
use nonet_wire::{
    Expectations, Inbox, Line, LineReader, LineWriter, Weight, http::HttpFault, judge, off_thread, scan,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::task::AbortOnDropHandle;

use super::incoming::{Incoming, SendSoon};

type Reader = Box<dyn AsyncRead + Send + Unpin>;
type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// One connection over byte streams.
pub(super) struct Lines {
    writer: ServerWriter,
    incoming: Arc<Incoming>,
    _reader: AbortOnDropHandle<()>,
}

impl Lines {
    /// Starts to read the server's output. Messages are written to its input.
    pub(super) fn open(incoming: Arc<Incoming>, reader: Reader, writer: Writer) -> Self {
        let writer = ServerWriter(LineWriter::new(writer, incoming.pending.limits().unread));
        let reading = tokio::spawn(read(incoming.clone(), reader, writer.clone()));
        Self { writer, incoming, _reader: AbortOnDropHandle::new(reading) }
    }

    /// Sends a message. A request to a server that does not read fails at once.
    pub(super) async fn send(&self, message: Vec<u8>) -> Result<(), HttpFault> {
        let backlog = self.writer.0.backlog();
        if backlog.is_stuck() {
            return Err(HttpFault::Unsent(unread(backlog.bytes())));
        }
        let line = self.writer.0.line(message).queue();
        if self.incoming.pending.is_busy() {
            // Perhaps a burst: others that are ready join this write.
            tokio::task::yield_now().await;
        }
        // Boxed: a larger future of a call costs more than a box.
        Box::pin(line.write()).await.map_err(|error| HttpFault::Wrong(error.to_string()))
    }

    /// Sends a message in a separate task.
    pub(super) fn send_soon(&self, message: Bytes) {
        self.writer.send_soon(message);
    }

    /// Closes the server's input, which asks it to exit.
    pub(super) async fn close(&self) {
        self.writer.0.close().await;
    }
}

/// Writes to a server's input.
#[derive(Clone)]
struct ServerWriter(LineWriter<Writer>);

impl SendSoon for ServerWriter {
    /// The gateway must keep reading the server's output, or the server might never read again.
    fn send_soon(&self, message: Bytes) {
        self.0.write_soon(message.into());
    }
}

/// Returns the error for a request to a server that leaves `bytes` unread.
pub(super) fn unread(bytes: usize) -> String {
    format!("it does not read its input: {bytes} bytes are waiting")
}

/// Reads a server's output to its end.
async fn read(incoming: Arc<Incoming>, reader: Reader, writer: ServerWriter) {
    let pending = &incoming.pending;
    let mut lines = LineReader::new(reader, pending.limits().of_server.bytes);
    let mut inbox = Inbox::new(incoming.server.clone(), "a line of stdout");
    while let Some(line) = lines.next_within(|beginning| judge(beginning, pending)).await {
        match line {
            Line::Whole(line) => {
                let (weight, most) = (Weight::scanned(line.len()), pending.limits().answer.values);
                let (scan, _) = off_thread(weight, move || scan(line.freeze(), most)).await;
                inbox.take(scan, pending);
            }
            Line::TooLong(beginning) => inbox.too_long(&beginning, pending),
            Line::TooLongEnd(tail) => inbox.too_long_end(&tail),
        }
        incoming.take_all(&mut inbox, None, &writer).await;
    }
    incoming.close();
}

#[cfg(test)]
mod tests {
    use nonet_wire::Limits;
    use rmcp::model::ErrorData;
    use serde_json::json;

    use super::{super::pending::AnswerKind, *};

    fn incoming(limits: Limits) -> Arc<Incoming> {
        Incoming::new("s".into(), limits, false, Arc::default(), Arc::default())
    }

    /// Returns the answers to the requests 1 and 2 of a server that prints this.
    async fn answers(text: &[u8]) -> [Option<Result<serde_json::Value, ErrorData>>; 2] {
        let incoming = incoming(Limits::new(1 << 20, 1 << 20, 1 << 20, 2 << 20, 1 << 20));
        let open = || incoming.pending.open(AnswerKind::Result, None, None).expect("it is open").1;
        let waiting = [open(), open()];
        let reader = Box::new(std::io::Cursor::new(text.to_vec()));
        let lines = Lines::open(incoming, reader, Box::new(tokio::io::sink()));
        let mut answers = Vec::new();
        for answer in waiting {
            let answer = answer.await.ok();
            answers.push(match answer {
                Some(Ok(result)) => Some(Ok(result.into_tree().await)),
                Some(Err(error)) => Some(Err(error)),
                None => None,
            });
        }
        drop(lines);
        answers.try_into().expect("two")
    }

    #[tokio::test]
    async fn noise_is_skipped_and_batches_are_opened() {
        let text = b"hello\n\n{\"a\":1}\r\n[{\"id\":1,\"result\":{\"b\":2}},{\"c\":3}]\n\xff\xfe\n{\"id\":\"2\",\"result\":{\"d\":4}}\n";
        let [first, second] = answers(text).await;
        assert_eq!((first, second), (Some(Ok(json!({"b": 2}))), Some(Ok(json!({"d": 4})))));
    }

    #[tokio::test]
    async fn a_line_without_end_fails_only_its_request() {
        let mut text = b"{\"jsonrpc\":\"2.0\",\"id\": 1,\"result\":\"".to_vec();
        text.extend(std::iter::repeat_n(b'x', 3 << 20));
        text.extend(b"\"}\n{\"id\":2,\"result\":{}}\n");
        let [first, second] = answers(&text).await;
        let first = first.expect("an answer").expect_err("it is too long");
        assert!(first.message.contains("longer than"), "{first:?}");
        assert_eq!(second, Some(Ok(json!({}))));
    }

    #[tokio::test]
    async fn a_server_that_does_not_read_gets_no_more_requests() {
        let (input, _unread) = tokio::io::duplex(100);
        let incoming = incoming(Limits { unread: 1_000, ..Limits::default() });
        let (reader, _output) = tokio::io::duplex(1);
        let lines = Arc::new(Lines::open(incoming, Box::new(reader), Box::new(input)));
        let first = tokio::spawn({
            let lines = lines.clone();
            async move { lines.send(vec![b'x'; 900]).await }
        });
        tokio::task::yield_now().await;
        let refused = lines.send(vec![b'x'; 900]).await.expect_err("it is stuck");
        assert!(
            matches!(&refused, HttpFault::Unsent(why) if why.contains("1401 bytes are waiting")),
            "{refused}"
        );
        assert!(!first.is_finished());
    }
}
