//! The wire: JSON-RPC messages as bytes, their limits, and how they are sent and received.
//!
//! Both rims and the bridge are built on this room. A message is scanned before any of it is parsed (`scan`),
//! and its envelope is read without its contents (`message`). Its size limit depends on its kind
//! ([`SizeLimit`]). `rmcp` holds the workarounds for sign-ins.

mod backlog;
mod direct;
mod heavy;
pub mod html;
pub mod http;
mod inbox;
pub mod issuer;
mod lines;
mod message;
pub mod mirrored;
pub mod reach;
pub mod rmcp;
mod scan;
pub mod sealing;
mod sse;
pub mod web;

pub use self::{
    backlog::{Backlog, WaitingMessage},
    heavy::{HeavyParse, MemoryShare, Weight, off_thread},
    inbox::{Expectations, Inbox, Scan, error_excerpt, judge, scan},
    lines::{Line, LineReader, LineWriter},
    message::{
        Message, MessageHead, MessageKind, MessageStart, RefusedMessage, ScannedMessage, VERSION_KEY,
        subject_key,
    },
    scan::JsonFlaw,
    sse::{BodyStream, EventData, EventReader, StreamEvent},
};

/// The maximum size of a message. A larger one is not parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeLimit {
    /// Its length, in bytes.
    pub bytes: usize,
    /// The maximum number of JSON values: a tree takes about 100 bytes for each. A non-empty object counts as
    /// six.
    pub values: usize,
}

impl SizeLimit {
    /// Returns the limit of results of calls with this number of bytes.
    pub const fn of_answer(bytes: usize) -> Self {
        Self { bytes, values: bytes / 32 }
    }
}

/// The size limits of messages, by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// A server's requests and notifications, its errors, and its answers about the connection itself.
    pub of_server: SizeLimit,
    /// One page of a server's list.
    pub page: SizeLimit,
    /// All pages of a list together.
    pub list: SizeLimit,
    /// Results of calls, and other server answers that are passed through to a client.
    pub answer: SizeLimit,
    /// A client's messages.
    pub of_client: SizeLimit,
    /// How many bytes of a server's error are shown to clients.
    pub error: usize,
    /// How many bytes may wait for a peer that does not read.
    pub unread: usize,
}

impl Limits {
    /// Returns limits with these numbers of bytes. The numbers of values follow: a tree of what is allowed
    /// takes a few times its bytes.
    pub const fn new(of_server: usize, page: usize, list: usize, answer: usize, of_client: usize) -> Self {
        Self {
            of_server: SizeLimit { bytes: of_server, values: of_server / 50 },
            page: SizeLimit { bytes: page, values: page / 20 },
            list: SizeLimit { bytes: list, values: list / 32 },
            answer: SizeLimit::of_answer(answer),
            of_client: SizeLimit { bytes: of_client, values: of_client / 20 },
            error: 64 << 10,
            unread: 16 << 20,
        }
    }

    /// Limits above those of any gateway: for code that passes messages on without parsing them into trees.
    pub const HIGHEST: Self = Self::new(16 << 20, 64 << 20, 256 << 20, 256 << 20, 64 << 20);
}

impl Default for Limits {
    fn default() -> Self {
        Self::new(1 << 20, 8 << 20, 32 << 20, 64 << 20, 4 << 20)
    }
}

/// Why a message is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageFault {
    /// It is longer than its kind allows.
    #[error("longer than the limit of {0} bytes")]
    TooLong(usize),
    /// It would be too large as a tree, or is not JSON.
    #[error(transparent)]
    Json(#[from] JsonFlaw),
}

impl MessageFault {
    /// Returns whether the text is not a JSON object at all.
    pub fn is_syntax(self) -> bool {
        matches!(self, Self::Json(JsonFlaw::NotAnObject | JsonFlaw::CutOff))
    }

    /// Returns the JSON-RPC error code and message for a request with this fault.
    pub fn of_request(self) -> (i32, String) {
        match self.is_syntax() {
            true => (-32700, format!("Parse error: {self}")),
            false => (-32600, format!("Invalid Request: {self}")),
        }
    }
}

impl SizeLimit {
    /// Checks that a message's length and the result of its scan are within the limit. Returns its number of
    /// values.
    fn check(self, bytes: usize, scanned: Result<usize, JsonFlaw>) -> Result<usize, MessageFault> {
        match scanned {
            // A scan with a larger limit may have gone on for longer.
            Ok(values) if values > self.values => Err(JsonFlaw::TooManyValues(self.values).into()),
            Err(JsonFlaw::TooManyValues(_)) => Err(JsonFlaw::TooManyValues(self.values).into()),
            Err(flaw) => Err(flaw.into()),
            Ok(_) if bytes > self.bytes => Err(MessageFault::TooLong(self.bytes)),
            Ok(values) => Ok(values),
        }
    }
}

/// Returns the size of a value: its bytes as JSON, and its values as a scan counts them.
pub fn measure(value: &serde_json::Value) -> SizeLimit {
    fn values(value: &serde_json::Value) -> usize {
        match value {
            serde_json::Value::Array(items) => 1 + items.iter().map(values).sum::<usize>(),
            serde_json::Value::Object(members) if members.is_empty() => 1,
            serde_json::Value::Object(members) => {
                scan::OF_OBJECT + members.values().map(values).sum::<usize>()
            }
            _ => 1,
        }
    }
    SizeLimit { bytes: size(value), values: values(value) }
}

/// Returns the size of a value as JSON, in bytes.
pub fn size(value: &serde_json::Value) -> usize {
    struct Counter(usize);
    impl std::io::Write for Counter {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut counter = Counter(0);
    // Counting cannot fail, and every value can be serialized.
    let _ = serde_json::to_writer(&mut counter, value);
    counter.0
}
