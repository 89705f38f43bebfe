//! Many clients at one address: streamable HTTP, the stateless era and the session era.

use serde_json::{Value, json};

use crate::{
    setup::{Setup, json_of, notices_of},
    web::{Reply, Site, WebClient, http, modern},
};

fn strange() -> Value {
    json!({
        "extra": [1, { "b": null }],
        "content": [{ "type": "hologram", "depth": 3 }, { "type": "text", "text": "früh\ndata: \"x\"\r\n\r\n: y" }],
        "structuredContent": { "big": 12345678901234567890u64 },
        "_meta": { "vendor/key": 1 },
    })
}

fn site() -> Site {
    let tools = json!([
        { "name": "echo" },
        { "name": "wait", "on": { "delay_ms": 100 } },
        { "name": "show", "on": { "result": strange() } },
        { "name": "work", "on": { "progress": 30 } },
    ]);
    Setup::new()
        .server("shop", json!({ "tools": tools }))
        .server("other", json!({ "tools": [{ "name": "look" }] }))
        .toml("[profiles.reader]\ncategories = ['other']")
        .serve()
}

const PING: &str = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}";

#[test]
fn a_session_is_opened_used_and_closed() {
    let site = site();
    let mut client = WebClient::new(&site.address, "/mcp");
    let list = client.request("tools/list", json!({})).result();
    let names: Vec<&Value> =
        list["tools"].as_array().expect("tools").iter().map(|tool| &tool["name"]).collect();
    assert_eq!(names, nonet_meta::NAMES);
    client.until_ready("shop");
    assert_eq!(client.answer("shop__echo", json!({ "a": 1 })), json!({ "a": 1 }));
    let headers = [("mcp-session-id", client.session.as_str())];
    let closed = http(&site.address, "DELETE", "/mcp", &headers, "");
    assert!((200..300).contains(&closed.status), "{closed:?}");
    let after = client.request("ping", json!({}));
    assert_eq!(after.status, 404, "a closed session is gone: {after:?}");
}

#[test]
fn a_result_comes_out_as_it_went_in() {
    let site = site();
    let mut client = WebClient::new(&site.address, "/mcp");
    client.until_ready("shop");
    assert_eq!(client.call("shop__show", json!({})).to_string(), strange().to_string());
    let mut result =
        modern(&site.address, "tools/call", json!({ "name": "shop__show", "arguments": {} })).result();
    assert_eq!(result.as_object_mut().expect("an object").remove("resultType"), Some(json!("complete")));
    assert_eq!(result, strange());
}

#[test]
fn twenty_clients_at_once_each_get_their_own() {
    let site = site();
    WebClient::new(&site.address, "/mcp").until_ready("shop");
    std::thread::scope(|scope| {
        for n in 0..20 {
            let address = &site.address;
            scope.spawn(move || {
                let mut client = WebClient::new(address, "/mcp");
                for m in 0..5 {
                    let params = json!({ "client": n, "call": m });
                    let tool = if m % 2 == 0 { "shop__echo" } else { "shop__wait" };
                    assert_eq!(client.answer(tool, params.clone()), params);
                }
            });
        }
    });
}

#[test]
fn notices_go_to_the_session_that_they_concern() {
    let tools = json!([{ "name": "late", "on": { "delay_ms": 700, "text": "done" } }]);
    let site =
        Setup::new().server("shop", json!({ "tools": tools })).gateway("soft_deadline = '200ms'").serve();
    let (mut one, mut two) = (WebClient::new(&site.address, "/mcp"), WebClient::new(&site.address, "/mcp"));
    one.until_ready("shop");
    let task = one.answer("shop__late", json!({}));
    assert_eq!(task["state"], "running", "{task}");
    let told = crate::setup::eventually("the end is told", || {
        let other = notices_of(&two.call("list_categories", json!({})));
        assert_eq!(other, Vec::<Value>::new());
        notices_of(&one.call("list_categories", json!({}))).pop()
    });
    assert_eq!(told["task_id"], task["task_id"]);
}

