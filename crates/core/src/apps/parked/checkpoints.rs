//! The record of a continued workflow, which keeps finished steps.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use futures::future::BoxFuture;
use nonet_store::{RecordKind, Records};
use nonet_text::{
    fault::{Fault, FaultCode},
    results::json_len,
};
use serde_json::{Value, json};

use super::{MAX_BYTES, ParkedStep, Token, is_over, keep_part, scripts::MAX_LEDGER};
use crate::graph::{ActionResult, Journal};

/// The record of a continued workflow. If it is dropped before the end, the next holder of the token may
/// continue.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    pub(super) records: Arc<Records>,
    pub(super) kind: RecordKind,
    pub(super) owner: String,
    pub(super) id: String,
    /// How many questions were answered before the last one.
    pub(super) answered: usize,
    /// The steps that ended in runs that were cut off.
    pub(super) before: BTreeMap<String, ParkedStep>,
    /// The total size of the parts.
    pub(super) bytes: AtomicUsize,
    pub(super) is_held: AtomicBool,
}

impl Checkpoints {
    /// Whether a part fits into the space of the run, which it then takes.
    pub(super) fn has_room(&self, body: &Value, most: usize) -> bool {
        let size = json_len(body);
        let fits = self.bytes.fetch_add(size, Ordering::AcqRel).saturating_add(size) <= most;
        if !fits {
            self.bytes.fetch_sub(size, Ordering::AcqRel);
        }
        fits
    }

    /// Removes the record of a finished workflow.
    pub(crate) async fn forget(&self) {
        match self.records.take(self.kind, &self.owner, &self.id).await {
            Ok(_) => self.is_held.store(false, Ordering::Release),
            Err(error) => tracing::warn!(%error, "the state of an app that has ended was not removed"),
        }
    }

    /// Keeps a workflow that was cut off. Returns a fault that says how to continue.
    pub(crate) async fn set_aside(&self, app: &str) -> Fault {
        self.free().await;
        let message = format!(
            "`{app}` was cancelled. Its progress is kept: call ask_user with this `token` to continue from there."
        );
        Fault::new(FaultCode::Cancelled, message).next("ask_user", self.way_on())
    }

    pub(super) fn way_on(&self) -> Value {
        json!({ "token": Token::of(&self.id, self.answered) })
    }

    pub(super) async fn free(&self) {
        if self.is_held.swap(false, Ordering::AcqRel) {
            free(&self.records, self.kind, &self.owner, &self.id).await;
        }
    }

    /// Releases a record that has a new question.
    pub(super) async fn asked_again(&self, ended: &[ParkedStep]) {
        self.is_held.store(false, Ordering::Release);
        let kept = match self.records.all(self.kind, &self.id).await {
            Ok(kept) => kept,
            Err(error) => return tracing::warn!(%error, "the earlier state of an app was not removed"),
        };
        // The record itself contains the steps that have ended; what ended inside the other steps is still
        // needed.
        for part in kept.iter().filter(|part| is_over(&part.id, ended)) {
            if let Err(error) = self.records.take(self.kind, &self.id, &part.id).await {
                tracing::warn!(%error, "the earlier state of an app was not removed");
            }
        }
    }
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        // Without a runtime, the hold ends with the process.
        if self.is_held.load(Ordering::Acquire)
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let (records, kind) = (self.records.clone(), self.kind);
            let (owner, id) = (std::mem::take(&mut self.owner), std::mem::take(&mut self.id));
            runtime.spawn(async move { free(&records, kind, &owner, &id).await });
        }
    }
}

async fn free(records: &Records, kind: RecordKind, owner: &str, id: &str) {
    if let Err(error) = records.free(kind, owner, vec![id.into()]).await {
        tracing::warn!(%error, "the state of an app was not released for another gateway");
    }
}

impl Journal for Checkpoints {
    fn ended<'a>(&'a self, place: String, one: &'a ActionResult, is_needed: bool) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let body = json!(ParkedStep::of(&place, one, is_needed));
            let most = if self.kind == RecordKind::Script { MAX_LEDGER } else { MAX_BYTES };
            if self.has_room(&body, most) {
                // The run still continues; the call is repeated only if the run is cut off.
                if let Err(why) = keep_part(&self.records, self.kind, &self.id, place, body).await {
                    tracing::warn!(why, "the result of a step was not kept");
                }
            } else {
                tracing::warn!(place, "the result of a step is too large to be kept");
            }
        })
    }

    fn before(&self, place: &str) -> Option<ActionResult> {
        Some(self.before.get(place)?.clone().into_result())
    }
}
