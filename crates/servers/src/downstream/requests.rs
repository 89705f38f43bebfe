//! Requests to a server: a slot, a link, the rounds and tasks of a call, and a deadline.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use backon::{BackoffBuilder, ExponentialBuilder};
use nonet_base::turns::{SharedSlot, SharedSlots, SharedTake, Slot};
use nonet_text::results::CallResult;
use rmcp::model::CompleteRequestParams;
use serde_json::{Map, Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    CallControl, CallError, Connection, ConnectionState, Era,
    link::{Input, Link, LinkRequest, RequestError, other},
    server_requests::{InputRequests, OpenCall},
    tasks,
};

/// The maximum number of input rounds in one call, as in the SDKs.
const MAX_ROUNDS: usize = 10;
/// The delay before the next round, if the server asks only for another round.
const BETWEEN_ROUNDS: Duration = Duration::from_millis(200);
/// The delay before a request is repeated to a server whose program was not at the destination. Error answers
/// name the same delay.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
const MOVING: Duration = Duration::from_secs(2);
/// The delay before checking again whether another replica has released a slot, at first and at most.
const LOOK_FOR_SLOT: Duration = Duration::from_millis(10);
const LOOK_FOR_SLOT_AT_MOST: Duration = Duration::from_millis(200);
/// The time that supervision gets to find out why a link ended.
const POST_MORTEM: Duration = Duration::from_millis(100);

impl Connection {
    /// Calls a tool. `wait` is the longest wait for a server that is not connected. `as_task` requests a
    /// task, for tools that support nothing else; a task that the server starts on its own is followed as
    /// well.
    pub async fn call_tool(
        &self,
        tool: &Arc<str>,
        arguments: Map<String, Value>,
        as_task: bool,
        control: CallControl,
        wait: Duration,
    ) -> Result<CallResult, CallError> {
        let settings = self.settings();
        let trial = self.breaker.admit(tool, settings.breaker).map_err(CallError::Resting)?;
        let has_all_time = control.timeout >= settings.timeout;
        let answer = self.call_admitted(tool.clone(), arguments, as_task, control, wait).await;
        trial.ended(&answer, has_all_time);
        answer
    }

    /// Calls a tool for another replica, which runs the breaker.
    pub async fn call_for_replica(
        &self,
        tool: Arc<str>,
        arguments: Map<String, Value>,
        as_task: bool,
        control: CallControl,
    ) -> Result<CallResult, CallError> {
        self.call_admitted(tool, arguments, as_task, control, Duration::ZERO).await
    }

    async fn call_admitted(
        &self,
        tool: Arc<str>,
        arguments: Map<String, Value>,
        as_task: bool,
        control: CallControl,
        wait: Duration,
    ) -> Result<CallResult, CallError> {
        let until = Instant::now() + control.timeout;
        let _slots = self.slot(&control, until).await?;
        let request = LinkRequest::CallTool { tool, arguments, as_task };
        let open = self.opened(&control, wait, until).await?;
        let mut result = self.with_input(request, &control, wait, until).await;
        if let Some(task) = result.as_ref().ok().and_then(CallResult::as_tree).and_then(tasks::started) {
            result = Box::pin(self.follow_task(task, &control, until)).await.map(CallResult::of_server);
        }
        answered(open, &result);
        result
    }

    /// Gets a prompt.
    pub async fn get_prompt(
        &self,
        prompt: &str,
        arguments: Map<String, Value>,
        control: CallControl,
        wait: Duration,
    ) -> Result<Value, CallError> {
        let until = Instant::now() + control.timeout;
        let request = other("prompts/get", json!({ "name": prompt, "arguments": arguments }));
        self.item(request, &control, wait, until).await
    }

    /// Reads a resource.
    pub async fn read_resource(
        &self,
        uri: &str,
        control: CallControl,
        wait: Duration,
    ) -> Result<Value, CallError> {
        let until = Instant::now() + control.timeout;
        self.item(other("resources/read", json!({ "uri": uri })), &control, wait, until).await
    }

    /// Gets a prompt or a resource.
    async fn item(
        &self,
        request: LinkRequest,
        control: &CallControl,
        wait: Duration,
        until: Instant,
    ) -> Result<Value, CallError> {
        let open = self.opened(control, wait, until).await?;
        let result = Box::pin(self.with_input(request, control, wait, until)).await;
        answered(open, &result);
        Ok(result?.into_tree().await)
    }

