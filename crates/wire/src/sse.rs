//! Event streams, read by lines: a broken event costs only itself, and an event that is too long is skipped.
//!
//! Own code because `sse_stream` ends the stream at both.

use std::io;

use bytes::{Buf, Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt, stream::BoxStream};
use http_body_util::BodyDataStream;
use tokio::io::AsyncRead;
use tokio_util::io::StreamReader;

use super::lines::{Line, LineReader};

/// The bytes of an HTTP answer.
pub type BodyStream = StreamReader<BoxStream<'static, io::Result<Bytes>>, Bytes>;

/// One event of a stream.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct StreamEvent {
    /// Empty if the event names none.
    pub kind: String,
    /// The id with which a client can resume the stream after this event; `None` if the event sets none.
    pub id: Option<String>,
    /// The delay before the stream is reopened, in milliseconds.
    pub retry: Option<u64>,
    /// The content of the `data` lines, joined by line breaks.
    pub data: EventData,
}

/// The data of an event.
#[derive(Debug, Default, PartialEq, Eq)]
pub enum EventData {
    /// The event has no `data` line.
    #[default]
    None,
    /// The complete data, within its limit.
    Whole(Bytes),
    /// The beginning and the end of data that exceeds its limit.
    TooLong(Bytes, String),
}

impl StreamEvent {
    /// Returns whether this kind of event holds messages.
    pub fn is_message(&self) -> bool {
        matches!(self.kind.as_str(), "" | "message")
    }
}

/// Reads the events of a stream whose lines end in `\n` or `\r\n`.
pub struct EventReader<R> {
    lines: LineReader<R>,
    /// The maximum size of an event's data unless its content allows more, in bytes.
    limit: usize,
    event: StreamEvent,
    data: Option<BytesMut>,
    /// The raised limit of the data, once `judge` has decided.
    raised: Option<usize>,
    /// The beginning of data that is too long, while the rest is discarded, and the end of its last line.
    skipping: Option<(Bytes, String)>,
}

impl EventReader<BodyStream> {
    /// Reads the events of an HTTP answer.
    pub fn of(body: reqwest::Body, limit: usize) -> Self {
        let bytes = BodyDataStream::new(body).map_err(io::Error::other).boxed();
        Self::new(StreamReader::new(bytes), limit)
    }
}

impl<R: AsyncRead + Unpin> EventReader<R> {
    /// Reads events from bytes. An event may have `limit` bytes of data, unless `judge` in [`Self::next`]
    /// allows more.
    pub fn new(from: R, limit: usize) -> Self {
        let lines = LineReader::new(from, limit);
        Self { lines, limit, event: StreamEvent::default(), data: None, raised: None, skipping: None }
    }

    /// Returns the next event, `None` at the end of the stream or on an error; an incomplete event does not
    /// count. When data reaches the limit, `judge` decides from its beginning how long it may be. Dropping
    /// the future early loses nothing.
    pub async fn next(&mut self, judge: impl Fn(&[u8]) -> usize) -> Option<StreamEvent> {
        loop {
            let of_line = |line: &[u8]| match line.strip_prefix(b"data:") {
                Some(data) if self.data.is_none() => judge(data),
                // A further line of data, which may be long itself.
                Some(_) => self.raised.unwrap_or_else(|| self.data.as_deref().map_or(0, &judge)),
                None => 0,
            };
            match self.lines.next_or_empty_within(of_line).await? {
                Line::Whole(line) if line.is_empty() => {
                    if let Some(event) = self.end() {
                        return Some(event);
                    }
                }
                Line::Whole(line) => self.field(line, &judge),
                Line::TooLong(line) => self.give_up(line.strip_prefix(b"data:").unwrap_or_default()),
                Line::TooLongEnd(tail) => {
                    if let Some((_, end)) = &mut self.skipping {
                        *end = tail;
                    }
                }
            }
        }
    }

