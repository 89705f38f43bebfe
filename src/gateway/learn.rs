//! Learning from outcomes: which tool was called with success after which search. On this machine only.
//!
//! A session remembers its last searches; a successful call counts for the words of the last one that found the tool. What
//! was learned lifts the tool a little when the same words are searched again (`search/outcomes.rs`).

use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::{Duration, Instant, SystemTime},
};

use tokio::sync::{OnceCell, mpsc};
use tokio_util::sync::CancellationToken;

use super::{Gateway, Snapshot, session::Caller};
use crate::{
    catalog::{GATEWAY, Tool},
    search::{Boosts, Found, Hit, Learned, Outcome, Outcomes},
    store::Store,
};

/// How long after a search a call still counts as what it led to.
const FOLLOWED_WITHIN: Duration = Duration::from_secs(10 * 60);
/// The share of the best fit from which on a tool counts as found: what is called of the rest was not searched for.
const FITS: f32 = 0.5;
/// Searches of a session that are remembered; a model searches once per step.
pub(super) const SEARCHES: usize = 8;

/// A search whose outcome is awaited.
#[derive(Debug)]
pub struct Search {
    words: Vec<String>,
    /// The full names that it found and that were not called since.
    found: Vec<Arc<str>>,
    /// The one that was shown first, as long as nothing was called.
    first: Option<Arc<str>>,
    at: Instant,
}

/// What a successful call says of a search before it.
#[derive(Debug)]
pub struct Led {
    /// The words of the search.
    words: Vec<String>,
    /// The tool that was shown first, if it is another one than the one that was called.
    passed_over: Option<Arc<str>>,
}

/// Outcomes that wait to be written; what comes while so many wait is kept in memory alone.
const QUEUE: usize = 64;

/// What was learned, in memory and in the store.
pub(super) struct Learning {
    outcomes: Mutex<Outcomes>,
    /// To the one writer of the store; none without a store.
    unwritten: Option<mpsc::Sender<Outcome>>,
}

impl Gateway {
    /// What was learned so far, read from the store when it is first wanted; nothing where that is switched off.
    async fn learning(&self) -> Option<&Learning> {
        if !self.config().gateway.learn {
            return None;
        }
        let opened = self.learning.get_or_init(async || {
            let folder = self.state.clone();
            let open = tokio::task::spawn_blocking(move || folder.and_then(|folder| open(&folder)));
            let Some((store, rows)) = open.await.ok().flatten() else {
                return Learning { outcomes: Mutex::default(), unwritten: None };
            };
            let (unwritten, rows_in) = mpsc::channel(QUEUE);
            self.life.tasks.spawn(write(Arc::new(store), rows_in, self.life.stop.clone()));
            Learning { outcomes: Mutex::new(Outcomes::new(rows)), unwritten: Some(unwritten) }
        });
        Some(opened.await)
    }

    /// Waits until what was learned before is known.
    pub async fn recalled(&self) {
        let _ = self.learning().await;
    }

    /// What each tool gains for the words of a request, by document, and from which words.
    pub(super) fn learned(&self, snapshot: &Snapshot, words: &[String]) -> Vec<(usize, Learned)> {
        let Some(learning) = self.learning.get() else { return Vec::new() };
        let Ok(outcomes) = learning.outcomes.lock() else { return Vec::new() };
        let learned = outcomes.boosts(words, now()).into_iter();
        learned.filter_map(|(full, learned)| Some((snapshot.place(&full)?, learned))).collect()
    }

    /// Remembers a search, whose outcome may come.
    pub(super) fn searched(&self, caller: &Caller, snapshot: &Snapshot, words: Vec<String>, found: &Found) {
        if self.config().gateway.learn && caller.lasting && !words.is_empty() {
            // What a priority lifted does not fit any better for it.
            let fit = |hit: &Hit| if hit.exact { 1.0 } else { hit.signals.fit() };
            let enough = found.hits.iter().map(fit).fold(0.0, f32::max) * FITS;
            let hits = found.hits.iter().filter(|hit| fit(hit) >= enough);
            let name = |hit: &Hit| Some(snapshot.tool(hit.document)?.full.clone());
            let names: Vec<Arc<str>> = hits.filter_map(name).collect();
            // Of a request for several things the first is the tool of one of them.
            let first = found.hits.first().filter(|hit| hit.part.is_none()).and_then(name);
            caller.session.searched(Search { words, found: names, first, at: Instant::now() });
        }
    }

    /// Counts a successful call for the search that it followed.
    pub(super) fn succeeded(&self, caller: &Caller, tool: &Tool) {
        let Some(learning) = self.learning.get().filter(|_| &*tool.server != GATEWAY) else { return };
        let Some(led) = caller.session.led_to(&tool.full) else { return };
        let mut rows = Vec::new();
        if let Ok(mut outcomes) = learning.outcomes.lock() {
            rows.extend(outcomes.record(&led.words, &tool.full, now()));
            if let Some(passed) = &led.passed_over {
                rows.extend(outcomes.pass_over(&led.words, passed, now()));
            }
        }
        let Some(unwritten) = &learning.unwritten else { return };
        for row in rows {
            if unwritten.try_send(row).is_err() {
                tracing::debug!("the store is behind: an outcome is kept in memory alone");
            }
        }
    }
}

/// Reads what was learned before; blocks. None where the store cannot be used.
fn open(folder: &Path) -> Option<(Store, Vec<Outcome>)> {
    match Store::open(folder).and_then(|store| store.outcomes().map(|rows| (store, rows))) {
        Ok(opened) => Some(opened),
        Err(error) => {
            tracing::warn!(%error, "what searches lead to is not kept beyond this run");
            None
        }
    }
}

/// Writes outcomes one after the other, at the end those that still wait.
async fn write(store: Arc<Store>, mut rows: mpsc::Receiver<Outcome>, stop: CancellationToken) {
    loop {
        let row = tokio::select! {
            biased;
            row = rows.recv() => row,
            () = stop.cancelled() => return,
        };
        let (Some(row), store) = (row, store.clone()) else { return };
        match tokio::task::spawn_blocking(move || store.put_outcome(&row)).await {
            Ok(Err(error)) => tracing::warn!(%error, "an outcome was not kept"),
            Ok(Ok(())) => {}
            Err(_) => return,
        }
    }
}

impl Search {
    /// What a call of the tool says of this search, if it found the tool, lately, and was not yet counted.
    pub(super) fn led_to(&mut self, tool: &str) -> Option<Led> {
        let at = self.found.iter().position(|found| **found == *tool)?;
        self.found.remove(at);
        let passed_over = self.first.take().filter(|first| **first != *tool);
        (self.at.elapsed() < FOLLOWED_WITHIN).then(|| Led { words: self.words.clone(), passed_over })
    }
}

/// Adds what was learned to other boosts.
pub(super) fn add(boosts: &mut Boosts, learned: &[(usize, Learned)]) {
    for (document, learned) in learned {
        boosts.entry(*document).or_default().learned += learned.boost;
    }
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

pub(super) type LearningCell = OnceCell<Learning>;
