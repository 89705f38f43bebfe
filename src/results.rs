//! Results that are too large for a model: kept whole, shown as a preview, read on piece by piece.
//!
//! An error is never shortened and `structuredContent` is never cut. This room knows the shape of a
//! `CallToolResult` and nothing of where it came from.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use serde_json::{Map, Value, json};

use crate::{
    fault::{Code, Fault},
    schema::clip,
    select::Selector,
};

/// How many bytes of results are kept; the oldest go first.
pub const MAX_KEPT: usize = 256 << 20;
/// How long a result is kept.
pub const MAX_AGE: Duration = Duration::from_secs(6 * 3600);
/// The part of the budget that previews of all blocks together may take, in bytes.
const PREVIEW: usize = 6_000;
/// The first rows of an array in a preview.
const FIRST_ROWS: usize = 3;
/// The default number of rows, lines or matches that one read gives.
const PAGE_ROWS: usize = 50;
/// The default number of bytes of text that one read gives.
const PAGE_BYTES: usize = 8_000;

/// What is kept, by reference.
#[derive(Debug, Default)]
pub struct Results {
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    by_ref: BTreeMap<String, Arc<Value>>,
    order: VecDeque<(Instant, String, usize)>,
    bytes: usize,
}

/// A result as its value: `structuredContent`, else its text parsed as JSON if it is JSON, else its
/// text.
pub fn value_of(result: &Value) -> Value {
    if let Some(structured) = result.get("structuredContent").filter(|value| !value.is_null()) {
        return structured.clone();
    }
    let text = text_of(result);
    match serde_json::from_str(&text) {
        Ok(value @ (Value::Object(_) | Value::Array(_))) => value,
        Ok(value) if !text.trim().is_empty() => value,
        _ => Value::String(text),
    }
}

/// All text blocks of a result, joined by line ends.
pub fn text_of(result: &Value) -> String {
    let blocks = result.get("content").and_then(Value::as_array).into_iter().flatten();
    let texts: Vec<&str> = blocks.filter_map(|block| block.get("text")?.as_str()).collect();
    texts.join("\n")
}

