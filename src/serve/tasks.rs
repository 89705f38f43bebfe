//! Background calls as protocol tasks, for clients that support them: the tasks of 2025-11-25, and the tasks
//! extension of 2026-07-28 (SEP-2663).

use std::{sync::Arc, time::Duration};

use nonet_api::work::{TaskState, TaskSummary};
use nonet_base::{clock::millis, json::set_member};
use nonet_core::Gateway;
use nonet_parts::jobs::Job;
use nonet_state::session::Caller;
use nonet_text::results::{is_fault, text_of};
use rmcp::{
    ErrorData,
    model::{
        CreateTaskResult, DetailedTask, GetTaskResult, InputRequests, InputResponses, Task, TaskPayload,
        TaskStatus,
    },
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// The poll interval for clients, in milliseconds.
const POLL_MS: u64 = 1_000;
/// How long a cancelled task may take to end.
const CANCEL_LIMIT: Duration = Duration::from_secs(2);
/// The longest wait of one `tasks/result`.
const RESULT_LIMIT: Duration = Duration::from_secs(24 * 3_600);
/// The `_meta` key for the task of a result (2025-11-25).
const RELATED: &str = "io.modelcontextprotocol/related-task";

/// The params of a request about a task (2025-11-25); a list has none.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SessionTask {
    #[serde(default)]
    pub task_id: String,
}

/// Returns the capability `tasks` of 2025-11-25.
pub(super) fn capability() -> Value {
    json!({ "list": {}, "cancel": {}, "requests": { "tools": { "call": {} } } })
}

fn times(task: &TaskSummary) -> (String, String) {
    let at =
        |after: u64| humantime::format_rfc3339_millis(task.since + Duration::from_millis(after)).to_string();
    (at(0), at(task.elapsed_ms))
}

/// Returns the status message of a task.
fn message(task: &TaskSummary) -> Option<String> {
    if let Some(message) = &task.message {
        return Some(message.to_string());
    }
    let progress = task.progress.as_ref()?;
    match (progress.get("message").and_then(Value::as_str), progress.get("ended"), progress.get("total")) {
        (Some(message), ..) => Some(message.into()),
        (None, Some(done), Some(total)) => Some(format!("{done} of {total}")),
        _ => None,
    }
}

fn ttl_ms(gateway: &Gateway) -> u64 {
    millis(gateway.servers.config().gateway.keep_results_for)
}

/// Returns a task in the extension's form. A result with `isError` counts as a result.
fn stateless_task(gateway: &Gateway, known: &TaskSummary) -> Task {
    let status = match known.state {
        TaskState::Running => TaskStatus::Working,
        TaskState::Completed | TaskState::Failed => TaskStatus::Completed,
        TaskState::Cancelled => TaskStatus::Cancelled,
        TaskState::Lost => TaskStatus::Failed,
    };
    let (created, updated) = times(known);
    let task = Task::new(&known.task_id, status, created, updated)
        .with_ttl_ms(ttl_ms(gateway))
        .with_poll_interval_ms(POLL_MS);
    match message(known) {
        Some(message) => task.with_status_message(message),
        None => task,
    }
}

/// Returns the answer to a call that continues as a task of the extension.
pub(super) fn created(gateway: &Gateway, job: Arc<Job>) -> CreateTaskResult {
    CreateTaskResult::new(stateless_task(gateway, &job.summary()))
}

/// Returns the answer to a call that continues as a task of 2025-11-25.
pub(super) fn started(gateway: &Gateway, job: Arc<Job>) -> Value {
    session_task(gateway, &job.summary())
}

/// Returns a task in the form of 2025-11-25.
fn session_task(gateway: &Gateway, known: &TaskSummary) -> Value {
    let (created, updated) = times(known);
    let status = match known.state {
        TaskState::Running => "working",
        TaskState::Completed => "completed",
        TaskState::Failed | TaskState::Lost => "failed",
        TaskState::Cancelled => "cancelled",
    };
    let mut task = json!({
        "taskId": known.task_id,
        "status": status,
        "createdAt": created,
        "lastUpdatedAt": updated,
        "ttl": ttl_ms(gateway),
        "pollInterval": POLL_MS,
    });
    if let Some(message) = message(known) {
        task["statusMessage"] = json!(message);
    }
    task
}

async fn known(gateway: &Gateway, caller: &Caller, id: &str) -> Result<TaskSummary, ErrorData> {
    let known = gateway.keeping.jobs.find(id, &caller.owner()).await;
    let known = known.map_err(|error| {
        ErrorData::internal_error(
            format!("the state of task `{id}` is not known now: {error}; ask again"),
            None,
        )
    })?;
    known.ok_or_else(|| ErrorData::invalid_params(format!("unknown task `{id}`"), None))
}

