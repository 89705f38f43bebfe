//! Work that people and models leave for later, in `records.db`: watches, schedules, facts, goals, parked work, notices.
//!
//! A record is JSON under a kind, an owner and an id. It may have a due time, and it may be held by a gateway.

use std::{collections::BTreeMap, path::Path};

use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};
use serde_json::Value;

use super::{
    Agenda, FactVector, NewRecord, Record, RecordKind, RecordQuota, Removable, StoreError,
    file::{Database, DbFormat, files},
    lease::{LeaseHolder, LeasePresence, NOBODY},
};

const COLUMNS: &str = "SELECT kind, owner, id, body, due_ms, revision, put_ms, holder FROM records";

const FORMAT: DbFormat = DbFormat {
    name: "records.db",
    layout: "PRAGMA auto_vacuum = incremental",
    steps: &[
        // `holder` is the number of a gateway, or 0. `config` is the only configuration for whose gateways a record is due,
        // if any. Times are in milliseconds since 1970.
        "CREATE TABLE records (
            number INTEGER PRIMARY KEY,
            kind TEXT NOT NULL,
            owner TEXT NOT NULL,
            id TEXT NOT NULL,
            body TEXT NOT NULL,
            due_ms INTEGER CHECK (due_ms >= 0),
            revision INTEGER NOT NULL,
            put_ms INTEGER NOT NULL CHECK (put_ms >= 0),
            holder INTEGER NOT NULL CHECK (holder >= 0),
            config TEXT,
            UNIQUE (kind, owner, id)
        ) STRICT;
        CREATE INDEX due ON records (due_ms) WHERE due_ms IS NOT NULL",
        // `changes` tells gateways with an owner's facts in memory when to read them again. It starts at random, so that no
        // number recurs after everything was forgotten. A vector is deleted with the text that it was made from.
        "CREATE TABLE changes (owner TEXT PRIMARY KEY, count INTEGER NOT NULL) STRICT;
        CREATE TABLE vectors (record INTEGER PRIMARY KEY, model TEXT NOT NULL, vector BLOB NOT NULL) STRICT;
        CREATE TRIGGER fact_put AFTER INSERT ON records WHEN new.kind = 'fact' BEGIN
            INSERT INTO changes VALUES (new.owner, random() & 0x3fffffffffffffff)
                ON CONFLICT (owner) DO UPDATE SET count = count + 1;
        END;
        CREATE TRIGGER fact_changed AFTER UPDATE OF body ON records WHEN new.kind = 'fact' BEGIN
            UPDATE changes SET count = count + 1 WHERE owner = new.owner;
            DELETE FROM vectors WHERE record = new.number;
        END;
        CREATE TRIGGER fact_gone AFTER DELETE ON records WHEN old.kind = 'fact' BEGIN
            UPDATE changes SET count = count + 1 WHERE owner = old.owner;
            DELETE FROM vectors WHERE record = old.number;
        END",
    ],
    set_up,
    reads: &[
        COLUMNS,
        "SELECT number, config FROM records",
        "SELECT owner, count FROM changes",
        "SELECT record, model, vector FROM vectors",
    ],
    most_damaged: 9,
};

fn set_up(connection: &Connection) -> rusqlite::Result<()> {
    // Deleted data is overwritten.
    connection.pragma_update(None, "secure_delete", true)?;
    // Facts and schedules are few and precious, so a power cut must lose none of them.
    connection.pragma_update(None, "synchronous", "full")
}

/// An open file. Several gateways, and several threads of one, may use it at the same time.
#[derive(Debug)]
pub(super) struct RecordsDb {
    database: Database,
    holder: LeaseHolder,
    /// `None` in memory, where there is no other gateway.
    presence: Option<LeasePresence>,
}

impl Removable for RecordsDb {
    fn is_gone(&self) -> bool {
        self.database.is_gone()
    }
}

impl RecordsDb {
    /// Returns whether a folder has the file.
    pub(crate) fn exists(folder: &Path) -> bool {
        folder.join(FORMAT.name).exists()
    }

    /// Opens the file in a folder; creates both, readable only by their owner, if they do not exist. Blocks.
    pub(crate) fn open(folder: &Path, holder: LeaseHolder) -> Result<RecordsDb, StoreError> {
        let database = Database::open(folder, &FORMAT)?;
        let presence = Some(holder.enter(folder).map_err(files(folder))?);
        Ok(RecordsDb { database, holder, presence })
    }

    /// Keeps everything in memory, until the value is dropped.
    pub(crate) fn in_memory(holder: LeaseHolder) -> Result<RecordsDb, StoreError> {
        Ok(RecordsDb { database: Database::in_memory(&FORMAT)?, holder, presence: None })
    }

