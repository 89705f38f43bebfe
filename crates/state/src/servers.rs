//! The servers: the world in use, and the tasks that keep its connections alive.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use dashmap::{DashMap, DashSet};
use nonet_api::notice::WorldChanges;
use nonet_auth::Person;
use nonet_config::{Config, ServerCredentials, ServerScope, ServerSettings};
use nonet_servers::downstream::{
    Connection, ConnectionContext, ConnectionState, Dial, LogLevel, PersonAccess, Reach, ServerUpdate,
};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    known_secrets::secrets_of,
    personal::PersonalConnections,
    session::Caller,
    signing_in::OpenSignIn,
    suggesting::Suggestions,
    unmatched::ReportedUnmatched,
    world::{Connections, Transition, World},
};

/// How long all servers together may take to stop.
const STOP_LIMIT: Duration = Duration::from_secs(6);
/// How long calls in flight to a removed server may continue.
const RETIRE_LIMIT: Duration = Duration::from_secs(300);
/// How often the connections of people are looked at.
const SWEEP: Duration = Duration::from_secs(30);

/// The tasks of a gateway and the signal that stops them. Clones share both.
#[derive(Clone, Debug, Default)]
pub struct Lifetime {
    /// Cancelled when the gateway stops.
    pub stop: CancellationToken,
    /// Tasks that the gateway waits for when it stops.
    pub tasks: TaskTracker,
}

impl Lifetime {
    /// Stops everything and waits for the tasks to end, for at most [`STOP_LIMIT`].
    pub async fn end(&self) {
        self.stop.cancel();
        self.tasks.close();
        if tokio::time::timeout(STOP_LIMIT, self.tasks.wait()).await.is_err() {
            tracing::warn!("some servers did not stop in time");
        }
    }

    /// Keeps the runtime's next timer near. A timer set earlier than the next one wakes the I/O driver
    /// through the kernel, which would cost each call two system calls for limits that rarely expire.
    pub fn keep_timers_near(&self) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            let mut beat = tokio::time::interval(Duration::from_secs(1));
            loop {
                tokio::select! {
                    _ = beat.tick() => {}
                    () = stop.cancelled() => return,
                }
            }
        });
    }
}

/// The servers: the world in use, and the tasks that keep its connections alive.
pub struct Servers {
    world: ArcSwap<World>,
    /// What all connections share.
    pub around: Arc<ConnectionContext>,
    started: watch::Sender<bool>,
    /// Signals each new configuration.
    reloads: watch::Sender<()>,
    /// Sign-ins that answers gave the links of, by server.
    pub(crate) sign_ins: DashMap<Box<str>, Arc<tokio::sync::Mutex<Option<OpenSignIn>>>>,
    /// What the registry answered last.
    pub(crate) suggestions: Suggestions,
    /// Held while the world is replaced.
    replacing: Mutex<()>,
    /// Sessions' servers that are being written to the file.
    pub persisting: DashSet<Arc<str>>,
    /// The log level that each session wants from servers.
    log_levels: Mutex<BTreeMap<u64, LogLevel>>,
    /// Reported rules without a match.
    pub unmatched: ReportedUnmatched,
    /// The connections of people with their own accounts.
    pub personal: PersonalConnections,
    /// Where connections send their lists, once they are started.
    updates: OnceLock<mpsc::Sender<ServerUpdate>>,
    /// The gateway's tasks and their end.
    pub life: Lifetime,
    /// When the gateway was made.
    pub since: Instant,
}

impl Servers {
    /// Creates the connections of a configuration without starting them. `dials` replace the transports of
    /// some servers.
    pub fn new(
        config: Config,
        around: Arc<ConnectionContext>,
        mut dials: BTreeMap<String, Box<Dial>>,
        life: Lifetime,
    ) -> Self {
        let Transition { world, .. } = World::new(config, None, |name, settings| {
            let dial = dials.remove(&*name);
            Arc::new(Connection::new(name, settings.clone(), around.clone(), dial))
        });
        around.secrets.store(world.secrets.clone());
        Self {
            world: ArcSwap::from_pointee(world),
            around,
            started: watch::Sender::new(false),
            reloads: watch::Sender::new(()),
            sign_ins: DashMap::new(),
            suggestions: Suggestions::default(),
            replacing: Mutex::default(),
            persisting: DashSet::default(),
            log_levels: Mutex::default(),
            unmatched: ReportedUnmatched::default(),
            personal: PersonalConnections::default(),
            updates: OnceLock::new(),
            life,
            since: Instant::now(),
        }
    }

