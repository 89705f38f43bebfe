//! The MCP endpoint of one profile over HTTP: sessions, and requests of both eras.
//!
//! A request is answered with plain JSON if its answer is there within moments and nothing goes before it, else with a stream of
//! events, which a session's client can resume.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::{Body, Bytes, HttpBody},
    response::Response,
};
use dashmap::DashMap;
use futures::future::BoxFuture;
use http::{Extensions, Method, StatusCode, header::RETRY_AFTER, request::Parts};
use hyper::body::{Frame, SizeHint};
use nonet_core::Gateway;
use nonet_meta as meta;
use nonet_parts::quotas::{Account, QuotaExceeded, RETRY_SESSION};
use nonet_text::fault::Fault;
use nonet_wire::{Message, off_thread};
use parking_lot::Mutex;
use rmcp::{
    ErrorData,
    model::{ProtocolVersion, RequestId},
};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{
    NonetServer, RATE_LIMITED, RequestAccount,
    calls::{self, CallReply},
    carried::{CarriedSessions, GoesOn},
    dispatch, elsewhere, headers,
    in_flight::ParkedRequests,
    peer::{ClientPeer, ClientWay},
    request::{ClientMessage, ClientRequest, RequestBody, RequestContext, TaskWish},
    streams::{self, EventStream},
    unused_sessions::UnusedSessions,
};

/// How long a request may take to be answered with plain JSON.
const MOMENTS: Duration = Duration::from_millis(50);
/// How long a session without a request and without a stream is kept.
const IDLE: Duration = Duration::from_secs(300);
/// How often idle sessions and old streams are looked for.
const LOOK: Duration = Duration::from_secs(30);
/// How long an answer waits for a client that lost its connection, and how many do in one session.
const UNREAD: Duration = Duration::from_secs(60);
const MOST_UNREAD: usize = 32;
const METHODS: &str = "GET, POST, DELETE";

type Answered = Result<CallReply, ErrorData>;
/// A refusal is large, and rare.
type Refusal = Box<Response>;

/// The MCP endpoint of one profile.
pub(super) struct Door {
    gateway: Arc<Gateway>,
    profile: Option<String>,
    parkings: ParkedRequests,
    sessions: DashMap<Box<str>, Arc<HttpSession>>,
    unused: UnusedSessions,
    /// The account of requests without a token.
    strangers: Arc<Account>,
    /// The records of the sessions for the other replicas.
    pub(super) carried: Option<Arc<CarriedSessions>>,
    /// Sessions of other replicas that are being continued here.
    restoring: DashMap<Box<str>, Arc<tokio::sync::Mutex<()>>>,
    /// Ends all of its sessions.
    pub(super) end: CancellationToken,
}

/// A session of a client of the handshake's era.
struct HttpSession {
    server: NonetServer,
    peer: Arc<ClientPeer>,
    /// What belongs to no request.
    common: Arc<EventStream>,
    /// The streams of requests that are not over, by their number.
    streams: Mutex<BTreeMap<u64, Arc<EventStream>>>,
    last_stream: AtomicU64,
    /// What cancels each request in flight, and the number of its stream.
    in_flight: Mutex<HashMap<RequestId, (u64, CancellationToken)>>,
    used: Mutex<Instant>,
    end: CancellationToken,
}

impl Door {
    pub(super) fn new(
        gateway: &Arc<Gateway>,
        profile: Option<String>,
        ending: &CancellationToken,
    ) -> Arc<Self> {
        let cluster = gateway.cluster.as_ref();
        let carried = cluster.map(|cluster| CarriedSessions::new(cluster.clone(), profile.clone()));
        let door = Arc::new(Self {
            parkings: ParkedRequests::new(cluster),
            sessions: DashMap::new(),
            unused: UnusedSessions::default(),
            strangers: gateway.account_of_strangers(profile.as_deref()),
            carried,
            restoring: DashMap::new(),
            end: ending.child_token(),
            gateway: gateway.clone(),
            profile,
        });
        if let Some(carried) = &door.carried {
            tokio::spawn(carried.clone().keep(door.end.clone()));
        }
        tokio::spawn(door.end.clone().run_until_cancelled_owned(look_for_idle(Arc::downgrade(&door))));
        door
    }

    /// Returns a handler with a new session.
    fn server(&self) -> NonetServer {
        let strangers = Some(self.strangers.clone());
        NonetServer::new(self.gateway.clone(), self.profile.clone(), strangers, self.parkings.clone())
    }

