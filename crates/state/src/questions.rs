//! Asking the user: `ask_user`, approvals, and the open questions.
//!
//! A client with forms gets a form, through the same `ClientChannel` as servers' own questions. Without forms
//! the answer is `needs_user` with the question as chat text and a token: the model asks the user, then calls
//! again with the token and the answer.

mod about;
mod approval;
mod arguments;
mod form;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use nonet_api::{
    notice::Notice,
    question::{Approver, AskAnswer, AskStatus, ClientQuestion},
};
use nonet_base::text::clip;
use nonet_config::ApproveBy;
use nonet_parts::{approvals::AnswerError, jobs::JobOwner};
use nonet_servers::{
    catalog::Tool,
    downstream::{ELICITATION, InputRequests},
};
use nonet_store::Replicas;
use nonet_text::{
    answers::{self, Decision},
    fault::{Fault, FaultCode, NextStep},
    name,
    results::json_len,
};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

pub use self::{
    about::{ChatQuestion, Question},
    approval::{ApprovalOutcome, ApprovalRequest, CallRequest, HeldCall, by_chat},
    arguments::AskArguments,
};
use self::{
    about::{QuestionSubject, SettledAnswer},
    form::{FormReply, check_form, form_for},
};
use crate::{
    grants::{Approval, RequiredApproval},
    session::{Caller, Session},
    waiting_room::WaitingRoom,
};

/// How long a question stays open, and how long an approval waits for its call.
const QUESTION_AGE: Duration = Duration::from_secs(3600);
const APPROVAL_AGE: Duration = Duration::from_secs(600);
/// How long an approval form stays open if the client can return at any time.
const PARKED_AGE: Duration = Duration::from_secs(600);
/// A form is abandoned this long before the soft deadline, to leave time for the answer.
const MARGIN: Duration = Duration::from_secs(3);
/// The size up to which params are part of the next step of a fault, in bytes; larger ones are held for it.
const MOST_REPEATED: usize = 1_000;
/// The key of Nonet's only request to a client.
const ASK: &str = "ask";
/// Words that mark a free-text question as asking for a secret.
const SECRET_WORDS: [&str; 6] =
    ["password", "passphrase", "api_key", "private_key", "access_token", "credit_card"];
/// The choice that allows a tool for the rest of the session.
const FOR_SESSION: &str = "allow_for_session";

/// What waits for the user in this process, and the user's answers that wait for clients.
pub type Room = WaitingRoom<ChatQuestion>;

/// Questions in forms and in chats.
#[derive(Debug)]
pub struct Questions {
    room: Arc<Room>,
}

/// Whose question was answered outside of the chat.
#[derive(Clone, Debug)]
pub struct SettledQuestion {
    /// The client's name.
    pub client: String,
    /// The tool whose call waits for approval, if the question is about a call.
    pub tool: Option<Arc<str>>,
}

/// The outcome of `ask_user`.
pub enum AskOutcome {
    /// The user's answer, or the question as long as there is none.
    Answer(Box<AskAnswer>),
    /// The user has approved this call.
    Run(HeldCall),
}

/// The outcome of an approval form.
pub(super) enum FormDecision {
    /// The user agreed, perhaps for the rest of the session.
    Yes {
        always: bool,
    },
    No,
    /// Nobody said a clear yes or no: what happened.
    Unanswered(String),
    /// The client cannot show forms.
    NoForm,
}

/// The outcome of a question in a form.
pub enum QuestionOutcome {
    /// The user's answer.
    Answer(Box<AskAnswer>),
    /// The client cannot show forms: the model has to ask in the chat.
    InChat(Box<Question>),
}

impl Questions {
    /// Creates the questions that wait in this room. In a cluster, any replica may get the approved call.
    pub(super) fn new(room: Arc<Room>) -> Self {
        Self { room }
    }

    /// Returns the replicas, unless the owner of an approval is bound to one of them.
    fn replicas(&self, owner: &JobOwner) -> Option<&Replicas> {
        self.room.cluster.as_ref().filter(|_| owner.session.is_none()).map(|cluster| &**cluster.replicas())
    }

