//! The channel to one MCP server: requests of both eras, over any transport.

use std::{
    io,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use nonet_text::results::CallResult;
use nonet_wire::{VERSION_KEY, http::HttpFault, subject_key};
use rmcp::model::{ErrorData, ProtocolVersion};
use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::{Map, Value, json};
use tokio::sync::oneshot;

use super::{
    CallControl, Era,
    handshake::{INITIALIZED, client_config},
    http::HttpServer,
    incoming::Incoming,
    legacy_sse::SseServer,
    lines::Lines,
    link::Input,
    pending::{AnswerKind, ServerAnswer},
};

/// The room for a call on its way to a server, in bytes: that of most calls.
const USUAL_CALL: usize = 256;
/// The `_meta` key of a client's capabilities.
const CAPABILITIES_KEY: &str = "io.modelcontextprotocol/clientCapabilities";
/// The `_meta` key for the minimum level of server log messages that a client wants (2026-07-28).
const LOG_LEVEL_KEY: &str = "io.modelcontextprotocol/logLevel";

/// How messages reach the server.
pub(super) enum ServerTransport {
    Lines(Lines),
    Http(HttpServer),
    Sse(SseServer),
}

/// The channel to one server.
pub(super) struct Channel {
    incoming: Arc<Incoming>,
    transport: ServerTransport,
    /// The era of the server, and what every request carries in it; unset before the handshake.
    era: OnceLock<(Era, Map<String, Value>)>,
}

/// A request to a server.
pub(super) struct Outgoing<'a> {
    pub method: &'static str,
    pub params: OutgoingParams<'a>,
    pub expected: AnswerKind,
    /// The conditions of the call that the request belongs to, if it belongs to one.
    pub control: Option<&'a CallControl>,
    /// Waits until the server has acknowledged a subscription to changes.
    pub acknowledged: Option<oneshot::Sender<()>>,
}

impl<'a> Outgoing<'a> {
    /// Returns a request of the gateway's own.
    pub(super) fn own(method: &'static str, params: Map<String, Value>, expected: AnswerKind) -> Self {
        let params = OutgoingParams::Other { params, input: None };
        Self { method, params, expected, control: None, acknowledged: None }
    }

    /// Returns the tool, prompt, resource or task that the request is about.
    pub(super) fn about(&self) -> Option<&str> {
        let params = match &self.params {
            OutgoingParams::Call { tool, .. } => return Some(tool),
            OutgoingParams::Other { params, .. } => params,
        };
        params.get(subject_key(self.method)?)?.as_str()
    }
}

