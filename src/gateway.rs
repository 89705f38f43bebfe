//! The gateway: every server, one catalogue, one index, and the operations on them.
//!
//! Read this first. [`Gateway::connect`] starts the servers; one publisher task turns what they list
//! into a [`Snapshot`] and swaps it in whole (`publish`). Every operation takes one snapshot and keeps it. The
//! operations are in the files beside: `call` (the one road of a call), `discover` (search, browse,
//! describe), `graph` (run_parallel and workflows), `ask`, `apps`, `skills`, `builtin`.

mod absent;
mod apps;
mod builtin;
pub mod call;
mod discover;
mod faults;
mod feed;
mod gate;
mod graph;
pub mod inquiry;
mod interrupt;
pub mod last_seen;
mod learn;
mod lists;
mod mailbox;
mod prompts_resources;
mod publish;
mod publisher;
mod questions;
mod reload;
pub mod run;
mod see_also;
mod servers;
pub mod session;
mod sessions;
mod skills;
mod snapshot;
pub mod status;
mod unmatched;
mod world;

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    clock::Clock,
    config::Config,
    downstream::{Connection, ConnectionContext, Dial, Update, process_guard::ProcessGuard},
    jobs::Jobs,
    kept::KeptResults,
    learning::Learning,
    metrics::Metrics,
    oauth::Vault,
    search::Embedder,
    select::Selector,
    shell,
    store::{Retention, SqliteStore, Store},
};
pub use absent::NEEDS_CONFIG;
pub use apps::AppArguments;

pub use discover::{BrowseArguments, SearchArguments};
pub use feed::Feed;
pub use gate::Gate;
pub use graph::ParallelArguments;
pub use interrupt::Interrupt;
pub use prompts_resources::Page;
use publisher::Publisher;
pub use questions::AskArguments;
use questions::Questions;
use servers::{Life, Servers};
use session::{Caller, Session};
use sessions::Sessions;
pub use skills::SkillArguments;
pub use snapshot::Snapshot;
pub use unmatched::Unmatched;
pub use world::{Changes, Connections};

/// How far indexing has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Indexing {
    /// The catalogue that is being indexed.
    pub generation: u64,
    /// Texts whose vectors are known.
    pub done: usize,
    /// Texts in all.
    pub total: usize,
    /// Whether search by meaning covers this catalogue, or never will (see `failed`).
    pub finished: bool,
    /// Whether there are no vectors because the embedder failed.
    pub failed: bool,
}

/// What a gateway is started with beside its configuration.
#[derive(Default)]
pub struct Options {
    /// Nonet's own executable, which guards child processes and runs jq filters in a process of their
    /// own; none in tests of the library.
    pub executable: Option<PathBuf>,
    /// Servers that are reached over byte streams instead of their configured transport.
    pub dials: BTreeMap<String, Box<Dial>>,
    /// Search by keywords alone: the model is not loaded.
    pub without_embedder: bool,
    /// Where the last known lists are kept; nowhere if absent.
    pub cache: Option<PathBuf>,
    /// Where the store is, which holds what was learned and what is kept; nothing outlives the process if absent.
    pub state: Option<PathBuf>,
}

/// The gateway.
pub struct Gateway {
    /// The servers, and the configuration that they come from.
    servers: Servers,
    /// The open sessions.
    sessions: Sessions,
    /// What users are asked and have agreed to.
    pub(crate) questions: Questions,
    /// Counters.
    pub metrics: Metrics,
    /// Calls in the background.
    pub jobs: Arc<Jobs>,
    /// Calls as they end.
    pub calls: Feed,
    /// What is known of the servers: the catalogue and its index.
    publisher: Arc<Publisher>,
    learning: Learning,
    /// Results that outlive their calls.
    pub kept: KeptResults,
    /// Skills and apps, as searches name them.
    guides: see_also::Guides,
    life: Life,
}

impl Gateway {
    /// A gateway with nothing started: it answers at once, with its own tools alone.
    pub fn new(config: Config, options: Options) -> Arc<Self> {
        let selector = Selector::new(options.executable.clone());
        let around = ConnectionContext {
            guard: ProcessGuard::new(options.executable),
            vault: options.state.as_deref().map(Vault::in_state),
            login: shell::nonet("login", &config.file),
        };
        let (life, clock) = (Life::default(), Clock::default());
        let retention =
            Retention { bytes: config.gateway.keep_results_bytes, age: config.gateway.keep_results_for };
        let store: Arc<dyn Store> = Arc::new(SqliteStore::new(options.state, retention, clock.clone()));
        let jobs = Arc::new(Jobs::new(store.clone(), clock.clone()));
        let publisher = Publisher::new(&config, options.cache, options.without_embedder, life.clone());
        Arc::new(Self {
            servers: Servers::new(config, around, options.dials, life.clone()),
            sessions: Sessions::default(),
            questions: Questions::default(),
            metrics: Metrics::default(),
            calls: Feed::default(),
            publisher,
            learning: Learning::new(store.clone(), clock, life.tasks.clone(), life.stop.clone()),
            kept: KeptResults::new(store, jobs.clone(), selector),
            jobs,
            guides: see_also::Guides::default(),
            life,
        })
    }

