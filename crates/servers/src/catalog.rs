//! The catalogue: every known tool, under every name that leads to it.
//!
//! Immutable; the gateway replaces it whole. The catalogue depends only on the listings, never on the order in which they
//! arrived.

mod build;
mod changes;
pub mod guide;
mod marks;
mod risk;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, OnceLock},
};

use nonet_base::{
    persistent::SharedMap,
    text::{clean, clip, clip_words},
};
use nonet_config::{Expose, Globs, Policy, PolicyRule, Risk, ServerSettings};
use nonet_schema::Schema;
use nonet_search::Document;
use nonet_text::{
    fault::{Fault, FaultCode},
    leaks::{Findings, KnownSecrets},
    name::{self, Namespaces, Spellings, WireName},
    prose,
    results::json_len,
};
use serde_json::{Map, Value, json};

pub use self::marks::mark;
use self::{
    build::{ToolNamePair, build, own_name, renames},
    changes::{FullNames, Tools, Uses, names_of, used_by},
};
use crate::{
    pins::{DefinitionChange, ServerTrust},
    prompts_resources::{PromptsResources, ServerOffer},
};

/// How many characters of a server's own description are kept.
const ABOUT: usize = 300;
/// The server name of Nonet's own tools.
pub const GATEWAY: &str = "gateway";
/// The category of skills and servers' prompts.
pub const SKILLS: &str = "skills";
/// The category of apps.
pub const APPS: &str = "apps";
/// How many candidates are described in one answer.
const MOST_DESCRIBED: usize = 5;
/// How many names an "unknown" or "ambiguous" answer suggests.
const SUGGESTIONS: usize = 5;

/// What an entry of the catalogue is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EntryKind {
    /// A tool of a server, or one of Nonet's own.
    #[default]
    Tool,
    /// A skill from a folder, or a server's prompt.
    Skill,
    /// An app of the configuration.
    App,
}

impl EntryKind {
    /// Returns the kind of a category's entries.
    fn of(server: &str) -> Self {
        match server {
            SKILLS => Self::Skill,
            APPS => Self::App,
            _ => Self::Tool,
        }
    }

    /// Returns the category for entries of this kind; `None` for tools.
    pub fn category(self) -> Option<&'static str> {
        match self {
            Self::Tool => None,
            Self::Skill => Some(SKILLS),
            Self::App => Some(APPS),
        }
    }
}

/// One tool of one server, or something found and called like a tool: a skill or an app.
#[derive(Clone, Debug)]
pub struct Tool {
    /// The server's name, or [`GATEWAY`], [`SKILLS`] or [`APPS`].
    pub server: Arc<str>,
    /// What it is.
    pub kind: EntryKind,
    /// The server that has the prompt, if the entry is one.
    pub of: Option<Arc<str>>,
    /// The tool's name: the server's own, or the configuration's new one.
    pub name: Arc<str>,
    /// The server's own name for it.
    pub own: Arc<str>,
    /// `server.tool`.
    pub full: Arc<str>,
    /// The spellings of its full name that rules against it match too.
    spellings: Spellings,
    /// `server__tool`, fit for the strictest API.
    pub wire: Arc<str>,
    /// Whether its server exposes its tools under their own names; then the tool is listed as the server defines it.
    pub verbatim: bool,
    /// Whether clients over HTTP repeat some of its params in headers (`x-mcp-header`, 2026-07-28). Only clients that see its
    /// schema do.
    pub mirrored: bool,
    /// Its title, if it has one.
    pub title: String,
    /// Its description, whole.
    pub description: String,
    /// The definition as the server listed it, verbatim.
    pub definition: Arc<Value>,
    /// The same without hidden characters in its texts.
    pub visible: Arc<Value>,
    /// The visible definition with the configuration's corrections, under the server's own name.
    pub listed: Arc<Value>,
    /// Its input schema.
    pub schema: Schema,
    /// What a call can do at worst.
    pub risk: Risk,
    /// Whether the server declares it read-only.
    pub read_only: bool,
    /// Whether calls may run concurrently with other calls to the same server.
    pub parallel: bool,
    /// Whether its server accepts calls to it only as tasks (`execution.taskSupport`, 2025-11-25).
    pub as_task: bool,
    /// The configuration's policy for its calls.
    pub policy: Policy,
    /// The key of the configuration that sets the policy.
    pub policy_rule: String,
    /// The rule that hides it, if any: a hidden tool is not found, not listed, and not called.
    pub blocked: Option<String>,
    /// Other names from the configuration.
    pub aliases: Vec<String>,
    /// Its server's tags and its own.
    pub tags: Vec<String>,
    /// The session that its server belongs to, if any.
    pub session: Option<u64>,
    /// Words for search from a REST service's document, and the tags of a session's server. Profiles do not select by them.
    pub search_tags: Vec<String>,
    /// Example params for calls, from the configuration; all of them are valid.
    pub examples: Vec<Map<String, Value>>,
    /// Why other examples are invalid, each with its place in the list.
    pub misfits: Vec<(usize, String)>,
    /// Twelve hex digits of a hash of the definition as clients see it.
    pub version: String,
    /// The hash of its definition as the server lists it: 64 hex digits. Approvals refer to it.
    pub hash: Arc<str>,
    /// How its definition differs from the trusted one, if it does.
    pub change: Option<Arc<DefinitionChange>>,
    /// `name(param: type, ...)`.
    pub signature: String,
    /// The findings in its definition, computed on first use.
    marks: OnceLock<Findings>,
    /// The length of its definition as JSON, computed on first use.
    bytes: OnceLock<usize>,
    keys: Keys,
}

