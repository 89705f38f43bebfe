//! `[servers.S.tools.T]`: corrects a server's wrong statements about a tool.

use serde_json::{Value, json};

use crate::{
    client::{Client, command},
    setup::{Setup, text_of},
};

/// Returns a server with an undescribed tool.
fn shelf() -> Value {
    let schema = json!({
        "type": "object",
        "properties": { "path": { "type": "string" }, "lines": { "type": "integer" } },
        "required": ["path"],
    });
    json!({ "tools": [
        { "name": "op_17", "title": "Op", "description": "Op 17.", "inputSchema": schema, "on": { "text": "from op_17" } },
        { "name": "op_18", "description": "Removes a page.", "on": { "text": "from op_18" } },
    ] })
}

const RIGHT: &str = "[servers.shelf.tools.op_17]
title = 'Borrow'
description = 'Lends a library book to a reader.'
risk = 'low'
rename = 'lend_book'
examples = [{ path = 'novels/emma', lines = 3 }, { lines = 'many' }]
";

fn ready(setup: Setup) -> Client {
    let mut client = setup.start();
    client.until_ready("shelf");
    client
}

#[test]
fn a_renamed_tool_is_found_as_corrected_and_called_by_both_names() {
    let setup = Setup::new().server("shelf", shelf()).gateway("tool_injection = 'direct'").toml(RIGHT);
    let mut client = ready(setup);
    let found = client.answer("search_tools", json!({ "query": "lend a library book" }));
    let hit = &found["results"][0];
    assert_eq!(hit["name"], "shelf.lend_book", "{found}");
    assert_eq!(hit["description"], "Lends a library book to a reader.", "{found}");
    assert_eq!(hit["risk"], "low", "{found}");
    let found = client.answer("search_tools", json!({ "query": "op_17" }));
    assert_eq!(found["results"][0]["name"], "shelf.lend_book", "{found}");
    // The server knows only the old name, and its script would refuse any other.
    for name in [
        "shelf.lend_book",
        "shelf__lend_book",
        "lend_book",
        "shelf.op_17",
        "shelf__op_17",
        "Shelf:OP-17",
        "op_17",
    ] {
        let result = client.execute(name, json!({ "path": "a" }));
        assert_eq!(text_of(&result), "from op_17", "{name}: {result}");
        let tool = client.answer("get_tool", json!({ "name": name }));
        assert_eq!(tool["name"], "shelf.lend_book", "{name}: {tool}");
    }
    let result = client.call("shelf__op_17", json!({ "path": "a" }));
    assert_eq!(text_of(&result), "from op_17", "{result}");
    let list = client.request("tools/list", json!({}));
    let listed = list["result"]["tools"].as_array().expect("a list");
    assert!(listed.iter().all(|tool| tool["name"] != "shelf__op_17"), "{list}");
    let tool = listed.iter().find(|tool| tool["name"] == "shelf__lend_book").expect("it is listed");
    assert_eq!(
        (&tool["title"], &tool["description"]),
        (&json!("Borrow"), &json!("Lends a library book to a reader.")),
        "{tool}"
    );
}

#[tokio::test]
async fn examples_that_fit_are_calls_to_copy() {
    let inside = Setup::new().server("shelf", shelf()).toml(RIGHT).open().await;
    let tool = inside.answer("get_tool", json!({ "name": "shelf.lend_book" })).await;
    let call = json!({
        "tool": "execute_tool",
        "arguments": { "name": "shelf.lend_book", "params": { "path": "novels/emma", "lines": 3 } },
    });
    assert_eq!(tool["examples"], json!([call]), "{tool}");
    let result = inside.call("execute_tool", call["arguments"].clone()).await;
    assert_eq!(text_of(&result), "from op_17", "{result}");
}

#[tokio::test]
async fn a_corrected_risk_counts_for_profiles_and_policies() {
    let toml = "[servers.shelf.tools.op_18]\nrisk = 'high'\n[profiles.reader]\nmax_risk = 'low'\n\
                [policies.careful]\nrisk = 'high'\npolicy = 'approve'\n";
    let inside = Setup::new().server("shelf", shelf()).toml(&format!("{RIGHT}{toml}")).open().await;
    let reader = inside.under("reader");
    let lend = json!({ "name": "shelf.lend_book", "params": { "path": "a" } });
    let result = inside.call_as(&reader, "execute_tool", lend.clone()).await;
    assert_eq!(text_of(&result), "from op_17", "{result}");
    let result = inside.call_as(&reader, "execute_tool", json!({ "name": "shelf.op_18" })).await;
    assert!(text_of(&result).contains("forbidden"), "{result}");
    assert_eq!(inside.fault("shelf.op_18", json!({})).await["code"], "needs_approval");
    // Under the server's own name, nothing hints at the risk, so it is medium.
    let inside = Setup::new()
        .server("shelf", shelf())
        .toml(&toml.replace("'high'\n[profiles", "'medium'\n[profiles"))
        .open()
        .await;
    let result = inside
        .call_as(
            &inside.under("reader"),
            "execute_tool",
            json!({ "name": "shelf.op_17", "params": { "path": "a" } }),
        )
        .await;
    assert!(text_of(&result).contains("unknown_tool"), "the profile sees nothing of the server: {result}");
    assert_eq!(text_of(&inside.execute("shelf.op_18", json!({})).await), "from op_18");
}

#[tokio::test]
async fn rules_are_for_the_new_name_and_settings_of_the_server_for_its_own() {
    let rules = "[policies.no]\ntools = ['shelf.lend_*']\npolicy = 'deny'\n";
    let inside = Setup::new().server("shelf", shelf()).toml(&format!("{RIGHT}{rules}")).open().await;
    for name in ["shelf.lend_book", "shelf.op_17"] {
        assert_eq!(inside.fault(name, json!({ "path": "a" })).await["code"], "forbidden", "{name}");
    }
    let inside =
        Setup::new().server_with("shelf", shelf(), "blocked_tools = ['op_17']").toml(RIGHT).open().await;
    for name in ["shelf.lend_book", "shelf.op_17"] {
        assert_eq!(inside.fault(name, json!({ "path": "a" })).await["code"], "forbidden", "{name}");
    }
}

#[test]
fn check_warns_of_an_example_that_does_not_fit_and_of_a_name_that_is_taken() {
    let setup = Setup::new().server("shelf", shelf()).toml(&RIGHT.replace("lend_book", "op_18"));
    setup.write();
    let output = command(setup.folder.path()).arg("check").output().expect("nonet runs");
    let told =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    for part in [
        "servers.shelf.tools.op_17.rename: `op_18` is taken by the tool `op_18`, so `op_17` keeps its name",
        "servers.shelf.tools.op_17.examples[1]: the example does not fit the input schema of `shelf.op_17` and is left out: ",
        "params/lines: \"many\" is not of type",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
}
