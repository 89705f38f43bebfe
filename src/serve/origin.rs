//! A request's statements about its client and its rights, whether it came through rmcp or not.

use http::{Extensions, request::Parts};
use rmcp::{
    RoleServer,
    model::{ClientCapabilities, ProtocolVersion, RequestMetaObject},
    service::RequestContext,
};
use tokio_util::sync::CancellationToken;

use super::tasks::TaskMarker;

/// Where a request comes from.
pub(super) trait RequestOrigin {
    fn meta(&self) -> &RequestMetaObject;

    /// Returns what the gateway has attached to a request over HTTP.
    fn beside(&self) -> Option<&Extensions>;

    fn client_name(&self) -> Option<String>;

    fn client_capabilities(&self) -> Option<ClientCapabilities>;

    /// Returns whether it is of the stateless era.
    fn is_stateless(&self) -> bool;

    /// Returns whether its client wants a task (2025-11-25).
    fn wants_task(&self) -> bool;

    /// Returns the token that cancels it.
    fn cancel(&self) -> CancellationToken;
}

impl RequestOrigin for RequestContext<RoleServer> {
    fn meta(&self) -> &RequestMetaObject {
        &self.meta
    }

    fn beside(&self) -> Option<&Extensions> {
        self.extensions.get::<Parts>().map(|parts| &parts.extensions)
    }

    fn client_name(&self) -> Option<String> {
        self.client_info().map(|info| info.name)
    }

    fn client_capabilities(&self) -> Option<ClientCapabilities> {
        RequestContext::client_capabilities(self)
    }

    fn is_stateless(&self) -> bool {
        self.protocol_version().is_some_and(|version| version >= ProtocolVersion::V_2026_07_28)
    }

    fn wants_task(&self) -> bool {
        self.extensions.get::<TaskMarker>().is_some()
    }

    fn cancel(&self) -> CancellationToken {
        self.ct.clone()
    }
}
