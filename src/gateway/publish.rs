//! Publishing: the one writer of snapshots.
//!
//! The lists of the last run come first, before any server is started: as a catalogue, so that the handshake can tell of
//! them, then indexed by words. What the servers list becomes a catalogue, an index by words, and then vectors. A snapshot
//! is published at once with the vectors that are known, again while the others are made, and once more when a graph of a
//! large catalogue is built. Only the lists of the last run are ever waited for.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use super::{Gateway, Indexing, Recalled, Snapshot, builtin, lists};
use crate::{
    allocator,
    catalog::{Catalog, GATEWAY, Listing},
    config::ServerSettings,
    downstream::Update,
    search::{Document, EmbedError, Graph, Index, Passage},
};

/// How long updates are gathered before a new snapshot is made.
const GATHER: Duration = Duration::from_millis(15);
/// How often the vectors that are there so far are published while the others are made.
const PARTLY_EVERY: Duration = Duration::from_secs(1);

/// A catalogue that is published by its words, and whose vectors are still to be made.
struct Words {
    generation: u64,
    index: Arc<Index>,
    passages: Arc<[Passage]>,
}

impl Gateway {
    /// Turns what the servers list into snapshots, until the gateway stops.
    pub(super) async fn publish(self: Arc<Self>, mut updates: mpsc::Receiver<Update>) {
        let mut known: BTreeMap<Arc<str>, Listing> = BTreeMap::from([(GATEWAY.into(), builtin::listing())]);
        let mut fresh: HashSet<Arc<str>> = HashSet::new();
        self.read_lists(&mut known).await;
        let mut generation = 1;
        let mut words = self.publish_words(&known, generation).await;
        self.recalled.send_replace(Recalled::Indexed);
        let mut connected = self.servers.started();
        tokio::select! {
            _ = connected.wait_for(|connected| *connected) => {}
            () = self.life.stop.cancelled() => return,
        }
        let mut changed = false;
        let mut barriers: Vec<oneshot::Sender<()>> = Vec::new();
        let mut news: Vec<Value> = Vec::new();
        let mut relisted = false;
        loop {
            if changed {
                generation += 1;
                words = self.publish_words(&known, generation).await.or(words);
            }
            // Told only now: whoever reads of a new tool can call it.
            for notice in news.drain(..) {
                self.tell_of_changes(&notice);
            }
            for waiting in barriers.drain(..) {
                let _ = waiting.send(());
            }
            if let Some(words) = words.take() {
                self.embed(words);
            }
            if std::mem::take(&mut relisted) {
                self.tell_of_unmatched(&fresh);
            }
            changed = false;
            let mut next = tokio::select! {
                update = updates.recv() => update,
                () = self.life.stop.cancelled() => return,
            };
            tokio::time::sleep(GATHER).await;
            while let Some(update) = next {
                relisted |= matches!(update, Update::Listed { .. } | Update::Reconfigured);
                match update {
                    Update::Listed { server, listing, published } => {
                        if let Some(listing) = listing {
                            let (differs, notice) = self.take(&mut known, &mut fresh, server, listing);
                            changed |= differs;
                            news.extend(notice);
                        }
                        barriers.push(published);
                    }
                    Update::Reconnected { server } => self.metrics.restarted(&server),
                    Update::SignInNeeded { server, login } => self.tell_of_sign_in(&server, login.as_deref()),
                    Update::Reconfigured => {
                        let world = self.servers.world();
                        known.retain(|server, _| {
                            **server == *GATEWAY || world.connections.contains_key(server)
                        });
                        fresh.retain(|server| world.connections.contains_key(server));
                        self.read_lists(&mut known).await;
                        changed = true;
                    }
                    Update::Barrier(waiting) => barriers.push(waiting),
                }
                next = updates.try_recv().ok();
            }
        }
    }

    /// Tells every session that sees a server that it wants a sign-in.
    fn tell_of_sign_in(&self, server: &str, login: Option<&str>) {
        let mut notice = json!({ "kind": "sign_in_needed", "server": server });
        if let Some(login) = login {
            notice["command"] = json!(login);
            notice["hint"] =
                json!("Ask the user to run the command in a terminal; the server is there at once then.");
        }
        for session in self.sessions.all() {
            if self.gate(&session).sees(server) {
                session.notify(notice.clone());
            }
        }
    }

