//! Connections over HTTP: limits their number, and the time that a client may take to send its request.
//! Supports HTTP/2 without TLS for clients that begin with it ("prior knowledge", RFC 9113, section 3.3), as
//! proxies do.
//!
//! A connection that has shown no valid token yet counts apart. There are few of those, and a new one takes
//! the place of the oldest, so that connections that nobody uses keep out no client that has a token.

use std::{
    collections::{BTreeMap, HashMap},
    convert::Infallible,
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{Router, body::Body, response::Response};
use http::{
    Extensions, HeaderMap, HeaderValue, Request, StatusCode, Version,
    header::{CONNECTION, CONTENT_TYPE, HOST, RETRY_AFTER},
};
use http_body_util::BodyExt;
use hyper::{
    body::Incoming,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::graceful::GracefulConnection,
};
use nonet_config::Config;
use nonet_sandbox as sandbox;
use nonet_store::doors;
use parking_lot::Mutex;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Notify, OnceCell},
    time::{Instant, sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower_service::Service;

use super::forwarded;

/// The delay before the next connection is accepted when the system has no room for one.
const NO_ROOM: Duration = Duration::from_millis(500);
/// How long a connection keeps its place without a token, whatever comes after it, from its beginning and
/// from its first request: many clients may come at once, and the gateway may be busy.
const GRACE: Duration = Duration::from_secs(1);
/// How often it is checked whether there is room.
const LOOK: Duration = Duration::from_millis(50);
/// The most connections that have not shown a valid token. Beyond them, the oldest one is closed, of the
/// address that has the most.
const UNPROVEN: usize = 128;
/// How long a new connection may send nothing.
const FIRST_BYTE: Duration = Duration::from_secs(10);
const REFUSAL: &str = "too many connections: close some, or raise `connections` in [limits]\n";

/// The preface of an HTTP/2 connection (RFC 9113, section 3.4). No HTTP/1.1 request begins with it.
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The delay before an incomplete preface is checked again.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// The maximum number of concurrent requests on an HTTP/2 connection; a client waits with further ones.
const STREAMS: u32 = 256;
/// The maximum size of a request's headers over HTTP/2, in bytes.
const HEADERS: u32 = 64 << 10;
/// How often an HTTP/2 connection is pinged, and how long the answer may take.
const PING: Duration = Duration::from_secs(30);
const PING_LIMIT: Duration = Duration::from_secs(20);

/// Who is at the other end of a connection, for requests that need no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stranger {
    /// A program of the same user, or of another machine, or nobody can say.
    Admitted,
    /// A program of another user of this machine.
    OfUser(u32),
    /// A server in a sandbox.
    Sandboxed,
    /// A program of this machine that has left.
    Gone,
}

/// A connection that a request came over.
pub(super) struct InboundConnection {
    from: SocketAddr,
    /// The address on this machine.
    local: Option<SocketAddr>,
    open: Arc<OpenConnections>,
    /// Its number among the connections without a token.
    number: u64,
    is_proven: AtomicBool,
    has_asked: AtomicBool,
    stranger: OnceCell<Stranger>,
}

impl InboundConnection {
    /// Returns the connection of a request.
    pub(super) fn of(extensions: &Extensions) -> Option<&Arc<Self>> {
        extensions.get()
    }

    /// Returns the address on this machine that a request came to.
    pub(super) fn local(extensions: &Extensions) -> Option<IpAddr> {
        Some(Self::of(extensions)?.local?.ip().to_canonical())
    }

    /// Returns who is at the other end. Asks the system once.
    pub(super) async fn stranger(&self) -> Stranger {
        let Some(to) = self.local else { return Stranger::Admitted };
        let from = self.from;
        let look = move || match doors::peer(from, to) {
            doors::Peer::Unknown => Stranger::Admitted,
            doors::Peer::Own { socket } if sandbox::holds_socket(socket) => Stranger::Sandboxed,
            doors::Peer::Own { .. } => Stranger::Admitted,
            doors::Peer::OfUser(user) => Stranger::OfUser(user),
            doors::Peer::Gone => Stranger::Gone,
        };
        let looked = async || tokio::task::spawn_blocking(look).await.unwrap_or(Stranger::Gone);
        *self.stranger.get_or_init(looked).await
    }
}

