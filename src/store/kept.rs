//! Results that were too large to show, and calls in the background with their results, in `kept.db`.
//!
//! An entry has a value or none, and may be a job. A value is kept as its JSON text, in chunks, so that neither a large
//! one nor a large row is in memory as a whole while it is written.

use std::{
    io,
    path::Path,
    sync::Mutex,
    time::{Duration, SystemTime},
};

use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};
use serde_json::Value;

use super::{Database, Format, StoreError};

/// Bytes of a chunk, the last of a value excepted.
const CHUNK: usize = 1 << 20;
/// Entries in all. Beyond it the oldest go first, as beyond the limit of bytes: small ones take space as well.
const MOST_ENTRIES: i64 = 10_000;
/// The part of the limit of bytes that stays free in the file for what comes next: to give it back costs as much as to
/// write it.
const SPARE: i64 = 8;
/// Pages of 16 KiB that are given back in one transaction, during which others wait.
const PAGES_AT_ONCE: usize = 250;
/// Such transactions after one call. What is left then goes after the next calls.
const MOST_TURNS: usize = 8;
/// Bytes of the log that stay on the disk once they are in the file.
const LONGEST_LOG: i64 = 16 << 20;

const JOB: &str = "SELECT id, label, profile, state, process, started_ms, ended_ms, bytes
    FROM entries WHERE label IS NOT NULL";
const VALUE: &str = "SELECT number, bytes FROM entries WHERE id = ?1 AND profile IS ?2 AND bytes > 0";
const CHUNKS: &str = "SELECT data FROM chunks WHERE entry = ?1 ORDER BY n";

pub(super) const FORMAT: Format = Format {
    name: "kept.db",
    // Freed pages can be given back. And they are large: a value of 50 MB is written in two thirds of the time, and the
    // look at the whole file when it is opened takes half.
    layout: "PRAGMA page_size = 16384; PRAGMA auto_vacuum = incremental",
    steps: &[
        // `number` grows with the moment in which an entry ended, whatever the clock says. Label and process are those
        // of a job; times are in milliseconds since 1970. The chunks of an entry, joined in the order of `n`, are
        // `bytes` long; none if it has no value.
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
    reads: &[JOB, VALUE, CHUNKS],
    // They may be large, and what they had was not to be kept for long.
    most_damaged: 1,
};

fn set_up(connection: &Connection) -> rusqlite::Result<()> {
    // What is freed is not overwritten: that would write each large value twice, and it goes by age or size, not
    // because somebody wants it gone. `forget` takes it out of the file.
    connection.pragma_update(None, "secure_delete", false)?;
    connection.pragma_update(None, "journal_size_limit", LONGEST_LOG)
}

/// How much is kept, and for how long. It holds for all gateways that use the folder; of different limits each applies
/// its own when it writes.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of all values as compact JSON. The file may be larger by an eighth of it, and by what SQLite adds.
    pub bytes: u64,
    /// How long an entry is kept after it was put, or after the job ended.
    pub age: Duration,
}

/// A call in the background, as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobRow {
    /// Its handle.
    pub id: String,
    /// What it runs, for people.
    pub label: String,
    /// The profile that it was started under; nobody else sees it.
    pub profile: Option<String>,
    /// How it stands.
    pub state: JobState,
    /// The gateway that runs it, as the system's number of its process.
    pub process: u32,
    /// When it started, in milliseconds since 1970.
    pub started_ms: u64,
    /// The length of its value as compact JSON; 0 if it has none. Not looked at when a job is put.
    pub bytes: u64,
}

/// How a job stands. Times are in milliseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    /// It is running, unless its gateway is gone: see [`is_alive`].
    Working,
    /// It ended with a result.
    Done {
        /// When.
        ended_ms: u64,
        /// Whether the result says that the call failed.
        failed: bool,
    },
    /// It was cancelled before it ended.
    Cancelled {
        /// When.
        ended_ms: u64,
    },
}

/// What is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Results and jobs, those that are running included.
    pub entries: u64,
    /// Bytes of their values as compact JSON.
    pub bytes: u64,
}

/// Kept results and jobs. Several gateways, and several threads of one, may use them at the same time.
///
/// What was put is there for everybody when the call returns, and survives the end of this process, however it ends.
/// A power cut may take the last few seconds, and never damages the rest.
///
/// An entry is only shown to who asks with the profile that it was made under; None is the profile of those without
/// one.
#[derive(Debug)]
pub struct Kept {
    // A connection for reads, so that a small one does not wait for a large write of the same process: with a
    // write-ahead log it sees what was there before. None in memory, where it would see a database of its own. Closed
    // before the one that writes, as `Database::reader` wants it.
    reader: Option<Mutex<Connection>>,
    database: Database,
    limits: Limits,
}

