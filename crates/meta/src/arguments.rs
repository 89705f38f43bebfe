//! The arguments of the nine as models write them: keys in another case or under aliases, wrappers, params
//! beside the name. Reports what was reinterpreted, and what was ignored.

#[cfg(test)]
mod tests;

use nonet_base::text::clip;
use nonet_schema::{bare, from_text};
use nonet_text::{aliases::Aliases, name};
use serde_json::{Map, Value};

/// The aliases in a call of a tool: an `execute_tool`, or an action of `run_parallel`.
pub(super) const CALL: Aliases = Aliases(&[
    ("name", &["tool", "toolname", "functionname"]),
    (
        "params",
        &["arguments", "args", "input", "inputs", "parameters", "toolinput", "toolargs", "toolarguments"],
    ),
    ("after", &["dependson", "needs"]),
]);
/// Keys that may wrap all arguments, if they are the only key.
const WRAPPERS: &[&str] = &["arguments", "args", "params", "parameters", "input", "toolinput"];

/// Keys that may wrap a whole call.
const CALL_WRAPPERS: &[&str] = &[
    "action",
    "arguments",
    "args",
    "call",
    "function",
    "functioncall",
    "input",
    "parameters",
    "params",
    "tool",
    "toolcall",
    "toolinput",
];
/// Keys beside a wrapper in a model's message that are not part of the call.
const MESSAGE_KEYS: &[&str] = &["type", "id", "callid", "toolcallid", "index", "jsonrpc", "method"];
/// Keys for the server of a tool.
const SERVERS: &[&str] = &["server", "serverid", "servername", "mcpserver"];
/// How many nested wrappers of a call are opened.
const MAX_OPENED: usize = 4;

/// The questions about known tools while a call is read.
#[derive(Clone, Copy)]
pub(super) struct KnownTools<'a> {
    /// Whether a tool has a param of this name.
    pub takes: &'a dyn Fn(&str, &str) -> bool,
    /// Whether there is a server of this name.
    pub is_server: &'a dyn Fn(&str) -> bool,
}

/// Arguments under the meta-tool's own keys, and the changes made.
pub(super) type RenamedArguments = (Map<String, Value>, Vec<String>);

/// Reads the keys of a meta-tool that has the arguments `own`.
pub(super) fn named(
    tool: &str,
    own: &[&str],
    aliases: Aliases,
    arguments: Map<String, Value>,
) -> RenamedArguments {
    let mut changes = Vec::new();
    let mut arguments = arguments;
    if let Some((key, inner)) = unwrapped(own, aliases, &arguments) {
        changes.push(format!("the arguments were wrapped in `{key}`"));
        arguments = inner;
    }
    let (mut out, others): (Map<String, Value>, Map<String, Value>) =
        arguments.into_iter().partition(|(key, _)| own.contains(&key.as_str()));
    for (key, value) in others.into_iter().filter(|(_, value)| !value.is_null()) {
        match meant(own, aliases, &key) {
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

/// Returns the argument that a key means.
fn meant<'a>(own: &[&'a str], aliases: Aliases, key: &str) -> Option<&'a str> {
    let plain = bare(key);
    own.iter().find(|name| bare(name) == plain).copied().or_else(|| {
        let name = aliases.meant(&plain)?;
        own.iter().find(|own| **own == name).copied()
    })
}

/// Moves keys without a meaning of their own into `input`, if `name` is given and `input` is not. Returns the
/// change.
pub(super) fn take_beside(
    own: &[&str],
    aliases: Aliases,
    arguments: &mut Map<String, Value>,
    (name, input): (&str, &str),
) -> Option<String> {
    let of = |key: &str| meant(own, aliases, key);
    let is_given =
        |wanted: &str| arguments.iter().any(|(key, value)| of(key) == Some(wanted) && !value.is_null());
    if !is_given(name) || is_given(input) {
        return None;
    }
    // Another spelling of a key that is there too is a name of its own.
    let is_beside =
        |key: &&String| of(key).is_none_or(|meant| **key != *meant && arguments.contains_key(meant));
    let beside: Vec<String> = arguments.keys().filter(is_beside).cloned().collect();
    if beside.is_empty() {
        return None;
    }
    let taken = beside.iter().filter_map(|key| Some((key.clone(), arguments.shift_remove(key)?)));
    let taken: Map<String, Value> = taken.collect();
    let shown: Vec<String> = beside.iter().map(|key| clip(key, 40)).collect();
    arguments.insert(input.into(), Value::Object(taken));
    Some(format!("beside `{name}`, so taken into `{input}`: {}", shown.join(", ")))
}

