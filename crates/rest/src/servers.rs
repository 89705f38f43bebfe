//! The server addresses in a document.

use std::collections::HashSet;

use reqwest::Url;
use serde_json::Value;

use super::document::ApiDocument;

/// The maximum number of servers and of ways to sign in that are read.
const MOST: usize = 20;

/// Names of params that carry keys, without punctuation: many documents list them like any other params.
const KEYS: [&str; 9] = [
    "accesstoken",
    "apikey",
    "apisecret",
    "apitoken",
    "authtoken",
    "ocpapimsubscriptionkey",
    "xaccesstoken",
    "xapikey",
    "xauthtoken",
];

/// Returns the first usable address in a list of servers. Relative addresses are resolved against the
/// document's address.
pub(super) fn base(servers: Option<&Value>, came_from: Option<&str>) -> Option<String> {
    let came_from = came_from.and_then(|from| Url::parse(from).ok()).filter(is_web);
    let all = servers.and_then(Value::as_array).filter(|all| !all.is_empty());
    let Some(all) = all else {
        // Without servers, the default is the root of the document's address.
        return came_from.and_then(|from| from.join("/").ok()).map(String::from);
    };
    all.iter().take(MOST).find_map(|server| {
        let address = filled(server)?;
        let found = match (Url::parse(&address), &came_from) {
            (Ok(found), _) => found,
            (Err(_), Some(from)) => from.join(&address).ok()?,
            (Err(_), None) if address.starts_with("//") => Url::parse(&format!("https:{address}")).ok()?,
            (Err(_), None) => return None,
        };
        is_web(&found).then(|| found.into())
    })
}

fn is_web(url: &Url) -> bool {
    matches!(url.scheme(), "http" | "https") && url.has_host()
}

/// Returns the address of a server with its variables' defaults filled in.
fn filled(server: &Value) -> Option<String> {
    let mut address = server.get("url")?.as_str()?.trim().to_string();
    for (name, variable) in server.get("variables").and_then(Value::as_object).into_iter().flatten() {
        let default = match variable.get("default")? {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        address = address.replace(&format!("{{{name}}}"), &default);
    }
    (!address.contains(['{', '}'])).then_some(address)
}

/// The ways to sign in to a service, in words, and the params that carry its keys.
#[derive(Debug, Default)]
pub(super) struct Security {
    pub ways: Vec<String>,
    /// Place and name in lower case.
    keys: HashSet<(String, String)>,
}

impl Security {
    pub(crate) fn read(document: &ApiDocument) -> Self {
        let mut security = Self::default();
        let schemes = document.get("components").and_then(|all| all.get("securitySchemes")?.as_object());
        for (_, scheme) in schemes.into_iter().flatten().take(MOST) {
            let Ok(scheme) = document.resolved(scheme) else { continue };
            let text = |key: &str| {
                scheme.get(key).and_then(Value::as_str).map(|text| nonet_base::text::clip(text, 200))
            };
            let way = match text("type").unwrap_or_default().as_str() {
                "apiKey" => {
                    let (Some(place), Some(name)) = (text("in"), text("name")) else { continue };
                    security.keys.insert((place.to_lowercase(), name.to_lowercase()));
                    format!("a key in the {place} `{name}`")
                }
                "http" => match text("scheme").unwrap_or_default().to_lowercase().as_str() {
                    "bearer" => "a bearer token in the header `Authorization`".into(),
                    "basic" => "name and password (Basic) in the header `Authorization`".into(),
                    other => format!("`{other}` in the header `Authorization`"),
                },
                "oauth2" => "an OAuth access token in the header `Authorization`".into(),
                "openIdConnect" => "a token of OpenID Connect in the header `Authorization`".into(),
                "mutualTLS" => "a client certificate".into(),
                _ => continue,
            };
            if !security.ways.contains(&way) {
                security.ways.push(way);
            }
        }
        security
    }

    /// Returns whether a param carries a key, so that no model is asked for it.
    pub(crate) fn is_key(&mut self, place: &str, name: &str) -> bool {
        if self.keys.contains(&(place.into(), name.to_lowercase())) {
            return true;
        }
        let plain: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
        let is_key =
            KEYS.contains(&plain.to_ascii_lowercase().as_str()) && matches!(place, "header" | "query");
        if is_key {
            self.keys.insert((place.into(), name.to_lowercase()));
            self.ways.push(format!("a key in the {place} `{}`", nonet_base::text::clip(name, 60)));
        }
        is_key
    }
}