impl Kept {
    /// Opens what is kept in a folder; makes the folder and the file, for their owner only, if they are not there.
    /// Blocks; a tenth of a second for 256 MiB that are in the system's cache, because all of it is looked at.
    ///
    /// What is beyond the limits goes, and with it the jobs that never ended because their gateway did, if they are
    /// that old.
    ///
    /// A damaged file is set aside as `kept.db.damaged-1`, with a warning, and begun anew. Fails if it cannot be made,
    /// if a newer Nonet has written it, and if it is damaged while another gateway uses it; [`Kept::in_memory`] is the
    /// way on then.
    pub fn open(folder: &Path, limits: Limits) -> Result<Kept, StoreError> {
        let database = Database::open(folder, &FORMAT)?;
        let reader = Some(Mutex::new(database.reader()?));
        let kept = Kept { reader, database, limits };
        if let Err(error) = kept.tidy() {
            // Another gateway may be writing for long. What is left over goes with the next put.
            tracing::debug!(%error, "what is too old was not removed");
        }
        Ok(kept)
    }

    /// Keeps everything in memory, until this is dropped.
    pub fn in_memory(limits: Limits) -> Result<Kept, StoreError> {
        Ok(Kept { reader: None, database: Database::in_memory(&FORMAT)?, limits })
    }

    /// Keeps a result, in place of what has the same id; gives its length as compact JSON in bytes. Blocks: ten
    /// milliseconds for 1 MB, half a second for 50 MB, of which about 5 MB are in memory at a time.
    ///
    /// Then what is too old goes, and of the rest the oldest until it is within the limits; never the entry just put,
    /// and never a running job.
    pub fn put_result(&self, id: &str, profile: Option<&str>, value: &Value) -> Result<u64, StoreError> {
        let now = sql(now_ms());
        self.put(id, Some(value), |transaction| {
            transaction.execute(
                "INSERT INTO entries (id, profile, state, started_ms, ended_ms, bytes)
                 VALUES (?1, ?2, 'done', ?3, ?3, 0)",
                params![id, profile, now],
            )
        })
    }

    /// Keeps a job as it now stands, in place of how it stood, together with its value; gives the length of that as
    /// compact JSON in bytes, 0 without one. Blocks, and makes room, as [`Kept::put_result`] does.
    ///
    /// A job that ended stays so: to put it as running then does nothing. Who starts and ends a job may put the two in
    /// either order.
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
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 0) ON CONFLICT DO NOTHING",
                params![
                    job.id,
                    job.profile,
                    job.label,
                    job.process,
                    state,
                    sql(job.started_ms),
                    ended_ms.map(sql)
                ],
            )
        };
        match job.state {
            JobState::Working => self.database.write(insert).map(|_| 0),
            _ => self.put(&job.id, value, insert),
        }
    }

    /// The job with this handle.
    pub fn job(&self, id: &str, profile: Option<&str>) -> Result<Option<JobRow>, StoreError> {
        self.read(|connection| {
            let mut statement = connection.prepare(&format!("{JOB} AND id = ?1 AND profile IS ?2"))?;
            Ok(statement.query_row([Some(id), profile], |row| Ok(read_job(row))).optional()?.flatten())
        })
    }

    /// At most `limit` jobs, those first that were started last.
    pub fn jobs(&self, profile: Option<&str>, limit: usize) -> Result<Vec<JobRow>, StoreError> {
        self.read(|connection| {
            let all = format!("{JOB} AND profile IS ?1 ORDER BY started_ms DESC, number DESC LIMIT ?2");
            let mut statement = connection.prepare(&all)?;
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            let jobs = statement.query_map(params![profile, limit], |row| Ok(read_job(row)))?;
            jobs.filter_map(Result::transpose).collect()
        })
    }

    /// The value of a result or a job; None if it has none, and if it cannot be read, with a warning. Its text is in
    /// memory as well while it is parsed.
    pub fn get(&self, id: &str, profile: Option<&str>) -> Result<Option<Value>, StoreError> {
        let Some(text) = self.text(id, profile)? else { return Ok(None) };
        let value = serde_json::from_str(&text);
        Ok(value.inspect_err(|error| self.unreadable(id, &error.to_string())).ok())
    }

    /// The value of a result or a job as compact JSON; None as in [`Kept::get`]. Takes as much memory as it is long.
    pub fn text(&self, id: &str, profile: Option<&str>) -> Result<Option<String>, StoreError> {
        let bytes = self.read(|connection| {
            // One transaction, because the value may go between two reads.
            let transaction = connection.transaction()?;
            let found: Option<(i64, i64)> = transaction
                .prepare(VALUE)?
                .query_row([Some(id), profile], |row| Ok((row.get(0)?, row.get(1)?)))
                .optional()?;
            let Some((number, bytes)) = found else { return Ok(None) };
            read_chunks(&transaction, number, bytes).map(Some)
        })?;
        let text = match bytes {
            None => return Ok(None),
            Some(None) => Err("its chunks are not as long as they should be".to_owned()),
            Some(Some(bytes)) => String::from_utf8(bytes).map_err(|error| error.to_string()),
        };
        Ok(text.inspect_err(|what| self.unreadable(id, what)).ok())
    }

    /// How much is kept, under all profiles.
    pub fn counts(&self) -> Result<Counts, StoreError> {
        let (entries, bytes) = self.read(|connection| counts(connection))?;
        Ok(Counts { entries: entries.unsigned_abs(), bytes: bytes.unsigned_abs() })
    }

    /// Removes everything, from the file as well. Blocks. What a job that is still running gives is kept when it ends.
    pub fn forget(&self) -> Result<(), StoreError> {
        self.database
            .write(|transaction| transaction.execute_batch("DELETE FROM chunks; DELETE FROM entries"))?;
        self.database.with(|connection| {
            // Writes the file anew without what was freed, by way of the log; then empties the log, unless somebody
            // reads it.
            connection.execute_batch("VACUUM")?;
            connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
        })
    }
}

