//! The store in SQLite files.

use std::{fmt::Debug, path::PathBuf, sync::Arc};

use nonet_base::clock::Clock;
use nonet_search::Outcome;
use serde_json::Value;

use super::{
    Agenda, FactVector, JobRow, KeptCounts, KeptDb, KeptRow, LeaseHolder, Lifespan, NamedFigures, NewRecord,
    OpenDb, OutcomesDb, Record, RecordKind, RecordQuota, Records, RecordsDb, Retention, Share, SpareStore,
    Store, StoreError, StoreFuture, run,
};

/// The files of a folder, each opened on first use, and again if it was removed since. SQLite blocks, so the work runs on the runtime's blocking threads.
///
/// Without a usable folder, results, jobs and records are kept in memory, and outcomes and figures not at all. While the disk
/// is full, results and jobs are kept in memory next to the file.
#[derive(Debug)]
pub struct SqliteStore {
    folder: Option<PathBuf>,
    retention: Retention,
    pub(super) holder: LeaseHolder,
    kept: OpenDb<KeptDb>,
    /// Results and jobs that could not be written to the file.
    spare: SpareStore,
    records: OpenDb<RecordsDb>,
    outcomes: OpenDb<OutcomesDb>,
}

impl SqliteStore {
    /// Returns the store in a folder. Accesses no file yet.
    pub fn new(folder: Option<PathBuf>, retention: Retention, clock: Clock) -> Self {
        let holder = LeaseHolder::new(clock);
        let spare = SpareStore::new(retention, holder.clone());
        let (kept, records, outcomes) = (OpenDb::default(), OpenDb::default(), OpenDb::default());
        Self { folder, retention, holder, kept, spare, records, outcomes }
    }

    /// Returns the same store for gateways of this configuration, however its path is written.
    pub fn of_config(mut self, config: &str) -> Self {
        self.holder.config = config.into();
        self
    }

    async fn kept(&self) -> Result<Arc<KeptDb>, StoreError> {
        let (folder, retention, holder) = (self.folder.clone(), self.retention, self.holder.clone());
        let open = move || open_kept(folder, retention, holder);
        self.kept.get_soon(open).await.ok_or(StoreError::Unusable)
    }

    /// Writes to the file, or to memory if the file cannot be written.
    async fn put_kept(
        &self,
        id: String,
        work: impl Fn(&KeptDb) -> Result<u64, StoreError> + Send + Sync + 'static,
    ) -> Result<Lifespan, StoreError> {
        let (db, work) = (self.kept().await?, Arc::new(work));
        let on_file = work.clone();
        // A store without a folder cannot fail to write.
        let is_file = db.is_file();
        let as_asked =
            if is_file || self.folder.is_none() { Lifespan::AsConfigured } else { Lifespan::UntilEnd };
        match run(db, move |db| on_file(db)).await {
            Ok(_) => {
                self.spare.written(&id).await?;
                Ok(as_asked)
            }
            Err(error) if !is_file => Err(error),
            Err(error) => self.spare.put(error, move |db| work(db)).await,
        }
    }

    /// Reads from memory what could not be written to the file, else from the file.
    async fn read_kept<T: Send + 'static>(
        &self,
        work: impl Fn(&KeptDb) -> Result<Option<T>, StoreError> + Send + Sync + 'static,
    ) -> Result<Option<T>, StoreError> {
        let work = Arc::new(work);
        let in_memory = work.clone();
        match self.spare.read(move |db| in_memory(db)).await? {
            Some(found) => Ok(Some(found)),
            None => run(self.kept().await?, move |db| work(db)).await,
        }
    }

    async fn with_records<T: Send + 'static>(
        &self,
        work: impl FnOnce(&RecordsDb) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (folder, holder) = (self.folder.clone(), self.holder.clone());
        let db = self.records.get_soon(move || open_records(folder, holder)).await;
        run(db.ok_or(StoreError::Unusable)?, work).await
    }

    /// Returns whether there may be records: the file is open, or it exists.
    fn has_records(&self) -> bool {
        self.records.is_used() || self.folder.as_deref().is_some_and(RecordsDb::exists)
    }

    /// Runs work on the outcomes and figures; returns `None` without a file for them.
    async fn with_outcomes<T: Send + 'static>(
        &self,
        work: impl FnOnce(&OutcomesDb) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<Option<T>, StoreError> {
        let folder = self.folder.clone();
        let open = move || {
            let warn = |error: &_| tracing::warn!(%error, "search outcomes and figures of tools are not kept beyond this run");
            OutcomesDb::open(&folder?).inspect_err(warn).ok()
        };
        match self.outcomes.get_soon(open).await {
            Some(db) => run(db, work).await.map(Some),
            None => Ok(None),
        }
    }
}

