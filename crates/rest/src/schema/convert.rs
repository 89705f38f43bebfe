//! Converts one part of a document's schemas, with as much detail as its limit allows.

use std::{collections::HashSet, rc::Rc};

use serde_json::{Map, Value, json};

use super::{
    Detail, MAX_EXAMPLE, MAX_EXAMPLES, REFERENCE, Reference, SHORTEST, SchemaSide, Schemas, annotate, bytes,
};
use crate::prose;

/// Keywords that describe a referenced schema without narrowing it.
const ANNOTATIONS: [&str; 13] = [
    "description",
    "title",
    "summary",
    "default",
    "example",
    "examples",
    "deprecated",
    "nullable",
    "readOnly",
    "writeOnly",
    "discriminator",
    "xml",
    "externalDocs",
];

/// Converts the schemas of one part or tool.
pub(crate) struct Converter<'s, 'a> {
    pub schemas: &'s mut Schemas<'a>,
    pub(super) side: SchemaSide,
    pub(super) detail: Detail,
    /// The approximate size converted so far; beyond the limit the result is discarded.
    pub(super) bytes: usize,
    pub(super) limit: usize,
    pub(super) refs: Vec<Reference>,
    /// Whether the current schema is below an optional member.
    pub(super) optional: bool,
}

impl Converter<'_, '_> {
    /// Returns whether the limit is exceeded, so that the rest can be skipped.
    fn is_over(&self) -> bool {
        self.bytes > self.limit
    }

    /// Converts a schema. `same`: whether it applies to the same value as its parent.
    pub(crate) fn schema(&mut self, raw: &Value, depth: usize, same: bool) -> Value {
        let raw = match raw {
            Value::Bool(value) => return Value::Bool(*value),
            Value::Object(raw) if !self.is_over() => raw,
            _ => return json!({}),
        };
        self.bytes += 8;
        if let Some(reference) = raw.get("$ref").and_then(Value::as_str) {
            return self.reference(raw, reference, depth, same);
        }
        let holds = |key: &str| raw.contains_key(key);
        let nests =
            ["properties", "items", "allOf", "anyOf", "oneOf", "additionalProperties"].into_iter().any(holds);
        if depth >= self.detail.depth && nests {
            return stub(raw.get("type"), &self.description(raw).unwrap_or_default());
        }
        self.members(raw, depth, same)
    }

    /// Converts the schemas of a list.
    fn list(&mut self, all: &[Value], depth: usize, same: bool) -> Vec<Value> {
        all.iter().map(|raw| self.schema(raw, depth + 1, same)).collect()
    }

    fn reference(&mut self, raw: &Map<String, Value>, reference: &str, depth: usize, same: bool) -> Value {
        let mut annotations = Map::new();
        self.annotations(raw, &mut annotations);
        let to: Rc<str> = reference.into();
        self.refs.push(Reference { to, same, optional: self.optional });
        self.bytes += 30;
        let mut schema = Map::new();
        let narrows =
            |key: &&String| *key != "$ref" && !ANNOTATIONS.contains(&key.as_str()) && !key.starts_with("x-");
        if !self.schemas.document.is_3_0 && raw.keys().any(|key| narrows(&key)) {
            let mut beside = raw.clone();
            beside.remove("$ref");
            let all = beside.remove("allOf");
            let mut schema = self.members(&beside, depth, same);
            let mut parts = vec![json!({ REFERENCE: reference })];
            parts.extend(self.list(
                all.as_ref().and_then(Value::as_array).map_or(&[], Vec::as_slice),
                depth,
                same,
            ));
            annotate(&mut schema, "allOf", parts);
            return schema;
        }
        if raw.get("nullable") == Some(&Value::Bool(true)) {
            schema.insert("anyOf".into(), json!([{ REFERENCE: reference }, { "type": "null" }]));
        } else {
            schema.insert(REFERENCE.into(), reference.into());
        }
        schema.extend(annotations);
        Value::Object(schema)
    }

