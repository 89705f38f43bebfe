//! What the messages of one server lead to: its answers reach those who wait for them, its requests the
//! client of a call, and its notifications whom they concern, all in the order in which they came.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use nonet_base::text::{self, clip};
use nonet_text::results::CallResult;
use nonet_wire::{self as wire, Expectations, Inbox, Limits, Message, MessageKind, off_thread};
use parking_lot::Mutex;
use rmcp::model::{ErrorCode, ErrorData, RequestId};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{
    pending::{AnswerKind, PendingRequest, PendingRequests, ServerAnswer},
    server_requests::{ELICITATION, OpenCalls, ROOTS, RelatedCall, SAMPLING},
    subscriptions::Subscriptions,
};

/// The maximum number of a server's requests that wait for an answer of ours.
const MOST_ASKED: usize = 1_000;
/// How many characters of a log message are in Nonet's own log.
const LOGGED: usize = 500;
/// The `_meta` key for the id of the subscription that a notification belongs to (2026-07-28).
const SUBSCRIPTION_KEY: &str = "io.modelcontextprotocol/subscriptionId";

/// Sends messages to a server without waiting for it.
pub(super) trait SendSoon: Clone + Send + Sync + 'static {
    /// Sends a message in a separate task, or drops it if the server does not read.
    fn send_soon(&self, message: Bytes);
}

/// Takes the messages of one connection.
#[derive(Debug)]
pub(super) struct Incoming {
    pub server: Arc<str>,
    pub pending: PendingRequests,
    /// Receives a signal for each `list_changed` notification.
    pub list_changed: Notify,
    /// Cancelled when the connection is gone.
    pub closed: CancellationToken,
    /// Whether the server is told that its user interfaces are shown.
    pub ui: bool,
    calls: Arc<OpenCalls>,
    subscriptions: Arc<Subscriptions>,
    /// The server's requests that wait for an answer of ours, by the server's own ids.
    asked: Mutex<HashMap<RequestId, CancellationToken>>,
}

impl Incoming {
    /// Returns what takes the messages of a new connection to a server.
    pub(super) fn new(
        server: Arc<str>,
        limits: Limits,
        ui: bool,
        calls: Arc<OpenCalls>,
        subscriptions: Arc<Subscriptions>,
    ) -> Arc<Self> {
        Arc::new(Self {
            server,
            pending: PendingRequests::new(limits),
            list_changed: Notify::new(),
            closed: CancellationToken::new(),
            ui,
            calls,
            subscriptions,
            asked: Mutex::default(),
        })
    }

    /// Ends what waits for this connection: it is gone.
    pub(super) fn close(&self) {
        self.pending.close();
        self.closed.cancel();
    }

    /// Takes all messages of an inbox, like [`Self::take`], and sends refusals of unreadable ones `back`.
    /// Returns whether there was any message.
    pub(super) async fn take_all(
        self: &Arc<Self>,
        inbox: &mut Inbox,
        about: Option<&RelatedCall>,
        back: &impl SendSoon,
    ) -> bool {
        let mut has_message = false;
        while let Some(message) = inbox.pop() {
            has_message = true;
            self.take(message, about, back, inbox).await;
        }
        inbox.refusals().for_each(|refusal| back.send_soon(refusal));
        has_message
    }

    /// Takes a message. `about` is the call on whose stream it came, if that is known; answers to the server
    /// go `back`.
    async fn take(
        self: &Arc<Self>,
        message: Message,
        about: Option<&RelatedCall>,
        back: &impl SendSoon,
        inbox: &mut Inbox,
    ) {
        match message.kind() {
            MessageKind::Request => self.asks(message, about, back, inbox).await,
            MessageKind::Notification => self.notifies(message).await,
            MessageKind::Result | MessageKind::Error | MessageKind::Other => {
                let id = message.id();
                match id.as_ref().and_then(|id| self.pending.take(id)) {
                    Some(request) => self.answers(request, message).await,
                    // Nobody waits any more: the call was cancelled.
                    None if id.is_some_and(|id| self.pending.is_past(&id)) => {}
                    None => {
                        let what = match message.kind() {
                            MessageKind::Other => "not a JSON-RPC message; skipped",
                            _ => "an answer to an unknown request; skipped",
                        };
                        inbox.note(what, message.bytes());
                    }
                }
            }
        }
    }

    /// Hands an answer to whoever waits for it.
    pub(super) async fn answers(&self, request: PendingRequest, message: Message) {
        let (expected, limit) = (request.expected, self.limit_of_errors());
        let (answer, share) = off_thread(message.weight(), move || read(&message, expected, limit)).await;
        // A caller that gave up has notified the server.
        let _ = request.answer.send(answer.map(|result| result.holding(share)));
    }

    fn limit_of_errors(&self) -> usize {
        self.pending.limits().error
    }

