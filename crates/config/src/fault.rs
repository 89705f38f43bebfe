//! Faults of a configuration: place, problem and remedy.
//!
//! The file's author reads them. A fault never contains a secret: no expanded text, and no value of `env` or
//! `headers`.

use std::{fmt, io, path::PathBuf};

/// One problem in a config file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFault {
    /// The file, as named by the user.
    pub file: PathBuf,
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// The full dotted key, such as `servers.files.timeout`; empty if the text is not TOML.
    pub key: String,
    /// The problem, without a full stop.
    pub message: String,
    /// The remedy: one sentence or more.
    pub remedy: String,
    /// The entry or key that is left out (`servers.files`, `gateway.colour`). None: the whole file is
    /// unusable.
    pub entry: Option<String>,
}

impl ConfigFault {
    /// Returns the environment variables to set.
    pub fn unset_variables(&self) -> impl Iterator<Item = &str> {
        let parts = self.message.split("; ");
        parts.filter_map(|part| part.strip_prefix("the environment variable `")?.strip_suffix("` is not set"))
    }

    /// Returns the secrets that the keyring does not have.
    pub fn absent_secrets(&self) -> impl Iterator<Item = &str> {
        let parts = self.message.split("; ");
        parts.filter_map(|part| part.strip_prefix("the keyring has no secret `")?.strip_suffix('`'))
    }

    /// Whether the fault is nothing but missing values, all of which `others` miss too.
    pub fn is_lacking_like(&self, others: &[&Self]) -> bool {
        let lacks = |name: &&str| {
            let named = |other: &Self| {
                other.unset_variables().chain(other.absent_secrets()).any(|known| known == *name)
            };
            others.iter().any(|other| named(other))
        };
        let missing = self.unset_variables().chain(self.absent_secrets()).filter(lacks).count();
        missing == self.message.split("; ").count()
    }
}

impl fmt::Display for ConfigFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: ", self.file.display(), self.line, self.column)?;
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        write!(f, "{}. {}", self.message, self.remedy)
    }
}

/// Why a file yields no config at all.
#[derive(Debug)]
pub enum LoadError {
    /// The file cannot be read.
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file has faults, at least one of them outside the entries that can be left out.
    Faults(Vec<ConfigFault>),
}

impl LoadError {
    /// Returns all faults, by line; none for an unreadable file.
    pub fn faults(&self) -> &[ConfigFault] {
        match self {
            Self::Unreadable { .. } => &[],
            Self::Faults(faults) => faults,
        }
    }
}

impl std::error::Error for LoadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unreadable { source, .. } => Some(source),
            Self::Faults(_) => None,
        }
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { file, .. } => write!(f, "cannot read {}", file.display()),
            Self::Faults(faults) => {
                write!(f, "the configuration cannot be used until these faults are fixed:")?;
                let (fatal, rest): (Vec<_>, Vec<_>) = faults.iter().partition(|fault| fault.entry.is_none());
                fatal.iter().try_for_each(|fault| write!(f, "\n  {fault}"))?;
                if !rest.is_empty() {
                    write!(f, "\neach of these faults leaves out only its entry:")?;
                }
                rest.iter().try_for_each(|fault| write!(f, "\n  {fault}"))
            }
        }
    }
}

const EXAMPLE: &str = r#"  [servers.memory]
  command = "npx"
  args = ["-y", "@modelcontextprotocol/server-memory"]"#;

/// No configuration file was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigNotFound {
    /// The path without a file; none if the user's home folder is unknown.
    pub looked_at: Option<PathBuf>,
    /// Whether the user has named the file.
    pub named: bool,
}

impl std::error::Error for ConfigNotFound {}

impl fmt::Display for ConfigNotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let missing = match &self.looked_at {
            Some(file) => format!("there is no {}", file.display()),
            None => "the home folder is unknown".into(),
        };
        let same = if self.named { " with the same `--config`" } else { "" };
        write!(
            f,
            "no configuration file: {missing}. Run `nonet setup`{same} to create one from your MCP clients' \
             servers, begin one with `nonet add`{same}, or name one with `--config FILE`. A minimal file:\n\n{EXAMPLE}",
        )
    }
}
