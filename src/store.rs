//! What Nonet remembers between runs: one SQLite file, `store.db`, for all gateways of a user.
//!
//! Knows files, rows and versions of the format; of the other rooms only the values that it keeps. Every call blocks,
//! for up to five seconds while another gateway writes: call it where blocking is allowed.
//!
//! ```text
//! store.db, store.db-wal, store.db-shm    SQLite's
//! store.lock                              shared by who has the store open; held alone to set a damaged file aside
//! store.db.damaged-1 ... -9               damaged files that were set aside
//! ```

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use rusqlite::{
    Connection, ErrorCode, OpenFlags, Row, Transaction, TransactionBehavior, functions::FunctionFlags, params,
};

use crate::search::outcomes::{self, LIFETIME_S, MOST_OUTCOMES, MOST_PER_DOCUMENT, Outcome};

/// What makes each version of the format from the one before, beginning with an empty file. Only ever appended to: a
/// file's `user_version` says how many of them it has seen.
const STEPS: &[&str] = &[
    // `words` is a JSON array of strings, `at` in seconds since 1970.
    "CREATE TABLE outcomes (
        document TEXT NOT NULL,
        words TEXT NOT NULL,
        weight REAL NOT NULL CHECK (weight > 0),
        at INTEGER NOT NULL CHECK (at >= 0),
        PRIMARY KEY (document, words)
    ) STRICT, WITHOUT ROWID",
];

/// Names every column, so that it fails on a file whose tables are not those of its version.
const OUTCOMES: &str = "SELECT document, words, weight, at FROM outcomes ORDER BY document, words";

const FILE: &str = "store.db";
const LOCK: &str = "store.lock";
/// What SQLite keeps beside a file. They belong to it and move with it.
const COMPANIONS: [&str; 3] = ["-wal", "-shm", "-journal"];
/// How long a call waits for another gateway that writes, which takes it milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long opening tries again while others are in the way: gateways that started at the same moment are soon done.
const PATIENCE_TO_OPEN: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(20);
/// Damaged files that are kept; the last one is replaced.
const MOST_DAMAGED: usize = 9;

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

/// The store, open. Several gateways, and several threads of one, may use it at the same time.
///
/// What was put is there for everybody when the call returns, and survives the end of this process, however it ends.
/// A power cut may take the last few seconds, and never damages the rest.
#[derive(Debug)]
pub struct Store {
    // Before the lock, so that it is closed before the lock is given back.
    connection: Mutex<Connection>,
    file: PathBuf,
    _in_use: File,
}

