//! The engine in SQLite files, one for each group of tables. SQLite blocks, so its work runs on threads that
//! may block.

pub(super) mod chunks;

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use nonet_base::clock::millis;
use parking_lot::Mutex;
use rusqlite::{Connection, OptionalExtension, Row as SqlRow, ToSql, Transaction, params};
use tokio::task::spawn_blocking;

use super::{
    OpenDb, Removable, StoreError, StoreFuture,
    engine::{Batch, Blob, BlobName, Condition, Engine, Key, NewRow, Row, Rows, Scan, ScanBy, Table, Write},
    file::{Database, DbFormat, files},
    formats::READ_ROWS,
    lease::{LeaseHolder, LeasePresence, NOBODY},
};

/// How many 16 KiB pages are freed in one transaction, during which others wait.
const PAGES_AT_ONCE: usize = 250;
/// The maximum number of such transactions after one call. The rest follows after the next calls.
const MOST_TURNS: usize = 8;
/// How much age one reading of the clock may add. A running gateway reads it more often, so only a jump of
/// the clock, or a time without gateways, is longer.
const LONGEST_STEP: Duration = Duration::from_secs(3_600);

/// One open file.
#[derive(Debug)]
pub(super) struct SqliteDb {
    // A connection for reads, so that a small read does not wait for a large write of the same process: with
    // a write-ahead log, it sees the state before the write. `None` in memory, where it would see another
    // database. Declared before the writing connection, as `Database::reader` requires.
    reader: Option<Mutex<Connection>>,
    pub(crate) database: Database,
    holder: LeaseHolder,
    /// `None` in memory, where there is no other gateway.
    presence: Option<LeasePresence>,
}

impl Removable for SqliteDb {
    fn is_gone(&self) -> bool {
        self.database.is_gone()
    }
}

impl SqliteDb {
    /// Opens the file in a folder; creates both, readable only by their owner, if they do not exist. Blocks
    /// for a tenth of a second per 256 MiB in the system's cache, because the whole file is checked.
    pub(crate) fn open(
        folder: &Path,
        format: &DbFormat,
        holder: LeaseHolder,
    ) -> Result<SqliteDb, StoreError> {
        let database = Database::open(folder, format)?;
        let reader = Some(Mutex::new(database.reader()?));
        let presence = Some(holder.enter(folder).map_err(files(folder))?);
        Ok(SqliteDb { reader, database, holder, presence })
    }

    /// Keeps everything in memory, until the value is dropped.
    pub(crate) fn in_memory(format: &DbFormat, holder: LeaseHolder) -> Result<SqliteDb, StoreError> {
        Ok(SqliteDb { reader: None, database: Database::in_memory(format)?, holder, presence: None })
    }

    fn read<T>(&self, work: impl FnOnce(&mut Connection) -> rusqlite::Result<T>) -> Result<T, StoreError> {
        match &self.reader {
            Some(reader) => self.database.with_other(reader, work),
            None => self.database.with(work),
        }
    }

    fn get(&self, keys: &[Key]) -> Result<Vec<Option<Row>>, StoreError> {
        self.read(|connection| {
            let one = format!("{READ_ROWS} WHERE kind = ?1 AND owner = ?2 AND id = ?3");
            // One transaction, so that rows that change together are read together.
            let transaction = connection.transaction()?;
            let mut statement = transaction.prepare_cached(&one)?;
            let mut rows = Vec::with_capacity(keys.len());
            for key in keys {
                let name = [key.table, &key.owner, &key.id];
                let row = statement.query_row(name, |row| Ok(self.row(row, key.table)));
                rows.push(row.optional()?.flatten());
            }
            Ok(rows)
        })
    }

