//! Previews: the kind of a large text and its beginning, in a few kilobytes.

use std::borrow::Cow;

use nonet_base::text::clip;
use serde::{Deserialize, Deserializer, de::MapAccess};
use serde_json::{Map, Value, json, value::RawValue};

use super::{
    blocks,
    condense::named,
    fetch, floor_boundary, json_len, long_text, read,
    value::{is_json_lines, rows_of, wrapper},
};

/// How many first rows of an array or a table a preview shows.
pub(super) const FIRST_ROWS: usize = 3;
/// How many members of an object a preview shows.
const SHOWN_MEMBERS: usize = 30;
/// How many lines determine the kind of a text.
const SAMPLE: usize = 20;
/// How deep a preview goes into nested values.
const DEPTH: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TextKind {
    Array,
    Object,
    /// JSON objects or arrays, one per line.
    JsonLines,
    /// Rows of cells under a header, with this separator.
    Table(char),
    Text,
}

/// Returns the kind of a result's value. Several texts together are plain text.
fn kind(result: &Value) -> TextKind {
    match result.get("structuredContent") {
        Some(Value::Array(_)) => return TextKind::Array,
        Some(Value::Object(_)) if wrapper(result).is_none() => return TextKind::Object,
        _ => {}
    }
    let texts = blocks(result).filter(|block| block.get("text").is_some()).count();
    let mut long = blocks(result).filter_map(long_text);
    match (long.next(), long.next()) {
        (Some((text, _)), None) if texts <= 1 => kind_of(text),
        _ => TextKind::Text,
    }
}

/// Returns a jq filter for the first read of an object: of its largest part.
fn first_filter(result: &Value) -> String {
    let largest = match result.get("structuredContent") {
        Some(Value::Object(members)) if wrapper(result).is_none() => {
            let largest = members.iter().max_by_key(|(_, value)| json_len(value));
            largest.map(|(key, value)| (key.clone(), value.is_array(), value.is_object()))
        }
        _ => {
            let text = blocks(result).find_map(long_text).map_or("", |(text, _)| text);
            match serde_json::from_str::<&RawValue>(text).map(RawParts::of) {
                Ok(RawParts::Members(members)) => {
                    let largest = members.into_iter().max_by_key(|(_, value)| value.get().len());
                    largest.map(|(key, value)| {
                        let value = value.get();
                        (key.to_string(), value.starts_with('['), value.starts_with('{'))
                    })
                }
                _ => None,
            }
        }
    };
    match largest {
        Some((key, true, _)) => format!(".{}[:{}]", named(&key), read::PAGE_ROWS),
        Some((key, _, true)) => format!(".{} | keys", named(&key)),
        Some((key, _, _)) => format!(".{}", named(&key)),
        None => "keys".into(),
    }
}

fn kind_of(text: &str) -> TextKind {
    let start = text.trim_start();
    if start.starts_with(['[', '{']) && serde_json::from_str::<&RawValue>(text).is_ok() {
        return if start.starts_with('[') { TextKind::Array } else { TextKind::Object };
    }
    if is_json_lines(text) {
        return TextKind::JsonLines;
    }
    let mut lines = rows_of(text).take(SAMPLE).peekable();
    let Some(header) = lines.peek().copied() else { return TextKind::Text };
    let cells = |line: &str, between: char| line.matches(between).count();
    let even = |between: &char| {
        let expected = cells(header, *between);
        // Prose has commas too, but a header row has no full stops.
        let few = if *between == ',' { 2 } else { 1 };
        expected >= few
            && !header.contains(". ")
            && lines.clone().count() > 2
            && lines.clone().filter(|line| cells(line, *between) >= expected).count() * 10
                >= lines.clone().count() * 9
    };
    ['\t', '|', ';', ',']
        .iter()
        .find(|between| even(between))
        .map_or(TextKind::Text, |between| TextKind::Table(*between))
}

/// Returns a preview of at most about `max` bytes.
pub(super) fn of(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.into();
    }
    match kind_of(text) {
        TextKind::Array | TextKind::Object => match serde_json::from_str::<&RawValue>(text) {
            Ok(raw) => outline(raw, max, 0).to_string(),
            Err(_) => head_and_tail(text, max),
        },
        TextKind::JsonLines => {
            let rows = || rows_of(text);
            let first =
                rows().take(FIRST_ROWS).filter_map(|line| serde_json::from_str::<&RawValue>(line).ok());
            json!({
                "preview": "json_lines",
                "count": rows().count(),
                "shape": rows().next().and_then(|line| serde_json::from_str::<&RawValue>(line).ok()).map(shape),
                "first": first.map(|raw| shortened(raw, max / FIRST_ROWS, 1)).collect::<Vec<_>>(),
            })
            .to_string()
        }
        TextKind::Table(between) => table(text, between, max),
        TextKind::Text => head_and_tail(text, max),
    }
}

