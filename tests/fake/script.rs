//! The script written by a test: the server, its tools, and the behaviour of their calls.

use std::path::PathBuf;

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

use super::out::rpc_error;

/// The server's properties and behaviour. All keys are optional; an unlisted key is an error.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Script {
    /// Default: `fake`.
    pub name: Option<String>,
    /// Default: `1.0.0`.
    pub version: Option<String>,
    pub instructions: Option<String>,
    /// `legacy` supports only `initialize`, `modern` only `server/discover`, `dual` both.
    pub era: Era,
    /// A dual server that refuses `initialize` once it has answered `server/discover`.
    pub locks: bool,
    /// The legacy revision to answer with, whatever the client asked for.
    pub protocol: Option<String>,

    pub tools: Vec<Tool>,
    /// Adds this many tools `tool_0000`, `tool_0001`, ... which echo.
    pub tool_count: usize,
    /// Tools per page of `tools/list`.
    pub page_size: Option<usize>,
    /// `tools/list` never runs out of pages; the tools repeat under new cursors.
    pub page_loop: bool,
    /// The answers to `tools/list`, written as they are.
    pub list_flood: Option<Flood>,
    /// `ttlMs` of modern answers that carry one.
    pub ttl_ms: u64,
    pub prompts: Vec<Prompt>,
    pub resources: Vec<Resource>,
    /// Resource templates, as listed. URIs that start like one of them can be read, and their text is the
    /// URI.
    pub templates: Vec<Value>,
    /// Entries of `skills/list`. Their files are resources.
    pub skills: Vec<Value>,
    /// In the modern era each call first answers `input_required`, then runs as scripted.
    pub modern_needs_input: bool,
    /// Puts `resultType` on every result (true) or on none (false), whatever the era asks for.
    pub require_result_type: Option<bool>,

    /// Waits this long before reading anything.
    pub start_delay_ms: u64,
    /// Exits at once with this code.
    pub exit_at_start: Option<i32>,
    /// Exits at once with code 1 unless this file exists: a server that is down until a test creates it.
    pub exit_unless_file: Option<PathBuf>,
    /// Reads and never answers, not even the handshake.
    pub never_answer: bool,
    /// Crashes after it has answered this many calls.
    pub crash_after_calls: Option<u64>,
    /// Does not exit when its stdin closes.
    pub ignore_eof: bool,
    /// The program does not exit on SIGTERM either.
    pub ignore_sigterm: bool,
    /// Starts a `sleep 1000` of its own.
    pub grandchild: bool,
    /// Receives the process id of the grandchild, or the server's own without one.
    pub pid_file: Option<PathBuf>,

    /// Lines printed on stderr at the start.
    pub stderr_lines: Vec<String>,
    /// 1 MiB on stderr at the start and 256 KiB before each answer: blocks unless someone reads it.
    pub stderr_flood: bool,
    /// Lines that are not JSON, printed on stdout before anything else.
    pub stdout_noise: Vec<String>,
    pub noise_before_each_answer: bool,
    /// Receives one JSON line per `tools/call` message, and `{"cancelled":id}` per cancellation.
    pub call_log: Option<PathBuf>,
    /// Receives every message, one JSON line each.
    pub message_log: Option<PathBuf>,

    /// HTTP: receives the method and the path of each request, one JSON line each.
    pub request_log: Option<PathBuf>,
    /// HTTP: answers are event streams. Progress and questions to the client need this.
    pub sse: bool,
    /// HTTP: speaks the old HTTP+SSE transport at `/sse` instead; `/mcp` answers 405.
    pub legacy_sse: bool,
    /// HTTP+SSE: the address in the `endpoint` event, before the `?` and the session.
    pub sse_endpoint: Option<String>,
    /// HTTP+SSE: a stream breaks off after this many messages.
    pub sse_breaks_after: Option<u64>,
    /// HTTP: answers with this status ...
    pub http_status: Option<u16>,
    /// ... for only this many first requests.
    pub http_status_times: Option<u64>,
    /// HTTP: 401 for a request without this bearer token.
    pub require_bearer: Option<String>,
    /// HTTP: a legacy session is forgotten (404) after this many requests. The stream of HTTP+SSE stays open.
    pub session_expires_after: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Era {
    #[default]
    Legacy,
    Modern,
    Dual,
}

