//! The store in Redis, for replicas that share their data.
//!
//! Data that must change together is changed by one Lua script and has keys with one hash tag, so that a cluster puts them in
//! one slot; only the values of results and the vectors of tools are in separate slots (`values`, `vectors`). Every key
//! expires, and a running gateway postpones that. Values carry the number of their format, and a newer Nonet's values are
//! left alone.
//!
//! A gateway is running as long as its key `holder:NUMBER` exists, which it renews before the key expires (`presence`).

mod brisk;
mod forget;
mod kept;
mod learned;
mod link;
mod owed;
mod pins;
mod presence;
mod rates;
mod records;
mod replicas;
mod slots;
mod values;
mod vectors;
mod way;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use nonet_base::{clock::Clock, turns::SharedSlots};
use nonet_search::{Outcome, SharedVectors};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::task::spawn_blocking;

use self::{
    kept::{KeptKeys, NewEntry},
    learned::LearnedKeys,
    link::RedisLink,
    owed::UnsyncedEntries,
    pins::PinKeys,
    presence::Lease,
    rates::RateKeys,
    records::RecordKeys,
    slots::SlotKeys,
    vectors::VectorKeys,
};
use super::{
    Agenda, FactVector, JobRow, KeptCounts, KeptRow, LeaseHolder, Lifespan, NamedFigures, NewRecord,
    PinStore, RateOutcome, Record, RecordKind, RecordQuota, Records, Retention, Share, SharedRate,
    SharedStore, SpareStore, Store, StoreError, StoreFuture,
};
pub use replicas::{LeaseClaim, Replica, Replicas, SessionHolder};

pub use self::{forget::ForgetScope, way::RedisTopology};

/// How often the expiry of permanent data is postponed.
const RENEWAL: Duration = Duration::from_secs(24 * 3600);

/// The store of the replicas with the same Redis and prefix. They share one configuration: whatever is due is due for each of
/// them.
///
/// It connects on first use. While Redis is unavailable, results and jobs are kept in memory; everything else fails at once.
#[derive(Debug)]
pub struct RedisStore {
    link: Arc<RedisLink>,
    lease: Arc<Lease>,
    replicas: Arc<Replicas>,
    prefix: String,
    kept: Arc<KeptKeys>,
    records: RecordKeys,
    learned: LearnedKeys,
    rates: RateKeys,
    slots: Arc<SlotKeys>,
    vectors: Arc<VectorKeys>,
    pins: Arc<PinKeys>,
    /// Results and jobs that could not be written.
    spare: Arc<SpareStore>,
    owed: Arc<UnsyncedEntries>,
    /// When the expiry of everything was last postponed.
    renewed: Mutex<Option<Instant>>,
}

impl RedisStore {
    /// Returns the store under a prefix, for the replica of this name; the default is the host's name with a number. Does not
    /// connect.
    pub fn new(
        redis: impl Into<RedisTopology>,
        prefix: &str,
        name: Option<&str>,
        retention: Retention,
        clock: Clock,
    ) -> Self {
        let link = Arc::new(RedisLink::new(redis));
        let base: Arc<str> = format!("{prefix}:{{{prefix}}}:").into();
        let holder = LeaseHolder::new(clock.clone());
        let spare = Arc::new(SpareStore::new(retention, holder.clone()));
        let name = name.map_or_else(|| format!("{}-{}", host(), holder.number), ToOwned::to_owned);
        let lease = Arc::new(Lease::new(link.clone(), &base, holder.number, name, clock.clone()));
        let kept = Arc::new(KeptKeys::new(link.clone(), base.clone(), prefix, lease.clone(), retention));
        Self {
            owed: Arc::new(UnsyncedEntries::new(kept.clone(), spare.clone())),
            kept,
            records: RecordKeys::new(link.clone(), base.clone(), lease.clone()),
            learned: LearnedKeys::new(link.clone(), base.clone()),
            replicas: Arc::new(Replicas::new(link.clone(), base.clone(), lease.clone())),
            pins: Arc::new(PinKeys::new(link.clone(), base.clone(), lease.clone())),
            slots: Arc::new(SlotKeys::new(link.clone(), base.clone(), clock.clone(), lease.number())),
            rates: RateKeys::new(link.clone(), base, clock.clone()),
            vectors: Arc::new(VectorKeys::new(link.clone(), prefix, clock)),
            link,
            lease,
            prefix: prefix.into(),
            spare,
            renewed: Mutex::default(),
        }
    }

    /// Makes rates wait longer for Redis: a machine busy with other tests must not cause a failure.
    pub fn wait_for_rates(&mut self, patience: Duration) {
        self.rates.wait_for(patience);
    }

