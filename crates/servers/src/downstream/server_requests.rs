//! A server's requests to the client of a call (elicitation, sampling and roots), and its log messages.
//!
//! Servers of the session era send such requests while a call is in flight. Over streamable HTTP they arrive
//! on the stream of that call ([`RelatedCall`]). On other transports nothing identifies the call, so a
//! request goes to a client only if all calls in flight belong to that client; otherwise it is declined,
//! because no client may be asked on behalf of another. Servers of the stateless era ask in the result of the
//! call itself.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
#[expect(deprecated, reason = "only in the newest revision (SEP-2577)")]
use rmcp::model::LoggingLevel;
use rmcp::model::{ErrorCode, ErrorData};
use serde_json::{Map, Value, json};
use tokio::sync::{mpsc, oneshot};

use super::{
    SharedSecrets,
    turns::{EscapedTexts, QuestionTurns, prepared},
};

/// Asks the user to fill in a form or to open a page.
pub const ELICITATION: &str = "elicitation/create";
/// Asks the client's model for a completion.
pub const SAMPLING: &str = "sampling/createMessage";
/// Asks for the folders that the client works in.
pub(super) const ROOTS: &str = "roots/list";

/// The severity of a log message (RFC 5424).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the words of the standard")]
pub enum LogLevel {
    Debug,
    Info,
    Notice,
    Warning,
    Error,
    Critical,
    Alert,
    Emergency,
}

#[expect(deprecated, reason = "only in the newest revision (SEP-2577)")]
impl From<LoggingLevel> for LogLevel {
    fn from(level: LoggingLevel) -> Self {
        match level {
            LoggingLevel::Debug => Self::Debug,
            LoggingLevel::Info => Self::Info,
            LoggingLevel::Notice => Self::Notice,
            LoggingLevel::Warning => Self::Warning,
            LoggingLevel::Error => Self::Error,
            LoggingLevel::Critical => Self::Critical,
            LoggingLevel::Alert => Self::Alert,
            LoggingLevel::Emergency => Self::Emergency,
        }
    }
}

/// The `_meta` key of an answer that no user gave, for the reason.
const DECLINED: &str = "nonet/declined";
/// How long a server may still send requests about a cancelled call.
const LINGER: Duration = Duration::from_secs(5);

/// A server's requests to a client, each under a key, as `{method, params}`.
pub type InputRequests = Map<String, Value>;
/// The replies, under the same keys.
pub type InputReplies = BTreeMap<String, Result<Value, ErrorData>>;

/// A message on its way to the client of a call. Small, because each call has a queue with room for many.
#[derive(Debug)]
pub enum ClientMessage {
    /// Requests that need replies. Dropping the sender declines them.
    Ask(Box<InputRequests>, oneshot::Sender<InputReplies>),
    /// The params of a `notifications/message`.
    Log(Box<Value>),
}

/// The channel to the client of a call.
#[derive(Clone, Debug)]
pub struct ClientChannel {
    /// The client's session: requests never reach one client through another's call.
    pub session: u64,
    /// The queue of messages while the call is in flight.
    pub to: mpsc::Sender<ClientMessage>,
    /// The client's capabilities for servers: `elicitation`, `sampling` and `roots`.
    pub can: Arc<Map<String, Value>>,
    /// The questions of the client's session, which take turns.
    pub turns: Arc<QuestionTurns>,
    /// Whether the client gets questions in an unfinished result and returns with the answers at any time
    /// (2026-07-28). Otherwise it gets a request while it waits for the answer to its own.
    pub parks: bool,
    /// How long the client has been waiting.
    pub waits: Arc<ClientWait>,
    /// The minimum level of server log messages that the client wants, if it wants any.
    pub log: Option<LogLevel>,
}

/// A server's request that was declined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeclinedRequest {
    /// Its method.
    pub method: String,
    /// Why Nonet did not pass it on; `None` if the client cannot answer it.
    pub why: Option<String>,
}

