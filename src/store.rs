//! What Nonet keeps between runs: results, jobs, records, and what searches led to.
//!
//! [`Store`] and [`Records`] are what the rooms above see: a few async methods, owners that are strings, and leases that say which gateway
//! runs a job or holds a record. There are two engines behind them: [`SqliteStore`], SQLite files in one folder, shared by all
//! gateways of a user, and [`RedisStore`], shared by the replicas of a cluster. The room knows rows, files and keys; of the
//! other rooms only the values that it keeps.
//!
//! ```text
//! store.db                      what searches led to (`outcomes_db`), figures of tools (`figures_db`)
//! kept.db                       results and jobs (`kept_db`)
//! records.db                    watches, schedules, facts, parked work, notices, approvals (`records_db`)
//! pins.db                       trusted definitions of servers (`pins_db`)
//! holder-<number>.lock          locked by a gateway as long as it runs (`lease`)
//!
//! and beside each <name>.db
//! <name>.db-wal, <name>.db-shm  SQLite's own
//! <name>.lock                   shared by every gateway that has the file open; exclusive while a damaged file is set aside
//! <name>.db.damaged-<n>         damaged files that were set aside: one of kept.db, up to nine of the others
//! ```

mod figures;
mod figures_db;
mod file;
mod kept_db;
mod lease;
mod outcomes_db;
mod pins_db;
mod records_db;
mod redis;
mod spare;
mod sqlite;
#[cfg(test)]
pub(crate) mod tests;

