//! Links in results: who may read them later, and from which server.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
};

use nonet_base::text::hex;
use nonet_parts::cluster::Cluster;
use nonet_servers::prompts_resources::{named_uri, split_named};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

/// The longest remembered URI of a link, in bytes.
pub const MAX_LINK: usize = 8_000;
/// How many links in each server's results a session remembers, so that reading a link finds its server; the
/// oldest are dropped first.
const LINKS: usize = 1_000;

/// The links in results, by the server that returned them. Each server has its own entries and its own limit.
#[derive(Debug, Default)]
pub struct Links(Mutex<HashMap<Arc<str>, LinksOfServer>>);

#[derive(Debug, Default)]
struct LinksOfServer {
    uris: HashSet<Arc<str>>,
    order: VecDeque<Arc<str>>,
}

impl Links {
    /// Remembers that a server returned a link to a URI; ignores URIs longer than [`MAX_LINK`].
    pub fn note(&self, uri: &str, server: &Arc<str>) {
        let mut known = self.0.lock();
        let links = known.entry(server.clone()).or_default();
        if uri.len() > MAX_LINK || links.uris.contains(uri) {
            return;
        }
        if links.order.len() == LINKS
            && let Some(oldest) = links.order.pop_front()
        {
            links.uris.remove(&oldest);
        }
        let uri: Arc<str> = uri.into();
        links.uris.insert(uri.clone());
        links.order.push_back(uri);
    }

    /// Returns the servers that returned a link to a URI.
    pub fn of(&self, uri: &str) -> Vec<Arc<str>> {
        let known = self.0.lock();
        known.iter().filter(|(_, links)| links.uris.contains(uri)).map(|(server, _)| server.clone()).collect()
    }
}

/// The key of this process for links in results of requests without a session. Such a link names its server
/// and carries a seal that nobody else can make. The link is valid for the profile that received it, as long
/// as the gateway runs. Replicas share one key.
#[derive(Debug)]
pub struct Seal {
    own: [u8; 32],
    cluster: Option<Arc<Cluster>>,
}

impl Seal {
    /// Creates a key; replicas of a cluster agree on one later.
    pub fn new(cluster: Option<Arc<Cluster>>) -> Self {
        let (one, two) = (uuid::Uuid::new_v4(), uuid::Uuid::new_v4());
        let mut key = [0; 32];
        key[..16].copy_from_slice(one.as_bytes());
        key[16..].copy_from_slice(two.as_bytes());
        Self { own: key, cluster }
    }
}

/// The prefix of a seal in a URI that names its server.
const SEALED: char = '~';

impl Seal {
    /// Returns the seal of a link: 32 hex digits of a keyed SHA-256.
    pub fn of(&self, profile: &str, server: &str, uri: &str) -> String {
        let shared = self.cluster.as_ref().and_then(|cluster| cluster.replicas().secret());
        let key = shared.unwrap_or(&self.own);
        let inner = [
            &[profile.len() as u64, server.len() as u64].map(u64::to_be_bytes).concat()[..],
            profile.as_bytes(),
            server.as_bytes(),
            uri.as_bytes(),
        ];
        let inner = inner.iter().fold(Sha256::new_with_prefix(key), |hash, part| hash.chain_update(part));
        let outer = Sha256::new_with_prefix(key).chain_update(inner.finalize()).finalize();
        hex(&outer[..16])
    }

    /// Returns the URI under which a client without a session reads a link.
    pub fn close(&self, profile: &str, server: &str, uri: &str) -> String {
        let seal = self.of(profile, server, uri);
        named_uri(server, &format!("{SEALED}{seal}/{uri}"))
    }

    /// Returns the server of a link with a valid seal, and the link's URI there.
    pub fn open<'u>(&self, profile: &str, uri: &'u str) -> Option<(&'u str, &'u str)> {
        let (server, rest) = split_named(uri)?;
        let (seal, own) = rest.strip_prefix(SEALED)?.split_once('/')?;
        // Compared as hashes, so that timing does not reveal how much of the seal was right.
        let is_good = Sha256::digest(self.of(profile, server, own)) == Sha256::digest(seal);
        is_good.then_some((server, own))
    }
}
