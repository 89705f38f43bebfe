//! One line: JSON with the hash of the line before and with its own hash, which covers all earlier lines too.

use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use nonet_api::question::Approver;
use nonet_auth::PersonName;
use nonet_base::text::hex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

/// A SHA-256 as hex digits.
pub(super) const HASH: usize = 64;
/// The text before and behind a line's own hash.
const BEFORE: &str = ",\"hash\":\"";
const BEHIND: &str = "\"}";

/// How lines are hashed: with SHA-256, or with HMAC-SHA-256 (RFC 2104) and the key of the settings, so that
/// whoever can only write the files cannot make a line.
#[derive(Clone, Default)]
pub struct ChainKey(Option<Hmac<Sha256>>);

impl ChainKey {
    /// Takes the key of the settings, if there is one.
    pub fn new(key: Option<&str>) -> Self {
        // HMAC takes keys of any length.
        Self(key.and_then(|key| Hmac::new_from_slice(key.as_bytes()).ok()))
    }

    /// Whether there is a key.
    pub fn is_set(&self) -> bool {
        self.0.is_some()
    }

    fn hash(&self, content: &[u8]) -> String {
        match &self.0 {
            Some(key) => hex(&key.clone().chain_update(content).finalize().into_bytes()),
            None => hex(&Sha256::digest(content)),
        }
    }
}

/// The head of a chain: the number and the hash of its last line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChainHead {
    /// The number of the last line; 0 before the first.
    pub seq: u64,
    /// The hash of the last line; zeros before the first.
    pub hash: String,
}

impl Default for ChainHead {
    fn default() -> Self {
        Self { seq: 0, hash: "0".repeat(HASH) }
    }
}

/// The params of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AuditedParams {
    /// A keyed hash: equal for equal params, and useless for guessing them.
    pub hash: String,
    /// The params themselves without secrets, if the settings want them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// The content of a line, apart from its place in the chain. Unknown fields are left out.
#[derive(Clone, Debug, Default, Serialize)]
pub struct AuditEntry {
    /// `call`, or the name of another event.
    pub event: &'static str,
    /// The client's name, as the client states it.
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
    /// The person who signed in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub person: Option<PersonName>,
    /// The apps around the call, the outermost first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub within: Vec<Arc<str>>,
    /// The tool's full name; for an unknown tool, the name that the caller wrote.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub tool: Arc<str>,
    /// The hash of the tool's definition, as `get_tool` shows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<Box<str>>,
    /// Its params.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub params: Option<AuditedParams>,
    /// `allow`, `approve` or `deny`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<&'static str>,
    /// The configuration key that decides so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// Who approved it, if approval was required.
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
    /// The time in the server, including the wait for a free slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_us: Option<u64>,
    /// The time from the request to the end of the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub elapsed_us: Option<u64>,
    /// More fields of an event.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub about: Map<String, Value>,
}

/// A line as it is written.
#[derive(Serialize)]
struct AuditLine<'a> {
    seq: u64,
    prev: &'a str,
    at: &'a str,
    gateway: &'a str,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    keyed: bool,
    #[serde(flatten)]
    entry: &'a AuditEntry,
}

/// Appends a line to `out` and moves the head of the chain to it. Returns where the line begins.
pub(super) fn write(
    out: &mut Vec<u8>,
    head: &mut ChainHead,
    at_ms: u64,
    gateway: &str,
    entry: &AuditEntry,
    key: &ChainKey,
) -> usize {
    let begin = out.len();
    let seq = head.seq + 1;
    let ms = i64::try_from(at_ms).unwrap_or(i64::MAX);
    let at = jiff::Timestamp::from_millisecond(ms).unwrap_or_default();
    let at = format!("{at:.3}");
    let written = AuditLine { seq, prev: &head.hash, at: &at, gateway, keyed: key.is_set(), entry };
    // Writing into memory cannot fail, and every key is text.
    let _ = serde_json::to_writer(&mut *out, &written);
    out.pop();
    let hash = key.hash(&out[begin..]);
    for part in [BEFORE, &hash, BEHIND, "\n"] {
        out.extend_from_slice(part.as_bytes());
    }
    *head = ChainHead { seq, hash };
    begin
}

