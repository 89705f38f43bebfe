//! Counts calls, bytes, times and restarts, and shows them: a few figures for `gateway.status`, all of
//! them as a page for Prometheus.
//!
//! [`Metrics::record`] runs once per call: it finds the tool's entry, which holds all of its counters, and
//! adds to atomics there. Labels are built when the page is. Every label is a configured or catalogued name,
//! or a code from the source, never a client's text. This room does not read the gateway: figures that it
//! cannot count itself are passed in through [`MetricsNow`].

mod histogram;
mod page;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use dashmap::DashMap;
use nonet_api::{
    page::Savings,
    status::{Latency, Quantiles},
};
use parking_lot::Mutex;

pub use self::page::{CONTENT_TYPE, ClusterNow, MetricsNow, ServerNow};
use self::{
    histogram::{Histogram, HistogramReading},
    page::MetricsPage,
};

/// How many tools are counted separately. Tools called for the first time after that are counted together, by
/// server.
const MAX_TOOLS: usize = 10_000;
/// The label for tools beyond [`MAX_TOOLS`].
const OTHER: &str = "_other";

/// Bucket bounds for times in Nonet, in microseconds.
const GATEWAY_US: &[u64] =
    &[25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000];
/// Bucket bounds for times in a server, up to five minutes.
const SERVER_US: &[u64] = &[
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    30_000_000,
    60_000_000,
    300_000_000,
];
/// Bucket bounds for searches.
const SEARCH_US: &[u64] = &[
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000,
];

/// One finished call.
#[derive(Clone, Copy, Debug)]
pub struct CallRecord<'a> {
    /// The server of the tool.
    pub server: &'a Arc<str>,
    /// The tool's own name.
    pub tool: &'a Arc<str>,
    /// `ok`, `tool_error` (the server's own `isError`), or the code of a fault.
    pub outcome: &'static str,
    /// The size of its params as JSON, in bytes.
    pub bytes_in: usize,
    /// The size of its result as JSON, in bytes, before it was shortened.
    pub bytes_out: usize,
    /// Time spent in Nonet.
    pub in_gateway: Duration,
    /// Time spent in the server; zero if no server was called, and then the call is left out of servers'
    /// times.
    pub in_server: Duration,
}

#[derive(Debug, Default)]
struct SavingsCounts {
    /// How many clients have read a list of tools, and the bytes of these lists.
    lists: AtomicU64,
    listed: AtomicU64,
    results: AtomicU64,
    repaired: AtomicU64,
}

/// The server, the kind of finding, and the action taken.
type FoundKey = (Arc<str>, &'static str, &'static str);

/// All counters.
#[derive(Debug)]
pub struct Metrics {
    /// By full name; for tools beyond [`MAX_TOOLS`] by the name of the server, which no full name equals.
    tools: DashMap<Arc<str>, Arc<ToolCounts>>,
    servers: DashMap<Arc<str>, Arc<ServerCounts>>,
    refused: OutcomeCounts,
    /// Secrets and instructions found in transit.
    found: Mutex<BTreeMap<FoundKey, u64>>,
    gateway: Histogram,
    search: Histogram,
    spared: SavingsCounts,
}

/// The outcome of a call that waits for the user, which is not a failure.
const ASKED: &str = "needs_approval";

impl Default for Metrics {
    fn default() -> Self {
        Self {
            tools: DashMap::new(),
            servers: DashMap::new(),
            refused: OutcomeCounts::default(),
            found: Mutex::default(),
            gateway: Histogram::new(GATEWAY_US),
            search: Histogram::new(SEARCH_US),
            spared: SavingsCounts::default(),
        }
    }
}

