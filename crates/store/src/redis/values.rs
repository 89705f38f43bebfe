//! The values of results and jobs, in chunks: `PREFIX:value:{NAME}:N`. Each value has its own name, so that a
//! new value never mixes with one being read, and a cluster spreads values over its slots.

use std::{sync::Arc, time::Duration};

use redis::{Value, pipe};

use super::{super::StoreError, link::RedisLink};

/// The size of each chunk except the last one.
const CHUNK: usize = 512 << 10;
/// How many chunks are sent or read at a time, which bounds the data in flight.
const AT_ONCE: usize = 4;
/// The maximum size of a value, in bytes.
pub(super) const MOST_BYTES: usize = 64 << 20;

/// The values under a prefix.
#[derive(Debug)]
pub(super) struct RedisValues {
    link: Arc<RedisLink>,
    prefix: String,
}

impl RedisValues {
    pub(super) fn new(link: Arc<RedisLink>, prefix: &str) -> Self {
        Self { link, prefix: prefix.into() }
    }

    fn key(&self, name: &str, chunk: usize) -> String {
        format!("{}:value:{{{name}}}:{chunk}", self.prefix)
    }

    /// Writes a value, and returns its name. Until an entry refers to the name, nobody finds the value, and
    /// it expires by itself.
    pub(super) async fn write(&self, bytes: &[u8], life: Duration) -> Result<String, StoreError> {
        if bytes.len() > MOST_BYTES {
            return Err(StoreError::TooLarge { bytes: bytes.len(), most: MOST_BYTES });
        }
        let name = uuid::Uuid::new_v4().simple().to_string();
        let chunks: Vec<&[u8]> = bytes.chunks(CHUNK).collect();
        for (turn, some) in chunks.chunks(AT_ONCE).enumerate() {
            let mut commands = pipe();
            for (at, chunk) in some.iter().enumerate() {
                let key = self.key(&name, turn * AT_ONCE + at);
                commands.pset_ex(key, *chunk, life.as_millis() as u64).ignore();
            }
            if let Err(error) = self.link.send::<()>(&commands).await {
                self.remove(&name, bytes.len()).await;
                return Err(error);
            }
        }
        Ok(name)
    }

    /// Returns the bytes of a value; `None` if a part of it is missing.
    pub(super) async fn read(&self, name: &str, bytes: usize) -> Result<Option<Vec<u8>>, StoreError> {
        let chunks = bytes.div_ceil(CHUNK);
        if bytes > MOST_BYTES {
            return Ok(None);
        }
        let mut joined = Vec::with_capacity(bytes);
        for first in (0..chunks).step_by(AT_ONCE) {
            let keys: Vec<String> =
                (first..chunks.min(first + AT_ONCE)).map(|chunk| self.key(name, chunk)).collect();
            let (found,): (Vec<Value>,) = self.link.send(pipe().mget(keys)).await?;
            for chunk in found {
                match chunk {
                    Value::BulkString(chunk) => joined.extend_from_slice(&chunk),
                    _ => return Ok(None),
                }
            }
        }
        Ok((joined.len() == bytes).then_some(joined))
    }

    /// Removes a value. If that fails, the value expires by itself.
    pub(super) async fn remove(&self, name: &str, bytes: usize) {
        let keys: Vec<String> =
            (0..bytes.min(MOST_BYTES).div_ceil(CHUNK)).map(|chunk| self.key(name, chunk)).collect();
        if !keys.is_empty()
            && let Err(error) = self.link.send::<()>(pipe().unlink(keys).ignore()).await
        {
            tracing::debug!(%error, "a value was not removed");
        }
    }
}
