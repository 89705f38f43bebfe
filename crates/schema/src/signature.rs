//! How a schema reads on one line.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::{
    Schema, limits,
    repair::{LastResort, Repair},
};

/// The longest signature, in bytes.
const MAX_SIGNATURE: usize = 400;
/// The longest parameter type with member types, then with member names only, in bytes.
const MAX_KIND: usize = 160;
/// How deep references, alternatives and arrays are followed for one type; the most alternatives shown.
const MAX_NESTING: usize = 8;
const MAX_BRANCHES: usize = 8;

/// One parameter of a tool, as shown to models.
#[derive(Debug)]
pub struct Parameter<'a> {
    /// The parameter's name.
    pub name: &'a str,
    /// The parameter's type, short.
    pub kind: String,
    /// Whether the parameter is required.
    pub required: bool,
    /// The schema's description.
    pub description: &'a str,
}

impl Schema {
    /// Returns the parameters, required ones first, otherwise in the schema's order.
    pub fn parameters(&self) -> Vec<Parameter<'_>> {
        let (own, required) = members_of(self.raw(), self.raw());
        let mut all: Vec<Parameter<'_>> = own
            .into_iter()
            .map(|(name, schema)| Parameter {
                name,
                kind: self.kind_of(schema),
                required: required.contains(&name),
                description: schema.get("description").and_then(Value::as_str).unwrap_or_default(),
            })
            .collect();
        all.sort_by_key(|parameter| !parameter.required);
        all
    }

    /// Returns a parameter's type: the members of an object, or of the objects in an array, with member types
    /// if they are few.
    fn kind_of(&self, schema: &Value) -> String {
        let said = |members| kind_in(self.raw(), schema, members, 0);
        let typed = said(Members::Typed);
        if typed.len() <= MAX_KIND {
            return typed;
        }
        let named = said(Members::Named);
        if named.len() <= MAX_KIND { named } else { said(Members::Unsaid) }
    }

    /// Returns the tool on one line: `name(path: string, head?: integer)`. Objects are expanded one level
    /// deep.
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

/// Returns the members of an object and the names of the required ones, from the schema itself, its
/// references and its `allOf`.
fn members_of<'a>(root: &'a Value, schema: &'a Value) -> (Vec<(&'a str, &'a Value)>, Vec<&'a str>) {
    let views = Repair::new(root, LastResort::None).views(schema);
    let mut own: Vec<(&str, &Value)> = Vec::new();
    let mut known: HashSet<&str> = HashSet::new();
    for (name, schema) in views.iter().filter_map(|view| properties(view)).flatten() {
        if known.insert(name) {
            own.push((name, schema));
        }
    }
    (own, views.iter().flat_map(|view| required(view)).collect())
}

/// Returns a schema's type in a few characters, with objects' members by name only.
pub(super) fn kind(schema: &Value) -> String {
    kind_in(schema, schema, Members::Named, 0)
}

/// How to show the members of an object.
#[derive(Clone, Copy, PartialEq)]
enum Members {
    /// With names and types.
    Typed,
    Named,
    /// Not at all.
    Unsaid,
}

/// Returns the type of a subschema of `root` in a few characters.
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
    if let Some(found) =
        schema.get("$ref").and_then(Value::as_str).and_then(|found| limits::local(root, found))
    {
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
        Some(Value::String(name)) if name == "array" && tuple(schema).is_some() => {
            let items = tuple(schema).into_iter().flatten();
            let mut kinds: Vec<String> = items.take(MAX_BRANCHES + 1).map(below).collect();
            if kinds.len() > MAX_BRANCHES || schema.get("items").is_some_and(Value::is_object) {
                kinds.truncate(MAX_BRANCHES);
                kinds.push("...".into());
            }
            format!("[{}]", kinds.join(", "))
        }
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
            Some(_) if !members_of(root, schema).0.is_empty() => object(root, schema, members, depth),
            _ => "any".into(),
        },
    }
}

/// Returns the item schemas of a tuple.
fn tuple(schema: &Value) -> Option<&Vec<Value>> {
    let places = schema.get("prefixItems").or_else(|| schema.get("items"))?.as_array()?;
    (!places.is_empty()).then_some(places)
}

/// Renders an object, expanded one level deep.
fn object(root: &Value, schema: &Value, members: Members, depth: usize) -> String {
    if members == Members::Unsaid {
        return "object".into();
    }
    let (own, needed) = members_of(root, schema);
    if own.is_empty() {
        let others = schema.get("additionalProperties").and_then(Value::as_object);
        return match others.filter(|others| !others.is_empty()) {
            Some(_) => {
                let others = kind_in(root, &schema["additionalProperties"], Members::Unsaid, depth + 1);
                format!("{{[key]: {others}}}")
            }
            None => "object".into(),
        };
    }
    let most = if members == Members::Typed { 8 } else { 6 };
    let mut shown: Vec<String> = own
        .iter()
        .take(most)
        .map(|(name, schema)| match members {
            Members::Named | Members::Unsaid => (*name).to_string(),
            Members::Typed => {
                let optional = if needed.contains(name) { "" } else { "?" };
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
    fn the_params_may_be_said_elsewhere() {
        let check = |schema: Value, expected: &str| {
            assert_eq!(Schema::new(schema.clone()).signature("t"), expected, "{schema}");
        };
        let a = json!({ "type": "object", "properties": { "a": { "type": "string" } }, "required": ["a"] });
        let b = json!({ "type": "object", "properties": { "b": { "type": "integer" } } });
        check(json!({ "$defs": { "A": a }, "$ref": "#/$defs/A" }), "t(a: string)");
        check(json!({ "type": "object", "allOf": [a] }), "t(a: string)");
        check(
            json!({ "type": "object", "allOf": [a], "properties": b["properties"] }),
            "t(a: string, b?: integer)",
        );
        check(
            json!({ "properties": { "m": a, "n": { "$ref": "#/properties/m" } } }),
            "t(m?: {a: string}, n?: {a: string})",
        );
        check(json!({ "properties": { "n": { "allOf": [a, b] } } }), "t(n?: {b?: integer, a: string})");
    }

    #[test]
    fn maps_and_tuples_are_said() {
        check(
            json!({ "m": { "type": "object", "additionalProperties": { "type": "integer" } } }),
            "m?: {[key]: integer}",
        );
        check(json!({ "m": { "type": "object", "additionalProperties": true } }), "m?: object");
        let places = json!([{ "type": "string" }, { "type": "integer" }]);
        check(json!({ "p": { "type": "array", "prefixItems": places } }), "p?: [string, integer]");
        check(json!({ "p": { "type": "array", "items": places } }), "p?: [string, integer]");
        check(
            json!({ "p": { "type": "array", "prefixItems": places, "items": { "type": "string" } } }),
            "p?: [string, integer, ...]",
        );
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