/// What a tool is looked up by, besides its names.
#[derive(Clone, Debug)]
struct Keys {
    /// Its wire name without a clash, and with one.
    plain: Arc<str>,
    hashed: Arc<str>,
    /// Its full name, its own name and its wire name, folded.
    full: Arc<str>,
    own: Arc<str>,
    wire: Arc<str>,
}

impl Tool {
    /// Whether patterns of a rule against tools match its full name, in any spelling.
    pub fn is_caught_by(&self, patterns: &Globs) -> bool {
        patterns.catches(&self.full, &self.spellings)
    }

    /// Returns the description cut to one short paragraph for lists, at most `max` characters.
    pub fn summary(&self, max: usize) -> String {
        let text = if self.description.is_empty() { &self.title } else { &self.description };
        let first = text.trim().split("\n\n").next().unwrap_or_default();
        let flat = first.split_whitespace().collect::<Vec<_>>().join(" ");
        clip_words(&flat, max)
    }

    /// Returns the length of its definition as JSON, in bytes. Computed once.
    pub fn bytes(&self) -> usize {
        *self.bytes.get_or_init(|| json_len(&self.definition))
    }

    /// Returns whether the server declares that a repeated call with the same params has no further effect.
    pub fn is_repeatable(&self) -> bool {
        let idempotent = self.definition.get("annotations").and_then(|all| all.get("idempotentHint"));
        // A changed definition's promises are not trusted yet.
        self.read_only || self.change.is_none() && idempotent == Some(&Value::Bool(true))
    }

    /// Returns an example call of this tool, with placeholders for the required parameters.
    pub fn call(&self) -> Value {
        self.call_with(&self.schema.example())
    }

    /// Returns a call of this tool with these params.
    pub fn call_with(&self, params: &Map<String, Value>) -> Value {
        let (meta_tool, arguments) = self.meta_call(params);
        json!({ "tool": meta_tool, "arguments": arguments })
    }

    /// Returns whether it is a server's tool: not one of Nonet's own, not a skill, and not an app.
    pub fn is_of_server(&self) -> bool {
        self.kind == EntryKind::Tool && &*self.server != GATEWAY
    }

    /// Returns the server that its calls reach: for a prompt, the server that has it.
    pub fn at(&self) -> &Arc<str> {
        self.of.as_ref().unwrap_or(&self.server)
    }

    /// Returns the change that holds its calls until the user trusts it.
    pub fn held(&self) -> Option<&Arc<DefinitionChange>> {
        self.change.as_ref().filter(|change| change.is_held())
    }

    /// Returns its full name with the server's own name for the tool, which stays the same when the configuration renames it.
    pub fn own_full(&self) -> Arc<str> {
        if self.is_renamed() { name::full_name(&self.server, &self.own).into() } else { self.full.clone() }
    }

    /// Returns whether the configuration renames it.
    pub fn is_renamed(&self) -> bool {
        self.own != self.name
    }