    /// Consumes the user's approval of a call in the chat or on the page, and says which. An approval counts
    /// once across all replicas.
    async fn take_approval(&self, approval: &Approval) -> Option<Approver> {
        let own = self.room.take_chat(|_, chat| chat.approver(approval).is_some());
        let own = own.and_then(|chat| chat.approver(approval));
        match self.replicas(&approval.owner) {
            // Without Redis, the approval on this replica counts.
            Some(replicas) => match replicas.take_note(&approval.note()).await {
                Ok(true) => Some(own.unwrap_or(Approver::Chat)),
                Ok(false) => None,
                Err(_) => own,
            },
            None => own,
        }
    }

    /// Implements the `ask_user` meta-tool, except for the call that an answer approves.
    pub async fn ask_user(&self, caller: &Caller, arguments: AskArguments) -> Result<AskOutcome, Fault> {
        if let Some(token) = &arguments.token {
            return match &arguments.answer {
                Some(answer) => self.answered(caller, token, answer, arguments.content.as_deref()).await,
                None => self.still_open(caller, token, arguments.content.is_some()),
            };
        }
        Ok(AskOutcome::Answer(match self.ask(caller, &arguments).await? {
            QuestionOutcome::Answer(answer) => answer,
            QuestionOutcome::InChat(question) => {
                let token = self.add(caller, (*question).clone());
                Box::new(question.put(&token))
            }
        }))
    }

    /// Asks with a form, if the client supports forms.
    pub async fn ask(&self, caller: &Caller, arguments: &AskArguments) -> Result<QuestionOutcome, Fault> {
        check(arguments)?;
        let about = QuestionSubject::of(arguments);
        let schema = form_for(arguments, &about);
        let wanted = Duration::from_secs(arguments.timeout.unwrap_or(300).clamp(1, 86_400));
        let answer = match self.put(caller, &arguments.message(), &schema, wanted).await {
            FormReply::Decline => Some(AskAnswer::new(AskStatus::Denied)),
            FormReply::Cancel => Some(AskAnswer::new(AskStatus::Cancelled)),
            // An answer that does not fit the form is asked for in the chat instead.
            FormReply::Accept(form) => about.filled_in(form),
            FormReply::TimedOut => {
                let answer = arguments.default.clone();
                Some(AskAnswer { answer, ..AskAnswer::new(AskStatus::TimedOut) })
            }
            FormReply::NoForm => None,
        };
        Ok(match answer {
            Some(answer) => QuestionOutcome::Answer(Box::new(answer)),
            None => QuestionOutcome::InChat(Box::new(arguments.in_chat())),
        })
    }

    /// Whether the user has approved a call in the chat that has not been made since.
    pub(super) fn is_approved(&self, approval: &Approval) -> bool {
        !self.room.chats(|_, chat| chat.approver(approval)).is_empty()
    }

    /// Asks before a call if its policy requires approval, unless the user has just approved this very call.
    /// A tool with a question of its `own` asks every time: no answer counts for the rest of the session. The
    /// calls of a run are not asked about here.
    pub(super) async fn approve(
        &self,
        caller: &Caller,
        tool: &Tool,
        params: &Map<String, Value>,
        asked: RequiredApproval,
    ) -> Result<ApprovalOutcome, Fault> {
        let approval = Approval::of(caller, tool, params);
        let (by, is_single) = (asked.by, asked.own.is_some() || asked.is_of_call);
        let is_remembered = |hash: &str| caller.session.approves(&tool.full, hash);
        if caller.lasting
            && !is_single
            && (is_remembered(&tool.hash) || by == ApproveBy::Chat && is_remembered(&by_chat(&tool.hash)))
        {
            return Ok(ApprovalOutcome::By(Approver::Session));
        }
        if let Some(run) = &caller.run
            && let Some(answer) = run.answer(&approval, &asked)
        {
            return answer.map(ApprovalOutcome::By);
        }
        if by == ApproveBy::Chat
            && let Some(approver) = self.take_approval(&approval).await
        {
            return Ok(ApprovalOutcome::By(approver));
        }
        let mut unasked = ApprovalRequest::new(caller, tool, approval, params, asked);
        if caller.run.is_some() {
            return Ok(ApprovalOutcome::Unasked(Box::new(unasked)));
        }
        match self.by_form(caller, &unasked.message, unasked.lasting).await {
            FormDecision::Yes { always } => {
                if always {
                    caller.session.approve(&tool.full, &tool.hash);
                }
                Ok(ApprovalOutcome::By(Approver::Form))
            }
            FormDecision::No => Err(unasked.refused(None)),
            // The model gets no way to answer for a user who has forms.
            FormDecision::Unanswered(why) => {
                let message = format!("{why} `{}` was not called; repeat the call to ask again.", tool.full);
                unasked.fault = Some(Box::new(Fault::new(FaultCode::NeedsApproval, message)));
                Ok(ApprovalOutcome::Unasked(Box::new(unasked)))
            }
            FormDecision::NoForm => Ok(ApprovalOutcome::Unasked(Box::new(unasked))),
        }
    }

