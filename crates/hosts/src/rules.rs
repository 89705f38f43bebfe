//! Clients' own rules for the tools of a server: what is hidden, refused, or asked about first.
//!
//! [`places`] reads the rules from clients' files. [`ClientRules::of_server`] turns them into rules that
//! servers.toml can express: the strictest rule of a tool counts there, and a pattern has no exceptions. What
//! servers.toml cannot express keeps the server with its client.

mod names;
mod places;

use std::path::{Path, PathBuf};

pub use nonet_api::setup::MappedRule;
use serde_json::Value;

pub(super) use names::ToolNames;
pub(super) use places::of_client;

use nonet_config::Policy;

use super::{OWN_NAME, shortened};

/// What a rule does with tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RuleEffect {
    /// Runs without a question.
    Allow,
    /// The user is asked first.
    Ask,
    /// The call is refused.
    Deny,
    /// The client does not show the tools.
    Hide,
    /// The client shows no other tools.
    Only,
}

impl RuleEffect {
    /// Returns the policy that does the same.
    pub(crate) fn policy(self) -> Policy {
        match self {
            Self::Allow | Self::Only => Policy::Allow,
            Self::Ask => Policy::Approve,
            Self::Deny | Self::Hide => Policy::Deny,
        }
    }
}

/// A rule for tools of one server, by their own names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ToolRule {
    pub effect: RuleEffect,
    pub tools: Vec<ToolNames>,
    /// The rule, as the file has it.
    pub written: String,
    pub file: PathBuf,
}

/// To what a rule applies, besides its tools.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Scope {
    Every,
    /// Calls with certain params.
    Params,
    /// A part of the client's work, such as an agent.
    Part(String),
}

/// A rule in a client's file. `names` are the client's names for tools.
#[derive(Clone, Debug)]
struct ClientRule {
    effect: RuleEffect,
    names: ToolNames,
    scope: Scope,
    written: String,
}

/// Rules of which the last one that names a tool counts.
#[derive(Debug)]
struct RuleList {
    file: PathBuf,
    rules: Vec<ClientRule>,
}

/// How a client names the tools of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ToolNaming {
    /// No rules for tools are known.
    #[default]
    Unknown,
    /// `mcp__SERVER__TOOL`, and `mcp__SERVER` for all.
    Claude,
    /// `SERVER:TOOL`.
    Cursor,
    /// `SERVER/TOOL`.
    VsCode,
    /// `mcp:SERVER:TOOL`.
    Zed,
    /// `SERVER__TOOL`, `mcp_SERVER_TOOL`, and `TOOL`.
    Gemini,
    /// `TOOL`.
    Bare,
    /// `SERVER__TOOL`.
    Goose,
    /// `SERVER_TOOL`.
    Opencode,
}

/// The rules of one client, for all of its servers.
#[derive(Debug, Default)]
pub(super) struct ClientRules {
    naming: ToolNaming,
    lists: Vec<RuleList>,
    /// A place that cannot be read: the reason to leave every server with the client.
    unreadable: Option<String>,
    /// The servers that the client does not start, each with the rule.
    off: Vec<(String, String)>,
}

/// The rules of one server, as servers.toml can express them.
#[derive(Debug, Default)]
pub(super) struct ServerRules {
    pub rules: Vec<ToolRule>,
    pub notes: Vec<String>,
}

impl ClientRules {
    /// Returns the rules for a server, by its name in the client. The error says why the server must stay
    /// with the client.
    pub(crate) fn of_server(&self, server: &str) -> Result<ServerRules, String> {
        if let Some(why) = &self.unreadable {
            return Err(why.clone());
        }
        let mut mapped = ServerRules::default();
        for list in &self.lists {
            let named = |rule: &ClientRule| self.naming.own_names(&rule.names, server);
            let rules: Vec<(&ClientRule, Vec<ToolNames>)> = list
                .rules
                .iter()
                .map(|rule| (rule, named(rule)))
                .filter(|(_, own)| !own.is_empty())
                .collect();
            self.map(&rules, &list.file, &mut mapped)?;
        }
        Ok(mapped)
    }

