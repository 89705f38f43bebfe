//! `[gateway]`, `[categories.NAME]`, `[profiles.NAME]` and `[policies.NAME]`: what is shown, to whom, and
//! how.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use nonet_api::{
    status::ProtocolRevision,
    tools::{OnChange, Policy, Risk},
};
use nonet_text::name::ServerName;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{
    AddressRange, BearerToken, ClaimValues, Globs, OnInjection, OnLeak, Priorities, QuotaSettings, Rate,
    Secret, addresses, auth,
    sandbox::{self, SandboxTable},
    schema::named,
    values::time,
};

/// The gateway itself: `[gateway]`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct GatewaySettings {
    /// How tools are shown to clients.
    pub tool_injection: ToolInjection,
    /// Whether tools with a user interface (MCP Apps) are listed beside the meta-tools for clients that show such
    /// interfaces.
    pub ui: bool,
    /// The model's context window in tokens, for `auto`.
    #[schemars(range(min = 1_000, max = 1_000_000_000))]
    pub context_window: u64,
    /// The oldest revision of the protocol that servers and clients may speak. An older client is refused at its
    /// handshake; an older server stays down, unless its own `min_protocol` admits it.
    pub min_protocol: Option<ProtocolRevision>,
    /// Tools to list beside the meta-tools in every mode: names, or patterns on full names (`server.tool`).
    #[schemars(example = json!(["filesystem.read_*"]))]
    pub pinned: Globs,
    /// Bearer tokens with full access over HTTP. As soon as there is any token, here or in a profile, every
    /// request over HTTP needs one.
    #[schemars(example = json!(["${ADMIN_TOKEN}"]))]
    pub tokens: Vec<BearerToken>,
    /// Patterns on full names (`server.tool`) with a number from -10 to 10 that raises or lowers these tools
    /// in searches.
    pub priorities: Priorities,
    /// Variables of Nonet's environment that every server inherits, besides the usual ones: names and
    /// patterns.
    #[schemars(schema_with = "super::servers::inherit_env_schema")]
    pub inherit_env: Globs,
    /// What happens when a server changes a definition that was trusted: a tool, a prompt, or its
    /// instructions. With `hold` and `deny`, a new tool of a known server counts as a change.
    pub on_change: OnChange,
    /// What happens when a server is seen for the first time.
    pub new_servers: NewServers,
    /// Who can approve what needs the user's approval.
    pub approve_by: ApproveBy,
    /// The address that is asked for approvals where `approve_by` is `user`. It gets each question as a JSON
    /// object, and answers `{"decision": "allow"}` or `{"decision": "deny"}`, at once or later at the
    /// `answer_url` of the question.
    pub approve_webhook: Option<ApprovalHook>,
    /// The `sandbox` of every server that is a program and has no key of its own.
    #[schemars(schema_with = "sandbox::schema")]
    pub sandbox: Option<SandboxTable>,
    /// Folders of skills: absolute, with `~/`, or relative to this file.
    #[schemars(example = json!(["~/.config/nonet/skills"]))]
    pub skills: Vec<PathBuf>,
    /// When a call in flight becomes a background task. Default: the client's limit.
    #[serde(deserialize_with = "time::option::deserialize")]
    #[schemars(schema_with = "time::schema")]
    pub soft_deadline: Option<Duration>,
    /// The largest result in bytes that is returned whole; a larger result is kept and previewed. Default:
    /// the client's limit, else 100,000.
    #[schemars(range(min = 1_000, max = 1_000_000_000), example = 100_000)]
    pub max_result_bytes: Option<usize>,
    /// How long large results and task results are kept on this machine.
    #[serde(with = "time")]
    #[schemars(schema_with = "time::schema")]
    pub keep_results_for: Duration,
    /// The most bytes of results to keep; the oldest go first.
    #[schemars(range(min = 1_000_000, max = 1_000_000_000_000_u64))]
    pub keep_results_bytes: u64,
    /// Whether searches learn from the calls that follow, and figures of calls are kept. The data stays in
    /// the store on this machine.
    pub learn: bool,
    /// Whether clients can ask Nonet to remember facts, a goal and tasks. They stay in the store on this
    /// machine.
    pub memory: bool,
    /// Whether clients can schedule calls, apps and reminders. While it is `false`, what is scheduled waits.
    pub scheduler: bool,
    /// Whether clients can watch the results of tools. While it is `false`, no watch makes a check.
    pub watchers: bool,
    /// Whether clients can add servers while Nonet runs, with `gateway.add_server`. The user approves each
    /// one.
    pub allow_runtime_servers: bool,
    /// What happens to secrets in params and answers: those of this file, keys by their form, card numbers.
    pub leaks: OnLeak,
    /// What happens to text in answers that reads like instructions to a model.
    pub injections: OnInjection,
    /// Whether all clients on this machine share one gateway with one set of servers. The first client starts
    /// the gateway in this file's folder, with that client's environment.
    pub shared: bool,
    /// How long a shared gateway waits for the next client after the last one has left.
    #[serde(with = "time")]
    #[schemars(schema_with = "time::schema")]
    pub shared_grace: Duration,
    /// Whether the gateway has a page, for this machine only: at `/ui` over HTTP, and for `nonet ui`.
    pub page: bool,
    /// Whether the page can show the params and results of the latest 200 calls, without secrets. They stay
    /// in memory: 64 kB of each, 4 MB in all.
    pub keep_calls: bool,
    /// The address at which clients reach this gateway, without a path: that of the proxy in front, if there
    /// is one. `[auth]` needs it. Its host need not be in `allowed_hosts`.
    #[schemars(extend("format" = "http-origin"), example = &"https://nonet.example.com")]
    pub public_url: Option<String>,
    /// Host names besides localhost that HTTP clients may use for this gateway.
    #[schemars(example = json!(["nonet.example.com"]))]
    pub allowed_hosts: Vec<String>,
    /// Web origins whose pages may use this gateway and read its answers.
    #[schemars(example = json!(["https://app.example.com"]))]
    pub allowed_origins: Vec<String>,
    /// Addresses and ranges of proxies whose header `Forwarded` or `X-Forwarded-For` names the client. Its
    /// address then counts for `connections` in `[limits]`, with each request in flight as one connection.
    #[schemars(schema_with = "addresses::schema")]
    pub trusted_proxies: Vec<AddressRange>,
    /// `true`: if this file has no tokens, clients over HTTP need none, at any address. Whoever reaches the
    /// address can do everything. By default they need the token that Nonet makes for this machine's user, on
    /// loopback addresses only.
    pub allow_without_tokens: bool,
    /// Where notices for people go: ended tasks, watches, reminders, scheduled runs, sign-ins that are
    /// needed. Each notice is a JSON object, posted to `webhook` or written to the stdin of `command`.
    pub notify: Option<Outlet>,
    /// How many calls of servers' tools may be made in all: `"60/m"`, also per `s` and `h`, and with
    /// `burst 10` how many of them at once.
    pub rate: Option<Rate>,
    /// How many calls of servers' tools each bearer token may make, and each person who signs in.
    pub token_rate: Option<Rate>,
}

