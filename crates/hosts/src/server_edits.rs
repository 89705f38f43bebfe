//! Edits of single servers in servers.toml: add, remove, enable, disable. Everything else in the file stays byte for byte.
//! Each edit is verified by reading the result, and nothing is written before it is applied.

mod table;

use std::{collections::BTreeSet, path::Path};

use nonet_config::{self as config, ValueSources, keyring, secrets_file::SecretsFile, written_key};
use nonet_text::name::{self, ServerName};
use serde_json::{Map, Value};

use super::{
    FileChange, FileFormat, HostFault, ImportOptions, ImportPlan, Machine, SecretStore,
    edit::HostTable,
    entry::{self, HostEntry, HostServer},
    find::FoundEntry,
    import::{assembled, secrets_beside, unusable, usable},
    imported::EntryOrigin,
    join::ImportMerge,
    listed, literals,
    names::Reference,
    parts::TextPart,
    read,
    server_text::{self, TABLE},
    servers::{ServersToml, every_reference},
    text::{self, Text},
};

pub use table::{
    EditError, TableEdit, TableFault, TableText, edit_table, give_token, pass_variable, server_table,
    set_tool_policy,
};

/// A servers.toml without a removed server, and the server's leftovers.
pub struct ServerRemoval {
    /// The new servers.toml.
    pub change: FileChange,
    /// The keys that still name the server, such as `profiles.work.categories`.
    pub named_in: Vec<String>,
    /// The entries left out as long as they name the server, such as `profiles.work`.
    pub left_out: Vec<String>,
    /// Secrets that no server names any more, in `secrets.env` and the keyring.
    pub unused: Vec<UnusedSecret>,
}

/// A secret that servers.toml no longer names.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct UnusedSecret {
    /// Its name.
    pub name: String,
    /// Where it is.
    #[serde(rename = "in")]
    pub store: SecretStore,
}

/// Works out a servers.toml with one more server. `entry` has the keys of servers.toml, with `${VAR}` as a variable and
/// `$${` for a plain `${`. Secrets are extracted as in [`import`](super::import()), according to `options`. A missing file
/// is created.
pub fn add_server(
    servers_toml: &Path,
    name: &str,
    entry: &Map<String, Value>,
    options: ImportOptions,
    machine: &Machine,
) -> Result<ImportPlan, HostFault> {
    if let Err(bad) = ServerName::new(name) {
        let remedy = format!("Use `{}`, or another name.", bad.nearest);
        return Err(HostFault::new(
            format!("`{}` is not a valid server name: {}", super::shortened(name), bad.why),
            remedy,
        ));
    }
    if let Some(keyring) = options.keyring {
        usable(keyring).map_err(|error| unusable(&error))?;
    }
    let toml = ServersFile::read(servers_toml)?;
    let doc = ServersToml::new(toml.text.plain(), servers_toml)?;
    if doc.has(name) || doc.is_category(name) {
        return Err(taken(&doc, name).within(servers_toml));
    }
    let server = entry::of_servers_toml(entry);
    if let Some(command) = server.command()
        && entry::is_nonet(command)
    {
        let remedy = "Name the program or the address of another server.";
        return Err(HostFault::new("this is Nonet itself".into(), remedy.into()));
    }
    let secrets = secrets_in(&server);
    let from = EntryOrigin { host: None, file: servers_toml.into(), table: String::new() };
    let found =
        [FoundEntry { name: name.into(), from, entry: HostEntry::Server(Box::new(server), Vec::new()) }];
    let file = secrets_beside(servers_toml)?;
    let mut joining = ImportMerge::new(doc, &found, options, &file, machine);
    let rows: Vec<_> = found.iter().map(|found| joining.join(found)).collect();
    if let Some(error) = joining.names.trouble() {
        return Err(unusable(&error));
    }
    let unsafe_edit = || toml.unsafe_edit(name);
    let (block, member) = joining.doc.block(name).ok_or_else(unsafe_edit)?;
    let wanted = joining.doc.value(name);
    let before = toml.or_header();
    let after = server_text::with(&before, name, &block, &member).ok_or_else(unsafe_edit)?;
    let after = toml.verified(after, name, wanted.as_ref())?;
    if let Some(fault) = toml.new_faults(&after, machine, &file).into_iter().next() {
        return Err(fault.into());
    }
    let mut change = toml.change(&after, machine);
    change.backup = false;
    change.secrets.extend(secrets);
    change.told = vec![format!("[{TABLE}.{name}] is added to {}.", servers_toml.display())];
    Ok(assembled(joining.variables, joining.secrets, rows, Vec::new(), change, options, file.clone()))
}

