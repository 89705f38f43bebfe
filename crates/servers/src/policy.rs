//! Whether a caller may use a tool, a prompt or a resource: a pure function of the item and of the caller's
//! profile and limits.

use std::collections::BTreeMap;

use nonet_config::{Category, Globs, OnChange, Policy, PolicyRule, Profile, Risk, ServerSettings};
use nonet_text::name::{Spellings, full_name};

use crate::catalog::{GATEWAY, SKILLS, Tool};

/// The prefix of the server in the names of resources in rules.
pub const RESOURCES: &str = "resources";

/// The rules' verdict on one tool for one caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyVerdict {
    /// The tool may be called.
    Allow,
    /// The user must approve each call; holds the rule.
    Approve(String),
    /// The tool is hidden and cannot be called; holds the rule.
    Deny(String),
}

/// A profile with its name and the categories that the profile may refer to.
#[derive(Clone, Copy, Debug)]
pub struct PolicyScope<'a> {
    /// The profile's name.
    pub name: &'a str,
    /// The profile's rules.
    pub profile: &'a Profile,
    /// The named groups of the configuration.
    pub categories: &'a BTreeMap<String, Category>,
}

impl PolicyScope<'_> {
    /// Returns the full name of a key of the profile.
    fn key(&self, key: &str) -> String {
        format!("profiles.{}.{key}", self.name)
    }
}

/// The kind of an [`PolicyItem`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemKind {
    /// A prompt.
    Prompt,
    /// A resource that the server lists, or that matches one of its templates.
    Resource,
    /// A resource linked by a result, for the session that got the result.
    Linked,
    /// A resource without a listing.
    Unlisted,
}

/// A prompt or resource of a server, as seen by rules. Patterns match it as `SERVER.NAME` or `SERVER.URI`,
/// like a tool, and as `skills.SERVER/NAME` or `resources.SERVER/URI`.
#[derive(Clone, Debug)]
pub struct PolicyItem<'a> {
    kind: ItemKind,
    server: &'a str,
    own: &'a str,
    names: [String; 2],
    risk: Risk,
    settings: &'a ServerSettings,
}

impl<'a> PolicyItem<'a> {
    /// Creates an item from the name or URI that its server gives it.
    pub fn new(kind: ItemKind, server: &'a str, own: &'a str, settings: &'a ServerSettings) -> Self {
        let (category, risk) = match kind {
            ItemKind::Prompt => (SKILLS, settings.prompts_risk),
            ItemKind::Resource | ItemKind::Linked => (RESOURCES, settings.resources_risk),
            ItemKind::Unlisted => (RESOURCES, settings.resources_risk.max(Risk::Medium)),
        };
        let names = [full_name(server, own), format!("{category}.{server}/{own}")];
        Self { kind, server, own, names, risk, settings }
    }

    /// Whether patterns on full names match.
    pub fn matches(&self, patterns: &Globs) -> bool {
        self.names.iter().any(|name| patterns.matches(name))
    }

    /// Returns its risk.
    pub fn risk(&self) -> Risk {
        self.risk
    }

    /// Whether patterns of a rule against items match, in any spelling.
    pub fn is_caught_by(&self, patterns: &Globs) -> bool {
        !patterns.is_empty() && self.names.iter().any(|name| patterns.catches(name, &Spellings::of(name)))
    }
}

/// A tool, prompt or resource as the rules of a profile see it.
struct Governed<'a> {
    server: &'a str,
    tags: &'a [String],
    risk: Risk,
    /// Whether patterns on full names match.
    matches: &'a dyn Fn(&Globs) -> bool,
    /// Whether patterns of a rule against it match, in any spelling.
    is_caught: &'a dyn Fn(&Globs) -> bool,
}

/// Checks a prompt or resource, as [`check`] does a tool. A link in an allowed tool's result may lead to an
/// item that the profile does not show, unless the profile's `deny` or `max_risk` forbids it.
pub fn check_item(
    item: &PolicyItem<'_>,
    policies: &BTreeMap<String, PolicyRule>,
    scope: Option<PolicyScope<'_>>,
) -> PolicyVerdict {
    let of_server = |key: &str| PolicyVerdict::Deny(format!("servers.{}.{key}", item.server));
    if item.settings.blocked_tools.catches_own(item.own) {
        return of_server("blocked_tools");
    }
    if item.kind == ItemKind::Unlisted && !item.settings.unlisted_resources {
        return of_server("unlisted_resources");
    }
    let (matches, is_caught) =
        (|tools: &Globs| item.matches(tools), |tools: &Globs| item.is_caught_by(tools));
    let of_server = (item.server, item.settings.policy);
    let (policy, rule) = PolicyRule::decided(policies, of_server, item.risk, matches, is_caught);
    if policy == Policy::Deny {
        return PolicyVerdict::Deny(rule);
    }
    let PolicyItem { server, risk, settings, .. } = *item;
    let governed = Governed { server, tags: &settings.tags, risk, matches: &matches, is_caught: &is_caught };
    let is_linked = item.kind == ItemKind::Linked;
    if let Some(rule) = scope.and_then(|scope| denied_by(&governed, scope, is_linked)) {
        return PolicyVerdict::Deny(rule);
    }
    if policy == Policy::Approve { PolicyVerdict::Approve(rule) } else { PolicyVerdict::Allow }
}

