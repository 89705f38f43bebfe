//! Event streams over HTTP. An event is kept until its client has read it and a few more have followed, so
//! that a client that lost its connection can go on where it was ("Resumability and Redelivery" of the
//! transport, 2025-11-25).

use std::{
    collections::VecDeque,
    convert::Infallible,
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{body::Body, response::Response};
use bytes::Bytes;
use http::{
    HeaderName, HeaderValue,
    header::{CACHE_CONTROL, CONTENT_TYPE},
};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, futures::Notified},
    time::timeout,
};
use tokio_util::sync::{CancellationToken, DropGuard};

/// How many events may wait for a reader before whoever sends the next one waits too.
const UNREAD: usize = 16;
/// How many events are kept after they have been read.
const KEPT: usize = 16;
/// The most bytes that wait for a client that lost its connection, once its request has ended.
const WAITING: usize = 1 << 20;
/// How often a silent stream sends a comment, so that nothing on the way takes it for dead.
const ALIVE: Duration = Duration::from_secs(15);
/// How long a client waits before it asks again for the rest of a stream, in milliseconds (SEP-1699).
const RETRY_MS: u32 = 3_000;
/// The length of a message, in bytes, up to which its event is copied together into one frame.
const ONE_FRAME: usize = 16 << 10;
/// How many requests may read one stream at the same time. Only the first gets events.
const READERS: usize = 32;

static NO_BUFFER: HeaderName = HeaderName::from_static("x-accel-buffering");

/// A stream of events to a client: of one request, or the common one of a session.
pub struct EventStream {
    /// Its number in its session; the common stream has none.
    number: Option<u64>,
    state: Mutex<StreamState>,
    news: Notify,
    room: Notify,
}

#[derive(Default)]
struct StreamState {
    events: VecDeque<StreamEvent>,
    /// The index of the last event. The first one has 1.
    last: u64,
    /// The index of the last event that a reader took.
    read: u64,
    /// When its request was answered or cancelled.
    ended: Option<Instant>,
    /// Whether its first reader is still to come.
    is_awaited: bool,
    /// The readers, the one that gets the events first.
    readers: Vec<u64>,
    last_reader: u64,
}

struct StreamEvent {
    index: u64,
    /// Its message.
    pieces: Vec<Bytes>,
}

impl EventStream {
    /// Returns a session's common stream.
    pub fn common() -> Arc<Self> {
        Self::new(None)
    }

    /// Returns the stream of one request.
    pub fn of_request(number: u64) -> Arc<Self> {
        Self::new(Some(number))
    }

    fn new(number: Option<u64>) -> Arc<Self> {
        let state = Mutex::new(StreamState { is_awaited: number.is_some(), ..StreamState::default() });
        Arc::new(Self { number, state, news: Notify::new(), room: Notify::new() })
    }

    /// Adds a message. Waits while a reader has too much to read. Once the reader has left, the oldest
    /// message is lost instead: the client may never come back.
    pub async fn push(&self, message: Bytes) -> io::Result<()> {
        loop {
            let room = self.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            {
                let mut state = self.state.lock();
                if state.ended.is_some() {
                    return Err(io::ErrorKind::BrokenPipe.into());
                }
                let unread = state.last - state.read;
                if unread < UNREAD as u64 || state.is_left() {
                    state.add(vec![message]);
                    break;
                }
            }
            room.await;
        }
        self.news.notify_waiters();
        Ok(())
    }

    /// Ends the stream, after the answer to its request if there is one.
    pub fn end(&self, answer: Option<Vec<Bytes>>) {
        {
            let mut state = self.state.lock();
            if let Some(answer) = answer {
                state.add(answer);
            }
            state.ended.get_or_insert_with(Instant::now);
            state.forget_large();
        }
        self.news.notify_waiters();
        self.room.notify_waiters();
    }

    /// Notes that the client left before it could read.
    pub fn leave(&self) {
        self.state.lock().is_awaited = false;
        self.room.notify_waiters();
    }

