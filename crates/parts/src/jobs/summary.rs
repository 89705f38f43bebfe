//! Jobs as answers show them.

use std::{sync::atomic::Ordering, time::Duration};

use nonet_api::work::{TaskState, TaskSummary};
use nonet_base::clock::at_unix_ms;
use nonet_store::{JobRow, JobState};

use super::Job;

/// The message for a task that is not on disk.
const PASSING: &str = "It is kept in memory only, until this gateway ends: the store cannot be written.";
/// The message for a task whose gateway ended first.
const LOST: &str =
    "The gateway that ran the call ended during it. Whether the call had an effect is not known.";

impl Job {
    /// Returns the job as answers show it.
    pub fn summary(&self) -> TaskSummary {
        let end = self.end();
        let elapsed = end.as_ref().map_or_else(|| self.began.elapsed(), |end| end.took);
        let state = end.map_or(TaskState::Running, |end| end.state);
        let progress = self.progress.lock().clone();
        TaskSummary {
            progress: progress.and_then(|progress| progress()),
            message: self.is_passing.load(Ordering::Acquire).then_some(PASSING.into()),
            ..TaskSummary::new(self.id.clone(), self.label.clone(), state, elapsed, self.since)
        }
    }
}

/// Returns a job that only the store has.
pub(super) fn stored(row: JobRow, now_ms: u64) -> TaskSummary {
    let (state, until_ms) = match row.state {
        JobState::Working if row.leased => (TaskState::Running, now_ms),
        JobState::Working => (TaskState::Lost, now_ms),
        JobState::Done { ended_ms, failed: true } => (TaskState::Failed, ended_ms),
        JobState::Done { ended_ms, failed: false } => (TaskState::Completed, ended_ms),
        JobState::Cancelled { ended_ms } => (TaskState::Cancelled, ended_ms),
    };
    let elapsed = Duration::from_millis(until_ms.saturating_sub(row.started_ms));
    TaskSummary {
        message: (state == TaskState::Lost).then_some(LOST.into()),
        ..TaskSummary::new(row.id, row.label, state, elapsed, at_unix_ms(row.started_ms))
    }
}
