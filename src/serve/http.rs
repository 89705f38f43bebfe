//! Streamable HTTP at `/mcp`, and at `/mcp/PROFILE` for each currently configured profile.

use std::{collections::HashMap, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context;
use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Path, Request, State},
    middleware::Next,
    response::Response,
    routing::any,
};
use http::{
    Extensions, HeaderMap, HeaderValue, Method, StatusCode, Uri, Version,
    header::{ACCEPT, AUTHORIZATION, CONNECTION, CONTENT_TYPE, HOST, RETRY_AFTER},
    request::Parts,
    uri::Authority,
};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use nonet_config::{Config, LimitSettings};
use nonet_core::{Gateway, ServeMode};
use nonet_parts::{
    cluster::{Cluster, own_address},
    quotas::{Account, QuotaExceeded, RETRY_SESSION},
};
use nonet_store::{
    Replica,
    doors::{self, DoorPort},
};
use nonet_text::fault::Fault;
use nonet_wire::{
    Limits, Message, MessageFault, MessageKind, RefusedMessage, ScannedMessage, Weight, off_thread,
    rmcp::{is_unreadable_body, is_unrestored, without_carrier},
};
use parking_lot::Mutex;
use rmcp::transport::{
    StreamableHttpServerConfig, StreamableHttpService,
    streamable_http_server::session::{SessionId, SessionManager, SessionStore, local::LocalSessionManager},
};
use serde_json::json;
use tokio::{
    net::TcpListener,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    NonetServer, RATE_LIMITED, RequestAccount,
    access::{self, Access, AccessDenied, Entrance, PeerIdentity},
    carried::{CarriedSessions, HttpSessions},
    elsewhere::{self, BufferedRequest, ReplicaAnswer},
    held_arguments::HeldArguments,
    in_flight::ParkedRequests,
    listen::{self, InboundConnection},
    offer_page, page,
    plain_calls::{self, PlainCalls},
    relays,
    stdio::of_client,
    unused_sessions::{SessionPlace, UnusedSessions},
};

/// How long open requests may take to end after the gateway is asked to stop.
const GRACE: Duration = Duration::from_secs(2);

/// The minimum time for which a stopping replica keeps answering: by then all others have checked who runs, and send it
/// nothing more.
const LINGER: Duration = Duration::from_secs(4);

/// How to serve HTTP.
pub struct HttpOptions {
    /// Where to listen.
    pub address: SocketAddr,
    /// The profile of clients at `/mcp`.
    pub profile: Option<String>,
}

/// Where it serves, once it is listening.
#[derive(Clone, Debug)]
pub struct ServeAddress {
    /// The address that it listens on.
    pub address: SocketAddr,
    /// The live page, with its token; none if it is disabled or if others can reach this address.
    pub page: Option<String>,
    /// The file with the token of this machine's user, if requests need that one.
    pub token_file: Option<PathBuf>,
}

