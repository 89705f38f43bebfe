//! What the live page's HTTP API takes and returns, beside the types of the other modules.

use std::{borrow::Cow, path::PathBuf, sync::Arc};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    fault::FaultCode,
    is_zero, known,
    question::{Approver, UserVerdict},
    servers::TableFault,
    status::{GatewayStatus, ServeMode},
};

/// Why a request failed. Faults of the gateway have more fields.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ErrorAnswer {
    /// The reason.
    pub error: ErrorReason,
    /// The servers.toml of a gateway whose page is switched off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<PathBuf>,
}

/// The reason of a failure.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ErrorReason {
    /// What is wrong, and what to do.
    pub message: String,
    /// The faults of a text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<TableFault>,
    /// Where a browser signs in, if that would help.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sign_in: Option<String>,
}

impl ErrorAnswer {
    /// Creates an answer with a message.
    pub fn new(message: impl std::fmt::Display) -> Self {
        let error = ErrorReason { message: message.to_string(), faults: Vec::new(), sign_in: None };
        Self { error, config: None }
    }
}

/// What somebody may do on the page. Each includes the ones before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PageRole {
    /// See everything.
    Look,
    /// Answer, trust, stop and restart.
    Operate,
    /// Change the configuration, and call tools.
    Administer,
}

impl PageRole {
    /// Returns its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Look => "look",
            Self::Operate => "operate",
            Self::Administer => "administer",
        }
    }
}

impl std::fmt::Display for PageRole {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Who asks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PageUser {
    /// The name of the person; absent for the token of this machine's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What they may do.
    pub role: PageRole,
    /// What a browser that has signed in sends as `x-nonet-csrf` with each request that is no GET.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub csrf: Option<String>,
}

/// Whether a gateway is ready.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Readiness {
    /// Whether every server is ready or has failed once, and the gateway is not about to stop.
    pub ready: bool,
    /// The servers that are starting.
    pub starting: Vec<String>,
    /// Whether the gateway is about to stop.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub stopping: bool,
    /// What is missing: `redis`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub degraded: Vec<Cow<'static, str>>,
}

/// What a gateway says of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GatewayAbout {
    /// Its id, for the header `x-nonet-gateway`.
    pub id: String,
    /// Its process.
    #[serde(default)]
    pub pid: u32,
    /// The version of Nonet.
    #[serde(default)]
    pub version: String,
    /// How it serves its clients; `null` before it does.
    #[serde(default, deserialize_with = "known")]
    pub serves: Option<ServeMode>,
    /// Its servers.toml.
    #[serde(default)]
    pub config: PathBuf,
    /// The names of its clients.
    #[serde(default)]
    pub clients: Vec<String>,
    /// The time since its start.
    #[serde(default)]
    pub uptime_s: u64,
}

/// The gateways of a user.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct GatewayList {
    /// The gateway that serves the page, then the others, the last started first.
    pub gateways: Vec<GatewayAbout>,
}

/// The sizes of definitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DefinitionSizes {
    /// The bytes of all tools' definitions.
    pub bytes_of_all_tools: usize,
    /// The bytes of the nine meta-tools' definitions.
    pub bytes_of_the_nine: usize,
}

/// What clients were spared since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Savings {
    /// Bytes of definitions that clients did not have to read.
    pub definitions: u64,
    /// Bytes of results that were filtered, or are read only if wanted.
    pub results: u64,
    /// Calls whose params Nonet repaired, and that would have failed.
    pub repaired: u64,
}

/// What the gateway saves its clients.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SavingView {
    /// The sizes of definitions.
    #[serde(flatten)]
    pub sizes: DefinitionSizes,
    /// What clients were spared since the start.
    pub spared: Savings,
}

/// A connected client.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ConnectedClient {
    /// The number of its session.
    pub session: u64,
    /// Its name.
    pub client: String,
    /// Its profile; `null` without one.
    pub profile: Option<String>,
}

/// The state of a gateway for the page.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PageState {
    /// The status; its servers include those of sessions.
    #[serde(flatten)]
    pub status: GatewayStatus,
    /// What the gateway saves its clients.
    pub saving: SavingView,
    /// The servers.toml.
    pub config: PathBuf,
    /// The process.
    pub pid: u32,
    /// The servers that are switched off.
    pub switched_off: Vec<Arc<str>>,
    /// Whether a setup of this page can be undone.
    pub can_undo_setup: bool,
    /// The clients, at most 100.
    pub clients: Vec<ConnectedClient>,
}

/// A decision on an approval.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct DecisionRequest {
    /// The verdict.
    pub decision: UserVerdict,
    /// The answer to a question that is not a yes-or-no question.
    pub answer: Option<Value>,
}

/// A definition to trust, as the page has shown it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TrustRequest {
    /// Its name.
    pub name: String,
    /// Its hash.
    pub hash: String,
}

/// How many definitions are trusted now.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TrustReport {
    /// How many.
    pub trusted: usize,
    /// How many have changed since the page has shown them.
    pub changed_meanwhile: usize,
}

/// A finished call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FinishedCall {
    /// Its number in this gateway.
    pub id: u64,
    /// When it ended, in milliseconds since 1970.
    pub at: u64,
    /// The client's name.
    pub client: String,
    /// The number of the client's session.
    pub session: u64,
    /// The session's profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// The apps around it, the outermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub within: Vec<Arc<str>>,
    /// The tool's full name, else the name as given.
    pub tool: Arc<str>,
    /// Its server; absent if the call failed before it reached a tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<Arc<str>>,
    /// The version of the tool's definition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// `ok`, `tool_error`, or the code of a fault.
    pub outcome: Cow<'static, str>,
    /// Who approved it, if approval was required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approver: Option<Approver>,
    /// What went wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// The size of its params as JSON.
    pub bytes_in: usize,
    /// The size of its result as JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_out: Option<usize>,
    /// Time spent in Nonet.
    pub gateway_us: u64,
    /// Time spent in the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_us: Option<u64>,
}

/// The params and the result of a finished call, without secrets. What is not kept is absent.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct CallView {
    /// Whether params and results are kept at all.
    pub kept: bool,
    /// The params.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub params: Option<String>,
    /// The result, for a person.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// Whether `params` is only their beginning.
    pub params_cut: bool,
    /// Whether `result` is only its beginning.
    pub result_cut: bool,
    /// The call as a command for a terminal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

/// A call by the user of the page.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PageCall {
    /// The tool's params.
    #[serde(default)]
    pub params: Map<String, Value>,
}

/// The answer to a call of the page's user.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct UserCall {
    /// Whether it failed.
    pub failed: bool,
    /// The code of a fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<FaultCode>,
    /// The answer, for a person.
    pub text: String,
}

/// The answer to a question of a client.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AnswerRequest {
    /// The answer.
    pub answer: Value,
}