/// One tool. Unlisted keys go into its definition unchanged.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Tool {
    pub name: String,
    pub title: Option<String>,
    pub description: Option<String>,
    #[serde(alias = "inputSchema")]
    pub input_schema: Option<Value>,
    #[serde(alias = "outputSchema")]
    pub output_schema: Option<Value>,
    pub annotations: Option<Value>,
    #[serde(rename = "_meta")]
    pub meta: Option<Value>,
    /// The behaviour of calls: one [`On`], or a list of them for the first call, the second, and so on (the
    /// last one repeats).
    #[serde(deserialize_with = "one_or_many")]
    pub on: Vec<On>,
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// The behaviour of a call. First, in this order and if given: `noise`, `delay_ms`, `log`, `progress`,
/// `grow`, `rug_pull`, then `crash`, `hang` or `endless`. Then the answer: the first of `rpc_error`, `error`,
/// `result`, `elicit`, `sampling`, `roots`, `text`, `size`, `json_rows`, `counter`, `env`, `shell`,
/// `request`; without any of them, the arguments are echoed.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct On {
    /// The arguments as JSON text. This is the default; the key only makes it explicit.
    pub echo: bool,
    /// If the answer's text is JSON, the same value is also its `structuredContent`.
    pub structured: bool,
    pub text: Option<String>,
    /// The whole result, verbatim.
    pub result: Option<Value>,
    /// A result with `isError` and this text.
    pub error: Option<String>,
    /// Every nth call of the tool gives a result with `isError`, its text `failed: ` and the arguments.
    pub fail_every: Option<usize>,
    /// A JSON-RPC error, verbatim.
    pub rpc_error: Option<Value>,
    /// Exits without an answer.
    pub crash: bool,
    /// Never answers.
    pub hang: bool,
    /// Endless bytes without a line break.
    pub endless: bool,
    pub delay_ms: u64,
    /// This many progress notifications before the answer, if the caller gave a token.
    pub progress: u64,
    /// Their message, instead of one with the step.
    pub progress_says: Option<String>,
    /// The pause after each progress notification; without it, they come in a burst.
    pub progress_every_ms: u64,
    /// A log notification with this text.
    pub log: Option<String>,
    /// A line on stdout that is not JSON.
    pub noise: Option<String>,
    /// Text of this many bytes, in numbered lines.
    pub size: Option<usize>,
    /// A JSON array of this many objects as text.
    pub json_rows: Option<usize>,
    /// Adds a tool of this name and announces it.
    pub grow: Option<String>,
    /// Changes the tool's own description and announces it.
    pub rug_pull: bool,
    /// Notifies subscribers of this resource that it has changed.
    pub touch: Option<String>,
    /// Asks the client with these params of `elicitation/create`, and answers with the client's reply.
    pub elicit: Option<Value>,
    /// Asks the client's model: `true`, or the params of `sampling/createMessage`.
    pub sampling: Option<Value>,
    /// Asks for the client's roots.
    pub roots: bool,
    /// `{"n": this process's number of calls, "pid": its id}`.
    pub counter: bool,
    /// `{"env": the environment, "cwd": the folder, "args": the command line}`.
    pub env: bool,
    /// Runs the argument `run` in a shell and answers with the output, both streams.
    pub shell: bool,
    /// `{"params": all params, "headers": the headers of the HTTP request}`.
    pub request: bool,
    /// The call is a task that is working for this many `tasks/get` requests; then the answer is its result.
    pub task: Option<u64>,
    /// The task ends as `failed`.
    pub task_fails: bool,
    /// Answers under another request's id.
    pub wrong_id: bool,
    /// Answers twice.
    pub twice: bool,
    /// Written before the answer, or instead of it.
    pub flood: Option<Flood>,
    /// This many bytes on stderr before the answer, without a line break.
    pub stderr_bytes: usize,
    /// Stops reading, over stdio.
    pub stop_reading: bool,
}

