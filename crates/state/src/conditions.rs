//! Policies with `when`: what they say about one call, by who makes it and with which params.
//!
//! Their tools stay visible. A condition is asked after the params were read, and only for tools that its policy
//! selects, so that other calls cost nothing.

use nonet_config::{Config, Globs, Policy, Risk, select};
use nonet_servers::{
    catalog::Tool,
    policy::{PolicyItem, PolicyVerdict},
};
use nonet_text::name::Spellings;
use serde_json::{Map, Value, json};

use crate::session::Caller;

/// The largest input, in bytes of JSON, that is read on the thread of the call.
const SMALL: usize = 16 << 10;

/// The policies with `when` that select a tool, a prompt or a resource.
pub struct Conditions(Vec<Condition>);

struct Condition {
    rule: String,
    filter: String,
    policy: Policy,
}

impl Conditions {
    /// Returns the conditions for a tool.
    pub fn of_tool(config: &Config, tool: &Tool) -> Self {
        let is_own = !tool.is_of_server();
        Self::new(config, tool.risk, |tools| match tools.is_empty() {
            // A policy for a risk is about tools of servers.
            true => !is_own,
            false => tool.is_caught_by(tools),
        })
    }

    /// Returns the conditions for a prompt or a resource.
    pub fn of_item(config: &Config, item: &PolicyItem<'_>) -> Self {
        Self::new(config, item.risk(), |tools| tools.is_empty() || item.is_caught_by(tools))
    }

    fn new(config: &Config, risk: Risk, selects: impl Fn(&Globs) -> bool) -> Self {
        let rules = config.policies.iter().filter_map(|(name, rule)| {
            let filter = rule.when.clone()?;
            let is_selected = rule.risk.is_none_or(|from| risk >= from) && selects(&rule.tools);
            is_selected.then(|| Condition { rule: format!("policies.{name}"), filter, policy: rule.policy })
        });
        Self(rules.collect())
    }

    /// Whether no condition has to be asked.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the strictest policy that applies to a call, with its rule: `Allow` if none does.
    pub async fn verdict(self, input: ConditionInput) -> PolicyVerdict {
        if self.is_empty() || input.0.len() <= SMALL {
            return self.verdict_now(&input);
        }
        let asked = tokio::task::spawn_blocking(move || self.verdict_now(&input)).await;
        asked.unwrap_or_else(|_| PolicyVerdict::Deny("policies".into()))
    }

    /// The same on this thread, for small inputs.
    pub fn verdict_now(&self, input: &ConditionInput) -> PolicyVerdict {
        let applies = |one: &&Condition| {
            select::condition(&one.filter, &input.0).unwrap_or_else(|error| {
                tracing::warn!(rule = one.rule, %error, "a condition fails, so its policy applies");
                true
            })
        };
        match self.0.iter().filter(applies).max_by_key(|one| one.policy) {
            Some(Condition { rule, policy: Policy::Deny, .. }) => PolicyVerdict::Deny(rule.clone()),
            Some(Condition { rule, policy: Policy::Approve, .. }) => PolicyVerdict::Approve(rule.clone()),
            _ => PolicyVerdict::Allow,
        }
    }
}

/// What a condition is asked about, as JSON.
pub struct ConditionInput(String);

impl ConditionInput {
    /// Returns the input for a call of this name, in full.
    pub fn new(caller: &Caller, name: &str, params: &Map<String, Value>) -> Self {
        let person = caller.person.as_deref();
        // Of calls that run without anybody, nobody knows with which token they would be made.
        let with_token = person.filter(|_| !caller.session.of_client().unattended);
        let who = json!({
            "subject": person.map(|person| &person.subject),
            "name": person.map(|person| &person.name),
            "issuer": person.map(|person| &person.issuer),
            "claims": person.map(|person| &person.claims),
            "scopes": with_token.map(|person| &person.scopes),
            "client": with_token.and_then(|person| person.client.as_ref()),
            "profile": caller.session.profile,
            "token": caller.token.as_ref().map(|token| &token.place),
            "unattended": caller.session.of_client().unattended,
        });
        Self(json!({ "caller": who, "tool": name, "params": params }).to_string())
    }
}

/// What one policy with `when` says about a call.
#[derive(Clone, Debug)]
pub struct AskedCondition {
    /// The policy's key.
    pub rule: String,
    /// What happens to a call that it applies to.
    pub policy: Policy,
    /// The lowest risk to which it applies, if that matters.
    pub risk: Option<Risk>,
    /// Whether its condition holds, or why it fails, in which case it applies.
    pub holds: Result<bool, String>,
}

/// Returns what each policy with `when` that selects a tool by its name says about a call of it.
pub fn asked_conditions(
    config: &Config,
    caller: &Caller,
    tool: &str,
    params: &Map<String, Value>,
) -> Vec<AskedCondition> {
    let input = ConditionInput::new(caller, tool, params);
    let spellings = Spellings::of(tool);
    let selected = config.policies.iter().filter_map(|(name, rule)| {
        let filter = rule.when.as_deref()?;
        let is_selected = rule.tools.is_empty() || rule.tools.catches(tool, &spellings);
        is_selected.then(|| AskedCondition {
            rule: format!("policies.{name}"),
            policy: rule.policy,
            risk: rule.risk,
            holds: select::condition(filter, &input.0).map_err(|error| error.to_string()),
        })
    });
    selected.collect()
}

/// Returns the stricter of two verdicts.
pub fn stricter(one: PolicyVerdict, other: PolicyVerdict) -> PolicyVerdict {
    match (&one, &other) {
        (PolicyVerdict::Deny(_), _) | (PolicyVerdict::Approve(_), PolicyVerdict::Allow) => one,
        (_, PolicyVerdict::Deny(_)) | (PolicyVerdict::Allow, _) => other,
        (PolicyVerdict::Approve(_), PolicyVerdict::Approve(_)) => one,
    }
}
