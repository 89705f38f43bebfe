//! Adds hosts' servers to servers.toml, one by one.

use std::{collections::BTreeSet, path::Path};

use nonet_config::{Policy, Secret};
use nonet_text::name::{MAX_SERVER, ServerName};

use super::{
    FileChange, HostFault, Machine, Os,
    entry::{HostEntry, HostServer},
    find::FoundEntry,
    import::{ImportOptions, is_tracked, secrets_beside, unusable, usable},
    imported::{ImportOutcome, ImportPlan, ImportRow, KeptSecret, SecretStore, Variable},
    listed,
    names::{Meaning, Reference, VariableNames},
    parts::{TextPart, TextParts},
    rules::{MappedRule, RuleEffect, ToolNames, ToolRule},
    servers::{NewServer, ServersToml, held, references, written},
    shortened,
};

/// Adds servers to servers.toml, one by one.
pub(super) struct ImportMerge<'a> {
    pub doc: ServersToml<'a>,
    pub names: VariableNames<'a>,
    machine: &'a Machine,
    options: ImportOptions<'a>,
    /// The names used by this import; they are never replaced.
    mine: BTreeSet<String>,
    /// The servers that this import adds.
    new: BTreeSet<String>,
    /// Servers with the same connection, under two names.
    twins: Vec<(String, String)>,
    /// The rules of this import: for a server's tools, what happens.
    rules: Vec<(String, ToolNames, Policy)>,
    /// The patterns of the rules that servers.toml did not have.
    added: BTreeSet<String>,
    pub variables: Vec<Variable>,
    pub secrets: Vec<KeptSecret>,
}

impl<'a> ImportMerge<'a> {
    /// Starts with the names in servers.toml and in the entries reserved for their meanings.
    pub(crate) fn new(
        doc: ServersToml<'a>,
        found: &[FoundEntry],
        options: ImportOptions<'a>,
        machine: &'a Machine,
    ) -> Result<Self, HostFault> {
        if let Some(keyring) = options.keyring {
            usable(keyring).map_err(|error| unusable(&error))?;
        }
        let mut names = VariableNames::new(machine, options.keyring, secrets_beside(doc.file)?);
        let mentioned = found.iter().flat_map(|found| named(&found.entry));
        doc.references().into_iter().chain(mentioned).for_each(|reference| names.reserve(reference));
        Ok(Self {
            doc,
            names,
            machine,
            options,
            mine: BTreeSet::new(),
            new: BTreeSet::new(),
            twins: Vec::new(),
            rules: Vec::new(),
            added: BTreeSet::new(),
            variables: Vec::new(),
            secrets: Vec::new(),
        })
    }

    /// Returns the plan of a change of servers.toml, with the secrets that were noted. Fails if the keyring
    /// could not be read.
    pub(crate) fn plan(self, rows: Vec<ImportRow>, change: FileChange) -> Result<ImportPlan, HostFault> {
        if let Some(error) = self.names.trouble() {
            return Err(unusable(&error));
        }
        let (mut variables, mut secrets, file) = (self.variables, self.secrets, self.names.file);
        secrets.sort_by(|a, b| a.name.cmp(&b.name));
        variables.sort_by(|a, b| a.name.cmp(&b.name));
        let mut notes = Vec::new();
        if secrets.iter().any(|kept| kept.store == SecretStore::File && !kept.there)
            && is_tracked(file.path())
        {
            let note = "this folder is in a git repository: add `secrets.env` to its .gitignore";
            notes.push(format!("{}: {note}", file.path().display()));
        }
        Ok(ImportPlan {
            rows,
            variables,
            secrets,
            notes,
            change,
            keyring: self.options.keyring.cloned(),
            file,
        })
    }

    /// Adds a server, unless servers.toml already has it.
    pub(crate) fn join(&mut self, found: &FoundEntry) -> ImportRow {
        let row = |done: ImportOutcome| ImportRow::new(&found.name, &found.from, done);
        let (server, notes) = match &found.entry {
            HostEntry::Nonet => return row(ImportOutcome::Nonet),
            HostEntry::Left(why) => return row(ImportOutcome::Skipped { why: why.clone() }),
            HostEntry::Server(server, notes) => (server, notes),
        };
        if let Some(rule) = server.rules.iter().find(|rule| rule.effect == RuleEffect::Ask)
            && self.doc.denies_by_risk()
        {
            let why = format!(
                "its rule `{}` would precede the policy of servers.toml that denies tools by their risk",
                rule.written
            );
            return row(ImportOutcome::Skipped { why });
        }
        let (done, more) = self.server(found, server);
        let mut row = row(done);
        row.notes = notes.iter().cloned().chain(more).collect();
        let Some(name) = row.done.server().map(ToString::to_string) else { return row };
        row.stays = if self.doc.is_disabled(&name) {
            Some(format!("[servers.{name}] of servers.toml has `enabled = false`"))
        } else if !server.enabled {
            Some(format!("it is switched off here, but not in [servers.{name}] of servers.toml"))
        } else {
            server.lost.clone()
        };
        self.keep_rules(&name, server, &mut row);
        row
    }

