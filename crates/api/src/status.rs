//! The status of the gateway and of its servers, for `gateway.status`, `nonet status`, `nonet check` and the
//! live page.

use std::{borrow::Cow, collections::BTreeMap, path::PathBuf, sync::Arc};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    all_known, is_zero, known,
    work::{KeptCounts, TaskSummary},
};

/// The status of a gateway.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct GatewayStatus {
    /// The version of Nonet.
    pub version: Cow<'static, str>,
    /// The time since the start.
    pub uptime_s: u64,
    /// What the refused servers.toml would lose.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_refused: Option<Vec<String>>,
    /// The servers, by name.
    #[serde(deserialize_with = "all_known")]
    pub servers: Vec<ServerStatus>,
    /// The number of published tools.
    pub tools: usize,
    /// What the search can do.
    pub search: SearchStatus,
    /// The number of calls.
    pub calls: u64,
    /// The failed calls among them.
    pub failures: u64,
    /// The calls by outcome: `ok`, `tool_error` or the code of a fault.
    pub outcomes: BTreeMap<Cow<'static, str>, u64>,
    /// The number of running tasks.
    pub tasks_running: usize,
    /// The configured limits on calls.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rates: Vec<RateStatus>,
    /// The audit log.
    #[serde(default, deserialize_with = "known", skip_serializing_if = "Option::is_none")]
    pub audit: Option<AuditStatus>,
    /// The state that the replicas of this gateway share.
    #[serde(default, deserialize_with = "known", skip_serializing_if = "Option::is_none")]
    pub cluster: Option<SharedStore>,
    /// How long calls and searches take.
    #[serde(default, skip_serializing_if = "Latency::is_empty")]
    pub latency: Latency,
    /// The mean times of calls, in microseconds.
    #[serde(default, deserialize_with = "known", skip_serializing_if = "Option::is_none")]
    pub mean_us: Option<MeanTimes>,
    /// Which revisions of the protocol the connected clients speak; only for callers that may see everything.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub protocols: Vec<ClientProtocol>,
    /// How many results are kept; only in `gateway.status`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept: Option<KeptCounts>,
}

/// What the search can do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SearchStatus {
    /// Whether it finds by meaning.
    pub by_meaning: bool,
    /// Whether the model is in memory; otherwise the next search by meaning loads it.
    pub model_loaded: bool,
    /// How many tools are indexed by meaning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub indexed: Option<usize>,
    /// How many tools there are to index.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of: Option<usize>,
}

/// Mean times of calls, in microseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MeanTimes {
    /// In Nonet.
    pub gateway: u64,
    /// In servers.
    pub server: u64,
}

/// The state of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ServerState {
    /// It is not connected yet, for the first time.
    Starting,
    /// It is connected and listed.
    Ready,
    /// It cannot be reached.
    Down,
    /// It requires sign-in.
    AuthRequired,
    /// It is not started.
    Stopped,
    /// The user has stopped it on the live page.
    Held,
    /// The configuration leaves it out because of a fault.
    NeedsConfig,
}

impl ServerState {
    /// Returns the state as answers show it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Down => "down",
            Self::AuthRequired => "auth_required",
            Self::Stopped => "stopped",
            Self::Held => "held",
            Self::NeedsConfig => "needs_config",
        }
    }
}

/// The era of the protocol that a server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Era {
    /// Up to 2025-11-25: `initialize` and a session.
    #[serde(rename = "legacy")]
    Session,
    /// From 2026-07-28: `server/discover`, metadata in each request.
    #[serde(rename = "modern")]
    Stateless,
}

/// A revision of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum ProtocolRevision {
    /// HTTP+SSE.
    #[serde(rename = "2024-11-05")]
    V20241105,
    /// Streamable HTTP, sign-ins.
    #[serde(rename = "2025-03-26")]
    V20250326,
    /// Structured content, elicitation.
    #[serde(rename = "2025-06-18")]
    V20250618,
    /// Tasks, elicitation by URL; the last one with a handshake.
    #[serde(rename = "2025-11-25")]
    V20251125,
    /// Without sessions.
    #[serde(rename = "2026-07-28")]
    V20260728,
}

