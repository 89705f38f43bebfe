//! A server at a URL: streamable HTTP in both eras. A request is a POST; its answer is the body, or comes on
//! a stream of events, which is resumed if it breaks. Other messages on the stream belong to the request. In
//! the session era the server may also send messages on a common stream, and a session that has expired is
//! replaced.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::FutureExt;
use http::{HeaderMap, HeaderName, StatusCode};
use nonet_wire::{
    Expectations, Limits, Message, MessageKind, ScannedMessage, SizeLimit, Weight, error_excerpt,
    http::{Address, HttpFault, HttpReply, SessionHeaders, SignedClient, Signer, request_headers, said},
    mirrored::{MirroredParam, is_mirroring, mirrored_params, put_mirrored},
    off_thread,
};
use parking_lot::Mutex;
use rmcp::model::{ErrorData, ProtocolVersion};
use serde_json::{Map, Value};
use tokio::{
    sync::oneshot,
    time::{sleep, timeout},
};
use tokio_util::task::AbortOnDropHandle;

use super::{
    Era,
    channel::{Outgoing, OutgoingParams, RequestFault, written},
    events::{EventRead, EventStream},
    handshake::{INITIALIZED, discover_params, initialize_params, is_stateless, supports_stateless},
    incoming::{Incoming, SendSoon},
    pending::{AnswerKind, ServerAnswer, number},
    server_requests::{ClientChannel, RelatedCall},
};

/// How many times a stream that ended before the answer is reopened, and the first delay. The delay doubles
/// each time, unless the server sets one (SEP-1699).
const ATTEMPTS: u32 = 8;
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// How long the rest of an answer is read, so that its connection can be reused.
const DRAIN: Duration = Duration::from_millis(500);
/// The longest time for replacing an expired session.
const RENEWAL: Duration = Duration::from_secs(30);
/// The maximum number of tools whose params are repeated in headers.
const MOST_MIRRORING: usize = 10_000;
/// The session that a server gave to a connection.
const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");

/// One server.
#[derive(Clone)]
pub(super) struct HttpServer(Arc<Inner>);

struct Inner {
    incoming: Arc<Incoming>,
    endpoint: SignedClient,
    address: Address,
    /// The configured headers, which are sent with every request.
    headers: HeaderMap,
    session: Mutex<Arc<HttpSession>>,
    /// Held while an expired session is being replaced.
    renewal: tokio::sync::Mutex<()>,
    /// Reads the common stream.
    common: Mutex<Option<AbortOnDropHandle<Option<()>>>>,
    /// The params that calls repeat in headers, by tool (2026-07-28).
    mirrored: Mutex<HashMap<String, Arc<[MirroredParam]>>>,
}

/// What the requests of a session have in common; in the stateless era, what all requests have in common.
struct HttpSession {
    era: Era,
    headers: HeaderMap,
}

/// A request as it is sent.
struct HttpRequest {
    id: i64,
    message: Bytes,
    /// The headers that repeat parts of the message; none in the session era.
    method: &'static str,
    about: Option<String>,
    mirrored: HeaderMap,
    expected: AnswerKind,
    /// The client that the server may send requests to.
    asker: Option<ClientChannel>,
}

impl HttpServer {
    /// Returns a server. Sends nothing yet.
    pub(super) fn new(
        incoming: Arc<Incoming>,
        url: &str,
        headers: HeaderMap,
        signer: Option<Arc<dyn Signer>>,
    ) -> Result<Self, HttpFault> {
        let (endpoint, address) = (SignedClient::new(signer), Address::parse(url)?);
        let session = Arc::new(HttpSession { era: Era::Session, headers: headers.clone() });
        let inner = Inner {
            incoming,
            endpoint,
            address,
            headers,
            session: Mutex::new(session),
            renewal: tokio::sync::Mutex::default(),
            common: Mutex::default(),
            mirrored: Mutex::default(),
        };
        Ok(Self(Arc::new(inner)))
    }

    fn session(&self) -> Arc<HttpSession> {
        self.0.session.lock().clone()
    }

