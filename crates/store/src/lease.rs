//! Leases: which gateway runs a job or holds a record, and whether that gateway is still running.
//!
//! A gateway has a random number and, from its first lease on, a lock on the file `holder-<number>.lock` in
//! the store's folder. The system releases the lock when the process ends, however it ends, so a lease
//! depends neither on a clock nor on process ids, which are reused.

use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use nonet_base::{clock::Clock, files::lock_file};

/// The number of no gateway.
pub(super) const NOBODY: u32 = 0;
/// A lock file is created before it is locked, so a younger file is not removed.
const SETTLED: Duration = Duration::from_secs(60);

/// The gateway that holds the leases of this process.
#[derive(Clone, Debug)]
pub(super) struct LeaseHolder {
    /// Never a possible process id: earlier versions leased to those.
    pub number: u32,
    pub clock: Clock,
    /// The configuration of this process; empty if it does not matter.
    pub config: Arc<str>,
}

/// A gateway's presence in a folder. Its leases there end with it.
#[derive(Debug)]
pub(super) struct LeasePresence {
    folder: PathBuf,
    number: u32,
    lock: Option<File>,
}

impl LeaseHolder {
    /// Returns a new holder.
    pub(crate) fn new(clock: Clock) -> Self {
        let number = (uuid::Uuid::new_v4().as_u128() as u32) | (1 << 31);
        Self { number, clock, config: Arc::default() }
    }

    /// Makes the holder present in a folder, and cleans up after holders that have ended.
    pub(crate) fn enter(&self, folder: &Path) -> io::Result<LeasePresence> {
        let lock = lock_file(&file_of(folder, self.number))?;
        // Shared: a gateway has several files of the store open, and each needs the lock.
        lock.try_lock_shared()?;
        sweep(folder);
        Ok(LeasePresence { folder: folder.to_owned(), number: self.number, lock: Some(lock) })
    }
}

impl LeasePresence {
    /// Returns whether the gateway with this number is still running.
    pub(crate) fn is_held(&self, number: u32) -> bool {
        number == self.number || is_locked(&file_of(&self.folder, number))
    }
}

impl Drop for LeasePresence {
    fn drop(&mut self) {
        drop(self.lock.take());
        // Removes the file unless the gateway is present through another lock.
        is_locked(&file_of(&self.folder, self.number));
    }
}

fn file_of(folder: &Path, number: u32) -> PathBuf {
    folder.join(format!("holder-{number}.lock"))
}

/// Returns whether another process, or another gateway in this one, holds the lock. A file without a lock
/// belongs to a gateway that has ended, and is removed.
fn is_locked(file: &Path) -> bool {
    // Only opened, never created.
    let lock = match File::open(file) {
        Ok(lock) => lock,
        Err(error) => return error.kind() != io::ErrorKind::NotFound,
    };
    match lock.try_lock() {
        Ok(()) => {
            let _ = fs::remove_file(file);
            false
        }
        // If the system cannot tell, assume that the gateway runs: doing work twice is worse than doing it
        // late.
        Err(TryLockError::WouldBlock | TryLockError::Error(_)) => true,
    }
}

/// Removes the files of holders that have ended.
fn sweep(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_settled = || {
            let made = entry.metadata().and_then(|data| data.modified()).ok()?;
            Some(nonet_base::clock::system_time().duration_since(made).ok()? > SETTLED)
        };
        if name.starts_with("holder-") && name.ends_with(".lock") && is_settled() == Some(true) {
            is_locked(&entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{folder, until_ended},
        *,
    };

    #[test]
    fn a_lease_lasts_as_long_as_its_gateway() {
        let folder = folder();
        let (one, other) = (LeaseHolder::new(Clock::default()), LeaseHolder::new(Clock::default()));
        let here = one.enter(folder.path()).expect("enters");
        let there = other.enter(folder.path()).expect("enters");
        let again = other.enter(folder.path()).expect("enters again");
        assert!(here.is_held(one.number) && here.is_held(other.number) && there.is_held(one.number));
        drop(there);
        assert!(here.is_held(other.number));
        drop(again);
        until_ended(&folder, other.number);
        assert!(!here.is_held(other.number));
        // Numbers that no gateway has.
        for number in [NOBODY, 1, u32::MAX] {
            assert!(!here.is_held(number), "{number}");
        }
        let left = || fs::read_dir(folder.path()).expect("readable").count();
        assert_eq!(left(), 1, "only the file of the gateway that is present is left");
    }

    #[test]
    fn old_files_of_ended_holders_are_removed() {
        let folder = folder();
        let old = file_of(folder.path(), 7);
        let file = File::create(&old).expect("made");
        file.set_modified(nonet_base::clock::system_time() - SETTLED * 2).expect("set");
        let young = file_of(folder.path(), 8);
        File::create(&young).expect("made");
        let _here = LeaseHolder::new(Clock::default()).enter(folder.path()).expect("enters");
        assert!(!old.exists() && young.exists());
    }
}
