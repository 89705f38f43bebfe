//! Servers that offer nothing for now: those that the configuration leaves out, and those that were never reached.
//!
//! Nobody finds their tools, so they are named with what has to be done: in lists, in searches that they may be meant by,
//! and in the fault of a call.

use serde_json::{Value, json};

use super::{Gateway, faults::not_ready, gate::Gate, session::Session, status::ServerStatus};
use crate::{
    config::LeftOut,
    downstream::{Remedy, State},
    fault::{Code, Fault},
    name,
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
}

impl Gate {
    /// The left-out servers that the caller may know of, by name.
    fn left_out(&self) -> impl Iterator<Item = (&String, &LeftOut)> {
        self.config().left_out.iter().filter(|(name, _)| self.may_concern(name))
    }

    /// The left-out servers as `gateway.status` shows them.
    pub(super) fn left_out_status(&self) -> impl Iterator<Item = ServerStatus> {
        self.left_out().map(|(name, left_out)| ServerStatus {
            name: name.as_str().into(),
            state: NEEDS_CONFIG,
            tools: Some(0),
            last_error: Some(left_out.why()),
            ..ServerStatus::default()
        })
    }

    /// The same as categories.
    pub(super) fn left_out_categories(&self) -> Vec<Value> {
        let entry = |(name, left_out): (&String, &LeftOut)| {
            let mut category = json!({ "name": name });
            if !left_out.description.is_empty() {
                category["description"] = json!(clip(&left_out.description, super::discover::SUMMARY));
            }
            category["tool_count"] = json!(0);
            category["state"] = json!(NEEDS_CONFIG);
            category["hint"] = json!(left_out.why());
            category
        };
        self.left_out().map(entry).collect()
    }

    /// Why nothing is known of a tool when its name says that it belongs to a server that was never reached.
    pub(super) fn out_of_reach(&self, name: &str) -> Option<Fault> {
        let folded = name::fold(name);
        let folded = folded.strip_prefix("mcp_nonet_").unwrap_or(&folded);
        if let Some(fault) = self.left_out_tool(folded) {
            return Some(fault);
        }
        let named = self.world.connections.iter().filter(|(server, _)| {
            let rest = folded.strip_prefix(&*name::fold(server));
            rest.is_some_and(|rest| rest.starts_with('_'))
                && !self.catalog().servers().contains_key(*server)
                && self.sees(server)
        });
        let (server, connection) = named.max_by_key(|(server, _)| server.len())?;
        match connection.state() {
            // Its list is on its way.
            State::Starting | State::Ready { .. } => None,
            state => Some(not_ready(server, state)),
        }
    }

    /// Returns why a server that the configuration leaves out takes no call, if that is its name.
    pub(super) fn left_out_server(&self, name: &str) -> Option<Fault> {
        self.config().left_out.get(name).map(|left_out| needs_config(name, left_out))
    }

    /// Returns why a tool is unknown whose folded name begins with that of a left-out server.
    fn left_out_tool(&self, folded: &str) -> Option<Fault> {
        let is_of = |server: &str| {
            folded.strip_prefix(&*name::fold(server)).is_some_and(|rest| rest.starts_with('_'))
        };
        let servers = self.left_out().filter(|(server, _)| is_of(server));
        let (server, left_out) = servers.max_by_key(|(server, _)| server.len())?;
        // `git_hub.x` is of `git_hub` where there is a `git` too.
        let nearer = self.world.connections.keys().any(|other| other.len() > server.len() && is_of(other));
        (!nearer).then(|| needs_config(server, left_out))
    }

    /// Names the servers whose tools no search finds, and whose name or description has words of this one.
    pub(super) fn absent_hint(&self, wanted: &[String]) -> Option<String> {
        if wanted.is_empty() {
            return None;
        }
        let fits = |name: &str, about: &str| {
            let count =
                |text: &str| outcomes::words(text).iter().filter(|word| wanted.contains(*word)).count();
            count(name) > 0 || count(about) >= 2.min(wanted.len())
        };
        let mut hints = Vec::new();
        for (name, connection) in self.world.connections.iter() {
            let is_known = self.catalog().servers().contains_key(name);
            let why = match connection.state() {
                _ if is_known || !self.may_concern(name) => continue,
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
        for (name, left_out) in self.left_out() {
            if fits(name, &left_out.description) {
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