    /// Turns a client's rules into rules of servers.toml, or lets the server stay with its client.
    fn keep_rules(&mut self, name: &str, server: &HostServer, row: &mut ImportRow) {
        let is_new = row.done.is_new();
        let weaker = |rule: &ToolRule| {
            let policy = rule.effect.policy();
            let tool = rule.tools.iter().find_map(|tools| self.doc.weaker_tool(name, tools, policy))?;
            Some(format!(
                "its rule `{}` is stricter than [servers.{name}.tools.{tool}] of servers.toml",
                rule.written
            ))
        };
        if let Some(why) = server.rules.iter().find_map(weaker) {
            row.stays.get_or_insert(why);
            return;
        }
        for rule in &server.rules {
            let became = match rule.effect {
                RuleEffect::Allow => continue,
                RuleEffect::Only if is_new => format!("`allowed_tools` of [servers.{name}]"),
                RuleEffect::Only if self.doc.shows_only(name, &rule.tools) => {
                    format!("`allowed_tools` of [servers.{name}], as it is")
                }
                RuleEffect::Only if self.new.contains(name) => {
                    self.doc.show_only(name, &rule.tools);
                    format!("`allowed_tools` of [servers.{name}], for every client")
                }
                RuleEffect::Only => {
                    let rule = &rule.written;
                    let why =
                        format!("its rule `{rule}` shows fewer tools than [servers.{name}] of servers.toml");
                    row.stays.get_or_insert(why);
                    continue;
                }
                RuleEffect::Hide if is_new => format!("`blocked_tools` of [servers.{name}]"),
                RuleEffect::Ask | RuleEffect::Deny | RuleEffect::Hide => {
                    let policy = rule.effect.policy();
                    let patterns: Vec<String> =
                        rule.tools.iter().flat_map(|tools| self.rule(name, tools, policy)).collect();
                    row.is_pending |= patterns.iter().any(|pattern| self.added.contains(pattern));
                    let policy = if policy == Policy::Deny { "deny" } else { "approve" };
                    format!("`policy = \"{policy}\"` for {}", patterns.join(", "))
                }
            };
            for tools in &rule.tools {
                row.strictness.insert(format!("{} {tools}", strictness(rule.effect)));
            }
            let (rule, file) = (rule.written.clone(), rule.file.clone());
            row.rules.push(MappedRule { rule, file, became });
        }
    }

    /// Adds a rule for tools of a server, unless servers.toml has it. Returns the patterns.
    fn rule(&mut self, server: &str, tools: &ToolNames, policy: Policy) -> Vec<String> {
        let renamed = self.doc.renamed(server, tools);
        let mut patterns = Vec::new();
        for tools in std::iter::once(tools).chain(&renamed) {
            let pattern = tools.of_server(server).to_string();
            if !self.doc.has_rule(server, tools, policy) {
                self.doc.add_rule(server, tools, policy);
                self.added.insert(pattern.clone());
            }
            self.rules.push((server.into(), tools.clone(), policy));
            patterns.push(pattern);
        }
        patterns
    }

    /// Applies the rules of a server to the same server under another name.
    pub(crate) fn apply_to_twins(&mut self) {
        let twins = std::mem::take(&mut self.twins);
        let rules = self.rules.clone();
        for (a, b) in twins {
            for (from, to) in [(&a, &b), (&b, &a)] {
                for (_, tools, policy) in rules.iter().filter(|(server, ..)| server == from) {
                    self.rule(to, tools, *policy);
                }
            }
        }
    }

