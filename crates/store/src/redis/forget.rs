//! Removes the data under a prefix, while gateways may be running.

use redis::cmd;

use super::{
    super::{StoreError, pins},
    RedisParts,
};

/// How many keys are read and removed at a time.
const AT_ONCE: usize = 500;

/// Data of running gateways, which expires by itself, and what the trusted definitions need to be renewed.
const STAYS: [&str; 12] = [
    "carried", "counters", "holder:", "lease:", "note:", "number", "rate:", "replicas", "secret", "session:",
    "slots:", "tables",
];

/// Returns whether a key belongs to the trusted definitions: their rows, or what earlier versions had.
fn is_trust(key: &[u8]) -> bool {
    let table = key.split(|byte| *byte == b':').nth(1).unwrap_or_default();
    let is_row = [pins::PINS, pins::TEXTS].iter().any(|name| name.as_bytes() == table);
    is_row || key.starts_with(b"pins:") || key == b"count:pins"
}

/// What to remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForgetScope {
    /// Everything except the trusted definitions of servers.
    Kept,
    /// The trusted definitions of servers.
    Trust,
}

impl RedisParts {
    /// See [`GatewayStore::forget_shared`](crate::GatewayStore::forget_shared).
    pub(crate) async fn forget(&self, what: ForgetScope) -> Result<usize, StoreError> {
        let prefix = &self.prefix;
        let base = format!("{prefix}:{{{prefix}}}:");
        let others = [format!("{prefix}:value:{{"), format!("{prefix}:vector:{{")];
        let is_wanted = |key: &[u8]| match key.strip_prefix(base.as_bytes()) {
            Some(rest) => match what {
                ForgetScope::Trust => is_trust(rest),
                ForgetScope::Kept => {
                    !is_trust(rest) && !STAYS.iter().any(|kind| rest.starts_with(kind.as_bytes()))
                }
            },
            None => what == ForgetScope::Kept && others.iter().any(|other| key.starts_with(other.as_bytes())),
        };
        let pattern = format!("{}:*", escaped(prefix));
        let mut removed = 0;
        for node in self.link.nodes().await? {
            let mut cursor = 0_u64;
            loop {
                let mut scan = cmd("SCAN");
                scan.arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(AT_ONCE);
                let (next, keys): (u64, Vec<Vec<u8>>) = self.link.ask(&node, &scan).await?;
                let gone: Vec<&[u8]> = keys.iter().map(Vec::as_slice).filter(|key| is_wanted(key)).collect();
                if !gone.is_empty() {
                    removed += self.link.unlink(&gone).await?;
                }
                cursor = next;
                if cursor == 0 {
                    break;
                }
            }
        }
        Ok(removed)
    }
}

/// Escapes a text, so that a Redis pattern matches it literally.
fn escaped(text: &str) -> String {
    text.chars().flat_map(|c| [Some('\\').filter(|_| "\\*?[]^-".contains(c)), Some(c)]).flatten().collect()
}