    /// Asks with a form whether calls may run. `lasting`: whether the session can remember the answer.
    pub(super) async fn by_form(&self, caller: &Caller, message: &str, lasting: bool) -> FormDecision {
        let choices = if lasting { vec!["allow", FOR_SESSION, "deny"] } else { vec!["allow", "deny"] };
        let schema = json!({
            "type": "object",
            "properties": { "decision": { "type": "string", "title": "Decision", "enum": choices } },
            "required": ["decision"],
        });
        let unanswered = |why: &str| FormDecision::Unanswered(why.into());
        match self.put(caller, message, &schema, patience(caller)).await {
            FormReply::Cancel => unanswered("The form was closed without an answer."),
            FormReply::TimedOut => unanswered("The user has not answered the form."),
            FormReply::NoForm => FormDecision::NoForm,
            reply => match reply.decision() {
                Decision::Yes | Decision::All => FormDecision::Yes { always: false },
                Decision::Always => FormDecision::Yes { always: lasting },
                Decision::No => FormDecision::No,
                Decision::Unclear => unanswered("The form was returned without a yes or a no."),
            },
        }
    }

    /// Holds a call until the user has agreed to it, and returns the fault that says how to go on.
    pub fn hold(&self, caller: &Caller, unasked: ApprovalRequest, held: HeldCall) -> Fault {
        let ApprovalRequest { approval, message, brief, rule, written, lasting, fault, by, .. } = unasked;
        let tool = approval.tool.clone();
        // A model does not answer for a user who has forms: the call asks by one when it is repeated.
        let asks_later = caller.unasked && caller.forms_later().is_some();
        let in_chat = fault.is_none() && by == ApproveBy::Chat && !asks_later;
        let told = match fault {
            Some(fault) if json_len(&written) <= MOST_REPEATED => {
                return fault.next("execute_tool", json!({ "name": &*tool, "params": written }));
            }
            Some(fault) => *fault,
            None if !in_chat => {
                let message = format!(
                    "`{tool}` runs only if the user agrees ({rule}), and was not called. Call ask_user with the token to ask the user. On a yes the call runs, and its result is the answer."
                );
                Fault::new(FaultCode::NeedsApproval, message)
            }
            None => {
                let always = if lasting { ", `allow_for_session`" } else { "" };
                let message = format!(
                    "`{tool}` runs only if the user agrees ({rule}). Ask the user: {brief}\nThen call ask_user with the token and, as `answer`, what the user said: `allow`{always} or `deny`. On a yes the call runs, and its result is the answer."
                );
                Fault::new(FaultCode::NeedsApproval, message)
            }
        };
        let about = QuestionSubject::Call { approval, held: Arc::new(held), lasting, brief, in_chat };
        let token = self.add(caller, Question { about, message });
        told.then(ask_again(&token))
    }

