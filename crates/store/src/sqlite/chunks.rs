//! Stores a large value as chunks, so that neither the value nor a large row is in memory as a whole while it
//! is written.

use std::io;

use rusqlite::{Transaction, params};

use super::{super::engine::Blob, sql};

/// The size of each chunk except a value's last one.
pub(crate) const CHUNK: usize = 1 << 20;

/// Writes a value that expires at this time of the store's clock. Returns its length in bytes.
pub(crate) fn write(
    transaction: &Transaction,
    name: i64,
    until_ms: i64,
    value: &Blob,
) -> rusqlite::Result<u64> {
    let mut chunks = ChunkWriter::new(transaction, name, until_ms);
    match value.write_to(&mut chunks) {
        Ok(()) => chunks.finish(),
        Err(error) => {
            Err(chunks.failed.unwrap_or_else(|| rusqlite::Error::ToSqlConversionFailure(error.into())))
        }
    }
}

/// Turns bytes into rows.
pub(crate) struct ChunkWriter<'a> {
    transaction: &'a Transaction<'a>,
    name: i64,
    until_ms: i64,
    /// How many rows were written.
    n: u64,
    unwritten: Vec<u8>,
    /// Why a row could not be written.
    failed: Option<rusqlite::Error>,
}

impl<'a> ChunkWriter<'a> {
    pub(crate) fn new(transaction: &'a Transaction<'a>, name: i64, until_ms: i64) -> Self {
        Self { transaction, name, until_ms, n: 0, unwritten: Vec::new(), failed: None }
    }

    fn write_row(&mut self) -> rusqlite::Result<()> {
        let insert = "INSERT INTO chunks (entry, n, data, until_ms) VALUES (?1, ?2, ?3, ?4)";
        let row = params![self.name, sql(self.n), self.unwritten, self.until_ms];
        self.transaction.prepare(insert)?.execute(row)?;
        self.n += 1;
        self.unwritten.clear();
        Ok(())
    }

    /// Writes the rest. Returns the total length in bytes.
    pub(crate) fn finish(mut self) -> rusqlite::Result<u64> {
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

/// Returns a value's chunks, joined; `None` if they are not `bytes` long.
pub(crate) fn read(transaction: &Transaction, name: i64, bytes: i64) -> rusqlite::Result<Option<Vec<u8>>> {
    // Checked first, so that a damaged file cannot cause a large allocation. Reads no chunk.
    let sum = "SELECT coalesce(sum(length(data)), 0) FROM chunks WHERE entry = ?1";
    let found: i64 = transaction.prepare(sum)?.query_row([name], |row| row.get(0))?;
    let Some(length) = usize::try_from(bytes).ok().filter(|_| found == bytes) else { return Ok(None) };
    let mut joined = Vec::with_capacity(length);
    let mut statement = transaction.prepare("SELECT data FROM chunks WHERE entry = ?1 ORDER BY n")?;
    let mut rows = statement.query([name])?;
    while let Some(row) = rows.next()? {
        joined.extend_from_slice(row.get_ref(0)?.as_blob()?);
    }
    Ok(Some(joined))
}
