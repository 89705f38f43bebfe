//! `nonet import`, `install` and `uninstall`: the configuration files of MCP hosts.

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::json;

use super::{FAILED, OK, show};
use crate::{
    config,
    hosts::{self, Applied, Change, Done, Imported, Launch, Machine, Manner, Scope, Source},
};

/// The `servers.toml` that is written to: the one that would be used, else the last place where it was looked for.
fn target(config: Option<&Path>) -> PathBuf {
    config::find(config).unwrap_or_else(|missing| {
        missing.looked_at.into_iter().next_back().unwrap_or_else(|| config::FILE_NAME.into())
    })
}

/// What a user names: a host, else a file. A host's name is never a file in the current folder.
fn source(name: &str) -> Result<Source<'_>, hosts::Fault> {
    match hosts::find(name) {
        Ok(host) => Ok(Source::Host(host)),
        Err(_) if name.contains(['/', '\\', '.']) || Path::new(name).exists() => {
            Ok(Source::File(Path::new(name)))
        }
        Err(unknown) => Err(unknown),
    }
}

/// Takes servers over from a host or a file; from every host that has some if none is named.
pub fn import(
    name: Option<&str>,
    config: Option<&Path>,
    manner: Manner<'_>,
    dry_run: bool,
    json: bool,
) -> anyhow::Result<u8> {
    let machine = Machine::this()?;
    let target = target(config);
    let source = name.map_or(Ok(Source::All), source)?;
    let imported = hosts::import(source, &target, manner, &machine)?;
    let applied = if dry_run { None } else { Some(imported.apply()?) };
    if json {
        let mut answer = json!({
            "file": target,
            "servers": imported.rows,
            "variables": imported.variables,
            "dry_run": dry_run,
        });
        if manner.keyring.is_some() {
            answer["secrets"] = json!(imported.secrets);
        }
        if let Some(backup) = applied.and_then(|applied| applied.backup) {
            answer["backup"] = json!(backup);
        }
        say!("{}", serde_json::to_string_pretty(&answer)?);
    } else {
        tell(&imported, dry_run);
        let written = applied.as_ref().is_some_and(|applied| applied.file.is_some());
        finish(&imported.change, applied);
        if written {
            say!("Look it over with `nonet check`.");
        }
    }
    let left_out = imported.rows.iter().any(|row| matches!(row.done, Done::Skipped { .. }));
    Ok(if left_out { FAILED } else { OK })
}

/// What became of each server, and what its user is to do.
fn tell(imported: &Imported, dry_run: bool) {
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
    let unset: Vec<_> = imported.variables.iter().filter(|variable| !variable.set).collect();
    if !unset.is_empty() {
        say!("\nSecrets are not copied: Nonet needs these variables in its environment.");
        for variable in unset {
            say!("  {}  ({})", variable.hint, variable.what);
        }
    }
    if !imported.secrets.is_empty() {
        say!("{}", if dry_run { "\nFor the keyring:" } else { "\nIn the keyring:" });
        for secret in &imported.secrets {
            let there = if secret.there { "; it was there" } else { "" };
            say!("  {}  (for {}{there})", secret.name, secret.servers.join(", "));
        }
    }
    say!("");
}

/// Puts Nonet into a host's configuration, under a profile if one is named. `replace` takes out what `servers.toml`
/// has of it.
pub fn install(
    host: &str,
    config: Option<&Path>,
    profile: Option<&str>,
    project: bool,
    replace: bool,
    dry_run: bool,
) -> anyhow::Result<u8> {
    let machine = Machine::this()?;
    let host = hosts::find(host)?;
    let scope = if project { Scope::Project } else { Scope::User };
    let target = target(config);
    let carried = if replace {
        hosts::import(Source::Host(host), &target, Manner::default(), &machine)?
            .carried(host, scope, &machine)
    } else {
        Vec::new()
    };
    let command = std::env::current_exe().context("the path of this program is not known")?;
    let file = std::path::absolute(&target).unwrap_or(target);
    let mut args = vec!["--config".into(), file.display().to_string()];
    if let Some(profile) = profile {
        args.extend(["--profile".into(), profile.into()]);
    }
    let launch = Launch { command: command.display().to_string(), args };
    let change = hosts::install(host, scope, &launch, &carried, &machine)?;
    finish(&change, apply(&change, dry_run)?);
    if !dry_run && !change.is_nothing() {
        let project = if project { " --project" } else { "" };
        say!("To undo it: nonet uninstall {}{project}", host.name);
    }
    Ok(OK)
}

/// Takes Nonet out again.
pub fn uninstall(host: &str, project: bool, dry_run: bool) -> anyhow::Result<u8> {
    let machine = Machine::this()?;
    let scope = if project { Scope::Project } else { Scope::User };
    let change = hosts::uninstall(hosts::find(host)?, scope, &machine)?;
    finish(&change, apply(&change, dry_run)?);
    Ok(OK)
}

fn apply(change: &Change, dry_run: bool) -> Result<Option<Applied>, hosts::Fault> {
    if dry_run { Ok(None) } else { change.apply().map(Some) }
}

/// Says what was done with a file; what would be done, if nothing was applied.
fn finish(change: &Change, applied: Option<Applied>) {
    for told in &change.told {
        say!("{told}");
    }
    if change.is_nothing() {
        say!("{}: nothing to change.", change.file.display());
    }
    match applied {
        None => {
            if !change.is_nothing() {
                say!("{}", change.diff());
            }
            say!("Nothing was written (--dry-run).");
        }
        Some(Applied { file, backup }) => {
            if let Some(file) = file {
                say!("written: {}", file.display());
            }
            if let Some(backup) = backup {
                say!("backup:  {}", backup.display());
            }
        }
    }
}
