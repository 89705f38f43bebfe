//! What a server sent, on its way to being read: whole messages within their bounds.
//!
//! Text that is not JSON is skipped, and a request whose answer is broken or too large fails, so that nothing is left
//! waiting. All transports to servers are filled from here.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use rmcp::model::RequestId;

use super::{
    ANSWER, MessageFault, OF_SERVER, SizeLimit,
    message::{Head, Message, MessageKind, Refused},
    scan::elements,
    sse::{Data, StreamEvent},
};
use crate::text::clip;

/// How many messages of a batch are read.
const MAX_BATCH: usize = 1_000;
/// How many messages that cannot be used are logged; the rest are not.
const LOGGED: u64 = 5;
/// How much of such a message is shown, in characters.
const SHOWN: usize = 200;
/// The JSON-RPC error code of an answer that cannot be used.
const UNUSABLE: i32 = -32603;

/// What is known of the requests whose answers are awaited.
pub trait Expectations {
    /// How large the answer to a request may be; none if no answer to it is awaited.
    fn bound(&self, id: &RequestId) -> Option<SizeLimit>;
}

/// How large a message may be that begins like this.
fn bound(head: &Head, awaited: &impl Expectations) -> SizeLimit {
    match (&head.id, head.kind) {
        // What is in it is judged for itself.
        _ if head.is_batch => ANSWER,
        // The id of its request is at the end.
        (None, MessageKind::Result | MessageKind::Error) => ANSWER,
        (Some(id), MessageKind::Result | MessageKind::Error | MessageKind::Other) => {
            serde_json::from_str(id).ok().and_then(|id| awaited.bound(&id)).unwrap_or(OF_SERVER)
        }
        _ => OF_SERVER,
    }
}

/// How many bytes a message may have that begins like this: what [`super::LineReader::next_within`] asks.
pub fn judge(beginning: &[u8], awaited: &impl Expectations) -> usize {
    bound(&Head::of(beginning), awaited).bytes
}

/// The messages of one connection that wait to be read.
pub struct Inbox {
    server: Arc<str>,
    /// What a message is in, for the log.
    piece: &'static str,
    ready: VecDeque<Message>,
    refusals: Vec<Bytes>,
    /// A message that is too long, until its end says whose it is.
    open: Option<(Head, MessageFault)>,
    logged: u64,
}

impl Inbox {
    /// An empty one. `piece` names what a message is in.
    pub fn new(server: Arc<str>, piece: &'static str) -> Self {
        let (ready, refusals) = (VecDeque::new(), Vec::new());
        Self { server, piece, ready, refusals, open: None, logged: 0 }
    }

    /// The next message.
    pub fn pop(&mut self) -> Option<Message> {
        self.ready.pop_front()
    }

    /// Answers to requests of the server that were not taken: to be sent to it.
    pub fn refusals(&mut self) -> impl Iterator<Item = Bytes> + '_ {
        self.refusals.drain(..)
    }

    /// Takes a text that should be one message, or a batch of them.
    pub fn take(&mut self, text: Bytes, awaited: &impl Expectations) {
        if text.trim_ascii_start().first() != Some(&b'[') {
            return self.take_one(text, awaited);
        }
        match elements(&text, MAX_BATCH, ANSWER.values) {
            Some(batch) => batch.into_iter().for_each(|at| self.take_one(text.slice(at), awaited)),
            None => self.note("no JSON-RPC message; skipped", &text),
        }
    }

    /// Takes the messages of an event.
    pub fn take_event(&mut self, event: StreamEvent, awaited: &impl Expectations) {
        match event.data {
            Data::Whole(data) if event.is_message() => self.take(data, awaited),
            Data::TooLong(beginning, tail) => {
                self.too_long(&beginning, awaited);
                self.too_long_end(&tail);
            }
            // Pings and the like.
            _ => {}
        }
    }

    fn take_one(&mut self, text: Bytes, awaited: &impl Expectations) {
        match Message::within(text, |head| bound(head, awaited)) {
            Ok(message) => self.ready.push_back(message),
            Err(Refused { head, fault, bytes }) if fault.is_syntax() && head.kind == MessageKind::Other => {
                self.note("no JSON-RPC message; skipped", &bytes);
            }
            Err(Refused { head, fault, bytes }) => {
                self.note(&format!("{fault}; skipped"), &bytes);
                self.refuse(head, fault);
            }
        }
    }

    /// Takes the beginning of a message that is too long. Its request fails, if it can be told from there.
    pub fn too_long(&mut self, beginning: &[u8], awaited: &impl Expectations) {
        let head = Head::of(beginning);
        let fault = MessageFault::TooLong(bound(&head, awaited).bytes);
        self.note(&format!("{fault}; skipped"), beginning);
        match head.id {
            Some(_) => self.refuse(head, fault),
            None => self.open = Some((head, fault)),
        }
    }

    /// Takes the end of such a message, which may tell the request where the beginning did not.
    pub fn too_long_end(&mut self, tail: &str) {
        if let Some((head, fault)) = self.open.take() {
            self.refuse(head.with_tail(tail), fault);
        }
    }

    /// Lets nobody wait for a message that was skipped: neither whoever asked for it, nor the server that asks.
    fn refuse(&mut self, head: Head, fault: MessageFault) {
        let Some(id) = head.id else { return };
        match head.kind {
            MessageKind::Notification => {}
            MessageKind::Request => {
                let (code, what) = fault.of_request();
                self.refusals.push(Message::failure(&id, code, &what));
            }
            MessageKind::Result | MessageKind::Error | MessageKind::Other => {
                let what = format!("the answer is {fault}; it was dropped");
                self.ready.extend(Message::of(Message::failure(&id, UNUSABLE, &what)));
            }
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

#[cfg(test)]
mod tests {
    use super::{super::PAGE, *};

    struct Some7;

    impl Expectations for Some7 {
        fn bound(&self, id: &RequestId) -> Option<SizeLimit> {
            match id.to_string().as_str() {
                "7" => Some(ANSWER),
                "8" => Some(PAGE),
                _ => None,
            }
        }
    }

    fn take(text: String) -> (Vec<String>, Vec<String>) {
        let mut inbox = Inbox::new("s".into(), "a line");
        inbox.take(text.into(), &Some7);
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
        let numbers = |count: usize| vec!["1"; count].join(",");
        check(format!("{{\"method\":\"x\",\"params\":[{}]}}", numbers(99_990)), true);
        check(format!("{{\"method\":\"x\",\"params\":[{}]}}", numbers(100_001)), false);
        check(format!("{{\"id\":7,\"result\":[{}]}}", numbers(100_001)), true);
        check(format!("{{\"id\":7,\"result\":[{}]}}", numbers(4_000_001)), false);
    }

    #[test]
    fn nobody_waits_for_what_was_skipped() {
        let (ready, refusals) = take(format!("{{\"id\":8,\"result\":{{\"a\":\"{}\"}}}}", mib(8)));
        assert_eq!(refusals, [""; 0]);
        assert!(ready[0].contains("\"id\":8,\"error\""), "{ready:?}");
        assert!(ready[0].contains("longer than the limit of 8388608 bytes"), "{ready:?}");
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
