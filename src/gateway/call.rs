//! The one road of a call, whoever makes it: resolve, check the rules, fill references, read the
//! params, ask if the rules say so, call the server, count, and fit the result.

use std::{
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::FutureExt;
use rmcp::model::ErrorData;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::{Gateway, SOFT_DEADLINE, ask::Interrupt, session::Caller};
use crate::{
    catalog::{GATEWAY, Tool},
    downstream::{CallError, Control, State},
    fault::{Code, Fault},
    jobs::{self, Job},
    name,
    policy::{self, Verdict},
    results::{self, is_error, json_len, text_of, value_of},
    schema::Misfit,
    template::{self, Named},
};

/// How long a launch in the background waits for a quick end.
const SETTLE: Duration = Duration::from_secs(2);
/// How long a call waits for a server that is starting or was lost.
const READY_WAIT: Duration = Duration::from_secs(20);
/// How long an unknown name is waited for while servers start for the first time.
const LIST_WAIT: Duration = Duration::from_secs(3);
/// How long a cancelled call may take to wind up.
const CANCEL_GRACE: Duration = Duration::from_secs(2);

/// A call as it was asked for.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The tool, under any of its names.
    pub name: String,
    /// Its params, as they came.
    pub params: Value,
    /// The hard limit, if the caller set one.
    pub timeout: Option<Duration>,
    /// Whether to run it in the background from the start.
    pub background: bool,
    /// A jq filter on the result.
    pub select: Option<String>,
}

/// A call that may be made: known, allowed, well-formed.
#[derive(Debug)]
pub struct Prepared {
    /// The tool.
    pub tool: Arc<Tool>,
    /// Its params.
    pub params: Map<String, Value>,
    /// What was repaired in them.
    pub repaired: Vec<String>,
}

impl Gateway {
    /// Makes a call and gives the server's `CallToolResult`, or the handle of a call that goes on.
    pub async fn execute(self: &Arc<Self>, caller: &Caller, request: Request) -> Result<Value, Interrupt> {
        let started = Instant::now();
        let params = self.fill_references(request.params)?;
        let prepared = self.prepare(caller, &request.name, params).await?;
        let notes = repair_note(&prepared);
        let label = prepared.tool.full.to_string();
        let cancel = CancellationToken::new();
        let (gateway, own, token) = (self.clone(), caller.clone(), cancel.clone());
        let (timeout, select) = (request.timeout, request.select);
        let work = async move {
            let result = gateway.invoke(&own, prepared, timeout, token).await;
            let mut result = gateway.shape(result, select.as_deref()).await;
            if let (Some(note), Some(content)) =
                (notes, result.get_mut("content").and_then(Value::as_array_mut))
            {
                content.push(json!({ "type": "text", "text": note.to_string() }));
            }
            result
        };
        Ok(self.run_since(started, caller, label, cancel, work, request.background).await)
    }

    /// Everything before the server: what comes back may be called.
    pub(super) async fn prepare(
        &self,
        caller: &Caller,
        name: &str,
        params: Value,
    ) -> Result<Prepared, Interrupt> {
        let tool = self.find_tool(caller, name).await?;
        let reading = tool.schema.read(params).map_err(|misfit| invalid_params(&tool, &misfit))?;
        if let Verdict::Approve(rule) = policy::check(&tool, self.scope(&caller.session)) {
            self.approve(caller, &tool, &reading.params, &rule).await?;
        }
        Ok(Prepared { tool, params: reading.params, repaired: reading.repaired })
    }

    /// The tool that is meant, if the caller may use it. A name that is not known yet is waited for while
    /// servers that it may belong to start for the first time.
    pub(super) async fn find_tool(&self, caller: &Caller, name: &str) -> Result<Arc<Tool>, Fault> {
        let unknown = match self.allowed_tool(caller, name) {
            Err(fault) if fault.code == Code::UnknownTool => fault,
            known => return known,
        };
        let mut unlisted: Vec<&Arc<str>> = self.unlisted().collect();
        let folded = name::fold(name);
        if unlisted.iter().any(|server| folded.starts_with(&name::fold(server))) {
            unlisted.retain(|server| folded.starts_with(&name::fold(server)));
        }
        if unlisted.is_empty() {
            return Err(unknown);
        }
        let settled = async {
            for server in &unlisted {
                if let Some(connection) = self.connections.get(*server) {
                    let _ = connection.watch().wait_for(State::settled).await;
                }
            }
            self.published().await;
        };
        let wait = LIST_WAIT.min(self.soft_deadline() / 2);
        let in_time = tokio::select! {
            in_time = tokio::time::timeout(wait, settled) => in_time.is_ok(),
            () = caller.cancel.cancelled() => false,
        };
        match self.allowed_tool(caller, name) {
            Err(fault) if fault.code == Code::UnknownTool && !in_time => {
                let names = unlisted.iter().map(|server| server.as_ref()).collect::<Vec<_>>().join(", ");
                Err(Fault::new(
                    Code::ServerStarting,
                    format!("`{name}` is not known yet: {names} has not finished starting. Call again in a few seconds."),
                )
                .retry_after(Duration::from_secs(5)))
            }
            known => known,
        }
    }

