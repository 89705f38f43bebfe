//! A request's statements about its client and its rights, whether it came through rmcp or not.

use http::{Extensions, request::Parts};
use rmcp::{
    RoleServer,
    model::{ClientCapabilities, ProtocolVersion, RequestMetaObject},
    service::RequestContext,
};
use tokio_util::sync::CancellationToken;

use super::tasks::TaskMarker;

/// The name of a client that does not say its name.
pub(super) const UNNAMED: &str = "unknown";

/// Where a request comes from.
pub(super) trait RequestOrigin {
    fn meta(&self) -> &RequestMetaObject;

    /// Returns what the gateway has attached to a request over HTTP.
    fn beside(&self) -> Option<&Extensions>;

    /// Calls `read` with the name of its client.
    fn with_client_name<T>(&self, read: impl FnOnce(&str) -> T) -> T;

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

    fn with_client_name<T>(&self, read: impl FnOnce(&str) -> T) -> T {
        match self.meta.client_info() {
            Some(info) => read(&info.name),
            None => read(self.peer.peer_info().as_ref().map_or(UNNAMED, |info| &info.client_info.name)),
        }
    }

    fn client_capabilities(&self) -> Option<ClientCapabilities> {
        RequestContext::client_capabilities(self)
    }

    fn is_stateless(&self) -> bool {
        let is_new = |version: &ProtocolVersion| *version >= ProtocolVersion::V_2026_07_28;
        match self.meta.protocol_version() {
            Some(version) => is_new(&version),
            None => self.peer.peer_info().is_some_and(|info| is_new(&info.protocol_version)),
        }
    }

    fn wants_task(&self) -> bool {
        self.extensions.get::<TaskMarker>().is_some()
    }

    fn cancel(&self) -> CancellationToken {
        self.ct.clone()
    }
}
