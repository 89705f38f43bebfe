//! Programs that this replica runs for the others, each as a separate MCP server at `/cluster/servers/NAME`. Only replicas
//! have access, and they have already checked their clients' requests, so everything passes through unchanged. A program's
//! progress, logs and questions come back on the stream of their call.

use std::{
    collections::HashMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::Body,
    extract::{Path, Request, State},
    response::Response,
    routing::any,
};
use bytes::Bytes;
use dashmap::DashMap;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE},
};
use nonet_base::json::set_member;
use nonet_core::{Gateway, RELAYS};
use nonet_servers::{
    catalog::Listing,
    downstream::{
        CallControl, CallError, ClientChannel, ClientMessage, Connection, ConnectionState, InputReplies,
        InputRequests, LogLevel, ProgressSink, QuestionTurns, RelayedCall,
    },
};
use nonet_text::results::CallResult;
use nonet_wire::{self as wire, Message, MessageKind, SizeLimit, off_thread};
use parking_lot::Mutex;
use rmcp::model::ErrorData;
use serde_json::{Map, Value, json};
use tokio::{
    select,
    sync::{mpsc, oneshot},
    time::{interval, sleep, timeout},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{elsewhere, http::within_bounds, listen};

const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
/// How long a replica waits for a program that is starting.
const START: Duration = Duration::from_secs(50);
/// How often a silent stream sends a keep-alive.
const ALIVE: Duration = Duration::from_secs(15);
/// How long a session without a stream is kept.
const UNUSED: Duration = Duration::from_secs(600);
/// The maximum number of messages queued for a replica that does not read.
const QUEUE: usize = 64;
/// The maximum number of entries on a page of a list.
const PAGE: usize = 1_000;
/// The extra time in which the asking replica can end a call itself, before it ends here.
const SLACK: Duration = Duration::from_secs(10);
/// How long a call may take if its replica sets no limit.
const LONGEST: Duration = Duration::from_secs(300);

type Events = mpsc::Sender<Result<Bytes, io::Error>>;

/// This replica's programs, and other replicas' sessions with them.
struct Relays {
    gateway: Arc<Gateway>,
    sessions: DashMap<String, Arc<RelaySession>>,
}

/// Serves the programs to other replicas.
pub(super) fn router(gateway: &Arc<Gateway>) -> Router {
    if gateway.cluster.is_none() {
        return Router::new();
    }
    let relays = Arc::new(Relays { gateway: gateway.clone(), sessions: DashMap::new() });
    let answer = async |State(relays): State<Arc<Relays>>, Path(server): Path<String>, request: Request| {
        relays.answer(&server, request).await
    };
    Router::new().route(&format!("{RELAYS}/{{server}}"), any(answer)).with_state(relays)
}

impl Relays {
    async fn answer(&self, server: &str, mut request: Request) -> Response {
        let is_replica =
            self.gateway.cluster.as_ref().is_some_and(|cluster| cluster.is_marked(request.headers_mut()));
        if !is_replica {
            return plain(StatusCode::NOT_FOUND, "");
        }
        if let Some(refusal) = listen::refusal_of_proven(request.extensions()) {
            return refusal;
        }
        let Some(connection) = self.gateway.placed_here(server) else { return elsewhere::misdirected() };
        let id = request.headers().get(SESSION).and_then(|id| id.to_str().ok()).map(String::from);
        let session = id.as_ref().and_then(|id| self.sessions.get(id).map(|session| session.clone()));
        // A program under another configuration is a different server.
        let session = session.filter(|session| Arc::ptr_eq(&session.connection, &connection));
        match (request.method().clone(), session) {
            (Method::POST, session) => self.post(connection, session, request).await,
            (_, None) => plain(StatusCode::NOT_FOUND, "there is no such session"),
            (Method::GET, Some(session)) => session.listen(),
            (Method::DELETE, Some(_)) => {
                id.map(|id| self.sessions.remove(&id));
                plain(StatusCode::NO_CONTENT, "")
            }
            _ => plain(StatusCode::METHOD_NOT_ALLOWED, ""),
        }
    }

    async fn post(
        &self,
        connection: Arc<Connection>,
        session: Option<Arc<RelaySession>>,
        request: Request,
    ) -> Response {
        let message = match within_bounds(request, &self.gateway.config().limits).await {
            Ok((_, message)) => message,
            Err(refusal) => return refusal,
        };
        if message.method().as_deref() == Some("initialize") {
            return self.open(connection, &message).await;
        }
        let Some(session) = session else { return plain(StatusCode::NOT_FOUND, "there is no such session") };
        *session.used.lock() = Instant::now();
        match (message.kind(), message.id_text()) {
            (MessageKind::Request, Some(id)) => session.take(id, message).await,
            (MessageKind::Result | MessageKind::Error, Some(id)) => {
                session.replied(&id, &message);
                plain(StatusCode::ACCEPTED, "")
            }
            (MessageKind::Notification, _) => {
                if let Some(call) = message.cancels().and_then(|id| session.calls.lock().remove(&id)) {
                    call.cancel();
                }
                plain(StatusCode::ACCEPTED, "")
            }
            _ => plain(StatusCode::BAD_REQUEST, "the message is not a request, notification or answer"),
        }
    }

    /// Opens a session with a program, once the program is ready.
    async fn open(&self, connection: Arc<Connection>, message: &Message) -> Response {
        let listing = match timeout(START, until_listed(&connection)).await {
            Ok(Ok(listing)) => listing,
            Ok(Err(why)) => return plain(StatusCode::SERVICE_UNAVAILABLE, &why),
            Err(_) => return plain(StatusCode::SERVICE_UNAVAILABLE, "it is starting"),
        };
        let Some(id) = message.id_text() else { return plain(StatusCode::BAD_REQUEST, "no id") };
        let params: Value =
            message.params().and_then(|it| serde_json::from_slice(it).ok()).unwrap_or_default();
        let mut result = json!({
            "protocolVersion": params["protocolVersion"],
            "capabilities": {
                "tools": { "listChanged": true },
                "prompts": { "listChanged": true },
                "resources": { "listChanged": true, "subscribe": connection.follows_resources() },
                "completions": {},
                "logging": {},
            },
            "serverInfo": { "name": &*connection.name, "version": env!("CARGO_PKG_VERSION") },
        });
        if !listing.about.is_empty() {
            result["instructions"] = json!(listing.about);
        }
        self.sessions.retain(|_, session| session.is_in_use());
        let session = uuid::Uuid::new_v4().simple().to_string();
        let Ok(named) = HeaderValue::from_str(&session) else { return plain(StatusCode::BAD_REQUEST, "") };
        self.sessions.insert(session, Arc::new(RelaySession::new(connection)));
        let mut response = Response::new(Body::from(answered(&id, result.to_string().as_bytes())));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response.headers_mut().insert(SESSION, named);
        response
    }
}

/// Waits until a program is ready. Returns its lists, or why it is not ready.
async fn until_listed(connection: &Connection) -> Result<Arc<Listing>, String> {
    let mut states = connection.watch();
    loop {
        let listed = connection.listed().borrow().clone();
        if let Some(listing) = listed.filter(|_| connection.takes_requests()) {
            return Ok(listing);
        }
        match states.borrow_and_update().clone() {
            ConnectionState::Starting | ConnectionState::Ready { .. } => {}
            ConnectionState::Down { error, .. } | ConnectionState::AuthRequired { error, .. } => {
                return Err(error);
            }
            ConnectionState::Stopped => return Err("it is disabled there".into()),
        }
        select! {
            _ = states.changed() => {}
            // The link is up slightly before the state says so.
            () = sleep(Duration::from_millis(50)) => {}
        }
    }
}

/// One replica's session with one program.
struct RelaySession {
    connection: Arc<Connection>,
    /// The calls in flight, by the ids of their requests.
    calls: Mutex<HashMap<String, CancellationToken>>,
    /// The unanswered questions, by the ids of their requests.
    questions: Mutex<HashMap<String, oneshot::Sender<Result<Value, ErrorData>>>>,
    last_question: AtomicU64,
    turns: Arc<QuestionTurns>,
    /// The followed resources, each until its guard is dropped.
    followed: Mutex<HashMap<String, DropGuard>>,
    /// The lists as last read, so that all pages are consistent.
    listed: Mutex<Option<Arc<Listing>>>,
    /// The stream of notifications.
    news: Mutex<Option<Events>>,
    used: Mutex<Instant>,
}

impl RelaySession {
    fn new(connection: Arc<Connection>) -> Self {
        Self {
            connection,
            calls: Mutex::default(),
            questions: Mutex::default(),
            last_question: AtomicU64::new(0),
            turns: Arc::default(),
            followed: Mutex::default(),
            listed: Mutex::default(),
            news: Mutex::default(),
            used: Mutex::new(Instant::now()),
        }
    }

    fn is_in_use(&self) -> bool {
        !self.calls.lock().is_empty()
            || self.news.lock().as_ref().is_some_and(|news| !news.is_closed())
            || self.used.lock().elapsed() < UNUSED
    }

    /// Answers a request.
    async fn take(self: Arc<Self>, id: String, message: Message) -> Response {
        let method = message.method().unwrap_or_default().into_owned();
        let read = {
            let message = message.clone();
            move || message.params().map(serde_json::from_slice::<Map<String, Value>>)
        };
        // The request's share of the memory for large messages is held as long as the request.
        let (params, share) = off_thread(message.weight(), read).await;
        let mut params = match params {
            None => Map::new(),
            Some(Ok(params)) => params,
            Some(Err(error)) => return json_answer(Message::failure(&id, -32602, &error.to_string())),
        };
        let text = |key: &str| params.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        match &*method {
            "ping" => json_answer(answered(&id, b"{}")),
            "tools/list" => self.page(&id, "tools", &text("cursor")),
            "prompts/list" => self.page(&id, "prompts", &text("cursor")),
            "resources/list" => self.page(&id, "resources", &text("cursor")),
            "resources/templates/list" => self.page(&id, "resourceTemplates", &text("cursor")),
            "resources/subscribe" => self.follow(&id, text("uri")).await,
            "resources/unsubscribe" => {
                self.followed.lock().remove(&text("uri"));
                json_answer(answered(&id, b"{}"))
            }
            "logging/setLevel" => {
                if let Some(level) =
                    params.remove("level").and_then(|it| serde_json::from_value::<LogLevel>(it).ok())
                {
                    self.connection.lower_log_level(level).await;
                }
                json_answer(answered(&id, b"{}"))
            }
            "tools/call" | "prompts/get" | "resources/read" | "completion/complete" => {
                // Otherwise the other replica asks again: this one is about to gain or lose the program.
                if !self.connection.takes_requests() {
                    return plain(StatusCode::SERVICE_UNAVAILABLE, "the program is starting or moving");
                }
                let (events, stream) = mpsc::channel(QUEUE);
                let cancel = CancellationToken::new();
                self.calls.lock().insert(id.clone(), cancel.clone());
                tokio::spawn(async move {
                    self.run(&id, &method, params, cancel, &events).await;
                    self.calls.lock().remove(&id);
                    drop(share);
                });
                event_stream(stream)
            }
            _ => json_answer(Message::failure(&id, -32601, &format!("unknown method `{method}`"))),
        }
    }

    /// Makes a call, and passes on everything that it produces.
    async fn run(
        self: &Arc<Self>,
        id: &str,
        method: &str,
        mut params: Map<String, Value>,
        cancel: CancellationToken,
        events: &Events,
    ) {
        let mut meta = match params.remove("_meta") {
            Some(Value::Object(meta)) => meta,
            _ => Map::new(),
        };
        let token = meta.remove("progressToken");
        let relayed = RelayedCall::take(&mut meta);
        let (to, mut for_client) = mpsc::channel(QUEUE);
        let (progress, mut told) = mpsc::channel(QUEUE);
        let asker = relayed.session.map(|session| ClientChannel {
            session,
            to,
            can: Arc::new(relayed.can),
            turns: self.turns.clone(),
            parks: false,
            waits: Arc::default(),
            log: relayed.log,
        });
        let time = match relayed.timeout_ms {
            0 => LONGEST,
            ms => Duration::from_millis(ms),
        };
        let control = CallControl {
            timeout: time.saturating_add(SLACK),
            cancel,
            progress: token.is_some().then(|| ProgressSink::new(Some(progress))),
            meta,
            asker,
            owner: relayed.owner,
        };
        let mut call = Box::pin(call(&self.connection, method, params, control));
        let answer = loop {
            select! {
                biased;
                Some(news) = told.recv() => progress_event(news, token.as_ref(), events).await,
                Some(message) = for_client.recv() => self.pass_on(message, events),
                answer = &mut call => break answer,
                // The other replica has cancelled, or is gone.
                () = events.closed() => return,
            }
        };
        while let Ok(news) = told.try_recv() {
            progress_event(news, token.as_ref(), events).await;
        }
        while let Ok(message) = for_client.try_recv() {
            self.pass_on(message, events);
        }
        let last = match answer {
            Ok(result) => Ok(event(&whole(id, result).await)),
            Err(CallError::Rpc(error)) => {
                let error = serde_json::to_vec(&error).unwrap_or_default();
                Ok(event(&Message::failure_of(id, &error)))
            }
            // Without an answer, neither replica knows whether the call ran.
            Err(error @ (CallError::Closed(_) | CallError::NotReady(_) | CallError::Cancelled)) => {
                Err(io::Error::other(error.to_string()))
            }
            Err(error) => Ok(event(&Message::failure(id, -32603, &error.to_string()))),
        };
        let _ = events.send(last).await;
    }

    /// Passes a log message or questions from the program on to the replica whose call they belong to.
    fn pass_on(self: &Arc<Self>, message: ClientMessage, events: &Events) {
        match message {
            ClientMessage::Log(params) => {
                // Log messages may be lost.
                let _ = events.try_send(Ok(event(&note("notifications/message", &params))));
            }
            ClientMessage::Ask(requests, reply) => {
                let (session, events) = (self.clone(), events.clone());
                tokio::spawn(async move {
                    let asking = session.ask(*requests, &events);
                    select! {
                        replies = asking => drop(reply.send(replies)),
                        () = events.closed() => {}
                    }
                });
            }
        }
    }

    async fn ask(&self, requests: InputRequests, events: &Events) -> InputReplies {
        let mut replies = InputReplies::new();
        for (key, mut request) in requests {
            let number = self.last_question.fetch_add(1, Ordering::Relaxed);
            let id = number.to_string();
            let (tell, told) = oneshot::channel();
            self.questions.lock().insert(id.clone(), tell);
            let _asked = QuestionInFlight { session: self, id };
            self.unsigned(&mut request);
            let asked = json!({
                "jsonrpc": "2.0", "id": number, "method": request["method"], "params": request["params"],
            });
            if events.send(Ok(event(asked.to_string().as_bytes()))).await.is_err() {
                break;
            }
            if let Ok(reply) = told.await {
                replies.insert(key, reply);
            }
        }
        replies
    }

    /// Removes the note of who asks from a question: the client's replica adds it.
    fn unsigned(&self, request: &mut Value) {
        let sign = format!("`{}` asks: ", self.connection.name);
        if let Some(text) = request.pointer_mut("/params/message")
            && let Some(rest) = text.as_str().and_then(|text| text.strip_prefix(&sign))
        {
            *text = json!(rest);
        }
    }

    /// Accepts the answer to a question.
    fn replied(&self, id: &str, message: &Message) {
        let Some(question) = self.questions.lock().remove(id) else { return };
        let reply = match (message.result(), message.error()) {
            (Some(result), _) => serde_json::from_slice(result).map_err(|error| error.to_string()),
            (None, Some(error)) => match serde_json::from_slice(error) {
                Ok(error) => return drop(question.send(Err(error))),
                Err(error) => Err(error.to_string()),
            },
            (None, None) => Err("no answer".into()),
        };
        let _ = question.send(reply.map_err(|why| ErrorData::internal_error(why, None)));
    }

    /// Answers with a page of a list. A cursor is the index of the first entry.
    fn page(&self, id: &str, field: &str, cursor: &str) -> Response {
        let start = cursor.parse::<usize>().unwrap_or(0);
        let now = self.connection.listed().borrow().clone();
        let listing = {
            let mut listed = self.listed.lock();
            // The tools are the first list requested.
            if listed.is_none() || (start == 0 && field == "tools") {
                *listed = now;
            }
            listed.clone().unwrap_or_default()
        };
        let entries: Vec<&Value> = match field {
            "tools" => listing.tools.iter().map(|tool| &**tool).collect(),
            "prompts" => listing.prompts.iter().collect(),
            "resources" => listing.resources.iter().collect(),
            _ => listing.templates.iter().collect(),
        };
        let limit = self.connection.settings().limits.page;
        let end = start + fitting(entries.get(start..).unwrap_or_default(), limit);
        let mut page = json!({ field: entries.get(start..end).unwrap_or_default() });
        if end < entries.len() {
            page["nextCursor"] = json!(end.to_string());
        }
        json_answer(answered(id, page.to_string().as_bytes()))
    }

    /// Follows a resource until the session ends or unsubscribes.
    async fn follow(self: &Arc<Self>, id: &str, uri: String) -> Response {
        let mut subscription = match self.connection.subscribe(uri.clone()).await {
            Ok(subscription) => subscription,
            Err(CallError::Rpc(error)) => {
                let error = serde_json::to_vec(&error).unwrap_or_default();
                return json_answer(Message::failure_of(id, &error));
            }
            Err(error) => return json_answer(Message::failure(id, -32603, &error.to_string())),
        };
        let end = CancellationToken::new();
        self.followed.lock().insert(uri.clone(), end.clone().drop_guard());
        let session = Arc::downgrade(self);
        tokio::spawn(end.run_until_cancelled_owned(async move {
            while subscription.updated().await.is_some() {
                let Some(session) = session.upgrade() else { return };
                session.tell("notifications/resources/updated", &json!({ "uri": uri }));
            }
        }));
        json_answer(answered(id, b"{}"))
    }

    /// Puts a notification on the stream. One that does not fit is dropped, since its reader reads the newest state anyway.
    fn tell(&self, method: &str, params: &Value) {
        if let Some(news) = &*self.news.lock() {
            let _ = news.try_send(Ok(event(&note(method, params))));
        }
    }

    /// Opens the stream of notifications, replacing an earlier one.
    fn listen(self: Arc<Self>) -> Response {
        let (events, stream) = mpsc::channel(QUEUE);
        *self.news.lock() = Some(events.clone());
        let mut listed = self.connection.listed();
        let (connection, session) = (self.connection.clone(), Arc::downgrade(&self));
        tokio::spawn(async move {
            let mut alive = interval(ALIVE);
            loop {
                {
                    let Some(session) = session.upgrade() else { return };
                    let now = listed.borrow_and_update().clone();
                    let read = session.listed.lock().clone();
                    let is_other = match (&now, &read) {
                        (Some(now), Some(read)) => !Arc::ptr_eq(now, read),
                        _ => false,
                    };
                    if is_other {
                        session.tell("notifications/tools/list_changed", &json!({}));
                    }
                }
                select! {
                    changed = listed.changed() => if changed.is_err() { return },
                    _ = alive.tick() => {
                        let _ = events.try_send(Ok(Bytes::from_static(b": open\n\n")));
                    }
                    () = connection.retired().cancelled() => return,
                    () = events.closed() => return,
                }
            }
        });
        event_stream(stream)
    }
}

struct QuestionInFlight<'a> {
    session: &'a RelaySession,
    id: String,
}

