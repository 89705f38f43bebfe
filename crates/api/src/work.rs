//! Work that goes on without the model: tasks, watches, schedules, kept results, workflows that wait, facts.

use std::{
    borrow::Cow,
    time::{Duration, SystemTime},
};

use nonet_base::clock::millis;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::{fault::NextStep, is_zero, schedules::ScheduleView};

/// The state of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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

/// A task: a call in the background.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TaskSummary {
    /// The handle of the task: `job-` and 12 hex digits.
    pub task_id: String,
    /// The state when the summary was made.
    pub state: TaskState,
    /// What runs, for people.
    pub tool: String,
    /// How long the task took, or how long ago it began if it has not ended or is lost.
    pub elapsed_ms: u64,
    /// The last progress; absent if there is none or the task has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Value>,
    /// More about the state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<Cow<'static, str>>,
    /// `task_ended`, if the summary is a notice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<Cow<'static, str>>,
    /// The error of a failed task, if the answer has no room for the result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Value>,
    /// The call that waits for the task's result, if the answer offers one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_step: Option<NextStep>,
    /// When the task began; not part of answers.
    #[serde(skip, default = "epoch")]
    pub since: SystemTime,
}

fn epoch() -> SystemTime {
    SystemTime::UNIX_EPOCH
}

impl TaskSummary {
    /// Creates the summary of a task.
    pub fn new(
        task_id: String,
        tool: String,
        state: TaskState,
        elapsed: Duration,
        since: SystemTime,
    ) -> Self {
        Self {
            task_id,
            state,
            tool,
            elapsed_ms: millis(elapsed),
            progress: None,
            message: None,
            kind: None,
            error: None,
            next_step: None,
            since,
        }
    }

    /// Adds the call that waits for the result.
    pub fn with_wait_call(mut self) -> Self {
        self.next_step = Some(wait_call(&self.task_id));
        self
    }

    /// Turns the summary into the notice that the task has ended.
    pub fn into_notice(self) -> Value {
        json!(Self { kind: Some("task_ended".into()), ..self.with_wait_call() })
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

/// The tasks of a session.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TaskList {
    /// The latest ones first.
    pub tasks: Vec<TaskSummary>,
    /// How many there are.
    pub total: usize,
}

/// When a watch has news.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NotifyWhen {
    /// The value differs from the value of the last successful check, or is the first one after failures.
    #[default]
    OnChange,
    /// A check fails after a successful one, or succeeds after a failed one.
    OnError,
    /// The expression has become true.
    OnThreshold,
    /// After each batch of checks.
    Summary,
    /// After each check.
    Always,
}

/// The state of a watch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WatchState {
    /// It makes checks.
    #[default]
    Active,
    /// It makes no checks until it is resumed.
    Paused,
    /// It has made all of its checks.
    Finished,
    /// It was removed.
    Stopped,
}

/// The number of checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WatchCounts {
    /// All of them.
    pub checks: u64,
    /// Checks whose value differed from the one before.
    pub changes: u64,
    /// Failed checks.
    pub errors: u64,
}

/// The error of a failed check or run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CheckError {
    /// The code of the fault.
    pub code: String,
    /// The message of the fault.
    pub message: String,
}

/// A value in an answer or a notice: the whole value if it is small, else its beginning and a reference.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ShownValue {
    /// The whole value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
    /// The reference that `gateway.fetch_result` takes.
    #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// The size of the value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<usize>,
    /// Its beginning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preview: Option<String>,
    /// How long the reference lasts, if the store cannot keep it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lasts: Option<Cow<'static, str>>,
}

/// A watch in a list, or in full.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WatchView {
    /// Its id.
    pub watcher_id: String,
    /// Its name in notices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The full name of the tool.
    pub tool: String,
    /// Whether it makes checks.
    pub state: WatchState,
    /// When it has news.
    pub notify_when: NotifyWhen,
    /// Seconds from one check to the next.
    pub interval: u64,
    /// When it makes the next check; `null` if it makes none.
    pub next_check_at: Option<String>,
    /// All checks.
    pub counts: WatchCounts,
    /// Why the last check failed, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<CheckError>,
    /// The tool's params.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub params: Option<Map<String, Value>>,
    /// How many checks it makes; absent without a limit.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub max_checks: u64,
    /// The jq filter for the compared value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub select: Option<String>,
    /// The jq filter that says when a threshold is reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expression: Option<String>,
    /// When the last value was seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_value_at: Option<String>,
    /// The last value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_value: Option<Value>,
    /// What ends the watch early.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<Cow<'static, str>>,
    /// The call to make next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_step: Option<NextStep>,
}

/// The watches of a client.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct WatchList {
    /// All watches, oldest first.
    pub watches: Vec<WatchView>,
    /// How many there are.
    pub total: usize,
}

