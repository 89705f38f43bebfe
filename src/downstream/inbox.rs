//! What a server sent, on its way to being read: messages as JSON, whole or broken.
//!
//! Text that is no JSON is skipped, and a request whose answer is broken or too long fails, so that
//! nothing is left waiting. Both transports that Nonet reads itself are filled from here.

use std::{collections::VecDeque, sync::Arc};

use serde_json::{Value, json};

use crate::{
    lines::{id_at_end, id_in},
    text::clip,
};

const TOO_LONG: &str = "the answer is longer than the limit and was dropped";
/// How many pieces of noise are logged; the rest are counted.
const LOGGED_NOISE: u64 = 5;
/// How much of a text is looked at to tell what it was, in bytes.
const HEAD: usize = 512;

/// The messages of one connection that wait to be read.
pub struct Inbox {
    server: Arc<str>,
    /// What a message stands in, for the log.
    piece: &'static str,
    ready: VecDeque<Value>,
    /// Whose answer was too long, while the rest of it is thrown away.
    told: Option<Value>,
    noise: u64,
}

impl Inbox {
    /// An empty one. `piece` names what a message stands in.
    pub fn new(server: Arc<str>, piece: &'static str) -> Self {
        Self { server, piece, ready: VecDeque::new(), told: None, noise: 0 }
    }

    /// The next message.
    pub fn pop(&mut self) -> Option<Value> {
        self.ready.pop_front()
    }

    /// Takes a text that should be one message, or a batch of them.
    pub fn take(&mut self, text: &[u8]) {
        match serde_json::from_slice(text) {
            Ok(Value::Array(batch)) => self.ready.extend(batch),
            Ok(message) => self.ready.push_back(message),
            Err(error) => {
                let head = head(text);
                // Almost JSON (a lone surrogate, NaN, too deep) that answers a request fails it now.
                if head.starts_with('{')
                    && !head.contains("\"method\"")
                    && let Some(id) = id_in(&String::from_utf8_lossy(text))
                {
                    self.ready.push_back(unreadable(&id, &format!("the answer is no JSON: {error}")));
                }
                self.note_noise(&head);
            }
        }
    }

    /// Takes the beginning of a message that is too long. Its request fails, if it can be told from there.
    pub fn too_long(&mut self, beginning: &[u8]) {
        tracing::warn!(server = %self.server, "{} is longer than the limit and was dropped", self.piece);
        self.told = id_in(&head(beginning));
        let answer = self.told.as_ref().map(|id| unreadable(id, TOO_LONG));
        self.ready.extend(answer);
    }

    /// Takes the end of such a message, which may tell the request where the beginning did not.
    pub fn too_long_end(&mut self, tail: &str) {
        if self.told.take().is_none() {
            self.ready.extend(id_at_end(tail).map(|id| unreadable(&id, TOO_LONG)));
        }
    }

    /// Notes what is no message.
    pub fn note_noise(&mut self, text: &str) {
        self.noise += 1;
        if self.noise <= LOGGED_NOISE {
            tracing::warn!(server = %self.server, text = %clip(text, 200), "{} is no JSON-RPC; skipped", self.piece);
        }
        if self.noise == LOGGED_NOISE {
            tracing::warn!(server = %self.server, "further ones of this kind are skipped without a word");
        }
    }
}

fn head(text: &[u8]) -> String {
    String::from_utf8_lossy(&text[..text.len().min(HEAD)]).into_owned()
}

/// The answer to a request whose own answer cannot be used.
fn unreadable(id: &Value, message: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32603, "message": message}})
}
