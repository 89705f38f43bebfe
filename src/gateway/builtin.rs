//! The category `gateway`: Nonet's own tools, found by search and run by `execute_tool`.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use rmcp::model::ErrorCode;
use serde_json::{Map, Value, json};

use super::{
    Gateway, Known,
    call::{Request, background_call, text_result},
    interrupt::Interrupt,
    session::{AsTask, Caller},
};
use crate::{
    downstream::{State, cause},
    fault::{Code, Fault},
    jobs::{Ended, How},
    results::is_error,
    schema::bare,
    text::clip,
};

/// How long `wait` waits if the caller does not say, in seconds.
const WAIT_S: u64 = 60;
/// How long before the soft deadline a wait ends.
const WAIT_MARGIN: Duration = Duration::from_secs(2);
const BACKGROUND_RUN: &str = "gateway.background_run";
/// How many tasks a list shows.
const LISTED: usize = 50;
/// How many tools `load_tools` gives at once.
const MAX_LOADED: usize = 50;

/// One param with its other names.
type Aliases = (&'static str, &'static [&'static str]);
/// The names that models give to the params of each tool, without case and separators.
const OTHER_NAMES: &[(&str, &[Aliases])] = &[
    (
        "background_run",
        &[
            ("name", &["tool", "toolname"]),
            ("params", &["arguments", "args", "parameters", "input", "toolinput"]),
            ("task_id", &["id", "task", "job", "jobid"]),
            ("list_tasks", &["list"]),
        ],
    ),
    ("fetch_result", &[("ref", &["reference", "refid", "id", "resultref"]), ("select", &["jq", "filter"])]),
    (
        "load_tools",
        &[
            ("names", &["name", "tool", "tools", "toolname", "toolnames"]),
            ("category", &["server", "servername", "group"]),
        ],
    ),
    ("read_resource", &[("uri", &["url", "resource", "resourceuri", "link"])]),
];

/// Gives params their own names where they come under other ones, and tells it.
pub(super) fn under_own_names(tool: &str, params: &mut Value) -> Vec<String> {
    let Some(fields) = params.as_object_mut() else { return Vec::new() };
    let Some((_, names)) = OTHER_NAMES.iter().find(|(known, _)| *known == tool) else { return Vec::new() };
    let mut told = Vec::new();
    for (own, others) in *names {
        let mut found = fields.keys().filter(|key| others.contains(&bare(key).as_str()));
        let (Some(key), None) = (found.next().cloned(), found.next()) else { continue };
        let is_own = |(own, _): &Aliases| *own == key;
        if fields.contains_key(*own) || names.iter().any(is_own) {
            continue;
        }
        if let Some(value) = fields.shift_remove(&key) {
            told.push(format!("`{}` was taken as `{own}`", clip(&key, 40)));
            fields.insert((*own).into(), value);
        }
    }
    told
}

/// The definitions, as a server would list them.
pub fn definitions() -> Vec<Value> {
    vec![
        json!({
            "name": "background_run",
            "title": "Run a call in the background",
            "description": "Runs one tool call in the background and follows it. Five modes: launch {name, params} starts a call and gives its task_id (a call that ends within 2 s answers at once); status {task_id}; wait {task_id, wait: true, timeout} waits up to timeout seconds for the result; cancel {task_id, cancel: true}; list {list_tasks: true}.",
            "inputSchema": {
                "type": "object",
                "properties": {
                    "name": { "type": "string", "description": "Tool to launch" },
                    "params": { "type": "object", "description": "Its params" },
                    "task_id": { "type": "string", "description": "Task to look at, wait for or cancel" },
                    "wait": { "type": "boolean", "description": "Wait for the task's result" },
                    "timeout": { "type": "integer", "minimum": 1, "maximum": 3600, "description": "Seconds to wait, 60 if absent" },
                    "cancel": { "type": "boolean", "description": "Cancel the task" },
                    "list_tasks": { "type": "boolean", "description": "List all tasks" },
                },
                "additionalProperties": false,
            },
            "annotations": { "readOnlyHint": false, "destructiveHint": false },
        }),
        json!({
            "name": "fetch_result",
            "title": "Read a kept result",
            "description": "Reads on in a result that was too large to show whole, by its ref: rows or bytes from offset, a range of lines, lines that match a regular expression (grep), or a jq filter (select).",
            "inputSchema": {
                "type": "object",
                "properties": {
                    "ref": { "type": "string", "description": "Reference from the shortened result" },
                    "offset": { "type": "integer", "minimum": 0, "description": "First row of an array, first byte of a text, first match of a grep" },
                    "limit": { "type": "integer", "minimum": 1, "description": "How many rows, bytes or matches" },
                    "lines": { "type": "string", "description": "Range of lines such as 1-40" },
                    "grep": { "type": "string", "description": "Regular expression, case is ignored" },
                    "select": { "type": "string", "description": "jq filter such as .items[0].name" },
                },
                "required": ["ref"],
                "additionalProperties": false,
            },
            "annotations": { "readOnlyHint": true },
        }),
        json!({
            "name": "load_tools",
            "title": "Load full schemas of many tools",
            "description": "Gives the full definitions and input schemas of all tools of a category, or of the tools named, in one answer. Loaded tools rank higher in searches for the rest of the session.",
            "inputSchema": {
                "type": "object",
                "properties": {
                    "category": { "type": "string", "description": "Server or group" },
                    "names": { "type": "array", "items": { "type": "string" }, "description": "Tool names" },
                },
                "additionalProperties": false,
            },
            "annotations": { "readOnlyHint": true },
        }),
        json!({
            "name": "read_resource",
            "title": "Read a resource",
            "description": "Reads a resource of a server by its URI: one that a result links to (resource_link), or any other that a server has.",
            "inputSchema": {
                "type": "object",
                "properties": { "uri": { "type": "string", "description": "URI of the resource, as the link gives it" } },
                "required": ["uri"],
                "additionalProperties": false,
            },
            "annotations": { "readOnlyHint": true },
        }),
        json!({
            "name": "status",
            "title": "State of the gateway",
            "description": "Shows every server behind the gateway with its state, protocol version, last error and number of tools, and the background tasks, kept results and version of the gateway.",
            "inputSchema": { "type": "object", "properties": {}, "additionalProperties": false },
            "annotations": { "readOnlyHint": true },
        }),
    ]
}

#[derive(Default, serde::Deserialize)]
struct BackgroundArguments {
    name: Option<String>,
    #[serde(default)]
    params: Value,
    task_id: Option<String>,
    #[serde(default)]
    wait: bool,
    timeout: Option<u64>,
    #[serde(default)]
    cancel: bool,
    #[serde(default)]
    list_tasks: bool,
}

impl Gateway {
    /// Runs one of Nonet's own tools. Boxed: a launch in the background is a call inside of a call.
    pub(super) fn own_tool<'a>(
        self: &'a Arc<Self>,
        caller: &'a Caller,
        name: &'a str,
        params: Map<String, Value>,
    ) -> BoxFuture<'a, Result<Value, Fault>> {
        Box::pin(self.own(caller, name, params))
    }

    async fn own(
        self: &Arc<Self>,
        caller: &Caller,
        name: &str,
        params: Map<String, Value>,
    ) -> Result<Value, Fault> {
        match name {
            "background_run" => self.background(caller, params).await,
            "fetch_result" => {
                let answer = self.fetch(caller, params).await?;
                Ok(text_result(answer.to_string()))
            }
            "load_tools" => self.load_tools(caller, &params),
            "read_resource" => self.resource_as_result(caller, &params).await,
            "status" => {
                let mut status = self.status(caller);
                if let Some(kept) = self.kept_counts().await {
                    status["kept"] = json!({ "entries": kept.entries, "bytes": kept.bytes });
                }
                Ok(text_result(status.to_string()))
            }
            other => Err(Fault::new(Code::UnknownTool, format!("`gateway` has no tool `{other}`."))),
        }
    }

    async fn background(
        self: &Arc<Self>,
        caller: &Caller,
        params: Map<String, Value>,
    ) -> Result<Value, Fault> {
        let arguments: BackgroundArguments = serde_json::from_value(Value::Object(params))
            .map_err(|error| Fault::new(Code::InvalidParams, error.to_string()))?;
        if arguments.list_tasks {
            let jobs = self.jobs.list(&caller.owner());
            let mut shown: Vec<Value> = jobs.iter().take(LISTED).map(|job| job.summary()).collect();
            let earlier = self.earlier_tasks(caller, LISTED - shown.len()).await;
            let total = jobs.len() + earlier.len();
            shown.extend(earlier.iter().map(Known::summary));
            return Ok(text_result(json!({ "tasks": shown, "total": total }).to_string()));
        }
        if let Some(id) = &arguments.task_id {
            return self.task(caller, id, &arguments).await;
        }
        let Some(name) = arguments.name else {
            return Err(Fault::new(
                Code::InvalidParams,
                "Give {name, params} to launch, {task_id} to look at a task, or {list_tasks: true}.",
            )
            .next(
                "execute_tool",
                json!({ "name": "gateway.background_run", "params": { "list_tasks": true } }),
            ));
        };
        let own = self.gate(&caller.session).tool(&name).is_ok_and(|tool| &*tool.full == BACKGROUND_RUN);
        if own {
            return Err(Fault::new(
                Code::InvalidParams,
                "A background call launches a tool, not another launch.",
            ));
        }
        let request = Request { name, params: arguments.params, background: true, ..Request::default() };
        // Nobody waits for a launch, so nobody can be asked in the middle of it.
        let caller = Caller { unasked: true, as_task: AsTask::Never, ..caller.clone() };
        match self.execute(&caller, request).await {
            Ok(result) => Ok(result),
            Err(Interrupt::Fault(fault)) => Err(*fault),
            // Not where no client takes tasks and nothing is passed on as it is, as above.
            Err(Interrupt::Task(_) | Interrupt::Refused(_)) => {
                Err(Fault::new(Code::Internal, "The call was not launched; make it with execute_tool."))
            }
        }
    }

    async fn task(&self, caller: &Caller, id: &str, arguments: &BackgroundArguments) -> Result<Value, Fault> {
        let Some(job) = self.jobs.get(id, &caller.owner()) else {
            return self.earlier_task(caller, id, arguments).await;
        };
        if arguments.cancel {
            job.cancel.cancel();
            job.wait(Duration::from_secs(2)).await;
        } else if arguments.wait {
            let limit = Duration::from_secs(arguments.timeout.unwrap_or(WAIT_S).clamp(1, 3_600));
            // Waiting must not itself outlive the soft deadline and become a task.
            let deadline = caller.limits.soft_deadline;
            let most = deadline.saturating_sub(WAIT_MARGIN).max(deadline / 2);
            tokio::select! {
                _ = job.wait(limit.min(most)) => {}
                () = caller.cancel.cancelled() => {}
            }
        }
        let mut answer = job.summary();
        match job.ended() {
            Some(Ended { how: How::Cancelled, .. }) => {
                // What had ended of a run_parallel before it was cancelled.
                if arguments.wait
                    && let Ok(result) = self.task_result(caller, id).await
                    && !is_error(&result)
                {
                    caller.session.delivered(id);
                    return Ok(result);
                }
            }
            // The result as the call itself would have given it.
            Some(_) if arguments.wait => {
                let result = self.task_result(caller, id).await?;
                caller.session.delivered(id);
                return Ok(result);
            }
            Some(Ended { how, .. }) => {
                if how == How::Failed {
                    answer["error"] = super::faults::error_of(&self.task_result(caller, id).await?);
                }
                answer["next_step"] = background_call(json!({ "task_id": id, "wait": true }));
            }
            None => answer["next_step"] = background_call(json!({ "task_id": id, "wait": true })),
        }
        Ok(text_result(answer.to_string()))
    }

    /// A task of an earlier run, or one that has ended and that there was no more room for.
    async fn earlier_task(
        &self,
        caller: &Caller,
        id: &str,
        arguments: &BackgroundArguments,
    ) -> Result<Value, Fault> {
        let Some(task) = self.known_task(caller, id).await else {
            return Err(Fault::new(
                Code::NotFound,
                format!("There is no task `{id}`: it is too old, or the id is wrong."),
            )
            .next(
                "execute_tool",
                json!({ "name": "gateway.background_run", "params": { "list_tasks": true } }),
            ));
        };
        let ended = task.how.is_some() && !task.lost;
        if arguments.wait && ended {
            return self.task_result(caller, id).await;
        }
        let mut answer = task.summary();
        if ended {
            answer["next_step"] = background_call(json!({ "task_id": id, "wait": true }));
        }
        if ended && task.how == Some(How::Failed) {
            answer["error"] = super::faults::error_of(&self.task_result(caller, id).await?);
        }
        Ok(text_result(answer.to_string()))
    }

    /// The answer to `gateway.read_resource`: text as text, pictures as pictures, anything else as an embedded resource.
    async fn resource_as_result(&self, caller: &Caller, params: &Map<String, Value>) -> Result<Value, Fault> {
        let uri = params.get("uri").and_then(Value::as_str).unwrap_or_default().trim();
        let read = self.read_resource(caller, uri).await;
        let mut read = read.map_err(|error| {
            let code = match error.code {
                ErrorCode::RESOURCE_NOT_FOUND | ErrorCode::INVALID_PARAMS => Code::NotFound,
                _ => Code::UpstreamError,
            };
            Fault::new(code, format!("`{}` cannot be read: {}.", clip(uri, 200), error.message))
        })?;
        let contents = match read.get_mut("contents").map(Value::take) {
            Some(Value::Array(contents)) => contents,
            _ => Vec::new(),
        };
        let blocks: Vec<Value> = contents
            .into_iter()
            .map(|content| {
                let kind = content.get("mimeType").and_then(Value::as_str).unwrap_or_default();
                let media = kind.split_once('/').map_or("", |(media, _)| media);
                match (content.get("text"), content.get("blob")) {
                    (Some(text), _) => json!({ "type": "text", "text": text }),
                    (None, Some(data)) if matches!(media, "image" | "audio") => {
                        json!({ "type": media, "data": data, "mimeType": kind })
                    }
                    _ => json!({ "type": "resource", "resource": content }),
                }
            })
            .collect();
        Ok(json!({ "content": blocks }))
    }

    fn load_tools(&self, caller: &Caller, params: &Map<String, Value>) -> Result<Value, Fault> {
        let gate = self.gate(&caller.session);
        let named = params.get("names").and_then(Value::as_array).into_iter().flatten();
        let mut names: Vec<String> = named.filter_map(Value::as_str).map(String::from).collect();
        let mut left = 0;
        if let Some(category) = params.get("category").and_then(Value::as_str) {
            let page = super::discover::BrowseArguments {
                category: category.into(),
                page_size: Some(MAX_LOADED),
                ..super::discover::BrowseArguments::default()
            };
            let page = gate.browse(&page)?;
            let tools = page["tools"].as_array().into_iter().flatten();
            let before = names.len();
            names.extend(tools.filter_map(|tool| tool["name"].as_str()).map(String::from));
            let total = page["total"].as_u64().and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
            left = total.saturating_sub(names.len() - before);
        }
        if names.is_empty() {
            return Err(Fault::new(
                Code::InvalidParams,
                "Give a `category` or `names`; nothing matches these.",
            ));
        }
        left += names.len().saturating_sub(MAX_LOADED);
        names.truncate(MAX_LOADED);
        let mut tools = Vec::new();
        for name in &names {
            match gate.tool(name) {
                Ok(tool) => {
                    caller.session.load([tool.full.clone()]);
                    tools.push(json!({
                        "name": &*tool.full,
                        "description": tool.description,
                        "input_schema": tool.schema.raw(),
                        "risk": tool.risk,
                    }));
                }
                Err(fault) => {
                    let mut entry = fault.to_value();
                    entry["name"] = json!(name);
                    tools.push(entry);
                }
            }
        }
        let mut answer = json!({ "tools": tools });
        if left > 0 {
            answer["left_out"] = json!(left);
            answer["hint"] = json!("At most 50 tools are loaded at once; browse_category shows the rest.");
        }
        Ok(text_result(answer.to_string()))
    }

    /// What `gateway.status` and `nonet check` show.
    pub fn status(&self, caller: &Caller) -> Value {
        let gate = self.gate(&caller.session);
        let snapshot = &gate.snapshot;
        let mut servers: Vec<Value> = self
            .connections()
            .iter()
            .filter(|(name, _)| gate.sees(name))
            .map(|(name, connection)| {
                let state = connection.state();
                let tools = snapshot.catalog.servers().get(name).map_or(0, |entry| entry.tools.len());
                let mut server = json!({ "name": &**name, "state": state.as_str(), "tools": tools });
                let restarts = self.metrics.restarts(name);
                if restarts > 0 {
                    server["restarts"] = json!(restarts);
                }
                let in_flight = connection.in_flight();
                if in_flight > 0 {
                    server["calls_running"] = json!(in_flight);
                }
                match state {
                    State::Ready { version, era, took, .. } => {
                        server["version"] = json!(version);
                        server["era"] = json!(era);
                        server["started_ms"] = json!(u64::try_from(took.as_millis()).unwrap_or(u64::MAX));
                    }
                    State::AuthRequired { error, remedy } => {
                        server["last_error"] = json!(error);
                        if let Some(login) = remedy.command() {
                            server["login"] = json!(login);
                        }
                    }
                    State::Down { error, .. } => {
                        server["last_error"] = json!(error);
                        if let Some(cause) = cause::likely(&error) {
                            server["likely_cause"] = json!(cause);
                        }
                    }
                    State::Starting | State::Stopped => {}
                }
                server
            })
            .collect();
        servers.extend(gate.left_out_status());
        servers.sort_by(|a, b| a["name"].as_str().cmp(&b["name"].as_str()));
        let indexing = *self.indexing.borrow();
        let (calls, failures) = self.metrics.total();
        let mut status = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "uptime_s": self.uptime().as_secs(),
            "servers": servers,
            "tools": snapshot.of_servers().count(),
            "search": {
                "by_meaning": snapshot.index.has_vectors(),
                "indexed": indexing.done,
                "of": indexing.total,
            },
            "calls": calls,
            "failures": failures,
            "outcomes": self.metrics.outcomes(),
            "tasks_running": self.jobs.running(),
        });
        let latency = json!(self.metrics.latency());
        if latency.as_object().is_some_and(|latency| !latency.is_empty()) {
            status["latency"] = latency;
        }
        if let Some((gateway, server)) = self.metrics.mean_us() {
            status["mean_us"] = json!({ "gateway": gateway, "server": server });
        }
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_params_have_other_names() {
        let check = |tool: &str, mut params: Value, expected: Value, told: usize| {
            assert_eq!(under_own_names(tool, &mut params).len(), told, "{tool} {params}");
            assert_eq!(params, expected, "{tool}");
        };
        check("load_tools", json!({ "name": "a.b" }), json!({ "names": "a.b" }), 1);
        check(
            "load_tools",
            json!({ "names": ["a"], "name": "b" }),
            json!({ "names": ["a"], "name": "b" }),
            0,
        );
        check("background_run", json!({ "id": "t" }), json!({ "task_id": "t" }), 1);
        check(
            "background_run",
            json!({ "tool": "a.b", "arguments": { "x": 1 } }),
            json!({ "name": "a.b", "params": { "x": 1 } }),
            2,
        );
        check("fetch_result", json!({ "reference": "r" }), json!({ "ref": "r" }), 1);
        check("status", json!({ "id": "r" }), json!({ "id": "r" }), 0);
    }
}
