//! The value of a result, as templates, filters, previews and reads see it.
//!
//! The value is the `structuredContent`, unless that is only a wrapper: exactly one member, a string that the
//! text blocks repeat, or a member named in `_meta`. For a wrapper, and without `structuredContent`, the
//! value is the text, parsed as JSON if possible; several JSON objects or arrays, one a line, are an array.
//! Without text, it is the array of blocks.

use std::{borrow::Cow, sync::Arc};

use nonet_base::text::clip;
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use super::{is_media, preview::RawParts, text_of};
use crate::template::TemplateSource;

/// The value of a result as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResultBody {
    /// One JSON value.
    Json(String),
    /// JSON objects or arrays, one a line: the items of an array.
    JsonLines(String),
    /// Text that is not JSON.
    Text(String),
}

/// The value of a result, with related data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultValue {
    /// The value itself, without its wrapper.
    pub body: ResultBody,
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
            match text.is_empty() && wrapper(result).is_none() {
                true => blocks_of(result),
                false => ResultBody::of(text).into_value(),
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

/// Returns whether a text is JSON, and not merely readable as a number: `3.10` is a version, and a number
/// with too many digits to represent is an identifier.
fn is_json(text: &str) -> bool {
    let trimmed = text.trim();
    if trimmed.starts_with(|c: char| c == '-' || c.is_ascii_digit()) {
        return serde_json::from_str::<serde_json::Number>(trimmed).is_ok_and(|n| n.to_string() == trimmed);
    }
    serde_json::from_str::<&RawValue>(text).is_ok()
}

/// Returns the lines of a text that are not blank.
pub(super) fn rows_of(text: &str) -> impl Iterator<Item = &str> + Clone {
    text.lines().map(str::trim).filter(|line| !line.is_empty())
}

/// Returns whether a text is several JSON objects or arrays, one a line.
pub(super) fn is_json_lines(text: &str) -> bool {
    let is_row = |row: &str| row.starts_with(['{', '[']) && serde_json::from_str::<&RawValue>(row).is_ok();
    rows_of(text).all(is_row) && rows_of(text).nth(1).is_some()
}

/// Returns the data of a picture or another binary that is the only block.
fn only_data(blocks: &Value) -> Option<String> {
    let [block] = blocks.as_array()?.as_slice() else { return None };
    let data = match is_media(block) {
        true => block.get("data"),
        false => block.get("resource")?.get("blob"),
    };
    data?.as_str().map(String::from)
}

/// Returns the value of a result as templates see it.
pub fn source_of(result: &Arc<Value>) -> TemplateSource {
    // Never fails for a value that was parsed before.
    let source = ResultValue::of(result).into_source().unwrap_or_else(|_| value_of(result).into());
    TemplateSource { result: Some(result.clone()), ..source }
}

/// The `_meta` key that names the member of `structuredContent` that wraps JSON other than an object.
pub const WRAPPER: &str = "nonet/wrapper";

/// Returns the member of `structuredContent` that only wraps the result's text.
pub(super) fn wrapper(result: &Value) -> Option<&str> {
    let members = result.get("structuredContent")?.as_object().filter(|members| members.len() == 1)?;
    let (name, inside) = members.iter().next()?;
    let named = result.get("_meta").and_then(|meta| meta.get(WRAPPER)?.as_str());
    let repeats = || inside.as_str().is_some_and(|inside| inside.trim() == text_of(result).trim());
    (named == Some(name) || repeats()).then_some(name)
}

impl ResultValue {
    /// Returns the value of a result. For a result that is still text, see [`Self::read`].
    pub fn of(result: &Value) -> ResultValue {
        let text = text_of(result);
        match result.get("structuredContent").filter(|value| !value.is_null()) {
            None if text.is_empty() => ResultValue::from_blocks(&blocks_of(result)),
            None => ResultValue::from_text(text, None),
            Some(structured) => match wrapper(result) {
                Some(name) => ResultValue::from_text(text, Some(name.into())),
                None => ResultValue::structured(structured.to_string(), text),
            },
        }
    }

    /// Returns the value of a result given as JSON text.
    pub fn read(result: &str) -> ResultValue {
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
            return ResultValue { body: ResultBody::Json(result.into()), wrapper: None, text: None };
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
            None if text.is_empty() => ResultValue::from_blocks(
                &serde_json::from_str(result).map(|whole| blocks_of(&whole)).unwrap_or_default(),
            ),
            None => ResultValue::from_text(text, None),
            Some(raw) => match wrapped(raw, &text, parts.meta) {
                Some(name) => ResultValue::from_text(text, Some(name)),
                None => ResultValue::structured(raw.get().into(), text),
            },
        }
    }

    fn from_text(text: String, wrapper: Option<String>) -> ResultValue {
        ResultValue { body: ResultBody::of(text), wrapper, text: None }
    }

    /// Returns the value of a result without text. The text of a single picture is its data.
    fn from_blocks(blocks: &Value) -> ResultValue {
        match blocks {
            Value::Array(_) => {
                ResultValue::structured(blocks.to_string(), only_data(blocks).unwrap_or_default())
            }
            _ => ResultValue::from_text(String::new(), None),
        }
    }

    fn structured(json: String, text: String) -> ResultValue {
        ResultValue {
            body: ResultBody::Json(json),
            wrapper: None,
            text: Some(text).filter(|text| !text.is_empty()),
        }
    }

    /// Returns the value as templates see it. Fails only for JSON that cannot be represented, such as a
    /// number out of range.
    pub fn into_source(self) -> Result<TemplateSource, serde_json::Error> {
        let ResultValue { body, wrapper, text } = self;
        let (json, text) = match body {
            ResultBody::Text(text) => {
                return Ok(TemplateSource {
                    value: Value::String(text),
                    wrapper,
                    ..TemplateSource::default()
                });
            }
            ResultBody::Json(json) => (serde_json::from_str(&json)?, text.unwrap_or(json)),
            lines @ ResultBody::JsonLines(_) => (serde_json::from_str(&lines.array())?, lines.into_text()),
        };
        Ok(TemplateSource { value: json, wrapper, text: Some(text), ..TemplateSource::default() })
    }

    /// Explains why a jq filter that begins with a member finds nothing: the value does not have the member.
    /// `None` if it does, or if the filter provides for that. With `is_quick`, a member of any part counts,
    /// so that the value is not parsed.
    pub fn lacks(&self, filter: &str, is_quick: bool) -> Option<String> {
        let key = first_key(filter)?;
        if self.wrapper.as_ref() == Some(&key) {
            return None;
        }
        let there = match &self.body {
            ResultBody::Text(_) => "the value is text".into(),
            ResultBody::JsonLines(text) => format!("the value is an array of {}", rows_of(text).count()),
            ResultBody::Json(json) if is_quick && json.contains(&Value::from(&*key).to_string()) => {
                return None;
            }
            ResultBody::Json(json) => match RawParts::of(serde_json::from_str(json).ok()?) {
                RawParts::Members(members) if members.iter().any(|(name, _)| **name == *key) => return None,
                RawParts::Members(members) => {
                    let keys: Vec<&str> = members.iter().take(SHOWN_KEYS).map(|(name, _)| &**name).collect();
                    format!("keys: {}", clip(&keys.join(", "), 400))
                }
                RawParts::Rows(rows) => format!("the value is an array of {}", rows.len()),
                RawParts::None => format!("the value is {}", clip(json, 40)),
            },
        };
        Some(format!("no `{}`; {there}", clip(&key, 60)))
    }

    /// Returns the values that a jq filter may be written for, as JSON, likeliest first: the value, or the
    /// value in its wrapper if the filter begins with the wrapper or names it. Each is built when it is asked
    /// for.
    pub fn readings(&self, filter: &str) -> impl Iterator<Item = Cow<'_, str>> {
        let wrapper = self.wrapper.as_deref();
        let is_named = wrapper.is_some_and(|name| filter.contains(name));
        let own = |parsed: &RawValue| match RawParts::of(parsed) {
            RawParts::Members(members) => members.iter().any(|(key, _)| Some(&**key) == wrapper),
            _ => false,
        };
        let begins = wrapper.is_some_and(|name| begins_with(filter, name))
            && !serde_json::from_str::<&RawValue>(&self.body.json()).is_ok_and(own);
        // A filter may parse or split the server's text itself.
        let has_text = match &self.body {
            ResultBody::JsonLines(_) => true,
            ResultBody::Json(_) => is_named,
            ResultBody::Text(_) => false,
        };
        let name = Value::from(wrapper);
        // Whether the reading is in the wrapper, and whether it is the text.
        let readings: &[(bool, bool)] = match (begins, is_named) {
            (true, _) => &[(true, false), (true, true), (false, false)],
            (false, true) => &[(false, false), (true, false), (true, true)],
            (false, false) => &[(false, false), (false, true)],
        };
        readings.iter().filter(move |(_, is_text)| has_text || !is_text).map(move |(is_wrapped, is_text)| {
            let inside = if *is_text { self.body.text_json().into() } else { self.body.json() };
            if *is_wrapped { format!("{{{name}:{inside}}}").into() } else { inside }
        })
    }
}

