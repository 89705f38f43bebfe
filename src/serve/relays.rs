//! Programs that this replica runs for the others, each as a separate MCP server at `/cluster/servers/NAME`.
//! Only replicas have access, and they have already checked their clients' requests, so everything passes
//! through unchanged. A program's progress, logs and questions come back on the stream of their call.

use std::{collections::HashMap, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{Path, Request, State},
    response::Response,
    routing::any,
};
use dashmap::DashMap;
use http::{Method, StatusCode};
use nonet_base::json::set_member;
use nonet_core::Gateway;
use nonet_peer::{
    Answered, Handler,
    client::{ClientPeer, ClientWay},
    eras::unknown_method,
    headers,
    reply::Reply,
    request::{ClientMessage, RequestBody, RequestContext, RequestParams},
    session::HttpSession,
};
use nonet_servers::{
    catalog::Listing,
    downstream::{
        CallControl, CallError, ClientChannel, ClientMessage as ProgramMessage, Connection, ConnectionState,
        InputReplies, InputRequests, LogLevel, ProgressSink, QuestionTurns, RelayedCall,
    },
};
use nonet_state::placing::RELAYS;
use nonet_text::results::CallResult;
use nonet_wire::{self as wire, Message, SizeLimit, off_thread};
use parking_lot::Mutex;
use rmcp::{
    ErrorData,
    model::{GetPromptRequestParams, ReadResourceRequestParams},
};
use serde_json::{Value, json};
use tokio::{
    select,
    sync::mpsc,
    time::{sleep, timeout},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{elsewhere, http::within_bounds, listen, subscriptions::UPDATED};

/// How long a replica waits for a program that is starting.
const START: Duration = Duration::from_secs(50);
/// The maximum number of messages queued for a replica that does not read.
const QUEUE: usize = 64;
/// The maximum number of entries on a page of a list.
const PAGE: usize = 1_000;
/// The extra time in which the asking replica can end a call itself, before it ends here.
const SLACK: Duration = Duration::from_secs(10);
/// How long a call may take if its replica sets no limit.
const LONGEST: Duration = Duration::from_secs(300);

/// This replica's programs, and other replicas' sessions with them.
struct Relays {
    gateway: Arc<Gateway>,
    sessions: DashMap<String, Arc<HttpSession<Relay>>>,
}

/// Serves the programs to other replicas.
pub(super) fn router(gateway: &Arc<Gateway>) -> Router {
    if gateway.keeping.cluster.is_none() {
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
        let is_replica = self
            .gateway
            .keeping
            .cluster
            .as_ref()
            .is_some_and(|cluster| cluster.is_marked(request.headers_mut()));
        if !is_replica {
            return headers::refused(StatusCode::NOT_FOUND, "");
        }
        if let Some(refusal) = listen::refusal_of_proven(request.extensions()) {
            return refusal;
        }
        let Some(connection) = self.gateway.servers.placed_here(server) else {
            return elsewhere::misdirected();
        };
        let id = headers::session_id(request.headers()).map(String::from);
        let session = id.as_ref().and_then(|id| self.sessions.get(id).map(|session| session.clone()));
        // A program under another configuration is a different server.
        let session = session.filter(|session| Arc::ptr_eq(&session.handler.0.connection, &connection));
        match (request.method().clone(), session) {
            (Method::POST, session) => self.post(connection, session, request).await,
            (_, None) => unknown_session(),
            (Method::GET, Some(session)) => session.listen(request.headers()),
            (Method::DELETE, Some(session)) => {
                session.end();
                id.map(|id| self.sessions.remove(&id));
                headers::empty(StatusCode::NO_CONTENT)
            }
            _ => headers::refused(StatusCode::METHOD_NOT_ALLOWED, ""),
        }
    }

    async fn post(
        &self,
        connection: Arc<Connection>,
        session: Option<Arc<HttpSession<Relay>>>,
        request: Request,
    ) -> Response {
        let (mut parts, message) = match within_bounds(request, &self.gateway.servers.config().limits).await {
            Ok(read) => read,
            Err(refusal) => return refusal,
        };
        if message.method().as_deref() == Some("initialize") {
            return self.open(connection, &message).await;
        }
        let Some(session) = session else { return unknown_session() };
        session.use_now();
        let (read, share) = off_thread(message.weight(), move || ClientMessage::of(&message)).await;
        match read {
            // Otherwise the other replica asks again: this one is about to gain or lose the program.
            Ok(ClientMessage::Request(request))
                if is_for_program(request.body.method()) && !connection.takes_requests() =>
            {
                headers::refused(StatusCode::SERVICE_UNAVAILABLE, "the program is starting or moving")
            }
            Ok(ClientMessage::Request(request)) => {
                // The request's share of the memory for large messages is held as long as the request.
                parts.extensions.insert(Arc::new(share));
                session.request(parts.extensions, *request).await
            }
            Ok(message) => {
                session.take(message);
                headers::empty(StatusCode::ACCEPTED)
            }
            Err(why) => headers::refused(StatusCode::BAD_REQUEST, why),
        }
    }

    /// Opens a session with a program, once the program is ready.
    async fn open(&self, connection: Arc<Connection>, message: &Message) -> Response {
        let listing = match timeout(START, until_listed(&connection)).await {
            Ok(Ok(listing)) => listing,
            Ok(Err(why)) => return headers::refused(StatusCode::SERVICE_UNAVAILABLE, why),
            Err(_) => return headers::refused(StatusCode::SERVICE_UNAVAILABLE, "it is starting"),
        };
        let Some(id) = message.id_text() else { return headers::refused(StatusCode::BAD_REQUEST, "no id") };
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
        self.sessions.retain(|_, session| {
            session.forget_streams();
            !session.is_idle()
        });
        let session = HttpSession::new(Relay::new(connection), self.gateway.servers.stopping());
        let name = uuid::Uuid::new_v4().simple().to_string();
        let answer = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{result}}}");
        let mut response = headers::in_json(StatusCode::OK, answer);
        headers::set_session_id(response.headers_mut(), &name);
        self.sessions.insert(name, session);
        response
    }
}