use std::{
    collections::BTreeMap,
    fmt::Debug,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures::future::BoxFuture;
use serde::Serialize;
use serde_json::Value;

pub use figures::{LastError, NamedFigures, RecentCalls, ToolFigures};
pub use pins_db::{Pin, PinKind, PinStep, PinTexts, PinWrite, PinsDb};
pub use redis::{Claim, Forget, Held, RedisStore, Replica, Replicas, Way};
pub use sqlite::SqliteStore;
use {kept_db::KeptDb, lease::Holder, outcomes_db::OutcomesDb, records_db::RecordsDb, spare::Spare};

use crate::{
    clock::Clock,
    search::{Outcome, SharedVectors},
    turns::SharedSlots,
};

/// What a method of [`Store`] or [`Records`] gives.
pub type Stored<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// Keeps results, jobs, outcomes and figures. Several gateways may use one store at the same time.
///
/// A value that was put is visible to every gateway when the call returns, and survives the end of the process, however it
/// ends, unless the answer is [`Lasts::UntilEnd`]. An owner is a string; only the same owner gets to see an entry. Methods may
/// be called from async code.
pub trait Store: Debug + Send + Sync {
    /// Keeps a result, in place of an entry with the same id, then makes room within its [`Share`] and the [`Retention`]:
    /// never at the cost of the new entry or of a running job.
    fn put_result<'a>(
        &'a self,
        id: &'a str,
        owner: &'a str,
        share: Share,
        value: Arc<Value>,
    ) -> Stored<'a, Lasts>;

    /// Keeps a job with its result, in place of its earlier state, then makes room as for a result.
    ///
    /// The job is leased to the gateway that puts it. A working job whose lease has ended is lost. A job that has ended stays
    /// ended, so its start and its end may be put in either order.
    fn put_job(&self, job: JobRow, share: Share, result: Option<Arc<Value>>) -> Stored<'_, Lasts>;

    /// The result of an entry as compact JSON; none if there is no such entry, or the entry has no result.
    fn text<'a>(&'a self, id: &'a str, owner: &'a str) -> Stored<'a, Option<String>>;

    fn job<'a>(&'a self, id: &'a str, owner: &'a str) -> Stored<'a, Option<JobRow>>;

    /// At most `limit` jobs of an owner, the latest start first.
    fn jobs<'a>(&'a self, owner: &'a str, limit: usize) -> Stored<'a, Vec<JobRow>>;

    /// Asks the gateway that runs a job of an owner to cancel it. Gateways of one machine do not hear of it.
    fn ask_to_cancel<'a>(&'a self, id: &'a str, owner: &'a str) -> Stored<'a, ()> {
        let _ = (id, owner);
        Box::pin(async { Ok(()) })
    }

    /// The jobs of this gateway that others want cancelled, each once.
    fn to_cancel(&self) -> Stored<'_, Vec<String>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// At most `limit` results of all owners, jobs aside, the latest first. For the user of the machine.
    fn results(&self, limit: usize) -> Stored<'_, Vec<KeptRow>> {
        let _ = limit;
        Box::pin(async { Ok(Vec::new()) })
    }

    /// Removes a result, or a job that has ended; false if its owner has none with this id.
    fn remove_kept<'a>(&'a self, id: &'a str, owner: &'a str) -> Stored<'a, bool> {
        let _ = (id, owner);
        Box::pin(async { Ok(false) })
    }

    /// Removes what is too old, and lets the store see the time pass. Does nothing if this process has not used it yet.
    fn sweep(&self) -> Stored<'_, ()>;

    /// How much is kept, for all owners; none if this process has not used the store yet.
    fn counts(&self) -> Stored<'_, Option<KeptCounts>>;

    /// All outcomes of searches.
    fn outcomes(&self) -> Stored<'_, Vec<Outcome>>;

    /// Keeps an outcome of a search, in place of the same one where that was weaker.
    fn put_outcome(&self, outcome: Outcome) -> Stored<'_, ()>;

    /// The figures of all tools.
    fn figures(&self) -> Stored<'_, Vec<NamedFigures>>;

    /// Adds figures to what is kept of these tools, and returns that; none if figures are not kept. Of too many tools those go
    /// that were not called for the longest time.
    fn add_figures(&self, fresh: Vec<NamedFigures>) -> Stored<'_, Option<Vec<NamedFigures>>>;

    /// Takes a call from each of these rates, or from none of them if one is used up. Answers within a moment.
    fn take_rates<'a>(&'a self, rates: &'a [&'a SharedRate]) -> Stored<'a, TakenRates> {
        let _ = rates;
        Box::pin(async { Ok(TakenRates::NotShared) })
    }

    /// The trusted definitions that replicas share; none if the store belongs to one machine, where they have a file of their own.
    fn shared_pins(&self) -> Option<Arc<dyn PinStore>> {
        None
    }

    /// The vectors of tools that replicas share; none if the store belongs to one machine.
    fn shared_vectors(&self) -> Option<Arc<dyn SharedVectors>> {
        None
    }

    /// The slots that replicas share; none if the store belongs to one machine.
    fn shared_slots(&self) -> Option<Arc<dyn SharedSlots>> {
        None
    }

    /// Ends the leases of this gateway, so that others need not wait for them to run out. A lease of files ends with its process.
    fn leave(&self) -> Stored<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    /// The replicas that share this store; none if it belongs to one machine.
    fn replicas(&self) -> Option<Arc<Replicas>> {
        None
    }

    /// What replicas share this store over; none if it belongs to one machine.
    fn shared(&self) -> Option<SharedStore> {
        None
    }
}

/// Keeps records: what is left for later, or to be remembered. Several gateways may use the same records at the same time.
///
/// A record that was put is visible to every gateway when the call returns, and survives the end of the process and of the
/// machine. Methods may be called from async code.
pub trait Records: Debug + Send + Sync {
    /// Puts a record, in place of the one with the same kind, owner and id. Returns how many of the owner's oldest records of
    /// that kind were dropped for the new one; none if the owner has as many as `most` allows and nothing was put.
    fn put(&self, record: NewRecord, most: Most) -> Stored<'_, Option<usize>>;

