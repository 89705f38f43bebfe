//! The answers of `run_parallel`: at its end, and while it runs.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use nonet_base::clock::millis;
use nonet_config::workflow::Plan;
use nonet_text::results::{self, fair_share, is_error, is_fault, json_len, take_reference, value_of};
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Value, json};

use super::{ActionResult, ItemCounts};
use crate::{apps::Apps, call::text_result};
use nonet_state::{faults::error_of, session::Caller};

/// Results up to this size, in bytes, are shown while other calls still run, and the limit for all of them
/// together.
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
    /// How the items of its list ended, if not all of them succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    items: Option<ItemCounts>,
    /// The calls that use its result, which is named instead of shown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    used_by: Vec<String>,
    #[serde(flatten)]
    named: Option<NamedResult>,
    /// The MIME types of the pictures and sound that follow the report.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    media: Vec<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Value>,
    /// Whether the tool's own error says by its words that it passes.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    retryable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    repaired: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    elapsed_ms: Option<u64>,
}

impl ActionReport {
    fn new(plan: &Plan, at: usize, one: &ActionResult) -> Self {
        let (success, skipped) = (one.succeeded() && !one.failed(), one.skipped);
        let used_by = match is_named_only(plan, at, one) {
            true => plan.users(at).map(String::from).collect(),
            false => Vec::new(),
        };
        let (id, name, items) = (plan.calls()[at].id.clone(), one.name.clone(), one.items);
        Self { id, name, success, skipped, items, used_by, ..Self::default() }
    }
}

/// Whether a result is only named, because another call uses it and nobody asked to see it.
fn is_named_only(plan: &Plan, at: usize, one: &ActionResult) -> bool {
    one.succeeded() && !one.failed() && plan.is_used(at) && !plan.calls()[at].show
}

/// A result that is named instead of shown.
#[derive(Clone, Debug, Default, Serialize)]
struct NamedResult {
    #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
    reference: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lasts: Option<&'static str>,
    bytes: usize,
    /// The length of a list.
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    not_kept: Option<String>,
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

pub(super) fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// A large result that no longer fits, by its reference.
#[derive(Serialize)]
struct TruncatedResult {
    truncated: bool,
    #[serde(rename = "ref")]
    reference: String,
    bytes: usize,
}

impl Apps {
    /// Builds the answer of `run_parallel`: one JSON object, then pictures and sound. All results share one
    /// budget: small results are shown whole, and the large ones share the rest. A result that other calls
    /// use is kept and named. An `error` is a fault of Nonet's; what a server says of a failure is a result.
    pub(super) async fn report(
        &self,
        caller: &Caller,
        plan: &Plan,
        ended: Vec<ActionResult>,
        elapsed: Duration,
    ) -> Value {
        let size = |(at, one): (usize, &ActionResult)| match one.skipped || is_named_only(plan, at, one) {
            true => 0,
            false => json_len(&one.result),
        };
        let sizes: Vec<usize> = ended.iter().enumerate().map(size).collect();
        let budget = caller.limits.max_result_bytes;
        let share = fair_share(&sizes, budget).max(LEAST_SHARE);
        let count = |is: fn(&ActionResult) -> bool| ended.iter().filter(|one| is(one)).count();
        let (total, failed, skipped) = (ended.len(), count(ActionResult::failed), count(|one| one.skipped));
        let (mut left, mut results, mut media) = (budget, Vec::with_capacity(total), Vec::new());
        for (at, (mut one, size)) in ended.into_iter().zip(sizes).enumerate() {
            let mut entry = ActionReport::new(plan, at, &one);
            entry.elapsed_ms = Some(one.elapsed_ms);
            entry.repaired = std::mem::take(&mut one.repaired);
            if is_fault(&one.result) {
                let result = Arc::unwrap_or_clone(one.result).into();
                let shown = self.keeping.kept.fit(&caller.owner(), result, size, share).await;
                entry.error = Some(error_of(&shown.into_tree().await));
            } else if !entry.used_by.is_empty() {
                entry.named = Some(self.named(caller, one.result).await);
            } else if !entry.skipped {
                entry.retryable = is_error(&one.result) && error_of(&one.result)["retryable"] == true;
                let own = results::take_media(&mut one.result);
                if !own.is_empty() {
                    entry.media = own.iter().map(|block| block["mimeType"].clone()).collect();
                    let note = format!("From the action `{}` ({}):", entry.id, entry.name);
                    media.push(json!({ "type": "text", "text": note }));
                    media.extend(own);
                }
                let shown = self.compact(caller, one.result, share).await;
                let only_media = shown == "" && !entry.media.is_empty();
                entry.result = (!only_media).then(|| within(shown, left, size));
            }
            left = left.saturating_sub(json_len(&json!(entry)));
            results.push(entry);
        }
        let succeeded = total - failed - skipped;
        let report =
            ParallelReport { results, total, succeeded, failed, skipped, elapsed_ms: millis(elapsed) };
        let mut blocks = vec![json!({ "type": "text", "text": json!(report).to_string() })];
        blocks.append(&mut media);
        json!({ "content": blocks })
    }

