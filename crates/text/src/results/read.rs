//! Reads a kept result further: by rows, bytes, lines, matches, or a jq filter.

use nonet_base::text::clip;
use serde_json::{Map, Value, json, value::RawValue};

use super::{ResultBody, fetch, floor_boundary, json_len, value::rows_of};
use crate::fault::{Fault, FaultCode, NextStep};

/// The default number of rows, lines or matches per read.
pub(super) const PAGE_ROWS: usize = 50;
/// The default number of bytes of text per read.
pub(super) const PAGE_BYTES: usize = 8_000;

/// Reads a piece of a result's value, after any `select`. `query` has the params of `gateway.fetch_result`;
/// `budget` limits the answer, in bytes. Blocks for a large result.
pub fn read(body: ResultBody, query: &Map<String, Value>, budget: usize) -> Result<Value, Fault> {
    let text = |key: &str| query.get(key).and_then(Value::as_str);
    let number = |key: &str| query.get(key).and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
    let offset = number("offset").unwrap_or(0);
    let limit = number("limit");
    let mut answer = match (text("grep"), text("lines")) {
        (Some(pattern), _) => {
            grep(&lines_of(body), pattern, offset, limit, budget).map_err(|why| bad_query(query, why))?
        }
        (None, Some(range)) => {
            line_range(&lines_of(body), range, budget).map_err(|why| bad_query(query, why))?
        }
        (None, None) => match body {
            ResultBody::Text(whole) => text_page(&whole, offset, limit, budget),
            ResultBody::JsonLines(whole) => {
                array_page(&rows_of(&whole).collect::<Vec<_>>(), offset, limit, budget)
            }
            ResultBody::Json(whole) if whole.trim_start().starts_with('[') => {
                let rows: Vec<&RawValue> = serde_json::from_str(&whole).unwrap_or_default();
                let rows: Vec<&str> = rows.into_iter().map(RawValue::get).collect();
                array_page(&rows, offset, limit, budget)
            }
            ResultBody::Json(whole) if whole.len() <= budget => {
                json!({ "value": serde_json::from_str::<Value>(&whole).unwrap_or_default() })
            }
            other => text_page(&lines_of(other), offset, limit, budget),
        },
    };
    if let Value::Object(fields) = &mut answer {
        fields.insert("ref".into(), query.get("ref").cloned().unwrap_or_default());
        if let Some(next) = fields.remove("next_offset") {
            let mut more = query.clone();
            more.insert("offset".into(), next);
            fields.insert("next_step".into(), json!(fetch(more)));
        }
    }
    Ok(answer)
}

/// Returns the fault of a bad query; its next step reads the result from the beginning.
pub fn bad_query(query: &Map<String, Value>, why: String) -> Fault {
    let params = json!({ "ref": query.get("ref") });
    Fault::new(FaultCode::InvalidParams, why).then(NextStep::own("fetch_result", params))
}

/// Returns a value as lines: text and JSON lines unchanged, other JSON indented.
fn lines_of(body: ResultBody) -> String {
    match body {
        ResultBody::Text(text) | ResultBody::JsonLines(text) => text,
        ResultBody::Json(text) => {
            let mut pretty = Vec::with_capacity(text.len() * 2);
            let mut from = serde_json::Deserializer::from_str(&text);
            let mut to = serde_json::Serializer::pretty(&mut pretty);
            match serde_transcode::transcode(&mut from, &mut to) {
                Ok(()) => String::from_utf8(pretty).unwrap_or(text),
                Err(_) => text,
            }
        }
    }
}

/// Returns the beginning of a JSON string, unescaped: about `max` bytes.
pub(super) fn string_head(json: &str, max: usize) -> String {
    let inside = json.strip_prefix('"').unwrap_or(json);
    let mut end = floor_boundary(inside, max);
    // Do not cut inside an escape. The longest one, a surrogate pair, has twelve bytes.
    for _ in 0..12 {
        if let Ok(text) = serde_json::from_str(&format!("\"{}\"", &inside[..end])) {
            return text;
        }
        end = floor_boundary(inside, end.saturating_sub(1));
    }
    String::new()
}

fn array_page(rows: &[&str], offset: usize, limit: Option<usize>, budget: usize) -> Value {
    let mut page: Vec<Value> = Vec::new();
    let mut size = 0;
    for row in rows.iter().skip(offset).take(limit.unwrap_or(PAGE_ROWS)) {
        let row: Value = serde_json::from_str(row).unwrap_or_default();
        size += json_len(&row) + 1;
        if size > budget && !page.is_empty() {
            break;
        }
        page.push(row);
    }
    let next = offset.saturating_add(page.len());
    let more = next < rows.len() && !page.is_empty();
    let mut answer = json!({ "rows": page, "offset": offset, "total": rows.len() });
    if more {
        answer["next_offset"] = json!(next);
    }
    answer
}

fn text_page(text: &str, offset: usize, limit: Option<usize>, budget: usize) -> Value {
    let start = floor_boundary(text, offset);
    let end = floor_boundary(text, start.saturating_add(limit.unwrap_or(PAGE_BYTES).clamp(4, budget.max(4))));
    let mut answer = json!({ "text": &text[start..end], "offset": start, "total": text.len() });
    if end < text.len() {
        answer["next_offset"] = json!(end);
    }
    answer
}

fn line_range(text: &str, range: &str, budget: usize) -> Result<Value, String> {
    let bad =
        || format!("`lines` is `{}`; give a range such as `1-40` (the first line is 1)", clip(range, 40));
    let (from, to) = range.split_once('-').unwrap_or((range, range));
    let from: usize = from.trim().parse().map_err(|_| bad())?;
    let to: usize = if to.trim().is_empty() { usize::MAX } else { to.trim().parse().map_err(|_| bad())? };
    if from == 0 || to < from {
        return Err(bad());
    }
    let mut out = String::new();
    let mut last = from - 1;
    for line in text.lines().skip(from - 1).take((to - from).saturating_add(1)) {
        if out.len() + line.len() > budget && !out.is_empty() {
            break;
        }
        out.push_str(line);
        out.push('\n');
        last += 1;
    }
    Ok(json!({ "text": out, "lines": format!("{from}-{last}"), "total_lines": text.lines().count() }))
}

fn grep(
    text: &str,
    pattern: &str,
    offset: usize,
    limit: Option<usize>,
    budget: usize,
) -> Result<Value, String> {
    let pattern = regex::RegexBuilder::new(pattern)
        .case_insensitive(true)
        .size_limit(1 << 20)
        .build()
        .map_err(|error| format!("`grep` is not a regular expression: {error}"))?;
    let matching = || text.lines().enumerate().filter(|(_, line)| pattern.is_match(line));
    let total = matching().count();
    let mut shown = Vec::new();
    let mut size = 0;
    for (number, line) in matching().skip(offset).take(limit.unwrap_or(PAGE_ROWS)) {
        let line = clip(line, 1_000);
        size += line.len();
        if size > budget && !shown.is_empty() {
            break;
        }
        shown.push(json!({ "line": number + 1, "text": line }));
    }
    let next = offset.saturating_add(shown.len());
    let more = next < total && next > offset;
    let mut answer = json!({ "matches": shown, "offset": offset, "total": total });
    if more {
        answer["next_offset"] = json!(next);
    }
    Ok(answer)
}