/// The params of a request, but for `_meta`.
pub(super) enum OutgoingParams<'a> {
    Call { tool: &'a str, arguments: &'a Map<String, Value>, as_task: bool, input: &'a Input },
    Other { params: Map<String, Value>, input: Option<&'a Input> },
}

/// Why a request has no result. The texts are for one of the handshake.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestFault {
    /// The connection ended.
    #[error("it closed the connection during the handshake")]
    Lost,
    /// The request did not get through.
    #[error("{0}")]
    NotSent(#[from] HttpFault),
    /// The server's own error.
    #[error("it refused the handshake: {}", .0.message)]
    Refused(ErrorData),
}

impl Channel {
    /// Returns a channel whose handshake is still to come.
    pub(super) fn new(incoming: Arc<Incoming>, transport: ServerTransport) -> Self {
        Self { incoming, transport, era: OnceLock::new() }
    }

    /// Notes the era of the server.
    pub(super) fn speaks(&self, era: Era) {
        let meta = match era {
            Era::Session => Map::new(),
            Era::Stateless => stateless_meta(self.incoming.ui),
        };
        let _ = self.era.set((era, meta));
    }

    /// Returns the server's side of the connection.
    pub(super) fn incoming(&self) -> &Arc<Incoming> {
        &self.incoming
    }

    /// Returns the server at an address, if it is one of streamable HTTP.
    pub(super) fn http(&self) -> Option<&HttpServer> {
        match &self.transport {
            ServerTransport::Http(http) => Some(http),
            ServerTransport::Lines(_) | ServerTransport::Sse(_) => None,
        }
    }

    /// Sends a request and waits for its answer. Dropping the future cancels the request at the server,
    /// except before the end of the handshake.
    pub(super) async fn request(&self, mut request: Outgoing<'_>) -> Result<CallResult, RequestFault> {
        let progress = request.control.and_then(|control| control.progress.as_ref());
        let (pending, acknowledged) = (&self.incoming.pending, request.acknowledged.take());
        let opened = pending.open(request.expected, progress, acknowledged);
        let (id, answered) = opened.ok_or(RequestFault::Lost)?;
        let mut open = OpenRequest { channel: self, id, control: request.control, is_open: true };
        let meta = self.meta(id, request.control);
        let message = written(id, request.method, meta.as_ref(), &request.params);
        let message = message.map_err(|error| HttpFault::Wrong(error.to_string()))?;
        let answer = match &self.transport {
            ServerTransport::Lines(lines) => answer_to(lines.send(message).await, answered).await,
            ServerTransport::Sse(server) => answer_to(server.send(message).await, answered).await,
            ServerTransport::Http(http) => http.exchange(id, message.into(), &request, answered).await,
        };
        // Whatever the outcome, the server has finished the request or never received it.
        open.is_open = false;
        if answer.is_err() {
            pending.end(id);
        }
        answer?.map_err(RequestFault::Refused)
    }

    /// Sends the last message of the handshake of the session era.
    pub(super) async fn initialized(&self) -> Result<(), HttpFault> {
        match &self.transport {
            ServerTransport::Lines(lines) => lines.send(INITIALIZED.into()).await,
            ServerTransport::Sse(server) => server.send(INITIALIZED.into()).await,
            // Part of its own handshake.
            ServerTransport::Http(_) => Ok(()),
        }
    }

    /// Closes the connection.
    pub(super) async fn close(&self) {
        match &self.transport {
            ServerTransport::Lines(lines) => lines.close().await,
            ServerTransport::Http(http) => http.close().await,
            ServerTransport::Sse(_) => {}
        }
        self.incoming.close();
    }

    /// Returns the `_meta` of a request, if it has one.
    fn meta(&self, id: i64, control: Option<&CallControl>) -> Option<RequestMeta> {
        let (era, of_era) = self.era.get().map_or((None, None), |(era, meta)| (Some(*era), Some(meta)));
        let of_era = of_era.filter(|meta| !meta.is_empty());
        let Some(control) = control else { return of_era.cloned().map(RequestMeta::Any) };
        if of_era.is_none() && control.meta.is_empty() {
            return Some(RequestMeta::OfMost { token: id });
        }
        let mut meta = of_era.cloned().unwrap_or_default();
        meta.insert("progressToken".into(), json!(id));
        meta.extend(control.meta.iter().map(|(key, value)| (key.clone(), value.clone())));
        if let (Some(Era::Stateless), Some(asker)) = (era, &control.asker) {
            declare(&mut meta, &asker.can);
            if let Some(level) = asker.log {
                meta.insert(LOG_LEVEL_KEY.into(), json!(level));
            }
        }
        Some(RequestMeta::Any(meta))
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.incoming.close();
    }
}

/// Returns the answer to a request that was sent; it comes on the server's stream.
async fn answer_to(
    sent: Result<(), HttpFault>,
    answered: oneshot::Receiver<ServerAnswer>,
) -> Result<ServerAnswer, RequestFault> {
    sent?;
    answered.await.map_err(|_| RequestFault::Lost)
}

/// Returns what every request of the stateless era carries (2026-07-28).
pub(super) fn stateless_meta(ui: bool) -> Map<String, Value> {
    let client = client_config(ui);
    Map::from_iter([
        (VERSION_KEY.to_owned(), json!(ProtocolVersion::V_2026_07_28)),
        ("io.modelcontextprotocol/clientInfo".to_owned(), json!(client.client_info)),
        (CAPABILITIES_KEY.to_owned(), json!(client.capabilities)),
    ])
}

/// Replaces Nonet's capabilities by the capabilities of a call's client.
fn declare(meta: &mut Map<String, Value>, can: &Map<String, Value>) {
    if let Some(Value::Object(own)) = meta.get_mut(CAPABILITIES_KEY) {
        own.retain(|name, _| !matches!(name.as_str(), "elicitation" | "sampling" | "roots"));
        own.extend(can.iter().map(|(name, can)| (name.clone(), can.clone())));
    }
}

/// The `_meta` of a request.
#[derive(Serialize)]
#[serde(untagged)]
enum RequestMeta {
    /// That of most calls.
    OfMost {
        #[serde(rename = "progressToken")]
        token: i64,
    },
    Any(Map<String, Value>),
}

/// Returns a request as JSON.
pub(super) fn written(
    id: i64,
    method: &str,
    meta: Option<&impl Serialize>,
    params: &OutgoingParams<'_>,
) -> io::Result<Vec<u8>> {
    let mut json = Vec::with_capacity(USUAL_CALL);
    json.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
    serde_json::to_writer(&mut json, &id)?;
    json.extend_from_slice(b",\"method\":\"");
    json.extend_from_slice(method.as_bytes());
    json.extend_from_slice(b"\",\"params\":");
    serde_json::to_writer(&mut json, &WrittenParams { meta, params })?;
    json.push(b'}');
    Ok(json)
}

/// The params of a request with its `_meta`.
struct WrittenParams<'a, M> {
    meta: Option<&'a M>,
    params: &'a OutgoingParams<'a>,
}

impl<M: Serialize> Serialize for WrittenParams<'_, M> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if let Some(meta) = self.meta {
            map.serialize_entry("_meta", meta)?;
        }
        match self.params {
            OutgoingParams::Call { tool, arguments, as_task, input } => {
                map.serialize_entry("name", tool)?;
                map.serialize_entry("arguments", arguments)?;
                if *as_task {
                    map.serialize_entry("task", &Map::new())?;
                }
                input.add_to(&mut map)?;
            }
            OutgoingParams::Other { params, input } => {
                for (key, value) in params {
                    if self.meta.is_none() || key != "_meta" {
                        map.serialize_entry(key, value)?;
                    }
                }
                input.map_or(Ok(()), |input| input.add_to(&mut map))?;
            }
        }
        map.end()
    }
}

/// A request in flight. Dropping it before the answer cancels it at the server.
struct OpenRequest<'a> {
    channel: &'a Channel,
    id: i64,
    control: Option<&'a CallControl>,
    is_open: bool,
}

impl Drop for OpenRequest<'_> {
    fn drop(&mut self) {
        let Channel { incoming, transport, era } = self.channel;
        if !self.is_open || incoming.pending.end(self.id).is_none() {
            return;
        }
        // The handshake's requests must not be cancelled.
        let Some((era, _)) = era.get() else { return };
        let reason = self.control.map_or("the answer is no longer needed", CallControl::why_given_up);
        let params = json!({ "requestId": self.id, "reason": reason });
        let message = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params });
        let message = Bytes::from(message.to_string());
        if tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        match (transport, era) {
            (ServerTransport::Lines(lines), _) => lines.send_soon(message),
            (ServerTransport::Sse(server), _) => server.send_soon(message),
            (ServerTransport::Http(http), Era::Session) => http.send_soon(message),
            // Closing the request has done that.
            (ServerTransport::Http(_), Era::Stateless) => {}
        }
    }
}
