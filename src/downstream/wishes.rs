//! What a server wants from the client whose call is with it: an answer of its user, a completion of its model, its roots, or
//! to be heard.
//!
//! Servers of the session era send requests of their own while a call is open. Over streamable HTTP they come on the stream of
//! that call ([`About`]). Elsewhere nothing says which call they belong to, so a request goes to a client only if all calls
//! that are with the server are of that client; else it is declined, because no client may be asked on behalf of another.
//! Servers of the stateless era ask in the result of the call itself.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use rmcp::model::{ErrorCode, ErrorData, LoggingLevel};
use serde_json::{Map, Value, json};
use tokio::sync::{mpsc, oneshot};

/// Asks the user to fill in a form or to open a page.
pub const ELICIT: &str = "elicitation/create";
/// Asks the client's model for a completion.
pub const SAMPLE: &str = "sampling/createMessage";
/// Asks for the folders that the client works in.
pub const ROOTS: &str = "roots/list";

/// How severe a message of a log is (RFC 5424).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the words of the standard")]
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

impl From<LogLevel> for LoggingLevel {
    fn from(level: LogLevel) -> Self {
        match level {
            LogLevel::Debug => Self::Debug,
            LogLevel::Info => Self::Info,
            LogLevel::Notice => Self::Notice,
            LogLevel::Warning => Self::Warning,
            LogLevel::Error => Self::Error,
            LogLevel::Critical => Self::Critical,
            LogLevel::Alert => Self::Alert,
            LogLevel::Emergency => Self::Emergency,
        }
    }
}

/// How long a server that was told to end a call may still ask about it.
const LINGER: Duration = Duration::from_secs(5);

/// Requests of a server to a client, each by a key, as `{method, params}`.
pub type Requests = Map<String, Value>;
/// What came of each.
pub type Replies = BTreeMap<String, Result<Value, ErrorData>>;

/// Something on its way to the client of a call.
#[derive(Debug)]
pub enum Toward {
    /// Requests that want replies. Whoever drops the sender has declined.
    Ask(Requests, oneshot::Sender<Replies>),
    /// The params of a `notifications/message`.
    Log(Value),
}

/// The way to the client of a call.
#[derive(Clone, Debug)]
pub struct Asker {
    /// Whose client it is: requests never reach a client through the call of another.
    pub session: u64,
    /// Where requests go while the call is open.
    pub to: mpsc::Sender<Toward>,
    /// What the client can do: `elicitation`, `sampling` and `roots` of its capabilities.
    pub can: Arc<Map<String, Value>>,
    /// What was declined in its name, by method.
    pub declined: Arc<Mutex<Vec<String>>>,
    /// Whether it is asked by an unfinished result, and comes back with the answer whenever it likes (2026-07-28); else by a
    /// request of our own, while it waits for the answer to its own.
    pub parks: bool,
    /// How long it has been waiting.
    pub waits: Arc<Waits>,
    /// From which level on it wants to hear servers' logs; none if it does not.
    pub log: Option<LogLevel>,
}

/// How long a client has been waiting for the answer to its request. The time in which it is asked is its own.
#[derive(Debug)]
pub struct Waits {
    since: Mutex<Instant>,
    /// How many of its replies are awaited.
    replies: AtomicUsize,
}

impl Default for Waits {
    fn default() -> Self {
        Self { since: Mutex::new(Instant::now()), replies: AtomicUsize::new(0) }
    }
}

impl Waits {
    /// Since when it waits.
    pub fn since(&self) -> Instant {
        self.since.lock().map_or_else(|_| Instant::now(), |since| *since)
    }

    /// It has just come back.
    pub fn begin_anew(&self) {
        if let Ok(mut since) = self.since.lock() {
            *since = Instant::now();
        }
    }

    /// Whether it is being asked.
    pub fn is_asked(&self) -> bool {
        self.replies.load(Ordering::Acquire) > 0
    }

    fn for_reply(&self) -> Awaited<'_> {
        self.replies.fetch_add(1, Ordering::AcqRel);
        Awaited(self)
    }
}

