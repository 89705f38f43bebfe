//! The beginning of a conversation over byte streams, or over an event stream: which era the server speaks.
//!
//! Own code because rmcp's automatic mode gives the probe ten seconds and then starts over on the
//! same stream, which a server behind a slow launcher does not survive. Here `server/discover` is
//! sent once; whatever comes back first decides. A server that stays silent is also sent
//! `initialize`, and both answers are understood in either order.

use std::time::Duration;

use rmcp::model::{ClientConfig, ProtocolVersion, ServerPeerInfo};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use super::{
    Era,
    lines::Lines,
    sse::{Events, SseError},
};

const DISCOVER: &str = "nonet-discover";
const INITIALIZE: &str = "nonet-initialize";

/// Why there is no conversation.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The stream ended.
    #[error("it closed the connection during the handshake")]
    Closed,
    /// It answered, but not with a handshake.
    #[error("it refused the handshake: {0}")]
    Refused(String),
    /// It did not take a message of the handshake.
    #[error(transparent)]
    NotTaken(#[from] SseError),
}

/// A transport that the handshake is made over.
pub trait Wire {
    /// Sends one message.
    async fn write(&mut self, message: &Value) -> Result<(), HandshakeError>;
    /// The next message, `None` at the end.
    async fn read(&mut self) -> Option<Value>;
}

impl Wire for Lines {
    async fn write(&mut self, message: &Value) -> Result<(), HandshakeError> {
        Lines::write(self, message).await.map_err(|_| HandshakeError::Closed)
    }

    async fn read(&mut self) -> Option<Value> {
        Lines::read(self).await
    }
}

impl Wire for Events {
    async fn write(&mut self, message: &Value) -> Result<(), HandshakeError> {
        Ok(self.post(serde_json::to_vec(message)).await?)
    }

    async fn read(&mut self) -> Option<Value> {
        Events::read(self).await
    }
}

/// Greets the server. `known` is the era that it spoke last time; `silence` is how long it may say
/// nothing before it is also sent `initialize`.
pub async fn greet(
    wire: &mut impl Wire,
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
        let (Some(id), None) = (message.get("id"), message.get("method")) else {
            answer_ping(wire, &message).await?;
            continue;
        };
        match (id.as_str(), message.get("result")) {
            (Some(DISCOVER), Some(result)) if speaks_modern(result) => {
                return Ok((Era::Stateless, peer_info(result, &ProtocolVersion::V_2026_07_28)));
            }
            (Some(DISCOVER), _) => {
                // Refused, or only older revisions: a server of the session era.
                discovering = false;
                if !initialized {
                    wire.write(&initialize(client)).await?;
                    initialized = true;
                }
            }
            (Some(INITIALIZE), Some(result)) => {
                let version = result.get("protocolVersion").cloned().unwrap_or_default();
                let version = serde_json::from_value(version)
                    .map_err(|_| HandshakeError::Refused("no protocolVersion in its answer".into()))?;
                let info = peer_info(result, &version);
                wire.write(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await?;
                return Ok((Era::Session, info));
            }
            (Some(INITIALIZE), None) if !discovering => {
                let error = &message["error"];
                let text = error["message"].as_str().unwrap_or("an unreadable answer");
                return Err(HandshakeError::Refused(text.into()));
            }
            // Something else, or a refusal while the probe is still open: wait on.
            _ => {}
        }
    }
}

/// A legacy server may ping before it is initialized; anything else has to wait.
async fn answer_ping(wire: &mut impl Wire, message: &Value) -> Result<(), HandshakeError> {
    if message.get("method").and_then(Value::as_str) == Some("ping")
        && let Some(id) = message.get("id")
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
    // The newest revision that has a handshake; the modern one would be refused by strict servers.
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

fn speaks_modern(result: &Value) -> bool {
    let versions = result.get("supportedVersions").and_then(Value::as_array);
    versions.into_iter().flatten().any(|v| v.as_str() == Some(ProtocolVersion::V_2026_07_28.as_str()))
}

/// What the server said of itself, as far as it can be read.
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