    /// Converts the keywords of a schema without `$ref`.
    fn members(&mut self, raw: &Map<String, Value>, depth: usize, same: bool) -> Value {
        let mut out = Map::new();
        let mut words = self.types_and_values(raw, &mut out);
        self.annotations(raw, &mut out);
        let mut either: Vec<Value> = Vec::new();
        for (key, value) in raw {
            match (key.as_str(), value) {
                // Documents' alternatives overlap, and then a strict `oneOf` would reject what the service
                // accepts.
                ("anyOf" | "oneOf", Value::Array(all)) if !all.is_empty() => {
                    either.push(self.list(all, depth, same).into());
                }
                ("pattern", Value::String(pattern))
                    if self.side == SchemaSide::Input && !self.schemas.compiles(pattern) =>
                {
                    words.extend((pattern.len() <= 100).then(|| format!("Pattern: `{pattern}`.")));
                }
                (key, value) => {
                    if let Some((key, nested)) = self.nested(raw, key, value, depth, same) {
                        out.insert(key.into(), nested);
                    } else if let Some((key, limit)) = self.limit(raw, key, value) {
                        self.plain(&mut out, key, limit);
                    }
                }
            }
        }
        let mut schema = with_alternatives(out, either);
        if !words.is_empty() {
            let said = schema.get("description").and_then(Value::as_str);
            let said = said.map(|said| format!("{said} ")).unwrap_or_default();
            annotate(&mut schema, "description", format!("{said}{}", words.join(" ")));
        }
        if raw.get("nullable") == Some(&Value::Bool(true)) { or_null(schema) } else { schema }
    }

    /// Adds `type` and `enum`. Returns what a long enumeration says instead.
    fn types_and_values(&mut self, raw: &Map<String, Value>, out: &mut Map<String, Value>) -> Vec<String> {
        let mut kinds = raw.get("type").and_then(kind);
        let mut values = raw.get("enum").and_then(Value::as_array).filter(|all| !all.is_empty()).cloned();
        if let (Some(Value::String(kind)), Some(all)) = (&kinds, &values)
            && !all.iter().any(|value| is_a(value, kind))
        {
            // `type: string` on an enumeration of numbers: the values are right.
            kinds = None;
        }
        let nullable = raw.get("nullable") == Some(&Value::Bool(true));
        if nullable && let Some(Value::String(kind)) = &kinds {
            kinds = Some(json!([kind, "null"]));
        }
        let holds_null = |kinds: &Option<Value>| {
            kinds.as_ref().and_then(Value::as_array).is_some_and(|all| all.iter().any(|kind| kind == "null"))
        };
        if let Some(all) = &mut values
            && (nullable || holds_null(&kinds))
            && !all.contains(&Value::Null)
        {
            all.push(Value::Null);
        }
        out.extend(kinds.map(|kinds| ("type".into(), kinds)));
        match values {
            Some(all) if all.len() > self.detail.values => {
                let few: Vec<String> = all.iter().take(5).map(Value::to_string).collect();
                vec![format!("One of {} values, such as {}.", all.len(), few.join(", "))]
            }
            Some(all) => {
                self.plain(out, "enum", Value::Array(all));
                Vec::new()
            }
            None => Vec::new(),
        }
    }