    pub(crate) fn scan(&self, scan: &Scan) -> Result<Rows, StoreError> {
        let (compare, order) = if scan.newest_first { ("<", "DESC") } else { (">", "ASC") };
        let after = scan.after.map_or(if scan.newest_first { i64::MAX } else { -1 }, sql);
        let limit = i64::try_from(scan.limit).unwrap_or(i64::MAX);
        let columns = if scan.heads { READ_ROWS.replacen("body", "''", 1) } else { READ_ROWS.to_owned() };
        let mut rows = Vec::new();
        self.read(|connection| {
            let mut find = |table: Table, filter: &str, params: &[&dyn ToSql]| -> rusqlite::Result<()> {
                let mut statement = connection.prepare(&format!("{columns} WHERE {filter}"))?;
                let mut found = statement.query(params)?;
                while let Some(row) = found.next()? {
                    rows.extend(self.row(row, table));
                }
                Ok(())
            };
            match (&scan.by, scan.tables.as_slice()) {
                (ScanBy::Owner(owner), [table]) => {
                    let filter = format!(
                        "kind = ?1 AND owner = ?2 AND number {compare} ?3 ORDER BY number {order} LIMIT ?4"
                    );
                    find(table, &filter, &[table, owner, &after, &limit])
                }
                (ScanBy::Table, [table]) => {
                    let filter =
                        format!("kind = ?1 AND number {compare} ?2 ORDER BY number {order} LIMIT ?3");
                    find(table, &filter, &[table, &after, &limit])
                }
                (ScanBy::Due { until, .. }, tables) => tables.iter().try_for_each(|table| {
                    find(table, "kind = ?1 AND due_ms <= ?2 ORDER BY due_ms, number", &[table, &sql(*until)])
                }),
                _ => Ok(()),
            }
        })?;
        if let ScanBy::Due { skip, .. } = scan.by {
            rows.sort_by_key(|row| (row.due, row.number));
            rows = rows.into_iter().skip(skip).take(scan.limit).collect();
        }
        Ok(Rows { looked_at: rows.len(), rows, has_newer: false })
    }

    /// Returns the row as read; `None`, with a warning, if it is invalid.
    fn row(&self, row: &SqlRow, table: Table) -> Option<Row> {
        let read = || -> rusqlite::Result<Row> {
            let number = |at: usize| row.get::<_, i64>(at).map(i64::unsigned_abs);
            let config: Option<String> = row.get(10)?;
            Ok(Row {
                key: Key { table, owner: row.get(1)?, id: row.get(2)? },
                body: row.get(3)?,
                size: number(4)?,
                due: row.get::<_, Option<i64>>(5)?.map(i64::unsigned_abs),
                revision: number(6)?,
                put_ms: number(7)?,
                holder: row.get(8)?,
                number: number(9)?,
                of_config: config.is_some(),
                is_ours: config.is_none_or(|config| *config == *self.holder.config),
            })
        };
        let file = self.database.file.display();
        read().inspect_err(|error| tracing::warn!(%file, table, %error, "a row cannot be read")).ok()
    }

    /// Returns how many rows the tables have, of an owner or of all.
    pub(crate) fn count(&self, table: Table, owner: Option<&str>) -> Result<usize, StoreError> {
        self.read(|connection| count(connection, table, owner))
    }

    fn count_held(&self, table: Table) -> Result<Vec<(String, u32, usize)>, StoreError> {
        self.read(|connection| {
            let counts = "SELECT owner, holder, count(*) FROM records WHERE kind = ?1 GROUP BY owner, holder";
            let mut statement = connection.prepare(counts)?;
            let rows =
                statement.query_map([table], |row| Ok((row.get(0)?, row.get(1)?, size(row.get(2)?))))?;
            rows.collect()
        })
    }

    fn commit(&self, batch: &Batch) -> Result<bool, StoreError> {
        let now = sql(self.holder.clock.unix_ms());
        let write = |transaction: &Transaction| {
            for condition in &batch.conditions {
                if !holds(transaction, condition)? {
                    return Ok(false);
                }
            }
            batch.writes.iter().try_for_each(|write| self.write(transaction, write, now))?;
            Ok(true)
        };
        match batch.is_quick {
            true => self.database.write_quickly(write),
            false => self.database.write(write),
        }
    }

