//! The arguments of a question: of `ask_user`, or of a workflow's step.

use std::sync::LazyLock;

use nonet_base::text::{clip, escaped};
use nonet_schema::Schema;
use nonet_text::fault::{Fault, FaultCode};
use serde_json::{Value, json};

use super::about::{Question, QuestionSubject};

/// The maximum number of choices in a workflow's question, and the maximum size of the question in bytes.
const MAX_CHOICES: usize = 200;
const MAX_MESSAGE: usize = 20_000;

/// The arguments of `ask_user`.
#[derive(Clone, Debug, Default, serde::Deserialize, serde::Serialize)]
pub struct AskArguments {
    #[serde(default)]
    pub(super) question: String,
    /// Content to approve or edit.
    pub content: Option<String>,
    #[serde(default)]
    pub(super) choices: Vec<String>,
    #[serde(default)]
    pub(super) allow_multiple: bool,
    pub(super) form: Option<Value>,
    pub(super) default: Option<Value>,
    /// How long the question waits, in seconds.
    pub timeout: Option<u64>,
    /// The token of an open question.
    pub token: Option<String>,
    /// What the user said to it.
    pub answer: Option<Value>,
}

impl AskArguments {
    /// Creates a question without choices.
    pub fn question(question: String) -> Self {
        Self { question, ..Self::default() }
    }

    /// Creates the answer to the question with a token.
    pub fn answered(token: String, answer: Value) -> Self {
        Self { token: Some(token), answer: Some(answer), ..Self::default() }
    }

    /// Returns the schema of a question in a workflow, which says which values are text.
    pub fn texts() -> &'static Schema {
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
    pub fn of_step(id: &str, mut written: Value, timeout_ms: Option<u64>) -> Result<Self, Fault> {
        let wrong = |message: String| Fault::new(FaultCode::InvalidParams, message);
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
    pub fn in_chat(&self) -> Question {
        let about = QuestionSubject::of(self);
        let mut message = self.message();
        if let QuestionSubject::Choices(choices, _) = &about {
            for (n, choice) in choices.iter().enumerate() {
                message.push_str(&format!("\n{}. {choice}", n + 1));
            }
        }
        if matches!(about, QuestionSubject::Content(_)) {
            message.push_str("\n\nApprove or deny?");
        }
        Question { about, message }
    }

    pub(super) fn message(&self) -> String {
        let question = escaped(&self.question);
        match &self.content {
            Some(content) => format!("{question}\n\n{}", escaped(content)),
            None => question.into_owned(),
        }
    }
}
