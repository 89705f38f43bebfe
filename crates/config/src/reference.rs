//! The reference of servers.toml as a page of Markdown, made from its JSON Schema.

use std::fmt::Write;

use serde_json::{Map, Value};

use super::{explain::toml, schema, written_key};

/// What the tables of a map are called in headings, by the map's key.
const NAMES: [(&str, &str); 3] = [("tools", "TOOL"), ("endpoints", "TOOL"), ("steps", "STEP")];

/// Returns the reference of every key.
pub fn reference() -> String {
    let mut page = String::from(
        "# Reference of servers.toml\n\n\
         Every key with its value, its default and its meaning. `nonet schema --markdown` prints this page, and `nonet schema` the \
         [JSON Schema](servers.schema.json) behind it. [Configuration](configuration.md) says which page explains which table.\n",
    );
    let schema = schema();
    for (key, table) in properties(&schema) {
        section(&mut page, 2, key, table);
    }
    page
}

fn properties(schema: &Value) -> impl Iterator<Item = (&String, &Value)> {
    schema["properties"].as_object().into_iter().flat_map(Map::iter)
}

/// Writes the section of a table, of the tables of a map, or of an array of tables, and then of the tables
/// inside.
fn section(page: &mut String, level: usize, path: &str, schema: &Value) {
    let last = path.rsplit('.').next().unwrap_or(path);
    let (path, table, brackets) = match inside(schema) {
        Some(Inside::Map(table)) => {
            let name = NAMES.iter().find(|(key, _)| *key == last).map_or("NAME", |(_, name)| name);
            (format!("{path}.{name}"), table, ("[", "]"))
        }
        Some(Inside::Array(table)) => (path.to_string(), table, ("[[", "]]")),
        _ => (path.to_string(), schema, ("[", "]")),
    };
    let (open, close) = brackets;
    let _ = write!(page, "\n{} {open}{path}{close}\n\n", "#".repeat(level.min(4)));
    let about = [schema, table].map(|part| part["description"].as_str().unwrap_or_default());
    let about: Vec<String> = about.into_iter().filter(|text| !text.is_empty()).map(one_line).collect();
    match about.as_slice() {
        [one, other] if one != other => _ = write!(page, "{one} {other}\n\n"),
        [one, ..] => _ = write!(page, "{one}\n\n"),
        [] => {}
    }
    page.push_str("| key | value | default | meaning |\n|---|---|---|---|\n");
    let mut tables = Vec::new();
    for (key, value) in properties(table) {
        let inner = format!("{path}.{}", written_key(key));
        let is_required =
            table["required"].as_array().is_some_and(|required| required.iter().any(|name| name == key));
        let default = match value.get("default") {
            _ if is_required => "required".into(),
            Some(default) => code(&toml(default)),
            None => String::new(),
        };
        let _ = writeln!(
            page,
            "| `{}` | {} | {default} | {} |",
            written_key(key),
            value_words(value, &inner),
            cell(&one_line(value["description"].as_str().unwrap_or_default()))
        );
        if inside(value).is_some() {
            tables.push((inner, value));
        }
    }
    for (inner, value) in tables {
        section(page, level + 1, &inner, value);
    }
}

/// A table inside of a key.
enum Inside<'a> {
    /// The key itself.
    Table,
    /// Each member of the key.
    Map(&'a Value),
    /// Each element of the key.
    Array(&'a Value),
}

fn inside(schema: &Value) -> Option<Inside<'_>> {
    if schema["properties"].is_object() {
        return Some(Inside::Table);
    }
    let has_keys = |part: &&Value| part["properties"].is_object();
    let map = Some(&schema["additionalProperties"]).filter(has_keys).map(Inside::Map);
    map.or_else(|| Some(&schema["items"]).filter(has_keys).map(Inside::Array))
}

/// Says what a key takes.
fn value_words(schema: &Value, path: &str) -> String {
    if let Some(words) = schema["enum"].as_array() {
        return words.iter().map(|word| code(&toml(word))).collect::<Vec<_>>().join(", ");
    }
    let kinds: Vec<&str> = match &schema["type"] {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => vec!["value"],
    };
    let words = kinds.iter().map(|kind| match *kind {
        "boolean" => "`true` or `false`".to_string(),
        "integer" | "number" => range(schema),
        "array" => match inside(schema) {
            Some(_) => format!("tables `[[{path}]]`"),
            None => "array".into(),
        },
        "object" => match inside(schema) {
            Some(Inside::Map(_)) => "tables, below".into(),
            Some(_) => "table, below".into(),
            None => "table".into(),
        },
        "string" => match schema["format"].as_str() {
            Some("time-span") => "time".into(),
            _ => "string".into(),
        },
        other => other.into(),
    });
    let words = words.collect::<Vec<_>>().join(" or ");
    let example = schema["examples"].get(0).filter(|_| inside(schema).is_none() || kinds.contains(&"string"));
    match example {
        Some(example) if schema.get("default").is_none_or(|default| default != example) => {
            format!("{words}, such as {}", code(&cell(&toml(example))))
        }
        _ => words,
    }
}

/// Says which numbers a key takes.
fn range(schema: &Value) -> String {
    let bound = |key: &str| schema[key].as_u64().map(thousands);
    match (bound("minimum"), bound("maximum")) {
        (Some(least), Some(most)) => format!("{least} to {most}"),
        (Some(least), None) => format!("{least} or more"),
        (None, Some(most)) => format!("up to {most}"),
        (None, None) => "number".into(),
    }
}

fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn code(text: &str) -> String {
    format!("`{text}`")
}

fn one_line(text: impl AsRef<str>) -> String {
    text.as_ref().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Escapes what would end a cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
