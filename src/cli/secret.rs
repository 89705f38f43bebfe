//! `nonet secret`: the secrets for `${keyring:NAME}` in servers.toml, and with `--file` for `${NAME}`.

use std::{
    io::{BufRead, IsTerminal, Read, stdin},
    path::Path,
};

use anyhow::Context;
use clap::Subcommand;
use nonet_config::{
    keyring::{self, Keyring},
    secrets_file::{self, SecretsFile},
};
use nonet_hosts::{ImportOptions, ImportPlan, Machine, NamedSecret, SecretStore};
use serde::Serialize;
use serde_json::json;

use super::{FAILED, OK, edit::used, hosts, show};

/// What to do with a secret.
#[derive(Debug, Subcommand)]
pub(super) enum SecretAction {
    /// Store a secret, read as one line from stdin (without echo in a terminal); replaces an existing secret
    Set {
        /// Name of the secret: letters, digits and `_`, such as GITHUB_TOKEN
        #[arg(value_parser = name)]
        name: String,
        /// Use secrets.env beside servers.toml instead of the keyring, as the variable `${NAME}`
        #[arg(long)]
        file: bool,
    },
    /// Move the secrets that servers.toml contains to the keyring or secrets.env, and write `${...}` in their
    /// place
    Move {
        /// Show the changes without writing them
        #[arg(long)]
        dry_run: bool,
    },
    /// List the names of secrets: where each is, and what uses it. No values
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove a secret
    Remove {
        /// Name of the secret
        #[arg(value_parser = name)]
        name: String,
        /// Use secrets.env beside servers.toml instead of the keyring, as the variable `${NAME}`
        #[arg(long)]
        file: bool,
    },
    /// Test whether Nonet can read a secret; waits while the keyring asks you to unlock it
    Test {
        /// Name of the secret
        #[arg(value_parser = name)]
        name: String,
        /// Use secrets.env beside servers.toml instead of the keyring, as the variable `${NAME}`
        #[arg(long)]
        file: bool,
    },
}

/// The place of a name that has no value.
const NOT_SET: &str = "not set";
/// The longest secret that is read, in bytes.
const LONGEST: u64 = 1 << 16;

fn name(text: &str) -> Result<String, &'static str> {
    match keyring::is_name(text) {
        true => Ok(text.into()),
        false => Err("a name may contain only letters, digits and `_`, and must not start with a digit"),
    }
}

/// Runs the action with the system's keyring, or with the file. Exit code 1: it failed.
pub(super) fn run(action: &SecretAction, config: Option<&Path>) -> anyhow::Result<u8> {
    let (name, file) = match action {
        SecretAction::Move { dry_run } => return move_out(&used(config)?, *dry_run),
        SecretAction::List { json } => return list(&hosts::target(config)?, *json),
        SecretAction::Set { name, file }
        | SecretAction::Remove { name, file }
        | SecretAction::Test { name, file } => (name, file),
    };
    if *file {
        return in_file(action, name, config);
    }
    let keyring = Keyring::system(keyring::ATTENDED);
    let (result, done) = match action {
        SecretAction::Set { name, .. } => {
            let value = line(name)?;
            (keyring.set(name, &value), "is in the keyring")
        }
        SecretAction::Remove { name, .. } => (keyring.remove(name), "was removed from the keyring"),
        SecretAction::Test { name, .. } => {
            (keyring.get(name).map(drop), "is in the keyring, and Nonet can read it")
        }
        SecretAction::Move { .. } | SecretAction::List { .. } => return Ok(OK),
    };
    if let Err(error) = result {
        match (action, &error) {
            (SecretAction::Remove { .. }, keyring::Error::NoSecret(_)) => eprintln!("nonet: {error}."),
            (SecretAction::Set { .. }, keyring::Error::Missing(_)) => eprintln!(
                "nonet: {error}. {} Or store the secret in a private file: `nonet secret set {name} --file`, for `${{{name}}}`.",
                error.remedy()
            ),
            _ => eprintln!("nonet: {error}. {}", error.remedy()),
        }
        return Ok(FAILED);
    }
    say!("`{name}` {done}.");
    if matches!(action, SecretAction::Set { .. }) {
        say!(
            "Use `${{keyring:{name}}}` in servers.toml. A running gateway reads a changed secret when that file is saved."
        );
    }
    Ok(OK)
}

