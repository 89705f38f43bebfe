//! Requests to a server that is connected: sent, waited for, and ended in time.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use rmcp::{
    RoleClient,
    model::{
        CallToolRequest, CallToolRequestParams, ClientRequest, CompleteRequest, CompleteRequestParams,
        CustomRequest, GetExtensions, GetMeta, GetPromptRequest, GetPromptRequestParams, ReadResourceRequest,
        ReadResourceRequestParams, ServerResult,
    },
    service::{Peer, PeerRequestOptions, RequestHandle, ServiceError},
};
use serde_json::{Map, Value, json};
use tokio::{sync::SemaphorePermit, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    CallError, Connection, Control, Era, State, deepest,
    refusal::{self, Refusal},
    tap::Declared,
    tasks,
    wishes::Requests,
};
use crate::text::clip;

/// The `_meta` key of the level from which on a client wants to hear a server's log (2026-07-28).
const LOG_LEVEL_KEY: &str = "io.modelcontextprotocol/logLevel";
/// How often a server may ask for input in one call, as in the SDKs.
const MAX_ROUNDS: usize = 10;
/// How long until a call is worth another try whose token could not be renewed.
const UNSENT: Duration = Duration::from_secs(5);
/// How long a server that asks for nothing but another round is left.
const BETWEEN_ROUNDS: Duration = Duration::from_millis(200);

impl Connection {
    /// Calls a tool. `wait` is how long a server that is not connected is waited for. `as_task` says that the server takes
    /// the call only as a task; a server that answers with one on its own is followed as well.
    pub async fn call_tool(
        &self,
        tool: &str,
        arguments: Map<String, Value>,
        as_task: bool,
        control: Control,
        wait: Duration,
    ) -> Result<Value, CallError> {
        let until = Instant::now() + control.timeout;
        let _slot = self.slot(&control, until).await?;
        // Before it is there it asks about nothing of this call.
        self.ready(until.min(Instant::now() + wait), &control.cancel).await?;
        let mut asked = control.asker.clone().map(|asker| self.askers.enter(asker));
        let result = self.call_and_follow(tool, arguments, as_task, &control, (wait, until)).await;
        if let (Some(asked), Ok(_) | Err(CallError::Rpc(_))) = (&mut asked, &result) {
            asked.answered();
        }
        result
    }

    async fn call_and_follow(
        &self,
        tool: &str,
        arguments: Map<String, Value>,
        as_task: bool,
        control: &Control,
        (wait, until): (Duration, Instant),
    ) -> Result<Value, CallError> {
        // Sent again with what the client answered, where the server asks for that.
        let again = self.may_ask().then(|| arguments.clone());
        let request = if as_task {
            let params = json!({ "name": tool, "arguments": arguments, "task": {} });
            ClientRequest::CustomRequest(CustomRequest::new("tools/call", Some(params)))
        } else {
            call_request(tool, arguments, Given::default())
        };
        let result = self.request(request, control, wait, until).await?;
        let result = match (tasks::started(&result), again) {
            (Some(task), _) => return self.follow(task, control, until).await,
            (None, None) => result,
            (None, Some(arguments)) => {
                let make = |given| call_request(tool, arguments.clone(), given);
                self.with_input(result, &make, control, until).await?
            }
        };
        match tasks::started(&result) {
            Some(task) => self.follow(task, control, until).await,
            None => Ok(result),
        }
    }

    /// Whether the server may answer with requests of its own that want another round.
    fn may_ask(&self) -> bool {
        self.era.lock().is_ok_and(|era| *era == Some(Era::Modern))
    }

    /// Answers the requests in a result until there are none in it (multi round-trip requests, SEP-2322).
    async fn with_input(
        &self,
        mut result: Value,
        make: &(dyn Fn(Given) -> ClientRequest + Sync),
        control: &Control,
        mut until: Instant,
    ) -> Result<Value, CallError> {
        for _ in 0..MAX_ROUNDS {
            if result.get("resultType").and_then(Value::as_str) != Some("input_required") {
                return Ok(result);
            }
            let requests = match result.get_mut("inputRequests").map(Value::take) {
                Some(Value::Object(requests)) => requests,
                _ => Requests::new(),
            };
            let state = result.get("requestState").and_then(Value::as_str).map(String::from);
            if requests.is_empty() {
                // It only wants to be called again, when it has less to do.
                tokio::time::sleep(BETWEEN_ROUNDS).await;
            }
            // A user takes time, which is not the server's.
            let asked = Instant::now();
            let responses = self.answers(requests, control).await?;
            until += asked.elapsed();
            result = self.request(make(Given { responses, state }), control, Duration::ZERO, until).await?;
        }
        Err(CallError::Unreadable(format!("it asked for input more than {MAX_ROUNDS} times")))
    }

