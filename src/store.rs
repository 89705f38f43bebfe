//! What Nonet remembers between runs: two SQLite files in one folder, for all gateways of a user.
//!
//! This file has what they share: opening, locking, bringing to the present format, setting aside what is damaged.
//! `outcomes` and `kept` know what is in them. The room knows files, rows and versions of the format; of the other
//! rooms only the values that it keeps. Every call blocks, for up to five seconds while another gateway writes: call it
//! where blocking is allowed.
//!
//! ```text
//! store.db                      what searches led to
//! kept.db                       results that were too large to show, and calls in the background
//!
//! and beside each <name>.db
//! <name>.db-wal, <name>.db-shm  SQLite's
//! <name>.lock                   shared by who has the file open; held alone to set a damaged file aside
//! <name>.db.damaged-<n>         damaged files that were set aside: up to nine of store.db, one of kept.db
//! ```

mod kept;
mod outcomes;
#[cfg(test)]
mod tests;

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use rusqlite::{Connection, ErrorCode, OpenFlags, Transaction, TransactionBehavior};

pub use kept::{Counts, JobRow, JobState, Kept, Limits, is_alive};
pub use outcomes::Store;

/// What SQLite keeps beside a file. They belong to it and move with it.
const COMPANIONS: [&str; 3] = ["-wal", "-shm", "-journal"];
/// How long a call waits for another gateway that writes, which takes it milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long opening tries again while others are in the way: gateways that started at the same moment are soon done.
const PATIENCE_TO_OPEN: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(20);

/// The folder of the store: `nonet` in `$XDG_STATE_HOME` or `~/.local/state`. None if there is no home to put it in.
pub fn folder() -> Option<PathBuf> {
    let set = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|folder| folder.is_absolute());
    let home = || std::env::home_dir().map(|home| home.join(".local/state"));
    Some(set.or_else(home)?.join("nonet"))
}

/// Why something was not kept or not found. Nonet works without its store; it then remembers nothing.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The folder or a file in it cannot be made or moved.
    #[error("`{}`: {source}; make it writable for this user, or set XDG_STATE_HOME to a folder that is", path.display())]
    Files {
        /// The folder or file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A later Nonet has written the file. It was not touched.
    #[error(
        "`{}` was written by a newer Nonet (format {found}, this one knows {known}): update Nonet, or move the file away to begin anew",
        file.display()
    )]
    Newer {
        /// The store's file.
        file: PathBuf,
        /// Its version of the format.
        found: usize,
        /// The latest version that this Nonet knows.
        known: usize,
    },
    /// The file is damaged and could not be set aside. It was not touched.
    #[error("`{}` is damaged ({what}) and in use: stop all gateways and start one, which will set it aside", file.display())]
    Damaged {
        /// The store's file.
        file: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// SQLite could not do it.
    #[error("`{}`: {source}; if this goes on, stop all gateways and move the file away to begin anew", file.display())]
    Sqlite {
        /// The store's file.
        file: PathBuf,
        /// What SQLite said.
        source: rusqlite::Error,
    },
}

/// What makes one file of the store different from the other.
struct Format {
    name: &'static str,
    /// Settings that only a file takes in which nothing is yet.
    layout: &'static str,
    /// What makes each version of the format from the one before, beginning with an empty file. Only ever appended to:
    /// a file's `user_version` says how many of them it has seen.
    steps: &'static [&'static str],
    /// Gives each connection that writes its settings and functions.
    set_up: fn(&Connection) -> rusqlite::Result<()>,
    /// Statements that name every column, so that they fail on a file whose tables are not those of its version.
    reads: &'static [&'static str],
    /// Damaged files that are kept; the last one is replaced.
    most_damaged: usize,
}

/// A file of the store, open. Several gateways, and several threads of one, may use it at the same time.
#[derive(Debug)]
struct Database {
    // Before the lock, so that it is closed before the lock is given back.
    connection: Mutex<Connection>,
    file: PathBuf,
    _in_use: Option<File>,
}

