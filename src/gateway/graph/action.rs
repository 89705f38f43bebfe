//! One call of a plan: evaluates `when`, fills templates, waits for the server, makes the call, and retries it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::{Common, RunLog, Values, goes_alone};
use crate::{
    catalog::{Kind, Tool},
    clock::millis,
    config::LONGEST_TIME,
    downstream::{Connection, ProgressSink},
    fault::{Code, Fault},
    gateway::{
        AppArguments, AskArguments, Gateway,
        call::{Begun, Prepared, in_text, still_the_same, text_result},
        faults::error_of,
        interrupt::Interrupt,
        questions::QuestionOutcome,
        session::Caller,
    },
    jobs,
    json::take_member,
    results::{is_error, text_of},
    schema::Schema,
    template::{self, Filled, Named},
    turns::Slot,
    workflow::{CallKind, CallOutcome, INPUT, PlannedCall, Retry, StepsRead},
};

/// The longest pause before a retry.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// The result of one call of a plan.
#[derive(Clone, Debug)]
pub(crate) struct ActionResult {
    /// The tool's full name, or the name as given.
    pub name: String,
    /// A `CallToolResult`.
    pub result: Arc<Value>,
    /// Repairs made to its params.
    pub repaired: Vec<String>,
    /// How many times a tool was called.
    pub calls: usize,
    /// Whether its `when` skipped it.
    pub skipped: bool,
    /// The user's answer, if the user was asked and did not agree.
    pub declined: Option<Value>,
    /// The question that waits for the user.
    pub open: Option<Box<AskArguments>>,
    /// How long it took, in milliseconds.
    pub elapsed_ms: u64,
}

impl ActionResult {
    /// Creates the result of a finished call.
    pub fn of(name: String, result: Value) -> Self {
        Self {
            name,
            result: Arc::new(result),
            repaired: Vec::new(),
            calls: 0,
            skipped: false,
            declined: None,
            open: None,
            elapsed_ms: 0,
        }
    }

    /// Creates the result of a call that did not reach its tool.
    pub fn not_run(call: &PlannedCall, fault: &Fault, took: Duration) -> Self {
        Self { elapsed_ms: millis(took), ..Self::of(call.name.clone(), fault.to_result()) }
    }

    /// Creates the result of a call that its `when` skipped.
    fn skipped(call: &PlannedCall) -> Self {
        Self { skipped: true, ..Self::of(call.name.clone(), json!({ "content": [] })) }
    }

    pub fn panicked(call: &PlannedCall) -> Self {
        tracing::error!(tool = call.name, "a call panicked");
        Self { calls: 1, ..Self::of(call.name.clone(), jobs::panicked()) }
    }

    /// Creates the result of a question. Only `answered` and `approved` are successes.
    pub fn answered(call: &PlannedCall, answer: Value) -> Self {
        let status = answer["status"].as_str().unwrap_or_default();
        if matches!(status, "answered" | "approved") {
            let result = json!({ "content": [], "structuredContent": answer });
            return Self::of(call.name.clone(), result);
        }
        let message = match status {
            "denied" => "The user said no.",
            "timed_out" => "The user did not answer in time.",
            _ => "The user closed the question without an answer.",
        };
        let fault = Fault::new(Code::Cancelled, message).to_result();
        Self { declined: Some(answer), ..Self::of(call.name.clone(), fault) }
    }

    /// Returns the call's outcome.
    pub fn outcome(&self) -> CallOutcome {
        match (self.skipped, &self.open) {
            (true, _) => CallOutcome::Skipped,
            (_, Some(_)) => CallOutcome::Open,
            _ if is_error(&self.result) => CallOutcome::Failed,
            _ => CallOutcome::Succeeded,
        }
    }

    /// Whether its result is not an error.
    pub fn succeeded(&self) -> bool {
        self.outcome() == CallOutcome::Succeeded
    }
}

impl Gateway {
    /// Carries out one call of a plan.
    pub(super) async fn run_action(
        self: &Arc<Self>,
        common: &Common<'_>,
        at: usize,
        values: Values,
    ) -> ActionResult {
        let call = &common.plan.calls()[at];
        let began = Instant::now();
        let ended = async {
            if let Some(when) = &call.when
                && !self.holds(common, at, when, &values).await?
            {
                return Ok(ActionResult::skipped(call));
            }
            match &call.for_each {
                Some(list) => self.each(common, at, list, values).await,
                None => {
                    Ok(self.once(common, call, &values, common.cancel.child_token(), common.log_of(at)).await)
                }
            }
        };
        let mut one = match ended.await {
            Ok(one) => one,
            Err(fault) => {
                let begun = Begun { at: began, ..Begun::new(common.caller, &call.params) };
                self.not_made(common, call, &begun, &fault).await
            }
        };
        if one.succeeded() && call.select.is_some() {
            let result = Arc::unwrap_or_clone(one.result).into();
            let (result, _) = self.filtered(common.caller, result, 0, call.select.as_deref()).await;
            one.result = Arc::new(result.into_tree().await);
        }
        one.elapsed_ms = millis(began.elapsed());
        one
    }