    fn get<'a>(&'a self, kind: RecordKind, owner: &'a str, id: &'a str) -> Stored<'a, Option<Record>>;

    /// All records of an owner, oldest first.
    fn all<'a>(&'a self, kind: RecordKind, owner: &'a str) -> Stored<'a, Vec<Record>>;

    /// All records of a kind, of every owner, oldest first.
    fn of_kind(&self, kind: RecordKind) -> Stored<'_, Vec<Record>>;

    /// Writes the body and the due time of a record that was read; false, and nothing is written, if the record was changed
    /// or removed since. Its holder stays.
    fn change(&self, record: Record) -> Stored<'_, bool>;

    /// Removes a record that was read; false, and nothing is removed, if the record was changed or removed since.
    fn remove(&self, record: Record) -> Stored<'_, bool>;

    /// Holds a record that was read, which counts as a change; false if it was changed or removed since, or if a gateway that
    /// runs holds it, this one included.
    fn hold<'a>(&'a self, record: &'a Record) -> Stored<'a, bool>;

    /// Removes a record and returns it. Of several callers one gets it.
    ///
    /// A parked record has parts: records of its kind whose owner is its id. They are taken or dropped with it.
    fn take<'a>(&'a self, kind: RecordKind, owner: &'a str, id: &'a str) -> Stored<'a, Option<Record>>;

    /// Removes the records of an owner that were put before a time. Returns how many.
    fn drop_old<'a>(&'a self, kind: RecordKind, owner: &'a str, before_ms: u64) -> Stored<'a, usize>;

    /// The records that are due at `now_ms` and that this gateway holds, the earliest first. Takes over records of gateways
    /// that have ended. A record stays due until it is changed.
    fn due(&self, now_ms: u64) -> Stored<'_, Vec<Record>>;

    /// What is to come; none as long as there are no records at all.
    fn agenda(&self) -> Stored<'_, Option<Agenda>>;

    /// Makes this gateway the holder of at most `most` records, oldest first, that no gateway holds, and returns them. Of several
    /// callers one gets each.
    fn claim_free<'a>(&'a self, kind: RecordKind, owner: &'a str, most: usize) -> Stored<'a, Vec<Record>>;

    /// A number that changes with every change of an owner's facts, by one for each fact; none as long as there were no facts.
    fn changes<'a>(&'a self, owner: &'a str) -> Stored<'a, Option<u64>>;

    /// The vectors of an owner's facts that a model has made.
    fn vectors<'a>(&'a self, owner: &'a str, model: &'a str) -> Stored<'a, Vec<FactVector>>;

    /// Keeps vectors of an owner's facts, in place of earlier ones. One of a fact that was changed or removed since is dropped.
    fn put_vectors<'a>(&'a self, owner: &'a str, model: &'a str, vectors: Vec<FactVector>) -> Stored<'a, ()>;

    /// Lets records go that this gateway holds.
    fn free<'a>(&'a self, kind: RecordKind, owner: &'a str, ids: Vec<String>) -> Stored<'a, ()>;
}

/// Keeps what is trusted of the servers of one configuration. Several gateways, and several threads of one, may use it at the same
/// time. Every call blocks.
pub trait PinStore: Debug + Send + Sync {
    /// A number that changes when another gateway changes a pin.
    fn version(&self) -> Result<i64, StoreError>;

    /// The pins of a server.
    fn of_server(&self, server: &str) -> Result<Vec<Pin>, StoreError>;

    /// The first `most` pins that wait, with their texts.
    fn waiting(&self, most: usize) -> Result<Vec<(Pin, PinTexts)>, StoreError>;

    /// How many pins wait.
    fn count_waiting(&self) -> Result<usize, StoreError>;

    /// The texts of a pin that was read.
    fn texts(&self, pin: &Pin) -> Result<PinTexts, StoreError>;

    /// Writes changes of the pins of a server, all or none.
    fn write(&self, server: &str, writes: &[PinWrite], now_ms: u64) -> Result<(), StoreError>;

    /// Trusts what waits, if that is still what the user has seen. Returns how many of them it was.
    fn trust(&self, seen: &[Pin], now_ms: u64) -> Result<usize, StoreError>;

