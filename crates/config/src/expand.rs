//! Expands `${VAR}`, `${VAR:-default}`, `${keyring:NAME}`, `${SECRET:path}` and the escape `$${` in a config's
//! texts.

use nonet_base::variables;

use std::path::Path;

use crate::{
    keyring::{self, Keyring},
    secret_commands::{self, SecretCommand},
};

/// Looks up an environment variable.
pub(super) type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Returns the value at a path in what a program prints that runs in a folder, or why there is none.
type RunProgram<'a> = dyn Fn(&SecretCommand, &Path, Option<&str>) -> Result<String, String> + 'a;
/// Returns the value of a name in `[secrets]`, and of a path in it.
type FindSecret<'a> = dyn Fn(&str, Option<&str>) -> Option<Result<String, String>> + 'a;

/// The prefix of a keyring secret's name.
const KEYRING: &str = "keyring:";

/// The sources of values outside the file.
#[derive(Clone, Copy)]
pub struct ValueSources<'a> {
    /// The environment: returns a variable's value, if set.
    pub env: &'a dyn Fn(&str) -> Option<String>,
    /// The keyring. Asked only for the names in `${keyring:NAME}`.
    pub keyring: &'a dyn Fn(&str) -> Result<String, keyring::Error>,
    /// The value at a path in what a program of `[secrets]` prints that runs in a folder, or why there is none.
    pub program: &'a RunProgram<'a>,
}

/// What a text may refer to.
#[derive(Clone, Copy)]
pub(super) struct TextSources<'a> {
    pub env: Env<'a>,
    pub keyring: &'a dyn Fn(&str) -> Result<String, keyring::Error>,
    /// The value of a name in `[secrets]`, and of a path in it. `None`: there is no such name.
    pub secret: &'a FindSecret<'a>,
}

/// Refuses to run programs.
pub(super) fn no_program(_: &SecretCommand, _: &Path, _: Option<&str>) -> Result<String, String> {
    Err("no program is run here".into())
}

impl ValueSources<'_> {
    /// No variables and no keyring.
    pub const NONE: ValueSources<'static> = ValueSources {
        program: &no_program,
        env: &|_| None,
        keyring: &|_| Err(keyring::Error::Missing(String::new())),
    };

    /// Runs `read` with this process's environment and this system's keyring, which nobody may be there to
    /// unlock.
    pub fn of_this_machine<T>(read: impl FnOnce(ValueSources<'_>) -> T) -> T {
        let keyring = Keyring::system(keyring::UNATTENDED);
        read(ValueSources {
            env: &variables::var,
            keyring: &|name| keyring.get(name),
            program: &secret_commands::value,
        })
    }

    /// The same for a text that the user has not trusted: it runs no program.
    pub fn without_programs<T>(read: impl FnOnce(ValueSources<'_>) -> T) -> T {
        Self::of_this_machine(|sources| read(ValueSources { program: &no_program, ..sources }))
    }
}

/// Why a text could not be expanded.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum ExpandError {
    #[error("the environment variable `{0}` is not set")]
    Unset(String),
    #[error("{error}")]
    Keyring { name: String, error: keyring::Error },
    #[error("there is no `[secrets.{0}]`")]
    NoSecret(String),
    #[error("`[secrets.{name}]` gives no value: {why}")]
    Secret { name: String, why: String },
    #[error("invalid variable after `${{`")]
    Malformed,
}

impl ExpandError {
    pub(crate) fn remedy(&self) -> String {
        match self {
            Self::Unset(name) => format!("Set the variable or give a default: `${{{name}:-default}}`."),
            Self::Keyring { name, error: error @ keyring::Error::Missing(_) } => {
                format!("{} Or use a variable: `${{{name}}}`.", error.remedy())
            }
            Self::Keyring { name, error: keyring::Error::Locked(_) } => {
                format!(
                    "Unlock the keyring and allow Nonet; `nonet secret test {name}` asks again and waits."
                )
            }
            Self::Keyring { error, .. } => error.remedy(),
            Self::NoSecret(name) => {
                format!("Add it with a `command`, or give a default: `${{{name}:-default}}`.")
            }
            Self::Secret { name, .. } => {
                format!("Run the `command` of [secrets.{name}] by hand, in the folder of the file.")
            }
            Self::Malformed => {
                "Write `${NAME}`, `${NAME:-default}`, `${keyring:NAME}` or `${SECRET:path}`; for a \
                 literal `${` write `$${`."
                    .into()
            }
        }
    }
}

/// Returns the text with its variables expanded, or every fault. As in a shell, a default applies if the
/// variable is empty or unset. Values are not expanded recursively.
pub(super) fn expand(text: &str, sources: TextSources) -> Result<String, Vec<ExpandError>> {
    let mut troubles = Vec::new();
    let mut expanded = String::new();
    fill(text, sources, &mut expanded, &mut troubles);
    if troubles.is_empty() { Ok(expanded) } else { Err(troubles) }
}

