//! Moves the servers of this machine's clients behind Nonet: the steps that `nonet setup` and the page share.
//!
//! A [`Setup`] is everything known before the first question. Nothing is written before the caller applies
//! the [`ImportPlan`] servers.toml or the [`FileChange`] of a client's file; a [`SetupUndo`] knows how to
//! undo all of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    time::Duration,
};

use nonet_config::{
    self as config,
    keyring::{self, Keyring},
    shell,
};

use super::{
    ChangeResult, FileChange, FileScope, HOSTS, Host, HostFault, ImportOptions, ImportPlan, ImportSource,
    KnownServer, LaunchCommand, Machine, Os, OwnEntry, RemainingServer, SecretStore, Variable, import,
    import::secrets_beside, install, is_lost, keeping_secrets, present, text::bytes, uninstall,
};

/// A client to set up.
#[derive(Clone, Debug)]
pub struct SetupClient {
    /// The client.
    pub host: &'static Host,
    /// Its file.
    pub file: PathBuf,
    /// How the client should start Nonet.
    launch: LaunchCommand,
}

/// A client whose file stays as it is.
#[derive(Debug)]
pub struct SkippedClient {
    /// The client.
    pub host: &'static Host,
    /// Why.
    pub why: HostFault,
}

/// The change of a client's file, if every server works and the user agrees.
#[derive(Debug)]
pub struct ClientPlan {
    /// The client.
    pub host: &'static Host,
    /// How many of its servers move.
    pub moves: usize,
    /// Whether its file stays as it is.
    pub is_nothing: bool,
}

/// Everything that a setup knows before it asks questions.
pub struct Setup {
    /// The machine.
    pub machine: Machine,
    /// The servers.toml.
    pub target: PathBuf,
    /// The clients to set up.
    pub clients: Vec<SetupClient>,
    /// The clients that stay as they are.
    pub skipped: Vec<SkippedClient>,
    /// Where clients were looked for.
    pub looked_at: Vec<PathBuf>,
    /// Whether servers.toml existed before.
    pub had_config: bool,
}

impl Setup {
    /// Returns the setup of the named clients, else of the clients with a configuration. A client with an
    /// unreadable file or another Nonet is skipped.
    ///
    /// # Errors
    ///
    /// If a named client cannot be set up.
    pub fn find(
        named: Vec<&'static Host>,
        target: &Path,
        profile: Option<&str>,
        machine: Machine,
    ) -> Result<Self, HostFault> {
        let all = named.is_empty();
        let hosts = if all { HOSTS.iter().collect() } else { named };
        let had_config = target.exists();
        let (clients, skipped, looked_at) = Default::default();
        let mut setup = Self { machine, target: target.into(), clients, skipped, looked_at, had_config };
        for host in hosts {
            let Some(file) = host.file(FileScope::User, &setup.machine) else { continue };
            setup.looked_at.push(file.clone());
            let is_there = setup.clients.iter().any(|client| client.host.name == host.name);
            if is_there || all && !file.exists() {
                continue;
            }
            match setup.launch(host, profile) {
                Ok(launch) => setup.clients.push(SetupClient { host, file, launch }),
                Err(why) if all => setup.skipped.push(SkippedClient { host, why }),
                Err(why) => return Err(why),
            }
        }
        Ok(setup)
    }

    /// Returns how a client should start Nonet: unchanged, if the configuration is the same. Fails for a file
    /// that cannot be edited, such as flow-style YAML: it must not stop the other clients.
    fn launch(&self, host: &'static Host, profile: Option<&str>) -> Result<LaunchCommand, HostFault> {
        import(ImportSource::Users(&[host], &[]), &self.target, ImportOptions::default(), &self.machine)?;
        let wanted = LaunchCommand::of(&self.target, profile, &self.machine).map_err(|source| {
            let message = format!("the path of this program is unknown: {source}");
            HostFault::new(message, "Start Nonet by its full path.")
        })?;
        let launch = match present(host, FileScope::User, &self.machine)? {
            OwnEntry::Absent => wanted,
            OwnEntry::Program { config, .. } if !self.is_target(config.as_deref()) => {
                let remedy = format!("`nonet install {}` changes that.", host.name);
                return Err(HostFault::new("its `nonet` uses another configuration", remedy));
            }
            OwnEntry::Program { launch: now, .. } => match profile {
                None if !is_lost(&now.command) => now,
                None => wanted.with_options_of(now.args),
                Some(_) => wanted,
            },
            OwnEntry::Elsewhere => {
                let message = "its `nonet` connects to a gateway elsewhere".to_string();
                let remedy = format!("`nonet uninstall {}` removes it.", host.name);
                return Err(HostFault::new(message, remedy));
            }
        };
        install(host, FileScope::User, &launch, &[], &self.machine)?;
        Ok(launch)
    }

