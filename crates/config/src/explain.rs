//! Explains the JSON Schema's errors in plain words, with a line and a remedy.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use jsonschema::{ValidationError, Validator, error::ValidationErrorKind as Kind};
use nonet_text::name::nearest;
use parking_lot::Mutex;
use serde_json::Value;

use super::{
    ConfigFault,
    read::{ConfigSource, FaultSide, join, written_key},
    schema::{FORMATS, SECTIONS, schema_of},
};

/// The message for an unknown key; `check` relies on it too.
pub(super) const UNKNOWN_KEY: &str = "unknown key";
/// How many choices a remedy lists.
const MOST_CHOICES: usize = 16;

/// Returns every fault that the schema finds.
pub(super) fn check(written: &ConfigSource) -> Vec<ConfigFault> {
    let checked = checked(&written.value);
    let (schema, validator) = &*checked;
    // A value of the wrong type breaks other rules too; one fault is enough.
    let mut told = HashSet::new();
    validator
        .iter_errors(&written.value)
        .filter(|error| !written.is_unknown(error.instance_path().as_str()))
        .flat_map(|error| explain(&error, schema, written))
        .filter(|fault| told.insert((fault.line, fault.column, fault.key.clone())))
        .collect()
}

/// A schema and its validator.
type Checked = Arc<(Value, Validator)>;

/// Returns the schema for the tables that a file has, and its validator.
fn checked(file: &Value) -> Checked {
    /// By the tables, as the positions in [`SECTIONS`].
    static SCHEMAS: Mutex<BTreeMap<Vec<usize>, Checked>> = Mutex::new(BTreeMap::new());
    let has = |name: &str| file.get(name).is_some();
    let tables = SECTIONS.iter().enumerate().filter(|(_, (name, _))| has(name)).map(|(at, _)| at).collect();
    let mut schemas = SCHEMAS.lock();
    let schema = schemas.entry(tables).or_insert_with(|| {
        let schema = schema_of(has);
        let validator = validator(&schema).expect("the schema of our own types is valid");
        Arc::new((schema, validator))
    });
    schema.clone()
}

/// Returns the validator of a schema with our own formats.
fn validator(schema: &Value) -> Result<Validator, ValidationError<'static>> {
    let options = jsonschema::options().should_validate_formats(true).offline();
    let options = FORMATS.into_iter().fold(options, |options, (name, check)| {
        options.with_format(name, move |text: &str| check(text).is_ok())
    });
    options.build(schema)
}

/// Explains one error of the validator in plain words; as several faults if it names several keys.
fn explain(error: &ValidationError, schema: &Value, written: &ConfigSource) -> Vec<ConfigFault> {
    let pointer = error.instance_path().as_str();
    let keyword = error.schema_path().as_str();
    let node = schema.pointer(keyword.rsplit_once('/').map_or("", |(node, _)| node)).unwrap_or(&Value::Null);
    let at = |place, message: String, remedy: String| vec![written.fault(pointer, place, message, remedy)];
    match error.kind() {
        Kind::AdditionalProperties { unexpected } => unexpected
            .iter()
            .map(|key| {
                let pointer = join(pointer, key);
                let mut fault =
                    written.fault(&pointer, FaultSide::Key, UNKNOWN_KEY.into(), known_keys(key, node));
                // The rest of `[gateway]` is used without it.
                if pointer.starts_with("/gateway/") {
                    fault.entry = Some(fault.key.clone());
                }
                fault
            })
            .collect(),
        Kind::PropertyNames { error } => {
            let name = error.instance().as_str().unwrap_or_default();
            let why = format_fault(error.kind(), name).unwrap_or_else(|| "is not a valid key".into());
            let message = format!("{} {why}", quoted(name));
            vec![written.fault(&join(pointer, name), FaultSide::Key, message, "Choose another name.".into())]
        }
        Kind::Type { .. } => {
            let message = format!("expected {}, found {}", expected(node), found(error.instance()));
            at(FaultSide::Value, message, like(pointer, node, written))
        }
        Kind::Format { .. } => {
            let text = error.instance().as_str().unwrap_or_default();
            let why = format_fault(error.kind(), text).unwrap_or_else(|| "is not well-formed".into());
            let shown = if written.is_showable(pointer) { quoted(text) } else { "this value".into() };
            at(FaultSide::Value, format!("{shown} {why}"), like(pointer, node, written))
        }
        Kind::Enum { options } => {
            let options: Vec<_> =
                options.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            let text = error.instance().as_str().unwrap_or_default();
            let shown = if written.is_showable(pointer) { quoted(text) } else { "this value".into() };
            at(FaultSide::Value, format!("{shown} is not a valid choice"), choose(text, &options))
        }
        Kind::Required { property } => {
            let key = property.as_str().unwrap_or_default();
            let remedy = like(&join(pointer, key), &node["properties"][key], written);
            at(FaultSide::Key, format!("`{key}` is missing"), remedy)
        }
        Kind::Minimum { limit } => {
            at(FaultSide::Value, format!("must be at least {limit}"), like(pointer, node, written))
        }
        Kind::Maximum { limit } => {
            at(FaultSide::Value, format!("must be at most {limit}"), like(pointer, node, written))
        }
        Kind::MinLength { .. } => {
            at(FaultSide::Value, "must not be empty".into(), like(pointer, node, written))
        }
        _ => {
            let message = error.masked().to_string();
            at(FaultSide::Value, message, "Run `nonet schema` for the expected form.".into())
        }
    }
}

/// Explains why a text does not have the required format.
fn format_fault(kind: &Kind, text: &str) -> Option<String> {
    let Kind::Format { format } = kind else { return None };
    let (_, check) = FORMATS.iter().find(|(name, _)| name == format)?;
    check(text).err()
}

