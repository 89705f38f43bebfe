//! Notices: what a client needs to know without having asked for it.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::{
    fault::NextStep,
    is_zero,
    question::AskAnswer,
    schedules::ScheduleSubject,
    tools::FoundMark,
    work::{CheckError, ShownValue, WatchCounts, WatchState},
};

/// A notice. Its `kind` says which.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Notice {
    /// The params of a call were repaired.
    ParamsRepaired {
        /// The tool.
        tool: String,
        /// What was changed.
        changes: Vec<String>,
    },
    /// The arguments of a meta-tool were repaired.
    ArgumentsRepaired {
        /// The meta-tool.
        tool: String,
        /// What was changed.
        changes: Vec<String>,
    },
    /// The input of an app or a skill was repaired.
    InputRepaired {
        /// The app.
        #[serde(skip_serializing_if = "Option::is_none")]
        app: Option<String>,
        /// The skill.
        #[serde(skip_serializing_if = "Option::is_none")]
        skill: Option<String>,
        /// What was changed.
        changes: Vec<String>,
    },
    /// A `select` probably does not find what it is for.
    SelectNote {
        /// The tool.
        #[serde(skip_serializing_if = "Option::is_none")]
        tool: Option<String>,
        /// Why.
        message: String,
    },
    /// The server asked the client for something during a call, and got nothing.
    RequestDeclined {
        /// The tool.
        tool: String,
        /// What it asked for.
        methods: Vec<String>,
        /// What happened.
        message: String,
    },
    /// An answer does not have the form that its tool declares.
    OutputMismatch {
        /// The tool.
        tool: String,
        /// What differs.
        message: String,
    },
    /// The client shows user interfaces, and gets no tool with one.
    UiLeftOut {
        /// How many tools have one, by server.
        servers: Vec<String>,
        /// What to do.
        hint: Cow<'static, str>,
    },
    /// What a REST service said beside its answer.
    Response {
        /// The tool.
        tool: String,
        /// What it said.
        #[serde(flatten)]
        extras: ResponseExtras,
    },
    /// Params or an answer contain secrets.
    SecretsFound {
        /// The tool, prompt or URI.
        of: String,
        /// The secrets.
        found: Vec<FoundSecret>,
    },
    /// An answer contains text that reads like instructions.
    InstructionsFound(FoundInAnswer),
    /// An answer contains characters that people do not see.
    HiddenCharactersFound(FoundInAnswer),
    /// An answer has the form of Nonet's own answers.
    ImitationFound(FoundInAnswer),
    /// The `_meta` of a request was too large for servers.
    MetaLeftOut {
        /// How large.
        message: String,
    },
    /// Notices were dropped, because too many waited.
    NoticesLost {
        /// How many.
        count: u64,
    },
    /// The user has approved a call.
    Approved {
        /// The tool.
        tool: String,
        /// How long the approval holds.
        holds_for: Cow<'static, str>,
    },
    /// The user has answered a question outside of the chat.
    QuestionAnswered {
        /// The question.
        token: String,
        /// The answer.
        #[serde(flatten)]
        answer: AskAnswer,
    },
    /// A watch has news.
    Watch(Box<WatchNotice>),
    /// A reminder is due.
    Reminder(Box<ReminderNotice>),
    /// A schedule has run.
    ScheduledRun(Box<RunNotice>),
    /// A server requires sign-in.
    SignInNeeded {
        /// The server.
        server: String,
        /// The command that signs in.
        #[serde(skip_serializing_if = "Option::is_none")]
        command: Option<String>,
        /// What to do.
        #[serde(skip_serializing_if = "Option::is_none")]
        hint: Option<Cow<'static, str>>,
    },
    /// A server's calls are paused, because they keep failing.
    CallsPaused {
        /// The server.
        server: String,
        /// What happened.
        message: String,
        /// The last error.
        last_error: String,
        /// When a call may try again.
        retry_after_ms: u64,
        /// The tool, if only its calls are paused.
        #[serde(skip_serializing_if = "Option::is_none")]
        tool: Option<String>,
    },
    /// A server's calls are resumed.
    CallsResumed {
        /// The server.
        server: String,
        /// The tool, if only its calls were paused.
        #[serde(skip_serializing_if = "Option::is_none")]
        tool: Option<String>,
    },
    /// A server changed its tools while it was in use.
    ToolsChanged(Box<ToolsChanged>),
    /// The configuration leaves servers out because of faults.
    ServersLeftOut {
        /// The servers.
        servers: Vec<String>,
        /// The faults.
        faults: Vec<String>,
        /// What to do.
        hint: Cow<'static, str>,
    },
    /// The changed servers.toml cannot be read.
    ConfigFaulty {
        /// Why.
        message: String,
        /// What to do.
        hint: Cow<'static, str>,
    },
    /// The changed servers.toml is refused, because it loses a protection.
    ConfigRefused {
        /// What happened.
        message: String,
        /// What it would lose.
        #[serde(default)]
        lost: Vec<String>,
        /// What to do.
        #[serde(default)]
        hint: String,
    },
    /// The changed servers.toml says the same.
    ConfigUnchanged,
    /// The changed servers.toml is in use.
    ConfigChanged {
        /// What it changed.
        #[serde(flatten)]
        changes: WorldChanges,
        /// The faults of its entries.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        faults: Vec<String>,
        /// What happens to entries with a fault.
        #[serde(skip_serializing_if = "Option::is_none")]
        hint: Option<Cow<'static, str>>,
    },
    /// Rules of servers.toml match no tool.
    RulesWithoutTools {
        /// The rules.
        rules: Vec<String>,
        /// What to do.
        hint: Cow<'static, str>,
    },
    /// servers.toml replaces a server that the session added.
    ServerReplaced {
        /// The server.
        server: String,
        /// What happened.
        message: String,
    },
    /// servers.toml ends a server that the session added.
    ServerRemoved {
        /// The server.
        server: String,
        /// What happened.
        message: String,
    },
}

