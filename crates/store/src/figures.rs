//! Figures about the calls of a tool: counts, the last calls, and the last error of each owner.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use serde::{Deserialize, Serialize};

/// How many of a tool's last calls are remembered: enough for a percentile, few enough to fade.
const LAST_CALLS: usize = 100;
/// How many owners' last errors of a tool are remembered.
const MOST_OWNERS: usize = 16;
/// Marks a failed call among times.
const FAILED: u32 = u32::MAX;

/// A tool's figures, by its full name with the server's own name for it.
pub type NamedFigures = (Arc<str>, ToolFigures);

/// Figures about the calls of a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolFigures {
    /// The number of calls that reached the server, including failed ones.
    pub calls: u64,
    /// The number of failed calls.
    pub failures: u64,
    /// The duration or failure of each of the last hundred calls.
    pub recent: RecentCalls,
    /// When the last call ended, in milliseconds since 1970.
    pub called_ms: u64,
    /// The last error of each owner.
    pub errors: BTreeMap<String, LastError>,
}

impl ToolFigures {
    /// Adds later calls.
    pub fn add(&mut self, later: ToolFigures) {
        self.calls = self.calls.saturating_add(later.calls);
        self.failures = self.failures.saturating_add(later.failures);
        self.recent.0.extend(later.recent.0);
        self.recent.forget_old();
        self.called_ms = self.called_ms.max(later.called_ms);
        for (owner, error) in later.errors {
            self.put_error(owner, error);
        }
    }

    /// Stores an error, replacing the owner's earlier one. Beyond the maximum number of owners, the oldest
    /// error is dropped.
    pub fn put_error(&mut self, owner: String, error: LastError) {
        self.errors.insert(owner, error);
        while self.errors.len() > MOST_OWNERS
            && let Some(owner) = self.oldest_error()
        {
            self.errors.remove(&owner);
        }
    }

    fn oldest_error(&self) -> Option<String> {
        let oldest = self.errors.iter().min_by_key(|(_, error)| error.at_ms)?;
        Some(oldest.0.clone())
    }
}

/// A failed call's error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LastError {
    /// `tool_error` for the server's own `isError`, or the code of a fault.
    pub code: String,
    /// The first line of the error message; in the store, shortened and without secrets. May be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The version of the tool's definition.
    pub version: String,
    /// When the call ended, in milliseconds since 1970.
    pub at_ms: u64,
}

/// The last calls of a tool, at most [`LAST_CALLS`], oldest first: the duration, or a failure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecentCalls(VecDeque<u32>);

impl RecentCalls {
    /// Adds a successful call with its duration, which is stored in microseconds.
    pub fn succeeded(&mut self, took: Duration) {
        let us = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
        self.0.push_back(us.min(FAILED - 1));
        self.forget_old();
    }

    /// Adds a failed call. Its duration says nothing about the tool.
    pub fn failed(&mut self) {
        self.0.push_back(FAILED);
        self.forget_old();
    }

    /// Returns how many calls are remembered: at most a hundred.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns how many of the remembered calls failed.
    pub fn failures(&self) -> usize {
        self.0.iter().filter(|us| **us == FAILED).count()
    }

    /// Returns the durations of the successful calls, in microseconds.
    pub fn times_us(&self) -> impl Iterator<Item = u32> {
        self.0.iter().copied().filter(|us| *us != FAILED)
    }

    /// Returns the stored form: four bytes per call.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|us| us.to_le_bytes()).collect()
    }

    /// Parses the stored form; `None` for other bytes.
    pub(super) fn of_bytes(bytes: &[u8]) -> Option<Self> {
        let (calls, rest) = bytes.as_chunks();
        let fits = rest.is_empty() && calls.len() <= LAST_CALLS;
        fits.then(|| Self(calls.iter().map(|us| u32::from_le_bytes(*us)).collect()))
    }

    fn forget_old(&mut self) {
        let too_many = self.0.len().saturating_sub(LAST_CALLS);
        self.0.drain(..too_many);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recent(calls: impl IntoIterator<Item = Option<u64>>) -> RecentCalls {
        let mut recent = RecentCalls::default();
        for call in calls {
            match call {
                Some(us) => recent.succeeded(Duration::from_micros(us)),
                None => recent.failed(),
            }
        }
        recent
    }

    fn error(at_ms: u64) -> LastError {
        LastError { code: "timeout".into(), message: String::new(), version: "1".into(), at_ms }
    }

    #[test]
    fn only_the_last_hundred_calls_are_remembered() {
        let calls = recent((0..250).map(|us| (us % 10 > 0).then_some(us)));
        assert_eq!((calls.count(), calls.failures()), (100, 10));
        assert_eq!((calls.times_us().min(), calls.times_us().max()), (Some(151), Some(249)));
        assert_eq!(recent([Some(u64::MAX)]).times_us().next(), Some(u32::MAX - 1), "not a failure");
    }

    #[test]
    fn later_calls_are_added_at_the_end() {
        let figures = |calls: u64, failures: u64, times: RecentCalls, called_ms: u64| ToolFigures {
            calls,
            failures,
            recent: times,
            called_ms,
            errors: [("".to_owned(), error(called_ms))].into(),
        };
        let mut all = figures(3, 1, recent([Some(1), None, Some(2)]), 50);
        all.add(figures(2, 1, recent([None, Some(3)]), 40));
        // The clock was set back: the later error counts.
        let expected = ToolFigures {
            errors: [(String::new(), error(40))].into(),
            ..figures(5, 2, recent([Some(1), None, Some(2), None, Some(3)]), 50)
        };
        assert_eq!(all, expected);
        all.add(figures(90, 0, recent((0..99).map(Some)), 60));
        assert_eq!((all.calls, all.recent.count(), all.recent.failures()), (95, 100, 0));
        all.add(figures(u64::MAX, 0, RecentCalls::default(), 0));
        assert_eq!(all.calls, u64::MAX);
    }

    #[test]
    fn each_owner_has_one_error_and_owners_are_bounded() {
        let mut figures = ToolFigures::default();
        for number in 0..MOST_OWNERS as u64 + 2 {
            figures.put_error(format!("owner{number}"), error(1_000 - number));
            figures.put_error(format!("owner{number}"), error(1_000 - number));
        }
        assert_eq!(figures.errors.len(), MOST_OWNERS);
        assert!(figures.errors.contains_key("owner0"), "the oldest went, which were put last");
    }

    #[test]
    fn calls_are_written_as_bytes() {
        for calls in [recent([]), recent([Some(0), None, Some(7_000_000)]), recent((0..100).map(Some))] {
            assert_eq!(RecentCalls::of_bytes(&calls.to_bytes()), Some(calls));
        }
        for bad in [&[1, 2, 3][..], &[0; 404]] {
            assert_eq!(RecentCalls::of_bytes(bad), None);
        }
    }
}