/// Whether a text has the form of a reference to a kept result.
pub fn is_reference(text: &str) -> bool {
    text.strip_prefix("r-").is_some_and(|hex| hex.len() == 10 && hex.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Whether a result says that the call failed.
pub fn is_error(result: &Value) -> bool {
    result.get("isError") == Some(&Value::Bool(true))
}

/// The length of a value as compact JSON, in bytes, without building it.
pub fn json_len(value: &Value) -> usize {
    struct Count(usize);
    impl io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}

impl Results {
    /// Passes a result on as it is if it fits into `budget` bytes; else keeps it and gives a preview
    /// with its reference.
    pub fn fit(&self, result: Value, budget: usize) -> Value {
        if is_error(&result) {
            return result;
        }
        let size = json_len(&result);
        if size <= budget {
            return result;
        }
        let Some(blocks) = result.get("content").and_then(Value::as_array) else { return result };
        let texts = blocks.iter().filter(|block| long_text(block).is_some()).count();
        if texts == 0 {
            return result;
        }
        let share = PREVIEW.min(budget / 2) / texts;
        let mut shown: Vec<Value> = blocks
            .iter()
            .map(|block| match long_text(block) {
                Some((text, path)) => {
                    let mut block = block.clone();
                    let preview = Value::String(preview(text, share));
                    match path {
                        "text" => block["text"] = preview,
                        _ => block["resource"]["text"] = preview,
                    }
                    block
                }
                None => block.clone(),
            })
            .collect();
        let reference = self.keep(result.clone(), size);
        shown.push(json!({ "type": "text", "text": note(&reference, size, &value_of(&result)).to_string() }));
        let mut out = result;
        out["content"] = Value::Array(shown);
        out
    }

    /// Keeps a result of `size` bytes; gives its reference.
    pub fn keep(&self, result: Value, size: usize) -> String {
        let reference = format!("r-{}", &uuid::Uuid::new_v4().simple().to_string()[..10]);
        let Ok(mut kept) = self.kept.lock() else { return reference };
        kept.by_ref.insert(reference.clone(), Arc::new(result));
        kept.order.push_back((Instant::now(), reference.clone(), size));
        kept.bytes += size;
        while kept.bytes > MAX_KEPT || kept.order.front().is_some_and(|(at, ..)| at.elapsed() > MAX_AGE) {
            let Some((_, oldest, size)) = kept.order.pop_front() else { break };
            // The newest stays whatever its size: its reference has just been given out.
            if kept.order.is_empty() {
                kept.order.push_front((Instant::now(), oldest, size));
                break;
            }
            kept.by_ref.remove(&oldest);
            kept.bytes -= size;
        }
        reference
    }

    /// The kept result.
    pub fn get(&self, reference: &str) -> Result<Arc<Value>, Fault> {
        let kept = self.kept.lock().ok().and_then(|kept| kept.by_ref.get(reference).cloned());
        kept.ok_or_else(|| {
            Fault::new(
                Code::NotFound,
                format!("No result is kept as `{reference}`: it is too old, or the reference is wrong. Make the call again."),
            )
            .next("execute_tool", json!({"name": "gateway.status", "params": {}}))
        })
    }

    /// Reads a piece of a kept result.
    pub async fn read(
        &self,
        query: &Map<String, Value>,
        budget: usize,
        selector: &Selector,
    ) -> Result<Value, Fault> {
        let text = |key: &str| query.get(key).and_then(Value::as_str);
        let number = |key: &str| query.get(key).and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
        let reference = text("ref").unwrap_or_default();
        let result = self.get(reference)?;
        let mut value = value_of(&result);
        if let Some(filter) = text("select") {
            value = selector
                .select(filter, value)
                .await
                .map_err(|error| Fault::new(Code::InvalidParams, error.to_string()))?;
        }
        let offset = number("offset").unwrap_or(0);
        let mut answer = match (&value, text("grep"), text("lines")) {
            (_, Some(pattern), _) => grep(&lines_of(&value), pattern, offset, number("limit"), budget)?,
            (_, None, Some(range)) => line_range(&lines_of(&value), range, budget)?,
            (Value::Array(rows), None, None) => array_page(rows, offset, number("limit"), budget),
            (Value::String(whole), None, None) => text_page(whole, offset, number("limit"), budget),
            (other, None, None) if json_len(other) <= budget => json!({ "value": other }),
            (other, None, None) => text_page(&lines_of(other), offset, number("limit"), budget),
        };
        if let Value::Object(fields) = &mut answer {
            fields.insert("ref".into(), json!(reference));
            if let Some(next) = fields.remove("next_offset") {
                let mut more = query.clone();
                more.insert("offset".into(), next);
                fields.insert("next_step".into(), execute("gateway.fetch_result", Value::Object(more)));
            }
        }
        Ok(answer)
    }
}

fn execute(name: &str, params: Value) -> Value {
    json!({ "tool": "execute_tool", "arguments": { "name": name, "params": params } })
}

/// The text of a block that is worth cutting, and where it stands.
fn long_text(block: &Value) -> Option<(&str, &'static str)> {
    const SHORT: usize = 1_000;
    let own = block.get("text").and_then(Value::as_str).map(|text| (text, "text"));
    let inside = || Some((block.get("resource")?.get("text")?.as_str()?, "resource"));
    own.or_else(inside).filter(|(text, _)| text.len() > SHORT)
}

/// What the last block of a shortened result says.
fn note(reference: &str, size: usize, value: &Value) -> Value {
    let read = |more: Value| {
        let mut params = json!({ "ref": reference });
        if let (Value::Object(params), Value::Object(more)) = (&mut params, more) {
            params.extend(more);
        }
        execute("gateway.fetch_result", params)
    };
    let ways = match value {
        Value::Array(rows) => vec![
            read(json!({ "offset": FIRST_ROWS, "limit": PAGE_ROWS.min(rows.len()) })),
            read(json!({ "select": ".[0] | keys" })),
        ],
        Value::Object(_) => vec![read(json!({ "select": "keys" }))],
        _ => vec![read(json!({ "offset": 0, "limit": PAGE_BYTES })), read(json!({ "grep": "error" }))],
    };
    json!({
        "truncated": true,
        "ref": reference,
        "bytes": size,
        "read_on": ways,
        "use_in_params": format!("{{{{ref:{reference}}}}}"),
    })
}

/// A text of at most about `max` bytes that shows what the whole is.
fn preview(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.into();
    }
    match serde_json::from_str::<Value>(text) {
        Ok(Value::Array(rows)) => preview_array(&rows, max).to_string(),
        Ok(Value::Object(fields)) => preview_object(&fields, max).to_string(),
        _ => head_and_tail(text, max),
    }
}

fn preview_array(rows: &[Value], max: usize) -> Value {
    let mut first = Vec::new();
    let mut left = max;
    for row in rows.iter().take(FIRST_ROWS) {
        let row = shorten(row, left / 2);
        let size = json_len(&row);
        if size > left && !first.is_empty() {
            break;
        }
        left = left.saturating_sub(size);
        first.push(row);
    }
    json!({ "preview": "array", "count": rows.len(), "shape": rows.first().map(shape), "first": first })
}

fn preview_object(fields: &Map<String, Value>, max: usize) -> Value {
    let share = max / fields.len().clamp(1, 20);
    let shown: Map<String, Value> = fields
        .iter()
        .take(20)
        .map(|(key, value)| {
            let shown = match value {
                Value::Array(rows) if json_len(value) > share => preview_array(rows, share),
                other => shorten(other, share),
            };
            (key.clone(), shown)
        })
        .collect();
    json!({ "preview": "object", "keys": fields.len(), "fields": shown })
}

/// A value of at most about `max` bytes: long strings are cut, large parts named by their type.
fn shorten(value: &Value, max: usize) -> Value {
    if json_len(value) <= max {
        return value.clone();
    }
    match value {
        Value::String(text) => json!(clip(text, (max / 2).max(40))),
        Value::Object(fields) if max > 200 => {
            let share = max / fields.len().max(1);
            Value::Object(fields.iter().take(30).map(|(k, v)| (k.clone(), shorten(v, share))).collect())
        }
        other => shape(other),
    }
}

/// The types of a value and of its direct parts.
fn shape(value: &Value) -> Value {
    match value {
        Value::Object(fields) => Value::Object(
            fields.iter().take(30).map(|(key, value)| (key.clone(), json!(type_name(value)))).collect(),
        ),
        other => json!(type_name(other)),
    }
}

fn type_name(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(_) => "boolean".into(),
        Value::Number(_) => "number".into(),
        Value::String(text) => format!("string ({} bytes)", text.len()),
        Value::Array(rows) => format!("array ({})", rows.len()),
        Value::Object(fields) => format!("object ({} keys)", fields.len()),
    }
}