/// Counts a request's connection among those that have shown a valid token. Returns the refusal if there are
/// too many of them.
pub(super) fn refusal_of_proven(extensions: &Extensions) -> Option<Response> {
    let connection = InboundConnection::of(extensions)?;
    let fits = connection.is_proven.load(Ordering::Acquire) || connection.open.prove(connection);
    (!fits).then(too_many)
}

fn too_many() -> Response {
    let mut response = Response::new(Body::from(REFUSAL));
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// What answers the requests of all connections.
pub(super) trait Site: Clone + Send + Sync + 'static {
    /// Answers a request.
    fn answer(self, request: Request<Body>) -> impl Future<Output = Response> + Send;
}

impl Site for Router {
    async fn answer(mut self, request: Request<Body>) -> Response {
        self.call(request).await.unwrap_or_else(|never| match never {})
    }
}

/// Answers requests until `ending`, then waits for the open ones. `config` returns the current configuration.
/// Other replicas' addresses have no limit of their own.
pub(super) async fn serve(
    listener: TcpListener,
    site: impl Site,
    config: impl Fn() -> Arc<Config> + Send + Sync + 'static,
    is_replica: impl Fn(IpAddr) -> bool + Send + Sync + 'static,
    ending: CancellationToken,
) {
    let open = Arc::new(OpenConnections::new(config, is_replica));
    let tasks = TaskTracker::new();
    while let Some(accepted) = ending.run_until_cancelled(listener.accept()).await {
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) if is_of_one_client(&error) => continue,
            Err(error) => {
                // Most likely too many open files: other clients may leave.
                tracing::warn!(%error, "a connection was not accepted");
                sleep(NO_ROOM).await;
                continue;
            }
        };
        // Meanwhile further clients wait in the system's queue.
        let Some((number, end)) = ending.run_until_cancelled(open.enter(from.ip())).await else { break };
        let local = stream.local_addr().ok();
        let connection = Arc::new(InboundConnection {
            from,
            local,
            open: open.clone(),
            number,
            is_proven: AtomicBool::default(),
            has_asked: AtomicBool::default(),
            stranger: OnceCell::new(),
        });
        let counted = CountedConnection(connection.clone());
        let served = answer(stream, site.clone(), connection, ending.clone());
        tasks.spawn(async move {
            end.run_until_cancelled(served).await;
            drop(counted);
        });
    }
    tasks.close();
    tasks.wait().await;
}

/// Returns whether the failure concerns one connection only, so that the next may succeed.
fn is_of_one_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Answers the requests of one connection.
async fn answer(
    stream: TcpStream,
    site: impl Site,
    connection: Arc<InboundConnection>,
    ending: CancellationToken,
) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "no TCP_NODELAY");
    }
    connection.open.renew(connection.number);
    let config = (connection.open.config)();
    let request_timeout = config.limits.request_timeout;
    drop(config);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(connection.clone());
        name_host(&mut request);
        if !connection.has_asked.swap(true, Ordering::Relaxed) {
            connection.open.renew(connection.number);
        }
        let place = connection.open.request(&connection, request.headers());
        let answering = site.clone().answer(request.map(Body::new));
        async move {
            Ok::<_, Infallible>(match place {
                Some(None) => answering.await,
                Some(Some(place)) => until_answered(answering.await, place),
                None => too_many(),
            })
        }
    });
    let begun = tokio::select! {
        begun = timeout(FIRST_BYTE.min(request_timeout), is_http2(&stream)) => begun,
        () = ending.cancelled() => return,
    };
    let ended = match begun {
        Ok(Ok(true)) => {
            let mut http = http2::Builder::new(TokioExecutor::new());
            http.timer(TokioTimer::new())
                .max_concurrent_streams(STREAMS)
                .max_header_list_size(HEADERS)
                .keep_alive_interval(PING)
                .keep_alive_timeout(PING_LIMIT);
            until_over(http.serve_connection(TokioIo::new(stream), service), &ending).await
        }
        Ok(Ok(false)) => {
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(request_timeout);
            until_over(http.serve_connection(TokioIo::new(stream), service), &ending).await
        }
        Ok(Err(error)) => {
            tracing::debug!(%error, "a connection was lost");
            return;
        }
        Err(_) => {
            tracing::debug!("a client connected but sent nothing");
            return;
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection was lost");
    }
}

