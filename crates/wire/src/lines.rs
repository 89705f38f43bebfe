//! Lines of a byte stream, of bounded length, and the writer used by both sides of the stdio transport.

use std::{
    io::{self, IoSlice},
    sync::Arc,
};

use bytes::{Bytes, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::Mutex,
};

use super::{
    backlog::{Backlog, WaitingMessage},
    message::TAIL,
};

/// The length, in bytes, from which a line's buffer is not reused.
const LARGE: usize = 1 << 20;
/// How many bytes are read at a time.
const CHUNK: usize = 64 << 10;

/// One line.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    /// A line without its line break.
    Whole(BytesMut),
    /// The beginning of a line that exceeds its limit. The rest is discarded.
    TooLong(BytesMut),
    /// The end of such a line, which may contain the id.
    TooLongEnd(String),
}

/// Reads lines.
pub struct LineReader<R> {
    from: R,
    buffer: BytesMut,
    /// How much of `buffer` is known to contain no line break.
    scanned: usize,
    limit: usize,
    /// The raised limit of the current line, if its beginning earned one.
    raised: Option<usize>,
    /// Set while the rest of a line that is too long is discarded.
    skipping: bool,
}

impl<R: AsyncRead + Unpin> LineReader<R> {
    /// Reads lines of at most `limit` bytes.
    pub fn new(from: R, limit: usize) -> Self {
        let buffer = BytesMut::with_capacity(CHUNK);
        Self { from, buffer, scanned: 0, limit, raised: None, skipping: false }
    }

    /// Sets the limit for further lines, in bytes.
    pub fn allow(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Returns the next non-empty line, `None` at the end of the stream or on an error. Dropping the future early loses
    /// nothing.
    pub async fn next(&mut self) -> Option<Line> {
        self.next_within(|_| 0).await
    }

    /// Returns the next non-empty line. When a line reaches the limit, `judge` decides from its beginning how long it may be.
    pub async fn next_within(&mut self, judge: impl Fn(&[u8]) -> usize) -> Option<Line> {
        loop {
            match self.next_or_empty_within(&judge).await? {
                Line::Whole(line) if line.is_empty() => {}
                line => return Some(line),
            }
        }
    }

    /// Returns the next line, including empty ones; a line of white space is returned as empty.
    pub async fn next_or_empty_within(&mut self, judge: impl Fn(&[u8]) -> usize) -> Option<Line> {
        loop {
            if let Some(at) = memchr::memchr(b'\n', &self.buffer[self.scanned..]) {
                return Some(self.take(self.scanned + at + 1));
            }
            self.scanned = self.buffer.len();
            if self.skipping {
                // Only the end counts, and the line break may come with the next byte.
                let tail = self.buffer.len().saturating_sub(TAIL);
                self.buffer = BytesMut::from(&self.buffer[tail..]);
                self.scanned = self.buffer.len();
            } else if self.buffer.len() > self.raised.unwrap_or(self.limit) {
                let limit = if self.raised.is_none() { judge(&self.buffer) } else { 0 };
                if limit <= self.buffer.len() {
                    self.skipping = true;
                    self.raised = None;
                    self.scanned = 0;
                    let beginning = std::mem::replace(&mut self.buffer, BytesMut::with_capacity(CHUNK));
                    return Some(Line::TooLong(beginning));
                }
                self.raised = Some(limit);
            }
            self.buffer.reserve(CHUNK);
            match self.from.read_buf(&mut self.buffer).await {
                Ok(0) => return None,
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!(%error, "the stream broke");
                    return None;
                }
            }
        }
    }

    /// Takes a line out of the buffer, together with its line break.
    fn take(&mut self, end: usize) -> Line {
        let mut line = self.buffer.split_to(end);
        self.scanned = 0;
        self.raised = None;
        // Otherwise the rest of the buffer would hold a large line's memory for good.
        if line.len() > LARGE {
            let mut rest = BytesMut::with_capacity(CHUNK.max(self.buffer.len()));
            rest.extend_from_slice(&self.buffer);
            self.buffer = rest;
        }
        if std::mem::take(&mut self.skipping) {
            let tail = &line[line.len().saturating_sub(TAIL)..];
            return Line::TooLongEnd(String::from_utf8_lossy(tail).into_owned());
        }
        line.truncate(line.trim_ascii_end().len());
        Line::Whole(line)
    }
}

/// Writes complete lines. All clones write to the same stream.
pub struct LineWriter<W>(Arc<Output<W>>);

struct Output<W> {
    stream: Mutex<Option<W>>,
    backlog: Backlog,
}

impl<W> Clone for LineWriter<W> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// A line waiting to be written.
pub struct WaitingLine<W> {
    pieces: Vec<Bytes>,
    output: Arc<Output<W>>,
    _waits: WaitingMessage,
}

impl<W: AsyncWrite + Unpin> WaitingLine<W> {
    /// Writes the line.
    pub async fn write(self) -> io::Result<()> {
        let mut writer = self.output.stream.lock().await;
        let Some(writer) = writer.as_mut() else { return Err(io::ErrorKind::NotConnected.into()) };
        match &self.pieces[..] {
            [whole] => writer.write_all(whole).await?,
            pieces => write_pieces(writer, pieces).await?,
        }
        writer.flush().await
    }
}

