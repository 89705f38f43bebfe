//! Adds hosts' servers to servers.toml, one by one.

use std::collections::BTreeSet;

use super::{
    Machine, Os,
    entry::{HostEntry, HostServer},
    find::FoundEntry,
    import::ImportOptions,
    imported::{Done, ImportRow, KeptSecret, SecretStore, Variable},
    listed,
    names::{Meaning, Names, Reference},
    parts::TextPart,
    servers::{Newcomer, ServersToml, held, references},
    shortened,
};
use crate::{
    config::Secret,
    name::{MAX_SERVER, ServerName},
    secrets_file::SecretsFile,
};

/// Adds servers to servers.toml, one by one.
pub(super) struct Joining<'a> {
    pub doc: ServersToml,
    pub names: Names<'a>,
    machine: &'a Machine,
    replace: bool,
    /// Whether variables' values are stored in `secrets.env`.
    keeps: bool,
    /// The names used by this import; they are never replaced.
    pub mine: BTreeSet<String>,
    pub variables: Vec<Variable>,
    pub secrets: Vec<KeptSecret>,
}

impl<'a> Joining<'a> {
    /// Starts with the names in servers.toml and in the entries reserved for their meanings.
    pub fn new(
        doc: ServersToml,
        found: &[FoundEntry],
        manner: ImportOptions<'a>,
        file: &'a SecretsFile,
        machine: &'a Machine,
    ) -> Self {
        let mut names = Names::new(machine, manner.keyring, file);
        let mentioned = found.iter().flat_map(|found| named(&found.entry));
        doc.references().into_iter().chain(mentioned).for_each(|reference| names.reserve(reference));
        let (mine, variables, secrets) = (BTreeSet::new(), Vec::new(), Vec::new());
        let (replace, keeps) = (manner.replace, manner.file);
        Self { doc, names, machine, replace, keeps, mine, variables, secrets }
    }

    /// Adds a server, unless servers.toml already has it.
    pub fn join(&mut self, found: &FoundEntry) -> ImportRow {
        let (done, notes, lost) = match &found.entry {
            HostEntry::Nonet => (Done::Nonet, Vec::new(), None),
            HostEntry::Left(why) => (Done::Skipped { why: why.clone() }, Vec::new(), None),
            HostEntry::Server(server, notes) => {
                let (done, more) = self.server(found, server);
                (done, notes.iter().cloned().chain(more).collect(), server.lost.clone())
            }
        };
        let disabled = done.server().filter(|name| self.doc.is_disabled(name));
        let disabled = disabled.map(|name| format!("[servers.{name}] of servers.toml has `enabled = false`"));
        let stays = disabled.or(lost);
        ImportRow { name: found.name.clone(), from: found.from.clone(), done, notes, stays }
    }

    fn server(&mut self, found: &FoundEntry, server: &HostServer) -> (Done, Option<String>) {
        let wanted = match ServerName::new(&found.name) {
            Ok(name) => name.as_str().to_string(),
            Err(bad) => bad.nearest,
        };
        let mut number = 1;
        let name = loop {
            let name = numbered(&wanted, number);
            let newcomer = Newcomer { server, file: &found.from.file, name: &name };
            let replaceable =
                self.replace && number == 1 && self.doc.has(&name) && !self.mine.contains(&name);
            let same = self.doc.same(&name, &newcomer, &self.names);
            if let Some(held) = same.filter(|held| !(replaceable && self.is_for_keyring(server, held))) {
                let note = self.not_compared(&held);
                self.mine.insert(name.clone());
                self.note_references(found, server, &name, Some(&held));
                held.into_iter().for_each(|(reference, held)| self.names.hold(reference, held));
                return (Done::AlreadyThere { server: name }, note);
            }
            if replaceable {
                self.doc.replace(&newcomer, &mut self.names);
                self.mine.insert(name.clone());
                self.note_references(found, server, &name, None);
                return (Done::Replaced { server: name }, None);
            }
            if !self.doc.has(&name) && !self.doc.is_category(&name) {
                break name;
            }
            number += 1;
        };
        let newcomer = Newcomer { server, file: &found.from.file, name: &name };
        let twin = self.doc.twin(&newcomer, &self.names);
        let note =
            twin.map(|twin| format!("servers.toml has the same server as `{twin}`; one of them is enough"));
        self.doc.add(&newcomer, &mut self.names);
        self.mine.insert(name.clone());
        self.note_references(found, server, &name, None);
        let done =
            if name == found.name { Done::Added { server: name } } else { Done::AddedAs { server: name } };
        (done, note)
    }

    /// Returns a note about secrets that could not be compared.
    fn not_compared(&self, held: &[(Reference, Meaning)]) -> Option<String> {
        let unseen = held.iter().map(|(reference, _)| reference);
        let unseen: Vec<_> = unseen.filter(|reference| !self.names.is_known(reference)).collect();
        let in_keyring = unseen.iter().all(|reference| matches!(reference, Reference::Keyring(_)));
        let why = match in_keyring && !self.names.has_keyring() {
            true => "in the keyring",
            false => "not set here",
        };
        let unseen: Vec<_> = unseen.into_iter().map(Reference::name).collect();
        (!unseen.is_empty()).then(|| format!("{} {why}, so secrets were not compared", listed(&unseen)))
    }

