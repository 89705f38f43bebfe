//! An issuer of access tokens on a port of its own, and its keys.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
};

use axum::{
    Router,
    extract::{Query, Request, State},
    http::{StatusCode, Uri},
    response::{IntoResponse, Response},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair},
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, runtime, sync::oneshot};

/// A key that signs tokens with ES256.
#[derive(Debug)]
pub struct TokenKey {
    /// Its id (`kid`).
    pub id: String,
    pair: EcdsaKeyPair,
}

impl TokenKey {
    /// Makes a key.
    ///
    /// # Panics
    ///
    /// If the system has no random numbers.
    pub fn new(id: &str) -> Self {
        let random = SystemRandom::new();
        let document =
            EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).expect("a key");
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, document.as_ref(), &random);
        Self { id: id.into(), pair: pair.expect("a key") }
    }

    /// Returns the point that is its public key.
    pub fn point(&self) -> &[u8] {
        self.pair.public_key().as_ref()
    }

    /// Returns it as its issuer shows it (RFC 7517).
    pub fn public(&self) -> Value {
        let number = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let (x, y) = (number(&self.point()[1..33]), number(&self.point()[33..]));
        json!({ "kty": "EC", "crv": "P-256", "kid": self.id, "x": x, "y": y })
    }

    /// Returns the header of its tokens.
    pub fn header(&self) -> Value {
        json!({ "alg": "ES256", "kid": self.id, "typ": "at+jwt" })
    }

    /// Returns a token with this header and these claims, signed.
    ///
    /// # Panics
    ///
    /// If the system has no random numbers.
    pub fn token(&self, header: &Value, claims: &Value) -> String {
        let text = unsigned(header, claims);
        let signature = self.pair.sign(&SystemRandom::new(), text.as_bytes()).expect("a signature");
        format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
    }
}

/// Returns the part of a token that is signed.
pub fn unsigned(header: &Value, claims: &Value) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}", part(header), part(claims))
}

/// What an issuer answers.
#[derive(Debug, Default)]
struct Answers {
    metadata: Mutex<Value>,
    keys: Mutex<Vec<Value>>,
    about: Mutex<Value>,
    /// Who is signed in with the browser: the key of their ID tokens, and the claims.
    browser: Mutex<Option<(Arc<TokenKey>, Value)>>,
    /// The query of each authorization whose code was not used yet, by code.
    codes: Mutex<HashMap<String, HashMap<String, String>>>,
    /// The forms of the token endpoint.
    forms: Mutex<Vec<HashMap<String, String>>>,
    fetched: AtomicUsize,
    asked: AtomicUsize,
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An issuer, until it is dropped: metadata, `/keys`, and `/ask` about tokens.
#[derive(Debug)]
pub struct TokenIssuer {
    /// Its address, which is its name.
    pub address: String,
    answers: Arc<Answers>,
    stop: Option<oneshot::Sender<()>>,
}

impl TokenIssuer {
    /// Starts an issuer with these keys, on a thread of its own.
    ///
    /// # Panics
    ///
    /// If there is no free port.
    pub fn start(keys: &[&TokenKey]) -> Self {
        let (sender, started) = mpsc::sync_channel(1);
        let (stop, stopped) = oneshot::channel::<()>();
        let answers = Arc::new(Answers::default());
        let router = Router::new().fallback(answer).with_state(answers.clone());
        thread::spawn(move || {
            let runtime = runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
                sender.send(listener.local_addr().expect("it is bound")).expect("somebody waits");
                tokio::select! {
                    _ = axum::serve(listener, router) => {}
                    _ = stopped => {}
                }
            });
        });
        let address = format!("http://{}", started.recv().expect("it starts"));
        let issuer = Self { address, answers, stop: Some(stop) };
        issuer.says(json!({ "issuer": issuer.address, "jwks_uri": format!("{}/keys", issuer.address) }));
        issuer.has(keys);
        issuer
    }

    /// Sets its metadata.
    pub fn says(&self, metadata: Value) {
        *held(&self.answers.metadata) = metadata;
    }

    /// Sets its keys.
    pub fn has(&self, keys: &[&TokenKey]) {
        *held(&self.answers.keys) = keys.iter().map(|key| key.public()).collect();
    }

    /// Sets what it says about any token that it is asked about.
    pub fn says_about_tokens(&self, about: Value) {
        *held(&self.answers.about) = about;
    }

    /// Lets somebody be signed in with the browser from now on: `/authorize` sends it back at once, and `/token`
    /// gives an ID token with these claims, signed with the key.
    pub fn lets_in(&self, key: &Arc<TokenKey>, claims: Value) {
        *held(&self.answers.browser) = Some((key.clone(), claims));
        self.says(json!({
            "issuer": self.address,
            "jwks_uri": format!("{}/keys", self.address),
            "authorization_endpoint": format!("{}/authorize", self.address),
            "token_endpoint": format!("{}/token", self.address),
            "authorization_response_iss_parameter_supported": true,
        }));
    }

    /// Returns the forms that its token endpoint got.
    pub fn forms(&self) -> Vec<HashMap<String, String>> {
        held(&self.answers.forms).clone()
    }

    /// Returns how often its keys were fetched.
    pub fn times_fetched(&self) -> usize {
        self.answers.fetched.load(Ordering::Relaxed)
    }

    /// Returns how often it was asked about a token.
    pub fn times_asked(&self) -> usize {
        self.answers.asked.load(Ordering::Relaxed)
    }

    /// Stops answering.
    pub fn stop(&mut self) {
        self.stop = None;
    }
}

