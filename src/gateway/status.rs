//! The status of the servers and of the gateway: one source for `gateway.status`, `nonet status`, the live page and
//! `/metrics`.

use std::{collections::BTreeMap, sync::Arc};

use serde::Serialize;
use serde_json::{Value, json};

use super::{Gateway, gate::Gate, session::Caller};
use crate::{
    clock::millis,
    downstream::{Connection, Era, State, likely_cause},
    metrics::Latency,
};

/// The status of the gateway.
#[derive(Serialize)]
struct GatewayStatus {
    version: &'static str,
    uptime_s: u64,
    servers: Vec<ServerStatus>,
    tools: usize,
    search: SearchStatus,
    calls: u64,
    failures: u64,
    outcomes: BTreeMap<&'static str, u64>,
    tasks_running: usize,
    #[serde(skip_serializing_if = "Latency::is_empty")]
    latency: Latency,
    #[serde(skip_serializing_if = "Option::is_none")]
    mean_us: Option<MeanTimes>,
}

#[derive(Serialize)]
struct SearchStatus {
    by_meaning: bool,
    indexed: usize,
    of: usize,
}

#[derive(Serialize)]
struct MeanTimes {
    gateway: u64,
    server: u64,
}

/// The status of one server. Only known figures are present.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ServerStatus {
    /// The server's name.
    pub name: Arc<str>,
    /// The state in one word; empty if no gateway runs.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub state: &'static str,
    /// The number of published tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<usize>,
    /// The age of the last known list, if no gateway runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listed_s: Option<u64>,
    /// The number of reconnects.
    #[serde(skip_serializing_if = "is_zero")]
    pub restarts: u64,
    /// The number of calls in flight.
    #[serde(skip_serializing_if = "is_zero")]
    pub calls_running: u64,
    /// The negotiated revision of the protocol, or `OpenAPI` with the version of the document.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The era of that revision; absent if the server does not speak MCP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub era: Option<Era>,
    /// The time from the start to the published list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_ms: Option<u64>,
    /// `session` for a server that a session has added.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of: Option<&'static str>,
    /// Why the server is not ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// The age of that error, if no gateway runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_s: Option<u64>,
    /// The command that signs in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub login: Option<String>,
    /// The likely cause of the error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub likely_cause: Option<&'static str>,
    /// What only the live page shows.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub live: Option<LiveStatus>,
}

/// The part of a server's status that only the live page shows.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LiveStatus {
    /// The last lines of stderr.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stderr: Vec<String>,
    /// The calls of all its tools.
    pub calls: u64,
    /// The failed calls among them.
    pub failures: u64,
    /// The time since the server became ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uptime_s: Option<u64>,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl ServerStatus {
    fn of(connection: &Connection) -> Self {
        let state = connection.state();
        let status = Self {
            name: connection.name.clone(),
            state: state.as_str(),
            calls_running: connection.in_flight() as u64,
            of: connection.settings().session.map(|_| "session"),
            ..Self::default()
        };
        match state {
            State::Ready { version, era, took, .. } => {
                Self { version: Some(version), era, started_ms: Some(millis(took)), ..status }
            }
            State::AuthRequired { error, remedy } => {
                Self { login: remedy.command().map(String::from), last_error: Some(error), ..status }
            }
            State::Down { error, .. } => {
                Self { likely_cause: likely_cause(&error), last_error: Some(error), ..status }
            }
            State::Starting | State::Stopped => status,
        }
    }
}

impl Gateway {
    /// Returns the status of the connected servers that a caller may see, by name.
    fn server_statuses(&self, gate: &Gate) -> Vec<(ServerStatus, Arc<Connection>)> {
        let visible = gate.world.connections.iter().filter(|(name, _)| gate.sees(name));
        visible
            .map(|(name, connection)| {
                let tools = gate.catalog().servers().get(name).map_or(0, |entry| entry.tools.len());
                let (tools, restarts) = (Some(tools), self.metrics.restarts(name));
                (ServerStatus { tools, restarts, ..ServerStatus::of(connection) }, connection.clone())
            })
            .collect()
    }

