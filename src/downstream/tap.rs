//! What the gateway takes out of the message stream of one server before rmcp sees it.
//!
//! Two things must not go through rmcp's typed model. Results of calls and lists, because unknown
//! fields and content types would be lost: they become `CustomResult`s, verbatim. Progress
//! notifications, because rmcp handles each in a task of its own, so that they overtake each other
//! and the answer: they go straight to the call that they belong to, in the order received. Log messages too.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use rmcp::{
    RoleClient,
    model::{
        ClientNotification, ClientRequest, CustomResult, ErrorData, GetExtensions, GetMeta, JsonRpcMessage,
        ProgressToken, RequestId, ServerResult,
    },
    service::{RxJsonRpcMessage, TxJsonRpcMessage},
};
use serde_json::{Map, Value};
use tokio::sync::mpsc;

use super::server_requests::OpenCalls;
use crate::wire::{ANSWER, Expectations, Message, MessageKind, PAGE, SizeLimit};

/// Where a call's progress notifications go: their `params`, in order. Put into the extensions of
/// an outgoing request. Remembers the last one.
#[derive(Clone, Debug)]
pub struct ProgressSink(Arc<Sink>);

#[derive(Debug)]
struct Sink {
    forward: Option<mpsc::Sender<Value>>,
    last: Mutex<Option<Value>>,
}

impl ProgressSink {
    /// A sink that passes progress on, if there is anybody who wants it.
    pub fn new(forward: Option<mpsc::Sender<Value>>) -> Self {
        Self(Arc::new(Sink { forward, last: Mutex::default() }))
    }

    /// What was told last: `progress`, `total`, `message`.
    pub fn last(&self) -> Option<Value> {
        self.0.last.lock().clone()
    }

    /// Takes the params of a notification.
    pub fn take(&self, params: Value) {
        let mut last = params.clone();
        if let Some(fields) = last.as_object_mut() {
            fields.remove("progressToken");
            fields.remove("_meta");
        }
        *self.0.last.lock() = Some(last);
        if let Some(forward) = &self.0.forward
            && let Err(mpsc::error::TrySendError::Full(_)) = forward.try_send(params)
        {
            tracing::warn!("a server sends progress faster than its client reads; some was dropped");
        }
    }
}

/// The capabilities of a call's client: they go into the `_meta` of the request in the stateless era, where rmcp puts
/// Nonet's own. Put into the extensions of an outgoing request.
#[derive(Clone, Debug)]
pub struct Declared(pub Arc<Map<String, Value>>);

/// The `_meta` key of a client's capabilities.
const CAPABILITIES_KEY: &str = "io.modelcontextprotocol/clientCapabilities";

/// From how many sinks on those are looked for that nobody wants any more.
const MOST_SINKS: usize = 256;

/// The taps of one connection.
#[derive(Debug, Default)]
pub struct Tap {
    /// What is expected of the answers that are awaited.
    pub(super) awaited: HashMap<RequestId, Expected>,
    /// Where the progress of a call goes, for as long as somebody wants it: that of a server's task comes after the answer.
    sinks: HashMap<ProgressToken, Weak<Sink>>,
    /// Whoever may hear the server's log.
    askers: Arc<OpenCalls>,
}

/// What the answer to a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// One page of the tools, verbatim.
    Tools,
    /// One page of another list, verbatim.
    Page,
    /// A result that goes through to a client, verbatim.
    Result,
    /// About the connection itself, and read by rmcp.
    Typed,
}

impl Expected {
    /// What the answer to this request is.
    pub fn of(request: &ClientRequest) -> Self {
        match request {
            ClientRequest::ListToolsRequest(_) => Self::Tools,
            ClientRequest::ListPromptsRequest(_)
            | ClientRequest::ListResourcesRequest(_)
            | ClientRequest::ListResourceTemplatesRequest(_) => Self::Page,
            ClientRequest::CallToolRequest(_)
            | ClientRequest::GetPromptRequest(_)
            | ClientRequest::ReadResourceRequest(_)
            | ClientRequest::CompleteRequest(_)
            | ClientRequest::CustomRequest(_) => Self::Result,
            _ => Self::Typed,
        }
    }

    /// How large the answer may be.
    pub fn bound(self) -> SizeLimit {
        if self == Self::Result { ANSWER } else { PAGE }
    }
}

