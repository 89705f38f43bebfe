//! Asking the user: `ask_user`, approvals, and the open questions.
//!
//! A client with forms gets a form, through the same `ClientChannel` as servers' own questions. Without forms
//! the answer is `needs_user` with the question as chat text and a token: the model asks the user, then calls
//! again with the token and the answer.

mod about;
mod form;

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use dashmap::DashMap;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

pub(super) use self::about::Question;
use self::{
    about::About,
    form::{Reply, check_form, form_for},
};
use super::{
    interrupt::Interrupt,
    session::{Caller, Session},
};
use crate::{
    answers::{self, Decision},
    audit::Approver,
    catalog::Tool,
    cluster::Cluster,
    config::ApproveBy,
    downstream::{ELICITATION, InputRequests},
    fault::{Code, Fault},
    jobs::JobOwner,
    json::set_member,
    name, pins,
    schema::Schema,
    store::Replicas,
    text::{clip, escaped, hex},
};

/// How long a question stays open, and how long an approval waits for its call.
const QUESTION_AGE: Duration = Duration::from_secs(3600);
const APPROVAL_AGE: Duration = Duration::from_secs(600);
/// How long an approval form stays open if the client can return at any time.
const PARKED_AGE: Duration = Duration::from_secs(600);
/// How many bytes of open questions one client may have; beyond that, or beyond its quota, its oldest question is
/// dropped.
const MAX_BYTES: usize = 8 << 20;
/// A form is abandoned this long before the soft deadline, to leave time for the answer.
const MARGIN: Duration = Duration::from_secs(3);
/// The maximum number of choices in a workflow's question, and the maximum size of the question in bytes.
const MAX_CHOICES: usize = 200;
const MAX_MESSAGE: usize = 20_000;
/// How many characters of a call's params an approval shows to the user.
const MOST_SHOWN: usize = 6_000;
/// The key of Nonet's only request to a client.
const ASK: &str = "ask";
/// Words that mark a free-text question as asking for a secret.
const SECRET_WORDS: [&str; 6] =
    ["password", "passphrase", "api_key", "private_key", "access_token", "credit_card"];
/// The choice that allows a tool for the rest of the session.
const FOR_SESSION: &str = "allow_for_session";

/// A single approved call: this tool with these params, once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Approval {
    tool: Arc<str>,
    /// The hash of the definition shown to the user.
    hash: Arc<str>,
    owner: JobOwner,
    params: String,
}

#[derive(Debug, Default)]
pub(crate) struct Questions {
    open: DashMap<String, Question>,
    /// When each was given, and where.
    approvals: DashMap<Approval, (Instant, Approver)>,
    cluster: Option<Arc<Cluster>>,
}

/// The arguments of `ask_user`.
#[derive(Clone, Debug, Default, serde::Deserialize, serde::Serialize)]
pub struct AskArguments {
    #[serde(default)]
    question: String,
    pub(super) content: Option<String>,
    #[serde(default)]
    choices: Vec<String>,
    #[serde(default)]
    allow_multiple: bool,
    form: Option<Value>,
    default: Option<Value>,
    pub(super) timeout: Option<u64>,
    pub(super) token: Option<String>,
    pub(super) answer: Option<Value>,
}

/// Whose question was answered outside of the chat.
#[derive(Clone, Debug)]
pub struct Settled {
    /// The client's name.
    pub client: String,
    /// The tool whose call waits for approval, if the question is about a call.
    pub tool: Option<Arc<str>>,
}

/// The approval that a call needs.
pub(super) struct ApprovalAsked {
    /// The rule that requires the approval.
    pub rule: String,
    /// The params as written.
    pub written: Value,
    /// The tool's own question, if it has one.
    pub own: Option<String>,
    /// Whose answer counts.
    pub by: ApproveBy,
}

/// The outcome of an approval.
pub(super) enum Approved {
    /// The user agreed, in this way.
    By(Approver),
    /// The client has no form, and an answer through the chat does not count.
    Elsewhere(Box<Unasked>),
}