    /// The tool that is meant, if it is known and the caller may use it.
    pub(super) fn allowed_tool(&self, caller: &Caller, name: &str) -> Result<Arc<Tool>, Fault> {
        if name::META_TOOLS.contains(&name) {
            return Err(Fault::new(
                Code::InvalidParams,
                format!("`{name}` is a meta-tool; call it directly. Only tools of servers and of `gateway` are called by name."),
            )
            .next("list_categories", json!({})));
        }
        let snapshot = self.snapshot();
        let scope = self.scope(&caller.session);
        let seen = |tool: &Tool| !matches!(policy::check(tool, scope), Verdict::Deny(_));
        let tool = snapshot.catalog.resolve_among(name, &seen)?;
        match policy::check(tool, scope) {
            Verdict::Deny(rule) => Err(Fault::new(
                Code::Forbidden,
                format!("`{}` may not be used: the rule `{rule}` of the configuration keeps it out. Another tool may do; the user can change the rule.", tool.full),
            )
            .next("search_tools", json!({ "query": tool.name.replace(['_', '-'], " ") }))),
            _ => Ok(tool.clone()),
        }
    }

    /// Puts kept results in for `{{ref:ID.path}}`. Other templates are not ours here.
    fn fill_references(&self, params: Value) -> Result<Value, Fault> {
        if !template::any(&params) {
            return Ok(params);
        }
        let filled = template::fill(&params, &|name| match name.strip_prefix("ref:") {
            None => Named::Foreign,
            Some(_) => self.reference(name),
        });
        filled.map_err(|error| Fault::new(Code::NotFound, error.to_string()))
    }

    /// What `ref:ID` stands for. Only what looks like one of our references is ours; other text in
    /// braces is somebody's own.
    pub(super) fn reference(&self, name: &str) -> Named {
        let reference = name.strip_prefix("ref:").unwrap_or_default();
        if !results::is_reference(reference) {
            return Named::Foreign;
        }
        match self.results.get(reference) {
            Ok(result) => Named::Value(Arc::new(value_of(&result))),
            Err(_) => Named::Unknown("the results that are still kept".into()),
        }
    }

    /// Calls the tool and gives a `CallToolResult` in any case.
    pub(super) async fn invoke(
        self: &Arc<Self>,
        caller: &Caller,
        prepared: Prepared,
        timeout: Option<Duration>,
        cancel: CancellationToken,
    ) -> Value {
        let tool = prepared.tool.clone();
        let began = Instant::now();
        let outcome = if &*tool.server == GATEWAY {
            self.own_tool(caller, &tool.name, prepared.params).await
        } else {
            self.call_server(caller, &prepared, timeout, cancel).await
        };
        let took = began.elapsed();
        let (result, word) = match outcome {
            Ok(result) => {
                let word = if is_error(&result) { "tool_error" } else { "ok" };
                (result, word)
            }
            Err(fault) => (fault.to_result(), fault.code.as_str()),
        };
        self.metrics.record(&tool.full, is_error(&result), took);
        if word == "ok" {
            self.succeeded(caller, &tool);
        }
        tracing::info!(
            target: "nonet::call",
            client = %caller.client,
            session = caller.session.id,
            tool = %tool.full,
            took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
            outcome = word,
            "call"
        );
        result
    }

    async fn call_server(
        &self,
        caller: &Caller,
        prepared: &Prepared,
        timeout: Option<Duration>,
        cancel: CancellationToken,
    ) -> Result<Value, Fault> {
        let tool = &prepared.tool;
        let Some(connection) = self.connections.get(&tool.server) else {
            return Err(Fault::new(
                Code::ServerDown,
                format!("`{}` is not configured any more.", tool.server),
            ));
        };
        let timeout = timeout.unwrap_or(connection.settings.timeout);
        let control =
            Control { timeout, cancel, progress: caller.progress.clone(), meta: caller.meta.clone() };
        let wait = READY_WAIT.min(self.soft_deadline() / 2);
        let answer = connection.call_tool(&tool.name, prepared.params.clone(), control, wait).await;
        match answer {
            Ok(result) if result.get("content").is_some() || result.get("structuredContent").is_some() => {
                Ok(result)
            }
            Ok(result) if result.get("resultType").and_then(Value::as_str) == Some("input_required") => {
                Err(Fault::new(
                    Code::UpstreamError,
                    format!(
                        "`{}` wants input from the user in the middle of the call, which does not pass through Nonet yet.",
                        tool.server
                    ),
                ))
            }
            Ok(result) if result.is_object() => Ok(result),
            Ok(other) => Err(Fault::new(
                Code::UpstreamError,
                format!(
                    "`{}` answered with something that is no result: {}",
                    tool.server,
                    crate::schema::clip(&other.to_string(), 200)
                ),
            )),
            Err(error) => Err(self.call_fault(tool, error)),
        }
    }

