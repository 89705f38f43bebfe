//! People in browsers: they sign in at the issuer of `[auth.page]`, see the live page as their role allows, and
//! sign in to servers with accounts of their own.
//!
//! The gateway keeps nothing about a browser: its session and its sign-ins are sealed cookies (`cookies`), so that
//! any replica answers, and a restart signs nobody out.

// An answer that refuses is made once for each request of a person; nothing is gained by boxing it.
#![allow(clippy::result_large_err)]

mod accounts;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::Body,
    extract::{Query, Request, State},
    middleware::Next,
    response::Response,
    routing::{get, post},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use nonet_api::page::{ErrorAnswer, PageRole, PageUser};
use nonet_auth::{
    BroughtBack, BrowserFault, BrowserSignIn, Issuers, PersonName, TokenFault,
    cookies::{BrowserSession, Cookies, OpenSignIn, SignInKind},
    local_target,
    metadata::{self, challenge},
};
use nonet_config::{AuthSettings, BearerToken, Config, PageSettings};
use nonet_core::Gateway;
use nonet_servers::oauth::PeopleVault;
use nonet_wire::html;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use super::{
    access::{Entrance, only_bearer},
    listen,
};

/// How many sign-ins are finished at the same time: each asks the issuer or a sign-in server.
const AT_ONCE: usize = 16;
/// The header with the value that shows that a request comes from the page itself.
const CSRF: &str = "x-nonet-csrf";
/// Where the issuer sends browsers back to.
const CALLBACK: &str = "/ui/callback";

/// Who asks for something on the page.
#[derive(Clone, Debug)]
pub(super) struct Visitor {
    /// The person; none for the token of this machine's user.
    pub person: Option<PersonName>,
    /// What they may do.
    pub role: PageRole,
    /// What their browser sends with each order.
    csrf: Option<String>,
}

impl Visitor {
    /// Returns this machine's user, who may do everything.
    pub(super) fn owner() -> Self {
        Self { person: None, role: PageRole::Administer, csrf: None }
    }

    pub(super) fn view(&self) -> PageUser {
        let name = self.person.as_ref().map(|person| person.name.to_string());
        PageUser { name, role: self.role, csrf: self.csrf.clone() }
    }
}

/// The sign-ins of browsers at a gateway.
pub(super) struct Browsers {
    pub(super) gateway: Arc<Gateway>,
    entrance: Arc<Entrance>,
    finishing: Semaphore,
    /// When a failed sign-in was last written into the audit log.
    failed: Mutex<Option<Instant>>,
}

/// What is needed to answer a browser: the configuration of the moment.
struct Now {
    config: Arc<Config>,
    issuers: Arc<Issuers>,
    cookies: Cookies,
}

impl Now {
    fn auth(&self) -> Result<&AuthSettings, Response> {
        self.config.auth.as_ref().ok_or_else(no_page)
    }

    fn page(&self) -> Result<&PageSettings, Response> {
        self.auth()?.page.as_ref().ok_or_else(no_page)
    }
}

impl Browsers {
    pub(super) fn new(gateway: &Arc<Gateway>, entrance: Arc<Entrance>) -> Arc<Self> {
        Arc::new(Self {
            gateway: gateway.clone(),
            entrance,
            finishing: Semaphore::new(AT_ONCE),
            failed: Mutex::default(),
        })
    }

    /// Whether people get the page here: they sign in with browsers, and the page is not switched off.
    pub(super) fn shows_page(&self) -> bool {
        let config = self.gateway.servers.config();
        config.gateway.page && config.auth.as_ref().is_some_and(|auth| auth.page.is_some())
    }

    /// Whether a failed sign-in goes into the audit log: anybody can make them, so only some do.
    fn may_log_failure(&self) -> bool {
        let mut failed = self.failed.lock();
        let may = failed.is_none_or(|at| at.elapsed() >= Duration::from_secs(1));
        if may {
            *failed = Some(Instant::now());
        }
        may
    }

    fn people(&self) -> Result<&Arc<PeopleVault>, Response> {
        self.gateway.servers.around.people.as_ref().ok_or_else(no_page)
    }

    /// Returns the configuration of the moment with its issuers; or the answer where nobody signs in with a
    /// browser.
    fn now(&self) -> Result<Now, Response> {
        self.known_now().map_err(|why| failure(why.status(), &format!("{why}."), None))
    }