    /// Notes that somebody was told of these. Returns how many of them still wait.
    fn told(&self, seen: &[Pin]) -> Result<usize, StoreError>;
}

/// What a record is. Each kind has its own quotas and its own shape of body, which belong to the room that keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RecordKind {
    /// A tool call that is repeated and whose results are compared.
    Watch,
    /// A call, an app or a reminder for later.
    Schedule,
    /// Something to remember.
    Fact,
    /// What the work is about.
    Goal,
    /// Something to do, on the list of a model.
    Todo,
    /// A workflow that waits for an answer of the user.
    Parked,
    /// What a client has yet to be told.
    Notice,
    /// What waits for the user's approval, outside of the chat.
    Approval,
}

impl RecordKind {
    const ALL: [Self; 8] = [
        Self::Watch,
        Self::Schedule,
        Self::Fact,
        Self::Goal,
        Self::Todo,
        Self::Parked,
        Self::Notice,
        Self::Approval,
    ];

    fn as_str(self) -> &'static str {
        match self {
            Self::Watch => "watch",
            Self::Schedule => "schedule",
            Self::Fact => "fact",
            Self::Goal => "goal",
            Self::Todo => "todo",
            Self::Parked => "parked",
            Self::Notice => "notice",
            Self::Approval => "approval",
        }
    }

    fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

/// A record to put.
#[derive(Clone, Debug)]
pub struct NewRecord {
    pub kind: RecordKind,
    pub owner: String,
    /// Unique among the owner's records of this kind.
    pub id: String,
    pub body: Value,
    /// When something is to be done about it, in milliseconds since 1970.
    pub due_ms: Option<u64>,
    /// Whether this gateway holds it, until it ends or frees it. While a gateway holds a record, no other one acts on it.
    pub held: bool,
    /// Whether it is due for gateways of this configuration only: others may not have what it needs.
    pub of_config: bool,
}

impl NewRecord {
    /// A record of nobody in particular, without an id or a time. Held by this gateway.
    pub fn new(kind: RecordKind, body: Value) -> Self {
        Self {
            kind,
            owner: String::new(),
            id: String::new(),
            body,
            due_ms: None,
            held: true,
            of_config: false,
        }
    }
}

/// A record as it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    pub kind: RecordKind,
    pub owner: String,
    pub id: String,
    pub body: Value,
    /// When something is to be done about it, in milliseconds since 1970.
    pub due_ms: Option<u64>,
    /// Grows with every change.
    pub revision: u64,
    /// When it was put, in milliseconds since 1970.
    pub put_ms: u64,
}

/// The vector of a fact, as a model made it from the text of this revision.
#[derive(Clone, Debug, PartialEq)]
pub struct FactVector {
    pub id: String,
    pub revision: u64,
    pub vector: Arc<[f32]>,
}

/// The quota of an owner for one kind of record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Most {
    /// A new record beyond so many is refused.
    Refuse(usize),
    /// A new record beyond so many replaces the oldest.
    DropOldest(usize),
}

/// What is to come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Agenda {
    /// When the next record is due that this gateway holds, or may take over, in milliseconds since 1970.
    pub next_due_ms: Option<u64>,
    /// How many notices wait for each owner that no gateway holds.
    pub notices: BTreeMap<String, usize>,
}

/// The part of the store that one client may fill. Its new entries take the place of its own oldest ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The client's name, which no other client has.
    pub of: Arc<str>,
    /// The most bytes of all its values.
    pub bytes: u64,
}

/// How long an entry is kept that was put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasts {
    /// As long as the retention says.
    AsConfigured,
    /// Until this gateway ends, at most: the disk cannot be written.
    UntilEnd,
}

/// A rate of calls that the replicas of a gateway share: `burst` calls at once, and then one each `interval`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedRate {
    /// What no other rate is called.
    pub name: String,
    pub interval: Duration,
    pub burst: u32,
}