    /// Returns the configuration and the connections of the moment.
    pub fn world(&self) -> Arc<World> {
        self.world.load_full()
    }

    /// Returns the current configuration.
    pub fn config(&self) -> Arc<Config> {
        self.world().config.clone()
    }

    /// Returns the current connections by server name.
    pub fn connections(&self) -> Arc<Connections> {
        self.world().connections.clone()
    }

    /// Returns how many calls of servers are in flight.
    pub fn calls_in_flight(&self) -> usize {
        let world = self.world();
        let shared = world.connections.values().map(|connection| connection.in_flight()).sum::<usize>();
        let of_people = self.personal.connections();
        shared + of_people.iter().map(|connection| connection.in_flight()).sum::<usize>()
    }

    /// Returns what each server that is a program could reach on this machine.
    pub async fn reach(&self) -> BTreeMap<Arc<str>, Reach> {
        let connections = self.connections();
        Reach::of_all(connections.values().map(|connection| &**connection), &self.around).await
    }

    /// Cancelled when the gateway stops.
    pub fn stopping(&self) -> &CancellationToken {
        &self.life.stop
    }

    /// Returns the time since the start.
    pub fn uptime(&self) -> Duration {
        self.since.elapsed()
    }

    /// Replaces the world. From now on its secrets are masked in the servers' output.
    fn store(&self, world: World) {
        self.around.secrets.store(world.secrets.clone());
        self.world.store(Arc::new(world));
    }

    /// Watches for new configurations.
    pub fn reloads(&self) -> watch::Receiver<()> {
        self.reloads.subscribe()
    }

    /// Watches whether the servers were started.
    pub fn started(&self) -> watch::Receiver<bool> {
        self.started.subscribe()
    }

    /// Starts all servers and returns at once; `false` if they were started before. Sends their lists to
    /// `updates`.
    pub fn start(self: &Arc<Self>, updates: &mpsc::Sender<ServerUpdate>) -> bool {
        if self.started.send_replace(true) {
            return false;
        }
        let _ = self.updates.set(updates.clone());
        self.sweep_people();
        for connection in self.world().connections.values() {
            self.supervise(connection, updates);
        }
        self.life.keep_timers_near();
        true
    }

    /// Keeps a server connected until it is retired or the gateway stops.
    fn supervise(&self, connection: &Arc<Connection>, updates: &mpsc::Sender<ServerUpdate>) {
        let stop = self.life.stop.child_token();
        let (connection, updates) = (connection.clone(), updates.clone());
        let retired = connection.retired().clone();
        self.life.tasks.spawn(async move {
            let end = stop.clone();
            tokio::select! {
                () = connection.supervise(updates, end) => {}
                () = async { retired.cancelled().await; stop.cancel(); std::future::pending().await } => {}
            }
        });
    }

    fn connection(&self, name: Arc<str>, settings: &ServerSettings) -> Arc<Connection> {
        let connection = Connection::new(name, settings.clone(), self.around.clone(), None);
        connection.begin_with_log(self.wanted_log());
        Arc::new(connection)
    }

    /// Applies a configuration, touching only the servers that it changes. Returns the changes, and the
    /// sessions' servers that the changes have ended, with their sessions.
    pub fn reload(
        &self,
        config: Config,
        updates: Option<&mpsc::Sender<ServerUpdate>>,
    ) -> (WorldChanges, Vec<(Arc<str>, u64)>) {
        let replacing = self.replacing.lock();
        let before = self.world();
        let Transition { world, changes, fresh, retired, mut ended } =
            World::new(config, Some(&before), |name, settings| self.connection(name, settings));
        // A server being written to the file is skipped once, because the call that wrote it may have been
        // cut off.
        ended.retain(|(name, _)| self.persisting.remove(name).is_none());
        self.store(world);
        drop(replacing);
        self.reloads.send_replace(());
        self.unmatched.changed();
        if let Some(updates) = updates {
            for connection in &fresh {
                self.supervise(connection, updates);
            }
        }
        retired.into_iter().for_each(|connection| self.retire(connection));
        self.sweep_once();
        (changes, ended)
    }

