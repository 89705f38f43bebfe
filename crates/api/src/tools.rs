//! Tools in answers: the hits of a search, categories and their pages, one tool in full.

use std::{borrow::Cow, sync::Arc};

use nonet_search::{Confidence, Explanation};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    fault::{Fault, NextStep},
    is_zero,
    status::ServerState,
};

/// The category of skills.
pub const SKILLS: &str = "skills";
/// The category of apps.
pub const APPS: &str = "apps";

/// How much harm a tool can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Risk {
    /// The tool only reads.
    Low,
    /// The tool changes things reversibly, or its server does not say.
    Medium,
    /// The tool can destroy.
    High,
}

/// What happens when a tool is called, in order of strictness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// The call runs.
    Allow,
    /// The user is asked first.
    Approve,
    /// The call never runs.
    Deny,
}

/// What happens when a server changes a definition that was trusted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnChange {
    /// It is told, and the new definition counts.
    #[default]
    Tell,
    /// It is told, the trusted definition is shown, and calls fail until the user trusts the new one
    /// (`nonet trust`).
    Hold,
    /// It is told, and the tool is hidden until the user trusts the new one.
    Deny,
}

/// What an entry of the catalogue is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
    pub fn of(server: &str) -> Self {
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

    fn is_tool(&self) -> bool {
        *self == Self::Tool
    }
}

/// A tool in a list: a hit of a search, or a line of a category's page.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ToolLine {
    /// The full name.
    pub name: String,
    /// What it is; absent for a tool.
    #[serde(skip_serializing_if = "EntryKind::is_tool")]
    pub kind: EntryKind,
    /// What it does.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// The schema of its params.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_schema: Option<Value>,
    /// Its params in one line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
    /// An example call, for skills and apps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call: Option<NextStep>,
    /// How much harm it can do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub risk: Option<Risk>,
    /// Its state; absent if it is ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<ToolState>,
    /// The score.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub score: Option<f64>,
    /// The same tool on other servers, by full names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<String>,
    /// Why it has its rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub explain: Option<RankExplanation>,
}

/// Why a hit has its rank.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RankExplanation {
    /// What the search says.
    #[serde(flatten)]
    pub search: Explanation,
    /// The words of the searches after which it was called.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub learned_from: Vec<String>,
    /// Its configured priority.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<f32>,
    /// Why it comes before an equal hit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tie: Option<TieBreak>,
}

/// Why a hit comes before an equal one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TieBreak {
    /// Its server is ready.
    State,
    /// Its calls cost less.
    Cost,
}

/// A fact that may answer a search.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RememberedFact {
    /// Its id.
    pub id: String,
    /// Its text.
    pub content: String,
}

/// The answer to a search.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct SearchAnswer {
    /// The hits, best first.
    pub results: Vec<ToolLine>,
    /// What the hits are worth; absent if nothing was searched for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confidence: Option<Confidence>,
    /// A fact that may answer the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remembered: Option<RememberedFact>,
    /// Servers of the registry that may have a fitting tool, if the configuration wants them named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub registry: Vec<RegistryHit>,
    /// What to do next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// A server of the registry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RegistryHit {
    /// Its name there.
    pub name: String,
    /// Its latest version.
    pub version: String,
    /// What it does; text of its author.
    pub description: String,
    /// How it runs: `npm`, `pypi`, `oci`, `nuget`, `mcpb` or `remote`.
    pub runs_as: Vec<String>,
    /// The command with which the user adds it.
    pub add: String,
    /// The values that it needs; only in `gateway.find_server`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<String>,
    /// The call that asks the user to add it, if it needs no values; only in `gateway.find_server`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_step: Option<NextStep>,
}

/// A category of tools.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CategoryLine {
    /// Its name.
    pub name: String,
    /// What its tools do.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// How many tools it has.
    pub tool_count: usize,
    /// The state of its server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<ServerState>,
    /// Why it cannot be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// A task of the to-do list.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct OpenTask {
    /// Its id.
    pub task_id: String,
    /// What is to be done.
    pub subject: String,
    /// Whether it is in progress.
    pub status: TodoState,
}

/// The state of a task of the to-do list. Open tasks are listed in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TodoState {
    /// The task is being worked on.
    InProgress,
    /// The task has not been started.
    Pending,
    /// The task cannot continue for now.
    Blocked,
    /// The task is done.
    Completed,
}

impl TodoState {
    /// Returns the state as answers show it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Pending => "pending",
            Self::Blocked => "blocked",
            Self::Completed => "completed",
        }
    }
}

/// All categories, and the work that is left.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CategoryList {
    /// The categories.
    pub categories: Vec<CategoryLine>,
    /// How many tools there are: of servers, and of Nonet itself.
    pub total_tools: usize,
    /// How to add the first server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The goal of the work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goal: Option<String>,
    /// The first open tasks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub open_tasks: Vec<OpenTask>,
    /// How many tasks are open, if not all are here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_tasks_total: Option<usize>,
    /// How many facts are remembered.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub remembered_facts: usize,
}