    fn write(&self, transaction: &Transaction, write: &Write, now: i64) -> rusqlite::Result<()> {
        let number = |held: bool| if held { self.holder.number } else { NOBODY };
        match write {
            Write::Put(NewRow { key, body, due, held, of_config, newest }) => {
                let put =
                    "INSERT INTO records (kind, owner, id, body, due_ms, revision, put_ms, holder, config)
                    VALUES (?1, ?2, ?3, ?4, ?5, 1, ?6, ?7, ?8) ON CONFLICT (kind, owner, id) DO UPDATE SET
                    body = ?4, due_ms = ?5, revision = revision + 1, put_ms = ?6, holder = ?7, config = ?8,
                    number = iif(?9, (SELECT max(number) + 1 FROM records), number)";
                let config = of_config.then_some(&*self.holder.config);
                let row = params![
                    key.table,
                    key.owner,
                    key.id,
                    body,
                    due.map(sql),
                    now,
                    number(*held),
                    config,
                    newest
                ];
                transaction.prepare_cached(put)?.execute(row)?;
            }
            Write::Change { key, body, due } => {
                let change = "UPDATE records SET body = ?4, due_ms = ?5, revision = revision + 1
                    WHERE kind = ?1 AND owner = ?2 AND id = ?3";
                let row = params![key.table, key.owner, key.id, body, due.map(sql)];
                transaction.prepare_cached(change)?.execute(row)?;
            }
            Write::Hold { key, held } => {
                let hold = "UPDATE records SET holder = ?4, revision = revision + ?5
                    WHERE kind = ?1 AND owner = ?2 AND id = ?3";
                let row = params![key.table, key.owner, key.id, number(*held), held];
                transaction.prepare_cached(hold)?.execute(row)?;
            }
            Write::Delete(key) => {
                let delete = "DELETE FROM records WHERE kind = ?1 AND owner = ?2 AND id = ?3";
                transaction.prepare_cached(delete)?.execute([key.table, &key.owner, &key.id])?;
            }
            Write::Bump(name) => {
                let bump = "INSERT INTO counters VALUES (?1, random() & 0x3fffffffffffffff)
                    ON CONFLICT (name) DO UPDATE SET count = count + 1";
                transaction.prepare_cached(bump)?.execute([name])?;
            }
        }
        Ok(())
    }

    fn counter(&self, name: &str) -> Result<Option<u64>, StoreError> {
        self.read(|connection| {
            let count = "SELECT count FROM counters WHERE name = ?1";
            let count: Option<i64> = connection.query_row(count, [name], |row| row.get(0)).optional()?;
            Ok(count.map(i64::unsigned_abs))
        })
    }

    fn is_running(&self, holder: u32) -> bool {
        self.presence.as_ref().map_or(holder == self.holder.number, |presence| presence.is_held(holder))
    }

    pub(crate) fn put_blob(&self, value: &Blob, life: Duration) -> Result<BlobName, StoreError> {
        self.database.write(|transaction| {
            let until = aged(transaction, &self.holder)?.saturating_add(sql(millis(life)));
            // Random, because two gateways may write at the same time.
            let name = (uuid::Uuid::new_v4().as_u128() as i64) & i64::MAX;
            let bytes = chunks::write(transaction, name, until, value)?;
            Ok(BlobName { name: name.to_string(), bytes })
        })
    }

    fn blob(&self, blob: &BlobName) -> Result<Option<Vec<u8>>, StoreError> {
        let Ok(name) = blob.name.parse() else { return Ok(None) };
        // One transaction, because the value may be removed between two reads.
        self.read(|connection| chunks::read(&connection.transaction()?, name, sql(blob.bytes)))
    }

    fn drop_blobs(&self, names: &[BlobName]) -> Result<(), StoreError> {
        self.database.write(|transaction| {
            let mut statement = transaction.prepare("DELETE FROM chunks WHERE entry = ?1")?;
            for name in names.iter().filter_map(|blob| blob.name.parse::<i64>().ok()) {
                statement.execute([name])?;
            }
            Ok(())
        })
    }

    fn age_ms(&self) -> Result<u64, StoreError> {
        self.database.write(|transaction| Ok(aged(transaction, &self.holder)?.unsigned_abs()))
    }

    /// Removes expired values, and returns free pages beyond `spare` bytes to the system.
    fn tidy(&self, spare: u64) -> Result<(), StoreError> {
        self.database.write(|transaction| {
            let now = aged(transaction, &self.holder)?;
            transaction.execute("DELETE FROM chunks WHERE until_ms <= ?1", [now])
        })?;
        // A failure loses nothing.
        if let Err(error) = self.give_back(sql(spare)) {
            tracing::debug!(%error, "free space was not given back");
        }
        Ok(())
    }

