//! Calls over HTTP that are answered with plain JSON.
//!
//! rmcp answers each call with an event stream, through a session task, several channels and trees of values. Most calls end
//! within moments and send nothing before their answer: an ordinary call starts here, and its answer is written once. A call
//! that sends a message first, or takes longer, continues in rmcp with the same HTTP request. Any unusual request goes
//! straight to rmcp, which also words every refusal.

use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::{Body, Bytes, HttpBody},
    extract::Request,
    response::Response,
};
use dashmap::{DashMap, Entry};
use http::{
    Extensions, HeaderMap, HeaderName, HeaderValue, StatusCode,
    header::{ACCEPT, CONTENT_TYPE, HOST, ORIGIN},
    request::Parts,
};
use hyper::body::{Frame, SizeHint};
use nonet_meta::MetaAnswer;
use nonet_servers::downstream::LogLevel;
use nonet_text::results::CallResult;
use nonet_wire::{Message, MessageKind, VERSION_KEY};
use parking_lot::{Mutex, RwLock};
use rmcp::{
    RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, ClientCapabilities, Extensions as McpExtensions, MetaObject, ProtocolVersion,
        RequestMetaObject,
    },
    service::{NotificationContext, Peer},
    transport::streamable_http_server::session::local::LocalSessionManager,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    NonetServer,
    direct::CallParams,
    http::Door,
    in_flight::{CallTokens, InFlightRequest},
    origin::{RequestOrigin, UNNAMED},
};

/// How long a call may take to be answered with plain JSON.
const MOMENTS: Duration = Duration::from_millis(50);
/// How often rmcp, which ends idle sessions, is notified that a session is in use.
const IN_USE: Duration = Duration::from_secs(30);
/// How many request heads are remembered: the latest ones.
const MOST_HEADS: usize = 32;
/// The prefix of an encoded header value (SEP-2243).
const ENCODED: &str = "=?base64?";

static SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
static VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
static METHOD: HeaderName = HeaderName::from_static("mcp-method");
static NAME: HeaderName = HeaderName::from_static("mcp-name");
/// The headers that rmcp checks for every message.
static JUDGED: [HeaderName; 5] =
    [HOST, ORIGIN, ACCEPT, CONTENT_TYPE, HeaderName::from_static("mcp-protocol-version")];

/// What is known about the clients at one door, so that calls can be answered without rmcp.
pub(super) struct PlainCalls {
    /// rmcp's sessions, which are authoritative.
    open: Arc<LocalSessionManager>,
    /// The sessions whose clients have completed their handshake.
    settled: DashMap<Box<str>, Arc<PlainSession>>,
    /// Values of [`JUDGED`] in requests that rmcp accepted.
    heads: RwLock<Vec<[Vec<HeaderValue>; 5]>>,
    handler: Box<dyn Fn() -> NonetServer + Send + Sync>,
}

struct PlainSession {
    server: NonetServer,
    peer: Peer<RoleServer>,
    calls: CallTokens,
    /// When rmcp was last notified that the session is in use.
    in_use: Mutex<Instant>,
}

/// A call that has started outside rmcp.
pub(super) struct StartedCall {
    open: Box<InFlightRequest<MetaAnswer>>,
    /// Its id as JSON.
    id: String,
    level: Option<LogLevel>,
    is_stateless: bool,
}

/// A call on its way to rmcp, attached to its request.
#[derive(Clone)]
struct CallHandover(Arc<Mutex<Option<Box<InFlightRequest<MetaAnswer>>>>>);

/// Returns the call that started before its request reached rmcp.
pub(super) fn take(extensions: &McpExtensions) -> Option<Box<InFlightRequest<MetaAnswer>>> {
    extensions.get::<Parts>()?.extensions.get::<CallHandover>()?.0.lock().take()
}

/// Remembers a session whose client has completed its handshake, until the session ends.
pub(super) fn settled(server: &NonetServer, context: &NotificationContext<RoleServer>) {
    let Some(parts) = context.extensions.get::<Parts>() else { return };
    let Some(calls) = parts.extensions.get::<Arc<PlainCalls>>() else { return };
    let Some(id) = only(&parts.headers, &SESSION_ID) else { return };
    let Entry::Vacant(vacant) = calls.settled.entry(id.into()) else { return };
    vacant.insert(Arc::new(PlainSession {
        server: server.guest(),
        peer: context.peer.clone(),
        calls: CallTokens::default(),
        in_use: Mutex::new(Instant::now()),
    }));
    let (calls, id, ended) = (calls.clone(), id.to_owned(), server.ended.clone());
    tokio::spawn(async move {
        ended.cancelled().await;
        calls.settled.remove(&*id);
    });
}

/// Returns the session of a request.
pub(super) fn session_id(headers: &HeaderMap) -> Option<&str> {
    only(headers, &SESSION_ID)
}

