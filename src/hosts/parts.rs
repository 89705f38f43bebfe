//! A text of a config taken apart: what stands there as it is, what names a variable, and what is
//! a secret. Hosts and servers.toml write variables in different ways; this is between the two.

use std::path::Path;

use crate::{
    config::{Piece, closing_brace, pieces},
    keyring,
};

/// A text, in order. Two pieces of plain text never follow each other.
pub(super) type Parts = Vec<Part>;

/// A piece of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Meant as it stands.
    Plain(String),
    /// An environment variable.
    Variable {
        name: String,
        /// What holds without it; may name variables in turn, as servers.toml writes them.
        default: Option<String>,
    },
    /// A secret in the keyring, as servers.toml names it.
    Keyring(String),
    /// What the host gets elsewhere: by asking, from a file, from a command.
    Asked {
        /// What the host calls it.
        id: String,
        /// What it is, for the user.
        what: String,
    },
    /// What nobody should see. `key` says what it is: `GITHUB_TOKEN`, or just `TOKEN`.
    Secret { value: String, key: Key },
}

/// What a secret is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Key {
    /// By the name of the environment variable that the server wants it in.
    Own(String),
    /// By its kind; only the server's name makes it a name.
    Kind(String),
}

/// What is asked for without a name of its own.
pub(super) const GIVEN: &str = "secret";

/// How a host understands a text.
pub(super) struct Reader<'a> {
    /// `$NAME` is a variable wherever it stands.
    pub bare_variables: bool,
    pub windows: bool,
    /// The folder that the host means by `${workspaceFolder}`.
    pub folder: &'a Path,
    /// What an input asks for, by its id.
    pub input: &'a dyn Fn(&str) -> Option<String>,
}

impl Reader<'_> {
    /// Takes a host's text apart. Secrets are not looked for here.
    pub fn parts(&self, text: &str) -> Parts {
        let mut parts = Parts::new();
        let mut rest = text;
        while let Some(at) = rest.find('$') {
            plain(&mut parts, &rest[..at]);
            rest = &rest[at..];
            if rest.starts_with("$${") || rest.starts_with("$$") && self.bare_variables {
                // Nobody who doubles it means a variable.
                let end = if rest.starts_with("$${") { 3 } else { 2 };
                plain(&mut parts, &rest[..end]);
                rest = &rest[end..];
            } else if let Some((part, after)) = rest.strip_prefix("${").and_then(|inside| self.braced(inside))
            {
                match part {
                    Part::Plain(text) => plain(&mut parts, &text),
                    part => parts.push(part),
                }
                rest = after;
            } else if let Some((name, after)) = self.bare(rest, rest.len() == text.len()) {
                parts.push(Part::Variable { name: name.into(), default: None });
                rest = after;
            } else {
                plain(&mut parts, "$");
                rest = &rest[1..];
            }
        }
        plain(&mut parts, rest);
        parts
    }

    /// What follows `${`, and the text after its `}`.
    fn braced<'t>(&self, inside: &'t str) -> Option<(Part, &'t str)> {
        let (content, after) = inside.split_at(closing_brace(inside)?);
        let after = &after[1..];
        let asked = |id: &str, what: String| Part::Asked { id: id.into(), what };
        let folder = self.folder.to_string_lossy().into_owned();
        let home = if self.windows { "USERPROFILE" } else { "HOME" };
        let part = match content.split_once(':') {
            Some(("env", name)) => variable(name)?,
            Some(("input", id)) => {
                let what = (self.input)(id).map(|what| format!(": {what}")).unwrap_or_default();
                asked(id, format!("the host asks for it as `{id}`{what}"))
            }
            Some(("file", path)) => asked(GIVEN, format!("the text of the file {path}")),
            Some(("cmd" | "command", command)) => asked(GIVEN, format!("what `{}` gives", command.trim())),
            _ => match content {
                "workspaceFolder" | "workspaceRoot" | "cwd" => Part::Plain(folder),
                "workspaceFolderBasename" => {
                    let name = self.folder.file_name().unwrap_or_default();
                    Part::Plain(name.to_string_lossy().into_owned())
                }
                "userHome" => Part::Variable { name: home.into(), default: None },
                "pathSeparator" | "/" => Part::Plain(if self.windows { "\\" } else { "/" }.into()),
                _ => variable(content)?,
            },
        };
        Some((part, after))
    }

    /// `$NAME`. As a whole text it is understood in capitals only: `$ecret` may be a password.
    fn bare<'t>(&self, text: &'t str, whole: bool) -> Option<(&'t str, &'t str)> {
        let inside = &text[1..];
        let end = inside.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(inside.len());
        let (name, after) = inside.split_at(end);
        let capitals = !name.contains(|c: char| c.is_ascii_lowercase());
        let meant = self.bare_variables || whole && after.is_empty() && capitals;
        (meant && is_variable_name(name)).then_some((name, after))
    }
}

/// Takes a text of servers.toml apart, by the rules of its own expansion.
pub(super) fn own(text: &str) -> Parts {
    let mut parts = Parts::new();
    for piece in pieces(text) {
        match piece {
            Piece::Plain(text) => plain(&mut parts, text),
            Piece::Malformed => plain(&mut parts, "${"),
            Piece::Variable { name, default } => {
                parts.push(Part::Variable { name: name.into(), default: default.map(Into::into) });
            }
            Piece::Keyring(name) => parts.push(Part::Keyring(name.into())),
        }
    }
    parts
}

/// Writes plain text so that servers.toml's expansion gives it back.
pub(super) fn escaped(text: &str) -> String {
    text.replace("${", "$${")
}

/// Adds plain text at the end.
pub(super) fn plain(parts: &mut Parts, text: &str) {
    match parts.last_mut() {
        _ if text.is_empty() => {}
        Some(Part::Plain(last)) => last.push_str(text),
        _ => parts.push(Part::Plain(text.into())),
    }
}

/// The parts as one plain text, if they are nothing else.
pub(super) fn as_plain(parts: &[Part]) -> Option<&str> {
    match parts {
        [] => Some(""),
        [Part::Plain(text)] => Some(text),
        _ => None,
    }
}

/// The text that the parts begin with.
pub(super) fn beginning(parts: &[Part]) -> &str {
    match parts.first() {
        Some(Part::Plain(text)) => text,
        _ => "",
    }
}

/// A name that can stand in `${...}`.
pub(super) fn is_variable_name(name: &str) -> bool {
    keyring::is_name(name)
}

/// `NAME` or `NAME:-default`, if servers.toml could read it.
fn variable(content: &str) -> Option<Part> {
    match own(&format!("${{{content}}}")).as_slice() {
        [variable @ Part::Variable { .. }] => Some(variable.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(parts: &[Part]) -> String {
        let show = |part: &Part| match part {
            Part::Plain(text) => text.clone(),
            Part::Variable { name, default: None } => format!("<{name}>"),
            Part::Variable { name, default: Some(default) } => format!("<{name}|{default}>"),
            Part::Keyring(name) => format!("<!{name}>"),
            Part::Asked { id, .. } => format!("<?{id}>"),
            Part::Secret { .. } => "<*>".into(),
        };
        parts.iter().map(show).collect()
    }

    fn check(text: &str, bare_variables: bool, expected: &str) {
        let (folder, input) = (Path::new("/home/ann/app"), |_: &str| None);
        let reader = Reader { bare_variables, windows: false, folder, input: &input };
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
