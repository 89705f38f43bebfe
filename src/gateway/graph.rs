//! `run_parallel`, and the driver of every plan: carries out the effects of a schedule of [`crate::workflow`].
//!
//! A result goes directly into the params of its dependants, without passing through a model.

mod action;
mod each;
mod journal;
mod limit;
mod report;

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{
    FutureExt, StreamExt,
    future::BoxFuture,
    stream::{self, FuturesUnordered},
};
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

pub(super) use self::{
    action::{ActionResult, unknown},
    journal::{Journal, RunLog, digest, place},
    limit::Limit,
    report::SoFar,
};
use super::{
    Gate, Gateway,
    interrupt::Interrupt,
    run::Run,
    session::{AsTask, Caller},
};
use crate::{
    catalog::Tool,
    fault::{Code, Fault},
    jobs::Progress,
    name,
    results::source_of,
    template::Source,
    text::clip,
    workflow::{
        CallKind, CallOutcome, Effect, Event, Flaw, MAX_ITEMS, Pace, Plan, PlannedCall, Reason, Schedule,
    },
};

/// How many calls run at a time by default.
pub(super) const CONCURRENCY: usize = 8;
/// The maximum number of actions in one `run_parallel`, and of calls in flight in one run.
const MAX_ACTIONS: usize = 50;

/// The values that templates refer to.
pub(super) type Values = BTreeMap<String, Arc<Source>>;

/// The arguments of `run_parallel`.
#[derive(Debug, serde::Deserialize)]
pub struct ParallelArguments {
    /// The calls.
    pub actions: Vec<PlannedCall>,
    /// How many run at a time.
    pub max_concurrency: Option<usize>,
    /// Whether the first failure prevents further starts.
    #[serde(default)]
    pub fail_fast: bool,
}

/// One run of a plan.
pub(super) struct PlanRun<'a> {
    pub plan: &'a Plan,
    /// Names for templates in addition to the calls' ids.
    pub given: Values,
    /// The calls that ended in an earlier run of the plan.
    pub before: Vec<(usize, ActionResult)>,
    pub concurrency: usize,
    pub fail_fast: bool,
    pub cancel: CancellationToken,
    /// The time limit of the run, if the plan asks the user.
    pub limit: Option<&'a Limit>,
    /// Records each finished call.
    pub so_far: &'a SoFar,
    /// Stores each finished call before its result is used.
    pub log: Option<RunLog>,
    /// The calls whose values are needed later.
    pub needed: BTreeSet<usize>,
}

/// The outcome of a run.
pub(super) struct Ran {
    /// The results of the calls, in the order of the plan; `None` for calls that did not run.
    pub results: Vec<Option<ActionResult>>,
    /// The call that waits for the user.
    pub open: Option<usize>,
    /// The first failed call, which held back the rest.
    pub failed: Option<usize>,
}

/// The state shared by all calls of one run.
struct Common<'a> {
    plan: &'a Plan,
    so_far: &'a SoFar,
    /// The caller of the calls. Nonet asks no questions of its own through it, because many calls run at the same time.
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

impl Common<'_> {
    /// Returns the journal of one call.
    fn log_of(&self, at: usize) -> Option<RunLog> {
        Some(self.log.as_ref()?.part(self.plan.calls()[at].id.as_str()))
    }
}

/// The calls of a schedule.
trait Calls<'a> {
    /// Starts a call.
    fn start(&self, at: usize) -> BoxFuture<'a, ActionResult>;

    /// Records the end of a call; `None` if the call panicked.
    fn end(&mut self, at: usize, one: Option<ActionResult>) -> CallOutcome;

    /// Records a call that will not run.
    fn held_back(&mut self, at: usize, reason: &Reason);
}

