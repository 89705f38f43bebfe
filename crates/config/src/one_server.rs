//! One server outside the file, checked like the file's: a client adds it while Nonet runs.

use std::path::Path;

use serde_json::{Map, Value};
use toml_edit::{DocumentMut, Item, Table, Value as Toml};

use super::{ConfigFault, LoadError, ServerSettings, expand::ValueSources};
use crate::keyring;

/// A checked server, with its keys as they would be in the file.
pub struct OneServer {
    /// The parsed settings.
    pub settings: ServerSettings,
    /// The keys. `${` is escaped in them, so that they keep their meaning in the file.
    pub keys: Map<String, Value>,
}

/// Checks a server as if `file` contained it under this name. Its texts are literal: `${VAR}` is not
/// expanded. `env` is used only for `~` in paths.
///
/// # Errors
///
/// Every fault; their keys begin with `servers.NAME`.
pub fn server_of(
    name: &str,
    keys: &Map<String, Value>,
    file: &Path,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<OneServer, Vec<ConfigFault>> {
    let keys: Map<String, Value> =
        keys.iter().map(|(key, value)| (key.clone(), escaped(value.clone()))).collect();
    let table: Table =
        keys.iter().map(|(key, value)| (key.as_str(), Item::Value(toml_value(value)))).collect();
    let mut servers = Table::new();
    servers.set_implicit(true);
    servers.insert(name, Item::Table(table));
    let mut document = DocumentMut::new();
    document.insert("servers", Item::Table(servers));
    let sources = ValueSources {
        env,
        keyring: &|name| Err(keyring::Error::NoSecret(name.into())),
        ..ValueSources::NONE
    };
    match super::parse(&document.to_string(), file, sources) {
        Ok(mut loaded) => match loaded.config.servers.pop_first() {
            Some((_, settings)) if loaded.faults.is_empty() => Ok(OneServer { settings, keys }),
            _ => Err(loaded.faults),
        },
        Err(LoadError::Faults(faults)) => Err(faults),
        // No file is read here.
        Err(LoadError::Unreadable { .. }) => Err(Vec::new()),
    }
}

/// Escapes the texts in a value, so that they are literal.
fn escaped(value: Value) -> Value {
    match value {
        Value::String(text) => text.replace("${", "$${").into(),
        Value::Array(items) => items.into_iter().map(escaped).collect(),
        Value::Object(fields) => fields.into_iter().map(|(key, value)| (key, escaped(value))).collect(),
        other => other,
    }
}

/// Converts a JSON value to TOML.
pub fn toml_value(value: &Value) -> Toml {
    match value {
        // TOML has no null; no written value is one.
        Value::Null => "".into(),
        Value::Bool(truth) => (*truth).into(),
        Value::Number(number) => match number.as_i64() {
            Some(whole) => whole.into(),
            None => number.as_f64().unwrap_or_default().into(),
        },
        Value::String(text) => text.into(),
        Value::Array(items) => Toml::Array(items.iter().map(toml_value).collect()),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(key, value)| (key.as_str(), toml_value(value)));
            Toml::InlineTable(fields.collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{self as config, Transport};

    fn checked(name: &str, keys: Value) -> Result<OneServer, Vec<String>> {
        let keys = keys.as_object().expect("a table");
        let one = server_of(name, keys, Path::new("/etc/servers.toml"), &|_| Some("expanded".into()));
        one.map_err(|faults| {
            faults.into_iter().map(|fault| format!("{}: {}", fault.key, fault.message)).collect()
        })
    }

    #[test]
    fn texts_are_literal_here_and_in_the_file() {
        let args = ["${HOME}", "$${HOME}", "${keyring:X}", "${", "a\"b\n'c'", "$"];
        let one = checked("a", json!({ "command": "x", "args": args, "env": { "K": "${K}" } }));
        let one = one.unwrap_or_else(|faults| panic!("{faults:?}"));
        let Transport::Stdio { args: read, env, .. } = &one.settings.transport else { panic!("a program") };
        assert_eq!(read, &args);
        assert_eq!(env["K"].expose(), "${K}");
        let again = checked("a", Value::Object(one.keys.clone())).map(|again| again.settings);
        // Escaped once more, they have the meaning of the file's text.
        assert_ne!(again.expect("usable"), one.settings);
        let mut file = DocumentMut::new();
        for (key, value) in &one.keys {
            file["servers"]["a"][key.as_str()] = Item::Value(toml_value(value));
        }
        let again = config::parse(&file.to_string(), Path::new("/etc/servers.toml"), ValueSources::NONE);
        let again = again.expect("usable").config.servers.pop_first().expect("a server").1;
        assert_eq!(again, one.settings);
    }

    #[test]
    fn faults_are_those_of_the_file() {
        let check = |name: &str, keys: Value, expected: &[&str]| {
            let faults = checked(name, keys.clone()).err().unwrap_or_default();
            assert_eq!(faults, expected, "{name} {keys}");
        };
        check("a", json!({}), &["servers.a: a server needs `command`, `url` or `openapi`"]);
        let both = json!({ "command": "x", "url": "https://example.com" });
        check("a", both, &["servers.a.url: a server cannot have both `command` and `url`"]);
    }
}
