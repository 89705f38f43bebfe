//! Assembles the model's message from one object or from the deltas of events.

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::{ChatCall, ChatError, Completion, beginning, error_text};

/// The most calls of one message.
const MAX_CALLS: usize = 1_000;

/// An answer, or one event of it.
#[derive(Deserialize)]
struct Answer {
    #[serde(default, deserialize_with = "or_default")]
    choices: Vec<Choice>,
    #[serde(default)]
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    index: usize,
    message: Option<Part>,
    delta: Option<Part>,
    finish_reason: Option<String>,
}

#[derive(Default, Deserialize)]
struct Part {
    #[serde(default)]
    content: Value,
    refusal: Option<String>,
    reasoning_content: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    tool_calls: Vec<CallPart>,
}

#[derive(Deserialize)]
struct CallPart {
    index: Option<usize>,
    id: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    function: FunctionPart,
    extra_content: Option<Value>,
}

#[derive(Default, Deserialize)]
struct FunctionPart {
    name: Option<String>,
    #[serde(default)]
    arguments: Value,
}

fn or_default<'de, T: Default + Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// A message being assembled.
#[derive(Default)]
pub(super) struct CompletionBuilder {
    message: Completion,
    refusal: String,
    /// The endpoint's number of each call.
    numbers: Vec<Option<usize>>,
    finish: Option<String>,
    has_choices: bool,
}

/// Reads an answer that is one object.
pub(super) fn whole(body: &[u8]) -> Result<Completion, ChatError> {
    let mut gathering = CompletionBuilder::default();
    gathering.add(body)?;
    gathering.finish()
}

impl CompletionBuilder {
    /// Adds an object of the answer.
    pub(super) fn add(&mut self, json: &[u8]) -> Result<(), ChatError> {
        let unusable = |why: &str| {
            ChatError::Unusable(format!("its answer is not a chat completion ({why}): {}", beginning(json)))
        };
        let answer: Answer = serde_json::from_slice(json).map_err(|error| unusable(&error.to_string()))?;
        if let Some(error) = answer.error {
            let text = error_text(&error).unwrap_or_else(|| beginning(json));
            return Err(ChatError::Unusable(format!("it answered with an error: {text}")));
        }
        for choice in answer.choices.into_iter().filter(|choice| choice.index == 0) {
            self.has_choices = true;
            if choice.finish_reason.is_some() {
                self.finish = choice.finish_reason;
            }
            match (choice.message, choice.delta) {
                (Some(whole), _) => self.part(whole, true),
                (None, Some(delta)) => self.part(delta, false),
                (None, None) => {}
            }
        }
        if self.numbers.len() > MAX_CALLS {
            return Err(ChatError::Unusable(format!("its answer has more than {MAX_CALLS} tool calls")));
        }
        Ok(())
    }

    /// Returns whether the endpoint has given a finish reason.
    pub(super) fn has_ended(&self) -> bool {
        self.finish.is_some()
    }

    fn part(&mut self, part: Part, is_whole: bool) {
        push_text(&mut self.message.text, &part.content);
        self.refusal.push_str(part.refusal.as_deref().unwrap_or_default());
        if let Some(reasoning) = part.reasoning_content {
            self.message.reasoning.get_or_insert_default().push_str(&reasoning);
        }
        for call in part.tool_calls {
            self.call(call, is_whole);
        }
    }

    /// Adds a call, or the next part of one. Some endpoints give all calls the same number, others none.
    fn call(&mut self, part: CallPart, is_whole: bool) {
        let id = part.id.unwrap_or_default();
        let continues = |at: usize| {
            let known: &ChatCall = &self.message.calls[at];
            id.is_empty() && (part.function.name.is_none() || known.name.is_empty())
                || known.id == id && !id.is_empty()
        };
        let at = match part.index {
            _ if is_whole => None,
            Some(number) => self.numbers.iter().rposition(|known| *known == Some(number)),
            None => self.numbers.len().checked_sub(1),
        };
        let at = at.filter(|at| continues(*at)).unwrap_or_else(|| {
            self.message.calls.push(ChatCall::default());
            self.numbers.push(part.index);
            self.numbers.len() - 1
        });
        let call = &mut self.message.calls[at];
        if !id.is_empty() {
            call.id = id;
        }
        if call.name.is_empty() {
            call.name = part.function.name.unwrap_or_default();
        }
        match part.function.arguments {
            Value::String(text) => call.arguments.push_str(&text),
            Value::Null => {}
            // Some endpoints send the object itself.
            other => call.arguments.push_str(&other.to_string()),
        }
        if part.extra_content.is_some() {
            call.extra = part.extra_content;
        }
    }

    /// Returns the message. Calls without an id get one.
    pub(super) fn finish(self) -> Result<Completion, ChatError> {
        let Self { mut message, refusal, finish, has_choices, .. } = self;
        if !has_choices {
            return Err(ChatError::Unusable("its answer has no `choices`".into()));
        }
        if message.text.is_empty() {
            message.text = refusal;
        }
        if message.text.is_empty() && message.calls.is_empty() {
            let why = finish.map(|why| format!(" (`finish_reason`: {})", beginning(why.as_bytes())));
            let why = why.unwrap_or_default();
            return Err(ChatError::Unusable(format!("its answer has neither text nor a tool call{why}")));
        }
        for (at, call) in message.calls.iter_mut().enumerate().filter(|(_, call)| call.id.is_empty()) {
            call.id = format!("call_{at}");
        }
        message.cut_by = match finish.as_deref() {
            Some("length") => Some("the limit on tokens"),
            Some("content_filter") => Some("the endpoint's content filter"),
            _ => None,
        };
        Ok(message)
    }
}

/// Appends content, which is a text or a list of parts.
fn push_text(text: &mut String, content: &Value) {
    match content {
        Value::String(more) => text.push_str(more),
        Value::Array(parts) => {
            for part in parts {
                push_text(text, part.get("text").unwrap_or(&Value::Null));
            }
        }
        _ => {}
    }
}
