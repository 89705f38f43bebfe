//! Servers that offer nothing for now: those that the configuration leaves out, and those that were never reached.
//!
//! Nobody finds their tools, so they are named with what has to be done: in lists, in searches that they may be meant by,
//! and in the fault of a call.

use serde_json::{Value, json};

use super::{
    Gateway, Snapshot,
    builtin::ServerStatus,
    session::{Caller, Session},
};
use crate::{
    config::{Globs, LeftOut},
    downstream::{Remedy, State},
    fault::{Code, Fault},
    name,
    policy::Scope,
    search::outcomes,
    text::clip,
};

/// The state of a server that is left out.
pub const NEEDS_CONFIG: &str = "needs_config";
/// Servers that a search names.
const NAMED: usize = 2;
/// The longest reason in the hint of a search, in characters.
const REASON: usize = 240;

impl Gateway {
    /// Tells a session that begins which servers are left out. Only those who see all servers are told, as when the
    /// configuration changes.
    pub fn greet(&self, session: &Session) {
        let config = self.config();
        if session.profile.is_some() || config.left_out.is_empty() {
            return;
        }
        let faults = config.left_out.values().flat_map(|left_out| &left_out.faults);
        session.notify(json!({
            "kind": "servers_left_out",
            "servers": config.left_out.keys().collect::<Vec<_>>(),
            "faults": faults.map(ToString::to_string).collect::<Vec<_>>(),
            "hint": "These servers cannot be used until the user has put their entries right; the changed file is taken up at once.",
        }));
    }

    /// The left-out servers that a caller may know of, by name.
    fn left_out(&self, caller: &Caller) -> Vec<(String, LeftOut)> {
        let world = self.world();
        let scope = world.scope(&caller.session);
        let seen = world.config.left_out.iter().filter(|(name, _)| may_concern(scope, name));
        seen.map(|(name, left_out)| (name.clone(), left_out.clone())).collect()
    }

    /// The left-out servers as `gateway.status` shows them.
    pub(super) fn left_out_status(&self, caller: &Caller) -> Vec<ServerStatus> {
        let entry = |(name, left_out): (String, LeftOut)| ServerStatus {
            name,
            state: NEEDS_CONFIG,
            last_error: Some(left_out.why()),
            ..ServerStatus::default()
        };
        self.left_out(caller).into_iter().map(entry).collect()
    }

    /// The same as categories.
    pub(super) fn left_out_categories(&self, caller: &Caller) -> Vec<Value> {
        let entry = |(name, left_out): (String, LeftOut)| {
            let mut category = json!({ "name": name });
            if !left_out.description.is_empty() {
                category["description"] = json!(clip(&left_out.description, super::discover::SUMMARY));
            }
            category["tool_count"] = json!(0);
            category["state"] = json!(NEEDS_CONFIG);
            category["hint"] = json!(left_out.why());
            category
        };
        self.left_out(caller).into_iter().map(entry).collect()
    }

    /// Returns why a server that the configuration leaves out takes no call, if that is its name.
    pub(super) fn left_out_server(&self, name: &str) -> Option<Fault> {
        self.config().left_out.get(name).map(|left_out| needs_config(name, left_out))
    }

    /// Returns why a tool is unknown whose folded name begins with that of a left-out server.
    pub(super) fn left_out_tool(&self, caller: &Caller, folded: &str) -> Option<Fault> {
        let is_of = |server: &str| {
            folded.strip_prefix(&*name::fold(server)).is_some_and(|rest| rest.starts_with('_'))
        };
        let servers = self.left_out(caller).into_iter().filter(|(server, _)| is_of(server));
        let (server, left_out) = servers.max_by_key(|(server, _)| server.len())?;
        let connections = self.connections();
        // `git_hub.x` is of `git_hub` where there is a `git` too.
        let nearer = connections.keys().any(|other| other.len() > server.len() && is_of(other));
        (!nearer).then(|| needs_config(&server, &left_out))
    }