    /// Asks the user with a form whether to trust a definition. Returns `None` without a clear answer. The
    /// model never gets this question.
    pub async fn trust(&self, caller: &Caller, question: &str) -> Option<bool> {
        let schema = json!({
            "type": "object",
            "properties": { "decision": { "type": "string", "title": "Decision", "enum": ["trust", "deny"] } },
            "required": ["decision"],
        });
        match self.put(caller, question, &schema, patience(caller)).await {
            FormReply::Accept(form) => match form.get("decision").and_then(Value::as_str) {
                Some("trust") => Some(true),
                Some("deny") => Some(false),
                _ => None,
            },
            FormReply::Decline => Some(false),
            FormReply::Cancel | FormReply::TimedOut | FormReply::NoForm => None,
        }
    }

    /// Shows a form to the user, if the client supports forms.
    async fn put(&self, caller: &Caller, message: &str, schema: &Value, wanted: Duration) -> FormReply {
        let Some(asker) = caller.forms() else { return FormReply::NoForm };
        let mut params = json!({ "message": message, "requestedSchema": schema });
        if asker.parks {
            params["mode"] = json!("form");
        }
        let requests =
            InputRequests::from_iter([(ASK.to_string(), json!({ "method": ELICITATION, "params": params }))]);
        let patience = wanted.min(patience(caller));
        let asked = tokio::select! {
            asked = tokio::time::timeout(patience, asker.put(requests)) => asked,
            () = caller.cancel.cancelled() => return FormReply::Cancel,
        };
        match asked.map(|replies| replies.and_then(|mut replies| replies.remove(ASK))) {
            Ok(Some(Ok(answer))) => FormReply::of(&answer),
            Ok(Some(Err(error))) => {
                tracing::warn!(%error, "the client failed to show a form");
                FormReply::NoForm
            }
            Ok(None) => FormReply::NoForm,
            // The user may answer later, so ask through the model instead.
            Err(_) if patience < wanted => FormReply::NoForm,
            Err(_) => FormReply::TimedOut,
        }
    }

    /// Adds an open question and returns its token. Asking again about the same call reuses the question.
    fn add(&self, caller: &Caller, question: Question) -> String {
        let is_same = |open: &ChatQuestion| match &question.about {
            QuestionSubject::Call { approval, .. } => open.question.is_about(approval) && !open.is_over(),
            _ => false,
        };
        let same = self
            .room
            .chats(|open, chat| (is_same(chat) && chat.settled.is_none()).then(|| open.token.clone()));
        // An answer that was never fetched does not answer the same call again.
        while self.room.take_chat(|_, open| is_same(open)).is_some() {}
        let token = same.into_iter().next().unwrap_or_else(|| self.room.token("ask-"));
        let chat =
            ChatQuestion { question: question.into(), client: caller.client.to_string(), settled: None };
        self.put_in_room(&token, caller.owner(), QUESTION_AGE, chat);
        token
    }

    fn put_in_room(&self, token: &str, owner: JobOwner, lasts: Duration, chat: ChatQuestion) {
        let size = (chat.question.bytes(), chat.is_approved());
        self.room.put_chat(token.into(), owner, lasts, chat, size);
    }

    /// Returns a question that a caller has asked.
    fn of_caller(&self, caller: &Caller, token: &str) -> Result<ChatQuestion, Fault> {
        let owner = caller.owner();
        let own = self.room.chats(|open, chat| {
            let is_own = open.token == token && open.owner == owner && !chat.is_over();
            is_own.then(|| chat.clone())
        });
        own.into_iter().next().ok_or_else(|| no_question(token))
    }

    /// Takes a question that no longer waits for the chat. Returns its outcome: the call that may run, or the
    /// answer that the user gave elsewhere.
    fn settled(&self, caller: &Caller, token: &str) -> Option<AskOutcome> {
        let mut open = self.room.take_chat(|of, open| of == token && open.is_for_client())?;
        let held = match &open.question.about {
            QuestionSubject::Call { held, .. } => Some(held.clone()),
            _ => None,
        };
        match (&mut open.settled, held) {
            (None, Some(held)) => Some(AskOutcome::run(held)),
            (None, None) => None,
            (Some(settled), Some(held)) if settled.answer.status == AskStatus::Approved => {
                settled.is_fetched = true;
                let left = APPROVAL_AGE.saturating_sub(settled.at.elapsed());
                self.put_in_room(token, caller.owner(), left, open);
                Some(AskOutcome::run(held))
            }
            (Some(settled), _) => Some(AskOutcome::Answer(Box::new(settled.answer.clone()))),
        }
    }

