//! Registries of MCP servers: their API (the official registry's OpenAPI, 2025-12-01), what they say of a server
//! (`server.json`, schema 2025-12-11), and the entry of servers.toml that this makes.
//!
//! Nothing that a registry says runs as it stands: the program is one of a few launchers, the rest are its
//! arguments, and whoever adds the server sees all of them.

mod api;
mod bundle;
mod detail;
mod entry;
mod update;

pub use api::{FoundServer, Registry, RegistryFault, ServerStatus};
pub use bundle::{BundleFault, UnpackedBundle, unpack};
pub use detail::{Argument, Input, Package, Remote, ServerDetail, Transport};
pub use entry::{AskedValue, Given, LaunchWay, ServerEntry, Unusable, entry, ways};
pub use update::{Outdated, replaced};

/// The name of a server in a registry, with a version or without: `io.github.owner/name@1.2.0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerReference {
    /// The name.
    pub name: String,
    /// The version; none for the latest.
    pub version: Option<String>,
}

impl ServerReference {
    /// Reads a reference. A name is `NAMESPACE/NAME` with a dot in the namespace, which tells it from a path and from
    /// a package.
    pub fn read(text: &str) -> Option<Self> {
        let (name, version) = match text.split_once('@') {
            Some((name, version)) => (name, Some(version)),
            None => (text, None),
        };
        let (space, own) = name.split_once('/')?;
        let is_of = |part: &str, more: &str| {
            !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c))
        };
        let is_name = is_of(space, ".-") && is_of(own, "._-") && (3..=200).contains(&name.len());
        let is_path = space.starts_with('.') || !space.contains('.');
        let has_version = version.is_none_or(|version| !version.is_empty() && version.len() <= 255);
        (is_name && !is_path && has_version)
            .then(|| Self { name: name.into(), version: version.map(String::from) })
    }

    /// Returns a name for the server in servers.toml.
    pub fn short(&self) -> String {
        let own = self.name.rsplit('/').next().unwrap_or_default();
        let trimmed =
            own.trim_end_matches("-mcp-server").trim_end_matches("-mcp").trim_start_matches("mcp-server-");
        let own = if trimmed.is_empty() { own } else { trimmed };
        match nonet_text::name::ServerName::new(own) {
            Ok(name) => name.as_str().into(),
            Err(bad) => bad.nearest,
        }
    }
}

impl std::fmt::Display for ServerReference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.version {
            Some(version) => write!(f, "{}@{version}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_is_told_from_paths_packages_and_addresses() {
        let check = |text: &str, expected: Option<(&str, Option<&str>, &str)>| {
            let read = ServerReference::read(text);
            let found = read.as_ref().map(|one| (one.name.as_str(), one.version.as_deref(), one.short()));
            assert_eq!(found, expected.map(|(name, version, short)| (name, version, short.into())), "{text}");
            if let Some(read) = read {
                assert_eq!(read.to_string(), text);
            }
        };
        check("io.github.ann/weather", Some(("io.github.ann/weather", None, "weather")));
        check(
            "com.example/Big.Data-MCP@1.2.0+x",
            Some(("com.example/Big.Data-MCP", Some("1.2.0+x"), "big-data-mcp")),
        );
        check("io.github.ann/git-mcp-server", Some(("io.github.ann/git-mcp-server", None, "git")));
        for text in [
            "./run",
            "../a/b",
            "@scope/package",
            "npx",
            "https://a.example/mcp",
            "a/b",
            "a.b/",
            "a.b/c@",
            "a.b/c/d",
        ] {
            check(text, None);
        }
    }
}
