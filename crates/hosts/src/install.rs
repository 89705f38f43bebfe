//! Adds Nonet to a host's file and removes it again.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::{
    FileChange, FileScope, Host, HostFault, LaunchCommand, Machine, OWN_NAME,
    backups::Backups,
    change::FollowUp,
    edit::HostTable,
    entry, listed,
    receipt::{self, Receipt, RemovedServer},
    text::{Text, behind_links, bytes},
};

/// Nonet's own entry in a host's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnEntry {
    /// Not present.
    Absent,
    /// It starts a program. `config` is the configuration file named in the entry, if any.
    Program {
        /// How the program is started.
        launch: LaunchCommand,
        /// The path, as written.
        config: Option<String>,
    },
    /// It connects to a gateway elsewhere, or was not written by Nonet.
    Elsewhere,
}

/// Returns how a host starts Nonet now.
pub fn present(host: &Host, scope: FileScope, machine: &Machine) -> Result<OwnEntry, HostFault> {
    let file = HostFile::read(host, scope, machine)?;
    let entries = file.servers(host).entries(file.text.plain())?;
    let Some(entry) = entries.get(OWN_NAME) else { return Ok(OwnEntry::Absent) };
    let items = entry.get("args").and_then(Value::as_array);
    let args: Option<Vec<String>> =
        items.into_iter().flatten().map(|arg| arg.as_str().map(Into::into)).collect();
    let command = entry.get(host.program).and_then(Value::as_str);
    let (Some(command), Some(args)) = (command, args) else { return Ok(OwnEntry::Elsewhere) };
    if args.iter().any(|arg| arg.starts_with("http://") || arg.starts_with("https://")) {
        return Ok(OwnEntry::Elsewhere);
    }
    let next = args.iter().position(|arg| arg == "--config").and_then(|at| args.get(at + 1));
    let glued = || args.iter().find_map(|arg| arg.strip_prefix("--config="));
    let by_env = || entry.pointer("/env/NONET_CONFIG").and_then(Value::as_str);
    let config = next.map(String::as_str).or_else(glued).or_else(by_env).map(Into::into);
    Ok(OwnEntry::Program { launch: LaunchCommand { command: command.into(), args }, config })
}

/// The content of a host's file.
struct HostFile {
    /// The user's path.
    file: PathBuf,
    /// The path with links resolved; the record is beside it.
    real: PathBuf,
    backups: Backups,
    bytes: Option<Vec<u8>>,
    text: Text,
}

/// Returns Nonet's entry as the text of a host's file, for copying.
pub fn entry_text(host: &Host, launch: &LaunchCommand) -> Result<String, HostFault> {
    let table = HostTable { format: host.format, table: host.table, file: Path::new(host.name) };
    let text = table.put("", OWN_NAME, &entry_of(host, launch))?;
    Ok(text.trim().to_string())
}

/// Works out a host's file with Nonet in it. `replace` lists the servers to remove, by their names in the
/// file: only ones that servers.toml has now. Nothing is written before [`FileChange::apply`], which keeps a
/// backup.
pub fn install(
    host: &Host,
    scope: FileScope,
    launch: &LaunchCommand,
    replace: &[String],
    machine: &Machine,
) -> Result<FileChange, HostFault> {
    installed(host, scope, entry_of(host, launch), launch, replace, machine)
}

/// Works out the same, with the key by which the host asks about none of Nonet's tools.
pub fn allow_always(
    host: &Host,
    scope: FileScope,
    launch: &LaunchCommand,
    replace: &[String],
    machine: &Machine,
) -> Result<FileChange, HostFault> {
    if host.always_allow().is_none() {
        let message = format!("an entry of {} has no key that allows its tools for good", host.title);
        let remedy = "Choose \"always allow\" when the client asks; docs/clients.md says where each client keeps that.";
        return Err(HostFault::new(message, remedy));
    }
    let mut entry = entry_of(host, launch);
    entry.extend(allowing(host));
    installed(host, scope, entry, launch, replace, machine)
}

/// Whether the host's entry for Nonet has that key.
pub fn is_always_allowed(host: &Host, scope: FileScope, machine: &Machine) -> Result<bool, HostFault> {
    let file = HostFile::read(host, scope, machine)?;
    let entries = file.servers(host).entries(file.text.plain())?;
    let there = entries.get(OWN_NAME);
    Ok(allowing(host).iter().all(|(key, value)| there.and_then(|there| there.get(key)) == Some(value)))
}

fn allowing(host: &Host) -> Map<String, Value> {
    serde_json::from_str(host.always_allow).expect("a constant of `known`")
}