/// Answers `tasks/get` of the extension.
pub(super) async fn get(gateway: &Gateway, caller: &Caller, id: &str) -> Result<GetTaskResult, ErrorData> {
    let known = known(gateway, caller, id).await?;
    let task = stateless_task(gateway, &known);
    let payload = match task.status {
        TaskStatus::Completed => {
            let result = result(gateway, caller, id).await?;
            match protocol_error(&result) {
                Some(error) => TaskPayload::Failed { error },
                None => {
                    let mut result = result.as_object().cloned().unwrap_or_default();
                    result.entry("resultType").or_insert_with(|| json!("complete"));
                    TaskPayload::Completed { result }
                }
            }
        }
        TaskStatus::Cancelled => TaskPayload::Cancelled,
        TaskStatus::Failed => {
            let error = json!({ "code": -32603, "message": message(&known) });
            TaskPayload::Failed { error: error.as_object().cloned().unwrap_or_default() }
        }
        _ => match asked(gateway, caller, id) {
            Some(input_requests) => TaskPayload::InputRequired { input_requests },
            None => TaskPayload::Working,
        },
    };
    Ok(GetTaskResult::new(DetailedTask::new(task, payload)))
}

/// Returns the unanswered requests of a task to its client, if there are any.
fn asked(gateway: &Gateway, caller: &Caller, id: &str) -> Option<InputRequests> {
    let call = gateway.keeping.jobs.get(id, &caller.owner())?.questions()?.call;
    let open = gateway.asking.room.of_call(call);
    match serde_json::from_value::<InputRequests>(Value::Object(open)) {
        Ok(requests) => Some(requests).filter(|requests| !requests.is_empty()),
        Err(error) => {
            tracing::warn!(%error, "a server's request cannot be sent to the client of its task");
            None
        }
    }
}

/// Returns the error of a call that its server has refused with a protocol error.
fn protocol_error(result: &Value) -> Option<Map<String, Value>> {
    if !is_fault(result) {
        return None;
    }
    let fault: Value = serde_json::from_str(&text_of(result)).ok()?;
    let error = &fault["error"];
    let code = error["details"]["rpc_code"].as_i64()?;
    let error = json!({ "code": code, "message": error["message"], "data": fault });
    error.as_object().cloned()
}

/// Takes a client's answers to the requests of its task.
pub(super) async fn update(
    gateway: &Gateway,
    caller: &Caller,
    id: &str,
    given: &InputResponses,
) -> Result<(), ErrorData> {
    known(gateway, caller, id).await?;
    if let Some(job) = gateway.keeping.jobs.get(id, &caller.owner())
        && let Some(questions) = job.questions()
    {
        gateway.asking.room.answer_of_call(questions.call, given);
    }
    Ok(())
}

/// Cancels a task. A task that has ended is left unchanged.
pub(super) async fn cancel(gateway: &Gateway, caller: &Caller, id: &str) -> Result<TaskSummary, ErrorData> {
    let known_task = known(gateway, caller, id).await?;
    if known_task.state != TaskState::Running {
        return Ok(known_task);
    }
    gateway.keeping.jobs.cancel(id, &caller.owner(), CANCEL_LIMIT).await;
    known(gateway, caller, id).await
}

/// Returns the result of a task that has ended.
async fn result(gateway: &Gateway, caller: &Caller, id: &str) -> Result<Value, ErrorData> {
    let result = gateway.keeping.kept.of_task(&caller.owner(), id, caller.limits.max_result_bytes).await;
    result.map_err(|fault| ErrorData::internal_error(fault.to_string(), None))
}

/// Answers a request about tasks in the form of 2025-11-25; `None` for a method that it does not have.
pub(super) async fn session_request(
    gateway: &Gateway,
    caller: impl FnOnce() -> Caller,
    method: &str,
    id: &str,
) -> Option<Result<Value, ErrorData>> {
    Some(match method {
        "tasks/get" => {
            let caller = caller();
            known(gateway, &caller, id).await.map(|known| {
                let mut task = session_task(gateway, &known);
                let job = gateway.keeping.jobs.get(id, &caller.owner());
                if job.is_some_and(|job| job.questions().is_some_and(|questions| (questions.is_asked)())) {
                    task["status"] = json!("input_required");
                }
                task
            })
        }
        "tasks/cancel" => {
            let caller = caller();
            match known(gateway, &caller, id).await {
                // An error since 2025-11-25.
                Ok(known) if known.state != TaskState::Running => {
                    Err(ErrorData::invalid_params(format!("the task `{id}` has ended already"), None))
                }
                Ok(_) => cancel(gateway, &caller, id).await.map(|known| session_task(gateway, &known)),
                Err(error) => Err(error),
            }
        }
        "tasks/list" => {
            let jobs = gateway.keeping.jobs.list(&caller().owner()).into_iter();
            let tasks: Vec<Value> = jobs.map(|job| started(gateway, job)).collect();
            Ok(json!({ "tasks": tasks }))
        }
        "tasks/result" => session_result(gateway, &caller(), id).await,
        _ => return None,
    })
}

/// Waits for a task to end and returns the result of its call.
async fn session_result(gateway: &Gateway, caller: &Caller, id: &str) -> Result<Value, ErrorData> {
    known(gateway, caller, id).await?;
    let owner = caller.owner();
    tokio::select! {
        () = gateway.keeping.jobs.wait(id, &owner, RESULT_LIMIT) => {}
        () = caller.cancel.cancelled() => {}
    }
    let mut result = result(gateway, caller, id).await?;
    if let Some(fields) = result.as_object_mut() {
        fields.remove("resultType");
        let meta = fields.entry("_meta").or_insert_with(|| json!({}));
        set_member(meta, RELATED, json!({ "taskId": id }));
    }
    Ok(result)
}
