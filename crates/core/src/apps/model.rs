//! Apps over a model: the model gets the input and tools, and calls tools until it has an answer.
//!
//! Each call takes the same road as a client's call, in a session of the app: the gate allows a tool only if
//! both the client's profile and the app's `allowed_tools` allow it, and approvals are refused.

mod nine;

use std::{borrow::Cow, pin::pin, sync::Arc, time::Duration};

use futures::{FutureExt, StreamExt, stream};
use nonet_base::text::clip;
use nonet_config::{AppModel, ClientLimits, ModelApp};
use nonet_parts::{
    chat::{Chat, ChatCall, ChatEndpoint, ChatError, ChatMessage, ChatTool, Completion},
    jobs,
};
use nonet_servers::{catalog::Tool, downstream::ProgressSink};
use nonet_text::{
    fault::{Fault, FaultCode},
    results::{self, is_error, is_fault, json_len},
};
use serde_json::{Map, Value, json};

use super::AppRun;
use crate::{
    apps::Apps,
    call::{CallRequest, text_result},
    gate::Gate,
    graph::{CONCURRENCY, goes_alone},
    interrupt::Interrupt,
    run::Run,
};
use nonet_state::{
    sampling::ClientModel,
    servers::settled,
    session::{Caller, Session, TaskMode, reads_on},
};

/// Up to this number of tools the model gets the tools themselves; above it, the model searches.
const MOST_TOOLS: usize = 20;
/// How long a run waits for servers that are starting for the first time.
const LIST_WAIT: Duration = Duration::from_secs(3);
/// The largest result that a model gets whole, in bytes; a larger result is kept, and the model gets a
/// preview.
const RESULT_BYTES: usize = 40_000;
/// The longest description of a tool, in characters. OpenAI's API takes 1,024.
const DESCRIPTION: usize = 1_000;
/// How many calls of one answer are carried out.
const MAX_CALLS: usize = 32;
/// The maximum size of a whole conversation, in bytes.
const MAX_CONVERSATION: usize = 4 << 20;
/// How many calls a progress message names.
const SHOWN: usize = 5;
/// How much of the last text an error quotes, in characters.
const LAST_TEXT: usize = 4_000;
/// No call inside an app becomes a job: the app itself does.
const NEVER: Duration = Duration::from_secs(24 * 60 * 60);
/// The first message to an app that was called without an input.
const NO_INPUT: &str = "Begin.";

enum AnswerSource {
    Endpoint(ChatEndpoint),
    Client(ClientModel),
}

impl AnswerSource {
    fn new(id: &str, of: &ModelApp, caller: &Caller) -> Result<Self, Fault> {
        match &of.model {
            AppModel::Client(_) => ClientModel::new(id, caller).map(Self::Client),
            AppModel::Endpoint(at) => {
                ChatEndpoint::new(&at.base_url, &at.name, at.api_key.clone()).map(Self::Endpoint).map_err(
                    |error| Fault::new(FaultCode::Internal, format!("The app `{id}` has no model: {error}")),
                )
            }
        }
    }

    /// Returns what the model's endpoint turned out to lack.
    fn lacks(&self) -> Option<&'static str> {
        match self {
            Self::Client(_) => None,
            Self::Endpoint(endpoint) => endpoint.lacks(),
        }
    }

    async fn answer(&self, id: &str, chat: Chat<'_>) -> Result<Completion, Fault> {
        match self {
            Self::Client(client) => client.complete(chat).await,
            Self::Endpoint(endpoint) => {
                endpoint.complete(chat).await.map_err(|error| endpoint_fault(id, endpoint, error))
            }
        }
    }
}

/// A run of a model app.
struct Conversation<'a> {
    apps: &'a Arc<Apps>,
    /// The app as a caller, in the client's name.
    caller: &'a Caller,
    id: &'a str,
    of: &'a ModelApp,
    brain: AnswerSource,
    tools: Vec<ChatTool>,
    /// Whether the model gets the tools themselves rather than tools that find them.
    is_direct: bool,
    progress: ProgressSink,
    messages: Vec<ChatMessage>,
    bytes: usize,
    turns: usize,
    tool_calls: usize,
    /// The model's last text.
    text: String,
}