/// What happens when a server is seen for the first time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum NewServers {
    /// Its definitions are trusted as they are.
    #[default]
    Trust,
    /// Its tools are held until the user trusts them (`nonet trust`).
    Hold,
}

/// Who can approve what needs the user's approval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ApproveBy {
    /// The user, through the model where the client has no forms.
    #[default]
    Chat,
    /// The user only: in a form of the client, on the live page, with `nonet approve`, or by
    /// `approve_webhook`.
    User,
}

/// The address that is asked for approvals.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApprovalHook {
    /// The address that each question is posted to.
    #[schemars(with = "String", extend("format" = "http-url"), example = &"https://example.com/hooks/approve")]
    pub url: Secret,
    /// Headers sent with each question.
    #[serde(default)]
    #[schemars(schema_with = "super::servers::headers_schema")]
    pub headers: BTreeMap<String, Secret>,
}

/// The way of notices to people: `webhook` or `command`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Outlet {
    /// The address that each notice is posted to.
    #[schemars(with = "Option<String>", extend("format" = "http-url"), example = &"https://example.com/hooks/nonet")]
    pub webhook: Option<Secret>,
    /// Headers sent with each request to `webhook`.
    #[schemars(schema_with = "super::servers::headers_schema")]
    pub headers: BTreeMap<String, Secret>,
    /// The program that gets each notice on stdin, and its arguments. It runs once for each notice, with the
    /// environment of a server.
    #[schemars(with = "Vec<String>", length(min = 1), example = json!(["~/bin/tell-me"]))]
    pub command: Vec<Secret>,
}

impl Default for GatewaySettings {
    fn default() -> Self {
        Self {
            tool_injection: ToolInjection::default(),
            ui: false,
            context_window: 200_000,
            min_protocol: None,
            pinned: Globs::default(),
            tokens: Vec::new(),
            priorities: Priorities::default(),
            inherit_env: Globs::default(),
            on_change: OnChange::default(),
            new_servers: NewServers::default(),
            approve_by: ApproveBy::default(),
            approve_webhook: None,
            sandbox: None,
            skills: Vec::new(),
            soft_deadline: None,
            max_result_bytes: None,
            keep_results_for: Duration::from_secs(24 * 60 * 60),
            keep_results_bytes: 256_000_000,
            learn: true,
            memory: true,
            scheduler: true,
            watchers: true,
            allow_runtime_servers: false,
            leaks: OnLeak::default(),
            injections: OnInjection::default(),
            shared: false,
            shared_grace: Duration::from_secs(30),
            page: true,
            keep_calls: true,
            public_url: None,
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            trusted_proxies: Vec::new(),
            allow_without_tokens: false,
            notify: None,
            rate: None,
            token_rate: None,
        }
    }
}

