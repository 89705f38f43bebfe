//! Forms: building one, checking what it asks for, and reading the result.

use nonet_base::text;
use nonet_servers::downstream::EscapedTexts;
use nonet_text::{
    answers::{self, Decision},
    fault::{Fault, FaultCode},
    secrets::asked_in,
};
use serde_json::{Map, Value, json};

use super::{AskArguments, about::QuestionSubject};

#[derive(Clone, Debug, PartialEq)]
pub(super) enum FormReply {
    /// Submitted.
    Accept(Map<String, Value>),
    Decline,
    /// Closed without an answer.
    Cancel,
    /// Not answered in time.
    TimedOut,
    /// The client shows no form.
    NoForm,
}

impl FormReply {
    /// Reads the result of an `elicitation/create`.
    pub(super) fn of(answer: &Value) -> Self {
        match answer.get("action").and_then(Value::as_str) {
            Some("accept") => {
                Self::Accept(answer.get("content").and_then(Value::as_object).cloned().unwrap_or_default())
            }
            Some("decline") => Self::Decline,
            _ => Self::Cancel,
        }
    }

    /// Reads the reply as an approval decision.
    pub(super) fn decision(self) -> Decision {
        match self {
            Self::Accept(form) => answers::decision(&Value::Object(form)).decision,
            _ => Decision::No,
        }
    }
}

pub(super) fn form_for(arguments: &AskArguments, about: &QuestionSubject) -> Value {
    if let QuestionSubject::Form(form) = about {
        return form.clone();
    }
    if let QuestionSubject::Content(content) = about {
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
    let mut answer = match about {
        QuestionSubject::Choices(choices, false) => json!({ "type": "string", "enum": choices }),
        QuestionSubject::Choices(choices, true) => {
            json!({ "type": "array", "items": { "type": "string", "enum": choices } })
        }
        _ => json!({ "type": "string" }),
    };
    answer["title"] = json!("Answer");
    if let Some(default) = &arguments.default {
        let mut default = default.clone();
        EscapedTexts::of(&mut default);
        answer["default"] = default;
    }
    json!({ "type": "object", "properties": { "answer": answer }, "required": ["answer"] })
}

/// Rejects forms that are not flat or that ask for a secret: the model would read the secret.
pub(super) fn check_form(form: &Value) -> Result<(), Fault> {
    let bad = |message: String| {
        Fault::new(FaultCode::InvalidParams, message).next(
            "ask_user",
            json!({ "question": "...", "form": { "type": "object", "properties": { "city": { "type": "string" } } } }),
        )
    };
    let properties = form.get("properties").and_then(Value::as_object);
    let Some(properties) = properties.filter(|_| form.get("type") == Some(&json!("object"))) else {
        return Err(bad("`form` is a JSON Schema of type `object` with `properties`.".into()));
    };
    if let Some(name) = asked_in(form, "") {
        return Err(bad(format!(
            "`{name}` asks for a secret. Secrets are never asked for in a form: the user sets them as environment variables and names them in servers.toml as ${{NAME}}."
        )));
    }
    for (name, schema) in properties {
        if text::hidden(name).next().is_some() {
            let name = text::name(name);
            return Err(bad(format!("`{name}`: the name of a field contains hidden characters.")));
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
        return Err(bad(format!("`form` is not a valid elicitation schema: {error}.")));
    }
    Ok(())
}