fn installed(
    host: &Host,
    scope: FileScope,
    entry: Map<String, Value>,
    launch: &LaunchCommand,
    replace: &[String],
    machine: &Machine,
) -> Result<FileChange, HostFault> {
    if let Some(entries) = host.by_hand {
        let shown = host.file(scope, machine).unwrap_or_default();
        let message = format!("{} reads its file differently in each version", host.title);
        let remedy = format!("Add the entry by hand, {}. Nothing was changed.", entries(launch));
        return Err(HostFault::new(message, remedy).within(&shown));
    }
    let file = HostFile::read(host, scope, machine)?;
    let servers = file.servers(host);
    let before = servers.entries(file.text.plain())?;
    let allowing = allowing(host);
    let mut told = Vec::new();
    let mut text = file.text.plain().to_string();
    if file.bytes.is_none() {
        text.push_str(host.blank);
    }

    let is_there = before.get(OWN_NAME).is_some_and(|there| {
        let same = |(key, value): (&String, &Value)| there.get(key) == Some(value);
        // Other keys belong to the user.
        let is_ours = |key: &String| key == host.program || key == "args" || allowing.contains_key(key);
        entry.iter().filter(|(key, _)| is_ours(key)).all(same)
    });
    let shown = file.file.display();
    match (is_there, before.contains_key(OWN_NAME)) {
        (true, _) => told.push(format!("`{OWN_NAME}` is already in {shown}.")),
        (false, there) => {
            text = servers.put(&text, OWN_NAME, &entry)?;
            told.push(match (there, &file.bytes) {
                (true, _) => format!("`{OWN_NAME}` in {shown} is updated."),
                (false, Some(_)) => format!("`{OWN_NAME}` is added to {shown}."),
                (false, None) => format!("{shown} is created with `{OWN_NAME}` in it."),
            });
        }
    }
    let out: Vec<_> = replace
        .iter()
        .map(String::as_str)
        .filter(|name| *name != OWN_NAME && before.contains_key(*name))
        .collect();
    if !out.is_empty() {
        text = servers.take(&text, &out)?;
        told.push(format!("Removed, because servers.toml has them: {}.", listed(&out)));
    }
    let after = match is_there && out.is_empty() {
        true => file.bytes.clone(),
        false => Some(file.text.with(&text)),
    };

    let record = file.record(after.as_deref(), &out);
    let mut change = FileChange::new(&file.file, file.bytes.clone(), after, machine);
    if !change.is_nothing() {
        told.push(host.reload.into());
        change.afterwards = FollowUp::Record(record);
    }
    change.told = told;
    change.secrets = secrets(&servers, &change, machine);
    Ok(change)
}

/// Works out a host's file without Nonet. If the file is unchanged since [`install`], it becomes what it was
/// before, byte for byte. Otherwise, only Nonet's entry is removed, and the servers that `install` removed
/// are restored from the backup, unless their names are taken.
pub fn uninstall(host: &Host, scope: FileScope, machine: &Machine) -> Result<FileChange, HostFault> {
    let file = HostFile::read(host, scope, machine)?;
    let servers = file.servers(host);
    let entries = servers.entries(file.text.plain())?;
    let receipt = Receipt::of(&file.real);
    let shown = file.file.display().to_string();
    let mut told = Vec::new();

    let untouched = receipt
        .as_ref()
        .filter(|receipt| file.bytes.as_deref().is_some_and(|bytes| receipt::digest(bytes) == receipt.after));
    let (after, afterwards) = match untouched.and_then(|receipt| file.first(receipt, &servers)) {
        Some(OriginalFile::NoFile) => {
            told.push(format!("{shown} was created for `{OWN_NAME}` and is removed."));
            (None, FollowUp::Forget(None))
        }
        Some(OriginalFile::Was(backup, bytes)) => {
            told.push(format!("{shown} is restored byte for byte to its state before `{OWN_NAME}`."));
            (Some(bytes), FollowUp::Forget(Some(backup)))
        }
        None if !entries.contains_key(OWN_NAME) && receipt.is_none() => {
            told.push(format!("`{OWN_NAME}` is not in {shown}."));
            (file.bytes.clone(), FollowUp::Nothing)
        }
        None => {
            let mut text = servers.take(file.text.plain(), &[OWN_NAME])?;
            if entries.contains_key(OWN_NAME) {
                told.push(format!(
                    "`{OWN_NAME}` is removed from {shown}; your other changes to the file stay."
                ));
            }
            for RemovedServer { name, backup } in receipt.map(|receipt| receipt.removed).unwrap_or_default() {
                match file.kept(&backup, &name, &servers) {
                    _ if entries.contains_key(&name) => {}
                    Some(entry) => {
                        text = servers.put(&text, &name, &entry)?;
                        told.push(format!("`{name}` is restored from {backup}."));
                    }
                    None => told.push(format!("`{name}` cannot be restored: {backup} does not contain it.")),
                }
            }
            if told.is_empty() {
                told.push(format!("`{OWN_NAME}` is not in {shown}."));
            }
            let after =
                if text == file.text.plain() { file.bytes.clone() } else { Some(file.text.with(&text)) };
            (after, FollowUp::Forget(None))
        }
    };
    let mut change = FileChange::new(&file.file, file.bytes.clone(), after, machine);
    if !change.is_nothing() {
        told.push(host.reload.into());
    }
    // Restoring a backup needs no further backup.
    change.backup = !matches!(afterwards, FollowUp::Forget(Some(_))) && change.after.is_some();
    change.afterwards = afterwards;
    change.told = told;
    change.secrets = secrets(&servers, &change, machine);
    Ok(change)
}