impl ResultBody {
    /// Reads the text of a result.
    fn of(text: String) -> ResultBody {
        match () {
            () if is_json(&text) => ResultBody::Json(text),
            () if is_json_lines(&text) => ResultBody::JsonLines(text),
            () => ResultBody::Text(text),
        }
    }

    /// Returns the value as JSON text.
    pub fn json(&self) -> Cow<'_, str> {
        match self {
            ResultBody::Json(text) => text.into(),
            ResultBody::JsonLines(_) => self.array().into(),
            ResultBody::Text(_) => self.text_json().into(),
        }
    }

    /// Returns the text that the value was read from, as a JSON string.
    fn text_json(&self) -> String {
        let (ResultBody::Json(text) | ResultBody::JsonLines(text) | ResultBody::Text(text)) = self;
        Value::from(&**text).to_string()
    }

    /// Returns the value; text if no type of Nonet's can hold it.
    pub fn into_value(self) -> Value {
        let value = match &self {
            ResultBody::Json(text) => serde_json::from_str(text).ok(),
            ResultBody::JsonLines(_) => serde_json::from_str(&self.array()).ok(),
            ResultBody::Text(_) => None,
        };
        value.unwrap_or_else(|| Value::String(self.into_text()))
    }

    /// Returns the text that the value was read from.
    pub fn into_text(self) -> String {
        let (ResultBody::Json(text) | ResultBody::JsonLines(text) | ResultBody::Text(text)) = self;
        text
    }

    /// Returns lines of JSON as an array.
    fn array(&self) -> String {
        let (ResultBody::Json(text) | ResultBody::JsonLines(text) | ResultBody::Text(text)) = self;
        let mut array = String::with_capacity(text.len() + 2);
        for row in rows_of(text) {
            array.push(if array.is_empty() { '[' } else { ',' });
            array.push_str(row);
        }
        array.push(']');
        array
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

/// How many keys of a value are named.
const SHOWN_KEYS: usize = 20;

/// Splits a jq filter that begins with a path after the first key of the path.
fn split_key(filter: &str) -> Option<(String, &str)> {
    let path = filter.trim_start_matches(|c: char| c.is_whitespace() || matches!(c, '(' | '['));
    let rest = path.strip_prefix('.')?;
    if let Some(text) =
        rest.strip_prefix('[').map(str::trim_start).or(Some(rest)).filter(|rest| rest.starts_with('"'))
    {
        let mut read = serde_json::Deserializer::from_str(text).into_iter::<String>();
        let key = read.next()?.ok()?;
        return Some((key, &text[read.byte_offset()..]));
    }
    let end = rest.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(rest.len());
    (end > 0).then(|| (rest[..end].into(), &rest[end..]))
}

/// Returns whether the first path of a jq filter begins with this member.
fn begins_with(filter: &str, name: &str) -> bool {
    split_key(filter).is_some_and(|(key, _)| key == name)
}

/// Returns the member with which a jq filter begins, unless the filter provides for a value without it.
fn first_key(filter: &str) -> Option<String> {
    let (key, rest) = split_key(filter)?;
    let is_optional = rest.trim_start_matches(']').trim_start().starts_with('?') || filter.contains("//");
    (!is_optional).then_some(key)
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
            for whole in [ResultValue::of(&result), ResultValue::read(&result.to_string())] {
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
            assert_eq!(ResultValue::read(&result.to_string()).into_source().unwrap().value, value);
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
            assert_eq!(ResultValue::of(&result).into_source().unwrap().value, value, "{result}");
            assert_eq!(
                ResultValue::read(&result.to_string()).into_source().unwrap().value,
                value,
                "{result}"
            );
        }
    }

    #[test]
    fn the_text_of_a_value_is_kept() {
        let check = |result: Value, text: Option<&str>| {
            assert_eq!(ResultValue::of(&result).into_source().unwrap().text.as_deref(), text, "{result}");
        };
        check(result("[ 1 ]", json!({ "content": "[ 1 ]" })), Some("[ 1 ]"));
        check(result("two rows", json!({ "rows": [1, 2] })), Some("two rows"));
        check(json!({ "structuredContent": { "rows": [1] } }), Some("{\"rows\":[1]}"));
        check(result("plain", json!({ "content": "plain" })), None);
    }

    #[test]
    fn a_filter_may_begin_with_the_wrapper() {
        let check = |text: &str, filter: &str, first: &str| {
            let whole = ResultValue::of(&result(text, json!({ "content": text })));
            assert_eq!(whole.readings(filter).next().unwrap(), first, "{filter}");
        };
        check("[1]", ".[0]", "[1]");
        check("[1]", ".content[0]", "{\"content\":[1]}");
        check("[1]", ".[\"content\"][0]", "{\"content\":[1]}");
        check("[1]", "[.content[0]]", "{\"content\":[1]}");
        check("[1]", ".contents", "[1]");
        check("plain", ".content", "{\"content\":\"plain\"}");
        let count = |filter: &str| {
            ResultValue::of(&result("plain", json!({ "content": "plain" }))).readings(filter).count()
        };
        assert_eq!((count("keys"), count(".rows | length"), count("{a: .content}")), (1, 1, 2));
        check("{\"content\": 1}", ".content", "{\"content\": 1}");
        let all = ResultValue::of(&result("[1]", json!({ "content": "[1]" })));
        let all: Vec<Cow<'_, str>> = all.readings(". as $x | .content").collect();
        assert_eq!(all, ["[1]", "{\"content\":[1]}", "{\"content\":\"[1]\"}"]);
        let plain = ResultValue::of(&json!({ "content": [{ "type": "text", "text": "[1]" }] }));
        let borrowed = plain.readings(".").all(|reading| matches!(reading, Cow::Borrowed("[1]")));
        assert!(borrowed, "an ordinary value is not copied");
    }

    #[test]
    fn lines_of_json_are_an_array() {
        let check = |text: &str, value: Value| {
            let result = json!({ "content": [{ "type": "text", "text": text }] });
            assert_eq!(value_of(&result), value, "{text}");
            for whole in [ResultValue::of(&result), ResultValue::read(&result.to_string())] {
                let source = whole.clone().into_source().unwrap();
                assert_eq!(source.value, value, "{text}");
                assert!(value.is_string() || source.text.as_deref() == Some(text), "{source:?}");
                let json = whole.readings(".").next().unwrap();
                assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), value, "{text}");
            }
        };
        check("{\"a\":1}\r\n\n  [2]\n", json!([{ "a": 1 }, [2]]));
        check("{\"a\":1}", json!({ "a": 1 }));
        check("{\"a\":1}\nthe end", json!("{\"a\":1}\nthe end"));
        check("1\n2", json!("1\n2"));
        check("\n\n", json!("\n\n"));
        // Several blocks with one value each are lines too.
        let blocks =
            json!({ "content": [{ "type": "text", "text": "{}" }, { "type": "text", "text": "[]" }] });
        assert_eq!(value_of(&blocks), json!([{}, []]));
    }

    #[test]
    fn a_filter_that_begins_beside_the_value_is_known() {
        let check = |text: &str, filter: &str, expected: Option<&str>| {
            let whole = ResultValue::of(&json!({ "content": [{ "type": "text", "text": text }] }));
            assert_eq!(whole.lacks(filter, false).as_deref(), expected, "{filter}");
            assert_eq!(whole.lacks(filter, true).as_deref(), expected, "{filter}");
        };
        let events = r#"{"events": [1], "a b": 2}"#;
        check(events, ".result.events|length", Some("no `result`; keys: events, a b"));
        check(events, "[ .[\"result\"][] ]", Some("no `result`; keys: events, a b"));
        for filter in
            [".events", ".\"a b\"", ".[\"a b\"]", ".", ".[0]", "keys", ".error?", ".error // 1", ".[\"x\"]?"]
        {
            check(events, filter, None);
        }
        check("[1, 2]", ".events", Some("no `events`; the value is an array of 2"));
        check("{}\n{}\n{}", ".events", Some("no `events`; the value is an array of 3"));
        check("plain", ".events", Some("no `events`; the value is text"));
        let wrapped = ResultValue::of(&result("plain", json!({ "content": "plain" })));
        assert_eq!(wrapped.lacks(".content", false), None);
        let inside = ResultValue::of(&json!({ "structuredContent": { "data": { "events": [1] } } }));
        assert_eq!(inside.lacks(".events", false).as_deref(), Some("no `events`; keys: data"));
        assert_eq!(inside.lacks(".events", true), None, "a part has it");
    }

    #[test]
    fn the_text_of_a_single_picture_is_its_data() {
        let picture = json!({ "type": "image", "data": "TUFQ", "mimeType": "image/png" });
        let check = |blocks: Value, text: &str| {
            let result = json!({ "content": blocks });
            for whole in [ResultValue::of(&result), ResultValue::read(&result.to_string())] {
                assert_eq!(whole.into_source().unwrap().text.as_deref(), Some(text));
            }
        };
        check(json!([picture]), "TUFQ");
        check(json!([{ "type": "resource", "resource": { "uri": "x:y", "blob": "QQ==" } }]), "QQ==");
        let two = json!([picture, picture]);
        check(two.clone(), &two.to_string());
    }
}