    /// Asks which revisions the server supports. Returns its description if the stateless era is among them.
    pub(super) async fn discover(&self) -> Result<Option<Value>, RequestFault> {
        let version = Some(ProtocolVersion::V_2026_07_28.as_str().to_owned());
        let headers = SessionHeaders { id: None, version }.beside(&self.0.headers);
        let session = Arc::new(HttpSession { era: Era::Stateless, headers });
        let discover = || {
            self.greet(&session, "server/discover", discover_params(self.0.incoming.ui), |_| session.clone())
        };
        let result = match discover().await {
            // The server refuses the revision and lists it among the ones that it supports.
            Err(RequestFault::Refused(error)) if supports_stateless(&error) => discover().await?.1,
            result => result?.1,
        };
        if !is_stateless(&result) {
            return Ok(None);
        }
        *self.0.session.lock() = session;
        Ok(Some(result))
    }

    /// Performs the handshake of the session era. Returns the server's description.
    pub(super) async fn initialize(&self) -> Result<Value, RequestFault> {
        let base = Arc::new(HttpSession { era: Era::Session, headers: self.0.headers.clone() });
        let opened = |id: Option<String>| {
            let headers = SessionHeaders { id, version: None }.beside(&self.0.headers);
            Arc::new(HttpSession { era: Era::Session, headers })
        };
        let (opened, result) =
            self.greet(&base, "initialize", initialize_params(self.0.incoming.ui), opened).await?;
        let version = result.get("protocolVersion").and_then(Value::as_str).map(String::from);
        let headers = SessionHeaders { id: None, version }.beside(&opened.headers);
        let has_session = headers.contains_key(SESSION);
        let session = Arc::new(HttpSession { era: Era::Session, headers });
        let reply = self.post(session.headers.clone(), INITIALIZED.into()).await?;
        if !reply.status.is_success() {
            return Err(reply.refused().await.into());
        }
        *self.0.session.lock() = session.clone();
        if has_session {
            let closed = self.0.incoming.closed.clone();
            let following = tokio::spawn(closed.run_until_cancelled_owned(self.clone().follow(session)));
            *self.0.common.lock() = Some(AbortOnDropHandle::new(following));
        }
        Ok(result)
    }

    /// Sends a request of the handshake in a session. `opened` returns the session in which its reply is
    /// read, from the id in the reply.
    async fn greet(
        &self,
        session: &Arc<HttpSession>,
        method: &'static str,
        params: Map<String, Value>,
        opened: impl FnOnce(Option<String>) -> Arc<HttpSession>,
    ) -> Result<(Arc<HttpSession>, Value), RequestFault> {
        let pending = &self.0.incoming.pending;
        let (id, answered) = pending.open(AnswerKind::Short, None, None).ok_or(RequestFault::Lost)?;
        let params = OutgoingParams::Other { params, input: None };
        let message = written(id, method, None::<&()>, &params);
        let message = message.map_err(|error| HttpFault::Wrong(error.to_string()))?.into();
        let (about, mirrored, expected) = (None, HeaderMap::new(), AnswerKind::Short);
        let request = HttpRequest { id, message, method, about, mirrored, expected, asker: None };
        let exchange = async {
            let reply = self.post(request.headers(session), request.message.clone()).await?;
            let session = opened(reply.session());
            self.read(&session, reply, &request).await?;
            Ok::<_, RequestFault>(session)
        };
        let exchanged = exchange.await;
        if exchanged.is_err() {
            pending.end(id);
        }
        let session = exchanged?;
        let answer = answered.await.map_err(|_| RequestFault::Lost)?.map_err(RequestFault::Refused)?;
        Ok((session, answer.into_tree().await))
    }

