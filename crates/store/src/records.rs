//! Records: work for later, and facts to remember, as rows in a table for each kind. Written once for both
//! engines.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    Agenda, FactVector, NewRecord, Record, RecordKind, RecordQuota, StoreError,
    engine::{Batch, Condition, Engine, Key, NewRow, Row, Rows, Scan, ScanBy, TRIES, Table, Write, too_busy},
};

/// Vectors of facts: the owner and the id are the fact's.
pub(crate) const VECTORS: Table = "vector";
/// How many rows are looked at to find the next one that is due here.
const AT_ONCE: usize = 100;

/// The records of the gateways with the same store. Several of them may use the same records at the same
/// time.
///
/// A stored record is visible to every gateway when the call returns, and survives the end of the process and
/// of the machine. Methods may be called from async code.
#[derive(Debug)]
pub struct Records {
    engine: Arc<dyn Engine>,
    /// Of several puts of this process, one at a time, so that they do not get into each other's way.
    turn: tokio::sync::Mutex<()>,
}

/// A vector in the store.
#[derive(Serialize, Deserialize)]
struct VectorBody {
    model: String,
    /// Of the fact, when the vector was made from it.
    revision: u64,
    /// Four bytes per number, as Base64.
    vector: String,
}

impl Records {
    pub(crate) fn new(engine: Arc<dyn Engine>) -> Self {
        Self { engine, turn: tokio::sync::Mutex::default() }
    }

    /// Stores a record, replacing the one with the same kind, owner and id. Returns how many of the owner's
    /// oldest records of that kind were dropped for it; `None` if the owner already has as many as `most`
    /// allows, and nothing was stored.
    pub async fn put(&self, record: NewRecord, most: RecordQuota) -> Result<Option<usize>, StoreError> {
        let (table, owner) = (record.kind.as_str(), record.owner.clone());
        let key = Key::new(table, owner.clone(), record.id);
        let row = NewRow {
            key: key.clone(),
            body: record.body.to_string(),
            due: record.due_ms,
            held: record.held,
            of_config: record.of_config,
            newest: false,
        };
        let _turn = self.turn.lock().await;
        for _ in 0..TRIES {
            let old = self.row(&key).await?;
            let count = self.engine.count(table, Some(owner.clone())).await?;
            let others = count - usize::from(old.is_some()).min(count);
            let too_many = match most {
                RecordQuota::Refuse(most) if others >= most => return Ok(None),
                RecordQuota::Refuse(_) => 0,
                RecordQuota::DropOldest(most) => (others + 1).saturating_sub(most.max(1)),
            };
            let mut batch = Batch::default();
            batch.conditions.push(Condition::Count { table, owner: owner.clone(), count });
            batch.put(row.clone(), old.as_ref());
            self.changed(&mut batch, &key);
            let mut dropped = 0;
            if too_many > 0 {
                let oldest = Scan::owner(table, &owner).heads().limit(too_many + 1);
                let oldest = self.engine.scan(oldest).await?.rows;
                for row in oldest.iter().filter(|row| row.key != key).take(too_many) {
                    self.delete(&mut batch, row);
                    dropped += 1;
                }
            }
            if self.engine.commit(batch).await? {
                return Ok(Some(dropped));
            }
        }
        Err(too_busy())
    }

    /// Stores parts of a record that this gateway holds, each a name and a body, in one write. The holder
    /// bounds them: there is no quota here. Quick ones survive the end of the process, but not a power cut,
    /// until the next write that is not quick.
    pub async fn put_parts(
        &self,
        kind: RecordKind,
        of: &str,
        parts: Vec<(String, Value)>,
        is_quick: bool,
    ) -> Result<(), StoreError> {
        let put = |(id, body): (String, Value)| {
            Write::Put(NewRow::new(Key::new(kind.as_str(), of, id), body.to_string()))
        };
        let writes = parts.into_iter().map(put).collect();
        let batch = Batch { writes, is_quick, ..Batch::default() };
        self.engine.commit(batch).await.map(drop)
    }

    /// Returns a record as it is now; `None` if the owner has none of this kind with this id.
    pub async fn get(&self, kind: RecordKind, owner: &str, id: &str) -> Result<Option<Record>, StoreError> {
        let row = self.row(&Key::new(kind.as_str(), owner, id)).await?;
        Ok(row.and_then(|row| record_of(kind, row)))
    }

    /// Returns all records of an owner, oldest first.
    pub async fn all(&self, kind: RecordKind, owner: &str) -> Result<Vec<Record>, StoreError> {
        self.scan(kind, Scan::owner(kind.as_str(), owner)).await
    }