/// Answers on a connection until its end; after `ending`, only what is open.
async fn until_over<C: GracefulConnection>(
    connection: C,
    ending: &CancellationToken,
) -> Result<(), C::Error> {
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => ended,
        () = ending.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    }
}

/// Returns whether a connection begins with the HTTP/2 preface. Consumes nothing.
async fn is_http2(stream: &TcpStream) -> io::Result<bool> {
    let mut beginning = [0; HTTP2.len()];
    loop {
        let come = stream.peek(&mut beginning).await?;
        // A connection that has ended is neither.
        if come == 0 || come == HTTP2.len() || !HTTP2.starts_with(&beginning[..come]) {
            return Ok(come == HTTP2.len() && beginning == HTTP2);
        }
        sleep(LOOK_AGAIN).await;
    }
}

/// Puts an HTTP/2 request's host where HTTP/1.1 has it (RFC 9113, section 8.3.1).
fn name_host(request: &mut Request<Incoming>) {
    if request.version() == Version::HTTP_2
        && let Some(authority) = request.uri().authority()
        && let Ok(host) = HeaderValue::from_str(authority.as_str())
    {
        request.headers_mut().insert(HOST, host);
    }
}

/// Returns a response that keeps its request's place until its end.
fn until_answered(response: Response, place: RequestPlace) -> Response {
    response.map(|body| {
        Body::new(body.map_frame(move |frame| {
            let _ = &place;
            frame
        }))
    })
}

/// The open connections, by the client's address.
struct OpenConnections {
    config: Box<dyn Fn() -> Arc<Config> + Send + Sync>,
    is_replica: Box<dyn Fn(IpAddr) -> bool + Send + Sync>,
    counts: Mutex<Counts>,
    /// Notified when a connection without a token has left or has shown one.
    freed: Notify,
}

#[derive(Default)]
struct Counts {
    /// Those that have shown a valid token.
    proven: HashMap<IpAddr, usize>,
    /// The others, in the order in which they came.
    unproven: BTreeMap<u64, UnprovenConnection>,
    last: u64,
    /// The requests in flight of clients behind trusted proxies.
    requests: HashMap<IpAddr, usize>,
}

struct UnprovenConnection {
    from: IpAddr,
    /// When it began or first asked; `None` until it is looked after.
    since: Option<Instant>,
    end: CancellationToken,
}

/// A request in flight of a client behind a trusted proxy, counted until dropped.
struct RequestPlace {
    open: Arc<OpenConnections>,
    client: IpAddr,
}

impl Drop for RequestPlace {
    fn drop(&mut self) {
        leave(&mut self.open.counts.lock().requests, self.client);
    }
}

/// Counts one less at an address.
fn leave(counts: &mut HashMap<IpAddr, usize>, from: IpAddr) {
    if let Some(count) = counts.get_mut(&from) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&from);
        }
    }
}

impl Counts {
    /// Returns how many connections and requests count for an address.
    fn of(&self, from: IpAddr) -> usize {
        [&self.proven, &self.requests].iter().filter_map(|counts| counts.get(&from)).sum()
    }

    /// Returns the connection that makes room: the oldest one of the address that has the most, if its time
    /// is over.
    fn oldest(&self) -> Option<u64> {
        let mut of_address = HashMap::<IpAddr, usize>::new();
        self.unproven.values().for_each(|one| *of_address.entry(one.from).or_default() += 1);
        let (most, _) = of_address.into_iter().max_by_key(|(_, count)| *count)?;
        let is_over = |one: &UnprovenConnection| one.since.is_some_and(|since| since.elapsed() >= GRACE);
        let mut own = self.unproven.iter().filter(|(_, one)| one.from == most);
        own.find(|(_, one)| is_over(one)).map(|(number, _)| *number)
    }
}

