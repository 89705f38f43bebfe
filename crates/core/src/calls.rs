//! Calls: of tools, skills, prompts and resources, for whoever makes them. `call` has the road of a tool's
//! call.

use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use nonet_parts::rates::Rates;
use nonet_state::{publisher::Publisher, servers::Servers, sessions::Sessions};
use nonet_text::fault::{Fault, FaultCode};

use crate::{Asking, Gateway, Keeping, Observing, guides::Guides};

/// Calls: of tools, skills, prompts and resources.
pub struct Calls {
    pub(crate) servers: Arc<Servers>,
    pub(crate) publisher: Arc<Publisher>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) keeping: Arc<Keeping>,
    pub(crate) observing: Arc<Observing>,
    pub(crate) asking: Arc<Asking>,
    /// The rates of calls.
    pub(crate) rates: ArcSwap<Rates>,
    /// Skills and apps in the catalogue.
    pub(crate) guides: Guides,
    /// Leads to Nonet's own tools and to apps, which make calls themselves.
    pub(crate) gateway: Weak<Gateway>,
}

impl Calls {
    /// Returns the gateway, for a call of one of Nonet's own tools or of an app.
    pub(crate) fn gateway(&self) -> Result<Arc<Gateway>, Fault> {
        self.gateway.upgrade().ok_or_else(|| Fault::new(FaultCode::Internal, "The gateway has stopped."))
    }
}
