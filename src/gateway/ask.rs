//! Asking the user: the ladder of `ask_user`, and approvals that use it.
//!
//! A client that can show a form is asked for one, by the way on which servers ask it (`ClientChannel`). Where it cannot, the answer
//! is `needs_user` with the question laid out for the chat and a token; the model asks, and comes back with the token and
//! the answer.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use rmcp::model::ErrorData;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::{Gateway, session::Caller};
use crate::{
    answers::{self, Decision, Said},
    catalog::Tool,
    downstream::{ELICITATION, InputRequests},
    fault::{Code, Fault},
    jobs::{Job, Owner},
    schema::Schema,
    text::clip,
};

/// How long a question may wait for its answer, and an approval for its call.
const QUESTION_AGE: Duration = Duration::from_secs(3600);
const APPROVAL_AGE: Duration = Duration::from_secs(600);
/// How long the form of an approval is waited for, where the client may come back whenever it likes.
const PARKED_AGE: Duration = Duration::from_secs(600);
/// How many questions may be open at a time; the oldest go first.
const MAX_QUESTIONS: usize = 1_000;
/// How long before the soft deadline a form is given up, so that the answer still arrives in time.
const MARGIN: Duration = Duration::from_secs(3);
/// The key of the one request that Nonet makes of a client.
const ASK: &str = "ask";
/// Parts of property names that mean a secret.
const SECRETS: [&str; 9] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "api_key",
    "apikey",
    "private_key",
    "credit_card",
];
/// Words of a question that is answered in free text and asks for a secret.
const SECRET_WORDS: [&str; 6] =
    ["password", "passphrase", "api_key", "private_key", "access_token", "credit_card"];
/// The choice of allowing a tool for the rest of the session.
const FOR_SESSION: &str = "allow_for_session";
/// How much of an answer that is not understood is repeated, in characters.
const MAX_SAID: usize = 80;

/// Why an operation has no answer yet.
#[derive(Debug)]
pub enum Interrupt {
    /// It failed.
    Fault(Box<Fault>),
    /// It goes on as a task of the protocol, which the client follows.
    Task(Arc<Job>),
    /// The server refused a verbatim call with this error.
    Refused(Box<ErrorData>),
}

impl From<Fault> for Interrupt {
    fn from(fault: Fault) -> Self {
        Interrupt::Fault(Box::new(fault))
    }
}

/// One call that the user agreed to: this tool with these params, once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Approval {
    tool: Arc<str>,
    owner: Owner,
    params: String,
}

/// What an open question is about.
#[derive(Clone, Debug)]
enum About {
    /// A call, with its params as they were written, and whether the session can remember the answer.
    Call { approval: Approval, params: Value, lasting: bool },
    /// Content to approve or edit.
    Content(String),
    /// Choices, of which several may be taken or one.
    Choices(Vec<String>, bool),
    /// The fields of a form.
    Form(Value),
    /// Anything else.
    Free,
}

/// Why an answer is none, and what would be one.
struct Unread {
    why: String,
    words: String,
    feedback: Option<String>,
}

/// A question that waits for its answer.
#[derive(Clone, Debug)]
pub struct Question {
    about: About,
    message: String,
    asked: Instant,
}

/// The arguments of `ask_user`.
#[derive(Debug, Default, serde::Deserialize)]
pub struct AskArguments {
    #[serde(default)]
    question: String,
    content: Option<String>,
    #[serde(default)]
    choices: Vec<String>,
    #[serde(default)]
    allow_multiple: bool,
    form: Option<Value>,
    default: Option<Value>,
    timeout: Option<u64>,
    token: Option<String>,
    answer: Option<Value>,
}

