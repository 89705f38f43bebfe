//! Streamable HTTP at `/mcp`, and at `/mcp/PROFILE` for each currently configured profile.

use std::{collections::HashMap, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context;
use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Path, Request, State},
    middleware::Next,
    response::Response,
    routing::{any, get},
};
use futures::StreamExt;
use http::{
    HeaderMap, HeaderValue, Method, StatusCode, Uri, Version,
    header::{ACCESS_CONTROL_ALLOW_ORIGIN, AUTHORIZATION, CONNECTION},
    request::Parts,
};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use nonet_api::status::ServeMode;
use nonet_auth::metadata::{self, WELL_KNOWN};
use nonet_base::clock::{system_time, unix_ms};
use nonet_config::{Config, LimitSettings};
use nonet_core::Gateway;
use nonet_parts::{
    cluster::{Cluster, own_address},
    quotas::AccountHolder,
};
use nonet_peer::{
    headers::{self, AllowedSites},
    lines::of_client,
};
use nonet_store::{
    Replica,
    doors::{self, DoorPort},
};
use nonet_wire::{Message, MessageFault, MessageKind, RefusedMessage, ScannedMessage, Weight, off_thread};
use parking_lot::Mutex;
use tokio::{
    net::TcpListener,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    RequestAccount, RequestPerson,
    access::{self, Access, AccessDenied, Entrance, PeerIdentity},
    door::Door,
    elsewhere::{self, BufferedRequest},
    listen::{self, InboundConnection, Site},
    offer_page, page, person_of, relays,
};

/// How long open requests may take to end after the gateway is asked to stop.
const GRACE: Duration = Duration::from_secs(2);

/// The minimum time for which a stopping replica keeps answering: by then all others have checked who runs,
/// and send it nothing more.
const LINGER: Duration = Duration::from_secs(4);

