//! A tool's JSON Schema: what it accepts, how it reads on one line, and what a call that does not
//! fit may have meant.
//!
//! The strict reading comes first. Only when it fails, and exactly one other reading fits, is that
//! one taken, and the caller is told what was repaired. This room knows JSON and JSON Schema alone.

use std::sync::OnceLock;

use jsonschema::Validator;
use serde_json::{Map, Value, json};

/// Names that models wrap arguments in.
const WRAPPERS: [&str; 7] = ["params", "arguments", "args", "input", "parameters", "tool_input", "kwargs"];
/// How many faults of one params object are told.
const MAX_FAULTS: usize = 8;
/// The longest message about one fault, in characters.
const MAX_MESSAGE: usize = 240;
/// The longest signature, in characters.
const MAX_SIGNATURE: usize = 400;

/// An input schema, compiled when it is first needed.
#[derive(Debug)]
pub struct Schema {
    raw: Value,
    compiled: OnceLock<Result<Validator, String>>,
}

/// Params as they go to the server.
#[derive(Debug, PartialEq)]
pub struct Reading {
    /// The params object.
    pub params: Map<String, Value>,
    /// What was changed to make it fit, each in a few words; empty for the strict reading.
    pub repaired: Vec<String>,
}

/// Why params do not fit.
#[derive(Debug, PartialEq)]
pub struct Misfit {
    /// Each with its path, what was found and what was expected.
    pub faults: Vec<String>,
    /// A params object of the right shape: what was given, as far as it can be kept, with
    /// `<type>` placeholders for what is missing.
    pub example: Map<String, Value>,
    /// Whether `example` fits as it stands.
    pub example_fits: bool,
}

impl Schema {
    /// Takes a schema as a server gave it. Anything but an object counts as "any object".
    pub fn new(raw: Value) -> Self {
        Self { raw, compiled: OnceLock::new() }
    }

    /// The schema, verbatim.
    pub fn raw(&self) -> &Value {
        &self.raw
    }

    /// Why the schema cannot be used to check params, if so. Such a tool stays callable; its params
    /// go through unchecked.
    pub fn broken(&self) -> Option<&str> {
        self.validator().as_ref().err().map(String::as_str)
    }

    /// Compiled once. A reference to another document is never fetched: it makes the schema broken.
    fn validator(&self) -> &Result<Validator, String> {
        self.compiled.get_or_init(|| match &self.raw {
            Value::Object(_) => jsonschema::validator_for(&self.raw).map_err(|error| error.to_string()),
            _ => Err("the schema is not an object".into()),
        })
    }

    /// Whether `value` fits.
    pub fn accepts(&self, value: &Value) -> bool {
        self.validator().as_ref().map_or(true, |validator| validator.is_valid(value))
    }

    /// Reads what a caller sent as params.
    pub fn read(&self, given: Value) -> Result<Reading, Misfit> {
        let given = match given {
            Value::Null => Value::Object(Map::new()),
            other => other,
        };
        if let Value::Object(params) = &given
            && self.accepts(&given)
        {
            return Ok(Reading { params: params.clone(), repaired: Vec::new() });
        }
        let mut fitting: Vec<Reading> = Vec::new();
        for (reading, repaired) in self.readings(&given) {
            if self.accepts(&reading)
                && let Value::Object(params) = reading
                && !fitting.iter().any(|other| other.params == params)
            {
                fitting.push(Reading { params, repaired });
            }
        }
        if fitting.len() == 1 {
            return Ok(fitting.remove(0));
        }
        Err(self.misfit(&given))
    }

