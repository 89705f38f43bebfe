//! One SQLite file: opens it, locks it, upgrades its format, and sets it aside when it is damaged.
//!
//! Every call blocks, for up to five seconds while another gateway writes.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use nonet_base::files::{lock_file, private, private_folder};
use parking_lot::Mutex;
use rusqlite::{Connection, ErrorCode, OpenFlags, Transaction, TransactionBehavior};

use super::StoreError;

/// SQLite's companion files. They move with the file.
const COMPANIONS: [&str; 3] = ["-wal", "-shm", "-journal"];
/// How long a call waits while another gateway writes. A write takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long opening is retried while others are in the way. Gateways that start at the same moment are soon
/// done.
const PATIENCE_TO_OPEN: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(20);

/// The differences between the store's files.
#[derive(Debug)]
pub(super) struct DbFormat {
    pub name: &'static str,
    /// What is in it, for people.
    pub what: &'static str,
    /// Settings that SQLite accepts only for an empty file.
    pub layout: &'static str,
    /// The SQL steps from each version of the format to the next, starting with an empty file. Only ever
    /// append: a file's `user_version` counts the steps that it has taken.
    pub steps: &'static [&'static str],
    /// Applies settings and functions to each writing connection.
    pub set_up: fn(&Connection) -> rusqlite::Result<()>,
    /// Statements that name every column. They fail on a file whose tables do not match its version.
    pub reads: &'static [&'static str],
    /// How many damaged files are kept; beyond that, the last one is replaced.
    pub most_damaged: usize,
}

/// An open file of the store. Several gateways, and several threads of one, may use it at the same time.
#[derive(Debug)]
pub(super) struct Database {
    // Declared before the lock, so that the connection closes before the lock is released.
    connection: Mutex<Connection>,
    pub file: PathBuf,
    /// What the system calls the file, as opened; `None` in memory.
    identity: Option<Identity>,
    _in_use: Option<File>,
}

/// The number of a file and of its device, where the system has them. Windows does not remove an open file.
type Identity = (u64, u64);

fn identity(file: &Path) -> Option<Identity> {
    #[cfg(unix)]
    return fs::metadata(file).ok().map(|found| {
        use std::os::unix::fs::MetadataExt;
        (found.dev(), found.ino())
    });
    #[cfg(not(unix))]
    file.exists().then_some((0, 0))
}

impl Database {
    /// Opens a file in a folder; creates both, readable only by their owner, if they do not exist. Blocks.
    ///
    /// A damaged file is set aside as `<name>.damaged-<n>`, with a warning, and replaced by an empty one.
    /// Fails if the file cannot be created, was written by a newer Nonet, or is damaged while another gateway
    /// uses it.
    pub(crate) fn open(folder: &Path, format: &DbFormat) -> Result<Database, StoreError> {
        // Absolute, because SQLite takes a name starting with `file:` for a URI.
        let folder = std::path::absolute(folder).map_err(files(folder))?;
        private_folder(&folder).map_err(files(&folder))?;
        let file = folder.join(format.name);
        // One lock per file, so that a gateway that uses another file is not in the way.
        let lock = file.with_extension("lock");
        let in_use = lock_file(&lock).map_err(files(&lock))?;
        let deadline = Instant::now() + PATIENCE_TO_OPEN;
        loop {
            // Held exclusively only while a damaged file is set aside.
            while let Err(error) = in_use.try_lock_shared() {
                match error {
                    TryLockError::WouldBlock if Instant::now() < deadline => thread::sleep(PAUSE),
                    TryLockError::WouldBlock => return Err(files(&lock)(io::ErrorKind::TimedOut.into())),
                    TryLockError::Error(error) => return Err(files(&lock)(error)),
                }
            }
            let unfit = match connect(&file, format) {
                Ok(connection) => {
                    let identity = identity(&file);
                    let connection = Mutex::new(connection);
                    return Ok(Database { connection, file, identity, _in_use: Some(in_use) });
                }
                Err(unfit) => unfit,
            };
            if !unfit.may_pass() || Instant::now() >= deadline {
                return Err(unfit.into_error(&file));
            }
            // Released first: of two gateways that started at the same moment, one needs the exclusive lock.
            in_use.unlock().map_err(files(&lock))?;
            match in_use.try_lock() {
                Ok(()) => {
                    replace_damaged(&file, format)?;
                    in_use.unlock().map_err(files(&lock))?;
                }
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(files(&lock)(error)),
            }
            thread::sleep(PAUSE);
        }
    }

