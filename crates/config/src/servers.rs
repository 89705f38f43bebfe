//! `[servers.NAME]`: how a server is reached and which of its tools are shown.
//!
//! [`ServerTable`] is the table as written and the source of its JSON Schema. Other rooms use
//! [`ServerSettings`], where a server is a program, an address or a REST service.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use nonet_api::{
    status::ProtocolRevision,
    tools::{OnChange, Policy, Risk},
};
use nonet_wire::Limits;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};

use super::{
    ApproveBy, Globs, Rate, RestSettings, Secret,
    paths::Paths,
    sandbox::{self, SandboxSettings, SandboxTable},
    schema::{named, with_keys},
    values::time,
};

/// The default hard limit of one call: to an MCP server, which may take long, and to a REST service.
const MCP_TIMEOUT: Duration = Duration::from_secs(300);
const REST_TIMEOUT: Duration = Duration::from_secs(30);

/// One MCP server or REST service behind the gateway. The keys of `[servers.NAME]`, except those that say how
/// it is reached.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
pub struct ServerSettings {
    /// The program to start or the address to reach.
    #[serde(skip)]
    pub transport: Transport,
    /// The hard limit of one call.
    #[serde(skip)]
    pub timeout: Duration,
    /// `false` keeps the entry but never starts the server.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// The purpose of the server in a few words; helps search.
    #[schemars(example = &"Issues and pull requests")]
    pub description: Option<String>,
    /// Where the entry comes from: the server in the registry, and its version. `nonet update --servers` reads it.
    #[schemars(example = &"io.github.example/weather@1.2.0")]
    pub registry: Option<String>,
    /// Words for search and for profiles.
    #[serde(default)]
    #[schemars(example = json!(["files"]))]
    pub tags: Vec<String>,
    /// The time limit of a start. The first run of `npx` or `uvx` downloads the server.
    #[serde(with = "time", default = "start_timeout")]
    #[schemars(schema_with = "time::schema")]
    pub start_timeout: Duration,
    /// If set, only matching tools are shown.
    pub allowed_tools: Option<Globs>,
    /// Matching tools are hidden and not callable, and so are prompts and resources whose name or URI
    /// matches.
    #[serde(default)]
    pub blocked_tools: Globs,
    /// What happens when a tool of this server is called.
    pub policy: Option<Policy>,
    /// `true`: resources that the server does not list can be read by their URIs. A resource that a result
    /// links to can be read in any case, by the session that got the link.
    #[serde(default)]
    pub unlisted_resources: bool,
    /// How much harm it can do to read the server's resources, for `max_risk` and policies. Unlisted
    /// resources are `medium` at least.
    #[serde(default = "low")]
    pub resources_risk: Risk,
    /// How much harm it can do to get the server's prompts.
    #[serde(default = "low")]
    pub prompts_risk: Risk,
    /// What happens when the server changes a definition that was trusted, instead of `[gateway]`'s.
    pub on_change: Option<OnChange>,
    /// The oldest revision of the protocol that the server may speak, instead of `[gateway]`'s.
    pub min_protocol: Option<ProtocolRevision>,
    /// Who can approve calls of its tools, instead of `[gateway]`'s.
    pub approve_by: Option<ApproveBy>,
    /// `true`: calls that may change something may run concurrently.
    #[serde(default)]
    pub parallel: bool,
    /// The most concurrent calls on the server; further calls wait for their turn. `1`: one call at a time,
    /// regardless of `parallel`. In a cluster, a number that is given here holds for all replicas together,
    /// unless the server is a program of each replica. Default: 64 for each replica.
    #[schemars(range(min = 1, max = 100_000))]
    pub max_concurrency: Option<usize>,
    /// How many calls of the server's tools may be made, whoever makes them: `"60/m"`, also per `s` and `h`,
    /// and with `burst 10` how many of them at once. Further calls are refused until there is room.
    pub rate: Option<Rate>,
    /// Whether the server, or one of its tools, gets no calls for a while after five failures in a row. A
    /// failure is a call that got no answer: its connection was lost, its time was over, or a REST service
    /// was not reached.
    #[serde(default = "yes")]
    pub breaker: bool,
    /// Whether all clients share one instance of the server, or each client has its own. A client without a
    /// session (2026-07-28 over HTTP) uses the shared instance.
    #[serde(default)]
    pub scope: ServerScope,
    /// Where the program runs in a `[cluster]`: `each` replica has its own; `one` replica runs it for all; or
    /// one of the replicas with a label, `label:NAME`. Another replica takes over when that one stops.
    #[serde(default)]
    #[schemars(schema_with = "placement_schema")]
    pub placement: Placement,
    /// `verbatim`: the server's tools are listed before the nine, and tools and prompts keep the server's
    /// names.
    #[serde(default)]
    pub expose: Expose,
    /// Whose account Nonet uses at the server: one for all (`shared`), or that of each person who has signed in
    /// at the gateway (`user`), with a connection for each. Or `{ exchange = {...} }`: a token for the server
    /// that the issuer gives for the person's own.
    #[serde(default)]
    #[schemars(schema_with = "credentials_schema")]
    pub credentials: ServerCredentials,
    /// What happens to secrets in params and answers of this server. Default: as in `[gateway]`.
    pub leaks: Option<OnLeak>,
    /// What happens to text in answers of this server that reads like instructions to a model. Default: as in
    /// `[gateway]`.
    pub injections: Option<OnInjection>,
    /// Calls of the server's tools after each connect, in this order, before the server counts as ready.
    /// Their time counts within `start_timeout`.
    #[serde(default)]
    #[schemars(length(max = 32))]
    pub setup: Vec<SetupCall>,
    /// Settings of single tools, by the server's own names.
    #[serde(default)]
    pub tools: BTreeMap<String, ToolOverride>,
    /// Values from the keyring or `secrets.env`; masked wherever they appear.
    #[serde(skip)]
    pub secrets: Vec<Secret>,
    /// The session that owns the server; `None` for a server of the file.
    #[serde(skip)]
    pub session: Option<u64>,
    /// The size limits of its messages.
    #[serde(skip)]
    pub limits: Limits,
    /// Whether the server is told that its user interfaces are shown.
    #[serde(skip)]
    pub ui: bool,
}

