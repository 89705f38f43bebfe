//! One pass over the bytes of JSON: finds the members of a message, and whether a tree of it would be too
//! large.
//!
//! The scan finds structure and checks nothing else, so text that passes may still not be JSON. Parsing a
//! member reveals that.

use std::ops::Range;

use nonet_base::blocks::JsonStops;

/// The deepest nesting that is accepted, including the message itself. `serde_json` accepts no deeper one.
pub(crate) const MAX_DEPTH: usize = 127;

/// The number of values that a non-empty object counts as: its table takes as much memory.
pub(super) const OF_OBJECT: usize = 6;

/// Why bytes are not accepted as a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonFlaw {
    /// They are not one JSON object.
    #[error("not a JSON object")]
    NotAnObject,
    /// They end in the middle.
    #[error("JSON that is cut off")]
    CutOff,
    /// They are nested too deeply.
    #[error("nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
    /// They hold more values than the given limit.
    #[error("more than {0} values (an object counts as six)")]
    TooManyValues(usize),
    /// A member of the message occurs twice.
    #[error("a message with two members `{0}`")]
    Repeated(&'static str),
}

/// The positions of a JSON-RPC message's members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemberRanges {
    pub jsonrpc: Option<Range<usize>>,
    pub id: Option<Range<usize>>,
    pub method: Option<Range<usize>>,
    pub params: Option<Range<usize>>,
    pub result: Option<Range<usize>>,
    pub error: Option<Range<usize>>,
}

impl MemberRanges {
    /// Finds the members of an object with at most `most` values, and counts its values. Members found before
    /// a flaw are kept; a truncated value ends with the bytes.
    pub(crate) fn find(bytes: &[u8], most: usize) -> (Self, Result<usize, JsonFlaw>) {
        let mut members = Self::default();
        let found = members.fill(bytes, most);
        (members, found)
    }

    fn fill(&mut self, bytes: &[u8], most: usize) -> Result<usize, JsonFlaw> {
        let mut budget = Budget::new(bytes, most);
        let mut at = skip_space(bytes, 0);
        match bytes.get(at) {
            Some(b'{') => at = skip_space(bytes, at + 1),
            _ => return Err(JsonFlaw::NotAnObject),
        }
        if bytes.get(at) != Some(&b'}') {
            loop {
                let key = at;
                at = expect(bytes, at, b'"').and_then(|_| string_end(&mut budget.stops, bytes, key))?;
                let name = &bytes[key + 1..at - 1];
                at = skip_space(bytes, expect(bytes, skip_space(bytes, at), b':')?);
                let (end, ended) = budget.value_end(bytes, at, 1);
                if let Some((slot, name)) = self.slot(name)
                    && slot.replace(at..end).is_some()
                {
                    return Err(JsonFlaw::Repeated(name));
                }
                ended?;
                at = skip_space(bytes, end);
                match bytes.get(at) {
                    Some(b',') => at = skip_space(bytes, at + 1),
                    Some(b'}') => break,
                    _ => return Err(JsonFlaw::NotAnObject),
                }
            }
        }
        match skip_space(bytes, at + 1) == bytes.len() {
            true => Ok(most - budget.left),
            false => Err(JsonFlaw::NotAnObject),
        }
    }

    fn slot(&mut self, name: &[u8]) -> Option<(&mut Option<Range<usize>>, &'static str)> {
        Some(match name {
            b"jsonrpc" => (&mut self.jsonrpc, "jsonrpc"),
            b"id" => (&mut self.id, "id"),
            b"method" => (&mut self.method, "method"),
            b"params" => (&mut self.params, "params"),
            b"result" => (&mut self.result, "result"),
            b"error" => (&mut self.error, "error"),
            name if name.contains(&b'\\') => {
                let quoted = [b"\"", name, b"\""].concat();
                let name: String = serde_json::from_slice(&quoted).ok()?;
                return if name.contains('\\') { None } else { self.slot(name.as_bytes()) };
            }
            _ => return None,
        })
    }
}

/// Returns the elements of an array, at most `limit` of them; `None` if the bytes are not an array.
pub(crate) fn elements(bytes: &[u8], limit: usize, most: usize) -> Option<Vec<Range<usize>>> {
    let mut budget = Budget::new(bytes, most);
    let mut at = skip_space(bytes, expect(bytes, skip_space(bytes, 0), b'[').ok()?);
    let mut elements = Vec::new();
    while bytes.get(at)? != &b']' && elements.len() < limit {
        let (end, ended) = budget.value_end(bytes, at, 1);
        ended.ok()?;
        elements.push(at..end);
        at = skip_space(bytes, end);
        if bytes.get(at)? == &b',' {
            at = skip_space(bytes, at + 1);
        }
    }
    Some(elements)
}

