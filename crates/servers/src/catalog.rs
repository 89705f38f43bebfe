//! The catalogue: every known tool, under every name that leads to it.
//!
//! Immutable; the gateway replaces it whole. The catalogue depends only on the listings, never on the order
//! in which they arrived.

mod build;
mod changes;
pub mod guide;
mod marks;
mod resolve;
mod risk;
mod tool;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

pub use nonet_api::tools::{APPS, EntryKind, SKILLS};
use nonet_base::{
    persistent::SharedMap,
    text::{clean, clip},
};
use nonet_config::{Expose, PolicyRule, ServerSettings};
use nonet_text::{
    leaks::KnownSecrets,
    name::{self, Namespaces, WireName},
    prose,
};
use serde_json::Value;

pub use self::{
    build::own_name,
    marks::mark,
    resolve::CatalogView,
    tool::{MOST_COMPARED, Tool, ToolUi, set_ui_uri},
};
use self::{
    build::{ToolNamePair, build, renames},
    changes::{FullNames, Tools, Uses, used_by, with},
    tool::Keys,
};
use crate::{
    pins::ServerTrust,
    prompts_resources::{PromptsResources, ServerOffer},
};

/// How many characters of a server's own description are kept.
const ABOUT: usize = 300;
/// The server name of Nonet's own tools.
pub const GATEWAY: &str = "gateway";

/// What one server listed.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Listing {
    /// Tool definitions, verbatim.
    pub tools: Vec<Arc<Value>>,
    /// Prompt definitions, verbatim.
    #[serde(default)]
    pub prompts: Vec<Value>,
    /// Resource definitions, verbatim.
    #[serde(default)]
    pub resources: Vec<Value>,
    /// Resource template definitions, verbatim.
    #[serde(default)]
    pub templates: Vec<Value>,
    /// Entries of its skills (the extension `io.modelcontextprotocol/skills`), verbatim.
    #[serde(default)]
    pub skills: Vec<Value>,
    /// The server's instructions or description, from its handshake.
    #[serde(default)]
    pub about: String,
    /// The trust state of these definitions.
    #[serde(skip)]
    pub trust: Arc<ServerTrust>,
}

impl Listing {
    /// Returns this listing with the earlier listing's definitions where they did not change.
    pub fn sharing(mut self, before: &Listing) -> Listing {
        let known: HashMap<&str, &Arc<Value>> =
            before.tools.iter().filter_map(|tool| Some((own_name(tool)?, tool))).collect();
        for tool in &mut self.tools {
            let old = own_name(tool).and_then(|name| known.get(name)).filter(|old| **old == tool);
            if let Some(old) = old {
                *tool = (*old).clone();
            }
        }
        self
    }

    /// Masks known secrets in every definition and in the instructions. Names and URIs stay: they are what
    /// calls need. Returns whether there were any.
    pub fn mask(&mut self, known: &KnownSecrets) -> bool {
        let mut any = known.mask_text(&mut self.about);
        // Definitions are shared, so only those with a secret are copied.
        for tool in self.tools.iter_mut().filter(|tool| known.is_in(tool)) {
            any |= known.mask_definition(Arc::make_mut(tool), &["name"]);
        }
        let lists = [
            (&mut self.prompts, &["name"][..]),
            (&mut self.resources, &["name", "uri"]),
            (&mut self.templates, &["name", "uriTemplate"]),
        ];
        for (list, names) in lists {
            any = list.iter_mut().fold(any, |any, one| known.mask_definition(one, names) | any);
        }
        any
    }

    /// Returns whether prompts and resources equal another listing's.
    fn offers_the_same(&self, other: &Listing) -> bool {
        (&self.prompts, &self.resources, &self.templates)
            == (&other.prompts, &other.resources, &other.templates)
    }
}

/// One server's listing with the server's settings; no settings for Nonet's own categories.
#[derive(Clone, Debug)]
pub struct CatalogSource {
    /// The server's name, or [`GATEWAY`], [`SKILLS`] or [`APPS`].
    pub server: Arc<str>,
    /// What it listed.
    pub listing: Arc<Listing>,
    /// Its settings.
    pub settings: Option<Arc<ServerSettings>>,
}

