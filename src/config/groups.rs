//! `[gateway]`, `[categories.NAME]`, `[profiles.NAME]` and `[policies.NAME]`: what is shown, to whom, and how.

use std::{path::PathBuf, time::Duration};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{BearerToken, Globs, Policy, Priorities, schema::named, values::time};
use crate::name::ServerName;

/// The gateway itself: `[gateway]`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct GatewaySettings {
    /// How tools are shown to clients.
    pub tool_injection: ToolInjection,
    /// The context window of the model in tokens; `auto` goes by it.
    #[schemars(range(min = 1_000, max = 1_000_000_000))]
    pub context_window: u64,
    /// Tools listed beside the meta-tools in any mode: names, or patterns on full names (`server.tool`).
    #[schemars(example = json!(["filesystem.read_*"]))]
    pub pinned: Globs,
    /// Bearer tokens of those who may reach everything over HTTP. As soon as there is any token, here or in a profile,
    /// every request over HTTP needs one.
    #[schemars(example = json!(["${ADMIN_TOKEN}"]))]
    pub tokens: Vec<BearerToken>,
    /// Patterns on full names (`server.tool`) with a number from -10 to 10 that lifts or lowers these tools in searches.
    pub priorities: Priorities,
    /// Variables of Nonet's environment that every server gets besides the usual ones; names and patterns.
    #[schemars(schema_with = "super::servers::inherit_env_schema")]
    pub inherit_env: Globs,
    /// Folders of skills; `~/` and paths relative to this file are understood.
    #[schemars(example = json!(["~/.config/nonet/skills"]))]
    pub skills: Vec<PathBuf>,
    /// When a call that still runs becomes a background task. Left out: what the client stands.
    #[serde(deserialize_with = "time::option::deserialize")]
    #[schemars(schema_with = "time::schema")]
    pub soft_deadline: Option<Duration>,
    /// The largest result in bytes that is given whole; a larger one is kept and previewed. Left out: what the client stands,
    /// else 100,000.
    #[schemars(range(min = 1_000, max = 1_000_000_000), example = 100_000)]
    pub max_result_bytes: Option<usize>,
    /// How long results that were too large, and those of background tasks, are kept on this machine.
    #[serde(with = "time")]
    #[schemars(schema_with = "time::schema")]
    pub keep_results_for: Duration,
    /// How many bytes of them are kept; the oldest go first.
    #[schemars(range(min = 1_000_000, max = 1_000_000_000_000_u64))]
    pub keep_results_bytes: u64,
    /// Whether searches learn from the calls that follow them. What is learned stays in the store on this machine.
    pub learn: bool,
    /// Whether all clients on this machine share one gateway, and with it one set of servers. The first one starts it; it runs
    /// in the folder of this file, with the environment of whoever started it.
    pub shared: bool,
    /// How long a shared gateway waits for the next client when the last one has left.
    #[serde(with = "time")]
    #[schemars(schema_with = "time::schema")]
    pub shared_grace: Duration,
    /// Whether the HTTP server has a live page at `/ui`, for this machine alone.
    pub page: bool,
    /// Host names besides localhost that HTTP clients may use for this gateway.
    #[schemars(example = json!(["nonet.example.com"]))]
    pub allowed_hosts: Vec<String>,
    /// Web origins that may use this gateway from a browser.
    #[schemars(example = json!(["https://app.example.com"]))]
    pub allowed_origins: Vec<String>,
}

impl Default for GatewaySettings {
    fn default() -> Self {
        Self {
            tool_injection: ToolInjection::default(),
            context_window: 200_000,
            pinned: Globs::default(),
            tokens: Vec::new(),
            priorities: Priorities::default(),
            inherit_env: Globs::default(),
            skills: Vec::new(),
            soft_deadline: None,
            max_result_bytes: None,
            keep_results_for: Duration::from_secs(24 * 60 * 60),
            keep_results_bytes: 256_000_000,
            learn: true,
            shared: false,
            shared_grace: Duration::from_secs(30),
            page: true,
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
        }
    }
}