impl Gateway {
    /// The `ask_user` meta-tool.
    pub async fn ask_user(&self, caller: &Caller, arguments: AskArguments) -> Result<Value, Interrupt> {
        if let Some(token) = &arguments.token {
            return Ok(match &arguments.answer {
                Some(answer) => self.answered(caller, token, answer, arguments.content.as_deref())?,
                None => self.still_open(token, arguments.content.is_some())?,
            });
        }
        if arguments.question.trim().is_empty() {
            return Err(Fault::new(
                Code::InvalidParams,
                "`question` is missing: what is the user to be asked?",
            )
            .into());
        }
        if let Some(form) = &arguments.form {
            check_form(form)?;
        }
        let free = arguments.form.is_none() && arguments.choices.is_empty() && arguments.content.is_none();
        let words = crate::name::fold(&arguments.question);
        if free && SECRET_WORDS.iter().any(|word| words.contains(word)) {
            let message = "This asks for a secret, and secrets are never asked for: the user sets them as environment variables and \
                           names them in servers.toml as ${NAME}. If it asks something else, give `choices`.";
            return Err(Fault::new(Code::InvalidParams, message)
                .next("ask_user", json!({ "question": arguments.question, "choices": ["yes", "no"] }))
                .into());
        }
        let about = About::of(&arguments);
        let schema = form_for(&arguments, &about);
        let message = match &arguments.content {
            Some(content) => format!("{}\n\n{content}", arguments.question),
            None => arguments.question.clone(),
        };
        let wanted = Duration::from_secs(arguments.timeout.unwrap_or(300).clamp(1, 86_400));
        match self.put(caller, &message, &schema, wanted).await {
            Put::Reply(Reply::Decline) => return Ok(json!({ "status": "denied" })),
            Put::Reply(Reply::Cancel) => return Ok(json!({ "status": "cancelled" })),
            Put::Reply(Reply::Accept(form)) => {
                if let Some(answer) = about.filled_in(form) {
                    return Ok(answer);
                }
                // It does not fit the form that was put, so the question goes through the chat.
            }
            Put::TimedOut => {
                let mut answer = json!({ "status": "timed_out" });
                if let Some(default) = arguments.default {
                    answer["answer"] = default;
                }
                return Ok(answer);
            }
            Put::Nobody => {}
        }
        let mut text = message;
        for (n, choice) in arguments.choices.iter().enumerate() {
            text.push_str(&format!("\n{}. {choice}", n + 1));
        }
        if matches!(about, About::Content(_)) {
            text.push_str("\n\nApprove, deny, or say what to change.");
        }
        let token = self.open(about.clone(), &text)?;
        Ok(Question { about, message: text, asked: Instant::now() }.put(&token))
    }

    /// Asks before a call whose policy wants it, unless the user has just agreed to this very call.
    pub(super) async fn approve(
        &self,
        caller: &Caller,
        tool: &Tool,
        params: &Map<String, Value>,
        written: Value,
        rule: &str,
    ) -> Result<(), Interrupt> {
        let digest = Sha256::digest(Value::Object(params.clone()).to_string().as_bytes());
        let approval =
            Approval { tool: tool.full.clone(), owner: caller.owner(), params: crate::text::hex(&digest) };
        if caller.session.approves(&tool.full) {
            return Ok(());
        }
        if let Some((_, at)) = self.approvals.remove(&approval)
            && at.elapsed() < APPROVAL_AGE
        {
            return Ok(());
        }
        let shown = clip(&serde_json::to_string_pretty(params).unwrap_or_default(), 1_500);
        let does = match tool.summary(200) {
            about if about.is_empty() => String::new(),
            about => format!("It does: {about}\n"),
        };
        let risk = serde_json::to_value(tool.risk).unwrap_or_default();
        let message = format!(
            "Allow `{}` of the server `{}`? Its risk is {}.\n{does}\n{shown}",
            tool.name,
            tool.server,
            risk.as_str().unwrap_or("not known"),
        );
        // Only a session that lasts can remember.
        let choices = if caller.lasting { vec!["allow", FOR_SESSION, "deny"] } else { vec!["allow", "deny"] };
        let schema = json!({
            "type": "object",
            "properties": { "decision": { "type": "string", "title": "Decision", "enum": choices } },
            "required": ["decision"],
        });
        let written = if written.is_null() { json!({}) } else { written };
        let about = About::Call { approval, params: written.clone(), lasting: caller.lasting };
        match self.put(caller, &message, &schema, patience(caller)).await {
            Put::Reply(Reply::Cancel) => {
                let message = format!("The form for `{}` was closed without an answer.", tool.full);
                Err(unanswered(tool, &message, written))
            }
            Put::Reply(reply) => match reply.decision() {
                Decision::Yes => Ok(()),
                Decision::Always => {
                    if caller.lasting {
                        caller.session.approve(&tool.full);
                    }
                    Ok(())
                }
                Decision::No => Err(Fault::new(
                    Code::Forbidden,
                    format!("The user did not allow this call of `{}` ({rule}).", tool.full),
                )
                .into()),
                Decision::Change | Decision::Unclear => {
                    let message =
                        format!("The form for `{}` came back with neither a yes nor a no.", tool.full);
                    Err(unanswered(tool, &message, written))
                }
            },
            // Whoever has forms answers there: no token that a model could answer by itself.
            Put::TimedOut => {
                let message = format!("The user has not answered whether `{}` may run.", tool.full);
                Err(unanswered(tool, &message, written))
            }
            Put::Nobody => {
                let token = self.open(about, &message)?;
                let always = if caller.lasting { ", `allow_for_session`" } else { "" };
                Err(Fault::new(
                    Code::NeedsApproval,
                    format!("`{}` runs only if the user agrees ({rule}). Ask the user: {message}\nThen call ask_user with the token and, as `answer`, what the user said: `allow`{always} or `deny`. Then make this call again.", tool.full),
                )
                .next("ask_user", json!({ "token": token }))
                .into())
            }
        }
    }