    /// Whether the configuration that an entry names is this servers.toml; without a name, the user's own
    /// counts.
    fn is_target(&self, config: Option<&str>) -> bool {
        let file = config.map_or_else(config::user_file, |file| std::path::absolute(file).ok());
        file.as_deref() == Some(&*self.target)
    }

    /// Works out the servers.toml with the servers of the clients, but without those left out, and with their
    /// secrets stored. A keyring is asked only if needed, for at most `limit`.
    pub fn import(
        &self,
        limit: Duration,
        left: &[RemainingServer],
    ) -> Result<(ImportPlan, Option<Keyring>), HostFault> {
        let hosts = self.hosts();
        let source = ImportSource::Users(&hosts, left);
        let work = |options: ImportOptions<'_>| import(source, &self.target, options, &self.machine);
        let (mut imported, keyring) = keeping_secrets(limit, false, work, ImportPlan::has_secrets)?;
        imported.keep_backup();
        Ok((imported, keyring))
    }

    /// Does the same with the servers.toml as it is by now.
    pub fn import_again(
        &self,
        keyring: Option<&Keyring>,
        left: &[RemainingServer],
    ) -> Result<ImportPlan, HostFault> {
        let hosts = self.hosts();
        let options = ImportOptions { replace: false, keyring, file: true };
        import(ImportSource::Users(&hosts, left), &self.target, options, &self.machine)
    }

    fn hosts(&self) -> Vec<&'static Host> {
        self.clients.iter().map(|client| client.host).collect()
    }

    /// Returns the servers that can probably move behind Nonet; none has been started yet.
    pub fn movable(&self, host: &Host, imported: &ImportPlan) -> Vec<KnownServer> {
        let unset = imported.variables.iter().filter(|variable| !variable.set);
        let unset: BTreeSet<&String> = unset.flat_map(|variable: &Variable| &variable.servers).collect();
        let mut carried = imported.will_be_carried(host, FileScope::User, &self.machine);
        carried.retain(|carried| !unset.contains(&carried.server));
        carried
    }

    /// Returns the planned change of each client's file.
    pub fn planned(&self, imported: &ImportPlan) -> Result<Vec<ClientPlan>, HostFault> {
        let plan = |client: &SetupClient| {
            let carried = self.movable(client.host, imported);
            let change = self.change(client, &carried)?;
            Ok(ClientPlan { host: client.host, moves: carried.len(), is_nothing: change.is_nothing() })
        };
        self.clients.iter().map(plan).collect()
    }

    /// Whether at least two clients start Nonet with this configuration after the changes, and can share a
    /// gateway.
    pub fn is_shared(&self, planned: &[ClientPlan]) -> bool {
        let is_planned =
            |host: &Host| planned.iter().any(|plan| plan.host.name == host.name && !plan.is_nothing);
        let is_there = |host: &Host| match present(host, FileScope::User, &self.machine) {
            Ok(OwnEntry::Program { config, .. }) => self.is_target(config.as_deref()),
            _ => false,
        };
        let clients = HOSTS.iter().filter(|host| is_planned(host) || is_there(host));
        self.machine.os != Os::Windows && clients.count() > 1
    }

    /// Works out a client's file with Nonet in it and without these servers.
    pub fn change(&self, client: &SetupClient, carried: &[KnownServer]) -> Result<FileChange, HostFault> {
        let names: Vec<String> = carried.iter().map(|carried| carried.name.clone()).collect();
        install(client.host, FileScope::User, &client.launch, &names, &self.machine)
    }

    /// Splits the servers of a client into those that move, and those that stay because Nonet cannot run
    /// them. `now` is made of the servers.toml as it is by now; `broken` has the reasons by server.
    pub fn carried(
        &self,
        client: &SetupClient,
        now: &ImportPlan,
        broken: &BTreeMap<String, String>,
    ) -> (Vec<KnownServer>, Vec<KnownServer>) {
        let carried = now.carried(client.host, FileScope::User, &self.machine).into_iter();
        carried.partition(|carried| !broken.contains_key(&carried.server))
    }

    /// Returns what undoes a setup that wrote these files.
    pub fn undo(
        &self,
        imported: &ImportPlan,
        applied: &ChangeResult,
        clients: &[&'static Host],
    ) -> SetupUndo {
        let stored = |store: SecretStore| {
            let new = imported.secrets.iter().filter(move |kept| kept.store == store && !kept.there);
            new.map(|kept| kept.name.clone()).collect()
        };
        let written = applied.file.clone().zip(imported.change.after.clone());
        SetupUndo {
            target: self.target.clone(),
            had_config: self.had_config,
            clients: clients.to_vec(),
            in_keyring: stored(SecretStore::Keyring),
            in_file: stored(SecretStore::File),
            secrets_file: imported.secrets_file().into(),
            had_secrets_file: imported.had_secrets_file(),
            written,
            backup: applied.backup.clone(),
        }
    }
}

