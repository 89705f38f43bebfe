//! Takes some messages out of a server's message stream before rmcp sees them.
//!
//! Two kinds of message must not go through rmcp's typed model. Results of calls and lists would lose unknown fields and
//! content types, so they become `CustomResult`s, verbatim. Progress notifications would overtake each other and the answer,
//! because rmcp handles each in a separate task; they go straight to their call, in the order received, and so do log
//! messages.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use nonet_base::text;
use nonet_text::results::CallResult;
use nonet_wire::{self as wire, Expectations, Inbox, Limits, MemoryShare, Message, MessageKind, SizeLimit};
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
use tokio::sync::{mpsc, oneshot};

use super::{direct::OpenRequests, server_requests::OpenCalls};

/// The destination of a call's progress notifications: their `params`, in order. Stored in the extensions of an outgoing
/// request. Remembers the last one.
#[derive(Clone, Debug)]
pub struct ProgressSink(pub(super) Arc<Sink>);

#[derive(Debug)]
pub(super) struct Sink {
    forward: Option<mpsc::Sender<Value>>,
    last: Mutex<Option<Value>>,
    /// Whether a dropped notification has been logged.
    logged: AtomicBool,
}

impl ProgressSink {
    /// Returns a sink that passes progress on to `forward`, if given.
    pub fn new(forward: Option<mpsc::Sender<Value>>) -> Self {
        Self(Arc::new(Sink { forward, last: Mutex::default(), logged: AtomicBool::new(false) }))
    }

    /// Returns the last progress: `progress`, `total`, `message`.
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
            && !self.0.logged.swap(true, Ordering::Relaxed)
        {
            tracing::warn!("a server sends progress faster than its client reads; some was dropped");
        }
    }
}

/// The capabilities of a call's client. In the stateless era they go into the request's `_meta`, where rmcp puts Nonet's own.
/// Stored in the extensions of an outgoing request.
#[derive(Clone, Debug)]
pub(super) struct DeclaredCapabilities(pub Arc<Map<String, Value>>);

/// The `_meta` key of a client's capabilities.
pub(super) const CAPABILITIES_KEY: &str = "io.modelcontextprotocol/clientCapabilities";

/// Replaces Nonet's capabilities by the capabilities of a call's client.
pub(super) fn declare(meta: &mut Map<String, Value>, can: &Map<String, Value>) {
    if let Some(Value::Object(own)) = meta.get_mut(CAPABILITIES_KEY) {
        own.retain(|name, _| !matches!(name.as_str(), "elicitation" | "sampling" | "roots"));
        own.extend(can.iter().map(|(name, can)| (name.clone(), can.clone())));
    }
}

/// The part of a request's result that bypasses rmcp. Stored in the extensions of the outgoing request.
#[derive(Clone, Debug, Default)]
pub(super) struct HeldResult(Arc<Mutex<HeldState>>);

#[derive(Debug, Default)]
struct HeldState {
    /// The share of the memory for large messages that a result takes which rmcp delivers.
    share: Option<MemoryShare>,
    /// The result of a call.
    result: Option<CallResult>,
}

impl HeldResult {
    /// Returns the result of a request, once it has arrived. rmcp has delivered `tree`.
    pub(super) fn result(&self, tree: Value) -> CallResult {
        let HeldState { share, result } = std::mem::take(&mut *self.0.lock());
        result.unwrap_or_else(|| CallResult::of_server(tree).holding(share))
    }
}

/// An outstanding answer.
#[derive(Clone, Debug)]
pub(super) struct AwaitedAnswer {
    pub expected: AnswerKind,
    /// The holder of a large result's share.
    held: Weak<Mutex<HeldState>>,
}

impl AwaitedAnswer {
    pub(super) fn of(request: &mut ClientRequest) -> Self {
        let held = request.extensions_mut().remove::<HeldResult>();
        Self {
            expected: AnswerKind::of(request),
            held: held.map(|held| Arc::downgrade(&held.0)).unwrap_or_default(),
        }
    }

    /// Passes the answer's share to the waiting caller, if any.
    pub(super) fn holds(&self, share: Option<MemoryShare>) {
        if let (Some(share), Some(held)) = (share, self.held.upgrade()) {
            held.lock().share = Some(share);
        }
    }

    /// Passes a call's result to the waiting caller, if any.
    pub(super) fn returns(&self, result: CallResult) {
        if let Some(held) = self.held.upgrade() {
            held.lock().result = Some(result);
        }
    }
}

