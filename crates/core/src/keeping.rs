//! What outlives a call: the store, and what is kept in it.

use std::{path::PathBuf, sync::Arc};

use nonet_base::clock::Clock;
use nonet_parts::{cluster::Cluster, jobs::Jobs, kept::KeptResults, memory::Memory};
use nonet_store::{Records, Store};

/// What outlives a call.
pub struct Keeping {
    /// Results that outlive their calls.
    pub kept: KeptResults,
    /// Background jobs.
    pub jobs: Arc<Jobs>,
    /// Facts, goals and tasks.
    pub(crate) memory: Memory,
    /// Records for later, and records to remember.
    pub records: Arc<Records>,
    pub(crate) store: Arc<dyn Store>,
    /// This replica's part in the cluster, if there is one.
    pub cluster: Option<Arc<Cluster>>,
    pub(crate) clock: Clock,
    /// The folder of the store, if it has one.
    pub folder: Option<PathBuf>,
}
