//! Lenient in, strict out: params are checked before a server sees them.

use serde_json::{Value, json};

use crate::{
    inside::Inside,
    setup::{Setup, json_of, logged, notices_of},
};

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "path": { "type": "string", "description": "Where it is" },
            "maxDepth": { "type": "integer", "minimum": 0 },
            "tags": { "type": "array", "items": { "type": "string" } },
            "deep": { "type": "boolean" },
        },
        "required": ["path"],
        "additionalProperties": false,
    })
}

async fn files() -> (Inside, std::path::PathBuf) {
    let setup = Setup::new();
    let log = setup.path("calls");
    let tool = json!({ "name": "list", "description": "Lists", "input_schema": schema() });
    (setup.server("files", json!({ "tools": [tool], "call_log": log })).open().await, log)
}

#[tokio::test]
async fn a_fault_in_the_params_teaches() {
    let (inside, log) = files().await;
    let params = json!({ "maxDepth": -1, "tags": "[", "pth": "a" });
    insta::assert_json_snapshot!(
        inside.answer("execute_tool", json!({ "name": "files.list", "params": params })).await
    );
    assert_eq!(logged(&log), Vec::<Value>::new(), "the server has not seen the call");
}

#[tokio::test]
async fn the_corrected_call_can_be_made_where_nothing_is_missing() {
    let (inside, _) = files().await;
    let params = json!({ "path": "a", "colour": "red" });
    let fault = inside.fault("execute_tool", json!({ "name": "files.list", "params": params })).await;
    assert_eq!(fault["next_step"]["tool"], "execute_tool", "{fault}");
    let again = inside.answer("execute_tool", fault["next_step"]["arguments"].clone()).await;
    assert_eq!(again, json!({ "path": "a" }));
}

#[tokio::test]
async fn one_other_reading_is_taken_and_told() {
    let (inside, log) = files().await;
    let check = async |call: Value, expected: Value| {
        let result = inside.call("execute_tool", call.clone()).await;
        assert_eq!(json_of(&result), expected, "{call}");
        let seen = logged(&log).pop().expect("the server was called")["params"]["arguments"].take();
        assert_eq!(seen, expected, "{call}");
        notices_of(&result)
    };
    // Valid params: no note.
    let plain = json!({ "path": "a" });
    assert!(check(json!({ "name": "files.list", "params": plain }), plain.clone()).await.is_empty());
    for call in [
        json!({ "name": "files.list", "params": { "arguments": { "path": "a" } } }),
        json!({ "name": "files.list", "params": { "Path": "a" } }),
    ] {
        let notices = check(call.clone(), plain.clone()).await;
        assert_eq!(notices[0]["kind"], "params_repaired", "{call}: {notices:?}");
        assert!(notices[0]["changes"].as_array().is_some_and(|changes| !changes.is_empty()), "{notices:?}");
    }
    for call in [
        json!({ "name": "files.list", "arguments": { "path": "a" } }),
        json!({ "name": "files.list", "args": { "path": "a" } }),
        json!({ "name": "files.list", "input": { "path": "a" } }),
        json!({ "name": "files.list", "path": "a" }),
        json!({ "tool": "files.list", "params": { "path": "a" } }),
        json!({ "name": "files.list", "params": "{\"path\": \"a\"}" }),
    ] {
        check(call, plain.clone()).await;
    }
    let params = json!({ "path": "a", "max_depth": "3", "tags": "x", "deep": "true" });
    let notices = check(
        json!({ "name": "files.list", "params": params }),
        json!({ "path": "a", "maxDepth": 3, "tags": ["x"], "deep": true }),
    )
    .await;
    insta::assert_json_snapshot!(notices);
}

#[tokio::test]
async fn what_is_repaired_around_the_params_is_told_too() {
    let (inside, _) = files().await;
    let call = json!({ "name": "files.list", "params": "{\"path\": \"a\"}" });
    let result = inside.call("execute_tool", call).await;
    assert_eq!(notices_of(&result).len(), 1, "{result}");
}

