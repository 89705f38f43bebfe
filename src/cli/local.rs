//! The gateway of a command: it answers from the last lists on disk and starts only the servers that it
//! needs.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use nonet_core::Gateway;
use nonet_state::last_seen::LastSeen;
use nonet_text::name::fold;

use super::show;

/// The age at which a list expires.
const LIST_AGE: Duration = Duration::from_secs(7 * 86_400);
/// The age up to which a list proves that its server does not have a tool.
const FRESH: Duration = Duration::from_secs(600);

/// A gateway in this process, with the last lists of its servers.
pub(super) struct LocalGateway<'a> {
    pub gateway: &'a Arc<Gateway>,
    pub seen: BTreeMap<Arc<str>, LastSeen>,
}

impl LocalGateway<'_> {
    /// Loads the last lists and starts these servers; the other servers are held.
    pub(super) async fn connect(&self, servers: &[Arc<str>]) {
        for (name, connection) in self.gateway.servers.connections().iter() {
            if !servers.contains(name) {
                connection.hold();
            }
        }
        self.gateway.connect();
        self.settle(servers).await;
    }

    /// Starts these servers too.
    pub(super) async fn start(&self, servers: &[Arc<str>]) {
        for server in servers {
            if let Some(connection) = self.gateway.servers.connections().get(server) {
                connection.release();
            }
        }
        self.settle(servers).await;
    }

    /// Waits until these servers are ready or have failed, and until their lists are published.
    async fn settle(&self, servers: &[Arc<str>]) {
        if servers.is_empty() {
            return self.gateway.publisher.listed().await;
        }
        let connections = self.gateway.servers.connections();
        let settings = servers.iter().filter_map(|server| Some(connections.get(server)?.settings()));
        // A person has more patience than a model: a first start may download.
        let slowest = settings.map(|settings| settings.start_timeout).max().unwrap_or_default();
        show::starting(self.gateway, servers, slowest).await;
        servers.iter().for_each(|server| self.gateway.publisher.note_failure(server));
        self.gateway.publisher.published().await;
    }

    /// Whether the list of a server is missing or expired.
    pub(super) fn is_old(&self, server: &str) -> bool {
        self.seen.get(server).is_none_or(|seen| seen.listed.is_none_or(|age| age > LIST_AGE))
    }

    /// Whether a name is `SERVER.TOOL` and the list of that server is fresh.
    pub(super) fn is_fresh(&self, name: &str) -> bool {
        let server = name.split_once('.').and_then(|(server, _)| self.seen.get(server));
        server.and_then(|seen| seen.listed).is_some_and(|age| age < FRESH)
    }

    /// Returns the servers without a usable list, except recently failed ones.
    pub(super) fn unlisted(&self) -> Vec<Arc<str>> {
        let old = self.seen.iter().filter(|(name, seen)| self.is_old(name) && seen.failed.is_none());
        old.map(|(name, _)| name.clone()).collect()
    }

    /// Returns the servers that may have an unlisted tool: the server that prefixes its name, else the
    /// servers without a list.
    pub(super) fn that_may_have(&self, tool: &str) -> Vec<Arc<str>> {
        let tool = fold(tool);
        let named =
            |server: &&Arc<str>| tool.strip_prefix(&*fold(server)).is_some_and(|rest| rest.starts_with('_'));
        match self.seen.keys().filter(named).max_by_key(|server| server.len()) {
            Some(server) => vec![server.clone()],
            None => self.unlisted(),
        }
    }

    /// Prints the age of the lists behind an answer, and the servers that are missing. `of`: the only server
    /// that the answer is about; `refresh`: the option that asks the servers.
    pub(super) fn tell_age(&self, started: &[Arc<str>], of: Option<&Arc<str>>, refresh: &str) {
        let asked =
            self.seen.iter().filter(|(name, _)| !started.contains(name) && of.is_none_or(|of| of == *name));
        let (mut oldest, mut failed) = (None, Vec::new());
        for (name, seen) in asked {
            oldest = oldest.max(seen.listed);
            if seen.listed.is_none() && seen.failed.is_some() {
                failed.push(name);
            }
        }
        if let Some(age) = oldest {
            let age = show::age(age);
            eprintln!(
                "nonet: from the last lists (up to {age} old), as no gateway is running; {refresh} asks the servers"
            );
        }
        if !failed.is_empty() {
            eprintln!(
                "nonet: not available a moment ago: {}; `nonet status` reports why",
                show::names(&failed)
            );
        }
    }
}
