//! Workflows: a plan of calls, and the answer of a run.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::FutureExt;
use nonet_config::{
    AppKind, RetryRule, Step, StepKind,
    workflow::{CallKind, INPUT, OnError, Plan, PlanFlaw, PlannedCall, Retry, StepOutcome},
};
use nonet_parts::{jobs::JobProgress, quotas::Admission};
use nonet_text::{
    fault::{Fault, FaultCode},
    results::is_error,
    template::{self, NameLookup, TemplateSource},
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{
    AnswerMode, AppAnswer, AppRun, InnerApproval, inside,
    parked::{Checkpoints, ParkableRun},
};
use crate::{
    AskArguments,
    apps::Apps,
    call::{text_result, unknown},
    graph::{
        ActionResult, CONCURRENCY, MemoryJournal, PlanRun, RunLog, RunOutcome, RunProgress, TemplateValues,
        digest, refused_plan,
    },
    interrupt::Interrupt,
    run::Run,
};
use nonet_state::{
    faults::{error_of, why},
    grants::RunGrants,
    limit::Limit,
    session::Caller,
};

/// One run of a workflow, from the beginning or from the step that waited for the user.
pub(super) struct Flow {
    pub id: String,
    pub steps: Vec<Step>,
    pub output: Option<Value>,
    pub plan: Arc<Plan>,
    pub input: Value,
    pub began: Instant,
    /// The limit of the whole app, and the remaining time.
    pub timeout: Duration,
    pub left: Duration,
    /// The finished steps.
    pub before: Vec<(usize, ActionResult)>,
    /// The run's record, once the user has answered.
    pub checkpoints: Option<Arc<Checkpoints>>,
    /// The journal of finished steps.
    pub log: Option<RunLog>,
    /// The user's answers about the calls of the run so far.
    pub grants: Value,
    /// How the run returns its answer.
    pub handing: AnswerMode,
    /// Where the run of an inner app leaves its question.
    pub waiting: Option<InnerApproval>,
}

impl Flow {
    /// Creates a run that starts at the beginning.
    fn new(app: AppRun, steps: &[Step], output: Option<Value>) -> Result<Self, Fault> {
        // The same app with the same input continues; any other run starts over.
        let log = app.log.map(|log| log.part(definition(steps, output.as_ref())).part(digest(&app.input)));
        Ok(Self {
            plan: Arc::new(plan(steps).map_err(|flaw| refused_plan(&flaw))?),
            id: app.id,
            steps: steps.to_vec(),
            output,
            input: app.input,
            began: app.began,
            timeout: app.timeout,
            left: app.timeout,
            before: Vec::new(),
            checkpoints: None,
            log,
            grants: Value::Null,
            handing: app.handing,
            waiting: app.waiting,
        })
    }

    /// Returns the state that is kept while the user is asked.
    fn to_park<'a>(&'a self, noted: Option<&'a MemoryJournal>, left: Duration) -> ParkableRun<'a> {
        ParkableRun {
            app_id: &self.id,
            plan: &self.plan,
            needed: (0..self.plan.calls().len()).filter(|at| self.is_needed(*at)).collect(),
            digest: definition(&self.steps, self.output.as_ref()),
            input: self.input.clone(),
            actions: None,
            timeout: self.timeout,
            left,
            checkpoints: self.checkpoints.as_deref(),
            noted,
        }
    }

    /// Whether a value is needed after its step: by other steps, or by the output.
    pub(super) fn is_needed(&self, at: usize) -> bool {
        let in_output = match &self.output {
            Some(output) => template::names(output).contains(&self.plan.calls()[at].id),
            // The output is the value of the last step that runs.
            None => self.plan.calls()[at + 1..].iter().all(|later| later.when.is_some()),
        };
        in_output || self.plan.is_seen(at)
    }
}

/// Returns a digest of a workflow's definition.
pub(super) fn definition(steps: &[Step], output: Option<&Value>) -> String {
    digest(&json!([steps, output]))
}

/// Builds the plan of a workflow.
pub(super) fn plan(steps: &[Step]) -> Result<Plan, PlanFlaw> {
    Plan::new(steps.iter().map(planned).collect(), &[INPUT])
}

impl Apps {
    pub(super) async fn call_workflow(
        self: &Arc<Self>,
        caller: &Caller,
        app: AppRun,
        steps: &[Step],
        output: Option<Value>,
    ) -> Result<Value, Interrupt> {
        let flow = Flow::new(app, steps, output)?;
        self.check_steps(caller, &flow).await?;
        let admission = self.calls.admit(caller, flow.handing.background)?;
        self.run_workflow(caller, flow, admission).await
    }

    /// Refuses a workflow whose remaining steps cannot succeed, before anything runs.
    pub(super) async fn check_steps(&self, caller: &Caller, flow: &Flow) -> Result<(), Fault> {
        if let Some(Err(error)) = flow.output.as_ref().map(template::check) {
            let message = format!("The `output` of the app `{}`: {error}. Nothing was run.", flow.id);
            return Err(Fault::new(FaultCode::InvalidParams, message));
        }
        for (at, call) in flow.plan.calls().iter().enumerate() {
            if !flow.before.iter().any(|(ended, _)| *ended == at) {
                self.check_step(caller, &flow.id, call).await?;
            }
        }
        Ok(())
    }

    /// Runs the remaining steps of a workflow.
    pub(super) async fn run_workflow(
        self: &Arc<Self>,
        caller: &Caller,
        flow: Flow,
        admission: Admission,
    ) -> Result<Value, Interrupt> {
        let cancel = CancellationToken::new();
        let span = caller.meta_span("call_app");
        let (is_admitted, trace) = (true, span.parent());
        let mut own = Caller { cancel: cancel.clone(), trace, is_admitted, ..caller.clone() };
        // `run_app` does not run a workflow that continues after a question.
        if own.within.last().is_none_or(|app| **app != *flow.id) {
            own.within = inside(caller, &flow.id);
        }
        if own.run.is_none() {
            own.run = Some(RunGrants::new(!caller.unasked, &flow.grants));
        }
        let apps = self.clone();
        let so_far = RunProgress::new(&flow.plan);
        let seen = so_far.clone();
        let progress: JobProgress = Arc::new(move || Some(seen.counts()));
        let run = Run {
            began: flow.began.into(),
            background: flow.handing.background,
            admission,
            ..Run::new(format!("app {}", flow.id), cancel.clone(), progress)
        };
        let went_on = run.went_on.clone();
        let work = async move {
            let mut flow = flow;
            // A separate token, because running out of time is not a cancellation by the user.
            let over = cancel.child_token();
            let limit = Limit::new(flow.left);
            let mut noted = None;
            if flow.log.is_none() {
                (flow.log, noted) = apps.journal(&own, &flow.plan, flow.checkpoints.as_ref());
            }
            let given = TemplateValues::from([(
                INPUT.to_string(),
                Arc::new(TemplateSource::from(flow.input.clone())),
            )]);
            let run = PlanRun {
                plan: &flow.plan,
                given: given.clone(),
                before: std::mem::take(&mut flow.before),
                concurrency: CONCURRENCY,
                fail_fast: true,
                cancel: over.clone(),
                limit: Some(&limit),
                so_far: &so_far,
                log: flow.log.clone(),
                needed: (0..flow.plan.calls().len()).filter(|at| flow.is_needed(*at)).collect(),
            };
            let mut running = Box::pin(apps.run_plan(&own, run));
            let (ran, ran_out) = tokio::select! {
                ran = &mut running => (ran, false),
                () = limit.over() => {
                    over.cancel();
                    ((&mut running).await, true)
                }
            };
            drop(running);
            let RunOutcome { results, open, failed } = ran;
            let was_cut_off =
                cancel.is_cancelled() || (failed.is_some() && apps.servers.stopping().is_cancelled());
            let answer = match (open, &flow.checkpoints) {
                (Some(at), _) => match &flow.waiting {
                    Some(waiting) => waiting.leave(results, at),
                    None => {
                        let parking = flow.to_park(noted.as_deref(), limit.left());
                        apps.park(&own, parking, results, at).await
                    }
                },
                (None, Some(checkpoints)) if was_cut_off => checkpoints.set_aside(&flow.id).await.to_result(),
                (None, checkpoints) => {
                    let results: Vec<ActionResult> = results.into_iter().flatten().collect();
                    let answer = finish(&flow, &results, failed, ran_out, given);
                    if let Some(checkpoints) = checkpoints {
                        checkpoints.forget().await;
                    }
                    answer
                }
            };
            span.ended(if is_error(&answer) { "tool_error" } else { "ok" });
            apps.calls.hand_out(&own, answer, flow.handing.select.as_deref(), &went_on).await
        };
        Ok(run.wait(&self.keeping.jobs, caller, work.boxed()).await?.into_tree().await)
    }

    async fn check_step(&self, caller: &Caller, app: &str, call: &PlannedCall) -> Result<(), Fault> {
        let wrong = |why: String| {
            let message = format!("The step `{}` of the app `{app}`: {why} Nothing was run.", call.id);
            Fault::new(FaultCode::InvalidParams, message)
        };
        for value in [&call.params].into_iter().chain(&call.for_each) {
            template::check(value).map_err(|error| wrong(format!("{error}.")))?;
        }
        match call.kind {
            CallKind::Tool if call.filter.is_some() => {}
            CallKind::Tool => {
                let (_, tool) = self.calls.find_tool(caller, &call.name).await?;
                if call.retry.is_some() && !tool.is_repeatable() {
                    return Err(wrong(format!(
                        "`retry` is only for tools that are safe to call again, and the server does not \
                         mark `{}` as read-only or idempotent. The user must remove `retry` from \
                         servers.toml.",
                        tool.full
                    )));
                }
            }
            CallKind::App => match self.servers.config().apps.get(&call.name).map(|app| &app.kind) {
                None => {
                    return Err(wrong(format!(
                        "there is no app `{}`, or it is left out because of a fault in servers.toml.",
                        call.name
                    )));
                }
                Some(AppKind::Script { .. }) => {
                    let why = "the app `{}` is a script, which runs only when it is called directly.";
                    return Err(wrong(why.replace("{}", &call.name)));
                }
                Some(_) => {}
            },
            CallKind::Ask if template::names(&call.params).is_empty() => {
                nonet_state::questions::check(&AskArguments::of_step(&call.id, call.params.clone(), None)?)?;
            }
            CallKind::Ask => {}
        }
        Ok(())
    }
}

fn planned(step: &Step) -> PlannedCall {
    let (kind, params, retry) = match &step.kind {
        StepKind::Tool { params, retry, .. } => (CallKind::Tool, params.clone(), retry.clone()),
        StepKind::App { input, .. } => (CallKind::App, input.clone(), None),
        StepKind::Ask(ask) => (CallKind::Ask, json!(ask), None),
        StepKind::Filter(_) => (CallKind::Tool, Value::Null, None),
    };
    let filter = match &step.kind {
        StepKind::Filter(filter) => Some(filter.clone()),
        _ => None,
    };
    let each = step.for_each.as_ref();
    PlannedCall {
        id: step.id.clone(),
        name: step.called().into(),
        params,
        after: step.after.clone(),
        when: step.when.clone(),
        for_each: each.map(|each| each.list.clone()),
        max_concurrency: each.map(|each| each.max_concurrency),
        on_error: each.map_or(OnError::Stop, |each| each.on_error),
        timeout_ms: step.timeout.map(nonet_base::clock::millis),
        retry: retry.map(|RetryRule { times, wait, on }| Retry { times, wait, on }),
        select: step.select.clone(),
        filter,
        show: false,
        optional: step.optional,
        kind,
    }
}

/// Builds a workflow's answer: its output, or which step failed and why.
fn finish(
    flow: &Flow,
    ended: &[ActionResult],
    failed_first: Option<usize>,
    ran_out: bool,
    given: TemplateValues,
) -> Value {
    let steps = || flow.plan.calls().iter().zip(ended);
    let tool_calls = ended.iter().map(|one| one.calls).sum();
    let failed =
        |(call, one): &(&PlannedCall, &ActionResult)| one.outcome() == StepOutcome::Failed && !call.optional;
    // This failure held back the rest.
    let first = failed_first.and_then(|at| steps().nth(at));
    if let Some((call, one)) = first.or_else(|| steps().find(failed)) {
        if let Some(declined) = &one.declined {
            let mut answer = json!({ "app_id": flow.id, "step": call.id, "tool_calls": tool_calls });
            for (key, value) in declined.as_object().into_iter().flatten() {
                answer[key] = value.clone();
            }
            return text_result(answer.to_string());
        }
        let done = steps().filter(|(_, one)| one.succeeded()).map(|(call, _)| call.id.as_str()).collect();
        return stopped(&flow.id, call, one, done, ran_out.then_some(flow.timeout)).to_result();
    }
    let mut values = given;
    for (_, (call, one)) in steps().enumerate().filter(|(at, _)| flow.is_needed(*at)) {
        let source = if one.succeeded() { one.value(call) } else { TemplateSource::absent() };
        values.insert(call.id.clone(), Arc::new(source));
    }
    let output = match &flow.output {
        None => {
            let last = steps().rev().find(|(_, one)| !one.skipped);
            let last = last.and_then(|(call, _)| values.get(&call.id));
            Ok(last.map(|source| source.value.clone()).unwrap_or_default())
        }
        Some(output) => {
            let lookup =
                |name: &str| values.get(name).cloned().map_or_else(|| unknown(&values), NameLookup::Value);
            template::fill(output, &lookup).map(|filled| filled.value)
        }
    };
    let output = match output {
        Ok(output) => output,
        Err(error) => {
            let message = format!(
                "The steps of the app `{}` ran, but its `output` cannot be filled: {error}.",
                flow.id
            );
            return Fault::new(FaultCode::InvalidParams, message).to_result();
        }
    };
    let failed_optional_steps = steps()
        .filter(|(_, one)| one.outcome() == StepOutcome::Failed)
        .map(|(call, one)| (call.id.clone(), error_of(&one.result)))
        .collect();
    let notes =
        steps().flat_map(|(call, one)| one.repaired.iter().map(|note| format!("{}: {note}", call.id)));
    let skipped = steps().filter(|(_, one)| one.skipped).map(|(call, _)| call.id.as_str()).collect();
    let repaired = notes.collect();
    let items = steps().filter_map(|(call, one)| Some((call.id.clone(), json!(one.items?)))).collect();
    let app_id = &flow.id;
    AppAnswer { app_id, output, tool_calls, repaired, failed_optional_steps, items, skipped }.into_result()
}

/// Explains why a workflow stopped at a step. `over` is the limit of the whole app, if it has expired.
fn stopped(
    id: &str,
    call: &PlannedCall,
    one: &ActionResult,
    done: Vec<&str>,
    over: Option<Duration>,
) -> Fault {
    let step = &call.id;
    let error = error_of(&one.result);
    let why = why(&error);
    let (code, limit) = match (error["code"].as_str(), over) {
        (Some("cancelled"), Some(limit)) => {
            let limit = humantime::format_duration(limit);
            (FaultCode::Timeout, format!(" The limit of the whole app is {limit}."))
        }
        (Some("cancelled"), None) => (FaultCode::Cancelled, String::new()),
        (Some("timeout"), _) => (FaultCode::Timeout, String::new()),
        // The call's input lacks something, not the step.
        (Some("invalid_params"), _) if why.starts_with("`{{input") => {
            (FaultCode::InvalidParams, String::new())
        }
        _ => (FaultCode::UpstreamError, String::new()),
    };
    let fault =
        Fault::new(code, format!("The app `{id}` stopped at the step `{step}` ({}): {why}{limit}", one.name))
            .details(json!({ "completed": done, "error": error }));
    match call.kind {
        _ if fault.code == FaultCode::InvalidParams => fault.next("call_app", json!({})),
        CallKind::Tool if call.filter.is_none() => fault.next("get_tool", json!({ "name": one.name })),
        CallKind::Tool | CallKind::App | CallKind::Ask => fault,
    }
}
