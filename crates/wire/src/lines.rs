//! Lines of a byte stream, of bounded length, and the writer used by both sides of the stdio transport.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex as SyncMutex;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite},
    sync::{Mutex, OwnedMutexGuard},
};

use super::{
    backlog::{Backlog, WaitingMessage},
    message::TAIL,
};

/// The length, in bytes, from which a line's buffer is not reused.
const LARGE: usize = 1 << 20;
/// How many bytes are read at a time.
const CHUNK: usize = 64 << 10;
/// Lines, and pieces of one, of up to this length together, in bytes, are written as one.
const SMALL: usize = 16 << 10;

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

    /// Returns the next non-empty line, `None` at the end of the stream or on an error. Dropping the future
    /// early loses nothing.
    pub async fn next(&mut self) -> Option<Line> {
        self.next_within(|_| 0).await
    }

    /// Returns the next non-empty line. When a line reaches the limit, `judge` decides from its beginning how
    /// long it may be.
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

/// Writes complete lines, in the order in which they are queued. All clones write to the same stream.
pub struct LineWriter<W>(Arc<Output<W>>);

struct Output<W> {
    stream: Arc<Mutex<Stream<W>>>,
    queue: SyncMutex<Queue>,
    backlog: Backlog,
}

/// Whoever holds it writes the next lines of the queue.
struct Stream<W> {
    /// None once it is closed.
    to: Option<W>,
    /// How many lines have been written, and why the next one could not be.
    written: u64,
    broken: Option<io::ErrorKind>,
}

#[derive(Default)]
struct Queue {
    lines: VecDeque<(Vec<Bytes>, WaitingMessage)>,
    /// How many lines have been queued.
    count: u64,
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
    waits: WaitingMessage,
}

/// A line with its place in the queue. If it is dropped, the next writer writes the line.
pub struct QueuedLine<W> {
    output: Arc<Output<W>>,
    number: u64,
}

impl<W: AsyncWrite + Unpin + Send + 'static> WaitingLine<W> {
    /// Gives the line its place. Whoever writes next writes this line too, so that lines of a burst can share
    /// a write.
    pub fn queue(self) -> QueuedLine<W> {
        let mut queue = self.output.queue.lock();
        queue.lines.push_back((self.pieces, self.waits));
        queue.count += 1;
        let number = queue.count;
        drop(queue);
        QueuedLine { output: self.output, number }
    }

    /// Writes the line, and those before it.
    pub async fn write(self) -> io::Result<()> {
        self.queue().write().await
    }
}

impl<W: AsyncWrite + Unpin + Send + 'static> QueuedLine<W> {
    /// Writes what is queued up to this line, unless others have written it. A dropped future leaves no half
    /// of a line behind.
    pub async fn write(self) -> io::Result<()> {
        loop {
            let stream = self.output.stream.clone().lock_owned().await;
            if stream.written >= self.number {
                return Ok(());
            }
            let Some(mut batch) = Batch::of(stream, &self.output.queue) else {
                return Err(io::ErrorKind::BrokenPipe.into());
            };
            let last = batch.last;
            match futures::poll!(&mut batch) {
                Poll::Ready(written) => written?,
                Poll::Pending => tokio::spawn(batch).await??,
            }
            if last >= self.number {
                return Ok(());
            }
        }
    }
}

/// Lines that are being written together.
struct Batch<W> {
    stream: OwnedMutexGuard<Stream<W>>,
    pieces: Vec<Bytes>,
    /// How many bytes of the pieces are written.
    done: usize,
    /// The number of the last line.
    last: u64,
    _waits: WaitingMessage,
}

impl<W> Batch<W> {
    /// Takes the next line of a queue, and those behind it that are small together; `None` if there is none.
    fn of(stream: OwnedMutexGuard<Stream<W>>, queue: &SyncMutex<Queue>) -> Option<Self> {
        let mut queue = queue.lock();
        let bytes = |pieces: &[Bytes]| pieces.iter().map(Bytes::len).sum::<usize>();
        let (mut pieces, mut waits) = queue.lines.pop_front()?;
        let (mut last, mut sum) = (stream.written + 1, bytes(&pieces));
        while let Some(next) =
            queue.lines.front().map(|(more, _)| bytes(more)).filter(|next| sum + next <= SMALL)
            && let Some((more, wait)) = queue.lines.pop_front()
        {
            sum += next;
            pieces.extend(more);
            waits.join(wait);
            last += 1;
        }
        drop(queue);
        if pieces.len() > 1 && sum <= SMALL {
            pieces = vec![pieces.concat().into()];
        }
        Some(Self { stream, pieces, done: 0, last, _waits: waits })
    }
}