/// The notifications that rmcp or its handler accepts. rmcp would start a task for any other as well.
const TYPED_NOTIFICATIONS: [&str; 8] = [
    "notifications/cancelled",
    "notifications/message",
    "notifications/prompts/list_changed",
    "notifications/resources/list_changed",
    "notifications/resources/updated",
    "notifications/subscriptions/acknowledged",
    "notifications/tasks",
    "notifications/tools/list_changed",
];

/// A message in the gateway's terms, once it is parsed.
pub(super) enum IncomingMessage {
    /// For rmcp.
    Message(Box<RxJsonRpcMessage<RoleClient>>),
    /// An answer for rmcp, and its waiting caller.
    Answer(Box<RxJsonRpcMessage<RoleClient>>, Option<AwaitedAnswer>),
    /// The answer to a call that bypasses rmcp.
    Direct(oneshot::Sender<Result<CallResult, ErrorData>>, Result<CallResult, ErrorData>),
    /// The result of the call with this id.
    Called(RequestId, CallResult, Option<AwaitedAnswer>),
    Progress(Value),
    /// The params of a log message, and the message for rmcp.
    Log(Value, Box<RxJsonRpcMessage<RoleClient>>),
    /// A notification of an unknown kind.
    Unknown,
    /// The fault of an unreadable message.
    Unreadable(String),
}

/// The taps of one connection.
#[derive(Debug)]
pub(super) struct Tap {
    limits: Limits,
    /// The answers that rmcp awaits.
    pub(super) awaited: HashMap<RequestId, AwaitedAnswer>,
    /// The calls that bypass rmcp, and the sinks for progress.
    pub(super) open: OpenRequests,
    /// The clients that may get the server's log.
    askers: Arc<OpenCalls>,
}

/// The kind of answer that a request expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerKind {
    /// One page of the tools, verbatim.
    Tools,
    /// One page of another list, verbatim.
    Page,
    /// The result of a call, passed through to a client as bytes.
    Call,
    /// Any other result passed through to a client, verbatim.
    Result,
    /// An answer about the connection itself, read by rmcp.
    Typed,
}

impl AnswerKind {
    /// Returns the kind of answer to this request.
    pub(super) fn of(request: &ClientRequest) -> Self {
        match request {
            ClientRequest::ListToolsRequest(_) => Self::Tools,
            ClientRequest::ListPromptsRequest(_)
            | ClientRequest::ListResourcesRequest(_)
            | ClientRequest::ListResourceTemplatesRequest(_) => Self::Page,
            ClientRequest::CallToolRequest(_) => Self::Call,
            ClientRequest::GetPromptRequest(_)
            | ClientRequest::ReadResourceRequest(_)
            | ClientRequest::CompleteRequest(_)
            | ClientRequest::CustomRequest(_) => Self::Result,
            _ => Self::Typed,
        }
    }

    /// Returns the size limit of the answer.
    pub(super) fn bound(self, limits: &Limits) -> SizeLimit {
        match self {
            Self::Call | Self::Result => limits.answer,
            Self::Tools | Self::Page => limits.page,
            Self::Typed => limits.of_server,
        }
    }
}

impl Expectations for Tap {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn bound(&self, id: &RequestId) -> Option<SizeLimit> {
        let awaited = self.awaited.get(id).map(|awaited| awaited.expected.bound(&self.limits));
        awaited.or_else(|| self.open.bound(id, self.limits.answer))
    }
}

impl Tap {
    /// Returns the taps of a connection whose log goes to these clients.
    pub(super) fn new(askers: Arc<OpenCalls>, limits: Limits) -> Self {
        Self { limits, awaited: HashMap::new(), open: OpenRequests::default(), askers }
    }

    /// Returns another tap of the same connection, for calls that bypass rmcp. It awaits nothing for rmcp.
    pub(super) fn beside(&self) -> Self {
        Self {
            limits: self.limits,
            awaited: HashMap::new(),
            open: self.open.clone(),
            askers: self.askers.clone(),
        }
    }

    /// Passes on a log message at once: rmcp would handle it in a separate task, after the answer that follows it.
    pub(super) fn log(&self, params: Value) {
        self.askers.log(params);
    }

