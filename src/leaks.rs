//! What must not be in a text, and what is not what it seems: secrets of the configuration, keys by their form, card numbers;
//! and text that reads like instructions to a model.
//!
//! Knows text and JSON values, not servers: whoever asks says which secrets there are, and what is done about what is found.
//! Every text is read once for all triggers (a word, the beginning of a key); only what is around a trigger is looked at again.

mod cards;
mod injections;
mod keys;
mod known;
#[cfg(test)]
mod tests;

use std::{ops::Range, sync::Arc, sync::LazyLock};

use serde_json::{Map, Value, json};

pub use self::known::{KnownSecrets, is_strong};
use self::{injections::FAMILIES, keys::FORMATS};
use crate::{json::any_text, text, words::Words};

/// What stands in the place of a secret.
pub const MASK: &str = "***";
/// The most findings that are told of one value; the rest is counted.
pub const MOST: usize = 20;
/// The longest excerpt of a finding, in characters.
const EXCERPT: usize = 120;
/// Shorter texts hold no secret.
const SHORTEST: usize = 8;

/// A secret in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leak {
    /// A secret of the configuration: of this server, or of several.
    Known(Arc<[Arc<str>]>),
    /// A key, by its form: what it is.
    Key(&'static str),
    /// A card number.
    Card,
}

impl Leak {
    /// What it is, in a few words.
    pub fn what(&self) -> String {
        match self {
            Self::Known(of) => {
                let names: Vec<String> = of.iter().map(|name| format!("`{name}`")).collect();
                format!("a secret of {}", names.join(", "))
            }
            Self::Key(what) => (*what).into(),
            Self::Card => "card number".into(),
        }
    }

    /// What kind it is, for a count.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Known(_) => "known",
            Self::Key(_) => "key",
            Self::Card => "card",
        }
    }
}

/// Something that was found in a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding<T> {
    /// What it is.
    pub what: T,
    /// Where, as a path: `content[0].text`.
    pub place: String,
    /// What reads like instructions, or what is hidden, as one line; empty for a secret.
    pub text: String,
}

/// What was found in a value: the first [`MOST`] of each, one of each owner of a known secret, and how many
/// there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Secrets.
    pub leaks: Vec<Finding<Leak>>,
    /// How many.
    pub leak_count: usize,
    /// How many of them are secrets of the configuration.
    pub known_count: usize,
    /// What reads like instructions to a model, or is hidden from people.
    pub marks: Vec<Finding<&'static str>>,
    /// How many.
    pub mark_count: usize,
}

impl Findings {
    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.leak_count == 0 && self.mark_count == 0
    }

    /// What reads like instructions or is hidden, for an answer: what it is, where, and how it begins.
    pub fn marks_shown(&self) -> Value {
        let shown = |mark: &Finding<&'static str>| {
            let mut shown = json!({ "what": mark.what, "where": mark.place });
            if !mark.text.is_empty() {
                shown["text"] = json!(mark.text);
            }
            shown
        };
        self.marks.iter().map(shown).collect()
    }
}

/// What to look for.
#[derive(Clone, Copy, Debug)]
pub struct Search<'a> {
    /// The secrets of the configuration.
    pub known: &'a KnownSecrets,
    /// Whether to look for keys by their form and for card numbers.
    pub keys: bool,
    /// Whether to look for instructions to a model.
    pub instructions: bool,
    /// Whether the texts are a definition, which has no reason to speak of some things.
    pub definition: bool,
}

/// What a trigger is about.
#[derive(Clone, Copy)]
enum Trigger {
    Key(usize),
    Family(usize),
    Hidden,
}

struct Triggers {
    words: Words,
    kinds: Vec<Trigger>,
}

/// The beginnings of what is invisible and never belongs in a result: tags and selectors of the supplement, and overrides of
/// the direction. What else is hidden occurs on honest web pages.
const HIDDEN: [&[u8]; 8] = [
    b"\xf3\xa0\x80",
    b"\xf3\xa0\x81",
    b"\xf3\xa0\x84",
    b"\xf3\xa0\x85",
    b"\xf3\xa0\x86",
    b"\xf3\xa0\x87",
    b"\xe2\x80\xad",
    b"\xe2\x80\xae",
];