    /// A failed call as the model reads it.
    pub(super) fn call_fault(&self, tool: &Tool, error: CallError) -> Fault {
        let server = &tool.server;
        let status = || json!({ "name": "gateway.status", "params": {} });
        match error {
            CallError::NotReady(State::Starting) => Fault::new(
                Code::ServerStarting,
                format!("`{server}` has not finished starting. Call again in a few seconds."),
            )
            .retry_after(Duration::from_secs(5)),
            CallError::NotReady(State::Down { error, retry_at }) => {
                let wait = retry_at.saturating_duration_since(tokio::time::Instant::now());
                Fault::new(Code::ServerDown, format!("`{server}` is down: {error}"))
                    .retry_after(wait.max(Duration::from_millis(500)))
                    .next("execute_tool", status())
            }
            CallError::NotReady(State::AuthRequired { error }) => Fault::new(
                Code::AuthRequired,
                format!("`{server}` wants a sign-in ({error}). The user has to put valid credentials into `headers` of [servers.{server}] and restart Nonet."),
            )
            .next("execute_tool", status()),
            CallError::NotReady(_) => Fault::new(Code::ServerDown, format!("`{server}` was stopped.")),
            CallError::Closed(why) => Fault::new(
                Code::ServerDown,
                format!("`{server}` went away during the call of `{}`: {why}. It is being restarted; whether the call had an effect is not known.", tool.name),
            )
            .retry_after(Duration::from_secs(1))
            .next("execute_tool", status()),
            CallError::TimedOut(limit) => Fault::new(
                Code::Timeout,
                format!("`{}` did not answer within {}. The server was told to stop. Give a longer `timeout_ms`, or run it with `background`.", tool.full, humantime::format_duration(limit)),
            )
            .next("get_tool", json!({ "name": &*tool.full })),
            CallError::Cancelled => {
                Fault::new(Code::Cancelled, format!("The call of `{}` was cancelled.", tool.full))
            }
            CallError::Rpc(error) => rpc_fault(tool, &error),
            CallError::Unreadable(why) => {
                Fault::new(Code::UpstreamError, format!("`{server}` gave no usable answer: {why}"))
                    .next("execute_tool", status())
            }
        }
    }

    /// Filters a result if that was asked for, and fits it into the budget.
    pub(super) async fn shape(&self, result: Value, filter: Option<&str>) -> Value {
        let result = match filter {
            Some(filter) if !is_error(&result) => match self.selector.select(filter, value_of(&result)).await
            {
                Ok(Value::String(text)) => text_result(text),
                Ok(value) => text_result(value.to_string()),
                Err(error) => {
                    // The call was made; what it gave must not be lost over a bad filter.
                    let size = json_len(&result);
                    let reference = self.results.keep(result, size);
                    return Fault::new(
                        Code::InvalidParams,
                        format!("The call succeeded, but {error}. Its result is kept as `{reference}`."),
                    )
                    .next(
                        "execute_tool",
                        json!({ "name": "gateway.fetch_result", "params": { "ref": reference } }),
                    )
                    .to_result();
                }
            },
            _ => result,
        };
        self.results.fit(result, self.config.gateway.max_result_bytes)
    }

    /// When a call that is still running becomes a background task.
    pub(super) fn soft_deadline(&self) -> Duration {
        self.config.gateway.soft_deadline.unwrap_or(SOFT_DEADLINE)
    }

    /// Runs work. If it outlives the soft deadline, or the settle window of a
    /// launch in the background, it goes on as a job and the answer is its handle.
    pub(super) async fn run(
        self: &Arc<Self>,
        caller: &Caller,
        label: String,
        cancel: CancellationToken,
        work: impl Future<Output = Value> + Send + 'static,
        background: bool,
    ) -> Value {
        self.run_since(Instant::now(), caller, label, cancel, work, background).await
    }

