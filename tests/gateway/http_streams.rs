//! Streamable HTTP servers that answer a call in an unusual way: on a stream that breaks, or on another
//! stream.

use std::{convert::Infallible, sync::Arc};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, Method, StatusCode},
    response::Response,
};
use futures::StreamExt;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::mpsc};

use crate::{
    inside::{Inside, eventually},
    setup::Setup,
};

#[derive(Default)]
struct StreamLog {
    /// The id of the last call.
    id: Value,
    /// The `Last-Event-ID` of each opened stream.
    opened: Vec<Option<String>>,
    /// The bodies of cancellations.
    cancelled: Vec<Value>,
    common: Option<mpsc::UnboundedSender<Bytes>>,
    /// How many times the common stream fails before it opens.
    failing: usize,
}

type Shared = Arc<Mutex<StreamLog>>;

fn reply(status: StatusCode, kind: &str, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    if !kind.is_empty() {
        response.headers_mut().insert("content-type", kind.parse().expect("a header"));
    }
    response.headers_mut().insert("mcp-session-id", "s-1".parse().expect("a header"));
    response
}

fn said(id: &Value, text: &str) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "result": { "content": [{ "type": "text", "text": text }] } })
}

fn events(text: String) -> Response {
    reply(StatusCode::OK, "text/event-stream", Body::from(text))
}

async fn answer(State(seen): State<Shared>, method: Method, headers: HeaderMap, body: Bytes) -> Response {
    let mut seen = seen.lock();
    if method == Method::GET {
        let last = headers.get("last-event-id").map(|id| id.to_str().expect("text").to_owned());
        seen.opened.push(last.clone());
        return match last.as_deref() {
            // The stream breaks once more.
            Some("1") => events("id: 2\nretry: 10\ndata: \n\n".into()),
            Some("2") => events(format!("id: 3\ndata: {}\n\n", said(&seen.id, "after all"))),
            _ if seen.failing > 0 => {
                seen.failing -= 1;
                reply(StatusCode::SERVICE_UNAVAILABLE, "", Body::empty())
            }
            _ => {
                let (to, from) = mpsc::unbounded_channel();
                seen.common = Some(to);
                let stream = futures::stream::unfold(from, |mut from| async {
                    let bytes: Bytes = from.recv().await?;
                    Some((bytes, from))
                });
                let body = Body::from_stream(stream.map(Ok::<_, Infallible>));
                reply(StatusCode::OK, "text/event-stream", body)
            }
        };
    }
    let message: Value = serde_json::from_slice(&body).unwrap_or_default();
    let id = message["id"].clone();
    let result = |result: Value| {
        let answer = json!({ "jsonrpc": "2.0", "id": id, "result": result });
        reply(StatusCode::OK, "application/json", Body::from(answer.to_string()))
    };
    match (message["method"].as_str(), message["params"]["name"].as_str()) {
        (Some("initialize"), _) => result(json!({
            "protocolVersion": "2025-06-18", "capabilities": { "tools": {} },
            "serverInfo": { "name": "odd", "version": "1" },
        })),
        (Some("tools/list"), _) => {
            let tool = |name: &str| json!({ "name": name, "inputSchema": { "type": "object" } });
            let tools = ["cut", "dropped", "elsewhere", "other"].map(tool);
            result(json!({ "tools": tools }))
        }
        (Some("tools/call"), Some("cut")) => {
            seen.id = id.clone();
            events("id: 1\nretry: 10\ndata: \n\n".into())
        }
        // The stream cannot be resumed: no event has an id.
        (Some("tools/call"), Some("dropped")) => events(": nothing\n\n".into()),
        (Some("tools/call"), Some("elsewhere")) => {
            let line = format!("data: {}\n\n", said(&id, "on the common stream"));
            let sent = seen.common.as_ref().is_some_and(|common| common.send(line.into()).is_ok());
            assert!(sent, "there is a common stream");
            reply(StatusCode::ACCEPTED, "", Body::empty())
        }
        (Some("tools/call"), Some("other")) => {
            reply(StatusCode::OK, "application/json", Body::from(said(&json!("of-another"), "").to_string()))
        }
        (Some("notifications/cancelled"), _) => {
            seen.cancelled.push(message);
            reply(StatusCode::ACCEPTED, "", Body::empty())
        }
        (Some(_), _) if id.is_null() => reply(StatusCode::ACCEPTED, "", Body::empty()),
        _ => {
            let error = json!({ "jsonrpc": "2.0", "id": id, "error": { "code": -32601, "message": "no such method" } });
            reply(StatusCode::OK, "application/json", Body::from(error.to_string()))
        }
    }
}

async fn open() -> (Inside, Shared) {
    open_failing(0).await
}

async fn open_failing(failing: usize) -> (Inside, Shared) {
    let seen = Shared::new(Mutex::new(StreamLog { failing, ..StreamLog::default() }));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let router = Router::new().fallback(answer).with_state(seen.clone());
    tokio::spawn(async move { axum::serve(listener, router).await.expect("it serves") });
    let inside = Setup::new().server_of("odd", &format!("url = 'http://{address}/mcp'")).open_at_once();
    inside.until_listed("odd").await;
    (inside, seen)
}

#[tokio::test]
async fn a_stream_that_breaks_before_the_answer_is_resumed() {
    let (inside, seen) = open().await;
    let result = inside.execute("odd.cut", json!({})).await;
    assert_eq!(result["content"][0]["text"], "after all", "{result}");
    let resumed: Vec<String> = seen.lock().opened.iter().flatten().cloned().collect();
    assert_eq!(resumed, ["1", "2"]);
    assert!(seen.lock().cancelled.is_empty());
}

#[tokio::test]
async fn a_stream_that_cannot_be_resumed_fails_its_call() {
    let (inside, _) = open().await;
    let fault = inside.fault("execute_tool", json!({ "name": "odd.dropped" })).await;
    assert_eq!(fault["code"], "server_down", "{fault}");
}

#[tokio::test]
async fn an_answer_may_come_on_the_stream_of_the_session() {
    let (inside, _) = open().await;
    let result = inside.execute("odd.elsewhere", json!({})).await;
    assert_eq!(result["content"][0]["text"], "on the common stream", "{result}");
}

#[tokio::test]
async fn a_stream_of_the_session_that_failed_is_opened_again() {
    let (inside, seen) = open_failing(1).await;
    eventually("the stream is open", async || seen.lock().common.is_some().then_some(())).await;
    let result = inside.execute("odd.elsewhere", json!({})).await;
    assert_eq!(result["content"][0]["text"], "on the common stream", "{result}");
}

#[tokio::test]
async fn an_answer_to_another_request_is_told_at_once() {
    let (inside, _) = open().await;
    let fault = inside.fault("execute_tool", json!({ "name": "odd.other" })).await;
    assert_eq!(fault["code"], "upstream_error", "{fault}");
    assert!(
        fault["message"].as_str().is_some_and(|text| text.contains("the id of another request")),
        "{fault}"
    );
}
