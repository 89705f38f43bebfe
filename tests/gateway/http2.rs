//! A client that speaks HTTP/2 from its first byte, as proxies do.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use futures::future::join_all;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::{
    body::{Bytes, Incoming},
    client::conn::http2::{SendRequest, handshake},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};

use crate::{
    setup::{PATIENCE, Setup, json_of},
    web::{OWN_TOKEN, Site, WebClient},
};

/// One connection to a gateway.
#[derive(Clone)]
struct Connection {
    requests: SendRequest<Full<Bytes>>,
    authority: String,
}

impl Connection {
    async fn open(site: &Site) -> Self {
        let stream = tokio::net::TcpStream::connect(&site.address).await.expect("it listens");
        let (requests, connection) =
            handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("it speaks HTTP/2");
        tokio::spawn(connection);
        Self { requests, authority: site.address.clone() }
    }

    /// Sends a request and returns the start of its answer.
    async fn send(&self, method: &str, session: &str, body: String) -> http::Response<Incoming> {
        let request = Request::builder()
            .method(method)
            .uri(format!("http://{}/mcp", self.authority))
            .header("accept", "application/json, text/event-stream")
            .header("content-type", "application/json")
            .header("authorization", format!("Bearer {OWN_TOKEN}"))
            .header("mcp-protocol-version", "2025-06-18")
            .header("mcp-session-id", session)
            .body(Full::from(body))
            .expect("a request");
        self.requests.clone().send_request(request).await.expect("it answers")
    }

    async fn call(&self, session: &str, id: usize, tool: &str, arguments: Value) -> (HeaderMap, Value) {
        let params = json!({ "name": tool, "arguments": arguments });
        let message = json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params });
        let answer = self.send("POST", session, message.to_string()).await;
        assert_eq!(answer.status(), StatusCode::OK);
        let headers = answer.headers().clone();
        let body = answer.into_body().collect().await.expect("a body").to_bytes();
        let text = String::from_utf8(body.into()).expect("UTF-8");
        let answers: Vec<Value> = match text.strip_prefix('{') {
            Some(_) => vec![serde_json::from_str(&text).expect("JSON")],
            None => {
                let data = text.lines().filter_map(|line| line.strip_prefix("data:"));
                data.filter_map(|data| serde_json::from_str(data).ok()).collect()
            }
        };
        let own = answers.into_iter().find(|answer| answer["id"] == id);
        (headers, own.unwrap_or_else(|| panic!("no answer to {id}: {text}")))
    }
}

fn site() -> Site {
    let tools =
        json!([{ "name": "echo" }, { "name": "wait", "on": { "delay_ms": 1_000, "text": "waited" } }]);
    Setup::new().server("shop", json!({ "tools": tools })).serve()
}

#[tokio::test]
async fn many_calls_share_one_connection() {
    let site = site();
    let session = {
        let mut client = WebClient::new(&site.address, "/mcp");
        client.until_ready("shop");
        client.session
    };
    let connection = Connection::open(&site).await;
    let stream = connection.send("GET", &session, String::new()).await;
    assert_eq!(stream.status(), StatusCode::OK);
    let (_, answer) = connection.call(&session, 1, "shop__echo", json!({ "a": 1 })).await;
    assert_eq!(json_of(&answer["result"]), json!({ "a": 1 }));

    let began = Instant::now();
    let waiting = (0..20).map(|at| connection.call(&session, 100 + at, "shop__wait", json!({})));
    for (_, answer) in join_all(waiting).await {
        assert_eq!(answer["result"]["content"][0]["text"], "waited", "{answer}");
    }
    assert!(began.elapsed() < Duration::from_secs(10), "one after the other: {:?}", began.elapsed());
    drop(stream);

    let quick = tokio::time::timeout(PATIENCE, async {
        loop {
            let (headers, _) = connection.call(&session, 2, "shop__echo", json!({})).await;
            if headers.get("content-type").is_some_and(|kind| kind == "application/json") {
                break;
            }
        }
    });
    quick.await.expect("plain JSON, as over HTTP/1.1");
}

#[tokio::test]
async fn the_host_is_judged_by_its_name_in_http_2() {
    let site = site();
    let mut connection = Connection::open(&site).await;
    connection.authority = "evil.example".to_owned();
    assert_eq!(connection.send("POST", "", "{}".to_owned()).await.status(), StatusCode::FORBIDDEN);
    connection.authority = site.address.clone();
    assert_ne!(connection.send("POST", "", "{}".to_owned()).await.status(), StatusCode::FORBIDDEN);
}

#[test]
fn half_a_beginning_is_not_waited_for() {
    let site = Setup::new().toml("[limits]\nrequest_timeout = '300ms'").serve();
    for beginning in ["P", "PRI * HT", "PRI * HTTP/2.0\r\n\r\n"] {
        let mut stream = TcpStream::connect(&site.address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
        stream.write_all(beginning.as_bytes()).expect("it reads");
        let ended = stream.read_to_end(&mut Vec::new());
        assert!(
            ended.is_ok() || ended.is_err_and(|error| error.kind() != std::io::ErrorKind::WouldBlock),
            "{beginning}"
        );
    }
}
