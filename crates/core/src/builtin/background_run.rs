//! `gateway.background_run`: launches a call in the background and follows it.

use std::{sync::Arc, time::Duration};

use futures::FutureExt;
use nonet_api::work::{TaskList, TaskState, TaskSummary, list_call};
use nonet_servers::catalog::{GATEWAY, Tool};
use nonet_text::{
    aliases::Aliases,
    fault::{Fault, FaultCode},
    results::is_error,
};
use serde_json::{Value, json};

use super::{Access, OwnTool, read};
use crate::{
    Gateway,
    call::{CallRequest, answer_of},
    gate::Gate,
    interrupt::Interrupt,
};
use nonet_state::{
    faults::{error_of, of_store},
    session::{Caller, TaskMode},
};

/// How long `wait` waits by default, and at most, in seconds.
const WAIT_S: u64 = 60;
const MAX_WAIT_S: u64 = 3_600;
/// How long before the soft deadline a wait ends.
const WAIT_MARGIN: Duration = Duration::from_secs(2);
/// How long a cancelled task may take to end.
const CANCEL_WAIT: Duration = Duration::from_secs(2);
/// How many tasks a list shows.
const LISTED: usize = 50;

pub(super) const TOOL: OwnTool = OwnTool {
    name: "background_run",
    title: "Run a call in the background",
    description: "Runs one tool call in the background and follows it. Five modes: launch {name, params} starts a call and gives its task_id (a call that ends within 2 s answers at once); status {task_id}; wait {task_id, wait: true, timeout} waits up to timeout seconds for the result; cancel {task_id, cancel: true}; list {list_tasks: true}.",
    properties: || {
        json!({
            "name": { "type": "string", "description": "Tool to launch" },
            "params": { "type": "object", "description": "Its params" },
            "task_id": { "type": "string", "description": "Task to look at, wait for or cancel" },
            "wait": { "type": "boolean", "description": "Wait for the task's result" },
            "timeout": { "type": "integer", "minimum": 1, "maximum": 3600, "description": "Seconds to wait, 60 if absent" },
            "cancel": { "type": "boolean", "description": "Cancel the task" },
            "list_tasks": { "type": "boolean", "description": "List all tasks" },
        })
    },
    required: &[],
    access: Access::Reversible,
    aliases: Aliases(&[
        ("name", &["tool", "toolname"]),
        ("params", &["arguments", "args", "parameters", "input", "toolinput"]),
        ("task_id", &["id", "task", "job", "jobid"]),
        ("list_tasks", &["list"]),
    ]),
    run: |gateway, caller, params| async move { run(gateway, caller, read(params)?).await }.boxed(),
};

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

async fn run(
    gateway: &Arc<Gateway>,
    caller: &Caller,
    arguments: BackgroundArguments,
) -> Result<Value, Fault> {
    if arguments.list_tasks {
        return Ok(list(gateway, caller).await);
    }
    if let Some(id) = &arguments.task_id {
        return task(gateway, caller, id, &arguments).await;
    }
    match arguments.name {
        Some(name) => launch(gateway, caller, name, arguments.params).await,
        None => Err(Fault::new(
            FaultCode::InvalidParams,
            "Give {name, params} to launch, {task_id} to look at a task, or {list_tasks: true}.",
        )
        .then(list_call())),
    }
}

async fn list(gateway: &Gateway, caller: &Caller) -> Value {
    let owner = caller.owner();
    let jobs = gateway.keeping.jobs.list(&owner);
    let mut shown: Vec<TaskSummary> = jobs.iter().take(LISTED).map(|job| job.summary()).collect();
    let earlier = gateway.keeping.jobs.earlier(&owner, LISTED - shown.len()).await;
    let total = jobs.len() + earlier.len();
    shown.extend(earlier);
    answer_of(&TaskList { tasks: shown, total })
}

async fn launch(
    gateway: &Arc<Gateway>,
    caller: &Caller,
    name: String,
    params: Value,
) -> Result<Value, Fault> {
    let is_own = |tool: &Tool| &*tool.server == GATEWAY && &*tool.name == TOOL.name;
    if Gate::of(&gateway.publisher, &caller.session).tool(&name).is_ok_and(|tool| is_own(&tool)) {
        let message = "A background call launches a tool, not another launch.";
        return Err(Fault::new(FaultCode::InvalidParams, message));
    }
    let request = CallRequest { name, params, background: true, ..CallRequest::default() };
    // Nobody waits for a launch, so nobody can be asked during the call.
    let caller = Caller { unasked: true, as_task: TaskMode::Never, ..caller.clone() };
    match gateway.calls.execute(&caller, request).await {
        Ok(result) => Ok(result.into_tree().await),
        Err(Interrupt::Fault(fault)) => Err(*fault),
        // This caller accepts no tasks, and the request is not verbatim.
        Err(Interrupt::Task(_) | Interrupt::Refused(_)) => {
            Err(Fault::new(FaultCode::Internal, "The call was not launched; make it with execute_tool."))
        }
    }
}

/// Reports a task's state, returns its result, or cancels it.
async fn task(
    gateway: &Gateway,
    caller: &Caller,
    id: &str,
    arguments: &BackgroundArguments,
) -> Result<Value, Fault> {
    let owner = caller.owner();
    if arguments.cancel {
        gateway.keeping.jobs.cancel(id, &owner, CANCEL_WAIT).await;
    } else if arguments.wait {
        let limit = Duration::from_secs(arguments.timeout.unwrap_or(WAIT_S).clamp(1, MAX_WAIT_S));
        // The wait itself must not outlive the soft deadline and become a task.
        let deadline = caller.limits.soft_deadline;
        let most = deadline.saturating_sub(WAIT_MARGIN).max(deadline / 2);
        tokio::select! {
            () = gateway.keeping.jobs.wait(id, &owner, limit.min(most)) => {}
            () = caller.cancel.cancelled() => {}
        }
    }
    let found = gateway.keeping.jobs.find(id, &owner).await;
    let Some(task) = found.map_err(|error| of_store("The state of the task is not known now", &error))?
    else {
        let message = format!("There is no task `{id}`: the id is wrong, or the task has expired.");
        return Err(Fault::new(FaultCode::NotFound, message).then(list_call()));
    };
    let result = async || gateway.keeping.kept.of_task(&owner, id, caller.limits.max_result_bytes).await;
    let answer = match task.state {
        // The same result that the call itself would have returned.
        TaskState::Completed | TaskState::Failed if arguments.wait => {
            let result = result().await?;
            gateway.sessions.mail.withdraw(&caller.session, id);
            return Ok(result);
        }
        // The calls of a run_parallel that ended before the cancellation.
        TaskState::Cancelled if arguments.wait => match result().await {
            Ok(result) if !is_error(&result) => {
                gateway.sessions.mail.withdraw(&caller.session, id);
                return Ok(result);
            }
            _ => task,
        },
        TaskState::Failed => {
            let error = error_of(&result().await?);
            TaskSummary { error: Some(error), ..task.with_wait_call() }
        }
        TaskState::Completed | TaskState::Running => task.with_wait_call(),
        TaskState::Cancelled | TaskState::Lost => task,
    };
    Ok(answer_of(&answer))
}
