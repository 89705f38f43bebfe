//! Outcomes of searches, by the documents of a snapshot.

use nonet_search::{Boosts, Hit, LearnedBoost, SearchResult};
use nonet_servers::catalog::{EntryKind, Tool};
use nonet_text::name::full_name;

use super::Snapshot;
use crate::observing::Observing;
use nonet_state::session::Caller;

impl Observing {
    /// Waits until earlier outcomes are loaded, unless learning is switched off.
    pub async fn recalled(&self) {
        if self.servers.config().gateway.learn {
            self.learning.recall().await;
            self.figures.recall().await;
        }
    }

    /// Returns each document's bonus for the words of a request, and the words that earned the bonus.
    pub(super) fn learned(&self, snapshot: &Snapshot, words: &[String]) -> Vec<(usize, LearnedBoost)> {
        let lifts = self.learning.lifts(words).into_iter();
        lifts.filter_map(|(full, learned)| Some((snapshot.place(&full)?, learned))).collect()
    }

    /// Remembers a search, so that a later call can count as its outcome.
    pub(super) fn searched(
        &self,
        caller: &Caller,
        snapshot: &Snapshot,
        words: Vec<String>,
        found: &SearchResult,
    ) {
        if self.servers.config().gateway.learn && caller.lasting {
            let name = |hit: &Hit| Some(snapshot.tool(hit.document)?.full.clone());
            caller.session.searches.remember(words, &found.hits, name);
        }
    }

    /// Counts a successful call as the outcome of an earlier search.
    pub(super) fn succeeded(&self, caller: &Caller, tool: &Tool) {
        // A session's own server may be another one under the same name tomorrow.
        if tool.is_of_server() && tool.session.is_none() {
            self.learning.succeeded(&caller.session.searches, &tool.full);
        }
    }

    /// Counts the use of a skill or an app in the same way.
    pub(super) fn guided(&self, caller: &Caller, kind: EntryKind, name: &str) {
        if let Some(category) = kind.category() {
            self.learning.succeeded(&caller.session.searches, &full_name(category, name));
        }
    }
}

/// Adds learned bonuses to other boosts.
pub(super) fn add(boosts: &mut Boosts, learned: &[(usize, LearnedBoost)]) {
    for (document, learned) in learned {
        boosts.entry(*document).or_default().learned += learned.boost;
    }
}
