//! The gateway: all servers, one catalogue, one index, and the operations on them.
//!
//! Start reading here. [`Gateway`] is ten parts, each with its own state and operations; a part holds the
//! parts below it. [`Gateway::connect`] starts the servers; one publisher task turns their tool lists into a
//! [`Snapshot`](nonet_state::snapshot::Snapshot) and replaces it whole (`publish`). Each operation takes one
//! [`Gate`] and keeps it. The one road of a call is `call/road.rs`; `builtin` has Nonet's own tools.

mod absent;
mod agenda;
mod apps;
mod auditing;
mod builtin;
pub mod call;
mod calls;
mod categories;
mod discover;
mod edits;
mod errands;
mod find;
mod gate;
mod graph;
mod guides;
pub mod inquiry;
mod inspect;
mod interrupt;
mod keeping;
mod learn;
mod limiting;
mod looking;
mod observing;
mod prompts_resources;
mod publish;
mod recording;
mod reload;
pub mod run;
mod runtime_servers;
mod scheduling;
pub mod serving_skills;
mod skills;
pub mod status;
mod ties;
mod trusting;
mod unmatched;
pub mod user_work;
mod watching;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use arc_swap::ArcSwap;
pub use gate::Gate;
use nonet_api::{notice::WorldChanges, status::ServeMode};
use nonet_base::clock::Clock;
use nonet_config::{ClusterSettings, Config, RedisAddresses, select::Selector, shell};
use nonet_hosts::SetupUndo;
use nonet_parts::{
    approvals::Approvals, cluster::Cluster, jobs::Jobs, kept::KeptResults, memory::Memory, rates::Rates,
};
use nonet_servers::{
    downstream::{ConnectionContext, Dial, Placements, SandboxFolders, process_guard::ProcessGuard},
    oauth::{PeopleVault, Vault},
    pins::Pins,
};
use nonet_state::{
    mail::Mail,
    outward::NoticeDelivery,
    people::People,
    publisher::Publisher,
    servers::{Lifetime, Servers},
    sessions::Sessions,
    snapshot::Snapshot,
};
use nonet_store::{GatewayStore, RecordKind, RedisTopology, Retention, Store};
use parking_lot::Mutex;

use apps::parked::ParkedFlows;
pub use apps::{AppArguments, Apps};
pub use builtin::WorkSummary;
pub(crate) use nonet_state::{asking::Asking, questions::AskArguments};

pub use calls::Calls;
pub use discover::{BrowseArguments, SearchArguments};
use errands::ErrandTable;
pub use errands::Errands;
pub use find::Find;
pub use graph::too_many;
pub use graph::{MAX_ACTIONS, ParallelArguments};
use guides::Guides;
pub use interrupt::Interrupt;
pub use keeping::Keeping;
pub use observing::Observing;
pub use prompts_resources::{FollowedResource, ListPage};
use reload::Texts;
pub use skills::SkillArguments;

/// Start options beside the configuration.
#[derive(Default)]
pub struct GatewayOptions {
    /// Nonet's own executable, which guards child processes and runs jq filters in a separate process; `None`
    /// in library tests.
    pub executable: Option<PathBuf>,
    /// Servers reached over byte streams instead of their configured transport.
    pub dials: BTreeMap<String, Box<Dial>>,
    /// Keyword search only: the model is not loaded.
    pub without_embedder: bool,
    /// The folder of the last known lists; without it, lists are not cached.
    pub cache: Option<PathBuf>,
    /// The folder of the store (learned outcomes, kept results); without it, both end with the process.
    pub state: Option<PathBuf>,
    /// Its servers are only tried: no definition is pinned or waits to be trusted afterwards.
    pub is_trial: bool,
    /// The clock for due times; a test can move it.
    pub clock: Clock,
}

/// All servers, and the operations that clients may ask for.
pub struct Gateway {
    /// The servers and their configuration.
    pub servers: Arc<Servers>,
    /// The snapshot: the catalogue and its index.
    pub publisher: Arc<Publisher>,
    /// The sessions, their accounts, and the notices for them.
    pub sessions: Arc<Sessions>,
    /// What undoes the setup that the page's user has made.
    pub setup_undo: Mutex<Option<SetupUndo>>,
    /// Questions to the user.
    pub asking: Arc<Asking>,
    /// What calls leave behind.
    pub observing: Arc<Observing>,
    /// What outlives a call.
    pub keeping: Arc<Keeping>,
    /// Calls: of tools, skills, prompts and resources.
    pub calls: Arc<Calls>,
    /// Finds tools, categories and memories.
    pub find: Arc<Find>,
    /// Apps and plans: what makes several calls for one.
    pub apps: Arc<Apps>,
    /// The texts of servers.toml: in use, refused, accepted.
    texts: Texts,
    /// Watches and schedules.
    pub errands: Arc<Errands>,
    /// Its name among the gateways of this user.
    pub id: Box<str>,
    /// How it serves its clients, once it does.
    pub serves: OnceLock<ServeMode>,
}

