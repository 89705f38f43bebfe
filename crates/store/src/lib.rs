//! Data that Nonet keeps between runs: results, jobs, records, trusted definitions, and the outcomes of
//! searches.
//!
//! An engine (`engine`) knows rows in tables and large values, and nothing of what they mean. There are two:
//! SQLite files in one folder, shared by all gateways of a user (`sqlite`), and Redis, shared by the replicas
//! of a cluster (`redis`). Each kind of data is written once, above them: `records`, `kept`, `learned`,
//! `pins`. A new kind is a file with the name of its table; no engine changes for it.
//!
//! ```text
//! store.db                      outcomes of searches, figures of tools
//! kept.db                       results and jobs
//! records.db                    watches, schedules, facts, parked work, notices, approvals
//! pins.db                       trusted definitions of servers
//! holder-<number>.lock          locked by a gateway while it runs (`lease`)
//!
//! and beside each <name>.db
//! <name>.db-wal, <name>.db-shm  SQLite's own files
//! <name>.lock                   shared by every gateway that has the file open; exclusive while a damaged file is set aside
//! <name>.db.damaged-<n>         damaged files set aside: one for kept.db, up to nine for the others
//! ```

mod carried;
pub mod doors;
mod engine;
mod figures;
mod file;
mod formats;
mod gateway;
mod kept;
mod learned;
mod lease;
mod opened;
mod pins;
mod records;
mod redis;
pub mod reloads;
pub mod shared;
mod sqlite;
#[cfg(test)]
mod tests;
pub mod trusted_files;

