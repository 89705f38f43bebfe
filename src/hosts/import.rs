//! From the files of hosts into servers.toml, server by server.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use serde::Serialize;

use super::{
    Applied, Change, Fault, Host, Machine, Os, Scope,
    find::find,
    join::Joining,
    servers::ServersToml,
    text::{self, Text},
};
use crate::{
    config::Secret,
    keyring::{self, Keyring},
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
    pub(super) value: Secret,
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
    let mut joining = Joining::new(doc, &found.entries, manner, machine);
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