    /// Returns all records of a kind, of every owner, oldest first.
    pub async fn of_kind(&self, kind: RecordKind) -> Result<Vec<Record>, StoreError> {
        self.scan(kind, Scan::table(kind.as_str())).await
    }

    /// Returns the records of a kind that are for gateways of this configuration, each with whether it is for them
    /// only.
    pub(crate) async fn ours(&self, kind: RecordKind) -> Result<Vec<(Record, bool)>, StoreError> {
        let rows = self.engine.scan(Scan::table(kind.as_str())).await?.rows.into_iter();
        let ours = rows.filter(|row| row.is_ours);
        Ok(ours
            .filter_map(|row| Some((row.of_config, record_of(kind, row)?)))
            .map(|(of, record)| (record, of))
            .collect())
    }

    /// Writes the body and the due time of a record as it was read. Returns false, and writes nothing, if the
    /// record has been changed or removed since. The holder stays the same.
    pub async fn change(&self, record: Record) -> Result<bool, StoreError> {
        let key = key_of(&record);
        let mut batch = Batch::default();
        batch.conditions.push(Condition::Revision(key.clone(), record.revision));
        let (body, due) = (record.body.to_string(), record.due_ms);
        batch.writes.push(Write::Change { key: key.clone(), body, due });
        self.changed(&mut batch, &key);
        self.engine.commit(batch).await
    }

    /// Removes a record as it was read. Returns false, and removes nothing, if the record has been changed or
    /// removed since.
    pub async fn remove(&self, record: Record) -> Result<bool, StoreError> {
        let key = key_of(&record);
        let mut batch = Batch::default();
        batch.conditions.push(Condition::Revision(key.clone(), record.revision));
        batch.writes.push(Write::Delete(key.clone()));
        self.changed(&mut batch, &key);
        self.engine.commit(batch).await
    }

    /// Makes this gateway the holder of a record as it was read, which counts as a change. Returns false if
    /// the record has been changed or removed since, or if a running gateway holds it, including this one.
    pub async fn hold(&self, record: &Record) -> Result<bool, StoreError> {
        let found = self.row(&key_of(record)).await?.filter(|row| row.revision == record.revision);
        let Some(row) = found else { return Ok(false) };
        if !self.free_rows(vec![row.clone()]).await?.is_empty() {
            let mut batch = Batch::default();
            batch.hold(&row, true);
            return self.engine.commit(batch).await;
        }
        Ok(false)
    }

    /// Removes a record and returns it. Of several callers, only one gets it.
    ///
    /// A parked record has parts: records of its kind whose owner is its id. They are taken or dropped with
    /// it.
    pub async fn take(&self, kind: RecordKind, owner: &str, id: &str) -> Result<Option<Record>, StoreError> {
        let key = Key::new(kind.as_str(), owner, id);
        for _ in 0..TRIES {
            let Some(row) = self.row(&key).await? else { return Ok(None) };
            if self.delete_with_parts(kind, &row).await? {
                return Ok(record_of(kind, row));
            }
        }
        Err(too_busy())
    }

    /// Removes an owner's records stored before a time. Returns how many.
    pub async fn drop_old(&self, kind: RecordKind, owner: &str, before_ms: u64) -> Result<usize, StoreError> {
        let rows = self.engine.scan(Scan::owner(kind.as_str(), owner).heads()).await?.rows;
        let mut dropped = 0;
        for row in rows.iter().filter(|row| row.put_ms < before_ms) {
            // One that has been changed or removed meanwhile is left to whoever did it.
            dropped += usize::from(self.delete_with_parts(kind, row).await?);
        }
        Ok(dropped)
    }

    /// Returns how many records of a kind an owner has.
    pub async fn count_of(&self, kind: RecordKind, owner: &str) -> Result<usize, StoreError> {
        self.engine.count(kind.as_str(), Some(owner.to_owned())).await
    }

    /// Returns the records of these kinds that are due at `now_ms` and that this gateway holds, earliest
    /// first. Takes over records of gateways that have ended. A record stays due until it is changed.
    pub async fn due(&self, now_ms: u64, kinds: &[RecordKind]) -> Result<Vec<Record>, StoreError> {
        let me = self.engine.me();
        for _ in 0..TRIES {
            let rows = self.engine.scan(Scan::due(&names(kinds), now_ms)).await?.rows;
            let rows: Vec<Row> = rows.into_iter().filter(|row| row.is_ours).collect();
            let free = self.free_rows(rows.iter().filter(|row| row.holder != me).cloned().collect()).await?;
            if free.is_empty() {
                let mine = rows.into_iter().filter(|row| row.holder == me);
                return Ok(mine.filter_map(|row| record_of(kind_of(kinds, &row)?, row)).collect());
            }
            // In one write: after a crash, one gateway may take over hundreds. If another one is faster, what
            // is left is read again.
            self.hold_all(&free, true).await?;
        }
        Err(too_busy())
    }

