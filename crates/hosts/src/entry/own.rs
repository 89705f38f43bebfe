//! A server from an entry of servers.toml itself.

use serde_json::{Map, Value};

use super::{
    super::{
        parts::own,
        secrets::{TextPlace, mark},
    },
    EntryText, HostServer,
};

/// The ways to reach a server: the key that tells the way, and all keys in the order in which they are
/// written.
const WAYS: [(&str, &[&str]); 3] = [
    ("command", &["command", "args", "env", "cwd"]),
    ("url", &["transport", "url", "headers"]),
    ("openapi", &["openapi", "base_url", "headers"]),
];

/// Splits the texts that may hold secrets into parts. A key without a value counts as absent; keys of the
/// wrong type are left to the check of servers.toml.
pub(in super::super) fn of_servers_toml(entry: &Map<String, Value>) -> HostServer {
    let mut more = entry.clone();
    more.retain(|_, value| !value.is_null());
    let way = WAYS.iter().find(|(key, _)| more.get(*key).is_some_and(Value::is_string));
    let mut connection = Vec::new();
    for key in way.into_iter().flat_map(|(_, keys)| *keys) {
        if let Some(texts) = more.get(*key).and_then(|value| texts(key, value)) {
            more.shift_remove(*key);
            connection.push((*key, texts));
        }
    }
    let description = more.get("description").and_then(Value::as_str).map(own);
    if description.is_some() {
        more.shift_remove("description");
    }
    HostServer { connection, enabled: true, description, more, ..HostServer::default() }
}

/// Returns the texts of a key; none if they have the wrong type.
fn texts(key: &str, value: &Value) -> Option<EntryText> {
    match (key, value) {
        ("args", Value::Array(args)) => {
            let args: Vec<&str> = args.iter().map(Value::as_str).collect::<Option<_>>()?;
            let before = std::iter::once(None).chain(args.iter().copied().map(Some));
            let marked =
                args.iter().zip(before).map(|(arg, before)| mark(own(arg), TextPlace::Argument(before)));
            Some(EntryText::List(marked.collect()))
        }
        ("env" | "headers", Value::Object(members)) => {
            let text = |(name, value): (&String, &Value)| {
                let place = if key == "env" { TextPlace::Env(name) } else { TextPlace::Header(name) };
                Some((name.clone(), mark(own(value.as_str()?), place)))
            };
            Some(EntryText::Named(members.iter().map(text).collect::<Option<_>>()?))
        }
        // Any other transport is only written.
        ("transport", Value::String(transport)) if transport != "sse" => None,
        ("command" | "cwd" | "transport", Value::String(text)) => Some(EntryText::One(own(text))),
        ("url" | "openapi" | "base_url", Value::String(text)) => {
            Some(EntryText::One(mark(own(text), TextPlace::Url)))
        }
        _ => None,
    }
}
