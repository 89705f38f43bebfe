//! One call of a plan: evaluates `when`, fills templates, waits for the server, makes the call, and retries
//! it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use futures::FutureExt;
use nonet_base::{clock::millis, json::take_member, turns::Slot};
use nonet_config::{
    LONGEST_TIME,
    select::SelectError,
    workflow::{
        CallKind, FILTER, INDEX, INPUT, ITEM, PlannedCall, Retry, StepOutcome, StepReferences, reads_item,
    },
};
use nonet_parts::jobs;
use nonet_schema::Schema;
use nonet_servers::{
    catalog::{EntryKind, Tool},
    downstream::Connection,
};
use nonet_text::{
    fault::{Fault, FaultCode},
    results::{is_error, source_of, text_of},
    template::TemplateSource,
};
use serde_json::{Map, Value, json};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;

use super::{ItemCounts, RunLog, RunState, TemplateValues, goes_alone};
use crate::{
    AppArguments, AskArguments,
    apps::{Apps, InnerApproval},
    call::{
        CallInFlight, CallParams, CallPlan, PreparedCall, RecordedCall, Unready, in_text, still_the_same,
        text_result,
    },
    gate::Gate,
    interrupt::Interrupt,
};
use nonet_state::{
    faults::{error_of, passes},
    grants::RunApproval,
    questions::{ApprovalRequest, QuestionOutcome},
    session::Caller,
};

/// How many calls a question about all calls of a tool shows.
const SHOWN_CALLS: usize = 20;
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
    /// How the items of its list ended, if not all of them succeeded.
    pub items: Option<ItemCounts>,
    /// Whether its `select` has been applied.
    pub is_filtered: bool,
    /// Whether its `when` skipped it.
    pub skipped: bool,
    /// The user's answer, if the user was asked and did not agree.
    pub declined: Option<Value>,
    /// The question that waits for the user.
    pub(crate) open: Option<Box<OpenQuestion>>,
    /// How long it took, in milliseconds.
    pub elapsed_ms: u64,
}

/// A question of a run that waits for the user.
#[derive(Clone, Debug)]
pub(crate) enum OpenQuestion {
    Ask(AskArguments),
    Approve(RunApproval),
}

impl ActionResult {
    /// Creates the result of a call that waits for the user.
    pub(crate) fn open(name: String, question: OpenQuestion) -> Self {
        Self { open: Some(Box::new(question)), ..Self::of(name, json!({ "content": [] })) }
    }

    /// Creates the result of a finished call.
    pub(crate) fn of(name: String, result: Value) -> Self {
        Self {
            name,
            result: Arc::new(result),
            repaired: Vec::new(),
            calls: 0,
            items: None,
            is_filtered: false,
            skipped: false,
            declined: None,
            open: None,
            elapsed_ms: 0,
        }
    }

    /// Returns the value of its call for templates. A question means its answer, or the content that was
    /// approved.
    pub(crate) fn value(&self, call: &PlannedCall) -> TemplateSource {
        let mut source = source_of(&self.result);
        if call.kind == CallKind::Ask {
            source.main = ["answer", "content"].into_iter().find(|key| source.value.get(key).is_some());
        }
        source
    }

    /// Creates the result of a call that did not reach its tool.
    pub(crate) fn not_run(call: &PlannedCall, fault: &Fault, took: Duration) -> Self {
        let name = if call.filter.is_some() { FILTER } else { &call.name };
        Self { elapsed_ms: millis(took), ..Self::of(name.into(), fault.to_result()) }
    }

    /// Creates the result of a call that its `when` skipped.
    fn skipped(call: &PlannedCall) -> Self {
        let name = if call.filter.is_some() { FILTER } else { &call.name };
        Self { skipped: true, ..Self::of(name.into(), json!({ "content": [] })) }
    }

    pub(crate) fn panicked(call: &PlannedCall) -> Self {
        tracing::error!(tool = call.name, "a call panicked");
        Self { calls: 1, ..Self::of(call.name.clone(), jobs::panicked()) }
    }

    /// Creates the result of a question. Only `answered` and `approved` are successes.
    pub(crate) fn answered(call: &PlannedCall, answer: Value) -> Self {
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
        let fault = Fault::new(FaultCode::Cancelled, message).to_result();
        Self { declined: Some(answer), ..Self::of(call.name.clone(), fault) }
    }

