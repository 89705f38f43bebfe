//! Streamable HTTP at `/mcp`, and at `/mcp/PROFILE` for each profile that the configuration has at the time.

use std::{collections::HashMap, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::{Path, Request, State},
    response::Response,
    routing::any,
    serve::ListenerExt,
};
use http::{
    HeaderMap, HeaderValue, Method, StatusCode,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE},
};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use parking_lot::Mutex;
use rmcp::transport::{
    StreamableHttpServerConfig, StreamableHttpService,
    streamable_http_server::session::local::LocalSessionManager,
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::{
    NonetServer,
    access::{self, AccessDenied},
    in_flight::Parkings,
    page,
};
use crate::{
    gateway::Gateway,
    wire::{
        Message, MessageFault, OF_CLIENT, Refused,
        rmcp::{is_unreadable_body, without_carrier},
    },
};

/// How long open requests may take to end after the gateway was told to stop.
const GRACE: Duration = Duration::from_secs(2);

/// How to serve HTTP.
pub struct HttpOptions {
    /// Where to listen.
    pub address: SocketAddr,
    /// The profile of clients at `/mcp`.
    pub profile: Option<String>,
}

/// Where it serves, once it does.
#[derive(Clone, Debug)]
pub struct Serving {
    /// The address that it listens on.
    pub address: SocketAddr,
    /// The live page, with its token; none where it is switched off or others reach this address.
    pub page: Option<String>,
}

/// Serves any number of clients until `stop` ends. `ready` gets the address once it is bound.
pub async fn serve_http(
    gateway: Arc<Gateway>,
    options: HttpOptions,
    ready: impl FnOnce(Serving),
    stop: impl Future<Output = ()> + Send + 'static,
) -> anyhow::Result<()> {
    let listener = TcpListener::bind(options.address)
        .await
        .map_err(|error| anyhow::anyhow!("cannot listen on {}: {error}", options.address))?;
    let address = listener.local_addr()?;
    let ending = CancellationToken::new();
    // Only for the user of this machine.
    let shown = gateway.config().gateway.page && address.ip().is_loopback();
    let token = shown.then(|| uuid::Uuid::new_v4().simple().to_string());
    let link = token.as_ref().map(|token| page::link(address, token));
    if token.is_some() {
        gateway.calls.switch_on();
    }
    let doors = Arc::new(Doors::new(&gateway, &options, address, &ending));
    tokio::spawn(doors.clone().follow());
    let router = router(doors).merge(page::router(&gateway, token));
    gateway.connect();
    gateway.keep_time();
    ready(Serving { address, page: link });
    let listener = listener.tap_io(|socket| {
        if let Err(error) = socket.set_nodelay(true) {
            tracing::debug!(%error, "no TCP_NODELAY");
        }
    });
    let end = ending.clone();
    let signal = async move {
        stop.await;
        end.cancel();
    };
    let serving = axum::serve(listener, router).with_graceful_shutdown(signal);
    let served = tokio::select! {
        served = serving.into_future() => served.map_err(Into::into),
        () = async { ending.cancelled().await; tokio::time::sleep(GRACE).await } => Ok(()),
    };
    gateway.stop().await;
    served
}

/// The MCP service of one profile, with its sessions.
struct Door {
    service: StreamableHttpService<NonetServer, LocalSessionManager>,
    /// Ends every session of it.
    end: CancellationToken,
}

/// The services of all profiles, each made for the first request to it. The configuration of the moment decides which there
/// may be.
struct Doors {
    gateway: Arc<Gateway>,
    /// The profile of clients at `/mcp`.
    default: Option<String>,
    settings: StreamableHttpServerConfig,
    ending: CancellationToken,
    open: Mutex<HashMap<Option<String>, Door>>,
}

impl Doors {
    fn new(
        gateway: &Arc<Gateway>,
        options: &HttpOptions,
        address: SocketAddr,
        ending: &CancellationToken,
    ) -> Self {
        let own = &gateway.config().gateway;
        // A page of another site must not reach this address through a name of its own (DNS
        // rebinding), nor with the browser's help: both Host and Origin are checked.
        let mut hosts = vec!["localhost".to_string(), "127.0.0.1".into(), "::1".into(), "[::1]".into()];
        if !address.ip().is_unspecified() {
            hosts.push(address.ip().to_string());
        }
        hosts.extend(own.allowed_hosts.iter().cloned());
        let mut origins =
            vec!["http://localhost:*".to_string(), "http://127.0.0.1:*".into(), "http://[::1]:*".into()];
        origins.extend(own.allowed_origins.iter().cloned());
        let settings = StreamableHttpServerConfig::default()
            .with_allowed_hosts(hosts)
            .with_allowed_origins(origins)
            .with_max_request_body_bytes(OF_CLIENT.bytes);
        let (gateway, default, ending) = (gateway.clone(), options.profile.clone(), ending.clone());
        Self { gateway, default, settings, ending, open: Mutex::default() }
    }

    /// Answers a request to `/mcp`, or to `/mcp/NAME`.
    async fn enter(&self, named: Option<&str>, mut request: Request) -> Response {
        match self.service(named, request.headers()) {
            Ok(service) => {
                // It has done its work, and goes no further: not into what a session keeps, nor into a log.
                request.headers_mut().remove(AUTHORIZATION);
                // Whoever takes anything takes what the specification wants to be named.
                if request.headers().get(ACCEPT).is_none_or(|accept| accept == "*/*")
                    && request.method() == Method::POST
                {
                    let both = HeaderValue::from_static("application/json, text/event-stream");
                    request.headers_mut().insert(ACCEPT, both);
                }
                let ends = request.method() == Method::DELETE;
                if request.method() == Method::POST {
                    request = match within_bounds(request).await {
                        Ok(request) => request,
                        Err(refusal) => return refusal,
                    };
                }
                let mut response = service.handle(request).await.map(Body::new);
                // Some clients take 202 for a failure here.
                if ends && response.status() == StatusCode::ACCEPTED {
                    *response.status_mut() = StatusCode::NO_CONTENT;
                }
                response
            }
            Err(refusal) => {
                tracing::debug!(?refusal, "a request over HTTP was not let in");
                refusal.response()
            }
        }
    }

    fn service(
        &self,
        named: Option<&str>,
        headers: &HeaderMap,
    ) -> Result<StreamableHttpService<NonetServer, LocalSessionManager>, AccessDenied> {
        let mut open = self.open.lock();
        // Looked at under the lock: what `close` has closed is not opened again by an older configuration.
        let config = self.gateway.config();
        let profile = access::profile(&config, headers, named, self.default.as_deref())?;
        let door = open.entry(profile).or_insert_with_key(|profile| {
            let (gateway, profile, parkings) = (self.gateway.clone(), profile.clone(), Parkings::default());
            let end = self.ending.child_token();
            let service = StreamableHttpService::new(
                move || Ok(NonetServer::new(gateway.clone(), profile.clone(), true, parkings.clone())),
                Arc::default(),
                self.settings.clone().with_cancellation_token(end.clone()),
            );
            Door { service, end }
        });
        Ok(door.service.clone())
    }

    /// Ends the sessions of profiles that are gone from the configuration.
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

    /// Closes after each change of the configuration, until the end.
    async fn follow(self: Arc<Self>) {
        let mut reloads = self.gateway.reloads();
        while let Some(Ok(())) = self.ending.run_until_cancelled(reloads.changed()).await {
            self.close();
        }
    }
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

/// A request with its whole body, if the message in it is within its bounds; else the answer.
async fn within_bounds(request: Request) -> Result<Request, Response> {
    let (parts, body) = request.into_parts();
    let body = match Limited::new(body, OF_CLIENT.bytes).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => {
            let fault = MessageFault::TooLong(OF_CLIENT.bytes);
            return Err(refusal(StatusCode::PAYLOAD_TOO_LARGE, None, fault.of_request()));
        }
        Err(error) => {
            let what = (-32700, format!("Parse error: the body broke off: {error}"));
            return Err(refusal(StatusCode::BAD_REQUEST, None, what));
        }
    };
    match Message::within(body.clone(), |_| OF_CLIENT) {
        // rmcp says what is wrong with a body that is not JSON.
        Err(Refused { head, fault, .. }) if !fault.is_syntax() => {
            Err(refusal(StatusCode::BAD_REQUEST, head.id.as_deref(), fault.of_request()))
        }
        _ => Ok(Request::from_parts(parts, Body::from(body))),
    }
}

/// A JSON-RPC error as an answer.
fn refusal(status: StatusCode, id: Option<&str>, (code, message): (i32, String)) -> Response {
    let error = Message::failure(id.unwrap_or("null"), code, &message);
    let mut response = Response::new(Body::from(error));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A body that is not JSON gets a JSON-RPC error, as the specification has it; rmcp says it in text.
async fn readable(response: Response) -> Response {
    if response.status() != StatusCode::UNSUPPORTED_MEDIA_TYPE {
        return response;
    }
    let (parts, body) = response.into_parts();
    let body = axum::body::to_bytes(body, 4_096).await.unwrap_or_default();
    if !is_unreadable_body(parts.status, &body) {
        return Response::from_parts(parts, Body::from(body));
    }
    let message = format!("Parse error: {}", String::from_utf8_lossy(&body));
    refusal(StatusCode::BAD_REQUEST, None, (-32700, message))
}

/// Takes verbatim results out of their carriers in a stream of events.
fn unwrap(response: Response) -> Response {
    let events = response
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
    if !events {
        return response;
    }
    response.map(|body| Body::new(body.map_frame(|frame| frame.map_data(without_carrier))))
}
