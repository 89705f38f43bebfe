//! Results that are too large for a model: shown as a preview, and read in pieces.
//!
//! The `structuredContent` of a successful call is never cut, unless it only repeats the text. This room
//! knows the structure of a `CallToolResult`, but not where the result came from or where it is stored. Large
//! JSON is read as text, never as a tree of values, so that memory stays near the size of the result.
//!
//! Marks in `_meta` tell Nonet's own faults and previews from whatever a server writes: keys that begin with
//! `nonet` are removed from what servers send.

mod call_result;
mod condense;
mod preview;
mod read;
mod value;

use std::{io, sync::Arc};

use serde_json::{Map, Value, json};

pub use call_result::{CallResult, StructuredContent};
pub use condense::{fair_share, without_repeats};
pub use read::{bad_query, read};
pub use value::{ResultBody, ResultValue, WRAPPER, source_of, value_of};

pub use crate::template::is_reference;

use nonet_base::json::set_member;

use self::{condense::CondensedValue, preview::Continuation};
use crate::fault::{self, NextStep};

/// How much of the budget the previews of all blocks together may take, in bytes.
const PREVIEW: usize = 3_000;
/// Texts up to this length, in bytes, are never cut.
const SHORT: usize = 1_000;

/// The room for the beginning of a value as JSON, in bytes, before it has to grow.
const USUAL: usize = 256;
/// The room for the note in an own answer that was cut, in bytes.
const NOTE: usize = 700;
/// The beginning of the `_meta` keys that only Nonet may use, in any letter case.
const OWN_PREFIX: &str = "nonet";
/// The `_meta` key of a shortened result, for the reference of the whole.
const REFERENCE: &str = "nonet/ref";
/// The `_meta` key of a block with notices of Nonet's own.
const NOTICES: &str = "nonet/notices";

/// The `_meta` key of a result, for the tool that was called and its annotations.
pub const CALLED: &str = "nonet/called";
/// The `_meta` key of a result that is a run's question to the user.
pub const QUESTION: &str = "nonet/question";

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

/// Returns the size of the images and audio of a result as JSON, in bytes.
pub fn media_len(result: &Value) -> usize {
    blocks(result).filter(|block| is_media(block)).map(json_len).sum()
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

/// Returns a new reference.
pub fn new_reference() -> String {
    format!("r-{}", &uuid::Uuid::new_v4().simple().to_string()[..10])
}

/// Returns whether a result reports a failed call.
pub fn is_error(result: &Value) -> bool {
    result.get("isError") == Some(&Value::Bool(true))
}

/// Returns whether a result is a fault of Nonet's own.
pub fn is_fault(result: &Value) -> bool {
    result.get("_meta").is_some_and(|meta| meta.get(fault::MARK).is_some())
}

/// Returns whether a result is the question of a run that waits for the user.
pub fn is_question(result: &Value) -> bool {
    result.get("_meta").is_some_and(|meta| meta.get(QUESTION).is_some())
}

/// Returns whether a block has notices of Nonet's own.
pub fn is_notices(block: &Value) -> bool {
    block.get("_meta").is_some_and(|meta| meta.get(NOTICES).is_some())
}

/// Returns whether only Nonet may use this key in `_meta`.
pub fn is_own_meta(key: &str) -> bool {
    key.get(..OWN_PREFIX.len()).is_some_and(|begins| begins.eq_ignore_ascii_case(OWN_PREFIX))
}

/// Removes the `_meta` keys that only Nonet may use from a server's answer and from its blocks.
pub fn drop_own_meta(answer: &mut Value) {
    remove_own_meta(answer);
    for list in ["content", "contents", "messages"] {
        for block in answer.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            remove_own_meta(block);
            for inner in ["content", "resource"] {
                let Some(inner) = block.get_mut(inner) else { continue };
                remove_own_meta(inner);
                inner.get_mut("resource").into_iter().for_each(remove_own_meta);
            }
        }
    }
}

fn remove_own_meta(of: &mut Value) {
    let Some(fields) = of.as_object_mut() else { return };
    let Some(Value::Object(meta)) = fields.get_mut("_meta") else { return };
    let before = meta.len();
    meta.retain(|key, _| !is_own_meta(key));
    if meta.is_empty() && before > 0 {
        fields.shift_remove("_meta");
    }
}

