//! `[auth]`: whose access tokens open the gateway over HTTP.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use nonet_api::page::PageRole;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};

use super::{Secret, values::time};

/// An algorithm that may sign tokens (RFC 7518, section 3.1, and RFC 8037).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "the names are the specification's")]
pub enum JwtAlgorithm {
    RS256,
    RS384,
    RS512,
    PS256,
    PS384,
    PS512,
    ES256,
    ES384,
    EdDSA,
}

impl JwtAlgorithm {
    /// Every algorithm that can be checked here: none with a shared secret.
    const ALL: [Self; 9] = [
        Self::RS256,
        Self::RS384,
        Self::RS512,
        Self::PS256,
        Self::PS384,
        Self::PS512,
        Self::ES256,
        Self::ES384,
        Self::EdDSA,
    ];
}

/// Whose access tokens open the gateway over HTTP: `[auth]`. Needs `public_url` in `[gateway]`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct AuthTable {
    /// The issuer of access tokens, exactly as its metadata and the `iss` of its tokens say it.
    #[schemars(extend("format" = "issuer-url"), example = &"https://login.example.com")]
    issuer: Option<String>,
    /// For whom its tokens are (`aud`), one or several. Default: the address that the client uses:
    /// `public_url` and `/mcp` or `/mcp/NAME`.
    #[schemars(schema_with = "one_or_more")]
    audience: Audience,
    /// The address of its keys. Default: as its metadata says.
    #[schemars(extend("format" = "issuer-url"), example = &"https://login.example.com/keys")]
    jwks: Option<String>,
    /// The address that is asked about its tokens (RFC 7662): about those that are not signed, and whether
    /// signed ones are still active. An answer counts for a minute. Only one issuer can have it.
    #[schemars(extend("format" = "issuer-url"), example = &"https://login.example.com/introspect")]
    introspection: Option<String>,
    /// Nonet's id at the issuer, for `introspection`.
    #[schemars(example = &"nonet")]
    client_id: Option<String>,
    /// The secret of `client_id`.
    #[schemars(with = "Option<String>", example = &"${ISSUER_SECRET}")]
    client_secret: Option<Secret>,
    /// The algorithms that may sign its tokens. Default: all that can be checked, none of which has a shared
    /// secret.
    #[schemars(length(min = 1), example = json!(["RS256"]))]
    algorithms: Vec<JwtAlgorithm>,
    /// More issuers, by a name of yours.
    issuers: BTreeMap<String, IssuerTable>,
    /// Scopes that every token needs.
    #[schemars(example = json!(["mcp"]))]
    scopes: Vec<String>,
    /// The profile of those whom no other profile takes by its `claims` and `scopes`. Without it they are
    /// refused, if any profile has such keys.
    #[schemars(example = &"guest")]
    profile: Option<String>,
    /// How far the clocks of the issuer and of this machine may be apart.
    #[serde(with = "time")]
    #[schemars(schema_with = "time::schema")]
    skew: Duration,
    /// People who may not use the gateway, whatever their tokens say, by their `sub`. Counts from the next
    /// request on.
    #[schemars(example = json!(["00u1abcd"]))]
    blocked: Vec<String>,
    /// The key that seals what only this gateway may read: the cookies of browsers, and people's tokens for
    /// servers in the store. At least 32 characters. Default: a random key in the state folder. In a
    /// `[cluster]`, all replicas need the same key.
    #[schemars(with = "Option<String>", length(min = 32), example = &"${NONET_KEY}")]
    key: Option<Secret>,
    /// How people sign in with a browser: at the page, and for their accounts at servers.
    page: Option<PageTable>,
}

impl Default for AuthTable {
    fn default() -> Self {
        Self {
            issuer: None,
            audience: Audience::default(),
            jwks: None,
            introspection: None,
            client_id: None,
            client_secret: None,
            algorithms: JwtAlgorithm::ALL.into(),
            issuers: BTreeMap::new(),
            scopes: Vec::new(),
            profile: None,
            skew: Duration::from_secs(30),
            blocked: Vec::new(),
            key: None,
            page: None,
        }
    }
}

