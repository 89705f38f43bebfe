//! Which steps a jq filter over `{input, steps}` reads.

use std::{collections::BTreeSet, sync::LazyLock};

use regex::Regex;

/// The parts of a filter: a path into `.steps`, a text, a comment, and tokens around a path. Texts and
/// comments come first, so that no path is found inside them.
static PARTS: LazyLock<Regex> = LazyLock::new(|| {
    let parts = r#"(?x)
        (?P<path> \.\s*(?: steps\b | "steps" | \[\s*"steps"\s*\] )
            (?: \s*\.?\s*\[\s*"(?P<indexed>(?:[^"\\]|\\.)*)"\s*\]
              | \s*\.\s*(?P<plain>[A-Za-z_][A-Za-z0-9_]*)
              | \s*\.\s*"(?P<quoted>(?:[^"\\]|\\.)*)" )? )
        | (?P<text> "(?:[^"\\]|\\.)*" )
        | \#[^\n]*
        | (?P<word> [A-Za-z_][A-Za-z0-9_]* )
        | (?P<open> [(\[{] )
        | (?P<close> [)\]}] )
        | (?P<pipe> \| )"#;
    Regex::new(parts).expect("the pattern is constant")
});

/// The end of the text before a path on another value, or on a variable or an expression in parentheses.
static OTHER: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r#"(?P<unclear>\$[A-Za-z_][A-Za-z0-9_]*|[)}])$|[\w\]"?]$"#).expect("the pattern is constant")
});

/// The parts of a filter for [`reads_item`].
static ITEM_PARTS: LazyLock<Regex> = LazyLock::new(|| {
    let parts = r#"(?P<text>"(?:[^"\\]|\\.)*")|#[^\n]*|(?P<item>\.\s*(?:item|index)\b)"#;
    Regex::new(parts).expect("the pattern is constant")
});

/// Words before a parenthesis that do not make it a function's argument list.
const KEYWORDS: [&str; 8] = ["and", "or", "if", "then", "elif", "else", "reduce", "foreach"];

/// The steps that a filter reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepReferences {
    /// The steps that it names: `.steps.ID`, `.steps["ID"]` and `.steps."ID"`.
    pub named: BTreeSet<String>,
    /// The steps that it may name: behind a pipe or inside a function, where `.` is another value; and all of
    /// its words, if it reads `.steps` as a whole. Names without a step mean something else.
    pub perhaps: BTreeSet<String>,
    /// Whether it reads `.steps` without a name, and so every step that its own step waits for.
    pub all: bool,
}

impl StepReferences {
    /// Finds the steps that a filter reads.
    pub fn of(filter: &str) -> Self {
        let (mut read, mut words) = (Self::default(), BTreeSet::new());
        read.add(filter, false, &mut words);
        if read.all {
            read.perhaps.append(&mut words);
        }
        read
    }

    /// Returns the steps that this filter or another one reads.
    pub fn and(mut self, other: Self) -> Self {
        self.named.extend(other.named);
        self.perhaps.extend(other.perhaps);
        self.all |= other.all;
        self
    }

    /// Whether the filter may read this step.
    pub fn reads(&self, id: &str) -> bool {
        self.all || self.named.contains(id) || self.perhaps.contains(id)
    }

    /// Adds a filter, or a part of one; `unclear` if the part's `.` is unknown.
    fn add(&mut self, filter: &str, mut unclear: bool, words: &mut BTreeSet<String>) {
        let mut around = Vec::new();
        for found in PARTS.captures_iter(filter) {
            if let Some(text) = found.name("text") {
                let text = text.as_str().trim_matches('"');
                // `\(...)` in a text contains another filter.
                if let Some((_, inside)) = text.split_once("\\(") {
                    self.add(inside, unclear, words);
                }
                self.word(text, words);
            } else if let Some(path) = found.name("path") {
                let name = ["indexed", "plain", "quoted"].iter().find_map(|kind| found.name(kind));
                let other = OTHER.captures(&filter[..path.start()]);
                let is_unclear = other.as_ref().map(|other| other.name("unclear").is_some());
                match (name.map(|name| name.as_str().to_string()), is_unclear) {
                    // `.input.steps` is a different path.
                    (_, Some(false)) => {}
                    (None, _) => self.all = true,
                    (Some(name), None) if !unclear => drop(self.named.insert(name)),
                    (Some(name), _) => drop(self.perhaps.insert(name)),
                }
            } else if let Some(word) = found.name("word") {
                self.word(word.as_str(), words);
            } else if let Some(open) = found.name("open") {
                around.push(unclear);
                unclear |= open.as_str() == "(" && is_function(&filter[..open.start()]);
            } else if found.name("close").is_some() {
                unclear = around.pop().unwrap_or(unclear);
            } else {
                unclear |= found.name("pipe").is_some();
            }
        }
    }

