//! One JSON-RPC message: its bytes, and the positions of its members. Nothing is parsed before it is needed.

use std::{borrow::Cow, ops::Range};

use bytes::{Bytes, BytesMut};
use nonet_base::text::clip;
use rmcp::model::RequestId;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    MessageFault, SizeLimit,
    heavy::Weight,
    scan::{JsonFlaw, MemberRanges},
};

/// The `_meta` key of the protocol version in each request of the stateless era (2026-07-28).
pub const VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";

/// How many bytes at the end of a message are searched for its id.
pub(super) const TAIL: usize = 512;

/// How many characters of a method are shown.
const SHOWN_METHOD: usize = 100;

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// Has a method and an id, so its sender waits for an answer.
    Request,
    /// Has a method but no id, so it gets no answer.
    Notification,
    /// The answer to a request: its result.
    Result,
    /// The answer to a request: an error.
    Error,
    /// None of these.
    Other,
}

/// One message.
#[derive(Clone, Debug)]
pub struct Message {
    bytes: Bytes,
    members: MemberRanges,
    /// The number of values in it.
    values: usize,
}

/// Scanned bytes that have not been checked yet.
#[derive(Debug)]
pub struct ScannedMessage {
    bytes: Bytes,
    members: MemberRanges,
    values: Result<usize, JsonFlaw>,
}

impl ScannedMessage {
    /// Scans bytes for a message with at most `most` values.
    pub fn of(bytes: Bytes, most: usize) -> Self {
        let (members, values) = MemberRanges::find(&bytes, most);
        Self { bytes, members, values }
    }

    /// Returns the message, if it is within its limit, which may depend on the message's kind.
    pub fn within(
        self,
        bound: impl FnOnce(&MessageStart<'_>) -> SizeLimit,
    ) -> Result<Message, RefusedMessage> {
        let Self { bytes, members, values } = self;
        let start = MessageStart::of(&bytes, &members);
        match bound(&start).check(bytes.len(), values) {
            Ok(values) => Ok(Message { bytes, members, values }),
            Err(fault) => {
                let head = start.to_head();
                // The scan ended at the flaw, and the id may come after it.
                let tail = String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(TAIL)..]);
                Err(RefusedMessage { head: head.with_tail(&tail), fault, bytes })
            }
        }
    }
}

/// The parts of a message's params that are read. Of any type, so that a wrong one hides no other.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Params {
    name: Option<Value>,
    uri: Option<Value>,
    task_id: Option<Value>,
    request_id: Option<Value>,
    #[serde(rename = "_meta")]
    meta: Option<Value>,
}

impl Message {
    /// Reads a message with any number of values: for code that builds no tree of it.
    pub fn of(bytes: impl Into<Bytes>) -> Option<Self> {
        Self::read(bytes.into(), usize::MAX).ok()
    }

    /// Reads a message with at most `values` values.
    pub fn read(bytes: Bytes, values: usize) -> Result<Self, JsonFlaw> {
        let (members, found) = MemberRanges::find(&bytes, values);
        found.map(|values| Self { bytes, members, values })
    }

    /// Reads a message within a limit.
    pub fn within(bytes: Bytes, bound: SizeLimit) -> Result<Self, RefusedMessage> {
        ScannedMessage::of(bytes, bound.values).within(|_| bound)
    }

    /// Returns a request's error answer. `id` is JSON.
    pub fn failure(id: &str, code: i32, message: &str) -> Bytes {
        Self::failure_of(id, json!({ "code": code, "message": message }).to_string().as_bytes())
    }

    /// Returns a request's error answer, with an error that is already JSON.
    pub fn failure_of(id: &str, error: &[u8]) -> Bytes {
        [b"{\"jsonrpc\":\"2.0\",\"id\":", id.as_bytes(), b",\"error\":", error, b"}"].concat().into()
    }