    /// See [`Records::put`](super::Records::put).
    pub(crate) fn put(&self, record: &NewRecord, most: RecordQuota) -> Result<Option<usize>, StoreError> {
        let (kind, owner, id) = (record.kind.as_str(), &record.owner, &record.id);
        let now = sql(self.holder.clock.unix_ms());
        let holder = if record.held { self.holder.number } else { NOBODY };
        self.database.write(|transaction| {
            let count = |sql: &str| -> rusqlite::Result<usize> {
                let count: i64 = transaction.prepare(sql)?.query_row([kind, owner, id], |row| row.get(0))?;
                Ok(usize::try_from(count).unwrap_or(usize::MAX))
            };
            let others = count("SELECT count(*) FROM records WHERE kind = ?1 AND owner = ?2 AND id != ?3")?;
            let dropped = match most {
                RecordQuota::Refuse(most) if others >= most => return Ok(None),
                RecordQuota::Refuse(_) => 0,
                RecordQuota::DropOldest(most) => (others + 1).saturating_sub(most.max(1)),
            };
            if dropped > 0 {
                let oldest = "DELETE FROM records WHERE number IN (SELECT number FROM records
                    WHERE kind = ?1 AND owner = ?2 AND id != ?3 ORDER BY number LIMIT ?4)";
                transaction.execute(oldest, params![kind, owner, id, dropped as i64])?;
            }
            let put = "INSERT INTO records (kind, owner, id, body, due_ms, revision, put_ms, holder, config)
                VALUES (?1, ?2, ?3, ?4, ?5, 1, ?6, ?7, ?8) ON CONFLICT (kind, owner, id) DO UPDATE SET
                body = ?4, due_ms = ?5, revision = revision + 1, put_ms = ?6, holder = ?7, config = ?8";
            let due = record.due_ms.map(sql);
            let body = record.body.to_string();
            let config = record.of_config.then_some(&*self.holder.config);
            transaction.prepare(put)?.execute(params![kind, owner, id, body, due, now, holder, config])?;
            Ok(Some(dropped))
        })
    }

    /// Returns the record of an owner with this id.
    pub(crate) fn get(&self, kind: RecordKind, owner: &str, id: &str) -> Result<Option<Record>, StoreError> {
        self.database.with(|connection| one(connection, kind, owner, id))
    }

    /// Returns all records of an owner, oldest first. Unreadable rows are skipped, with a warning.
    pub(crate) fn all(&self, kind: RecordKind, owner: &str) -> Result<Vec<Record>, StoreError> {
        self.database.with(|connection| {
            let all = format!("{COLUMNS} WHERE kind = ?1 AND owner = ?2 ORDER BY number");
            let mut statement = connection.prepare(&all)?;
            let rows = statement.query_map([kind.as_str(), owner], |row| Ok(read(row)))?;
            Ok(rows.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().map(|(record, _)| record).collect())
        })
    }

    /// Returns all records of a kind, oldest first. Unreadable rows are skipped, with a warning.
    pub(crate) fn of_kind(&self, kind: RecordKind) -> Result<Vec<Record>, StoreError> {
        self.database.with(|connection| {
            let mut statement = connection.prepare(&format!("{COLUMNS} WHERE kind = ?1 ORDER BY number"))?;
            let rows = statement.query_map([kind.as_str()], |row| Ok(read(row)))?;
            Ok(rows.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().map(|(record, _)| record).collect())
        })
    }

    /// See [`Records::change`](super::Records::change).
    pub(crate) fn change(&self, record: &Record) -> Result<bool, StoreError> {
        self.database.write(|transaction| {
            let change = "UPDATE records SET body = ?4, due_ms = ?5, revision = revision + 1
                WHERE kind = ?1 AND owner = ?2 AND id = ?3 AND revision = ?6";
            let (due, revision) = (record.due_ms.map(sql), sql(record.revision));
            let (kind, body) = (record.kind.as_str(), record.body.to_string());
            let key = params![kind, record.owner, record.id, body, due, revision];
            Ok(transaction.prepare(change)?.execute(key)? == 1)
        })
    }

    /// See [`Records::remove`](super::Records::remove).
    pub(crate) fn remove(&self, record: &Record) -> Result<bool, StoreError> {
        self.database.write(|transaction| {
            let remove = "DELETE FROM records WHERE kind = ?1 AND owner = ?2 AND id = ?3 AND revision = ?4";
            let key = params![record.kind.as_str(), record.owner, record.id, sql(record.revision)];
            Ok(transaction.prepare(remove)?.execute(key)? == 1)
        })
    }

    /// See [`Records::hold`](super::Records::hold).
    pub(crate) fn hold(&self, record: &Record) -> Result<bool, StoreError> {
        let (kind, owner, id) = (record.kind.as_str(), &record.owner, &record.id);
        self.database.write(|transaction| {
            let one =
                "SELECT holder FROM records WHERE kind = ?1 AND owner = ?2 AND id = ?3 AND revision = ?4";
            let key = params![kind, owner, id, sql(record.revision)];
            let holder: Option<u32> = transaction.query_row(one, key, |row| row.get(0)).optional()?;
            if holder.is_none_or(|holder| self.is_held(holder)) {
                return Ok(false);
            }
            let hold = "UPDATE records SET holder = ?4, revision = revision + 1
                WHERE kind = ?1 AND owner = ?2 AND id = ?3";
            transaction.execute(hold, params![kind, owner, id, self.holder.number])?;
            Ok(true)
        })
    }

    /// Removes a record and returns it, to one caller only.
    pub(crate) fn take(&self, kind: RecordKind, owner: &str, id: &str) -> Result<Option<Record>, StoreError> {
        self.database.write(|transaction| {
            let found = one(transaction, kind, owner, id)?;
            remove(transaction, kind, owner, id)?;
            Ok(found)
        })
    }

    /// See [`Records::drop_old`](super::Records::drop_old).
    pub(crate) fn drop_old(
        &self,
        kind: RecordKind,
        owner: &str,
        before_ms: u64,
    ) -> Result<usize, StoreError> {
        self.database.write(|transaction| {
            let old = "SELECT id FROM records WHERE kind = ?1 AND owner = ?2 AND put_ms < ?3";
            let mut statement = transaction.prepare(old)?;
            let rows =
                statement.query_map(params![kind.as_str(), owner, sql(before_ms)], |row| row.get(0))?;
            let old: Vec<String> = rows.collect::<Result<_, _>>()?;
            for id in &old {
                remove(transaction, kind, owner, id)?;
            }
            Ok(old.len())
        })
    }

    /// Returns how many records of a kind an owner has.
    pub(crate) fn count_of(&self, kind: RecordKind, owner: &str) -> Result<usize, StoreError> {
        self.database.with(|connection| {
            let count = "SELECT count(*) FROM records WHERE kind = ?1 AND owner = ?2";
            let count: i64 =
                connection.prepare(count)?.query_row([kind.as_str(), owner], |row| row.get(0))?;
            Ok(usize::try_from(count).unwrap_or(usize::MAX))
        })
    }

    /// See [`Records::due`](super::Records::due).
    pub(crate) fn due(&self, now_ms: u64, kinds: &[RecordKind]) -> Result<Vec<Record>, StoreError> {
        let kinds = one_of(kinds);
        let due = format!(
            "{COLUMNS} WHERE due_ms <= ?1 AND kind IN ({kinds}) AND (config IS NULL OR config = ?2)
                ORDER BY due_ms, number"
        );
        let rows = self.database.with(|connection| {
            let mut statement = connection.prepare(&due)?;
            let rows =
                statement.query_map(params![sql(now_ms), &*self.holder.config], |row| Ok(read(row)))?;
            rows.collect::<Result<Vec<_>, _>>()
        })?;
        let mine = |holder: u32| holder == self.holder.number;
        let mut due: Vec<_> = rows
            .into_iter()
            .flatten()
            .filter(|(_, holder)| mine(*holder) || !self.is_held(*holder))
            .collect();
        if due.iter().any(|(_, holder)| !mine(*holder)) {
            // In one write: after a crash, one gateway may take over hundreds.
            self.database.write(|transaction| {
                for (record, holder) in due.iter_mut().filter(|(_, holder)| !mine(*holder)) {
                    if self.take_over(transaction, record, *holder)? {
                        *holder = self.holder.number;
                    }
                }
                Ok(())
            })?;
        }
        Ok(due.into_iter().filter(|(_, holder)| mine(*holder)).map(|(record, _)| record).collect())
    }

    /// Takes over a record from a gateway that has ended. Returns false if another gateway was faster.
    fn take_over(&self, transaction: &Transaction, record: &Record, from: u32) -> rusqlite::Result<bool> {
        let take =
            "UPDATE records SET holder = ?4 WHERE kind = ?1 AND owner = ?2 AND id = ?3 AND holder = ?5";
        let key = params![record.kind.as_str(), record.owner, record.id, self.holder.number, from];
        Ok(transaction.prepare(take)?.execute(key)? == 1)
    }

    /// See [`Records::agenda`](super::Records::agenda).
    pub(crate) fn agenda(&self, kinds: &[RecordKind]) -> Result<Agenda, StoreError> {
        let kinds = one_of(kinds);
        let (due, notices) = self.database.with(|connection| {
            let due = format!(
                "SELECT holder, min(due_ms) FROM records WHERE due_ms IS NOT NULL AND kind IN ({kinds})
                    AND (config IS NULL OR config = ?1) GROUP BY holder"
            );
            let mut statement = connection.prepare(&due)?;
            let due: Vec<(u32, i64)> = statement
                .query_map([&*self.holder.config], |row| Ok((row.get(0)?, row.get(1)?)))?
                .collect::<Result<_, _>>()?;
            let notices =
                "SELECT owner, holder, count(*) FROM records WHERE kind = ?1 GROUP BY owner, holder";
            let mut statement = connection.prepare(notices)?;
            let notices: Vec<(String, u32, i64)> = statement
                .query_map([RecordKind::Notice.as_str()], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
                .collect::<Result<_, _>>()?;
            Ok((due, notices))
        })?;
        let is_mine = |holder: u32| holder == self.holder.number || !self.is_held(holder);
        let next =
            due.into_iter().filter(|(holder, _)| is_mine(*holder)).map(|(_, due)| due.unsigned_abs()).min();
        let mut notices_of = BTreeMap::new();
        for (owner, _, count) in notices.into_iter().filter(|(_, holder, _)| !self.is_held(*holder)) {
            *notices_of.entry(owner).or_insert(0) += usize::try_from(count).unwrap_or(usize::MAX);
        }
        Ok(Agenda { next_due_ms: next, notices: notices_of })
    }

    /// See [`Records::claim_free`](super::Records::claim_free).
    pub(crate) fn claim_free(
        &self,
        kind: RecordKind,
        owner: &str,
        most: usize,
    ) -> Result<Vec<Record>, StoreError> {
        self.database.write(|transaction| {
            let all = format!("{COLUMNS} WHERE kind = ?1 AND owner = ?2 ORDER BY number");
            let mut statement = transaction.prepare(&all)?;
            let rows = statement.query_map([kind.as_str(), owner], |row| Ok(read(row)))?;
            let rows = rows.collect::<Result<Vec<_>, _>>()?.into_iter().flatten();
            let free = rows.filter(|(_, holder)| !self.is_held(*holder)).map(|(record, _)| record);
            let free: Vec<Record> = free.take(most).collect();
            self.set_holder(
                transaction,
                self.holder.number,
                free.iter().map(|record| (kind, owner, &*record.id)),
            )?;
            Ok(free)
        })
    }

    /// Releases records that this gateway holds.
    pub(crate) fn free(&self, kind: RecordKind, owner: &str, ids: &[String]) -> Result<(), StoreError> {
        self.database.write(|transaction| {
            self.set_holder(transaction, NOBODY, ids.iter().map(|id| (kind, owner, &**id)))
        })
    }

    fn set_holder<'a>(
        &self,
        transaction: &Transaction,
        holder: u32,
        records: impl Iterator<Item = (RecordKind, &'a str, &'a str)>,
    ) -> rusqlite::Result<()> {
        let set = "UPDATE records SET holder = ?4 WHERE kind = ?1 AND owner = ?2 AND id = ?3";
        let mut statement = transaction.prepare(set)?;
        for (kind, owner, id) in records {
            statement.execute(params![kind.as_str(), owner, id, holder])?;
        }
        Ok(())
    }

    /// See [`Records::changes`](super::Records::changes).
    pub(crate) fn changes(&self, owner: &str) -> Result<Option<u64>, StoreError> {
        self.database.with(|connection| {
            let mut statement = connection.prepare("SELECT count FROM changes WHERE owner = ?1")?;
            let count: Option<i64> = statement.query_row([owner], |row| row.get(0)).optional()?;
            Ok(count.map(i64::unsigned_abs))
        })
    }

    /// See [`Records::vectors`](super::Records::vectors).
    pub(crate) fn vectors(&self, owner: &str, model: &str) -> Result<Vec<FactVector>, StoreError> {
        self.database.with(|connection| {
            let all = "SELECT id, revision, vector FROM records JOIN vectors ON record = number
                WHERE kind = ?1 AND owner = ?2 AND model = ?3";
            let mut statement = connection.prepare(all)?;
            let rows = statement.query_map([RecordKind::Fact.as_str(), owner, model], |row| {
                let number = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().unwrap_or_default());
                let bytes: Vec<u8> = row.get(2)?;
                let vector = bytes.chunks_exact(size_of::<f32>()).map(number).collect();
                Ok(FactVector { id: row.get(0)?, revision: row.get::<_, i64>(1)?.unsigned_abs(), vector })
            })?;
            rows.collect()
        })
    }

    /// See [`Records::put_vectors`](super::Records::put_vectors).
    pub(crate) fn put_vectors(
        &self,
        owner: &str,
        model: &str,
        vectors: &[FactVector],
    ) -> Result<(), StoreError> {
        self.database.write(|transaction| {
            let put = "INSERT OR REPLACE INTO vectors SELECT number, ?5, ?6 FROM records
                WHERE kind = ?1 AND owner = ?2 AND id = ?3 AND revision = ?4";
            let mut statement = transaction.prepare(put)?;
            for FactVector { id, revision, vector } in vectors {
                let bytes: Vec<u8> = vector.iter().flat_map(|number| number.to_le_bytes()).collect();
                let kind = RecordKind::Fact.as_str();
                statement.execute(params![kind, owner, id, sql(*revision), model, bytes])?;
            }
            Ok(())
        })
    }

    /// Returns how many records of these kinds there are, of all owners.
    pub(crate) fn count(&self, kinds: &[RecordKind]) -> Result<u64, StoreError> {
        self.database.with(|connection| {
            let mut statement = connection.prepare("SELECT count(*) FROM records WHERE kind = ?1")?;
            let mut sum = 0;
            for kind in kinds {
                sum += statement.query_row([kind.as_str()], |row| row.get::<_, i64>(0))?.unsigned_abs();
            }
            Ok(sum)
        })
    }

    /// Removes the records of these kinds, of all owners, from the file as well.
    pub(crate) fn forget(&self, kinds: &[RecordKind]) -> Result<(), StoreError> {
        self.database.write(|transaction| {
            for kind in kinds {
                transaction.execute("DELETE FROM records WHERE kind = ?1", [kind.as_str()])?;
            }
            match kinds.contains(&RecordKind::Fact) {
                true => transaction.execute_batch("DELETE FROM vectors; DELETE FROM changes"),
                false => Ok(()),
            }
        })?;
        self.database.with(|connection| {
            connection.execute_batch("VACUUM")?;
            connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
        })
    }

    /// Returns whether the gateway with this number is running, including this one.
    fn is_held(&self, holder: u32) -> bool {
        self.presence.as_ref().map_or(holder == self.holder.number, |presence| presence.is_held(holder))
    }
}

