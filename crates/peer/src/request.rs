//! A message of a client, read: what it is, and a request's statements about its client and its rights.

use http::Extensions;
use nonet_wire::{Message, MessageKind};
use rmcp::{
    ErrorData,
    model::{
        CallToolRequestParams, ClientCapabilities, ErrorCode, InputResponses, JsonObject, MetaObject,
        ProtocolVersion, RequestId, RequestMetaObject,
    },
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use crate::client::{ClientAnswer, ClientWay};

/// The name of a client that does not say its name.
const UNNAMED: &str = "unknown";
/// The JSON-RPC error code for an unusable answer.
const UNUSABLE: i32 = -32603;

/// A message of a client.
pub enum ClientMessage {
    /// A request.
    Request(Box<ClientRequest>),
    /// Cancels a request.
    Cancelled(RequestId),
    /// The handshake is complete.
    Initialized,
    /// The answer to a request of Nonet.
    Answer(RequestId, ClientAnswer),
    /// A message that needs nothing done.
    Other,
}

/// A request, before anything is known about its client.
pub struct ClientRequest {
    /// Its id.
    pub id: RequestId,
    /// The `_meta` of its params.
    pub meta: RequestMetaObject,
    /// What it asks for.
    pub body: RequestBody,
}

/// What a request asks for.
pub enum RequestBody {
    /// A call of a tool.
    Call(CallToolRequestParams, TaskWish),
    /// Any other request.
    Other(RequestParams),
    /// A call whose params cannot be read, with its answer.
    Invalid(ErrorData),
}

/// Whether the client of a call wants a task (`params.task`, 2025-11-25).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskWish(pub bool);

/// The method and the params of a request.
pub struct RequestParams {
    /// The method.
    pub method: Box<str>,
    params: Option<Value>,
}

impl RequestParams {
    /// Parses the params.
    pub fn parse<T: DeserializeOwned>(self) -> Result<T, ErrorData> {
        serde_json::from_value(self.params.unwrap_or_else(|| Map::new().into()))
            .map_err(|error| invalid_params(&self.method, &error.to_string()))
    }

    /// Returns a param that is text.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.params.as_ref()?.get(name)?.as_str()
    }

    /// Parses a cursor, the only param of lists.
    pub fn cursor(self) -> Result<Option<String>, ErrorData> {
        #[derive(Deserialize)]
        struct Page {
            #[serde(default)]
            cursor: Option<String>,
        }
        self.parse().map(|Page { cursor }| cursor)
    }
}

/// Returns the error for params that cannot be read.
fn invalid_params(method: &str, why: &str) -> ErrorData {
    ErrorData::invalid_params(format!("invalid params for `{method}`: {why}"), None)
}

impl RequestBody {
    /// Returns the version that the client proposes, if the request is a handshake.
    pub fn proposed_version(&self) -> Option<&str> {
        match self {
            Self::Other(params) if &*params.method == "initialize" => params.text("protocolVersion"),
            _ => None,
        }
    }

    /// Returns the method.
    pub fn method(&self) -> &str {
        match self {
            Self::Call(..) | Self::Invalid(_) => "tools/call",
            Self::Other(params) => &params.method,
        }
    }
}

/// The params of a `tools/call`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CallParams {
    name: String,
    #[serde(default)]
    arguments: Option<JsonObject>,
    #[serde(default, rename = "_meta")]
    meta: Option<JsonObject>,
    #[serde(default)]
    task: Option<Value>,
    #[serde(default)]
    input_responses: Option<InputResponses>,
    #[serde(default)]
    request_state: Option<String>,
}

impl ClientMessage {
    /// Reads a message within its limits. `Err` says why it is no message that JSON-RPC knows.
    pub fn of(message: &Message) -> Result<Self, String> {
        if !message.is_versioned() {
            return Err("`jsonrpc` has to be \"2.0\"".into());
        }
        match message.kind() {
            MessageKind::Request => {
                ClientRequest::of(message).map(|request| Self::Request(Box::new(request)))
            }
            MessageKind::Notification => Ok(match message.method().as_deref() {
                Some("notifications/cancelled") => {
                    let id = message.cancels().and_then(|id| serde_json::from_str(&id).ok());
                    id.map_or(Self::Other, Self::Cancelled)
                }
                Some("notifications/initialized") => Self::Initialized,
                _ => Self::Other,
            }),
            MessageKind::Result | MessageKind::Error => Ok(match message.id() {
                Some(id) => Self::Answer(id, answer_of(message)),
                None => Self::Other,
            }),
            MessageKind::Other => Err("it is neither a request nor an answer".into()),
        }
    }
}