    fn word(&mut self, word: &str, words: &mut BTreeSet<String>) {
        self.all |= word == "steps";
        words.insert(word.into());
    }
}

/// Whether a filter reads the item of a `for_each` or its position, as `.item` or `.index`.
pub fn reads_item(filter: &str) -> bool {
    ITEM_PARTS.captures_iter(filter).any(|found| match (found.name("text"), found.name("item")) {
        (Some(text), _) => text.as_str().split_once("\\(").is_some_and(|(_, inside)| reads_item(inside)),
        // `.input.item` is a different path.
        (None, Some(item)) => !OTHER.is_match(&filter[..item.start()]),
        (None, None) => false,
    })
}

/// Whether a parenthesis after this text starts a function's arguments.
fn is_function(before: &str) -> bool {
    let before = before.trim_end();
    let word = before.rsplit(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
    !word.is_empty() && !KEYWORDS.contains(&word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steps_that_a_filter_reads_are_found() {
        let check = |filter: &str, named: &[&str], all: bool| {
            let read = StepReferences::of(filter);
            assert_eq!(read.named.iter().map(String::as_str).collect::<Vec<_>>(), named, "{filter}");
            assert_eq!(read.all, all, "{filter}");
        };
        check(".steps.a", &["a"], false);
        check("(.steps.a.rows | length > 0) and (.steps[\"b-c\"].n == 1)", &["a", "b-c"], false);
        check(
            ".steps.\"d e\"[0], .[\"steps\"].f, .\"steps\".g, .steps.[\"h\"]",
            &["d e", "f", "g", "h"],
            false,
        );
        check(".steps | length", &[], true);
        check("[.steps[]] | any(. == null)", &[], true);
        check(".input.steps_taken > 3 or .input.steps.x", &[], false);
        check("(.steps.a | length) > 1 or (.steps.b > 2)", &["a", "b"], false);
        check(".input.a == \".steps.x\" # .steps.y", &[], false);
        check("\"n: \\(.steps.a)\" == .input.n", &["a"], false);
    }

    #[test]
    fn a_filter_that_reads_the_item_is_known() {
        let check = |filter: &str, expected| assert_eq!(reads_item(filter), expected, "{filter}");
        for yes in
            [".item.n > 2", "(.item | test(\"a\"))", ".steps.a and .index < 3", "\"\\(.item)\" == \"x\""]
        {
            check(yes, true);
        }
        for no in [".input.item > 1", ".steps.a.index", "\".item\" == .input.a", ".items", "1 # .item"] {
            check(no, false);
        }
    }

    #[test]
    fn steps_are_found_where_the_filter_may_mean_something_else() {
        let check = |filter: &str, named: &[&str], known: &[&str], all: bool| {
            let read = StepReferences::of(filter);
            assert_eq!(read.named.iter().map(String::as_str).collect::<Vec<_>>(), named, "{filter}");
            let perhaps = known.iter().all(|id| read.perhaps.contains(*id));
            assert!(perhaps && (all || read.perhaps.len() == known.len()), "{filter}: {:?}", read.perhaps);
            assert_eq!(read.all, all, "{filter}");
        };
        check("[.input.rows[] | select(.steps.done)]", &[], &["done"], false);
        check("any(.input.rows[]; .steps.done) and .steps.a", &["a"], &["done"], false);
        check(". as $all | $all.steps.a", &[], &["a"], false);
        check("(.).steps.a", &[], &["a"], false);
        check(". as {$steps} | $steps.a.n > 1", &[], &["a"], true);
        check("getpath([\"steps\", \"a\"])", &[], &["a"], true);
        check("{steps} | .steps.b", &[], &["b"], true);
        check("to_entries[] | select(.key == \"steps\")", &[], &[], true);
        // Nothing here panics.
        for filter in ["))]} .steps.a", "((([{", "\"\\(", "\"", "\"\\(\"\\(", ".steps[\"", "é(.steps)"] {
            StepReferences::of(filter);
        }
    }
}