use std::{
    collections::BTreeMap,
    fmt::Debug,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures::future::BoxFuture;
use nonet_api::{
    status::SharedStore,
    work::{KeptCounts, KeptRow},
};
use nonet_base::{clock::Clock, turns::SharedSlots};
use nonet_search::{Outcome, SharedVectors};
use serde_json::Value;

use self::{engine::Table, file::DbFormat};

pub use carried::{CarriedPin, CarriedRecord};
pub use figures::{LastError, NamedFigures, RecentCalls, ToolFigures};
pub use gateway::GatewayStore;
use lease::LeaseHolder;
pub use opened::{OpenDb, Removable};
pub use pins::{Pin, PinKind, PinStep, PinStore, PinTexts, PinWrite};
pub use records::Records;
pub use redis::{ForgetScope, LeaseClaim, RedisTopology, Replica, Replicas, SessionHolder};
use sqlite::SqliteDb;

/// The return type of methods of [`Store`].
pub type StoreFuture<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// Keeps results, jobs, outcomes and figures. Several gateways may use one store at the same time.
///
/// A stored value is visible to every gateway when the call returns, and survives the end of the process,
/// however it ends, unless the answer is [`Lifespan::UntilEnd`]. An owner is a string; an entry is visible
/// only to its owner. Methods may be called from async code.
pub trait Store: Debug + Send + Sync {
    /// Stores a result, replacing an entry with the same id, then makes room within its [`Share`] and the
    /// [`Retention`], but never by removing the new entry or a running job.
    fn put_result<'a>(
        &'a self,
        id: &'a str,
        owner: &'a str,
        share: Share,
        value: Arc<Value>,
    ) -> StoreFuture<'a, Lifespan>;

    /// Stores a job with its result, replacing its earlier state, then makes room as for a result.
    ///
    /// The job is leased to the gateway that stores it. A working job whose lease has ended is lost. An ended
    /// job stays ended, so its start and its end may be stored in either order.
    fn put_job(&self, job: JobRow, share: Share, result: Option<Arc<Value>>) -> StoreFuture<'_, Lifespan>;

    /// Returns an entry's result as compact JSON; `None` if there is no such entry, or if the entry has no
    /// result.
    fn text<'a>(&'a self, id: &'a str, owner: &'a str) -> StoreFuture<'a, Option<String>>;

    /// Returns a job; `None` if the owner has none with this id, or if it has expired.
    fn job<'a>(&'a self, id: &'a str, owner: &'a str) -> StoreFuture<'a, Option<JobRow>>;

    /// Returns at most `limit` jobs of an owner, latest start first.
    fn jobs<'a>(&'a self, owner: &'a str, limit: usize) -> StoreFuture<'a, Vec<JobRow>>;

    /// Asks the gateway that runs an owner's job to cancel it.
    fn ask_to_cancel<'a>(&'a self, id: &'a str, owner: &'a str) -> StoreFuture<'a, ()> {
        let _ = (id, owner);
        Box::pin(async { Ok(()) })
    }

    /// Returns this gateway's jobs that others want cancelled, each once.
    fn to_cancel(&self) -> StoreFuture<'_, Vec<String>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// Returns at most `limit` results of all owners, without jobs, latest first. For the machine's user.
    fn results(&self, limit: usize) -> StoreFuture<'_, Vec<KeptRow>> {
        let _ = limit;
        Box::pin(async { Ok(Vec::new()) })
    }

    /// Removes a result, or a job that has ended. Returns false if its owner has none with this id.
    fn remove_kept<'a>(&'a self, id: &'a str, owner: &'a str) -> StoreFuture<'a, bool> {
        let _ = (id, owner);
        Box::pin(async { Ok(false) })
    }

    /// Removes expired entries, and lets the store's clock advance. Does nothing if this process has not used
    /// the store yet.
    fn sweep(&self) -> StoreFuture<'_, ()>;

    /// Returns how much is stored, for all owners; `None` if this process has not used the store yet.
    fn counts(&self) -> StoreFuture<'_, Option<KeptCounts>>;

    /// Returns all outcomes of searches.
    fn outcomes(&self) -> StoreFuture<'_, Vec<Outcome>>;

    /// Stores an outcome of a search, replacing the same outcome if that was weaker.
    fn put_outcome(&self, outcome: Outcome) -> StoreFuture<'_, ()>;

    /// Returns the figures of all tools.
    fn figures(&self) -> StoreFuture<'_, Vec<NamedFigures>>;

    /// Adds figures to the stored ones of these tools, and returns the sums; `None` if figures are not
    /// stored. Beyond the maximum number of tools, the least recently called ones are dropped.
    fn add_figures(&self, fresh: Vec<NamedFigures>) -> StoreFuture<'_, Option<Vec<NamedFigures>>>;

    /// Takes a call from each of these rates, or from none if one is used up. Answers within a moment.
    fn take_rates<'a>(&'a self, rates: &'a [&'a SharedRate]) -> StoreFuture<'a, RateOutcome> {
        let _ = rates;
        Box::pin(async { Ok(RateOutcome::NotShared) })
    }

    /// Returns the trusted definitions that replicas share; `None` for a store of one machine, where they
    /// have a separate file.
    fn shared_pins(&self) -> Option<Arc<PinStore>> {
        None
    }

    /// Returns the vectors of tools that replicas share; `None` for a store of one machine.
    fn shared_vectors(&self) -> Option<Arc<dyn SharedVectors>> {
        None
    }

    /// Returns the slots that replicas share; `None` for a store of one machine.
    fn shared_slots(&self) -> Option<Arc<dyn SharedSlots>> {
        None
    }

    /// Ends this gateway's leases, so that others need not wait for them to expire. A lease in files ends
    /// with its process.
    fn leave(&self) -> StoreFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    /// Returns the replicas that share this store; `None` for a store of one machine.
    fn replicas(&self) -> Option<Arc<Replicas>> {
        None
    }

    /// Returns a description of the shared store; `None` for a store of one machine.
    fn shared(&self) -> Option<SharedStore> {
        None
    }
}

/// The kind of a record. Each kind has its own quotas and its own body format, which belong to the room that
/// stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RecordKind {
    /// A tool call that is repeated to compare its results.
    Watch,
    /// A call, an app or a reminder for later.
    Schedule,
    /// Something to remember.
    Fact,
    /// The goal of the work.
    Goal,
    /// An item on a model's to-do list.
    Todo,
    /// A workflow that waits for the user's answer.
    Parked,
    /// A script: one that runs, waits for the user, or has stopped early. Its parts are its ledger.
    Script,
    /// A message that a client has not received yet.
    Notice,
    /// A request that waits for the user's approval outside the chat.
    Approval,
    /// A person who has signed in, as their token last described them.
    Person,
    /// A person's account at a server: their sealed tokens. Its owner is the person.
    Account,
}