/// What came of taking a call from rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakenRates {
    /// Nothing: the store belongs to one machine, which has rates of its own.
    NotShared,
    /// The call was taken from all of them.
    All,
    /// Nothing was taken, because of this one.
    UsedUp {
        /// Its place among the rates that were given.
        at: usize,
        /// When it allows the next call.
        wait: Duration,
    },
}

/// What the replicas of a gateway share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SharedStore {
    pub engine: &'static str,
    /// Its host and port.
    pub at: String,
    pub prefix: String,
    /// The name of this replica.
    pub name: String,
    /// The replicas that ran a moment ago, this one included; none as long as this one does not serve over HTTP.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub replicas: Vec<ShownReplica>,
    /// Why it cannot be used at the moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// A replica, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ShownReplica {
    pub name: String,
    /// Where the others reach it.
    pub address: String,
    pub version: String,
    /// Whether it is about to stop.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub leaving: bool,
    /// Whether its configuration is another one than that of this replica.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub other_config: bool,
}

/// How much is kept, and for how long. Of gateways with different limits each applies its own when it writes.
#[derive(Clone, Copy, Debug)]
pub struct Retention {
    /// Bytes of all values as compact JSON. A file may be larger by an eighth of that, and by the engine's overhead.
    pub bytes: u64,
    /// How long an entry is kept after it was put, or after the job ended. On the disk, time in which no gateway runs counts for
    /// an hour at most, and so does a jump of the clock. Redis goes by its own clock.
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

/// A kept result, without its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeptRow {
    pub id: String,
    pub owner: String,
    pub bytes: u64,
    /// When it was kept, in milliseconds since 1970.
    pub at_ms: u64,
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
    /// Tools whose figures were kept.
    pub tools: usize,
    pub kept: KeptCounts,
    /// What clients have asked Nonet to remember.
    pub facts: u64,
    /// Watches, schedules, goals, tasks, parked work and notices.
    pub records: u64,
}

/// Removes everything from the files of a folder, on the disk as well. A running gateway goes on with what it has read.
/// Blocks.
pub fn forget(folder: &Path) -> Result<Forgotten, StoreError> {
    let outcomes_db = OutcomesDb::open(folder)?;
    let (outcomes, tools) = (outcomes_db.outcomes()?.len(), outcomes_db.figures()?.len());
    outcomes_db.forget()?;
    let unlimited = Retention { bytes: u64::MAX, age: Duration::MAX };
    let kept_db = KeptDb::open(folder, unlimited, Holder::new(Clock::default()))?;
    let kept = kept_db.counts()?;
    kept_db.forget()?;
    let records_db = RecordsDb::open(folder, Holder::new(Clock::default()))?;
    let (facts, records) = records_db.counts()?;
    records_db.forget()?;
    Ok(Forgotten { outcomes, tools, kept, facts, records })
}

/// Works with a file where blocking is allowed.
async fn run<Db: Send + Sync + 'static, T: Send + 'static>(
    db: Arc<Db>,
    work: impl FnOnce(&Db) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    tokio::task::spawn_blocking(move || work(&db)).await.unwrap_or(Err(StoreError::Unusable))
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
    /// Redis does not answer, or refuses. Whether a change was made that was asked for is not known.
    #[error(
        "Redis at `{place}` {what}; calls and searches go on. If it stays so, start Redis again, or correct `redis` of [cluster]"
    )]
    Away { place: String, what: String },
    /// A newer Nonet has put this into Redis. It was not touched.
    #[error("`{what}` in Redis was put by a newer Nonet: update this one")]
    NewerValue { what: String },
    #[error("{bytes} bytes are too many for Redis, which gets values up to {most}")]
    TooLarge { bytes: usize, most: usize },
    /// The store could not be opened, not even in memory, or its work was aborted.
    #[error("the store cannot be used; the log says why")]
    Unusable,
}
