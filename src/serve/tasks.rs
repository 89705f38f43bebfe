//! Background calls as tasks of the protocol, for clients that follow them: the tasks of 2025-11-25, and the tasks extension
//! of 2026-07-28 (SEP-2663).

use std::{sync::Arc, time::Duration};

use rmcp::{
    ErrorData,
    model::{
        ClientRequest, CreateTaskResult, CustomResult, DetailedTask, GetTaskResult, ServerResult, Task,
        TaskPayload, TaskStatus,
    },
};
use serde_json::{Value, json};

use crate::{
    gateway::{Gateway, session::Caller},
    jobs::{How, Job},
};

/// How often a client is asked to look, in milliseconds.
const POLL_MS: u64 = 1_000;
/// The longest time that one `tasks/result` waits.
const RESULT_LIMIT: Duration = Duration::from_secs(24 * 3_600);
/// The key of `_meta` that says which task a result is of (2025-11-25).
const RELATED: &str = "io.modelcontextprotocol/related-task";

/// A mark on a request whose client wants a task for it (`params.task`, 2025-11-25).
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted;

/// The capability `tasks` of 2025-11-25.
pub(super) fn capability() -> Value {
    json!({ "list": {}, "cancel": {}, "requests": { "tools": { "call": {} } } })
}

fn status(job: &Job) -> TaskStatus {
    match job.ended().map(|ended| ended.how) {
        None => TaskStatus::Working,
        Some(How::Cancelled) => TaskStatus::Cancelled,
        Some(How::Completed | How::Failed) => TaskStatus::Completed,
    }
}

fn times(job: &Job) -> (String, String) {
    let at = |after: Duration| humantime::format_rfc3339_millis(job.since + after).to_string();
    (at(Duration::ZERO), at(Duration::from_millis(job.elapsed_ms())))
}

/// What is said of a running job beside its status.
fn message(job: &Job) -> Option<String> {
    let summary = job.summary();
    let progress = summary.get("progress")?;
    match (progress.get("message").and_then(Value::as_str), progress.get("progress"), progress.get("total")) {
        (Some(message), ..) => Some(message.into()),
        (None, Some(done), Some(total)) => Some(format!("{done} of {total}")),
        _ => None,
    }
}

fn task(gateway: &Gateway, job: &Job) -> Task {
    let (created, updated) = times(job);
    let ttl = gateway.config.gateway.keep_results_for.as_millis();
    let task = Task::new(&job.id, status(job), created, updated)
        .with_ttl_ms(u64::try_from(ttl).unwrap_or(u64::MAX))
        .with_poll_interval_ms(POLL_MS);
    match message(job) {
        Some(message) => task.with_status_message(message),
        None => task,
    }
}

/// The answer to a call that goes on as a task of the extension.
pub(super) fn created(gateway: &Gateway, job: &Job) -> CreateTaskResult {
    CreateTaskResult::new(task(gateway, job))
}

/// A task as 2025-11-25 has it.
pub(super) fn legacy(gateway: &Gateway, job: &Job) -> Value {
    let (created, updated) = times(job);
    let status = match job.ended().map(|ended| ended.how) {
        None => "working",
        Some(how) => how.as_str(),
    };
    let mut task = json!({
        "taskId": job.id,
        "status": status,
        "createdAt": created,
        "lastUpdatedAt": updated,
        "ttl": u64::try_from(gateway.config.gateway.keep_results_for.as_millis()).unwrap_or(u64::MAX),
        "pollInterval": POLL_MS,
    });
    if let Some(message) = message(job) {
        task["statusMessage"] = json!(message);
    }
    task
}

fn job(gateway: &Gateway, caller: &Caller, id: &str) -> Result<Arc<Job>, ErrorData> {
    let job = gateway.jobs.get(id, &caller.owner());
    job.ok_or_else(|| ErrorData::invalid_params(format!("there is no task `{id}`"), None))
}

/// `tasks/get` of the extension.
pub(super) async fn get(gateway: &Gateway, caller: &Caller, id: &str) -> Result<GetTaskResult, ErrorData> {
    let job = job(gateway, caller, id)?;
    let payload = match status(&job) {
        TaskStatus::Completed => {
            let result = result(gateway, caller, &job).await?;
            let mut result = result.as_object().cloned().unwrap_or_default();
            result.entry("resultType").or_insert_with(|| json!("complete"));
            TaskPayload::Completed { result }
        }
        TaskStatus::Cancelled => TaskPayload::Cancelled,
        _ => TaskPayload::Working,
    };
    Ok(GetTaskResult::new(DetailedTask::new(task(gateway, &job), payload)))
}

/// `tasks/cancel` of either.
pub(super) async fn cancel(gateway: &Gateway, caller: &Caller, id: &str) -> Result<Arc<Job>, ErrorData> {
    let job = job(gateway, caller, id)?;
    job.cancel.cancel();
    job.wait(Duration::from_secs(2)).await;
    Ok(job)
}

/// The result of a job that has ended.
async fn result(gateway: &Gateway, caller: &Caller, job: &Job) -> Result<Value, ErrorData> {
    match job.ended().and_then(|ended| ended.value) {
        Some(value) => Ok((*value).clone()),
        None => gateway
            .task_result(caller, &job.id)
            .await
            .map_err(|fault| ErrorData::internal_error(fault.to_string(), None)),
    }
}

/// Answers a request about tasks of a client of 2025-11-25; `None` if the request is about something else.
pub(super) async fn legacy_request(
    gateway: &Gateway,
    caller: impl FnOnce() -> Caller,
    request: &ClientRequest,
) -> Option<Result<ServerResult, ErrorData>> {
    let custom = |value: Value| ServerResult::CustomResult(CustomResult::new(value));
    Some(match request {
        ClientRequest::GetTaskRequest(get) => {
            job(gateway, &caller(), &get.params.task_id).map(|job| custom(legacy(gateway, &job)))
        }
        ClientRequest::CancelTaskRequest(request) => {
            cancel(gateway, &caller(), &request.params.task_id).await.map(|job| custom(legacy(gateway, &job)))
        }
        ClientRequest::CustomRequest(request) if request.method == "tasks/list" => {
            let jobs = gateway.jobs.list(&caller().owner());
            let tasks: Vec<Value> = jobs.iter().map(|job| legacy(gateway, job)).collect();
            Ok(custom(json!({ "tasks": tasks })))
        }
        ClientRequest::CustomRequest(request) if request.method == "tasks/result" => {
            let id = request.params.as_ref().and_then(|params| params.get("taskId")?.as_str());
            legacy_result(gateway, &caller(), id.unwrap_or_default()).await.map(custom)
        }
        _ => return None,
    })
}

async fn legacy_result(gateway: &Gateway, caller: &Caller, id: &str) -> Result<Value, ErrorData> {
    let job = job(gateway, caller, id)?;
    tokio::select! {
        _ = job.wait(RESULT_LIMIT) => {}
        () = caller.cancel.cancelled() => {}
    }
    if job.ended().is_none() {
        return Err(ErrorData::internal_error(format!("`{id}` is still running"), None));
    }
    let mut result = result(gateway, caller, &job).await?;
    if let Some(fields) = result.as_object_mut() {
        fields.remove("resultType");
        let meta = fields.entry("_meta").or_insert_with(|| json!({}));
        if meta.is_object() {
            meta[RELATED] = json!({ "taskId": id });
        }
    }
    Ok(result)
}
