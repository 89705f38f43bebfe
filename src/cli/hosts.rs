//! `nonet import`, `install` and `uninstall`: the configuration files of MCP hosts.

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::json;

use super::{FAILED, OK, show};
use crate::{
    config,
    hosts::{self, Change, Done, Imported, Launch, Machine, Manner, Scope, Source},
};

/// The `servers.toml` that is written to: the one that would be used, else the user's own.
fn target(config: Option<&Path>, machine: &Machine) -> PathBuf {
    let own = || {
        let folder =
            machine.env.get("XDG_CONFIG_HOME").map(PathBuf::from).filter(|folder| folder.is_absolute());
        folder.unwrap_or_else(|| machine.home.join(".config")).join("nonet").join(config::FILE_NAME)
    };
    match config {
        Some(file) => file.into(),
        None => config::find(None).unwrap_or_else(|_| own()),
    }
}

/// Takes servers over from a host or a file; from every host that has some if none is named.
pub fn import(
    source: Option<&str>,
    config: Option<&Path>,
    manner: Manner<'_>,
    dry_run: bool,
    json: bool,
) -> anyhow::Result<u8> {
    let machine = Machine::this()?;
    let target = target(config, &machine);
    let mut all = Vec::new();
    match source {
        Some(name) if Path::new(name).exists() => {
            all.push(take(Source::File(Path::new(name)), &target, manner, dry_run, &machine)?);
        }
        Some(name) => all.push(take(Source::Host(hosts::find(name)?), &target, manner, dry_run, &machine)?),
        None => {
            let there = |host: &&hosts::Host| {
                let files =
                    [Scope::User, Scope::Project].into_iter().filter_map(|scope| host.file(scope, &machine));
                files.into_iter().any(|file| file.exists())
            };
            for host in hosts::HOSTS.iter().filter(there) {
                all.push(take(Source::Host(host), &target, manner, dry_run, &machine)?);
            }
            anyhow::ensure!(
                !all.is_empty(),
                "no MCP host was found on this machine; give a FILE, or a host's name"
            );
        }
    }
    if json {
        let rows: Vec<_> = all.iter().flat_map(|imported| &imported.rows).collect();
        let variables: Vec<_> = all.iter().flat_map(|imported| &imported.variables).collect();
        let mut answer =
            json!({ "file": target, "servers": rows, "variables": variables, "dry_run": dry_run });
        if manner.keyring.is_some() {
            answer["secrets"] = json!(all.iter().flat_map(|imported| &imported.secrets).collect::<Vec<_>>());
        }
        show::line(&serde_json::to_string_pretty(&answer)?);
        return Ok(OK);
    }
    let mut table = show::plain_table(&["SERVER", "FROM", "DONE"]);
    for row in all.iter().flat_map(|imported| &imported.rows) {
        let from = row.from.host.map_or_else(|| row.from.file.display().to_string(), String::from);
        table.add_row([row.name.clone(), from, row.done.to_string()]);
    }
    show::line(&table.to_string());
    for (row, note) in
        all.iter().flat_map(|i| &i.rows).flat_map(|row| row.notes.iter().map(move |n| (row, n)))
    {
        show::line(&format!("{}: {note}", row.name));
    }
    for note in all.iter().flat_map(|imported| &imported.notes) {
        show::line(note);
    }
    let unset: Vec<_> =
        all.iter().flat_map(|imported| &imported.variables).filter(|variable| !variable.set).collect();
    if !unset.is_empty() {
        show::line("\nSecrets were not copied. Set these variables for Nonet:");
        for variable in unset {
            show::line(&format!("  {}  ({})", variable.hint, variable.what));
        }
    }
    let secrets: Vec<_> = all.iter().flat_map(|imported| &imported.secrets).collect();
    if !secrets.is_empty() {
        show::line(if dry_run { "\nFor the keyring:" } else { "\nIn the keyring:" });
        for secret in secrets {
            let there = if secret.there { "; it was there" } else { "" };
            show::line(&format!("  {}  (for {}{there})", secret.name, secret.servers.join(", ")));
        }
    }
    if dry_run {
        for imported in &all {
            show::line(&imported.change.diff());
        }
        show::line("Nothing was written (--dry-run).");
    } else {
        show::line(&format!("\n{}: look it over with `nonet check`.", target.display()));
    }
    let left_out = all.iter().flat_map(|i| &i.rows).any(|row| matches!(row.done, Done::Skipped { .. }));
    Ok(if left_out { FAILED } else { OK })
}

fn take(
    source: Source<'_>,
    target: &Path,
    manner: Manner<'_>,
    dry_run: bool,
    machine: &Machine,
) -> anyhow::Result<Imported> {
    let imported = hosts::import(source, target, manner, machine)?;
    if !dry_run {
        imported.apply()?;
    }
    Ok(imported)
}

/// Puts Nonet into a host's configuration. `replace` takes out what `servers.toml` has of it.
pub fn install(
    host: &str,
    config: Option<&Path>,
    project: bool,
    replace: bool,
    dry_run: bool,
) -> anyhow::Result<u8> {
    let machine = Machine::this()?;
    let host = hosts::find(host)?;
    let scope = if project { Scope::Project } else { Scope::User };
    let target = target(config, &machine);
    let carried = if replace {
        hosts::import(Source::Host(host), &target, Manner::default(), &machine)?
            .carried(host, scope, &machine)
    } else {
        Vec::new()
    };
    let command = std::env::current_exe().context("the path of this program is not known")?;
    let file = std::path::absolute(&target).unwrap_or(target);
    let launch = Launch {
        command: command.display().to_string(),
        args: vec!["--config".into(), file.display().to_string()],
    };
    let change = hosts::install(host, scope, &launch, &carried, &machine)?;
    finish(&change, dry_run)?;
    if !dry_run && !change.is_nothing() {
        show::line(&format!("To undo it: nonet uninstall {}", host.name));
    }
    Ok(OK)
}

/// Takes Nonet out again.
pub fn uninstall(host: &str, project: bool, dry_run: bool) -> anyhow::Result<u8> {
    let machine = Machine::this()?;
    let scope = if project { Scope::Project } else { Scope::User };
    let change = hosts::uninstall(hosts::find(host)?, scope, &machine)?;
    finish(&change, dry_run)?;
    Ok(OK)
}

fn finish(change: &Change, dry_run: bool) -> anyhow::Result<()> {
    for told in &change.told {
        show::line(told);
    }
    if change.is_nothing() {
        show::line(&format!("{}: nothing to change.", change.file.display()));
    } else if dry_run {
        show::line(&change.diff());
        show::line("Nothing was written (--dry-run).");
    } else {
        let applied = change.apply()?;
        if let Some(file) = applied.file {
            show::line(&format!("written: {}", file.display()));
        }
        if let Some(backup) = applied.backup {
            show::line(&format!("backup:  {}", backup.display()));
        }
    }
    Ok(())
}
