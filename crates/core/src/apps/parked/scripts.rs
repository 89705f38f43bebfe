//! The records of scripts: what they are, and the answers that they got.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use nonet_base::clock::millis;
use nonet_config::workflow::StepOutcome;
use nonet_state::session::Caller;
use nonet_text::fault::{Fault, FaultCode};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::{ANY_CLIENT, Checkpoints, ParkedFlow, ParkedFlows, ParkedStep, answerer, keep_part, not_kept};
use crate::{
    AskArguments,
    apps::{
        Apps,
        script::{DoneRequest, KeptScript, ScriptRun, ScriptState},
    },
    graph::{Journal, OpenQuestion},
};

/// The maximum size of all answers of one script, in bytes of JSON.
pub(super) const MAX_LEDGER: usize = 64 << 20;

/// How many bytes of notes about larger answers it may have beside them.
const BESIDE: usize = 4 << 20;

/// What waits to be kept.
#[derive(Default)]
struct Unkept {
    parts: Vec<(String, Value)>,
    /// Whether a call among them is about to be sent: that is to be on the disk, so that not even a power cut
    /// lets it be made twice.
    has_call: bool,
}

/// The record of one script, which this gateway holds once it is stored.
pub(crate) struct ScriptRecord {
    pub id: String,
    /// The account that may answer; see [`answerer`].
    by: Option<String>,
    checkpoints: Arc<Checkpoints>,
    /// Whether an earlier run has stored it, and whether this run has.
    was_stored: bool,
    is_stored: OnceCell<()>,
    /// The number of its next question.
    next_question: usize,
    unkept: Mutex<Unkept>,
    /// The turn to write, with why an earlier write failed: a later answer is worth nothing without it.
    writer: tokio::sync::Mutex<Option<String>>,
}

impl ScriptRecord {
    fn of(checkpoints: Checkpoints, by: Option<String>, was_stored: bool, next_question: usize) -> Self {
        Self {
            id: checkpoints.id.clone(),
            by,
            checkpoints: Arc::new(checkpoints),
            was_stored,
            is_stored: OnceCell::new(),
            next_question,
            unkept: Mutex::default(),
            writer: tokio::sync::Mutex::default(),
        }
    }

    /// Returns the places of the answers that the script got, each with its number.
    pub(crate) fn answers(&self) -> Vec<(String, u64)> {
        let all = self.checkpoints.before.iter();
        all.filter_map(|(place, step)| Some((place.clone(), step.got?.0))).collect()
    }

    /// Returns an answer of an earlier run, and when the script got it.
    pub(crate) fn earlier(&self, place: &str) -> Option<(DoneRequest, u64)> {
        let step = self.checkpoints.before.get(place)?;
        let (_, at_ms) = step.got?;
        let mut kept = step.result.clone();
        let mut taken = |key: &str| kept.get_mut(key).map(Value::take);
        let answer = match taken("error") {
            Some(error) => Err(error),
            None => Ok(taken("value").unwrap_or_default()),
        };
        let params = taken("params").and_then(|params| params.as_str().map(String::from)).unwrap_or_default();
        let done = DoneRequest {
            name: step.name.clone(),
            params,
            is_call: step.calls > 0,
            changes: step.result["changes"] == true,
            is_earlier: true,
            is_final: step.result["final"] == true,
            answer: Arc::new(answer),
        };
        Some((done, at_ms))
    }

    /// Whether the call at a place was in flight when the earlier run was cut off.
    pub(crate) fn was_cut_off(&self, place: &str) -> bool {
        self.checkpoints.before.get(place).is_some_and(|step| step.outcome == StepOutcome::Open)
    }

    /// Returns the user's answer to a question of the gateway about this script.
    pub(crate) fn said(&self, question: &str) -> Option<String> {
        let step = self.checkpoints.before.get(&said_at(question))?;
        Some(step.result["value"].as_str().unwrap_or_default().into())
    }

    /// Returns the journal of the apps that the script calls.
    pub(crate) fn journal(&self) -> Arc<dyn Journal> {
        self.checkpoints.clone()
    }

    /// Whether an earlier run has begun it.
    pub(crate) fn is_continued(&self) -> bool {
        self.was_stored
    }

    /// Whether it is in the store.
    fn is_there(&self) -> bool {
        self.was_stored || self.is_stored.initialized()
    }

    /// Removes the record of a script that has ended.
    pub(crate) async fn forget(&self) {
        if self.is_there() {
            self.checkpoints.forget().await;
        }
    }

    /// Lets another run continue.
    pub(crate) async fn free(&self) {
        self.checkpoints.free().await;
    }
}

/// Returns the digest of a script with its input.
pub(crate) fn digest_of(app_id: &str, script: &str, input: &Value) -> String {
    crate::graph::digest(&json!([app_id, script, input]))
}