    /// Repeats an open question. Content without an answer leaves it open.
    fn still_open(&self, caller: &Caller, token: &str, content: bool) -> Result<AskOutcome, Fault> {
        let question = self.of_caller(caller, token)?;
        let mut again = question.question.put(token);
        if let Some(outcome) = self.settled(caller, token) {
            return Ok(outcome);
        }
        if content {
            let hint = "`content` without an `answer` is neither a yes nor a no. The question is still open. Ask the user; \
                        then call ask_user with this `token` and, as `answer`, what the user said.";
            again.hint = Some(hint.into());
        }
        Ok(AskOutcome::Answer(Box::new(again)))
    }

    /// Handles the answer that the model returns for a token. An unclear answer leaves the question open.
    async fn answered(
        &self,
        caller: &Caller,
        token: &str,
        said: &Value,
        content: Option<&str>,
    ) -> Result<AskOutcome, Fault> {
        let open = self.of_caller(caller, token)?;
        // A no needs no other word of the user.
        if open.is_held_only()
            && let Ok(answer) = open.question.read(token, said, content)
            && answer.status == AskStatus::Denied
            && self.room.take_chat(|of, _| of == token).is_some()
        {
            return Ok(AskOutcome::Answer(Box::new(answer)));
        }
        if let Some(mut outcome) = self.settled(caller, token) {
            if let AskOutcome::Answer(answer) = &mut outcome {
                answer.hint =
                    Some("The user had already answered on Nonet's page; that answer counts.".into());
            }
            return Ok(outcome);
        }
        let answer = match open.question.read(token, said, content) {
            Ok(answer) => answer,
            Err(again) => return Ok(AskOutcome::Answer(again)),
        };
        // A token works once, even if two answers arrive at the same time: the first counts.
        let is_first = |of: &str, open: &ChatQuestion| of == token && open.settled.is_none();
        let Some(open) = self.room.take_chat(is_first) else {
            return self.still_open(caller, token, false);
        };
        note_lasting(&caller.session, &open.question.about, &answer, said);
        let Some(held) = self.approved_call(&open, &answer).await else {
            return Ok(AskOutcome::Answer(Box::new(answer)));
        };
        let settled = SettledAnswer { answer, by: Approver::Chat, at: Instant::now(), is_fetched: true };
        let settled = Some(settled);
        self.put_in_room(token, caller.owner(), APPROVAL_AGE, ChatQuestion { settled, ..open });
        Ok(AskOutcome::run(held))
    }

    /// Returns the call that an answer approves, which may be made once. The other replicas know of it then.
    async fn approved_call(&self, open: &ChatQuestion, answer: &AskAnswer) -> Option<Arc<HeldCall>> {
        let QuestionSubject::Call { approval, held, .. } = &open.question.about else { return None };
        if answer.status != AskStatus::Approved {
            return None;
        }
        if let Some(replicas) = self.replicas(&approval.owner)
            && let Err(error) = replicas.put_note(&approval.note(), APPROVAL_AGE).await
        {
            tracing::debug!(%error, "other replicas do not know of an approval");
        }
        Some(held.clone())
    }

    /// Returns the open questions of all clients, oldest first, for the user outside of the chat.
    pub fn open_ones(&self) -> Vec<ClientQuestion> {
        self.room.chats(|open, chat| chat.waits_for_user().then(|| chat.shown(open)))
    }

