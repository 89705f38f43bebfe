//! Watches: what a check of a tool's result changes, and whether that is news.
//!
//! A decision is a pure function of what was known and what the check found. Who makes the call, when, and where news go is
//! decided elsewhere.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::text::hex;

/// How many failures in a row pause a watch.
pub const FAILURES_TO_PAUSE: u64 = 5;
/// How many checks a watch remembers.
pub const HISTORY: usize = 100;
/// How many bytes of the digest of a value are kept.
const DIGEST: usize = 16;

/// When a watch has news.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NotifyWhen {
    /// The value is another one than at the last check that had one.
    #[default]
    OnChange,
    /// A check fails after one that did not, or the other way round.
    OnError,
    /// The expression has become true.
    OnThreshold,
    /// After each batch of checks.
    Summary,
    /// After each check.
    Always,
}

/// Whether a watch makes checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WatchState {
    /// It does.
    #[default]
    Active,
    /// Not until it is resumed.
    Paused,
    /// It has made as many checks as it was to make.
    Finished,
}

/// A watch: what it was asked to do, and what it has seen.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Watch {
    /// The full name of the tool.
    pub tool: String,
    /// Its params, as they were written.
    pub params: Map<String, Value>,
    /// Its name in notices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Seconds from one check to the next.
    pub interval_s: u64,
    /// How many checks it makes; 0 for no end.
    pub max_checks: u64,
    /// When it has news.
    pub notify_when: NotifyWhen,
    /// The jq filter of what is compared.
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
    pub counts: Counts,
    /// All checks at the last summary.
    #[serde(default)]
    pub summed_up: Counts,
    /// Failures since the last check that did not fail, or since it was resumed.
    #[serde(default)]
    pub failures_in_a_row: u64,
    /// Why the last check failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<CheckError>,
    /// Whether the expression was true at the last check that did not fail.
    #[serde(default)]
    pub is_met: bool,
    /// The last value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<Seen>,
    /// The last checks, oldest first.
    #[serde(default)]
    pub history: VecDeque<WatchCheck>,
}

/// How many checks there were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// All of them.
    pub checks: u64,
    /// Those whose value was another one than before.
    pub changes: u64,
    /// Those that failed.
    pub errors: u64,
}

/// A value as a watch remembers it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// Tells it from other values.
    pub digest: String,
    /// The value itself, if it is small.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
    /// When the check began, in milliseconds since 1970.
    pub at_ms: u64,
}

/// Why a check has no value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckError {
    /// The code of the fault.
    pub code: String,
    /// What it says.
    pub message: String,
}

/// A check, as the history has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchCheck {
    /// When it began, in milliseconds since 1970.
    pub at_ms: u64,
    /// The code of its error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Whether its value was another one than before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub changed: bool,
    /// How long it took.
    pub elapsed_ms: u64,
}

/// What a check found.
#[derive(Clone, Debug, PartialEq)]
pub enum Finding {
    /// A value.
    Value {
        /// As the watch remembers it.
        seen: Seen,
        /// Whether the expression is true of it.
        is_met: bool,
    },
    /// None, because the check failed.
    Error(CheckError),
}

/// Why the client gets a notice of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// The value is another one.
    Changed,
    /// The tool has begun to fail.
    Failed,
    /// It works again.
    Recovered,
    /// The expression has become true.
    ThresholdReached,
    /// A batch of checks is complete.
    Summary,
    /// There was a check.
    Checked,
    /// There were too many failures in a row.
    Paused,
    /// All checks were made.
    Finished,
}

/// What the client's notice of a check says.
#[derive(Clone, Debug, PartialEq)]
pub struct News {
    /// The reason.
    pub why: Why,
    /// Whether the value is another one than before.
    pub changed: bool,
    /// The value before the change, if it is small.
    pub before: Option<Value>,
    /// The checks that it is about, where it is about more than one.
    pub counts: Option<Counts>,
}