/// Whether `tool` is in the named group.
pub fn in_category(tool: &Tool, category: &Category) -> bool {
    is_in(&tool.server, &tool.tags, category) || category.tools.matches(&tool.full)
}

/// Whether a server or a tag is in the named group.
fn is_in(server: &str, tags: &[String], category: &Category) -> bool {
    category.servers.iter().any(|of_category| of_category.as_str() == server)
        || category.tags.iter().any(|tag| tags.contains(tag))
}

/// Checks a tool against its own policy and the caller's profile.
pub fn check(tool: &Tool, scope: Option<PolicyScope<'_>>) -> PolicyVerdict {
    if let Some(rule) = &tool.blocked {
        return PolicyVerdict::Deny(rule.clone());
    }
    if let Some(change) = tool.change.as_ref().filter(|change| change.effect == OnChange::Deny) {
        return PolicyVerdict::Deny(change.rule.clone());
    }
    let governed = Governed {
        server: &tool.server,
        tags: &tool.tags,
        risk: tool.risk,
        matches: &|tools| tools.matches(&tool.full),
        is_caught: &|tools| tool.is_caught_by(tools),
    };
    let denied = scope.and_then(|scope| match tool.is_of_server() {
        true => denied_by(&governed, scope, false),
        false => own_denied_by(tool, scope),
    });
    if let Some(rule) = denied {
        return PolicyVerdict::Deny(rule);
    }
    match tool.policy {
        Policy::Approve => PolicyVerdict::Approve(tool.policy_rule.clone()),
        Policy::Allow | Policy::Deny => PolicyVerdict::Allow,
    }
}

/// Returns the profile's rule that denies something of a server. `is_linked`: a result leads to it, whatever
/// the profile shows.
fn denied_by(governed: &Governed<'_>, scope: PolicyScope<'_>, is_linked: bool) -> Option<String> {
    let Governed { server, tags, risk, matches, is_caught } = *governed;
    let profile = scope.profile;
    let in_group = |group: &Category| is_in(server, tags, group) || matches(&group.tools);
    let is_listed = || {
        let mut names = profile.categories.iter();
        names.any(|name| **name == *server || scope.categories.get(name).is_some_and(in_group))
            || profile.tags.iter().any(|tag| tags.contains(tag))
    };
    let key = if is_caught(&profile.deny) {
        "deny"
    } else if !is_linked && profile.only.as_ref().is_some_and(|only| !matches(only)) {
        "only"
    } else if matches(&profile.allow) {
        return None;
    } else if !within(risk, profile.max_risk) {
        "max_risk"
    } else if !is_linked && profile.is_limited() && !is_listed() {
        "categories"
    } else {
        return None;
    };
    Some(scope.key(key))
}

/// Returns the profile's rule that denies one of Nonet's own tools, a skill or an app. These are open to
/// every profile, and the tools that they reach are checked at the call; but not own tools whose effect
/// outlasts the call or reaches other clients.
fn own_denied_by(tool: &Tool, scope: PolicyScope<'_>) -> Option<String> {
    let is_of_effect = tool.risk == Risk::High && &*tool.server == GATEWAY;
    if tool.is_caught_by(&scope.profile.deny) {
        return Some(scope.key("deny"));
    }
    is_of_effect.then(|| kept_out_by(&tool.full, scope.profile)).flatten().map(|key| scope.key(key))
}

/// Returns the key by which a profile keeps out an own tool of effect: whatever limits the profile, unless
/// `only` or `allow` contains the tool's full name itself.
fn kept_out_by(full: &str, profile: &Profile) -> Option<&'static str> {
    let is_in_only = profile.only.as_ref().map(|only| only.names(full));
    if is_in_only == Some(false) {
        return Some("only");
    }
    if profile.allow.names(full) {
        return None;
    }
    let keys = [
        (profile.max_risk.is_some_and(|most| most < Risk::High), "max_risk"),
        (!profile.categories.is_empty(), "categories"),
        (!profile.tags.is_empty(), "tags"),
        (!profile.allow.is_empty(), "allow"),
        (!profile.deny.is_empty(), "deny"),
    ];
    let by_risk = keys.first().filter(|(limits, _)| *limits);
    let of_names = keys.iter().find(|(limits, _)| *limits && is_in_only.is_none());
    by_risk.or(of_names).map(|(_, key)| *key)
}