    /// Returns the status of all connected servers.
    pub fn all_servers(&self) -> Vec<ServerStatus> {
        let gate = self.gate(&Caller::default().session);
        self.server_statuses(&gate).into_iter().map(|(status, _)| status).collect()
    }

    /// Returns what `gateway.status` and `nonet check` show.
    pub fn status(&self, caller: &Caller) -> Value {
        let gate = self.gate(&caller.session);
        let servers = self.server_statuses(&gate).into_iter().map(|(status, _)| status);
        self.gateway_status(&gate, servers.collect())
    }

    /// Returns what the live page shows: all servers, those of sessions included.
    pub fn live_status(&self) -> Value {
        let gate = self.gate(&Caller::default().session);
        let world = self.servers.world();
        let of_sessions = world.owners.keys().filter_map(|name| world.connections.get(name));
        let of_sessions = of_sessions.map(|connection| {
            let entry = gate.catalog().servers().get(&connection.name);
            let tools = Some(entry.map_or(0, |entry| entry.tools.len()));
            (ServerStatus { tools, ..ServerStatus::of(connection) }, connection.clone())
        });
        let servers = self.server_statuses(&gate).into_iter().chain(of_sessions);
        let servers = servers.map(|(mut status, connection)| {
            let entry = gate.catalog().servers().get(&status.name);
            let counts = entry.into_iter().flat_map(|entry| &entry.tools).map(|tool| self.metrics.of(tool));
            let (calls, failures) = counts.fold((0, 0), |sum, tool| (sum.0 + tool.0, sum.1 + tool.1));
            let uptime_s = connection.ready_for().map(|time| time.as_secs());
            status.live = Some(LiveStatus { stderr: connection.stderr_tail(), calls, failures, uptime_s });
            if connection.is_held() {
                status.state = "disabled";
            }
            status
        });
        self.gateway_status(&gate, servers.collect())
    }

    fn gateway_status(&self, gate: &Gate, mut servers: Vec<ServerStatus>) -> Value {
        servers.extend(gate.left_out_status());
        servers.sort_by(|a, b| a.name.cmp(&b.name));
        let snapshot = &gate.snapshot;
        let indexing = *self.publisher.indexing().borrow();
        let (calls, failures) = self.metrics.total();
        json!(GatewayStatus {
            version: env!("CARGO_PKG_VERSION"),
            uptime_s: self.uptime().as_secs(),
            servers,
            tools: snapshot.of_servers().filter(|tool| !gate.hides(tool)).count(),
            search: SearchStatus {
                by_meaning: snapshot.index.has_vectors(),
                indexed: indexing.done,
                of: indexing.total,
            },
            calls,
            failures,
            outcomes: self.metrics.outcomes(),
            tasks_running: self.jobs.running(),
            latency: self.metrics.latency(),
            mean_us: self.metrics.mean_us().map(|(gateway, server)| MeanTimes { gateway, server }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_figures_are_in_a_status() {
        let check = |status: ServerStatus, expected: Value| assert_eq!(json!(status), expected);
        let named = || ServerStatus { name: "a".into(), ..ServerStatus::default() };
        check(named(), json!({ "name": "a" }));
        check(
            ServerStatus { state: "ready", tools: Some(0), restarts: 2, era: Some(Era::Session), ..named() },
            json!({ "name": "a", "state": "ready", "tools": 0, "restarts": 2, "era": "legacy" }),
        );
        let live = LiveStatus { calls: 3, uptime_s: Some(4), ..LiveStatus::default() };
        check(
            ServerStatus { live: Some(live), ..named() },
            json!({ "name": "a", "calls": 3, "failures": 0, "uptime_s": 4 }),
        );
    }
}
