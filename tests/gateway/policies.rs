//! `[policies.NAME]`, and approvals that are remembered for a session.

use serde_json::{Value, json};

use crate::setup::{Setup, json_of, logged};

fn files() -> Value {
    let reads = json!({ "readOnlyHint": true });
    json!({ "tools": [
        { "name": "read_file", "annotations": reads },
        { "name": "write_file", "annotations": { "readOnlyHint": false, "destructiveHint": false } },
        { "name": "delete_file", "description": "Removes a file for good" },
        { "name": "delete_all" },
    ] })
}

/// Returns the outcome of a call of each tool: `ok`, or the fault code.
async fn outcomes(toml: &str, keys: &str) -> Vec<String> {
    let setup = Setup::new().server_with("files", files(), keys).toml(toml);
    let inside = setup.open().await;
    let mut outcomes = Vec::new();
    for tool in ["read_file", "write_file", "delete_file", "delete_all"] {
        let result = inside.execute(&format!("files.{tool}"), json!({})).await;
        let code = match result["isError"] == true {
            true => json_of(&result)["error"]["code"].as_str().expect("a code").to_string(),
            false => "ok".to_string(),
        };
        outcomes.push(code);
    }
    outcomes
}

#[tokio::test]
async fn a_policy_is_for_names_for_a_risk_or_for_both() {
    let check = async |toml: &str, keys: &str, expected: [&str; 4]| {
        assert_eq!(outcomes(toml, keys).await, expected, "{toml} {keys}");
    };
    let (ask, no) = ("needs_approval", "forbidden");
    check("[policies.careful]\nrisk = 'high'\npolicy = 'approve'", "", ["ok", "ok", ask, ask]).await;
    check("[policies.careful]\nrisk = 'medium'\npolicy = 'deny'", "", ["ok", no, no, no]).await;
    check("[policies.p]\ntools = ['*.delete_*']\npolicy = 'deny'", "", ["ok", "ok", no, no]).await;
    check(
        "[policies.p]\ntools = ['files.*']\nrisk = 'medium'\npolicy = 'approve'",
        "",
        ["ok", ask, ask, ask],
    )
    .await;
    // The strictest policy wins at the same level; nearer levels win: the tool, names, its server, risks.
    check(
        "[policies.a]\ntools = ['files.delete_*']\npolicy = 'approve'\n[policies.b]\ntools = ['files.delete_all']\npolicy = 'deny'",
        "",
        ["ok", "ok", ask, no],
    )
    .await;
    check("[policies.p]\nrisk = 'low'\npolicy = 'deny'", "policy = 'allow'", ["ok"; 4]).await;
    check("[policies.p]\ntools = ['*.delete_file']\npolicy = 'allow'", "policy = 'deny'", [no, no, "ok", no])
        .await;
    check(
        "[policies.p]\ntools = ['*']\npolicy = 'deny'",
        "[servers.files.tools.read_file]\npolicy = 'allow'",
        ["ok", no, no, no],
    )
    .await;
}

#[tokio::test]
async fn what_a_policy_denies_is_invisible_and_its_rule_is_named() {
    let toml = "[policies.no-deleting]\ntools = ['*.delete_*']\npolicy = 'deny'";
    let inside = Setup::new().server("files", files()).toml(toml).open().await;
    for (tool, arguments) in [
        ("search_tools", json!({ "query": "delete a file", "limit": 50 })),
        ("browse_category", json!({ "category": "files" })),
    ] {
        let answer = inside.answer(tool, arguments).await;
        assert!(!answer.to_string().contains("delete_"), "{answer}");
    }
    let fault = inside.fault("files__delete_file", json!({})).await;
    assert_eq!(fault["code"], "forbidden", "{fault}");
    assert!(fault["message"].as_str().is_some_and(|text| text.contains("policies.no-deleting")), "{fault}");
}

