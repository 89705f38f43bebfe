//! Finds what must not be in a text: configured secrets, keys by their format, and card numbers. Also finds
//! text that reads like instructions to a model, or like an answer of Nonet.
//!
//! This room knows text and JSON values, not servers: the caller supplies the secrets and decides what to do
//! about findings. Every text is read once for all triggers (a word, the beginning of a key); only the text
//! around a trigger is examined further. Text in disguise is read once more without it.

mod cards;
mod encoded;
mod imitations;
mod injections;
mod keys;
mod known;
#[cfg(test)]
mod tests;

use std::{
    borrow::Cow,
    ops::Range,
    sync::{Arc, LazyLock},
};

use nonet_api::tools::FoundMark;
use nonet_base::{
    blocks::token_runs,
    disguises::undone,
    json::any_text,
    text::{self, HiddenChar},
    words::WordFinder,
};
use serde_json::{Map, Value};

pub use self::known::{KnownSecrets, is_strong, rename_keys};
use self::{
    imitations::{ESCAPES, ImitatedMember, MEMBERS, SeenMembers},
    injections::FAMILIES,
    keys::FORMATS,
};
use crate::results::is_own_meta;

/// Replaces a secret.
pub const MASK: &str = "***";
/// The maximum number of findings listed per value; the rest are counted.
pub const MOST: usize = 20;
/// The longest excerpt of a finding, in characters.
const EXCERPT: usize = 120;
/// Shorter texts hold no secret.
const SHORTEST: usize = 8;

/// A secret in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leak {
    /// A configured secret, of one or several servers.
    Known(Arc<[Arc<str>]>),
    /// A key, by its format; holds the name of the format.
    Key(&'static str),
    /// A card number.
    Card,
}

impl Leak {
    /// Returns a short description.
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

    /// Returns the kind, for a count.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Known(_) => "known",
            Self::Key(_) => "key",
            Self::Card => "card",
        }
    }
}

/// Something found in a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding<T> {
    /// The kind of finding.
    pub what: T,
    /// The place, as a path: `content[0].text`.
    pub place: String,
    /// The suspicious or hidden text, as one line; empty for a secret.
    pub text: String,
}

/// The findings in a value: the first [`MOST`] of each kind (of marks: those of hidden characters, and all
/// others), one per owner of a known secret, and the counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Secrets.
    pub leaks: Vec<Finding<Leak>>,
    /// The number of secrets.
    pub leak_count: usize,
    /// How many of them are configured secrets.
    pub known_count: usize,
    /// Text that reads like instructions to a model, or is hidden from people.
    pub marks: Vec<Finding<&'static str>>,
    /// The number of marks.
    pub mark_count: usize,
    /// What has the form of Nonet's own answers.
    pub imitations: Vec<Finding<&'static str>>,
}

impl Findings {
    /// Returns whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.leak_count == 0 && self.mark_count == 0 && self.imitations.is_empty()
    }

    /// Returns the marks that read like instructions, and those of nothing but characters that people do not
    /// see.
    pub fn split_marks(&self) -> (Vec<&Finding<&'static str>>, Vec<&Finding<&'static str>>) {
        self.marks.iter().partition(|mark| !is_hidden(mark.what) || reads_like_instructions(&mark.text))
    }

    /// Returns the marks for an answer: the kind, the place, and the beginning of each.
    pub fn marks_shown(&self) -> Vec<FoundMark> {
        shown(&self.marks)
    }

    /// Returns the imitations for an answer in the same way.
    pub fn imitations_shown(&self) -> Vec<FoundMark> {
        shown(&self.imitations)
    }

    fn imitates(&mut self, what: &'static str, place: impl Fn() -> String) {
        if self.imitations.len() < MOST {
            self.imitations.push(Finding { what, place: place(), text: String::new() });
        }
    }
}

/// Whether a mark is about hidden characters.
fn is_hidden(what: &str) -> bool {
    [HiddenChar::Tag, HiddenChar::Selector, HiddenChar::Direction].iter().any(|kind| kind.as_str() == what)
}

/// Whether the text that hidden characters spell reads like instructions.
fn reads_like_instructions(text: &str) -> bool {
    static NONE: LazyLock<KnownSecrets> = LazyLock::new(KnownSecrets::default);
    let search =
        Search { known: &NONE, keys: false, instructions: true, imitations: false, definition: false };
    search.look(text).marks.iter().any(|(_, mark)| !is_hidden(mark.what))
}

