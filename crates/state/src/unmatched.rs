//! Rules of the configuration that match no tool, and which of them were reported.

mod find;

use std::collections::BTreeSet;

use parking_lot::{Mutex, MutexGuard};

pub use self::find::unmatched_rules;

/// A rule that matches no tool.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnmatchedRule {
    /// The key in the configuration, such as `policies.careful.tools`.
    pub key: String,
    /// The pattern without a match, and the nearest name.
    pub message: String,
}

impl std::fmt::Display for UnmatchedRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.key, self.message)
    }
}

/// The unmatched rules already reported.
#[derive(Debug, Default)]
pub struct ReportedUnmatched(Mutex<ReportedRules>);

/// What was reported; see [`ReportedUnmatched`].
#[derive(Debug, Default)]
pub struct ReportedRules {
    /// The rules of the last report.
    pub rules: BTreeSet<UnmatchedRule>,
    /// Whether the configuration was reloaded since the start: from then on, sessions are notified too.
    pub changed: bool,
}

impl ReportedUnmatched {
    /// Records a reload.
    pub fn changed(&self) {
        self.0.lock().changed = true;
    }

    /// Locks what was reported.
    pub fn lock(&self) -> MutexGuard<'_, ReportedRules> {
        self.0.lock()
    }
}
