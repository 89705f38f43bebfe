//! Which steps a jq filter over `{input, steps}` reads.

use std::{collections::BTreeSet, sync::LazyLock};

use regex::Regex;

/// A path into `.steps`, a text, or a comment. Texts and comments come first, so that no path is found in them.
static PARTS: LazyLock<Regex> = LazyLock::new(|| {
    let parts = r#"(?x)
        (?P<path> \.\s*(?: steps\b | "steps" | \[\s*"steps"\s*\] )
            (?: \s*\.?\s*\[\s*"(?P<indexed>(?:[^"\\]|\\.)*)"\s*\]
              | \s*\.\s*(?P<plain>[A-Za-z_][A-Za-z0-9_]*)
              | \s*\.\s*"(?P<quoted>(?:[^"\\]|\\.)*)" )? )
        | (?P<text> "(?:[^"\\]|\\.)*" )
        | \#[^\n]*"#;
    Regex::new(parts).expect("the pattern is constant")
});

/// The steps that a filter reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepsRead {
    /// Those that it names: `.steps.ID`, `.steps["ID"]` and `.steps."ID"`.
    pub named: BTreeSet<String>,
    /// Whether it reads `.steps` without a name: then it reads whatever its own step waits for.
    pub all: bool,
}

impl StepsRead {
    /// What a filter reads.
    pub fn of(filter: &str) -> Self {
        let mut read = Self::default();
        read.add(filter);
        read
    }

    fn add(&mut self, filter: &str) {
        for found in PARTS.captures_iter(filter) {
            if let Some(text) = found.name("text") {
                // `\(...)` in a text is a filter again.
                if let Some((_, inside)) = text.as_str().split_once("\\(") {
                    self.add(inside.trim_end_matches('"'));
                }
            } else if let Some(path) = found.name("path")
                // `.input.steps` is another path.
                && !filter[..path.start()].ends_with(|c: char| c.is_alphanumeric() || "_]\"?".contains(c))
            {
                let name = ["indexed", "plain", "quoted"].iter().find_map(|kind| found.name(kind));
                match name {
                    Some(name) => drop(self.named.insert(name.as_str().into())),
                    None => self.all = true,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steps_that_a_filter_reads_are_found() {
        let check = |filter: &str, named: &[&str], all: bool| {
            let read = StepsRead::of(filter);
            assert_eq!(read.named.iter().map(String::as_str).collect::<Vec<_>>(), named, "{filter}");
            assert_eq!(read.all, all, "{filter}");
        };
        check(".steps.a", &["a"], false);
        check(".steps.a.rows | length > 0 and (.steps[\"b-c\"].n == 1)", &["a", "b-c"], false);
        check(
            ".steps.\"d e\"[0], .[\"steps\"].f, .\"steps\".g, .steps.[\"h\"]",
            &["d e", "f", "g", "h"],
            false,
        );
        check(".steps | length", &[], true);
        check("[.steps[]] | any(. == null)", &[], true);
        check(".input.steps_taken > 3 or .input.steps.x", &[], false);
        check(". as {$steps} | true", &[], false);
        check(".input.a == \".steps.x\" # .steps.y", &[], false);
        check("\"n: \\(.steps.a)\" == .input.n", &["a"], false);
    }
}
