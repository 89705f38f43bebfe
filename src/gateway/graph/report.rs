//! The answers of `run_parallel`: at its end, and while it runs.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Value, json};

use super::ActionResult;
use crate::{
    clock::millis,
    gateway::{Gateway, call::text_result, faults::error_of, session::Caller},
    results::{self, fair_share, is_fault, json_len, take_reference, value_of},
    text::clip,
    workflow::{CallOutcome, Plan, PlannedCall},
};

/// How much of a result is shown if other calls use it, in characters; a result of up to this many bytes is shown
/// whole.
const PASSED_ON: usize = 500;
/// Results up to this size, in bytes, are shown while other calls still run, and the limit for all of them together.
const PARTIAL_BYTES: usize = 2_000;
const PARTIAL_TOTAL: usize = 10_000;
/// The minimum share of the budget for one result, because a preview needs it.
const LEAST_SHARE: usize = 1_000;

/// One call in a report.
#[derive(Clone, Debug, Default, Serialize)]
struct ActionReport {
    id: String,
    name: String,
    success: bool,
    /// Whether its `when` skipped it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    skipped: bool,
    /// The MIME types of the pictures and sound that follow the report.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    media: Vec<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    repaired: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    elapsed_ms: Option<u64>,
}

impl ActionReport {
    fn new(call: &PlannedCall, one: &ActionResult) -> Self {
        let (success, skipped) = (one.succeeded(), one.skipped);
        Self { id: call.id.clone(), name: one.name.clone(), success, skipped, ..Self::default() }
    }
}

/// The whole answer.
#[derive(Serialize)]
struct ParallelReport {
    results: Vec<ActionReport>,
    total: usize,
    succeeded: usize,
    failed: usize,
    #[serde(skip_serializing_if = "is_zero")]
    skipped: usize,
    elapsed_ms: u64,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// A large result that is shown only in part or by its reference.
#[derive(Default, Serialize)]
struct Truncated {
    truncated: bool,
    #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
    reference: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lasts: Option<&'static str>,
    bytes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    begins: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    not_kept: Option<String>,
}

impl Gateway {
    /// Builds the answer of `run_parallel`: one JSON object, then pictures and sound. All results share one budget:
    /// small results are shown whole, and the large ones share the rest. A result that only other calls use is kept and
    /// shortened. An `error` is a fault of Nonet's; what a server says of a failure is a result.
    pub(super) async fn report(
        &self,
        caller: &Caller,
        plan: &Plan,
        ended: Vec<ActionResult>,
        elapsed: Duration,
    ) -> Value {
        let sizes: Vec<usize> =
            ended.iter().map(|one| if one.skipped { 0 } else { json_len(&one.result) }).collect();
        let budget = caller.limits.max_result_bytes;
        let share = fair_share(&sizes, budget).max(LEAST_SHARE);
        let count = |outcome| ended.iter().filter(|one| one.outcome() == outcome).count();
        let (total, succeeded, skipped) =
            (ended.len(), count(CallOutcome::Succeeded), count(CallOutcome::Skipped));
        let (mut left, mut results, mut media) = (budget, Vec::with_capacity(total), Vec::new());
        for (at, (mut one, size)) in ended.into_iter().zip(sizes).enumerate() {
            let call = &plan.calls()[at];
            let mut entry = ActionReport::new(call, &one);
            entry.elapsed_ms = Some(one.elapsed_ms);
            entry.repaired = std::mem::take(&mut one.repaired);
            if is_fault(&one.result) {
                let result = Arc::unwrap_or_clone(one.result).into();
                let shown = self.kept.fit(&caller.owner(), result, size, share).await;
                entry.error = Some(error_of(&shown.into_tree().await));
            } else if !entry.skipped {
                let own = results::take_media(&mut one.result);
                if !own.is_empty() {
                    entry.media = own.iter().map(|block| block["mimeType"].clone()).collect();
                    let note = format!("From the action `{}` ({}):", entry.id, entry.name);
                    media.push(json!({ "type": "text", "text": note }));
                    media.extend(own);
                }
                let passed_on =
                    entry.success && plan.is_used(at) && call.select.is_none() && size > PASSED_ON;
                let shown = match passed_on {
                    true => self.in_short(caller, &one.result, size).await,
                    false => self.compact(caller, one.result, share).await,
                };
                let only_media = shown == "" && !entry.media.is_empty();
                entry.result = (!only_media).then(|| within(shown, left, size));
            }
            left = left.saturating_sub(json_len(&json!(entry)));
            results.push(entry);
        }
        let failed = total - succeeded - skipped;
        let report =
            ParallelReport { results, total, succeeded, failed, skipped, elapsed_ms: millis(elapsed) };
        let mut blocks = vec![json!({ "type": "text", "text": json!(report).to_string() })];
        blocks.append(&mut media);
        json!({ "content": blocks })
    }