impl Gateway {
    /// Creates a gateway without starting anything: it answers at once, with only its own tools.
    pub fn new(mut config: Config, options: GatewayOptions) -> Arc<Self> {
        if let Some(audit) = config.audit.as_mut().filter(|_| options.is_trial) {
            // A check sends nothing to anybody.
            audit.export.clear();
        }
        let executable = options.executable.clone();
        let selector = Selector::new(executable.clone());
        let state = options.state.clone();
        let (life, clock) = (Lifetime::default(), options.clock);
        let rates = ArcSwap::from_pointee(Rates::new(&config, &Rates::default()));
        let retention =
            Retention { bytes: config.gateway.keep_results_bytes, age: config.gateway.keep_results_for };
        let place = place_of(&config.file);
        let pins = Pins::new(options.state.clone().filter(|_| !options.is_trial), &place, clock.clone());
        let in_store = place_in_store(&config.file, config.cluster.as_ref());
        let store = open_store(config.cluster.as_ref(), options.state.clone(), retention, &clock, &in_store);
        let (records, store): (_, Arc<dyn Store>) = (store.records.clone(), Arc::new(store));
        let key = config.auth.as_ref().and_then(|auth| auth.key.as_ref()).map(|key| key.expose());
        let people = PeopleVault::new(records.clone(), key, options.state.as_deref());
        let around = Arc::new(ConnectionContext {
            people: Some(people),
            guard: ProcessGuard::new(options.executable),
            vault: options.state.as_deref().map(Vault::in_state),
            login: shell::nonet("login", &config.file),
            secrets: Default::default(),
            sandboxes: SandboxFolders { state: options.state, config: config.file.clone() },
            placements: Placements::default(),
            slots: store.shared_slots(),
        });
        let outward = NoticeDelivery::new(around.clone(), life.tasks.clone(), life.stop.clone());
        let cluster = store.replicas().map(|replicas| Arc::new(Cluster::new(replicas)));
        let pins = pins.sharing(store.shared_pins().filter(|_| !options.is_trial));
        let parked = ParkedFlows::new(records.clone(), clock.clone(), RecordKind::Parked);
        let scripts = ParkedFlows::new(records.clone(), clock.clone(), RecordKind::Script);
        let jobs = Arc::new(Jobs::new(store.clone(), clock.clone()));
        let (tasks, stop) = (life.tasks.clone(), life.stop.clone());
        let memory = Memory::new(records.clone(), clock.clone(), &config.embedder, tasks, stop);
        let (cache, vectors) = (options.cache, store.shared_vectors());
        let own = builtin::listing(&config.gateway);
        let servers = Arc::new(Servers::new(config, around, options.dials, life.clone()));
        let publisher = Publisher::new(own, cache, options.without_embedder, pins, vectors, servers.clone());
        let observing = Observing::new(&publisher, &store, clock.clone(), state.as_deref());
        let people = People::new(records.clone());
        let mail = Mail::new(records.clone(), people.clone(), outward.clone(), life.clone());
        let kept = KeptResults::new(store.clone(), jobs.clone(), selector);
        let approvals = Approvals::new(records.clone(), clock.clone(), &in_store);
        let asking = Asking::new(servers.clone(), approvals, cluster.clone());
        let keeping =
            Keeping { kept, jobs, memory, records, store, cluster: cluster.clone(), clock, folder: state };
        let keeping = Arc::new(keeping);
        let sessions = Arc::new(Sessions::new(servers.clone(), mail, people, cluster));
        Arc::new_cyclic(|gateway| {
            let calls = Arc::new(Calls {
                servers: servers.clone(),
                publisher: publisher.clone(),
                sessions: sessions.clone(),
                keeping: keeping.clone(),
                observing: observing.clone(),
                asking: asking.clone(),
                rates,
                guides: Guides::default(),
                gateway: gateway.clone(),
            });
            let find = Arc::new(Find {
                servers: servers.clone(),
                publisher: publisher.clone(),
                keeping: keeping.clone(),
                observing: observing.clone(),
                calls: calls.clone(),
            });
            let apps = Arc::new(Apps {
                servers: servers.clone(),
                publisher: publisher.clone(),
                keeping: keeping.clone(),
                observing: observing.clone(),
                asking: asking.clone(),
                calls: calls.clone(),
                find: find.clone(),
                parked,
                scripts,
                ended_scripts: Default::default(),
                script_turns: apps::script::turns(),
                executable,
            });
            let errands = Arc::new(Errands {
                servers: servers.clone(),
                publisher: publisher.clone(),
                sessions: sessions.clone(),
                keeping: keeping.clone(),
                observing: observing.clone(),
                calls: calls.clone(),
                apps: apps.clone(),
                outward,
                table: ErrandTable::default(),
                keeps_time: OnceLock::new(),
            });
            Self {
                calls,
                find,
                apps,
                sessions,
                servers,
                publisher,
                asking,
                observing,
                texts: Texts::default(),
                errands,
                setup_undo: Mutex::default(),
                keeping,
                id: uuid::Uuid::new_v4().simple().to_string()[..12].into(),
                serves: OnceLock::new(),
            }
        })
    }

