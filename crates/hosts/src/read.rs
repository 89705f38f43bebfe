//! Reads hosts' files: detects the format and finds the tables of servers.

use std::{borrow::Cow, path::Path};

use serde_json::{Map, Value};

use super::{FileFormat, HostFault, YamlServers, json, text::Text, toml, yaml};

/// The keys of hosts' tables of servers.
pub(super) const TABLES: [&str; 4] = ["mcpServers", "servers", "context_servers", "mcp_servers"];
/// What to do about a syntax error.
pub(super) const KEEP_OFF: &str = "Fix the syntax; nothing was changed.";

/// Detects a file's format. TOML begins with a key, a `#` or a `[`, and so may YAML.
pub(super) fn format_of(text: &str, file: &Path) -> FileFormat {
    if file.extension().is_some_and(|extension| extension == "yaml" || extension == "yml") {
        return FileFormat::Yaml(YamlServers::Named);
    }
    let start = text.trim_start();
    if start.is_empty() || start.starts_with(['{', '/']) { FileFormat::Json } else { FileFormat::Toml }
}

/// Parses a text as JSON; an empty text is an empty object.
pub(super) fn value(text: &str, format: FileFormat, file: &Path) -> Result<Value, HostFault> {
    match format {
        FileFormat::Toml => Ok(toml::value(toml::parse(text, file)?.as_item())),
        FileFormat::Yaml(_) => yaml::value(text, file),
        FileFormat::Json => json::value(text, file),
    }
}

/// Parses a file's bytes in whatever format they are.
pub(super) fn content(bytes: &[u8], file: &Path) -> Result<Value, HostFault> {
    let text = Text::new(Some(bytes), file)?;
    value(text.plain(), format_of(text.plain(), file), file)
}

/// A table of servers in a file.
pub(super) struct FoundTable<'a> {
    /// The path of the table, such as `mcpServers`.
    pub table: String,
    /// The entries, by the host's names.
    pub entries: Cow<'a, Map<String, Value>>,
}

/// Returns the name of an item in a list of servers.
pub(super) fn name_of(item: &Value) -> Option<&str> {
    item.get("name")?.as_str()
}

/// Converts a list of servers to a map by name.
pub(super) fn named(items: &[Value]) -> Map<String, Value> {
    items.iter().filter_map(|item| Some((name_of(item)?.to_string(), item.clone()))).collect()
}

/// Returns the entries that `is_server` accepts from a mixed table; none if there are none.
fn among<'a>(table: Option<&'a Value>, is_server: fn(&Value) -> bool) -> Option<Cow<'a, Map<String, Value>>> {
    let entries = table?.as_object()?;
    let servers = entries.iter().filter(|(_, value)| is_server(value));
    let servers: Map<_, _> = servers.map(|(name, value)| (name.clone(), value.clone())).collect();
    (!servers.is_empty()).then_some(Cow::Owned(servers))
}