fn yes() -> bool {
    true
}

fn start_timeout() -> Duration {
    Duration::from_secs(60)
}

fn low() -> Risk {
    Risk::Low
}

/// The default limit of concurrent calls to a server.
const CONCURRENCY: usize = 64;

impl ServerSettings {
    /// Returns the limit of concurrent calls to the server.
    pub fn concurrency(&self) -> usize {
        self.max_concurrency.unwrap_or(CONCURRENCY)
    }

    /// Returns the limit of concurrent calls that all replicas of a cluster share: the configured limit of a
    /// server that all replicas reach. A locally started program belongs to its replica.
    pub fn shared_concurrency(&self) -> Option<usize> {
        self.max_concurrency.filter(|_| !matches!(self.transport, Transport::Stdio { .. }))
    }

    /// Whether the server is a program in a sandbox.
    pub fn is_sandboxed(&self) -> bool {
        matches!(&self.transport, Transport::Stdio { sandbox: Some(_), .. })
    }
}

/// How a server is reached.
#[derive(Clone, Debug, PartialEq)]
pub enum Transport {
    /// A child process that speaks on stdin and stdout.
    Stdio {
        /// The program: a name for `PATH`, or an absolute path.
        command: String,
        /// Its arguments, as written.
        args: Vec<String>,
        /// Its variables, in addition to the usual ones.
        env: BTreeMap<String, Secret>,
        /// The variables that it inherits from Nonet's environment.
        inherit_env: Globs,
        /// The absolute working directory.
        cwd: Option<PathBuf>,
        /// What it may access; `None`: whatever the user can.
        sandbox: Option<Box<SandboxSettings>>,
    },
    /// An address that speaks streamable HTTP or legacy SSE.
    Http {
        /// An `http` or `https` address; checked.
        url: String,
        /// Headers of each request; names and values are well-formed.
        headers: BTreeMap<String, Secret>,
        /// Whether to use legacy SSE from the start instead of detecting it.
        sse: bool,
        /// How Nonet signs in, if the server requests it.
        oauth: OAuth,
    },
    /// A REST service.
    Rest(Arc<RestSettings>),
}

impl Default for Transport {
    fn default() -> Self {
        Self::Stdio {
            command: String::new(),
            args: Vec::new(),
            env: BTreeMap::new(),
            inherit_env: Globs::default(),
            cwd: None,
            sandbox: None,
        }
    }
}