/// A call whose user was not asked yet.
pub(super) struct Unasked {
    pub approval: Approval,
    pub message: String,
    pub rule: String,
    pub written: Value,
    pub lasting: bool,
}

impl Approval {
    /// Creates the approval of a call.
    pub(super) fn of(caller: &Caller, tool: &Tool, params: &Map<String, Value>) -> Self {
        // In a list, every member of the params counts, in any order.
        let params = pins::hash(&json!([params]));
        Self { tool: tool.full.clone(), hash: tool.hash.clone(), owner: caller.owner(), params }
    }

    /// Returns the name under which replicas share the approval.
    fn note(&self) -> String {
        format!("approved:{}", self.key(""))
    }

    /// Returns a digest of the approval. Each process numbers its own sessions, so `nonce` tells the processes apart.
    pub(super) fn key(&self, nonce: &str) -> String {
        let JobOwner { session, profile, local, account } = &self.owner;
        // A client of this machine's user may have restarted since.
        let account = (!*local).then(|| account.name().to_string());
        let nonce = session.map(|_| nonce);
        let all = json!([self.tool, self.hash, self.params, session, profile, local, nonce, account]);
        hex(&Sha256::digest(all.to_string().as_bytes()))
    }
}

/// Marks a definition that the user approved through the chat: the approval counts only as long as answers in the chat
/// do.
fn by_chat(hash: &str) -> Arc<str> {
    format!("chat {hash}").into()
}

/// The outcome of a question.
pub(super) enum QuestionOutcome {
    Answer(Value),
    /// The client cannot show forms: the model has to ask in the chat.
    InChat(Box<Question>),
}

impl AskArguments {
    /// Returns the schema of a question in a workflow, which says which values are text.
    pub(super) fn texts() -> &'static Schema {
        static TEXTS: LazyLock<Schema> = LazyLock::new(|| {
            let text = json!({ "type": "string" });
            Schema::new(json!({ "properties": {
                "question": text,
                "content": text,
                "choices": { "type": "array", "items": text },
            } }))
        });
        &TEXTS
    }

    /// Creates the question of a workflow's step. Without a limit, it waits indefinitely for its answer.
    pub(super) fn of_step(id: &str, mut written: Value, timeout_ms: Option<u64>) -> Result<Self, Fault> {
        let wrong = |message: String| Fault::new(Code::InvalidParams, message);
        match written.get_mut("choices") {
            Some(Value::Array(choices)) => {
                if choices.len() > MAX_CHOICES {
                    let count = choices.len();
                    return Err(wrong(format!("`{id}` has {count} choices; the maximum is {MAX_CHOICES}.")));
                }
                for choice in choices.iter_mut().filter(|choice| !choice.is_string()) {
                    *choice = Value::String(choice.to_string());
                }
            }
            Some(other) => {
                return Err(wrong(format!(
                    "The `choices` of `{id}` are {}, not an array.",
                    clip(&other.to_string(), 80)
                )));
            }
            None => {}
        }
        let mut arguments: Self = serde_json::from_value(written)
            .map_err(|error| wrong(format!("The question of `{id}` cannot be asked: {error}.")))?;
        let bytes = arguments.in_chat().message.len();
        if bytes > MAX_MESSAGE {
            return Err(wrong(format!(
                "The question of `{id}` has {bytes} bytes with its content and choices; the maximum is {MAX_MESSAGE}. Select less."
            )));
        }
        arguments.timeout = Some(timeout_ms.map_or(u64::MAX, |ms| ms.div_ceil(1_000)));
        Ok(arguments)
    }

    /// Returns the question as asked in the chat.
    pub(super) fn in_chat(&self) -> Question {
        let about = About::of(self);
        let mut message = self.message();
        if let About::Choices(choices, _) = &about {
            for (n, choice) in choices.iter().enumerate() {
                message.push_str(&format!("\n{}. {choice}", n + 1));
            }
        }
        if matches!(about, About::Content(_)) {
            message.push_str("\n\nApprove, deny, or say what to change.");
        }
        Question::new(about, message)
    }

    fn message(&self) -> String {
        let question = escaped(&self.question);
        match &self.content {
            Some(content) => format!("{question}\n\n{}", escaped(content)),
            None => question.into_owned(),
        }
    }
}

