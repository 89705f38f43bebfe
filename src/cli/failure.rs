//! The failure of a server in one line.

use std::borrow::Cow;

use crate::{downstream::likely_cause, text::clip};

/// Formats a server's failure in one line; over several, with the server's full output, if `verbose`.
pub(super) fn failure(error: &str, verbose: bool) -> String {
    let brief = brief(error);
    let line = match likely_cause(error) {
        Some(cause) => format!("{} ({brief})", cause.trim_end_matches('.')),
        None => brief.clone().into_owned(),
    };
    if !verbose || brief == error.trim_end().replacen(TAIL, ": ", 1) {
        return line;
    }
    let whole: Vec<String> = error.lines().map(|line| format!("    {line}")).collect();
    format!("{line}\n{}", whole.join("\n"))
}

/// The words before a server's last output in the reason of a failure.
const TAIL: &str = "; its stderr ends with: ";

/// Returns the reason of a failure with only the most telling line of the server's stderr.
pub(super) fn brief(error: &str) -> Cow<'_, str> {
    let (reason, tail) = error.split_once(TAIL).unwrap_or((error, ""));
    let reason = reason.lines().next().unwrap_or_default();
    match telling(tail) {
        Some(said) => format!("{reason}: {}", clip(said, 500)).into(),
        None => reason.into(),
    }
}

/// Returns the line of a program's last output that names the error: a line that begins with `SomeError: ...`, else one
/// that mentions an error, else the last.
fn telling(tail: &str) -> Option<&str> {
    let lines: Vec<&str> = tail.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let names_error = |line: &&&str| {
        let (head, rest) = line.split_once(':').unwrap_or((line, ""));
        let word = !head.is_empty() && !head.contains(char::is_whitespace);
        word && !rest.is_empty() && (head.ends_with("Error") || head.ends_with("Exception"))
    };
    let speaks = |line: &&&str| {
        let line = line.to_lowercase();
        let words =
            ["error", "fatal", "denied", "not found", "missing", "required", "invalid", "cannot", "failed"];
        !line.starts_with("at ")
            && !line.contains("complete log")
            && words.iter().any(|word| line.contains(word))
    };
    let found = lines.iter().rfind(names_error).or_else(|| lines.iter().find(speaks));
    found.or(lines.last()).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_told_in_one_line_with_its_cause() {
        let check = |error: &str, expected: &str| assert_eq!(failure(error, false), expected);
        check("it ended (exit code 3)", "it ended (exit code 3)");
        check(
            "it ended (exit code 1); its stderr ends with: node:internal/modules/cjs/loader:1\n  throw err;\nError: spawn x\n    at Module._resolve (node:1)\nNode.js v22",
            "it ended (exit code 1): Error: spawn x",
        );
        check(
            "it ended (exit code 1); its stderr ends with: Traceback:\n  raise KeyError(name)\nKeyError: 'X'",
            "A variable or argument that the server needs is missing: check `env` and `args` (it ended (exit code 1): KeyError: 'X')",
        );
        check(
            "it ended (exit code 1); its stderr ends with: hello\nit crashed\n",
            "it ended (exit code 1): it crashed",
        );
        let verbose = failure("it ended; its stderr ends with: one\ntwo", true);
        assert_eq!(verbose, "it ended: two\n    it ended; its stderr ends with: one\n    two");
        assert_eq!(failure("it ended; its stderr ends with: one\n", true), "it ended: one");
    }
}