    /// Other ways to read `given`, the least changed first.
    fn readings(&self, given: &Value) -> Vec<(Value, Vec<String>)> {
        let mut bases = vec![(given.clone(), Vec::new())];
        let mut at = 0;
        while at < bases.len() && bases.len() < 8 {
            let (base, told) = bases[at].clone();
            at += 1;
            match &base {
                Value::String(text) => {
                    if let Ok(inner @ Value::Object(_)) = serde_json::from_str(text) {
                        bases.push((inner, with(&told, "params were JSON in a string")));
                    }
                }
                Value::Object(map) => {
                    for wrapper in WRAPPERS {
                        if let Some(inner) = map.get(wrapper)
                            && map.len() == 1
                        {
                            let note = format!("params were wrapped in `{wrapper}`");
                            bases.push((inner.clone(), with(&told, &note)));
                        }
                    }
                }
                _ => {}
            }
        }
        let mut readings = Vec::new();
        for (base, told) in bases {
            let Value::Object(map) = base else { continue };
            let (renamed, rename_notes) = self.rename(&map);
            for (map, notes) in [(map, Vec::new()), (renamed, rename_notes)] {
                let told: Vec<String> = told.iter().cloned().chain(notes).collect();
                let (coerced, coerce_notes) = self.coerce(&map);
                let all = told.iter().cloned().chain(coerce_notes).collect();
                readings.push((Value::Object(map), told));
                readings.push((Value::Object(coerced), all));
            }
        }
        readings
    }

    /// Whether `value` fits a part of this schema, whose references may lead to its definitions. A
    /// part that cannot be used fits nothing.
    fn fits_part(&self, part: &Value, value: &Value) -> bool {
        let mut part = part.clone();
        if let Some(fields) = part.as_object_mut() {
            for key in ["$defs", "definitions"] {
                if let Some(definitions) = self.raw.get(key) {
                    fields.entry(key).or_insert_with(|| definitions.clone());
                }
            }
        }
        jsonschema::validator_for(&part).is_ok_and(|validator| validator.is_valid(value))
    }

    fn properties(&self) -> Option<&Map<String, Value>> {
        self.raw.get("properties")?.as_object()
    }

    fn property(&self, name: &str) -> Option<&Value> {
        self.properties()?.get(name)
    }

    fn required(&self) -> impl Iterator<Item = &str> {
        self.raw.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
    }

    /// Keys that differ from a property's name in case or separators alone get that name.
    fn rename(&self, map: &Map<String, Value>) -> (Map<String, Value>, Vec<String>) {
        let Some(properties) = self.properties() else { return (map.clone(), Vec::new()) };
        let mut out = Map::new();
        let mut notes = Vec::new();
        for (key, value) in map {
            let mut same = properties.keys().filter(|name| bare(name) == bare(key));
            match (properties.contains_key(key), same.next(), same.next()) {
                (false, Some(name), None) if !map.contains_key(name) => {
                    notes.push(format!("`{key}` was taken as `{name}`"));
                    out.insert(name.clone(), value.clone());
                }
                _ => {
                    out.insert(key.clone(), value.clone());
                }
            }
        }
        (out, notes)
    }

    /// Values of the wrong scalar type that have one meaning in the right one are turned into it.
    fn coerce(&self, map: &Map<String, Value>) -> (Map<String, Value>, Vec<String>) {
        let mut notes = Vec::new();
        let out = map
            .iter()
            .filter_map(|(key, value)| {
                let Some(schema) = self.property(key) else { return Some((key.clone(), value.clone())) };
                if value.is_null() && !self.required().any(|name| name == key) && !allows(schema, "null") {
                    notes.push(format!("`{key}`: null was left out"));
                    return None;
                }
                if self.fits_part(schema, value) {
                    return Some((key.clone(), value.clone()));
                }
                match coerced(value, schema) {
                    Some((value, what)) => {
                        notes.push(format!("`{key}`: {what}"));
                        Some((key.clone(), value))
                    }
                    None => Some((key.clone(), value.clone())),
                }
            })
            .collect();
        (out, notes)
    }

    fn misfit(&self, given: &Value) -> Misfit {
        let faults = match self.validator() {
            Ok(validator) if given.is_object() => validator
                .iter_errors(given)
                .take(MAX_FAULTS)
                .map(|error| {
                    let path = error.instance_path().to_string();
                    let place = if path.is_empty() { "params".into() } else { format!("params{path}") };
                    clip(&format!("{place}: {error}"), MAX_MESSAGE)
                })
                .collect(),
            _ => vec![format!("params: {} is not an object", clip(&given.to_string(), 80))],
        };
        let mut example = Map::new();
        if let Value::Object(map) = given {
            let (renamed, _) = self.rename(map);
            let (kept, _) = self.coerce(&renamed);
            for (key, value) in kept {
                // A key that the schema does not name is more likely wrong than wanted.
                let fits = match self.property(&key) {
                    Some(schema) => self.fits_part(schema, &value),
                    None => self.properties().is_none(),
                };
                if fits {
                    example.insert(key, value);
                }
            }
        }
        let required: Vec<String> = self.required().map(String::from).collect();
        for name in required {
            if !example.contains_key(&name) {
                let filler = self.property(&name).map_or(json!("<value>"), placeholder);
                example.insert(name, filler);
            }
        }
        let complete = self.required().all(|name| given.get(name).is_some());
        let example_fits = complete && self.accepts(&Value::Object(example.clone()));
        Misfit { faults, example, example_fits }
    }