    fn field(&mut self, mut line: BytesMut, judge: &impl Fn(&[u8]) -> usize) {
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        let name = line.split_to(colon);
        line.advance(line.len().min(1));
        if line.first() == Some(&b' ') {
            line.advance(1);
        }
        let text = || String::from_utf8_lossy(&line).into_owned();
        match name.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(&name) {
            b"event" => self.event.kind = text(),
            b"id" if !line.contains(&0) => self.event.id = Some(text()),
            b"retry" => self.event.retry = text().parse().ok(),
            b"data" => match (&mut self.skipping, &mut self.data) {
                (Some((_, end)), _) => *end = text(),
                (None, None) => self.data = Some(line),
                (None, Some(data)) => {
                    data.extend_from_slice(b"\n");
                    data.extend_from_slice(&line);
                    // Asked only once, because the answer requires a pass over all the data.
                    if data.len() > self.limit && data.len() > *self.raised.get_or_insert_with(|| judge(data))
                    {
                        self.give_up(b"");
                    }
                }
            },
            _ => {}
        }
    }

    /// Discards an event's data that is too long. `more` is the beginning of the line that exceeded the
    /// limit.
    fn give_up(&mut self, more: &[u8]) {
        let beginning = self.data.take().unwrap_or_else(|| more.into());
        self.skipping.get_or_insert((beginning.freeze(), String::new()));
    }

    fn end(&mut self) -> Option<StreamEvent> {
        let mut event = std::mem::take(&mut self.event);
        self.raised = None;
        event.data = match (self.skipping.take(), self.data.take()) {
            (Some((beginning, end)), _) => EventData::TooLong(beginning, end),
            (None, Some(data)) => EventData::Whole(data.freeze()),
            (None, None) => EventData::None,
        };
        (event != StreamEvent::default()).then_some(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read_all(text: &[u8], limit: usize, longer: usize) -> Vec<StreamEvent> {
        let mut events = EventReader::new(text, limit);
        let mut all = Vec::new();
        while let Some(event) = events.next(|_| longer).await {
            all.push(event);
        }
        all
    }

    fn whole(text: &'static str) -> EventData {
        EventData::Whole(Bytes::from_static(text.as_bytes()))
    }

    #[tokio::test]
    async fn events_are_read_as_servers_write_them() {
        let text = b"\xEF\xBB\xBFevent: endpoint\r\ndata: /messages?a=1\r\n\r\n: ping\r\n\r\n\
            event:message\ndata:{\"a\":1}\nid: 7\nretry: x\nodd\n\n\
            data: {\ndata:   \"b\": 2\ndata: }\nretry: 20\n\n\
            id: 8\n\n\
            data: {\"cut\":1}\n";
        let all = read_all(text, 1_000, 0).await;
        let event = |kind: &str, id: Option<&str>, retry, data| {
            let (kind, id) = (kind.into(), id.map(String::from));
            StreamEvent { kind, id, retry, data }
        };
        assert_eq!(
            all,
            [
                event("endpoint", None, None, whole("/messages?a=1")),
                event("message", Some("7"), None, whole("{\"a\":1}")),
                event("", None, Some(20), whole("{\n  \"b\": 2\n}")),
                event("", Some("8"), None, EventData::None),
            ]
        );
    }

    #[tokio::test]
    async fn an_event_that_is_too_long_is_skipped_and_its_ends_are_known() {
        let long = "x".repeat(300_000);
        let lines = "data: \"some text\",\n".repeat(100);
        for (event, beginning, end) in [
            (format!("data: {{\"id\": 7,\"result\":\"{long}\"}}"), "{\"id\": 7,", "xxx\"}\n"),
            (format!("data: {{\"result\":\"{long}\",\"id\": 7}}"), "{\"result\"", ",\"id\": 7}\n"),
            (format!("data: {{\"id\": 7,\ndata: \"result\":\"{long}\"}}"), "{\"id\": 7,", "xxx\"}\n"),
            (format!("data: {{\"id\": 7, \"result\": [\n{lines}data: 1]}}"), "{\"id\": 7, ", "1]}"),
        ] {
            let text = format!("{event}\nid: 3\n\ndata: after\n\n");
            let all = read_all(text.as_bytes(), 1_000, 0).await;
            assert_eq!(all.len(), 2, "{event:.30}");
            let EventData::TooLong(head, tail) = &all[0].data else { panic!("{event:.30}") };
            let head = String::from_utf8_lossy(head);
            assert!(head.trim_start().starts_with(beginning) && tail.ends_with(end), "{head:.30} {tail}");
            assert_eq!((all[0].id.as_deref(), &all[1].data), (Some("3"), &whole("after")));
            let all = read_all(text.as_bytes(), 1_000, 400_000).await;
            assert!(matches!(&all[0].data, EventData::Whole(data) if data.len() > 1_000), "{event:.30}");
        }
    }
}