/// The state of a file before Nonet.
enum OriginalFile {
    NoFile,
    Was(PathBuf, Vec<u8>),
}

impl HostFile {
    fn read(host: &Host, scope: FileScope, machine: &Machine) -> Result<Self, HostFault> {
        let file = host.file(scope, machine).ok_or_else(|| {
            let message = format!("{} does not support servers of a project", host.title);
            HostFault::new(message, "Leave out the project: this client has only a user file.")
        })?;
        if host.by_hand.is_some() {
            let message = format!("{} is set up by hand", host.title);
            let remedy =
                format!("`nonet install {0}` shows the entry, `nonet import {0}` reads the file.", host.name);
            return Err(HostFault::new(message, remedy).within(&file));
        }
        let real = behind_links(&file)?;
        let bytes = bytes(&real)?;
        let text = Text::new(bytes.as_deref(), &file)?;
        Ok(Self { file, real, backups: Backups::of(machine), bytes, text })
    }

    fn servers(&self, host: &Host) -> HostTable<'_> {
        HostTable { format: host.format, table: host.table, file: &self.file }
    }

    /// Returns the record of an install that removed `out`. If the file is unchanged since an earlier
    /// install, the state before that one counts.
    fn record(&self, after: Option<&[u8]>, out: &[&str]) -> Receipt {
        let earlier = Receipt::of(&self.real);
        let chained = earlier.filter(|earlier| {
            self.bytes.as_deref().is_some_and(|bytes| receipt::digest(bytes) == earlier.after)
        });
        let new_backup = chained.is_none() && self.bytes.is_some();
        let Receipt { before, mut removed, .. } = chained.unwrap_or_default();
        removed.retain(|removed| !out.contains(&removed.name.as_str()));
        removed.extend(out.iter().map(|name| RemovedServer { name: (*name).into(), backup: String::new() }));
        Receipt { before, new_backup, after: after.map(receipt::digest).unwrap_or_default(), removed }
    }

    /// Returns the state of the file before Nonet, if the record tells. A backup that contains Nonet is from
    /// a later state.
    fn first(&self, receipt: &Receipt, servers: &HostTable) -> Option<OriginalFile> {
        let Some(name) = &receipt.before else { return Some(OriginalFile::NoFile) };
        let backup = self.backups.find(&self.real, name)?;
        let bytes = bytes(&backup).ok()??;
        let text = Text::new(Some(&bytes), &backup).ok()?;
        let entries = servers.entries(text.plain()).ok()?;
        (!entries.contains_key(OWN_NAME)).then_some(OriginalFile::Was(backup, bytes))
    }

    /// Returns a server from a backup.
    fn kept(&self, backup: &str, name: &str, servers: &HostTable) -> Option<Map<String, Value>> {
        let backup = self.backups.find(&self.real, backup)?;
        let bytes = bytes(&backup).ok()??;
        let text = Text::new(Some(&bytes), Path::new(&backup)).ok()?;
        servers.entries(text.plain()).ok()?.get(name)?.as_object().cloned()
    }
}

/// Returns the secrets of the servers before and after the change.
fn secrets(servers: &HostTable, change: &FileChange, machine: &Machine) -> Vec<String> {
    let entries = [&change.before, &change.after].into_iter().filter_map(|bytes| {
        let text = Text::new(bytes.as_deref(), &change.file).ok()?;
        servers.entries(text.plain()).ok()
    });
    entries.flatten().flat_map(|(_, entry)| entry::secrets(&entry, machine)).collect()
}

/// Returns Nonet's entry in the host's format.
fn entry_of(host: &Host, launch: &LaunchCommand) -> Map<String, Value> {
    let extra: Map<String, Value> = serde_json::from_str(host.extra).expect("a constant of `known`");
    let own = [
        (host.program.to_string(), Value::from(launch.command.as_str())),
        ("args".into(), launch.args.clone().into()),
    ];
    extra.into_iter().chain(own).collect()
}