/// How long a client has been waiting for the answer to its request, excluding the time in which the client
/// itself is asked.
#[derive(Debug)]
pub struct ClientWait {
    since: Mutex<Instant>,
    /// The number of outstanding replies from the client's user.
    replies: AtomicUsize,
    /// The number under which the call goes on as a task, once it does.
    task: OnceLock<u64>,
    /// The requests declined on the client's behalf meanwhile.
    declined: Mutex<Vec<DeclinedRequest>>,
}

impl Default for ClientWait {
    fn default() -> Self {
        Self {
            since: Mutex::new(Instant::now()),
            replies: AtomicUsize::new(0),
            task: OnceLock::new(),
            declined: Mutex::default(),
        }
    }
}

impl ClientWait {
    /// Returns the start of the wait.
    pub fn since(&self) -> Instant {
        *self.since.lock()
    }

    /// Restarts the wait, for a client that has just come back.
    pub fn restart(&self) {
        *self.since.lock() = Instant::now();
    }

    /// Takes the requests that were declined on the client's behalf so far.
    pub fn take_declined(&self) -> Vec<DeclinedRequest> {
        std::mem::take(&mut *self.declined.lock())
    }

    /// Notes that the call goes on as a task. Returns its number, which no other call of the process has.
    pub fn goes_on(&self) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        *self.task.get_or_init(|| NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the number under which the call goes on as a task, if it does.
    pub fn task(&self) -> Option<u64> {
        self.task.get().copied()
    }

    /// Returns whether the client's user is being asked.
    pub fn is_asked(&self) -> bool {
        self.replies.load(Ordering::Acquire) > 0
    }

    fn for_reply(&self) -> AwaitedReply<'_> {
        self.replies.fetch_add(1, Ordering::AcqRel);
        AwaitedReply(self)
    }
}

/// An outstanding reply from a client.
struct AwaitedReply<'a>(&'a ClientWait);

impl Drop for AwaitedReply<'_> {
    fn drop(&mut self) {
        self.0.replies.fetch_sub(1, Ordering::AcqRel);
    }
}

impl ClientChannel {
    /// Returns whether the client has declared that it can answer a request.
    pub fn can_answer(&self, method: &str, params: &Value) -> bool {
        let has = |name: &str, part: &str| self.can.get(name).is_some_and(|can| can.get(part).is_some());
        match method {
            // An empty capability means forms (2025-06-18).
            ELICITATION if params["mode"] == "url" => has("elicitation", "url"),
            ELICITATION => {
                self.can.contains_key("elicitation")
                    && (has("elicitation", "form") || !has("elicitation", "url"))
            }
            SAMPLING if params.get("tools").is_some() => has("sampling", "tools"),
            SAMPLING => self.can.contains_key("sampling"),
            ROOTS => self.can.contains_key("roots"),
            _ => false,
        }
    }

    fn note_declined(&self, method: &str, why: Option<&str>) {
        self.waits.declined.lock().push(DeclinedRequest { method: method.into(), why: why.map(Into::into) });
    }

    /// Sends Nonet's own requests, which the client can answer. Returns `None` if the client has left.
    pub async fn put(&self, requests: InputRequests) -> Option<InputReplies> {
        // A model's reply is not a user's: a question to the user may come meanwhile.
        let has_question = requests.values().any(|request| request["method"] == ELICITATION);
        let _awaited = self.waits.for_reply();
        let _turn = match has_question && !self.parks {
            true => Some(self.until_gone(self.turns.own()).await?),
            false => None,
        };
        self.send(requests).await
    }

    /// Sends requests to the client. People see hidden characters of a question escaped.
    async fn send(&self, mut requests: InputRequests) -> Option<InputReplies> {
        let questions = requests.iter_mut().filter(|(_, request)| request["method"] == ELICITATION);
        let texts: Vec<_> =
            questions.map(|(key, request)| (key.clone(), EscapedTexts::of(request))).collect();
        let (reply, answered) = oneshot::channel();
        self.to.send(ClientMessage::Ask(Box::new(requests), reply)).await.ok()?;
        let mut replies = answered.await.ok()?;
        for (key, texts) in &texts {
            if let Some(Ok(answer)) = replies.get_mut(key) {
                texts.restore(answer);
            }
        }
        Some(replies)
    }