/// Builds the note about an ignored key.
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

/// Returns arguments wrapped in a single key that is not one of the meta-tool's own.
fn unwrapped(
    own: &[&str],
    aliases: Aliases,
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
    // An app's input may come under such a key too.
    let known = inner.keys().any(|key| own.contains(&key.as_str()))
        && inner.keys().all(|key| meant(own, aliases, key).is_some());
    known.then(|| (key.clone(), inner))
}

fn rename(arguments: &mut Map<String, Value>, changes: &mut Vec<String>, key: &str, name: &str) {
    if let Some(value) = arguments.shift_remove(key) {
        changes.push(format!("`{}` was taken as `{name}`", clip(key, 40)));
        arguments.insert(name.into(), value);
    }
}

/// Turns the actions of `run_parallel` into a list, if they are a single action or JSON in a string.
pub(super) fn actions(mut given: Value) -> (Value, Vec<String>) {
    let mut changes = Vec::new();
    if let Some(inner) = given.as_str().and_then(from_text).map(|(inner, _)| inner)
        && (inner.is_array() || inner.is_object())
    {
        changes.push("`actions` was JSON in a string".into());
        given = inner;
    }
    if let Value::Object(fields) = &mut given {
        match fields.get_mut("actions").filter(|inner| inner.is_array()).map(Value::take) {
            Some(inner) => given = inner,
            None => {
                changes.push("`actions` was one action, taken as a list of one".into());
                given = Value::Array(vec![given]);
            }
        }
    }
    (given, changes)
}

/// Removes the wrappers around a call: JSON in a string, a list of one, a model's message.
pub(super) fn opened(own: &[&str], mut given: Value) -> (Value, Vec<String>) {
    let mut changes = Vec::new();
    for _ in 0..MAX_OPENED {
        let (inner, change) = match &mut given {
            Value::String(text) => match from_text(text) {
                Some((inner, _)) if !inner.is_string() => (inner, "the call was JSON in a string".into()),
                _ => break,
            },
            Value::Array(items) => match &mut items[..] {
                [only @ Value::Object(_)] => (only.take(), "the call was a list of one".into()),
                _ => break,
            },
            Value::Object(fields) => match whole_call(own, fields) {
                Some((key, inner)) => {
                    (Value::Object(inner), format!("the call was wrapped in `{}`", clip(&key, 40)))
                }
                None => break,
            },
            _ => break,
        };
        changes.push(change);
        given = inner;
    }
    (given, changes)
}

/// Returns the object that a value is, or that its text contains.
fn as_object(value: &Value) -> Option<Map<String, Value>> {
    match value {
        Value::Object(fields) => Some(fields.clone()),
        Value::String(text) if !text.trim().is_empty() => match from_text(text)?.0 {
            Value::Object(fields) => Some(fields),
            _ => None,
        },
        _ => None,
    }
}

/// Returns the call in the params of an `execute_tool`, if there is one.
pub(super) fn nested(call: &Value) -> Option<Map<String, Value>> {
    as_object(call.get("params")?).filter(|inner| !inner.is_empty())
}

/// Returns the call inside its only wrapper key, including the call's own keys beside that key.
fn whole_call(own: &[&str], fields: &Map<String, Value>) -> Option<(String, Map<String, Value>)> {
    let names = |fields: &Map<String, Value>| {
        fields.iter().any(|(key, value)| value.is_string() && meant(own, CALL, key) == Some("name"))
    };
    if names(fields) {
        return None;
    }
    let mut wrapper = None;
    let mut beside = Vec::new();
    for (key, value) in fields {
        let plain = bare(key);
        let inner = CALL_WRAPPERS.contains(&plain.as_str()).then(|| as_object(value)).flatten();
        match inner {
            Some(inner) if wrapper.is_none() => wrapper = Some((key.clone(), inner)),
            None if own.contains(&key.as_str()) => beside.push((key, value)),
            None if MESSAGE_KEYS.contains(&plain.as_str()) && !value.is_object() && !value.is_array() => {}
            _ => return None,
        }
    }
    let (key, mut inner) = wrapper?;
    if !names(&inner) && whole_call(own, &inner).is_none() {
        return None;
    }
    for (key, value) in beside {
        inner.entry(key.clone()).or_insert_with(|| value.clone());
    }
    Some((key, inner))
}

