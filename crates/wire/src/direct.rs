//! HTTP/1.1 to addresses without TLS and without a proxy, such as servers on this machine. A request drives its connection
//! itself, and what `reqwest` does for redirects and retries is left out. Such a request takes about half the instructions,
//! and its task waits for no other task.

use std::{
    error::Error,
    pin::{Pin, pin},
    sync::{Arc, Weak},
    task::{Context, Poll, Waker, ready},
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, Uri, header};
use http_body_util::Full;
use hyper::{
    body::{Body, Frame, Incoming, SizeHint},
    client::conn::{TrySendError, http1},
};
use hyper_util::{
    client::{legacy::connect::HttpConnector, proxy::matcher::Matcher},
    rt::TokioIo,
};
use parking_lot::Mutex;
use reqwest::Url;
use tokio::{
    net::TcpStream,
    time::{sleep, timeout},
};
use tower_service::Service;

use super::web::{CONNECT_TIMEOUT, USER_AGENT};

/// How long a connection stays open without a request.
const MAX_IDLE: Duration = Duration::from_secs(90);
/// How often connections that the other end has closed are looked for while none is used.
const LOOK: Duration = Duration::from_secs(15);
/// The most connections that stay open without a request.
const MOST_IDLE: usize = 64;
/// How much of a body is handed over before other tasks get their turn, in bytes: its server may send without a pause.
const TURN: usize = 16 << 10;
/// As in `reqwest`: a dead peer is noticed after about a minute.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
const KEEP_ALIVE_RETRIES: u32 = 3;

/// Why an exchange broke off.
#[derive(Debug, thiserror::Error)]
pub enum DirectError {
    /// There is no connection.
    #[error(transparent)]
    Connect(Box<dyn Error + Send + Sync>),
    /// The address does not answer.
    #[error("no connection within {CONNECT_TIMEOUT:?}")]
    ConnectTimeout,
    /// The connection broke, or what came is not HTTP.
    #[error(transparent)]
    Exchange(#[from] hyper::Error),
}

impl DirectError {
    /// Returns whether the request was not sent, because there was no connection.
    pub fn is_connect(&self) -> bool {
        matches!(self, Self::Connect(_) | Self::ConnectTimeout)
    }
}

/// An address that is reached directly.
#[derive(Clone, Debug)]
pub(crate) struct DirectAddress {
    /// The scheme and the authority.
    server: Uri,
    /// The path and the query.
    pub(crate) resource: Uri,
    /// The value of the `Host` header.
    pub(crate) host: HeaderValue,
}

impl DirectAddress {
    /// Returns the address, unless it needs TLS, a proxy of the environment, or a user name.
    pub(crate) fn of(url: &Url) -> Option<Self> {
        if url.scheme() != "http" || !url.username().is_empty() || url.password().is_some() {
            return None;
        }
        let whole: Uri = url.as_str().parse().ok()?;
        let (authority, resource) = (whole.authority()?.as_str(), whole.path_and_query()?.clone().into());
        let server: Uri = format!("http://{authority}/").parse().ok()?;
        if Matcher::from_system().intercept(&server).is_some() {
            return None;
        }
        Some(Self { server, resource, host: HeaderValue::try_from(authority).ok()? })
    }
}

/// Sends requests to direct addresses, and keeps their connections open.
#[derive(Clone)]
pub(crate) struct DirectClient(Arc<Pool>);

struct Pool {
    connector: HttpConnector,
    idle: Mutex<IdleConnections>,
}

#[derive(Default)]
struct IdleConnections {
    /// The one used last is at the end.
    connections: Vec<IdleConnection>,
    /// Whether [`look`] runs.
    has_look: bool,
}

struct IdleConnection {
    server: Uri,
    connection: Connection,
    since: Instant,
}

type Driver = http1::Connection<TokioIo<TcpStream>, Full<Bytes>>;

/// A connection, which moves only while it is polled.
struct Connection {
    sender: http1::SendRequest<Full<Bytes>>,
    /// `None` once the connection has ended.
    driver: Option<Pin<Box<Driver>>>,
}

/// Moves a connection. What it still owes when it ends is answered with an error, because it is dropped.
fn drive(driver: &mut Option<Pin<Box<Driver>>>, context: &mut Context<'_>) {
    if driver.as_mut().is_some_and(|driver| driver.as_mut().poll(context).is_ready()) {
        *driver = None;
    }
}

impl Connection {
    /// Returns whether a request can be sent.
    fn is_ready(&self) -> bool {
        self.driver.is_some() && self.sender.is_ready()
    }

