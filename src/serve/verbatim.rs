//! Carries servers' results verbatim through rmcp's types, under one key of `_meta`, and unwraps them again.

use nonet_wire::rmcp::VERBATIM;
use rmcp::{
    ErrorData, RoleServer, ServerHandler, Service,
    model::{ClientRequest, CustomResult, ServerConfig, ServerResult},
    service::{NotificationContext, RequestContext, ServiceRole},
};

use super::{NonetServer, origin::RequestOrigin, tasks};

/// The handler with results unwrapped, for transports that let a service answer with any JSON.
pub(super) struct VerbatimServer(pub(super) NonetServer);

impl Service<RoleServer> for VerbatimServer {
    async fn handle_request(
        &self,
        request: ClientRequest,
        context: RequestContext<RoleServer>,
    ) -> Result<ServerResult, ErrorData> {
        if !context.is_stateless() {
            let who = || self.0.who(&context);
            if let Some(answer) = tasks::session_request(&self.0.gateway, who, &request).await {
                return answer;
            }
        }
        let mut result = self.0.handle_request(request, context).await?;
        let meta = match &mut result {
            ServerResult::CallToolResult(carrier) => carrier.meta.as_mut(),
            ServerResult::ListToolsResult(carrier) => carrier.meta.as_mut(),
            ServerResult::ListPromptsResult(carrier) => carrier.meta.as_mut(),
            ServerResult::GetPromptResult(carrier) => carrier.meta.as_mut(),
            ServerResult::ListResourcesResult(carrier) => carrier.meta.as_mut(),
            ServerResult::ListResourceTemplatesResult(carrier) => carrier.meta.as_mut(),
            ServerResult::ReadResourceResult(carrier) => carrier.meta.as_mut(),
            ServerResult::CompleteResult(carrier) => carrier.meta.as_mut(),
            _ => None,
        };
        match meta.and_then(|meta| meta.0.remove(VERBATIM)) {
            Some(verbatim) => Ok(ServerResult::CustomResult(CustomResult::new(verbatim))),
            None => Ok(result),
        }
    }

    async fn handle_notification(
        &self,
        notification: <RoleServer as ServiceRole>::PeerNot,
        context: NotificationContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.0.handle_notification(notification, context).await
    }

    fn get_info(&self) -> ServerConfig {
        ServerHandler::get_info(&self.0)
    }
}
