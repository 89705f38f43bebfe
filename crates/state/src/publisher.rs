//! The publisher's state: the snapshot, its index and vectors, and the lists of the last run.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use arc_swap::{ArcSwap, ArcSwapOption};
use nonet_base::allocator;
use nonet_config::{Config, ServerSettings};
use nonet_search::{EmbedError, Embedder, Graph, Index, Settings, SharedVectors};
use nonet_servers::{
    catalog::{Catalog, CatalogSource, GATEWAY, Listing},
    downstream::{Connection, ServerUpdate},
    pins::Pins,
};
use nonet_text::{
    leaks::KnownSecrets,
    name::{Namespaces, RESERVED},
};
use parking_lot::Mutex;
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::AbortHandle,
};

use crate::{
    lists,
    servers::Servers,
    snapshot::Snapshot,
    trust::CheckBasis,
    world::{World, names_of},
};

/// How often the finished vectors are published while the others are being made.
const PARTLY_EVERY: Duration = Duration::from_secs(1);
/// How many updates may wait for the publisher.
const QUEUE: usize = 256;

/// The progress of indexing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Indexing {
    /// The catalogue being indexed.
    pub generation: u64,
    /// Texts with known vectors.
    pub done: usize,
    /// All texts.
    pub total: usize,
    /// Whether indexing is over: search by meaning covers this catalogue, or never will (see `failed`).
    pub finished: bool,
    /// Whether vectors are missing because the embedder failed.
    pub failed: bool,
}

/// The known lists, by server.
pub type KnownLists = BTreeMap<Arc<str>, KnownList>;

/// A known list.
#[derive(Clone, Debug)]
pub struct KnownList {
    /// The published list; where changes are held, it contains the trusted definitions.
    pub listing: Arc<Listing>,
    /// The list as the server sent it.
    pub raw: Arc<Listing>,
    /// The rules and pins of the last comparison; `None` before the first one.
    pub checked: Option<CheckBasis>,
    /// The connection that sent the list; 0 for a list of the last run.
    pub connection: u64,
    /// The session that owns the server, if any.
    pub session: Option<u64>,
}

impl KnownList {
    /// Creates a list that may be published under any connection to its server.
    pub fn of_all(listing: Listing) -> KnownList {
        KnownList::new(listing, 0, None)
    }

    /// Creates the list of a connection.
    pub fn new(listing: Listing, connection: u64, session: Option<u64>) -> KnownList {
        let listing = Arc::new(listing);
        KnownList { raw: listing.clone(), listing, checked: None, connection, session }
    }

    /// Masks secrets that have become known since the server sent the list.
    pub fn mask(&mut self, known: &KnownSecrets) {
        let mut listing = Listing::clone(&self.raw);
        if listing.mask(known) {
            *self = KnownList::new(listing, self.connection, self.session);
        }
    }

    /// Whether the list may be published under a connection. The list of a session's server belongs only to
    /// that session, even if another server has its name now.
    pub fn is_of(&self, connection: &Connection) -> bool {
        self.session.is_none() || self.connection == connection.id
    }
}

/// The progress of reading the last known lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecallState {
    /// Nobody has asked for the lists, or lists are not kept.
    Idle,
    /// The lists are being read.
    Reading,
    /// The lists are in the catalogue.
    Listed,
    /// The lists are also in the index, by words.
    Indexed,
}

/// A catalogue that is published with its words and still needs vectors.
pub struct KeywordIndex {
    generation: u64,
    index: Arc<Index>,
    /// Whether all of its vectors were published.
    is_whole: bool,
}

/// Turns lists into snapshots, and holds the current snapshot.
pub struct Publisher {
    snapshot: ArcSwap<Snapshot>,
    indexing: watch::Sender<Indexing>,
    /// The progress of reading the last known lists.
    recalled: watch::Sender<RecallState>,
    /// The channel for updates, once they are taken.
    updates: Mutex<Option<mpsc::Sender<ServerUpdate>>>,
    /// Whether search uses only keywords.
    without_embedder: bool,
    embedder: Mutex<Option<Embedder>>,
    /// The vectors that replicas share.
    vectors: Option<Arc<dyn SharedVectors>>,
    /// The task that embeds the newest catalogue.
    embedding: Mutex<Option<AbortHandle>>,
    /// The newest graph of a large catalogue, and whether one is being built.
    graph: ArcSwapOption<Graph>,
    improving: AtomicBool,
    /// The folder of the last known lists.
    folder: Option<PathBuf>,
    /// The trusted definitions.
    pub pins: Arc<Pins>,
    /// The servers whose lists it publishes.
    pub servers: Arc<Servers>,
}