fn fill(text: &str, sources: TextSources, out: &mut String, troubles: &mut Vec<ExpandError>) {
    for piece in pieces(text) {
        match piece {
            TextPiece::Plain(text) => out.push_str(text),
            TextPiece::Keyring(name) => match (sources.keyring)(name) {
                Ok(value) => out.push_str(&value),
                Err(error) => troubles.push(ExpandError::Keyring { name: name.into(), error }),
            },
            TextPiece::Secret { name, path } => match (sources.secret)(name, Some(path)) {
                Some(Ok(value)) => out.push_str(&value),
                Some(Err(why)) => troubles.push(ExpandError::Secret { name: name.into(), why }),
                None => troubles.push(ExpandError::NoSecret(name.into())),
            },
            TextPiece::Variable { name, default: None } if let Some(value) = (sources.secret)(name, None) => {
                match value {
                    Ok(value) => out.push_str(&value),
                    Err(why) => troubles.push(ExpandError::Secret { name: name.into(), why }),
                }
            }
            TextPiece::Variable { name, default } => match ((sources.env)(name), default) {
                (Some(value), None) => out.push_str(&value),
                (Some(value), Some(_)) if !value.is_empty() => out.push_str(&value),
                (_, Some(default)) => fill(default, sources, out, troubles),
                (None, None) => troubles.push(ExpandError::Unset(name.into())),
            },
            TextPiece::Malformed => return troubles.push(ExpandError::Malformed),
        }
    }
}

/// How deep `${A:-${B:-...}}` may go.
const MAX_NESTING: usize = 16;

/// A piece of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextPiece<'a> {
    /// Literal text, without the escape.
    Plain(&'a str),
    /// `${NAME}` or `${NAME:-default}`; the default can be split in turn.
    Variable {
        /// The name of an environment variable.
        name: &'a str,
        /// The text after `:-`, for a variable that is unset or empty; `None` without `:-`.
        default: Option<&'a str>,
    },
    /// `${keyring:NAME}`.
    Keyring(&'a str),
    /// `${SECRET:path}`.
    Secret {
        /// The name of an entry of `[secrets]`.
        name: &'a str,
        /// Where its value is in what the program prints.
        path: &'a str,
    },
    /// A `${` without a valid variable.
    Malformed,
}

/// Splits a text into pieces.
pub fn pieces(text: &str) -> TextPieces<'_> {
    TextPieces { rest: text, nesting: MAX_NESTING }
}

/// The pieces of a text, in order.
pub struct TextPieces<'a> {
    rest: &'a str,
    nesting: usize,
}

impl<'a> Iterator for TextPieces<'a> {
    type Item = TextPiece<'a>;

    fn next(&mut self) -> Option<TextPiece<'a>> {
        let Some(begin) = self.rest.find("${") else {
            let rest = std::mem::take(&mut self.rest);
            return (!rest.is_empty()).then_some(TextPiece::Plain(rest));
        };
        // The escape has an extra `$` in front.
        let escaped = self.rest[..begin].ends_with('$');
        let (plain, rest) = self.rest.split_at(begin - usize::from(escaped));
        if !plain.is_empty() {
            self.rest = rest;
            return Some(TextPiece::Plain(plain));
        }
        let inside = &self.rest[begin + 2..];
        let (piece, after) = match escaped {
            true => (TextPiece::Plain("${"), inside),
            false => self.braced(inside).unwrap_or((TextPiece::Malformed, inside)),
        };
        self.rest = after;
        Some(piece)
    }
}

impl<'a> TextPieces<'a> {
    /// Parses the variable after `${`. Also returns the text after its `}`.
    fn braced(&self, inside: &'a str) -> Option<(TextPiece<'a>, &'a str)> {
        let end = closing_brace(inside)?;
        let (content, after) = (&inside[..end], &inside[end + 1..]);
        if let Some(name) = content.strip_prefix(KEYRING) {
            return keyring::is_name(name).then_some((TextPiece::Keyring(name), after));
        }
        let (name, default) = match content.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (content, None),
        };
        if default.is_none()
            && let Some((name, path)) = content.split_once(':')
        {
            let is_path =
                !path.is_empty() && !path.contains(|c: char| c.is_whitespace() || "${}".contains(c));
            let is_secret = keyring::is_name(name) && is_path;
            return is_secret.then_some((TextPiece::Secret { name, path }, after));
        }
        let nesting = self.nesting.checked_sub(1)?;
        let mut parts = TextPieces { rest: default.unwrap_or_default(), nesting };
        let readable = keyring::is_name(name) && parts.all(|piece| piece != TextPiece::Malformed);
        readable.then_some((TextPiece::Variable { name, default }, after))
    }
}

