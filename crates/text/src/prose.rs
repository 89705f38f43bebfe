//! Human-written text about servers and tools, prepared for lists: without Markdown, source-code indentation
//! and hidden characters.

use std::sync::LazyLock;

use nonet_base::text::{clean, hidden};
use regex::{Captures, Regex};
use serde_json::Value;

static LINK: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(!?)\[([^\]]*)\]\([^)]*\)").expect("the pattern is constant"));
static BULLET: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"^(?:[-*+>]|\d{1,3}[.)])\s+").expect("the pattern is constant"));

/// The parts of a definition that are only read, wherever they are in it.
const READ: [&str; 6] = ["title", "description", "$comment", "default", "examples", "example"];

/// Returns a definition whose texts for reading have no hidden characters; `None` if they have none already.
/// Names and values that calls have to repeat exactly stay as they are.
pub fn visible(definition: &Value) -> Option<Value> {
    let mut visible = None;
    if has_hidden(definition) {
        let mut cleaned = definition.clone();
        clean_read(&mut cleaned, false);
        visible = (cleaned != *definition).then_some(cleaned);
    }
    visible
}

fn has_hidden(value: &Value) -> bool {
    match value {
        Value::String(text) => hidden(text).next().is_some(),
        Value::Array(items) => items.iter().any(has_hidden),
        Value::Object(fields) => fields.values().any(has_hidden),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Cleans the texts for reading. `is_read`: the value itself is one.
fn clean_read(value: &mut Value, is_read: bool) {
    match value {
        Value::String(text) if is_read && hidden(text).next().is_some() => *text = clean(text).into_owned(),
        Value::Array(items) => items.iter_mut().for_each(|item| clean_read(item, is_read)),
        // A property may have such a name; its schema is judged by its own parts.
        Value::Object(fields) => {
            for (key, item) in fields.iter_mut() {
                clean_read(item, READ.contains(&key.as_str()));
            }
        }
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Removes the indentation shared by all lines but the first, as Python's `inspect.cleandoc` does, with
/// surrounding blank lines and trailing white space.
pub fn dedented(text: &str) -> String {
    let width = |line: &str| line.len() - line.trim_start_matches([' ', '\t']).len();
    let said = |line: &&str| !line.trim().is_empty();
    let shared = text.lines().skip(1).filter(said).map(width).min().unwrap_or(0);
    let mut out = String::with_capacity(text.len());
    for (n, line) in text.lines().enumerate() {
        let cut = if n == 0 { width(line) } else { shared.min(width(line)) };
        out.push_str(line[cut..].trim_end());
        out.push('\n');
    }
    out.trim().to_string()
}

/// Returns the beginning of a text that may be Markdown, on one line, about `max` characters at most: its
/// prose, or else its headings.
pub fn plain(text: &str, max: usize) -> String {
    let mut prose = String::new();
    let mut headings = String::new();
    let mut fenced = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with("```") || line.starts_with("~~~") {
            fenced = !fenced;
            continue;
        }
        let is_rule = line.chars().all(|c| matches!(c, '-' | '=' | '*' | '_' | ' '));
        if fenced || is_rule || line.starts_with(['|', '<']) {
            continue;
        }
        let (into, line) = match line.trim_start_matches('#') {
            rest if rest.len() < line.len() => (&mut headings, rest),
            _ => (&mut prose, line),
        };
        // Few lines need the patterns, and a start without them need not compile them.
        let line = line.trim();
        let begins = |c: char| matches!(c, '-' | '*' | '+' | '>') || c.is_numeric();
        let line = if line.starts_with(begins) { BULLET.replace(line, "") } else { line.into() };
        let text = |found: &Captures<'_>| {
            if found[1].is_empty() { found[2].to_string() } else { String::new() }
        };
        let line = if line.contains("](") { LINK.replace_all(&line, text) } else { (&*line).into() };
        for word in line.replace("**", "").replace('`', "").split_whitespace() {
            if !into.is_empty() {
                into.push(' ');
            }
            into.push_str(word);
        }
        if prose.len() > 4 * max {
            break;
        }
    }
    nonet_base::text::clip(if prose.is_empty() { &headings } else { &prose }, max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indentation_of_source_code_goes() {
        let check = |text: &str, expected: &str| assert_eq!(dedented(text), expected, "{text:?}");
        check("Reads a file.", "Reads a file.");
        check(
            "Reads a file.\n\n    Args:\n        path: where it is\n    ",
            "Reads a file.\n\nArgs:\n    path: where it is",
        );
        check("\n        Lists all.\n\n          - deeper\n        ", "Lists all.\n\n  - deeper");
        check("one\ntwo\n  three", "one\ntwo\n  three");
        check("  one\n\ttwo\n\t\tthree  ", "one\ntwo\n\tthree");
        check("über\n  größer", "über\ngrößer");
        check("", "");
    }

    #[test]
    fn markdown_is_read_as_prose() {
        let check = |text: &str, expected: &str| assert_eq!(plain(text, 80), expected, "{text:?}");
        check("Tools for git.", "Tools for git.");
        check(
            "# Git server\n\nRead **all** of [the log](https://x.y), with `git log`.",
            "Read all of the log, with git log.",
        );
        check("## Only a heading", "Only a heading");
        check("- one\n- two_three\n1. four", "one two_three four");
        check("Use it:\n```json\n{\"a\": 1}\n```\nthen rest.", "Use it: then rest.");
        check("![logo](x.png)\n---\n| a | b |\n<br>\nA server.", "A server.");
        check("", "");
        assert_eq!(plain(&"word ".repeat(100), 20), "word word word word ...");
    }
}
