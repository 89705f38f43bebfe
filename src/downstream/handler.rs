//! Nonet as the client of one server: what it says of itself, and what it does with what the server sends.

use std::{sync::Arc, time::Duration};

use rmcp::{
    RoleClient,
    handler::client::ClientHandler,
    model::{
        ClientCapabilities, ClientConfig, CreateMessageRequestParams, CreateMessageResult,
        ElicitRequestParams, ElicitResult, ErrorData, FormElicitationCapability, Implementation,
        ListRootsResult, LoggingMessageNotificationParam, ProtocolVersion, ResourceUpdatedNotificationParam,
        SetLevelRequestParams, UrlElicitationCapability,
    },
    service::{NotificationContext, Peer, RequestContext},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use tokio::{sync::Notify, time::timeout};
use tokio_util::sync::CancellationToken;

use super::{
    Connection,
    follow::Followed,
    wishes::{self, About, Askers, LogLevel},
};
use crate::text::clip;

/// How long a server may take to hear what of its log is wanted.
const LEVEL_LIMIT: Duration = Duration::from_secs(5);

impl Connection {
    pub(super) fn handler(&self, changed: &Arc<Notify>) -> Handler {
        Handler {
            server: self.name.clone(),
            changed: changed.clone(),
            askers: self.askers.clone(),
            followed: self.followed.clone(),
        }
    }

    /// Tells a server of the session era that is ready what is wanted of its log, and which resources are followed.
    pub(super) fn tell_wishes(&self, peer: &Peer<RoleClient>, closed: CancellationToken) {
        let level = self.log_level.lock().map(|level| *level).unwrap_or_default();
        let (server, peer, followed) = (self.name.clone(), peer.clone(), self.followed.clone());
        tokio::spawn(closed.run_until_cancelled_owned(async move {
            if let Some(level) = level {
                tell_log_level(&server, &peer, level).await;
            }
            followed.follow_again(&server, &peer).await;
        }));
    }

    /// Says what of the server's log is wanted before it is connected.
    pub fn begin_with_log(&self, level: Option<LogLevel>) {
        if let Ok(mut own) = self.log_level.lock() {
            *own = level;
        }
    }

    /// Says what of the server's log is wanted from now on, also when it is connected anew.
    pub async fn set_log_level(&self, level: LogLevel) {
        if let Ok(mut own) = self.log_level.lock() {
            *own = Some(level);
        }
        if let Some(peer) = self.peer.load_full() {
            tell_log_level(&self.name, &peer, level).await;
        }
    }
}

/// What Nonet says of itself to a server.
pub(super) fn client_config() -> ClientConfig {
    // A server that answers with a task is followed. What it asks goes to the client whose call is with it, and is declined
    // where that client cannot answer; in the stateless era each call says what its client can.
    let mut capabilities = ClientCapabilities::builder()
        .enable_tasks()
        .enable_roots()
        .enable_sampling()
        .enable_sampling_tools()
        .enable_elicitation()
        .build();
    if let Some(elicitation) = &mut capabilities.elicitation {
        elicitation.form = Some(FormElicitationCapability::default());
        elicitation.url = Some(UrlElicitationCapability::default());
    }
    ClientConfig::new(
        capabilities,
        Implementation::new("nonet", env!("CARGO_PKG_VERSION")).with_title("Nonet MCP gateway"),
    )
    .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
}

/// Tells a server of the session era what of its log is wanted. One that has no log does not mind.
async fn tell_log_level(server: &str, peer: &Peer<RoleClient>, level: LogLevel) {
    let has_log = peer.peer_info().is_some_and(|info| info.capabilities.logging.is_some());
    let old = peer.peer_info().is_some_and(|info| info.protocol_version < ProtocolVersion::V_2026_07_28);
    if has_log
        && old
        && let Ok(Err(error)) =
            timeout(LEVEL_LIMIT, peer.set_level(SetLevelRequestParams::new(level.into()))).await
    {
        tracing::debug!(server, %error, "it did not take the log level");
    }
}

/// Nonet as the client of one server.
pub(super) struct Handler {
    server: Arc<str>,
    changed: Arc<Notify>,
    askers: Arc<Askers>,
    followed: Arc<Followed>,
}

impl Handler {
    /// Puts a request of the server to the client that it is about.
    async fn ask<T: DeserializeOwned>(
        &self,
        method: &str,
        params: impl Serialize,
        context: &RequestContext<RoleClient>,
    ) -> Result<T, ErrorData> {
        let internal = |error: serde_json::Error| ErrorData::internal_error(error.to_string(), None);
        let mut params = serde_json::to_value(params).map_err(internal)?;
        // rmcp has taken it out of the params. Progress of an answer is not passed on.
        if let Value::Object(mut meta) = serde_json::to_value(&context.meta).map_err(internal)? {
            meta.remove("progressToken");
            if !meta.is_empty() {
                params["_meta"] = meta.into();
            }
        }
        let about = context.extensions.get::<About>();
        let answer = tokio::select! {
            answer = self.askers.ask(&self.server, about, method, params) => answer?,
            () = context.ct.cancelled() => return Err(ErrorData::internal_error("taken back", None)),
        };
        serde_json::from_value(answer).map_err(internal)
    }
}

impl ClientHandler for Handler {
    fn get_info(&self) -> ClientConfig {
        client_config()
    }

    async fn create_elicitation(
        &self,
        params: ElicitRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        self.ask(wishes::ELICIT, params, &context).await
    }

    async fn create_message(
        &self,
        params: CreateMessageRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        self.ask(wishes::SAMPLE, params, &context).await
    }

    async fn list_roots(&self, context: RequestContext<RoleClient>) -> Result<ListRootsResult, ErrorData> {
        self.ask(wishes::ROOTS, Map::new(), &context).await
    }

    async fn on_tool_list_changed(&self, _context: NotificationContext<RoleClient>) {
        self.changed.notify_one();
    }

    async fn on_prompt_list_changed(&self, _context: NotificationContext<RoleClient>) {
        self.changed.notify_one();
    }

    async fn on_resource_list_changed(&self, _context: NotificationContext<RoleClient>) {
        self.changed.notify_one();
    }

    async fn on_resource_updated(
        &self,
        params: ResourceUpdatedNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        self.followed.tell(params.uri);
    }

    async fn on_logging_message(
        &self,
        params: LoggingMessageNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        tracing::debug!(server = %self.server, "log: {}", clip(&params.data.to_string(), 500));
    }
}
