//! The changes of a setup: files, secrets, and the check of every server.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use anyhow::Context;

use super::{
    super::{
        FAILED, OK, gateway,
        hosts::{self as commands},
        load, show,
    },
    Setup,
};
use crate::{
    downstream::{Remedy, State},
    hosts::{self, Carried, FileScope, Host, ImportOptions, ImportSource, Imported, SecretStore},
    keyring::Keyring,
    secrets_file::{self, SecretsFile},
    shell,
};

impl Setup {
    /// Applies what the user agreed to.
    pub async fn apply(
        &self,
        imported: &Imported,
        keyring: Option<&Keyring>,
        chosen: &BTreeSet<&str>,
        typed: Vec<(String, String)>,
    ) -> anyhow::Result<u8> {
        let applied = imported.apply()?;
        if applied.file.is_some() {
            say!("written: {}", self.target.display());
        }
        if let Some(backup) = &applied.backup {
            say!("backup:  {}", backup.display());
        }
        self.keep_typed(&typed)?;

        let broken = match self.broken().await? {
            Ok(broken) => broken,
            Err(code) => {
                let file = self.target.display();
                let written =
                    if applied.file.is_some() { format!("{file} was written, and ") } else { String::new() };
                show::complain(format_args!("interrupted: {written}no client was changed"));
                self.tell_undo(imported, &applied, &[], &typed);
                return Ok(code);
            }
        };
        // Uses the current servers.toml.
        let hosts: Vec<&'static Host> = self.clients.iter().map(|client| client.host).collect();
        let manner = ImportOptions { replace: false, keyring, file: true };
        let now = hosts::import(ImportSource::Users(&hosts), &self.target, manner, &self.machine)?;
        let (mut code, mut installed) = (OK, Vec::new());
        let mut stayed = false;
        for client in self.clients.iter().filter(|client| chosen.contains(client.host.name)) {
            let host = client.host;
            say!("\n{}", host.title);
            let (stay, carried): (Vec<_>, Vec<_>) = now
                .carried(host, FileScope::User, &self.machine)
                .into_iter()
                .partition(|carried| broken.contains_key(&carried.server));
            commands::tell_staying(&now.staying(host, FileScope::User, &self.machine));
            for Carried { name, server } in stay {
                let why = broken.get(&server).map(String::as_str).unwrap_or_default();
                say!("`{name}` stays in its file because Nonet cannot run it: {why}");
                stayed = true;
            }
            let done = self.change(client, &carried).and_then(|change| {
                let applied = commands::apply(&change, false)?;
                commands::finish(&change, applied);
                Ok(!change.is_nothing())
            });
            match done {
                Ok(true) => installed.push(host),
                Ok(false) => {}
                Err(error) => {
                    eprintln!("nonet: {}: {error:#}", host.title);
                    code = FAILED;
                }
            }
            commands::tell_of_this_shell(&now, &carried, host, &self.target);
        }
        if stayed {
            say!("\nOnce Nonet can run the remaining servers, `nonet setup` moves them too.");
        }
        self.tell_undo(imported, &applied, &installed, &typed);
        Ok(code)
    }

    /// Stores the values that the user typed for variables.
    fn keep_typed(&self, typed: &[(String, String)]) -> anyhow::Result<()> {
        if typed.is_empty() {
            return Ok(());
        }
        let path = secrets_file::beside(&self.target);
        let unusable = || format!("cannot use {}", path.display());
        let mut file = SecretsFile::read(&path).with_context(unusable)?;
        typed.iter().for_each(|(name, value)| file.set(name, value));
        file.write().with_context(unusable)
    }

    /// Starts every server. Returns those that do not work, each with the reason and the remedy; the exit code if the
    /// user interrupts it.
    async fn broken(&self) -> anyhow::Result<Result<BTreeMap<String, String>, u8>> {
        let loaded = load(&self.target)?;
        let left_out = &loaded.config.left_out;
        let mut broken: BTreeMap<String, String> =
            left_out.iter().map(|(name, left_out)| (name.clone(), left_out.brief())).collect();
        let left_out = left_out.len();
        let gateway = gateway(loaded, false);
        if let Err(code) = show::all_started(&gateway).await {
            return Ok(Err(code));
        }
        let connections = gateway.connections();
        for (name, connection) in connections.iter() {
            let why = match connection.state() {
                State::Ready { .. } => continue,
                State::AuthRequired { remedy: Remedy::Login(login), .. } => {
                    format!("it requires sign-in; run `{login}`")
                }
                State::AuthRequired { error, .. } | State::Down { error, .. } => show::failure(&error, false),
                State::Starting => "it is still starting".into(),
                State::Stopped => "it was stopped".into(),
            };
            broken.insert(name.to_string(), why);
        }
        let works = connections.keys().filter(|name| !broken.contains_key(&***name)).count();
        let tools = gateway.snapshot().of_servers().count();
        let all = connections.len() + left_out;
        gateway.stop().await;
        let work = if works == 1 || all == 1 { "works" } else { "work" };
        let [servers, tools] =
            [(all, "server"), (tools, "tool")].map(|(n, thing)| show::count(n as u64, thing));
        say!("{works} of {servers} {work}, with {tools}.");
        Ok(Ok(broken))
    }

    fn tell_undo(
        &self,
        imported: &Imported,
        applied: &hosts::Applied,
        installed: &[&Host],
        typed: &[(String, String)],
    ) {
        let stored = |store: SecretStore| {
            let new = imported.secrets.iter().filter(move |kept| kept.store == store && !kept.there);
            new.map(|kept| kept.name.as_str())
        };
        let word = |path: &Path| shell::word(&path.to_string_lossy());
        let remove = if cfg!(windows) { "del" } else { "rm" };
        let mut undo: Vec<String> =
            installed.iter().map(|host| format!("nonet uninstall {}", host.name)).collect();
        undo.extend(stored(SecretStore::Keyring).map(|name| format!("nonet secret remove {name}")));
        let in_file: Vec<&str> =
            stored(SecretStore::File).chain(typed.iter().map(|(name, _)| name.as_str())).collect();
        match (imported.had_secrets_file(), in_file.is_empty()) {
            (_, true) => {}
            (false, false) => undo.push(format!("{remove} {}", word(imported.secrets_file()))),
            (true, false) => undo.extend(
                in_file
                    .iter()
                    .map(|name| commands::command(&format!("secret remove {name} --file"), &self.target)),
            ),
        }
        match (&applied.file, &applied.backup) {
            (Some(file), Some(backup)) => {
                let copy = if cfg!(windows) { "copy" } else { "cp" };
                undo.push(format!("{copy} {} {}", word(backup), word(file)));
            }
            (Some(file), None) if !self.had_config => undo.push(format!("{remove} {}", word(file))),
            _ => {}
        }
        if undo.is_empty() {
            say!("\nNothing was changed.");
            return;
        }
        say!("\nTo undo the setup:");
        undo.iter().for_each(|line| say!("  {line}"));
        let check = commands::command("check", &self.target);
        say!(
            "\n`{check}` checks everything at any time; `nonet search \"...\"` finds tools as a model does."
        );
    }
}
