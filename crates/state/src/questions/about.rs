//! The subject of a question, and how its answer is read.

use std::sync::Arc;

use nonet_api::question::{Approver, AskAnswer, AskStatus, ClientQuestion, QuestionKind};
use nonet_base::text::{clip, escaped};
use nonet_schema::Schema;
use nonet_servers::downstream::EscapedTexts;
use nonet_text::{
    answers::{self, Decision, UserAnswer},
    results::json_len,
};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::{APPROVAL_AGE, AskArguments, QUESTION_AGE, approval::HeldCall, ask_again};
use crate::{
    grants::{Approval, RunApproval},
    waiting_room::PendingQuestion,
};

/// How much of an unclear answer is quoted, in characters.
const MAX_SAID: usize = 80;

/// The subject of an open question.
#[derive(Clone, Debug)]
pub(super) enum QuestionSubject {
    /// A call that runs once the user agrees.
    Call {
        approval: Approval,
        held: Arc<HeldCall>,
        /// Whether the session can remember the answer.
        lasting: bool,
        /// The question for the chat.
        brief: String,
        /// Whether an answer in the chat counts. If not, the call asks its user itself when it is repeated.
        in_chat: bool,
    },
    /// The calls of a tool in a run that is parked, and whether the session can remember the answer.
    Run { lasting: bool },
    /// Content to approve or edit.
    Content(String),
    /// Choices, and whether several may be taken.
    Choices(Vec<String>, bool),
    /// The fields of a form.
    Form(Value),
    /// Anything else.
    Free,
}

/// Why an answer was not understood, and which answers would be.
pub(super) struct UnclearAnswer {
    why: String,
    words: String,
    feedback: Option<String>,
}

/// A question as asked in the chat.
#[derive(Clone, Debug)]
pub struct Question {
    pub(super) about: QuestionSubject,
    /// The text of the question.
    pub message: String,
}

/// A question in a client's chat.
#[derive(Clone, Debug)]
pub struct ChatQuestion {
    pub(super) question: Arc<Question>,
    /// The client's name.
    pub(super) client: String,
    pub(super) settled: Option<SettledAnswer>,
}

/// The user's answer to a question in a chat. It waits for the client to fetch it, or to make the approved
/// call.
#[derive(Clone, Debug)]
pub(super) struct SettledAnswer {
    pub answer: AskAnswer,
    pub by: Approver,
    pub at: Instant,
    /// Whether its client has the answer, and only the approved call is still to be made.
    pub is_fetched: bool,
}

impl ChatQuestion {
    /// Whether the question only holds a call, which asks the user itself when it is repeated.
    pub(super) fn is_held_only(&self) -> bool {
        self.settled.is_none() && matches!(self.question.about, QuestionSubject::Call { in_chat: false, .. })
    }

    /// Whether the question waits for an answer in the chat or on the page.
    pub(super) fn waits_for_user(&self) -> bool {
        self.settled.is_none() && !self.is_held_only()
    }

    /// Returns who has approved a call that was not made since.
    pub(super) fn approver(&self, call: &Approval) -> Option<Approver> {
        let settled = self.settled.as_ref().filter(|settled| settled.at.elapsed() < APPROVAL_AGE)?;
        (self.is_approved() && self.question.is_about(call)).then_some(settled.by)
    }

    /// Whether the question is about a call, and the user has approved the call.
    pub(super) fn is_approved(&self) -> bool {
        let is_yes = |settled: &SettledAnswer| settled.answer.status == AskStatus::Approved;
        matches!(self.question.about, QuestionSubject::Call { .. })
            && self.settled.as_ref().is_some_and(is_yes)
    }

    /// Whether its client has the answer, and only the approved call is still to be made.
    pub(super) fn is_over(&self) -> bool {
        self.settled.as_ref().is_some_and(|settled| settled.is_fetched)
    }

    /// Whether it waits for its client alone: to fetch the answer, or to repeat the call.
    pub(super) fn is_for_client(&self) -> bool {
        self.is_held_only() || self.settled.is_some() && !self.is_over()
    }

