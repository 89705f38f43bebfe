//! Edits of single servers in servers.toml: add, remove, enable, disable. Everything else in the file stays
//! byte for byte. Each edit is verified by reading the result, and nothing is written before it is applied.

mod table;

use std::{collections::BTreeSet, path::Path};

use nonet_config::{ConfigFault, written_key};
use nonet_text::name::ServerName;
use serde_json::{Map, Value};

use super::{
    FileChange, HostFault, ImportOptions, ImportPlan, Machine, SecretStore,
    entry::{self, HostEntry},
    find::FoundEntry,
    import::secrets_beside,
    imported::EntryOrigin,
    join::ImportMerge,
    names::Reference,
    servers::{ServersToml, TABLE, every_reference},
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

/// Works out a servers.toml with one more server. `entry` has the keys of servers.toml, with `${VAR}` as a
/// variable and `$${` for a plain `${`. Secrets are extracted as in [`import`](super::import()), according to
/// `options`. A missing file is created.
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
    let doc = ServersToml::read(servers_toml)?;
    if doc.has(name) || doc.is_category(name) {
        return Err(taken(&doc, name).within(servers_toml));
    }
    let server = entry::of_servers_toml(entry);
    if let Some(command) = server.command()
        && entry::is_nonet(command)
    {
        let remedy = "Name the program or the address of another server.";
        return Err(HostFault::new("this is Nonet itself", remedy));
    }
    let secrets: Vec<String> = server.secrets().cloned().collect();
    let from = EntryOrigin { host: None, file: servers_toml.into(), table: String::new() };
    let found =
        FoundEntry { name: name.into(), from, entry: HostEntry::Server(Box::new(server), Vec::new()) };
    let mut joining = ImportMerge::new(doc, std::slice::from_ref(&found), options, machine)?;
    let rows = vec![joining.join(&found)];
    if let Some(fault) = joining.doc.new_faults(machine, &joining.names.file).into_iter().next() {
        return Err(fault.into());
    }
    let mut change = joining.doc.change(machine)?;
    change.backup = false;
    change.secrets.extend(secrets);
    change.told = vec![format!("[{TABLE}.{name}] is added to {}.", servers_toml.display())];
    joining.plan(rows, change)
}

/// Works out a servers.toml without a server: without its table, its sub-tables and the comments directly
/// above them. Other mentions of the server stay, and are reported.
pub fn remove_server(servers_toml: &Path, name: &str, machine: &Machine) -> Result<ServerRemoval, HostFault> {
    let mut toml = ServersToml::read(servers_toml)?;
    toml.known(name)?;
    let before = toml.value();
    toml.remove(name);
    let after = toml.value();
    let secrets = secrets_beside(servers_toml)?;
    let faults = toml.new_faults(machine, &secrets);
    if let Some(fatal) = faults.iter().find(|fault| fault.entry.is_none()) {
        return Err(fatal.clone().into());
    }
    let left_out: BTreeSet<String> = faults.into_iter().filter_map(|fault| fault.entry).collect();
    let mut named_in = Vec::new();
    mentions(&after, name, String::new(), &mut named_in);
    let mut change = toml.change(machine)?;
    change.told = vec![format!("[{TABLE}.{name}] is removed from {}.", servers_toml.display())];
    let still_named = every_reference(&after);
    let gone: BTreeSet<Reference> =
        every_reference(&before).into_iter().filter(|reference| !still_named.contains(reference)).collect();
    let unused = gone.into_iter().filter_map(|reference| match reference {
        Reference::Variable(name) => {
            secrets.get(&name)?;
            Some(UnusedSecret { name, store: SecretStore::File })
        }
        Reference::Keyring(name) => Some(UnusedSecret { name, store: SecretStore::Keyring }),
    });
    let unused = unused.collect();
    Ok(ServerRemoval { change, named_in, left_out: left_out.into_iter().collect(), unused })
}

/// Works out a servers.toml with a server enabled or disabled. The change is empty if the server already is.
pub fn enable_server(
    servers_toml: &Path,
    name: &str,
    enabled: bool,
    machine: &Machine,
) -> Result<FileChange, HostFault> {
    let mut toml = ServersToml::read(servers_toml)?;
    let server = toml.known(name)?;
    let now = server.get("enabled").and_then(Value::as_bool) != Some(false);
    let word = if enabled { "enabled" } else { "disabled" };
    if now == enabled {
        let mut change = toml.change(machine)?;
        change.told = vec![format!("`{name}` is already {word} in {}.", servers_toml.display())];
        return Ok(change);
    }
    toml.enable(name, enabled);
    if let Some(fault) = toml.new_faults(machine, &secrets_beside(servers_toml)?).into_iter().next() {
        return Err(fault.into());
    }
    let mut change = toml.change(machine)?;
    change.backup = false;
    change.told = vec![format!("`{name}` is {word} in {}.", servers_toml.display())];
    Ok(change)
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

/// Finds the keys whose value or name is the server, one of its tools, or a pattern for them. Matches only
/// whole words.
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
impl From<ConfigFault> for HostFault {
    fn from(fault: ConfigFault) -> Self {
        let ConfigFault { file, key, message, remedy, .. } = fault;
        let key = if key.is_empty() { key } else { format!("{key}: ") };
        HostFault::new(format!("{key}{message}"), remedy).within(&file)
    }
}

#[cfg(test)]
mod tests;