impl Transport {
    /// Returns where Nonet signs in on request, with which headers, and how. `None` if `headers` contain an
    /// `Authorization`, and for a REST service without a `base_url`, so that no document decides where tokens
    /// go.
    pub fn sign_in(&self) -> Option<(&str, &BTreeMap<String, Secret>, &OAuth)> {
        let (url, headers, oauth) = match self {
            Self::Stdio { .. } => return None,
            Self::Http { url, headers, oauth, .. } => (url, headers, oauth),
            Self::Rest(rest) => (rest.base_url.as_ref()?, &rest.headers, &rest.oauth),
        };
        let is_authorized = headers.keys().any(|name| name.eq_ignore_ascii_case("authorization"));
        (!is_authorized).then_some((url.as_str(), headers, oauth))
    }
}

/// How Nonet signs in to a server with OAuth. Every key is optional: Nonet finds out what the server needs
/// when the server requests a sign-in.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OAuth {
    /// Nonet's client id at the sign-in server, or the https address of a client metadata document. Default:
    /// Nonet registers itself.
    #[schemars(length(min = 1), example = &"Iv23liB7wXyz")]
    pub client_id: Option<String>,
    /// The secret of that client, if it has one.
    #[schemars(with = "Option<String>", length(min = 1), example = &"${CLIENT_SECRET}")]
    pub client_secret: Option<Secret>,
    /// The scopes to request. Default: the scopes that the server needs.
    #[schemars(example = json!(["files:read"]))]
    pub scopes: Vec<String>,
    /// The redirect address, if the client is registered with a fixed one: on this machine, with a port.
    /// Default: any free port of 127.0.0.1.
    #[schemars(extend("format" = "redirect-uri"), example = &"http://localhost:3118/callback")]
    pub redirect_uri: Option<String>,
    /// The `issuer` of the sign-in server. Default: the sign-in server that the server names.
    #[schemars(extend("format" = "http-url"), example = &"https://login.example.com")]
    pub issuer: Option<String>,
    /// `client_credentials`: Nonet signs in as itself, with `client_id` and `client_secret`, without a user.
    pub grant: Grant,
    /// `true`: the sign-in server may be at a private address, such as 10.0.0.9, even if `url` has a host
    /// name.
    pub private_addresses: bool,
}

/// The identity with which Nonet signs in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Grant {
    /// As the user, who agrees in a browser.
    #[default]
    AuthorizationCode,
    /// As itself (SEP-1046).
    ClientCredentials,
}

/// A call that Nonet makes after each connect, before the server counts as ready.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetupCall {
    /// The tool, by the server's own name.
    #[schemars(length(min = 1), example = &"select_project")]
    pub tool: String,
    /// Its params.
    #[serde(default)]
    #[schemars(example = json!({ "path": "~/projects/shop" }))]
    pub params: Map<String, Value>,
    /// `true`: if the call fails, the server is ready all the same, and the log has a warning. Default: the
    /// connection fails and is tried again.
    #[serde(default)]
    pub optional: bool,
}

/// Settings of a single tool.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ToolOverride {
    /// What happens when this tool is called.
    pub policy: Option<Policy>,
    /// How much harm the tool can do, regardless of its server's hints and its name.
    pub risk: Option<Risk>,
    /// The tool's title, instead of its server's.
    #[schemars(length(min = 1), example = &"Write a file")]
    pub title: Option<String>,
    /// The tool's description, instead of its server's.
    #[schemars(length(min = 1), example = &"Writes a text to a file and replaces what was there.")]
    pub description: Option<String>,
    /// The tool's name for clients, rules and patterns on full names, instead of its server's. The server's
    /// name still leads to the tool. Not with `expose = "verbatim"`.
    #[schemars(extend("format" = "plain-name"), example = &"save_text")]
    pub rename: Option<String>,
    /// Params of calls to copy, shown by `get_tool`. An example that does not fit the input schema is left
    /// out, with a warning.
    #[schemars(example = json!([{ "path": "notes.md" }]))]
    pub examples: Vec<Map<String, Value>>,
    /// Other words for the tool, in any language, for search.
    #[schemars(example = json!(["remove a page"]))]
    pub aliases: Vec<String>,
    /// Tags of this tool, besides its server's.
    #[schemars(example = json!(["writing"]))]
    pub tags: Vec<String>,
    /// Whether calls of this tool may run concurrently, regardless of its server's setting.
    pub parallel: Option<bool>,
    /// How many calls of this tool may be made, within its server's `rate`.
    pub rate: Option<Rate>,
}

/// How many instances of a server run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ServerScope {
    /// One for all clients.
    #[default]
    Shared,
    /// One per client, started with its first call and ended with its session, and one for the lists.
    Client,
}

