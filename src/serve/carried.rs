//! Sessions over HTTP in a cluster: each has a record from which another replica can continue it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use dashmap::DashMap;
use nonet_parts::cluster::Cluster;
use nonet_peer::request::RequestContext;
use nonet_servers::downstream::LogLevel;
use nonet_state::session::CarriedSession;
use nonet_store::{SessionHolder, StoreError};
use rmcp::model::InitializeRequestParams;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::NonetServer;

/// How often the records of changed sessions are written.
const WRITE: Duration = Duration::from_secs(1);
/// How often the expiry of all records is postponed. Records that Redis has lost are written again.
const TOUCH: Duration = Duration::from_secs(60);
/// How many records are postponed at a time.
const AT_ONCE: usize = 500;
/// How often sessions are checked for being ready to hand over.
const LOOK: Duration = Duration::from_millis(50);
/// The longest record. A session with a longer one is not handed over.
const MOST_BYTES: usize = 256 << 10;

/// The sessions of one door, and the records of them for the other replicas.
pub(super) struct CarriedSessions {
    cluster: Arc<Cluster>,
    /// The profile of the door: a session is not valid at any other door.
    profile: Option<String>,
    open: DashMap<Box<str>, OpenSession>,
}

/// Marks the handshake of a session that another replica began.
#[derive(Clone, Copy)]
pub(super) struct GoesOn;

struct OpenSession {
    initialize: InitializeRequestParams,
    server: NonetServer,
    /// The number of changes in its record.
    written: AtomicU64,
}

/// Not a valid number of changes.
const UNWRITTEN: u64 = u64::MAX;

/// The stored part of a session.
#[derive(Serialize, Deserialize)]
pub(super) struct SessionRecord {
    profile: Option<String>,
    /// The key of its person, if somebody has signed in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub person: Option<String>,
    pub initialize: InitializeRequestParams,
    #[serde(default)]
    log_level: Option<LogLevel>,
    /// URIs.
    #[serde(default)]
    subscriptions: Vec<String>,
    #[serde(flatten)]
    session: CarriedSession,
}

impl CarriedSessions {
    pub(super) fn new(cluster: Arc<Cluster>, profile: Option<String>) -> Arc<Self> {
        Arc::new(Self { cluster, profile, open: DashMap::new() })
    }

    /// Writes changed records, until `ending` is cancelled.
    pub(super) async fn keep(self: Arc<Self>, ending: CancellationToken) {
        let (mut touched, mut emptied) = (Instant::now(), 0);
        while ending.run_until_cancelled(sleep(WRITE)).await.is_some() {
            self.write_changes().await;
            let now_emptied = self.cluster.replicas().times_emptied();
            if touched.elapsed() >= TOUCH || emptied != now_emptied {
                (touched, emptied) = (Instant::now(), now_emptied);
                self.touch().await;
            }
        }
    }

    async fn write_changes(&self) {
        let changed = self.open.iter().filter_map(|open| {
            let now = open.server.session.changes();
            (open.written.load(Ordering::Relaxed) != now).then(|| open.key().clone())
        });
        for id in changed.collect::<Vec<_>>() {
            // Redis is unavailable: try again later.
            if !self.write(&id, false).await {
                return;
            }
        }
    }

    /// Writes the record of a session. Returns whether Redis accepted it.
    async fn write(&self, id: &str, ends: bool) -> bool {
        let (record, changes) = {
            let Some(open) = self.open.get(id) else { return true };
            let server = &open.server;
            let record = SessionRecord {
                profile: self.profile.clone(),
                person: server.session.owner.person().map(Into::into),
                initialize: open.initialize.clone(),
                log_level: Some(server.log_level.get()),
                subscriptions: server.subscriptions.lock().keys().cloned().collect(),
                session: server.session.carried(ends),
            };
            (record, server.session.changes())
        };
        let body = serde_json::to_vec(&record).unwrap_or_default();
        if body.len() > MOST_BYTES {
            tracing::warn!(bytes = body.len(), "a session is too large to be taken over by another replica");
        } else if let Err(error) = self.cluster.replicas().put_session(id, &body).await {
            tracing::debug!(%error, "a session cannot be taken over at the moment");
            return false;
        }
        if let Some(open) = self.open.get(id) {
            open.written.store(changes, Ordering::Relaxed);
        }
        true
    }

