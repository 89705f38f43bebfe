//! Faults of a call: `{error: {code, message, retryable, ...}}`.
//!
//! The codes are a closed list. A fault says what happened, where, and which call to make next.

use std::{borrow::Cow, time::Duration};

use nonet_base::{
    clock::millis,
    text::{clean, shell_word},
};
use rmcp::model::ErrorData;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The `_meta` key of a result that is a fault of Nonet's own, with the code as its value.
pub const MARK: &str = "nonet/fault";

/// The kind of a fault, for clients to branch on. Appears as `code` in answers, in snake case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FaultCode {
    /// The name belongs to no tool that the caller may see.
    UnknownTool,
    /// The name may mean several tools. The message lists their full names.
    AmbiguousTool,
    /// The params do not fit the tool, or contain a template or a filter that cannot be used.
    InvalidParams,
    /// The server has not finished starting; a retry in a few seconds may succeed.
    ServerStarting,
    /// The server cannot be reached: it failed, is stopped or removed, or disconnected during the call.
    ServerDown,
    /// The server requires sign-in, or rejects its credentials. Only the user can change that.
    AuthRequired,
    /// A rule forbids this caller to use the tool.
    Forbidden,
    /// The user must approve the call first.
    NeedsApproval,
    /// A rate, a quota or a queue is full: the client's, the server's or Nonet's.
    RateLimited,
    /// The server did not answer within the hard limit.
    Timeout,
    /// The call was cancelled, or not made because another call of its plan failed.
    Cancelled,
    /// The server answered the call with a protocol error.
    UpstreamError,
    /// A category, skill, app, task, result or file that does not exist.
    NotFound,
    /// An internal error of Nonet.
    Internal,
}

impl FaultCode {
    /// All codes, in the order of their declaration.
    pub const ALL: [FaultCode; 14] = [
        FaultCode::UnknownTool,
        FaultCode::AmbiguousTool,
        FaultCode::InvalidParams,
        FaultCode::ServerStarting,
        FaultCode::ServerDown,
        FaultCode::AuthRequired,
        FaultCode::Forbidden,
        FaultCode::NeedsApproval,
        FaultCode::RateLimited,
        FaultCode::Timeout,
        FaultCode::Cancelled,
        FaultCode::UpstreamError,
        FaultCode::NotFound,
        FaultCode::Internal,
    ];

    /// Parses a code.
    pub fn of(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|code| code.as_str() == text)
    }

    /// Returns the code as answers show it, such as `unknown_tool`.
    pub fn as_str(self) -> &'static str {
        match self {
            FaultCode::UnknownTool => "unknown_tool",
            FaultCode::AmbiguousTool => "ambiguous_tool",
            FaultCode::InvalidParams => "invalid_params",
            FaultCode::ServerStarting => "server_starting",
            FaultCode::ServerDown => "server_down",
            FaultCode::AuthRequired => "auth_required",
            FaultCode::Forbidden => "forbidden",
            FaultCode::NeedsApproval => "needs_approval",
            FaultCode::RateLimited => "rate_limited",
            FaultCode::Timeout => "timeout",
            FaultCode::Cancelled => "cancelled",
            FaultCode::UpstreamError => "upstream_error",
            FaultCode::NotFound => "not_found",
            FaultCode::Internal => "internal",
        }
    }

    /// Whether the same call may succeed later.
    pub fn retryable(self) -> bool {
        matches!(
            self,
            FaultCode::ServerStarting | FaultCode::ServerDown | FaultCode::RateLimited | FaultCode::Timeout
        )
    }
}

/// Who reads a text: a model calls meta-tools, a person at a shell runs commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reader {
    /// A model.
    #[default]
    Model,
    /// A person at a shell, or on the live page.
    Shell,
}

/// A ready-made call of a meta-tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NextStep {
    /// A meta-tool.
    pub tool: Cow<'static, str>,
    /// The complete arguments of the meta-tool, as a JSON object.
    pub arguments: Value,
}

impl NextStep {
    /// Creates a call of any meta-tool. For Nonet's own tools, see [`Self::own`].
    pub fn new(tool: &'static str, arguments: Value) -> Self {
        Self { tool: tool.into(), arguments }
    }

    /// A call of `gateway.<tool>`, one of Nonet's own tools.
    pub fn own(tool: &str, params: Value) -> Self {
        Self::new("execute_tool", json!({ "name": format!("gateway.{tool}"), "params": params }))
    }

