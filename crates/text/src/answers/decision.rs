//! Reads a yes or a no, with edited content and feedback. Every word has to be understood.

use nonet_schema::bare;
use serde_json::{Map, Value};

use super::{
    opened,
    words::{Gist, LONGEST, LONGEST_UNSPACED, pauses, plain, sign, unspaced, word_of},
};

/// How many words of an answer are read; a longer answer is never understood as a yes.
const MAX_WORDS: usize = 200;
/// Keys for a decision, edited content and feedback, in lower case and without separators.
const DECISIONS: &[&str] = &[
    "decision",
    "action",
    "answer",
    "choice",
    "approved",
    "approve",
    "approval",
    "allow",
    "allowed",
    "response",
    "reply",
    "result",
    "status",
    "verdict",
    "confirm",
    "confirmed",
    "value",
];
const REFUSALS: &[&str] = &["deny", "denied", "reject", "rejected"];
const CONTENTS: &[&str] = &["content", "editedcontent", "edited", "newcontent", "text"];
const FEEDBACKS: &[&str] = &["feedback", "userfeedback", "comment", "comments", "reason", "note"];

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
    /// The answer starts with a change request.
    Change,
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
impl UserAnswer {
    fn only(decision: Decision) -> Self {
        Self { decision, content: None, feedback: None }
    }
}
/// Reads the answer to a yes-or-no question.
pub fn decision(answer: &Value) -> UserAnswer {
    match opened(answer) {
        Value::Bool(true) => UserAnswer::only(Decision::Yes),
        Value::Bool(false) => UserAnswer::only(Decision::No),
        Value::String(text) => spoken(&text),
        Value::Array(items) => match &items[..] {
            [only @ (Value::Bool(_) | Value::String(_))] => decision(only),
            _ => UserAnswer::only(Decision::Unclear),
        },
        Value::Object(fields) => of_fields(&fields),
        Value::Null | Value::Number(_) => UserAnswer::only(Decision::Unclear),
    }
}
/// Reads an answer in words. Text beside a no becomes feedback.
pub(super) fn spoken(text: &str) -> UserAnswer {
    match text.trim().trim_end_matches(['.', '!']) {
        "+1" | "y" | "Y" => return UserAnswer::only(Decision::Yes),
        "-1" | "n" | "N" => return UserAnswer::only(Decision::No),
        _ => {}
    }
    let words = classes(text);
    let decision = decided(&words);
    let more = words.iter().any(|word| matches!(word, None | Some(Gist::Start | Gist::Change)));
    let told = decision == Decision::Change || decision == Decision::No && more;
    UserAnswer { decision, content: None, feedback: told.then(|| text.trim().to_string()) }
}
fn decided(words: &[Option<Gist>]) -> Decision {
    let parts = parts(words);
    let said: Vec<Option<Gist>> = parts.iter().filter(|word| **word != Some(Gist::Pause)).copied().collect();
    let known: Vec<Gist> = said.iter().map_while(|word| *word).collect();
    let Some((first, rest)) = said.split_first() else { return Decision::Unclear };
    let refuses = |word: &Option<Gist>| matches!(word, Some(Gist::No | Gist::Bare));
    // Text beside a no or a change request must not revoke it.
    let tells = |word: &Option<Gist>| matches!(word, None | Some(Gist::Start | Gist::Change));
    match first {
        Some(first) if first.agrees() => {
            let all = known.len() == said.len() && known.iter().all(|word| word.agrees());
            if all && agreed(words, &known) { lasting(&known) } else { Decision::Unclear }
        }
        Some(Gist::No | Gist::Bare) => {
            // "do not cancel"
            let negated = parts.windows(2).any(|two| two[0] == Some(Gist::Bare) && refuses(&two[1]));
            let explained = parts.get(1) == Some(&Some(Gist::Pause)) && rest.iter().all(tells);
            let stands = !negated && (rest.iter().all(refuses) || explained);
            if stands { Decision::No } else { Decision::Unclear }
        }
        Some(Gist::Start | Gist::Change) => {
            let changes = said.contains(&Some(Gist::Change))
                && said.iter().all(|word| tells(word) || *word == Some(Gist::But));
            if changes { Decision::Change } else { Decision::Unclear }
        }
        _ => Decision::Unclear,
    }
}
/// Returns the words of an answer without fillers.
fn parts(words: &[Option<Gist>]) -> Vec<Option<Gist>> {
    let mut said: Vec<Option<Gist>> =
        words.iter().filter(|word| !word.is_some_and(Gist::is_filler)).copied().collect();
    let no_pause = |said: &mut Vec<Option<Gist>>| {
        let start = said.iter().take_while(|word| **word == Some(Gist::Pause)).count();
        said.drain(..start);
    };
    no_pause(&mut said);
    if said.first() == Some(&Some(Gist::Says)) {
        said.remove(0);
        no_pause(&mut said);
    }
    let mut parts = Vec::new();
    for (at, word) in said.iter().enumerate() {
        let before = at.checked_sub(1).and_then(|before| said[before]);
        let last = said.get(at + 1).is_none_or(|next| *next == Some(Gist::Pause));
        match word {
            Some(Gist::It)
                if before.is_some_and(|word| word.agrees() || matches!(word, Gist::No | Gist::Bare)) => {}
            Some(Gist::Once) if last && at > 0 => {}
            Some(Gist::It | Gist::Once | Gist::Says) => parts.push(None),
            word => parts.push(*word),
        }
    }
    parts
}
/// Whether words that each agree also agree together.
fn agreed(words: &[Option<Gist>], said: &[Gist]) -> bool {
    let spoken: Vec<Gist> =
        words.iter().filter_map(|word| *word).filter(|word| *word != Gist::Pause).collect();
    // "please confirm"
    let requests = spoken.windows(2).any(|two| two == [Gist::Please, Gist::Grant]);
    let firm = said.iter().any(|word| matches!(word, Gist::Yes | Gist::Grant | Gist::Go | Gist::Always));
    let fine = said.contains(&Gist::Fine) && !spoken.contains(&Gist::Thanks);
    let lead = said.iter().skip(1).all(|word| *word != Gist::Lead);
    !requests && lead && (firm || fine || said[0] == Gist::Lead)
}
fn lasting(said: &[Gist]) -> Decision {
    let always = said.iter().any(|word| matches!(word, Gist::Always | Gist::Lasting));
    match (always, said.contains(&Gist::All)) {
        (true, _) => Decision::Always,
        (false, true) => Decision::All,
        (false, false) => Decision::Yes,
    }
}
/// Returns the gist of each phrase of a text; `None` for an unknown phrase.
fn classes(text: &str) -> Vec<Option<Gist>> {
    let mut found = Vec::new();
    let (mut from, mut before) = (0, None);
    // Signs are separate words.
    for (at, c) in text.char_indices() {
        let behind = at + c.len_utf8();
        let pause = pauses(before, c, text[behind..].chars().next());
        let word = sign(c);
        if pause || word.is_some() {
            phrases(&text[from..at], &mut found);
            found.extend(match word {
                Some(Gist::Question) => vec![Some(Gist::Question)],
                Some(word) => vec![Some(Gist::Pause), Some(word), Some(Gist::Pause)],
                None => vec![Some(Gist::Pause)],
            });
            from = behind;
        }
        if found.len() > MAX_WORDS {
            found.push(None);
            return found;
        }
        before = Some(c);
    }
    phrases(&text[from..], &mut found);
    found
}
/// Finds the phrases of a text from the left, the longest first.
fn phrases(text: &str, found: &mut Vec<Option<Gist>>) {
    let words: Vec<String> = plain(text).into_iter().take(MAX_WORDS).collect();
    let mut at = 0;
    while at < words.len() {
        let longest = (1..=LONGEST.min(words.len() - at))
            .rev()
            .find_map(|count| Some((word_of(&words[at..at + count].join(" "))?, count)));
        match longest {
            Some((word, count)) => {
                found.push(Some(word));
                at += count;
            }
            None => {
                unspaced_phrases(&words[at], found);
                at += 1;
            }
        }
    }
    if words.len() == MAX_WORDS {
        found.push(None);
    }
}
/// Finds the phrases inside an unknown word: scripts without spaces join phrases. A short phrase counts only if every
/// other part is known too.
fn unspaced_phrases(word: &str, found: &mut Vec<Option<Gist>>) {
    let chars: Vec<char> = word.chars().take(MAX_WORDS + 1).collect();
    if chars.len() > MAX_WORDS || !chars.iter().any(|c| unspaced(*c)) {
        found.push(None);
        return;
    }
    let mut parts = Vec::new();
    let mut at = 0;
    while at < chars.len() {
        let most = chars.len().min(at + LONGEST_UNSPACED);
        let longest = (at + 1..=most).rev().find_map(|end| {
            let part: String = chars[at..end].iter().collect();
            Some((word_of(&part)?, end))
        });
        let end = longest.map_or(at + 1, |(_, end)| end);
        parts.push((longest.map(|(word, _)| word), end - at));
        at = end;
    }
    if parts.iter().any(|(word, _)| word.is_none()) {
        match parts.first() {
            Some((Some(Gist::No), length)) if *length > 1 => {
                found.extend([Some(Gist::No), Some(Gist::Pause)]);
                parts.remove(0);
            }
            _ => found.push(None),
        }
    }
    found.extend(parts.iter().map(|(word, _)| *word));
}
/// Reads a decision, content and feedback from the fields of an object.
fn of_fields(fields: &Map<String, Value>) -> UserAnswer {
    let mut said = UserAnswer::only(Decision::Unclear);
    let mut read = Vec::new();
    for (key, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
        let text = || value.as_str().map_or_else(|| value.to_string(), String::from);
        match bare(key).as_str() {
            key if DECISIONS.contains(&key) && (value.is_boolean() || value.is_string()) => {
                let inner = decision(value);
                said.feedback = said.feedback.or(inner.feedback);
                read.push(inner.decision);
            }
            key if REFUSALS.contains(&key) && value == &Value::Bool(true) => read.push(Decision::No),
            key if CONTENTS.contains(&key) => said.content = Some(text()),
            key if FEEDBACKS.contains(&key) => {
                said.feedback = Some(text()).filter(|text| !text.trim().is_empty()).or(said.feedback);
            }
            "token" => {}
            // An unknown field may limit the approval.
            _ => read.push(Decision::Unclear),
        }
    }
    read.dedup();
    if let [only] = read[..] {
        let limited = said.feedback.as_deref().is_some_and(|feedback| !agreeable(feedback));
        let agreed = matches!(only, Decision::Yes | Decision::All | Decision::Always);
        said.decision = if agreed && limited { Decision::Unclear } else { only };
    }
    said
}
/// Whether feedback beside a yes is only another yes or thanks.
fn agreeable(feedback: &str) -> bool {
    let words = classes(feedback);
    let nothing = |word: &Option<Gist>| word.is_some_and(|word| word.is_filler() || word == Gist::Pause);
    words.iter().all(nothing) || decided(&words) == Decision::Yes
}