/// How long, and for how many bytes, the rest of a body that is too large is read.
const DISCARDING: Duration = Duration::from_secs(1);
const MOST_DISCARDED: usize = 32 << 20;

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
    let config = gateway.servers.config();
    anyhow::ensure!(
        is_open_only_where_wanted(&config, options.address),
        "{} is an address that others may reach, and {} has no tokens: whoever reaches it could run every tool. List `tokens` in \
         [gateway] or in a profile, use an address such as 127.0.0.1:8931, or set `allow_without_tokens = true` in [gateway]",
        options.address,
        config.file.display()
    );
    if options.profile.is_some() && config.auth.as_ref().is_some_and(|auth| auth.sorts_people) {
        tracing::warn!(
            "--profile is not for people who sign in: their claims, scopes, and `profile` in [auth] choose theirs"
        );
    }
    let entrance = Arc::new(Entrance::new(&gateway));
    let token_file = token_file(&config, &entrance)?;
    let listener = TcpListener::bind(options.address)
        .await
        .map_err(|error| anyhow::anyhow!("cannot listen on {}: {error}", options.address))?;
    let address = listener.local_addr()?;
    let _port = take_port(&gateway, address);
    let reached = gateway.keeping.cluster.as_ref().map(|cluster| reached_at(&config, cluster, address));
    let ending = CancellationToken::new();
    // Only for this machine's user.
    let shown = gateway.servers.config().gateway.page && address.ip().is_loopback();
    let token = shown.then(|| uuid::Uuid::new_v4().simple().to_string());
    let link = token.as_ref().map(|token| page::link(address, token));
    if token.is_some() {
        gateway.observing.calls.switch_on();
    }
    let mut hosts = allowed_hosts(address, &gateway.servers.config().gateway.allowed_hosts);
    // The host by which clients reach it, whatever stands in front.
    let public = gateway.servers.config().gateway.public_url.clone();
    hosts.extend(public.and_then(|url| Some(url.parse::<Uri>().ok()?.host()?.to_string())));
    // The host by which the other replicas reach this one.
    hosts.extend(
        reached.as_ref().and_then(|reached| Some(reached.parse::<Uri>().ok()?.authority()?.to_string())),
    );
    let mut origins =
        vec!["http://localhost:*".to_string(), "http://127.0.0.1:*".into(), "http://[::1]:*".into()];
    origins.extend(gateway.servers.config().gateway.allowed_origins.iter().cloned());
    let readers = &gateway.servers.config().gateway.allowed_origins;
    let sites = Arc::new(AllowedSites::new(&hosts, &origins).with_readers(readers));
    let doors = Arc::new(Doors::new(&gateway, &options, address, sites.clone(), entrance.clone(), &ending));
    tokio::spawn(doors.clone().follow());
    gateway.asking.serves_at(&format!("http://{address}"), token.is_some());
    offer_page(&gateway, ServeMode::Http);
    let beside = page::router(&gateway, entrance, token).layer(axum::middleware::from_fn(
        move |request: Request, next: Next| {
            let allowed = is_allowed_host(&request, &sites);
            async move { if allowed { next.run(request).await } else { wrong_host() } }
        },
    ));
    let router = router(doors.clone()).merge(relays::router(&gateway)).merge(beside);
    if let (Some(cluster), Some(address)) = (&gateway.keeping.cluster, reached) {
        cluster.replicas().join(this_replica(&config, cluster, address)).await;
    }
    gateway.connect();
    gateway.errands.keep_time();
    ready(ServeAddress { address, page: link, token_file });
    let (end, leaving) = (ending.clone(), doors.clone());
    tokio::spawn(async move {
        stop.await;
        leaving.leave().await;
        end.cancel();
    });
    let settings = gateway.clone();
    let config = move || settings.servers.config();
    let cluster = gateway.keeping.cluster.clone();
    let is_replica = move |from| cluster.as_ref().is_some_and(|cluster| cluster.has_replica_at(from));
    let site = Paths { doors, router };
    tokio::select! {
        () = listen::serve(listener, site, config, is_replica, ending.clone()) => {}
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
    let taken = doors::take_port(gateway.keeping.folder.as_deref()?, address.port());
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

/// Returns the hosts by which this address may be reached. Another site's page must not reach it through a
/// name of its own (DNS rebinding).
pub(super) fn allowed_hosts(address: SocketAddr, more: &[String]) -> Vec<String> {
    let mut hosts = vec!["localhost".to_string(), "127.0.0.1".into(), "::1".into(), "[::1]".into()];
    if !address.ip().is_unspecified() {
        hosts.push(address.ip().to_string());
    }
    hosts.extend(more.iter().cloned());
    hosts
}

/// Returns whether a request names a host that it may name.
pub(super) fn is_allowed_host(request: &Request, sites: &AllowedSites) -> bool {
    sites.is_named(request.headers(), InboundConnection::local(request.extensions()))
}

pub(super) fn wrong_host() -> Response {
    let why = "this host name is not allowed: add it to `allowed_hosts` of [gateway]\n";
    let mut response = Response::new(Body::from(why));
    *response.status_mut() = StatusCode::FORBIDDEN;
    response
}

/// Returns whether an address that other machines can reach is served only as the configuration says: the
/// token of this machine's user is for this machine.
fn is_open_only_where_wanted(config: &Config, address: SocketAddr) -> bool {
    config.guarded || config.gateway.allow_without_tokens || address.ip().to_canonical().is_loopback()
}

/// The services of all profiles, each created at its first request. The current configuration decides which
/// may exist.
struct Doors {
    gateway: Arc<Gateway>,
    address: SocketAddr,
    /// The profile of clients at `/mcp`.
    default: Option<String>,
    sites: Arc<AllowedSites>,
    entrance: Arc<Entrance>,
    ending: CancellationToken,
    open: Mutex<HashMap<Option<String>, Arc<Door>>>,
}

impl Doors {
    fn new(
        gateway: &Arc<Gateway>,
        options: &HttpOptions,
        address: SocketAddr,
        sites: Arc<AllowedSites>,
        entrance: Arc<Entrance>,
        ending: &CancellationToken,
    ) -> Self {
        let (gateway, default, ending) = (gateway.clone(), options.profile.clone(), ending.clone());
        Self { gateway, address, default, sites, entrance, ending, open: Mutex::default() }
    }

    /// Answers a request to `/mcp`, or to `/mcp/NAME`.
    async fn enter(&self, named: Option<&str>, request: Request) -> Response {
        let is_http1 = request.version() <= Version::HTTP_11;
        let reader = self.sites.reader(request.headers());
        let asked = reader.as_ref().and_then(|_| headers::preflight(request.method(), request.headers()));
        let mut response = match asked {
            Some(response) => response,
            None => self.answer(named, request).await,
        };
        if let Some(origin) = reader {
            headers::let_read(&mut response, origin);
        }
        // Keeps clients from sending a request just when the connection is closed.
        let leaving =
            || self.gateway.keeping.cluster.as_ref().is_some_and(|cluster| cluster.replicas().is_leaving());
        if is_http1 && leaving() {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    async fn answer(&self, named: Option<&str>, mut request: Request) -> Response {
        let beside = (request.headers(), request.extensions());
        let beside = self.entrance.beside(&self.gateway.servers.config(), beside, named).await;
        let (config, door, access) = match self.door(named, request.headers(), &beside) {
            Ok(entered) => entered,
            Err(refusal) => {
                tracing::debug!(?refusal, "a request over HTTP was refused");
                return refusal.response();
            }
        };
        if let Some(refusal) = listen::refusal_of_proven(request.extensions()) {
            return refusal;
        }
        if let Some(refusal) = self.sites.refusal(request.uri(), request.headers()) {
            return refusal;
        }
        let marked = match &self.gateway.keeping.cluster {
            Some(cluster) => cluster.is_marked(request.headers_mut()),
            None => false,
        };
        if let Some(token) = access.token {
            let holder = AccountHolder::Token(token.token);
            let account = self.gateway.sessions.account_of(access.profile.as_deref(), holder);
            request.extensions_mut().insert(RequestAccount(account));
            // The sender remains known by the token's place in the file.
            request.extensions_mut().insert(token);
        }
        if let Some(person) = access.person {
            let holder = AccountHolder::Person(person.key.clone());
            let account = self.gateway.sessions.account_of(access.profile.as_deref(), holder);
            request.extensions_mut().insert(RequestAccount(account));
            request.extensions_mut().insert(RequestPerson(person));
        }
        // The token has done its job and must not go any further: not into session data, nor into a log.
        let authorization = request.headers_mut().remove(AUTHORIZATION);
        let away = self.gateway.keeping.cluster.as_ref().map(|cluster| ForwardTarget {
            cluster,
            authorization,
            marked,
        });
        let is_post = request.method() == Method::POST;
        // What a person listens to ends with their token.
        let ends_at = person_of(request.extensions()).map(|person| person.expires_at).filter(|_| !is_post);
        let (mut parts, message) = match is_post {
            true => {
                if let Some(refusal) = headers::unsuitable_post(request.headers()) {
                    return refusal;
                }
                match within_bounds(request, &config.limits).await {
                    Ok((parts, message)) => (parts, Some(message)),
                    Err(refusal) => return refusal,
                }
            }
            false => (request.into_parts().0, None),
        };
        if let Some(away) = away
            && let Some(response) = Box::pin(away.answer(&door, &mut parts, message.as_ref())).await
        {
            return response;
        }
        match message {
            Some(message) => door.post(parts, message).await,
            None => until(ends_at, Box::pin(door.answer(parts)).await),
        }
    }

    /// Answers a request for the metadata by which clients find out where to sign in. Anybody may read it, from
    /// any site. It is there for every name of a profile, so that it does not say which exist.
    fn metadata(&self, named: Option<&str>, request: &Request) -> Response {
        if !is_allowed_host(request, &self.sites) {
            return wrong_host();
        }
        let config = self.gateway.servers.config();
        let Some(auth) = &config.auth else {
            return headers::refused(StatusCode::NOT_FOUND, "Not Found: no sign-in is needed here");
        };
        let document = metadata::document(&config, auth, named);
        let mut response = headers::in_json(StatusCode::OK, document.to_string());
        response.headers_mut().insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
        response
    }

    /// Returns the door that admits a request.
    fn door(
        &self,
        named: Option<&str>,
        headers: &HeaderMap,
        beside: &PeerIdentity,
    ) -> Result<(Arc<Config>, Arc<Door>, Access), AccessDenied> {
        let (config, access, mut open) = loop {
            let config = self.gateway.servers.config();
            if !is_open_only_where_wanted(&config, self.address) {
                return Err(AccessDenied::NoToken(access::TokenKind::OfFile));
            }
            let access = access::access(&config, headers, beside, named, self.default.as_deref())?;
            let open = self.open.lock();
            // So that a door closed by `close` is not reopened by an older configuration.
            if Arc::ptr_eq(&config, &self.gateway.servers.config()) {
                break (config, access, open);
            }
        };
        let door = match open.get(&access.profile) {
            Some(door) => door.clone(),
            None => {
                let door = Door::new(&self.gateway, access.profile.clone(), &self.ending);
                open.insert(access.profile.clone(), door.clone());
                door
            }
        };
        Ok((config, door, access))
    }

    /// Ends the sessions of profiles that are no longer configured.
    fn close(&self) {
        let mut open = self.open.lock();
        let config = self.gateway.servers.config();
        open.retain(|profile, door| {
            let stays = profile.as_ref().is_none_or(|name| config.profiles.contains_key(name));
            if !stays {
                door.end.cancel();
            }
            stays
        });
    }

    /// Hands everything over to the other replicas, if there are any: announces the stop, lets calls in
    /// flight end, and passes sessions on.
    async fn leave(&self) {
        let Some(cluster) = &self.gateway.keeping.cluster else { return };
        let limit =
            self.gateway.servers.config().cluster.as_ref().map_or(Duration::ZERO, |cluster| cluster.drain);
        let began = Instant::now();
        let until = began + limit;
        cluster.replicas().is_about_to_leave().await;
        let doors: Vec<_> = self.open.lock().values().cloned().collect();
        let sessions = async {
            for door in doors {
                if let Some(carried) = &door.carried {
                    carried.hand_over(until, |id| door.give_up(id)).await;
                }
            }
        };
        let programs = tokio::time::timeout_at(until, self.gateway.servers.hand_programs_over(cluster));
        let _ = futures::join!(sessions, programs);
        while self.gateway.servers.calls_in_flight() > 0 && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        // Load balancers must notice, and keep-alive connections must end with an answer.
        tokio::time::sleep_until(until.min(began + LINGER)).await;
    }

    /// Calls `close` after each change of the configuration.
    async fn follow(self: Arc<Self>) {
        let mut reloads = self.gateway.servers.reloads();
        while let Some(Ok(())) = self.ending.run_until_cancelled(reloads.changed()).await {
            self.close();
            if let Some(cluster) = &self.gateway.keeping.cluster {
                cluster.replicas().has_config(self.gateway.servers.config().digest.clone()).await;
            }
        }
    }
}

fn router(doors: Arc<Doors>) -> Router {
    let plain = async |State(doors): State<Arc<Doors>>, request: Request| doors.enter(None, request).await;
    let named = async |State(doors): State<Arc<Doors>>, Path(name): Path<String>, request: Request| {
        doors.enter(Some(&name), request).await
    };
    let about = async |State(doors): State<Arc<Doors>>, request: Request| doors.metadata(None, &request);
    let about_named = async |State(doors): State<Arc<Doors>>, Path(name): Path<String>, request: Request| {
        doors.metadata(Some(&name), &request)
    };
    let metadata = |path: &str| format!("{WELL_KNOWN}{path}");
    Router::new()
        .route("/mcp", any(plain))
        .route("/mcp/{profile}", any(named))
        .route(&metadata(""), get(about))
        .route(&metadata("/mcp"), get(about))
        .route(&metadata("/mcp/{profile}"), get(about_named))
        .with_state(doors)
}

/// What answers requests: messages to `/mcp` go to their door at once, and all others by their paths.
#[derive(Clone)]
struct Paths {
    doors: Arc<Doors>,
    router: Router,
}

impl Site for Paths {
    async fn answer(self, request: Request) -> Response {
        // Over HTTP/2, the router says the length of empty bodies too.
        let is_message = request.method() == Method::POST
            && request.version() <= Version::HTTP_11
            && request.uri().path() == "/mcp";
        match is_message {
            true => Box::pin(self.doors.enter(None, request)).await,
            false => self.router.answer(request).await,
        }
    }
}

/// Keeps a request's session here as long as the request holds it.
#[derive(Clone)]
struct SessionGuard(#[expect(dead_code, reason = "it is only to be dropped")] Arc<()>);

/// The data for forwarding a request to its replica.
struct ForwardTarget<'a> {
    cluster: &'a Arc<Cluster>,
    authorization: Option<HeaderValue>,
    /// Whether another replica has forwarded the request here: then it goes no further.
    marked: bool,
}

impl ForwardTarget<'_> {
    /// Forwards a request that belongs to another replica. `None`: this replica answers.
    async fn answer(&self, door: &Door, parts: &mut Parts, message: Option<&Message>) -> Option<Response> {
        let session = headers::session_id(&parts.headers);
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
        if !elsewhere::is_of_mcp(&parts.method) {
            return None;
        }
        let body = message.map_or_else(Bytes::new, |message| message.bytes().clone());
        let request = BufferedRequest { parts, authorization: self.authorization.as_ref(), body, message };
        match session {
            Some(session) => elsewhere::of_session(self.cluster, session, request).await,
            None => elsewhere::of_handle(self.cluster, request).await,
        }
    }
}

/// Returns the time that is left until a moment, in seconds since 1970.
pub(super) fn left_until(seconds: u64) -> Duration {
    Duration::from_secs(seconds).saturating_sub(Duration::from_millis(unix_ms(system_time())))
}

/// Ends the stream of an answer at a time, in seconds since 1970.
fn until(ends_at: Option<u64>, response: Response) -> Response {
    let Some(ends_at) = ends_at.filter(|at| *at > 0) else { return response };
    let left = left_until(ends_at);
    response.map(|body| Body::from_stream(body.into_data_stream().take_until(tokio::time::sleep(left))))
}

/// Reads the rest of a body that is too large, within bounds: a client that still writes when the connection
/// is closed might not get to read the refusal.
async fn discard(mut body: Body) {
    let discarding = async {
        let mut bytes = 0;
        while let (Some(Ok(frame)), true) = (body.frame().await, bytes < MOST_DISCARDED) {
            bytes += frame.data_ref().map_or(0, Bytes::len);
        }
    };
    let _ = timeout(DISCARDING, discarding).await;
}

/// Returns the head and the message of a request, if it is within the limits; otherwise the refusal.
pub(super) async fn within_bounds(
    request: Request,
    settings: &LimitSettings,
) -> Result<(Parts, Message), Response> {
    let limits = settings.messages();
    let (parts, mut whole) = request.into_parts();
    let reading = Limited::new(&mut whole, limits.of_client.bytes).collect();
    let body = match timeout(settings.request_timeout, reading).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            let fault = MessageFault::TooLong(limits.of_client.bytes);
            discard(whole).await;
            return Err(refusal(StatusCode::PAYLOAD_TOO_LARGE, None, fault.of_request()));
        }
        Ok(Err(error)) => {
            let what = (-32700, format!("Parse error: the body ended early: {error}"));
            return Err(refusal(StatusCode::BAD_REQUEST, None, what));
        }
        Err(_) => {
            let limit = humantime::format_duration(settings.request_timeout);
            let what = (-32700, format!("Parse error: the body did not arrive within {limit}"));
            return Err(refusal(StatusCode::REQUEST_TIMEOUT, None, what));
        }
    };
    let weight = Weight::of(body.len());
    let (scanned, _) = off_thread(weight, move || ScannedMessage::of(body, limits.of_client.values)).await;
    let message = match scanned.within(|start| of_client(start, &limits)) {
        Ok(message) => message,
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
    Ok((parts, message))
}

/// Returns a JSON-RPC error as an HTTP response.
fn refusal(status: StatusCode, id: Option<&str>, (code, message): (i32, String)) -> Response {
    headers::in_json(status, Message::failure(id.unwrap_or("null"), code, &message))
}
