//! The handshake over byte streams or an event stream. It finds out which era the server speaks.
//!
//! Own code because rmcp's automatic mode gives the probe ten seconds and then restarts on the same stream, which a server
//! behind a slow launcher does not survive. Here `server/discover` is sent once, and the first answer decides. A server that
//! stays silent is also sent `initialize`, and the two answers may come in either order.

use std::time::Duration;

use nonet_wire::Message;
use rmcp::model::{ClientConfig, ProtocolVersion, ServerPeerInfo};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use super::{
    Era,
    legacy_sse::{SseConnection, SseError},
    stdio::Lines,
};

const DISCOVER: &str = "nonet-discover";
const INITIALIZE: &str = "nonet-initialize";

/// Why the handshake failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    /// The stream ended.
    #[error("it closed the connection during the handshake")]
    Closed,
    /// It answered, but not with a handshake.
    #[error("it refused the handshake: {0}")]
    Refused(String),
    /// A message of the handshake was not sent.
    #[error("{0}")]
    NotTaken(#[from] SseError),
}

/// A transport to a server during the handshake.
pub(super) trait HandshakeTransport {
    /// Sends one message.
    async fn write(&mut self, message: &Value) -> Result<(), HandshakeError>;
    /// Returns the next message, `None` at the end.
    async fn read(&mut self) -> Option<Message>;
}

impl HandshakeTransport for Lines {
    async fn write(&mut self, message: &Value) -> Result<(), HandshakeError> {
        self.writer().write(serde_json::to_vec(message), true).await.map_err(|_| HandshakeError::Closed)
    }

    async fn read(&mut self) -> Option<Message> {
        Lines::read(self).await
    }
}

impl HandshakeTransport for SseConnection {
    async fn write(&mut self, message: &Value) -> Result<(), HandshakeError> {
        Ok(self.post(serde_json::to_vec(message), true).await?)
    }

    async fn read(&mut self) -> Option<Message> {
        SseConnection::read(self).await
    }
}

/// Performs the handshake. `known` is the era of the last handshake; `silence` is how long the server may say nothing before
/// it is also sent `initialize`.
pub(super) async fn greet(
    wire: &mut impl HandshakeTransport,
    known: Option<Era>,
    client: &ClientConfig,
    silence: Duration,
) -> Result<(Era, ServerPeerInfo), HandshakeError> {
    let mut initialized = false;
    let mut discovering = known != Some(Era::Session);
    let silence = Instant::now() + silence;
    if discovering {
        wire.write(&discover(client)).await?;
    } else {
        wire.write(&initialize(client)).await?;
        initialized = true;
    }
    loop {
        let message = tokio::select! {
            message = wire.read() => message.ok_or(HandshakeError::Closed)?,
            () = sleep_until(silence), if !initialized => {
                wire.write(&initialize(client)).await?;
                initialized = true;
                continue;
            }
        };
        if message.method().is_some() {
            answer_ping(wire, &message).await?;
            continue;
        }
        let Some(id) = message.id() else { continue };
        let read = |part: Option<&[u8]>| part.and_then(|part| serde_json::from_slice::<Value>(part).ok());
        match (id.to_string().as_str(), read(message.result())) {
            (DISCOVER, Some(result)) if is_stateless(&result) => {
                return Ok((Era::Stateless, peer_info(&result, &ProtocolVersion::V_2026_07_28)));
            }
            (DISCOVER, _) => {
                // The server refused, or offers only older revisions: it belongs to the session era.
                discovering = false;
                if !initialized {
                    wire.write(&initialize(client)).await?;
                    initialized = true;
                }
            }
            (INITIALIZE, Some(result)) => {
                let version = result.get("protocolVersion").cloned().unwrap_or_default();
                let version = serde_json::from_value(version)
                    .map_err(|_| HandshakeError::Refused("no protocolVersion in its answer".into()))?;
                let info = peer_info(&result, &version);
                wire.write(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await?;
                return Ok((Era::Session, info));
            }
            (INITIALIZE, None) if !discovering => {
                let error = read(message.error()).unwrap_or_default();
                let text = error["message"].as_str().unwrap_or("an unreadable answer");
                return Err(HandshakeError::Refused(text.into()));
            }
            // Anything else, or a refusal while the probe is still open: keep waiting.
            _ => {}
        }
    }
}

/// Answers a ping. A server of the session era may ping before it is initialized; any other request has to wait.
async fn answer_ping(wire: &mut impl HandshakeTransport, message: &Message) -> Result<(), HandshakeError> {
    if message.method().as_deref() == Some("ping")
        && let Some(id) = message.id()
    {
        wire.write(&json!({"jsonrpc": "2.0", "id": id, "result": {}})).await?;
    }
    Ok(())
}

fn discover(client: &ClientConfig) -> Value {
    json!({
        "jsonrpc": "2.0",
        "id": DISCOVER,
        "method": "server/discover",
        "params": { "_meta": {
            "io.modelcontextprotocol/protocolVersion": ProtocolVersion::V_2026_07_28,
            "io.modelcontextprotocol/clientInfo": client.client_info,
            "io.modelcontextprotocol/clientCapabilities": client.capabilities,
        }},
    })
}

fn initialize(client: &ClientConfig) -> Value {
    // The newest revision with a handshake; strict servers reject the stateless one.
    json!({
        "jsonrpc": "2.0",
        "id": INITIALIZE,
        "method": "initialize",
        "params": {
            "protocolVersion": ProtocolVersion::LATEST_WITH_INITIALIZE,
            "capabilities": client.capabilities,
            "clientInfo": client.client_info,
        },
    })
}

fn is_stateless(result: &Value) -> bool {
    let versions = result.get("supportedVersions").and_then(Value::as_array);
    versions.into_iter().flatten().any(|v| v.as_str() == Some(ProtocolVersion::V_2026_07_28.as_str()))
}

/// Returns the server's description of itself, as far as it can be parsed.
fn peer_info(result: &Value, version: &ProtocolVersion) -> ServerPeerInfo {
    let capabilities =
        serde_json::from_value(result.get("capabilities").cloned().unwrap_or_default()).unwrap_or_default();
    let mut info = ServerPeerInfo::new(version.clone(), capabilities);
    let server =
        result.get("serverInfo").or_else(|| result.get("_meta")?.get("io.modelcontextprotocol/serverInfo"));
    info.server_info = server.cloned().and_then(|server| serde_json::from_value(server).ok());
    info.instructions = result.get("instructions").and_then(Value::as_str).map(String::from);
    info
}
