//! What people answer in a chat: a yes, a no, choices, the fields of a form, in the languages of user interfaces.
//!
//! An answer is read only if all of it is understood: whoever says "yes, but only the first file" has not agreed to the
//! call that was asked about. What is not understood is for the caller to ask again. This room knows words and JSON, and
//! nothing of questions, tokens or clients.

#[cfg(test)]
mod tests;
mod words;

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use words::{LONGEST, LONGEST_UNSPACED, Word, pauses, plain, sign, unspaced, word_of};

use crate::schema::{Schema, bare, clip};

/// How many words of an answer are looked at; one with more is not understood as a yes.
const MAX_WORDS: usize = 200;
/// How many wrappers around an answer are opened.
const MAX_WRAPPERS: usize = 4;
/// How long a fault of a form is, in characters.
const MAX_FAULTS: usize = 600;
/// Keys under which a decision, edited content and feedback come, without case and separators.
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
/// Keys of an object that holds nothing but the answer.
const WRAPPERS: &[&str] = &[
    "answer",
    "answers",
    "choice",
    "choices",
    "selection",
    "selected",
    "value",
    "response",
    "reply",
    "option",
    "options",
    "fields",
    "form",
    "values",
];
/// Words around a choice that say nothing of which one it is.
const AROUND: &[&str] = &[
    "the", "a", "an", "i", "we", "id", "ill", "want", "would", "like", "choose", "chose", "pick", "take",
    "prefer", "use", "go", "with", "lets", "option", "choice", "number", "answer", "user", "selected",
    "nummer", "opcion", "numero", "ich", "nehme", "one",
];
/// Words and signs before a number.
const NUMBERED: &[&str] = &["no", "nr", "n°", "nº", "№"];
/// The first numbers in words.
const ORDINALS: &[&[&str]] = &[
    &["first", "erste", "ersten", "premier", "premiere", "primero", "primera", "primo", "prima"],
    &["second", "zweite", "zweiten", "deuxieme", "segundo", "segunda", "secondo", "seconda"],
    &["third", "dritte", "dritten", "troisieme", "tercero", "tercera", "terzo", "terza"],
    &["fourth", "vierte", "vierten"],
    &["fifth"],
    &["sixth"],
    &["seventh"],
    &["eighth"],
    &["ninth"],
];
/// Words for every choice, and for none of them.
const ALL: &[&str] = &[
    "all",
    "all of them",
    "everything",
    "both",
    "both of them",
    "alle",
    "alles",
    "beide",
    "tous",
    "toutes",
    "todos",
    "todas",
    "tutti",
    "tutte",
    "все",
    "全部",
    "すべて",
    "모두",
    "hepsi",
];
const NONE: &[&str] = &[
    "none",
    "none of them",
    "nothing",
    "neither",
    "keine",
    "keins",
    "aucun",
    "aucune",
    "ninguno",
    "ninguna",
    "nessuno",
    "geen",
    "nenhum",
];
/// Words between several choices.
const AND: &[&str] = &["and", "und", "et", "y", "e", "en", "i", "и", "ve", "och", "og", "和", "と", "plus"];

/// What an answer to a question of yes or no says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Yes, and nothing else.
    Yes,
    /// Yes, from now on.
    Always,
    /// No.
    No,
    /// It begins by saying what is to be different.
    Change,
    /// It is not understood.
    Unclear,
}

/// A decision, and what came with it.
#[derive(Clone, Debug, PartialEq)]
pub struct Said {
    /// The decision.
    pub decision: Decision,
    /// The content as the user edited it.
    pub content: Option<String>,
    /// What the user said besides.
    pub feedback: Option<String>,
}

impl Said {
    fn only(decision: Decision) -> Self {
        Self { decision, content: None, feedback: None }
    }
}

/// Reads the answer to a question of yes or no.
pub fn decision(answer: &Value) -> Said {
    match opened(answer) {
        Value::Bool(true) => Said::only(Decision::Yes),
        Value::Bool(false) => Said::only(Decision::No),
        Value::String(text) => spoken(&text),
        Value::Array(items) => match &items[..] {
            [only @ (Value::Bool(_) | Value::String(_))] => decision(only),
            _ => Said::only(Decision::Unclear),
        },
        Value::Object(fields) => of_fields(&fields),
        Value::Null | Value::Number(_) => Said::only(Decision::Unclear),
    }
}

