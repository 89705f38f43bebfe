//! How a schema reads on one line.

use serde_json::{Map, Value};

use super::{Schema, places::target};

/// The longest signature, in bytes.
const MAX_SIGNATURE: usize = 400;
/// The longest type of a parameter that has the types of its members, in bytes, and then their names.
const MAX_KIND: usize = 160;
/// How deep references, alternatives and arrays are followed for one type, and how many alternatives are named.
const MAX_NESTING: usize = 8;
const MAX_BRANCHES: usize = 8;

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
                kind: self.kind_of(schema),
                required: required.contains(&name.as_str()),
                description: schema.get("description").and_then(Value::as_str).unwrap_or_default(),
            })
            .collect();
        all.sort_by_key(|parameter| !parameter.required);
        all
    }

    /// The type of a parameter: the members of an object, or of the objects in an array, with their types where they are few.
    fn kind_of(&self, schema: &Value) -> String {
        let said = |members| kind_in(self.raw(), schema, members, 0);
        let typed = said(Members::Typed);
        if typed.len() <= MAX_KIND {
            return typed;
        }
        let named = said(Members::Named);
        if named.len() <= MAX_KIND { named } else { said(Members::Unsaid) }
    }

    /// The tool on one line: `name(path: string, head?: integer)`. Objects are written out one level deep.
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

/// A schema's type in a few characters; the members of an object by name only.
pub(super) fn kind(schema: &Value) -> String {
    kind_in(schema, schema, Members::Named, 0)
}

/// What is said of the members of an object.
#[derive(Clone, Copy, PartialEq)]
enum Members {
    /// Their names and types.
    Typed,
    /// Their names.
    Named,
    /// That it is an object.
    Unsaid,
}

/// The type of a part of the schema `root` in a few characters.
fn kind_in(root: &Value, schema: &Value, members: Members, depth: usize) -> String {
    if depth > MAX_NESTING {
        return "any".into();
    }
    let below = |schema: &Value| kind_in(root, schema, members, depth + 1);
    if let Some(options) = schema.get("enum").and_then(Value::as_array) {
        let shown: Vec<String> = options.iter().take(8).map(Value::to_string).collect();
        let more = if options.len() > 8 { "|..." } else { "" };
        return format!("{}{more}", shown.join("|"));
    }
    if let Some(only) = schema.get("const") {
        return only.to_string();
    }
    if let Some(found) = schema.get("$ref").and_then(Value::as_str).and_then(|found| target(root, found)) {
        return below(found);
    }
    for key in ["anyOf", "oneOf"] {
        if let Some(branches) = schema.get(key).and_then(Value::as_array) {
            let mut kinds: Vec<String> = branches.iter().take(MAX_BRANCHES).map(below).collect();
            kinds.dedup();
            if branches.len() > MAX_BRANCHES {
                kinds.push("...".into());
            }
            return kinds.join("|");
        }
    }
    match schema.get("type") {
        Some(Value::String(name)) if name == "array" => match schema.get("items") {
            Some(items) if items.is_object() => match below(items) {
                several if several.contains('|') => format!("({several})[]"),
                one => format!("{one}[]"),
            },
            _ => "array".into(),
        },
        Some(Value::String(name)) if name == "object" => object(root, schema, members, depth),
        Some(Value::String(name)) => name.clone(),
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("|"),
        _ if properties(schema).is_some() => object(root, schema, members, depth),
        _ => match schema.get("allOf").and_then(Value::as_array).map(Vec::as_slice) {
            Some([only]) => below(only),
            _ => "any".into(),
        },
    }
}

/// An object one level deep.
fn object(root: &Value, schema: &Value, members: Members, depth: usize) -> String {
    let Some(own) = properties(schema).filter(|own| !own.is_empty() && members != Members::Unsaid) else {
        return "object".into();
    };
    let needed: Vec<&str> = required(schema).collect();
    let most = if members == Members::Typed { 8 } else { 6 };
    let mut shown: Vec<String> = own
        .iter()
        .take(most)
        .map(|(name, schema)| match members {
            Members::Named | Members::Unsaid => name.clone(),
            Members::Typed => {
                let optional = if needed.contains(&name.as_str()) { "" } else { "?" };
                format!("{name}{optional}: {}", kind_in(root, schema, Members::Unsaid, depth + 1))
            }
        })
        .collect();
    if own.len() > most {
        shown.push("...".into());
    }
    format!("{{{}}}", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(properties: Value, expected: &str) {
        let schema = json!({
            "type": "object",
            "$defs": {
                "Cell": { "type": "object", "properties": { "row": { "type": "integer" } }, "required": ["row"] },
                "Color": { "enum": ["red", "blue"] },
                "Tree": { "type": "object", "properties": { "leaf": { "$ref": "#/$defs/Tree" } } },
                "Loop": { "$ref": "#/$defs/Loop" },
            },
            "properties": properties,
        });
        assert_eq!(Schema::new(schema).signature("t"), format!("t({expected})"));
    }

    #[test]
    fn objects_are_written_out_one_level_deep() {
        let edit = json!({
            "type": "object",
            "properties": { "oldText": { "type": "string" }, "newText": { "type": "string" } },
            "required": ["oldText", "newText"],
        });
        check(
            json!({ "edits": { "type": "array", "items": edit } }),
            "edits?: {oldText: string, newText: string}[]",
        );
        check(
            json!({ "at": { "type": "object", "properties": { "x": { "type": "number" }, "inner": edit } } }),
            "at?: {x?: number, inner?: object}",
        );
        check(
            json!({ "any": { "type": "object" }, "list": { "type": "array" } }),
            "any?: object, list?: array",
        );
    }

    #[test]
    fn references_are_followed() {
        check(json!({ "cell": { "$ref": "#/$defs/Cell" } }), "cell?: {row: integer}");
        check(
            json!({ "cells": { "type": "array", "items": { "$ref": "#/$defs/Cell" } } }),
            "cells?: {row: integer}[]",
        );
        check(json!({ "c": { "allOf": [{ "$ref": "#/$defs/Color" }] } }), "c?: \"red\"|\"blue\"");
        check(
            json!({ "c": { "anyOf": [{ "$ref": "#/$defs/Color" }, { "type": "null" }] } }),
            "c?: \"red\"|\"blue\"|null",
        );
        check(json!({ "tree": { "$ref": "#/$defs/Tree" } }), "tree?: {leaf?: object}");
        check(json!({ "loop": { "$ref": "#/$defs/Loop" } }), "loop?: any");
        check(json!({ "out": { "$ref": "https://example.com/schema" } }), "out?: any");
    }

    #[test]
    fn what_would_be_too_long_is_said_shorter() {
        let many: Map<String, Value> =
            (0..8).map(|n| (format!("a_long_name_{n}"), json!({ "type": "string" }))).collect();
        check(
            json!({ "o": { "type": "object", "properties": many } }),
            "o?: {a_long_name_0, a_long_name_1, a_long_name_2, a_long_name_3, a_long_name_4, a_long_name_5, ...}",
        );
    }
}
