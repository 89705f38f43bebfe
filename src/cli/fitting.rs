//! Text that fits a terminal: lines break at words.

use std::borrow::Cow;

/// Returns prose for a terminal of this width: lines break at words, and never within a command between
/// backticks.
pub(super) fn fitted(text: &str, width: Option<u16>) -> Cow<'_, str> {
    let Some(width) = width.map(usize::from) else { return Cow::Borrowed(text) };
    if text.lines().all(|line| line.chars().count() <= width) {
        return Cow::Borrowed(text);
    }
    let lines = text.split('\n').map(|line| {
        let indent = line.chars().take_while(|c| *c == ' ').count();
        broken(line, width, indent + 2)
    });
    Cow::Owned(lines.collect::<Vec<_>>().join("\n"))
}

/// Breaks a line at words; the lines after the first begin with `indent` spaces. A word that is too long
/// stays whole.
pub(super) fn broken(line: &str, width: usize, indent: usize) -> String {
    let (mut out, mut length, mut has_word) = (String::new(), 0, false);
    for word in words(line) {
        let size = word.chars().count();
        if has_word && length + word.trim_end().chars().count() > width {
            out.truncate(out.trim_end().len());
            out.push('\n');
            out.push_str(&" ".repeat(indent));
            length = indent;
        }
        has_word |= !word.trim().is_empty();
        out.push_str(word);
        length += size;
    }
    out
}

/// Splits a line into words, each with the spaces after it; what is between backticks is one word.
fn words(line: &str) -> Vec<&str> {
    let (mut words, mut start, mut is_code, mut was_space) = (Vec::new(), 0, false, false);
    for (at, c) in line.char_indices() {
        if was_space && c != ' ' && !is_code {
            words.extend(line.get(start..at));
            start = at;
        }
        is_code ^= c == '`';
        was_space = c == ' ' && !is_code;
    }
    words.extend(line.get(start..));
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_at_words_and_commands_stay_whole() {
        let check = |text: &str, expected: &str| assert_eq!(fitted(text, Some(20)), expected, "{text}");
        check("short", "short");
        check("one two three four five six", "one two three four\n  five six");
        check(
            "  a: run `nonet secret set X` now or later",
            "  a: run\n    `nonet secret set X`\n    now or later",
        );
        check("aVeryLongWordThatDoesNotFit at all", "aVeryLongWordThatDoesNotFit\n  at all");
        check("é é é é é é é é é é é", "é é é é é é é é é é\n  é");
        check("first\nsecond line that is long", "first\nsecond line that is\n  long");
        assert_eq!(
            fitted("a pipe gets whole lines, whatever they are", None),
            "a pipe gets whole lines, whatever they are"
        );
    }
}