impl Questions {
    /// Creates an empty set of questions. In a cluster, a token names the replica of its question, and any replica may
    /// get the approved call.
    pub fn new(cluster: Option<Arc<Cluster>>) -> Self {
        Self { cluster, ..Self::default() }
    }

    /// Returns the replicas, unless the owner of an approval is bound to one of them.
    fn replicas(&self, owner: &JobOwner) -> Option<&Replicas> {
        self.cluster.as_ref().filter(|_| owner.session.is_none()).map(|cluster| &**cluster.replicas())
    }

    /// Consumes the user's approval of a call in the chat or on the page, and says which. An approval counts once across all
    /// replicas.
    async fn take_approval(&self, approval: &Approval) -> Option<Approver> {
        let own = self.approvals.remove(approval).map(|(_, given)| given);
        let own = own.filter(|(at, _)| at.elapsed() < APPROVAL_AGE).map(|(_, by)| by);
        let taken = match self.replicas(&approval.owner) {
            // Without Redis, the approval on this replica counts.
            Some(replicas) => match replicas.take_note(&approval.note()).await {
                Ok(true) => Some(own.unwrap_or(Approver::Chat)),
                Ok(false) => None,
                Err(_) => own,
            },
            None => own,
        };
        if taken.is_some() {
            // The client has made the call without fetching the answer first.
            self.open.retain(|_, open| open.settled.is_none() || !open.is_about(approval));
        }
        taken
    }

    /// Implements the `ask_user` meta-tool.
    pub async fn ask_user(&self, caller: &Caller, arguments: AskArguments) -> Result<Value, Interrupt> {
        if let Some(token) = &arguments.token {
            return Ok(match &arguments.answer {
                Some(answer) => self.answered(caller, token, answer, arguments.content.as_deref()).await?,
                None => self.still_open(caller, token, arguments.content.is_some())?,
            });
        }
        match self.ask(caller, &arguments).await? {
            QuestionOutcome::Answer(answer) => Ok(answer),
            QuestionOutcome::InChat(question) => {
                let token = self.add(caller, (*question).clone());
                Ok(question.put(&token))
            }
        }
    }

    /// Asks with a form, if the client supports forms.
    pub(super) async fn ask(
        &self,
        caller: &Caller,
        arguments: &AskArguments,
    ) -> Result<QuestionOutcome, Fault> {
        check(arguments)?;
        let about = About::of(arguments);
        let schema = form_for(arguments, &about);
        let wanted = Duration::from_secs(arguments.timeout.unwrap_or(300).clamp(1, 86_400));
        match self.put(caller, &arguments.message(), &schema, wanted).await {
            FormOutcome::Reply(Reply::Decline) => {
                return Ok(QuestionOutcome::Answer(json!({ "status": "denied" })));
            }
            FormOutcome::Reply(Reply::Cancel) => {
                return Ok(QuestionOutcome::Answer(json!({ "status": "cancelled" })));
            }
            FormOutcome::Reply(Reply::Accept(form)) => {
                if let Some(answer) = about.filled_in(form) {
                    return Ok(QuestionOutcome::Answer(answer));
                }
                // The answer does not fit the form, so ask in the chat instead.
            }
            FormOutcome::TimedOut => {
                let mut answer = json!({ "status": "timed_out" });
                if let Some(default) = &arguments.default {
                    answer["answer"] = default.clone();
                }
                return Ok(QuestionOutcome::Answer(answer));
            }
            FormOutcome::NoForm => {}
        }
        Ok(QuestionOutcome::InChat(Box::new(arguments.in_chat())))
    }

    /// Whether the user has approved a call in the chat that has not been made since.
    pub(super) fn is_approved(&self, approval: &Approval) -> bool {
        self.approvals.get(approval).is_some_and(|given| given.0.elapsed() < APPROVAL_AGE)
    }

