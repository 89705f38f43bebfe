//! A server's tools for the user of the page: every tool, including denied tools, with the rule.

use std::sync::Arc;

use nonet_api::{
    servers::{ServerTools, ToolCard, ToolRow, ToolUse},
    tools::Policy,
};
use nonet_servers::{catalog::Tool, policy::PolicyVerdict};

use crate::{find::Find, gate::Gate};
use nonet_state::session::Caller;

/// How many tools one list shows, and how much of a description the summary reads.
const TOOLS_AT_ONCE: usize = 100;
const LONGEST: usize = 400;

impl Find {
    /// Returns the tools of a server from position `from` on whose names or descriptions contain all `words`;
    /// `None` if no such server has listed tools.
    pub async fn tools_of(&self, server: &str, words: &str, from: usize) -> Option<ServerTools> {
        self.recall_figures().await;
        let gate = Gate::of(&self.publisher, &Caller::default().session);
        let entry = gate.catalog().servers().get(server)?;
        let words: Vec<String> = words.split_whitespace().take(8).map(str::to_lowercase).collect();
        let has_words = |tool: &&Arc<Tool>| {
            let is_in = |text: &str, word: &String| text.to_lowercase().contains(word);
            words.iter().all(|word| is_in(&tool.name, word) || is_in(&tool.description, word))
        };
        let found: Vec<_> =
            entry.tools.iter().filter_map(|full| gate.catalog().get(full)).filter(has_words).collect();
        let shown = found.iter().skip(from).take(TOOLS_AT_ONCE).map(|tool| ToolRow {
            name: tool.name.clone(),
            full: tool.full.clone(),
            description: first_sentence(&tool.summary(LONGEST)).into(),
            risk: tool.risk,
            use_of: self.use_of(&gate, tool),
        });
        Some(ServerTools { total: found.len(), all: entry.tools.len(), tools: shown.collect() })
    }

    /// Returns everything about one tool, by its full name.
    pub async fn tool_card(&self, full: &str) -> Option<ToolCard> {
        self.recall_figures().await;
        let gate = Gate::of(&self.publisher, &Caller::default().session);
        let tool = gate.catalog().get(full)?;
        Some(ToolCard {
            name: tool.full.clone(),
            server: tool.server.clone(),
            title: tool.title.clone(),
            description: tool.description.clone(),
            risk: tool.risk,
            read_only: tool.read_only,
            input_schema: tool.schema.raw().clone(),
            output_schema: tool.visible.get("outputSchema").cloned(),
            aliases: tool.aliases.clone(),
            tags: tool.tags.clone(),
            state: gate.trouble(&tool.server),
            own_policy: self.own_policy(tool),
            use_of: self.use_of(&gate, tool),
        })
    }

    /// Returns where servers.toml has the policy of a tool: the names of its server and of the tool there.
    /// None for tools that are of no server of servers.toml.
    pub fn tool_in_config(&self, full: &str) -> Option<(String, String)> {
        let gate = Gate::of(&self.publisher, &Caller::default().session);
        let tool = gate.catalog().get(full)?;
        self.own_policy(tool)?;
        Some((tool.server.to_string(), tool.own.to_string()))
    }

    /// Returns a tool's own policy, if it has one; none for a tool that is of no server of servers.toml.
    fn own_policy(&self, tool: &Tool) -> Option<Option<Policy>> {
        let settings = self.servers.connections().get(&*tool.server)?.settings();
        let own = settings.tools.get(&*tool.own).and_then(|own| own.policy);
        settings.session.is_none().then_some(own)
    }

    async fn recall_figures(&self) {
        if self.servers.config().gateway.learn {
            self.observing.figures.recall().await;
        }
    }

    fn use_of(&self, gate: &Gate, tool: &Tool) -> ToolUse {
        let (policy, rule) = match gate.verdict(tool) {
            PolicyVerdict::Allow => (Policy::Allow, None),
            PolicyVerdict::Approve(rule) => (Policy::Approve, Some(rule)),
            PolicyVerdict::Deny(rule) => (Policy::Deny, Some(rule)),
        };
        let report = || self.observing.figures.of(&tool.own_full(), "", &tool.version);
        ToolUse { policy, rule, report: tool.session.is_none().then(report).flatten() }
    }
}

/// Returns the first sentence of a description.
fn first_sentence(text: &str) -> &str {
    text.split_inclusive(". ").next().unwrap_or_default().trim_end()
}
