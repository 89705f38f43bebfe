//! What clients read about the gateway: the metadata of a protected resource (RFC 9728), and the challenges of
//! refusals (RFC 6750, section 3).

use std::{collections::BTreeSet, fmt::Write};

use nonet_config::{AuthSettings, Config};
use serde_json::{Value, json};

/// Where the metadata is; the path of the resource follows (RFC 9728, section 3.1).
pub const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";

/// Returns the address of `/mcp`, or of `/mcp/NAME`, as tokens name it (RFC 8707).
pub fn resource(auth: &AuthSettings, profile: Option<&str>) -> String {
    format!("{}{}", auth.public_url, path(profile))
}

fn path(profile: Option<&str>) -> String {
    profile.map_or_else(|| "/mcp".into(), |name| format!("/mcp/{name}"))
}

/// Returns the metadata of `/mcp`, or of `/mcp/NAME`.
pub fn document(config: &Config, auth: &AuthSettings, profile: Option<&str>) -> Value {
    let issuers: Vec<&str> = auth.issuers.iter().map(|issuer| issuer.issuer.as_str()).collect();
    let mut document = json!({
        "resource": resource(auth, profile),
        "authorization_servers": issuers,
        "bearer_methods_supported": ["header"],
        "resource_name": "Nonet",
    });
    let scopes = known_scopes(config, auth, profile);
    if !scopes.is_empty() {
        document["scopes_supported"] = json!(scopes);
    }
    document
}

/// Returns the scopes that a token needs at `/mcp`, or at `/mcp/NAME`, sorted. At `/mcp`, some people need more.
pub fn needed_scopes(config: &Config, auth: &AuthSettings, profile: Option<&str>) -> Vec<String> {
    let of_profile = profile.and_then(|name| config.profiles.get(name)).map(|profile| &profile.scopes);
    sorted(auth.scopes.iter().chain(of_profile.into_iter().flatten()))
}

/// Returns the scopes that matter at an address, sorted: at `/mcp`, those of every profile.
fn known_scopes(config: &Config, auth: &AuthSettings, profile: Option<&str>) -> Vec<String> {
    match profile {
        Some(_) => needed_scopes(config, auth, profile),
        None => {
            sorted(auth.scopes.iter().chain(config.profiles.values().flat_map(|profile| &profile.scopes)))
        }
    }
}

fn sorted<'a>(scopes: impl Iterator<Item = &'a String>) -> Vec<String> {
    let all: BTreeSet<&String> = scopes.collect();
    all.into_iter().cloned().collect()
}

/// Returns a challenge: why a request is refused, which scopes would do, and where the metadata is.
pub fn challenge(
    auth: &AuthSettings,
    profile: Option<&str>,
    error: Option<(&str, &str)>,
    scopes: &[String],
) -> String {
    let mut text = String::from("Bearer ");
    if let Some((code, description)) = error {
        // Of the characters of a description (RFC 6750, section 3), quotes and backslashes are left out.
        let plain = |c: char| matches!(c, ' '..='~') && c != '"' && c != '\\';
        let description: String = description.chars().filter(|c| plain(*c)).collect();
        let _ = write!(text, "error=\"{code}\", error_description=\"{description}\", ");
    }
    if !scopes.is_empty() {
        let _ = write!(text, "scope=\"{}\", ", scopes.join(" "));
    }
    let _ = write!(text, "resource_metadata=\"{}{WELL_KNOWN}{}\"", auth.public_url, path(profile));
    text
}
