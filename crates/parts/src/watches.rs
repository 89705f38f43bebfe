//! Watches: what a check of a tool's result changes, and whether the change is news.
//!
//! A decision is a pure function of the previous state and the finding of the check. Other rooms decide who
//! makes the call, when, and where news go.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use nonet_api::{
    notice::NoticeReason,
    work::{CheckError, NotifyWhen, WatchCounts, WatchState},
};
use nonet_base::text::hex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

/// How many failures in a row pause a watch that does not wait for their end.
pub const FAILURES_TO_PAUSE: u64 = 5;
/// How many checks a watch remembers.
pub const HISTORY: usize = 100;
/// How many bytes of the digest of a value are kept.
const DIGEST: usize = 16;

/// A watch: its settings, and what it has seen.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Watch {
    /// The full name of the tool.
    pub tool: String,
    /// Its params, as written.
    pub params: Map<String, Value>,
    /// Its name in notices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Seconds from one check to the next.
    pub interval_s: u64,
    /// How many checks it makes; 0 for no limit.
    pub max_checks: u64,
    /// When it has news.
    pub notify_when: NotifyWhen,
    /// The jq filter for the compared value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub select: Option<String>,
    /// The jq filter of [`NotifyWhen::OnThreshold`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expression: Option<String>,
    /// The checks in a batch of [`NotifyWhen::Summary`].
    pub batch_size: u64,
    /// Whether it makes checks.
    #[serde(default)]
    pub state: WatchState,
    /// All checks.
    #[serde(default)]
    pub counts: WatchCounts,
    /// All checks at the last summary.
    #[serde(default)]
    pub summed_up: WatchCounts,
    /// Failures since the last successful check, or since it was resumed.
    #[serde(default)]
    pub failures_in_a_row: u64,
    /// Why the last check failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<CheckError>,
    /// Whether the expression was true at the last successful check.
    #[serde(default)]
    pub is_met: bool,
    /// The last value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<SeenValue>,
    /// The last checks, oldest first.
    #[serde(default)]
    pub history: VecDeque<WatchCheck>,
}

/// A value as a watch remembers it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SeenValue {
    /// The digest that distinguishes it from other values.
    pub digest: String,
    /// The value itself, if it is small.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
    /// When the check began, in milliseconds since 1970.
    pub at_ms: u64,
}

/// A check in the history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchCheck {
    /// When it began, in milliseconds since 1970.
    pub at_ms: u64,
    /// The code of its error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Whether its value differed from the one before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub changed: bool,
    /// How long it took.
    pub elapsed_ms: u64,
}

/// The finding of a check.
#[derive(Clone, Debug, PartialEq)]
pub enum WatchFinding {
    /// A value.
    Value {
        /// The value as the watch remembers it.
        seen: SeenValue,
        /// Whether the expression is true for the value.
        is_met: bool,
    },
    /// No value, because the check failed.
    Error(CheckError),
}

/// The client's notice about a check.
#[derive(Clone, Debug, PartialEq)]
pub struct WatchNews {
    /// The reason.
    pub why: NoticeReason,
    /// Whether the value differs from the one before.
    pub changed: bool,
    /// The value before the change, if it is small.
    pub before: Option<Value>,
    /// The number of checks, if the notice is about more than one.
    pub counts: Option<WatchCounts>,
}