    /// Answers a question outside of the chat. The client gets the answer when it asks for it by its token,
    /// and with a notice if its session, which `session_of` looks up, still lasts.
    ///
    /// # Errors
    ///
    /// If no such question is open, or the answer is not understood.
    pub async fn settle(
        &self,
        token: &str,
        said: &Value,
        session_of: impl FnOnce(u64) -> Option<Arc<Session>>,
    ) -> Result<SettledQuestion, AnswerError> {
        let fits = |of: &str, chat: &ChatQuestion| of == token && chat.waits_for_user();
        let open = self.room.chats(|open, chat| {
            fits(&open.token, chat).then(|| (open.owner.clone(), open.until, chat.question.clone()))
        });
        let (owner, until, question) = open.into_iter().next().ok_or(AnswerError::Unknown)?;
        let answer = question.read_from_user(said).map_err(AnswerError::Unfit)?;
        // Out of the room until the answer has its effect: of two answers the first counts.
        let open = self.room.take_chat(fits).ok_or(AnswerError::Unknown)?;
        let session = owner.session.and_then(session_of);
        if let Some(session) = &session {
            note_lasting(session, &question.about, &answer, said);
        }
        let runs = self.approved_call(&open, &answer).await.is_some();
        let told = SettledQuestion { client: open.client.clone(), tool: question.tool() };
        let (at, is_fetched) = (Instant::now(), false);
        let settled = Some(SettledAnswer { answer: answer.clone(), by: Approver::Page, at, is_fetched });
        let left = until.saturating_duration_since(at);
        let lasts = if runs { left.max(APPROVAL_AGE) } else { left };
        self.put_in_room(token, owner, lasts, ChatQuestion { settled, ..open });
        if let Some(session) = session {
            let answer = AskAnswer { next_step: runs.then(|| ask_again(token)), ..answer };
            session.notify(Notice::QuestionAnswered { token: token.into(), answer });
        }
        Ok(told)
    }
}

/// Checks that the arguments contain a question, and that it does not ask for a secret.
pub fn check(arguments: &AskArguments) -> Result<(), Fault> {
    if arguments.question.trim().is_empty() {
        return Err(Fault::new(
            FaultCode::InvalidParams,
            "`question` is missing: what should the user be asked?",
        ));
    }
    if let Some(form) = &arguments.form {
        check_form(form)?;
    }
    let free = arguments.form.is_none() && arguments.choices.is_empty() && arguments.content.is_none();
    let words = name::fold(&arguments.question);
    if free && SECRET_WORDS.iter().any(|word| words.contains(word)) {
        let message = "This asks for a secret. Nonet never asks for secrets: the user sets them as environment variables and \
                       names them in servers.toml as ${NAME}. If it asks something else, give `choices`.";
        let again = json!({ "question": arguments.question, "choices": ["yes", "no"] });
        return Err(Fault::new(FaultCode::InvalidParams, message).next("ask_user", again));
    }
    Ok(())
}

/// Returns how long to wait for a form: within the client's soft deadline, unless the client can return at
/// any time. A short deadline keeps its first half.
pub(super) fn patience(caller: &Caller) -> Duration {
    match caller.forms() {
        Some(asker) if asker.parks => PARKED_AGE,
        _ => caller.limits.soft_deadline.saturating_sub(MARGIN).max(caller.limits.soft_deadline / 2),
    }
}

/// Remembers an approval for the rest of a session, if that is what the user said, and says how long the
/// approval holds.
fn note_lasting(session: &Session, about: &QuestionSubject, answer: &AskAnswer, said: &Value) {
    let QuestionSubject::Call { approval, lasting, .. } = about else { return };
    if answer.status != AskStatus::Approved || answers::decision(said).decision == Decision::Yes {
        return;
    }
    if *lasting {
        session.approve(&approval.tool, &by_chat(&approval.hash));
    }
    let holds = if *lasting { "every call for the rest of this session" } else { "this call" };
    session.notify(Notice::Approved { tool: approval.tool.to_string(), holds_for: holds.into() });
}

impl AskOutcome {
    fn run(held: Arc<HeldCall>) -> Self {
        Self::Run(Arc::unwrap_or_clone(held))
    }
}

/// Returns the call that brings the answer to a question, or asks again.
pub(super) fn ask_again(token: &str) -> NextStep {
    NextStep::new("ask_user", json!({ "token": token }))
}

/// Builds the fault for a token of no open question.
pub fn no_question(token: &str) -> Fault {
    Fault::new(
        FaultCode::NotFound,
        format!(
            "No open question has the token `{}`: it was answered, or has expired. Ask again.",
            clip(token, 80)
        ),
    )
}
