//! One entry of the catalogue: a tool, or something that is found and called like one.

use std::sync::{Arc, OnceLock};

use nonet_api::tools::EntryKind;
use nonet_base::{json::set_member, text::clip_words};
use nonet_config::{Globs, Policy, Risk};
use nonet_schema::Schema;
use nonet_search::Document;
use nonet_text::{
    fault::NextStep,
    leaks::Findings,
    name::{self, Spellings},
    results::{CALLED, json_len},
};
use serde_json::{Map, Value, json};

use super::GATEWAY;
use crate::pins::DefinitionChange;

/// One tool of one server, or something found and called like a tool: a skill or an app.
#[derive(Clone, Debug)]
pub struct Tool {
    /// The server's name, or [`GATEWAY`], [`SKILLS`](super::SKILLS) or [`APPS`](super::APPS).
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
    pub(super) spellings: Spellings,
    /// `server__tool`, fit for the strictest API.
    pub wire: Arc<str>,
    /// Whether its server exposes its tools under their own names; then the tool is listed as the server
    /// defines it.
    pub verbatim: bool,
    /// Whether clients over HTTP repeat some of its params in headers (`x-mcp-header`, 2026-07-28). Only
    /// clients that see its schema do.
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
    /// Its user interface, if it has one.
    pub ui: Option<Arc<ToolUi>>,
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
    /// Words for search from a REST service's document, and the tags of a session's server. Profiles do not
    /// select by them.
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
    pub(super) marks: OnceLock<Findings>,
    /// The length of its definition as JSON, computed on first use.
    pub(super) bytes: OnceLock<usize>,
    /// Its output schema, if it declares one; compiled on first use.
    pub(super) output: OnceLock<Option<Schema>>,
    /// What answers say of it in their `_meta`, as JSON; computed on first use.
    pub(super) called: OnceLock<Option<Box<str>>>,
    pub(super) keys: Keys,
}

/// The most bytes of structured content that are compared with an output schema.
pub const MOST_COMPARED: usize = 64 << 10;

/// What a tool's definition says of user interfaces (MCP Apps, 2026-01-26: `_meta.ui`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolUi {
    /// The resource with its interface: a `ui://` URI at its server.
    pub resource: Option<Box<str>>,
    /// Whether the model may call it.
    pub for_model: bool,
    /// Whether interfaces of its server may call it.
    pub for_apps: bool,
}

impl ToolUi {
    /// Reads a definition. The flat key is of earlier drafts, and servers still write it.
    pub fn of(definition: &Value) -> Option<Self> {
        let meta = definition.get("_meta")?;
        let ui = meta.get("ui").filter(|ui| ui.is_object());
        let nested = ui.and_then(|ui| ui.get("resourceUri"));
        let resource = nested.or_else(|| meta.get(FLAT_URI)).and_then(Value::as_str);
        let resource = resource.filter(|uri| uri.starts_with("ui://")).map(Into::into);
        let visibility = ui.and_then(|ui| ui.get("visibility")?.as_array());
        let sees = |who: &str| visibility.is_none_or(|all| all.iter().any(|one| one == who));
        let (for_model, for_apps) = (sees("model"), sees("app"));
        (resource.is_some() || visibility.is_some()).then_some(Self { resource, for_model, for_apps })
    }
}

/// The key in `_meta` for the interface's URI in earlier drafts.
const FLAT_URI: &str = "ui/resourceUri";

/// Puts another URI of the interface into a definition.
pub fn set_ui_uri(definition: &mut Value, uri: &str) {
    let Some(meta) = definition.get_mut("_meta") else { return };
    if let Some(ui) = meta.get_mut("ui").filter(|ui| ui.get("resourceUri").is_some()) {
        set_member(ui, "resourceUri", uri);
    }
    if meta.get(FLAT_URI).is_some() {
        set_member(meta, FLAT_URI, uri);
    }
}

/// What a tool is looked up by, besides its names.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    /// Its wire name without a clash, and with one.
    pub plain: Arc<str>,
    pub hashed: Arc<str>,
    /// Its full name, its own name and its wire name, folded.
    pub full: Arc<str>,
    pub own: Arc<str>,
    pub wire: Arc<str>,
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

    /// Whether only user interfaces may call it, and no model.
    pub fn is_for_apps_only(&self) -> bool {
        self.ui.as_ref().is_some_and(|ui| !ui.for_model)
    }

    /// Returns the URI of its user interface at its server.
    pub fn ui_resource(&self) -> Option<&str> {
        self.ui.as_ref()?.resource.as_deref()
    }

    /// Returns its output schema, if clients know of one.
    pub fn output(&self) -> Option<&Schema> {
        let declared = || Some(Schema::new(self.listed.get("outputSchema")?.clone()));
        self.output.get_or_init(declared).as_ref()
    }

    /// Returns the members of the `_meta` of its answers, as JSON without braces, if it only reads and can do no
    /// harm: its name and its annotations, for clients that ask their users before each call of a meta-tool.
    pub fn called(&self) -> Option<&str> {
        let told = || {
            let is_told =
                self.is_of_server() && self.read_only && self.risk == Risk::Low && self.change.is_none();
            let annotations = is_told.then(|| self.visible.get("annotations")).flatten()?;
            let called = json!({ "tool": &*self.full, "annotations": annotations });
            Some(format!("\"{CALLED}\":{called}").into())
        };
        self.called.get_or_init(told).as_deref()
    }

    /// Returns whether the server declares that a repeated call with the same params has no further effect.
    pub fn is_repeatable(&self) -> bool {
        let idempotent = self.definition.get("annotations").and_then(|all| all.get("idempotentHint"));
        // A changed definition's promises are not trusted yet.
        self.read_only || self.change.is_none() && idempotent == Some(&Value::Bool(true))
    }

    /// Returns an example call of this tool, with placeholders for the required parameters.
    pub fn call(&self) -> NextStep {
        self.call_with(&self.schema.example())
    }

    /// Returns a call of this tool with these params.
    pub fn call_with(&self, params: &Map<String, Value>) -> NextStep {
        let (meta_tool, arguments) = self.meta_call(params);
        NextStep::new(meta_tool, Value::Object(arguments))
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

    /// Returns its full name with the server's own name for the tool, which stays the same when the
    /// configuration renames it.
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
