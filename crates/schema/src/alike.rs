//! Whether one name or value may mean another: by its words, as a synonym, or as a typo.

use std::collections::BTreeSet;

use super::repair::bare;

/// Keys that are never a param, whatever a tool's params are called.
const NO_PARAMS: &[&str] =
    &["callid", "dryrun", "explanation", "jsonrpc", "thought", "thoughts", "toolcallid", "toolname"];

/// Words of a key that negate its value or point at another object.
const OPPOSITES: &[&str] = &[
    "after",
    "before",
    "but",
    "except",
    "excepted",
    "exclude",
    "excluded",
    "excludes",
    "excluding",
    "ignore",
    "ignored",
    "ignores",
    "keep",
    "keeping",
    "max",
    "min",
    "never",
    "new",
    "no",
    "non",
    "not",
    "old",
    "omit",
    "omitted",
    "preserve",
    "previous",
    "protect",
    "since",
    "skip",
    "skipped",
    "skipping",
    "unless",
    "until",
    "without",
];
/// Words for a source, and for a destination.
const STARTS: &[&str] = &["from", "origin", "source", "src"];
const ENDS: &[&str] = &["dest", "destination", "dst", "target", "to"];
/// Words of a key that name a unit.
const UNITS: &[&str] = &[
    "ms", "millis", "s", "sec", "secs", "seconds", "min", "minutes", "hours", "days", "b", "bytes", "kb",
    "mb", "gb", "px", "percent",
];
/// Names that models confuse for params.
const SYNONYMS: &[&[&str]] = &[
    &["path", "file", "filepath", "filename", "target", "location", "directory", "dir", "folder", "uri"],
    &[
        "query",
        "q",
        "sql",
        "search",
        "statement",
        "searchquery",
        "term",
        "keywords",
        "keyword",
        "text",
        "expression",
        "question",
    ],
    &["repo", "repository", "repopath", "reponame", "project"],
    &["url", "uri", "link", "href", "address", "website"],
    &["content", "contents", "text", "body", "data", "message", "markdown"],
    &["command", "cmd", "script", "code", "shell"],
    &["timezone", "tz", "zone"],
    &["owner", "org", "organization", "user", "username"],
    &["to", "recipient", "email", "mail", "address"],
    &["name", "title"],
    &["source", "src", "from", "origin"],
    &["destination", "dest", "dst", "to", "target"],
    &["prompt", "instruction", "instructions", "question", "task"],
    &["city", "location", "place", "town"],
];

/// Returns the lower-case words of a key.
fn key_words(key: &str) -> BTreeSet<String> {
    let mut words = vec![String::new()];
    let mut lower = false;
    for c in key.chars() {
        if !c.is_alphanumeric() || c.is_uppercase() && lower {
            words.push(String::new());
        }
        lower = c.is_lowercase() || c.is_numeric();
        if let Some(word) = words.last_mut().filter(|_| c.is_alphanumeric()) {
            word.extend(c.to_lowercase());
        }
    }
    words.into_iter().filter(|word| !word.is_empty()).collect()
}
/// Whether `one` may be another name of `other`: one contains the other's words, or they differ by a typo or
/// a synonym.
pub(super) fn alike(one: &str, other: &str) -> bool {
    if NO_PARAMS.contains(&bare(one).as_str()) {
        return false;
    }
    let (first, second) = (key_words(one), key_words(other));
    // 5 seconds are not 5 milliseconds; what to exclude is not what to delete.
    let differs =
        |words: &[&str]| first.symmetric_difference(&second).any(|word| words.contains(&word.as_str()));
    if differs(UNITS) || differs(OPPOSITES) {
        return false;
    }
    let has = |words: &BTreeSet<String>, any: &[&str]| words.iter().any(|word| any.contains(&word.as_str()));
    if has(&first, STARTS) && has(&second, ENDS) || has(&first, ENDS) && has(&second, STARTS) {
        return false;
    }
    if !first.is_empty() && !second.is_empty() && (first.is_subset(&second) || second.is_subset(&first)) {
        return true;
    }
    let (first, second) = (bare(one), bare(other));
    is_close(&first, &second)
        || SYNONYMS.iter().any(|group| group.contains(&first.as_str()) && group.contains(&second.as_str()))
}
/// Whether two words differ by a typo, or one is a prefix of the other.
pub(super) fn is_close(one: &str, other: &str) -> bool {
    let (short, long) =
        (one.chars().count().min(other.chars().count()), one.chars().count().max(other.chars().count()));
    if short < 3 || long > 64 {
        return false;
    }
    one.starts_with(other)
        || other.starts_with(one)
        || strsim::damerau_levenshtein(one, other) <= (short / 4).max(1)
}
/// Whether a text differs from an option only in letter case.
pub(super) fn is_other_case(option: &str, text: &str) -> bool {
    option.to_lowercase() == text.to_lowercase()
}
/// Whether a text differs from an option only in case and in separators between letters.
pub(super) fn is_written_apart(option: &str, text: &str) -> bool {
    let joined = |text: &str| {
        let text = text.trim_end_matches(['.', ',', ';', '!']).to_lowercase();
        let chars: Vec<char> = text.chars().collect();
        let letter = |at: Option<usize>| at.and_then(|at| chars.get(at)).is_some_and(|c| c.is_alphanumeric());
        let digit = |at: Option<usize>| at.and_then(|at| chars.get(at)).is_some_and(char::is_ascii_digit);
        let between = |at: usize| {
            let (before, after) = (at.checked_sub(1), at.checked_add(1));
            letter(before) && letter(after) && !(digit(before) && digit(after))
        };
        let kept = chars.iter().enumerate();
        kept.filter(|(at, c)| !(matches!(c, '_' | '-' | ' ') && between(*at)))
            .map(|(_, c)| *c)
            .collect::<String>()
    };
    joined(option) == joined(text)
}
/// Whether one text is the plural of the other.
pub(super) fn is_other_number(option: &str, text: &str) -> bool {
    let (option, text) = (option.to_lowercase(), text.trim_end_matches(['.', ',', ';', '!']).to_lowercase());
    let plural = |one: &str, many: &str| {
        let long = one.chars().count() >= 3 && one.chars().all(char::is_alphabetic);
        long && (many == format!("{one}s")
            || one.ends_with(['s', 'x', 'z', 'h']) && many == format!("{one}es"))
    };
    plural(&option, &text) || plural(&text, &option)
}
