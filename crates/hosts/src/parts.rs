//! Configuration texts split into parts: plain text, variables and secrets. Hosts and servers.toml write
//! variables differently; parts are the common form.

use std::path::Path;

use nonet_config::{TextPiece, closing_brace, keyring, pieces};

/// A text as ordered parts. Plain parts are never adjacent.
pub(super) type TextParts = Vec<TextPart>;

/// A piece of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TextPart {
    /// Literal text.
    Plain(String),
    /// An environment variable.
    Variable {
        name: String,
        /// The default, which may contain variables in the form of servers.toml.
        default: Option<String>,
    },
    /// A secret in the keyring, as servers.toml names it.
    Keyring(String),
    /// A secret that a program of servers.toml prints, as written after `${`: `NAME:path`.
    Program(String),
    /// A value from elsewhere: a prompt, a file, a command.
    Asked {
        /// The host's id for it.
        id: String,
        /// Its purpose, for the user.
        what: String,
        /// The value if the user gives none.
        default: Option<String>,
    },
    /// A secret. `key` names the secret: `GITHUB_TOKEN`, or only `TOKEN`.
    Secret { value: String, key: SecretName },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SecretName {
    /// The server's environment variable for the secret.
    Own(String),
    /// The kind of secret; combined with the server's name, it becomes a name.
    Kind(String),
}

/// The id of a requested value without a name.
pub(super) const GIVEN: &str = "secret";

/// How a host interprets a text.
pub(super) struct TextReader<'a> {
    /// Whether `$NAME` is a variable anywhere in a text.
    pub bare_variables: bool,
    pub windows: bool,
    /// The value of `${workspaceFolder}` in the host.
    pub folder: &'a Path,
    /// Returns what is known of an input, by its id.
    pub input: &'a dyn Fn(&str) -> AskedInput,
}

/// An input that a host prompts for.
#[derive(Debug, Default)]
pub(super) struct AskedInput {
    pub prompt: Option<String>,
    pub default: Option<String>,
}

impl TextReader<'_> {
    /// Splits a host's text into parts, without looking for secrets.
    pub(crate) fn parts(&self, text: &str) -> TextParts {
        let mut parts = TextParts::new();
        let mut rest = text;
        while let Some(at) = rest.find('$') {
            plain(&mut parts, &rest[..at]);
            rest = &rest[at..];
            if rest.starts_with("$${") || rest.starts_with("$$") && self.bare_variables {
                // A doubled `$` never means a variable.
                let end = if rest.starts_with("$${") { 3 } else { 2 };
                plain(&mut parts, &rest[..end]);
                rest = &rest[end..];
            } else if let Some((part, after)) = rest.strip_prefix("${").and_then(|inside| self.braced(inside))
            {
                match part {
                    TextPart::Plain(text) => plain(&mut parts, &text),
                    part => parts.push(part),
                }
                rest = after;
            } else if let Some((name, after)) = self.bare(rest, rest.len() == text.len()) {
                parts.push(TextPart::Variable { name: name.into(), default: None });
                rest = after;
            } else {
                plain(&mut parts, "$");
                rest = &rest[1..];
            }
        }
        plain(&mut parts, rest);
        parts
    }

    /// Parses what follows `${`. Returns its part and the text after its `}`.
    fn braced<'t>(&self, inside: &'t str) -> Option<(TextPart, &'t str)> {
        let (content, after) = inside.split_at(closing_brace(inside)?);
        let after = &after[1..];
        // Continue writes `${{ secrets.NAME }}`.
        if let Some(content) = content.strip_prefix('{') {
            let name = ["secrets.", "inputs."].iter().find_map(|kind| content.trim().strip_prefix(kind))?;
            return Some((variable(name)?, after.strip_prefix('}')?));
        }
        let asked = |id: &str, what: String| TextPart::Asked { id: id.into(), what, default: None };
        let folder = self.folder.to_string_lossy().into_owned();
        let home = if self.windows { "USERPROFILE" } else { "HOME" };
        let part = match content.split_once(':') {
            Some(("env", name)) => variable(name)?,
            Some(("input", id)) => {
                let AskedInput { prompt, default } = (self.input)(id);
                let prompt = prompt.map(|prompt| format!(": {prompt}")).unwrap_or_default();
                TextPart::Asked {
                    id: id.into(),
                    what: format!("the client prompts for `{id}`{prompt}"),
                    default,
                }
            }
            Some(("file", path)) => asked(GIVEN, format!("the text of the file {path}")),
            Some(("cmd" | "command", command)) => asked(GIVEN, format!("the output of `{}`", command.trim())),
            _ => match content {
                "workspaceFolder" | "workspaceRoot" | "cwd" => TextPart::Plain(folder),
                "workspaceFolderBasename" => {
                    let name = self.folder.file_name().unwrap_or_default();
                    TextPart::Plain(name.to_string_lossy().into_owned())
                }
                "userHome" => TextPart::Variable { name: home.into(), default: None },
                "pathSeparator" | "/" => TextPart::Plain(if self.windows { "\\" } else { "/" }.into()),
                _ => variable(content)?,
            },
        };
        Some((part, after))
    }

    /// Parses `$NAME`. If it is the whole text, only capitals are accepted: `$ecret` may be a password.
    fn bare<'t>(&self, text: &'t str, whole: bool) -> Option<(&'t str, &'t str)> {
        let inside = &text[1..];
        let end = inside.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(inside.len());
        let (name, after) = inside.split_at(end);
        let capitals = !name.contains(|c: char| c.is_ascii_lowercase());
        let meant = self.bare_variables || whole && after.is_empty() && capitals;
        (meant && is_variable_name(name)).then_some((name, after))
    }
}

