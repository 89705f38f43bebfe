//! The lists that have changed since they were last announced to a session.

use std::sync::{Arc, Weak};

use nonet_core::Gateway;
use nonet_meta as meta;
use nonet_servers::prompts_resources::PromptsResources;
use nonet_state::{publisher::Indexing, session::Session};
use rmcp::{
    RoleServer,
    service::{Peer, ServiceError},
};
use tokio::sync::watch;

use super::NonetServer;

/// Announces changed lists to a client of the session era.
pub(super) async fn tell_changed(
    peer: &Peer<RoleServer>,
    changed: &ChangedLists,
) -> Result<(), ServiceError> {
    if changed.tools {
        peer.notify_tool_list_changed().await?;
    }
    if changed.prompts {
        peer.notify_prompt_list_changed().await?;
    }
    if changed.resources {
        peer.notify_resource_list_changed().await?;
    }
    Ok(())
}

/// The lists as they were last announced to a session.
pub(super) struct AnnouncedLists {
    gateway: Arc<Gateway>,
    session: Weak<Session>,
    indexing: watch::Receiver<Indexing>,
    generation: u64,
    passed: Arc<PromptsResources>,
}

pub(super) struct ChangedLists {
    pub tools: bool,
    pub prompts: bool,
    pub resources: bool,
}

impl AnnouncedLists {
    pub(super) fn new(handler: &NonetServer) -> Self {
        let gateway = handler.gateway.clone();
        let (indexing, snapshot) = (gateway.indexing(), gateway.snapshot());
        let (generation, passed) = (snapshot.generation, snapshot.catalog.passed().clone());
        Self { gateway, session: Arc::downgrade(&handler.session), indexing, generation, passed }
    }

    /// Waits for the next change. Returns `None` when the gateway or the session ends.
    pub(super) async fn changed(&mut self) -> Option<ChangedLists> {
        loop {
            self.indexing.changed().await.ok()?;
            let snapshot = self.gateway.snapshot();
            if std::mem::replace(&mut self.generation, snapshot.generation) == snapshot.generation {
                continue;
            }
            let passed = snapshot.catalog.passed().clone();
            let session = self.session.upgrade()?;
            let changed = ChangedLists {
                tools: meta::list_can_change(&self.gateway.gate(&session)),
                prompts: !passed.same_prompts(&self.passed, session.id),
                resources: !passed.same_resources(&self.passed, session.id),
            };
            self.passed = passed;
            return Some(changed);
        }
    }
}