    /// Returns the tool as a document for search.
    pub fn document(&self, server_description: &str) -> Document {
        let mut terms: Vec<String> =
            self.aliases.iter().chain(&self.tags).chain(&self.search_tags).cloned().collect();
        if self.is_renamed() {
            terms.push(self.own.to_string());
        }
        // `skills` and `apps` say nothing about the entry; a prompt shares its server's subject.
        let group: &str = match self.kind {
            EntryKind::Tool => &self.server,
            EntryKind::Skill | EntryKind::App => self.of.as_deref().unwrap_or_default(),
        };
        Document::from_definition(
            &self.full,
            group,
            self.name_at_server(),
            &self.title,
            &self.description,
            self.telling_schema(),
            terms,
            if self.kind == EntryKind::Tool { server_description } else { "" },
        )
    }
}

/// What a caller sees when a name is looked up.
#[derive(Clone, Copy)]
pub struct CatalogView<'a> {
    /// Whether the caller may use a tool.
    pub seen: &'a dyn Fn(&Tool) -> bool,
    /// The names of all servers.
    pub names: &'a Namespaces,
    /// Whether a server exists for the caller: it does not belong to another session. A name that begins with the server's
    /// name is never another server's, even if the caller may not know of the server.
    pub is_there: &'a dyn Fn(&str) -> bool,
    /// Whether the caller may know of a server. A tool of any other server is unknown, not forbidden.
    pub knows: &'a dyn Fn(&str) -> bool,
}

/// What a name can mean, given the server that it names.
struct NameMeanings<'a> {
    /// The servers that the name names; empty if it names none.
    servers: Vec<Arc<str>>,
    /// For a skill, the servers whose prompt it names.
    of: Vec<Arc<str>>,
    /// The rest of the name, after the server's.
    rest: &'a str,
    sight: CatalogView<'a>,
}

impl<'a> NameMeanings<'a> {
    fn of(given: &'a str, sight: CatalogView<'a>) -> Self {
        let there = |servers: &[Arc<str>]| {
            servers.iter().filter(|server| (sight.is_there)(server)).cloned().collect::<Vec<_>>()
        };
        let servers = there(sight.names.named(given));
        let rest = name::without_client_prefix(given.trim()).unwrap_or(given.trim());
        let rest = name::split_given(rest).map_or("", |(_, rest)| rest);
        let is_skill = servers.iter().any(|server| **server == *SKILLS);
        let of = if is_skill { there(sight.names.named(rest)) } else { Vec::new() };
        Self { servers, of, rest, sight }
    }

    fn may_be(&self, tool: &Tool) -> bool {
        let is_of = |servers: &[Arc<str>], server: &Arc<str>| servers.is_empty() || servers.contains(server);
        let is_of_prompt = match &tool.of {
            Some(server) => is_of(&self.of, server),
            None => self.of.is_empty() || *tool.name == *self.rest,
        };
        is_of(&self.servers, &tool.server) && is_of_prompt
    }
}

impl CatalogView<'_> {
    /// Whether a tool may be refused to the caller rather than be unknown.
    fn shows(&self, tool: &Tool) -> bool {
        (self.seen)(tool) || (self.knows)(&tool.server) && (self.knows)(tool.at())
    }
}

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

    /// Masks known secrets in every definition and in the instructions. Names and URIs stay: they are what calls need. Returns
    /// whether there were any.
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

/// Full names by another key, while a catalogue is built.
type Lists = HashMap<Arc<str>, Vec<Arc<str>>>;

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
    /// Tools of verbatim servers by their own names, where no other tool has the name or a better claim to it.
    by_own: SharedMap<Arc<str>, Arc<Tool>>,
    /// Tools whose own name leads elsewhere or nowhere, by full name, with the server that owns the name or another one that
    /// uses it.
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
    /// Its entry, if no other server has one of its full names.
    entry: Arc<ServerEntry>,
}

impl CatalogPart {
    /// Builds a part, and reuses what has not changed since the part `before`. `same_rules`: `before` was built with the same
    /// policies.
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
        Arc::new(CatalogPart { source, tools, entry })
    }
}

