//! Hosts: the applications that MCP clients run in, and the files in which they keep their servers.
//!
//! [`import`] brings servers from such a file into servers.toml; [`install`] adds Nonet to a host's file,
//! [`uninstall`] removes it. [`add_server`], [`remove_server`] and [`enable_server`] edit single servers of
//! servers.toml. Each returns a [`FileChange`], to be shown or applied. This room knows files and text, its
//! keyring argument, and `secrets.env`. It uses no network, starts no process, and asks a [`Machine`] for
//! everything that differs between computers.

mod app_edits;
mod backups;
mod change;
mod defaults;
mod edit;
mod entry;
mod find;
mod import;
mod imported;
mod install;
mod join;
mod json;
mod known;
mod launch;
mod launchers;
mod literals;
mod moving;
mod names;
mod parts;
mod pasted;
mod read;
mod receipt;
mod references;
mod rules;
mod secrets;
mod server_edits;

mod servers;
mod text;
mod toml;
mod typed;
mod yaml;

use std::{
    collections::BTreeMap,
    fmt, io,
    path::{Path, PathBuf},
    time::SystemTime,
};

pub use app_edits::add_app;
pub use backups::sweep_backups;
pub use change::{ChangeResult, FileChange};
pub use defaults::Defaults;
pub use import::{ImportOptions, ImportSource, RemainingServer, import, keeping_secrets, usable};
pub use imported::{
    ImportOutcome, ImportPlan, ImportRow, KeptSecret, KnownServer, SecretStore, Variable, keep_secret,
};
pub use install::{OwnEntry, allow_always, entry_text, install, is_always_allowed, present, uninstall};
pub use known::HOSTS;
pub use launch::{LaunchCommand, is_lost, on_path};
pub use launchers::runtime_of;
pub use literals::{move_secrets, plain_secrets};
pub use moving::{ClientPlan, Setup, SetupClient, SetupUndo, SkippedClient, UndoChanges};
pub use pasted::{LONGEST as LONGEST_PASTED, is_install_link, is_pasted, one_server};
pub use references::{NamedSecret, named_secrets};
pub use rules::MappedRule;
pub use server_edits::{
    EditError, ServerRemoval, TableEdit, TableFault, TableText, UnusedSecret, add_server, edit_table,
    enable_server, give_token, pass_variable, remove_server, server_table, set_tool_policy,
};
pub use typed::{TypedLabels, TypedServer};

use nonet_text::name;

/// The name of Nonet's own entry in a host's file.
pub const OWN_NAME: &str = "nonet";

/// An application that knows MCP servers from a file.
pub struct Host {
    /// Its name on the command line.
    pub name: &'static str,
    /// The name given by its makers.
    pub title: &'static str,
    /// Other names for it.
    pub aliases: &'static [&'static str],
    /// How to make the host reread its file.
    pub reload: &'static str,
    /// The key of the table of servers.
    table: &'static str,
    format: FileFormat,
    user: fn(&Machine) -> PathBuf,
    /// The file of a project, below the project's folder.
    project: Option<&'static str>,
    /// The initial content of a new file.
    blank: &'static str,
    /// The key of a program in an entry.
    program: &'static str,
    /// Further keys of a program's entry, besides the program and `args`, as a JSON object.
    extra: &'static str,
    /// The key of an entry with which the host asks about no tool of the server, as a JSON object; empty if
    /// its entries have none.
    always_allow: &'static str,
    /// The unit of `timeout`.
    timeout: Unit,
    /// Whether `$NAME` within a text is a variable.
    bare_variables: bool,
    /// Entries for Nonet by host version, for the user to paste: the file does not say which version reads
    /// it.
    by_hand: Option<fn(&LaunchCommand) -> String>,
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
    let remedy = format!("{near}Known clients: {}.", all.join(", "));
    Err(HostFault::new(format!("unknown client `{}`", shortened(name)), remedy))
}

impl Host {
    /// Whether the host is on this machine: its file exists, or the file's folder does.
    pub fn is_found(&self, machine: &Machine) -> bool {
        let file = (self.user)(machine);
        let own_folder = file.parent().filter(|folder| *folder != machine.home);
        file.exists() || own_folder.is_some_and(Path::exists)
    }

    /// Returns the host's file of servers; none if it has no file of that scope.
    pub fn file(&self, scope: FileScope, machine: &Machine) -> Option<PathBuf> {
        match scope {
            FileScope::User => Some((self.user)(machine)),
            FileScope::Project => self.project.map(|path| machine.current.join(path)),
        }
    }