    /// Also masks the secrets of a configuration under trial in the servers' output, until the next reload.
    pub fn mask_by(&self, config: &Config) {
        let secrets = secrets_of(config, &self.world().connections);
        self.around.secrets.store(Arc::new(secrets));
    }

    /// Starts a server that belongs to no world, until it is retired. Sends its list to `updates`.
    pub fn trial(
        &self,
        name: Arc<str>,
        settings: &ServerSettings,
        updates: &mpsc::Sender<ServerUpdate>,
    ) -> Arc<Connection> {
        let connection = self.connection(name, settings);
        self.supervise(&connection, updates);
        connection
    }

    /// Adds and starts a session's server, if `may` permits it.
    pub fn add<E>(
        &self,
        name: &Arc<str>,
        settings: &ServerSettings,
        updates: &mpsc::Sender<ServerUpdate>,
        may: impl FnOnce(&World) -> Result<(), E>,
    ) -> Result<Arc<Connection>, E> {
        let _replacing = self.replacing.lock();
        let before = self.world();
        may(&before)?;
        let connection = self.connection(name.clone(), settings);
        let mut connections = Connections::clone(&before.connections);
        connections.insert(name.clone(), connection.clone());
        self.store(World::of(before.config.clone(), connections));
        self.supervise(&connection, updates);
        Ok(connection)
    }

    /// Removes the servers of a session, or only the server with this name, from the world. The caller still
    /// has to retire them.
    pub fn remove(&self, session: u64, name: Option<&str>) -> Vec<Arc<Connection>> {
        let _replacing = self.replacing.lock();
        let before = self.world();
        let goes = |server: &str| {
            before.owners.get(server) == Some(&session) && name.is_none_or(|name| name == server)
        };
        let mut connections = Connections::clone(&before.connections);
        let gone: Vec<_> =
            connections.extract_if(.., |server, _| goes(server)).map(|(_, gone)| gone).collect();
        if !gone.is_empty() {
            self.store(World::of(before.config.clone(), connections));
        }
        gone
    }

    /// Returns the connection for a caller's requests: the shared one, or the session's own if the server
    /// runs per client.
    pub fn connection_for(
        &self,
        shared: Arc<Connection>,
        caller: &Caller,
        server: &Arc<str>,
    ) -> Arc<Connection> {
        let settings = shared.settings();
        // A person's call never uses the gateway's own account, whatever state theirs is in.
        if settings.credentials.are_personal()
            && let Some((key, person)) = caller.whose()
        {
            let own = self.connection_of(&key, person.map(|person| &**person), server, &settings);
            match shared.is_held() {
                true => own.hold(),
                false => own.release(),
            }
            return own;
        }
        if settings.scope == ServerScope::Shared || !caller.lasting || shared.is_held() {
            return shared;
        }
        let begin = || {
            let own = self.connection(server.clone(), &settings);
            // The shared connection already publishes this server's list.
            let (updates, _) = mpsc::channel(1);
            self.supervise(&own, &updates);
            own
        };
        caller.session.connection(server, &settings, begin)
    }

    /// Returns a person's own connection to a server.
    fn connection_of(
        &self,
        key: &Arc<str>,
        person: Option<&Person>,
        server: &Arc<str>,
        settings: &Arc<ServerSettings>,
    ) -> Arc<Connection> {
        let mut ended = Vec::new();
        let page = || self.config().auth.as_ref().map_or_else(String::new, |auth| auth.account_page(server));
        let begin = |access: &PersonAccess| {
            let own = Connection::of_person(
                server.clone(),
                ServerSettings::clone(settings),
                self.around.clone(),
                access,
            );
            own.begin_with_log(self.wanted_log());
            let own = Arc::new(own);
            match self.updates.get() {
                Some(updates) => self.supervise(&own, updates),
                // Nothing is started yet, so nothing is called.
                None => self.supervise(&own, &mpsc::channel(1).0),
            }
            own
        };
        let own = self.personal.of((server, key, settings), person, page, begin, &mut ended);
        ended.into_iter().for_each(|connection| self.retire(connection));
        own
    }

    /// Retires a connection once its calls in flight have ended.
    fn retire(&self, connection: Arc<Connection>) {
        let stop = self.life.stop.clone();
        self.life.tasks.spawn(async move {
            tokio::select! {
                () = connection.retire(RETIRE_LIMIT) => {}
                () = stop.cancelled() => {}
            }
        });
    }

