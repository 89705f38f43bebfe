//! Hosts: the applications that MCP clients run in, and the files in which they keep their servers.
//!
//! [`import`] brings servers from such a file into servers.toml; [`install`] puts Nonet into a
//! host's file, [`uninstall`] takes it out again. [`add_server`], [`remove_server`] and [`enable_server`] edit single servers of
//! servers.toml. Each works out a [`Change`] first, to be shown or applied. This room knows files and text, the keyring that it is given, and `secrets.env`: it touches no
//! network, starts no process, and asks a [`Machine`] for everything that differs from one computer
//! to the next.

mod change;
mod edit;
mod entry;
mod find;
mod import;
mod imported;
mod install;
mod join;
mod known;
mod launch;
mod names;
mod parts;
mod read;
mod receipt;
mod secrets;
mod server_edits;
mod server_text;
mod servers;
mod text;
mod typed;
mod yaml;

use std::{
    collections::BTreeMap,
    fmt, io,
    path::{Path, PathBuf},
    time::SystemTime,
};

pub use change::{Applied, Change};
pub use import::{ImportOptions, ImportSource, import, keeping_secrets, usable};
pub use imported::{Carried, ImportRow, Imported, SecretStore, Variable};
pub use install::{Present, entry_text, install, present, uninstall};
pub use known::HOSTS;
pub use launch::{Launch, is_lost, on_path};
pub use server_edits::{
    Removal, ServerTable, TableEdit, TableFault, Unedited, UnusedSecret, add_server, edit_table,
    enable_server, remove_server, server_table, set_tool_policy,
};
pub use typed::{TypedLabels, TypedServer};

use crate::name;

/// The name of Nonet's own entry in a host's file.
pub const OWN_NAME: &str = "nonet";

/// An application that knows MCP servers from a file.
pub struct Host {
    /// What users call it on the command line.
    pub name: &'static str,
    /// What its makers call it.
    pub title: &'static str,
    /// Other names for it.
    pub aliases: &'static [&'static str],
    /// What makes it read its file again.
    pub reload: &'static str,
    /// The key of the table of servers.
    table: &'static str,
    format: FileFormat,
    user: fn(&Machine) -> PathBuf,
    /// The file of a project, below the project's folder.
    project: Option<&'static str>,
    /// What a new file begins with.
    blank: &'static str,
    /// The key of an entry for the program.
    program: &'static str,
    /// What an entry for a program has besides the program and `args`, as a JSON object.
    extra: &'static str,
    /// What `timeout` counts.
    timeout: Unit,
    /// Whether `$NAME` inside of a text is a variable.
    bare_variables: bool,
    /// Entries for Nonet by the host's versions, for a user to paste: the file does not say which version reads it.
    by_hand: Option<fn(&Launch) -> String>,
}

/// Finds a host by its name or one of its aliases; case, spaces and `_` do not matter.
pub fn find(name: &str) -> Result<&'static Host, HostFault> {
    let wanted = name.trim().to_lowercase().replace([' ', '_'], "-");
    if let Some(host) = HOSTS.iter().find(|host| host.is_called(&wanted)) {
        return Ok(host);
    }
    let names = HOSTS.iter().flat_map(|host| std::iter::once(&host.name).chain(host.aliases).copied());
    let near = name::nearest(&wanted, names, 1)
        .first()
        .and_then(|near| HOSTS.iter().find(|host| host.is_called(near)))
        .map(|host| format!("Did you mean `{}`? ", host.name))
        .unwrap_or_default();
    let all: Vec<_> = HOSTS.iter().map(|host| host.name).collect();
    let remedy = format!("{near}Known hosts: {}.", all.join(", "));
    Err(HostFault::new(format!("unknown host `{}`", shortened(name)), remedy))
}

impl Host {
    /// Whether the host is on this machine: its file is there, or the folder that the file would be in.
    pub fn is_found(&self, machine: &Machine) -> bool {
        let file = (self.user)(machine);
        let own_folder = file.parent().filter(|folder| *folder != machine.home);
        file.exists() || own_folder.is_some_and(Path::exists)
    }

    /// The file in which the host keeps its servers; none if it has no file of that scope.
    pub fn file(&self, scope: FileScope, machine: &Machine) -> Option<PathBuf> {
        match scope {
            FileScope::User => Some((self.user)(machine)),
            FileScope::Project => self.project.map(|path| machine.current.join(path)),
        }
    }

    /// Whether its file is only read.
    pub fn is_by_hand(&self) -> bool {
        self.by_hand.is_some()
    }

    fn is_called(&self, name: &str) -> bool {
        self.name == name || self.aliases.contains(&name)
    }
}

/// Hosts differ by name.
impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Whose file: one for all projects of a user, or one inside of a project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileScope {
    /// The user's own file.
    User,
    /// The file of the project in the current folder.
    Project,
}

