//! The start of a conversation, in each revision of the protocol, whatever the servers do.

use std::time::Instant;

use serde_json::{Value, json};

use crate::setup::Setup;

const LEGACY: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];

fn shop() -> Setup {
    Setup::new().server("shop", json!({ "tools": [{ "name": "buy", "description": "Buys a thing" }] }))
}

fn names(list: &Value) -> Vec<&str> {
    list["tools"].as_array().expect("tools").iter().filter_map(|tool| tool["name"].as_str()).collect()
}

#[test]
fn every_revision_with_a_handshake_is_spoken() {
    for version in LEGACY {
        let mut client = shop().start_program_silently();
        let answer = client.initialize(version, json!({}));
        let result = &answer["result"];
        assert_eq!(result["protocolVersion"], version, "{answer}");
        assert_eq!(result["serverInfo"]["name"], "nonet");
        assert!(result["capabilities"]["tools"].is_object(), "{answer}");
        assert!(
            result["instructions"].as_str().is_some_and(|text| text.contains("search_tools")),
            "{answer}"
        );
        assert!(result.get("resultType").is_none(), "{answer}");

        let list = client.request("tools/list", json!({}));
        assert_eq!(names(&list["result"]), nonet_meta::NAMES, "{version}");
        for key in ["resultType", "ttlMs", "cacheScope"] {
            assert!(list["result"].get(key).is_none(), "{key} is not of {version}: {list}");
        }
        client.until_ready("shop");
        let bought = client.execute("shop.buy", json!({ "item": version }));
        assert_eq!(
            bought,
            json!({ "content": [{ "type": "text", "text": json!({ "item": version }).to_string() }] })
        );
    }
}

#[test]
fn a_revision_from_the_future_is_answered_with_one_that_is_known() {
    let mut client = shop().start_program_silently();
    let answer = client.initialize("2099-01-01", json!({}));
    let version = answer["result"]["protocolVersion"].as_str().expect("a version").to_string();
    assert!(LEGACY.contains(&version.as_str()), "{answer}");
    assert_eq!(names(&client.request("tools/list", json!({}))["result"]).len(), 9);
}

#[test]
fn the_stateless_revision_is_spoken_request_by_request() {
    let mut client = shop().start_program_silently();
    let found = client.modern("server/discover", json!({}), json!({}));
    let result = &found["result"];
    let versions = result["supportedVersions"].as_array().expect("versions");
    assert!(versions.contains(&json!("2026-07-28")), "{found}");
    assert!(result["capabilities"]["tools"].is_object(), "{found}");
    assert!(result["instructions"].as_str().is_some_and(|text| text.contains("search_tools")), "{found}");
    assert_eq!(result["resultType"], "complete", "{found}");

    let list = client.modern("tools/list", json!({}), json!({}));
    let list = &list["result"];
    assert_eq!(names(list), nonet_meta::NAMES);
    assert_eq!(list["resultType"], "complete");
    assert!(list["ttlMs"].is_u64() && list["cacheScope"].is_string(), "{list}");

    let call = json!({ "name": "list_categories", "arguments": {} });
    let answer = client.modern("tools/call", call, json!({}));
    assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
    assert!(answer["result"]["content"][0]["text"].is_string(), "{answer}");
}

#[test]
fn a_stateless_client_need_not_discover_first() {
    let mut client = shop().start_program_silently();
    let list = client.modern("tools/list", json!({}), json!({}));
    assert_eq!(names(&list["result"]), nonet_meta::NAMES, "{list}");
}

#[test]
fn a_client_may_discover_and_then_initialize() {
    let mut client = shop().start_program_silently();
    client.modern("server/discover", json!({}), json!({}));
    let answer = client.initialize("2025-11-25", json!({}));
    assert_eq!(answer["result"]["protocolVersion"], "2025-11-25", "{answer}");
    let list = client.request("tools/list", json!({}));
    assert_eq!(names(&list["result"]), nonet_meta::NAMES, "{list}");
    client.until_ready("shop");
    assert_eq!(client.answer("shop__buy", json!({ "item": "a" })), json!({ "item": "a" }));
}

#[test]
fn the_handshake_waits_for_no_server() {
    let began = Instant::now();
    let mut client = shop()
        .server("silent", json!({ "never_answer": true }))
        .server("slow", json!({ "start_delay_ms": 60_000 }))
        .server_of("missing", "command = 'no-such-program-of-nonet'")
        .start_program();
    assert_eq!(names(&client.request("tools/list", json!({}))["result"]).len(), 9);
    let categories = client.answer("list_categories", json!({}));
    assert_eq!(categories["categories"].as_array().map(Vec::len), Some(5), "{categories}");
    assert!(began.elapsed().as_secs() < 10, "it took {:?}", began.elapsed());
    client.until_ready("shop");
    assert_eq!(client.server("silent")["state"], "starting");
}

#[test]
fn a_ping_is_answered() {
    let mut client = shop().start_program();
    assert_eq!(client.request("ping", json!({}))["result"], json!({}));
}

#[test]
fn an_unknown_method_is_a_protocol_error() {
    let mut client = shop().start_program();
    let answer = client.request("tools/fly", json!({}));
    assert_eq!(answer["error"]["code"], -32601, "{answer}");
    assert_eq!(client.request("ping", json!({}))["result"], json!({}));
}

#[test]
fn an_unknown_tool_is_no_protocol_error() {
    let mut client = shop().start_program();
    client.until_ready("shop");
    let result = client.call("fly_to_the_moon", json!({}));
    assert_eq!(result["isError"], true, "{result}");
    assert!(
        result["content"][0]["text"].as_str().is_some_and(|text| text.contains("unknown_tool")),
        "{result}"
    );
}

#[test]
fn lines_that_cannot_be_read_are_survived() {
    let mut client = shop().start_program();
    for line in
        ["this is not JSON", "{", "[1, 2", "{}", "[]", "null", "", "{\"jsonrpc\":\"2.0\"}", "\u{1}\u{2}"]
    {
        client.send_line(line);
        let answer = client.request("ping", json!({}));
        assert_eq!(answer["result"], json!({}), "after {line:?}: {answer}");
    }
}

#[test]
fn a_client_may_leave_before_it_has_said_anything() {
    let mut client = shop().start_program_silently();
    client.leave();
    assert_eq!(client.ended().code(), Some(0));
}

#[test]
fn a_client_may_leave_in_the_middle_of_a_call() {
    let mut client = Setup::new()
        .server("shop", json!({ "tools": [{ "name": "hang", "on": { "hang": true } }] }))
        .start_program();
    client.until_ready("shop");
    client.begin_call("shop__hang", json!({}));
    client.leave();
    assert_eq!(client.ended().code(), Some(0));
}