    /// Sends a request and returns its answer, which may also come on another stream.
    pub(super) async fn exchange(
        &self,
        id: i64,
        message: Bytes,
        request: &Outgoing<'_>,
        mut answered: oneshot::Receiver<ServerAnswer>,
    ) -> Result<ServerAnswer, RequestFault> {
        let is_stateless = self.session().era == Era::Stateless;
        let request = HttpRequest {
            id,
            message,
            method: request.method,
            about: request.about().filter(|_| is_stateless).map(String::from),
            mirrored: if is_stateless { self.mirrored(&request.params) } else { HeaderMap::new() },
            expected: request.expected,
            asker: request.control.and_then(|control| control.asker.clone()),
        };
        let mut exchange = self.clone().send(request).boxed();
        let ended = tokio::select! {
            biased;
            answer = &mut answered => {
                let answer = answer.map_err(|_| RequestFault::Lost);
                if futures::poll!(&mut exchange).is_pending() {
                    tokio::spawn(timeout(DRAIN, exchange));
                }
                return answer;
            }
            ended = &mut exchange => ended,
        };
        match ended {
            // The server accepted it; the answer is there or comes on another stream.
            Ok(()) => answered.await.map_err(|_| RequestFault::Lost),
            Err(failed) => Err(failed),
        }
    }

    /// Sends a request, in a new session if its own has expired, and reads what comes back to its end.
    async fn send(self, request: HttpRequest) -> Result<(), RequestFault> {
        let mut session = self.session();
        let mut sent = self.post(request.headers(&session), request.message.clone()).await;
        if matches!(sent, Err(HttpFault::SessionExpired)) {
            timeout(RENEWAL, Box::pin(self.renew(&session)))
                .await
                .map_err(|_| HttpFault::Wrong(format!("no new session within {RENEWAL:?}")))??;
            session = self.session();
            sent = self.post(request.headers(&session), request.message.clone()).await;
        }
        self.read(&session, sent?, &request).await
    }

    async fn post(&self, headers: HeaderMap, message: Bytes) -> Result<HttpReply, HttpFault> {
        let reply = self.0.endpoint.post(&self.0.address, headers, message).await?;
        reply.wants_sign_in().map_or(Ok(reply), Err)
    }

    /// Replaces an expired session, unless another request has done so.
    async fn renew(&self, expired: &Arc<HttpSession>) -> Result<(), RequestFault> {
        let _turn = self.0.renewal.lock().await;
        if Arc::ptr_eq(&self.session(), expired) {
            self.initialize().await?;
        }
        Ok(())
    }

    /// Reads the reply to a request. The answer may also come on another stream, even after this function
    /// returns.
    async fn read(
        &self,
        session: &Arc<HttpSession>,
        reply: HttpReply,
        request: &HttpRequest,
    ) -> Result<(), RequestFault> {
        if matches!(reply.status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) {
            return Ok(());
        }
        if reply.is_events() {
            return self.read_events(session, reply, request).await;
        }
        let pending = &self.0.incoming.pending;
        let message = read_body(reply, request.expected.bound(pending.limits()), pending.limits()).await?;
        let of_this = match (message.id(), message.kind()) {
            (Some(id), _) => number(&id) == Some(request.id),
            // An unreadable request has no id to return in the error.
            (None, kind) => kind == MessageKind::Error,
        };
        if !of_this {
            return Err(unusable("the answer has the id of another request; it was dropped".into()));
        }
        if let Some(request) = pending.end(request.id) {
            self.0.incoming.answers(request, message).await;
        }
        Ok(())
    }

    async fn read_events(
        &self,
        session: &Arc<HttpSession>,
        reply: HttpReply,
        request: &HttpRequest,
    ) -> Result<(), RequestFault> {
        let about = request.asker.clone().map_or(RelatedCall::Over, RelatedCall::Call);
        let mut events = self.events(session, reply);
        let mut resumption = Resumption::default();
        loop {
            match events.next(Some(&about)).await {
                Some(read) => {
                    resumption.note(&read);
                    if read.has_message {
                        resumption.attempts = 0;
                    }
                }
                None if !self.0.incoming.pending.has(request.id) => return Ok(()),
                None => {
                    // A stream can be resumed only from an event with an id.
                    let Some(last) = resumption.last_event.clone() else { return Err(RequestFault::Lost) };
                    events = loop {
                        if resumption.attempts >= ATTEMPTS {
                            return Err(RequestFault::Lost);
                        }
                        sleep(resumption.next_wait()).await;
                        if let Some(resumed) = self.resume(session, &last).await? {
                            break resumed;
                        }
                    };
                }
            }
        }
    }