/// How tools are shown to a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolInjection {
    /// The nine meta-tools and nothing else.
    #[default]
    Discovery,
    /// The nine and every tool with its schema.
    Direct,
    /// The nine and every tool with its name and one line.
    CompactDirect,
    /// Every tool with its schema for clients that hold definitions back and search by themselves
    /// (`tool_search` in `[clients.NAME]`); for others the fullest of these modes that uses at most a fifth of the
    /// context window.
    Auto,
}

/// A group of tools: `[categories.NAME]`. A tool belongs to the group by its server, a tag or a pattern.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Category {
    /// The purpose of the group, shown in the list of categories.
    #[schemars(example = &"Reading and writing text")]
    pub description: String,
    /// Servers with all of their tools.
    #[schemars(schema_with = "server_names")]
    pub servers: Vec<ServerName>,
    /// Tags of tools.
    #[schemars(example = json!(["files"]))]
    pub tags: Vec<String>,
    /// Patterns on full names (`server.tool`).
    pub tools: Globs,
}

/// What a client may see: `[profiles.NAME]`. A key without a value does not restrict.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Profile {
    /// Categories or servers to show.
    #[schemars(example = json!(["files", "docs"]))]
    pub categories: Vec<String>,
    /// Tags of tools to show.
    #[schemars(example = json!(["files"]))]
    pub tags: Vec<String>,
    /// Patterns on full names (`server.tool`) to show, in addition to `categories`, `tags` and `max_risk`.
    pub allow: Globs,
    /// Patterns on full names: if set, only these tools are shown, regardless of `allow`.
    pub only: Option<Globs>,
    /// Patterns on full names to hide, regardless of all other keys.
    pub deny: Globs,
    /// The highest risk to show.
    pub max_risk: Option<Risk>,
    /// Tools to list beside the meta-tools in every mode: names, or patterns on full names.
    #[schemars(example = json!(["files.read_*"]))]
    pub pinned: Globs,
    /// How tools are shown, instead of `[gateway]`'s mode.
    pub tool_injection: Option<ToolInjection>,
    /// Whether tools with a user interface are listed, instead of `[gateway]`'s key.
    pub ui: Option<bool>,
    /// The context window of this client's model, instead of `[gateway]`'s.
    #[schemars(range(min = 1_000, max = 1_000_000_000), example = 200_000)]
    pub context_window: Option<u64>,
    /// Bearer tokens that select this profile over HTTP.
    #[schemars(example = json!(["${READER_TOKEN}"]))]
    pub tokens: Vec<BearerToken>,
    /// Claims of the access tokens that select this profile over HTTP, with their value or any of several:
    /// those whom `[auth]` admits, if their token has all of `claims` and `scopes`. A dot leads into a claim:
    /// `"realm_access.roles"`.
    #[schemars(schema_with = "auth::claims_schema")]
    pub claims: BTreeMap<String, ClaimValues>,
    /// Scopes of the access tokens that select this profile over HTTP.
    #[schemars(example = json!(["files:write"]))]
    pub scopes: Vec<String>,
    /// Other figures than those of `[quotas]`, for each token or session of this profile.
    pub quotas: QuotaSettings,
    /// Patterns on full names with a number from -10 to 10 that raises or lowers these tools in searches;
    /// they take precedence over `[gateway]`'s.
    pub priorities: Priorities,
    /// How many calls of servers' tools all clients of the profile may make together: `"60/m"`,
    /// `"5/s burst 1"`.
    pub rate: Option<Rate>,
    /// How many each bearer token and each person of the profile may make, instead of `[gateway]`'s `token_rate`.
    pub token_rate: Option<Rate>,
}

impl Profile {
    /// Whether the profile shows only particular categories, servers, tags or patterns. `allow` restricts on
    /// its own; with `only`, it adds to the remaining tools.
    pub fn is_limited(&self) -> bool {
        let allows = !self.allow.is_empty() && self.only.is_none();
        !self.categories.is_empty() || !self.tags.is_empty() || allows
    }

    /// Whether it is chosen by who somebody is.
    pub fn is_of_people(&self) -> bool {
        !self.claims.is_empty() || !self.scopes.is_empty()
    }
}