/// Serves any number of clients until `stop` resolves. `ready` gets the address once it is bound.
pub async fn serve_http(
    gateway: Arc<Gateway>,
    options: HttpOptions,
    ready: impl FnOnce(ServeAddress),
    stop: impl Future<Output = ()> + Send + 'static,
) -> anyhow::Result<()> {
    let config = gateway.config();
    anyhow::ensure!(
        is_open_only_where_wanted(&config, options.address),
        "{} is an address that others may reach, and {} has no tokens: whoever reaches it could run every tool. List `tokens` in \
         [gateway] or in a profile, use an address such as 127.0.0.1:8931, or set `allow_without_tokens = true` in [gateway]",
        options.address,
        config.file.display()
    );
    let entrance = Arc::new(Entrance::new(&gateway));
    let token_file = token_file(&config, &entrance)?;
    let listener = TcpListener::bind(options.address)
        .await
        .map_err(|error| anyhow::anyhow!("cannot listen on {}: {error}", options.address))?;
    let address = listener.local_addr()?;
    let _port = take_port(&gateway, address);
    let reached = gateway.cluster.as_ref().map(|cluster| reached_at(&config, cluster, address));
    let ending = CancellationToken::new();
    // Only for this machine's user.
    let shown = gateway.config().gateway.page && address.ip().is_loopback();
    let token = shown.then(|| uuid::Uuid::new_v4().simple().to_string());
    let link = token.as_ref().map(|token| page::link(address, token));
    if token.is_some() {
        gateway.calls.switch_on();
    }
    let mut hosts = allowed_hosts(address, &gateway.config().gateway.allowed_hosts);
    // The host by which the other replicas reach this one.
    hosts.extend(
        reached.as_ref().and_then(|reached| Some(reached.parse::<Uri>().ok()?.authority()?.to_string())),
    );
    let doors = Arc::new(Doors::new(&gateway, &options, address, hosts.clone(), entrance.clone(), &ending));
    tokio::spawn(doors.clone().follow());
    gateway.serves_at(&format!("http://{address}"), token.is_some());
    offer_page(&gateway, ServeMode::Http);
    let beside = page::router(&gateway, entrance, token).layer(axum::middleware::from_fn(
        move |request: Request, next: Next| {
            let allowed = is_allowed_host(request.headers(), request.extensions(), &hosts);
            async move { if allowed { next.run(request).await } else { wrong_host() } }
        },
    ));
    let router = router(doors.clone()).merge(relays::router(&gateway)).merge(beside);
    if let (Some(cluster), Some(address)) = (&gateway.cluster, reached) {
        cluster.replicas().join(this_replica(&config, cluster, address)).await;
    }
    gateway.connect();
    gateway.keep_time();
    ready(ServeAddress { address, page: link, token_file });
    let (end, leaving) = (ending.clone(), doors);
    tokio::spawn(async move {
        stop.await;
        leaving.leave().await;
        end.cancel();
    });
    let settings = gateway.clone();
    let config = move || settings.config();
    let cluster = gateway.cluster.clone();
    let is_replica = move |from| cluster.as_ref().is_some_and(|cluster| cluster.has_replica_at(from));
    tokio::select! {
        () = listen::serve(listener, router, config, is_replica, ending.clone()) => {}
        () = async { ending.cancelled().await; tokio::time::sleep(GRACE).await } => {}
    }
    gateway.stop().await;
    Ok(())
}

/// Returns the file with the token of this machine's user, if requests need it. Makes the token.
fn token_file(config: &Config, entrance: &Entrance) -> anyhow::Result<Option<PathBuf>> {
    if config.guarded {
        return Ok(None);
    }
    if config.gateway.allow_without_tokens {
        tracing::warn!("{}", access::WITHOUT_TOKENS);
        return Ok(None);
    }
    let remedy = "list `tokens` in [gateway], or set XDG_STATE_HOME to a folder that this user can write to";
    let owner = entrance.owner().with_context(|| {
        format!("there is no home folder to keep the token for clients over HTTP in: {remedy}")
    })?;
    owner.current().with_context(|| {
        format!("the token for clients over HTTP cannot be kept in `{}`: {remedy}", owner.file().display())
    })?;
    Ok(Some(owner.file().into()))
}

/// Makes the port known as a gateway's, so that no sandbox's proxy leads there.
pub(super) fn take_port(gateway: &Gateway, address: SocketAddr) -> Option<DoorPort> {
    let taken = doors::take_port(gateway.state.as_deref()?, address.port());
    taken.inspect_err(|error| tracing::warn!(%error, "sandboxes are not kept from this port")).ok()
}

/// Returns the address at which the other replicas reach this one.
fn reached_at(config: &Config, cluster: &Cluster, listening: SocketAddr) -> String {
    if let Some(address) = config.cluster.as_ref().and_then(|cluster| cluster.address.as_ref()) {
        return address.as_str().into();
    }
    let own = listening.ip().is_unspecified().then(|| own_address(&cluster.replicas().redis())).flatten();
    format!("http://{}", SocketAddr::new(own.unwrap_or(listening.ip()), listening.port()))
}

/// Returns this replica's description for the others.
fn this_replica(config: &Config, cluster: &Cluster, address: String) -> Replica {
    let replicas = cluster.replicas();
    Replica {
        number: replicas.number(),
        name: replicas.name().into(),
        address,
        version: env!("CARGO_PKG_VERSION").into(),
        config: config.digest.clone(),
        labels: config.cluster.as_ref().map(|cluster| cluster.labels.clone()).unwrap_or_default(),
        leaving: false,
    }
}