    /// The same for a call that began earlier: what asking the user took counts.
    async fn run_since(
        self: &Arc<Self>,
        began: Instant,
        caller: &Caller,
        label: String,
        cancel: CancellationToken,
        work: impl Future<Output = Value> + Send + 'static,
        background: bool,
    ) -> Value {
        let started = Instant::now();
        // Polled here as long as somebody waits: a task of its own costs more than a small call.
        let mut work = Box::pin(AssertUnwindSafe(work).catch_unwind());
        let left = self.soft_deadline().saturating_sub(began.elapsed()).max(Duration::from_millis(500));
        let patience = if background { SETTLE.min(left) } else { left };
        tokio::select! {
            ended = &mut work => return ended.unwrap_or_else(|_| {
                tracing::error!(tool = label, "a call panicked");
                jobs::panicked()
            }),
            () = caller.cancel.cancelled() => {
                cancel.cancel();
                let _ = tokio::time::timeout(CANCEL_GRACE, work).await;
                return Fault::new(Code::Cancelled, format!("The call of `{label}` was cancelled.")).to_result();
            }
            () = tokio::time::sleep(patience) => {}
        }
        let running = tokio::spawn(async move { work.await.unwrap_or_else(|_| jobs::panicked()) });
        let session = Arc::downgrade(&caller.session);
        let tell = move |job: &Job| {
            if let Some(session) = session.upgrade() {
                let mut notice = jobs::summary(job);
                notice["kind"] = json!("task_ended");
                notice["next_step"] = background_call(json!({ "task_id": job.id }));
                session.notify(notice);
            }
        };
        match self.jobs.adopt(label, caller.owner(), started, cancel, running, tell) {
            Ok(job) => {
                let mut answer = jobs::summary(&job);
                answer["next_step"] = background_call(json!({ "task_id": job.id, "wait": true }));
                text_result(answer.to_string())
            }
            Err(full) => Fault::new(Code::RateLimited, full.to_string())
                .retry_after(Duration::from_secs(10))
                .next(
                    "execute_tool",
                    json!({ "name": "gateway.background_run", "params": { "list_tasks": true } }),
                )
                .to_result(),
        }
    }
}

/// A call of `gateway.background_run` that can be made as it stands.
pub(super) fn background_call(params: Value) -> Value {
    json!({ "tool": "execute_tool", "arguments": { "name": "gateway.background_run", "params": params } })
}

/// A `CallToolResult` of one text block.
pub fn text_result(text: String) -> Value {
    json!({ "content": [{ "type": "text", "text": text }] })
}

/// What an error of a call says when it becomes part of a larger answer: the fault's own object, or
/// the server's text.
pub(super) fn error_of(result: &Value) -> Value {
    let text = text_of(result);
    match serde_json::from_str::<Value>(&text) {
        Ok(mut object) if object.get("error").is_some_and(Value::is_object) => object["error"].take(),
        _ => json!({ "code": Code::UpstreamError, "message": text }),
    }
}

fn repair_note(prepared: &Prepared) -> Option<Value> {
    (!prepared.repaired.is_empty()).then(|| {
        json!({ "notices": [{ "kind": "params_repaired", "tool": &*prepared.tool.full, "changes": prepared.repaired }] })
    })
}

fn invalid_params(tool: &Tool, misfit: &Misfit) -> Fault {
    let parameters: Vec<Value> = tool
        .schema
        .parameters()
        .iter()
        .map(|parameter| {
            let mut entry = json!({ "name": parameter.name, "type": parameter.kind });
            if parameter.required {
                entry["required"] = json!(true);
            }
            if !parameter.description.is_empty() {
                entry["description"] = json!(crate::schema::clip(parameter.description, 120));
            }
            entry
        })
        .collect();
    let message = format!("The params do not fit `{}`: {}.", tool.full, misfit.faults.join("; "));
    let corrected = json!({ "name": &*tool.full, "params": misfit.example });
    let fault = Fault::new(Code::InvalidParams, message);
    let fault = if misfit.example_fits {
        fault.next("execute_tool", corrected.clone())
    } else {
        fault.next("get_tool", json!({ "name": &*tool.full }))
    };
    fault.details(json!({ "parameters": parameters, "corrected_call": { "tool": "execute_tool", "arguments": corrected } }))
}

fn rpc_fault(tool: &Tool, error: &ErrorData) -> Fault {
    let mut details = json!({ "server": &*tool.server, "rpc_code": error.code.0 });
    if let Some(data) = &error.data {
        details["data"] = data.clone();
    }
    let message = format!("`{}` refused the call of `{}`: {}", tool.server, tool.name, error.message);
    Fault::new(Code::UpstreamError, message).next("get_tool", json!({ "name": &*tool.full })).details(details)
}