#[tokio::test]
async fn every_repair_is_told() {
    let (inside, _) = files().await;
    for call in [
        json!({ "name": "files.list", "arguments": { "path": "a" } }),
        json!({ "name": "files.list", "path": "a" }),
        json!({ "tool": "files.list", "params": { "path": "a" } }),
    ] {
        let result = inside.call("execute_tool", call.clone()).await;
        assert_eq!(notices_of(&result).len(), 1, "{call}: {result}");
    }
    let page = inside.call("browse_category", json!({ "category": "files", "page": "1" })).await;
    assert_eq!(notices_of(&page).len(), 1, "{page}");
}

#[tokio::test]
async fn no_param_is_lost_around_a_call() {
    let open = json!({ "type": "object", "properties": { "path": { "type": "string" } } });
    let setup = Setup::new();
    let log = setup.path("calls");
    let tool = json!({ "name": "wipe", "input_schema": open });
    let inside = setup.server("files", json!({ "tools": [tool], "call_log": log })).open().await;
    let seen = |given: &Value| {
        let calls = logged(&log);
        assert_eq!(calls.last().expect("a call")["params"]["arguments"], json!({ "path": "a" }), "{given}");
        calls.len()
    };
    let flat = json!({ "name": "files.wipe", "path": "a" });
    let nested = json!({ "name": "files.wipe", "arguments": { "path": "a" } });
    let mut calls = 0;
    for given in [
        json!({ "arguments": flat }),
        json!({ "arguments": flat.to_string() }),
        json!({ "type": "function", "function": { "name": "files.wipe", "arguments": "{\"path\": \"a\"}" } }),
        json!({ "nmae": "files.wipe", "path": "a" }),
        json!({ "server_name": "files", "tool_name": "wipe", "arguments": { "path": "a" } }),
        json!({ "server": "files", "tool": "wipe", "arguments": { "path": "a" } }),
        json!({ "name": "files.wipe", "arguments": { "path": "a" }, "x": 2 }),
    ] {
        let result = inside.call("execute_tool", given.clone()).await;
        calls += 1;
        assert_eq!(seen(&given), calls, "{given}: {result}");
        assert_eq!(notices_of(&result)[0]["kind"], "arguments_repaired", "{given}: {result}");
    }
    for actions in [
        json!(json!([flat]).to_string()),
        json!(json!([nested]).to_string()),
        flat.clone(),
        nested.clone(),
        json!(flat.to_string()),
        json!([flat.to_string()]),
        json!([{ "action": flat }]),
        json!([{ "server": "files", "tool": "wipe", "params": { "path": "a" } }]),
    ] {
        let result = inside.call("run_parallel", json!({ "actions": actions })).await;
        calls += 1;
        assert_eq!(seen(&actions), calls, "{actions}: {result}");
    }
}

#[tokio::test]
async fn a_meta_tool_is_known_however_its_name_is_written() {
    let (inside, _) = files().await;
    for name in [
        "Search_Tools",
        "searchTools",
        "nonet__search_tools",
        "nonet.search_tools",
        "mcp__nonet__search-tools",
    ] {
        let found = inside.answer(name, json!({ "query": "list" })).await;
        assert!(found["results"].is_array(), "{name}: {found}");
        let call = json!({ "name": name, "params": { "query": "list" } });
        let fault = inside.fault("execute_tool", call).await;
        assert_eq!(
            fault["next_step"],
            json!({ "tool": "search_tools", "arguments": { "query": "list" } }),
            "{name}: {fault}"
        );
        let report = inside.call("run_parallel", json!({ "actions": [{ "name": name }] })).await;
        assert!(report.to_string().contains("`search_tools` is a meta-tool"), "{name}: {report}");
    }
}