    /// Returns whether its request was answered or cancelled.
    pub fn has_ended(&self) -> bool {
        self.state.lock().ended.is_some()
    }

    /// Returns whether nothing was sent.
    pub fn is_silent(&self) -> bool {
        self.state.lock().last == 0
    }

    /// Returns whether somebody reads it.
    pub fn is_read(&self) -> bool {
        !self.state.lock().readers.is_empty()
    }

    /// Returns whether everything was read, or nobody came for the rest within `limit` of the end.
    pub fn is_over(&self, limit: Duration) -> bool {
        let state = self.state.lock();
        let is_old = |ended: Instant| ended.elapsed() > limit;
        state
            .ended
            .is_some_and(|ended| state.readers.is_empty() && (state.read == state.last || is_old(ended)))
    }

    /// Waits for the first message.
    pub async fn speaks(&self) {
        loop {
            let news = self.news.notified();
            tokio::pin!(news);
            news.as_mut().enable();
            if !self.is_silent() {
                return;
            }
            news.await;
        }
    }

    /// Returns a response with the events after the one with this index, by default those that nobody has
    /// read, until the stream or `end` ends. A new reader of a request's stream replaces earlier ones; of the
    /// common stream, it waits until they have left.
    pub fn response(
        self: &Arc<Self>,
        after: Option<u64>,
        end: CancellationToken,
        cancels: Option<CancellationToken>,
    ) -> Response {
        let reader = {
            let mut state = self.state.lock();
            state.is_awaited = false;
            state.last_reader += 1;
            let reader = state.last_reader;
            match self.number {
                Some(_) => state.readers = vec![reader],
                None => {
                    if state.readers.len() >= READERS {
                        state.readers.remove(0);
                    }
                    state.readers.push(reader);
                }
            }
            reader
        };
        self.news.notify_waiters();
        let mut waiting = VecDeque::new();
        // A stream that is cancelled when its client leaves cannot be resumed.
        if after.is_none() && cancels.is_none() {
            let first = self.id(0);
            waiting.push_back(format!("id: {first}\nretry: {RETRY_MS}\ndata: \n\n").into());
        }
        let reader = StreamReader {
            stream: self.clone(),
            reader,
            after,
            waiting,
            end,
            _cancels: cancels.map(CancellationToken::drop_guard),
        };
        respond(futures::stream::unfold(reader, async |mut reader| {
            let frame = reader.next().await?;
            Some((Ok::<_, Infallible>(frame), reader))
        }))
    }

    /// Returns an event's id: its index and the number of its stream.
    fn id(&self, index: u64) -> String {
        match self.number {
            Some(number) => format!("{index}/{number}"),
            None => index.to_string(),
        }
    }
}

impl StreamState {
    /// Returns whether nobody reads, and nobody is about to.
    fn is_left(&self) -> bool {
        self.readers.is_empty() && !self.is_awaited
    }

    fn add(&mut self, pieces: Vec<Bytes>) {
        self.last += 1;
        self.events.push_back(StreamEvent { index: self.last, pieces });
        let lost = if self.is_left() { self.last.saturating_sub(UNREAD as u64) } else { 0 };
        self.forget(lost);
    }

    /// Drops what nobody may come back for, if that is large.
    fn forget_large(&mut self) {
        let bytes = |event: &StreamEvent| event.pieces.iter().map(Bytes::len).sum::<usize>();
        if self.ended.is_some() && self.is_left() && self.events.iter().map(bytes).sum::<usize>() > WAITING {
            self.events.clear();
            self.read = self.last;
        }
    }

    /// Drops read events beyond those that are kept, and all up to an index.
    fn forget(&mut self, lost: u64) {
        while self.events.len() > KEPT
            && self.events.front().is_some_and(|event| event.index <= self.read.max(lost))
        {
            self.events.pop_front();
        }
    }
}

