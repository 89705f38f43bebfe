//! Reads hosts' files into entries.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{
    FileScope, HOSTS, Host, HostFault, Machine, OWN_NAME,
    entry::{self, Context, HostEntry, HostServer},
    import::ImportSource,
    imported::EntryOrigin,
    listed,
    pasted::{self, PASTED},
    read,
    rules::{self, ClientRules},
    text,
};

/// The contents of the files.
pub(super) struct FoundEntries {
    pub entries: Vec<FoundEntry>,
    pub notes: Vec<String>,
    /// Values that look like secrets.
    pub secrets: Vec<String>,
}

/// A server in a file.
pub(super) struct FoundEntry {
    pub name: String,
    pub from: EntryOrigin,
    pub entry: HostEntry,
}

/// Reads every existing file of a source.
pub(super) fn find(source: ImportSource, machine: &Machine) -> Result<FoundEntries, HostFault> {
    let files: Vec<(PathBuf, Option<&'static Host>)> = match source {
        ImportSource::File(file) => {
            let file = machine.current.join(file);
            let host = host_of(&file, machine);
            vec![(file, host)]
        }
        ImportSource::Host(host) => files_of(host, machine),
        ImportSource::All => HOSTS.iter().flat_map(|host| files_of(host, machine)).collect(),
        ImportSource::Users(hosts, _) => {
            hosts.iter().map(|host| ((host.user)(machine), Some(*host))).collect()
        }
        ImportSource::Text(..) => Vec::new(),
    };
    let mut found = FoundEntries { entries: Vec::new(), notes: Vec::new(), secrets: Vec::new() };
    if let ImportSource::Text(text, without) = source {
        found.paste(text, machine)?;
        found.entries.retain(|entry| !without.contains(&entry.name));
        return Ok(found);
    }
    let mut shown_files = Vec::new();
    for (file, host) in &files {
        if let Some(bytes) = text::bytes(file)? {
            shown_files.push(shown(file));
            found.take(&read::content(&bytes, file)?, file, *host, machine);
        }
    }
    if let ImportSource::Users(_, left) = source {
        let is_left = |entry: &FoundEntry| {
            left.iter().any(|left| Some(&*left.client) == entry.from.host && left.server == entry.name)
        };
        let is_users = |entry: &FoundEntry| {
            let table = &entry.from.table;
            HOSTS.iter().any(|host| host.table == table) && !is_left(entry)
        };
        found.entries.retain(is_users);
        found.notes.clear();
        return Ok(found);
    }
    if shown_files.is_empty() {
        let looked_at: Vec<_> = files.iter().map(|(file, _)| shown(file)).collect();
        return Err(match source {
            ImportSource::All => HostFault::new(
                "no MCP client found on this machine",
                "Name a FILE or a client, or paste a server.",
            ),
            _ => HostFault::new(
                format!("there is no file {}", looked_at.join(" and no file ")),
                "Name the file that holds the servers.",
            ),
        });
    }
    if found.entries.is_empty() {
        found.notes.push(format!("no servers in {}", shown_files.join(" and ")));
    }
    Ok(found)
}

fn shown(file: &Path) -> String {
    file.display().to_string()
}

/// Returns a host's files: the user's and the project's, which are the same if the project is the home
/// folder.
fn files_of(host: &'static Host, machine: &Machine) -> Vec<(PathBuf, Option<&'static Host>)> {
    let mut files: Vec<_> = [FileScope::User, FileScope::Project]
        .into_iter()
        .filter_map(|scope| host.file(scope, machine))
        .collect();
    files.dedup();
    files.into_iter().map(|file| (file, Some(host))).collect()
}

/// Returns the host with this file path.
fn host_of(file: &Path, machine: &Machine) -> Option<&'static Host> {
    let is_its = |host: &&Host| {
        (host.user)(machine) == file
            || host.project.is_some_and(|path| file.ends_with(path) && path.contains('/'))
    };
    HOSTS.iter().find(is_its)
}