    /// Tells every session what changed, as far as its profile shows it.
    fn tell_of_changes(&self, notice: &Value) {
        for session in self.sessions.all() {
            let gate = self.gate(&session);
            let server = notice["server"].as_str().unwrap_or_default();
            // Of a tool that is gone nobody can say who saw it; then its server's other tools decide.
            let sees_server = gate.sees(server);
            let seen = |name: &Value| match gate.catalog().get(name.as_str().unwrap_or_default()) {
                Some(tool) => gate.allows(tool),
                None => sees_server,
            };
            let mut own = notice.clone();
            let mut any = false;
            for key in ["added", "removed", "redefined"] {
                let Some(names) = own.get_mut(key).and_then(Value::as_array_mut) else { continue };
                names.retain(seen);
                any |= !names.is_empty();
                if names.is_empty() {
                    own.as_object_mut().and_then(|fields| fields.remove(key));
                }
            }
            let first = own.get("redefined").and_then(|names| names.get(0)).cloned();
            match (first, own.as_object_mut()) {
                (Some(first), Some(fields)) if fields.contains_key("next_step") => {
                    fields.insert(
                        "next_step".into(),
                        json!({ "tool": "get_tool", "arguments": { "name": first } }),
                    );
                }
                (None, Some(fields)) => {
                    fields.remove("next_step");
                    fields.remove("hint");
                }
                _ => {}
            }
            if any {
                session.notify(own);
            }
        }
    }