/// Returns the hosts by which this address may be reached. Another site's page must not reach it through a name of its own
/// (DNS rebinding).
pub(super) fn allowed_hosts(address: SocketAddr, more: &[String]) -> Vec<String> {
    let mut hosts = vec!["localhost".to_string(), "127.0.0.1".into(), "::1".into(), "[::1]".into()];
    if !address.ip().is_unspecified() {
        hosts.push(address.ip().to_string());
    }
    hosts.extend(more.iter().cloned());
    hosts
}

/// Returns whether a request names one of the hosts, or the exact address that it arrived at, as an orchestrator's probes do:
/// another site's page cannot know that.
pub(super) fn is_allowed_host(headers: &HeaderMap, extensions: &Extensions, hosts: &[String]) -> bool {
    fn plain(host: &str) -> String {
        host.trim_matches(['[', ']']).to_ascii_lowercase()
    }
    let mut given = headers.get_all(HOST).iter();
    let only = given.next().filter(|_| given.next().is_none()).and_then(|host| host.to_str().ok());
    let Some(host) = only.and_then(|host| host.parse::<Authority>().ok()) else { return false };
    let local = InboundConnection::local(extensions);
    local.is_some_and(|local| plain(host.host()).parse() == Ok(local))
        || hosts.iter().any(|allowed| match allowed.parse::<Authority>() {
            Ok(allowed) => {
                plain(allowed.host()) == plain(host.host())
                    && allowed.port_u16().is_none_or(|port| host.port_u16() == Some(port))
            }
            Err(_) => plain(allowed) == plain(host.host()),
        })
}

pub(super) fn wrong_host() -> Response {
    let why = "this host name is not allowed: add it to `allowed_hosts` of [gateway]\n";
    let mut response = Response::new(Body::from(why));
    *response.status_mut() = StatusCode::FORBIDDEN;
    response
}

/// Returns whether an address that other machines can reach is served only as the configuration says: the token of this machine's
/// user is for this machine.
fn is_open_only_where_wanted(config: &Config, address: SocketAddr) -> bool {
    config.guarded || config.gateway.allow_without_tokens || address.ip().to_canonical().is_loopback()
}

type HttpService = StreamableHttpService<NonetServer, HttpSessions>;

/// The MCP service of one profile, with its sessions.
pub(super) struct Door {
    pub(super) service: HttpService,
    plain: Arc<PlainCalls>,
    sessions: Arc<LocalSessionManager>,
    unused: UnusedSessions,
    /// The account of requests without a token.
    strangers: Arc<Account>,
    /// The records of the sessions for the other replicas.
    carried: Option<Arc<CarriedSessions>>,
    /// Ends all of its sessions.
    end: CancellationToken,
}

/// The services of all profiles, each created at its first request. The current configuration decides which may exist.
struct Doors {
    gateway: Arc<Gateway>,
    address: SocketAddr,
    /// The profile of clients at `/mcp`.
    default: Option<String>,
    settings: StreamableHttpServerConfig,
    /// The hosts by which it may be reached.
    hosts: Vec<String>,
    entrance: Arc<Entrance>,
    ending: CancellationToken,
    open: Mutex<HashMap<Option<String>, Arc<Door>>>,
}

impl Doors {
    fn new(
        gateway: &Arc<Gateway>,
        options: &HttpOptions,
        address: SocketAddr,
        hosts: Vec<String>,
        entrance: Arc<Entrance>,
        ending: &CancellationToken,
    ) -> Self {
        let own = &gateway.config().gateway;
        // Another site's page must not reach this address through the browser either, so both Host and Origin are checked.
        let mut origins =
            vec!["http://localhost:*".to_string(), "http://127.0.0.1:*".into(), "http://[::1]:*".into()];
        origins.extend(own.allowed_origins.iter().cloned());
        let settings = StreamableHttpServerConfig::default()
            .with_allowed_hosts(hosts.clone())
            .with_allowed_origins(origins)
            .with_max_request_body_bytes(Limits::HIGHEST.of_client.bytes);
        let (gateway, default, ending) = (gateway.clone(), options.profile.clone(), ending.clone());
        Self { gateway, address, default, settings, hosts, entrance, ending, open: Mutex::default() }
    }

