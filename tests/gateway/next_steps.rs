//! Each fault's `next_step` is a call that works as it is.

use serde_json::{Value, json};

use crate::{
    inside::Inside,
    setup::{Setup, json_of},
};

async fn shop() -> Inside {
    let path =
        json!({ "type": "object", "properties": { "path": { "type": "string" } }, "required": ["path"] });
    let tools = json!([
        { "name": "read", "input_schema": path },
        { "name": "hang", "on": { "hang": true } },
        { "name": "refuse", "on": { "rpc_error": { "code": -32000, "message": "no" } } },
        { "name": "odd", "on": { "result": { "neither": 1, "nor": 2 } } },
        { "name": "pay" },
        { "name": "wipe" },
        { "name": "big", "on": { "size": 300_000 } },
    ]);
    let other = json!([{ "name": "read", "on": { "text": "other" } }]);
    let keys = "[servers.shop.tools.pay]\npolicy = 'approve'\n[servers.shop.tools.wipe]\npolicy = 'deny'\n";
    let setup = Setup::new()
        .server_with("shop", json!({ "tools": tools }), keys)
        .server("other", json!({ "tools": other }))
        .server("down", json!({ "exit_at_start": 3 }))
        .toml("[profiles.low]\nmax_risk = 'low'\n");
    let inside = setup.open_at_once();
    inside.until_listed("shop").await;
    inside.until_listed("other").await;
    inside.until("down", "down").await;
    inside
}

/// Makes a failing call, then its suggested next step, which must succeed.
async fn check(inside: &Inside, tool: &str, arguments: Value, code: &str) {
    let fault = inside.fault(tool, arguments.clone()).await;
    assert_eq!(fault["code"], code, "{tool} {arguments}: {fault}");
    let step = &fault["next_step"];
    // No step is better than a useless one.
    let Some(next) = step["tool"].as_str() else { return };
    assert_ne!(next, "list_categories", "{tool} {arguments}: {fault}");
    let answer = inside.call(next, step["arguments"].clone()).await;
    assert_ne!(answer["isError"], true, "{tool} {arguments}: {step} gave {answer}");
}

#[tokio::test]
async fn the_next_step_of_every_fault_can_be_made_as_it_stands() {
    let inside = shop().await;
    let execute = |name: &str, params: Value| json!({ "name": name, "params": params });
    for (tool, arguments, code) in [
        ("execute_tool", execute("shop.reed", json!({})), "unknown_tool"),
        ("execute_tool", execute("zzzzzzzz", json!({})), "unknown_tool"),
        ("execute_tool", execute("shop.zzzzzzzz", json!({})), "unknown_tool"),
        ("get_tool", json!({ "name": "shop.reed" }), "unknown_tool"),
        ("execute_tool", execute("read", json!({ "path": "x" })), "ambiguous_tool"),
        ("execute_tool", execute("shop.read", json!({ "file": 1 })), "invalid_params"),
        ("execute_tool", execute("shop.read", json!({ "path": ["x"], "z": 1 })), "invalid_params"),
        ("execute_tool", json!({}), "invalid_params"),
        ("execute_tool", execute("search_tools", json!({})), "invalid_params"),
        ("get_tool", json!({}), "invalid_params"),
        ("get_tool", json!({ "names": ["a", "b", "c", "d", "e", "f"] }), "invalid_params"),
        ("search_tools", json!({ "limit": "many" }), "invalid_params"),
        ("search_tools", json!({ "query": "x", "category": "shpo" }), "not_found"),
        ("browse_category", json!({ "category": "nothing like it" }), "not_found"),
        ("run_parallel", json!({ "actions": [] }), "invalid_params"),
        ("run_parallel", json!({ "actions": [{ "name": "shop.read", "after": ["x"] }] }), "invalid_params"),
        ("use_skill", json!({ "command": "nothing" }), "not_found"),
        ("call_app", json!({ "app_id": "nothing", "input": "" }), "not_found"),
        ("ask_user", json!({}), "invalid_params"),
        ("ask_user", json!({ "token": "ask-0", "answer": "yes" }), "not_found"),
        ("ask_user", json!({ "question": "?", "form": { "type": "array" } }), "invalid_params"),
        ("execute_tool", json!({ "name": "shop.hang", "timeout_ms": 50 }), "timeout"),
        ("execute_tool", execute("shop.refuse", json!({})), "upstream_error"),
        ("execute_tool", execute("shop.wipe", json!({})), "forbidden"),
        ("execute_tool", execute("shop.pay", json!({ "sum": 1 })), "needs_approval"),
        ("execute_tool", execute("gateway.fetch_result", json!({ "ref": "r-0123456789" })), "not_found"),
        ("execute_tool", execute("gateway.background_run", json!({})), "invalid_params"),
        ("execute_tool", execute("gateway.background_run", json!({ "task_id": "job-0" })), "not_found"),
        ("execute_tool", execute("gateway.load_tools", json!({})), "invalid_params"),
        ("execute_tool", json!({ "name": "other.read", "select": ".[" }), "invalid_params"),
        (
            "execute_tool",
            json!({ "name": "other.read", "params": { "x": "{{ref:r-0123456789}}" } }),
            "not_found",
        ),
    ] {
        check(&inside, tool, arguments, code).await;
    }
}