#[test]
fn the_stateless_era_is_spoken_without_a_session() {
    let site = site();
    WebClient::new(&site.address, "/mcp").until_ready("shop");
    let found = modern(&site.address, "server/discover", json!({}));
    assert_eq!(found.status, 200, "{found:?}");
    assert!(found.result()["supportedVersions"].as_array().expect("versions").contains(&json!("2026-07-28")));
    assert!(!found.headers.contains_key("mcp-session-id"), "{found:?}");
    let list = modern(&site.address, "tools/list", json!({})).result();
    assert_eq!(list["tools"].as_array().map(Vec::len), Some(9));
    assert_eq!((&list["resultType"], list["ttlMs"].is_u64()), (&json!("complete"), true), "{list}");
    let told = modern(&site.address, "tools/call", json!({ "name": "shop__echo", "arguments": { "a": 1 } }));
    assert_eq!(json_of(&told.result()), json!({ "a": 1 }), "{told:?}");
}

#[test]
fn headers_that_contradict_the_body_are_refused() {
    let site = site();
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let params = json!({ "name": "list_categories", "arguments": {}, "_meta": meta });
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params }).to_string();
    let post = |method: &str, name: &str| {
        let headers = [("mcp-protocol-version", "2026-07-28"), ("mcp-method", method), ("mcp-name", name)];
        http(&site.address, "POST", "/mcp", &headers, &body)
    };
    assert_eq!(post("tools/call", "list_categories").status, 200);
    assert_eq!(post("tools/list", "list_categories").status, 400);
    assert_eq!(post("tools/call", "execute_tool").status, 400);
}

#[test]
fn progress_comes_before_the_answer() {
    let site = site();
    let mut client = WebClient::new(&site.address, "/mcp");
    client.until_ready("shop");
    let call = json!({ "name": "shop__work", "arguments": {}, "_meta": { "progressToken": "t" } });
    let messages = client.request("tools/call", call).messages();
    let steps: Vec<Option<f64>> = messages[..messages.len() - 1]
        .iter()
        .filter(|message| message["method"] == "notifications/progress")
        .map(|message| message["params"]["progress"].as_f64())
        .collect();
    assert_eq!(steps, (1..=30).map(|n| Some(f64::from(n))).collect::<Vec<_>>());
    assert!(messages.last().is_some_and(|last| last.get("result").is_some()), "{messages:?}");
}

#[test]
fn a_profile_has_an_address_of_its_own() {
    let site = site();
    let mut client = WebClient::new(&site.address, "/mcp/reader");
    crate::setup::eventually("the server is ready", || {
        let page = client.answer("browse_category", json!({ "category": "other" }));
        (page["total"] == 1).then_some(())
    });
    assert_eq!(client.answer("other__look", json!({ "a": 1 })), json!({ "a": 1 }));
    let refused = json_of(&client.call("shop__echo", json!({})));
    assert!(
        ["forbidden", "unknown_tool"].contains(&refused["error"]["code"].as_str().expect("a code")),
        "{refused}"
    );
    let categories = client.answer("list_categories", json!({}));
    assert!(!categories.to_string().contains("\"shop\""), "{categories}");
}

#[test]
fn a_page_of_another_site_is_kept_out() {
    let site = site();
    let post = |headers: &[(&str, &str)]| http(&site.address, "POST", "/mcp", headers, PING);
    for host in ["evil.example", "evil.example:80", "127.0.0.1.evil.example"] {
        let reply = post(&[("host", host)]);
        assert!([403, 421].contains(&reply.status), "{host}: {reply:?}");
    }
    for origin in ["http://evil.example", "https://localhost.evil.example", "null"] {
        assert_eq!(post(&[("origin", origin)]).status, 403, "{origin}");
    }
    let own = format!("http://{}", site.address);
    assert_ne!(post(&[("origin", &own)]).status, 403);
    assert_ne!(post(&[("origin", "http://localhost:5173")]).status, 403);
}