    /// The parameters as `(name, type, required, description)`, required ones first, then in the
    /// schema's own order.
    pub fn parameters(&self) -> Vec<Parameter<'_>> {
        let required: Vec<&str> = self.required().collect();
        let mut all: Vec<Parameter<'_>> = self
            .properties()
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

    /// A params object with a placeholder for each required parameter.
    pub fn example(&self) -> Map<String, Value> {
        self.required()
            .map(|name| (name.to_string(), self.property(name).map_or(json!("<value>"), placeholder)))
            .collect()
    }
}

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

fn with(told: &[String], note: &str) -> Vec<String> {
    let mut all = told.to_vec();
    all.push(note.into());
    all
}

/// A key without case and separators.
fn bare(key: &str) -> String {
    key.chars().filter(|c| !matches!(c, '_' | '-' | ' ')).flat_map(char::to_lowercase).collect()
}

/// Whether a property's schema names `kind` among its types.
fn allows(schema: &Value, kind: &str) -> bool {
    match schema.get("type") {
        Some(Value::String(only)) => only == kind,
        Some(Value::Array(many)) => many.iter().any(|one| one == kind),
        _ => ["anyOf", "oneOf"]
            .iter()
            .filter_map(|key| schema.get(key)?.as_array())
            .flatten()
            .any(|branch| allows(branch, kind)),
    }
}

/// A value that does not fit, in the schema's type, if it has one meaning there.
fn coerced(value: &Value, schema: &Value) -> Option<(Value, &'static str)> {
    match value {
        Value::String(text) => {
            let text = text.trim();
            if allows(schema, "integer")
                && let Ok(number) = text.parse::<i64>()
            {
                return Some((json!(number), "text was taken as a number"));
            }
            if allows(schema, "number")
                && let Ok(number) = text.parse::<f64>()
                && number.is_finite()
            {
                return Some((json!(number), "text was taken as a number"));
            }
            if allows(schema, "boolean")
                && let Ok(flag) = text.to_lowercase().parse::<bool>()
            {
                return Some((json!(flag), "text was taken as a boolean"));
            }
            if (allows(schema, "array") && text.starts_with('['))
                || (allows(schema, "object") && text.starts_with('{'))
            {
                return serde_json::from_str(text).ok().map(|inner| (inner, "JSON in a string was read"));
            }
            allows(schema, "array").then(|| (json!([value]), "one value was taken as a list of one"))
        }
        Value::Number(_) | Value::Bool(_) if allows(schema, "string") => {
            Some((json!(value.to_string()), "the value was taken as text"))
        }
        Value::Number(number) if allows(schema, "integer") => {
            let whole = number.as_f64().filter(|n| n.fract() == 0.0 && n.abs() < 9e15)?;
            #[allow(clippy::cast_possible_truncation)] // whole and below 2^53
            let whole = whole as i64;
            Some((json!(whole), "the number was taken as whole"))
        }
        Value::Number(_) | Value::Bool(_) | Value::Object(_) if allows(schema, "array") => {
            Some((json!([value]), "one value was taken as a list of one"))
        }
        _ => None,
    }
}

