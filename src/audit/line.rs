//! One line: JSON with the hash of the line before it and its own, which covers everything before.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::text::hex;

/// A SHA-256 as hex digits.
pub(super) const HASH: usize = 64;
/// What stands before and behind a line's own hash.
const BEFORE: &str = ",\"hash\":\"";
const BEHIND: &str = "\"}";

/// Where a chain has come to: the number and the hash of its last line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The number of the last line; 0 before the first.
    pub seq: u64,
    /// Its hash; zeros before the first.
    pub hash: String,
}

impl Default for Head {
    fn default() -> Self {
        Self { seq: 0, hash: "0".repeat(HASH) }
    }
}

/// The params of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Params {
    /// A keyed hash: equal for equal params, and of no use to whoever guesses.
    pub hash: String,
    /// The params themselves, if they are wanted, without secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// Who allowed a call that a rule made a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Approver {
    /// The user, in a form of the client.
    Form,
    /// The user in the chat, in the words of the model.
    Chat,
    /// The user, earlier, for the rest of the session.
    Session,
    /// The user, on the live page.
    Page,
    /// The user, with `nonet approve`.
    Command,
    /// The webhook of the configuration.
    Webhook,
}

/// What one line says beside its place in the chain. What is not known is left out.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Entry {
    /// `call`, or what else has happened.
    pub event: &'static str,
    /// The client's name, as it gives it.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub client: Box<str>,
    /// The number of the session in this gateway.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<u64>,
    /// The client's profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// The place of the client's bearer token in `servers.toml`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<Arc<str>>,
    /// The apps that the call was made inside of, the outermost first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub within: Vec<Arc<str>>,
    /// The tool's full name; what the caller wrote if there is no such tool.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub tool: Arc<str>,
    /// The hash of the tool's definition, as `get_tool` shows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<Box<str>>,
    /// Its params.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub params: Option<Params>,
    /// `allow`, `approve` or `deny`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<&'static str>,
    /// The key of the configuration that says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// Who allowed it, if that was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approver: Option<Approver>,
    /// `ok`, `tool_error`, or the code of a fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<&'static str>,
    /// The size of the params as JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_in: Option<usize>,
    /// The size of the result as JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_out: Option<usize>,
    /// The time in the gateway: checks, questions to the user, waiting for a turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway_us: Option<u64>,
    /// The time at the server, with the wait for a free slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_us: Option<u64>,
    /// From the request to the end of the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub elapsed_us: Option<u64>,
    /// More of an event.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub about: Map<String, Value>,
}

/// A line as it is written.
#[derive(Serialize)]
struct Written<'a> {
    seq: u64,
    prev: &'a str,
    at: &'a str,
    gateway: &'a str,
    #[serde(flatten)]
    entry: &'a Entry,
}

/// Adds a line to `out`, and moves the head of the chain on to it. Returns where the line begins.
pub(super) fn write(out: &mut Vec<u8>, head: &mut Head, at_ms: u64, gateway: &str, entry: &Entry) -> usize {
    let begin = out.len();
    let seq = head.seq + 1;
    let ms = i64::try_from(at_ms).unwrap_or(i64::MAX);
    let at = jiff::Timestamp::from_millisecond(ms).unwrap_or_default();
    let at = format!("{at:.3}");
    let written = Written { seq, prev: &head.hash, at: &at, gateway, entry };
    // Writing into memory cannot fail, and every key is text.
    let _ = serde_json::to_writer(&mut *out, &written);
    out.pop();
    let hash = hex(&Sha256::digest(&out[begin..]));
    for part in [BEFORE, &hash, BEHIND, "\n"] {
        out.extend_from_slice(part.as_bytes());
    }
    *head = Head { seq, hash };
    begin
}

/// What of a line says where it belongs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct Place {
    pub seq: u64,
    pub prev: String,
    pub hash: String,
    #[serde(default)]
    pub event: String,
    #[serde(default)]
    pub about: Option<Value>,
}

/// Why a line is not one that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// It is not JSON, or lacks what every line has.
    Unreadable,
    /// Its hash is not that of its content.
    Edited,
}

/// Reads a line without its end.
pub(super) fn read(line: &[u8]) -> Result<Place, Broken> {
    let place: Place = serde_json::from_slice(line).map_err(|_| Broken::Unreadable)?;
    let tail = format!("{BEFORE}{}{BEHIND}", place.hash);
    match line.strip_suffix(tail.as_bytes()) {
        Some(content) if hex(&Sha256::digest(content)) == place.hash => Ok(place),
        Some(_) | None => Err(Broken::Edited),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_it_was_written_and_no_other_way() {
        let (mut out, mut head) = (Vec::new(), Head::default());
        let entry = Entry { event: "call", tool: "shop.buy".into(), outcome: Some("ok"), ..Entry::default() };
        write(&mut out, &mut head, 1_700_000_000_123, "g", &entry);
        let begin = write(&mut out, &mut head, 1_700_000_000_123, "g", &entry);
        let text = String::from_utf8(out).expect("text");
        let (first, second) = text.trim_end().split_once('\n').expect("two lines");
        let (one, two) = (read(first.as_bytes()).expect("read"), read(second.as_bytes()).expect("read"));
        assert_eq!(begin, first.len() + 1);
        assert_eq!((one.seq, two.seq, &two.prev, &two.hash), (1, 2, &one.hash, &head.hash));
        assert!(first.contains(r#""at":"2023-11-14T22:13:20.123Z""#), "{first}");
        let check = |line: String, expected| assert_eq!(read(line.as_bytes()), Err(expected), "{line}");
        check(first.replace("shop.buy", "shop.bug"), Broken::Edited);
        check(first.replace("\"seq\":1", "\"seq\":2"), Broken::Edited);
        check(first[..first.len() - 1].into(), Broken::Unreadable);
        check(first.replace(&one.hash, &one.prev), Broken::Edited);
        check(format!("{first} "), Broken::Edited);
        check("{}".into(), Broken::Unreadable);
    }
}
