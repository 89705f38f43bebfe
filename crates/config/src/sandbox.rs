//! `sandbox`: what a locally started server may access.

use std::path::PathBuf;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::json;

use super::{Globs, paths::Paths, schema::table_or_word};

/// The allowed words for `sandbox`.
const LEVELS: [&str; 2] = ["off", "standard"];
/// The allowed words for `net`.
const NETS: [&str; 2] = ["all", "none"];

/// What a sandboxed server may access, and the keys of the table. The default is `standard`.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SandboxSettings {
    /// Files and folders that the program may read, besides the system's and the interpreters': absolute,
    /// with `~/`, or relative to this file.
    #[schemars(example = json!(["~/.config/gh"]))]
    pub read: Vec<PathBuf>,
    /// Files and folders that the program may write. Default: `cwd` and the folders among the arguments. It
    /// always has a home folder and a temporary folder of its own.
    #[schemars(example = json!(["~/projects"]))]
    pub write: Option<Vec<PathBuf>>,
    /// `true`: every address. `"none"`: no address. Or hosts with ports, which the program reaches through a
    /// proxy.
    #[serde(deserialize_with = "network")]
    #[schemars(schema_with = "net_schema", extend("default" = null))]
    pub net: Network,
    /// Variables of Nonet's environment that the program gets instead of the usual ones: names and patterns.
    /// PATH and HOME are always there.
    #[schemars(example = json!(["LANG"]))]
    pub env: Option<Globs>,
    /// The most memory of all its processes together in a control group; where none can be had, the address
    /// space of each. In bytes.
    #[schemars(range(min = 50_000_000), example = 2_000_000_000_u64)]
    pub memory_bytes: Option<u64>,
    /// The most processes and threads at a time.
    #[schemars(range(min = 8, max = 1_000_000), example = 200)]
    pub processes: Option<u64>,
    /// `false`: where this machine cannot give the whole sandbox, the program starts with a weaker one or
    /// none, and the log has a warning. Default: it does not start.
    pub required: bool,
}

impl Default for SandboxSettings {
    fn default() -> Self {
        Self {
            read: Vec::new(),
            write: None,
            net: Network::All,
            env: None,
            memory_bytes: None,
            processes: None,
            required: true,
        }
    }
}

/// The addresses that a server may connect to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Network {
    /// Every address, this machine's own included.
    #[default]
    All,
    /// None.
    Closed,
    /// Hosts with ports, through a proxy of the sandbox.
    Hosts(Vec<HostPort>),
}

/// A host name or address with a port. `*.` at the beginning stands for any name below.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostPort {
    /// In lower case, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl HostPort {
    /// Reads `host:443` or `[::1]:443`.
    pub fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let port = port.parse().ok().filter(|port| *port > 0)?;
        let (bare, is_v6) = match host.strip_prefix('[') {
            Some(rest) => (rest.strip_suffix(']')?, true),
            None => (host, false),
        };
        let name = bare.strip_prefix("*.").unwrap_or(bare);
        let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_') || (is_v6 && c == ':');
        let is_host = !name.is_empty() && name.chars().all(good);
        is_host.then(|| Self { host: bare.to_ascii_lowercase(), port })
    }
}

/// `sandbox` as written: a level or a table.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum SandboxTable {
    /// One of [`LEVELS`].
    Level(String),
    /// What may be reached.
    Keys(SandboxSettings),
}

impl SandboxTable {
    /// Returns the checked form; `None` for `off`.
    pub(super) fn into_settings(self, paths: &Paths) -> Option<SandboxSettings> {
        let keys = match self {
            Self::Level(level) => return (level != "off").then(SandboxSettings::default),
            Self::Keys(keys) => keys,
        };
        let resolve = |all: Vec<PathBuf>| all.iter().map(|path| paths.resolve(path)).collect();
        Some(SandboxSettings { read: resolve(keys.read), write: keys.write.map(resolve), ..keys })
    }
}

/// `net` as written.
#[derive(Deserialize)]
#[serde(untagged)]
enum Net {
    Open(bool),
    Word(String),
    Hosts(Vec<String>),
}

fn network<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Network, D::Error> {
    Ok(match Net::deserialize(deserializer)? {
        Net::Open(true) => Network::All,
        Net::Open(false) => Network::Closed,
        Net::Word(word) if word == "none" => Network::Closed,
        Net::Word(_) => Network::All,
        Net::Hosts(hosts) => Network::Hosts(hosts.iter().filter_map(|host| HostPort::parse(host)).collect()),
    })
}

/// Checks a level.
pub(super) fn level(text: &str) -> Result<(), String> {
    one_of(text, &LEVELS, "a table such as `{ write = [\"~/notes\"], net = \"none\" }`")
}

/// Checks a word of `net`.
pub(super) fn net(text: &str) -> Result<(), String> {
    one_of(text, &NETS, "a list such as `[\"api.example.com:443\"]`")
}

/// Checks a host of `net`.
pub(super) fn host(text: &str) -> Result<(), String> {
    match HostPort::parse(text) {
        Some(_) => Ok(()),
        None => Err("is not a host with a port, such as `api.example.com:443` or `*.example.com:443`".into()),
    }
}

fn one_of(text: &str, words: &[&str], or: &str) -> Result<(), String> {
    match words.contains(&text) {
        true => Ok(()),
        false => Err(format!("is not `{}` or {or}", words.join("`, `"))),
    }
}

pub(super) fn schema(generator: &mut SchemaGenerator) -> Schema {
    table_or_word::<SandboxSettings>(generator, ["string", "object"], "sandbox", json!("standard"))
}

fn net_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": ["boolean", "string", "array"],
        "format": "sandbox-net",
        "items": { "type": "string", "format": "sandbox-host", "examples": ["api.example.com:443"] },
        "minItems": 1,
        "examples": ["none"],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_a_port() {
        let check = |text: &str, expected: Option<(&str, u16)>| {
            let parsed = HostPort::parse(text);
            assert_eq!(parsed.as_ref().map(|it| (it.host.as_str(), it.port)), expected, "{text}");
        };
        check("API.example.com:443", Some(("api.example.com", 443)));
        check("*.example.com:443", Some(("*.example.com", 443)));
        check("[::1]:80", Some(("::1", 80)));
        check("127.0.0.1:5432", Some(("127.0.0.1", 5432)));
        for bad in ["example.com", "example.com:0", ":443", "*.:443", "a b:1", "::1:80", "*:443", "a:99999"] {
            check(bad, None);
        }
    }
}
