//! The value of a result, as templates, filters, previews and reads see it.
//!
//! The value is the `structuredContent`, unless that is only a wrapper: exactly one member, a string that the text blocks
//! repeat, or a member named in `_meta`. For a wrapper, and without `structuredContent`, the value is the text, parsed as
//! JSON if possible. Without text, it is the array of blocks.

use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use super::{preview::RawParts, text_of};
use crate::template::Source;

/// The value of a result as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    Json(String),
    /// Text that is not JSON.
    Text(String),
}

/// The value of a result, with related data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whole {
    pub body: Body,
    /// The member of `structuredContent` that wrapped it. A path may begin with this member.
    pub wrapper: Option<String>,
    /// The text of the result, if the value is not that text.
    text: Option<String>,
}

/// Returns the value of a result.
pub fn value_of(result: &Value) -> Value {
    match result.get("structuredContent").filter(|value| !value.is_null()) {
        Some(structured) if wrapper(result).is_none() => structured.clone(),
        _ => {
            let text = text_of(result);
            match is_json(&text) {
                true => serde_json::from_str(&text).unwrap_or(Value::String(text)),
                false if text.is_empty() && wrapper(result).is_none() => blocks_of(result),
                false => Value::String(text),
            }
        }
    }
}

/// Returns the blocks of a result without text, if any: images, audio, links.
fn blocks_of(result: &Value) -> Value {
    match result.get("content") {
        Some(Value::Array(blocks)) if blocks.iter().any(|block| block["type"] != "text") => json!(blocks),
        _ => json!(""),
    }
}

/// Returns whether a text is JSON, and not merely readable as a number: `3.10` is a version, and a number with too many
/// digits to represent is an identifier.
fn is_json(text: &str) -> bool {
    let trimmed = text.trim();
    if trimmed.starts_with(|c: char| c == '-' || c.is_ascii_digit()) {
        return serde_json::from_str::<serde_json::Number>(trimmed).is_ok_and(|n| n.to_string() == trimmed);
    }
    serde_json::from_str::<&RawValue>(text).is_ok()
}

/// Returns the value of a result as templates see it.
pub fn source_of(result: &Value) -> Source {
    // Never fails for a value that was parsed before.
    Whole::of(result).into_source().unwrap_or_else(|_| value_of(result).into())
}

/// The `_meta` key that names the member of `structuredContent` that wraps JSON other than an object.
pub const WRAPPER: &str = "nonet/wrapper";

/// Returns the member of `structuredContent` that only wraps the result's text.
pub fn wrapper(result: &Value) -> Option<&str> {
    let members = result.get("structuredContent")?.as_object().filter(|members| members.len() == 1)?;
    let (name, inside) = members.iter().next()?;
    let named = result.get("_meta").and_then(|meta| meta.get(WRAPPER)?.as_str());
    let repeats = || inside.as_str().is_some_and(|inside| inside.trim() == text_of(result).trim());
    (named == Some(name) || repeats()).then_some(name)
}

impl Whole {
    pub fn of(result: &Value) -> Whole {
        let text = text_of(result);
        match result.get("structuredContent").filter(|value| !value.is_null()) {
            None if text.is_empty() => match blocks_of(result) {
                Value::String(_) => Whole::from_text(text, None),
                blocks => Whole::structured(blocks.to_string(), text),
            },
            None => Whole::from_text(text, None),
            Some(structured) => match wrapper(result) {
                Some(name) => Whole::from_text(text, Some(name.into())),
                None => Whole::structured(structured.to_string(), text),
            },
        }
    }

