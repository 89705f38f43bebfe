//! Results that were too large to show, and jobs with their results, in `kept.db`.
//!
//! An entry has a value or none, and may be a job. Values are in chunks (`chunks`).

mod chunks;

use std::path::Path;

use parking_lot::Mutex;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};
use serde_json::Value;

use super::{
    JobRow, JobState, KeptCounts, Retention, StoreError,
    file::{Database, DbFormat, files},
    lease::{Holder, Presence},
};
use crate::clock::millis;

/// Entries in all. Beyond it the oldest go first, as beyond the limit of bytes: small entries take space as well.
const MOST_ENTRIES: i64 = 10_000;
/// The part of the limit of bytes that stays free in the file for the next entries: giving space back costs as much as
/// writing it.
const SPARE: i64 = 8;
/// Pages of 16 KiB that are given back in one transaction, during which others wait.
const PAGES_AT_ONCE: usize = 250;
/// Such transactions after one call. The rest follows after the next calls.
const MOST_TURNS: usize = 8;
/// Bytes of the log that stay on the disk after they were moved into the file.
const LONGEST_LOG: i64 = 16 << 20;

/// An owner is in the column `profile`, NULL for the empty one.
const JOB: &str = "SELECT id, label, coalesce(profile, ''), state, process, started_ms, ended_ms
    FROM entries WHERE label IS NOT NULL";
const VALUE: &str =
    "SELECT number, bytes FROM entries WHERE id = ?1 AND profile IS nullif(?2, '') AND bytes > 0";

const FORMAT: DbFormat = DbFormat {
    name: "kept.db",
    // Freed pages can be given back. Pages are large: a value of 50 MB is written in two thirds of the time, and the check
    // at opening takes half.
    layout: "PRAGMA page_size = 16384; PRAGMA auto_vacuum = incremental",
    steps: &[
        // `number` grows with the moment in which an entry ended, whatever the clock says. Only a job has a label and a
        // `process`, the number of the gateway that holds its lease. Times are in milliseconds since 1970. The chunks of an entry, joined in the
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
    ],
    set_up,
    reads: &[JOB, VALUE, chunks::READ],
    // They may be large, and their content was to be kept for a short time only.
    most_damaged: 1,
};

fn set_up(connection: &Connection) -> rusqlite::Result<()> {
    // Freed pages are not overwritten: that would write each large value twice, and values go by age or size, not on a
    // user's demand. `forget` removes them from the file.
    connection.pragma_update(None, "secure_delete", false)?;
    connection.pragma_update(None, "journal_size_limit", LONGEST_LOG)
}

/// The file, open. Several gateways, and several threads of one, may use it at the same time.
///
/// A value that was put is visible to everybody when the call returns, and survives the end of this process, however it
/// ends. A power cut may take the last few seconds, and never damages the rest.
#[derive(Debug)]
pub(super) struct KeptDb {
    // A connection for reads, so that a small read does not wait for a large write of the same process: with a write-ahead
    // log it sees the state before the write. None in memory, where it would see another database. Declared before the
    // writing connection, as `Database::reader` demands.
    reader: Option<Mutex<Connection>>,
    database: Database,
    retention: Retention,
    holder: Holder,
    /// None in memory, where all leases are this gateway's.
    presence: Option<Presence>,
}

impl KeptDb {
    /// Opens the file of a folder; makes both, readable by their owner only, if they do not exist. Blocks; a tenth of a
    /// second for 256 MiB in the system's cache, because the whole file is checked.
    ///
    /// Removes what is beyond the retention, and jobs of that age whose lease has ended.
    pub fn open(folder: &Path, retention: Retention, holder: Holder) -> Result<KeptDb, StoreError> {
        let database = Database::open(folder, &FORMAT)?;
        let reader = Some(Mutex::new(database.reader()?));
        let presence = Some(holder.enter(folder).map_err(files(folder))?);
        let db = KeptDb { reader, database, retention, holder, presence };
        if let Err(error) = db.tidy() {
            // Another gateway may be in a long write. The rest goes with the next put.
            tracing::debug!(%error, "expired entries were not removed");
        }
        Ok(db)
    }

    /// Keeps everything in memory, until this is dropped.
    pub fn in_memory(retention: Retention, holder: Holder) -> Result<KeptDb, StoreError> {
        let database = Database::in_memory(&FORMAT)?;
        Ok(KeptDb { reader: None, database, retention, holder, presence: None })
    }

