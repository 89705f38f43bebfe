//! From the files of hosts into servers.toml, server by server.

use std::{
    collections::BTreeSet,
    fmt,
    path::{Path, PathBuf},
};

use serde::Serialize;
use serde_json::Value;

use super::{
    Applied, Change, Fault, HOSTS, Host, Machine, Os, Scope,
    entry::{self, Context, Entry, Server},
    listed,
    names::{Held, Names, Reference},
    parts::Part,
    read,
    servers::{Newcomer, ServersToml, held, references},
    shortened,
    text::{self, Text},
};
use crate::{
    config::Secret,
    keyring::{self, Keyring},
    name::{MAX_SERVER, ServerName},
};

/// Where servers are taken from.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// Every host that is on this machine.
    All,
    /// A host's files: the user's, and that of the project in the current folder.
    Host(&'static Host),
    /// One file, of whatever host.
    File(&'a Path),
}

/// How servers are taken over.
#[derive(Clone, Copy, Default)]
pub struct Manner<'a> {
    /// Servers of the same name that are reached otherwise are replaced.
    pub replace: bool,
    /// Where secrets go, if they are not to become variables that the user sets.
    pub keyring: Option<&'a Keyring>,
}

/// What an import found, and what it makes of servers.toml.
pub struct Imported {
    /// One row for each server that was found, in the order of the files.
    pub rows: Vec<Row>,
    /// The variables that the servers need, by name.
    pub variables: Vec<Variable>,
    /// The secrets that servers.toml takes from the keyring, by name.
    pub secrets: Vec<Kept>,
    /// What is not about a single server.
    pub notes: Vec<String>,
    /// The new servers.toml.
    pub change: Change,
    keyring: Option<Keyring>,
}

/// What became of one server.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Its name in the host's file.
    pub name: String,
    /// Where it stands.
    pub from: Origin,
    /// What was done.
    #[serde(flatten)]
    pub done: Done,
    /// What of it was left out or changed, and what to look at.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Where a server stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Origin {
    /// The host, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<&'static str>,
    /// The file.
    pub file: PathBuf,
    /// The table in it, such as `mcpServers`.
    pub table: String,
}

/// What was done with a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "done", rename_all = "snake_case")]
pub enum Done {
    /// It was added under its own name.
    Added {
        /// Its name in servers.toml.
        server: String,
    },
    /// It was added under another name: its own is no server name, or stands for another server.
    AddedAs {
        /// Its name in servers.toml.
        server: String,
    },
    /// servers.toml has it.
    AlreadyThere {
        /// Its name in servers.toml.
        server: String,
    },
    /// It has taken the place of another of its name.
    Replaced {
        /// Its name in servers.toml.
        server: String,
    },
    /// It is Nonet, which does not stand behind itself.
    Nonet,
    /// It was left out.
    Skipped {
        /// Why.
        why: String,
    },
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Added { .. } => f.write_str("added"),
            Self::AddedAs { server } => write!(f, "added as {server}"),
            Self::AlreadyThere { server } => write!(f, "already there as {server}"),
            Self::Replaced { server } => write!(f, "replaced {server}"),
            Self::Nonet => f.write_str("left alone: this is Nonet itself"),
            Self::Skipped { why } => write!(f, "skipped: {why}"),
        }
    }
}

/// A variable that servers need. Its value is nowhere in here.
#[derive(Clone, Debug, Serialize)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// What it stands for.
    pub what: String,
    /// The servers that need it, by their names in servers.toml.
    pub servers: Vec<String>,
    /// Where the value can be found, or where the variable was named.
    pub places: Vec<String>,
    /// Whether it is set already.
    pub set: bool,
    /// A line for a shell to set it with; the value goes in the place of `...`.
    pub hint: String,
}

/// A secret in the keyring.
#[derive(Clone, Debug, Serialize)]
pub struct Kept {
    /// Its name.
    pub name: String,
    /// The servers that need it, by their names in servers.toml.
    pub servers: Vec<String>,
    /// Whether the keyring has it already.
    pub there: bool,
    #[serde(skip)]
    value: Secret,
}

impl Imported {
    /// Stores the secrets, then writes servers.toml. If one of them fails, neither is done.
    pub fn apply(&self) -> Result<Applied, Fault> {
        let mut stored = Vec::new();
        let applied = self.store(&mut stored).and_then(|()| self.change.apply());
        if applied.is_err()
            && let Some(keyring) = &self.keyring
        {
            stored.into_iter().for_each(|name| drop(keyring.remove(name)));
        }
        applied
    }

