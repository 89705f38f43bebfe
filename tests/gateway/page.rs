//! The HTTP server's pages besides MCP: the live page, metrics, health.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
};

use serde_json::{Value, json};

use crate::{
    setup::{Setup, eventually},
    web::{Reply, Site, WebClient, http},
};

fn shop(gateway: &str) -> Site {
    let tools = json!([{ "name": "buy", "description": "Buys a thing" }, { "name": "who", "on": { "counter": true } }]);
    let script = json!({ "tools": tools, "stderr_lines": ["the shop opens"] });
    Setup::new().server("shop", script).gateway(gateway).serve()
}

fn get(site: &Site, path: &str, token: &str) -> Reply {
    http(&site.address, "GET", path, &[("X-Nonet-Token", token)], "")
}

fn json_body(reply: &Reply) -> Value {
    serde_json::from_str(&reply.body).unwrap_or_else(|_| panic!("no JSON: {reply:?}"))
}

/// Checks that no browser stores a reply or reads it as another type.
fn assert_private(reply: &Reply) {
    for (header, value) in [("x-content-type-options", "nosniff"), ("cache-control", "no-store")] {
        assert_eq!(reply.headers.get(header).map(String::as_str), Some(value), "{reply:?}");
    }
}

#[test]
fn no_browser_keeps_what_the_page_asks() {
    let site = shop("");
    let token = site.page_token();
    for path in ["/ui/api/state", "/ui/api/search?q=buy", "/ui/api/waiting"] {
        assert_private(&get(&site, path, &token));
        assert_private(&get(&site, path, "guess"));
    }
}

#[test]
fn the_page_is_one_file_under_a_strict_policy() {
    let site = shop("");
    let page = http(&site.address, "GET", "/ui", &[], "");
    assert_eq!(page.status, 200);
    assert!(page.body.len() < 150_000 && page.body.contains("<script>"), "{} bytes", page.body.len());
    for other in [" src=", "@import", "url(", "href=\"http", "//cdn"] {
        assert!(!page.body.contains(other), "{other}: the page asks nobody else");
    }
    assert_private(&page);
    let policy = &page.headers["content-security-policy"];
    assert!(policy.contains("default-src 'none'") && policy.contains("script-src 'sha256-"), "{policy}");
}

#[test]
fn its_figures_are_for_those_who_have_the_token() {
    let site = shop("");
    let token = site.page_token();
    for bad in ["", "guess"] {
        for path in ["/ui/api/state", "/ui/api/search?q=x", "/ui/api/calls"] {
            let refused = get(&site, path, bad);
            assert_eq!(refused.status, 401, "{path}");
            assert!(refused.body.contains("live page at"), "{path}: {refused:?}");
        }
    }
    let mut client = WebClient::new(&site.address, "/mcp");
    client.until_ready("shop");
    client.call("execute_tool", json!({ "name": "shop.buy", "params": { "n": 1 } }));
    let state = json_body(&get(&site, "/ui/api/state", &token));
    let server = &state["servers"][0];
    assert_eq!((&server["name"], &server["state"]), (&json!("shop"), &json!("ready")), "{state}");
    assert_eq!(server["stderr"], json!(["the shop opens"]), "{state}");
    assert!(state["saving"]["bytes_of_the_nine"].as_u64().is_some_and(|bytes| bytes > 1_000), "{state}");
    let found = json_body(&get(&site, "/ui/api/search?q=buy%20a%20thing", &token));
    assert_eq!(found["results"][0]["name"], "shop.buy", "{found}");
    assert!(found["results"][0]["explain"].is_object(), "{found}");
}

#[test]
fn a_server_is_restarted_held_and_let_go_from_the_page() {
    let site = shop("");
    let token = site.page_token();
    let mut client = WebClient::new(&site.address, "/mcp");
    client.until_ready("shop");
    let who =
        |client: &mut WebClient| client.answer("execute_tool", json!({ "name": "shop.who" }))["pid"].clone();
    let state = || json_body(&get(&site, "/ui/api/state", &token))["servers"][0]["state"].clone();
    let act = |action: &str| {
        http(
            &site.address,
            "POST",
            &format!("/ui/api/servers/shop/{action}"),
            &[("X-Nonet-Token", &token)],
            "",
        )
    };
    let before = who(&mut client);
    let done = act("restart");
    assert_eq!((done.status, &*done.body), (204, ""), "{done:?}");
    assert!(!done.headers.contains_key("content-type"), "{done:?}");
    eventually("another process answers", || {
        let answer = client.answer("execute_tool", json!({ "name": "shop.who" }));
        (answer["pid"].is_u64() && answer["pid"] != before).then_some(())
    });
    assert_eq!(act("hold").status, 204);
    eventually("it is held", || (state() == "held").then_some(()));
    let fault = client.answer("execute_tool", json!({ "name": "shop.who" }));
    assert_eq!(fault["error"]["code"], "server_down", "{fault}");
    assert_eq!(act("release").status, 204);
    eventually("it is ready", || (state() == "ready").then_some(()));
    assert!(who(&mut client).is_u64());
    assert_eq!(act("explode").status, 404);
}

#[test]
fn metrics_and_health_are_there_besides_the_page() {
    let site = shop("");
    let mut client = WebClient::new(&site.address, "/mcp");
    client.until_ready("shop");
    client.call("execute_tool", json!({ "name": "shop.buy" }));
    client.call("execute_tool", json!({ "name": "shop.nothing" }));
    client.call("search_tools", json!({ "query": "buy" }));
    let page = http(&site.address, "GET", "/metrics", &[], "");
    for line in [
        "nonet_calls_total{server=\"shop\",tool=\"buy\",outcome=\"ok\"} 1",
        "nonet_refused_total{outcome=\"unknown_tool\"} 1",
        "nonet_server_up{server=\"shop\"} 1",
        "nonet_search_seconds_count 1",
    ] {
        assert!(page.body.contains(line), "{line}\n{}", page.body);
    }
    assert_eq!(http(&site.address, "GET", "/healthz", &[], "").body.trim(), "ok");
    assert_eq!(json_body(&http(&site.address, "GET", "/readyz", &[], ""))["ready"], true);
}

#[test]
fn params_of_calls_are_shown_only_where_the_audit_log_records_them() {
    let feed = |site: &Site, token: &str| -> String {
        let mut client = WebClient::new(&site.address, "/mcp");
        client.until_ready("shop");
        client.call(
            "execute_tool",
            json!({ "name": "shop.buy", "params": { "what": "bread", "password": "blue monkey 9" } }),
        );
        let mut stream = TcpStream::connect(&site.address).expect("it listens");
        let request =
            format!("GET /ui/api/calls HTTP/1.1\r\nHost: {}\r\nX-Nonet-Token: {token}\r\n\r\n", site.address);
        stream.write_all(request.as_bytes()).expect("it reads");
        let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
        lines.find(|line| line.contains("\"tool\":\"shop.buy\"")).expect("the call")
    };
    let site = shop("");
    let told = feed(&site, &site.page_token());
    assert!(!told.contains("bread"), "{told}");
    let site = shop("learn = true\n[audit]\nparams = true");
    let told = feed(&site, &site.page_token());
    assert!(told.contains(r#"{\"what\":\"bread\",\"password\":\"***\"}"#), "{told}");
}

#[test]
fn the_page_can_be_switched_off() {
    let site = shop("page = false");
    assert_eq!(http(&site.address, "GET", "/ui", &[], "").status, 404);
    assert_eq!(http(&site.address, "GET", "/healthz", &[], "").status, 200);
}
