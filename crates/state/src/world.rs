//! The configuration and its connections: one value, replaced whole when the file changes.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use nonet_api::notice::WorldChanges;
use nonet_config::{Config, Secret, ServerSettings};
use nonet_servers::downstream::Connection;
use nonet_text::{leaks::KnownSecrets, name::Namespaces};

use crate::known_secrets::secrets_of;

/// The connections, by server name.
pub type Connections = BTreeMap<Arc<str>, Arc<Connection>>;

/// A configuration and the connections made from it.
#[derive(Clone)]
pub struct World {
    /// The configuration in use.
    pub config: Arc<Config>,
    /// A connection for each enabled server of the file, and for each that a session has added.
    pub connections: Arc<Connections>,
    /// The sessions' servers, each with its session.
    pub owners: Arc<BTreeMap<Arc<str>, u64>>,
    /// The servers at which people have accounts of their own.
    pub personal: Arc<[Arc<str>]>,
    /// The secrets of the configuration and of those servers.
    pub secrets: Arc<KnownSecrets>,
    /// The names of all servers: servers of the file, including disabled and left-out ones, and sessions'
    /// servers.
    pub names: Arc<Namespaces>,
}

/// Returns the names of a file's servers, with or without a connection.
pub fn names_of(config: &Config) -> impl Iterator<Item = &str> {
    let servers = config.servers.keys().map(|name| name.as_str());
    servers.chain(config.left_out.keys().map(String::as_str))
}

/// The step from one world to the next.
pub struct Transition {
    /// The new world.
    pub world: World,
    /// How it differs from the one before.
    pub changes: WorldChanges,
    /// Connections to start.
    pub fresh: Vec<Arc<Connection>>,
    /// Connections to retire.
    pub retired: Vec<Arc<Connection>>,
    /// Sessions' servers that end, with their sessions: the file uses their names now, or no longer allows
    /// them.
    pub ended: Vec<(Arc<str>, u64)>,
}

impl World {
    /// Creates the world of these connections.
    pub fn of(config: Arc<Config>, connections: Connections) -> World {
        let owner = |(name, connection): (&Arc<str>, &Arc<Connection>)| {
            Some((name.clone(), connection.settings().session?))
        };
        let owners = Arc::new(connections.iter().filter_map(owner).collect());
        let secrets = Arc::new(secrets_of(&config, &connections));
        let names = Namespaces::new(names_of(&config).chain(connections.keys().map(|name| &**name)));
        let is_personal = |connection: &Connection| connection.settings().credentials.are_personal();
        let personal = connections.iter().filter(|(_, connection)| is_personal(connection));
        let personal = personal.map(|(name, _)| name.clone()).collect();
        let connections = Arc::new(connections);
        World { config, connections, owners, personal, secrets, names: Arc::new(names) }
    }

    /// Returns the world without the servers of other sessions; `None` if there are none.
    pub fn seen_by(&self, session: u64) -> Option<World> {
        if self.owners.values().all(|owner| *owner == session) {
            return None;
        }
        let is_open = |name: &Arc<str>| self.owners.get(name).is_none_or(|owner| *owner == session);
        let seen = self.connections.iter().filter(|(name, _)| is_open(name));
        let seen = seen.map(|(name, connection)| (name.clone(), connection.clone())).collect();
        Some(World { connections: Arc::new(seen), ..self.clone() })
    }

    /// Builds the world of a configuration. A connection of the old world with the same command, address and
    /// concurrency is kept and gets its new settings; `connect` creates the others. Sessions' servers stay,
    /// unless the configuration uses their names or no longer allows them.
    #[expect(clippy::new_ret_no_self, reason = "the transition holds the world")]
    pub fn new(
        config: Config,
        before: Option<&World>,
        mut connect: impl FnMut(Arc<str>, &ServerSettings) -> Arc<Connection>,
    ) -> Transition {
        let mut changes = WorldChanges::default();
        if let Some(before) = before {
            changes.needs_restart = needs_restart(&before.config, &config);
        }
        let none = Connections::new();
        let old = before.map_or(&none, |before| &before.connections);
        // The changes are for all sessions, which never saw a session's server.
        let is_private = |before: &Connection| before.settings().session.is_some();
        let mut connections = Connections::new();
        let (mut fresh, mut retired, mut ended) = (Vec::new(), Vec::new(), Vec::new());
        for (name, session) in before.into_iter().flat_map(|before| before.owners.iter()) {
            let is_named = config.servers.keys().any(|server| server.as_str() == &**name)
                || config.left_out.contains_key(&**name);
            match old.get(name) {
                Some(_) if is_named || !config.gateway.allow_runtime_servers => {
                    ended.push((name.clone(), *session));
                }
                Some(own) => drop(connections.insert(name.clone(), own.clone())),
                None => {}
            }
        }
        for (name, settings) in config.servers.iter().filter(|(_, settings)| settings.enabled) {
            let name: Arc<str> = name.as_str().into();
            let before = old.get(&name);
            if let Some(kept) = before.filter(|before| before.is_reached_by(settings)) {
                if *kept.settings() != *settings {
                    let told = if is_private(kept) { &mut changes.started } else { &mut changes.changed };
                    told.push(name.to_string());
                    kept.set(Arc::new(settings.clone()));
                }
                connections.insert(name, kept.clone());
                continue;
            }
            match before {
                Some(before) => {
                    let told = if is_private(before) { &mut changes.started } else { &mut changes.restarted };
                    told.push(name.to_string());
                    retired.push(before.clone());
                }
                None => changes.started.push(name.to_string()),
            }
            let connection = connect(name.clone(), settings);
            fresh.push(connection.clone());
            connections.insert(name, connection);
        }
        for (name, connection) in old {
            if !connections.contains_key(name) {
                if !is_private(connection) {
                    changes.stopped.push(name.to_string());
                }
                retired.push(connection.clone());
            }
        }
        let world = World::of(Arc::new(config), connections);
        Transition { world, changes, fresh, retired, ended }
    }
}

