//! `[clients.NAME]`: the limits of MCP clients. A table of known clients is built in (`clients.toml` beside
//! this file).

use std::{collections::BTreeMap, path::Path, sync::LazyLock, time::Duration};

use schemars::JsonSchema;
use serde::Deserialize;

use super::{Config, Globs, ValueSources, read, values::time};
use crate::secrets_file::SecretsFile;

/// When a call in flight becomes a task for an unknown client: most clients give up after 60 s.
pub(crate) const SOFT_DEADLINE: Duration = Duration::from_secs(45);
/// The largest result returned whole, in bytes: about the 25,000 tokens at which common clients truncate.
pub(crate) const MAX_RESULT_BYTES: usize = 100_000;
/// The longest instructions, in characters; no client is known to read more than 2,048.
const MAX_INSTRUCTIONS: usize = 2_000;

/// The known limits of a client.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ClientSettings {
    /// Patterns on the client's own name (`clientInfo.name`), in any letter case.
    #[serde(rename = "match")]
    pub matches: Globs,
    /// When a call in flight becomes a background task.
    #[serde(deserialize_with = "time::option::deserialize")]
    #[schemars(schema_with = "time::schema")]
    pub soft_deadline: Option<Duration>,
    /// The largest result in bytes that the client reads whole.
    #[schemars(range(min = 1_000, max = 1_000_000_000), example = 50_000)]
    pub max_result_bytes: Option<usize>,
    /// The longest tool description in characters that the client reads whole; longer descriptions are cut in
    /// the list.
    #[schemars(range(min = 100, max = 1_000_000), example = 2_048)]
    pub max_description: Option<usize>,
    /// `false`: the client shows no forms, even if it claims support.
    #[schemars(example = false)]
    pub elicitation: Option<bool>,
    /// `true`: the client holds definitions back and searches tools by itself, so that a listed tool costs its model
    /// only a name. `tool_injection = "auto"` then lists every tool.
    #[schemars(example = true)]
    pub tool_search: Option<bool>,
}

impl ClientSettings {
    /// Applies the values of `newer`.
    fn update(&mut self, newer: &ClientSettings) {
        if !newer.matches.is_empty() {
            let folded = newer.matches.patterns().iter().map(|pattern| pattern.to_lowercase()).collect();
            self.matches = Globs::new(folded).unwrap_or_else(|_| newer.matches.clone());
        }
        self.soft_deadline = newer.soft_deadline.or(self.soft_deadline);
        self.max_result_bytes = newer.max_result_bytes.or(self.max_result_bytes);
        self.max_description = newer.max_description.or(self.max_description);
        self.elicitation = newer.elicitation.or(self.elicitation);
        self.tool_search = newer.tool_search.or(self.tool_search);
    }
}

/// The limits of a client, with all defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientLimits {
    /// When a call in flight becomes a background task.
    pub soft_deadline: Duration,
    /// The largest result returned whole, in bytes.
    pub max_result_bytes: usize,
    /// The longest description of a listed tool, in characters.
    pub max_description: usize,
    /// The longest instructions, in characters.
    pub max_instructions: usize,
    /// Whether to send forms if the client claims support.
    pub elicitation: bool,
    /// Whether the client holds definitions back and searches tools by itself.
    pub tool_search: bool,
}

impl Default for ClientLimits {
    fn default() -> Self {
        Self {
            soft_deadline: SOFT_DEADLINE,
            max_result_bytes: MAX_RESULT_BYTES,
            max_description: usize::MAX,
            max_instructions: MAX_INSTRUCTIONS,
            elicitation: true,
            tool_search: false,
        }
    }
}

static BUILT_IN: LazyLock<BTreeMap<String, ClientSettings>> = LazyLock::new(|| {
    let file = Path::new("clients.toml");
    let written = read::read(include_str!("clients.toml"), file, ValueSources::NONE, &SecretsFile::default());
    let written = written.expect("the built-in table is TOML; a test reads it");
    serde_json::from_value(written.value["clients"].clone())
        .expect("the built-in table fits; a test reads it")
});

