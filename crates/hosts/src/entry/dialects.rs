//! Maps keys of Goose, opencode, Continue and Warp to the names that most hosts use.

use serde_json::{Map, Value};

/// Keys with a different common name.
const NAMES: [(&str, &str); 7] = [
    ("cmd", "command"),
    ("envs", "env"),
    ("environment", "env"),
    ("uri", "url"),
    ("working_directory", "cwd"),
    ("available_tools", "includeTools"),
    ("connectionTimeout", "timeout"),
];

/// Returns an entry in the common form.
pub(super) fn common(entry: &Map<String, Value>) -> Map<String, Value> {
    let mut common = entry.clone();
    for (theirs, usual) in NAMES {
        if !common.contains_key(usual)
            && let Some(value) = common.shift_remove(theirs)
        {
            common.insert(usual.into(), value);
        }
    }
    // opencode has the program and its arguments in one list, and variables as `{env:NAME}`.
    if let Some(Value::Array(words)) = common.get("command").cloned() {
        let mut words = words.into_iter();
        common.insert("command".into(), words.next().unwrap_or_default());
        common.insert("args".into(), words.collect());
    }
    if entry.get("command").is_some_and(Value::is_array)
        || entry.get("type").is_some_and(|kind| kind == "remote")
    {
        common.values_mut().for_each(variables);
    }
    if let Some(request) = common.get("timeout").and_then(|timeout| timeout.get("request")).cloned() {
        common.insert("timeout".into(), request);
    }
    // Goose reads these from its own keyring.
    if let Some(Value::Array(names)) = common.shift_remove("env_keys") {
        let env = common.entry("env").or_insert_with(|| Value::Object(Map::new()));
        for name in names.iter().filter_map(Value::as_str) {
            if let Some(env) = env.as_object_mut().filter(|env| !env.contains_key(name)) {
                env.insert(name.into(), Value::Null);
            }
        }
    }
    // Continue has headers among the options of a request.
    if let Some(Value::Object(mut options)) = common.get("requestOptions").cloned()
        && !common.contains_key("headers")
        && let Some(headers) = options.shift_remove("headers")
    {
        common.insert("headers".into(), headers);
        common.shift_remove("requestOptions");
        common.extend(options);
    }
    common
}

fn variables(value: &mut Value) {
    match value {
        Value::String(text) if !text.contains("${") => {
            *text = text.replace("{env:", "${env:").replace("{file:", "${file:");
        }
        Value::Array(items) => items.iter_mut().for_each(variables),
        Value::Object(members) => members.values_mut().for_each(variables),
        _ => {}
    }
}
