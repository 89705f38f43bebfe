//! The arguments of the nine as models write them: keys in another case or under other names, wrappers, params beside the
//! name. Says what it took for what, and what it did not understand.

use serde_json::{Map, Value};

use crate::{
    name,
    schema::{bare, clip},
};

/// Other names of one argument, the likeliest first.
type Aliases = (&'static str, &'static [&'static str]);

/// The names that models give to the arguments of each meta-tool, without case and separators.
const OTHER_NAMES: &[(&str, &[Aliases])] = &[
    (
        "search_tools",
        &[
            ("query", &["q", "search", "text", "task", "searchquery", "keywords", "question", "prompt"]),
            ("category", &["server", "servername", "group"]),
            ("limit", &["maxresults", "topk", "count"]),
            ("detail", &["details"]),
            ("max_risk", &["risk"]),
        ],
    ),
    ("get_tool", &[("name", &["tool", "toolname"]), ("names", &["tools", "toolnames"])]),
    ("execute_tool", CALL_NAMES),
    (
        "browse_category",
        &[
            ("category", &["server", "servername", "group", "name"]),
            ("page_size", &["limit", "perpage", "size"]),
        ],
    ),
    (
        "run_parallel",
        &[
            ("actions", &["tasks", "calls", "toolcalls", "steps"]),
            ("max_concurrency", &["concurrency", "maxparallel"]),
            ("fail_fast", &["stoponerror"]),
        ],
    ),
    (
        "use_skill",
        &[
            ("command", &["skill", "name", "skillname"]),
            ("query", &["q", "search", "text", "task"]),
            ("file", &["path", "filename"]),
            ("arguments", &["args", "input", "params", "parameters"]),
        ],
    ),
    (
        "call_app",
        &[
            ("app_id", &["app", "name", "appname", "id"]),
            ("input", &["prompt", "arguments", "args", "inputs", "params", "parameters"]),
        ],
    ),
    (
        "ask_user",
        &[
            ("question", &["message", "prompt", "text"]),
            ("content", &["draft"]),
            ("choices", &["options"]),
            ("allow_multiple", &["multiple", "multiselect"]),
            ("form", &["schema", "requestedschema"]),
            ("default", &["defaultanswer"]),
            ("answer", &["decision", "response", "reply"]),
        ],
    ),
];
/// The same for a call: an `execute_tool`, or an action of `run_parallel`.
const CALL_NAMES: &[(&str, &[&str])] = &[
    ("name", &["tool", "toolname"]),
    (
        "params",
        &["arguments", "args", "input", "inputs", "parameters", "toolinput", "toolargs", "toolarguments"],
    ),
    ("after", &["dependson", "needs"]),
];
/// Keys that hold all arguments, if nothing stands beside them.
const WRAPPERS: &[&str] = &["arguments", "args", "params", "parameters", "input", "toolinput"];

/// Arguments with keys that are the meta-tool's own, and what was done to get them.
pub(super) type Told = (Map<String, Value>, Vec<String>);

/// Reads the keys of a meta-tool that has the arguments `own`.
pub(super) fn named(tool: &str, own: &[&str], arguments: Map<String, Value>) -> Told {
    let mut changes = Vec::new();
    let mut arguments = arguments;
    if let Some((key, inner)) = unwrapped(tool, own, &arguments) {
        changes.push(format!("the arguments were wrapped in `{key}`"));
        arguments = inner;
    }
    let (mut out, others): (Map<String, Value>, Map<String, Value>) =
        arguments.into_iter().partition(|(key, _)| own.contains(&key.as_str()));
    for (key, value) in others.into_iter().filter(|(_, value)| !value.is_null()) {
        match meant(tool, own, &key) {
            Some(name) if out.get(name).is_none_or(Value::is_null) => {
                changes.push(format!("`{}` was taken as `{name}`", clip(&key, 40)));
                out.insert(name.into(), value);
            }
            Some(name) => changes.push(format!("`{}` was ignored: `{name}` is given too", clip(&key, 40))),
            None => changes.push(ignored(tool, own, &key)),
        }
    }
    (out, changes)
}

/// The argument that a key means.
fn meant<'a>(tool: &str, own: &[&'a str], key: &str) -> Option<&'a str> {
    let plain = bare(key);
    own.iter().find(|name| bare(name) == plain).copied().or_else(|| {
        let (_, names) = OTHER_NAMES.iter().find(|(known, _)| *known == tool)?;
        let (name, _) = names.iter().find(|(_, others)| others.contains(&plain.as_str()))?;
        own.iter().find(|own| *own == name).copied()
    })
}

/// What is told of a key that means nothing here.
fn ignored(tool: &str, own: &[&str], key: &str) -> String {
    let key = clip(key, 40);
    if own.is_empty() {
        return format!("`{key}` was ignored: `{tool}` takes no arguments");
    }
    match name::nearest(&key, own.iter().copied(), 1).first() {
        Some(near) => format!("`{key}` was ignored: `{tool}` does not know it; did you mean `{near}`?"),
        None => format!("`{key}` was ignored: `{tool}` does not know it; it takes {}", own.join(", ")),
    }
}

