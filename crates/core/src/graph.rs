//! `run_parallel`, and the driver of every plan: carries out the effects of a schedule of
//! [`nonet_config::workflow`].
//!
//! A result goes directly into the params of its dependants, without passing through a model.

mod action;
mod each;
mod journal;
mod report;

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use nonet_base::text::clip;
use nonet_config::{
    select::{self, SelectError},
    workflow::{
        CallKind, HoldReason, INPUT, MAX_ITEMS, OnError, Pace, Plan, PlanFlaw, PlannedCall, Schedule,
        ScheduleEffect, ScheduleEvent, StepOutcome,
    },
};
use nonet_parts::{jobs::JobProgress, kept, quotas::Admission};
use nonet_servers::{
    catalog::{EntryKind, Tool},
    policy::PolicyVerdict,
};
use nonet_text::{
    fault::{Fault, FaultCode},
    name,
    template::{self, TemplateSource},
};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

pub(super) use self::{
    action::{ActionResult, OpenQuestion, RunTurn},
    each::ItemCounts,
    journal::{Journal, MemoryJournal, RunLog, digest, place},
    report::RunProgress,
};
use super::{
    Gate,
    apps::parked::{Checkpoints, ParkableRun},
    interrupt::Interrupt,
    run::Run,
};
use crate::apps::Apps;
use nonet_state::{
    conditions::Conditions,
    faults::error_of,
    grants::RunGrants,
    limit::Limit,
    session::{Caller, TaskMode},
};

/// How many calls run at a time by default.
pub(super) const CONCURRENCY: usize = 8;
/// The maximum number of actions in one `run_parallel`, and of calls in flight in one run.
pub const MAX_ACTIONS: usize = 50;

/// The values that templates refer to.
pub(super) type TemplateValues = BTreeMap<String, Arc<TemplateSource>>;

/// The arguments of `run_parallel`.
#[derive(Clone, Debug, serde::Deserialize, serde::Serialize)]
pub struct ParallelArguments {
    /// The calls.
    pub actions: Vec<PlannedCall>,
    /// What `{{input}}` stands for, if there is an input.
    #[serde(default)]
    pub input: Value,
    /// How many run at a time.
    pub max_concurrency: Option<usize>,
    /// Whether the first failure prevents further starts.
    #[serde(default)]
    pub fail_fast: bool,
}

pub(super) struct PlanRun<'a> {
    pub plan: &'a Plan,
    /// Names for templates in addition to the calls' ids.
    pub given: TemplateValues,
    /// The calls that ended in an earlier run of the plan.
    pub before: Vec<(usize, ActionResult)>,
    pub concurrency: usize,
    pub fail_fast: bool,
    pub cancel: CancellationToken,
    /// The time limit of the run, if the plan asks the user.
    pub limit: Option<&'a Limit>,
    /// Records each finished call.
    pub so_far: &'a RunProgress,
    /// Stores each finished call before its result is used.
    pub log: Option<RunLog>,
    /// The calls whose values are needed later.
    pub needed: BTreeSet<usize>,
}

/// A `run_parallel` that is about to run, from the beginning or after a question.
pub(super) struct ParallelRun {
    pub arguments: ParallelArguments,
    pub plan: Arc<Plan>,
    /// The calls that ended before the question.
    pub before: Vec<(usize, ActionResult)>,
    /// The user's answers so far.
    pub grants: Value,
    /// The run's record, once the user has answered.
    pub checkpoints: Option<Arc<Checkpoints>>,
}

pub(super) struct RunOutcome {
    /// The results of the calls, in the order of the plan; `None` for calls that did not run.
    pub results: Vec<Option<ActionResult>>,
    /// The call that waits for the user.
    pub open: Option<usize>,
    /// The first failed call, which held back the rest.
    pub failed: Option<usize>,
}

/// The state shared by all calls of one run.
struct RunState<'a> {
    plan: &'a Plan,
    so_far: &'a RunProgress,
    /// The caller of the calls. Nonet asks no questions of its own through it, because many calls run at the
    /// same time.
    caller: &'a Caller,
    /// The caller for the plan's own questions, which are asked one at a time.
    asking: &'a Caller,
    /// Cancels the calls.
    cancel: CancellationToken,
    /// Withdraws the calls that wait for their turn.
    halt: CancellationToken,
    /// Limits the calls in flight.
    slots: Semaphore,
    limit: Option<&'a Limit>,
    log: Option<RunLog>,
    needed: BTreeSet<usize>,
}

