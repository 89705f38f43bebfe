//! Tables: arguments as models write them.

use serde_json::json;

use super::*;
use crate::tools::META;

const EXECUTE: [&str; 5] = ["name", "params", "timeout_ms", "background", "select"];
const ACTION: [&str; 5] = ["id", "name", "params", "after", "timeout_ms"];

fn takes_nothing(_: &str, _: &str) -> bool {
    false
}

fn object(value: Value) -> Map<String, Value> {
    let Value::Object(fields) = value else { panic!("an object") };
    fields
}

#[test]
fn a_call_is_read_as_models_write_it() {
    let check = |own: &[&str], given: Value, expected: Value, told: &[&str]| {
        // The tool `a.own` has a param named like a key of the call.
        let takes = |tool: &str, key: &str| tool == "a.own" && key == "timeoutMs";
        let tools = KnownTools { takes: &takes, is_server: &|server| server == "a" };
        let (read, changes) = call(own, object(given.clone()), tools);
        assert_eq!(Value::Object(read), expected, "{given}");
        assert_eq!(changes, told, "{given}");
    };
    let execute = |given, expected, told: &[&str]| check(&EXECUTE, given, expected, told);
    execute(json!({"name": "a.b"}), json!({"name": "a.b"}), &[]);
    let plain = || json!({"name": "a.b", "params": {"x": 1}});
    execute(plain(), plain(), &[]);
    for key in ["arguments", "args", "Params", "tool_input", "toolInput", "parameters"] {
        let told = format!("`{key}` was taken as `params`");
        execute(json!({"name": "a.b", key: {"x": 1}}), plain(), &[&told]);
    }
    execute(
        json!({"tool_name": "a.b", "args": "{}"}),
        json!({"name": "a.b", "params": "{}"}),
        &["`tool_name` was taken as `name`", "`args` was taken as `params`"],
    );
    execute(json!({"Name": "a.b", "params": {"x": 1}}), plain(), &["`Name` was taken as `name`"]);
    execute(
        json!({"name": "a.b", "x": 1, "timeout_ms": 5}),
        json!({"name": "a.b", "timeout_ms": 5, "params": {"x": 1}}),
        &["beside `name`, so taken into `params`: x"],
    );
    execute(
        json!({"name": "a.b", "params": {"x": 1}, "timeoutMs": 5}),
        json!({"name": "a.b", "params": {"x": 1}, "timeout_ms": 5}),
        &["`timeoutMs` was taken as `timeout_ms`"],
    );
    execute(
        json!({"name": "a.b", "timeoutMs": 5, "x": 1}),
        json!({"name": "a.b", "timeout_ms": 5, "params": {"x": 1}}),
        &["`timeoutMs` was taken as `timeout_ms`", "beside `name`, so taken into `params`: x"],
    );
    execute(
        json!({"name": "a.own", "timeoutMs": 5}),
        json!({"name": "a.own", "params": {"timeoutMs": 5}}),
        &["beside `name`, so taken into `params`: timeoutMs"],
    );
    execute(
        json!({"name": "a.b", "params": {"x": 1}, "backgroud": true, "y": 1}),
        plain(),
        &[
            "`backgroud` was ignored: the call does not know it; did you mean `background`?",
            "`y` was ignored: the call does not know it; it takes name, params, timeout_ms, background, select",
        ],
    );
    execute(
        json!({"name": "a.b", "id": 7, "after": "x"}),
        json!({"name": "a.b", "params": {"id": 7, "after": "x"}}),
        &["beside `name`, so taken into `params`: id, after"],
    );
    execute(
        json!({"name": "a.b", "params": {}, "x": 1}),
        plain(),
        &["beside `name`, so taken into `params`: x"],
    );
    execute(
        json!({"name": "a.b", "input": "text", "mode": "b"}),
        json!({"name": "a.b", "params": {"input": "text", "mode": "b"}}),
        &["beside `name`, so taken into `params`: input, mode"],
    );
    execute(
        json!({"name": "a.b", "arguments": {"x": 1}, "y": 2}),
        plain(),
        &[
            "`arguments` was taken as `params`",
            "`y` was ignored: the call does not know it; it takes name, params, timeout_ms, background, select",
        ],
    );
    for (server, tool) in [("server_name", "tool_name"), ("server", "tool"), ("serverName", "name")] {
        let (read, changes) = call(
            &EXECUTE,
            object(json!({server: "a", tool: "b", "arguments": {"x": 1}})),
            KnownTools { takes: &takes_nothing, is_server: &|_| false },
        );
        assert_eq!(Value::Object(read), plain(), "{server}");
        let told = format!("`{server}` and `name` were taken as the name `a.b`");
        assert!(changes.contains(&told), "{server}: {changes:?}");
    }
    execute(
        json!({"server": "a", "tool": "a.b", "params": {"x": 1}}),
        plain(),
        &["`tool` was taken as `name`"],
    );
    execute(
        json!({"server": "a", "name": "b", "x": 1}),
        plain(),
        &["`server` and `name` were taken as the name `a.b`", "beside `name`, so taken into `params`: x"],
    );
    execute(
        json!({"server": "db1", "name": "ping"}),
        json!({"name": "ping", "params": {"server": "db1"}}),
        &["beside `name`, so taken into `params`: server"],
    );
    check(
        &ACTION,
        json!({"tool": "a.b", "args": {"x": 1}, "dependsOn": ["1"]}),
        json!({"name": "a.b", "after": ["1"], "params": {"x": 1}}),
        &["`tool` was taken as `name`", "`dependsOn` was taken as `after`", "`args` was taken as `params`"],
    );
}