    /// Puts a form to the user, if the client has forms.
    async fn put(&self, caller: &Caller, message: &str, schema: &Value, wanted: Duration) -> Put {
        let Some(asker) = caller.forms() else { return Put::Nobody };
        let mut params = json!({ "message": message, "requestedSchema": schema });
        if asker.parks {
            params["mode"] = json!("form");
        }
        let requests =
            InputRequests::from_iter([(ASK.to_string(), json!({ "method": ELICITATION, "params": params }))]);
        let patience = wanted.min(patience(caller));
        let asked = tokio::select! {
            asked = tokio::time::timeout(patience, asker.put(requests)) => asked,
            () = caller.cancel.cancelled() => return Put::Reply(Reply::Cancel),
        };
        match asked.map(|replies| replies.and_then(|mut replies| replies.remove(ASK))) {
            Ok(Some(Ok(answer))) => Put::Reply(Reply::of(&answer)),
            Ok(Some(Err(error))) => {
                tracing::warn!(%error, "the client failed to show a form");
                Put::Nobody
            }
            Ok(None) => Put::Nobody,
            // The user may well answer later: then the question goes through the model.
            Err(_) if patience < wanted => Put::Nobody,
            Err(_) => Put::TimedOut,
        }
    }

    /// Remembers a question until it is answered; gives its token. A call that is asked about again has one question.
    fn open(&self, about: About, message: &str) -> Result<String, Fault> {
        let same = |question: &Question| match (&question.about, &about) {
            (About::Call { approval: one, .. }, About::Call { approval: other, .. }) => one == other,
            _ => false,
        };
        if let Some(mut open) = self.questions.iter_mut().find(|question| same(question)) {
            open.asked = Instant::now();
            return Ok(open.key().clone());
        }
        if self.questions.len() >= MAX_QUESTIONS {
            self.questions.retain(|_, question| question.asked.elapsed() < QUESTION_AGE);
            let oldest = self.questions.iter().min_by_key(|question| question.asked).map(|q| q.key().clone());
            if let Some(oldest) = oldest.filter(|_| self.questions.len() >= MAX_QUESTIONS) {
                self.questions.remove(&oldest);
            }
        }
        let token = format!("ask-{}", uuid::Uuid::new_v4().simple());
        let question = Question { about, message: message.into(), asked: Instant::now() };
        self.questions.insert(token.clone(), question);
        Ok(token)
    }

    /// A question that has no answer yet, once more. Content alone is no answer.
    fn still_open(&self, token: &str, content: bool) -> Result<Value, Fault> {
        let question = self.questions.get(token).filter(|question| question.asked.elapsed() < QUESTION_AGE);
        let question = question.ok_or_else(|| no_question(token))?;
        let mut again = question.put(token);
        if content {
            let hint = "`content` without an `answer` says neither yes nor no. The question is still open. Ask the user; \
                        then call ask_user with this `token` and, as `answer`, what the user said.";
            again["hint"] = json!(hint);
        }
        Ok(again)
    }

