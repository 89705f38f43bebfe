//! Results that were too large to show, and jobs with their results. Written once for both engines.
//!
//! An entry is a row; its value is apart from it, as a large value of the engine. While the engine cannot
//! write, entries are kept in memory, and are written once it can.

mod room;
mod shelf;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::OnceCell;

pub(crate) use self::shelf::{ENTRIES, TABLES};
use self::shelf::{NewEntry, Shelf};
use super::{
    JobRow, KeptCounts, KeptRow, Lifespan, Retention, Share, StoreError,
    engine::{Blob, Engine, Scan},
    formats,
    lease::LeaseHolder,
    sqlite::{SqliteDb, SqliteEngine},
};

/// The maximum size kept in memory while the engine cannot write, in bytes.
const MOST_IN_MEMORY: u64 = 64 << 20;
/// How soon it is tried to write what is in memory. The time doubles up to the longest.
const AGAIN: Duration = Duration::from_millis(300);
const LONGEST_AGAIN: Duration = Duration::from_secs(5);

/// The results and jobs of the gateways with the same store.
#[derive(Debug)]
pub(crate) struct Kept {
    main: Shelf,
    /// Makes the memory beside the engine, when a write fails.
    holder: LeaseHolder,
    memory: OnceCell<Shelf>,
    /// The entries that are only in memory.
    unwritten: Mutex<BTreeMap<String, (NewEntry, Share)>>,
    /// Whether a task tries to write them.
    is_tried: AtomicBool,
}

impl Kept {
    pub(crate) fn new(engine: Arc<dyn Engine>, retention: Retention, holder: LeaseHolder) -> Arc<Self> {
        Arc::new(Self {
            main: Shelf::new(engine, retention),
            holder,
            memory: OnceCell::new(),
            unwritten: Mutex::default(),
            is_tried: AtomicBool::new(false),
        })
    }

    pub(crate) async fn put_result(
        self: &Arc<Self>,
        id: &str,
        owner: &str,
        share: Share,
        value: Arc<Value>,
    ) -> Result<Lifespan, StoreError> {
        let entry = NewEntry { id: id.into(), owner: owner.into(), job: None };
        self.put(entry, share, Some(value)).await
    }

    pub(crate) async fn put_job(
        self: &Arc<Self>,
        job: JobRow,
        share: Share,
        result: Option<Arc<Value>>,
    ) -> Result<Lifespan, StoreError> {
        let entry = NewEntry { id: job.id.clone(), owner: job.owner.clone(), job: Some(job) };
        self.put(entry, share, result).await
    }

    async fn put(
        self: &Arc<Self>,
        entry: NewEntry,
        share: Share,
        value: Option<Arc<Value>>,
    ) -> Result<Lifespan, StoreError> {
        let value = value.map(Blob::Json);
        let error = match self.main.put(&entry, &share, value.clone()).await {
            Ok(()) => {
                // An earlier state in memory would hide it.
                self.written(&entry).await?;
                return Ok(if self.main.engine.lasts() {
                    Lifespan::AsConfigured
                } else {
                    Lifespan::UntilEnd
                });
            }
            Err(error @ StoreError::NewerValue { .. }) => return Err(error),
            // It is the memory already.
            Err(error) if !self.main.engine.lasts() => return Err(error),
            Err(error) => error,
        };
        if self.unwritten.lock().is_empty() {
            tracing::warn!(%error, "results and tasks are kept in memory until they can be written again");
        }
        self.memory().await.put(&entry, &share, value).await?;
        if !matches!(error, StoreError::TooLarge { .. }) {
            self.unwritten.lock().insert(entry.id.clone(), (entry, share));
            self.write_later();
        }
        Ok(Lifespan::UntilEnd)
    }

    async fn memory(&self) -> &Shelf {
        let retention = self.main.retention;
        let retention = Retention { bytes: retention.bytes.min(MOST_IN_MEMORY), ..retention };
        let engine = || SqliteEngine::lazy(None, &formats::KEPT, self.holder.clone());
        self.memory.get_or_init(async || Shelf::new(Arc::new(engine()), retention)).await
    }

    /// Forgets the state in memory of an entry that the engine has by now.
    async fn written(&self, entry: &NewEntry) -> Result<(), StoreError> {
        self.unwritten.lock().remove(&entry.id);
        match self.memory.get() {
            Some(memory) => memory.remove(&entry.id, &entry.owner, true).await.map(drop),
            None => Ok(()),
        }
    }