#[tokio::test]
async fn the_faults_of_servers_that_are_not_there_say_what_to_do() {
    let script = json!({ "tools": [{ "name": "buy", "on": { "crash": true } }] });
    let inside =
        Setup::new().server("shop", script).server("mute", json!({ "never_answer": true })).open_at_once();
    inside.until_listed("shop").await;
    check(&inside, "execute_tool", json!({ "name": "shop.buy" }), "server_down").await;
    check(&inside, "execute_tool", json!({ "name": "mute.anything" }), "server_starting").await;
}

#[tokio::test]
async fn no_step_is_better_than_one_that_does_not_help() {
    let inside = shop().await;
    for (name, code) in [("down.anything", "server_down"), ("shop.refuse", "upstream_error")] {
        let fault = inside.fault("execute_tool", json!({ "name": name })).await;
        assert_eq!(fault["code"], code, "{fault}");
        assert!(fault.get("next_step").is_none(), "{fault}");
    }
    let fault = inside.fault("execute_tool", json!({ "name": "shop.hang", "timeout_ms": 50 })).await;
    assert!(fault.get("next_step").is_none(), "{fault}");
}

#[tokio::test]
async fn a_single_near_name_is_the_corrected_call() {
    let inside = shop().await;
    let params = json!({ "n": 7 });
    for call in [
        ("execute_tool", json!({ "name": "shop.bigg", "params": params })),
        ("run_parallel", json!({ "actions": [{ "name": "shop.bigg", "params": params }] })),
    ] {
        let answer = inside.answer(call.0, call.1).await;
        let fault = answer.pointer("/error").or_else(|| answer.pointer("/results/0/error")).expect("a fault");
        let step = json!({ "tool": "execute_tool", "arguments": { "name": "shop.big", "params": params } });
        assert_eq!(fault["next_step"], step, "{fault}");
    }
    // Params that do not fit the near tool cannot be repeated.
    let fault = inside.fault("execute_tool", json!({ "name": "shop.reed", "params": { "z": [1] } })).await;
    assert_eq!(
        fault["next_step"],
        json!({ "tool": "get_tool", "arguments": { "name": "shop.read" } }),
        "{fault}"
    );
}

#[tokio::test]
async fn equal_lines_of_an_error_are_one() {
    let line = "memcache.go:265] couldn't get current server API group list: connection refused";
    let log: String = (1..=5).map(|n| format!("E1126 11:05:0{n}.1 4{n} {line}\n")).collect();
    let message = format!("kubectl failed\n{log}The connection was refused");
    let error = json!({ "rpc_error": { "code": -32603, "message": message } });
    let inside =
        Setup::new().server("k8s", json!({ "tools": [{ "name": "pods", "on": error }] })).open().await;
    let fault = inside.fault("execute_tool", json!({ "name": "k8s.pods" })).await;
    let text = fault["message"].as_str().expect("a text");
    assert_eq!(text.matches(line).count(), 1, "{text}");
    assert!(text.contains("(5 times)") && text.ends_with("The connection was refused"), "{text}");
}

