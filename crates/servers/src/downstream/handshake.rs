//! The handshake over byte streams or an event stream. It finds out which era the server speaks.
//!
//! `server/discover` is sent once, and the first answer decides. A server that stays silent, because it
//! starts slowly, is also sent `initialize`, and the two answers may come in either order.

use std::time::Duration;

use futures::FutureExt;
use nonet_base::json::set_member;
use rmcp::model::{
    ClientCapabilities, ClientConfig, ErrorCode, ErrorData, Implementation, ProtocolVersion, ServerPeerInfo,
    TASKS_EXTENSION_ID,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep_until};

use super::{
    Era,
    channel::{Channel, Outgoing, RequestFault, stateless_meta},
    pending::AnswerKind,
};

/// The extension of user interfaces (MCP Apps, SEP-1865), and the type of their resources.
pub const UI_EXTENSION: &str = "io.modelcontextprotocol/ui";
const UI_TYPE: &str = "text/html;profile=mcp-app";
/// The last message of the handshake of the session era.
pub(super) const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

/// Performs the handshake. `known` is the era of the last handshake; `silence` is how long the server may say
/// nothing before it is also sent `initialize`.
pub(super) async fn greet(
    channel: &Channel,
    known: Option<Era>,
    silence: Duration,
) -> Result<(Era, ServerPeerInfo), RequestFault> {
    let request = async |method, params| {
        let answer = channel.request(Outgoing::own(method, params, AnswerKind::Short)).await?;
        Ok::<_, RequestFault>(answer.into_tree().await)
    };
    let (silence, ui) = (Instant::now() + silence, channel.incoming().ui);
    let is_session = known == Some(Era::Session);
    // Either is polled only once it is wanted.
    let mut discovery = Box::pin(request("server/discover", discover_params(ui)).fuse());
    let mut initialization = Box::pin(request("initialize", initialize_params(ui)).fuse());
    let (mut discovers, mut initializes) = (!is_session, is_session);
    // The refusal of `initialize` while `server/discover` has no answer yet.
    let mut refusal = None;
    loop {
        tokio::select! {
            found = &mut discovery, if discovers => {
                discovers = false;
                match found {
                    Ok(result) if is_stateless(&result) => {
                        return Ok((Era::Stateless, peer_info(&result, &ProtocolVersion::V_2026_07_28)));
                    }
                    // The server refused, or offers only older revisions: it belongs to the session era.
                    Ok(_) | Err(RequestFault::Refused(_)) => initializes = true,
                    Err(fault) => return Err(fault),
                }
                if let Some(refused) = refusal.take() {
                    return Err(refused);
                }
            }
            agreed = &mut initialization, if initializes && refusal.is_none() => match agreed {
                Ok(result) => {
                    let version = result.get("protocolVersion").cloned().unwrap_or_default();
                    let version = serde_json::from_value(version).map_err(|_| {
                        let why = "no protocolVersion in its answer";
                        RequestFault::Refused(ErrorData::internal_error(why, None))
                    })?;
                    channel.initialized().await?;
                    return Ok((Era::Session, peer_info(&result, &version)));
                }
                Err(refused @ RequestFault::Refused(_)) if discovers => refusal = Some(refused),
                Err(fault) => return Err(fault),
            },
            () = sleep_until(silence), if !initializes => initializes = true,
        }
    }
}

/// Returns the client information that servers get. `ui`: whether user interfaces are shown.
pub(super) fn client_config(ui: bool) -> ClientConfig {
    // Nonet follows servers' tasks. A server's request goes to the client of the call, and is declined on its
    // behalf if the client cannot answer; in the stateless era each call declares its client's capabilities.
    let mut extensions = json!({ TASKS_EXTENSION_ID: {} });
    if ui {
        set_member(&mut extensions, UI_EXTENSION, json!({ "mimeTypes": [UI_TYPE] }));
    }
    let capabilities = json!({
        "extensions": extensions,
        "roots": {},
        "sampling": { "tools": {} },
        "elicitation": { "form": {}, "url": {} },
    });
    ClientConfig::new(
        ClientCapabilities::deserialize(capabilities).expect("these are capabilities"),
        Implementation::new("nonet", env!("CARGO_PKG_VERSION")).with_title("Nonet MCP gateway"),
    )
    .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
}

/// Returns the params of `server/discover`.
pub(super) fn discover_params(ui: bool) -> Map<String, Value> {
    Map::from_iter([("_meta".to_owned(), stateless_meta(ui).into())])
}

/// Returns the params of `initialize`.
pub(super) fn initialize_params(ui: bool) -> Map<String, Value> {
    let client = client_config(ui);
    Map::from_iter([
        // The newest revision with a handshake; strict servers reject the stateless one.
        ("protocolVersion".to_owned(), json!(ProtocolVersion::LATEST_WITH_INITIALIZE)),
        ("capabilities".to_owned(), json!(client.capabilities)),
        ("clientInfo".to_owned(), json!(client.client_info)),
    ])
}

/// Returns whether the answer to `server/discover` offers the stateless era.
pub(super) fn is_stateless(result: &Value) -> bool {
    let versions = result.get("supportedVersions").and_then(Value::as_array);
    versions.into_iter().flatten().any(|v| v.as_str() == Some(ProtocolVersion::V_2026_07_28.as_str()))
}

/// Returns whether a refusal of `server/discover` names the stateless era as supported after all.
pub(super) fn supports_stateless(error: &ErrorData) -> bool {
    let supported = error.data.as_ref().and_then(|data| data.get("supported")?.as_array());
    error.code == ErrorCode::UNSUPPORTED_PROTOCOL_VERSION
        && supported.into_iter().flatten().any(|v| v.as_str() == Some(ProtocolVersion::V_2026_07_28.as_str()))
}

/// Returns the server's description of itself, as far as it can be parsed.
pub(super) fn peer_info(result: &Value, version: &ProtocolVersion) -> ServerPeerInfo {
    let capabilities =
        serde_json::from_value(result.get("capabilities").cloned().unwrap_or_default()).unwrap_or_default();
    let mut info = ServerPeerInfo::new(version.clone(), capabilities);
    let server =
        result.get("serverInfo").or_else(|| result.get("_meta")?.get("io.modelcontextprotocol/serverInfo"));
    info.server_info = server.cloned().and_then(|server| serde_json::from_value(server).ok());
    info.instructions = result.get("instructions").and_then(Value::as_str).map(String::from);
    info
}