    /// Asks before a call if its policy requires approval, unless the user has just approved this very call. A tool
    /// with a question of its `own` asks every time: no answer counts for the rest of the session. Without forms, the
    /// answer comes through the chat or from outside it.
    pub(super) async fn approve(
        &self,
        caller: &Caller,
        tool: &Tool,
        params: &Map<String, Value>,
        asked: ApprovalAsked,
    ) -> Result<Approved, Interrupt> {
        let ApprovalAsked { rule, written, own, by } = asked;
        let approval = Approval::of(caller, tool, params);
        // Only a lasting session can remember the choice.
        let lasting = caller.lasting && own.is_none();
        let is_remembered = |hash: &str| caller.session.approves(&tool.full, hash);
        if lasting
            && (is_remembered(&tool.hash) || by == ApproveBy::Chat && is_remembered(&by_chat(&tool.hash)))
        {
            return Ok(Approved::By(Approver::Session));
        }
        if by == ApproveBy::Chat
            && let Some(approver) = self.take_approval(&approval).await
        {
            return Ok(Approved::By(approver));
        }
        let message = own.unwrap_or_else(|| approval_message(tool, params));
        let message = escaped(&message).into_owned();
        let choices = if lasting { vec!["allow", FOR_SESSION, "deny"] } else { vec!["allow", "deny"] };
        let schema = json!({
            "type": "object",
            "properties": { "decision": { "type": "string", "title": "Decision", "enum": choices } },
            "required": ["decision"],
        });
        let written = if written.is_null() { json!({}) } else { written };
        let about = About::Call { approval, params: written.clone(), lasting };
        match self.put(caller, &message, &schema, patience(caller)).await {
            FormOutcome::Reply(Reply::Cancel) => {
                let message = format!("The form for `{}` was closed without an answer.", tool.full);
                Err(unanswered(tool, &message, written))
            }
            FormOutcome::Reply(reply) => match reply.decision() {
                Decision::Yes => Ok(Approved::By(Approver::Form)),
                Decision::Always => {
                    if lasting {
                        caller.session.approve(&tool.full, &tool.hash);
                    }
                    Ok(Approved::By(Approver::Form))
                }
                Decision::No => Err(Fault::new(
                    Code::Forbidden,
                    format!("The user did not allow this call to `{}` ({rule}). Continue without it, or ask the user what to do instead.", tool.full),
                )
                .into()),
                Decision::Change | Decision::Unclear => {
                    let message = format!("The form for `{}` was returned without a yes or a no.", tool.full);
                    Err(unanswered(tool, &message, written))
                }
            },
            // No token for clients with forms: a model could answer it without the user.
            FormOutcome::TimedOut => {
                let message = format!("The user has not answered whether `{}` may run.", tool.full);
                Err(unanswered(tool, &message, written))
            }
            FormOutcome::NoForm if by == ApproveBy::User => {
                let About::Call { approval, params: written, lasting } = about else {
                    return Err(Fault::new(Code::Internal, "This approval is not for a call.").into());
                };
                Ok(Approved::Elsewhere(Box::new(Unasked { approval, message, rule, written, lasting })))
            }
            FormOutcome::NoForm => {
                let question = Question::new(about, message.clone());
                let token = self.add(caller, question);
                let always = if lasting { ", `allow_for_session`" } else { "" };
                Err(Fault::new(
                    Code::NeedsApproval,
                    format!("`{}` runs only if the user agrees ({rule}). Ask the user: {message}\nThen call ask_user with the token and, as `answer`, what the user said: `allow`{always} or `deny`. Then make this call again.", tool.full),
                )
                .next("ask_user", json!({ "token": token }))
                .into())
            }
        }
    }

    /// Asks the user with a form whether to trust a definition. Returns `None` without a clear answer. The model never
    /// gets this question.
    pub(super) async fn trust(&self, caller: &Caller, question: &str) -> Option<bool> {
        let schema = json!({
            "type": "object",
            "properties": { "decision": { "type": "string", "title": "Decision", "enum": ["trust", "deny"] } },
            "required": ["decision"],
        });
        match self.put(caller, question, &schema, patience(caller)).await {
            FormOutcome::Reply(Reply::Accept(form)) => match form.get("decision").and_then(Value::as_str) {
                Some("trust") => Some(true),
                Some("deny") => Some(false),
                _ => None,
            },
            FormOutcome::Reply(Reply::Decline) => Some(false),
            FormOutcome::Reply(Reply::Cancel) | FormOutcome::TimedOut | FormOutcome::NoForm => None,
        }
    }

