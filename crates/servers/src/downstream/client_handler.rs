//! Nonet as the client of one server: its capabilities, and its answers to the server's requests and notifications.

use std::sync::Arc;

use nonet_base::{json::set_member, text::clip};
use rmcp::{
    RoleClient,
    handler::client::ClientHandler,
    model::{
        ClientCapabilities, ClientConfig, CreateMessageRequestParams, CreateMessageResult,
        ElicitRequestParams, ElicitResult, ErrorData, Implementation, ListRootsResult,
        LoggingMessageNotificationParam, ProtocolVersion, ResourceUpdatedNotificationParam,
        TASKS_EXTENSION_ID,
    },
    service::{NotificationContext, RequestContext},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};
use tokio::sync::Notify;

use super::{
    mcp::McpServer,
    server_requests::{ELICITATION, OpenCalls, ROOTS, RelatedCall, SAMPLING},
    subscriptions::Subscriptions,
};

impl McpServer {
    /// Returns the handler for one connection to the server.
    pub(super) fn client(&self, list_changed: &Arc<Notify>) -> NonetClient {
        NonetClient {
            server: self.name.clone(),
            list_changed: list_changed.clone(),
            calls: self.calls.clone(),
            subscriptions: self.subscriptions.clone(),
        }
    }
}

/// Returns the client information that servers get.
pub(super) fn client_config() -> ClientConfig {
    // Nonet follows servers' tasks. A server's request goes to the client of the call, and is declined on its behalf if the
    // client cannot answer; in the stateless era each call declares its client's capabilities.
    let capabilities = json!({
        "extensions": { TASKS_EXTENSION_ID: {} },
        "roots": {},
        "sampling": { "tools": {} },
        "elicitation": { "form": {}, "url": {} },
    });
    ClientConfig::new(
        ClientCapabilities::deserialize(capabilities).expect("these are capabilities"),
        Implementation::new("nonet", env!("CARGO_PKG_VERSION")).with_title("Nonet MCP gateway"),
    )
    .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
}

/// Nonet as the client of one server.
pub(super) struct NonetClient {
    server: Arc<str>,
    list_changed: Arc<Notify>,
    calls: Arc<OpenCalls>,
    subscriptions: Arc<Subscriptions>,
}

impl NonetClient {
    /// Forwards a server's request to the client of the call.
    async fn ask<T: DeserializeOwned>(
        &self,
        method: &str,
        params: impl Serialize,
        context: &RequestContext<RoleClient>,
    ) -> Result<T, ErrorData> {
        let internal = |error: serde_json::Error| ErrorData::internal_error(error.to_string(), None);
        let mut params = serde_json::to_value(params).map_err(internal)?;
        // rmcp has taken `_meta` out of the params. Progress of the answer is not forwarded.
        if let Value::Object(mut meta) = serde_json::to_value(&context.meta).map_err(internal)? {
            meta.remove("progressToken");
            if !meta.is_empty() {
                set_member(&mut params, "_meta", meta);
            }
        }
        let about = context.extensions.get::<RelatedCall>();
        let answer = tokio::select! {
            answer = self.calls.ask(&self.server, about, method, params) => answer?,
            () = context.ct.cancelled() => return Err(ErrorData::internal_error("the server cancelled the request", None)),
        };
        serde_json::from_value(answer).map_err(internal)
    }
}

impl ClientHandler for NonetClient {
    fn get_info(&self) -> ClientConfig {
        client_config()
    }

    async fn create_elicitation(
        &self,
        params: ElicitRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        self.ask(ELICITATION, params, &context).await
    }

    async fn create_message(
        &self,
        params: CreateMessageRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        self.ask(SAMPLING, params, &context).await
    }

    async fn list_roots(&self, context: RequestContext<RoleClient>) -> Result<ListRootsResult, ErrorData> {
        self.ask(ROOTS, Map::new(), &context).await
    }

    async fn on_tool_list_changed(&self, _context: NotificationContext<RoleClient>) {
        self.list_changed.notify_one();
    }

    async fn on_prompt_list_changed(&self, _context: NotificationContext<RoleClient>) {
        self.list_changed.notify_one();
    }

    async fn on_resource_list_changed(&self, _context: NotificationContext<RoleClient>) {
        self.list_changed.notify_one();
    }

    async fn on_resource_updated(
        &self,
        params: ResourceUpdatedNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        self.subscriptions.updated(params.uri);
    }

    async fn on_logging_message(
        &self,
        params: LoggingMessageNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        let data = self.calls.masked(params.data).to_string();
        tracing::debug!(server = %self.server, "log: {}", clip(&data, 500));
    }
}
