//! Servers that clients have added to servers.toml. A comment above such a server says so, and a client may
//! remove it.

use std::path::Path;

use nonet_base::files;
use nonet_config as config;
use nonet_hosts::{self as hosts, HostFault, ImportOptions, Machine};
use serde_json::{Map, Value};

/// The comment above a server that a client has added.
const ADDED: &str = "# Added by a client with gateway.add_server.";

/// Why the file was not changed.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileEditError {
    #[error(transparent)]
    Edit(#[from] HostFault),
    #[error("{0}")]
    Mark(#[from] std::io::Error),
}

/// Adds a server. Secrets in its keys go to `secrets.env`.
pub(super) fn add(file: &Path, name: &str, keys: &Map<String, Value>) -> Result<(), FileEditError> {
    let options = ImportOptions { replace: false, keyring: None, file: true };
    hosts::add_server(file, name, keys, options, &Machine::this()?)?.apply()?;
    let text = config::read_text(file)?;
    if let Some(at) = header(&text, name) {
        let end = if text.contains("\r\n") { "\r\n" } else { "\n" };
        let (before, after) = text.split_at(at);
        files::replace_as_it_was(file, format!("{before}{ADDED}{end}{after}").as_bytes())?;
    }
    Ok(())
}

/// Whether a client has added the server.
pub(super) fn was_added(file: &Path, name: &str) -> bool {
    let Ok(text) = config::read_text(file) else { return false };
    let above = header(&text, name).and_then(|at| text[..at].lines().next_back());
    above.is_some_and(|line| line.trim() == ADDED)
}

/// Removes a server. Returns the names of secrets that are no longer used.
pub(super) fn remove(file: &Path, name: &str) -> Result<Vec<String>, FileEditError> {
    let removal = hosts::remove_server(file, name, &Machine::this()?)?;
    removal.change.apply()?;
    Ok(removal.unused.into_iter().map(|secret| secret.name).collect())
}

/// Returns the offset of the line with a server's header.
fn header(text: &str, name: &str) -> Option<usize> {
    let header = format!("[servers.{}]", config::written_key(name));
    let mut at = 0;
    text.split_inclusive('\n').find_map(|line| {
        let start = at;
        at += line.len();
        (line.trim() == header).then_some(start)
    })
}