    /// Returns the value of a result given as JSON text.
    pub fn read(result: &str) -> Whole {
        #[derive(Deserialize)]
        struct Parts<'a> {
            #[serde(default, rename = "structuredContent", borrow)]
            structured: Option<&'a RawValue>,
            #[serde(default, borrow)]
            content: Vec<Block<'a>>,
            #[serde(default, rename = "_meta", borrow)]
            meta: Option<&'a RawValue>,
        }
        #[derive(Deserialize)]
        struct Block<'a> {
            #[serde(default, borrow)]
            text: Option<&'a RawValue>,
            #[serde(default, borrow)]
            resource: Option<EmbeddedText<'a>>,
        }
        #[derive(Deserialize)]
        struct EmbeddedText<'a> {
            #[serde(default, borrow)]
            text: Option<&'a RawValue>,
        }
        let Ok(parts) = serde_json::from_str::<Parts<'_>>(result) else {
            return Whole { body: Body::Json(result.into()), wrapper: None, text: None };
        };
        let mut texts: Vec<&RawValue> = parts.content.iter().filter_map(|block| block.text).collect();
        if texts.is_empty() {
            texts.extend(parts.content.iter().filter_map(|block| block.resource.as_ref()?.text));
        }
        let mut text = String::new();
        for raw in texts {
            if !text.is_empty() {
                text.push('\n');
            }
            match serde_json::from_str::<String>(raw.get()) {
                Ok(part) if text.is_empty() => text = part,
                Ok(part) => text.push_str(&part),
                Err(_) => {}
            }
        }
        match parts.structured.filter(|raw| raw.get() != "null") {
            None if text.is_empty() => match serde_json::from_str(result).map(|whole| blocks_of(&whole)) {
                Ok(blocks @ Value::Array(_)) => Whole::structured(blocks.to_string(), text),
                _ => Whole::from_text(text, None),
            },
            None => Whole::from_text(text, None),
            Some(raw) => match wrapped(raw, &text, parts.meta) {
                Some(name) => Whole::from_text(text, Some(name)),
                None => Whole::structured(raw.get().into(), text),
            },
        }
    }

    fn from_text(text: String, wrapper: Option<String>) -> Whole {
        let body = if is_json(&text) { Body::Json(text) } else { Body::Text(text) };
        Whole { body, wrapper, text: None }
    }

    fn structured(json: String, text: String) -> Whole {
        Whole { body: Body::Json(json), wrapper: None, text: Some(text).filter(|text| !text.is_empty()) }
    }

    /// Returns the value as templates see it. Fails only for JSON that cannot be represented, such as a number out of range.
    pub fn into_source(self) -> Result<Source, serde_json::Error> {
        let Whole { body, wrapper, text } = self;
        Ok(match body {
            Body::Text(text) => Source { value: Value::String(text), wrapper, ..Source::default() },
            Body::Json(json) => {
                let value = serde_json::from_str(&json)?;
                Source { value, wrapper, text: Some(text.unwrap_or(json)), ..Source::default() }
            }
        })
    }

    /// Returns the values that a jq filter may be written for, as JSON, likeliest first: the value, or the value in its
    /// wrapper if the filter begins with the wrapper or names it.
    pub fn readings(self, filter: &str) -> Vec<String> {
        let json = self.body.into_json();
        let Some(name) = self.wrapper else { return vec![json] };
        let begins = begins_with(filter, &name);
        let mentioned = filter.contains(&name);
        let own = |parsed: &RawValue| match RawParts::of(parsed) {
            RawParts::Members(members) => members.iter().any(|(key, _)| **key == *name),
            _ => false,
        };
        let has_its_own = begins && serde_json::from_str::<&RawValue>(&json).is_ok_and(own);
        let name = Value::String(name);
        // As JSON, and as the server's text: a filter may parse the text itself.
        let wrapped = [format!("{{{name}:{json}}}"), format!("{{{name}:{}}}", Value::String(json.clone()))];
        let wrapped = wrapped.into_iter().take(if json.starts_with('"') { 1 } else { 2 });
        match (begins && !has_its_own, mentioned) {
            (true, _) => wrapped.chain([json]).collect(),
            (false, true) => [json].into_iter().chain(wrapped).collect(),
            (false, false) => vec![json],
        }
    }
}

impl Body {
    /// Returns the value as JSON text.
    pub fn into_json(self) -> String {
        match self {
            Body::Json(text) => text,
            Body::Text(text) => Value::String(text).to_string(),
        }
    }
}

/// Returns the [`wrapper`] of a result in JSON text.
fn wrapped(structured: &RawValue, text: &str, meta: Option<&RawValue>) -> Option<String> {
    let RawParts::Members(members) = RawParts::of(structured) else { return None };
    let [(name, inside)] = &members[..] else { return None };
    let meta = meta.and_then(|meta| serde_json::from_str::<Value>(meta.get()).ok());
    if meta.is_some_and(|meta| meta.get(WRAPPER).is_some_and(|named| *named == **name)) {
        return Some(name.to_string());
    }
    let inside = serde_json::from_str::<String>(inside.get()).ok()?;
    (inside.trim() == text.trim()).then(|| name.to_string())
}

