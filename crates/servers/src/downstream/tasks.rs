//! Servers' tasks: a task returned by a call is followed until it ends.
//!
//! There are two forms: the tasks of 2025-11-25, whose result has a request of its own, and the tasks
//! extension of 2026-07-28 (SEP-2663), whose result comes with the final state.

use std::{collections::HashSet, time::Duration};

use nonet_base::text::clip;
use rmcp::model::ErrorData;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    CallControl, CallError, Connection, Era,
    link::{Input, other},
};

/// The default poll interval, and the bounds on a server's own.
const POLL: Duration = Duration::from_millis(500);
const POLL_BOUNDS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(30));
/// The longest time for one poll.
const POLL_LIMIT: Duration = Duration::from_secs(30);
/// The longest time for a server to accept a cancellation.
const CANCEL_LIMIT: Duration = Duration::from_millis(500);

/// A task that a server started for a call.
#[derive(Debug, PartialEq)]
pub(super) struct ServerTask {
    id: String,
    poll: Duration,
    era: Era,
}

/// Returns the task in a result, if there is one.
pub(super) fn started(result: &Value) -> Option<ServerTask> {
    let (task, era) = match result.get("resultType").and_then(Value::as_str) {
        Some("task") => (result, Era::Stateless),
        _ => (result.get("task").filter(|_| result.get("content").is_none())?, Era::Session),
    };
    Some(ServerTask { id: task.get("taskId")?.as_str()?.into(), poll: poll_of(task).unwrap_or(POLL), era })
}

fn poll_of(task: &Value) -> Option<Duration> {
    let ms = task.get("pollIntervalMs").or(task.get("pollInterval"))?.as_u64()?;
    Some(Duration::from_millis(ms).clamp(POLL_BOUNDS.0, POLL_BOUNDS.1))
}

impl Connection {
    /// Follows a task until it ends, or until `until`. Returns the result of its call.
    pub(super) async fn follow_task(
        &self,
        task: ServerTask,
        control: &CallControl,
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
        // Bounded, in case the server hangs.
        let cancel = self.ask_of(&task, "tasks/cancel");
        let _ = tokio::time::timeout(CANCEL_LIMIT, cancel).await;
        Err(given_up)
    }

    /// Polls a task until it has ended. Returns its result.
    async fn ended(
        &self,
        task: &ServerTask,
        control: &CallControl,
        until: Instant,
    ) -> Result<Value, CallError> {
        let mut poll = task.poll;
        let mut polls = 0_u64;
        let mut answered = HashSet::new();
        loop {
            tokio::time::sleep(poll).await;
            let state = self.ask_of(task, "tasks/get").await?;
            polls += 1;
            poll = poll_of(&state).unwrap_or(poll);
            let message = state.get("statusMessage").and_then(Value::as_str);
            if let (Some(message), Some(progress)) = (message, &control.progress) {
                let message = clip(&self.calls.secrets.load().mask(message), 300);
                progress.take(json!({ "progress": polls, "message": message }));
            }
            match state.get("status").and_then(Value::as_str) {
                Some("working") => {}
                Some("completed" | "failed") if task.era == Era::Session => {
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
                // The server sends its requests while `tasks/result` is open.
                Some("input_required") if task.era == Era::Session => {
                    let left = until.saturating_duration_since(Instant::now());
                    let params = json!({ "taskId": task.id });
                    return self.request_of("tasks/result", params, left).await;
                }
                Some("input_required") => {
                    let requests = state.get("inputRequests").and_then(Value::as_object).cloned();
                    let mut requests = requests.unwrap_or_default();
                    // The list may still hold requests that have just been answered.
                    requests.retain(|key, _| answered.insert(key.clone()));
                    if requests.is_empty() {
                        continue;
                    }
                    let responses = self.answers(requests, control).await;
                    if responses.is_err() {
                        self.ask_of(task, "tasks/cancel").await.ok();
                    }
                    let params = json!({ "taskId": task.id, "inputResponses": responses? });
                    self.request_of("tasks/update", params, POLL_LIMIT).await?;
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

    async fn ask_of(&self, task: &ServerTask, method: &'static str) -> Result<Value, CallError> {
        self.request_of(method, json!({ "taskId": task.id }), POLL_LIMIT).await
    }

    async fn request_of(
        &self,
        method: &'static str,
        params: Value,
        limit: Duration,
    ) -> Result<Value, CallError> {
        let control = CallControl { timeout: limit, ..CallControl::default() };
        let request = other(method, params);
        let until = Instant::now() + limit;
        Ok(self.request(request, Input::default(), &control, POLL_LIMIT, until).await?.into_tree().await)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_handle_of_a_task_is_told_from_a_result() {
        let check = |result: Value, expected: Option<(&str, u64, Era)>| {
            let expected = expected.map(|(id, ms, era)| ServerTask {
                id: id.into(),
                poll: Duration::from_millis(ms),
                era,
            });
            assert_eq!(started(&result), expected, "{result}");
        };
        check(json!({ "content": [] }), None);
        check(json!({ "content": [], "task": { "taskId": "a" } }), None);
        check(json!({ "task": { "taskId": "a", "status": "working" } }), Some(("a", 500, Era::Session)));
        check(json!({ "task": { "taskId": "a", "pollInterval": 1 } }), Some(("a", 20, Era::Session)));
        check(
            json!({ "resultType": "task", "taskId": "b", "pollIntervalMs": 90_000 }),
            Some(("b", 30_000, Era::Stateless)),
        );
    }
}
