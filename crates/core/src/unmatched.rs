//! Rules of the configuration that match no tool: most are typos, and a mistyped rule protects nothing.
//!
//! Only servers with known tools are checked. Nothing can be said about a server that has not listed any
//! tools yet, is disabled, or is left out.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use nonet_api::notice::Notice;
use nonet_state::unmatched::{UnmatchedRule, unmatched_rules};

use super::Gateway;

/// The most rules in one notice.
const MAX_SHOWN: usize = 20;

impl Gateway {
    /// Returns the rules that match no tool, judged by the servers that were reached or have failed.
    pub fn unmatched(&self) -> Vec<UnmatchedRule> {
        let connections = self.servers.connections();
        let settled = |server: &str| connections.get(server).is_some_and(|one| one.state().settled());
        let snapshot = self.publisher.snapshot();
        let is_known = |server: &str| settled(server) && snapshot.catalog.servers().contains_key(server);
        let mut found = unmatched_rules(&self.servers.config(), &snapshot.catalog, &is_known);
        for (server, connection) in connections.iter() {
            let patterns = connection.document().map_or_else(Vec::new, |report| report.unmatched);
            let key = format!("servers.{server}.operations");
            found.extend(patterns.into_iter().map(|message| UnmatchedRule { key: key.clone(), message }));
        }
        found
    }

    /// Logs the rules that newly match nothing, now that the tools of these servers are known. After a
    /// reload, also notifies every session that sees all servers.
    pub(super) fn tell_of_unmatched(self: &Arc<Self>, listed: &HashSet<Arc<str>>) {
        let (gateway, listed) = (self.clone(), listed.clone());
        // This takes a while for a large catalogue.
        self.servers.life.tasks.spawn_blocking(move || {
            let mut reported = gateway.servers.unmatched.lock();
            let snapshot = gateway.publisher.snapshot();
            let rules = unmatched_rules(&gateway.servers.config(), &snapshot.catalog, &|server| {
                listed.contains(server)
            });
            let rules: BTreeSet<UnmatchedRule> = rules.into_iter().collect();
            let news: Vec<String> = rules.difference(&reported.rules).map(ToString::to_string).collect();
            reported.rules = rules;
            for rule in &news {
                tracing::warn!("{rule}");
            }
            if reported.changed && !news.is_empty() {
                let notice = Notice::RulesWithoutTools {
                    rules: news.into_iter().take(MAX_SHOWN).collect(),
                    hint: "These rules have no effect. The user may have misspelt a name.".into(),
                };
                gateway.sessions.notify_unrestricted(&notice.into());
            }
        });
    }
}