/// The number of values still allowed, and the bytes that matter in strings.
struct Budget<'a> {
    left: usize,
    most: usize,
    stops: JsonStops<'a>,
}

impl<'a> Budget<'a> {
    fn new(bytes: &'a [u8], most: usize) -> Self {
        Self { left: most, most, stops: JsonStops::new(bytes) }
    }

    /// Returns the end of the value that starts at `at`, inside `depth` others: before white space and the
    /// comma or bracket that follows. At a flaw, returns the end of the scanned part.
    fn value_end(&mut self, bytes: &[u8], mut at: usize, mut depth: usize) -> (usize, Result<(), JsonFlaw>) {
        let outside = depth;
        let mut end = at;
        loop {
            let Some(&byte) = bytes.get(at) else { return (bytes.len(), Err(JsonFlaw::CutOff)) };
            match byte {
                b'"' => match string_end(&mut self.stops, bytes, at) {
                    Ok(after) => at = after,
                    Err(flaw) => return (bytes.len(), Err(flaw)),
                },
                b',' | b'}' | b']' if depth == outside => break,
                b'{' | b'[' => {
                    depth += 1;
                    if depth > MAX_DEPTH {
                        return (at, Err(JsonFlaw::TooDeep));
                    }
                    // Counts its contents: an empty object counts as one too.
                    let is_filled = byte == b'{' && bytes.get(at + 1) != Some(&b'}');
                    if !self.take(if is_filled { OF_OBJECT } else { 1 }) {
                        return (at, Err(JsonFlaw::TooManyValues(self.most)));
                    }
                    at += 1;
                }
                b'}' | b']' => {
                    depth -= 1;
                    at += 1;
                }
                b',' => {
                    if !self.take(1) {
                        return (at, Err(JsonFlaw::TooManyValues(self.most)));
                    }
                    at += 1;
                }
                b' ' | b'\t' | b'\r' | b'\n' => {
                    at += 1;
                    continue;
                }
                _ => at += 1,
            }
            end = at;
        }
        match self.take(1) {
            true => (end, Ok(())),
            false => (end, Err(JsonFlaw::TooManyValues(self.most))),
        }
    }

    fn take(&mut self, count: usize) -> bool {
        let left = self.left.checked_sub(count);
        self.left = left.unwrap_or_default();
        left.is_some()
    }
}

fn skip_space(bytes: &[u8], at: usize) -> usize {
    let rest = bytes.get(at..).unwrap_or_default();
    at + rest.iter().position(|byte| !byte.is_ascii_whitespace()).unwrap_or(rest.len())
}

/// Skips one byte that must be there.
fn expect(bytes: &[u8], at: usize, wanted: u8) -> Result<usize, JsonFlaw> {
    match bytes.get(at) {
        Some(byte) if *byte == wanted => Ok(at + 1),
        Some(_) => Err(JsonFlaw::NotAnObject),
        None => Err(JsonFlaw::CutOff),
    }
}

