//! `expose = "verbatim"`: a server under its own names.

use serde_json::{Value, json};

use crate::{
    client::Client,
    setup::{Setup, eventually},
    web::{WebClient, http, modern},
};

const VERBATIM: &str = "expose = 'verbatim'";

fn shop() -> Value {
    json!({
        "tools": [
            {
                "name": "buy.now",
                "description": "Buys",
                "inputSchema": { "type": "object", "properties": { "n": { "type": "integer" } }, "x-own": [1] },
                "x-kept": { "a": 1 },
            },
            { "name": "pay", "description": "d".repeat(3_000), "on": { "text": "paid" } },
            { "name": "refuse", "on": { "rpc_error": { "code": -31_234, "message": "no", "data": { "why": [1] } } } },
            { "name": "get_tool", "on": { "text": "of the shop" } },
        ],
        "prompts": [{ "name": "plan it", "text": "Plan." }],
        "resources": [{ "uri": "note://a", "text": "of shop" }],
    })
}

fn bank() -> Value {
    json!({
        "tools": [{ "name": "pay", "on": { "text": "paid by bank" } }, { "name": "lend" }],
        "prompts": [{ "name": "plan it", "text": "Plan at the bank." }],
        "resources": [{ "uri": "note://a", "text": "of bank" }],
    })
}

/// Returns two verbatim servers with common names, and a normal one.
fn town() -> Setup {
    Setup::new()
        .server_with("shop", shop(), VERBATIM)
        .server_with("bank", bank(), VERBATIM)
        .server("docs", json!({ "tools": [{ "name": "read" }] }))
}

fn names(list: &Value) -> Vec<&str> {
    list["tools"].as_array().expect("a list").iter().filter_map(|tool| tool["name"].as_str()).collect()
}

fn ready() -> Client {
    listed(town().start())
}

/// Waits until everything is listed.
fn listed(mut client: Client) -> Client {
    for server in ["shop", "bank", "docs"] {
        client.until_ready(server);
    }
    eventually("both are listed", || {
        let listed = client.request("tools/list", json!({}));
        (names(&listed["result"]).len() == 9 + 6).then_some(())
    });
    client
}

#[test]
fn its_tools_are_listed_before_the_nine_as_the_server_defines_them() {
    let mut client = ready();
    let listed = client.request("tools/list", json!({}));
    let listed = &listed["result"];
    let names = names(listed);
    assert_eq!(
        names[..7],
        ["lend", "bank__pay", "buy.now", "shop__get_tool", "shop__pay", "refuse", "search_tools"]
    );
    assert!(!names.contains(&"docs__read"), "others are found by searching: {names:?}");
    let tool = |name: &str| {
        listed["tools"]
            .as_array()
            .expect("a list")
            .iter()
            .find(|tool| tool["name"] == name)
            .expect("it is there")
    };
    assert_eq!(tool("buy.now")["x-kept"], json!({ "a": 1 }));
    assert_eq!(tool("buy.now")["inputSchema"]["x-own"], json!([1]));
    assert_eq!(tool("shop__pay")["description"].as_str().map(str::len), Some(3_000), "nothing is cut");
}

#[test]
fn calls_by_own_name_are_answered_as_the_server_answers() {
    let mut client = ready();
    let bought = client.call("buy.now", json!({ "n": "3" }));
    assert_eq!(
        bought,
        json!({ "content": [{ "type": "text", "text": "{\"n\":3}" }] }),
        "and nothing is added"
    );
    assert_eq!(client.call("shop__pay", json!({}))["content"][0]["text"], "paid");
    assert_eq!(client.call("bank__pay", json!({}))["content"][0]["text"], "paid by bank");
    // Repairs are reported with the next answer from Nonet itself.
    let told = client.call("execute_tool", json!({ "name": "shop.pay" }));
    assert!(
        told["content"][1]["text"].as_str().is_some_and(|text| text.contains("params_repaired")),
        "{told}"
    );
    let either = client.answer("pay", json!({}));
    assert_eq!(either["error"]["code"], "ambiguous_tool", "neither is guessed: {either}");
    let refused = client.request("tools/call", json!({ "name": "refuse", "arguments": {} }));
    assert_eq!(refused["error"], json!({ "code": -31_234, "message": "no", "data": { "why": [1] } }));
    let by_execute = client.execute("shop.refuse", json!({}));
    assert_eq!(by_execute["isError"], true, "by a meta-tool it is a fault as before: {by_execute}");
    let status = client.call("gateway__status", json!({}));
    assert!(status.to_string().contains("shop"), "{status}");
}

