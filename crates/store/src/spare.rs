//! Results and jobs in memory, while the engine cannot store them.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokio::sync::OnceCell;

use super::{JobRow, KeptCounts, KeptDb, KeptRow, LeaseHolder, Lifespan, Retention, StoreError, run};

/// The maximum size kept in memory, in bytes.
const MOST_BYTES: u64 = 64 << 20;

/// The memory next to an engine, created when a write fails.
#[derive(Debug)]
pub(super) struct SpareStore {
    retention: Retention,
    holder: LeaseHolder,
    db: OnceCell<Option<Arc<KeptDb>>>,
    /// Whether the last write to the engine failed.
    is_failing: AtomicBool,
}

impl SpareStore {
    /// Returns an empty spare, which takes no memory yet.
    pub(crate) fn new(retention: Retention, holder: LeaseHolder) -> Self {
        let retention = Retention { bytes: retention.bytes.min(MOST_BYTES), ..retention };
        Self { retention, holder, db: OnceCell::new(), is_failing: AtomicBool::new(false) }
    }

    /// Notes that the engine has stored this entry. Removes an earlier state from memory, which would hide it.
    pub(crate) async fn written(&self, id: &str) -> Result<(), StoreError> {
        if self.is_failing.swap(false, Ordering::Relaxed) {
            tracing::info!("results and tasks are written again");
        }
        match self.db() {
            Some(db) => {
                let id = id.to_owned();
                run(db, move |db| db.remove(&id)).await
            }
            None => Ok(()),
        }
    }

    /// Keeps an entry that could not be written because of `error`.
    pub(crate) async fn put(
        &self,
        error: StoreError,
        work: impl FnOnce(&KeptDb) -> Result<u64, StoreError> + Send + 'static,
    ) -> Result<Lifespan, StoreError> {
        if !self.is_failing.swap(true, Ordering::Relaxed) {
            tracing::warn!(%error, "results and tasks are kept in memory until they can be written again");
        }
        let open = async || {
            let (retention, holder) = (self.retention, self.holder.clone());
            let failed = |error: &_| tracing::error!(%error, "results and tasks cannot be kept in memory");
            let open = move || KeptDb::in_memory(retention, holder).inspect_err(failed).ok().map(Arc::new);
            tokio::task::spawn_blocking(open).await.ok().flatten()
        };
        let db = self.db.get_or_init(open).await.clone().ok_or(error)?;
        run(db, work).await.map(|_| Lifespan::UntilEnd)
    }

    /// Reads from memory; `None` if memory is empty.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&KeptDb) -> Result<Option<T>, StoreError> + Send + 'static,
    ) -> Result<Option<T>, StoreError> {
        match self.db() {
            Some(db) => run(db, work).await,
            None => Ok(None),
        }
    }

    /// Adds an owner's jobs in memory to the engine's, latest start first.
    pub(crate) async fn with_jobs(
        &self,
        mut jobs: Vec<JobRow>,
        owner: String,
        limit: usize,
    ) -> Result<Vec<JobRow>, StoreError> {
        if let Some(db) = self.db() {
            let newer = run(db, move |db| db.jobs(&owner, limit)).await?;
            jobs.retain(|job| newer.iter().all(|newer| newer.id != job.id));
            jobs.extend(newer);
            jobs.sort_by_key(|job| std::cmp::Reverse(job.started_ms));
            jobs.truncate(limit);
        }
        Ok(jobs)
    }

    /// Adds the results in memory to the engine's, latest first.
    pub(crate) async fn with_results(
        &self,
        mut results: Vec<KeptRow>,
        limit: usize,
    ) -> Result<Vec<KeptRow>, StoreError> {
        if let Some(db) = self.db() {
            results.extend(run(db, move |db| db.results(limit)).await?);
            results.sort_by_key(|result| std::cmp::Reverse(result.at_ms));
            results.truncate(limit);
        }
        Ok(results)
    }

    /// Removes an ended entry. Returns false if it is not in memory.
    pub(crate) async fn remove(&self, id: &str, owner: &str) -> Result<bool, StoreError> {
        let (id, owner) = (id.to_owned(), owner.to_owned());
        match self.db() {
            Some(db) => run(db, move |db| db.remove_ended(&id, &owner)).await,
            None => Ok(false),
        }
    }

    /// Removes expired entries.
    pub(crate) async fn tidy(&self) -> Result<(), StoreError> {
        match self.db() {
            Some(db) => run(db, KeptDb::tidy).await,
            None => Ok(()),
        }
    }

    /// Adds the counts in memory.
    pub(crate) async fn with_counts(&self, mut counts: KeptCounts) -> Result<KeptCounts, StoreError> {
        if let Some(db) = self.db() {
            let more = run(db, KeptDb::counts).await?;
            counts.entries += more.entries;
            counts.bytes += more.bytes;
        }
        Ok(counts)
    }

    fn db(&self) -> Option<Arc<KeptDb>> {
        self.db.get().cloned().flatten()
    }
}