impl Drop for QuestionInFlight<'_> {
    fn drop(&mut self) {
        self.session.questions.lock().remove(&self.id);
    }
}

/// Calls a program's tool.
async fn call(
    connection: &Connection,
    method: &str,
    mut params: Map<String, Value>,
    control: CallControl,
) -> Result<CallResult, CallError> {
    let as_task = params.contains_key("task");
    let mut arguments = || match params.remove("arguments") {
        Some(Value::Object(arguments)) => arguments,
        _ => Map::new(),
    };
    let none = Duration::ZERO;
    match method {
        "tools/call" => {
            let arguments = arguments();
            let tool = params.get("name").and_then(Value::as_str).unwrap_or_default();
            connection.call_for_replica(tool.into(), arguments, as_task, control).await
        }
        "prompts/get" => {
            let arguments = arguments();
            let prompt = params.get("name").and_then(Value::as_str).unwrap_or_default();
            connection.get_prompt(prompt, arguments, control, none).await.map(CallResult::from)
        }
        "resources/read" => {
            let uri = params.get("uri").and_then(Value::as_str).unwrap_or_default();
            connection.read_resource(uri, control, none).await.map(CallResult::from)
        }
        _ => {
            let params = serde_json::from_value(Value::Object(params))
                .map_err(|error| CallError::Params(error.to_string()))?;
            connection.complete(params, control, none).await.map(CallResult::from)
        }
    }
}

