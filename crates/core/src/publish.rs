//! Publishing: the one writer of snapshots.
//!
//! The lists of the last run come first, before any server is started: as a catalogue, so that the handshake
//! can use them, then indexed by words. New lists from servers become a catalogue, then an index by words,
//! and then vectors. A snapshot is published at once with the known vectors, again while the missing ones are
//! made, and once more when the graph of a large catalogue is built. Callers only ever wait for the lists of
//! the last run.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use nonet_api::{
    fault::NextStep,
    notice::{Notice, ToolsChanged},
};
use nonet_config::OnChange;
use nonet_servers::{
    catalog::{GATEWAY, Listing},
    downstream::ServerUpdate,
    pins::ChangeNews,
};
use nonet_text::name::{RESERVED, full_name};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use super::{Gateway, builtin, trusting::MOST_NAMED};
use crate::gate::Gate;
use nonet_state::{
    personal::ListOwner,
    publisher::{KnownList, KnownLists},
    trust::ServerNews,
};

/// How long updates are collected before a new snapshot is made.
const GATHER: Duration = Duration::from_millis(15);

impl Gateway {
    /// Turns the servers' lists into snapshots until the gateway stops.
    pub(super) async fn publish(self: Arc<Self>, mut updates: mpsc::Receiver<ServerUpdate>) {
        let publisher = &self.publisher;
        let mut known: KnownLists = BTreeMap::from([(
            GATEWAY.into(),
            KnownList::of_all(builtin::listing(&self.servers.config().gateway)),
        )]);
        let mut fresh: HashSet<Arc<str>> = HashSet::new();
        let world = self.servers.world();
        tokio::join!(publisher.read_lists(&mut known, &world), publisher.open_pins());
        let (_, of_pins) = publisher.check_lists(&mut known, &world).await;
        self.calls.guides.list(&mut known, &world.config);
        let mut generation = 1;
        // The handshake waits only for the lists; the first search also waits for the folders of skills.
        let (mut words, ()) = tokio::join!(
            publisher.publish_words(&known, world.clone(), generation),
            self.calls.guides.read(&world.config.gateway.skills, Duration::MAX)
        );
        if self.calls.guides.is_behind() && self.calls.guides.list(&mut known, &world.config) {
            generation += 1;
            words = publisher.publish_words(&known, world.clone(), generation).await.or(words);
        }
        let mut world = world;
        publisher.is_searchable();
        let mut connected = self.servers.started();
        tokio::select! {
            _ = connected.wait_for(|connected| *connected) => {}
            () = self.servers.life.stop.cancelled() => return,
        }
        let mut changed = false;
        let mut barriers: Vec<oneshot::Sender<()>> = Vec::new();
        let mut news: Vec<ToolsChanged> = Vec::new();
        let mut relisted = false;
        let mut differences = self.notices_of_differences(&mut news, of_pins);
        loop {
            if changed {
                generation += 1;
                words = publisher.publish_words(&known, world.clone(), generation).await.or(words);
            }
            // Only now, so that a client that reads about a new tool can call it.
            for notice in news.drain(..) {
                self.tell_of_changes(&notice);
            }
            for (notice, changes) in differences.drain(..) {
                let was_told = self.tell_of_changes(&notice);
                self.note_told(was_told, notice, changes);
            }
            for waiting in barriers.drain(..) {
                let _ = waiting.send(());
            }
            if let Some(words) = words.take() {
                publisher.embed(words);
            }
            if std::mem::take(&mut relisted) {
                self.tell_of_unmatched(&fresh);
            }
            changed = false;
            let mut next = tokio::select! {
                update = updates.recv() => update,
                () = publisher.trust_moved() => None,
                () = self.servers.life.stop.cancelled() => return,
            };
            tokio::time::sleep(GATHER).await;
            while let Some(update) = next {
                relisted |= matches!(update, ServerUpdate::Listed { .. } | ServerUpdate::Reconfigured);
                match update {
                    ServerUpdate::Listed { server, connection, session, person, listing, published } => {
                        let before = known.get(&server).map(|known| &*known.raw);
                        let listing = listing.and_then(|listing| {
                            self.of_all_people(&server, (person, connection), listing, before)
                        });
                        let listing = listing.map(|listing| KnownList::new(listing, connection, session));
                        if let Some(listing) = listing {
                            let (differs, notice) = self.take(&mut known, &mut fresh, server, listing);
                            changed |= differs;
                            news.extend(notice);
                        }
                        barriers.push(published);
                    }
                    // The number of names of sessions' servers is unlimited.
                    ServerUpdate::Reconnected { server } => {
                        if !self.servers.world().owners.contains_key(&server) {
                            self.observing.metrics.restarted(&server);
                        }
                    }
                    ServerUpdate::SignInNeeded { server, login } => {
                        self.tell_of_sign_in(&server, login.as_deref())
                    }
                    ServerUpdate::Reconfigured => {
                        self.relist(&mut known, &mut fresh).await;
                        changed = true;
                    }
                    ServerUpdate::Barrier(waiting) => barriers.push(waiting),
                }
                next = updates.try_recv().ok();
            }
            let (differs, of_pins) = publisher.check_lists(&mut known, &self.servers.world()).await;
            changed |= differs;
            differences = self.notices_of_differences(&mut news, of_pins);
            if changed || self.calls.guides.is_behind() {
                // All lists use the same world, so that prompts of a server that has ended are not listed as
                // skills.
                world = self.servers.world();
                known.retain(|server, known| {
                    known.session.is_none()
                        || world.connections.get(server).is_some_and(|one| known.is_of(one))
                });
                changed |= self.calls.guides.list(&mut known, &world.config);
            }
        }
    }