    /// Returns the question for the user outside of the chat, with what an answer is made of.
    pub(super) fn shown(&self, waiting: &PendingQuestion<Self>) -> ClientQuestion {
        let age = waiting.since.elapsed();
        let question = ClientQuestion {
            token: waiting.token.clone(),
            client: self.client.clone(),
            message: self.question.message.clone(),
            age_s: age.as_secs(),
            left_s: QUESTION_AGE.saturating_sub(age).as_secs(),
            kind: QuestionKind::Free,
            tool: None,
            for_session: None,
            choices: None,
            several: None,
            form: None,
        };
        match &self.question.about {
            QuestionSubject::Call { approval, lasting, .. } => ClientQuestion {
                kind: QuestionKind::Call,
                tool: Some(approval.tool.clone()),
                for_session: Some(*lasting),
                ..question
            },
            QuestionSubject::Run { .. } => ClientQuestion { kind: QuestionKind::Call, ..question },
            QuestionSubject::Content(_) => ClientQuestion { kind: QuestionKind::Content, ..question },
            QuestionSubject::Choices(choices, many) => ClientQuestion {
                kind: QuestionKind::Choices,
                choices: Some(choices.clone()),
                several: Some(*many),
                ..question
            },
            QuestionSubject::Form(form) => {
                ClientQuestion { kind: QuestionKind::Form, form: Some(form.clone()), ..question }
            }
            QuestionSubject::Free => question,
        }
    }
}

impl Question {
    /// Returns the question about the calls of a run, as asked in the chat.
    pub fn of_run(asked: &RunApproval) -> Self {
        let about = QuestionSubject::Run { lasting: asked.lasting };
        Self { about, message: asked.brief.clone() }
    }

    /// Whether the question asks for this approval.
    pub(super) fn is_about(&self, wanted: &Approval) -> bool {
        matches!(&self.about, QuestionSubject::Call { approval, .. } if approval == wanted)
    }

    /// Returns the tool whose call waits for approval, if the question is about a call.
    pub(super) fn tool(&self) -> Option<Arc<str>> {
        match &self.about {
            QuestionSubject::Call { approval, .. } => Some(approval.tool.clone()),
            _ => None,
        }
    }

    /// Reads an answer that the user gives outside of the chat.
    ///
    /// # Errors
    ///
    /// Why the answer is not understood, for the user.
    pub(super) fn read_from_user(&self, said: &Value) -> Result<AskAnswer, String> {
        self.about.read(said).map_err(|unread| format!("This answer {}. Give {}.", unread.why, unread.words))
    }

    /// Returns its approximate memory use in bytes.
    pub(super) fn bytes(&self) -> usize {
        let about = match &self.about {
            QuestionSubject::Call { held, brief, .. } => held.bytes() + brief.len(),
            QuestionSubject::Form(form) => json_len(form),
            QuestionSubject::Content(text) => text.len(),
            QuestionSubject::Choices(choices, _) => choices.iter().map(String::len).sum(),
            QuestionSubject::Run { .. } | QuestionSubject::Free => 0,
        };
        self.message.len() + about
    }

    /// Returns the answer of `ask_user` while the user has not answered.
    pub fn put(&self, token: &str) -> AskAnswer {
        let (message, more) = match &self.about {
            QuestionSubject::Content(_) => {
                (&self.message, ", or {\"decision\": \"approve\", \"content\": \"the edited text\"}")
            }
            QuestionSubject::Call { brief, .. } => {
                (brief, ". On a yes the call runs, and its result is the answer")
            }
            QuestionSubject::Run { .. } => {
                (&self.message, ". On a yes the run goes on, and its result is the answer")
            }
            _ => (&self.message, ""),
        };
        let hint = format!(
            "Ask the user in the chat; then call ask_user with this `token` and, as `answer`, what the user said{more}."
        );
        let form = match &self.about {
            QuestionSubject::Form(form) => Some(form.clone()),
            _ => None,
        };
        AskAnswer {
            message: Some(message.clone()),
            token: Some(token.into()),
            hint: Some(hint),
            next_step: Some(ask_again(token)),
            form,
            ..AskAnswer::new(AskStatus::NeedsUser)
        }
    }