impl From<Notice> for Value {
    fn from(notice: Notice) -> Self {
        json!(notice)
    }
}

/// What a REST service said beside its answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ResponseExtras {
    /// The response headers that the configuration names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headers: Option<Map<String, Value>>,
    /// The way to the next page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_step: Option<NextPage>,
}

/// The way to the next page of a REST service's answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum NextPage {
    /// The call that gets it.
    Call(NextStep),
    /// Where it is, in words, if no call of the same tool gets it.
    Told(String),
}

/// A secret in params or in an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FoundSecret {
    /// What it is.
    pub what: String,
    /// Its place.
    #[serde(rename = "where")]
    pub place: String,
    /// `params` or `answer`.
    #[serde(rename = "in", skip_serializing_if = "Option::is_none")]
    pub part: Option<Cow<'static, str>>,
    /// `told` or `redacted`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub done: Option<Cow<'static, str>>,
}

/// Suspicious text in an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FoundInAnswer {
    /// The tool, prompt or URI.
    pub of: String,
    /// What was found.
    pub found: Vec<FoundMark>,
    /// How to read it.
    pub message: Cow<'static, str>,
}

/// Why the client gets a notice about a check of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NoticeReason {
    /// The value has changed.
    Changed,
    /// The tool has started to fail.
    Failed,
    /// The tool works again.
    Recovered,
    /// The expression has become true.
    ThresholdReached,
    /// A batch of checks is complete.
    Summary,
    /// A check was made.
    Checked,
    /// There were too many failures in a row.
    Paused,
    /// All checks were made.
    Finished,
}

/// The news of a watch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WatchNotice {
    /// The watch.
    pub watcher_id: String,
    /// The full name of the tool.
    pub tool: String,
    /// The reason.
    pub why: NoticeReason,
    /// Its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// What happened, in a sentence.
    pub message: String,
    /// Why the check failed, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<CheckError>,
    /// The value.
    #[serde(flatten)]
    pub value: ShownValue,
    /// The value before the change, if it is small.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Value>,
    /// How many checks were made.
    pub checks: u64,
    /// The checks that the notice is about, if there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<WatchCounts>,
    /// The state of the watch; absent if it makes checks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<WatchState>,
    /// The call to make next.
    pub next_step: NextStep,
}

/// A due reminder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReminderNotice {
    /// The message, and its name.
    #[serde(flatten)]
    pub subject: ScheduleSubject,
    /// When it was due.
    pub due: String,
    /// How late it is, if it is late.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub late_ms: u64,
    /// When it comes again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_run: Option<String>,
}

/// A run of a schedule that has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunNotice {
    /// The schedule.
    pub job_id: String,
    /// The tool or app, and the schedule's name.
    #[serde(flatten)]
    pub subject: ScheduleSubject,
    /// The outcome.
    #[serde(flatten)]
    pub outcome: RunOutcome,
    /// How late it began, if it was late.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub late_ms: u64,
    /// Its task.
    pub task_id: String,
    /// When it runs next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_run: Option<String>,
    /// The call to make next.
    pub next_step: NextStep,
}

/// The outcome of a scheduled run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunOutcome {
    /// Whether it succeeded; absent if that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub success: Option<bool>,
    /// Its result, if it is small.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<CheckError>,
    /// Whether the run was repeated, because the gateway ended during it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub again: bool,
    /// `unknown`, if the run was cut off and not repeated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Cow<'static, str>>,
    /// What happened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<Cow<'static, str>>,
    /// The params of a run that was cut off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub params: Option<Map<String, Value>>,
    /// The input of a run that was cut off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
}

/// What a server changed while it was in use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ToolsChanged {
    /// The server.
    pub server: String,
    /// New tools.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub added: Vec<String>,
    /// Tools that are gone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<String>,
    /// Tools with another definition.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub redefined: Vec<String>,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<Cow<'static, str>>,
    /// The call to make next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_step: Option<NextStep>,
    /// Definitions whose calls wait for trust.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub held: Vec<String>,
    /// How definitions differ from the trusted ones.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<Difference>,
    /// The command that shows and trusts them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

/// How a definition differs from the trusted one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Difference {
    /// The definition.
    pub name: String,
    /// The differences; text from the server.
    pub difference: String,
}

/// What a new configuration changed, by server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct WorldChanges {
    /// New servers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub started: Vec<String>,
    /// Servers with another command, address or concurrency.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub restarted: Vec<String>,
    /// Servers removed from the configuration.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stopped: Vec<String>,
    /// Running servers with other tools, policies or limits.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<String>,
    /// Settings that take effect when the gateway restarts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub needs_restart: Vec<Cow<'static, str>>,
}
