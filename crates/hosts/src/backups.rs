//! Backups of the files that Nonet changes: in the state folder, which no sandbox shows, and readable only by
//! their owner.
//!
//! A backup has the name of its file and the time. Earlier versions kept it beside the file, where
//! [`Backups::find`] looks too.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use nonet_base::{files, text::hex};
use sha2::{Digest, Sha256};

use super::{Machine, receipt};

/// The infix in the name of a backup, between the file's name and the time.
const INFIX: &str = ".nonet-backup-";
/// The file with the path of the file that the backups beside it are of.
const ORIGIN: &str = "origin";
/// How long a backup is kept that no `uninstall` needs.
const KEPT: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// The backups of this user, at one moment.
pub(super) struct Backups {
    folder: PathBuf,
    /// The moment, as in names.
    stamp: String,
    /// The time before which a backup is too old.
    oldest: String,
}

impl Backups {
    pub(crate) fn of(machine: &Machine) -> Self {
        let oldest = machine.now.checked_sub(KEPT).unwrap_or(UNIX_EPOCH);
        Self {
            folder: machine.state_folder().join("backups"),
            stamp: stamp(machine.now),
            oldest: stamp(oldest),
        }
    }

    /// Returns the path of a backup of a file, by its name. The name is from a record and may be forged.
    pub(crate) fn find(&self, file: &Path, name: &str) -> Option<PathBuf> {
        time_of(file, name)?;
        let kept = self.folder_of(file).join(name);
        Some(if kept.exists() { kept } else { file.with_file_name(name) })
    }

    /// Writes a backup, and removes those that are too old.
    pub(crate) fn keep(&self, file: &Path, content: &[u8]) -> io::Result<PathBuf> {
        let own = self.folder_of(file);
        let origin = file.as_os_str().as_encoded_bytes();
        // Without a usable state folder, a backup beside the file is better than none.
        let folder = match files::replace_private(&own.join(ORIGIN), origin) {
            Ok(()) => own.as_path(),
            Err(_) => file.parent().unwrap_or(Path::new("")),
        };
        let name = format!("{}{INFIX}{}", name_of(file), self.stamp);
        let mut number = 1;
        let backup = loop {
            let again = if number == 1 { String::new() } else { format!("-{number}") };
            let backup = folder.join(format!("{name}{again}"));
            match create(&backup, content) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < 100 => number += 1,
                result => break result.map(|()| backup),
            }
        }?;
        if let Some(beside) = file.parent() {
            self.sweep_folder(beside, file);
        }
        self.sweep();
        Ok(backup)
    }

    /// Removes a backup whose file has its content again.
    pub(crate) fn forget(&self, backup: &Path) {
        drop(fs::remove_file(backup));
        if let Some(folder) = backup.parent().filter(|folder| folder.starts_with(&self.folder)) {
            remove_if_empty(folder);
        }
    }

    /// Removes every backup that is too old.
    pub(crate) fn sweep(&self) {
        for folder in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let folder = folder.path();
            // A path that is not text is not read back, so its backups stay.
            if let Ok(origin) = fs::read_to_string(folder.join(ORIGIN)) {
                self.sweep_folder(&folder, Path::new(&origin));
                remove_if_empty(&folder);
            }
        }
    }

    /// Removes the backups of a file that are too old, unless `uninstall` needs them; closes the others to
    /// other users.
    fn sweep_folder(&self, folder: &Path, file: &Path) {
        let Some(needed) = receipt::needed(file) else { return };
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some(time) = time_of(file, &name) else { continue };
            if time < self.oldest.as_str() && !needed.contains(&name) {
                drop(fs::remove_file(entry.path()));
            } else {
                close(&entry.path());
            }
        }
    }

    fn folder_of(&self, file: &Path) -> PathBuf {
        self.folder.join(hex(&Sha256::digest(file.as_os_str().as_encoded_bytes())[..8]))
    }
}

/// Removes the backups of this user that are older than 30 days and that no `uninstall` needs.
pub fn sweep_backups() {
    if let Ok(machine) = Machine::this() {
        Backups::of(&machine).sweep();
    }
}

fn remove_if_empty(folder: &Path) {
    let mut left = fs::read_dir(folder).into_iter().flatten().flatten();
    if left.all(|entry| entry.file_name() == ORIGIN) {
        drop(fs::remove_file(folder.join(ORIGIN)));
        drop(fs::remove_dir(folder));
    }
}

fn create(backup: &Path, content: &[u8]) -> io::Result<()> {
    let mut created = files::private(OpenOptions::new().write(true).create_new(true)).open(backup)?;
    let written = created.write_all(content).and_then(|()| created.sync_all());
    if written.is_err() {
        drop(fs::remove_file(backup));
    }
    written
}

/// Lets only the owner read a backup of an earlier version.
fn close(backup: &Path) {
    #[cfg(unix)]
    drop(fs::set_permissions(backup, std::os::unix::fs::PermissionsExt::from_mode(0o600)));
    #[cfg(not(unix))]
    let _ = backup;
}

fn name_of(file: &Path) -> String {
    file.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Returns the time in a backup's name, if it is a backup of the file.
fn time_of<'n>(file: &Path, name: &'n str) -> Option<&'n str> {
    let time = name.strip_prefix(&*name_of(file))?.strip_prefix(INFIX)?;
    time.chars().all(|c| c.is_ascii_alphanumeric() || c == '-').then_some(time)
}

/// Returns a time as `20261121T170000Z`: earlier times are smaller texts.
fn stamp(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    // The library refuses years after 9999.
    let time = UNIX_EPOCH + Duration::from_secs(seconds.min(253_402_300_799));
    humantime::format_rfc3339_seconds(time).to_string().replace(['-', ':'], "")
}