    /// Reads an answer, together with edited content. An unclear answer repeats the question.
    pub fn read(
        &self,
        token: &str,
        said: &Value,
        content: Option<&str>,
    ) -> Result<AskAnswer, Box<AskAnswer>> {
        let beside = match (&self.about, content) {
            (
                QuestionSubject::Content(_) | QuestionSubject::Call { .. } | QuestionSubject::Run { .. },
                Some(content),
            ) => Some(with_content(said, content)),
            _ => None,
        };
        let said = beside.as_ref().unwrap_or(said);
        self.about.read(said).map_err(|unread| Box::new(repeated(self, token, said, unread)))
    }
}

impl QuestionSubject {
    /// Returns the subject of a question, with what people see of it.
    pub(super) fn of(arguments: &AskArguments) -> Self {
        match (&arguments.form, &arguments.content) {
            (Some(form), _) => {
                let mut form = form.clone();
                EscapedTexts::of(&mut form);
                Self::Form(form)
            }
            (None, _) if !arguments.choices.is_empty() => {
                let choices = arguments.choices.iter().map(|choice| escaped(choice).into_owned());
                Self::Choices(choices.collect(), arguments.allow_multiple)
            }
            (None, Some(content)) => Self::Content(content.clone()),
            (None, None) => Self::Free,
        }
    }

    /// Reads a submitted form; `None` if it does not fit the form shown to the user.
    pub(super) fn filled_in(&self, form: Map<String, Value>) -> Option<AskAnswer> {
        match self {
            Self::Choices(..) | Self::Free => self.read(form.get("answer")?).ok(),
            Self::Content(_) | Self::Form(_) | Self::Call { .. } | Self::Run { .. } => {
                self.read(&Value::Object(form)).ok()
            }
        }
    }

    /// Reads an answer.
    pub(super) fn read(&self, said: &Value) -> Result<AskAnswer, UnclearAnswer> {
        match self {
            Self::Call { lasting, .. } | Self::Run { lasting } => read_approval(said, *lasting),
            Self::Content(content) => read_review(said, content),
            Self::Choices(choices, many) => read_choices(said, choices, *many),
            Self::Form(form) => read_form(said, form),
            Self::Free => read_text(said),
        }
    }
}

fn unread(why: &str, words: &str) -> UnclearAnswer {
    UnclearAnswer { why: why.into(), words: words.into(), feedback: None }
}

fn read_approval(said: &Value, lasting: bool) -> Result<AskAnswer, UnclearAnswer> {
    let answer = answers::decision(said);
    match answer.decision {
        Decision::Yes | Decision::All | Decision::Always if answer.content.is_none() => {
            Ok(AskAnswer::new(AskStatus::Approved))
        }
        Decision::No => Ok(denied(answer.feedback)),
        _ => {
            let words = match lasting {
                true => "`allow`, `allow_for_session` or `deny`",
                false => "`allow` or `deny`",
            };
            let why = match answer.content {
                Some(_) => {
                    "comes with content, but an answer cannot edit the params of a call: \
                     make a new call with other params"
                }
                None => "is neither a clear yes to this call nor a clear no",
            };
            Err(unread(why, words))
        }
    }
}

fn read_review(said: &Value, content: &str) -> Result<AskAnswer, UnclearAnswer> {
    let answer = answers::decision(said);
    match answer.decision {
        Decision::Yes | Decision::All | Decision::Always => Ok(approved(content, answer)),
        Decision::No => Ok(denied(answer.feedback)),
        Decision::Unclear => Err(UnclearAnswer {
            why: "is neither a clear yes nor a no".into(),
            words: "`approve`, `deny`, {\"decision\": \"deny\", \"feedback\": \"what to change\"} or \
                    {\"decision\": \"approve\", \"content\": \"the edited text\"}"
                .into(),
            feedback: answer.feedback.or_else(|| said.as_str().map(String::from)),
        }),
    }
}