fn unknown_session() -> Response {
    headers::refused(StatusCode::NOT_FOUND, "there is no such session")
}

/// Returns whether the program answers a request itself.
fn is_for_program(method: &str) -> bool {
    matches!(method, "tools/call" | "prompts/get" | "resources/read" | "completion/complete")
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

/// One replica's requests to one program.
struct Relay(Arc<RelayState>);

struct RelayState {
    connection: Arc<Connection>,
    turns: Arc<QuestionTurns>,
    /// The followed resources, each until its guard is dropped.
    followed: Mutex<HashMap<String, DropGuard>>,
    /// The lists as last read, so that all pages are consistent.
    listed: Mutex<Option<Arc<Listing>>>,
    ended: CancellationToken,
}

impl Handler for Relay {
    async fn handle(&self, request: RequestBody, context: &RequestContext) -> Answered {
        let params = match request {
            body if is_for_program(body.method()) => return self.0.run(body, context).await,
            RequestBody::Other(params) => params,
            body => return Err(unknown_method(body.method())),
        };
        let empty = || Ok(Reply::Verbatim(json!({}).into()));
        match &*params.method {
            "ping" => empty(),
            "tools/list" => self.0.page("tools", params),
            "prompts/list" => self.0.page("prompts", params),
            "resources/list" => self.0.page("resources", params),
            "resources/templates/list" => self.0.page("resourceTemplates", params),
            "resources/subscribe" => {
                self.follow(params.text("uri").unwrap_or_default(), &context.way.peer).await?;
                empty()
            }
            "resources/unsubscribe" => {
                self.0.followed.lock().remove(params.text("uri").unwrap_or_default());
                empty()
            }
            "logging/setLevel" => {
                let level = params.text("level").map(Value::from);
                if let Some(Ok(level)) = level.map(serde_json::from_value::<LogLevel>) {
                    self.0.connection.lower_log_level(level).await;
                }
                empty()
            }
            method => Err(unknown_method(method)),
        }
    }

    /// Begins to announce changed lists.
    fn initialized(&self, peer: &Arc<ClientPeer>) {
        let (relay, way) = (Arc::downgrade(&self.0), ClientWay::of(peer.clone()));
        let (mut listed, retired) = (self.0.connection.listed(), self.0.connection.retired().clone());
        let ended = self.0.ended.clone();
        tokio::spawn(async move {
            loop {
                {
                    let Some(relay) = relay.upgrade() else { return };
                    let now = listed.borrow_and_update().clone();
                    let read = relay.listed.lock().clone();
                    if let (Some(now), Some(read)) = (now, read)
                        && !Arc::ptr_eq(&now, &read)
                        && way.notify("notifications/tools/list_changed", json!({})).await.is_err()
                    {
                        return;
                    }
                }
                select! {
                    changed = listed.changed() => if changed.is_err() { return },
                    () = retired.cancelled() => return,
                    () = ended.cancelled() => return,
                }
            }
        });
    }

    fn ended(&self) {
        self.0.ended.cancel();
        self.0.followed.lock().clear();
    }
}

impl Relay {
    fn new(connection: Arc<Connection>) -> Self {
        Self(Arc::new(RelayState {
            connection,
            turns: Arc::default(),
            followed: Mutex::default(),
            listed: Mutex::default(),
            ended: CancellationToken::new(),
        }))
    }

    /// Follows a resource until the session ends or unsubscribes.
    async fn follow(&self, uri: &str, peer: &Arc<ClientPeer>) -> Result<(), ErrorData> {
        let subscribed = self.0.connection.subscribe(uri.into()).await;
        let mut subscription = subscribed.map_err(|error| match error {
            CallError::Rpc(error) => error,
            error => ErrorData::internal_error(error.to_string(), None),
        })?;
        let (end, way, told) =
            (self.0.ended.child_token(), ClientWay::of(peer.clone()), json!({ "uri": uri }));
        self.0.followed.lock().insert(uri.into(), end.clone().drop_guard());
        tokio::spawn(end.run_until_cancelled_owned(async move {
            while subscription.updated().await.is_some() {
                if way.notify(UPDATED, told.clone()).await.is_err() {
                    return;
                }
            }
        }));
        Ok(())
    }
}

impl RelayState {
    /// Makes a call, and passes on everything that it produces.
    async fn run(&self, request: RequestBody, context: &RequestContext) -> Answered {
        let mut meta = context.meta.0.0.clone();
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
            cancel: context.cancel.clone(),
            progress: token.is_some().then(|| ProgressSink::new(Some(progress))),
            meta,
            asker,
            owner: relayed.owner,
        };
        let mut call = Box::pin(call(&self.connection, request, control));
        let way = &context.way;
        let answer = loop {
            select! {
                biased;
                Some(news) = told.recv() => tell_progress(news, token.as_ref(), way).await,
                Some(message) = for_client.recv() => self.pass_on(message, way).await,
                answer = &mut call => break answer,
            }
        };
        while let Ok(news) = told.try_recv() {
            tell_progress(news, token.as_ref(), way).await;
        }
        while let Ok(message) = for_client.try_recv() {
            self.pass_on(message, way).await;
        }
        match answer {
            Ok(result) => Ok(Reply::Verbatim(result)),
            Err(CallError::Rpc(error)) => Err(error),
            Err(error) => {
                // Neither replica knows whether the call ran, so it gets no answer.
                if matches!(error, CallError::Closed(_) | CallError::NotReady(_) | CallError::Cancelled) {
                    context.cancel.cancel();
                }
                Err(ErrorData::internal_error(error.to_string(), None))
            }
        }
    }

    /// Passes a log message or questions from the program on to the replica whose call they belong to.
    async fn pass_on(&self, message: ProgramMessage, way: &ClientWay) {
        match message {
            ProgramMessage::Log(params) => drop(way.notify("notifications/message", *params).await),
            ProgramMessage::Ask(requests, mut reply) => {
                let (way, sign) = (way.clone(), format!("`{}` asks: ", self.connection.name));
                tokio::spawn(async move {
                    let replies = select! {
                        replies = ask(*requests, &sign, &way) => replies,
                        () = reply.closed() => return,
                    };
                    let _ = reply.send(replies);
                });
            }
        }
    }

    /// Answers with a page of a list. A cursor is the index of the first entry.
    fn page(&self, field: &str, params: RequestParams) -> Answered {
        let start = params.text("cursor").and_then(|cursor| cursor.parse().ok()).unwrap_or(0);
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
        Ok(Reply::Verbatim(page.into()))
    }
}

