//! Sessions over HTTP in a cluster: each has a record from which another replica can continue it.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use dashmap::DashMap;
use futures::Stream;
use http::request::Parts;
use nonet_parts::cluster::Cluster;
use nonet_servers::downstream::LogLevel;
use nonet_state::session::CarriedSession;
use nonet_store::SessionHolder;
use rmcp::{
    RoleServer,
    model::{ClientJsonRpcMessage, InitializeRequestParams, ServerJsonRpcMessage},
    service::{NotificationContext, RequestContext},
    transport::streamable_http_server::session::{
        RestoreOutcome, ServerSseMessage, SessionId, SessionManager, SessionRestoreMarker, SessionState,
        SessionStore, SessionStoreError, local::LocalSessionManager,
    },
};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{NonetServer, plain_calls};

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
    local: Arc<LocalSessionManager>,
    open: DashMap<Box<str>, OpenSession>,
    /// The records of sessions that are about to be taken over.
    coming: DashMap<Box<str>, SessionRecord>,
}

struct OpenSession {
    initialize: InitializeRequestParams,
    /// Its handler, once its handshake has ended.
    server: OnceLock<NonetServer>,
    /// The number of changes in its record.
    written: AtomicU64,
}

/// Not a valid number of changes.
const UNWRITTEN: u64 = u64::MAX;

/// The stored part of a session.
#[derive(Serialize, Deserialize)]
struct SessionRecord {
    profile: Option<String>,
    initialize: InitializeRequestParams,
    #[serde(default)]
    log_level: Option<LogLevel>,
    /// URIs.
    #[serde(default)]
    subscriptions: Vec<String>,
    #[serde(flatten)]
    session: CarriedSession,
}

impl CarriedSessions {
    pub(super) fn new(
        cluster: Arc<Cluster>,
        profile: Option<String>,
        local: Arc<LocalSessionManager>,
    ) -> Arc<Self> {
        Arc::new(Self { cluster, profile, local, open: DashMap::new(), coming: DashMap::new() })
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
            let now = open.server.get().map_or(0, |server| server.session.changes());
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
            let server = open.server.get();
            let record = SessionRecord {
                profile: self.profile.clone(),
                initialize: open.initialize.clone(),
                log_level: server.map(|server| server.log_level.get()),
                subscriptions: server
                    .map(|server| server.subscriptions.lock().keys().cloned().collect())
                    .unwrap_or_default(),
                session: server.map(|server| server.session.carried(ends)).unwrap_or_default(),
            };
            (record, server.map_or(0, |server| server.session.changes()))
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

    /// Tracks a session from the end of its handshake to its own end.
    pub(super) fn follow(self: &Arc<Self>, server: &NonetServer, context: &NotificationContext<RoleServer>) {
        let id = context.extensions.get::<Parts>().and_then(|parts| plain_calls::session_id(&parts.headers));
        let Some(id) = id.map(Box::<str>::from) else { return };
        let Some(open) = self.open.get(&id) else { return };
        let _ = open.server.set(server.guest());
        drop(open);
        let (carried, ended) = (self.clone(), server.ended.clone());
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

    /// Restores a new handler from the record of its session. Returns whether there is a record.
    pub(super) fn restore(&self, server: &NonetServer, context: &RequestContext<RoleServer>) -> bool {
        let Some(SessionRestoreMarker { id, .. }) = context.extensions.get() else { return false };
        let Some((id, record)) = self.coming.remove(&**id) else { return false };
        if let Some(level) = record.log_level {
            server.log_level.set(level);
            server.gateway.want_log(server.session.id, level);
        }
        server.session.carry_on(record.session);
        let open = OpenSession {
            initialize: record.initialize,
            server: OnceLock::new(),
            written: AtomicU64::new(server.session.changes()),
        };
        self.open.insert(id, open);
        for uri in record.subscriptions {
            server.subscribe_again(uri, context);
        }
        true
    }

    /// Keeps a session here for a request, until the returned value is dropped. `None`: the session is not here, or is about
    /// to leave.
    pub(super) fn hold(&self, id: &str) -> Option<Arc<()>> {
        let open = self.open.get(id)?;
        // A session in its handshake stays.
        Some(open.server.get().map(|server| server.session.busy.clone()).unwrap_or_default())
    }

    /// Hands over the sessions without a request in flight, until none is left or the time is up.
    pub(super) async fn hand_over(&self, until: Instant) {
        let is_idle = |open: &OpenSession| open.server.get().is_some_and(|server| !server.session.is_busy());
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
                    let _ = self.local.close_session(&SessionId::from(&*id)).await;
                }
            }
            sleep(LOOK).await;
        }
    }
}