/// Opens the file, or the same in memory if that fails.
fn open_kept(folder: Option<PathBuf>, retention: Retention, holder: LeaseHolder) -> Option<KeptDb> {
    if let Some(folder) = folder {
        match KeptDb::open(&folder, retention, holder.clone()) {
            Ok(db) => return Some(db),
            Err(error) => tracing::warn!(%error, "large results and tasks are kept in memory only"),
        }
    }
    let failed = |error: &_| tracing::error!(%error, "large results and tasks cannot be kept");
    KeptDb::in_memory(retention, holder).inspect_err(failed).ok()
}

/// Opens the file, or the same in memory if that fails.
fn open_records(folder: Option<PathBuf>, holder: LeaseHolder) -> Option<RecordsDb> {
    if let Some(folder) = folder {
        match RecordsDb::open(&folder, holder.clone()) {
            Ok(db) => return Some(db),
            Err(error) => {
                tracing::warn!(%error, "watches, schedules, facts and notices are kept in memory only");
            }
        }
    }
    let failed = |error: &_| tracing::error!(%error, "watches, schedules, facts and notices cannot be kept");
    RecordsDb::in_memory(holder).inspect_err(failed).ok()
}

impl Store for SqliteStore {
    fn put_result<'a>(
        &'a self,
        id: &'a str,
        owner: &'a str,
        share: Share,
        value: Arc<Value>,
    ) -> StoreFuture<'a, Lifespan> {
        let (of, owner) = (id.to_owned(), owner.to_owned());
        Box::pin(self.put_kept(id.to_owned(), move |db| db.put_result(&of, &owner, &share, &value)))
    }

    fn put_job(&self, job: JobRow, share: Share, result: Option<Arc<Value>>) -> StoreFuture<'_, Lifespan> {
        Box::pin(self.put_kept(job.id.clone(), move |db| db.put_job(&job, &share, result.as_deref())))
    }

    fn text<'a>(&'a self, id: &'a str, owner: &'a str) -> StoreFuture<'a, Option<String>> {
        let (id, owner) = (id.to_owned(), owner.to_owned());
        Box::pin(self.read_kept(move |db| db.text(&id, &owner)))
    }

    fn job<'a>(&'a self, id: &'a str, owner: &'a str) -> StoreFuture<'a, Option<JobRow>> {
        let (id, owner) = (id.to_owned(), owner.to_owned());
        Box::pin(self.read_kept(move |db| db.job(&id, &owner)))
    }

    fn jobs<'a>(&'a self, owner: &'a str, limit: usize) -> StoreFuture<'a, Vec<JobRow>> {
        let owner = owner.to_owned();
        Box::pin(async move {
            let of_file = owner.clone();
            let jobs = run(self.kept().await?, move |db| db.jobs(&of_file, limit)).await?;
            self.spare.with_jobs(jobs, owner, limit).await
        })
    }

    fn results(&self, limit: usize) -> StoreFuture<'_, Vec<KeptRow>> {
        Box::pin(async move {
            let results = run(self.kept().await?, move |db| db.results(limit)).await?;
            self.spare.with_results(results, limit).await
        })
    }

    fn remove_kept<'a>(&'a self, id: &'a str, owner: &'a str) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let in_memory = self.spare.remove(id, owner).await?;
            let (id, owner) = (id.to_owned(), owner.to_owned());
            Ok(run(self.kept().await?, move |db| db.remove_ended(&id, &owner)).await? || in_memory)
        })
    }

    fn sweep(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            if !self.kept.is_used() {
                return Ok(());
            }
            self.spare.tidy().await?;
            run(self.kept().await?, KeptDb::tidy).await
        })
    }

    fn counts(&self) -> StoreFuture<'_, Option<KeptCounts>> {
        Box::pin(async move {
            if !self.kept.is_used() {
                return Ok(None);
            }
            let counts = run(self.kept().await?, KeptDb::counts).await?;
            self.spare.with_counts(counts).await.map(Some)
        })
    }

    fn outcomes(&self) -> StoreFuture<'_, Vec<Outcome>> {
        Box::pin(async move { Ok(self.with_outcomes(OutcomesDb::outcomes).await?.unwrap_or_default()) })
    }

    fn put_outcome(&self, outcome: Outcome) -> StoreFuture<'_, ()> {
        Box::pin(async move { self.with_outcomes(move |db| db.put_outcome(&outcome)).await.map(drop) })
    }

    fn figures(&self) -> StoreFuture<'_, Vec<NamedFigures>> {
        Box::pin(async move { Ok(self.with_outcomes(OutcomesDb::figures).await?.unwrap_or_default()) })
    }

    fn add_figures(&self, fresh: Vec<NamedFigures>) -> StoreFuture<'_, Option<Vec<NamedFigures>>> {
        Box::pin(self.with_outcomes(move |db| db.add_figures(fresh)))
    }
}