/// Asks the replica's client a program's questions. The note of who asks is removed: the client's replica
/// adds it.
async fn ask(requests: InputRequests, sign: &str, way: &ClientWay) -> InputReplies {
    let mut replies = InputReplies::new();
    for (key, mut request) in requests {
        if let Some(text) = request.pointer_mut("/params/message")
            && let Some(rest) = text.as_str().and_then(|text| text.strip_prefix(sign))
        {
            *text = json!(rest);
        }
        let method = request["method"].as_str().unwrap_or_default();
        let Ok(mut asked) = way.ask(method, request.get("params")).await else { break };
        replies.insert(key, asked.answer().await);
    }
    replies
}

/// Calls a program's tool.
async fn call(
    connection: &Connection,
    request: RequestBody,
    control: CallControl,
) -> Result<CallResult, CallError> {
    let none = Duration::ZERO;
    let unreadable = |error: ErrorData| CallError::Params(error.message.into_owned());
    match request {
        RequestBody::Call(call, as_task) => {
            let arguments = call.arguments.unwrap_or_default();
            connection.call_for_replica(call.name.into(), arguments, as_task.0, control).await
        }
        RequestBody::Invalid(error) => Err(unreadable(error)),
        RequestBody::Other(params) => match &*params.method {
            "prompts/get" => {
                let prompt: GetPromptRequestParams = params.parse().map_err(unreadable)?;
                let arguments = prompt.arguments.unwrap_or_default();
                connection.get_prompt(&prompt.name, arguments, control, none).await.map(CallResult::from)
            }
            "resources/read" => {
                let resource: ReadResourceRequestParams = params.parse().map_err(unreadable)?;
                connection.read_resource(&resource.uri, control, none).await.map(CallResult::from)
            }
            _ => {
                let params = params.parse().map_err(unreadable)?;
                connection.complete(params, control, none).await.map(CallResult::from)
            }
        },
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

async fn tell_progress(mut news: Value, token: Option<&Value>, way: &ClientWay) {
    set_member(&mut news, "progressToken", token.cloned().unwrap_or_default());
    let _ = way.notify("notifications/progress", news).await;
}

#[cfg(test)]
mod tests {
    use super::*;

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
