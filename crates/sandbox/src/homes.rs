//! The home folders of sandboxed servers, in the state folder: `sandboxes/NAME.HASH` for a server's name and
//! the path of its configuration file.
//!
//! The helper of a running sandbox holds a shared lock on the folder, so that `nonet forget` leaves it alone.

use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
};

use nonet_base::{files, text::hex};
use sha2::{Digest, Sha256};

/// The folder of the home folders.
const FOLDER: &str = "sandboxes";

/// Returns the home folder of a server of a configuration file, however the file's path is written.
pub(super) fn of(state: &Path, config: &Path, server: &str) -> PathBuf {
    let config = fs::canonicalize(config).unwrap_or_else(|_| config.into());
    let digest = Sha256::digest(config.as_os_str().as_encoded_bytes());
    // A server's name has no dot.
    state.join(FOLDER).join(format!("{server}.{}", hex(&digest[..8])))
}

/// Returns the home folder that earlier versions gave every server of this name.
pub(super) fn earlier(state: &Path, server: &str) -> PathBuf {
    state.join(FOLDER).join(server)
}

/// Creates a home folder, or takes over the earlier one. Returns its real path, and the lock of a running
/// sandbox.
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "no other system has a sandbox"))]
pub(super) fn enter(own: &Path, earlier: Option<&Path>) -> io::Result<(PathBuf, File)> {
    if let Some(earlier) = earlier.filter(|earlier| !own.exists() && earlier.is_dir()) {
        // Of two servers with this name, the first one takes it.
        let _ = fs::rename(earlier, own);
    }
    files::private_folder(own)?;
    let own = fs::canonicalize(own)?;
    let lock = File::open(&own)?;
    match lock.try_lock_shared() {
        Ok(()) => Ok((own, lock)),
        Err(TryLockError::WouldBlock) => Err(io::Error::other("`nonet forget` is deleting it; start again")),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// What [`forget_homes`] did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForgottenHomes {
    /// How many folders were deleted.
    pub deleted: u64,
    /// The folders of running sandboxes, which were kept.
    pub kept: Vec<PathBuf>,
}

/// Returns how many home folders a state folder has. Blocks.
///
/// # Errors
///
/// If they cannot be listed.
pub fn count_homes(state: &Path) -> io::Result<u64> {
    Ok(homes_in(state)?.len() as u64)
}

fn homes_in(state: &Path) -> io::Result<Vec<PathBuf>> {
    let all = match fs::read_dir(state.join(FOLDER)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        all => all?,
    };
    let homes = all.flatten().map(|entry| entry.path());
    Ok(homes.filter(|path| path.is_dir() && !path.is_symlink()).collect())
}

/// Deletes the home folders in a state folder, except those of running sandboxes. Blocks.
///
/// # Errors
///
/// If a folder cannot be deleted.
pub fn forget_homes(state: &Path) -> io::Result<ForgottenHomes> {
    let mut done = ForgottenHomes::default();
    for home in homes_in(state)? {
        match File::open(&home)?.try_lock() {
            Err(TryLockError::WouldBlock) => done.kept.push(home),
            Err(TryLockError::Error(error)) => return Err(error),
            Ok(()) => {
                fs::remove_dir_all(&home).map_err(|error| {
                    io::Error::new(error.kind(), format!("`{}`: {error}", home.display()))
                })?;
                done.deleted += 1;
            }
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_home_belongs_to_a_file_and_a_name_and_the_first_takes_over_the_earlier_one() {
        let state = tempfile::tempdir().expect("a folder");
        let file = |name: &str| {
            let file = state.path().join(name);
            fs::write(&file, "").expect("written");
            file
        };
        let (one, two) = (of(state.path(), &file("one.toml"), "a"), of(state.path(), &file("two.toml"), "a"));
        assert!(one != two && one != of(state.path(), &file("one.toml"), "b"));
        assert_eq!(one, of(state.path(), &state.path().join("./one.toml"), "a"));
        let old = earlier(state.path(), "a");
        fs::create_dir_all(&old).expect("made");
        fs::write(old.join("cache"), "old").expect("written");
        let (first, lock) = enter(&one, Some(&old)).expect("entered");
        let (second, _other) = enter(&two, Some(&old)).expect("entered");
        assert!(first.join("cache").exists() && !second.join("cache").exists() && !old.exists());
        drop(_other);
        assert_eq!(
            forget_homes(state.path()).expect("deleted"),
            ForgottenHomes { deleted: 1, kept: vec![first.clone()] }
        );
        drop(lock);
        assert_eq!(forget_homes(state.path()).expect("deleted").deleted, 1);
        assert!(!first.exists());
    }
}
