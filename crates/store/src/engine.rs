//! What an engine of the store does: rows in tables, and the values that are too large for rows.
//!
//! Everything that Nonet keeps is written once, above this trait: a room names its table, and decides. It
//! reads rows, and commits a batch that is written only if the rows are still as they were read; if not, it
//! reads again.

use std::{collections::HashSet, fmt::Debug, io, sync::Arc, time::Duration};

use serde_json::Value;

use super::{StoreError, StoreFuture};

/// How many times a batch is tried whose rows others change meanwhile.
pub(crate) const TRIES: usize = 100;

/// The name of a table: a word, the same in every engine.
pub(crate) type Table = &'static str;

/// The name of a row.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub table: Table,
    /// The part of the table that is read together, such as a profile's records.
    pub owner: String,
    /// Unique within the table and the owner.
    pub id: String,
}

impl Key {
    pub(crate) fn new(table: Table, owner: impl Into<String>, id: impl Into<String>) -> Self {
        Self { table, owner: owner.into(), id: id.into() }
    }
}

/// A row as last read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub key: Key,
    /// Text, mostly JSON; empty if only the heads of rows were read.
    pub body: String,
    /// The length of the body in bytes.
    pub size: u64,
    /// A number by which rows are found, such as the time at which work is due.
    pub due: Option<u64>,
    /// Grows with every change; at least 1.
    pub revision: u64,
    /// When it was put, in milliseconds since 1970.
    pub put_ms: u64,
    /// The gateway that holds it, 0 for none.
    pub holder: u32,
    /// Grows from row to row, in the order in which they were first put.
    pub number: u64,
    /// Whether it is for gateways of this configuration.
    pub is_ours: bool,
    /// Whether it is only for gateways of one configuration.
    pub of_config: bool,
}

/// A row to put. It replaces the row of this name, and keeps that row's place in the order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NewRow {
    pub key: Key,
    pub body: String,
    pub due: Option<u64>,
    /// Whether this gateway holds it.
    pub held: bool,
    /// Whether it is only for gateways of this configuration.
    pub of_config: bool,
    /// Whether it becomes the last in the order.
    pub newest: bool,
}

impl NewRow {
    /// Returns a row that nobody holds.
    pub(crate) fn new(key: Key, body: String) -> Self {
        Self { key, body, due: None, held: false, of_config: false, newest: false }
    }
}

/// Which rows to read.
#[derive(Clone, Debug)]
pub(crate) struct Scan {
    /// Several only with [`ScanBy::Due`].
    pub tables: Vec<Table>,
    pub by: ScanBy,
    /// Where the last scan ended: the number of its last row. Not for [`ScanBy::Due`].
    pub after: Option<u64>,
    /// Whether the newest rows come first. Not for [`ScanBy::Due`].
    pub newest_first: bool,
    /// How many rows to read at most.
    pub limit: usize,
    /// Whether the bodies are left out.
    pub heads: bool,
}

/// How rows are found.
#[derive(Clone, Debug)]
pub(crate) enum ScanBy {
    /// All rows of an owner.
    Owner(String),
    /// All rows of the table.
    Table,
    /// Rows with a due number up to this one, smallest first, without the first `skip` ones.
    Due { until: u64, skip: usize },
}

impl Scan {
    fn by(tables: &[Table], by: ScanBy) -> Self {
        Self {
            tables: tables.to_vec(),
            by,
            after: None,
            newest_first: false,
            limit: usize::MAX,
            heads: false,
        }
    }

    /// Returns all rows of an owner, in order.
    pub(crate) fn owner(table: Table, owner: &str) -> Self {
        Self::by(&[table], ScanBy::Owner(owner.to_owned()))
    }

    /// Returns all rows of a table, in order.
    pub(crate) fn table(table: Table) -> Self {
        Self::by(&[table], ScanBy::Table)
    }

    /// Returns all rows that are due.
    pub(crate) fn due(tables: &[Table], until: u64) -> Self {
        Self::by(tables, ScanBy::Due { until, skip: 0 })
    }

    /// Returns the same rows without their bodies.
    pub(crate) fn heads(self) -> Self {
        Self { heads: true, ..self }
    }

    /// Returns at most this many of the rows.
    pub(crate) fn limit(self, limit: usize) -> Self {
        Self { limit, ..self }
    }
}

/// The rows that a scan found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rows {
    pub rows: Vec<Row>,
    /// Whether rows of a newer Nonet were left out.
    pub has_newer: bool,
    /// How many rows were looked at, including those that were left out; 0 at the end of a scan in pages.
    pub looked_at: usize,
}

/// Changes that are made together or not at all.
#[derive(Clone, Debug, Default)]
pub(crate) struct Batch {
    pub conditions: Vec<Condition>,
    pub writes: Vec<Write>,
    /// Whether the call returns before it is on the disk: a power cut may lose it, with nothing later.
    pub is_quick: bool,
}