/// Writes several pieces with one call to the system, if it takes as many bytes at once.
async fn write_pieces(writer: &mut (impl AsyncWrite + Unpin), pieces: &[Bytes]) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
    let mut left = &mut slices[..];
    // Skips empty ones.
    IoSlice::advance_slices(&mut left, 0);
    while !left.is_empty() {
        match writer.write_vectored(left).await? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            written => IoSlice::advance_slices(&mut left, written),
        }
    }
    Ok(())
}

impl<W: AsyncWrite + Unpin> LineWriter<W> {
    /// Returns a writer to a peer that counts as stuck while `limit` bytes wait for it.
    pub fn new(to: W, limit: usize) -> Self {
        Self(Arc::new(Output { stream: Mutex::new(Some(to)), backlog: Backlog::new(limit) }))
    }

    /// Returns the backlog of output for the peer.
    pub fn backlog(&self) -> &Backlog {
        &self.0.backlog
    }

    /// Returns a message as a line, which counts as waiting from now on, even if it is not written at once.
    pub fn line(&self, mut message: Vec<u8>) -> WaitingLine<W> {
        message.push(b'\n');
        self.pieces(vec![message.into()])
    }

    /// Returns a message given in pieces as a line, with its line break.
    pub fn pieces(&self, pieces: Vec<Bytes>) -> WaitingLine<W> {
        let _waits = self.0.backlog.enter(pieces.iter().map(Bytes::len).sum());
        WaitingLine { pieces, output: self.0.clone(), _waits }
    }

    /// Closes the stream, which tells the peer to disconnect.
    pub async fn close(&self) {
        self.0.stream.lock().await.take();
    }
}

impl<W: AsyncWrite + Unpin + Send + 'static> LineWriter<W> {
    /// Writes a message in a separate task: a reader must not wait for a peer that does not read, and a dropped future must
    /// not leave half a line behind.
    pub fn write_soon(&self, message: Vec<u8>) {
        if self.backlog().is_full() {
            return;
        }
        let line = self.line(message);
        tokio::spawn(async move {
            if let Err(error) = line.write().await {
                tracing::debug!(%error, "a refusal was not written");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn all(text: &[u8], limit: usize, judge: impl Fn(&[u8]) -> usize) -> Vec<Line> {
        let mut reader = LineReader::new(std::io::Cursor::new(text.to_vec()), limit);
        let mut lines = Vec::new();
        while let Some(line) = reader.next_within(&judge).await {
            lines.push(line);
        }
        lines
    }

    fn whole(text: &str) -> Line {
        Line::Whole(text.into())
    }

    #[tokio::test]
    async fn lines_come_without_their_ends_and_empty_ones_not_at_all() {
        assert_eq!(all(b"a\r\n\n  \nb \nc", 100, |_| 0).await, [whole("a"), whole("b")]);
    }

    fn long(bytes: usize) -> Vec<u8> {
        let mut text = b"{\"id\":7,".to_vec();
        text.extend(std::iter::repeat_n(b'x', bytes));
        text.extend(b"\nafter\n");
        text
    }

    #[tokio::test]
    async fn a_line_that_is_too_long_is_reported_once_and_skipped() {
        for limit in [|_: &[u8]| 0, |_: &[u8]| 200_000] {
            let lines = all(&long(300_000), 1_000, limit).await;
            assert_eq!(lines.len(), 3);
            assert!(matches!(&lines[0], Line::TooLong(head) if head.starts_with(b"{\"id\":7,xx")));
            assert!(matches!(&lines[1], Line::TooLongEnd(tail) if tail.ends_with("xx\n")));
            assert_eq!(lines[2], whole("after"));
        }
    }

    #[tokio::test]
    async fn a_line_whose_beginning_earns_it_may_be_longer_and_the_next_may_not() {
        let text = [long(300_000), long(300_000)].concat();
        let longer = std::cell::Cell::new(true);
        let lines = all(&text, 1_000, |_| if longer.replace(false) { 400_000 } else { 0 }).await;
        assert!(matches!(&lines[0], Line::Whole(line) if line.len() > 300_000));
        assert_eq!(lines[1], whole("after"));
        assert!(matches!(&lines[2], Line::TooLong(_)));
    }

    #[tokio::test]
    async fn a_line_in_pieces_arrives_as_one() {
        for room in [1, 7, 100] {
            let (mut reader, writer) = tokio::io::duplex(room);
            let line = LineWriter::new(writer, 1_000)
                .pieces(["", "one, ", "", "two", "\n", ""].map(Bytes::from).into());
            let mut read = String::new();
            let (written, _) = tokio::join!(line.write(), reader.read_to_string(&mut read));
            assert!(written.is_ok() && read == "one, two\n", "{read}");
        }
    }

    #[tokio::test]
    async fn an_end_that_does_not_read_is_stuck_until_it_does() {
        let (mut reader, writer) = tokio::io::duplex(1_000);
        let writer = LineWriter::new(writer, 100_000);
        for _ in 0..9 {
            writer.write_soon(vec![b'x'; 10_000]);
        }
        assert!(!writer.backlog().is_stuck());
        writer.write_soon(vec![b'x'; 10_000]);
        assert!(writer.backlog().is_stuck());
        let (mut read, waiting) = (vec![0; 10 * 10_001], writer.clone());
        let (_, done) = tokio::join!(waiting.backlog().unstuck(), reader.read_exact(&mut read));
        assert!(done.is_ok() && !writer.backlog().is_stuck());
        // A dropped line no longer waits.
        drop(writer.line(vec![b'x'; 200_000]));
        assert!(!writer.backlog().is_stuck());
    }
}