    /// Answers a request other than a POST.
    pub(super) async fn answer(self: &Arc<Self>, parts: Parts) -> Response {
        let answered = match parts.method {
            Method::GET => self.listen(&parts).await,
            Method::DELETE => self.leave(&parts).await,
            _ => Ok(headers::method_not_allowed(METHODS)),
        };
        answered.unwrap_or_else(|refusal| *refusal)
    }

    /// Opens the stream of a session, or resumes one.
    async fn listen(self: &Arc<Self>, parts: &Parts) -> Result<Response, Refusal> {
        if let Some(refusal) = headers::unsuitable_get(&parts.headers) {
            return Ok(refusal);
        }
        if !headers::is_of_session(&parts.headers, None)? {
            return Ok(headers::method_not_allowed("POST"));
        }
        let session = self.session(parts).await?;
        session.use_now();
        let last =
            parts.headers.get("last-event-id").map(|last| last.to_str().ok().and_then(streams::event_id));
        let (stream, after) = match last {
            None => (Some(session.common.clone()), None),
            Some(Some((after, None))) => (Some(session.common.clone()), Some(after)),
            Some(Some((after, Some(number)))) => (session.streams.lock().get(&number).cloned(), Some(after)),
            Some(None) => (None, None),
        };
        // An error would make the client try again for ever.
        Ok(stream.map_or_else(streams::nothing, |stream| stream.response(after, session.end.clone(), None)))
    }

    /// Ends a session for its client.
    async fn leave(&self, parts: &Parts) -> Result<Response, Refusal> {
        if !headers::is_of_session(&parts.headers, None)? {
            return Ok(headers::method_not_allowed("POST"));
        }
        let id = headers::session_id(&parts.headers).ok_or_else(no_session_id)?;
        self.end_session(id).await;
        // Some clients take a 202 for a failure here.
        Ok(empty(StatusCode::NO_CONTENT))
    }

    /// Answers the message of a POST.
    pub(super) async fn post(self: &Arc<Self>, parts: Parts, message: Message) -> Response {
        let kind = message.kind();
        // Large arguments are parsed on another thread.
        let (read, _) = off_thread(message.weight(), move || ClientMessage::of(&message)).await;
        let answered = match read {
            Ok(ClientMessage::Request(request)) => self.request(parts, *request).await,
            Ok(message) => self.take(&parts, message).await,
            Err(why) => {
                tracing::debug!(?kind, why, "a message over HTTP is no JSON-RPC message");
                let error = ErrorData::invalid_request(format!("Invalid Request: {why}"), None);
                Ok(headers::failed(StatusCode::BAD_REQUEST, None, &error))
            }
        };
        answered.unwrap_or_else(|refusal| *refusal)
    }

    /// Takes a message that gets no answer.
    async fn take(self: &Arc<Self>, parts: &Parts, message: ClientMessage) -> Result<Response, Refusal> {
        if !headers::is_of_session(&parts.headers, None)? {
            if let ClientMessage::Answer(..) = message {
                let why = "stateless server does not accept JSON-RPC responses";
                let error = ErrorData::invalid_request(why, None);
                return Ok(headers::failed(StatusCode::BAD_REQUEST, None, &error));
            }
            return Ok(empty(StatusCode::ACCEPTED));
        }
        let session = self.session(parts).await?;
        session.use_now();
        match message {
            ClientMessage::Cancelled(id) => session.cancel(&id),
            ClientMessage::Initialized => session.server.initialized(&session.peer),
            ClientMessage::Answer(id, answer) => session.peer.answered(&id, answer),
            ClientMessage::Request(_) | ClientMessage::Other => {}
        }
        Ok(empty(StatusCode::ACCEPTED))
    }

    async fn request(self: &Arc<Self>, parts: Parts, request: ClientRequest) -> Result<Response, Refusal> {
        let method = request.body.method();
        let has_session = parts.headers.contains_key("mcp-session-id");
        if !headers::is_of_session(&parts.headers, Some(&request))?
            || !has_session && method == "server/discover"
        {
            return self.stateless(parts, request).await;
        }
        if !has_session {
            if method != "initialize" {
                return Err(no_session_id());
            }
            headers::check_repeated(&parts.headers, &request, |_| None)?;
            return Ok(self.open(parts, request).await);
        }
        let session = self.session(&parts).await?;
        session.use_now();
        if let Some(id) = headers::session_id(&parts.headers) {
            self.unused.used(id);
        }
        headers::check_repeated(&parts.headers, &request, |tool| {
            self.repeated_params(tool, &session.server)
        })?;
        Ok(session.request(parts.extensions, request).await)
    }

