//! `[cluster]`: several replicas that act as one gateway.

use std::{borrow::Cow, time::Duration};

use redis::{ConnectionInfo, IntoConnectionInfo};
use reqwest::Url;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;

use super::{Secret, values::time};

/// One gateway on several machines: `[cluster]`. Replicas with the same Redis and `prefix` share results,
/// tasks, notices, schedules, watches, facts, approvals, and what searches led to. They have the same file.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClusterSettings {
    /// The Redis 7 or Valkey 8 that has what the replicas share, by `redis://`, or by `rediss://` with TLS:
    /// one node, or a list of nodes of a Redis Cluster, or, with `sentinel`, of Sentinels.
    pub redis: RedisAddresses,
    /// The name by which Sentinels know the node. `redis` then lists the Sentinels, with the node's user,
    /// password and database.
    #[serde(default)]
    #[schemars(length(min = 1, max = 100), example = &"mymaster")]
    pub sentinel: Option<String>,
    /// The password of the Sentinels, if they have one.
    #[serde(default)]
    #[schemars(with = "Option<String>", example = &"${SENTINEL_PASSWORD}")]
    pub sentinel_password: Option<Secret>,
    /// What every key in Redis begins with.
    #[serde(default = "prefix")]
    #[schemars(extend("format" = "plain-name"), example = &"nonet")]
    pub prefix: String,
    /// The name of this replica. Default: the name of the host, and a number.
    #[serde(default)]
    #[schemars(length(min = 1, max = 100), example = &"${POD_NAME}")]
    pub name: Option<String>,
    /// Where the other replicas reach this one. Default: the address that it listens on; if that is every
    /// address of the machine, the one by which Redis sees it.
    #[serde(default)]
    #[schemars(with = "Option<String>", extend("format" = "http-origin"), example = &"http://${POD_IP}:8931")]
    pub address: Option<ReplicaAddress>,
    /// What this replica has that others may not, such as a GPU or a licence: servers with
    /// `placement = "label:NAME"` run on replicas with their label. The file is the same everywhere, so a
    /// label that is not everywhere comes from the environment.
    #[serde(default)]
    #[schemars(length(max = 32), example = serde_json::json!(["${NODE_LABEL}"]))]
    pub labels: Vec<String>,
    /// How long a replica that is told to stop may take to finish its calls and hand its sessions over.
    #[serde(with = "time", default = "drain")]
    #[schemars(schema_with = "time::schema")]
    pub drain: Duration,
}

fn drain() -> Duration {
    Duration::from_secs(20)
}

fn prefix() -> String {
    "nonet".into()
}

/// The address of a replica: scheme, host and port.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct ReplicaAddress(String);

impl ReplicaAddress {
    /// Returns the address without a trailing slash.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns why a text is not a replica's address.
    pub(super) fn check(text: &str) -> Result<(), String> {
        let is_origin = |url: &Url| {
            matches!(url.scheme(), "http" | "https")
                && url.has_host()
                && url.path() == "/"
                && url.query().is_none()
                && url.fragment().is_none()
                && url.username().is_empty()
                && url.password().is_none()
        };
        match Url::parse(text).is_ok_and(|url| is_origin(&url)) {
            true => Ok(()),
            false => Err("is not an http:// or https:// address without a path".into()),
        }
    }
}

impl TryFrom<String> for ReplicaAddress {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        Self::check(&text)?;
        Ok(Self(text.trim_end_matches('/').to_owned()))
    }
}

const MOST_ADDRESSES: usize = 32;

/// One address of a Redis, or a list.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum RedisAddresses {
    /// One node.
    One(RedisUrl),
    /// Nodes of a cluster, or Sentinels.
    Several(Vec<RedisUrl>),
}

impl JsonSchema for RedisAddresses {
    fn schema_name() -> Cow<'static, str> {
        "RedisAddresses".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": ["string", "array"],
            "format": "redis-url",
            "items": { "type": "string", "format": "redis-url", "examples": ["redis://127.0.0.1:6379"] },
            "minItems": 1,
            "maxItems": MOST_ADDRESSES,
            "examples": ["rediss://:${REDIS_PASSWORD}@redis.example.com:6379"]
        })
    }
}

impl RedisAddresses {
    fn all(&self) -> &[RedisUrl] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Several(several) => several,
        }
    }

    /// Returns the connection parameters of each address.
    pub fn connections(&self) -> Vec<ConnectionInfo> {
        self.all().iter().map(RedisUrl::connection).collect()
    }

    /// Returns the passwords in the addresses.
    pub fn passwords(&self) -> impl Iterator<Item = String> {
        self.all().iter().filter_map(RedisUrl::password)
    }
}

/// The address of a Redis, which may have a password. It is never shown.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct RedisUrl(Secret);

impl RedisUrl {
    /// Returns why a text is not a Redis address.
    pub(super) fn check(text: &str) -> Result<(), String> {
        let (scheme, rest) = text.split_once("://").unwrap_or_default();
        if !matches!(scheme, "redis" | "rediss") {
            return Err("is not a redis:// or rediss:// address".into());
        }
        if rest.contains('#') {
            return Err("has a fragment; Nonet always checks certificates".into());
        }
        // The detail may quote part of the address.
        text.into_connection_info()
            .map(drop)
            .map_err(|error| format!("is not a valid address ({})", error.category()))
    }

    fn connection(&self) -> ConnectionInfo {
        self.0.expose().into_connection_info().expect("the address was read before")
    }

    fn password(&self) -> Option<String> {
        self.connection().redis_settings().password().map(Into::into)
    }
}

impl TryFrom<String> for RedisUrl {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        Self::check(&text)?;
        Ok(Self(Secret::new(text)))
    }
}
