//! A call that needs the user's approval: what identifies it, what the user reads, and what a yes allows.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::about::{About, Question};
use crate::{
    audit::Approver,
    catalog::Tool,
    config::ApproveBy,
    fault::{Code, Fault},
    gateway::{AppArguments, call::Request, session::Caller},
    jobs::JobOwner,
    pins,
    results::json_len,
    text::{clip, escaped, hex},
};

/// How many characters of a call's params a form or the page shows to the user, and how many the chat, where the model
/// has the params already.
const MOST_SHOWN: usize = 6_000;
const MOST_IN_CHAT: usize = 2_000;
/// The longest text among the params that the chat shows whole, and how much of a longer one it shows, in characters.
const WHOLE: usize = 300;
const BEGINNING: usize = 200;
/// How many members of a list among the params the chat shows.
const MEMBERS: usize = 20;
/// How much of each call's params a question about several calls shows, in characters.
const MOST_OF_CALL: usize = 300;

/// A single approved call: this tool with these params, once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Approval {
    pub(super) tool: Arc<str>,
    /// The hash of the definition shown to the user.
    pub(super) hash: Arc<str>,
    pub(super) owner: JobOwner,
    params: String,
}

impl Approval {
    /// Creates the approval of a call.
    pub(in crate::gateway) fn of(caller: &Caller, tool: &Tool, params: &Map<String, Value>) -> Self {
        // In a list, every member of the params counts, in any order.
        let params = pins::hash(&json!([params]));
        Self { tool: tool.full.clone(), hash: tool.hash.clone(), owner: caller.owner(), params }
    }

    /// Returns the full name of the tool.
    pub(in crate::gateway) fn tool(&self) -> &str {
        &self.tool
    }

    /// Returns the name under which replicas share the approval.
    pub(super) fn note(&self) -> String {
        format!("approved:{}", self.key(""))
    }

    /// Returns a digest of the approval. Each process numbers its own sessions, so `nonce` tells the processes apart.
    pub(in crate::gateway) fn key(&self, nonce: &str) -> String {
        let JobOwner { session, profile, local, account } = &self.owner;
        // A client of this machine's user may have restarted since.
        let account = (!*local).then(|| account.name().to_string());
        let nonce = session.map(|_| nonce);
        let all = json!([self.tool, self.hash, self.params, session, profile, local, nonce, account]);
        hex(&Sha256::digest(all.to_string().as_bytes()))
    }
}

/// The approval that a call needs.
pub(in crate::gateway) struct ApprovalAsked {
    /// The rule that requires the approval.
    pub rule: String,
    /// The params as written.
    pub written: Value,
    /// The tool's own question, if it has one.
    pub own: Option<String>,
    /// Whose answer counts.
    pub by: ApproveBy,
}

/// The outcome of an approval.
pub(in crate::gateway) enum Approved {
    /// The user agreed, in this way.
    By(Approver),
    /// Nobody has answered yet.
    Unasked(Box<Unasked>),
}

/// A call whose user was not asked yet.
#[derive(Debug)]
pub(in crate::gateway) struct Unasked {
    pub approval: Approval,
    /// The whole question, and the question for the chat.
    pub message: String,
    pub brief: String,
    pub rule: String,
    pub written: Value,
    /// Whether the session can remember the answer.
    pub lasting: bool,
    /// Whose answer counts.
    pub by: ApproveBy,
    /// The fault to return if no answer in the chat counts. The same call asks again, or waits for the answer.
    pub fault: Option<Box<Fault>>,
    /// Whether the tool has a question of its own, whose answer covers no other call.
    is_single: bool,
}

/// A call that runs once the user has approved it.
#[derive(Clone, Debug)]
pub(in crate::gateway) enum HeldCall {
    Tool(Box<Request>),
    App(Box<AppArguments>),
}

impl HeldCall {
    /// Returns the size of its params as JSON, in bytes.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Tool(request) => json_len(&request.params),
            Self::App(arguments) => json_len(arguments.input()),
        }
    }
}

impl Unasked {
    /// Creates the question about a call.
    pub(super) fn new(
        caller: &Caller,
        tool: &Tool,
        approval: Approval,
        params: &Map<String, Value>,
        asked: ApprovalAsked,
    ) -> Self {
        let ApprovalAsked { rule, written, own, by } = asked;
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
        let lasting = caller.lasting && !is_single;
        Self { approval, message, brief, rule, written, lasting, by, fault: None, is_single }
    }

    /// Adds the calls of the same tool that the answer covers: how many, whether there may be more, and the params of the
    /// first ones.
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

    /// Returns the question of a run. Its answer covers every call of the tool in this run, unless the tool has a
    /// question of its own.
    pub fn in_run(self) -> RunApproval {
        let key = grant_key(&self.approval, self.is_single);
        let Self { approval, message, brief, rule, lasting, by, .. } = self;
        let Approval { tool, hash, .. } = approval;
        RunApproval { tool, hash, key, rule, lasting, by, message, brief }
    }