static TRIGGERS: LazyLock<Triggers> = LazyLock::new(|| {
    let mut patterns: Vec<&[u8]> = Vec::new();
    let mut kinds = Vec::new();
    for (at, format) in FORMATS.iter().enumerate() {
        patterns.push(format.begins.as_bytes());
        kinds.push(Trigger::Key(at));
    }
    for (at, family) in FAMILIES.iter().enumerate() {
        for trigger in family.triggers {
            patterns.push(trigger.as_bytes());
            kinds.push(Trigger::Family(at));
        }
    }
    for hidden in HIDDEN {
        patterns.push(hidden);
        kinds.push(Trigger::Hidden);
    }
    Triggers { words: Words::new(&patterns), kinds }
});

/// What was found in one text.
#[derive(Debug, Default)]
struct InText {
    leaks: Vec<(Range<usize>, Leak)>,
    marks: Vec<(Range<usize>, &'static str)>,
}

impl Search<'_> {
    /// Looks at every text of a value, keys of objects included.
    pub fn of_value(&self, value: &Value) -> Findings {
        let mut findings = Findings::default();
        self.walk(value, &mut Vec::new(), &mut findings);
        findings
    }

    /// Looks at every text of an object.
    pub fn of_fields(&self, fields: &Map<String, Value>) -> Findings {
        let (mut findings, mut path) = (Findings::default(), Vec::new());
        self.walk_fields(fields, &mut path, &mut findings);
        findings
    }

    /// Whether there is anything in the texts of JSON, keys included. Takes the bytes of pictures for text as well, so what is
    /// found may not be there for [`Self::of_value`].
    pub fn finds_in_json(&self, json: &[u8]) -> bool {
        any_text(json, |text| {
            let found = self.look(text);
            !found.leaks.is_empty() || !found.marks.is_empty()
        })
    }

    /// Looks at a single text, which is called `place`.
    pub fn of_text(&self, text: &str, place: &str, findings: &mut Findings) {
        self.note(text, findings, || place.to_owned());
    }

    fn walk<'v>(&self, value: &'v Value, path: &mut Vec<Step<'v>>, findings: &mut Findings) {
        match value {
            Value::String(text) => self.note(text, findings, || written(path)),
            Value::Array(items) => {
                for (at, item) in items.iter().enumerate() {
                    path.push(Step::At(at));
                    self.walk(item, path, findings);
                    path.pop();
                }
            }
            Value::Object(fields) => self.walk_fields(fields, path, findings),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn walk_fields<'v>(
        &self,
        fields: &'v Map<String, Value>,
        path: &mut Vec<Step<'v>>,
        findings: &mut Findings,
    ) {
        let bytes = bytes_of(fields);
        for (key, item) in fields.iter().filter(|(key, _)| Some(key.as_str()) != bytes) {
            path.push(Step::Key(key));
            self.note(key, findings, || written(path));
            self.walk(item, path, findings);
            path.pop();
        }
    }

    fn note(&self, text: &str, findings: &mut Findings, place: impl Fn() -> String) {
        let found = self.look(text);
        findings.leak_count += found.leaks.len();
        findings.known_count += found.leaks.iter().filter(|(_, leak)| matches!(leak, Leak::Known(_))).count();
        findings.mark_count += found.marks.len();
        for (_, what) in found.leaks {
            // However much there is: whose secrets were found decides what may go where.
            let is_new = findings.leaks.len() < MOST
                || matches!(what, Leak::Known(_)) && findings.leaks.iter().all(|one| one.what != what);
            if is_new {
                findings.leaks.push(Finding { what, place: place(), text: String::new() });
            }
        }
        let room = MOST - findings.marks.len();
        findings.marks.extend(found.marks.into_iter().take(room).map(|(range, what)| Finding {
            what,
            place: place(),
            text: excerpt(&text[range]),
        }));
    }

    /// Looks at one text. The ranges are in order; a key may overlap a known secret.
    fn look(&self, text: &str) -> InText {
        let mut found = InText::default();
        if text.len() < SHORTEST {
            return found;
        }
        let known: Vec<(Range<usize>, Leak)> =
            self.known.find(text).map(|(range, of)| (range, Leak::Known(of))).collect();
        if self.keys || self.instructions {
            self.look_around(text, &mut found);
        }
        if self.keys {
            found.leaks.extend(cards::find(text).map(|range| (range, Leak::Card)));
        }
        in_order(&mut found.leaks);
        in_order(&mut found.marks);
        // What looks like a key never hides a secret of the configuration; it adds nothing if it is inside of one.
        found.leaks.retain(|(range, _)| {
            let at = known.partition_point(|(of, _)| of.end < range.end);
            known.get(at).is_none_or(|(of, _)| of.start > range.start)
        });
        found.leaks.extend(known);
        found.leaks.sort_by_key(|(range, _)| range.start);
        found
    }