impl Metrics {
    /// Counts one call of the tool with that full name. The name and those in `call` are the catalogue's.
    pub fn record(&self, full: &Arc<str>, call: &CallRecord<'_>) {
        let tool = self.tool(full, call);
        tool.outcomes.add(call.outcome);
        tool.server.bytes_in.fetch_add(call.bytes_in as u64, Relaxed);
        tool.server.bytes_out.fetch_add(call.bytes_out as u64, Relaxed);
        self.gateway.observe(call.in_gateway);
        if !call.in_server.is_zero() {
            tool.server.time.observe(call.in_server);
        }
    }

    /// Counts a call that was refused before a tool was found.
    pub fn refused(&self, outcome: &'static str) {
        self.refused.add(outcome);
    }

    /// Counts a secret or instructions in transit to or from a server. `done` is the action taken.
    pub fn found(&self, server: &Arc<str>, kind: &'static str, done: &'static str) {
        *self.found.lock().entry((server.clone(), kind, done)).or_default() += 1;
    }

    /// Counts the first list of tools that a client reads, of this size in bytes.
    pub fn listed(&self, bytes: usize) {
        self.spared.lists.fetch_add(1, Relaxed);
        self.spared.listed.fetch_add(bytes as u64, Relaxed);
    }

    /// Counts bytes of a result that were filtered out, or are read only if wanted.
    pub fn spared_of_result(&self, bytes: usize) {
        self.spared.results.fetch_add(bytes as u64, Relaxed);
    }

    /// Counts a call that would have failed had its params not been repaired.
    pub fn repaired(&self) {
        self.spared.repaired.fetch_add(1, Relaxed);
    }

    /// Returns what clients were spared since the start. `definitions` is the size of all definitions in
    /// bytes.
    pub fn spared(&self, definitions: usize) -> Savings {
        let SavingsCounts { lists, listed, results, repaired } = &self.spared;
        let all = lists.load(Relaxed).saturating_mul(definitions as u64);
        Savings {
            definitions: all.saturating_sub(listed.load(Relaxed)),
            results: results.load(Relaxed),
            repaired: repaired.load(Relaxed),
        }
    }

    /// Counts a search and its duration.
    pub fn searched(&self, took: Duration) {
        self.search.observe(took);
    }

    /// Counts a server's restart, or its reconnection after a loss.
    pub fn restarted(&self, server: &Arc<str>) {
        self.server(server).restarts.fetch_add(1, Relaxed);
    }

    /// Returns how many times a server was lost and reached again.
    pub fn restarts(&self, server: &str) -> u64 {
        self.servers.get(server).map_or(0, |server| server.restarts.load(Relaxed))
    }

    /// Returns one tool's calls and failures, by its full name.
    pub fn of(&self, tool: &str) -> (u64, u64) {
        self.tools.get(tool).map_or((0, 0), |tool| tool.outcomes.calls_and_failures())
    }

    /// Returns the total of calls and failures. Includes calls refused before a tool was found, as in
    /// [`Metrics::outcomes`].
    pub fn total(&self) -> (u64, u64) {
        self.tools.iter().fold(self.refused.calls_and_failures(), |(all_calls, all_failures), tool| {
            let (calls, failures) = tool.outcomes.calls_and_failures();
            (all_calls + calls, all_failures + failures)
        })
    }