/// Returns the place of the answer to a question of the gateway.
fn said_at(question: &str) -> String {
    format!("said {}", crate::graph::digest(&json!(question)))
}

impl ParkedFlows {
    /// Returns the record of a script that begins.
    pub(crate) fn record(&self, caller: &Caller) -> ScriptRecord {
        let id = self.new_id();
        ScriptRecord::of(self.checkpoints(caller.owner().key(), &id, 0), answerer(caller), false, 0)
    }

    /// Returns the run with this digest that was cut off with its gateway.
    ///
    /// # Errors
    ///
    /// `needs_approval` if the same script waits for its user.
    pub(crate) async fn cut_off(&self, caller: &Caller, digest: &str) -> Result<Option<ScriptRun>, Fault> {
        let owner = caller.owner();
        if self.0.records.count_of(self.0.kind, owner.key()).await.map_err(not_kept)? == 0 {
            return Ok(None);
        }
        let all = self.0.records.all(self.0.kind, owner.key()).await.map_err(not_kept)?;
        for record in all.iter().rev().filter(|record| record.body["digest"] == *digest) {
            let Ok((record, flow)) = self.get(owner.key(), &record.id).await else { continue };
            let Some(script) = flow.script.clone().filter(|_| flow.by == answerer(caller)) else { continue };
            match script.state {
                ScriptState::Stopped => {}
                ScriptState::Waiting => {
                    let token = super::Token::of(&record.id, flow.answered);
                    let message = "This script, with this input, already waits for the user's answer.";
                    let fault = Fault::new(FaultCode::NeedsApproval, message);
                    return Err(fault.next("ask_user", json!({ "token": token })));
                }
                // Who looks again and again wants to see what is there now.
                ScriptState::Running | ScriptState::Cancelled if caller.session.unattended => {}
                ScriptState::Running | ScriptState::Cancelled => {
                    if let Some(checkpoints) = self.held(&record).await? {
                        let answers = checkpoints.before.len();
                        tracing::info!(id = record.id, answers, "a script goes on that was cut off");
                        return Ok(Some(self.run_of(flow, script, checkpoints)));
                    }
                }
            }
        }
        Ok(None)
    }

    /// Returns a script that has stopped early, to continue it. Its failed calls are made again.
    pub(crate) async fn stopped(&self, caller: &Caller, token: &str) -> Result<ScriptRun, Fault> {
        let gone = || {
            let message = "No script with this token has stopped early: it has ended, or was dropped a day after it began. Run it from the beginning.";
            Fault::new(FaultCode::NotFound, message)
        };
        let (record, flow) = self.get(caller.owner().key(), token).await.map_err(|_| gone())?;
        if flow.by.as_deref() != Some(ANY_CLIENT) && flow.by != answerer(caller) {
            return Err(gone());
        }
        let script = flow.script.clone().ok_or_else(gone)?;
        if script.state == ScriptState::Waiting {
            let message = "The script waits for the user's answer.";
            return Err(
                Fault::new(FaultCode::NeedsApproval, message).next("ask_user", json!({ "token": token }))
            );
        }
        let Some(mut checkpoints) = self.held(&record).await? else {
            let message = "The script is still running.";
            return Err(Fault::new(FaultCode::RateLimited, message).retry_after(Duration::from_secs(5)));
        };
        if script.state == ScriptState::Stopped {
            self.drop_failed(&mut checkpoints).await;
        }
        Ok(self.run_of(flow, script, checkpoints))
    }

    async fn drop_failed(&self, checkpoints: &mut Checkpoints) {
        // What ended with an unknown outcome, or was made and could not be held, is not made again.
        let has_failed = |step: &ParkedStep| {
            step.got.is_some() && step.outcome == StepOutcome::Failed && step.result["final"] != true
        };
        let failed: BTreeMap<_, _> = checkpoints.before.extract_if(.., |_, step| has_failed(step)).collect();
        for place in failed.keys() {
            if let Err(error) = self.0.records.take(self.0.kind, &checkpoints.id, place).await {
                tracing::warn!(%error, "a failed call of a script was not forgotten");
            }
        }
    }

    fn run_of(&self, flow: ParkedFlow, kept: KeptScript, checkpoints: Checkpoints) -> ScriptRun {
        let record = ScriptRecord::of(checkpoints, flow.by.clone(), true, flow.answered.saturating_add(1));
        // Who cancels takes back what was allowed.
        let grants = if kept.state == ScriptState::Cancelled { Value::Null } else { flow.grants };
        ScriptRun {
            kept: KeptScript { state: ScriptState::Running, open: None, ..kept },
            app_id: flow.app_id,
            input: flow.input,
            timeout: Duration::from_millis(flow.timeout_ms),
            left: Duration::from_millis(flow.left_ms),
            grants,
            record,
        }
    }

