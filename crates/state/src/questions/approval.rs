//! A call that needs the user's approval: what identifies it, what the user reads, and what a yes allows.

use std::{sync::Arc, time::Duration};

use nonet_api::question::Approver;
use nonet_base::text::{clip, escaped};
use nonet_config::ApproveBy;
use nonet_servers::catalog::Tool;
use nonet_text::{fault::Fault, results::json_len};
use serde_json::{Map, Value, json};

use crate::{
    grants::{Approval, RequiredApproval, RunApproval, grant_key, not_allowed},
    session::Caller,
};

/// How many characters of a call's params a form or the page shows to the user, and how many the chat, where
/// the model has the params already.
const MOST_SHOWN: usize = 6_000;
const MOST_IN_CHAT: usize = 2_000;
/// The longest text among the params that the chat shows whole, and how much of a longer one it shows, in
/// characters.
const WHOLE: usize = 300;
const BEGINNING: usize = 200;
/// How many members of a list among the params the chat shows.
const MEMBERS: usize = 20;
/// How much of each call's params a question about several calls shows, in characters.
const MOST_OF_CALL: usize = 300;

/// Whether a call may run.
pub enum ApprovalOutcome {
    /// The user agreed, in this way.
    By(Approver),
    /// Nobody has answered yet.
    Unasked(Box<ApprovalRequest>),
}

/// A call whose user was not asked yet.
#[derive(Debug)]
pub struct ApprovalRequest {
    /// What identifies the call.
    pub approval: Approval,
    /// The whole question, and the question for the chat.
    pub(crate) message: String,
    pub(crate) brief: String,
    /// The rule that asks.
    pub rule: String,
    /// The params as the client wrote them.
    pub written: Value,
    /// Whether the session can remember the answer.
    pub(crate) lasting: bool,
    /// Whose answer counts.
    pub(crate) by: ApproveBy,
    /// The fault to return if no answer in the chat counts. The same call asks again, or waits for the
    /// answer.
    pub(crate) fault: Option<Box<Fault>>,
    /// Whether the tool has a question of its own, whose answer covers no other call.
    is_single: bool,
}

/// A call as requested.
#[derive(Clone, Debug, Default)]
pub struct CallRequest {
    /// The tool, under any of its names.
    pub name: String,
    /// The params as received.
    pub params: Value,
    /// The hard limit, if the caller set one.
    pub timeout: Option<Duration>,
    /// Whether to run the call in the background from the start.
    pub background: bool,
    /// A jq filter for the result.
    pub select: Option<String>,
    /// Whether to return the server's result unchanged.
    pub verbatim: bool,
    /// Whether it may come from a user interface, which knows the tools of its server by their own names.
    pub of_ui: bool,
}

/// A call that runs once the user has approved it.
#[derive(Clone, Debug)]
pub enum HeldCall {
    /// Of a tool.
    Tool(Box<CallRequest>),
    /// Of an app: its id as the name, its input as the params.
    App(Box<CallRequest>),
}

impl HeldCall {
    /// Returns the size of its params as JSON, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let (Self::Tool(request) | Self::App(request)) = self;
        json_len(&request.params)
    }
}

impl ApprovalRequest {
    /// Creates the question about a call.
    pub(super) fn new(
        caller: &Caller,
        tool: &Tool,
        approval: Approval,
        params: &Map<String, Value>,
        asked: RequiredApproval,
    ) -> Self {
        let RequiredApproval { rule, written, own, by, is_of_call } = asked;
        let is_single = own.is_some();
        let (message, brief) = match own {
            Some(own) => (escaped(&own).into_owned(), escaped(&own).into_owned()),
            None => {
                let about = about(tool);
                let whole = Value::Object(params.clone());
                let brief = format!("{about}\n{}", pretty(&shortened(&whole), MOST_IN_CHAT));
                let message = format!("{about}\n{}", pretty(&whole, MOST_SHOWN));
                (escaped(&message).into_owned(), escaped(&brief).into_owned())
            }
        };
        let written = if written.is_null() { json!({}) } else { written };
        // Only a lasting session can remember the choice.
        let lasting = caller.lasting && !is_single && !is_of_call;
        Self { approval, message, brief, rule, written, lasting, by, fault: None, is_single }
    }

