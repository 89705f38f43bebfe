//! Calls that depend on each other: the engine of `run_parallel` and of workflows.
//!
//! A call starts as soon as the calls that it names, in `after` or in a template, have ended. Calls
//! that change something go one at a time per server. What one gives is put into the next without
//! going through a model.

mod plan;

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use futures::{FutureExt, StreamExt, stream::FuturesUnordered};
pub use plan::{Action, Plan};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{
    Gateway,
    call::{Begun, text_result},
    faults::error_of,
    interrupt::Interrupt,
    keep,
    run::Run,
    session::{AsTask, Caller},
};
use crate::{
    catalog::GATEWAY,
    downstream::ProgressSink,
    fault::{Code, Fault},
    jobs::{self, Progress},
    name,
    results::{self, is_error, json_len, source_of, value_of},
    template::{self, Named, Source},
    text::clip,
};

/// How many calls run at a time if the caller does not say.
const CONCURRENCY: usize = 8;
/// What is shown of a result that other calls use, in characters; one of so many bytes is shown whole.
const PASSED_ON: usize = 500;
/// Results up to this size, in bytes, are shown while others still run, and so many bytes of all.
const PARTIAL_BYTES: usize = 2_000;
const PARTIAL_TOTAL: usize = 10_000;
/// How many actions one `run_parallel` takes.
pub const MAX_ACTIONS: usize = 50;

/// The arguments of `run_parallel`.
#[derive(Debug, serde::Deserialize)]
pub struct ParallelArguments {
    /// The calls.
    pub actions: Vec<Action>,
    /// How many run at a time.
    pub max_concurrency: Option<usize>,
    /// Whether the first failure keeps the rest from starting.
    #[serde(default)]
    pub fail_fast: bool,
}

/// How one call of a graph ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// The tool's full name, or the name as it was given.
    pub name: String,
    /// What it gave: a `CallToolResult`.
    pub result: Arc<Value>,
    /// What was repaired in its params.
    pub repaired: Vec<String>,
    /// Whether the tool was called.
    pub ran: bool,
    /// How long it took, in milliseconds.
    pub elapsed_ms: u64,
}

impl Ended {
    /// Whether it has a result that is no error.
    pub fn succeeded(&self) -> bool {
        !is_error(&self.result)
    }
}

impl Gateway {
    /// The `run_parallel` meta-tool.
    pub async fn run_parallel(
        self: &Arc<Self>,
        caller: &Caller,
        arguments: ParallelArguments,
    ) -> Result<Value, Interrupt> {
        let count = arguments.actions.len();
        if count == 0 || count > MAX_ACTIONS {
            return Err(Fault::new(
                Code::InvalidParams,
                format!("`actions` holds {count}; 1 to {MAX_ACTIONS} are run at once."),
            )
            .into());
        }
        let began = Instant::now();
        let plan = Plan::new(arguments.actions, &[])?;
        for action in plan.actions().iter().filter(|action| name::META_TOOLS.contains(&action.name.as_str()))
        {
            // Says what it is, and what to do.
            self.gate(&caller.session).tool(&action.name)?;
        }
        let cancel = CancellationToken::new();
        let span = caller.meta_span("run_parallel");
        let own = Caller { trace: span.parent(), ..caller.clone() };
        let (gateway, token) = (self.clone(), cancel.clone());
        let concurrency = arguments.max_concurrency.unwrap_or(CONCURRENCY).clamp(1, MAX_ACTIONS);
        let plan = Arc::new(plan);
        let so_far = SoFar::new(&plan);
        let progress: Progress = {
            let (so_far, plan) = (so_far.clone(), plan.clone());
            Arc::new(move || Some(so_far.report(&plan)))
        };
        let work = async move {
            let began = Instant::now();
            let ended = gateway
                .run_graph(&own, &plan, &BTreeMap::new(), concurrency, arguments.fail_fast, token, &so_far)
                .await;
            let elapsed_ms = millis(began);
            span.ended("ok");
            gateway.report(&own, &plan, ended, elapsed_ms).await
        };
        let run = Run { progress, began, ..Run::new("run_parallel".into(), cancel) };
        self.run(caller, run, work).await
    }

