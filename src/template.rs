//! Templates in params: `{{id.path.to[0].value}}` puts one call's value into the next call.
//!
//! A string that is one template and nothing else becomes the value itself, with its type; a
//! template inside other text becomes text (strings as they are, everything else as JSON).
//! This room knows JSON and names of values, nothing of tools.

use std::{
    collections::BTreeSet,
    sync::{Arc, LazyLock},
};

use regex::Regex;
use serde_json::{Map, Value};

static TEMPLATE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\{\{\s*([^{}]+?)\s*\}\}").expect("the pattern is constant"));

/// Why a template has no value.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TemplateError {
    /// The first part names nothing that is known.
    #[error("`{{{{{template}}}}}` names `{name}`, which is none of: {known}")]
    Unknown {
        /// The template's text.
        template: String,
        /// Its first part.
        name: String,
        /// What could be named.
        known: String,
    },
    /// The path leads nowhere.
    #[error("`{{{{{template}}}}}`: `{at}` has no `{step}` ({there})")]
    NoSuchPath {
        /// The template's text.
        template: String,
        /// How far the path led.
        at: String,
        /// The step that failed.
        step: String,
        /// What there is instead.
        there: String,
    },
}

/// The names (first parts) that the templates in `value` use, `ref:ID` forms left out.
pub fn names(value: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    walk(value, &mut |text| {
        for capture in TEMPLATE.captures_iter(text) {
            let (name, _) = split(&capture[1]);
            if !name.starts_with("ref:") {
                found.insert(name.to_string());
            }
        }
    });
    found
}

/// The IDs of the `ref:ID` forms that the templates in `value` use.
pub fn references(value: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    walk(value, &mut |text| {
        if text.contains("ref:") {
            let names = TEMPLATE
                .captures_iter(text)
                .filter_map(|capture| split(capture.get(1)?.as_str()).0.strip_prefix("ref:"));
            found.extend(names.map(String::from));
        }
    });
    found
}

fn walk(value: &Value, visit: &mut dyn FnMut(&str)) {
    match value {
        Value::String(text) => visit(text),
        Value::Array(items) => items.iter().for_each(|item| walk(item, visit)),
        Value::Object(map) => map.values().for_each(|item| walk(item, visit)),
        _ => {}
    }
}

/// What a name in a template stands for.
pub enum Named {
    /// This value.
    Value(Arc<Value>),
    /// Nothing here: the template stays as it is, for whoever it is meant for.
    Foreign,
    /// Nothing, and that is a fault; says what could be named.
    Unknown(String),
}

/// Fills every template in `value`. `lookup` says what a name (`id` or `ref:ID`) stands for.
pub fn fill(value: &Value, lookup: &dyn Fn(&str) -> Named) -> Result<Value, TemplateError> {
    Ok(match value {
        Value::String(text) => fill_text(text, lookup)?,
        Value::Array(items) => {
            Value::Array(items.iter().map(|item| fill(item, lookup)).collect::<Result<_, _>>()?)
        }
        Value::Object(map) => Value::Object(fill_map(map, lookup)?),
        other => other.clone(),
    })
}

/// [`fill`] for a params object.
pub fn fill_map(
    map: &Map<String, Value>,
    lookup: &dyn Fn(&str) -> Named,
) -> Result<Map<String, Value>, TemplateError> {
    map.iter().map(|(key, item)| Ok((key.clone(), fill(item, lookup)?))).collect()
}

fn fill_text(text: &str, lookup: &dyn Fn(&str) -> Named) -> Result<Value, TemplateError> {
    if let Some(whole) = TEMPLATE.captures(text)
        && whole.get(0).is_some_and(|m| m.as_str().len() == text.trim().len())
    {
        return Ok(resolve(&whole[1], lookup)?.unwrap_or_else(|| Value::String(text.into())));
    }
    let mut out = String::new();
    let mut last = 0;
    for capture in TEMPLATE.captures_iter(text) {
        let Some(span) = capture.get(0) else { continue };
        out.push_str(&text[last..span.start()]);
        match resolve(&capture[1], lookup)? {
            None => out.push_str(span.as_str()),
            Some(Value::String(inner)) => out.push_str(&inner),
            Some(other) => out.push_str(&other.to_string()),
        }
        last = span.end();
    }
    out.push_str(&text[last..]);
    Ok(Value::String(out))
}