/// Parses an event's id: its index, and the number of its stream unless that is the common one.
pub fn event_id(id: &str) -> Option<(u64, Option<u64>)> {
    match id.split_once('/') {
        Some((index, number)) => Some((index.parse().ok()?, Some(number.parse().ok()?))),
        None => Some((id.parse().ok()?, None)),
    }
}

/// One request that reads a stream.
struct StreamReader {
    stream: Arc<EventStream>,
    reader: u64,
    /// The index of the last event that it has sent.
    after: Option<u64>,
    /// What it sends next.
    waiting: VecDeque<Bytes>,
    end: CancellationToken,
    /// Cancels the request if its client leaves, in the stateless era.
    _cancels: Option<DropGuard>,
}

/// What a reader finds in its stream.
enum Found {
    Event,
    Nothing,
    /// There will be nothing for this reader.
    End,
}

impl StreamReader {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(frame) = self.waiting.pop_front() {
                return Some(frame);
            }
            let stream = self.stream.clone();
            let mut news = std::pin::pin!(stream.news.notified());
            news.as_mut().enable();
            match self.look() {
                Found::Event => continue,
                Found::End => return None,
                Found::Nothing => {}
            }
            match self.wait(news).await {
                Some(true) => {}
                Some(false) => return Some(Bytes::from_static(b": \n\n")),
                None => return None,
            }
        }
    }

    /// Waits for news. Returns whether there are some, or `None` at the end.
    async fn wait(&self, news: std::pin::Pin<&mut Notified<'_>>) -> Option<bool> {
        self.end.run_until_cancelled(timeout(ALIVE, news)).await.map(|news| news.is_ok())
    }

    fn look(&mut self) -> Found {
        let mut state = self.stream.state.lock();
        if state.readers.first() != Some(&self.reader) {
            let waits = self.stream.number.is_none() && state.readers.contains(&self.reader);
            return if waits { Found::Nothing } else { Found::End };
        }
        let after = *self.after.get_or_insert(state.read);
        let Some(event) = state.events.iter().find(|event| event.index > after) else {
            return if state.ended.is_some() { Found::End } else { Found::Nothing };
        };
        let (index, pieces) = (event.index, event.pieces.clone());
        let head = match self.stream.number {
            Some(_) if self._cancels.is_some() => "data: ".to_owned(),
            _ => format!("id: {}\ndata: ", self.stream.id(index)),
        };
        let bytes: usize = pieces.iter().map(Bytes::len).sum();
        let parts = [vec![Bytes::from(head)], pieces, vec![Bytes::from_static(b"\n\n")]];
        match bytes < ONE_FRAME {
            true => self.waiting.push_back(parts.concat().concat().into()),
            false => self.waiting.extend(parts.into_iter().flatten()),
        }
        self.after = Some(index);
        state.read = state.read.max(index);
        state.forget(0);
        drop(state);
        self.stream.room.notify_waiters();
        Found::Event
    }
}

impl Drop for StreamReader {
    fn drop(&mut self) {
        let mut state = self.stream.state.lock();
        state.readers.retain(|reader| *reader != self.reader);
        state.forget_large();
        drop(state);
        // The next reader may begin, and whoever waits for room need not wait any more.
        self.stream.news.notify_waiters();
        self.stream.room.notify_waiters();
    }
}

fn respond(events: impl futures::Stream<Item = Result<Bytes, Infallible>> + Send + 'static) -> Response {
    let mut response = Response::new(Body::from_stream(events));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(NO_BUFFER.clone(), HeaderValue::from_static("no"));
    response
}