    /// Returns the upcoming work of these kinds, and the notices; `None` if there are no records at all.
    pub async fn agenda(&self, kinds: &[RecordKind]) -> Result<Option<Agenda>, StoreError> {
        if self.engine.is_new().await? {
            return Ok(None);
        }
        let counted = self.engine.count_held(RecordKind::Notice.as_str()).await?;
        let running = self.engine.running(counted.iter().map(|(_, holder, _)| *holder).collect()).await?;
        let mut notices = BTreeMap::new();
        for (owner, _, count) in counted.into_iter().filter(|(_, holder, _)| !running.contains(holder)) {
            *notices.entry(owner).or_insert(0) += count;
        }
        Ok(Some(Agenda { next_due_ms: self.next_due(&names(kinds)).await?, notices }))
    }

    /// Returns when the next record is due that this gateway holds or may take over.
    async fn next_due(&self, tables: &[Table]) -> Result<Option<u64>, StoreError> {
        let mut skip = 0;
        loop {
            let scan = Scan { by: ScanBy::Due { until: u64::MAX, skip }, ..Scan::due(tables, u64::MAX) };
            let Rows { rows, looked_at, .. } = self.engine.scan(scan.heads().limit(AT_ONCE)).await?;
            let others = rows.iter().map(|row| row.holder).filter(|holder| *holder != self.engine.me());
            let running = self.engine.running(others.collect()).await?;
            if let Some(next) = rows.iter().find(|row| row.is_ours && !running.contains(&row.holder)) {
                return Ok(next.due);
            }
            if looked_at == 0 {
                return Ok(None);
            }
            skip += AT_ONCE;
        }
    }

    /// Makes this gateway the holder of at most `most` unheld records, oldest first, and returns them. Of
    /// several callers, only one gets each.
    pub async fn claim_free(
        &self,
        kind: RecordKind,
        owner: &str,
        most: usize,
    ) -> Result<Vec<Record>, StoreError> {
        for _ in 0..TRIES {
            let rows = self.engine.scan(Scan::owner(kind.as_str(), owner)).await?.rows;
            let mut free = self.free_rows(rows).await?;
            free.truncate(most);
            if free.is_empty() || self.hold_all(&free, true).await? {
                return Ok(free.into_iter().filter_map(|row| record_of(kind, row)).collect());
            }
        }
        Err(too_busy())
    }

    /// Releases records that this gateway holds.
    pub async fn free(&self, kind: RecordKind, owner: &str, ids: Vec<String>) -> Result<(), StoreError> {
        let keys: Vec<Key> = ids.into_iter().map(|id| Key::new(kind.as_str(), owner, id)).collect();
        for _ in 0..TRIES {
            let rows = self.engine.get(keys.clone()).await?.into_iter().flatten();
            let held: Vec<Row> = rows.filter(|row| row.holder == self.engine.me()).collect();
            if held.is_empty() || self.hold_all(&held, false).await? {
                return Ok(());
            }
        }
        Err(too_busy())
    }

    /// Returns a number that grows by one for each changed fact of an owner; `None` if there have been no
    /// facts.
    pub async fn changes(&self, owner: &str) -> Result<Option<u64>, StoreError> {
        self.engine.counter(changes_of(owner)).await
    }

    /// Returns a model's vectors of an owner's facts.
    pub async fn vectors(&self, owner: &str, model: &str) -> Result<Vec<FactVector>, StoreError> {
        let rows = self.engine.scan(Scan::owner(VECTORS, owner)).await?.rows;
        let vector = |row: Row| {
            let body: VectorBody = serde_json::from_str(&row.body).ok()?;
            let bytes = STANDARD.decode(body.vector).ok().filter(|_| body.model == model)?;
            let vector = bytes.as_chunks().0.iter().map(|number| f32::from_le_bytes(*number)).collect();
            Some(FactVector { id: row.key.id, revision: body.revision, vector })
        };
        Ok(rows.into_iter().filter_map(vector).collect())
    }

