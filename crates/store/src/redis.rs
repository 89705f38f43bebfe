//! Redis: an engine (`rows`), and what only replicas share: rates, slots, vectors, and the list of replicas.
//!
//! Data that must change together is changed by one Lua script and has keys with one hash tag, so that a
//! cluster puts them in one slot; only large values and the vectors of tools are in separate slots (`values`,
//! `vectors`). Every key expires, and a running gateway postpones that. Values carry the number of their
//! format, and a newer Nonet's values are left alone.
//!
//! A gateway is running as long as its key `holder:NUMBER` exists, which it renews before the key expires
//! (`presence`).

mod brisk;
mod earlier;
mod forget;
mod link;
mod presence;
mod rates;
mod replicas;
mod rows;
mod slots;
mod values;
mod vectors;
mod way;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use self::{
    link::RedisLink, presence::Lease, rates::RateKeys, rows::RedisEngine, slots::SlotKeys,
    vectors::VectorKeys,
};
use super::{LeaseHolder, SharedStore, StoreError};
pub use replicas::{LeaseClaim, Replica, Replicas, SessionHolder};

pub use self::{forget::ForgetScope, way::RedisTopology};

/// How often the expiry of vectors is postponed.
const RENEWAL: Duration = Duration::from_secs(24 * 3_600);

/// What is in Redis for the replicas with the same prefix.
#[derive(Debug)]
pub(super) struct RedisParts {
    link: Arc<RedisLink>,
    lease: Arc<Lease>,
    prefix: String,
    pub engine: Arc<RedisEngine>,
    pub replicas: Arc<Replicas>,
    pub rates: RateKeys,
    pub slots: Arc<SlotKeys>,
    pub vectors: Arc<VectorKeys>,
    /// When the expiry of the vectors was last postponed.
    renewed: Mutex<Option<Instant>>,
}

impl RedisParts {
    /// Returns the parts under a prefix. Does not connect.
    pub(super) fn new(
        redis: impl Into<RedisTopology>,
        prefix: &str,
        name: Option<&str>,
        holder: &LeaseHolder,
    ) -> Self {
        let link = Arc::new(RedisLink::new(redis));
        let base: Arc<str> = format!("{prefix}:{{{prefix}}}:").into();
        let clock = &holder.clock;
        let name = name.map_or_else(|| format!("{}-{}", host(), holder.number), ToOwned::to_owned);
        let lease = Arc::new(Lease::new(link.clone(), &base, holder.number, name, clock.clone()));
        Self {
            engine: Arc::new(RedisEngine::new(link.clone(), base.clone(), prefix, lease.clone())),
            replicas: Arc::new(Replicas::new(link.clone(), base.clone(), lease.clone())),
            slots: Arc::new(SlotKeys::new(link.clone(), base.clone(), clock.clone(), lease.number())),
            rates: RateKeys::new(link.clone(), base, clock.clone()),
            vectors: Arc::new(VectorKeys::new(link.clone(), prefix, clock.clone())),
            link,
            lease,
            prefix: prefix.into(),
            renewed: Mutex::default(),
        }
    }

    /// Postpones the expiry of the vectors, once a day. Does nothing if this process has not used Redis yet.
    pub(super) async fn renew(&self) -> Result<(), StoreError> {
        if !self.link.is_used() || self.renewed.lock().is_some_and(|renewed| renewed.elapsed() < RENEWAL) {
            return Ok(());
        }
        self.vectors.renew().await?;
        *self.renewed.lock() = Some(Instant::now());
        Ok(())
    }

    /// Ends the lease on everything that this replica holds, and removes the replica from the list.
    pub(super) async fn leave(&self) -> Result<(), StoreError> {
        let left = self.replicas.leave().await;
        self.lease.end().await?;
        left
    }

    /// Describes the store for people.
    pub(super) fn shown(&self) -> SharedStore {
        SharedStore {
            engine: "redis".into(),
            at: self.link.place.clone(),
            prefix: self.prefix.clone(),
            name: self.lease.name.clone(),
            replicas: self.replicas.shown(),
            trouble: self.link.trouble(),
        }
    }
}

/// Returns the name of this machine.
fn host() -> String {
    let name = nix::unistd::gethostname().ok();
    name.and_then(|name| name.into_string().ok()).unwrap_or_else(|| "replica".into())
}

#[cfg(test)]
mod tests;
