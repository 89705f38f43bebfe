//! The publisher's state: the snapshot, its index and vectors, and what the last run left on disk.

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
use parking_lot::Mutex;
use tokio::{
    sync::{mpsc, watch},
    task::AbortHandle,
};

use super::{
    Indexing, Snapshot, builtin, lists,
    servers::Life,
    trusting::CheckedWith,
    world::{World, names_of},
};
use crate::{
    allocator,
    catalog::{GATEWAY, Listing, Source},
    config::{Config, ServerSettings},
    downstream::{Connection, Update},
    name::{Namespaces, RESERVED},
    pins::Pins,
    search::{EmbedError, Embedder, Graph, Index, Settings, SharedVectors},
};

/// How often the vectors that are there so far are published while the others are made.
const PARTLY_EVERY: Duration = Duration::from_secs(1);
/// Updates that wait for the publisher.
const QUEUE: usize = 256;

/// What is listed, by server.
pub(super) type Lists = BTreeMap<Arc<str>, Known>;

/// A known list.
#[derive(Clone, Debug)]
pub(super) struct Known {
    /// The list as it is published: where changes are held, with the definitions that are trusted.
    pub listing: Arc<Listing>,
    /// The list as its server gave it.
    pub raw: Arc<Listing>,
    /// What it was last compared with; none if it was not yet.
    pub checked: Option<CheckedWith>,
    /// The connection that listed it; 0 for a list of the last run.
    pub connection: u64,
    /// The session that its server belonged to, if it did.
    pub session: Option<u64>,
}

impl Known {
    /// A list that may be published under any connection to its server.
    pub fn of_all(listing: Listing) -> Known {
        Known::new(listing, 0, None)
    }

    /// The list of a connection.
    pub fn new(listing: Listing, connection: u64, session: Option<u64>) -> Known {
        let listing = Arc::new(listing);
        Known { raw: listing.clone(), listing, checked: None, connection, session }
    }

    /// Whether the list is published as that of a connection. What the server of a session had listed is nobody else's, even
    /// if another server has its name now.
    pub fn is_of(&self, connection: &Connection) -> bool {
        self.session.is_none() || self.connection == connection.id
    }
}

/// How much of the last known lists is in the snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recalled {
    /// Nobody has asked for them, or they are kept nowhere.
    Idle,
    /// They are being read.
    Reading,
    /// They are in the catalogue.
    Listed,
    /// They are in the index as well, by their words.
    Indexed,
}

/// A catalogue that is published by its words, and whose vectors are still to be made.
pub(super) struct Words {
    generation: u64,
    index: Arc<Index>,
    /// Whether it was published with all of its vectors.
    is_whole: bool,
}

/// Makes lists into snapshots, and has the current one.
pub(super) struct Publisher {
    snapshot: ArcSwap<Snapshot>,
    indexing: watch::Sender<Indexing>,
    /// How much of the last lists is there.
    recalled: watch::Sender<Recalled>,
    /// Where updates go, once somebody takes them.
    updates: Mutex<Option<mpsc::Sender<Update>>>,
    /// Whether search goes by keywords only.
    without_embedder: bool,
    embedder: Mutex<Option<Embedder>>,
    /// The vectors that replicas share.
    vectors: Option<Arc<dyn SharedVectors>>,
    /// The embedding of the newest catalogue.
    embedding: Mutex<Option<AbortHandle>>,
    /// The newest graph of a large catalogue, and whether one is being built.
    graph: ArcSwapOption<Graph>,
    improving: AtomicBool,
    /// Where the last known lists are kept.
    folder: Option<PathBuf>,
    /// Which definitions are trusted.
    pub pins: Arc<Pins>,
    life: Life,
}

impl Publisher {
    /// A publisher of Nonet's own tools.
    pub fn new(
        config: &Config,
        folder: Option<PathBuf>,
        without_embedder: bool,
        pins: Pins,
        vectors: Option<Arc<dyn SharedVectors>>,
        life: Life,
    ) -> Arc<Publisher> {
        let own = Source {
            server: GATEWAY.into(),
            listing: Arc::new(builtin::listing(&config.gateway)),
            settings: None,
        };
        let snapshot = Snapshot::empty(config).updated([own], config, 0);
        Arc::new(Publisher {
            snapshot: ArcSwap::from_pointee(snapshot),
            indexing: watch::Sender::new(Indexing::default()),
            recalled: watch::Sender::new(Recalled::Idle),
            updates: Mutex::default(),
            without_embedder,
            embedder: Mutex::default(),
            vectors,
            embedding: Mutex::default(),
            graph: ArcSwapOption::empty(),
            improving: AtomicBool::new(false),
            folder,
            pins: Arc::new(pins),
            life,
        })
    }