impl RunState<'_> {
    /// Returns the journal of one call.
    fn log_of(&self, at: usize) -> Option<RunLog> {
        Some(self.log.as_ref()?.part(self.plan.calls()[at].id.as_str()))
    }
}

/// The calls of a schedule.
trait ScheduledCalls<'a> {
    /// Starts a call.
    fn start(&self, at: usize) -> BoxFuture<'a, ActionResult>;

    /// Records the end of a call; `None` if the call panicked.
    fn end(&mut self, at: usize, one: Option<ActionResult>) -> StepOutcome;

    /// Records a call that will not run.
    fn held_back(&mut self, at: usize, reason: &HoldReason);
}

/// Carries out a schedule until it has finished, or until a call waits for the user; returns that call. After
/// `stop`, no further call starts.
async fn drive<'a>(
    mut schedule: Schedule<'_>,
    calls: &mut (impl ScheduledCalls<'a> + Send),
    stop: impl Future<Output = ()> + Send,
    halt: &CancellationToken,
) -> Option<usize> {
    let mut stop = Box::pin(stop);
    let mut stopped = stop.as_mut().now_or_never().is_some();
    let mut running = FuturesUnordered::new();
    let mut event = if stopped { ScheduleEvent::Cancelled } else { ScheduleEvent::Begin };
    loop {
        for effect in schedule.step(event) {
            match effect {
                ScheduleEffect::Start(at) => {
                    let call = AssertUnwindSafe(calls.start(at)).catch_unwind();
                    running.push(call.map(move |one| (at, one)));
                }
                ScheduleEffect::HoldBack(at, reason) => calls.held_back(at, &reason),
                ScheduleEffect::Halt => halt.cancel(),
                ScheduleEffect::Park(at) => return Some(at),
                ScheduleEffect::Finished => return None,
            }
        }
        event = tokio::select! {
            biased;
            () = &mut stop, if !stopped => {
                stopped = true;
                ScheduleEvent::Cancelled
            }
            ended = running.next() => {
                let (at, one) = ended?;
                ScheduleEvent::Ended { at, outcome: calls.end(at, one.ok()) }
            }
        };
    }
}

/// The calls of a plan and their results.
struct RunCalls<'a> {
    apps: &'a Arc<Apps>,
    common: &'a RunState<'a>,
    results: Vec<Option<ActionResult>>,
    values: TemplateValues,
    /// The first call that ran and failed.
    failed: Option<usize>,
}

impl RunCalls<'_> {
    /// Records the outcome of a call that was not held back.
    fn ran(&mut self, at: usize, outcome: StepOutcome) {
        if outcome == StepOutcome::Failed && !self.common.plan.calls()[at].optional {
            self.failed.get_or_insert(at);
        }
    }

    fn add(&mut self, at: usize, one: ActionResult) {
        let plan = self.common.plan;
        let call = &plan.calls()[at];
        match one.outcome() {
            StepOutcome::Succeeded if plan.is_seen(at) => {
                self.values.insert(call.id.clone(), Arc::new(one.value(call)));
            }
            StepOutcome::Succeeded | StepOutcome::Open => {}
            StepOutcome::Failed if !call.optional => {}
            StepOutcome::Failed if call.on_error == OnError::Keep && call.for_each.is_none() => {
                let error = json!({ "error": error_of(&one.result) });
                self.values.insert(call.id.clone(), Arc::new(error.into()));
            }
            StepOutcome::Failed | StepOutcome::Skipped => {
                self.values.insert(call.id.clone(), Arc::new(TemplateSource::absent()));
            }
        }
        if one.outcome() != StepOutcome::Open {
            self.common.so_far.end(at, &one);
        }
        self.results[at] = Some(one);
    }
}

impl<'a> ScheduledCalls<'a> for RunCalls<'a> {
    fn start(&self, at: usize) -> BoxFuture<'a, ActionResult> {
        let (apps, common, values) = (self.apps, self.common, self.values.clone());
        Box::pin(async move {
            let one = apps.run_action(common, at, values).await;
            apps.log_end(common.log_of(at).as_ref(), &one, common.needed.contains(&at)).await;
            one
        })
    }

    fn end(&mut self, at: usize, one: Option<ActionResult>) -> StepOutcome {
        let one = one.unwrap_or_else(|| ActionResult::panicked(&self.common.plan.calls()[at]));
        let outcome = one.outcome();
        self.ran(at, outcome);
        self.add(at, one);
        outcome
    }

    fn held_back(&mut self, at: usize, reason: &HoldReason) {
        let fault = Fault::new(FaultCode::Cancelled, format!("Not run: {reason}."));
        self.add(at, ActionResult::not_run(&self.common.plan.calls()[at], &fault, Duration::ZERO));
    }
}

