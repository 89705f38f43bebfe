//! The result of a call in transit: the server's own bytes as long as nobody needs to look inside, else a
//! tree of values.

use std::{borrow::Cow, mem, ops::Range};

use bytes::Bytes;
use memchr::memmem;
use nonet_base::json::{Member, any_text, members};
use nonet_wire::{MemoryShare, Weight, off_thread};
use serde_json::{Value, json};

use super::{NOTICES, ResultValue, SHORT, drop_own_meta, is_error, is_own_meta, json_len, json_start};
use crate::fault::{Fault, FaultCode};

/// Results up to this size, in bytes, are copied into one piece.
const SMALL: usize = 16 << 10;
/// The member that marks a complete result in the stateless era (2026-07-28).
const COMPLETE: &[u8] = b",\"resultType\":\"complete\"";

/// A `CallToolResult`, with its share of the memory for large messages.
#[derive(Debug, Default)]
pub struct CallResult {
    form: Form,
    share: Option<MemoryShare>,
    /// Whether a budget has been applied to it.
    is_fitted: bool,
}

/// The structured content of a result.
#[derive(Debug)]
pub enum StructuredContent<'a> {
    /// There is none.
    Absent,
    /// It is small enough to be looked at.
    Value(Cow<'a, Value>),
    /// It is large, or has a number that no type can hold.
    Unread,
}

#[derive(Debug)]
enum Form {
    Raw(Raw),
    Tree(Value),
}

impl Default for Form {
    fn default() -> Self {
        Self::Tree(Value::Null)
    }
}

/// A result as its server wrote it: complete, not an error, not a task, and without links. Also the changes
/// to make on its way out.
#[derive(Debug)]
struct Raw {
    json: Bytes,
    content: Option<Range<usize>>,
    /// The member `resultType`, with the comma beside it.
    result_type: Option<Range<usize>>,
    /// Its `structuredContent`.
    value: Option<Range<usize>>,
    /// Its `_meta`.
    meta: Option<Range<usize>>,
    /// Whether that member should be present; `None`: as the server wrote it.
    is_typed: Option<bool>,
    /// Members to add to `_meta`, with what they need around them.
    added_meta: Vec<u8>,
    /// Blocks to append to `content`.
    added: Vec<u8>,
}

impl From<Value> for CallResult {
    fn from(tree: Value) -> Self {
        Self { form: Form::Tree(tree), share: None, is_fitted: false }
    }
}

impl CallResult {
    /// Reads a server's result, without the `_meta` keys that only Nonet may use. It stays as bytes, unless
    /// something in it requires a look inside. `Err` says why it is not JSON. Blocks while a large one is
    /// scanned.
    pub fn read(json: Bytes) -> Result<Self, String> {
        let members = members(&json).map_err(|flaw| flaw.to_string())?;
        let form = match members.and_then(|members| Raw::of(&json, &members)) {
            Some(raw) => Form::Raw(raw),
            None => {
                let mut tree = serde_json::from_slice(&json).map_err(|error| error.to_string())?;
                drop_own_meta(&mut tree);
                Form::Tree(tree)
            }
        };
        Ok(Self { form, share: None, is_fitted: false })
    }

    /// Takes a server's result that is a tree already.
    pub fn of_server(mut tree: Value) -> Self {
        drop_own_meta(&mut tree);
        tree.into()
    }

    /// Notes that a budget has been applied.
    pub fn fitted(self) -> Self {
        Self { is_fitted: true, ..self }
    }

    /// Returns whether a budget has been applied.
    pub fn is_fitted(&self) -> bool {
        self.is_fitted
    }

    /// Attaches the result's share of the memory.
    pub fn holding(self, share: Option<MemoryShare>) -> Self {
        Self { share, ..self }
    }

    /// Returns its bytes, if it has not been parsed yet.
    pub fn raw(&self) -> Option<&Bytes> {
        match &self.form {
            Form::Raw(raw) => Some(&raw.json),
            Form::Tree(_) => None,
        }
    }

    /// Returns its tree, if it has been parsed or began as one.
    pub fn as_tree(&self) -> Option<&Value> {
        match &self.form {
            Form::Raw(_) => None,
            Form::Tree(tree) => Some(tree),
        }
    }

