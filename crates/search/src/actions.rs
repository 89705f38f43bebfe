//! What a request wants done, and what a document does: `close an issue` does not fit `delete_issue`, and
//! `what changed` does not ask for a change.
//!
//! Knows English verbs and their position in a request, a name and a description, but not scores. A text may
//! mean several actions; a text without any fits all.

use std::{collections::HashMap, sync::LazyLock};

use super::text;
pub(super) use crate::verbs::{Actions, verbs};
use crate::verbs::{LOOKS, MAKES, VERBS};

impl Actions {
    /// Whether nothing in the set changes anything.
    pub(super) fn only_reads(self) -> bool {
        !self.is_empty() && self.is_within(LOOKS)
    }

    /// Whether everything in the set changes something.
    pub(super) fn only_writes(self) -> bool {
        !self.is_empty() && !self.meets(LOOKS.with(Actions::RUN))
    }

    /// Compares a document's actions with the wanted ones.
    pub(super) fn fit(self, document: Actions) -> ActionFit {
        let (wanted, does) = (self, document);
        if wanted.is_empty() || does.is_empty() {
            // Deletion must be asked for.
            return if wanted.is_empty() && does == Actions::DELETE {
                ActionFit::Other
            } else {
                ActionFit::Open
            };
        }
        let runs = wanted.meets(Actions::RUN) || does.meets(Actions::RUN);
        if wanted.meets(does) {
            ActionFit::Same
        } else if wanted.meets(Actions::DELETE) != does.meets(Actions::DELETE) && !runs {
            ActionFit::TakesAway
        } else if wanted.group() & does.group() == 0 {
            ActionFit::Other
        } else {
            ActionFit::Open
        }
    }

    /// Returns the kinds of effect in the set, a bit each. Running something may have any effect.
    fn group(self) -> u8 {
        let mut group = 0;
        let mut add = |of: Actions, bits: u8| group |= if self.meets(of) { bits } else { 0 };
        add(LOOKS, 1);
        add(MAKES, 2);
        add(Actions::DELETE, 4);
        add(Actions::STOP, 8);
        add(Actions::CONVERT.with(Actions::MOVE), 3);
        add(Actions::RUN, 7);
        group
    }
}

/// How a document's actions fit the wanted ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ActionFit {
    Same,
    /// Unknown.
    Open,
    /// One reads, the other changes something.
    Other,
    /// Only one of the two deletes.
    TakesAway,
}

static BY_STEM: LazyLock<HashMap<String, Actions>> = LazyLock::new(|| {
    let mut by_stem: HashMap<String, Actions> = HashMap::new();
    for (actions, words) in VERBS {
        for word in words.split_whitespace() {
            let known = by_stem.entry(text::stem(word)).or_default();
            *known = known.with(*actions);
        }
    }
    by_stem
});

/// Returns what a word does if it is a verb.
fn of_word(word: &str) -> Actions {
    BY_STEM.get(&text::stem(word)).copied().unwrap_or_default()
}

/// Returns what a document does: the verb at the start or end of its name, and the first verb of its
/// description. Words of `group` in the name are ignored.
pub(super) fn of_document(group: &str, name: &str, description: &str) -> Actions {
    let group = text::words(group);
    let words: Vec<String> = text::words(name).into_iter().filter(|word| !group.contains(word)).collect();
    let first = words.iter().take(2).map(|word| of_word(word)).find(|actions| !actions.is_empty());
    let last = || words.last().map(|word| of_word(word)).unwrap_or_default();
    let of_name = first.unwrap_or_else(last);
    let sentence = text::first_sentence(description);
    let opening = text::words(text::cut(sentence, 120));
    let of_description = opening
        .iter()
        .take(3)
        .map(|word| of_word(word))
        .find(|actions| !actions.is_empty())
        .unwrap_or_default();
    // A name like `issue_write` says more than its description; one like `API-patch-page` says less.
    of_name.with(of_description)
}

/// Words allowed before the verb of a request: `please delete`, `I want to delete`, `can you delete`.
const BEFORE_A_VERB: &[&str] = &[
    "also", "and", "can", "could", "d", "do", "finally", "first", "help", "how", "i", "just", "kindly",
    "let", "lets", "like", "ll", "me", "must", "need", "next", "now", "please", "pls", "quickly", "shall",
    "should", "simply", "so", "the", "then", "to", "us", "want", "we", "will", "would", "you",
];

/// Words that begin a question about facts.
const QUESTIONS: &[&str] = &[
    "any", "are", "did", "do", "does", "has", "have", "how", "is", "was", "were", "what", "whats", "when",
    "where", "wheres", "which", "who", "whom", "whos", "whose", "why",
];

/// Question words that mark such a question in any position.
const QUESTION_WORDS: &[&str] = &["what", "which", "where", "when", "who", "whom", "whose", "why"];

const LOOK_UP: Actions = Actions::READ.with(Actions::FIND);