/// One server's part of the catalogue.
#[derive(Clone, Debug, Default)]
pub struct ServerEntry {
    /// What the server is for: from the configuration, else from the server.
    pub description: String,
    /// Whether its tools are exposed under their own names.
    pub verbatim: bool,
    /// Full names of its visible tools, in order.
    pub tools: Vec<Arc<str>>,
    /// How many of its tools the configuration hides.
    pub kept_out: usize,
    /// How many of its visible tools have a user interface.
    pub uis: usize,
    /// The session that the server belongs to, if any.
    pub session: Option<u64>,
    /// Its prompts, resources and the rest, verbatim.
    pub listing: Arc<Listing>,
}

/// Every known tool. A clone shares the tools.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    tools: Tools,
    by_wire: SharedMap<Arc<str>, Arc<Tool>>,
    /// Tools of verbatim servers by their own names, where no other tool has the name or a better claim to
    /// it.
    by_own: SharedMap<Arc<str>, Arc<Tool>>,
    /// Tools whose own name leads elsewhere or nowhere, by full name, with the server that owns the name or
    /// another one that uses it.
    clashes: BTreeMap<Arc<str>, Arc<str>>,
    by_fold: FullNames,
    by_bare: FullNames,
    /// Renamed tools by the full name and the hashed wire name that they would otherwise have.
    by_old: SharedMap<Arc<str>, Arc<Tool>>,
    /// How many tools use each wire name, plain or hashed.
    uses: Uses,
    /// Whether several servers give the same full name.
    is_shadowed: bool,
    servers: BTreeMap<Arc<str>, Arc<ServerEntry>>,
    passed: Arc<PromptsResources>,
    names: Arc<Namespaces>,
    /// The parts that the catalogue was built from.
    parts: BTreeMap<Arc<str>, Arc<CatalogPart>>,
    policies: BTreeMap<String, PolicyRule>,
}

/// The part of the catalogue that depends on one source only.
#[derive(Clone, Debug)]
struct CatalogPart {
    source: CatalogSource,
    /// Its tools, each name once.
    tools: Vec<Arc<Tool>>,
    /// The URIs of their user interfaces.
    uis: Vec<Arc<str>>,
    /// Its entry, if no other server has one of its full names.
    entry: Arc<ServerEntry>,
}

impl CatalogPart {
    /// Builds a part, and reuses what has not changed since the part `before`. `same_rules`: `before` was
    /// built with the same policies.
    fn new(
        source: CatalogSource,
        before: Option<&Arc<CatalogPart>>,
        same_rules: bool,
        policies: &BTreeMap<String, PolicyRule>,
    ) -> Arc<CatalogPart> {
        let server = &source.server;
        let settings = source.settings.as_deref();
        let same_rules = before.is_some_and(|before| same_rules && before.source.settings == source.settings);
        if let Some(before) = before.filter(|before| Arc::ptr_eq(&before.source.listing, &source.listing))
            && same_rules
        {
            return before.clone();
        }
        let old: HashMap<&str, &Arc<Tool>> =
            before.into_iter().flat_map(|before| &before.tools).map(|tool| (&*tool.own, tool)).collect();
        let renames = renames(settings, &source.listing);
        let mut seen = HashSet::new();
        let mut tools = Vec::with_capacity(source.listing.tools.len());
        for definition in &source.listing.tools {
            let Some(name) = own_name(definition) else {
                tracing::warn!(%server, definition = %clip(&definition.to_string(), 120), "a tool without a name was left out");
                continue;
            };
            if !seen.insert(name) {
                tracing::warn!(tool = %name::full_name(server, name), "the server lists this tool twice; the first one is used");
                continue;
            }
            // `Arc`s are compared by content only where the pointers differ.
            let trust = source.listing.trust.tools.get(name);
            let same_trust =
                |old: &Tool| old.change.as_ref() == trust.and_then(|trust| trust.change.as_ref());
            let old = old.get(name).filter(|old| old.definition == *definition);
            let names = ToolNamePair { own: name, shown: renames.get(name).map_or(name, |new| &**new) };
            tools.push(match old {
                Some(old) if same_rules && *old.name == *names.shown && same_trust(old) => (*old).clone(),
                _ => {
                    let old = old.map(|old| &***old);
                    Arc::new(build(server, names, definition, old, settings, policies, trust))
                }
            });
        }
        let about = settings.and_then(|s| s.description.clone());
        let entry = ServerEntry {
            description: about
                .unwrap_or_else(|| clean(&prose::plain(&source.listing.about, ABOUT)).into_owned()),
            verbatim: settings.is_some_and(|s| s.expose == Expose::Verbatim),
            listing: source.listing.clone(),
            session: settings.and_then(|s| s.session),
            ..ServerEntry::default()
        };
        let entry = Arc::new(entry.with_tools(&tools));
        let uis = tools.iter().filter_map(|tool| tool.ui_resource().map(Arc::from)).collect();
        Arc::new(CatalogPart { source, tools, uis, entry })
    }
}