/// Returns an array's or object's kind, size and beginning.
fn outline(raw: &RawValue, max: usize, depth: usize) -> Value {
    match RawParts::of(raw) {
        RawParts::Rows(rows) => {
            let mut first = Vec::new();
            let mut left = max;
            for row in rows.iter().take(FIRST_ROWS) {
                let row = shortened(row, left / 2, depth + 1);
                let size = json_len(&row);
                if size > left && !first.is_empty() {
                    break;
                }
                left = left.saturating_sub(size);
                first.push(row);
            }
            json!({ "preview": "array", "count": rows.len(), "shape": rows.first().map(|row| shape(row)), "first": first })
        }
        RawParts::Members(members) => {
            let share = max / members.len().clamp(1, SHOWN_MEMBERS);
            let shown: Map<String, Value> = members
                .iter()
                .take(SHOWN_MEMBERS)
                .map(|(key, value)| {
                    let large_rows =
                        value.get().starts_with('[') && value.get().len() > share && depth < DEPTH;
                    let shown = if large_rows {
                        outline(value, share, depth + 1)
                    } else {
                        shortened(value, share, depth + 1)
                    };
                    (key.to_string(), shown)
                })
                .collect();
            json!({ "preview": "object", "keys": members.len(), "fields": shown })
        }
        RawParts::None => shape(raw),
    }
}

/// Returns a value cut to at most about `max` bytes: long strings are cut, and large parts replaced by their
/// types.
fn shortened(raw: &RawValue, max: usize, depth: usize) -> Value {
    let text = raw.get();
    if text.len() <= max {
        return serde_json::from_str(text).unwrap_or_default();
    }
    if text.starts_with('"') {
        return json!(clip(&read::string_head(text, max.max(80)), (max / 2).max(40)));
    }
    match RawParts::of(raw) {
        RawParts::Members(members) if max > 200 && depth < DEPTH => {
            let share = max / members.len().max(1);
            let shown = members.iter().take(SHOWN_MEMBERS);
            Value::Object(
                shown.map(|(key, value)| (key.to_string(), shortened(value, share, depth + 1))).collect(),
            )
        }
        _ => shape(raw),
    }
}

/// Returns the types of a value and of its direct parts.
fn shape(raw: &RawValue) -> Value {
    match RawParts::of(raw) {
        RawParts::Members(members) => {
            let shown = members.iter().take(SHOWN_MEMBERS);
            Value::Object(shown.map(|(key, value)| (key.to_string(), json!(type_name(value)))).collect())
        }
        _ => json!(type_name(raw)),
    }
}

fn type_name(raw: &RawValue) -> String {
    let text = raw.get();
    match text.as_bytes().first() {
        Some(b'"') => format!("string ({} bytes)", text.len().saturating_sub(2)),
        Some(b'n') => "null".into(),
        Some(b't' | b'f') => "boolean".into(),
        _ => match RawParts::of(raw) {
            RawParts::Rows(rows) => format!("array ({})", rows.len()),
            RawParts::Members(members) => format!("object ({} keys)", members.len()),
            RawParts::None => "number".into(),
        },
    }
}

/// The direct parts of a JSON value, as slices of its text.
pub(super) enum RawParts<'a> {
    Rows(Vec<&'a RawValue>),
    Members(Vec<(Cow<'a, str>, &'a RawValue)>),
    /// Neither an array nor an object.
    None,
}

impl<'a> RawParts<'a> {
    pub(super) fn of(raw: &'a RawValue) -> RawParts<'a> {
        let text = raw.get();
        match text.as_bytes().first() {
            Some(b'[') => serde_json::from_str(text).map_or(RawParts::None, RawParts::Rows),
            Some(b'{') => serde_json::from_str::<RawMembers<'a>>(text)
                .map_or(RawParts::None, |all| RawParts::Members(all.0)),
            _ => RawParts::None,
        }
    }
}

struct RawMembers<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de> Deserialize<'de> for RawMembers<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = RawMembers<'de>;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawMembers<'de>, A::Error> {
                let mut all = Vec::new();
                while let Some((key, value)) = map.next_entry::<String, &RawValue>()? {
                    all.push((key.into(), value));
                }
                Ok(RawMembers(all))
            }
        }
        deserializer.deserialize_map(Visitor)
    }
}

