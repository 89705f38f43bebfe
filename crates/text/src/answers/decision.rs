//! Reads a yes or a no, with edited content and feedback.

use std::{
    collections::{HashMap, HashSet},
    iter::successors,
    sync::LazyLock,
};

use nonet_schema::bare;
use nonet_search::fold;
use serde_json::{Map, Value};

use super::{opened, phrases};

/// The longest answer that is read as a yes or a no, in characters.
const MAX_CHARS: usize = 200;
/// Signs that agree, that refuse, and that make an answer unclear.
const YES_SIGNS: &str = "👍👌✅✔☑🆗⭕🙆";
const NO_SIGNS: &str = "👎❌✖✗✘🚫⛔🙅🛑";
const UNSURE_SIGNS: &str = "?？؟¿❓❔🤷🤔😕";
/// Marks between two parts of an answer.
const MARKS: &str = ",;!\n(–—；：。、…";
/// Keys for a decision, a refusal, edited content and feedback, in lower case and without separators.
const DECISIONS: [&str; 9] =
    ["decision", "action", "answer", "approve", "approved", "allow", "allowed", "confirm", "confirmed"];
const REFUSALS: [&str; 4] = ["deny", "denied", "reject", "rejected"];
const CONTENTS: [&str; 5] = ["content", "editedcontent", "edited", "newcontent", "text"];
const FEEDBACKS: [&str; 6] = ["feedback", "userfeedback", "comment", "comments", "reason", "note"];

/// The meaning of an answer to a yes-or-no question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Yes, and nothing else.
    Yes,
    /// Yes, to everything of this kind.
    All,
    /// Yes, from now on.
    Always,
    /// No.
    No,
    /// The answer is not understood.
    Unclear,
}

/// A decision, with edited content and feedback.
#[derive(Clone, Debug, PartialEq)]
pub struct UserAnswer {
    /// The decision.
    pub decision: Decision,
    /// The content as the user edited it.
    pub content: Option<String>,
    /// What else the user said.
    pub feedback: Option<String>,
}

impl Decision {
    /// Whether it is a yes of any kind.
    pub(super) fn agrees(self) -> bool {
        matches!(self, Self::Yes | Self::All | Self::Always)
    }

    /// Returns the decision of two parts of one answer.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (one, other) if one == other => one,
            (Self::Yes, lasting @ (Self::All | Self::Always))
            | (lasting @ (Self::All | Self::Always), Self::Yes) => lasting,
            _ => Self::Unclear,
        }
    }
}

impl From<Decision> for UserAnswer {
    fn from(decision: Decision) -> Self {
        Self { decision, content: None, feedback: None }
    }
}

/// The decisions of phrases.
static DECIDED: LazyLock<HashMap<String, Decision>> = LazyLock::new(|| {
    let tables = [
        (phrases::YES, Decision::Yes),
        (phrases::ALWAYS, Decision::Always),
        (phrases::ALL, Decision::All),
        (phrases::NO, Decision::No),
    ];
    let phrases = tables.map(|(table, decision)| listed(table).map(move |phrase| (phrase, decision)));
    phrases.into_iter().flatten().collect()
});
static YES_ALONE: LazyLock<HashSet<String>> = LazyLock::new(|| listed(phrases::YES_ALONE).collect());
static ASIDES: LazyLock<HashSet<String>> = LazyLock::new(|| listed(phrases::ASIDE).collect());

/// Returns the phrases of a table, as `plain` returns them.
pub(super) fn listed(table: &'static [&str]) -> impl Iterator<Item = String> {
    table.iter().flat_map(|list| list.split(',')).map(plain)
}

/// Returns the folded words of a text, joined by spaces. Apostrophes are removed; other punctuation separates
/// words.
pub(super) fn plain(text: &str) -> String {
    let folded = fold(text).replace(['\'', '’', 'ʼ', '`', '´'], "");
    let words = folded.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(" ")
}

/// Whether a plain text changes nothing behind an answer.
pub(super) fn is_aside(said: &str) -> bool {
    ASIDES.contains(said)
}

/// Returns a plain text, then the text without what changes nothing at its end.
pub(super) fn readings(said: &str) -> impl Iterator<Item = &str> {
    successors(Some(said), |said| {
        let ends = ASIDES.iter().filter_map(|aside| said.strip_suffix(aside.as_str())?.strip_suffix(' '));
        ends.min_by_key(|rest| rest.len())
    })
}

