//! Schedules and reminders.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{fault::NextStep, is_zero};

/// What a schedule is for: a tool, an app or a message, and its label.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ScheduleSubject {
    /// The tool that it calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// The app that it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_id: Option<String>,
    /// The message of which it reminds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

/// A schedule or reminder that was made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NewSchedule {
    /// Its id.
    pub job_id: String,
    /// When it runs; `null` if never.
    pub next_run: Option<String>,
    /// What it is for.
    #[serde(flatten)]
    pub subject: ScheduleSubject,
    /// The time zone of `next_run`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// Whether it replaces another one with the same label.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub overwritten: bool,
    /// What ends it early.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<Cow<'static, str>>,
    /// The call to make next.
    pub next_step: NextStep,
    /// Repairs to its params.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub repaired: Vec<String>,
}

/// A schedule or reminder in a list, or in full.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ScheduleView {
    /// Its id.
    pub job_id: String,
    /// What it is for.
    #[serde(flatten)]
    pub subject: ScheduleSubject,
    /// The time as written.
    pub when: String,
    /// The time zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// When it runs next; `null` if it runs now for the last time.
    pub next_run: Option<String>,
    /// How often it has run.
    pub runs: u64,
    /// How often it runs; absent without a limit.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub max_runs: u64,
    /// The task of the run in progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running: Option<String>,
    /// The last run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_run: Option<RunView>,
    /// The tool's params.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub params: Option<Map<String, Value>>,
    /// The app's input.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
}

/// A run of a schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunView {
    /// When it ended.
    pub at: String,
    /// Whether it succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub success: Option<bool>,
    /// `unknown`, if the run was cut off and not repeated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Cow<'static, str>>,
    /// Its task.
    pub task_id: String,
}

/// The schedules and reminders of a client.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ScheduleList {
    /// All of them.
    pub schedules: Vec<ScheduleView>,
    /// How many there are.
    pub total: usize,
}

/// A schedule that was cancelled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CancelledSchedule {
    /// Its id.
    pub job_id: String,
    /// `cancelled`.
    pub state: Cow<'static, str>,
    /// What it was for.
    #[serde(flatten)]
    pub subject: ScheduleSubject,
    /// The task of the run in progress, which continues.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running: Option<String>,
    /// The call to make next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_step: Option<NextStep>,
}
