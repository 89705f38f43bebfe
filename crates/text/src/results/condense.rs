//! Nonet's own answers that are too large: the object stays an object, and its large parts are cut.

use std::borrow::Cow;

use nonet_base::text::clip;
use serde_json::{Map, Value, json};

use super::{json_len, preview::head_and_tail};

/// How deep parts are cut one by one; a large part below is only named.
const DEPTH: usize = 12;
/// The least room for a member or an item, in bytes. Of more of them than fit, the first stay, and always
/// these few.
const LEAST: usize = 160;
const FEW: usize = 8;
/// The least room in which a part is cut and not only named, in bytes.
const OPEN: usize = 64;
/// The longest key that is shown, in bytes.
const LONGEST_KEY: usize = 256;
/// How many cut parts a note names.
const NAMED: usize = 3;
/// How many words with digits the beginning of a line in a log has at most.
const LOG_WORDS: usize = 3;
/// How many keys the path of a named part has.
const NAMED_KEYS: usize = 2;

/// A value cut to a size, and the jq paths of the first parts that were cut.
pub(super) struct CondensedValue {
    pub value: Value,
    pub cut: Vec<String>,
}

impl CondensedValue {
    /// Cuts a value to about `budget` bytes of JSON.
    pub(super) fn of(value: &Value, budget: usize) -> Self {
        let mut cut = Vec::new();
        let value = part(value, budget, &Place::default(), &mut cut);
        Self { value, cut }
    }
}

/// Where a part is.
#[derive(Default)]
struct Place {
    path: String,
    keys: usize,
    depth: usize,
}

impl Place {
    fn member(&self, key: &str) -> Self {
        let path = match self.keys < NAMED_KEYS {
            true => format!("{}.{}", self.path, named(key)),
            false => self.path.clone(),
        };
        Self { path, keys: self.keys + 1, depth: self.depth + 1 }
    }

    fn item(&self, at: usize) -> Self {
        let path = match self.keys < NAMED_KEYS {
            true => format!("{}[{at}]", self.path),
            false => self.path.clone(),
        };
        Self { path, keys: self.keys, depth: self.depth + 1 }
    }
}

fn part(value: &Value, budget: usize, place: &Place, cut: &mut Vec<String>) -> Value {
    let size = json_len(value);
    if size <= budget {
        return value.clone();
    }
    let is_open = place.depth < DEPTH && budget >= OPEN;
    let most = (budget / LEAST).max(FEW);
    match value {
        Value::Object(fields) if is_open => {
            let shown = || fields.iter().filter(|(key, _)| key.len() <= LONGEST_KEY).take(most);
            let keys: usize = shown().map(|(key, _)| json_len(&json!(key)) + 2).sum();
            let sizes: Vec<usize> = shown().map(|(_, value)| json_len(value)).collect();
            let share = fair_share(&sizes, budget.saturating_sub(keys));
            let parts =
                shown().map(|(key, value)| (key.clone(), part(value, share, &place.member(key), cut)));
            let mut parts: Map<String, Value> = parts.collect();
            let more = fields.len() - parts.len();
            if more > 0 {
                parts.insert("...".into(), json!(format!("{more} more members")));
                note(place, cut);
            }
            Value::Object(parts)
        }
        Value::Array(items) if is_open => {
            let shown = &items[..items.len().min(most)];
            let sizes: Vec<usize> = shown.iter().map(|item| json_len(item) + 1).collect();
            let share = fair_share(&sizes, budget);
            let each = shown.iter().enumerate().map(|(at, item)| part(item, share, &place.item(at), cut));
            let mut parts: Vec<Value> = each.collect();
            let more = items.len() - parts.len();
            if more > 0 {
                parts.push(json!(format!("... {more} more items")));
                note(place, cut);
            }
            Value::Array(parts)
        }
        Value::String(text) => {
            note(place, cut);
            json!(shortened(text, budget))
        }
        _ => {
            note(place, cut);
            json!(format!("... {size} bytes"))
        }
    }
}

/// Names a cut part, if few are named so far.
fn note(place: &Place, cut: &mut Vec<String>) {
    if cut.len() < NAMED && !place.path.is_empty() && !cut.contains(&place.path) {
        cut.push(place.path.clone());
    }
}

/// Returns a key as jq writes it.
pub(super) fn named(key: &str) -> String {
    let is_plain = key.starts_with(|c: char| c == '_' || c.is_ascii_alphabetic())
        && key.chars().all(|c| c == '_' || c.is_ascii_alphanumeric());
    if is_plain { key.into() } else { json!(key).to_string() }
}

/// Returns the head and the tail of a text, in at most about `budget` bytes of JSON.
pub(super) fn shortened(text: &str, budget: usize) -> String {
    let mut max = budget.min(text.len().saturating_sub(1));
    loop {
        let shown = if max < 2 * OPEN { clip(text, max.max(8)) } else { head_and_tail(text, max) };
        if max < OPEN || json_len(&json!(shown)) <= budget {
            return shown;
        }
        max = max * 2 / 3;
    }
}