    /// Waits for something as long as the client does. The user may be busy with another question meanwhile.
    async fn until_gone<T>(&self, wait: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            it = wait => Some(it),
            () = self.to.closed() => None,
        }
    }

    /// Asks the client on behalf of a server, when it is the question's turn. Requests without an answer are
    /// declined on the client's behalf.
    pub(super) async fn ask(&self, server: &str, requests: InputRequests) -> InputReplies {
        let (mut replies, unanswered) = self.ask_while_it_waits(server, requests).await;
        for (key, method) in unanswered {
            replies.insert(key, self.gone(&method));
        }
        replies
    }

    /// Asks the client like [`ClientChannel::ask`]. Also returns the keys and methods of the requests without
    /// an answer because the client's call has ended.
    async fn ask_while_it_waits(
        &self,
        server: &str,
        requests: InputRequests,
    ) -> (InputReplies, Vec<(String, String)>) {
        let mut replies = InputReplies::new();
        let mut open = InputRequests::new();
        for (key, mut request) in requests {
            let method = request["method"].as_str().unwrap_or_default().to_owned();
            if !self.can_answer(&method, &request["params"]) {
                self.note_declined(&method, None);
                replies.insert(key, declined(&method, "the client of the call cannot answer it"));
                continue;
            }
            match prepared(server, &method, &mut request) {
                Ok(()) => drop(open.insert(key, request)),
                Err(why) => drop(replies.insert(key, self.refused(server, &method, &why))),
            }
        }
        if open.is_empty() {
            return (replies, Vec::new());
        }
        let mut methods: Vec<(String, String)> = open
            .iter()
            .map(|(key, request)| (key.clone(), request["method"].as_str().unwrap_or_default().to_string()))
            .collect();
        // The user's time does not count. A client's model answers in time, or the call goes on as a task; a
        // client that returns at any time does not wait meanwhile.
        let asks_user = methods.iter().any(|(_, method)| method == ELICITATION);
        let _awaited = (asks_user || self.parks).then(|| self.waits.for_reply());
        // Roots are answered without asking anybody.
        let turn = match methods.iter().all(|(_, method)| method == ROOTS) {
            true => None,
            false => match self.until_gone(self.turns.of_server(server, self.parks)).await {
                Some(Some(turn)) => Some(turn),
                Some(None) => {
                    for (key, method) in methods {
                        replies.insert(
                            key,
                            self.refused(server, &method, "too many of its questions are already waiting"),
                        );
                    }
                    return (replies, Vec::new());
                }
                None => return (replies, methods),
            },
        };
        let given = self.send(open).await.unwrap_or_default();
        drop(turn);
        methods.retain(|(key, _)| !given.contains_key(key));
        replies.extend(given);
        (replies, methods)
    }

    fn gone(&self, method: &str) -> Result<Value, ErrorData> {
        let why = match self.waits.task() {
            Some(_) => "the call went on as a task, and its client did not come back for the question",
            None => "the client has gone",
        };
        self.note_declined(method, Some(&nobody(why)));
        declined(method, why)
    }

    /// Declines a request that the client could answer, and records the reason.
    fn refused(&self, server: &str, method: &str, why: &str) -> Result<Value, ErrorData> {
        tracing::warn!(server, method, "a request of the server was declined: {why}");
        self.note_declined(method, Some(why));
        match method {
            ELICITATION => Ok(json!({ "action": "decline", "_meta": { DECLINED: why } })),
            _ => declined(method, why),
        }
    }
}

/// Says that no user has seen a question.
fn nobody(why: &str) -> String {
    format!("nobody could be asked: {why}")
}

