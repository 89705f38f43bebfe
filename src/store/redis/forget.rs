//! Removes what is kept under a prefix, while gateways may run.

use redis::cmd;

use super::{super::StoreError, RedisStore};

/// Keys that are looked at, and removed, at a time.
const AT_ONCE: usize = 500;

/// What belongs to gateways that run and ends by itself, and what is trusted.
const STAYS: [&str; 9] =
    ["pins:", "rate:", "slots:", "holder:", "replicas", "secret", "session:", "lease:", "note:"];

/// What to remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forget {
    /// Everything but what is trusted of servers.
    Kept,
    /// What is trusted of servers.
    Trust,
}

impl RedisStore {
    /// Removes what the replicas keep, and returns how many keys that were. Who runs with which sessions, and what is used of rates,
    /// stays. What is put meanwhile may stay too.
    pub async fn forget(&self, what: Forget) -> Result<usize, StoreError> {
        let prefix = &self.prefix;
        let base = format!("{prefix}:{{{prefix}}}:");
        let others = [format!("{prefix}:value:{{"), format!("{prefix}:vector:{{")];
        let is_wanted = |key: &[u8]| match key.strip_prefix(base.as_bytes()) {
            Some(rest) => match what {
                Forget::Trust => rest.starts_with(b"pins:"),
                Forget::Kept => !STAYS.iter().any(|kind| rest.starts_with(kind.as_bytes())),
            },
            None => what == Forget::Kept && others.iter().any(|other| key.starts_with(other.as_bytes())),
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

/// A text that a pattern of Redis matches only as it is.
fn escaped(text: &str) -> String {
    text.chars().flat_map(|c| [Some('\\').filter(|_| "\\*?[]^-".contains(c)), Some(c)]).flatten().collect()
}