/// The sessions of a door as rmcp creates and finds them.
pub(super) struct HttpSessions {
    pub local: Arc<LocalSessionManager>,
    cluster: Option<Arc<Cluster>>,
}

impl HttpSessions {
    pub(super) fn new(local: Arc<LocalSessionManager>, cluster: Option<Arc<Cluster>>) -> Self {
        Self { local, cluster }
    }
}

type LocalError = <LocalSessionManager as SessionManager>::Error;

impl SessionManager for HttpSessions {
    type Error = LocalError;
    type Transport = <LocalSessionManager as SessionManager>::Transport;

    /// In a cluster, the id names the replica that has the session.
    async fn create_session(&self) -> Result<(SessionId, Self::Transport), LocalError> {
        if let Some(cluster) = &self.cluster {
            let id = SessionId::from(cluster.handle(&uuid::Uuid::new_v4().simple().to_string()));
            if let RestoreOutcome::Restored(transport) = self.local.restore_session(id.clone()).await? {
                return Ok((id, transport));
            }
        }
        self.local.create_session().await
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, LocalError> {
        self.local.initialize_session(id, message).await
    }

    async fn has_session(&self, id: &SessionId) -> Result<bool, LocalError> {
        self.local.has_session(id).await
    }

    async fn close_session(&self, id: &SessionId) -> Result<(), LocalError> {
        self.local.close_session(id).await
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, LocalError> {
        self.local.create_stream(id, message).await
    }

    async fn accept_message(&self, id: &SessionId, message: ClientJsonRpcMessage) -> Result<(), LocalError> {
        self.local.accept_message(id, message).await
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, LocalError> {
        self.local.create_standalone_stream(id).await
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, LocalError> {
        self.local.resume(id, last_event_id).await
    }

    async fn restore_session(&self, id: SessionId) -> Result<RestoreOutcome<Self::Transport>, LocalError> {
        self.local.restore_session(id).await
    }
}

#[async_trait::async_trait]
impl SessionStore for CarriedSessions {
    async fn load(&self, id: &str) -> Result<Option<SessionState>, SessionStoreError> {
        let may = !self.cluster.replicas().is_leaving();
        let SessionHolder::Here(body) = self.cluster.replicas().claim_session(id, None, may).await? else {
            return Ok(None);
        };
        let record: SessionRecord = serde_json::from_slice(&body)?;
        if record.profile != self.profile {
            return Ok(None);
        }
        tracing::info!("a session of another replica continues here");
        let state = SessionState::new(record.initialize.clone());
        self.coming.insert(id.into(), record);
        Ok(Some(state))
    }

    async fn store(&self, id: &str, state: &SessionState) -> Result<(), SessionStoreError> {
        let open = OpenSession {
            initialize: state.initialize_params.clone(),
            server: OnceLock::new(),
            written: AtomicU64::new(UNWRITTEN),
        };
        self.open.insert(id.into(), open);
        self.write(id, false).await;
        Ok(())
    }

    async fn delete(&self, id: &str) -> Result<(), SessionStoreError> {
        self.open.remove(id);
        Ok(self.cluster.replicas().drop_session(id).await?)
    }
}
