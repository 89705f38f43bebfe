//! A remote service: an MCP server that requires a bearer token, and its authorization server.
//!
//! As strict as real services: codes and refresh tokens work once, PKCE is verified, `resource` is compared,
//! and a client with a secret must send it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex},
    thread,
};

use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::{Form, Query, State},
    http::{HeaderMap, Method, StatusCode, Uri, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;

use crate::fake;

/// The behaviour of the service.
#[derive(Clone)]
pub struct Manner {
    /// The stated lifetime of a token, in seconds.
    pub expires_in: Option<u64>,
    /// Whether clients that register get a secret.
    pub secret: bool,
    /// Whether clients can register at all.
    pub registers: bool,
    /// Additional metadata, overriding existing fields.
    pub metadata: Value,
    /// Tools that require a scope of their own, by tool name.
    pub scopes: BTreeMap<String, String>,
    /// Whether the user refuses.
    pub user_says_no: bool,
    /// The script of the server behind it.
    pub script: Value,
    /// The scripts of the servers for some people.
    pub people: BTreeMap<String, Value>,
}

impl Default for Manner {
    fn default() -> Self {
        Self {
            expires_in: Some(3600),
            secret: false,
            registers: true,
            metadata: json!({}),
            scopes: BTreeMap::new(),
            user_says_no: false,
            script: json!({ "tools": [{ "name": "echo" }, { "name": "write" }] }),
            people: BTreeMap::new(),
        }
    }
}

/// The service, running.
#[derive(Clone)]
pub struct Service(Arc<Inner>);

struct Inner {
    manner: Manner,
    base: String,
    /// The address of the server behind the service.
    behind: String,
    /// Those of some people.
    of_people: BTreeMap<String, String>,
    client: reqwest::Client,
    state: Mutex<ServiceState>,
}

#[derive(Default)]
struct ServiceState {
    clients: HashMap<String, Option<String>>,
    /// Who is signed in with the browser.
    person: String,
    /// The challenge, the scope and the person of each code.
    codes: HashMap<String, (String, Granted)>,
    /// What each token is for.
    tokens: HashMap<String, Granted>,
    refresh_tokens: HashMap<String, Granted>,
    /// Every secret issued so far.
    given: BTreeSet<String>,
    /// Requests received, in order: `register`, `authorize`, `code`, `refresh`, `client_credentials`, `mcp`,
    /// `refused`.
    log: Vec<String>,
    count: u64,
    mood: Mood,
    /// Requests to the server that belong to the authorization server.
    strayed: Vec<String>,
}

/// What somebody has granted.
#[derive(Clone, Default)]
struct Granted {
    scope: String,
    person: String,
}

/// The current fault.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub enum Mood {
    /// No fault.
    #[default]
    Good,
    /// The authorization server answers everything with 503.
    Down,
    /// The server no longer names its authorization server.
    Forgetful,
    /// The server rejects every token, even new ones.
    Stubborn,
    /// The authorization server delays its answer to a completed renewal.
    Slow,
    /// The authorization server has forgotten the client.
    Estranged,
}

type Params = HashMap<String, String>;
type Refusal = Box<Response>;

impl Service {
    /// Starts the service on its own thread.
    pub fn start(manner: Manner) -> Self {
        let (sender, started) = std::sync::mpsc::channel();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
                let base = format!("http://{}", listener.local_addr().expect("it is bound"));
                let server = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
                let behind = format!("http://{}", server.local_addr().expect("it is bound"));
                tokio::spawn(fake::serve_http(manner.script.clone().into(), server));
                let mut of_people = BTreeMap::new();
                for (person, script) in &manner.people {
                    let server = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
                    let at = format!("http://{}", server.local_addr().expect("it is bound"));
                    of_people.insert(person.clone(), at);
                    tokio::spawn(fake::serve_http(script.clone().into(), server));
                }
                let client = nonet_wire::web::client().expect("a client");
                let state = Mutex::default();
                let service = Self(Arc::new(Inner { manner, base, behind, of_people, client, state }));
                sender.send(service.clone()).expect("somebody waits");
                let router = Router::new()
                    .route("/.well-known/oauth-protected-resource/mcp", get(resource))
                    .route("/.well-known/oauth-authorization-server/login", get(metadata))
                    .route("/login/register", post(register))
                    .route("/login/authorize", get(authorize))
                    .route("/login/token", post(token))
                    .fallback(serve)
                    .with_state(service);
                axum::serve(listener, router).await.expect("it serves");
            });
        });
        started.recv().expect("it starts")
    }

    /// Returns the address of the authorization server.
    pub fn issuer(&self) -> String {
        format!("{}/login", self.0.base)
    }

    pub fn url(&self) -> String {
        format!("{}/mcp", self.0.base)
    }

    /// Counts the requests of a kind.
    pub fn count(&self, what: &str) -> usize {
        self.held(|held| held.log.iter().filter(|entry| *entry == what).count())
    }

    /// Lets somebody be signed in with the browser from now on.
    pub fn is_visited_by(&self, person: &str) {
        self.held(|held| held.person = person.into());
    }

    /// Accepts a token that somebody else issued.
    pub fn accepts(&self, token: &str, person: &str) {
        let granted = Granted { scope: String::new(), person: person.into() };
        self.held(|held| drop(held.tokens.insert(token.into(), granted)));
    }

    /// Rejects all access tokens issued so far, and with `all` all refresh tokens too.
    pub fn revoke(&self, all: bool) {
        self.held(|held| {
            held.tokens.clear();
            if all {
                held.refresh_tokens.clear();
            }
        });
    }

    pub fn set(&self, mood: Mood) {
        self.held(|held| held.mood = mood);
    }

    /// Returns the requests to the server that belong to the authorization server.
    pub fn strayed(&self) -> Vec<String> {
        self.held(|held| held.strayed.clone())
    }

    /// Panics if a text contains any issued secret.
    pub fn assert_hidden(&self, what: &str, text: &str) {
        let given = self.held(|held| held.given.clone());
        assert!(!given.is_empty(), "nothing was given yet");
        for secret in given {
            assert!(!text.contains(&secret), "{what} holds `{secret}`");
        }
    }

    fn held<T>(&self, look: impl FnOnce(&mut ServiceState) -> T) -> T {
        look(&mut self.0.state.lock().expect("nobody panicked"))
    }

    fn refused(&self, status: StatusCode, challenge: &str) -> Response {
        self.held(|held| held.log.push("refused".into()));
        let metadata = format!("{}/.well-known/oauth-protected-resource/mcp", self.0.base);
        let challenge = format!("Bearer resource_metadata=\"{metadata}\"{challenge}");
        (status, [(header::WWW_AUTHENTICATE, challenge)]).into_response()
    }
}

