//! Results that were too large to show, and jobs with their results, in `kept.db`.
//!
//! An entry may have a value, and may be a job. Values are stored in chunks (`chunks`).

mod chunks;
mod results;

use std::{collections::HashMap, path::Path, time::Duration};

use nonet_base::clock::millis;
use parking_lot::Mutex;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};
use serde_json::Value;

use super::{
    JobRow, JobState, KeptCounts, Removable, Retention, Share, StoreError,
    file::{Database, DbFormat, files},
    lease::{LeaseHolder, LeasePresence},
};

/// The maximum number of entries. Beyond it, as beyond the limit of bytes, the oldest are removed first: small entries take
/// space as well.
const MOST_ENTRIES: i64 = 10_000;
/// The fraction of the byte limit that stays free in the file for the next entries: freeing space costs as much as writing
/// it.
const SPARE: i64 = 8;
/// How many 16 KiB pages are freed in one transaction, during which others wait.
const PAGES_AT_ONCE: usize = 250;
/// The maximum number of such transactions after one call. The rest follows after the next calls.
const MOST_TURNS: usize = 8;
/// How many bytes of the log stay on disk after they were moved into the file.
const LONGEST_LOG: i64 = 16 << 20;

/// How much age one reading of the clock may add. A running gateway reads it more often, so only a jump of the clock, or a
/// time without gateways, is longer.
const LONGEST_STEP: Duration = Duration::from_secs(3_600);

/// An owner is in the column `profile`, NULL for the empty owner.
const JOB: &str = "SELECT id, label, coalesce(profile, ''), state, process, started_ms, ended_ms
    FROM entries WHERE label IS NOT NULL";
const VALUE: &str =
    "SELECT number, bytes FROM entries WHERE id = ?1 AND profile IS nullif(?2, '') AND bytes > 0";

/// Entries that may be removed to make room, oldest first.
const ENDED: &str = "SELECT number, bytes, share, aged_ms FROM entries WHERE state <> 'working' AND number IS NOT ?1 ORDER BY number";
const CLOCK: &str = "SELECT aged_ms, seen_ms FROM clock";

const FORMAT: DbFormat = DbFormat {
    name: "kept.db",
    // Freed pages can be returned. Pages are large: a 50 MB value is written in two thirds of the time, and the check on
    // opening takes half.
    layout: "PRAGMA page_size = 16384; PRAGMA auto_vacuum = incremental",
    steps: &[
        // `number` grows with the moment in which an entry ended, whatever the clock says. Only a job has a label and a
        // `process`, the number of the gateway that holds its lease. Times are in milliseconds since 1970. The chunks of an
        // entry, joined in the order of `n`, are `bytes` long; an entry without a value has none.
        // order of `n`, are `bytes` long; an entry without a value has none.
        "CREATE TABLE entries (
            number INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            profile TEXT,
            label TEXT,
            process INTEGER,
            state TEXT NOT NULL CHECK (state IN ('working', 'done', 'failed', 'cancelled')),
            started_ms INTEGER NOT NULL CHECK (started_ms >= 0),
            ended_ms INTEGER CHECK (ended_ms >= 0),
            bytes INTEGER NOT NULL CHECK (bytes >= 0),
            CHECK ((label IS NULL) = (process IS NULL)),
            CHECK ((state = 'working') = (ended_ms IS NULL))
        ) STRICT;
        CREATE TABLE chunks (
            entry INTEGER NOT NULL,
            n INTEGER NOT NULL,
            data BLOB NOT NULL,
            PRIMARY KEY (entry, n)
        ) STRICT",
        // `share` names the client whose quota an entry counts against. Ages are by the store's own clock, which is in
        // `clock` with the time of day of its last reading; an entry's `aged_ms` is that clock's value when the entry was
        // stored.
        "ALTER TABLE entries ADD COLUMN share TEXT NOT NULL DEFAULT '';
        ALTER TABLE entries ADD COLUMN aged_ms INTEGER NOT NULL DEFAULT 0;
        CREATE TABLE clock (aged_ms INTEGER NOT NULL, seen_ms INTEGER NOT NULL) STRICT;
        INSERT INTO clock VALUES (0, 0)",
    ],
    set_up,
    reads: &[JOB, results::READ, VALUE, ENDED, CLOCK, chunks::READ],
    // They may be large, and their content was meant to be kept only for a short time.
    most_damaged: 1,
};