impl Watch {
    /// Records a check that began at `at_ms`. A watch that was paused meanwhile remembers the check but has
    /// no news.
    pub fn take(&mut self, finding: WatchFinding, at_ms: u64, elapsed_ms: u64) -> Option<WatchNews> {
        let failed_before = self.error.is_some();
        let was_met = self.is_met;
        let had_value = self.last.is_some();
        let (mut changed, mut before) = (false, None);
        self.counts.checks += 1;
        match finding {
            WatchFinding::Value { seen, is_met } => {
                self.failures_in_a_row = 0;
                self.error = None;
                self.is_met = is_met;
                changed = self.last.as_ref().is_some_and(|last| last.digest != seen.digest);
                self.counts.changes += u64::from(changed);
                let last = self.last.replace(seen);
                before = last.filter(|_| changed).and_then(|last| last.value);
            }
            WatchFinding::Error(error) => {
                self.failures_in_a_row += 1;
                self.counts.errors += 1;
                self.error = Some(error);
            }
        }
        let error = self.error.as_ref().map(|error| error.code.clone());
        self.history.push_back(WatchCheck { at_ms, error, changed, elapsed_ms });
        while self.history.len() > HISTORY {
            self.history.pop_front();
        }
        if self.state != WatchState::Active {
            return None;
        }
        let fails = self.error.is_some();
        let mut why = match self.notify_when {
            NotifyWhen::OnChange if failed_before && !fails && !had_value => Some(NoticeReason::Recovered),
            NotifyWhen::OnChange => changed.then_some(NoticeReason::Changed),
            NotifyWhen::OnError => match (failed_before, fails) {
                (false, true) => Some(NoticeReason::Failed),
                (true, false) => Some(NoticeReason::Recovered),
                _ => None,
            },
            NotifyWhen::OnThreshold => (self.is_met && !was_met).then_some(NoticeReason::ThresholdReached),
            NotifyWhen::Summary => {
                (self.since_summary().checks >= self.batch_size).then_some(NoticeReason::Summary)
            }
            NotifyWhen::Always => Some(NoticeReason::Checked),
        };
        if self.max_checks > 0 && self.counts.checks >= self.max_checks {
            self.state = WatchState::Finished;
            why = why.or(Some(NoticeReason::Finished));
        } else if self.failures_in_a_row >= FAILURES_TO_PAUSE && !self.awaits_success() {
            self.state = WatchState::Paused;
            why = Some(NoticeReason::Paused);
        }
        let why = why?;
        let counts = match self.notify_when {
            NotifyWhen::Summary => {
                let counts = self.since_summary();
                self.summed_up = self.counts;
                Some(counts)
            }
            _ => (why == NoticeReason::Finished).then_some(self.counts),
        };
        Some(WatchNews { why, changed, before, counts })
    }

    /// Whether the watch waits for the tool to work: it reports errors and their end, or began on a tool that
    /// failed.
    fn awaits_success(&self) -> bool {
        self.notify_when == NotifyWhen::OnError || self.last.is_none()
    }

    /// Stops the checks until the watch is resumed; `false` if it was not active.
    pub fn pause(&mut self) -> bool {
        let was_active = self.state == WatchState::Active;
        if was_active {
            self.state = WatchState::Paused;
        }
        was_active
    }

    /// Continues the checks; `false` if the watch was not paused.
    pub fn resume(&mut self) -> bool {
        let was_paused = self.state == WatchState::Paused;
        if was_paused {
            self.state = WatchState::Active;
            self.failures_in_a_row = 0;
        }
        was_paused
    }

    /// Returns when the next check is due after one due at `due_ms`. The rhythm stays the same, unless the
    /// time has passed or the clock was turned back.
    pub fn next_ms(&self, due_ms: u64, now_ms: u64) -> u64 {
        let latest = now_ms + self.interval_ms();
        let in_rhythm = due_ms.saturating_add(self.interval_ms());
        if in_rhythm > now_ms && in_rhythm <= latest { in_rhythm } else { latest }
    }

    /// Returns an earlier due time if `due_ms` is further away than the interval, because the clock was
    /// turned back.
    pub fn pulled_in(&self, due_ms: u64, now_ms: u64) -> Option<u64> {
        let latest = now_ms + self.interval_ms();
        (due_ms > latest).then_some(latest)
    }

    fn interval_ms(&self) -> u64 {
        self.interval_s * 1_000
    }

    fn since_summary(&self) -> WatchCounts {
        WatchCounts {
            checks: self.counts.checks - self.summed_up.checks,
            changes: self.counts.changes - self.summed_up.changes,
            errors: self.counts.errors - self.summed_up.errors,
        }
    }
}

impl SeenValue {
    /// Creates a remembered value. Keeps the value itself only if `is_small`.
    pub fn new(value: &Value, is_small: bool, at_ms: u64) -> Self {
        Self { digest: digest(value), value: is_small.then(|| value.clone()), at_ms }
    }
}

/// Returns the digest of a value. The order of an object's fields does not matter.
fn digest(value: &Value) -> String {
    let mut hash = Sha256::new();
    add(value, &mut hash);
    hex(&hash.finalize()[..DIGEST])
}

fn add(value: &Value, hash: &mut Sha256) {
    // A length before each part, so that different values never produce the same bytes.
    match value {
        Value::Object(fields) => {
            hash.update(format!("{{{}", fields.len()));
            let mut sorted: Vec<_> = fields.iter().collect();
            sorted.sort_by_key(|(key, _)| *key);
            for (key, value) in sorted {
                hash.update(format!("{}:{key}", key.len()));
                add(value, hash);
            }
        }
        Value::Array(items) => {
            hash.update(format!("[{}", items.len()));
            items.iter().for_each(|item| add(item, hash));
        }
        Value::String(text) => {
            hash.update(format!("\"{}:", text.len()));
            hash.update(text);
        }
        scalar => hash.update(format!("{scalar};")),
    }
}