    /// Connects the accounts of a person who calls, so that what they have is known before they search. Returns
    /// at once.
    pub fn greet(self: &Arc<Self>, person: &Arc<Person>) {
        let world = self.world();
        if world.personal.is_empty() || !self.personal.greets(person) {
            return;
        }
        let (servers, person) = (self.clone(), person.clone());
        self.life.tasks.spawn(async move {
            for server in world.personal.iter() {
                let Some(settings) = servers.personal_settings(server) else { continue };
                if servers.has_account(&person, server, &settings).await
                    // The configuration may have changed meanwhile.
                    && let Some(settings) = servers.personal_settings(server)
                {
                    servers.connection_of(&person.key, Some(&person), server, &settings);
                }
            }
        });
    }

    /// Returns the settings of a server at which people have accounts of their own, unless it is on hold.
    fn personal_settings(&self, server: &str) -> Option<Arc<ServerSettings>> {
        let connections = self.connections();
        let connection = connections.get(server).filter(|connection| !connection.is_held())?;
        Some(connection.settings()).filter(|settings| settings.credentials.are_personal())
    }

    /// Connects a person's account anew after they have signed in to a server, perhaps as somebody else there.
    pub fn signed_in(&self, person: &Arc<str>, server: &str) {
        self.personal.forget_greeting(person);
        if let Some(own) = self.personal.known(server, person) {
            own.retry_sign_in();
        }
    }

    /// Ends a person's connection to a server that they have signed out of.
    pub fn signed_out(&self, person: &Arc<str>, server: &str) {
        if let Some(own) = self.personal.end_of(server, person) {
            own.retired().cancel();
        }
    }

    async fn has_account(&self, person: &Person, server: &str, settings: &ServerSettings) -> bool {
        let Some((url, ..)) = settings.transport.sign_in() else { return false };
        match (&settings.credentials, &self.around.people) {
            (ServerCredentials::Exchange(_), _) => person.token.is_some(),
            (ServerCredentials::User, Some(people)) => {
                let kept = people.account(&person.key, server, url).read().await;
                kept.is_ok_and(|kept| kept.is_some())
            }
            _ => false,
        }
    }

    /// Ends the connections of people that nobody uses, or whose server has changed.
    fn sweep_people(self: &Arc<Self>) {
        let (servers, stop) = (Arc::downgrade(self), self.life.stop.clone());
        self.life.tasks.spawn(async move {
            let mut beat = tokio::time::interval(SWEEP);
            loop {
                tokio::select! {
                    _ = beat.tick() => {}
                    () = stop.cancelled() => return,
                }
                let Some(servers) = servers.upgrade() else { return };
                servers.sweep_once();
            }
        });
    }

    fn sweep_once(&self) {
        let world = self.world();
        let ended = self.personal.sweep(|server, connection| {
            let shared = world.connections.get(server);
            shared.is_some_and(|one| connection.is_reached_by(&one.settings()))
        });
        ended.into_iter().for_each(|connection| self.retire(connection));
        self.personal.forget(|server| world.personal.iter().any(|name| **name == *server));
    }

    /// Waits up to `limit` until each server is ready or has failed once.
    pub async fn settled(&self, limit: Duration) {
        let world = self.world();
        let _ = tokio::time::timeout(limit, settled(world.connections.values())).await;
    }

    /// Returns the lowest log level that a session wants from servers.
    fn wanted_log(&self) -> Option<LogLevel> {
        self.log_levels.lock().values().min().copied()
    }

    /// Records the log level that a session wants from servers. A server has one level for all sessions, so
    /// it gets the lowest level that any open session wants.
    pub fn want_log(&self, session: u64, level: LogLevel, is_open: impl Fn(u64) -> bool) {
        let lowest = {
            let mut wanted = self.log_levels.lock();
            wanted.retain(|id, _| is_open(*id));
            wanted.insert(session, level);
            wanted.values().min().copied().unwrap_or(level)
        };
        let shared = self.connections();
        for connection in shared.values().cloned().chain(self.personal.connections()) {
            self.life.tasks.spawn(async move { connection.set_log_level(lowest).await });
        }
    }
}

/// Waits until each of these servers is ready or has failed once.
pub async fn settled(connections: impl Iterator<Item = &Arc<Connection>>) {
    for connection in connections {
        let _ = connection.watch().wait_for(ConnectionState::settled).await;
    }
}