    fn server(&mut self, found: &FoundEntry, server: &HostServer) -> (ImportOutcome, Option<String>) {
        let wanted = match ServerName::new(&found.name) {
            Ok(name) => name.as_str().to_string(),
            Err(bad) => bad.nearest,
        };
        let mut number = 1;
        let name = loop {
            let name = numbered(&wanted, number);
            let newcomer = NewServer { server, file: &found.from.file, name: &name };
            let replaceable =
                self.options.replace && number == 1 && self.doc.has(&name) && !self.mine.contains(&name);
            let same = self.doc.same(&name, &newcomer, &self.names);
            if let Some(held) = same.filter(|held| !(replaceable && self.is_for_keyring(server, held))) {
                let note = self.not_compared(&held);
                self.mine.insert(name.clone());
                self.note_references(found, server, &name, Some(&held));
                held.into_iter().for_each(|(reference, held)| self.names.hold(reference, held));
                return (ImportOutcome::AlreadyThere { server: name }, note);
            }
            if replaceable {
                self.doc.replace(&newcomer, &mut self.names);
                self.mine.insert(name.clone());
                self.new.insert(name.clone());
                self.note_references(found, server, &name, None);
                return (ImportOutcome::Replaced { server: name }, None);
            }
            if !self.doc.has(&name) && !self.doc.is_category(&name) {
                break name;
            }
            number += 1;
        };
        let newcomer = NewServer { server, file: &found.from.file, name: &name };
        let twin = self.doc.twin(&newcomer, &self.names);
        self.twins.extend(twin.iter().map(|twin| (twin.clone(), name.clone())));
        let note =
            twin.map(|twin| format!("servers.toml has the same server as `{twin}`; one of them is enough"));
        self.doc.add(&newcomer, &mut self.names);
        self.mine.insert(name.clone());
        self.new.insert(name.clone());
        self.note_references(found, server, &name, None);
        let done = if name == found.name {
            ImportOutcome::Added { server: name }
        } else {
            ImportOutcome::AddedAs { server: name }
        };
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
        let secrets = server.secrets().count();
        let kept = held.iter().filter(|(reference, _)| matches!(reference, Reference::Keyring(_))).count();
        self.names.has_keyring() && kept < secrets
    }

    /// Records which variables and keyring secrets the server needs. `there` lists the ones that servers.toml
    /// already has for it.
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
                let what = match part {
                    TextPart::Variable { name: variable, default: None } => {
                        let what = "the client's file uses it".to_string();
                        self.note_variable(variable.clone(), what, name, &place);
                        continue;
                    }
                    TextPart::Asked { what, default: None, .. } => what.clone(),
                    TextPart::Secret { .. } => "a secret of the client's file".into(),
                    _ => continue,
                };
                let Some(held) = held(part, &found.from.file) else { continue };
                let reference = match there {
                    // None if servers.toml contains the secret itself.
                    Some(there) => there.iter().find(|(_, other)| *other == held).map(|it| it.0.clone()),
                    None => self.names.find(&held),
                };
                match (reference, held) {
                    (Some(reference), Meaning::Value { value, .. }) if self.is_stored(&reference, &value) => {
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

    /// Returns a text of a server with references in the place of its secrets, which are noted. `file` has
    /// the text.
    pub(crate) fn without_secrets(&mut self, parts: &TextParts, server: &str, file: &Path) -> String {
        let text = written(parts, server, file, &mut self.names);
        for part in parts {
            let Some(held) = held(part, file) else { continue };
            if let (Some(reference), Meaning::Value { value, .. }) = (self.names.find(&held), held)
                && self.is_stored(&reference, &value)
            {
                self.note_secret(reference, value, server);
            }
        }
        text
    }

    /// Whether a secret is stored under its name. A variable with another value in `secrets.env` is set by
    /// the environment, and stays.
    fn is_stored(&self, reference: &Reference, value: &str) -> bool {
        match reference {
            Reference::Keyring(_) => self.names.has_keyring(),
            Reference::Variable(_) => {
                self.options.file && self.names.kept(reference).is_none_or(|kept| kept == value)
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
            add_once(&mut known.servers, server);
            return;
        }
        let (name, servers) = (reference.name().to_string(), vec![server.to_string()]);
        self.secrets.push(KeptSecret { name, servers, store, there, value: Secret::new(value) });
    }

    fn note_variable(&mut self, name: String, what: String, server: &str, place: &str) {
        if let Some(known) = self.variables.iter_mut().find(|known| known.name == name) {
            add_once(&mut known.servers, server);
            add_once(&mut known.places, place);
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

/// Returns a word for what happens to a tool: two rules with the same word differ in name only.
fn strictness(effect: RuleEffect) -> &'static str {
    match effect.policy() {
        Policy::Allow => "allow",
        Policy::Approve => "ask",
        Policy::Deny => "deny",
    }
}

fn add_once(texts: &mut Vec<String>, text: &str) {
    if !texts.iter().any(|known| known == text) {
        texts.push(text.into());
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
        server
            .texts()
            .into_iter()
            .for_each(|(_, parts)| references(parts, &mut |reference, _| found.push(reference)));
    }
    found
}
