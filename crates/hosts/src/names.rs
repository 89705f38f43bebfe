//! Names for secrets: a name never gets two values.

use std::{cell::RefCell, collections::BTreeMap, fmt};

use nonet_config::{
    keyring::{self, Keyring},
    secrets_file::SecretsFile,
};

use super::{
    Machine,
    parts::{SecretName, is_variable_name},
};

/// The names of variables and secrets in servers.toml, existing and new.
pub(super) struct VariableNames<'a> {
    machine: &'a Machine,
    /// The store for secrets; without it, they become variables.
    keyring: Option<&'a Keyring>,
    /// The variables in `secrets.env`, used where the environment lacks them.
    pub file: SecretsFile,
    /// Why the keyring could not be read.
    trouble: RefCell<Option<keyring::Error>>,
    held: BTreeMap<Reference, Meaning>,
}

/// What replaces a value in servers.toml.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reference {
    /// An environment variable.
    Variable(String),
    /// A secret in the keyring.
    Keyring(String),
}

impl Reference {
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Variable(name) | Self::Keyring(name) => name,
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Variable(name) => write!(f, "${{{name}}}"),
            Self::Keyring(name) => write!(f, "${{keyring:{name}}}"),
        }
    }
}

/// The meaning of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// A secret of this import.
    Value { value: String, key: SecretName },
    /// A host's prompt: its file and purpose, then its id on a line of its own.
    Asked(String),
    /// A name chosen by the user, with an unknown value.
    Unknown,
}

impl<'a> VariableNames<'a> {
    pub(crate) fn new(machine: &'a Machine, keyring: Option<&'a Keyring>, file: SecretsFile) -> Self {
        Self { machine, keyring, file, trouble: RefCell::default(), held: BTreeMap::new() }
    }

    /// Reserves a name that a file mentions.
    pub(crate) fn reserve(&mut self, reference: Reference) {
        self.held.entry(reference).or_insert(Meaning::Unknown);
    }

    /// Records the meaning of a name.
    pub(crate) fn hold(&mut self, reference: Reference, held: Meaning) {
        self.held.insert(reference, held);
    }

    /// Returns the existing name with this meaning, in the same store.
    pub(crate) fn find(&self, held: &Meaning) -> Option<Reference> {
        let kind = self.reference(held, String::new());
        let same = |(reference, other): &(&Reference, &Meaning)| {
            *other == held && std::mem::discriminant(*reference) == std::mem::discriminant(&kind)
        };
        self.held.iter().find(same).map(|(reference, _)| reference.clone())
    }

    /// Returns the name for a server's secret: an equal secret's name, else a new one.
    pub(crate) fn name(&mut self, server: &str, held: Meaning) -> Reference {
        if let Some(reference) = self.find(&held) {
            return reference;
        }
        let mut number = 1;
        let reference = loop {
            let free = |reference: &Reference| self.is_free(reference, &held);
            let candidates = candidates(server, &held, number).into_iter();
            if let Some(reference) = candidates.map(|name| self.reference(&held, name)).find(free) {
                break reference;
            }
            number += 1;
        };
        self.hold(reference.clone(), held);
        reference
    }

    /// Whether an existing name in servers.toml may mean this secret of the server.
    pub(crate) fn may_be(&self, reference: &Reference, server: &str, held: &Meaning) -> bool {
        let fits = |name: &String| name == reference.name();
        let Meaning::Value { value, .. } = held else {
            return candidates(server, held, 1).iter().any(fits)
                && !matches!(self.held.get(reference), Some(other) if *other != Meaning::Unknown && other != held);
        };
        match (self.held.get(reference), self.value(reference)) {
            (Some(Meaning::Value { value: other, .. }), _) => other == value,
            (_, Some(set)) => set == *value || self.kept(reference) == Some(value),
            _ => (1..=9).any(|number| candidates(server, held, number).iter().any(fits)),
        }
    }

    /// Whether the value behind a name is known.
    pub(crate) fn is_known(&self, reference: &Reference) -> bool {
        self.is_set(reference) || !matches!(self.held.get(reference), None | Some(Meaning::Unknown))
    }

    /// Returns the value of a variable in `secrets.env`.
    pub(crate) fn kept(&self, reference: &Reference) -> Option<&str> {
        match reference {
            Reference::Variable(name) => self.file.get(name),
            Reference::Keyring(_) => None,
        }
    }

    /// Whether the variable is set here or in `secrets.env`, or the secret is in the usable keyring.
    pub(crate) fn is_set(&self, reference: &Reference) -> bool {
        self.value(reference).is_some()
    }

    /// Whether secrets go into the keyring.
    pub(crate) fn has_keyring(&self) -> bool {
        self.keyring.is_some()
    }

    /// Returns the keyring's error, if any.
    pub(crate) fn trouble(&self) -> Option<keyring::Error> {
        self.trouble.borrow().clone()
    }