    /// See [`Store::put_result`](super::Store::put_result); returns the length of the value in bytes. Ten milliseconds for
    /// 1 MB, half a second for 50 MB, of which about 5 MB are in memory at a time.
    pub fn put_result(&self, id: &str, owner: &str, value: &Value) -> Result<u64, StoreError> {
        let now = sql(self.holder.clock.unix_ms());
        self.put(id, Some(value), |transaction| {
            transaction.execute(
                "INSERT INTO entries (id, profile, state, started_ms, ended_ms, bytes)
                 VALUES (?1, nullif(?2, ''), 'done', ?3, ?3, 0)",
                params![id, owner, now],
            )
        })
    }

    /// See [`Store::put_job`](super::Store::put_job); returns the length of the value in bytes.
    pub fn put_job(&self, job: &JobRow, value: Option<&Value>) -> Result<u64, StoreError> {
        let (state, ended_ms) = match job.state {
            JobState::Working => ("working", None),
            JobState::Done { ended_ms, failed: false } => ("done", Some(ended_ms)),
            JobState::Done { ended_ms, failed: true } => ("failed", Some(ended_ms)),
            JobState::Cancelled { ended_ms } => ("cancelled", Some(ended_ms)),
        };
        let insert = |transaction: &Transaction| {
            transaction.execute(
                "INSERT INTO entries (id, profile, label, process, state, started_ms, ended_ms, bytes)
                 VALUES (?1, nullif(?2, ''), ?3, ?4, ?5, ?6, ?7, 0) ON CONFLICT DO NOTHING",
                params![
                    job.id,
                    job.owner,
                    job.label,
                    self.holder.number,
                    state,
                    sql(job.started_ms),
                    ended_ms.map(sql)
                ],
            )
        };
        match ended_ms {
            None => self.database.write(insert).map(|_| 0),
            Some(_) => self.put(&job.id, value, insert),
        }
    }

    /// The job with this handle.
    pub fn job(&self, id: &str, owner: &str) -> Result<Option<JobRow>, StoreError> {
        self.read(|connection| {
            let mut statement =
                connection.prepare(&format!("{JOB} AND id = ?1 AND profile IS nullif(?2, '')"))?;
            Ok(statement.query_row([id, owner], |row| Ok(self.job_of(row))).optional()?.flatten())
        })
    }

    /// At most `limit` jobs, the latest start first.
    pub fn jobs(&self, owner: &str, limit: usize) -> Result<Vec<JobRow>, StoreError> {
        self.read(|connection| {
            let all =
                format!("{JOB} AND profile IS nullif(?1, '') ORDER BY started_ms DESC, number DESC LIMIT ?2");
            let mut statement = connection.prepare(&all)?;
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            let jobs = statement.query_map(params![owner, limit], |row| Ok(self.job_of(row)))?;
            jobs.filter_map(Result::transpose).collect()
        })
    }