/// Returns all tables of servers in a file, and the number of servers skipped because they belong to projects
/// other than the one in `folder`.
pub(super) fn servers<'a>(root: &'a Value, folder: &Path) -> (Vec<FoundTable<'a>>, usize) {
    let mut found = Vec::new();
    let mut passed_over = 0;
    let mut take = |table: String, value: Option<&'a Value>| {
        let entries = match value {
            Some(Value::Object(entries)) => Some(Cow::Borrowed(entries)),
            Some(Value::Array(items)) => Some(Cow::Owned(named(items))),
            _ => None,
        };
        found.extend(entries.map(|entries| FoundTable { table, entries }));
    };
    for key in TABLES {
        take(key.into(), root.get(key));
    }
    // VS Code's settings.json, from before mcp.json existed.
    take("mcp.servers".into(), root.get("mcp").and_then(|mcp| mcp.get("servers")));
    // Claude Code keeps a project's servers under the project's path.
    for (path, project) in root.get("projects").and_then(Value::as_object).into_iter().flatten() {
        let servers = project.get("mcpServers");
        if Path::new(path) == folder {
            take(format!("projects.{path}.mcpServers"), servers);
        } else {
            passed_over += servers.and_then(Value::as_object).map_or(0, Map::len);
        }
    }
    // Entries of Goose and opencode without a program or an address are not servers.
    let of_goose = |value: &Value| ["cmd", "uri"].iter().any(|key| value.get(key).is_some());
    let of_opencode =
        |value: &Value| value.get("command").is_some_and(Value::is_array) || value.get("url").is_some();
    for (key, is_server) in [("extensions", of_goose as fn(&Value) -> bool), ("mcp", of_opencode)] {
        let entries = among(root.get(key), is_server);
        found.extend(entries.map(|entries| FoundTable { table: key.into(), entries }));
    }
    // A bare table, as in servers' READMEs.
    let looks_like_a_server =
        |value: &Value| ["command", "url", "serverUrl", "httpUrl"].iter().any(|key| value.get(key).is_some());
    if found.is_empty()
        && let Some(entries) = root.as_object()
        && !entries.is_empty()
        && entries.values().all(looks_like_a_server)
    {
        found.push(FoundTable { table: String::new(), entries: Cow::Borrowed(entries) });
    }
    (found, passed_over)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &[&str]) {
        let root = value(text, format_of(text, Path::new("f")), Path::new("f")).unwrap();
        let (found, _) = servers(&root, Path::new("/here"));
        let found: Vec<_> = found
            .iter()
            .map(|servers| {
                let names: Vec<_> = servers.entries.keys().map(String::as_str).collect();
                format!("{}: {}", servers.table, names.join(" "))
            })
            .collect();
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn servers_are_found_where_hosts_put_them() {
        check("", &[]);
        check("{}", &[]);
        check(r#"{"mcpServers": {"a": {}, "b": {}}}"#, &["mcpServers: a b"]);
        check("// c\n{\"servers\": {\"a\": {},}, /* d */ \"inputs\": []}", &["servers: a"]);
        check(r#"{"theme": "x", "context_servers": {"z": {}}}"#, &["context_servers: z"]);
        check(r#"{"a": 1, "a": {"b": 1, "b": 2}, "servers": {"a": {}}}"#, &["servers: a"]);
        check(r#"{"mcp": {"servers": {"old": {}}}}"#, &["mcp.servers: old"]);
        check(r#"{"mcp": {"a": {"command": ["x"]}, "b": {"url": "y"}, "timeout": 5}}"#, &["mcp: a b"]);
        check(r#"{"extensions": {"a": {"cmd": "x"}, "memory": {"type": "builtin"}}}"#, &["extensions: a"]);
        check(r#"{"extensions": {"disabled": ["x"]}, "mcp": {"allowed": ["y"]}}"#, &[]);
        check("[mcp_servers.a]\ncommand = 'x'\n", &["mcp_servers: a"]);
        check("model = 'm'\nmcp_servers.a.command = 'x'\n", &["mcp_servers: a"]);
        check(r#"{"git": {"command": "x"}, "docs": {"url": "y"}}"#, &[": git docs"]);
        check(
            r#"{"projects": {"/here": {"mcpServers": {"p": {}}}, "/there": {"mcpServers": {"q": {}}}}}"#,
            &["projects./here.mcpServers: p"],
        );
    }

    #[test]
    fn faults_have_their_place() {
        let told = |text: &str| {
            value(text, format_of(text, Path::new("f")), Path::new("f")).unwrap_err().to_string()
        };
        for (text, place) in [
            ("{\n  \"a\": \n}", "f:3:1: this is not JSON: unexpected close brace"),
            ("{\"a\": 1} x", "f:1:10: this is not JSON"),
            ("[a\nb = 1", "f:1:"),
            ("{\"servers\": {\"é\": 1, \"é\": 2}}", "f:1:22: duplicate key `é`"),
            ("// only\n[1]", "f:2:1: expected an object"),
            ("/* a */ 3", "f:1:9: expected an object"),
            ("{'a': 1}", "f:1:2: this is not JSON"),
        ] {
            assert!(told(text).starts_with(place), "{text}: {}", told(text));
        }
        assert!(told(&format!("{{\"a\":{}", "[".repeat(5000))).contains("nesting"));
    }
}