/// Returns whether the first path of a jq filter begins with this member.
fn begins_with(filter: &str, name: &str) -> bool {
    let path = filter.trim_start_matches(|c: char| c.is_whitespace() || matches!(c, '(' | '['));
    let Some(rest) = path.strip_prefix('.') else { return false };
    let quoted = Value::String(name.into()).to_string();
    let bracketed = format!("[{quoted}]");
    if rest.starts_with(&quoted) || rest.starts_with(&bracketed) {
        return true;
    }
    rest.strip_prefix(name).is_some_and(|rest| !rest.starts_with(|c: char| c == '_' || c.is_alphanumeric()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn result(text: &str, structured: Value) -> Value {
        json!({ "content": [{ "type": "text", "text": text }], "structuredContent": structured })
    }

    #[test]
    fn a_wrapper_is_not_the_value() {
        let check = |result: Value, value: Value, wrapper: Option<&str>| {
            assert_eq!(value_of(&result), value, "{result}");
            for whole in [Whole::of(&result), Whole::read(&result.to_string())] {
                assert_eq!(whole.wrapper.as_deref(), wrapper, "{result}");
                assert_eq!(whole.into_source().unwrap().value, value, "{result}");
            }
        };
        let tax = "def tax(x):\n    return x\n";
        check(result(tax, json!({ "content": tax })), json!(tax), Some("content"));
        check(result(tax, json!({ "content": tax.trim() })), json!(tax), Some("content"));
        check(
            result("{\"rows\": [[1]]}", json!({ "result": "{\"rows\": [[1]]}" })),
            json!({ "rows": [[1]] }),
            Some("result"),
        );
        check(result("", json!({ "result": "" })), json!(""), Some("result"));
        // These members add something to the text.
        check(result("done", json!({ "id": "x1" })), json!({ "id": "x1" }), None);
        check(result("7", json!({ "result": 7 })), json!({ "result": 7 }), None);
        check(result("a", json!({ "a": "a", "b": "b" })), json!({ "a": "a", "b": "b" }), None);
        check(result("a", json!("a")), json!("a"), None);
        check(result("[1]", Value::Null), json!([1]), None);
        let named = |mut result: Value, name: &str| {
            result["_meta"] = json!({ WRAPPER: name });
            result
        };
        check(named(result("[1]", json!({ "result": [1] })), "result"), json!([1]), Some("result"));
        check(named(result("[1]", json!({ "result": [1] })), "rows"), json!({ "result": [1] }), None);
    }

    #[test]
    fn text_is_not_taken_for_a_number_that_it_is_not() {
        let check = |text: &str, value: Value| {
            let result = json!({ "content": [{ "type": "text", "text": text }] });
            assert_eq!(value_of(&result), value);
            assert_eq!(Whole::read(&result.to_string()).into_source().unwrap().value, value);
        };
        check("12", json!(12));
        check("-1.5", json!(-1.5));
        check("3.10", json!("3.10"));
        check("1234e567", json!("1234e567"));
        check("12345678901234567890123", json!("12345678901234567890123"));
        check("007", json!("007"));
        check("[3.10]", json!([3.10]));
    }

    #[test]
    fn what_has_no_text_is_its_blocks() {
        let picture = json!({ "type": "image", "data": "AAAA", "mimeType": "image/png" });
        let embedded = json!({ "type": "resource", "resource": { "uri": "x:y", "text": "inside" } });
        for (blocks, value) in [
            (json!([picture]), json!([picture])),
            (json!([embedded]), json!("inside")),
            (json!([{ "type": "text", "text": "said" }, embedded]), json!("said")),
            (json!([]), json!("")),
        ] {
            let result = json!({ "content": blocks });
            assert_eq!(value_of(&result), value, "{result}");
            assert_eq!(Whole::of(&result).into_source().unwrap().value, value, "{result}");
            assert_eq!(Whole::read(&result.to_string()).into_source().unwrap().value, value, "{result}");
        }
    }

    #[test]
    fn the_text_of_a_value_is_kept() {
        let check = |result: Value, text: Option<&str>| {
            assert_eq!(Whole::of(&result).into_source().unwrap().text.as_deref(), text, "{result}");
        };
        check(result("[ 1 ]", json!({ "content": "[ 1 ]" })), Some("[ 1 ]"));
        check(result("two rows", json!({ "rows": [1, 2] })), Some("two rows"));
        check(json!({ "structuredContent": { "rows": [1] } }), Some("{\"rows\":[1]}"));
        check(result("plain", json!({ "content": "plain" })), None);
    }

    #[test]
    fn a_filter_may_begin_with_the_wrapper() {
        let check = |text: &str, filter: &str, first: &str| {
            let whole = Whole::of(&result(text, json!({ "content": text })));
            assert_eq!(whole.readings(filter)[0], first, "{filter}");
        };
        check("[1]", ".[0]", "[1]");
        check("[1]", ".content[0]", "{\"content\":[1]}");
        check("[1]", ".[\"content\"][0]", "{\"content\":[1]}");
        check("[1]", "[.content[0]]", "{\"content\":[1]}");
        check("[1]", ".contents", "[1]");
        check("plain", ".content", "{\"content\":\"plain\"}");
        let count =
            |filter: &str| Whole::of(&result("plain", json!({ "content": "plain" }))).readings(filter).len();
        assert_eq!((count("keys"), count(".rows | length"), count("{a: .content}")), (1, 1, 2));
        check("{\"content\": 1}", ".content", "{\"content\": 1}");
    }
}