/// What happens when certain tools are called: `[policies.NAME]`. A policy applies to a tool if its name
/// matches `tools` (if set) and its risk is at least `risk` (if set).
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyRule {
    /// Patterns on full names (`server.tool`).
    #[serde(default)]
    pub tools: Globs,
    /// The lowest risk to which the policy applies.
    #[serde(default)]
    pub risk: Option<Risk>,
    /// A jq filter over `{caller: {subject, name, issuer, claims, scopes, client, profile, token, unattended},
    /// tool, params}`: the policy applies to a call only if its result is neither `false`, `null` nor `[]`, or if it
    /// fails. Such a policy makes calls stricter, never laxer, and hides no tool.
    #[serde(default)]
    #[schemars(extend("format" = "jq-condition"), example = &".caller.claims.groups // [] | any(. == \"finance\") | not")]
    pub when: Option<String>,
    /// What happens.
    pub policy: Policy,
}

impl PolicyRule {
    /// Returns the rules that name tools of this category itself, with only these patterns.
    pub fn naming(policies: &BTreeMap<String, PolicyRule>, category: &str) -> BTreeMap<String, PolicyRule> {
        let names = |pattern: &&String| {
            let rest = pattern.get(category.len()..).unwrap_or_default();
            let first = pattern.get(..category.len()).unwrap_or_default();
            first.eq_ignore_ascii_case(category) && !rest.starts_with(char::is_alphanumeric)
        };
        let named = policies.iter().filter_map(|(name, rule)| {
            let tools: Vec<String> = rule.tools.patterns().iter().filter(names).cloned().collect();
            let tools = Globs::new(tools).ok().filter(|tools| !tools.is_empty())?;
            Some((name.clone(), PolicyRule { tools, ..rule.clone() }))
        });
        named.collect()
    }

    /// Returns the policy of something with a name and a risk, and the key that decides it: a policy that
    /// names it, else its server's, else one for its risk; the strictest of several. A policy that names
    /// another spelling can only be stricter.
    pub fn decided(
        policies: &BTreeMap<String, PolicyRule>,
        (server, of_server): (&str, Option<Policy>),
        risk: Risk,
        matches: impl Fn(&Globs) -> bool,
        is_caught_by: impl Fn(&Globs) -> bool,
    ) -> (Policy, String) {
        let strictest = |by_name: bool| {
            let rule = Self::strictest(policies, by_name, risk, &matches);
            rule.map(|(policy, name)| (policy, format!("policies.{name}")))
        };
        let exact = strictest(true)
            .or_else(|| Some((of_server?, format!("servers.{server}.policy"))))
            .or_else(|| strictest(false))
            .unwrap_or((Policy::Allow, String::new()));
        Self::raised(exact, policies, risk, is_caught_by)
    }

    /// Returns the policy of a rule that names something under another spelling, with the rule's key, if it
    /// is stricter than the policy of the exact name. `is_caught` says whether patterns match a spelling.
    fn raised(
        exact: (Policy, String),
        policies: &BTreeMap<String, PolicyRule>,
        risk: Risk,
        is_caught: impl Fn(&Globs) -> bool,
    ) -> (Policy, String) {
        match Self::strictest(policies, true, risk, is_caught) {
            Some((policy, name)) if policy > exact.0 => (policy, format!("policies.{name}")),
            _ => exact,
        }
    }

    /// Returns the strictest policy for this risk, with its name: among the policies that name tools if
    /// `by_name`, else among those for all tools. `is_named` says whether patterns match.
    pub fn strictest(
        policies: &BTreeMap<String, PolicyRule>,
        by_name: bool,
        risk: Risk,
        is_named: impl Fn(&Globs) -> bool,
    ) -> Option<(Policy, &str)> {
        // A condition is asked at each call.
        let rules = policies.iter().filter(|(_, rule)| rule.when.is_none());
        let rules = rules.filter(|(_, rule)| rule.tools.is_empty() != by_name);
        let rules = rules.filter(|(_, rule)| !by_name || is_named(&rule.tools));
        let rules = rules.filter(|(_, rule)| rule.risk.is_none_or(|from| risk >= from));
        rules.max_by_key(|(_, rule)| rule.policy).map(|(name, rule)| (rule.policy, name.as_str()))
    }
}

fn server_names(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "items": named("server-name", "files"), "examples": [["files", "docs"]] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allow_limits_only_where_nothing_else_does() {
        let check = |profile: serde_json::Value, expected: bool| {
            let read: Profile = serde_json::from_value(profile.clone()).expect("a profile");
            assert_eq!(read.is_limited(), expected, "{profile}");
        };
        check(json!({}), false);
        check(json!({ "allow": ["a.*"] }), true);
        check(json!({ "only": ["b.*"], "allow": ["a.*"] }), false);
        check(json!({ "only": ["b.*"], "categories": ["b"] }), true);
        check(json!({ "only": ["b.*"] }), false);
    }
}