    /// What the client of the call answers to a server's requests.
    pub(super) async fn answers(
        &self,
        requests: Requests,
        control: &Control,
    ) -> Result<BTreeMap<String, Value>, CallError> {
        let Some(asker) = &control.asker else {
            return Err(CallError::Unreadable("it wants input from a user, and there is none".into()));
        };
        let replies = tokio::select! {
            replies = asker.ask(requests) => replies,
            () = control.cancel.cancelled() => return Err(CallError::Cancelled),
        };
        // An error has no place among the responses: the call cannot go on without it.
        replies.into_iter().map(|(key, reply)| Ok((key, reply.map_err(CallError::Rpc)?))).collect()
    }

    /// Gets a prompt.
    pub async fn get_prompt(
        &self,
        prompt: &str,
        arguments: Map<String, Value>,
        control: Control,
        wait: Duration,
    ) -> Result<Value, CallError> {
        let make = |given: Given| {
            let mut params = GetPromptRequestParams::new(prompt);
            params.arguments = Some(arguments.clone());
            (params.input_responses, params.request_state) = given.parts();
            ClientRequest::GetPromptRequest(GetPromptRequest::new(params))
        };
        self.request_with_input(&make, &control, wait).await
    }

    /// Reads a resource.
    pub async fn read_resource(
        &self,
        uri: &str,
        control: Control,
        wait: Duration,
    ) -> Result<Value, CallError> {
        let make = |given: Given| {
            let mut params = ReadResourceRequestParams::new(uri);
            (params.input_responses, params.request_state) = given.parts();
            ClientRequest::ReadResourceRequest(ReadResourceRequest::new(params))
        };
        self.request_with_input(&make, &control, wait).await
    }

    async fn request_with_input(
        &self,
        make: &(dyn Fn(Given) -> ClientRequest + Sync),
        control: &Control,
        wait: Duration,
    ) -> Result<Value, CallError> {
        let until = Instant::now() + control.timeout;
        self.ready(until.min(Instant::now() + wait), &control.cancel).await?;
        let mut asked = control.asker.clone().map(|asker| self.askers.enter(asker));
        let result = async {
            let result = self.request(make(Given::default()), control, wait, until).await?;
            self.with_input(result, make, control, until).await
        };
        let result = result.await;
        if let (Some(asked), Ok(_) | Err(CallError::Rpc(_))) = (&mut asked, &result) {
            asked.answered();
        }
        result
    }

    /// Completes an argument of a prompt or of a resource template.
    pub async fn complete(
        &self,
        params: CompleteRequestParams,
        control: Control,
        wait: Duration,
    ) -> Result<Value, CallError> {
        let until = Instant::now() + control.timeout;
        self.request(ClientRequest::CompleteRequest(CompleteRequest::new(params)), &control, wait, until)
            .await
    }

    /// How many calls are with the server.
    pub fn in_flight(&self) -> usize {
        self.settings().concurrency().saturating_sub(self.slots.available_permits())
    }