    fn store<'s>(&'s self, stored: &mut Vec<&'s str>) -> Result<(), Fault> {
        let Some(keyring) = &self.keyring else { return Ok(()) };
        for Kept { name, value, .. } in self.secrets.iter().filter(|kept| !kept.there) {
            match keyring.get(name) {
                Err(keyring::Error::NoSecret(_)) => {}
                Ok(there) if there == value.expose() => continue,
                Ok(_) => {
                    let message = format!("the keyring has just got another secret `{name}`");
                    return Err(Fault::new(message, "Nothing was written; try again.".into()));
                }
                Err(error) => return Err(unusable(&error)),
            }
            keyring.set(name, value.expose()).map_err(|error| unusable(&error))?;
            stored.push(name);
        }
        Ok(())
    }

    /// The servers of one table that servers.toml has now, by their names in the host's file:
    /// what [`install`](super::install) may take out of it.
    pub fn carried(&self, host: &Host, scope: Scope, machine: &Machine) -> Vec<String> {
        let file = host.file(scope, machine);
        let is_from = |from: &Origin| Some(&from.file) == file.as_ref() && from.table == host.table;
        let has = |row: &&Row| is_from(&row.from) && matches!(row.done, Done::AlreadyThere { .. });
        let rows = self.rows.iter().filter(has);
        rows.map(|row| row.name.clone()).collect()
    }
}

/// Reads servers and works out a servers.toml that has them. Nothing is written before
/// [`Change::apply`].
///
/// Names are made fit for servers.toml. A name that is taken by another server gets a number:
/// `github-2`; with `replace` the one that was there before the import is replaced instead. Two
/// servers are the same if they are reached in the same way; what servers.toml says besides
/// (tags, rules, times) does not matter, and stays.
///
/// Secrets become variables, or go into the keyring. One that the keyring has under the same name
/// with another value stays, and the new one gets another name.
pub fn import(
    source: Source,
    servers_toml: &Path,
    manner: Manner,
    machine: &Machine,
) -> Result<Imported, Fault> {
    if let Some(keyring) = manner.keyring {
        usable(keyring)?;
    }
    let found = find(source, machine)?;
    let before = text::bytes(servers_toml)?;
    let text = Text::new(before.as_deref(), servers_toml)?;
    let doc = ServersToml::new(text.plain(), servers_toml)?;
    let mut joining = Joining {
        doc,
        names: Names::new(machine, manner.keyring),
        machine,
        replace: manner.replace,
        mine: BTreeSet::new(),
        variables: Vec::new(),
        secrets: Vec::new(),
    };
    for reference in joining.doc.references() {
        joining.names.reserve(reference);
    }
    for reference in found.entries.iter().flat_map(|found| named(&found.entry)) {
        joining.names.reserve(reference);
    }
    let rows: Vec<_> = found.entries.iter().map(|found| joining.join(found)).collect();
    if let Some(error) = joining.names.trouble() {
        return Err(unusable(&error));
    }
    let Joining { doc, mine, mut variables, mut secrets, .. } = joining;
    secrets.sort_by(|a, b| a.name.cmp(&b.name));
    variables.sort_by(|a, b| a.name.cmp(&b.name));
    let is_new =
        |row: &Row| matches!(row.done, Done::Added { .. } | Done::AddedAs { .. } | Done::Replaced { .. });
    let added = rows.iter().any(is_new);
    let after = match added {
        true => Some(text.with(&doc.checked(text.plain(), servers_toml, &mine)?)),
        false => before.clone(),
    };
    let mut change = Change::new(servers_toml, before, after, machine);
    // What is only added to can be taken out again; what is replaced would be gone.
    change.backup = rows.iter().any(|row| matches!(row.done, Done::Replaced { .. }));
    change.secrets = found.secrets;
    let mut notes = found.notes;
    if machine.os != Os::Windows && variables.iter().any(|variable| !variable.set) {
        notes.push(
            "a host that is not started from a shell does not see what the shell exports; for such a host put the \
             variables into `env` of Nonet's entry in its file"
                .into(),
        );
    }
    Ok(Imported { rows, variables, secrets, notes, change, keyring: manner.keyring.cloned() })
}

/// A keyring that cannot be used is told before anything else is done.
fn usable(keyring: &Keyring) -> Result<(), Fault> {
    match keyring.get("NONET_IMPORT") {
        Ok(_) | Err(keyring::Error::NoSecret(_)) => Ok(()),
        Err(error) => Err(unusable(&error)),
    }
}

fn unusable(error: &keyring::Error) -> Fault {
    let remedy =
        format!("{} Nothing was changed; without `--keyring` secrets become variables.", error.remedy());
    Fault::new(error.to_string(), remedy)
}

/// What the files hold.
struct Found {
    entries: Vec<FoundEntry>,
    notes: Vec<String>,
    secrets: Vec<String>,
}

struct FoundEntry {
    name: String,
    from: Origin,
    entry: Entry,
}