    /// Keeps a result that other calls have used, and names it.
    async fn named(&self, caller: &Caller, result: Arc<Value>) -> NamedResult {
        let value = value_of(&result);
        let (bytes, count) = (json_len(&value), value.as_array().map(Vec::len));
        let named = NamedResult { bytes, count, ..NamedResult::default() };
        match self.keeping.kept.keep(&caller.owner(), result).await {
            Ok(kept) => NamedResult { lasts: kept.passing(), reference: Some(kept.reference), ..named },
            Err(why) => NamedResult { not_kept: Some(why.to_string()), ..named },
        }
    }

    /// Shows a result inside a larger answer: as its value if the value says everything, else as its blocks.
    /// The model reads all of it as text, so the budget applies to all of it.
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
            return self.keeping.kept.fit(&caller.owner(), text.into(), size, budget).await.into_tree().await;
        }
        let size = json_len(&result);
        let result = Arc::unwrap_or_clone(result).into();
        let mut whole = self.keeping.kept.fit(&caller.owner(), result, size, budget).await.into_tree().await;
        if let Some(fields) = whole.as_object_mut() {
            fields.remove("resultType");
        }
        whole
    }
}

/// Returns a result as shown, or only its reference if it is a preview that no longer fits: text inside text
/// needs more room.
fn within(mut shown: Value, left: usize, bytes: usize) -> Value {
    match take_reference(&mut shown) {
        Some(reference) if json_len(&shown) > left => {
            json!(TruncatedResult { truncated: true, reference, bytes })
        }
        _ => shown,
    }
}

/// The progress of a plan: each finished call as the report shows it, but without large results.
#[derive(Clone, Debug)]
pub(crate) struct RunProgress {
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

impl RunProgress {
    pub(crate) fn new(plan: &Arc<Plan>) -> Self {
        let ended = Arc::new(Mutex::new(vec![None; plan.calls().len()]));
        Self { ended, items: Arc::default(), plan: plan.clone() }
    }

    /// Records a call's progress in its list.
    pub(super) fn items(&self, at: usize, ended: usize, total: usize) {
        self.items.lock().insert(at, (ended, total));
    }

    pub(super) fn end(&self, at: usize, one: &ActionResult) {
        let mut entry = ActionReport::new(&self.plan, at, one);
        let small = |value: &Value| json_len(value) <= PARTIAL_BYTES;
        if entry.skipped || !entry.used_by.is_empty() {
            // A skipped call has no result, and the report names what other calls use.
        } else if is_fault(&one.result) {
            let error = error_of(&one.result);
            entry.error = Some(if small(&error) { error } else { json!({ "code": error["code"] }) });
        } else if small(&one.result) {
            entry.result = Some(value_of(&one.result));
        }
        self.ended.lock()[at] = Some(entry);
    }

    /// Whether a call has ended.
    pub(super) fn has_ended(&self, at: usize) -> bool {
        self.ended.lock().get(at).is_some_and(Option::is_some)
    }

    /// Returns how many calls have ended.
    pub(crate) fn counts(&self) -> Value {
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
