//! Which revisions of the protocol are spoken, what answers say of their tools, and lists for clients that search by
//! themselves.

use serde_json::{Value, json};

use crate::{
    client::Client,
    setup::{Setup, eventually, json_of, notices_of},
    sign_in_service::{Manner, Service},
    signing_in::browse,
};

fn shop() -> Value {
    json!({ "tools": [{ "name": "list", "on": { "text": "[]" } }] })
}

/// Sends `initialize` under this name. Returns the whole answer.
fn hello(client: &mut Client, name: &str, version: &str) -> Value {
    let info = json!({ "name": name, "version": "1" });
    let params = json!({ "protocolVersion": version, "capabilities": {}, "clientInfo": info });
    let answer = client.request("initialize", params);
    client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
    answer
}

#[test]
fn a_client_older_than_the_minimum_is_refused_with_the_reason() {
    let check = |oldest: &str, version: &str, expected: Result<&str, &[&str]>| {
        let setup = Setup::new().gateway(&format!("min_protocol = '{oldest}'"));
        let mut client = setup.start_program_silently();
        let answer = hello(&mut client, "old", version);
        match expected {
            Ok(agreed) => assert_eq!(answer["result"]["protocolVersion"], agreed, "{answer}"),
            Err(supported) => {
                assert_eq!(answer["error"]["code"], -32022, "{answer}");
                assert_eq!(answer["error"]["data"]["requested"], version, "{answer}");
                assert_eq!(answer["error"]["data"]["supported"], json!(supported), "{answer}");
                let message = answer["error"]["message"].as_str().expect("a message");
                assert!(message.contains(oldest) && message.contains("min_protocol"), "{message}");
            }
        }
    };
    check("2025-06-18", "2025-03-26", Err(&["2025-06-18", "2025-11-25", "2026-07-28"]));
    check("2025-06-18", "2025-06-18", Ok("2025-06-18"));
    check("2025-06-18", "1999-01-01", Ok("2025-11-25"));
    check("2026-07-28", "2025-11-25", Err(&["2026-07-28"]));
    check("2026-07-28", "1999-01-01", Err(&["2026-07-28"]));
}

#[test]
fn a_client_without_a_handshake_is_told_the_revisions_that_are_left() {
    let mut client = Setup::new().gateway("min_protocol = '2025-11-25'").start_program_silently();
    let answer = client.modern("server/discover", json!({}), json!({}));
    assert_eq!(answer["result"]["supportedVersions"], json!(["2025-11-25", "2026-07-28"]), "{answer}");
}

