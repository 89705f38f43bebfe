//! Workflows that wait for the user's answer: parked in the store until it comes, even across a restart.
//!
//! The record keeps what the run needs to continue: the outcomes of the finished steps, the values that later steps
//! see, the question, and the remaining time. Finished steps do not run again.
//!
//! The record stays until the workflow ends. The gateway that received the answer holds the record, and adds each
//! finished step, item or step of an inner app as a part: a small record of its own, so that a long list costs no more
//! per item than a short one. If the run is cut off, the same token continues from there.

mod checkpoints;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize},
    },
    time::Duration,
};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub(in crate::gateway) use self::checkpoints::Checkpoints;
use super::{
    Handing,
    workflow::{Flow, definition, plan},
};
use crate::{
    clock::{Clock, millis},
    config::{AppKind, Step},
    downstream::EscapedTexts,
    fault::{Code, Fault},
    gateway::{
        AskArguments, Gateway,
        call::text_result,
        graph::{ActionResult, RunLog, place, refused_plan},
        interrupt::Interrupt,
        questions::{Question, no_question},
        session::Caller,
    },
    json::set_member,
    results::{is_error, json_len},
    store::{Most, NewRecord, Record, RecordKind, Records, StoreError},
    text::escaped,
    workflow::CallOutcome,
};

/// The prefix of a parked workflow's token.
const TOKEN: &str = "app-";
/// How long a workflow waits for its answer.
const AGE: Duration = Duration::from_secs(24 * 3_600);
/// How many workflows may wait for one owner.
const MAX_PARKED: usize = 100;
/// The maximum size of one workflow's state in bytes of JSON, and of all its parts together.
const MAX_BYTES: usize = 16 << 20;
/// How many parts one workflow may have.
const MAX_PARTS: usize = 10_000;

/// The workflows that wait for the user.
#[derive(Debug)]
pub(in crate::gateway) struct ParkedFlows {
    records: Arc<dyn Records>,
    clock: Clock,
}

/// A workflow as it is stored.
#[derive(Debug, Deserialize, Serialize)]
struct ParkedFlow {
    app_id: String,
    /// The account that may answer; `None` for the clients of this machine's user.
    #[serde(default)]
    by: Option<String>,
    /// The digest of the workflow's definition when the run began.
    digest: String,
    input: Value,
    ended: Vec<ParkedStep>,
    /// The step that asks, and its question.
    step: String,
    ask: AskArguments,
    /// How many earlier questions were answered. Each question has its own token, so no answer counts for a later
    /// question.
    #[serde(default)]
    answered: usize,
    timeout_ms: u64,
    left_ms: u64,
    /// The user's answer, once it is understood.
    #[serde(default)]
    answer: Option<Value>,
}

/// A finished call.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct ParkedStep {
    /// The id of its step; for a part, its place.
    id: String,
    outcome: CallOutcome,
    name: String,
    /// A `CallToolResult`; without content if no later step needs it.
    result: Value,
    repaired: Vec<String>,
    calls: usize,
    declined: Option<Value>,
    elapsed_ms: u64,
}

/// The token of a question, and its record.
struct Token<'a> {
    record: &'a str,
    answered: usize,
}

impl<'a> Token<'a> {
    fn read(token: &'a str) -> Self {
        let later = token.rsplit_once('-').filter(|(record, _)| record.starts_with(TOKEN));
        match later.and_then(|(record, answered)| Some((record, answered.parse().ok()?))) {
            Some((record, answered)) => Self { record, answered },
            None => Self { record: token, answered: 0 },
        }
    }

    fn of(record: &str, answered: usize) -> String {
        match answered {
            0 => record.into(),
            later => format!("{record}-{later}"),
        }
    }
}

impl ParkedFlows {
    pub fn new(records: Arc<dyn Records>, clock: Clock) -> Self {
        Self { records, clock }
    }

    /// Stores a workflow under a new id, or replaces the record with this id. Returns the id.
    async fn put(&self, owner: &str, id: Option<&str>, flow: &ParkedFlow) -> Result<String, Fault> {
        let body = json!(flow);
        let bytes = json_len(&body);
        if bytes > MAX_BYTES {
            let message = format!(
                "The results of the steps so far are too large to keep until the user answers: {bytes} \
                 bytes, and the maximum is {MAX_BYTES}. Select less with `select`."
            );
            return Err(Fault::new(Code::InvalidParams, message));
        }
        self.drop_expired(owner).await;
        let id = id.map_or_else(|| format!("{TOKEN}{}", uuid::Uuid::new_v4().simple()), ToString::to_string);
        let record = NewRecord {
            owner: owner.into(),
            id: id.clone(),
            held: false,
            ..NewRecord::new(RecordKind::Parked, body)
        };
        match self.records.put(record, Most::Refuse(MAX_PARKED)).await.map_err(not_kept)? {
            Some(_) => Ok(id),
            None => {
                let message = format!(
                    "{MAX_PARKED} apps are already waiting for the user to answer. Answer one of them, or \
                     wait: each expires a day after it asked."
                );
                Err(Fault::new(Code::RateLimited, message))
            }
        }
    }

