//! Servers behind a URL: streamable HTTP in both eras, and its failures.

use nonet_api::status::ServerState;
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinHandle};

use crate::{
    inside::{Inside, eventually, serve_script, strange},
    setup::{Setup, json_of, logged},
};

/// Serves a script over HTTP in this process; returns the keys of its table, and the task to await.
async fn start(address: &str, script: Value) -> (String, JoinHandle<i32>) {
    let (address, server) = serve_script(address, script).await;
    (format!("url = 'http://{address}/mcp'"), server)
}

async fn serve(script: Value) -> String {
    start("127.0.0.1:0", script).await.0
}

async fn open(script: Value) -> Inside {
    let keys = serve(script).await;
    let inside = Setup::new().server_of("web", &keys).open_at_once();
    inside.until_listed("web").await;
    inside
}

fn tools() -> Value {
    json!([
        { "name": "echo", "inputSchema": { "zeta": 1, "type": "object", "alpha": 2 } },
        { "name": "show", "on": { "result": strange() } },
        { "name": "fail", "on": { "rpc_error": { "code": -32042, "message": "no" } } },
        { "name": "hang", "on": { "hang": true } },
        { "name": "see", "on": { "request": true } },
    ])
}

#[tokio::test]
async fn both_eras_are_spoken_with_json_and_with_event_streams() {
    for era in ["legacy", "modern", "dual"] {
        for sse in [false, true] {
            let inside = open(json!({ "era": era, "sse": sse, "tools": tools() })).await;
            let case = format!("{era}, sse {sse}");
            let mut shown = inside.execute("web.show", json!({})).await;
            // Fields of the stateless era are removed for a client of the session era.
            let kind = shown.as_object_mut().expect("an object").shift_remove("resultType");
            assert!(kind.is_none_or(|kind| kind == "complete"), "{case}");
            assert_eq!(shown.to_string(), strange().to_string(), "{case}");
            assert_eq!(inside.answer("web__echo", json!({ "a": 1 })).await, json!({ "a": 1 }), "{case}");
            let about = inside.answer("get_tool", json!({ "name": "web.echo" })).await;
            assert_eq!(
                about["input_schema"].to_string(),
                "{\"zeta\":1,\"type\":\"object\",\"alpha\":2}",
                "{case}"
            );
            let fault = inside.fault("execute_tool", json!({ "name": "web.fail" })).await;
            assert_eq!(
                (&fault["code"], &fault["details"]["rpc_code"]),
                (&json!("upstream_error"), &json!(-32042)),
                "{case}: {fault}"
            );
        }
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_is_told_with_the_cause() {
    let free = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = free.local_addr().expect("it is bound");
    drop(free);
    let inside = Setup::new().server_of("web", &format!("url = 'http://{address}/mcp'")).open_at_once();
    eventually("the reason is known", async || {
        let status = inside.gateway.status(&Default::default());
        let server = status.servers.into_iter().find(|server| server.state == Some(ServerState::Down))?;
        let error = server.last_error?;
        assert!(error.contains("Connection refused") && !error.contains("Client error"), "{error}");
        let cause = server.likely_cause?;
        assert!(cause.contains("Nothing listens"), "{cause}");
        Some(())
    })
    .await;
}

#[tokio::test]
async fn every_page_of_a_list_is_read() {
    let inside = open(json!({ "tool_count": 60, "page_size": 7 })).await;
    assert_eq!(inside.answer("browse_category", json!({ "category": "web" })).await["total"], 60);
}

#[tokio::test]
async fn headers_of_the_configuration_are_sent_with_each_request() {
    let keys = serve(json!({ "tools": tools(), "require_bearer": "s3cret" })).await;
    let keys = format!("{keys}\nheaders = {{ Authorization = 'Bearer s3cret', X-Team = 'blue' }}");
    let inside = Setup::new().server_of("web", &keys).open_at_once();
    inside.until_listed("web").await;
    let seen = json_of(&inside.execute("web.see", json!({})).await);
    assert_eq!(
        (&seen["headers"]["authorization"], &seen["headers"]["x-team"]),
        (&json!("Bearer s3cret"), &json!("blue"))
    );
}

#[tokio::test]
async fn params_are_repeated_in_headers_where_a_schema_asks_for_it() {
    let header = |name: &str| json!({ "type": "string", "x-mcp-header": name });
    let schema = |header: Value| json!({ "type": "object", "properties": { "region": header } });
    for (era, sse) in [("modern", false), ("modern", true), ("legacy", false)] {
        let tools = json!([
            { "name": "see", "inputSchema": schema(header("Region")), "x-kept": 1, "on": { "request": true } },
            { "name": "bad", "inputSchema": schema(header("no token")) },
            { "name": "plain" },
        ]);
        let inside = open(json!({ "era": era, "sse": sse, "tools": tools })).await;
        let params = json!({ "region": " nörd" });
        let seen = json_of(&inside.execute("web.see", params).await);
        let listed = inside.answer("browse_category", json!({ "category": "web" })).await["total"].clone();
        let (region, count) = match era {
            "modern" => (json!("=?base64?IG7DtnJk?="), 2),
            _ => (Value::Null, 3),
        };
        assert_eq!(seen["headers"]["mcp-param-region"], region, "{era}, sse {sse}: {seen}");
        assert_eq!(listed, count, "{era}, sse {sse}: a tool whose header cannot be is left out");
    }
}

#[tokio::test]
async fn a_server_that_wants_a_sign_in_says_so() {
    let keys = serve(json!({ "tools": tools(), "require_bearer": "s3cret" })).await;
    let keys = format!("{keys}\nheaders = {{ Authorization = 'Bearer wr0ng' }}");
    let inside = Setup::new().server_of("web", &keys).open_at_once();
    inside.until("web", "auth_required").await;
    let status = json_of(&inside.execute("gateway.status", json!({})).await);
    assert!(!status.to_string().contains("wr0ng"), "{status}");
    let categories = inside.answer("list_categories", json!({})).await;
    assert!(categories.to_string().contains("auth_required"), "{categories}");
}

#[tokio::test]
async fn a_sign_in_that_is_wanted_later_is_told_by_the_call() {
    let (keys, server) = start("127.0.0.1:0", json!({ "tools": tools() })).await;
    let inside = Setup::new().server_of("web", &keys).open_at_once();
    inside.until_listed("web").await;
    assert_eq!(inside.answer("web__echo", json!({})).await, json!({}));
    server.abort();
    let _ = server.await;
    let address = keys.trim_start_matches("url = 'http://").trim_end_matches("/mcp'");
    let _again = start(address, json!({ "tools": tools(), "require_bearer": "s3cret" })).await;
    let fault = inside.fault("execute_tool", json!({ "name": "web.echo" })).await;
    assert_eq!(fault["code"], "auth_required", "{fault}");
}

#[tokio::test]
async fn a_server_that_restarts_is_found_again() {
    let (keys, server) = start("127.0.0.1:0", json!({ "tools": tools() })).await;
    let inside = Setup::new().server_of("web", &keys).open_at_once();
    inside.until_listed("web").await;
    server.abort();
    let _ = server.await;
    let address = keys.trim_start_matches("url = 'http://").trim_end_matches("/mcp'");
    let _again = start(address, json!({ "tools": tools() })).await;
    eventually("a call succeeds", async || {
        let result = inside.execute("web.echo", json!({ "a": 1 })).await;
        (result.get("isError").is_none()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_session_that_expires_is_opened_again() {
    let inside = open(json!({ "tools": tools(), "session_expires_after": 4 })).await;
    for n in 0..12 {
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
}

#[tokio::test]
async fn a_server_that_is_overloaded_at_first_comes_up() {
    let keys = serve(json!({ "tools": tools(), "http_status": 503, "http_status_times": 3 })).await;
    let inside = Setup::new().server_of("web", &keys).open_at_once();
    inside.until("web", "down").await;
    let status = json_of(&inside.execute("gateway.status", json!({})).await);
    assert!(
        status["servers"][0]["last_error"].as_str().is_some_and(|error| error.contains("503")),
        "{status}"
    );
    inside.until_listed("web").await;
    assert_eq!(inside.answer("web__echo", json!({ "a": 1 })).await, json!({ "a": 1 }));
}

#[tokio::test]
async fn an_address_where_nobody_is_costs_its_own_tools() {
    let inside = Setup::new()
        .server("good", json!({ "tools": [{ "name": "fine" }] }))
        .server_of("web", "url = 'http://127.0.0.1:9/mcp'")
        .open_at_once();
    inside.until_listed("good").await;
    inside.until("web", "down").await;
    assert_eq!(inside.answer("good__fine", json!({ "a": 1 })).await, json!({ "a": 1 }));
}

#[tokio::test]
async fn a_call_over_its_limit_is_a_timeout_and_the_connection_stays() {
    for (era, sse) in [("legacy", true), ("legacy", false), ("modern", false), ("modern", true)] {
        let setup = Setup::new();
        let log = setup.path("calls");
        let keys = serve(json!({ "era": era, "sse": sse, "tools": tools(), "call_log": log })).await;
        let inside = setup.server_of("web", &keys).open_at_once();
        inside.until_listed("web").await;
        let fault = inside.fault("execute_tool", json!({ "name": "web.hang", "timeout_ms": 200 })).await;
        assert_eq!(fault["code"], "timeout", "{era}, sse {sse}: {fault}");
        eventually(&format!("the server is told ({era}, sse {sse})"), async || {
            logged(&log).iter().any(|line| line.get("cancelled").is_some()).then_some(())
        })
        .await;
        assert_eq!(inside.answer("web__echo", json!({ "a": 1 })).await, json!({ "a": 1 }));
    }
}

#[tokio::test]
async fn calls_run_at_the_same_time() {
    let inside = open(json!({ "tools": tools(), "sse": true })).await;
    let hanging = inside.execute("web.hang", json!({}));
    let fast = inside.answer("web__echo", json!({ "a": 1 }));
    tokio::select! {
        result = hanging => panic!("it cannot end: {result}"),
        told = fast => assert_eq!(told, json!({ "a": 1 })),
    }
}

#[tokio::test]
async fn a_server_that_crashes_is_down_for_this_call() {
    let crash = json!([{ "name": "crash", "on": { "crash": true } }]);
    let inside = open(json!({ "tools": crash })).await;
    let fault = inside.fault("execute_tool", json!({ "name": "web.crash" })).await;
    assert!(["server_down", "upstream_error"].contains(&fault["code"].as_str().expect("a code")), "{fault}");
}

#[test]
fn a_401_without_a_challenge_is_a_sign_in_too() {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 4_096]);
            let _ = stream
                .write_all(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
    });
    let mut client = Setup::new().server_of("plain", &format!("url = 'http://{address}/mcp'")).start();
    let server = client.until("plain", "auth_required");
    assert!(server["last_error"].as_str().is_some_and(|text| text.contains("401")), "{server}");
}