    /// Returns the run of a script whose user has answered.
    pub(super) async fn answered_run(
        &self,
        flow: ParkedFlow,
        kept: KeptScript,
        mut checkpoints: Checkpoints,
    ) -> Result<ScriptRun, Fault> {
        if let (Some(place), Some(answer)) = (&kept.open, &flow.answer) {
            let said = crate::apps::script::said(answer);
            let number =
                checkpoints.before.values().filter_map(|step| step.got).map(|(number, _)| number).max();
            let got = Some((number.map_or(0, |last| last.saturating_add(1)), self.0.clock.unix_ms()));
            let (outcome, result) = match said {
                Ok(value) => (StepOutcome::Succeeded, json!({ "value": value })),
                Err(fault) => (StepOutcome::Failed, json!({ "error": fault.to_value()["error"] })),
            };
            // The answer to the gateway's own question is no answer of the script.
            let is_own = place.starts_with("call ");
            let place = if is_own { said_at(&flow.ask.in_chat().message) } else { place.clone() };
            let step = ParkedStep {
                outcome,
                result,
                got: got.filter(|_| !is_own),
                ..ParkedStep::part(&place, "ask")
            };
            // One that was cut off after the answer has it already, with its number and time.
            if !checkpoints.before.contains_key(&place) {
                let kept =
                    keep_part(&self.0.records, self.0.kind, &checkpoints.id, place.clone(), json!(step));
                kept.await.map_err(unkept)?;
                checkpoints.before.insert(place, step);
            }
        }
        Ok(self.run_of(flow, kept, checkpoints))
    }

    /// Stores the record of a script once it has something to lose.
    pub(crate) async fn store_script(&self, run: &ScriptRun) -> Result<(), Fault> {
        let store = async || {
            let record = &run.record;
            let flow = run.flow(ScriptState::Running, run.left);
            self.put(&record.checkpoints.owner, Some(&record.id), &flow, true).await?;
            record.checkpoints.is_held.store(true, Ordering::Release);
            Ok(())
        };
        run.record.is_stored.get_or_try_init(store).await.map(|_| ())
    }

    /// Notes an answer that the script gets, for [`ParkedFlows::keep_noted`].
    ///
    /// # Errors
    ///
    /// If the script has so many answers that not even a note about this one fits.
    pub(crate) fn note_answer(
        &self,
        run: &ScriptRun,
        place: &str,
        done: &DoneRequest,
        got: (u64, u64),
    ) -> Result<(), Fault> {
        let mut result = match &*done.answer {
            Ok(value) => json!({ "value": value }),
            Err(error) => json!({ "error": error }),
        };
        if done.is_call {
            result["params"] = json!(done.params);
        }
        if done.changes {
            result["changes"] = json!(true);
        }
        if done.is_final {
            result["final"] = json!(true);
        }
        let outcome = if done.answer.is_ok() { StepOutcome::Succeeded } else { StepOutcome::Failed };
        let calls = usize::from(done.is_call);
        let part =
            ParkedStep { outcome, result, calls, got: Some(got), ..ParkedStep::part(place, &done.name) };
        let mut body = json!(part);
        if !run.record.checkpoints.has_room(&body, MAX_LEDGER) {
            // Known to have ended, so that it is not made again.
            let message =
                format!("`{}` was called, but its result was too large to keep for a later run.", done.name);
            let error = Fault::new(FaultCode::NotFound, message).to_value()["error"].take();
            let part = ParkedStep {
                outcome: StepOutcome::Failed,
                result: json!({ "error": error, "final": true }),
                calls,
                got: Some(got),
                ..ParkedStep::part(place, &done.name)
            };
            body = json!(part);
            if !run.record.checkpoints.has_room(&body, MAX_LEDGER + BESIDE) {
                return Err(unkept(format!("they have more than {MAX_LEDGER} bytes")));
            }
        }
        run.record.unkept.lock().parts.push((place.into(), body));
        Ok(())
    }

    /// Notes that a call which changes something is about to be sent, for [`ParkedFlows::keep_noted`].
    pub(crate) fn note_call(&self, run: &ScriptRun, place: &str, tool: &str) {
        let part = ParkedStep { outcome: StepOutcome::Open, calls: 1, ..ParkedStep::part(place, tool) };
        let mut noted = run.record.unkept.lock();
        noted.parts.push((place.into(), json!(part)));
        noted.has_call = true;
    }

