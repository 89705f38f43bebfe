//! A server's tools for the user of the page: every tool, including denied tools, with the rule.

use std::sync::Arc;

use nonet_base::json::set_member;
use nonet_config::Policy;
use nonet_servers::{catalog::Tool, policy::PolicyVerdict};
use serde_json::{Value, json};

use crate::{find::Find, gate::Gate};
use nonet_state::session::Caller;

/// How many tools one list shows, and how much of a description the summary reads.
const TOOLS_AT_ONCE: usize = 100;
const LONGEST: usize = 400;

impl Find {
    /// Returns the tools of a server from position `from` on whose names or descriptions contain all `words`; `None` if
    /// no such server has listed tools.
    pub async fn tools_of(&self, server: &str, words: &str, from: usize) -> Option<Value> {
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
        let shown = found.iter().skip(from).take(TOOLS_AT_ONCE).map(|tool| {
            let mut row = json!({
                "name": &*tool.name,
                "full": &*tool.full,
                "description": first_sentence(&tool.summary(LONGEST)),
                "risk": tool.risk,
            });
            self.tell_policy(&gate.verdict(tool), &mut row);
            self.tell_figures(tool, &mut row);
            row
        });
        Some(json!({ "total": found.len(), "all": entry.tools.len(), "tools": shown.collect::<Vec<_>>() }))
    }

    /// Returns everything about one tool, by its full name.
    pub async fn tool_card(&self, full: &str) -> Option<Value> {
        self.recall_figures().await;
        let gate = Gate::of(&self.publisher, &Caller::default().session);
        let tool = gate.catalog().get(full)?;
        let mut card = json!({
            "name": &*tool.full,
            "server": &*tool.server,
            "title": tool.title,
            "description": tool.description,
            "risk": tool.risk,
            "read_only": tool.read_only,
            "input_schema": tool.schema.raw(),
            "output_schema": tool.visible.get("outputSchema"),
            "aliases": tool.aliases,
            "tags": tool.tags,
            "state": gate.trouble(&tool.server),
        });
        if let Some(own) = self.own_policy(tool) {
            card["own_policy"] = json!(own);
        }
        self.tell_policy(&gate.verdict(tool), &mut card);
        self.tell_figures(tool, &mut card);
        Some(card)
    }

    /// Returns where servers.toml has the policy of a tool: the names of its server and of the tool there. None for tools that are
    /// of no server of servers.toml.
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

    fn tell_policy(&self, verdict: &PolicyVerdict, row: &mut Value) {
        let (policy, rule) = match verdict {
            PolicyVerdict::Allow => ("allow", None),
            PolicyVerdict::Approve(rule) => ("approve", Some(rule)),
            PolicyVerdict::Deny(rule) => ("deny", Some(rule)),
        };
        set_member(row, "policy", policy);
        if let Some(rule) = rule {
            set_member(row, "rule", &**rule);
        }
    }

    fn tell_figures(&self, tool: &Tool, row: &mut Value) {
        if tool.session.is_none()
            && let (Some(row), Ok(Value::Object(figures))) = (
                row.as_object_mut(),
                serde_json::to_value(self.observing.figures.of(&tool.own_full(), "", &tool.version)),
            )
        {
            row.extend(figures);
        }
    }
}

/// Returns the first sentence of a description.
fn first_sentence(text: &str) -> &str {
    text.split_inclusive(". ").next().unwrap_or_default().trim_end()
}
