//! Workflows that wait for an answer of the user: parked in the store until it comes, after a restart too.
//!
//! What is kept is what is needed to go on: which steps ended and how, the values that later steps see, the question, and the
//! time that is left. Steps that have ended do not run again.
//!
//! The record stays until the workflow has ended. The gateway that got the answer holds it, and keeps each end of a step, of an
//! item or of a step of an inner app as a part of it: a small record of its own, so that a long list costs no more for each
//! item than a short one. Should the run be cut off, the same token goes on from there.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::workflow::{Flow, definition, plan};
use crate::{
    clock::{Clock, millis},
    config::{AppKind, Step},
    fault::{Code, Fault},
    gateway::{
        AskArguments, Gateway,
        call::text_result,
        graph::{ActionResult, Journal, RunLog, place, refused_plan},
        interrupt::Interrupt,
        questions::{Question, no_question},
        session::Caller,
    },
    results::{is_error, json_len},
    store::{Most, NewRecord, Record, RecordKind, Records, StoreError},
    workflow::CallOutcome,
};

/// What the token of a parked workflow begins with.
const TOKEN: &str = "app-";
/// How long a workflow waits for its answer.
const AGE: Duration = Duration::from_secs(24 * 3_600);
/// How many workflows of one owner wait at most.
const MAX_PARKED: usize = 100;
/// How large the state of one may be, in bytes of JSON, and how large its parts may be together.
const MAX_BYTES: usize = 16 << 20;
/// How many parts one has at most.
const MAX_PARTS: usize = 10_000;

/// The workflows that wait for the user.
#[derive(Debug)]
pub(in crate::gateway) struct ParkedFlows {
    records: Arc<dyn Records>,
    clock: Clock,
}

/// A workflow as it is kept.
#[derive(Debug, Deserialize, Serialize)]
struct ParkedFlow {
    app_id: String,
    /// The definition that it began with.
    digest: String,
    input: Value,
    ended: Vec<ParkedStep>,
    /// The step that asks, and what it asks.
    step: String,
    ask: AskArguments,
    /// How many questions were answered before. Each has a token of its own, so that no answer is taken for a later question.
    #[serde(default)]
    answered: usize,
    timeout_ms: u64,
    left_ms: u64,
    /// What the user said, once that is understood.
    #[serde(default)]
    answer: Option<Value>,
}

/// A call that has ended.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct ParkedStep {
    /// The id of its step; of a part, its place.
    id: String,
    outcome: CallOutcome,
    name: String,
    /// A `CallToolResult`, without content where nobody needs it any more.
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

    /// Keeps a workflow, under a new id or in place of its record with this one; returns the id.
    async fn put(&self, owner: &str, id: Option<&str>, flow: &ParkedFlow) -> Result<String, Fault> {
        let body = json!(flow);
        let bytes = json_len(&body);
        if bytes > MAX_BYTES {
            let message = format!(
                "What the steps so far gave is too large to be kept until the user answers: {bytes} bytes, and {MAX_BYTES} are \
                 the most. Select less of it with `select`."
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
                    "{MAX_PARKED} apps wait for answers of the user already. Answer one of them, or wait: each is given up a day \
                     after it asked."
                );
                Err(Fault::new(Code::RateLimited, message))
            }
        }
    }

    /// Removes what has waited too long.
    async fn drop_expired(&self, owner: &str) {
        let before = self.clock.unix_ms().saturating_sub(millis(AGE)).saturating_add(1);
        if let Err(error) = self.records.drop_old(RecordKind::Parked, owner, before).await {
            tracing::warn!(%error, "apps that have waited too long were not removed");
        }
    }

    /// How long a record has waited, in milliseconds.
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
            let message = format!("What was kept of the app cannot be read ({error}). Call the app again.");
            Fault::new(Code::Internal, message)
        })?;
        Ok((record, flow))
    }

    /// What the question has as its answer when its time is over.
    fn timed_out(&self, record: &Record, ask: &AskArguments) -> Option<Value> {
        let limit = ask.timeout?.saturating_mul(1_000);
        (self.age(record) >= limit).then(|| json!({ "status": "timed_out" }))
    }

    /// What was kept of a run that was cut off.
    async fn parts(&self, id: &str) -> Result<BTreeMap<String, ParkedStep>, Fault> {
        let all = self.records.all(RecordKind::Parked, id).await.map_err(not_kept)?;
        let read = |part: &Record| match ParkedStep::deserialize(&part.body) {
            Ok(step) => Some((part.id.clone(), step)),
            Err(error) => {
                tracing::warn!(%error, "a part of the state of an app cannot be read");
                None
            }
        };
        Ok(all.iter().filter_map(read).collect())
    }

    /// Ends the wait with an answer. Of several answers one is taken, as long as the gateway that took it runs.
    async fn answered(&self, mut record: Record, answer: &Value) -> Result<Checkpoints, Fault> {
        let taken = || {
            let message =
                "The app has an answer already, and goes on with it. Its result is the answer of that call.";
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
            record.body["answer"] = answer.clone();
            if !self.records.change(record).await.map_err(not_kept)? {
                return Err(taken());
            }
        }
        Ok(checkpoints)
    }
}