    /// Adds the calls of the same tool that the answer covers: how many, whether there may be more, and the
    /// params of the first ones.
    pub fn of_calls(mut self, count: usize, is_least: bool, shown: &[Value]) -> Self {
        if self.is_single || count < 2 && !is_least {
            return self;
        }
        let least = if is_least { "at least " } else { "" };
        let tool = &self.approval.tool;
        // The question itself has the params of this call.
        let is_own =
            |params: &Value| *params == self.written || params.is_null() && self.written == json!({});
        let own = shown.iter().position(is_own);
        let calls = |most: usize| {
            let mut calls =
                format!("\n\nThe answer covers every call of `{tool}` in this run: {least}{count}.");
            if count > 1 {
                calls.push_str(" The others:");
            }
            let mut left = count.saturating_sub(1);
            for (_, params) in shown.iter().enumerate().filter(|(at, _)| Some(*at) != own) {
                let one = format!("\n- {}", clip(&shortened(params).to_string(), MOST_OF_CALL));
                if calls.len() + one.len() > most {
                    break;
                }
                calls.push_str(&one);
                left = left.saturating_sub(1);
            }
            if left > 0 {
                calls.push_str(&format!("\n... and {left} more"));
            }
            escaped(&calls).into_owned()
        };
        self.message.push_str(&calls(MOST_SHOWN));
        self.brief.push_str(&calls(MOST_IN_CHAT));
        self
    }

    /// Returns the question of a run. Its answer covers every call of the tool in this run, unless the tool
    /// has a question of its own.
    pub(crate) fn in_run(self) -> RunApproval {
        let key = grant_key(&self.approval, self.is_single);
        let Self { approval, message, brief, rule, lasting, by, .. } = self;
        let Approval { tool, hash, .. } = approval;
        RunApproval { tool, hash, key, rule, lasting, by, message, brief }
    }

    /// Builds the fault for a refused call.
    pub(crate) fn refused(&self, feedback: Option<&str>) -> Fault {
        not_allowed(&self.approval.tool, &self.rule, feedback)
    }
}

/// Marks a definition that the user approved through the chat: the approval counts only as long as answers in
/// the chat do.
pub fn by_chat(hash: &str) -> Arc<str> {
    format!("chat {hash}").into()
}

/// Says which tool is to be called.
fn about(tool: &Tool) -> String {
    let does = match tool.summary(200) {
        about if about.is_empty() => String::new(),
        about => format!("It does: {about}\n"),
    };
    let risk = serde_json::to_value(tool.risk).unwrap_or_default();
    format!(
        "Allow `{}` of the server `{}`? Its risk is {}.\n{does}",
        tool.name,
        tool.server,
        risk.as_str().unwrap_or("not known"),
    )
}

/// Writes params for people. The user has to know if part of the params is not shown.
fn pretty(params: &Value, most: usize) -> String {
    let whole = serde_json::to_string_pretty(params).unwrap_or_default();
    match whole.chars().count().saturating_sub(most) {
        0 => whole,
        left => format!(
            "NOT ALL IS SHOWN: {left} more characters of the params would be sent.\n{}",
            clip(&whole, most)
        ),
    }
}

/// Shortens the long texts and lists of params. Each says how long it is.
fn shortened(value: &Value) -> Value {
    match value {
        Value::String(text) if text.chars().nth(WHOLE).is_some() => {
            json!(format!("{} ({} bytes in all)", clip(text, BEGINNING), text.len()))
        }
        Value::Array(items) => {
            let mut shown: Vec<Value> = items.iter().take(MEMBERS).map(shortened).collect();
            if items.len() > MEMBERS {
                shown.push(json!(format!("... ({} in all)", items.len())));
            }
            Value::Array(shown)
        }
        Value::Object(fields) => {
            fields.iter().map(|(name, field)| (name.clone(), shortened(field))).collect()
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_params_are_shortened_with_their_size() {
        let long = "ä".repeat(1_000);
        let shown = shortened(&json!({ "path": "a.txt", "content": long, "rows": vec![1; 100] }));
        let content = shown["content"].as_str().expect("text");
        assert!(content.ends_with("(2000 bytes in all)") && content.len() < 500, "{content}");
        assert_eq!((&shown["path"], &shown["rows"][MEMBERS]), (&json!("a.txt"), &json!("... (100 in all)")));
    }
}
