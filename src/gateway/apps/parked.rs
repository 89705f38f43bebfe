//! Workflows that wait for an answer of the user: parked in the store until it comes, after a restart too.
//!
//! What is kept is what is needed to go on: which steps ended and how, the values that later steps see, the question, and the
//! time that is left. Steps that have ended do not run again.
//!
//! The record stays until the workflow has ended: the gateway that got the answer holds it, and writes down the end of each
//! step. Should that gateway be killed, the same token goes on from there.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::Mutex;

use super::workflow::{Flow, plan};
use crate::{
    clock::{Clock, millis},
    config::{AppKind, Step},
    fault::{Code, Fault},
    gateway::{
        AskArguments, Gateway,
        call::text_result,
        graph::{ActionResult, Journal, refused_plan},
        interrupt::Interrupt,
        questions::{Question, no_question},
        session::Caller,
    },
    results::{is_error, json_len},
    store::{Most, NewRecord, Record, RecordKind, Records, StoreError},
    text::hex,
    workflow::{CallOutcome, PlannedCall},
};

/// What the token of a parked workflow begins with.
const TOKEN: &str = "app-";
/// How long a workflow waits for its answer.
const AGE: Duration = Duration::from_secs(24 * 3_600);
/// How many workflows of one owner wait at most.
const MAX_PARKED: usize = 100;
/// How large the state of one may be, in bytes of JSON.
const MAX_BYTES: usize = 16 << 20;

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
    timeout_ms: u64,
    left_ms: u64,
    /// What the user said, once that is understood.
    #[serde(default)]
    answer: Option<Value>,
}

/// A step that has ended.
#[derive(Debug, Deserialize, Serialize)]
struct ParkedStep {
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

impl ParkedFlows {
    pub fn new(records: Arc<dyn Records>, clock: Clock) -> Self {
        Self { records, clock }
    }

    /// Keeps a workflow; returns the token of the way on.
    async fn put(&self, owner: &str, flow: &ParkedFlow) -> Result<String, Fault> {
        let body = json!(flow);
        let bytes = json_len(&body);
        if bytes > MAX_BYTES {
            let message = format!(
                "What the steps so far gave is too large to be kept until the user answers: {bytes} bytes, and {MAX_BYTES} are \
                 the most. Select less of it with `select`."
            );
            return Err(Fault::new(Code::InvalidParams, message));
        }
        let token = format!("{TOKEN}{}", uuid::Uuid::new_v4().simple());
        let record = || NewRecord {
            owner: owner.into(),
            id: token.clone(),
            held: false,
            ..NewRecord::new(RecordKind::Parked, body.clone())
        };
        let mut kept = self.records.put(record(), Most::Refuse(MAX_PARKED)).await.map_err(not_kept)?;
        if kept.is_none() && self.drop_expired(owner).await.map_err(not_kept)? {
            kept = self.records.put(record(), Most::Refuse(MAX_PARKED)).await.map_err(not_kept)?;
        }
        match kept {
            Some(_) => Ok(token),
            None => {
                let message = format!(
                    "{MAX_PARKED} apps wait for answers of the user already. Answer one of them, or wait: each is given up a day \
                     after it asked."
                );
                Err(Fault::new(Code::RateLimited, message))
            }
        }
    }

    /// Removes what has waited too long; whether there was something.
    async fn drop_expired(&self, owner: &str) -> Result<bool, StoreError> {
        let mut dropped = false;
        for record in self.records.all(RecordKind::Parked, owner).await? {
            if self.is_expired(record.put_ms) {
                dropped |= self.records.take(RecordKind::Parked, owner, &record.id).await?.is_some();
            }
        }
        Ok(dropped)
    }

    fn is_expired(&self, put_ms: u64) -> bool {
        self.clock.unix_ms().saturating_sub(put_ms) >= millis(AGE)
    }

    async fn get(&self, owner: &str, token: &str) -> Result<(Record, ParkedFlow), Fault> {
        let record = self.records.get(RecordKind::Parked, owner, token).await.map_err(not_kept)?;
        let record = record.filter(|record| !self.is_expired(record.put_ms));
        let record = record.ok_or_else(|| no_question(token))?;
        let flow = ParkedFlow::deserialize(&record.body).map_err(|error| {
            let message = format!("What was kept of the app cannot be read ({error}). Call the app again.");
            Fault::new(Code::Internal, message)
        })?;
        Ok((record, flow))
    }

    /// Ends the wait with an answer. Of several answers one is taken, as long as the gateway that took it runs.
    async fn answered(&self, mut record: Record, answer: &Value) -> Result<Checkpoints, Fault> {
        if !self.records.hold(&record).await.map_err(not_kept)? {
            let message =
                "The app has an answer already, and goes on with it. Its result is the answer of that call.";
            return Err(Fault::new(Code::NotFound, message));
        }
        record.revision += 1;
        record.body["answer"] = answer.clone();
        let checkpoints = Checkpoints { records: self.records.clone(), record: Mutex::new(record) };
        checkpoints.write().await;
        Ok(checkpoints)
    }