impl Database {
    /// Opens a file in a folder; makes both, for their owner only, if they are not there. Blocks.
    ///
    /// A damaged file is set aside as `<name>.damaged-<n>`, with a warning, and begun anew. Fails if it cannot be made,
    /// if a newer Nonet has written it, and if it is damaged while another gateway uses it.
    fn open(folder: &Path, format: &Format) -> Result<Database, StoreError> {
        // Absolute, because SQLite takes a name that begins with `file:` for a URI.
        let folder = std::path::absolute(folder).map_err(files(folder))?;
        crate::files::private_folder(&folder).map_err(files(&folder))?;
        let file = folder.join(format.name);
        // One for each file: a gateway that uses the other one is not in the way.
        let lock = file.with_extension("lock");
        let in_use = crate::files::lock_file(&lock);
        let in_use = in_use.map_err(files(&lock))?;
        let deadline = Instant::now() + PATIENCE_TO_OPEN;
        loop {
            // Held alone only for the moment in which a damaged file is set aside.
            while let Err(error) = in_use.try_lock_shared() {
                match error {
                    TryLockError::WouldBlock if Instant::now() < deadline => thread::sleep(PAUSE),
                    TryLockError::WouldBlock => return Err(files(&lock)(io::ErrorKind::TimedOut.into())),
                    TryLockError::Error(error) => return Err(files(&lock)(error)),
                }
            }
            let unfit = match connect(&file, format) {
                Ok(connection) => {
                    return Ok(Database { connection: Mutex::new(connection), file, _in_use: Some(in_use) });
                }
                Err(unfit) => unfit,
            };
            if !unfit.may_pass() || Instant::now() >= deadline {
                return Err(unfit.told_of(&file));
            }
            // Given back first: of two gateways that started at the same moment one has to have it alone.
            in_use.unlock().map_err(files(&lock))?;
            match in_use.try_lock() {
                Ok(()) => {
                    begin_anew(&file, format)?;
                    in_use.unlock().map_err(files(&lock))?;
                }
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(files(&lock)(error)),
            }
            thread::sleep(PAUSE);
        }
    }

    /// The same in memory, for this process alone and until it ends.
    fn in_memory(format: &Format) -> Result<Database, StoreError> {
        let file = PathBuf::from(":memory:");
        let ready = || {
            let mut connection = Connection::open_in_memory()?;
            prepare(&mut connection, format)?;
            Ok(connection)
        };
        let connection = ready().map_err(|unfit: Unfit| unfit.told_of(&file))?;
        Ok(Database { connection: Mutex::new(connection), file, _in_use: None })
    }

    fn with<T>(&self, work: impl FnOnce(&mut Connection) -> rusqlite::Result<T>) -> Result<T, StoreError> {
        self.with_other(&self.connection, work)
    }

    /// Works with another connection to this file.
    fn with_other<T>(
        &self,
        connection: &Mutex<Connection>,
        work: impl FnOnce(&mut Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        // A panic elsewhere leaves no half a transaction: SQLite has rolled it back.
        let mut connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
        work(&mut connection).map_err(sqlite(&self.file))
    }

    /// One transaction that has the right to write from its beginning, so that it waits for others instead of failing
    /// half-way.
    fn write<T>(&self, work: impl FnOnce(&Transaction) -> rusqlite::Result<T>) -> Result<T, StoreError> {
        self.with(|connection| {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let done = work(&transaction)?;
            transaction.commit()?;
            Ok(done)
        })
    }

    /// Another connection to a file that is open, which can only read. To be closed before this one: the last to close
    /// tidies up, and has to be able to write.
    fn reader(&self) -> Result<Connection, StoreError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connect = || {
            let connection = Connection::open_with_flags(&self.file, flags)?;
            connection.busy_timeout(PATIENCE)?;
            Ok(connection)
        };
        connect().map_err(sqlite(&self.file))
    }
}

/// Why a file cannot be used.
enum Unfit {
    Damaged(String),
    Newer { found: usize, known: usize },
    Sqlite(rusqlite::Error),
    Files(io::Error),
}

impl From<rusqlite::Error> for Unfit {
    fn from(error: rusqlite::Error) -> Unfit {
        match &error {
            // SQL that does not fit the tables. Ours fits those of its version.
            rusqlite::Error::SqlInputError { msg, .. } => Unfit::Damaged(msg.clone()),
            rusqlite::Error::SqliteFailure(failure, _) => match failure.code {
                ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase | ErrorCode::Unknown => {
                    Unfit::Damaged(error.to_string())
                }
                _ => Unfit::Sqlite(error),
            },
            _ => Unfit::Sqlite(error),
        }
    }
}