impl OpenConnections {
    fn new(
        config: impl Fn() -> Arc<Config> + Send + Sync + 'static,
        is_replica: impl Fn(IpAddr) -> bool + Send + Sync + 'static,
    ) -> Self {
        let (config, is_replica) = (Box::new(config), Box::new(is_replica));
        Self { config, is_replica, counts: Mutex::default(), freed: Notify::new() }
    }

    /// Enters a new connection, as soon as there is room for one without a token. Returns its number, and
    /// what ends it.
    async fn enter(&self, from: IpAddr) -> (u64, CancellationToken) {
        let from = client(from);
        loop {
            {
                let mut counts = self.counts.lock();
                if counts.unproven.len() >= UNPROVEN
                    && let Some(oldest) = counts.oldest()
                    && let Some(one) = counts.unproven.remove(&oldest)
                {
                    tracing::debug!(%from, "the oldest connection without a token makes room");
                    one.end.cancel();
                }
                if counts.unproven.len() < UNPROVEN {
                    counts.last += 1;
                    let (number, end) = (counts.last, CancellationToken::new());
                    counts
                        .unproven
                        .insert(number, UnprovenConnection { from, since: None, end: end.clone() });
                    return (number, end);
                }
            }
            let _ = timeout(LOOK, self.freed.notified()).await;
        }
    }

    /// Lets a connection keep its place for a while, if it has shown no token yet.
    fn renew(&self, number: u64) {
        if let Some(one) = self.counts.lock().unproven.get_mut(&number) {
            one.since = Some(Instant::now());
        }
    }

    /// Counts a connection among those with a token. Returns false if there are too many: then it stays where
    /// it was.
    fn prove(&self, connection: &InboundConnection) -> bool {
        let (config, from) = ((self.config)(), client(connection.from.ip()));
        let mut counts = self.counts.lock();
        // Also true for a connection that has just ended, or is proven already.
        if !counts.unproven.contains_key(&connection.number) {
            return true;
        }
        let (all, own) = (counts.proven.values().sum::<usize>(), counts.of(from));
        let is_exempt =
            || is_trusted(&config, connection.from.ip()) || (self.is_replica)(connection.from.ip());
        let fits =
            all < config.limits.connections && (own < config.limits.connections_per_address() || is_exempt());
        if !fits {
            drop(counts);
            tracing::debug!(%from, all, own, "too many connections");
            return false;
        }
        *counts.proven.entry(from).or_default() += 1;
        counts.unproven.remove(&connection.number);
        connection.is_proven.store(true, Ordering::Release);
        drop(counts);
        self.freed.notify_one();
        true
    }

    /// Takes a place for a request if it comes from a client behind a trusted proxy. `None`: that client has
    /// too many.
    fn request(
        self: &Arc<Self>,
        connection: &InboundConnection,
        headers: &HeaderMap,
    ) -> Option<Option<RequestPlace>> {
        let config = (self.config)();
        if !is_trusted(&config, connection.from.ip()) {
            return Some(None);
        }
        let proxies = &config.gateway.trusted_proxies;
        let Some(named) = forwarded::client(headers, proxies) else { return Some(None) };
        let named = client(named);
        let mut counts = self.counts.lock();
        if counts.of(named) >= config.limits.connections_per_address() {
            return None;
        }
        *counts.requests.entry(named).or_default() += 1;
        Some(Some(RequestPlace { open: self.clone(), client: named }))
    }
}

fn is_trusted(config: &Config, from: IpAddr) -> bool {
    config.gateway.trusted_proxies.iter().any(|range| range.contains(from))
}

/// An open connection, counted until dropped. Requests may keep the connection itself for longer.
struct CountedConnection(Arc<InboundConnection>);

impl Drop for CountedConnection {
    fn drop(&mut self) {
        let Self(connection) = self;
        let mut counts = connection.open.counts.lock();
        if counts.unproven.remove(&connection.number).is_none()
            && connection.is_proven.load(Ordering::Acquire)
        {
            leave(&mut counts.proven, client(connection.from.ip()));
        }
        drop(counts);
        connection.open.freed.notify_one();
    }
}