    /// Whether a `when` yields anything except `false`, `null` and empty lists. The filter sees the input and the
    /// results that its call waits for.
    async fn holds(
        &self,
        common: &Common<'_>,
        at: usize,
        when: &str,
        values: &Values,
    ) -> Result<bool, Fault> {
        let calls = common.plan.calls();
        let read = StepsRead::of(when);
        let seen = common.plan.needs(at).iter().map(|need| &calls[*need].id);
        let seen = seen.filter(|id| read.reads(id));
        let value = |id: &String| values.get(id).map(|source| source.value.clone()).unwrap_or_default();
        let steps: Map<String, Value> = seen.map(|id| (id.clone(), value(id))).collect();
        let over = json!({ "input": value(&INPUT.to_string()), "steps": steps });
        let owner = common.caller.owner();
        let said = tokio::select! {
            said = self.kept.holds(&owner, when, over.to_string()) => said,
            () = common.cancel.cancelled() => return Err(Fault::new(Code::Cancelled, "Not run: cancelled.")),
        };
        said.map_err(|error| {
            let message = format!("The `when` of `{}`: {error}.", calls[at].id);
            Fault::new(Code::InvalidParams, message)
        })
    }

    /// Makes one call, or the call for one item.
    pub(super) async fn once(
        self: &Arc<Self>,
        common: &Common<'_>,
        call: &PlannedCall,
        values: &Values,
        cancel: CancellationToken,
        log: Option<RunLog>,
    ) -> ActionResult {
        let began = Instant::now();
        let ended = match call.kind {
            CallKind::Tool => match self.app_of(common.caller, call) {
                Some(app) => self.call_inner_app(common, call, &app.name, values, cancel, log).await,
                None => Ok(self.call_repeatedly(common, call, values, &cancel).await),
            },
            CallKind::App => self.call_inner_app(common, call, &call.name, values, cancel, log).await,
            CallKind::Ask => self.ask_in_plan(common, call, values).await,
        };
        match ended {
            Ok(one) => one,
            Err(fault) => {
                let begun = Begun { at: began, ..Begun::new(common.caller, &call.params) };
                self.not_made(common, call, &begun, &fault).await
            }
        }
    }

    /// Records a call that failed before it reached its target.
    async fn not_made(
        &self,
        common: &Common<'_>,
        call: &PlannedCall,
        begun: &Begun,
        fault: &Fault,
    ) -> ActionResult {
        self.refused(common.caller, &call.name, begun, fault).await;
        ActionResult::not_run(call, fault, begun.at.elapsed())
    }

    /// Calls a tool, and retries if the step asks for retries and the tool allows them.
    async fn call_repeatedly(
        self: &Arc<Self>,
        common: &Common<'_>,
        call: &PlannedCall,
        values: &Values,
        cancel: &CancellationToken,
    ) -> ActionResult {
        let mut waits = call.retry.as_ref().map(pauses);
        let mut calls = 0;
        loop {
            let begun = self.begin(common.caller, &call.name, &call.params);
            let made = self.try_action(common, call, values, &begun, cancel.child_token()).await;
            let mut one = match made {
                Ok(one) => one,
                Err(fault) => self.not_made(common, call, &begun, &fault).await,
            };
            calls += one.calls;
            one.calls = calls;
            let Some(retry) = call.retry.as_ref().filter(|_| !one.succeeded()) else { return one };
            let error = error_of(&one.result);
            let again = retry.on.iter().any(|code| error["code"] == **code)
                && self.allows_repeating(common.caller, call);
            let Some(wait) = waits.as_mut().filter(|_| again).and_then(Iterator::next) else { return one };
            let asked = error["retry_after_ms"].as_u64().map_or(Duration::ZERO, Duration::from_millis);
            tokio::select! {
                () = tokio::time::sleep(wait.max(asked.min(MAX_WAIT))) => {}
                () = cancel.cancelled() => return one,
                () = common.halt.cancelled() => return one,
            }
        }
    }

