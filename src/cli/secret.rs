//! `nonet secret`: what `${keyring:NAME}` in servers.toml stands for, and what `${NAME}` does with `--file`.

use std::{
    io::{BufRead, IsTerminal, Read, stdin},
    path::Path,
};

use anyhow::Context;
use clap::Subcommand;

use super::{FAILED, OK, hosts};
use crate::{
    keyring::{self, Keyring},
    secrets_file::{self, SecretsFile},
};

/// What to do with a secret.
#[derive(Debug, Subcommand)]
pub enum SecretAction {
    /// Store a secret, in the place of one that has the name: one line of stdin, without echo in a terminal
    Set {
        /// Its name: letters, digits and `_`, such as GITHUB_TOKEN
        #[arg(value_parser = name)]
        name: String,
        /// In secrets.env beside servers.toml instead of the keyring, as a variable: `${NAME}`
        #[arg(long)]
        file: bool,
    },
    /// Take a secret out
    Remove {
        /// Its name
        #[arg(value_parser = name)]
        name: String,
        /// In secrets.env beside servers.toml instead of the keyring, as a variable: `${NAME}`
        #[arg(long)]
        file: bool,
    },
    /// See whether Nonet gets a secret; waits while the keyring asks you to unlock it
    Test {
        /// Its name
        #[arg(value_parser = name)]
        name: String,
        /// In secrets.env beside servers.toml instead of the keyring, as a variable: `${NAME}`
        #[arg(long)]
        file: bool,
    },
}

/// The longest secret that is read, in bytes.
const LONGEST: u64 = 1 << 16;

fn name(text: &str) -> Result<String, &'static str> {
    match keyring::is_name(text) {
        true => Ok(text.into()),
        false => Err("a name has letters, digits and `_`, and begins with none of the digits"),
    }
}

/// Does it with the keyring of this system, or with the file. Exit code 1: it could not be done.
pub fn run(action: &SecretAction, config: Option<&Path>) -> anyhow::Result<u8> {
    let (SecretAction::Set { name, file }
    | SecretAction::Remove { name, file }
    | SecretAction::Test { name, file }) = action;
    if *file {
        return in_file(action, name, config);
    }
    let keyring = Keyring::system(keyring::ATTENDED);
    let (result, done) = match action {
        SecretAction::Set { name, .. } => {
            let value = line(name)?;
            (keyring.set(name, &value), "is in the keyring")
        }
        SecretAction::Remove { name, .. } => (keyring.remove(name), "was taken out of the keyring"),
        SecretAction::Test { name, .. } => {
            (keyring.get(name).map(drop), "is in the keyring, and Nonet gets it")
        }
    };
    if let Err(error) = result {
        match (action, &error) {
            (SecretAction::Remove { .. }, keyring::Error::NoSecret(_)) => eprintln!("nonet: {error}."),
            (SecretAction::Set { .. }, keyring::Error::Missing(_)) => eprintln!(
                "nonet: {error}. {} Or keep it in a file of your own: `nonet secret set {name} --file`, for `${{{name}}}`.",
                error.remedy()
            ),
            _ => eprintln!("nonet: {error}. {}", error.remedy()),
        }
        return Ok(FAILED);
    }
    say!("`{name}` {done}.");
    if matches!(action, SecretAction::Set { .. }) {
        say!(
            "In servers.toml it is `${{keyring:{name}}}`. A gateway that is running takes a changed secret when \
             that file is saved."
        );
    }
    Ok(OK)
}

/// Does it with the `secrets.env` beside servers.toml.
fn in_file(action: &SecretAction, name: &str, config: Option<&Path>) -> anyhow::Result<u8> {
    let path = secrets_file::beside(&hosts::target(config)?);
    let shown = path.display();
    let unusable = || format!("{shown} cannot be used");
    let mut file = SecretsFile::read(&path).with_context(unusable)?;
    match action {
        SecretAction::Set { .. } => {
            file.set(name, &line(name)?);
            file.write().with_context(unusable)?;
            say!("`{name}` is in {shown}, for you only. In the servers.toml beside it, it is `${{{name}}}`.");
        }
        SecretAction::Remove { .. } if file.remove(name) => {
            file.write().with_context(unusable)?;
            say!("`{name}` was taken out of {shown}.");
        }
        SecretAction::Test { .. } if file.get(name).is_some() => {
            say!("`{name}` is in {shown}.");
            if std::env::var_os(name).is_some() {
                say!("The environment has `{name}` too, and is used instead.");
            }
        }
        SecretAction::Remove { .. } | SecretAction::Test { .. } => {
            eprintln!("nonet: {shown} has no `{name}`.");
            return Ok(FAILED);
        }
    }
    Ok(OK)
}

/// The line that holds the secret, without its end.
fn line(name: &str) -> anyhow::Result<String> {
    let line = if stdin().is_terminal() {
        rpassword::prompt_password(format!("The secret {name} (it is not shown): "))
    } else {
        let mut line = String::new();
        stdin().lock().take(LONGEST).read_line(&mut line).map(|_| line)
    };
    let line = line.context("the secret could not be read from stdin")?;
    anyhow::ensure!((line.len() as u64) < LONGEST, "the first line of stdin is longer than {LONGEST} bytes");
    let value = line.trim_end_matches(['\r', '\n']);
    anyhow::ensure!(!value.is_empty(), "there is no secret in the first line of stdin");
    Ok(value.into())
}