/// Returns findings for an answer.
pub fn shown<'f>(findings: impl IntoIterator<Item = &'f Finding<&'static str>>) -> Vec<FoundMark> {
    let shown = |one: &Finding<&'static str>| FoundMark {
        what: one.what.into(),
        place: one.place.clone(),
        text: one.text.clone(),
    };
    findings.into_iter().map(shown).collect()
}

/// What to search for.
#[derive(Clone, Copy, Debug)]
pub struct Search<'a> {
    /// The configured secrets.
    pub known: &'a KnownSecrets,
    /// Whether to search for keys by their format and for card numbers.
    pub keys: bool,
    /// Whether to search for instructions to a model.
    pub instructions: bool,
    /// Whether to search for text in the form of Nonet's own answers.
    pub imitations: bool,
    /// Whether the texts are a definition, where some subjects are suspicious in themselves.
    pub definition: bool,
}

/// The subject of a trigger.
#[derive(Clone, Copy)]
enum Trigger {
    Key(usize),
    Family(usize),
    Hidden,
    /// A member of Nonet's answers.
    Member(ImitatedMember),
    /// A letter that need not be escaped.
    Escape,
}

struct Triggers {
    words: WordFinder,
    kinds: Vec<Trigger>,
}

/// First bytes of invisible characters that never belong in a result: tags, supplementary variation
/// selectors, and bidirectional overrides. Other hidden characters occur on honest web pages.
const HIDDEN: [&[u8]; 3] = [b"\xf3\xa0", b"\xe2\x80\xad", b"\xe2\x80\xae"];

static TRIGGERS: LazyLock<Triggers> = LazyLock::new(|| {
    let members = MEMBERS.map(|(name, _)| format!("\"{name}"));
    let mut patterns: Vec<Cow<[u8]>> = Vec::new();
    let mut kinds = Vec::new();
    for (at, format) in FORMATS.iter().enumerate().filter(|(_, format)| !format.is_token()) {
        patterns.push(format.begins.as_bytes().into());
        kinds.push(Trigger::Key(at));
    }
    for (at, family) in FAMILIES.iter().enumerate() {
        for trigger in family.triggers {
            // A line may end at any of its spaces.
            let broken = trigger.match_indices(' ').map(|(at, _)| {
                let mut broken = trigger.as_bytes().to_vec();
                broken[at] = b'\n';
                broken.into()
            });
            patterns.extend(std::iter::once(trigger.as_bytes().into()).chain(broken));
            kinds.resize(patterns.len(), Trigger::Family(at));
        }
    }
    for hidden in HIDDEN {
        patterns.push(hidden.into());
        kinds.push(Trigger::Hidden);
    }
    patterns.extend(members.iter().map(|member| member.as_bytes().into()));
    kinds.extend(MEMBERS.map(|(_, member)| Trigger::Member(member)));
    patterns.extend(ESCAPES.map(|escape| escape.as_bytes().into()));
    kinds.extend(ESCAPES.map(|_| Trigger::Escape));
    let patterns: Vec<&[u8]> = patterns.iter().map(|pattern| &**pattern).collect();
    Triggers { words: WordFinder::new(&patterns), kinds }
});

#[derive(Debug, Default)]
struct TextFindings {
    leaks: Vec<(Range<usize>, Leak)>,
    marks: Vec<(Range<usize>, Mark)>,
    /// The forms of Nonet's answers, each once.
    imitations: Vec<&'static str>,
}

impl TextFindings {
    fn imitates(&mut self, form: Option<&'static str>) {
        self.imitations.extend(form.filter(|form| !self.imitations.contains(form)));
    }
}

/// A mark in one text.
#[derive(Debug)]
struct Mark {
    what: &'static str,
    /// How the text reads; `None` if it reads as it is written.
    reads: Option<String>,
}