    /// Returns the call's outcome.
    pub(crate) fn outcome(&self) -> StepOutcome {
        match (self.skipped, &self.open) {
            (true, _) => StepOutcome::Skipped,
            (_, Some(_)) => StepOutcome::Open,
            _ if is_error(&self.result) => StepOutcome::Failed,
            _ => StepOutcome::Succeeded,
        }
    }

    /// Whether its result is not an error.
    pub(crate) fn succeeded(&self) -> bool {
        self.outcome() == StepOutcome::Succeeded
    }

    /// Whether it failed, or kept nothing but the errors of its items.
    pub(crate) fn failed(&self) -> bool {
        self.outcome() == StepOutcome::Failed || self.items.is_some_and(|items| items.all_failed())
    }
}

/// What the calls of a run wait for before they are sent.
pub(crate) struct RunTurn<'a> {
    pub caller: &'a Caller,
    /// Limits the calls in flight.
    pub slots: &'a Semaphore,
    /// Withdraws calls that wait for their turn.
    pub halt: &'a CancellationToken,
}

impl Apps {
    /// Carries out one call of a plan.
    pub(super) async fn run_action(
        self: &Arc<Self>,
        common: &RunState<'_>,
        at: usize,
        values: TemplateValues,
    ) -> ActionResult {
        let call = &common.plan.calls()[at];
        let began = Instant::now();
        let ended = async {
            let per_item = |when: &str| call.for_each.is_some() && reads_item(when);
            if let Some(when) = call.when.as_deref().filter(|when| !per_item(when))
                && !self.holds(common, at, when, &values).await?
            {
                return Ok(ActionResult::skipped(call));
            }
            match (&call.filter, &call.for_each) {
                (Some(filter), _) => self.computed(common, at, filter, &values).await,
                (None, Some(list)) => self.each(common, at, list, values).await,
                (None, None) => {
                    Ok(self.once(common, call, &values, common.cancel.child_token(), common.log_of(at)).await)
                }
            }
        };
        let mut one = match ended.await {
            Ok(one) => one,
            Err(fault) if call.filter.is_some() => ActionResult::not_run(call, &fault, Duration::ZERO),
            Err(fault) => {
                let begun = CallInFlight { at: began, ..CallInFlight::new(common.caller, &call.params) };
                self.not_made(common, call, &begun, &fault).await
            }
        };
        // A kept result has been filtered where it was read.
        if one.succeeded() && call.select.is_some() && !one.is_filtered {
            let result = Arc::unwrap_or_clone(one.result).into();
            let (result, _, note) =
                self.calls.filtered(common.caller, result, 0, call.select.as_deref()).await;
            one.result = Arc::new(result.into_tree().await);
            one.repaired.extend(note);
        }
        one.elapsed_ms = millis(began.elapsed());
        one
    }

    /// Whether a `when` yields anything except `false`, `null` and empty lists. The filter sees the input and
    /// the results that its call waits for.
    async fn holds(
        &self,
        common: &RunState<'_>,
        at: usize,
        when: &str,
        values: &TemplateValues,
    ) -> Result<bool, Fault> {
        let over = seen(common, at, when, values);
        let owner = common.caller.owner();
        let said = self.keeping.kept.holds(&owner, when, over.to_string());
        filtered(common, at, "when", said).await
    }

    /// Returns the positions of the items for which a `when` holds, by one run of the filter.
    pub(super) async fn chosen(
        &self,
        common: &RunState<'_>,
        at: usize,
        when: &str,
        items: &[Value],
        values: &TemplateValues,
    ) -> Result<Vec<usize>, Fault> {
        let mut over = seen(common, at, when, values);
        over["items"] = json!(items);
        // The line break ends a comment of the filter.
        let each = format!(
            ". as $all | [range(.items | length) as $at | $all | {{input, steps, item: .items[$at], index: $at}} \
             | select([{when}\n] | any(. != null and . != false and . != [])) | $at]"
        );
        let owner = common.caller.owner();
        let said = self.keeping.kept.compute(&owner, &each, over.to_string());
        let said = said.map(|said| said.map_err(|error| error.about(when)));
        let chosen = filtered(common, at, "when", said).await?;
        let places = chosen.as_array().into_iter().flatten().filter_map(Value::as_u64);
        Ok(places.filter_map(|place| usize::try_from(place).ok()).collect())
    }