    /// The answer of `run_parallel`: one JSON object, then pictures and sound. All results share one budget: small ones are
    /// given whole, and what they leave is divided among the large ones. What only other calls use is kept and given in
    /// short.
    async fn report(&self, caller: &Caller, plan: &Plan, ended: Vec<Ended>, elapsed_ms: u64) -> Value {
        let sizes: Vec<usize> =
            ended.iter().map(|one| if one.succeeded() { json_len(&one.result) } else { 0 }).collect();
        let budget = caller.limits.max_result_bytes;
        let share = fair_share(&sizes, budget);
        let mut left = budget;
        let (total, succeeded) = (ended.len(), ended.iter().filter(|one| one.succeeded()).count());
        let mut results: Vec<Value> = Vec::with_capacity(total);
        let mut media: Vec<Value> = Vec::new();
        let used = plan.used();
        for (at, ((action, mut one), size)) in plan.actions().iter().zip(ended).zip(sizes).enumerate() {
            let success = one.succeeded();
            let mut entry = json!({ "id": action.id, "name": one.name, "success": success });
            if success {
                let own = results::take_media(&mut one.result);
                if !own.is_empty() {
                    entry["media"] = own.iter().map(|block| block["mimeType"].clone()).collect();
                    let note = format!("From the action `{}` ({}):", action.id, one.name);
                    media.push(json!({ "type": "text", "text": note }));
                    media.extend(own);
                }
                let passed_on = used.contains(&at) && action.select.is_none() && size > PASSED_ON;
                let shown = match passed_on {
                    true => self.in_short(caller, &one.result, size).await,
                    false => self.compact(caller, one.result, share).await,
                };
                // As text inside of text it takes more room than it does by itself.
                let reference = shown["content"].as_array().and_then(|blocks| reference_in(blocks.last()?));
                match reference {
                    Some(reference) if json_len(&shown) > left => {
                        entry["result"] = json!({ "truncated": true, "ref": reference, "bytes": size });
                    }
                    _ if shown == "" && entry.get("media").is_some() => {}
                    _ => entry["result"] = shown,
                }
            } else {
                entry["error"] = error_of(&one.result);
            }
            if !one.repaired.is_empty() {
                entry["repaired"] = json!(one.repaired);
            }
            entry["elapsed_ms"] = json!(one.elapsed_ms);
            left = left.saturating_sub(json_len(&entry));
            results.push(entry);
        }
        let report = json!({
            "results": results,
            "total": total,
            "succeeded": succeeded,
            "failed": total - succeeded,
            "elapsed_ms": elapsed_ms,
        });
        let mut blocks = vec![json!({ "type": "text", "text": report.to_string() })];
        blocks.append(&mut media);
        json!({ "content": blocks })
    }

    /// The beginning of a result that other calls took what they needed from, and the reference to the rest.
    async fn in_short(&self, caller: &Caller, result: &Arc<Value>, size: usize) -> Value {
        let text = results::text_of_value(result);
        let mut short = json!({ "truncated": true, "bytes": size, "begins": clip(&text, PASSED_ON) });
        match self.keep_whole(caller, Value::clone(result)).await {
            Ok(reference) => short["ref"] = json!(reference),
            Err(why) => short["not_kept"] = json!(why),
        }
        short
    }

    /// A result inside a larger answer: its value where that says everything, else its blocks. Here all
    /// of it is text that a model reads, so all of it is held to the budget.
    async fn compact(&self, caller: &Caller, result: Arc<Value>, budget: usize) -> Value {
        let blocks = result.get("content").and_then(Value::as_array);
        let texts_only =
            blocks.is_none_or(|blocks| blocks.iter().all(|block| block.get("type") == Some(&json!("text"))));
        if texts_only {
            let value = value_of(&result);
            if json_len(&value) <= budget {
                return value;
            }
            let text = text_result(match value {
                Value::String(text) => text,
                value => value.to_string(),
            });
            let size = json_len(&text);
            return self.fit(caller, text, size, budget).await;
        }
        let size = json_len(&result);
        let mut whole = self.fit(caller, Arc::unwrap_or_clone(result), size, budget).await;
        if let Some(fields) = whole.as_object_mut() {
            fields.remove("resultType");
        }
        whole
    }