#[tokio::test]
async fn the_tools_of_the_gateway_know_the_usual_names() {
    let (inside, _) = files().await;
    let loaded = inside.execute("gateway.load_tools", json!({ "name": "files.list" })).await;
    assert_eq!(json_of(&loaded)["tools"][0]["name"], "files.list", "{loaded}");
    let run = inside
        .execute("gateway.background_run", json!({ "tool": "files.list", "arguments": { "path": "a" } }))
        .await;
    assert_eq!(json_of(&run), json!({ "path": "a" }), "{run}");
}

#[tokio::test]
async fn a_value_is_never_changed_silently() {
    let (inside, _) = files().await;
    for call in [
        json!({ "name": "files.list", "params": { "path": 7 } }),
        json!({ "name": "files.list", "params": { "path": "a", "maxDepth": null } }),
    ] {
        let result = inside.call("execute_tool", call.clone()).await;
        assert_eq!(notices_of(&result)[0]["kind"], "params_repaired", "{call}: {result}");
    }
}

#[tokio::test]
async fn two_readings_are_none() {
    let text = json!({ "type": "string" });
    let either = json!({
        "type": "object",
        "properties": { "user_id": text, "userId": text, "at": { "type": ["integer", "boolean"] } },
        "additionalProperties": false,
    });
    let setup = Setup::new();
    let log = setup.path("calls");
    let tools = json!([{ "name": "pick", "input_schema": either }]);
    let inside = setup.server("odd", json!({ "tools": tools, "call_log": log })).open().await;
    for params in [json!({ "UserID": "a" }), json!({ "at": "soon" })] {
        let fault = inside.fault("execute_tool", json!({ "name": "odd.pick", "params": params })).await;
        assert_eq!(fault["code"], "invalid_params", "{params}: {fault}");
    }
    assert_eq!(logged(&log), Vec::<Value>::new(), "the server has not seen a guess");
}

#[tokio::test]
async fn a_tool_that_takes_params_of_these_names_gets_them() {
    let own = json!({
        "type": "object",
        "properties": { "arguments": { "type": "object" }, "name": { "type": "string" }, "input": { "type": "string" } },
        "required": ["arguments"],
    });
    let inside = Setup::new()
        .server("shell", json!({ "tools": [{ "name": "run", "input_schema": own }] }))
        .open()
        .await;
    let params = json!({ "arguments": { "x": 1 }, "name": "n", "input": "i" });
    assert_eq!(json_of(&inside.execute("shell.run", params.clone()).await), params);
    assert_eq!(inside.answer("shell__run", params.clone()).await, params);
}

#[tokio::test]
async fn a_schema_that_is_broken_lets_params_through() {
    let inside = Setup::new()
        .server(
            "odd",
            json!({ "tools": [
                { "name": "wrong_type", "input_schema": { "type": 5 } },
                { "name": "far_reference", "input_schema": { "type": "object", "properties": { "a": { "$ref": "https://example.com/x.json" } } } },
                { "name": "bad_pattern", "input_schema": { "type": "object", "properties": { "a": { "pattern": "(" } } } },
            ] }),
        )
        .open()
        .await;
    for tool in ["wrong_type", "far_reference", "bad_pattern"] {
        let told = inside.execute(&format!("odd.{tool}"), json!({ "a": "b" })).await;
        assert_eq!(json_of(&told), json!({ "a": "b" }), "{tool}: {told}");
        let about = inside.answer("get_tool", json!({ "name": tool })).await;
        assert!(about["warning"].is_string(), "{about}");
    }
}

#[tokio::test]
async fn the_arguments_of_the_nine_are_read_as_leniently() {
    let (inside, _) = files().await;
    let page = inside
        .answer("browse_category", json!({ "category": "files", "page": "1", "page_size": "10" }))
        .await;
    assert_eq!(page["total"], 1, "{page}");
    let found = inside.answer("search_tools", json!({ "query": "list", "limit": "3" })).await;
    assert!(found["results"].is_array(), "{found}");
    let fault = inside.fault("search_tools", json!({ "query": "list", "limit": 51 })).await;
    assert_eq!(fault["code"], "invalid_params", "{fault}");
    let fault = inside.fault("browse_category", json!({})).await;
    assert_eq!(fault["code"], "invalid_params", "{fault}");
    insta::assert_json_snapshot!(fault);
}

