//! Figures about each tool: how many calls there were, how many failed, how long the latest ones took, and
//! the last error.
//!
//! Counting a call takes the lock of one tool, in memory. A few seconds later, the counts of many tools are
//! written at once and added to the counts of other gateways. Counts and times cover all owners. The last
//! error may quote the owner's call, so only the same owner sees it. This room knows tools only by their
//! names.

mod cost;
#[cfg(test)]
mod tests;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use dashmap::DashMap;
use nonet_api::tools::{Cost, ErrorReport, ToolReport};
use nonet_base::{
    clock::{Clock, at_unix_ms},
    text::clip,
};
use nonet_store::{LastError, NamedFigures, Store, StoreError, ToolFigures};
use nonet_text::secrets::without_secrets;
use parking_lot::Mutex;
use tokio::sync::OnceCell;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::cost::cost_after;

/// How long after a call its figures are written, together with the figures of later calls.
const WRITE_AFTER: Duration = Duration::from_secs(3);
/// How long an answer waits for the store's figures.
const PATIENCE: Duration = Duration::from_secs(1);
/// How many tools have figures in memory. The least recently called tools are dropped first.
const MOST_TOOLS: usize = 10_000;
/// The longest error message that is shown, and the longest one that is searched for secrets, in characters.
const MESSAGE: usize = 200;
const LONGEST_ERROR: usize = 1_000;

/// The figures of all tools, in memory and in the store.
#[derive(Debug)]
pub struct Figures {
    shared: Arc<Shared>,
    recalled: OnceCell<()>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// The state that the writing task needs.
#[derive(Debug)]
struct Shared {
    /// `None` if figures end with the process.
    store: Option<Arc<dyn Store>>,
    clock: Clock,
    /// By full name, built from the server's own name of the tool.
    tools: DashMap<Arc<str>, Arc<Mutex<Entry>>>,
    /// The tools with unwritten figures.
    unwritten: Mutex<Vec<Arc<str>>>,
    /// Whether a write is scheduled.
    is_due: AtomicBool,
    /// Whether the last write failed.
    failing: AtomicBool,
    /// Held while figures are read or written, so that later figures are newer.
    turn: tokio::sync::Mutex<()>,
}

/// The figures of one tool.
#[derive(Debug, Default)]
struct Entry {
    /// The figures as last stored.
    kept: ToolFigures,
    /// Figures being written to the store.
    leaving: ToolFigures,
    /// Figures of later calls.
    fresh: ToolFigures,
}

impl Entry {
    fn all(&self) -> ToolFigures {
        let mut all = self.kept.clone();
        all.add(self.leaving.clone());
        all.add(self.fresh.clone());
        all
    }
}

/// A finished call that reached its server.
#[derive(Clone, Copy, Debug)]
pub struct EndedCall<'a> {
    /// The owner of the call.
    pub owner: &'a str,
    /// The version of the tool's definition.
    pub version: &'a str,
    /// How long the server took.
    pub in_server: Duration,
    /// How it failed, if it did.
    pub error: Option<CallFailure<'a>>,
}

/// How a call failed.
#[derive(Clone, Copy, Debug)]
pub struct CallFailure<'a> {
    /// `tool_error` for the server's own `isError`, or the code of a fault.
    pub code: &'static str,
    /// The first line of the error message. It may contain secrets.
    pub message: &'a str,
}

impl Figures {
    /// Creates figures over a store; without a store they end with the process. A task of `tasks` writes
    /// them, the last ones at `stop`.
    pub fn new(
        store: Option<Arc<dyn Store>>,
        clock: Clock,
        tasks: TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        let shared = Shared {
            store,
            clock,
            tools: DashMap::new(),
            unwritten: Mutex::default(),
            is_due: AtomicBool::new(false),
            failing: AtomicBool::new(false),
            turn: tokio::sync::Mutex::default(),
        };
        Self { shared: Arc::new(shared), recalled: OnceCell::new(), tasks, stop }
    }

    /// Reads the stored figures if they have not been read. Does not wait for a store that hangs.
    pub async fn recall(&self) {
        let read = async || self.shared.recall().await;
        let _ = tokio::time::timeout(PATIENCE, self.recalled.get_or_init(read)).await;
    }

    /// Counts a call of the tool with this full name. Runs within every call.
    pub fn record(&self, tool: &Arc<str>, call: &EndedCall<'_>) {
        let shared = &self.shared;
        let known = shared.tools.get(tool).map(|entry| entry.clone());
        let entry = match known {
            Some(entry) => entry,
            // The next write makes room; until then the table may hold twice as many tools.
            None if shared.tools.len() >= 2 * MOST_TOOLS => return,
            None => shared.tools.entry(tool.clone()).or_default().clone(),
        };
        let is_first = {
            let fresh = &mut entry.lock().fresh;
            count(fresh, call, shared.clock.unix_ms());
            fresh.calls == 1
        };
        if is_first {
            shared.unwritten.lock().push(tool.clone());
        }
        if !shared.is_due.swap(true, Relaxed) {
            let (shared, stop) = (shared.clone(), self.stop.clone());
            self.tasks.spawn(async move {
                tokio::select! {
                    () = tokio::time::sleep(WRITE_AFTER) => {}
                    () = stop.cancelled() => {}
                }
                shared.is_due.store(false, Relaxed);
                shared.write().await;
            });
        }
    }