    /// Computes the value of a call with a `filter`. Its params, if there are any, are the filter's input.
    async fn computed(
        &self,
        common: &RunState<'_>,
        at: usize,
        filter: &str,
        values: &TemplateValues,
    ) -> Result<ActionResult, Fault> {
        let params = &common.plan.calls()[at].params;
        let mut over = seen(common, at, filter, values);
        if !params.is_null() {
            over["input"] = self.calls.filled(common.caller, params, values).await?.value;
        }
        let owner = common.caller.owner();
        let said = self.keeping.kept.compute(&owner, filter, over.to_string());
        let value = filtered(common, at, "filter", said).await?;
        Ok(ActionResult::of(FILTER.into(), result_of(value)))
    }

    /// Makes one call, or the call for one item.
    pub(super) async fn once(
        self: &Arc<Self>,
        common: &RunState<'_>,
        call: &PlannedCall,
        values: &TemplateValues,
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
                let begun = CallInFlight { at: began, ..CallInFlight::new(common.caller, &call.params) };
                self.not_made(common, call, &begun, &fault).await
            }
        }
    }

    /// Records a call that failed before it reached its target.
    async fn not_made(
        &self,
        common: &RunState<'_>,
        call: &PlannedCall,
        begun: &CallInFlight,
        fault: &Fault,
    ) -> ActionResult {
        self.observing.refused(common.caller, &call.name, begun, fault).await;
        ActionResult::not_run(call, fault, begun.at.elapsed())
    }

    /// Calls a tool, and retries if the step asks for retries and the tool allows them.
    async fn call_repeatedly(
        self: &Arc<Self>,
        common: &RunState<'_>,
        call: &PlannedCall,
        values: &TemplateValues,
        cancel: &CancellationToken,
    ) -> ActionResult {
        let mut waits = call.retry.as_ref().map(pauses);
        let mut calls = 0;
        loop {
            let mut one = self.try_action(common, call, values, cancel.child_token()).await;
            calls += one.calls;
            one.calls = calls;
            let Some(retry) = call.retry.as_ref().filter(|_| !one.succeeded()) else { return one };
            let error = error_of(&one.result);
            let again = passes(&error, &retry.on) && self.allows_repeating(common.caller, call);
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
        Gate::of(&self.publisher, &caller.session).tool(&call.name).is_ok_and(|tool| tool.is_repeatable())
    }

    async fn try_action(
        self: &Arc<Self>,
        common: &RunState<'_>,
        call: &PlannedCall,
        values: &TemplateValues,
        cancel: CancellationToken,
    ) -> ActionResult {
        let caller = common.caller;
        let begun = self.observing.begin(caller, &call.name, &call.params);
        let began = begun.at;
        let asks = |asked: ApprovalRequest, _: Option<String>| {
            async move {
                let (count, is_least, shown) =
                    self.calls_of(common, call, values, asked.approval.tool()).await;
                self.asking
                    .ask_in_run(caller, common.limit, asked.of_calls(count, is_least, &shown))
                    .await
                    .map_err(Unready::Open)
            }
            .boxed()
        };
        let mut plan = CallPlan {
            begun: Some(&begun),
            name: &call.name,
            found: None,
            params: CallParams::Planned(&call.params, values),
            select: call.select.clone().filter(|_| call.for_each.is_none()),
            asks: &asks,
        };
        let turn = async |prepared: &PreparedCall| {
            let limit = call.timeout_ms.map(|ms| Duration::from_millis(ms.max(1)));
            let run = RunTurn { caller, slots: &common.slots, halt: &common.halt };
            let place = self.turn_of(run, prepared, limit, &cancel).await?;
            let left = |limit: Duration| limit.saturating_sub(began.elapsed()).max(Duration::from_millis(1));
            Ok((place, limit.map(left), cancel))
        };
        match Box::pin(self.calls.run(caller, &begun, &mut plan, turn)).await {
            Ok(RecordedCall { tool, made, repaired, is_filtered, .. }) => {
                let one = ActionResult::of(tool.full.to_string(), made.result.into_tree().await);
                ActionResult { repaired, calls: 1, is_filtered, ..one }
            }
            Err(Unready::Open(asked)) => {
                ActionResult::open(asked.tool.to_string(), OpenQuestion::Approve(*asked))
            }
            Err(Unready::Fault(fault)) => ActionResult::not_run(call, &fault, began.elapsed()),
        }
    }

    /// Waits until a call may be sent: one call that changes something at a time per server, and some calls
    /// at a time per run.
    pub(crate) async fn turn_of<'a>(
        &self,
        RunTurn { caller, slots, halt }: RunTurn<'a>,
        prepared: &PreparedCall,
        limit: Option<Duration>,
        cancel: &CancellationToken,
    ) -> Result<(Option<Slot>, Option<SemaphorePermit<'a>>), Fault> {
        let tool = &prepared.tool;
        let connection = match goes_alone(tool) {
            true => prepared.gate.connection_for(&self.servers, caller, &tool.server),
            false => None,
        };
        let turn = match &connection {
            Some(connection) => Some(turn(connection, caller.account.id, tool, limit, cancel, halt).await?),
            None => None,
        };
        let slot = tokio::select! {
            slot = slots.acquire() => slot.ok(),
            () = cancel.cancelled() => return Err(Fault::new(FaultCode::Cancelled, "Not run: cancelled.")),
        };
        // The wait may have taken minutes.
        still_the_same(&Gate::of(&self.publisher, &caller.session), tool)?;
        Ok((turn, slot))
    }

    /// Returns how many calls of a tool the run has yet to make, whether there may be more, and the params of
    /// the first ones.
    async fn calls_of(
        &self,
        common: &RunState<'_>,
        asking: &PlannedCall,
        values: &TemplateValues,
        tool: &str,
    ) -> (usize, bool, Vec<Value>) {
        let gate = Gate::of(&self.publisher, &common.caller.session);
        let (mut count, mut shown) = (0, Vec::new());
        // The run around an inner app may have further calls, and so may the apps of this plan.
        let mut is_least = common.log.as_ref().is_some_and(RunLog::is_part);
        for (at, call) in common.plan.calls().iter().enumerate() {
            if common.so_far.has_ended(at) {
                continue;
            }
            let of_call = gate.tool(&call.name).ok().filter(|_| call.kind == CallKind::Tool);
            is_least |=
                call.kind == CallKind::App || of_call.as_ref().is_some_and(|of| of.kind == EntryKind::App);
            if of_call.is_none_or(|of_call| *of_call.full != *tool) {
                continue;
            }
            // Only the values of the call that asks are known.
            let filled = async |json: &Value, values: &TemplateValues| match call.id == asking.id {
                true => self.calls.filled(common.caller, json, values).await.ok().map(|filled| filled.value),
                false => None,
            };
            let items = match &call.for_each {
                Some(list) => filled(list, values).await.or_else(|| Some(list.clone())),
                None => None,
            };
            let Some(Value::Array(items)) = items else {
                count += 1;
                is_least |= items.is_some();
                let params = filled(&call.params, values).await;
                shown.push(params.unwrap_or_else(|| call.params.clone()));
                continue;
            };
            count += items.len();
            for (index, item) in items.into_iter().take(SHOWN_CALLS.saturating_sub(shown.len())).enumerate() {
                let mut values = values.clone();
                values.insert(ITEM.into(), Arc::new(TemplateSource::from(item)));
                values.insert(INDEX.into(), Arc::new(TemplateSource::from(json!(index))));
                let params = filled(&call.params, &values).await;
                shown.push(params.unwrap_or_else(|| call.params.clone()));
            }
        }
        shown.truncate(SHOWN_CALLS);
        (count, is_least, shown)
    }

    /// Returns the app that a call of a tool names.
    fn app_of(&self, caller: &Caller, call: &PlannedCall) -> Option<Arc<Tool>> {
        Gate::of(&self.publisher, &caller.session)
            .tool(&call.name)
            .ok()
            .filter(|tool| tool.kind == EntryKind::App)
    }

    /// Runs an app in a plan. Waits for its whole answer; its output becomes the value.
    async fn call_inner_app(
        self: &Arc<Self>,
        common: &RunState<'_>,
        call: &PlannedCall,
        id: &str,
        values: &TemplateValues,
        cancel: CancellationToken,
        log: Option<RunLog>,
    ) -> Result<ActionResult, Fault> {
        let filled = self.calls.filled(common.caller, &call.params, values).await?;
        let config = self.servers.config();
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
        let caller = Caller { cancel, ..common.caller.clone() };
        let mut one = self.run_inner_app(&caller, &call.name, id, input, timeout, log).await?;
        one.repaired.splice(0..0, notes);
        Ok(one)
    }

    /// Runs an app inside a run. Waits for its whole answer; its output becomes the value.
    pub(crate) async fn run_inner_app(
        self: &Arc<Self>,
        caller: &Caller,
        name: &str,
        id: &str,
        input: Value,
        timeout: Option<Duration>,
        log: Option<RunLog>,
    ) -> Result<ActionResult, Fault> {
        let mut caller = caller.clone();
        caller.limits.soft_deadline = LONGEST_TIME;
        caller.limits.max_result_bytes = usize::MAX;
        let waiting = InnerApproval::default();
        let arguments = AppArguments::of_step(id, input, timeout, log, waiting.clone());
        let answer = self.run_app(&caller, arguments).await;
        let name = name.to_string();
        if let Some(question) = waiting.question() {
            return Ok(ActionResult::open(name, OpenQuestion::Approve(question.clone())));
        }
        let answer = match answer {
            Ok(answer) => answer,
            // The app has written its own line in the audit log.
            Err(Interrupt::Fault(fault)) => return Ok(ActionResult::of(name, fault.to_result())),
            Err(Interrupt::Task(_) | Interrupt::Refused(_)) => {
                return Err(Fault::new(FaultCode::Internal, "The app was not run; run it with call_app."));
            }
        };
        if is_error(&answer) {
            return Ok(ActionResult::of(name, answer));
        }
        let mut told: Value = serde_json::from_str(&text_of(&answer)).unwrap_or_default();
        if told.get("output").is_none() {
            return Ok(ActionResult::of(name, answer));
        }
        let result = result_of(take_member(&mut told, "output"));
        let inner = told["repaired"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let inner = inner.map(|note| format!("{name}: {note}"));
        let repaired = inner.collect();
        let calls = told["tool_calls"].as_u64().and_then(|calls| calls.try_into().ok()).unwrap_or(0);
        Ok(ActionResult { repaired, calls, ..ActionResult::of(name, result) })
    }

    /// Asks a question of a plan. Without forms, the call stays open.
    async fn ask_in_plan(
        &self,
        common: &RunState<'_>,
        call: &PlannedCall,
        values: &TemplateValues,
    ) -> Result<ActionResult, Fault> {
        let filled = self.calls.filled(common.caller, &call.params, values).await?;
        let (filled, _) = in_text(AskArguments::texts(), filled);
        let arguments = AskArguments::of_step(&call.id, filled, call.timeout_ms)?;
        // Of several questions of a run, one is asked at a time.
        let _turn = match &common.asking.run {
            Some(run) => Some(run.turn.lock().await),
            None => None,
        };
        let paused = common.limit.map(nonet_state::limit::Limit::pause);
        let asked = self.asking.questions.ask(common.asking, &arguments).await;
        drop(paused);
        Ok(match asked? {
            QuestionOutcome::Answer(answer) => ActionResult::answered(call, json!(answer)),
            QuestionOutcome::InChat(_) => ActionResult::open(call.name.clone(), OpenQuestion::Ask(arguments)),
        })
    }
}