    /// Shows a form to the user, if the client supports forms.
    async fn put(&self, caller: &Caller, message: &str, schema: &Value, wanted: Duration) -> FormOutcome {
        let Some(asker) = caller.forms() else { return FormOutcome::NoForm };
        let mut params = json!({ "message": message, "requestedSchema": schema });
        if asker.parks {
            params["mode"] = json!("form");
        }
        let requests =
            InputRequests::from_iter([(ASK.to_string(), json!({ "method": ELICITATION, "params": params }))]);
        let patience = wanted.min(patience(caller));
        let asked = tokio::select! {
            asked = tokio::time::timeout(patience, asker.put(requests)) => asked,
            () = caller.cancel.cancelled() => return FormOutcome::Reply(Reply::Cancel),
        };
        match asked.map(|replies| replies.and_then(|mut replies| replies.remove(ASK))) {
            Ok(Some(Ok(answer))) => FormOutcome::Reply(Reply::of(&answer)),
            Ok(Some(Err(error))) => {
                tracing::warn!(%error, "the client failed to show a form");
                FormOutcome::NoForm
            }
            Ok(None) => FormOutcome::NoForm,
            // The user may answer later, so ask through the model instead.
            Err(_) if patience < wanted => FormOutcome::NoForm,
            Err(_) => FormOutcome::TimedOut,
        }
    }

    /// Adds an open question and returns its token. Asking again about the same call reuses the question. A question
    /// beyond the client's quota replaces the client's oldest one.
    fn add(&self, caller: &Caller, mut question: Question) -> String {
        let same = |open: &Question| match (&open.about, &question.about) {
            (About::Call { approval: one, .. }, About::Call { approval: other, .. }) => one == other,
            _ => false,
        };
        // An answer that was never fetched does not answer the same call again.
        self.open.retain(|_, open| open.settled.is_none() || !same(open));
        if let Some(mut open) = self.open.iter_mut().find(|open| same(open)) {
            open.asked = Instant::now();
            return open.key().clone();
        }
        self.open.retain(|_, question| question.asked.elapsed() < QUESTION_AGE);
        let account = &caller.account;
        question.owner = caller.owner();
        question.client.clone_from(&caller.client);
        let own = self.open.iter().filter(|open| open.owner.account == *account);
        let mut own: Vec<(Instant, usize, String)> =
            own.map(|open| (open.asked, open.bytes(), open.key().clone())).collect();
        own.sort_by_key(|(asked, ..)| std::cmp::Reverse(*asked));
        let mut bytes = question.bytes() + own.iter().map(|(_, bytes, _)| bytes).sum::<usize>();
        while own.len() >= account.quotas().questions || bytes > MAX_BYTES {
            let Some((_, of_it, oldest)) = own.pop() else { break };
            bytes = bytes.saturating_sub(of_it);
            self.open.remove(&oldest);
        }
        let token = format!("ask-{}", uuid::Uuid::new_v4().simple());
        let token = self.cluster.as_ref().map_or_else(|| token.clone(), |cluster| cluster.handle(&token));
        self.open.insert(token.clone(), question);
        token
    }

    /// Repeats an open question. Content without an answer leaves it open.
    fn still_open(&self, caller: &Caller, token: &str, content: bool) -> Result<Value, Fault> {
        let question = self.open.get(token).filter(|question| question.is_for(caller));
        let question = question.ok_or_else(|| no_question(token))?;
        if let Some(settled) = question.settled.clone() {
            drop(question);
            self.open.remove(token);
            return Ok(settled);
        }
        let mut again = question.put(token);
        if content {
            let hint = "`content` without an `answer` is neither a yes nor a no. The question is still open. Ask the user; \
                        then call ask_user with this `token` and, as `answer`, what the user said.";
            again["hint"] = json!(hint);
        }
        Ok(again)
    }

