//! Names for secrets: one name never stands for two values.

use std::collections::BTreeMap;

use super::{
    Machine,
    parts::{Key, is_variable_name},
};

/// The variables that servers.toml names, or will.
pub(super) struct Names<'a> {
    machine: &'a Machine,
    held: BTreeMap<String, Held>,
}

/// What a name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// A secret of this import.
    Value { value: String, key: Key },
    /// What a host asks for: the file and what it is, then on a line of its own what it is called.
    Asked(String),
    /// Something that the user named; nobody here knows its value.
    Unknown,
}

impl<'a> Names<'a> {
    pub fn new(machine: &'a Machine) -> Self {
        Self { machine, held: BTreeMap::new() }
    }

    /// Keeps a name that a file mentions from being used for anything else.
    pub fn reserve(&mut self, name: &str) {
        self.held.entry(name.into()).or_insert(Held::Unknown);
    }

    /// Records what a name stands for.
    pub fn hold(&mut self, name: &str, held: Held) {
        self.held.insert(name.into(), held);
    }

    /// The name that stands for this already.
    pub fn find(&self, held: &Held) -> Option<String> {
        self.held.iter().find(|(_, other)| *other == held).map(|(name, _)| name.clone())
    }

    /// The name for a secret of a server: that of an equal secret, else a new one.
    pub fn name(&mut self, server: &str, held: Held) -> String {
        if let Some(name) = self.find(&held) {
            return name;
        }
        let mut number = 1;
        let name = loop {
            let free = |name: &String| self.is_free(name, &held);
            if let Some(name) = candidates(server, &held, number).into_iter().find(free) {
                break name;
            }
            number += 1;
        };
        self.hold(&name, held);
        name
    }

    /// Whether a name that servers.toml has already may stand for this secret of the server.
    pub fn may_be(&self, name: &str, server: &str, held: &Held) -> bool {
        let Held::Value { value, .. } = held else {
            return candidates(server, held, 1).iter().any(|candidate| candidate == name)
                && !matches!(self.held.get(name), Some(other) if *other != Held::Unknown && other != held);
        };
        match (self.held.get(name), self.machine.var(name)) {
            (Some(Held::Value { value: other, .. }), _) => other == value,
            (_, Some(set)) => set == value,
            _ => (1..=9)
                .any(|number| candidates(server, held, number).iter().any(|candidate| candidate == name)),
        }
    }

    /// Whether anybody here knows what the name stands for.
    pub fn is_known(&self, name: &str) -> bool {
        self.is_set(name) || !matches!(self.held.get(name), None | Some(Held::Unknown))
    }

    /// Whether the variable is set where Nonet was asked.
    pub fn is_set(&self, name: &str) -> bool {
        self.machine.var(name).is_some()
    }

    fn is_free(&self, name: &str, held: &Held) -> bool {
        let Held::Value { value, .. } = held else { return !self.held.contains_key(name) };
        match (self.held.get(name), self.machine.var(name)) {
            (Some(Held::Value { value: other, .. }), _) => other == value,
            (_, Some(set)) => set == value,
            (None, None) => true,
            (Some(_), None) => false,
        }
    }
}

/// The names that come into question, best first; from the second round on they are numbered.
fn candidates(server: &str, held: &Held, round: usize) -> Vec<String> {
    let server = as_name(server).to_uppercase();
    let (key, own) = match held {
        Held::Value { key: Key::Own(name), .. } => (as_name(name), true),
        Held::Value { key: Key::Kind(kind), .. } => (as_name(kind), false),
        Held::Asked(id) => (as_name(id.rsplit('\n').next().unwrap_or(id)), true),
        Held::Unknown => return Vec::new(),
    };
    let long = if key.starts_with(&format!("{server}_")) { key.clone() } else { format!("{server}_{key}") };
    match round {
        1 if own => vec![key, long],
        1 => vec![long],
        _ => vec![format!("{long}_{round}")],
    }
}

/// What is a name stays as it is; the rest is made one in capitals.
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
    use crate::hosts::Os;

    #[test]
    fn one_name_never_stands_for_two_values() {
        let machine = Machine {
            os: Os::Linux,
            home: "/".into(),
            current: "/".into(),
            env: [("SET".to_string(), "a".to_string())].into(),
            now: SystemTime::UNIX_EPOCH,
        };
        let mut names = Names::new(&machine);
        names.reserve("USED");
        let mut check = |server: &str, key: Key, value: &str, expected: &str| {
            assert_eq!(names.name(server, Held::Value { value: value.into(), key }), expected);
        };
        let own = |name: &str| Key::Own(name.into());
        let kind = |name: &str| Key::Kind(name.into());
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
        check("9-lives", kind("API_KEY"), "d", "_9_LIVES_API_KEY");
        assert_eq!(names.name("p", Held::Asked("f\napi-key".into())), "API_KEY");
        assert_eq!(names.name("p", Held::Asked("f\napi-key".into())), "API_KEY");
        assert_eq!(names.name("p", Held::Asked("g\napi-key".into())), "P_API_KEY");
    }
}
