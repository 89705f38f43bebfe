//! Large arguments of calls over HTTP. rmcp parses a body many times, on the answering thread. So they are parsed once, on
//! another thread, and passed beside the body, which keeps only the parts that rmcp compares with headers.

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, request::Parts};
use nonet_wire::Message;
use parking_lot::Mutex;
use rmcp::model::{Extensions, JsonObject};
use serde_json::{Map, Value};

/// The longest text that stays in the body as well, because it may be a header's value (SEP-2243).
const LONGEST_HEADER: usize = 1_000;

/// The arguments that belong to a request.
#[derive(Clone)]
pub(super) struct HeldArguments(Arc<Mutex<Option<JsonObject>>>);

impl HeldArguments {
    /// Splits a large call into its arguments and the body without them. `None` for other messages.
    pub(super) fn split(message: &Message) -> Option<(Self, Bytes)> {
        if message.method().as_deref() != Some("tools/call") || !message.is_versioned() {
            return None;
        }
        let id = message.id_text()?;
        let mut params: Map<String, Value> = serde_json::from_slice(message.params()?).ok()?;
        let Some(Value::Object(arguments)) = params.get_mut("arguments").map(Value::take) else {
            return None;
        };
        let could_be_header = |value: &Value| match value {
            Value::String(text) => text.len() <= LONGEST_HEADER,
            Value::Array(_) | Value::Object(_) => false,
            _ => true,
        };
        let stay = arguments.iter().take(LONGEST_HEADER).filter(|(_, value)| could_be_header(value));
        let stay: Map<String, Value> = stay.map(|(name, value)| (name.clone(), value.clone())).collect();
        params.insert("arguments".into(), stay.into());
        let params = Value::from(params);
        let body =
            format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"tools/call\",\"params\":{params}}}");
        Some((Self(Arc::new(Mutex::new(Some(arguments)))), body.into()))
    }

    /// Attaches the arguments to a request.
    pub(super) fn go_with<B>(self, request: &mut Request<B>) {
        request.extensions_mut().insert(self);
    }
}

/// Returns the arguments attached to a call's body.
pub(super) fn take(extensions: &Extensions) -> Option<JsonObject> {
    let held = extensions.get::<Parts>()?.extensions.get::<HeldArguments>()?;
    held.0.lock().take()
}