    /// Handles the answer that the model returns for a token. An unclear answer leaves the question open.
    async fn answered(
        &self,
        caller: &Caller,
        token: &str,
        said: &Value,
        content: Option<&str>,
    ) -> Result<Value, Fault> {
        let question = self.open.get(token).map(|question| question.clone());
        let question = question.filter(|question| question.is_for(caller));
        let question = question.ok_or_else(|| no_question(token))?;
        if let Some(mut settled) = question.settled {
            self.open.remove(token).ok_or_else(|| no_question(token))?;
            let hint = "The user had already answered on Nonet's page; that answer counts.";
            set_member(&mut settled, "hint", hint);
            return Ok(settled);
        }
        let answer = match question.read(token, said, content) {
            Ok(answer) => answer,
            Err(again) => return Ok(again),
        };
        // A token works once, even if two answers arrive at the same time: the first counts.
        if self.open.remove_if(token, |_, open| open.settled.is_none()).is_none() {
            return self.still_open(caller, token, false);
        }
        note_lasting(&caller.session, &question.about, &answer, said);
        Ok(self.taken(question.about, answer, Approver::Chat).await)
    }

    /// Gives an answer its effect: an approved call may be made once. Returns the answer for the client.
    async fn taken(&self, about: About, mut answer: Value, by: Approver) -> Value {
        if let About::Call { approval, params, .. } = about
            && answer["status"] == "approved"
        {
            let name = approval.tool.clone();
            self.approvals.retain(|_, given| given.0.elapsed() < APPROVAL_AGE);
            if let Some(replicas) = self.replicas(&approval.owner)
                && let Err(error) = replicas.put_note(&approval.note(), APPROVAL_AGE).await
            {
                tracing::debug!(%error, "other replicas do not know of an approval");
            }
            self.approvals.insert(approval, (Instant::now(), by));
            answer["next_step"] =
                json!({ "tool": "execute_tool", "arguments": { "name": &*name, "params": params } });
        }
        answer
    }

    /// Returns the open questions of all clients, oldest first, for the user outside of the chat.
    pub(super) fn open_ones(&self) -> Vec<Value> {
        let is_open =
            |question: &Question| question.settled.is_none() && question.asked.elapsed() < QUESTION_AGE;
        let mut open: Vec<(Instant, Value)> = self
            .open
            .iter()
            .filter(|open| is_open(open.value()))
            .map(|open| (open.asked, open.shown(open.key())))
            .collect();
        open.sort_by_key(|(asked, _)| *asked);
        open.into_iter().map(|(_, shown)| shown).collect()
    }

    /// Answers a question outside of the chat. The client gets the answer when it asks for it by its token, and with a notice if
    /// its session, which `session_of` looks up, still lasts.
    ///
    /// # Errors
    ///
    /// `None` if no such question is open; else why the answer is not understood.
    pub(super) async fn settle(
        &self,
        token: &str,
        said: &Value,
        session_of: impl FnOnce(u64) -> Option<Arc<Session>>,
    ) -> Result<Settled, Option<String>> {
        let is_open = |open: &Question| open.settled.is_none() && open.asked.elapsed() < QUESTION_AGE;
        let question = self.open.get(token).map(|question| question.clone());
        let question = question.filter(is_open).ok_or(None)?;
        let answer = question.read_from_user(said).map_err(Some)?;
        // Off the table until the answer has its effect: of two answers the first counts.
        let (_, mut question) = self.open.remove_if(token, |_, open| is_open(open)).ok_or(None)?;
        let session = question.owner.session.and_then(session_of);
        if let Some(session) = &session {
            note_lasting(session, &question.about, &answer, said);
        }
        let answer = self.taken(question.about.clone(), answer, Approver::Page).await;
        let settled = Settled { client: question.client.clone(), tool: question.tool() };
        question.settled = Some(answer.clone());
        self.open.insert(token.into(), question);
        if let (Some(session), Value::Object(answer)) = (session, answer) {
            let mut notice =
                Map::from_iter([("kind".into(), json!("question_answered")), ("token".into(), json!(token))]);
            notice.extend(answer);
            session.notify(Value::Object(notice));
        }
        Ok(settled)
    }
}