/// What a setup changed, to be undone.
#[derive(Clone, Debug)]
pub struct SetupUndo {
    target: PathBuf,
    had_config: bool,
    clients: Vec<&'static Host>,
    in_keyring: Vec<String>,
    in_file: Vec<String>,
    secrets_file: PathBuf,
    had_secrets_file: bool,
    /// The written servers.toml, with the text written.
    written: Option<(PathBuf, Vec<u8>)>,
    backup: Option<PathBuf>,
}

/// The changes that undo a setup.
pub struct UndoChanges {
    /// The clients' files.
    pub clients: Vec<FileChange>,
    /// The servers.toml; none if nothing in it can be undone.
    pub config: Option<FileChange>,
}

impl SetupUndo {
    /// Returns the commands that undo the setup. `nonet` makes a command for this servers.toml.
    pub fn commands(&self, nonet: impl Fn(&str) -> String) -> Vec<String> {
        let word = |path: &Path| shell::word(&path.to_string_lossy());
        let remove = if cfg!(windows) { "del" } else { "rm" };
        let mut undo: Vec<String> =
            self.clients.iter().map(|host| format!("nonet uninstall {}", host.name)).collect();
        undo.extend(self.in_keyring.iter().map(|name| format!("nonet secret remove {name}")));
        match (self.had_secrets_file, self.in_file.is_empty()) {
            (_, true) => {}
            (false, false) => undo.push(format!("{remove} {}", word(&self.secrets_file))),
            (true, false) => {
                undo.extend(self.in_file.iter().map(|name| nonet(&format!("secret remove {name} --file"))));
            }
        }
        match (&self.written, &self.backup) {
            (Some((file, _)), Some(backup)) => {
                let copy = if cfg!(windows) { "copy" } else { "cp" };
                undo.push(format!("{copy} {} {}", word(backup), word(file)));
            }
            (Some((file, _)), None) if !self.had_config => undo.push(format!("{remove} {}", word(file))),
            _ => {}
        }
        undo
    }

    /// Works out the files as they were before. A servers.toml that was new becomes empty, so that a gateway
    /// that uses it goes on. What has been undone already stays so.
    ///
    /// # Errors
    ///
    /// If servers.toml has changed since, or a file cannot be read.
    pub fn changes(&self, machine: &Machine) -> Result<UndoChanges, HostFault> {
        let clients = self.clients.iter().map(|host| uninstall(host, FileScope::User, machine));
        let clients = clients.collect::<Result<Vec<_>, _>>()?;
        let Some((file, after)) = &self.written else { return Ok(UndoChanges { clients, config: None }) };
        let now = bytes(file)?;
        let before = match &self.backup {
            Some(backup) => bytes(backup)?.ok_or_else(|| {
                let remedy = "Nothing was undone. Edit servers.toml by hand.".to_string();
                HostFault::new("the backup is gone", remedy).within(backup)
            })?,
            None => Vec::new(),
        };
        if now.as_ref() != Some(after) && now.as_ref() != Some(&before) {
            let remedy = "Nothing was undone. Undo the later changes first, or run the commands one by one.";
            let fault = HostFault::new("the file has changed since the setup", remedy);
            return Err(fault.within(file));
        }
        let config = FileChange::new(&self.target, now, Some(before), machine);
        Ok(UndoChanges { clients, config: Some(config) })
    }

    /// Removes the secrets that the setup stored, once no servers.toml needs them.
    pub fn remove_secrets(&self) -> Result<(), HostFault> {
        let keyring = Keyring::system(keyring::ATTENDED);
        for name in &self.in_keyring {
            match keyring.remove(name) {
                Ok(()) | Err(keyring::Error::NoSecret(_)) => {}
                Err(error) => return Err(HostFault::new(error.to_string(), error.remedy())),
            }
        }
        if self.in_file.is_empty() {
            return Ok(());
        }
        let mut file = secrets_beside(&self.target)?;
        for name in &self.in_file {
            file.remove(name);
        }
        file.write().map_err(|source| {
            let message = format!("cannot remove the secrets: {source}");
            HostFault::new(message, "Remove them from the file by hand.").within(file.path())
        })
    }
}
