//! What the HTTP server shows besides MCP: the live page at `/ui` with its figures, `/metrics`, `/healthz`
//! and `/readyz`.
//!
//! The page and its figures are only for this machine's user: every request under `/ui/api` carries the token
//! of `nonet ui`. `/metrics` is for callers with access to everything (`access`).

// An answer that refuses is made once for each request of a person; nothing is gained by boxing it.
#![allow(clippy::result_large_err)]

mod calls;
mod clients;
pub(super) mod gateways;
mod questions;
mod registry;
mod servers;
mod setup;
mod tools;
mod work;

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::{MatchedPath, Path, Query, Request, State},
    middleware::Next,
    response::Response,
    routing::{get, post},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use futures::StreamExt;
use http::{Extensions, HeaderMap, HeaderValue, Method, StatusCode, header};
use nonet_api::{
    fault::Reader,
    page::{
        ConnectedClient, DecisionRequest, DefinitionSizes, ErrorAnswer, PageRole, PageState, Readiness,
        SavingView, TrustReport, TrustRequest,
    },
    question::{MarkedDefinition, WaitingForUser},
    reference::{ENDPOINTS, Endpoint},
    status::ServerState,
    tools::SearchAnswer,
};
use nonet_config::{BearerToken, UnusableEntry};
use nonet_core::{Gateway, SearchArguments};
use nonet_meta as meta;
use nonet_parts::{
    approvals::{AnswerError, ApprovalDecision, WaitingApproval},
    metrics::{CONTENT_TYPE, ClusterNow, MetricsNow, ServerNow},
};
use nonet_servers::pins::WaitingPin;
use nonet_state::session::Caller;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{
    access::{self, Entrance},
    browser::{self, Browsers, Visitor},
    listen,
};

/// The page: one document with one style and one script, assembled from the files in `page/`.
static PAGE: LazyLock<String> = LazyLock::new(|| {
    const SCRIPTS: &str = concat!(
        include_str!("page/base.js"),
        include_str!("page/waiting.js"),
        include_str!("page/gateways.js"),
        include_str!("page/servers.js"),
        include_str!("page/forms.js"),
        include_str!("page/tools.js"),
        include_str!("page/search.js"),
        include_str!("page/calls.js"),
        include_str!("page/clients.js"),
        include_str!("page/setup.js"),
        include_str!("page/work.js"),
        include_str!("page/keys.js"),
    );
    include_str!("page/index.html")
        .replace(
            "/* style.css */\n",
            concat!(include_str!("page/style.css"), include_str!("page/manage.css")),
        )
        .replace("/* the scripts */\n", SCRIPTS)
        .lines()
        .filter_map(sent)
        .collect()
});

/// Returns a line of the page as it is sent: without its indentation, and nothing for a comment.
fn sent(line: &str) -> Option<String> {
    let line = line.trim();
    let is_comment = line.starts_with("//") || line.starts_with("/*") && line.ends_with("*/");
    (!is_comment && !line.is_empty()).then(|| format!("{line}\n"))
}

/// The answer to a request without the token.
const REFUSED: &str = "the token is missing, or belongs to another gateway: run `nonet ui`, or open the address that Nonet \
                       printed when it started at a terminal, after `live page at`";
/// How long a person reads one stream of calls.
const STREAM_LASTS: Duration = Duration::from_secs(60);
/// The answer where the page is for nobody.
const CLOSED: &str =
    "there is no page at this address: it is at a local address, or for people who sign in (`[auth.page]`)";
/// The header that carries the token.
pub(super) const TOKEN: &str = "x-nonet-token";

/// Allows the page's own style and script, by their digests, and nothing else.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    let digest = |tag: &str| {
        let inside =
            PAGE.split_once(&format!("<{tag}>")).and_then(|(_, rest)| rest.split_once(&format!("</{tag}>")));
        STANDARD.encode(Sha256::digest(inside.map_or("", |(inside, _)| inside).as_bytes()))
    };
    format!(
        "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
        digest("style"),
        digest("script")
    )
});

/// Returns the address of the page, with its token.
pub(super) fn link(address: std::net::SocketAddr, token: &str) -> String {
    format!("http://{address}/ui#token={token}")
}