/// The record of a workflow that goes on. Dropped before its end, the record is free for the next one who has the token.
#[derive(Debug)]
pub(in crate::gateway) struct Checkpoints {
    records: Arc<dyn Records>,
    owner: String,
    id: String,
    /// How many questions were answered before the last one.
    answered: usize,
    /// What ended in runs that were cut off.
    before: BTreeMap<String, ParkedStep>,
    /// How large the parts are.
    bytes: AtomicUsize,
    is_held: AtomicBool,
}

impl Checkpoints {
    /// Removes what was kept of a workflow that has ended.
    pub async fn forget(&self) {
        match self.records.take(RecordKind::Parked, &self.owner, &self.id).await {
            Ok(_) => self.is_held.store(false, Ordering::Release),
            Err(error) => tracing::warn!(%error, "the state of an app that has ended was not removed"),
        }
    }

    /// Keeps a workflow that was cut off; says how it goes on.
    pub async fn set_aside(&self, app: &str) -> Fault {
        self.free().await;
        let message = format!(
            "The app `{app}` was cancelled. What it has done is kept: call ask_user with this `token`, and it goes on from there."
        );
        Fault::new(Code::Cancelled, message).next("ask_user", self.way_on())
    }

    fn way_on(&self) -> Value {
        json!({ "token": Token::of(&self.id, self.answered) })
    }

    async fn free(&self) {
        if self.is_held.swap(false, Ordering::AcqRel) {
            free(&*self.records, &self.owner, &self.id).await;
        }
    }

    /// Ends the hold of a record that has a new question.
    async fn asked_again(&self) {
        self.is_held.store(false, Ordering::Release);
        // They are in the record now.
        if let Err(error) = self.records.drop_old(RecordKind::Parked, &self.id, u64::MAX).await {
            tracing::warn!(%error, "the earlier state of an app was not removed");
        }
    }
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        // Where nothing runs any more, the hold ends with the process.
        if self.is_held.load(Ordering::Acquire)
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let records = self.records.clone();
            let (owner, id) = (std::mem::take(&mut self.owner), std::mem::take(&mut self.id));
            runtime.spawn(async move { free(&*records, &owner, &id).await });
        }
    }
}

async fn free(records: &dyn Records, owner: &str, id: &str) {
    if let Err(error) = records.free(RecordKind::Parked, owner, vec![id.into()]).await {
        tracing::warn!(%error, "the state of an app is not free for another gateway");
    }
}

impl Journal for Checkpoints {
    /// Without this, the workflow still goes on; only after it is cut off, the call would be made again.
    fn ended<'a>(&'a self, place: String, one: &'a ActionResult, is_needed: bool) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let body = json!(ParkedStep::of(&place, one, is_needed));
            let size = json_len(&body);
            if self.bytes.fetch_add(size, Ordering::AcqRel).saturating_add(size) > MAX_BYTES {
                self.bytes.fetch_sub(size, Ordering::AcqRel);
                tracing::warn!(place, size, "the end of a step is too large to be kept");
                return;
            }
            // A part belongs to its record.
            let part = NewRecord {
                owner: self.id.clone(),
                id: place,
                held: false,
                ..NewRecord::new(RecordKind::Parked, body)
            };
            match self.records.put(part, Most::Refuse(MAX_PARTS)).await {
                Ok(Some(_)) => {}
                Ok(None) => {
                    tracing::warn!("an app has more than {MAX_PARTS} ends of steps; this one is not kept")
                }
                Err(error) => tracing::warn!(%error, "the end of a step was not kept"),
            }
        })
    }

    fn before(&self, place: &str) -> Option<ActionResult> {
        Some(self.before.get(place)?.clone().into_result())
    }
}

impl ParkedFlow {
    /// The question, as an answer of `call_app` or `ask_user`.
    fn put(&self, token: &str, question: &Question) -> Value {
        self.told(question.put(token))
    }

    fn told(&self, mut asked: Value) -> Value {
        asked["app_id"] = json!(self.app_id);
        asked["step"] = json!(self.step);
        text_result(asked.to_string())
    }
}

impl Gateway {
    /// The `ask_user` meta-tool.
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

