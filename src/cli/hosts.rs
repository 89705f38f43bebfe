//! `nonet import`, `install` and `uninstall`: the configuration files of MCP clients.

use std::{
    io::{IsTerminal, Read, stdin},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context;
use nonet_config::{
    self as config, LoadedConfig, UnusableEntry,
    keyring::{self, Keyring},
    shell,
};
use nonet_hosts::{
    self as hosts, ChangeResult, FileChange, FileScope, Host, ImportOptions, ImportPlan, ImportSource,
    KnownServer, LaunchCommand, Machine, SecretStore, Variable,
};
use nonet_servers::downstream;
use serde_json::json;

use super::{OK, show};

/// Returns the `servers.toml` to write: the named one, else the user's own. One in the current folder may
/// belong to a repository, so it must be named.
pub(super) fn target(config: Option<&Path>) -> anyhow::Result<PathBuf> {
    let file = match config {
        Some(file) => file.into(),
        None => {
            config::user_file().context("the home folder is unknown; name the file with `--config FILE`")?
        }
    };
    Ok(std::path::absolute(&file).unwrap_or(file))
}

/// Whether a `servers.toml` in the current folder is not the one to be written.
pub(super) fn is_passed_over(target: &Path) -> bool {
    let here = Path::new(config::FILE_NAME);
    here.exists() && std::path::absolute(here).is_ok_and(|here| here != target)
}

/// Returns a command for a configuration, as it works in the current folder.
pub(super) fn command(command: &str, target: &Path) -> String {
    match is_passed_over(target) {
        true => format!("nonet --config {} {command}", shell::word(&target.to_string_lossy())),
        false => shell::nonet(command, target),
    }
}

/// Where an import stores the secrets that it finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Secrets {
    /// In the keyring if there is one, else in `secrets.env`.
    Kept,
    /// In the keyring, or the import fails.
    Keyring,
    /// Nowhere: they become variables that the user sets.
    Variables,
}

/// Imports servers. Asks a keyring only if there are secrets. Returns the keyring with the result, and why an
/// existing one is not used.
pub(super) fn take_over(
    source: ImportSource<'_>,
    target: &Path,
    replace: bool,
    secrets: Secrets,
    machine: &Machine,
) -> anyhow::Result<(ImportPlan, Option<Keyring>)> {
    let work = |options: ImportOptions<'_>| hosts::import(source, target, options, machine);
    with_secrets(secrets, replace, work, ImportPlan::has_secrets)
}

/// How long a keyring may take: at a terminal, its user may have to unlock it.
pub(super) fn keyring_patience() -> Duration {
    if stdin().is_terminal() { keyring::ATTENDED } else { keyring::UNATTENDED }
}

/// Works out new servers, and the store of their secrets. Asks a keyring only if needed.
pub(super) fn with_secrets(
    secrets: Secrets,
    replace: bool,
    work: impl Fn(ImportOptions<'_>) -> Result<ImportPlan, hosts::HostFault>,
    has_secrets: fn(&ImportPlan) -> bool,
) -> anyhow::Result<(ImportPlan, Option<Keyring>)> {
    let limit = keyring_patience();
    match secrets {
        Secrets::Kept => Ok(hosts::keeping_secrets(limit, replace, work, has_secrets)?),
        Secrets::Keyring => {
            let keyring = Keyring::system(limit);
            let imported = work(ImportOptions { replace, keyring: Some(&keyring), file: false })?;
            Ok((imported, Some(keyring)))
        }
        Secrets::Variables => Ok((work(ImportOptions { replace, ..ImportOptions::default() })?, None)),
    }
}

/// Returns the source that a user named: a host, else a file. A host's name never means a file in the current
/// folder.
fn source(name: &str) -> Result<ImportSource<'_>, hosts::HostFault> {
    match hosts::find(name) {
        Ok(host) => Ok(ImportSource::Host(host)),
        Err(_) if name.contains(['/', '\\', '.']) || Path::new(name).exists() => {
            Ok(ImportSource::File(Path::new(name)))
        }
        Err(unknown) => Err(unknown),
    }
}