    /// Returns its tree for changes, if it has one.
    pub fn as_tree_mut(&mut self) -> Option<&mut Value> {
        match &mut self.form {
            Form::Raw(_) => None,
            Form::Tree(tree) => Some(tree),
        }
    }

    /// Returns whether it reports a failed call.
    pub fn is_error(&self) -> bool {
        self.as_tree().is_some_and(is_error)
    }

    /// Returns whether text blocks can be added to it.
    pub fn has_content(&self) -> bool {
        match &self.form {
            Form::Raw(raw) => raw.content.is_some(),
            Form::Tree(tree) => tree.get("content").is_some_and(Value::is_array),
        }
    }

    /// Returns whether it fits into a budget of bytes, or has nothing to shorten. False if only a tree would
    /// tell.
    pub fn fits(&self, budget: usize) -> bool {
        match &self.form {
            Form::Raw(raw) => {
                let blocks = raw.content.as_ref().map_or(0, Range::len);
                raw.json.len() <= budget || blocks <= SHORT.min(budget / 8)
            }
            Form::Tree(_) => false,
        }
    }

    /// Returns its size as JSON, in bytes. A large tree is measured on another thread.
    pub async fn size(&mut self) -> usize {
        match &mut self.form {
            Form::Raw(raw) => raw.json.len() + raw.added.len(),
            Form::Tree(tree) if self.share.is_none() => json_len(tree),
            Form::Tree(tree) => {
                let whole = mem::take(tree);
                let counted = tokio::task::spawn_blocking(move || (json_len(&whole), whole)).await;
                let (bytes, whole) = counted.expect("counting does not panic");
                *tree = whole;
                bytes
            }
        }
    }

    /// Returns the first `most` bytes of its JSON, as the server wrote it.
    pub fn start(&self, most: usize) -> Bytes {
        match &self.form {
            // A small one is copied: its bytes are part of the buffer of whatever its server sends next.
            Form::Raw(raw) if raw.json.len() <= SMALL || raw.json.len() > most => {
                Bytes::copy_from_slice(&raw.json[..raw.json.len().min(most)])
            }
            Form::Raw(raw) => raw.json.clone(),
            Form::Tree(tree) => json_start(tree, most).1.into(),
        }
    }

    /// Returns the result as a tree, parsed on another thread if it is large.
    pub async fn tree(&mut self) -> &mut Value {
        let tree = match mem::take(&mut self.form) {
            Form::Tree(tree) => tree,
            Form::Raw(raw) => {
                let json = raw.json();
                let weight = Weight::guessed(&json);
                let (tree, share) = off_thread(weight, move || serde_json::from_slice(&json)).await;
                self.share = share.or(self.share.take());
                tree.unwrap_or_else(|error| unreadable(&error))
            }
        };
        self.form = Form::Tree(tree);
        match &mut self.form {
            Form::Tree(tree) => tree,
            Form::Raw(_) => unreachable!("it was made a tree"),
        }
    }

    /// Converts the result into a tree for its owner, as [`Self::tree`] does.
    pub async fn into_tree(mut self) -> Value {
        mem::take(self.tree().await)
    }

    /// Returns its value, as filters see it.
    pub fn value(&self) -> ResultValue {
        match &self.form {
            // The bytes were read as JSON, which is UTF-8.
            Form::Raw(raw) => ResultValue::read(&String::from_utf8_lossy(&raw.json())),
            Form::Tree(tree) => ResultValue::of(tree),
        }
    }

    /// Adds a block with notices of Nonet's, if the result has blocks. Its mark tells it from a server's
    /// text.
    pub fn push_notices(&mut self, notices: &[Value]) {
        let text = json!({ "notices": notices }).to_string();
        let block = json!({ "type": "text", "text": text, "_meta": { NOTICES: true } });
        match &mut self.form {
            Form::Raw(raw) => raw.push(&block),
            Form::Tree(tree) => {
                if let Some(content) = tree.get_mut("content").and_then(Value::as_array_mut) {
                    content.push(block);
                }
            }
        }
    }