    /// Names the step in a sentence: the meta-tool for a model, a command for a person.
    pub fn named(&self, reader: Reader) -> Cow<'static, str> {
        match (reader, self.command()) {
            (Reader::Shell, Some(command)) => format!("`{command}`").into(),
            _ => self.tool.clone(),
        }
    }

    /// Returns the command that does the same; `None` if there is none.
    pub fn command(&self) -> Option<String> {
        let text = |key: &str| self.arguments[key].as_str().unwrap_or_default();
        let call = |name: &str, params: &Value| {
            format!("nonet call {} {}", shell_word(name), shell_word(&params.to_string()))
        };
        match &*self.tool {
            "execute_tool" => Some(call(text("name"), &self.arguments["params"])),
            "call_app" => Some(call(&format!("apps.{}", text("app_id")), &self.arguments["input"])),
            "list_categories" => Some("nonet search \"\"".into()),
            "browse_category" => Some("nonet tools".into()),
            _ => None,
        }
    }
}

/// Why a call has no result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Fault {
    /// What clients branch on; it also decides whether the fault is retryable, unless that is set.
    pub code: FaultCode,
    /// What happened, where, and the remedy, in a sentence or two.
    pub message: String,
    /// Whether the same call, unchanged, may succeed later.
    pub retryable: bool,
    /// The delay before a retry, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// The call to make next; `None` if there is no obvious one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_step: Option<Box<NextStep>>,
    /// Names that may have been meant, best first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub did_you_mean: Vec<String>,
    /// Further details for the model: the parameter list, the server's error data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<Box<Value>>,
    /// The server's own JSON-RPC error, if it refused the call with one.
    #[serde(skip)]
    pub refusal: Option<Box<ErrorData>>,
    /// The server to which the user of this machine can sign in, for a link in the message.
    #[serde(skip)]
    pub sign_in: Option<Box<str>>,
}

impl Fault {
    /// Creates a fault that is retryable if its code is.
    pub fn new(code: FaultCode, message: impl Into<String>) -> Self {
        let message = message.into();
        Self {
            code,
            // It may quote a server or a client.
            message: match clean(&message) {
                Cow::Borrowed(_) => message,
                Cow::Owned(clean) => clean,
            },
            retryable: code.retryable(),
            retry_after_ms: None,
            next_step: None,
            did_you_mean: Vec::new(),
            details: None,
            refusal: None,
            sign_in: None,
        }
    }

    /// Sets the next call to make, as a meta-tool and its arguments.
    pub fn next(self, tool: &'static str, arguments: Value) -> Self {
        self.then(NextStep::new(tool, arguments))
    }

    /// Sets the next call to make.
    pub fn then(mut self, step: NextStep) -> Self {
        self.next_step = Some(Box::new(step));
        self
    }

    /// Sets names that may have been meant.
    pub fn suggest<S: ToString>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.did_you_mean = names.into_iter().map(|name| name.to_string()).collect();
        self
    }

    /// Sets the delay before a retry, and makes the fault retryable whatever its code.
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.retryable = true;
        self.retry_after_ms = Some(millis(wait));
        self
    }

    /// Sets the further details, replacing earlier ones.
    pub fn details(mut self, details: Value) -> Self {
        self.details = Some(Box::new(details));
        self
    }

    /// Returns the fault as `{error: ...}`.
    pub fn to_value(&self) -> Value {
        json!({ "error": self })
    }

    /// Returns the fault as a `CallToolResult` with `isError`, and with the mark that no server can set.
    pub fn to_result(&self) -> Value {
        json!({
            "content": [{ "type": "text", "text": self.to_value().to_string() }],
            "isError": true,
            "_meta": { MARK: self.code },
        })
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.code.as_str(), self.message)
    }
}

impl std::error::Error for Fault {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_a_call_for_a_model_and_a_command_for_a_person() {
        let check = |step: NextStep, model: &str, shell: &str| {
            assert_eq!(step.named(Reader::Model), model);
            assert_eq!(step.named(Reader::Shell), shell);
        };
        let tool = json!({ "name": "shop.list", "params": { "cursor": "a b" } });
        check(
            NextStep::new("execute_tool", tool),
            "execute_tool",
            r#"`nonet call shop.list '{"cursor":"a b"}'`"#,
        );
        let app = json!({ "app_id": "note", "input": { "title": "a" } });
        check(NextStep::new("call_app", app), "call_app", r#"`nonet call apps.note '{"title":"a"}'`"#);
        check(NextStep::new("list_categories", json!({})), "list_categories", "`nonet search \"\"`");
        check(NextStep::new("ask_user", json!({ "token": "ask-1" })), "ask_user", "ask_user");
    }
}