impl Publisher {
    /// Creates a publisher that knows only Nonet's own tools, `own`.
    pub fn new(
        own: Listing,
        folder: Option<PathBuf>,
        without_embedder: bool,
        pins: Pins,
        vectors: Option<Arc<dyn SharedVectors>>,
        servers: Arc<Servers>,
    ) -> Arc<Publisher> {
        let config = &*servers.config();
        let own = CatalogSource { server: GATEWAY.into(), listing: Arc::new(own), settings: None };
        // No index yet: the handshake needs none, and the first lists come with one.
        let names = Arc::new(Namespaces::new(names_of(config)));
        let catalog = Arc::new(Catalog::default().updated([own], &config.policies, &names));
        let snapshot = Snapshot::unindexed(catalog, config, 0);
        Arc::new(Publisher {
            snapshot: ArcSwap::from_pointee(snapshot),
            indexing: watch::Sender::new(Indexing::default()),
            recalled: watch::Sender::new(RecallState::Idle),
            updates: Mutex::default(),
            without_embedder,
            embedder: Mutex::default(),
            vectors,
            embedding: Mutex::default(),
            graph: ArcSwapOption::empty(),
            improving: AtomicBool::new(false),
            folder,
            pins: Arc::new(pins),
            servers,
        })
    }

    /// Returns the current catalogue and index.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Watches the progress of indexing.
    pub fn indexing(&self) -> watch::Receiver<Indexing> {
        self.indexing.subscribe()
    }

    /// Whether search uses only keywords.
    pub fn is_without_embedder(&self) -> bool {
        self.without_embedder
    }

    /// Returns the embedder, if started.
    pub fn embedder(&self) -> Option<Embedder> {
        self.embedder.lock().clone()
    }

    /// Starts the embedder, unless it is running or disabled.
    pub fn start_embedder(&self, settings: &Settings) {
        if !self.without_embedder {
            self.embedder.lock().get_or_insert_with(|| Embedder::sharing(settings, self.vectors.clone()));
        }
    }

    /// Returns the folder of the last known lists.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Returns the channel for updates, once they are taken.
    pub fn updates(&self) -> Option<mpsc::Sender<ServerUpdate>> {
        self.updates.lock().clone()
    }

    /// Returns the updates to the first caller.
    pub fn take_updates(&self) -> Option<mpsc::Receiver<ServerUpdate>> {
        let mut updates = self.updates.lock();
        if updates.is_some() {
            return None;
        }
        let (sender, receiver) = mpsc::channel(QUEUE);
        *updates = Some(sender);
        if self.folder.is_some() {
            self.recalled.send_replace(RecallState::Reading);
        }
        Some(receiver)
    }

    /// Waits until the last known lists are in the catalogue, if they are being read: milliseconds.
    pub async fn listed(&self) {
        self.wait_for(|now| *now != RecallState::Reading).await;
    }

    /// Waits until keyword search covers the last known lists, if they are being read.
    pub async fn searchable(&self) {
        self.wait_for(|now| matches!(now, RecallState::Idle | RecallState::Indexed)).await;
    }

    /// Waits until the catalogue contains everything that the servers have listed so far.
    pub async fn published(&self) {
        // Before the servers are started, no other list is pending.
        if !*self.servers.started().borrow() {
            return self.searchable().await;
        }
        let updates = self.updates();
        if let Some(updates) = updates {
            let (tell, told) = oneshot::channel();
            if updates.send(ServerUpdate::Barrier(tell)).await.is_ok() {
                let _ = told.await;
            }
        }
    }

    /// Waits up to `limit` until search by meaning covers everything that the servers have listed so far.
    pub async fn indexed(&self, limit: Duration) {
        let covered = async {
            self.published().await;
            let mut indexing = self.indexing();
            let _ = indexing.wait_for(|now| now.finished).await;
        };
        let _ = tokio::time::timeout(limit, covered).await;
    }

    /// Indexes the published catalogue here and now, if a search comes before its index.
    pub fn index_early(&self, config: &Config) {
        let now = self.snapshot();
        if now.index.documents().len() < now.tools.len() {
            let indexed = now.indexed(now.catalog.clone(), config, now.generation);
            // Otherwise, a newer one was published meanwhile.
            let _ = self.snapshot.compare_and_swap(&now, Arc::new(indexed));
        }
    }

    /// Records that the last known lists are indexed.
    pub fn is_searchable(&self) {
        self.recalled.send_replace(RecallState::Indexed);
    }

    async fn wait_for(&self, there: impl Fn(&RecallState) -> bool) {
        if !there(&self.recalled.borrow()) {
            let _ = self.recalled.subscribe().wait_for(there).await;
        }
    }

