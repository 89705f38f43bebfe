//! Stores a value as rows of one entry, so that neither a large value nor a large row is in memory as a whole while it is
//! written.

use std::io;

use rusqlite::{Transaction, params};
use serde_json::Value;

use super::sql;

/// The size of each chunk except a value's last one.
pub(super) const CHUNK: usize = 1 << 20;

pub(super) const READ: &str = "SELECT data FROM chunks WHERE entry = ?1 ORDER BY n";

/// Writes a value as compact JSON into an entry's chunks. Returns its length in bytes.
pub(super) fn write(transaction: &Transaction, entry: i64, value: &Value) -> rusqlite::Result<u64> {
    let mut chunks = ChunkWriter::new(transaction, entry);
    match serde_json::to_writer(&mut chunks, value) {
        Ok(()) => chunks.finish(),
        Err(error) => {
            Err(chunks.failed.unwrap_or_else(|| rusqlite::Error::ToSqlConversionFailure(error.into())))
        }
    }
}

/// Turns bytes into rows.
pub(super) struct ChunkWriter<'a> {
    transaction: &'a Transaction<'a>,
    entry: i64,
    /// How many rows were written.
    n: u64,
    unwritten: Vec<u8>,
    /// Why a row could not be written.
    failed: Option<rusqlite::Error>,
}

impl<'a> ChunkWriter<'a> {
    pub(super) fn new(transaction: &'a Transaction<'a>, entry: i64) -> Self {
        Self { transaction, entry, n: 0, unwritten: Vec::new(), failed: None }
    }

    fn write_row(&mut self) -> rusqlite::Result<()> {
        let insert = "INSERT INTO chunks (entry, n, data) VALUES (?1, ?2, ?3)";
        self.transaction.prepare(insert)?.execute(params![self.entry, sql(self.n), self.unwritten])?;
        self.n += 1;
        self.unwritten.clear();
        Ok(())
    }

    /// Writes the rest. Returns the total length in bytes.
    pub(super) fn finish(mut self) -> rusqlite::Result<u64> {
        let bytes = self.n * CHUNK as u64 + self.unwritten.len() as u64;
        if !self.unwritten.is_empty() {
            self.write_row()?;
        }
        Ok(bytes)
    }
}

impl io::Write for ChunkWriter<'_> {
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

/// Returns an entry's chunks, joined; `None` if they are not `bytes` long.
pub(super) fn read(transaction: &Transaction, entry: i64, bytes: i64) -> rusqlite::Result<Option<Vec<u8>>> {
    // Checked first, so that a damaged file cannot cause a large allocation. Reads no chunk.
    let sum = "SELECT coalesce(sum(length(data)), 0) FROM chunks WHERE entry = ?1";
    let found: i64 = transaction.prepare(sum)?.query_row([entry], |row| row.get(0))?;
    let Some(length) = usize::try_from(bytes).ok().filter(|_| found == bytes) else { return Ok(None) };
    let mut joined = Vec::with_capacity(length);
    let mut statement = transaction.prepare(READ)?;
    let mut rows = statement.query([entry])?;
    while let Some(row) = rows.next()? {
        joined.extend_from_slice(row.get_ref(0)?.as_blob()?);
    }
    Ok(Some(joined))
}