/// Splits a text of servers.toml into parts, by its own expansion rules.
pub(super) fn own(text: &str) -> TextParts {
    let mut parts = TextParts::new();
    for piece in pieces(text) {
        match piece {
            TextPiece::Plain(text) => plain(&mut parts, text),
            TextPiece::Malformed => plain(&mut parts, "${"),
            TextPiece::Variable { name, default } => {
                parts.push(TextPart::Variable { name: name.into(), default: default.map(Into::into) });
            }
            TextPiece::Keyring(name) => parts.push(TextPart::Keyring(name.into())),
            TextPiece::Secret { name, path } => parts.push(TextPart::Program(format!("{name}:{path}"))),
        }
    }
    parts
}

/// Escapes plain text for servers.toml.
pub(super) fn escaped(text: &str) -> String {
    text.replace("${", "$${")
}

/// Adds plain text at the end.
pub(super) fn plain(parts: &mut TextParts, text: &str) {
    match parts.last_mut() {
        _ if text.is_empty() => {}
        Some(TextPart::Plain(last)) => last.push_str(text),
        _ => parts.push(TextPart::Plain(text.into())),
    }
}

/// Returns the parts as plain text, if they are only that.
pub(super) fn as_plain(parts: &[TextPart]) -> Option<&str> {
    match parts {
        [] => Some(""),
        [TextPart::Plain(text)] => Some(text),
        _ => None,
    }
}

/// Returns the plain text at the start of the parts.
pub(super) fn beginning(parts: &[TextPart]) -> &str {
    match parts.first() {
        Some(TextPart::Plain(text)) => text,
        _ => "",
    }
}

/// Returns the secrets among the parts.
pub(super) fn secrets_in(parts: &[TextPart]) -> impl Iterator<Item = &String> {
    parts.iter().filter_map(|part| match part {
        TextPart::Secret { value, .. } => Some(value),
        _ => None,
    })
}

/// Whether a name is valid in `${...}`.
pub(super) fn is_variable_name(name: &str) -> bool {
    keyring::is_name(name)
}

/// Parses `NAME` or `NAME:-default`, if valid in servers.toml.
fn variable(content: &str) -> Option<TextPart> {
    match own(&format!("${{{content}}}")).as_slice() {
        [variable @ TextPart::Variable { .. }] => Some(variable.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(parts: &[TextPart]) -> String {
        let show = |part: &TextPart| match part {
            TextPart::Plain(text) => text.clone(),
            TextPart::Variable { name, default: None } => format!("<{name}>"),
            TextPart::Variable { name, default: Some(default) } => format!("<{name}|{default}>"),
            TextPart::Keyring(name) => format!("<!{name}>"),
            TextPart::Program(place) => format!("<:{place}>"),
            TextPart::Asked { id, .. } => format!("<?{id}>"),
            TextPart::Secret { .. } => "<*>".into(),
        };
        parts.iter().map(show).collect()
    }

    fn check(text: &str, bare_variables: bool, expected: &str) {
        let (folder, input) = (Path::new("/home/ann/app"), |_: &str| AskedInput::default());
        let reader = TextReader { bare_variables, windows: false, folder, input: &input };
        assert_eq!(shown(&reader.parts(text)), expected, "{text}");
    }

    #[test]
    fn variables_of_hosts_are_understood() {
        check("plain", false, "plain");
        check("${env:A}-${B}", false, "<A>-<B>");
        check("${A:-b}${A:-${B}}", false, "<A|b><A|${B}>");
        check("$HOME", false, "<HOME>");
        check("$ecret", false, "$ecret");
        check("$HOME/x", false, "$HOME/x");
        check("$HOME/x $$y", true, "<HOME>/x $$y");
        check("Bearer ${input:api-key}", false, "Bearer <?api-key>");
        check("${workspaceFolder}/${workspaceFolderBasename}${/}x", false, "/home/ann/app/app/x");
        check("${userHome}", false, "<HOME>");
        check("${file:/run/secret}", false, "<?secret>");
    }

    #[test]
    fn what_is_meant_as_it_stands_survives_both_ways() {
        for text in ["${", "${}", "${1}", "${a.b}", "$${A}", "a $ b", "${A-b}", "${A:-${}", "100$", "${é}"] {
            check(text, false, text);
            assert_eq!(shown(&own(&escaped(text))), text);
        }
        assert_eq!(shown(&own("${A}$${B}${C:-d}")), "<A>${B}<C|d>");
        assert_eq!(
            shown(&own("a ${keyring:B}${C:-${keyring:D}}${keyring:}")),
            "a <!B><C|${keyring:D}>${keyring:}"
        );
        check("${keyring:B}", false, "${keyring:B}");
    }
}
