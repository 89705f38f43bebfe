//! The journal: finished calls, stored beyond the life of the process.

use std::{collections::BTreeMap, fmt::Debug, sync::Arc};

use futures::future::BoxFuture;
use nonet_base::text::hex;
use nonet_config::workflow::StepOutcome;
use nonet_text::fault::FaultCode;
use parking_lot::Mutex;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::ActionResult;
use crate::apps::Apps;
use nonet_state::faults::error_of;

/// Stores finished calls, each under its place in the run.
pub(crate) trait Journal: Debug + Send + Sync {
    /// Stores a finished call, with its value only if it is needed.
    fn ended<'a>(&'a self, place: String, one: &'a ActionResult, is_needed: bool) -> BoxFuture<'a, ()>;

    /// Returns the result of a call that ended in an earlier run.
    fn before(&self, place: &str) -> Option<ActionResult>;
}

/// A journal at one place: a plan, a call, an item of a call, or an app inside another app.
#[derive(Clone, Debug)]
pub(crate) struct RunLog {
    journal: Arc<dyn Journal>,
    path: Vec<Value>,
}

impl RunLog {
    /// Creates the journal of a whole run.
    pub(crate) fn new(journal: Arc<dyn Journal>) -> Self {
        Self { journal, path: Vec::new() }
    }

    /// Returns the journal of a part.
    pub(crate) fn part(&self, part: impl Into<Value>) -> Self {
        let mut path = self.path.clone();
        path.push(part.into());
        Self { journal: self.journal.clone(), path }
    }

    /// Returns the journal of an item. A different item at the same position has a different journal.
    pub(crate) fn item(&self, at: usize, item: &Value) -> Self {
        self.part(json!([at, digest(item)]))
    }

    /// Whether it is of a part of the run.
    pub(crate) fn is_part(&self) -> bool {
        !self.path.is_empty()
    }

    /// Returns this call's result from an earlier run.
    pub(crate) fn before(&self) -> Option<ActionResult> {
        self.journal.before(&place(&self.path))
    }
}

/// Returns the place of a call as text.
pub(crate) fn place(path: &[Value]) -> String {
    json!(path).to_string()
}

/// Returns a digest of a value.
pub(crate) fn digest(value: &Value) -> String {
    hex(&Sha256::digest(value.to_string().as_bytes()))
}

/// A journal in memory, of a run that may have to wait for the user.
#[derive(Debug, Default)]
pub(crate) struct MemoryJournal(Mutex<BTreeMap<String, (ActionResult, bool)>>);

impl MemoryJournal {
    /// Returns the finished calls with their places, and whether their values are needed.
    pub(crate) fn all(&self) -> BTreeMap<String, (ActionResult, bool)> {
        self.0.lock().clone()
    }
}

impl Journal for MemoryJournal {
    fn ended<'a>(&'a self, place: String, one: &'a ActionResult, is_needed: bool) -> BoxFuture<'a, ()> {
        let mut all = self.0.lock();
        // The result of a call has those of its items and of the steps of its app.
        let inner = format!("{},", place.strip_suffix(']').unwrap_or(&place));
        let of_call = all.range(inner.clone()..).map(|(place, _)| place);
        let of_call: Vec<String> = of_call.take_while(|place| place.starts_with(&inner)).cloned().collect();
        for place in of_call {
            all.remove(&place);
        }
        all.insert(place, (one.clone(), is_needed));
        Box::pin(std::future::ready(()))
    }

    fn before(&self, place: &str) -> Option<ActionResult> {
        self.0.lock().get(place).map(|(one, _)| one.clone())
    }
}

impl Apps {
    /// Stores a finished call before its result is used. A call that was cut off is not stored, so it is
    /// repeated.
    pub(super) async fn log_end(&self, log: Option<&RunLog>, one: &ActionResult, is_needed: bool) {
        let Some(log) = log else { return };
        let is_over = match (one.outcome(), &one.declined) {
            (StepOutcome::Open, _) => false,
            (StepOutcome::Failed, Some(said)) => said["status"] != "cancelled",
            (StepOutcome::Failed, None) => {
                let was_cut_off = error_of(&one.result)["code"] == FaultCode::Cancelled.as_str();
                !was_cut_off && !self.servers.stopping().is_cancelled()
            }
            (StepOutcome::Succeeded | StepOutcome::Skipped, _) => true,
        };
        if is_over {
            log.journal.ended(place(&log.path), one, is_needed).await;
        }
    }
}
