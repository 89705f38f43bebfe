//! Servers of the old HTTP+SSE transport: by `transport = "sse"`, or detected.

use nonet_state::session::Caller;
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    sync::mpsc,
    task::JoinHandle,
    time::{Duration, Instant},
};

use crate::{
    fake,
    inside::{Inside, eventually, serve_script, strange},
    setup::{Setup, json_of, logged},
};

/// Explicit transport, or none.
const WAYS: [&str; 2] = ["transport = 'sse'", ""];

/// Serves a script over HTTP+SSE in this process; returns its address, and the task to await.
async fn start(address: &str, mut script: Value) -> (String, JoinHandle<i32>) {
    script["legacy_sse"] = true.into();
    serve_script(address, script).await
}

fn keys(address: &str, way: &str) -> String {
    format!("url = 'http://{address}/sse'\n{way}\n")
}

async fn open(script: Value, way: &str) -> Inside {
    let (address, _) = start("127.0.0.1:0", script).await;
    let inside = Setup::new().server_of("web", &keys(&address, way)).open_at_once();
    inside.until_listed("web").await;
    inside
}

fn refused() -> Value {
    json!({ "content": [{ "type": "text", "text": "no" }], "isError": true, "x": 1 })
}

fn tools() -> Value {
    json!([
        { "name": "echo", "inputSchema": { "zeta": 1, "type": "object", "alpha": 2 } },
        { "name": "show", "on": { "result": strange() } },
        { "name": "refuse", "on": { "result": refused() } },
        { "name": "fail", "on": { "rpc_error": { "code": -32042, "message": "no" } } },
        { "name": "hang", "on": { "hang": true } },
        { "name": "see", "on": { "request": true } },
        { "name": "work", "on": { "progress": 50 } },
        { "name": "noisy", "on": { "noise": "data: {oops\n\nno field\n: a comment\n\nevent: ping\ndata: 1\n" } },
    ])
}

async fn last_error(inside: &Inside) -> String {
    let status = json_of(&inside.execute("gateway.status", json!({})).await);
    status["servers"][0]["last_error"].as_str().unwrap_or_default().to_string()
}

#[tokio::test]
async fn the_old_transport_is_spoken_whether_it_is_told_or_found_out() {
    for way in WAYS {
        let inside = open(json!({ "tools": tools(), "page_size": 3 }), way).await;
        assert_eq!(inside.execute("web.show", json!({})).await.to_string(), strange().to_string(), "{way}");
        assert_eq!(inside.answer("web__echo", json!({ "a": 1 })).await, json!({ "a": 1 }), "{way}");
        let about = inside.answer("get_tool", json!({ "name": "web.echo" })).await;
        assert_eq!(
            about["input_schema"].to_string(),
            "{\"zeta\":1,\"type\":\"object\",\"alpha\":2}",
            "{way}"
        );
        assert_eq!(inside.answer("browse_category", json!({ "category": "web" })).await["total"], 8, "{way}");
        let status = json_of(&inside.execute("gateway.status", json!({})).await);
        assert_eq!(status["servers"][0]["era"], "legacy", "{way}: {status}");
    }
}

#[tokio::test]
async fn errors_come_out_as_they_went_in() {
    let inside = open(json!({ "tools": tools() }), WAYS[0]).await;
    assert_eq!(inside.execute("web.refuse", json!({})).await.to_string(), refused().to_string());
    let fault = inside.fault("execute_tool", json!({ "name": "web.fail" })).await;
    assert_eq!(
        (&fault["code"], &fault["details"]["rpc_code"]),
        (&json!("upstream_error"), &json!(-32042)),
        "{fault}"
    );
}

