//! `run_parallel`, and the driver of every plan: does what the schedule of [`crate::workflow`] says.
//!
//! A result goes into the params of the calls that need it without passing through a model.

mod action;
mod report;

use std::{
    collections::BTreeMap,
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{FutureExt, StreamExt, stream::FuturesUnordered};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

pub(super) use self::{
    action::{ActionResult, unknown},
    report::SoFar,
};
use super::{
    Gate, Gateway,
    interrupt::Interrupt,
    run::Run,
    session::{AsTask, Caller},
};
use crate::{
    catalog::{GATEWAY, Tool},
    fault::{Code, Fault},
    jobs::Progress,
    name,
    results::source_of,
    template::Source,
    workflow::{Effect, Event, Flaw, Pace, Plan, PlannedCall, Schedule},
};

/// How many calls run at a time if the caller does not say.
pub(super) const CONCURRENCY: usize = 8;
/// How many actions one `run_parallel` takes.
const MAX_ACTIONS: usize = 50;

/// The arguments of `run_parallel`.
#[derive(Debug, serde::Deserialize)]
pub struct ParallelArguments {
    /// The calls.
    pub actions: Vec<PlannedCall>,
    /// How many run at a time.
    pub max_concurrency: Option<usize>,
    /// Whether the first failure keeps the rest from starting.
    #[serde(default)]
    pub fail_fast: bool,
}

/// One run of a plan.
pub(super) struct PlanRun<'a> {
    pub plan: &'a Plan,
    /// What templates may name beside the calls' ids.
    pub given: BTreeMap<String, Arc<Source>>,
    pub concurrency: usize,
    pub fail_fast: bool,
    pub cancel: CancellationToken,
    /// Is kept up to date with each end.
    pub so_far: &'a SoFar,
}

/// The ends of a run's calls.
struct Ends<'a> {
    plan: &'a Plan,
    so_far: &'a SoFar,
    results: Vec<Option<ActionResult>>,
    /// What templates take their values from.
    values: BTreeMap<String, Arc<Source>>,
}

impl Ends<'_> {
    fn add(&mut self, at: usize, one: ActionResult) {
        let call = &self.plan.calls()[at];
        if !one.succeeded() && call.optional {
            self.values.insert(call.id.clone(), Arc::default());
        } else if one.succeeded() && self.plan.is_used(at) {
            self.values.insert(call.id.clone(), Arc::new(source_of(&one.result)));
        }
        self.so_far.end(at, &one);
        self.results[at] = Some(one);
    }

    fn into_results(self) -> Vec<ActionResult> {
        self.results.into_iter().flatten().collect()
    }
}

/// A plan that is refused before anything runs.
pub(super) fn refused_plan(flaw: &Flaw) -> Fault {
    Fault::new(Code::InvalidParams, format!("{flaw} Nothing was run."))
}

impl Gateway {
    /// The `run_parallel` meta-tool.
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
        let gate = self.gate(&caller.session);
        for call in plan.calls().iter().filter(|call| name::META_TOOLS.contains(&call.name.as_str())) {
            // The fault names the meta-tool and says what to do.
            gate.tool(&call.name)?;
        }
        let cancel = CancellationToken::new();
        let span = caller.meta_span("run_parallel");
        let own = Caller { trace: span.parent(), ..caller.clone() };
        let so_far = SoFar::new(&plan);
        let told = so_far.clone();
        let progress: Progress = Arc::new(move || Some(told.report()));
        let run = Run { progress, began: began.into(), ..Run::new("run_parallel".into(), cancel.clone()) };
        let concurrency = max_concurrency.unwrap_or(CONCURRENCY).clamp(1, MAX_ACTIONS);
        let gateway = self.clone();
        let work = async move {
            let began = Instant::now();
            let given = BTreeMap::new();
            let run = PlanRun { plan: &plan, given, concurrency, fail_fast, cancel, so_far: &so_far };
            let results = gateway.run_plan(&own, run).await;
            let elapsed = began.elapsed();
            span.ended("ok");
            gateway.report(&own, &plan, results, elapsed).await
        };
        run.wait(&self.jobs, caller, work).await
    }

    /// Runs a plan; returns how each call ended, in the order of the plan.
    pub(super) async fn run_plan(self: &Arc<Self>, caller: &Caller, run: PlanRun<'_>) -> Vec<ActionResult> {
        let PlanRun { plan, given, concurrency, fail_fast, cancel, so_far } = run;
        let caller = &Caller {
            unasked: true,
            as_task: AsTask::Never,
            progress: None,
            cancel: cancel.clone(),
            ..caller.clone()
        };
        let gate = self.gate(&caller.session);
        let lanes = plan.calls().iter().map(|call| lane(&gate, call)).collect();
        let mut schedule = Schedule::new(plan, Pace { concurrency, fail_fast, lanes });
        let mut ends = Ends { plan, so_far, results: vec![None; plan.calls().len()], values: given };
        let halt = CancellationToken::new();
        let mut running = FuturesUnordered::new();
        let mut event = if cancel.is_cancelled() { Event::Cancelled } else { Event::Begin };
        loop {
            for effect in schedule.step(event) {
                match effect {
                    Effect::Start(at) => {
                        let call = &plan.calls()[at];
                        let work =
                            self.run_action(caller, call, ends.values.clone(), cancel.child_token(), &halt);
                        running.push(AssertUnwindSafe(work).catch_unwind().map(move |one| (at, one)));
                    }
                    Effect::HoldBack(at, reason) => {
                        let fault = Fault::new(Code::Cancelled, format!("Not run: {reason}."));
                        ends.add(at, ActionResult::not_run(&plan.calls()[at], &fault, Duration::ZERO));
                    }
                    Effect::Halt => halt.cancel(),
                    Effect::Finished => return ends.into_results(),
                }
            }
            event = tokio::select! {
                biased;
                () = cancel.cancelled(), if event != Event::Cancelled => Event::Cancelled,
                ended = running.next() => {
                    let Some((at, one)) = ended else { return ends.into_results() };
                    let one = one.unwrap_or_else(|_| ActionResult::panicked(&plan.calls()[at]));
                    let success = one.succeeded();
                    ends.add(at, one);
                    Event::Ended { at, success }
                }
            };
        }
    }
}

/// The lane of a call: calls that change something go one at a time per server. The lane of a tool that is not listed yet is
/// unknown; its call waits at its server's connection.
fn lane(gate: &Gate, call: &PlannedCall) -> Option<Arc<str>> {
    let tool = gate.tool(&call.name).ok()?;
    goes_alone(&tool).then(|| tool.server.clone())
}

/// Whether a call of this tool changes something, and its server takes one such call at a time.
pub(super) fn goes_alone(tool: &Tool) -> bool {
    !tool.read_only && !tool.parallel && &*tool.server != GATEWAY
}
