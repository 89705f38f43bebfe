//! Approvals of calls: what identifies one, and the user's answers about the calls of a run.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use nonet_api::question::Approver;
use nonet_base::text::hex;
use nonet_config::ApproveBy;
use nonet_parts::jobs::JobOwner;
use nonet_servers::{catalog::Tool, pins};
use nonet_text::fault::{Fault, FaultCode};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::session::Caller;

/// A single approved call: this tool with these params, once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Approval {
    /// The full name of the tool.
    pub tool: Arc<str>,
    /// The hash of the definition shown to the user.
    pub hash: Arc<str>,
    /// Whose approval it is.
    pub owner: JobOwner,
    params: String,
}

impl Approval {
    /// Creates the approval of a call.
    pub fn of(caller: &Caller, tool: &Tool, params: &Map<String, Value>) -> Self {
        // In a list, every member of the params counts, in any order.
        let params = pins::hash(&json!([params]));
        Self { tool: tool.full.clone(), hash: tool.hash.clone(), owner: caller.owner(), params }
    }

    /// Returns the full name of the tool.
    pub fn tool(&self) -> &str {
        &self.tool
    }

    /// Returns the name under which replicas share the approval.
    pub fn note(&self) -> String {
        format!("approved:{}", self.key(""))
    }

    /// Returns a digest of the approval. Each process numbers its own sessions, so `nonce` tells the
    /// processes apart.
    pub fn key(&self, nonce: &str) -> String {
        let JobOwner { session, owner, local, account } = &self.owner;
        // A client of this machine's user may have restarted since.
        let account = (!*local).then(|| account.name().to_string());
        let nonce = session.map(|_| nonce);
        let all = json!([self.tool, self.hash, self.params, session, owner.profile(), local, nonce, account]);
        hex(&Sha256::digest(all.to_string().as_bytes()))
    }
}

/// The approval that a call needs.
pub struct RequiredApproval {
    /// The rule that requires the approval.
    pub rule: String,
    /// The params as written.
    pub written: Value,
    /// The tool's own question, if it has one.
    pub own: Option<String>,
    /// Whose answer counts.
    pub by: ApproveBy,
    /// Whether the rule is about this very call, so that no answer counts for the rest of the session.
    pub is_of_call: bool,
}

/// Builds the fault for a call that the user did not allow.
pub fn not_allowed(tool: &str, rule: &str, feedback: Option<&str>) -> Fault {
    let said = feedback.map(|said| format!(" The user said: {said}")).unwrap_or_default();
    let message = format!(
        "The user did not allow this call to `{tool}` ({rule}). Continue without it, or ask the user what to do instead.{said}"
    );
    Fault::new(FaultCode::Forbidden, message)
}

/// Returns the name under which a run keeps the answer about a call.
pub fn grant_key(approval: &Approval, is_single: bool) -> String {
    match is_single {
        true => format!("{} {}", approval.tool, approval.params),
        false => approval.tool.to_string(),
    }
}

/// The calls of one tool in a run that wait for the user.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunApproval {
    /// The full name of the tool.
    pub tool: Arc<str>,
    /// The hash of the definition shown to the user.
    pub hash: Arc<str>,
    /// The name under which the run keeps the answer; see [`grant_key`].
    pub key: String,
    /// The rule that requires the approval.
    pub rule: String,
    /// Whether the session can remember the answer.
    pub lasting: bool,
    /// Whose answer counts.
    pub by: ApproveBy,
    /// The whole question, for a form or the page.
    pub message: String,
    /// The question for the chat, where the model knows the params.
    pub brief: String,
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
    /// Whether it answers for this definition: a yes in the chat does not if the user's own answer is
    /// required by now.
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
    pub turn: tokio::sync::Mutex<()>,
    /// Whether the client of the run may be asked by a form.
    pub may_ask: bool,
}

impl RunGrants {
    /// Creates the answers of a run, from those of its earlier parts.
    pub fn new(may_ask: bool, earlier: &Value) -> Arc<Self> {
        let given = Mutex::new(BTreeMap::deserialize(earlier).unwrap_or_default());
        Arc::new(Self { given, may_ask, ..Self::default() })
    }

    /// Returns the answers as JSON.
    pub fn kept(&self) -> Value {
        json!(*self.given.lock())
    }

    /// Records the user's answer.
    pub fn give(&self, asked: &RunApproval, by: Option<Approver>, feedback: Option<String>) {
        self.given.lock().insert(asked.key.clone(), Grant { hash: asked.hash.clone(), by, feedback });
    }

    /// Returns the user's answer about a call, if there is one: who allowed it, or the fault.
    pub fn answer(&self, approval: &Approval, asked: &RequiredApproval) -> Option<Result<Approver, Fault>> {
        let given = self.given.lock();
        let grant = given.get(&grant_key(approval, asked.own.is_some()))?;
        let grant = Some(grant).filter(|grant| grant.answers(&approval.hash, asked.by))?;
        Some(grant.by.ok_or_else(|| not_allowed(&approval.tool, &asked.rule, grant.feedback.as_deref())))
    }

    /// Whether the user has allowed calls.
    pub fn allows(&self, asked: &RunApproval) -> bool {
        self.given.lock().get(&asked.key).is_some_and(|grant| grant.by.is_some())
    }

    /// Records that the user has not answered.
    pub fn leave_open(&self, asked: &RunApproval) {
        self.open.lock().insert(asked.key.clone());
    }

    /// Whether the user has left a question of the run open.
    pub fn is_open(&self, asked: &RunApproval) -> bool {
        self.open.lock().contains(&asked.key)
    }

    /// Whether the user has answered a question of the run.
    pub fn has_answered(&self, asked: &RunApproval) -> bool {
        self.given.lock().get(&asked.key).is_some_and(|grant| grant.answers(&asked.hash, asked.by))
    }
}