fn set_up(connection: &Connection) -> rusqlite::Result<()> {
    // Freed pages are not overwritten: that would write each large value twice, and values are removed by age or size, not on
    // a user's request. `forget` removes them from the file.
    connection.pragma_update(None, "secure_delete", false)?;
    connection.pragma_update(None, "journal_size_limit", LONGEST_LOG)
}

/// An open file. Several gateways, and several threads of one, may use it at the same time.
///
/// A stored value is visible to everybody when the call returns, and survives the end of this process, however it ends. A
/// power cut may lose the last few seconds, but never damages the rest.
#[derive(Debug)]
pub(super) struct KeptDb {
    // A connection for reads, so that a small read does not wait for a large write of the same process: with a write-ahead
    // log, it sees the state before the write. `None` in memory, where it would see another database. Declared before the
    // writing connection, as `Database::reader` requires.
    reader: Option<Mutex<Connection>>,
    database: Database,
    retention: Retention,
    holder: LeaseHolder,
    /// None in memory, where all leases are this gateway's.
    presence: Option<LeasePresence>,
}

impl Removable for KeptDb {
    fn is_gone(&self) -> bool {
        self.database.is_gone()
    }
}

impl KeptDb {
    /// Opens the file in a folder; creates both, readable only by their owner, if they do not exist. Blocks for a tenth of a
    /// second per 256 MiB in the system's cache, because the whole file is checked.
    ///
    /// Removes entries beyond the retention, and jobs of that age whose lease has ended.
    pub(crate) fn open(
        folder: &Path,
        retention: Retention,
        holder: LeaseHolder,
    ) -> Result<KeptDb, StoreError> {
        let database = Database::open(folder, &FORMAT)?;
        let reader = Some(Mutex::new(database.reader()?));
        let presence = Some(holder.enter(folder).map_err(files(folder))?);
        let db = KeptDb { reader, database, retention, holder, presence };
        if let Err(error) = db.tidy() {
            // Another gateway may be in a long write. The next write removes the rest.
            tracing::debug!(%error, "expired entries were not removed");
        }
        Ok(db)
    }

    /// Returns whether it is on disk.
    pub(crate) fn is_file(&self) -> bool {
        self.presence.is_some()
    }

    /// Keeps everything in memory, until the value is dropped.
    pub(crate) fn in_memory(retention: Retention, holder: LeaseHolder) -> Result<KeptDb, StoreError> {
        let database = Database::in_memory(&FORMAT)?;
        Ok(KeptDb { reader: None, database, retention, holder, presence: None })
    }

    /// See [`Store::put_result`](super::Store::put_result); returns the length of the value in bytes. Takes ten milliseconds
    /// for 1 MB, and half a second for 50 MB, of which about 5 MB are in memory at a time.
    pub(crate) fn put_result(
        &self,
        id: &str,
        owner: &str,
        share: &Share,
        value: &Value,
    ) -> Result<u64, StoreError> {
        let now = sql(self.holder.clock.unix_ms());
        self.put(id, share, Some(value), |transaction, aged| {
            transaction.execute(
                "INSERT INTO entries (id, profile, state, started_ms, ended_ms, bytes, share, aged_ms)
                 VALUES (?1, nullif(?2, ''), 'done', ?3, ?3, 0, ?4, ?5)",
                params![id, owner, now, share.of, aged],
            )
        })
    }

    /// See [`Store::put_job`](super::Store::put_job); returns the length of the value in bytes.
    pub(crate) fn put_job(
        &self,
        job: &JobRow,
        share: &Share,
        value: Option<&Value>,
    ) -> Result<u64, StoreError> {
        let (state, ended_ms) = match job.state {
            JobState::Working => ("working", None),
            JobState::Done { ended_ms, failed: false } => ("done", Some(ended_ms)),
            JobState::Done { ended_ms, failed: true } => ("failed", Some(ended_ms)),
            JobState::Cancelled { ended_ms } => ("cancelled", Some(ended_ms)),
        };
        let insert = |transaction: &Transaction, aged: i64| {
            transaction.execute(
                "INSERT INTO entries (id, profile, label, process, state, started_ms, ended_ms, bytes, share, aged_ms)
                 VALUES (?1, nullif(?2, ''), ?3, ?4, ?5, ?6, ?7, 0, ?8, ?9) ON CONFLICT DO NOTHING",
                params![
                    job.id,
                    job.owner,
                    job.label,
                    self.holder.number,
                    state,
                    sql(job.started_ms),
                    ended_ms.map(sql),
                    share.of,
                    aged
                ],
            )
        };
        match ended_ms {
            None => {
                let work = |transaction: &Transaction| insert(transaction, self.aged(transaction)?);
                self.database.write(work).map(|_| 0)
            }
            Some(_) => self.put(&job.id, share, value, insert),
        }
    }