    /// Keeps a workflow until the user answers; the answer is the question. A workflow that asks again keeps its record, and
    /// still has its last state if the new one cannot be kept.
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
                parked.put(&Token::of(&id, parked.answered), &parked.ask.in_chat())
            }
            (Err(fault), None) => fault.to_result(),
            (Err(fault), Some(before)) => {
                before.free().await;
                fault.next("ask_user", before.way_on()).to_result()
            }
        }
    }

    /// Goes on with a workflow by the answer of the user. Without an answer, or with an unclear one, asks again.
    pub(super) async fn go_on(
        self: &Arc<Self>,
        caller: &Caller,
        token: &str,
        said: Option<&Value>,
        content: Option<&str>,
    ) -> Result<Value, Interrupt> {
        let owner = caller.owner();
        let (record, parked) = self.parked.get(owner.key(), token).await?;
        let question = parked.ask.in_chat();
        let now = Token::of(&record.id, parked.answered);
        // The run that had the answer was cut off, or the time for an answer is over.
        let known = parked.answer.clone().or_else(|| self.parked.timed_out(&record, &parked.ask));
        let is_of_now = Token::read(token).answered == parked.answered;
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
            log: None,
        };
        self.check_steps(caller, &flow).await?;
        let checkpoints = Arc::new(self.parked.answered(record, &answer).await?);
        flow.log = Some(RunLog::new(checkpoints.clone()));
        flow.checkpoints = Some(checkpoints);
        self.run_workflow(caller, flow).await
    }

    /// The workflow of the configuration, if it is the one that was parked.
    fn definition(&self, parked: &ParkedFlow) -> Result<(Vec<Step>, Option<Value>), Fault> {
        let config = self.config();
        let id = &parked.app_id;
        if let Some(AppKind::Workflow { steps, output }) = config.apps.get(id).map(|app| &app.kind)
            && definition(steps, output.as_ref()) == parked.digest
        {
            return Ok((steps.clone(), output.clone()));
        }
        let message = format!(
            "The app `{id}` has changed in servers.toml since it asked, so it does not go on: its steps may mean something else \
             now. Call it again from the beginning."
        );
        let again = json!({ "app_id": id, "input": parked.input });
        Err(Fault::new(Code::InvalidParams, message).next("call_app", again))
    }
}