    /// Returns the rule by which the client does not start a server.
    pub(crate) fn switches_off(&self, server: &str) -> Option<&str> {
        let rule = self.off.iter().find(|(name, _)| name == server);
        rule.map(|(_, written)| written.as_str())
    }

    fn map(
        &self,
        rules: &[(&ClientRule, Vec<ToolNames>)],
        file: &Path,
        mapped: &mut ServerRules,
    ) -> Result<(), String> {
        for (at, (rule, own)) in rules.iter().enumerate() {
            let written = shortened_rule(&rule.written);
            match &rule.scope {
                // Such a rule names Nonet's tools too, so it still holds in the client.
                Scope::Part(_) if self.names_nonet(rule) => continue,
                Scope::Part(part) => {
                    return Err(format!("its rule `{written}` is {part}, which a policy cannot be"));
                }
                Scope::Params if rule.effect > RuleEffect::Allow => {
                    return Err(format!("its rule `{written}` depends on params, which a policy cannot"));
                }
                _ if rule.effect == RuleEffect::Allow => continue,
                _ => {}
            }
            for tools in own {
                let later = rules
                    .iter()
                    .skip(at + 1)
                    .filter(|(later, _)| later.effect.policy() < rule.effect.policy());
                let later: Vec<(&ClientRule, &ToolNames)> =
                    later.flat_map(|(later, own)| own.iter().map(move |own| (*later, own))).collect();
                let is_overruled = |(later, own): &(&ClientRule, &ToolNames)| {
                    later.scope == Scope::Every && own.covers(tools)
                };
                if later.iter().any(is_overruled) {
                    continue;
                }
                let exceptions: Vec<_> = later.into_iter().filter(|(_, own)| own.overlaps(tools)).collect();
                let mut map = |effect: RuleEffect, tools: Vec<ToolNames>| {
                    let (written, file) = (rule.written.clone(), file.to_path_buf());
                    mapped.rules.push(ToolRule { effect, tools, written, file });
                };
                match exceptions.first() {
                    None => map(rule.effect, vec![tools.clone()]),
                    Some((exception, _)) if rule.effect == RuleEffect::Ask => {
                        map(RuleEffect::Ask, vec![tools.clone()]);
                        mapped.notes.push(format!(
                            "`{}` is not carried over: Nonet asks for all of `{written}`",
                            shortened_rule(&exception.written)
                        ));
                    }
                    Some(_)
                        if tools.is_every()
                            && exceptions.iter().all(|(rule, _)| rule.scope == Scope::Every) =>
                    {
                        let mut shown: Vec<ToolNames> = Vec::new();
                        for (_, own) in &exceptions {
                            if !shown.contains(own) {
                                shown.push((*own).clone());
                            }
                        }
                        map(RuleEffect::Only, shown);
                    }
                    Some((exception, _)) => {
                        return Err(format!(
                            "`{}` is an exception to its rule `{written}`, which a policy cannot have",
                            shortened_rule(&exception.written)
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    fn names_nonet(&self, rule: &ClientRule) -> bool {
        let nonets = self.naming.own_names(&rule.names, OWN_NAME);
        nonets.iter().any(|own| own.covers(&ToolNames::exact("execute_tool")))
    }
}

impl ToolNaming {
    /// Returns the names of a server's tools, as the server has them, that a pattern on the client's names
    /// matches.
    fn own_names(self, names: &ToolNames, server: &str) -> Vec<ToolNames> {
        let clean = clean(server);
        let lower: String = server.chars().filter(|c| !c.is_whitespace()).collect::<String>().to_lowercase();
        let prefixes = match self {
            Self::Unknown | Self::Bare => Vec::new(),
            Self::Claude => vec![format!("mcp__{clean}__")],
            Self::Cursor => vec![format!("{server}:")],
            Self::VsCode => vec![format!("{server}/"), format!("mcp_{clean}_")],
            Self::Zed => vec![format!("mcp:{server}:")],
            Self::Gemini => vec![format!("{server}__"), format!("{clean}__"), format!("mcp_{clean}_")],
            Self::Goose => {
                vec![format!("{server}__"), format!("{lower}__"), format!("{}__", clean.to_lowercase())]
            }
            Self::Opencode => vec![format!("{clean}_")],
        };
        if self == Self::Claude && names.covers(&ToolNames::exact(&format!("mcp__{clean}"))) {
            return vec![ToolNames::every()];
        }
        let mut own: Vec<ToolNames> = Vec::new();
        for rest in prefixes.iter().flat_map(|prefix| names.after(prefix)) {
            if !own.iter().any(|known| known.covers(&rest)) {
                own.retain(|known| !rest.covers(known));
                own.push(rest);
            }
        }
        let is_bare = match self {
            Self::Bare => true,
            Self::Gemini => !names.to_string().contains("__") && names.after("mcp_").is_empty(),
            _ => false,
        };
        if own.is_empty() && is_bare {
            own.push(names.clone());
        }
        own
    }
}

impl ToolRule {
    /// A list of tools' names in an entry itself. Gemini CLI's names may have params.
    pub(crate) fn of_entry(effect: RuleEffect, key: &str, names: &[String], file: &Path) -> Self {
        let tools = names.iter().map(|name| ToolNames::exact(name.split('(').next().unwrap_or_default()));
        Self {
            effect,
            tools: tools.collect(),
            written: format!("{key}: {}", names.join(", ")),
            file: file.into(),
        }
    }
}

/// Returns the tools that all `Only` rules show; none if there is no such rule.
pub(super) fn shown_tools(rules: &[ToolRule]) -> Option<Vec<ToolNames>> {
    let mut lists =
        rules.iter().filter(|rule| rule.effect == RuleEffect::Only).map(|rule| rule.tools.clone());
    let first = lists.next()?;
    Some(lists.fold(first, |shown, list| narrowed(&shown, &list)))
}

/// Returns the tools of both lists. Where two patterns only overlap, neither stays.
pub(super) fn narrowed(a: &[ToolNames], b: &[ToolNames]) -> Vec<ToolNames> {
    let inside = |list: &[ToolNames], other: &[ToolNames]| -> Vec<ToolNames> {
        list.iter().filter(|tools| other.iter().any(|other| other.covers(tools))).cloned().collect()
    };
    let mut both = inside(a, b);
    let more: Vec<_> = inside(b, a).into_iter().filter(|tools| !both.contains(tools)).collect();
    both.extend(more);
    both
}

/// Returns the tools that an entry hides.
pub(super) fn hidden_tools(rules: &[ToolRule]) -> impl Iterator<Item = &ToolNames> {
    rules.iter().filter(|rule| rule.effect == RuleEffect::Hide).flat_map(|rule| &rule.tools)
}

fn shortened_rule(written: &str) -> String {
    if written.len() > 100 { shortened(written) } else { written.into() }
}

/// Returns a server's name as most clients write it in the names of tools.
fn clean(server: &str) -> String {
    server.chars().map(|c| if c.is_ascii_alphanumeric() || "_-".contains(c) { c } else { '_' }).collect()
}

/// Returns a member of nested objects.
fn at<'v>(value: &'v Value, path: &[&str]) -> Option<&'v Value> {
    path.iter().try_fold(value, |value, key| value.get(*key))
}

/// Returns the members of a nested object; of anything else, none.
fn members<'v>(value: &'v Value, path: &[&str]) -> impl Iterator<Item = (&'v String, &'v Value)> {
    at(value, path).and_then(Value::as_object).into_iter().flatten()
}

/// Returns the items of a nested list; of anything else, none.
fn items<'v>(value: &'v Value, path: &[&str]) -> impl Iterator<Item = &'v Value> {
    at(value, path).and_then(Value::as_array).into_iter().flatten()
}

/// Returns the texts of a nested list.
fn texts<'v>(value: &'v Value, path: &[&str]) -> impl Iterator<Item = &'v str> {
    items(value, path).filter_map(Value::as_str)
}

#[cfg(test)]
mod tests;
