//! Learning from outcomes: which tool was called with success after which search. On this machine only.
//!
//! A session remembers its last searches; a successful call of a tool that one of them showed counts for that search's
//! words. What was learned lifts the tool a little when the same words are searched again (`search/outcomes.rs`).

use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::{Duration, Instant, SystemTime},
};

use tokio::sync::OnceCell;

use super::{Gateway, Snapshot, session::Caller};
use crate::{
    catalog::{GATEWAY, Tool},
    search::{Boosts, Found, Learned, Outcomes, outcomes},
    store::Store,
};

/// How long after a search a call still counts as what it led to.
const FOLLOWED_WITHIN: Duration = Duration::from_secs(10 * 60);
/// The share of the best score from which on a tool counts as found: what is called of the rest was not searched for.
const FITS: f32 = 0.5;
/// Searches of a session that are remembered; a model searches once per step.
pub(super) const SEARCHES: usize = 8;

/// A search whose outcome is awaited.
#[derive(Debug)]
pub struct Search {
    words: Vec<String>,
    /// The full names that it found and that were not called since.
    found: Vec<Arc<str>>,
    at: Instant,
}

/// What was learned, in memory and in the store.
pub(super) struct Learning {
    outcomes: Mutex<Outcomes>,
    store: Option<Store>,
}

impl Learning {
    /// Reads what was learned before; blocks. Without a folder, and where the store cannot be used, nothing is kept beyond
    /// this process.
    fn open(folder: Option<&Path>) -> Learning {
        let Some(folder) = folder else { return Learning { outcomes: Mutex::default(), store: None } };
        let opened = Store::open(folder).and_then(|store| Ok((store.outcomes()?, store)));
        match opened {
            Ok((rows, store)) => Learning { outcomes: Mutex::new(Outcomes::new(rows)), store: Some(store) },
            Err(error) => {
                tracing::warn!(%error, "what searches lead to is not kept beyond this run");
                Learning { outcomes: Mutex::default(), store: None }
            }
        }
    }

    /// What each tool gains, by full name.
    fn boosts(&self, words: &[String]) -> Vec<(Arc<str>, Learned)> {
        let outcomes = self.outcomes.lock().map(|outcomes| outcomes.boosts(words, now())).unwrap_or_default();
        outcomes.into_iter().collect()
    }
}

impl Gateway {
    /// What was learned so far, read from the store when it is first wanted; nothing where that is switched off.
    pub(super) async fn learning(self: &Arc<Self>) -> Option<&Arc<Learning>> {
        if !self.config.gateway.learn {
            return None;
        }
        let opened = self.learning.get_or_init(async || {
            let folder = self.state.clone();
            let open = tokio::task::spawn_blocking(move || Learning::open(folder.as_deref()));
            Arc::new(open.await.unwrap_or_else(|_| Learning::open(None)))
        });
        Some(opened.await)
    }

    /// Waits until what was learned before is known.
    pub async fn recalled(self: &Arc<Self>) {
        let _ = self.learning().await;
    }

    /// What each tool gains for a request, by document, and from which words.
    pub(super) fn learned(&self, snapshot: &Snapshot, query: &str) -> Vec<(usize, Learned)> {
        let Some(learning) = self.learning.get() else { return Vec::new() };
        let place = |full: &Arc<str>| snapshot.tools.binary_search_by(|tool| tool.full.cmp(full)).ok();
        let learned = learning.boosts(&outcomes::words(query)).into_iter();
        learned.filter_map(|(full, learned)| Some((place(&full)?, learned))).collect()
    }

    /// Remembers a search, whose outcome may come.
    pub(super) fn searched(&self, caller: &Caller, snapshot: &Snapshot, query: &str, found: &Found) {
        let words = outcomes::words(query);
        if self.config.gateway.learn && caller.lasting && !words.is_empty() {
            let enough = found.hits.first().map_or(0.0, |first| first.score * FITS);
            let hits = found.hits.iter().filter(|hit| hit.score >= enough);
            let names = hits.filter_map(|hit| Some(snapshot.tool(hit.document)?.full.clone()));
            caller.session.searched(Search { words, found: names.collect(), at: Instant::now() });
        }
    }

    /// Counts a successful call for the searches that it followed.
    pub(super) fn succeeded(&self, caller: &Caller, tool: &Tool) {
        let Some(learning) = self.learning.get().filter(|_| &*tool.server != GATEWAY) else { return };
        for words in caller.session.led_to(&tool.full) {
            let Ok(mut outcomes) = learning.outcomes.lock() else { return };
            let Some(row) = outcomes.record(&words, &tool.full, now()) else { continue };
            drop(outcomes);
            if learning.store.is_some() {
                let learning = learning.clone();
                self.tasks.spawn_blocking(move || {
                    if let Some(Err(error)) = learning.store.as_ref().map(|store| store.put_outcome(&row)) {
                        tracing::warn!(%error, "an outcome was not kept");
                    }
                });
            }
        }
    }
}

impl Search {
    /// The words, if this search found the tool, lately and not yet counted.
    pub(super) fn led_to(&mut self, tool: &str) -> Option<Vec<String>> {
        let at = self.found.iter().position(|found| **found == *tool)?;
        self.found.swap_remove(at);
        (self.at.elapsed() < FOLLOWED_WITHIN).then(|| self.words.clone())
    }
}

/// Adds what was learned to other boosts.
pub(super) fn add(boosts: &mut Boosts, learned: &[(usize, Learned)]) {
    for (document, learned) in learned {
        *boosts.entry(*document).or_default() += learned.boost;
    }
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

pub(super) type LearningCell = OnceCell<Arc<Learning>>;
