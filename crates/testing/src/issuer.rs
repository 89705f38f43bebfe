//! An issuer of access tokens on a port of its own, and its keys.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
};

use axum::{
    Router,
    extract::{Request, State},
    http::StatusCode,
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

async fn answer(State(answers): State<Arc<Answers>>, request: Request) -> Response {
    let body = match request.uri().path() {
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