    /// Whether the tool's server declares a second call harmless.
    fn allows_repeating(&self, caller: &Caller, call: &PlannedCall) -> bool {
        self.gate(&caller.session).tool(&call.name).is_ok_and(|tool| tool.is_repeatable())
    }

    async fn try_action(
        self: &Arc<Self>,
        common: &Common<'_>,
        call: &PlannedCall,
        values: &Values,
        begun: &Begun,
        cancel: CancellationToken,
    ) -> Result<ActionResult, Fault> {
        let (caller, halt) = (common.caller, &common.halt);
        let prepared = self.prepare_action(caller, call, values).await?;
        let (tool, repaired) = (prepared.tool.clone(), prepared.repaired.clone());
        if !template::names(&call.params).is_empty() {
            self.audit_params(begun, &prepared.params);
        }
        let mut timeout = call.timeout_ms.map(|ms| Duration::from_millis(ms.max(1)));
        let connection = match goes_alone(&tool) {
            true => self.servers.connection_for(&prepared.gate, caller, &tool.server),
            false => None,
        };
        let _turn = match &connection {
            Some(connection) => {
                let owner = caller.account.id;
                Some(turn(connection, owner, &tool, timeout, &cancel, halt).await?)
            }
            None => None,
        };
        let _slot = tokio::select! {
            slot = common.slots.acquire() => slot.ok(),
            () = cancel.cancelled() => return Err(Fault::new(Code::Cancelled, "Not run: cancelled.")),
        };
        // The wait may have taken minutes.
        still_the_same(&self.gate(&caller.session), &tool)?;
        timeout = timeout.map(|limit| limit.saturating_sub(begun.at.elapsed()).max(Duration::from_millis(1)));
        let sink = ProgressSink::new(None);
        let mut made = self.invoke(caller, prepared, timeout, cancel, sink, &begun.span).await;
        let bytes_out = made.result.size().await;
        self.record(caller, &tool, begun, bytes_out, &mut made).await;
        let result = made.result.into_tree().await;
        Ok(ActionResult { repaired, calls: 1, ..ActionResult::of(tool.full.to_string(), result) })
    }

    async fn prepare_action(
        &self,
        caller: &Caller,
        call: &PlannedCall,
        values: &Values,
    ) -> Result<Prepared, Fault> {
        let params = self.filled(caller, &call.params, values).await?;
        // A template has no meaning outside its plan; a kept result stays a reference.
        let portable = template::names(&call.params).is_empty();
        let written = if portable { call.params.clone() } else { params.value.clone() };
        match self.prepare(caller, &call.name, written, Some(params)).await {
            Ok(prepared) => Ok(prepared),
            Err(Interrupt::Fault(fault)) => Err(*fault),
            // A call that is only prepared cannot become a task, and its server cannot refuse it.
            Err(Interrupt::Task(_) | Interrupt::Refused(_)) => {
                Err(Fault::new(Code::Internal, "The call was not made; make it with execute_tool."))
            }
        }
    }

    /// Fills the templates in JSON with values of calls and with kept results.
    pub(super) async fn filled(
        &self,
        caller: &Caller,
        json: &Value,
        values: &Values,
    ) -> Result<Filled, Fault> {
        let references = self.kept.references(&caller.owner(), json).await?;
        let lookup = |name: &str| match values.get(name) {
            Some(value) => Named::Value(value.clone()),
            None if name.starts_with("ref:") => references.named(name),
            None => unknown(values),
        };
        let filled = template::fill(json, &lookup);
        filled.map_err(|error| Fault::new(Code::InvalidParams, format!("{error}.")))
    }

    /// Returns the app that a call of a tool names.
    fn app_of(&self, caller: &Caller, call: &PlannedCall) -> Option<Arc<Tool>> {
        self.gate(&caller.session).tool(&call.name).ok().filter(|tool| tool.kind == Kind::App)
    }

