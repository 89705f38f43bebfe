//! Whether a caller may use a tool: a pure function of the tool, the caller's profile and its limits.

use crate::{
    catalog::Tool,
    config::{Category, Policy, Profile, Risk},
};

/// The rules' verdict on one tool for one caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The tool may be called.
    Allow,
    /// The user must approve each call; holds the rule.
    Approve(String),
    /// The tool is hidden and cannot be called; holds the rule.
    Deny(String),
}

/// A profile with its name and the categories that it may refer to.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    /// The profile's name.
    pub name: &'a str,
    /// The profile's rules.
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

/// Returns the profile's rule that denies the tool.
fn denied_by(tool: &Tool, scope: Scope<'_>) -> Option<&'static str> {
    let profile = scope.profile;
    if profile.deny.matches(&tool.full) {
        return Some("deny");
    }
    // Nonet's own tools, skills and apps are open to every profile; the tools they reach are checked at the call. Own tools
    // that can do harm by themselves obey `max_risk`.
    if !tool.is_of_server() {
        let is_harmful = tool.risk == Risk::High && &*tool.server == crate::catalog::GATEWAY;
        let is_beyond = is_harmful && profile.max_risk.is_some_and(|most| most < Risk::High);
        return is_beyond.then_some("max_risk");
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

/// Whether a tool of this risk may be shown if `most` is the highest risk allowed.
pub fn within(risk: Risk, most: Option<Risk>) -> bool {
    most.is_none_or(|most| risk <= most)
}
