//! The gate of an operation: the world, the snapshot and the profile that it goes by, taken once.
//!
//! Every question of what a caller may see or call is asked here and nowhere else.

use std::{
    collections::BTreeSet,
    sync::{Arc, LazyLock},
};

use serde_json::json;

use super::{
    session::Session,
    snapshot::{Snapshot, View},
    world::World,
};
use crate::{
    catalog::{Catalog, GATEWAY, Tool},
    config::{Category, Config, Globs, Profile, Risk},
    downstream::{Connection, State},
    fault::{Code, Fault},
    name,
    policy::{self, Scope, Verdict},
};

/// What an operation of a session goes by.
#[derive(Clone)]
pub struct Gate {
    pub(super) world: Arc<World>,
    pub(super) snapshot: Arc<Snapshot>,
    session: Arc<Session>,
}

/// The profile of sessions with a profile that the configuration no longer has: it allows nothing.
static NOTHING: LazyLock<Profile> = LazyLock::new(|| Profile {
    deny: Globs::new(vec!["*".into()]).unwrap_or_default(),
    max_risk: Some(Risk::Low),
    categories: vec![String::new()],
    ..Profile::default()
});

impl Gate {
    pub(super) fn new(world: Arc<World>, snapshot: Arc<Snapshot>, session: Arc<Session>) -> Self {
        Self { world, snapshot, session }
    }

    /// The configuration.
    pub fn config(&self) -> &Arc<Config> {
        &self.world.config
    }

    /// The catalogue.
    pub fn catalog(&self) -> &Catalog {
        &self.snapshot.catalog
    }

    /// The connection to a server that all clients share.
    pub(super) fn connection(&self, server: &str) -> Option<&Arc<Connection>> {
        self.world.connections.get(server)
    }

