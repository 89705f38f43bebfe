//! Finding: tools, categories, and what memory knows about a request.

use std::sync::Arc;

use nonet_state::{publisher::Publisher, servers::Servers};

use crate::{Calls, Keeping, Observing};

/// Finds tools, categories and memories.
pub struct Find {
    pub(crate) servers: Arc<Servers>,
    pub(crate) publisher: Arc<Publisher>,
    pub(crate) keeping: Arc<Keeping>,
    pub(crate) observing: Arc<Observing>,
    pub(crate) calls: Arc<Calls>,
}
