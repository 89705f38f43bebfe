//! JSON as bytes, for callers that build no tree: whether bytes are JSON (RFC 8259), where an object's
//! members are, and its strings.

use std::ops::Range;

use serde_json::Value;

use crate::blocks::JsonStops;

/// The deepest nesting accepted.
pub const MAX_DEPTH: usize = 127;

/// Where bytes stop being JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} at byte {at}")]
pub struct JsonError {
    what: &'static str,
    at: usize,
}

/// One member of an object: its quoted key and its value, as positions in the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The quoted key.
    pub key: Range<usize>,
    /// The value, without surrounding white space.
    pub value: Range<usize>,
}

/// Sets a member of an object. A value of another kind stays as it is; an index assignment would panic there.
pub fn set_member(value: &mut Value, key: &str, member: impl Into<Value>) {
    if let Some(fields) = value.as_object_mut() {
        fields.insert(key.into(), member.into());
    }
}

/// Takes a member out of an object and leaves null in its place. Returns null if there is no such member.
pub fn take_member(value: &mut Value, key: &str) -> Value {
    value.get_mut(key).map(Value::take).unwrap_or_default()
}

/// Checks that the bytes are one UTF-8 JSON value and nothing else. Returns an object's members in order, or
/// `None` for any other value. Numbers may have any number of digits; a lone surrogate is not a string.
pub fn members(json: &[u8]) -> Result<Option<Vec<Member>>, JsonError> {
    if let Err(error) = std::str::from_utf8(json) {
        return Err(JsonError { what: "no UTF-8", at: error.valid_up_to() });
    }
    let mut members = None;
    let mut reader = Reader { json, at: 0, stops: JsonStops::new(json) };
    reader.space();
    match reader.peek() {
        Some(b'{') => members = Some(reader.object()?),
        _ => reader.value(0)?,
    }
    reader.space();
    match reader.at == json.len() {
        true => Ok(members),
        false => Err(reader.flaw("something after the value")),
    }
}

/// Calls `look` with every string of valid JSON, keys included, and with the bytes behind the string, until
/// `look` returns true. Returns whether it did. Bytes that are not UTF-8 count as such a string, because
/// nobody can look into them.
pub fn any_text(json: &[u8], mut look: impl FnMut(&str, &[u8]) -> bool) -> bool {
    let Ok(json) = std::str::from_utf8(json) else { return true };
    let mut stops = JsonStops::new(json.as_bytes());
    let mut unescaped = String::new();
    let mut at = 0;
    loop {
        let begin = stops.next(at);
        match json.as_bytes().get(begin) {
            Some(b'"') => {}
            // White space.
            Some(_) => {
                at = begin + 1;
                continue;
            }
            None => return false,
        }
        let (text, end) = text_at(json, begin + 1, &mut stops, &mut unescaped);
        if look(text, &json.as_bytes()[end..]) {
            return true;
        }
        at = end;
    }
}

/// Returns the string whose text begins at `begin`, and its end, behind the closing quote. `unescaped` has
/// the text if there are escapes in it.
fn text_at<'a>(
    json: &'a str,
    begin: usize,
    stops: &mut JsonStops<'_>,
    unescaped: &'a mut String,
) -> (&'a str, usize) {
    let (mut done, mut at) = (begin, begin);
    unescaped.clear();
    loop {
        at = stops.next(at);
        match json.as_bytes().get(at) {
            Some(b'\\') => {
                unescaped.push_str(&json[done..at]);
                at += push_escape(&json.as_bytes()[at..], unescaped);
                at = json.ceil_char_boundary(at);
                done = at;
            }
            Some(b'"') | None => break,
            Some(_) => at += 1,
        }
    }
    let end = json.len().min(at + 1);
    if done == begin {
        return (&json[begin..at], end);
    }
    unescaped.push_str(&json[done..at]);
    (unescaped, end)
}

/// Appends the character of the escape with which these bytes begin. Returns the escape's length.
fn push_escape(json: &[u8], text: &mut String) -> usize {
    let plain = match json.get(1) {
        Some(b'n') => '\n',
        Some(b't') => '\t',
        Some(b'r') => '\r',
        Some(b'b') => '\u{8}',
        Some(b'f') => '\u{c}',
        Some(b'u') => return push_unit(json, text),
        Some(other) if other.is_ascii() => char::from(*other),
        _ => char::REPLACEMENT_CHARACTER,
    };
    text.push(plain);
    2
}

/// Does the same for `\uXXXX`, or two of them that are one character.
fn push_unit(json: &[u8], text: &mut String) -> usize {
    let unit = |from: usize| {
        let digits = json.get(from..from + 6)?.strip_prefix(b"\\u")?;
        digits.iter().try_fold(0, |unit, digit| Some(unit << 4 | char::from(*digit).to_digit(16)?))
    };
    let first = unit(0);
    let (c, length) = match (first, unit(6)) {
        (Some(high @ 0xD800..0xDC00), Some(low @ 0xDC00..0xE000)) => {
            (char::from_u32(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00)), 12)
        }
        (Some(unit), _) => (char::from_u32(unit), 6),
        (None, _) => (None, 2),
    };
    text.push(c.unwrap_or(char::REPLACEMENT_CHARACTER));
    length
}

