//! Connections over HTTP: limits their number, and the time that a client may take to send its request. Supports HTTP/2
//! without TLS for clients that begin with it ("prior knowledge", RFC 9113, section 3.3), as proxies do.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
    time::Duration,
};

use axum::Router;
use http::{HeaderValue, Request, Version, header::HOST};
use hyper::{
    body::Incoming,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::graceful::GracefulConnection,
};
use parking_lot::Mutex;
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower_service::Service;

use crate::config::LimitSettings;

/// The delay before the next connection is accepted when the system has no room for one.
const NO_ROOM: Duration = Duration::from_millis(500);
/// How many refused connections get an answer at a time; further ones are closed.
const REFUSALS: usize = 32;
/// How long a refused client may take to read its answer.
const REFUSAL_LIMIT: Duration = Duration::from_secs(1);
const REFUSAL: &str = "HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain\r\nretry-after: 1\r\n\
                       connection: close\r\ncontent-length: 70\r\n\r\n\
                       too many connections: close some, or raise `connections` in [limits]\r\n";

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

/// The address on this machine that a request came to.
#[derive(Clone, Copy, Debug)]
pub(super) struct LocalAddress(pub IpAddr);

/// Answers requests until `ending`, then waits for the open ones. `limits` returns the current limits. Other replicas'
/// addresses have no limit of their own.
pub(super) async fn serve(
    listener: TcpListener,
    router: Router,
    limits: impl Fn() -> LimitSettings,
    is_replica: impl Fn(IpAddr) -> bool,
    ending: CancellationToken,
) {
    let open = Arc::new(OpenConnections::default());
    let (tasks, refusals) = (TaskTracker::new(), Arc::new(Semaphore::new(REFUSALS)));
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
        let mut limits = limits();
        let mut place = open.enter(from.ip(), &limits);
        if place.is_none() && is_replica(from.ip()) {
            limits.connections_per_address = limits.connections;
            place = open.enter(from.ip(), &limits);
        }
        match place {
            Some(place) => {
                let served = answer(stream, router.clone(), limits.header_timeout, ending.clone());
                tasks.spawn(async move {
                    served.await;
                    drop(place);
                });
            }
            None => {
                if let Ok(permit) = refusals.clone().try_acquire_owned() {
                    tasks.spawn(async move {
                        let _ = timeout(REFUSAL_LIMIT, refuse(stream)).await;
                        drop(permit);
                    });
                }
            }
        }
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
async fn answer(stream: TcpStream, router: Router, header_timeout: Duration, ending: CancellationToken) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "no TCP_NODELAY");
    }
    let local = stream.local_addr().map(|address| LocalAddress(address.ip().to_canonical()));
    let service = service_fn(move |mut request: Request<Incoming>| {
        if let Ok(local) = local {
            request.extensions_mut().insert(local);
        }
        name_host(&mut request);
        router.clone().call(request)
    });
    let begun = tokio::select! {
        begun = timeout(header_timeout, is_http2(&stream)) => begun,
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
            http.timer(TokioTimer::new()).header_read_timeout(header_timeout);
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

/// Answers a client that there are too many connections.
async fn refuse(mut stream: TcpStream) -> io::Result<()> {
    stream.write_all(REFUSAL.as_bytes()).await?;
    stream.shutdown().await?;
    // Closing a connection with unread data would discard the answer.
    tokio::io::copy(&mut stream, &mut tokio::io::sink()).await.map(drop)
}

/// The number of open connections, by the client's address.
#[derive(Default)]
struct OpenConnections(Mutex<HashMap<IpAddr, usize>>);

/// An open connection, counted until dropped.
struct Place {
    open: Arc<OpenConnections>,
    from: IpAddr,
}

impl OpenConnections {
    fn enter(self: &Arc<Self>, from: IpAddr, limits: &LimitSettings) -> Option<Place> {
        let from = client(from);
        let mut open = self.0.lock();
        let (all, own) = (open.values().sum::<usize>(), open.get(&from).copied().unwrap_or_default());
        if all >= limits.connections || own >= limits.connections_per_address {
            drop(open);
            tracing::debug!(%from, all, own, "too many connections");
            return None;
        }
        *open.entry(from).or_default() += 1;
        Some(Place { open: self.clone(), from })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.open.0.lock();
        if let Some(own) = open.get_mut(&self.from) {
            *own -= 1;
            if *own == 0 {
                open.remove(&self.from);
            }
        }
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

    #[test]
    fn places_are_limited_in_all_and_for_each_client() {
        let open = Arc::new(OpenConnections::default());
        let limits = LimitSettings { connections: 4, connections_per_address: 2, ..LimitSettings::default() };
        let enter = |address: &str| open.enter(address.parse().expect("an address"), &limits);
        let first = enter("10.0.0.1");
        let places =
            [enter("10.0.0.1"), enter("::ffff:10.0.0.1"), enter("2001:db8::1"), enter("2001:db8::2:1")];
        assert_eq!(places.each_ref().map(Option::is_some), [true, false, true, true]);
        assert!(enter("10.0.0.2").is_none() && enter("2001:db8::3").is_none());
        drop(first);
        assert!(enter("10.0.0.2").is_some() && enter("10.0.0.1").is_some());
        drop(places);
        assert!(open.0.lock().is_empty());
    }

    #[test]
    fn the_refusal_is_as_long_as_it_says() {
        let (_, body) = REFUSAL.split_once("\r\n\r\n").expect("a body");
        assert!(REFUSAL.contains(&format!("content-length: {}\r\n", body.len())), "{}", body.len());
    }
}
