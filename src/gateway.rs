//! The gateway: every server, one catalogue, one index, and the operations on them.
//!
//! Read this first. [`Gateway::connect`] starts the servers; one publisher task turns what they list
//! into a [`Snapshot`] and swaps it in whole (`publish`). Every operation takes one snapshot and keeps it. The
//! operations are in the files beside: `call` (the one road of a call), `discover` (search, browse,
//! describe), `graph` (run_parallel and workflows), `ask`, `apps`, `skills`, `builtin`.

mod absent;
mod apps;
mod ask;
mod builtin;
pub mod call;
mod discover;
mod faults;
mod feed;
mod graph;
mod inject;
pub mod inquiry;
mod keep;
pub mod last_seen;
mod learn;
mod lists;
mod passing;
mod publish;
mod reload;
mod run;
mod see_also;
pub mod session;
mod skills;
mod unmatched;

use std::{
    collections::{BTreeMap, HashSet},
    path::PathBuf,
    sync::{Arc, LazyLock, Mutex, OnceLock, atomic::AtomicBool},
    time::{Duration, Instant, SystemTime},
};

use arc_swap::{ArcSwap, ArcSwapOption};
use dashmap::DashMap;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    catalog::{Catalog, GATEWAY, Listing, Tool},
    config::{Config, Globs, Profile, Scope as Scoped},
    downstream::{Connection, ConnectionContext, Dial, LogLevel, State, Update, process_guard::ProcessGuard},
    jobs::Jobs,
    metrics::Metrics,
    oauth::Vault,
    policy::Scope,
    results::json_len,
    search::{Embedder, Graph, Index},
    select::Selector,
    shell,
};
pub use absent::NEEDS_CONFIG;
pub use apps::AppArguments;
pub use ask::{AskArguments, Interrupt};
pub use discover::{BrowseArguments, SearchArguments};
pub use feed::Feed;
pub use graph::ParallelArguments;
pub use keep::Known;
pub use passing::Page;
pub use reload::Changes;
use session::Session;
pub use skills::SkillArguments;
pub use unmatched::Unmatched;

/// How long servers may take to stop, all together.
const STOP_LIMIT: Duration = Duration::from_secs(6);

/// The catalogue and the index made from it. The two in your hand always agree.
pub struct Snapshot {
    /// Every tool that is known.
    pub catalog: Arc<Catalog>,
    /// The visible ones, as documents.
    pub index: Arc<Index>,
    /// Counts up with each catalogue.
    pub generation: u64,
    /// The visible tools, in the order of the documents.
    tools: Arc<[Arc<Tool>]>,
    /// What each profile makes of them, once it was asked for.
    views: Arc<DashMap<Option<String>, Arc<View>>>,
    /// The bytes of their definitions, once they were asked for.
    bytes: Arc<OnceLock<usize>>,
}

/// What one profile makes of the tools of a snapshot, by document.
struct View {
    /// Which of them it lets through.
    seen: Box<[bool]>,
    /// The priorities of those that have one.
    priorities: Box<[(usize, f32)]>,
    /// Own names and versions of those.
    ranked: HashSet<(Arc<str>, String)>,
}

impl Snapshot {
    fn new(catalog: Arc<Catalog>, index: Arc<Index>, generation: u64) -> Snapshot {
        let tools = catalog.visible().cloned().collect();
        Snapshot { catalog, index, generation, tools, views: Arc::default(), bytes: Arc::default() }
    }

    /// The same catalogue with another state of its index.
    fn with_index(&self, index: Arc<Index>) -> Snapshot {
        let (catalog, tools) = (self.catalog.clone(), self.tools.clone());
        let (views, bytes) = (self.views.clone(), self.bytes.clone());
        Snapshot { catalog, index, generation: self.generation, tools, views, bytes }
    }

    /// The tool that a document of the index stands for.
    fn tool(&self, document: usize) -> Option<&Arc<Tool>> {
        self.tools.get(document)
    }