#[tokio::test]
async fn the_keys_of_the_nine_are_read_under_their_usual_names() {
    let (inside, _) = files().await;
    let told = async |tool: &str, arguments: Value| {
        let result = inside.call(tool, arguments.clone()).await;
        let notices = notices_of(&result);
        assert_eq!(notices.len(), 1, "{tool} {arguments}: {result}");
        assert_eq!(notices[0]["kind"], "arguments_repaired", "{notices:?}");
        (json_of(&result), notices[0]["changes"].clone())
    };
    for key in ["q", "search", "text", "task", "Query"] {
        let (found, changes) = told("search_tools", json!({ key: "list" })).await;
        assert!(found["results"].is_array(), "{key}: {found}");
        assert_eq!(changes, json!([format!("`{key}` was taken as `query`")]));
    }
    let (found, changes) =
        told("search_tools", json!({ "query": "list", "maxRisk": "low", "server": "files" })).await;
    assert!(found["results"].is_array(), "{found}");
    assert_eq!(changes.as_array().map(Vec::len), Some(2), "{changes}");
    let (found, changes) = told("search_tools", json!({ "query": "list", "lmit": 3 })).await;
    assert!(found["results"].is_array(), "{found}");
    assert!(changes[0].as_str().is_some_and(|text| text.contains("did you mean `limit`")), "{changes}");
    let (about, _) = told("get_tool", json!({ "tool": "files.list" })).await;
    assert_eq!(about["name"], "files.list", "{about}");
    let (page, _) = told("browse_category", json!({ "server": "files", "pageSize": "10" })).await;
    assert_eq!(page["page_size"], 10, "{page}");
    let (report, _) =
        told("run_parallel", json!({ "tasks": [{ "tool": "files.list", "args": { "path": "a" } }] })).await;
    assert_eq!(report["succeeded"], 1, "{report}");
    let (asked, _) = told("ask_user", json!({ "message": "Which one?", "options": ["a", "b"] })).await;
    assert_eq!(asked["message"], "Which one?\n1. a\n2. b", "{asked}");
    let (list, changes) = told("list_categories", json!({ "query": "x" })).await;
    assert!(list["categories"].is_array(), "{list}");
    assert!(changes[0].as_str().is_some_and(|text| text.contains("takes no arguments")), "{changes}");
    for (tool, arguments) in
        [("use_skill", json!({ "name": "nothing" })), ("call_app", json!({ "app": "nothing" }))]
    {
        assert_eq!(inside.fault(tool, arguments).await["code"], "not_found", "{tool}");
    }
    let call = json!({ "name": "files.list", "params": { "path": "a" }, "timeoutMs": 5_000 });
    let (_, changes) = told("execute_tool", call).await;
    assert_eq!(changes, json!(["`timeoutMs` was taken as `timeout_ms`"]));
}

#[tokio::test]
async fn a_param_that_the_tool_does_not_know_is_passed_on_and_told() {
    let log = json!({ "type": "object", "properties": { "repo_path": { "type": "string" }, "max_count": { "type": "integer" } }, "required": ["repo_path"] });
    let open = json!({ "type": "object", "properties": { "a": {} }, "additionalProperties": true });
    let tools = json!([
        { "name": "git_log", "input_schema": log, "annotations": { "readOnlyHint": true } },
        { "name": "open", "input_schema": open },
        { "name": "any", "input_schema": { "type": "object" } },
    ]);
    let inside = Setup::new().server("git", json!({ "tools": tools })).open().await;
    let params = json!({ "repo_path": ".", "path": "src" });
    let result = inside.execute("git.git_log", params.clone()).await;
    assert_eq!(json_of(&result), params);
    let told = "`git_log` does not declare `path`; it was passed on. It accepts: repo_path, max_count";
    assert_eq!(notices_of(&result)[0]["changes"], json!([told]));
    let actions = json!([{ "name": "git.git_log", "params": params }]);
    let report = inside.answer("run_parallel", json!({ "actions": actions })).await;
    assert_eq!(report["results"][0]["repaired"], json!([told]), "{report}");
    for tool in ["git.open", "git.any"] {
        let result = inside.execute(tool, json!({ "b": 1 })).await;
        assert!(notices_of(&result).is_empty(), "{tool}: {result}");
    }
}