    /// The catalogue and the index as they are now.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// How far indexing has come, to wait on.
    pub fn indexing(&self) -> watch::Receiver<Indexing> {
        self.indexing.subscribe()
    }

    /// Whether search goes by keywords only.
    pub fn is_without_embedder(&self) -> bool {
        self.without_embedder
    }

    /// The embedder, once it was started.
    pub fn embedder(&self) -> Option<Embedder> {
        self.embedder.lock().clone()
    }

    /// Starts the embedder, unless it was started or there is to be none.
    pub fn start_embedder(&self, settings: &Settings) {
        if !self.without_embedder {
            self.embedder.lock().get_or_insert_with(|| Embedder::sharing(settings, self.vectors.clone()));
        }
    }

    /// Where the last known lists are kept.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Where to send updates, once somebody takes them.
    pub fn updates(&self) -> Option<mpsc::Sender<Update>> {
        self.updates.lock().clone()
    }

    /// The updates, for the first who asks.
    pub fn take_updates(&self) -> Option<mpsc::Receiver<Update>> {
        let mut updates = self.updates.lock();
        if updates.is_some() {
            return None;
        }
        let (sender, receiver) = mpsc::channel(QUEUE);
        *updates = Some(sender);
        if self.folder.is_some() {
            self.recalled.send_replace(Recalled::Reading);
        }
        Some(receiver)
    }

    /// Waits until the last known lists are in the catalogue, if they are being read: milliseconds.
    pub async fn listed(&self) {
        self.wait_for(|now| *now != Recalled::Reading).await;
    }

    /// Waits until the last known lists can be searched by their words, if they are being read.
    pub async fn searchable(&self) {
        self.wait_for(|now| matches!(now, Recalled::Idle | Recalled::Indexed)).await;
    }

    /// The last known lists are indexed.
    pub fn is_searchable(&self) {
        self.recalled.send_replace(Recalled::Indexed);
    }

    async fn wait_for(&self, there: impl Fn(&Recalled) -> bool) {
        if !there(&self.recalled.borrow()) {
            let _ = self.recalled.subscribe().wait_for(there).await;
        }
    }

    /// Adds the last known lists of servers of which none is known yet.
    pub async fn read_lists(&self, known: &mut Lists, world: &World) {
        let Some(folder) = self.folder.clone() else { return };
        let wanted: Vec<_> = world
            .connections
            .iter()
            .filter(|(name, _)| !known.contains_key(*name))
            .map(|(name, connection)| (name.clone(), connection.settings()))
            .filter(|(_, settings)| settings.session.is_none())
            .collect();
        let read = tokio::task::spawn_blocking(move || {
            let kept = |(name, settings): (Arc<str>, Arc<ServerSettings>)| {
                let listing = lists::read(&folder, &name, &settings)?;
                Some((name, Known::of_all(listing)))
            };
            wanted.into_iter().filter_map(kept).collect::<Vec<_>>()
        });
        match read.await {
            Ok(read) => known.extend(read),
            Err(_) => tracing::error!("the kept lists could not be read; they are read from the servers"),
        }
    }

    /// Keeps a server's list on disk, unless it is a session's.
    pub fn keep_list(&self, server: &str, settings: &ServerSettings, listing: &Listing) {
        if let Some(folder) = &self.folder
            && settings.session.is_none()
            && let Err(error) = lists::write(folder, server, settings, listing)
        {
            tracing::warn!(%server, %error, "the list could not be kept on disk");
        }
    }