    /// Removes an entry, if it exists.
    pub(crate) fn remove(&self, id: &str) -> Result<(), StoreError> {
        self.database.write(|transaction| {
            let known = "SELECT number FROM entries WHERE id = ?1";
            match transaction.query_row(known, [id], |row| row.get(0)).optional()? {
                Some(number) => remove(transaction, number),
                None => Ok(()),
            }
        })
    }

    /// Returns the job with this handle.
    pub(crate) fn job(&self, id: &str, owner: &str) -> Result<Option<JobRow>, StoreError> {
        self.read(|connection| {
            let mut statement =
                connection.prepare(&format!("{JOB} AND id = ?1 AND profile IS nullif(?2, '')"))?;
            Ok(statement.query_row([id, owner], |row| Ok(self.job_of(row))).optional()?.flatten())
        })
    }

    /// Returns at most `limit` jobs, latest start first.
    pub(crate) fn jobs(&self, owner: &str, limit: usize) -> Result<Vec<JobRow>, StoreError> {
        self.read(|connection| {
            let all =
                format!("{JOB} AND profile IS nullif(?1, '') ORDER BY started_ms DESC, number DESC LIMIT ?2");
            let mut statement = connection.prepare(&all)?;
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            let jobs = statement.query_map(params![owner, limit], |row| Ok(self.job_of(row)))?;
            jobs.filter_map(Result::transpose).collect()
        })
    }

    /// Returns the value of a result or a job as compact JSON, which takes as much memory as it is long. `None` if the entry
    /// has no value, or, with a warning, if the value cannot be read.
    pub(crate) fn text(&self, id: &str, owner: &str) -> Result<Option<String>, StoreError> {
        let bytes = self.read(|connection| {
            // One transaction, because the entry may be removed between two reads.
            let transaction = connection.transaction()?;
            let found: Option<(i64, i64)> = transaction
                .prepare(VALUE)?
                .query_row([id, owner], |row| Ok((row.get(0)?, row.get(1)?)))
                .optional()?;
            let Some((number, bytes)) = found else { return Ok(None) };
            chunks::read(&transaction, number, bytes).map(Some)
        })?;
        let text = match bytes {
            None => return Ok(None),
            Some(None) => Err("its chunks have the wrong length".to_owned()),
            Some(Some(bytes)) => String::from_utf8(bytes).map_err(|error| error.to_string()),
        };
        Ok(text.inspect_err(|what| self.unreadable(id, what)).ok())
    }

    /// Returns how much is stored, for all owners.
    pub(crate) fn counts(&self) -> Result<KeptCounts, StoreError> {
        let (entries, bytes) = self.read(|connection| counts(connection))?;
        Ok(KeptCounts { entries: entries.unsigned_abs(), bytes: bytes.unsigned_abs() })
    }

    /// Removes everything, from the file as well. A job that is still running is stored again when it ends.
    pub(crate) fn forget(&self) -> Result<(), StoreError> {
        self.database
            .write(|transaction| transaction.execute_batch("DELETE FROM chunks; DELETE FROM entries"))?;
        self.database.with(|connection| {
            // Rewrites the file without the freed pages, through the log; then empties the log, unless it is being read.
            connection.execute_batch("VACUUM")?;
            connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
        })
    }

    /// Stores an ended entry, replacing one with the same id, and makes room for it.
    fn put(
        &self,
        id: &str,
        share: &Share,
        value: Option<&Value>,
        insert: impl FnOnce(&Transaction, i64) -> rusqlite::Result<usize>,
    ) -> Result<u64, StoreError> {
        let bytes = self.database.write(|transaction| {
            let aged = self.aged(transaction)?;
            let known = "SELECT number FROM entries WHERE id = ?1";
            if let Some(number) = transaction.query_row(known, [id], |row| row.get(0)).optional()? {
                remove(transaction, number)?;
            }
            insert(transaction, aged)?;
            let number = transaction.last_insert_rowid();
            let mut bytes = 0;
            if let Some(value) = value {
                bytes = chunks::write(transaction, number, value)?;
                let update = "UPDATE entries SET bytes = ?2 WHERE number = ?1";
                transaction.execute(update, [number, sql(bytes)])?;
            }
            make_room(transaction, self.retention, self.oldest(aged), Some((number, share)))?;
            Ok(bytes)
        })?;
        self.give_back();
        Ok(bytes)
    }