    /// Tries to write what is in memory, until nothing is left.
    fn write_later(self: &Arc<Self>) {
        if self.is_tried.swap(true, Ordering::AcqRel) {
            return;
        }
        let kept = Arc::downgrade(self);
        tokio::spawn(async move {
            let mut pause = AGAIN;
            loop {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_AGAIN);
                let Some(kept) = kept.upgrade() else { return };
                if let Err(error) = kept.write_all().await {
                    tracing::debug!(%error, "results and tasks still wait in memory");
                }
                let unwritten = kept.unwritten.lock();
                if unwritten.is_empty() {
                    tracing::info!("results and tasks are written again");
                    kept.is_tried.store(false, Ordering::Release);
                    return;
                }
            }
        });
    }

    /// Writes one entry after another, until one fails.
    async fn write_all(&self) -> Result<(), StoreError> {
        let all: Vec<(NewEntry, Share)> = self.unwritten.lock().values().cloned().collect();
        for (entry, share) in all {
            // It was removed, or a job has ended meanwhile, and then its end is still to be written.
            let is_latest = || self.unwritten.lock().get(&entry.id).is_some_and(|(now, _)| *now == entry);
            if !is_latest() {
                continue;
            }
            let text = self.memory().await.text(&entry.id, &entry.owner).await?;
            // Otherwise memory had no room for it, or it has expired.
            if text.is_some() || entry.job.is_some() {
                match self.main.put(&entry, &share, text.map(Blob::Text)).await {
                    // A newer Nonet's entry stays, and this one is left in memory.
                    Err(StoreError::NewerValue { .. }) => {
                        self.unwritten.lock().remove(&entry.id);
                        continue;
                    }
                    written => written?,
                }
            }
            if is_latest() {
                self.written(&entry).await?;
            }
        }
        Ok(())
    }

    pub(crate) async fn text(&self, id: &str, owner: &str) -> Result<Option<String>, StoreError> {
        if let Some(memory) = self.memory.get()
            && let Some(text) = memory.text(id, owner).await?
        {
            return Ok(Some(text));
        }
        self.main.text(id, owner).await
    }

    pub(crate) async fn job(&self, id: &str, owner: &str) -> Result<Option<JobRow>, StoreError> {
        if let Some(memory) = self.memory.get()
            && let Some(job) = memory.job(id, owner).await?
        {
            return Ok(Some(job));
        }
        self.main.job(id, owner).await
    }

    pub(crate) async fn jobs(&self, owner: &str, limit: usize) -> Result<Vec<JobRow>, StoreError> {
        let mut jobs = self.main.jobs(owner).await?;
        if let Some(memory) = self.memory.get() {
            let newer = memory.jobs(owner).await?;
            jobs.retain(|job| newer.iter().all(|newer| newer.id != job.id));
            jobs.extend(newer);
        }
        // The rows come newest first, and the sort is stable.
        jobs.sort_by_key(|job| std::cmp::Reverse(job.started_ms));
        jobs.truncate(limit);
        Ok(jobs)
    }

    pub(crate) async fn results(&self, limit: usize) -> Result<Vec<KeptRow>, StoreError> {
        let mut results = self.main.results(limit).await?;
        if let Some(memory) = self.memory.get() {
            results.extend(memory.results(limit).await?);
            results.sort_by_key(|result| std::cmp::Reverse(result.at_ms));
            results.truncate(limit);
        }
        Ok(results)
    }

    pub(crate) async fn remove(&self, id: &str, owner: &str) -> Result<bool, StoreError> {
        let in_memory = match self.memory.get() {
            Some(memory) => memory.remove(id, owner, false).await?,
            None => false,
        };
        if in_memory {
            self.unwritten.lock().remove(id);
        }
        Ok(self.main.remove(id, owner, false).await? || in_memory)
    }

    pub(crate) async fn ask_to_cancel(&self, id: &str, owner: &str) -> Result<(), StoreError> {
        self.main.ask_to_cancel(id, owner).await
    }

    pub(crate) async fn to_cancel(&self) -> Result<Vec<String>, StoreError> {
        self.main.to_cancel().await
    }

    pub(crate) async fn sweep(&self) -> Result<(), StoreError> {
        if let Some(memory) = self.memory.get() {
            memory.sweep().await?;
        }
        if self.main.engine.is_used() { self.main.sweep().await } else { Ok(()) }
    }

    pub(crate) async fn counts(&self) -> Result<Option<KeptCounts>, StoreError> {
        if !self.main.engine.is_used() {
            return Ok(None);
        }
        let mut counts = self.main.counts().await?;
        if let Some(memory) = self.memory.get() {
            let more = memory.counts().await?;
            counts.entries += more.entries;
            counts.bytes += more.bytes;
        }
        Ok(Some(counts))
    }
}

/// Returns how much is in a file. Blocks.
pub(crate) fn counts(db: &SqliteDb) -> Result<KeptCounts, StoreError> {
    let entries = db.scan(&Scan::table(ENTRIES))?.rows;
    let bytes = shelf::tally_of(entries.iter()).values().map(|(bytes, _)| *bytes).sum();
    Ok(KeptCounts { entries: entries.len() as u64, bytes })
}

#[cfg(test)]
mod tests;