/// Returns what a request wants done. `is_gloss`: the words are translated one by one, so their order says
/// nothing.
pub(super) fn of_request(request: &str, is_gloss: bool) -> Actions {
    if is_gloss {
        let words = text::words(request);
        let asks = words.iter().any(|word| QUESTION_WORDS.contains(&word.as_str()));
        let asked = if asks { LOOK_UP } else { Actions::NONE };
        return words.iter().fold(asked, |all, word| all.with(of_word(word)));
    }
    let clauses = request.split(['.', '!', '?', ';', ':', ',', '\n', '(', '"']);
    let clauses = clauses.map(|clause| text::words(&clause.replace(['\'', '’'], "")));
    let all = clauses.fold(Actions::NONE, |all, words| all.with(of_clause(&words)));
    if all.is_empty() && request.trim_end().ends_with('?') { LOOK_UP } else { all }
}

fn of_clause(words: &[String]) -> Actions {
    let word = |at: usize| words.get(at).map_or("", String::as_str);
    // A request for how to do something wants it done.
    let how_to = word(0) == "how" && matches!(word(1), "to" | "do" | "can" | "could" | "should" | "would");
    if QUESTIONS.contains(&word(0)) && !how_to {
        return LOOK_UP;
    }
    let leading = (0..words.len()).take_while(|&at| at == 0 || BEFORE_A_VERB.contains(&word(at - 1)));
    // `I would like to`, `we need to`, later in the clause.
    let further = (1..words.len())
        .filter(|&at| matches!(word(at - 1), "to" | "please" | "pls" | "and" | "you" | "then"));
    let actions = leading.chain(further).map(|at| verb(words, at));
    actions.into_iter().find(|actions| !actions.is_empty()).unwrap_or_default()
}

/// Returns what the verb at a position does, given what follows it.
fn verb(words: &[String], at: usize) -> Actions {
    let word = words[at].as_str();
    let next = words.get(at + 1).map_or("", String::as_str);
    let after = words.get(at + 2).map_or("", String::as_str);
    let filed = || is_thing_to_file(after) || is_thing_to_file(words.get(at + 3).map_or("", String::as_str));
    let is_amount = || !next.is_empty() && next.bytes().all(|byte| byte.is_ascii_digit());
    match (word, next) {
        ("me" | "us" | "the" | "you" | "i" | "we", _) => Actions::NONE,
        ("give" | "bring" | "hand", "me" | "us") | ("look", "up" | "for") => LOOK_UP,
        ("set", "up") => Actions::CREATE.with(Actions::CHANGE),
        ("take" | "cut", "out") | ("get", "rid") | ("take", "away") => Actions::DELETE,
        ("roll", "back") => Actions::CHANGE,
        ("log", "work" | "time" | "hours" | "my") => Actions::CREATE,
        ("log", _) if is_amount() => Actions::CREATE,
        ("load", _) if words[at..].iter().any(|word| matches!(word.as_str(), "into" | "in" | "to")) => {
            Actions::CREATE
        }
        ("load", _) => Actions::READ,
        // `logs of a pod`, `notes about Oslo`: an imperative has no ending.
        (noun, _) if noun.ends_with('s') && !noun.ends_with("ss") => Actions::NONE,
        ("open", things) if is_thing_to_file(things) && things.ends_with('s') => LOOK_UP,
        ("open" | "raise" | "file", thing) if is_thing_to_file(thing) => Actions::CREATE,
        ("open" | "file" | "raise" | "log" | "report" | "submit", "a" | "an" | "new" | "another")
            if filed() =>
        {
            Actions::CREATE
        }
        _ => of_word(word),
    }
}

/// Whether `open` creates such a thing.
fn is_thing_to_file(word: &str) -> bool {
    let word = word.strip_suffix('s').unwrap_or(word);
    matches!(
        word,
        "issue"
            | "ticket"
            | "bug"
            | "pr"
            | "pull"
            | "mr"
            | "merge"
            | "case"
            | "request"
            | "incident"
            | "story"
            | "account"
            | "position"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_documents_agree_on_what_is_done() {
        let check = |request: &str, name: &str, expected: ActionFit| {
            let (wanted, does) = (of_request(request, false), of_document("hub", name, ""));
            assert_eq!(wanted.fit(does), expected, "{request} -> {name}: {wanted:?} {does:?}");
        };
        check("close an issue", "delete_issue", ActionFit::TakesAway);
        check("close an issue", "update_issue", ActionFit::Same);
        check("open a pull request", "get_pull_request", ActionFit::Other);
        check("open a pull request", "create_pull_request", ActionFit::Same);
        check("open issues of a repository", "list_issues", ActionFit::Same);
        check("what changed in the repo", "commit", ActionFit::Other);
        check("what changed in the repo", "diff", ActionFit::Same);
        check("Could you please delete the old branch?", "delete_branch", ActionFit::Same);
        check("Could you please delete the old branch?", "create_branch", ActionFit::TakesAway);
        check("how do I remove a label", "delete_label", ActionFit::Same);
        check("remember that Ada likes chess", "delete_entities", ActionFit::TakesAway);
        check("remember that Ada likes chess", "create_entities", ActionFit::Same);
        check("stop the search", "start_search", ActionFit::Other);
        check("is there a meeting today?", "create_event", ActionFit::Other);
        check("weather in Rome", "forecast", ActionFit::Open);
        check("log 2 hours of work on a ticket", "add_worklog", ActionFit::Same);
        check("logs of a pod", "delete_pod", ActionFit::Other);
        check("load a CSV file into a table", "read_query", ActionFit::Other);
        check("show me the open bugs", "list_issues", ActionFit::Same);
        check("", "get", ActionFit::Open);
    }
}