    /// Runs a graph; gives how each call ended, in the order given, and meanwhile tells `so_far`.
    #[allow(clippy::too_many_arguments)] // one call, each argument read once
    pub(super) async fn run_graph(
        self: &Arc<Self>,
        caller: &Caller,
        plan: &Plan,
        given: &BTreeMap<String, Arc<Source>>,
        concurrency: usize,
        fail_fast: bool,
        cancel: CancellationToken,
        so_far: &SoFar,
    ) -> Vec<Ended> {
        let caller = &Caller {
            unasked: true,
            as_task: AsTask::Never,
            progress: None,
            cancel: cancel.clone(),
            ..caller.clone()
        };
        // Cancelled by the first failure, if that is to keep the rest from starting.
        let halt = CancellationToken::new();
        let used = plan.used();
        let count = plan.actions.len();
        let mut ended: Vec<Option<Ended>> = vec![None; count];
        let mut values: BTreeMap<String, Arc<Source>> = given.clone();
        let mut started: BTreeSet<usize> = BTreeSet::new();
        let mut running = FuturesUnordered::new();
        loop {
            for at in 0..count {
                let ready = plan.needs[at].iter().all(|need| ended[*need].is_some());
                if started.contains(&at) || !ready {
                    continue;
                }
                let action = &plan.actions[at];
                if let Some(why) = held_back(plan, at, &ended, &halt, &cancel) {
                    started.insert(at);
                    let fault = Fault::new(Code::Cancelled, why);
                    let one = Ended {
                        name: action.name.clone(),
                        result: Arc::new(fault.to_result()),
                        repaired: Vec::new(),
                        ran: false,
                        elapsed_ms: 0,
                    };
                    so_far.end(at, &one);
                    ended[at] = Some(one);
                    continue;
                }
                if running.len() >= concurrency {
                    break;
                }
                started.insert(at);
                let call = self.run_action(caller, action, values.clone(), cancel.child_token(), &halt);
                let call = AssertUnwindSafe(call);
                running.push(call.catch_unwind().map(move |one| (at, one)));
            }
            // What was held back may have been all that others waited for.
            let Some((at, one)) = running.next().await else {
                if ended.iter().all(Option::is_some) {
                    break;
                }
                continue;
            };
            let action = &plan.actions[at];
            let one = one.unwrap_or_else(|_| {
                tracing::error!(tool = action.name, "a call panicked");
                Ended {
                    name: action.name.clone(),
                    result: Arc::new(jobs::panicked()),
                    repaired: Vec::new(),
                    ran: true,
                    elapsed_ms: 0,
                }
            });
            if one.succeeded() {
                if used.contains(&at) {
                    values.insert(action.id.clone(), Arc::new(source_of(&one.result)));
                }
            } else if action.optional {
                values.insert(action.id.clone(), Arc::default());
            } else if fail_fast {
                halt.cancel();
            }
            so_far.end(at, &one);
            ended[at] = Some(one);
        }
        ended.into_iter().flatten().collect()
    }

    async fn run_action(
        self: &Arc<Self>,
        caller: &Caller,
        action: &Action,
        values: BTreeMap<String, Arc<Source>>,
        cancel: CancellationToken,
        halt: &CancellationToken,
    ) -> Ended {
        let begun = Begun::new(caller, &action.params);
        let not_run = |fault: Fault| {
            self.refused(caller, &action.name, &begun, &fault);
            Ended {
                name: action.name.clone(),
                result: Arc::new(fault.to_result()),
                repaired: Vec::new(),
                ran: false,
                elapsed_ms: millis(begun.at),
            }
        };
        let prepared = async {
            let references = self.references(caller, &action.params).await?;
            let lookup = |name: &str| match values.get(name) {
                Some(value) => Named::Value(value.clone()),
                None if name.starts_with("ref:") => keep::reference(&references, name),
                None => Named::Unknown(values.keys().cloned().collect::<Vec<_>>().join(", ")),
            };
            let filled = template::fill(&action.params, &lookup);
            let params = filled.map_err(|error| Fault::new(Code::InvalidParams, format!("{error}.")))?;
            // Templates mean nothing outside of the graph; kept results stay references.
            let outside = template::names(&action.params).is_empty();
            let written = if outside { action.params.clone() } else { params.value.clone() };
            self.prepare(caller, &action.name, written, Some(params)).await
        };
        let prepared = match prepared.await {
            Ok(prepared) => prepared,
            Err(Interrupt::Fault(fault)) => return not_run(*fault),
            // What is only prepared does not go on as a task and is not refused by its server.
            Err(Interrupt::Task(_) | Interrupt::Refused(_)) => {
                return not_run(Fault::new(
                    Code::Internal,
                    "The call was not made; make it with execute_tool.",
                ));
            }
        };
        let tool = prepared.tool.clone();
        let alone = !tool.read_only && !tool.parallel && &*tool.server != GATEWAY;
        let connection = self.connection_for(caller, &tool.server).filter(|_| alone);
        let timeout = action.timeout_ms.map(|ms| Duration::from_millis(ms.max(1)));
        let held = |why: &str| {
            not_run(Fault::new(Code::Cancelled, format!("Not run: {why} while it waited for its turn.")))
        };
        let _turn = match &connection {
            Some(connection) => tokio::select! {
                biased;
                () = cancel.cancelled() => return held("cancelled"),
                () = halt.cancelled() => return held("another call failed and `fail_fast` is set,"),
                () = tokio::time::sleep(timeout.unwrap_or(connection.settings().timeout)) => {
                    let message = format!("`{}` was busy with other calls for all of its time.", tool.server);
                    return not_run(Fault::new(Code::RateLimited, message).retry_after(Duration::from_secs(1)));
                }
                turn = connection.one_at_a_time.lock() => Some(turn),
            },
            None => None,
        };
        let timeout =
            timeout.map(|timeout| timeout.saturating_sub(begun.at.elapsed()).max(Duration::from_millis(1)));
        let repaired = prepared.repaired.clone();
        let sink = ProgressSink::new(None);
        let made = self.invoke(caller, prepared, timeout, cancel, sink, &begun.span).await;
        let size = json_len(&made.result);
        self.record(caller, &tool, &begun, size, &made);
        let (result, _) = self.filtered(caller, made.result, size, action.select.as_deref()).await;
        let result = Arc::new(result);
        Ended { name: tool.full.to_string(), result, repaired, ran: true, elapsed_ms: millis(begun.at) }
    }
}