    fn look_around(&self, text: &str, found: &mut InText) {
        let triggers = &*TRIGGERS;
        // How far each family has been looked for: what lies in the same window is looked at once.
        let mut seen = [0; FAMILIES.len()];
        let mut seen_hidden = 0;
        triggers.words.find(text.as_bytes(), &mut |word, hit| match triggers.kinds[word] {
            Trigger::Key(at) if self.keys => {
                if let Some(range) = FORMATS[at].at(text, hit.start) {
                    found.leaks.push((range, Leak::Key(FORMATS[at].name)));
                }
            }
            Trigger::Family(at) if self.instructions => {
                let family = &FAMILIES[at];
                if hit.start < seen[at] || family.in_definitions && !self.definition {
                    return;
                }
                let (range, until) = family.around(text, hit);
                seen[at] = until;
                found.marks.extend(range.map(|range| (range, family.what)));
            }
            Trigger::Hidden if self.instructions && hit.start >= seen_hidden => {
                let (range, until) = injections::hidden_at(text, hit.start);
                seen_hidden = until;
                found.marks.extend(range.map(|(range, kind)| (range, kind.as_str())));
            }
            _ => {}
        });
    }

    /// Replaces every secret in a value; says how many there were.
    pub fn redact(&self, value: &mut Value) -> usize {
        match value {
            Value::String(text) => match self.redacted(text) {
                Some((clean, count)) => {
                    *text = clean;
                    count
                }
                None => 0,
            },
            Value::Array(items) => items.iter_mut().map(|item| self.redact(item)).sum(),
            Value::Object(fields) => {
                let bytes = bytes_of(fields).map(str::to_owned);
                let mut count = 0;
                for (_, item) in fields.iter_mut().filter(|(key, _)| Some(key.as_str()) != bytes.as_deref()) {
                    count += self.redact(item);
                }
                if fields.keys().any(|key| self.redacted(key).is_some()) {
                    let all = std::mem::take(fields);
                    fields.extend(all.into_iter().map(|(key, item)| match self.redacted(&key) {
                        Some((clean, some)) => {
                            count += some;
                            (clean, item)
                        }
                        None => (key, item),
                    }));
                }
                count
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        }
    }

    /// Returns a text without its secrets, and how many it had; `None` if it has none.
    pub fn redacted(&self, text: &str) -> Option<(String, usize)> {
        let found = Search { instructions: false, ..*self }.look(text).leaks;
        if found.is_empty() {
            return None;
        }
        let (mut clean, mut done) = (String::with_capacity(text.len()), 0);
        for (range, _) in &found {
            if range.start >= done {
                clean.push_str(&text[done..range.start]);
                clean.push_str(MASK);
            }
            done = done.max(range.end);
        }
        clean.push_str(&text[done..]);
        Some((clean, found.len()))
    }
}

/// A step into a value.
enum Step<'v> {
    Key(&'v str),
    At(usize),
}

/// Returns a path as people write it.
fn written(path: &[Step]) -> String {
    let mut out = String::new();
    for step in path {
        match step {
            Step::At(at) => out.push_str(&format!("[{at}]")),
            Step::Key(key) => {
                if !out.is_empty() {
                    out.push('.');
                }
                out.push_str(&text::line(key, 40));
            }
        }
    }
    out
}

/// Returns the key of an image's or a sound's bytes: they are no text.
fn bytes_of(fields: &Map<String, Value>) -> Option<&str> {
    match fields.get("type").and_then(Value::as_str) {
        Some("image" | "audio") => Some("data"),
        _ => None,
    }
}

/// Sorts what was found; of what overlaps, the first and longest stays.
fn in_order<T>(found: &mut Vec<(Range<usize>, T)>) {
    if found.len() < 2 {
        return;
    }
    found.sort_by_key(|(range, _)| (range.start, usize::MAX - range.end));
    let mut done = 0;
    found.retain(|(range, _)| {
        let is_new = range.start >= done;
        done = done.max(range.end);
        is_new
    });
}

/// Returns what was found as one line; hidden ASCII is spelled out.
fn excerpt(found: &str) -> String {
    let spelled: String = found
        .chars()
        .map(|c| match u32::from(c) {
            tag @ 0xe0020..=0xe007e => char::from_u32(tag - 0xe0000).unwrap_or(c),
            _ => c,
        })
        .collect();
    text::line(spelled.trim(), EXCERPT)
}