    /// Returns the schema of a tool whose params are repeated in headers.
    fn repeated_params(
        &self,
        tool: &str,
        server: &NonetServer,
    ) -> Option<serde_json::Map<String, serde_json::Value>> {
        meta::mirrored_schema(&self.gateway.gate(&server.session), tool)
    }

    /// Answers a request of the stateless era.
    async fn stateless(self: &Arc<Self>, parts: Parts, request: ClientRequest) -> Result<Response, Refusal> {
        let server = self.server();
        headers::check_repeated(&parts.headers, &request, |tool| self.repeated_params(tool, &server))?;
        let (stream, cancel) = (EventStream::of_request(0), self.end.child_token());
        let ClientRequest { id, meta, body } = request;
        let is_malformed = !meta.missing_required_keys(&ProtocolVersion::V_2026_07_28).is_empty();
        let way = ClientWay { peer: ClientPeer::new(stream.clone()), stream: Some(stream.clone()) };
        let context = RequestContext {
            id,
            meta,
            beside: parts.extensions,
            way,
            cancel: cancel.clone(),
            wants_task: TaskWish::default(),
            is_inline: true,
        };
        if let Err(error) = dispatch::check(body.method(), &context) {
            let status = headers::status_of(&error, is_malformed);
            return Ok(headers::failed(status, Some(&context.id), &error));
        }
        let id = context.id.clone();
        let work = Some(work(server, body, context));
        let exchange = Exchange { work, id, stream, cancel, end: self.end.clone(), flying: None };
        Ok(exchange.answer(|error| headers::status_of(error, is_malformed)).await)
    }

    /// Opens a session.
    async fn open(self: &Arc<Self>, mut parts: Parts, request: ClientRequest) -> Response {
        let account =
            parts.extensions.get().map_or(&self.strangers, |RequestAccount(account)| account).clone();
        let place = match self.unused.place(&account) {
            Ok((place, ended)) => {
                if let Some(ended) = ended {
                    tracing::debug!("an unused session over HTTP makes room for a new one");
                    self.end_session(&ended).await;
                }
                place
            }
            Err(full) => return no_room(&request.id, full),
        };
        parts.extensions.insert(place.clone());
        let session = HttpSession::new(self.server(), &self.end);
        let (request, answered) = session.open(parts.extensions, request).await;
        let is_open = answered.is_ok();
        let answer = calls::answer(&request, answered, b"").concat();
        let mut response = headers::in_json(StatusCode::OK, answer);
        if !is_open {
            return response;
        }
        let id = uuid::Uuid::new_v4().simple().to_string();
        // In a cluster, the id names the replica that has the session.
        let id = self.gateway.cluster.as_ref().map_or_else(|| id.clone(), |cluster| cluster.handle(&id));
        self.sessions.insert(id.as_str().into(), session.clone());
        self.unused.opened(&id, account, &place);
        if let (Some(carried), Some(info)) = (&self.carried, session.peer.info()) {
            carried.opened(&id, (*info).clone(), &session.server).await;
        }
        headers::set_session_id(response.headers_mut(), &id);
        response
    }

    /// Returns the session of a request; another replica may have begun it.
    async fn session(self: &Arc<Self>, parts: &Parts) -> Result<Arc<HttpSession>, Refusal> {
        let id = headers::session_id(&parts.headers).ok_or_else(no_session_id)?;
        if let Some(session) = self.sessions.get(id) {
            return Ok(session.clone());
        }
        let unknown = || Box::new(headers::refused(StatusCode::NOT_FOUND, "Not Found: Session not found"));
        let Some(carried) = &self.carried else { return Err(unknown()) };
        let alone = self.restoring.entry(id.into()).or_default().clone();
        let _alone = alone.lock().await;
        if let Some(session) = self.sessions.get(id) {
            return Ok(session.clone());
        }
        let restored = self.restore(carried, id, parts).await;
        self.restoring.remove(id);
        match restored {
            Ok(session) => session.ok_or_else(unknown),
            Err(why) => {
                tracing::debug!(why, "a session of another replica was not taken over");
                Err(Box::new(elsewhere::unavailable("the record of the session cannot be read now")))
            }
        }
    }