/// Works out a servers.toml without a server: without its table, its sub-tables and the comments directly above them. Other
/// mentions of the server stay, and are reported.
pub fn remove_server(servers_toml: &Path, name: &str, machine: &Machine) -> Result<ServerRemoval, HostFault> {
    let toml = ServersFile::read(servers_toml)?;
    toml.known(name)?;
    let after = server_text::without(toml.text.written(), name).ok_or_else(|| toml.unsafe_edit(name))?;
    let after = toml.verified(after, name, None)?;
    let secrets = secrets_beside(servers_toml)?;
    let faults = toml.new_faults(&after, machine, &secrets);
    if let Some(fatal) = faults.iter().find(|fault| fault.entry.is_none()) {
        return Err(fatal.clone().into());
    }
    let left_out: BTreeSet<String> = faults.into_iter().filter_map(|fault| fault.entry).collect();
    let mut named_in = Vec::new();
    mentions(&toml.value(&after)?, name, String::new(), &mut named_in);
    let mut change = toml.change(&after, machine);
    change.told = vec![format!("[{TABLE}.{name}] is removed from {}.", servers_toml.display())];
    let unused = toml.unused(&after, &secrets)?;
    Ok(ServerRemoval { change, named_in, left_out: left_out.into_iter().collect(), unused })
}

/// Works out a servers.toml with a server enabled or disabled. The change is empty if the server already is.
pub fn enable_server(
    servers_toml: &Path,
    name: &str,
    enabled: bool,
    machine: &Machine,
) -> Result<FileChange, HostFault> {
    let toml = ServersFile::read(servers_toml)?;
    let mut wanted = toml.known(name)?;
    let now = wanted.get("enabled").and_then(Value::as_bool) != Some(false);
    let word = if enabled { "enabled" } else { "disabled" };
    if now == enabled {
        let mut change = toml.change(toml.text.written(), machine);
        change.told = vec![format!("`{name}` is already {word} in {}.", servers_toml.display())];
        return Ok(change);
    }
    if let Some(wanted) = wanted.as_object_mut() {
        wanted.insert("enabled".into(), enabled.into());
    }
    let after =
        server_text::switched(toml.text.written(), name, enabled).ok_or_else(|| toml.unsafe_edit(name))?;
    let after = toml.verified(after, name, Some(&wanted))?;
    if let Some(fault) = toml.new_faults(&after, machine, &secrets_beside(servers_toml)?).into_iter().next() {
        return Err(fault.into());
    }
    let mut change = toml.change(&after, machine);
    change.backup = false;
    change.told = vec![format!("`{name}` is {word} in {}.", servers_toml.display())];
    Ok(change)
}

/// The content of a servers.toml.
pub(super) struct ServersFile<'a> {
    file: &'a Path,
    bytes: Option<Vec<u8>>,
    pub text: Text,
}

impl<'a> ServersFile<'a> {
    pub(crate) fn read(file: &'a Path) -> Result<Self, HostFault> {
        let bytes = text::bytes(file)?;
        let text = Text::new(bytes.as_deref(), file)?;
        read::toml(text.written(), file)?;
        Ok(Self { file, bytes, text })
    }

    fn table(&self) -> HostTable<'a> {
        HostTable { format: FileFormat::Toml, table: TABLE, file: self.file }
    }

    fn value(&self, text: &str) -> Result<Value, HostFault> {
        read::value(text, FileFormat::Toml, self.file)
    }

    /// Returns the text to add to: a new file starts with a short header.
    fn or_header(&self) -> String {
        let text = self.text.written();
        if text.trim().is_empty() { super::servers::HEADER.into() } else { text.into() }
    }

    /// Returns the server of that name.
    fn known(&self, name: &str) -> Result<Value, HostFault> {
        let entries = self.table().entries(self.text.plain())?;
        if let Some(server) = entries.get(name) {
            return Ok(server.clone());
        }
        let near = name::nearest(name, entries.keys().map(String::as_str), 3);
        let remedy = match (near.is_empty(), entries.is_empty()) {
            (false, _) => format!("Did you mean {}?", listed(&near)),
            (true, true) => "It has no servers; `nonet add` adds one.".into(),
            (true, false) => {
                let names: Vec<&String> = entries.keys().take(20).collect();
                format!("Its servers: {}.", listed(&names))
            }
        };
        Err(HostFault::new(format!("there is no server `{}`", super::shortened(name)), remedy)
            .within(self.file))
    }

    /// Returns the edited text, if only the server has changed, and as wanted.
    fn verified(&self, after: String, name: &str, wanted: Option<&Value>) -> Result<String, HostFault> {
        let table = self.table();
        let same = table.keeps_the_rest(self.text.written(), &after, |known| known == name)?;
        let entries = table.entries(&after)?;
        if same && entries.get(name) == wanted { Ok(after) } else { Err(self.unsafe_edit(name)) }
    }

    fn unsafe_edit(&self, name: &str) -> HostFault {
        let message = "the file cannot be edited without changing more than the server";
        let remedy = format!("Edit `{TABLE}.{}` by hand; nothing was changed.", written_key(name));
        HostFault::new(message.into(), remedy).within(self.file)
    }

    /// Returns the faults of the edited text that the old text did not have, wherever values come from.
    fn new_faults(&self, after: &str, machine: &Machine, secrets: &SecretsFile) -> Vec<config::ConfigFault> {
        let own =
            |name: &str| machine.var(name).map(Into::into).or_else(|| secrets.get(name).map(Into::into));
        let none = |name: &str| Err(keyring::Error::NoSecret(name.into()));
        // A digit is valid nearly everywhere.
        let some = |_: &str| Some("1".to_string());
        let faults = |text: &str, sources: ValueSources| match config::parse(text, self.file, sources) {
            Ok(loaded) => loaded.faults,
            Err(unusable) => unusable.faults().to_vec(),
        };
        let same =
            |a: &config::ConfigFault, b: &config::ConfigFault| (&a.key, &a.message) == (&b.key, &b.message);
        // A fault with both real and made-up values is the text's own, not caused by an unset variable.
        let own_faults = |text: &str| {
            let others = faults(text, ValueSources { env: &some, keyring: &|_| Ok("1".into()) });
            let mut found = faults(text, ValueSources { env: &own, keyring: &none });
            found.retain(|fault| others.iter().any(|other| same(fault, other)));
            found
        };
        let before = own_faults(self.text.written());
        let mut found = own_faults(after);
        found.retain(|fault| !before.iter().any(|known| same(fault, known)));
        found
    }

    pub(crate) fn change(&self, after: &str, machine: &Machine) -> FileChange {
        let is_same = after == self.text.written();
        let bytes = if is_same { self.bytes.clone() } else { Some(self.text.spliced(after)) };
        let mut change = FileChange::new(self.file, self.bytes.clone(), bytes, machine);
        change.secrets = [self.text.plain(), after].into_iter().flat_map(literals::secrets).collect();
        change
    }

    /// Returns the secrets that only the removed server named.
    fn unused(&self, after: &str, secrets: &SecretsFile) -> Result<Vec<UnusedSecret>, HostFault> {
        let after = every_reference(&self.value(after)?);
        let before: BTreeSet<Reference> =
            every_reference(&self.value(self.text.written())?).into_iter().collect();
        let gone = before.into_iter().filter(|reference| !after.contains(reference));
        let unused = gone.filter_map(|reference| match reference {
            Reference::Variable(name) => {
                secrets.get(&name)?;
                Some(UnusedSecret { name, store: SecretStore::File })
            }
            Reference::Keyring(name) => Some(UnusedSecret { name, store: SecretStore::Keyring }),
        });
        Ok(unused.collect())
    }
}