    /// Reopens a stream after the last event seen; `None` if a later attempt may succeed.
    async fn resume(
        &self,
        session: &Arc<HttpSession>,
        last: &str,
    ) -> Result<Option<EventStream<SessionPoster>>, RequestFault> {
        match self.0.endpoint.stream(&self.0.address, session.headers.clone(), Some(last)).await {
            Ok(reply) if reply.is_events() => Ok(Some(self.events(session, reply))),
            Ok(reply) if reply.status.is_client_error() => Err(RequestFault::Lost),
            Ok(_) | Err(_) => Ok(None),
        }
    }

    /// Reads the common stream of a session, as long as the server offers it.
    async fn follow(self, session: Arc<HttpSession>) {
        let mut resumption = Resumption::default();
        loop {
            let opened = Instant::now();
            let headers = session.headers.clone();
            match self.0.endpoint.stream(&self.0.address, headers, resumption.last_event.as_deref()).await {
                Ok(reply) if reply.is_events() => {
                    let mut events = self.events(&session, reply);
                    while let Some(read) = events.next(None).await {
                        resumption.note(&read);
                    }
                    if opened.elapsed() > LONGEST_WAIT {
                        resumption.attempts = 0;
                    }
                }
                Ok(reply) if reply.status.is_client_error() => {
                    let (server, status) = (&self.0.incoming.server, reply.status);
                    return tracing::debug!(%server, %status, "no common stream");
                }
                Ok(_) | Err(_) => {}
            }
            sleep(resumption.next_wait().max(FIRST_WAIT)).await;
        }
    }

    fn events(&self, session: &Arc<HttpSession>, reply: HttpReply) -> EventStream<SessionPoster> {
        let incoming = self.0.incoming.clone();
        let events = reply.events(incoming.pending.limits().of_server.bytes);
        EventStream::new(events, incoming, SessionPoster { server: self.clone(), session: session.clone() })
    }

    /// Sends a message in a separate task.
    pub(super) fn send_soon(&self, message: Bytes) {
        SessionPoster { server: self.clone(), session: self.session() }.send_soon(message);
    }

    /// Ends the session.
    pub(super) async fn close(&self) {
        self.0.common.lock().take();
        let session = self.session();
        if session.headers.contains_key(SESSION) {
            let ended = self.0.endpoint.end_session(&self.0.address, session.headers.clone()).await;
            if let Err(error) = ended {
                tracing::debug!(server = %self.0.incoming.server, %error, "the session was not ended");
            }
        }
    }

    /// Notes which tools want params repeated in headers, and removes the tools with impossible headers, as
    /// the specification asks (SEP-2243). Servers of the session era do not know such headers.
    pub(super) fn note_mirrored(&self, tools: &mut Vec<Value>) {
        if self.session().era == Era::Session {
            return;
        }
        let mut mirrored = HashMap::new();
        tools.retain(|tool| {
            let schema = tool.get("inputSchema").filter(|schema| is_mirroring(schema));
            let Some(schema) = schema.and_then(Value::as_object) else { return true };
            let name = tool.get("name").and_then(Value::as_str).unwrap_or_default();
            match mirrored_params(schema) {
                Ok(params) if mirrored.len() < MOST_MIRRORING => {
                    mirrored.insert(name.to_owned(), params.into());
                    true
                }
                Ok(_) => false,
                Err(why) => {
                    tracing::warn!(server = %self.0.incoming.server, tool = name, "the tool cannot be called over HTTP: {why}");
                    false
                }
            }
        });
        *self.0.mirrored.lock() = mirrored;
    }

