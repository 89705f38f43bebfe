//! What searches led to, by the documents of a snapshot.

use super::{Gateway, Snapshot, session::Caller};
use crate::{
    catalog::{Kind, Tool},
    name::full_name,
    search::{Boosts, Found, Hit, Learned},
};

impl Gateway {
    /// Waits until what was learned before is known; nothing is learned where that is switched off.
    pub async fn recalled(&self) {
        if self.config().gateway.learn {
            self.learning.recall().await;
            self.figures.recall().await;
        }
    }

    /// What each document gains for the words of a request, and from which words.
    pub(super) fn learned(&self, snapshot: &Snapshot, words: &[String]) -> Vec<(usize, Learned)> {
        let lifts = self.learning.lifts(words).into_iter();
        lifts.filter_map(|(full, learned)| Some((snapshot.place(&full)?, learned))).collect()
    }

    /// Remembers a search, whose outcome may come.
    pub(super) fn searched(&self, caller: &Caller, snapshot: &Snapshot, words: Vec<String>, found: &Found) {
        if self.config().gateway.learn && caller.lasting {
            let name = |hit: &Hit| Some(snapshot.tool(hit.document)?.full.clone());
            caller.session.searches.remember(words, &found.hits, name);
        }
    }

    /// Counts a successful call for the search that it followed.
    pub(super) fn succeeded(&self, caller: &Caller, tool: &Tool) {
        // What a session added may be something else under the same name tomorrow.
        if tool.is_of_server() && tool.session.is_none() {
            self.learning.succeeded(&caller.session.searches, &tool.full);
        }
    }

    /// Counts the same for a skill or an app.
    pub(super) fn guided(&self, caller: &Caller, kind: Kind, name: &str) {
        if let Some(category) = kind.category() {
            self.learning.succeeded(&caller.session.searches, &full_name(category, name));
        }
    }
}

/// Adds what was learned to other boosts.
pub(super) fn add(boosts: &mut Boosts, learned: &[(usize, Learned)]) {
    for (document, learned) in learned {
        boosts.entry(*document).or_default().learned += learned.boost;
    }
}