impl Store {
    /// Opens the store in a folder; makes both, for their owner only, if they are not there. Blocks.
    ///
    /// A damaged file is set aside as `store.db.damaged-<n>`, with a warning, and begun anew. Fails if it cannot be
    /// made, if a newer Nonet has written it, and if it is damaged while another gateway uses it.
    pub fn open(folder: &Path) -> Result<Store, StoreError> {
        // Absolute, because SQLite takes a name that begins with `file:` for a URI.
        let folder = std::path::absolute(folder).map_err(files(folder))?;
        private_folder(&folder).map_err(files(&folder))?;
        let file = folder.join(FILE);
        let lock = folder.join(LOCK);
        let in_use = private_file(OpenOptions::new().append(true).create(true)).open(&lock);
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
            let unfit = match connect(&file, STEPS) {
                Ok(connection) => {
                    return Ok(Store { connection: Mutex::new(connection), file, _in_use: in_use });
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
                    begin_anew(&file)?;
                    in_use.unlock().map_err(files(&lock))?;
                }
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(files(&lock)(error)),
            }
            thread::sleep(PAUSE);
        }
    }

    /// All outcomes. Blocks; 5,000 take five milliseconds. Rows that are not outcomes are left out, with a warning.
    pub fn outcomes(&self) -> Result<Vec<Outcome>, StoreError> {
        self.with(|connection| {
            let mut statement = connection.prepare(OUTCOMES)?;
            let mut rows = statement.query([])?;
            let (mut outcomes, mut unreadable) = (Vec::new(), 0);
            while let Some(row) = rows.next()? {
                match read_outcome(row) {
                    Some(outcome) => outcomes.push(outcome),
                    None => unreadable += 1,
                }
            }
            if unreadable > 0 {
                tracing::warn!(file = %self.file.display(), unreadable, "outcomes that cannot be read are left out");
            }
            Ok(outcomes)
        })
    }

    /// Keeps an outcome as it now is. Blocks, for less than two milliseconds if nobody else writes.
    ///
    /// If the words and the document are known the stronger of the two is kept: two gateways that learn the same at the
    /// same time count it once. Then what is too much is removed, by the bounds that [`Outcomes`] has: the weakest
    /// first, never the one just put; and what was not repeated for so long that it has no effect.
    ///
    /// [`Outcomes`]: crate::search::Outcomes
    pub fn put_outcome(&self, outcome: &Outcome) -> Result<(), StoreError> {
        let document: &str = &outcome.document;
        let words = serde_json::json!(outcome.words).to_string();
        let now = i64::try_from(outcome.at).unwrap_or(i64::MAX);
        self.write(|transaction| {
            transaction.execute(
                "INSERT INTO outcomes (document, words, weight, at) VALUES (?1, ?2, ?3, ?4)
                 ON CONFLICT DO UPDATE SET weight = excluded.weight, at = excluded.at
                 WHERE level(excluded.weight, excluded.at, ?4) >= level(outcomes.weight, outcomes.at, ?4)",
                params![document, words, outcome.weight, now],
            )?;
            // Not what is from the future: a clock that starts in 1970 would take everything.
            transaction
                .execute("DELETE FROM outcomes WHERE at < ?1 - ?2", params![now, LIFETIME_S as i64])?;
            let count = "SELECT count(*) FROM outcomes WHERE ?1 IS NULL OR document = ?1";
            for (within, most) in [(Some(document), MOST_PER_DOCUMENT), (None, MOST_OUTCOMES)] {
                let found: i64 = transaction.query_row(count, [within], |row| row.get(0))?;
                if found > most as i64 {
                    // Ordered as `Outcomes` orders them.
                    transaction.execute(
                        "DELETE FROM outcomes WHERE (document, words) IN (
                            SELECT document, words FROM outcomes
                            WHERE (?1 IS NULL OR document = ?1) AND (document, words) <> (?2, ?3)
                            ORDER BY level(weight, at, ?4), at, words DESC, document DESC LIMIT ?5)",
                        params![within, document, words, now, found - most as i64],
                    )?;
                }
            }
            Ok(())
        })
    }

    /// Forgets all outcomes, on the disk as well. Blocks. A running gateway goes on with those that it has read.
    pub fn forget_outcomes(&self) -> Result<(), StoreError> {
        self.write(|transaction| transaction.execute("DELETE FROM outcomes", []).map(drop))?;
        // Deleted rows are overwritten in the file; the log that has them is emptied as well, unless somebody reads it.
        self.with(|connection| connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())))
    }
}

impl Store {
    fn with<T>(&self, work: impl FnOnce(&mut Connection) -> rusqlite::Result<T>) -> Result<T, StoreError> {
        // A panic elsewhere leaves no half a transaction: SQLite has rolled it back.
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        work(&mut connection).map_err(sqlite(&self.file))
    }

    /// One short transaction that has the right to write from its beginning, so that it waits for others instead of
    /// failing half-way.
    fn write(&self, work: impl FnOnce(&Transaction) -> rusqlite::Result<()>) -> Result<(), StoreError> {
        self.with(|connection| {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            work(&transaction)?;
            transaction.commit()
        })
    }
}

/// The outcome in a row, if it is one.
fn read_outcome(row: &Row) -> Option<Outcome> {
    let words: String = row.get(1).ok()?;
    let at: i64 = row.get(3).ok()?;
    let outcome = Outcome {
        document: row.get::<_, String>(0).ok()?.into(),
        words: serde_json::from_str(&words).ok()?,
        weight: row.get(2).ok()?,
        at: at.try_into().ok()?,
    };
    outcome.is_sound().then_some(outcome)
}