/// How people sign in with a browser: `[auth.page]`. The redirect address at the issuer is `public_url` and
/// `/ui/callback`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PageTable {
    /// The issuer at which they sign in, one of `[auth]`. Default: the first.
    #[schemars(extend("format" = "issuer-url"), example = &"https://login.example.com")]
    issuer: Option<String>,
    /// Nonet's client id there.
    #[schemars(length(min = 1), example = &"nonet")]
    client_id: String,
    /// The secret of that client, if it has one.
    #[schemars(with = "Option<String>", length(min = 1), example = &"${NONET_CLIENT_SECRET}")]
    client_secret: Option<Secret>,
    /// The scopes to request.
    #[serde(default = "page_scopes")]
    scopes: Vec<String>,
    /// How long a browser stays signed in.
    #[serde(with = "time", default = "page_lasts")]
    #[schemars(schema_with = "time::schema")]
    lasts: Duration,
    /// Who may look at everything on the page: servers, calls with their params, waiting questions.
    look: Option<RoleTable>,
    /// Who may also answer questions, trust definitions, and stop and restart servers, tasks and watches.
    operate: Option<RoleTable>,
    /// Who may also change servers.toml, store secrets, and call tools without the limits of a profile.
    administer: Option<RoleTable>,
}

fn page_scopes() -> Vec<String> {
    ["openid", "profile", "email"].map(String::from).into()
}

fn page_lasts() -> Duration {
    Duration::from_secs(8 * 3_600)
}

/// Who has a role on the page: people in a browser by `claims`, programs with an access token by `scopes`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct RoleTable {
    /// The claims that a person needs, all of them. Each has one value, or one of several.
    #[schemars(schema_with = "claims_schema")]
    claims: BTreeMap<String, ClaimValues>,
    /// The scopes that the access token of a program needs, all of them. It goes into `Authorization`, as at
    /// `/mcp`.
    #[schemars(length(min = 1), example = json!(["nonet:operate"]))]
    scopes: Vec<String>,
}

/// How people sign in with a browser.
#[derive(Clone, Debug, PartialEq)]
pub struct PageSettings {
    /// The issuer at which they sign in.
    pub issuer: String,
    /// Nonet's id there.
    pub client_id: String,
    /// The secret of that id.
    pub client_secret: Option<Secret>,
    /// The scopes to request; with `openid`.
    pub scopes: Vec<String>,
    /// How long a browser stays signed in.
    pub lasts: Duration,
    /// Who has which role.
    pub roles: BTreeMap<PageRole, RoleRule>,
}

/// Who has a role.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RoleRule {
    /// For people in a browser; nobody if empty.
    pub claims: BTreeMap<String, ClaimValues>,
    /// For programs; none if empty.
    pub scopes: Vec<String>,
}

impl PageSettings {
    /// Returns the highest role of a person in a browser.
    pub fn role_by_claims(&self, claims: &Map<String, Value>) -> Option<PageRole> {
        let has = |rule: &RoleRule| {
            !rule.claims.is_empty() && rule.claims.iter().all(|(name, values)| values.is_met(name, claims))
        };
        self.roles.iter().rev().find(|(_, rule)| has(rule)).map(|(role, _)| *role)
    }

    /// Returns the highest role of a program whose token has these scopes.
    pub fn role_by_scopes(&self, scopes: &BTreeSet<String>) -> Option<PageRole> {
        let has = |rule: &RoleRule| {
            !rule.scopes.is_empty() && rule.scopes.iter().all(|scope| scopes.contains(scope))
        };
        self.roles.iter().rev().find(|(_, rule)| has(rule)).map(|(role, _)| *role)
    }
}

impl PageTable {
    fn into_settings(self, issuers: &[Issuer]) -> PageSettings {
        let mut scopes = self.scopes;
        if !scopes.iter().any(|scope| scope == "openid") {
            scopes.insert(0, "openid".into());
        }
        let roles = [
            (PageRole::Look, self.look),
            (PageRole::Operate, self.operate),
            (PageRole::Administer, self.administer),
        ];
        let rule = |table: RoleTable| RoleRule { claims: table.claims, scopes: table.scopes };
        let first = || issuers.first().map(|issuer| issuer.issuer.clone()).unwrap_or_default();
        PageSettings {
            issuer: self.issuer.unwrap_or_else(first),
            client_id: self.client_id,
            client_secret: self.client_secret,
            scopes,
            lasts: self.lasts,
            roles: roles.into_iter().filter_map(|(role, table)| Some((role, rule(table?)))).collect(),
        }
    }
}

