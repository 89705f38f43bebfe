//! The messages between the gateway and the worker of a script: one line of JSON each.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The longest line that the gateway reads from a worker, in bytes.
pub const MAX_LINE: usize = 16 << 20;
/// How much of what a script logs is kept, in bytes: the end of it.
pub const LOG_BYTES: usize = 4 << 10;

/// The first message to a worker.
#[derive(Debug, Serialize, Deserialize)]
pub struct Start {
    /// The text of the script.
    pub script: String,
    /// Its input, as JSON.
    pub input: Box<RawValue>,
    /// What random numbers are made from.
    pub seed: u64,
    /// The time when the script began, in milliseconds since 1970.
    pub now_ms: u64,
    /// How many calls the script may make.
    pub max_calls: usize,
    /// How long it may compute, in milliseconds of CPU time.
    pub cpu_ms: u64,
    /// How much memory it may use, in bytes.
    pub memory: usize,
}

/// A message to a running worker.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToWorker {
    /// The answer to a request.
    Settle {
        /// The number of the request.
        id: u64,
        /// Whether `value` is a value; else it is a fault.
        ok: bool,
        /// A value, or the members of a fault.
        value: Box<RawValue>,
        /// When the answer came, in milliseconds since 1970: the time that the script sees.
        at_ms: u64,
    },
    /// The request waits for the user.
    Held {
        /// The number of the request.
        id: u64,
    },
}

/// A message from a worker.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromWorker {
    /// The script asks for something.
    Request(Request),
    /// The script waits for answers, and does nothing else meanwhile.
    Idle {
        /// The end of what it has logged, if that has changed.
        #[serde(skip_serializing_if = "Option::is_none")]
        log: Option<String>,
    },
    /// How far the script is.
    Progress(Progress),
    /// The script has ended.
    Done {
        /// What it returned, as JSON.
        value: Box<RawValue>,
        /// The end of what it has logged.
        log: String,
    },
    /// The script has failed.
    Failed {
        /// Why.
        failure: Failure,
        /// The end of what it has logged.
        log: String,
    },
}

/// How far a script is.
#[derive(Debug, Serialize, Deserialize)]
pub struct Progress {
    /// How much is done, of `total` if that is known.
    pub done: Option<f64>,
    /// How much there is.
    pub total: Option<f64>,
    /// What happens now.
    pub message: Option<String>,
}

/// What a script asks for.
#[derive(Debug, Serialize, Deserialize)]
pub struct Request {
    /// Its number, which the answer has.
    pub id: u64,
    /// What it is.
    #[serde(flatten)]
    pub op: Op,
}

/// The kinds of requests.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "op")]
pub enum Op {
    /// Call a tool.
    Call {
        /// The tool, under any of its names.
        name: String,
        /// Its params.
        params: serde_json::Value,
    },
    /// Search for tools.
    Search {
        /// What for.
        query: String,
        /// The further arguments of a search.
        #[serde(flatten)]
        more: serde_json::Map<String, serde_json::Value>,
    },
    /// Describe a tool.
    Describe {
        /// The tool, under any of its names.
        name: String,
    },
    /// Read a kept result.
    Result {
        /// Its reference.
        #[serde(rename = "ref")]
        reference: String,
        /// How.
        how: Reading,
        /// The filter, for `jq`.
        filter: Option<String>,
        /// The first line, for `lines`.
        #[serde(default)]
        from: usize,
    },
    /// Ask the user.
    Ask {
        /// The question.
        question: String,
        /// The answers to choose from.
        choices: Option<Vec<String>>,
    },
    /// Wait.
    Sleep {
        /// How long, in milliseconds.
        ms: f64,
    },
}

/// How a kept result is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reading {
    /// Its value.
    Json,
    /// Its text.
    Text,
    /// A page of its lines.
    Lines,
    /// What a jq filter makes of its value.
    Jq,
}

/// Why a script has failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// What kind of failure it is.
    pub kind: FailureKind,
    /// The error's message, with its name.
    pub message: String,
    /// Where, in lines of the script from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// Where in the line, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<u32>,
    /// The `code` of the error, if it is of a call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
}

/// The kinds of failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// The text is not JavaScript; nothing has run.
    Syntax,
    /// An error that the script did not catch.
    Uncaught,
    /// The script computed for too long.
    Cpu,
    /// The script needed too much memory.
    Memory,
    /// The script waits for something that never comes.
    Stuck,
}