/// A reply that is awaited.
struct Awaited<'a>(&'a Waits);

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        self.0.replies.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Asker {
    /// Whether the client says that it can answer this.
    pub fn can_answer(&self, method: &str, params: &Value) -> bool {
        let has = |name: &str, part: &str| self.can.get(name).is_some_and(|can| can.get(part).is_some());
        match method {
            // An empty capability means forms (2025-06-18).
            ELICIT if params["mode"] == "url" => has("elicitation", "url"),
            ELICIT => {
                self.can.contains_key("elicitation")
                    && (has("elicitation", "form") || !has("elicitation", "url"))
            }
            SAMPLE if params.get("tools").is_some() => has("sampling", "tools"),
            SAMPLE => self.can.contains_key("sampling"),
            ROOTS => self.can.contains_key("roots"),
            _ => false,
        }
    }

    fn note_declined(&self, method: &str) {
        if let Ok(mut declined) = self.declined.lock() {
            declined.push(method.into());
        }
    }

    /// Puts requests to the client that it can answer. None: nobody was there to answer any more.
    pub async fn put(&self, requests: Requests) -> Option<Replies> {
        let (reply, answered) = oneshot::channel();
        let _awaited = self.waits.for_reply();
        self.to.send(Toward::Ask(requests, reply)).await.ok()?;
        answered.await.ok()
    }

    /// Asks the client on behalf of a server; what it cannot answer, or does not, is declined in its name.
    pub(super) async fn ask(&self, requests: Requests) -> Replies {
        let mut replies = Replies::new();
        let mut open = Requests::new();
        for (key, request) in requests {
            let method = request["method"].as_str().unwrap_or_default();
            if self.can_answer(method, &request["params"]) {
                open.insert(key, request);
            } else {
                self.note_declined(method);
                replies.insert(key, declined(method, "the client that made the call cannot answer it"));
            }
        }
        if open.is_empty() {
            return replies;
        }
        let methods: Vec<(String, String)> = open
            .iter()
            .map(|(key, request)| (key.clone(), request["method"].as_str().unwrap_or_default().to_string()))
            .collect();
        let mut given = self.put(open).await.unwrap_or_default();
        for (key, method) in methods {
            let reply = given.remove(&key).unwrap_or_else(|| {
                self.note_declined(&method);
                declined(&method, "nobody was there to answer it any more")
            });
            replies.insert(key, reply);
        }
        replies
    }
}

/// The answer to a request that no client can be asked.
fn declined(method: &str, why: &str) -> Result<Value, ErrorData> {
    match method {
        ELICIT => Ok(json!({ "action": "decline" })),
        ROOTS => Ok(json!({ "roots": [] })),
        _ => {
            Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, format!("`{method}` was declined: {why}"), None))
        }
    }
}

/// The call that a server's request is about, where its transport tells. Put into the extensions of the request.
#[derive(Clone, Debug)]
pub(super) enum About {
    /// One that is open, of this client.
    Call(Asker),
    /// One that has ended.
    Over,
}

/// The ways to the clients of the calls that are with one server.
#[derive(Debug, Default)]
pub(super) struct Askers {
    all: Mutex<BTreeMap<u64, Asker>>,
    next: AtomicU64,
}

impl Askers {
    /// Lets the server ask this client until the guard is dropped.
    pub fn enter(self: &Arc<Self>, asker: Asker) -> Entered {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        if let Ok(mut all) = self.all.lock() {
            all.insert(id, asker);
        }
        Entered { askers: self.clone(), id, answered: false }
    }

    fn leave(&self, id: u64) {
        if let Ok(mut all) = self.all.lock() {
            all.remove(&id);
        }
    }