    /// The answer that the model brings back for a token. One that is not understood leaves the question open.
    fn answered(
        &self,
        caller: &Caller,
        token: &str,
        said: &Value,
        content: Option<&str>,
    ) -> Result<Value, Fault> {
        let question = self.questions.get(token).map(|question| question.clone());
        let question = question.filter(|question| question.asked.elapsed() < QUESTION_AGE);
        let question = question.ok_or_else(|| no_question(token))?;
        let said = match (&question.about, content) {
            (About::Call { approval, .. }, _) if approval.owner != caller.owner() => {
                return Err(no_question(token));
            }
            (About::Content(_) | About::Call { .. }, Some(content)) => &with_content(said, content),
            _ => said,
        };
        let mut answer = match question.about.read(said) {
            Ok(answer) => answer,
            Err(unread) => return Ok(ask_again(&question, token, said, unread)),
        };
        // A token is good once, also where two answers come at the same time.
        self.questions.remove(token).ok_or_else(|| no_question(token))?;
        if let About::Call { approval, params, .. } = question.about
            && answer["status"] == "approved"
        {
            if answers::decision(said).decision == Decision::Always && caller.lasting {
                caller.session.approve(&approval.tool);
            }
            let name = approval.tool.clone();
            self.approvals.retain(|_, at| at.elapsed() < APPROVAL_AGE);
            self.approvals.insert(approval, Instant::now());
            answer["next_step"] =
                json!({ "tool": "execute_tool", "arguments": { "name": &*name, "params": params } });
        }
        Ok(answer)
    }
}

impl Question {
    /// The answer of `ask_user` while the user has not been asked yet.
    fn put(&self, token: &str) -> Value {
        let edited = match &self.about {
            About::Content(_) => ", or {\"decision\": \"approve\", \"content\": \"the edited text\"}",
            _ => "",
        };
        let hint = format!(
            "Ask the user in the chat; then call ask_user with this `token` and, as `answer`, what the user said{edited}."
        );
        let mut answer = json!({
            "status": "needs_user",
            "message": self.message,
            "token": token,
            "hint": hint,
            "next_step": { "tool": "ask_user", "arguments": { "token": token } },
        });
        if let About::Form(form) = &self.about {
            answer["form"] = form.clone();
        }
        answer
    }
}

impl About {
    /// What `ask_user` asks about.
    fn of(arguments: &AskArguments) -> Self {
        match (&arguments.form, &arguments.content) {
            (Some(form), _) => Self::Form(form.clone()),
            (None, _) if !arguments.choices.is_empty() => {
                Self::Choices(arguments.choices.clone(), arguments.allow_multiple)
            }
            (None, Some(content)) => Self::Content(content.clone()),
            (None, None) => Self::Free,
        }
    }

    /// What a filled-in form comes to, if it fits the form that was put.
    fn filled_in(&self, form: Map<String, Value>) -> Option<Value> {
        match self {
            Self::Choices(..) | Self::Free => self.read(form.get("answer")?).ok(),
            Self::Content(_) | Self::Form(_) | Self::Call { .. } => self.read(&Value::Object(form)).ok(),
        }
    }

