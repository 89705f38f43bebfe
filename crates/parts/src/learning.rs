//! Learning from outcomes: which tool was called successfully after which search, on this machine or on all
//! replicas.
//!
//! A session remembers its latest searches ([`RecentSearches`]). A successful call counts for the words of
//! the latest search that found the tool. [`Learning`] keeps these outcomes and lifts the tool a little when
//! the same words are searched again (`search/outcomes.rs`). This room knows tools only by their names.

#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Weak},
    time::Duration,
};

use nonet_base::clock::Clock;
use nonet_search::{Hit, LearnedBoost, Outcome, Outcomes};
use nonet_store::{Store, StoreError};
use parking_lot::Mutex;
use tokio::{
    sync::{OnceCell, mpsc},
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// How long after a search a call still counts as its outcome.
const FOLLOWED_WITHIN: Duration = Duration::from_secs(10 * 60);
/// The share of the best score from which a tool counts as found. Calls of other tools are not outcomes of
/// the search.
const FITS: f32 = 0.5;
/// How many searches a session remembers; a model searches once per step.
const MAX_SEARCHES: usize = 8;
/// How often replicas read outcomes of other replicas.
const READ_AGAIN: Duration = Duration::from_secs(60);
/// How many outcomes wait to be written. While the queue is full, further outcomes are kept only in memory.
const QUEUE: usize = 64;
/// How many unwritten outcomes of this process are remembered.
const MOST_OWN: usize = 1_000;

/// The learned outcomes, in memory and in the store.
#[derive(Debug)]
pub struct Learning {
    store: Arc<dyn Store>,
    clock: Clock,
    tasks: TaskTracker,
    stop: CancellationToken,
    recalled: OnceCell<Arc<Recollection>>,
}

#[derive(Debug)]
struct Recollection {
    outcomes: Mutex<Outcomes>,
    /// The latest outcomes of this process that are not in the store yet.
    own: Mutex<VecDeque<Outcome>>,
    /// The channel to the store's only writer.
    unwritten: mpsc::Sender<Outcome>,
}

impl Learning {
    /// Learns into a store. One of `tasks` writes the outcomes in order until `stop`, and then the queued
    /// ones.
    pub fn new(store: Arc<dyn Store>, clock: Clock, tasks: TaskTracker, stop: CancellationToken) -> Self {
        Self { store, clock, tasks, stop, recalled: OnceCell::new() }
    }

    /// Reads earlier outcomes, if they have not been read. Until then nothing is learned.
    pub async fn recall(&self) {
        let read = async || {
            let warn = |error: &_| tracing::warn!(%error, "earlier search outcomes cannot be read");
            let outcomes = self.store.outcomes().await.inspect_err(warn).unwrap_or_default();
            let (unwritten, rows) = mpsc::channel(QUEUE);
            let outcomes = Mutex::new(Outcomes::new(outcomes));
            let recollection = Arc::new(Recollection { outcomes, own: Mutex::default(), unwritten });
            let (store, stop) = (self.store.clone(), self.stop.clone());
            self.tasks.spawn(write(store.clone(), Arc::downgrade(&recollection), rows, stop.clone()));
            if store.shared().is_some() {
                self.tasks.spawn(follow(store, Arc::downgrade(&recollection), stop));
            }
            recollection
        };
        self.recalled.get_or_init(read).await;
    }

    /// Returns each tool's bonus for the words of a request, and the words that earned the bonus.
    pub fn lifts(&self, words: &[String]) -> HashMap<Arc<str>, LearnedBoost> {
        let Some(recalled) = self.recalled.get() else { return HashMap::new() };
        recalled.outcomes.lock().boosts(words, self.clock.unix_secs())
    }

    /// Counts a successful call as the outcome of an earlier search, if there is one.
    pub fn succeeded(&self, searches: &RecentSearches, tool: &str) {
        let Some(recalled) = self.recalled.get() else { return };
        let Some(led) = searches.led_to(tool) else { return };
        let now = self.clock.unix_secs();
        let mut outcomes = recalled.outcomes.lock();
        let mut rows = Vec::from_iter(outcomes.record(&led.words, tool, now));
        if let Some(passed) = &led.passed_over {
            rows.extend(outcomes.pass_over(&led.words, passed, now));
        }
        for row in rows {
            recalled.note(row.clone());
            if recalled.unwritten.try_send(row).is_err() {
                tracing::debug!("the store is behind: an outcome is kept in memory only");
            }
        }
    }
}

impl Recollection {
    /// Records an outcome of this process.
    fn note(&self, outcome: Outcome) {
        let mut own = self.own.lock();
        if own.len() == MOST_OWN {
            own.pop_front();
        }
        own.push_back(outcome);
    }

    /// Reads new outcomes of other replicas, and adds this process's unwritten ones.
    async fn read_again(&self, store: &dyn Store) -> Result<(), StoreError> {
        // Some outcomes may be written while the store is read.
        let mut all: Vec<Outcome> = self.own.lock().iter().cloned().collect();
        all.extend(store.outcomes().await?);
        let mut outcomes = self.outcomes.lock();
        all.extend(self.own.lock().iter().cloned());
        *outcomes = Outcomes::new(all);
        Ok(())
    }
}

/// Reads outcomes of other replicas periodically.
async fn follow(store: Arc<dyn Store>, recalled: Weak<Recollection>, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(READ_AGAIN) => {}
        }
        let Some(recalled) = recalled.upgrade() else { return };
        if let Err(error) = recalled.read_again(&*store).await {
            tracing::debug!(%error, "search outcomes of other replicas were not read");
        }
    }
}