    /// Sends a request and returns the head of its answer.
    async fn exchange(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Full<Bytes>>>> {
        let mut answered = pin!(self.sender.try_send_request(request));
        let driver = &mut self.driver;
        std::future::poll_fn(|context| {
            drive(driver, context);
            // The answer comes from the connection, which has just been polled: it needs no waker of its own.
            answered.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        })
        .await
    }
}

impl DirectClient {
    /// Returns a client without connections.
    pub(crate) fn new() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        connector.set_nodelay(true);
        connector.set_keepalive(Some(KEEP_ALIVE));
        connector.set_keepalive_interval(Some(KEEP_ALIVE));
        connector.set_keepalive_retries(Some(KEEP_ALIVE_RETRIES));
        #[cfg(target_os = "linux")]
        connector.set_tcp_user_timeout(Some(2 * KEEP_ALIVE));
        Self(Arc::new(Pool { connector, idle: Mutex::default() }))
    }

    /// Sends a request. Its URI and its `Host` header are from the address.
    pub(crate) async fn send(
        &self,
        to: &DirectAddress,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<DirectBody>, DirectError> {
        request.headers_mut().entry(header::USER_AGENT).or_insert(USER_AGENT);
        loop {
            let idle = self.0.idle(&to.server);
            let is_new = idle.is_none();
            let mut connection = match idle {
                Some(connection) => connection,
                None => self.0.connect(&to.server).await?,
            };
            match connection.exchange(request).await {
                Ok(response) => {
                    let pool = Arc::downgrade(&self.0);
                    let link = Link { connection, pool, server: to.server.clone() };
                    return Ok(response.map(|incoming| DirectBody::new(incoming, link)));
                }
                // The other end has closed a connection that was idle: nothing was sent.
                Err(mut error) => match error.take_message() {
                    Some(unsent) if !is_new => request = unsent,
                    _ => return Err(error.into_error().into()),
                },
            }
        }
    }
}

impl Pool {
    /// Takes the connection to a server that was used last, if one is open.
    fn idle(&self, server: &Uri) -> Option<Connection> {
        let connections = &mut self.idle.lock().connections;
        while let Some(at) = connections.iter().rposition(|one| one.server == *server) {
            let IdleConnection { mut connection, since, .. } = connections.remove(at);
            drive(&mut connection.driver, &mut Context::from_waker(Waker::noop()));
            if connection.is_ready() && since.elapsed() < MAX_IDLE {
                return Some(connection);
            }
        }
        None
    }

    async fn connect(&self, server: &Uri) -> Result<Connection, DirectError> {
        let mut connector = self.connector.clone();
        let connecting = async {
            std::future::poll_fn(|context| connector.poll_ready(context)).await?;
            connector.call(server.clone()).await
        };
        let connected =
            timeout(CONNECT_TIMEOUT, connecting).await.map_err(|_| DirectError::ConnectTimeout)?;
        let stream = connected.map_err(|error| DirectError::Connect(error.into()))?;
        let (sender, driver) = http1::handshake(stream).await?;
        Ok(Connection { sender, driver: Some(Box::pin(driver)) })
    }

