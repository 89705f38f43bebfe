//! Converts a server that a user typed, in a command or a form, into the keys of servers.toml: words, pairs
//! and addresses.

use std::path::Path;

use serde_json::{Map, Value, json};

/// A server as typed. One of `url`, `openapi` and `command` is set.
#[derive(Clone, Copy, Debug, Default)]
pub struct TypedServer<'a> {
    /// The server's purpose.
    pub description: Option<&'a str>,
    /// The address of a server over HTTP.
    pub url: Option<&'a str>,
    /// The transport of the address.
    pub transport: Option<&'a str>,
    /// The OpenAPI document of a REST service: a file or an address.
    pub openapi: Option<&'a str>,
    /// The address of the REST service.
    pub base_url: Option<&'a str>,
    /// The program and its arguments.
    pub command: &'a [String],
    /// `NAME=value`.
    pub env: &'a [String],
    /// `Name: value`.
    pub headers: &'a [String],
    /// Tags for search and profiles.
    pub tags: &'a [String],
}

/// How faults name the inputs for pairs.
#[derive(Clone, Copy, Debug)]
pub struct TypedLabels {
    /// The label for variables.
    pub env: &'static str,
    /// The label for headers.
    pub headers: &'static str,
}

impl TypedServer<'_> {
    /// Returns the entry for servers.toml, with relative paths of this folder made absolute. Faults never
    /// contain a pair's value.
    pub fn entry(
        &self,
        folder: &Path,
        labels: TypedLabels,
        notes: &mut Vec<String>,
    ) -> Result<Map<String, Value>, String> {
        let mut entry = Map::new();
        let mut set = |key: &str, value: Value| drop(entry.insert(key.into(), value));
        if let Some(description) = self.description {
            set("description", json!(description));
        }
        if let Some(url) = self.url {
            set("url", json!(url));
        }
        if let Some(transport) = self.transport {
            set("transport", json!(transport));
        }
        if let Some(document) = self.openapi {
            set("openapi", json!(absolute(document, folder)));
        }
        if let Some(base_url) = self.base_url {
            set("base_url", json!(base_url));
        }
        if let Some((command, arguments)) = self.command.split_first() {
            let is_path = command.contains(['/', '\\']);
            set("command", json!(if is_path { absolute(command, folder) } else { command.clone() }));
            if !arguments.is_empty() {
                set("args", json!(arguments));
            }
            // The gateway that starts the server may run in another folder.
            if let Some(path) = arguments.iter().find(|argument| is_relative_path(argument, folder)) {
                set("cwd", json!(literal(&folder.display().to_string())));
                notes.push(format!("`cwd` is this folder, because `{path}` is a path in it."));
            }
        }
        let env = pairs(labels.env, "NAME=value", '=', self.env, str::eq)?;
        if !env.is_empty() {
            set("env", Value::Object(env));
        }
        let headers = pairs(labels.headers, "Name: value", ':', self.headers, str::eq_ignore_ascii_case)?;
        if !headers.is_empty() {
            set("headers", Value::Object(headers));
        }
        if !self.tags.is_empty() {
            set("tags", json!(self.tags));
        }
        Ok(entry)
    }
}

/// Parses names and values. Values may be secrets, so no message contains them.
pub(super) fn pairs(
    label: &str,
    form: &str,
    separator: char,
    given: &[String],
    same: fn(&str, &str) -> bool,
) -> Result<Map<String, Value>, String> {
    let mut pairs = Map::new();
    for given in given {
        let (name, value) = given
            .split_once(separator)
            .filter(|(name, _)| !name.trim().is_empty())
            .ok_or_else(|| format!("`{label}` needs `{form}`"))?;
        let (name, value) = match separator {
            ':' => (name.trim(), value.trim()),
            _ => (name, value),
        };
        if pairs.keys().any(|known| same(known, name)) {
            return Err(format!("`{label} {name}` is given twice"));
        }
        pairs.insert(name.into(), value.into());
    }
    Ok(pairs)
}

/// Makes a path absolute. Addresses, `~` and variables stay.
fn absolute(path: &str, folder: &Path) -> String {
    if path.contains("://") || path.starts_with(['~', '$']) || Path::new(path).is_absolute() {
        return path.into();
    }
    let joined = folder.join(path.strip_prefix("./").unwrap_or(path));
    literal(&joined.display().to_string())
}

fn is_relative_path(argument: &str, folder: &Path) -> bool {
    !argument.is_empty()
        && !argument.starts_with(['-', '$', '~'])
        && Path::new(argument).is_relative()
        && folder.join(argument).exists()
}

/// Escapes a text so that servers.toml finds no variable in it.
fn literal(text: &str) -> String {
    text.replace("${", "$${")
}