/// The part of a line that places it in its chain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct ChainPlace {
    pub seq: u64,
    pub prev: String,
    pub hash: String,
    /// Whether the hash needs the key.
    #[serde(default)]
    pub keyed: bool,
    #[serde(default)]
    pub event: String,
    #[serde(default)]
    pub about: Option<Value>,
}

/// Why a line is not as it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineFlaw {
    /// The line is not JSON, or lacks a mandatory field.
    Unreadable,
    /// The line's hash does not match its content.
    Edited,
    /// The same of a line with a key: the line was edited, or written with another key.
    OtherKey,
    /// The line was written with a key, and there is none to check it with.
    NeedsKey,
}

/// Reads a line without its newline.
pub(super) fn read(line: &[u8], key: &ChainKey) -> Result<ChainPlace, LineFlaw> {
    let place: ChainPlace = serde_json::from_slice(line).map_err(|_| LineFlaw::Unreadable)?;
    let tail = format!("{BEFORE}{}{BEHIND}", place.hash);
    let content = line.strip_suffix(tail.as_bytes()).ok_or(LineFlaw::Edited)?;
    let plain = ChainKey::default();
    let (key, broken) = match place.keyed {
        true if !key.is_set() => return Err(LineFlaw::NeedsKey),
        true => (key, LineFlaw::OtherKey),
        false => (&plain, LineFlaw::Edited),
    };
    if key.hash(content) == place.hash { Ok(place) } else { Err(broken) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_it_was_written_and_no_other_way() {
        let (mut out, mut head) = (Vec::new(), ChainHead::default());
        let entry = AuditEntry {
            event: "call",
            tool: "shop.buy".into(),
            outcome: Some("ok"),
            ..AuditEntry::default()
        };
        let (plain, keyed) = (ChainKey::default(), ChainKey::new(Some("a key of the user")));
        write(&mut out, &mut head, 1_700_000_000_123, "g", &entry, &plain);
        let begin = write(&mut out, &mut head, 1_700_000_000_123, "g", &entry, &plain);
        let text = String::from_utf8(out).expect("text");
        let (first, second) = text.trim_end().split_once('\n').expect("two lines");
        let (one, two) =
            (read(first.as_bytes(), &plain).expect("read"), read(second.as_bytes(), &keyed).expect("read"));
        assert_eq!(begin, first.len() + 1);
        assert_eq!((one.seq, two.seq, &two.prev, &two.hash), (1, 2, &one.hash, &head.hash));
        assert!(first.contains(r#""at":"2023-11-14T22:13:20.123Z""#), "{first}");
        let check =
            |line: String, expected| assert_eq!(read(line.as_bytes(), &plain), Err(expected), "{line}");
        check(first.replace("shop.buy", "shop.bug"), LineFlaw::Edited);
        check(first.replace("\"seq\":1", "\"seq\":2"), LineFlaw::Edited);
        check(first[..first.len() - 1].into(), LineFlaw::Unreadable);
        check(first.replace(&one.hash, &one.prev), LineFlaw::Edited);
        check(format!("{first} "), LineFlaw::Edited);
        check("{}".into(), LineFlaw::Unreadable);

        let mut out = Vec::new();
        write(&mut out, &mut head, 1_700_000_000_123, "g", &entry, &keyed);
        let third = String::from_utf8(out).expect("text");
        let third = third.trim_end();
        assert_eq!(read(third.as_bytes(), &keyed).map(|place| place.hash), Ok(head.hash));
        let other = ChainKey::new(Some("another key"));
        assert_eq!(read(third.as_bytes(), &other), Err(LineFlaw::OtherKey));
        check(third.into(), LineFlaw::NeedsKey);
        check(third.replace(r#""keyed":true,"#, ""), LineFlaw::Edited);
    }
}