    /// Names the servers whose tools no search finds, and whose name or description has words of this one.
    pub(super) fn absent_hint(
        &self,
        caller: &Caller,
        snapshot: &Snapshot,
        wanted: &[String],
    ) -> Option<String> {
        if wanted.is_empty() {
            return None;
        }
        let world = self.world();
        let scope = world.scope(&caller.session);
        let fits = |name: &str, about: &str| {
            let count =
                |text: &str| outcomes::words(text).iter().filter(|word| wanted.contains(*word)).count();
            count(name) > 0 || count(about) >= 2.min(wanted.len())
        };
        let mut hints = Vec::new();
        for (name, connection) in world.connections.iter() {
            let is_known = snapshot.catalog.servers().contains_key(name);
            let why = match connection.state() {
                _ if is_known || !may_concern(scope, name) => continue,
                State::Down { error, .. } => format!("is down: {}", clip(&error, REASON)),
                State::AuthRequired { remedy: Remedy::Login(login), .. } => {
                    format!("wants a sign-in: the user has to run `{login}`")
                }
                State::AuthRequired { error, .. } => format!("wants a sign-in: {}", clip(&error, REASON)),
                State::Starting | State::Ready { .. } | State::Stopped => continue,
            };
            let settings = connection.settings();
            let about =
                settings.description.iter().chain(&settings.tags).cloned().collect::<Vec<_>>().join(" ");
            if fits(name, &about) {
                hints.push(format!("`{name}` may have it but {why}"));
            }
        }
        for (name, left_out) in self.left_out(caller) {
            if fits(&name, &left_out.description) {
                let why = clip(&left_out.why(), REASON);
                hints.push(format!("`{name}` may have it but is left out of the configuration: {why}"));
            }
        }
        hints.truncate(NAMED);
        for hint in &mut hints {
            if !hint.ends_with(['.', '!', '?', '…']) {
                hint.push('.');
            }
        }
        (!hints.is_empty()).then(|| hints.join(" "))
    }
}

/// Why a server that is left out takes no call.
fn needs_config(server: &str, left_out: &LeftOut) -> Fault {
    let message = format!(
        "`{server}` is left out of the configuration until the user has put it right. {} The changed file is taken up at once.",
        left_out.why()
    );
    let fault = Fault::new(Code::ServerDown, message)
        .next("execute_tool", json!({ "name": "gateway.status", "params": {} }));
    Fault { retryable: false, ..fault }
}

/// Whether a profile may be meant for a server whose tools nobody knows.
fn may_concern(scope: Option<Scope<'_>>, server: &str) -> bool {
    let Some(Scope { profile, categories, .. }) = scope else { return true };
    let any_tool = format!("{server}._");
    let own = format!("{server}.");
    let names = |patterns: &[String]| patterns.iter().any(|pattern| pattern.starts_with(&own));
    if profile.deny.matches(&any_tool) {
        return false;
    }
    let is_beyond = |only: &Globs| !only.matches(&any_tool) && !names(only.patterns());
    if profile.only.as_ref().is_some_and(is_beyond) {
        return false;
    }
    let is_limited = profile.is_limited();
    let holds = |category: &String| {
        category == server
            || categories
                .get(category)
                .is_some_and(|group| group.servers.iter().any(|name| name.as_str() == server))
    };
    !is_limited || profile.categories.iter().any(holds) || names(profile.allow.patterns())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config;

    #[test]
    fn a_profile_knows_of_the_servers_that_it_is_for() {
        let check = |profile: &str, expected: bool| {
            let text = format!(
                "[servers.docs]\ncommand = 'x'\n[categories.team]\nservers = ['docs']\n[profiles.p]\n{profile}\n"
            );
            let config =
                config::parse(&text, Path::new("f"), config::Sources::NONE).expect("it is usable").config;
            let scope = Scope { name: "p", profile: &config.profiles["p"], categories: &config.categories };
            assert_eq!(may_concern(Some(scope), "docs"), expected, "{profile}");
        };
        assert!(may_concern(None, "docs"));
        check("", true);
        check("max_risk = 'low'", true);
        check("categories = ['docs']", true);
        check("categories = ['team']", true);
        check("categories = ['gateway']", false);
        check("tags = ['x']", false);
        check("allow = ['docs.read']", true);
        check("allow = ['mail.*']", false);
        check("deny = ['docs.*']", false);
        check("deny = ['docs.write']", true);
        check("only = ['docs.*']", true);
        check("only = ['docs.read']", true);
        check("only = ['mail.*']\ncategories = ['docs']", false);
    }
}