    /// Returns up to `most` waiting workflows of all owners, latest first. For the user of the machine.
    pub async fn in_list(&self, most: usize) -> Result<Vec<Value>, Fault> {
        let all = self.records.of_kind(RecordKind::Parked).await.map_err(not_kept)?;
        // Parts belong to other records.
        let waiting = all.iter().rev().filter(|record| self.age(record) < millis(AGE)).filter_map(shown);
        Ok(waiting.take(most).collect())
    }

    /// Returns a waiting workflow with its input, if there is one.
    pub async fn in_full(&self, owner: &str, id: &str) -> Result<Option<Value>, Fault> {
        let record = self.records.get(RecordKind::Parked, owner, id).await.map_err(not_kept)?;
        Ok(record.and_then(|record| {
            let mut flow = shown(&record)?;
            let mut choices = record.body["ask"]["choices"].clone();
            EscapedTexts::of(&mut choices);
            flow["choices"] = choices;
            flow["input"] = record.body["input"].clone();
            Some(flow)
        }))
    }

    /// Removes expired workflows.
    async fn drop_expired(&self, owner: &str) {
        let before = self.clock.unix_ms().saturating_sub(millis(AGE)).saturating_add(1);
        if let Err(error) = self.records.drop_old(RecordKind::Parked, owner, before).await {
            tracing::warn!(%error, "apps that have waited too long were not removed");
        }
    }

    /// Returns how long a record has waited, in milliseconds.
    fn age(&self, record: &Record) -> u64 {
        self.clock.unix_ms().saturating_sub(record.put_ms)
    }

    async fn get(&self, owner: &str, token: &str) -> Result<(Record, ParkedFlow), Fault> {
        let id = Token::read(token).record;
        let record = self.records.get(RecordKind::Parked, owner, id).await.map_err(not_kept)?;
        let record = record.ok_or_else(|| no_question(token))?;
        if self.age(&record) >= millis(AGE) {
            self.drop_expired(owner).await;
            return Err(no_question(token));
        }
        let flow = ParkedFlow::deserialize(&record.body).map_err(|error| {
            let message =
                format!("The stored state of the app cannot be read ({error}). Call the app again.");
            Fault::new(Code::Internal, message)
        })?;
        Ok((record, flow))
    }

    /// Returns the answer of a question whose time is over.
    fn timed_out(&self, record: &Record, ask: &AskArguments) -> Option<Value> {
        let limit = ask.timeout?.saturating_mul(1_000);
        (self.age(record) >= limit).then(|| json!({ "status": "timed_out" }))
    }

    /// Returns the parts kept of a run that was cut off.
    async fn parts(&self, id: &str) -> Result<BTreeMap<String, ParkedStep>, Fault> {
        let all = self.records.all(RecordKind::Parked, id).await.map_err(not_kept)?;
        let read = |part: &Record| match ParkedStep::deserialize(&part.body) {
            Ok(step) => Some((part.id.clone(), step)),
            Err(error) => {
                tracing::warn!(%error, "part of an app's state cannot be read");
                None
            }
        };
        Ok(all.iter().filter_map(read).collect())
    }

    /// Ends the wait with an answer. Of several answers only one is accepted, as long as the gateway that accepted it
    /// runs.
    async fn answered(&self, mut record: Record, answer: &Value) -> Result<Checkpoints, Fault> {
        let taken = || {
            let message =
                "The app already has an answer and continues with it. That call returns the result.";
            Fault::new(Code::NotFound, message)
        };
        if !self.records.hold(&record).await.map_err(not_kept)? {
            return Err(taken());
        }
        let mut checkpoints = Checkpoints {
            records: self.records.clone(),
            owner: record.owner.clone(),
            id: record.id.clone(),
            answered: usize::try_from(record.body["answered"].as_u64().unwrap_or(0)).unwrap_or(usize::MAX),
            before: BTreeMap::new(),
            bytes: AtomicUsize::new(0),
            is_held: AtomicBool::new(true),
        };
        checkpoints.before = self.parts(&record.id).await?;
        checkpoints.bytes =
            AtomicUsize::new(checkpoints.before.values().map(|step| json_len(&json!(step))).sum());
        if record.body["answer"].is_null() {
            record.revision += 1;
            set_member(&mut record.body, "answer", answer.clone());
            if !self.records.change(record).await.map_err(not_kept)? {
                return Err(taken());
            }
        }
        Ok(checkpoints)
    }
}