/// One more issuer: `[auth.issuers.NAME]`. Its keys are those of `[auth]`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct IssuerTable {
    /// The issuer, exactly as its metadata and the `iss` of its tokens say it.
    #[schemars(extend("format" = "issuer-url"), example = &"https://login.partner.com")]
    issuer: String,
    /// For whom its tokens are (`aud`), one or several. Default: the address that the client uses.
    #[serde(default)]
    #[schemars(schema_with = "one_or_more")]
    audience: Audience,
    /// The address of its keys. Default: as its metadata says.
    #[serde(default)]
    #[schemars(extend("format" = "issuer-url"), example = &"https://login.partner.com/keys")]
    jwks: Option<String>,
    /// The address that is asked about its tokens (RFC 7662).
    #[serde(default)]
    #[schemars(extend("format" = "issuer-url"), example = &"https://login.partner.com/introspect")]
    introspection: Option<String>,
    /// Nonet's id at the issuer, for `introspection`.
    #[serde(default)]
    #[schemars(example = &"nonet")]
    client_id: Option<String>,
    /// The secret of `client_id`.
    #[serde(default)]
    #[schemars(with = "Option<String>", example = &"${PARTNER_SECRET}")]
    client_secret: Option<Secret>,
    /// The algorithms that may sign its tokens. Default: all that can be checked.
    #[serde(default = "all_algorithms")]
    #[schemars(length(min = 1), example = json!(["RS256"]))]
    algorithms: Vec<JwtAlgorithm>,
}

fn all_algorithms() -> Vec<JwtAlgorithm> {
    JwtAlgorithm::ALL.into()
}

/// The `aud` values that tokens may have.
#[derive(Clone, Debug, Default, PartialEq)]
struct Audience(Vec<String>);

impl<'de> Deserialize<'de> for Audience {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            One(String),
            Several(Vec<String>),
        }
        Ok(Self(match Written::deserialize(deserializer)? {
            Written::One(text) => vec![text],
            Written::Several(texts) => texts,
        }))
    }
}

fn one_or_more(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": ["string", "array"],
        "minLength": 1,
        "items": { "type": "string", "minLength": 1 },
        "examples": ["https://nonet.example.com/mcp"],
    })
}

/// Whose access tokens open the gateway over HTTP.
#[derive(Clone, Debug, PartialEq)]
pub struct AuthSettings {
    /// The address at which clients reach the gateway, without a path.
    pub public_url: String,
    /// The issuers; at least one.
    pub issuers: Vec<Issuer>,
    /// Scopes that every token needs.
    pub scopes: Vec<String>,
    /// The profile of those whom no other profile takes.
    pub profile: Option<String>,
    /// How far clocks may be apart.
    pub skew: Duration,
    /// The subjects of people who may not use the gateway.
    pub blocked: Vec<String>,
    /// Whether the file chooses profiles by who somebody is, even in a left-out entry: then nobody gets
    /// everything just by signing in.
    pub sorts_people: bool,
    /// The key that seals what only the gateway may read, if it is not to be one in the state folder.
    pub key: Option<Secret>,
    /// How people sign in with a browser, if they can.
    pub page: Option<PageSettings>,
    /// Whether the token of a person is exchanged for tokens for servers.
    pub exchanges: bool,
}

/// An issuer of access tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Issuer {
    /// Its name (`iss`), which is its address.
    pub issuer: String,
    /// The `aud` that its tokens may have; if empty, the address that the client uses.
    pub audience: Vec<String>,
    /// The address of its keys, if its metadata is not to say it.
    pub jwks: Option<String>,
    /// The address that is asked about its tokens.
    pub introspection: Option<String>,
    /// Nonet's id there.
    pub client_id: Option<String>,
    /// The secret of that id.
    pub client_secret: Option<Secret>,
    /// The algorithms that may sign its tokens.
    pub algorithms: Vec<JwtAlgorithm>,
}

impl AuthSettings {
    /// Whether somebody who signed in earlier would still be let in: the issuer is there, and nobody has
    /// blocked them.
    pub fn still_admits(&self, issuer: &str, subject: &str) -> bool {
        self.issuers.iter().any(|known| known.issuer == issuer)
            && !self.blocked.iter().any(|one| one == subject)
    }

    /// Returns the address at which people sign in to a server with their own account.
    pub fn account_page(&self, server: &str) -> String {
        format!("{}/accounts/{server}", self.public_url)
    }
}