/// Why a file cannot be used.
enum Unfit {
    Damaged(String),
    Newer(usize),
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
            Unfit::Newer(_) | Unfit::Files(_) => false,
        }
    }

    fn told_of(self, file: &Path) -> StoreError {
        match self {
            Unfit::Damaged(what) => StoreError::Damaged { file: file.to_owned(), what },
            Unfit::Newer(found) => StoreError::Newer { file: file.to_owned(), found, known: STEPS.len() },
            Unfit::Sqlite(error) => sqlite(file)(error),
            Unfit::Files(error) => files(file)(error),
        }
    }
}

/// Opens a file and brings it to this version of the format; makes it if it is not there.
fn connect(file: &Path, steps: &[&str]) -> Result<Connection, Unfit> {
    create(file).map_err(Unfit::Files)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(file, flags)?;
    connection.busy_timeout(PATIENCE)?;
    // First of all, so that a newer file is only read.
    version(&connection, steps)?;
    // Reads the whole file, less than a megabyte for a full table: damage shows now and not in the middle of the work.
    let check: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if check != "ok" {
        return Err(Unfit::Damaged(check));
    }
    let mode: String = connection.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))?;
    if mode == "wal" {
        // With a write-ahead log this cannot damage the file, and spares each write a wait for the disk. What a power
        // cut takes are the last few outcomes.
        connection.pragma_update(None, "synchronous", "normal")?;
    }
    connection.pragma_update(None, "secure_delete", true)?;
    connection.create_scalar_function(
        "level",
        3,
        FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC,
        |values| {
            let (weight, at, now): (f64, i64, i64) = (values.get(0)?, values.get(1)?, values.get(2)?);
            Ok(outcomes::level(weight, at.unsigned_abs(), now.unsigned_abs()))
        },
    )?;
    migrate(&mut connection, steps)?;
    connection.prepare(OUTCOMES)?;
    Ok(connection)
}