    /// Continues a session of another replica here, if there is one.
    async fn restore(
        self: &Arc<Self>,
        carried: &Arc<CarriedSessions>,
        id: &str,
        parts: &Parts,
    ) -> Result<Option<Arc<HttpSession>>, String> {
        let Some(record) = carried.claim(id).await.map_err(|error| error.to_string())? else {
            return Ok(None);
        };
        let session = HttpSession::new(self.server(), &self.end);
        let mut beside = parts.extensions.clone();
        beside.insert(GoesOn);
        let context = session.context(RequestId::Number(0), Default::default(), beside, None);
        let handshake = session.server.initialize(record.initialize.clone(), &context).await;
        handshake.map_err(|error| error.to_string())?;
        carried.restore(id, record, &session.server, &context);
        session.server.initialized(&session.peer);
        self.sessions.insert(id.into(), session.clone());
        Ok(Some(session))
    }

    /// Ends a session, for its client or to make room.
    async fn end_session(&self, id: &str) {
        if let Some((_, session)) = self.sessions.remove(id) {
            session.end();
        }
        if let Some(carried) = &self.carried
            && let Err(error) = carried.delete(id).await
        {
            tracing::debug!(%error, "the record of an ended session expires later");
        }
    }

    /// Gives up a session, which another replica continues.
    pub(super) fn give_up(&self, id: &str) {
        if let Some((_, session)) = self.sessions.remove(id) {
            session.end();
        }
    }

    /// Ends the sessions that nobody has used for a while.
    fn end_idle(&self) {
        self.sessions.retain(|_, session| {
            session.forget_streams();
            let stays = !session.is_idle();
            if !stays {
                tracing::debug!("an idle session over HTTP ends");
                session.end();
            }
            stays
        });
    }
}

async fn look_for_idle(door: Weak<Door>) {
    loop {
        sleep(LOOK).await;
        let Some(door) = door.upgrade() else { return };
        door.end_idle();
    }
}

impl HttpSession {
    fn new(server: NonetServer, ending: &CancellationToken) -> Arc<Self> {
        let common = EventStream::common();
        Arc::new(Self {
            server,
            peer: ClientPeer::new(common.clone()),
            common,
            streams: Mutex::default(),
            last_stream: AtomicU64::new(0),
            in_flight: Mutex::default(),
            used: Mutex::new(Instant::now()),
            end: ending.child_token(),
        })
    }

    fn use_now(&self) {
        *self.used.lock() = Instant::now();
    }

    fn is_idle(&self) -> bool {
        self.used.lock().elapsed() > IDLE && self.in_flight.lock().is_empty() && !self.common.is_read()
    }

    fn end(&self) {
        self.end.cancel();
        self.server.ended.cancel();
    }

    fn cancel(&self, id: &RequestId) {
        let cancelled = self.in_flight.lock().remove(id);
        if let Some((_, cancel)) = cancelled {
            cancel.cancel();
        }
    }

    fn forget_streams(&self) {
        self.streams.lock().retain(|_, stream| !stream.is_over(UNREAD));
    }

    /// Keeps a stream for a client that may lose its connection.
    fn keep(&self, number: u64, stream: Arc<EventStream>) {
        let mut streams = self.streams.lock();
        streams.retain(|_, stream| !stream.is_over(UNREAD));
        let ended: Vec<u64> =
            streams.iter().filter(|(_, stream)| stream.has_ended()).map(|(number, _)| *number).collect();
        for oldest in ended.iter().take((ended.len() + 1).saturating_sub(MOST_UNREAD)) {
            streams.remove(oldest);
        }
        streams.insert(number, stream);
    }

    fn context(
        &self,
        id: RequestId,
        meta: rmcp::model::RequestMetaObject,
        beside: Extensions,
        stream: Option<Arc<EventStream>>,
    ) -> RequestContext {
        RequestContext {
            id,
            meta,
            beside,
            way: ClientWay { peer: self.peer.clone(), stream },
            cancel: self.end.child_token(),
            wants_task: TaskWish::default(),
            is_inline: false,
        }
    }

    /// Answers the request that opens the session.
    async fn open(&self, beside: Extensions, request: ClientRequest) -> (RequestId, Answered) {
        let ClientRequest { id, meta, body } = request;
        let context = self.context(id.clone(), meta, beside, None);
        (id, self.server.handle(body, &context).await)
    }

    async fn request(self: &Arc<Self>, beside: Extensions, request: ClientRequest) -> Response {
        let ClientRequest { id, meta, body } = request;
        let number = self.last_stream.fetch_add(1, Ordering::Relaxed);
        let stream = EventStream::of_request(number);
        let context = self.context(id.clone(), meta, beside, Some(stream.clone()));
        if let Err(error) = dispatch::check(body.method(), &context) {
            return headers::failed(StatusCode::OK, Some(&id), &error);
        }
        let cancel = context.cancel.clone();
        self.in_flight.lock().insert(id.clone(), (number, cancel.clone()));
        let flying = InFlight { session: self.clone(), id: id.clone(), number };
        let work = Some(work(self.server.clone(), body, context));
        let exchange = Exchange { work, id, stream, cancel, end: self.end.clone(), flying: Some(flying) };
        exchange.answer(|_| StatusCode::OK).await
    }
}