    /// Keeps what was noted, in one write. Calls that may change something, questions and the end wait for it,
    /// so that a run that is repeated knows every answer that had an effect.
    pub(crate) async fn keep_noted(&self, run: &ScriptRun) -> Result<(), Fault> {
        let mut failed = run.record.writer.lock().await;
        if let Some(why) = &*failed {
            return Err(unkept(why.clone()));
        }
        if run.record.unkept.lock().parts.is_empty() {
            return Ok(());
        }
        self.store_script(run).await?;
        let Unkept { parts, has_call } = std::mem::take(&mut *run.record.unkept.lock());
        let Checkpoints { records, kind, .. } = &*run.record.checkpoints;
        let kept = records.put_parts(*kind, &run.record.id, parts, !has_call).await;
        kept.map_err(|error| unkept(failed.insert(error.to_string()).clone()))
    }

    /// Takes the note back: the call was not made.
    pub(crate) async fn unmark_call(&self, run: &ScriptRun, place: &str) {
        if let Err(error) = self.0.records.take(self.0.kind, &run.record.id, place).await {
            tracing::warn!(%error, "a call that was not made counts as cut off if the script is repeated");
        }
    }

    /// Keeps a script that has stopped early, or was cancelled. Returns the token with which it goes on, if
    /// there is anything to go on from.
    pub(crate) async fn set_script_aside(
        &self,
        run: &ScriptRun,
        state: ScriptState,
        grants: Value,
        left: Duration,
    ) -> Option<String> {
        let record = &run.record;
        if !record.is_there() {
            return None;
        }
        let flow = ParkedFlow { grants, ..run.flow(state, left) };
        let put = self.put(&record.checkpoints.owner, Some(&record.id), &flow, false).await;
        match put {
            Ok(id) => {
                record.checkpoints.is_held.store(false, Ordering::Release);
                Some(id)
            }
            Err(fault) => {
                record.free().await;
                tracing::warn!(fault = fault.message, "a script that has stopped was not kept");
                None
            }
        }
    }
}

/// Builds the fault for an answer or a note that the store did not take.
fn unkept(why: String) -> Fault {
    let message = format!("The script was stopped, because its answers cannot be kept: {why}.");
    Fault::new(FaultCode::Internal, message)
}

impl ParkedStep {
    fn part(place: &str, name: &str) -> Self {
        Self {
            id: place.into(),
            outcome: StepOutcome::Succeeded,
            name: name.into(),
            result: Value::Null,
            repaired: Vec::new(),
            calls: 0,
            items: None,
            declined: None,
            elapsed_ms: 0,
            got: None,
        }
    }
}

impl ScriptRun {
    /// Returns the digest of what the script does: its text and its input.
    pub(crate) fn digest(&self) -> String {
        digest_of(&self.app_id, &self.kept.script, &self.input)
    }

    /// Returns the script as its record has it.
    fn flow(&self, state: ScriptState, left: Duration) -> ParkedFlow {
        ParkedFlow {
            app_id: self.app_id.clone(),
            actions: None,
            script: Some(KeptScript { state, open: None, ..self.kept.clone() }),
            by: self.record.by.clone(),
            digest: self.digest(),
            input: self.input.clone(),
            ended: Vec::new(),
            step: String::new(),
            ask: AskArguments::default(),
            approval: None,
            grants: self.grants.clone(),
            answered: self.record.next_question.saturating_sub(1),
            timeout_ms: millis(self.timeout),
            left_ms: millis(left),
            answer: None,
            by_whom: None,
        }
    }
}

impl Apps {
    /// Parks a script until the user answers. Returns the question.
    pub(crate) async fn park_script(
        &self,
        caller: &Caller,
        run: ScriptRun,
        question: OpenQuestion,
        place: String,
        left: Duration,
    ) -> Value {
        let (ask, approval, open) = match question {
            OpenQuestion::Ask(ask) => (ask, None, Some(place)),
            OpenQuestion::Approve(asked) => {
                (AskArguments::question(asked.message.clone()), Some(asked), None)
            }
        };
        let grants = caller.run.as_ref().map(|run| run.kept()).unwrap_or_default();
        let mut script = KeptScript { state: ScriptState::Waiting, open, ..run.kept.clone() };
        let is_settled = |tool: &Arc<str>| {
            approval.as_ref().is_some_and(|asked| asked.tool == *tool) || grants.get(&**tool).is_some()
        };
        script.asks_about.retain(|tool| !is_settled(tool));
        let step = approval.as_ref().map_or_else(|| run.kept.name().into(), |asked| asked.tool.to_string());
        let answered = run.record.next_question;
        let parked = ParkedFlow {
            script: Some(script),
            step,
            ask,
            approval,
            grants,
            answered,
            ..run.flow(ScriptState::Waiting, left)
        };
        let before = run.record.is_there().then_some(&*run.record.checkpoints);
        match self.parked_flow(caller, parked, before, Some(&run.record.id)).await {
            Ok((id, parked)) => self.asked_about(caller, &id, &parked).await,
            Err(result) => result,
        }
    }
}