    /// The value of a result or a job as compact JSON, which takes as much memory as it is long. None if the entry has no
    /// value, and, with a warning, if the value cannot be read.
    pub fn text(&self, id: &str, owner: &str) -> Result<Option<String>, StoreError> {
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

    /// How much is kept, for all owners.
    pub fn counts(&self) -> Result<KeptCounts, StoreError> {
        let (entries, bytes) = self.read(|connection| counts(connection))?;
        Ok(KeptCounts { entries: entries.unsigned_abs(), bytes: bytes.unsigned_abs() })
    }

    /// Removes everything, from the file as well. A job that is still running is kept again when it ends.
    pub fn forget(&self) -> Result<(), StoreError> {
        self.database
            .write(|transaction| transaction.execute_batch("DELETE FROM chunks; DELETE FROM entries"))?;
        self.database.with(|connection| {
            // Rewrites the file without the freed pages, by way of the log; then empties the log, unless it is being read.
            connection.execute_batch("VACUUM")?;
            connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
        })
    }

    /// Puts an entry that has ended, in place of one with the same id, and makes room for it.
    fn put(
        &self,
        id: &str,
        value: Option<&Value>,
        insert: impl FnOnce(&Transaction) -> rusqlite::Result<usize>,
    ) -> Result<u64, StoreError> {
        let oldest = self.oldest();
        let bytes = self.database.write(|transaction| {
            let known = "SELECT number FROM entries WHERE id = ?1";
            if let Some(number) = transaction.query_row(known, [id], |row| row.get(0)).optional()? {
                remove(transaction, number)?;
            }
            insert(transaction)?;
            let number = transaction.last_insert_rowid();
            let mut bytes = 0;
            if let Some(value) = value {
                bytes = chunks::write(transaction, number, value)?;
                let update = "UPDATE entries SET bytes = ?2 WHERE number = ?1";
                transaction.execute(update, [number, sql(bytes)])?;
            }
            make_room(transaction, self.retention, oldest, Some(number))?;
            Ok(bytes)
        })?;
        self.give_back();
        Ok(bytes)
    }

    /// Removes expired entries, and expired jobs whose lease has ended.
    fn tidy(&self) -> Result<(), StoreError> {
        let oldest = self.oldest();
        self.database.write(|transaction| {
            let mut statement = transaction
                .prepare("SELECT number, process FROM entries WHERE state = 'working' AND started_ms < ?1")?;
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

    /// Gives free pages back to the system. A failure loses nothing.
    fn give_back(&self) {
        let spare = sql(self.retention.bytes) / SPARE;
        let turn = || {
            self.database.with(|connection| {
                let number = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
                if number("freelist_count")? * number("page_size")? <= spare {
                    return Ok(false);
                }
                // Each row that is read frees one page.
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
            // The file is cut when the log is moved into it. A passive checkpoint waits for nobody.
            let moved = |connection: &mut Connection| {
                connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
            };
            if let Err(error) = self.database.with(moved) {
                tracing::debug!(%error, "the file was not cut");
            }
        }
    }

    fn read<T>(&self, work: impl FnOnce(&mut Connection) -> rusqlite::Result<T>) -> Result<T, StoreError> {
        match &self.reader {
            Some(reader) => self.database.with_other(reader, work),
            None => self.database.with(work),
        }
    }

    /// Entries that ended at this time or before, in milliseconds since 1970, are too old.
    fn oldest(&self) -> i64 {
        sql(self.holder.clock.unix_ms()).saturating_sub(sql(millis(self.retention.age)))
    }

    /// The job of a row; none if the row does not fit.
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

    /// Whether the gateway that leased a job still runs.
    fn is_held(&self, holder: u32) -> bool {
        self.presence.as_ref().map_or(holder == self.holder.number, |presence| presence.is_held(holder))
    }

    fn unreadable(&self, id: &str, what: &str) {
        tracing::warn!(file = %self.database.file.display(), id, what, "a kept value cannot be read");
    }
}

/// Removes entries that ended at `oldest` or before, then the oldest until the rest is within the limits. Neither `newest`
/// nor a running job is removed.
///
/// Entries from the future stay: a clock that starts in 1970 would remove everything.
fn make_room(
    transaction: &Transaction,
    retention: Retention,
    oldest: i64,
    newest: Option<i64>,
) -> rusqlite::Result<()> {
    let ended = "SELECT number, bytes FROM entries WHERE ended_ms <= ?1 AND number IS NOT ?2 ORDER BY number";
    let ended_before = |time: i64| -> rusqlite::Result<Vec<(i64, i64)>> {
        let mut statement = transaction.prepare(ended)?;
        statement.query_map(params![time, newest], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
    };
    for (number, _) in ended_before(oldest)? {
        remove(transaction, number)?;
    }
    let (mut entries, mut bytes) = counts(transaction)?;
    let most = sql(retention.bytes);
    if entries <= MOST_ENTRIES && bytes <= most {
        return Ok(());
    }
    for (number, of_it) in ended_before(i64::MAX)? {
        if entries <= MOST_ENTRIES && bytes <= most {
            break;
        }
        remove(transaction, number)?;
        entries -= 1;
        bytes = bytes.saturating_sub(of_it);
    }
    Ok(())
}

/// The number of entries and the bytes of their values. By `total`: `sum` fails on numbers that are too large.
fn counts(connection: &Connection) -> rusqlite::Result<(i64, i64)> {
    let mut statement = connection.prepare("SELECT count(*), CAST(total(bytes) AS INTEGER) FROM entries")?;
    statement.query_row([], |row| Ok((row.get(0)?, row.get(1)?)))
}

fn remove(transaction: &Transaction, number: i64) -> rusqlite::Result<()> {
    transaction.prepare("DELETE FROM chunks WHERE entry = ?1")?.execute([number])?;
    transaction.prepare("DELETE FROM entries WHERE number = ?1")?.execute([number])?;
    Ok(())
}

/// A number as SQLite takes it.
fn sql(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
