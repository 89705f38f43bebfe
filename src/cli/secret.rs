//! `nonet secret`: what `${keyring:NAME}` in servers.toml stands for.

use std::io::{IsTerminal, stdin};

use anyhow::Context;
use clap::Subcommand;

use super::{FAILED, OK};
use crate::keyring::{self, Keyring};

/// What to do with a secret.
#[derive(Debug, Subcommand)]
pub enum Action {
    /// Store a secret, in the place of one that has the name: one line of stdin, without echo in a terminal
    Set {
        /// Its name: letters, digits and `_`, such as GITHUB_TOKEN
        #[arg(value_parser = name)]
        name: String,
    },
    /// Take a secret out
    Remove {
        /// Its name
        #[arg(value_parser = name)]
        name: String,
    },
    /// See whether Nonet gets a secret; waits while the keyring asks you to unlock it
    Test {
        /// Its name
        #[arg(value_parser = name)]
        name: String,
    },
}

fn name(text: &str) -> Result<String, &'static str> {
    match keyring::is_name(text) {
        true => Ok(text.into()),
        false => Err("a name has letters, digits and `_`, and begins with none of the digits"),
    }
}

/// Does it with the keyring of this system. Exit code 1: the keyring did not do it.
pub fn run(action: &Action) -> anyhow::Result<u8> {
    let keyring = Keyring::system(keyring::ATTENDED);
    let (result, name, done) = match action {
        Action::Set { name } => {
            let value = line(name)?;
            (keyring.set(name, &value), name, "is in the keyring")
        }
        Action::Remove { name } => (keyring.remove(name), name, "was taken out of the keyring"),
        Action::Test { name } => (keyring.get(name).map(drop), name, "is in the keyring, and Nonet gets it"),
    };
    if let Err(error) = result {
        match (action, &error) {
            (Action::Remove { .. }, keyring::Error::NoSecret(_)) => eprintln!("nonet: {error}."),
            _ => eprintln!("nonet: {error}. {}", error.remedy()),
        }
        return Ok(FAILED);
    }
    say!("`{name}` {done}.");
    if matches!(action, Action::Set { .. }) {
        say!(
            "In servers.toml it is `${{keyring:{name}}}`. A gateway that is running takes a changed secret when \
             that file is saved."
        );
    }
    Ok(OK)
}

/// The line that holds the secret, without its end.
fn line(name: &str) -> anyhow::Result<String> {
    let line = if stdin().is_terminal() {
        rpassword::prompt_password(format!("The secret {name} (it is not shown): "))
    } else {
        let mut line = String::new();
        stdin().read_line(&mut line).map(|_| line)
    };
    let line = line.context("the secret could not be read from stdin")?;
    let value = line.trim_end_matches(['\r', '\n']);
    anyhow::ensure!(!value.is_empty(), "there is no secret in the first line of stdin");
    Ok(value.into())
}
