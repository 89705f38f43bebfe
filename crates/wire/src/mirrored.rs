//! Params that requests over HTTP repeat in headers, so that what stands between can route them (SEP-2243,
//! 2026-07-28): a tool's schema names the header of such a param.

use std::collections::HashSet;

use http::{HeaderMap, HeaderName};
use serde_json::{Map, Value};

use super::http::put_text;

/// The key of a schema that names the header.
pub const MIRRORED: &str = "x-mcp-header";
/// The beginning of such a header's name.
const PARAM: &str = "mcp-param-";
/// Keys whose values are instances, not schemas.
const INSTANCES: [&str; 4] = ["default", "const", "enum", "examples"];
/// Keys whose values are schemas by name.
const NAMED_SCHEMAS: [&str; 5] =
    ["properties", "$defs", "definitions", "dependentSchemas", "patternProperties"];

/// A param that is repeated in a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirroredParam {
    path: Vec<Box<str>>,
    header: HeaderName,
}

/// Returns whether a schema names a header anywhere.
pub fn is_mirroring(schema: &Value) -> bool {
    match schema {
        Value::Object(members) => members.contains_key(MIRRORED) || members.values().any(is_mirroring),
        Value::Array(items) => items.iter().any(is_mirroring),
        _ => false,
    }
}

/// Calls `visit` with the path, the schema and the header of each param that names a header, along
/// `properties`.
///
/// # Errors
///
/// Returns the first error of `visit`.
pub fn each_mirrored<'a, E>(
    schema: &'a Map<String, Value>,
    path: &mut Vec<&'a str>,
    visit: &mut impl FnMut(&[&'a str], &'a Map<String, Value>, &'a Value) -> Result<(), E>,
) -> Result<(), E> {
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return Ok(()) };
    for (name, schema) in properties {
        let Some(schema) = schema.as_object() else { continue };
        path.push(name);
        if let Some(header) = schema.get(MIRRORED) {
            visit(path, schema, header)?;
        }
        each_mirrored(schema, path, visit)?;
        path.pop();
    }
    Ok(())
}

/// Returns the param's value as a header repeats it, before it is encoded; `None` for values that are not
/// repeated.
pub fn mirrored_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
        _ => None,
    }
}

/// Returns the value of the param at this path.
pub fn at_path<'a>(arguments: &'a Map<String, Value>, path: &[impl AsRef<str>]) -> Option<&'a Value> {
    let (first, rest) = path.split_first()?;
    rest.iter().try_fold(arguments.get(first.as_ref())?, |value, name| value.get(name.as_ref()))
}

/// Returns the params of a tool that calls repeat in headers.
///
/// # Errors
///
/// Returns why the tool cannot be called over HTTP: the specification lets clients drop a tool with a header
/// on anything but a string, an integer or a boolean, off the `properties`, named twice, or with a name that
/// is not one.
pub fn mirrored_params(schema: &Map<String, Value>) -> Result<Vec<MirroredParam>, String> {
    if schema.contains_key(MIRRORED) {
        return Err(format!("`{MIRRORED}` is on the schema itself, not on a property"));
    }
    if is_off_properties(schema, true) {
        return Err(format!("`{MIRRORED}` is on something else than a property"));
    }
    let (mut params, mut names) = (Vec::new(), HashSet::new());
    each_mirrored(schema, &mut Vec::new(), &mut |path, schema, header| {
        let at = path.join(".");
        let name = header.as_str().unwrap_or_default();
        let header = HeaderName::try_from(format!("{PARAM}{}", name.to_ascii_lowercase()));
        let header = header.ok().filter(|_| !name.is_empty());
        let header = header.ok_or_else(|| format!("`{at}`: `{MIRRORED}` is not the name of a header"))?;
        if !names.insert(header.clone()) {
            return Err(format!("`{at}`: another property has the header `{name}` as well"));
        }
        if !matches!(schema.get("type").and_then(Value::as_str), Some("string" | "integer" | "boolean")) {
            return Err(format!("`{at}`: only a string, an integer or a boolean fits into a header"));
        }
        params.push(MirroredParam { path: path.iter().map(|&name| name.into()).collect(), header });
        Ok(())
    })?;
    Ok(params)
}