impl RecordKind {
    const ALL: [Self; 11] = [
        Self::Watch,
        Self::Schedule,
        Self::Fact,
        Self::Goal,
        Self::Todo,
        Self::Parked,
        Self::Script,
        Self::Notice,
        Self::Approval,
        Self::Person,
        Self::Account,
    ];

    fn as_str(self) -> &'static str {
        match self {
            Self::Watch => "watch",
            Self::Schedule => "schedule",
            Self::Fact => "fact",
            Self::Goal => "goal",
            Self::Todo => "todo",
            Self::Parked => "parked",
            Self::Script => "script",
            Self::Notice => "notice",
            Self::Approval => "approval",
            Self::Person => "person",
            Self::Account => "account",
        }
    }

    fn is_forgotten_with(self) -> Option<ForgetTarget> {
        match self {
            Self::Fact | Self::Goal | Self::Todo => Some(ForgetTarget::Memory),
            Self::Watch | Self::Schedule | Self::Parked | Self::Script | Self::Person => {
                Some(ForgetTarget::Plans)
            }
            Self::Notice | Self::Approval => Some(ForgetTarget::Messages),
            // Ends when the person signs out.
            Self::Account => None,
        }
    }
}

/// A record to put.
#[derive(Clone, Debug)]
pub struct NewRecord {
    /// Determines the quota and the format of the body.
    pub kind: RecordKind,
    /// The owner that the record belongs to: a profile and a person, empty without either; for a part of parked work, the id of that
    /// work.
    pub owner: String,
    /// Unique among the owner's records of this kind.
    pub id: String,
    /// The content, which the store does not interpret.
    pub body: Value,
    /// When it is due, in milliseconds since 1970.
    pub due_ms: Option<u64>,
    /// Whether this gateway holds it, until it ends or releases the record. While a gateway holds a record,
    /// no other one acts on it.
    pub held: bool,
    /// Whether it is due only for gateways of this configuration, because others may lack what it needs.
    pub of_config: bool,
}

impl NewRecord {
    /// Returns a record without an owner, an id or a time, held by this gateway.
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

/// A record as last read.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Determines the format of the body.
    pub kind: RecordKind,
    /// The profile that the record belongs to, empty without one; for a part of parked work, the id of that
    /// work.
    pub owner: String,
    /// Unique among the owner's records of this kind.
    pub id: String,
    /// The content, in the format of the room that stored the record.
    pub body: Value,
    /// When it is due, in milliseconds since 1970.
    pub due_ms: Option<u64>,
    /// Grows with every change.
    pub revision: u64,
    /// When it was stored, in milliseconds since 1970.
    pub put_ms: u64,
}

/// A model's vector of a fact, made from the text of this revision.
#[derive(Clone, Debug, PartialEq)]
pub struct FactVector {
    /// The id of the fact's record.
    pub id: String,
    /// The revision of the fact's record. A vector of an older revision is dropped.
    pub revision: u64,
    /// The components; how many depends on the model.
    pub vector: Arc<[f32]>,
}

/// The quota of an owner for one kind of record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordQuota {
    /// A new record beyond this number is refused.
    Refuse(usize),
    /// A new record beyond this number replaces the oldest.
    DropOldest(usize),
}

/// The upcoming work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Agenda {
    /// When the next record is due that this gateway holds or may take over, in milliseconds since 1970.
    pub next_due_ms: Option<u64>,
    /// The number of waiting notices per owner, unless a gateway holds them.
    pub notices: BTreeMap<String, usize>,
}

/// The part of the store that one client may fill. The client's new entries displace its own oldest ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The client's name, unique among clients.
    pub of: Arc<str>,
    /// The maximum size of all its values, in bytes.
    pub bytes: u64,
}

/// How long a stored entry lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifespan {
    /// As long as the retention says.
    AsConfigured,
    /// At most until this gateway ends: the disk cannot be written.
    UntilEnd,
}

/// A rate of calls shared by a gateway's replicas: `burst` calls at once, and then one per `interval`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedRate {
    /// A unique name.
    pub name: String,
    /// How long it takes until one more call is allowed.
    pub interval: Duration,
    /// The maximum number of calls at once, after a time without calls; at least one.
    pub burst: u32,
}

/// The outcome of taking a call from rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateOutcome {
    /// Not taken: the store belongs to one machine, which has its own rates.
    NotShared,
    /// The call was taken from all rates.
    All,
    /// The call was not taken, because this rate is used up.
    UsedUp {
        /// The index of the rate among the given ones.
        at: usize,
        /// How long until it allows the next call.
        wait: Duration,
    },
}

