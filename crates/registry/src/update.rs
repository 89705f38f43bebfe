//! Newer versions of servers that came from a registry.

use std::cmp::Ordering;

use crate::{FoundServer, LaunchWay, ServerReference, entry::plain, ways};
use semver::Version;

/// A server of servers.toml with a newer version in its registry.
#[derive(Clone, Debug)]
pub struct Outdated {
    /// What is installed.
    pub installed: FoundServer,
    /// The latest.
    pub latest: FoundServer,
}

impl Outdated {
    /// Returns it, if the latest version is another one and not an older one.
    pub fn of(installed: FoundServer, latest: FoundServer) -> Option<Self> {
        let versions = (&installed.detail.version, &latest.detail.version);
        let is_other = versions.0 != versions.1;
        let is_older = match (Version::parse(versions.0), Version::parse(versions.1)) {
            (Ok(installed), Ok(latest)) => latest.cmp_precedence(&installed) == Ordering::Less,
            // What the registry calls its latest is newer.
            _ => false,
        };
        (is_other && !is_older).then_some(Self { installed, latest })
    }

    /// Returns the values that the latest version requires and the installed one did not.
    pub fn new_values(&self) -> Vec<String> {
        let before: Vec<&str> = required(&self.installed).collect();
        let now = required(&self.latest).filter(|key| !before.contains(key));
        now.map(String::from).collect()
    }
}

fn required(found: &FoundServer) -> impl Iterator<Item = &str> {
    let packages = found.detail.packages.iter();
    let variables = packages.flat_map(|package| &package.environment_variables);
    let headers = found.detail.remotes.iter().flat_map(|remote| &remote.headers);
    let needed =
        |input: &&crate::Input| input.is_required && input.value.is_none() && input.default.is_none();
    variables.chain(headers).filter(needed).map(|input| input.name.as_str())
}

/// Returns the texts of an entry that change with the update, each with the new one: only what names the package at its
/// version, and where the entry comes from. None if the entry names the installed version nowhere, because the user
/// has written it anew.
pub fn replaced(args: &[String], url: Option<&str>, outdated: &Outdated) -> Option<Vec<(String, String)>> {
    let Outdated { installed, latest } = outdated;
    let (before, after) = (ways(installed, None).ok()?, ways(latest, None).ok()?);
    let named = |found: &FoundServer| {
        let (name, version) = (found.detail.name.clone(), Some(found.detail.version.clone()));
        ServerReference { name, version }.to_string()
    };
    let mut replaced = vec![(named(installed), named(latest))];
    match url {
        Some(url) => {
            // An address without variables may have moved; another one is what the user made of it.
            let fixed = |ways: &[LaunchWay<'_>]| {
                let mut fixed = ways.iter().filter_map(|way| match way {
                    LaunchWay::Remote(remote) if !remote.url.contains('{') => Some(plain(&remote.url)),
                    _ => None,
                });
                fixed.next()
            };
            if let (Some(was), Some(is)) = (fixed(&before), fixed(&after))
                && was == url
            {
                replaced.push((was, is));
            }
        }
        None => {
            let is_named = |reference: &String| args.contains(reference);
            let (kind, was) =
                before.iter().find_map(|way| Some((way.kind(), way.reference().filter(is_named)?)))?;
            replaced.push((was, after.iter().find(|way| way.kind() == kind)?.reference()?));
        }
    }
    replaced.retain(|(was, is)| was != is);
    Some(replaced)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn found(version: &str, package: &str) -> FoundServer {
        let package = json!({ "registryType": "npm", "identifier": "@a/b", "version": package, "transport": { "type": "stdio" } });
        let detail = json!({ "name": "a.b/c", "version": version, "packages": [package] });
        FoundServer {
            detail: serde_json::from_value(detail).expect("a server"),
            is_latest: true,
            ..FoundServer::default()
        }
    }

    #[test]
    fn only_the_version_of_the_package_changes() {
        let outdated = Outdated::of(found("1.0.0", "1.0.0"), found("1.1.0", "1.1.0")).expect("a newer one");
        let args = |package: &str| vec!["-y".to_owned(), package.to_owned(), "--dir".into()];
        let changes = replaced(&args("@a/b@1.0.0"), None, &outdated).expect("it can be moved");
        let expected = [("a.b/c@1.0.0", "a.b/c@1.1.0"), ("@a/b@1.0.0", "@a/b@1.1.0")];
        assert_eq!(changes, expected.map(|(was, is)| (was.to_owned(), is.to_owned())));
        assert_eq!(replaced(&args("@a/b"), None, &outdated), None, "the user has written it anew");
    }

    #[test]
    fn an_older_latest_version_is_no_update() {
        let check = |installed: &str, latest: &str, is_newer: bool| {
            assert_eq!(
                Outdated::of(found(installed, "1"), found(latest, "1")).is_some(),
                is_newer,
                "{installed} {latest}"
            );
        };
        check("1.0.0", "1.0.1", true);
        check("1.10.0", "1.9.0", false);
        check("1.0.0", "1.0.0", false);
        check("2025-01-01", "2025-06-18", true);
        check("1.0.0", "1.0.0-beta", false);
    }
}
