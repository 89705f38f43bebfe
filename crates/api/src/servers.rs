//! What a person does on the live page to the servers of servers.toml, and their tools there.

use std::{borrow::Cow, collections::BTreeMap, path::PathBuf, sync::Arc};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    status::ServerState,
    tools::{Policy, RegistryHit, Risk, ToolReport},
};

/// A fault of a server's text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TableFault {
    /// The line; `null` if it is about the whole text.
    pub line: Option<usize>,
    /// What is wrong.
    pub message: String,
}

/// The policy of one tool in servers.toml.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyRequest {
    /// The policy; `null`: other rules decide.
    pub policy: Option<Policy>,
}

/// A server from the form: a command line, an address or an OpenAPI document.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AddRequest {
    /// Its name.
    pub name: String,
    /// The command line.
    pub command: String,
    /// The address.
    pub url: String,
    /// The OpenAPI document.
    pub openapi: String,
    /// The address of the service.
    pub base_url: String,
    /// Variables, as `NAME=VALUE`.
    pub env: Vec<String>,
    /// Headers, as `NAME: VALUE`.
    pub headers: Vec<String>,
    /// Tags.
    pub tags: Vec<String>,
    /// What it is for.
    pub description: String,
    /// Whether it is started first.
    pub check: bool,
}

impl Default for AddRequest {
    fn default() -> Self {
        let (name, command, url, openapi, base_url, description) = Default::default();
        let (env, headers, tags) = Default::default();
        Self { name, command, url, openapi, base_url, env, headers, tags, description, check: true }
    }
}

/// The servers that a registry has.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RegistryList {
    /// Where the registry is.
    pub registry: String,
    /// The servers, best first.
    pub servers: Vec<RegistryHit>,
}

/// What a server of a registry asks for.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RegistryOffer {
    /// A free name for it.
    pub name: String,
    /// What will run or be reached: the keys of its entry.
    pub entry: Map<String, Value>,
    /// The values that it needs, and those that it takes besides.
    pub values: Vec<RegistryValue>,
    /// What there is to know about it.
    pub notes: Vec<String>,
}

/// A value of a server of a registry.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RegistryValue {
    /// Its key.
    pub key: String,
    /// What it is for.
    pub what: String,
    /// Whether the server does not work without it.
    pub required: bool,
    /// Whether it is a secret.
    pub secret: bool,
    /// The value if none is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
    /// The only possible values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub choices: Vec<String>,
}

/// A server of a registry, with values.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RegistryRequest {
    /// Its name in the registry.
    pub registry: String,
    /// Its name here.
    #[serde(default)]
    pub name: String,
    /// Values, by key.
    #[serde(default)]
    pub values: BTreeMap<String, String>,
    /// Whether it is started first.
    #[serde(default = "yes")]
    pub check: bool,
}

/// The text of a client's file, as its servers are documented.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportRequest {
    /// The text.
    pub text: String,
    /// The servers in it that are passed over.
    #[serde(default)]
    pub without: Vec<String>,
    /// Whether they are started first.
    #[serde(default = "yes")]
    pub check: bool,
}

fn yes() -> bool {
    true
}

/// How a server did that was tried out.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct TrialView {
    /// Its state; absent for a disabled server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<ServerState>,
    /// How many tools it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<usize>,
    /// The command that signs in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub login: Option<String>,
    /// Why it cannot be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// The likely cause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub likely_cause: Option<Cow<'static, str>>,
    /// The last lines of stderr of a failed server.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stderr: Vec<String>,
}

/// A server that was to be added.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct AddedServer {
    /// Its name as given.
    pub name: String,
    /// Its name in servers.toml; `null` if it is not there.
    pub server: Option<String>,
    /// What was done, in words.
    pub done: String,
    /// Whether it is new.
    pub new: bool,
    /// Omitted or changed settings, and remarks.
    pub notes: Vec<String>,
    /// How it did, if it was started first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tried: Option<TrialView>,
    /// Whether it is unusable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<bool>,
}