impl ParkedFlow {
    /// Returns the question as an answer of `call_app` or `ask_user`.
    fn put(&self, token: &str, question: &Question) -> Value {
        self.told(question.put(token))
    }

    fn told(&self, mut asked: Value) -> Value {
        set_member(&mut asked, "app_id", &*self.app_id);
        set_member(&mut asked, "step", &*self.step);
        text_result(asked.to_string())
    }
}

impl Gateway {
    /// Implements the `ask_user` meta-tool.
    pub async fn ask_user(
        self: &Arc<Self>,
        caller: &Caller,
        arguments: AskArguments,
    ) -> Result<Value, Interrupt> {
        match arguments.token.as_deref().filter(|token| token.starts_with(TOKEN)) {
            Some(token) => {
                self.go_on(caller, token, arguments.answer.as_ref(), arguments.content.as_deref()).await
            }
            None => Ok(text_result(self.questions.ask_user(caller, arguments).await?.to_string())),
        }
    }

    /// Parks a workflow until the user answers. Returns the question. A workflow that asks again keeps its record, so
    /// its last state survives if the new one cannot be stored.
    pub(super) async fn park(
        &self,
        caller: &Caller,
        flow: &Flow,
        results: Vec<Option<ActionResult>>,
        at: usize,
        left: Duration,
    ) -> Value {
        let Some(ask) = results.get(at).and_then(Option::as_ref).and_then(|one| one.open.as_deref().cloned())
        else {
            return Fault::new(Code::Internal, "A step waits for the user without a question.").to_result();
        };
        let calls = flow.plan.calls();
        let ended = results.into_iter().enumerate().filter_map(|(at, one)| Some((at, one?)));
        let ended = ended.filter(|(_, one)| one.open.is_none());
        let ended = ended.map(|(at, one)| ParkedStep::of(&calls[at].id, &one, flow.is_needed(at)));
        let checkpoints = flow.checkpoints.as_deref();
        let parked = ParkedFlow {
            app_id: flow.id.clone(),
            by: answerer(caller),
            digest: definition(&flow.steps, flow.output.as_ref()),
            input: flow.input.clone(),
            ended: ended.collect(),
            step: calls[at].id.clone(),
            ask,
            answered: checkpoints.map_or(0, |before| before.answered.saturating_add(1)),
            timeout_ms: millis(flow.timeout),
            left_ms: millis(left),
            answer: None,
        };
        let id = checkpoints.map(|before| before.id.as_str());
        match (self.parked.put(caller.owner().key(), id, &parked).await, checkpoints) {
            (Ok(id), before) => {
                if let Some(before) = before {
                    before.asked_again().await;
                }
                let (token, question) = (Token::of(&id, parked.answered), parked.ask.in_chat());
                if !self.asks_the_user_only() {
                    return parked.put(&token, &question);
                }
                let at = match self.ask_step(caller, &token, &parked.app_id, &question.message).await {
                    Ok(at) => at,
                    Err(fault) => return fault.next("ask_user", json!({ "token": token })).to_result(),
                };
                let mut asked = question.put(&token);
                asked["hint"] = json!(format!(
                    "An answer in this chat does not count. {at} Tell the user; then call ask_user with this `token`: it waits \
                     for the answer."
                ));
                parked.told(asked)
            }
            (Err(fault), None) => fault.to_result(),
            (Err(fault), Some(before)) => {
                before.free().await;
                fault.next("ask_user", before.way_on()).to_result()
            }
        }
    }

