//! Connections over HTTP: how many there may be, and how long a client may take to say what it wants.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
    time::Duration,
};

use axum::Router;
use http::Request;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
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

/// How long until another connection is accepted when the system has no room for one.
const NO_ROOM: Duration = Duration::from_millis(500);
/// How many connections are refused with an answer at a time; further ones are closed.
const REFUSALS: usize = 32;
/// How long a refused client may take to read its answer.
const REFUSAL_LIMIT: Duration = Duration::from_secs(1);
const REFUSAL: &str = "HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain\r\nretry-after: 1\r\n\
                       connection: close\r\ncontent-length: 70\r\n\r\n\
                       too many connections: close some, or raise `connections` in [limits]\r\n";

/// The address on this machine that a request came to.
#[derive(Clone, Copy, Debug)]
pub(super) struct LocalAddress(pub IpAddr);

/// Answers requests until `ending`, then waits for those that are open. `limits` are those of the moment.
pub(super) async fn serve(
    listener: TcpListener,
    router: Router,
    limits: impl Fn() -> LimitSettings,
    ending: CancellationToken,
) {
    let open = Arc::new(OpenConnections::default());
    let (tasks, refusals) = (TaskTracker::new(), Arc::new(Semaphore::new(REFUSALS)));
    while let Some(accepted) = ending.run_until_cancelled(listener.accept()).await {
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) if is_of_one_client(&error) => continue,
            Err(error) => {
                // Too many open files, most likely: other clients may leave.
                tracing::warn!(%error, "a connection was not accepted");
                sleep(NO_ROOM).await;
                continue;
            }
        };
        let limits = limits();
        match open.enter(from.ip(), &limits) {
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

/// Whether a connection failed by itself, and the next may not.
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
        router.clone().call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(header_timeout)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = ending.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke off");
    }
}

/// Tells a client that there are too many.
async fn refuse(mut stream: TcpStream) -> io::Result<()> {
    stream.write_all(REFUSAL.as_bytes()).await?;
    stream.shutdown().await?;
    // Closed with something unread, a connection takes the answer back.
    tokio::io::copy(&mut stream, &mut tokio::io::sink()).await.map(drop)
}

/// The open connections, by the address of the client.
#[derive(Default)]
struct OpenConnections(Mutex<HashMap<IpAddr, usize>>);

/// One of them, until dropped.
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

/// The client at an address: one has a whole network of IPv6.
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