    /// Removes what was kept of a workflow that has ended.
    pub async fn forget(&self, checkpoints: &Checkpoints) {
        let (owner, id) = {
            let record = checkpoints.record.lock().await;
            (record.owner.clone(), record.id.clone())
        };
        if let Err(error) = self.records.take(RecordKind::Parked, &owner, &id).await {
            tracing::warn!(%error, "the state of an app that has ended was not removed");
        }
    }
}

/// The record of a workflow that goes on, kept up to date.
#[derive(Debug)]
pub(in crate::gateway) struct Checkpoints {
    records: Arc<dyn Records>,
    record: Mutex<Record>,
}

impl Checkpoints {
    async fn write(&self) {
        self.write_locked(&mut *self.record.lock().await).await;
    }

    /// Without this, the workflow still goes on; only a gateway that is killed would do its last steps again.
    async fn write_locked(&self, record: &mut Record) {
        match self.records.change(record.clone()).await {
            Ok(true) => record.revision += 1,
            Ok(false) => tracing::debug!("the state of an app was removed meanwhile"),
            Err(error) => tracing::warn!(%error, "the state of an app was not kept"),
        }
    }
}

impl Journal for Checkpoints {
    fn ended<'a>(&'a self, call: &'a PlannedCall, one: &'a ActionResult) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let mut record = self.record.lock().await;
            let step = json!(ParkedStep::of(&call.id, one, true));
            if let Some(ended) = record.body["ended"].as_array_mut() {
                ended.push(step);
            }
            if json_len(&record.body) > MAX_BYTES {
                tracing::warn!(app = %record.body["app_id"], "the state of an app is too large to be kept");
                return;
            }
            self.write_locked(&mut record).await;
        })
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

    /// Keeps a workflow until the user answers; the answer is the question.
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
        let parked = ParkedFlow {
            app_id: flow.id.clone(),
            digest: digest(&flow.steps, flow.output.as_ref()),
            input: flow.input.clone(),
            ended: ended.collect(),
            step: calls[at].id.clone(),
            ask,
            timeout_ms: millis(flow.timeout),
            left_ms: millis(left),
            answer: None,
        };
        match self.parked.put(caller.owner().key(), &parked).await {
            Ok(token) => parked.put(&token, &parked.ask.in_chat()),
            Err(fault) => fault.to_result(),
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
        let answer = match (&parked.answer, said) {
            // The gateway that had it was killed.
            (Some(answer), _) => answer.clone(),
            (None, None) => return Ok(parked.put(token, &question)),
            (None, Some(said)) => match question.read(token, said, content) {
                Ok(answer) => answer,
                Err(again) => return Ok(parked.told(again)),
            },
        };
        let (steps, output) = self.definition(&parked)?;
        let plan = plan(&steps).map_err(|flaw| refused_plan(&flaw))?;
        let place = |id: &str| plan.calls().iter().position(|call| call.id == id);
        let mut before: Vec<(usize, ActionResult)> = Vec::new();
        before.extend(
            place(&parked.step).map(|at| (at, ActionResult::answered(&plan.calls()[at], answer.clone()))),
        );
        for step in parked.ended {
            before.extend(place(&step.id).map(|at| (at, step.into_result())));
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
        };
        self.check_steps(caller, &flow).await?;
        flow.checkpoints = Some(Arc::new(self.parked.answered(record, &answer).await?));
        self.run_workflow(caller, flow).await
    }

    /// The workflow of the configuration, if it is the one that was parked.
    fn definition(&self, parked: &ParkedFlow) -> Result<(Vec<Step>, Option<Value>), Fault> {
        let config = self.config();
        let id = &parked.app_id;
        if let Some(AppKind::Workflow { steps, output }) = config.apps.get(id).map(|app| &app.kind)
            && digest(steps, output.as_ref()) == parked.digest
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
    /// A step as it is kept; the value only if it is needed.
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

/// What a workflow does, in short: changes with every change of its definition.
fn digest(steps: &[Step], output: Option<&Value>) -> String {
    hex(&Sha256::digest(json!([steps, output]).to_string().as_bytes()))
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
            tokens.push(parked.put("p", &flow()).await.expect("there is room"));
        }
        assert_eq!(parked.put("p", &flow()).await.map_err(|fault| fault.code), Err(Code::RateLimited));
        assert!(parked.put("q", &flow()).await.is_ok(), "another owner has room");
        assert!(parked.get("p", &tokens[0]).await.is_ok());
        clock.advance(AGE);
        assert_eq!(parked.get("p", &tokens[0]).await.map_err(|fault| fault.code).err(), Some(Code::NotFound));
        assert!(parked.put("p", &flow()).await.is_ok());
    }

    #[tokio::test]
    async fn one_answer_is_taken() {
        let parked = parked(&Clock::default());
        let token = parked.put("p", &flow()).await.expect("there is room");
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
        parked.forget(&taken).await;
        assert!(parked.get("p", &token).await.is_err());
    }

    #[tokio::test]
    async fn what_is_too_large_is_not_kept() {
        let parked = parked(&Clock::default());
        let large = ParkedFlow { input: json!("x".repeat(MAX_BYTES)), ..flow() };
        assert_eq!(parked.put("p", &large).await.map_err(|fault| fault.code), Err(Code::InvalidParams));
    }
}
