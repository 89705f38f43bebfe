//! Install links of clients: the server is in the link.

use base64::{
    Engine,
    alphabet::{STANDARD, URL_SAFE},
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value, json};

use super::{HostFault, naming::name_of, shortened};

/// The schemes of clients' own links.
pub(super) const SCHEMES: [&str; 4] = ["cursor:", "vscode:", "vscode-insiders:", "lmstudio:"];
/// How links begin, after which a server follows in the link's query.
const BEGINNINGS: [&str; 11] = [
    "cursor://anysphere.cursor-deeplink/mcp/install?",
    "https://cursor.com/install-mcp?",
    "https://cursor.com/en/install-mcp?",
    "https://www.cursor.com/install-mcp?",
    "vscode:mcp/install?",
    "vscode-insiders:mcp/install?",
    "https://vscode.dev/redirect/mcp/install?",
    "https://insiders.vscode.dev/redirect/mcp/install?",
    "https://vscode.dev/redirect?",
    "https://insiders.vscode.dev/redirect?",
    "lmstudio://add_mcp?",
];
/// How often a link may lead to another.
const DEEPEST: usize = 2;

/// Whether a text begins as an install link.
pub(super) fn is_link(text: &str) -> bool {
    BEGINNINGS.iter().any(|beginning| text.starts_with(beginning))
}

/// Reads the first install link in a text; none if there is none.
pub(super) fn root(text: &str) -> Result<Option<Value>, HostFault> {
    root_within(text, DEEPEST)
}

fn root_within(text: &str, deepest: usize) -> Result<Option<Value>, HostFault> {
    let found =
        BEGINNINGS.iter().filter_map(|beginning| Some((text.find(beginning)?, beginning.len()))).min();
    let Some((at, length)) = found else { return Ok(None) };
    let link = text.get(at..).unwrap_or_default();
    let query = link.get(length..).unwrap_or_default();
    // Markdown, HTML and prose go on after a link. A raw `{...}` of VS Code may hold any of these.
    let end = match query.starts_with('{') {
        true => query.rfind('}').map_or(query.len(), |end| end + 1),
        false => query.find(|c: char| c.is_whitespace() || ")\"'<>`".contains(c)).unwrap_or(query.len()),
    };
    let query = query.get(..end).unwrap_or_default().replace("&amp;", "&");
    let unusable = |why: &str| {
        let remedy = "Copy the whole link, or paste the server as JSON.";
        HostFault::new(format!("the install link `{}` {why}", shortened(link)), remedy)
    };
    let member = |name: &str| {
        let mut members = query.split('&').filter_map(|member| member.split_once('='));
        members.find(|(key, _)| *key == name).map(|(_, value)| decoded(value))
    };
    if let (Some(inner), Some(deepest)) = (member("url"), deepest.checked_sub(1)) {
        return root_within(&inner, deepest);
    }
    let config = match member("config") {
        Some(config) => config,
        None => decoded(&query),
    };
    let Some(Value::Object(mut entry)) = object(&config) else {
        return Err(unusable("has no server that can be read"));
    };
    let inputs = entry.shift_remove("inputs").or_else(|| serde_json::from_str(&member("inputs")?).ok());
    let name = member("name").or_else(|| entry.get("name").and_then(Value::as_str).map(Into::into));
    // A link may hold what a file holds: a server under its name.
    let inner = match entry.iter().next() {
        Some((key, Value::Object(inner))) if entry.len() == 1 && key != "command" => {
            Some((key.clone(), inner.clone()))
        }
        _ => None,
    };
    let (name, entry): (String, Map<String, Value>) = match inner {
        Some((key, inner)) => (name.unwrap_or(key), inner),
        None => (name.unwrap_or_else(|| name_of(&entry)), entry),
    };
    let mut root = json!({ "mcpServers": { name: entry } });
    if let Some(inputs) = inputs {
        root["inputs"] = inputs;
    }
    Ok(Some(root))
}

/// Decodes `%20`. A `+` stays: base64 has it.
fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// Reads JSON, or JSON in base64.
fn object(config: &str) -> Option<Value> {
    if config.trim_start().starts_with('{') {
        return serde_json::from_str(config).ok();
    }
    let lenient = GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true);
    let config = config.trim().replace(' ', "+");
    let bytes = [STANDARD, URL_SAFE]
        .iter()
        .find_map(|alphabet| GeneralPurpose::new(alphabet, lenient).decode(&config).ok())?;
    serde_json::from_slice(&bytes).ok()
}