    /// Answers a request to `/mcp`, or to `/mcp/NAME`.
    async fn enter(&self, named: Option<&str>, request: Request) -> Response {
        let is_http1 = request.version() <= Version::HTTP_11;
        let mut response = self.answer(named, request).await;
        // Keeps clients from sending a request just when the connection is closed.
        let leaving = || self.gateway.cluster.as_ref().is_some_and(|cluster| cluster.replicas().is_leaving());
        if is_http1 && leaving() {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    async fn answer(&self, named: Option<&str>, mut request: Request) -> Response {
        let beside = self.entrance.beside(&self.gateway.config(), request.extensions()).await;
        let (config, door, access) = match self.door(named, request.headers(), beside) {
            Ok(entered) => entered,
            Err(refusal) => {
                tracing::debug!(?refusal, "a request over HTTP was refused");
                return refusal.response();
            }
        };
        if let Some(refusal) = listen::refusal_of_proven(request.extensions()) {
            return refusal;
        }
        let marked = match &self.gateway.cluster {
            Some(cluster) => cluster.is_marked(request.headers_mut()),
            None => false,
        };
        if let Some(token) = access.token {
            let account = self.gateway.account_of(access.profile.as_deref(), token.token);
            request.extensions_mut().insert(RequestAccount(account));
            // The sender remains known by the token's place in the file.
            request.extensions_mut().insert(token);
        }
        // The token has done its job and must not go any further: not into session data, nor into a log.
        let authorization = request.headers_mut().remove(AUTHORIZATION);
        request.extensions_mut().insert(door.plain.clone());
        if let Some(carried) = &door.carried {
            request.extensions_mut().insert(carried.clone());
        }
        let away = self.gateway.cluster.as_ref().map(|cluster| ForwardTarget {
            cluster,
            hosts: &self.hosts,
            authorization,
            marked,
        });
        if request.method() == Method::POST {
            return door.post(request, &config.limits, away).await;
        }
        if let Some(away) = away {
            let (mut parts, body) = request.into_parts();
            if let Some(response) = away.answer(&door, &mut parts, Bytes::new(), None).await {
                return response;
            }
            request = Request::from_parts(parts, body);
        }
        let ends = request.method() == Method::DELETE;
        let mut response = Box::pin(door.service.handle(request)).await.map(Body::new);
        // Some clients take a 202 for a failure here.
        if ends && response.status() == StatusCode::ACCEPTED {
            *response.status_mut() = StatusCode::NO_CONTENT;
        }
        response
    }

    /// Returns the door that admits a request.
    fn door(
        &self,
        named: Option<&str>,
        headers: &HeaderMap,
        beside: PeerIdentity,
    ) -> Result<(Arc<Config>, Arc<Door>, Access), AccessDenied> {
        let mut open = self.open.lock();
        // Read under the lock, so that a door closed by `close` is not reopened by an older configuration.
        let config = self.gateway.config();
        if !is_open_only_where_wanted(&config, self.address) {
            return Err(AccessDenied::NoToken(access::TokenKind::OfFile));
        }
        let access = access::access(&config, headers, beside, named, self.default.as_deref())?;
        let door = match open.get(&access.profile) {
            Some(door) => door.clone(),
            None => {
                let door =
                    Arc::new(Door::new(&self.gateway, access.profile.clone(), &self.settings, &self.ending));
                open.insert(access.profile.clone(), door.clone());
                door
            }
        };
        Ok((config, door, access))
    }

    /// Ends the sessions of profiles that are no longer configured.
    fn close(&self) {
        let mut open = self.open.lock();
        let config = self.gateway.config();
        open.retain(|profile, door| {
            let stays = profile.as_ref().is_none_or(|name| config.profiles.contains_key(name));
            if !stays {
                door.end.cancel();
            }
            stays
        });
    }

    /// Hands everything over to the other replicas, if there are any: announces the stop, lets calls in flight end, and
    /// passes sessions on.
    async fn leave(&self) {
        let Some(cluster) = &self.gateway.cluster else { return };
        let limit = self.gateway.config().cluster.as_ref().map_or(Duration::ZERO, |cluster| cluster.drain);
        let began = Instant::now();
        let until = began + limit;
        cluster.replicas().is_about_to_leave().await;
        let carried: Vec<_> = self.open.lock().values().filter_map(|door| door.carried.clone()).collect();
        let sessions = async {
            for carried in carried {
                carried.hand_over(until).await;
            }
        };
        let programs = tokio::time::timeout_at(until, self.gateway.hand_programs_over());
        let _ = futures::join!(sessions, programs);
        while self.gateway.calls_in_flight() > 0 && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        // Load balancers must notice, and keep-alive connections must end with an answer.
        tokio::time::sleep_until(until.min(began + LINGER)).await;
    }

    /// Calls `close` after each change of the configuration.
    async fn follow(self: Arc<Self>) {
        let mut reloads = self.gateway.reloads();
        while let Some(Ok(())) = self.ending.run_until_cancelled(reloads.changed()).await {
            self.close();
            if let Some(cluster) = &self.gateway.cluster {
                cluster.replicas().has_config(self.gateway.config().digest.clone()).await;
            }
        }
    }
}

impl Door {
    fn new(
        gateway: &Arc<Gateway>,
        profile: Option<String>,
        settings: &StreamableHttpServerConfig,
        ending: &CancellationToken,
    ) -> Self {
        let (end, sessions) = (ending.child_token(), Arc::<LocalSessionManager>::default());
        let cluster = gateway.cluster.clone();
        let carried =
            cluster.clone().map(|cluster| CarriedSessions::new(cluster, profile.clone(), sessions.clone()));
        let (gateway, parkings) = (gateway.clone(), ParkedRequests::new(cluster.as_ref()));
        let strangers = gateway.account_of_strangers(profile.as_deref());
        let account = strangers.clone();
        let handler = move || {
            let strangers = Some(account.clone());
            NonetServer::new(gateway.clone(), profile.clone(), strangers, parkings.clone())
        };
        let plain = Arc::new(PlainCalls::new(sessions.clone(), handler));
        let handlers = plain.clone();
        let mut settings = settings.clone().with_cancellation_token(end.clone());
        if let Some(carried) = &carried {
            tokio::spawn(carried.clone().keep(end.clone()));
            settings.session_store = Some(carried.clone());
        }
        let made = Arc::new(HttpSessions::new(sessions.clone(), cluster));
        let service = StreamableHttpService::new(move || Ok(handlers.handler()), made, settings);
        Self { service, plain, sessions, unused: UnusedSessions::default(), strangers, carried, end }
    }

    /// Answers a POST.
    async fn post(
        self: Arc<Self>,
        mut request: Request,
        limits: &LimitSettings,
        away: Option<ForwardTarget<'_>>,
    ) -> Response {
        // A client that accepts anything accepts the types that the specification wants named.
        if request.headers().get(ACCEPT).is_none_or(|accept| accept == "*/*") {
            let both = HeaderValue::from_static("application/json, text/event-stream");
            request.headers_mut().insert(ACCEPT, both);
        }
        let (mut parts, body, message) = match within_bounds(request, limits).await {
            Ok(bounded) => bounded,
            Err(refusal) => return refusal,
        };
        if let Some(away) = away
            && let Some(response) = away.answer(&self, &mut parts, body.clone(), message.as_ref()).await
        {
            return response;
        }
        let opening = match self.opening(&mut parts, message.as_ref()) {
            Ok(opening) => opening,
            Err(full) => {
                let id = message.as_ref().and_then(Message::id_text);
                return no_session(id.as_deref(), full);
            }
        };
        let (request, message) = light(parts, body, message).await;
        let is_known = self.plain.knows(request.headers());
        // Host and Origin count here as well; a request with other headers goes to rmcp only.
        if let Some(message) = message.as_ref().filter(|_| is_known) {
            self.plain.cancel(request.headers(), message);
            if let Some(call) = self.plain.begin(&request, message) {
                return call.answer(self, request).await;
            }
        }
        let head = (!is_known).then(|| plain_calls::judged(request.headers()));
        let response = Box::pin(self.service.handle(request)).await.map(Body::new);
        if let Some(head) = head.filter(|_| response.status().is_success()) {
            self.plain.learn(head);
        }
        if let Some((account, place)) = opening
            && let Some(id) = plain_calls::session_id(response.headers())
        {
            self.unused.opened(id, account, &place);
        }
        response
    }

    /// Takes a place for the session that a request opens, and puts it beside the request; the oldest unused session may have to
    /// end for it. Notes that any other request's session is in use.
    fn opening(
        self: &Arc<Self>,
        parts: &mut Parts,
        message: Option<&Message>,
    ) -> Result<Option<(Arc<Account>, SessionPlace)>, QuotaExceeded> {
        let request = message.filter(|message| message.kind() == MessageKind::Request);
        if let Some(session) = plain_calls::session_id(&parts.headers) {
            if message.is_none() || request.is_some() {
                self.unused.used(session);
            }
            return Ok(None);
        }
        if request.is_none_or(|request| request.method().as_deref() != Some("initialize")) {
            return Ok(None);
        }
        let account =
            parts.extensions.get().map_or(&self.strangers, |RequestAccount(account)| account).clone();
        let (place, ended) = self.unused.place(&account)?;
        if let Some(ended) = ended {
            tracing::debug!("an unused session over HTTP makes room for a new one");
            let door = self.clone();
            tokio::spawn(async move { door.end_session(&ended).await });
        }
        parts.extensions.insert(place.clone());
        Ok(Some((account, place)))
    }

    async fn end_session(&self, id: &str) {
        let _ = self.sessions.close_session(&SessionId::from(id)).await;
        if let Some(carried) = &self.carried
            && let Err(error) = carried.delete(id).await
        {
            tracing::debug!(%error, "the record of an ended session expires later");
        }
    }
}

/// Returns the refusal of a new session.
fn no_session(id: Option<&str>, full: QuotaExceeded) -> Response {
    let fault = Fault::from(full);
    let error = json!({ "code": RATE_LIMITED.0, "message": fault.message, "data": fault.to_value() });
    let error = Message::failure_of(id.unwrap_or("null"), error.to_string().as_bytes());
    let mut response = in_json(StatusCode::SERVICE_UNAVAILABLE, error);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(RETRY_SESSION.as_secs()));
    response
}

fn router(doors: Arc<Doors>) -> Router {
    let plain = async |State(doors): State<Arc<Doors>>, request: Request| doors.enter(None, request).await;
    let named = async |State(doors): State<Arc<Doors>>, Path(name): Path<String>, request: Request| {
        doors.enter(Some(&name), request).await
    };
    Router::new()
        .route("/mcp", any(plain))
        .route("/mcp/{profile}", any(named))
        .with_state(doors)
        .layer(axum::middleware::map_response(async |response: Response| unwrap(readable(response).await)))
}

/// Keeps a request's session here as long as the request holds it.
#[derive(Clone)]
struct SessionGuard(#[expect(dead_code, reason = "it is only to be dropped")] Arc<()>);

/// The data for forwarding a request to its replica.
struct ForwardTarget<'a> {
    cluster: &'a Arc<Cluster>,
    hosts: &'a [String],
    authorization: Option<HeaderValue>,
    /// Whether another replica has forwarded the request here: then it goes no further.
    marked: bool,
}

impl ForwardTarget<'_> {
    /// Forwards a request that belongs to another replica. `None`: this replica answers.
    async fn answer(
        &self,
        door: &Door,
        parts: &mut Parts,
        body: Bytes,
        message: Option<&Message>,
    ) -> Option<Response> {
        let session = plain_calls::session_id(&parts.headers);
        if let Some(held) = session.and_then(|session| door.carried.as_ref()?.hold(session)) {
            parts.extensions.insert(SessionGuard(held));
            return None;
        }
        if self.marked {
            // Its session has ended or moved on, unless nobody holds it.
            return match self.cluster.take_over(session?).await {
                Ok(true) => None,
                _ => Some(elsewhere::misdirected()),
            };
        }
        if !elsewhere::is_of_mcp(&parts.method)
            || !is_allowed_host(&parts.headers, &parts.extensions, self.hosts)
        {
            return None;
        }
        let request = BufferedRequest { parts, authorization: self.authorization.as_ref(), body, message };
        match session {
            Some(session) => elsewhere::of_session(self.cluster, session, request).await,
            None => elsewhere::of_handle(self.cluster, request).await,
        }
    }
}