impl ServerEntry {
    fn with_tools<'a>(self, tools: impl IntoIterator<Item = &'a Arc<Tool>>) -> ServerEntry {
        let (visible, blocked): (Vec<_>, Vec<_>) = tools.into_iter().partition(|tool| tool.blocked.is_none());
        let mut tools: Vec<Arc<str>> = visible.into_iter().map(|tool| tool.full.clone()).collect();
        tools.sort();
        ServerEntry { tools, kept_out: blocked.len(), ..self }
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

    /// Returns the catalogue of these sources, equal to a new one. An unchanged listing (the same `Arc`) under the same
    /// settings, and an unchanged definition, are reused. `names` are the names of all configured servers, with or without a
    /// listing.
    /// or without a list.
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
        let (shadowed, uses) = give_wire_names(&mut parts);
        let is_shadowed = !shadowed.is_empty();
        let mut catalog =
            Self { policies: policies.clone(), names: names.clone(), uses, is_shadowed, ..Self::default() };
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
        let (mut by_fold, mut by_bare) = (Lists::new(), Lists::new());
        for tool in &tools {
            catalog.by_wire.insert(tool.wire.clone(), (*tool).clone());
            let keys = &tool.keys;
            by_fold.entry(keys.full.clone()).or_default().push(tool.full.clone());
            if keys.wire != keys.full {
                by_fold.entry(keys.wire.clone()).or_default().push(tool.full.clone());
            }
            by_bare.entry(keys.own.clone()).or_default().push(tool.full.clone());
            if tool.is_renamed() {
                catalog.keep_old_name(tool, &mut by_fold, &mut by_bare);
            }
        }
        (catalog.by_fold, catalog.by_bare) = (names_of(by_fold), names_of(by_bare));
        catalog.tools = Tools::of_sorted(&tools.into_iter().cloned().collect::<Vec<_>>());
        catalog.passed = self.passed_of(&parts, names);
        catalog.parts = parts;
        catalog.give_own_names();
        catalog
    }

    /// Keeps a renamed tool reachable by the name that it has at its server, in every form.
    fn keep_old_name(&mut self, tool: &Arc<Tool>, by_fold: &mut Lists, by_bare: &mut Lists) {
        let full = name::full_name(&tool.server, &tool.own);
        let WireName { plain, hashed } = WireName::new(&tool.server, &tool.own);
        let folds: HashSet<String> = [&full, &plain, &hashed].map(|name| name::fold(name)).into();
        for fold in folds {
            by_fold.entry(fold.into()).or_default().push(tool.full.clone());
        }
        by_bare.entry(name::fold(&tool.own).into()).or_default().push(tool.full.clone());
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
            let parts = parts.iter().map(|(server, part)| (server, &part.source.listing, &part.entry));
            parts.map(|(server, listing, entry)| ServerOffer {
                server,
                verbatim: entry.verbatim,
                session: entry.session,
                prompts: &listing.prompts,
                resources: &listing.resources,
                templates: &listing.templates,
            })
        };
        let same = |(one, other): (&Arc<CatalogPart>, &Arc<CatalogPart>)| {
            let (a, b) = (&one.source, &other.source);
            a.server == b.server
                && one.entry.verbatim == other.entry.verbatim
                && one.entry.session == other.entry.session
                && (Arc::ptr_eq(&a.listing, &b.listing) || a.listing.offers_the_same(&b.listing))
        };
        let is_same = *self.names == *names
            && self.parts.len() == parts.len()
            && self.parts.values().zip(parts.values()).all(same);
        if is_same { self.passed.clone() } else { Arc::new(PromptsResources::new(offers(), names)) }
    }

    /// Gives verbatim tools their own names. No tool takes a name that leads elsewhere. If several tools have the same name,
    /// none takes it, because the client's choice is unknown.
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

    /// Returns the owner of a tool's own name, if that is not the tool itself: the server that the name begins with, the
    /// server whose tool the name spells, or Nonet.
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
        // A tool listed by its own name is reached by it, so the name must not possibly belong to a server without a listing.
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

    /// Returns the visible tools, by full name.
    pub fn visible(&self) -> impl Iterator<Item = &Arc<Tool>> {
        self.tools.values().filter(|tool| tool.blocked.is_none())
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

    /// Returns the name that a tool is listed under: its own if its server is verbatim and the name is free, else its wire
    /// name.
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

    /// Returns the tool that a caller means by `given`: `a.b`, `a__b`, `a:b`, `a/b`, `mcp__nonet__a__b` or a bare `b`, in any
    /// case, with `-` and `_` alike. Never guesses: two candidates are a fault.
    pub fn resolve(&self, given: &str) -> Result<&Arc<Tool>, Fault> {
        let sight =
            CatalogView { seen: &|_| true, names: &self.names, is_there: &|_| true, knows: &|_| true };
        self.resolve_among(given, sight)
    }

    /// Resolves a name like [`Catalog::resolve`] for a caller who may see only some of the tools. A fault names no other
    /// tool, and a name means an unseen tool only if nothing else fits.
    ///
    /// The named server comes first: a name that begins with a server's name belongs to that server, known or not, and a name
    /// that spells one server's tool is never another server's tool of that name.
    pub fn resolve_among(&self, given: &str, sight: CatalogView<'_>) -> Result<&Arc<Tool>, Fault> {
        let found = self.resolve_given(given, sight);
        match found.as_ref().map_err(|fault| fault.code) {
            Err(FaultCode::UnknownTool) => match sight.names.behind_other_client(given) {
                Some(inner) => self.resolve_given(inner, sight),
                None => found,
            },
            _ => found,
        }
    }

    fn resolve_given(&self, given: &str, sight: CatalogView<'_>) -> Result<&Arc<Tool>, Fault> {
        let seen = |tool: &Tool| tool.blocked.is_none() && (sight.seen)(tool);
        // A tool's own name may begin or end with white space.
        if let Some(tool) = self.tools.get(given).filter(|tool| sight.shows(tool)) {
            return Ok(tool);
        }
        let meant = NameMeanings::of(given, sight);
        let is_own = |tool: &&Arc<Tool>| {
            let fold = name::fold(given);
            let unlisted = self.unlisted_owner(&fold, &meant);
            seen(tool) && meant.may_be(tool) && unlisted.is_none_or(|server| *server == tool.server)
        };
        if let Some(tool) = self.by_own.get(given).filter(is_own) {
            return Ok(tool);
        }
        let given = given.trim();
        let short = name::without_client_prefix(given);
        for name in [Some(given), short].into_iter().flatten() {
            let live = self.tools.get(name).or_else(|| self.by_wire.get(name));
            let known = live.or_else(|| self.by_old.get(name)).filter(|tool| meant.may_be(tool));
            if let Some(tool) = known.filter(|tool| sight.shows(tool)) {
                return Ok(tool);
            }
        }
        for name in [Some(given), short].into_iter().flatten() {
            let mut names = self.spelled(name, &meant);
            // They take their names all the same.
            names.retain(|full| sight.shows(&self.tools[*full]));
            if names.iter().any(|full| seen(&self.tools[*full])) {
                names.retain(|full| seen(&self.tools[*full]));
            } else {
                // Which of several hidden tools is refused makes no difference.
                names.truncate(1);
            }
            // A skill or an app never shadows a tool.
            if names.iter().any(|full| self.tools[*full].kind == EntryKind::Tool) {
                names.retain(|full| self.tools[*full].kind == EntryKind::Tool);
            }
            let exact: Vec<&&Arc<str>> =
                names.iter().filter(|full| *self.tools[**full].name == *name).collect();
            match (&names[..], &exact[..]) {
                ([], _) => {}
                ([one], _) => return Ok(&self.tools[*one]),
                (_, [one]) => return Ok(&self.tools[**one]),
                (many, _) => return Err(self.ambiguous(given, many)),
            }
        }
        // A tool that took another's name is not suggested for it.
        let is_named = |tool: &Tool| !meant.servers.is_empty() && meant.may_be(tool);
        let is_offered =
            |tool: &Tool| seen(tool) && (is_named(tool) || !self.clashes.contains_key(&tool.full));
        Err(self.unknown(given, &is_offered))
    }

    /// Returns a server without a known listing that may own a folded name, if the name names no other server.
    fn unlisted_owner<'a>(&self, folded: &'a str, meant: &NameMeanings<'a>) -> Option<&'a Arc<str>> {
        let is_unlisted = |server: &&Arc<str>| {
            (meant.sight.is_there)(server)
                && !name::RESERVED.contains(&&***server)
                && !self.servers.contains_key(*server)
        };
        meant.sight.names.implied(folded).find(is_unlisted).filter(|_| meant.servers.is_empty())
    }

    /// Returns the full names of the tools that a name may spell.
    fn spelled<'a>(&'a self, name: &str, meant: &NameMeanings<'_>) -> Vec<&'a Arc<str>> {
        let fold = name::fold(name);
        let by = |map: &'a FullNames| {
            let names = map.get(&*fold).into_iter().flat_map(|names| names.iter());
            names.filter(|full| meant.may_be(&self.tools[*full])).collect::<Vec<_>>()
        };
        let (mut names, mut bare) = (by(&self.by_fold), by(&self.by_bare));
        if meant.servers.is_empty() {
            let server = |full: &Arc<str>| &self.tools[full].server;
            let is_there = |full: &&&Arc<str>| (meant.sight.is_there)(server(full));
            let spelled: HashSet<&Arc<str>> =
                names.iter().filter(is_there).map(|full| server(full)).collect();
            if !spelled.is_empty() {
                bare.retain(|full| spelled.contains(server(full)));
            }
            if name::meta_tool(name).is_some() {
                bare.retain(|full| self.tools[*full].kind != EntryKind::Tool);
            }
            if let Some(unlisted) = self.unlisted_owner(&fold, meant) {
                names.retain(|full| server(full) == unlisted);
                bare.retain(|full| server(full) == unlisted);
            }
        }
        names.append(&mut bare);
        names.sort();
        names.dedup();
        names
    }

    fn ambiguous(&self, given: &str, candidates: &[&Arc<str>]) -> Fault {
        let list = candidates.iter().map(|full| full.as_ref()).collect::<Vec<_>>().join(", ");
        let fault = Fault::new(
            FaultCode::AmbiguousTool,
            format!("`{given}` may be any of: {list}. Call again with one of these full names."),
        );
        let names: Vec<&str> = candidates.iter().take(MOST_DESCRIBED).map(|full| &***full).collect();
        fault.next("get_tool", json!({ "names": names })).suggest(candidates)
    }

    /// Returns the fault for a name that no `seen` tool has, with the nearest names.
    pub fn unknown(&self, given: &str, seen: &dyn Fn(&Tool) -> bool) -> Fault {
        let given = given.trim();
        let given = name::without_client_prefix(given).unwrap_or(given);
        let tools = self.tools.values().filter(|tool| seen(tool));
        let near = name::nearest_tools(
            given,
            tools.map(|tool| (&*tool.server, &*tool.name, &*tool.full)),
            SUGGESTIONS,
        );
        let message = match near.first() {
            Some(first) => format!("There is no tool `{given}`. The nearest is `{first}`."),
            None => format!("There is no tool `{given}`. Search for what it should do."),
        };
        let words = given.replace(['_', '.', '-', ':', '/'], " ");
        let fault = Fault::new(FaultCode::UnknownTool, message).suggest(&near);
        let named = || {
            let server = name::fold(name::split_given(given)?.0);
            let (named, part) = self.parts.iter().find(|(part, _)| name::fold(part) == server)?;
            part.tools.iter().any(|tool| seen(tool)).then_some(named)
        };
        match (near.first(), words.trim()) {
            (Some(first), _) => fault.next("get_tool", json!({ "name": first })),
            (None, "") => fault.next("list_categories", json!({})),
            (None, words) => match named() {
                Some(server) => fault.next("browse_category", json!({ "category": &**server })),
                None => fault.next("search_tools", json!({ "query": words })),
            },
        }
    }
}

