//! Files that survive a crash at any byte, files readable only by their owner, and locks between processes.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError},
    io::{self, Read, Write},
    path::Path,
    thread,
    time::{Duration, Instant, SystemTime},
};

use tempfile::NamedTempFile;

/// How often a lock held by another process is retried.
const LOOK: Duration = Duration::from_millis(50);

/// Refuses a file that may not be written: replacing it would work, because only its folder has to be
/// writable.
///
/// # Errors
///
/// `PermissionDenied` if the file exists and is read-only.
pub fn ensure_writable(file: &Path) -> io::Result<()> {
    let is_read_only = match fs::metadata(file) {
        Ok(data) => data.permissions().readonly() || OpenOptions::new().append(true).open(file).is_err(),
        Err(_) => false,
    };
    match is_read_only {
        true => Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is read-only")),
        false => Ok(()),
    }
}

/// Replaces a file, or creates it and its folder, in one step: a reader sees the old content or the new,
/// never a part. Only the owner can read the file. Blocks.
///
/// # Errors
///
/// If the folder cannot be created or written to; the old file is then unchanged.
pub fn replace_private(file: &Path, content: &[u8]) -> io::Result<()> {
    private_folder(folder_of(file))?;
    replace(file, content, None)
}

/// Replaces a file like [`replace_private`], but keeps its permissions. A new file gets the system's default
/// permissions.
///
/// # Errors
///
/// As for [`replace_private`].
pub fn replace_as_it_was(file: &Path, content: &[u8]) -> io::Result<()> {
    fs::create_dir_all(folder_of(file))?;
    let permissions = match fs::metadata(file) {
        Ok(data) => data.permissions(),
        Err(_) => usual_permissions(folder_of(file))?,
    };
    replace(file, content, Some(permissions))
}

fn replace(file: &Path, content: &[u8], permissions: Option<Permissions>) -> io::Result<()> {
    let mut beside = beside(file)?;
    beside.write_all(content)?;
    persist(beside, file, permissions)
}

/// Creates a temporary file in the folder of `file`, readable only by its owner. [`persist`] moves it into
/// place; dropping it removes it.
///
/// # Errors
///
/// If the folder cannot be written to.
pub fn beside(file: &Path) -> io::Result<NamedTempFile> {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    tempfile::Builder::new().prefix(&format!(".{name}.")).suffix(".tmp").tempfile_in(folder_of(file))
}

/// Puts a file in the place of another once all of it is on disk.
///
/// # Errors
///
/// If the file cannot be written or renamed; the old file is then unchanged.
pub fn persist(beside: NamedTempFile, file: &Path, permissions: Option<Permissions>) -> io::Result<()> {
    beside.as_file().sync_all()?;
    if let Some(permissions) = permissions {
        beside.as_file().set_permissions(permissions)?;
    }
    beside.persist(file).map(drop).map_err(|failed| failed.error)
}

/// Returns the default permissions of a new file: 0666 less the process's umask.
#[cfg(unix)]
fn usual_permissions(folder: &Path) -> io::Result<Permissions> {
    use std::os::unix::fs::PermissionsExt;
    let probe = tempfile::Builder::new().permissions(Permissions::from_mode(0o666)).tempfile_in(folder)?;
    Ok(probe.as_file().metadata()?.permissions())
}

#[cfg(not(unix))]
fn usual_permissions(folder: &Path) -> io::Result<Permissions> {
    Ok(tempfile::NamedTempFile::new_in(folder)?.as_file().metadata()?.permissions())
}

/// Opens a file for reading. Refuses a pipe, device or folder, and never waits while opening one.
///
/// # Errors
///
/// If the path cannot be opened, or is not a file.
pub fn open_file(file: &Path) -> io::Result<File> {
    open_only_a_file(OpenOptions::new().read(true), file)
}

fn open_only_a_file(options: &mut OpenOptions, file: &Path) -> io::Result<File> {
    // A pipe without another end opens or fails at once; the flag has no effect on a file.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(options, libc::O_NONBLOCK | libc::O_NOCTTY);
    let open = options.open(file)?;
    match open.metadata()?.is_file() {
        true => Ok(open),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file")),
    }
}

/// The state of a file, which differs after each write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStamp {
    modified: Option<SystemTime>,
    len: u64,
    #[cfg(unix)]
    inode: u64,
}

impl FileStamp {
    /// Returns the state of a file; `None` if it does not exist.
    pub fn of(file: &Path) -> Option<Self> {
        let data = std::fs::metadata(file).ok()?;
        Some(Self {
            modified: data.modified().ok(),
            len: data.len(),
            #[cfg(unix)]
            inode: std::os::unix::fs::MetadataExt::ino(&data),
        })
    }
}