/// Returns the value of a header that occurs once.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    values.next().filter(|_| values.next().is_none())?.to_str().ok()
}

impl PlainCalls {
    pub(super) fn new(
        open: Arc<LocalSessionManager>,
        handler: impl Fn() -> NonetServer + Send + Sync + 'static,
    ) -> Self {
        Self { open, settled: DashMap::new(), heads: RwLock::default(), handler: Box::new(handler) }
    }

    /// Returns a handler with a new session.
    pub(super) fn handler(&self) -> NonetServer {
        (self.handler)()
    }

    /// Returns whether rmcp accepted a request with this head.
    pub(super) fn knows(&self, headers: &HeaderMap) -> bool {
        let is_like = |head: &[Vec<HeaderValue>; 5]| {
            JUDGED.iter().zip(head).all(|(name, values)| headers.get_all(name).iter().eq(values))
        };
        self.heads.read().iter().any(is_like)
    }

    /// Remembers the head of a request that rmcp accepted.
    pub(super) fn learn(&self, head: [Vec<HeaderValue>; 5]) {
        let mut heads = self.heads.write();
        // Without a Host, rmcp checks the address.
        if !head[0].is_empty() && !heads.contains(&head) {
            if heads.len() >= MOST_HEADS {
                heads.remove(0);
            }
            heads.push(head);
        }
    }

    /// Cancels the call that a `notifications/cancelled` refers to, if the call started here. rmcp gets the notification too.
    pub(super) fn cancel(&self, headers: &HeaderMap, message: &Message) {
        if let Some(id) = message.cancels()
            && let Some(session) = only(headers, &SESSION_ID).and_then(|id| self.settled.get(id))
        {
            session.calls.cancel(&id);
        }
    }

    /// Starts an ordinary call with a known head. `None` for every other request.
    pub(super) fn begin(&self, request: &Request, message: &Message) -> Option<StartedCall> {
        let is_call = message.kind() == MessageKind::Request
            && message.method().as_deref() == Some("tools/call")
            && message.is_versioned();
        if !is_call {
            return None;
        }
        let id = serde_json::to_string(&message.id()?).ok()?;
        let params: CallParams = serde_json::from_slice(message.params()?).ok()?;
        if params.task.is_some() || params.input_responses.is_some() || params.request_state.is_some() {
            return None;
        }
        let meta = RequestMetaObject(MetaObject(params.meta.unwrap_or_default()));
        let mut call = CallToolRequestParams::new(params.name);
        call.arguments = params.arguments;
        let beside = request.extensions();
        match request.headers().contains_key(&SESSION_ID) {
            true => {
                let session = self.session(request.headers(), &meta)?;
                if session.calls.has(&id) {
                    return None;
                }
                let origin = PlainOrigin { meta, beside, peer: Some(&session.peer) };
                let level = session.server.log_level_for(&origin, false);
                let mut open = session.server.open_call(call, &origin, level).0;
                open.list_in(&session.calls, &id);
                Some(StartedCall { open, id, level, is_stateless: false })
            }
            false => {
                let origin = PlainOrigin { meta, beside, peer: None };
                let server = self.stateless(request.headers(), &origin.meta, &call.name)?;
                let level = server.log_level_for(&origin, true);
                let open = server.open_call(call, &origin, level).0;
                Some(StartedCall { open, id, level, is_stateless: true })
            }
        }
    }

    /// Returns the session of a call of the session era.
    fn session(&self, headers: &HeaderMap, meta: &RequestMetaObject) -> Option<Arc<PlainSession>> {
        let is_of_sessions = headers.get(&VERSION).is_none_or(|version| {
            version.to_str().is_ok_and(|version| {
                version < ProtocolVersion::V_2026_07_28.as_str()
                    && ProtocolVersion::KNOWN_VERSIONS.iter().any(|known| known.as_str() == version)
            })
        });
        if !is_of_sessions || meta.0.0.contains_key(VERSION_KEY) {
            return None;
        }
        let id = only(headers, &SESSION_ID)?;
        let session = self.settled.get(id)?.clone();
        let open = self.open.sessions.try_read().ok()?;
        let handle = open.get(id)?;
        let mut in_use = session.in_use.lock();
        if in_use.elapsed() > IN_USE {
            *in_use = Instant::now();
            let handle = handle.clone();
            // Any operation counts as use, even closing a stream that never existed.
            tokio::spawn(async move { handle.close_request_wise_channel(u64::MAX).await });
        }
        drop(in_use);
        Some(session)
    }