/// How a file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileFormat {
    /// JSON; comments and commas at the end are put up with, and kept.
    Json,
    Toml,
    /// YAML, with servers by their names or as a list of tables with a `name`.
    Yaml(YamlServers),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum YamlServers {
    Named,
    Listed,
}

/// The unit of a plain `timeout`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    Milliseconds,
    Seconds,
    /// Seconds up to the longest that the host takes; more are milliseconds, which it once counted.
    SecondsUpTo(u32),
    /// Unknown: 1000 and more are milliseconds.
    Guess,
}

/// An operating system, as far as paths and shells depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Os {
    /// Linux and other systems that keep to XDG folders.
    Linux,
    /// macOS.
    MacOs,
    /// Windows.
    Windows,
}

/// Everything that depends on the machine, the user or the time.
pub struct Machine {
    /// The operating system.
    pub os: Os,
    /// The user's home folder.
    pub home: PathBuf,
    /// The current folder: that of the project, and what relative paths are relative to.
    pub current: PathBuf,
    /// The environment variables.
    pub env: BTreeMap<String, String>,
    /// The time, for the names of backups.
    pub now: SystemTime,
}

impl Machine {
    /// The machine that this runs on.
    pub fn this() -> Result<Self, HostFault> {
        let os = match std::env::consts::OS {
            "windows" => Os::Windows,
            "macos" => Os::MacOs,
            _ => Os::Linux,
        };
        let env: BTreeMap<_, _> = crate::variables::all()
            .into_iter()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        let home = std::env::home_dir().filter(|home| home.is_absolute()).ok_or_else(|| {
            HostFault::new("your home folder is unknown".into(), "Set HOME (on Windows, USERPROFILE).".into())
        })?;
        let current = std::env::current_dir().map_err(|source| {
            let remedy = "Change to an existing folder and try again.";
            HostFault::new("the current folder is unknown".into(), remedy.into()).because(source)
        })?;
        Ok(Self { os, home, current, env, now: SystemTime::now() })
    }

    /// An environment variable. Windows does not look at the case of its name.
    fn var(&self, name: &str) -> Option<&str> {
        let same = |key: &str| match self.os {
            Os::Windows => key.eq_ignore_ascii_case(name),
            _ => key == name,
        };
        self.env.iter().find(|(key, _)| same(key)).map(|(_, value)| value.as_str())
    }

    /// The folder that a variable names, if it is a whole path.
    fn folder(&self, variable: &str) -> Option<PathBuf> {
        self.var(variable).map(PathBuf::from).filter(|folder| folder.is_absolute())
    }

    /// `~/.config`, where programs of the command line have their files on every system.
    fn dot_config(&self) -> PathBuf {
        self.folder("XDG_CONFIG_HOME").unwrap_or(self.home.join(".config"))
    }

    /// Where applications keep what belongs to the user.
    fn app_folder(&self) -> PathBuf {
        match self.os {
            Os::Linux => self.folder("XDG_CONFIG_HOME").unwrap_or(self.home.join(".config")),
            Os::MacOs => self.home.join("Library").join("Application Support"),
            Os::Windows => self.folder("APPDATA").unwrap_or(self.home.join("AppData").join("Roaming")),
        }
    }
}

/// A failure: what happened, where, and the remedy.
#[derive(Debug)]
pub struct HostFault {
    /// The file it is about.
    pub file: Option<PathBuf>,
    /// Line and column in it, from 1.
    pub at: Option<(usize, usize)>,
    /// What is wrong, without a full stop.
    pub message: String,
    /// What to do: one sentence or more.
    pub remedy: String,
    source: Option<io::Error>,
}

impl HostFault {
    fn new(message: String, remedy: String) -> Self {
        Self { file: None, at: None, message, remedy, source: None }
    }

    fn within(self, file: &Path) -> Self {
        Self { file: Some(file.into()), ..self }
    }

    fn at(self, line: usize, column: usize) -> Self {
        Self { at: Some((line, column)), ..self }
    }

    fn because(self, source: io::Error) -> Self {
        Self { source: Some(source), ..self }
    }
}

impl fmt::Display for HostFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{}:", file.display())?;
            if let Some((line, column)) = self.at {
                write!(f, "{line}:{column}:")?;
            }
            f.write_str(" ")?;
        }
        write!(f, "{}. {}", self.message, self.remedy)
    }
}

impl std::error::Error for HostFault {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}

/// Shortens an outside text for a line.
fn shortened(text: &str) -> String {
    let mut shown: String = text.chars().filter(|c| !c.is_control()).take(60).collect();
    if shown.len() < text.len() {
        shown.push_str("...");
    }
    shown
}

/// `a`, `b` and `c` in code quotes.
fn listed<T: AsRef<str>>(names: &[T]) -> String {
    names.iter().map(|name| format!("`{}`", shortened(name.as_ref()))).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
