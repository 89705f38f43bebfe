//! The entries in one engine.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use super::{
    super::{
        JobRow, JobState, KeptCounts, KeptRow, Retention, Share, StoreError,
        engine::{Batch, Blob, BlobName, Engine, Key, NewRow, Row, Scan, TRIES, Table, too_busy},
        lease::NOBODY,
    },
    room::Room,
};

/// Results and jobs: the order is that in which they ended.
pub(crate) const ENTRIES: Table = "kept";
/// What each client's ended entries take: one row.
const TALLY: Table = "kept_tally";
/// Jobs that other gateways want cancelled: the owner is the number of the gateway that runs the job.
const CANCELS: Table = "cancel";
/// All of them.
pub(crate) const TABLES: [Table; 3] = [ENTRIES, TALLY, CANCELS];
/// How much longer a value lives than its entry.
const DAY: Duration = Duration::from_secs(24 * 3_600);
/// The longest time that anything is kept.
const LONGEST_AGE: Duration = Duration::from_secs(400 * 24 * 3_600);
/// How long a gateway may take to hear that a job is to be cancelled, in milliseconds.
const CANCEL_MS: u64 = 60_000;
/// How many rows are read at a time.
const AT_ONCE: usize = 100;
/// How many times a value is read again if it is replaced meanwhile.
const READS: usize = 3;
/// The fraction of the byte limit that stays free in a file for the next entries: freeing space costs as much
/// as writing it.
const SPARE: u64 = 8;

/// A result or a job to store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NewEntry {
    pub id: String,
    pub owner: String,
    pub job: Option<JobRow>,
}

/// An entry without its name.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct EntryBody {
    /// Only a job has one.
    label: Option<String>,
    state: EntryState,
    started_ms: u64,
    ended_ms: Option<u64>,
    /// The size of the value.
    pub bytes: u64,
    blob: Option<String>,
    /// The client whose quota it counts against.
    pub share: String,
    /// The engine's clock when it was stored.
    pub aged_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum EntryState {
    Working,
    Done,
    Failed,
    Cancelled,
}

impl EntryBody {
    fn new(entry: &NewEntry, share: &Share, value: Option<&BlobName>, aged_ms: u64) -> Self {
        let (label, started_ms, state) = match &entry.job {
            Some(job) => (Some(job.label.clone()), job.started_ms, job.state),
            None => (None, 0, JobState::Done { ended_ms: 0, failed: false }),
        };
        let (state, ended_ms) = match state {
            JobState::Working => (EntryState::Working, None),
            JobState::Done { ended_ms, failed: false } => (EntryState::Done, Some(ended_ms)),
            JobState::Done { ended_ms, failed: true } => (EntryState::Failed, Some(ended_ms)),
            JobState::Cancelled { ended_ms } => (EntryState::Cancelled, Some(ended_ms)),
        };
        Self {
            label,
            state,
            started_ms,
            ended_ms,
            bytes: value.map_or(0, |value| value.bytes),
            blob: value.map(|value| value.name.clone()),
            share: share.of.to_string(),
            aged_ms,
        }
    }

    pub(super) fn of(row: &Row) -> Option<Self> {
        let unreadable = |error: &_| tracing::warn!(id = row.key.id, %error, "an entry cannot be read");
        serde_json::from_str(&row.body).inspect_err(unreadable).ok()
    }

    pub(super) fn is_working(&self) -> bool {
        self.state == EntryState::Working
    }

    pub(super) fn value(&self) -> Option<BlobName> {
        Some(BlobName { name: self.blob.clone()?, bytes: self.bytes })
    }
}

/// What a client's ended entries take: their bytes and their number. In all, what every client's do.
pub(super) type Tally = BTreeMap<String, (u64, u64)>;

/// The entries of an engine, and how much may be kept in it.
#[derive(Debug)]
pub(super) struct Shelf {
    pub engine: Arc<dyn Engine>,
    pub retention: Retention,
    /// Of several puts of this process, one at a time, so that they do not get into each other's way.
    turn: tokio::sync::Mutex<()>,
}

impl Shelf {
    pub(super) fn new(engine: Arc<dyn Engine>, retention: Retention) -> Self {
        let retention = Retention { age: retention.age.min(LONGEST_AGE), ..retention };
        Self { engine, retention, turn: tokio::sync::Mutex::default() }
    }

