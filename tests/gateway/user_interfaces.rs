//! MCP Apps: tools with a user interface, for clients that show such interfaces.

use std::fs;

use serde_json::{Value, json};

use crate::{
    client::Client,
    setup::{Setup, eventually, json_of, logged},
};

const VIEW: &str = "ui://clock/view.html";

fn can() -> Value {
    json!({ "extensions": { "io.modelcontextprotocol/ui": { "mimeTypes": ["text/html;profile=mcp-app"] } } })
}

/// A server with a tool that has an interface, one that only the interface calls, and one without.
fn clock() -> Value {
    let ui = |visibility: Value| json!({ "ui": { "resourceUri": VIEW, "visibility": visibility }, "ui/resourceUri": VIEW });
    json!({
        "tools": [
            { "name": "show_time", "description": "Shows the time of a place on earth", "_meta": ui(json!(["model", "app"])) },
            { "name": "refresh-time", "description": "Refreshes the time of a place on earth", "_meta": ui(json!(["app"])) },
            { "name": "set_zone", "_meta": { "ui": { "visibility": ["model"] } } },
            { "name": "plain" },
        ],
        "resources": [{ "uri": VIEW, "text": "<!doctype html><p>clock</p>", "unlisted": true }],
    })
}

fn listed(client: &mut Client) -> Vec<Value> {
    let all = client.request("tools/list", json!({}))["result"]["tools"].as_array().expect("a list").clone();
    assert_eq!(all[0]["name"], "search_tools", "the nine come first");
    all[9..].to_vec()
}

fn names(tools: &[Value]) -> Vec<&str> {
    tools.iter().map(|tool| tool["name"].as_str().expect("a name")).collect()
}

fn ready(setup: Setup) -> Client {
    let mut client = setup.start_program_with(can());
    client.until_ready("clock");
    client
}

#[test]
fn a_client_that_shows_interfaces_gets_the_tools_that_have_one() {
    let mut client = ready(Setup::new().server("clock", clock()).gateway("ui = true"));
    let tools = listed(&mut client);
    assert_eq!(names(&tools), ["refresh-time", "clock__set_zone", "clock__show_time"]);
    assert_eq!(tools[2]["_meta"], clock()["tools"][0]["_meta"], "it is intact");
    // The server need not list the interface.
    let read = client.request("resources/read", json!({ "uri": VIEW }));
    assert_eq!(read["result"]["contents"][0]["text"], "<!doctype html><p>clock</p>", "{read}");
    // The interface calls the tools of its server by their own names.
    for name in ["refresh-time", "show_time", "clock__show_time", "plain"] {
        assert_eq!(json_of(&client.call(name, json!({ "a": 1 }))), json!({ "a": 1 }), "{name}");
    }
}

#[test]
fn what_only_interfaces_call_is_hidden_from_models() {
    let mut client =
        ready(Setup::new().server("clock", clock()).gateway("ui = true\ntool_injection = 'direct'"));
    let found = client
        .answer("search_tools", json!({ "query": "refresh the time of a place on earth", "limit": 20 }));
    assert!(!found.to_string().contains("refresh-time"), "{found}");
    assert!(found.to_string().contains("clock.show_time"), "{found}");
    let browsed = client.answer("browse_category", json!({ "category": "clock" }));
    assert!(!browsed.to_string().contains("refresh-time"), "{browsed}");
    for name in ["clock.refresh-time", "clock__refresh-time", "refresh-time"] {
        let fault = client.fault(name, json!({}));
        assert!(["forbidden", "unknown_tool"].contains(&fault["code"].as_str().expect("a code")), "{fault}");
    }
    let fault = client.fault("clock.refresh-time", json!({}));
    assert!(
        fault["message"].as_str().is_some_and(|message| message.contains("only its user interface")),
        "{fault}"
    );
    // `set_zone` is not for interfaces, but a client may call any tool that models may call.
    assert_eq!(json_of(&client.call("set_zone", json!({}))), json!({}));
    assert_eq!(
        names(&listed(&mut client)),
        ["clock__plain", "clock__set_zone", "clock__show_time", "refresh-time"]
    );
}

#[test]
fn without_the_key_the_list_stays_the_nine_and_one_notice_says_what_to_write() {
    let mut client = ready(Setup::new().server("clock", clock()));
    assert_eq!(listed(&mut client), [] as [Value; 0]);
    listed(&mut client);
    client.call("clock__show_time", json!({}));
    let told = |notices: &[Value]| notices.iter().filter(|notice| notice["kind"] == "ui_left_out").count();
    assert_eq!(told(&client.notices), 1, "{:?}", client.notices);
    assert_eq!(client.server("clock")["uis_left_out"], 2);
    client.call("clock__show_time", json!({}));
    assert_eq!(told(&client.notices), 1, "once");
}