impl<W: AsyncWrite + Unpin> Batch<W> {
    /// Writes several pieces with one call to the system, if it takes as many bytes at once.
    fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Stream { to: Some(to), broken: None, .. } = &mut *self.stream else {
            return Poll::Ready(Err(self.stream.broken.unwrap_or(io::ErrorKind::NotConnected).into()));
        };
        loop {
            let mut skipped = self.done;
            let mut rest = self.pieces.iter().filter_map(|piece| {
                let skip = skipped.min(piece.len());
                skipped -= skip;
                (skip < piece.len()).then(|| &piece[skip..])
            });
            let (first, second) = (rest.next(), rest.next());
            let written = match (first, second) {
                (None, _) => return Pin::new(to).poll_flush(context),
                (Some(last), None) => ready!(Pin::new(&mut *to).poll_write(context, last)),
                (Some(first), Some(second)) => {
                    let slices: Vec<IoSlice<'_>> =
                        [first, second].into_iter().chain(rest).map(IoSlice::new).collect();
                    ready!(Pin::new(&mut *to).poll_write_vectored(context, &slices))
                }
            };
            match written {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(written) => self.done += written,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl<W: AsyncWrite + Unpin> Future for Batch<W> {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let written = ready!(self.poll_write(context));
        match &written {
            Ok(()) => self.stream.written = self.last,
            // A part of a line may be out.
            Err(error) => self.stream.broken = Some(error.kind()),
        }
        Poll::Ready(written)
    }
}

impl<W: AsyncWrite + Unpin + Send + 'static> LineWriter<W> {
    /// Returns a writer to a peer that counts as stuck while `limit` bytes wait for it.
    pub fn new(to: W, limit: usize) -> Self {
        let stream = Stream { to: Some(to), written: 0, broken: None };
        let stream = Arc::new(Mutex::new(stream));
        Self(Arc::new(Output { stream, queue: SyncMutex::default(), backlog: Backlog::new(limit) }))
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
        let waits = self.0.backlog.enter(pieces.iter().map(Bytes::len).sum());
        WaitingLine { pieces, output: self.0.clone(), waits }
    }

    /// Closes the stream, which tells the peer to disconnect.
    pub async fn close(&self) {
        self.0.stream.lock().await.to.take();
    }

    /// Writes a message in a separate task: a reader must not wait for a peer that does not read, and a
    /// dropped future must not leave half a line behind.
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

    /// Notes how many bytes each write has.
    struct Writes(Arc<SyncMutex<Vec<usize>>>);

    impl AsyncWrite for Writes {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            self.0.lock().push(bytes.len());
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn lines_queued_by_then_share_a_write() {
        let writes = Arc::new(SyncMutex::default());
        let writer = LineWriter::new(Writes(writes.clone()), 1_000);
        let line = |bytes| writer.line(vec![b'x'; bytes]);
        let (first, second) = (line(9).queue(), line(19).queue());
        assert!(second.write().await.is_ok() && first.write().await.is_ok());
        assert_eq!(*writes.lock(), [30]);
        // One that is given up goes out with the next.
        drop(line(4).queue());
        assert!(line(9).write().await.is_ok());
        assert_eq!(*writes.lock(), [30, 15]);
        // A large one goes by itself, and the last writer writes all before it.
        let (_small, _large, last) = (line(1).queue(), line(SMALL).queue(), line(2).queue());
        assert!(last.write().await.is_ok());
        assert_eq!(*writes.lock(), [30, 15, 2, SMALL + 1, 3]);
        writer.close().await;
        let (first, second) = (line(9).queue(), line(9).queue());
        assert!(first.write().await.is_err() && second.write().await.is_err());
        assert_eq!(writer.backlog().bytes(), 0);
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
