//! A server's messages on their way to being parsed: complete messages within their limits.
//!
//! Text that is not JSON is skipped, and a request whose answer is broken or too large fails, so that nothing
//! waits for ever. All transports to servers deliver into this inbox.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use nonet_base::text::clip;
use rmcp::model::RequestId;

use super::{
    Limits, MessageFault, SizeLimit,
    message::{Message, MessageHead, MessageKind, MessageStart, RefusedMessage, ScannedMessage},
    scan::{MemberRanges, elements},
    sse::{EventData, StreamEvent},
};

/// How many messages of a batch are read.
const MAX_BATCH: usize = 1_000;
/// How many unusable messages are logged; the rest are not.
const LOGGED: u64 = 5;
/// How many characters of an unusable message are shown.
const SHOWN: usize = 200;
/// The JSON-RPC error code for an unusable answer.
const UNUSABLE: i32 = -32603;

/// How many characters are shown of an error that exceeds the limit of a server's messages.
const SHOWN_ERROR: usize = 2_000;

/// What is known about outstanding requests.
pub trait Expectations {
    /// Returns the limits of the connection.
    fn limits(&self) -> &Limits;
    /// Returns the size limit of the answer to a request; `None` if no answer to it is outstanding.
    fn bound(&self, id: &RequestId) -> Option<SizeLimit>;
}

/// Returns the size limit of a message with this beginning.
fn bound(start: &MessageStart<'_>, awaited: &impl Expectations) -> SizeLimit {
    let limits = awaited.limits();
    match (start.kind(), start.id()) {
        // Its messages are checked one by one. Only one old revision has batches, and none contains results
        // that large.
        _ if start.is_batch() => limits.page,
        (MessageKind::Result | MessageKind::Other, Some(id)) => {
            awaited.bound(&id).unwrap_or(limits.of_server)
        }
        // The id of its request is at the end.
        (MessageKind::Result, None) if start.id_text().is_none() => limits.answer,
        _ => limits.of_server,
    }
}

/// Returns the byte limit of a message with this beginning, for [`super::LineReader::next_within`].
pub fn judge(beginning: &[u8], awaited: &impl Expectations) -> usize {
    let (members, _) = MemberRanges::find(beginning, usize::MAX);
    bound(&MessageStart::of(beginning, &members), awaited).bytes
}

/// The result of scanning a text.
pub enum Scan {
    /// A text that is not an array. Whether it is a valid message has not been checked yet.
    One(ScannedMessage),
    /// The elements of an array, at most 1,000; further ones are dropped.
    Batch(Vec<ScannedMessage>),
    /// An array that is broken or has too many values. It is logged and skipped.
    Noise(Bytes),
}

/// Scans a text that should be one message, or a batch of them, with at most `most` values.
pub fn scan(text: Bytes, most: usize) -> Scan {
    if text.trim_ascii_start().first() != Some(&b'[') {
        return Scan::One(ScannedMessage::of(text, most));
    }
    match elements(&text, MAX_BATCH, most) {
        Some(batch) => {
            Scan::Batch(batch.into_iter().map(|at| ScannedMessage::of(text.slice(at), most)).collect())
        }
        None => Scan::Noise(text),
    }
}

/// One connection's messages that wait to be parsed.
pub struct Inbox {
    server: Arc<str>,
    /// The container of a message, for the log.
    piece: &'static str,
    ready: VecDeque<Message>,
    refusals: Vec<Bytes>,
    /// A message that is too long, kept until its end gives its id.
    open: Option<(MessageHead, MessageFault, String)>,
    logged: u64,
}

impl Inbox {
    /// Returns an empty inbox. `piece` names the container of a message.
    pub fn new(server: Arc<str>, piece: &'static str) -> Self {
        let (ready, refusals) = (VecDeque::new(), Vec::new());
        Self { server, piece, ready, refusals, open: None, logged: 0 }
    }

    /// Takes the next message.
    pub fn pop(&mut self) -> Option<Message> {
        self.ready.pop_front()
    }

