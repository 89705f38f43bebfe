//! The facts of one owner in memory, with their index.
//!
//! Facts are read on first use, and again after another gateway has changed them. The index is updated when
//! it is needed. Vectors come from the store; the embedder makes missing ones in the background.

use std::{
    collections::{HashMap, HashSet},
    fmt::{self, Debug, Formatter},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use nonet_search::{EmbedError, Embedder, Index, Passage, Settings};
use nonet_store::{FactVector, RecordKind, Records, StoreError};
use tokio::{
    sync::{Mutex, MutexGuard, watch},
    time::timeout,
};

use super::Fact;

/// How long facts wait until the model's files are read; until then search uses only their words.
const MODEL_WAIT: Duration = Duration::from_secs(1);
/// How many facts are embedded before their vectors are stored and used.
const BATCH: usize = 32;
/// How long a search for facts waits for the vectors of few new facts.
const VECTOR_WAIT: Duration = Duration::from_secs(1);

/// The facts of an owner.
pub(super) struct Shelf {
    pub owner: String,
    state: Mutex<State>,
    /// The number of facts.
    count: AtomicUsize,
    /// Whether the index is being updated in the background.
    catching_up: watch::Sender<bool>,
}

impl Debug for Shelf {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shelf")
            .field("owner", &self.owner)
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

/// Facts with their index, newest first.
pub(super) struct FactView {
    pub facts: Vec<Arc<Fact>>,
    pub index: Index,
}

struct State {
    settings: Settings,
    /// The store's change count at the last read; `None` before the first fact.
    changes: Option<u64>,
    facts: HashMap<Arc<str>, Arc<Fact>>,
    /// The model of the known vectors.
    model: Option<Arc<str>>,
    vectors: HashMap<Arc<str>, Arc<[f32]>>,
    view: Arc<FactView>,
    /// Whether the view lacks recent facts.
    behind: bool,
    without_vectors: bool,
}

/// The facts as currently stored. Keeps them locked until dropped.
pub(super) struct LockedFacts<'a> {
    state: MutexGuard<'a, State>,
    count: &'a AtomicUsize,
}

impl Shelf {
    pub(super) fn new(owner: &str, settings: &Settings) -> Self {
        let view = Arc::new(FactView { facts: Vec::new(), index: Index::new(Vec::new(), settings) });
        let state = State {
            settings: settings.clone(),
            changes: None,
            facts: HashMap::new(),
            model: None,
            vectors: HashMap::new(),
            view,
            behind: false,
            without_vectors: false,
        };
        let (count, catching_up) = (AtomicUsize::default(), watch::Sender::default());
        Self { owner: owner.into(), state: Mutex::new(state), count, catching_up }
    }

    /// Returns how many facts are in memory.
    pub(super) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Returns the facts as currently stored, with the stored vectors of this embedder's model.
    pub(super) async fn current(
        &self,
        records: &Records,
        embedder: Option<&Embedder>,
    ) -> Result<LockedFacts<'_>, StoreError> {
        let mut state = self.state.lock().await;
        let changes = records.changes(&self.owner).await?;
        if changes != state.changes {
            state.take(records.all(RecordKind::Fact, &self.owner).await?.iter().filter_map(Fact::of));
            // Read before the facts, so that changes made in between are read next time.
            state.changes = changes;
            state.model = None;
            self.count.store(state.facts.len(), Ordering::Relaxed);
        }
        if state.model.is_none()
            && !state.facts.is_empty()
            && let Some(embedder) = embedder
            && let Ok(Some(model)) = timeout(MODEL_WAIT, embedder.fingerprint()).await
        {
            let vectors = records.vectors(&self.owner, &model).await?;
            state.vectors = vectors
                .into_iter()
                .filter_map(|known| {
                    let (id, fact) = state.facts.get_key_value(&*known.id)?;
                    (fact.revision == known.revision).then(|| (id.clone(), known.vector))
                })
                .collect();
            (state.model, state.without_vectors) = (Some(model), true);
        }
        Ok(LockedFacts { state, count: &self.count })
    }

    /// Whether the caller has to update the index, because nobody else is doing so.
    pub(super) fn begin_catching_up(&self) -> bool {
        self.catching_up.send_if_modified(|is_busy| !std::mem::replace(is_busy, true))
    }

    /// Waits a moment until nobody updates the index.
    pub(super) async fn caught_up(&self) {
        let mut catching_up = self.catching_up.subscribe();
        let _ = timeout(VECTOR_WAIT, catching_up.wait_for(|is_busy| !is_busy)).await;
    }

    /// Updates the index, and makes the missing vectors.
    pub(super) async fn catch_up(&self, records: &Records, embedder: Option<&Embedder>) {
        let done = UpdateGuard(&self.catching_up);
        let mut refused = HashSet::new();
        loop {
            let mut current = match self.current(records, embedder).await {
                Ok(current) => current,
                Err(error) => return tracing::warn!(%error, "facts are not indexed"),
            };
            current.index().await;
            let state = current.state;
            let (Some(embedder), Some(model)) = (embedder, state.model.clone()) else {
                drop(done);
                return;
            };
            let missing: Vec<(Arc<Fact>, Passage)> = state
                .facts
                .values()
                .filter(|fact| !state.vectors.contains_key(&fact.document.id))
                .filter(|fact| !refused.contains(&fact.document.id))
                .take(BATCH)
                .map(|fact| (fact.clone(), fact.document.passage(state.settings.weights)))
                .collect();
            if missing.is_empty() {
                // Before the lock is released, so that a fact added now starts the work again.
                drop(done);
                return;
            }
            drop(state);
            let mut made = Vec::new();
            for (fact, passage) in missing {
                match embedder.embed_passage(&passage).await {
                    Ok(vector) => made.push((fact, vector)),
                    Err(EmbedError::Failed(reason)) => {
                        tracing::warn!(%reason, "a fact cannot be embedded; it is found by its words only");
                        refused.insert(fact.document.id.clone());
                    }
                    Err(EmbedError::Unavailable(_)) => return,
                }
            }
            let vectors = made.iter().map(|(fact, vector)| {
                let id = fact.document.id.to_string();
                FactVector { id, revision: fact.revision, vector: vector.clone() }
            });
            if let Err(error) = records.put_vectors(&self.owner, &model, vectors.collect()).await {
                tracing::warn!(%error, "the vectors of facts are not kept");
            }
            let mut state = self.state.lock().await;
            if state.model.as_ref() != Some(&model) {
                continue;
            }
            for (fact, vector) in made {
                let id = &fact.document.id;
                if state.facts.get(id).is_some_and(|now| Arc::ptr_eq(now, &fact)) {
                    state.vectors.insert(id.clone(), vector);
                    state.without_vectors = true;
                }
            }
        }
    }
}

