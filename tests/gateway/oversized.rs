//! Messages larger than their kind allows: they fail alone, and nobody else waits for them.

use serde_json::{Value, json};

use crate::{
    inside::{Inside, eventually, serve_script},
    setup::{Setup, json_of},
    web::http,
};

const MIB: usize = 1 << 20;

/// How a server is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Stdio,
    Http,
    LegacySse,
}

const WAYS: [Way; 3] = [Way::Stdio, Way::Http, Way::LegacySse];

/// Opens a gateway with the server `big`, reached in this way, and `good`.
async fn begin(way: Way, mut script: Value) -> Inside {
    let setup = Setup::new()
        .server("good", json!({ "tools": [{ "name": "fine", "on": { "text": "fine" } }] }))
        .gateway("max_result_bytes = 100000000");
    let setup = match way {
        Way::Stdio => setup.server("big", script),
        Way::Http | Way::LegacySse => {
            let old = way == Way::LegacySse;
            script[if old { "legacy_sse" } else { "sse" }] = true.into();
            let (address, _) = serve_script("127.0.0.1:0", script).await;
            setup.server_of("big", &format!("url = 'http://{address}/{}'", if old { "sse" } else { "mcp" }))
        }
    };
    let inside = setup.open_at_once();
    inside.until_listed("good").await;
    inside
}

async fn open(way: Way, tools: Value) -> Inside {
    let inside = begin(way, json!({ "tools": tools })).await;
    inside.until_listed("big").await;
    inside
}

/// Checks that the connection has survived, and that nobody else is affected.
async fn is_well(inside: &Inside, way: Way) {
    assert_eq!(inside.answer("big__echo", json!({ "a": 1 })).await, json!({ "a": 1 }), "{way:?}");
    let fine = inside.execute("good.fine", json!({})).await;
    assert_eq!(fine["content"][0]["text"], "fine", "{way:?}");
    assert_eq!(inside.gateway.observing.metrics.restarts("big"), 0, "{way:?}");
}

fn text(bytes: usize) -> String {
    "x".repeat(bytes)
}

#[tokio::test]
async fn a_notification_that_is_too_long_is_skipped() {
    for way in WAYS {
        let tools =
            json!([{ "name": "log", "on": { "log": text(3 * MIB), "text": "done" } }, { "name": "echo" }]);
        let inside = open(way, tools).await;
        for _ in 0..3 {
            let result = inside.execute("big.log", json!({})).await;
            assert_eq!(result["content"][0]["text"], "done", "{way:?}");
        }
        is_well(&inside, way).await;
    }
}

#[tokio::test]
async fn a_request_that_is_too_long_is_refused() {
    for way in WAYS {
        let messages = json!([{ "role": "user", "content": { "type": "text", "text": text(2 * MIB) } }]);
        let ask = json!({ "messages": messages, "maxTokens": 1 });
        let inside =
            open(way, json!([{ "name": "ask", "on": { "sampling": ask } }, { "name": "echo" }])).await;
        let answer = json_of(&inside.execute("big.ask", json!({})).await);
        assert_eq!(answer["error"]["code"], -32600, "{way:?}: {answer}");
        let said = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(said.contains("longer than the limit of 1048576 bytes"), "{way:?}: {said}");
        is_well(&inside, way).await;
    }
}

#[tokio::test]
async fn a_message_that_is_nested_too_deeply_or_holds_too_much_is_skipped() {
    let deep = format!("{}{}", "[".repeat(300_000), "]".repeat(300_000));
    let many = format!("[{}0]", "0,".repeat(400_000));
    for (way, params) in WAYS.into_iter().flat_map(|way| [(way, &deep), (way, &many)]) {
        let message =
            format!("{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{params}}}");
        let noise = if way == Way::Stdio { message } else { format!("data: {message}\n") };
        let tools =
            json!([{ "name": "noise", "on": { "noise": noise, "text": "done" } }, { "name": "echo" }]);
        let inside = open(way, tools).await;
        let result = inside.execute("big.noise", json!({})).await;
        assert_eq!(result["content"][0]["text"], "done", "{way:?}");
        is_well(&inside, way).await;
    }
}