/// Reads a file of at most `most` bytes.
///
/// # Errors
///
/// As for [`open_file`]; `FileTooLarge` for a longer file, even one that grows while being read.
pub fn read_at_most(file: &Path, most: usize) -> io::Result<Vec<u8>> {
    let too_large = |length: &dyn std::fmt::Display| {
        io::Error::new(io::ErrorKind::FileTooLarge, format!("it has {length} bytes, the limit is {most}"))
    };
    let limit = u64::try_from(most).unwrap_or(u64::MAX);
    let open = open_file(file)?;
    let length = open.metadata()?.len();
    if length > limit {
        return Err(too_large(&length));
    }
    let mut bytes = Vec::new();
    open.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() > most { Err(too_large(&"more")) } else { Ok(bytes) }
}

fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Creates a folder and its parents, accessible only to their owner. Leaves an existing folder as it is.
///
/// # Errors
///
/// If the folder cannot be created.
pub fn private_folder(folder: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

/// Makes files created with these options readable and writable only by their owner.
pub fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    options
}

/// Opens a file for appending. Creates a missing file, accessible only to its owner. Refuses a pipe, device
/// or folder, and never waits while opening one.
///
/// # Errors
///
/// If the path cannot be opened, or is not a file.
pub fn append_file(file: &Path) -> io::Result<File> {
    open_only_a_file(private(OpenOptions::new().append(true).create(true)), file)
}

/// Opens a file to lock, like [`append_file`].
///
/// # Errors
///
/// As for [`append_file`].
pub fn lock_file(file: &Path) -> io::Result<File> {
    append_file(file)
}

/// Locks a file against other processes, waiting at most `patience`; closing the file releases the lock.
/// Blocks.
///
/// # Errors
///
/// `TimedOut` if another process holds the lock all that time.
pub fn lock_within(file: File, patience: Duration) -> io::Result<File> {
    let deadline = Instant::now() + patience;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => thread::sleep(LOOK),
            Err(TryLockError::WouldBlock) => return Err(io::ErrorKind::TimedOut.into()),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    fn mode(file: &Path) -> u32 {
        std::os::unix::fs::MetadataExt::mode(&fs::metadata(file).expect("it is there")) & 0o777
    }

    #[test]
    fn a_replaced_file_is_whole_and_leaves_nothing_beside_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("deep/er/file.json");
        replace_private(&file, b"one").expect("written");
        replace_private(&file, b"two").expect("written again");
        assert_eq!(fs::read(&file).expect("readable"), b"two");
        assert_eq!(fs::read_dir(file.parent().expect("a folder")).expect("readable").count(), 1);
        #[cfg(unix)]
        assert_eq!((mode(&file), mode(file.parent().expect("a folder"))), (0o600, 0o700));
    }

    #[cfg(unix)]
    #[test]
    fn a_file_keeps_its_permissions_and_a_new_one_has_the_usual() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a folder");
        let plain = folder.path().join("plain");
        fs::write(&plain, b"").expect("written");
        let file = folder.path().join("file");
        replace_as_it_was(&file, b"new").expect("written");
        assert_eq!(mode(&file), mode(&plain));
        fs::set_permissions(&file, Permissions::from_mode(0o640)).expect("set");
        replace_as_it_was(&file, b"newer").expect("written");
        assert_eq!(
            (mode(&file), fs::read(&file).expect("readable").as_slice()),
            (0o640, b"newer".as_slice())
        );
    }

    #[test]
    fn only_a_file_is_read_and_no_more_of_it_than_allowed() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file");
        fs::write(&file, b"12345").expect("written");
        assert_eq!(read_at_most(&file, 5).expect("it fits"), b"12345");
        let refused = read_at_most(&file, 4).expect_err("too long");
        assert_eq!(refused.kind(), io::ErrorKind::FileTooLarge);
        assert!(read_at_most(folder.path(), 5).is_err());
        assert_eq!(
            read_at_most(Path::new("/no/such/file"), 5).expect_err("none").kind(),
            io::ErrorKind::NotFound
        );
        #[cfg(unix)]
        {
            for name in ["/dev/zero", "/dev/tty"] {
                assert!(read_at_most(Path::new(name), 5).is_err(), "{name}");
            }
            let link = folder.path().join("link");
            std::os::unix::fs::symlink("/dev/zero", &link).expect("a link");
            assert!(read_at_most(&link, 5).is_err());
            let pipe = folder.path().join("pipe");
            let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs");
            assert!(made.success());
            assert!(read_at_most(&pipe, 5).is_err());
        }
    }

    #[test]
    fn a_lock_is_held_until_its_file_is_closed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("lock");
        let open = || lock_file(&path).expect("opened");
        let held = lock_within(open(), Duration::ZERO).expect("free");
        let refused = lock_within(open(), Duration::from_millis(60)).expect_err("held");
        assert_eq!(refused.kind(), io::ErrorKind::TimedOut);
        drop(held);
        lock_within(open(), Duration::ZERO).expect("free again");
    }
}