    async fn put_kept(
        &self,
        entry: NewEntry,
        share: Share,
        value: Option<Arc<Value>>,
    ) -> Result<Lifespan, StoreError> {
        let bytes = match value.clone() {
            // Takes up to a tenth of a second for the largest.
            Some(value) => {
                let json = spawn_blocking(move || serde_json::to_vec(&*value));
                json.await.ok().and_then(Result::ok).ok_or(StoreError::Unusable)?
            }
            None => Vec::new(),
        };
        match self.kept.put(&entry, &share, &bytes).await {
            Ok(()) => {
                self.owed.remove(&entry.id);
                self.spare.written(&entry.id).await?;
                Ok(Lifespan::AsConfigured)
            }
            Err(error @ StoreError::NewerValue { .. }) => Err(error),
            Err(error) => {
                let (put, quota) = (entry.clone(), share.clone());
                let lasts =
                    self.spare.put(error, move |db| put.put_into(db, &quota, value.as_deref())).await?;
                self.owed.add(entry, share);
                Ok(lasts)
            }
        }
    }

    /// Postpones the expiry of permanent data, once a day.
    async fn renew(&self) -> Result<(), StoreError> {
        if self.renewed.lock().is_some_and(|renewed| renewed.elapsed() < RENEWAL) {
            return Ok(());
        }
        self.records.renew().await?;
        self.learned.renew().await?;
        self.vectors.renew().await?;
        self.pins.renew().await?;
        *self.renewed.lock() = Some(Instant::now());
        Ok(())
    }
}

/// Returns the name of this machine.
fn host() -> String {
    let name = nix::unistd::gethostname().ok();
    name.and_then(|name| name.into_string().ok()).unwrap_or_else(|| "replica".into())
}

impl Store for RedisStore {
    fn put_result<'a>(
        &'a self,
        id: &'a str,
        owner: &'a str,
        share: Share,
        value: Arc<Value>,
    ) -> StoreFuture<'a, Lifespan> {
        let entry = NewEntry { id: id.into(), owner: owner.into(), job: None };
        Box::pin(self.put_kept(entry, share, Some(value)))
    }

    fn put_job(&self, job: JobRow, share: Share, result: Option<Arc<Value>>) -> StoreFuture<'_, Lifespan> {
        let entry = NewEntry { id: job.id.clone(), owner: job.owner.clone(), job: Some(job) };
        Box::pin(self.put_kept(entry, share, result))
    }

    fn text<'a>(&'a self, id: &'a str, owner: &'a str) -> StoreFuture<'a, Option<String>> {
        Box::pin(async move {
            let (of, by) = (id.to_owned(), owner.to_owned());
            match self.spare.read(move |db| db.text(&of, &by)).await? {
                Some(text) => Ok(Some(text)),
                None => self.kept.text(id, owner).await,
            }
        })
    }

    fn job<'a>(&'a self, id: &'a str, owner: &'a str) -> StoreFuture<'a, Option<JobRow>> {
        Box::pin(async move {
            let (of, by) = (id.to_owned(), owner.to_owned());
            match self.spare.read(move |db| db.job(&of, &by)).await? {
                Some(job) => Ok(Some(job)),
                None => self.kept.job(id, owner).await,
            }
        })
    }

    fn jobs<'a>(&'a self, owner: &'a str, limit: usize) -> StoreFuture<'a, Vec<JobRow>> {
        Box::pin(async move {
            let jobs = self.kept.jobs(owner, limit).await?;
            self.spare.with_jobs(jobs, owner.into(), limit).await
        })
    }

    fn ask_to_cancel<'a>(&'a self, id: &'a str, owner: &'a str) -> StoreFuture<'a, ()> {
        Box::pin(self.kept.ask_to_cancel(id, owner))
    }

    fn to_cancel(&self) -> StoreFuture<'_, Vec<String>> {
        Box::pin(self.kept.to_cancel())
    }

    fn results(&self, limit: usize) -> StoreFuture<'_, Vec<KeptRow>> {
        Box::pin(async move {
            let results = self.kept.results(limit).await?;
            self.spare.with_results(results, limit).await
        })
    }

    fn remove_kept<'a>(&'a self, id: &'a str, owner: &'a str) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let in_memory = self.spare.remove(id, owner).await?;
            Ok(self.kept.remove_ended(id, owner).await? || in_memory)
        })
    }

    fn sweep(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            if !self.link.is_used() {
                return Ok(());
            }
            self.spare.tidy().await?;
            self.kept.tidy().await?;
            self.renew().await
        })
    }

    fn counts(&self) -> StoreFuture<'_, Option<KeptCounts>> {
        Box::pin(async move {
            if !self.link.is_used() {
                return Ok(None);
            }
            let counts = self.kept.counts().await?;
            self.spare.with_counts(counts).await.map(Some)
        })
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
        Box::pin(self.rates.take(rates))
    }

    fn shared_pins(&self) -> Option<Arc<dyn PinStore>> {
        Some(self.pins.clone())
    }

    fn shared_vectors(&self) -> Option<Arc<dyn SharedVectors>> {
        Some(self.vectors.clone())
    }

    fn leave(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let left = self.replicas.leave().await;
            self.lease.end().await?;
            left
        })
    }

    fn shared_slots(&self) -> Option<Arc<dyn SharedSlots>> {
        Some(self.slots.clone())
    }

    fn replicas(&self) -> Option<Arc<Replicas>> {
        Some(self.replicas.clone())
    }

    fn shared(&self) -> Option<SharedStore> {
        Some(SharedStore {
            engine: "redis",
            at: self.link.place.clone(),
            prefix: self.prefix.clone(),
            name: self.lease.name.clone(),
            replicas: self.replicas.shown(),
            trouble: self.link.trouble(),
        })
    }
}