    /// Adds the last known lists of servers without a list.
    pub async fn read_lists(&self, known: &mut KnownLists, world: &World) {
        let Some(folder) = self.folder.clone() else { return };
        let wanted: Vec<_> = world
            .connections
            .iter()
            .filter(|(name, _)| !known.contains_key(*name))
            .map(|(name, connection)| (name.clone(), connection.settings()))
            .filter(|(_, settings)| settings.session.is_none())
            .collect();
        let secrets = world.secrets.clone();
        let read = tokio::task::spawn_blocking(move || {
            let kept = |(name, settings): (Arc<str>, Arc<ServerSettings>)| {
                let mut listing = lists::read(&folder, &name, &settings)?;
                // The list may be from before a secret was known.
                if listing.mask(&secrets)
                    && let Err(error) = lists::correct(&folder, &name, &settings, &listing)
                {
                    tracing::warn!(server = %name, %error, "the list on disk has a secret and cannot be replaced");
                }
                Some((name, KnownList::of_all(listing)))
            };
            wanted.into_iter().filter_map(kept).collect::<Vec<_>>()
        });
        match read.await {
            Ok(read) => known.extend(read),
            Err(_) => tracing::error!("the kept lists could not be read; they are read from the servers"),
        }
    }

    /// Stores a server's list on disk, unless the server belongs to a session.
    pub fn keep_list(&self, server: &str, settings: &ServerSettings, listing: &Listing) {
        if let Some(folder) = &self.folder
            && settings.session.is_none()
            && let Err(error) = lists::write(folder, server, settings, listing)
        {
            tracing::warn!(%server, %error, "the list could not be kept on disk");
        }
    }

    /// Publishes the catalogue of these lists, with an index by words and with the known vectors. The very
    /// first catalogue is published before its index exists.
    pub async fn publish_words(
        self: &Arc<Self>,
        lists: &KnownLists,
        world: Arc<World>,
        generation: u64,
    ) -> Option<KeywordIndex> {
        let publisher = self.clone();
        let sources: Vec<CatalogSource> = lists
            .iter()
            .filter_map(|(server, known)| {
                let connection = world.connections.get(server);
                let is_own = RESERVED.contains(&&**server);
                let is_there = is_own || connection.is_some_and(|one| known.is_of(one));
                let settings = connection.map(|connection| connection.settings());
                is_there.then(|| CatalogSource {
                    server: server.clone(),
                    listing: known.listing.clone(),
                    settings,
                })
            })
            .collect();
        let made = tokio::task::spawn_blocking(move || {
            let before = publisher.snapshot();
            // Names of sessions' servers do not affect the names of others.
            let names = Arc::new(Namespaces::new(names_of(&world.config)));
            let catalog = Arc::new(before.catalog.updated(sources, &world.config.policies, &names));
            catalog.warn_of_clashes(&before.catalog);
            if before.generation == 0 {
                let unindexed = Snapshot::unindexed(catalog.clone(), &world.config, generation);
                publisher.snapshot.store(Arc::new(unindexed));
                publisher.recalled.send_if_modified(|now| {
                    let reading = *now == RecallState::Reading;
                    *now = if reading { RecallState::Listed } else { *now };
                    reading
                });
            }
            let snapshot = before.indexed(catalog, &world.config, generation);
            // Reading, checking and indexing a list creates several copies; only one remains.
            allocator::give_back();
            snapshot
        })
        .await;
        let Ok(snapshot) = made else {
            tracing::error!("the catalogue could not be built; the old one stays");
            return None;
        };
        let index = snapshot.index.clone();
        let with_known = match self.embedder() {
            Some(embedder) => self.with_vectors(index.clone(), Ok(embedder.known_documents(&*index))).await.0,
            None => index.clone(),
        };
        let is_whole = with_known.has_all_vectors();
        self.snapshot.store(Arc::new(snapshot.with_index(with_known)));
        // Last, because it wakes the tasks that follow the lists.
        let total = index.documents().len();
        self.indexing.send_replace(Indexing { generation, total, ..Indexing::default() });
        Some(KeywordIndex { generation, index, is_whole })
    }

