//! What people answer in a chat: a yes, a no, choices, the fields of a form, in the languages of user
//! interfaces.
//!
//! Reads exact phrases only; everything else is not understood: "yes, but only the first file" does not
//! approve the call in question. The caller repeats the question after an unclear answer. This room knows
//! words and JSON; it knows nothing about questions, tokens or clients.

mod choices;
mod decision;
mod forms;
mod phrases;
#[cfg(test)]
mod tests;

pub use choices::{choose, mentions};
pub use decision::{Decision, UserAnswer, begins_with_no, decision};
pub use forms::fields;
use nonet_schema::bare;
use serde_json::{Map, Value};

/// How many nested wrappers around an answer are opened.
const MAX_WRAPPERS: usize = 4;
/// Keys of an object that holds nothing but the answer.
const WRAPPERS: [&str; 10] =
    ["answer", "answers", "choice", "choices", "value", "values", "response", "reply", "fields", "form"];

/// Returns the answer itself: parses JSON in text, and removes the wrappers that models add.
pub fn opened(answer: &Value) -> Value {
    opened_beside(answer, &|_| false)
}
/// Does the same where some keys are fields of a form.
fn opened_beside(answer: &Value, known: &dyn Fn(&str) -> bool) -> Value {
    let mut value = parsed(answer);
    for _ in 0..MAX_WRAPPERS {
        let inner = value.as_object().and_then(|fields| unwrapped(fields, known));
        let Some(inner) = inner else { break };
        value = parsed(&inner);
    }
    value
}
/// Returns the content of an elicitation result, or the value of a single wrapper key.
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
/// Parses a text that holds a JSON object or array.
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