/// Checks that the arguments contain a question, and that it does not ask for a secret.
pub(super) fn check(arguments: &AskArguments) -> Result<(), Fault> {
    if arguments.question.trim().is_empty() {
        return Err(Fault::new(Code::InvalidParams, "`question` is missing: what should the user be asked?"));
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
        return Err(Fault::new(Code::InvalidParams, message).next("ask_user", again));
    }
    Ok(())
}

fn approval_message(tool: &Tool, params: &Map<String, Value>) -> String {
    let whole = serde_json::to_string_pretty(params).unwrap_or_default();
    // The user has to know if part of the params is not shown.
    let shown = match whole.chars().count().saturating_sub(MOST_SHOWN) {
        0 => whole,
        left => format!(
            "NOT ALL IS SHOWN: {left} more characters of the params would be sent.\n{}",
            clip(&whole, MOST_SHOWN)
        ),
    };
    let does = match tool.summary(200) {
        about if about.is_empty() => String::new(),
        about => format!("It does: {about}\n"),
    };
    let risk = serde_json::to_value(tool.risk).unwrap_or_default();
    format!(
        "Allow `{}` of the server `{}`? Its risk is {}.\n{does}\n{shown}",
        tool.name,
        tool.server,
        risk.as_str().unwrap_or("not known"),
    )
}

/// Builds the fault for an approval form without a clear answer: repeating the call asks again.
fn unanswered(tool: &Tool, message: &str, written: Value) -> Interrupt {
    Fault::new(Code::NeedsApproval, format!("{message} To ask again, repeat the call."))
        .next("execute_tool", json!({ "name": &*tool.full, "params": written }))
        .into()
}

/// The outcome of a form.
enum FormOutcome {
    Reply(Reply),
    TimedOut,
    NoForm,
}

/// Returns how long to wait for a form: within the client's soft deadline, unless the client can return at any time.
pub(super) fn patience(caller: &Caller) -> Duration {
    match caller.forms() {
        Some(asker) if asker.parks => PARKED_AGE,
        _ => caller.limits.soft_deadline.saturating_sub(MARGIN),
    }
}

/// Remembers an approval for the rest of a session, if that is what the user said.
fn note_lasting(session: &Session, about: &About, answer: &Value, said: &Value) {
    if let About::Call { approval, lasting: true, .. } = about
        && answer["status"] == "approved"
        && answers::decision(said).decision == Decision::Always
    {
        session.approve(&approval.tool, &by_chat(&approval.hash));
    }
}