    fn known_now(&self) -> Result<Now, NobodySignsIn> {
        let config = self.gateway.servers.config();
        let around = &self.gateway.servers.around;
        let people = around.people.as_ref().ok_or(NobodySignsIn::Here)?;
        let auth = config.auth.as_ref().filter(|auth| auth.page.is_some()).ok_or(NobodySignsIn::Here)?;
        let later = |why: &str| {
            tracing::warn!(why, "nobody can sign in with a browser");
            NobodySignsIn::Now
        };
        let issuers = self.entrance.issuers(&config, auth).map_err(|why| later(&why))?;
        let cookies = Cookies::new(&people.seals).map_err(|error| later(&error.to_string()))?;
        Ok(Now { config: config.clone(), issuers, cookies })
    }

    /// Returns the session of a browser, unless it is over or its person may not come in any more.
    fn session(&self, now: &Now, headers: &HeaderMap) -> Option<BrowserSession> {
        let auth = now.config.auth.as_ref()?;
        let session = now.cookies.session(headers)?;
        let is_current = session.of == settings_digest(auth.page.as_ref()?);
        (is_current && auth.still_admits(&session.person.issuer, &session.person.subject)).then_some(session)
    }

    /// Returns who sends a request of the page, or the refusal.
    pub(super) async fn visitor(&self, method: &Method, headers: &HeaderMap) -> Result<Visitor, Response> {
        let now =
            self.known_now().map_err(|why| super::page::answer(why.status(), &ErrorAnswer::new(why)))?;
        let (auth, page) = (now.auth()?, now.page()?);
        if let Some(token) = only_bearer(headers) {
            let digest = BearerToken::new(token);
            // A token of the file goes to no issuer.
            let person = match now.config.has_token(digest) {
                true => {
                    Err(TokenFault::Invalid("it is one of servers.toml, which opens `/mcp` alone".into()))
                }
                false => now.issuers.identify(token, digest, &metadata::resource(auth, None)).await,
            };
            let person = person.map_err(|fault| no_visitor(auth, &fault))?;
            let Some(role) = page.role_by_scopes(&person.scopes) else {
                return Err(needs_scopes(auth, page, PageRole::Look));
            };
            if auth.scopes.iter().any(|scope| !person.scopes.contains(scope)) {
                return Err(needs_scopes(auth, page, role));
            }
            let person = Some(PersonName::of(&person));
            return Ok(Visitor { person, role, csrf: None });
        }
        let Some(session) = self.session(&now, headers) else {
            let mut told = ErrorAnswer::new("sign in first: open the page in a browser");
            told.error.sign_in = Some("/ui/login".into());
            return Err(super::page::answer(StatusCode::UNAUTHORIZED, &told));
        };
        let is_order = !matches!(*method, Method::GET | Method::HEAD);
        let given = headers.get(CSRF).and_then(|given| given.to_str().ok());
        if is_order && !session.sent(&auth.public_url, headers, given) {
            let told =
                ErrorAnswer::new("this request does not come from the page (`x-nonet-csrf`): reload it");
            return Err(super::page::answer(StatusCode::FORBIDDEN, &told));
        }
        let name = session.person.clone();
        let Some(role) = session.role else {
            let told = format!(
                "{} has signed in, but has no role on this page: ask whoever runs this gateway for one",
                name.name
            );
            return Err(super::page::answer(StatusCode::FORBIDDEN, &ErrorAnswer::new(told)));
        };
        Ok(Visitor { person: Some(name), role, csrf: Some(session.csrf) })
    }

    /// Returns the refusal of somebody whose role does not suffice.
    pub(super) fn lacks_role(&self, visitor: &Visitor, needed: PageRole) -> Response {
        let config = self.gateway.servers.config();
        if visitor.csrf.is_none()
            && let Some(auth) = &config.auth
            && let Some(page) = &auth.page
        {
            return needs_scopes(auth, page, needed);
        }
        let told = format!("this needs the role `{needed}`, and yours is `{}`", visitor.role);
        super::page::answer(StatusCode::FORBIDDEN, &ErrorAnswer::new(told))
    }
}

/// Why nobody signs in with a browser.
#[derive(Debug, thiserror::Error)]
enum NobodySignsIn {
    #[error("Nobody signs in here with a browser: servers.toml has no [auth.page]")]
    Here,
    #[error("Nobody can sign in at the moment; the gateway's log says why")]
    Now,
}