    fn give_back(&self, spare: i64) -> Result<(), StoreError> {
        let turn = |connection: &mut Connection| {
            let number = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
            if number("freelist_count")? * number("page_size")? <= spare {
                return Ok(false);
            }
            // Each row read frees one page.
            let some = format!("PRAGMA incremental_vacuum({PAGES_AT_ONCE})");
            let mut statement = connection.prepare(&some)?;
            let mut pages = statement.query([])?;
            while pages.next()?.is_some() {}
            Ok(true)
        };
        let mut turns = 0;
        while turns < MOST_TURNS && self.database.with(turn)? {
            turns += 1;
        }
        match turns {
            0 => Ok(()),
            // The file shrinks when the log is moved into it. A passive checkpoint waits for nobody.
            _ => self
                .database
                .with(|connection| connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))),
        }
    }

    /// Removes the rows of these tables and everything else that the file holds for them, including the
    /// traces on disk.
    pub(crate) fn forget(&self, tables: &[Table], others: &str) -> Result<(), StoreError> {
        self.database.write(|transaction| {
            for table in tables {
                transaction.execute("DELETE FROM records WHERE kind = ?1", [table])?;
            }
            transaction.execute_batch(others)
        })?;
        self.database.with(|connection| {
            // Rewrites the file without the freed pages, through the log; then empties the log, unless it is
            // being read.
            connection.execute_batch("VACUUM")?;
            connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
        })
    }
}

fn holds(transaction: &Transaction, condition: &Condition) -> rusqlite::Result<bool> {
    Ok(match condition {
        Condition::Revision(key, revision) => {
            let one = "SELECT revision FROM records WHERE kind = ?1 AND owner = ?2 AND id = ?3";
            let mut statement = transaction.prepare_cached(one)?;
            let found = statement.query_row([key.table, &key.owner, &key.id], |row| row.get::<_, i64>(0));
            found.optional()?.unwrap_or(0) == sql(*revision)
        }
        Condition::Count { table, owner, count: expected } => {
            count(transaction, table, Some(owner))? == *expected
        }
    })
}

fn count(connection: &Connection, table: Table, owner: Option<&str>) -> rusqlite::Result<usize> {
    let count = match owner {
        Some(owner) => {
            let count = "SELECT count(*) FROM records WHERE kind = ?1 AND owner = ?2";
            connection.query_row(count, [table, owner], |row| row.get(0))?
        }
        None => {
            connection.query_row("SELECT count(*) FROM records WHERE kind = ?1", [table], |row| row.get(0))?
        }
    };
    Ok(size(count))
}

/// Reads the time of day, and returns the file's own clock: the sum of the steps between two readings, each
/// an hour at most and never negative. So neither a jump of the clock nor a time without gateways makes
/// everything old at once.
fn aged(transaction: &Transaction, holder: &LeaseHolder) -> rusqlite::Result<i64> {
    let clock = "SELECT aged_ms, seen_ms FROM clock";
    let (aged, seen): (i64, i64) = transaction.query_row(clock, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let now = sql(holder.clock.unix_ms());
    let step = now.saturating_sub(seen).clamp(0, sql(millis(LONGEST_STEP)));
    // Nobody has read the clock before.
    let step = if seen == 0 { 0 } else { step };
    let aged = aged.saturating_add(step);
    transaction.execute("UPDATE clock SET aged_ms = ?1, seen_ms = ?2", [aged, now])?;
    Ok(aged)
}

/// Converts a number to SQLite's type.
fn sql(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn size(number: i64) -> usize {
    usize::try_from(number).unwrap_or_default()
}

/// The engine in one file.
#[derive(Debug)]
pub(super) struct SqliteEngine {
    source: FileSource,
    holder: LeaseHolder,
}

/// How the engine gets its file.
#[derive(Debug)]
enum FileSource {
    /// Opened on first use, and again if it was removed since. Without a usable folder, everything is kept in
    /// memory.
    Lazy { folder: Option<PathBuf>, format: &'static DbFormat, db: OpenDb<SqliteDb> },
    /// Open. Its work is done at once, on the caller's thread.
    Open(Arc<SqliteDb>),
}

impl SqliteEngine {
    /// Returns the engine of a file that is opened when it is needed.
    pub(crate) fn lazy(folder: Option<PathBuf>, format: &'static DbFormat, holder: LeaseHolder) -> Self {
        Self { source: FileSource::Lazy { folder, format, db: OpenDb::default() }, holder }
    }

    /// Returns the engine of an open file, whose methods block.
    pub(crate) fn blocking(db: Arc<SqliteDb>) -> Self {
        let holder = db.holder.clone();
        Self { source: FileSource::Open(db), holder }
    }

    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&SqliteDb) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        match &self.source {
            FileSource::Open(db) => work(db),
            FileSource::Lazy { folder, format, db } => {
                let (folder, format, holder) = (folder.clone(), *format, self.holder.clone());
                let db = db.get_soon(move || open_or_in_memory(folder, format, holder)).await;
                let db = db.ok_or(StoreError::Unusable)?;
                spawn_blocking(move || work(&db)).await.unwrap_or(Err(StoreError::Unusable))
            }
        }
    }

    /// Reads, unless there is no file yet: then nothing was ever written.
    async fn read<T: Default + Send + 'static>(
        &self,
        work: impl FnOnce(&SqliteDb) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        if self.is_there() { self.with(work).await } else { Ok(T::default()) }
    }

    fn is_there(&self) -> bool {
        match &self.source {
            FileSource::Open(_) => true,
            FileSource::Lazy { folder, format, db } => {
                db.is_used() || folder.as_ref().is_some_and(|folder| folder.join(format.name).exists())
            }
        }
    }
}

