//! Which of several choices an answer takes: by text, number, beginning, or as the only yes or no among them.

use std::{
    collections::{BTreeSet, HashSet},
    sync::LazyLock,
};

use nonet_search::fold;
use regex::Regex;
use serde_json::Value;

use super::{
    decision::{Decision, is_aside, listed, plain, readings, spoken},
    opened, phrases, text_of,
};

/// The number of a choice, and the text behind the number.
static NUMBER: LazyLock<Regex> = LazyLock::new(|| {
    let number = r"^(?:(?:option|choice|number|nummer|numero|opcion|nr\.?|no\.?|n[°º]|№|#) ?)?(\d{1,4})(?:st|nd|rd|th|\.0)?";
    Regex::new(&format!(r"{number}[^\w\s]*(?:\s+(.*))?$")).expect("it is fixed")
});
static EVERY: LazyLock<HashSet<String>> = LazyLock::new(|| listed(phrases::EVERY).collect());
static NONE: LazyLock<HashSet<String>> = LazyLock::new(|| listed(phrases::NONE).collect());
static AND: LazyLock<HashSet<String>> = LazyLock::new(|| listed(phrases::AND).collect());

/// Returns the positions of the `choices` that an answer takes, in the order of the answer; more than one
/// only if `many`. Returns `None` if the answer matches no choice or is ambiguous.
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

/// Whether an answer mentions one of `choices`, or is the beginning of one.
pub fn mentions(answer: &Value, choices: &[String]) -> bool {
    let said = text_of(&opened(answer)).map(|text| plain(&text)).unwrap_or_default();
    let text = format!(" {said} ");
    choices
        .iter()
        .map(|choice| plain(choice))
        .any(|choice| text.contains(&format!(" {choice} ")) || !said.is_empty() && choice.starts_with(&said))
}

/// Returns the choice that a text names.
fn one(text: &str, choices: &[String]) -> Option<usize> {
    let text = text.trim();
    if let Some(same) = choices.iter().position(|choice| choice.trim() == text) {
        return Some(same);
    }
    let labels: Vec<String> = choices.iter().map(|choice| plain(choice)).collect();
    let said = plain(text);
    for reading in readings(&said).filter(|reading| !reading.is_empty()) {
        let same: Vec<usize> = (0..labels.len()).filter(|at| labels[*at] == reading).collect();
        if !same.is_empty() {
            return only(same);
        }
    }
    if let Some((at, behind)) = number(text) {
        let label = labels.get(at)?;
        if !behind.is_empty() && !is_aside(&behind) {
            return readings(&behind).any(|reading| reading == label).then_some(at);
        }
        // The number may also be a word of another choice.
        let count = (at + 1).to_string();
        let mut others = labels.iter().enumerate().filter(|(other, _)| *other != at);
        return (!others.any(|(_, label)| label.split(' ').any(|word| word == count))).then_some(at);
    }
    let mut meant: BTreeSet<usize> = by_decision(text, choices).into_iter().collect();
    // "no" is not the beginning of "north".
    let is_decision = said.chars().count() > 1 && spoken(text) != Decision::Unclear;
    if said.starts_with(char::is_alphabetic) && !is_decision {
        meant.extend((0..labels.len()).filter(|at| labels[*at].starts_with(&said)));
    }
    only(meant)
}

/// Returns the only one of several positions.
fn only(positions: impl IntoIterator<Item = usize>) -> Option<usize> {
    let mut positions = positions.into_iter();
    positions.next().filter(|_| positions.next().is_none())
}

/// Returns the position of a choice from its number as listed in the question, and the plain text behind the
/// number.
fn number(text: &str) -> Option<(usize, String)> {
    let folded = fold(text);
    let found = NUMBER.captures(folded.trim_start_matches(|c: char| "*`\"'( ".contains(c)))?;
    let number: usize = found[1].parse().ok()?;
    Some((number.checked_sub(1)?, found.get(2).map(|behind| plain(behind.as_str())).unwrap_or_default()))
}

/// Returns the choice that agrees or refuses as the text does, if there is exactly one.
fn by_decision(text: &str, choices: &[String]) -> Option<usize> {
    let said = spoken(text);
    only((0..choices.len()).filter(|at| {
        let choice = spoken(&choices[*at]);
        match said {
            Decision::Yes => choice.agrees(),
            Decision::All | Decision::Always | Decision::No => choice == said,
            Decision::Unclear => false,
        }
    }))
}

/// Reads several choices from one text.
fn several(text: &str, choices: &[String]) -> Option<Vec<usize>> {
    let all = plain(text);
    if EVERY.contains(&all) {
        return Some((0..choices.len()).collect());
    }
    if NONE.contains(&all) {
        return Some(Vec::new());
    }
    let separators = [',', ';', '\n', '，', '；', '、', '&', '+'];
    let are_numbers =
        text.chars().all(|c| c.is_ascii_digit() || c.is_whitespace() || separators.contains(&c));
    let is_apart = |c: char| separators.contains(&c) || are_numbers && c.is_whitespace();
    let mut taken = Vec::new();
    for part in text.split(is_apart).filter(|part| !part.trim().is_empty() && !is_aside(&plain(part))) {
        if let Some(choice) = one(part, choices) {
            taken.push(choice);
            continue;
        }
        let words: Vec<&str> = part.split_whitespace().collect();
        for words in words.split(|word| AND.contains(&fold(word))).filter(|words| !words.is_empty()) {
            taken.push(one(&words.join(" "), choices)?);
        }
    }
    (!taken.is_empty()).then_some(taken)
}