impl Unfit {
    /// Whether it is worth another try. SQLite itself does not wait where that could be in vain, as when two gateways
    /// turn on the log of a new file.
    fn may_pass(&self) -> bool {
        match self {
            Unfit::Damaged(_) => true,
            Unfit::Sqlite(error) => error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy),
            Unfit::Newer { .. } | Unfit::Files(_) => false,
        }
    }

    fn told_of(self, file: &Path) -> StoreError {
        match self {
            Unfit::Damaged(what) => StoreError::Damaged { file: file.to_owned(), what },
            Unfit::Newer { found, known } => StoreError::Newer { file: file.to_owned(), found, known },
            Unfit::Sqlite(error) => sqlite(file)(error),
            Unfit::Files(error) => files(file)(error),
        }
    }
}

/// Opens a file and brings it to this version of the format; makes it if it is not there.
fn connect(file: &Path, format: &Format) -> Result<Connection, Unfit> {
    create(file).map_err(Unfit::Files)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(file, flags)?;
    connection.busy_timeout(PATIENCE)?;
    // First of all, so that a newer file is only read.
    version(&connection, format.steps)?;
    // Reads the whole file: damage shows now and not in the middle of the work. A table of outcomes is less than a
    // megabyte; 256 MiB of results take a tenth of a second.
    let check: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if check != "ok" {
        return Err(Unfit::Damaged(check));
    }
    prepare(&mut connection, format)?;
    Ok(connection)
}

/// Makes a connection ready for work.
fn prepare(connection: &mut Connection, format: &Format) -> Result<(), Unfit> {
    if version(connection, format.steps)? == 0 {
        // Before the log is turned on, with which something is in the file.
        connection.execute_batch(format.layout)?;
    }
    let mode: String = connection.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))?;
    if mode == "wal" {
        // With a write-ahead log this cannot damage the file, and spares each write a wait for the disk. What a power
        // cut takes is what was written last.
        connection.pragma_update(None, "synchronous", "normal")?;
    }
    (format.set_up)(connection)?;
    migrate(connection, format.steps)?;
    for read in format.reads {
        connection.prepare(read)?;
    }
    Ok(())
}

/// Makes an empty file if none is there. SQLite would make one that all can read; what it puts beside it gets the same
/// permissions.
fn create(file: &Path) -> io::Result<()> {
    // Closing a file drops the locks that SQLite has on it anywhere in this process: one that is there is not opened,
    // and nobody gets to see a new one before it is closed.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    match crate::files::private(OpenOptions::new().write(true).create_new(true)).open(file) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// How many of the steps a file has seen.
fn version(connection: &Connection, steps: &[&str]) -> Result<usize, Unfit> {
    let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    let found = usize::try_from(version).map_err(|_| Unfit::Damaged(format!("version {version}")))?;
    if found > steps.len() { Err(Unfit::Newer { found, known: steps.len() }) } else { Ok(found) }
}

fn migrate(connection: &mut Connection, steps: &[&str]) -> Result<(), Unfit> {
    if version(connection, steps)? == steps.len() {
        return Ok(());
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Asked again: another gateway may have been faster.
    for step in &steps[version(&transaction, steps)?..] {
        transaction.execute_batch(step)?;
    }
    transaction.pragma_update(None, "user_version", steps.len() as i64)?;
    Ok(transaction.commit()?)
}

/// Sets the file aside if it is damaged. Only for who has the lock alone: a gateway that has the moved file open
/// removes `<name>.db-wal` when it closes, which by then belongs to the new file.
fn begin_anew(file: &Path, format: &Format) -> Result<(), StoreError> {
    // Looked at again: another gateway may have been faster.
    if let Err(Unfit::Damaged(what)) = connect(file, format) {
        let aside = set_aside(file, format.most_damaged).map_err(files(file))?;
        tracing::warn!(
            file = %file.display(), aside = %aside.display(), %what,
            "the store was damaged: it is set aside, and a new one begins empty"
        );
    }
    Ok(())
}

/// Renames a file, and before it what belongs to it, so that a new file never meets an old log.
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

fn files(path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    |source| StoreError::Files { path, source }
}

fn sqlite(file: &Path) -> impl FnOnce(rusqlite::Error) -> StoreError {
    let file = file.to_owned();
    |source| StoreError::Sqlite { file, source }
}