    /// Returns the line of an entry with which the host asks about none of the server's tools, if its entries
    /// have one.
    pub fn always_allow(&self) -> Option<String> {
        let keys: serde_json::Map<_, _> = serde_json::from_str(self.always_allow).ok()?;
        let (key, value) = keys.into_iter().next()?;
        Some(match self.format {
            FileFormat::Toml => format!("{key} = {value}"),
            _ => format!("\"{key}\": {value}"),
        })
    }

    /// Whether the host's file is only read.
    pub fn is_by_hand(&self) -> bool {
        self.by_hand.is_some()
    }

    fn is_called(&self, name: &str) -> bool {
        self.name == name || self.aliases.contains(&name)
    }
}

/// Prints the name, by which hosts differ.
impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Whose file: a user's, for all projects, or a project's.
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
    /// JSON; comments and trailing commas are accepted, and kept.
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
    /// Seconds up to the host's maximum; larger values are milliseconds, its former unit.
    SecondsUpTo(u32),
    /// Unknown: values from 1000 on are milliseconds.
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
    /// The current folder: the project's folder, and the base of relative paths.
    pub current: PathBuf,
    /// The environment variables.
    pub env: BTreeMap<String, String>,
    /// The time, for the names and the age of backups.
    pub now: SystemTime,
}

impl Machine {
    /// Describes this machine.
    pub fn this() -> Result<Self, HostFault> {
        let os = match std::env::consts::OS {
            "windows" => Os::Windows,
            "macos" => Os::MacOs,
            _ => Os::Linux,
        };
        let env: BTreeMap<_, _> = nonet_base::variables::all()
            .into_iter()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        let home = std::env::home_dir().filter(|home| home.is_absolute()).ok_or_else(|| {
            HostFault::new("your home folder is unknown", "Set HOME (on Windows, USERPROFILE).")
        })?;
        let current = std::env::current_dir().map_err(|source| {
            let remedy = "Change to an existing folder and try again.";
            HostFault::new("the current folder is unknown", remedy).because(source)
        })?;
        Ok(Self { os, home, current, env, now: nonet_base::clock::system_time() })
    }

    /// Returns an environment variable. Windows ignores the case of its name.
    fn var(&self, name: &str) -> Option<&str> {
        let same = |key: &str| match self.os {
            Os::Windows => key.eq_ignore_ascii_case(name),
            _ => key == name,
        };
        self.env.iter().find(|(key, _)| same(key)).map(|(_, value)| value.as_str())
    }

    /// Returns the folder in a variable, if it is an absolute path.
    fn folder(&self, variable: &str) -> Option<PathBuf> {
        self.var(variable).map(PathBuf::from).filter(|folder| folder.is_absolute())
    }

    /// Returns `~/.config`, where command-line programs keep their files on every system.
    fn dot_config(&self) -> PathBuf {
        self.folder("XDG_CONFIG_HOME").unwrap_or(self.home.join(".config"))
    }

    /// Returns Nonet's state folder.
    fn state_folder(&self) -> PathBuf {
        self.folder("XDG_STATE_HOME").unwrap_or(self.home.join(".local").join("state")).join("nonet")
    }

    /// Returns the folder of applications' user data.
    fn app_folder(&self) -> PathBuf {
        match self.os {
            Os::Linux => self.dot_config(),
            Os::MacOs => self.home.join("Library").join("Application Support"),
            Os::Windows => self.folder("APPDATA").unwrap_or(self.home.join("AppData").join("Roaming")),
        }
    }
}

/// A failure: what happened, where, and the remedy.
#[derive(Debug)]
pub struct HostFault {
    /// The affected file.
    pub file: Option<PathBuf>,
    /// Line and column in the file, from 1.
    pub at: Option<(usize, usize)>,
    /// What is wrong, without a full stop.
    pub message: String,
    /// What to do: one sentence or more.
    pub remedy: String,
    source: Option<io::Error>,
}

impl HostFault {
    fn new(message: impl Into<String>, remedy: impl Into<String>) -> Self {
        let (message, remedy) = (message.into(), remedy.into());
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

/// Shortens an outside text to fit a line.
fn shortened(text: &str) -> String {
    let mut shown: String = text.chars().filter(|c| !c.is_control()).take(60).collect();
    if shown.len() < text.len() {
        shown.push_str("...");
    }
    shown
}

/// Lists names in code quotes: `a`, `b` and `c`.
fn listed<T: AsRef<str>>(names: &[T]) -> String {
    names.iter().map(|name| format!("`{}`", shortened(name.as_ref()))).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