    /// Begins to read the last known lists and returns at once. A second call does nothing.
    pub fn recall(self: &Arc<Self>) {
        let Some(updates) = self.publisher.take_updates() else { return };
        let gateway = self.clone();
        self.life.tasks.spawn(async move { gateway.publish(updates).await });
    }

    /// Starts every server and the embedder, all at the same time, and returns at once. A second
    /// call does nothing.
    pub fn connect(self: &Arc<Self>) {
        self.recall();
        let Some(updates) = self.publisher.updates() else { return };
        if self.life.stop.is_cancelled() {
            return;
        }
        self.publisher.start_embedder(&self.config().embedder);
        if self.servers.start(&updates) && !self.publisher.is_without_embedder() {
            let gateway = self.clone();
            self.life.tasks.spawn(async move { gateway.recalled().await });
        }
    }

    /// Stops every server and waits until all have left.
    pub async fn stop(&self) {
        self.life.end().await;
    }

    /// Cancelled when the gateway stops.
    pub fn stopping(&self) -> &CancellationToken {
        &self.life.stop
    }

    /// The catalogue and the index as they are now.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.publisher.snapshot()
    }

    /// How far indexing has come, to wait on.
    pub fn indexing(&self) -> watch::Receiver<Indexing> {
        self.publisher.indexing()
    }

    /// What an operation of a session goes by. An operation takes it once.
    pub fn gate(&self, session: &Arc<Session>) -> Gate {
        Gate::new(self.servers.world(), self.snapshot(), session.clone())
    }

    /// The configuration that it runs with now.
    pub fn config(&self) -> Arc<Config> {
        self.servers.world().config.clone()
    }

    /// Changes whenever another configuration was taken up.
    pub fn reloads(&self) -> watch::Receiver<()> {
        self.servers.reloads()
    }

    /// The connections as they are now, by server name.
    pub fn connections(&self) -> Arc<Connections> {
        self.servers.world().connections.clone()
    }

    /// The connection for a caller's requests to a server.
    fn connection_for(&self, caller: &Caller, server: &Arc<str>) -> Option<Arc<Connection>> {
        self.servers.connection_for(&self.gate(&caller.session), caller, server)
    }

    /// How many sessions are open, and how many notices wait for them.
    pub fn session_counts(&self) -> (usize, usize) {
        self.sessions.counts()
    }

    /// The sessions with a known client: number, client name, profile.
    pub fn clients(&self) -> Vec<(u64, String, Option<String>)> {
        self.sessions.clients()
    }

    /// How long it has been running.
    pub fn uptime(&self) -> Duration {
        self.servers.since.elapsed()
    }

    /// The embedder, once it was started.
    pub fn embedder(&self) -> Option<Embedder> {
        self.publisher.embedder()
    }

    /// A new session under a profile.
    pub fn open_session(&self, profile: Option<String>) -> Arc<Session> {
        self.sessions.open(profile)
    }

    /// A caller of this session, whose client calls itself `client` (`clientInfo.name`).
    pub fn caller(&self, session: Arc<Session>, client: &str) -> Caller {
        let limits = self.config().limits(client);
        Caller { session, client: client.into(), limits, ..Caller::default() }
    }

    /// Waits until every server is ready or has failed once, at most `limit`.
    pub async fn settled(&self, limit: Duration) {
        self.servers.settled(limit).await;
    }

    /// Waits until the last known lists are in the catalogue, if they are being read: milliseconds.
    pub async fn recalled_lists(&self) {
        self.publisher.listed().await;
    }

    /// Waits until the last known lists can be searched by their words, if they are being read.
    pub async fn searchable(&self) {
        self.publisher.searchable().await;
    }

    /// Waits until what the servers have listed so far is in the catalogue.
    pub async fn published(&self) {
        // Before the servers are started nothing else is on its way.
        if !*self.servers.started().borrow() {
            return self.searchable().await;
        }
        let updates = self.publisher.updates();
        if let Some(updates) = updates {
            let (tell, told) = oneshot::channel();
            if updates.send(Update::Barrier(tell)).await.is_ok() {
                let _ = told.await;
            }
        }
    }

    /// Waits until search by meaning covers what the servers have listed so far, at most `limit`.
    pub async fn indexed(&self, limit: Duration) {
        let covered = async {
            self.published().await;
            let mut indexing = self.indexing();
            let _ = indexing.wait_for(|now| now.finished).await;
        };
        let _ = tokio::time::timeout(limit, covered).await;
    }
}
