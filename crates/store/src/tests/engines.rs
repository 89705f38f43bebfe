//! The store's engines, for tests of their common behaviour.

use std::{sync::Arc, time::Duration};

use nonet_testing::RedisServer;
use tempfile::TempDir;

use super::{super::*, folder, until_ended};

/// Long and large enough for every test that does not care.
pub(crate) const ROOMY: Retention = Retention::ROOMY;
pub(crate) const HOUR: Duration = Duration::from_secs(3_600);

/// Runs functions as tests, each with both engines.
macro_rules! with_both_engines {
    ($($name:ident),* $(,)?) => {
        mod sqlite {
            use crate::tests::engines::Engine;
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(&Engine::sqlite()).await;
            })*
        }
        mod redis {
            use crate::tests::engines::Engine;
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                if let Some(engine) = Engine::redis() {
                    super::$name(&engine).await;
                }
            })*
        }
    };
}
pub(crate) use with_both_engines;

/// An empty engine.
pub(crate) enum Engine {
    Sqlite(TempDir),
    Redis(RedisServer),
}

/// A gateway as the store sees it.
pub(crate) struct Here {
    pub store: Arc<GatewayStore>,
    pub records: Arc<Records>,
    pub clock: Clock,
    number: u32,
}

impl Engine {
    pub(crate) fn sqlite() -> Self {
        Self::Sqlite(folder())
    }

    /// Returns an engine; `None` without a `redis-server`, unless NONET_REDIS requires one.
    pub(crate) fn redis() -> Option<Self> {
        RedisServer::start().map(Self::Redis)
    }

    /// Returns another gateway with the same store.
    pub(crate) fn gateway(&self) -> Here {
        self.gateway_with(ROOMY, &Clock::default())
    }

    pub(crate) fn gateway_with(&self, retention: Retention, clock: &Clock) -> Here {
        let clock = clock.clone();
        let (store, number) = match self {
            Self::Sqlite(folder) => {
                let folder = Some(folder.path().to_owned());
                let store = GatewayStore::in_files(folder, retention, clock.clone(), "");
                let number = store.holder.number;
                (store, number)
            }
            Self::Redis(server) => (store_at(server, retention, &clock), 0),
        };
        Here { records: store.records.clone(), store: Arc::new(store), clock, number }
    }

    /// Ends a gateway, which releases everything that it held.
    pub(crate) async fn end(&self, gateway: Here) {
        gateway.store.leave().await.expect("left");
        let number = gateway.number;
        drop(gateway);
        if let Self::Sqlite(folder) = self {
            until_ended(folder, number);
        }
    }
}

/// Returns a store at a Redis.
pub(crate) fn store_at(redis: &RedisServer, retention: Retention, clock: &Clock) -> GatewayStore {
    let mut store = GatewayStore::in_redis(redis.address(), "nonet", Some("here"), retention, clock.clone());
    store.wait_for_rates(Duration::from_secs(10));
    store
}