    /// Builds the fault for a refused call.
    pub fn refused(&self, feedback: Option<&str>) -> Fault {
        not_allowed(&self.approval.tool, &self.rule, feedback)
    }
}

/// Builds the fault for a call that the user did not allow.
fn not_allowed(tool: &str, rule: &str, feedback: Option<&str>) -> Fault {
    let said = feedback.map(|said| format!(" The user said: {said}")).unwrap_or_default();
    let message = format!(
        "The user did not allow this call to `{tool}` ({rule}). Continue without it, or ask the user what to do instead.{said}"
    );
    Fault::new(Code::Forbidden, message)
}

/// Returns the name under which a run keeps the answer about a call.
fn grant_key(approval: &Approval, is_single: bool) -> String {
    match is_single {
        true => format!("{} {}", approval.tool, approval.params),
        false => approval.tool.to_string(),
    }
}

/// The calls of one tool in a run that wait for the user.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::gateway) struct RunApproval {
    pub tool: Arc<str>,
    pub hash: Arc<str>,
    key: String,
    pub rule: String,
    pub lasting: bool,
    pub by: ApproveBy,
    pub message: String,
    brief: String,
}

impl RunApproval {
    /// Returns the question as asked in the chat.
    pub fn in_chat(&self) -> Question {
        Question::new(About::Run { lasting: self.lasting }, self.brief.clone())
    }
}

/// The user's answer about the calls of a tool in a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Grant {
    /// The hash of the definition shown to the user.
    hash: Arc<str>,
    /// Who allowed the calls; `None` if the user did not.
    by: Option<Approver>,
    /// What else the user said.
    feedback: Option<String>,
}

impl Grant {
    /// Whether it answers for this definition: a yes in the chat does not if the user's own answer is required by now.
    fn answers(&self, hash: &str, by: ApproveBy) -> bool {
        *self.hash == *hash && !(by == ApproveBy::User && self.by == Some(Approver::Chat))
    }
}

/// The user's answers about the calls of a run.
#[derive(Debug, Default)]
pub struct RunGrants {
    given: Mutex<BTreeMap<String, Grant>>,
    /// The questions that the user has left open.
    open: Mutex<BTreeSet<String>>,
    /// Held while the user is asked: of several calls of a tool, one asks.
    pub(in crate::gateway) turn: tokio::sync::Mutex<()>,
    /// Whether the client of the run may be asked by a form.
    pub(in crate::gateway) may_ask: bool,
}

impl RunGrants {
    /// Creates the answers of a run, from those of its earlier parts.
    pub(in crate::gateway) fn new(may_ask: bool, earlier: &Value) -> Arc<Self> {
        let given = Mutex::new(BTreeMap::deserialize(earlier).unwrap_or_default());
        Arc::new(Self { given, may_ask, ..Self::default() })
    }

    /// Returns the answers as JSON.
    pub(in crate::gateway) fn kept(&self) -> Value {
        json!(*self.given.lock())
    }

    /// Records the user's answer.
    pub(in crate::gateway) fn give(
        &self,
        asked: &RunApproval,
        by: Option<Approver>,
        feedback: Option<String>,
    ) {
        self.given.lock().insert(asked.key.clone(), Grant { hash: asked.hash.clone(), by, feedback });
    }

    /// Returns the user's answer about a call, if there is one: who allowed it, or the fault.
    pub(super) fn answer(
        &self,
        approval: &Approval,
        asked: &ApprovalAsked,
    ) -> Option<Result<Approver, Fault>> {
        let given = self.given.lock();
        let grant = given.get(&grant_key(approval, asked.own.is_some()))?;
        let grant = Some(grant).filter(|grant| grant.answers(&approval.hash, asked.by))?;
        Some(grant.by.ok_or_else(|| not_allowed(&approval.tool, &asked.rule, grant.feedback.as_deref())))
    }

    /// Whether the user has allowed calls.
    pub(in crate::gateway) fn allows(&self, asked: &RunApproval) -> bool {
        self.given.lock().get(&asked.key).is_some_and(|grant| grant.by.is_some())
    }

    /// Records that the user has not answered.
    pub(in crate::gateway) fn leave_open(&self, asked: &RunApproval) {
        self.open.lock().insert(asked.key.clone());
    }

    /// Whether the user has left a question of the run open.
    pub(in crate::gateway) fn is_open(&self, asked: &RunApproval) -> bool {
        self.open.lock().contains(&asked.key)
    }

    /// Whether the user has answered a question of the run.
    pub(in crate::gateway) fn has_answered(&self, asked: &RunApproval) -> bool {
        self.given.lock().get(&asked.key).is_some_and(|grant| grant.answers(&asked.hash, asked.by))
    }
}

/// Marks a definition that the user approved through the chat: the approval counts only as long as answers in the chat
/// do.
pub(in crate::gateway) fn by_chat(hash: &str) -> Arc<str> {
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
