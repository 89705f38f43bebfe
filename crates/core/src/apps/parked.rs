//! Workflows, `run_parallel` runs and scripts that wait for the user's answer or approval: parked in the store
//! until it comes, even across a restart.
//!
//! The record keeps what the run needs to continue: the outcomes of the finished steps, the values that later
//! steps see, the question, and the remaining time. Finished steps do not run again.
//!
//! The record stays until the workflow ends. The gateway that received the answer holds the record, and adds
//! each finished step, item or step of an inner app as a part: a small record of its own, so that a long list
//! costs no more per item than a short one. If the run is cut off, the same token continues from there.

mod checkpoints;
mod resuming;
mod scripts;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize},
    },
    time::Duration,
};

use nonet_api::{question::Approver, work::WorkflowView};
use nonet_base::{
    clock::{Clock, millis},
    json::set_member,
    text::{escaped, hex},
};
use nonet_config::{
    ApproveBy,
    workflow::{Plan, StepOutcome},
};
use nonet_parts::approvals::{ApprovalQuestion, KeptQuestions};
use nonet_servers::downstream::EscapedTexts;
use nonet_store::{NewRecord, Record, RecordKind, RecordQuota, Records, StoreError};
use nonet_text::{
    fault::{Fault, FaultCode},
    results::{CallResult, QUESTION, is_error, json_len},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

pub(crate) use self::{
    checkpoints::Checkpoints,
    scripts::{ScriptRecord, digest_of},
};
use crate::{
    AskArguments, ParallelArguments,
    apps::{
        AnswerMode, AppArguments, Apps,
        script::{self, KeptScript, RUN_SCRIPT, ScriptState},
    },
    call::{answer_of, text_result},
    graph::{ActionResult, ItemCounts, Journal as _, MemoryJournal, OpenQuestion},
    interrupt::Interrupt,
};
use nonet_state::{
    grants::RunApproval,
    questions::{AskOutcome, CallRequest, HeldCall, Question, no_question},
    session::Caller,
};

/// How long a workflow waits for its answer.
const AGE: Duration = Duration::from_secs(24 * 3_600);
/// How many workflows may wait for one owner.
const MAX_PARKED: usize = 100;
/// The maximum size of one workflow's state in bytes of JSON, and of all its parts together.
const MAX_BYTES: usize = 16 << 20;
/// How many parts one workflow may have.
const MAX_PARTS: usize = 10_000;

/// The runs of one kind that wait for the user: workflows, or scripts.
#[derive(Debug)]
pub(crate) struct ParkedFlows(KeptQuestions);

/// Returns the prefix of the tokens of a kind.
fn prefix(kind: RecordKind) -> &'static str {
    if kind == RecordKind::Script { "script-" } else { "app-" }
}

/// The state of a run that has to wait for the user.
pub(crate) struct ParkableRun<'a> {
    /// The workflow, or `run_parallel`.
    pub app_id: &'a str,
    pub plan: &'a Plan,
    /// The calls whose values are needed later.
    pub needed: BTreeSet<usize>,
    pub digest: String,
    pub input: Value,
    /// The arguments of a `run_parallel`.
    pub actions: Option<&'a ParallelArguments>,
    pub timeout: Duration,
    pub left: Duration,
    pub checkpoints: Option<&'a Checkpoints>,
    /// What has ended inside inner apps and lists.
    pub noted: Option<&'a MemoryJournal>,
}

/// A workflow or a `run_parallel` as it is stored.
#[derive(Debug, Deserialize, Serialize)]
struct ParkedFlow {
    /// The workflow, or `run_parallel`.
    app_id: String,
    /// The arguments of a `run_parallel`.
    #[serde(default)]
    actions: Option<ParallelArguments>,
    /// The script, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    script: Option<KeptScript>,
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
    /// The calls that wait for approval, if the step does not ask itself.
    #[serde(default)]
    approval: Option<RunApproval>,
    /// The user's answers about calls so far.
    #[serde(default)]
    grants: Value,
    /// How many earlier questions were answered. Each question has its own token, so no answer counts for a
    /// later question.
    #[serde(default)]
    answered: usize,
    timeout_ms: u64,
    left_ms: u64,
    /// The user's answer, once it is understood, and who gave it.
    #[serde(default)]
    answer: Option<Value>,
    #[serde(default)]
    by_whom: Option<Approver>,
}

