//! `nonet remove`, `enable` and `disable`: edit single servers of servers.toml.

use std::path::{Path, PathBuf};

use nonet_config::shell;
use nonet_hosts::{
    self as hosts, ChangeResult, FileChange, Machine, SecretStore, ServerRemoval, UnusedSecret,
};
use nonet_servers::oauth::Vault;
use nonet_store as store;
use serde_json::{Value, json};

use super::{
    FAILED, found, hosts as commands, reload, show,
    take_up::{self, ExpectedState, ObservedState},
};

/// How an edit is made and reported.
#[derive(Clone, Copy, Debug)]
pub(super) struct EditStyle {
    pub dry_run: bool,
    pub json: bool,
}

/// Removes a server, and reports its leftovers.
pub(super) async fn remove(server: &str, config: Option<&Path>, style: EditStyle) -> anyhow::Result<u8> {
    let file = used(config)?;
    let removal = hosts::remove_server(&file, server, &Machine::this()?)?;
    let sign_in = store::folder().is_some_and(|state| !Vault::in_state(&state).entries_of(server).is_empty());
    let details = json!({
        "named_in": removal.named_in,
        "left_out": removal.left_out,
        "unused_secrets": removal.unused,
        "logout": sign_in.then(|| shell::nonet(&format!("logout {server}"), &file)),
    });
    let edit = Edit { server, file: &file, change: &removal.change, wanted: ExpectedState::Absent, style };
    accept(&removal.change, style);
    let applied = commands::apply(&removal.change, style.dry_run)?;
    edit.finish(applied, details, || tell_remains(&removal, server, sign_in, &file)).await
}

/// Enables or disables a server.
pub(super) async fn enable(
    server: &str,
    enabled: bool,
    config: Option<&Path>,
    style: EditStyle,
) -> anyhow::Result<u8> {
    let file = used(config)?;
    let change = hosts::enable_server(&file, server, enabled, &Machine::this()?)?;
    let wanted = if enabled { ExpectedState::Present } else { ExpectedState::Absent };
    let edit = Edit { server, file: &file, change: &change, wanted, style };
    accept(&change, style);
    let applied = commands::apply(&change, style.dry_run)?;
    // Values not needed while the server was disabled may be missing now.
    let is_written = enabled && applied.as_ref().is_some_and(|applied| applied.file.is_some());
    let loaded = if is_written { super::load(&file).ok() } else { None };
    let left_out = loaded.and_then(|loaded| Some(loaded.config.left_out.get(server)?.why()));
    let details = json!({ "enabled": enabled, "fault": left_out });
    let tell = || {
        left_out.iter().for_each(|why| show::complain(format_args!("`{server}` is left out: {why}")));
    };
    let code = edit.finish(applied, details, tell).await?;
    Ok(if left_out.is_some() { FAILED } else { code })
}

/// Marks the edit as intended, even if it affects the only server.
fn accept(change: &FileChange, style: EditStyle) {
    if let Some((before, after)) = change.texts().filter(|_| !style.dry_run && !change.is_nothing()) {
        reload::accept_edit(&change.file, before, after);
    }
}

/// Returns the servers.toml that the other commands use.
pub(super) fn used(config: Option<&Path>) -> anyhow::Result<PathBuf> {
    let file = found::path(config)?;
    Ok(std::path::absolute(&file).unwrap_or(file))
}

fn tell_remains(removal: &ServerRemoval, server: &str, sign_in: bool, file: &Path) {
    if !removal.named_in.is_empty() {
        say!("Still named in {}; remove the name there.", quoted(&removal.named_in));
    }
    for entry in &removal.left_out {
        say!("[{entry}] is left out as long as it names `{server}`.");
    }
    for UnusedSecret { name, store } in &removal.unused {
        let (place, option) = match store {
            SecretStore::File => ("secrets.env", " --file"),
            SecretStore::Keyring => ("the keyring", ""),
        };
        let remove = shell::nonet(&format!("secret remove {name}{option}"), file);
        say!("The secret `{name}` in {place} is now unused: `{remove}` deletes it.");
    }
    if sign_in {
        say!(
            "Its sign-in is still stored: `{}` deletes it.",
            shell::nonet(&format!("logout {server}"), file)
        );
    }
}

fn quoted(names: &[String]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    show::names(&names)
}

/// An edit of a server.
struct Edit<'a> {
    server: &'a str,
    file: &'a Path,
    change: &'a FileChange,
    wanted: ExpectedState,
    style: EditStyle,
}

impl Edit<'_> {
    /// Reports the edit, and waits for the running gateway. `more` prints further details after the change.
    async fn finish(
        &self,
        applied: Option<ChangeResult>,
        details: Value,
        more: impl FnOnce(),
    ) -> anyhow::Result<u8> {
        let is_written = applied.as_ref().is_some_and(|applied| applied.file.is_some());
        if !self.style.json {
            match self.change.is_nothing() {
                true => self.change.told.iter().for_each(|told| say!("{told}")),
                false => commands::finish(self.change, applied.clone()),
            }
            more();
        }
        let taken_up = match is_written {
            true => Some(take_up::wait(self.file, self.server, self.wanted).await),
            false => None,
        };
        let code = taken_up.as_ref().map_or(super::OK, ObservedState::code);
        if !self.style.json {
            taken_up.iter().for_each(|taken_up| taken_up.tell(self.server, self.file));
            return Ok(code);
        }
        let mut answer = json!({ "server": self.server, "file": self.file, "written": is_written });
        if let (Some(fields), Value::Object(details)) = (answer.as_object_mut(), details) {
            fields.extend(details.into_iter().filter(|(_, value)| !value.is_null()));
        }
        if let Some(backup) = applied.and_then(|applied| applied.backup) {
            answer["backup"] = json!(backup);
        }
        if self.style.dry_run {
            answer["dry_run"] = json!(true);
            answer["diff"] = json!(self.change.diff());
        }
        if let Some(taken_up) = taken_up {
            answer["gateway"] = taken_up.json();
        }
        raw!("{}", serde_json::to_string_pretty(&answer)?);
        Ok(code)
    }
}