    /// Takes the answers to the server's rejected requests, to be sent to it.
    pub fn refusals(&mut self) -> impl Iterator<Item = Bytes> + '_ {
        self.refusals.drain(..)
    }

    /// Takes a scanned text.
    pub fn take(&mut self, scan: Scan, awaited: &impl Expectations) {
        match scan {
            Scan::One(scanned) => self.take_one(scanned, awaited),
            Scan::Batch(batch) => batch.into_iter().for_each(|scanned| self.take_one(scanned, awaited)),
            Scan::Noise(text) => self.note("not a JSON-RPC message; skipped", &text),
        }
    }

    /// Takes an event. Returns the text of one that holds messages, to be scanned.
    pub fn take_event(&mut self, event: StreamEvent, awaited: &impl Expectations) -> Option<Bytes> {
        match event.data {
            EventData::Whole(data) if event.is_message() => return Some(data),
            EventData::TooLong(beginning, tail) => {
                self.too_long(&beginning, awaited);
                self.too_long_end(&tail);
            }
            // Pings and other event types.
            _ => {}
        }
        None
    }

    fn take_one(&mut self, scanned: ScannedMessage, awaited: &impl Expectations) {
        match scanned.within(|start| bound(start, awaited)) {
            Ok(message) => self.ready.push_back(message),
            Err(RefusedMessage { head, fault, bytes })
                if fault.is_syntax() && head.kind == MessageKind::Other =>
            {
                self.note("not a JSON-RPC message; skipped", &bytes);
            }
            Err(RefusedMessage { head, fault, bytes }) => {
                self.note(&format!("{fault}; skipped"), &bytes);
                let said = error_excerpt(&head, &bytes);
                self.refuse(head, fault, &said);
            }
        }
    }

    /// Takes the beginning of a message that is too long. Its request fails, if the beginning identifies it.
    pub fn too_long(&mut self, beginning: &[u8], awaited: &impl Expectations) {
        let head = MessageHead::of(beginning);
        let fault = MessageFault::TooLong(judge(beginning, awaited));
        self.note(&format!("{fault}; skipped"), beginning);
        let said = error_excerpt(&head, beginning);
        match head.id {
            Some(_) => self.refuse(head, fault, &said),
            None => self.open = Some((head, fault, said)),
        }
    }

    /// Takes the end of such a message, which may identify the request if the beginning did not.
    pub fn too_long_end(&mut self, tail: &str) {
        if let Some((head, fault, said)) = self.open.take() {
            self.refuse(head.with_tail(tail), fault, &said);
        }
    }

    /// Fails a skipped message for everyone who waits: the caller whose request it answers, or the server
    /// that sent it.
    fn refuse(&mut self, head: MessageHead, fault: MessageFault, said: &str) {
        let Some(id) = head.id else { return };
        match head.kind {
            MessageKind::Notification => {}
            MessageKind::Request => {
                let (code, what) = fault.of_request();
                self.refusals.push(Message::failure(&id, code, &what));
            }
            MessageKind::Result | MessageKind::Error | MessageKind::Other => {
                let what = format!("the answer is {fault}; it was dropped{said}");
                self.ready.extend(Message::of(Message::failure(&id, UNUSABLE, &what)));
            }
        }
    }

    /// Answers an unreadable request from the server, so that the server does not wait.
    pub fn refuse_unread(&mut self, message: &Message, what: &str) {
        if let (MessageKind::Request, Some(id)) = (message.kind(), message.id_text()) {
            self.refusals.push(Message::failure(
                &id,
                -32600,
                &format!("Invalid Request: {}", clip(what, SHOWN)),
            ));
        }
    }

    /// Logs a message that was skipped.
    pub fn note(&mut self, what: &str, text: &[u8]) {
        self.logged += 1;
        if self.logged <= LOGGED {
            let text = String::from_utf8_lossy(&text[..text.len().min(4 * SHOWN)]);
            tracing::warn!(server = %self.server, text = %clip(&text, SHOWN), "{}: {what}", self.piece);
        }
        if self.logged == LOGGED {
            tracing::warn!(server = %self.server, "further ones of this kind are not logged");
        }
    }
}

