//! The replicas' vectors of tools, in Redis: `PREFIX:vector:{MODEL:D}:NAME`, where the name is the hash of a
//! content and D its first digit. The keys are described in `vectors.lua`.
//!
//! A value holds the number of its format, the vector's numbers as they are on disk, and a checksum, so that
//! a vector is bit-for-bit the same wherever it was made.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use futures::future::BoxFuture;
use nonet_base::clock::{Clock, millis};
use nonet_search::{SharedVectors, VectorKey};
use parking_lot::Mutex;
use redis::ScriptInvocation;
use sha2::{Digest, Sha256};

use super::{
    super::StoreError,
    link::{Methods, RedisLink, newer_is_there, script},
};

static METHODS: Methods = Methods::new(|| script(include_str!("vectors.lua")));

/// How long an unused vector is kept.
const LIFE: Duration = Duration::from_secs(90 * 24 * 3600);
/// The maximum number of a model's vectors: about 300 MB at 384 numbers each, as on disk.
const MOST_VECTORS: usize = 200_000;
/// The number of parts of a model's vectors, by the first digit of their names.
const PARTS: usize = 16;
/// Longer vectors are not shared.
const LONGEST: usize = 16_384;
/// How many vectors are read or stored at a time, and their approximate total size in bytes.
const AT_ONCE: usize = 256;
const BYTES_AT_ONCE: usize = 1 << 20;
const FORMAT: u8 = 1;
const CHECKSUM: usize = 8;

/// The vectors under a prefix.
#[derive(Debug)]
pub(crate) struct VectorKeys {
    link: Arc<RedisLink>,
    prefix: String,
    clock: Clock,
    most: usize,
    /// The vectors that this replica uses and has seen in Redis.
    used: Mutex<UsedVectors>,
}

/// The used vectors of one model.
#[derive(Debug, Default)]
struct UsedVectors {
    model: String,
    keys: HashSet<VectorKey>,
}

impl VectorKeys {
    pub(super) fn new(link: Arc<RedisLink>, prefix: &str, clock: Clock) -> Self {
        Self { link, prefix: prefix.into(), clock, most: MOST_VECTORS, used: Mutex::default() }
    }

    /// Returns a method call for vectors of one part.
    fn call(&self, model: &str, part: u8, method: &str) -> ScriptInvocation<'static> {
        let base = format!("{}:vector:{{{model}:{part:x}}}:", self.prefix);
        let mut call = METHODS.call(&base, method);
        call.arg(self.clock.ahead_ms()).arg(millis(LIFE));
        call
    }

    async fn try_read(
        &self,
        model: &str,
        keys: &[VectorKey],
        found: &mut [Option<Arc<[f32]>>],
    ) -> Result<(), StoreError> {
        for (part, places) in parts(keys.iter()) {
            for some in places.chunks(AT_ONCE) {
                let mut call = self.call(model, part, "read");
                for at in some {
                    call.arg(hex(&keys[*at]));
                }
                let values: Vec<Option<Vec<u8>>> = self.link.run(&call).await?;
                for (at, value) in some.iter().zip(values) {
                    found[*at] = value.and_then(|value| vector_of(&value));
                }
                let there = some.iter().filter(|at| found[**at].is_some()).map(|at| keys[*at]);
                self.note(model, there);
            }
        }
        Ok(())
    }

    async fn try_offer(&self, model: &str, vectors: &[(VectorKey, Arc<[f32]>)]) -> Result<(), StoreError> {
        let news: Vec<&(VectorKey, Arc<[f32]>)> = {
            let used = self.used.lock();
            let is_new = |key: &VectorKey| used.model != model || !used.keys.contains(key);
            vectors.iter().filter(|(key, vector)| vector.len() <= LONGEST && is_new(key)).collect()
        };
        for (part, places) in parts(news.iter().map(|(key, _)| key)) {
            for some in places.chunks(AT_ONCE) {
                let mut call = self.call(model, part, "use");
                for at in some {
                    call.arg(hex(&news[*at].0));
                }
                let missing: Vec<usize> = self.link.run(&call).await?;
                let missing: Vec<_> = missing.into_iter().filter_map(|at| some.get(at)).collect();
                let longest = missing.iter().map(|at| news[**at].1.len()).max().unwrap_or(0);
                let fit = (BYTES_AT_ONCE / (longest * size_of::<f32>()).max(1)).clamp(1, AT_ONCE);
                for some in missing.chunks(fit) {
                    let mut call = self.call(model, part, "put");
                    call.arg(self.most / PARTS);
                    for at in some {
                        let (key, vector) = news[**at];
                        call.arg(hex(key)).arg(bytes_of(vector));
                    }
                    self.link.run::<()>(&call).await?;
                }
                self.note(model, some.iter().map(|at| news[*at].0));
            }
        }
        Ok(())
    }

    /// Notes vectors that are in Redis and in use here.
    fn note(&self, model: &str, keys: impl Iterator<Item = VectorKey>) {
        let mut used = self.used.lock();
        if used.model != model {
            *used = UsedVectors { model: model.into(), keys: HashSet::new() };
        }
        for key in keys {
            if used.keys.len() < self.most {
                used.keys.insert(key);
            }
        }
    }

    /// Postpones the expiry of the vectors that this replica uses. Vectors missing from Redis are offered
    /// with the next list.
    pub(super) async fn renew(&self) -> Result<(), StoreError> {
        let (model, keys) = {
            let used = self.used.lock();
            (used.model.clone(), used.keys.iter().copied().collect::<Vec<_>>())
        };
        for (part, places) in parts(keys.iter()) {
            for some in places.chunks(AT_ONCE) {
                let mut call = self.call(&model, part, "use");
                for at in some {
                    call.arg(hex(&keys[*at]));
                }
                let missing: Vec<usize> = self.link.run(&call).await?;
                let mut used = self.used.lock();
                for at in missing.into_iter().filter_map(|at| some.get(at)) {
                    used.keys.remove(&keys[*at]);
                }
            }
        }
        Ok(())
    }
}

