//! A server from an entry of servers.toml itself.

use serde_json::{Map, Value};

use super::{
    super::{
        parts::{TextParts, own},
        secrets::{TextPlace, mark},
    },
    EntryTransport, HostServer,
};

/// Splits the texts that may hold secrets into parts. A key without a value counts as absent; keys of the wrong type are left to
/// the check of servers.toml.
pub(in super::super) fn of_servers_toml(entry: &Map<String, Value>) -> HostServer {
    let mut rest = entry.clone();
    rest.retain(|_, value| !value.is_null());
    let transport = if let Some(command) = take(&mut rest, "command", None) {
        EntryTransport::Program {
            command,
            args: args(&mut rest),
            env: table(&mut rest, "env", |name| TextPlace::Env(name)),
            cwd: take(&mut rest, "cwd", None),
        }
    } else if let Some(url) = take(&mut rest, "url", Some(TextPlace::Url)) {
        let headers = table(&mut rest, "headers", |name| TextPlace::Header(name));
        let sse = rest.get("transport").is_some_and(|transport| transport == "sse");
        if sse {
            rest.shift_remove("transport");
        }
        EntryTransport::Address { url, headers, sse }
    } else if let Some(openapi) = take(&mut rest, "openapi", Some(TextPlace::Url)) {
        let base_url = take(&mut rest, "base_url", Some(TextPlace::Url));
        EntryTransport::Document {
            openapi,
            base_url,
            headers: table(&mut rest, "headers", |name| TextPlace::Header(name)),
        }
    } else {
        EntryTransport::Other
    };
    let description = rest.get("description").and_then(Value::as_str).map(own);
    if description.is_some() {
        rest.shift_remove("description");
    }
    HostServer {
        transport,
        enabled: true,
        description,
        rules: Vec::new(),
        unmapped: None,
        timeout: None,
        start_timeout: None,
        lost: None,
        more: rest,
    }
}

fn take(entry: &mut Map<String, Value>, key: &str, place: Option<TextPlace>) -> Option<TextParts> {
    let text = own(entry.get(key)?.as_str()?);
    entry.shift_remove(key);
    Some(match place {
        Some(place) => mark(text, place),
        None => text,
    })
}

fn args(entry: &mut Map<String, Value>) -> Vec<TextParts> {
    let texts = entry.get("args").and_then(Value::as_array);
    let texts: Option<Vec<String>> =
        texts.and_then(|args| args.iter().map(|arg| arg.as_str().map(Into::into)).collect());
    let Some(texts) = texts else { return Vec::new() };
    entry.shift_remove("args");
    let before = std::iter::once(None).chain(texts.iter().map(|text| Some(text.as_str())));
    texts.iter().zip(before).map(|(text, before)| mark(own(text), TextPlace::Argument(before))).collect()
}

fn table(
    entry: &mut Map<String, Value>,
    key: &str,
    place: impl for<'n> Fn(&'n str) -> TextPlace<'n>,
) -> Vec<(String, TextParts)> {
    let texts = entry.get(key).and_then(Value::as_object).and_then(|members| {
        let text =
            |(name, value): (&String, &Value)| Some((name.clone(), mark(own(value.as_str()?), place(name))));
        members.iter().map(text).collect::<Option<Vec<_>>>()
    });
    if texts.is_some() {
        entry.shift_remove(key);
    }
    texts.unwrap_or_default()
}