impl ProtocolRevision {
    /// Returns the revision as the protocol writes it, which sorts like the revisions.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V20241105 => "2024-11-05",
            Self::V20250326 => "2025-03-26",
            Self::V20250618 => "2025-06-18",
            Self::V20251125 => "2025-11-25",
            Self::V20260728 => "2026-07-28",
        }
    }
}

/// How many clients of one kind are connected, and which revision of the protocol they speak.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct ClientProtocol {
    /// The client, as it names itself.
    pub client: String,
    /// The revision.
    pub protocol: String,
    /// The sessions with this client and revision.
    pub sessions: usize,
}

/// The status of one server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ServerStatus {
    /// The server's name.
    pub name: Arc<str>,
    /// The state; absent if no gateway runs.
    #[serde(default, deserialize_with = "known", skip_serializing_if = "Option::is_none")]
    pub state: Option<ServerState>,
    /// The number of published tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<usize>,
    /// The number of tools with a user interface that clients do not get.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub uis_left_out: u64,
    /// The age of the last known list, if no gateway runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listed_s: Option<u64>,
    /// The number of reconnects.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub restarts: u64,
    /// The number of calls in flight.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub calls_running: u64,
    /// The negotiated revision of the protocol, or `OpenAPI` with the version of the document.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The era of that revision; absent if the server does not speak MCP.
    #[serde(default, deserialize_with = "known", skip_serializing_if = "Option::is_none")]
    pub era: Option<Era>,
    /// The time from the start to the published list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_ms: Option<u64>,
    /// `session` for a server that a session has added.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of: Option<Cow<'static, str>>,
    /// The replica that runs the server's program for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runs_at: Option<String>,
    /// Whether the server is in a sandbox.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub sandboxed: bool,
    /// Why the server is not ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// The age of the error, if no gateway runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_s: Option<u64>,
    /// The command that signs in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub login: Option<String>,
    /// Whether it needs a token in its `headers`, because nothing offers a sign-in.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub needs_token: bool,
    /// The tools, or the server itself, that get no calls for a while because calls got no answer.
    #[serde(default, deserialize_with = "known", skip_serializing_if = "Option::is_none")]
    pub breaker: Option<BreakerStatus>,
    /// The likely cause of the error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub likely_cause: Option<Cow<'static, str>>,
    /// What only the live page shows.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub live: Option<LiveStatus>,
    /// The variables without a value that keep the server out; only on the live page.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
    /// The variables that the server says it lacks; only in `nonet check`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing_variables: Vec<String>,
}

impl ServerStatus {
    /// Creates the status of a server of which nothing is known.
    pub fn new(name: Arc<str>) -> Self {
        Self {
            name,
            state: None,
            tools: None,
            uis_left_out: 0,
            listed_s: None,
            restarts: 0,
            calls_running: 0,
            version: None,
            era: None,
            started_ms: None,
            of: None,
            runs_at: None,
            sandboxed: false,
            last_error: None,
            failed_s: None,
            login: None,
            needs_token: false,
            breaker: None,
            likely_cause: None,
            live: None,
            missing: Vec::new(),
            missing_variables: Vec::new(),
        }
    }
}

/// The part of a server's status that only the live page shows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LiveStatus {
    /// The last lines of stderr.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stderr: Vec<String>,
    /// Tools with noticeable definitions, and the reasons.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub marks: Vec<ToolMark>,
    /// The calls of all its tools.
    pub calls: u64,
    /// The failed calls among them.
    pub failures: u64,
    /// The time since the server became ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uptime_s: Option<u64>,
}

/// What is noticeable in a tool's definition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ToolMark {
    /// The tool's full name.
    pub tool: Arc<str>,
    /// What was found.
    pub what: Cow<'static, str>,
    /// The place in the definition.
    #[serde(rename = "where")]
    pub place: String,
}

/// What a breaker cuts off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BreakerScope {
    /// The whole server.
    Server,
    /// Some of its tools.
    Tools,
}