    /// Opens the same in memory, for this process only.
    pub(crate) fn in_memory(format: &DbFormat) -> Result<Database, StoreError> {
        let file = PathBuf::from(":memory:");
        let ready = || {
            let mut connection = Connection::open_in_memory()?;
            prepare(&mut connection, format)?;
            Ok(connection)
        };
        let connection = ready().map_err(|unfit: DbFileError| unfit.into_error(&file))?;
        Ok(Database { connection: Mutex::new(connection), file, identity: None, _in_use: None })
    }

    /// Returns whether the file was removed or replaced since it was opened.
    pub(crate) fn is_gone(&self) -> bool {
        self.identity.is_some() && identity(&self.file) != self.identity
    }

    pub(crate) fn with<T>(
        &self,
        work: impl FnOnce(&mut Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        self.with_other(&self.connection, work)
    }

    /// Works with another connection to this file.
    pub(crate) fn with_other<T>(
        &self,
        connection: &Mutex<Connection>,
        work: impl FnOnce(&mut Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        work(&mut connection.lock()).map_err(sqlite(&self.file))
    }

    /// Runs one transaction that is a write from its start, so that it waits for others instead of failing
    /// half-way.
    pub(crate) fn write<T>(
        &self,
        work: impl FnOnce(&Transaction) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        self.with(|connection| written(connection, work))
    }

    /// The same, without waiting for the disk: a power cut may lose it, and leaves what was before.
    pub(crate) fn write_quickly<T>(
        &self,
        work: impl FnOnce(&Transaction) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        self.with(|connection| {
            let usual: i64 = connection.pragma_query_value(None, "synchronous", |row| row.get(0))?;
            connection.pragma_update(None, "synchronous", "normal")?;
            let done = written(connection, work);
            if let Err(error) = connection.pragma_update(None, "synchronous", usual) {
                tracing::warn!(%error, "writes no longer wait for the disk");
            }
            done
        })
    }

    /// Opens a second, read-only connection to the file. Close it first: the last connection to close cleans
    /// up, and must be able to write.
    pub(crate) fn reader(&self) -> Result<Connection, StoreError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connect = || {
            let connection = Connection::open_with_flags(&self.file, flags)?;
            connection.busy_timeout(PATIENCE)?;
            Ok(connection)
        };
        connect().map_err(sqlite(&self.file))
    }
}

fn written<T>(
    connection: &mut Connection,
    work: impl FnOnce(&Transaction) -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let done = work(&transaction)?;
    transaction.commit()?;
    Ok(done)
}

/// Why a file cannot be used.
pub(super) enum DbFileError {
    Damaged(String),
    Newer { found: usize, known: usize },
    Sqlite(rusqlite::Error),
    Files(io::Error),
}

impl From<rusqlite::Error> for DbFileError {
    fn from(error: rusqlite::Error) -> DbFileError {
        match &error {
            // SQL that does not match the tables. Ours matches its version's tables.
            rusqlite::Error::SqlInputError { msg, .. } => DbFileError::Damaged(msg.clone()),
            rusqlite::Error::SqliteFailure(failure, _) => match failure.code {
                ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase | ErrorCode::Unknown => {
                    DbFileError::Damaged(error.to_string())
                }
                _ => DbFileError::Sqlite(error),
            },
            _ => DbFileError::Sqlite(error),
        }
    }
}

impl DbFileError {
    /// Returns whether a retry may succeed. SQLite itself does not wait in every case, such as when two
    /// gateways enable the log of a new file.
    fn may_pass(&self) -> bool {
        match self {
            DbFileError::Damaged(_) => true,
            DbFileError::Sqlite(error) => error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy),
            DbFileError::Newer { .. } | DbFileError::Files(_) => false,
        }
    }

    fn into_error(self, file: &Path) -> StoreError {
        match self {
            DbFileError::Damaged(what) => StoreError::Damaged { file: file.to_owned(), what },
            DbFileError::Newer { found, known } => StoreError::Newer { file: file.to_owned(), found, known },
            DbFileError::Sqlite(error) => sqlite(file)(error),
            DbFileError::Files(error) => files(file)(error),
        }
    }
}

