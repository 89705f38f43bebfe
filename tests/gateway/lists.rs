//! `tools/list`: nine names only, unless the configuration asks for more.

use serde_json::{Value, json};

use crate::{client::Client, setup::Setup};

fn with_tools(count: usize) -> Client {
    let setup = Setup::new();
    let setup = if count == 0 {
        setup
    } else {
        setup.server("many", json!({ "tool_count": count, "page_size": 100 }))
    };
    let mut client = setup.start();
    if count > 0 {
        client.until_ready("many");
    }
    client
}

fn listed(client: &mut Client) -> Vec<Value> {
    let list = client.request("tools/list", json!({}));
    list["result"]["tools"].as_array().expect("tools").clone()
}

fn names(tools: &[Value]) -> Vec<&str> {
    tools.iter().filter_map(|tool| tool["name"].as_str()).collect()
}

#[test]
fn the_nine_are_the_same_bytes_whatever_is_behind_them() {
    let lines: Vec<String> = [0, 5, 500]
        .into_iter()
        .map(|count| {
            let mut client = with_tools(count);
            // A fixed id, so that lines can be compared directly.
            client.send(&json!({ "jsonrpc": "2.0", "id": 7_000, "method": "tools/list", "params": {} }));
            let tools = client.finish(7_000)["result"]["tools"].take();
            assert_eq!(names(tools.as_array().expect("tools")), nonet_meta::NAMES);
            assert!(tools.to_string().len() < 6_000, "{} bytes", tools.to_string().len());
            client.line.clone()
        })
        .collect();
    assert_eq!(lines[0], lines[1]);
    assert_eq!(lines[0], lines[2]);
}

#[test]
fn what_clients_cut_is_never_reached() {
    for tool in nonet_meta::definitions() {
        let description = tool["description"].as_str().expect("a description");
        assert!(description.chars().count() < 1_000, "{tool}");
        assert_eq!(tool["inputSchema"]["type"], "object", "{tool}");
        for key in ["anyOf", "oneOf", "allOf"] {
            assert!(tool["inputSchema"].get(key).is_none(), "{tool}");
        }
        let always = matches!(tool["name"].as_str(), Some("search_tools" | "execute_tool"));
        assert_eq!(tool["_meta"]["anthropic/alwaysLoad"] == true, always, "{tool}");
    }
}

#[test]
fn instructions_stay_short_with_a_hundred_servers() {
    let mut setup = Setup::new();
    for n in 0..100 {
        let keys = format!(
            "url = 'http://127.0.0.1:1/mcp'\ndescription = 'Server {n}: {}'",
            "ä lot of wörds ".repeat(20)
        );
        setup = setup.server_of(&format!("a-server-with-a-long-name-{n:03}"), &keys);
    }
    let mut client = setup.start_silently();
    let answer = client.initialize("2025-11-25", json!({}));
    let text = answer["result"]["instructions"].as_str().expect("instructions").to_string();
    assert!(text.chars().count() <= 2_000, "{} characters", text.chars().count());
    assert!(text.contains("a-server-with-a-long-name-000"), "{text}");
    let found = client.modern("server/discover", json!({}), json!({}));
    let text = found["result"]["instructions"].as_str().expect("instructions");
    assert!(text.chars().count() <= 2_000);
}

fn shop() -> Value {
    let schema =
        json!({ "type": "object", "required": ["item"], "properties": { "item": { "type": "string" } } });
    json!({ "tools": [
        { "name": "buy", "description": "Buys a thing", "input_schema": schema },
        { "name": "sell", "description": "Sells a thing" },
    ] })
}

#[test]
fn direct_lists_every_tool_with_its_schema() {
    let mut client = Setup::new()
        .server_with("shop", shop(), "blocked_tools = ['sell']")
        .gateway("tool_injection = 'direct'")
        .start();
    client.until_ready("shop");
    let tools = listed(&mut client);
    assert_eq!(names(&tools)[..9], nonet_meta::NAMES);
    let buy = tools.iter().find(|tool| tool["name"] == "shop__buy").expect("it is listed");
    assert_eq!(buy["inputSchema"].to_string(), shop()["tools"][0]["input_schema"].to_string());
    assert!(!names(&tools).contains(&"shop__sell"), "a blocked tool is not listed");
    assert_eq!(client.answer("shop__buy", json!({ "item": "x" })), json!({ "item": "x" }));
}