#[tokio::test]
async fn progress_arrives_whole_in_order_and_before_the_answer() {
    let inside = open(json!({ "tools": tools() }), WAYS[0]).await;
    let (progress, mut steps) = mpsc::channel(100);
    let caller = inside.gateway.sessions.caller(inside.gateway.sessions.open(None), "test");
    let caller = Caller { progress: Some(progress), ..caller };
    inside.call_as(&caller, "web__work", json!({})).await;
    drop(caller);
    let mut seen = Vec::new();
    while let Ok(step) = steps.try_recv() {
        seen.extend(step["progress"].as_f64());
    }
    assert_eq!(seen, (1..=50).map(f64::from).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_broken_event_costs_itself_alone() {
    let inside = open(json!({ "tools": tools() }), WAYS[0]).await;
    for n in 0..3 {
        assert_eq!(inside.answer("web__noisy", json!({ "n": n })).await, json!({ "n": n }));
    }
    assert_eq!(inside.gateway.observing.metrics.restarts("web"), 0);
}

#[tokio::test]
async fn a_call_over_its_limit_is_cancelled_and_the_connection_stays() {
    let setup = Setup::new();
    let log = setup.path("calls");
    let (address, _) = start("127.0.0.1:0", json!({ "tools": tools(), "call_log": log })).await;
    let inside = setup.server_of("web", &keys(&address, WAYS[0])).open_at_once();
    inside.until_listed("web").await;
    let hanging = inside.fault("execute_tool", json!({ "name": "web.hang", "timeout_ms": 300 }));
    let beside = inside.answer("web__echo", json!({ "a": 1 }));
    let (fault, beside) = tokio::join!(hanging, beside);
    assert_eq!((&fault["code"], &beside), (&json!("timeout"), &json!({ "a": 1 })), "{fault}");
    eventually("the server is told", async || {
        logged(&log).iter().any(|line| line.get("cancelled").is_some()).then_some(())
    })
    .await;
    assert_eq!(inside.answer("web__echo", json!({ "a": 2 })).await, json!({ "a": 2 }));
    assert_eq!(inside.gateway.observing.metrics.restarts("web"), 0);
}

#[tokio::test]
async fn headers_of_the_configuration_are_sent_with_each_request() {
    for way in WAYS {
        // The GET is also refused without the token.
        let (address, _) =
            start("127.0.0.1:0", json!({ "tools": tools(), "require_bearer": "s3cret" })).await;
        let keys = keys(&address, way) + "headers = { Authorization = 'Bearer s3cret', X-Team = 'blue' }";
        let inside = Setup::new().server_of("web", &keys).open_at_once();
        inside.until_listed("web").await;
        let seen = json_of(&inside.execute("web.see", json!({})).await);
        assert_eq!(
            (&seen["headers"]["authorization"], &seen["headers"]["x-team"]),
            (&json!("Bearer s3cret"), &json!("blue")),
            "{way}"
        );
    }
}

#[tokio::test]
async fn a_server_that_wants_a_sign_in_says_so() {
    let (address, server) = start("127.0.0.1:0", json!({ "tools": tools() })).await;
    let inside = Setup::new().server_of("web", &keys(&address, WAYS[0])).open_at_once();
    inside.until_listed("web").await;
    server.abort();
    let _ = server.await;
    let _again = start(&address, json!({ "tools": tools(), "require_bearer": "s3cret" })).await;
    inside.until("web", "auth_required").await;
    let fault = inside.fault("execute_tool", json!({ "name": "web.echo" })).await;
    assert_eq!(fault["code"], "auth_required", "{fault}");
}

#[tokio::test]
async fn a_stream_that_breaks_off_is_opened_again() {
    for (way, script) in [
        (WAYS[0], json!({ "tools": tools(), "sse_breaks_after": 4 })),
        (WAYS[1], json!({ "tools": tools(), "sse_breaks_after": 4 })),
        // The stream stays open, but the session is forgotten.
        (WAYS[0], json!({ "tools": tools(), "session_expires_after": 5 })),
    ] {
        let inside = open(script, way).await;
        for n in 0..6 {
            eventually("the call succeeds, at the latest when made again", async || {
                let result = inside.execute("web.echo", json!({ "n": n })).await;
                if result["isError"] == true {
                    let fault = json_of(&result)["error"].take();
                    assert_eq!(fault["retryable"], true, "{fault}");
                    return None;
                }
                assert_eq!(json_of(&result), json!({ "n": n }));
                Some(())
            })
            .await;
        }
        let restarts = || (inside.gateway.observing.metrics.restarts("web") > 0).then_some(());
        eventually(&format!("it was reached again, {way}"), async || restarts()).await;
    }
}

#[tokio::test]
async fn what_was_found_out_is_remembered() {
    let setup = Setup::new();
    let log = setup.path("requests");
    let script = json!({ "tools": tools(), "sse_breaks_after": 3, "request_log": log });
    let (address, _) = start("127.0.0.1:0", script).await;
    let inside = setup.server_of("web", &keys(&address, "")).open_at_once();
    let tries = |method: &str| {
        let log = logged(&log);
        log.iter().filter(|line| line["method"] == method && line["path"] == "/sse").count()
    };
    eventually("it was reached three times", async || {
        inside.execute("web.echo", json!({})).await;
        (tries("GET") >= 3).then_some(())
    })
    .await;
    assert_eq!(tries("POST"), 2, "one for each era, at the first connection");
}

#[tokio::test]
async fn what_was_found_out_is_forgotten_with_the_server() {
    let (address, server) = start("127.0.0.1:0", json!({ "tools": tools() })).await;
    let inside = Setup::new().server_of("web", &keys(&address, "")).open_at_once();
    inside.until_listed("web").await;
    server.abort();
    let _ = server.await;
    // This address now has a streamable HTTP server.
    let listener = TcpListener::bind(&address).await.expect("the port is free again");
    let _again = tokio::spawn(fake::serve_http(json!({ "tools": [{ "name": "new" }] }).into(), listener));
    eventually("the new server is called", async || {
        let result = inside.execute("web.new", json!({})).await;
        (result["isError"] != true).then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_endpoint_of_another_origin_is_refused() {
    for way in WAYS {
        let setup = Setup::new();
        let log = setup.path("messages");
        // Another server, which must not receive anything.
        let (other, _) = start("127.0.0.1:0", json!({ "message_log": log })).await;
        let endpoint = format!("http://{other}/messages");
        let (address, _) = start("127.0.0.1:0", json!({ "tools": tools(), "sse_endpoint": endpoint })).await;
        let inside = setup.server_of("web", &keys(&address, way)).open_at_once();
        inside.until("web", "down").await;
        let error = last_error(&inside).await;
        assert!(error.contains("`endpoint`") && error.contains(&other), "{way}: {error}");
        assert!(!log.exists());
    }
}

#[tokio::test]
async fn a_server_that_speaks_neither_transport_says_what_it_said_first() {
    for way in WAYS {
        let (address, _) = start("127.0.0.1:0", json!({ "http_status": 404 })).await;
        let keys = keys(&address, way).replace("/sse", "/sse?key=s3cr3t-key");
        let inside = Setup::new().server_of("web", &keys).open_at_once();
        inside.until("web", "down").await;
        let error = last_error(&inside).await;
        assert!(error.contains("HTTP 404") && !error.contains("s3cr3t"), "{way}: {error}");
    }
}

#[tokio::test]
async fn a_stream_without_an_endpoint_ends_with_the_time_for_a_start() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound").to_string();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                use tokio::io::AsyncWriteExt;
                let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n: hello\n\n";
                let _ = stream.write_all(head.as_bytes()).await;
                tokio::time::sleep(Duration::from_secs(60)).await;
            });
        }
    });
    let keys = keys(&address, WAYS[0]) + "start_timeout = '1s'";
    let started = Instant::now();
    let inside = Setup::new().server_of("web", &keys).open_at_once();
    inside.until("web", "down").await;
    assert!(started.elapsed() < Duration::from_secs(10));
    let error = last_error(&inside).await;
    assert!(error.contains("start_timeout"), "{error}");
}
