//! `[servers.NAME]`: how a server is reached and which of its tools are shown.
//!
//! [`ServerTable`] is the table as written and the source of its JSON Schema. Other rooms use [`ServerSettings`], where a server
//! is a program, an address or a REST service.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use nonet_wire::Limits;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{
    ApproveBy, Endpoint, Globs, OnChange, Rate, RestSettings, Risk, Secret,
    paths::Paths,
    rest,
    sandbox::{self, SandboxSettings, SandboxTable},
    schema::{named, with_keys},
    values::time,
};

/// The default hard limit of one call: to an MCP server, which may take long, and to a REST service.
const MCP_TIMEOUT: Duration = Duration::from_secs(300);
const REST_TIMEOUT: Duration = Duration::from_secs(30);

/// One MCP server or REST service behind the gateway.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerSettings {
    /// The program to start or the address to reach.
    pub transport: Transport,
    /// Whether the server is started.
    pub enabled: bool,
    /// The server's purpose, in a few words.
    pub description: Option<String>,
    /// Words for search and for profiles.
    pub tags: Vec<String>,
    /// The hard limit of one call.
    pub timeout: Duration,
    /// The time limit of a start, up to the first list of tools.
    pub start_timeout: Duration,
    /// If given, only these tools are shown.
    pub allowed_tools: Option<Globs>,
    /// Tools that are neither shown nor called, even if allowed.
    pub blocked_tools: Globs,
    /// What happens when a tool of this server is called, unless the tool has its own policy.
    pub policy: Option<Policy>,
    /// Whether unlisted resources can be read by their URIs.
    pub unlisted_resources: bool,
    /// The risk of reading its resources.
    pub resources_risk: Risk,
    /// The risk of getting its prompts.
    pub prompts_risk: Risk,
    /// What happens when the server changes a definition, instead of `[gateway]`'s.
    pub on_change: Option<OnChange>,
    /// Who can approve calls of its tools, instead of `[gateway]`'s.
    pub approve_by: Option<ApproveBy>,
    /// Whether calls that may change something may still run concurrently.
    pub parallel: bool,
    /// Whether the server handles one call at a time, regardless of the caller.
    pub serialize: bool,
    /// The most concurrent calls to the server, if configured; further calls wait.
    pub max_concurrency: Option<usize>,
    /// How many calls of its tools are allowed, regardless of the caller.
    pub rate: Option<Rate>,
    /// When calls are suspended.
    pub breaker: BreakerSettings,
    /// Whether clients share the server's process or connection.
    pub scope: ServerScope,
    /// On which replicas of a cluster the program runs.
    pub placement: Placement,
    /// The names of its tools and prompts.
    pub expose: Expose,
    /// How secrets in answers and params are handled, if not as in `[gateway]`.
    pub leaks: Option<OnLeak>,
    /// Whether instructions in answers are marked, if not as in `[gateway]`.
    pub injections: Option<OnInjection>,
    /// Calls made after each connect, before the server is ready.
    pub setup: Vec<SetupCall>,
    /// Settings of single tools, by the server's own names.
    pub tools: BTreeMap<String, ToolOverride>,
    /// Values from the keyring or `secrets.env`; masked wherever they appear.
    pub secrets: Vec<Secret>,
    /// The session that owns the server; `None` for a server of the file.
    pub session: Option<u64>,
    /// The size limits of its messages.
    pub limits: Limits,
}

/// The default limit of concurrent calls to a server.
const CONCURRENCY: usize = 64;

impl ServerSettings {
    /// Returns the limit of concurrent calls to the server.
    pub fn concurrency(&self) -> usize {
        self.stated_concurrency().unwrap_or(CONCURRENCY)
    }

    /// Returns the limit of concurrent calls that all replicas of a cluster share: the configured limit of a server that all
    /// replicas reach. A locally started program belongs to its replica.
    pub fn shared_concurrency(&self) -> Option<usize> {
        self.stated_concurrency().filter(|_| !matches!(self.transport, Transport::Stdio { .. }))
    }