/// Marks the update of the index as over, however it ends.
struct UpdateGuard<'a>(&'a watch::Sender<bool>);

impl Drop for UpdateGuard<'_> {
    fn drop(&mut self) {
        self.0.send_replace(false);
    }
}

impl State {
    /// Takes over the stored facts. Unchanged facts keep their place in the index.
    fn take(&mut self, facts: impl Iterator<Item = Fact>) {
        let mut before = std::mem::take(&mut self.facts);
        for fact in facts {
            let id = fact.document.id.clone();
            let same = before.remove(&id).filter(|known| known.revision == fact.revision);
            self.facts.insert(id, same.unwrap_or_else(|| Arc::new(fact)));
        }
        self.vectors.clear();
        self.behind = true;
    }

    /// Counts a change by this gateway. If other gateways made changes at the same time, the counts differ,
    /// and the facts are read again.
    fn changed(&mut self) {
        self.changes = self.changes.map(|count| count + 1);
        self.behind = true;
    }
}

impl LockedFacts<'_> {
    pub(super) fn len(&self) -> usize {
        self.state.facts.len()
    }

    /// Counts the facts without a vector.
    pub(super) fn missing_vectors(&self) -> usize {
        self.state.facts.len().saturating_sub(self.state.vectors.len())
    }

    /// Returns the current view, which may be out of date.
    pub(super) fn view(&self) -> Arc<FactView> {
        self.state.view.clone()
    }

    /// Adds a fact that was stored.
    pub(super) fn put(&mut self, fact: Fact) {
        let id = fact.document.id.clone();
        self.state.vectors.remove(&id);
        self.state.facts.insert(id, Arc::new(fact));
        self.state.changed();
        self.count.store(self.len(), Ordering::Relaxed);
    }

    /// Removes a fact that was deleted from the store.
    pub(super) fn remove(&mut self, id: &str) {
        self.state.vectors.remove(id);
        self.state.facts.remove(id);
        self.state.changed();
        self.count.store(self.len(), Ordering::Relaxed);
    }

    /// Returns the view after updating it. The cost depends only on the changes.
    pub(super) async fn index(&mut self) -> Arc<FactView> {
        let state = &mut *self.state;
        if !state.behind && !state.without_vectors {
            return state.view.clone();
        }
        let mut facts = match state.behind {
            true => state.facts.values().cloned().collect(),
            false => state.view.facts.clone(),
        };
        let (before, settings, is_behind) = (state.view.clone(), state.settings.clone(), state.behind);
        let vectors = state.vectors.clone();
        let made = tokio::task::spawn_blocking(move || {
            if is_behind {
                facts.sort_by(|a, b| b.at_ms.cmp(&a.at_ms).then(a.document.id.cmp(&b.document.id)));
            }
            let documents = facts.iter().map(|fact| fact.document.clone()).collect();
            let mut index = before.index.updated(documents, &settings);
            if !vectors.is_empty() {
                index = index
                    .with_vectors(facts.iter().map(|fact| vectors.get(&fact.document.id).cloned()).collect());
            }
            Arc::new(FactView { facts, index })
        });
        // After a panic, the previous view stays in use.
        if let Ok(view) = made.await {
            state.view = view;
            (state.behind, state.without_vectors) = (false, false);
        }
        state.view.clone()
    }
}