/// Returns the head and the complete body of a request, if its message is within the limits; otherwise the refusal. Also
/// returns the message, unless it is not JSON.
pub(super) async fn within_bounds(
    request: Request,
    settings: &LimitSettings,
) -> Result<(Parts, Bytes, Option<Message>), Response> {
    let limits = settings.messages();
    let (parts, body) = request.into_parts();
    let body =
        match timeout(settings.body_timeout, Limited::new(body, limits.of_client.bytes).collect()).await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(error)) if error.is::<LengthLimitError>() => {
                let fault = MessageFault::TooLong(limits.of_client.bytes);
                return Err(refusal(StatusCode::PAYLOAD_TOO_LARGE, None, fault.of_request()));
            }
            Ok(Err(error)) => {
                let what = (-32700, format!("Parse error: the body ended early: {error}"));
                return Err(refusal(StatusCode::BAD_REQUEST, None, what));
            }
            Err(_) => {
                let limit = humantime::format_duration(settings.body_timeout);
                let what = (-32700, format!("Parse error: the body did not arrive within {limit}"));
                return Err(refusal(StatusCode::REQUEST_TIMEOUT, None, what));
            }
        };
    let text = body.clone();
    let scan = move || ScannedMessage::of(text, limits.of_client.values);
    let (scanned, _) = off_thread(Weight::of(body.len()), scan).await;
    let message = match scanned.within(|start| of_client(start, &limits)) {
        Ok(message) => message,
        // rmcp reports the error for a body that is not JSON.
        Err(refused) if refused.fault.is_syntax() => {
            return Ok((parts, body, None));
        }
        Err(RefusedMessage { head, fault, .. }) => {
            return Err(refusal(StatusCode::BAD_REQUEST, head.id.as_deref(), fault.of_request()));
        }
    };
    if message.kind() == MessageKind::Request
        && message.id().is_none()
        && let Some(id) = message.id_text()
    {
        let what = "Invalid Request: the id is neither a string nor a 64-bit number".to_string();
        return Err(refusal(StatusCode::BAD_REQUEST, Some(&id), (-32600, what)));
    }
    Ok((parts, body, Some(message)))
}