/// Returns the work on a request.
fn work(server: NonetServer, body: RequestBody, context: RequestContext) -> BoxFuture<'static, Answered> {
    Box::pin(async move { server.handle(body, &context).await })
}

/// An entry among a session's requests in flight, removed on drop.
struct InFlight {
    session: Arc<HttpSession>,
    id: RequestId,
    number: u64,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut all = self.session.in_flight.lock();
        // Another request may have taken the same id.
        if all.get(&self.id).is_some_and(|(number, _)| *number == self.number) {
            all.remove(&self.id);
        }
        drop(all);
        self.session.use_now();
    }
}

/// A request that is being answered. If its client leaves, a request of a session goes on, and one of the stateless era is
/// cancelled.
struct Exchange {
    /// `None` once it has ended or goes on elsewhere.
    work: Option<BoxFuture<'static, Answered>>,
    id: RequestId,
    stream: Arc<EventStream>,
    cancel: CancellationToken,
    end: CancellationToken,
    /// Its entry in its session; none in the stateless era.
    flying: Option<InFlight>,
}

impl Exchange {
    /// Answers the request. `status` returns the status of an error.
    async fn answer(mut self, status: impl FnOnce(&ErrorData) -> StatusCode) -> Response {
        let Some(work) = &mut self.work else { return streams::nothing() };
        let answered = tokio::select! {
            biased;
            answered = work => Some(answered),
            () = self.cancel.cancelled() => None,
            () = self.stream.speaks() => None,
            () = sleep(MOMENTS) => None,
        };
        if answered.is_some() {
            self.work = None;
        }
        // A cancelled request gets no answer.
        if self.cancel.is_cancelled() {
            return streams::nothing();
        }
        match answered {
            Some(answered) if self.stream.is_silent() => {
                let status = answered.as_ref().err().map_or(StatusCode::OK, status);
                let pieces = Pieces(calls::answer(&self.id, answered, b"").into());
                headers::in_json(status, Body::new(pieces))
            }
            Some(answered) => {
                self.stream.end(Some(calls::answer(&self.id, answered, b"")));
                self.events()
            }
            None => {
                let response = self.events();
                self.go_on();
                response
            }
        }
    }

    /// Returns a response with what is said until the end.
    fn events(&self) -> Response {
        let cancels = match &self.flying {
            Some(flying) => {
                flying.session.keep(flying.number, self.stream.clone());
                None
            }
            None => Some(self.cancel.clone()),
        };
        self.stream.response(None, self.end.clone(), cancels)
    }

    /// Lets the work go on in a task.
    fn go_on(&mut self) {
        let Some(mut work) = self.work.take() else { return };
        let (stream, cancel, flying) = (self.stream.clone(), self.cancel.clone(), self.flying.take());
        let id = self.id.clone();
        tokio::spawn(async move {
            let answered = tokio::select! {
                biased;
                answered = &mut work => Some(answered),
                () = cancel.cancelled() => None,
            };
            let is_running = answered.is_none();
            let answered = answered.filter(|_| !cancel.is_cancelled());
            stream.end(answered.map(|answered| calls::answer(&id, answered, b"")));
            if is_running {
                let _ = work.await;
            }
            drop(flying);
        });
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if self.work.is_some() {
            self.stream.leave();
            if self.flying.is_none() {
                self.cancel.cancel();
            }
            self.go_on();
        }
    }
}

/// A body in pieces, none of which is copied.
struct Pieces(VecDeque<Bytes>);

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.iter().map(|piece| piece.len() as u64).sum())
    }
}

fn empty(status: StatusCode) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

fn no_session_id() -> Refusal {
    Box::new(headers::refused(StatusCode::BAD_REQUEST, "Bad Request: Session ID is required"))
}

/// Returns the refusal of a new session.
fn no_room(id: &RequestId, full: QuotaExceeded) -> Response {
    let fault = Fault::from(full);
    let error = ErrorData::new(RATE_LIMITED, fault.message.clone(), Some(fault.to_value()));
    let mut response = headers::failed(StatusCode::SERVICE_UNAVAILABLE, Some(id), &error);
    response.headers_mut().insert(RETRY_AFTER, RETRY_SESSION.as_secs().into());
    response
}