impl Search<'_> {
    /// Searches every text of a value, including object keys.
    pub fn of_value(&self, value: &Value) -> Findings {
        let mut findings = Findings::default();
        self.walk(value, &mut Vec::new(), &mut findings);
        findings
    }

    /// Searches every text of an object.
    pub fn of_fields(&self, fields: &Map<String, Value>) -> Findings {
        let (mut findings, mut path) = (Findings::default(), Vec::new());
        self.walk_fields(fields, &mut path, &mut findings);
        findings
    }

    /// Returns whether the texts of JSON, including keys, contain a finding. Also reads the bytes of images
    /// as text, and finds parts of an imitation in any places, so [`Self::of_value`] may not confirm the
    /// finding. With `imitations`, it also returns true for keys that only Nonet may use in `_meta`.
    pub fn finds_in_json(&self, json: &[u8]) -> bool {
        let mut seen = SeenMembers::default();
        any_text(json, |text, behind| {
            if self.imitations {
                let form = imitations::member(text).and_then(|member| seen.add(member, behind));
                if form.is_some() || imitations::is_own_key(text, behind) {
                    return true;
                }
            }
            let found = self.look(text);
            !found.leaks.is_empty() || !found.marks.is_empty() || !found.imitations.is_empty()
        })
    }

    /// Returns the search for known secrets only.
    fn of_known(&self) -> Self {
        Self { keys: false, instructions: false, ..*self }
    }

    /// Searches a value, named `place`, if there is one.
    pub fn add(&self, value: Option<&Value>, place: &str, findings: &mut Findings) {
        let Some(value) = value else { return };
        self.walk(value, &mut vec![Step::Key(place)], findings);
    }

    /// Searches a single text, named `place`.
    pub fn of_text(&self, text: &str, place: &str, findings: &mut Findings) {
        self.note(text, findings, || place.to_owned());
    }

    fn walk<'v>(&self, value: &'v Value, path: &mut Vec<Step<'v>>, findings: &mut Findings) {
        match value {
            Value::String(text) => self.note(text, findings, || self.written(path)),
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
        // What Nonet itself keeps in a result, on its way to the client.
        let is_own = matches!(path[..], [Step::Key("_meta"), Step::Key(key), ..] if is_own_meta(key));
        if self.imitations
            && !is_own
            && let Some(form) = imitations::in_object(fields)
        {
            findings.imitates(form, || self.written(path));
        }
        let bytes = bytes_of(fields);
        for (key, item) in fields {
            path.push(Step::Key(key));
            self.note(key, findings, || self.written(path));
            // Bytes are no words, but a known secret is one anywhere.
            let search = if Some(key.as_str()) == bytes { self.of_known() } else { *self };
            search.walk(item, path, findings);
            path.pop();
        }
    }

    /// Returns a path in the form shown to people, without secrets in its keys.
    fn written(&self, path: &[Step]) -> String {
        let mut out = String::new();
        for step in path {
            match step {
                Step::At(at) => out.push_str(&format!("[{at}]")),
                Step::Key(key) => {
                    if !out.is_empty() {
                        out.push('.');
                    }
                    let shown = self.redacted(key).map_or(Cow::Borrowed(*key), |(key, _)| key.into());
                    out.push_str(&text::line(&shown, 40));
                }
            }
        }
        out
    }

    fn note(&self, text: &str, findings: &mut Findings, place: impl Fn() -> String) {
        let found = self.look(text);
        findings.leak_count += found.leaks.len();
        findings.known_count += found.leaks.iter().filter(|(_, leak)| matches!(leak, Leak::Known(_))).count();
        findings.mark_count += found.marks.len();
        for form in found.imitations {
            findings.imitates(form, &place);
        }
        for (_, what) in found.leaks {
            // Without a limit: the owners of the secrets decide where the text may go.
            let is_new = findings.leaks.len() < MOST
                || matches!(what, Leak::Known(_)) && findings.leaks.iter().all(|one| one.what != what);
            if is_new {
                findings.leaks.push(Finding { what, place: place(), text: String::new() });
            }
        }
        for (range, mark) in found.marks {
            // Many hidden characters leave room for instructions.
            let is_alike = |other: &&Finding<&str>| is_hidden(other.what) == is_hidden(mark.what);
            if findings.marks.iter().filter(is_alike).count() >= MOST {
                continue;
            }
            let text = mark.reads.as_deref().unwrap_or_else(|| &text[range]);
            // A secret may be part of it.
            let text = self.redacted(text).map_or_else(|| excerpt(text), |(text, _)| excerpt(&text));
            findings.marks.push(Finding { what: mark.what, place: place(), text });
        }
    }

    /// Searches one text. The ranges are in order; a key may overlap a known secret.
    fn look(&self, text: &str) -> TextFindings {
        let mut found = TextFindings::default();
        if text.len() < SHORTEST {
            return found;
        }
        let known: Vec<(Range<usize>, Leak)> =
            self.known.find(text).map(|(range, of)| (range, Leak::Known(of))).collect();
        if self.keys || self.instructions || self.imitations {
            self.look_around(text, &mut found);
        }
        let tokens = if self.keys || self.instructions { token_runs(text.as_bytes()) } else { Vec::new() };
        if self.instructions {
            self.look_behind(text, &tokens, &mut found.marks);
        }
        if self.keys {
            for token in &tokens {
                let leaks = &mut found.leaks;
                keys::in_token(text, token, |format, range| leaks.push((range, Leak::Key(format.name))));
            }
            found.leaks.extend(cards::find(text).map(|range| (range, Leak::Card)));
        }
        in_order(&mut found.leaks);
        in_order(&mut found.marks);
        // An apparent key never hides a configured secret, and adds nothing inside one.
        found.leaks.retain(|(range, _)| {
            let at = known.partition_point(|(of, _)| of.end < range.end);
            known.get(at).is_none_or(|(of, _)| of.start > range.start)
        });
        found.leaks.extend(known);
        found.leaks.sort_by_key(|(range, _)| range.start);
        found
    }

    fn look_around(&self, text: &str, found: &mut TextFindings) {
        let triggers = &*TRIGGERS;
        // The end of the text already examined per family, so that overlapping windows are examined once.
        let mut seen = [0; FAMILIES.len()];
        let mut seen_hidden = 0;
        let (mut seen_members, mut is_escaped) = (SeenMembers::default(), false);
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
                let (mark, until) = family.around(text, hit);
                seen[at] = until;
                found.marks.extend(mark.map(|(range, reads)| (range, Mark { what: family.what, reads })));
            }
            Trigger::Hidden if self.instructions && hit.start >= seen_hidden => {
                let (range, until) = injections::hidden_at(text, hit.start);
                seen_hidden = until;
                found
                    .marks
                    .extend(range.map(|(range, kind)| (range, Mark { what: kind.as_str(), reads: None })));
            }
            Trigger::Member(member) if self.imitations => {
                found.imitates(seen_members.in_text(member, &text[hit.end..]));
            }
            Trigger::Escape => is_escaped = true,
            _ => {}
        });
        if self.imitations && is_escaped {
            let (plain, mut seen) = (imitations::unescaped(text), SeenMembers::default());
            triggers.words.find(plain.as_bytes(), &mut |word, hit| {
                if let Trigger::Member(member) = triggers.kinds[word] {
                    found.imitates(seen.in_text(member, &plain[hit.end..]));
                }
            });
        }
    }

    /// Searches for instructions in what a text says without its disguises.
    fn look_behind(&self, text: &str, tokens: &[Range<usize>], marks: &mut Vec<(Range<usize>, Mark)>) {
        let plain = Search { keys: false, imitations: false, ..*self };
        let mut look = |clear: &str, original: &dyn Fn(&Range<usize>) -> Range<usize>| {
            let mut found = TextFindings::default();
            plain.look_around(clear, &mut found);
            marks.extend(found.marks.into_iter().map(|(range, mark)| {
                let reads = mark.reads.unwrap_or_else(|| clear[range.clone()].to_owned());
                (original(&range), Mark { reads: Some(reads), ..mark })
            }));
        };
        for (begin, undone) in undone(text) {
            look(&undone.text, &|range| {
                let range = undone.original(range);
                begin + range.start..begin + range.end
            });
        }
        for (run, decoded) in encoded::decoded(text, tokens) {
            look(&decoded, &|_| run.clone());
        }
    }

    /// Replaces every secret in a value. Returns how many there were.
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
                for (key, item) in fields.iter_mut() {
                    let search = if Some(key) == bytes.as_ref() { self.of_known() } else { *self };
                    count += search.redact(item);
                }
                count +=
                    fields.keys().filter_map(|key| self.redacted(key)).map(|(_, some)| some).sum::<usize>();
                rename_keys(fields, |key| Some(self.redacted(key)?.0));
                count
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        }
    }

    /// Returns a text with its secrets masked, and their number; `None` if it has none.
    pub fn redacted(&self, text: &str) -> Option<(String, usize)> {
        let found = Search { instructions: false, imitations: false, ..*self }.look(text).leaks;
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

/// A step of a path into a value.
enum Step<'v> {
    Key(&'v str),
    At(usize),
}

/// Returns the key of an image's or sound's bytes, which are not text.
fn bytes_of(fields: &Map<String, Value>) -> Option<&str> {
    match fields.get("type").and_then(Value::as_str) {
        Some("image" | "audio") => Some("data"),
        _ => None,
    }
}

/// Sorts the findings; of overlapping ones, keeps the first and longest.
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

/// Returns a finding as one line, with hidden ASCII spelled out.
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