#[tokio::test]
async fn the_one_missing_param_under_another_name_is_used_and_told() {
    let setup = Setup::new();
    let log = setup.path("calls");
    let one = |key: &str| json!({ "type": "object", "properties": { key: { "type": "string" } }, "required": [key] });
    let chart = json!({ "type": "object", "properties": { "kind": { "enum": ["bar", "line"] } }, "required": ["kind"] });
    let tools = json!([
        { "name": "read", "input_schema": one("file_path") },
        { "name": "log", "input_schema": one("repo_path") },
        { "name": "query", "input_schema": one("sql") },
        { "name": "chart", "input_schema": chart },
    ]);
    let inside = setup.server("shop", json!({ "tools": tools, "call_log": log })).open().await;
    for (tool, params, expected, change) in [
        ("read", json!({ "path": "a" }), json!({ "file_path": "a" }), "`path` was taken as `file_path`"),
        ("log", json!({ "repo": "." }), json!({ "repo_path": "." }), "`repo` was taken as `repo_path`"),
        ("query", json!({ "query": "s" }), json!({ "sql": "s" }), "`query` was taken as `sql`"),
        ("chart", json!({ "kind": "bars" }), json!({ "kind": "bar" }), "`kind`: `bars` was taken as `bar`"),
    ] {
        let result = inside.execute(&format!("shop.{tool}"), params).await;
        assert_eq!(json_of(&result), expected, "{tool}");
        assert_eq!(notices_of(&result)[0]["changes"], json!([change]), "{tool}: {result}");
    }
    let calls = logged(&log).len();
    // A typo that may be another value is only corrected in the fault.
    let wrong = json!({ "name": "shop.chart", "params": { "kind": "lien" } });
    let fault = inside.fault("execute_tool", wrong).await;
    let corrected = &fault["details"]["corrected_call"]["arguments"]["params"];
    assert_eq!(corrected, &json!({ "kind": "line" }), "{fault}");
    assert_eq!(fault["next_step"]["tool"], "get_tool", "{fault}");
    assert_eq!(logged(&log).len(), calls, "the server has not seen the call");
}

#[tokio::test]
async fn the_call_to_copy_and_the_corrected_call_are_one() {
    let schema = json!({
        "type": "object",
        "$defs": { "Edit": { "type": "object", "properties": { "oldText": { "type": "string" }, "newText": { "type": "string" }, "mode": { "enum": ["once", "all"] } }, "required": ["oldText", "newText", "mode"] } },
        "properties": { "path": { "type": "string" }, "edits": { "type": "array", "items": { "$ref": "#/$defs/Edit" } } },
        "required": ["path", "edits"],
    });
    let tools = json!([{ "name": "edit", "input_schema": schema }]);
    let inside = Setup::new().server("files", json!({ "tools": tools })).open().await;
    let about = inside.answer("get_tool", json!({ "name": "files.edit" })).await;
    let edit = json!({ "oldText": "<string>", "newText": "<string>", "mode": "once" });
    assert_eq!(
        about["call"]["arguments"]["params"],
        json!({ "path": "<string>", "edits": [edit] }),
        "{about}"
    );
    let fault = inside.fault("execute_tool", json!({ "name": "files.edit", "params": {} })).await;
    assert_eq!(fault["details"]["corrected_call"], about["call"], "{fault}");
}
