//! A change to a file: shown as a diff, or applied in one step with a backup.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use nonet_base::files::{ensure_writable, replace_as_it_was, replace_private};
use nonet_store::trusted_files::TrustedFiles;
use nonet_text::secrets::without_secrets;
use similar::TextDiff;

use super::{
    HostFault, Machine,
    backups::Backups,
    receipt::{self, Receipt},
    text::{behind_links, bytes},
};

/// A file before and after. Nothing happens until [`FileChange::apply`].
pub struct FileChange {
    /// The file, by the user's path.
    pub file: PathBuf,
    /// What the change does, in sentences for the user.
    pub told: Vec<String>,
    pub(super) before: Option<Vec<u8>>,
    pub(super) after: Option<Vec<u8>>,
    /// Whether to back up the old content.
    pub(super) backup: bool,
    /// Values that a diff must not show.
    pub(super) secrets: Vec<String>,
    pub(super) afterwards: FollowUp,
    backups: Backups,
}

/// What to do after writing the file.
pub(super) enum FollowUp {
    Nothing,
    /// Write the install record. Its backup is filled in here.
    Record(Receipt),
    /// Delete the install record, and the backup if the file equals it again.
    Forget(Option<PathBuf>),
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeResult {
    /// The written file, with links resolved. None if there was nothing to do.
    pub file: Option<PathBuf>,
    /// The backup of the old content.
    pub backup: Option<PathBuf>,
}

impl FileChange {
    /// Returns the texts before and after the change, if the file stays. A new file had no text.
    pub fn texts(&self) -> Option<(&str, &str)> {
        let before = std::str::from_utf8(self.before.as_deref().unwrap_or_default()).ok()?;
        Some((before, std::str::from_utf8(self.after.as_deref()?).ok()?))
    }

    /// Returns a digest: two changes with the same digest do the same to the same text.
    pub fn digest(&self) -> String {
        let part = |bytes: &Option<Vec<u8>>| bytes.as_deref().map(receipt::digest).unwrap_or_default();
        format!("{}-{}", part(&self.before), part(&self.after))
    }

    pub(super) fn new(
        file: &Path,
        before: Option<Vec<u8>>,
        after: Option<Vec<u8>>,
        machine: &Machine,
    ) -> Self {
        Self {
            file: file.into(),
            told: Vec::new(),
            before,
            after,
            backup: true,
            secrets: Vec::new(),
            afterwards: FollowUp::Nothing,
            backups: Backups::of(machine),
        }
    }

    /// Whether the file stays unchanged.
    pub fn is_nothing(&self) -> bool {
        self.before == self.after
    }

    /// Whether the file is removed.
    pub fn is_removal(&self) -> bool {
        self.before.is_some() && self.after.is_none()
    }

    /// Returns a unified diff for people: secrets are masked as `***`, in the lines around the change too;
    /// line ends are not shown.
    pub fn diff(&self) -> String {
        let text = |bytes: &Option<Vec<u8>>| {
            let text = String::from_utf8_lossy(bytes.as_deref().unwrap_or_default()).replace("\r\n", "\n");
            self.masked(text)
        };
        let name = |bytes: &Option<Vec<u8>>| match bytes {
            Some(_) => self.file.display().to_string(),
            None => "/dev/null".into(),
        };
        let (before, after) = (text(&self.before), text(&self.after));
        if before == after {
            return String::new();
        }
        let diff = TextDiff::from_lines(&before, &after);
        diff.unified_diff().context_radius(3).header(&name(&self.before), &name(&self.after)).to_string()
    }

    fn masked(&self, mut text: String) -> String {
        let mut secrets: Vec<_> = self.secrets.iter().filter(|secret| secret.len() >= 4).collect();
        // A longer secret may contain a shorter one.
        secrets.sort_by_key(|secret| usize::MAX - secret.len());
        for secret in secrets {
            // As escaped in JSON, without the quotes.
            let quoted = serde_json::Value::from(secret.as_str()).to_string();
            for form in [secret.as_str(), quoted.trim_matches('"')] {
                text = text.replace(form, "***");
            }
        }
        without_secrets(&text).0
    }

    /// Writes the file, unless it has changed since it was read.
    pub fn apply(&self) -> Result<ChangeResult, HostFault> {
        let file = behind_links(&self.file)?;
        if self.is_nothing() {
            self.finish(&file, None)?;
            return Ok(ChangeResult { file: None, backup: None });
        }
        if bytes(&file)? != self.before {
            let remedy = "Nothing was written; try again.";
            return Err(HostFault::new("another program has just changed the file", remedy).within(&file));
        }
        let failed = |what: &str, source: io::Error| {
            let remedy = "Check the folder's permissions and the free disk space; nothing was changed.";
            HostFault::new(format!("{what}: {source}"), remedy).within(&file).because(source)
        };
        if let Err(source) = ensure_writable(&file) {
            let remedy = "Make the file writable, or edit its source. Nothing was changed.";
            return Err(HostFault::new("the file is read-only", remedy).within(&file).because(source));
        }
        let backup = match &self.before {
            Some(before) if self.backup => {
                let kept = self.backups.keep(&file, before);
                Some(kept.map_err(|error| failed("cannot write a backup", error))?)
            }
            _ => None,
        };
        match &self.after {
            Some(after) => {
                let trusted = self.keep_trusted(&file, after);
                // A new servers.toml is its owner's; a client's file is as its client would make it.
                let is_private = self.before.is_none() && !matches!(self.afterwards, FollowUp::Record(_));
                let write = if is_private { replace_private } else { replace_as_it_was };
                write(&file, after).map_err(|error| {
                    if let (Some(files), Some(before)) = (trusted, &self.before) {
                        drop(files.follow_edit(&file, after, before));
                    }
                    failed("cannot write the file", error)
                })?
            }
            None => fs::remove_file(&file).map_err(|error| failed("cannot remove the file", error))?,
        }
        self.finish(&file, backup.as_deref())?;
        Ok(ChangeResult { file: Some(file), backup })
    }

    /// Keeps a trusted file trusted through this edit: beforehand, because a running gateway reads the new
    /// text at once.
    fn keep_trusted(&self, file: &Path, after: &[u8]) -> Option<TrustedFiles> {
        let files = TrustedFiles::of_user()?;
        match files.follow_edit(file, self.before.as_deref()?, after) {
            Ok(is_trusted) => is_trusted.then_some(files),
            Err(error) => {
                tracing::warn!(%error, "the user has to trust the edited file again");
                None
            }
        }
    }

    fn finish(&self, file: &Path, backup: Option<&Path>) -> Result<(), HostFault> {
        match &self.afterwards {
            FollowUp::Nothing => Ok(()),
            FollowUp::Record(receipt) => receipt.clone().with_backup(backup).write(file),
            FollowUp::Forget(backup) => {
                receipt::forget(file);
                // The file equals the backup again, byte for byte.
                backup.iter().for_each(|backup| self.backups.forget(backup));
                Ok(())
            }
        }
    }
}