    /// Returns its bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Returns the cost of parsing it.
    pub fn weight(&self) -> Weight {
        Weight { bytes: self.bytes.len(), values: self.values }
    }

    /// Returns the kind, according to which of `method`, `id`, `result` and `error` are present.
    pub fn kind(&self) -> MessageKind {
        kind(&self.members)
    }

    /// Returns the method of a request or notification.
    pub fn method(&self) -> Option<Cow<'_, str>> {
        text(&self.bytes, self.members.method.as_ref()?)
    }

    /// Returns its params, as JSON.
    pub fn params(&self) -> Option<&[u8]> {
        Some(&self.bytes[self.members.params.clone()?])
    }

    /// Returns its result, as JSON.
    pub fn result(&self) -> Option<&[u8]> {
        Some(&self.bytes[self.members.result.clone()?])
    }

    /// Returns the bytes of its result, shared.
    pub fn result_bytes(&self) -> Option<Bytes> {
        Some(self.bytes.slice(self.members.result.clone()?))
    }

    /// Returns its error, as JSON.
    pub fn error(&self) -> Option<&[u8]> {
        Some(&self.bytes[self.members.error.clone()?])
    }

    /// Returns whether it declares JSON-RPC 2.0.
    pub fn is_versioned(&self) -> bool {
        self.members.jsonrpc.clone().is_some_and(|at| self.bytes[at] == *b"\"2.0\"")
    }

    /// Returns its id.
    pub fn id(&self) -> Option<RequestId> {
        serde_json::from_slice(&self.bytes[self.members.id.clone()?]).ok()
    }

    /// Returns its id as JSON in canonical form, because strings may be escaped in several ways. `null` is
    /// not an id.
    pub fn id_text(&self) -> Option<String> {
        id_text(&self.bytes[self.members.id.clone()?])
    }

    /// Returns this message with another id, which is JSON.
    pub fn with_id(&self, id: &str) -> Option<Bytes> {
        let at = self.members.id.clone()?;
        Some(self.with(at, &[id.as_bytes()]))
    }

    /// Returns this message with another result, which is given in parts.
    pub fn with_result(&self, result: &[&[u8]]) -> Option<Bytes> {
        Some(self.with(self.members.result.clone()?, result))
    }

    fn with(&self, at: Range<usize>, parts: &[&[u8]]) -> Bytes {
        let grown: usize = parts.iter().map(|part| part.len()).sum();
        let mut bytes = BytesMut::with_capacity(self.bytes.len() - at.len() + grown);
        bytes.extend_from_slice(&self.bytes[..at.start]);
        parts.iter().for_each(|part| bytes.extend_from_slice(part));
        bytes.extend_from_slice(&self.bytes[at.end..]);
        bytes.freeze()
    }

    /// Returns whether it is the answer to the request with this id.
    pub fn answers(&self, id: &str) -> bool {
        matches!(self.kind(), MessageKind::Result | MessageKind::Error | MessageKind::Other)
            && self.id_text().as_deref() == Some(id)
    }

    fn some_params(&self) -> Params {
        self.params().and_then(|params| serde_json::from_slice(params).ok()).unwrap_or_default()
    }

    /// Returns the id, as JSON, of the request that a `notifications/cancelled` refers to.
    pub fn cancels(&self) -> Option<String> {
        let is_cancel = self.method().as_deref() == Some("notifications/cancelled");
        is_cancel.then(|| self.some_params().request_id.map(|id| id.to_string())).flatten()
    }

    /// Returns the protocol version in a request of the stateless era.
    pub fn version(&self) -> Option<String> {
        Some(self.some_params().meta?.get(VERSION_KEY)?.as_str()?.into())
    }

    /// Returns the subject of the request: its tool, prompt, resource or task.
    pub fn about(&self) -> Option<String> {
        let key = subject_key(&self.method()?)?;
        let params = self.some_params();
        let name = match key {
            "name" => params.name,
            "uri" => params.uri,
            _ => params.task_id,
        };
        name?.as_str().map(String::from)
    }

    /// Returns the protocol version in the answer to `initialize`.
    pub fn agreed_version(&self) -> Option<String> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct AgreedRevision {
            protocol_version: String,
        }
        serde_json::from_slice(self.result()?).ok().map(|agreed: AgreedRevision| agreed.protocol_version)
    }
}