/// Runs the action with the `secrets.env` beside servers.toml.
fn in_file(action: &SecretAction, name: &str, config: Option<&Path>) -> anyhow::Result<u8> {
    let path = secrets_file::beside(&hosts::target(config)?);
    let shown = path.display();
    let unusable = || format!("cannot use {shown}");
    let mut file = SecretsFile::read(&path).with_context(unusable)?;
    match action {
        SecretAction::Set { .. } => {
            file.set(name, &line(name)?);
            file.write().with_context(unusable)?;
            say!(
                "`{name}` is in {shown}, readable only by you. Use `${{{name}}}` in the servers.toml beside that file."
            );
        }
        SecretAction::Remove { .. } if file.remove(name) => {
            file.write().with_context(unusable)?;
            say!("`{name}` was removed from {shown}.");
        }
        SecretAction::Test { .. } if file.get(name).is_some() => {
            say!("`{name}` is in {shown}.");
            if nonet_base::variables::var(name).is_some() {
                say!("The environment variable `{name}` is also set and takes precedence.");
            }
        }
        SecretAction::Move { .. }
        | SecretAction::List { .. }
        | SecretAction::Remove { .. }
        | SecretAction::Test { .. } => {
            eprintln!("nonet: {shown} has no `{name}`.");
            return Ok(FAILED);
        }
    }
    Ok(OK)
}

/// A secret in the list: its name, where it is, and the entries that use it.
#[derive(Serialize)]
struct SecretRow {
    name: String,
    #[serde(rename = "in")]
    place: &'static str,
    used_by: Vec<String>,
}

/// Lists what servers.toml names and what `secrets.env` has. Exit code 1: something that is used is not set.
fn list(file: &Path, as_json: bool) -> anyhow::Result<u8> {
    let path = secrets_file::beside(file);
    let kept = SecretsFile::read(&path).with_context(|| format!("cannot use {}", path.display()))?;
    let keyring = Keyring::system(keyring::ATTENDED);
    let mut all = Vec::new();
    let mut trouble = None;
    for NamedSecret { name, in_keyring, has_default, used_by } in nonet_hosts::named_secrets(file)? {
        let place = match in_keyring.then(|| keyring.get(&name)) {
            Some(Ok(_)) => "keyring",
            Some(Err(keyring::Error::NoSecret(_))) => NOT_SET,
            Some(Err(error)) => {
                trouble.get_or_insert(error);
                "keyring, which cannot be read"
            }
            // The environment comes first.
            None if nonet_base::variables::var(&name).is_some() => "environment",
            None if kept.get(&name).is_some() => secrets_file::NAME,
            None if has_default => "default",
            None => NOT_SET,
        };
        all.push(SecretRow { name, place, used_by });
    }
    for name in kept.values().keys() {
        if all.iter().all(|known| known.name != *name || known.place.starts_with("keyring")) {
            all.push(SecretRow { name: name.clone(), place: secrets_file::NAME, used_by: Vec::new() });
        }
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    if let Some(error) = trouble {
        eprintln!("nonet: {error}. {}", error.remedy());
    }
    let is_missing = all.iter().any(|one| one.place == NOT_SET);
    if as_json {
        raw!("{}", serde_json::to_string_pretty(&json!({ "file": file, "secrets": all }))?);
        return Ok(if is_missing { FAILED } else { OK });
    }
    if all.is_empty() {
        say!("{} names no variable and no secret, and {} has none.", file.display(), path.display());
        return Ok(OK);
    }
    let mut table = show::plain_table(&["NAME", "IN", "USED BY"]);
    for SecretRow { name, place, used_by } in &all {
        let place =
            if *place == NOT_SET { show::paint(show::WordStyle::Bad, place) } else { (*place).to_string() };
        table.add_row([name.clone(), place, used_by.join(", ")]);
    }
    say!("{table}");
    Ok(if is_missing { FAILED } else { OK })
}

/// Moves the secrets out of a servers.toml.
pub(super) fn move_out(file: &Path, dry_run: bool) -> anyhow::Result<u8> {
    let machine = Machine::this()?;
    let work = |options: ImportOptions<'_>| nonet_hosts::move_secrets(file, options, &machine);
    let (moved, _) = hosts::with_secrets(hosts::Secrets::Kept, false, work, ImportPlan::stores_secrets)?;
    let applied = if dry_run { None } else { Some(moved.apply()?) };
    hosts::finish(&moved.change, applied);
    hosts::tell_secrets(&moved, dry_run);
    moved.notes.iter().for_each(|note| say!("{note}"));
    Ok(OK)
}

/// Stores a secret in the `secrets.env` beside a configuration.
pub(super) fn keep(name: &str, value: &str, config: &Path) -> anyhow::Result<()> {
    let place = nonet_hosts::keep_secret(config, name, value, SecretStore::File)?;
    say!("`{name}` is in {place}, readable only by you.");
    Ok(())
}

/// Reads the line with the secret, without its line end.
fn line(name: &str) -> anyhow::Result<String> {
    let line = if stdin().is_terminal() {
        rpassword::prompt_password(format!("Secret {name} (not shown): "))
    } else {
        let mut line = String::new();
        stdin().lock().take(LONGEST).read_line(&mut line).map(|_| line)
    };
    let line = line.context("cannot read the secret from stdin")?;
    anyhow::ensure!((line.len() as u64) < LONGEST, "the first line of stdin is longer than {LONGEST} bytes");
    let value = line.trim_end_matches(['\r', '\n']);
    anyhow::ensure!(!value.is_empty(), "there is no secret in the first line of stdin");
    Ok(value.into())
}