    /// Returns the number of calls by outcome, including calls refused before a tool was found.
    pub fn outcomes(&self) -> BTreeMap<&'static str, u64> {
        let mut all = self.refused.counts();
        for tool in &self.tools {
            for (outcome, count) in tool.outcomes.counts() {
                *all.entry(outcome).or_default() += count;
            }
        }
        all
    }

    /// Returns the mean time of a call in Nonet, and in the server for calls that reached one, in
    /// microseconds.
    pub fn mean_us(&self) -> Option<(u64, u64)> {
        let gateway = self.gateway.read().mean_us()?;
        Some((gateway, self.in_servers().mean_us().unwrap_or_default()))
    }

    /// Returns the medians and 95th percentiles.
    pub fn latency(&self) -> Latency {
        let spread = |times: HistogramReading| {
            times
                .quantile_us(50)
                .zip(times.quantile_us(95))
                .map(|(p50_us, p95_us)| Quantiles { p50_us, p95_us })
        };
        Latency {
            gateway: spread(self.gateway.read()),
            server: spread(self.in_servers()),
            search: spread(self.search.read()),
        }
    }

    /// Returns the page for Prometheus, in OpenMetrics text format: serve it as [`CONTENT_TYPE`].
    pub fn render(&self, now: MetricsNow) -> String {
        // A server that was never lost has a zero, so that the first restart shows up as one.
        for name in now.servers.keys() {
            self.server(name);
        }
        let mut calls = BTreeMap::new();
        for tool in &self.tools {
            for (outcome, count) in tool.outcomes.counts() {
                let labels = (tool.server.name.clone(), tool.name.clone(), outcome);
                *calls.entry(labels).or_default() += count;
            }
        }
        let servers = self.servers.iter().map(|server| (server.name.clone(), server.value().clone()));
        MetricsPage {
            calls,
            refused: self.refused.counts(),
            found: self.found.lock().clone(),
            servers: servers.collect(),
            gateway: self.gateway.read(),
            search: self.search.read(),
            now,
        }
        .render()
    }

    fn in_servers(&self) -> HistogramReading {
        let mut all = Histogram::new(SERVER_US).read();
        for server in &self.servers {
            all.add(&server.time.read());
        }
        all
    }

    fn tool(&self, full: &Arc<str>, call: &CallRecord<'_>) -> Arc<ToolCounts> {
        if let Some(tool) = self.tools.get(full) {
            return tool.clone();
        }
        let (key, name) = if self.tools.len() < MAX_TOOLS {
            (full, call.tool.clone())
        } else {
            (call.server, OTHER.into())
        };
        let server = self.server(call.server);
        let new = || Arc::new(ToolCounts { name, server, outcomes: OutcomeCounts::default() });
        self.tools.entry(key.clone()).or_insert_with(new).clone()
    }

    fn server(&self, name: &Arc<str>) -> Arc<ServerCounts> {
        if let Some(server) = self.servers.get(name) {
            return server.clone();
        }
        self.servers.entry(name.clone()).or_insert_with(|| Arc::new(ServerCounts::new(name.clone()))).clone()
    }
}

/// One tool's counters.
#[derive(Debug)]
struct ToolCounts {
    name: Arc<str>,
    server: Arc<ServerCounts>,
    outcomes: OutcomeCounts,
}

/// One server's counters.
#[derive(Debug)]
struct ServerCounts {
    name: Arc<str>,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    restarts: AtomicU64,
    time: Histogram,
}

impl ServerCounts {
    fn new(name: Arc<str>) -> Self {
        Self {
            name,
            bytes_in: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
            restarts: AtomicU64::new(0),
            time: Histogram::new(SERVER_US),
        }
    }
}

/// Counts by outcome. Nearly everything ends with `ok`, which takes no lock.
#[derive(Debug, Default)]
struct OutcomeCounts {
    ok: AtomicU64,
    others: Mutex<BTreeMap<&'static str, u64>>,
}

impl OutcomeCounts {
    fn add(&self, outcome: &'static str) {
        if outcome == "ok" {
            self.ok.fetch_add(1, Relaxed);
        } else {
            *self.others.lock().entry(outcome).or_default() += 1;
        }
    }

    fn counts(&self) -> BTreeMap<&'static str, u64> {
        let mut counts = self.others.lock().clone();
        let ok = self.ok.load(Relaxed);
        if ok > 0 {
            counts.insert("ok", ok);
        }
        counts
    }

    fn calls_and_failures(&self) -> (u64, u64) {
        let others = self.others.lock();
        let asked = others.get(ASKED).copied().unwrap_or_default();
        let all: u64 = others.values().sum();
        (self.ok.load(Relaxed) + all, all - asked)
    }
}

#[cfg(test)]
mod tests;