/// Returns the plan of a `run_parallel`.
pub(super) fn plan_of(arguments: &ParallelArguments) -> Result<Plan, Fault> {
    let actions = &arguments.actions;
    if actions.is_empty() || actions.len() > MAX_ACTIONS {
        return Err(too_many(actions.len()));
    }
    let given: &[&str] = if arguments.input.is_null() { &[] } else { &[INPUT] };
    Plan::new(actions.clone(), given).map_err(|flaw| refused_plan(&flaw))
}

/// Returns the names for templates in addition to the ids of the actions.
fn given_to(arguments: &ParallelArguments) -> TemplateValues {
    match &arguments.input {
        Value::Null => TemplateValues::new(),
        input => TemplateValues::from([(INPUT.to_string(), Arc::new(input.clone().into()))]),
    }
}

/// Builds the fault for a wrong number of actions.
pub fn too_many(actions: usize) -> Fault {
    let message = format!(
        "`actions` has {actions} entries; give 1 to {MAX_ACTIONS}. Nothing was run. For the same call with many values, \
         one action takes a list of up to {MAX_ITEMS} as its `for_each`."
    );
    Fault::new(FaultCode::InvalidParams, message)
}

/// Builds the fault for a plan that is refused before anything runs.
pub(super) fn refused_plan(flaw: &PlanFlaw) -> Fault {
    Fault::new(FaultCode::InvalidParams, format!("{flaw} Nothing was run."))
}

/// Builds the fault for a plan with an action that cannot work.
fn refused_action(call: &PlannedCall, why: &str) -> Fault {
    Fault::new(FaultCode::InvalidParams, format!("The action `{}`: {why}. Nothing was run.", call.id))
}

/// Refuses a plan whose filters, templates or literal lists cannot work.
async fn check_texts(plan: &Plan) -> Result<(), Fault> {
    let refused = |call: &PlannedCall, why: String| Err(refused_action(call, &why));
    let filters = plan.calls().iter().flat_map(|call| {
        let all = [("when", &call.when), ("filter", &call.filter), ("select", &call.select)];
        all.into_iter().filter_map(move |(key, filter)| Some((call, key, filter.clone()?)))
    });
    let (places, filters): (Vec<_>, Vec<_>) =
        filters.map(|(call, key, filter)| ((call, key), filter)).unzip();
    if !filters.is_empty()
        && let Err((at, error)) = select::check_all(filters).await
        && let Some((call, key)) = places.get(at)
    {
        return match error {
            SelectError::Busy(_) => Err(kept::busy(&error)),
            error => refused(call, format!("`{key}`: {error}")),
        };
    }
    for call in plan.calls() {
        for value in [&call.params].into_iter().chain(&call.for_each) {
            if let Err(error) = template::check(value) {
                return refused(call, error.to_string());
            }
        }
        match &call.for_each {
            Some(Value::Array(items)) if items.len() > MAX_ITEMS => {
                let why = format!("`for_each` has {} items; the maximum is {MAX_ITEMS}", items.len());
                return refused(call, why);
            }
            None | Some(Value::Array(_)) => {}
            Some(Value::String(text)) if text.contains("{{") => {}
            Some(other) => {
                let given = clip(&other.to_string(), 100);
                return refused(call, format!("`for_each` is {given}, not an array or a template of one"));
            }
        }
    }
    Ok(())
}

impl Apps {
    /// Implements the `run_parallel` meta-tool.
    pub async fn run_parallel(
        self: &Arc<Self>,
        caller: &Caller,
        arguments: ParallelArguments,
    ) -> Result<Value, Interrupt> {
        let plan = Arc::new(plan_of(&arguments)?);
        let admission = self.calls.admit(caller, false)?;
        self.check_actions(caller, &plan).await?;
        let named = plan.calls().iter().flat_map(|call| [&call.params].into_iter().chain(&call.for_each));
        let uses = template::references(named).map_err(|error| kept::unread_template(&error))?;
        self.keeping.kept.check(&caller.owner(), uses.kept.keys()).await?;
        let (before, grants) = (Vec::new(), Value::Null);
        let run = ParallelRun { arguments, plan, before, grants, checkpoints: None };
        self.run_actions(caller, run, admission).await
    }

