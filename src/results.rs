//! Results that are too large for a model: shown as a preview, and read in pieces.
//!
//! An error is never shortened. `structuredContent` is never cut, unless it only repeats the text. This room knows the
//! structure of a `CallToolResult`, but not where the result came from or where it is stored. Large JSON is read as text,
//! never as a tree of values, so that memory stays near the size of the result.

mod call_result;
mod preview;
mod read;
mod value;

use std::{io, sync::Arc};

use serde_json::{Map, Value, json};

pub use call_result::CallResult;
pub use read::{bad_query, read};
pub use value::{Body, WRAPPER, Whole, source_of, value_of};

use crate::fault::NextStep;

/// How much of the budget the previews of all blocks together may take, in bytes.
const PREVIEW: usize = 3_000;
/// Texts up to this length, in bytes, are never cut.
const SHORT: usize = 1_000;

/// How long a result is kept if the store cannot be written.
pub const PASSING: &str = "in memory only, until this gateway ends: the store cannot be written";

/// Returns all text blocks of a result, joined by line breaks; without any, the texts of embedded resources.
pub fn text_of(result: &Value) -> String {
    let mut texts: Vec<&str> = blocks(result).filter_map(|block| block.get("text")?.as_str()).collect();
    if texts.is_empty() {
        texts.extend(blocks(result).filter_map(|block| block.get("resource")?.get("text")?.as_str()));
    }
    texts.join("\n")
}

/// Returns the text of a result, or its structured value as compact JSON if it has no text.
pub fn text_of_value(result: &Value) -> String {
    match text_of(result) {
        text if text.is_empty() => match value_of(result) {
            Value::String(text) => text,
            value => value.to_string(),
        },
        text => text,
    }
}

/// Removes images and audio from a result and returns them.
pub fn take_media(result: &mut Arc<Value>) -> Vec<Value> {
    if !blocks(result).any(is_media) {
        return Vec::new();
    }
    match Arc::make_mut(result).get_mut("content").and_then(Value::as_array_mut) {
        Some(blocks) => blocks.extract_if(.., |block| is_media(block)).collect(),
        None => Vec::new(),
    }
}

/// Returns whether a text has the form of a reference to a kept result. A task's handle is such a reference too.
pub fn is_reference(text: &str) -> bool {
    let hex = |hex: &str, length| hex.len() == length && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
    text.strip_prefix("r-").is_some_and(|rest| hex(rest, 10))
        || text.strip_prefix("job-").is_some_and(|rest| hex(rest, 12))
}

/// Returns a new reference.
pub fn new_reference() -> String {
    format!("r-{}", &uuid::Uuid::new_v4().simple().to_string()[..10])
}

/// Returns whether a result reports a failed call.
pub fn is_error(result: &Value) -> bool {
    result.get("isError") == Some(&Value::Bool(true))
}

/// Returns the length of a value as compact JSON, in bytes, without building it.
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

/// Returns whether a result of `size` bytes must be shortened to fit into `budget` bytes, and can be. Images and audio stay
/// unchanged, and a wrapper that only repeats the text does not count.
pub fn must_be_shortened(result: &Value, size: usize, budget: usize) -> bool {
    if size <= budget || is_error(result) || weight(result, size) <= budget {
        return false;
    }
    let mut rest = blocks(result).filter(|block| !is_media(block));
    rest.clone().any(|block| long_text(block).is_some() || long_blob(block).is_some())
        || rest.clone().map(json_len).sum::<usize>() > budget / 2 && rest.next().is_some()
}

/// Returns the size of a result without the wrapper that repeats its text.
fn weight(result: &Value, size: usize) -> usize {
    match value::wrapper(result) {
        Some(_) => size.saturating_sub(json_len(&result["structuredContent"])),
        None => size,
    }
}

/// Replaces the long texts of a result by previews, and adds a note: how to read on under `reference`, or why the result was
/// not kept. Of many blocks, only the first ones that fit into `budget` bytes stay.
pub fn shorten(mut result: Value, size: usize, budget: usize, reference: Result<&str, &str>) -> Value {
    let long = blocks(&result).filter(|block| long_text(block).is_some()).count();
    let share = PREVIEW.min(budget / 2) / long.max(1);
    let kind = preview::kind(&result);
    let size = weight(&result, size);
    let wrapper = value::wrapper(&result).map(String::from);
    if let Some(blocks) = result.get_mut("content").and_then(Value::as_array_mut) {
        for block in blocks.iter_mut() {
            if let Some((text, place)) = long_text(block) {
                let shown = Value::String(preview::of(text, share));
                match place {
                    BlockPlace::Own => block["text"] = shown,
                    BlockPlace::Resource => block["resource"]["text"] = shown,
                }
            } else if let Some(blob) = long_blob(block) {
                *block = preview::blob(block, blob.len());
            }
        }
        let mut left = budget * 3 / 4;
        let before = blocks.len();
        blocks.retain(|block| {
            let stays = is_media(block) || json_len(block) <= left;
            if !is_media(block) {
                left = if stays { left - json_len(block) } else { 0 };
            }
            stays
        });
        let mut note = preview::note(reference, size, kind);
        if blocks.len() < before {
            note["blocks_left_out"] = json!(before - blocks.len());
        }
        blocks.push(json!({ "type": "text", "text": note.to_string() }));
        // The wrapper repeats the text, and its schema requires a string.
        if let Some(name) = wrapper {
            result["structuredContent"][name] = json!(format!("[{size} bytes, shortened in `content`]"));
        }
    }
    result
}

/// Notes in a shortened result that it is not kept for long.
pub fn note_passing(shortened: &mut Value) {
    let blocks = shortened.get_mut("content").and_then(Value::as_array_mut);
    let Some(text) = blocks.and_then(|blocks| blocks.last_mut()?.get_mut("text")) else { return };
    if let Some(mut note) = text.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok()) {
        note["lasts"] = json!(PASSING);
        *text = json!(note.to_string());
    }
}

/// Returns whether a block is an image or audio.
fn is_media(block: &Value) -> bool {
    matches!(block.get("type").and_then(Value::as_str), Some("image" | "audio"))
}

/// Returns the data of a binary embedded resource, if it is large enough to leave out.
fn long_blob(block: &Value) -> Option<&str> {
    block.get("resource")?.get("blob")?.as_str().filter(|blob| blob.len() > SHORT)
}

fn blocks(result: &Value) -> impl Iterator<Item = &Value> + Clone {
    result.get("content").and_then(Value::as_array).into_iter().flatten()
}

/// The place of a block's text.
#[derive(Clone, Copy)]
enum BlockPlace {
    Own,
    Resource,
}

/// Returns the text of a block, if it is long enough to cut.
fn long_text(block: &Value) -> Option<(&str, BlockPlace)> {
    let own = block.get("text").and_then(Value::as_str).map(|text| (text, BlockPlace::Own));
    let inside = || Some((block.get("resource")?.get("text")?.as_str()?, BlockPlace::Resource));
    own.or_else(inside).filter(|(text, _)| text.len() > SHORT)
}

/// Returns a call of `gateway.fetch_result`.
fn fetch(params: Map<String, Value>) -> NextStep {
    NextStep::own("fetch_result", Value::Object(params))
}

/// Returns the greatest character boundary at or before `at`.
fn floor_boundary(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

#[cfg(test)]
mod tests;
