//! The store in two SQLite files.

use std::{fmt::Debug, path::PathBuf, sync::Arc};

use serde_json::Value;
use tokio::{sync::OnceCell, task::spawn_blocking};

use super::{Holder, JobRow, KeptCounts, KeptDb, OutcomesDb, Retention, Store, StoreError, Stored};
use crate::{clock::Clock, search::Outcome};

/// The two files of a folder, each opened when it is first used. SQLite blocks, so the work is done on the runtime's blocking
/// threads.
///
/// Without a folder, or with one that cannot be used, results and jobs are kept in memory and outcomes not at all.
#[derive(Debug)]
pub struct SqliteStore {
    folder: Option<PathBuf>,
    retention: Retention,
    holder: Holder,
    kept: OnceCell<Option<Arc<KeptDb>>>,
    outcomes: OnceCell<Option<Arc<OutcomesDb>>>,
}

impl SqliteStore {
    /// The store of a folder. Touches no file yet.
    pub fn new(folder: Option<PathBuf>, retention: Retention, clock: Clock) -> Self {
        let holder = Holder::new(clock);
        Self { folder, retention, holder, kept: OnceCell::new(), outcomes: OnceCell::new() }
    }

    async fn with_kept<T: Send + 'static>(
        &self,
        work: impl FnOnce(&KeptDb) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let open = async || {
            let (folder, retention, holder) = (self.folder.clone(), self.retention, self.holder.clone());
            spawn_blocking(move || open_kept(folder, retention, holder).map(Arc::new)).await.ok().flatten()
        };
        run(self.kept.get_or_init(open).await.clone().ok_or(StoreError::Unusable)?, work).await
    }

    /// None without a file to keep outcomes in.
    async fn with_outcomes<T: Send + 'static>(
        &self,
        work: impl FnOnce(&OutcomesDb) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<Option<T>, StoreError> {
        let open = async || {
            let folder = self.folder.clone()?;
            let opened = spawn_blocking(move || OutcomesDb::open(&folder)).await.ok()?;
            let warn =
                |error: &_| tracing::warn!(%error, "what searches lead to is not kept beyond this run");
            opened.inspect_err(warn).ok().map(Arc::new)
        };
        match self.outcomes.get_or_init(open).await.clone() {
            Some(db) => run(db, work).await.map(Some),
            None => Ok(None),
        }
    }
}

/// Opens the file; the same in memory where that is not possible.
fn open_kept(folder: Option<PathBuf>, retention: Retention, holder: Holder) -> Option<KeptDb> {
    if let Some(folder) = folder {
        match KeptDb::open(&folder, retention, holder.clone()) {
            Ok(db) => return Some(db),
            Err(error) => tracing::warn!(%error, "large results and tasks are kept in memory only"),
        }
    }
    let failed = |error: &_| tracing::error!(%error, "large results and tasks cannot be kept");
    KeptDb::in_memory(retention, holder).inspect_err(failed).ok()
}

/// Works with a file where blocking is allowed.
async fn run<Db: Send + Sync + 'static, T: Send + 'static>(
    db: Arc<Db>,
    work: impl FnOnce(&Db) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    spawn_blocking(move || work(&db)).await.unwrap_or(Err(StoreError::Unusable))
}

impl Store for SqliteStore {
    fn put_result<'a>(&'a self, id: &'a str, owner: &'a str, value: Arc<Value>) -> Stored<'a, ()> {
        let (id, owner) = (id.to_owned(), owner.to_owned());
        Box::pin(self.with_kept(move |db| db.put_result(&id, &owner, &value).map(drop)))
    }

    fn put_job(&self, job: JobRow, result: Option<Arc<Value>>) -> Stored<'_, ()> {
        Box::pin(self.with_kept(move |db| db.put_job(&job, result.as_deref()).map(drop)))
    }

    fn text<'a>(&'a self, id: &'a str, owner: &'a str) -> Stored<'a, Option<String>> {
        let (id, owner) = (id.to_owned(), owner.to_owned());
        Box::pin(self.with_kept(move |db| db.text(&id, &owner)))
    }

    fn job<'a>(&'a self, id: &'a str, owner: &'a str) -> Stored<'a, Option<JobRow>> {
        let (id, owner) = (id.to_owned(), owner.to_owned());
        Box::pin(self.with_kept(move |db| db.job(&id, &owner)))
    }

    fn jobs<'a>(&'a self, owner: &'a str, limit: usize) -> Stored<'a, Vec<JobRow>> {
        let owner = owner.to_owned();
        Box::pin(self.with_kept(move |db| db.jobs(&owner, limit)))
    }

    fn counts(&self) -> Stored<'_, Option<KeptCounts>> {
        Box::pin(async move {
            match self.kept.initialized() {
                true => self.with_kept(KeptDb::counts).await.map(Some),
                false => Ok(None),
            }
        })
    }

    fn outcomes(&self) -> Stored<'_, Vec<Outcome>> {
        Box::pin(async move { Ok(self.with_outcomes(OutcomesDb::outcomes).await?.unwrap_or_default()) })
    }

    fn put_outcome(&self, outcome: Outcome) -> Stored<'_, ()> {
        Box::pin(async move { self.with_outcomes(move |db| db.put_outcome(&outcome)).await.map(drop) })
    }
}