/// How tools are shown to a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolInjection {
    /// The nine meta-tools and nothing else.
    #[default]
    Discovery,
    /// The nine and every tool with its schema.
    Direct,
    /// The nine and every tool by its name and one line.
    CompactDirect,
    /// The fullest of the three that takes at most a fifth of the context window.
    Auto,
}

/// A group of tools: `[categories.NAME]`. A tool belongs to it by any of the three.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Category {
    /// What the group is for; shown in the list of categories.
    #[schemars(example = &"Reading and writing text")]
    pub description: String,
    /// Servers all of whose tools belong to it.
    #[schemars(schema_with = "server_names")]
    pub servers: Vec<ServerName>,
    /// Tags whose tools belong to it.
    #[schemars(example = json!(["files"]))]
    pub tags: Vec<String>,
    /// Patterns on full names (`server.tool`) whose tools belong to it.
    pub tools: Globs,
}

/// What a client may see: `[profiles.NAME]`. What is left out does not restrict.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Profile {
    /// Categories or servers whose tools are shown.
    #[schemars(example = json!(["files", "docs"]))]
    pub categories: Vec<String>,
    /// Tags whose tools are shown.
    #[schemars(example = json!(["files"]))]
    pub tags: Vec<String>,
    /// Patterns on full names (`server.tool`) that are shown, besides what `categories`, `tags` and `max_risk` show.
    pub allow: Globs,
    /// If given, nothing is shown but full names that match, whatever `allow` says.
    pub only: Option<Globs>,
    /// Patterns on full names that are not shown, whatever else says so.
    pub deny: Globs,
    /// The highest risk that is shown.
    pub max_risk: Option<Risk>,
    /// Tools listed beside the meta-tools in any mode: names, or patterns on full names.
    #[schemars(example = json!(["files.read_*"]))]
    pub pinned: Globs,
    /// How tools are shown, instead of `[gateway]`'s way.
    pub tool_injection: Option<ToolInjection>,
    /// The context window of this client's model, instead of `[gateway]`'s.
    #[schemars(range(min = 1_000, max = 1_000_000_000), example = 200_000)]
    pub context_window: Option<u64>,
    /// Bearer tokens that put a client under this profile over HTTP.
    #[schemars(example = json!(["${READER_TOKEN}"]))]
    pub tokens: Vec<BearerToken>,
    /// Patterns on full names with a number from -10 to 10 that lifts or lowers these tools in searches; they go before
    /// `[gateway]`'s.
    pub priorities: Priorities,
}

impl Profile {
    /// Whether only tools of what is named are shown. `allow` limits alone; beside `only` it adds to what that leaves.
    pub fn is_limited(&self) -> bool {
        let allows = !self.allow.is_empty() && self.only.is_none();
        !self.categories.is_empty() || !self.tags.is_empty() || allows
    }
}

/// What happens when certain tools are called: `[policies.NAME]`. A tool is meant if its name matches one of `tools`, where
/// they are given, and its risk is at least `risk`, where that is given.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyRule {
    /// Patterns on full names (`server.tool`).
    #[serde(default)]
    pub tools: Globs,
    /// The risk from which on it holds.
    #[serde(default)]
    pub risk: Option<Risk>,
    /// What happens.
    pub policy: Policy,
}

/// How much harm a tool can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Risk {
    /// It only reads.
    Low,
    /// It changes things in ways that can be undone, or its server does not say.
    Medium,
    /// It can destroy.
    High,
}

fn server_names(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "items": named("server-name", "files"), "examples": [["files", "docs"]] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allow_limits_only_where_nothing_else_does() {
        let check = |profile: serde_json::Value, expected: bool| {
            let read: Profile = serde_json::from_value(profile.clone()).expect("a profile");
            assert_eq!(read.is_limited(), expected, "{profile}");
        };
        check(json!({}), false);
        check(json!({ "allow": ["a.*"] }), true);
        check(json!({ "only": ["b.*"], "allow": ["a.*"] }), false);
        check(json!({ "only": ["b.*"], "categories": ["b"] }), true);
        check(json!({ "only": ["b.*"] }), false);
    }
}