/// Returns the routes besides MCP. Without a token there is no page.
///
/// With `[auth.page]`, people get the page at any address, as their role allows.
pub(super) fn router(gateway: &Arc<Gateway>, entrance: Arc<Entrance>, token: Option<String>) -> Router {
    let browsers = Browsers::new(gateway, entrance.clone());
    let counts = async move |State(gateway): State<Arc<Gateway>>, request: Request| {
        metrics(gateway, &entrance, request).await
    };
    let plain = Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/metrics", get(counts))
        .route("/approve/{address}", post(answer_at))
        .with_state(gateway.clone());
    let plain = plain.merge(browser::router(&browsers));
    let token = token.as_deref().map(BearerToken::new);
    // Without a token and without `[auth.page]`, nobody has the page.
    plain.merge(shown_to(gateway, token, Some(browsers)))
}

/// Returns the page, for callers with its token.
pub(super) fn of_user(gateway: &Arc<Gateway>, token: &str) -> Router {
    shown_to(gateway, Some(BearerToken::new(token)), None)
}

/// Who may ask for what the page shows.
#[derive(Clone)]
struct PageDoor {
    /// The token of the page, if there is one.
    token: Option<BearerToken>,
    /// People who sign in.
    browsers: Option<Arc<Browsers>>,
}

tokio::task_local! {
    /// Who makes the request that is being answered.
    static VISITOR: Visitor;
}

/// Returns the page, for callers with its token and for people with a role.
fn shown_to(gateway: &Arc<Gateway>, token: Option<BearerToken>, browsers: Option<Arc<Browsers>>) -> Router {
    let door = PageDoor { token, browsers };
    let api = api(gateway);
    #[cfg(unix)]
    let api = api.route_layer(axum::middleware::from_fn_with_state(gateway.clone(), gateways::pass_on));
    let api = api.route_layer(axum::middleware::from_fn_with_state(door.clone(), admit));
    let document = get(async move || match door.is_open() {
        true => page().await,
        false => answer(StatusCode::NOT_FOUND, &ErrorAnswer::new(CLOSED)),
    });
    Router::new().route("/ui", document).merge(api)
}

impl PageDoor {
    /// Whether anybody can get the page here.
    fn is_open(&self) -> bool {
        self.token.is_some() || self.browsers.as_ref().is_some_and(|browsers| browsers.shows_page())
    }

    /// Returns who sends a request, or the refusal.
    async fn visitor(&self, parts: (&Method, &HeaderMap, &Extensions)) -> Result<Visitor, Response> {
        let (method, headers, extensions) = parts;
        let given = headers.get(TOKEN).and_then(|given| given.to_str().ok());
        if let (Some(token), Some(given)) = (self.token, given)
            && BearerToken::new(given) == token
        {
            return match listen::refusal_of_proven(extensions) {
                Some(refusal) => Err(refusal),
                None => Ok(Visitor::owner()),
            };
        }
        match &self.browsers {
            Some(browsers) if browsers.shows_page() => {
                let visitor = browsers.visitor(method, headers).await?;
                match listen::refusal_of_proven(extensions) {
                    Some(refusal) => Err(refusal),
                    None => Ok(visitor),
                }
            }
            _ if self.token.is_none() => Err(answer(StatusCode::NOT_FOUND, &ErrorAnswer::new(CLOSED))),
            _ => Err(answer(StatusCode::UNAUTHORIZED, &ErrorAnswer::new(REFUSED))),
        }
    }
}

/// Lets a request through whose sender may make it.
async fn admit(State(door): State<PageDoor>, mut request: Request, next: Next) -> Response {
    let parts = (request.method(), request.headers(), request.extensions());
    let mut response = match Box::pin(door.visitor(parts)).await {
        Err(refusal) => refusal,
        Ok(visitor) => {
            let needed = needed_role(&request);
            if visitor.person.is_some() {
                // The other gateways of this machine are its user's, and ask for no roles.
                request.headers_mut().remove(gateways::GATEWAY);
            }
            let is_person = visitor.person.is_some();
            let response = match &door.browsers {
                Some(browsers) if visitor.role < needed => browsers.lacks_role(&visitor, needed),
                _ => VISITOR.scope(visitor, next.run(request)).await,
            };
            // A stream begins again after a while, so that a person who may not see it any more does not.
            match is_person {
                true => response.map(|body| {
                    Body::from_stream(body.into_data_stream().take_until(tokio::time::sleep(STREAM_LASTS)))
                }),
                false => response,
            }
        }
    };
    keep_private(response.headers_mut());
    response
}