/// Returns the text that a word of the command line is, if it is neither a client nor a file: servers as
/// READMEs offer them. `-` is the text on stdin.
pub(super) fn pasted(word: &str) -> anyhow::Result<Option<String>> {
    if word == "-" {
        if stdin().is_terminal() {
            eprintln!("nonet: paste the text, then press Ctrl-D on a line of its own");
        }
        let mut text = String::new();
        let longest = u64::try_from(hosts::LONGEST_PASTED)?.saturating_add(1);
        stdin().lock().take(longest).read_to_string(&mut text).context("cannot read the text from stdin")?;
        return Ok(Some(text));
    }
    let is_text = hosts::is_pasted(word) && hosts::find(word).is_err() && !Path::new(word).exists();
    Ok(is_text.then(|| word.to_string()))
}

/// Imports servers from a client, a file or a pasted text; by default, from every client that has some.
pub(super) fn import(
    name: Option<&str>,
    config: Option<&Path>,
    replace: bool,
    secrets: Secrets,
    dry_run: bool,
    json: bool,
) -> anyhow::Result<u8> {
    let machine = Machine::this()?;
    let target = target(config)?;
    let text = name.map(pasted).transpose()?.flatten();
    let source = match (&text, name) {
        (Some(text), _) => ImportSource::Text(text, &[]),
        (None, Some(name)) => source(name)?,
        (None, None) => ImportSource::All,
    };
    let (imported, _) = take_over(source, &target, replace, secrets, &machine)?;
    let applied = if dry_run { None } else { Some(imported.apply()?) };
    if json {
        let mut answer = json!({
            "file": target,
            "servers": imported.rows,
            "variables": imported.variables,
            "dry_run": dry_run,
        });
        if !imported.notes.is_empty() {
            answer["notes"] = json!(imported.notes);
        }
        if secrets != Secrets::Variables {
            answer["secrets"] = json!(imported.secrets);
        }
        if imported.secrets.iter().any(|kept| kept.store == SecretStore::File) {
            answer["secrets_file"] = json!(imported.secrets_file());
        }
        if let Some(backup) = applied.and_then(|applied| applied.backup) {
            answer["backup"] = json!(backup);
        }
        raw!("{}", serde_json::to_string_pretty(&answer)?);
    } else {
        tell(&imported, &target, dry_run);
        let written = applied.as_ref().is_some_and(|applied| applied.file.is_some());
        finish(&imported.change, applied);
        if is_passed_over(&target) {
            say!(
                "The servers.toml in this folder is not changed; to change it, add `--config servers.toml`."
            );
        }
        if written {
            say!("Check it with `{}`.", command("check", &target));
        }
    }
    Ok(OK)
}

/// Prints the result for each server, and what the user should do.
pub(super) fn tell(imported: &ImportPlan, target: &Path, dry_run: bool) {
    let mut table = show::plain_table(&["SERVER", "FROM", "DONE"]);
    for row in &imported.rows {
        let from = row.from.host.map_or_else(|| row.from.file.display().to_string(), String::from);
        table.add_row([row.name.clone(), from, row.done.to_string()]);
    }
    say!("{table}");
    for row in &imported.rows {
        for note in &row.notes {
            say!("{}: {note}", row.name);
        }
    }
    for note in &imported.notes {
        say!("{note}");
    }
    tell_rules(imported);
    let unset: Vec<_> = imported.variables.iter().filter(|variable| !variable.set).collect();
    if !unset.is_empty() {
        say!("\nNonet leaves servers out until these variables are set:");
        for variable in unset {
            let set = command(&format!("secret set {} --file", variable.name), target);
            raw!("  {set}  ({}; for {})", variable.what, variable.servers.join(", "));
        }
    }
    tell_secrets(imported, dry_run);
    say!("");
}

/// Prints the clients' own rules for tools, and what servers.toml has for them.
fn tell_rules(imported: &ImportPlan) {
    if imported.rows.iter().all(|row| row.rules.is_empty()) {
        return;
    }
    let mut table = show::plain_table(&["CLIENT", "SERVER", "RULE THERE", "RULE HERE"]);
    for row in &imported.rows {
        let client = row.from.host.unwrap_or("-");
        for rule in &row.rules {
            table.add_row([client, &row.name, &rule.rule, &rule.became]);
        }
    }
    say!("\n{table}");
}