/// Adds a server given beside a tool's name as the prefix of the name.
fn with_server(
    arguments: &mut Map<String, Value>,
    changes: &mut Vec<String>,
    has_params: bool,
    tools: KnownTools<'_>,
) {
    let Some(tool) = arguments.get("name").and_then(Value::as_str).map(str::to_string) else { return };
    let found = arguments.iter().find_map(|(key, value)| {
        let server = value.as_str().map(str::trim).filter(|server| !server.is_empty())?;
        SERVERS.contains(&bare(key).as_str()).then(|| (key.clone(), server.to_string()))
    });
    let Some((key, server)) = found else { return };
    let full = name::full_name(&server, tool.trim());
    let known = (tools.is_server)(&server);
    let is_param = || (tools.takes)(&tool, &key) || (tools.takes)(&full, &key);
    let in_name = name::split_given(&tool).map(|(first, _)| name::fold(first));
    let named_twice = in_name.as_deref() == Some(&*name::fold(&server));
    let is_meant = if has_params { known || in_name.is_none() } else { known && !is_param() };
    if !is_meant {
        return;
    }
    arguments.shift_remove(&key);
    if !named_twice {
        changes.push(format!(
            "`{}` and `name` were taken as the name `{}`",
            clip(&key, 40),
            clip(&full, 100)
        ));
        arguments.insert("name".into(), Value::String(full));
    }
}

/// Whether a call has non-empty params.
fn has_params(call: &Map<String, Value>) -> bool {
    let empty = |params: &Value| params.as_object().is_some_and(Map::is_empty) || params.is_null();
    call.get("params").is_some_and(|params| !empty(params))
}

/// Returns the keys of a call that are not its own.
fn beside(own: &[&str], call: &Map<String, Value>) -> Vec<String> {
    call.keys().filter(|key| !own.contains(&key.as_str())).cloned().collect()
}

fn ignore<'a>(
    own: &[&str],
    call: &mut Map<String, Value>,
    changes: &mut Vec<String>,
    keys: impl Iterator<Item = &'a String>,
) {
    for key in keys {
        call.shift_remove(key);
        changes.push(ignored("execute_tool", own, key).replace("`execute_tool`", "the call"));
    }
}

/// Reads a call as models write it: aliases for `name` and `params`, the server beside the name, or the
/// params beside the name.
pub(super) fn call(
    own: &[&str],
    mut arguments: Map<String, Value>,
    tools: KnownTools<'_>,
) -> RenamedArguments {
    let mut changes = Vec::new();
    let is = |key: &str, name: &str| meant(own, CALL, key) == Some(name);
    if !arguments.contains_key("name") {
        let other = arguments.iter().find(|(key, value)| value.is_string() && is(key, "name"));
        let Some(other) = other.map(|(key, _)| key.clone()) else { return (arguments, changes) };
        rename(&mut arguments, &mut changes, &other, "name");
    }
    let wrapped = |key: &str, value: &Value| {
        !own.contains(&key) && is(key, "params") && (value.is_null() || as_object(value).is_some())
    };
    let wraps_params =
        arguments.contains_key("params") || arguments.iter().any(|(key, value)| wrapped(key, value));
    with_server(&mut arguments, &mut changes, wraps_params, tools);
    let tool = arguments.get("name").and_then(Value::as_str).unwrap_or_default().to_string();
    let takes = |key: &str| (tools.takes)(&tool, key);
    // The call's own keys in another case. Beside params, they can only be these.
    for key in beside(own, &arguments) {
        let Some(name) = meant(own, CALL, &key) else { continue };
        let free = name != "name" && name != "params" && !arguments.contains_key(name);
        if free && (has_params(&arguments) || !takes(&key)) {
            rename(&mut arguments, &mut changes, &key, name);
        }
    }
    let all = beside(own, &arguments);
    if has_params(&arguments) {
        ignore(own, &mut arguments, &mut changes, all.iter());
        return (arguments, changes);
    }
    // A single alias of `params` means `params`, unless the tool has a param of that name beside other
    // params.
    let mut others = all.iter().filter(|key| {
        let one = arguments.get(key.as_str()).is_some_and(|value| wrapped(key, value)) && !takes(key);
        if all.len() == 1 { is(key, "params") } else { one }
    });
    if let (Some(only), None) = (others.next(), others.next()) {
        arguments.shift_remove("params");
        rename(&mut arguments, &mut changes, only, "params");
        ignore(own, &mut arguments, &mut changes, all.iter().filter(|key| *key != only));
    } else if !all.is_empty() {
        let taken: Map<String, Value> =
            all.iter().filter_map(|key| Some((key.clone(), arguments.shift_remove(key)?))).collect();
        changes.push(format!("beside `name`, so taken into `params`: {}", all.join(", ")));
        arguments.insert("params".into(), Value::Object(taken));
    }
    (arguments, changes)
}