/// Returns how many of these entries fit on a page: at least one, together at most half the size limit.
fn fitting(entries: &[&Value], limit: SizeLimit) -> usize {
    let mut left = SizeLimit { bytes: limit.bytes / 2, values: limit.values / 2 };
    let mut fitting = 0;
    for entry in entries.iter().take(PAGE) {
        let size = wire::measure(entry);
        let (bytes, values) = (left.bytes.checked_sub(size.bytes), left.values.checked_sub(size.values));
        match (bytes, values) {
            (Some(bytes), Some(values)) => left = SizeLimit { bytes, values },
            _ => return fitting.max(1),
        }
        fitting += 1;
    }
    fitting
}

async fn progress_event(mut news: Value, token: Option<&Value>, events: &Events) {
    set_member(&mut news, "progressToken", token.cloned().unwrap_or_default());
    let _ = events.send(Ok(event(&note("notifications/progress", &news)))).await;
}

fn note(method: &str, params: &Value) -> Vec<u8> {
    json!({ "jsonrpc": "2.0", "method": method, "params": params }).to_string().into_bytes()
}

/// Returns the answer to a request. `id` and `result` are JSON.
fn answered(id: &str, result: &[u8]) -> Bytes {
    [b"{\"jsonrpc\":\"2.0\",\"id\":", id.as_bytes(), b",\"result\":", result, b"}"].concat().into()
}