/// Returns what a filter of a call sees: the input, and the results that it reads of those that its call
/// waits for.
fn seen(common: &RunState<'_>, at: usize, filter: &str, values: &TemplateValues) -> Value {
    let calls = common.plan.calls();
    let read = StepReferences::of(filter);
    let value = |id: &str| values.get(id).map(|source| source.value.clone()).unwrap_or_default();
    let ids = common.plan.needs(at).iter().map(|need| &calls[*need].id).filter(|id| read.reads(id));
    let steps: Map<String, Value> = ids.map(|id| (id.clone(), value(id))).collect();
    json!({ "input": value(INPUT), "steps": steps })
}

/// Waits for the output of a filter of a call.
async fn filtered<T>(
    common: &RunState<'_>,
    at: usize,
    key: &str,
    said: impl Future<Output = Result<T, SelectError>>,
) -> Result<T, Fault> {
    let said = tokio::select! {
        said = said => said,
        () = common.cancel.cancelled() => return Err(Fault::new(FaultCode::Cancelled, "Not run: cancelled.")),
    };
    said.map_err(|error| {
        let message = format!("The `{key}` of `{}`: {error}.", common.plan.calls()[at].id);
        Fault::new(FaultCode::InvalidParams, message)
    })
}

/// Returns a computed value as a result.
fn result_of(value: Value) -> Value {
    match value {
        // Text is its own JSON.
        Value::String(text) => text_result(text),
        Value::Null => text_result("null".into()),
        value => json!({ "content": [], "structuredContent": value }),
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
        |why: &str| Fault::new(FaultCode::Cancelled, format!("Not run: {why} while it waited for its turn."));
    let busy = || {
        let message = format!("`{}` was busy with other calls until the time ran out.", tool.server);
        Fault::new(FaultCode::RateLimited, message).retry_after(Duration::from_secs(1))
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