impl ClientRequest {
    fn of(message: &Message) -> Result<Self, String> {
        let id = message.id().ok_or("the id is neither a string nor a 64-bit number")?;
        let method = message.method().ok_or("the method is not a string")?;
        if method != "tools/call" {
            let mut params = match message.params().map(serde_json::from_slice) {
                Some(Ok(params)) => Some(params),
                Some(Err(error)) => return Err(error.to_string()),
                None => None,
            };
            let meta = match params
                .as_mut()
                .and_then(Value::as_object_mut)
                .and_then(|it| it.shift_remove("_meta"))
            {
                Some(Value::Object(meta)) => meta,
                _ => Map::new(),
            };
            let method = method.into();
            let body = RequestBody::Other(RequestParams { method, params });
            return Ok(Self { id, meta: RequestMetaObject(MetaObject(meta)), body });
        }
        let given = match serde_json::from_slice(message.params().unwrap_or(b"{}")) {
            Ok(given) => given,
            Err(error) => {
                let body = RequestBody::Invalid(invalid_params("tools/call", &error.to_string()));
                return Ok(Self { id, meta: RequestMetaObject::default(), body });
            }
        };
        let CallParams { name, arguments, meta, task, input_responses, request_state } = given;
        let mut call = CallToolRequestParams::new(name);
        (call.arguments, call.input_responses, call.request_state) =
            (arguments, input_responses, request_state);
        let wish = TaskWish(task.is_some_and(|task| task.is_object()));
        let meta = RequestMetaObject(MetaObject(meta.unwrap_or_default()));
        Ok(Self { id, meta, body: RequestBody::Call(call, wish) })
    }
}

/// Returns a client's answer to a request of Nonet.
fn answer_of(message: &Message) -> ClientAnswer {
    let unreadable = |why: &dyn std::fmt::Display| {
        ErrorData::new(ErrorCode(UNUSABLE), format!("the client's answer cannot be read: {why}"), None)
    };
    match (message.result(), message.error()) {
        (Some(result), _) => serde_json::from_slice(result).map_err(|error| unreadable(&error)),
        (None, Some(error)) => Err(serde_json::from_slice(error).unwrap_or_else(|error| unreadable(&error))),
        (None, None) => Err(unreadable(&"it has neither a result nor an error")),
    }
}

/// A request's statements about its client and its rights, and the way back to it.
pub struct RequestContext {
    /// The request's id.
    pub id: RequestId,
    /// The `_meta` of its params.
    pub meta: RequestMetaObject,
    /// What the gateway has attached to a request over HTTP.
    pub beside: Extensions,
    /// The way back to the client.
    pub way: ClientWay,
    /// Cancels the request.
    pub cancel: CancellationToken,
    /// Whether its client made no handshake, so that each request has to say its protocol version.
    pub is_inline: bool,
}

impl RequestContext {
    /// Calls `read` with the name of its client.
    pub fn with_client_name<T>(&self, read: impl FnOnce(&str) -> T) -> T {
        match self.meta.client_info() {
            Some(info) => read(&info.name),
            None => {
                let info = self.way.peer.info();
                read(info.as_ref().map_or(UNNAMED, |info| &info.client_info.name))
            }
        }
    }

    /// Returns the version of the protocol that the client speaks, once that is known.
    pub fn protocol_version(&self) -> Option<ProtocolVersion> {
        let told = self.meta.protocol_version();
        told.or_else(|| Some(self.way.peer.info()?.protocol_version.clone()))
    }

    /// Whether the client declares an extension: in this request, else in its handshake.
    pub fn declares(&self, extension: &str) -> bool {
        if let Some(told) = self.meta.0.0.get("io.modelcontextprotocol/clientCapabilities") {
            return told.get("extensions").is_some_and(|extensions| extensions.get(extension).is_some());
        }
        let info = self.way.peer.info();
        let extensions = info.as_ref().and_then(|info| info.capabilities.extensions.as_ref());
        extensions.is_some_and(|extensions| extensions.contains_key(extension))
    }

    /// Returns what the client can do: as this request says, else as its handshake said.
    pub fn client_capabilities(&self) -> Option<ClientCapabilities> {
        let told = self.meta.client_capabilities();
        told.or_else(|| Some(self.way.peer.info()?.capabilities.clone()))
    }

    /// Returns whether it is of the stateless era (2026-07-28).
    pub fn is_stateless(&self) -> bool {
        !self.meta.0.0.is_empty()
            && self.meta.protocol_version().is_some_and(|version| version >= ProtocolVersion::V_2026_07_28)
    }
}