    /// Removes expired entries, and expired jobs whose lease has ended.
    pub(crate) fn tidy(&self) -> Result<(), StoreError> {
        self.database.write(|transaction| {
            let oldest = self.oldest(self.aged(transaction)?);
            let mut statement = transaction
                .prepare("SELECT number, process FROM entries WHERE state = 'working' AND aged_ms <= ?1")?;
            let working: Vec<(i64, u32)> = statement
                .query_map([oldest], |row| Ok((row.get(0)?, row.get(1)?)))?
                .collect::<Result<_, _>>()?;
            for (number, holder) in working {
                if !self.is_held(holder) {
                    remove(transaction, number)?;
                }
            }
            make_room(transaction, self.retention, oldest, None)
        })?;
        self.give_back();
        Ok(())
    }

    /// Returns free pages to the system. A failure loses nothing.
    fn give_back(&self) {
        let spare = sql(self.retention.bytes) / SPARE;
        let turn = || {
            self.database.with(|connection| {
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
            })
        };
        let mut given = false;
        for _ in 0..MOST_TURNS {
            match turn() {
                Ok(true) => given = true,
                Ok(false) => break,
                Err(error) => {
                    tracing::debug!(%error, "free space was not given back");
                    break;
                }
            }
        }
        if given {
            // The file shrinks when the log is moved into it. A passive checkpoint waits for nobody.
            let moved = |connection: &mut Connection| {
                connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
            };
            if let Err(error) = self.database.with(moved) {
                tracing::debug!(%error, "the file was not truncated");
            }
        }
    }

    fn read<T>(&self, work: impl FnOnce(&mut Connection) -> rusqlite::Result<T>) -> Result<T, StoreError> {
        match &self.reader {
            Some(reader) => self.database.with_other(reader, work),
            None => self.database.with(work),
        }
    }