/// Opens a file and upgrades it to this version of the format; creates it if it does not exist.
pub(super) fn connect(file: &Path, format: &DbFormat) -> Result<Connection, DbFileError> {
    create(file).map_err(DbFileError::Files)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(file, flags)?;
    connection.busy_timeout(PATIENCE)?;
    // Checked first, so that a newer file is only read.
    version(&connection, format.steps)?;
    // Reads the whole file, so that damage shows now rather than during the work. A table of outcomes is less
    // than a megabyte; 256 MiB of results take a tenth of a second.
    let check: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if check != "ok" {
        return Err(DbFileError::Damaged(check));
    }
    prepare(&mut connection, format)?;
    Ok(connection)
}

/// Prepares a connection for work.
fn prepare(connection: &mut Connection, format: &DbFormat) -> Result<(), DbFileError> {
    if version(connection, format.steps)? == 0 {
        // Before the log is enabled, which writes to the file.
        connection.execute_batch(format.layout)?;
    }
    let mode: String = connection.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))?;
    if mode == "wal" {
        // With a write-ahead log this cannot damage the file, and saves each write from waiting for the disk.
        // A power cut loses only the latest writes.
        connection.pragma_update(None, "synchronous", "normal")?;
    }
    (format.set_up)(connection)?;
    migrate(connection, format.steps)?;
    for read in format.reads {
        connection.prepare(read)?;
    }
    Ok(())
}

/// Creates an empty file if there is none. SQLite would make it readable by everyone; the companions get the
/// same permissions.
fn create(file: &Path) -> io::Result<()> {
    // Closing a file drops all locks that SQLite holds on it in this process. So an existing file is not
    // opened, and no other thread sees a new one before it is closed.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock();
    match private(OpenOptions::new().write(true).create_new(true)).open(file) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Returns how many of the steps a file has taken.
fn version(connection: &Connection, steps: &[&str]) -> Result<usize, DbFileError> {
    let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    let found = usize::try_from(version).map_err(|_| DbFileError::Damaged(format!("version {version}")))?;
    if found > steps.len() { Err(DbFileError::Newer { found, known: steps.len() }) } else { Ok(found) }
}

fn migrate(connection: &mut Connection, steps: &[&str]) -> Result<(), DbFileError> {
    if version(connection, steps)? == steps.len() {
        return Ok(());
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Read again: another gateway may have been faster.
    for step in &steps[version(&transaction, steps)?..] {
        transaction.execute_batch(step)?;
    }
    transaction.pragma_update(None, "user_version", steps.len() as i64)?;
    Ok(transaction.commit()?)
}

/// Sets the file aside if it is damaged. Needs the exclusive lock: a gateway that still has the moved file
/// open removes `<name>.db-wal` on closing, which by then belongs to the new file.
fn replace_damaged(file: &Path, format: &DbFormat) -> Result<(), StoreError> {
    // Checked again: another gateway may have been faster.
    if let Err(DbFileError::Damaged(what)) = connect(file, format) {
        let aside = set_aside(file, format.most_damaged).map_err(files(file))?;
        tracing::warn!(
            file = %file.display(), aside = %aside.display(), %what,
            "the store was damaged: the file is set aside and replaced by an empty one"
        );
    }
    Ok(())
}

/// Renames a file after its companions, so that a new file never meets an old log.
fn set_aside(file: &Path, most: usize) -> io::Result<PathBuf> {
    let named = |n: usize| with_suffix(file, &format!(".damaged-{n}"));
    let free = (1..most).find(|n| !named(*n).exists());
    let aside = named(free.unwrap_or(most));
    for suffix in COMPANIONS {
        match fs::rename(with_suffix(file, suffix), with_suffix(&aside, suffix)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    fs::rename(file, &aside)?;
    Ok(aside)
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

pub(super) fn files(path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    |source| StoreError::Files { path, source }
}

fn sqlite(file: &Path) -> impl FnOnce(rusqlite::Error) -> StoreError {
    let file = file.to_owned();
    |source| StoreError::Sqlite { file, source }
}