/// The beginning and the end of a text, cut at line ends where there are some.
fn head_and_tail(text: &str, max: usize) -> String {
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

/// The greatest index at most `at` where a character begins.
fn floor_boundary(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// A value as lines: text as it is, anything else as indented JSON.
fn lines_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => serde_json::to_string_pretty(other).unwrap_or_default(),
    }
}

fn array_page(rows: &[Value], offset: usize, limit: Option<usize>, budget: usize) -> Value {
    let mut page = Vec::new();
    let mut size = 0;
    for row in rows.iter().skip(offset).take(limit.unwrap_or(PAGE_ROWS)) {
        size += json_len(row) + 1;
        if size > budget && !page.is_empty() {
            break;
        }
        page.push(row);
    }
    let next = offset + page.len();
    let mut answer = json!({ "rows": page, "offset": offset, "total": rows.len() });
    if next < rows.len() && !page.is_empty() {
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

fn line_range(text: &str, range: &str, budget: usize) -> Result<Value, Fault> {
    let bad = || {
        Fault::new(
            Code::InvalidParams,
            format!("`lines` is `{range}`; give a range such as `1-40` (the first line is 1)"),
        )
    };
    let (from, to) = range.split_once('-').unwrap_or((range, range));
    let from: usize = from.trim().parse().map_err(|_| bad())?;
    let to: usize = if to.trim().is_empty() { usize::MAX } else { to.trim().parse().map_err(|_| bad())? };
    if from == 0 || to < from {
        return Err(bad());
    }
    let mut out = String::new();
    let mut last = from - 1;
    for line in text.lines().skip(from - 1).take(to - from + 1) {
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
) -> Result<Value, Fault> {
    let pattern =
        regex::RegexBuilder::new(pattern).case_insensitive(true).size_limit(1 << 20).build().map_err(
            |error| Fault::new(Code::InvalidParams, format!("`grep` is no regular expression: {error}")),
        )?;
    let matching = || text.lines().enumerate().filter(|(_, line)| pattern.is_match(line));
    let total = matching().count();
    let mut shown = Vec::new();
    let mut size = 0;
    for (number, line) in matching().skip(offset).take(limit.unwrap_or(PAGE_ROWS)) {
        size += line.len();
        if size > budget && !shown.is_empty() {
            break;
        }
        shown.push(json!({ "line": number + 1, "text": clip(line, 1_000) }));
    }
    let next = offset + shown.len();
    let mut answer = json!({ "matches": shown, "offset": offset, "total": total });
    if next < total && next > offset {
        answer["next_offset"] = json!(next);
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_result(text: &str) -> Value {
        json!({ "content": [{ "type": "text", "text": text }] })
    }

    fn query(value: Value) -> Map<String, Value> {
        value.as_object().cloned().unwrap_or_default()
    }

    fn reference(result: &Value) -> String {
        let last = result["content"].as_array().and_then(|blocks| blocks.last()).unwrap();
        let note: Value = serde_json::from_str(last["text"].as_str().unwrap()).unwrap();
        note["ref"].as_str().unwrap().to_string()
    }

    #[test]
    fn what_fits_and_what_failed_passes_unchanged() {
        let results = Results::default();
        let small = text_result("small");
        assert_eq!(results.fit(small.clone(), 1_000), small);
        let mut failed = text_result(&"x".repeat(5_000));
        failed["isError"] = json!(true);
        assert_eq!(results.fit(failed.clone(), 1_000), failed);
        let picture =
            json!({"content": [{"type": "image", "data": "A".repeat(5_000), "mimeType": "image/png"}]});
        assert_eq!(results.fit(picture.clone(), 1_000), picture);
    }

    #[tokio::test]
    async fn a_large_array_is_shown_by_count_shape_and_first_rows_and_read_on() {
        let results = Results::default();
        let rows: Vec<Value> = (0..5_000).map(|n| json!({"id": n, "name": format!("row {n}")})).collect();
        let shown = results.fit(text_result(&Value::Array(rows).to_string()), 10_000);
        let preview: Value = serde_json::from_str(shown["content"][0]["text"].as_str().unwrap()).unwrap();
        assert_eq!(preview["count"], 5_000);
        assert_eq!(preview["first"][0], json!({"id": 0, "name": "row 0"}));
        assert!(json_len(&shown) < 10_000);
        let reference = reference(&shown);
        let page = results
            .read(&query(json!({"ref": reference, "offset": 4_998})), 10_000, &Selector::default())
            .await
            .unwrap();
        assert_eq!(page["rows"], json!([{"id": 4998, "name": "row 4998"}, {"id": 4999, "name": "row 4999"}]));
        assert!(page.get("next_step").is_none());
        let picked = query(json!({"ref": reference, "select": ".[7].name"}));
        assert_eq!(results.read(&picked, 10_000, &Selector::default()).await.unwrap()["text"], "row 7");
        let found = query(json!({"ref": reference, "grep": "row 12\\b"}));
        assert_eq!(results.read(&found, 10_000, &Selector::default()).await.unwrap()["total"], 1);
    }

    #[tokio::test]
    async fn a_large_text_is_shown_by_head_and_tail_and_every_byte_can_be_read() {
        let results = Results::default();
        let text: String = (0..4_000).map(|n| format!("línea {n}\n")).collect();
        let shown = results.fit(text_result(&text), 5_000);
        let preview = shown["content"][0]["text"].as_str().unwrap();
        assert!(preview.starts_with("línea 0\n") && preview.ends_with("línea 3999\n"), "{preview}");
        let reference = reference(&shown);
        let (mut whole, mut offset) = (String::new(), 0);
        loop {
            let page = results
                .read(&query(json!({"ref": reference, "offset": offset})), 5_000, &Selector::default())
                .await
                .unwrap();
            whole.push_str(page["text"].as_str().unwrap());
            match page["next_step"]["arguments"]["params"]["offset"].as_u64() {
                Some(next) => offset = next,
                None => break,
            }
        }
        assert_eq!(whole, text);
        let lines = results
            .read(&query(json!({"ref": reference, "lines": "2-3"})), 5_000, &Selector::default())
            .await
            .unwrap();
        assert_eq!(lines["text"], "línea 1\nlínea 2\n");
        assert!(
            results
                .read(&query(json!({"ref": reference, "lines": "0-3"})), 5_000, &Selector::default())
                .await
                .is_err()
        );
        assert!(results.read(&query(json!({"ref": "r-none"})), 5_000, &Selector::default()).await.is_err());
    }

    #[test]
    fn a_short_text_beside_a_large_picture_stays_whole() {
        let text = "line\n".repeat(600);
        let picture = json!({"type": "image", "data": "A".repeat(200_000), "mimeType": "image/png"});
        let result = json!({"content": [{"type": "text", "text": text}, picture]});
        let shown = Results::default().fit(result.clone(), 100_000);
        assert_eq!(shown["content"][0], result["content"][0]);
        assert_eq!(shown["content"][1], picture);
    }

    #[test]
    fn structured_content_is_never_cut() {
        let results = Results::default();
        let structured = json!({"rows": vec![json!({"a": 1}); 1_000]});
        let result = json!({
            "content": [{"type": "text", "text": structured.to_string()}],
            "structuredContent": structured,
        });
        assert_eq!(results.fit(result, 2_000)["structuredContent"], structured);
    }
}