impl Records for RedisStore {
    fn put(&self, record: NewRecord, most: RecordQuota) -> StoreFuture<'_, Option<usize>> {
        Box::pin(async move { self.records.put(&record, most).await })
    }

    fn get<'a>(&'a self, kind: RecordKind, owner: &'a str, id: &'a str) -> StoreFuture<'a, Option<Record>> {
        Box::pin(self.records.get(kind, owner, id))
    }

    fn all<'a>(&'a self, kind: RecordKind, owner: &'a str) -> StoreFuture<'a, Vec<Record>> {
        Box::pin(self.records.all(kind, owner))
    }

    fn of_kind(&self, kind: RecordKind) -> StoreFuture<'_, Vec<Record>> {
        Box::pin(self.records.of_kind(kind))
    }

    fn change(&self, record: Record) -> StoreFuture<'_, bool> {
        Box::pin(async move { self.records.change(&record).await })
    }

    fn remove(&self, record: Record) -> StoreFuture<'_, bool> {
        Box::pin(async move { self.records.remove(&record).await })
    }

    fn hold<'a>(&'a self, record: &'a Record) -> StoreFuture<'a, bool> {
        Box::pin(self.records.hold(record))
    }

    fn take<'a>(&'a self, kind: RecordKind, owner: &'a str, id: &'a str) -> StoreFuture<'a, Option<Record>> {
        Box::pin(self.records.take(kind, owner, id))
    }

    fn drop_old<'a>(&'a self, kind: RecordKind, owner: &'a str, before_ms: u64) -> StoreFuture<'a, usize> {
        Box::pin(self.records.drop_old(kind, owner, before_ms))
    }

    fn count_of<'a>(&'a self, kind: RecordKind, owner: &'a str) -> StoreFuture<'a, usize> {
        Box::pin(self.records.count_of(kind, owner))
    }

    fn due<'a>(&'a self, now_ms: u64, kinds: &'a [RecordKind]) -> StoreFuture<'a, Vec<Record>> {
        Box::pin(self.records.due(now_ms, kinds))
    }

    fn agenda<'a>(&'a self, kinds: &'a [RecordKind]) -> StoreFuture<'a, Option<Agenda>> {
        Box::pin(self.records.agenda(kinds))
    }

    fn claim_free<'a>(
        &'a self,
        kind: RecordKind,
        owner: &'a str,
        most: usize,
    ) -> StoreFuture<'a, Vec<Record>> {
        Box::pin(self.records.claim_free(kind, owner, most))
    }

    fn changes<'a>(&'a self, owner: &'a str) -> StoreFuture<'a, Option<u64>> {
        Box::pin(self.records.changes(owner))
    }

    fn vectors<'a>(&'a self, owner: &'a str, model: &'a str) -> StoreFuture<'a, Vec<FactVector>> {
        Box::pin(self.records.vectors(owner, model))
    }

    fn put_vectors<'a>(
        &'a self,
        owner: &'a str,
        model: &'a str,
        vectors: Vec<FactVector>,
    ) -> StoreFuture<'a, ()> {
        Box::pin(async move { self.records.put_vectors(owner, model, &vectors).await })
    }

    fn free<'a>(&'a self, kind: RecordKind, owner: &'a str, ids: Vec<String>) -> StoreFuture<'a, ()> {
        Box::pin(async move { self.records.free(kind, owner, &ids).await })
    }
}

#[cfg(test)]
mod tests;