    /// Keeps a result that other calls have used, and returns its beginning and a reference to it.
    async fn in_short(&self, caller: &Caller, result: &Arc<Value>, bytes: usize) -> Value {
        let begins = Some(clip(&results::text_of_value(result), PASSED_ON));
        let (reference, lasts, not_kept) = match self.kept.keep(&caller.owner(), result.clone()).await {
            Ok(kept) => (Some(kept.reference.clone()), kept.passing(), None),
            Err(why) => (None, None, Some(why.to_string())),
        };
        json!(Truncated { truncated: true, reference, lasts, bytes, begins, not_kept })
    }

    /// Shows a result inside a larger answer: as its value if the value says everything, else as its blocks. The model
    /// reads all of it as text, so the budget applies to all of it.
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
            return self.kept.fit(&caller.owner(), text.into(), size, budget).await.into_tree().await;
        }
        let size = json_len(&result);
        let result = Arc::unwrap_or_clone(result).into();
        let mut whole = self.kept.fit(&caller.owner(), result, size, budget).await.into_tree().await;
        if let Some(fields) = whole.as_object_mut() {
            fields.remove("resultType");
        }
        whole
    }
}

/// Returns a result as shown, or only its reference if it is a preview that no longer fits: text inside text needs more
/// room.
fn within(mut shown: Value, left: usize, bytes: usize) -> Value {
    match take_reference(&mut shown) {
        Some(reference) if json_len(&shown) > left => {
            let reference = Some(reference);
            json!(Truncated { truncated: true, reference, bytes, ..Truncated::default() })
        }
        _ => shown,
    }
}

/// The progress of a plan: each finished call as the report shows it, but without large results.
#[derive(Clone, Debug)]
pub(crate) struct SoFar {
    ended: Arc<Mutex<Vec<Option<ActionReport>>>>,
    /// How many items of each call have ended, and how many there are.
    items: Arc<Mutex<BTreeMap<usize, (usize, usize)>>>,
    plan: Arc<Plan>,
}

/// The progress as answers show it.
#[derive(Serialize)]
struct PlanProgress {
    ended: usize,
    total: usize,
    /// The calls that process a list.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    items: BTreeMap<String, ItemProgress>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    results: Vec<ActionReport>,
}

#[derive(Serialize)]
struct ItemProgress {
    ended: usize,
    total: usize,
}

impl SoFar {
    pub fn new(plan: &Arc<Plan>) -> Self {
        let ended = Arc::new(Mutex::new(vec![None; plan.calls().len()]));
        Self { ended, items: Arc::default(), plan: plan.clone() }
    }

    /// Records a call's progress in its list.
    pub(super) fn items(&self, at: usize, ended: usize, total: usize) {
        self.items.lock().insert(at, (ended, total));
    }

    pub(super) fn end(&self, at: usize, one: &ActionResult) {
        let mut entry = ActionReport::new(&self.plan.calls()[at], one);
        let small = |value: &Value| json_len(value) <= PARTIAL_BYTES;
        if entry.skipped {
            // A skipped call has no result.
        } else if is_fault(&one.result) {
            let error = error_of(&one.result);
            entry.error = Some(if small(&error) { error } else { json!({ "code": error["code"] }) });
        } else if small(&one.result) {
            entry.result = Some(value_of(&one.result));
        }
        self.ended.lock()[at] = Some(entry);
    }

    /// Returns how many calls have ended.
    pub fn counts(&self) -> Value {
        self.progress(0)
    }

    /// Returns the progress with the finished calls whose results are small.
    pub(super) fn report(&self) -> Value {
        self.progress(PARTIAL_TOTAL)
    }

    fn progress(&self, budget: usize) -> Value {
        let all = self.ended.lock().clone();
        let (ended, total) = (all.iter().flatten().count(), all.len());
        let mut left = budget;
        let results = all
            .into_iter()
            .flatten()
            .filter(|entry| match left.checked_sub(json_len(&json!(entry))) {
                Some(rest) => {
                    left = rest;
                    true
                }
                None => false,
            })
            .collect();
        let items = self.items.lock();
        let items = items.iter().map(|(at, (ended, total))| {
            (self.plan.calls()[*at].id.clone(), ItemProgress { ended: *ended, total: *total })
        });
        json!(PlanProgress { ended, total, items: items.collect(), results })
    }
}