/// Prints where servers' secrets are stored.
pub(super) fn tell_secrets(imported: &ImportPlan, dry_run: bool) {
    let file = format!("In {}, readable only by you:", imported.secrets_file().display());
    for (store, title) in [(SecretStore::Keyring, "In the keyring:"), (SecretStore::File, &file)] {
        let kept: Vec<_> = imported.secrets.iter().filter(|kept| kept.store == store).collect();
        if kept.is_empty() {
            continue;
        }
        let title = if dry_run { title.replacen("In", "Would go into", 1) } else { title.into() };
        say!("\n{title}");
        for secret in kept {
            let there = if secret.there { "; already there" } else { "" };
            say!("  {}  (for {}{there})", secret.name, secret.servers.join(", "));
        }
    }
}

/// Adds Nonet to a host's configuration, with a profile if named. `replace` removes the host's servers that
/// `servers.toml` has.
pub(super) fn install(
    host: &str,
    config: Option<&Path>,
    profile: Option<&str>,
    project: bool,
    replace: bool,
    always_allow: bool,
    dry_run: bool,
) -> anyhow::Result<u8> {
    let machine = Machine::this()?;
    let host = hosts::find(host)?;
    let scope = if project { FileScope::Project } else { FileScope::User };
    let target = target(config)?;
    let imported = match replace {
        true => Some(hosts::import(ImportSource::Host(host), &target, ImportOptions::default(), &machine)?),
        false => None,
    };
    let carried = imported.as_ref().map(|found| found.carried(host, scope, &machine)).unwrap_or_default();
    let names: Vec<String> = carried.iter().map(|carried| carried.name.clone()).collect();
    let launch = LaunchCommand::of(&target, profile, &machine)?;
    // Its faults come first.
    hosts::install(host, scope, &launch, &names, &machine)?;
    let loaded = usable(&target, host, profile)?;
    let always = always_allow || !dry_run && is_to_be_allowed(host, scope, &machine)?;
    let install = if always { hosts::allow_always } else { hosts::install };
    let change = install(host, scope, &launch, &names, &machine)?;
    let lost: Vec<&KnownServer> =
        carried.iter().filter(|carried| loaded.config.left_out.contains_key(&carried.server)).collect();
    if !lost.is_empty() {
        anyhow::bail!(refusal(&loaded, &lost, host, &target));
    }
    finish(&change, apply(&change, dry_run)?);
    if let Some(imported) = &imported {
        tell_staying(&imported.staying(host, scope, &machine));
        if !imported.change.is_nothing() {
            let import = command(&format!("import {}", host.name), &target);
            say!("`{import}` adds the servers that are not in servers.toml.");
        }
        tell_of_this_shell(imported, &carried, host, &target);
    }
    let left_out = loaded.left_out().len();
    if left_out > 0 {
        let are = if left_out == 1 { "1 entry is".into() } else { format!("{left_out} entries are") };
        say!("{are} left out of {}; `{}` reports why.", target.display(), command("check", &target));
    }
    if always && loaded.config.policies.is_empty() {
        say!(
            "servers.toml has no policy, so nothing asks before a tool runs; `{}` adds one.",
            command("setup", &target)
        );
    }
    if !dry_run && !change.is_nothing() {
        let project = if project { " --project" } else { "" };
        say!("To undo the change, run `nonet uninstall {}{project}`.", host.name);
    }
    Ok(OK)
}

/// Asks at a terminal whether a client should ask about no tool of Nonet, if its entry can say so and does
/// not yet.
fn is_to_be_allowed(host: &Host, scope: FileScope, machine: &Machine) -> anyhow::Result<bool> {
    let Some(line) = host.always_allow().filter(|_| stdin().is_terminal()) else { return Ok(false) };
    if hosts::is_always_allowed(host, scope, machine)? {
        return Ok(false);
    }
    let title = host.title;
    eprintln!(
        "{title} asks before it calls `execute_tool`, whatever tool that runs; without a person to ask, it refuses. With `{line}` \
         in its entry it does not ask: then only the rules in servers.toml ask or refuse."
    );
    super::setup::agree(
        &format!("Let {title} call Nonet's tools without asking?"),
        false,
        &mut stdin().lock(),
        &mut std::io::stderr(),
    )
}

/// Prints which servers stay with their client, and why.
pub(super) fn tell_staying(staying: &[(String, String)]) {
    for (name, why) in staying {
        say!("`{name}` stays in its file: {why}.");
    }
}