/// What must hold for a batch to be written.
#[derive(Clone, Debug)]
pub(crate) enum Condition {
    /// The row has this revision; 0 if there is none.
    Revision(Key, u64),
    /// The owner has this many rows in the table.
    Count { table: Table, owner: String, count: usize },
}

/// One change of a batch.
#[derive(Clone, Debug)]
pub(crate) enum Write {
    Put(NewRow),
    /// Writes the body and the due number of a row.
    Change {
        key: Key,
        body: String,
        due: Option<u64>,
    },
    /// Makes this gateway the holder of a row, which counts as a change; or nobody, which does not.
    Hold {
        key: Key,
        held: bool,
    },
    Delete(Key),
    /// Adds one to a counter. A counter starts at random, so that no number recurs after everything was lost.
    Bump(String),
}

impl Batch {
    /// Lets the batch be written only if a row is as it was read, or still missing.
    pub(crate) fn require(&mut self, key: &Key, read: Option<&Row>) {
        self.conditions.push(Condition::Revision(key.clone(), read.map_or(0, |row| row.revision)));
    }

    /// Puts a row in place of the one that was read, or of none.
    pub(crate) fn put(&mut self, new: NewRow, read: Option<&Row>) {
        self.require(&new.key, read);
        self.writes.push(Write::Put(new));
    }

    /// Deletes a row as it was read.
    pub(crate) fn delete(&mut self, row: &Row) {
        self.require(&row.key, Some(row));
        self.writes.push(Write::Delete(row.key.clone()));
    }

    /// Changes the holder of a row as it was read: this gateway, or nobody.
    pub(crate) fn hold(&mut self, row: &Row, held: bool) {
        self.require(&row.key, Some(row));
        self.writes.push(Write::Hold { key: row.key.clone(), held });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }
}

/// A large value to write.
#[derive(Clone, Debug)]
pub(crate) enum Blob {
    /// As compact JSON.
    Json(Arc<Value>),
    Text(String),
}

impl Blob {
    /// Writes the value's bytes.
    pub(crate) fn write_to(&self, mut to: impl io::Write) -> io::Result<()> {
        match self {
            Self::Json(value) => Ok(serde_json::to_writer(to, value)?),
            Self::Text(text) => to.write_all(text.as_bytes()),
        }
    }
}

/// A written large value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BlobName {
    pub name: String,
    /// Its length in bytes.
    pub bytes: u64,
}

/// Where data is kept: SQLite or Redis. Several gateways may use the same data at the same time.
///
/// A committed batch is visible to every gateway when the call returns, and survives the end of the process,
/// however it ends.
pub(crate) trait Engine: Debug + Send + Sync {
    /// Returns rows by their names.
    fn get(&self, keys: Vec<Key>) -> StoreFuture<'_, Vec<Option<Row>>>;

    /// Returns rows in order. Unreadable rows are skipped, with a warning.
    fn scan(&self, scan: Scan) -> StoreFuture<'_, Rows>;

    /// Returns how many rows a table has, or an owner in it.
    fn count(&self, table: Table, owner: Option<String>) -> StoreFuture<'_, usize>;

    /// Returns how many rows of a table each owner has, by their holder. Redis counts only notices.
    fn count_held(&self, table: Table) -> StoreFuture<'_, Vec<(String, u32, usize)>>;

    /// Writes a batch if its conditions hold, else returns false.
    fn commit(&self, batch: Batch) -> StoreFuture<'_, bool>;

    /// Returns a counter; `None` if it was never bumped.
    fn counter(&self, name: String) -> StoreFuture<'_, Option<u64>>;

    /// Returns the number of this gateway as a holder of rows.
    fn me(&self) -> u32;

    /// Returns which of these holders are running gateways, including this one. 0 is nobody.
    fn running(&self, holders: HashSet<u32>) -> StoreFuture<'_, HashSet<u32>>;

    /// Writes a large value. Until a row refers to it nobody finds it, and after this time on the engine's
    /// clock it is gone.
    fn put_blob(&self, value: Blob, life: Duration) -> StoreFuture<'_, BlobName>;

    /// Returns a large value; `None` if a part of it is missing.
    fn blob(&self, name: BlobName) -> StoreFuture<'_, Option<Vec<u8>>>;

    /// Removes large values. Those that cannot be removed expire.
    fn drop_blobs(&self, names: Vec<BlobName>) -> StoreFuture<'_, ()>;

    /// Returns the engine's own clock, in milliseconds, by which data ages.
    fn age_ms(&self) -> StoreFuture<'_, u64>;

    /// Removes expired values, and returns space beyond `spare` bytes to the system.
    fn tidy(&self, spare: u64) -> StoreFuture<'_, ()>;

    /// Returns whether this process has used the engine.
    fn is_used(&self) -> bool;

    /// Returns whether there was never a row.
    fn is_new(&self) -> StoreFuture<'_, bool>;

    /// Returns whether what is written outlives this process as far as the user wants it to.
    fn lasts(&self) -> bool;
}

/// Returns the error of a batch that others were always faster than.
pub(crate) fn too_busy() -> StoreError {
    StoreError::Busy
}
