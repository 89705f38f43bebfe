//! What people answer in a chat: a yes, a no, choices, the fields of a form, in the languages of user interfaces.
//!
//! An answer is read only if all of it is understood: whoever says "yes, but only the first file" has not agreed to the
//! call that was asked about. What is not understood is for the caller to ask again. This room knows words and JSON, and
//! nothing of questions, tokens or clients.

mod choices;
mod decision;
mod forms;
mod phrases;
#[cfg(test)]
mod tests;
mod words;

pub use choices::{choose, mentions};
pub use decision::{Decision, Said, decision};
pub use forms::fields;
use serde_json::{Map, Value};

use crate::schema::bare;

/// How many wrappers around an answer are opened.
const MAX_WRAPPERS: usize = 4;
/// Keys of an object that holds nothing but the answer.
const WRAPPERS: &[&str] = &[
    "answer",
    "answers",
    "choice",
    "choices",
    "selection",
    "selected",
    "value",
    "response",
    "reply",
    "option",
    "options",
    "fields",
    "form",
    "values",
];

/// The answer, out of text that is JSON and of what models wrap it in.
pub fn opened(answer: &Value) -> Value {
    opened_beside(answer, &|_| false)
}
/// The same where some keys are fields of a form.
fn opened_beside(answer: &Value, known: &dyn Fn(&str) -> bool) -> Value {
    let mut value = parsed(answer);
    for _ in 0..MAX_WRAPPERS {
        let inner = value.as_object().and_then(|fields| unwrapped(fields, known));
        let Some(inner) = inner else { break };
        value = parsed(&inner);
    }
    value
}
/// What an object wraps, if that is an answer: the result of an elicitation, or a single key that says so.
fn unwrapped(fields: &Map<String, Value>, known: &dyn Fn(&str) -> bool) -> Option<Value> {
    if let (Some(action), Some(content @ Value::Object(_))) = (fields.get("action"), fields.get("content"))
        && action == "accept"
    {
        return Some(content.clone());
    }
    let mut all = fields.iter();
    match (all.next(), all.next()) {
        (Some((key, inner)), None) if !known(key) && WRAPPERS.contains(&bare(key).as_str()) => {
            Some(inner.clone())
        }
        _ => None,
    }
}
/// An object or a list out of a text that is one.
fn parsed(value: &Value) -> Value {
    let text = value.as_str().map(str::trim).filter(|text| text.starts_with(['{', '[']));
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_else(|| value.clone())
}
fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        _ => None,
    }
}