/// Returns a request for rmcp, and its message unless that is large: then a call's arguments are attached separately.
async fn light(parts: Parts, body: Bytes, message: Option<Message>) -> (Request, Option<Message>) {
    let Some(message) = message else { return (Request::from_parts(parts, Body::from(body)), None) };
    let weight = message.weight();
    if !weight.is_large() {
        return (Request::from_parts(parts, Body::from(body)), Some(message));
    }
    let (held, _) = off_thread(weight, move || HeldArguments::split(&message)).await;
    let request = match held {
        Some((held, light)) => {
            let mut request = Request::from_parts(parts, Body::from(light));
            held.go_with(&mut request);
            request
        }
        None => Request::from_parts(parts, Body::from(body)),
    };
    (request, None)
}

/// Returns a JSON-RPC error as an HTTP response.
fn refusal(status: StatusCode, id: Option<&str>, (code, message): (i32, String)) -> Response {
    in_json(status, Message::failure(id.unwrap_or("null"), code, &message))
}

fn in_json(status: StatusCode, body: Bytes) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Converts the response to a body that is not JSON into a JSON-RPC error, as the specification requires; rmcp answers with
/// text. A session whose record is unreadable may be back shortly.
async fn readable(response: Response) -> Response {
    let told = [StatusCode::UNSUPPORTED_MEDIA_TYPE, StatusCode::INTERNAL_SERVER_ERROR];
    if !told.contains(&response.status()) || response.extensions().get::<ReplicaAnswer>().is_some() {
        return response;
    }
    let (parts, body) = response.into_parts();
    let body = axum::body::to_bytes(body, 16 << 10).await.unwrap_or_default();
    if is_unrestored(parts.status, &body) {
        tracing::debug!(said = %String::from_utf8_lossy(&body), "a session of another replica was not taken over");
        return elsewhere::unavailable("the record of the session cannot be read now");
    }
    if !is_unreadable_body(parts.status, &body) {
        return Response::from_parts(parts, Body::from(body));
    }
    let message = format!("Parse error: {}", String::from_utf8_lossy(&body));
    refusal(StatusCode::BAD_REQUEST, None, (-32700, message))
}

/// Unwraps verbatim results in an event stream.
fn unwrap(response: Response) -> Response {
    let events = response
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
    // Another replica's answer is already unwrapped.
    if !events || response.extensions().get::<ReplicaAnswer>().is_some() {
        return response;
    }
    response.map(|body| Body::new(body.map_frame(|frame| frame.map_data(without_carrier))))
}
