//! How a schema reads on one line.

use serde_json::{Map, Value};

use super::Schema;

/// The longest signature, in characters.
const MAX_SIGNATURE: usize = 400;

/// One parameter of a tool.
#[derive(Debug)]
pub struct Parameter<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its type, short.
    pub kind: String,
    /// Whether a call must have it.
    pub required: bool,
    /// What the schema says of it.
    pub description: &'a str,
}

impl Schema {
    /// The parameters as `(name, type, required, description)`, required ones first, then in the
    /// schema's own order.
    pub fn parameters(&self) -> Vec<Parameter<'_>> {
        let required: Vec<&str> = required(self.raw()).collect();
        let mut all: Vec<Parameter<'_>> = properties(self.raw())
            .into_iter()
            .flatten()
            .map(|(name, schema)| Parameter {
                name,
                kind: kind(schema, 0),
                required: required.contains(&name.as_str()),
                description: schema.get("description").and_then(Value::as_str).unwrap_or_default(),
            })
            .collect();
        all.sort_by_key(|parameter| !parameter.required);
        all
    }

    /// The tool on one line: `name(path: string, head?: integer)`.
    pub fn signature(&self, name: &str) -> String {
        let mut out = format!("{name}(");
        for (n, parameter) in self.parameters().iter().enumerate() {
            let optional = if parameter.required { "" } else { "?" };
            let part = format!("{}{optional}: {}", parameter.name, parameter.kind);
            if out.len() + part.len() > MAX_SIGNATURE {
                out.push_str(", ...");
                break;
            }
            if n > 0 {
                out.push_str(", ");
            }
            out.push_str(&part);
        }
        out.push(')');
        out
    }
}

pub(super) fn properties(schema: &Value) -> Option<&Map<String, Value>> {
    schema.get("properties")?.as_object()
}

pub(super) fn required(schema: &Value) -> impl Iterator<Item = &str> {
    schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

/// A schema's type in a few characters.
pub(super) fn kind(schema: &Value, depth: usize) -> String {
    if let Some(options) = schema.get("enum").and_then(Value::as_array) {
        let shown: Vec<String> = options.iter().take(8).map(Value::to_string).collect();
        let more = if options.len() > 8 { "|..." } else { "" };
        return format!("{}{more}", shown.join("|"));
    }
    if let Some(only) = schema.get("const") {
        return only.to_string();
    }
    for key in ["anyOf", "oneOf"] {
        if let Some(branches) = schema.get(key).and_then(Value::as_array)
            && depth < 2
        {
            let mut kinds: Vec<String> = branches.iter().map(|branch| kind(branch, depth + 1)).collect();
            kinds.dedup();
            return kinds.join("|");
        }
    }
    match schema.get("type") {
        Some(Value::String(name)) if name == "array" => match schema.get("items") {
            Some(items) if depth < 2 => format!("{}[]", kind(items, depth + 1)),
            _ => "array".into(),
        },
        Some(Value::String(name)) if name == "object" && depth < 1 => {
            match schema.get("properties").and_then(Value::as_object) {
                Some(properties) if !properties.is_empty() => {
                    let names: Vec<&str> = properties.keys().take(6).map(String::as_str).collect();
                    let more = if properties.len() > 6 { ", ..." } else { "" };
                    format!("{{{}{more}}}", names.join(", "))
                }
                _ => "object".into(),
            }
        }
        Some(Value::String(name)) => name.clone(),
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("|"),
        _ => "any".into(),
    }
}
