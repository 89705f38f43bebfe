//! The gateways of this user on one page: each answers the page's requests on a socket of its own, and the
//! gateway that serves the page passes on what is meant for another.

use std::{collections::BTreeSet, path::PathBuf, sync::Arc};

use axum::{Router, extract::State, response::Response, routing::get};
use http::StatusCode;
use nonet_api::page::{GatewayAbout, GatewayList};
use nonet_core::Gateway;

use super::answer;

pub(super) fn routes() -> Router<Arc<Gateway>> {
    Router::new().route("/ui/api/gateway", get(about)).route("/ui/api/gateways", get(all))
}

/// Says which gateway this is, to the others.
async fn about(State(gateway): State<Arc<Gateway>>) -> Response {
    answer(StatusCode::OK, &own(&gateway))
}

fn own(gateway: &Gateway) -> GatewayAbout {
    let clients = gateway.sessions.clients().into_iter().map(|(_, client, _)| client);
    let names: BTreeSet<String> = clients.take(100).collect();
    GatewayAbout {
        id: gateway.id.to_string(),
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").into(),
        serves: gateway.serves.get().copied(),
        config: gateway.servers.config().file.clone(),
        clients: names.into_iter().collect(),
        uptime_s: gateway.servers.uptime().as_secs(),
    }
}

/// Lists the gateways of this user: the one that serves the page first.
async fn all(State(gateway): State<Arc<Gateway>>) -> Response {
    #[cfg(unix)]
    let others = sockets::others(&gateway).await;
    // Elsewhere there are no such sockets yet.
    #[cfg(not(unix))]
    let others: Vec<GatewayAbout> = Vec::new();
    let gateways = [own(&gateway)].into_iter().chain(others).collect();
    answer(StatusCode::OK, &GatewayList { gateways })
}

#[cfg(unix)]
pub(super) use sockets::pass_on;
#[cfg(unix)]
pub(in crate::serve) use sockets::{ask, offer, told};

/// A gateway that says nothing of itself.
#[derive(Clone, Debug)]
pub struct SilentGateway {
    /// Its servers.toml, if it says so.
    pub config: Option<PathBuf>,
    /// Why it says nothing.
    pub why: String,
}

/// The header that names the gateway that a request is meant for.
pub(super) const GATEWAY: &str = "x-nonet-gateway";

#[cfg(unix)]
mod sockets {
    use std::{io, time::Duration};

    use anyhow::Context;
    use axum::{body::Body, extract::Request, middleware::Next};
    use futures::future::join_all;
    use http::{HeaderMap, HeaderValue, header::HOST};
    use hyper::{client, server, service::service_fn};
    use hyper_util::rt::TokioIo;
    use tokio::time::{sleep, timeout};
    use tokio_util::task::TaskTracker;
    use tower_service::Service;

    use super::*;
    use crate::serve::{
        HEAD_START,
        page::{TOKEN, api, failed, servers::wrong},
    };
    use nonet_api::{page::ErrorAnswer, status::ServeMode};
    use nonet_store::shared::PageSockets;
    use serde_json::Value;

    /// How long another gateway may take to say which one it is.
    const PATIENCE: Duration = Duration::from_secs(1);
    /// The pause after a connection that could not be accepted.
    const NO_ROOM: Duration = Duration::from_millis(500);
    /// How often a gateway checks that its socket is still there.
    const LOOK: Duration = Duration::from_secs(5);
    /// How long another gateway may take to answer a command, and how long its answer may be, in bytes.
    const ANSWER_LIMIT: Duration = Duration::from_secs(10);
    const MAX_ANSWER: usize = 16 << 20;
    /// The longest answer about a gateway, in bytes.
    const MAX_ABOUT: usize = 64 << 10;

    /// Returns the gateway that a request is meant for, if it is another one.
    fn other(gateway: &Gateway, headers: &HeaderMap) -> Option<String> {
        let id = headers.get(GATEWAY)?.to_str().ok()?;
        (!id.is_empty() && id != &*gateway.id).then(|| id.to_string())
    }

    fn sockets(gateway: &Gateway) -> anyhow::Result<PageSockets> {
        PageSockets::of(gateway.keeping.folder.as_deref().context("this gateway stores nothing on disk")?)
    }

    /// Answers the pages of this user's other gateways, until the gateway stops.
    pub(in crate::serve) fn offer(gateway: &Arc<Gateway>, serves: ServeMode) {
        if gateway.serves.set(serves).is_err() {
            // It has a socket already.
            return;
        }
        let gateway = gateway.clone();
        tokio::spawn(async move {
            // The handshake first.
            sleep(HEAD_START).await;
            let listening = sockets(&gateway).and_then(|sockets| Ok((sockets.listen(&gateway.id)?, sockets)));
            let (mut socket, sockets) = match listening {
                Ok((socket, sockets)) => {
                    let pruning = sockets.clone();
                    // What killed gateways left behind.
                    tokio::task::spawn_blocking(move || pruning.prune());
                    (socket, sockets)
                }
                Err(error) => {
                    tracing::debug!("other gateways' pages cannot show this gateway: {error:#}");
                    return;
                }
            };
            let router = api(&gateway).layer(axum::middleware::from_fn_with_state(gateway.clone(), seen));
            let (tasks, ending) = (TaskTracker::new(), gateway.servers.stopping().clone());
            while let Some(accepted) = ending.run_until_cancelled(timeout(LOOK, socket.accept())).await {
                let stream = match accepted {
                    Ok(Ok(stream)) => stream,
                    Err(_) => {
                        if let Err(error) = sockets.listen_again(&mut socket) {
                            tracing::debug!(%error, "other gateways' pages cannot show this gateway");
                        }
                        continue;
                    }
                    Ok(Err(error)) => {
                        tracing::debug!(%error, "a connection of a page was not accepted");
                        sleep(NO_ROOM).await;
                        continue;
                    }
                };
                let (router, ending) = (router.clone(), ending.clone());
                let service = service_fn(move |request| {
                    let mut router = router.clone();
                    router.call(request)
                });
                let serving =
                    server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                tasks.spawn(async move { ending.run_until_cancelled(serving).await.map(drop) });
            }
        });
    }

