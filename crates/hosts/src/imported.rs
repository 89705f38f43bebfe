//! The result of an import, before and after it is applied.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    path::{Path, PathBuf},
};

use nonet_config::{
    self as config, LoadError, LoadedConfig, Secret, ValueSources,
    keyring::{self, Keyring},
    secrets_file::SecretsFile,
};
use serde::Serialize;

use super::{
    ChangeResult, FileChange, FileScope, Host, HostFault, Machine,
    import::{secrets_beside, unusable},
    rules::MappedRule,
};

/// The servers of an import, and the new servers.toml.
pub struct ImportPlan {
    /// One row per server found, in the order of the files.
    pub rows: Vec<ImportRow>,
    /// The variables that the servers need, by name.
    pub variables: Vec<Variable>,
    /// The secrets that servers.toml takes from the keyring or from `secrets.env`, by name.
    pub secrets: Vec<KeptSecret>,
    /// Notes that concern no single server.
    pub notes: Vec<String>,
    /// The new servers.toml.
    pub change: FileChange,
    pub(super) keyring: Option<Keyring>,
    pub(super) file: SecretsFile,
}

impl AsMut<Self> for ImportPlan {
    fn as_mut(&mut self) -> &mut Self {
        self
    }
}

/// An edit that stores no secrets.
impl From<FileChange> for ImportPlan {
    fn from(change: FileChange) -> Self {
        let (rows, variables, secrets, notes) = Default::default();
        Self { rows, variables, secrets, notes, change, keyring: None, file: SecretsFile::default() }
    }
}

/// The result for one server.
#[derive(Clone, Debug, Serialize)]
pub struct ImportRow {
    /// The server's name in the host's file.
    pub name: String,
    /// The place of the entry.
    pub from: EntryOrigin,
    /// The outcome.
    #[serde(flatten)]
    pub done: ImportOutcome,
    /// Omitted or changed settings, and remarks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The client's own rules for its tools, and what servers.toml has for them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<MappedRule>,
    /// Why the server must stay in its file although servers.toml has it: Nonet would not run it, or not as
    /// the host does.
    #[serde(skip)]
    pub stays: Option<String>,
    /// Whether this import adds a rule for the server that servers.toml does not have yet.
    #[serde(skip)]
    pub(super) is_pending: bool,
    /// What the rules do, in words that can be compared.
    #[serde(skip)]
    pub(super) strictness: BTreeSet<String>,
}

impl ImportRow {
    pub(super) fn new(name: &str, from: &EntryOrigin, done: ImportOutcome) -> Self {
        Self {
            name: name.into(),
            from: from.clone(),
            done,
            notes: Vec::new(),
            rules: Vec::new(),
            stays: None,
            is_pending: false,
            strictness: BTreeSet::new(),
        }
    }

    /// Whether servers.toml has the server, with its client's rules.
    fn is_there(&self) -> bool {
        matches!(self.done, ImportOutcome::AlreadyThere { .. }) && !self.is_pending
    }

    fn why_it_stays(&self) -> Option<String> {
        match &self.done {
            ImportOutcome::Skipped { why } => Some(why.clone()),
            _ => self.stays.clone(),
        }
    }
}

/// Where a server's entry is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EntryOrigin {
    /// The host, if known.
    #[serde(rename = "client", skip_serializing_if = "Option::is_none")]
    pub host: Option<&'static str>,
    /// The file.
    pub file: PathBuf,
    /// The table, such as `mcpServers`.
    pub table: String,
}

/// The outcome for a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "done", rename_all = "snake_case")]
pub enum ImportOutcome {
    /// It was added under its own name.
    Added {
        /// Its name in servers.toml.
        server: String,
    },
    /// It was added under another name: its own is invalid or taken.
    AddedAs {
        /// Its name in servers.toml.
        server: String,
    },
    /// servers.toml already has it.
    AlreadyThere {
        /// Its name in servers.toml.
        server: String,
    },
    /// It replaced another server of its name.
    Replaced {
        /// Its name in servers.toml.
        server: String,
    },
    /// It is Nonet itself.
    Nonet,
    /// It was left out.
    Skipped {
        /// Why.
        why: String,
    },
}

impl ImportOutcome {
    /// Whether the import adds the server to servers.toml.
    pub fn is_new(&self) -> bool {
        matches!(self, Self::Added { .. } | Self::AddedAs { .. } | Self::Replaced { .. })
    }

    /// The server's name in servers.toml, if it is there.
    pub fn server(&self) -> Option<&str> {
        match self {
            Self::Added { server }
            | Self::AddedAs { server }
            | Self::AlreadyThere { server }
            | Self::Replaced { server } => Some(server),
            Self::Nonet | Self::Skipped { .. } => None,
        }
    }
}