    /// Continues a workflow with the user's answer. Without a clear answer, asks again.
    pub(super) async fn go_on(
        self: &Arc<Self>,
        caller: &Caller,
        token: &str,
        said: Option<&Value>,
        content: Option<&str>,
    ) -> Result<Value, Interrupt> {
        let owner = caller.owner();
        let (record, parked) = self.parked.get(owner.key(), token).await?;
        if parked.by.as_deref() != Some(ANY_CLIENT) && parked.by != answerer(caller) {
            return Err(no_question(token).into());
        }
        let question = parked.ask.in_chat();
        let now = Token::of(&record.id, parked.answered);
        // The run with this answer was cut off, or the time for an answer is over.
        let known = parked.answer.clone().or_else(|| self.parked.timed_out(&record, &parked.ask));
        let is_of_now = Token::read(token).answered == parked.answered;
        // Checked before the answer is accepted.
        let admission = self.admit(caller, false)?;
        // In that mode, the model's words do not count as the user's answer.
        let of_user = match known.is_none() && is_of_now && self.asks_the_user_only() {
            true => Some(self.step_answered(caller, &now, &parked.app_id, &question.message).await?),
            false => None,
        };
        // A denial answers any question.
        let known = known.or_else(|| of_user.clone().filter(|said| *said == json!({ "status": "denied" })));
        let (said, content) = match &of_user {
            Some(answer) => (Some(answer), None),
            None => (said, content),
        };
        let answer = match (known, said.filter(|_| is_of_now)) {
            (Some(answer), _) => answer,
            (None, None) => return Ok(parked.put(&now, &question)),
            (None, Some(said)) => match question.read(token, said, content) {
                Ok(answer) => answer,
                Err(again) => return Ok(parked.told(again)),
            },
        };
        let (steps, output) = self.definition(&parked)?;
        let plan = plan(&steps).map_err(|flaw| refused_plan(&flaw))?;
        let at = |id: &str| plan.calls().iter().position(|call| call.id == id);
        let mut before: Vec<(usize, ActionResult)> = Vec::new();
        before.extend(
            at(&parked.step).map(|at| (at, ActionResult::answered(&plan.calls()[at], answer.clone()))),
        );
        for step in parked.ended {
            before.extend(at(&step.id).map(|at| (at, step.into_result())));
        }
        let mut parts = self.parked.parts(&record.id).await?;
        for (at, call) in plan.calls().iter().enumerate() {
            if before.iter().all(|(ended, _)| *ended != at)
                && let Some(step) = parts.remove(&place(&[json!(call.id)]))
            {
                before.push((at, step.into_result()));
            }
        }
        let mut flow = Flow {
            id: parked.app_id,
            steps,
            output,
            plan: Arc::new(plan),
            input: parked.input,
            began: std::time::Instant::now(),
            timeout: Duration::from_millis(parked.timeout_ms),
            left: Duration::from_millis(parked.left_ms),
            before,
            checkpoints: None,
            handing: Handing::default(),
            log: None,
        };
        self.check_steps(caller, &flow).await?;
        let checkpoints = Arc::new(self.parked.answered(record, &answer).await?);
        flow.log = Some(RunLog::new(checkpoints.clone()));
        flow.checkpoints = Some(checkpoints);
        self.run_workflow(caller, flow, admission).await
    }

    /// Returns the configured workflow, if it has not changed since it was parked.
    fn definition(&self, parked: &ParkedFlow) -> Result<(Vec<Step>, Option<Value>), Fault> {
        let config = self.config();
        let id = &parked.app_id;
        if let Some(AppKind::Workflow { steps, output }) = config.apps.get(id).map(|app| &app.kind)
            && definition(steps, output.as_ref()) == parked.digest
        {
            return Ok((steps.clone(), output.clone()));
        }
        let message = format!(
            "The app `{id}` has changed in servers.toml since it asked, so it does not continue: its steps \
             may mean something else now. Call it again from the beginning."
        );
        let again = json!({ "app_id": id, "input": parked.input });
        Err(Fault::new(Code::InvalidParams, message).next("call_app", again))
    }
}

impl ParkedStep {
    /// Builds the stored form of a call, with the value only if it is needed.
    fn of(id: &str, one: &ActionResult, is_needed: bool) -> Self {
        Self {
            id: id.into(),
            outcome: one.outcome(),
            result: match is_needed || is_error(&one.result) {
                true => Value::clone(&one.result),
                false => json!({ "content": [] }),
            },
            name: one.name.clone(),
            repaired: one.repaired.clone(),
            calls: one.calls,
            declined: one.declined.clone(),
            elapsed_ms: one.elapsed_ms,
        }
    }

    fn into_result(self) -> ActionResult {
        ActionResult {
            repaired: self.repaired,
            calls: self.calls,
            skipped: self.outcome == CallOutcome::Skipped,
            declined: self.declined,
            elapsed_ms: self.elapsed_ms,
            ..ActionResult::of(self.name, self.result)
        }
    }
}

/// Stands for any client of the profile: whoever set up a schedule is known only by it.
const ANY_CLIENT: &str = "*";

/// Returns the account whose clients may answer for a caller; `None` if any client of this machine's user may.
fn answerer(caller: &Caller) -> Option<String> {
    if caller.session.unattended {
        return Some(ANY_CLIENT.into());
    }
    (!caller.local).then(|| caller.account.name().to_string())
}

/// Describes a workflow for a list; `None` for a part.
fn shown(record: &Record) -> Option<Value> {
    let body = &record.body;
    let (app, question) = (body["app_id"].as_str()?, body["ask"]["question"].as_str()?);
    Some(json!({
        "id": record.id,
        "owner": record.owner,
        "app_id": app,
        "step": body["step"],
        "question": escaped(question),
        "since_ms": record.put_ms,
    }))
}

fn not_kept(error: StoreError) -> Fault {
    super::super::faults::of_store("The state of the app cannot be stored or read", &error)
}
