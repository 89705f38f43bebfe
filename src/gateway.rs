//! The gateway: every server, one catalogue, one index, and the operations on them.
//!
//! Read this first. [`Gateway::connect`] starts the servers; one publisher task turns what they list
//! into a [`Snapshot`] and swaps it in whole. Every operation takes one snapshot and keeps it. The
//! operations are in the files beside: `call` (the one road of a call), `discover` (search, browse,
//! describe), `graph` (run_parallel and workflows), `ask`, `apps`, `skills`, `builtin`.

mod apps;
mod ask;
mod builtin;
pub mod call;
mod discover;
mod graph;
mod inject;
mod learn;
mod lists;
pub mod session;
mod skills;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use dashmap::DashMap;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    catalog::{Catalog, GATEWAY, Listing, Tool},
    config::Config,
    downstream::{Connection, Dial, State, Update, guard::Guard},
    jobs::Jobs,
    metrics::Metrics,
    policy::Scope,
    results::Results,
    search::{Document, Embedder, Graph, Index, Passage},
    select::Selector,
};
pub use apps::AppArguments;
pub use ask::{AskArguments, Interrupt};
pub use discover::{BrowseArguments, SearchArguments};
pub use graph::ParallelArguments;
use session::Session;
pub use skills::SkillArguments;

/// The soft deadline of a client that nothing is known of: most give up at 60 s.
pub const SOFT_DEADLINE: Duration = Duration::from_secs(45);
/// How long updates are gathered before a new snapshot is made.
const GATHER: Duration = Duration::from_millis(15);
/// How long a new snapshot waits for its vectors before it is published with keywords alone.
const VECTORS_WAIT: Duration = Duration::from_millis(400);
/// How often the vectors that are there so far are published while the others are made.
const PARTLY_EVERY: Duration = Duration::from_secs(1);
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
    /// Which of them each profile lets through, once it was asked for.
    seen: DashMap<Option<String>, Arc<[bool]>>,
}

impl Snapshot {
    fn new(catalog: Arc<Catalog>, index: Arc<Index>, generation: u64) -> Snapshot {
        let tools = catalog.visible().cloned().collect();
        Snapshot { catalog, index, generation, tools, seen: DashMap::new() }
    }

    /// The same catalogue with another state of its index.
    fn with_index(&self, index: Arc<Index>) -> Snapshot {
        let (catalog, tools) = (self.catalog.clone(), self.tools.clone());
        Snapshot { catalog, index, generation: self.generation, tools, seen: self.seen.clone() }
    }

    /// The tool that a document of the index stands for.
    fn tool(&self, document: usize) -> Option<&Arc<Tool>> {
        self.tools.get(document)
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
    /// Where the store is, which holds what was learned; nothing outlives the process if absent.
    pub state: Option<PathBuf>,
}

/// The gateway.
pub struct Gateway {
    /// The configuration that it runs with.
    pub config: Config,
    /// Counters.
    pub metrics: Metrics,
    /// Calls in the background.
    pub jobs: Arc<Jobs>,
    /// Results that were too large to show whole.
    pub results: Results,
    selector: Selector,
    connections: BTreeMap<Arc<str>, Arc<Connection>>,
    embedding: Mutex<Option<AbortHandle>>,
    /// Whether a graph is being built.
    improving: AtomicBool,
    snapshot: ArcSwap<Snapshot>,
    indexing: watch::Sender<Indexing>,
    embedder: Mutex<Option<Embedder>>,
    without_embedder: bool,
    cache: Option<PathBuf>,
    state: Option<PathBuf>,
    learning: learn::LearningCell,
    sessions: DashMap<u64, std::sync::Weak<Session>>,
    questions: DashMap<String, ask::Question>,
    approvals: DashMap<ask::Approval, Instant>,
    connected: AtomicBool,
    updates: Mutex<Option<mpsc::Sender<Update>>>,
    stop: CancellationToken,
    tasks: TaskTracker,
    started: Instant,
}

impl Gateway {
    /// A gateway with nothing started: it answers at once, with its own tools alone.
    pub fn new(config: Config, options: Options) -> Arc<Self> {
        let selector = Selector::new(options.executable.clone());
        let guard = Arc::new(Guard::new(options.executable));
        let mut dials = options.dials;
        let connections = config
            .servers
            .iter()
            .filter(|(_, settings)| settings.enabled)
            .map(|(name, settings)| {
                let name: Arc<str> = name.as_str().into();
                let dial = dials.remove(&*name);
                (name.clone(), Arc::new(Connection::new(name, settings.clone(), guard.clone(), dial)))
            })
            .collect();
        let own = own_listing();
        let catalog = Catalog::new([(GATEWAY, &own, None)]);
        let index = Arc::new(Index::new(documents(&catalog), &config.embedder));
        let snapshot = Snapshot::new(Arc::new(catalog), index, 0);
        Arc::new(Self {
            metrics: Metrics::default(),
            jobs: Arc::default(),
            results: Results::default(),
            selector,
            connections,
            embedding: Mutex::default(),
            improving: AtomicBool::new(false),
            snapshot: ArcSwap::from_pointee(snapshot),
            indexing: watch::Sender::new(Indexing::default()),
            embedder: Mutex::default(),
            without_embedder: options.without_embedder,
            cache: options.cache,
            state: options.state,
            learning: learn::LearningCell::new(),
            sessions: DashMap::new(),
            questions: DashMap::new(),
            approvals: DashMap::new(),
            connected: AtomicBool::new(false),
            updates: Mutex::default(),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
            started: Instant::now(),
            config,
        })
    }