fn find(source: Source, machine: &Machine) -> Result<Found, Fault> {
    let files: Vec<(PathBuf, Option<&'static Host>)> = match source {
        Source::File(file) => {
            let file = machine.current.join(file);
            let host = host_of(&file, machine);
            vec![(file, host)]
        }
        Source::Host(host) => files_of(host, machine),
        Source::All => HOSTS.iter().flat_map(|host| files_of(host, machine)).collect(),
    };
    let mut found = Found { entries: Vec::new(), notes: Vec::new(), secrets: Vec::new() };
    let mut read = Vec::new();
    for (file, host) in &files {
        if let Some(bytes) = text::bytes(file)? {
            read.push(shown(file));
            found.read(&bytes, file, *host, machine)?;
        }
    }
    if read.is_empty() {
        let looked_at: Vec<_> = files.iter().map(|(file, _)| shown(file)).collect();
        return Err(match source {
            Source::All => Fault::new(
                "no MCP host was found on this machine".into(),
                "Give a FILE, or a host's name.".into(),
            ),
            _ => Fault::new(
                format!("there is no file {}", looked_at.join(" and no file ")),
                "Name the file that holds the servers.".into(),
            ),
        });
    }
    if found.entries.is_empty() {
        found.notes.push(format!("no servers in {}", read.join(" and ")));
    }
    Ok(found)
}

fn shown(file: &Path) -> String {
    file.display().to_string()
}

/// The files of a host: the user's and the project's, which may be one in the home folder.
fn files_of(host: &'static Host, machine: &Machine) -> Vec<(PathBuf, Option<&'static Host>)> {
    let mut files: Vec<_> =
        [Scope::User, Scope::Project].into_iter().filter_map(|scope| host.file(scope, machine)).collect();
    files.dedup();
    files.into_iter().map(|file| (file, Some(host))).collect()
}

/// The host whose file this is, by its path.
fn host_of(file: &Path, machine: &Machine) -> Option<&'static Host> {
    let is_its = |host: &&Host| {
        (host.user)(machine) == file
            || host.project.is_some_and(|path| file.ends_with(path) && path.contains('/'))
    };
    HOSTS.iter().find(is_its)
}

/// The folder of the project that a file belongs to.
fn project_of(file: &Path, machine: &Machine) -> Option<PathBuf> {
    if HOSTS.iter().any(|host| (host.user)(machine) == file) {
        return None;
    }
    let path = HOSTS.iter().filter_map(|host| host.project).find(|path| file.ends_with(path))?;
    file.ancestors().nth(Path::new(path).components().count()).map(Into::into)
}

impl Found {
    fn read(
        &mut self,
        bytes: &[u8],
        file: &Path,
        host: Option<&'static Host>,
        machine: &Machine,
    ) -> Result<(), Fault> {
        let text = Text::new(Some(bytes), file)?;
        let root = read::value(text.plain(), read::format_of(text.plain()), file)?;
        let (tables, passed_over) = read::servers(&root, &machine.current);
        if passed_over > 0 {
            let note = "import again in the folder of their project";
            self.notes.push(format!(
                "{}: servers of other projects passed over: {passed_over}; {note}",
                file.display()
            ));
        }
        let folder = project_of(file, machine);
        for table in tables {
            let of_project = table.table.starts_with("projects.");
            let folder = if of_project { Some(machine.current.as_path()) } else { folder.as_deref() };
            // A table called by a name that one host alone has tells which host it was.
            let host = host.or_else(|| match table.table.as_str() {
                "context_servers" | "mcp_servers" => HOSTS.iter().find(|host| host.table == table.table),
                _ => None,
            });
            let context = Context { machine, host, folder, root: &root };
            for (name, value) in table.entries {
                self.secrets.extend(entry::secrets(value, machine));
                let entry = self.entry(name, value, &context);
                let from = Origin {
                    host: host.map(|host| host.name),
                    file: file.into(),
                    table: table.table.clone(),
                };
                self.entries.push(FoundEntry { name: name.clone(), from, entry });
            }
        }
        Ok(())
    }

    /// Nonet over HTTP has no command to be known by, only its name.
    fn entry(&self, name: &str, value: &Value, context: &Context) -> Entry {
        match entry::read(value, context) {
            Entry::Server(..) if name == super::OWN_NAME && value.get("command").is_none() => Entry::Nonet,
            entry => entry,
        }
    }
}

/// The variables that an entry names itself.
fn named(entry: &Entry) -> Vec<Reference> {
    let mut found = Vec::new();
    if let Entry::Server(server, _) = entry {
        server.texts().into_iter().for_each(|(_, parts)| references(parts, &mut found));
    }
    found
}

/// Puts servers into servers.toml, one after the other.
struct Joining<'a> {
    doc: ServersToml,
    names: Names<'a>,
    machine: &'a Machine,
    replace: bool,
    /// The names that this import has used; these are never replaced.
    mine: BTreeSet<String>,
    variables: Vec<Variable>,
    secrets: Vec<Kept>,
}