/// Returns an excerpt of an error that is too long.
pub fn error_excerpt(head: &MessageHead, beginning: &[u8]) -> String {
    if head.kind != MessageKind::Error {
        return String::new();
    }
    let error = MemberRanges::find(beginning, usize::MAX).0.error.unwrap_or_default();
    let error =
        String::from_utf8_lossy(&beginning[error.start..error.end.min(error.start + 4 * SHOWN_ERROR)]);
    format!(". The error begins with: {}", clip(&error, SHOWN_ERROR))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits::new(1 << 20, 8 << 20, 32 << 20, 64 << 20, 4 << 20);

    struct Some7;

    impl Expectations for Some7 {
        fn limits(&self) -> &Limits {
            &LIMITS
        }

        fn bound(&self, id: &RequestId) -> Option<SizeLimit> {
            match id.to_string().as_str() {
                "7" => Some(LIMITS.answer),
                "8" => Some(LIMITS.page),
                _ => None,
            }
        }
    }

    fn take(text: String) -> (Vec<String>, Vec<String>) {
        let mut inbox = Inbox::new("s".into(), "a line");
        inbox.take(scan(text.into(), LIMITS.answer.values), &Some7);
        let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let refusals = inbox.refusals().map(|bytes| shown(&bytes)).collect();
        (std::iter::from_fn(|| inbox.pop()).map(|message| shown(message.bytes())).collect(), refusals)
    }

    fn mib(count: usize) -> String {
        "x".repeat(count << 20)
    }

    #[test]
    fn each_kind_has_its_own_bound() {
        let check = |text: String, taken: bool| {
            let (ready, refusals) = take(text.clone());
            assert_eq!(ready == [text.as_str()] && refusals.is_empty(), taken, "{}", clip(&text, 80));
        };
        check(format!("{{\"method\":\"x\",\"params\":{{\"a\":\"{}\"}}}}", &mib(1)[..1_000_000]), true);
        check(format!("{{\"method\":\"x\",\"params\":{{\"a\":\"{}\"}}}}", mib(1)), false);
        check(format!("{{\"id\":1,\"method\":\"x\",\"params\":{{\"a\":\"{}\"}}}}", mib(1)), false);
        check(format!("{{\"id\":7,\"result\":{{\"a\":\"{}\"}}}}", mib(12)), true);
        check(format!("{{\"id\":8,\"result\":{{\"a\":\"{}\"}}}}", mib(7)), true);
        check(format!("{{\"id\":8,\"result\":{{\"a\":\"{}\"}}}}", mib(8)), false);
        check(format!("{{\"result\":{{\"a\":\"{}\"}},\"id\":8}}", mib(8)), false);
        check(format!("{{\"id\":9,\"result\":{{\"a\":\"{}\"}}}}", mib(1)), false);
        check(format!("{{\"id\":7,\"error\":{{\"a\":\"{}\"}}}}", &mib(1)[..1_000_000]), true);
        check(format!("{{\"id\":7,\"error\":{{\"a\":\"{}\"}}}}", mib(1)), false);
        let numbers = |count: usize| vec!["1"; count].join(",");
        check(format!("{{\"method\":\"x\",\"params\":[{}]}}", numbers(20_960)), true);
        check(format!("{{\"method\":\"x\",\"params\":[{}]}}", numbers(20_980)), false);
        check(format!("{{\"id\":7,\"result\":[{}]}}", numbers(100_001)), true);
        check(format!("{{\"id\":7,\"result\":[{}]}}", numbers(2_097_160)), false);
    }

    #[test]
    fn nobody_waits_for_what_was_skipped() {
        let (ready, refusals) = take(format!("{{\"id\":8,\"result\":{{\"a\":\"{}\"}}}}", mib(8)));
        assert_eq!(refusals, [""; 0]);
        assert!(ready[0].contains("\"id\":8,\"error\""), "{ready:?}");
        assert!(ready[0].contains("longer than the limit of 8388608 bytes"), "{ready:?}");
        let (ready, _) =
            take(format!("{{\"id\":7,\"error\":{{\"message\":\"because\",\"data\":\"{}\"}}}}", mib(2)));
        assert!(
            ready[0].contains("The error begins with: {\\\"message\\\":\\\"because")
                && ready[0].len() < 3_000,
            "{ready:?}"
        );
        let (ready, refusals) = take(format!("{{\"method\":\"x\",\"params\":\"{}\",\"id\":\"a\"}}", mib(1)));
        assert_eq!(ready, [""; 0]);
        assert!(refusals[0].contains("\"id\":\"a\",\"error\":{\"code\":-32600"), "{refusals:?}");
        let (ready, _) = take(format!("{{\"id\":7,\"result\":{}{}}}", "[".repeat(200), "]".repeat(200)));
        assert!(ready[0].contains("nested deeper than 127 levels"), "{ready:?}");
        let (_, refusals) =
            take(format!("{{\"method\":\"x\",\"params\":{}{},\"id\":7}}", "[".repeat(200), "]".repeat(200)));
        assert!(refusals[0].contains("\"id\":7,\"error\""), "{refusals:?}");
        assert_eq!(take(format!("{{\"method\":\"x\",\"params\":\"{}\"}}", mib(2))), (vec![], vec![]));
    }

    #[test]
    fn a_message_that_was_never_whole_is_answered_from_its_ends() {
        let check = |beginning: &str, tail: &str, ready: usize, refusals: usize| {
            let mut inbox = Inbox::new("s".into(), "a line");
            inbox.too_long(beginning.as_bytes(), &Some7);
            inbox.too_long_end(tail);
            let counts = (inbox.ready.len(), inbox.refusals.len());
            assert_eq!(counts, (ready, refusals), "{beginning} ... {tail}");
        };
        check("{\"id\":7,\"result\":{\"a\":\"x", "x\"},\"id\":6}", 1, 0);
        check("{\"result\":{\"a\":\"x", "x\"},\"id\":6}", 1, 0);
        check("{\"method\":\"x\",\"params\":{\"a\":\"x", "x\"},\"id\":6}", 0, 1);
        check("{\"id\":6,\"method\":\"x\",\"params\":{\"a\":\"x", "x\"}}", 0, 1);
        check("{\"method\":\"x\",\"params\":{\"a\":\"x", "x\"}}", 0, 0);
        check("xxx", "xxx", 0, 0);
    }

    #[test]
    fn noise_is_skipped_and_batches_are_opened() {
        assert_eq!(take("hello".into()).0, [""; 0]);
        assert_eq!(take(" [{\"b\":2}, {\"c\":3} ]".into()).0, ["{\"b\":2}", "{\"c\":3}"]);
        assert_eq!(take(format!("[{}{{}}]", "{},".repeat(1_500))).0.len(), MAX_BATCH);
    }
}
