//! A call for each item of a list: the items form a plan of their own, with a schedule of the same kind.

use std::{collections::BTreeMap, sync::Arc};

use futures::future::BoxFuture;
use nonet_base::text::clip;
use nonet_config::{
    ITEMS_AT_A_TIME,
    workflow::{
        HoldReason, INDEX, ITEM, MAX_ITEMS, OnError, Pace, Plan, PlannedCall, Schedule, StepOutcome,
        reads_item,
    },
};
use nonet_parts::kept;
use nonet_text::{
    fault::{Fault, FaultCode},
    results::{json_len, take_media, value_of},
    template::{self, TemplateSource},
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{
    ActionResult, MAX_ACTIONS, RunLog, RunState, ScheduledCalls, TemplateValues, drive, lane, report::is_zero,
};
use crate::{apps::Apps, gate::Gate};
use nonet_state::faults::{error_of, why};

/// The maximum size of the values of all items together, in bytes.
const MAX_BYTES: usize = 64 << 20;
/// The maximum number of notes on single items.
const MAX_NOTES: usize = 20;

/// How the items of a `for_each` ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub(crate) struct ItemCounts {
    /// The length of the list.
    total: usize,
    #[serde(skip_serializing_if = "is_zero")]
    failed: usize,
    /// The items for which `when` did not hold.
    #[serde(skip_serializing_if = "is_zero")]
    left_out: usize,
}

impl ItemCounts {
    /// Whether every call that was made has failed.
    pub(crate) fn all_failed(self) -> bool {
        self.failed > 0 && self.failed + self.left_out >= self.total
    }
}

/// The items of one call.
struct Items<'a> {
    apps: &'a Arc<Apps>,
    common: &'a RunState<'a>,
    at: usize,
    call: &'a PlannedCall,
    /// The values for templates, without the item.
    values: TemplateValues,
    items: Vec<Value>,
    ends: BTreeMap<usize, Value>,
    done: usize,
    bytes: usize,
    /// Stops all items.
    stop: CancellationToken,
    /// The first failed item, and its error.
    failed: Option<(usize, Value)>,
    /// The result of an item that waits for the user.
    open: Option<ActionResult>,
    counts: ItemCounts,
    notes: Vec<String>,
    calls: usize,
    name: String,
    /// The journal of the call.
    log: Option<RunLog>,
}

impl Apps {
    /// Makes a call for each item of its list.
    pub(super) async fn each(
        self: &Arc<Self>,
        common: &RunState<'_>,
        at: usize,
        list: &Value,
        mut values: TemplateValues,
    ) -> Result<ActionResult, Fault> {
        let call = &common.plan.calls()[at];
        let items = match self.calls.filled(common.caller, list, &values).await?.value {
            Value::Array(items) => items,
            other => {
                let message = format!(
                    "`for_each` of `{}` gives {}, not an array. Name the member that has the list.",
                    call.id,
                    what(&other)
                );
                return Err(Fault::new(FaultCode::InvalidParams, message));
            }
        };
        if items.len() > MAX_ITEMS {
            let message = format!(
                "`for_each` of `{}` gives {} items; the maximum is {MAX_ITEMS}. Select fewer of them first.",
                call.id,
                items.len()
            );
            return Err(Fault::new(FaultCode::InvalidParams, message));
        }
        let mut counts = ItemCounts { total: items.len(), ..ItemCounts::default() };
        let items = match call.when.as_deref().filter(|when| reads_item(when)) {
            Some(when) => {
                let chosen = self.chosen(common, at, when, &items, &values).await?;
                counts.left_out = items.len() - chosen.len();
                chosen.into_iter().filter_map(|at| items.get(at).cloned()).collect()
            }
            None => items,
        };
        // Kept results that the params name are read once for all items.
        let uses = template::references([&call.params]).map_err(|error| kept::unread_template(&error))?;
        values.extend(self.keeping.kept.references(&common.caller.owner(), uses.kept).await?.0);
        let count = items.len();
        common.so_far.items(at, 0, count);
        let plan = Plan::of_items(count);
        let lane = lane(&Gate::of(&self.publisher, &common.caller.session), call);
        let pace = Pace {
            concurrency: call.max_concurrency.unwrap_or(ITEMS_AT_A_TIME).clamp(1, MAX_ACTIONS),
            fail_fast: call.on_error == OnError::Stop,
            lanes: vec![lane; count],
        };
        let log = common.log_of(at);
        let ended: Vec<(usize, ActionResult)> = match &log {
            Some(log) => {
                let ended = items.iter().enumerate();
                ended.filter_map(|(at, item)| Some((at, log.item(at, item).before()?))).collect()
            }
            None => Vec::new(),
        };
        let stop = common.cancel.child_token();
        let mut items = Items {
            apps: self,
            common,
            at,
            call,
            values,
            items,
            ends: BTreeMap::new(),
            done: 0,
            bytes: 0,
            stop: stop.clone(),
            failed: None,
            open: None,
            counts,
            notes: Vec::new(),
            calls: 0,
            name: call.name.clone(),
            log,
        };
        let outcomes: Vec<(usize, StepOutcome)> =
            ended.iter().map(|(at, one)| (*at, one.outcome())).collect();
        for (at, one) in ended {
            items.end(at, Some(one));
        }
        let halted = async {
            tokio::select! {
                () = stop.cancelled() => {}
                () = common.halt.cancelled() => {}
            }
        };
        drive(Schedule::resumed(&plan, pace, &outcomes), &mut items, halted, &common.halt.child_token())
            .await;
        if let Some(open) = items.open {
            return Ok(open);
        }
        let calls = items.calls;
        // The items have written their own lines in the audit log.
        let failed = |fault: Fault| {
            let took = std::time::Duration::ZERO;
            ActionResult { calls, ..ActionResult::not_run(call, &fault, took) }
        };
        Ok(items.into_result().unwrap_or_else(failed))
    }
}