impl Expectations for Tap {
    fn bound(&self, id: &RequestId) -> Option<SizeLimit> {
        self.awaited.get(id).map(|expected| expected.bound())
    }
}

impl Tap {
    /// The taps of a connection whose log these may hear.
    pub fn new(askers: Arc<OpenCalls>) -> Self {
        Self { askers, ..Self::default() }
    }

    /// Hands a log message on at once: rmcp would take it in a task of its own, after the answer that follows it.
    pub fn log(&self, params: Value) {
        self.askers.log(params);
    }

    /// Notes an outgoing message.
    pub fn outgoing(&mut self, message: &mut TxJsonRpcMessage<RoleClient>) {
        if let JsonRpcMessage::Notification(notification) = message
            && let ClientNotification::CancelledNotification(cancelled) = &notification.notification
            && let Some(id) = cancelled.params.request_id.clone()
        {
            // Nobody waits for this answer any more, nor for progress.
            self.answered(&id);
        }
        if let JsonRpcMessage::Request(request) = message {
            let expected = Expected::of(&request.request);
            self.awaited.insert(request.id.clone(), expected);
            if expected == Expected::Typed {
                return;
            }
            let token = request.request.get_meta().get_progress_token();
            let sink = request.request.extensions_mut().remove::<ProgressSink>();
            let declared = request.request.extensions_mut().remove::<Declared>();
            if let (Some(declared), Some(Value::Object(own))) =
                (declared, request.request.get_meta_mut().0.get_mut(CAPABILITIES_KEY))
            {
                own.retain(|name, _| !matches!(name.as_str(), "elicitation" | "sampling" | "roots"));
                own.extend(declared.0.iter().map(|(name, can)| (name.clone(), can.clone())));
            }
            if let (Some(token), Some(sink)) = (token, sink) {
                if self.sinks.len() >= MOST_SINKS {
                    self.sinks.retain(|_, sink| sink.strong_count() > 0);
                }
                self.sinks.insert(token, Arc::downgrade(&sink.0));
            }
        }
    }

    /// Takes the params of a progress notification. One that nobody waits for is dropped.
    pub fn progress(&mut self, params: Value) {
        let token = params.get("progressToken").cloned().and_then(|t| serde_json::from_value(t).ok());
        let Some(token): Option<ProgressToken> = token else { return };
        if let Some(sink) = self.sinks.get(&token).and_then(Weak::upgrade) {
            ProgressSink(sink).take(params);
        }
    }

    /// Notes that a request was answered; says what was expected.
    pub fn answered(&mut self, id: &RequestId) -> Option<Expected> {
        self.awaited.remove(id)
    }

    /// Turns a message as it came into what rmcp should see of it. `Err` says what is wrong with a message that rmcp cannot
    /// read.
    pub fn incoming(&mut self, message: &Message) -> Result<Option<RxJsonRpcMessage<RoleClient>>, String> {
        let typed = || serde_json::from_slice(message.bytes()).map_err(|error| error.to_string());
        let params = || message.params().and_then(|params| serde_json::from_slice(params).ok());
        let id = match message.kind() {
            MessageKind::Notification => {
                match message.method().as_deref() {
                    Some("notifications/progress") => {
                        self.progress(params().unwrap_or_default());
                        return Ok(None);
                    }
                    Some("notifications/message") => self.log(params().unwrap_or_default()),
                    _ => {}
                }
                return typed().map(Some);
            }
            MessageKind::Request => return typed().map(Some),
            MessageKind::Result | MessageKind::Error | MessageKind::Other => message.id(),
        };
        let Some(id) = id else { return typed().map(Some) };
        let verbatim = self.answered(&id).is_some_and(|expected| expected != Expected::Typed);
        let read = match message.result().filter(|_| verbatim) {
            Some(result) => serde_json::from_slice(result)
                .map(|result| {
                    let result = ServerResult::CustomResult(CustomResult::new(result));
                    JsonRpcMessage::response(result, id.clone())
                })
                .map_err(|error| error.to_string()),
            None => typed(),
        };
        match read {
            Ok(message) => Ok(Some(message)),
            // A request whose answer cannot be read must still end.
            Err(error) if verbatim => {
                let error = ErrorData::internal_error(format!("unreadable answer: {error}"), None);
                Ok(Some(JsonRpcMessage::error(error, Some(id))))
            }
            Err(error) => Err(error),
        }
    }
}