    /// The visible tools of servers, without Nonet's own.
    pub fn of_servers(&self) -> impl Iterator<Item = &Arc<Tool>> {
        self.tools.iter().filter(|tool| &*tool.server != GATEWAY)
    }

    /// The bytes of JSON that their definitions take. They are counted once for a catalogue.
    fn bytes(&self) -> usize {
        *self.bytes.get_or_init(|| self.of_servers().map(|tool| json_len(&tool.definition)).sum())
    }

    /// The document that stands for the visible tool of this full name.
    fn place(&self, full: &str) -> Option<usize> {
        self.tools.binary_search_by(|tool| (*tool.full).cmp(full)).ok()
    }
}

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

/// How much of the last known lists is in the snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recalled {
    /// Nobody has asked for them, or they are kept nowhere.
    Idle,
    /// They are being read.
    Reading,
    /// They are in the catalogue.
    Listed,
    /// They are in the index as well, by their words.
    Indexed,
}

/// The connections, by server name.
pub type Connections = BTreeMap<Arc<str>, Arc<Connection>>;

/// The configuration and what was made from it.
struct World {
    config: Arc<Config>,
    connections: Arc<Connections>,
}

impl World {
    /// The rules that a session is under. A profile that is gone from the configuration lets nothing through.
    fn scope<'a>(&'a self, session: &'a Session) -> Option<Scope<'a>> {
        let name = session.profile.as_deref()?;
        let profile = self.config.profiles.get(name).unwrap_or_else(|| &NOTHING);
        Some(Scope { name, profile, categories: &self.config.categories })
    }
}

/// The profile of those whose profile was taken out of the configuration.
static NOTHING: LazyLock<Profile> = LazyLock::new(|| {
    let deny = Globs::new(vec!["*".into()]).unwrap_or_default();
    Profile {
        deny,
        max_risk: Some(crate::config::Risk::Low),
        categories: vec![String::new()],
        ..Profile::default()
    }
});

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
    /// What it runs with; replaced whole when the configuration changes.
    world: ArcSwap<World>,
    /// Counters.
    pub metrics: Metrics,
    /// Calls in the background.
    pub jobs: Arc<Jobs>,
    /// Calls as they end.
    pub calls: Feed,
    selector: Selector,
    around: Arc<ConnectionContext>,
    embedding: Mutex<Option<AbortHandle>>,
    /// The newest graph of a large catalogue, and whether one is being built.
    graph: ArcSwapOption<Graph>,
    improving: AtomicBool,
    snapshot: ArcSwap<Snapshot>,
    indexing: watch::Sender<Indexing>,
    embedder: Mutex<Option<Embedder>>,
    without_embedder: bool,
    cache: Option<PathBuf>,
    state: Option<PathBuf>,
    learning: learn::LearningCell,
    kept: keep::KeptCell,
    sessions: DashMap<u64, std::sync::Weak<Session>>,
    links: Mutex<passing::Links>,
    /// Skills and apps, as searches name them.
    guides: ArcSwapOption<see_also::Guides>,
    /// What sessions want to hear of servers' logs.
    log_levels: Mutex<BTreeMap<u64, LogLevel>>,
    questions: DashMap<String, ask::Question>,
    approvals: DashMap<ask::Approval, Instant>,
    /// Whether the servers and the embedder were started.
    connected: watch::Sender<bool>,
    /// How much of the last lists is there.
    recalled: watch::Sender<Recalled>,
    updates: Mutex<Option<mpsc::Sender<Update>>>,
    /// Changes with each configuration that is taken up.
    reloads: watch::Sender<()>,
    told_of_unmatched: unmatched::Told,
    stop: CancellationToken,
    tasks: TaskTracker,
    started: Instant,
    /// The same on the clock.
    since: SystemTime,
}