    /// The profile with its name and the named groups; none for a session without a profile.
    pub fn scope(&self) -> Option<Scope<'_>> {
        let name = self.session.profile.as_deref()?;
        let config = self.config();
        let profile = config.profiles.get(name).unwrap_or_else(|| &NOTHING);
        Some(Scope { name, profile, categories: &config.categories })
    }

    /// The profile, if the session has one.
    pub fn profile(&self) -> Option<&Profile> {
        self.scope().map(|scope| scope.profile)
    }

    /// What the rules say of a tool.
    pub fn verdict(&self, tool: &Tool) -> Verdict {
        policy::check(tool, self.scope())
    }

    /// Whether the rules let the caller use a tool.
    pub fn allows(&self, tool: &Tool) -> bool {
        !matches!(self.verdict(tool), Verdict::Deny(_))
    }

    /// The visible tools that the caller may use.
    pub fn tools(&self) -> impl Iterator<Item = &Arc<Tool>> {
        self.snapshot.tools.iter().filter(|tool| self.allows(tool))
    }

    /// How many tools of servers the caller may use.
    pub fn count_tools(&self) -> usize {
        let view = self.view();
        let tools = self.snapshot.tools.iter().zip(&view.seen);
        tools.filter(|(tool, seen)| **seen && &*tool.server != GATEWAY).count()
    }

    /// Whether the caller may know of a server: without a profile of each, else of those with an allowed tool.
    pub fn sees(&self, server: &str) -> bool {
        self.session.profile.is_none() || self.tools().any(|tool| *tool.server == *server)
    }

    /// Whether the profile may be meant for a server with unknown tools.
    pub(super) fn may_concern(&self, server: &str) -> bool {
        may_concern(self.scope(), server)
    }

    /// The profile's view of the snapshot, made once for both.
    pub(super) fn view(&self) -> Arc<View> {
        let (snapshot, profile) = (&self.snapshot, &self.session.profile);
        if let Some(view) =
            snapshot.views.get(profile).filter(|view| Arc::ptr_eq(&view.config, self.config()))
        {
            return view.clone();
        }
        let (own, of_all) =
            (self.profile().map(|profile| &profile.priorities), &self.config().gateway.priorities);
        let priority = |tool: &Tool| own.and_then(|own| own.of(&tool.full)).or_else(|| of_all.of(&tool.full));
        let tools = snapshot.tools.iter().enumerate();
        let priorities: Box<[_]> = tools.filter_map(|(at, tool)| Some((at, priority(tool)?))).collect();
        let ranked = priorities.iter().filter_map(|(at, _)| snapshot.tool(*at));
        let ranked = ranked.map(|tool| (tool.name.clone(), tool.version.clone())).collect();
        let seen = snapshot.tools.iter().map(|tool| self.allows(tool)).collect();
        let view = Arc::new(View { config: self.config().clone(), seen, priorities, ranked });
        snapshot.views.insert(profile.clone(), view.clone());
        view
    }

    /// The tool that a name means, if it is known and the caller may use it.
    ///
    /// # Errors
    ///
    /// `unknown_tool` with the nearest names, `invalid_params` for a meta-tool, `forbidden` with the rule.
    pub fn tool(&self, name: &str) -> Result<Arc<Tool>, Fault> {
        if name::META_TOOLS.contains(&name) {
            return Err(not_by_name(name));
        }
        let allows = |tool: &Tool| self.allows(tool);
        let tool = self.catalog().resolve_among(name, &allows).map_err(|fault| match meta_tool(name) {
            Some(meant) if fault.code == Code::UnknownTool => not_by_name(meant),
            _ => fault,
        })?;
        match self.verdict(tool) {
            Verdict::Deny(rule) => Err(forbidden(tool, &rule)),
            _ => Ok(tool.clone()),
        }
    }

    /// The meta-tool that a name means, in any spelling, unless a tool has that name.
    pub fn meta_tool(&self, name: &str) -> Option<&'static str> {
        let meant = meta_tool(name)?;
        let own = name::without_client_prefix(name.trim()).unwrap_or(name.trim());
        let is_free = || match self.tool(name) {
            Err(fault) => matches!(fault.code, Code::InvalidParams | Code::UnknownTool),
            Ok(_) => false,
        };
        (own == meant || is_free()).then_some(meant)
    }

    /// Whether a tool that the caller may use has a param of this name.
    pub fn takes(&self, tool: &str, param: &str) -> bool {
        self.tool(tool).is_ok_and(|tool| tool.schema.names(param))
    }

    /// Whether `name` is the own name of a verbatim tool: its calls are answered as its server answers.
    pub fn is_verbatim(&self, name: &str) -> bool {
        self.verbatim_tool(name).is_some_and(|tool| tool.verbatim && self.allows(tool))
    }

    pub(crate) fn verbatim_tool(&self, name: &str) -> Option<&Arc<Tool>> {
        self.catalog().by_own_name(name).or_else(|| self.catalog().by_wire(name))
    }

    /// The servers that start for the first time and have no known list.
    pub(super) fn unlisted(&self) -> Vec<Arc<str>> {
        let unlisted = self.world.connections.iter().filter(|(server, connection)| {
            !connection.state().settled() && !self.catalog().servers().contains_key(*server)
        });
        unlisted.map(|(server, _)| server.clone()).collect()
    }

    /// The state of a server in one word; none for a ready server and for Nonet itself.
    pub(super) fn trouble(&self, server: &str) -> Option<&'static str> {
        let state = self.connection(server)?.state();
        (!matches!(state, State::Ready { .. })).then_some(state.as_str())
    }

    /// The server that a name begins with, if a separator follows it.
    pub(super) fn named_server(&self, name: &str) -> Option<Arc<str>> {
        let name = name.trim();
        let rest = name::without_client_prefix(name).unwrap_or(name);
        let (server, _) = name::split_given(rest)?;
        let folded = name::fold(server);
        self.world.connections.keys().find(|known| name::fold(known) == folded).cloned()
    }

    /// The tools of a category (a server, `gateway`, or a group of the configuration), as documents in order of name.
    ///
    /// # Errors
    ///
    /// `not_found` with the nearest names; why the server is left out, if it is.
    pub(super) fn members(&self, category: &str) -> Result<BTreeSet<usize>, Fault> {
        let key = category.trim();
        let snapshot = &self.snapshot;
        if let Some(entry) = self.catalog().servers().get(key) {
            return Ok(entry.tools.iter().filter_map(|full| snapshot.place(full)).collect());
        }
        if let Some(group) = self.config().categories.get(key) {
            return Ok(in_group(snapshot, group).collect());
        }
        // Configured, without a list so far.
        if self.connection(key).is_some() {
            return Ok(BTreeSet::new());
        }
        if let Some(fault) = self.left_out_server(key) {
            return Err(fault);
        }
        let known = self.catalog().servers().keys().map(|name| &**name);
        let known: Vec<&str> = known.chain(self.config().categories.keys().map(String::as_str)).collect();
        let near = name::nearest(key, known.iter().copied(), 3);
        let fault = match near.first() {
            Some(first) => {
                Fault::new(Code::NotFound, format!("There is no category `{key}`. The nearest is `{first}`."))
                    .next("browse_category", json!({ "category": first }))
            }
            None => Fault::new(
                Code::NotFound,
                format!("There is no category `{key}`; list_categories has all of them."),
            ),
        };
        Err(fault.suggest(near))
    }
}

/// The documents of a named group.
fn in_group<'a>(snapshot: &'a Snapshot, group: &'a Category) -> impl Iterator<Item = usize> + 'a {
    let tools = snapshot.tools.iter().enumerate();
    tools.filter(|(_, tool)| policy::in_category(tool, group)).map(|(at, _)| at)
}

/// The meta-tool that a name means, in any case and with any separators.
pub(super) fn meta_tool(name: &str) -> Option<&'static str> {
    let name = name.trim();
    let own = name::without_client_prefix(name).unwrap_or(name);
    let plain = name::fold(own).replace('_', "");
    let plain = plain.strip_prefix("nonet").unwrap_or(&plain);
    name::META_TOOLS.into_iter().find(|meta_tool| meta_tool.replace('_', "") == plain)
}

fn not_by_name(meta_tool: &str) -> Fault {
    Fault::new(
        Code::InvalidParams,
        format!(
            "`{meta_tool}` is a meta-tool; call it directly. Only tools of servers and of `gateway` are called by name."
        ),
    )
}

fn forbidden(tool: &Tool, rule: &str) -> Fault {
    Fault::new(
        Code::Forbidden,
        format!(
            "`{}` may not be used: the rule `{rule}` of the configuration forbids it. Another tool may do; the user can change the rule.",
            tool.full
        ),
    )
    .next("search_tools", json!({ "query": tool.name.replace(['_', '-'], " ") }))
}

/// Whether a profile may be meant for a server with unknown tools.
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
mod tests;