    /// Returns a list as the catalogue shows it: where people have accounts of their own, with the tools of all.
    /// `None`: the list is of a person or a connection that the server has no more.
    fn of_all_people(
        &self,
        server: &Arc<str>,
        (person, connection): (Option<Arc<str>>, u64),
        listing: Listing,
        before: Option<&Listing>,
    ) -> Option<Listing> {
        let world = self.servers.world();
        if !world.personal.contains(server) {
            return person.is_none().then_some(listing);
        }
        let of = world.connections.get(server)?.id;
        let owner = person.map_or(ListOwner::Gateway, ListOwner::Person);
        self.servers.personal.take((server, of), (owner, connection), listing, before)
    }

    /// Applies a changed configuration to the lists: those of servers that are gone go, those of known
    /// servers come back.
    async fn relist(&self, known: &mut KnownLists, fresh: &mut HashSet<Arc<str>>) {
        let world = self.servers.world();
        known.retain(|server, _| RESERVED.contains(&&**server) || world.connections.contains_key(server));
        fresh.retain(|server| world.connections.contains_key(server));
        let of_servers = |name: &str| !RESERVED.contains(&name);
        for (_, known) in known.iter_mut().filter(|(server, _)| of_servers(server)) {
            known.mask(&world.secrets);
        }
        let own = builtin::listing(&world.config.gateway);
        let own = match known.get(GATEWAY) {
            Some(before) => own.sharing(&before.listing),
            None => own,
        };
        known.insert(GATEWAY.into(), KnownList::of_all(own));
        self.publisher.read_lists(known, &world).await;
        self.calls.guides.read(&world.config.gateway.skills, Duration::MAX).await;
    }

    /// Notifies every session that sees a server that the server requires a sign-in.
    fn tell_of_sign_in(&self, server: &str, login: Option<&str>) {
        // No command signs in to a session's server; the answer of `gateway.add_server` and of calls gives
        // the remedy.
        if self.servers.world().owners.contains_key(server) {
            return;
        }
        let notice = Value::from(Notice::SignInNeeded {
            server: server.into(),
            command: login.map(String::from),
            hint: login.map(|_| {
                "Ask the user to run the command in a terminal; the server is then available at once.".into()
            }),
        });
        self.errands.outward.tell(&notice);
        for session in self.sessions.all() {
            if Gate::of(&self.publisher, &session).sees(server) {
                session.notify(notice.clone());
            }
        }
    }

    /// Combines a server's new list and its differences from the pins into one notice.
    fn notices_of_differences(
        &self,
        news: &mut Vec<ToolsChanged>,
        of_pins: Vec<ServerNews>,
    ) -> Vec<(ToolsChanged, Vec<ChangeNews>)> {
        let with_differences = |ServerNews { server, news: changes }| {
            // A pending notice of the list is merged into the same notice.
            let at = news.iter().rposition(|notice| *notice.server == *server);
            let listed = at.map(|at| news.remove(at));
            (self.notice_of_changes(listed, &server, &changes), changes)
        };
        of_pins.into_iter().map(with_differences).collect()
    }