/// Whether there is a process with this number, to tell a job that is running from one whose gateway ended before it.
/// False where that cannot be asked.
///
/// The system gives numbers out again. A job of this very process that this process does not know is another's.
pub fn is_alive(process: u32) -> bool {
    #[cfg(unix)]
    {
        use nix::{errno::Errno, sys::signal, unistd::Pid};
        // 0 and negative numbers mean groups of processes.
        let number = i32::try_from(process).ok().filter(|number| *number > 0);
        let asked = number.map(|number| signal::kill(Pid::from_raw(number), None));
        // One of another user is there as well.
        matches!(asked, Some(Ok(()) | Err(Errno::EPERM)))
    }
    #[cfg(not(unix))]
    {
        let _ = process;
        false
    }
}

impl Kept {
    /// Puts an entry that has ended, in place of what has the same id, and makes room for it.
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
                bytes = write_chunks(transaction, number, value)?;
                let update = "UPDATE entries SET bytes = ?2 WHERE number = ?1";
                transaction.execute(update, [number, sql(bytes)])?;
            }
            make_room(transaction, self.limits, oldest, Some(number))?;
            Ok(bytes)
        })?;
        self.give_back();
        Ok(bytes)
    }

    /// Removes what should not be kept any longer.
    fn tidy(&self) -> Result<(), StoreError> {
        let oldest = self.oldest();
        self.database.write(|transaction| {
            let mut statement = transaction
                .prepare("SELECT number, process FROM entries WHERE state = 'working' AND started_ms < ?1")?;
            let lost: Vec<(i64, u32)> = statement
                .query_map([oldest], |row| Ok((row.get(0)?, row.get(1)?)))?
                .collect::<Result<_, _>>()?;
            for (number, process) in lost {
                // This process has only just started: what has its number is from one before it.
                if process == std::process::id() || !is_alive(process) {
                    remove(transaction, number)?;
                }
            }
            make_room(transaction, self.limits, oldest, None)
        })?;
        self.give_back();
        Ok(())
    }

    /// Gives free pages back to the system. Nothing is lost if it fails.
    fn give_back(&self) {
        let spare = sql(self.limits.bytes) / SPARE;
        let turn = || {
            self.database.with(|connection| {
                let number = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
                if number("freelist_count")? * number("page_size")? <= spare {
                    return Ok(false);
                }
                // A row for each page, and nothing happens to those that nobody asks for.
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
            // The file is cut when the log is moved into it. This way waits for nobody.
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

    /// What ended then or before, in milliseconds since 1970, is too old.
    fn oldest(&self) -> i64 {
        sql(now_ms()).saturating_sub(self.limits.age.as_millis().try_into().unwrap_or(i64::MAX))
    }

    fn unreadable(&self, id: &str, what: &str) {
        tracing::warn!(file = %self.database.file.display(), id, what, "a kept value cannot be read");
    }
}

/// Removes what ended at `oldest` or before, then the oldest until the rest is within the limits. Neither `newest` nor
/// what is running goes.
///
/// What is from the future stays: a clock that starts in 1970 would take everything.
fn make_room(
    transaction: &Transaction,
    limits: Limits,
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
    let most = sql(limits.bytes);
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

/// The job in a row, if it is one.
fn read_job(row: &Row) -> Option<JobRow> {
    let number = |at: usize| row.get::<_, i64>(at).ok().and_then(|number| u64::try_from(number).ok());
    let state: String = row.get(3).ok()?;
    let state = match (state.as_str(), number(6)) {
        ("working", None) => JobState::Working,
        ("done", Some(ended_ms)) => JobState::Done { ended_ms, failed: false },
        ("failed", Some(ended_ms)) => JobState::Done { ended_ms, failed: true },
        ("cancelled", Some(ended_ms)) => JobState::Cancelled { ended_ms },
        _ => return None,
    };
    Some(JobRow {
        id: row.get(0).ok()?,
        label: row.get(1).ok()?,
        profile: row.get(2).ok()?,
        state,
        process: row.get(4).ok()?,
        started_ms: number(5)?,
        bytes: number(7)?,
    })
}

/// Writes a value as compact JSON into the chunks of an entry; gives its length in bytes.
fn write_chunks(transaction: &Transaction, entry: i64, value: &Value) -> rusqlite::Result<u64> {
    let mut chunks = Chunks { transaction, entry, n: 0, unwritten: Vec::new(), failed: None };
    match serde_json::to_writer(&mut chunks, value) {
        Ok(()) => chunks.finish(),
        Err(error) => {
            Err(chunks.failed.unwrap_or_else(|| rusqlite::Error::ToSqlConversionFailure(error.into())))
        }
    }
}

/// Takes bytes and makes rows of them.
struct Chunks<'a> {
    transaction: &'a Transaction<'a>,
    entry: i64,
    /// How many rows were written.
    n: u64,
    unwritten: Vec<u8>,
    /// Why a row could not be written.
    failed: Option<rusqlite::Error>,
}

impl Chunks<'_> {
    fn write_row(&mut self) -> rusqlite::Result<()> {
        let insert = "INSERT INTO chunks (entry, n, data) VALUES (?1, ?2, ?3)";
        self.transaction.prepare(insert)?.execute(params![self.entry, sql(self.n), self.unwritten])?;
        self.n += 1;
        self.unwritten.clear();
        Ok(())
    }

    /// Writes what is left; gives the length of everything in bytes.
    fn finish(mut self) -> rusqlite::Result<u64> {
        let bytes = self.n * CHUNK as u64 + self.unwritten.len() as u64;
        if !self.unwritten.is_empty() {
            self.write_row()?;
        }
        Ok(bytes)
    }
}

impl io::Write for Chunks<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(CHUNK - self.unwritten.len());
        self.unwritten.extend_from_slice(&bytes[..taken]);
        if self.unwritten.len() == CHUNK
            && let Err(error) = self.write_row()
        {
            let told = io::Error::other(error.to_string());
            self.failed = Some(error);
            return Err(told);
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The chunks of an entry, joined; None if they are not as long as they should be.
fn read_chunks(transaction: &Transaction, entry: i64, bytes: i64) -> rusqlite::Result<Option<Vec<u8>>> {
    // Asked first, because a length that a file claims is not to be allocated on trust. Reads no chunk.
    let sum = "SELECT coalesce(sum(length(data)), 0) FROM chunks WHERE entry = ?1";
    let found: i64 = transaction.prepare(sum)?.query_row([entry], |row| row.get(0))?;
    let Some(length) = usize::try_from(bytes).ok().filter(|_| found == bytes) else { return Ok(None) };
    let mut joined = Vec::with_capacity(length);
    let mut statement = transaction.prepare(CHUNKS)?;
    let mut rows = statement.query([entry])?;
    while let Some(row) = rows.next()? {
        joined.extend_from_slice(row.get_ref(0)?.as_blob()?);
    }
    Ok(Some(joined))
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis().try_into().unwrap_or(u64::MAX))
}

/// A number as SQLite takes it.
fn sql(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