impl Joining<'_> {
    fn join(&mut self, found: &FoundEntry) -> Row {
        let (done, notes) = match &found.entry {
            Entry::Nonet => (Done::Nonet, Vec::new()),
            Entry::Left(why) => (Done::Skipped { why: why.clone() }, Vec::new()),
            Entry::Server(server, notes) => {
                let (done, more) = self.server(found, server);
                (done, notes.iter().cloned().chain(more).collect())
            }
        };
        Row { name: found.name.clone(), from: found.from.clone(), done, notes }
    }

    fn server(&mut self, found: &FoundEntry, server: &Server) -> (Done, Option<String>) {
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
        let note = twin
            .map(|twin| format!("servers.toml has the same server as `{twin}`; one of the two is enough"));
        self.doc.add(&newcomer, &mut self.names);
        self.mine.insert(name.clone());
        self.note_references(found, server, &name, None);
        let done =
            if name == found.name { Done::Added { server: name } } else { Done::AddedAs { server: name } };
        (done, note)
    }

    /// Says of which secrets nobody here knows whether they are the same.
    fn not_compared(&self, held: &[(Reference, Held)]) -> Option<String> {
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

    /// Whether some secret of a server that is there is to go into the keyring and is not in it.
    fn is_for_keyring(&self, server: &Server, held: &[(Reference, Held)]) -> bool {
        let texts = server.texts();
        let secrets = texts.iter().flat_map(|(_, parts)| parts.iter());
        let secrets = secrets.filter(|part| matches!(part, Part::Secret { .. })).count();
        let kept = held.iter().filter(|(reference, _)| matches!(reference, Reference::Keyring(_))).count();
        self.names.has_keyring() && kept < secrets
    }

    /// Records what the server needs from its environment and from the keyring. `there` is what
    /// servers.toml has for it already.
    fn note_references(
        &mut self,
        found: &FoundEntry,
        server: &Server,
        name: &str,
        there: Option<&[(Reference, Held)]>,
    ) {
        for (place, parts) in server.texts() {
            let table =
                if found.from.table.is_empty() { String::new() } else { format!("{}.", found.from.table) };
            let place = format!("{}: {table}{}.{place}", found.from.file.display(), found.name);
            for part in parts {
                match part {
                    Part::Plain(_) | Part::Keyring(_) => {}
                    Part::Variable { default: Some(_), .. } => {}
                    Part::Variable { name: variable, .. } => {
                        let what = "the host's file names it".to_string();
                        self.note_variable(variable.clone(), what, name, &place);
                    }
                    Part::Secret { .. } | Part::Asked { .. } => {
                        let what = match part {
                            Part::Asked { what, .. } => what.clone(),
                            _ => "a secret of the host's file".into(),
                        };
                        let Some(held) = held(part, &found.from.file) else { continue };
                        let reference = match there {
                            // None if servers.toml has the secret itself.
                            Some(there) => {
                                there.iter().find(|(_, other)| *other == held).map(|(there, _)| there.clone())
                            }
                            None => self.names.find(&held),
                        };
                        match (reference, held) {
                            (Some(Reference::Variable(variable)), _) => {
                                self.note_variable(variable, what, name, &place);
                            }
                            (Some(Reference::Keyring(secret)), Held::Value { value, .. }) => {
                                self.note_secret(secret, value, name);
                            }
                            _ => {}
                        }
                    }
                }
            }
        }
    }

    fn note_secret(&mut self, name: String, value: String, server: &str) {
        if !self.names.has_keyring() {
            return;
        }
        if let Some(known) = self.secrets.iter_mut().find(|known| known.name == name) {
            if !known.servers.iter().any(|known| known == server) {
                known.servers.push(server.into());
            }
            return;
        }
        let there = self.names.is_set(&Reference::Keyring(name.clone()));
        self.secrets.push(Kept { name, servers: vec![server.into()], there, value: Secret::new(value) });
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
        let set = self.names.is_set(&Reference::Variable(name.clone()));
        let (servers, places) = (vec![server.into()], vec![place.into()]);
        self.variables.push(Variable { name, what: shortened_words(&what), servers, places, set, hint });
    }
}

fn shortened_words(what: &str) -> String {
    if what.len() > 80 { shortened(what) } else { what.into() }
}

/// `name`, `name-2`, `name-3`, ..., never longer than a server's name may be.
fn numbered(name: &str, number: usize) -> String {
    if number == 1 {
        return name.into();
    }
    let suffix = format!("-{number}");
    let start: String = name.chars().take(MAX_SERVER.saturating_sub(suffix.len())).collect();
    format!("{}{suffix}", start.trim_end_matches(['-', '_']))
}