fn taken(doc: &ServersToml, name: &str) -> HostFault {
    let free = (2..).map(|number| format!("{name}-{number}"));
    let free = free.filter(|name| ServerName::new(name).is_ok());
    let other = free.take(100).find(|name| !doc.has(name) && !doc.is_category(name));
    let other = other.map(|other| format!(", such as `{other}`")).unwrap_or_default();
    if !doc.has(name) {
        let message = format!("`{name}` is the name of a category");
        return HostFault::new(message, format!("Choose another name{other}."));
    }
    let off = if doc.is_disabled(name) {
        format!("It is disabled; `nonet enable {name}` enables it. ")
    } else {
        String::new()
    };
    let remedy =
        format!("{off}Choose another name{other}, or remove the server first: `nonet remove {name}`.");
    HostFault::new(format!("there is already a server `{name}`"), remedy)
}

/// Returns the secrets in a server's texts.
fn secrets_in(server: &HostServer) -> Vec<String> {
    let parts = server.texts().into_iter().flat_map(|(_, parts)| parts.clone());
    let secret = |part| match part {
        TextPart::Secret { value, .. } => Some(value),
        _ => None,
    };
    parts.filter_map(secret).collect()
}

/// Finds the keys whose value or name is the server, one of its tools, or a pattern for them. Matches only whole words.
fn mentions(value: &Value, server: &str, path: String, found: &mut Vec<String>) {
    let is_tool = |text: &str| {
        let rest = text.strip_prefix(server);
        rest.is_some_and(|rest| rest.starts_with('.') || rest.starts_with("__"))
            && !text.contains(char::is_whitespace)
    };
    let last = path.rsplit('.').next().unwrap_or_default();
    let is_it = |text: &str| is_tool(text) || text == server && ["servers", "categories"].contains(&last);
    match value {
        Value::String(text) if is_it(text) && found.last() != Some(&path) => found.push(path),
        Value::Array(items) => items.iter().for_each(|item| mentions(item, server, path.clone(), found)),
        Value::Object(members) => {
            for (key, member) in members {
                let dot = if path.is_empty() { "" } else { "." };
                let inner = format!("{path}{dot}{}", written_key(key));
                if inner == TABLE {
                    continue;
                }
                if is_tool(key) {
                    found.push(inner);
                } else {
                    mentions(member, server, inner, found);
                }
            }
        }
        _ => {}
    }
}

/// Drops the line number: it is about an unwritten text.
impl From<config::ConfigFault> for HostFault {
    fn from(fault: config::ConfigFault) -> Self {
        let config::ConfigFault { file, key, message, remedy, .. } = fault;
        let key = if key.is_empty() { key } else { format!("{key}: ") };
        HostFault::new(format!("{key}{message}"), remedy).within(&file)
    }
}

#[cfg(test)]
mod tests;