/// Returns the project folder that a file belongs to.
fn project_of(file: &Path, machine: &Machine) -> Option<PathBuf> {
    if HOSTS.iter().any(|host| (host.user)(machine) == file) {
        return None;
    }
    let paths = HOSTS.iter().filter_map(|host| host.project).filter(|path| file.ends_with(path));
    let path = paths.max_by_key(|path| Path::new(path).components().count())?;
    file.ancestors().nth(Path::new(path).components().count()).map(Into::into)
}

impl FoundEntries {
    /// Reads a pasted text. Of servers that it offers in several ways, the first way counts.
    fn paste(&mut self, text: &str, machine: &Machine) -> Result<(), HostFault> {
        let pasted = pasted::read(text)?;
        self.notes = pasted.notes;
        let mut others = Vec::new();
        for root in &pasted.roots {
            let before = self.entries.len();
            self.take(root, Path::new(PASTED), None, machine);
            for entry in self.entries.split_off(before) {
                match self.entries.iter().any(|known| known.name == entry.name) {
                    true => others.push(entry.name),
                    false => self.entries.push(entry),
                }
            }
        }
        self.entries.iter_mut().for_each(|found| pasted::without_placeholders(&found.name, &mut found.entry));
        others.dedup();
        if !others.is_empty() {
            let names = listed(&others);
            self.notes.push(format!("the text has {names} in another way too, which was passed over"));
        }
        Ok(())
    }

    /// Takes the servers of a file's tree.
    fn take(&mut self, root: &Value, file: &Path, host: Option<&'static Host>, machine: &Machine) {
        let (tables, passed_over) = read::servers(root, &machine.current);
        if passed_over > 0 {
            let note = "run the import in their project's folder";
            self.notes.push(format!(
                "{}: skipped servers of other projects: {passed_over}; {note}",
                file.display()
            ));
        }
        let folder = project_of(file, machine);
        let is_installed = host.is_some();
        for table in tables {
            let of_project = table.table.starts_with("projects.");
            let folder = if of_project { Some(machine.current.as_path()) } else { folder.as_deref() };
            // Some table names are used by a single host.
            let host = host.or_else(|| match table.table.as_str() {
                "context_servers" | "mcp_servers" | "extensions" | "mcp" => {
                    HOSTS.iter().find(|host| host.table == table.table)
                }
                _ => None,
            });
            let context = Context { machine, host, file, folder, root };
            let rules = host.map(|host| rules::of_client(host, root, file, is_installed, machine));
            let rules = rules.unwrap_or_default();
            for (name, value) in table.entries.iter() {
                self.secrets.extend(entry::secrets(value, machine));
                let entry = self.entry(name, value, &context, &rules);
                let from = EntryOrigin {
                    host: host.map(|host| host.name),
                    file: file.into(),
                    table: table.table.clone(),
                };
                self.entries.push(FoundEntry { name: name.clone(), from, entry });
            }
        }
    }

    /// Nonet over HTTP is recognised by its name, because it has no command.
    fn entry(&self, name: &str, value: &Value, context: &Context, rules: &ClientRules) -> HostEntry {
        match entry::read(value, context) {
            HostEntry::Server(..) if name == OWN_NAME && !is_program(value) => HostEntry::Nonet,
            HostEntry::Server(server, notes) => match entry::assumption(value, context) {
                Some(why) => HostEntry::Left(why),
                None => with_rules(server, notes, name, rules),
            },
            entry => entry,
        }
    }
}

/// Adds a client's rules to one of its servers. A server stays with its client if servers.toml cannot express
/// a rule.
fn with_rules(
    mut server: Box<HostServer>,
    mut notes: Vec<String>,
    name: &str,
    rules: &ClientRules,
) -> HostEntry {
    if let Some(why) = server.unmapped.take() {
        return HostEntry::Left(why);
    }
    match rules.of_server(name) {
        Ok(mapped) => {
            server.rules.extend(mapped.rules);
            notes.extend(mapped.notes);
        }
        Err(why) => return HostEntry::Left(why),
    }
    if let Some(rule) = rules.switches_off(name) {
        notes.push(format!("its client does not start it: `{rule}`"));
        server.enabled = false;
    }
    HostEntry::Server(server, notes)
}

fn is_program(entry: &Value) -> bool {
    ["command", "cmd"].iter().any(|key| entry.get(key).is_some())
}
