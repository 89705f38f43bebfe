//! Looks up the tool that a caller means by a name, and never guesses.

use std::{collections::HashSet, sync::Arc};

use nonet_text::{
    fault::{Fault, FaultCode},
    name::{self, Namespaces},
};
use serde_json::json;

use super::{Catalog, EntryKind, SKILLS, Tool, changes::FullNames};

/// How many candidates are described in one answer.
const MOST_DESCRIBED: usize = 5;
/// How many names an "unknown" or "ambiguous" answer suggests.
const SUGGESTIONS: usize = 5;

/// What a caller sees when a name is looked up.
#[derive(Clone, Copy)]
pub struct CatalogView<'a> {
    /// Whether the caller may use a tool.
    pub seen: &'a dyn Fn(&Tool) -> bool,
    /// The names of all servers.
    pub names: &'a Namespaces,
    /// Whether a server exists for the caller: it does not belong to another session. A name that begins with
    /// the server's name is never another server's, even if the caller may not know of the server.
    pub is_there: &'a dyn Fn(&str) -> bool,
    /// Whether the caller may know of a server. A tool of any other server is unknown, not forbidden.
    pub knows: &'a dyn Fn(&str) -> bool,
}

/// What a name can mean, given the server that it names.
struct NameMeanings<'a> {
    /// The servers that the name names; empty if it names none.
    servers: Vec<Arc<str>>,
    /// For a skill, the servers whose prompt it names.
    of: Vec<Arc<str>>,
    /// The rest of the name, after the server's.
    rest: &'a str,
    sight: CatalogView<'a>,
}

impl<'a> NameMeanings<'a> {
    fn of(given: &'a str, sight: CatalogView<'a>) -> Self {
        let there = |servers: &[Arc<str>]| {
            servers.iter().filter(|server| (sight.is_there)(server)).cloned().collect::<Vec<_>>()
        };
        let servers = there(sight.names.named(given));
        let rest = name::without_client_prefix(given.trim()).unwrap_or(given.trim());
        let rest = name::split_given(rest).map_or("", |(_, rest)| rest);
        let is_skill = servers.iter().any(|server| **server == *SKILLS);
        let of = if is_skill { there(sight.names.named(rest)) } else { Vec::new() };
        Self { servers, of, rest, sight }
    }

    fn may_be(&self, tool: &Tool) -> bool {
        let is_of = |servers: &[Arc<str>], server: &Arc<str>| servers.is_empty() || servers.contains(server);
        let is_of_prompt = match &tool.of {
            Some(server) => is_of(&self.of, server),
            None => self.of.is_empty() || *tool.name == *self.rest,
        };
        is_of(&self.servers, &tool.server) && is_of_prompt
    }
}

impl CatalogView<'_> {
    /// Whether a tool may be refused to the caller rather than be unknown.
    fn shows(&self, tool: &Tool) -> bool {
        (self.seen)(tool) || (self.knows)(&tool.server) && (self.knows)(tool.at())
    }
}

impl Catalog {
    /// Returns the tool that a caller means by `given`: `a.b`, `a__b`, `a:b`, `a/b`, `mcp__nonet__a__b` or a
    /// bare `b`, in any case, with `-` and `_` alike. Never guesses: two candidates are a fault.
    pub fn resolve(&self, given: &str) -> Result<&Arc<Tool>, Fault> {
        let sight =
            CatalogView { seen: &|_| true, names: &self.names, is_there: &|_| true, knows: &|_| true };
        self.resolve_among(given, sight)
    }

    /// Resolves a name like [`Catalog::resolve`] for a caller who may see only some of the tools. A fault
    /// names no other tool, and a name means an unseen tool only if nothing else fits.
    ///
    /// The named server comes first: a name that begins with a server's name belongs to that server, known or
    /// not, and a name that spells one server's tool is never another server's tool of that name.
    pub fn resolve_among(&self, given: &str, sight: CatalogView<'_>) -> Result<&Arc<Tool>, Fault> {
        let found = self.resolve_given(given, sight);
        match found.as_ref().map_err(|fault| fault.code) {
            Err(FaultCode::UnknownTool) => match sight.names.behind_other_client(given) {
                Some(inner) => self.resolve_given(inner, sight),
                None => found,
            },
            _ => found,
        }
    }