impl fmt::Display for ImportOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Added { .. } => f.write_str("added"),
            Self::AddedAs { server } => write!(f, "added as {server}"),
            Self::AlreadyThere { server } => write!(f, "already there as {server}"),
            Self::Replaced { server } => write!(f, "replaced {server}"),
            Self::Nonet => f.write_str("unchanged: this is Nonet itself"),
            Self::Skipped { why } => write!(f, "skipped: {why}"),
        }
    }
}

/// A variable that servers need, without its value.
#[derive(Clone, Debug, Serialize)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Its purpose.
    pub what: String,
    /// The servers that need it, by their names in servers.toml.
    pub servers: Vec<String>,
    /// Where to find the value, or where the variable was named.
    pub places: Vec<String>,
    /// Whether it is set.
    pub set: bool,
    /// Whether `secrets.env` sets it, rather than only the current environment.
    #[serde(skip)]
    pub kept: bool,
    /// A shell command that sets it; `...` stands for the value.
    pub hint: String,
}

/// Where a secret is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SecretStore {
    /// In the keyring of the system.
    Keyring,
    /// In `secrets.env` beside servers.toml.
    File,
}

/// A secret that is kept for servers.
#[derive(Clone, Debug, Serialize)]
pub struct KeptSecret {
    /// Its name.
    pub name: String,
    /// The servers that need it, by their names in servers.toml.
    pub servers: Vec<String>,
    /// Where it is kept.
    #[serde(rename = "in")]
    pub store: SecretStore,
    /// Whether it is stored already.
    pub there: bool,
    #[serde(skip)]
    pub(super) value: Secret,
}

/// Stores the value of a name that servers.toml mentions. Returns the place, for the user. A keyring may ask
/// its user, who has just typed the value.
pub fn keep_secret(
    servers_toml: &Path,
    name: &str,
    value: &str,
    store: SecretStore,
) -> Result<String, HostFault> {
    match store {
        SecretStore::Keyring => {
            let stored = Keyring::system(keyring::ATTENDED).set(name, value);
            stored.map_err(|error| HostFault::new(error.to_string(), error.remedy()))?;
            Ok("the keyring".into())
        }
        SecretStore::File => {
            let mut file = secrets_beside(servers_toml)?;
            file.set(name, value);
            file.write().map_err(|source| unwritten(&file, source))?;
            Ok(file.path().display().to_string())
        }
    }
}

fn unwritten(file: &SecretsFile, source: io::Error) -> HostFault {
    let remedy = "Check the folder and the free disk space; nothing was changed.";
    HostFault::new(format!("cannot write the secrets: {source}"), remedy).within(file.path()).because(source)
}

/// A server of a host's file that servers.toml has too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownServer {
    /// Its name in the host's file.
    pub name: String,
    /// Its name in servers.toml.
    pub server: String,
}

impl ImportPlan {
    /// Stores the secrets, then writes servers.toml. If either fails, neither takes effect.
    pub fn apply(&self) -> Result<ChangeResult, HostFault> {
        let mut stored = Vec::new();
        let kept = self.store(&mut stored).and_then(|()| self.keep());
        let applied = match &kept {
            Ok(_) => self.change.apply(),
            Err(_) => Ok(ChangeResult { file: None, backup: None }),
        };
        if (kept.is_err() || applied.is_err())
            && let Some(keyring) = &self.keyring
        {
            stored.into_iter().for_each(|name| drop(keyring.remove(name)));
        }
        if applied.is_err() && kept.as_ref().is_ok_and(|kept| *kept) {
            drop(self.file.restore());
        }
        kept.and(applied)
    }

    /// Reads the new servers.toml as it will be after [`ImportPlan::apply`].
    pub fn preview(&self, sources: ValueSources) -> Result<LoadedConfig, LoadError> {
        let mut file = self.file.clone();
        let mut stored = BTreeMap::new();
        for KeptSecret { name, value, store, .. } in self.secrets.iter().filter(|kept| !kept.there) {
            match store {
                SecretStore::File => file.set(name, value.expose()),
                SecretStore::Keyring => drop(stored.insert(name.as_str(), value.expose())),
            }
        }
        let keyring = |name: &str| match stored.get(name) {
            Some(value) => Ok((*value).to_string()),
            None => (sources.keyring)(name),
        };
        let text = String::from_utf8_lossy(self.change.after.as_deref().unwrap_or_default());
        config::parse_with(&text, &self.change.file, ValueSources { keyring: &keyring, ..sources }, &file)
    }

    /// Whether nothing would be written or stored.
    pub fn is_nothing(&self) -> bool {
        self.change.is_nothing() && self.secrets.iter().all(|kept| kept.there)
    }

    /// Returns the path of the `secrets.env` beside servers.toml.
    pub fn secrets_file(&self) -> &Path {
        self.file.path()
    }

    /// Whether `secrets.env` existed before.
    pub fn had_secrets_file(&self) -> bool {
        self.file.was_there()
    }