impl Gateway {
    /// A gateway with nothing started: it answers at once, with its own tools alone.
    pub fn new(config: Config, options: Options) -> Arc<Self> {
        let selector = Selector::new(options.executable.clone());
        let around = Arc::new(ConnectionContext {
            guard: ProcessGuard::new(options.executable),
            vault: options.state.as_deref().map(Vault::in_state),
            login: shell::nonet("login", &config.file),
        });
        let mut dials = options.dials;
        let connections = config
            .servers
            .iter()
            .filter(|(_, settings)| settings.enabled)
            .map(|(name, settings)| {
                let name: Arc<str> = name.as_str().into();
                let dial = dials.remove(&*name);
                (name.clone(), Arc::new(Connection::new(name, settings.clone(), around.clone(), dial)))
            })
            .collect::<Connections>();
        let own = own_listing();
        let catalog = Catalog::new([(GATEWAY, &own, None)], &config.policies);
        let index = Arc::new(Index::new(publish::documents(&catalog), &config.embedder));
        let snapshot = Snapshot::new(Arc::new(catalog), index, 0);
        Arc::new(Self {
            metrics: Metrics::default(),
            jobs: Arc::default(),
            calls: Feed::default(),
            selector,
            around,
            embedding: Mutex::default(),
            graph: ArcSwapOption::empty(),
            improving: AtomicBool::new(false),
            snapshot: ArcSwap::from_pointee(snapshot),
            indexing: watch::Sender::new(Indexing::default()),
            embedder: Mutex::default(),
            without_embedder: options.without_embedder,
            cache: options.cache,
            state: options.state,
            learning: learn::LearningCell::new(),
            kept: keep::KeptCell::new(),
            sessions: DashMap::new(),
            links: Mutex::default(),
            guides: ArcSwapOption::empty(),
            log_levels: Mutex::default(),
            questions: DashMap::new(),
            approvals: DashMap::new(),
            connected: watch::Sender::new(false),
            recalled: watch::Sender::new(Recalled::Idle),
            updates: Mutex::default(),
            reloads: watch::Sender::new(()),
            told_of_unmatched: unmatched::Told::default(),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
            started: Instant::now(),
            since: SystemTime::now(),
            world: ArcSwap::from_pointee(World {
                config: Arc::new(config),
                connections: Arc::new(connections),
            }),
        })
    }

    /// Begins to read the last known lists and returns at once. A second call does nothing.
    pub fn recall(self: &Arc<Self>) {
        let Ok(mut updates) = self.updates.lock() else { return };
        if updates.is_some() {
            return;
        }
        let (sender, receiver) = mpsc::channel(256);
        *updates = Some(sender);
        if self.cache.is_some() {
            self.recalled.send_replace(Recalled::Reading);
        }
        let gateway = self.clone();
        self.tasks.spawn(async move { gateway.publish(receiver).await });
    }

    /// Starts every server and the embedder, all at the same time, and returns at once. A second
    /// call does nothing.
    pub fn connect(self: &Arc<Self>) {
        self.recall();
        let Some(updates) = self.updates.lock().ok().and_then(|updates| updates.clone()) else { return };
        if self.stop.is_cancelled() {
            return;
        }
        if !self.without_embedder
            && let Ok(mut embedder) = self.embedder.lock()
            && embedder.is_none()
        {
            *embedder = Some(Embedder::start(&self.config().embedder));
        }
        if self.connected.send_replace(true) {
            return;
        }
        for connection in self.connections().values() {
            self.supervise(connection, &updates);
        }
        if !self.without_embedder {
            let gateway = self.clone();
            self.tasks.spawn(async move { gateway.recalled().await });
        }
        let stop = self.stop.clone();
        self.tasks.spawn(async move { heartbeat(stop).await });
    }