/// A finished call.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct ParkedStep {
    /// The id of its step; for a part, its place.
    id: String,
    outcome: StepOutcome,
    name: String,
    /// A `CallToolResult`; without content if no later step needs it.
    result: Value,
    repaired: Vec<String>,
    calls: usize,
    #[serde(default)]
    items: Option<ItemCounts>,
    declined: Option<Value>,
    elapsed_ms: u64,
    /// Which answer of a script it was, and when the script got it, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    got: Option<(u64, u64)>,
}

/// The token of a question, and its record.
struct Token<'a> {
    record: &'a str,
    answered: usize,
}

impl<'a> Token<'a> {
    fn read(token: &'a str) -> Self {
        let later = token.rsplit_once('-').filter(|(record, _)| record.contains('-'));
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
    pub(crate) fn new(records: Arc<Records>, clock: Clock, kind: RecordKind) -> Self {
        Self(KeptQuestions::new(records, clock, kind, AGE, MAX_PARKED))
    }

    /// Returns a new id of a record.
    fn new_id(&self) -> String {
        let id = uuid::Uuid::new_v4().simple().to_string();
        let id = if self.0.kind == RecordKind::Script { id.get(..script::ID) } else { None }.unwrap_or(&id);
        format!("{}{id}", prefix(self.0.kind))
    }

    /// Stores a run under a new id, or replaces the record with this id; `held` by this gateway while it runs.
    /// Returns the id.
    async fn put(
        &self,
        owner: &str,
        id: Option<&str>,
        flow: &ParkedFlow,
        held: bool,
    ) -> Result<String, Fault> {
        let body = json!(flow);
        let bytes = json_len(&body);
        if bytes > MAX_BYTES {
            let message = format!(
                "The results of the steps so far are too large to keep until the user answers: {bytes} \
                 bytes, and the maximum is {MAX_BYTES}. Select less with `select`."
            );
            return Err(Fault::new(FaultCode::InvalidParams, message));
        }
        let id = id.map_or_else(|| self.new_id(), ToString::to_string);
        let mut is_kept = self.0.put(owner, &id, body.clone(), held).await.map_err(not_kept)?;
        if !is_kept && self.drop_stopped(owner).await.map_err(not_kept)? {
            is_kept = self.0.put(owner, &id, body, held).await.map_err(not_kept)?;
        }
        match is_kept {
            true => Ok(id),
            false => {
                let message = format!(
                    "{MAX_PARKED} apps are already waiting for the user to answer. Answer one of them, or \
                     wait: each expires a day after it asked."
                );
                Err(Fault::new(FaultCode::RateLimited, message))
            }
        }
    }

    /// Removes the oldest script that has stopped early, for which nobody waits. Returns whether there was one.
    async fn drop_stopped(&self, owner: &str) -> Result<bool, StoreError> {
        let all = self.0.records.all(self.0.kind, owner).await?;
        let oldest = |state: ScriptState| {
            let state = json!(state);
            all.iter().find(|record| record.body["script"]["state"] == state)
        };
        match oldest(ScriptState::Stopped).or_else(|| oldest(ScriptState::Cancelled)) {
            Some(record) => Ok(self.0.records.take(self.0.kind, owner, &record.id).await?.is_some()),
            None => Ok(false),
        }
    }

    /// Returns up to `most` waiting workflows of all owners, latest first. For the user of the machine.
    pub(crate) async fn in_list(&self, most: usize) -> Result<Vec<WorkflowView>, Fault> {
        let all = self.0.all().await.map_err(not_kept)?;
        // Parts belong to other records.
        Ok(all.iter().rev().filter_map(shown).take(most).collect())
    }

    /// Removes a run that waits. Returns whether there was one.
    pub(crate) async fn remove(&self, owner: &str, id: &str) -> Result<bool, StoreError> {
        Ok(self.0.records.take(self.0.kind, owner, id).await?.is_some())
    }

    /// Returns a waiting workflow with its input, if there is one.
    pub(crate) async fn in_full(&self, owner: &str, id: &str) -> Result<Option<WorkflowView>, Fault> {
        let record = self.0.get(owner, id).await.map_err(not_kept)?;
        Ok(record.and_then(|record| {
            let mut choices = record.body["ask"]["choices"].clone();
            EscapedTexts::of(&mut choices);
            let input = Some(record.body["input"].clone());
            Some(WorkflowView { choices: Some(choices), input, ..shown(&record)? })
        }))
    }

    async fn get(&self, owner: &str, token: &str) -> Result<(Record, ParkedFlow), Fault> {
        let id = Token::read(token).record;
        let record = self.0.get(owner, id).await.map_err(not_kept)?.ok_or_else(|| no_question(token))?;
        let flow = ParkedFlow::deserialize(&record.body).map_err(|error| {
            let message =
                format!("The stored state of the app cannot be read ({error}). Call the app again.");
            Fault::new(FaultCode::Internal, message)
        })?;
        Ok((record, flow))
    }

    /// Returns the answer of a question whose time is over.
    fn timed_out(&self, record: &Record, ask: &AskArguments) -> Option<Value> {
        let limit = Duration::from_secs(ask.timeout?);
        (self.0.age(record) >= limit).then(|| json!({ "status": "timed_out" }))
    }

    /// Returns the parts kept of a run that was cut off.
    async fn parts(&self, id: &str) -> Result<BTreeMap<String, ParkedStep>, Fault> {
        let all = self.0.records.all(self.0.kind, id).await.map_err(not_kept)?;
        let read = |part: &Record| match ParkedStep::deserialize(&part.body) {
            Ok(step) => Some((part.id.clone(), step)),
            Err(error) => {
                tracing::warn!(%error, "part of an app's state cannot be read");
                None
            }
        };
        Ok(all.iter().filter_map(read).collect())
    }

    /// Keeps what has ended inside the unfinished calls of a run, so that it does not run again.
    async fn keep_parts(&self, id: &str, noted: &MemoryJournal, ended: &[ParkedStep]) {
        let parts = self.checkpoints("", id, 0);
        for (place, (one, is_needed)) in noted.all() {
            if !is_over(&place, ended) {
                parts.ended(place, &one, is_needed).await;
            }
        }
    }

    /// Returns the checkpoints of a record that nobody holds and that has no parts.
    fn checkpoints(&self, owner: &str, id: &str, answered: usize) -> Checkpoints {
        Checkpoints {
            records: self.0.records.clone(),
            kind: self.0.kind,
            owner: owner.into(),
            id: id.into(),
            answered,
            before: BTreeMap::new(),
            bytes: AtomicUsize::new(0),
            is_held: AtomicBool::new(false),
        }
    }

    /// Takes a record over with its parts, unless a gateway that runs holds it.
    async fn held(&self, record: &Record) -> Result<Option<Checkpoints>, Fault> {
        if !self.0.records.hold(record).await.map_err(not_kept)? {
            return Ok(None);
        }
        let answered = usize::try_from(record.body["answered"].as_u64().unwrap_or(0)).unwrap_or(usize::MAX);
        let mut checkpoints = self.checkpoints(&record.owner, &record.id, answered);
        checkpoints.is_held = AtomicBool::new(true);
        checkpoints.before = self.parts(&record.id).await?;
        checkpoints.bytes =
            AtomicUsize::new(checkpoints.before.values().map(|step| json_len(&json!(step))).sum());
        Ok(Some(checkpoints))
    }

    /// Ends the wait with an answer. Of several answers only one is accepted, as long as the gateway that
    /// accepted it runs.
    async fn answered(&self, mut record: Record, flow: &ParkedFlow) -> Result<Checkpoints, Fault> {
        let taken = || {
            let message =
                "The run already has an answer and continues with it. That call returns the result.";
            Fault::new(FaultCode::NotFound, message)
        };
        let checkpoints = self.held(&record).await?.ok_or_else(taken)?;
        if record.body["answer"].is_null() {
            record.revision += 1;
            set_member(&mut record.body, "answer", json!(flow.answer));
            set_member(&mut record.body, "by_whom", json!(flow.by_whom));
            if !self.0.records.change(record).await.map_err(not_kept)? {
                return Err(taken());
            }
        }
        Ok(checkpoints)
    }
}

impl ParkedFlow {
    /// Returns the question as asked in the chat.
    fn question(&self) -> Question {
        self.approval.as_ref().map_or_else(|| self.ask.in_chat(), Question::of_run)
    }