    /// Returns its structured content, if that has at most `most` bytes.
    pub fn structured(&self, most: usize) -> StructuredContent<'_> {
        match &self.form {
            Form::Raw(Raw { value: None, .. }) => StructuredContent::Absent,
            Form::Raw(Raw { json, value: Some(at), .. }) if at.len() <= most => {
                let value = serde_json::from_slice(&json[at.clone()]);
                value.map_or(StructuredContent::Unread, |value| StructuredContent::Value(Cow::Owned(value)))
            }
            Form::Raw(_) => StructuredContent::Unread,
            Form::Tree(tree) => match tree.get("structuredContent") {
                None => StructuredContent::Absent,
                Some(value) if self.share.is_some() || json_len(value) > most => StructuredContent::Unread,
                Some(value) => StructuredContent::Value(Cow::Borrowed(value)),
            },
        }
    }

    /// Adds members to its `_meta`: JSON without braces.
    pub fn add_meta(&mut self, members: &str) {
        match &mut self.form {
            Form::Raw(raw) => raw.add_meta(members),
            Form::Tree(Value::Object(fields)) => {
                let Ok(Value::Object(members)) = serde_json::from_str(&format!("{{{members}}}")) else {
                    return;
                };
                let meta = fields.entry("_meta").or_insert_with(|| json!({}));
                if let Value::Object(meta) = meta {
                    meta.extend(members);
                }
            }
            Form::Tree(_) => {}
        }
    }

    /// Sets the members that results have in the client's era.
    pub fn of_era(&mut self, is_stateless: bool) {
        match &mut self.form {
            Form::Raw(raw) => raw.is_typed = Some(is_stateless),
            Form::Tree(tree) => {
                let Some(fields) = tree.as_object_mut() else { return };
                if is_stateless {
                    fields.entry("resultType").or_insert_with(|| json!("complete"));
                } else {
                    fields.remove("resultType");
                }
            }
        }
    }

    /// Returns its JSON in pieces, between two given ones. Large content is not copied.
    pub fn written(self, before: &[u8], after: &[u8]) -> Vec<Bytes> {
        match self.form {
            Form::Raw(raw) if raw.json.len() < SMALL => vec![raw.whole(before, after)],
            Form::Raw(raw) => {
                let mut pieces = vec![Bytes::copy_from_slice(before)];
                let mut done = 0;
                for (at, new) in raw.changes() {
                    pieces.extend([raw.json.slice(done..at.start), Bytes::copy_from_slice(new)]);
                    done = at.end;
                }
                pieces.extend([raw.json.slice(done..), Bytes::copy_from_slice(after)]);
                pieces
            }
            Form::Tree(tree) => {
                let mut whole = Vec::with_capacity(before.len() + after.len() + 1_024);
                whole.extend_from_slice(before);
                serde_json::to_writer(&mut whole, &tree).expect("a tree is JSON");
                whole.extend_from_slice(after);
                vec![whole.into()]
            }
        }
    }

    /// Returns its JSON.
    pub fn into_json(self) -> Vec<u8> {
        self.written(b"", b"").concat()
    }
}

impl Raw {
    /// Returns a result of these members, if nothing in it requires a look inside.
    fn of(json: &Bytes, members: &[Member]) -> Option<Self> {
        let (mut content, mut result_type, mut structured, mut meta) = (None, None, None, None);
        for (at, member) in members.iter().enumerate() {
            let value = &json[member.value.clone()];
            match &json[member.key.clone()] {
                b"\"content\"" if content.is_none() && value.starts_with(b"[") && !has_links(value) => {
                    content = Some(member.value.clone());
                }
                b"\"resultType\"" if result_type.is_none() && value == b"\"complete\"" => {
                    result_type = Some(match (at.checked_sub(1), members.get(at + 1)) {
                        (Some(before), _) => members[before].value.end..member.value.end,
                        (None, Some(next)) => member.key.start..next.key.start,
                        (None, None) => return None,
                    });
                }
                b"\"structuredContent\"" if structured.is_none() => structured = Some(member.value.clone()),
                b"\"isError\"" if value != b"true" => {}
                b"\"_meta\"" if meta.is_none() && !has_own_key(value) => meta = Some(member.value.clone()),
                b"\"content\""
                | b"\"resultType\""
                | b"\"structuredContent\""
                | b"\"isError\""
                | b"\"_meta\"" => {
                    return None;
                }
                b"\"task\"" | b"\"inputRequests\"" => return None,
                key if key.contains(&b'\\') => return None,
                _ => {}
            }
        }
        (content.is_some() || structured.is_some()).then(|| Self {
            json: json.clone(),
            content,
            result_type,
            value: structured,
            meta,
            is_typed: None,
            added_meta: Vec::new(),
            added: Vec::new(),
        })
    }