/// Returns the header, the first and last rows of a table, and the number of rows.
fn table(text: &str, between: char, max: usize) -> String {
    let rows = || text.lines().filter(|line| !line.trim().is_empty());
    let header = rows().next().unwrap_or_default();
    let columns: Vec<&str> = header.trim_matches(between).split(between).map(str::trim).collect();
    // The line of dashes under the header of a Markdown table is not a row.
    let is_rule = |line: &str| line.chars().all(|c| matches!(c, '-' | ':' | '|' | '+' | ' '));
    let body = || rows().skip(1).filter(|line| !is_rule(line));
    let share = max / (2 * FIRST_ROWS + 1);
    let first: Vec<String> = body().take(FIRST_ROWS).map(|line| clip(line, share)).collect();
    let last = text.trim_end().lines().next_back().map(|line| clip(line, share));
    json!({
        "preview": "table",
        "columns": columns.iter().take(SHOWN_MEMBERS).map(|name| clip(name, 60)).collect::<Vec<_>>(),
        "rows": body().count(),
        "first": first,
        "last": last,
    })
    .to_string()
}

/// Returns the beginning and the end of a text, cut at line breaks if there are any.
pub(super) fn head_and_tail(text: &str, max: usize) -> String {
    let head_end = floor_boundary(text, max * 2 / 3);
    let head_end = text[..head_end].rfind('\n').filter(|at| *at > head_end / 2).unwrap_or(head_end);
    let tail_start = floor_boundary(text, text.len() - max / 3);
    let tail_start =
        text[tail_start..].find('\n').filter(|at| *at < max / 6).map_or(tail_start, |at| tail_start + at + 1);
    let cut = &text[head_end..tail_start];
    format!(
        "{}\n[... {} bytes, {} lines left out ...]\n{}",
        &text[..head_end],
        cut.len(),
        cut.lines().count(),
        &text[tail_start..]
    )
}

/// Returns the replacement for a binary embedded resource with data of `length` characters.
pub(super) fn blob(block: &Value, length: usize) -> Value {
    let resource = &block["resource"];
    let mut shown = json!({ "preview": "blob", "uri": resource["uri"], "bytes": length / 4 * 3 });
    if let Some(kind) = resource.get("mimeType") {
        shown["mimeType"] = kind.clone();
    }
    json!({ "type": "text", "text": shown.to_string() })
}

/// Returns the last block of a shortened result.
pub(super) fn note(reference: Result<&str, &str>, size: usize, kind: &Continuation) -> Value {
    let reference = match reference {
        Ok(reference) => reference,
        Err(why) => return json!({ "truncated": true, "bytes": size, "not_kept": why }),
    };
    let ways = kind.params().map(|params| {
        let all = [("ref".to_string(), json!(reference))].into_iter().chain(params);
        fetch(all.collect())
    });
    json!({
        "truncated": true,
        "ref": reference,
        "bytes": size,
        "read_on": ways,
        "use_in_params": format!("{{{{ref:{reference}}}}}"),
    })
}

/// How a shortened result is read further.
pub(super) enum Continuation {
    Rows,
    /// By this filter.
    Object(String),
    Lines,
    Text,
}

impl Continuation {
    /// Returns how a result is read further.
    pub(super) fn of(result: &Value) -> Self {
        match kind(result) {
            TextKind::Array | TextKind::JsonLines => Self::Rows,
            TextKind::Object => Self::Object(first_filter(result)),
            TextKind::Table(_) => Self::Lines,
            TextKind::Text => Self::Text,
        }
    }

    /// Returns params of `gateway.fetch_result`, likeliest first.
    fn params(&self) -> [Map<String, Value>; 2] {
        let lines = json!({ "lines": format!("1-{}", read::PAGE_ROWS) });
        let ways = match self {
            Self::Rows => [
                json!({ "offset": FIRST_ROWS, "limit": read::PAGE_ROWS }),
                json!({ "select": ".[0] | keys" }),
            ],
            Self::Object(filter) => [json!({ "select": filter }), lines],
            Self::Lines => [lines, json!({ "grep": "error" })],
            Self::Text => [json!({ "offset": 0, "limit": read::PAGE_BYTES }), json!({ "grep": "error" })],
        };
        ways.map(|way| way.as_object().cloned().unwrap_or_default())
    }
}

/// Returns the members that an own answer gets once its large parts are cut: how to read on, first in the
/// parts with these jq paths.
pub(super) fn own_note(reference: Result<&str, &str>, size: usize, cut: &[String]) -> Map<String, Value> {
    let mut note =
        Map::from_iter([("truncated".to_string(), json!(true)), ("bytes".to_string(), json!(size))]);
    match reference {
        Ok(reference) => {
            let own = || Map::from_iter([("ref".to_string(), json!(reference))]);
            let part = |path: &String| {
                let mut params = own();
                params.insert("select".into(), json!(path));
                json!(fetch(params))
            };
            let ways: Vec<Value> = match cut {
                [] => vec![json!(fetch(own()))],
                cut => cut.iter().map(part).collect(),
            };
            note.insert("ref".into(), json!(reference));
            note.insert("read_on".into(), json!(ways));
        }
        Err(why) => drop(note.insert("not_kept".into(), json!(why))),
    }
    note
}