    fn resolve_given(&self, given: &str, sight: CatalogView<'_>) -> Result<&Arc<Tool>, Fault> {
        let seen = |tool: &Tool| tool.blocked.is_none() && (sight.seen)(tool);
        // A tool's own name may begin or end with white space.
        if let Some(tool) = self.tools.get(given).filter(|tool| sight.shows(tool)) {
            return Ok(tool);
        }
        let meant = NameMeanings::of(given, sight);
        let is_own = |tool: &&Arc<Tool>| {
            let fold = name::fold(given);
            let unlisted = self.unlisted_owner(&fold, &meant);
            seen(tool) && meant.may_be(tool) && unlisted.is_none_or(|server| *server == tool.server)
        };
        if let Some(tool) = self.by_own.get(given).filter(is_own) {
            return Ok(tool);
        }
        let given = given.trim();
        let short = name::without_client_prefix(given);
        for name in [Some(given), short].into_iter().flatten() {
            let live = self.tools.get(name).or_else(|| self.by_wire.get(name));
            let known = live.or_else(|| self.by_old.get(name)).filter(|tool| meant.may_be(tool));
            if let Some(tool) = known.filter(|tool| sight.shows(tool)) {
                return Ok(tool);
            }
        }
        for name in [Some(given), short].into_iter().flatten() {
            let mut names = self.spelled(name, &meant);
            // They take their names all the same.
            names.retain(|full| sight.shows(&self.tools[*full]));
            if names.iter().any(|full| seen(&self.tools[*full])) {
                names.retain(|full| seen(&self.tools[*full]));
            } else {
                // Which of several hidden tools is refused makes no difference.
                names.truncate(1);
            }
            // A skill or an app never shadows a tool.
            if names.iter().any(|full| self.tools[*full].kind == EntryKind::Tool) {
                names.retain(|full| self.tools[*full].kind == EntryKind::Tool);
            }
            let exact: Vec<&&Arc<str>> =
                names.iter().filter(|full| *self.tools[**full].name == *name).collect();
            match (&names[..], &exact[..]) {
                ([], _) => {}
                ([one], _) => return Ok(&self.tools[*one]),
                (_, [one]) => return Ok(&self.tools[**one]),
                (many, _) => return Err(self.ambiguous(given, many)),
            }
        }
        // A tool that took another's name is not suggested for it.
        let is_named = |tool: &Tool| !meant.servers.is_empty() && meant.may_be(tool);
        let is_offered =
            |tool: &Tool| seen(tool) && (is_named(tool) || !self.clashes.contains_key(&tool.full));
        Err(self.unknown(given, &is_offered))
    }

    /// Returns a server without a known listing that may own a folded name, if the name names no other
    /// server.
    fn unlisted_owner<'a>(&self, folded: &'a str, meant: &NameMeanings<'a>) -> Option<&'a Arc<str>> {
        let is_unlisted = |server: &&Arc<str>| {
            (meant.sight.is_there)(server)
                && !name::RESERVED.contains(&&***server)
                && !self.servers.contains_key(*server)
        };
        meant.sight.names.implied(folded).find(is_unlisted).filter(|_| meant.servers.is_empty())
    }

    /// Returns the full names of the tools that a name may spell.
    fn spelled<'a>(&'a self, name: &str, meant: &NameMeanings<'_>) -> Vec<&'a Arc<str>> {
        let fold = name::fold(name);
        let by = |map: &'a FullNames| {
            let names = map.get(&*fold).into_iter().flat_map(|names| names.iter());
            names.filter(|full| meant.may_be(&self.tools[*full])).collect::<Vec<_>>()
        };
        let (mut names, mut bare) = (by(&self.by_fold), by(&self.by_bare));
        if meant.servers.is_empty() {
            let server = |full: &Arc<str>| &self.tools[full].server;
            let is_there = |full: &&&Arc<str>| (meant.sight.is_there)(server(full));
            let spelled: HashSet<&Arc<str>> =
                names.iter().filter(is_there).map(|full| server(full)).collect();
            if !spelled.is_empty() {
                bare.retain(|full| spelled.contains(server(full)));
            }
            if name::meta_tool(name).is_some() {
                bare.retain(|full| self.tools[*full].kind != EntryKind::Tool);
            }
            if let Some(unlisted) = self.unlisted_owner(&fold, meant) {
                names.retain(|full| server(full) == unlisted);
                bare.retain(|full| server(full) == unlisted);
            }
        }
        names.append(&mut bare);
        names.sort();
        names.dedup();
        names
    }

    /// Returns the fault for a name that several tools have.
    pub fn ambiguous(&self, given: &str, candidates: &[&Arc<str>]) -> Fault {
        let list = candidates.iter().map(|full| full.as_ref()).collect::<Vec<_>>().join(", ");
        let fault = Fault::new(
            FaultCode::AmbiguousTool,
            format!("`{given}` may be any of: {list}. Call again with one of these full names."),
        );
        let names: Vec<&str> = candidates.iter().take(MOST_DESCRIBED).map(|full| &***full).collect();
        fault.next("get_tool", json!({ "names": names })).suggest(candidates)
    }

    /// Returns the fault for a name that no `seen` tool has, with the nearest names.
    pub fn unknown(&self, given: &str, seen: &dyn Fn(&Tool) -> bool) -> Fault {
        let given = given.trim();
        let given = name::without_client_prefix(given).unwrap_or(given);
        let tools = self.tools.values().filter(|tool| seen(tool));
        let near = name::nearest_tools(
            given,
            tools.map(|tool| (&*tool.server, &*tool.name, &*tool.full)),
            SUGGESTIONS,
        );
        let message = match near.first() {
            Some(first) => format!("There is no tool `{given}`. The nearest is `{first}`."),
            None => format!("There is no tool `{given}`. Search for what it should do."),
        };
        let words = given.replace(['_', '.', '-', ':', '/'], " ");
        let fault = Fault::new(FaultCode::UnknownTool, message).suggest(&near);
        let named = || {
            let server = name::fold(name::split_given(given)?.0);
            let (named, part) = self.parts.iter().find(|(part, _)| name::fold(part) == server)?;
            part.tools.iter().any(|tool| seen(tool)).then_some(named)
        };
        match (near.first(), words.trim()) {
            (Some(first), _) => fault.next("get_tool", json!({ "name": first })),
            (None, "") => fault.next("list_categories", json!({})),
            (None, words) => match named() {
                Some(server) => fault.next("browse_category", json!({ "category": &**server })),
                None => fault.next("search_tools", json!({ "query": words })),
            },
        }
    }
}
