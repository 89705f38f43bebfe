//! Counters of calls: per tool, and per outcome.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use dashmap::DashMap;

/// One call that has ended.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// `ok`, `tool_error` (the server's own `isError`), or the code of a fault.
    pub outcome: &'static str,
    /// The size of its params as JSON, in bytes.
    pub bytes_in: usize,
    /// The size of its result as JSON, in bytes, before it was shortened.
    pub bytes_out: usize,
    /// Time spent in Nonet.
    pub in_gateway: Duration,
    /// Time spent in the server.
    pub in_server: Duration,
}

/// What was counted of one tool.
#[derive(Debug, Default)]
pub struct Counts {
    /// Calls that ended.
    pub calls: AtomicU64,
    /// Those of them that ended with an error.
    pub failures: AtomicU64,
    /// Bytes of params and of results, over all calls.
    pub bytes: (AtomicU64, AtomicU64),
    /// Time spent in Nonet, in microseconds, over all calls.
    pub gateway_us: AtomicU64,
    /// Time spent in the server, in microseconds, over all calls.
    pub server_us: AtomicU64,
}

/// All counters.
#[derive(Debug, Default)]
pub struct Metrics {
    tools: DashMap<Arc<str>, Arc<Counts>>,
    outcomes: DashMap<&'static str, u64>,
}

impl Metrics {
    /// Counts one call.
    pub fn record(&self, tool: &Arc<str>, call: &Call) {
        let counts = match self.tools.get(tool) {
            Some(counts) => counts.clone(),
            None => self.tools.entry(tool.clone()).or_default().clone(),
        };
        let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        counts.calls.fetch_add(1, Relaxed);
        counts.failures.fetch_add(u64::from(call.outcome != "ok"), Relaxed);
        counts.bytes.0.fetch_add(call.bytes_in as u64, Relaxed);
        counts.bytes.1.fetch_add(call.bytes_out as u64, Relaxed);
        counts.gateway_us.fetch_add(us(call.in_gateway), Relaxed);
        counts.server_us.fetch_add(us(call.in_server), Relaxed);
        self.refused(call.outcome);
    }

    /// Counts a call that no tool was called for.
    pub fn refused(&self, outcome: &'static str) {
        *self.outcomes.entry(outcome).or_default() += 1;
    }

    /// Calls and failures of one tool.
    pub fn of(&self, tool: &str) -> (u64, u64) {
        self.tools
            .get(tool)
            .map_or((0, 0), |counts| (counts.calls.load(Relaxed), counts.failures.load(Relaxed)))
    }

    /// Calls and failures over all tools.
    pub fn total(&self) -> (u64, u64) {
        self.tools.iter().fold((0, 0), |(calls, failures), counts| {
            (calls + counts.calls.load(Relaxed), failures + counts.failures.load(Relaxed))
        })
    }

    /// Mean time in Nonet and in the server over all calls, in microseconds.
    pub fn mean_us(&self) -> Option<(u64, u64)> {
        let sums = self.tools.iter().fold((0, 0, 0), |(calls, gateway, server), counts| {
            (
                calls + counts.calls.load(Relaxed),
                gateway + counts.gateway_us.load(Relaxed),
                server + counts.server_us.load(Relaxed),
            )
        });
        (sums.0 > 0).then(|| (sums.1 / sums.0, sums.2 / sums.0))
    }

    /// How calls ended, those included that were refused before a tool was called.
    pub fn outcomes(&self) -> BTreeMap<&'static str, u64> {
        self.outcomes.iter().map(|entry| (*entry.key(), *entry.value())).collect()
    }
}