    /// Takes a server's new list; says whether it differs from the old one, and what is to be told.
    fn take(
        &self,
        known: &mut BTreeMap<Arc<str>, Listing>,
        fresh: &mut HashSet<Arc<str>>,
        server: Arc<str>,
        listing: Listing,
    ) -> (bool, Option<Value>) {
        if known.get(&server) == Some(&listing) {
            self.note_listed(&server);
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
        if let (Some(folder), Some(connection)) = (&self.cache, self.connections().get(&server))
            && let Err(error) = lists::write(folder, &server, &connection.settings(), &listing)
        {
            tracing::warn!(%server, %error, "the list could not be kept on disk");
        }
        known.insert(server, listing);
        (true, notice)
    }

    /// Adds the last known lists of servers of which none is known yet.
    async fn read_lists(self: &Arc<Self>, known: &mut BTreeMap<Arc<str>, Listing>) {
        let Some(folder) = self.cache.clone() else { return };
        let connections = self.connections();
        let wanted: Vec<_> = connections
            .iter()
            .filter(|(name, _)| !known.contains_key(*name))
            .map(|(name, connection)| (name.clone(), connection.settings()))
            .collect();
        let read = tokio::task::spawn_blocking(move || {
            let kept = |(name, settings): (Arc<str>, Arc<ServerSettings>)| {
                let listing = lists::read(&folder, &name, &settings)?;
                Some((name, listing))
            };
            wanted.into_iter().filter_map(kept).collect::<Vec<_>>()
        });
        match read.await {
            Ok(read) => known.extend(read),
            Err(_) => tracing::error!("the kept lists could not be read; they are read from the servers"),
        }
    }

    /// Publishes the catalogue of these lists, with an index by their words and the vectors that are known. The very first
    /// one is published before its index is there.
    async fn publish_words(
        self: &Arc<Self>,
        known: &BTreeMap<Arc<str>, Listing>,
        generation: u64,
    ) -> Option<Words> {
        let gateway = self.clone();
        let known = known.clone();
        let made = tokio::task::spawn_blocking(move || {
            let world = gateway.servers.world();
            let settings: BTreeMap<&Arc<str>, Arc<ServerSettings>> =
                world.connections.iter().map(|(name, connection)| (name, connection.settings())).collect();
            let listings = known.iter().map(|(server, listing)| {
                (&**server, listing, settings.get(server).map(|settings| &**settings))
            });
            let catalog = Arc::new(Catalog::new(listings, &world.config.policies));
            let before = gateway.snapshot();
            catalog.warn_of_clashes(&before.catalog);
            if before.generation == 0 {
                let unindexed = Arc::new(Index::new(Vec::new(), &world.config.embedder));
                gateway.snapshot.store(Arc::new(Snapshot::new(catalog.clone(), unindexed, generation)));
                gateway.recalled.send_if_modified(|now| {
                    let reading = *now == Recalled::Reading;
                    *now = if reading { Recalled::Listed } else { *now };
                    reading
                });
            }
            let index = Arc::new(Index::new(documents(&catalog), &world.config.embedder));
            let passages: Arc<[Passage]> =
                index.documents().iter().map(|document| document.passage(index.rules())).collect();
            // A list is read, checked and indexed in several forms, of which one stays.
            allocator::give_back();
            (Snapshot::new(catalog, index, generation), passages)
        })
        .await;
        let Ok((snapshot, passages)) = made else {
            tracing::error!("the catalogue could not be made; the old one stays");
            return None;
        };
        let index = snapshot.index.clone();
        let with_known = match self.embedder() {
            Some(embedder) => {
                self.with_vectors(index.clone(), Ok(embedder.known_documents(&passages))).await.0
            }
            None => index.clone(),
        };
        self.snapshot.store(Arc::new(snapshot.with_index(with_known)));
        // Last: it has those who follow the lists look again.
        self.indexing.send_replace(Indexing { generation, total: passages.len(), ..Indexing::default() });
        Some(Words { generation, index, passages })
    }

    /// Makes the vectors of a published catalogue, and publishes what is there of them every second.
    fn embed(self: &Arc<Self>, words: Words) {
        let Words { generation, index, passages } = words;
        let Some(embedder) = self.embedder() else {
            self.indexed_as(generation, true);
            return;
        };
        let gateway = self.clone();
        let (texts, worker) = (passages.clone(), embedder.clone());
        let mut embedding = tokio::spawn(async move {
            let told = move |done, total| {
                gateway.indexing.send_if_modified(|now| {
                    let mine = now.generation == generation;
                    if mine {
                        (now.done, now.total) = (done, total);
                    }
                    mine
                });
            };
            worker.embed_documents(&texts, told).await
        });
        if let Some(older) = self.embedding.lock().replace(embedding.abort_handle()) {
            // What the older one has embedded is remembered; the rest is in the newer one's list.
            older.abort();
        }
        let gateway = self.clone();
        self.life.tasks.spawn(async move {
            let vectors = loop {
                tokio::select! {
                    vectors = &mut embedding => break vectors,
                    () = gateway.life.stop.cancelled() => return,
                    () = tokio::time::sleep(PARTLY_EVERY) => {}
                }
                let known = embedder.known_documents(&passages);
                gateway.adopt_index(generation, gateway.with_vectors(index.clone(), Ok(known)).await.0);
            };
            // Aborted, because a newer catalogue is there: its vectors follow.
            let Ok(vectors) = vectors else { return };
            let (index, failed) = gateway.with_vectors(index, vectors).await;
            if !failed {
                gateway.adopt_index(generation, index);
            }
            gateway.indexed_as(generation, failed);
            gateway.improve();
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
        let gateway = self.clone();
        // Not waited for at the end: it has nothing to put away. If it panics, `improving` stays: exact search goes on.
        tokio::task::spawn_blocking(move || {
            let start = Instant::now();
            tracing::info!(tools = rows.len(), "building the graph of a large catalogue");
            let graph = Arc::new(Graph::new(&rows, &|| gateway.life.stop.is_cancelled()));
            if gateway.life.stop.is_cancelled() {
                return;
            }
            tracing::info!(tools = rows.len(), seconds = start.elapsed().as_secs(), "the graph is built");
            gateway.graph.store(Some(graph.clone()));
            loop {
                let now = gateway.snapshot();
                let index = Arc::new(now.index.with_graph(graph.clone()));
                let before = gateway.snapshot.compare_and_swap(&now, Arc::new(now.with_index(index)));
                if Arc::ptr_eq(&before, &now) {
                    break;
                }
            }
            gateway.improving.store(false, Ordering::Release);
            gateway.improve();
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

/// The visible tools as documents, in the catalogue's order.
pub(super) fn documents(catalog: &Catalog) -> Vec<Document> {
    catalog
        .visible()
        .map(|tool| {
            let about = catalog.servers().get(&tool.server).map_or("", |entry| &entry.description);
            tool.document(about)
        })
        .collect()
}
