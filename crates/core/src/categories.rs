//! `list_categories`: every server and group with its description, size and state.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use nonet_api::{
    status::ServerState,
    tools::{CategoryLine, CategoryList},
};
use nonet_base::text::clip_words;
use nonet_servers::{
    catalog::{APPS, SKILLS, Tool},
    policy,
};
use nonet_text::name::words;

use super::discover::SUMMARY;
use crate::{find::Find, gate::Gate};
use nonet_state::session::Caller;

/// First words of texts that tell a model how to behave, and not what the server does.
const TO_READER: &[&str] = &[
    "after",
    "always",
    "audience",
    "avoid",
    "before",
    "call",
    "do",
    "don",
    "first",
    "follow",
    "guidelines",
    "if",
    "important",
    "instructions",
    "make",
    "must",
    "never",
    "note",
    "notes",
    "only",
    "please",
    "remember",
    "rules",
    "start",
    "these",
    "to",
    "use",
    "when",
    "you",
    "your",
];
/// How many letters of two words are the same in their forms: `reads` and `read_file`.
const STEM: usize = 4;

impl Find {
    /// Implements the `list_categories` meta-tool.
    pub async fn list_categories(&self, caller: &Caller) -> CategoryList {
        self.calls.fresh_skills().await;
        self.with_work(caller, Gate::of(&self.publisher, &caller.session).categories()).await
    }
}

impl Gate {
    /// Returns every category with its size and state. `total_tools` counts the tools of servers and of Nonet
    /// itself. Skills and apps are not tools, and a tool in a group counts only for its server.
    pub fn categories(&self) -> CategoryList {
        let catalog = self.catalog();
        let seen = |full: &Arc<str>| catalog.get(full).is_some_and(|tool| self.allows(tool));
        let limited = self.is_limited();
        let mut total = 0;
        let mut categories = Vec::new();
        let mut push = |name: &str, description: String, tool_count: usize, state: Option<ServerState>| {
            categories.push(CategoryLine { name: name.into(), description, tool_count, state, hint: None });
        };
        let mut names: BTreeSet<&str> = self.servers().map(|(name, _)| &**name).collect();
        names.extend(self.world.connections.keys().map(|name| &**name));
        for name in names {
            let entry = self.server(name);
            let count = entry.map_or(0, |entry| entry.tools.iter().filter(|full| seen(full)).count());
            let own = self.world.connections.get(name);
            let kept_out = entry.is_some_and(|entry| entry.tools.is_empty() && entry.kept_out > 0);
            let is_of_tools = !matches!(name, SKILLS | APPS);
            if kept_out || (limited || !is_of_tools) && count == 0 {
                continue;
            }
            total += if is_of_tools { count } else { 0 };
            let about = own.and_then(|c| c.settings().description.clone());
            let is_written = about.is_some() || own.is_none();
            let description = entry.map(|entry| entry.description.clone()).or(about).unwrap_or_default();
            let description = match entry {
                Some(entry) if description.is_empty() || !is_written => {
                    let tools = entry.tools.iter().filter(|full| seen(full));
                    let tools: Vec<&Arc<Tool>> = tools.filter_map(|full| catalog.get(full)).collect();
                    // Only what is shown can tell.
                    let shown = clip_words(&description, SUMMARY);
                    if tells(&shown, &tools) { shown } else { sample(&tools) }
                }
                _ => description,
            };
            let state = own.map(|connection| connection.state().shown());
            push(name, clip_words(&description, SUMMARY), count, state);
        }
        for (name, group) in &self.config().categories {
            let tools = catalog.visible().filter(|tool| policy::in_category(tool, group));
            let count = tools.filter(|tool| seen(&tool.full)).count();
            if limited && count == 0 {
                continue;
            }
            push(name, group.description.clone(), count, None);
        }
        categories.extend(self.left_out_categories());
        CategoryList {
            categories,
            total_tools: total,
            hint: self.first_server(),
            goal: None,
            open_tasks: Vec::new(),
            open_tasks_total: None,
            remembered_facts: 0,
        }
    }
}

/// Whether a server's own text tells what the server does: it has a word of the tools' names, or does not
/// begin like a text to its reader.
fn tells(text: &str, tools: &[&Arc<Tool>]) -> bool {
    let said = words(text);
    let Some(first) = said.first() else { return false };
    if !TO_READER.contains(&first.as_str()) {
        return true;
    }
    let stem = |word: &String| word.chars().take(STEM).collect::<String>();
    let named: HashSet<String> = tools
        .iter()
        .flat_map(|tool| words(&tool.name))
        .filter(|word| word.chars().count() >= STEM)
        .map(|word| stem(&word))
        .collect();
    said.iter().skip(1).any(|word| named.contains(&stem(word)))
}

/// Samples three tools from a server's list, to describe a server without a description.
fn sample(tools: &[&Arc<Tool>]) -> String {
    let count = tools.len();
    let places: BTreeSet<usize> = [0, count / 2, count.saturating_sub(1)].into();
    let names: Vec<&str> = places.iter().filter_map(|at| tools.get(*at)).map(|tool| &*tool.name).collect();
    match count - names.len() {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use nonet_servers::catalog::{Catalog, CatalogSource, Listing};

    #[test]
    fn instructions_are_told_from_descriptions() {
        let names = ["echo", "read_file", "get-annotated-message", "trigger-long-running-operation"];
        let tools = names.map(|name| Arc::new(json!({ "name": name })));
        let listing = Arc::new(Listing { tools: tools.into(), ..Listing::default() });
        let source = CatalogSource { server: "s".into(), listing, settings: None };
        let catalog = Catalog::new([source], &std::collections::BTreeMap::new());
        let tools: Vec<&Arc<Tool>> = catalog.tools().collect();
        let check = |text: &str, expected: bool| assert_eq!(tells(text, &tools), expected, "{text}");
        check("Reads and writes files on this machine.", true);
        check("Provides access to the weather.", true);
        check("Use it to read a file.", true);
        check("Audience: these instructions are written for an LLM or autonomous agent.", false);
        check("When in doubt, ask the user.", false);
        check("IMPORTANT: always give absolute paths.", false);
        check("", false);
    }
}