    /// Keeps a server connected until it is retired or the gateway stops.
    fn supervise(&self, connection: &Arc<Connection>, updates: &mpsc::Sender<Update>) {
        let stop = self.stop.child_token();
        let (connection, updates) = (connection.clone(), updates.clone());
        let retired = connection.retired().clone();
        self.tasks.spawn(async move {
            let end = stop.clone();
            tokio::select! {
                () = connection.supervise(updates, end) => {}
                () = async { retired.cancelled().await; stop.cancel(); std::future::pending().await } => {}
            }
        });
    }

    /// Stops every server and waits until all have left.
    pub async fn stop(&self) {
        self.stop.cancel();
        self.tasks.close();
        if tokio::time::timeout(STOP_LIMIT, self.tasks.wait()).await.is_err() {
            tracing::warn!("some servers did not stop in time");
        }
    }

    /// Cancelled when the gateway stops.
    pub fn stopping(&self) -> &CancellationToken {
        &self.stop
    }

    /// The catalogue and the index as they are now.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// How far indexing has come, to wait on.
    pub fn indexing(&self) -> watch::Receiver<Indexing> {
        self.indexing.subscribe()
    }

    /// What it runs with now. An operation that looks at more than one thing of it takes it once.
    fn world(&self) -> Arc<World> {
        self.world.load_full()
    }

    /// The configuration that it runs with now.
    pub fn config(&self) -> Arc<Config> {
        self.world.load().config.clone()
    }

    /// Changes whenever another configuration was taken up.
    pub fn reloads(&self) -> watch::Receiver<()> {
        self.reloads.subscribe()
    }

    /// The connections as they are now, by server name.
    pub fn connections(&self) -> Arc<Connections> {
        self.world.load().connections.clone()
    }

    /// The connection that a caller's requests to a server go over: the one that all clients share, or its session's own
    /// where the server is started per client.
    fn connection_for(&self, caller: &session::Caller, server: &Arc<str>) -> Option<Arc<Connection>> {
        let shared = self.connections().get(server).cloned()?;
        let settings = shared.settings();
        if settings.scope == Scoped::Shared || !caller.lasting || shared.is_held() {
            return Some(shared);
        }
        let begin = || {
            let own =
                Arc::new(Connection::new(server.clone(), (*settings).clone(), self.around.clone(), None));
            own.begin_with_log(self.wanted_log());
            // What it lists is what the shared one lists.
            let (updates, _) = mpsc::channel(1);
            self.supervise(&own, &updates);
            own
        };
        Some(caller.session.connection(server, &settings, begin))
    }

    /// The bytes of JSON that the definitions of all servers' tools take, and those of the nine.
    pub fn saving(&self) -> (usize, usize) {
        static NINE: LazyLock<usize> =
            LazyLock::new(|| crate::meta::definitions().iter().map(json_len).sum());
        (self.snapshot().bytes(), *NINE)
    }

    /// How many sessions there are, and how many notices wait for them.
    pub fn session_counts(&self) -> (usize, usize) {
        let sessions = self.sessions.iter().filter_map(|session| session.upgrade());
        sessions.fold((0, 0), |(count, notices), session| (count + 1, notices + session.waiting_notices()))
    }

    /// The sessions whose client has called, with its name and profile, by number.
    pub fn clients(&self) -> Vec<(u64, String, Option<String>)> {
        let sessions = self.sessions.iter().filter_map(|session| session.upgrade());
        let mut clients: Vec<_> = sessions
            .filter_map(|session| Some((session.id, session.client()?.to_string(), session.profile.clone())))
            .collect();
        clients.sort();
        clients
    }

    /// How long it has been running.
    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// The embedder, once it was started.
    pub fn embedder(&self) -> Option<Embedder> {
        self.embedder.lock().ok()?.clone()
    }

    /// A new session under a profile.
    pub fn open_session(&self, profile: Option<String>) -> Arc<Session> {
        let session = Session::new(profile);
        self.sessions.retain(|_, session| session.strong_count() > 0);
        self.sessions.insert(session.id, Arc::downgrade(&session));
        session
    }