impl ServerEntry {
    fn with_tools<'a>(self, tools: impl IntoIterator<Item = &'a Arc<Tool>>) -> ServerEntry {
        let (visible, blocked): (Vec<_>, Vec<_>) = tools.into_iter().partition(|tool| tool.blocked.is_none());
        let uis = visible.iter().filter(|tool| tool.ui_resource().is_some()).count();
        let mut tools: Vec<Arc<str>> = visible.into_iter().map(|tool| tool.full.clone()).collect();
        tools.sort();
        ServerEntry { tools, kept_out: blocked.len(), uis, ..self }
    }
}

impl Catalog {
    /// Joins listings into one catalogue. `policies` are the whole configuration's, by name.
    pub fn new(
        sources: impl IntoIterator<Item = CatalogSource>,
        policies: &BTreeMap<String, PolicyRule>,
    ) -> Self {
        let sources: Vec<CatalogSource> = sources.into_iter().collect();
        let names = Arc::new(Namespaces::new(sources.iter().map(|source| &*source.server)));
        Self::default().updated(sources, policies, &names)
    }

    /// Returns the catalogue of these sources, equal to a new one. An unchanged listing (the same `Arc`)
    /// under the same settings, and an unchanged definition, are reused. `names` are the names of all
    /// configured servers, with or without a listing.
    pub fn updated(
        &self,
        sources: impl IntoIterator<Item = CatalogSource>,
        policies: &BTreeMap<String, PolicyRule>,
        names: &Arc<Namespaces>,
    ) -> Self {
        let same_rules = self.policies == *policies;
        let mut parts: BTreeMap<Arc<str>, Arc<CatalogPart>> = BTreeMap::new();
        for source in sources {
            let server = source.server.clone();
            let part = CatalogPart::new(source, self.parts.get(&server), same_rules, policies);
            parts.insert(server, part);
        }
        let changed = if same_rules { self.changed(&parts, names) } else { None };
        changed.unwrap_or_else(|| self.joined(parts, policies, names))
    }

    /// Returns the catalogue of these parts, with all tables rebuilt.
    fn joined(
        &self,
        mut parts: BTreeMap<Arc<str>, Arc<CatalogPart>>,
        policies: &BTreeMap<String, PolicyRule>,
        names: &Arc<Namespaces>,
    ) -> Self {
        let shadowed = give_wire_names(&mut parts);
        let is_shadowed = !shadowed.is_empty();
        let mut catalog =
            Self { policies: policies.clone(), names: names.clone(), is_shadowed, ..Self::default() };
        for (server, part) in &parts {
            let is_shadowed =
                |tool: &&Arc<Tool>| shadowed.get(&tool.full).is_some_and(|first| first != server);
            let entry = if part.tools.iter().any(|tool| is_shadowed(&tool)) {
                let own = part.tools.iter().filter(|tool| !is_shadowed(tool));
                Arc::new(ServerEntry::clone(&part.entry).with_tools(own))
            } else {
                part.entry.clone()
            };
            catalog.servers.insert(server.clone(), entry);
        }
        let own = parts.values().flat_map(|part| &part.tools);
        let mut tools: Vec<&Arc<Tool>> =
            own.filter(|tool| shadowed.get(&tool.full).is_none_or(|first| *first == tool.server)).collect();
        tools.sort_by(|a, b| a.full.cmp(&b.full));
        for tool in tools {
            catalog.put_in(tool);
            if tool.is_renamed() {
                catalog.keep_old_name(tool);
            }
        }
        catalog.passed = self.passed_of(&parts, names);
        catalog.parts = parts;
        catalog.give_own_names();
        catalog
    }