/// Returns the end of the string that starts at `at`.
fn string_end(stops: &mut JsonStops<'_>, bytes: &[u8], at: usize) -> Result<usize, JsonFlaw> {
    let mut at = at + 1;
    loop {
        at = stops.next(at);
        match bytes.get(at).ok_or(JsonFlaw::CutOff)? {
            b'"' => return Ok(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn find(text: &str) -> (MemberRanges, Result<(), JsonFlaw>) {
        let (members, found) = MemberRanges::find(text.as_bytes(), 1_000);
        (members, found.map(drop))
    }

    fn at<'a>(text: &'a str, member: &Option<Range<usize>>) -> Option<&'a str> {
        member.clone().map(|range| &text[range])
    }

    #[test]
    fn members_are_found_wherever_they_are() {
        let text = " { \"jsonrpc\" : \"2.0\" ,\"x\":[{\"id\":6}],\"result\": {\"id\":5, \"a\":\"}\\\"{\"} , \"id\":7 } \n";
        let (members, found) = find(text);
        assert_eq!(found, Ok(()));
        assert_eq!(at(text, &members.jsonrpc), Some("\"2.0\""));
        assert_eq!(at(text, &members.result), Some("{\"id\":5, \"a\":\"}\\\"{\"}"));
        assert_eq!(at(text, &members.id), Some("7"));
        assert_eq!((members.method, members.error), (None, None));
        assert_eq!(MemberRanges::find(b"{\"a\":[1,2,{}],\"b\":{\"c\":0}}", 100).1, Ok(12));
        let escaped = "{\"m\\u0065thod\":\"x\"}";
        assert_eq!(at(escaped, &find(escaped).0.method), Some("\"x\""));
    }

    #[test]
    fn flaws_are_found_before_anything_is_built() {
        let check = |text: &str, flaw: JsonFlaw| assert_eq!(find(text).1, Err(flaw), "{text}");
        check("hello", JsonFlaw::NotAnObject);
        check("[1]", JsonFlaw::NotAnObject);
        check("{} x", JsonFlaw::NotAnObject);
        check("{\"a\":1]", JsonFlaw::NotAnObject);
        check("{a:1}", JsonFlaw::NotAnObject);
        check("{\"id\":1", JsonFlaw::CutOff);
        check("{\"id\":\"", JsonFlaw::CutOff);
        check("{\"id\"", JsonFlaw::CutOff);
        check("{\"id\":1,\"id\":2}", JsonFlaw::Repeated("id"));
        check(&format!("{{\"a\":[{}]}}", "1,".repeat(1_001)), JsonFlaw::TooManyValues(1_000));
        check(&format!("{{\"a\":{}", "[".repeat(1_000_000)), JsonFlaw::TooDeep);
        let deep = |levels: usize| format!("{{\"a\":{}{}}}", "[".repeat(levels), "]".repeat(levels));
        check(&deep(MAX_DEPTH), JsonFlaw::TooDeep);
        assert_eq!(find(&deep(MAX_DEPTH - 1)).1, Ok(()));
        assert!(serde_json::from_str::<Value>(&deep(MAX_DEPTH - 1)).is_ok(), "it reads all that passes");
        assert!(serde_json::from_str::<Value>(&deep(MAX_DEPTH)).is_err(), "and no more");
    }

    #[test]
    fn what_comes_before_the_cut_is_known() {
        let text = "{\"id\":12,\"result\":{\"text\":\"abc";
        let (members, found) = find(text);
        assert_eq!(found, Err(JsonFlaw::CutOff));
        assert_eq!((at(text, &members.id), at(text, &members.result)), (Some("12"), Some("{\"text\":\"abc")));
    }

    #[test]
    fn elements_are_told_apart() {
        let text = " [ {\"a\":[1,2]} , \"],\",3 ]";
        let found = elements(text.as_bytes(), 10, 100).expect("an array");
        assert_eq!(
            found.into_iter().map(|at| &text[at]).collect::<Vec<_>>(),
            ["{\"a\":[1,2]}", "\"],\"", "3"]
        );
        assert_eq!(elements(b"[1,2,3]", 2, 100).map(|all| all.len()), Some(2));
        assert_eq!(elements(b"[]", 2, 100), Some(vec![]));
        assert_eq!(elements(b"{}", 2, 100), None);
        assert_eq!(elements(b"[1", 2, 100), None);
    }

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[ -~é\"\\\\{}\\[\\],:\n]{0,12}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::hash_map("[a-z\"\\\\]{0,4}", inner, 0..6)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn members_are_what_a_parser_finds(params in json(), result in json(), pretty: bool) {
            let message = serde_json::json!({ "x": result, "params": params, "id": 1, "result": result });
            let text = if pretty { serde_json::to_string_pretty(&message) } else { serde_json::to_string(&message) };
            let text = text.expect("it is JSON");
            let (members, found) = MemberRanges::find(text.as_bytes(), usize::MAX);
            prop_assert!(found.is_ok());
            let read = |at: Option<Range<usize>>| serde_json::from_str::<Value>(&text[at.expect("it is there")]);
            prop_assert_eq!(read(members.params).expect("JSON"), params);
            prop_assert_eq!(read(members.result).expect("JSON"), result);
        }

        #[test]
        fn no_bytes_make_it_fail(bytes in prop::collection::vec(prop::sample::select(b"{}[]\",:\\ ai1".to_vec()), 0..40)) {
            let (members, _) = MemberRanges::find(&bytes, 10);
            for at in [members.id, members.method, members.params].into_iter().flatten() {
                prop_assert!(bytes.get(at).is_some());
            }
            let _ = elements(&bytes, 3, 10);
        }
    }
}