/// Names that a server may give a tool that removes everything.
const SPELLINGS: [&str; 14] = [
    "Delete_All",
    "deleteAll",
    "DeleteAll",
    "delete-all",
    "delete.all",
    "delete all",
    "delete/all",
    "delete:all",
    "DELETE_ALL",
    "delete__all",
    "_delete_all",
    "ｄｅｌｅｔｅ＿ａｌｌ",
    "dеlеtе_аll",
    "del\u{200b}ete_all",
];

#[tokio::test]
async fn a_rule_against_a_tool_is_against_every_spelling_of_its_name() {
    let check = async |names: &[&str], server: &str, rules: &str, expected: &str| {
        let tools: Vec<Value> = names.iter().chain(&["look"]).map(|name| json!({ "name": name })).collect();
        let setup = Setup::new().server_with("files", json!({ "tools": tools }), server).toml(rules);
        let inside = setup.open().await;
        let caller = match rules.contains("profiles") {
            true => inside.under("p"),
            false => inside.caller.clone(),
        };
        let catalog = inside.gateway.publisher.snapshot().catalog.clone();
        for name in names {
            let full = catalog.tools().find(|tool| &*tool.own == *name).expect("listed").full.to_string();
            let result = inside.call_as(&caller, "execute_tool", json!({ "name": full, "params": {} })).await;
            let code = match result["isError"] == true {
                true => json_of(&result)["error"]["code"].as_str().expect("a code").to_string(),
                false => "ok".to_string(),
            };
            assert_eq!(code, expected, "{name:?} {server} {rules}");
        }
    };
    for (server, rules, expected) in [
        ("", "[policies.p]\ntools = ['*.delete_*']\npolicy = 'deny'", "forbidden"),
        ("", "[policies.p]\ntools = ['files.delete_all']\npolicy = 'approve'", "needs_approval"),
        ("", "[servers.files.tools.delete_all]\npolicy = 'deny'", "forbidden"),
        ("", "[profiles.p]\ndeny = ['*.delete_*']", "forbidden"),
        ("blocked_tools = ['delete_*']", "", "forbidden"),
        // What permits a tool permits its name as it is written.
        (
            "policy = 'deny'",
            "[policies.p]\ntools = ['files.delete_all', '*.look']\npolicy = 'allow'",
            "forbidden",
        ),
        (
            "policy = 'deny'",
            "[policies.p]\ntools = ['files.delete_all', '*.look']\npolicy = 'approve'",
            "forbidden",
        ),
        ("allowed_tools = ['delete_all', 'look']", "", "forbidden"),
        ("", "[profiles.p]\nonly = ['files.delete_all', 'files.look']", "forbidden"),
        ("", "[profiles.p]\nallow = ['files.delete_all', 'files.look']", "forbidden"),
        ("", "[policies.p]\ntools = ['*.deletes_*', 'other.*', '*.delete']\npolicy = 'deny'", "ok"),
    ] {
        check(&SPELLINGS, server, rules, expected).await;
    }
    // The rule may be spelled in any way too.
    for pattern in ["Delete_*", "delete-*", "deleteAll", "delete.all", "DELETE*", "{drop,Delete}_[a-z]*"] {
        let rules = format!("[policies.p]\ntools = ['files.{pattern}']\npolicy = 'deny'");
        check(&["delete_all"], "", &rules, "forbidden").await;
    }
}

#[tokio::test]
async fn a_name_that_passes_for_another_is_of_high_risk() {
    let reads = json!({ "readOnlyHint": true });
    let names = ["rеad_file", "ｒｅａｄ＿ｆｉｌｅ", "read\u{200b}_file"];
    let tools: Vec<Value> = names.iter().map(|name| json!({ "name": name, "annotations": reads })).collect();
    let inside = Setup::new()
        .server("files", json!({ "tools": tools }))
        .toml("[policies.careful]\nrisk = 'high'\npolicy = 'approve'")
        .open()
        .await;
    let catalog = inside.gateway.publisher.snapshot().catalog.clone();
    let listed: Vec<_> = catalog.tools().filter(|tool| &*tool.server == "files").collect();
    assert_eq!(listed.len(), names.len());
    for tool in listed {
        let fault = inside.fault("execute_tool", json!({ "name": &*tool.full, "params": {} })).await;
        assert_eq!(fault["code"], "needs_approval", "{}: {fault}", tool.full);
    }
}