/// How much is stored, and for how long. Gateways with different limits each apply their own when they write.
#[derive(Clone, Copy, Debug)]
pub struct Retention {
    /// The total size of all values as compact JSON. A file may be larger by an eighth of that, and by the
    /// engine's overhead.
    pub bytes: u64,
    /// How long an entry is kept after it was stored, or after the job ended. On disk, time without a running
    /// gateway counts for an hour at most, and so does a jump of the clock. Redis uses its own clock.
    pub age: Duration,
}

impl Retention {
    /// Enough for everything of a test: a gigabyte, for an hour.
    pub const ROOMY: Self = Self { bytes: 1 << 30, age: Duration::from_secs(3_600) };
}

/// A background call, as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobRow {
    /// The handle of the task: `job-` and 12 hex digits.
    pub id: String,
    /// The profile under which the job was started; empty without one.
    pub owner: String,
    /// A description of its work, for people.
    pub label: String,
    /// Its last stored state. A job that is `Working` without a lease is lost.
    pub state: JobState,
    /// When it started, in milliseconds since 1970.
    pub started_ms: u64,
    /// Whether its lease holds: the gateway that stored it is still running. Ignored when a job is stored.
    pub leased: bool,
}

/// The state of a job in the store. Times are in milliseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    /// It is running while its lease holds.
    Working,
    /// It ended with a result.
    Done {
        /// When the work ended.
        ended_ms: u64,
        /// Whether the result reports a failed call.
        failed: bool,
    },
    /// It was cancelled before it ended.
    Cancelled {
        /// When the cancelled work ended.
        ended_ms: u64,
    },
}

/// What the user can have forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForgetTarget {
    /// Outcomes of searches, and figures of tools.
    Learned,
    /// Kept results, and tasks.
    Results,
    /// Facts, goals and to-do lists.
    Memory,
    /// Watches, schedules and workflows that wait.
    Plans,
    /// Notices and approvals.
    Messages,
}

impl ForgetTarget {
    fn records(self) -> Vec<RecordKind> {
        RecordKind::ALL.into_iter().filter(|kind| kind.is_forgotten_with() == Some(self)).collect()
    }

    /// Returns the file, the tables in it, and a statement for what else belongs to them.
    fn place(self) -> (&'static DbFormat, Vec<Table>, &'static str) {
        match self {
            Self::Learned => (&formats::LEARNED, vec![learned::OUTCOMES, learned::FIGURES], ""),
            Self::Results => (&formats::KEPT, kept::TABLES.to_vec(), "DELETE FROM chunks"),
            what => {
                let mut tables: Vec<Table> = what.records().iter().map(|kind| kind.as_str()).collect();
                let is_memory = what == Self::Memory;
                tables.extend(is_memory.then_some(records::VECTORS));
                (&formats::RECORDS, tables, if is_memory { "DELETE FROM counters" } else { "" })
            }
        }
    }
}

/// How much there is to forget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForgetCount {
    /// Outcomes, and tools with figures.
    Learned {
        /// How many outcomes of searches are stored.
        outcomes: usize,
        /// How many tools have stored figures.
        tools: usize,
    },
    /// Results and tasks.
    Results(KeptCounts),
    /// Records.
    Records(u64),
}

/// Counts what there is in a folder's files. Blocks.
pub fn forgettable(folder: &Path, what: ForgetTarget) -> Result<ForgetCount, StoreError> {
    let (format, tables, _) = what.place();
    let db = SqliteDb::open(folder, format, LeaseHolder::new(Clock::default()))?;
    Ok(match what {
        ForgetTarget::Learned => ForgetCount::Learned {
            outcomes: db.count(learned::OUTCOMES, None)?,
            tools: db.count(learned::FIGURES, None)?,
        },
        ForgetTarget::Results => ForgetCount::Results(kept::counts(&db)?),
        _ => {
            let records = tables.iter().filter(|table| **table != records::VECTORS);
            let counts = records.map(|table| db.count(table, None)).collect::<Result<Vec<_>, _>>()?;
            ForgetCount::Records(counts.iter().sum::<usize>() as u64)
        }
    })
}