    /// Starts reading the last known lists and returns at once. A second call does nothing.
    pub fn recall(self: &Arc<Self>) {
        let Some(updates) = self.publisher.take_updates() else { return };
        let gateway = self.clone();
        self.servers.life.tasks.spawn(async move { gateway.publish(updates).await });
    }

    /// Starts all servers and the embedder concurrently and returns at once. A second call does nothing.
    pub fn connect(self: &Arc<Self>) {
        self.recall();
        let Some(updates) = self.publisher.updates() else { return };
        if self.servers.life.stop.is_cancelled() {
            return;
        }
        if let Some(audit) = &self.observing.audit {
            audit.begins();
        }
        self.publisher.start_embedder(&self.servers.config().embedder);
        let is_first = self.servers.start(&updates);
        if is_first && let Some(cluster) = &self.keeping.cluster {
            self.servers.keep_places(cluster.clone());
        }
        if is_first && !self.publisher.is_without_embedder() {
            let gateway = self.clone();
            self.servers.life.tasks.spawn(async move { gateway.observing.recalled().await });
        }
    }

    /// Stops all servers and waits for them to exit.
    pub async fn stop(&self) {
        self.servers.life.end().await;
        if let Err(error) = self.keeping.store.leave().await {
            tracing::debug!(%error, "what this gateway holds is free once its lease has expired");
        }
        if let Some(audit) = &self.observing.audit {
            audit.stop().await;
        }
    }
}

/// Opens the store that replicas share.
pub fn open_redis(cluster: &ClusterSettings, retention: Retention, clock: Clock) -> GatewayStore {
    let mut nodes = cluster.redis.connections();
    let way = match (&cluster.sentinel, &cluster.redis) {
        (Some(master), _) => RedisTopology::Sentinel {
            sentinels: nodes,
            master: master.clone(),
            password: cluster.sentinel_password.as_ref().map(|password| password.expose().to_owned()),
        },
        (None, RedisAddresses::One(_)) => RedisTopology::Node(nodes.remove(0)),
        (None, RedisAddresses::Several(_)) => RedisTopology::Cluster(nodes),
    };
    GatewayStore::in_redis(way, &cluster.prefix, cluster.name.as_deref(), retention, clock)
}

/// Opens the store: the Redis of the replicas, or a file on disk. Neither connects nor touches a file.
/// `place` identifies the configuration.
pub fn open_store(
    cluster: Option<&ClusterSettings>,
    state: Option<PathBuf>,
    retention: Retention,
    clock: &Clock,
    place: &str,
) -> GatewayStore {
    match cluster {
        Some(cluster) => open_redis(cluster, retention, clock.clone()),
        None => GatewayStore::in_files(state, retention, clock.clone(), place),
    }
}

/// Returns the name of a configuration in the store: one name for all replicas, or the name of the file.
pub fn place_in_store(file: &Path, cluster: Option<&ClusterSettings>) -> String {
    cluster.map_or_else(|| place_of(file), |cluster| format!("cluster {}", cluster.prefix))
}

/// Returns a configuration file's name in the store. All gateways of the file get the same name, however its
/// path was written.
pub fn place_of(file: &Path) -> String {
    let place = file.canonicalize().or_else(|_| std::path::absolute(file));
    place.unwrap_or_else(|_| file.into()).display().to_string()
}