/// Why a call is not to be run, if so.
fn held_back(
    plan: &Plan,
    at: usize,
    ended: &[Option<Ended>],
    halt: &CancellationToken,
    cancel: &CancellationToken,
) -> Option<String> {
    if cancel.is_cancelled() {
        return Some("Not run: cancelled.".into());
    }
    if halt.is_cancelled() {
        return Some("Not run: another call failed and `fail_fast` is set.".into());
    }
    let broken = plan.needs[at].iter().find(|need| {
        ended[**need].as_ref().is_some_and(|one| !one.succeeded()) && !plan.actions[**need].optional
    })?;
    Some(format!("Not run: `{}`, which it needs, failed.", plan.actions[*broken].id))
}

/// How far a graph has come, for whoever asks while it runs: each call that has ended as the report shows it, but of a large
/// result only that it is there.
#[derive(Clone, Debug)]
pub(super) struct SoFar {
    ended: Arc<Mutex<Vec<Option<Value>>>>,
}

impl SoFar {
    pub fn new(plan: &Plan) -> Self {
        Self { ended: Arc::new(Mutex::new(vec![None; plan.actions.len()])) }
    }

    fn end(&self, at: usize, one: &Ended) {
        let mut entry = json!({ "name": one.name, "success": one.succeeded() });
        let small = |value: &Value| json_len(value) <= PARTIAL_BYTES;
        if !one.succeeded() {
            let error = error_of(&one.result);
            entry["error"] = if small(&error) { error } else { json!({ "code": error["code"] }) };
        } else if small(&one.result) {
            entry["result"] = value_of(&one.result);
        }
        if let Ok(mut ended) = self.ended.lock() {
            ended[at] = Some(entry);
        }
    }

    /// How many calls have ended.
    pub fn counts(&self) -> Value {
        let ended = self.ended.lock().map(|ended| (ended.iter().flatten().count(), ended.len()));
        let (done, total) = ended.unwrap_or_default();
        json!({ "ended": done, "total": total })
    }

    /// The same with what has ended, as far as it is small.
    fn report(&self, plan: &Plan) -> Value {
        let mut report = self.counts();
        let ended = self.ended.lock().map(|ended| ended.clone()).unwrap_or_default();
        let mut left = PARTIAL_TOTAL;
        let results: Vec<Value> = plan
            .actions()
            .iter()
            .zip(ended)
            .filter_map(|(action, entry)| {
                let mut entry = entry?;
                left = left.checked_sub(json_len(&entry))?;
                entry["id"] = json!(action.id);
                Some(entry)
            })
            .collect();
        if !results.is_empty() {
            report["results"] = json!(results);
        }
        report
    }
}

/// The reference in the note of a shortened result.
fn reference_in(note: &Value) -> Option<String> {
    let note: Value = serde_json::from_str(note["text"].as_str()?).ok()?;
    Some(note["ref"].as_str()?.into())
}

/// The most bytes that one of several results may have, so that all together stay within `budget`: what small ones leave is
/// divided among the others. At least 1,000, which a preview needs.
fn fair_share(sizes: &[usize], budget: usize) -> usize {
    let mut sorted = sizes.to_vec();
    sorted.sort_unstable();
    let mut left = budget;
    for (at, size) in sorted.iter().enumerate() {
        let share = left / (sorted.len() - at);
        if *size > share {
            return share.max(1_000);
        }
        left -= size;
    }
    budget
}

pub(super) fn millis(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_results_leave_their_share_to_large_ones() {
        let check = |sizes: &[usize], expected| assert_eq!(fair_share(sizes, 10_000), expected, "{sizes:?}");
        check(&[], 10_000);
        check(&[10, 20, 9_000], 10_000);
        check(&[20_000], 10_000);
        check(&[1_000, 20_000, 20_000], 4_500);
        check(&[20_000; 50], 1_000);
    }
}