#[test]
fn an_answer_is_remembered_for_the_session_if_the_user_says_so() {
    let setup = Setup::new();
    let log = setup.path("calls");
    let mut script = files();
    script["call_log"] = json!(log);
    let toml = "[policies.careful]\nrisk = 'high'\npolicy = 'approve'";
    let mut client = setup.server("files", script).toml(toml).start_with(json!({ "elicitation": {} }));
    client
        .answer_questions(|_| json!({ "action": "accept", "content": { "decision": "allow_for_session" } }));
    client.until_ready("files");
    for path in ["a", "b", "c"] {
        assert_eq!(
            json_of(&client.execute("files.delete_file", json!({ "path": path }))),
            json!({ "path": path })
        );
    }
    assert_eq!(client.asked.len(), 1, "{:?}", client.asked);
    let message = client.asked[0]["message"].as_str().expect("a message");
    // The action and its object.
    for part in ["delete_file", "files", "Removes a file for good", "high", "\"path\": \"a\""] {
        assert!(message.contains(part), "{part}: {message}");
    }
    // Another tool needs its own approval.
    client.execute("files.delete_all", json!({}));
    assert_eq!(client.asked.len(), 2);
    assert_eq!(logged(&log).len(), 4);
}

#[tokio::test]
async fn an_answer_in_the_chat_is_remembered_too() {
    let toml = "[policies.careful]\nrisk = 'high'\npolicy = 'approve'";
    let inside = Setup::new().server("files", files()).toml(toml).open().await;
    let call = json!({ "name": "files.delete_file", "params": { "path": "a" } });
    let fault = inside.fault("execute_tool", call.clone()).await;
    let token = &fault["next_step"]["arguments"]["token"];
    let told = inside.answer("ask_user", json!({ "token": token, "answer": "allow_for_session" })).await;
    assert_eq!(told, json!({ "path": "a" }));
    for path in ["a", "b"] {
        let call = json!({ "name": "files.delete_file", "params": { "path": path } });
        assert_eq!(inside.answer("execute_tool", call).await, json!({ "path": path }));
    }
}

#[tokio::test]
async fn a_policy_that_names_own_tools_holds_for_them() {
    let rules = "[policies.quiet]\ntools = ['gateway.watch_*']\npolicy = 'deny'\n\
                 [policies.careful]\ntools = ['gateway.remember']\npolicy = 'approve'\n\
                 [policies.servers]\ntools = ['*']\npolicy = 'approve'";
    let inside = Setup::new().server("files", files()).toml(rules).open().await;
    for tool in ["gateway.watch_start", "gateway__watch_list", "Gateway.Watch-List"] {
        let fault = inside.fault(tool, json!({ "name": "files.read_file" })).await;
        assert_eq!(fault["code"], "forbidden", "{fault}");
        assert!(fault["message"].as_str().is_some_and(|text| text.contains("policies.quiet")), "{fault}");
    }
    let own = inside.answer("browse_category", json!({ "category": "gateway", "page_size": 100 })).await;
    assert!(!own.to_string().contains("watch_"), "{own}");
    let remember = json!({ "content": "deploys are on Tuesdays" });
    assert_eq!(inside.fault("gateway.remember", remember).await["code"], "needs_approval");
    // A rule for everything is for the servers' tools.
    assert_eq!(inside.fault("files.read_file", json!({})).await["code"], "needs_approval");
    let recalled = inside.execute("gateway.recall", json!({ "query": "deploys" })).await;
    assert_ne!(recalled["isError"], true, "{recalled}");
    assert!(inside.gateway.unmatched().is_empty(), "{:?}", inside.gateway.unmatched());
}