    /// Keeps a connection for the next request.
    fn keep(self: &Arc<Self>, server: Uri, connection: Connection) {
        let mut idle = self.idle.lock();
        if idle.connections.len() >= MOST_IDLE {
            idle.connections.remove(0);
        }
        idle.connections.push(IdleConnection { server, connection, since: Instant::now() });
        if !std::mem::replace(&mut idle.has_look, true) {
            tokio::spawn(look(Arc::downgrade(self)));
        }
    }
}

/// Drops connections that have ended or that nobody uses, until none is left.
async fn look(pool: Weak<Pool>) {
    loop {
        sleep(LOOK).await;
        let Some(pool) = pool.upgrade() else { return };
        let mut idle = pool.idle.lock();
        idle.connections.retain_mut(|one| {
            drive(&mut one.connection.driver, &mut Context::from_waker(Waker::noop()));
            one.connection.is_ready() && one.since.elapsed() < MAX_IDLE
        });
        if idle.connections.is_empty() {
            idle.has_look = false;
            return;
        }
    }
}

/// A connection whose answer is being read.
struct Link {
    connection: Connection,
    pool: Weak<Pool>,
    server: Uri,
}

impl Link {
    /// Gives the connection back, if it stays open after its answer.
    fn end(mut self, context: &mut Context<'_>) {
        drive(&mut self.connection.driver, context);
        if let Some(pool) = self.pool.upgrade()
            && self.connection.is_ready()
        {
            pool.keep(self.server, self.connection);
        }
    }
}

/// The body of an answer. A body that is dropped before its end closes its connection.
pub struct DirectBody {
    incoming: Incoming,
    /// `None` once the body has been read.
    link: Option<Link>,
    /// The bytes handed over since other tasks had a turn.
    handed_over: usize,
}

impl DirectBody {
    fn new(incoming: Incoming, link: Link) -> Self {
        let mut body = Self { incoming, link: Some(link), handed_over: 0 };
        body.end_if_read(&mut Context::from_waker(Waker::noop()));
        body
    }

