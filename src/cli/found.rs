//! Which servers.toml a command uses.
//!
//! A folder that somebody else wrote can contain a servers.toml, and using it starts programs with the user's
//! variables. So a file in the current folder is used only if the user has named it, or has trusted its text
//! at a terminal.

use std::{
    fs,
    io::{self, IsTerminal},
    path::{Path, PathBuf},
};

use anyhow::Context;
use nonet_base::text::line;
use nonet_config::{self as config, FileTrust, LoadError, LoadedConfig, OutlineEntry, ValueSources, shell};
use nonet_store::{reloads::text_hash, trusted_files::TrustedFiles};

use super::{setup::agree, show};

/// How many entries of a file are shown, and how long a line is.
const MOST_SHOWN: usize = 50;
const LONGEST_LINE: usize = 1_000;

/// The configuration file of a command.
#[derive(Debug)]
pub(super) struct FoundFile {
    pub path: PathBuf,
    /// Whether the file is used only because the user trusts its text.
    pub by_trust: bool,
}

impl FoundFile {
    /// Reads the configuration; a missing one is empty.
    pub(super) fn load(&self) -> Result<LoadedConfig, LoadError> {
        let mut loaded = match self.path.exists() {
            true => {
                let unreadable = |source| LoadError::Unreadable { file: self.path.clone(), source };
                let text = config::read_text(&self.path).map_err(unreadable)?;
                load_text(&text, &self.path, self.by_trust)
            }
            false => load_text("", &self.path, false),
        }?;
        loaded.trust = trust_in(&self.path, &loaded, self.by_trust);
        Ok(loaded)
    }
}

/// Reads a text of a file. Before the user trusts it, it runs no program.
pub(super) fn load_text(text: &str, file: &Path, by_trust: bool) -> Result<LoadedConfig, LoadError> {
    let is_trusted = || TrustedFiles::of_user().is_some_and(|files| files.covers(file, &text_hash(text)));
    match by_trust && !is_trusted() {
        true => ValueSources::without_programs(|sources| config::load_text(text, file, sources)),
        false => super::load_text(text, file),
    }
}

/// Returns whether the use of a text depends on the user's trust.
pub(super) fn trust_in(file: &Path, loaded: &LoadedConfig, by_trust: bool) -> FileTrust {
    let is_given = || TrustedFiles::of_user().is_some_and(|files| files.covers(file, &loaded.config.digest));
    match by_trust {
        false => FileTrust::NotNeeded,
        true if is_given() => FileTrust::Given,
        true => FileTrust::Lost,
    }
}

/// Refuses a file that has changed since the user was asked.
pub(super) fn ensure_trusted(loaded: &LoadedConfig) -> anyhow::Result<()> {
    let file = loaded.config.file.display();
    anyhow::ensure!(
        loaded.trust != FileTrust::Lost,
        "{file} is not used, because it has changed since you trusted it: run `nonet trust {file}` at a terminal"
    );
    Ok(())
}

/// Returns the configuration file: the named one, else the trusted one in the current folder, else the user's
/// own. Asks about an untrusted file in the current folder if there is a terminal. A file that was not named
/// is reported on stderr.
pub(super) fn find(named: Option<&Path>) -> anyhow::Result<FoundFile> {
    if named.is_some() {
        return Ok(FoundFile { path: config::find(named)?, by_trust: false });
    }
    let found = match trusted_here(ask_here)? {
        Some(path) => FoundFile { path, by_trust: true },
        None => FoundFile { path: config::find(None)?, by_trust: false },
    };
    eprintln!("nonet: using {}", line(&found.path.to_string_lossy(), LONGEST_LINE));
    Ok(found)
}

/// Returns the path of that file, for a command that starts no server.
pub(super) fn path(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    Ok(find(named)?.path)
}

/// Returns the same file without a question and a report.
pub(super) fn silently(named: Option<&Path>) -> Option<PathBuf> {
    let here = || trusted_here(|_, _, _, _| Ok(false)).ok().flatten();
    match named {
        Some(_) => config::find(named).ok(),
        None => here().or_else(|| config::find(None).ok()),
    }
}