/// What became of servers that were to be added.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct AddReport {
    /// Whether servers.toml has them now.
    pub written: bool,
    /// The servers.
    pub servers: Vec<AddedServer>,
    /// Remarks.
    pub notes: Vec<String>,
    /// Where secrets went.
    pub secrets: Vec<String>,
    /// Why the gateway does not use the new servers.toml yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// What became of an edit of servers.toml.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct EditReport {
    /// What was changed.
    pub told: Vec<String>,
    /// Remarks.
    pub notes: Vec<String>,
    /// Where secrets went.
    pub secrets: Vec<String>,
    /// The backup of the file; `null` without one.
    pub backup: Option<PathBuf>,
    /// Whether the file was written.
    pub written: bool,
    /// Why the gateway does not use the new servers.toml yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// What an entry of a server's history is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HistoryKind {
    /// A change of the server's state.
    State,
    /// Lines that the server wrote to stderr.
    Stderr,
}

/// An entry of a server's history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HistoryEntry {
    /// Milliseconds since 1970.
    pub at_ms: u64,
    /// What the entry is about.
    pub kind: HistoryKind,
    /// The state with its error, or the lines.
    pub text: String,
}

/// What happened to a server lately.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ServerHistory {
    /// The entries, oldest first.
    pub entries: Vec<HistoryEntry>,
}

/// The text of a server in servers.toml.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ServerText {
    /// The text.
    pub text: String,
    /// Its first line in the file.
    pub line: usize,
    /// The hash of the file.
    pub hash: String,
    /// The file.
    pub file: PathBuf,
}

/// Another text for a server.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EditRequest {
    /// The text.
    pub text: String,
    /// The hash of the file that it was made from.
    pub hash: String,
}

/// A value that a left-out server needs.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SecretRequest {
    /// The variable.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// Where a value is now.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SecretReport {
    /// Where secrets went.
    pub secrets: Vec<String>,
    /// Why the server still cannot be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// A token for a server that offers no sign-in.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenRequest {
    /// The token.
    pub token: String,
}

/// Where to sign in.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SignInAddress {
    /// The address for the browser.
    pub address: String,
}

/// What an action on a server answers.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ServerAction {
    /// Where to sign in.
    Address(SignInAddress),
    /// What became of servers.toml.
    Edit(EditReport),
}

/// What the rules say about the calls of a tool, and their figures.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ToolUse {
    /// Whether calls run.
    pub policy: Policy,
    /// The rule that says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// The figures of its calls.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub report: Option<ToolReport>,
}

/// A tool in the live page's list of a server's tools.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ToolRow {
    /// The name without its server.
    pub name: Arc<str>,
    /// The full name.
    pub full: Arc<str>,
    /// The first sentence of its description.
    pub description: String,
    /// How much harm it can do.
    pub risk: Risk,
    /// The rules for its calls, and their figures.
    #[serde(flatten)]
    pub use_of: ToolUse,
}

/// The tools of a server on the live page.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ServerTools {
    /// How many tools match.
    pub total: usize,
    /// How many tools the server has.
    pub all: usize,
    /// Those of the page.
    pub tools: Vec<ToolRow>,
}

/// A tool in full on the live page.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ToolCard {
    /// The full name.
    pub name: Arc<str>,
    /// Its server.
    pub server: Arc<str>,
    /// Its title.
    pub title: String,
    /// What it does.
    pub description: String,
    /// How much harm it can do.
    pub risk: Risk,
    /// Whether it only reads.
    pub read_only: bool,
    /// The schema of its params.
    pub input_schema: Value,
    /// The schema of its structured results; `null` without one.
    pub output_schema: Option<Value>,
    /// Other names for it.
    pub aliases: Vec<String>,
    /// Its tags.
    pub tags: Vec<String>,
    /// The state of its server; `null` if the server is ready.
    pub state: Option<ServerState>,
    /// Its own policy in servers.toml, or `null`; absent for a tool of no server of servers.toml.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub own_policy: Option<Option<Policy>>,
    /// The rules for its calls, and their figures.
    #[serde(flatten)]
    pub use_of: ToolUse,
}