fn key_of(config: &Config) -> Option<&Secret> {
    config.auth.as_ref()?.key.as_ref()
}

/// Returns the changed settings that are read only at start.
fn needs_restart(old: &Config, new: &Config) -> Vec<Cow<'static, str>> {
    let (before, after) = (&old.gateway, &new.gateway);
    let kept = before.keep_results_for == after.keep_results_for
        && before.keep_results_bytes == after.keep_results_bytes;
    let allowed =
        before.allowed_hosts == after.allowed_hosts && before.allowed_origins == after.allowed_origins;
    let is_public_same = before.public_url == after.public_url;
    let settings = [
        ("[embedder]", old.embedder == new.embedder),
        ("[audit]", old.audit == new.audit),
        ("[cluster]", old.cluster == new.cluster),
        ("gateway.learn", before.learn == after.learn),
        ("gateway.keep_results_*", kept),
        ("gateway.allowed_*", allowed),
        ("gateway.public_url", is_public_same),
        ("auth.key", key_of(old) == key_of(new)),
    ];
    settings.into_iter().filter(|(_, same)| !same).map(|(setting, _)| setting.into()).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use nonet_config as config;
    use nonet_servers::downstream::ConnectionContext;

    fn after(world: Option<&World>, text: &str) -> Transition {
        let config =
            config::parse(text, Path::new("f"), config::ValueSources::NONE).expect("it is usable").config;
        let around = Arc::new(ConnectionContext::without_guard());
        World::new(config, world, |name, settings| {
            Arc::new(Connection::new(name, settings.clone(), around.clone(), None))
        })
    }

    #[test]
    fn a_change_touches_only_the_servers_that_it_concerns() {
        let first = "[servers.a]\ncommand = 'a'\n[servers.b]\ncommand = 'b'\n[servers.c]\ncommand = 'c'\n";
        let before = after(None, first);
        assert_eq!(before.changes.started, ["a", "b", "c"]);
        let second = "[servers.a]\ncommand = 'a'\ntags = ['x']\n[servers.b]\ncommand = 'other'\n\
                      [servers.d]\ncommand = 'd'\n[servers.e]\ncommand = 'e'\nenabled = false\n";
        let next = after(Some(&before.world), second);
        let expected = WorldChanges {
            started: vec!["d".into()],
            restarted: vec!["b".into()],
            stopped: vec!["c".into()],
            changed: vec!["a".into()],
            needs_restart: Vec::new(),
        };
        assert_eq!(next.changes, expected);
        assert!(Arc::ptr_eq(&before.world.connections["a"], &next.world.connections["a"]));
        assert!(!Arc::ptr_eq(&before.world.connections["b"], &next.world.connections["b"]));
        assert_eq!((next.fresh.len(), next.retired.len()), (2, 2));
        assert_eq!(after(Some(&next.world), second).changes, WorldChanges::default());
    }

    #[test]
    fn settings_that_are_read_at_the_start_are_named() {
        let check = |text: &str, expected: &[&str]| {
            let before = after(None, "").world;
            assert_eq!(after(Some(&before), text).changes.needs_restart, expected, "{text}");
        };
        check("", &[]);
        check("[gateway]\nlearn = false\n", &["gateway.learn"]);
        check("[gateway]\nkeep_results_for = '1h'\n", &["gateway.keep_results_*"]);
        check("[gateway]\nallowed_hosts = ['x.example']\n", &["gateway.allowed_*"]);
        check("[gateway]\npinned = ['a.b']\n", &[]);
    }
}