impl Apps {
    pub(super) async fn call_model(
        self: &Arc<Self>,
        caller: &Caller,
        app: AppRun,
        of: ModelApp,
    ) -> Result<Value, Interrupt> {
        let brain = AnswerSource::new(&app.id, &of, caller)?;
        if app.handing.background && matches!(brain, AnswerSource::Client(_)) {
            let message = format!(
                "The app `{}` asks the client's model, which answers only while the call is open: call the app without `background`.",
                app.id
            );
            return Err(Fault::new(FaultCode::InvalidParams, message)
                .next("call_app", json!({ "app_id": app.id }))
                .into());
        }
        // The client answers only while its own call is open, so that call must not be answered with a task.
        let waits = match &brain {
            AnswerSource::Client(_) => &Caller { limits: unhurried(caller), ..caller.clone() },
            AnswerSource::Endpoint(_) => caller,
        };
        let admission = self.calls.admit(caller, app.handing.background)?;
        let (run, sink) = Run::of_caller(format!("app {}", app.id), caller);
        let cancel = run.cancel.clone();
        // A separate token, because running out of time is not a cancellation by the user.
        let limit = cancel.child_token();
        let span = caller.meta_span("call_app");
        let mut limits = unhurried(caller);
        limits.max_result_bytes = limits.max_result_bytes.min(RESULT_BYTES);
        let own = Caller {
            session: Session::of_app(&app.id, of.allowed_tools.clone(), &caller.session),
            cancel: limit.clone(),
            trace: span.parent(),
            unasked: true,
            as_task: TaskMode::Never,
            progress: None,
            limits,
            is_admitted: true,
            ..caller.clone()
        };
        let run = Run { began: app.began.into(), background: app.handing.background, admission, ..run };
        let went_on = run.went_on.clone();
        let (apps, client) = (self.clone(), caller.clone());
        let work = async move {
            let mut conversation = Conversation {
                apps: &apps,
                caller: &own,
                id: &app.id,
                of: &of,
                brain,
                tools: Vec::new(),
                is_direct: true,
                progress: sink,
                messages: Vec::new(),
                bytes: 0,
                turns: 0,
                tool_calls: 0,
                text: String::new(),
            };
            let ended = {
                let mut holding = pin!(conversation.hold(app.input));
                tokio::select! {
                    ended = &mut holding => ended,
                    () = tokio::time::sleep(app.timeout) => {
                        // Calls in flight are cancelled, and their servers are notified.
                        limit.cancel();
                        holding.await
                    }
                }
            };
            let answer = match ended {
                Ok(completion) => conversation.answer(&completion),
                Err(_) if limit.is_cancelled() => {
                    conversation.failed(stopped(&app.id, app.timeout, cancel.is_cancelled())).to_result()
                }
                Err(fault) => conversation.failed(fault).to_result(),
            };
            span.ended(if is_error(&answer) { "tool_error" } else { "ok" });
            apps.calls.hand_out(&client, answer, app.handing.select.as_deref(), &went_on).await
        };
        Ok(run.wait(&self.keeping.jobs, waits, work.boxed()).await?.into_tree().await)
    }
}