    /// Converts a keyword that holds schemas. `None` for any other one, and for one that is left out.
    fn nested<'k>(
        &mut self,
        raw: &Map<String, Value>,
        key: &'k str,
        value: &Value,
        depth: usize,
        same: bool,
    ) -> Option<(&'k str, Value)> {
        let narrows = self.side == SchemaSide::Input;
        let schema = match (key, value) {
            ("properties", Value::Object(all)) => self.properties(raw, all, depth),
            ("patternProperties", Value::Object(all)) => {
                let mut checked = Map::new();
                for (pattern, raw) in all {
                    if self.schemas.compiles(pattern) {
                        checked.insert(pattern.clone(), self.schema(raw, depth + 1, false));
                    }
                }
                checked.into()
            }
            ("items" | "prefixItems", Value::Array(all)) if !all.is_empty() => {
                return Some(("prefixItems", self.list(all, depth, false).into()));
            }
            ("items" | "contains", Value::Object(_)) => self.schema(value, depth + 1, false),
            ("propertyNames", Value::Object(_)) if narrows => self.schema(value, depth + 1, false),
            ("additionalProperties", Value::Object(members)) if !members.is_empty() => {
                self.schema(value, depth + 1, false)
            }
            ("allOf", Value::Array(all)) if !all.is_empty() => self.list(all, depth, same).into(),
            ("not" | "if" | "then" | "else", Value::Object(_)) if narrows => {
                self.schema(value, depth + 1, same)
            }
            ("dependentSchemas", Value::Object(all)) if narrows => {
                let all = all.iter().map(|(name, raw)| (name.clone(), self.schema(raw, depth + 1, same)));
                Value::Object(all.collect())
            }
            _ => return None,
        };
        Some((key, schema))
    }

    /// Converts the properties that are not hidden on this side.
    fn properties(&mut self, raw: &Map<String, Value>, all: &Map<String, Value>, depth: usize) -> Value {
        let required = raw.get("required").and_then(Value::as_array);
        let outer = self.optional;
        let mut shown = Map::new();
        for (name, raw) in all {
            if !self.hides(raw) {
                self.bytes += name.len();
                self.optional = outer || !required.is_some_and(|all| all.iter().any(|own| own == name));
                shown.insert(name.clone(), self.schema(raw, depth + 1, false));
            }
        }
        self.optional = outer;
        shown.into()
    }

    /// Returns a keyword without schemas that limits a value, as it is kept.
    fn limit<'k>(&self, raw: &Map<String, Value>, key: &'k str, value: &Value) -> Option<(&'k str, Value)> {
        let is_true = |key: &str| raw.get(key) == Some(&Value::Bool(true));
        match (key, value) {
            ("const", value) => return (bytes(value) <= MAX_EXAMPLE).then(|| (key, value.clone())),
            ("format" | "contentEncoding" | "contentMediaType", Value::String(_)) => {
                return Some((key, value.clone()));
            }
            _ if self.side == SchemaSide::Output => return None,
            ("required", Value::Array(all)) => {
                let members = raw.get("properties");
                let is_shown = |name: &Value| {
                    let member = name.as_str().map(|name| members.and_then(|all| all.get(name)));
                    member.is_some_and(|member| member.is_none_or(|member| !self.hides(member)))
                };
                let mut seen = HashSet::new();
                let names = all.iter().filter(|name| is_shown(name) && seen.insert(name.to_string()));
                let names: Vec<Value> = names.cloned().collect();
                return (!names.is_empty()).then(|| (key, names.into()));
            }
            ("minimum", Value::Number(_)) if is_true("exclusiveMinimum") => {
                return Some(("exclusiveMinimum", value.clone()));
            }
            ("maximum", Value::Number(_)) if is_true("exclusiveMaximum") => {
                return Some(("exclusiveMaximum", value.clone()));
            }
            _ => {}
        }
        let is_kept = match (key, value) {
            ("additionalProperties", Value::Bool(value)) => !value,
            ("dependentRequired", Value::Object(all)) => {
                let mut lists = all.values().map(Value::as_array);
                lists.all(|names| names.is_some_and(|names| names.iter().all(Value::is_string)))
            }
            ("pattern", Value::String(_)) | ("uniqueItems", Value::Bool(true)) => true,
            (
                "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties"
                | "minContains" | "maxContains",
                value,
            ) => value.is_u64(),
            ("multipleOf", Value::Number(number)) => number.as_f64().is_some_and(|n| n > 0.0),
            ("minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum", value) => value.is_number(),
            _ => false,
        };
        is_kept.then(|| (key, value.clone()))
    }

    /// Adds a keyword unchanged.
    fn plain(&mut self, out: &mut Map<String, Value>, key: &str, value: Value) {
        self.bytes += key.len() + bytes(&value);
        out.insert(key.into(), value);
    }

    /// Adds annotations for readers: description, default, examples.
    fn annotations(&mut self, raw: &Map<String, Value>, out: &mut Map<String, Value>) {
        if let Some(description) = self.description(raw) {
            self.plain(out, "description", Value::String(description));
        }
        if raw.get("deprecated") == Some(&Value::Bool(true)) {
            self.plain(out, "deprecated", Value::Bool(true));
        }
        let default = raw.get("default").filter(|value| !value.is_null() && bytes(value) <= MAX_EXAMPLE);
        if let Some(default) = default {
            self.plain(out, "default", default.clone());
        }
        let examples = examples_of(raw, None);
        if !examples.is_empty() && self.detail.description > 0 && self.side == SchemaSide::Input {
            self.plain(out, "examples", Value::Array(examples));
        }
    }

    fn description(&self, raw: &Map<String, Value>) -> Option<String> {
        let text = |key: &str| raw.get(key).and_then(Value::as_str).filter(|text| !text.trim().is_empty());
        let text = text("description").or_else(|| text("title")).filter(|_| self.detail.description > 0);
        text.map(|text| prose::plain(text, self.detail.description))
    }

    /// Returns a param's description at the current length.
    pub(crate) fn words(&self, text: &str) -> String {
        prose::plain(text, self.detail.description.max(SHORTEST))
    }

    /// Returns whether a property belongs to the other side only.
    fn hides(&self, raw: &Value) -> bool {
        self.schemas.hides(raw, self.side)
    }
}

