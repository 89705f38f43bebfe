//! `[servers.NAME]`: how a server is reached and which of its tools are shown.
//!
//! [`ServerTable`] is the table as written and the source of its JSON Schema; [`ServerSettings`] is what the
//! rest of Nonet gets, where a server is either a program or an address, never both.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{
    Globs, Risk, Secret,
    paths::Paths,
    schema::{named, with_keys},
    values::time,
};

/// One MCP server behind the gateway.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerSettings {
    /// The program to start or the address to reach.
    pub transport: Transport,
    /// Whether the server is started at all.
    pub enabled: bool,
    /// What the server is for, in a few words.
    pub description: Option<String>,
    /// Words that find the server's tools and that profiles choose by.
    pub tags: Vec<String>,
    /// The hard limit of one call.
    pub timeout: Duration,
    /// How long a start may take, up to the first list of tools.
    pub start_timeout: Duration,
    /// If given, only these tools are shown.
    pub allowed_tools: Option<Globs>,
    /// Tools that are neither shown nor called, even if allowed.
    pub blocked_tools: Globs,
    /// What happens when a tool of this server is called, unless the tool says otherwise.
    pub policy: Option<Policy>,
    /// Whether calls that may change something may still run at the same time.
    pub parallel: bool,
    /// Whether the server takes one call at a time, whoever makes it.
    pub serialize: bool,
    /// How many calls may be with the server at the same time; further ones wait.
    pub max_concurrency: usize,
    /// Whose process or connection it is.
    pub scope: ServerScope,
    /// Under which names clients are given what it offers.
    pub expose: Expose,
    /// What single tools have of their own, by the name their server gives them.
    pub tools: BTreeMap<String, ToolOverride>,
    /// What the keyring or `secrets.env` gave for any of its texts; hidden wherever it turns up.
    pub secrets: Vec<Secret>,
}

impl ServerSettings {
    /// Returns how many calls may be with the server at the same time.
    pub fn concurrency(&self) -> usize {
        if self.serialize { 1 } else { self.max_concurrency }
    }
}

/// How a server is reached.
#[derive(Clone, Debug, PartialEq)]
pub enum Transport {
    /// A child process that speaks on stdin and stdout.
    Stdio {
        /// The program: found through `PATH`, or a path made absolute.
        command: String,
        /// Its arguments, as written.
        args: Vec<String>,
        /// What it gets besides the variables that every child gets.
        env: BTreeMap<String, Secret>,
        /// The variables that it also gets from Nonet's own environment.
        inherit_env: Globs,
        /// The folder it runs in, made absolute.
        cwd: Option<PathBuf>,
    },
    /// An address that speaks streamable HTTP, or the old HTTP+SSE.
    Http {
        /// An `http` or `https` address; checked.
        url: String,
        /// Headers of each request; names and values are well-formed.
        headers: BTreeMap<String, Secret>,
        /// Whether the old HTTP+SSE is spoken from the start; else that is found out.
        sse: bool,
        /// How Nonet signs in, where the server wants that.
        oauth: OAuth,
    },
}

impl Transport {
    /// Whether Nonet signs in where the server wants that: `headers` with an `Authorization` do it otherwise.
    pub fn is_signed_in_to(&self) -> bool {
        match self {
            Self::Stdio { .. } => false,
            Self::Http { headers, .. } => {
                !headers.keys().any(|name| name.eq_ignore_ascii_case("authorization"))
            }
        }
    }
}

/// How Nonet signs in to a server with OAuth. All of it can be left out: what a server needs is found out when it asks for
/// a sign-in.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OAuth {
    /// The client that Nonet is for the sign-in server. Left out, Nonet registers itself. An https address is that of a
    /// client metadata document.
    #[schemars(length(min = 1), example = &"Iv23liB7wXyz")]
    pub client_id: Option<String>,
    /// The secret of that client, if it has one.
    #[schemars(with = "Option<String>", length(min = 1), example = &"${CLIENT_SECRET}")]
    pub client_secret: Option<Secret>,
    /// What is asked for. Left out, what the server says that it needs.
    #[schemars(example = json!(["files:read"]))]
    pub scopes: Vec<String>,
    /// Where the browser comes back to, where the client is registered with a fixed address: one of this machine, with a
    /// port. Left out, any free port of 127.0.0.1.
    #[schemars(extend("format" = "redirect-uri"), example = &"http://localhost:3118/callback")]
    pub redirect_uri: Option<String>,
    /// The sign-in server that is meant, by its `issuer`. Left out, the one that the server names.
    #[schemars(extend("format" = "http-url"), example = &"https://login.example.com")]
    pub issuer: Option<String>,
    /// `client_credentials`: Nonet signs in as itself, with `client_id` and `client_secret`, and no user is asked.
    pub grant: Grant,
    /// `true`: the sign-in server may be at a private address, such as 10.0.0.9, although `url` has a name.
    pub private_addresses: bool,
}