/// Whose account Nonet uses at a server.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ServerCredentials {
    /// One for all.
    #[default]
    Shared,
    /// That of each person, who signs in to the server.
    User,
    /// That of each person, by a token that is exchanged for their own.
    Exchange(Arc<TokenExchange>),
}

impl ServerCredentials {
    /// Whether each person has an account of their own.
    pub fn are_personal(&self) -> bool {
        *self != Self::Shared
    }
}

/// How a person's token is exchanged for one of a server (RFC 8693).
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TokenExchange {
    /// The address that exchanges tokens. Default: the token endpoint of the issuer of the person's token.
    #[schemars(extend("format" = "issuer-url"), example = &"https://login.example.com/token")]
    pub token_url: Option<String>,
    /// Nonet's client id there.
    #[schemars(length(min = 1), example = &"nonet")]
    pub client_id: Option<String>,
    /// The secret of that client.
    #[schemars(with = "Option<String>", length(min = 1), example = &"${NONET_CLIENT_SECRET}")]
    pub client_secret: Option<Secret>,
    /// For whom the new token is, in the issuer's words. With `id_jag`: the `issuer` of the server's own
    /// sign-in.
    #[schemars(length(min = 1), example = &"github")]
    pub audience: Option<String>,
    /// The scopes of the new token. Default: the issuer decides.
    #[schemars(example = json!(["repo"]))]
    pub scopes: Vec<String>,
    /// `true`: the issuer gives an identity assertion (ID-JAG), for which the server's own sign-in gives the
    /// token: the extension "enterprise-managed authorization" of MCP. Nonet's client there is that of
    /// `oauth`.
    pub id_jag: bool,
}

impl<'de> Deserialize<'de> for ServerCredentials {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Word(String),
            Table { exchange: Arc<TokenExchange> },
        }
        match Written::deserialize(deserializer)? {
            Written::Word(word) => match word.as_str() {
                "shared" => Ok(Self::Shared),
                "user" => Ok(Self::User),
                _ => Err(serde::de::Error::custom(CREDENTIALS)),
            },
            Written::Table { exchange } => Ok(Self::Exchange(exchange)),
        }
    }
}

/// What `credentials` can be.
const CREDENTIALS: &str = "must be `shared`, `user` or `{ exchange = {...} }`";

impl ServerCredentials {
    /// Returns why a word is not whose account it may be.
    pub(super) fn check(word: &str) -> Result<(), String> {
        if ["shared", "user"].contains(&word) { Ok(()) } else { Err(CREDENTIALS.into()) }
    }
}

fn credentials_schema(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": ["string", "object"],
        "format": "credentials",
        "default": "shared",
        "properties": { "exchange": generator.subschema_for::<TokenExchange>() },
        "required": ["exchange"],
        "additionalProperties": false,
        "examples": ["user"],
    })
}

/// On which replicas of a cluster a program runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Placement {
    /// On each of them.
    #[default]
    Each,
    /// On one of them, whichever.
    One,
    /// On one of those with this label.
    Label(String),
}

impl Placement {
    /// Returns why a text is not a placement.
    pub(super) fn check(text: &str) -> Result<(), String> {
        Self::try_from(text.to_owned()).map(drop)
    }
}

impl TryFrom<String> for Placement {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        match (text.as_str(), text.strip_prefix("label:")) {
            ("each", _) => Ok(Self::Each),
            ("one", _) => Ok(Self::One),
            (_, Some(label)) if !label.trim().is_empty() => Ok(Self::Label(label.into())),
            _ => Err("is neither `each`, `one` nor `label:NAME`".into()),
        }
    }
}

/// What happens to secrets in params and answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnLeak {
    /// Nothing is looked for.
    Off,
    /// Keys and card numbers are told in a notice. Secrets of this file are taken out of answers, and never
    /// sent to another server than their own.
    #[default]
    Tell,
    /// As `tell`; keys and card numbers are taken out of answers as well.
    Redact,
    /// An answer with any of them is withheld, and a call with any of them in its params is refused.
    Block,
}

/// What happens to text in answers that reads like instructions to a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnInjection {
    /// Nothing is looked for.
    Off,
    /// A notice says what was found, and where.
    #[default]
    Mark,
}

/// The names under which clients see a server's tools and prompts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Expose {
    /// With the server's name as a prefix; tools are found by search, or listed according to
    /// `tool_injection`.
    #[default]
    Prefixed,
    /// With the server's own names and definitions, listed before the nine.
    Verbatim,
}

