//! What a bridge reads of a JSON-RPC message, without taking it apart.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::{Value, value::RawValue};

/// The `_meta` key of the protocol version that each request of the stateless era carries (2026-07-28).
pub(super) const VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";

/// The parts of a message that matter on its way.
#[derive(Debug, Deserialize)]
pub(super) struct Message<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
}

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

impl<'a> Message<'a> {
    /// Reads a line; none if it is no JSON object.
    pub fn of(line: &'a [u8]) -> Option<Self> {
        serde_json::from_slice(line).ok()
    }

    /// The method of a request or notification.
    pub fn method(&self) -> Option<&str> {
        self.method.as_deref()
    }

    /// The id of a request or an answer, as JSON in one form: texts may be escaped in several ways. `null` is none.
    pub fn id(&self) -> Option<String> {
        let id: Value = serde_json::from_str(self.id?.get()).ok()?;
        (!id.is_null()).then(|| id.to_string())
    }

    /// Whether it is the answer to the request with this id.
    pub fn answers(&self, id: &str) -> bool {
        self.method.is_none() && self.id().as_deref() == Some(id)
    }

    /// Whether it is an answer that is no error.
    pub fn is_result(&self) -> bool {
        self.result.is_some()
    }

    fn params(&self) -> Params {
        self.params.and_then(|params| serde_json::from_str(params.get()).ok()).unwrap_or_default()
    }

    /// The request that a `notifications/cancelled` is about, as an id stands in a message.
    pub fn cancels(&self) -> Option<String> {
        let is_cancel = self.method() == Some("notifications/cancelled");
        is_cancel.then(|| self.params().request_id.map(|id| id.to_string())).flatten()
    }

    /// The protocol version that a request of the stateless era carries.
    pub fn version(&self) -> Option<String> {
        Some(self.params().meta?.get(VERSION_KEY)?.as_str()?.into())
    }

    /// What the request is about: the value of the header `Mcp-Name` (SEP-2243).
    pub fn name(&self) -> Option<String> {
        let params = self.params();
        let name = match self.method()? {
            "tools/call" | "prompts/get" => params.name,
            "resources/read" | "resources/subscribe" | "resources/unsubscribe" => params.uri,
            "tasks/get" | "tasks/update" | "tasks/cancel" => params.task_id,
            _ => None,
        };
        name?.as_str().map(header_value)
    }

    /// The protocol version in the answer to `initialize`.
    pub fn agreed_version(&self) -> Option<String> {
        let result: Value = serde_json::from_str(self.result?.get()).ok()?;
        result.get("protocolVersion")?.as_str().map(String::from)
    }
}

/// A value as it may stand in a header; else in base64 between marks (SEP-2243).
fn header_value(text: &str) -> String {
    use base64::prelude::{BASE64_STANDARD, Engine};
    let plain = text.bytes().all(|byte| (0x20..=0x7e).contains(&byte)) && text.trim() == text;
    match plain && !text.starts_with("=?base64?") {
        true => text.into(),
        false => format!("=?base64?{}?=", BASE64_STANDARD.encode(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_told_apart() {
        let message = Message::of(br#"{"jsonrpc":"2.0","id":"a-1","method":"tools/call","params":{"name":"x","arguments":{"name":"y"}}}"#).unwrap();
        assert_eq!((message.method(), message.id().as_deref()), (Some("tools/call"), Some("\"a-1\"")));
        assert_eq!((message.name().as_deref(), message.version()), (Some("x"), None));
        let answer = Message::of(br#"{"id":7,"result":{"protocolVersion":"2025-06-18"}}"#).unwrap();
        assert!(answer.answers("7") && !answer.answers("\"7\""));
        assert_eq!(answer.agreed_version().as_deref(), Some("2025-06-18"));
        let cancel = Message::of(br#"{"method":"notifications/cancelled","params":{"requestId":"a-1"}}"#);
        assert_eq!(cancel.unwrap().cancels().as_deref(), Some("\"a-1\""));
        let modern = Message::of(
            br#"{"id":1,"method":"server/discover","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}"#,
        );
        assert_eq!(modern.unwrap().version().as_deref(), Some("2026-07-28"));
        let escaped = Message::of(br#"{"id":"caf\u00e9","result":{}}"#).unwrap();
        assert!(escaped.answers("\"caf\u{e9}\"") && escaped.is_result());
        assert!(Message::of(b"[1]").is_none());
        assert_eq!(Message::of(br#"{"id":null,"error":{}}"#).unwrap().id(), None);
    }

    #[test]
    fn names_fit_into_headers() {
        for (name, header) in [
            ("read_file", "read_file"),
            ("a b", "a b"),
            (" a", "=?base64?IGE=?="),
            ("é", "=?base64?w6k=?="),
            ("=?base64?x?=", "=?base64?PT9iYXNlNjQ/eD89?="),
        ] {
            assert_eq!(header_value(name), header);
        }
    }
}
