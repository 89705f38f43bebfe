//! A model behind an OpenAI-compatible endpoint, which answers by a script.

use std::{
    sync::{Arc, Mutex},
    thread,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::post,
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::Notify};

/// The reply to one request.
#[derive(Clone)]
pub enum Reply {
    /// One JSON object.
    Json(Value),
    /// A status with a content type and a body.
    Raw(u16, String, String),
    /// A status that asks to retry at once.
    Busy(u16),
    /// Events that break off in the middle.
    Broken,
    /// No reply at all.
    Hang,
    /// One JSON object, once the test releases it.
    Held(Value),
}

/// The model, running.
#[derive(Clone)]
pub struct Model(Arc<Inner>);

struct Inner {
    address: String,
    /// The last reply repeats.
    replies: Vec<Reply>,
    seen: Mutex<ServiceLog>,
    released: Notify,
}

#[derive(Default)]
struct ServiceLog {
    requests: Vec<Value>,
    authorizations: Vec<String>,
    dropped: usize,
}

impl Model {
    /// Starts the model on its own thread, with one reply per request; the last reply repeats.
    pub fn start(replies: impl IntoIterator<Item = Reply>) -> Self {
        let replies: Vec<Reply> = replies.into_iter().collect();
        let (sender, started) = std::sync::mpsc::channel();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
                let address = listener.local_addr().expect("it is bound").to_string();
                let inner = Inner { address, replies, seen: Mutex::default(), released: Notify::new() };
                let model = Self(Arc::new(inner));
                sender.send(model.clone()).expect("somebody waits");
                let router = Router::new()
                    .route("/v1/chat/completions", post(complete))
                    .route("/v1/responses", post(complete))
                    .with_state(model);
                axum::serve(listener, router).await.expect("it serves");
            });
        });
        started.recv().expect("it starts")
    }

    pub fn base_url(&self) -> String {
        format!("http://{}/v1", self.0.address)
    }

    /// Returns the bodies of all requests, in order.
    pub fn requests(&self) -> Vec<Value> {
        self.seen().requests.clone()
    }

    /// Returns the `Authorization` headers of all requests; empty where missing.
    pub fn authorizations(&self) -> Vec<String> {
        self.seen().authorizations.clone()
    }

    /// Returns how many requests the client has abandoned.
    pub fn dropped(&self) -> usize {
        self.seen().dropped
    }

    /// Releases a held reply.
    pub fn release(&self) {
        self.0.released.notify_one();
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, ServiceLog> {
        self.0.seen.lock().expect("no test panics with it")
    }
}

/// Counts a request whose handler is dropped.
struct Open<'a>(&'a Model);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.seen().dropped += 1;
    }
}

async fn complete(State(model): State<Model>, headers: HeaderMap, body: Bytes) -> Response {
    let reply = {
        let mut seen = model.seen();
        let authorization =
            headers.get(header::AUTHORIZATION).map(|value| value.to_str().expect("text").to_string());
        seen.authorizations.push(authorization.unwrap_or_default());
        seen.requests.push(serde_json::from_slice(&body).expect("JSON"));
        let at = seen.requests.len() - 1;
        model.0.replies.get(at).or(model.0.replies.last()).cloned().expect("a reply")
    };
    let of = |status: u16, kind: &str, body: String| {
        let status = StatusCode::from_u16(status).expect("a status");
        (status, [(header::CONTENT_TYPE, kind.to_string())], Body::from(body)).into_response()
    };
    match reply {
        Reply::Json(value) => of(200, "application/json", value.to_string()),
        Reply::Raw(status, kind, body) => of(status, &kind, body),
        Reply::Busy(status) => {
            let mut response = of(status, "text/plain", "busy".into());
            response.headers_mut().insert(header::RETRY_AFTER, "0".parse().expect("a value"));
            response
        }
        Reply::Broken => {
            of(200, "text/event-stream", "data: {\"choices\":[{\"delta\":{\"content\":\"No\"}}]}\n\n".into())
        }
        Reply::Hang => {
            let _open = Open(&model);
            std::future::pending().await
        }
        Reply::Held(value) => {
            model.0.released.notified().await;
            of(200, "application/json", value.to_string())
        }
    }
}

/// Returns a text message.
pub fn says(text: &str) -> Value {
    let message = json!({ "role": "assistant", "content": text });
    json!({ "id": "x", "choices": [{ "index": 0, "message": message, "finish_reason": "stop" }], "usage": {} })
}

/// Returns a message with calls: id, name and arguments of each.
pub fn calls(calls: &[(&str, &str, &str)]) -> Value {
    let call = |(id, name, arguments): &(&str, &str, &str)| json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } });
    let calls: Vec<Value> = calls.iter().map(call).collect();
    let message = json!({ "role": "assistant", "content": null, "tool_calls": calls });
    json!({ "id": "x", "choices": [{ "index": 0, "message": message, "finish_reason": "tool_calls" }] })
}

/// Returns the same message as events, its text and arguments in pieces of three characters.
pub fn events(whole: &Value) -> Reply {
    let choice = &whole["choices"][0];
    let mut deltas = vec![json!({ "role": "assistant", "content": "" })];
    for piece in pieces(choice["message"]["content"].as_str().unwrap_or_default()) {
        deltas.push(json!({ "content": piece }));
    }
    for (index, call) in choice["message"]["tool_calls"].as_array().into_iter().flatten().enumerate() {
        let mut first = call.clone();
        let arguments = first["function"]["arguments"].take();
        first["index"] = json!(index);
        first["function"]["arguments"] = json!("");
        deltas.push(json!({ "tool_calls": [first] }));
        for piece in pieces(arguments.as_str().unwrap_or_default()) {
            deltas.push(json!({ "tool_calls": [{ "index": index, "function": { "arguments": piece } }] }));
        }
    }
    let chunk = |delta: &Value, finish: &Value| {
        let chunk = json!({ "choices": [{ "index": 0, "delta": delta, "finish_reason": finish }] });
        format!("data: {chunk}\n\n")
    };
    let mut text: String = deltas.iter().map(|delta| chunk(delta, &Value::Null)).collect();
    text.push_str(&chunk(&json!({}), &choice["finish_reason"]));
    text.push_str("data: {\"choices\":[],\"usage\":{}}\n\ndata: [DONE]\n\n");
    Reply::Raw(200, "text/event-stream; charset=utf-8".into(), text)
}

fn pieces(text: &str) -> Vec<String> {
    let characters: Vec<char> = text.chars().collect();
    characters.chunks(3).map(|piece| piece.iter().collect()).collect()
}