    /// Stores an entry with its value, replacing the one of its name, and removes entries to make room. A
    /// running job replaces nothing: it may have ended before its start was stored.
    pub(super) async fn put(
        &self,
        entry: &NewEntry,
        share: &Share,
        value: Option<Blob>,
    ) -> Result<(), StoreError> {
        let aged_ms = self.engine.age_ms().await?;
        let value = match value {
            Some(value) => Some(self.engine.put_blob(value, self.retention.age + DAY).await?),
            None => None,
        };
        let key = Key::new(ENTRIES, &*entry.owner, &*entry.id);
        let body = EntryBody::new(entry, share, value.as_ref(), aged_ms);
        let dropped = {
            let _turn = self.turn.lock().await;
            self.put_row(key, entry.job.is_some(), body, share.bytes).await
        };
        match dropped {
            Ok(dropped) => self.drop_values(dropped).await,
            Err(error) => {
                // It may have been stored in spite of the error: then it is missing its value, as after a
                // fault of the disk.
                self.engine.drop_blobs(value.into_iter().collect()).await?;
                Err(error)
            }
        }
    }

    /// Writes the row. Returns the values of what was replaced and removed for it.
    async fn put_row(
        &self,
        key: Key,
        is_job: bool,
        body: EntryBody,
        most_of_share: u64,
    ) -> Result<Vec<BlobName>, StoreError> {
        let text = serde_json::json!(body).to_string();
        let new = NewRow { held: is_job, newest: true, ..NewRow::new(key.clone(), text) };
        for _ in 0..TRIES {
            let [old, tally] = self.read([key.clone(), tally_key()]).await?;
            let mut batch = Batch::default();
            batch.put(new.clone(), old.as_ref());
            let mut dropped = Vec::new();
            if body.is_working() {
                if old.is_some() {
                    return Ok(body.value().into_iter().collect());
                }
            } else {
                let mut room = Room::new(self, self.tally(tally.as_ref()).await?, Some(&key));
                if let Some(old) = old.as_ref().and_then(EntryBody::of) {
                    room.leave(&old);
                    dropped.extend(old.value());
                }
                room.enter(&body);
                let entries = self.engine.count(ENTRIES, None).await? + usize::from(old.is_none());
                room.make(body.aged_ms, Some((&body.share, most_of_share)), entries).await?;
                dropped.extend(room.write(&mut batch, tally.as_ref()));
            }
            if self.engine.commit(batch).await? {
                return Ok(dropped);
            }
        }
        Err(too_busy())
    }

    async fn read<const N: usize>(&self, keys: [Key; N]) -> Result<[Option<Row>; N], StoreError> {
        self.engine.get(keys.to_vec()).await?.try_into().map_err(|_| StoreError::Unusable)
    }

    /// Returns the tally as stored, or counts again if there is none.
    async fn tally(&self, stored: Option<&Row>) -> Result<Tally, StoreError> {
        match stored.and_then(|row| serde_json::from_str(&row.body).ok()) {
            Some(tally) => Ok(tally),
            None => Ok(tally_of(self.engine.scan(Scan::table(ENTRIES)).await?.rows.iter())),
        }
    }

    async fn drop_values(&self, values: Vec<BlobName>) -> Result<(), StoreError> {
        if values.is_empty() {
            return Ok(());
        }
        self.engine.drop_blobs(values).await?;
        self.engine.tidy(self.retention.bytes / SPARE).await
    }

    /// Returns the value of an entry as compact JSON, which takes as much memory as it is long. `None` if the
    /// entry has no value, or, with a warning, if the value cannot be read.
    pub(super) async fn text(&self, id: &str, owner: &str) -> Result<Option<String>, StoreError> {
        let mut earlier = None;
        for _ in 0..READS {
            let [row] = self.read([Key::new(ENTRIES, owner, id)]).await?;
            let value = row.as_ref().and_then(EntryBody::of).and_then(|entry| entry.value());
            let Some(value) = value.filter(|value| earlier.as_ref() != Some(value)) else { break };
            if let Some(bytes) = self.engine.blob(value.clone()).await? {
                let unreadable = |error: &_| tracing::warn!(id, %error, "a kept value cannot be read");
                return Ok(String::from_utf8(bytes).inspect_err(unreadable).ok());
            }
            // The value was removed or replaced.
            earlier = Some(value);
        }
        if let Some(value) = earlier {
            tracing::warn!(id, bytes = value.bytes, "a kept value is missing");
        }
        Ok(None)
    }