    /// Completes an argument of a prompt or of a resource template.
    pub async fn complete(
        &self,
        params: CompleteRequestParams,
        control: CallControl,
        wait: Duration,
    ) -> Result<Value, CallError> {
        let until = Instant::now() + control.timeout;
        let request = other("completion/complete", json!(params));
        Ok(self.request(request, Input::default(), &control, wait, until).await?.into_tree().await)
    }

    /// Returns the number of calls in flight.
    pub fn in_flight(&self) -> usize {
        self.slots.taken()
    }

    /// Waits until the server is ready. From then on it may send requests to a request's client.
    async fn opened(
        &self,
        control: &CallControl,
        wait: Duration,
        until: Instant,
    ) -> Result<Option<OpenCall>, CallError> {
        // Before the server is ready, none of its requests can belong to this call.
        self.ready(until.min(Instant::now() + wait), &control.cancel).await?;
        Ok(control.asker.clone().map(|asker| self.calls.enter(asker)))
    }

    /// Sends a request, and repeats it with the client's answers until the result asks for no more input
    /// (multi round-trip requests, SEP-2322).
    async fn with_input(
        &self,
        request: LinkRequest,
        control: &CallControl,
        wait: Duration,
        mut until: Instant,
    ) -> Result<CallResult, CallError> {
        let may_ask = self.link().is_some_and(|link| link.era() == Some(Era::Stateless));
        let again = may_ask.then(|| request.clone());
        let mut result = self.request(request, Input::default(), control, wait, until).await?;
        let Some(request) = again else { return Ok(result) };
        for _ in 0..MAX_ROUNDS {
            let is_open =
                |result: &Value| result.get("resultType").and_then(Value::as_str) == Some("input_required");
            if !result.as_tree().is_some_and(is_open) {
                return Ok(result);
            }
            let result_so_far = result.tree().await;
            let requests = match result_so_far.get_mut("inputRequests").map(Value::take) {
                Some(Value::Object(requests)) => requests,
                _ => InputRequests::new(),
            };
            let state = result_so_far.get("requestState").and_then(Value::as_str).map(String::from);
            if requests.is_empty() {
                tokio::time::sleep(BETWEEN_ROUNDS).await;
            }
            // The user's time does not count against the server.
            let asked = Instant::now();
            let responses = Box::pin(self.answers(requests, control)).await?;
            until += asked.elapsed();
            let input = Input { responses, state };
            result = Box::pin(self.request(request.clone(), input, control, Duration::ZERO, until)).await?;
        }
        Err(CallError::Unreadable(format!("it asked for input more than {MAX_ROUNDS} times")))
    }

    /// Returns the client's answers to a server's requests.
    pub(super) async fn answers(
        &self,
        mut requests: InputRequests,
        control: &CallControl,
    ) -> Result<BTreeMap<String, Value>, CallError> {
        let Some(asker) = &control.asker else {
            return Err(CallError::Unreadable("it requires input from a user, and there is no user".into()));
        };
        // The keys stay: the replies have the same.
        for params in requests.values_mut().filter_map(|request| request.get_mut("params")) {
            *params = self.calls.masked(params.take());
        }
        let replies = tokio::select! {
            replies = asker.ask(&self.name, requests) => replies,
            () = control.cancel.cancelled() => return Err(CallError::Cancelled),
        };
        // Responses cannot carry an error, so the call cannot go on.
        replies.into_iter().map(|(key, reply)| Ok((key, reply.map_err(CallError::Rpc)?))).collect()
    }

    /// Waits for a free slot: first this gateway's, where clients take turns, then one shared by all
    /// replicas.
    async fn slot(
        &self,
        control: &CallControl,
        until: Instant,
    ) -> Result<(Slot, Option<SharedSlot>), CallError> {
        let settings = self.settings();
        let busy = || CallError::Busy(settings.concurrency());
        let both = async {
            let own = self.slots.take(control.owner).await.map_err(|_| busy())?;
            let shared = match (&self.shared_slots, settings.shared_concurrency()) {
                (Some(slots), Some(most)) => self.shared_slot(&**slots, most).await,
                _ => None,
            };
            Ok((own, shared))
        };
        tokio::select! {
            biased;
            slots = both => slots,
            () = tokio::time::sleep_until(until) => Err(busy()),
            () = control.cancel.cancelled() => Err(CallError::Cancelled),
        }
    }