#[test]
fn a_server_older_than_the_minimum_stays_down_unless_its_entry_admits_it() {
    let old = || json!({ "tools": shop()["tools"], "protocol": "2024-11-05" });
    let mut client = Setup::new()
        .server("old", old())
        .server_with("admitted", old(), "min_protocol = '2024-11-05'")
        .server("new", json!({ "tools": shop()["tools"], "era": "modern" }))
        .gateway("min_protocol = '2025-03-26'")
        .start_program();
    let status = client.until("old", "down");
    let error = status["last_error"].as_str().expect("an error");
    for part in ["speaks MCP 2024-11-05", "requires 2025-03-26", "[servers.old]"] {
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(client.until("admitted", "ready")["version"], "2024-11-05");
    assert_eq!(client.until("new", "ready")["version"], "2026-07-28");
}

#[test]
fn a_status_says_who_speaks_what() {
    let mut client = Setup::new().server("shop", shop()).start_program_silently();
    hello(&mut client, "teller", "2025-03-26");
    let status = client.execute("gateway.status", json!({}));
    let expected = json!([{ "client": "teller", "protocol": "2025-03-26", "sessions": 1 }]);
    assert_eq!(json_of(&status)["protocols"], expected, "{status}");
}

#[test]
fn an_answer_that_is_not_what_its_tool_declares_is_passed_on_with_one_notice() {
    let schema = json!({ "type": "object", "properties": { "n": { "type": "integer" } }, "required": ["n"] });
    let tool = |name: &str, on: Value| json!({ "name": name, "outputSchema": schema, "on": on });
    let tools = json!([
        tool("right", json!({ "result": { "content": [], "structuredContent": { "n": 1 } } })),
        tool("wrong", json!({ "result": { "content": [], "structuredContent": { "n": "one" } } })),
        tool("missing", json!({ "text": "one" })),
        tool("failed", json!({ "error": "no" })),
    ]);
    let mut client = Setup::new().server("shop", json!({ "tools": tools })).start_program();
    client.until_ready("shop");
    let mut told = |name: &str| {
        let result = client.execute(&format!("shop.{name}"), json!({}));
        let notices = notices_of(&result);
        let of_output = notices.iter().filter(|notice| notice["kind"] == "output_mismatch");
        let told: Vec<String> =
            of_output.map(|notice| notice["message"].as_str().expect("a message").to_owned()).collect();
        (result, told)
    };
    let nothing = Vec::<String>::new();
    assert_eq!(told("right").1, nothing);
    assert_eq!(told("failed").1, nothing);
    let (result, notices) = told("wrong");
    assert_eq!(result["structuredContent"], json!({ "n": "one" }), "it is passed on");
    assert!(notices[0].contains("structuredContent/n: \"one\" is not of type"), "{notices:?}");
    assert_eq!(told("wrong").1, nothing, "once in a session");
    assert!(told("missing").1[0].contains("it has no structuredContent"));
}

#[test]
fn an_answer_says_what_was_called_if_that_only_reads() {
    let tool = |name: &str, annotations: Value, result: Value| json!({ "name": name, "annotations": annotations, "on": { "result": result } });
    let content = || json!([{ "type": "text", "text": "x" }]);
    let reads = || json!({ "readOnlyHint": true, "openWorldHint": false });
    let tools = json!([
        tool("read", reads(), json!({ "content": content() })),
        tool("own", reads(), json!({ "content": content(), "_meta": { "its": 1 } })),
        tool(
            "linked",
            reads(),
            json!({ "content": [{ "type": "resource_link", "uri": "a:b", "name": "b" }] })
        ),
        tool("wipe", json!({ "destructiveHint": true }), json!({ "content": content() })),
    ]);
    let mut client = Setup::new().server("shop", json!({ "tools": tools })).start_program();
    client.until_ready("shop");
    let mut meta = |name: &str| client.execute(&format!("shop.{name}"), json!({}))["_meta"].take();
    let called = |name: &str| json!({ "tool": format!("shop.{name}"), "annotations": reads() });
    assert_eq!(meta("read"), json!({ "nonet/called": called("read") }));
    assert_eq!(meta("own"), json!({ "nonet/called": called("own"), "its": 1 }));
    assert_eq!(meta("linked"), json!({ "nonet/called": called("linked") }));
    assert_eq!(meta("wipe"), Value::Null);
}

#[test]
fn auto_asks_who_lists() {
    let listed = |name: &str, keys: &str| {
        let script = json!({ "tool_count": 30 });
        let keys = format!("tool_injection = 'auto'\ncontext_window = 4000\n{keys}");
        let mut client = Setup::new().server("shop", script).gateway(&keys).start_program_silently();
        hello(&mut client, name, "2025-11-25");
        client.until_ready("shop");
        client.request("tools/list", json!({}))["result"]["tools"].as_array().expect("a list").len()
    };
    // 30 tools are more than a fifth of 4,000 tokens, even in one line each; their names are not.
    assert_eq!(listed("somebody", ""), 9);
    assert_eq!(listed("claude-code", ""), 39);
    assert_eq!(listed("claude-code", "[clients.claude-code]\ntool_search = false\n"), 9);
}

#[test]
fn a_call_gives_the_user_the_link_of_the_sign_in() {
    nonet_wire::web::crypto();
    let service = Service::start(Manner::default());
    let web = format!("url = '{}'", service.url());
    let mut client = Setup::new().server_of("web", &web).start_program();
    client.until("web", "auth_required");
    let told = client.fault("web.echo", json!({}))["message"].as_str().expect("a message").to_owned();
    assert!(told.contains(" login web` in a terminal"), "{told}");
    let link = told.split_whitespace().find(|word| word.starts_with("http")).expect("a link").to_owned();
    let again = client.fault("web.echo", json!({}))["message"].as_str().expect("a message").to_owned();
    assert!(again.contains(&link), "one sign-in is open at a time: {again}");
    assert_eq!(browse(&link).0, 200);
    client.until("web", "ready");
}

#[test]
fn a_client_that_shows_links_signs_in_during_the_call() {
    nonet_wire::web::crypto();
    let service = Service::start(Manner::default());
    let web = format!("url = '{}'", service.url());
    let can = json!({ "elicitation": { "form": {}, "url": {} } });
    let mut client = Setup::new().server_of("web", &web).start_program_with(can);
    client.answer_questions(|asked| {
        assert_eq!(asked["mode"], "url", "{asked}");
        assert_eq!(browse(asked["url"].as_str().expect("an address")).0, 200);
        json!({ "action": "accept" })
    });
    client.until("web", "auth_required");
    let told = client.fault("web.echo", json!({}))["message"].as_str().expect("a message").to_owned();
    assert_eq!(browse(told.split_whitespace().find(|word| word.starts_with("http")).expect("a link")).0, 200);
    client.until("web", "ready");
    // Its tools are known now, and the account ends.
    service.revoke(true);
    eventually("the end is noticed", || (client.fault_code("web.echo")? == "auth_required").then_some(()));
    assert!(client.asked.is_empty());
    let result = client.execute("web.echo", json!({ "a": 1 }));
    assert_eq!(json_of(&result), json!({ "a": 1 }), "{result}");
    assert_eq!(client.asked.len(), 1);
}