    /// Stores vectors of an owner's facts, replacing earlier ones. A vector of a fact that has been changed
    /// or removed is dropped.
    pub async fn put_vectors(
        &self,
        owner: &str,
        model: &str,
        vectors: Vec<FactVector>,
    ) -> Result<(), StoreError> {
        for some in vectors.chunks(AT_ONCE) {
            let names = some.iter().map(|vector| Key::new(RecordKind::Fact.as_str(), owner, &*vector.id));
            let facts = self.engine.get(names.collect()).await?;
            let mut batch = Batch::default();
            for (FactVector { id, revision, vector }, fact) in some.iter().zip(facts) {
                let Some(fact) = fact.filter(|fact| fact.revision == *revision) else { continue };
                let bytes: Vec<u8> = vector.iter().flat_map(|number| number.to_le_bytes()).collect();
                let (model, vector) = (model.to_owned(), STANDARD.encode(bytes));
                let body = serde_json::json!(VectorBody { model, revision: *revision, vector }).to_string();
                batch.require(&fact.key, Some(&fact));
                batch.writes.push(Write::Put(NewRow::new(Key::new(VECTORS, owner, &**id), body)));
            }
            // If a fact has changed meanwhile, its vector and those beside it are made again the next time.
            self.engine.commit(batch).await?;
        }
        Ok(())
    }

    async fn row(&self, key: &Key) -> Result<Option<Row>, StoreError> {
        Ok(self.engine.get(vec![key.clone()]).await?.pop().flatten())
    }

    async fn scan(&self, kind: RecordKind, scan: Scan) -> Result<Vec<Record>, StoreError> {
        let rows = self.engine.scan(scan).await?.rows;
        Ok(rows.into_iter().filter_map(|row| record_of(kind, row)).collect())
    }

    /// Returns the rows that no running gateway holds.
    async fn free_rows(&self, rows: Vec<Row>) -> Result<Vec<Row>, StoreError> {
        let holders: HashSet<u32> = rows.iter().map(|row| row.holder).collect();
        let running = self.engine.running(holders).await?;
        Ok(rows.into_iter().filter(|row| !running.contains(&row.holder)).collect())
    }

    async fn hold_all(&self, rows: &[Row], held: bool) -> Result<bool, StoreError> {
        let mut batch = Batch::default();
        rows.iter().for_each(|row| batch.hold(row, held));
        self.engine.commit(batch).await
    }

    /// Adds to a batch what goes with a change of a record: a fact's vector no longer fits, and gateways with
    /// the owner's facts in memory read them again.
    fn changed(&self, batch: &mut Batch, key: &Key) {
        if key.table == RecordKind::Fact.as_str() {
            batch.writes.push(Write::Delete(Key { table: VECTORS, ..key.clone() }));
            batch.writes.push(Write::Bump(changes_of(&key.owner)));
        }
    }

    fn delete(&self, batch: &mut Batch, row: &Row) {
        batch.delete(row);
        self.changed(batch, &row.key);
    }

    async fn delete_with_parts(&self, kind: RecordKind, row: &Row) -> Result<bool, StoreError> {
        let mut batch = Batch::default();
        self.delete(&mut batch, row);
        if matches!(kind, RecordKind::Parked | RecordKind::Script) {
            let parts = self.engine.scan(Scan::owner(kind.as_str(), &row.key.id).heads()).await?.rows;
            parts.iter().for_each(|part| self.delete(&mut batch, part));
        }
        self.engine.commit(batch).await
    }
}

fn changes_of(owner: &str) -> String {
    format!("changes:{owner}")
}

fn names(kinds: &[RecordKind]) -> Vec<Table> {
    kinds.iter().map(|kind| kind.as_str()).collect()
}

fn kind_of(kinds: &[RecordKind], row: &Row) -> Option<RecordKind> {
    kinds.iter().copied().find(|kind| kind.as_str() == row.key.table)
}

fn key_of(record: &Record) -> Key {
    Key::new(record.kind.as_str(), &*record.owner, &*record.id)
}

/// Returns the record of a row; `None` if its body is no JSON.
fn record_of(kind: RecordKind, row: Row) -> Option<Record> {
    let Row { key: Key { owner, id, .. }, body, due, revision, put_ms, .. } = row;
    let body: Value = match serde_json::from_str(&body) {
        Ok(body) => body,
        Err(error) => {
            tracing::warn!(%error, %id, kind = kind.as_str(), "a record cannot be read");
            return None;
        }
    };
    Some(Record { kind, owner, id, body, due_ms: due, revision, put_ms })
}

#[cfg(test)]
mod tests;