    /// What an answer comes to.
    fn read(&self, said: &Value) -> Result<Value, Unread> {
        let unread = |why: &str, words: &str| Unread { why: why.into(), words: words.into(), feedback: None };
        match self {
            Self::Call { lasting, .. } => {
                let answer = answers::decision(said);
                match answer.decision {
                    Decision::Yes | Decision::Always if answer.content.is_none() => {
                        Ok(json!({ "status": "approved" }))
                    }
                    Decision::No => Ok(denied(answer.feedback)),
                    _ => {
                        let words = match lasting {
                            true => "`allow`, `allow_for_session` or `deny`",
                            false => "`allow` or `deny`",
                        };
                        let why = match answer.content {
                            Some(_) => {
                                "comes with content, and the params of a call cannot be edited in the answer: \
                                 other params are another call"
                            }
                            None => "is neither a plain yes to this very call nor a plain no",
                        };
                        Err(unread(why, words))
                    }
                }
            }
            Self::Content(content) => {
                let answer = answers::decision(said);
                match answer.decision {
                    Decision::Yes | Decision::Always => Ok(approved(content, answer)),
                    Decision::No | Decision::Change => Ok(denied(answer.feedback)),
                    Decision::Unclear => Err(Unread {
                        why: "is neither a plain yes nor a no".into(),
                        words: "`approve`, `deny`, {\"decision\": \"deny\", \"feedback\": \"what to change\"} or \
                                {\"decision\": \"approve\", \"content\": \"the edited text\"}"
                            .into(),
                        feedback: answer.feedback.or_else(|| said.as_str().map(String::from)),
                    }),
                }
            }
            Self::Choices(choices, many) => {
                if let Some(taken) = answers::choose(said, choices, *many) {
                    let mut taken = taken.into_iter().map(|at| json!(choices[at]));
                    let answer = if *many { taken.collect() } else { taken.next().unwrap_or_default() };
                    return Ok(json!({ "status": "answered", "answer": answer }));
                }
                let refusal = answers::decision(said);
                if refusal.decision == Decision::No && !answers::mentions(said, choices) {
                    return Ok(denied(refusal.feedback));
                }
                let words = "numbers or texts of choices, or a list of them";
                Err(match many {
                    true => unread("names no choices", words),
                    false => {
                        unread("does not name one of the choices", "the number or the text of one choice")
                    }
                })
            }
            Self::Form(form) => match answers::fields(said, form) {
                // "no" is not the name that a form asks for.
                Ok(fields)
                    if answers::decision(said).decision == Decision::No
                        && fields
                            .iter()
                            .any(|(name, field)| field == said && is_free(&form["properties"][name])) =>
                {
                    Err(unread(
                        "may be a no, or the value of a field",
                        "an object with its fields, or {\"action\": \"decline\"}",
                    ))
                }
                Ok(fields) => Ok(json!({ "status": "answered", "answer": fields })),
                Err(fault) => {
                    let refusal = answers::decision(said);
                    if refusal.decision == Decision::No && (refusal.feedback.is_none() || said.is_object()) {
                        return Ok(denied(refusal.feedback));
                    }
                    let example = Value::Object(Schema::new(form.clone()).example());
                    Err(unread(
                        &format!("does not fit the form: {fault}"),
                        &format!("an object with its fields, such as {example}"),
                    ))
                }
            },
            Self::Free => {
                let answer = if said.is_object() { answers::opened(said) } else { said.clone() };
                let nothing = answer.is_null() || answer.as_str().is_some_and(|text| text.trim().is_empty());
                if nothing {
                    return Err(unread("is empty", "what the user said"));
                }
                Ok(json!({ "status": "answered", "answer": answer }))
            }
        }
    }
}

/// Whether a field takes any text.
fn is_free(field: &Value) -> bool {
    ["enum", "oneOf", "anyOf"].iter().all(|key| field.get(*key).is_none())
}

/// Approved content, as it was or as the user edited it.
fn approved(content: &str, said: Said) -> Value {
    let edited = said.content.filter(|edited| edited != content);
    let mut answer = json!({ "status": "approved", "content": edited.as_deref().unwrap_or(content) });
    if edited.is_some() {
        answer["content_was_edited"] = json!(true);
    }
    if let Some(feedback) = said.feedback {
        answer["user_feedback"] = json!(feedback);
    }
    answer
}

fn denied(feedback: Option<String>) -> Value {
    let mut answer = json!({ "status": "denied" });
    if let Some(feedback) = feedback {
        answer["user_feedback"] = json!(feedback);
    }
    answer
}

/// An answer with the edited content that came beside it.
fn with_content(answer: &Value, content: &str) -> Value {
    match answers::opened(answer) {
        Value::Object(mut fields) => {
            fields.entry("content").or_insert_with(|| json!(content));
            Value::Object(fields)
        }
        decision => json!({ "decision": decision, "content": content }),
    }
}

/// An approval that no form has an answer to: the same call asks once more.
fn unanswered(tool: &Tool, message: &str, written: Value) -> Interrupt {
    Fault::new(Code::NeedsApproval, format!("{message} Make the call again to ask once more."))
        .next("execute_tool", json!({ "name": &*tool.full, "params": written }))
        .into()
}

/// The question once more, after an answer that was not understood.
fn ask_again(question: &Question, token: &str, said: &Value, unread: Unread) -> Value {
    let shown = said.as_str().map_or_else(|| said.to_string(), String::from);
    let mut answer = question.put(token);
    answer["hint"] = json!(format!(
        "`{}` {}. The question is still open. Ask the user again; then call ask_user with this `token` and, as `answer`, {}.",
        clip(&shown, MAX_SAID),
        unread.why,
        unread.words
    ));
    if let Some(feedback) = unread.feedback {
        answer["user_feedback"] = json!(feedback);
    }
    answer
}

