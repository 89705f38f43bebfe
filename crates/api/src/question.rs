//! Questions to the user, and their answers.

use std::{borrow::Cow, sync::Arc};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    all_known,
    fault::NextStep,
    is_zero,
    tools::{DefinitionState, OnChange},
};

/// The state of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AskStatus {
    /// The user has answered.
    Answered,
    /// The user agrees.
    Approved,
    /// The user does not agree.
    Denied,
    /// The user has closed the form.
    Cancelled,
    /// The user has not answered in time.
    TimedOut,
    /// The model has to ask the user in the chat.
    NeedsUser,
}

/// What `ask_user` answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AskAnswer {
    /// The state of the question.
    pub status: AskStatus,
    /// The answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<Value>,
    /// The approved content, perhaps edited by the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Whether the user has edited it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub content_was_edited: bool,
    /// The question for the chat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The token of the question.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The call to make next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_step: Option<NextStep>,
    /// The form.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub form: Option<Value>,
    /// What else the user said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_feedback: Option<String>,
}

impl AskAnswer {
    /// Creates an answer with nothing but its state.
    pub fn new(status: AskStatus) -> Self {
        Self {
            status,
            answer: None,
            content: None,
            content_was_edited: false,
            message: None,
            token: None,
            hint: None,
            next_step: None,
            form: None,
            user_feedback: None,
        }
    }

    /// Creates the answer that the user gave.
    pub fn answered(answer: Value) -> Self {
        Self { answer: Some(answer), ..Self::new(AskStatus::Answered) }
    }
}

/// The kind of a question, which says what an answer is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum QuestionKind {
    /// A call that runs once the user agrees.
    Call,
    /// Content to approve or edit.
    Content,
    /// Choices.
    Choices,
    /// The fields of a form.
    Form,
    /// Anything else.
    Free,
}

/// A question that a client has put to its user, and that waits for the answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClientQuestion {
    /// Its token.
    pub token: String,
    /// The client's name.
    pub client: String,
    /// The question.
    pub message: String,
    /// How long it has waited.
    pub age_s: u64,
    /// How long it will wait.
    pub left_s: u64,
    /// What an answer is made of.
    pub kind: QuestionKind,
    /// The tool whose call waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<Arc<str>>,
    /// Whether a yes can hold for the rest of the session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub for_session: Option<bool>,
    /// The choices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub choices: Option<Vec<String>>,
    /// Whether several choices may be taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub several: Option<bool>,
    /// The JSON Schema of the form.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub form: Option<Value>,
}

/// A question that a server asks during a call of the page's user.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PageQuestion {
    /// Its number.
    pub id: u64,
    /// The full name of the tool that was called.
    #[serde(rename = "for")]
    pub tool: String,
    /// How long it has waited.
    pub age_s: u64,
    /// The question; `null` without one.
    pub message: Value,
    /// The address to open; `null` for a form.
    pub url: Option<Value>,
    /// The JSON Schema of the form; `null` without one.
    pub form: Option<Value>,
}

/// What the page's user says to a server's question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PageAction {
    /// The user answers.
    Accept,
    /// The user does not want to answer.
    Decline,
    /// The user has closed the question.
    Cancel,
}

/// An answer of the page's user: the result of `elicitation/create`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PageAnswer {
    /// What the user does.
    pub action: PageAction,
    /// The fields of the form.
    #[serde(default)]
    pub content: Option<Map<String, Value>>,
}

/// The user's verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UserVerdict {
    /// This once.
    Allow,
    /// For the rest of the session.
    AllowForSession,
    /// No.
    Deny,
}

/// Who allowed a call that required approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Approver {
    /// The user, in a form of the client.
    Form,
    /// The user in the chat, as the model reports.
    Chat,
    /// The user, earlier, for the rest of the session.
    Session,
    /// The user, on the live page.
    Page,
    /// The user, with `nonet approve`.
    Command,
    /// The webhook of the configuration.
    Webhook,
}

/// An approval that waits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ApprovalView {
    /// Its id.
    pub id: String,
    /// The whole question.
    pub question: String,
    /// The waiting tool or app.
    #[serde(rename = "for")]
    pub subject: String,
    /// The rule that requires the approval.
    pub rule: String,
    /// The client.
    pub client: String,
    /// The profile of its client; `null` without one.
    pub profile: Option<String>,
    /// Whether a yes can hold for the rest of the session.
    pub for_session: bool,
    /// Whether the question accepts an answer in words.
    pub takes_answer: bool,
    /// How long it will wait.
    pub left_s: u64,
    /// How long it has waited.
    pub age_s: u64,
}

/// The question that a webhook gets.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct WebhookQuestion {
    /// The approval.
    #[serde(flatten)]
    pub approval: ApprovalView,
    /// `approval`.
    pub kind: Cow<'static, str>,
    /// The one-time address for the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer_url: Option<String>,
}

/// A definition that waits for trust.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DefinitionView {
    /// Its name: `server.tool`, with one more word for a definition other than a tool's.
    pub name: String,
    /// Its server.
    pub server: String,
    /// What it is.
    pub kind: Cow<'static, str>,
    /// Its state relative to the trusted one.
    pub state: DefinitionState,
    /// Its hash.
    pub hash: Option<String>,
    /// When it began to wait, in milliseconds since 1970.
    pub since_ms: u64,
    /// The differences from the trusted definition, or the new definition; text from the server.
    pub difference: String,
}

/// A definition that waits for trust, on the live page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MarkedDefinition {
    /// The definition.
    #[serde(flatten)]
    pub definition: DefinitionView,
    /// What differs, word by word.
    pub marked: Vec<MarkedPlace>,
    /// What happens to calls until then.
    pub on_change: OnChange,
}

/// A place in which two definitions differ, word by word.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MarkedPlace {
    /// The place.
    pub place: String,
    /// Its words.
    pub words: Vec<MarkedWords>,
}

/// Words that both definitions have, or only one of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MarkedWords {
    /// Which definitions have them.
    #[serde(rename = "in")]
    pub of: WordsOf,
    /// The words.
    pub text: String,
}

/// Which of two definitions have words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WordsOf {
    /// Both.
    Both,
    /// The trusted one.
    Before,
    /// The new one.
    After,
}

/// Everything that waits for the user of a gateway.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct WaitingForUser {
    /// Approvals of calls.
    #[serde(deserialize_with = "all_known")]
    pub approvals: Vec<ApprovalView>,
    /// Definitions to trust, the first ones.
    #[serde(deserialize_with = "all_known")]
    pub definitions: Vec<MarkedDefinition>,
    /// How many definitions wait.
    pub total: usize,
    /// Questions of servers during calls of the page's user.
    #[serde(deserialize_with = "all_known")]
    pub questions: Vec<PageQuestion>,
    /// Questions that clients have put to their users.
    #[serde(deserialize_with = "all_known")]
    pub client_questions: Vec<ClientQuestion>,
}