/// Returns the role that a request needs.
fn needed_role(request: &Request) -> PageRole {
    let Some(path) = request.extensions().get::<MatchedPath>() else { return PageRole::Administer };
    let word = request.uri().path().rsplit('/').next().unwrap_or_default();
    if path.as_str() == "/ui/api/servers/{name}/{action}" && ["restart", "hold", "release"].contains(&word) {
        return PageRole::Operate;
    }
    let is_this = |one: &&Endpoint| one.path == path.as_str() && one.method == request.method().as_str();
    ENDPOINTS.iter().find(is_this).map_or(PageRole::Administer, |endpoint| endpoint.role)
}

/// Lets a task make what it does known as that of whoever makes the request.
fn as_visitor<T>(work: impl Future<Output = T>) -> impl Future<Output = T> {
    let visitor = VISITOR.try_with(Visitor::clone).unwrap_or_else(|_| Visitor::owner());
    VISITOR.scope(visitor, work)
}

async fn user() -> Response {
    let visitor = VISITOR.try_with(Visitor::view).unwrap_or_else(|_| Visitor::owner().view());
    answer(StatusCode::OK, &visitor)
}

/// Writes what somebody does on the page into the audit log, with who it is.
fn audit(gateway: &Gateway, about: impl FnOnce() -> Value) {
    gateway.observing.audit_event("page", || {
        let mut about = about();
        if let Ok(Some(person)) = VISITOR.try_with(|visitor| visitor.person.clone()) {
            about["person"] = json!(person);
        }
        about
    });
}

/// What the page asks, for whoever may ask it.
fn api(gateway: &Arc<Gateway>) -> Router {
    Router::new()
        .route("/ui/api/user", get(user))
        .route("/ui/api/state", get(state))
        .route("/ui/api/search", get(search))
        .route("/ui/api/waiting", get(waiting))
        .route("/ui/api/approvals/{id}", post(decide))
        .route("/ui/api/trust", post(trust))
        .merge(calls::routes())
        .merge(work::routes())
        .merge(gateways::routes())
        .merge(questions::routes())
        .merge(servers::routes())
        .merge(registry::routes())
        .merge(setup::routes())
        .merge(tools::routes())
        .merge(clients::routes())
        .with_state(gateway.clone())
}