/// Reads the answer to a yes-or-no question.
pub fn decision(answer: &Value) -> UserAnswer {
    match opened(answer) {
        Value::Bool(true) => Decision::Yes.into(),
        Value::Bool(false) => Decision::No.into(),
        Value::String(text) => spoken(&text).into(),
        Value::Array(items) => match &items[..] {
            [only @ (Value::Bool(_) | Value::String(_))] => decision(only),
            _ => Decision::Unclear.into(),
        },
        Value::Object(fields) => of_fields(&fields),
        Value::Null | Value::Number(_) => Decision::Unclear.into(),
    }
}

/// Whether a text begins with a no, whatever follows: "no, Anna".
pub fn begins_with_no(answer: &Value) -> bool {
    let parts = answer.as_str().map(parts).unwrap_or_default();
    parts.first().is_some_and(|first| of_part(first) == Decision::No)
}

/// Reads an answer in words: each of its parts is a phrase, and all of them say the same.
pub(super) fn spoken(text: &str) -> Decision {
    match text.trim().trim_end_matches(['.', '!']) {
        "+1" | "y" | "Y" => return Decision::Yes,
        "-1" | "n" | "N" => return Decision::No,
        _ => {}
    }
    let parts = parts(text);
    let whole = parts.join(" ");
    if YES_ALONE.contains(&whole) {
        return Decision::Yes;
    }
    match (DECIDED.get(&whole), parts.split_first()) {
        (Some(decision), _) => *decision,
        (None, Some((first, rest))) => {
            let rest = rest.iter().filter(|part| !is_aside(part)).map(|part| of_part(part));
            rest.fold(of_part(first), Decision::and)
        }
        (None, None) => Decision::Unclear,
    }
}

/// Returns the plain parts of an answer; none of an answer that is too long or unsure.
fn parts(text: &str) -> Vec<String> {
    if text.chars().count() > MAX_CHARS || text.contains(|c| UNSURE_SIGNS.contains(c)) {
        return Vec::new();
    }
    let mut marked = String::new();
    for c in fold(text).chars() {
        match c {
            c if YES_SIGNS.contains(c) => marked.push_str(",yes,"),
            c if NO_SIGNS.contains(c) => marked.push_str(",no,"),
            c => marked.push(c),
        }
    }
    let marked = marked.replace(". ", ",").replace(": ", ",").replace(" - ", ",");
    marked.split(|c| MARKS.contains(c)).map(plain).filter(|part| !part.is_empty()).collect()
}

fn of_part(part: &str) -> Decision {
    readings(part).find_map(|reading| DECIDED.get(reading)).copied().unwrap_or(Decision::Unclear)
}

/// Reads a decision, content and feedback from the fields of an object.
fn of_fields(fields: &Map<String, Value>) -> UserAnswer {
    let mut said = UserAnswer::from(Decision::Unclear);
    let mut read = Vec::new();
    for (key, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
        let text = || value.as_str().map_or_else(|| value.to_string(), String::from);
        match bare(key).as_str() {
            key if DECISIONS.contains(&key) && (value.is_boolean() || value.is_string()) => {
                read.push(decision(value).decision);
            }
            key if REFUSALS.contains(&key) && value == &Value::Bool(true) => read.push(Decision::No),
            key if CONTENTS.contains(&key) => said.content = Some(text()),
            key if FEEDBACKS.contains(&key) => said.feedback = Some(text()),
            "token" => {}
            // An unknown field may limit the approval.
            _ => read.push(Decision::Unclear),
        }
    }
    said.feedback = said.feedback.filter(|feedback| !feedback.trim().is_empty());
    read.dedup();
    if let [only] = read[..] {
        let is_limited = said.feedback.as_deref().is_some_and(|feedback| !is_agreeable(feedback));
        said.decision = if only.agrees() && is_limited { Decision::Unclear } else { only };
    }
    said
}

/// Whether feedback beside a yes is only another yes or thanks.
fn is_agreeable(feedback: &str) -> bool {
    let parts = parts(feedback);
    spoken(feedback) == Decision::Yes || !parts.is_empty() && parts.iter().all(|part| is_aside(part))
}