    /// Starts every server and the embedder, all at the same time, and returns at once. A second
    /// call does nothing.
    pub fn connect(self: &Arc<Self>) {
        if self.connected.swap(true, Ordering::Relaxed) {
            return;
        }
        let (updates, receiver) = mpsc::channel(256);
        if let Ok(mut own) = self.updates.lock() {
            *own = Some(updates.clone());
        }
        if !self.without_embedder
            && let Ok(mut embedder) = self.embedder.lock()
        {
            *embedder = Some(Embedder::start(&self.config.embedder));
        }
        for connection in self.connections.values() {
            let (connection, updates, stop) = (connection.clone(), updates.clone(), self.stop.clone());
            self.tasks.spawn(async move { connection.supervise(updates, stop).await });
        }
        let gateway = self.clone();
        self.tasks.spawn(async move { gateway.publish(receiver).await });
        let gateway = self.clone();
        self.tasks.spawn(async move { gateway.recalled().await });
        let stop = self.stop.clone();
        self.tasks.spawn(async move { heartbeat(stop).await });
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

    /// The connections, by server name.
    pub fn connections(&self) -> &BTreeMap<Arc<str>, Arc<Connection>> {
        &self.connections
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

    /// Tells every session something with its next answer.
    fn notify_all(&self, notice: &Value) {
        for session in &self.sessions {
            if let Some(session) = session.upgrade() {
                session.notify(notice.clone());
            }
        }
    }

    /// The rules that a session is under.
    fn scope<'a>(&'a self, session: &'a Session) -> Option<Scope<'a>> {
        let (name, profile) = self.config.profiles.get_key_value(session.profile.as_deref()?)?;
        Some(Scope { name, profile, categories: &self.config.categories })
    }

    /// What the rules say of a tool for a caller.
    pub fn verdict(&self, caller: &session::Caller, tool: &crate::catalog::Tool) -> crate::policy::Verdict {
        crate::policy::check(tool, self.scope(&caller.session))
    }

    /// The servers that start for the first time and of which no older list is known either.
    fn unlisted(&self) -> impl Iterator<Item = &Arc<str>> {
        let snapshot = self.snapshot();
        self.connections
            .iter()
            .filter(move |(server, connection)| {
                !connection.state().settled() && !snapshot.catalog.servers().contains_key(*server)
            })
            .map(|(server, _)| server)
    }

    /// Whether a caller may know of a server: without a profile of every one, else of those with a
    /// tool that the profile lets through.
    fn may_see(&self, caller: &session::Caller, server: &str) -> bool {
        if caller.session.profile.is_none() {
            return true;
        }
        let snapshot = self.snapshot();
        snapshot.catalog.visible().any(|tool| {
            *tool.server == *server && !matches!(self.verdict(caller, tool), crate::policy::Verdict::Deny(_))
        })
    }

    /// How a server stands, in one word; nothing for one that is ready.
    fn trouble(&self, server: &str) -> Option<&'static str> {
        let state = self.connections.get(server)?.state();
        (!matches!(state, State::Ready { .. })).then_some(state.as_str())
    }

    /// Waits until every server is ready or has failed once, at most `limit`.
    pub async fn settled(&self, limit: Duration) {
        let all = async {
            for connection in self.connections.values() {
                let mut state = connection.watch();
                let _ = state.wait_for(State::settled).await;
            }
        };
        let _ = tokio::time::timeout(limit, all).await;
    }

    /// Waits until what the servers have listed so far is in the catalogue.
    pub async fn published(&self) {
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

    /// Turns what the servers list into snapshots, until the gateway stops.
    async fn publish(self: Arc<Self>, mut updates: mpsc::Receiver<Update>) {
        let mut known: BTreeMap<Arc<str>, Listing> = BTreeMap::new();
        known.insert(GATEWAY.into(), own_listing());
        let mut fresh: std::collections::HashSet<Arc<str>> = std::collections::HashSet::new();
        if let Some(folder) = &self.cache {
            for (name, connection) in &self.connections {
                if let Some(listing) = lists::read(folder, name, &connection.settings) {
                    known.insert(name.clone(), listing);
                }
            }
        }
        let mut generation = 0;
        let mut changed = true;
        let mut barriers: Vec<oneshot::Sender<()>> = Vec::new();
        let mut news: Vec<Value> = Vec::new();
        loop {
            if changed {
                generation += 1;
                self.publish_one(&known, generation).await;
            }
            // Told only now: whoever reads of a new tool can call it.
            for notice in news.drain(..) {
                self.notify_all(&notice);
            }
            for waiting in barriers.drain(..) {
                let _ = waiting.send(());
            }
            changed = false;
            let mut next = tokio::select! {
                update = updates.recv() => update,
                () = self.stop.cancelled() => return,
            };
            tokio::time::sleep(GATHER).await;
            while let Some(update) = next {
                match update {
                    Update::Listed { server, listing: Some(listing) } => {
                        let (differs, notice) = self.take(&mut known, &mut fresh, server, listing);
                        changed |= differs;
                        news.extend(notice);
                    }
                    Update::Listed { .. } => {}
                    Update::Barrier(waiting) => barriers.push(waiting),
                }
                next = updates.try_recv().ok();
            }
        }
    }

    /// Takes a server's new list; says whether it differs from the old one, and what is to be told.
    fn take(
        &self,
        known: &mut BTreeMap<Arc<str>, Listing>,
        fresh: &mut std::collections::HashSet<Arc<str>>,
        server: Arc<str>,
        listing: Listing,
    ) -> (bool, Option<Value>) {
        if known.get(&server) == Some(&listing) {
            fresh.insert(server);
            return (false, None);
        }
        let mut notice = None;
        // Only what changes under the eyes of a session is news; an old list on disk is not.
        if !fresh.insert(server.clone())
            && let Some(old) = known.get(&server)
        {
            notice = changes(&server, old, &listing);
        }
        if let (Some(folder), Some(connection)) = (&self.cache, self.connections.get(&server))
            && let Err(error) = lists::write(folder, &server, &connection.settings, &listing)
        {
            tracing::warn!(%server, %error, "the list could not be kept on disk");
        }
        known.insert(server, listing);
        (true, notice)
    }

    async fn publish_one(self: &Arc<Self>, known: &BTreeMap<Arc<str>, Listing>, generation: u64) {
        let gateway = self.clone();
        let known = known.clone();
        let made = tokio::task::spawn_blocking(move || {
            let catalog = Catalog::new(known.iter().map(|(server, listing)| {
                let settings = gateway.connections.get(server).map(|connection| &connection.settings);
                (&**server, listing, settings)
            }));
            let index = Arc::new(Index::new(documents(&catalog), &gateway.config.embedder));
            Snapshot::new(Arc::new(catalog), index, generation)
        })
        .await;
        let Ok(snapshot) = made else {
            tracing::error!("the catalogue could not be made; the old one stays");
            return;
        };
        let index = snapshot.index.clone();
        let passages: Arc<[Passage]> =
            index.documents().iter().map(|document| document.passage(index.rules())).collect();
        let total = passages.len();
        self.indexing.send_replace(Indexing { generation, total, ..Indexing::default() });
        let Some(embedder) = self.embedder() else {
            self.snapshot.store(Arc::new(snapshot));
            self.indexing.send_replace(Indexing { generation, total, finished: true, failed: true, done: 0 });
            return;
        };
        let gateway = self.clone();
        let (texts, worker) = (passages.clone(), embedder.clone());
        let embedding = tokio::spawn(async move {
            let progress = gateway.clone();
            let vectors = worker
                .embed_documents(&texts, move |done, total| {
                    progress.indexing.send_if_modified(|now| {
                        let mine = now.generation == generation;
                        if mine {
                            (now.done, now.total) = (done, total);
                        }
                        mine
                    });
                })
                .await;
            match vectors {
                Ok(vectors) => Some(vectors.into_iter().map(Some).collect()),
                Err(error) => {
                    tracing::warn!("search goes by keywords alone: {error}");
                    None
                }
            }
        });
        // Known vectors come in no time: then one swap does, and search never falls back to keywords
        // because a single tool is new.
        let mut embedding = embedding;
        if let Ok(mut running) = self.embedding.lock()
            && let Some(older) = running.replace(embedding.abort_handle())
        {
            // What the older one has embedded is remembered; the rest is in the newer one's list.
            older.abort();
        }
        match tokio::time::timeout(VECTORS_WAIT, &mut embedding).await {
            Ok(vectors) => {
                let older = self.snapshot().index.clone();
                let (index, failed) = with_vectors(index, vectors.ok().flatten(), older).await;
                self.snapshot.store(Arc::new(snapshot.with_index(index)));
                self.indexing.send_replace(Indexing {
                    generation,
                    done: total,
                    total,
                    finished: true,
                    failed,
                });
                self.improve();
            }
            Err(_) => {
                let older = self.snapshot().index.clone();
                let partly = with_known(&embedder, &passages, &index, &older).await;
                self.snapshot.store(Arc::new(snapshot.with_index(partly)));
                let gateway = self.clone();
                self.tasks.spawn(async move {
                    let vectors = loop {
                        tokio::select! {
                            vectors = &mut embedding => break vectors.ok().flatten(),
                            () = gateway.stop.cancelled() => return,
                            () = tokio::time::sleep(PARTLY_EVERY) => {}
                        }
                        let partly = with_known(&embedder, &passages, &index, &older).await;
                        gateway.adopt_index(generation, &partly);
                    };
                    let (index, failed) = with_vectors(index, vectors, older).await;
                    gateway.adopt_index(generation, &index);
                    gateway.indexing.send_if_modified(|now| {
                        let mine = now.generation == generation;
                        if mine {
                            (now.finished, now.failed, now.done) = (true, failed, now.total);
                        }
                        mine
                    });
                    gateway.improve();
                });
            }
        }
    }

    /// Builds a graph in the background where the index is large enough to want one; exact search answers until then. One
    /// at a time: what has changed meanwhile is seen at the end.
    fn improve(self: &Arc<Self>) {
        let Some(rows) = self.snapshot().index.wants_graph() else { return };
        if self.improving.swap(true, Ordering::AcqRel) {
            return;
        }
        let gateway = self.clone();
        // Not waited for at the end: it has nothing to put away.
        tokio::task::spawn_blocking(move || {
            let start = Instant::now();
            tracing::info!(tools = rows.len(), "building the graph for a large catalogue");
            let graph = Arc::new(Graph::new(&rows));
            tracing::info!(tools = rows.len(), seconds = start.elapsed().as_secs(), "the graph is built");
            loop {
                let now = gateway.snapshot();
                let index = Arc::new(now.index.with_graph(graph.clone()));
                let stored = gateway.snapshot.compare_and_swap(&now, Arc::new(now.with_index(index)));
                if Arc::ptr_eq(&stored, &now) {
                    break;
                }
            }
            gateway.improving.store(false, Ordering::Release);
            gateway.improve();
        });
    }

    /// Swaps in an index for the catalogue that is published, unless a newer one is there already.
    fn adopt_index(&self, generation: u64, index: &Arc<Index>) {
        self.snapshot.rcu(|now| {
            if now.generation == generation { Arc::new(now.with_index(index.clone())) } else { now.clone() }
        });
    }
}

/// What a server changed while it was in use. A tool that is not what it was when it was
/// first seen may be an attack (a "rug pull"), so its new definition is to be read before use.
fn changes(server: &str, old: &Listing, new: &Listing) -> Option<Value> {
    let name = |tool: &Value| tool.get("name").and_then(Value::as_str).unwrap_or_default().to_string();
    let before: BTreeMap<String, &Value> = old.tools.iter().map(|tool| (name(tool), tool)).collect();
    let after: BTreeMap<String, &Value> = new.tools.iter().map(|tool| (name(tool), tool)).collect();
    let full = |tool: &str| crate::name::full_name(server, tool);
    let pick = |tools: Vec<String>| (!tools.is_empty()).then_some(tools);
    let redefined: Vec<String> = after
        .iter()
        .filter(|(name, tool)| before.get(*name).is_some_and(|old| old != *tool))
        .map(|(name, _)| full(name))
        .collect();
    for tool in &redefined {
        tracing::warn!(%tool, "the server changed this tool's definition while it was in use");
    }
    let added = after.keys().filter(|name| !before.contains_key(*name)).map(|name| full(name)).collect();
    let removed = before.keys().filter(|name| !after.contains_key(*name)).map(|name| full(name)).collect();
    let mut notice = json!({ "kind": "tools_changed", "server": server });
    for (key, tools) in [("added", pick(added)), ("removed", pick(removed)), ("redefined", pick(redefined))] {
        if let Some(tools) = tools {
            notice[key] = json!(tools.iter().take(20).collect::<Vec<_>>());
        }
    }
    if let Some(first) = notice.get("redefined").and_then(|all| all.get(0)).cloned() {
        notice["hint"] =
            json!("Read a redefined tool again before you call it; ask the user if it looks wrong.");
        notice["next_step"] = json!({ "tool": "get_tool", "arguments": { "name": first } });
    }
    notice.as_object().is_some_and(|fields| fields.len() > 2).then_some(notice)
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

/// The index with those of its vectors that are known by now.
async fn with_known(
    embedder: &Embedder,
    passages: &[Passage],
    index: &Arc<Index>,
    older: &Arc<Index>,
) -> Arc<Index> {
    let known = embedder.known_documents(passages);
    let some = known.iter().any(Option::is_some).then_some(known);
    with_vectors(index.clone(), some, older.clone()).await.0
}

/// The index with its vectors and the graph of an older one, and whether there are none.
async fn with_vectors(
    index: Arc<Index>,
    vectors: Option<Vec<Option<Arc<[f32]>>>>,
    older: Arc<Index>,
) -> (Arc<Index>, bool) {
    let Some(vectors) = vectors else { return (index, true) };
    let made = tokio::task::spawn_blocking({
        let index = index.clone();
        move || {
            let whole = index.with_vectors(vectors);
            older.graph().map(|graph| whole.with_graph(graph.clone())).unwrap_or(whole)
        }
    })
    .await;
    match made {
        Ok(whole) => (Arc::new(whole), false),
        Err(_) => (index, true),
    }
}

/// The visible tools as documents, in the catalogue's order.
fn documents(catalog: &Catalog) -> Vec<Document> {
    catalog
        .visible()
        .map(|tool| {
            let about = catalog.servers().get(&tool.server).map_or("", |entry| &entry.description);
            tool.document(about)
        })
        .collect()
}

/// Nonet's own tools as a listing.
fn own_listing() -> Listing {
    Listing {
        tools: builtin::definitions(),
        prompts: Vec::new(),
        about: "Nonet itself: calls in the background, kept results, state of the servers".into(),
    }
}