/// In whose name Nonet signs in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Grant {
    /// In that of the user, who agrees in a browser.
    #[default]
    AuthorizationCode,
    /// In its own (SEP-1046).
    ClientCredentials,
}

/// What one tool has of its own.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ToolOverride {
    /// What happens when this tool is called.
    pub policy: Option<Policy>,
    /// How much harm the tool can do, whatever its server or its name say.
    pub risk: Option<Risk>,
    /// Other words for the tool, in any language; search finds it by them.
    #[schemars(example = json!(["remove a page"]))]
    pub aliases: Vec<String>,
    /// Tags of this tool, besides its server's.
    #[schemars(example = json!(["writing"]))]
    pub tags: Vec<String>,
    /// Whether calls of this tool may run at the same time, whatever its server says.
    pub parallel: Option<bool>,
}

/// What happens when a tool is called.
/// In the order of their strictness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// It runs.
    Allow,
    /// The user is asked first.
    Approve,
    /// It never runs.
    Deny,
}

/// How many of a server there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ServerScope {
    /// One for all clients.
    #[default]
    Shared,
    /// One for each client, started with its first call and ended with its session, and one for the lists.
    Client,
}

/// Under which names clients are given what a server offers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Expose {
    /// Under names that begin with the server's; tools are found by searching, or listed as `tool_injection` says.
    #[default]
    Prefixed,
    /// Under its own names: its tools are listed before the nine, as the server defines them.
    Verbatim,
}

/// The transport by its name in the file. Left out, it is told from `command` or `url`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum TransportName {
    /// A child process.
    Stdio,
    /// Streamable HTTP; the old HTTP+SSE with a server that speaks only that.
    Http,
    /// The old HTTP+SSE (MCP 2024-11-05).
    Sse,
}

/// A server as written: a program (`command`) or an address (`url`).
#[derive(Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ServerTable {
    /// `stdio` or `http`; left out, it is told from `command` or `url`. `sse` is the old HTTP+SSE, which `http` finds
    /// out by itself where a server speaks only that.
    #[schemars(example = &"stdio")]
    pub transport: Option<TransportName>,
    /// The program to start: a name found through PATH, or a path (`~/` and paths relative to this
    /// file are understood).
    #[schemars(length(min = 1), example = &"npx")]
    pub command: Option<String>,
    /// The program's arguments, one text each.
    #[schemars(example = json!(["-y", "@modelcontextprotocol/server-memory"]))]
    pub args: Vec<String>,
    /// Environment variables for the program, besides PATH, HOME and the like, which it always gets.
    #[schemars(schema_with = "env_schema")]
    pub env: BTreeMap<String, Secret>,
    /// Variables of Nonet's own environment that the program gets too; names and patterns.
    #[schemars(schema_with = "inherit_env_schema")]
    pub inherit_env: Globs,
    /// The folder the program runs in; relative to this file.
    #[schemars(length(min = 1), example = &"~/projects")]
    pub cwd: Option<String>,
    /// The server's address, for streamable HTTP or the old HTTP+SSE.
    #[schemars(extend("format" = "http-url"), example = &"https://example.com/mcp")]
    pub url: Option<String>,
    /// Headers sent with each request to `url`.
    #[schemars(schema_with = "headers_schema")]
    pub headers: BTreeMap<String, Secret>,
    /// How Nonet signs in to `url` with OAuth (`nonet login`), where it needs to be told.
    pub oauth: Option<OAuth>,
    /// `false` keeps the entry but never starts the server.
    pub enabled: bool,
    /// What the server is for, in a few words; helps search.
    #[schemars(example = &"Issues and pull requests")]
    pub description: Option<String>,
    /// Words that find the server's tools and that profiles choose by.
    #[schemars(example = json!(["files"]))]
    pub tags: Vec<String>,
    /// The hard limit of one call.
    #[serde(with = "time")]
    #[schemars(schema_with = "time::schema")]
    pub timeout: Duration,
    /// How long a start may take. The first run of `npx` or `uvx` downloads the server.
    #[serde(with = "time")]
    #[schemars(schema_with = "time::schema")]
    pub start_timeout: Duration,
    /// If given, only the tools that match are shown.
    pub allowed_tools: Option<Globs>,
    /// Tools that match are invisible and cannot be called.
    pub blocked_tools: Globs,
    /// What happens when a tool of this server is called.
    pub policy: Option<Policy>,
    /// `true`: calls that may change something may run at the same time.
    pub parallel: bool,
    /// `true`: one call at a time, of whatever tool and whoever makes it, also where `parallel` or `max_concurrency` say
    /// otherwise. Further calls wait for their turn.
    pub serialize: bool,
    /// How many calls may be with the server at the same time; further ones wait for their turn.
    #[schemars(range(min = 1, max = 100_000))]
    pub max_concurrency: usize,
    /// Whether one of it serves all clients, or each client has its own. A client without a session (2026-07-28 over HTTP)
    /// uses the shared one.
    pub scope: ServerScope,
    /// `verbatim`: its tools are listed before the nine, and they and its prompts keep the names that it gives them.
    pub expose: Expose,
    /// Single tools, by the name their server gives them.
    pub tools: BTreeMap<String, ToolOverride>,
}