    fn stated_concurrency(&self) -> Option<usize> {
        if self.serialize { Some(1) } else { self.max_concurrency }
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

impl Transport {
    /// Returns where Nonet signs in on request, with which headers, and how. `None` if `headers` contain an `Authorization`, and
    /// for a REST service without a `base_url`, so that no document decides where tokens go.
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

/// How Nonet signs in to a server with OAuth. Every key is optional: Nonet finds out what the server needs when the server
/// requests a sign-in.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OAuth {
    /// Nonet's client id at the sign-in server, or the https address of a client metadata document. Default: Nonet
    /// registers itself.
    #[schemars(length(min = 1), example = &"Iv23liB7wXyz")]
    pub client_id: Option<String>,
    /// The secret of that client, if it has one.
    #[schemars(with = "Option<String>", length(min = 1), example = &"${CLIENT_SECRET}")]
    pub client_secret: Option<Secret>,
    /// The scopes to request. Default: the scopes that the server needs.
    #[schemars(example = json!(["files:read"]))]
    pub scopes: Vec<String>,
    /// The redirect address, if the client is registered with a fixed one: on this machine, with a port. Default: any free
    /// port of 127.0.0.1.
    #[schemars(extend("format" = "redirect-uri"), example = &"http://localhost:3118/callback")]
    pub redirect_uri: Option<String>,
    /// The `issuer` of the sign-in server. Default: the sign-in server that the server names.
    #[schemars(extend("format" = "http-url"), example = &"https://login.example.com")]
    pub issuer: Option<String>,
    /// `client_credentials`: Nonet signs in as itself, with `client_id` and `client_secret`, without a user.
    pub grant: Grant,
    /// `true`: the sign-in server may be at a private address, such as 10.0.0.9, even if `url` has a host name.
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
    /// `true`: if the call fails, the server is ready all the same, and the log has a warning. Default: the connection fails
    /// and is tried again.
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
    /// The tool's name for clients, rules and patterns on full names, instead of its server's. The server's name still leads
    /// to the tool. Not with `expose = "verbatim"`.
    #[schemars(extend("format" = "plain-name"), example = &"save_text")]
    pub rename: Option<String>,
    /// Params of calls to copy, shown by `get_tool`. An example that does not fit the input schema is left out, with a
    /// warning.
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

/// When a server that keeps failing gets no calls for a while. A failure is a call that got no answer: its connection was
/// lost, its time was over, or a REST service was not reached. A tool that says itself that it failed has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BreakerSettings {
    /// How many failures in a row cut off a tool, or the server if they are of several of its tools. 0: none do.
    #[schemars(range(min = 0, max = 1_000))]
    pub failures: u32,
    /// How long until one call may try again. Doubles with each try that fails, up to 5 minutes.
    #[serde(with = "time")]
    #[schemars(schema_with = "time::schema")]
    pub wait: Duration,
}

impl Default for BreakerSettings {
    fn default() -> Self {
        Self { failures: 5, wait: Duration::from_secs(10) }
    }
}

/// What happens when a tool is called, in order of strictness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// The call runs.
    Allow,
    /// The user is asked first.
    Approve,
    /// The call never runs.
    Deny,
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
    /// Keys and card numbers are told in a notice. Secrets of this file are taken out of answers, and never sent to another
    /// server than their own.
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
    /// With the server's name as a prefix; tools are found by search, or listed according to `tool_injection`.
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

/// A server as written: a program (`command`), an address (`url`), or a REST service (`openapi`, `endpoints`).
#[derive(Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ServerTable {
    /// `stdio`, `http` or `sse`. Default: from `command` or `url`. `sse` is the legacy SSE transport, which `http` also
    /// detects.
    #[schemars(example = &"stdio")]
    pub transport: Option<TransportName>,
    /// The program to start: a name on the PATH, or a path (absolute, with `~/`, or relative to this file).
    #[schemars(length(min = 1), example = &"npx")]
    pub command: Option<String>,
    /// The program's arguments.
    #[schemars(example = json!(["-y", "@modelcontextprotocol/server-memory"]))]
    pub args: Vec<String>,
    /// Environment variables for the program, in addition to PATH, HOME and the like.
    #[schemars(schema_with = "env_schema")]
    pub env: BTreeMap<String, Secret>,
    /// Variables of Nonet's environment that the program inherits: names and patterns.
    #[schemars(schema_with = "inherit_env_schema")]
    pub inherit_env: Globs,
    /// The working directory of the program, relative to this file.
    #[schemars(length(min = 1), example = &"~/projects")]
    pub cwd: Option<String>,
    /// What the program may reach: `"off"`, `"standard"` (its folders, the system's, and the network), or a table. Default:
    /// `[gateway]`'s.
    #[schemars(schema_with = "sandbox::schema")]
    pub sandbox: Option<SandboxTable>,
    /// The server's address, for streamable HTTP or legacy SSE.
    #[schemars(extend("format" = "http-url"), example = &"https://example.com/mcp")]
    pub url: Option<String>,
    /// The OpenAPI document (3.0 or 3.1) of a REST service, whose operations become tools: a file (absolute, with `~/`, or
    /// relative to this file) or an address.
    #[schemars(extend("format" = "openapi"), example = &"https://api.example.com/openapi.json")]
    pub openapi: Option<String>,
    /// Requests of a REST service, written by hand, by the names of their tools.
    #[schemars(schema_with = "endpoints_schema")]
    pub endpoints: BTreeMap<String, Endpoint>,
    /// The address of a REST service, which paths are appended to. Its query, if it has one, is part of each request. Default:
    /// the address in the document.
    #[schemars(extend("format" = "base-url"), example = &"https://api.example.com/v1")]
    pub base_url: Option<String>,
    /// Only operations with these names become tools.
    #[schemars(example = json!(["get_*", "list_*"]))]
    pub operations: Option<Globs>,
    /// Headers of a REST service's responses that are shown with its answers.
    #[schemars(schema_with = "headers_out_schema")]
    pub headers_out: Vec<String>,
    /// The longest answer of a REST service, in bytes. Default: 10,000,000.
    #[schemars(range(min = 1_000, max = 256_000_000), example = 50_000_000)]
    pub max_response_bytes: Option<usize>,
    /// `true`: allows a private address, such as 10.0.0.9, behind a public host name of a REST service.
    pub private_addresses: bool,
    /// Headers sent with each request to `url`, or to the REST service.
    #[schemars(schema_with = "headers_schema")]
    pub headers: BTreeMap<String, Secret>,
    /// How Nonet signs in to `url` or `base_url` with OAuth (`nonet login`), if the defaults do not suffice.
    pub oauth: Option<OAuth>,
    /// `false` keeps the entry but never starts the server.
    pub enabled: bool,
    /// The purpose of the server in a few words; helps search.
    #[schemars(example = &"Issues and pull requests")]
    pub description: Option<String>,
    /// Words for search and for profiles.
    #[schemars(example = json!(["files"]))]
    pub tags: Vec<String>,
    /// The hard limit of one call. Default: 5m, at a REST service 30s.
    #[serde(deserialize_with = "time::option::deserialize")]
    #[schemars(schema_with = "time::schema")]
    pub timeout: Option<Duration>,
    /// The time limit of a start. The first run of `npx` or `uvx` downloads the server.
    #[serde(with = "time")]
    #[schemars(schema_with = "time::schema")]
    pub start_timeout: Duration,
    /// If set, only matching tools are shown.
    pub allowed_tools: Option<Globs>,
    /// Matching tools are hidden and not callable, and so are prompts and resources whose name or URI matches.
    pub blocked_tools: Globs,
    /// What happens when a tool of this server is called.
    pub policy: Option<Policy>,
    /// `true`: resources that the server does not list can be read by their URIs. A resource that a result links to can be
    /// read in any case, by the session that got the link.
    pub unlisted_resources: bool,
    /// How much harm it can do to read the server's resources, for `max_risk` and policies. Unlisted resources are `medium`
    /// at least.
    pub resources_risk: Risk,
    /// How much harm it can do to get the server's prompts.
    pub prompts_risk: Risk,
    /// What happens when the server changes a definition that was trusted, instead of `[gateway]`'s.
    pub on_change: Option<OnChange>,
    /// Who can approve calls of its tools, instead of `[gateway]`'s.
    pub approve_by: Option<ApproveBy>,
    /// `true`: calls that may change something may run concurrently.
    pub parallel: bool,
    /// `true`: one call at a time, for all tools and callers, regardless of `parallel` and `max_concurrency`. Further calls
    /// wait for their turn.
    pub serialize: bool,
    /// The most concurrent calls on the server; further calls wait for their turn. In a cluster, a number that is given here holds for
    /// all replicas together, unless the server is a program of each replica. Default: 64 for each replica.
    #[schemars(range(min = 1, max = 100_000))]
    pub max_concurrency: Option<usize>,
    /// How many calls of the server's tools may be made, whoever makes them: `"60/m"`, also per `s` and `h`, and with
    /// `burst 10` how many of them at once. Further calls are refused until there is room.
    pub rate: Option<Rate>,
    /// When the server, or one of its tools, gets no calls for a while because calls get no answer.
    pub breaker: BreakerSettings,
    /// Whether all clients share one instance of the server, or each client has its own. A client without a session
    /// (2026-07-28 over HTTP) uses the shared instance.
    pub scope: ServerScope,
    /// Where the program runs in a `[cluster]`: `each` replica has its own; `one` replica runs it for all; or one of the replicas
    /// with a label, `label:NAME`. Another replica takes over when that one stops.
    #[schemars(schema_with = "placement_schema")]
    pub placement: Placement,
    /// `verbatim`: the server's tools are listed before the nine, and tools and prompts keep the server's names.
    pub expose: Expose,
    /// What happens to secrets in params and answers of this server. Default: as in `[gateway]`.
    pub leaks: Option<OnLeak>,
    /// What happens to text in answers of this server that reads like instructions to a model. Default: as in `[gateway]`.
    pub injections: Option<OnInjection>,
    /// Calls of the server's tools after each connect, in this order, before the server counts as ready. Their time counts
    /// within `start_timeout`.
    #[schemars(length(max = 32))]
    pub setup: Vec<SetupCall>,
    /// Settings of single tools, by the server's own names.
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
            sandbox: None,
            url: None,
            openapi: None,
            endpoints: BTreeMap::new(),
            base_url: None,
            operations: None,
            headers_out: Vec::new(),
            max_response_bytes: None,
            private_addresses: false,
            headers: BTreeMap::new(),
            oauth: None,
            enabled: true,
            description: None,
            tags: Vec::new(),
            timeout: None,
            start_timeout: Duration::from_secs(60),
            allowed_tools: None,
            blocked_tools: Globs::default(),
            policy: None,
            unlisted_resources: false,
            resources_risk: Risk::Low,
            prompts_risk: Risk::Low,
            on_change: None,
            approve_by: None,
            parallel: false,
            serialize: false,
            max_concurrency: None,
            rate: None,
            breaker: BreakerSettings::default(),
            scope: ServerScope::default(),
            placement: Placement::default(),
            expose: Expose::default(),
            leaks: None,
            injections: None,
            setup: Vec::new(),
            tools: BTreeMap::new(),
        }
    }
}