impl<'a> ScheduledCalls<'a> for Items<'a> {
    fn start(&self, at: usize) -> BoxFuture<'a, ActionResult> {
        let (apps, common, call, stop) = (self.apps, self.common, self.call, self.stop.clone());
        let mut values = self.values.clone();
        values.insert(ITEM.into(), Arc::new(TemplateSource::from(self.items[at].clone())));
        values.insert(INDEX.into(), Arc::new(TemplateSource::from(json!(at))));
        let log = self.log.as_ref().map(|log| log.item(at, &self.items[at]));
        // `select` applies to the values of the items.
        let is_needed = call.select.is_some() || common.needed.contains(&self.at);
        Box::pin(async move {
            let one = apps.once(common, call, &values, stop, log.clone()).await;
            apps.log_end(log.as_ref(), &one, is_needed).await;
            one
        })
    }

    fn end(&mut self, at: usize, one: Option<ActionResult>) -> StepOutcome {
        let mut one = one.unwrap_or_else(|| ActionResult::panicked(self.call));
        let outcome = one.outcome();
        self.calls += one.calls;
        self.name.clone_from(&one.name);
        for note in std::mem::take(&mut one.repaired) {
            self.note(at, &note);
        }
        let value = match outcome {
            StepOutcome::Open => {
                self.open = Some(one);
                return outcome;
            }
            StepOutcome::Succeeded => {
                self.done += 1;
                let value = value_of(&one.result);
                // Media are part of a value that consists of blocks.
                if !value.is_array() && !take_media(&mut one.result).is_empty() {
                    self.note(at, "its images and audio are not part of its value");
                }
                value
            }
            _ => {
                let error = error_of(&one.result);
                self.counts.failed += 1;
                self.failed.get_or_insert_with(|| (at, error.clone()));
                json!({ "error": error })
            }
        };
        self.bytes = self.bytes.saturating_add(json_len(&value));
        if self.bytes > MAX_BYTES {
            self.stop.cancel();
        } else {
            self.ends.insert(at, value);
        }
        self.common.so_far.items(self.at, self.ends.len(), self.items.len());
        outcome
    }

    fn held_back(&mut self, _: usize, reason: &HoldReason) {
        // The failure that holds back the rest is reported for its own item.
        if self.failed.is_none() {
            let error = json!(Fault::new(FaultCode::Cancelled, format!("Not run: {reason}.")));
            self.failed = Some((self.ends.len(), error));
        }
    }
}

impl Items<'_> {
    fn note(&mut self, at: usize, note: &str) {
        match self.notes.len() {
            MAX_NOTES => self.notes.push("and more".into()),
            0..MAX_NOTES => self.notes.push(format!("item {at}: {note}")),
            _ => {}
        }
    }

    fn into_result(self) -> Result<ActionResult, Fault> {
        let (id, count) = (&self.call.id, self.items.len());
        if self.bytes > MAX_BYTES {
            let message = format!(
                "The values of `{id}` are larger than {} MiB together; {} of {count} items were done. Take fewer items, or \
                 less of each.",
                MAX_BYTES >> 20,
                self.ends.len()
            );
            return Err(Fault::new(FaultCode::InvalidParams, message));
        }
        let keeps = self.call.on_error == OnError::Keep && self.ends.len() == count;
        if let Some((at, error)) = self.failed.filter(|_| !keeps) {
            let code = error["code"].as_str().and_then(FaultCode::of).unwrap_or(FaultCode::UpstreamError);
            let why = why(&error);
            let message = format!("Item {at} of `{id}` failed ({} of {count} were done): {why}", self.done);
            let item = self.items.get(at).map(|item| clip(&item.to_string(), 200));
            let mut fault = Fault::new(code, message);
            fault.retryable = error["retryable"] == true;
            return Err(fault.details(json!({ "index": at, "item": item, "error": error })));
        }
        let values: Vec<Value> = self.ends.into_values().collect();
        let result = json!({ "content": [], "structuredContent": values });
        let mut one = ActionResult::of(self.name, result);
        one.repaired = self.notes;
        one.calls = self.calls;
        let ItemCounts { failed, left_out, .. } = self.counts;
        one.items = Some(self.counts).filter(|_| failed + left_out > 0);
        Ok(one)
    }
}

/// Describes a value for a fault.
fn what(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(flag) => format!("{flag}"),
        Value::Number(number) => format!("the number {number}"),
        Value::String(text) => format!("the text `{}`", clip(text, 80)),
        Value::Array(_) => "an array".into(),
        Value::Object(members) => {
            let keys: Vec<&str> = members.keys().take(20).map(String::as_str).collect();
            format!("an object with the keys {}", keys.join(", "))
        }
    }
}