    /// Whether any server has a secret in its file.
    pub fn has_secrets(&self) -> bool {
        !self.change.secrets.is_empty()
    }

    /// Whether any secret is stored.
    pub fn stores_secrets(&self) -> bool {
        !self.secrets.is_empty()
    }

    /// Adds values that the user has typed for variables that are not set. They go into `secrets.env`.
    pub fn add_values(&mut self, values: impl IntoIterator<Item = (String, String)>) {
        for (name, value) in values {
            let unset = |variable: &&mut Variable| variable.name == name && !variable.set;
            let Some(variable) = self.variables.iter_mut().find(unset) else { continue };
            variable.set = true;
            let (servers, store) = (variable.servers.clone(), SecretStore::File);
            let value = Secret::new(value);
            self.secrets.push(KeptSecret { name, servers, store, there: false, value });
        }
    }

    /// Requests a backup of servers.toml, even if servers are only added.
    pub fn keep_backup(&mut self) {
        self.change.backup = true;
    }

    fn store<'s>(&'s self, stored: &mut Vec<&'s str>) -> Result<(), HostFault> {
        let Some(keyring) = &self.keyring else { return Ok(()) };
        let new = |kept: &&KeptSecret| kept.store == SecretStore::Keyring && !kept.there;
        for KeptSecret { name, value, .. } in self.secrets.iter().filter(new) {
            match keyring.get(name) {
                Err(keyring::Error::NoSecret(_)) => {}
                Ok(there) if there == value.expose() => continue,
                Ok(_) => {
                    let message = format!("another program has just stored a secret `{name}` in the keyring");
                    return Err(HostFault::new(message, "Nothing was written; try again."));
                }
                Err(error) => return Err(unusable(&error)),
            }
            keyring.set(name, value.expose()).map_err(|error| unusable(&error))?;
            stored.push(name);
        }
        Ok(())
    }

    /// Writes secrets to `secrets.env`. Returns whether there were any.
    fn keep(&self) -> Result<bool, HostFault> {
        let mut file = self.file.clone();
        let new = |kept: &&KeptSecret| kept.store == SecretStore::File && !kept.there;
        for KeptSecret { name, value, .. } in self.secrets.iter().filter(new) {
            file.set(name, value.expose());
        }
        let is_new = self.secrets.iter().any(|kept| new(&kept));
        if is_new {
            file.write().map_err(|source| unwritten(&file, source))?;
        }
        Ok(is_new)
    }

    /// Returns the servers of one table that servers.toml has now and Nonet may run:
    /// [`install`](super::install) may remove them from the table.
    pub fn carried(&self, host: &Host, scope: FileScope, machine: &Machine) -> Vec<KnownServer> {
        self.carried_if(host, scope, machine, ImportRow::is_there)
    }

    /// Returns the servers of one table that [`install`](super::install) may remove once this import is
    /// applied.
    pub fn will_be_carried(&self, host: &Host, scope: FileScope, machine: &Machine) -> Vec<KnownServer> {
        self.carried_if(host, scope, machine, |_| true)
    }

    fn carried_if(
        &self,
        host: &Host,
        scope: FileScope,
        machine: &Machine,
        is_wanted: fn(&ImportRow) -> bool,
    ) -> Vec<KnownServer> {
        let rows = self.rows_of(host, scope, machine);
        let carried = rows.filter(|row| row.stays.is_none() && is_wanted(row)).filter_map(|row| {
            let server = row.done.server()?.to_string();
            Some(KnownServer { name: row.name.clone(), server })
        });
        carried.collect()
    }

    /// Returns the servers of one table that [`install`](super::install) must leave there now, each with the
    /// reason.
    pub fn staying(&self, host: &Host, scope: FileScope, machine: &Machine) -> Vec<(String, String)> {
        let rows = self.rows_of(host, scope, machine);
        let why = |row: &ImportRow| match row.why_it_stays() {
            None if row.done.server().is_some() && !row.is_there() => Some(match row.is_pending {
                true if !row.done.is_new() => "servers.toml does not have its client's rules yet".into(),
                _ => "it is not in servers.toml".into(),
            }),
            why => why,
        };
        rows.filter_map(|row| Some((row.name.clone(), why(row)?))).collect()
    }

    /// Returns the servers that will have to stay once this import is applied.
    pub fn will_stay(&self, host: &Host, scope: FileScope, machine: &Machine) -> Vec<(String, String)> {
        let rows = self.rows_of(host, scope, machine);
        rows.filter_map(|row| Some((row.name.clone(), row.why_it_stays()?))).collect()
    }

    fn rows_of(&self, host: &Host, scope: FileScope, machine: &Machine) -> impl Iterator<Item = &ImportRow> {
        let (file, table) = (host.file(scope, machine), host.table);
        let is_from = move |from: &EntryOrigin| Some(&from.file) == file.as_ref() && from.table == table;
        self.rows.iter().filter(move |row| is_from(&row.from))
    }
}
