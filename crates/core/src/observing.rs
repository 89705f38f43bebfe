//! What calls leave behind: counters, the calls of the live page, the audit log, and what search learns from
//! calls.

use std::{path::Path, sync::Arc};

use nonet_base::clock::Clock;
use nonet_parts::{audit::Audit, figures::Figures, learning::Learning, metrics::Metrics};
use nonet_state::{feed::Feed, publisher::Publisher, servers::Servers};
use nonet_store::Store;

use crate::auditing;

/// What calls leave behind.
pub struct Observing {
    pub(crate) servers: Arc<Servers>,
    pub(crate) publisher: Arc<Publisher>,
    /// Counters for `/metrics`.
    pub metrics: Metrics,
    /// Finished calls.
    pub calls: Feed,
    /// The audit log, if the configuration wants one.
    pub(crate) audit: Option<Audit>,
    /// Figures about each tool, from its calls.
    pub(crate) figures: Figures,
    pub(crate) learning: Learning,
}

impl Observing {
    pub(crate) fn new(
        publisher: &Arc<Publisher>,
        store: &Arc<dyn Store>,
        clock: Clock,
        folder: Option<&Path>,
    ) -> Arc<Self> {
        let servers = publisher.servers.clone();
        let (config, life) = (servers.config(), &servers.life);
        // A user who wants nothing learned from calls wants no figures of calls on disk either.
        let kept_in = config.gateway.learn.then(|| store.clone());
        let figures = Figures::new(kept_in, clock.clone(), life.tasks.clone(), life.stop.clone());
        let learning = Learning::new(store.clone(), clock, life.tasks.clone(), life.stop.clone());
        Arc::new(Self {
            metrics: Metrics::default(),
            calls: Feed::default(),
            audit: auditing::open(&config, folder),
            figures,
            learning,
            publisher: publisher.clone(),
            servers,
        })
    }
}