    /// Runs the actions of a `run_parallel`, or those that are left.
    pub(super) async fn run_actions(
        self: &Arc<Self>,
        caller: &Caller,
        parallel: ParallelRun,
        admission: Admission,
    ) -> Result<Value, Interrupt> {
        let cancel = CancellationToken::new();
        let span = caller.meta_span("run_parallel");
        let grants = RunGrants::new(!caller.unasked, &parallel.grants);
        let own = Caller {
            trace: span.parent(),
            is_admitted: true,
            run: Some(caller.run.clone().unwrap_or(grants)),
            ..caller.clone()
        };
        let so_far = RunProgress::new(&parallel.plan);
        let told = so_far.clone();
        let progress: JobProgress = Arc::new(move || Some(told.report()));
        let run = Run {
            began: Instant::now().into(),
            admission,
            ..Run::new("run_parallel", cancel.clone(), progress)
        };
        let apps = self.clone();
        let work = async move {
            let ParallelRun { arguments, plan, before, checkpoints, .. } = parallel;
            let began = Instant::now();
            let all: BTreeSet<usize> = (0..plan.calls().len()).collect();
            let (log, noted) = apps.journal(&own, &plan, checkpoints.as_ref());
            let run = PlanRun {
                plan: &plan,
                given: given_to(&arguments),
                before,
                concurrency: arguments.max_concurrency.unwrap_or(CONCURRENCY).clamp(1, MAX_ACTIONS),
                fail_fast: arguments.fail_fast,
                cancel: cancel.clone(),
                limit: None,
                so_far: &so_far,
                log,
                needed: all.clone(),
            };
            let ran = apps.run_plan(&own, run).await;
            let elapsed = began.elapsed();
            span.ended("ok");
            if let Some(at) = ran.open {
                let parking = ParkableRun {
                    app_id: "run_parallel",
                    plan: &plan,
                    needed: all,
                    digest: String::new(),
                    input: Value::Null,
                    actions: Some(&arguments),
                    timeout: Duration::ZERO,
                    left: Duration::ZERO,
                    checkpoints: checkpoints.as_deref(),
                    noted: noted.as_deref(),
                };
                return apps.park(&own, parking, ran.results, at).await.into();
            }
            match &checkpoints {
                Some(checkpoints) if cancel.is_cancelled() => {
                    return checkpoints.set_aside("run_parallel").await.to_result().into();
                }
                Some(checkpoints) => checkpoints.forget().await,
                None => {}
            }
            let ended = ran.results.into_iter().flatten().collect();
            apps.report(&own, &plan, ended, elapsed).await.into()
        };
        Ok(run.wait(&self.keeping.jobs, caller, work.boxed()).await?.into_tree().await)
    }

    /// Returns the journal of a run that may have to wait for the user in the middle of an app or a list: its
    /// record, once the user has answered, else a journal in memory.
    pub(super) fn journal(
        &self,
        caller: &Caller,
        plan: &Plan,
        checkpoints: Option<&Arc<Checkpoints>>,
    ) -> (Option<RunLog>, Option<Arc<MemoryJournal>>) {
        if let Some(checkpoints) = checkpoints {
            return (Some(RunLog::new(checkpoints.clone())), None);
        }
        let gate = Gate::of(&self.publisher, &caller.session);
        let may_wait_inside = |call: &PlannedCall| match call.kind {
            CallKind::App => true,
            CallKind::Tool => gate.tool(&call.name).is_ok_and(|tool| {
                let asks = || {
                    matches!(gate.verdict(&tool), PolicyVerdict::Approve(_))
                        || !Conditions::of_tool(gate.config(), &tool).is_empty()
                };
                tool.kind == EntryKind::App || call.for_each.is_some() && asks()
            }),
            CallKind::Ask => false,
        };
        if !plan.calls().iter().any(may_wait_inside) {
            return (None, None);
        }
        let noted = Arc::new(MemoryJournal::default());
        (Some(RunLog::new(noted.clone())), Some(noted))
    }

    /// Refuses a graph that cannot work. Its templates may use an input.
    pub(super) async fn check_graph(&self, caller: &Caller, graph: ParallelArguments) -> Result<(), Fault> {
        let graph = ParallelArguments { input: json!({}), ..graph };
        self.check_actions(caller, &plan_of(&graph)?).await
    }

    /// Refuses a plan whose actions cannot work, before anything runs.
    async fn check_actions(&self, caller: &Caller, plan: &Plan) -> Result<(), Fault> {
        let gate = Gate::of(&self.publisher, &caller.session);
        for call in plan.calls() {
            if name::META_TOOLS.contains(&call.name.as_str()) {
                // The fault names the meta-tool and the next step.
                gate.tool(&call.name)?;
            }
            if let Some(why) = misuse(&gate, plan, call) {
                return Err(refused_action(call, &why));
            }
        }
        check_texts(plan).await
    }