/// Returns which of its params names the subject of a request, for `Mcp-Name` (SEP-2243).
pub fn subject_key(method: &str) -> Option<&'static str> {
    match method {
        "tools/call" | "prompts/get" => Some("name"),
        "resources/read" | "resources/subscribe" | "resources/unsubscribe" => Some("uri"),
        "tasks/get" | "tasks/update" | "tasks/cancel" => Some("taskId"),
        _ => None,
    }
}

/// Returns an id as JSON in canonical form. Numbers stay unchanged: one too large for any type is still the
/// id that its sender waits for.
fn id_text(id: &[u8]) -> Option<String> {
    let value: Value = serde_json::from_slice(id).ok()?;
    match value {
        Value::Null => None,
        Value::Number(number) if number.is_f64() => Some(String::from_utf8_lossy(id).into_owned()),
        value => Some(value.to_string()),
    }
}

/// A rejected message.
#[derive(Debug)]
pub struct RefusedMessage {
    /// What could be read of the message, with the id from its end if the beginning had none.
    pub head: MessageHead,
    /// The limit that the message exceeds, or the flaw in its JSON.
    pub fault: MessageFault,
    /// The whole message, as received.
    pub bytes: Bytes,
}

fn kind(members: &MemberRanges) -> MessageKind {
    match (&members.method, &members.id, &members.result, &members.error) {
        (Some(_), Some(_), ..) => MessageKind::Request,
        (Some(_), None, ..) => MessageKind::Notification,
        (None, _, Some(_), _) => MessageKind::Result,
        (None, _, None, Some(_)) => MessageKind::Error,
        _ => MessageKind::Other,
    }
}

/// Returns a JSON string's text.
fn text<'a>(bytes: &'a [u8], at: &Range<usize>) -> Option<Cow<'a, str>> {
    let quoted = &bytes[at.clone()];
    match quoted {
        [b'"', inner @ .., b'"'] if !inner.contains(&b'\\') => std::str::from_utf8(inner).ok().map(Cow::from),
        _ => serde_json::from_slice::<String>(quoted).ok().map(Cow::from),
    }
}

/// The beginning of a message, or all of it, before its limit is known. Nothing in it is read before it is
/// needed.
#[derive(Clone, Copy, Debug)]
pub struct MessageStart<'a> {
    bytes: &'a [u8],
    members: &'a MemberRanges,
}

impl<'a> MessageStart<'a> {
    pub(super) fn of(bytes: &'a [u8], members: &'a MemberRanges) -> Self {
        Self { bytes, members }
    }

    /// Returns the kind, as [`MessageHead::kind`] has it.
    pub fn kind(&self) -> MessageKind {
        match (kind(self.members), &self.members.params) {
            (MessageKind::Other, Some(_)) => MessageKind::Notification,
            (kind, _) => kind,
        }
    }

    /// Returns the id, if it is whole and of a type that ids have here.
    pub fn id(&self) -> Option<RequestId> {
        serde_json::from_slice(self.whole_id()?).ok()
    }

    /// Returns the id as JSON: a number or a string.
    pub fn id_text(&self) -> Option<String> {
        id_text(self.whole_id()?).filter(|id| !id.starts_with(['{', '[', 't', 'f']))
    }