/// Carries out a schedule until it has finished, or until a call waits for the user; returns that call. After `stop`,
/// no further call starts.
async fn drive<'a>(
    mut schedule: Schedule<'_>,
    calls: &mut (impl Calls<'a> + Send),
    stop: impl Future<Output = ()> + Send,
    halt: &CancellationToken,
) -> Option<usize> {
    let mut stop = Box::pin(stop);
    let mut stopped = stop.as_mut().now_or_never().is_some();
    let mut running = FuturesUnordered::new();
    let mut event = if stopped { Event::Cancelled } else { Event::Begin };
    loop {
        for effect in schedule.step(event) {
            match effect {
                Effect::Start(at) => {
                    let call = AssertUnwindSafe(calls.start(at)).catch_unwind();
                    running.push(call.map(move |one| (at, one)));
                }
                Effect::HoldBack(at, reason) => calls.held_back(at, &reason),
                Effect::Halt => halt.cancel(),
                Effect::Park(at) => return Some(at),
                Effect::Finished => return None,
            }
        }
        event = tokio::select! {
            biased;
            () = &mut stop, if !stopped => {
                stopped = true;
                Event::Cancelled
            }
            ended = running.next() => {
                let (at, one) = ended?;
                Event::Ended { at, outcome: calls.end(at, one.ok()) }
            }
        };
    }
}

/// The calls of a plan and their results.
struct Ends<'a> {
    gateway: &'a Arc<Gateway>,
    common: &'a Common<'a>,
    results: Vec<Option<ActionResult>>,
    values: Values,
    /// The first call that ran and failed.
    failed: Option<usize>,
}

impl Ends<'_> {
    /// Records the outcome of a call that was not held back.
    fn ran(&mut self, at: usize, outcome: CallOutcome) {
        if outcome == CallOutcome::Failed && !self.common.plan.calls()[at].optional {
            self.failed.get_or_insert(at);
        }
    }

    fn add(&mut self, at: usize, one: ActionResult) {
        let plan = self.common.plan;
        let call = &plan.calls()[at];
        match one.outcome() {
            CallOutcome::Succeeded if plan.is_seen(at) => {
                self.values.insert(call.id.clone(), Arc::new(source_of(&one.result)));
            }
            CallOutcome::Succeeded | CallOutcome::Open => {}
            CallOutcome::Failed if !call.optional => {}
            CallOutcome::Failed | CallOutcome::Skipped => {
                self.values.insert(call.id.clone(), Arc::new(Source::absent()));
            }
        }
        self.common.so_far.end(at, &one);
        self.results[at] = Some(one);
    }
}

impl<'a> Calls<'a> for Ends<'a> {
    fn start(&self, at: usize) -> BoxFuture<'a, ActionResult> {
        let (gateway, common, values) = (self.gateway, self.common, self.values.clone());
        Box::pin(async move {
            let one = gateway.run_action(common, at, values).await;
            gateway.log_end(common.log_of(at).as_ref(), &one, common.needed.contains(&at)).await;
            one
        })
    }

    fn end(&mut self, at: usize, one: Option<ActionResult>) -> CallOutcome {
        let one = one.unwrap_or_else(|| ActionResult::panicked(&self.common.plan.calls()[at]));
        let outcome = one.outcome();
        self.ran(at, outcome);
        self.add(at, one);
        outcome
    }

    fn held_back(&mut self, at: usize, reason: &Reason) {
        let fault = Fault::new(Code::Cancelled, format!("Not run: {reason}."));
        self.add(at, ActionResult::not_run(&self.common.plan.calls()[at], &fault, Duration::ZERO));
    }
}

/// Builds the fault for a plan that is refused before anything runs.
pub(super) fn refused_plan(flaw: &Flaw) -> Fault {
    Fault::new(Code::InvalidParams, format!("{flaw} Nothing was run."))
}