/// Reads an answer in words. What is said beside a no is feedback.
fn spoken(text: &str) -> Said {
    match text.trim().trim_end_matches(['.', '!']) {
        "+1" | "y" | "Y" => return Said::only(Decision::Yes),
        "-1" | "n" | "N" => return Said::only(Decision::No),
        _ => {}
    }
    let words = classes(text);
    let decision = decided(&words);
    let more = words.iter().any(|word| matches!(word, None | Some(Word::Start | Word::Change)));
    let told = decision == Decision::Change || decision == Decision::No && more;
    Said { decision, content: None, feedback: told.then(|| text.trim().to_string()) }
}

fn decided(words: &[Option<Word>]) -> Decision {
    let parts = parts(words);
    let said: Vec<Option<Word>> = parts.iter().filter(|word| **word != Some(Word::Pause)).copied().collect();
    let known: Vec<Word> = said.iter().map_while(|word| *word).collect();
    let Some((first, rest)) = said.split_first() else { return Decision::Unclear };
    let refuses = |word: &Option<Word>| matches!(word, Some(Word::No | Word::Bare));
    // What is told beside a no or a change must not be what could take it back.
    let tells = |word: &Option<Word>| matches!(word, None | Some(Word::Start | Word::Change));
    match first {
        Some(first) if first.agrees() => {
            let all = known.len() == said.len() && known.iter().all(|word| word.agrees());
            if all && agreed(words, &known) { lasting(&known) } else { Decision::Unclear }
        }
        Some(Word::No | Word::Bare) => {
            // "do not cancel"
            let negated = parts.windows(2).any(|two| two[0] == Some(Word::Bare) && refuses(&two[1]));
            let explained = parts.get(1) == Some(&Some(Word::Pause)) && rest.iter().all(tells);
            let stands = !negated && (rest.iter().all(refuses) || explained);
            if stands { Decision::No } else { Decision::Unclear }
        }
        Some(Word::Start | Word::Change) => {
            let changes = said.contains(&Some(Word::Change))
                && said.iter().all(|word| tells(word) || *word == Some(Word::But));
            if changes { Decision::Change } else { Decision::Unclear }
        }
        _ => Decision::Unclear,
    }
}

/// The words of an answer without those that say nothing where they stand.
fn parts(words: &[Option<Word>]) -> Vec<Option<Word>> {
    let mut said: Vec<Option<Word>> =
        words.iter().filter(|word| !word.is_some_and(Word::is_filler)).copied().collect();
    let no_pause = |said: &mut Vec<Option<Word>>| {
        let start = said.iter().take_while(|word| **word == Some(Word::Pause)).count();
        said.drain(..start);
    };
    no_pause(&mut said);
    if said.first() == Some(&Some(Word::Says)) {
        said.remove(0);
        no_pause(&mut said);
    }
    let mut parts = Vec::new();
    for (at, word) in said.iter().enumerate() {
        let before = at.checked_sub(1).and_then(|before| said[before]);
        let last = said.get(at + 1).is_none_or(|next| *next == Some(Word::Pause));
        match word {
            Some(Word::It)
                if before.is_some_and(|word| word.agrees() || matches!(word, Word::No | Word::Bare)) => {}
            Some(Word::Once) if last && at > 0 => {}
            Some(Word::It | Word::Once | Word::Says) => parts.push(None),
            word => parts.push(*word),
        }
    }
    parts
}

/// Whether words that agree one by one agree together.
fn agreed(words: &[Option<Word>], said: &[Word]) -> bool {
    let spoken: Vec<Word> =
        words.iter().filter_map(|word| *word).filter(|word| *word != Word::Pause).collect();
    // "please confirm"
    let requests = spoken.windows(2).any(|two| two == [Word::Please, Word::Grant]);
    let firm = said.iter().any(|word| matches!(word, Word::Yes | Word::Grant | Word::Go | Word::Always));
    let fine = said.contains(&Word::Fine) && !spoken.contains(&Word::Thanks);
    let lead = said.iter().skip(1).all(|word| *word != Word::Lead);
    !requests && lead && (firm || fine || said[0] == Word::Lead)
}

fn lasting(said: &[Word]) -> Decision {
    let always = said.iter().any(|word| matches!(word, Word::Always | Word::Lasting));
    if always { Decision::Always } else { Decision::Yes }
}

