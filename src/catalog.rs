//! The catalogue: every tool that is known, under every name that it answers to.
//!
//! Immutable; the gateway replaces it whole. What it holds depends on the listings alone, never on
//! the order in which they came.

mod risk;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::{
    config::{Expose, Policy, PolicyRule, Risk, ServerSettings},
    fault::{Code, Fault},
    name::{self, Wire},
    prompts_resources::{PromptsResources, ServerOffer},
    prose,
    schema::Schema,
    search::Document,
};

/// How much of what a server says of itself is kept, in characters.
const ABOUT: usize = 300;
/// The server name of Nonet's own tools.
pub const GATEWAY: &str = "gateway";
/// How many candidates are described at once.
const MOST_DESCRIBED: usize = 5;
/// Names in an "unknown" or "ambiguous" answer.
const SUGGESTIONS: usize = 5;

/// One tool of one server.
#[derive(Debug)]
pub struct Tool {
    /// The server's name, or [`GATEWAY`].
    pub server: Arc<str>,
    /// The tool's own name, as its server gave it.
    pub name: Arc<str>,
    /// `server.tool`.
    pub full: Arc<str>,
    /// `server__tool`, fit for the strictest API.
    pub wire: Arc<str>,
    /// Whether its server is exposed under its own names: then it is listed as the server defines it.
    pub verbatim: bool,
    /// Whether clients over HTTP repeat some of its params in headers (`x-mcp-header`, 2026-07-28): those who see its schema.
    pub mirrored: bool,
    /// Its title, if it has one.
    pub title: String,
    /// Its description, whole.
    pub description: String,
    /// The definition as the server listed it, verbatim.
    pub definition: Value,
    /// Its input schema.
    pub schema: Schema,
    /// What a call can do at worst.
    pub risk: Risk,
    /// Whether the server says that a call changes nothing.
    pub read_only: bool,
    /// Whether calls may run beside other calls of the same server.
    pub parallel: bool,
    /// Whether its server takes calls of it only as tasks (`execution.taskSupport`, 2025-11-25).
    pub as_task: bool,
    /// What the configuration says of calls.
    pub policy: Policy,
    /// The key of the configuration that says so.
    pub policy_rule: String,
    /// The rule that hides it, if one does: then it is not found, not listed, and not called.
    pub blocked: Option<String>,
    /// Other names from the configuration.
    pub aliases: Vec<String>,
    /// Tags of its server and its own.
    pub tags: Vec<String>,
    /// Twelve hex digits that change with the definition.
    pub version: String,
    /// `name(param: type, ...)`.
    pub signature: String,
}

impl Tool {
    /// The description cut to one short paragraph for lists, at most `max` characters.
    pub fn summary(&self, max: usize) -> String {
        let text = if self.description.is_empty() { &self.title } else { &self.description };
        let first = text.trim().split("\n\n").next().unwrap_or_default();
        let flat = first.split_whitespace().collect::<Vec<_>>().join(" ");
        crate::text::clip(&flat, max)
    }

    /// A call of this tool that can be copied: required parameters stand as placeholders.
    pub fn call(&self) -> Value {
        json!({ "tool": "execute_tool", "arguments": { "name": &*self.full, "params": self.schema.example() } })
    }

    /// The tool as something to be found.
    pub fn document(&self, server_description: &str) -> Document {
        let terms = self.aliases.iter().chain(&self.tags).cloned().collect();
        Document::from_definition(
            &self.full,
            &self.server,
            &self.name,
            &self.title,
            &self.description,
            self.schema.raw(),
            terms,
            server_description,
        )
    }
}

/// What one server listed.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Listing {
    /// Tool definitions, verbatim.
    pub tools: Vec<Value>,
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
}

/// One server's part of the catalogue.
#[derive(Clone, Debug, Default)]
pub struct ServerEntry {
    /// What it is for: from the configuration, else from the server.
    pub description: String,
    /// Whether it is exposed under its own names.
    pub verbatim: bool,
    /// Its visible tools' full names, in order.
    pub tools: Vec<Arc<str>>,
    /// How many of its tools the configuration keeps out.
    pub kept_out: usize,
    /// Its prompts' definitions, verbatim.
    pub prompts: Vec<Value>,
    /// Its resources' definitions, verbatim.
    pub resources: Vec<Value>,
    /// Its resource templates' definitions, verbatim.
    pub templates: Vec<Value>,
}