impl ServerTable {
    /// Returns the checked form. `check` has made sure that `command`, `url` and the keys of a REST service exclude each other.
    pub(crate) fn into_server(
        mut self,
        paths: &Paths,
        secrets: Vec<Secret>,
        limits: Limits,
    ) -> ServerSettings {
        let sse = self.transport == Some(TransportName::Sse);
        let is_rest = self.openapi.is_some() || !self.endpoints.is_empty();
        let timeout = self.timeout.unwrap_or(if is_rest { REST_TIMEOUT } else { MCP_TIMEOUT });
        for (name, endpoint) in &self.endpoints {
            let tool = self.tools.entry(name.clone()).or_default();
            tool.risk = tool.risk.or(endpoint.risk);
            tool.tags.extend(endpoint.tags.iter().cloned());
        }
        let transport = match self.url {
            _ if is_rest => Transport::Rest(Arc::new(RestSettings {
                openapi: self.openapi.map(|document| rest::OpenApi::new(&document, paths)),
                endpoints: self.endpoints,
                base_url: self.base_url,
                operations: self.operations,
                headers: self.headers,
                headers_out: self.headers_out,
                max_response_bytes: self.max_response_bytes.unwrap_or(rest::MAX_RESPONSE_BYTES),
                private_addresses: self.private_addresses,
                has_oauth: self.oauth.is_some(),
                oauth: self.oauth.unwrap_or_default(),
            })),
            Some(url) => {
                Transport::Http { url, headers: self.headers, sse, oauth: self.oauth.unwrap_or_default() }
            }
            None => Transport::Stdio {
                command: paths.program(&self.command.unwrap_or_default()),
                args: self.args,
                env: self.env,
                inherit_env: self.inherit_env,
                cwd: self.cwd.map(|cwd| paths.resolve(cwd.as_ref())),
                sandbox: self.sandbox.and_then(|sandbox| sandbox.into_settings(paths)).map(Box::new),
            },
        };
        ServerSettings {
            transport,
            enabled: self.enabled,
            description: self.description,
            tags: self.tags,
            timeout,
            start_timeout: self.start_timeout,
            allowed_tools: self.allowed_tools,
            blocked_tools: self.blocked_tools,
            policy: self.policy,
            unlisted_resources: self.unlisted_resources,
            resources_risk: self.resources_risk,
            prompts_risk: self.prompts_risk,
            on_change: self.on_change,
            approve_by: self.approve_by,
            parallel: self.parallel,
            serialize: self.serialize,
            max_concurrency: self.max_concurrency,
            rate: self.rate,
            breaker: self.breaker,
            scope: self.scope,
            placement: self.placement,
            expose: self.expose,
            leaks: self.leaks,
            injections: self.injections,
            setup: self.setup,
            tools: self.tools,
            secrets,
            session: None,
            limits,
        }
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

fn headers_out_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "items": { "type": "string", "format": "response-header", "examples": ["X-Total-Count"] },
        "examples": [["X-Total-Count"]],
    })
}

fn endpoints_schema(generator: &mut SchemaGenerator) -> Schema {
    let endpoint = generator.subschema_for::<Endpoint>();
    with_keys("plain-name", endpoint, json!({ "get_user": { "path": "/users/{id}" } }))
}