/// Returns a stream without events.
pub fn nothing() -> Response {
    respond(futures::stream::empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;

    fn never() -> CancellationToken {
        CancellationToken::new()
    }

    /// Returns the next frames of a response as text, until it would have to wait.
    async fn read(response: &mut Response) -> String {
        let mut text = String::new();
        while let Ok(Some(Ok(frame))) = timeout(Duration::from_millis(20), response.body_mut().frame()).await
        {
            text.push_str(std::str::from_utf8(frame.data_ref().expect("data")).expect("text"));
        }
        text
    }

    async fn push(stream: &EventStream, message: &'static str) {
        stream.push(message.into()).await.expect("it is open");
    }

    #[tokio::test]
    async fn a_reader_goes_on_after_the_event_that_it_names() {
        let stream = EventStream::of_request(7);
        for message in ["a", "b"] {
            push(&stream, message).await;
        }
        let mut first = stream.response(None, never(), None);
        let expected = "id: 0/7\nretry: 3000\ndata: \n\nid: 1/7\ndata: a\n\nid: 2/7\ndata: b\n\n";
        assert_eq!(read(&mut first).await, expected);
        assert_eq!(event_id("1/7"), Some((1, Some(7))));
        let mut again = stream.response(Some(1), never(), None);
        assert_eq!(read(&mut again).await, "id: 2/7\ndata: b\n\n");
        assert_eq!(read(&mut first).await, "", "the newer reader has replaced it");
        stream.end(Some(vec!["c".into(), "d".into()]));
        assert_eq!(read(&mut again).await, "id: 3/7\ndata: cd\n\n");
        drop(again);
        assert!(stream.is_over(Duration::from_secs(60)));
    }

    #[tokio::test]
    async fn an_answer_that_nobody_has_read_waits_for_its_client() {
        let stream = EventStream::of_request(1);
        drop(stream.response(None, never(), None));
        stream.end(Some(vec!["answer".into()]));
        assert!(!stream.is_over(Duration::from_secs(60)));
        assert!(stream.is_over(Duration::ZERO));
        let large = EventStream::of_request(2);
        drop(large.response(None, never(), None));
        large.end(Some(vec![vec![b'x'; WAITING + 1].into()]));
        assert!(large.is_over(Duration::from_secs(60)), "a large one does not wait");
        let mut late = stream.response(Some(0), never(), None);
        assert_eq!(read(&mut late).await, "id: 1/1\ndata: answer\n\n");
    }

    #[tokio::test]
    async fn the_common_stream_has_one_reader_at_a_time() {
        let stream = EventStream::common();
        push(&stream, "early").await;
        let mut first = stream.response(None, never(), None);
        let mut second = stream.response(None, never(), None);
        assert_eq!(read(&mut first).await, "id: 0\nretry: 3000\ndata: \n\nid: 1\ndata: early\n\n");
        push(&stream, "one").await;
        assert_eq!(read(&mut second).await, "id: 0\nretry: 3000\ndata: \n\n", "it waits");
        assert_eq!(read(&mut first).await, "id: 2\ndata: one\n\n");
        drop(first);
        push(&stream, "two").await;
        assert_eq!(read(&mut second).await, "id: 3\ndata: two\n\n", "nothing comes twice");
    }

    #[tokio::test]
    async fn who_sends_waits_for_a_slow_reader_and_not_for_one_that_is_gone() {
        let stream = EventStream::common();
        let mut reader = stream.response(None, never(), None);
        for _ in 0..UNREAD {
            push(&stream, "x").await;
        }
        let more = stream.push("y".into());
        tokio::pin!(more);
        assert!(timeout(Duration::from_millis(20), &mut more).await.is_err());
        read(&mut reader).await;
        assert!(timeout(Duration::from_millis(20), &mut more).await.is_ok());
        drop(reader);
        for _ in 0..100 {
            push(&stream, "z").await;
        }
        let kept = read(&mut stream.response(None, never(), None)).await;
        assert_eq!(kept.matches("data: z").count(), UNREAD);
    }

    #[tokio::test]
    async fn a_client_of_the_stateless_era_that_leaves_cancels_its_request() {
        let (stream, cancels) = (EventStream::of_request(1), never());
        let mut reader = stream.response(None, never(), Some(cancels.clone()));
        push(&stream, "a").await;
        assert!(read(&mut reader).await.ends_with("data: a\n\n"));
        assert!(!cancels.is_cancelled());
        drop(reader);
        assert!(cancels.is_cancelled());
    }
}