    /// A caller of this session, whose client calls itself `client` (`clientInfo.name`).
    pub fn caller(&self, session: Arc<Session>, client: &str) -> session::Caller {
        let limits = self.config().limits(client);
        session::Caller { session, client: client.into(), limits, ..session::Caller::default() }
    }

    /// What the rules say of a tool for a caller.
    pub fn verdict(&self, caller: &session::Caller, tool: &crate::catalog::Tool) -> crate::policy::Verdict {
        crate::policy::check(tool, self.world().scope(&caller.session))
    }

    /// Whether the rules let a caller use a tool.
    pub fn may_call(&self, caller: &session::Caller, tool: &Tool) -> bool {
        !matches!(self.verdict(caller, tool), crate::policy::Verdict::Deny(_))
    }

    /// The servers that start for the first time and of which no older list is known either.
    fn unlisted(&self) -> Vec<Arc<str>> {
        let snapshot = self.snapshot();
        let connections = self.connections();
        let unlisted = connections.iter().filter(|(server, connection)| {
            !connection.state().settled() && !snapshot.catalog.servers().contains_key(*server)
        });
        unlisted.map(|(server, _)| server.clone()).collect()
    }

    /// Whether a caller may know of a server: without a profile of every one, else of those with a
    /// tool that the profile lets through.
    fn may_see(&self, caller: &session::Caller, server: &str) -> bool {
        if caller.session.profile.is_none() {
            return true;
        }
        let snapshot = self.snapshot();
        snapshot.catalog.visible().any(|tool| *tool.server == *server && self.may_call(caller, tool))
    }

    /// How a server stands, in one word; nothing for one that is ready.
    fn trouble(&self, server: &str) -> Option<&'static str> {
        let state = self.connections().get(server)?.state();
        (!matches!(state, State::Ready { .. })).then_some(state.as_str())
    }

    /// Waits until every server is ready or has failed once, at most `limit`.
    pub async fn settled(&self, limit: Duration) {
        let all = async {
            for connection in self.connections().values() {
                let mut state = connection.watch();
                let _ = state.wait_for(State::settled).await;
            }
        };
        let _ = tokio::time::timeout(limit, all).await;
    }

    /// Waits until the last known lists are in the catalogue, if they are being read: milliseconds.
    pub async fn recalled_lists(&self) {
        if *self.recalled.borrow() == Recalled::Reading {
            let _ = self.recalled.subscribe().wait_for(|now| *now != Recalled::Reading).await;
        }
    }

    /// Waits until the last known lists can be searched by their words, if they are being read.
    pub async fn searchable(&self) {
        let there = |now: &Recalled| matches!(now, Recalled::Idle | Recalled::Indexed);
        if !there(&self.recalled.borrow()) {
            let _ = self.recalled.subscribe().wait_for(there).await;
        }
    }

    /// Waits until what the servers have listed so far is in the catalogue.
    pub async fn published(&self) {
        // Before the servers are started nothing else is on its way.
        if !*self.connected.borrow() {
            return self.searchable().await;
        }
        let updates = self.updates.lock().ok().and_then(|updates| updates.clone());
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

/// Keeps the runtime's next timer near. A timer that is set for earlier than the next one wakes the
/// I/O driver through the kernel, which would cost every call two system calls for limits that it
/// never reaches.
async fn heartbeat(stop: CancellationToken) {
    let mut beat = tokio::time::interval(Duration::from_secs(1));
    loop {
        tokio::select! {
            _ = beat.tick() => {}
            () = stop.cancelled() => return,
        }
    }
}

/// Nonet's own tools as a listing.
fn own_listing() -> Listing {
    Listing {
        tools: builtin::definitions(),
        about: "Nonet itself: calls in the background, kept results, state of the servers".into(),
        ..Listing::default()
    }
}
