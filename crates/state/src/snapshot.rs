//! The catalogue and its index at one moment, with each profile's view of them.

use std::{
    collections::HashSet,
    sync::{Arc, OnceLock},
};

use dashmap::DashMap;
use nonet_auth::Owner;
use nonet_config::Config;
use nonet_search::Index;
use nonet_servers::catalog::{Catalog, CatalogSource, EntryKind, Tool};
use nonet_text::name::Namespaces;

use crate::{personal::PersonLists, world::names_of};

/// A catalogue and the index built from it.
pub struct Snapshot {
    /// All known tools.
    pub catalog: Arc<Catalog>,
    /// The visible tools, as documents.
    pub index: Arc<Index>,
    /// Increases with each catalogue.
    pub generation: u64,
    /// The visible tools, skills and apps, in document order.
    pub tools: Arc<[Arc<Tool>]>,
    /// The view of each profile, computed on first use.
    pub views: Arc<DashMap<Option<String>, Arc<ProfileView>>>,
    /// The sessions that have servers of their own, and the cached view of each.
    pub owners: Arc<[u64]>,
    /// The views of sessions with servers of their own, by session.
    pub own_views: Arc<DashMap<u64, Arc<ProfileView>>>,
    /// The views of people with lists of their own.
    pub people_views: Arc<DashMap<Owner, Arc<ProfileView>>>,
    /// The size of all definitions, computed on first use.
    bytes: Arc<OnceLock<usize>>,
}

/// The part of a snapshot that one profile sees, by document.
pub struct ProfileView {
    /// The configuration with the profile.
    pub config: Arc<Config>,
    /// The lists of the person, if they have some of their own.
    pub lists: Option<Arc<PersonLists>>,
    /// Whether the profile allows the tool.
    pub seen: Box<[bool]>,
    /// The tools with a priority.
    pub priorities: Box<[(usize, f32)]>,
    /// Own names and versions of the tools with a priority.
    pub ranked: HashSet<(Arc<str>, String)>,
}

impl Snapshot {
    /// Creates an empty snapshot.
    pub fn empty(config: &Config) -> Snapshot {
        Snapshot::unindexed(Arc::default(), config, 0)
    }

    /// Creates a snapshot whose index is still empty.
    pub fn unindexed(catalog: Arc<Catalog>, config: &Config, generation: u64) -> Snapshot {
        Snapshot::new(catalog, Arc::new(Index::new(Vec::new(), &config.embedder)), generation)
    }

    /// Builds the snapshot of these lists, without vectors. The cost depends only on the changes.
    pub fn updated(
        &self,
        sources: impl IntoIterator<Item = CatalogSource>,
        config: &Config,
        generation: u64,
    ) -> Snapshot {
        let names = Arc::new(Namespaces::new(names_of(config)));
        let catalog = self.catalog.updated(sources, &config.policies, &names);
        self.indexed(Arc::new(catalog), config, generation)
    }

    /// Builds the snapshot of another catalogue. Creates documents only for tools that this snapshot lacks.
    pub fn indexed(&self, catalog: Arc<Catalog>, config: &Config, generation: u64) -> Snapshot {
        // Both are in the order of names, so one pass suffices; most pairs are equal.
        let mut before = self.tools.iter().zip(self.index.documents()).peekable();
        let tools: Arc<[Arc<Tool>]> = catalog.visible().cloned().collect();
        let about = |catalog: &Catalog, server: &str| {
            catalog.servers().get(server).map_or_else(String::new, |entry| entry.description.clone())
        };
        let mut group = (Arc::<str>::default(), String::new(), true);
        let document = |tool: &Arc<Tool>| {
            if group.0 != tool.server {
                let new = about(&catalog, &tool.server);
                let is_same = about(&self.catalog, &tool.server) == new;
                group = (tool.server.clone(), new, is_same);
            }
            let about = if tool.kind == EntryKind::Tool { &*group.1 } else { "" };
            let is_passed = |old: &Arc<Tool>| !Arc::ptr_eq(old, tool) && old.full < tool.full;
            while before.next_if(|(old, _)| is_passed(old)).is_some() {}
            match before.next_if(|(old, _)| Arc::ptr_eq(old, tool)) {
                Some((_, document)) if group.2 || tool.kind != EntryKind::Tool => document.clone(),
                _ => Arc::new(tool.document(about)),
            }
        };
        let documents = tools.iter().map(document).collect();
        let index = self.index.updated(documents, &config.embedder);
        Snapshot::of(catalog, tools, Arc::new(index), generation)
    }

    /// Creates a snapshot. `generation` counts up with every publication.
    pub fn new(catalog: Arc<Catalog>, index: Arc<Index>, generation: u64) -> Snapshot {
        let tools = catalog.visible().cloned().collect();
        Snapshot::of(catalog, tools, index, generation)
    }

    fn of(catalog: Arc<Catalog>, tools: Arc<[Arc<Tool>]>, index: Arc<Index>, generation: u64) -> Snapshot {
        let owners = catalog.servers().values().filter_map(|entry| entry.session).collect();
        Snapshot {
            catalog,
            index,
            generation,
            tools,
            views: Arc::default(),
            owners,
            own_views: Arc::default(),
            people_views: Arc::default(),
            bytes: Arc::default(),
        }
    }

    /// Returns the same catalogue with another index.
    pub fn with_index(&self, index: Arc<Index>) -> Snapshot {
        let (catalog, tools) = (self.catalog.clone(), self.tools.clone());
        let (views, bytes) = (self.views.clone(), self.bytes.clone());
        let (owners, own_views) = (self.owners.clone(), self.own_views.clone());
        let (generation, people_views) = (self.generation, self.people_views.clone());
        Snapshot { catalog, index, generation, tools, views, owners, own_views, people_views, bytes }
    }

    /// Returns the tool of a document of the index.
    pub fn tool(&self, document: usize) -> Option<&Arc<Tool>> {
        self.tools.get(document)
    }

    /// Returns the visible tools of servers, without Nonet's own, skills and apps.
    pub fn of_servers(&self) -> impl Iterator<Item = &Arc<Tool>> {
        self.tools.iter().filter(|tool| tool.is_of_server())
    }

    /// Returns the size of the servers' tool definitions as JSON, in bytes. Computed once per catalogue.
    pub fn bytes(&self) -> usize {
        *self.bytes.get_or_init(|| self.of_servers().map(|tool| tool.bytes()).sum())
    }

    /// Returns the document of the visible tool with this full name.
    pub fn place(&self, full: &str) -> Option<usize> {
        self.tools.binary_search_by(|tool| (*tool.full).cmp(full)).ok()
    }
}

impl ProfileView {
    /// Returns the priority that the configuration gives a tool.
    pub fn priority(&self, document: usize) -> Option<f32> {
        let at = self.priorities.binary_search_by_key(&document, |(document, _)| *document).ok()?;
        Some(self.priorities[at].1)
    }

    /// Whether a tool, or one with the same name and definition, has a priority.
    pub fn ranks(&self, tool: &Tool) -> bool {
        !self.ranked.is_empty() && self.ranked.contains(&(tool.name.clone(), tool.version.clone()))
    }
}

#[cfg(test)]
mod tests;