impl AuthTable {
    /// Returns the settings. `public_url` is `[gateway]`'s, and `sorts_people` that of the whole file.
    pub(super) fn into_settings(self, public_url: &str, sorts_people: bool, exchanges: bool) -> AuthSettings {
        let first = self.issuer.map(|issuer| Issuer {
            issuer,
            audience: self.audience.0,
            jwks: self.jwks,
            introspection: self.introspection,
            client_id: self.client_id,
            client_secret: self.client_secret,
            algorithms: self.algorithms,
        });
        let more = self.issuers.into_values().map(|table| Issuer {
            issuer: table.issuer,
            audience: table.audience.0,
            jwks: table.jwks,
            introspection: table.introspection,
            client_id: table.client_id,
            client_secret: table.client_secret,
            algorithms: table.algorithms,
        });
        let issuers: Vec<Issuer> = first.into_iter().chain(more).collect();
        AuthSettings {
            public_url: public_url.trim_end_matches('/').into(),
            key: self.key,
            page: self.page.map(|page| page.into_settings(&issuers)),
            issuers,
            scopes: self.scopes,
            profile: self.profile,
            skew: self.skew,
            blocked: self.blocked,
            sorts_people,
            exchanges,
        }
    }
}

/// Whether the file as written chooses profiles by who somebody is. A misspelt key counts: its author wants
/// nobody to get everything.
pub(super) fn sorts_people(root: &Value) -> bool {
    let has = |table: &Value, word: &str| {
        table.as_object().into_iter().flatten().any(|(key, _)| key.to_lowercase().contains(word))
    };
    let profiles = root.get("profiles").and_then(Value::as_object);
    let mut profiles = profiles.into_iter().flatten().map(|(_, profile)| profile);
    root.get("auth").is_some_and(|auth| has(auth, "prof"))
        || profiles.any(|profile| has(profile, "claim") || has(profile, "scope"))
}

/// Whether a server of the file gets tokens in exchange for people's own.
pub(super) fn exchanges(root: &Value) -> bool {
    let servers = root.get("servers").and_then(Value::as_object);
    let mut servers = servers.into_iter().flatten().map(|(_, server)| server);
    servers.any(|server| server.get("credentials").is_some_and(Value::is_object))
}

/// The values that a claim may have: one, or any of several.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClaimValues(Vec<Value>);

impl ClaimValues {
    /// Whether the claim of this name has one of the values, itself or among its items. The name is that of a
    /// claim, or a path into claims, with dots: `realm_access.roles`.
    pub fn is_met(&self, name: &str, claims: &Map<String, Value>) -> bool {
        let by_path = || {
            let (first, rest) = name.split_once('.')?;
            rest.split('.').try_fold(claims.get(first)?, |at, part| at.get(part))
        };
        match claims.get(name).or_else(by_path) {
            Some(Value::Array(items)) => items.iter().any(|item| self.0.contains(item)),
            Some(value) => self.0.contains(value),
            None => false,
        }
    }
}

impl<'de> Deserialize<'de> for ClaimValues {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(match Value::deserialize(deserializer)? {
            Value::Array(values) => values,
            value => vec![value],
        }))
    }
}

/// Returns the schema of `claims`.
pub(super) fn claims_schema(_: &mut SchemaGenerator) -> Schema {
    let value = json!({ "type": ["string", "boolean", "integer"] });
    json_schema!({
        "type": "object",
        "additionalProperties": { "type": ["string", "boolean", "integer", "array"], "minItems": 1, "items": value },
        "examples": [{ "groups": "analysts" }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_met_by_its_value_or_by_one_of_its_items() {
        let check = |wanted: Value, name: &str, claims: Value, expected: bool| {
            let values: ClaimValues = serde_json::from_value(wanted.clone()).expect("values");
            let Value::Object(all) = &claims else { panic!("claims are an object") };
            assert_eq!(values.is_met(name, all), expected, "{wanted} {name} {claims}");
        };
        check(json!("a"), "groups", json!({ "groups": "a" }), true);
        check(json!("a"), "groups", json!({ "groups": ["b", "a"] }), true);
        check(json!(["a", "c"]), "groups", json!({ "groups": ["c"] }), true);
        check(json!("a"), "groups", json!({ "groups": "a b" }), false);
        check(json!("a"), "groups", json!({}), false);
        check(json!(true), "verified", json!({ "verified": true }), true);
        check(json!(true), "verified", json!({ "verified": "true" }), false);
        check(json!(2), "level", json!({ "level": 2 }), true);
        check(json!("a"), "x.roles", json!({ "x": { "roles": ["a"] } }), true);
        check(json!("a"), "x.roles", json!({ "x.roles": "b", "x": { "roles": ["a"] } }), false);
        check(json!("a"), "https://e.com/roles", json!({ "https://e.com/roles": ["a"] }), true);
    }
}