    /// Returns the headers that repeat the params of a call.
    fn mirrored(&self, params: &OutgoingParams<'_>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if let OutgoingParams::Call { tool, arguments, .. } = params {
            let params = self.0.mirrored.lock().get(*tool).cloned();
            put_mirrored(&mut headers, params.as_deref().unwrap_or_default(), arguments);
        }
        headers
    }
}

/// From where, and when, a stream that has ended is reopened.
#[derive(Default)]
struct Resumption {
    last_event: Option<String>,
    /// The delay that the server set.
    wait: Option<Duration>,
    attempts: u32,
}

impl Resumption {
    fn note(&mut self, read: &EventRead) {
        if read.id.is_some() {
            self.last_event.clone_from(&read.id);
        }
        self.wait = read.retry.map(Duration::from_millis).or(self.wait);
    }

    /// Returns the delay before the next attempt, which is counted.
    fn next_wait(&mut self) -> Duration {
        let doubled = FIRST_WAIT.saturating_mul(1 << self.attempts.min(16));
        self.attempts += 1;
        self.wait.unwrap_or(doubled).min(LONGEST_WAIT)
    }
}

impl HttpRequest {
    fn headers(&self, session: &HttpSession) -> HeaderMap {
        match session.era {
            Era::Session => session.headers.clone(),
            Era::Stateless => {
                let mut headers = request_headers(self.method, self.about.as_deref(), &session.headers);
                headers.extend(self.mirrored.clone());
                headers
            }
        }
    }
}

/// Posts answers and notifications in a session.
#[derive(Clone)]
struct SessionPoster {
    server: HttpServer,
    session: Arc<HttpSession>,
}

impl SendSoon for SessionPoster {
    fn send_soon(&self, message: Bytes) {
        let Self { server, session } = self.clone();
        let closed = server.0.incoming.closed.clone();
        tokio::spawn(closed.run_until_cancelled_owned(async move {
            let _ = timeout(RENEWAL, server.post(session.headers.clone(), message)).await;
        }));
    }
}

/// Reads the message in the body of a reply, which has at most `answer` if it is a success.
async fn read_body(reply: HttpReply, answer: SizeLimit, limits: &Limits) -> Result<Message, RequestFault> {
    let (status, kind) = (reply.status, reply.kind());
    let bound = if status.is_success() { answer } else { limits.of_server };
    let body = reply.body(bound.bytes).await.map_err(|fault| match fault {
        HttpFault::TooLong(_) => unusable(fault.to_string()),
        fault => fault.into(),
    })?;
    let (text, most) = (body.clone(), bound.values);
    let (scanned, _) = off_thread(Weight::of(text.len()), move || ScannedMessage::of(text, most)).await;
    let of_error = limits.of_server;
    let refused = status.is_client_error() || status.is_server_error();
    match scanned.within(|start| if start.kind() == MessageKind::Error { of_error } else { bound }) {
        Ok(answer) if !refused || is_error(&answer) => Ok(answer),
        Ok(_) => Err(HttpFault::Status { status, text: said(status, &body) }.into()),
        Err(refused) if refused.fault.is_syntax() => {
            let kind = if kind.is_empty() { "no content type" } else { kind.as_str() };
            let said = said_by(&body);
            let text = format!("HTTP {status}, {kind}: the answer is not JSON: {said}");
            Err(HttpFault::Status { status, text }.into())
        }
        Err(refused) => {
            let said = error_excerpt(&refused.head, &refused.bytes);
            Err(unusable(format!("the answer is {}; it was dropped{said}", refused.fault)))
        }
    }
}

/// Returns the failure of a request whose answer cannot be used.
fn unusable(what: String) -> RequestFault {
    RequestFault::Refused(ErrorData::internal_error(what, None))
}

/// Returns whether a message is an error of JSON-RPC, not just something that says `error`.
fn is_error(message: &Message) -> bool {
    message.error().is_some_and(|error| serde_json::from_slice::<ErrorData>(error).is_ok())
}

fn said_by(body: &[u8]) -> String {
    String::from_utf8_lossy(&body[..body.len().min(300)]).into_owned()
}
