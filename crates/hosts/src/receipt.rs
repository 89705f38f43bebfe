//! The record of an install beside a host's file, for undoing it: the backup, the digest of the new file, and
//! the removed servers.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use nonet_base::{files::replace_as_it_was, text::hex};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::HostFault;

const RECEIPT: &str = "nonet-install.json";

/// The record of an install. Contains names, no values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Receipt {
    /// The backup of the file from before Nonet; none if there was no file.
    pub before: Option<String>,
    /// Whether `before` is the backup made with this change.
    #[serde(skip)]
    pub new_backup: bool,
    /// The SHA-256 of the file after the install.
    pub after: String,
    /// The removed servers.
    pub removed: Vec<RemovedServer>,
}

/// A server removed from the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct RemovedServer {
    pub name: String,
    /// The backup that contains it.
    pub backup: String,
}

impl Receipt {
    /// Returns the record of a file, if it is readable.
    pub(crate) fn of(file: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(path(file)).ok()?).ok()
    }

    /// Completes the record with the new backup.
    pub(crate) fn with_backup(mut self, backup: Option<&Path>) -> Self {
        let name = backup.and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
        if self.new_backup {
            self.before.clone_from(&name);
        }
        for removed in self.removed.iter_mut().filter(|removed| removed.backup.is_empty()) {
            removed.backup = name.clone().unwrap_or_default();
        }
        self
    }

    pub(crate) fn write(&self, file: &Path) -> Result<(), HostFault> {
        let path = path(file);
        let text = serde_json::to_vec_pretty(self).unwrap_or_default();
        replace_as_it_was(&path, &text).map_err(|source| {
            let remedy = "Nonet is installed, but `uninstall` can only remove its entry.";
            HostFault::new(format!("cannot write the record of the change: {source}"), remedy)
                .within(&path)
                .because(source)
        })
    }
}

/// Deletes the record of a file.
pub(super) fn forget(file: &Path) {
    // A leftover record no longer matches the file and is ignored.
    drop(fs::remove_file(path(file)));
}

/// Returns the names of the backups that `uninstall` needs; none if the record of the file cannot be read.
pub(super) fn needed(file: &Path) -> Option<Vec<String>> {
    let record: Receipt = match fs::read(path(file)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Some(Vec::new()),
        record => serde_json::from_slice(&record.ok()?).ok()?,
    };
    Some(record.before.into_iter().chain(record.removed.into_iter().map(|removed| removed.backup)).collect())
}

/// Returns the digest of a file's content.
pub(super) fn digest(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn path(file: &Path) -> PathBuf {
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    file.with_file_name(format!("{name}.{RECEIPT}"))
}
