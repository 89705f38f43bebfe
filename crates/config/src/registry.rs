//! `[registry]`: where servers are found.

use schemars::JsonSchema;
use serde::Deserialize;

use super::Secret;

/// The registry of MCP servers that `nonet find`, `nonet add NAMESPACE/NAME` and the page ask: `[registry]`.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RegistrySettings {
    /// Its address, with a version of its API or without: the official one, or a private one with the same API.
    #[schemars(extend("format" = "http-url"), example = &"https://registry.example.com")]
    pub url: String,
    /// A bearer token for it. The official one needs none.
    #[schemars(with = "Option<String>", length(min = 1), example = &"${REGISTRY_TOKEN}")]
    pub token: Option<Secret>,
    /// Whether a search that finds no fitting tool names servers of the registry that may have one. The words of
    /// such searches are sent to the registry.
    pub suggest: bool,
}

impl Default for RegistrySettings {
    fn default() -> Self {
        Self { url: "https://registry.modelcontextprotocol.io".into(), token: None, suggest: false }
    }
}
