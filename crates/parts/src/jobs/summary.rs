//! A task as answers show it.

use std::{sync::atomic::Ordering, time::SystemTime};

use nonet_base::clock::{at_unix_ms, millis};
use nonet_store::{JobRow, JobState};
use nonet_text::fault::NextStep;
use serde::Serialize;
use serde_json::{Value, json};

use super::Job;

/// The message for a task that is not on disk.
const PASSING: &str = "It is kept in memory only, until this gateway ends: the store cannot be written.";

/// The state of a task, as answers show it in snake case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// The task has not ended, and the gateway that runs it still exists.
    Running,
    /// The task has a result that is not an error.
    Completed,
    /// The task's result is an error.
    Failed,
    /// The task was cancelled before it ended.
    Cancelled,
    /// The gateway ended before the task did.
    Lost,
}

impl TaskState {
    /// Whether the task has a result, which may be an error.
    pub fn has_result(self) -> bool {
        matches!(self, TaskState::Completed | TaskState::Failed | TaskState::Cancelled)
    }
}

/// A task: a job of this process, of an earlier run or of another gateway.
#[derive(Clone, Debug, Serialize)]
pub struct TaskSummary {
    /// The handle of the task: `job-` and 12 hex digits.
    pub task_id: String,
    /// The state when the summary was made.
    pub state: TaskState,
    /// What runs, for people.
    pub tool: String,
    /// How long the task took, or how long ago it began if it has not ended or is lost.
    pub elapsed_ms: u64,
    /// The last progress; `None` if there is none or the task has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Value>,
    /// More about the state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<&'static str>,
    /// The kind of the notice, if the summary is sent as one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<&'static str>,
    /// The error of a failed task, if the answer has no room for the result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Value>,
    /// The call that waits for the task's result, if the answer offers one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_step: Option<NextStep>,
    /// When the task began; not part of answers.
    #[serde(skip)]
    pub since: SystemTime,
}

impl Job {
    /// Returns the job as answers show it.
    pub fn summary(&self) -> TaskSummary {
        let end = self.end();
        let elapsed = end.as_ref().map_or_else(|| self.began.elapsed(), |end| end.took);
        let progress = self.progress.lock().clone();
        TaskSummary {
            task_id: self.id.clone(),
            state: end.map_or(TaskState::Running, |end| end.state),
            tool: self.label.clone(),
            elapsed_ms: millis(elapsed),
            progress: progress.and_then(|progress| progress()),
            message: self.is_passing.load(Ordering::Acquire).then_some(PASSING),
            kind: None,
            error: None,
            next_step: None,
            since: self.since,
        }
    }
}

impl TaskSummary {
    /// Returns a job that only the store has.
    pub(super) fn stored(row: JobRow, now_ms: u64) -> Self {
        let (state, until_ms) = match row.state {
            JobState::Working if row.leased => (TaskState::Running, now_ms),
            JobState::Working => (TaskState::Lost, now_ms),
            JobState::Done { ended_ms, failed: true } => (TaskState::Failed, ended_ms),
            JobState::Done { ended_ms, failed: false } => (TaskState::Completed, ended_ms),
            JobState::Cancelled { ended_ms } => (TaskState::Cancelled, ended_ms),
        };
        let lost =
            "The gateway that ran the call ended during it. Whether the call had an effect is not known.";
        Self {
            task_id: row.id,
            state,
            tool: row.label,
            elapsed_ms: until_ms.saturating_sub(row.started_ms),
            progress: None,
            message: (state == TaskState::Lost).then_some(lost),
            kind: None,
            error: None,
            next_step: None,
            since: at_unix_ms(row.started_ms),
        }
    }

    /// Adds the call that waits for the result.
    pub fn with_wait_call(mut self) -> Self {
        self.next_step = Some(wait_call(&self.task_id));
        self
    }

    /// Turns the summary into the notice that the task has ended.
    pub fn into_notice(self) -> Value {
        json!(Self { kind: Some("task_ended"), ..self.with_wait_call() })
    }
}

/// Returns the call that waits for a task and yields its result.
pub fn wait_call(id: &str) -> NextStep {
    NextStep::own("background_run", json!({ "task_id": id, "wait": true }))
}

/// Returns the call that lists the tasks of a session.
pub fn list_call() -> NextStep {
    NextStep::own("background_run", json!({ "list_tasks": true }))
}