    pub(super) async fn run_plan(self: &Arc<Self>, caller: &Caller, run: PlanRun<'_>) -> RunOutcome {
        let PlanRun { plan, given, mut before, concurrency, fail_fast, cancel, limit, so_far, log, needed } =
            run;
        let quiet = |unasked| Caller {
            unasked,
            as_task: TaskMode::Never,
            progress: None,
            cancel: cancel.clone(),
            ..caller.clone()
        };
        let (caller, asking) = (&quiet(true), &quiet(caller.unasked));
        let halt = CancellationToken::new();
        let slots = Semaphore::new(MAX_ACTIONS);
        let common = RunState {
            plan,
            so_far,
            caller,
            asking,
            cancel: cancel.clone(),
            halt: halt.clone(),
            slots,
            limit,
            log,
            needed,
        };
        for at in 0..plan.calls().len() {
            if before.iter().all(|(ended, _)| *ended != at) {
                before.extend(common.log_of(at).and_then(|log| log.before()).map(|one| (at, one)));
            }
        }
        let mut ends = RunCalls {
            apps: self,
            common: &common,
            results: vec![None; plan.calls().len()],
            values: given,
            failed: None,
        };
        let ended: Vec<(usize, StepOutcome)> = before.iter().map(|(at, one)| (*at, one.outcome())).collect();
        for (at, one) in before {
            ends.ran(at, one.outcome());
            ends.add(at, one);
        }
        let gate = Gate::of(&self.publisher, &caller.session);
        let lanes = plan.calls().iter().map(|call| lane(&gate, call)).collect();
        let schedule = Schedule::resumed(plan, Pace { concurrency, fail_fast, lanes }, &ended);
        let open = drive(schedule, &mut ends, cancel.cancelled(), &halt).await;
        RunOutcome { results: ends.results, open, failed: ends.failed }
    }
}

/// Explains why an action cannot work as it is written, if its keys do not go together.
fn misuse(gate: &Gate, plan: &Plan, call: &PlannedCall) -> Option<String> {
    let text = |text: &str| Some(text.to_string());
    if let Some(retry) = &call.retry {
        if let Some(code) = retry.on.iter().find(|code| FaultCode::of(code).is_none()) {
            let known = FaultCode::ALL.map(FaultCode::as_str).join(", ");
            return Some(format!(
                "`{}` in `retry.on` is not an error code; choose from {known}",
                clip(code, 40)
            ));
        }
        if let Ok(tool) = gate.tool(&call.name)
            && !tool.is_repeatable()
        {
            return Some(format!(
                "`retry` is only for tools that are safe to call again, and the server does not mark `{}` as read-only or \
                 idempotent",
                tool.full
            ));
        }
    }
    let Some(filter) = &call.filter else {
        let why = "it needs the `name` of a tool, or a jq `filter` over {steps} instead";
        return call.name.trim().is_empty().then(|| why.into());
    };
    if !call.name.is_empty() {
        return text(
            "it has a `name` and a `filter`, which takes the place of a tool; a filter on the tool's result is `select`",
        );
    }
    if call.for_each.is_some() || call.retry.is_some() {
        return text(
            "`for_each` and `retry` are for calls of tools; a `filter` goes over a list by itself, with map(...)",
        );
    }
    // Its own input is `{steps, input}`.
    let first = filter.trim_start_matches(['(', '[', '{', ' ']).strip_prefix('.')?;
    let first = first.split(|c: char| c != '_' && !c.is_alphanumeric()).next()?;
    let is_action = plan.calls().iter().any(|call| call.id == first);
    (is_action && first != "steps" && first != INPUT)
        .then(|| format!("the results are under `.steps`: write `.steps.{first}` in its `filter`"))
}

/// Returns the lane of a call: calls that change something run one at a time per server, and so do questions.
/// The lane of an unlisted tool is unknown; its call waits at its server's connection.
fn lane(gate: &Gate, call: &PlannedCall) -> Option<Arc<str>> {
    match call.kind {
        CallKind::Tool => {
            let tool = gate.tool(&call.name).ok()?;
            goes_alone(&tool).then(|| tool.server.clone())
        }
        CallKind::App => None,
        // No server has this name.
        CallKind::Ask => Some("".into()),
    }
}

/// Whether a call of this tool changes something, so that its server takes one such call at a time.
pub(super) fn goes_alone(tool: &Tool) -> bool {
    !tool.read_only && !tool.parallel && tool.is_of_server()
}