    /// Notes an outgoing message.
    pub(super) fn outgoing(&mut self, message: &mut TxJsonRpcMessage<RoleClient>) {
        if let JsonRpcMessage::Notification(notification) = message
            && let ClientNotification::CancelledNotification(cancelled) = &notification.notification
            && let Some(id) = cancelled.params.request_id.clone()
        {
            // Nobody waits for this answer or its progress any more.
            self.answered(&id);
        }
        if let JsonRpcMessage::Request(request) = message {
            let awaited = AwaitedAnswer::of(&mut request.request);
            let expected = awaited.expected;
            self.awaited.insert(request.id.clone(), awaited);
            if expected == AnswerKind::Typed {
                return;
            }
            let token = request.request.get_meta().get_progress_token();
            let sink = request.request.extensions_mut().remove::<ProgressSink>();
            let declared = request.request.extensions_mut().remove::<DeclaredCapabilities>();
            if let Some(declared) = declared {
                declare(&mut request.request.get_meta_mut().0, &declared.0);
            }
            if let (Some(token), Some(sink)) = (token, sink) {
                self.open.follow(&token, &sink);
            }
        }
    }

    /// Takes the params of a progress notification. One without a waiting caller is dropped.
    pub(super) fn progress(&mut self, params: Value) {
        let token = params.get("progressToken").cloned().and_then(|t| serde_json::from_value(t).ok());
        let Some(token): Option<ProgressToken> = token else { return };
        if let Some(sink) = self.open.sink(&token) {
            sink.take(self.askers.masked(params));
        }
    }

    /// Notes that a request was answered. Returns what was expected.
    pub(super) fn answered(&mut self, id: &RequestId) -> Option<AwaitedAnswer> {
        self.awaited.remove(id)
    }

    /// Starts parsing a message. Returns the remaining work, which is slow for a large message.
    pub(super) fn reading(&mut self, message: &Message) -> impl FnOnce() -> IncomingMessage + Send + 'static {
        let is_answer =
            matches!(message.kind(), MessageKind::Result | MessageKind::Error | MessageKind::Other);
        let id = message.id().filter(|_| is_answer);
        let call = id.as_ref().and_then(|id| self.open.take(id));
        let awaited = id.as_ref().filter(|_| call.is_none()).and_then(|id| self.answered(id));
        let (message, limit) = (message.clone(), self.limits.error);
        move || match (message.kind(), call) {
            (_, Some(call)) => IncomingMessage::Direct(call, called(&message, limit)),
            (MessageKind::Notification, None) => notification(&message),
            (MessageKind::Request, None) => match typed(&message) {
                Ok(request) => IncomingMessage::Message(Box::new(request)),
                Err(fault) => IncomingMessage::Unreadable(fault),
            },
            (kind, None) => {
                let expected = awaited.as_ref().map(|awaited| awaited.expected);
                if let (MessageKind::Result, Some(AnswerKind::Call), Some(id), Some(result)) =
                    (kind, expected, message.id(), message.result_bytes())
                {
                    return match CallResult::read(result) {
                        Ok(result) => IncomingMessage::Called(id, result, awaited),
                        Err(error) => IncomingMessage::Answer(Box::new(unreadable(id, error)), awaited),
                    };
                }
                match answer(&message, expected, limit) {
                    Ok(answer) => IncomingMessage::Answer(Box::new(answer), awaited),
                    Err(fault) => IncomingMessage::Unreadable(fault),
                }
            }
        }
    }

    /// Takes a parsed message and returns rmcp's part of it. Logs and refuses a message that rmcp cannot read.
    pub(super) fn take_or_refuse(
        &mut self,
        (message, incoming): (Message, IncomingMessage),
        share: Option<MemoryShare>,
        inbox: &mut Inbox,
    ) -> Option<RxJsonRpcMessage<RoleClient>> {
        self.take(incoming, share).unwrap_or_else(|fault| {
            inbox.note(&format!("not a JSON-RPC message: {fault}; skipped"), message.bytes());
            inbox.refuse_unread(&message, &fault);
            None
        })
    }

    /// Takes a parsed message and returns rmcp's part of it. `Err` holds the fault of a message that rmcp cannot read.
    pub(super) fn take(
        &mut self,
        incoming: IncomingMessage,
        share: Option<MemoryShare>,
    ) -> Result<Option<RxJsonRpcMessage<RoleClient>>, String> {
        match incoming {
            IncomingMessage::Message(message) => Ok(Some(*message)),
            IncomingMessage::Answer(message, awaited) => {
                if let Some(awaited) = awaited {
                    awaited.holds(share);
                }
                Ok(Some(*message))
            }
            IncomingMessage::Direct(call, answer) => {
                // A caller that gave up has notified the server.
                let _ = call.send(answer.map(|result| result.holding(share)));
                Ok(None)
            }
            IncomingMessage::Called(id, result, awaited) => {
                if let Some(awaited) = awaited {
                    awaited.returns(result.holding(share));
                }
                Ok(Some(JsonRpcMessage::response(
                    ServerResult::CustomResult(CustomResult::new(Value::Null)),
                    id,
                )))
            }
            IncomingMessage::Progress(params) => {
                self.progress(params);
                Ok(None)
            }
            IncomingMessage::Log(params, message) => {
                self.log(params);
                Ok(Some(*message))
            }
            IncomingMessage::Unknown => Ok(None),
            IncomingMessage::Unreadable(fault) => Err(fault),
        }
    }
}

