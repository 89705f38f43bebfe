//! The failure of a server in one line.

use std::borrow::Cow;

use nonet_base::text::clip;
use nonet_servers::downstream::likely_cause;

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

/// How many missing variables are named.
const MOST_MISSING: usize = 3;
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

/// Returns the environment variables that a server's last output says it lacks.
pub(super) fn missing_variables(error: &str) -> Vec<String> {
    const WORDS: [&str; 10] = [
        "not set",
        "missing",
        "required",
        "must be set",
        "must provide",
        "undefined",
        "environment variable",
        "env var",
        "keyerror",
        "please set",
    ];
    let Some((_, tail)) = error.split_once(TAIL) else { return Vec::new() };
    let mut found: Vec<String> = Vec::new();
    for line in tail.lines() {
        let lower = line.to_lowercase();
        if !WORDS.iter().any(|word| lower.contains(word)) {
            continue;
        }
        let names =
            line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|name| is_variable(name));
        for name in names {
            if found.len() < MOST_MISSING && !found.iter().any(|known| known == name) {
                found.push(name.into());
            }
        }
    }
    found
}

/// Whether a word is written as environment variables are, and is no code of an error.
fn is_variable(word: &str) -> bool {
    let is_code = ["ERR_", "NODE_", "UV_"].iter().any(|start| word.starts_with(start));
    let is_capital = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    !is_code
        && word.starts_with(|c: char| c.is_ascii_uppercase())
        && word.trim_matches('_').contains('_')
        && word.chars().all(is_capital)
}

/// Returns the line of a program's last output that names the error: a line that begins with
/// `SomeError: ...`, else one that mentions an error, else the last.
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
    fn a_variable_that_is_missing_is_named() {
        let check = |tail: &str, expected: &[&str]| {
            let error = format!("it ended (exit code 1){TAIL}{tail}");
            assert_eq!(missing_variables(&error), expected, "{tail}");
        };
        check("Error: BRAVE_API_KEY environment variable is required", &["BRAVE_API_KEY"]);
        check("KeyError: 'SLACK_TOKEN'", &["SLACK_TOKEN"]);
        check(
            "Please set SLACK_BOT_TOKEN and SLACK_TEAM_ID environment variables",
            &["SLACK_BOT_TOKEN", "SLACK_TEAM_ID"],
        );
        check("`API_KEY` is not set\nAPI_KEY missing", &["API_KEY"]);
        check("Error [ERR_MODULE_NOT_FOUND]: missing module", &[]);
        check("HTTP is required", &[]);
        check("LOG_LEVEL=debug", &[]);
        assert_eq!(missing_variables("API_KEY is not set"), Vec::<String>::new(), "not of the server");
    }

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
