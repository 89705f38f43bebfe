//! Answers of scripts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::is_zero;

/// What a script returned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ScriptAnswer {
    /// Its id: `script-` and 20 hex digits. `gateway.save_script` takes it.
    pub task_id: String,
    /// The app that it is, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app_id: Option<String>,
    /// Its label, if it has one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub script: String,
    /// What it returned.
    pub output: Value,
    /// How many tools it called in this run.
    pub tool_calls: usize,
    /// How many calls had ended in an earlier run, and were not made again.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub earlier_calls: usize,
    /// How many answers of earlier runs it did not ask for again, because its text or a result has changed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unused_answers: usize,
    /// The end of what it logged.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub log: String,
    /// How long this run took.
    pub elapsed_ms: u64,
}

/// What was done by a script that has stopped early: the details of its fault.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ScriptStop {
    /// The line at which it stopped, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// The column, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<u32>,
    /// The end of what it logged.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub log: String,
    /// How many calls have ended, those of earlier runs among them.
    pub calls: usize,
    /// How many of them failed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failed: usize,
    /// The calls, those that may have changed something first; at most 12.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub done: Vec<ScriptCall>,
}

/// A call of a script that has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ScriptCall {
    /// The tool's full name.
    pub name: String,
    /// The beginning of its params, as JSON.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub params: String,
    /// Whether its server does not declare it read-only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub changes: bool,
    /// Where its value is kept.
    #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// The message of its error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}