    /// Reads the time of day, and returns the store's own clock: the sum of the steps between two readings, each an hour at
    /// most and never negative. So neither a jump of the clock nor a time without gateways makes everything old at once.
    fn aged(&self, transaction: &Transaction) -> rusqlite::Result<i64> {
        let (aged, seen): (i64, i64) =
            transaction.query_row(CLOCK, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let now = sql(self.holder.clock.unix_ms());
        let step = now.saturating_sub(seen).clamp(0, sql(millis(LONGEST_STEP)));
        // Nobody has read the clock before.
        let step = if seen == 0 { 0 } else { step };
        let aged = aged.saturating_add(step);
        transaction.execute("UPDATE clock SET aged_ms = ?1, seen_ms = ?2", [aged, now])?;
        Ok(aged)
    }

    /// Returns the age limit: entries that ended when the store's clock had this value, or before, are expired.
    fn oldest(&self, aged: i64) -> i64 {
        aged.saturating_sub(sql(millis(self.retention.age)))
    }

    /// Returns the job of a row; `None` if the row is invalid.
    fn job_of(&self, row: &Row) -> Option<JobRow> {
        let number = |at: usize| row.get::<_, i64>(at).ok().and_then(|number| u64::try_from(number).ok());
        let state: String = row.get(3).ok()?;
        let (holder, started_ms) = (row.get(4).ok()?, number(5)?);
        let state = match (state.as_str(), number(6)) {
            ("working", None) => JobState::Working,
            ("done", Some(ended_ms)) => JobState::Done { ended_ms, failed: false },
            ("failed", Some(ended_ms)) => JobState::Done { ended_ms, failed: true },
            ("cancelled", Some(ended_ms)) => JobState::Cancelled { ended_ms },
            _ => return None,
        };
        let (id, label, owner) = (row.get(0).ok()?, row.get(1).ok()?, row.get(2).ok()?);
        let leased = self.is_held(holder);
        Some(JobRow { id, owner, label, state, started_ms, leased })
    }

    /// Returns whether the gateway that leased a job is still running.
    fn is_held(&self, holder: u32) -> bool {
        self.presence.as_ref().map_or(holder == self.holder.number, |presence| presence.is_held(holder))
    }

    fn unreadable(&self, id: &str, what: &str) {
        tracing::warn!(file = %self.database.file.display(), id, what, "a kept value cannot be read");
    }
}

/// Removes entries that ended at `oldest` or before, then the oldest entries of the newest entry's share until that share
/// fits, then the oldest entries of the largest share until all fit. Never removes the newest entry or a running job.
fn make_room(
    transaction: &Transaction,
    retention: Retention,
    oldest: i64,
    newest: Option<(i64, &Share)>,
) -> rusqlite::Result<()> {
    let mut statement = transaction.prepare(ENDED)?;
    let ended = statement.query_map([newest.map(|(number, _)| number)], |row| {
        Ok(EndedEntry { number: row.get(0)?, bytes: row.get(1)?, share: row.get(2)?, aged: row.get(3)? })
    })?;
    let ended: Vec<EndedEntry> = ended.collect::<Result<_, _>>()?;
    let mut shares = HashMap::<String, Shelf>::new();
    for entry in ended {
        if entry.aged <= oldest {
            remove(transaction, entry.number)?;
            continue;
        }
        let shelf = shares.entry(entry.share).or_default();
        shelf.bytes = shelf.bytes.saturating_add(entry.bytes);
        shelf.entries.push((entry.number, entry.bytes));
    }
    let (mut entries, mut all) = counts(transaction)?;
    if let Some((number, share)) = newest {
        let of_it = "SELECT bytes FROM entries WHERE number = ?1";
        let shelf = shares.entry(share.of.to_string()).or_default();
        let bytes: i64 = transaction.query_row(of_it, [number], |row| row.get(0))?;
        shelf.bytes = shelf.bytes.saturating_add(bytes);
        shelf.newest = 1;
        while shelf.bytes > sql(share.bytes)
            && let Some(bytes) = shelf.remove_oldest(transaction)?
        {
            all = all.saturating_sub(bytes);
            entries -= 1;
        }
    }
    let most = sql(retention.bytes);
    while entries > MOST_ENTRIES || all > most {
        let by_bytes = all > most;
        let largest = shares
            .values_mut()
            .filter(|shelf| shelf.gone < shelf.entries.len())
            .max_by_key(|shelf| if by_bytes { shelf.bytes } else { shelf.count() });
        let Some(largest) = largest else { break };
        if let Some(of_it) = largest.remove_oldest(transaction)? {
            all = all.saturating_sub(of_it);
            entries -= 1;
        }
    }
    Ok(())
}

/// An entry that may be removed.
struct EndedEntry {
    number: i64,
    bytes: i64,
    share: String,
    aged: i64,
}

/// The removable entries of one share, oldest first.
#[derive(Default)]
struct Shelf {
    entries: Vec<(i64, i64)>,
    /// How many of them have been removed.
    gone: usize,
    /// 1 if the newest entry, which stays, belongs to this share.
    newest: i64,
    /// The size of the remaining entries, including the newest.
    bytes: i64,
}

impl Shelf {
    fn count(&self) -> i64 {
        i64::try_from(self.entries.len() - self.gone).unwrap_or(i64::MAX).saturating_add(self.newest)
    }

    /// Removes the oldest entry and returns its size; `None` if there is none.
    fn remove_oldest(&mut self, transaction: &Transaction) -> rusqlite::Result<Option<i64>> {
        let Some((number, bytes)) = self.entries.get(self.gone).copied() else { return Ok(None) };
        remove(transaction, number)?;
        self.gone += 1;
        self.bytes = self.bytes.saturating_sub(bytes);
        Ok(Some(bytes))
    }
}

/// Returns the number of entries and the size of their values. Uses `total`, because `sum` fails on numbers that are too
/// large.
fn counts(connection: &Connection) -> rusqlite::Result<(i64, i64)> {
    let mut statement = connection.prepare("SELECT count(*), CAST(total(bytes) AS INTEGER) FROM entries")?;
    statement.query_row([], |row| Ok((row.get(0)?, row.get(1)?)))
}

fn remove(transaction: &Transaction, number: i64) -> rusqlite::Result<()> {
    transaction.prepare("DELETE FROM chunks WHERE entry = ?1")?.execute([number])?;
    transaction.prepare("DELETE FROM entries WHERE number = ?1")?.execute([number])?;
    Ok(())
}

/// Converts a number to SQLite's type.
fn sql(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