fn read_choices(said: &Value, choices: &[String], many: bool) -> Result<AskAnswer, UnclearAnswer> {
    if let Some(taken) = answers::choose(said, choices, many) {
        let mut taken = taken.into_iter().map(|at| json!(choices[at]));
        let answer = if many { taken.collect() } else { taken.next().unwrap_or_default() };
        return Ok(AskAnswer::answered(answer));
    }
    let refusal = answers::decision(said);
    if refusal.decision == Decision::No && !answers::mentions(said, choices) {
        return Ok(denied(refusal.feedback));
    }
    Err(match many {
        true => unread("does not name any of the choices", "numbers or texts of choices, or a list of them"),
        false => unread("does not name one of the choices", "the number or the text of one choice"),
    })
}

fn read_form(said: &Value, form: &Value) -> Result<AskAnswer, UnclearAnswer> {
    let refusal = answers::decision(said);
    match answers::fields(said, form) {
        // "no" may be a refusal rather than the value of a field.
        Ok(fields)
            if answers::begins_with_no(said)
                && fields.iter().any(|(name, field)| field == said && is_free(&form["properties"][name])) =>
        {
            Err(unread(
                "could be a no or the value of a field",
                "an object with its fields, or {\"action\": \"decline\"}",
            ))
        }
        Ok(fields) => Ok(AskAnswer::answered(json!(fields))),
        Err(_) if refusal.decision == Decision::No => Ok(denied(refusal.feedback)),
        Err(fault) => {
            let example = Value::Object(Schema::new(form.clone()).example());
            Err(unread(
                &format!("does not fit the form: {fault}"),
                &format!("an object with its fields, such as {example}"),
            ))
        }
    }
}

fn read_text(said: &Value) -> Result<AskAnswer, UnclearAnswer> {
    let answer = if said.is_object() { answers::opened(said) } else { said.clone() };
    let is_empty = answer.is_null() || answer.as_str().is_some_and(|text| text.trim().is_empty());
    if is_empty {
        return Err(unread("is empty", "what the user said"));
    }
    Ok(AskAnswer::answered(answer))
}

/// Whether a field accepts any text.
fn is_free(field: &Value) -> bool {
    ["enum", "oneOf", "anyOf"].iter().all(|key| field.get(*key).is_none())
}

/// Returns the approved content, original or edited by the user.
fn approved(content: &str, said: UserAnswer) -> AskAnswer {
    let edited = said.content.filter(|edited| edited != content);
    AskAnswer {
        content_was_edited: edited.is_some(),
        content: Some(edited.unwrap_or_else(|| content.into())),
        user_feedback: said.feedback,
        ..AskAnswer::new(AskStatus::Approved)
    }
}

fn denied(user_feedback: Option<String>) -> AskAnswer {
    AskAnswer { user_feedback, ..AskAnswer::new(AskStatus::Denied) }
}

/// Adds edited content to an answer that came without it.
fn with_content(answer: &Value, content: &str) -> Value {
    match answers::opened(answer) {
        Value::Object(mut fields) => {
            fields.entry("content").or_insert_with(|| json!(content));
            Value::Object(fields)
        }
        decision => json!({ "decision": decision, "content": content }),
    }
}

/// Repeats the question after an unclear answer.
fn repeated(question: &Question, token: &str, said: &Value, unread: UnclearAnswer) -> AskAnswer {
    let shown = said.as_str().map_or_else(|| said.to_string(), String::from);
    let hint = format!(
        "`{}` {}. The question is still open. Ask the user again; then call ask_user with this `token` and, as `answer`, {}.",
        clip(&shown, MAX_SAID),
        unread.why,
        unread.words
    );
    AskAnswer { hint: Some(hint), user_feedback: unread.feedback, ..question.put(token) }
}