/// Every tool that is known. A clone shares the tools.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    tools: BTreeMap<Arc<str>, Arc<Tool>>,
    by_wire: HashMap<Arc<str>, Arc<Tool>>,
    /// Tools of verbatim servers by their own names, where those are theirs alone or theirs first.
    by_own: HashMap<Arc<str>, Arc<Tool>>,
    /// Verbatim tools without their own name, by full name, with the server that has it.
    clashes: BTreeMap<Arc<str>, Arc<str>>,
    by_fold: HashMap<String, Vec<Arc<str>>>,
    by_bare: HashMap<String, Vec<Arc<str>>>,
    servers: BTreeMap<Arc<str>, ServerEntry>,
    passed: Arc<PromptsResources>,
}

impl Catalog {
    /// Joins listings into one catalogue. `settings` is absent for Nonet's own tools. `policies` are those of the whole
    /// configuration, by name.
    pub fn new<'a>(
        listings: impl IntoIterator<Item = (&'a str, &'a Listing, Option<&'a ServerSettings>)>,
        policies: &BTreeMap<String, PolicyRule>,
    ) -> Self {
        let mut tools: BTreeMap<Arc<str>, Tool> = BTreeMap::new();
        let mut servers = BTreeMap::new();
        for (server, listing, settings) in listings {
            let server: Arc<str> = server.into();
            let about = settings.and_then(|s| s.description.clone());
            let mut entry = ServerEntry {
                description: about.unwrap_or_else(|| prose::plain(&listing.about, ABOUT)),
                verbatim: settings.is_some_and(|s| s.expose == Expose::Verbatim),
                prompts: listing.prompts.clone(),
                resources: listing.resources.clone(),
                templates: listing.templates.clone(),
                ..ServerEntry::default()
            };
            for definition in &listing.tools {
                let Some(tool) = build(&server, definition, settings, policies) else {
                    tracing::warn!(%server, definition = %crate::text::clip(&definition.to_string(), 120), "a tool without a name was left out");
                    continue;
                };
                if tools.contains_key(&tool.full) {
                    tracing::warn!(tool = %tool.full, "the server lists this tool twice; the first counts");
                    continue;
                }
                match tool.blocked {
                    None => entry.tools.push(tool.full.clone()),
                    Some(_) => entry.kept_out += 1,
                }
                tools.insert(tool.full.clone(), tool);
            }
            entry.tools.sort();
            servers.insert(server, entry);
        }
        Self::index(give_wire_names(tools), servers)
    }

    fn index(tools: BTreeMap<Arc<str>, Tool>, servers: BTreeMap<Arc<str>, ServerEntry>) -> Self {
        let offers = servers.iter().map(|(server, entry)| ServerOffer {
            server,
            verbatim: entry.verbatim,
            prompts: &entry.prompts,
            resources: &entry.resources,
            templates: &entry.templates,
        });
        let passed = Arc::new(PromptsResources::new(offers));
        let mut catalog = Self { servers, passed, ..Self::default() };
        for (full, tool) in tools {
            let tool = Arc::new(tool);
            catalog.by_wire.insert(tool.wire.clone(), tool.clone());
            for key in [name::fold(&full), name::fold(&tool.wire)] {
                let names = catalog.by_fold.entry(key).or_default();
                if !names.contains(&full) {
                    names.push(full.clone());
                }
            }
            catalog.by_bare.entry(name::fold(&tool.name)).or_default().push(full.clone());
            catalog.tools.insert(full, tool);
        }
        catalog.give_own_names();
        catalog
    }

    /// Gives verbatim tools their own names. The first by server name keeps a name; none takes one that leads elsewhere.
    fn give_own_names(&mut self) {
        let mut tools: Vec<Arc<Tool>> = self.visible().filter(|tool| tool.verbatim).cloned().collect();
        tools.sort_by(|a, b| (&a.server, &a.name).cmp(&(&b.server, &b.name)));
        for tool in tools {
            let name = &tool.name;
            let holder = if name::META_TOOLS.contains(&&**name) {
                Some("Nonet".into())
            } else {
                let maps = [&self.by_wire, &self.by_own];
                let other = self.tools.get(name).or_else(|| maps.iter().find_map(|map| map.get(name)));
                other.map(|other| other.server.clone())
            };
            match holder {
                Some(holder) => drop(self.clashes.insert(tool.full.clone(), holder)),
                None => drop(self.by_own.insert(name.clone(), tool)),
            }
        }
    }

    /// Warns of verbatim tools whose name is taken, unless that was so `before`.
    pub fn warn_of_clashes(&self, before: &Self) {
        for (full, holder) in &self.clashes {
            if before.clashes.get(full) != Some(holder) {
                let listed = &self.tools[full].wire;
                tracing::warn!(tool = %full, %holder, %listed, "the tool's own name is taken; it is listed under its wire name");
            }
        }
    }

    /// Returns every tool by full name, those that are kept out included.
    pub fn tools(&self) -> impl Iterator<Item = &Arc<Tool>> {
        self.tools.values()
    }