impl ServiceState {
    fn new_secret(&mut self, kind: &str) -> String {
        self.count += 1;
        let secret = format!("{kind}-{}-{}", self.count, "s3cret".repeat(3));
        self.given.insert(secret.clone());
        secret
    }
}

async fn resource(State(service): State<Service>) -> Response {
    if service.held(|held| held.mood == Mood::Forgetful) {
        return StatusCode::NOT_FOUND.into_response();
    }
    Json(json!({
        "resource": service.url(), "authorization_servers": [service.issuer()], "scopes_supported": ["read"],
    }))
    .into_response()
}

async fn metadata(State(service): State<Service>) -> Response {
    if service.held(|held| held.mood == Mood::Down) {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    let base = &service.issuer();
    let mut metadata = json!({
        "issuer": base,
        "authorization_endpoint": format!("{base}/authorize"),
        "token_endpoint": format!("{base}/token"),
        "response_types_supported": ["code"],
        "code_challenge_methods_supported": ["S256"],
        "authorization_response_iss_parameter_supported": true,
        "token_endpoint_auth_methods_supported": ["none", "client_secret_post"],
    });
    if service.0.manner.registers {
        metadata["registration_endpoint"] = json!(format!("{base}/register"));
    }
    for (key, value) in service.0.manner.metadata.as_object().into_iter().flatten() {
        metadata[key] = value.clone();
    }
    Json(metadata).into_response()
}

async fn register(State(service): State<Service>, Json(request): Json<Value>) -> Response {
    let (id, secret) = service.held(|held| {
        held.log.push("register".into());
        let id = format!("client-{}", held.clients.len());
        let secret = service.0.manner.secret.then(|| held.new_secret("client"));
        held.clients.insert(id.clone(), secret.clone());
        (id, secret)
    });
    let mut answer = json!({ "client_id": id, "redirect_uris": request["redirect_uris"] });
    if let Some(secret) = secret {
        answer["client_secret"] = json!(secret);
    }
    (StatusCode::CREATED, Json(answer)).into_response()
}

async fn authorize(State(service): State<Service>, Query(params): Query<Params>) -> Response {
    let get = |name: &str| params.get(name).cloned().unwrap_or_default();
    if get("code_challenge_method") != "S256" || get("resource") != service.url() {
        return (StatusCode::BAD_REQUEST, format!("{params:?}")).into_response();
    }
    let (state, issuer) = (get("state"), service.issuer());
    let outcome = service.held(|held| {
        held.log.push(format!("authorize {}", get("scope")));
        held.log.push("authorize".into());
        if service.0.manner.user_says_no {
            return "error=access_denied&error_description=The+user+said+no".to_string();
        }
        let code = held.new_secret("code");
        let granted = Granted { scope: get("scope"), person: held.person.clone() };
        held.codes.insert(code.clone(), (get("code_challenge"), granted));
        format!("code={code}")
    });
    let to = format!("{}?{outcome}&state={state}&iss={issuer}", get("redirect_uri"));
    (StatusCode::FOUND, [(header::LOCATION, to)]).into_response()
}

async fn token(State(service): State<Service>, headers: HeaderMap, Form(params): Form<Params>) -> Response {
    let get = |name: &str| params.get(name).cloned().unwrap_or_default();
    let bad = |error: &str| {
        Refusal::new((StatusCode::BAD_REQUEST, Json(json!({ "error": error }))).into_response())
    };
    let kind = get("grant_type");
    let answer = service.held(|held| {
        if held.mood == Mood::Down {
            return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE.into_response()));
        }
        let name = match kind.as_str() {
            "authorization_code" => "code",
            "refresh_token" => "refresh",
            other => other,
        };
        held.log.push(name.into());
        if held.mood == Mood::Estranged {
            return Err(bad("invalid_client"));
        }
        if get("resource") != service.url() {
            return Err(bad("invalid_target"));
        }
        if let Some(secret) = held.clients.get(&get("client_id")).cloned().flatten()
            && get("client_secret") != secret
            && !headers.contains_key(header::AUTHORIZATION)
        {
            return Err(bad("invalid_client"));
        }
        let granted = match kind.as_str() {
            "authorization_code" => {
                let Some((challenge, granted)) = held.codes.remove(&get("code")) else {
                    return Err(bad("invalid_grant"));
                };
                let digest = Sha256::digest(get("code_verifier"));
                if BASE64_URL_SAFE_NO_PAD.encode(digest) != challenge {
                    return Err(bad("invalid_grant"));
                }
                granted
            }
            "refresh_token" => match held.refresh_tokens.remove(&get("refresh_token")) {
                Some(granted) => granted,
                None => return Err(bad("invalid_grant")),
            },
            "client_credentials" if get("client_secret") == "machine-s3cret" => {
                Granted { scope: get("scope"), ..Granted::default() }
            }
            // The assertion of an issuer that it trusts, about a person (RFC 7523).
            "urn:ietf:params:oauth:grant-type:jwt-bearer" => {
                match get("assertion").strip_prefix("exchanged-") {
                    Some(person) => Granted { scope: get("scope"), person: person.into() },
                    None => return Err(bad("invalid_grant")),
                }
            }
            _ => return Err(bad("unauthorized_client")),
        };
        let token = held.new_secret("access");
        held.tokens.insert(token.clone(), granted.clone());
        let mut answer = json!({ "access_token": token, "token_type": "Bearer", "scope": granted.scope });
        if let Some(expires_in) = service.0.manner.expires_in {
            answer["expires_in"] = json!(expires_in);
        }
        if kind != "client_credentials" {
            let refresh = held.new_secret("refresh");
            held.refresh_tokens.insert(refresh.clone(), granted);
            answer["refresh_token"] = json!(refresh);
        }
        Ok(answer)
    });
    if kind == "refresh_token" && service.held(|held| held.mood == Mood::Slow) {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
    answer.map_or_else(|refusal| *refusal, |answer| Json(answer).into_response())
}