/// Gives every tool its wire name. Tools whose plain names clash all get the hash, so that no name depends on their order.
/// Returns the full names that several servers give, each with the first of those servers, which owns the name.
fn give_wire_names(parts: &mut BTreeMap<Arc<str>, Arc<CatalogPart>>) -> (HashMap<Arc<str>, Arc<str>>, Uses) {
    let mut first: HashMap<Arc<str>, &Arc<str>> = HashMap::new();
    let mut shadowed: HashMap<Arc<str>, Arc<str>> = HashMap::new();
    let mut uses = Uses::default();
    for (server, part) in &*parts {
        for tool in &part.tools {
            if let Some(first) = first.get(&tool.full) {
                tracing::warn!(tool = %tool.full, %first, %server, "two servers have a tool with this name; the first one is used");
                shadowed.insert(tool.full.clone(), (*first).clone());
                continue;
            }
            first.insert(tool.full.clone(), server);
            for name in used_by(tool) {
                let known = uses.get(name).copied().unwrap_or_default();
                uses.insert(name.clone(), known + 1);
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
    (shadowed, uses)
}

/// Returns a folded name; a clone of `other` if both are equal.
fn folded(name: &str, other: &Arc<str>) -> Arc<str> {
    let fold = name::fold(name);
    if fold == **other { other.clone() } else { fold.into() }
}