/// Returns the answer to a request that is not forwarded to a client. It is not a user's no.
fn declined(method: &str, why: &str) -> Result<Value, ErrorData> {
    match method {
        ELICITATION => Ok(json!({ "action": "cancel", "_meta": { DECLINED: nobody(why) } })),
        ROOTS => Ok(json!({ "roots": [] })),
        _ => {
            Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, format!("`{method}` was declined: {why}"), None))
        }
    }
}

/// The call that a server's request belongs to, if the transport identifies it.
#[derive(Clone, Debug)]
pub(super) enum RelatedCall {
    /// A call in flight, of this client.
    Call(ClientChannel),
    /// A call that has ended.
    Over,
}

/// The calls in flight at one server, with the channels to their clients. Whatever the server sends there
/// besides results has no known secrets.
#[derive(Debug, Default)]
pub(super) struct OpenCalls {
    all: Mutex<BTreeMap<u64, ClientChannel>>,
    next: AtomicU64,
    /// The secrets that are masked.
    pub secrets: SharedSecrets,
}

impl OpenCalls {
    /// Returns no calls, whose messages these secrets are masked in.
    pub(super) fn masking(secrets: SharedSecrets) -> Self {
        Self { secrets, ..Self::default() }
    }

    /// Returns a value that a server sends to a client, without known secrets.
    pub(super) fn masked(&self, mut value: Value) -> Value {
        self.secrets.load().mask_in(&mut value);
        value
    }

    /// Lets the server send requests to this client until the returned value is dropped.
    pub(super) fn enter(self: &Arc<Self>, asker: ClientChannel) -> OpenCall {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.all.lock().insert(id, asker);
        OpenCall { calls: self.clone(), id, answered: false }
    }

    fn leave(&self, id: u64) {
        self.all.lock().remove(&id);
    }

    /// Returns the client of all calls in flight, if they share one.
    fn only(&self) -> Result<ClientChannel, &'static str> {
        let all = self.all.lock();
        let Some(last) = all.values().next_back() else { return Err("no call is in flight") };
        match all.values().all(|asker| asker.session == last.session) {
            // Prefer a call whose client still waits to a call that has become a task.
            true => Ok(all.values().rev().find(|asker| !asker.to.is_closed()).unwrap_or(last).clone()),
            false => Err("calls of several clients are in flight, and the request does not name its call"),
        }
    }

    /// Sends a request of the server to the client of its call, or to the only client.
    pub(super) async fn ask(
        &self,
        server: &str,
        about: Option<&RelatedCall>,
        method: &str,
        params: Value,
    ) -> Result<Value, ErrorData> {
        let request = json!({ "method": method, "params": self.masked(params) });
        loop {
            let asker = match about {
                Some(RelatedCall::Call(asker)) => Ok(asker.clone()),
                Some(RelatedCall::Over) => Err("its call has ended"),
                None => self.only(),
            };
            let asker = match asker {
                Ok(asker) => asker,
                Err(why) => {
                    tracing::info!(server, method, "a request of the server was declined: {why}");
                    if about.is_none() {
                        let why = nobody(why);
                        self.all.lock().values().for_each(|asker| asker.note_declined(method, Some(&why)));
                    }
                    return declined(method, why);
                }
            };
            let requests = InputRequests::from_iter([(method.to_string(), request.clone())]);
            let (mut replies, unanswered) = asker.ask_while_it_waits(server, requests).await;
            if let Some(reply) = replies.remove(method) {
                return reply;
            }
            // The call whose client got it has ended, but the request may belong to another call of this
            // client.
            let ended = about.is_none() && !unanswered.is_empty() && asker.to.is_closed();
            if !ended || !self.has_waiting(asker.session) {
                return asker.gone(method);
            }
        }
    }

    /// Returns whether a call of this session is in flight whose client still waits.
    fn has_waiting(&self, session: u64) -> bool {
        self.all.lock().values().any(|asker| asker.session == session && !asker.to.is_closed())
    }

    /// Forwards a log message to the only client, if there is exactly one.
    pub(super) fn log(&self, params: Value) {
        if let Ok(asker) = self.only() {
            let params = self.masked(params);
            // A message that the client does not read in time is still in the gateway's own log.
            let _ = asker.to.try_send(ClientMessage::Log(Box::new(params)));
        }
    }
}