/// What became of a form.
enum Put {
    Reply(Reply),
    TimedOut,
    Nobody,
}

/// The answer of a person to a form.
#[derive(Clone, Debug, PartialEq)]
enum Reply {
    /// Filled in.
    Accept(Map<String, Value>),
    /// Refused.
    Decline,
    /// Closed without an answer.
    Cancel,
}

impl Reply {
    /// The result of an `elicitation/create`.
    fn of(answer: &Value) -> Self {
        match answer.get("action").and_then(Value::as_str) {
            Some("accept") => {
                Self::Accept(answer.get("content").and_then(Value::as_object).cloned().unwrap_or_default())
            }
            Some("decline") => Self::Decline,
            _ => Self::Cancel,
        }
    }

    /// What it says to an approval.
    fn decision(self) -> Decision {
        match self {
            Self::Accept(form) => answers::decision(&Value::Object(form)).decision,
            Self::Decline | Self::Cancel => Decision::No,
        }
    }
}

/// How long a form may be waited for: what the client stands, where it waits itself.
fn patience(caller: &Caller) -> Duration {
    match caller.forms() {
        Some(asker) if asker.parks => PARKED_AGE,
        _ => caller.limits.soft_deadline.saturating_sub(MARGIN),
    }
}

fn no_question(token: &str) -> Fault {
    Fault::new(
        Code::NotFound,
        format!(
            "No question waits under `{}`: it was answered already, or is too old. Ask again.",
            clip(token, 80)
        ),
    )
}

/// The form of a question.
fn form_for(arguments: &AskArguments, about: &About) -> Value {
    if let About::Form(form) = about {
        return form.clone();
    }
    if let About::Content(content) = about {
        return json!({
            "type": "object",
            "properties": {
                "decision": { "type": "string", "title": "Decision", "enum": ["approve", "deny"] },
                "content": { "type": "string", "title": "Edit it here", "default": content },
                "feedback": { "type": "string", "title": "What to change" },
            },
            "required": ["decision"],
        });
    }
    let mut answer = match (arguments.choices.is_empty(), arguments.allow_multiple) {
        (true, _) => json!({ "type": "string" }),
        (false, false) => json!({ "type": "string", "enum": arguments.choices }),
        (false, true) => json!({ "type": "array", "items": { "type": "string", "enum": arguments.choices } }),
    };
    answer["title"] = json!("Answer");
    if let Some(default) = &arguments.default {
        answer["default"] = default.clone();
    }
    json!({ "type": "object", "properties": { "answer": answer }, "required": ["answer"] })
}

/// A form is flat, and never asks for a secret: what a model can read must not hold one.
fn check_form(form: &Value) -> Result<(), Fault> {
    let bad = |message: String| {
        Fault::new(Code::InvalidParams, message).next(
            "ask_user",
            json!({ "question": "...", "form": { "type": "object", "properties": { "city": { "type": "string" } } } }),
        )
    };
    let properties = form.get("properties").and_then(Value::as_object);
    let Some(properties) = properties.filter(|_| form.get("type") == Some(&json!("object"))) else {
        return Err(bad("`form` is a JSON Schema of type `object` with `properties`.".into()));
    };
    for (name, schema) in properties {
        let folded = crate::name::fold(name);
        let title = schema.get("title").and_then(Value::as_str).map(crate::name::fold).unwrap_or_default();
        let hidden = schema.get("format").and_then(Value::as_str) == Some("password");
        if hidden || SECRETS.iter().any(|secret| folded.contains(secret) || title.contains(secret)) {
            return Err(bad(format!(
                "`{name}` asks for a secret. Secrets are never asked for in a form: the user sets them as environment variables and names them in servers.toml as ${{NAME}}."
            )));
        }
        let kind = schema.get("type").and_then(Value::as_str);
        let flat = matches!(kind, Some("string" | "number" | "integer" | "boolean"))
            || (kind == Some("array")
                && schema.get("items").is_some_and(|items| items.get("enum").is_some()));
        if !flat {
            return Err(bad(format!(
                "`{name}`: a form is flat; its fields are string, number, integer, boolean, or an array of choices."
            )));
        }
    }
    if let Err(error) = serde_json::from_value::<rmcp::model::ElicitationSchema>(form.clone()) {
        return Err(bad(format!("`form` is not what an elicitation takes: {error}.")));
    }
    Ok(())
}