    /// Whether an existing server has a secret that belongs in the keyring but is not there.
    fn is_for_keyring(&self, server: &HostServer, held: &[(Reference, Meaning)]) -> bool {
        let texts = server.texts();
        let secrets = texts.iter().flat_map(|(_, parts)| parts.iter());
        let secrets = secrets.filter(|part| matches!(part, TextPart::Secret { .. })).count();
        let kept = held.iter().filter(|(reference, _)| matches!(reference, Reference::Keyring(_))).count();
        self.names.has_keyring() && kept < secrets
    }

    /// Records which variables and keyring secrets the server needs. `there` lists the ones that servers.toml already
    /// has for it.
    fn note_references(
        &mut self,
        found: &FoundEntry,
        server: &HostServer,
        name: &str,
        there: Option<&[(Reference, Meaning)]>,
    ) {
        for (place, parts) in server.texts() {
            let table =
                if found.from.table.is_empty() { String::new() } else { format!("{}.", found.from.table) };
            let place = format!("{}: {table}{}.{place}", found.from.file.display(), found.name);
            for part in parts {
                match part {
                    TextPart::Plain(_) | TextPart::Keyring(_) => {}
                    TextPart::Variable { default: Some(_), .. } => {}
                    TextPart::Variable { name: variable, .. } => {
                        let what = "the host's file uses it".to_string();
                        self.note_variable(variable.clone(), what, name, &place);
                    }
                    TextPart::Secret { .. } | TextPart::Asked { .. } => {
                        let what = match part {
                            TextPart::Asked { what, .. } => what.clone(),
                            _ => "a secret of the host's file".into(),
                        };
                        let Some(held) = held(part, &found.from.file) else { continue };
                        let reference = match there {
                            // None if servers.toml contains the secret itself.
                            Some(there) => {
                                there.iter().find(|(_, other)| *other == held).map(|(there, _)| there.clone())
                            }
                            None => self.names.find(&held),
                        };
                        match (reference, held) {
                            (Some(reference), Meaning::Value { value, .. })
                                if self.is_stored(&reference, &value) =>
                            {
                                self.note_secret(reference, value, name);
                            }
                            (Some(Reference::Variable(variable)), _) => {
                                self.note_variable(variable, what, name, &place);
                            }
                            _ => {}
                        }
                    }
                }
            }
        }
    }

    /// Whether a secret is stored under its name. A variable with another value in `secrets.env` is set by the
    /// environment, and stays.
    fn is_stored(&self, reference: &Reference, value: &str) -> bool {
        match reference {
            Reference::Keyring(_) => self.names.has_keyring(),
            Reference::Variable(_) => {
                self.keeps && self.names.kept(reference).is_none_or(|kept| kept == value)
            }
        }
    }

    fn note_secret(&mut self, reference: Reference, value: String, server: &str) {
        let (store, there) = match &reference {
            Reference::Keyring(_) => (SecretStore::Keyring, self.names.is_set(&reference)),
            Reference::Variable(_) => (SecretStore::File, self.names.kept(&reference).is_some()),
        };
        let same = |known: &&mut KeptSecret| known.store == store && known.name == reference.name();
        if let Some(known) = self.secrets.iter_mut().find(same) {
            if !known.servers.iter().any(|known| known == server) {
                known.servers.push(server.into());
            }
            return;
        }
        let (name, servers) = (reference.name().to_string(), vec![server.to_string()]);
        self.secrets.push(KeptSecret { name, servers, store, there, value: Secret::new(value) });
    }

    fn note_variable(&mut self, name: String, what: String, server: &str, place: &str) {
        if let Some(known) = self.variables.iter_mut().find(|known| known.name == name) {
            if !known.servers.iter().any(|known| known == server) {
                known.servers.push(server.into());
            }
            if !known.places.iter().any(|known| known == place) {
                known.places.push(place.into());
            }
            return;
        }
        let hint = match self.machine.os {
            Os::Windows => format!("setx {name} \"...\""),
            _ => format!("export {name}='...'"),
        };
        let reference = Reference::Variable(name.clone());
        let (set, kept) = (self.names.is_set(&reference), self.names.kept(&reference).is_some());
        let (servers, places) = (vec![server.into()], vec![place.into()]);
        let what = shortened_words(&what);
        self.variables.push(Variable { name, what, servers, places, set, kept, hint });
    }
}

fn shortened_words(what: &str) -> String {
    if what.len() > 80 { shortened(what) } else { what.into() }
}

/// Returns `name`, `name-2`, `name-3`, ..., within the length limit of a server's name.
fn numbered(name: &str, number: usize) -> String {
    if number == 1 {
        return name.into();
    }
    let suffix = format!("-{number}");
    let start: String = name.chars().take(MAX_SERVER.saturating_sub(suffix.len())).collect();
    format!("{}{suffix}", start.trim_end_matches(['-', '_']))
}

/// Returns the variables that an entry names itself.
fn named(entry: &HostEntry) -> Vec<Reference> {
    let mut found = Vec::new();
    if let HostEntry::Server(server, _) = entry {
        server.texts().into_iter().for_each(|(_, parts)| references(parts, &mut found));
    }
    found
}