async fn write(
    store: Arc<dyn Store>,
    recalled: Weak<Recollection>,
    mut outcomes: mpsc::Receiver<Outcome>,
    stop: CancellationToken,
) {
    loop {
        let outcome = tokio::select! {
            biased;
            outcome = outcomes.recv() => outcome,
            () = stop.cancelled() => return,
        };
        let Some(outcome) = outcome else { return };
        match store.put_outcome(outcome.clone()).await {
            Ok(()) => {
                if let Some(recalled) = recalled.upgrade() {
                    recalled.own.lock().retain(|own| *own != outcome);
                }
            }
            Err(error) => tracing::warn!(%error, "a search outcome was not stored"),
        }
    }
}

/// The latest searches of a session, which still wait for an outcome.
#[derive(Debug, Default)]
pub struct RecentSearches(Mutex<VecDeque<RecentSearch>>);

#[derive(Debug)]
struct RecentSearch {
    words: Vec<String>,
    /// The full names of the tools that it found and that have not been called since.
    found: Vec<Arc<str>>,
    /// The tool shown first, until one of the tools is called.
    first: Option<Arc<str>>,
    at: Instant,
}

/// The outcome of a search, by a successful call.
struct SearchLead {
    words: Vec<String>,
    /// The tool shown first, if another tool was called.
    passed_over: Option<Arc<str>>,
}

impl RecentSearches {
    /// Remembers a search by its words and hits. `name` returns the full name of a hit's tool.
    pub fn remember(&self, words: Vec<String>, hits: &[Hit], name: impl Fn(&Hit) -> Option<Arc<str>>) {
        if words.is_empty() {
            return;
        }
        // A priority does not make a tool fit better.
        let fit = |hit: &Hit| if hit.exact { 1.0 } else { hit.signals.fit() };
        let enough = hits.iter().map(fit).fold(0.0, f32::max) * FITS;
        let found = hits.iter().filter(|hit| fit(hit) >= enough).filter_map(&name).collect();
        // In a request for several things, the first hit fits only one of them.
        let first = hits.first().filter(|hit| hit.part.is_none()).and_then(&name);
        let mut searches = self.0.lock();
        if searches.len() == MAX_SEARCHES {
            searches.pop_front();
        }
        searches.push_back(RecentSearch { words, found, first, at: Instant::now() });
    }

    /// Returns the outcome of the latest search that found this tool; each search counts once per tool.
    fn led_to(&self, tool: &str) -> Option<SearchLead> {
        self.0.lock().iter_mut().rev().find_map(|search| search.led_to(tool))
    }
}

impl RecentSearch {
    fn led_to(&mut self, tool: &str) -> Option<SearchLead> {
        let at = self.found.iter().position(|found| **found == *tool)?;
        self.found.remove(at);
        let passed_over = self.first.take().filter(|first| **first != *tool);
        (self.at.elapsed() < FOLLOWED_WITHIN).then(|| SearchLead { words: self.words.clone(), passed_over })
    }
}