    /// Returns the job with this handle.
    pub(super) async fn job(&self, id: &str, owner: &str) -> Result<Option<JobRow>, StoreError> {
        let [row] = self.read([Key::new(ENTRIES, owner, id)]).await?;
        Ok(self.jobs_of(row.into_iter().collect()).await?.pop())
    }

    /// Returns an owner's jobs, latest end first.
    pub(super) async fn jobs(&self, owner: &str) -> Result<Vec<JobRow>, StoreError> {
        let scan = Scan { newest_first: true, ..Scan::owner(ENTRIES, owner) };
        self.jobs_of(self.engine.scan(scan).await?.rows).await
    }

    async fn jobs_of(&self, rows: Vec<Row>) -> Result<Vec<JobRow>, StoreError> {
        let jobs: Vec<(Row, EntryBody)> =
            rows.into_iter().filter_map(|row| EntryBody::of(&row).map(|entry| (row, entry))).collect();
        let running = self.engine.running(jobs.iter().map(|(row, _)| row.holder).collect()).await?;
        let job = |(row, entry): (Row, EntryBody)| {
            let EntryBody { label, state, started_ms, ended_ms, .. } = entry;
            let state = match (state, ended_ms) {
                (EntryState::Working, _) => JobState::Working,
                (EntryState::Done, Some(ended_ms)) => JobState::Done { ended_ms, failed: false },
                (EntryState::Failed, Some(ended_ms)) => JobState::Done { ended_ms, failed: true },
                (EntryState::Cancelled, Some(ended_ms)) => JobState::Cancelled { ended_ms },
                _ => return None,
            };
            let Key { id, owner, .. } = row.key;
            let leased = running.contains(&row.holder);
            Some(JobRow { id, owner, label: label?, state, started_ms, leased })
        };
        Ok(jobs.into_iter().filter_map(job).collect())
    }

    /// Returns at most `limit` results of all owners, latest first.
    pub(super) async fn results(&self, limit: usize) -> Result<Vec<KeptRow>, StoreError> {
        let result = |row: Row| {
            let entry = EntryBody::of(&row).filter(|entry| entry.label.is_none())?;
            let Key { id, owner, .. } = row.key;
            Some(KeptRow { id, owner, bytes: entry.bytes, at_ms: row.put_ms })
        };
        let (mut results, mut after) = (Vec::new(), None);
        while results.len() < limit {
            let scan = Scan { newest_first: true, after, ..Scan::table(ENTRIES) }.limit(AT_ONCE);
            let rows = self.engine.scan(scan).await?.rows;
            let Some(last) = rows.last() else { break };
            after = Some(last.number);
            results.extend(rows.into_iter().filter_map(result));
        }
        results.truncate(limit);
        Ok(results)
    }

    /// Removes an owner's entry, if it has ended or `always`. Returns false if there is none.
    pub(super) async fn remove(&self, id: &str, owner: &str, always: bool) -> Result<bool, StoreError> {
        for _ in 0..TRIES {
            let [row, tally] = self.read([Key::new(ENTRIES, owner, id), tally_key()]).await?;
            let Some(row) = row else { return Ok(false) };
            let entry = EntryBody::of(&row);
            if !always && entry.as_ref().is_some_and(EntryBody::is_working) {
                return Ok(false);
            }
            let mut room = Room::new(self, self.tally(tally.as_ref()).await?, None);
            room.remove(row, entry);
            let mut batch = Batch::default();
            let dropped = room.write(&mut batch, tally.as_ref());
            if self.engine.commit(batch).await? {
                self.drop_values(dropped).await?;
                return Ok(true);
            }
        }
        Err(too_busy())
    }