    /// Waits for the turn of a call.
    async fn slot(&self, control: &Control, until: Instant) -> Result<SemaphorePermit<'_>, CallError> {
        if let Ok(slot) = self.slots.try_acquire() {
            return Ok(slot);
        }
        let busy = || CallError::Busy(self.settings().concurrency());
        tokio::select! {
            slot = self.slots.acquire() => slot.map_err(|_| busy()),
            () = tokio::time::sleep_until(until) => Err(busy()),
            () = control.cancel.cancelled() => Err(CallError::Cancelled),
        }
    }

    /// The live peer. A server that is starting or was lost is waited for until `until`.
    async fn ready(
        &self,
        until: Instant,
        cancel: &CancellationToken,
    ) -> Result<Arc<Peer<RoleClient>>, CallError> {
        if let Some(peer) = self.peer.load_full()
            && !peer.is_transport_closed()
        {
            return Ok(peer);
        }
        let mut states = self.state.subscribe();
        let mut kicked = false;
        loop {
            let state = states.borrow_and_update().clone();
            match state {
                State::Ready { .. } => {
                    if let Some(peer) = self.peer.load_full()
                        && !peer.is_transport_closed()
                    {
                        return Ok(peer);
                    }
                }
                State::Starting => {}
                // A caller is waiting: do not sit out the backoff. If that fails too, that is the answer.
                State::Down { .. } if !kicked => {
                    self.kick.notify_one();
                    kicked = true;
                }
                other => return Err(CallError::NotReady(other)),
            }
            tokio::select! {
                changed = states.changed() => {
                    if changed.is_err() {
                        return Err(CallError::NotReady(State::Stopped));
                    }
                }
                () = tokio::time::sleep_until(until) => return Err(CallError::NotReady(self.state())),
                () = cancel.cancelled() => return Err(CallError::Cancelled),
            }
        }
    }

    /// Sends a request and waits for its result, verbatim, until `until`, which is `control.timeout` after its beginning.
    pub(super) async fn request(
        &self,
        mut request: ClientRequest,
        control: &Control,
        wait: Duration,
        until: Instant,
    ) -> Result<Value, CallError> {
        let peer = self.ready(until.min(Instant::now() + wait), &control.cancel).await?;
        for (key, value) in &control.meta {
            request.get_meta_mut().0.insert(key.clone(), value.clone());
        }
        if let Some(progress) = &control.progress {
            request.extensions_mut().insert(progress.clone());
        }
        if let Some(asker) = &control.asker {
            request.extensions_mut().insert(asker.clone());
            request.extensions_mut().insert(Declared(asker.can.clone()));
            if let Some(level) = asker.log.filter(|_| self.may_ask()) {
                request.get_meta_mut().0.insert(LOG_LEVEL_KEY.into(), json!(level));
            }
        }
        let mut handle = peer
            .send_request_with_option(request, PeerRequestOptions::no_options())
            .await
            .map_err(|_| CallError::Closed(self.last_end()))?;
        let outcome = tokio::select! {
            answer = &mut handle.rx => answer,
            () = tokio::time::sleep_until(until) => {
                tell_cancelled(handle, "the gateway's limit for this call is over");
                return Err(CallError::TimedOut(control.timeout));
            }
            () = control.cancel.cancelled() => {
                tell_cancelled(handle, "the client cancelled");
                return Err(CallError::Cancelled);
            }
        };
        match outcome {
            Ok(Ok(ServerResult::CustomResult(result))) => Ok(result.0),
            Ok(Ok(other)) => serde_json::to_value(other).map_err(|e| CallError::Unreadable(e.to_string())),
            Ok(Err(ServiceError::McpError(error))) => Err(CallError::Rpc(error)),
            Ok(Err(ServiceError::Cancelled { .. })) => Err(CallError::Cancelled),
            Ok(Err(ServiceError::TransportSend(error))) => {
                let text = clip(&deepest(error.error.as_ref()), 400);
                let Some(refusal) = Refusal::of(error.error.as_ref()) else {
                    let text = self.mask(&text);
                    return Err(match refusal::is_unsent(error.error.as_ref()) {
                        true => CallError::NotReady(State::Down {
                            error: text,
                            retry_at: Instant::now() + UNSENT,
                        }),
                        false => CallError::Closed(text),
                    });
                };
                let state = self.wants_sign_in(&refusal);
                // Where only this call needs more, the others go on.
                if refusal.scope.is_none() {
                    self.signed_out.send_replace(Some(refusal));
                }
                Err(CallError::NotReady(state))
            }
            Ok(Err(ServiceError::TransportClosed)) | Err(_) => {
                // The supervisor is just finding out why; give it a moment.
                tokio::time::sleep(Duration::from_millis(100)).await;
                Err(CallError::Closed(self.last_end()))
            }
            Ok(Err(error)) => Err(CallError::Unreadable(clip(&error.to_string(), 400))),
        }
    }
}

/// What the client answered in an earlier round.
#[derive(Default)]
struct Given {
    responses: BTreeMap<String, Value>,
    state: Option<String>,
}

impl Given {
    fn parts(self) -> (Option<BTreeMap<String, Value>>, Option<String>) {
        ((!self.responses.is_empty()).then_some(self.responses), self.state)
    }
}

fn call_request(tool: &str, arguments: Map<String, Value>, given: Given) -> ClientRequest {
    let mut params = CallToolRequestParams::new(tool.to_string());
    params.arguments = Some(arguments);
    (params.input_responses, params.request_state) = given.parts();
    ClientRequest::CallToolRequest(CallToolRequest::new(params))
}

/// Tells the server that a request is not wanted any more. Not waited for: a server that does not
/// read would hold the caller.
fn tell_cancelled(handle: RequestHandle<RoleClient>, reason: &str) {
    let reason = Some(reason.to_string());
    tokio::spawn(async move {
        let _ = handle.cancel(reason).await;
    });
}