/// Returns the client at an address: an IPv6 client owns a whole network.
fn client(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nonet_config::{self as config, ValueSources};

    fn open(limits: &str) -> Arc<OpenConnections> {
        let text = format!("[gateway]\ntrusted_proxies = ['10.9.0.0/16']\n[limits]\n{limits}\n");
        let loaded =
            config::parse(&text, std::path::Path::new("servers.toml"), ValueSources::NONE).expect("usable");
        let config = Arc::new(loaded.config);
        Arc::new(OpenConnections::new(move || config.clone(), |_| false))
    }

    async fn enter_with(open: &Arc<OpenConnections>, from: &str) -> (CountedConnection, CancellationToken) {
        let from = SocketAddr::new(from.parse().expect("an address"), 1);
        let (number, end) = open.enter(from.ip()).await;
        open.renew(number);
        let connection = InboundConnection {
            from,
            local: None,
            open: open.clone(),
            number,
            is_proven: AtomicBool::default(),
            has_asked: AtomicBool::default(),
            stranger: OnceCell::new(),
        };
        (CountedConnection(Arc::new(connection)), end)
    }

    async fn enter(open: &Arc<OpenConnections>, from: &str) -> CountedConnection {
        enter_with(open, from).await.0
    }

    #[tokio::test]
    async fn connections_with_a_token_are_limited_in_all_and_for_each_client() {
        let open = open("connections = 9");
        let mut held = Vec::new();
        let check = async |from: &str, expected: bool| {
            let connection = enter(&open, from).await;
            assert_eq!(open.prove(&connection.0), expected, "{from}");
            connection
        };
        for from in ["10.0.0.1", "::ffff:10.0.0.1", "10.0.0.1", "10.0.0.1", "10.0.0.1", "10.0.0.1"] {
            held.push(check(from, true).await);
        }
        check("10.0.0.1", false).await;
        check("2001:db8::1", true).await;
        held.clear();
        for _ in 0..9 {
            held.push(check("10.9.0.1", true).await);
        }
        check("10.0.0.2", false).await;
        drop(held);
        let counts = open.counts.lock();
        assert!(counts.proven.is_empty() && counts.unproven.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_connection_without_a_token_makes_room_for_a_new_one() {
        let open = open("");
        let one = enter_with(&open, "10.0.0.1").await;
        let mut many = Vec::new();
        for _ in 1..UNPROVEN {
            many.push(enter_with(&open, "10.0.0.2").await);
        }
        let began = Instant::now();
        many.push(enter_with(&open, "10.0.0.3").await);
        assert!(began.elapsed() >= GRACE, "nobody is sent away at once");
        let ended: Vec<usize> = (0..many.len()).filter(|at| many[*at].1.is_cancelled()).collect();
        assert_eq!((one.1.is_cancelled(), ended), (false, vec![0]));
    }

    #[test]
    fn requests_behind_a_trusted_proxy_count_for_their_client() {
        let open = open("connections = 6");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let (proxy, other) =
            runtime.block_on(async { (enter(&open, "10.9.0.1").await, enter(&open, "10.0.0.2").await) });
        let headers = |client: &str| {
            let value = HeaderValue::from_str(&format!("for={client}")).expect("a value");
            HeaderMap::from_iter([(http::header::FORWARDED, value)])
        };
        let taken: Vec<_> = (0..4).map(|_| open.request(&proxy.0, &headers("192.0.2.1"))).collect();
        assert!(taken.iter().all(|place| matches!(place, Some(Some(_)))));
        assert!(open.request(&proxy.0, &headers("192.0.2.1")).is_none());
        assert!(matches!(open.request(&proxy.0, &headers("192.0.2.2")), Some(Some(_))));
        assert!(matches!(open.request(&proxy.0, &HeaderMap::new()), Some(None)));
        assert!(
            matches!(open.request(&other.0, &headers("192.0.2.1")), Some(None)),
            "it is no trusted proxy"
        );
        drop(taken);
        assert!(open.counts.lock().requests.is_empty());
    }
}