/// One page of tools.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ToolPage {
    /// The category; absent for a list across categories.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub category: Option<String>,
    /// The page, from 1.
    pub page: usize,
    /// Tools per page.
    pub page_size: usize,
    /// How many tools there are on all pages.
    pub total: usize,
    /// The tools.
    pub tools: Vec<ToolLine>,
    /// The state of the category's server; absent if it is ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<ServerState>,
    /// The instructions of the category's server, if they are new to the session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
}

/// What `search_tools` answers: hits; without words, the categories or one page of tools.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Found {
    /// The answer to words.
    Hits(SearchAnswer),
    /// The categories.
    Categories(CategoryList),
    /// The tools that pass the filters.
    Page(ToolPage),
}

/// The cost of a call, judged by the latest calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Cost {
    /// Less than a second on average, and at most one in ten failed.
    Low,
    /// Everything else, including unknown cost.
    #[default]
    Medium,
    /// Ten seconds or more on average, or at least half of the calls failed.
    High,
}

/// A tool's figures as a caller sees them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ToolReport {
    /// The number of calls by all owners.
    pub calls: u64,
    /// How many of the calls failed.
    pub failures: u64,
    /// The mean duration of the last successful calls, in milliseconds, at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_ms: Option<u64>,
    /// The 95th percentile of the same durations, in milliseconds, at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p95_ms: Option<u64>,
    /// The cost judged by the last calls; absent if there are too few.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
    /// The owner's last error; absent if it came from another version of the tool's definition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<ErrorReport>,
}

/// The last error as the same caller sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorReport {
    /// `tool_error` for the server's own `isError`, or the code of a fault.
    pub code: String,
    /// The error message, shortened and without secrets.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// In RFC 3339.
    pub at: String,
}

/// Something noticeable in a text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FoundMark {
    /// What was found.
    pub what: Cow<'static, str>,
    /// Its place.
    #[serde(rename = "where")]
    pub place: String,
    /// How the text begins.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
}

/// The state of a definition relative to the trusted one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DefinitionState {
    /// It differs from the trusted one.
    Changed,
    /// No definition of this name was trusted.
    New,
}

impl DefinitionState {
    /// Returns the state as one word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Changed => "changed",
            Self::New => "new",
        }
    }
}

/// The state of a tool: of its server, or of its definition if the user has not trusted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ToolState {
    /// The state of its server.
    Server(ServerState),
    /// The state of its definition.
    Definition(DefinitionState),
}

impl ToolState {
    /// Returns the state as answers show it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Server(state) => state.as_str(),
            Self::Definition(state) => state.as_str(),
        }
    }
}

/// A definition that the user has not trusted.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct UntrustedDefinition {
    /// Its state.
    pub state: DefinitionState,
    /// The consequence for calls.
    pub on_change: OnChange,
    /// The key of the configuration that sets the consequence.
    pub rule: String,
    /// The differences from the trusted one; contains text from the server.
    pub difference: String,
    /// The command that trusts it.
    pub trust: String,
}

/// A tool in full.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ToolView {
    /// The full name.
    pub name: Arc<str>,
    /// What it is; absent for a tool.
    #[serde(default, skip_serializing_if = "EntryKind::is_tool")]
    pub kind: EntryKind,
    /// Its title.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub title: String,
    /// What it does.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// The schema of its params.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub input_schema: Value,
    /// The schema of its structured results.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub output_schema: Value,
    /// The server's hints.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub annotations: Value,
    /// How much harm it can do.
    pub risk: Risk,
    /// Its category.
    pub category: Arc<str>,
    /// The server of a prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<Arc<str>>,
    /// Other names for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// Its tags.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Example calls, or the examples of its schema.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub examples: Value,
    /// The version of its definition.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// An example call.
    pub call: NextStep,
    /// Whether the user is asked before each call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<Cow<'static, str>>,
    /// Which tool has its bare name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// What is wrong with its schema.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
    /// Its state.
    pub state: ToolState,
    /// The change of its definition that the user has not trusted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub change: Option<UntrustedDefinition>,
    /// The figures of its calls.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub report: Option<ToolReport>,
    /// The instructions of its server, if they are new to the session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// What is noticeable in its definition.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<FoundMark>,
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// What `get_tool` answers.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Described {
    /// Several tools.
    Many {
        /// The tools, as they were named.
        tools: Vec<DescribedTool>,
    },
    /// One tool.
    One(Box<ToolView>),
}

/// A tool, or why it is not found.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum DescribedTool {
    /// The tool.
    Tool(Box<ToolView>),
    /// Why there is none.
    Unknown {
        /// The fault.
        error: Box<Fault>,
        /// The name.
        name: String,
    },
}

/// A tool in the list of all tools.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ListedTool {
    /// The full name.
    pub name: Arc<str>,
    /// The name under which clients see it.
    pub wire_name: Arc<str>,
    /// Its server, or its category.
    pub server: Arc<str>,
    /// What it does.
    pub description: String,
    /// Its name and params in one line.
    pub signature: String,
    /// How much harm it can do.
    pub risk: Risk,
    /// The version of its definition.
    pub version: String,
}

/// All tools that a caller sees.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ToolList {
    /// How many tools there are.
    pub total: usize,
    /// The tools.
    pub tools: Vec<ListedTool>,
    /// The skills.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skills: Vec<ListedTool>,
    /// The apps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub apps: Vec<ListedTool>,
}
