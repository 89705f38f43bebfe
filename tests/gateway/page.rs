//! The HTTP server's pages besides MCP: the live page, metrics, health.

use serde_json::{Value, json};

use crate::{
    setup::{Setup, eventually},
    web::{Reply, Site, WebClient, first_events, http},
};

fn shop(gateway: &str) -> Setup {
    let tools = json!([{ "name": "buy", "description": "Buys a thing" }, { "name": "who", "on": { "counter": true } }]);
    let script = json!({ "tools": tools, "stderr_lines": ["the shop opens"] });
    Setup::new().server("shop", script).gateway(gateway)
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
    let site = shop("").serve();
    let token = site.page_token();
    for path in ["/ui/api/state", "/ui/api/search?q=buy", "/ui/api/waiting"] {
        assert_private(&get(&site, path, &token));
        assert_private(&get(&site, path, "guess"));
    }
}

#[test]
fn the_page_is_one_file_under_a_strict_policy() {
    let site = shop("").serve();
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
    let site = shop("").serve_program();
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
    let site = shop("").serve_program();
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
    let site = shop("").serve();
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

/// Returns the latest call of a tool, as the stream tells it.
fn call_of(site: &Site, token: &str, tool: &str) -> Value {
    let last = format!("\"tool\":\"{tool}\"");
    let calls = first_events(&site.address, "/ui/api/calls", token, &last);
    calls.into_iter().rfind(|call| call["tool"] == tool).expect("the call")
}

#[test]
fn a_call_is_opened_with_its_params_and_its_result_but_without_secrets() {
    let site = shop("").serve();
    let token = site.page_token();
    let mut client = WebClient::new(&site.address, "/mcp");
    client.until_ready("shop");
    let params = json!({ "what": "bread", "password": "blue monkey 9" });
    client.call("execute_tool", json!({ "name": "shop.buy", "params": params }));
    let call = call_of(&site, &token, "shop.buy");
    assert!(!call.to_string().contains("bread"), "the stream has no content: {call}");
    let open = |call: &Value| json_body(&get(&site, &format!("/ui/api/calls/{}", call["id"]), &token));
    let opened = open(&call);
    assert_eq!((&opened["kept"], &opened["params_cut"]), (&json!(true), &json!(false)), "{opened}");
    assert_eq!(opened["params"], r#"{"what":"bread","password":"***"}"#, "{opened}");
    let result = opened["result"].as_str().expect("a result");
    assert!(result.contains("\"what\": \"bread\"") && !result.contains("monkey"), "{result}");
    let command = opened["command"].as_str().expect("a command");
    assert!(command.starts_with("nonet --config ") && command.contains(" call shop.buy '{"), "{command}");

    // The same call again, with the params as they were.
    let repeat = |call: &Value, token: &str| {
        let path = format!("/ui/api/calls/{}/repeat", call["id"]);
        http(&site.address, "POST", &path, &[("X-Nonet-Token", token)], "")
    };
    assert_eq!(repeat(&call, "guess").status, 401);
    let again = json_body(&repeat(&call, &token));
    assert_eq!(again["failed"], false, "{again}");
    assert!(again["text"].as_str().is_some_and(|text| text.contains("blue monkey 9")), "{again}");

    // A call that reached no tool shows its fault, and is no command.
    client.call("execute_tool", json!({ "name": "shop.nothing", "params": { "n": 1 } }));
    let opened = open(&call_of(&site, &token, "shop.nothing"));
    assert!(opened["result"].as_str().is_some_and(|text| text.contains("unknown_tool")), "{opened}");
    assert!(opened.get("command").is_none(), "{opened}");
    assert_eq!(get(&site, "/ui/api/calls/9999", &token).status, 404);

    let site = shop("keep_calls = false").serve();
    let token = site.page_token();
    let mut client = WebClient::new(&site.address, "/mcp");
    client.until_ready("shop");
    client.call("execute_tool", json!({ "name": "shop.buy", "params": params }));
    let call = call_of(&site, &token, "shop.buy");
    let opened = json_body(&get(&site, &format!("/ui/api/calls/{}", call["id"]), &token));
    assert_eq!(opened, json!({ "kept": false, "params_cut": false, "result_cut": false }));
}

#[test]
fn the_beginning_of_a_long_result_has_no_secrets_either() {
    let text = json!({
        "password": "blue monkey 9", "db_password": "green \"hippo\" 7", "rest": "x".repeat(58_000),
        "secret": "last panda ".repeat(1_000),
    });
    let tools = json!([{ "name": "much", "on": { "text": text.to_string() } }]);
    let site = Setup::new().server("shop", json!({ "tools": tools })).serve();
    let token = site.page_token();
    let mut client = WebClient::new(&site.address, "/mcp");
    client.until_ready("shop");
    client.call("execute_tool", json!({ "name": "shop.much" }));
    let call = call_of(&site, &token, "shop.much");
    let opened = json_body(&get(&site, &format!("/ui/api/calls/{}", call["id"]), &token));
    assert_eq!(opened["result_cut"], true, "{opened}");
    let result = opened["result"].as_str().expect("a result");
    assert!(result.contains(r#""password":"***""#) && result.contains("xxx"), "{}", &result[..200]);
    for secret in ["monkey", "hippo", "green", "panda"] {
        assert!(!result.contains(secret), "{secret}: {}", &result[..200]);
    }
}

#[test]
fn what_clients_were_spared_is_added_up() {
    let schema = json!({ "type": "object", "properties": { "n": { "type": "integer" } }, "required": ["n"] });
    let long = "A long description. ".repeat(1_000);
    let tools = json!([
        { "name": "count", "description": long, "input_schema": schema },
        { "name": "much", "on": { "text": "x".repeat(100_000) } },
    ]);
    let site = Setup::new()
        .server("shop", json!({ "tools": tools }))
        .gateway("max_result_bytes = 2000\ntool_injection = 'discovery'")
        .serve();
    let token = site.page_token();
    let mut client = WebClient::new(&site.address, "/mcp");
    client.until_ready("shop");
    let spared = || json_body(&get(&site, "/ui/api/state", &token))["saving"]["spared"].clone();
    let before = spared();
    assert_eq!((&before["results"], &before["repaired"]), (&json!(0), &json!(0)), "{before}");
    for _ in 0..2 {
        client.request("tools/list", json!({}));
    }
    client.call("execute_tool", json!({ "name": "shop.much" }));
    client.call("execute_tool", json!({ "name": "shop.count", "params": { "n": "3" } }));
    let now = spared();
    let definitions = now["definitions"].as_u64().expect("a number");
    assert!((10_000..30_000).contains(&definitions), "of one list, not of two: {now}");
    assert!(now["results"].as_u64().is_some_and(|bytes| bytes > 90_000), "{now}");
    assert_eq!(now["repaired"], 1, "{now}");
}

#[test]
fn the_page_can_be_switched_off() {
    let site = shop("page = false").serve();
    assert_eq!(http(&site.address, "GET", "/ui", &[], "").status, 404);
    assert_eq!(http(&site.address, "GET", "/healthz", &[], "").status, 200);
}