/// Returns the position of the `}` that matches a `${`.
pub fn closing_brace(text: &str) -> Option<usize> {
    let mut open = 0usize;
    let mut before = None;
    for (at, c) in text.char_indices() {
        match c {
            '{' if before == Some('$') => open += 1,
            '}' if open == 0 => return Some(at),
            '}' => open -= 1,
            _ => {}
        }
        before = Some(c);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Result<&str, &str>) {
        let env = |name: &str| match name {
            "A" => Some("a".to_string()),
            "EMPTY" => Some(String::new()),
            "DOLLAR" => Some("${A}".to_string()),
            _ => None,
        };
        let keyring = |name: &str| match name {
            "A" => Ok("${A}".to_string()),
            "SHUT" => Err(keyring::Error::Locked("asleep".into())),
            name => Err(keyring::Error::NoSecret(name.into())),
        };
        let secret = |name: &str, path: Option<&str>| match (name, path) {
            ("vault", None) => Some(Ok("whole".to_string())),
            ("vault", Some("a.b")) => Some(Ok("${A}".to_string())),
            ("vault", Some(_)) => Some(Err("it is shut".to_string())),
            _ => None,
        };
        let result = expand(text, TextSources { env: &env, keyring: &keyring, secret: &secret })
            .map_err(|troubles| troubles.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "));
        assert_eq!(result.as_deref().map_err(String::as_str), expected, "{text}");
    }

    #[test]
    fn variables_are_filled_in_as_a_shell_would() {
        check("plain $5 {x} $", Ok("plain $5 {x} $"));
        check("${A}-${A}", Ok("a-a"));
        check("${A:-b}${NO:-b}${EMPTY:-b}[${EMPTY}]", Ok("abb[]"));
        check("${NO:-${NO2:-${A}}}!", Ok("a!"));
        check("${NO:-}", Ok(""));
        check("$${A} $$${A}", Ok("${A} $${A}"));
        check("${DOLLAR}", Ok("${A}"));
        check("${NO:-é}ü", Ok("éü"));
    }

    #[test]
    fn a_default_that_cannot_be_read_is_told_before_it_is_needed() {
        check("${A:-${1}}", Err("invalid variable after `${`"));
        check("${A:-${B:-${}}}", Err("invalid variable after `${`"));
        check("${A:-$${1}}", Ok("a"));
    }

    #[test]
    fn secrets_come_from_the_keyring_when_they_are_needed() {
        check("Bearer ${keyring:A}!", Ok("Bearer ${A}!"));
        check("$${keyring:A}", Ok("${keyring:A}"));
        check("${NO:-${keyring:A}}", Ok("${A}"));
        check("${A:-${keyring:SHUT}}", Ok("a"));
        check("${keyring}", Err("the environment variable `keyring` is not set"));
        check(
            "${keyring:NO}${keyring:SHUT}",
            Err("the keyring has no secret `NO`; the keyring is locked or denies access (asleep)"),
        );
        let trouble = |error| ExpandError::Keyring { name: "X".into(), error };
        assert_eq!(
            trouble(keyring::Error::NoSecret("X".into())).remedy(),
            "Store it with `nonet secret set X`."
        );
        assert!(trouble(keyring::Error::Missing("?".into())).remedy().ends_with("variable: `${X}`."));
        assert!(trouble(keyring::Error::Locked("?".into())).remedy().contains("`nonet secret test X`"));
    }

    #[test]
    fn secrets_come_from_what_programs_print() {
        check("Bearer ${vault:a.b}!", Ok("Bearer ${A}!"));
        check("${vault}", Ok("whole"));
        check("${NO:-${vault:a.b}}", Ok("${A}"));
        check("${vault:c}", Err("`[secrets.vault]` gives no value: it is shut"));
        check("${valt:a.b}", Err("there is no `[secrets.valt]`"));
        check("$${vault:a.b}", Ok("${vault:a.b}"));
        for malformed in ["${vault:}", "${vault: a}", "${va-ult:a}", "${:a}"] {
            check(malformed, Err("invalid variable after `${`"));
        }
    }

    #[test]
    fn what_cannot_be_filled_in_is_told() {
        let malformed = "invalid variable after `${`";
        check(
            "${NO} ${NO2}",
            Err("the environment variable `NO` is not set; the environment variable `NO2` is not set"),
        );
        for text in [
            "${",
            "${}",
            "${A",
            "${1}",
            "${A-b}",
            "${A:-",
            "${a b}",
            "${é}",
            "${keyring:}",
            "${keyring:a-b}",
            "${keyring:A:-b}",
            "${keyring:A",
        ] {
            check(text, Err(malformed));
        }
        check(&"${NO:-".repeat(10_000), Err(malformed));
        let deep = "${NO:-".repeat(100) + &"}".repeat(100);
        check(&deep, Err(malformed));
    }
}