#[test]
fn a_client_without_interfaces_gets_the_nine_and_no_notice() {
    let mut client = Setup::new().server("clock", clock()).gateway("ui = true").start_program();
    client.until_ready("clock");
    assert_eq!(listed(&mut client), [] as [Value; 0]);
    assert_eq!(client.fault_code("refresh-time").as_deref(), Some("forbidden"));
    assert!(client.notices.is_empty(), "{:?}", client.notices);
}

#[test]
fn a_profile_decides_for_its_clients() {
    let setup = Setup::new().server("clock", clock()).toml("[profiles.chat]\nui = true\n");
    setup.write();
    let mut chat = setup.run(&["--profile", "chat"]);
    chat.shake_hands(can());
    eventually("its tools are known", || (listed(&mut chat).len() == 3).then_some(()));
    let mut other = chat.beside(&[]);
    other.shake_hands(can());
    other.until_ready("clock");
    assert_eq!(listed(&mut other).len(), 0);
}

#[test]
fn servers_with_the_same_names_are_told_apart_or_refused() {
    let mut other = clock();
    other["resources"][0]["text"] = json!("<!doctype html><p>other</p>");
    let mut client = ready(Setup::new().server("clock", clock()).server("other", other).gateway("ui = true"));
    client.until_ready("other");
    let tools = listed(&mut client);
    let shown: Vec<(&str, &str)> = tools
        .iter()
        .filter_map(|tool| Some((tool["name"].as_str()?, tool["_meta"]["ui"]["resourceUri"].as_str()?)))
        .collect();
    assert_eq!(
        shown,
        [
            ("clock__refresh-time", "ui://nonet/clock/ui://clock/view.html"),
            ("clock__show_time", "ui://nonet/clock/ui://clock/view.html"),
            ("other__refresh-time", "ui://nonet/other/ui://clock/view.html"),
            ("other__show_time", "ui://nonet/other/ui://clock/view.html"),
        ]
    );
    assert_eq!(tools[0]["_meta"]["ui/resourceUri"], shown[0].1);
    for (uri, text) in [(shown[1].1, "clock"), (shown[3].1, "other")] {
        let read = client.request("resources/read", json!({ "uri": uri }));
        let content = &read["result"]["contents"][0];
        assert_eq!(content["text"], format!("<!doctype html><p>{text}</p>"), "{read}");
        assert_eq!(content["uri"], uri);
    }
    // No guess: which interface calls is not known.
    let fault = json_of(&client.call("refresh-time", json!({})))["error"].take();
    assert_eq!(fault["code"], "ambiguous_tool", "{fault}");
    assert_eq!(json_of(&client.call("other__refresh-time", json!({ "b": 1 }))), json!({ "b": 1 }));
}

#[test]
fn a_rule_holds_for_calls_of_interfaces_too() {
    let rules = "[policies.no]\ntools = ['clock.refresh-time']\npolicy = 'deny'\n";
    let mut client = ready(Setup::new().server("clock", clock()).gateway("ui = true").toml(rules));
    assert_eq!(names(&listed(&mut client)), ["clock__set_zone", "clock__show_time"]);
    let fault = json_of(&client.call("refresh-time", json!({})))["error"].take();
    assert!(["forbidden", "unknown_tool"].contains(&fault["code"].as_str().expect("a code")), "{fault}");
}

#[test]
fn servers_are_told_that_interfaces_are_shown() {
    for (era, key, expected) in
        [("legacy", "ui = true", true), ("modern", "ui = true", true), ("legacy", "", false)]
    {
        let log = tempfile::NamedTempFile::new().expect("a file");
        let mut script = clock();
        script["era"] = json!(era);
        script["message_log"] = json!(log.path());
        let mut client = ready(Setup::new().server("clock", script).gateway(key));
        client.call("clock__plain", json!({}));
        let messages = logged(log.path());
        let all = fs::read_to_string(log.path()).expect("it is there");
        assert_eq!(all.contains("io.modelcontextprotocol/ui"), expected, "{era} {key}: {messages:?}");
        if era == "modern" {
            let call = messages.iter().find(|message| message["method"] == "tools/call").expect("a call");
            let can = &call["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"]["extensions"];
            assert_eq!(can["io.modelcontextprotocol/ui"]["mimeTypes"], json!(["text/html;profile=mcp-app"]));
        }
    }
}
