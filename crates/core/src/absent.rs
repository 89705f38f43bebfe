//! Servers that currently offer no tools: left out of the configuration, or never reached.
//!
//! Search cannot find their tools, so lists, searches with matching words and faults of calls name such
//! servers together with the remedy.

use nonet_api::{
    notice::Notice,
    status::{ServerState, ServerStatus},
    tools::CategoryLine,
};
use nonet_base::text::clip;
use nonet_config::{ServerCredentials, UnusableEntry, shell};
use nonet_search::outcomes;
use nonet_servers::{
    catalog::APPS,
    downstream::{Connection, ConnectionState, Remedy},
};
use nonet_text::{
    fault::{Fault, FaultCode},
    name,
};
use serde_json::Value;

use super::{Gateway, apps::unknown_app, builtin};
use crate::gate::Gate;
use nonet_state::{faults::not_ready, session::Session};

/// What the notice about left-out servers advises.
const LEFT_OUT: &str = "These servers cannot be used until the user corrects their entries. Nonet reloads the changed file at once.";
/// How many servers a search names.
const NAMED: usize = 2;
/// The longest reason in a search hint, in characters.
const REASON: usize = 240;

impl Gateway {
    /// Notifies a new session of the left-out servers. As with configuration changes, only sessions that see
    /// all servers are notified.
    pub fn greet(&self, session: &Session) {
        let config = self.servers.config();
        if session.profile.is_some() || config.left_out.is_empty() {
            return;
        }
        let faults = config.left_out.values().flat_map(|left_out| &left_out.faults);
        session.notify(Notice::ServersLeftOut {
            servers: config.left_out.keys().cloned().collect(),
            faults: faults.map(ToString::to_string).collect(),
            hint: LEFT_OUT.into(),
        });
    }
}

impl Gate {
    /// Returns the left-out servers visible to the caller, by name.
    fn left_out(&self) -> impl Iterator<Item = (&String, &UnusableEntry)> {
        self.config().left_out.iter().filter(|(name, _)| self.may_concern(name))
    }

    /// Returns the left-out servers as `gateway.status` shows them.
    pub(super) fn left_out_status(&self) -> impl Iterator<Item = ServerStatus> {
        self.left_out().map(|(name, left_out)| ServerStatus {
            state: Some(ServerState::NeedsConfig),
            tools: Some(0),
            last_error: Some(left_out.why()),
            ..ServerStatus::new(name.as_str().into())
        })
    }

    /// Explains how to add the first server; `None` if the configuration already offers a server, skills or
    /// apps.
    pub fn first_server(&self) -> Option<String> {
        let config = self.config();
        let has_none =
            config.servers.is_empty() && config.left_out.is_empty() && self.world.connections.is_empty();
        let is_empty = has_none && config.apps.is_empty() && config.gateway.skills.is_empty();
        let [setup, add] =
            ["setup", "add NAME -- COMMAND"].map(|command| shell::nonet(command, &config.file));
        is_empty.then(|| {
            format!(
                "No server is configured yet, so there are only Nonet's own tools. Ask the user to run `{setup}` in a shell, \
                 which takes over the servers of their MCP clients, or `{add}`; Nonet uses new servers at once."
            )
        })
    }

    /// Returns the left-out servers as categories.
    pub(super) fn left_out_categories(&self) -> impl Iterator<Item = CategoryLine> {
        self.left_out().map(|(name, left_out)| CategoryLine {
            name: name.clone(),
            description: clip(&left_out.description, super::discover::SUMMARY),
            tool_count: 0,
            state: Some(ServerState::NeedsConfig),
            hint: Some(left_out.why()),
        })
    }

    /// Explains an unknown tool that is switched off, or whose name starts with a server that was never
    /// reached.
    pub(super) fn out_of_reach(&self, name: &str) -> Option<Fault> {
        let folded = name::fold(self.world.names.behind_other_client(name).unwrap_or(name));
        let folded = folded.strip_prefix("mcp_nonet_").unwrap_or(&folded);
        if let Some(fault) = builtin::taken_away(folded, self.config()) {
            return Some(fault);
        }
        if let Some(fault) = self.left_out_app(folded).or_else(|| self.left_out_tool(folded)) {
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
            // Its list is still pending.
            ConnectionState::Starting | ConnectionState::Ready { .. } => None,
            state => Some(not_ready(server, state)),
        }
    }

    /// Returns why a server takes no calls, if the configuration leaves it out.
    pub(super) fn left_out_server(&self, name: &str) -> Option<Fault> {
        let left_out = self.config().left_out.get(name).filter(|_| self.may_concern(name))?;
        Some(needs_config(name, left_out))
    }

    /// Explains the folded name of an app that the configuration leaves out.
    fn left_out_app(&self, folded: &str) -> Option<Fault> {
        let id = folded.strip_prefix(APPS)?.strip_prefix('_')?;
        let config = self.config();
        let id = config.left_out_apps.keys().find(|known| name::fold(known) == id)?;
        Some(unknown_app(config, id, Value::Null))
    }

    /// Explains an unknown tool whose folded name starts with a left-out server.
    fn left_out_tool(&self, folded: &str) -> Option<Fault> {
        let is_of = |server: &str| {
            folded.strip_prefix(&*name::fold(server)).is_some_and(|rest| rest.starts_with('_'))
        };
        let servers = self.left_out().filter(|(server, _)| is_of(server));
        let (server, left_out) = servers.max_by_key(|(server, _)| server.len())?;
        // `git_hub.x` belongs to `git_hub`, even if there is also a `git`.
        let mut others = self.world.connections.keys().filter(|other| self.knows(other));
        let nearer = others.any(|other| other.len() > server.len() && is_of(other));
        (!nearer).then(|| needs_config(server, left_out))
    }

    /// Returns where a person signs in to a server with their own account, if they do.
    pub(super) fn account_page(&self, connection: &Connection) -> Option<String> {
        let is_user = connection.settings().credentials == ServerCredentials::User;
        let auth = self.config().auth.as_ref().filter(|_| is_user && self.person().is_some())?;
        Some(auth.account_page(&connection.name))
    }

    /// Names the servers whose tools search cannot find and whose name or description matches the words of
    /// the search.
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
                ConnectionState::Down { error, .. } => format!("is down: {}", clip(&error, REASON)),
                ConnectionState::AuthRequired { .. } if let Some(page) = self.account_page(connection) => {
                    format!("requires sign-in with the user's own account: give them the link {page}")
                }
                ConnectionState::AuthRequired { remedy: Remedy::Login(login), .. } => {
                    format!("requires sign-in: the user must run `{login}`")
                }
                ConnectionState::AuthRequired { error, .. } => {
                    format!("requires sign-in: {}", clip(&error, REASON))
                }
                ConnectionState::Starting | ConnectionState::Ready { .. } | ConnectionState::Stopped => {
                    continue;
                }
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

fn needs_config(server: &str, left_out: &UnusableEntry) -> Fault {
    let message = format!(
        "`{server}` is left out because its configuration is incomplete or wrong. {} Nonet reloads the changed file at once.",
        left_out.why()
    );
    Fault { retryable: false, ..Fault::new(FaultCode::ServerDown, message) }
}