/// Returns the stub of a schema that is too large or too deep.
pub(super) fn stub(given: Option<&Value>, description: &str) -> Value {
    let mut members = Map::new();
    members.extend(given.and_then(kind).map(|kind| ("type".into(), kind)));
    let text = format!("{description} (members not shown)");
    members.insert("description".into(), text.trim_start().into());
    members.into()
}

/// Returns the schema with its alternatives: those of one keyword as `anyOf`, those of several as parts of
/// `allOf`.
fn with_alternatives(mut out: Map<String, Value>, mut either: Vec<Value>) -> Value {
    if either.len() > 1 {
        let mut parts: Vec<Value> = either.into_iter().map(|all| json!({ "anyOf": all })).collect();
        if let Some(Value::Array(all)) = out.shift_remove("allOf") {
            parts.extend(all);
        }
        out.insert("allOf".into(), parts.into());
    } else if let Some(all) = either.pop() {
        out.insert("anyOf".into(), all);
    }
    out.into()
}

/// Returns a nullable schema. Without a type, `nullable` refers to the alternatives.
fn or_null(mut schema: Value) -> Value {
    let has = |key: &str| schema.get(key).is_some();
    if has("type") || !(has("allOf") || has("anyOf")) {
        return schema;
    }
    let no_value = json!({ "type": "null" });
    if !has("allOf")
        && let Some(Value::Array(all)) = schema.get_mut("anyOf")
    {
        all.push(no_value);
        return schema;
    }
    json!({ "anyOf": [schema, no_value] })
}

/// Returns the examples of a schema, a param or a media type, or of a member of theirs, in document order.
pub(crate) fn examples_of(raw: &Map<String, Value>, member: Option<&str>) -> Vec<Value> {
    let several: Vec<&Value> = match raw.get("examples") {
        Some(Value::Array(all)) => all.iter().collect(),
        Some(Value::Object(all)) => all.values().filter_map(|example| example.get("value")).collect(),
        _ => Vec::new(),
    };
    let all = raw.get("example").into_iter().chain(several).filter_map(|example| match member {
        Some(member) => example.get(member),
        None => Some(example),
    });
    let mut examples: Vec<Value> = Vec::new();
    for example in
        all.take(MAX_EXAMPLES).filter(|example| !example.is_null() && bytes(example) <= MAX_EXAMPLE)
    {
        if !examples.contains(example) {
            examples.push(example.clone());
        }
    }
    examples
}

/// Returns the type or types that a schema names, in JSON Schema's terms. Documents also use type names of
/// programming languages.
fn kind(given: &Value) -> Option<Value> {
    let one = |name: &str| {
        Some(match name.trim().to_ascii_lowercase().as_str() {
            "string" | "file" | "binary" | "byte" | "date" | "datetime" | "date-time" | "uuid" | "uri"
            | "text" | "str" => "string",
            "integer" | "int" | "int32" | "int64" | "long" => "integer",
            "number" | "float" | "double" | "decimal" => "number",
            "boolean" | "bool" => "boolean",
            "object" | "map" | "dict" => "object",
            "array" | "list" => "array",
            "null" => "null",
            _ => return None,
        })
    };
    match given {
        Value::String(name) => one(name).map(Value::from),
        Value::Array(names) => {
            let mut all: Vec<&str> = Vec::new();
            for name in names {
                let name = one(name.as_str()?)?;
                if !all.contains(&name) {
                    all.push(name);
                }
            }
            match all[..] {
                [] => None,
                [only] => Some(only.into()),
                _ => Some(json!(all)),
            }
        }
        _ => None,
    }
}

fn is_a(value: &Value, kind: &str) -> bool {
    match kind {
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|n| n.fract() == 0.0),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "object" => value.is_object(),
        "array" => value.is_array(),
        _ => value.is_null(),
    }
}
