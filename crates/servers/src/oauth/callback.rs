//! The address on this machine that the browser returns to. It accepts requests while a sign-in waits (RFC
//! 8252, section 7.3).

use std::{
    future::IntoFuture,
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use axum::{
    Router,
    extract::{Request, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use nonet_wire::html;
use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

/// The path of the addresses that Nonet generates.
const PATH: &str = "/callback";
/// How long delivery of the last page may take.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// Listens for the returning browser.
pub struct Callback {
    /// The listener's address, as sent to the sign-in server.
    pub redirect_uri: String,
    came_back: mpsc::Receiver<ReturnedBrowser>,
    stop: CancellationToken,
    serving: JoinHandle<io::Result<()>>,
}

/// A returned browser that waits for its page.
pub struct ReturnedBrowser {
    /// The complete address that the browser was sent to.
    pub address: String,
    reply: oneshot::Sender<(bool, String)>,
}

impl ReturnedBrowser {
    /// Shows the user a one-sentence page.
    pub fn reply(self, good: bool, sentence: &str) {
        // A browser that did not wait only misses the page.
        let _ = self.reply.send((good, sentence.into()));
    }
}

impl Callback {
    /// Listens at a `redirect_uri` on this machine, or at any free port.
    pub async fn listen(redirect_uri: Option<&str>) -> io::Result<Self> {
        let uri = redirect_uri.map(str::parse::<http::Uri>).transpose().map_err(io::Error::other)?;
        let (host, port) = match &uri {
            Some(uri) => (uri.host().unwrap_or_default(), uri.port_u16().unwrap_or_default()),
            None => ("127.0.0.1", 0),
        };
        let address = match host {
            "[::1]" => SocketAddr::from((Ipv6Addr::LOCALHOST, port)),
            _ => SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
        };
        let listener = TcpListener::bind(address).await?;
        let redirect_uri = match redirect_uri {
            Some(redirect_uri) => redirect_uri.to_string(),
            None => format!("http://{}{PATH}", listener.local_addr()?),
        };
        let (sender, came_back) = mpsc::channel(8);
        let shared = CallbackState { redirect_uri: redirect_uri.clone(), sender };
        let stop = CancellationToken::new();
        let router = Router::new().fallback(take).with_state(shared);
        let serving = axum::serve(listener, router).with_graceful_shutdown(stop.clone().cancelled_owned());
        let serving = tokio::spawn(serving.into_future());
        Ok(Self { redirect_uri, came_back, stop, serving })
    }

    /// Returns the next browser that has come back to the address.
    pub async fn next(&mut self) -> Option<ReturnedBrowser> {
        self.came_back.recv().await
    }

    /// Returns once the last page is delivered. A browser that does not read the page cannot delay it for
    /// long.
    pub async fn close(self) {
        let Self { came_back, stop, mut serving, .. } = self;
        drop(came_back);
        stop.cancel();
        if tokio::time::timeout(CLOSE_LIMIT, &mut serving).await.is_err() {
            serving.abort();
        }
    }
}

#[derive(Clone)]
struct CallbackState {
    redirect_uri: String,
    sender: mpsc::Sender<ReturnedBrowser>,
}

async fn take(State(shared): State<CallbackState>, request: Request) -> Response {
    let here = shared.redirect_uri.parse::<http::Uri>().map(|uri| uri.path().to_string());
    if here.is_ok_and(|path| path != request.uri().path()) {
        return StatusCode::NOT_FOUND.into_response();
    }
    let query = request.uri().query().unwrap_or_default();
    let (reply, page) = oneshot::channel();
    let address = format!("{}?{query}", shared.redirect_uri);
    if shared.sender.send(ReturnedBrowser { address, reply }).await.is_err() {
        return StatusCode::GONE.into_response();
    }
    match page.await {
        Ok((true, sentence)) => html::message("Signed in", &sentence, None),
        Ok((false, sentence)) => html::failure(StatusCode::BAD_REQUEST, "Not signed in", &sentence, None),
        Err(_) => StatusCode::GONE.into_response(),
    }
}