impl Conversation<'_> {
    /// Runs the conversation and returns the model's answer.
    async fn hold(&mut self, input: Value) -> Result<Completion, Fault> {
        self.gather_tools().await;
        let input = match input {
            Value::Null => NO_INPUT.into(),
            Value::String(text) if text.trim().is_empty() => NO_INPUT.into(),
            Value::String(text) => text,
            value => value.to_string(),
        };
        self.say(ChatMessage::User(input));
        let most = self.of.max_turns;
        loop {
            self.tell(2 * self.turns, self.turns + 1, "the model is answering");
            let chat = Chat {
                system: &self.of.system,
                messages: &self.messages,
                tools: &self.tools,
                max_tokens: self.of.max_tokens,
            };
            let completion = tokio::select! {
                completion = self.brain.answer(self.id, chat) => completion?,
                () = self.caller.cancel.cancelled() => return Err(over()),
            };
            self.turns += 1;
            tracing::debug!(
                app = self.id,
                turn = self.turns,
                calls = completion.calls.len(),
                "a model answered"
            );
            if !completion.text.is_empty() {
                self.text.clone_from(&completion.text);
            }
            if completion.calls.is_empty() {
                return Ok(completion);
            }
            // The results of the last turn's calls would have no reader.
            if self.turns >= most {
                return Err(self.out_of_turns(&completion));
            }
            let calls = completion.calls.clone();
            let cut_by = completion.cut_by;
            self.say(ChatMessage::Model(completion));
            self.tell(2 * self.turns - 1, self.turns, &format!("calling {}", self.named(&calls)));
            let made = self.call_all(&calls, cut_by).await;
            if self.caller.cancel.is_cancelled() {
                return Err(over());
            }
            for (call, (text, failed)) in calls.iter().zip(made) {
                self.say(ChatMessage::Tool { id: call.id.clone(), name: call.name.clone(), text, failed });
            }
            if self.bytes > MAX_CONVERSATION {
                let message = format!(
                    "The conversation of the app `{}` is longer than {MAX_CONVERSATION} bytes. Give it less to read, or fewer turns.",
                    self.id
                );
                return Err(Fault::new(FaultCode::UpstreamError, message));
            }
        }
    }

    fn say(&mut self, message: ChatMessage) {
        self.bytes += match &message {
            ChatMessage::User(text) | ChatMessage::Tool { text, .. } => text.len(),
            ChatMessage::Model(Completion { text, calls, reasoning, .. }) => {
                let of_call = |call: &ChatCall| {
                    let extra = call.extra.as_ref().map_or(0, json_len);
                    call.id.len() + call.name.len() + call.arguments.len() + extra
                };
                let reasoning = reasoning.as_ref().map_or(0, String::len);
                text.len() + reasoning + calls.iter().map(of_call).sum::<usize>()
            }
        };
        self.messages.push(message);
    }

    /// Chooses the model's tools: the tools themselves if there are few, or the meta-tools that find and run
    /// them.
    async fn gather_tools(&mut self) {
        if self.of.allowed_tools.is_empty() {
            return;
        }
        let gate = Gate::of(&self.apps.publisher, &self.caller.session);
        let unlisted: Vec<_> =
            gate.unlisted().into_iter().filter(|server| gate.may_concern(server)).collect();
        if !unlisted.is_empty() {
            let listed = async {
                settled(unlisted.iter().filter_map(|server| gate.connection(server))).await;
                self.apps.publisher.published().await;
            };
            let _ = tokio::time::timeout(LIST_WAIT, listed).await;
        }
        let gate = Gate::of(&self.apps.publisher, &self.caller.session);
        let few: Vec<&Arc<Tool>> = gate.tools().take(MOST_TOOLS + 2).collect();
        let counted = few.iter().filter(|tool| !reads_on(tool)).count();
        self.is_direct = counted <= MOST_TOOLS;
        self.tools = match self.is_direct {
            // Without tools there is no result to read on in.
            true if counted == 0 => Vec::new(),
            true => few.into_iter().map(|tool| offered(tool)).collect(),
            false => nine::definitions(),
        };
    }

    /// Carries out the calls of one answer. Calls that change something run one at a time per server.
    async fn call_all(&mut self, calls: &[ChatCall], cut_by: Option<&str>) -> Vec<(String, bool)> {
        let gate = Gate::of(&self.apps.publisher, &self.caller.session);
        let mut lanes: Vec<(Option<Arc<str>>, Vec<usize>)> = Vec::new();
        for (at, call) in calls.iter().enumerate().take(MAX_CALLS) {
            let tool = gate.tool(&self.called(call)).ok();
            let lane = tool.filter(|tool| goes_alone(tool)).map(|tool| tool.server.clone());
            match lanes.iter_mut().find(|(known, _)| known.is_some() && *known == lane) {
                Some((_, places)) => places.push(at),
                None => lanes.push((lane, vec![at])),
            }
        }
        self.tool_calls += calls.len().min(MAX_CALLS);
        let this = &*self;
        let made = stream::iter(lanes).map(|(_, places)| async move {
            let mut made = Vec::new();
            for at in places {
                made.push((at, this.call(&calls[at], cut_by).await));
            }
            made
        });
        let made: Vec<Vec<_>> = made.buffer_unordered(CONCURRENCY).collect().await;
        let too_many = || {
            let message =
                format!("Not run: one answer may call at most {MAX_CALLS} tools. Call this one again.");
            (Fault::new(FaultCode::RateLimited, message).to_value().to_string(), true)
        };
        let mut results: Vec<(String, bool)> = calls.iter().map(|_| too_many()).collect();
        for (at, result) in made.into_iter().flatten() {
            results[at] = result;
        }
        results
    }

    /// Returns the tool that a call finally reaches.
    fn called<'c>(&self, call: &'c ChatCall) -> Cow<'c, str> {
        let inner = || call.read().ok()?.get("name")?.as_str().map(String::from);
        match self.is_direct {
            true => Cow::Borrowed(&call.name),
            false => inner().map_or(Cow::Borrowed(&call.name), Cow::Owned),
        }
    }

    /// Carries out one call. Returns its text for the model, and whether it failed.
    async fn call(&self, call: &ChatCall, cut_by: Option<&str>) -> (String, bool) {
        let params = match call.read() {
            Ok(params) => params,
            Err(error) => {
                let why = cut_by.map(|what| format!("; {what} cut the answer off")).unwrap_or_default();
                let begins = clip(&call.arguments, 200);
                let message = format!(
                    "The arguments of `{}` are not JSON ({error}{why}). They begin with: {begins}",
                    clip(&call.name, 200)
                );
                return (Fault::new(FaultCode::InvalidParams, message).to_value().to_string(), true);
            }
        };
        let made = match self.is_direct {
            true => {
                let request = CallRequest { name: call.name.clone(), params, ..CallRequest::default() };
                match self.apps.calls.execute(self.caller, request).await {
                    Ok(result) => Ok(result.into_tree().await),
                    Err(interrupt) => Err(interrupt),
                }
            }
            false => nine::call(self.apps, self.caller, &call.name, params).await,
        };
        let result = match made {
            Ok(result) => result,
            Err(Interrupt::Fault(fault)) => fault.to_result(),
            // Calls of an app never become tasks, and are never verbatim.
            Err(Interrupt::Task(_) | Interrupt::Refused(_)) => jobs::panicked(),
        };
        let (failed, is_fault) = (is_error(&result), is_fault(&result));
        let text = match text_for_model(result) {
            text if is_fault && self.is_direct => without_steps(text),
            text => text,
        };
        (clip(&text, 2 * RESULT_BYTES), failed)
    }

    fn tell(&self, progress: usize, turn: usize, what: &str) {
        let most = self.of.max_turns;
        let message = format!("turn {turn} of {most}: {what}");
        self.progress.take(json!({ "progress": progress, "total": 2 * most, "message": message }));
    }

    /// Names the tools of the first calls, for people.
    fn named(&self, calls: &[ChatCall]) -> String {
        let names: Vec<String> = calls.iter().take(SHOWN).map(|call| clip(&self.called(call), 80)).collect();
        names.join(", ") + if calls.len() > SHOWN { " and more" } else { "" }
    }

    fn answer(&self, completion: &Completion) -> Value {
        let mut answer = json!({
            "app_id": self.id,
            "output": completion.text,
            "tool_calls": self.tool_calls,
            "turns": self.turns,
        });
        if let Some(lacks) = self.brain.lacks() {
            answer["note"] = json!(lacks);
        }
        if let Some(what) = completion.cut_by {
            answer["cut_off"] = json!(format!("The output ends early: {what} cut it off."));
        }
        text_result(answer.to_string())
    }

    fn out_of_turns(&self, completion: &Completion) -> Fault {
        let message = format!(
            "The app `{}` has used its {} turns without an answer; its model still wanted to call {}. Ask \
             for less, or ask the user to raise `max_turns` of [apps.{}].",
            self.id,
            self.turns,
            self.named(&completion.calls),
            self.id
        );
        Fault::new(FaultCode::UpstreamError, message)
    }

    /// Adds to a fault what was done so far.
    fn failed(&self, fault: Fault) -> Fault {
        let mut details = json!({ "app_id": self.id, "turns": self.turns, "tool_calls": self.tool_calls });
        if !self.text.is_empty() {
            details["last_text"] = json!(clip(&self.text, LAST_TEXT));
        }
        let fault = match fault.next_step {
            Some(_) => fault,
            None => fault.next("call_app", json!({})),
        };
        fault.details(details)
    }
}