    /// The client that all calls are of.
    fn only(&self) -> Result<Asker, &'static str> {
        let all = self.all.lock().map_err(|_| "the gateway has failed")?;
        let Some(last) = all.values().next_back() else { return Err("no call is with the server") };
        match all.values().all(|asker| asker.session == last.session) {
            // One whose request is still open, rather than one that has become a task.
            true => Ok(all.values().rev().find(|asker| !asker.to.is_closed()).unwrap_or(last).clone()),
            false => {
                Err("calls of several clients are with the server, and it does not say whose it is about")
            }
        }
    }

    /// Puts a request of the server to the client that it is about, or can only be about.
    pub async fn ask(
        &self,
        server: &str,
        about: Option<&About>,
        method: &str,
        params: Value,
    ) -> Result<Value, ErrorData> {
        let asker = match about {
            Some(About::Call(asker)) => Ok(asker.clone()),
            Some(About::Over) => Err("the call that it is about has ended"),
            None => self.only(),
        };
        let reply = match asker {
            Ok(asker) => {
                let requests = Requests::from_iter([(
                    method.to_string(),
                    json!({ "method": method, "params": params }),
                )]);
                asker.ask(requests).await.remove(method)
            }
            Err(why) => {
                tracing::info!(server, method, "a request of the server was declined: {why}");
                if about.is_none()
                    && let Ok(all) = self.all.lock()
                {
                    all.values().for_each(|asker| asker.note_declined(method));
                }
                Some(declined(method, why))
            }
        };
        reply.unwrap_or_else(|| declined(method, "it was not answered"))
    }

    /// Hands a log message on, if it is clear to whom.
    pub fn log(&self, params: Value) {
        if let Ok(asker) = self.only() {
            // What a client does not read in time is in the gateway's own log.
            let _ = asker.to.try_send(Toward::Log(params));
        }
    }
}

/// A client that the server may ask; not any more once this is dropped. If the server has not answered by then, it may still
/// be at work on the call or ask about it, and nobody else is to be taken for its client meanwhile.
#[derive(Debug)]
pub(super) struct Entered {
    askers: Arc<Askers>,
    id: u64,
    answered: bool,
}

impl Entered {
    /// The server has answered: it asks no more.
    pub fn answered(&mut self) {
        self.answered = true;
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let (askers, id) = (self.askers.clone(), self.id);
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) if !self.answered => drop(runtime.spawn(async move {
                tokio::time::sleep(LINGER).await;
                askers.leave(id);
            })),
            _ => askers.leave(id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asker(session: u64, can: Value) -> (Asker, mpsc::Receiver<Toward>) {
        let (to, receiver) = mpsc::channel(4);
        let can = Arc::new(can.as_object().cloned().unwrap_or_default());
        let (declined, waits) = (Arc::default(), Arc::default());
        let asker = Asker { session, to, can, declined, parks: false, waits, log: None };
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
        check(json!({}), ELICIT, json!({}), false);
        check(json!({ "elicitation": {} }), ELICIT, json!({}), true);
        check(json!({ "elicitation": {} }), ELICIT, url.clone(), false);
        check(json!({ "elicitation": { "url": {} } }), ELICIT, url, true);
        check(json!({ "elicitation": { "url": {} } }), ELICIT, json!({ "mode": "form" }), false);
        check(json!({ "sampling": {} }), SAMPLE, json!({}), true);
        check(json!({ "sampling": {} }), SAMPLE, json!({ "tools": [] }), false);
        check(json!({ "sampling": { "tools": {} } }), SAMPLE, json!({ "tools": [] }), true);
        check(json!({ "roots": {} }), ROOTS, Value::Null, true);
        check(json!({ "roots": {} }), "no/such", Value::Null, false);
    }

    #[tokio::test]
    async fn a_request_reaches_the_only_client_and_is_declined_between_two() {
        let askers = Arc::new(Askers::default());
        let nobody = askers.ask("s", None, ELICIT, json!({})).await;
        assert_eq!(nobody, Ok(json!({ "action": "decline" })));
        let (first, mut receiver) = asker(1, json!({ "elicitation": {} }));
        let answering = tokio::spawn(async move {
            while let Some(Toward::Ask(requests, reply)) = receiver.recv().await {
                let replies =
                    requests.keys().map(|key| (key.clone(), Ok(json!({ "action": "accept" })))).collect();
                let _ = reply.send(replies);
            }
        });
        let _one = askers.enter(first.clone());
        let _two = askers.enter(first.clone());
        assert_eq!(askers.ask("s", None, ELICIT, json!({})).await, Ok(json!({ "action": "accept" })));
        let (other, _receiver) = asker(2, json!({ "elicitation": {} }));
        let mut third = askers.enter(other);
        assert_eq!(askers.ask("s", None, ELICIT, json!({})).await, Ok(json!({ "action": "decline" })));
        assert!(askers.ask("s", None, SAMPLE, json!({})).await.is_err());
        third.answered();
        drop(third);
        assert_eq!(askers.ask("s", None, ELICIT, json!({})).await, Ok(json!({ "action": "accept" })));
        answering.abort();
    }
}