    /// Asks the gateway that runs a job to cancel it.
    pub(super) async fn ask_to_cancel(&self, id: &str, owner: &str) -> Result<(), StoreError> {
        let [row] = self.read([Key::new(ENTRIES, owner, id)]).await?;
        let Some(row) = row.filter(|row| EntryBody::of(row).is_some_and(|entry| entry.is_working())) else {
            return Ok(());
        };
        if row.holder != NOBODY && self.engine.running([row.holder].into()).await?.contains(&row.holder) {
            let mut batch = Batch::default();
            batch.put(NewRow::new(Key::new(CANCELS, row.holder.to_string(), id), String::new()), None);
            // If it is not written, it was asked before.
            self.engine.commit(batch).await?;
        }
        Ok(())
    }

    /// Returns this gateway's jobs that others want cancelled, each once.
    pub(super) async fn to_cancel(&self) -> Result<Vec<String>, StoreError> {
        let asked = Scan::owner(CANCELS, &self.engine.me().to_string());
        let rows = self.engine.scan(asked).await?.rows;
        let mut batch = Batch::default();
        rows.iter().for_each(|row| batch.delete(row));
        if !batch.is_empty() {
            self.engine.commit(batch).await?;
        }
        Ok(rows.into_iter().map(|row| row.key.id).collect())
    }

    /// Returns how much is stored, for all owners.
    pub(super) async fn counts(&self) -> Result<KeptCounts, StoreError> {
        let [stored] = self.read([tally_key()]).await?;
        let bytes = self.tally(stored.as_ref()).await?.values().map(|(bytes, _)| *bytes).sum();
        Ok(KeptCounts { entries: self.engine.count(ENTRIES, None).await? as u64, bytes })
    }

    /// Removes expired entries, jobs of that age whose gateway has ended, and entries beyond the limits; and
    /// counts again.
    pub(super) async fn sweep(&self) -> Result<(), StoreError> {
        let now_ms = self.engine.age_ms().await?;
        let _turn = self.turn.lock().await;
        for _ in 0..TRIES {
            let [stored] = self.read([tally_key()]).await?;
            let rows = self.engine.scan(Scan::table(ENTRIES)).await?.rows;
            let mut room = Room::new(self, tally_of(rows.iter()), None);
            let running = self.engine.running(rows.iter().map(|row| row.holder).collect()).await?;
            let entries = rows.len();
            for row in rows {
                let entry = EntryBody::of(&row);
                let is_lost = |entry: &EntryBody| {
                    entry.is_working() && room.is_old(entry, now_ms) && !running.contains(&row.holder)
                };
                if entry.as_ref().is_none_or(is_lost) {
                    room.remove(row, entry);
                }
            }
            room.make(now_ms, None, entries).await?;
            let mut batch = Batch::default();
            let dropped = room.write(&mut batch, stored.as_ref());
            if batch.is_empty() || self.engine.commit(batch).await? {
                self.drop_cancels().await?;
                self.engine.drop_blobs(dropped).await?;
                return self.engine.tidy(self.retention.bytes / SPARE).await;
            }
        }
        Err(too_busy())
    }

    /// Drops requests to cancel that nobody has read, because their gateway has ended.
    async fn drop_cancels(&self) -> Result<(), StoreError> {
        let rows = self.engine.scan(Scan::table(CANCELS).heads()).await?.rows;
        let newest = rows.iter().map(|row| row.put_ms).max().unwrap_or_default();
        let mut batch = Batch::default();
        rows.iter().filter(|row| row.put_ms + CANCEL_MS < newest).for_each(|row| batch.delete(row));
        if batch.is_empty() { Ok(()) } else { self.engine.commit(batch).await.map(drop) }
    }
}

fn tally_key() -> Key {
    Key::new(TALLY, "", "")
}

/// Returns the row of a tally, unless it is stored like that.
pub(super) fn tally_row(tally: &Tally, stored: Option<&Row>) -> Option<NewRow> {
    let body = serde_json::json!(tally).to_string();
    stored.is_none_or(|row| row.body != body).then(|| NewRow::new(tally_key(), body))
}

pub(super) fn tally_of<'a>(rows: impl Iterator<Item = &'a Row>) -> Tally {
    let mut tally = Tally::new();
    for entry in rows.filter_map(EntryBody::of).filter(|entry| !entry.is_working()) {
        let (bytes, entries) = tally.entry(entry.share).or_default();
        (*bytes, *entries) = (*bytes + entry.bytes, *entries + 1);
    }
    tally
}