    /// The tools that may be seen, by full name.
    pub fn visible(&self) -> impl Iterator<Item = &Arc<Tool>> {
        self.tools.values().filter(|tool| tool.blocked.is_none())
    }

    /// Every server with its description and tools, by name.
    pub fn servers(&self) -> &BTreeMap<Arc<str>, ServerEntry> {
        &self.servers
    }

    /// Prompts and resources of every server.
    pub fn passed(&self) -> &Arc<PromptsResources> {
        &self.passed
    }

    /// The tool with exactly this full name.
    pub fn get(&self, full: &str) -> Option<&Arc<Tool>> {
        self.tools.get(full)
    }

    /// The tool with exactly this wire name.
    pub fn by_wire(&self, wire: &str) -> Option<&Arc<Tool>> {
        self.by_wire.get(wire)
    }

    /// The name that a tool is listed under: its own if its server is verbatim and the name is not taken, else its wire name.
    pub fn listed_name<'a>(&self, tool: &'a Tool) -> &'a Arc<str> {
        match self.by_own.get(&tool.name) {
            Some(own) if own.full == tool.full => &tool.name,
            _ => &tool.wire,
        }
    }

    /// The verbatim tool that is listed under exactly this name.
    pub fn by_own_name(&self, name: &str) -> Option<&Arc<Tool>> {
        self.by_own.get(name)
    }

    /// The tool that a caller means by `given`: `a.b`, `a__b`, `a:b`, `a/b`, `mcp__nonet__a__b` or a
    /// bare `b`, in any case, `-` and `_` alike. Never a guess: two candidates are a fault.
    pub fn resolve(&self, given: &str) -> Result<&Arc<Tool>, Fault> {
        self.resolve_among(given, &|_| true)
    }

    /// The same for a caller who may see some of the tools only: no other is named in a fault, and one that is not seen is
    /// meant only if nothing else can be.
    pub fn resolve_among(&self, given: &str, seen: &dyn Fn(&Tool) -> bool) -> Result<&Arc<Tool>, Fault> {
        let seen = |tool: &Tool| tool.blocked.is_none() && seen(tool);
        // A tool's own name may begin or end with white space.
        if let Some(tool) = self.tools.get(given) {
            return Ok(tool);
        }
        if let Some(tool) = self.by_own.get(given).filter(|tool| seen(tool)) {
            return Ok(tool);
        }
        let given = given.trim();
        let short = name::without_client_prefix(given);
        for name in [Some(given), short].into_iter().flatten() {
            if let Some(tool) = self.tools.get(name).or_else(|| self.by_wire.get(name)) {
                return Ok(tool);
            }
        }
        for name in [Some(given), short].into_iter().flatten() {
            let fold = name::fold(name);
            let mut names: Vec<&Arc<str>> =
                [&self.by_fold, &self.by_bare].iter().filter_map(|map| map.get(&fold)).flatten().collect();
            names.sort();
            names.dedup();
            if names.iter().any(|full| seen(&self.tools[*full])) {
                names.retain(|full| seen(&self.tools[*full]));
            } else {
                // Which of several is refused makes no difference.
                names.truncate(1);
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
        Err(self.unknown(given, &seen))
    }

    fn ambiguous(&self, given: &str, candidates: &[&Arc<str>]) -> Fault {
        let list = candidates.iter().map(|full| full.as_ref()).collect::<Vec<_>>().join(", ");
        let fault = Fault::new(
            Code::AmbiguousTool,
            format!("`{given}` may be any of: {list}. Call again with one of these full names."),
        );
        let names: Vec<&str> = candidates.iter().take(MOST_DESCRIBED).map(|full| &***full).collect();
        fault.next("get_tool", json!({ "names": names })).suggest(candidates)
    }

    fn unknown(&self, given: &str, seen: &dyn Fn(&Tool) -> bool) -> Fault {
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
        let fault = Fault::new(Code::UnknownTool, message).suggest(&near);
        match near.first() {
            Some(first) => fault.next("get_tool", json!({ "name": first })),
            None => fault.next("search_tools", json!({ "query": words.trim() })),
        }
    }
}

/// Gives every tool its wire name. Tools whose plain names clash all get the hash, so that no name
/// depends on which of them came first.
fn give_wire_names(tools: BTreeMap<Arc<str>, Tool>) -> BTreeMap<Arc<str>, Tool> {
    let wires: Vec<Wire> = tools.values().map(|tool| Wire::new(&tool.server, &tool.name)).collect();
    let mut uses: HashMap<&str, usize> = HashMap::new();
    for wire in &wires {
        *uses.entry(&wire.plain).or_default() += 1;
        if wire.hashed != wire.plain {
            *uses.entry(&wire.hashed).or_default() += 1;
        }
    }
    let names: Vec<Arc<str>> = wires
        .iter()
        .map(|wire| if uses[wire.plain.as_str()] == 1 { &wire.plain } else { &wire.hashed })
        .map(|name| name.as_str().into())
        .collect();
    tools
        .into_iter()
        .zip(names)
        .map(|((full, mut tool), wire)| {
            tool.wire = wire;
            (full, tool)
        })
        .collect()
}

fn build(
    server: &Arc<str>,
    definition: &Value,
    settings: Option<&ServerSettings>,
    policies: &BTreeMap<String, PolicyRule>,
) -> Option<Tool> {
    let text = |key: &str| definition.get(key).and_then(Value::as_str).unwrap_or_default().to_string();
    let name: Arc<str> = definition.get("name")?.as_str().filter(|name| !name.is_empty())?.into();
    let annotations = definition.get("annotations");
    let hint = |key: &str| annotations.and_then(|a| a.get(key)).and_then(Value::as_bool);
    let title = match text("title") {
        title if title.is_empty() => {
            annotations.and_then(|a| a.get("title")?.as_str()).unwrap_or_default().to_string()
        }
        title => title,
    };
    let read_only = hint("readOnlyHint") == Some(true);
    let schema =
        Schema::of_tool(&name, definition.get("inputSchema").cloned().unwrap_or(json!({"type": "object"})));
    let own = settings.and_then(|s| s.tools.get(&*name));
    let blocked = settings.and_then(|s| {
        if let Some(allowed) = &s.allowed_tools
            && !allowed.matches(&name)
        {
            Some(format!("servers.{server}.allowed_tools"))
        } else if s.blocked_tools.matches(&name) {
            Some(format!("servers.{server}.blocked_tools"))
        } else {
            None
        }
    });
    let full: Arc<str> = name::full_name(server, &name).into();
    let risk = own.and_then(|own| own.risk).unwrap_or_else(|| risk::risk(&name, annotations));
    let (policy, policy_rule) = policy(server, &name, &full, risk, settings, policies);
    let blocked = blocked.or_else(|| (policy == Policy::Deny).then(|| policy_rule.clone()));
    let mut tags: Vec<String> = settings.map(|s| s.tags.clone()).unwrap_or_default();
    tags.extend(own.into_iter().flat_map(|o| o.tags.clone()));
    let verbatim = settings.is_some_and(|s| s.expose == Expose::Verbatim);
    Some(Tool {
        server: server.clone(),
        wire: "".into(),
        verbatim,
        mirrored: verbatim && schema.raw().to_string().contains("\"x-mcp-header\""),
        title,
        description: prose::dedented(&text("description")),
        risk,
        read_only,
        as_task: definition.get("execution").and_then(|e| e.get("taskSupport")?.as_str()) == Some("required"),
        parallel: own.and_then(|o| o.parallel).unwrap_or(settings.is_some_and(|s| s.parallel)),
        policy,
        policy_rule,
        blocked,
        aliases: own.map(|o| o.aliases.clone()).unwrap_or_default(),
        tags,
        version: version(definition),
        signature: schema.signature(&full),
        schema,
        definition: definition.clone(),
        name,
        full,
    })
}

/// What happens when a tool is called, and the key that says so. What is said of the tool itself goes before what is said of
/// names like its own, of its server, and of its risk; of several policies that name it the strictest holds.
fn policy(
    server: &str,
    name: &str,
    full: &str,
    risk: Risk,
    settings: Option<&ServerSettings>,
    policies: &BTreeMap<String, PolicyRule>,
) -> (Policy, String) {
    let Some(settings) = settings else { return (Policy::Allow, String::new()) };
    if let Some(policy) = settings.tools.get(name).and_then(|own| own.policy) {
        return (policy, format!("servers.{server}.tools.{name}.policy"));
    }
    let strictest = |by_name: bool| {
        policies
            .iter()
            .filter(|(_, rule)| rule.tools.is_empty() != by_name)
            .filter(|(_, rule)| rule.tools.is_empty() || rule.tools.matches(full))
            .filter(|(_, rule)| rule.risk.is_none_or(|from| risk >= from))
            .max_by_key(|(_, rule)| rule.policy)
            .map(|(name, rule)| (rule.policy, format!("policies.{name}")))
    };
    strictest(true)
        .or_else(|| settings.policy.map(|policy| (policy, format!("servers.{server}.policy"))))
        .or_else(|| strictest(false))
        .unwrap_or((Policy::Allow, String::new()))
}

fn version(definition: &Value) -> String {
    let digest = Sha256::digest(definition.to_string().as_bytes());
    crate::text::hex(&digest[..6])
}