#[tokio::test]
async fn a_corrected_call_keeps_what_fits_and_corrects_the_rest() {
    let edit = json!({
        "type": "object",
        "properties": { "oldText": { "type": "string" }, "newText": { "type": "string" } },
        "required": ["oldText", "newText"],
    });
    let options = json!({ "anyOf": [
        { "type": "object", "properties": { "depth": { "type": "integer" }, "glob": { "type": "string" } }, "required": ["depth"] },
        { "type": "string" },
    ] });
    let meta = json!({ "type": "object", "properties": { "code": { "type": "string", "pattern": "^[A-Z]+$" }, "note": { "type": "string" } } });
    let schema = |properties: Value, required: Value| json!({ "type": "object", "properties": properties, "required": required });
    let text = json!({ "type": "string" });
    let tools = json!([
        { "name": "write", "input_schema": schema(json!({ "path": text, "content": text, "mode": text }), json!(["path", "content"])) },
        { "name": "edit", "input_schema": schema(json!({ "path": text, "edits": { "type": "array", "items": edit } }), json!(["path", "edits"])) },
        { "name": "find", "input_schema": schema(json!({ "options": options, "limit": { "type": "integer" } }), json!(["options", "limit"])) },
        { "name": "tag", "input_schema": schema(json!({ "meta": meta, "count": { "type": "integer" } }), json!(["meta", "count"])) },
    ]);
    let inside = Setup::new().server("files", json!({ "tools": tools })).open().await;
    // Two names at once are suggested, and not taken.
    let wrong = json!({ "name": "files.write", "params": { "file_path": "a", "text": "b" } });
    let fault = inside.fault("execute_tool", wrong).await;
    let right = json!({ "name": "files.write", "params": { "path": "a", "content": "b" } });
    assert_eq!(fault["next_step"], json!({ "tool": "execute_tool", "arguments": right }), "{fault}");
    let corrected = async |name: &str, params: Value, expected: Value| {
        let fault = inside.fault("execute_tool", json!({ "name": name, "params": params })).await;
        assert_eq!(fault["details"]["corrected_call"]["arguments"]["params"], expected, "{params}: {fault}");
    };
    corrected("files.write", json!({ "text": "b" }), json!({ "content": "b", "path": "<string>" })).await;
    corrected(
        "files.edit",
        json!({ "file": "a", "edits": [{ "oldText": "x", "newText": "y" }, { "oldText": "z" }] }),
        json!({ "path": "a", "edits": [{ "oldText": "x", "newText": "y" }, { "oldText": "z", "newText": "<string>" }] }),
    )
    .await;
    corrected(
        "files.find",
        json!({ "options": { "depth": "two", "glob": "*" }, "limit": 3 }),
        json!({ "options": { "depth": "<integer>", "glob": "*" }, "limit": 3 }),
    )
    .await;
    corrected(
        "files.tag",
        json!({ "meta": { "code": "x1", "note": "keep", "more": 1 }, "count": "many" }),
        json!({ "meta": { "code": "<string>", "note": "keep", "more": 1 }, "count": "<integer>" }),
    )
    .await;
}

#[tokio::test]
async fn a_query_that_a_kept_result_does_not_fit_is_answered_with_one_that_does() {
    let inside = shop().await;
    let result = inside.execute("shop.big", json!({})).await;
    let last = result["content"].as_array().and_then(|blocks| blocks.last()).expect("a block");
    let note = json_of(&json!({ "content": [last] }));
    for bad in [json!({ "lines": "9-3" }), json!({ "grep": "(" }), json!({ "select": ".[" })] {
        let mut params = bad.clone();
        params["ref"] = note["ref"].clone();
        let call = json!({ "name": "gateway.fetch_result", "params": params });
        check(&inside, "execute_tool", call, "invalid_params").await;
    }
    for way in note["read_on"].as_array().expect("ways to read on") {
        let answer = inside.call("execute_tool", way["arguments"].clone()).await;
        assert_ne!(answer["isError"], true, "{way}: {answer}");
    }
}
