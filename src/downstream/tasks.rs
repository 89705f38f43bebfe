//! Tasks of servers: a call that a server answers with a task is followed until the task has ended.
//!
//! Two forms: the tasks of 2025-11-25, whose result is asked for by itself, and the tasks extension of 2026-07-28
//! (SEP-2663), whose result comes with its last state.

use std::{collections::HashSet, time::Duration};

use rmcp::model::{ClientRequest, CustomRequest, ErrorData};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{CallError, Connection, Control};
use crate::text::clip;

/// How often a task is looked at if its server does not say, and the bounds of what it may say.
const POLL: Duration = Duration::from_millis(500);
const POLL_BOUNDS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(30));
/// How long one look may take.
const LOOK: Duration = Duration::from_secs(30);
/// How long a server may take to hear that its task is not wanted any more.
const TELL: Duration = Duration::from_millis(500);

/// A task that a server has started for a call.
#[derive(Debug, PartialEq)]
pub struct Started {
    id: String,
    poll: Duration,
    /// Of the form of 2025-11-25.
    legacy: bool,
}

/// The task that a result of a call is the handle of, if it is one.
pub fn started(result: &Value) -> Option<Started> {
    let (task, legacy) = match result.get("resultType").and_then(Value::as_str) {
        Some("task") => (result, false),
        _ => (result.get("task").filter(|_| result.get("content").is_none())?, true),
    };
    Some(Started { id: task.get("taskId")?.as_str()?.into(), poll: poll_of(task).unwrap_or(POLL), legacy })
}

fn poll_of(task: &Value) -> Option<Duration> {
    let ms = task.get("pollIntervalMs").or(task.get("pollInterval"))?.as_u64()?;
    Some(Duration::from_millis(ms).clamp(POLL_BOUNDS.0, POLL_BOUNDS.1))
}

impl Connection {
    /// Waits for the end of a task until `until`, and gives the result of its call.
    pub(super) async fn follow(
        &self,
        task: Started,
        control: &Control,
        until: Instant,
    ) -> Result<Value, CallError> {
        let given_up = tokio::select! {
            ended = self.ended(&task, control, until) => match ended {
                Ok(_) | Err(CallError::Rpc(_) | CallError::Unreadable(_)) => return ended,
                Err(error) => error,
            },
            () = tokio::time::sleep_until(until) => CallError::TimedOut(control.timeout),
            () = control.cancel.cancelled() => CallError::Cancelled,
        };
        // A server that hangs does not hold the caller for long.
        let cancel = self.ask_of(&task, "tasks/cancel");
        let _ = tokio::time::timeout(TELL, cancel).await;
        Err(given_up)
    }

    /// The result of a task once it has ended.
    async fn ended(&self, task: &Started, control: &Control, until: Instant) -> Result<Value, CallError> {
        let mut poll = task.poll;
        let mut looks = 0_u64;
        let mut answered = HashSet::new();
        loop {
            tokio::time::sleep(poll).await;
            let state = self.ask_of(task, "tasks/get").await?;
            looks += 1;
            poll = poll_of(&state).unwrap_or(poll);
            let message = state.get("statusMessage").and_then(Value::as_str);
            if let (Some(message), Some(progress)) = (message, &control.progress) {
                progress.take(json!({ "progress": looks, "message": clip(message, 300) }));
            }
            match state.get("status").and_then(Value::as_str) {
                Some("working") => {}
                Some("completed" | "failed") if task.legacy => {
                    return self.ask_of(task, "tasks/result").await;
                }
                Some("completed") => {
                    let result = state.get("result").cloned();
                    return result
                        .ok_or_else(|| CallError::Unreadable("its task ended without a result".into()));
                }
                Some("failed") => {
                    let error = state.get("error").cloned().unwrap_or_default();
                    let failed =
                        || ErrorData::internal_error(message.unwrap_or("its task failed").to_string(), None);
                    return Err(CallError::Rpc(serde_json::from_value(error).unwrap_or_else(|_| failed())));
                }
                Some("cancelled") => return Err(CallError::Unreadable("it cancelled its task".into())),
                // It asks by requests of its own while its result is waited for.
                Some("input_required") if task.legacy => {
                    let left = until.saturating_duration_since(Instant::now());
                    let params = json!({ "taskId": task.id });
                    return self.request_of("tasks/result", params, left).await;
                }
                Some("input_required") => {
                    let requests = state.get("inputRequests").and_then(Value::as_object).cloned();
                    let mut requests = requests.unwrap_or_default();
                    // It may still list what it has just been told.
                    requests.retain(|key, _| answered.insert(key.clone()));
                    if requests.is_empty() {
                        continue;
                    }
                    let responses = self.answers(requests, control).await;
                    if responses.is_err() {
                        self.ask_of(task, "tasks/cancel").await.ok();
                    }
                    let params = json!({ "taskId": task.id, "inputResponses": responses? });
                    self.request_of("tasks/update", params, LOOK).await?;
                }
                other => {
                    return Err(CallError::Unreadable(format!(
                        "its task is {}",
                        other.unwrap_or("in no state")
                    )));
                }
            }
        }
    }

    async fn ask_of(&self, task: &Started, method: &str) -> Result<Value, CallError> {
        self.request_of(method, json!({ "taskId": task.id }), LOOK).await
    }

    async fn request_of(&self, method: &str, params: Value, limit: Duration) -> Result<Value, CallError> {
        let request = ClientRequest::CustomRequest(CustomRequest::new(method, Some(params)));
        let control = Control { timeout: limit, ..Control::default() };
        self.request(request, &control, LOOK, Instant::now() + limit).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_handle_of_a_task_is_told_from_a_result() {
        let check = |result: Value, expected: Option<(&str, u64, bool)>| {
            let expected = expected.map(|(id, ms, legacy)| Started {
                id: id.into(),
                poll: Duration::from_millis(ms),
                legacy,
            });
            assert_eq!(started(&result), expected, "{result}");
        };
        check(json!({ "content": [] }), None);
        check(json!({ "content": [], "task": { "taskId": "a" } }), None);
        check(json!({ "task": { "taskId": "a", "status": "working" } }), Some(("a", 500, true)));
        check(json!({ "task": { "taskId": "a", "pollInterval": 1 } }), Some(("a", 20, true)));
        check(
            json!({ "resultType": "task", "taskId": "b", "pollIntervalMs": 90_000 }),
            Some(("b", 30_000, false)),
        );
    }
}