    async fn notifies(&self, message: Message) {
        let Some(method) = message.method() else { return };
        match &*method {
            "notifications/progress" => {
                let Some(params) = params::<Value>(&message).await else { return };
                let token = params.get("progressToken").cloned().and_then(|t| serde_json::from_value(t).ok());
                // Without a waiting caller, it is dropped.
                if let Some(sink) = token.and_then(|token| self.pending.sink(&token)) {
                    sink.take(self.calls.masked(params));
                }
            }
            "notifications/message" => {
                let Some(params) = params::<Value>(&message).await else { return };
                if tracing::enabled!(tracing::Level::DEBUG) {
                    let data = self.calls.masked(params.get("data").cloned().unwrap_or_default());
                    tracing::debug!(server = %self.server, "log: {}", clip(&data.to_string(), LOGGED));
                }
                self.calls.log(params);
            }
            "notifications/tools/list_changed"
            | "notifications/prompts/list_changed"
            | "notifications/resources/list_changed" => self.list_changed.notify_one(),
            "notifications/resources/updated" => {
                let params = params::<Value>(&message).await;
                if let Some(uri) = params.as_ref().and_then(|params| params.get("uri")?.as_str()) {
                    self.subscriptions.updated(uri.into());
                }
            }
            "notifications/subscriptions/acknowledged" => {
                let params = params::<Value>(&message).await;
                let id = params.as_ref().and_then(|params| params.get("_meta")?.get(SUBSCRIPTION_KEY));
                if let Some(id) = id.and_then(|id| serde_json::from_value(id.clone()).ok()) {
                    self.pending.acknowledged(&id);
                }
            }
            "notifications/cancelled" => {
                let params = params::<Value>(&message).await;
                let id = params.as_ref().and_then(|params| params.get("requestId"));
                let Some(id) = id.and_then(|id| serde_json::from_value::<RequestId>(id.clone()).ok()) else {
                    return;
                };
                match self.asked.lock().remove(&id) {
                    Some(asked) => asked.cancel(),
                    // A server of the stateless era ends a subscription of ours like this.
                    None => drop(self.pending.take(&id)),
                }
            }
            // Nobody here asks for others.
            _ => {}
        }
    }

    /// Answers a request of the server: a ping at once, a question when its client has answered.
    async fn asks(
        self: &Arc<Self>,
        message: Message,
        about: Option<&RelatedCall>,
        back: &impl SendSoon,
        inbox: &mut Inbox,
    ) {
        let Some(id) = message.id() else {
            return inbox.refuse_unread(&message, "the id is neither a string nor a 64-bit number");
        };
        let method = match message.method().as_deref() {
            Some("ping") => return back.send_soon(answer_to(&id, &Ok(json!({})))),
            Some(ELICITATION) => ELICITATION,
            Some(SAMPLING) => SAMPLING,
            Some(ROOTS) => ROOTS,
            method => {
                let why = format!("Method not found: {}", clip(method.unwrap_or_default(), 100));
                let error = ErrorData::new(ErrorCode::METHOD_NOT_FOUND, why, None);
                return back.send_soon(answer_to(&id, &Err(error)));
            }
        };
        let Value::Object(mut params) = params::<Value>(&message).await.unwrap_or_else(|| json!({})) else {
            let error = ErrorData::invalid_params("the params are not an object", None);
            return back.send_soon(answer_to(&id, &Err(error)));
        };
        if let Some(Value::Object(meta)) = params.get_mut("_meta") {
            // Progress of the answer is not forwarded.
            meta.remove("progressToken");
            if meta.is_empty() {
                params.remove("_meta");
            }
        }
        let cancelled = self.closed.child_token();
        {
            let mut asked = self.asked.lock();
            if asked.len() >= MOST_ASKED {
                let why =
                    format!("{MOST_ASKED} of your requests wait already: ask again when some are answered");
                return back.send_soon(answer_to(&id, &Err(ErrorData::internal_error(why, None))));
            }
            asked.insert(id.clone(), cancelled.clone());
        }
        let (incoming, about, back) = (self.clone(), about.cloned(), back.clone());
        tokio::spawn(async move {
            let asked = incoming.calls.ask(&incoming.server, about.as_ref(), method, params.into());
            let answer = cancelled.run_until_cancelled(asked).await;
            incoming.asked.lock().remove(&id);
            // A cancelled request gets no answer.
            if let Some(answer) = answer {
                back.send_soon(answer_to(&id, &answer));
            }
        });
    }
}

/// Returns the params of a message, read on another thread if they are large; `None` if it has none, or
/// unreadable ones.
async fn params<T: DeserializeOwned + Send + 'static>(message: &Message) -> Option<T> {
    let (weight, message) = (message.weight(), message.clone());
    off_thread(weight, move || serde_json::from_slice(message.params()?).ok()).await.0
}

/// Returns an answer of ours as a message.
fn answer_to(id: &RequestId, answer: &Result<Value, ErrorData>) -> Bytes {
    #[derive(Serialize)]
    struct Answer<'a> {
        jsonrpc: &'static str,
        id: &'a RequestId,
        #[serde(skip_serializing_if = "Option::is_none")]
        result: Option<&'a Value>,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<&'a ErrorData>,
    }
    let (result, error) = (answer.as_ref().ok(), answer.as_ref().err());
    serde_json::to_vec(&Answer { jsonrpc: "2.0", id, result, error }).unwrap_or_default().into()
}

/// Reads an answer. `limit` is the number of bytes of an error that are shown.
fn read(message: &Message, expected: AnswerKind, limit: usize) -> ServerAnswer {
    let read = match (message.result_bytes(), message.error()) {
        (Some(result), _) if expected == AnswerKind::Result => CallResult::read(result),
        (Some(result), _) => {
            serde_json::from_slice::<Value>(&result).map(CallResult::from).map_err(|error| error.to_string())
        }
        (None, Some(error)) => match serde_json::from_slice(error) {
            Ok(error) => return Err(shown(error, limit)),
            Err(error) => Err(error.to_string()),
        },
        (None, None) => Err("neither a result nor an error".into()),
    };
    read.map_err(|error| ErrorData::internal_error(format!("unreadable answer: {error}"), None))
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

    #[test]
    fn an_answer_that_is_almost_json_fails_its_request() {
        for text in
            ["{\"jsonrpc\":\"2.0\",\"id\":3,\"result\":{\"text\":\"\\ud83d\"}}", "{\"id\":4,\"result\":NaN}"]
        {
            let message = Message::of(text).expect("it looks like a message");
            let error = read(&message, AnswerKind::Result, 100).expect_err(text);
            assert!(error.message.starts_with("unreadable answer"), "{error:?}");
        }
    }
}