    /// Makes the vectors of a published catalogue, and publishes the finished ones every second.
    pub fn embed(self: &Arc<Self>, words: KeywordIndex) {
        let KeywordIndex { generation, index, is_whole } = words;
        let Some(embedder) = self.embedder() else {
            self.indexed_as(generation, true);
            return;
        };
        if is_whole {
            if let Some(older) = self.embedding.lock().take() {
                older.abort();
            }
            self.indexed_as(generation, false);
            self.improve();
            return;
        }
        let publisher = self.clone();
        let (texts, worker) = (index.clone(), embedder.clone());
        let mut embedding = tokio::spawn(async move {
            let told = move |done, total| {
                publisher.indexing.send_if_modified(|now| {
                    let mine = now.generation == generation;
                    if mine {
                        (now.done, now.total) = (done, total);
                    }
                    mine
                });
            };
            worker.embed_documents(&*texts, told).await
        });
        if let Some(older) = self.embedding.lock().replace(embedding.abort_handle()) {
            // Vectors made by the older task are cached; the newer list contains the rest.
            older.abort();
        }
        let publisher = self.clone();
        self.servers.life.tasks.spawn(async move {
            let vectors = loop {
                tokio::select! {
                    vectors = &mut embedding => break vectors,
                    () = publisher.servers.life.stop.cancelled() => return,
                    () = tokio::time::sleep(PARTLY_EVERY) => {}
                }
                let known = embedder.known_documents(&*index);
                publisher.adopt_index(generation, publisher.with_vectors(index.clone(), Ok(known)).await.0);
            };
            // Aborted because of a newer catalogue, whose vectors follow.
            let Ok(vectors) = vectors else { return };
            let (index, failed) = publisher.with_vectors(index, vectors).await;
            if !failed {
                publisher.adopt_index(generation, index);
            }
            publisher.indexed_as(generation, failed);
            publisher.improve();
        });
    }

    /// Returns the index with its vectors and the newest graph, and whether embedding has failed.
    async fn with_vectors(
        &self,
        index: Arc<Index>,
        vectors: Result<Vec<Option<Arc<[f32]>>>, EmbedError>,
    ) -> (Arc<Index>, bool) {
        let vectors = match vectors {
            Ok(vectors) => vectors,
            Err(error) => {
                tracing::warn!("search uses keywords only: {error}");
                return (index, true);
            }
        };
        if vectors.iter().all(Option::is_none) {
            return (index, false);
        }
        let graph = self.graph.load_full();
        let made = tokio::task::spawn_blocking({
            let index = index.clone();
            move || {
                let whole = index.with_vectors(vectors);
                graph.map(|graph| whole.with_graph(graph)).unwrap_or(whole)
            }
        });
        made.await.map_or((index, true), |whole| (Arc::new(whole), false))
    }

    /// Records that indexing a catalogue is over, unless a newer catalogue is being indexed.
    fn indexed_as(&self, generation: u64, failed: bool) {
        self.indexing.send_if_modified(|now| {
            let mine = now.generation == generation;
            if mine {
                (now.finished, now.failed) = (true, failed);
                now.done = if failed { now.done } else { now.total };
            }
            mine
        });
    }

    /// Swaps in an index for the published catalogue, unless a newer catalogue exists.
    fn adopt_index(&self, generation: u64, index: Arc<Index>) {
        self.snapshot.rcu(|now| {
            if now.generation == generation { Arc::new(now.with_index(index.clone())) } else { now.clone() }
        });
    }

    /// Builds a graph in the background if the index is large enough; exact search answers until then. Only
    /// one graph is built at a time; changes made meanwhile are handled at the end.
    fn improve(self: &Arc<Self>) {
        // While tools are being embedded, the graph would cover only some of them.
        let early = self.servers.life.stop.is_cancelled() || !self.indexing.borrow().finished;
        if early || self.improving.swap(true, Ordering::AcqRel) {
            return;
        }
        let Some(rows) = self.snapshot().index.wants_graph() else {
            self.improving.store(false, Ordering::Release);
            return;
        };
        let publisher = self.clone();
        // Not awaited at shutdown, because there is nothing to clean up. After a panic, `improving` stays set
        // and exact search continues.
        tokio::task::spawn_blocking(move || {
            let start = Instant::now();
            tracing::info!(tools = rows.len(), "building the graph of a large catalogue");
            let graph = Arc::new(Graph::new(&rows, &|| publisher.servers.life.stop.is_cancelled()));
            if publisher.servers.life.stop.is_cancelled() {
                return;
            }
            tracing::info!(tools = rows.len(), seconds = start.elapsed().as_secs(), "the graph is built");
            publisher.graph.store(Some(graph.clone()));
            loop {
                let now = publisher.snapshot();
                let index = Arc::new(now.index.with_graph(graph.clone()));
                let before = publisher.snapshot.compare_and_swap(&now, Arc::new(now.with_index(index)));
                if Arc::ptr_eq(&before, &now) {
                    break;
                }
            }
            publisher.improving.store(false, Ordering::Release);
            publisher.improve();
        });
    }
}