impl SharedVectors for VectorKeys {
    fn read<'a>(&'a self, model: &'a str, keys: &'a [VectorKey]) -> BoxFuture<'a, Vec<Option<Arc<[f32]>>>> {
        Box::pin(async move {
            let mut found = vec![None; keys.len()];
            if let Err(error) = self.try_read(model, keys, &mut found).await {
                tracing::debug!(%error, "the vectors of other replicas were not read");
            }
            found
        })
    }

    fn offer<'a>(&'a self, model: &'a str, vectors: &'a [(VectorKey, Arc<[f32]>)]) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            if let Err(error) = self.try_offer(model, vectors).await {
                tracing::debug!(%error, "vectors were not shared with other replicas");
            }
        })
    }
}

/// Returns the indices of keys, by the first digit of their names.
fn parts<'a>(keys: impl Iterator<Item = &'a VectorKey>) -> BTreeMap<u8, Vec<usize>> {
    let mut parts: BTreeMap<u8, Vec<usize>> = BTreeMap::new();
    for (at, key) in keys.enumerate() {
        parts.entry(key[0] >> 4).or_default().push(at);
    }
    parts
}

fn hex(key: &VectorKey) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes_of(vector: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1 + size_of_val(vector) + CHECKSUM);
    bytes.push(FORMAT);
    vector.iter().for_each(|value| bytes.extend_from_slice(&value.to_le_bytes()));
    let sum = checksum(&bytes);
    bytes.extend_from_slice(&sum);
    bytes
}

/// Returns the vector in a value; `None` if it is damaged, or a newer Nonet's.
fn vector_of(bytes: &[u8]) -> Option<Arc<[f32]>> {
    let (body, sum) = bytes.split_last_chunk::<CHECKSUM>()?;
    let (&format, numbers) = body.split_first()?;
    if format != FORMAT {
        newer_is_there();
        return None;
    }
    let (numbers, rest) = numbers.as_chunks::<4>();
    let is_whole = rest.is_empty() && (1..=LONGEST).contains(&numbers.len()) && checksum(body) == *sum;
    is_whole.then(|| numbers.iter().map(|number| f32::from_le_bytes(*number)).collect())
}

fn checksum(bytes: &[u8]) -> [u8; CHECKSUM] {
    Sha256::digest(bytes).first_chunk().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests;