/// Returns a text in which equal lines in a row are one line with their number. Times at the beginning of
/// lines make no difference.
pub fn without_repeats(text: &str) -> Cow<'_, str> {
    let mut runs: Vec<(&str, usize)> = Vec::new();
    for line in text.lines() {
        match runs.last_mut() {
            Some((first, count)) if without_time(first) == without_time(line) => *count += 1,
            _ => runs.push((line, 1)),
        }
    }
    if runs.iter().all(|(line, count)| *count == 1 || line.trim().is_empty()) {
        return Cow::Borrowed(text);
    }
    let shown = |(line, count): &(&str, usize)| match count {
        1 => (*line).to_owned(),
        _ if line.trim().is_empty() => String::new(),
        count => format!("{line} ({count} times)"),
    };
    Cow::Owned(runs.iter().map(shown).collect::<Vec<_>>().join("\n"))
}

/// Returns a line of a log without the date, time and process number that it begins with.
fn without_time(line: &str) -> &str {
    let line = line.trim();
    let mut rest = line;
    let mut is_timed = false;
    for _ in 0..LOG_WORDS {
        let (word, beyond) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        if !word.contains(|c: char| c.is_ascii_digit()) || beyond.is_empty() {
            break;
        }
        let digit =
            |at: Option<usize>| at.and_then(|at| word.as_bytes().get(at)).is_some_and(u8::is_ascii_digit);
        is_timed |= word.match_indices(':').any(|(at, _)| digit(at.checked_sub(1)) && digit(Some(at + 1)));
        rest = beyond.trim_start();
    }
    if is_timed { rest } else { line }
}

/// Returns the largest size of one part in bytes that keeps all parts within `budget`: the large parts share
/// what small parts leave.
pub fn fair_share(sizes: &[usize], budget: usize) -> usize {
    let mut sorted = sizes.to_vec();
    sorted.sort_unstable();
    let mut left = budget;
    for (at, size) in sorted.iter().enumerate() {
        let share = left / (sorted.len() - at);
        if *size > share {
            return share;
        }
        left -= size;
    }
    budget
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_parts_leave_their_share_to_large_ones() {
        let check = |sizes: &[usize], expected| assert_eq!(fair_share(sizes, 10_000), expected, "{sizes:?}");
        check(&[], 10_000);
        check(&[10, 20, 9_000], 10_000);
        check(&[20_000], 10_000);
        check(&[1_000, 20_000, 20_000], 4_500);
        check(&[20_000; 50], 200);
    }

    #[test]
    fn equal_lines_in_a_row_are_one() {
        let check = |text: &str, expected: &str| assert_eq!(without_repeats(text), expected, "{text:?}");
        let refused = "memcache.go:265] couldn't get current server API group list: connection refused";
        let log: String = (1..=5).map(|n| format!("E1126 11:05:0{n}.1{n}   4{n} {refused}\n")).collect();
        check(
            &format!("Command failed\n{log}The connection was refused"),
            &format!(
                "Command failed\nE1126 11:05:01.11   41 {refused} (5 times)\nThe connection was refused"
            ),
        );
        check("no\nno\nno", "no (3 times)");
        for same in
            ["", "one line", "a\n\n\nb\n", "row 1 failed\nrow 2 failed", "1 failed\n2 failed", "a\nb\na"]
        {
            check(same, same);
        }
    }

    #[test]
    fn large_parts_are_cut_and_named_and_the_others_stay() {
        let schema = json!({ "type": "object", "properties": { "a": { "type": "string" } } });
        let tool = json!({ "name": "a.b", "description": "word\n".repeat(50_000), "input_schema": schema, "x-y": 1 });
        let CondensedValue { value, cut } = CondensedValue::of(&json!({ "tools": [tool, tool] }), 8_000);
        assert!((4_000..8_400).contains(&json_len(&value)), "{}", json_len(&value));
        assert_eq!(value["tools"][1]["input_schema"], schema);
        let about = value["tools"][0]["description"].as_str().expect("text");
        assert!(about.starts_with("word\n") && about.ends_with("word\n") && about.contains("left out"));
        assert_eq!(cut, [".tools[0].description", ".tools[1].description"]);
    }

    #[test]
    fn nothing_makes_it_larger_than_its_budget_by_much() {
        let deep = (0..120).fold(json!("x".repeat(50_000)), |inner, _| json!({ "a": [inner] }));
        let wide: Map<String, Value> = (0..20_000).map(|n| (format!("k{n}"), json!(n))).collect();
        let keys = json!({ "k".repeat(100_000): 1, "b": "y".repeat(50_000) });
        let escapes = json!({ "a": "\u{1}\"\\".repeat(20_000), "é": "é".repeat(20_000) });
        for value in [
            deep,
            json!(wide),
            json!([wide]),
            json!(vec![7; 100_000]),
            keys,
            escapes,
            json!("z".repeat(9_000)),
        ] {
            for budget in [600, 5_000] {
                let size = json_len(&CondensedValue::of(&value, budget).value);
                assert!(size <= budget * 5 / 4, "{budget}: {size} bytes of {:.60}", value.to_string());
            }
        }
    }
}