/// A call that the server may ask about until this value is dropped. A server that has not answered by then
/// may still work on the call and ask about it; until it has, no other client counts as the only one.
#[derive(Debug)]
pub(super) struct OpenCall {
    calls: Arc<OpenCalls>,
    id: u64,
    answered: bool,
}

impl OpenCall {
    /// Notes that the server has answered and will ask no more.
    pub(super) fn answered(&mut self) {
        self.answered = true;
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        if self.answered {
            return self.calls.leave(self.id);
        }
        let (calls, id) = (self.calls.clone(), self.id);
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(async move {
                tokio::time::sleep(LINGER).await;
                calls.leave(id);
            })),
            Err(_) => calls.leave(id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asker(session: u64, can: Value) -> (ClientChannel, mpsc::Receiver<ClientMessage>) {
        let (to, receiver) = mpsc::channel(4);
        let can = Arc::new(can.as_object().cloned().unwrap_or_default());
        let (waits, turns) = (Arc::default(), Arc::default());
        let asker = ClientChannel { session, to, can, turns, parks: false, waits, log: None };
        (asker, receiver)
    }

    #[test]
    fn a_client_is_asked_only_for_what_it_can() {
        let check = |can: Value, method: &str, params: Value, expected: bool| {
            assert_eq!(
                asker(1, can.clone()).0.can_answer(method, &params),
                expected,
                "{can} {method} {params}"
            );
        };
        let url = json!({ "mode": "url" });
        check(json!({}), ELICITATION, json!({}), false);
        check(json!({ "elicitation": {} }), ELICITATION, json!({}), true);
        check(json!({ "elicitation": {} }), ELICITATION, url.clone(), false);
        check(json!({ "elicitation": { "url": {} } }), ELICITATION, url, true);
        check(json!({ "elicitation": { "url": {} } }), ELICITATION, json!({ "mode": "form" }), false);
        check(json!({ "sampling": {} }), SAMPLING, json!({}), true);
        check(json!({ "sampling": {} }), SAMPLING, json!({ "tools": [] }), false);
        check(json!({ "sampling": { "tools": {} } }), SAMPLING, json!({ "tools": [] }), true);
        check(json!({ "roots": {} }), ROOTS, Value::Null, true);
        check(json!({ "roots": {} }), "no/such", Value::Null, false);
    }

    #[tokio::test]
    async fn a_request_reaches_the_only_client_and_is_declined_between_two() {
        let calls = Arc::new(OpenCalls::default());
        let unasked = async || calls.ask("s", None, ELICITATION, json!({})).await.expect("an answer");
        let nobody = unasked().await;
        assert_eq!(nobody["action"], "cancel", "no user has declined");
        assert!(nobody["_meta"][DECLINED].as_str().is_some_and(|why| why.contains("nobody could be asked")));
        let (first, mut receiver) = asker(1, json!({ "elicitation": {} }));
        let answering = tokio::spawn(async move {
            while let Some(ClientMessage::Ask(requests, reply)) = receiver.recv().await {
                let replies =
                    requests.keys().map(|key| (key.clone(), Ok(json!({ "action": "accept" })))).collect();
                let _ = reply.send(replies);
            }
        });
        let _one = calls.enter(first.clone());
        let _two = calls.enter(first.clone());
        assert_eq!(calls.ask("s", None, ELICITATION, json!({})).await, Ok(json!({ "action": "accept" })));
        let (other, _receiver) = asker(2, json!({ "elicitation": {} }));
        let mut third = calls.enter(other);
        assert_eq!(unasked().await["action"], "cancel");
        assert!(calls.ask("s", None, SAMPLING, json!({})).await.is_err());
        third.answered();
        drop(third);
        assert_eq!(calls.ask("s", None, ELICITATION, json!({})).await, Ok(json!({ "action": "accept" })));
        answering.abort();
    }
}