    /// Runs an app in a plan. Waits for its whole answer; its output becomes the value.
    async fn call_inner_app(
        self: &Arc<Self>,
        common: &Common<'_>,
        call: &PlannedCall,
        id: &str,
        values: &Values,
        cancel: CancellationToken,
        log: Option<RunLog>,
    ) -> Result<ActionResult, Fault> {
        let filled = self.filled(common.caller, &call.params, values).await?;
        let config = self.config();
        let app = config.apps.get(id);
        let (input, notes) = match app.and_then(|app| app.input_schema.clone()) {
            Some(schema) => in_text(&Schema::new(schema), filled),
            None => (filled.value, Vec::new()),
        };
        let input = match (self.app_of(common.caller, call), input) {
            (Some(tool), Value::Object(params)) if call.kind == CallKind::Tool => tool.app_input(params),
            (_, input) => input,
        };
        let timeout = call.timeout_ms.map(Duration::from_millis).or(app.and_then(|app| app.timeout));
        let mut caller = Caller { cancel, ..common.caller.clone() };
        caller.limits.soft_deadline = LONGEST_TIME;
        caller.limits.max_result_bytes = usize::MAX;
        let arguments = AppArguments::of_step(id, input, timeout, log);
        let answer = match self.run_app(&caller, arguments).await {
            Ok(answer) => answer,
            // The app has written its own line in the audit log.
            Err(Interrupt::Fault(fault)) => return Ok(ActionResult::not_run(call, &fault, Duration::ZERO)),
            Err(Interrupt::Task(_) | Interrupt::Refused(_)) => {
                return Err(Fault::new(Code::Internal, "The app was not run; run it with call_app."));
            }
        };
        let name = call.name.clone();
        if is_error(&answer) {
            return Ok(ActionResult::of(name, answer));
        }
        let mut told: Value = serde_json::from_str(&text_of(&answer)).unwrap_or_default();
        if told.get("output").is_none() {
            // A question to the user, with the token to continue.
            return Ok(ActionResult::of(name, answer));
        }
        let output = take_member(&mut told, "output");
        let result = match output {
            // Text is its own JSON.
            Value::String(text) => text_result(text),
            Value::Null => text_result("null".into()),
            output => json!({ "content": [], "structuredContent": output }),
        };
        let inner = told["repaired"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let inner = inner.map(|note| format!("{name}: {note}"));
        let repaired = notes.into_iter().chain(inner).collect();
        let calls = told["tool_calls"].as_u64().and_then(|calls| calls.try_into().ok()).unwrap_or(0);
        Ok(ActionResult { repaired, calls, ..ActionResult::of(name, result) })
    }

    /// Asks a question of a plan. Without forms, the call stays open.
    async fn ask_in_plan(
        &self,
        common: &Common<'_>,
        call: &PlannedCall,
        values: &Values,
    ) -> Result<ActionResult, Fault> {
        let filled = self.filled(common.caller, &call.params, values).await?;
        let (filled, _) = in_text(AskArguments::texts(), filled);
        let arguments = AskArguments::of_step(&call.id, filled, call.timeout_ms)?;
        let paused = common.limit.map(super::Limit::pause);
        let asked = self.questions.ask(common.asking, &arguments).await;
        drop(paused);
        match asked? {
            QuestionOutcome::Answer(answer) => Ok(ActionResult::answered(call, answer)),
            QuestionOutcome::InChat(_) => {
                let open = Some(Box::new(arguments));
                Ok(ActionResult { open, ..ActionResult::of(call.name.clone(), json!({ "content": [] })) })
            }
        }
    }
}

/// Returns the pauses before the retries.
fn pauses(retry: &Retry) -> ExponentialBackoff {
    ExponentialBuilder::default()
        .with_min_delay(retry.wait.min(MAX_WAIT))
        .with_max_delay(MAX_WAIT)
        .with_factor(2.0)
        .with_max_times(retry.times)
        .build()
}

/// Builds the error for a template that names none of these values.
pub(crate) fn unknown(values: &Values) -> Named {
    Named::Unknown(values.keys().cloned().collect::<Vec<_>>().join(", "))
}

/// Waits until no other plan has a call in flight on a connection that takes one call at a time.
async fn turn(
    connection: &Connection,
    owner: u64,
    tool: &Tool,
    timeout: Option<Duration>,
    cancel: &CancellationToken,
    halt: &CancellationToken,
) -> Result<Slot, Fault> {
    let not_run =
        |why: &str| Fault::new(Code::Cancelled, format!("Not run: {why} while it waited for its turn."));
    let busy = || {
        let message = format!("`{}` was busy with other calls until the time ran out.", tool.server);
        Fault::new(Code::RateLimited, message).retry_after(Duration::from_secs(1))
    };
    tokio::select! {
        biased;
        () = cancel.cancelled() => Err(not_run("cancelled")),
        () = halt.cancelled() => Err(not_run("another call failed and `fail_fast` is set,")),
        () = tokio::time::sleep(timeout.unwrap_or(connection.settings().timeout)) => {
            Err(busy())
        }
        turn = connection.one_at_a_time.take(owner) => turn.map_err(|_| busy()),
    }
}