impl NobodySignsIn {
    fn status(&self) -> StatusCode {
        match self {
            Self::Here => StatusCode::NOT_FOUND,
            Self::Now => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// Returns the refusal of a program whose token names nobody who may come in.
fn no_visitor(auth: &AuthSettings, fault: &TokenFault) -> Response {
    let status = match fault {
        TokenFault::Invalid(_) | TokenFault::OtherAudience(_) => StatusCode::UNAUTHORIZED,
        TokenFault::Blocked => StatusCode::FORBIDDEN,
        TokenFault::Away(_) => StatusCode::SERVICE_UNAVAILABLE,
    };
    let told = fault.to_string();
    let mut refused = super::page::answer(status, &ErrorAnswer::new(&told));
    if status == StatusCode::UNAUTHORIZED {
        challenged(&mut refused, &challenge(auth, None, Some(("invalid_token", &told)), &[]));
    }
    refused
}

/// Returns the refusal of a program whose token lacks the scopes of a role.
fn needs_scopes(auth: &AuthSettings, page: &PageSettings, needed: PageRole) -> Response {
    let mut enough = page.roles.range(needed..).map(|(_, rule)| &rule.scopes);
    let of_role = enough.find(|scopes| !scopes.is_empty()).cloned().unwrap_or_default();
    let scopes: Vec<String> = match of_role.is_empty() {
        true => of_role,
        false => of_role.into_iter().chain(auth.scopes.iter().cloned()).collect(),
    };
    let told = match scopes.is_empty() {
        true => format!("no access token opens this: [auth.page] names no scopes for the role `{needed}`"),
        false => format!("this needs an access token with the scopes `{}`", scopes.join(" ")),
    };
    let mut refused = super::page::answer(StatusCode::FORBIDDEN, &ErrorAnswer::new(&told));
    challenged(&mut refused, &challenge(auth, None, Some(("insufficient_scope", &told)), &scopes));
    refused
}

fn challenged(response: &mut Response, challenge: &str) {
    if let Ok(challenge) = HeaderValue::from_str(challenge) {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
    }
}

/// Returns a digest of settings that decide who has a session: a change of them ends all sessions.
fn settings_digest(page: &PageSettings) -> String {
    let secret = page.client_secret.as_ref().map(|secret| secret.expose()).unwrap_or_default();
    let text = format!("{page:?}{}", BearerToken::new(secret).alias());
    URL_SAFE_NO_PAD.encode(&Sha256::digest(text)[..12])
}

/// Returns the routes of browsers. Where nobody signs in with one, each answers that.
pub(super) fn router(browsers: &Arc<Browsers>) -> Router {
    Router::new()
        .route("/ui/login", get(login))
        .route(CALLBACK, get(came_back))
        .route("/ui/logout", post(logout))
        .route("/ui/signed-out", get(signed_out))
        .merge(accounts::routes().route_layer(axum::middleware::from_fn_with_state(browsers.clone(), prove)))
        .with_state(browsers.clone())
}

/// Counts the connection of a browser that has signed in among those of known clients.
async fn prove(State(browsers): State<Arc<Browsers>>, request: Request, next: Next) -> Response {
    let is_known = browsers.known_now().is_ok_and(|now| browsers.session(&now, request.headers()).is_some());
    match is_known.then(|| listen::refusal_of_proven(request.extensions())).flatten() {
        Some(refusal) => refusal,
        None => next.run(request).await,
    }
}

#[derive(Deserialize)]
struct LoginQuery {
    #[serde(default)]
    to: String,
}

/// Sends a browser to the issuer.
async fn login(
    State(browsers): State<Arc<Browsers>>,
    Query(query): Query<LoginQuery>,
) -> Result<Response, Response> {
    let now = browsers.now()?;
    let (auth, page) = (now.auth()?, now.page()?);
    let random = || now.cookies.random().map_err(|error| away(&error.to_string()));
    let _turn = browsers.finishing.try_acquire().map_err(|_| busy())?;
    let redirect_uri = format!("{}{CALLBACK}", auth.public_url);
    let sign_in = BrowserSignIn::new(page, redirect_uri, [random()?, random()?, random()?]);
    let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(&sign_in.verifier));
    let address = now.issuers.address_for_browser(page, &sign_in, &challenge).await;
    let address = address.map_err(|fault| told(&fault))?;
    let open = OpenSignIn::Page { sign_in, to: local_target(&query.to) };
    let mut response = redirect(&address)?;
    now.cookies.set_sign_in(response.headers_mut(), &open).map_err(|error| away(&error.to_string()))?;
    Ok(response)
}

/// Takes a browser that comes back from the issuer.
async fn came_back(
    State(browsers): State<Arc<Browsers>>,
    Query(back): Query<BroughtBack>,
    request: Request,
) -> Result<Response, Response> {
    let now = browsers.now()?;
    let (auth, page) = (now.auth()?, now.page()?);
    let Some(OpenSignIn::Page { sign_in, to }) = now.cookies.sign_in(request.headers(), SignInKind::Page)
    else {
        return Err(failure(
            StatusCode::BAD_REQUEST,
            "This browser has begun no sign-in, or too long ago. Begin again.",
            Some("/ui/login"),
        ));
    };
    let _turn = browsers.finishing.try_acquire().map_err(|_| busy())?;
    let person = Box::pin(now.issuers.of_browser(page, &sign_in, &back)).await;
    let (person, missing) = match person {
        Ok(signed_in) => signed_in,
        Err(fault) => {
            tracing::warn!(%fault, "a browser was not signed in");
            if browsers.may_log_failure() {
                let about = || json!({ "action": "sign_in_failed", "why": fault.to_string() });
                browsers.gateway.observing.audit_event("page", about);
            }
            // Another tab's sign-in goes on.
            let is_other = back.state != sign_in.state;
            let mut response = told(&fault);
            if !is_other {
                now.cookies.drop_sign_in(response.headers_mut(), SignInKind::Page);
            }
            return Err(response);
        }
    };
    let role = page.role_by_claims(&person.claims);
    if let Some(why) = missing {
        tracing::warn!(subject = %person.subject, why, "what the issuer says about a person besides their ID token is not read");
    }
    let session = BrowserSession::new(&now.cookies, &person, role, settings_digest(page), page.lasts);
    let session = session.map_err(|error| away(&error.to_string()))?;
    tracing::info!(subject = %person.subject, role = role.map(PageRole::as_str), "signed in with a browser");
    let name = PersonName::of(&person);
    browsers
        .gateway
        .observing
        .audit_event("page", || json!({ "action": "sign_in", "person": name, "role": role }));
    // Not by a redirect: some browsers send no `Lax` cookie that was set on the way from another site.
    let mut response = html::onward(&format!("{}{to}", auth.public_url), "Signed in.");
    now.cookies.drop_sign_in(response.headers_mut(), SignInKind::Page);
    now.cookies.set_session(response.headers_mut(), &session).map_err(|error| away(&error.to_string()))?;
    Ok(response)
}

#[derive(Deserialize)]
struct FormOrder {
    #[serde(default)]
    csrf: String,
    #[serde(default)]
    scope: String,
}

/// Ends the session of a browser.
async fn logout(
    State(browsers): State<Arc<Browsers>>,
    headers: HeaderMap,
    axum::Form(form): axum::Form<FormOrder>,
) -> Result<Response, Response> {
    let now = browsers.now()?;
    if let Some(session) = browsers.session(&now, &headers)
        && !session.sent(&now.auth()?.public_url, &headers, Some(&form.csrf))
    {
        return Err(failure(
            StatusCode::FORBIDDEN,
            "This request does not come from a page of this gateway.",
            Some("/ui"),
        ));
    }
    let mut response = redirect("/ui/signed-out")?;
    now.cookies.drop_session(response.headers_mut());
    Ok(response)
}

async fn signed_out() -> Response {
    html::message(
        "Signed out",
        "You have signed out here. Your sign-in at the issuer may go on.",
        Some(("/ui/login", "Sign in")),
    )
}

/// Returns a page that says why something was not done.
fn failure(status: StatusCode, sentence: &str, again: Option<&str>) -> Response {
    html::failure(status, "Not done", sentence, again)
}

/// Returns a redirect (RFC 9110, section 15.4.4).
fn redirect(to: &str) -> Result<Response, Response> {
    let to =
        HeaderValue::from_str(to).map_err(|_| away("the issuer names an address that cannot be sent"))?;
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SEE_OTHER;
    let headers = response.headers_mut();
    headers.insert(header::LOCATION, to);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    Ok(response)
}

fn no_page() -> Response {
    failure(
        StatusCode::NOT_FOUND,
        "Nobody signs in here with a browser: servers.toml has no [auth.page].",
        None,
    )
}

fn busy() -> Response {
    failure(StatusCode::SERVICE_UNAVAILABLE, "Many sign-ins are open. Reload this page in a moment.", None)
}

fn away(why: &str) -> Response {
    tracing::warn!(why, "a browser cannot sign in");
    failure(
        StatusCode::SERVICE_UNAVAILABLE,
        "Nobody can sign in at the moment; the gateway's log says why.",
        None,
    )
}

fn told(fault: &BrowserFault) -> Response {
    let status = match fault {
        BrowserFault::Away(why) => return away(why),
        BrowserFault::Refused(_) | BrowserFault::Blocked => StatusCode::FORBIDDEN,
        BrowserFault::Forged(_) => StatusCode::BAD_REQUEST,
    };
    failure(status, &format!("You are not signed in: {fault}."), Some("/ui/login"))
}