impl Default for ServerTable {
    fn default() -> Self {
        Self {
            transport: None,
            command: None,
            args: Vec::new(),
            env: BTreeMap::new(),
            inherit_env: Globs::default(),
            cwd: None,
            url: None,
            headers: BTreeMap::new(),
            oauth: None,
            enabled: true,
            description: None,
            tags: Vec::new(),
            timeout: Duration::from_secs(300),
            start_timeout: Duration::from_secs(60),
            allowed_tools: None,
            blocked_tools: Globs::default(),
            policy: None,
            parallel: false,
            serialize: false,
            max_concurrency: 64,
            scope: ServerScope::default(),
            expose: Expose::default(),
            tools: BTreeMap::new(),
        }
    }
}

impl ServerTable {
    /// The checked form. `shape` has already seen to it that `command` and `url` exclude each other.
    pub fn into_server(self, paths: &Paths, secrets: Vec<Secret>) -> ServerSettings {
        let sse = self.transport == Some(TransportName::Sse);
        let transport = match self.url {
            Some(url) => {
                Transport::Http { url, headers: self.headers, sse, oauth: self.oauth.unwrap_or_default() }
            }
            None => Transport::Stdio {
                command: paths.program(&self.command.unwrap_or_default()),
                args: self.args,
                env: self.env,
                inherit_env: self.inherit_env,
                cwd: self.cwd.map(|cwd| paths.resolve(cwd.as_ref())),
            },
        };
        ServerSettings {
            transport,
            enabled: self.enabled,
            description: self.description,
            tags: self.tags,
            timeout: self.timeout,
            start_timeout: self.start_timeout,
            allowed_tools: self.allowed_tools,
            blocked_tools: self.blocked_tools,
            policy: self.policy,
            parallel: self.parallel,
            serialize: self.serialize,
            max_concurrency: self.max_concurrency,
            scope: self.scope,
            expose: self.expose,
            tools: self.tools,
            secrets,
        }
    }
}

fn env_schema(_: &mut SchemaGenerator) -> Schema {
    let text = json_schema!({ "type": "string", "examples": ["warn"] });
    with_keys("env-name", text, json!({ "LOG_LEVEL": "warn" }))
}

pub(super) fn inherit_env_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "items": { "type": "string", "format": "glob", "examples": ["AWS_*"] },
        "examples": [["AWS_*", "KUBECONFIG"]],
    })
}

fn headers_schema(_: &mut SchemaGenerator) -> Schema {
    let text = named("header-value", "Bearer ${TOKEN}");
    with_keys("header-name", text, json!({ "Authorization": "Bearer ${TOKEN}" }))
}