    /// Publishes the catalogue of these lists, with an index by their words and the vectors that are known. The very first
    /// one is published before its index is there.
    pub async fn publish_words(
        self: &Arc<Self>,
        lists: &Lists,
        world: Arc<World>,
        generation: u64,
    ) -> Option<Words> {
        let publisher = self.clone();
        let sources: Vec<Source> = lists
            .iter()
            .filter_map(|(server, known)| {
                let connection = world.connections.get(server);
                let is_own = RESERVED.contains(&&**server);
                let is_there = is_own || connection.is_some_and(|one| known.is_of(one));
                let settings = connection.map(|connection| connection.settings());
                is_there.then(|| Source { server: server.clone(), listing: known.listing.clone(), settings })
            })
            .collect();
        let made = tokio::task::spawn_blocking(move || {
            let before = publisher.snapshot();
            // Those of sessions name nothing for others.
            let names = Arc::new(Namespaces::new(names_of(&world.config)));
            let catalog = Arc::new(before.catalog.updated(sources, &world.config.policies, &names));
            catalog.warn_of_clashes(&before.catalog);
            if before.generation == 0 {
                let unindexed = Arc::new(Index::new(Vec::new(), &world.config.embedder));
                publisher.snapshot.store(Arc::new(Snapshot::new(catalog.clone(), unindexed, generation)));
                publisher.recalled.send_if_modified(|now| {
                    let reading = *now == Recalled::Reading;
                    *now = if reading { Recalled::Listed } else { *now };
                    reading
                });
            }
            let snapshot = before.indexed(catalog, &world.config, generation);
            // A list is read, checked and indexed in several forms, of which one stays.
            allocator::give_back();
            snapshot
        })
        .await;
        let Ok(snapshot) = made else {
            tracing::error!("the catalogue could not be made; the old one stays");
            return None;
        };
        let index = snapshot.index.clone();
        let with_known = match self.embedder() {
            Some(embedder) => self.with_vectors(index.clone(), Ok(embedder.known_documents(&*index))).await.0,
            None => index.clone(),
        };
        let is_whole = with_known.has_all_vectors();
        self.snapshot.store(Arc::new(snapshot.with_index(with_known)));
        // Last: it has those who follow the lists look again.
        let total = index.documents().len();
        self.indexing.send_replace(Indexing { generation, total, ..Indexing::default() });
        Some(Words { generation, index, is_whole })
    }

    /// Makes the vectors of a published catalogue, and publishes what is there of them every second.
    pub fn embed(self: &Arc<Self>, words: Words) {
        let Words { generation, index, is_whole } = words;
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
            // What the older one has embedded is remembered; the rest is in the newer one's list.
            older.abort();
        }
        let publisher = self.clone();
        self.life.tasks.spawn(async move {
            let vectors = loop {
                tokio::select! {
                    vectors = &mut embedding => break vectors,
                    () = publisher.life.stop.cancelled() => return,
                    () = tokio::time::sleep(PARTLY_EVERY) => {}
                }
                let known = embedder.known_documents(&*index);
                publisher.adopt_index(generation, publisher.with_vectors(index.clone(), Ok(known)).await.0);
            };
            // Aborted, because a newer catalogue is there: its vectors follow.
            let Ok(vectors) = vectors else { return };
            let (index, failed) = publisher.with_vectors(index, vectors).await;
            if !failed {
                publisher.adopt_index(generation, index);
            }
            publisher.indexed_as(generation, failed);
            publisher.improve();
        });
    }

    /// The index with its vectors and the newest graph, and whether there are none.
    async fn with_vectors(
        &self,
        index: Arc<Index>,
        vectors: Result<Vec<Option<Arc<[f32]>>>, EmbedError>,
    ) -> (Arc<Index>, bool) {
        let vectors = match vectors {
            Ok(vectors) => vectors,
            Err(error) => {
                tracing::warn!("search goes by keywords alone: {error}");
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

    /// Tells that a catalogue is indexed as far as it will be, unless a newer one is being indexed.
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

    /// Swaps in an index for the catalogue that is published, unless a newer one is there already.
    fn adopt_index(&self, generation: u64, index: Arc<Index>) {
        self.snapshot.rcu(|now| {
            if now.generation == generation { Arc::new(now.with_index(index.clone())) } else { now.clone() }
        });
    }

    /// Builds a graph in the background where the index is large enough to want one; exact search answers until then. One
    /// at a time: what has changed meanwhile is seen at the end.
    fn improve(self: &Arc<Self>) {
        // While tools are being embedded it would be a graph of a part of them.
        let early = self.life.stop.is_cancelled() || !self.indexing.borrow().finished;
        if early || self.improving.swap(true, Ordering::AcqRel) {
            return;
        }
        let Some(rows) = self.snapshot().index.wants_graph() else {
            self.improving.store(false, Ordering::Release);
            return;
        };
        let publisher = self.clone();
        // Not waited for at the end: it has nothing to put away. If it panics, `improving` stays: exact search goes on.
        tokio::task::spawn_blocking(move || {
            let start = Instant::now();
            tracing::info!(tools = rows.len(), "building the graph of a large catalogue");
            let graph = Arc::new(Graph::new(&rows, &|| publisher.life.stop.is_cancelled()));
            if publisher.life.stop.is_cancelled() {
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