#[tokio::test]
async fn a_result_may_be_longer_than_anything_else() {
    for way in WAYS {
        let inside =
            open(way, json!([{ "name": "text", "on": { "size": 12 * MIB } }, { "name": "echo" }])).await;
        let result = inside.execute("big.text", json!({})).await;
        assert_eq!(result["content"][0]["text"].as_str().map(str::len), Some(12 * MIB), "{way:?}");
        is_well(&inside, way).await;
    }
}

#[tokio::test]
async fn a_page_that_is_too_long_fails_with_the_limit() {
    for way in WAYS {
        let tools = json!([{ "name": "echo", "_meta": { "x": text(9 * MIB) } }]);
        let inside = begin(way, json!({ "tools": tools })).await;
        inside.until("big", "down").await;
        let status = json_of(&inside.execute("gateway.status", json!({})).await);
        let servers = status["servers"].as_array().expect("servers");
        let big = servers.iter().find(|server| server["name"] == "big").expect("it is there");
        let said = big["last_error"].as_str().unwrap_or_default();
        assert!(said.contains("longer than the limit of 8388608 bytes"), "{way:?}: {said}");
        let fine = inside.execute("good.fine", json!({})).await;
        assert_eq!(fine["content"][0]["text"], "fine", "{way:?}");
    }
}

#[tokio::test]
async fn a_list_that_is_too_long_is_cut() {
    let tools: Vec<Value> =
        (0..6).map(|n| json!({ "name": format!("t{n}"), "_meta": { "x": text(7 * MIB) } })).collect();
    let inside = begin(Way::Stdio, json!({ "tools": tools, "page_size": 1 })).await;
    inside.until_listed("big").await;
    eventually("four of them fit", async || {
        let listed = inside.answer("browse_category", json!({ "category": "big" })).await;
        (listed["total"] == 4).then_some(())
    })
    .await;
}

#[test]
fn a_request_of_a_client_that_is_too_large_is_refused_and_the_next_is_not() {
    let mut client = Setup::new().start();
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    for (arguments, part) in [
        (format!("\"{}\"", text(5 * MIB)), "longer than the limit of 4194304 bytes"),
        (deep, "nested deeper than 127 levels"),
        (format!("[{}0]", "0,".repeat(1_000_001)), "more than 209715 values"),
    ] {
        let params = format!("{{\"name\":\"search_tools\",\"arguments\":{{\"query\":{arguments}}}}}");
        let line =
            format!("{{\"jsonrpc\":\"2.0\",\"method\":\"tools/call\",\"params\":{params},\"id\":990}}");
        client.send_line(&line);
        let answer = client.finish(990);
        assert_eq!(answer["error"]["code"], -32600, "{answer}");
        assert!(answer["error"]["message"].as_str().is_some_and(|said| said.contains(part)), "{answer}");
        client.answer("list_categories", json!({}));
    }
}

#[test]
fn a_body_that_is_too_large_is_refused() {
    let site = Setup::new().serve();
    let body = |query: &str| {
        format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"tools/call\",\"params\":{{\"name\":\"search_tools\",\"arguments\":{{\"query\":{query}}}}}}}"
        )
    };
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    for (body, status, part) in [
        // More than a connection holds unread: the client is still writing when it is refused.
        (body(&format!("\"{}\"", text(20 * MIB))), 413, "longer than the limit of 4194304 bytes"),
        (body(&deep), 400, "nested deeper than 127 levels"),
    ] {
        let reply = http(&site.address, "POST", "/mcp", &[], &body);
        assert_eq!(reply.status, status, "{reply:?}");
        let error = &reply.answer()["error"];
        assert_eq!(error["code"], -32600, "{error}");
        assert!(error["message"].as_str().is_some_and(|said| said.contains(part)), "{error}");
    }
}