/// Messages generated while being written, so they may be larger than memory: `head`, then `unit` until there
/// are `bytes`, then `tail`. In head and tail, `{id}` is the id of the request and `{n}` counts the messages.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Flood {
    pub head: String,
    pub unit: String,
    pub tail: String,
    pub bytes: usize,
    /// How many of them (default: one).
    pub times: Option<usize>,
    /// The flood is the answer.
    pub answers: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Prompt {
    pub name: String,
    pub description: Option<String>,
    pub arguments: Vec<Value>,
    /// The prompt's one message; `{{argument}}` is filled in.
    pub text: String,
}

/// One resource. Unlisted keys go into its definition unchanged.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Resource {
    pub uri: String,
    pub text: String,
    /// Readable but not listed.
    pub unlisted: bool,
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl Script {
    pub fn named(name: &str) -> Self {
        Self { name: Some(name.into()), ..Self::default() }
    }

    /// Adds a tool by name and the behaviour of its calls.
    pub fn tool(mut self, name: &str, on: Value) -> Self {
        let tool = json!({ "name": name, "description": format!("The tool {name}"), "on": on });
        self.tools.push(serde_json::from_value(tool).expect("`on` is written by a test"));
        self
    }
}

impl From<Value> for Script {
    fn from(script: Value) -> Self {
        serde_json::from_value(script).expect("the script is written by a test")
    }
}

fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<On>, D::Error> {
    let value = Value::deserialize(deserializer)?;
    let values = if let Value::Array(values) = value { values } else { vec![value] };
    values.into_iter().map(|on| serde_json::from_value(on).map_err(serde::de::Error::custom)).collect()
}

impl Tool {
    pub(super) fn definition(&self) -> Value {
        let mut definition = Map::new();
        definition.insert("name".into(), json!(self.name));
        let mut put =
            |key: &str, value: Option<Value>| value.map(|value| definition.insert(key.into(), value));
        put("title", self.title.clone().map(Value::from));
        put("description", self.description.clone().map(Value::from));
        put("inputSchema", Some(self.input_schema.clone().unwrap_or_else(|| json!({ "type": "object" }))));
        put("outputSchema", self.output_schema.clone());
        put("annotations", self.annotations.clone());
        for (key, value) in &self.extra {
            put(key, Some(value.clone()));
        }
        put("_meta", self.meta.clone());
        Value::Object(definition)
    }

    /// Returns the behaviour of the `n`th call, counted from 0.
    pub(super) fn on(&self, n: usize) -> On {
        self.on.get(n).or(self.on.last()).cloned().unwrap_or_default()
    }
}

impl Prompt {
    pub(super) fn definition(&self) -> Value {
        let mut definition = json!({ "name": self.name, "arguments": self.arguments });
        if let Some(description) = &self.description {
            definition["description"] = json!(description);
        }
        definition
    }

    pub(super) fn render(&self, given: &Value) -> Result<Value, Value> {
        let mut text = self.text.clone();
        for argument in &self.arguments {
            let name = argument["name"].as_str().unwrap_or_default();
            match given[name].as_str() {
                Some(value) => text = text.replace(&format!("{{{{{name}}}}}"), value),
                None if argument["required"] == true => {
                    return Err(rpc_error(-32602, &format!("Missing argument: {name}")));
                }
                None => {}
            }
        }
        let messages = json!([{ "role": "user", "content": { "type": "text", "text": text } }]);
        Ok(json!({ "description": self.description.as_deref().unwrap_or_default(), "messages": messages }))
    }
}

impl Script {
    pub(super) fn has_resources(&self) -> bool {
        !self.resources.is_empty() || !self.templates.is_empty()
    }
}

impl Resource {
    pub(super) fn definition(&self) -> Value {
        let mut definition = self.extra.clone();
        definition.insert("uri".into(), json!(self.uri));
        definition.entry("name").or_insert(json!(self.uri));
        Value::Object(definition)
    }

    pub(super) fn contents(&self) -> Value {
        let mut contents = json!({ "uri": self.uri, "text": self.text });
        if let Some(kind) = self.extra.get("mimeType") {
            contents["mimeType"] = kind.clone();
        }
        json!({ "contents": [contents] })
    }
}
