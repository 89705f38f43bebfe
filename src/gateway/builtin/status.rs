//! `gateway.status`: the servers and the gateway itself.

use std::collections::BTreeMap;

use futures::FutureExt;
use serde::Serialize;
use serde_json::{Value, json};

use super::{Access, OwnTool};
use crate::{
    aliases::Aliases,
    clock::millis,
    downstream::{Connection, Era, State, cause},
    gateway::{Gateway, call::text_result, session::Caller},
    metrics::Latency,
};

pub(super) const TOOL: OwnTool = OwnTool {
    name: "status",
    title: "State of the gateway",
    description: "Shows every server behind the gateway with its state, protocol version, last error and number of tools, and the background tasks, kept results and version of the gateway.",
    properties: || json!({}),
    required: &[],
    access: Access::ReadOnly,
    aliases: Aliases::NONE,
    run: |gateway, caller, _| {
        async move {
            let mut status = gateway.status(caller);
            if let Some(kept) = gateway.kept_counts().await {
                status["kept"] = json!({ "entries": kept.entries, "bytes": kept.bytes });
            }
            Ok(text_result(status.to_string()))
        }
        .boxed()
    },
};

/// The gateway as `gateway.status` and `nonet check` show it.
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
    #[serde(skip_serializing_if = "is_empty")]
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

/// One server.
#[derive(Default, Serialize)]
pub(in crate::gateway) struct ServerStatus {
    pub name: String,
    pub state: &'static str,
    pub tools: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restarts: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls_running: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub era: Option<Era>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// The command that signs in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub login: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub likely_cause: Option<String>,
}

impl ServerStatus {
    fn new(connection: &Connection, tools: usize, restarts: u64) -> Self {
        let state = connection.state();
        let in_flight = connection.in_flight();
        let status = Self {
            name: connection.name.to_string(),
            state: state.as_str(),
            tools,
            restarts: (restarts > 0).then_some(restarts),
            calls_running: (in_flight > 0).then_some(in_flight),
            ..Self::default()
        };
        match state {
            State::Ready { version, era, took, .. } => {
                Self { version: Some(version), era: Some(era), started_ms: Some(millis(took)), ..status }
            }
            State::AuthRequired { error, remedy } => {
                Self { login: remedy.command().map(String::from), last_error: Some(error), ..status }
            }
            State::Down { error, .. } => Self {
                likely_cause: cause::likely(&error).map(Into::into),
                last_error: Some(error),
                ..status
            },
            State::Starting | State::Stopped => status,
        }
    }
}

fn is_empty(latency: &Latency) -> bool {
    latency.gateway.is_none() && latency.server.is_none() && latency.search.is_none()
}

impl Gateway {
    /// What `gateway.status` and `nonet check` show.
    pub fn status(&self, caller: &Caller) -> Value {
        let gate = self.gate(&caller.session);
        let snapshot = &gate.snapshot;
        let listed = |name: &str| gate.catalog().servers().get(name).map_or(0, |entry| entry.tools.len());
        let seen = gate.world.connections.iter().filter(|(name, _)| gate.sees(name));
        let mut servers: Vec<ServerStatus> = seen
            .map(|(name, one)| ServerStatus::new(one, listed(name), self.metrics.restarts(name)))
            .collect();
        servers.extend(gate.left_out_status());
        servers.sort_by(|a, b| a.name.cmp(&b.name));
        let indexing = *self.publisher.indexing().borrow();
        let (calls, failures) = self.metrics.total();
        json!(GatewayStatus {
            version: env!("CARGO_PKG_VERSION"),
            uptime_s: self.uptime().as_secs(),
            servers,
            tools: snapshot.of_servers().count(),
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