/// Returns whether a schema names a header anywhere but on a property. `is_on` says whether the schema is the
/// root or one of its properties.
fn is_off_properties(schema: &Map<String, Value>, is_on: bool) -> bool {
    let inner = |schema: &Value, is_on: bool| match schema {
        Value::Object(schema) => is_off_properties(schema, is_on),
        Value::Array(schemas) => {
            schemas.iter().filter_map(Value::as_object).any(|schema| is_off_properties(schema, false))
        }
        _ => false,
    };
    schema.iter().any(|(key, value)| match (key.as_str(), value) {
        (MIRRORED, _) => !is_on,
        (key, _) if INSTANCES.contains(&key) => false,
        (key, Value::Object(named)) if NAMED_SCHEMAS.contains(&key) => {
            named.values().any(|schema| inner(schema, is_on && key == "properties"))
        }
        (_, value) => inner(value, false),
    })
}

/// Adds the headers that repeat these arguments.
pub fn put_mirrored(headers: &mut HeaderMap, params: &[MirroredParam], arguments: &Map<String, Value>) {
    for param in params {
        if let Some(text) = at_path(arguments, &param.path).and_then(mirrored_text) {
            put_text(headers, param.header.clone(), &text);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_tool_with_an_impossible_header_says_why() {
        let check = |schema: Value, expected: Result<usize, &str>| {
            let found = mirrored_params(schema.as_object().expect("an object"));
            match (found, expected) {
                (Ok(params), Ok(count)) => assert_eq!(params.len(), count, "{schema}"),
                (Err(why), Err(part)) => assert!(why.contains(part), "{schema}: {why}"),
                (found, _) => panic!("{schema}: {found:?}"),
            }
        };
        let on = |kind: &str, name: &str| json!({ "type": kind, MIRRORED: name });
        check(json!({}), Ok(0));
        check(json!({ "properties": { "a": on("string", "A"), "b": on("integer", "B") } }), Ok(2));
        let nested = json!({ "type": "object", "properties": { "b": on("boolean", "B") } });
        check(json!({ "properties": { "a": nested } }), Ok(1));
        check(json!({ "properties": { "a": { "enum": [on("string", "A")] } } }), Ok(0));
        check(json!({ MIRRORED: "A" }), Err("the schema itself"));
        check(json!({ "anyOf": [{ "properties": { "a": on("string", "A") } }] }), Err("something else"));
        check(json!({ "properties": { "a": { "items": on("string", "A") } } }), Err("something else"));
        check(json!({ "properties": { "a": on("number", "A") } }), Err("only a string"));
        check(json!({ "properties": { "a": on("string", "A b") } }), Err("not the name of a header"));
        check(json!({ "properties": { "a": on("string", "") } }), Err("not the name of a header"));
        check(
            json!({ "properties": { "a": on("string", "X"), "b": on("string", "x") } }),
            Err("another property"),
        );
    }

    #[test]
    fn calls_repeat_what_they_have() {
        let on = |name: &str| json!({ "type": "string", MIRRORED: name });
        let schema =
            json!({ "properties": { "a": on("A"), "b": { "properties": { "c": on("C") } }, "d": on("D") } });
        let params = mirrored_params(schema.as_object().expect("an object")).expect("they are possible");
        let arguments = json!({ "a": "é", "b": { "c": "plain" }, "d": null });
        let mut headers = HeaderMap::new();
        put_mirrored(&mut headers, &params, arguments.as_object().expect("an object"));
        let told = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        assert_eq!(
            (told("mcp-param-a"), told("mcp-param-c"), told("mcp-param-d")),
            (Some("=?base64?w6k=?="), Some("plain"), None)
        );
    }
}