impl Records for SqliteStore {
    fn put(&self, record: NewRecord, most: RecordQuota) -> StoreFuture<'_, Option<usize>> {
        Box::pin(self.with_records(move |db| db.put(&record, most)))
    }

    fn get<'a>(&'a self, kind: RecordKind, owner: &'a str, id: &'a str) -> StoreFuture<'a, Option<Record>> {
        let (owner, id) = (owner.to_owned(), id.to_owned());
        Box::pin(async move {
            if !self.has_records() {
                return Ok(None);
            }
            self.with_records(move |db| db.get(kind, &owner, &id)).await
        })
    }

    fn all<'a>(&'a self, kind: RecordKind, owner: &'a str) -> StoreFuture<'a, Vec<Record>> {
        let owner = owner.to_owned();
        Box::pin(async move {
            if !self.has_records() {
                return Ok(Vec::new());
            }
            self.with_records(move |db| db.all(kind, &owner)).await
        })
    }

    fn of_kind(&self, kind: RecordKind) -> StoreFuture<'_, Vec<Record>> {
        Box::pin(async move {
            if !self.has_records() {
                return Ok(Vec::new());
            }
            self.with_records(move |db| db.of_kind(kind)).await
        })
    }

    fn change(&self, record: Record) -> StoreFuture<'_, bool> {
        Box::pin(self.with_records(move |db| db.change(&record)))
    }

    fn remove(&self, record: Record) -> StoreFuture<'_, bool> {
        Box::pin(self.with_records(move |db| db.remove(&record)))
    }

    fn take<'a>(&'a self, kind: RecordKind, owner: &'a str, id: &'a str) -> StoreFuture<'a, Option<Record>> {
        let (owner, id) = (owner.to_owned(), id.to_owned());
        Box::pin(async move {
            if !self.has_records() {
                return Ok(None);
            }
            self.with_records(move |db| db.take(kind, &owner, &id)).await
        })
    }

    fn drop_old<'a>(&'a self, kind: RecordKind, owner: &'a str, before_ms: u64) -> StoreFuture<'a, usize> {
        let owner = owner.to_owned();
        Box::pin(async move {
            if !self.has_records() {
                return Ok(0);
            }
            self.with_records(move |db| db.drop_old(kind, &owner, before_ms)).await
        })
    }

    fn count_of<'a>(&'a self, kind: RecordKind, owner: &'a str) -> StoreFuture<'a, usize> {
        let owner = owner.to_owned();
        Box::pin(async move {
            if !self.has_records() {
                return Ok(0);
            }
            self.with_records(move |db| db.count_of(kind, &owner)).await
        })
    }

    fn due<'a>(&'a self, now_ms: u64, kinds: &'a [RecordKind]) -> StoreFuture<'a, Vec<Record>> {
        let kinds = kinds.to_vec();
        Box::pin(async move {
            if !self.has_records() {
                return Ok(Vec::new());
            }
            self.with_records(move |db| db.due(now_ms, &kinds)).await
        })
    }

    fn agenda<'a>(&'a self, kinds: &'a [RecordKind]) -> StoreFuture<'a, Option<Agenda>> {
        let kinds = kinds.to_vec();
        Box::pin(async move {
            if !self.has_records() {
                return Ok(None);
            }
            self.with_records(move |db| db.agenda(&kinds)).await.map(Some)
        })
    }

    fn hold<'a>(&'a self, record: &'a Record) -> StoreFuture<'a, bool> {
        let record = record.clone();
        Box::pin(self.with_records(move |db| db.hold(&record)))
    }

    fn claim_free<'a>(
        &'a self,
        kind: RecordKind,
        owner: &'a str,
        most: usize,
    ) -> StoreFuture<'a, Vec<Record>> {
        let owner = owner.to_owned();
        Box::pin(self.with_records(move |db| db.claim_free(kind, &owner, most)))
    }

    fn changes<'a>(&'a self, owner: &'a str) -> StoreFuture<'a, Option<u64>> {
        let owner = owner.to_owned();
        Box::pin(async move {
            if !self.has_records() {
                return Ok(None);
            }
            self.with_records(move |db| db.changes(&owner)).await
        })
    }

    fn vectors<'a>(&'a self, owner: &'a str, model: &'a str) -> StoreFuture<'a, Vec<FactVector>> {
        let (owner, model) = (owner.to_owned(), model.to_owned());
        Box::pin(async move {
            if !self.has_records() {
                return Ok(Vec::new());
            }
            self.with_records(move |db| db.vectors(&owner, &model)).await
        })
    }

    fn put_vectors<'a>(
        &'a self,
        owner: &'a str,
        model: &'a str,
        vectors: Vec<FactVector>,
    ) -> StoreFuture<'a, ()> {
        let (owner, model) = (owner.to_owned(), model.to_owned());
        Box::pin(self.with_records(move |db| db.put_vectors(&owner, &model, &vectors)))
    }

    fn free<'a>(&'a self, kind: RecordKind, owner: &'a str, ids: Vec<String>) -> StoreFuture<'a, ()> {
        let owner = owner.to_owned();
        Box::pin(self.with_records(move |db| db.free(kind, &owner, &ids)))
    }
}