    fn end_if_read(&mut self, context: &mut Context<'_>) {
        if self.incoming.is_end_stream()
            && let Some(link) = self.link.take()
        {
            link.end(context);
        }
    }
}

impl Body for DirectBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if self.handed_over >= TURN {
            self.handed_over = 0;
            // Also lets the runtime look at its timers, unlike a wake.
            let _ = pin!(tokio::task::yield_now()).poll(context);
            return Poll::Pending;
        }
        let poll = |body: &mut Self, context: &mut Context<'_>| {
            if let Some(link) = &mut body.link {
                drive(&mut link.connection.driver, context);
            }
            Pin::new(&mut body.incoming).poll_frame(&mut Context::from_waker(Waker::noop()))
        };
        let mut frame = poll(&mut self, context);
        if frame.is_pending() {
            // The connection reads on only after a frame was asked for.
            frame = poll(&mut self, context);
        }
        let frame = ready!(frame);
        if let Some(Ok(frame)) = &frame {
            self.handed_over += frame.data_ref().map_or(0, Bytes::len);
        }
        if frame.is_none() {
            if let Some(link) = self.link.take() {
                link.end(context);
            }
        } else {
            self.end_if_read(context);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    const KEPT: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
    const CLOSED: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nok";
    const EMPTY: &str = "HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n";
    const CHUNKED: &str =
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n";

    fn address(url: &str) -> Option<DirectAddress> {
        DirectAddress::of(&Url::parse(url).expect("an address"))
    }

    /// Starts a server whose connections answer their n-th request with the n-th of `answers` and then close. Returns its
    /// address, and a count of its connections.
    async fn server(answers: &'static [&'static str]) -> (DirectAddress, Arc<Mutex<usize>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let count = Arc::new(Mutex::new(0));
        let counted = count.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                *counted.lock() += 1;
                tokio::spawn(async move {
                    for answer in answers {
                        let mut request = Vec::new();
                        while !request.ends_with(b"\r\n\r\n{}") {
                            let byte = stream.read_u8().await.expect("a request");
                            request.push(byte);
                        }
                        stream.write_all(answer.as_bytes()).await.expect("an open connection");
                    }
                });
            }
        });
        (address(&format!("http://127.0.0.1:{port}/mcp")).expect("no proxy for this machine"), count)
    }

    async fn post(client: &DirectClient, to: &DirectAddress) -> Result<Bytes, DirectError> {
        let mut request = Request::post(to.resource.clone()).body(Full::new("{}".into())).expect("a request");
        request.headers_mut().insert(header::HOST, to.host.clone());
        let response = client.send(to, request).await?;
        Ok(http_body_util::BodyExt::collect(response.into_body()).await?.to_bytes())
    }

    #[tokio::test]
    async fn connections_are_used_again_while_their_server_keeps_them_open() {
        for (answers, requests, connections) in [
            (&[KEPT, EMPTY, CHUNKED, KEPT][..], 4, 1),
            (&[CLOSED], 3, 3),
            // Each connection closes without notice after two answers.
            (&[KEPT, KEPT], 5, 3),
        ] {
            let (to, count) = server(answers).await;
            let client = DirectClient::new();
            for n in 0..requests {
                let body = post(&client, &to).await.expect("an answer");
                assert_eq!(body, if answers[n % answers.len()] == EMPTY { "" } else { "ok" });
                sleep(Duration::from_millis(20)).await;
            }
            assert_eq!(*count.lock(), connections, "{answers:?}");
        }
    }

    #[tokio::test]
    async fn a_request_that_was_sent_is_not_sent_again() {
        let (to, count) = server(&[KEPT, ""]).await;
        let client = DirectClient::new();
        post(&client, &to).await.expect("an answer");
        let broken = post(&client, &to).await.expect_err("the connection closes instead of an answer");
        assert!(!broken.is_connect(), "{broken}");
        assert_eq!(*count.lock(), 1);
    }

    #[tokio::test]
    async fn nobody_listens() {
        let to = address("http://127.0.0.1:1/mcp").expect("no proxy for this machine");
        assert!(post(&DirectClient::new(), &to).await.expect_err("nobody listens").is_connect());
    }

    #[test]
    fn what_needs_more_than_a_connection_is_not_reached_directly() {
        for (url, expected) in [
            ("http://127.0.0.1:80/mcp?a=b#c", Some(("127.0.0.1", "/mcp?a=b"))),
            ("http://[::1]:8080", Some(("[::1]:8080", "/"))),
            ("https://127.0.0.1/mcp", None),
            ("http://ann:secret@127.0.0.1/mcp", None),
            ("http://ann@127.0.0.1/mcp", None),
        ] {
            let found = address(url);
            let found = found.as_ref().map(|to| (to.host.to_str().expect("text"), to.resource.to_string()));
            assert_eq!(found, expected.map(|(host, resource)| (host, resource.to_owned())), "{url}");
        }
    }

    #[tokio::test]
    async fn a_body_without_end_leaves_other_tasks_their_turn() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        std::thread::spawn(move || {
            use std::io::{Read, Write};
            let listener = listener.into_std().expect("a listener");
            listener.set_nonblocking(false).expect("a blocking listener");
            let (mut stream, _) = listener.accept().expect("a client");
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
            while stream.write_all(&[b'x'; 1 << 20]).is_ok() {}
        });
        let to = address(&format!("http://127.0.0.1:{port}/")).expect("no proxy for this machine");
        let mut request = Request::get(to.resource.clone()).body(Full::default()).expect("a request");
        request.headers_mut().insert(header::HOST, to.host.clone());
        let response = DirectClient::new().send(&to, request).await.expect("an answer");
        let mut body = response.into_body();
        let mut in_one_turn = 0;
        std::future::poll_fn(|context| {
            while let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut body).poll_frame(context) {
                in_one_turn += frame.into_data().map_or(0, |data| data.len());
            }
            Poll::Ready(())
        })
        .await;
        // The last chunk may be as large as hyper's buffer.
        assert!(in_one_turn < TURN + (512 << 10), "{in_one_turn}");
    }
}