/// Returns the built-in table with the changes and additions of `own`.
pub(super) fn joined(own: BTreeMap<String, ClientSettings>) -> BTreeMap<String, ClientSettings> {
    let mut all = BUILT_IN.clone();
    for (name, client) in own {
        all.entry(name).or_default().update(&client);
    }
    all
}

impl Config {
    /// Whether clients under a profile get the tools with a user interface, if they show such interfaces.
    pub fn shows_ui(&self, profile: Option<&str>) -> bool {
        let own = profile.and_then(|profile| self.profiles.get(profile)?.ui);
        own.unwrap_or(self.gateway.ui)
    }

    /// Whether any client can get tools with a user interface.
    pub fn has_ui(&self) -> bool {
        self.gateway.ui || self.profiles.values().any(|profile| profile.ui == Some(true))
    }

    /// Returns the limits of the client with this name (`clientInfo.name`). `[gateway]` takes precedence over
    /// the table. If several entries match, the longest pattern wins.
    pub fn limits(&self, client: &str) -> ClientLimits {
        let name = client.to_lowercase();
        let length = |client: &ClientSettings| client.matches.patterns().iter().map(String::len).max();
        let known = self
            .clients
            .values()
            .filter(|known| known.matches.matches(&name))
            .max_by_key(|known| length(known));
        let unknown = ClientSettings::default();
        let known = known.unwrap_or(&unknown);
        let default = ClientLimits::default();
        let own = &self.gateway;
        ClientLimits {
            soft_deadline: own.soft_deadline.or(known.soft_deadline).unwrap_or(default.soft_deadline),
            max_result_bytes: own
                .max_result_bytes
                .or(known.max_result_bytes)
                .unwrap_or(default.max_result_bytes),
            max_description: known.max_description.unwrap_or(default.max_description),
            max_instructions: default.max_instructions,
            elicitation: known.elicitation.unwrap_or(default.elicitation),
            tool_search: known.tool_search.unwrap_or(default.tool_search),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(toml: &str, client: &str) -> ClientLimits {
        let loaded = crate::parse(toml, Path::new("servers.toml"), ValueSources::NONE).expect("usable");
        assert_eq!(loaded.faults, []);
        loaded.config.limits(client)
    }

    #[test]
    fn known_clients_are_told_by_their_name() {
        assert_eq!(limits("", "who"), ClientLimits::default());
        assert_eq!(limits("", "claude-code").max_result_bytes, 50_000);
        assert!(!limits("", "Zed").elicitation);
        assert!(limits("", "claude-code").tool_search && !limits("", "cursor").tool_search);
        assert!(!limits("[clients.codex]\ntool_search = false\n", "codex-mcp-client").tool_search);
        assert_eq!(limits("", "Visual Studio Code - Insiders").soft_deadline, SOFT_DEADLINE);
        assert_eq!(limits("", "codex-mcp-client").max_result_bytes, 40_000);
    }

    #[test]
    fn the_file_changes_and_adds_entries_and_the_gateway_goes_first() {
        let toml =
            "[clients.zed]\nsoft_deadline = '9m'\n[clients.mine]\nmatch = ['My *']\nelicitation = false\n";
        let zed = limits(toml, "Zed");
        assert_eq!((zed.soft_deadline, zed.elicitation), (Duration::from_secs(540), false));
        assert!(!limits(toml, "my agent").elicitation);
        let toml = format!("[gateway]\nsoft_deadline = '5s'\nmax_result_bytes = 2000\n{toml}");
        let zed = limits(&toml, "zed");
        assert_eq!((zed.soft_deadline, zed.max_result_bytes), (Duration::from_secs(5), 2_000));
    }

    #[test]
    fn every_built_in_entry_says_whom_it_is_of_and_stays_below_a_minute() {
        assert!(!BUILT_IN.is_empty());
        for (name, client) in BUILT_IN.iter() {
            assert!(!client.matches.is_empty(), "{name}");
            assert!(
                client.soft_deadline.is_some_and(|deadline| deadline < Duration::from_secs(60)),
                "{name}"
            );
        }
    }
}