/// Returns the client's limits without a soft deadline.
fn unhurried(caller: &Caller) -> ClientLimits {
    ClientLimits { soft_deadline: NEVER, ..caller.limits }
}

/// Describes a tool to the model.
fn offered(tool: &Tool) -> ChatTool {
    ChatTool {
        name: tool.wire.to_string(),
        description: clip(&tool.description, DESCRIPTION),
        parameters: plain_schema(tool.schema.raw()),
    }
}

/// Reduces a schema to what endpoints accept: an object without alternatives at the top. The call itself is
/// read with the whole schema.
fn plain_schema(schema: &Value) -> Value {
    let mut fields = schema.as_object().cloned().unwrap_or_default();
    for key in ["anyOf", "oneOf", "allOf", "not", "enum", "if", "then", "else", "$schema", "$id"] {
        fields.shift_remove(key);
    }
    fields.insert("type".into(), json!("object"));
    fields.entry("properties").or_insert_with(|| Value::Object(Map::new()));
    Value::Object(fields)
}

/// Turns a result into text for the model, with a note for each picture or sound.
fn text_for_model(result: Value) -> String {
    let mut result = Arc::new(result);
    let media = results::take_media(&mut result);
    let mut text = match results::text_of_value(&result) {
        text if text.is_empty() && media.is_empty() => "(no content)".into(),
        text => text,
    };
    for block in media {
        let kind = block["mimeType"].as_str().unwrap_or("media");
        text.push_str(&format!("\n({} left out)", clip(kind, 80)));
    }
    text
}

