//! The lists that have changed since they were last announced to a session.

use std::sync::{Arc, Weak};

use nonet_core::{Gate, Gateway};
use nonet_meta as meta;
use nonet_servers::prompts_resources::PromptsResources;
use nonet_state::{publisher::Indexing, session::Session};
use tokio::sync::watch;

use super::NonetServer;

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

impl ChangedLists {
    /// Returns the notifications that tell of them.
    pub(super) fn methods(&self) -> impl Iterator<Item = &'static str> + use<> {
        let lists = [
            (self.tools, "notifications/tools/list_changed"),
            (self.prompts, "notifications/prompts/list_changed"),
            (self.resources, "notifications/resources/list_changed"),
        ];
        lists.into_iter().filter_map(|(changed, method)| changed.then_some(method))
    }
}

impl AnnouncedLists {
    pub(super) fn new(handler: &NonetServer) -> Self {
        let gateway = handler.gateway.clone();
        let (indexing, snapshot) = (gateway.publisher.indexing(), gateway.publisher.snapshot());
        let (generation, passed) = (snapshot.generation, snapshot.catalog.passed().clone());
        Self { gateway, session: Arc::downgrade(&handler.session), indexing, generation, passed }
    }

    /// Waits for the next change. Returns `None` when the gateway or the session ends.
    pub(super) async fn changed(&mut self) -> Option<ChangedLists> {
        loop {
            self.indexing.changed().await.ok()?;
            let snapshot = self.gateway.publisher.snapshot();
            if std::mem::replace(&mut self.generation, snapshot.generation) == snapshot.generation {
                continue;
            }
            let passed = snapshot.catalog.passed().clone();
            let session = self.session.upgrade()?;
            let changed = ChangedLists {
                tools: meta::list_can_change(&Gate::of(&self.gateway.publisher, &session)),
                prompts: !passed.same_prompts(&self.passed, session.id),
                resources: !passed.same_resources(&self.passed, session.id),
            };
            self.passed = passed;
            return Some(changed);
        }
    }
}