#[test]
fn a_name_that_is_taken_is_nobodys_and_is_warned_of() {
    let mut client = listed(town().start_program());
    let found = client.call("get_tool", json!({ "name": "shop.pay" }));
    assert!(found.to_string().contains("input_schema"), "the meta-tool keeps its name: {found}");
    assert_eq!(client.call("shop__get_tool", json!({}))["content"][0]["text"], "of the shop");
    let log = client.stderr();
    for (tool, holder) in [("shop.pay", "bank"), ("bank.pay", "shop"), ("shop.get_tool", "Nonet")] {
        let warned: Vec<&str> =
            log.lines().filter(|line| line.contains("own name is taken") && line.contains(tool)).collect();
        assert_eq!(warned.len(), 1, "{log}");
        assert!(warned[0].contains(holder), "{}", warned[0]);
    }
}

#[test]
fn its_prompts_and_resources_keep_their_names_too() {
    let mut client = ready();
    let prompts = eventually("both have listed their prompts", || {
        let prompts = client.request("prompts/list", json!({}))["result"]["prompts"].clone();
        (prompts.as_array()?.len() == 2).then_some(prompts)
    });
    let names = [&prompts[0]["name"], &prompts[1]["name"]];
    assert_eq!(names, [&json!("bank__plan_it"), &json!("shop__plan_it")], "both have it");
    let mut got = |name: &str| {
        client.request("prompts/get", json!({ "name": name }))["result"]["messages"][0]["content"]["text"]
            .clone()
    };
    assert_eq!(got("bank__plan_it"), "Plan at the bank.");
    assert_eq!(got("plan it"), Value::Null);
    assert_eq!(got("shop__plan_it"), "Plan.");
    let resources = client.request("resources/list", json!({}))["result"]["resources"].clone();
    assert_eq!(
        (&resources[0]["uri"], &resources[1]["uri"]),
        (&json!("nonet://bank/note://a"), &json!("nonet://shop/note://a"))
    );
    let mut read = |uri: &str| {
        client.request("resources/read", json!({ "uri": uri }))["result"]["contents"][0]["text"].clone()
    };
    assert_eq!(read("nonet://bank/note://a"), "of bank");
    assert_eq!(read("nonet://shop/note://a"), "of shop");
}

#[test]
fn profiles_and_policies_hold_for_own_names() {
    let site = town().toml("[profiles.buyer]\ndeny = ['bank.*', 'shop.refuse']\n").serve();
    let mut buyer = WebClient::new(&site.address, "/mcp/buyer");
    buyer.until_ready("shop");
    let listed = eventually("the shop is listed", || {
        let listed = buyer.request("tools/list", json!({})).result();
        names(&listed).contains(&"buy.now").then_some(listed)
    });
    let names = names(&listed);
    assert_eq!(names[..4], ["buy.now", "shop__get_tool", "shop__pay", "search_tools"]);
    for (denied, code) in [("lend", "unknown_tool"), ("refuse", "forbidden")] {
        let answer = buyer.call(denied, json!({}));
        assert!(answer["isError"] == true && answer.to_string().contains(code), "{answer}");
    }
    // The name belongs to the bank, which this client does not see; it gets the only `pay` that it sees.
    assert_eq!(buyer.call("pay", json!({}))["content"][0]["text"], "paid");
}

#[test]
fn a_stateless_client_is_told_that_the_list_may_change_and_repeats_params_in_headers() {
    let region = json!({ "type": "string", "x-mcp-header": "Region" });
    let schema = json!({ "type": "object", "properties": { "region": region }, "required": ["region"] });
    let script = json!({ "tools": [{ "name": "sell", "inputSchema": schema }] });
    let site = Setup::new().server_with("shop", script, VERBATIM).serve();
    eventually("the shop is listed", || {
        let listed = modern(&site.address, "tools/list", json!({})).result();
        assert_eq!(listed["cacheScope"], "private", "{listed}");
        names(&listed).contains(&"sell").then_some(())
    });
    let call = |headers: &[(&str, &str)]| {
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": { "name": "t", "version": "1" },
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        let params = json!({ "name": "sell", "arguments": { "region": "north" }, "_meta": meta });
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params }).to_string();
        let fixed =
            [("MCP-Protocol-Version", "2026-07-28"), ("Mcp-Method", "tools/call"), ("Mcp-Name", "sell")];
        http(&site.address, "POST", "/mcp", &[&fixed[..], headers].concat(), &body)
    };
    assert_eq!(
        call(&[("Mcp-Param-Region", "north")]).result()["content"][0]["text"],
        "{\"region\":\"north\"}"
    );
    for wrong in [&[("Mcp-Param-Region", "south")][..], &[]] {
        let reply = call(wrong);
        assert_eq!(reply.status, 400);
    }
}