    fn add_meta(&mut self, members: &str) {
        let added = &mut self.added_meta;
        added.clear();
        match self.meta.as_ref().map(|at| &self.json[at.clone()]) {
            None => {
                added.extend_from_slice(b",\"_meta\":{");
                added.extend_from_slice(members.as_bytes());
                added.push(b'}');
            }
            Some(meta) if meta.starts_with(b"{") => {
                added.extend_from_slice(members.as_bytes());
                if !meta[1..].trim_ascii_start().starts_with(b"}") {
                    added.push(b',');
                }
            }
            // What a server writes instead of an object stays.
            Some(_) => {}
        }
    }

    fn push(&mut self, block: &Value) {
        let Some(content) = &self.content else { return };
        let inside = &self.json[content.start + 1..content.end - 1];
        if !self.added.is_empty() || !inside.trim_ascii().is_empty() {
            self.added.push(b',');
        }
        serde_json::to_writer(&mut self.added, block).expect("a tree is JSON");
    }

    /// Returns the changes: ranges in order, each with its replacement.
    fn changes(&self) -> Vec<(Range<usize>, &[u8])> {
        let mut changes: Vec<(Range<usize>, &[u8])> = Vec::new();
        let end = || self.json.trim_ascii_end().len() - 1;
        match (self.is_typed, &self.result_type) {
            (Some(false), Some(at)) => changes.push((at.clone(), b"")),
            (Some(true), None) => changes.push((end()..end(), COMPLETE)),
            _ => {}
        }
        if !self.added_meta.is_empty() {
            let at = self.meta.as_ref().map_or_else(end, |meta| meta.start + 1);
            changes.push((at..at, &self.added_meta));
        }
        if let Some(content) = self.content.as_ref().filter(|_| !self.added.is_empty()) {
            changes.push((content.end - 1..content.end - 1, &self.added));
        }
        changes.sort_by_key(|(at, _)| at.start);
        changes
    }

    /// Returns the result in one piece, between two given ones.
    fn whole(&self, before: &[u8], after: &[u8]) -> Bytes {
        let changes = self.changes();
        let added: usize = changes.iter().map(|(_, new)| new.len()).sum();
        let removed: usize = changes.iter().map(|(at, _)| at.len()).sum();
        let mut whole = Vec::with_capacity(before.len() + self.json.len() + added - removed + after.len());
        whole.extend_from_slice(before);
        let mut done = 0;
        for (at, new) in changes {
            whole.extend_from_slice(&self.json[done..at.start]);
            whole.extend_from_slice(new);
            done = at.end;
        }
        whole.extend_from_slice(&self.json[done..]);
        whole.extend_from_slice(after);
        whole.into()
    }

    /// Returns the result as JSON. Without changes, its bytes are shared.
    fn json(&self) -> Bytes {
        if self.changes().is_empty() { self.json.clone() } else { self.whole(b"", b"") }
    }
}

/// Returns whether JSON has a key that only Nonet may use in `_meta`.
fn has_own_key(json: &[u8]) -> bool {
    any_text(json, |text, behind| is_own_meta(text) && behind.trim_ascii_start().starts_with(b":"))
}

/// Returns whether blocks may contain links to resources, judged by their types.
fn has_links(blocks: &[u8]) -> bool {
    // In JSON, a quote that opens a string never follows a backslash.
    memmem::find_iter(blocks, b"\"resource")
        .any(|at| at.checked_sub(1).is_none_or(|before| blocks[before] != b'\\'))
}