    /// Returns the question for the user outside the chat, if only the user's own answer counts.
    fn for_user(&self, caller: &Caller, token: &str, asks_user: bool) -> Option<ApprovalQuestion> {
        let (key, client) = (hex(&Sha256::digest(format!("ask {token}"))), caller.client.to_string());
        let asked = ApprovalQuestion { key, client, ..ApprovalQuestion::default() };
        match &self.approval {
            Some(approval) => (approval.by == ApproveBy::User).then(|| ApprovalQuestion {
                subject: approval.tool.to_string(),
                rule: approval.rule.clone(),
                question: approval.message.clone(),
                ..asked
            }),
            None => asks_user.then(|| ApprovalQuestion {
                subject: self.subject(),
                rule: "gateway.approve_by".into(),
                question: self.question().message,
                takes_answer: true,
                ..asked
            }),
        }
    }

    /// Returns the question as an answer of `call_app`, `run_parallel` or `ask_user`.
    fn put(&self, caller: &Caller, token: &str, question: &Question) -> Value {
        let mut asked = question.put(token);
        if self.approval.as_ref().is_some_and(|asked| asked.by == ApproveBy::Chat) && caller.forms().is_some()
        {
            let hint = "The user has not answered the form, and an answer in this chat does not count. Call ask_user with this \
                        `token` to show the form again.";
            asked.hint = Some(hint.into());
        }
        self.told(json!(asked))
    }