/// What is cut off at the moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BreakerStatus {
    /// The server, or tools with their names.
    pub open: BreakerScope,
    /// The tools that are cut off, by the server's own names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
    /// When a call may try again.
    pub retry_after_ms: u64,
    /// Why the last call failed.
    pub last_error: String,
}

/// A rule that limits calls.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct RateStatus {
    /// The key of the rule.
    pub rule: String,
    /// The rate, as the configuration writes it.
    pub rate: String,
    /// How many calls it has refused.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub refused: u64,
}

/// The state of the audit log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AuditStatus {
    /// `ok`, or `failing`.
    pub state: Cow<'static, str>,
    /// The file with the last lines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// The lines of this gateway.
    pub lines: u64,
    /// The calls without a line.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost: u64,
    /// Why lines cannot be written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Where copies of the lines go.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exports: Vec<AuditExportStatus>,
}

/// The state of the copies of the audit log at one place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AuditExportStatus {
    /// Its name in `[audit.export]`.
    pub name: String,
    /// `ok`, `failing`, or `elsewhere` while another gateway exports for all of the folder.
    pub state: Cow<'static, str>,
    /// The lines that this gateway has exported.
    pub lines: u64,
    /// The bytes of lines that wait in the files.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub waiting_bytes: u64,
    /// The lines whose files were removed before they were exported.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost: u64,
    /// Why lines cannot be exported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The store that a gateway's replicas share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SharedStore {
    /// The kind of store: `redis`.
    pub engine: Cow<'static, str>,
    /// Its host and port.
    pub at: String,
    /// The beginning of its keys. Gateways with the same Redis and prefix are replicas of each other.
    pub prefix: String,
    /// The name of this replica.
    pub name: String,
    /// The replicas that were alive a moment ago, including this one; absent while this one does not serve
    /// over HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<Vec<ReplicaStatus>>,
    /// Why it cannot be used at the moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// A replica of a gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReplicaStatus {
    /// The name that the replica was given, by default the host's name with a number.
    pub name: String,
    /// The address at which the others reach it.
    pub address: String,
    /// The version of Nonet that it runs; empty if it is not known.
    pub version: String,
    /// Whether it is about to stop.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub leaving: bool,
    /// Whether its configuration differs from this replica's.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub other_config: bool,
}

/// Latencies; a part without observations is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Latency {
    /// Of calls, in Nonet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<Quantiles>,
    /// Of calls, in servers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<Quantiles>,
    /// Of searches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub search: Option<Quantiles>,
}

impl Latency {
    /// Returns whether nothing was observed.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Two quantiles, as exact as the buckets allow. Times above all buckets count as the highest bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Quantiles {
    /// Half of the times are at most this long, in microseconds.
    pub p50_us: u64,
    /// Nineteen of twenty are at most this long, in microseconds.
    pub p95_us: u64,
}

/// How a gateway serves its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ServeMode {
    /// One client, on stdin and stdout.
    Stdio,
    /// Clients over HTTP.
    Http,
    /// The clients of this machine, on a socket.
    Shared,
    /// The live page only.
    Page,
}

impl ServeMode {
    /// Returns the mode as answers show it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stdio => "stdio",
            Self::Http => "http",
            Self::Shared => "shared",
            Self::Page => "page",
        }
    }
}

/// The status of a gateway for `nonet status`. The user of this machine also sees the process and the work of
/// all clients.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProcessStatus {
    /// The status.
    #[serde(flatten)]
    pub gateway: GatewayStatus,
    /// The process and the work of all clients.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessWork>,
}

/// The process of a gateway, and the work of all clients.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProcessWork {
    /// The process.
    pub pid: u32,
    /// How it serves its clients; `null` before it does.
    #[serde(default, deserialize_with = "known")]
    pub serves: Option<ServeMode>,
    /// The servers.toml.
    #[serde(default)]
    pub file: PathBuf,
    /// The number of clients.
    #[serde(default)]
    pub clients: usize,
    /// The running tasks.
    #[serde(default, deserialize_with = "all_known")]
    pub tasks: Vec<TaskSummary>,
}