/// Removes calls of meta-tools from a fault, for a model that has no meta-tools.
fn without_steps(text: String) -> String {
    match serde_json::from_str::<Value>(&text) {
        Ok(mut fault) if fault["error"]["code"].is_string() => {
            if let Some(error) = fault.get_mut("error").and_then(Value::as_object_mut) {
                error.shift_remove("next_step");
                if let Some(details) = error.get_mut("details").and_then(Value::as_object_mut) {
                    details.shift_remove("corrected_call");
                }
            }
            fault.to_string()
        }
        _ => text,
    }
}

/// Ends a stopped run; the caller knows the reason.
fn over() -> Fault {
    Fault::new(FaultCode::Cancelled, "The app was stopped.")
}

/// Builds the fault of a stopped run.
fn stopped(id: &str, timeout: Duration, is_cancelled: bool) -> Fault {
    if is_cancelled {
        return Fault::new(FaultCode::Cancelled, format!("The app `{id}` was cancelled."));
    }
    let limit = humantime::format_duration(timeout);
    let message = format!(
        "The app `{id}` did not answer within {limit}. Give a longer `timeout`, in seconds; the user can set `timeout` of [apps.{id}]."
    );
    Fault::new(FaultCode::Timeout, message)
}

fn endpoint_fault(id: &str, endpoint: &ChatEndpoint, error: ChatError) -> Fault {
    let at = format!("The model of the app `{id}` at {}", endpoint.place());
    let key = format!("apps.{id}.model");
    match error {
        ChatError::Refused(text) => Fault::new(
            FaultCode::AuthRequired,
            format!(
                "{at} refuses the request ({text}). The user must check `api_key` of `{key}` in servers.toml; Nonet reloads the changed file at once."
            ),
        ),
        ChatError::Status { status, text, retry_after } if status.as_u16() == 429 => {
            let fault =
                Fault::new(FaultCode::RateLimited, format!("{at} accepts no more requests for now: {text}"));
            match retry_after {
                Some(wait) => fault.retry_after(wait),
                None => fault,
            }
        }
        ChatError::Status { status, text, .. } => {
            let remedy = match status.is_server_error() {
                true => String::new(),
                false => format!(" The user can check `base_url` and `name` of `{key}` in servers.toml."),
            };
            let fault = Fault::new(FaultCode::UpstreamError, format!("{at} failed: {text}.{remedy}"));
            Fault { retryable: status.is_server_error(), ..fault }
        }
        ChatError::Broken(text) => Fault {
            retryable: true,
            ..Fault::new(
                FaultCode::UpstreamError,
                format!(
                    "{at} cannot be reached: {text}. The user can check `base_url` of `{key}` in servers.toml."
                ),
            )
        },
        ChatError::TooLong(_) | ChatError::Unusable(_) => {
            Fault::new(FaultCode::UpstreamError, format!("{at} sent an unusable answer: {error}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_is_made_plain_for_endpoints() {
        let check = |schema: Value, expected: Value| assert_eq!(plain_schema(&schema), expected, "{schema}");
        check(json!({}), json!({ "type": "object", "properties": {} }));
        check(json!(true), json!({ "type": "object", "properties": {} }));
        let of = json!({ "type": "object", "properties": { "n": { "anyOf": [{}] } }, "required": ["n"] });
        check(of.clone(), of.clone());
        let mut open = of.clone();
        open["anyOf"] = json!([{ "required": ["n"] }]);
        check(open, of);
    }

    #[test]
    fn a_model_reads_text() {
        let check =
            |result: Value, expected: &str| assert_eq!(text_for_model(result.clone()), expected, "{result}");
        check(json!({ "content": [] }), "(no content)");
        check(json!({ "content": [], "structuredContent": { "n": 1 } }), "{\"n\":1}");
        let picture = json!({ "type": "image", "data": "AAAA", "mimeType": "image/png" });
        check(
            json!({ "content": [{ "type": "text", "text": "seen" }, picture] }),
            "seen\n(image/png left out)",
        );
        check(json!({ "content": [picture] }), "\n(image/png left out)");
    }
}