#[test]
fn what_is_no_mcp_is_refused_and_the_next_request_works() {
    let site = site();
    let status = |method: &str, path: &str, headers: &[(&str, &str)], body: &str| -> Reply {
        http(&site.address, method, path, headers, body)
    };
    for (method, path, headers, body, expected) in [
        ("POST", "/", &[][..], PING, vec![404]),
        ("POST", "/other", &[], PING, vec![404]),
        ("POST", "/mcp/no-such-profile", &[], PING, vec![404]),
        ("PUT", "/mcp", &[], PING, vec![405]),
        ("POST", "/mcp", &[], "not JSON", vec![400, 415]),
        ("POST", "/mcp", &[("content-type", "text/plain")], PING, vec![400, 415]),
        ("POST", "/mcp", &[("accept", "text/html")], PING, vec![400, 406]),
        ("POST", "/mcp", &[("mcp-session-id", "nobody")], PING, vec![404]),
        ("DELETE", "/mcp", &[("mcp-session-id", "nobody")], "", vec![200, 202, 204, 404]),
    ] {
        let reply = status(method, path, headers, body);
        assert!(expected.contains(&reply.status), "{method} {path} {headers:?} {body}: {reply:?}");
    }
    WebClient::new(&site.address, "/mcp").until_ready("shop");
}

#[test]
fn whoever_takes_anything_is_answered() {
    let site = site();
    let params = json!({
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "curl", "version": "8" },
    });
    let initialize = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params });
    for accept in ["*/*", "application/json, text/event-stream"] {
        let headers = [("accept", accept)];
        let reply = http(&site.address, "POST", "/mcp", &headers, &initialize.to_string());
        assert_eq!(reply.status, 200, "{accept}: {reply:?}");
    }
}

#[test]
fn params_that_cannot_be_read_are_invalid_and_not_an_unknown_method() {
    let site = site();
    let mut client = WebClient::new(&site.address, "/mcp");
    for (method, params, code) in
        [("tools/call", json!({ "arguments": {} }), -32602), ("no/such/method", json!({}), -32601)]
    {
        let answer = client.request(method, params).answer();
        assert_eq!(answer["error"]["code"], code, "{method}: {answer}");
    }
}

#[test]
fn a_body_that_is_no_json_is_a_protocol_error() {
    let site = site();
    for body in ["not JSON", "{", ""] {
        let reply = http(&site.address, "POST", "/mcp", &[], body);
        assert_eq!(reply.status, 400, "{body:?}: {reply:?}");
        assert_eq!(reply.answer()["error"]["code"], -32700, "{body:?}: {reply:?}");
    }
}

#[test]
fn a_page_of_an_allowed_site_may_read_answers_and_no_other() {
    let site = Setup::new()
        .server("shop", json!({ "tools": [{ "name": "list" }] }))
        .gateway("allowed_origins = ['https://app.example.com']")
        .serve_program();
    let ask = |origin: &str| {
        let headers = [
            ("origin", origin),
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", "authorization, content-type"),
        ];
        http(&site.address, "OPTIONS", "/mcp", &headers, "")
    };
    let allowed = ask("https://app.example.com");
    assert_eq!(
        (allowed.status, allowed.header("access-control-allow-origin")),
        (204, Some("https://app.example.com"))
    );
    assert_eq!(allowed.header("access-control-allow-headers"), Some("authorization, content-type"));
    // A refusal can be read too, so that a client learns where to sign in.
    let headers = [("origin", "https://app.example.com"), ("authorization", "Bearer wrong")];
    let refused = http(&site.address, "POST", "/mcp", &headers, "{}");
    assert_eq!(
        (refused.status, refused.header("access-control-allow-origin")),
        (401, Some("https://app.example.com"))
    );
    assert!(
        refused.header("access-control-expose-headers").is_some_and(|names| names.contains("mcp-session-id"))
    );
    for origin in ["https://evil.example.com", "http://app.example.com", "http://localhost:3000", "null"] {
        let reply = ask(origin);
        assert_eq!(reply.header("access-control-allow-origin"), None, "{origin}");
        assert_ne!(reply.status, 204, "{origin}");
    }
}