impl ParkedStep {
    /// A call as it is kept; the value only if it is needed.
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

fn not_kept(error: StoreError) -> Fault {
    Fault::new(Code::Internal, format!("The state of the app cannot be kept or read: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Retention, SqliteStore};

    fn parked(clock: &Clock) -> ParkedFlows {
        let retention = Retention { bytes: 1 << 20, age: AGE };
        ParkedFlows::new(Arc::new(SqliteStore::new(None, retention, clock.clone())), clock.clone())
    }

    fn flow() -> ParkedFlow {
        let ask = json!({ "question": "Well?" });
        serde_json::from_value(json!({
            "app_id": "a", "digest": "", "input": null, "ended": [], "step": "s", "ask": ask, "timeout_ms": 1, "left_ms": 1,
        }))
        .expect("a flow")
    }

    #[tokio::test]
    async fn what_has_waited_too_long_makes_room() {
        let clock = Clock::default();
        let parked = parked(&clock);
        let mut tokens = Vec::new();
        for _ in 0..MAX_PARKED {
            tokens.push(parked.put("p", None, &flow()).await.expect("there is room"));
        }
        assert_eq!(parked.put("p", None, &flow()).await.map_err(|fault| fault.code), Err(Code::RateLimited));
        assert!(parked.put("q", None, &flow()).await.is_ok(), "another owner has room");
        assert!(parked.get("p", &tokens[0]).await.is_ok());
        clock.advance(AGE);
        assert_eq!(parked.get("p", &tokens[0]).await.map_err(|fault| fault.code).err(), Some(Code::NotFound));
        assert!(parked.put("p", None, &flow()).await.is_ok());
    }

    #[tokio::test]
    async fn one_answer_is_taken() {
        let parked = parked(&Clock::default());
        let token = parked.put("p", None, &flow()).await.expect("there is room");
        let read = async || parked.get("p", &token).await.expect("it waits").0;
        let (first, second) = (read().await, read().await);
        let taken = parked.answered(first, &json!({ "status": "answered" })).await.expect("the first");
        assert_eq!(
            parked.answered(second, &json!({})).await.map(drop).map_err(|f| f.code),
            Err(Code::NotFound)
        );
        assert!(parked.answered(read().await, &json!({})).await.is_err(), "a gateway that runs has it");
        let (_, kept) = parked.get("p", &token).await.expect("it is kept until it has ended");
        assert_eq!(kept.answer, Some(json!({ "status": "answered" })));
        taken.forget().await;
        assert!(parked.get("p", &token).await.is_err());
    }

    /// Everything that is kept of an owner, or of a parked workflow.
    async fn kept(parked: &ParkedFlows, owner: &str) -> Vec<String> {
        let all = parked.records.all(RecordKind::Parked, owner).await.expect("readable");
        all.into_iter().map(|record| record.id).collect()
    }

    async fn answered(parked: &ParkedFlows, token: &str) -> Checkpoints {
        let (record, _) = parked.get("p", token).await.expect("it waits");
        parked.answered(record, &json!({ "status": "answered" })).await.expect("it is free")
    }

    #[tokio::test]
    async fn what_has_waited_too_long_is_removed_with_its_parts() {
        let clock = Clock::default();
        let parked = parked(&clock);
        let old = parked.put("p", None, &flow()).await.expect("there is room");
        let one = ActionResult::of("t".into(), json!({ "content": [] }));
        answered(&parked, &old).await.ended("[\"a\"]".into(), &one, true).await;
        assert_eq!(kept(&parked, &old).await, ["[\"a\"]"]);
        clock.advance(AGE);
        let new = parked.put("p", None, &flow()).await.expect("there is room");
        assert_eq!((kept(&parked, "p").await, kept(&parked, &old).await), (vec![new.clone()], vec![]));
        clock.advance(AGE);
        assert!(parked.get("p", &new).await.is_err());
        assert_eq!(kept(&parked, "p").await, [""; 0]);
    }

    #[tokio::test]
    async fn an_end_that_is_too_large_keeps_no_later_one_away() {
        let parked = parked(&Clock::default());
        let token = parked.put("p", None, &flow()).await.expect("there is room");
        let text = |size| {
            ActionResult::of("t".into(), json!({ "content": [{ "type": "text", "text": "x".repeat(size) }] }))
        };
        let first = answered(&parked, &token).await;
        // What nobody needs has no size.
        first.ended("unneeded".into(), &text(MAX_BYTES), false).await;
        first.ended("large".into(), &text(MAX_BYTES), true).await;
        first.ended("small".into(), &text(1), true).await;
        first.set_aside("a").await;
        let next = answered(&parked, &token).await;
        let before = |place| next.before(place).map(|one| one.result);
        assert_eq!(before("small").as_deref(), Some(&*text(1).result));
        assert_eq!(before("unneeded").as_deref(), Some(&json!({ "content": [] })));
        assert!(before("large").is_none());
    }

    #[tokio::test]
    async fn a_run_that_is_dropped_frees_its_record() {
        let parked = parked(&Clock::default());
        let token = parked.put("p", None, &flow()).await.expect("there is room");
        drop(answered(&parked, &token).await);
        let again = async || {
            let (record, _) = parked.get("p", &token).await.expect("it is kept");
            parked.answered(record, &json!({})).await.is_ok()
        };
        while !again().await {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn an_app_that_asks_again_takes_no_room() {
        let parked = parked(&Clock::default());
        let mut tokens = Vec::new();
        for _ in 0..MAX_PARKED {
            tokens.push(parked.put("p", None, &flow()).await.expect("there is room"));
        }
        let checkpoints = answered(&parked, &tokens[0]).await;
        let second = ParkedFlow { answered: 1, ..flow() };
        assert_eq!(parked.put("p", Some(&tokens[0]), &second).await.as_ref(), Ok(&tokens[0]));
        checkpoints.asked_again().await;
        let token = Token::of(&tokens[0], 1);
        let (record, flow) = parked.get("p", &token).await.expect("it waits");
        assert_eq!((flow.answered, flow.answer), (1, None));
        assert!(parked.answered(record, &json!({})).await.is_ok(), "nobody holds it");
    }

    #[test]
    fn each_question_has_a_token() {
        let check = |token: &str, record: &str, answered| {
            let read = Token::read(token);
            assert_eq!((read.record, read.answered), (record, answered), "{token}");
        };
        check("app-12ab", "app-12ab", 0);
        check("app-1234", "app-1234", 0);
        check(&Token::of("app-1234", 2), "app-1234", 2);
        check("app-", "app-", 0);
        check("app-1-x", "app-1-x", 0);
    }

    #[tokio::test]
    async fn what_is_too_large_is_not_kept() {
        let parked = parked(&Clock::default());
        let large = ParkedFlow { input: json!("x".repeat(MAX_BYTES)), ..flow() };
        assert_eq!(parked.put("p", None, &large).await.map_err(|fault| fault.code), Err(Code::InvalidParams));
    }
}
