//! The `servers.toml` files of project folders that the user has trusted: each by its path and the hash of
//! its text.
//!
//! A folder that somebody else wrote can contain a `servers.toml`, so Nonet uses such a file only if the user
//! named or trusted it, and only as long as its text stays the same. The record is one file in the state
//! folder. This room knows paths and hashes, not the contents of a servers.toml.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use nonet_base::{files, text::hex};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The file with the record.
const RECORD: &str = "trusted_files.json";
/// The largest record accepted, in bytes.
const MAX_BYTES: usize = 1 << 20;
/// How long another process may hold the lock.
const PATIENCE: Duration = Duration::from_secs(5);

/// The record of trusted files.
#[derive(Clone, Debug)]
pub struct TrustedFiles {
    record: PathBuf,
}

/// The content of the record.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Record {
    /// The hashes of texts, by the canonical paths of their files.
    files: BTreeMap<PathBuf, String>,
}

/// Whether a trusted file is as it was trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TrustedState {
    /// The file has the trusted text.
    Unchanged,
    /// The file has another text, so the user would be asked again.
    Changed,
    /// The file cannot be read.
    Missing,
}

/// A trusted file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TrustedFile {
    /// Its canonical path.
    pub file: PathBuf,
    /// The hash of the trusted text.
    pub sha256: String,
    /// Whether the file still has that text.
    pub state: TrustedState,
}

impl TrustedFiles {
    /// Returns the record of this user; none without a home folder.
    pub fn of_user() -> Option<Self> {
        Some(Self::within(&crate::folder()?))
    }

    /// Returns the record in a state folder.
    pub fn within(state: &Path) -> Self {
        Self { record: state.join(RECORD) }
    }

    /// Whether a file is trusted with the text of this hash. Blocks.
    pub fn covers(&self, file: &Path, hash: &str) -> bool {
        self.hash_of(file).as_deref() == Some(hash)
    }

    /// Whether a file is trusted with some text. Blocks.
    pub fn knows(&self, file: &Path) -> bool {
        self.hash_of(file).is_some()
    }

    fn hash_of(&self, file: &Path) -> Option<String> {
        self.read().files.remove(&fs::canonicalize(file).ok()?)
    }

    /// Trusts a file with the text of this hash, and with no other text. Blocks.
    ///
    /// # Errors
    ///
    /// If the file does not exist, or the record cannot be written.
    pub fn trust(&self, file: &Path, hash: &str) -> io::Result<()> {
        let file = fs::canonicalize(file)?;
        self.change(|files| files.insert(file, hash.into()).as_deref() != Some(hash)).map(drop)
    }

    /// Replaces the hash of a file that is trusted with the text before an edit of Nonet. Returns whether it
    /// was. Blocks.
    ///
    /// # Errors
    ///
    /// If the record cannot be written.
    pub fn follow_edit(&self, file: &Path, before: &[u8], after: &[u8]) -> io::Result<bool> {
        let (before, after) = (hex(&Sha256::digest(before)), hex(&Sha256::digest(after)));
        // Most files are not in the record, which needs no lock to see.
        if !self.covers(file, &before) {
            return Ok(false);
        }
        let file = fs::canonicalize(file)?;
        self.change(|files| match files.get_mut(&file) {
            Some(hash) if *hash == before => {
                *hash = after;
                true
            }
            _ => false,
        })
    }

    /// Takes back the trust in a file, which need not exist. Returns whether it was trusted. Blocks.
    ///
    /// # Errors
    ///
    /// If the record cannot be written.
    pub fn revoke(&self, file: &Path) -> io::Result<bool> {
        let file = match fs::canonicalize(file) {
            Ok(file) => file,
            Err(_) => std::path::absolute(file)?,
        };
        self.change(|files| files.remove(&file).is_some())
    }

    /// Returns all trusted files, by path. Blocks.
    pub fn all(&self) -> Vec<TrustedFile> {
        let state_of = |file: &Path, trusted: &str| match files::read_at_most(file, 4 * MAX_BYTES) {
            Ok(text) if hex(&Sha256::digest(&text)) == trusted => TrustedState::Unchanged,
            Ok(_) => TrustedState::Changed,
            Err(_) => TrustedState::Missing,
        };
        let files = self.read().files.into_iter();
        files.map(|(file, sha256)| TrustedFile { state: state_of(&file, &sha256), file, sha256 }).collect()
    }

    /// Returns the record. An unreadable one trusts nothing: the user is asked again.
    fn read(&self) -> Record {
        let bytes = files::read_at_most(&self.record, MAX_BYTES).unwrap_or_default();
        serde_json::from_slice(&bytes).unwrap_or_default()
    }

    /// Changes the record under its lock. `edit` returns whether it changed anything.
    fn change(&self, edit: impl FnOnce(&mut BTreeMap<PathBuf, String>) -> bool) -> io::Result<bool> {
        let _lock = self.lock()?;
        let mut record = self.read();
        let is_changed = edit(&mut record.files);
        if is_changed {
            // Fails for a path that is not Unicode.
            files::replace_private(&self.record, &serde_json::to_vec_pretty(&record)?)?;
        }
        Ok(is_changed)
    }

    fn lock(&self) -> io::Result<File> {
        self.record.parent().map_or(Ok(()), files::private_folder)?;
        files::lock_within(files::lock_file(&self.record.with_extension("lock"))?, PATIENCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trust_is_for_one_path_and_one_text_and_follows_nonets_own_edits() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = TrustedFiles::within(&folder.path().join("state"));
        let file = folder.path().join("servers.toml");
        let hash = |text: &str| hex(&Sha256::digest(text));
        fs::write(&file, "a").expect("written");
        assert!(!files.knows(&file) && !files.revoke(&file).expect("writable") && files.all().is_empty());
        files.trust(&file, &hash("a")).expect("writable");
        assert!(files.covers(&file, &hash("a")) && !files.covers(&file, &hash("b")));
        // Another path of the file is the same file; a copy is not.
        #[cfg(unix)]
        {
            use std::os::unix::fs::{MetadataExt, symlink};
            let link = folder.path().join("link.toml");
            symlink(&file, &link).expect("a link");
            assert!(files.covers(&link, &hash("a")));
            let mode = fs::metadata(&files.record).expect("there").mode();
            assert_eq!(mode & 0o777, 0o600);
        }
        let copy = folder.path().join("copy.toml");
        fs::copy(&file, &copy).expect("copied");
        assert!(!files.knows(&copy));
        assert!(files.follow_edit(&file, b"a", b"b").expect("writable") && files.covers(&file, &hash("b")));
        assert!(!files.follow_edit(&file, b"a", b"c").expect("writable") && files.covers(&file, &hash("b")));
        let states = || files.all().iter().map(|file| file.state).collect::<Vec<_>>();
        assert_eq!(states(), [TrustedState::Changed]);
        fs::write(&file, "b").expect("written");
        assert_eq!(states(), [TrustedState::Unchanged]);
        fs::remove_file(&file).expect("removed");
        assert_eq!(states(), [TrustedState::Missing]);
        let listed = files.all();
        assert!(files.revoke(&listed[0].file).expect("writable") && files.all().is_empty());
        // A damaged record trusts nothing.
        fs::write(&files.record, "{").expect("written");
        assert!(files.all().is_empty());
    }
}