/// Takes the reference out of a shortened result.
pub fn take_reference(result: &mut Value) -> Option<String> {
    let reference = result.get_mut("_meta")?.as_object_mut()?.shift_remove(REFERENCE)?;
    if result["_meta"].as_object().is_some_and(Map::is_empty)
        && let Some(fields) = result.as_object_mut()
    {
        fields.shift_remove("_meta");
    }
    reference.as_str().map(String::from)
}

fn mark_reference(result: &mut Value, reference: Result<&str, &str>) {
    if let (Some(fields), Ok(reference)) = (result.as_object_mut(), reference) {
        let meta = fields.entry("_meta").or_insert_with(|| json!({}));
        match meta.as_object_mut() {
            Some(meta) => drop(meta.insert(REFERENCE.into(), json!(reference))),
            None => *meta = json!({ REFERENCE: reference }),
        }
    }
}

/// Returns the length of a value as compact JSON, in bytes, without building it.
pub fn json_len(value: &Value) -> usize {
    json_start(value, 0).0
}

/// Returns the length of a value as compact JSON, and the first `most` bytes of that JSON.
pub fn json_start(value: &Value, most: usize) -> (usize, Vec<u8>) {
    struct Start {
        len: usize,
        most: usize,
        bytes: Vec<u8>,
    }
    impl io::Write for Start {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.len += bytes.len();
            let room = self.most.saturating_sub(self.bytes.len());
            self.bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut start = Start { len: 0, most, bytes: Vec::with_capacity(most.min(USUAL)) };
    let _ = serde_json::to_writer(&mut start, value);
    (start.len, start.bytes)
}

/// Returns whether a result of `size` bytes must be shortened to fit into `budget` bytes, and can be. Images
/// and audio stay unchanged, and a wrapper that only repeats the text does not count.
pub fn must_be_shortened(result: &Value, size: usize, budget: usize) -> bool {
    if size <= budget || weight(result, size) <= budget {
        return false;
    }
    // No schema requires the structured content of an error.
    if is_error(result) && size.saturating_sub(result.get("content").map_or(0, json_len)) > budget / 2 {
        return true;
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

/// Replaces the long texts of a result by previews, and adds a note: how to read on under `reference`, or why
/// the result was not kept. Of many blocks, only the first ones that fit into `budget` bytes stay.
pub fn shorten(result: Value, size: usize, budget: usize, reference: Result<&str, &str>) -> Value {
    if is_fault(&result) {
        return shorten_own(result, size, budget, reference);
    }
    let read_on = Continuation::of(&result);
    shorten_blocks(result, size, budget, reference, &read_on)
}

fn shorten_blocks(
    mut result: Value,
    size: usize,
    budget: usize,
    reference: Result<&str, &str>,
    read_on: &Continuation,
) -> Value {
    if is_error(&result)
        && let Some(fields) = result.as_object_mut()
    {
        fields.retain(|key, value| match key.as_str() {
            "content" | "isError" => true,
            _ => key != "structuredContent" && json_len(value) <= SHORT,
        });
        fields.entry("content").or_insert_with(|| json!([]));
    }
    mark_reference(&mut result, reference);
    let long = blocks(&result).filter(|block| long_text(block).is_some()).count();
    let share = PREVIEW.min(budget / 2) / long.max(1);
    let size = weight(&result, size);
    let wrapper = value::wrapper(&result).map(String::from);
    if let Some(blocks) = result.get_mut("content").and_then(Value::as_array_mut) {
        for block in blocks.iter_mut() {
            if let Some((text, place)) = long_text(block) {
                let shown = Value::String(preview::of(text, share));
                let place = match place {
                    BlockPlace::Own => Some(block),
                    BlockPlace::Resource => block.get_mut("resource"),
                };
                if let Some(place) = place {
                    set_member(place, "text", shown);
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
        let mut note = preview::note(reference, size, read_on);
        if blocks.len() < before {
            note["blocks_left_out"] = json!(before - blocks.len());
        }
        blocks.push(json!({ "type": "text", "text": note.to_string() }));
        // The wrapper repeats the text, and its schema requires a string.
        if let Some(name) = wrapper {
            let note = format!("[{size} bytes, shortened in `content`]");
            if let Some(repeated) = result.get_mut("structuredContent") {
                set_member(repeated, &name, note);
            }
        }
    }
    result
}

/// Shortens an answer of Nonet's own: one JSON object, whose large parts are cut, with the note among its
/// members. Any other answer is shortened as a server's.
pub fn shorten_own(mut result: Value, size: usize, budget: usize, reference: Result<&str, &str>) -> Value {
    let own = blocks(&result).next().and_then(|block| block.get("text")?.as_str());
    let own = own.and_then(|text| serde_json::from_str::<Value>(text).ok()).filter(Value::is_object);
    let others: usize = blocks(&result).skip(1).filter(|block| !is_media(block)).map(json_len).sum();
    let room = budget.saturating_sub(others + 200);
    let own = own.filter(|_| room > NOTE);
    let Some(own) = own else {
        if let Some(meta) = result.get_mut("_meta").and_then(Value::as_object_mut) {
            meta.shift_remove(fault::MARK);
        }
        return shorten(result, size, budget, reference);
    };
    let is_fault = is_fault(&result);
    let mut target = room - NOTE;
    let text = loop {
        let CondensedValue { mut value, cut } = CondensedValue::of(&own, target);
        let is_of_error = is_fault && value.get("error").is_some_and(Value::is_object);
        let place = if is_of_error { value.get_mut("error") } else { Some(&mut value) };
        if let Some(fields) = place.and_then(Value::as_object_mut) {
            fields.extend(preview::own_note(reference, size, &cut));
        }
        let text = value.to_string();
        // Text in JSON has more escapes than the object.
        if target < NOTE || json_len(&json!(text)) <= room {
            break text;
        }
        target = target * 3 / 4;
    };
    if let Some(block) = result.get_mut("content").and_then(|blocks| blocks.get_mut(0)) {
        set_member(block, "text", text);
    }
    mark_reference(&mut result, reference);
    result
}

/// Shortens the texts of a server's prompt, and adds a message with the note.
pub fn shorten_prompt(prompt: &Value, size: usize, budget: usize, reference: Result<&str, &str>) -> Value {
    let messages = prompt.get("messages").and_then(Value::as_array).into_iter().flatten();
    // Each block carries its role with it.
    let blocks = messages.filter_map(|message| {
        let mut block = message.get("content")?.clone();
        block.as_object_mut()?.insert("role".into(), message.get("role").cloned().unwrap_or_default());
        Some(block)
    });
    let whole = json!({ "content": blocks.collect::<Vec<_>>() });
    let mut shown = shorten_blocks(whole, size, budget, reference, &Continuation::Lines);
    let blocks = match shown["content"].take() {
        Value::Array(blocks) => blocks,
        _ => Vec::new(),
    };
    let messages = blocks.into_iter().map(|mut block| {
        let role = block.as_object_mut().and_then(|block| block.shift_remove("role"));
        let role = role.filter(|role| *role == "assistant").unwrap_or_else(|| json!("user"));
        json!({ "role": role, "content": block })
    });
    let mut result = json!({ "messages": messages.collect::<Vec<_>>() });
    mark_reference(&mut result, reference);
    if let Some(about) = prompt.get("description").and_then(Value::as_str) {
        result["description"] = json!(nonet_base::text::clip(about, SHORT));
    }
    result
}

/// Shortens the text of a JSON-RPC error; its data become the note.
pub fn shorten_error(
    message: &str,
    size: usize,
    budget: usize,
    reference: Result<&str, &str>,
) -> (String, Value) {
    let message = match json_len(&json!(message)) > budget / 2 {
        true => condense::shortened(message, PREVIEW.min(budget / 2)),
        false => message.into(),
    };
    (message, Value::Object(preview::own_note(reference, size, &[])))
}

/// Notes in a shortened result that it is not kept for long.
pub fn note_passing(shortened: &mut Value) {
    let blocks = shortened.get_mut("content").and_then(Value::as_array_mut);
    let Some(text) = blocks.and_then(|blocks| blocks.last_mut()?.get_mut("text")) else { return };
    if let Some(mut note) = text.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok()) {
        set_member(&mut note, "lasts", PASSING);
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