fn known_keys(key: &str, node: &Value) -> String {
    let known: Vec<_> =
        node["properties"].as_object().into_iter().flatten().map(|(key, _)| key.as_str()).collect();
    choose(key, &known)
}

/// Returns a remedy for an invalid choice: the nearest one, or else all.
pub(super) fn choose(given: &str, choices: &[&str]) -> String {
    match nearest(given, choices.iter().copied(), 1).as_slice() {
        [near] => format!("Did you mean {}?", quoted(near)),
        _ if choices.is_empty() => "None is defined yet.".into(),
        _ => {
            let shown: Vec<_> = choices.iter().take(MOST_CHOICES).map(|choice| quoted(choice)).collect();
            let rest = if choices.len() > MOST_CHOICES { " and more" } else { "" };
            format!("Choose from {}{rest}.", shown.join(", "))
        }
    }
}

/// Returns an example of a value: the schema's, or one of the right type.
fn like(pointer: &str, node: &Value, written: &ConfigSource) -> String {
    let (parent, key) = pointer.rsplit_once('/').unwrap_or_default();
    if is_table(&node["items"]) {
        return format!("Write each entry under its own header: `[[{}]]`.", written.key(pointer));
    }
    if is_table(&node["additionalProperties"]) {
        return format!("Write each entry under its own header: `[{}.NAME]`.", written.key(pointer));
    }
    if is_table(node) {
        return format!("Write its keys under a header: `[{}]`.", written.key(pointer));
    }
    let element = written.value.pointer(parent).is_some_and(Value::is_array);
    let key = written_key(&key.replace("~1", "/").replace("~0", "~"));
    let line = |value: &Value| match element {
        true => format!("`{}`", toml(value)),
        false => format!("`{key} = {}`", toml(value)),
    };
    match node["enum"].as_array() {
        Some(choices) => format!("Write {}.", choices.iter().map(line).collect::<Vec<_>>().join(" or ")),
        None => format!("For example: {}.", line(&example(node))),
    }
}

/// Whether a schema is of a table with known keys.
fn is_table(node: &Value) -> bool {
    node.get("properties").is_some()
}

/// Returns a value that fits a schema.
fn example(node: &Value) -> Value {
    let given = [&node["examples"][0], &node["default"], &node["enum"][0]];
    let given = given.into_iter().find(|value| !value.is_null());
    given.cloned().unwrap_or_else(|| match node["type"].as_str() {
        Some("integer" | "number") => node.get("minimum").cloned().unwrap_or_else(|| 1.into()),
        Some("boolean") => true.into(),
        Some("array") => vec![example(&node["items"])].into(),
        Some("object") => match &node["additionalProperties"] {
            inner @ Value::Object(_) => serde_json::json!({ "name": example(inner) }),
            _ => serde_json::json!({ "name": "value" }),
        },
        _ => "text".into(),
    })
}

/// Formats a value as TOML on one line.
pub(super) fn toml(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("[{}]", items.iter().map(toml).collect::<Vec<_>>().join(", ")),
        Value::Object(members) if members.is_empty() => "{}".into(),
        Value::Object(members) => {
            let member = |(key, value): (&String, &Value)| format!("{} = {}", written_key(key), toml(value));
            format!("{{ {} }}", members.iter().map(member).collect::<Vec<_>>().join(", "))
        }
        plain => plain.to_string(),
    }
}

/// Describes what a schema expects.
fn expected(node: &Value) -> String {
    let words = |name: &Value| match name.as_str() {
        Some("string") => "a string in quotes",
        Some("integer") => "a whole number",
        Some("number") => "a number",
        Some("boolean") => "`true` or `false`",
        Some("array") => "a list",
        Some("object") => "a table",
        _ => "another kind of value",
    };
    match &node["type"] {
        Value::Array(names) => names.iter().map(words).collect::<Vec<_>>().join(" or "),
        name => words(name).into(),
    }
}

/// Describes the type of a value, without the value itself.
fn found(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "`true` or `false`",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "a table",
    }
}

/// Quotes a text from the file, truncated to one line.
pub(super) fn quoted(text: &str) -> String {
    let mut shown: String = text.chars().take(60).flat_map(char::escape_debug).collect();
    if text.chars().nth(60).is_some() {
        shown.push('…');
    }
    format!("`{shown}`")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Collects the schema's nodes with their pointers.
    fn nodes<'s>(node: &'s Value, pointer: &str, found: &mut Vec<(String, &'s Value)>) {
        for (key, inner) in node["properties"].as_object().into_iter().flatten() {
            let pointer = join(pointer, key);
            found.push((pointer.clone(), inner));
            nodes(inner, &pointer, found);
        }
        for key in ["additionalProperties", "items"] {
            if node[key].is_object() {
                let pointer = join(pointer, key);
                found.push((pointer.clone(), &node[key]));
                nodes(&node[key], &pointer, found);
            }
        }
    }

    #[test]
    fn no_remedy_is_itself_a_fault() {
        let schema = schema_of(|_| true);
        let mut found = Vec::new();
        nodes(&schema, "", &mut found);
        // Tables with known keys have a remedy of their own. The environment gives a variable its value.
        let faulty: Vec<String> = found
            .iter()
            .filter(|(_, node)| {
                ![*node, &node["items"], &node["additionalProperties"]].into_iter().any(is_table)
            })
            .filter(|(_, node)| !example(node).to_string().contains("${"))
            .filter_map(|(pointer, node)| {
                let example = example(node);
                let fault =
                    validator(node).expect("a part of the schema").iter_errors(&example).next()?.to_string();
                Some(format!("{pointer}: {example}: {fault}"))
            })
            .collect();
        assert!(found.len() > 100 && faulty.is_empty(), "{}", faulty.join("\n"));
    }
}
