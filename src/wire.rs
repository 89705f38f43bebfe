//! What goes over the wire: JSON-RPC messages as bytes, their limits, and the ways of sending and receiving them.
//!
//! Both rims and the bridge are built on this room. A message is scanned before anything of it is parsed (`scan`), and its
//! envelope is read without its contents (`message`). How large it may be depends on its kind ([`SizeLimit`]). `rmcp` holds what
//! works around the protocol library.

pub mod http;
mod inbox;
mod lines;
mod message;
pub mod rmcp;
mod scan;
mod sse;
pub mod web;

pub(crate) use self::{
    inbox::{Expectations, Inbox, judge},
    lines::{Line, LineReader, LineWriter},
    message::{Head, Message, MessageKind, Refused, VERSION_KEY},
    scan::JsonFlaw,
    sse::{BodyStream, Data, EventReader, StreamEvent},
};

/// How large a message may be. What is larger is not parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeLimit {
    /// Its length, in bytes.
    pub bytes: usize,
    /// How many JSON values it may hold: a tree takes about 100 bytes for each.
    pub values: usize,
}

/// Requests and notifications of a server.
pub const OF_SERVER: SizeLimit = SizeLimit { bytes: 1 << 20, values: 100_000 };
/// One page of a server's list, and answers about the connection itself.
pub const PAGE: SizeLimit = SizeLimit { bytes: 8 << 20, values: 1_000_000 };
/// All pages of a list together, in bytes.
pub const MAX_LIST: usize = 32 << 20;
/// Results of calls and other answers of a server that go through to a client.
pub const ANSWER: SizeLimit = SizeLimit { bytes: 256 << 20, values: 4_000_000 };
/// Messages of a client.
pub const OF_CLIENT: SizeLimit = SizeLimit { bytes: 4 << 20, values: 1_000_000 };

/// Why a message is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageFault {
    /// It is longer than its kind may be.
    #[error("longer than the limit of {0} bytes")]
    TooLong(usize),
    /// It would be too large as a tree, or is not JSON.
    #[error(transparent)]
    Json(#[from] JsonFlaw),
}

impl MessageFault {
    /// Whether the text is not a JSON object at all.
    pub fn is_syntax(self) -> bool {
        matches!(self, Self::Json(JsonFlaw::NotAnObject | JsonFlaw::CutOff))
    }

    /// The JSON-RPC error code of the answer to a request with this fault, and what the answer says.
    pub fn of_request(self) -> (i32, String) {
        match self.is_syntax() {
            true => (-32700, format!("Parse error: {self}")),
            false => (-32600, format!("Invalid Request: {self}")),
        }
    }
}

impl SizeLimit {
    /// Whether a message of this length and result of the scan stays within the bound.
    fn check(self, bytes: usize, scanned: Result<usize, JsonFlaw>) -> Result<(), MessageFault> {
        match scanned {
            // A scan for a larger bound may have gone on for longer.
            Ok(values) if values > self.values => Err(JsonFlaw::TooManyValues(self.values).into()),
            Err(JsonFlaw::TooManyValues(_)) => Err(JsonFlaw::TooManyValues(self.values).into()),
            Err(flaw) => Err(flaw.into()),
            Ok(_) if bytes > self.bytes => Err(MessageFault::TooLong(self.bytes)),
            Ok(_) => Ok(()),
        }
    }
}

/// How many bytes a value takes as JSON.
pub(crate) fn size(value: &serde_json::Value) -> usize {
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
    // Counting cannot fail, and every value can be written.
    let _ = serde_json::to_writer(&mut counter, value);
    counter.0
}