async fn page() -> Response {
    let mut response = Response::new(Body::from(PAGE.as_str()));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    if let Ok(policy) = HeaderValue::from_str(&POLICY) {
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    // With `no-referrer`, browsers would send its forms with `Origin: null`.
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    keep_private(headers);
    response
}

/// Tells browsers to store nothing, and to read nothing as another type.
fn keep_private(headers: &mut HeaderMap) {
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
}

pub(super) fn answer(status: StatusCode, value: &impl Serialize) -> Response {
    let mut response = Response::new(Body::from(json!(value).to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Answers whether the gateway is ready: once every server is ready or has failed once, and until the gateway
/// is about to stop. Without the replicas' shared data it is ready but degraded.
async fn ready(State(gateway): State<Arc<Gateway>>) -> Response {
    let starting: Vec<String> = gateway
        .servers
        .connections()
        .iter()
        .filter(|(_, connection)| connection.settings().session.is_none() && !connection.state().settled())
        .map(|(name, _)| name.to_string())
        .collect();
    let leaving = gateway.keeping.cluster.as_ref().is_some_and(|cluster| cluster.replicas().is_leaving());
    let is_ready = starting.is_empty() && !leaving;
    let status = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let mut state = Readiness { ready: is_ready, starting, stopping: leaving, degraded: Vec::new() };
    if let Some(why) = gateway.keeping.cluster.as_ref().and_then(|cluster| cluster.replicas().trouble()) {
        // Names Redis, whose address a caller here need not know.
        tracing::debug!(why, "ready without the replicas' shared data");
        state.degraded.push("redis".into());
    }
    answer(status, &state)
}

async fn metrics(gateway: Arc<Gateway>, entrance: &Entrance, request: Request) -> Response {
    let config = gateway.servers.config();
    let beside = entrance.beside(&config, (request.headers(), request.extensions()), None).await;
    if let Err(refusal) = access::to_everything(&config, request.headers(), &beside) {
        return refusal.response();
    }
    if let Some(refusal) = listen::refusal_of_proven(request.extensions()) {
        return refusal;
    }
    let servers = gateway.all_servers().into_iter().map(|server| {
        (
            server.name,
            ServerNow {
                state: server.state.map_or("", ServerState::as_str),
                calls_running: server.calls_running,
            },
        )
    });
    let saving = meta::saving(&gateway);
    let (sessions, notices_waiting) = gateway.sessions.counts();
    let kept = gateway.keeping.kept.counts().await.unwrap_or_default();
    let text = gateway.observing.metrics.render(MetricsNow {
        servers: servers.collect(),
        tasks_running: gateway.keeping.jobs.running(),
        notices_waiting,
        kept_entries: kept.entries,
        kept_bytes: kept.bytes,
        sessions,
        tools: gateway.publisher.snapshot().of_servers().count(),
        bytes_of_all_tools: saving.0,
        bytes_of_the_nine: saving.1,
        uptime_s: gateway.servers.uptime().as_secs(),
        cluster: gateway.keeping.cluster.as_ref().map(|cluster| {
            let known = cluster.replicas().known();
            let digest = gateway.servers.config().digest.clone();
            ClusterNow {
                replicas: known.len(),
                leaving: known.iter().filter(|replica| replica.leaving).count(),
                other_config: known.iter().filter(|replica| replica.config != digest).count(),
                is_whole: cluster.replicas().trouble().is_none(),
            }
        }),
    });
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(CONTENT_TYPE));
    response
}

async fn state(State(gateway): State<Arc<Gateway>>) -> Response {
    // From the first look on; until then, a gateway without a page records no calls.
    gateway.observing.calls.switch_on();
    gateway.look_at_definitions().await;
    let mut status = gateway.live_status();
    let config = gateway.servers.config();
    for server in &mut status.servers {
        let missing = config.left_out.get(&*server.name).map(UnusableEntry::missing).unwrap_or_default();
        server.missing = missing.into_keys().map(Into::into).collect();
    }
    let (all, nine) = meta::saving(&gateway);
    let clients = gateway.sessions.clients().into_iter().take(100);
    let clients =
        clients.map(|(session, client, profile)| ConnectedClient { session, client, profile }).collect();
    answer(
        StatusCode::OK,
        &PageState {
            status,
            saving: SavingView {
                sizes: DefinitionSizes { bytes_of_all_tools: all, bytes_of_the_nine: nine },
                spared: gateway.observing.metrics.spared(all),
            },
            config: config.file.clone(),
            pid: std::process::id(),
            switched_off: gateway.switched_off(),
            can_undo_setup: gateway.setup_undo.lock().is_some(),
            clients,
        },
    )
}

#[derive(Deserialize)]
struct SearchQuery {
    #[serde(default)]
    q: String,
    limit: Option<usize>,
}

async fn search(State(gateway): State<Arc<Gateway>>, Query(wanted): Query<SearchQuery>) -> Response {
    if wanted.q.trim().is_empty() {
        return answer(StatusCode::OK, &SearchAnswer::default());
    }
    let arguments = SearchArguments {
        query: wanted.q,
        limit: wanted.limit,
        reader: Reader::Shell,
        explain: true,
        ..SearchArguments::default()
    };
    match gateway.find.search(&Caller::default(), arguments).await {
        Ok(found) => answer(StatusCode::OK, &found),
        Err(fault) => answer(StatusCode::BAD_REQUEST, &fault.to_value()),
    }
}

/// Returns what waits for the user: approvals, definitions to trust, questions of clients and of the page's
/// own calls.
async fn waiting(State(gateway): State<Arc<Gateway>>) -> Response {
    let approvals = match gateway.asking.approvals.waiting().await {
        Ok(waiting) => waiting.iter().map(WaitingApproval::view).collect(),
        Err(error) => return failed(error),
    };
    match gateway.waiting_definitions(MOST_SHOWN).await {
        Ok((pins, total)) => {
            let shown = |pin: WaitingPin| MarkedDefinition {
                definition: pin.view(),
                on_change: gateway.on_change_of(&pin.pin.server),
                marked: pin.marked,
            };
            answer(
                StatusCode::OK,
                &WaitingForUser {
                    approvals,
                    definitions: pins.into_iter().map(shown).collect(),
                    total,
                    questions: gateway.asking.room.on_page(),
                    client_questions: gateway.asking.questions.open_ones(),
                },
            )
        }
        Err(why) => failed(why),
    }
}

fn failed(why: impl std::fmt::Display) -> Response {
    answer(StatusCode::INTERNAL_SERVER_ERROR, &ErrorAnswer::new(why))
}

/// How many definitions the page shows at once.
const MOST_SHOWN: usize = 100;

/// Decides an approval.
async fn decide(State(gateway): State<Arc<Gateway>>, Path(id): Path<String>, body: Bytes) -> Response {
    let wanted: DecisionRequest = match serde_json::from_slice(&body) {
        Ok(wanted) => wanted,
        Err(error) => return unreadable(&error),
    };
    let decision = ApprovalDecision { verdict: wanted.decision, answer: wanted.answer, by: "page".into() };
    match gateway.asking.approvals.decide(&id, decision).await {
        Ok(one) => {
            audit(&gateway, || json!({ "action": "approval", "id": id, "decided": one.decision() }));
            done()
        }
        Err(why) => refused(&why),
    }
}

fn unreadable(error: &serde_json::Error) -> Response {
    answer(StatusCode::BAD_REQUEST, &ErrorAnswer::new(error))
}

/// The longest answer of a webhook, in bytes.
const MAX_SAID: usize = 64 << 10;

/// Accepts a program's answer at the one-time address of its question.
async fn answer_at(
    State(gateway): State<Arc<Gateway>>,
    Path(address): Path<String>,
    request: Request,
) -> Response {
    let limit = gateway.servers.config().limits.request_timeout;
    let body = axum::body::to_bytes(request.into_body(), MAX_SAID);
    let Ok(Ok(body)) = tokio::time::timeout(limit, body).await else {
        let error = ErrorAnswer::new("the answer did not arrive, or is too long");
        return answer(StatusCode::REQUEST_TIMEOUT, &error);
    };
    let said = serde_json::from_slice(&body).unwrap_or_default();
    match gateway.asking.answer_at(&address, &said).await {
        Ok(()) => done(),
        Err(why) => refused(&why),
    }
}

fn refused(why: &AnswerError) -> Response {
    let status = match why {
        AnswerError::Unknown => StatusCode::NOT_FOUND,
        AnswerError::Unfit(_) => StatusCode::BAD_REQUEST,
        AnswerError::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
    };
    answer(status, &ErrorAnswer::new(why))
}

/// Trusts definitions as the page has shown them: each by its name and its hash.
async fn trust(State(gateway): State<Arc<Gateway>>, body: Bytes) -> Response {
    let wanted: Vec<TrustRequest> = match serde_json::from_slice(&body) {
        Ok(wanted) => wanted,
        Err(error) => return unreadable(&error),
    };
    let waiting = match gateway.waiting_definitions(MOST_SHOWN).await {
        Ok((waiting, _)) => waiting,
        Err(why) => return failed(why),
    };
    let is_wanted = |one: &WaitingPin| {
        let hash = one.pin.waiting.as_deref();
        wanted.iter().any(|wanted| Some(&*wanted.hash) == hash && wanted.name == one.name())
    };
    let seen: Vec<_> = waiting.into_iter().filter(is_wanted).map(|one| one.pin).collect();
    match gateway.calls.trust(seen).await {
        Ok(trusted) => {
            tracing::info!(trusted, "definitions were trusted on the live page");
            audit(&gateway, || json!({ "action": "trust", "definitions": wanted.len(), "trusted": trusted }));
            let changed = wanted.len().saturating_sub(trusted);
            answer(StatusCode::OK, &TrustReport { trusted, changed_meanwhile: changed })
        }
        Err(why) => failed(why),
    }
}

fn done() -> Response {
    let mut done = Response::new(Body::empty());
    *done.status_mut() = StatusCode::NO_CONTENT;
    done
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use nonet_api::reference::ENDPOINTS;
    use regex::Regex;

    #[test]
    fn every_route_is_described() {
        let sources = [
            include_str!("page.rs"),
            include_str!("page/calls.rs"),
            include_str!("page/clients.rs"),
            include_str!("page/gateways.rs"),
            include_str!("page/questions.rs"),
            include_str!("page/registry.rs"),
            include_str!("page/servers.rs"),
            include_str!("page/setup.rs"),
            include_str!("page/tools.rs"),
            include_str!("page/work.rs"),
        ];
        let route = Regex::new(r#"\.route\(\s*"(/ui/api/[^"]+)",\s*((?:\.?(?:get|post)\(\w+\))+)"#).unwrap();
        let method = Regex::new(r"(get|post)\(").unwrap();
        let mut routes = BTreeSet::new();
        for source in sources {
            for found in route.captures_iter(source) {
                let methods = method.captures_iter(found.get(2).expect("its handlers").as_str());
                routes.extend(methods.map(|of| (found[1].to_string(), of[1].to_uppercase())));
            }
        }
        let described = ENDPOINTS.iter().filter(|one| one.path.starts_with("/ui/api/"));
        let described = described.map(|one| (one.path.to_string(), one.method.to_string()));
        assert_eq!(routes, described.collect());
    }
}