/// Removes it from a folder's files, including the traces on disk. A running gateway continues with what it
/// has read. Blocks.
pub fn forget(folder: &Path, what: ForgetTarget) -> Result<(), StoreError> {
    let (format, tables, others) = what.place();
    SqliteDb::open(folder, format, LeaseHolder::new(Clock::default()))?.forget(&tables, others)
}

/// Returns how many definitions of servers are trusted in a folder's files; `None` if none ever was. Blocks.
pub fn trusted(folder: &Path) -> Result<Option<usize>, StoreError> {
    if !folder.join(formats::PINS.name).exists() {
        return Ok(None);
    }
    let db = SqliteDb::open(folder, &formats::PINS, LeaseHolder::new(Clock::default()))?;
    db.count(pins::PINS, None).map(Some)
}

/// Removes all trust in definitions from a folder's files. Returns how many definitions were trusted. Blocks.
pub fn forget_trust(folder: &Path) -> Result<usize, StoreError> {
    let Some(count) = trusted(folder)? else { return Ok(0) };
    let db = SqliteDb::open(folder, &formats::PINS, LeaseHolder::new(Clock::default()))?;
    db.forget(&[pins::PINS, pins::TEXTS], "UPDATE counters SET count = count + 1")?;
    Ok(count)
}

/// Returns the folder of the store: `nonet` in `$XDG_STATE_HOME` or `~/.local/state`. `None` without a home
/// folder.
pub fn folder() -> Option<PathBuf> {
    let set = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|folder| folder.is_absolute());
    let home = || std::env::home_dir().map(|home| home.join(".local/state"));
    Some(set.or_else(home)?.join("nonet"))
}

/// Why data was not stored or not found. Without a store Nonet works, but remembers nothing.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The folder or a file in it cannot be created or moved.
    #[error("`{}`: {source}; make it writable for this user, or set XDG_STATE_HOME to a folder that is", path.display())]
    Files {
        /// The folder or file.
        path: PathBuf,
        /// The error of the file system.
        source: io::Error,
    },
    /// The file was written by a newer Nonet. It was not changed.
    #[error(
        "`{}` was written by a newer Nonet (format {found}, this one supports {known}): update Nonet, or move the file away to start with an empty one",
        file.display()
    )]
    Newer {
        /// The database file.
        file: PathBuf,
        /// The number of the file's format.
        found: usize,
        /// The latest format that this version can read.
        known: usize,
    },
    /// The file is damaged and could not be set aside. It was not changed.
    #[error("`{}` is damaged ({what}) and in use: stop all gateways, then start one, which sets the file aside", file.display())]
    Damaged {
        /// The database file.
        file: PathBuf,
        /// What is wrong with the file, mostly in the words of SQLite.
        what: String,
    },
    /// SQLite cannot read or write the file at the moment, such as on a full disk.
    #[error("`{}`: {source}; if this continues, stop all gateways and move the file away to start with an empty one", file.display())]
    Sqlite {
        /// The database file.
        file: PathBuf,
        /// The error of SQLite.
        source: rusqlite::Error,
    },
    /// Redis does not answer, or refuses. Whether a requested change was made is unknown.
    #[error(
        "Redis at `{place}` {what}; calls and searches continue. If the fault persists, restart Redis, or correct `redis` of [cluster]"
    )]
    Away {
        /// The addresses of Redis, each as host and port.
        place: String,
        /// The fault as a predicate, such as `answers late`.
        what: String,
    },
    /// The value in Redis was written by a newer Nonet. It was not changed.
    #[error("`{what}` in Redis was written by a newer Nonet: update this one")]
    NewerValue {
        /// What the value is, such as the pin of a tool.
        what: String,
    },
    /// A result exceeds the maximum size of a value in Redis. It was not stored there.
    #[error("{bytes} bytes are too many for Redis; the maximum of a value is {most}")]
    TooLarge {
        /// The size of the value as it would be stored.
        bytes: usize,
        /// The maximum size of one value, in bytes.
        most: usize,
    },
    /// Others were always faster to change the same data. Nothing was stored.
    #[error("others change the same data all the time; try again")]
    Busy,
    /// The store could not be opened, not even in memory, or its work was aborted.
    #[error("the store cannot be used; the log says why")]
    Unusable,
}