/// What each phrase of a text is; `None` is one that is not known.
fn classes(text: &str) -> Vec<Option<Word>> {
    let mut found = Vec::new();
    let (mut from, mut before) = (0, None);
    // Signs stand by themselves, between words.
    for (at, c) in text.char_indices() {
        let behind = at + c.len_utf8();
        let pause = pauses(before, c, text[behind..].chars().next());
        let word = sign(c);
        if pause || word.is_some() {
            phrases(&text[from..at], &mut found);
            found.extend(match word {
                Some(Word::Question) => vec![Some(Word::Question)],
                Some(word) => vec![Some(Word::Pause), Some(word), Some(Word::Pause)],
                None => vec![Some(Word::Pause)],
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

/// The longest phrases first, from the left.
fn phrases(text: &str, found: &mut Vec<Option<Word>>) {
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

/// The phrases of a word that is not one of them: in scripts without spaces it may be several. A short one counts only if
/// every other part is known too.
fn unspaced_phrases(word: &str, found: &mut Vec<Option<Word>>) {
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
            Some((Some(Word::No), length)) if *length > 1 => {
                found.extend([Some(Word::No), Some(Word::Pause)]);
                parts.remove(0);
            }
            _ => found.push(None),
        }
    }
    found.extend(parts.iter().map(|(word, _)| *word));
}

/// Reads a decision with what may come with it.
fn of_fields(fields: &Map<String, Value>) -> Said {
    let mut said = Said::only(Decision::Unclear);
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
            // It may limit what is agreed to.
            _ => read.push(Decision::Unclear),
        }
    }
    read.dedup();
    if let [only] = read[..] {
        let limited = said.feedback.as_deref().is_some_and(|feedback| !agreeable(feedback));
        let agreed = matches!(only, Decision::Yes | Decision::Always);
        said.decision = if agreed && limited { Decision::Unclear } else { only };
    }
    said
}

/// Whether feedback beside a yes is no more than another yes, or thanks.
fn agreeable(feedback: &str) -> bool {
    let words = classes(feedback);
    let nothing = |word: &Option<Word>| word.is_some_and(|word| word.is_filler() || word == Word::Pause);
    words.iter().all(nothing) || decided(&words) == Decision::Yes
}

/// Reads which of `choices` were taken: their positions, in the order of the answer. `None`: it is not one of them, or may
/// be several. More than one only if `many`.
pub fn choose(answer: &Value, choices: &[String], many: bool) -> Option<Vec<usize>> {
    let taken = match opened(answer) {
        Value::Array(items) => {
            items.iter().map(|item| one(&text_of(item)?, choices)).collect::<Option<Vec<usize>>>()?
        }
        value => {
            let text = text_of(&value)?;
            match one(&text, choices) {
                Some(only) => vec![only],
                None if many => several(&text, choices)?,
                None => return None,
            }
        }
    };
    let mut seen = BTreeSet::new();
    let taken: Vec<usize> = taken.into_iter().filter(|choice| seen.insert(*choice)).collect();
    (many || taken.len() == 1).then_some(taken)
}

/// Whether an answer speaks of one of `choices`, or begins as one.
pub fn mentions(answer: &Value, choices: &[String]) -> bool {
    let said = text_of(&opened(answer)).map(|text| plain(&text).join(" ")).unwrap_or_default();
    let text = format!(" {said} ");
    choices
        .iter()
        .map(|choice| plain(choice).join(" "))
        .any(|choice| text.contains(&format!(" {choice} ")) || !said.is_empty() && choice.starts_with(&said))
}

/// The choice that a text is: its words, else its number, its beginning, or the only yes or no among the choices.
fn one(text: &str, choices: &[String]) -> Option<usize> {
    let text = text.trim();
    if let Some(same) = choices.iter().position(|choice| choice.trim() == text) {
        return Some(same);
    }
    let words = plain(text);
    let folded: Vec<String> = choices.iter().map(|choice| plain(choice).join(" ")).collect();
    let all = words.join(" ");
    let mut equal = (0..choices.len()).filter(|at| !all.is_empty() && folded[*at] == all);
    if let Some(first) = equal.next() {
        return equal.next().is_none().then_some(first);
    }
    let mut meant = BTreeSet::new();
    if let Some((at, rest)) = number(text).filter(|(at, _)| *at < choices.len()) {
        let counts = (at + 1).to_string();
        let also = |choice: &String| choice.split(' ').any(|word| word == counts);
        match rest.is_empty() {
            // It may be the number in the text of another one.
            true if (0..choices.len()).any(|other| other != at && also(&folded[other])) => return None,
            true => meant.extend([at]),
            false => return folded[at].starts_with(&rest).then_some(at),
        }
    }
    for said in [&words[..], core(&words)] {
        let start = said.join(" ");
        // "yes" is not the beginning of "yesterday", nor 1 that of 10.
        let agrees = start.len() > 1 && word_of(&start).is_some_and(Word::agrees);
        let whole = agrees || start.ends_with(|c: char| c.is_ascii_digit());
        let begins = |choice: &String| match choice.strip_prefix(&start) {
            Some(rest) => rest.is_empty() || rest.starts_with(' ') || !whole,
            None => false,
        };
        if !start.is_empty() {
            meant.extend((0..choices.len()).filter(|at| begins(&folded[*at])));
        }
    }
    if meant.is_empty() {
        meant.extend(by_decision(text, choices));
    }
    let mut meant = meant.into_iter();
    meant.next().filter(|_| meant.next().is_none())
}

/// The number of a choice, as the list in the question counts them, from 0, and the text behind it, folded.
fn number(text: &str) -> Option<(usize, String)> {
    let text = crate::search::fold(text);
    let noise = |c: char| c.is_whitespace() || "#.):(\"'`*,!".contains(c);
    // "No. 2", but not "no, 2"
    let numbered = |word: &str| NUMBERED.contains(&word.trim_end_matches('.'));
    let mut words = text.split_whitespace();
    let mut around =
        words.by_ref().skip_while(|word| AROUND.contains(&word.trim_matches(noise)) || numbered(word));
    let said = around.next()?.trim_matches(noise);
    let digits = said.strip_suffix(".0").unwrap_or(said);
    let counted = digits.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number = match ORDINALS.iter().position(|names| names.contains(&digits)) {
        Some(at) => at + 1,
        None if ["", "st", "nd", "rd", "th"].contains(&&digits[counted.len()..]) => counted.parse().ok()?,
        None => return None,
    };
    let rest = plain(&words.collect::<Vec<_>>().join(" "));
    let polite = rest.iter().all(|word| around_choice(word));
    Some((number.checked_sub(1)?, if polite { String::new() } else { rest.join(" ") }))
}

/// Whether a word beside a choice says nothing of which one it is.
fn around_choice(word: &str) -> bool {
    AROUND.contains(&word)
        || word_of(word).is_some_and(|word| word.is_filler() || matches!(word, Word::It | Word::Says))
}

/// The words of an answer without a yes before them and without what is said around a choice.
fn core(words: &[String]) -> &[String] {
    let around = around_choice;
    let agrees = |word: &String| matches!(word_of(word), Some(Word::Yes));
    let from = words.iter().take_while(|word| around(word) || agrees(word)).count();
    let behind = words[from..].iter().rev().take_while(|word| around(word)).count();
    &words[from..words.len() - behind]
}

/// The choice that says what a yes or no says, if only one does.
fn by_decision(text: &str, choices: &[String]) -> Option<usize> {
    let agrees = |decision: Decision| matches!(decision, Decision::Yes | Decision::Always);
    let said = spoken(text).decision;
    let mut same = (0..choices.len()).filter(|at| {
        let choice = spoken(&choices[*at]).decision;
        match said {
            Decision::Yes => agrees(choice),
            Decision::Always | Decision::No => choice == said,
            Decision::Change | Decision::Unclear => false,
        }
    });
    same.next().filter(|_| same.next().is_none())
}

/// Several choices in one text.
fn several(text: &str, choices: &[String]) -> Option<Vec<usize>> {
    let all = plain(text).join(" ");
    if ALL.contains(&all.as_str()) {
        return Some((0..choices.len()).collect());
    }
    if NONE.contains(&all.as_str()) {
        return Some(Vec::new());
    }
    let separators = [',', ';', '\n', '，', '；', '、', '&', '+'];
    let numbers = text.chars().all(|c| c.is_ascii_digit() || c.is_whitespace() || separators.contains(&c));
    let apart = |c: char| separators.contains(&c) || numbers && c.is_whitespace();
    let mut taken = Vec::new();
    for part in text.split(apart).filter(|part| !part.trim().is_empty()) {
        match one(part, choices) {
            Some(choice) => taken.push(choice),
            // "please", or "yes" before the choices.
            None if core(&plain(part)).is_empty() => {}
            None => {
                let words: Vec<&str> = part.split_whitespace().collect();
                let apart = words.split(|word| AND.contains(&crate::search::fold(word).as_str()));
                for words in apart.filter(|words| !words.is_empty()) {
                    taken.push(one(&words.join(" "), choices)?);
                }
            }
        }
    }
    (!taken.is_empty()).then_some(taken)
}

/// Reads the fields of a form against its schema. Otherwise: what is wrong with them.
pub fn fields(answer: &Value, form: &Value) -> Result<Map<String, Value>, String> {
    let own = form.get("properties").and_then(Value::as_object);
    let own = || own.into_iter().flatten();
    let known = |name: &str| own().any(|(own, _)| own == name);
    let mut given = match opened_beside(answer, &known) {
        Value::Object(fields) => {
            let names: Vec<String> = own().map(|(name, _)| bare(name)).collect();
            if !names.is_empty() && !fields.is_empty() && !fields.keys().any(|key| names.contains(&bare(key)))
            {
                return Err(format!(
                    "it has none of the fields {}",
                    own().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ")
                ));
            }
            fields
        }
        // One value for the only field, or for the only one that must be there.
        value => {
            let required = form.get("required").and_then(Value::as_array);
            let must: Vec<&str> = required.into_iter().flatten().filter_map(Value::as_str).collect();
            let names: Vec<&str> = own().map(|(name, _)| name.as_str()).collect();
            match (&names[..], &must[..]) {
                ([only], _) | (_, [only]) => Map::from_iter([((*only).to_string(), value)]),
                _ => return Err(format!("it has to be an object with {}", names.join(", "))),
            }
        }
    };
    for (name, schema) in own() {
        if let Some(value) = given.get_mut(name)
            && let Some(meant) = field(value, schema)
        {
            *value = meant;
        }
    }
    match Schema::new(form.clone()).read(Value::Object(given)) {
        Ok(reading) => Ok(reading.params),
        Err(misfit) => {
            Err(clip(&misfit.faults.join("; ").replace("params/", "").replace("params: ", ""), MAX_FAULTS))
        }
    }
}

/// A field's value as it was said: yes for true, a number or a beginning for a choice.
fn field(value: &Value, schema: &Value) -> Option<Value> {
    let kind = schema.get("type").and_then(Value::as_str);
    if kind == Some("boolean") && value.is_string() {
        return match decision(value).decision {
            Decision::Yes => Some(json!(true)),
            Decision::No => Some(json!(false)),
            _ => None,
        };
    }
    let many = kind == Some("array");
    let (values, titles) = options(if many { schema.get("items")? } else { schema })?;
    let shown = |all: &[Value]| all.iter().map(|one| text_of(one).unwrap_or_default()).collect::<Vec<_>>();
    let taken = choose(value, &shown(&values), many).or_else(|| choose(value, &shown(&titles), many))?;
    let mut taken = taken.into_iter().filter_map(|at| values.get(at).cloned());
    if many { Some(taken.collect()) } else { taken.next() }
}

/// The values that a field can have, and what they are called.
fn options(schema: &Value) -> Option<(Vec<Value>, Vec<Value>)> {
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        let titles = schema.get("enumNames").and_then(Value::as_array).unwrap_or(values);
        return Some((values.clone(), titles.clone()));
    }
    let branches = ["oneOf", "anyOf"].iter().find_map(|key| schema.get(*key)?.as_array())?;
    let pairs = branches.iter().map(|branch| {
        let value = branch.get("const")?;
        Some((value.clone(), branch.get("title").unwrap_or(value).clone()))
    });
    pairs.collect::<Option<Vec<_>>>().map(|pairs| pairs.into_iter().unzip())
}

/// The answer, out of text that is JSON and of what models wrap it in.
pub fn opened(answer: &Value) -> Value {
    opened_beside(answer, &|_| false)
}

/// The same where some keys are fields of a form.
fn opened_beside(answer: &Value, known: &dyn Fn(&str) -> bool) -> Value {
    let mut value = parsed(answer);
    for _ in 0..MAX_WRAPPERS {
        let inner = value.as_object().and_then(|fields| unwrapped(fields, known));
        let Some(inner) = inner else { break };
        value = parsed(&inner);
    }
    value
}

/// What an object wraps, if that is an answer: the result of an elicitation, or a single key that says so.
fn unwrapped(fields: &Map<String, Value>, known: &dyn Fn(&str) -> bool) -> Option<Value> {
    if let (Some(action), Some(content @ Value::Object(_))) = (fields.get("action"), fields.get("content"))
        && action == "accept"
    {
        return Some(content.clone());
    }
    let mut all = fields.iter();
    match (all.next(), all.next()) {
        (Some((key, inner)), None) if !known(key) && WRAPPERS.contains(&bare(key).as_str()) => {
            Some(inner.clone())
        }
        _ => None,
    }
}

/// An object or a list out of a text that is one.
fn parsed(value: &Value) -> Value {
    let text = value.as_str().map(str::trim).filter(|text| text.starts_with(['{', '[']));
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_else(|| value.clone())
}

fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        _ => None,
    }
}