fn typed(message: &Message) -> Result<RxJsonRpcMessage<RoleClient>, String> {
    serde_json::from_slice(message.bytes()).map_err(|error| error.to_string())
}

fn notification(message: &Message) -> IncomingMessage {
    let params = || message.params().and_then(|params| serde_json::from_slice(params).ok());
    let method = message.method();
    match method.as_deref() {
        Some("notifications/progress") => return IncomingMessage::Progress(params().unwrap_or_default()),
        Some(method) if !TYPED_NOTIFICATIONS.contains(&method) => return IncomingMessage::Unknown,
        _ => {}
    }
    match (typed(message), method.as_deref()) {
        (Ok(notification), Some("notifications/message")) => {
            IncomingMessage::Log(params().unwrap_or_default(), Box::new(notification))
        }
        (Ok(notification), _) => IncomingMessage::Message(Box::new(notification)),
        (Err(fault), _) => IncomingMessage::Unreadable(fault),
    }
}

/// Returns the answer to a call. `limit` is the number of bytes of an error that are shown.
pub(super) fn called(message: &Message, limit: usize) -> Result<CallResult, ErrorData> {
    let read = match (message.result_bytes(), message.error()) {
        (Some(result), _) => CallResult::read(result),
        (None, Some(error)) => match serde_json::from_slice(error) {
            Ok(error) => return Err(shown(error, limit)),
            Err(error) => Err(error.to_string()),
        },
        (None, None) => Err("neither a result nor an error".into()),
    };
    read.map_err(|error| ErrorData::internal_error(format!("unreadable answer: {error}"), None))
}

/// Returns an answer for rmcp: a verbatim result bypasses its types. `limit` is the number of bytes of an error that are
/// shown.
pub(super) fn answer(
    message: &Message,
    expected: Option<AnswerKind>,
    limit: usize,
) -> Result<RxJsonRpcMessage<RoleClient>, String> {
    let Some(id) = message.id() else { return typed(message) };
    let verbatim = expected.is_some_and(|expected| expected != AnswerKind::Typed);
    let result = message.result().filter(|_| verbatim);
    let read = match (message.kind(), result, message.error()) {
        (MessageKind::Error, _, Some(error)) => serde_json::from_slice(error)
            .map(|error| JsonRpcMessage::error(shown(error, limit), Some(id.clone())))
            .map_err(|error| error.to_string()),
        (_, Some(result), _) => serde_json::from_slice(result)
            .map(|result| {
                JsonRpcMessage::response(ServerResult::CustomResult(CustomResult::new(result)), id.clone())
            })
            .map_err(|error| error.to_string()),
        _ => typed(message),
    };
    match read {
        // A request whose answer cannot be read must still end.
        Err(error) if verbatim => Ok(unreadable(id, error)),
        read => read,
    }
}

/// Returns the replacement for an answer that is not JSON.
fn unreadable(id: RequestId, error: String) -> RxJsonRpcMessage<RoleClient> {
    JsonRpcMessage::error(ErrorData::internal_error(format!("unreadable answer: {error}"), None), Some(id))
}

/// Returns a server's error as clients see it: at most `limit` bytes, with a note of what was cut.
fn shown(mut error: ErrorData, limit: usize) -> ErrorData {
    let message = error.message.len();
    if message > limit {
        let kept = text::clip_bytes(&error.message, limit);
        error.message = format!("{kept}... [cut: the message had {message} bytes]").into();
    }
    if let Some(bytes) = error.data.as_ref().map(wire::size).filter(|bytes| message + bytes > limit) {
        error.data = None;
        error.message = format!("{} [its data of {bytes} bytes was left out]", error.message).into();
    }
    error
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_error_is_shown_with_so_many_bytes_and_says_what_was_cut() {
        let check = |message: &str, data: Option<Value>, expected: &str, keeps: bool| {
            let error = shown(ErrorData::internal_error(message.to_string(), data), 20);
            assert_eq!((&*error.message, error.data.is_some()), (expected, keeps));
        };
        check("short", Some(json!([1])), "short", true);
        check("short", Some(json!("x".repeat(20))), "short [its data of 22 bytes was left out]", false);
        check(
            &"é".repeat(15),
            None,
            &format!("{}... [cut: the message had 30 bytes]", "é".repeat(10)),
            false,
        );
    }
}