    /// Keeps a renamed tool reachable by the name that it has at its server, in every form.
    fn keep_old_name(&mut self, tool: &Arc<Tool>) {
        let full = name::full_name(&tool.server, &tool.own);
        let WireName { plain, hashed } = WireName::new(&tool.server, &tool.own);
        let folds: HashSet<String> = [&full, &plain, &hashed].map(|name| name::fold(name)).into();
        for fold in folds {
            with(&mut self.by_fold, &fold.into(), &tool.full);
        }
        with(&mut self.by_bare, &name::fold(&tool.own).into(), &tool.full);
        self.by_old.insert(full.into(), tool.clone());
        self.by_old.insert(hashed.into(), tool.clone());
    }

    /// Returns everything that the catalogue answers with, in a stable order: what tests compare.
    pub fn picture(&self) -> String {
        let names = |map: &FullNames| format!("{:?}", map.iter().collect::<BTreeMap<_, _>>());
        let tools = |map: &SharedMap<Arc<str>, Arc<Tool>>| {
            format!("{:?}", map.iter().map(|(name, tool)| (name, &tool.full)).collect::<BTreeMap<_, _>>())
        };
        let each = self.tools.values().map(|tool| {
            let Tool { server, full, wire, policy_rule, blocked, version, signature, definition, .. } = &**tool;
            let listed = self.listed_name(tool);
            format!("{server} {full} {wire} {listed} {policy_rule} {blocked:?} {version} {signature} {definition}\n")
        });
        let servers = self.servers.iter().map(|(name, entry)| {
            let ServerEntry { description, verbatim, tools, kept_out, .. } = &**entry;
            format!("{name} {description} {verbatim} {tools:?} {kept_out}\n")
        });
        let maps = [
            names(&self.by_fold),
            names(&self.by_bare),
            tools(&self.by_wire),
            tools(&self.by_own),
            tools(&self.by_old),
        ];
        format!("{}{}{maps:#?}{:?}", each.collect::<String>(), servers.collect::<String>(), self.clashes)
    }

    /// Returns the prompts and resources of all servers; this catalogue's own if they are unchanged.
    fn passed_of(
        &self,
        parts: &BTreeMap<Arc<str>, Arc<CatalogPart>>,
        names: &Namespaces,
    ) -> Arc<PromptsResources> {
        let offers = || {
            let listed = parts.iter().map(|(server, part)| (server, &part.source.listing, &part.entry));
            listed.map(|(server, listing, entry)| ServerOffer {
                server,
                verbatim: entry.verbatim,
                session: entry.session,
                prompts: &listing.prompts,
                resources: &listing.resources,
                templates: &listing.templates,
                uis: &parts[server].uis,
            })
        };
        let same = |(one, other): (&Arc<CatalogPart>, &Arc<CatalogPart>)| {
            let (a, b) = (&one.source, &other.source);
            a.server == b.server
                && one.entry.verbatim == other.entry.verbatim
                && one.entry.session == other.entry.session
                && (Arc::ptr_eq(&a.listing, &b.listing)
                    || a.listing.offers_the_same(&b.listing) && one.uis == other.uis)
        };
        let is_same = *self.names == *names
            && self.parts.len() == parts.len()
            && self.parts.values().zip(parts.values()).all(same);
        if is_same { self.passed.clone() } else { Arc::new(PromptsResources::new(offers(), names)) }
    }