    /// Returns the figures of a tool, with this owner's last error for this version; `None` before the first
    /// call.
    pub fn of(&self, tool: &str, owner: &str, version: &str) -> Option<ToolReport> {
        let mut all = self.shared.tools.get(tool)?.lock().all();
        let last_error = all.errors.remove(owner).filter(|error| error.version == version);
        (all.calls > 0).then(|| ToolReport {
            calls: all.calls,
            failures: all.failures,
            mean_ms: cost::mean(&all.recent).map(whole_ms),
            p95_ms: cost::percentile(&all.recent, 95).map(whole_ms),
            cost: cost_after(&all.recent),
            last_error: last_error.map(|error| ErrorReport {
                code: error.code,
                message: shown(&error.message),
                at: humantime::format_rfc3339_seconds(at_unix_ms(error.at_ms)).to_string(),
            }),
        })
    }

    /// Returns the cost of a call; medium if it is unknown.
    pub fn cost(&self, tool: &str) -> Cost {
        let entry = self.shared.tools.get(tool);
        entry.and_then(|entry| cost_after(&entry.lock().all().recent)).unwrap_or_default()
    }
}

/// Returns a time in milliseconds, rounded, at least 1.
fn whole_ms(time: Duration) -> u64 {
    let ms = (time.as_micros() + 500) / 1_000;
    u64::try_from(ms).unwrap_or(u64::MAX).max(1)
}

/// Prepares a message for display and storage.
fn shown(message: &str) -> String {
    clip(without_secrets(message).0.trim(), MESSAGE)
}

/// Adds a call to the figures of its tool.
fn count(figures: &mut ToolFigures, call: &EndedCall<'_>, at_ms: u64) {
    figures.calls += 1;
    figures.called_ms = at_ms;
    let Some(CallFailure { code, message }) = call.error else {
        figures.recent.succeeded(call.in_server);
        return;
    };
    figures.failures += 1;
    figures.recent.failed();
    // Secrets are removed when the message is read or written, because this code runs within the call.
    let (code, message, version) = (code.into(), clip(message, LONGEST_ERROR), call.version.into());
    figures.put_error(call.owner.into(), LastError { code, message, version, at_ms });
}

impl Shared {
    async fn recall(&self) {
        let Some(store) = &self.store else { return };
        let _turn = self.turn.lock().await;
        match store.figures().await {
            Ok(all) => all.into_iter().for_each(|figures| self.is_kept(figures)),
            Err(error) => tracing::warn!(%error, "the figures of tools cannot be read"),
        }
    }

    /// Records the stored figures of a tool.
    fn is_kept(&self, (tool, figures): NamedFigures) {
        let entry = self.tools.entry(tool).or_default().clone();
        let mut entry = entry.lock();
        (entry.kept, entry.leaving) = (figures, ToolFigures::default());
    }

    /// Writes the unwritten figures, and makes room.
    async fn write(&self) {
        let _turn = self.turn.lock().await;
        let tools = std::mem::take(&mut *self.unwritten.lock());
        let leaving: Vec<NamedFigures> = tools.into_iter().filter_map(|tool| self.leave(tool)).collect();
        let names: Vec<Arc<str>> = leaving.iter().map(|(tool, _)| tool.clone()).collect();
        match self.add_to_store(leaving).await {
            Ok(Some(kept)) => kept.into_iter().for_each(|figures| self.is_kept(figures)),
            Ok(None) => self.settle(names, |entry| {
                let leaving = std::mem::take(&mut entry.leaving);
                entry.kept.add(leaving);
            }),
            Err(error) => {
                // These figures are written with those of the next call.
                self.settle(names.iter().cloned(), |entry| {
                    let fresh = std::mem::take(&mut entry.fresh);
                    entry.fresh = std::mem::take(&mut entry.leaving);
                    entry.fresh.add(fresh);
                });
                self.unwritten.lock().extend(names);
                if !self.failing.swap(true, Relaxed) {
                    tracing::warn!(%error, "figures of tools are not written; trying again with later calls");
                }
            }
        }
        self.make_room();
    }

    async fn add_to_store(&self, fresh: Vec<NamedFigures>) -> Result<Option<Vec<NamedFigures>>, StoreError> {
        let Some(store) = self.store.as_ref().filter(|_| !fresh.is_empty()) else { return Ok(None) };
        let kept = store.add_figures(fresh).await?;
        self.failing.store(false, Relaxed);
        Ok(kept)
    }

    /// Takes the new figures of a tool, ready to be stored.
    fn leave(&self, tool: Arc<str>) -> Option<NamedFigures> {
        let entry = self.tools.get(&tool)?.clone();
        let mut fresh = {
            let mut entry = entry.lock();
            if entry.fresh.calls == 0 {
                return None;
            }
            entry.leaving = std::mem::take(&mut entry.fresh);
            entry.leaving.clone()
        };
        for error in fresh.errors.values_mut() {
            error.message = shown(&error.message);
        }
        Some((tool, fresh))
    }

    fn settle(&self, tools: impl IntoIterator<Item = Arc<str>>, change: impl Fn(&mut Entry)) {
        for tool in tools {
            if let Some(entry) = self.tools.get(&tool) {
                change(&mut entry.lock());
            }
        }
    }

    /// Drops the tools beyond the limit, except those with unwritten figures.
    fn make_room(&self) {
        let too_many = self.tools.len().saturating_sub(MOST_TOOLS);
        if too_many == 0 {
            return;
        }
        let mut oldest: Vec<(u64, Arc<str>)> =
            self.tools.iter().map(|entry| (entry.lock().kept.called_ms, entry.key().clone())).collect();
        oldest.sort_unstable();
        for (_, tool) in oldest.into_iter().take(too_many) {
            self.tools.remove_if(&tool, |_, entry| entry.lock().fresh.calls == 0);
        }
    }
}
