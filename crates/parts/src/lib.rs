//! The parts that a gateway is wired from. Each owns its state behind a narrow interface; none knows the
//! gateway.

pub mod approvals;
pub mod audit;
pub mod chat;
pub mod cluster;
pub mod figures;
pub mod jobs;
pub mod kept;
pub mod learning;
pub mod memory;
pub mod metrics;
pub mod quotas;
pub mod rates;
pub mod skills;
pub mod timetable;
pub mod trace;
pub mod watches;

#[cfg(test)]
mod testing {
    //! What the tests of several parts need.

    use std::time::Duration;

    use nonet_base::clock::Clock;
    use nonet_store::{GatewayStore, Retention};
    use nonet_testing::RedisServer;

    /// Returns a store at a Redis.
    pub(crate) fn store_at(redis: &RedisServer, clock: &Clock) -> GatewayStore {
        let mut store =
            GatewayStore::in_redis(redis.address(), "nonet", Some("here"), Retention::ROOMY, clock.clone());
        store.wait_for_rates(Duration::from_secs(10));
        store
    }
}
