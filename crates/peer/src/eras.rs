//! Which methods there are in which era of the protocol, and what a request's metadata has to say there.

use nonet_base::text::clip;
use rmcp::{
    ErrorData,
    model::{ErrorCode, ProtocolVersion},
};

use crate::request::RequestContext;

/// The methods of the handshake's era only.
const OF_SESSIONS: [&str; 3] = ["ping", "resources/subscribe", "resources/unsubscribe"];
/// The request that opens a stream of announcements (2026-07-28).
pub const LISTEN: &str = "subscriptions/listen";

/// Refuses a request whose metadata is not what its era wants, or whose method its era does not have.
pub fn check(method: &str, context: &RequestContext) -> Result<(), ErrorData> {
    // Most requests of a session say nothing.
    if !context.is_inline && context.meta.0.0.is_empty() && !matches!(method, LISTEN | "server/discover") {
        return Ok(());
    }
    let version = context.meta.protocol_version().filter(|_| method != "initialize");
    if let Some(version) = &version
        && !ProtocolVersion::KNOWN_VERSIONS.contains(version)
    {
        let known = ProtocolVersion::KNOWN_VERSIONS;
        return Err(ErrorData::unsupported_protocol_version(version.clone(), known));
    }
    let is_complete = method != "initialize"
        && (method == "server/discover"
            || context.is_inline && !(method == "ping" && version.is_none())
            || version.as_ref().is_some_and(|version| !version.has_initialize()));
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