    /// An id that ends with the bytes may be cut off.
    fn whole_id(&self) -> Option<&'a [u8]> {
        self.members.id.clone().filter(|at| at.end < self.bytes.len()).map(|at| &self.bytes[at])
    }

    /// Returns the method, if the text contains it whole.
    pub fn method(&self) -> Option<Cow<'a, str>> {
        text(self.bytes, self.members.method.as_ref()?)
    }

    /// Returns whether the text begins with `[`.
    pub fn is_batch(&self) -> bool {
        self.bytes.trim_ascii_start().first() == Some(&b'[')
    }

    fn to_head(self) -> MessageHead {
        let method = self.method().map(Cow::into_owned);
        MessageHead { kind: self.kind(), id: self.id_text(), method, is_batch: self.is_batch() }
    }
}

/// What is known about a message from its beginning, or about an unusable one.
#[derive(Debug)]
pub struct MessageHead {
    /// The kind, as far as it is known: params and results are distinguished, but not requests and
    /// notifications while the id may still come.
    pub kind: MessageKind,
    /// The id, as JSON: a number or a string.
    pub id: Option<String>,
    /// The method, if the text contains it whole. Answers have none.
    pub method: Option<String>,
    /// Whether the text begins with `[`.
    pub is_batch: bool,
}

impl MessageHead {
    /// Reads as much as the beginning of a message contains.
    pub fn of(bytes: &[u8]) -> Self {
        MessageStart::of(bytes, &MemberRanges::find(bytes, usize::MAX).0).to_head()
    }

    /// Returns this head with the id from the end of the message, if the beginning had none.
    pub fn with_tail(mut self, tail: &str) -> Self {
        self.id = self.id.or_else(|| id_at_end(tail).map(|id| id.to_string()));
        if self.id.is_some() && self.kind == MessageKind::Notification {
            self.kind = MessageKind::Request;
        }
        self
    }

    /// Returns its method for a log or an answer, shortened: names may be as long as messages.
    pub fn shown_method(&self) -> Option<String> {
        self.method.as_deref().map(|method| clip(method, SHOWN_METHOD))
    }

    /// Returns whether it is a request or a notification.
    pub fn asks(&self) -> bool {
        matches!(self.kind, MessageKind::Request | MessageKind::Notification)
    }
}