impl Gateway {
    /// Implements the `run_parallel` meta-tool.
    pub async fn run_parallel(
        self: &Arc<Self>,
        caller: &Caller,
        arguments: ParallelArguments,
    ) -> Result<Value, Interrupt> {
        let ParallelArguments { actions, max_concurrency, fail_fast } = arguments;
        if actions.is_empty() || actions.len() > MAX_ACTIONS {
            let message = format!("`actions` has {} entries; give 1 to {MAX_ACTIONS}.", actions.len());
            return Err(Fault::new(Code::InvalidParams, message).into());
        }
        let began = Instant::now();
        let plan = Arc::new(Plan::new(actions, &[]).map_err(|flaw| refused_plan(&flaw))?);
        let admission = self.admit(caller, false)?;
        self.check_filters(caller, &plan).await?;
        let gate = self.gate(&caller.session);
        for call in plan.calls().iter().filter(|call| name::META_TOOLS.contains(&call.name.as_str())) {
            // The fault names the meta-tool and the next step.
            gate.tool(&call.name)?;
        }
        let cancel = CancellationToken::new();
        let span = caller.meta_span("run_parallel");
        let own = Caller { trace: span.parent(), is_admitted: true, ..caller.clone() };
        let so_far = SoFar::new(&plan);
        let told = so_far.clone();
        let progress: Progress = Arc::new(move || Some(told.report()));
        let label = "run_parallel".into();
        let run = Run { progress, began: began.into(), admission, ..Run::new(label, cancel.clone()) };
        let concurrency = max_concurrency.unwrap_or(CONCURRENCY).clamp(1, MAX_ACTIONS);
        let gateway = self.clone();
        let work = async move {
            let began = Instant::now();
            let run = PlanRun {
                plan: &plan,
                given: Values::new(),
                before: Vec::new(),
                concurrency,
                fail_fast,
                cancel,
                limit: None,
                so_far: &so_far,
                log: None,
                needed: BTreeSet::new(),
            };
            let ran = gateway.run_plan(&own, run).await;
            let elapsed = began.elapsed();
            span.ended("ok");
            let ended = ran.results.into_iter().flatten().collect();
            gateway.report(&own, &plan, ended, elapsed).await.into()
        };
        Ok(run.wait(&self.jobs, caller, work).await?.into_tree().await)
    }

    /// Refuses a plan whose filters or literal lists cannot work, before anything runs.
    async fn check_filters(&self, caller: &Caller, plan: &Plan) -> Result<(), Fault> {
        let owner = caller.owner();
        let refused = |call: &PlannedCall, why: String| {
            let message = format!("The action `{}`: {why}. Nothing was run.", call.id);
            Err(Fault::new(Code::InvalidParams, message))
        };
        let asking = plan.calls().iter().filter_map(|call| Some((call, call.when.as_deref()?)));
        // Each check runs in its own process.
        let checks: Vec<BoxFuture<'_, _>> = asking
            .map(|(call, when)| self.kept.syntax_error(&owner, when).map(move |error| (call, error)).boxed())
            .collect();
        let mut checked = stream::iter(checks).buffer_unordered(CONCURRENCY);
        while let Some((call, error)) = checked.next().await {
            if let Some(error) = error {
                return refused(call, error.to_string());
            }
        }
        for call in plan.calls() {
            match &call.for_each {
                Some(Value::Array(items)) if items.len() > MAX_ITEMS => {
                    let why = format!("`for_each` has {} items; the maximum is {MAX_ITEMS}", items.len());
                    return refused(call, why);
                }
                None | Some(Value::Array(_)) => {}
                Some(Value::String(text)) if text.contains("{{") => {}
                Some(other) => {
                    let why = format!(
                        "`for_each` is {}, not an array or a template of one",
                        clip(&other.to_string(), 100)
                    );
                    return refused(call, why);
                }
            }
        }
        Ok(())
    }

    /// Runs a plan.
    pub(super) async fn run_plan(self: &Arc<Self>, caller: &Caller, run: PlanRun<'_>) -> Ran {
        let PlanRun { plan, given, mut before, concurrency, fail_fast, cancel, limit, so_far, log, needed } =
            run;
        let quiet = |unasked| Caller {
            unasked,
            as_task: AsTask::Never,
            progress: None,
            cancel: cancel.clone(),
            ..caller.clone()
        };
        let (caller, asking) = (&quiet(true), &quiet(caller.unasked));
        let halt = CancellationToken::new();
        let slots = Semaphore::new(MAX_ACTIONS);
        let common = Common {
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
        let mut ends = Ends {
            gateway: self,
            common: &common,
            results: vec![None; plan.calls().len()],
            values: given,
            failed: None,
        };
        let ended: Vec<(usize, CallOutcome)> = before.iter().map(|(at, one)| (*at, one.outcome())).collect();
        for (at, one) in before {
            ends.ran(at, one.outcome());
            ends.add(at, one);
        }
        let gate = self.gate(&caller.session);
        let lanes = plan.calls().iter().map(|call| lane(&gate, call)).collect();
        let schedule = Schedule::resumed(plan, Pace { concurrency, fail_fast, lanes }, &ended);
        let open = drive(schedule, &mut ends, cancel.cancelled(), &halt).await;
        Ran { results: ends.results, open, failed: ends.failed }
    }
}

/// Returns the lane of a call: calls that change something run one at a time per server, and so do questions. The lane
/// of an unlisted tool is unknown; its call waits at its server's connection.
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