/// Returns the answer to a call, as its program wrote it.
async fn whole(id: &str, result: CallResult) -> Bytes {
    match result.raw() {
        Some(raw) => answered(id, raw),
        None => answered(id, result.into_tree().await.to_string().as_bytes()),
    }
}

/// Returns a message as an event. In JSON, line breaks occur only between values.
fn event(message: &[u8]) -> Bytes {
    let mut event = [b"data: ", message, b"\n\n"].concat();
    let end = event.len() - 2;
    for byte in event[..end].iter_mut().filter(|byte| matches!(byte, b'\r' | b'\n')) {
        *byte = b' ';
    }
    event.into()
}

fn event_stream(events: mpsc::Receiver<Result<Bytes, io::Error>>) -> Response {
    let stream = futures::stream::unfold(events, async |mut events| Some((events.recv().await?, events)));
    let mut response = Response::new(Body::from_stream(stream));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

fn json_answer(message: Bytes) -> Response {
    let mut response = Response::new(Body::from(message));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn plain(status: StatusCode, why: &str) -> Response {
    let mut response = Response::new(Body::from(why.to_owned()));
    *response.status_mut() = status;
    *response.headers_mut() = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("text/plain"))]);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line() {
        assert_eq!(event(b"{\"a\":\r\n\"\\n\"}"), &b"data: {\"a\":  \"\\n\"}\n\n"[..]);
    }

    #[test]
    fn pages_hold_at_least_one_entry() {
        let entry = json!({ "name": "a" });
        let entries = vec![&entry; 5];
        let check = |entries: &[&Value], bytes: usize, expected: usize| {
            assert_eq!(fitting(entries, SizeLimit { bytes, values: 1_000 }), expected, "{bytes}");
        };
        let size = wire::measure(&entry).bytes;
        check(&entries, 1_000_000, 5);
        check(&entries, size * 4, 2);
        check(&entries, 1, 1);
        check(&[], 1, 0);
    }
}