#[test]
fn compact_direct_lists_every_tool_by_name_and_one_line() {
    let mut client = Setup::new().server("shop", shop()).gateway("tool_injection = 'compact_direct'").start();
    client.until_ready("shop");
    let tools = listed(&mut client);
    let buy = tools.iter().find(|tool| tool["name"] == "shop__buy").expect("it is listed");
    assert_eq!(
        *buy,
        json!({ "name": "shop__buy", "description": "Buys a thing", "inputSchema": { "type": "object" } })
    );
    // The call is still checked against the real schema.
    assert_eq!(client.call("shop__buy", json!({ "itm": 3 }))["isError"], true);
    assert_eq!(client.answer("shop__buy", json!({ "item": "x" })), json!({ "item": "x" }));
}

#[test]
fn a_pinned_tool_is_listed_beside_the_nine() {
    let mut client = Setup::new().server("shop", shop()).gateway("pinned = ['shop.sell']").start();
    client.until_ready("shop");
    assert_eq!(names(&listed(&mut client))[9..], ["shop__sell"]);
}

#[test]
fn pinned_tools_are_named_or_matched_by_patterns() {
    let toml = "[profiles.p]\npinned = ['*.sell', 'buy']";
    let setup = || Setup::new().server("shop", shop()).server("mart", shop()).toml(toml);
    let check = |setup: Setup, arguments: &[&str], expected: &[&str]| {
        let mut client = setup.run(arguments);
        client.initialize("2025-06-18", json!({}));
        crate::setup::eventually(&format!("{expected:?} are listed"), || {
            (names(&listed(&mut client))[9..] == *expected).then_some(())
        });
    };
    let all = ["mart__sell", "shop__buy", "shop__sell"];
    check(setup().gateway("pinned = ['shop.*', 'mart__sell']"), &[], &all);
    // A profile's names are added to the global ones; an ambiguous name is ignored.
    let profile = ["--profile", "p"];
    check(setup(), &profile, &["mart__sell", "shop__sell"]);
    check(setup().gateway("pinned = ['{shop,none}.b*']"), &profile, &all);
}

#[test]
fn auto_goes_by_the_context_window() {
    let mode = |window: u64| {
        let keys = format!("tool_injection = 'auto'\ncontext_window = {window}");
        let mut client = Setup::new().server("many", json!({ "tool_count": 60 })).gateway(&keys).start();
        client.until_ready("many");
        let tools = listed(&mut client);
        match tools.iter().find(|tool| tool["name"] == "many__tool_0007") {
            None => "discovery",
            Some(tool) if tool["inputSchema"].get("properties").is_some() => "direct",
            Some(_) => "compact_direct",
        }
    };
    assert_eq!(mode(1_000_000), "direct");
    assert_eq!(mode(1_000), "discovery");
}

#[test]
fn nonets_own_tools_take_no_part_of_the_window() {
    let tools = |count: usize| {
        let tool = |n: usize| json!({ "name": format!("tool_{n}"), "description": "d".repeat(700) });
        json!({ "tools": (0..count).map(tool).collect::<Vec<Value>>() })
    };
    let list = |count: usize| {
        let keys = "tool_injection = 'auto'\ncontext_window = 8000";
        let mut client = Setup::new().server("shop", tools(count)).gateway(keys).start();
        client.until_ready("shop");
        listed(&mut client)
    };
    let of_eight = list(8);
    assert_eq!(of_eight.len(), 9 + 8, "{:?}", names(&of_eight));
    assert!(
        of_eight[9..].iter().all(|tool| tool["description"].as_str().is_some_and(|text| text.len() == 700))
    );
    let of_nine = list(9);
    assert_eq!(of_nine.len(), 9 + 9, "{:?}", names(&of_nine));
    assert!(of_nine[9..].iter().all(|tool| tool["inputSchema"] == json!({ "type": "object" })));
}

#[test]
fn the_first_list_of_a_first_start_waits_for_the_servers() {
    for keys in ["tool_injection = 'direct'", "tool_injection = 'compact_direct'", "pinned = ['shop.sell']"] {
        let mut script = shop();
        script["start_delay_ms"] = json!(300);
        let mut client = Setup::new().server("shop", script).gateway(keys).start_silently();
        client.initialize("2025-06-18", json!({}));
        assert!(names(&listed(&mut client)).contains(&"shop__sell"), "{keys}");
    }
}

#[test]
fn clients_that_see_the_tools_are_told_when_they_change() {
    let mut client = Setup::new().server("shop", shop()).gateway("tool_injection = 'direct'").start();
    client.until_ready("shop");
    crate::setup::eventually("notifications/tools/list_changed", || {
        client.request("ping", json!({}));
        client.notifications.iter().any(|n| n["method"] == "notifications/tools/list_changed").then_some(())
    });
}
