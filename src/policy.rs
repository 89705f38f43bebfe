//! May this caller use this tool: a pure function over the tool, the caller's profile and its limits.

use crate::{
    catalog::Tool,
    config::{Category, Policy, Profile, Risk},
};

/// What the rules say of one tool for one caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may be called.
    Allow,
    /// The user has to agree to each call first; names the rule.
    Approve(String),
    /// It may not be seen or called; names the rule.
    Deny(String),
}

/// A profile with its name and the categories that it may name.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    /// The profile's name.
    pub name: &'a str,
    /// Its rules.
    pub profile: &'a Profile,
    /// The named groups of the configuration.
    pub categories: &'a std::collections::BTreeMap<String, Category>,
}

/// Whether `tool` is in the named group.
pub fn in_category(tool: &Tool, category: &Category) -> bool {
    category.servers.iter().any(|server| server.as_str() == &*tool.server)
        || category.tags.iter().any(|tag| tool.tags.contains(tag))
        || category.tools.matches(&tool.full)
}

/// Checks a tool against its own policy and the caller's profile.
pub fn check(tool: &Tool, scope: Option<Scope<'_>>) -> Verdict {
    if let Some(rule) = &tool.blocked {
        return Verdict::Deny(rule.clone());
    }
    if let Some(scope) = scope
        && let Some(rule) = denied_by(tool, scope)
    {
        return Verdict::Deny(format!("profiles.{}.{rule}", scope.name));
    }
    match tool.policy {
        Policy::Approve => Verdict::Approve(tool.policy_rule.clone()),
        Policy::Allow | Policy::Deny => Verdict::Allow,
    }
}

/// The rule of a profile that keeps the tool out.
fn denied_by(tool: &Tool, scope: Scope<'_>) -> Option<&'static str> {
    let profile = scope.profile;
    if profile.deny.matches(&tool.full) {
        return Some("deny");
    }
    // Nonet's own tools serve every profile; what they reach is checked again at the call.
    if &*tool.server == crate::catalog::GATEWAY {
        return None;
    }
    if profile.only.as_ref().is_some_and(|only| !only.matches(&tool.full)) {
        return Some("only");
    }
    if profile.allow.matches(&tool.full) {
        return None;
    }
    if profile.max_risk.is_some_and(|most| tool.risk > most) {
        return Some("max_risk");
    }
    let limited = profile.is_limited();
    let listed = profile.categories.iter().any(|name| {
        *name == *tool.server
            || scope.categories.get(name).is_some_and(|category| in_category(tool, category))
    }) || profile.tags.iter().any(|tag| tool.tags.contains(tag));
    (limited && !listed).then_some("categories")
}

/// Whether a tool of this risk may be shown under `most`.
pub fn within(risk: Risk, most: Option<Risk>) -> bool {
    most.is_none_or(|most| risk <= most)
}