struct Reader<'a> {
    json: &'a [u8],
    at: usize,
    stops: JsonStops<'a>,
}

impl Reader<'_> {
    fn flaw(&self, what: &'static str) -> JsonError {
        JsonError { what, at: self.at }
    }

    fn peek(&self) -> Option<u8> {
        self.json.get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }

    fn expect(&mut self, byte: u8, what: &'static str) -> Result<(), JsonError> {
        if self.peek() != Some(byte) {
            return Err(self.flaw(what));
        }
        self.at += 1;
        Ok(())
    }

    /// Reads the outermost object.
    fn object(&mut self) -> Result<Vec<Member>, JsonError> {
        let mut members = Vec::new();
        self.at += 1;
        self.space();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(members);
        }
        loop {
            let key = self.at;
            self.string()?;
            let key = key..self.at;
            self.colon()?;
            let value = self.at;
            self.value(1)?;
            members.push(Member { key, value: value..self.at });
            self.space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => break,
                _ => return Err(self.flaw("no comma or brace")),
            }
            self.space();
        }
        self.at += 1;
        Ok(members)
    }

    fn colon(&mut self) -> Result<(), JsonError> {
        self.space();
        self.expect(b':', "no colon")?;
        self.space();
        Ok(())
    }

    /// Reads a value nested inside `depth` others.
    fn value(&mut self, depth: usize) -> Result<(), JsonError> {
        // A bit per open bracket, set for a brace; the innermost is the lowest bit.
        let (mut braces, mut open) = (0_u128, 0);
        loop {
            // A value begins here.
            match self.peek() {
                Some(b'"') => self.string()?,
                Some(bracket @ (b'{' | b'[')) => {
                    let is_brace = bracket == b'{';
                    if depth + open >= MAX_DEPTH {
                        return Err(self.flaw("nested too deeply"));
                    }
                    self.at += 1;
                    self.space();
                    if self.peek() != Some(if is_brace { b'}' } else { b']' }) {
                        open += 1;
                        braces = braces << 1 | u128::from(is_brace);
                        if is_brace {
                            self.string()?;
                            self.colon()?;
                        }
                        continue;
                    }
                    self.at += 1;
                }
                Some(b't') => self.word(b"true")?,
                Some(b'f') => self.word(b"false")?,
                Some(b'n') => self.word(b"null")?,
                Some(b'-' | b'0'..=b'9') => self.number()?,
                _ => return Err(self.flaw("no value")),
            }
            // A value has ended here.
            loop {
                if open == 0 {
                    return Ok(());
                }
                self.space();
                let is_brace = braces & 1 == 1;
                match (self.peek(), is_brace) {
                    (Some(b','), _) => {
                        self.at += 1;
                        self.space();
                        if is_brace {
                            self.string()?;
                            self.colon()?;
                        }
                        break;
                    }
                    (Some(b'}'), true) | (Some(b']'), false) => {
                        self.at += 1;
                        open -= 1;
                        braces >>= 1;
                    }
                    _ => return Err(self.flaw("no comma or bracket")),
                }
            }
        }
    }

    fn word(&mut self, word: &[u8]) -> Result<(), JsonError> {
        if !self.json[self.at..].starts_with(word) {
            return Err(self.flaw("no value"));
        }
        self.at += word.len();
        Ok(())
    }

    fn digits(&mut self) -> Result<(), JsonError> {
        let from = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        match self.at > from {
            true => Ok(()),
            false => Err(self.flaw("no digit")),
        }
    }

    fn number(&mut self) -> Result<(), JsonError> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        match self.peek() {
            Some(b'0') => self.at += 1,
            _ => self.digits()?,
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    fn string(&mut self) -> Result<(), JsonError> {
        self.expect(b'"', "no text")?;
        loop {
            self.at = self.stops.next(self.at);
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => self.escape()?,
                Some(_) => return Err(self.flaw("a control character")),
                None => return Err(self.flaw("a text without an end")),
            }
        }
    }

    fn escape(&mut self) -> Result<(), JsonError> {
        self.at += 1;
        match self.peek() {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 1,
            Some(b'u') => match self.unit()? {
                0xD800..0xDC00 => {
                    let is_pair = self.json[self.at..].starts_with(b"\\u");
                    self.at += usize::from(is_pair);
                    if !is_pair || !(0xDC00..0xE000).contains(&self.unit()?) {
                        return Err(self.flaw("half of a surrogate pair"));
                    }
                }
                0xDC00..0xE000 => return Err(self.flaw("half of a surrogate pair")),
                _ => {}
            },
            _ => return Err(self.flaw("no escape")),
        }
        Ok(())
    }

    /// Reads `uXXXX`.
    fn unit(&mut self) -> Result<u32, JsonError> {
        let hex = self.json.get(self.at + 1..self.at + 5).filter(|hex| hex.iter().all(u8::is_ascii_hexdigit));
        let unit = hex.and_then(|hex| u32::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        let unit = unit.ok_or_else(|| self.flaw("no escape"))?;
        self.at += 5;
        Ok(unit)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::de::IgnoredAny;
    use serde_json::Value;

    use super::*;

    #[test]
    fn what_is_json_is_what_the_rfc_says() {
        let good = [
            "{}",
            " [ ] ",
            "0",
            "-0.0e+10",
            "1e400",
            "12345678901234567890123",
            "\"\"",
            "null",
            "true",
            "[false]",
            "{\"a\":[1,{\"b\":[]}],\"a\":\"\\u00e9\\ud83d\\ude00\\n\"}",
            "\"\u{7f}é😀\"",
        ];
        for text in good {
            assert!(members(text.as_bytes()).is_ok(), "{text}: {:?}", members(text.as_bytes()));
        }
        let bad = [
            "",
            " ",
            "{",
            "}",
            "{]",
            "[1,]",
            "{\"a\"}",
            "{\"a\":}",
            "{a:1}",
            "{\"a\":1,}",
            "[1 2]",
            "01",
            "1.",
            ".5",
            "+1",
            "1e",
            "--1",
            "tru",
            "nul",
            "\"",
            "\"\\x\"",
            "\"\\u12\"",
            "\"\\ud83d\"",
            "\"\\ud83d\\u0041\"",
            "\"\\ude00\"",
            "\"\n\"",
            "\"a\tb\"",
            "{} {}",
            "[1]]",
            "NaN",
            "'a'",
            "[1\u{a0}]",
            "{\"a\":1]",
            "[\"a\":1]",
            "{1:1}",
            "\u{feff}{}",
        ];
        for text in bad {
            assert!(members(text.as_bytes()).is_err(), "{text}");
        }
        assert!(members(b"\"\xff\"").is_err() && members(b"\"\xed\xa0\x80\"").is_err());
    }

    #[test]
    fn it_is_read_no_deeper_than_the_limit() {
        let deep = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(members(deep(MAX_DEPTH).as_bytes()).is_ok());
        assert!(members(format!("{{\"a\":{}}}", deep(MAX_DEPTH)).as_bytes()).is_err());
        assert!(members(deep(1_000_000).as_bytes()).is_err());
    }

    #[test]
    fn members_are_found() {
        let text = " { \"a\" : [1, {\"x\":2}] ,\"b\\n\":\"}\"} ";
        let found = members(text.as_bytes()).expect("it is JSON").expect("an object");
        let texts: Vec<_> = found.into_iter().map(|one| (&text[one.key], &text[one.value])).collect();
        assert_eq!(texts, [("\"a\"", "[1, {\"x\":2}]"), ("\"b\\n\"", "\"}\"")]);
        assert_eq!(members(b"[{}]"), Ok(None));
    }

    fn texts(json: &[u8]) -> Vec<String> {
        let mut all = Vec::new();
        any_text(json, |text, _| {
            all.push(text.to_owned());
            false
        });
        all
    }

    #[test]
    fn texts_are_seen_as_they_read() {
        let long = "x".repeat(100);
        let json = format!("{{\"k\\u00e9y\":[\"a\\\"b\",1,\"\",\"{long}\\\\\",null,\"\\\\\"]}}");
        assert_eq!(texts(json.as_bytes()), ["kéy", "a\"b", "", &format!("{long}\\"), "\\"]);
        assert!(any_text(b"[\"a\",\"b\"]", |text, behind| text == "b" && behind == b"]"));
        assert!(!any_text(b"[1,2]", |_, _| true));
    }

    fn all_texts(value: &Value, all: &mut Vec<String>) {
        match value {
            Value::String(text) => all.push(text.clone()),
            Value::Array(items) => items.iter().for_each(|item| all_texts(item, all)),
            Value::Object(fields) => fields.iter().for_each(|(key, item)| {
                all.push(key.clone());
                all_texts(item, all);
            }),
            _ => {}
        }
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_parser(text in "[{}\\[\\]\",:\\\\ untrlfase0-9.eE+-]{0,24}") {
            let read = serde_json::from_slice::<IgnoredAny>(text.as_bytes()).is_ok();
            // A parser that skips values does not check surrogates.
            prop_assume!(!text.contains("\\ud"));
            prop_assert_eq!(members(text.as_bytes()).is_ok(), read);
        }

        #[test]
        fn no_bytes_make_it_fail(bytes in prop::collection::vec(prop::sample::select(b"{}[]\",:\\ ui1\xc3\xa9".to_vec()), 0..80)) {
            let _ = members(&bytes);
            any_text(&bytes, |_, _| false);
        }

        #[test]
        fn every_text_is_seen(texts_of in prop::collection::vec("[ -~é\"\\\\\n\u{1}😀]{0,50}", 0..6)) {
            let value = serde_json::json!({ "a": texts_of, "b\"": { "c": 1 } });
            let json = value.to_string();
            let mut expected = Vec::new();
            all_texts(&value, &mut expected);
            prop_assert_eq!(texts(json.as_bytes()), expected);
            prop_assert!(members(json.as_bytes()).is_ok());
        }
    }
}