/// Whether a tool of this risk may be shown, if `most` is the highest allowed risk.
pub fn within(risk: Risk, most: Option<Risk>) -> bool {
    most.is_none_or(|most| risk <= most)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use nonet_config as config;

    #[test]
    fn rules_hold_for_prompts_and_resources_as_for_tools() {
        let check = |server: &str, rules: &str, expected: [&str; 4]| {
            let text = format!(
                "[servers.docs]\ncommand = 'x'\ntags = ['text']\n{server}\n{rules}\n[servers.mail]\ncommand = 'x'\n"
            );
            let loaded =
                config::parse(&text, Path::new("f"), config::ValueSources::NONE).expect("it is usable");
            assert!(loaded.faults.is_empty(), "{:?}", loaded.faults);
            let config = loaded.config;
            let settings = config.servers.values().next().expect("a server");
            let scope = config.profiles.get("p");
            let scope =
                scope.map(|profile| PolicyScope { name: "p", profile, categories: &config.categories });
            let items = [
                (ItemKind::Prompt, "plan"),
                (ItemKind::Resource, "file:///a"),
                (ItemKind::Linked, "file:///b"),
                (ItemKind::Unlisted, "file:///c"),
            ];
            let said = items.map(|(kind, own)| {
                match check_item(&PolicyItem::new(kind, "docs", own, settings), &config.policies, scope) {
                    PolicyVerdict::Allow => "yes".to_string(),
                    PolicyVerdict::Approve(rule) => format!("ask {rule}"),
                    PolicyVerdict::Deny(rule) => rule,
                }
            });
            assert_eq!(said, expected, "{server}\n{rules}");
        };
        let unlisted = "servers.docs.unlisted_resources";
        check("", "", ["yes", "yes", "yes", unlisted]);
        check("unlisted_resources = true", "", ["yes"; 4]);
        let open = "unlisted_resources = true";
        let low = "[profiles.p]\nmax_risk = 'low'";
        check(open, low, ["yes", "yes", "yes", "profiles.p.max_risk"]);
        let risky = "unlisted_resources = true\nresources_risk = 'high'\nprompts_risk = 'medium'";
        check(risky, low, ["profiles.p.max_risk"; 4]);
        check(
            risky,
            "[policies.ask]\nrisk = 'high'\npolicy = 'approve'",
            ["yes", "ask policies.ask", "ask policies.ask", "ask policies.ask"],
        );
        check(
            "",
            "[profiles.p]\ncategories = ['mail']",
            ["profiles.p.categories", "profiles.p.categories", "yes", unlisted],
        );
        check("", "[profiles.p]\ncategories = ['docs']", ["yes", "yes", "yes", unlisted]);
        check("", "[profiles.p]\ntags = ['text']", ["yes", "yes", "yes", unlisted]);
        check(
            "",
            "[profiles.p]\nallow = ['docs.file:*', 'docs.read_*']",
            ["profiles.p.categories", "yes", "yes", unlisted],
        );
        check(
            "",
            "[profiles.p]\nonly = ['docs.read_*']",
            ["profiles.p.only", "profiles.p.only", "yes", unlisted],
        );
        check("", "[profiles.p]\nonly = ['skills.docs/*']", ["yes", "profiles.p.only", "yes", unlisted]);
        check(
            "",
            "[profiles.p]\ndeny = ['docs.*']",
            ["profiles.p.deny", "profiles.p.deny", "profiles.p.deny", unlisted],
        );
        check(
            "",
            "[profiles.p]\ndeny = ['resources.docs/*']",
            ["yes", "profiles.p.deny", "profiles.p.deny", unlisted],
        );
        check(
            "",
            "[policies.no]\ntools = ['docs.plan']\npolicy = 'deny'",
            ["policies.no", "yes", "yes", unlisted],
        );
        check(
            "policy = 'deny'",
            "[policies.yes]\ntools = ['resources.*/file:///a']\npolicy = 'allow'",
            ["servers.docs.policy", "yes", "servers.docs.policy", unlisted],
        );
        check(
            "blocked_tools = ['file:*']",
            "",
            ["yes", "servers.docs.blocked_tools", "servers.docs.blocked_tools", "servers.docs.blocked_tools"],
        );
    }
}