/// The transport by its name in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum TransportName {
    /// A child process.
    Stdio,
    /// Streamable HTTP; legacy SSE with a server that supports nothing else.
    Http,
    /// Legacy SSE (MCP 2024-11-05).
    Sse,
}

/// A server as written: a program (`command`), an address (`url`), or a REST service (`openapi`,
/// `endpoints`).
#[derive(Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub(super) struct ServerTable {
    /// `stdio`, `http` or `sse`. Default: from `command` or `url`. `sse` is the legacy SSE transport, which
    /// `http` also detects.
    #[schemars(example = &"stdio")]
    pub transport: Option<TransportName>,
    /// The program to start: a name on the PATH, or a path (absolute, with `~/`, or relative to this file).
    #[schemars(length(min = 1), example = &"npx")]
    pub command: Option<String>,
    /// The program's arguments.
    #[serde(default)]
    #[schemars(example = json!(["-y", "@modelcontextprotocol/server-memory"]))]
    pub args: Vec<String>,
    /// Environment variables for the program, in addition to PATH, HOME and the like.
    #[serde(default)]
    #[schemars(schema_with = "env_schema")]
    pub env: BTreeMap<String, Secret>,
    /// Variables of Nonet's environment that the program inherits: names and patterns.
    #[serde(default)]
    #[schemars(schema_with = "inherit_env_schema")]
    pub inherit_env: Globs,
    /// The working directory of the program, relative to this file.
    #[schemars(length(min = 1), example = &"~/projects")]
    pub cwd: Option<String>,
    /// What the program may reach: `"off"`, `"standard"` (its folders, the system's, and the network), or a
    /// table. Default: `[gateway]`'s.
    #[serde(default)]
    #[schemars(schema_with = "sandbox::schema")]
    pub sandbox: Option<SandboxTable>,
    /// The server's address, for streamable HTTP or legacy SSE.
    #[schemars(extend("format" = "http-url"), example = &"https://example.com/mcp")]
    pub url: Option<String>,
    /// Headers sent with each request to `url`, or to the REST service.
    #[serde(default)]
    #[schemars(schema_with = "headers_schema")]
    pub headers: BTreeMap<String, Secret>,
    /// How Nonet signs in to `url` or `base_url` with OAuth (`nonet login`), if the defaults do not suffice.
    pub oauth: Option<OAuth>,
    /// The hard limit of one call. Default: 5m, at a REST service 30s.
    #[serde(default, deserialize_with = "time::option::deserialize")]
    #[schemars(schema_with = "time::schema")]
    pub timeout: Option<Duration>,
    #[serde(flatten)]
    pub rest: RestSettings,
    #[serde(flatten)]
    pub settings: ServerSettings,
}

impl ServerTable {
    /// Returns the checked form. `check` has made sure that `command`, `url` and the keys of a REST service
    /// exclude each other.
    pub(crate) fn into_server(self, paths: &Paths, secrets: Vec<Secret>, limits: Limits) -> ServerSettings {
        let mut rest = self.rest;
        let is_rest = rest.openapi.is_some() || !rest.endpoints.is_empty();
        let transport = match self.url {
            _ if is_rest => {
                rest.openapi = rest.openapi.map(|document| document.located(paths));
                rest.headers = self.headers;
                rest.has_oauth = self.oauth.is_some();
                rest.oauth = self.oauth.unwrap_or_default();
                Transport::Rest(Arc::new(rest))
            }
            Some(url) => Transport::Http {
                url,
                headers: self.headers,
                sse: self.transport == Some(TransportName::Sse),
                oauth: self.oauth.unwrap_or_default(),
            },
            None => Transport::Stdio {
                command: paths.program(&self.command.unwrap_or_default()),
                args: self.args,
                env: self.env,
                inherit_env: self.inherit_env,
                cwd: self.cwd.map(|cwd| paths.resolve(cwd.as_ref())),
                sandbox: self.sandbox.and_then(|sandbox| sandbox.into_settings(paths)).map(Box::new),
            },
        };
        let timeout = self.timeout.unwrap_or(if is_rest { REST_TIMEOUT } else { MCP_TIMEOUT });
        ServerSettings { transport, timeout, secrets, limits, ..self.settings }
    }
}

fn placement_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "format": "placement", "default": "each", "examples": ["one", "label:gpu"] })
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

pub(super) fn headers_schema(_: &mut SchemaGenerator) -> Schema {
    let text = named("header-value", "Bearer ${TOKEN}");
    with_keys("header-name", text, json!({ "Authorization": "Bearer ${TOKEN}" }))
}