pub(super) fn no_question(token: &str) -> Fault {
    Fault::new(
        Code::NotFound,
        format!(
            "No open question has the token `{}`: it was answered, or has expired. Ask again.",
            clip(token, 80)
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        catalog::{Catalog, Listing, Source},
        config::Quotas,
        gateway::session::Session,
        quotas::Account,
    };

    fn arguments(value: Value) -> AskArguments {
        serde_json::from_value(value).expect("arguments")
    }

    async fn ask(questions: &Questions, caller: &Caller, value: Value) -> Result<Value, Code> {
        match questions.ask_user(caller, arguments(value)).await {
            Ok(answer) => Ok(answer),
            Err(Interrupt::Fault(fault)) => Err(fault.code),
            Err(other) => panic!("{other:?}"),
        }
    }

    /// Opens a question in the chat and returns its token.
    async fn open(questions: &Questions, caller: &Caller) -> String {
        let answer = ask(questions, caller, json!({ "question": "Which city?" })).await.expect("a question");
        assert_eq!(answer["status"], "needs_user");
        answer["token"].as_str().expect("a token").to_string()
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_is_good_once_and_for_an_hour() {
        let (questions, caller) = (Questions::default(), Caller::default());
        let token = open(&questions, &caller).await;
        let again = ask(&questions, &caller, json!({ "token": token })).await.expect("still open");
        assert_eq!(again["token"], json!(token));
        let answer = json!({ "token": token, "answer": "Bonn" });
        let expected = json!({ "status": "answered", "answer": "Bonn" });
        assert_eq!(ask(&questions, &caller, answer.clone()).await, Ok(expected));
        assert_eq!(ask(&questions, &caller, answer).await, Err(Code::NotFound));

        let token = open(&questions, &caller).await;
        tokio::time::advance(QUESTION_AGE).await;
        let late = json!({ "token": token, "answer": "Bonn" });
        assert_eq!(ask(&questions, &caller, late).await, Err(Code::NotFound));
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_question_of_the_same_client_makes_room() {
        let client = |name: &str| Caller {
            account: Account::of_errands(Some(name), Quotas { questions: 3, ..Quotas::default() }),
            ..Caller::default()
        };
        let (questions, caller, other) = (Questions::default(), client("one"), client("other"));
        let theirs = open(&questions, &other).await;
        let first = open(&questions, &caller).await;
        for _ in 0..3 {
            tokio::time::advance(Duration::from_millis(1)).await;
            open(&questions, &caller).await;
        }
        assert_eq!(questions.open.len(), 4);
        let answer = |token: &str| json!({ "token": token, "answer": "Bonn" });
        assert_eq!(ask(&questions, &caller, answer(&first)).await, Err(Code::NotFound));
        assert!(ask(&questions, &other, answer(&theirs)).await.is_ok());

        // Large questions reach the limit sooner.
        let large = json!({ "question": "Send it?", "content": "x".repeat(MAX_BYTES / 3) });
        for _ in 0..3 {
            tokio::time::advance(Duration::from_millis(1)).await;
            ask(&questions, &caller, large.clone()).await.expect("a question");
        }
        assert_eq!(questions.open.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn an_approval_is_for_one_call_of_one_owner() {
        let questions = Questions::default();
        let session =
            |id: &str| Caller { session: Session::new(Some(id.into())), lasting: true, ..Caller::default() };
        let (one, other) = (session("one"), session("other"));
        let listed = |description: &str| {
            let tools = vec![Arc::new(json!({ "name": "write", "description": description }))];
            let listing = Arc::new(Listing { tools, ..Listing::default() });
            let source = Source { server: "files".into(), listing, settings: None };
            let catalog = Catalog::new([source], &Default::default());
            catalog.get("files.write").expect("listed").clone()
        };
        let (tool, redefined) = (listed("Writes"), listed("Writes, and sends a copy"));
        let approve_as = async |tool: &Tool, caller: &Caller, path: &str| {
            let params = json!({ "path": path });
            let params = params.as_object().expect("an object");
            let asked = ApprovalAsked {
                rule: "a rule".into(),
                written: json!(params),
                own: None,
                by: ApproveBy::Chat,
            };
            match questions.approve(caller, tool, params, asked).await {
                Ok(Approved::By(_)) => Ok(()),
                Ok(Approved::Elsewhere(_)) => panic!("the chat counts"),
                Err(Interrupt::Fault(fault)) => Err(fault),
                Err(wrong) => panic!("{wrong:?}"),
            }
        };
        let approve = async |caller: &Caller, path: &str| approve_as(&tool, caller, path).await;
        let fault = approve(&one, "a").await.expect_err("the user has not agreed");
        assert_eq!(fault.code, Code::NeedsApproval);
        let token = questions.open.iter().next().expect("a question").key().clone();
        let yes = json!({ "token": token, "answer": "allow" });
        assert_eq!(ask(&questions, &other, yes.clone()).await, Err(Code::NotFound));
        let approved = ask(&questions, &one, yes).await.expect("an answer");
        assert_eq!(approved["status"], "approved");

        assert!(approve(&other, "a").await.is_err(), "another owner");
        assert!(approve(&one, "b").await.is_err(), "other params");
        assert!(approve_as(&redefined, &one, "a").await.is_err(), "another definition");
        assert!(approve(&one, "a").await.is_ok(), "this call");
        assert!(approve(&one, "a").await.is_err(), "once");

        one.session.approve(&tool.full, &tool.hash);
        assert!(approve(&one, "b").await.is_ok(), "every call of the session");
        assert!(approve_as(&redefined, &one, "b").await.is_err(), "not of another definition");
    }
}
