//! How a profile shapes lists and searches: how much is listed, and what ranks first.

use serde_json::{Value, json};

use crate::{
    inside::Inside,
    setup::{Setup, json_of},
    web::WebClient,
};

/// Tools whose definitions take about 200 tokens (800 bytes) each.
fn wide(count: usize) -> Value {
    let tools = (0..count).map(|number| {
        json!({
            "name": format!("tool{number}"),
            "description": format!("Number {number}. {}", "It does one thing well. ".repeat(24)),
            "inputSchema": { "type": "object", "properties": { "n": { "type": "integer" } }, "required": ["n"] },
        })
    });
    json!({ "tools": tools.collect::<Vec<_>>() })
}

#[test]
fn each_window_gets_the_fullest_list_that_fits() {
    const TOOLS: usize = 60;
    let profiles = [("small", 8_000), ("middle", 16_000), ("large", 200_000)];
    let mut setup = Setup::new().server("shop", wide(TOOLS));
    for (name, window) in profiles {
        setup =
            setup.toml(&format!("[profiles.{name}]\ntool_injection = 'auto'\ncontext_window = {window}\n"));
    }
    let site = setup.serve();
    WebClient::new(&site.address, "/mcp").until_ready("shop");
    let mut lengths = Vec::new();
    for (name, _) in profiles {
        let mut client = WebClient::new(&site.address, &format!("/mcp/{name}"));
        let list = client.request("tools/list", json!({})).result();
        let tools = list["tools"].as_array().expect("a list");
        lengths.push(tools.len());
        let of_shop: Vec<&Value> = tools
            .iter()
            .filter(|tool| tool["name"].as_str().is_some_and(|name| name.starts_with("shop__")))
            .collect();
        let schemas: Vec<bool> =
            of_shop.iter().map(|tool| tool["inputSchema"]["required"] == json!(["n"])).collect();
        let expected = match name {
            "small" => vec![],
            "middle" => vec![false; TOOLS],
            _ => vec![true; TOOLS],
        };
        assert_eq!(schemas, expected, "{name}");

        // However much is listed, both ways to call work and give the same answer.
        let by_wire_name = client.call("shop__tool7", json!({ "n": 7 }));
        let by_execute = client.call("execute_tool", json!({ "name": "shop.tool7", "params": { "n": 7 } }));
        assert_eq!(by_wire_name, by_execute, "{name}");
        assert_eq!(json_of(&by_wire_name), json!({ "n": 7 }));
        // Params are checked against the real schema, even if the listed one takes any object.
        let wrong = client.call("shop__tool7", json!({ "n": "x" }));
        assert_eq!(
            wrong,
            client.call("execute_tool", json!({ "name": "shop.tool7", "params": { "n": "x" } })),
            "{name}"
        );
        assert_eq!(wrong["isError"], true, "{name}: {wrong}");
    }
    // The nine, and the sixty tools of the server in both; Nonet's own tools are not listed.
    let nine = nonet_meta::NAMES.len();
    assert_eq!(lengths, [nine, nine + TOOLS, nine + TOOLS]);
}

fn office() -> Setup {
    let tools = json!({ "tools": [{ "name": "send_report", "description": "Sends the report of a week to somebody" }] });
    Setup::new()
        .server("desk-a", tools.clone())
        .server("desk-b", tools.clone())
        .server("desk-c", tools)
        .server(
            "garden",
            json!({ "tools": [{ "name": "water", "description": "Waters plants every week" }] }),
        )
}

async fn order(inside: &Inside, profile: &str) -> Vec<String> {
    let caller = inside.under(profile);
    let arguments = json!({ "query": "send the report of the week to somebody", "limit": 50 });
    let found = json_of(&inside.call_as(&caller, "search_tools", arguments).await);
    let hits = found["results"].as_array().expect("hits").iter();
    let names = hits.filter_map(|hit| hit["name"].as_str()).filter(|name| !name.starts_with("gateway."));
    names.map(Into::into).collect()
}

#[tokio::test]
async fn priorities_of_a_profile_order_its_searches() {
    let inside = office()
        .gateway("priorities = { 'desk-c.send_report' = 1 }")
        .toml("[profiles.plain]\n[profiles.none]\npriorities = { 'desk-c.*' = 0 }")
        .toml("[profiles.gentle]\npriorities = { 'desk-b.*' = 2, 'desk-a.*' = -1 }")
        .toml("[profiles.strong]\npriorities = { 'garden.*' = 10, 'desk-a.*' = -10 }")
        .open()
        .await;
    let alike = ["desk-a.send_report", "desk-b.send_report", "desk-c.send_report"];
    let none = order(&inside, "none").await;
    assert_eq!(none[..3], alike, "{none:?}");
    // `[gateway]`'s priorities apply where the profile has none for a tool.
    let plain = order(&inside, "plain").await;
    assert_eq!(plain[0], "desk-c.send_report", "{plain:?}");
    let gentle = order(&inside, "gentle").await;
    let places = ["desk-b.send_report", "desk-c.send_report", "desk-a.send_report"];
    assert_eq!(gentle[..3], places, "{gentle:?}");
    // A mild priority does not lift a poor match.
    let last = gentle.last().map(String::as_str);
    assert_eq!(last, Some("garden.water"), "{gentle:?}");
    let strong = order(&inside, "strong").await;
    assert_eq!(
        (strong[0].as_str(), strong.last().map(String::as_str)),
        ("garden.water", Some("desk-a.send_report"))
    );
    assert_eq!(strong.len(), none.len(), "nothing is hidden");
    // A search by name finds the tool first.
    let caller = inside.under("strong");
    let named = inside.call_as(&caller, "search_tools", json!({ "query": "desk-a.send_report" })).await;
    assert_eq!(json_of(&named)["results"][0]["name"], "desk-a.send_report");
}

#[test]
fn a_priority_is_explained() {
    let setup = office().toml("[profiles.gentle]\npriorities = { 'desk-b.*' = 2, 'desk-a.*' = -1 }");
    setup.write();
    let run = |more: &[&str]| {
        let arguments = ["--profile", "gentle", "search", "send the report of the week", "--explain"];
        let output = crate::client::command(setup.folder.path())
            .args(arguments)
            .args(more)
            .output()
            .expect("nonet runs");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let found: Value = serde_json::from_str(&run(&["--json"])).expect("JSON");
    let why = |name: &str| {
        let hits = found["results"].as_array().expect("hits");
        let hit = hits.iter().find(|hit| hit["name"] == name).unwrap_or_else(|| panic!("{found}"));
        (
            hit["explain"]["priority"].as_f64(),
            hit["explain"]["signals"]["priority"].as_f64().unwrap_or_default(),
        )
    };
    let (second, first, third) =
        (why("desk-b.send_report"), why("desk-a.send_report"), why("desk-c.send_report"));
    assert!(second.0 == Some(2.0) && second.1 > 0.0, "{found}");
    assert!(first.0 == Some(-1.0) && first.1 < 0.0, "{found}");
    assert_eq!(third, (None, 0.0), "{found}");
    let table = run(&[]);
    assert!(
        table.contains("its priority of 2 (+0.0") && table.contains("its priority of -1 (-0.0"),
        "{table}"
    );
}
