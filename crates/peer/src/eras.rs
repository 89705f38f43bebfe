//! Which methods there are in which era of the protocol, and what a request's metadata has to say there.

use nonet_base::text::clip;
use rmcp::{
    ErrorData,
    model::{ErrorCode, ProtocolVersion},
};

use crate::request::{RequestBody, RequestContext};

/// The methods of the handshake's era only.
const OF_SESSIONS: [&str; 5] =
    ["initialize", "logging/setLevel", "ping", "resources/subscribe", "resources/unsubscribe"];
/// The request that opens a stream of announcements (2026-07-28).
pub const LISTEN: &str = "subscriptions/listen";

/// Refuses a request whose metadata is not what its era wants, or whose method its era does not have.
pub fn check(request: &RequestBody, context: &RequestContext) -> Result<(), ErrorData> {
    let method = request.method();
    // Most requests of a session say nothing.
    if !context.is_inline && context.meta.0.0.is_empty() && !matches!(method, LISTEN | "server/discover") {
        return Ok(());
    }
    // A handshake chooses its era by itself.
    if request.proposed_version().is_some() {
        return Ok(());
    }
    let version = context.meta.protocol_version();
    if let Some(version) = &version
        && !ProtocolVersion::KNOWN_VERSIONS.contains(version)
    {
        let known = ProtocolVersion::KNOWN_VERSIONS;
        return Err(ErrorData::unsupported_protocol_version(version.clone(), known));
    }
    let leaves_open = matches!(method, "initialize" | "ping") && version.is_none();
    let is_complete = method == "server/discover"
        || context.is_inline && !leaves_open
        || version.as_ref().is_some_and(|version| !version.has_initialize());
    if is_complete {
        let missing = context.meta.missing_required_keys(&ProtocolVersion::V_2026_07_28);
        if !missing.is_empty() {
            let message =
                format!("request _meta is missing or has malformed required fields: {}", missing.join(", "));
            return Err(ErrorData::invalid_params(message, None));
        }
    }
    let is_of_sessions = !is_complete && version.is_none_or(|version| version.has_initialize());
    match (OF_SESSIONS.contains(&method), method == LISTEN) {
        (true, _) if !is_of_sessions => Err(unknown_method(method)),
        (_, true) if is_of_sessions => Err(unknown_method(method)),
        _ => Ok(()),
    }
}

/// Returns the error for a method that does not exist, or not in the client's era.
pub fn unknown_method(method: &str) -> ErrorData {
    ErrorData::new(ErrorCode::METHOD_NOT_FOUND, clip(method, 200), None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        client::{ClientPeer, ClientWay},
        request::ClientMessage,
        streams::EventStream,
    };
    use nonet_wire::Message;
    use serde_json::{Value, json};

    /// Returns the error of a request with these params, after a handshake or on a connection without one.
    fn refusal(method: &str, params: &Value, is_inline: bool) -> Option<i32> {
        let message = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let message = Message::of(message.to_string()).expect("a message");
        let Ok(ClientMessage::Request(request)) = ClientMessage::of(&message) else { panic!("a request") };
        let context = RequestContext {
            id: request.id,
            meta: request.meta,
            beside: http::Extensions::new(),
            way: ClientWay::of(ClientPeer::new(EventStream::common())),
            cancel: tokio_util::sync::CancellationToken::new(),
            is_inline,
        };
        check(&request.body, &context).err().map(|error| error.code.0)
    }

    #[test]
    fn each_era_has_its_methods_and_its_metadata() {
        let own = |version: &str| {
            json!({ "_meta": {
                "io.modelcontextprotocol/protocolVersion": version,
                "io.modelcontextprotocol/clientCapabilities": {},
            } })
        };
        let (none, new, unknown) = (json!({}), own("2026-07-28"), own("2031-01-01"));
        let half = json!({ "_meta": { "io.modelcontextprotocol/protocolVersion": "2026-07-28" } });
        let handshake = json!({ "protocolVersion": "2025-11-25" });
        let check = |method: &str, params: &Value, expected: [Option<i32>; 2]| {
            let found = [false, true].map(|is_inline| refusal(method, params, is_inline));
            assert_eq!(found, expected, "{method} {params}");
        };
        // After a handshake, without one.
        check("tools/list", &none, [None, Some(-32602)]);
        check("tools/list", &new, [None, None]);
        check("tools/list", &half, [Some(-32602), Some(-32602)]);
        check("tools/list", &unknown, [Some(-32022), Some(-32022)]);
        check("server/discover", &none, [Some(-32602), Some(-32602)]);
        check("server/discover", &new, [None, None]);
        check("ping", &none, [None, None]);
        check("ping", &new, [Some(-32601), Some(-32601)]);
        check("initialize", &handshake, [None, None]);
        check("initialize", &new, [Some(-32601), Some(-32601)]);
        check("logging/setLevel", &none, [None, Some(-32602)]);
        check("logging/setLevel", &new, [Some(-32601), Some(-32601)]);
        check("resources/subscribe", &new, [Some(-32601), Some(-32601)]);
        check(LISTEN, &none, [Some(-32601), Some(-32602)]);
        check(LISTEN, &new, [None, None]);
    }
}