/// Arguments that are wrapped in a single key, which is none of the meta-tool's own.
fn unwrapped(
    tool: &str,
    own: &[&str],
    arguments: &Map<String, Value>,
) -> Option<(String, Map<String, Value>)> {
    let mut all = arguments.iter();
    let (Some((key, inner)), None) = (all.next(), all.next()) else { return None };
    if own.contains(&key.as_str()) || !WRAPPERS.contains(&bare(key).as_str()) {
        return None;
    }
    let inner = match inner {
        Value::Object(inner) => inner.clone(),
        Value::String(text) => serde_json::from_str(text).ok()?,
        _ => return None,
    };
    // What an app takes comes under such a key too.
    let known = inner.keys().any(|key| own.contains(&key.as_str()))
        && inner.keys().all(|key| meant(tool, own, key).is_some());
    known.then(|| (key.clone(), inner))
}

fn rename(arguments: &mut Map<String, Value>, changes: &mut Vec<String>, key: &str, name: &str) {
    if let Some(value) = arguments.shift_remove(key) {
        changes.push(format!("`{}` was taken as `{name}`", clip(key, 40)));
        arguments.insert(name.into(), value);
    }
}

/// A call as models write it: other names for `name` and `params`, or the params beside the name. `takes` says whether a
/// tool has a param of its own of that name.
pub(super) fn call(
    own: &[&str],
    mut arguments: Map<String, Value>,
    takes: &dyn Fn(&str, &str) -> bool,
) -> Told {
    let mut changes = Vec::new();
    let is = |key: &str, name: &str| meant("execute_tool", own, key) == Some(name);
    if !arguments.contains_key("name") {
        let other = arguments.iter().find(|(key, value)| value.is_string() && is(key, "name"));
        let Some(other) = other.map(|(key, _)| key.clone()) else { return (arguments, changes) };
        rename(&mut arguments, &mut changes, &other, "name");
    }
    let tool = arguments.get("name").and_then(Value::as_str).unwrap_or_default().to_string();
    let empty = |params: &Value| params.as_object().is_some_and(Map::is_empty) || params.is_null();
    let given = |arguments: &Map<String, Value>| arguments.get("params").is_some_and(|params| !empty(params));
    // Keys of the call itself in another case. Beside params they are nothing else.
    let beside: Vec<String> = arguments.keys().filter(|key| !own.contains(&key.as_str())).cloned().collect();
    for key in &beside {
        let Some(name) = meant("execute_tool", own, key) else { continue };
        let free = name != "name" && name != "params" && !arguments.contains_key(name);
        if free && (given(&arguments) || !takes(&tool, key)) {
            rename(&mut arguments, &mut changes, key, name);
        }
    }
    let beside: Vec<String> = arguments.keys().filter(|key| !own.contains(&key.as_str())).cloned().collect();
    if given(&arguments) {
        for key in &beside {
            arguments.shift_remove(key);
            changes.push(ignored("execute_tool", own, key).replace("`execute_tool`", "the call"));
        }
        return (arguments, changes);
    }
    // One other name for `params` is that; anything else beside the name are params themselves.
    if let [only] = &beside[..]
        && is(only, "params")
    {
        arguments.shift_remove("params");
        rename(&mut arguments, &mut changes, only, "params");
    } else if !beside.is_empty() {
        let taken: Map<String, Value> = beside
            .iter()
            .filter_map(|key| arguments.shift_remove(key).map(|value| (key.clone(), value)))
            .collect();
        changes.push(format!("beside `name`, so taken into `params`: {}", beside.join(", ")));
        arguments.insert("params".into(), Value::Object(taken));
    }
    (arguments, changes)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const EXECUTE: [&str; 5] = ["name", "params", "timeout_ms", "background", "select"];
    const ACTION: [&str; 5] = ["id", "name", "params", "after", "timeout_ms"];

    fn object(value: Value) -> Map<String, Value> {
        let Value::Object(fields) = value else { panic!("an object") };
        fields
    }

    #[test]
    fn a_call_is_read_as_models_write_it() {
        let check = |own: &[&str], given: Value, expected: Value, told: &[&str]| {
            // The tool `a.own` has a param of its own with the name of a key of the call.
            let takes = |tool: &str, key: &str| tool == "a.own" && key == "timeoutMs";
            let (read, changes) = call(own, object(given.clone()), &takes);
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
        check(
            &ACTION,
            json!({"tool": "a.b", "args": {"x": 1}, "dependsOn": ["1"]}),
            json!({"name": "a.b", "after": ["1"], "params": {"x": 1}}),
            &[
                "`tool` was taken as `name`",
                "`dependsOn` was taken as `after`",
                "`args` was taken as `params`",
            ],
        );
    }

    #[test]
    fn the_keys_of_the_nine_have_other_names() {
        let check = |tool: &str, own: &[&str], given: Value, expected: Value, told: &[&str]| {
            let (read, changes) = named(tool, own, object(given.clone()));
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
        // Text for the app, and not the app's name.
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
        for tool in crate::meta::definitions() {
            let name = tool["name"].as_str().expect("a name");
            let own = tool["inputSchema"]["properties"].as_object().expect("properties");
            let names =
                OTHER_NAMES.iter().find(|(known, _)| *known == name).map_or(&[][..], |(_, names)| names);
            for (argument, others) in names.iter().filter(|_| name != "execute_tool") {
                assert!(own.contains_key(*argument), "{name} has no `{argument}`");
                for other in *others {
                    assert_eq!(bare(other), *other, "{name}");
                    assert!(!own.keys().any(|own| bare(own) == *other), "{name}: `{other}` is its own");
                }
            }
        }
    }
}