    /// Lets a page see this gateway, unless its page is switched off.
    async fn seen(State(gateway): State<Arc<Gateway>>, request: Request, next: Next) -> Response {
        if !gateway.servers.config().gateway.page {
            let file = gateway.servers.config().file.clone();
            let why = format!(
                "The page is switched off: remove `page = false` from [gateway] in {}.",
                file.display()
            );
            return answer(StatusCode::GONE, &ErrorAnswer { config: Some(file), ..ErrorAnswer::new(why) });
        }
        next.run(request).await
    }

    /// Returns what the other gateways say of themselves.
    pub(super) async fn others(gateway: &Gateway) -> Vec<GatewayAbout> {
        let Ok(sockets) = sockets(gateway) else { return Vec::new() };
        told(&sockets, &gateway.id).await.0
    }

    /// Returns what the gateways with a socket say of themselves, except one; then those that say nothing.
    pub(in crate::serve) async fn told(
        sockets: &PageSockets,
        except: &str,
    ) -> (Vec<GatewayAbout>, Vec<SilentGateway>) {
        let ids = sockets.ids().into_iter().filter(|id| id != except);
        let asked = ids.map(|id| async move {
            let late = |_| Err(anyhow::anyhow!("it did not answer within {PATIENCE:?}"));
            (timeout(PATIENCE, about(sockets, &id)).await.unwrap_or_else(late), id)
        });
        let (mut told, mut silent) = (Vec::new(), Vec::new());
        for (about, id) in join_all(asked).await {
            match about {
                Ok(Ok(about)) => told.push(about),
                Ok(Err(gateway)) => silent.push(gateway),
                Err(error) if has_ended(&error) => {}
                Err(error) => {
                    silent.push(SilentGateway { config: None, why: format!("gateway {id}: {error:#}") })
                }
            }
        }
        told.sort_by_key(|one: &GatewayAbout| one.uptime_s);
        (told, silent)
    }

    /// Sends a request of the page to a gateway. Returns the answer with its status.
    pub(in crate::serve) async fn ask(
        sockets: &PageSockets,
        id: &str,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<(StatusCode, Value)> {
        let request = Request::builder().uri(path);
        let request = match body {
            Some(body) => request.method("POST").body(Body::from(body.to_string())),
            None => request.body(Body::empty()),
        };
        let asked = async {
            let response = send(sockets, id, request?).await?;
            let status = response.status();
            let bytes = axum::body::to_bytes(response.into_body(), MAX_ANSWER).await?;
            Ok((status, serde_json::from_slice(&bytes).unwrap_or_default()))
        };
        timeout(ANSWER_LIMIT, asked).await.context("it did not answer in time")?
    }

    /// Asks a gateway what it says of itself; `Ok(Err)`: it says nothing.
    async fn about(sockets: &PageSockets, id: &str) -> anyhow::Result<Result<GatewayAbout, SilentGateway>> {
        let request = Request::builder().uri("/ui/api/gateway").body(Body::empty())?;
        let response = send(sockets, id, request).await?;
        let status = response.status();
        let bytes = axum::body::to_bytes(response.into_body(), MAX_ABOUT).await?;
        if status == StatusCode::GONE {
            let ErrorAnswer { error, config } = serde_json::from_slice(&bytes)?;
            return Ok(Err(SilentGateway { config, why: error.message }));
        }
        anyhow::ensure!(status.is_success(), "it gave another answer ({status})");
        let told: GatewayAbout = serde_json::from_slice(&bytes)?;
        anyhow::ensure!(told.id == id, "it gave another gateway's answer");
        Ok(Ok(told))
    }

    /// Answers a request of the page, or passes it on to the gateway that it is meant for.
    pub(in crate::serve::page) async fn pass_on(
        State(gateway): State<Arc<Gateway>>,
        request: Request,
        next: Next,
    ) -> Response {
        let Some(id) = other(&gateway, request.headers()) else { return next.run(request).await };
        let sockets = match sockets(&gateway) {
            Ok(sockets) => sockets,
            Err(error) => return failed(format!("{error:#}")),
        };
        match send(&sockets, &id, request).await {
            Ok(response) => response,
            Err(error) if has_ended(&error) => wrong(StatusCode::GONE, "That gateway has ended."),
            Err(error) => {
                wrong(StatusCode::BAD_GATEWAY, format!("That gateway cannot be reached now: {error:#}"))
            }
        }
    }

    /// Whether nobody listens at the other gateway's socket.
    fn has_ended(error: &anyhow::Error) -> bool {
        use io::ErrorKind::{ConnectionRefused, NotFound};
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        matches!(kind, Some(ConnectionRefused | NotFound))
    }

    async fn send(sockets: &PageSockets, id: &str, mut request: Request) -> anyhow::Result<Response> {
        let (mut sender, connection) =
            client::conn::http1::handshake(TokioIo::new(sockets.connect(id).await?)).await?;
        // Ends with the response.
        tokio::spawn(connection);
        let headers = request.headers_mut();
        for name in [TOKEN, GATEWAY] {
            headers.remove(name);
        }
        headers.insert(HOST, HeaderValue::from_static("nonet"));
        Ok(sender.send_request(request).await?.map(Body::new))
    }
}