/// A watch that was started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StartedWatch {
    /// Its id.
    pub watcher_id: String,
    /// Whether it makes checks.
    pub state: WatchState,
    /// When it makes the next check; `null` if it makes none.
    pub next_check_at: Option<String>,
    /// The full name of the tool.
    pub tool: String,
    /// Repairs to its params.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub repaired: Vec<String>,
    /// Why the first check failed, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<CheckError>,
    /// The first value.
    #[serde(flatten)]
    pub value: ShownValue,
    /// Whether the threshold is reached already.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub is_met: bool,
    /// The resource whose changes the server itself reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// What else to know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// What ends the watch early.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<Cow<'static, str>>,
    /// The call to make next.
    pub next_step: NextStep,
}

/// A watch that was stopped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StoppedWatch {
    /// Its id.
    pub watcher_id: String,
    /// `stopped`.
    pub state: WatchState,
    /// The full name of the tool.
    pub tool: String,
    /// All checks.
    pub counts: WatchCounts,
}

/// The last checks of a watch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WatchHistory {
    /// The watch.
    pub watcher_id: String,
    /// The last checks, newest first.
    pub checks: Vec<CheckView>,
    /// How many checks there were.
    pub total: u64,
}

/// A check of a watch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CheckView {
    /// When it began.
    pub at: String,
    /// Whether there was a value.
    pub success: bool,
    /// Whether the value differed from the one before.
    pub changed: bool,
    /// How long the check took.
    pub elapsed_ms: u64,
    /// The code of its error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A piece of work with the profile of its clients.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "{T}OfClient")]
pub struct Owned<T> {
    /// The work.
    #[serde(flatten)]
    pub work: T,
    /// The profile of its clients; empty without one.
    pub owner: String,
}

/// A kept result, without its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeptRow {
    /// The reference that params and `gateway.fetch_result` use: `r-` and 10 hex digits.
    pub id: String,
    /// The profile under which the result was kept; empty without one.
    pub owner: String,
    /// The size of its value, as compact JSON.
    pub bytes: u64,
    /// When it was kept, in milliseconds since 1970.
    pub at_ms: u64,
}

/// How much is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeptCounts {
    /// Results and jobs, including running ones.
    pub entries: u64,
    /// The total size of their values as compact JSON.
    pub bytes: u64,
}

/// A workflow that waits for an answer.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct WorkflowView {
    /// Its id, the token of its question.
    pub id: String,
    /// The profile of its clients; empty without one.
    pub owner: String,
    /// The workflow.
    pub app_id: String,
    /// The step that asks.
    pub step: String,
    /// The question.
    pub question: String,
    /// When it began to wait, in milliseconds since 1970.
    pub since_ms: u64,
    /// The possible answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub choices: Option<Value>,
    /// The workflow's input.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
}

/// The work of all clients, latest first.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct AllWork {
    /// The tasks.
    pub tasks: Vec<Owned<TaskSummary>>,
    /// The watches.
    pub watches: Vec<Owned<WatchView>>,
    /// The schedules and reminders.
    pub schedules: Vec<Owned<ScheduleView>>,
    /// The kept results.
    pub results: Vec<KeptRow>,
    /// The workflows that wait for an answer.
    pub workflows: Vec<WorkflowView>,
    /// How much is stored; `null` if it is not known.
    pub kept: Option<KeptCounts>,
}

/// One piece of work in full.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum WorkDetails {
    /// A task with its result.
    Task(Box<TaskDetails>),
    /// A watch.
    Watch(Box<WatchView>),
    /// A schedule.
    Schedule(Box<ScheduleView>),
    /// A workflow with its input.
    Workflow(Box<WorkflowView>),
    /// A kept result.
    Result(KeptDetails),
    /// A fact, as it is stored.
    Fact(Value),
}

/// A task with its result.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TaskDetails {
    /// The task.
    #[serde(flatten)]
    pub task: TaskSummary,
    /// Its result, as much as can be shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
}

/// A kept result.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct KeptDetails {
    /// As much of it as can be shown.
    pub result: Value,
}

/// A fact in a list.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct FactView {
    /// Its id.
    pub id: String,
    /// The profile of its clients; empty without one.
    pub owner: String,
    /// The beginning of its text.
    pub text: String,
    /// Its tags.
    pub tags: Vec<String>,
    /// When it was remembered, in milliseconds since 1970.
    pub at_ms: u64,
}

/// The facts that fit a query.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct FactList {
    /// The best ones first; without a query, the newest.
    pub facts: Vec<FactView>,
    /// How many there are.
    pub total: usize,
    /// Whether the gateway remembers facts.
    pub remembers: bool,
}

/// The kind of a piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WorkKind {
    /// A call in the background.
    Task,
    /// A repeated call.
    Watch,
    /// A call, an app or a reminder for later.
    Schedule,
    /// A remembered fact.
    Fact,
    /// A kept result.
    Result,
    /// A workflow that waits for an answer.
    Workflow,
}

/// The user's action on a piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WorkAction {
    /// Cancels a task.
    Cancel,
    /// Pauses a watch.
    Pause,
    /// Resumes a watch.
    Resume,
    /// Removes it, which also ends a watch or schedule.
    Delete,
}