/// The first part of a template and the rest of its path.
fn split(template: &str) -> (&str, &str) {
    let end = template.find(['.', '[']).unwrap_or(template.len());
    (template[..end].trim(), &template[end..])
}

/// The value of a template; `None` if it is not ours to fill.
fn resolve(template: &str, lookup: &dyn Fn(&str) -> Named) -> Result<Option<Value>, TemplateError> {
    let (name, path) = split(template);
    let value = match lookup(name) {
        Named::Value(value) => value,
        Named::Foreign => return Ok(None),
        Named::Unknown(known) => {
            return Err(TemplateError::Unknown { template: template.into(), name: name.into(), known });
        }
    };
    match follow(&value, name, path) {
        Ok(found) => Ok(Some(found.clone())),
        Err((at, step, there)) => {
            Err(TemplateError::NoSuchPath { template: template.into(), at, step, there })
        }
    }
}

/// Follows `.key`, `.0` and `[0]` steps. A value that is text holding JSON is read as that JSON only
/// by the caller, so that a path never changes meaning with the text.
fn follow<'a>(mut value: &'a Value, name: &str, path: &str) -> Result<&'a Value, (String, String, String)> {
    let mut at = name.to_string();
    for step in path.split(['.', '[']).map(|step| step.trim_end_matches(']').trim()) {
        let step = step.trim_matches(['"', '\'']);
        if step.is_empty() {
            continue;
        }
        let next = match value {
            Value::Object(map) => map.get(step),
            Value::Array(items) => step.parse::<usize>().ok().and_then(|index| items.get(index)),
            _ => None,
        };
        let Some(next) = next else {
            let there = match value {
                Value::Object(map) => {
                    let keys: Vec<&str> = map.keys().take(20).map(String::as_str).collect();
                    format!("its keys: {}", keys.join(", "))
                }
                Value::Array(items) => format!("an array of {}", items.len()),
                Value::String(_) => "it is text".into(),
                other => format!("it is {other}"),
            };
            return Err((at, step.into(), there));
        };
        at = format!("{at}.{step}");
        value = next;
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(template: Value, expected: Result<Value, &str>) {
        let a = Arc::new(json!({"n": 7, "list": [{"x": "one"}, "two"], "t": "text"}));
        let lookup = |name: &str| match name {
            "a" => Named::Value(a.clone()),
            "foreign" => Named::Foreign,
            _ => Named::Unknown("a".into()),
        };
        match expected {
            Ok(value) => assert_eq!(fill(&template, &lookup), Ok(value)),
            Err(part) => {
                let error = fill(&template, &lookup).unwrap_err().to_string();
                assert!(error.contains(part), "{error}");
            }
        }
    }

    #[test]
    fn templates_are_filled() {
        check(json!("{{a.n}}"), Ok(json!(7)));
        check(json!("n is {{ a.n }}!"), Ok(json!("n is 7!")));
        check(json!({"deep": ["{{a.list[0].x}}", "{{a.list.1}}"]}), Ok(json!({"deep": ["one", "two"]})));
        check(json!("{{a.list}}"), Ok(json!([{"x": "one"}, "two"])));
        check(
            json!("{{a}}-{{a.t}}"),
            Ok(json!("{\"n\":7,\"list\":[{\"x\":\"one\"},\"two\"],\"t\":\"text\"}-text")),
        );
        check(json!("no {braces} here"), Ok(json!("no {braces} here")));
        check(json!("{{foreign.x}} {{a.n}}"), Ok(json!("{{foreign.x}} 7")));
        check(json!("{{b.n}}"), Err("none of: a"));
        check(json!("{{a.missing}}"), Err("its keys: n, list, t"));
        check(json!("{{a.list.9}}"), Err("an array of 2"));
    }

    #[test]
    fn names_are_found() {
        let value = json!({"x": "{{a.b}} {{c}}", "y": ["{{ref:r1.z}}"]});
        assert_eq!(names(&value).into_iter().collect::<Vec<_>>(), ["a", "c"]);
        assert_eq!(references(&value).into_iter().collect::<Vec<_>>(), ["r1"]);
    }
}