/// Returns the replacement for a result that is JSON but has no tree: it contains a number that no type of
/// Nonet's can hold.
fn unreadable(error: &serde_json::Error) -> Value {
    let message = format!(
        "The call was made, but Nonet needs to read its result and cannot: {error}. Do not repeat the call for its result; it would fail in the same way."
    );
    Fault::new(FaultCode::UpstreamError, message).to_result()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDED: &str = r#"{"type":"text","text":"{\"notices\":[1]}","_meta":{"nonet/notices":true}},{"type":"text","text":"{\"notices\":[]}","_meta":{"nonet/notices":true}}"#;

    fn raw(json: &str) -> CallResult {
        let result = CallResult::read(Bytes::copy_from_slice(json.as_bytes())).expect("it is JSON");
        assert!(result.raw().is_some(), "{json}");
        result
    }

    fn text(result: CallResult) -> String {
        String::from_utf8(result.into_json()).expect("JSON is UTF-8")
    }

    #[test]
    fn what_asks_for_a_look_inside_becomes_a_tree() {
        for json in [
            r#"{"content":[{"type":"resource_link","uri":"a:b"}]}"#,
            r#"{"content":[{"type": "resource","resource":{}}]}"#,
            r#"{"content":[],"isError":true}"#,
            r#"{"content":[],"resultType":"input_required"}"#,
            r#"{"resultType":"complete"}"#,
            r#"{"content":[],"task":{}}"#,
            r#"{"content":[],"_meta":{"nonet/wrapper":"x"}}"#,
            r#"{"content":[],"_meta":{"\u006eonet/wrapper":"x"}}"#,
            r#"{"content":[],"content":[]}"#,
            r#"{"\u0063ontent":[]}"#,
            r#"{"content":"no list"}"#,
            r#"{}"#,
            "[]",
            "7",
        ] {
            let result = CallResult::read(Bytes::from_static(json.as_bytes())).expect("it is JSON");
            assert!(result.as_tree().is_some(), "{json}");
        }
        raw(r#"{"content":[{"type":"text","text":"a \"resource\" in a text"}],"isError":false}"#);
        raw(r#"{ "structuredContent" : {"a":1e400} }"#);
        assert!(CallResult::read(Bytes::from_static(b"{\"content\":[\"\\ud83d\"]}")).is_err());
    }

    #[test]
    fn it_is_written_as_it_came_but_for_its_era_and_notices() {
        let check = |json: &str, is_stateless: bool, notice: bool, expected: &str| {
            let mut result = raw(json);
            result.of_era(is_stateless);
            if notice {
                result.push_notices(&[json!(1)]);
                result.push_notices(&[]);
            }
            assert_eq!(text(result), expected);
            // A tree gives the same answer.
            let mut tree = CallResult::from(serde_json::from_str::<Value>(json).expect("JSON"));
            tree.of_era(is_stateless);
            if notice {
                tree.push_notices(&[json!(1)]);
                tree.push_notices(&[]);
            }
            let read = |json: &str| serde_json::from_str::<Value>(json).expect("JSON");
            assert_eq!(read(&text(tree)), read(expected));
        };
        let plain = r#"{ "x": 1.0, "content": [ ] }"#;
        check(plain, false, false, plain);
        check(plain, true, false, r#"{ "x": 1.0, "content": [ ] ,"resultType":"complete"}"#);
        check(plain, false, true, &format!(r#"{{ "x": 1.0, "content": [ {ADDED}] }}"#));
        let typed = r#"{"resultType":"complete", "content":[1],"z":2}"#;
        check(typed, true, false, typed);
        check(typed, false, false, r#"{"content":[1],"z":2}"#);
        check(
            r#"{"content":[1] , "resultType":"complete"}"#,
            false,
            true,
            &format!(r#"{{"content":[1,{ADDED}]}}"#),
        );
    }

    #[tokio::test]
    async fn a_tree_is_what_the_bytes_say() {
        let mut result = raw(r#"{"content":[{"type":"text","text":"a"}],"structuredContent":{"b":[1]}}"#);
        assert_eq!(result.size().await, 70);
        assert!(result.fits(70) && !result.fits(69));
        assert_eq!(result.value().body, super::super::ResultBody::Json("{\"b\":[1]}".into()));
        assert_eq!(result.tree().await["structuredContent"], json!({ "b": [1] }));
        let unread = raw(r#"{"content":[1e400]}"#).into_tree().await;
        assert!(
            is_error(&unread) && super::super::text_of(&unread).contains("number out of range"),
            "{unread}"
        );
    }

    #[tokio::test]
    async fn long_blocks_may_have_to_be_shortened() {
        let long = format!(r#"{{"content":[{{"type":"text","text":"{}"}}]}}"#, "x".repeat(5_000));
        assert!(raw(&long).fits(6_000) && !raw(&long).fits(4_000));
        // A structured value is never cut.
        let value = format!(r#"{{"content":[],"structuredContent":{{"a":"{}"}}}}"#, "x".repeat(5_000));
        assert!(raw(&value).fits(4_000));
    }
}
