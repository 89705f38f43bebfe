//! The results of all owners, without jobs, and the removal of a single entry: for the machine's user.

use rusqlite::OptionalExtension;

use super::{KeptDb, remove};
use crate::{KeptRow, StoreError};

/// Reads entries without their values.
pub(super) const READ: &str =
    "SELECT id, coalesce(profile, ''), bytes, ended_ms FROM entries WHERE label IS NULL";

impl KeptDb {
    /// Removes an owner's ended entry. Returns false if there is none.
    pub(crate) fn remove_ended(&self, id: &str, owner: &str) -> Result<bool, StoreError> {
        self.database.write(|transaction| {
            let known = "SELECT number FROM entries WHERE id = ?1 AND profile IS nullif(?2, '') AND state <> 'working'";
            match transaction.query_row(known, [id, owner], |row| row.get(0)).optional()? {
                Some(number) => remove(transaction, number).map(|()| true),
                None => Ok(false),
            }
        })
    }

    /// Returns at most `limit` results of all owners, latest first.
    pub(crate) fn results(&self, limit: usize) -> Result<Vec<KeptRow>, StoreError> {
        self.read(|connection| {
            let mut statement = connection.prepare(&format!("{READ} ORDER BY number DESC LIMIT ?1"))?;
            let rows = statement.query_map([i64::try_from(limit).unwrap_or(i64::MAX)], |row| {
                let number = |at| row.get::<_, i64>(at).map(i64::unsigned_abs);
                Ok(KeptRow { id: row.get(0)?, owner: row.get(1)?, bytes: number(2)?, at_ms: number(3)? })
            })?;
            rows.collect()
        })
    }
}