impl Watch {
    /// Takes in a check that began at `at_ms`. A watch that was paused meanwhile remembers it, and has no news.
    pub fn take(&mut self, finding: Finding, at_ms: u64, elapsed_ms: u64) -> Option<News> {
        let failed_before = self.error.is_some();
        let was_met = self.is_met;
        let (mut changed, mut before) = (false, None);
        self.counts.checks += 1;
        match finding {
            Finding::Value { seen, is_met } => {
                self.failures_in_a_row = 0;
                self.error = None;
                self.is_met = is_met;
                changed = self.last.as_ref().is_some_and(|last| last.digest != seen.digest);
                self.counts.changes += u64::from(changed);
                let last = self.last.replace(seen);
                before = last.filter(|_| changed).and_then(|last| last.value);
            }
            Finding::Error(error) => {
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
            NotifyWhen::OnChange => changed.then_some(Why::Changed),
            NotifyWhen::OnError => match (failed_before, fails) {
                (false, true) => Some(Why::Failed),
                (true, false) => Some(Why::Recovered),
                _ => None,
            },
            NotifyWhen::OnThreshold => (self.is_met && !was_met).then_some(Why::ThresholdReached),
            NotifyWhen::Summary => (self.since_summary().checks >= self.batch_size).then_some(Why::Summary),
            NotifyWhen::Always => Some(Why::Checked),
        };
        if self.max_checks > 0 && self.counts.checks >= self.max_checks {
            self.state = WatchState::Finished;
            why = why.or(Some(Why::Finished));
        } else if self.failures_in_a_row >= FAILURES_TO_PAUSE {
            self.state = WatchState::Paused;
            why = Some(Why::Paused);
        }
        let why = why?;
        let counts = match self.notify_when {
            NotifyWhen::Summary => {
                let counts = self.since_summary();
                self.summed_up = self.counts;
                Some(counts)
            }
            _ => (why == Why::Finished).then_some(self.counts),
        };
        Some(News { why, changed, before, counts })
    }

    /// Makes no more checks until it is resumed; false if it was not active.
    pub fn pause(&mut self) -> bool {
        let was_active = self.state == WatchState::Active;
        if was_active {
            self.state = WatchState::Paused;
        }
        was_active
    }

    /// Goes on; false if it was not paused.
    pub fn resume(&mut self) -> bool {
        let was_paused = self.state == WatchState::Paused;
        if was_paused {
            self.state = WatchState::Active;
            self.failures_in_a_row = 0;
        }
        was_paused
    }

    /// When the next check is due after one that was due at `due_ms`. It keeps its rhythm, unless the time has passed or the
    /// clock was turned back.
    pub fn next_ms(&self, due_ms: u64, now_ms: u64) -> u64 {
        let latest = now_ms + self.interval_ms();
        let in_rhythm = due_ms.saturating_add(self.interval_ms());
        if in_rhythm > now_ms && in_rhythm <= latest { in_rhythm } else { latest }
    }

    /// When a check is due instead, where `due_ms` is further away than the interval: the clock was turned back.
    pub fn pulled_in(&self, due_ms: u64, now_ms: u64) -> Option<u64> {
        let latest = now_ms + self.interval_ms();
        (due_ms > latest).then_some(latest)
    }

    fn interval_ms(&self) -> u64 {
        self.interval_s * 1_000
    }

    fn since_summary(&self) -> Counts {
        Counts {
            checks: self.counts.checks - self.summed_up.checks,
            changes: self.counts.changes - self.summed_up.changes,
            errors: self.counts.errors - self.summed_up.errors,
        }
    }
}

impl Seen {
    /// A value, which is remembered itself if `is_small`.
    pub fn new(value: &Value, is_small: bool, at_ms: u64) -> Self {
        Self { digest: digest(value), value: is_small.then(|| value.clone()), at_ms }
    }
}

/// The digest of a value. The order of an object's fields does not count.
fn digest(value: &Value) -> String {
    let mut hash = Sha256::new();
    add(value, &mut hash);
    hex(&hash.finalize()[..DIGEST])
}

fn add(value: &Value, hash: &mut Sha256) {
    // A length in front of each part, so that no two values are the same bytes.
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