/// Returns the id at the end of a message whose beginning is unknown.
fn id_at_end(tail: &str) -> Option<Value> {
    let (_, value) = tail.rsplit_once("\"id\"")?;
    let value = value.trim_start().strip_prefix(':')?.trim_start();
    // The message's own id is its last member, or is followed by members without braces.
    if value.matches('}').count() != 1 {
        return None;
    }
    if let Some(text) = value.strip_prefix('"') {
        let text = text.split_once('"')?.0;
        return (!text.contains('\\')).then(|| text.into());
    }
    let end = value.find(|c: char| !c.is_ascii_digit() && c != '-')?;
    value[..end].parse::<i64>().ok().map(Value::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Message {
        Message::of(text.to_string()).unwrap_or_else(|| panic!("a message: {text}"))
    }

    #[test]
    fn messages_are_told_apart() {
        let check = |text: &str, kind: MessageKind| assert_eq!(of(text).kind(), kind, "{text}");
        check(r#"{"id":1,"method":"ping"}"#, MessageKind::Request);
        check(r#"{"method":"ping","params":{"id":1}}"#, MessageKind::Notification);
        check(r#"{"id":1,"result":{}}"#, MessageKind::Result);
        check(r#"{"id":1,"error":{}}"#, MessageKind::Error);
        check(r#"{"id":1}"#, MessageKind::Other);
        assert!(Message::of("[1]").is_none() && Message::of("hello").is_none());
    }

    #[test]
    fn a_message_says_what_it_is_about() {
        let call = of(
            r#"{"jsonrpc":"2.0","id":"a-1","method":"tools/call","params":{"name":"x","arguments":{"name":"y"}}}"#,
        );
        assert_eq!(
            (call.method().as_deref(), call.id_text().as_deref()),
            (Some("tools/call"), Some("\"a-1\""))
        );
        assert_eq!((call.about().as_deref(), call.version()), (Some("x"), None));
        assert!(call.is_versioned());
        let answer = of(r#"{"id":7,"result":{"protocolVersion":"2025-06-18"}}"#);
        assert!(answer.answers("7") && !answer.answers("\"7\""));
        assert_eq!(answer.agreed_version().as_deref(), Some("2025-06-18"));
        let cancel = of(r#"{"method":"notifications/cancelled","params":{"requestId":"a-1"}}"#);
        assert_eq!(cancel.cancels().as_deref(), Some("\"a-1\""));
        let stateless = of(
            r#"{"id":1,"method":"server/discover","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}"#,
        );
        assert_eq!(stateless.version().as_deref(), Some("2026-07-28"));
        assert!(of(r#"{"id":"caf\u00e9","result":{}}"#).answers("\"caf\u{e9}\""));
        assert_eq!(of(r#"{"id":null,"error":{}}"#).id_text(), None);
        let large = of(r#"{"id":98765432109876543210,"result":{}}"#);
        assert!(large.answers("98765432109876543210") && large.id().is_none());
    }

    #[test]
    fn members_are_replaced_and_the_rest_stays_byte_for_byte() {
        let message = of("{ \"id\" : 1, \"result\":{\"a\" : 1.0} }");
        assert_eq!(message.with_id("\"x\"").unwrap(), "{ \"id\" : \"x\", \"result\":{\"a\" : 1.0} }");
        assert_eq!(message.with_result(&[b"[", b"]"]).unwrap(), "{ \"id\" : 1, \"result\":[] }");
    }

    #[test]
    fn ids_are_found_in_beginnings_and_ends() {
        let head = |text: &str| MessageHead::of(text.as_bytes());
        let check = |text: &str, id: Option<&str>| assert_eq!(head(text).id.as_deref(), id, "{text}");
        check("{\"jsonrpc\":\"2.0\",\"id\": 12,", Some("12"));
        check("{\"id\":\"a-1\",\"x", Some("\"a-1\""));
        check("{\"id\":-3}", Some("-3"));
        check("{\"id\":1", None);
        check("{\"id\":null}", None);
        check("{\"id\":123456789012345678901234567890,\"x", Some("123456789012345678901234567890"));
        check("{\"id\":[1],\"x", None);
        check("{\"params\":{}", None);
        // Not the id of something nested.
        check("{\"result\":{\"id\":5,\"x\":[{\"id\":6}]},\"jsonrpc\":\"2.0\",\"id\":7}", Some("7"));
        check("{\"result\":{\"text\":\"{\\\"id\\\":5}\",\"id\":6,", None);
        let check = |tail: &str, id: Option<&str>| {
            assert_eq!(head("{\"result\":{").with_tail(tail).id.as_deref(), id, "{tail}");
        };
        check("xxx\"}]},\"jsonrpc\":\"2.0\",\"id\":7}", Some("7"));
        check("xxx\"}]},\"id\": 7, \"jsonrpc\":\"2.0\"}\n", Some("7"));
        check("x\",\"id\":7}]}}", None);
        check("xxx}}}", None);
    }

    #[test]
    fn the_kind_is_known_from_a_beginning() {
        let check =
            |text: &str, kind: MessageKind| assert_eq!(MessageHead::of(text.as_bytes()).kind, kind, "{text}");
        check("{\"method\":\"x\",\"params\":{\"a\":\"xxx", MessageKind::Notification);
        check("{\"params\":{\"a\":\"xxx", MessageKind::Notification);
        check("{\"id\":1,\"method\":\"x\",\"params\":{\"a\":\"xxx", MessageKind::Request);
        check("{\"result\":{\"a\":\"xxx", MessageKind::Result);
        check("xxx", MessageKind::Other);
        assert_eq!(MessageHead::of(b"{\"params\":[").with_tail("],\"id\":7}").kind, MessageKind::Request);
    }
}