    /// Waits for a free slot shared by all replicas. `None` if replicas do not share slots at the moment.
    async fn shared_slot(&self, slots: &dyn SharedSlots, most: usize) -> Option<SharedSlot> {
        // Jitter keeps the replicas from checking at the same moment.
        let pauses =
            ExponentialBuilder::default().with_min_delay(LOOK_FOR_SLOT).with_max_delay(LOOK_FOR_SLOT_AT_MOST);
        for pause in pauses.with_jitter().without_max_times().build() {
            match slots.take(&self.name, most).await {
                SharedTake::Taken(slot) => return Some(slot),
                SharedTake::Alone => return None,
                SharedTake::Full => {}
            }
            tokio::time::sleep(pause).await;
        }
        None
    }

    /// Returns the live link. Waits until `until` for a server that is starting or lost.
    async fn ready(&self, until: Instant, cancel: &CancellationToken) -> Result<Arc<dyn Link>, CallError> {
        if let Some(link) = self.link() {
            return Ok(link);
        }
        let mut states = self.state.subscribe();
        let mut kicked = false;
        loop {
            let state = states.borrow_and_update().clone();
            match state {
                ConnectionState::Ready { .. } => {
                    if let Some(link) = self.link() {
                        return Ok(link);
                    }
                }
                ConnectionState::Starting => {}
                // A caller waits, so end the backoff. The outcome of that attempt is the answer.
                ConnectionState::Down { .. } if !kicked => {
                    self.kick.notify_one();
                    kicked = true;
                }
                other => return Err(CallError::NotReady(other)),
            }
            tokio::select! {
                changed = states.changed() => {
                    if changed.is_err() {
                        return Err(CallError::NotReady(ConnectionState::Stopped));
                    }
                }
                () = tokio::time::sleep_until(until) => return Err(CallError::NotReady(self.state())),
                () = cancel.cancelled() => return Err(CallError::Cancelled),
            }
        }
    }

    /// Sends one request and waits for its result until `until`, which is `control.timeout` after the start
    /// of the call.
    pub(super) async fn request(
        &self,
        request: LinkRequest,
        input: Input,
        control: &CallControl,
        wait: Duration,
        until: Instant,
    ) -> Result<CallResult, CallError> {
        let until_ready = until.min(Instant::now() + wait);
        let mut next = Some((request, input));
        while let Some((request, input)) = next.take() {
            let link = self.ready(until_ready, &control.cancel).await?;
            let again = link.is_relayed().then(|| (request.clone(), input.clone()));
            self.sent.fetch_add(1, Ordering::AcqRel);
            let _sent = InFlightGuard(self);
            let answer = tokio::select! {
                answer = link.request(request, input, control) => answer,
                () = tokio::time::sleep_until(until) => return Err(CallError::TimedOut(control.timeout)),
                () = control.cancel.cancelled() => return Err(CallError::Cancelled),
            };
            match answer {
                Ok(result) => return Ok(result),
                Err(RequestError::Call(error)) => return Err(error),
                Err(RequestError::SignIn(needed)) => return Err(CallError::NotReady(needed.into())),
                Err(RequestError::NotThere(error)) => {
                    let retry_at = Instant::now() + MOVING;
                    if Instant::now() + LOOK_AGAIN >= until_ready {
                        return Err(CallError::NotReady(ConnectionState::Down { error, retry_at }));
                    }
                    tokio::select! {
                        () = tokio::time::sleep(LOOK_AGAIN) => {}
                        () = control.cancel.cancelled() => return Err(CallError::Cancelled),
                    }
                    next = again;
                }
                Err(RequestError::Lost) => break,
            }
        }
        tokio::time::sleep(POST_MORTEM).await;
        Err(CallError::Closed(self.last_end()))
    }
}

/// Ends a request about which the server may ask. A server that has answered asks no more.
fn answered(open: Option<OpenCall>, result: &Result<CallResult, CallError>) {
    if let (Some(mut open), Ok(_) | Err(CallError::Rpc(_))) = (open, result) {
        open.answered();
    }
}

/// A request in flight.
struct InFlightGuard<'a>(&'a Connection);

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        self.0.sent.fetch_sub(1, Ordering::AcqRel);
    }
}