    /// Gives verbatim tools their own names. No tool takes a name that leads elsewhere. If several tools have
    /// the same name, none takes it, because the client's choice is unknown.
    fn give_own_names(&mut self) {
        let tools: Vec<Arc<Tool>> = self.tools.values().cloned().collect();
        tools.iter().for_each(|tool| self.give_own_name(tool));
    }

    fn give_own_name(&mut self, tool: &Arc<Tool>) {
        let is_shown = |tool: &Tool| tool.blocked.is_none() && tool.is_of_server();
        if !is_shown(tool) {
            return;
        }
        let same = || {
            let others = self.by_bare.get(&tool.keys.own)?.iter().map(|full| &self.tools[full]);
            let mut others =
                others.filter(|other| is_shown(other) && other.verbatim && other.name == tool.name);
            others.find(|other| other.server != tool.server).map(|other| other.server.clone())
        };
        match self.holder(tool).or_else(|| if tool.verbatim { same() } else { None }) {
            Some(holder) => drop(self.clashes.insert(tool.full.clone(), holder)),
            None if tool.verbatim => self.by_own.insert(tool.name.clone(), tool.clone()),
            None => {}
        }
    }

    /// Returns the owner of a tool's own name, if that is not the tool itself: the server that the name
    /// begins with, the server whose tool the name spells, or Nonet.
    fn holder(&self, tool: &Tool) -> Option<Arc<str>> {
        let named = self.names.named(&tool.name);
        if !named.is_empty() {
            return named.iter().all(|server| *server != tool.server).then(|| named[0].clone());
        }
        if name::meta_tool(&tool.name).is_some() {
            return Some("Nonet".into());
        }
        let spelled = self.by_fold.get(&tool.keys.own).into_iter().flat_map(|names| names.iter());
        let spelled = spelled.map(|full| &self.tools[full]);
        // A session's own servers change nothing for others.
        let mut others = spelled.filter(|other| other.session.is_none() || other.session == tool.session);
        let other = others.find(|other| other.server != tool.server).map(|other| other.server.clone());
        // A tool listed by its own name is reached by it, so the name must not possibly belong to a server
        // without a listing.
        let is_unlisted =
            |server: &&Arc<str>| !name::RESERVED.contains(&&***server) && !self.servers.contains_key(*server);
        other.or_else(|| {
            let mut unlisted = self.names.implied(&tool.keys.own).filter(is_unlisted);
            unlisted.next().filter(|_| tool.verbatim).cloned()
        })
    }

    /// Returns the owner of a tool's own name, if only the tool's full name and wire name lead to the tool.
    pub fn clash(&self, full: &str) -> Option<&Arc<str>> {
        self.clashes.get(full)
    }

    /// Returns each tool whose own name leads elsewhere, with the owner of that name.
    pub fn clashes(&self) -> impl Iterator<Item = (&Arc<Tool>, &Arc<str>)> {
        self.clashes.iter().filter_map(|(full, holder)| Some((self.tools.get(full)?, holder)))
    }

    /// Warns about tools whose name is taken, unless it was already taken `before`.
    pub fn warn_of_clashes(&self, before: &Self) {
        for (tool, holder) in self.clashes() {
            let full = &tool.full;
            if before.clashes.get(full) == Some(holder) {
                continue;
            }
            if tool.verbatim {
                tracing::warn!(tool = %full, %holder, listed = %tool.wire, "the tool's own name is taken; it is listed under its wire name");
            } else {
                tracing::warn!(tool = %full, %holder, "the tool's own name is taken; only its full name works");
            }
        }
    }

    /// Returns every tool by full name, hidden ones included.
    pub fn tools(&self) -> impl Iterator<Item = &Arc<Tool>> {
        self.tools.values()
    }

    /// Returns the tools that models may see, by full name.
    pub fn visible(&self) -> impl Iterator<Item = &Arc<Tool>> {
        self.tools.values().filter(|tool| tool.blocked.is_none() && !tool.is_for_apps_only())
    }