    /// Returns the full name of what runs.
    fn subject(&self) -> String {
        match self.script.is_some() && self.app_id == RUN_SCRIPT {
            true => format!("gateway.{RUN_SCRIPT}"),
            false => format!("apps.{}", self.app_id),
        }
    }

    fn told(&self, mut asked: Value) -> Value {
        if self.actions.is_none() && self.app_id != RUN_SCRIPT {
            set_member(&mut asked, "app_id", &*self.app_id);
        }
        set_member(&mut asked, "step", &*self.step);
        if let Some(script) = &self.script {
            script.tell(&mut asked);
        }
        let done: Vec<&str> = self.ended.iter().map(|step| step.id.as_str()).collect();
        if !done.is_empty() {
            set_member(&mut asked, "completed", json!(done));
        }
        let mut answer = text_result(asked.to_string());
        set_member(&mut answer, "_meta", json!({ QUESTION: true }));
        answer
    }
}

impl Apps {
    /// Returns up to `most` runs of each kind that wait for the user, of all owners, latest first.
    pub(crate) async fn waiting(&self, most: usize) -> Result<Vec<WorkflowView>, Fault> {
        let mut all = self.parked.in_list(most).await?;
        all.extend(self.scripts.in_list(most).await?);
        Ok(all)
    }

    /// Returns the runs of the kind that a token belongs to.
    pub(crate) fn runs_of(&self, token: &str) -> &ParkedFlows {
        if token.starts_with(prefix(RecordKind::Script)) { &self.scripts } else { &self.parked }
    }