/// Returns the pairs of a form or a query.
fn pairs(text: &str) -> HashMap<String, String> {
    let uri: Uri = format!("http://a/?{text}").parse().unwrap_or_default();
    Query::try_from_uri(&uri).map(|Query(pairs)| pairs).unwrap_or_default()
}

/// Sends a browser back with a code.
fn authorize(answers: &Answers, query: &str) -> Response {
    let query = pairs(query);
    let get = |name: &str| query.get(name).cloned().unwrap_or_default();
    if get("code_challenge_method") != "S256" || get("response_type") != "code" {
        return StatusCode::BAD_REQUEST.into_response();
    }
    let mut codes = held(&answers.codes);
    let code = format!("code-{}", codes.len() + 1);
    let issuer = held(&answers.metadata)["issuer"].as_str().unwrap_or_default().to_owned();
    let issuer = issuer.replace(':', "%3A").replace('/', "%2F");
    let to = format!("{}?code={code}&state={}&iss={issuer}", get("redirect_uri"), get("state"));
    codes.insert(code, query);
    (StatusCode::FOUND, [("location", to)]).into_response()
}

/// Gives tokens for a code, or in exchange for the token of a person.
fn token(answers: &Answers, form: &[u8]) -> Response {
    let form = pairs(&String::from_utf8_lossy(form));
    held(&answers.forms).push(form.clone());
    let get = |name: &str| form.get(name).cloned().unwrap_or_default();
    let refused = |why: &str| (StatusCode::BAD_REQUEST, json!({ "error": why }).to_string()).into_response();
    if get("grant_type").ends_with("token-exchange") {
        let claims = get("subject_token").split('.').nth(1).map(String::from).unwrap_or_default();
        let claims = URL_SAFE_NO_PAD.decode(claims).unwrap_or_default();
        let claims: Value = serde_json::from_slice(&claims).unwrap_or_default();
        let Some(subject) = claims["sub"].as_str() else { return refused("invalid_grant") };
        let kind = get("requested_token_type");
        let given = json!({ "access_token": format!("exchanged-{subject}"), "issued_token_type": kind, "expires_in": 600 });
        return given.to_string().into_response();
    }
    let Some(asked) = held(&answers.codes).remove(&get("code")) else { return refused("invalid_grant") };
    let digest = ring::digest::digest(&ring::digest::SHA256, get("code_verifier").as_bytes());
    let is_same = |name: &str| asked.get(name) == form.get(name);
    if asked.get("code_challenge") != Some(&URL_SAFE_NO_PAD.encode(digest)) || !is_same("redirect_uri") {
        return refused("invalid_grant");
    }
    let Some((key, mut claims)) = held(&answers.browser).clone() else { return refused("access_denied") };
    let mut put = |name: &str, value: Value| {
        claims.as_object_mut().expect("claims are an object").entry(name).or_insert(value);
    };
    put("iss", held(&answers.metadata)["issuer"].clone());
    put("aud", json!(asked["client_id"]));
    put("nonce", json!(asked["nonce"]));
    put("exp", json!(4_102_444_800_u64));
    let header = json!({ "alg": "ES256", "kid": key.id, "typ": "JWT" });
    json!({ "id_token": key.token(&header, &claims), "token_type": "Bearer" }).to_string().into_response()
}

async fn answer(State(answers): State<Arc<Answers>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = match parts.uri.path() {
        "/authorize" => return authorize(&answers, parts.uri.query().unwrap_or_default()),
        "/token" => {
            let form = axum::body::to_bytes(body, 1 << 20).await.unwrap_or_default();
            return token(&answers, &form);
        }
        "/.well-known/openid-configuration" => held(&answers.metadata).clone(),
        "/keys" => {
            answers.fetched.fetch_add(1, Ordering::Relaxed);
            json!({ "keys": *held(&answers.keys) })
        }
        "/ask" => {
            answers.asked.fetch_add(1, Ordering::Relaxed);
            held(&answers.about).clone()
        }
        _ => return StatusCode::NOT_FOUND.into_response(),
    };
    body.to_string().into_response()
}