#[test]
fn a_wrapped_call_is_opened() {
    let check = |given: Value, expected: Value, told: usize| {
        let (read, changes) = opened(&ACTION, given.clone());
        assert_eq!(read, expected, "{given}");
        assert_eq!(changes.len(), told, "{given}: {changes:?}");
    };
    let plain = || json!({"name": "a.b", "x": 1});
    check(plain(), plain(), 0);
    check(json!(plain().to_string()), plain(), 1);
    check(json!([plain()]), plain(), 1);
    for key in ["arguments", "function", "tool_call", "params"] {
        check(json!({ key: plain() }), plain(), 1);
        check(json!({ key: plain().to_string() }), plain(), 1);
    }
    check(
        json!({"id": "1", "type": "function", "function": {"name": "a.b", "arguments": "{}"}}),
        json!({"name": "a.b", "arguments": "{}", "id": "1"}),
        1,
    );
    check(json!({"jsonrpc": "2.0", "method": "tools/call", "params": plain()}), plain(), 1);
    check(json!({"arguments": {"x": 1}}), json!({"arguments": {"x": 1}}), 0);
    check(json!({"arguments": plain(), "y": 1}), json!({"arguments": plain(), "y": 1}), 0);
    let action = json!([{"name": "a.b", "x": 1}]);
    for given in [json!(action.to_string()), action[0].clone(), json!({"actions": action})] {
        assert_eq!(actions(given.clone()).0, action, "{given}");
    }
}

#[test]
fn the_keys_of_the_nine_have_other_names() {
    let check = |tool: &str, own: &[&str], given: Value, expected: Value, told: &[&str]| {
        let aliases = META.iter().find(|known| known.name == tool).expect("a meta-tool").aliases;
        let (read, changes) = named(tool, own, aliases, object(given.clone()));
        assert_eq!(Value::Object(read), expected, "{tool} {given}");
        assert_eq!(changes, told, "{tool} {given}");
    };
    let own = ["query", "category", "limit", "detail", "max_risk"];
    for key in ["q", "search", "text", "task", "Query", "QUERY", "searchQuery"] {
        let told = format!("`{key}` was taken as `query`");
        check("search_tools", &own, json!({ key: "x" }), json!({"query": "x"}), &[&told]);
    }
    check(
        "search_tools",
        &own,
        json!({"query": "x", "maxRisk": "low", "server": "git", "nothing": null}),
        json!({"query": "x", "max_risk": "low", "category": "git"}),
        &["`maxRisk` was taken as `max_risk`", "`server` was taken as `category`"],
    );
    check(
        "search_tools",
        &own,
        json!({"q": "x", "query": "y", "lmit": 3, "zzz": 1}),
        json!({"query": "y"}),
        &[
            "`q` was ignored: `query` is given too",
            "`lmit` was ignored: `search_tools` does not know it; did you mean `limit`?",
            "`zzz` was ignored: `search_tools` does not know it; it takes query, category, limit, detail, max_risk",
        ],
    );
    check(
        "search_tools",
        &own,
        json!({"arguments": {"query": "x", "maxRisk": "low"}}),
        json!({"query": "x", "max_risk": "low"}),
        &["the arguments were wrapped in `arguments`", "`maxRisk` was taken as `max_risk`"],
    );
    check(
        "list_categories",
        &[],
        json!({"query": "x"}),
        json!({}),
        &["`query` was ignored: `list_categories` takes no arguments"],
    );
    let app = ["app_id", "input", "timeout"];
    check("call_app", &app, json!({"input": {"name": "x"}}), json!({"input": {"name": "x"}}), &[]);
    check(
        "call_app",
        &app,
        json!({"app": "a", "arguments": {"name": "x"}}),
        json!({"app_id": "a", "input": {"name": "x"}}),
        &["`app` was taken as `app_id`", "`arguments` was taken as `input`"],
    );
    // Text for the app rather than the app's name.
    check(
        "call_app",
        &app,
        json!({"arguments": {"name": "x"}}),
        json!({"input": {"name": "x"}}),
        &["`arguments` was taken as `input`"],
    );
    check(
        "call_app",
        &app,
        json!({"arguments": {"app_id": "a", "prompt": "p"}}),
        json!({"app_id": "a", "input": "p"}),
        &["the arguments were wrapped in `arguments`", "`prompt` was taken as `input`"],
    );
    check(
        "use_skill",
        &["command", "query"],
        json!({"Name": "s"}),
        json!({"command": "s"}),
        &["`Name` was taken as `command`"],
    );
}

#[test]
fn every_other_name_is_of_an_argument_that_there_is() {
    for tool in META.iter() {
        let name = tool.name;
        let own = tool.definition["inputSchema"]["properties"].as_object().expect("properties");
        for (argument, others) in tool.aliases.0.iter().filter(|_| name != "execute_tool") {
            assert!(own.contains_key(*argument), "{name} has no `{argument}`");
            for other in *others {
                assert_eq!(bare(other), *other, "{name}");
                assert!(!own.keys().any(|own| bare(own) == *other), "{name}: `{other}` is its own");
            }
        }
    }
}