    /// Implements the `ask_user` meta-tool. The answer that approves a call is the call's result.
    pub async fn ask_user(
        self: &Arc<Self>,
        caller: &Caller,
        arguments: AskArguments,
    ) -> Result<CallResult, Interrupt> {
        let kinds = [RecordKind::Parked, RecordKind::Script];
        let is_run = |token: &&str| kinds.iter().any(|kind| token.starts_with(prefix(*kind)));
        if let Some(token) = arguments.token.as_deref().filter(is_run) {
            let (answer, content) = (arguments.answer.as_ref(), arguments.content.as_deref());
            return Ok(Box::pin(self.go_on(caller, token, answer, content)).await?.into());
        }
        match self.asking.questions.ask_user(caller, arguments).await? {
            AskOutcome::Answer(answer) => Ok(answer_of(&answer).into()),
            AskOutcome::Run(HeldCall::Tool(request)) => self.calls.execute(caller, *request).await,
            AskOutcome::Run(HeldCall::App(app)) => {
                let CallRequest { name, params, timeout, background, select, verbatim: _, of_ui: _ } = *app;
                let app =
                    AppArguments::new(name, params).handed_out(AnswerMode { background, select }, timeout);
                Ok(self.call_app(caller, app).await?.into())
            }
        }
    }

    /// Parks a run until the user answers. Returns the question. A run that asks again keeps its record, so
    /// its last state survives if the new one cannot be stored.
    pub(crate) async fn park(
        &self,
        caller: &Caller,
        run: ParkableRun<'_>,
        results: Vec<Option<ActionResult>>,
        at: usize,
    ) -> Value {
        let open = results.get(at).and_then(Option::as_ref).and_then(|one| one.open.as_deref().cloned());
        let (ask, approval) = match open {
            Some(OpenQuestion::Ask(ask)) => (ask, None),
            Some(OpenQuestion::Approve(asked)) => {
                (AskArguments::question(asked.message.clone()), Some(asked))
            }
            None => {
                let message = "A step waits for the user without a question.";
                return Fault::new(FaultCode::Internal, message).to_result();
            }
        };
        let calls = run.plan.calls();
        let ended = results.into_iter().enumerate().filter_map(|(at, one)| Some((at, one?)));
        let ended = ended.filter(|(_, one)| one.open.is_none());
        let ended = ended.map(|(at, one)| ParkedStep::of(&calls[at].id, &one, run.needed.contains(&at)));
        let checkpoints = run.checkpoints;
        let parked = ParkedFlow {
            app_id: run.app_id.into(),
            actions: run.actions.cloned(),
            script: None,
            by: answerer(caller),
            digest: run.digest,
            input: run.input,
            ended: ended.collect(),
            step: calls[at].id.clone(),
            ask,
            approval,
            grants: caller.run.as_ref().map(|run| run.kept()).unwrap_or_default(),
            answered: checkpoints.map_or(0, |before| before.answered.saturating_add(1)),
            timeout_ms: millis(run.timeout),
            left_ms: millis(run.left),
            answer: None,
            by_whom: None,
        };
        let (id, parked) = match self.parked_flow(caller, parked, checkpoints, None).await {
            Ok(kept) => kept,
            Err(result) => return result,
        };
        if let Some(noted) = run.noted {
            self.parked.keep_parts(&id, noted, &parked.ended).await;
        }
        self.asked_about(caller, &id, &parked).await
    }