/// Returns the servers.toml in the current folder if the user trusts it. `ask` decides about an untrusted
/// one, by its path, its text and whether the user has trusted another text. The path has no links: relative
/// paths in the file belong to the folder that the user has trusted.
fn trusted_here(
    ask: impl FnOnce(&TrustedFiles, &Path, &str, bool) -> anyhow::Result<bool>,
) -> anyhow::Result<Option<PathBuf>> {
    let Ok(file) = fs::canonicalize(config::FILE_NAME) else { return Ok(None) };
    let own = config::user_file().and_then(|own| fs::canonicalize(own).ok());
    if own.is_some_and(|own| own == file) {
        return Ok(None);
    }
    let Some(files) = TrustedFiles::of_user() else { return Ok(None) };
    let text = match config::read_text(&file) {
        Ok(text) => text,
        Err(error) => {
            show::complain(format_args!("the servers.toml in this folder is not used: {error}"));
            return Ok(None);
        }
    };
    let is_used = files.covers(&file, &text_hash(&text)) || ask(&files, &file, &text, files.knows(&file))?;
    Ok(is_used.then_some(file))
}

/// Asks about an untrusted file if there is a terminal; otherwise reports that it is not used.
fn ask_here(files: &TrustedFiles, file: &Path, text: &str, is_changed: bool) -> anyhow::Result<bool> {
    let why = if is_changed { "has changed since you trusted it" } else { "is not trusted" };
    if is_at_terminal() {
        return ask(files, file, text, &format!("is in this folder and {why}"));
    }
    show::complain(format_args!(
        "the servers.toml in this folder is not used, because it {why}: name it with `--config servers.toml`, or run `nonet \
         trust servers.toml` at a terminal"
    ));
    Ok(false)
}

/// Whether a person can be asked.
pub(super) fn is_at_terminal() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Shows what a file would start, asks whether the user trusts it, and records a yes.
pub(super) fn ask(files: &TrustedFiles, file: &Path, text: &str, state: &str) -> anyhow::Result<bool> {
    show_outline(file, text, state);
    let question = "Trust this file, until somebody else changes it?";
    let agreed = agree(question, false, &mut io::stdin().lock(), &mut io::stderr())?;
    if agreed {
        record(files, file, text)?;
    }
    Ok(agreed)
}

/// Records the user's trust in a file.
pub(super) fn record(files: &TrustedFiles, file: &Path, text: &str) -> anyhow::Result<()> {
    files.trust(file, &text_hash(text)).context(
        "the trust cannot be recorded; to use the file nevertheless, name it with `--config servers.toml`",
    )
}

/// Prints what a file would start on stderr.
pub(super) fn show_outline(file: &Path, text: &str, state: &str) {
    let path = line(&file.to_string_lossy(), LONGEST_LINE);
    let Some(entries) = config::outline(text) else {
        return eprintln!("nonet: {path} {state}. It is not valid TOML, so it would start nothing.");
    };
    if entries.is_empty() {
        return eprintln!("nonet: {path} {state}. It would start nothing.");
    }
    eprintln!("nonet: {path} {state}. It would start or contact:");
    for entry in entries.iter().take(MOST_SHOWN) {
        eprintln!("  {}", line(&described(entry), LONGEST_LINE));
    }
    if let Some(more) = entries.len().checked_sub(MOST_SHOWN).filter(|more| *more > 0) {
        eprintln!("  and {more} more: read the file");
    }
}

/// Describes an entry as a shell would take it: variables, program, addresses, and what it gets from the
/// environment.
fn described(entry: &OutlineEntry) -> String {
    let env = entry.env.iter().map(|(name, value)| format!("{name}={}", shell::word(value)));
    let words = entry.command.iter().map(|word| shell::word(word));
    let places = entry.places.iter().cloned();
    let mut told: Vec<String> = env.chain(words).chain(places).collect();
    if !entry.variables.is_empty() {
        let names: Vec<&str> = entry.variables.iter().map(String::as_str).collect();
        told.push(format!("(gets your {})", names.join(", ")));
    }
    format!("{}: {}", entry.entry, told.join(" "))
}