/// Opens the file, or the same in memory if that fails.
fn open_or_in_memory(folder: Option<PathBuf>, format: &DbFormat, holder: LeaseHolder) -> Option<SqliteDb> {
    if let Some(folder) = folder {
        match SqliteDb::open(&folder, format, holder.clone()) {
            Ok(db) => return Some(db),
            Err(error) => tracing::warn!(%error, "{} are kept in memory only", format.what),
        }
    }
    let failed = |error: &_| tracing::error!(%error, "{} cannot be kept", format.what);
    SqliteDb::in_memory(format, holder).inspect_err(failed).ok()
}

impl Engine for SqliteEngine {
    fn get(&self, keys: Vec<Key>) -> StoreFuture<'_, Vec<Option<Row>>> {
        let missing = vec![None; keys.len()];
        Box::pin(async move {
            let found = self.read(move |db| db.get(&keys)).await?;
            Ok(if found.is_empty() { missing } else { found })
        })
    }

    fn scan(&self, scan: Scan) -> StoreFuture<'_, Rows> {
        Box::pin(self.read(move |db| db.scan(&scan)))
    }

    fn count(&self, table: Table, owner: Option<String>) -> StoreFuture<'_, usize> {
        Box::pin(self.read(move |db| db.count(table, owner.as_deref())))
    }

    fn count_held(&self, table: Table) -> StoreFuture<'_, Vec<(String, u32, usize)>> {
        Box::pin(self.read(move |db| db.count_held(table)))
    }

    fn commit(&self, batch: Batch) -> StoreFuture<'_, bool> {
        Box::pin(self.with(move |db| db.commit(&batch)))
    }

    fn counter(&self, name: String) -> StoreFuture<'_, Option<u64>> {
        Box::pin(self.read(move |db| db.counter(&name)))
    }

    fn me(&self) -> u32 {
        self.holder.number
    }

    fn running(&self, holders: HashSet<u32>) -> StoreFuture<'_, HashSet<u32>> {
        Box::pin(
            self.read(move |db| Ok(holders.into_iter().filter(|holder| db.is_running(*holder)).collect())),
        )
    }

    fn put_blob(&self, value: Blob, life: Duration) -> StoreFuture<'_, BlobName> {
        Box::pin(self.with(move |db| db.put_blob(&value, life)))
    }

    fn blob(&self, name: BlobName) -> StoreFuture<'_, Option<Vec<u8>>> {
        Box::pin(self.read(move |db| db.blob(&name)))
    }

    fn drop_blobs(&self, names: Vec<BlobName>) -> StoreFuture<'_, ()> {
        Box::pin(self.with(move |db| db.drop_blobs(&names)))
    }

    fn age_ms(&self) -> StoreFuture<'_, u64> {
        Box::pin(self.with(SqliteDb::age_ms))
    }

    fn tidy(&self, spare: u64) -> StoreFuture<'_, ()> {
        Box::pin(self.with(move |db| db.tidy(spare)))
    }

    fn is_used(&self) -> bool {
        match &self.source {
            FileSource::Open(_) => true,
            FileSource::Lazy { db, .. } => db.is_used(),
        }
    }

    fn is_new(&self) -> StoreFuture<'_, bool> {
        Box::pin(async { Ok(!self.is_there()) })
    }

    fn lasts(&self) -> bool {
        match &self.source {
            FileSource::Open(db) => db.presence.is_some(),
            // Nothing was to outlive a process without a folder.
            FileSource::Lazy { folder, db, .. } => {
                folder.is_none() || db.now().is_none_or(|db| db.presence.is_some())
            }
        }
    }
}