    /// Postpones the expiry of all records.
    async fn touch(&self) {
        let ids: Vec<String> = self.open.iter().map(|open| open.key().to_string()).collect();
        for some in ids.chunks(AT_ONCE) {
            let Ok(lost) = self.cluster.replicas().touch_sessions(some).await else { return };
            for id in lost {
                self.write(&id, false).await;
            }
        }
    }

    /// Keeps the record of a new session until that ends.
    pub(super) async fn opened(
        self: &Arc<Self>,
        id: &str,
        initialize: InitializeRequestParams,
        server: &NonetServer,
    ) {
        self.follow(
            id,
            OpenSession { initialize, server: server.guest(), written: AtomicU64::new(UNWRITTEN) },
        );
        self.write(id, false).await;
    }

    fn follow(self: &Arc<Self>, id: &str, session: OpenSession) {
        let (carried, id, ended) = (self.clone(), Box::<str>::from(id), session.server.ended.clone());
        self.open.insert(id.clone(), session);
        tokio::spawn(async move {
            ended.cancelled().await;
            // The session was idle, so any replica may continue it.
            if carried.open.remove(&id).is_some()
                && let Err(error) = carried.cluster.replicas().free_session(&id).await
            {
                tracing::debug!(%error, "a session stays reserved until this replica's lease expires");
            }
        });
    }

    /// Takes over a session that another replica began. Returns its record, or `None` if there is none for
    /// this door.
    pub(super) async fn claim(&self, id: &str) -> Result<Option<SessionRecord>, StoreError> {
        let may = !self.cluster.replicas().is_leaving();
        let SessionHolder::Here(body) = self.cluster.replicas().claim_session(id, None, may).await? else {
            return Ok(None);
        };
        let record: SessionRecord = match serde_json::from_slice(&body) {
            Ok(record) => record,
            Err(error) => {
                tracing::warn!(%error, "the record of a session cannot be read");
                return Ok(None);
            }
        };
        let is_here = record.profile == self.profile;
        if is_here {
            tracing::info!("a session of another replica continues here");
        }
        Ok(is_here.then_some(record))
    }

    /// Restores a new handler from the record of its session.
    pub(super) fn restore(
        self: &Arc<Self>,
        id: &str,
        record: SessionRecord,
        server: &NonetServer,
        context: &RequestContext,
    ) {
        if let Some(level) = record.log_level {
            server.log_level.set(level);
            server.gateway.calls.want_log(server.session.id, level);
        }
        server.session.carry_on(record.session);
        let written = AtomicU64::new(server.session.changes());
        self.follow(id, OpenSession { initialize: record.initialize, server: server.guest(), written });
        for uri in record.subscriptions {
            server.subscribe_again(uri, context);
        }
    }

    /// Removes the record of a session that its client has ended.
    pub(super) async fn delete(&self, id: &str) -> Result<(), StoreError> {
        self.open.remove(id);
        self.cluster.replicas().drop_session(id).await
    }

    /// Keeps a session here for a request, until the returned value is dropped. `None`: the session is not
    /// here, or is about to leave.
    pub(super) fn hold(&self, id: &str) -> Option<Arc<()>> {
        let open = self.open.get(id)?;
        Some(open.server.session.busy.clone())
    }

    /// Hands over the sessions without a request in flight, until none is left or the time is up. `give_up`
    /// ends one here.
    pub(super) async fn hand_over(&self, until: Instant, give_up: impl Fn(&str)) {
        let is_idle = |open: &OpenSession| !open.server.session.is_busy();
        while !self.open.is_empty() && Instant::now() < until {
            let idle: Vec<Box<str>> =
                self.open.iter().filter(|open| is_idle(open)).map(|open| open.key().clone()).collect();
            for id in idle {
                self.write(&id, true).await;
                // A request may have arrived meanwhile.
                if self.open.remove_if(&id, |_, open| is_idle(open)).is_some() {
                    if let Err(error) = self.cluster.replicas().free_session(&id).await {
                        tracing::debug!(%error, "a session stays reserved until this replica's lease expires");
                    }
                    give_up(&id);
                }
            }
            sleep(LOOK).await;
        }
    }
}
