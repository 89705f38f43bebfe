//! Which of several choices an answer takes: by words, number, ordinal or unique beginning.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    decision::{Decision, spoken},
    opened, text_of,
    words::{Gist, plain, word_of},
};

/// Words around a choice that do not identify it.
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

/// Returns the positions of the `choices` that an answer takes, in the order of the answer; more than one only if
/// `many`. Returns `None` if the answer matches no choice or is ambiguous.
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
    let said = text_of(&opened(answer)).map(|text| plain(&text).join(" ")).unwrap_or_default();
    let text = format!(" {said} ");
    choices
        .iter()
        .map(|choice| plain(choice).join(" "))
        .any(|choice| text.contains(&format!(" {choice} ")) || !said.is_empty() && choice.starts_with(&said))
}
/// Returns the choice that a text names: by its words, number or unique beginning, or as the only yes or no among the
/// choices.
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
            // The number may also be a word of another choice.
            true if (0..choices.len()).any(|other| other != at && also(&folded[other])) => return None,
            true => meant.extend([at]),
            false => return folded[at].starts_with(&rest).then_some(at),
        }
    }
    for said in [&words[..], core(&words)] {
        let start = said.join(" ");
        // "yes" is not the beginning of "yesterday", nor 1 that of 10.
        let agrees = start.len() > 1 && word_of(&start).is_some_and(Gist::agrees);
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
/// Returns the number of a choice as listed in the question, counted from 0, and the folded text behind the number.
fn number(text: &str) -> Option<(usize, String)> {
    let text = nonet_search::fold(text);
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
/// Whether a word beside a choice does not identify the choice.
fn around_choice(word: &str) -> bool {
    AROUND.contains(&word)
        || word_of(word).is_some_and(|word| word.is_filler() || matches!(word, Gist::It | Gist::Says))
}
/// Returns the words of an answer without a leading yes and without the words around a choice.
fn core(words: &[String]) -> &[String] {
    let around = around_choice;
    let agrees = |word: &String| matches!(word_of(word), Some(Gist::Yes));
    let from = words.iter().take_while(|word| around(word) || agrees(word)).count();
    let behind = words[from..].iter().rev().take_while(|word| around(word)).count();
    &words[from..words.len() - behind]
}
/// Returns the choice that agrees or refuses as the text does, if there is exactly one.
fn by_decision(text: &str, choices: &[String]) -> Option<usize> {
    let agrees = |decision: Decision| matches!(decision, Decision::Yes | Decision::All | Decision::Always);
    let said = spoken(text).decision;
    let mut same = (0..choices.len()).filter(|at| {
        let choice = spoken(&choices[*at]).decision;
        match said {
            Decision::Yes => agrees(choice),
            Decision::All | Decision::Always | Decision::No => choice == said,
            Decision::Change | Decision::Unclear => false,
        }
    });
    same.next().filter(|_| same.next().is_none())
}
/// Reads several choices from one text.
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
                let apart = words.split(|word| AND.contains(&nonet_search::fold(word).as_str()));
                for words in apart.filter(|words| !words.is_empty()) {
                    taken.push(one(&words.join(" "), choices)?);
                }
            }
        }
    }
    (!taken.is_empty()).then_some(taken)
}