/// Prints the servers' variables that are set only in this shell's environment.
pub(super) fn tell_of_this_shell(imported: &ImportPlan, carried: &[KnownServer], host: &Host, target: &Path) {
    let is_carried = |server: &String| carried.iter().any(|carried| carried.server == *server);
    let is_of_this_shell =
        |variable: &&Variable| variable.set && !variable.kept && !downstream::is_usual(&variable.name, "");
    for variable in imported.variables.iter().filter(is_of_this_shell) {
        if variable.servers.iter().any(is_carried) {
            let set = command(&format!("secret set {} --file", variable.name), target);
            say!(
                "`{}` is set only in this shell, and {} may not see it: run `{set}`",
                variable.name,
                host.title
            );
        }
    }
}

/// Reads the configuration that a host should start Nonet with, and a profile if named. Fails if Nonet could
/// not start with it.
fn usable(target: &Path, host: &Host, profile: Option<&str>) -> anyhow::Result<LoadedConfig> {
    if !target.exists() {
        let here = match is_passed_over(target) {
            true => {
                format!(
                    "; to use the file in this folder: `nonet install {} --config servers.toml`",
                    host.name
                )
            }
            false => String::new(),
        };
        anyhow::bail!(
            "{} would start Nonet with {}, which does not exist. Run `nonet setup`, or `nonet import {}` first{here}",
            host.title,
            target.display(),
            host.name
        );
    }
    let checked = super::load(target).map_err(anyhow::Error::from).and_then(|loaded| {
        super::has_profile(&loaded, profile)?;
        Ok(loaded)
    });
    checked.with_context(|| format!("{} could not start Nonet; nothing was changed", host.title))
}

/// Explains why a host's servers are not removed from its file, and what to do. `lost` are servers that Nonet
/// leaves out.
fn refusal(loaded: &LoadedConfig, lost: &[&KnownServer], host: &Host, target: &Path) -> String {
    let servers = if lost.len() == 1 { "a server".into() } else { format!("{} servers", lost.len()) };
    let mut text = format!(
        "nothing was changed: Nonet leaves out {servers} of {}, so nothing would run them:\n",
        host.title
    );
    for carried in lost {
        let why = loaded.config.left_out.get(&carried.server).map(UnusableEntry::brief).unwrap_or_default();
        text.push_str(&format!("  {}: {why}\n", carried.server));
    }
    let [import, set, check] =
        [format!("import {}", host.name), "secret set NAME --file".into(), "check".into()]
            .map(|text| command(&text, target));
    text.push_str(&format!(
        "`{import}` stores the secrets of the client's file, `{set}` stores a secret that you type, `{check}` reports \
         every fault. `nonet setup` does all of this and leaves such servers with {}.",
        host.title
    ));
    text
}

/// Removes Nonet from a host's file.
pub(super) fn uninstall(host: &str, project: bool, dry_run: bool) -> anyhow::Result<u8> {
    let machine = Machine::this()?;
    let scope = if project { FileScope::Project } else { FileScope::User };
    let change = hosts::uninstall(hosts::find(host)?, scope, &machine)?;
    finish(&change, apply(&change, dry_run)?);
    Ok(OK)
}

pub(super) fn apply(change: &FileChange, dry_run: bool) -> Result<Option<ChangeResult>, hosts::HostFault> {
    if dry_run { Ok(None) } else { change.apply().map(Some) }
}

/// Reports what was done to a file, or would be done if nothing was applied.
pub(super) fn finish(change: &FileChange, applied: Option<ChangeResult>) {
    if applied.is_none() && !change.is_nothing() {
        say!("This would be done:");
    }
    for told in &change.told {
        say!("{told}");
    }
    if change.is_nothing() {
        say!("{}: nothing to change.", change.file.display());
    }
    match applied {
        None => {
            if !change.is_nothing() {
                raw!("{}", change.diff());
            }
            say!("Nothing was written (--dry-run).");
        }
        Some(ChangeResult { file, backup }) => {
            if let Some(file) = file.filter(|_| !change.is_removal()) {
                say!("written: {}", file.display());
            }
            if let Some(backup) = backup {
                say!("backup:  {}", backup.display());
            }
        }
    }
}