    /// Returns the handler of a stateless call, if its headers match its body (SEP-2243) and its `_meta` is complete.
    fn stateless(&self, headers: &HeaderMap, meta: &RequestMetaObject, tool: &str) -> Option<NonetServer> {
        let agrees = only(headers, &VERSION) == Some(ProtocolVersion::V_2026_07_28.as_str())
            && meta.protocol_version() == Some(ProtocolVersion::V_2026_07_28)
            && meta.client_capabilities().is_some()
            && only(headers, &METHOD) == Some("tools/call")
            && only(headers, &NAME) == Some(tool)
            && !tool.starts_with(ENCODED);
        let server = agrees.then(|| self.handler())?;
        // The params of such a tool are repeated in headers.
        server.get_tool(tool).is_none().then_some(server)
    }
}

/// Returns the values that rmcp checks in a head.
pub(super) fn judged(headers: &HeaderMap) -> [Vec<HeaderValue>; 5] {
    JUDGED.each_ref().map(|name| headers.get_all(name).iter().cloned().collect())
}

/// The origin of a call outside rmcp.
struct PlainOrigin<'a> {
    meta: RequestMetaObject,
    beside: &'a Extensions,
    /// The client of a session; none in the stateless era.
    peer: Option<&'a Peer<RoleServer>>,
}

impl RequestOrigin for PlainOrigin<'_> {
    fn meta(&self) -> &RequestMetaObject {
        &self.meta
    }

    fn beside(&self) -> Option<&Extensions> {
        Some(self.beside)
    }

    fn with_client_name<T>(&self, read: impl FnOnce(&str) -> T) -> T {
        match self.meta.client_info() {
            Some(info) => read(&info.name),
            None => {
                let info = self.peer.and_then(Peer::peer_info);
                read(info.as_ref().map_or(UNNAMED, |info| &info.client_info.name))
            }
        }
    }

    fn client_capabilities(&self) -> Option<ClientCapabilities> {
        let told = self.meta.client_capabilities();
        told.or_else(|| Some(self.peer?.peer_info()?.capabilities.clone()))
    }

    fn is_stateless(&self) -> bool {
        self.peer.is_none()
    }

    fn wants_task(&self) -> bool {
        false
    }

    fn cancel(&self) -> CancellationToken {
        CancellationToken::new()
    }
}

impl StartedCall {
    /// Answers the call: with plain JSON, or through rmcp.
    pub(super) async fn answer(self, door: Arc<Door>, request: Request) -> Response {
        let Self { open, id, level, is_stateless } = self;
        let mut call = PendingCall { left: Some((open, request)), door, is_stateless };
        let outcome = match &mut call.left {
            Some((open, _)) => open.begin(level, MOMENTS).await,
            None => None,
        };
        match outcome {
            Some(MetaAnswer::Result(mut result)) => {
                call.left = None;
                result.of_era(is_stateless);
                answered(&id, result)
            }
            outcome => call.pass_on(outcome).await,
        }
    }
}

/// A call that is not answered yet and not yet with rmcp. If its client leaves, the call is treated as rmcp treats it: one in
/// a session continues, a stateless one is cancelled.
struct PendingCall {
    left: Option<(Box<InFlightRequest<MetaAnswer>>, Request)>,
    door: Arc<Door>,
    is_stateless: bool,
}

impl PendingCall {
    /// Lets rmcp answer a call, whose outcome may be known already.
    async fn pass_on(mut self, outcome: Option<MetaAnswer>) -> Response {
        let Some((mut open, request)) = self.left.take() else { return Response::default() };
        match outcome {
            Some(outcome) => open.end(outcome),
            None if open.is_cancelled() => {
                tokio::spawn(open.abandon());
                return unanswered();
            }
            None => {}
        }
        let answered = hand_over(self.door.clone(), open, request);
        if self.is_stateless {
            return answered.await;
        }
        // In a task: if the client leaves now, the call must not be dropped with it.
        tokio::spawn(answered).await.unwrap_or_else(|_| {
            let mut response = Response::default();
            *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            response
        })
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        let Some((open, request)) = self.left.take() else { return };
        if self.is_stateless {
            tokio::spawn(open.abandon());
        } else {
            tokio::spawn(hand_over(self.door.clone(), open, request));
        }
    }
}

/// Lets rmcp continue a call.
async fn hand_over(
    door: Arc<Door>,
    open: Box<InFlightRequest<MetaAnswer>>,
    mut request: Request,
) -> Response {
    request.extensions_mut().insert(CallHandover(Arc::new(Mutex::new(Some(open)))));
    Box::pin(door.service.handle(request)).await.map(Body::new)
}

fn answered(id: &str, result: CallResult) -> Response {
    let before = ["{\"jsonrpc\":\"2.0\",\"id\":", id, ",\"result\":"].concat();
    of_type("application/json", Body::new(Pieces(result.written(before.as_bytes(), b"}").into())))
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

/// Returns the answer to a call that its client has cancelled: an empty event stream, as from rmcp.
fn unanswered() -> Response {
    of_type("text/event-stream", Body::empty())
}

fn of_type(content_type: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