fn one(connection: &Connection, kind: RecordKind, owner: &str, id: &str) -> rusqlite::Result<Option<Record>> {
    let one = format!("{COLUMNS} WHERE kind = ?1 AND owner = ?2 AND id = ?3");
    let mut statement = connection.prepare(&one)?;
    let found = statement.query_row([kind.as_str(), owner, id], |row| Ok(read(row))).optional()?;
    Ok(found.flatten().map(|(record, _)| record))
}

fn remove(transaction: &Transaction, kind: RecordKind, owner: &str, id: &str) -> rusqlite::Result<usize> {
    if kind == RecordKind::Parked {
        let parts = "DELETE FROM records WHERE kind = ?1 AND owner = ?2";
        transaction.prepare(parts)?.execute([kind.as_str(), id])?;
    }
    let remove = "DELETE FROM records WHERE kind = ?1 AND owner = ?2 AND id = ?3";
    transaction.prepare(remove)?.execute([kind.as_str(), owner, id])
}

/// Returns the record of a row, and its holder. A row of an unknown kind belongs to a newer Nonet.
fn read(row: &Row) -> Option<(Record, u32)> {
    let number = |at: usize| row.get::<_, i64>(at).ok().map(i64::unsigned_abs);
    let text = |at: usize| row.get::<_, String>(at).ok();
    let (owner, id) = (text(1)?, text(2)?);
    let kind = RecordKind::of(&text(0)?)?;
    let body: Value = match serde_json::from_str(&text(3)?) {
        Ok(body) => body,
        Err(error) => {
            tracing::warn!(%error, %id, kind = kind.as_str(), "a record cannot be read");
            return None;
        }
    };
    let due_ms = row.get::<_, Option<i64>>(4).ok()?.map(i64::unsigned_abs);
    let record = Record { kind, owner, id, body, due_ms, revision: number(5)?, put_ms: number(6)? };
    Some((record, row.get(7).ok()?))
}

/// Returns kinds as a list of SQL.
fn one_of(kinds: &[RecordKind]) -> String {
    kinds.iter().map(|kind| format!("'{}'", kind.as_str())).collect::<Vec<_>>().join(", ")
}

/// Converts a number to SQLite's type.
fn sql(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