/// A schema's type in a few characters.
fn kind(schema: &Value, depth: usize) -> String {
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

/// A stand-in of the schema's type that says what belongs there.
fn placeholder(schema: &Value) -> Value {
    if let Some(value) = schema.get("default").or_else(|| schema.get("enum")?.get(0)) {
        return value.clone();
    }
    json!(format!("<{}>", kind(schema, 0)))
}

/// The first `max` characters of `text`, marked where it was cut.
pub fn clip(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema() -> Schema {
        Schema::new(json!({
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "Where"},
                "maxDepth": {"type": "integer"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "deep": {"type": "boolean", "default": false},
                "mode": {"enum": ["r", "w"]},
            },
            "required": ["path"],
            "additionalProperties": false,
        }))
    }

    /// `None`: refused. Otherwise the params and how many repairs were told.
    fn check(given: Value, expected: Option<(Value, usize)>) {
        match (schema().read(given.clone()), expected) {
            (Ok(reading), Some((params, repairs))) => {
                assert_eq!(Value::Object(reading.params), params, "{given}");
                assert_eq!(reading.repaired.len(), repairs, "{given}: {:?}", reading.repaired);
            }
            (Err(_), None) => {}
            (got, _) => panic!("{given}: {got:?}"),
        }
    }

    #[test]
    fn one_reading_is_found_or_none_is_taken() {
        let plain = json!({"path": "a"});
        check(plain.clone(), Some((plain.clone(), 0)));
        check(json!("{\"path\": \"a\"}"), Some((plain.clone(), 1)));
        check(json!({"arguments": {"path": "a"}}), Some((plain.clone(), 1)));
        check(json!({"params": {"arguments": "{\"path\":\"a\"}"}}), Some((plain.clone(), 3)));
        check(json!({"Path": "a"}), Some((plain.clone(), 1)));
        check(json!({"path": "a", "max_depth": "3"}), Some((json!({"path": "a", "maxDepth": 3}), 2)));
        check(json!({"path": "a", "maxDepth": 3.0}), Some((json!({"path": "a", "maxDepth": 3.0}), 0)));
        check(json!({"path": "a", "tags": "x"}), Some((json!({"path": "a", "tags": ["x"]}), 1)));
        check(json!({"path": "a", "tags": "[\"x\"]"}), Some((json!({"path": "a", "tags": ["x"]}), 1)));
        check(json!({"path": "a", "deep": "True"}), Some((json!({"path": "a", "deep": true}), 1)));
        check(json!({"path": "a", "mode": null}), Some((plain, 1)));
        check(json!({"path": 5}), Some((json!({"path": "5"}), 1)));
        check(json!({}), None);
        check(json!({"path": "a", "other": 1}), None);
        check(json!({"path": "a", "maxDepth": "deep"}), None);
        check(json!([1]), None);
        check(json!("not json"), None);
    }

    #[test]
    fn references_to_definitions_are_followed() {
        let schema = Schema::new(json!({
            "type": "object",
            "$defs": {"Mode": {"enum": ["r", "w"]}},
            "properties": {"mode": {"$ref": "#/$defs/Mode"}},
            "required": ["mode"],
        }));
        assert!(schema.read(json!({"mode": "r"})).is_ok());
        let misfit = schema.read(json!({"mode": "zzz"})).unwrap_err();
        assert!(misfit.faults[0].contains("zzz"), "{misfit:?}");
    }

    #[test]
    fn a_misfit_teaches() {
        let misfit = schema().read(json!({"maxDepth": "deep", "other": 1})).unwrap_err();
        assert!(misfit.faults.iter().any(|fault| fault.contains("path")), "{:?}", misfit.faults);
        assert_eq!(Value::Object(misfit.example), json!({"path": "<string>"}));
        assert!(!misfit.example_fits);
        let misfit = schema().read(json!({"path": "a", "other": 1})).unwrap_err();
        assert!(misfit.example_fits);
    }

    #[test]
    fn a_signature_is_short() {
        assert_eq!(
            schema().signature("ls"),
            r#"ls(path: string, maxDepth?: integer, tags?: string[], deep?: boolean, mode?: "r"|"w")"#
        );
    }

    #[test]
    fn a_broken_schema_lets_everything_through() {
        for broken in [
            json!(null),
            json!({"type": 5}),
            json!({"$ref": "https://example.com/schema.json"}),
            json!({"$ref": "#/definitions/nowhere"}),
        ] {
            let schema = Schema::new(broken);
            assert!(schema.broken().is_some(), "{:?}", schema.raw());
            assert!(schema.read(json!({"any": 1})).is_ok());
        }
    }
}