/// Makes an empty file if none is there. SQLite would make one that all can read; what it puts beside it gets the same
/// permissions.
fn create(file: &Path) -> io::Result<()> {
    // Closing a file drops the locks that SQLite has on it anywhere in this process: one that is there is not opened,
    // and nobody gets to see a new one before it is closed.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    match private_file(OpenOptions::new().write(true).create_new(true)).open(file) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// How many of the steps a file has seen.
fn version(connection: &Connection, steps: &[&str]) -> Result<usize, Unfit> {
    let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    let version = usize::try_from(version).map_err(|_| Unfit::Damaged(format!("version {version}")))?;
    if version > steps.len() { Err(Unfit::Newer(version)) } else { Ok(version) }
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

/// Sets the file aside if it is damaged. Only for who has the lock alone: a gateway that has the moved file open removes
/// `store.db-wal` when it closes, which by then belongs to the new file.
fn begin_anew(file: &Path) -> Result<(), StoreError> {
    // Looked at again: another gateway may have been faster.
    if let Err(Unfit::Damaged(what)) = connect(file, STEPS) {
        let aside = set_aside(file).map_err(files(file))?;
        tracing::warn!(
            file = %file.display(), aside = %aside.display(), %what,
            "the store was damaged: it is set aside, and a new one begins empty"
        );
    }
    Ok(())
}

/// Renames a file, and before it what belongs to it, so that a new file never meets an old log.
fn set_aside(file: &Path) -> io::Result<PathBuf> {
    let named = |n: usize| with_suffix(file, &format!(".damaged-{n}"));
    let free = (1..MOST_DAMAGED).find(|n| !named(*n).exists());
    let aside = named(free.unwrap_or(MOST_DAMAGED));
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

/// Makes a folder that only its owner can look into, unless it is there.
fn private_folder(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(folder)
}

/// A file that only its owner can read, if opening makes it.
fn private_file(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    options
}

fn files(path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    |source| StoreError::Files { path, source }
}

fn sqlite(file: &Path) -> impl FnOnce(rusqlite::Error) -> StoreError {
    let file = file.to_owned();
    |source| StoreError::Sqlite { file, source }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader, Write},
        process::{Command, Stdio},
    };

    use tempfile::TempDir;

    use super::*;
    use crate::search::outcomes::{Outcomes, words};

    const NOW: u64 = 1_800_000_000;

    fn folder() -> TempDir {
        tempfile::tempdir().expect("temporary folder")
    }

    fn open(folder: &TempDir) -> Store {
        Store::open(folder.path()).expect("opens")
    }

    fn outcome(query: &str, document: &str, weight: f32, at: u64) -> Outcome {
        Outcome { words: words(query), document: document.into(), weight, at }
    }

    fn numbered(number: usize) -> Outcome {
        outcome(&format!("query q{number}"), &format!("server.tool{number}"), 1.0, NOW)
    }

    /// The documents that are kept, sorted.
    fn documents(store: &Store) -> Vec<String> {
        let outcomes = store.outcomes().expect("readable");
        outcomes.iter().map(|outcome| outcome.document.to_string()).collect()
    }

    fn names(folder: &TempDir) -> Vec<String> {
        let entries = fs::read_dir(folder).expect("readable").flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn what_was_put_survives_a_reopen() {
        let folder = folder();
        let kept = [
            outcome("open an issue", "github.create_issue", 1.0, NOW),
            outcome("查询天气 \"now\"", "天気.l'avis \"x\"", 2.75, 0),
            outcome("weather", "weather.now", 16.0, NOW),
        ];
        let mut expected = kept.to_vec();
        // The second one is from 1970: it went when the third was put.
        expected.remove(1);
        {
            let store = open(&folder);
            assert_eq!(store.outcomes().expect("readable"), []);
            for outcome in &kept {
                store.put_outcome(outcome).expect("written");
                assert!(store.outcomes().expect("readable").contains(outcome));
            }
        }
        assert_eq!(open(&folder).outcomes().expect("readable"), expected);
        assert_eq!(names(&folder), ["store.db", "store.lock"]);
    }

    #[test]
    fn of_two_with_the_same_key_the_stronger_is_kept() {
        let check = |first: (f32, u64), second: (f32, u64), expected: (f32, u64)| {
            let folder = folder();
            let store = open(&folder);
            for (weight, at) in [first, second] {
                store.put_outcome(&outcome("open issue", "a", weight, at)).expect("written");
            }
            let kept = store.outcomes().expect("readable");
            assert_eq!(kept, [outcome("open issue", "a", expected.0, expected.1)]);
        };
        let month = outcomes::HALF_LIFE_S;
        check((1.0, NOW), (2.0, NOW), (2.0, NOW));
        check((2.0, NOW), (1.0, NOW), (2.0, NOW));
        check((1.0, NOW), (1.0, NOW + 1), (1.0, NOW + 1));
        check((3.0, NOW), (1.0, NOW + 2 * month), (1.0, NOW + 2 * month));
        check((3.0, NOW), (1.0, NOW + month), (3.0, NOW));
        // Written under a wrong clock, and repeated under the right one.
        check((5.0, NOW + 100 * month), (1.0, NOW), (1.0, NOW));
    }

    #[test]
    fn old_outcomes_go_unless_the_clock_is_wrong() {
        let folder = folder();
        let store = open(&folder);
        for (number, at) in [(1, NOW), (2, NOW + LIFETIME_S), (3, 0)] {
            store.put_outcome(&Outcome { at, ..numbered(number) }).expect("written");
        }
        assert_eq!(documents(&store), ["server.tool1", "server.tool2", "server.tool3"]);
        store.put_outcome(&Outcome { at: NOW + LIFETIME_S + 1, ..numbered(4) }).expect("written");
        assert_eq!(documents(&store), ["server.tool2", "server.tool4"]);
    }

    #[test]
    fn the_store_has_the_bounds_of_the_table() {
        let folder = folder();
        let store = open(&folder);
        // One transaction, because five thousand would take a while.
        let fill = |transaction: &Transaction| {
            let mut insert = transaction.prepare("INSERT INTO outcomes VALUES (?1, ?2, ?3, ?4)")?;
            for number in 0..MOST_OUTCOMES {
                let (document, words) = (format!("d{number:04}"), format!("[\"w{number}\"]"));
                insert.execute(params![document, words, 2.0, NOW as i64])?;
            }
            Ok(())
        };
        store.write(fill).expect("written");
        store.put_outcome(&outcome("x", "d0007", 1.5, NOW)).expect("written");
        store.put_outcome(&outcome("y", "new", 1.0, NOW)).expect("written");
        let kept = store.outcomes().expect("readable");
        assert_eq!(kept.len(), MOST_OUTCOMES);
        // First the row with the last of the equal words made room, then the weakest of the others.
        let has = |document: &str| kept.iter().filter(|outcome| *outcome.document == *document).count();
        assert_eq!((has("new"), has("d0007"), has("d0999")), (1, 1, 0));
        assert_eq!(Outcomes::new(kept).rows.len(), MOST_OUTCOMES);
    }

    #[test]
    fn the_store_has_the_bounds_of_a_document() {
        let folder = folder();
        let store = open(&folder);
        store.put_outcome(&outcome("query", "other", 1.0, NOW - 1)).expect("written");
        for number in 0..MOST_PER_DOCUMENT + 5 {
            let outcome = outcome(&format!("query q{number}"), "busy", 1.0, NOW + number as u64);
            store.put_outcome(&outcome).expect("written");
        }
        let kept = store.outcomes().expect("readable");
        let busy: Vec<&Outcome> = kept.iter().filter(|outcome| *outcome.document == *"busy").collect();
        assert_eq!(busy.len(), MOST_PER_DOCUMENT);
        assert!(busy.iter().all(|outcome| outcome.at >= NOW + 5));
        assert_eq!(kept.len(), MOST_PER_DOCUMENT + 1);
    }

    #[test]
    fn what_is_forgotten_is_gone_from_the_disk() {
        let folder = folder();
        let store = open(&folder);
        store.put_outcome(&outcome("xylophone lessons", "music.book", 1.0, NOW)).expect("written");
        store.forget_outcomes().expect("forgotten");
        assert_eq!(store.outcomes().expect("readable"), []);
        for name in names(&folder) {
            let bytes = fs::read(folder.path().join(&name)).expect("readable");
            assert!(!bytes.windows(8).any(|window| window == b"xylophon"), "{name}");
        }
        store.put_outcome(&numbered(1)).expect("written");
        assert_eq!(documents(&store), ["server.tool1"]);
    }

    #[test]
    fn two_gateways_lose_nothing() {
        let folder = folder();
        thread::scope(|scope| {
            for half in [0, 200] {
                let folder = &folder;
                scope.spawn(move || {
                    let store = open(folder);
                    for number in half..half + 200 {
                        store.put_outcome(&numbered(number)).expect("written");
                    }
                });
            }
        });
        assert_eq!(documents(&open(&folder)).len(), 400);
    }

    #[test]
    fn many_gateways_start_at_the_same_moment() {
        for damaged in [false, true] {
            let folder = folder();
            if damaged {
                fs::write(folder.path().join(FILE), "this is not a database").expect("writable");
            }
            thread::scope(|scope| {
                for number in 0..8 {
                    let folder = &folder;
                    scope.spawn(move || open(folder).put_outcome(&numbered(number)).expect("written"));
                }
            });
            assert_eq!(documents(&open(&folder)).len(), 8);
            let aside = names(&folder).iter().filter(|name| name.starts_with("store.db.damaged")).count();
            assert_eq!(aside, usize::from(damaged));
        }
    }

    #[test]
    fn a_damaged_file_is_set_aside_and_begun_anew() {
        let whole = {
            let folder = folder();
            let store = open(&folder);
            (0..300).for_each(|number| store.put_outcome(&numbered(number)).expect("written"));
            drop(store);
            fs::read(folder.path().join(FILE)).expect("readable")
        };
        let check = |what: &str, bytes: &[u8], damaged: bool| {
            let folder = folder();
            let file = folder.path().join(FILE);
            fs::write(&file, bytes).expect("writable");
            let store = open(&folder);
            let aside = fs::read(folder.path().join("store.db.damaged-1")).ok();
            assert_eq!(aside.as_deref(), damaged.then_some(bytes), "{what}");
            store.put_outcome(&numbered(1_000)).expect("written");
            assert!(documents(&store).contains(&"server.tool1000".into()), "{what}");
        };
        check("whole", &whole, false);
        check("empty", &[], false);
        // SQLite takes this for empty as well.
        check("cut to 1", &whole[..1], false);
        for size in [2, 15, 16, 50, 100, 511, 512, 1_000, 4_095, 4_096, 4_097, 10_000, whole.len() - 4_096] {
            check(&format!("cut to {size}"), &whole[..size], true);
        }
        check("text", b"this is not a database, and long enough to have the header of one".as_slice(), true);
        check("noise", &[0xa7; 20_000], true);
        check("zeros", &[0; 20_000], true);
        let mut bytes = whole.clone();
        bytes[4_096..8_192].fill(0xa7);
        check("noise in a page", &bytes, true);
        let mut bytes = whole.clone();
        bytes[150..].fill(0);
        check("zeros after the header", &bytes, true);
        // The version of the format says more than is there.
        let mut empty = whole[..100].to_vec();
        empty[60..64].copy_from_slice(&(-1_i32).to_be_bytes());
        empty.extend_from_slice(&whole[100..]);
        check("a negative version", &empty, true);
    }

    #[test]
    fn a_database_without_our_tables_is_set_aside() {
        let folder = folder();
        let tables = [
            "CREATE TABLE other (x); PRAGMA user_version = 1",
            "CREATE TABLE outcomes (x); PRAGMA user_version = 1",
            "CREATE TABLE outcomes (x)",
        ];
        for (number, tables) in (1..).zip(tables) {
            let file = folder.path().join(FILE);
            if number > 1 {
                fs::remove_file(&file).expect("removed");
            }
            Connection::open(file).expect("opens").execute_batch(tables).expect("written");
            open(&folder).put_outcome(&numbered(1)).expect("written");
            assert!(names(&folder).contains(&format!("store.db.damaged-{number}")), "{tables}");
        }
    }

    #[test]
    fn damaged_files_are_kept_up_to_a_bound() {
        let folder = folder();
        for number in 0..MOST_DAMAGED + 3 {
            fs::write(folder.path().join(FILE), format!("damage {number}")).expect("writable");
            open(&folder);
        }
        let mut expected: Vec<String> = (1..=MOST_DAMAGED).map(|n| format!("store.db.damaged-{n}")).collect();
        expected.insert(0, FILE.into());
        expected.push(LOCK.into());
        assert_eq!(names(&folder), expected);
        let last = fs::read_to_string(folder.path().join(&expected[MOST_DAMAGED])).expect("readable");
        assert_eq!(last, format!("damage {}", MOST_DAMAGED + 2));
    }

    #[test]
    fn a_damaged_file_that_others_use_is_left_alone() {
        let folder = folder();
        let running = open(&folder);
        let file = folder.path().join(FILE);
        let damage = "PRAGMA writable_schema = on; UPDATE sqlite_schema SET rootpage = 999";
        running.with(|connection| connection.execute_batch(damage)).expect("damaged");
        let error = Store::open(folder.path()).expect_err("damaged and in use");
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
        assert!(error.to_string().contains("stop all gateways"), "{error}");
        assert!(file.exists() && !names(&folder).iter().any(|name| name.contains("damaged")));
        drop(running);
        assert_eq!(documents(&open(&folder)), [""; 0]);
        assert!(names(&folder).contains(&"store.db.damaged-1".into()));
    }

    #[test]
    fn a_newer_file_is_not_touched() {
        let folder = folder();
        open(&folder).put_outcome(&numbered(1)).expect("written");
        let file = folder.path().join(FILE);
        let newer = Connection::open(&file).expect("opens");
        newer.pragma_update(None, "user_version", 7).expect("written");
        drop(newer);
        let before = fs::read(&file).expect("readable");
        let error = Store::open(folder.path()).expect_err("newer");
        assert!(matches!(error, StoreError::Newer { found: 7, known, .. } if known == STEPS.len()));
        assert!(error.to_string().contains("update Nonet") && error.to_string().contains(FILE), "{error}");
        assert_eq!(fs::read(&file).expect("readable"), before);
        assert_eq!(names(&folder), ["store.db", "store.lock"]);
    }

    #[test]
    fn an_older_file_takes_the_steps_that_it_lacks() {
        let folder = folder();
        open(&folder).put_outcome(&numbered(1)).expect("written");
        let steps = [STEPS, &["CREATE TABLE later (x)", "INSERT INTO later VALUES (1)"]].concat();
        for _ in 0..2 {
            let Ok(connection) = connect(&folder.path().join(FILE), &steps) else { panic!("not migrated") };
            let count = "SELECT (SELECT count(*) FROM outcomes), (SELECT count(*) FROM later)";
            let counts = connection.query_row(count, [], |row| Ok((row.get(0)?, row.get(1)?)));
            assert_eq!(counts.expect("both tables"), (1, 1));
        }
    }

    #[test]
    fn rows_that_are_no_outcomes_are_left_out() {
        let folder = folder();
        let store = open(&folder);
        store.put_outcome(&numbered(1)).expect("written");
        let bad = [
            "('a', 'no json', 1.0, 1)",
            "('b', '[]', 1.0, 1)",
            "('c', '[\"z\",\"a\"]', 1.0, 1)",
            "('d', '[1]', 1.0, 1)",
            "('e', '[\"x\"]', 9e999, 1)",
            "('f', '[\"x\"]', 1e30, 1)",
            "('', '[\"x\"]', 1.0, 1)",
            "(CAST(x'ff' AS TEXT), '[\"x\"]', 1.0, 1)",
        ];
        for row in bad {
            let insert = format!("INSERT INTO outcomes VALUES {row}");
            store.with(|connection| connection.execute_batch(&insert)).expect(row);
        }
        assert_eq!(documents(&store), ["server.tool1"]);
    }

    #[cfg(unix)]
    #[test]
    fn only_the_owner_can_read_it() {
        use std::os::unix::fs::PermissionsExt;
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        let parent = folder();
        let folder = parent.path().join("made/when/needed");
        let store = Store::open(&folder).expect("opens");
        store.put_outcome(&numbered(1)).expect("written");
        assert_eq!(mode(&folder), 0o700);
        for name in ["store.db", "store.db-wal", "store.db-shm", "store.lock"] {
            assert_eq!(mode(&folder.join(name)), 0o600, "{name}");
        }
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_told() {
        let parent = folder();
        fs::write(parent.path().join("file"), "").expect("writable");
        let error = Store::open(&parent.path().join("file/nonet")).expect_err("not a folder");
        assert!(matches!(error, StoreError::Files { .. }));
        assert!(error.to_string().contains("file/nonet") && error.to_string().contains("XDG_STATE_HOME"));
    }

    const CHILD: &str = "NONET_TEST_STORE";

    /// Run by the next test in a process of its own: writes until it is killed, and tells what it has written.
    #[test]
    #[ignore = "the child of another test"]
    fn writes_until_it_is_killed() {
        let Some(folder) = std::env::var_os(CHILD).map(PathBuf::from) else { return };
        let store = Store::open(&folder).expect("opens");
        let mut output = io::stdout();
        for number in 0..MOST_OUTCOMES {
            store.put_outcome(&numbered(number)).expect("written");
            writeln!(output, "wrote {number}").expect("told");
        }
    }

    #[test]
    fn a_killed_gateway_loses_nothing_that_it_has_told() {
        // Also about when the log is moved into the file, which SQLite does every thousand pages.
        for lines in [1, 2, 30, 250, 300, 350, 400, 900] {
            let folder = folder();
            let mut child = Command::new(std::env::current_exe().expect("this test"))
                .args(["store::tests::writes_until_it_is_killed", "--exact", "--ignored", "--nocapture"])
                .env(CHILD, folder.path())
                .stdout(Stdio::piped())
                .spawn()
                .expect("starts");
            let output = BufReader::new(child.stdout.take().expect("piped"));
            let mut told = Vec::new();
            for line in output.lines() {
                let line = line.expect("readable");
                let Some((_, number)) = line.split_once("wrote ") else { continue };
                told.push(format!("server.tool{number}"));
                if told.len() == lines {
                    child.kill().expect("killed");
                }
            }
            child.wait().expect("ended");
            assert!((lines..MOST_OUTCOMES).contains(&told.len()), "killed after {}", told.len());
            let kept = documents(&open(&folder));
            let lost: Vec<&String> = told.iter().filter(|document| !kept.contains(document)).collect();
            assert!(lost.is_empty(), "lost {lost:?}");
            // The one that was being written may be there as well.
            assert!(kept.len() <= told.len() + 1);
            assert_eq!(names(&folder), ["store.db", "store.lock"]);
        }
    }
}