    /// Stores a run that waits for its user. Returns its id, or the result that says why it was not stored.
    async fn parked_flow(
        &self,
        caller: &Caller,
        parked: ParkedFlow,
        before: Option<&Checkpoints>,
        id: Option<&str>,
    ) -> Result<(String, ParkedFlow), Value> {
        let room = if parked.script.is_some() { &self.scripts } else { &self.parked };
        let id = before.map(|before| before.id.as_str()).or(id);
        match (room.put(caller.owner().key(), id, &parked, false).await, before) {
            (Ok(id), before) => {
                if let Some(before) = before {
                    before.asked_again(&parked.ended).await;
                }
                Ok((id, parked))
            }
            (Err(fault), None) => Err(fault.to_result()),
            (Err(fault), Some(before)) => {
                before.free().await;
                Err(fault.next("ask_user", before.way_on()).to_result())
            }
        }
    }

    /// Returns the question of a parked run, in the chat or where the user answers.
    async fn asked_about(&self, caller: &Caller, id: &str, parked: &ParkedFlow) -> Value {
        let (token, question) = (Token::of(id, parked.answered), parked.question());
        let Some(asked) = parked.for_user(caller, &token, self.asking.asks_the_user_only()) else {
            return parked.put(caller, &token, &question);
        };
        let at = match self.asking.ask_step(caller, asked).await {
            Ok(at) => at,
            Err(fault) => return fault.next("ask_user", json!({ "token": token })).to_result(),
        };
        let mut asked = json!(question.put(&token));
        asked["hint"] = json!(format!(
            "An answer in this chat does not count. {at} Tell the user; then call ask_user with this `token`: it waits \
             for the answer."
        ));
        parked.told(asked)
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
            items: one.items,
            declined: one.declined.clone(),
            elapsed_ms: one.elapsed_ms,
            got: None,
        }
    }

    fn into_result(self) -> ActionResult {
        ActionResult {
            repaired: self.repaired,
            calls: self.calls,
            items: self.items,
            skipped: self.outcome == StepOutcome::Skipped,
            declined: self.declined,
            elapsed_ms: self.elapsed_ms,
            ..ActionResult::of(self.name, self.result)
        }
    }
}

/// Whether a part belongs to a step that has ended, whose own result is enough.
fn is_over(place: &str, ended: &[ParkedStep]) -> bool {
    let path: Vec<Value> = serde_json::from_str(place).unwrap_or_default();
    path.first().is_some_and(|step| ended.iter().any(|one| *step == one.id))
}

/// Stores a part of a run. Returns why it was not stored.
async fn keep_part(
    records: &Records,
    kind: RecordKind,
    id: &str,
    place: String,
    body: Value,
) -> Result<(), String> {
    // The owner of a part is its record.
    let part = NewRecord { owner: id.into(), id: place, held: false, ..NewRecord::new(kind, body) };
    match records.put(part, RecordQuota::Refuse(MAX_PARTS)).await {
        Ok(Some(_)) => Ok(()),
        Ok(None) => Err(format!("a run has at most {MAX_PARTS} results of steps")),
        Err(error) => Err(error.to_string()),
    }
}

/// Stands for any client of the profile: whoever set up a schedule is known only by it.
const ANY_CLIENT: &str = "*";

/// Returns the account whose clients may answer for a caller; `None` if any client of this machine's user
/// may.
pub(crate) fn answerer(caller: &Caller) -> Option<String> {
    if caller.session.unattended {
        return Some(ANY_CLIENT.into());
    }
    (!caller.local).then(|| caller.account.name().to_string())
}

/// Describes a workflow for a list; `None` for a part.
fn shown(record: &Record) -> Option<WorkflowView> {
    let body = &record.body;
    let (app, question) = (body["app_id"].as_str()?, body["ask"]["question"].as_str()?);
    if body["script"].is_object() && body["script"]["state"] != json!(ScriptState::Waiting) {
        return None;
    }
    Some(WorkflowView {
        id: record.id.clone(),
        owner: record.owner.clone(),
        app_id: app.into(),
        step: body["step"].as_str().unwrap_or_default().into(),
        question: escaped(question).into_owned(),
        since_ms: record.put_ms,
        choices: None,
        input: None,
    })
}

fn not_kept(error: StoreError) -> Fault {
    nonet_state::faults::of_store("The state of the app cannot be stored or read", &error)
}