    /// Notifies every session of changes that its profile shows. Returns whether any session was notified.
    fn tell_of_changes(&self, notice: &ToolsChanged) -> bool {
        let mut was_told = false;
        for session in self.sessions.all() {
            let gate = Gate::of(&self.publisher, &session);
            // Nobody knows who saw a removed tool, so its server's other tools decide. A server that has
            // ended may have been another session's.
            let sees_server = gate.server(&notice.server).is_some() && gate.sees(&notice.server);
            let seen = |name: &mut String| match gate.catalog().get_renamed(name) {
                // Every session that sees the server learns why a tool is gone.
                Some(tool) if tool.change.as_ref().is_some_and(|change| change.effect == OnChange::Deny) => {
                    sees_server
                }
                Some(tool) => {
                    *name = tool.full.to_string();
                    gate.allows(tool)
                }
                None => sees_server,
            };
            let mut own = notice.clone();
            for names in [&mut own.added, &mut own.removed, &mut own.redefined, &mut own.held] {
                names.retain_mut(seen);
            }
            own.differences.retain_mut(|one| seen(&mut one.name));
            own.next_step = own.next_step.and_then(|_| read_again(&own.redefined));
            let has_pins = !own.held.is_empty() || !own.differences.is_empty();
            if own.redefined.is_empty() && !has_pins {
                (own.hint, own.command) = (None, None);
            }
            let lists = [&own.added, &own.removed, &own.redefined];
            if has_pins || lists.iter().any(|names| !names.is_empty()) {
                was_told = true;
                session.notify(Notice::ToolsChanged(Box::new(own)));
            }
        }
        was_told
    }

    /// Takes a server's new list. Returns whether it differs from the old one, and the notice to send.
    fn take(
        &self,
        known: &mut KnownLists,
        fresh: &mut HashSet<Arc<str>>,
        server: Arc<str>,
        mut new: KnownList,
    ) -> (bool, Option<ToolsChanged>) {
        let connection = self.servers.connections().get(&server).cloned();
        // The session's server has ended, or another server has its name now.
        if new.session.is_some() && connection.as_ref().is_none_or(|one| one.id != new.connection) {
            return (false, None);
        }
        let old = known.get(&server).filter(|old| old.session.is_none() || old.connection == new.connection);
        if let Some(old) = old.filter(|old| old.raw == new.raw) {
            self.publisher.note_listed(&server);
            fresh.insert(server.clone());
            // The comparison with the pins remains valid.
            (new.raw, new.listing, new.checked) = (old.raw.clone(), old.listing.clone(), old.checked.clone());
            known.insert(server, new);
            return (false, None);
        }
        let mut notice = None;
        // Only changes during a session are news, unlike differences from an old list on disk.
        if !fresh.insert(server.clone())
            && let Some(old) = old
        {
            notice = changes(&server, &old.raw, &new.raw);
        }
        if let Some(connection) = connection {
            self.publisher.keep_list(&server, &connection.settings(), &new.raw);
        }
        if let Some(old) = old {
            new = KnownList::new(Listing::clone(&new.raw).sharing(&old.raw), new.connection, new.session);
        }
        known.insert(server, new);
        (true, notice)
    }
}

/// Describes what a server changed while it was in use. A tool that differs from its first definition may be
/// an attack (a "rug pull"), so its new definition has to be read before use.
fn changes(server: &str, old: &Listing, new: &Listing) -> Option<ToolsChanged> {
    let name = |tool: &Value| tool.get("name").and_then(Value::as_str).unwrap_or_default().to_string();
    let before: BTreeMap<String, &Arc<Value>> = old.tools.iter().map(|tool| (name(tool), tool)).collect();
    let after: BTreeMap<String, &Arc<Value>> = new.tools.iter().map(|tool| (name(tool), tool)).collect();
    let full = |tool: &str| full_name(server, tool);
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
    let first = |mut tools: Vec<String>| {
        tools.truncate(MOST_NAMED);
        tools
    };
    let (added, removed, redefined) = (first(added), first(removed), first(redefined));
    if added.is_empty() && removed.is_empty() && redefined.is_empty() {
        return None;
    }
    let hint = "Read a redefined tool again before you call it; ask the user if it looks wrong.";
    Some(ToolsChanged {
        server: server.into(),
        hint: (!redefined.is_empty()).then_some(hint.into()),
        next_step: read_again(&redefined),
        added,
        removed,
        redefined,
        ..ToolsChanged::default()
    })
}

/// Returns the call that reads the first redefined tool.
pub(super) fn read_again(redefined: &[String]) -> Option<NextStep> {
    Some(NextStep::new("get_tool", json!({ "name": redefined.first()? })))
}
