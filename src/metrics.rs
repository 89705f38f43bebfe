//! Counters of calls, per tool.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use dashmap::DashMap;

/// What was counted of one tool.
#[derive(Debug, Default)]
pub struct Counts {
    /// Calls that ended.
    pub calls: AtomicU64,
    /// Those of them that ended with an error.
    pub failures: AtomicU64,
    /// Time spent in its server, in microseconds, over all calls.
    pub server_us: AtomicU64,
}

/// All counters.
#[derive(Debug, Default)]
pub struct Metrics {
    tools: DashMap<Arc<str>, Arc<Counts>>,
}

impl Metrics {
    /// Counts one call.
    pub fn record(&self, tool: &Arc<str>, failed: bool, in_server: Duration) {
        let counts = match self.tools.get(tool) {
            Some(counts) => counts.clone(),
            None => self.tools.entry(tool.clone()).or_default().clone(),
        };
        counts.calls.fetch_add(1, Ordering::Relaxed);
        counts.failures.fetch_add(u64::from(failed), Ordering::Relaxed);
        let us = u64::try_from(in_server.as_micros()).unwrap_or(u64::MAX);
        counts.server_us.fetch_add(us, Ordering::Relaxed);
    }

    /// Calls and failures of one tool.
    pub fn of(&self, tool: &str) -> (u64, u64) {
        self.tools.get(tool).map_or((0, 0), |counts| {
            (counts.calls.load(Ordering::Relaxed), counts.failures.load(Ordering::Relaxed))
        })
    }

    /// Calls and failures over all tools.
    pub fn total(&self) -> (u64, u64) {
        self.tools.iter().fold((0, 0), |(calls, failures), counts| {
            (calls + counts.calls.load(Ordering::Relaxed), failures + counts.failures.load(Ordering::Relaxed))
        })
    }
}
