//! The store of a gateway: the kinds of data, each over an engine.

use std::{path::PathBuf, sync::Arc};

use nonet_base::{clock::Clock, turns::SharedSlots};
use nonet_search::{Outcome, SharedVectors};
use serde_json::Value;

use super::{
    ForgetScope, JobRow, KeptCounts, KeptRow, LeaseHolder, Lifespan, NamedFigures, PinStore, RateOutcome,
    Records, RedisTopology, Replicas, Retention, Share, SharedRate, SharedStore, Store, StoreError,
    StoreFuture, engine::Engine, formats, kept::Kept, learned::Learned, redis::RedisParts,
    sqlite::SqliteEngine,
};

/// What a gateway keeps: in the SQLite files of a folder, or in Redis.
///
/// Without a usable folder, everything is kept in memory. While the disk or Redis cannot be written, results
/// and jobs are kept in memory until they can be.
#[derive(Debug)]
pub struct GatewayStore {
    kept: Arc<Kept>,
    learned: Learned,
    /// Work for later, and facts to remember.
    pub records: Arc<Records>,
    redis: Option<RedisParts>,
    #[cfg(test)]
    pub(crate) holder: LeaseHolder,
}

impl GatewayStore {
    /// Returns the store in a folder, for gateways of this configuration, however its path is written. Each
    /// file is opened on first use, and again if it was removed since.
    pub fn in_files(folder: Option<PathBuf>, retention: Retention, clock: Clock, config: &str) -> Self {
        let holder = LeaseHolder { config: config.into(), ..LeaseHolder::new(clock) };
        let engine = |format| -> Arc<dyn Engine> {
            Arc::new(SqliteEngine::lazy(folder.clone(), format, holder.clone()))
        };
        Self {
            kept: Kept::new(engine(&formats::KEPT), retention, holder.clone()),
            learned: Learned::new(engine(&formats::LEARNED)),
            records: Arc::new(Records::new(engine(&formats::RECORDS))),
            redis: None,
            #[cfg(test)]
            holder,
        }
    }

    /// Returns the store under a prefix of Redis, for the replica of this name; the default is the host's
    /// name with a number. Connects on first use. The replicas with the same Redis and prefix share one
    /// configuration: whatever is due is due for each of them.
    pub fn in_redis(
        redis: impl Into<RedisTopology>,
        prefix: &str,
        name: Option<&str>,
        retention: Retention,
        clock: Clock,
    ) -> Self {
        let holder = LeaseHolder::new(clock);
        let redis = RedisParts::new(redis, prefix, name, &holder);
        let engine: Arc<dyn Engine> = redis.engine.clone();
        Self {
            kept: Kept::new(engine.clone(), retention, holder.clone()),
            learned: Learned::new(engine.clone()),
            records: Arc::new(Records::new(engine)),
            redis: Some(redis),
            #[cfg(test)]
            holder,
        }
    }

    /// Makes rates wait longer for Redis: a machine busy with other tests must not cause a failure.
    pub fn wait_for_rates(&mut self, patience: std::time::Duration) {
        if let Some(redis) = &mut self.redis {
            redis.rates.wait_for(patience);
        }
    }

    /// Removes the replicas' data from Redis, and returns the number of removed keys. Running replicas, their
    /// sessions, and the use of rates stay. Data stored meanwhile may stay too.
    pub async fn forget_shared(&self, what: ForgetScope) -> Result<usize, StoreError> {
        match &self.redis {
            Some(redis) => redis.forget(what).await,
            None => Ok(0),
        }
    }
}

impl Store for GatewayStore {
    fn put_result<'a>(
        &'a self,
        id: &'a str,
        owner: &'a str,
        share: Share,
        value: Arc<Value>,
    ) -> StoreFuture<'a, Lifespan> {
        Box::pin(self.kept.put_result(id, owner, share, value))
    }

    fn put_job(&self, job: JobRow, share: Share, result: Option<Arc<Value>>) -> StoreFuture<'_, Lifespan> {
        Box::pin(self.kept.put_job(job, share, result))
    }

    fn text<'a>(&'a self, id: &'a str, owner: &'a str) -> StoreFuture<'a, Option<String>> {
        Box::pin(self.kept.text(id, owner))
    }

    fn job<'a>(&'a self, id: &'a str, owner: &'a str) -> StoreFuture<'a, Option<JobRow>> {
        Box::pin(self.kept.job(id, owner))
    }

    fn jobs<'a>(&'a self, owner: &'a str, limit: usize) -> StoreFuture<'a, Vec<JobRow>> {
        Box::pin(self.kept.jobs(owner, limit))
    }

    fn ask_to_cancel<'a>(&'a self, id: &'a str, owner: &'a str) -> StoreFuture<'a, ()> {
        Box::pin(self.kept.ask_to_cancel(id, owner))
    }

    fn to_cancel(&self) -> StoreFuture<'_, Vec<String>> {
        Box::pin(self.kept.to_cancel())
    }

    fn results(&self, limit: usize) -> StoreFuture<'_, Vec<KeptRow>> {
        Box::pin(self.kept.results(limit))
    }

    fn remove_kept<'a>(&'a self, id: &'a str, owner: &'a str) -> StoreFuture<'a, bool> {
        Box::pin(self.kept.remove(id, owner))
    }

    fn sweep(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            self.kept.sweep().await?;
            match &self.redis {
                Some(redis) => redis.renew().await,
                None => Ok(()),
            }
        })
    }

    fn counts(&self) -> StoreFuture<'_, Option<KeptCounts>> {
        Box::pin(self.kept.counts())
    }

    fn outcomes(&self) -> StoreFuture<'_, Vec<Outcome>> {
        Box::pin(self.learned.outcomes())
    }

    fn put_outcome(&self, outcome: Outcome) -> StoreFuture<'_, ()> {
        Box::pin(async move { self.learned.put_outcome(&outcome).await })
    }

    fn figures(&self) -> StoreFuture<'_, Vec<NamedFigures>> {
        Box::pin(self.learned.figures())
    }

    fn add_figures(&self, fresh: Vec<NamedFigures>) -> StoreFuture<'_, Option<Vec<NamedFigures>>> {
        Box::pin(async move { self.learned.add_figures(fresh).await.map(Some) })
    }

    fn take_rates<'a>(&'a self, rates: &'a [&'a SharedRate]) -> StoreFuture<'a, RateOutcome> {
        match &self.redis {
            Some(redis) => Box::pin(redis.rates.take(rates)),
            None => Box::pin(async { Ok(RateOutcome::NotShared) }),
        }
    }

    fn shared_pins(&self) -> Option<Arc<PinStore>> {
        self.redis.as_ref().map(|redis| Arc::new(PinStore::shared(redis.engine.clone())))
    }

    fn shared_vectors(&self) -> Option<Arc<dyn SharedVectors>> {
        self.redis.as_ref().map(|redis| redis.vectors.clone() as Arc<dyn SharedVectors>)
    }

    fn shared_slots(&self) -> Option<Arc<dyn SharedSlots>> {
        self.redis.as_ref().map(|redis| redis.slots.clone() as Arc<dyn SharedSlots>)
    }

    fn leave(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            match &self.redis {
                Some(redis) => redis.leave().await,
                None => Ok(()),
            }
        })
    }

    fn replicas(&self) -> Option<Arc<Replicas>> {
        self.redis.as_ref().map(|redis| redis.replicas.clone())
    }

    fn shared(&self) -> Option<SharedStore> {
        self.redis.as_ref().map(RedisParts::shown)
    }
}