    /// Returns the tools that belong to user interfaces, by full name.
    pub fn with_ui(&self) -> impl Iterator<Item = &Arc<Tool>> {
        self.tools.values().filter(|tool| tool.blocked.is_none() && tool.ui.is_some())
    }

    /// Returns the tools with this name at their servers, in any spelling.
    pub fn by_bare_name(&self, name: &str) -> impl Iterator<Item = &Arc<Tool>> {
        let fulls = self.by_bare.get(&*name::fold(name)).map(|fulls| fulls.iter());
        fulls.into_iter().flatten().filter_map(|full| self.tools.get(full))
    }

    /// Returns every server with its description and tools, by name.
    pub fn servers(&self) -> &BTreeMap<Arc<str>, Arc<ServerEntry>> {
        &self.servers
    }

    /// Prompts and resources of every server.
    pub fn passed(&self) -> &Arc<PromptsResources> {
        &self.passed
    }

    /// Returns the tool with exactly this full name.
    pub fn get(&self, full: &str) -> Option<&Arc<Tool>> {
        self.tools.get(full)
    }

    /// Returns the tool with this full name, or the renamed tool whose server's own name makes it.
    pub fn get_renamed(&self, full: &str) -> Option<&Arc<Tool>> {
        self.tools.get(full).or_else(|| self.by_old.get(full))
    }

    /// Returns the tool with exactly this wire name.
    pub fn by_wire(&self, wire: &str) -> Option<&Arc<Tool>> {
        self.by_wire.get(wire)
    }

    /// Returns the name that a tool is listed under: its own if its server is verbatim and the name is free,
    /// else its wire name.
    pub fn listed_name<'a>(&self, tool: &'a Tool) -> &'a Arc<str> {
        match self.by_own.get(&tool.name) {
            Some(own) if own.full == tool.full => &tool.name,
            _ => &tool.wire,
        }
    }

    /// Returns the verbatim tool that is listed under exactly this name.
    pub fn by_own_name(&self, name: &str) -> Option<&Arc<Tool>> {
        self.by_own.get(name)
    }
}

/// Gives every tool its wire name. Tools whose plain names clash all get the hash, so that no name depends on
/// their order. Returns the full names that several servers give, each with the first of those servers, which
/// owns the name.
fn give_wire_names(parts: &mut BTreeMap<Arc<str>, Arc<CatalogPart>>) -> HashMap<Arc<str>, Arc<str>> {
    let mut first: HashMap<Arc<str>, &Arc<str>> = HashMap::new();
    let mut shadowed: HashMap<Arc<str>, Arc<str>> = HashMap::new();
    let mut uses: HashMap<Arc<str>, usize> = HashMap::new();
    for (server, part) in &*parts {
        for tool in &part.tools {
            if let Some(first) = first.get(&tool.full) {
                tracing::warn!(tool = %tool.full, %first, %server, "two servers have a tool with this name; the first one is used");
                shadowed.insert(tool.full.clone(), (*first).clone());
                continue;
            }
            first.insert(tool.full.clone(), server);
            for name in used_by(tool) {
                *uses.entry(name.clone()).or_default() += 1;
            }
        }
    }
    let wire = |tool: &Tool| {
        let keys = &tool.keys;
        if uses.get(&keys.plain) == Some(&1) { keys.plain.clone() } else { keys.hashed.clone() }
    };
    for part in parts.values_mut() {
        // A part is copied only if one of its tools gets another wire name.
        if part.tools.iter().all(|tool| tool.wire == wire(tool)) {
            continue;
        }
        for tool in &mut Arc::make_mut(part).tools {
            let wire = wire(tool);
            if tool.wire != wire {
                let mut renamed = Tool::clone(tool);
                renamed.keys.wire = folded(&wire, &renamed.keys.full);
                renamed.wire = wire;
                *tool = Arc::new(renamed);
            }
        }
    }
    shadowed
}

/// Returns a folded name; a clone of `other` if both are equal.
fn folded(name: &str, other: &Arc<str>) -> Arc<str> {
    let fold = name::fold(name);
    if fold == **other { other.clone() } else { fold.into() }
}