    /// Returns the reference for servers.toml: to the keyring for known secrets, if it is used.
    fn reference(&self, held: &Meaning, name: String) -> Reference {
        match held {
            Meaning::Value { .. } if self.has_keyring() => Reference::Keyring(name),
            _ => Reference::Variable(name),
        }
    }

    fn value(&self, reference: &Reference) -> Option<String> {
        let name = match reference {
            Reference::Variable(name) => {
                return self.machine.var(name).or_else(|| self.file.get(name)).map(Into::into);
            }
            Reference::Keyring(name) => name,
        };
        match self.keyring?.get(name) {
            Ok(value) => Some(value),
            Err(keyring::Error::NoSecret(_)) => None,
            Err(error) => {
                self.trouble.borrow_mut().get_or_insert(error);
                None
            }
        }
    }

    fn is_free(&self, reference: &Reference, held: &Meaning) -> bool {
        let Meaning::Value { value, .. } = held else { return !self.held.contains_key(reference) };
        match (self.held.get(reference), self.value(reference)) {
            (Some(Meaning::Value { value: other, .. }), _) => other == value,
            (_, Some(set)) => set == *value && self.kept(reference).is_none_or(|kept| kept == value),
            (None, None) => true,
            (Some(_), None) => false,
        }
    }
}

/// Returns candidate names, best first; numbered from the second round on.
fn candidates(server: &str, held: &Meaning, round: usize) -> Vec<String> {
    let server = as_name(server).to_uppercase();
    let (key, own) = match held {
        Meaning::Value { key: SecretName::Own(name), .. } => (as_name(name), true),
        Meaning::Value { key: SecretName::Kind(kind), .. } => (as_name(kind), false),
        Meaning::Asked(id) => (as_name(id.rsplit('\n').next().unwrap_or(id)), true),
        Meaning::Unknown => return Vec::new(),
    };
    let long = if key.starts_with(&format!("{server}_")) { key.clone() } else { format!("{server}_{key}") };
    match round {
        1 if own => vec![key, long],
        1 => vec![long],
        _ => vec![format!("{long}_{round}")],
    }
}

/// Turns a text into a variable name in capitals, unless it is one already.
fn as_name(text: &str) -> String {
    if is_variable_name(text) {
        return text.into();
    }
    let mut name = String::new();
    for c in text.chars() {
        match c.to_ascii_uppercase() {
            c @ ('A'..='Z' | '0'..='9') => name.push(c),
            _ if name.ends_with('_') => {}
            _ => name.push('_'),
        }
    }
    let name = name.trim_matches('_');
    match name.chars().next() {
        None => "SECRET".into(),
        Some(first) if first.is_ascii_digit() => format!("_{name}"),
        Some(_) => name.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::Os;

    #[test]
    fn one_name_never_stands_for_two_values() {
        let machine = Machine {
            os: Os::Linux,
            home: "/".into(),
            current: "/".into(),
            env: [("SET".to_string(), "a".to_string())].into(),
            now: SystemTime::UNIX_EPOCH,
        };
        let mut file = SecretsFile::default();
        file.set("KEPT", "a");
        let mut names = VariableNames::new(&machine, None, file);
        names.reserve(Reference::Variable("USED".into()));
        let mut check = |server: &str, key: SecretName, value: &str, expected: &str| {
            let name = names.name(server, Meaning::Value { value: value.into(), key });
            assert_eq!(name, Reference::Variable(expected.into()));
        };
        let own = |name: &str| SecretName::Own(name.into());
        let kind = |name: &str| SecretName::Kind(name.into());
        check("github", own("GITHUB_TOKEN"), "1", "GITHUB_TOKEN");
        check("other", own("GITHUB_TOKEN"), "1", "GITHUB_TOKEN");
        check("work", own("GITHUB_TOKEN"), "2", "WORK_GITHUB_TOKEN");
        check("github", own("GITHUB_TOKEN"), "3", "GITHUB_TOKEN_2");
        check("docs", kind("TOKEN"), "4", "DOCS_TOKEN");
        check("more", kind("TOKEN"), "4", "DOCS_TOKEN");
        check("docs", kind("TOKEN"), "5", "DOCS_TOKEN_2");
        check("a", own("SET"), "a", "SET");
        check("a", own("SET"), "b", "A_SET");
        check("a", own("USED"), "c", "A_USED");
        check("a", own("KEPT"), "a", "KEPT");
        check("b", own("KEPT"), "b", "B_KEPT");
        check("9-lives", kind("API_KEY"), "d", "_9_LIVES_API_KEY");
        let mut asked = |id: &str| names.name("p", Meaning::Asked(id.into())).to_string();
        assert_eq!(asked("f\napi-key"), "${API_KEY}");
        assert_eq!(asked("f\napi-key"), "${API_KEY}");
        assert_eq!(asked("g\napi-key"), "${P_API_KEY}");
    }
}
