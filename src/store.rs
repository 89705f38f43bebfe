//! What Nonet keeps between runs: results, jobs and what searches led to.
//!
//! [`Store`] is what the rooms above see: a few async methods, owners that are strings, and leases that say which gateway
//! runs a job. [`SqliteStore`] is the one engine behind it: two SQLite files in one folder, shared by all gateways of a
//! user. The room knows rows and files; of the other rooms only the values that it keeps.
//!
//! ```text
//! store.db                      what searches led to (`outcomes_db`)
//! kept.db                       results and jobs (`kept_db`)
//!
//! and beside each <name>.db
//! <name>.db-wal, <name>.db-shm  SQLite's own
//! <name>.lock                   shared by every gateway that has the file open; exclusive while a damaged file is set aside
//! <name>.db.damaged-<n>         damaged files that were set aside: up to nine of store.db, one of kept.db
//! ```

mod file;
mod kept_db;
mod lease;
mod outcomes_db;
mod sqlite;
#[cfg(test)]
mod tests;

use std::{
    fmt::Debug,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures::future::BoxFuture;
use serde_json::Value;

pub use sqlite::SqliteStore;
use {kept_db::KeptDb, lease::Holder, outcomes_db::OutcomesDb};

use crate::{clock::Clock, search::Outcome};

/// What a method of [`Store`] gives.
pub type Stored<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// Keeps results, jobs and outcomes. Several gateways may use one store at the same time.
///
/// A value that was put is visible to every gateway when the call returns, and survives the end of the process, however it
/// ends. An owner is a string; only the same owner gets to see an entry. Methods may be called from async code.
pub trait Store: Debug + Send + Sync {
    /// Keeps a result, in place of an entry with the same id, then makes room within the [`Retention`]: never at the cost of
    /// the new entry or of a running job.
    fn put_result<'a>(&'a self, id: &'a str, owner: &'a str, value: Arc<Value>) -> Stored<'a, ()>;

    /// Keeps a job with its result, in place of its earlier state, then makes room as for a result.
    ///
    /// The job is leased to the gateway that puts it. A working job whose lease has ended is lost. A job that has ended stays
    /// ended, so its start and its end may be put in either order.
    fn put_job(&self, job: JobRow, result: Option<Arc<Value>>) -> Stored<'_, ()>;

    /// The result of an entry as compact JSON; none if there is no such entry, or the entry has no result.
    fn text<'a>(&'a self, id: &'a str, owner: &'a str) -> Stored<'a, Option<String>>;

    fn job<'a>(&'a self, id: &'a str, owner: &'a str) -> Stored<'a, Option<JobRow>>;

    /// At most `limit` jobs of an owner, the latest start first.
    fn jobs<'a>(&'a self, owner: &'a str, limit: usize) -> Stored<'a, Vec<JobRow>>;

    /// How much is kept, for all owners; none if this process has not used the store yet.
    fn counts(&self) -> Stored<'_, Option<KeptCounts>>;

    /// All outcomes of searches.
    fn outcomes(&self) -> Stored<'_, Vec<Outcome>>;

    /// Keeps an outcome of a search, in place of the same one where that was weaker.
    fn put_outcome(&self, outcome: Outcome) -> Stored<'_, ()>;
}

/// How much is kept, and for how long. Of gateways with different limits each applies its own when it writes.
#[derive(Clone, Copy, Debug)]
pub struct Retention {
    /// Bytes of all values as compact JSON. A file may be larger by an eighth of that, and by the engine's overhead.
    pub bytes: u64,
    /// How long an entry is kept after it was put, or after the job ended.
    pub age: Duration,
}

/// A call in the background, as the store keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobRow {
    pub id: String,
    pub owner: String,
    /// What it runs, for people.
    pub label: String,
    pub state: JobState,
    /// When it started, in milliseconds since 1970.
    pub started_ms: u64,
    /// Whether its lease holds: the gateway that put it is still running. Ignored when a job is put.
    pub leased: bool,
}

/// The state of a job in the store. Times are in milliseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    /// It is running, while its lease holds.
    Working,
    /// It ended with a result.
    Done {
        ended_ms: u64,
        /// Whether the result says that the call failed.
        failed: bool,
    },
    /// It was cancelled before it ended.
    Cancelled { ended_ms: u64 },
}

/// How much is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptCounts {
    /// Results and jobs, running ones included.
    pub entries: u64,
    /// Bytes of their values as compact JSON.
    pub bytes: u64,
}

/// What [`forget`] removed.
#[derive(Clone, Copy, Debug)]
pub struct Forgotten {
    pub outcomes: usize,
    pub kept: KeptCounts,
}

/// Removes everything from the files of a folder, on the disk as well. A running gateway goes on with what it has read.
/// Blocks.
pub fn forget(folder: &Path) -> Result<Forgotten, StoreError> {
    let outcomes_db = OutcomesDb::open(folder)?;
    let outcomes = outcomes_db.outcomes()?.len();
    outcomes_db.forget()?;
    let unlimited = Retention { bytes: u64::MAX, age: Duration::MAX };
    let kept_db = KeptDb::open(folder, unlimited, Holder::new(Clock::default()))?;
    let kept = kept_db.counts()?;
    kept_db.forget()?;
    Ok(Forgotten { outcomes, kept })
}

/// The folder of the store: `nonet` in `$XDG_STATE_HOME` or `~/.local/state`. None without a home folder.
pub fn folder() -> Option<PathBuf> {
    let set = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|folder| folder.is_absolute());
    let home = || std::env::home_dir().map(|home| home.join(".local/state"));
    Some(set.or_else(home)?.join("nonet"))
}

/// Why something was not kept or not found. Without a store Nonet works, but remembers nothing.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The folder or a file in it cannot be made or moved.
    #[error("`{}`: {source}; make it writable for this user, or set XDG_STATE_HOME to a folder that is", path.display())]
    Files { path: PathBuf, source: io::Error },
    /// A newer Nonet has written the file. It was not touched.
    #[error(
        "`{}` was written by a newer Nonet (format {found}, this one knows {known}): update Nonet, or move the file away to start with an empty one",
        file.display()
    )]
    Newer { file: PathBuf, found: usize, known: usize },
    /// The file is damaged and could not be set aside. It was not touched.
    #[error("`{}` is damaged ({what}) and in use: stop all gateways, then start one, which sets the file aside", file.display())]
    Damaged { file: PathBuf, what: String },
    #[error("`{}`: {source}; if this goes on, stop all gateways and move the file away to start with an empty one", file.display())]
    Sqlite { file: PathBuf, source: rusqlite::Error },
    /// The store could not be opened, not even in memory, or its work was aborted.
    #[error("the store cannot be used; the log says why")]
    Unusable,
}
