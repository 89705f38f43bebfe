//! Answers right after the start: the last known lists are available before any server.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    client::Client,
    setup::{Setup, eventually, json_of},
};

fn shop() -> Value {
    json!({ "tools": [
        { "name": "buy", "description": "Buys a thing in the shop" },
        { "name": "sell", "description": "Sells a thing" },
    ] })
}

/// Returns the second run of a gateway: its servers listed their tools before and now start slowly.
fn again(gateway: &str) -> Client {
    let setup =
        Setup::new().gateway(gateway).server("shop", shop()).server("park", json!({ "tool_count": 3 }));
    let slow = |name: &str, mut script: Value| {
        script["start_delay_ms"] = json!(60_000);
        (name.to_string(), script)
    };
    let mut first = setup.start_program();
    first.until_ready("shop");
    first.until_ready("park");
    first.leave();
    let folder = first.folder.clone();
    for (name, script) in [slow("shop", shop()), slow("park", json!({ "tool_count": 3 }))] {
        std::fs::write(folder.path().join(format!("{name}.script.json")), script.to_string())
            .expect("a script");
    }
    Client::over(folder, &[], &[])
}

#[test]
fn the_instructions_count_the_tools_of_servers() {
    // The handshake waits for nothing, so on a busy machine the last run's lists may arrive after it.
    let counts = || {
        let answer = again("").initialize("2025-11-25", json!({}));
        let text = answer["result"]["instructions"].as_str().expect("instructions");
        text.contains("5 tools by now")
    };
    assert!((0..10).any(|_| counts()), "the tools of the last run are not counted");

    let setup = Setup::new().server("slow", json!({ "start_delay_ms": 60_000 }));
    let answer = setup.start_silently().initialize("2025-11-25", json!({}));
    let text = answer["result"]["instructions"].as_str().expect("instructions");
    assert!(!text.contains("by now"), "nothing is known of the server's tools: {text}");
}

#[test]
fn the_first_list_has_the_tools_of_the_last_run() {
    for (keys, last) in [
        ("tool_injection = 'direct'", "shop__sell"),
        ("tool_injection = 'compact_direct'", "shop__sell"),
        ("tool_injection = 'auto'", "shop__sell"),
        ("pinned = ['shop.buy']", "shop__buy"),
    ] {
        let mut client = again(keys);
        client.initialize("2025-06-18", json!({}));
        let list = client.request("tools/list", json!({}));
        let tools = list["result"]["tools"].as_array().expect("tools");
        assert_eq!(tools.last().expect("a tool")["name"], last, "{keys}");
    }
}

#[test]
fn the_first_search_finds_the_tools_of_the_last_run() {
    let mut client = again("");
    client.initialize("2025-06-18", json!({}));
    let found = client.answer("search_tools", json!({ "query": "buy a thing in the shop" }));
    assert_eq!(found["results"][0]["name"], "shop.buy", "{found}");
    assert_eq!(found["results"][0]["state"], "starting", "{found}");
}

#[test]
fn the_first_call_knows_the_tools_of_the_last_run() {
    let mut client = again("");
    client.initialize("2025-06-18", json!({}));
    let told = client.answer("get_tool", json!({ "name": "shop.buy" }));
    assert_eq!(told["state"], "starting", "{told}");
    let listed = client.answer("browse_category", json!({ "category": "park" }));
    assert_eq!(listed["total"], 3, "{listed}");
}

#[test]
fn a_server_that_is_ready_can_be_called() {
    for _ in 0..3 {
        let mut client = Setup::new().server("shop", json!({ "tool_count": 200 })).start_program();
        let folder = client.folder.clone();
        let seen = |client: &mut Client, server: &str, tool: &str| {
            eventually(&format!("`{server}` is ready"), || {
                (client.server(server)["state"] == "ready").then_some(())
            });
            assert_ne!(client.server(server)["tools"], 0);
            assert_eq!(client.fault_code(tool), None);
        };
        seen(&mut client, "shop", "shop.tool_0007");
        // Also a server added by a changed configuration.
        let file = folder.path().join("servers.toml");
        let text = std::fs::read_to_string(&file).expect("it was written");
        let more = text.replace("[servers.shop]", "[servers.mall]");
        let table = more.split("[servers.mall]").nth(1).expect("a table");
        std::fs::write(&file, format!("{text}\n[servers.mall]{table}")).expect("it can be written");
        client.until_notice("config_changed");
        seen(&mut client, "mall", "mall.tool_0007");
    }
}

#[test]
fn a_wrong_name_of_a_ready_server_is_unknown_at_once_while_another_hangs() {
    let setup = Setup::new().server("shop", shop()).server("hangs", json!({ "never_answer": true }));
    let mut client = setup.start();
    client.until_ready("shop");
    for name in ["shop.bye", "shop__bye", "Shop/bye", "mcp__nonet__shop__bye"] {
        let began = std::time::Instant::now();
        let fault = client.fault(name, json!({}));
        assert_eq!(fault["code"], "unknown_tool", "{name}: {fault}");
        assert!(fault["message"].as_str().is_some_and(|text| text.contains("shop.buy")), "{fault}");
        // The call waits 3 s only if the name may belong to the other server.
        assert!(began.elapsed() < Duration::from_secs(2), "{name} took {:?}", began.elapsed());
    }
    let fault = json_of(&client.execute("hangs.anything", json!({})))["error"].take();
    assert_eq!(fault["code"], "server_starting", "{fault}");
}
