//! Asking the user: the ladder of `ask_user`, and approvals that use it.
//!
//! A client that can show a form is asked for one, by the way on which servers ask it (`Asker`). Where it cannot, the answer
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
    catalog::Tool,
    downstream::{ELICIT, Requests},
    fault::{Code, Fault},
    jobs::{Job, Owner},
    schema::clip,
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
/// Answers that mean yes, yes from now on, and no.
const YES: [&str; 8] = ["allow", "approve", "approved", "yes", "y", "ok", "true", "allowed"];
const ALWAYS: [&str; 4] = [FOR_SESSION, "always", "allow always", "allow for this session"];
/// The choice of allowing a tool for the rest of the session.
const FOR_SESSION: &str = "allow_for_session";
const NO: [&str; 7] = ["deny", "denied", "no", "n", "false", "reject", "refuse"];

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
    /// A call, with its params as they were written.
    Call(Approval, Value),
    Plain {
        content: Option<String>,
        yes_or_no: bool,
    },
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
            return Ok(match arguments.answer {
                Some(answer) => self.answered(caller, token, answer)?,
                None => self.still_open(token)?,
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
        let yes_or_no =
            arguments.content.is_some() && arguments.choices.is_empty() && arguments.form.is_none();
        let about = About::Plain { content: arguments.content.clone(), yes_or_no };
        let schema = form_for(&arguments, yes_or_no);
        let message = match &arguments.content {
            Some(content) => format!("{}\n\n{content}", arguments.question),
            None => arguments.question.clone(),
        };
        let wanted = Duration::from_secs(arguments.timeout.unwrap_or(300).clamp(1, 86_400));
        match self.put(caller, &message, &schema, wanted).await {
            Put::Reply(reply) => Ok(from_form(&about, reply)),
            Put::TimedOut => {
                let mut answer = json!({ "status": "timed_out" });
                if let Some(default) = arguments.default {
                    answer["answer"] = default;
                }
                Ok(answer)
            }
            Put::Nobody => {
                let mut text = message;
                for (n, choice) in arguments.choices.iter().enumerate() {
                    text.push_str(&format!("\n{}. {choice}", n + 1));
                }
                if yes_or_no {
                    text.push_str("\n\nApprove, deny, or say what to change.");
                }
                let token = self.open(about, &text)?;
                let mut answer = needs_user(&text, &token);
                if arguments.form.is_some() {
                    answer["form"] = schema;
                }
                Ok(answer)
            }
        }
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
        let approval = Approval {
            tool: tool.full.clone(),
            owner: caller.owner(),
            params: digest.iter().map(|byte| format!("{byte:02x}")).collect(),
        };
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
        let about = About::Call(approval, written.clone());
        match self.put(caller, &message, &schema, patience(caller)).await {
            Put::Reply(Reply::Accept(form)) if says(form.get("decision"), &YES) => Ok(()),
            Put::Reply(Reply::Accept(form)) if caller.lasting && says(form.get("decision"), &ALWAYS) => {
                caller.session.approve(&tool.full);
                Ok(())
            }
            Put::Reply(_) => Err(Fault::new(
                Code::Forbidden,
                format!("The user did not allow this call of `{}` ({rule}).", tool.full),
            )
            .into()),
            // Whoever has forms answers there: no token that a model could answer by itself.
            Put::TimedOut => Err(Fault::new(
                Code::NeedsApproval,
                format!(
                    "The user has not answered whether `{}` may run. Make the call again to ask once more.",
                    tool.full
                ),
            )
            .next("execute_tool", json!({ "name": &*tool.full, "params": written }))
            .into()),
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
            Requests::from_iter([(ASK.to_string(), json!({ "method": ELICIT, "params": params }))]);
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
            (About::Call(a, _), About::Call(b, _)) => a == b,
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

    /// A question that has no answer yet, once more.
    fn still_open(&self, token: &str) -> Result<Value, Fault> {
        let question = self.questions.get(token).filter(|question| question.asked.elapsed() < QUESTION_AGE);
        question.map(|question| needs_user(&question.message, token)).ok_or_else(|| no_question(token))
    }

    /// The answer that the model brings back for a token.
    fn answered(&self, caller: &Caller, token: &str, answer: Value) -> Result<Value, Fault> {
        let question = self.questions.remove(token).map(|(_, question)| question);
        let question = question.filter(|question| question.asked.elapsed() < QUESTION_AGE);
        match question.ok_or_else(|| no_question(token))?.about {
            About::Call(approval, params) => {
                let always = caller.lasting && says(Some(&answer), &ALWAYS);
                if approval.owner != caller.owner() || !(always || says(Some(&answer), &YES)) {
                    return Ok(json!({ "status": "denied" }));
                }
                if always {
                    caller.session.approve(&approval.tool);
                }
                let name = approval.tool.clone();
                self.approvals.retain(|_, at| at.elapsed() < APPROVAL_AGE);
                self.approvals.insert(approval, Instant::now());
                let call =
                    json!({ "tool": "execute_tool", "arguments": { "name": &*name, "params": params } });
                Ok(json!({ "status": "approved", "next_step": call }))
            }
            About::Plain { yes_or_no: false, .. } => Ok(json!({ "status": "answered", "answer": answer })),
            About::Plain { content, yes_or_no: true } => {
                if says(Some(&answer), &YES) {
                    return Ok(json!({ "status": "approved", "content": content }));
                }
                if says(Some(&answer), &NO) {
                    return Ok(json!({ "status": "denied" }));
                }
                let text = answer.as_str().map_or_else(|| answer.to_string(), String::from);
                Ok(json!({ "status": "denied", "user_feedback": text }))
            }
        }
    }
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
}

/// How long a form may be waited for: what the client stands, where it waits itself.
fn patience(caller: &Caller) -> Duration {
    match caller.forms() {
        Some(asker) if asker.parks => PARKED_AGE,
        _ => caller.limits.soft_deadline.saturating_sub(MARGIN),
    }
}

/// The answer while the user has not been asked yet.
fn needs_user(message: &str, token: &str) -> Value {
    json!({
        "status": "needs_user",
        "message": message,
        "token": token,
        "hint": "Ask the user in the chat; then call ask_user with this `token` and, as `answer`, what the user said.",
        "next_step": { "tool": "ask_user", "arguments": { "token": token } },
    })
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

fn says(answer: Option<&Value>, words: &[&str]) -> bool {
    match answer {
        Some(Value::String(text)) => words.contains(&text.trim().to_lowercase().as_str()),
        Some(Value::Bool(flag)) => words.contains(&flag.to_string().as_str()),
        _ => false,
    }
}

/// The form of a question.
fn form_for(arguments: &AskArguments, yes_or_no: bool) -> Value {
    if let Some(form) = &arguments.form {
        return form.clone();
    }
    if yes_or_no {
        return json!({
            "type": "object",
            "properties": {
                "decision": { "type": "string", "title": "Decision", "enum": ["approve", "deny"] },
                "content": { "type": "string", "title": "Edit it here", "default": arguments.content },
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

/// A filled-in form as the answer of `ask_user`.
fn from_form(about: &About, reply: Reply) -> Value {
    let form = match reply {
        Reply::Decline => return json!({ "status": "denied" }),
        Reply::Cancel => return json!({ "status": "cancelled" }),
        Reply::Accept(form) => form,
    };
    let About::Plain { content, yes_or_no: true } = about else {
        return match (form.len(), form.get("answer")) {
            (1, Some(answer)) => json!({ "status": "answered", "answer": answer }),
            _ => json!({ "status": "answered", "answer": form }),
        };
    };
    let approved = says(form.get("decision"), &YES);
    let mut answer = json!({ "status": if approved { "approved" } else { "denied" } });
    if approved {
        let given = form.get("content").and_then(Value::as_str);
        let edited = given.filter(|given| Some(*given) != content.as_deref());
        answer["content"] = json!(edited.or(content.as_deref()));
        if edited.is_some() {
            answer["content_was_edited"] = json!(true);
        }
    }
    if let Some(feedback) = form.get("feedback").and_then(Value::as_str).filter(|text| !text.is_empty()) {
        answer["user_feedback"] = json!(feedback);
    }
    answer
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
