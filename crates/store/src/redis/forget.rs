//! Removes the data under a prefix, while gateways may be running.

use redis::cmd;

use super::{super::StoreError, RedisStore};

/// How many keys are read and removed at a time.
const AT_ONCE: usize = 500;

/// Data of running gateways, which expires by itself, and trusted definitions.
const STAYS: [&str; 9] =
    ["pins:", "rate:", "slots:", "holder:", "replicas", "secret", "session:", "lease:", "note:"];

/// What to remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForgetScope {
    /// Everything except the trusted definitions of servers.
    Kept,
    /// The trusted definitions of servers.
    Trust,
}

impl RedisStore {
    /// Removes the replicas' data, and returns the number of removed keys. Running replicas, their sessions, and the use of
    /// rates stay. Data stored meanwhile may stay too.
    pub async fn forget(&self, what: ForgetScope) -> Result<usize, StoreError> {
        let prefix = &self.prefix;
        let base = format!("{prefix}:{{{prefix}}}:");
        let others = [format!("{prefix}:value:{{"), format!("{prefix}:vector:{{")];
        let is_wanted = |key: &[u8]| match key.strip_prefix(base.as_bytes()) {
            Some(rest) => match what {
                ForgetScope::Trust => rest.starts_with(b"pins:"),
                ForgetScope::Kept => !STAYS.iter().any(|kind| rest.starts_with(kind.as_bytes())),
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