/// Forwards requests with a token to the server behind the service.
async fn serve(
    State(service): State<Service>,
    method: Method,
    uri: Uri,
    mut headers: HeaderMap,
    body: Bytes,
) -> Response {
    if !uri.path().starts_with("/mcp") {
        let body = String::from_utf8_lossy(&body);
        if method == Method::POST {
            service.held(|held| held.strayed.push(format!("{uri} {headers:?} {body}")));
        }
        return StatusCode::NOT_FOUND.into_response();
    }
    let token = headers.remove(header::AUTHORIZATION);
    let token = token.as_ref().and_then(|token| token.to_str().ok()?.strip_prefix("Bearer "));
    let good = |held: &mut ServiceState, token: &str| {
        held.tokens.get(token).filter(|_| held.mood != Mood::Stubborn).cloned()
    };
    let granted = token.and_then(|token| service.held(|held| good(held, token)));
    let Some(Granted { scope, person }) = granted else {
        return service.refused(StatusCode::UNAUTHORIZED, "");
    };
    let request: Value = serde_json::from_slice(&body).unwrap_or_default();
    let tool = request["params"]["name"].as_str().unwrap_or_default();
    if let Some(wanted) = service.0.manner.scopes.get(tool)
        && !scope.split(' ').any(|scope| scope == wanted)
    {
        let challenge = format!(", error=\"insufficient_scope\", scope=\"{wanted}\"");
        return service.refused(StatusCode::FORBIDDEN, &challenge);
    }
    service.held(|held| held.log.push("mcp".into()));
    if tool == "whoami" && request["method"] == "tools/call" {
        let content = json!([{ "type": "text", "text": person }]);
        let result = json!({ "content": content, "resultType": "complete" });
        return Json(json!({ "jsonrpc": "2.0", "id": request["id"], "result": result })).into_response();
    }
    headers.remove(header::HOST);
    let behind = service.0.of_people.get(&person).unwrap_or(&service.0.behind);
    let request = service.0.client.request(method, format!("{behind}{uri}"));
    match request.headers(headers).body(body).send().await {
        Ok(answer) => {
            let (status, mut headers) = (answer.status(), answer.headers().clone());
            headers.remove(header::TRANSFER_ENCODING);
            (status, headers, Body::from_stream(answer.bytes_stream())).into_response()
        }
        Err(error) => (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
    }
}
