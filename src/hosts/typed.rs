//! A server as a user types it, in a command or in a form: words, pairs and addresses become the keys of servers.toml.

use std::path::Path;

use serde_json::{Map, Value, json};

/// A server as it was typed. One of `url`, `openapi` and `command` is there.
#[derive(Clone, Copy, Debug, Default)]
pub struct TypedServer<'a> {
    /// Its purpose.
    pub description: Option<&'a str>,
    /// The address of a server over HTTP.
    pub url: Option<&'a str>,
    /// How the address is spoken to.
    pub transport: Option<&'a str>,
    /// The document of a REST service: a file or an address.
    pub openapi: Option<&'a str>,
    /// The address of the REST service.
    pub base_url: Option<&'a str>,
    /// The program and its arguments.
    pub command: &'a [String],
    /// `NAME=value`.
    pub env: &'a [String],
    /// `Name: value`.
    pub headers: &'a [String],
    /// Words for search and for profiles.
    pub tags: &'a [String],
}

/// What faults call the places where pairs are typed.
#[derive(Clone, Copy, Debug)]
pub struct TypedLabels {
    /// That of variables.
    pub env: &'static str,
    /// That of headers.
    pub headers: &'static str,
}

impl TypedServer<'_> {
    /// The entry for servers.toml, with relative paths of this folder made absolute. A fault holds no value of a pair.
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

/// Reads names and values. The values may be secrets, so no message contains them.
fn pairs(
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

/// A path as it is found from every folder. Addresses, `~` and variables stay.
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

/// A text in which servers.toml finds no variable.
fn literal(text: &str) -> String {
    text.replace("${", "$${")
}
