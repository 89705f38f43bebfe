//! Replicas of a gateway: finds the replica that holds a session or a handle, and forwards requests to it.
//!
//! Any replica accepts any request. A request that belongs to another replica is forwarded there over HTTP
//! unchanged, and is checked there as if its client had sent it. A mark, which only replicas can make, stops
//! it from being forwarded again. This room knows HTTP, but nothing of MCP.

use std::{
    net::{IpAddr, UdpSocket},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use dashmap::DashMap;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header, request::Parts};
use nonet_base::text::hex;
use nonet_store::{Replica, Replicas, SessionHolder, StoreError};
use nonet_wire::web;
use sha2::{Digest, Sha256};

/// Marks a request from another replica.
pub const MARK: HeaderName = HeaderName::from_static("x-nonet-replica");
/// The answer of a replica that does not have the session of a marked request: 421, Misdirected Request (RFC
/// 9110, section 15.5.20).
pub const MISDIRECTED: StatusCode = StatusCode::MISDIRECTED_REQUEST;
/// Hop-by-hop headers (RFC 9110, section 7.6.1), and headers that the HTTP client sets itself.
const OF_CONNECTION: [HeaderName; 8] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::TRANSFER_ENCODING,
    header::TE,
    header::TRAILER,
    header::UPGRADE,
    header::HOST,
    header::CONTENT_LENGTH,
];
/// How many sessions are remembered whose holder is not the replica in their id.
const MOST_MOVED: usize = 100_000;
/// How long a replica may take to accept a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// Characters of a seal.
const SEAL: usize = 24;

/// This replica among the others.
#[derive(Debug)]
pub struct Cluster {
    replicas: Arc<Replicas>,
    client: reqwest::Client,
    /// Sessions whose holder is not the replica in their id, by id.
    moved: DashMap<Box<str>, u32>,
}

/// Where a session is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionLocation {
    /// At this replica, or at none.
    Here,
    /// At another running replica.
    At(Replica),
    /// Only Redis knows, and Redis does not answer: why.
    Unclear(String),
}

/// Why a replica did not answer a request.
#[derive(Debug)]
pub enum SendFault {
    /// The replica received nothing of it.
    Unsent {
        /// Whether nothing listens at the address any more: the replica's process has ended.
        is_gone: bool,
        /// The reason, for people.
        why: String,
    },
    /// The replica may have received it.
    Broken(String),
}

impl Cluster {
    /// Returns the cluster. Sends nothing yet.
    pub fn new(replicas: Arc<Replicas>) -> Self {
        // Fails only if TLS cannot be set up.
        let client = web::builder().connect_timeout(CONNECT_LIMIT).build().unwrap_or_default();
        Self { replicas, client, moved: DashMap::new() }
    }

    /// Returns the replicas.
    pub fn replicas(&self) -> &Arc<Replicas> {
        &self.replicas
    }

    /// Returns whether another replica runs at an address.
    pub fn has_replica_at(&self, address: IpAddr) -> bool {
        let (own, address) = (self.replicas.number(), address.to_canonical());
        self.replicas.known().iter().filter(|replica| replica.number != own).any(|replica| {
            let host = replica.address.parse::<Uri>().ok();
            let host = host.as_ref().and_then(Uri::host).map(|host| host.trim_matches(['[', ']']));
            host.and_then(|host| host.parse().ok()) == Some(address)
        })
    }

    fn sealed(&self, purpose: &str, text: &str) -> Option<String> {
        let secret = self.replicas.secret()?;
        // Hashed twice against length extension (RFC 2104).
        let inner =
            Sha256::new_with_prefix(secret).chain_update(purpose).chain_update(":").chain_update(text);
        let outer = Sha256::new_with_prefix(secret).chain_update(inner.finalize()).finalize();
        Some(hex(&outer)[..SEAL].to_owned())
    }

    /// Returns a new handle that names its replica, readable by every replica and forgeable by nobody else:
    /// `BASE-NUMBER-SEAL`. Only the base until Redis has answered once.
    pub fn handle(&self, base: &str) -> String {
        let named = format!("{base}-{:x}", self.replicas.number());
        match self.sealed("handle", &named) {
            Some(seal) => format!("{named}-{seal}"),
            None => base.into(),
        }
    }

    /// Returns the number of the replica that made a handle.
    pub fn maker(&self, handle: &str) -> Option<u32> {
        let (named, seal) = handle.rsplit_once('-')?;
        let (_, number) = named.rsplit_once('-')?;
        let number = u32::from_str_radix(number, 16).ok()?;
        // Hashes are compared, so that timing reveals nothing about the seal.
        let is_good = Sha256::digest(self.sealed("handle", named)?) == Sha256::digest(seal);
        is_good.then_some(number)
    }

    /// Returns the replica that made a handle, if it is another one and is running.
    pub async fn elsewhere(&self, handle: &str) -> Option<Replica> {
        let number = self.maker(handle).filter(|number| *number != self.replicas.number())?;
        self.replicas.get(number).await
    }

    /// Finds a session that this replica does not have in memory. `gone` is a replica that no longer runs,
    /// whatever its lease says. Unless this replica is about to stop, it becomes the holder of an unheld
    /// session.
    pub async fn find(&self, session: &str, gone: Option<u32>) -> SessionLocation {
        let own = self.replicas.number();
        let last = self.moved.get(session).map(|number| *number).or_else(|| self.maker(session));
        if let Some(number) = last.filter(|number| *number != own && Some(*number) != gone)
            && let Some(replica) = self.replicas.get(number).await
            && !replica.leaving
        {
            return SessionLocation::At(replica);
        }
        let may = !self.replicas.is_leaving();
        match self.replicas.claim_session(session, gone, may).await {
            Ok(SessionHolder::By(number)) => match self.replicas.get(number).await {
                Some(replica) => {
                    self.note(session, number);
                    SessionLocation::At(replica)
                }
                // That replica holds the session until its lease expires, but has no address.
                None => {
                    SessionLocation::Unclear("the replica that holds the session is starting or gone".into())
                }
            },
            Ok(SessionHolder::Here(_)) => {
                self.note(session, own);
                SessionLocation::Here
            }
            Ok(SessionHolder::Unknown) => match last.filter(|number| *number != own && Some(*number) != gone)
            {
                // Redis may have lost the entry; the holder will write it again.
                Some(number) => match self.replicas.get_anew(number).await {
                    Some(replica) => SessionLocation::At(replica),
                    None => SessionLocation::Here,
                },
                None => SessionLocation::Here,
            },
            // This replica is about to stop, so any other one takes over the session.
            Ok(SessionHolder::Free) => {
                let known = self.replicas.known();
                let other = known
                    .iter()
                    .find(|other| other.number != own && !other.leaving && Some(other.number) != gone);
                other.map_or(SessionLocation::Here, |other| SessionLocation::At(other.clone()))
            }
            Err(StoreError::Away { .. }) if last.is_none_or(|number| number == own) => SessionLocation::Here,
            Err(error) => SessionLocation::Unclear(error.to_string()),
        }
    }

    /// Takes over the session of a marked request. Returns false if another replica has it, or if it does not
    /// exist.
    pub async fn take_over(&self, session: &str) -> Result<bool, StoreError> {
        let held = self.replicas.claim_session(session, None, !self.replicas.is_leaving()).await?;
        Ok(matches!(held, SessionHolder::Here(_)))
    }

    /// Remembers a session's holder.
    fn note(&self, session: &str, holder: u32) {
        if self.moved.len() >= MOST_MOVED {
            self.moved.clear();
        }
        self.moved.insert(session.into(), holder);
    }

    /// Forgets a session's holder, which has reported that it does not have the session.
    pub fn forget(&self, session: &str) {
        self.note(session, self.replicas.number());
    }

    /// Removes the mark from a request. Returns whether it was valid.
    pub fn is_marked(&self, headers: &mut HeaderMap) -> bool {
        let Some(given) = headers.remove(&MARK) else { return false };
        self.sealed("mark", "").is_some_and(|mark| Sha256::digest(given.as_bytes()) == Sha256::digest(mark))
    }

    /// Returns the mark by which the other replicas recognize this one's requests; `None` until Redis has
    /// answered once.
    pub fn mark(&self) -> Option<HeaderValue> {
        HeaderValue::from_str(&self.sealed("mark", "")?).ok()
    }

    /// Returns whether nothing listens at a replica's address any more.
    pub async fn is_gone(&self, replica: &Replica) -> bool {
        let asked = self.post(replica, "/healthz", Method::GET, HeaderMap::new(), Bytes::new()).await;
        matches!(asked, Err(SendFault::Unsent { is_gone: true, .. }))
    }

    /// Forwards a request to another replica unchanged.
    pub async fn send(
        &self,
        to: &Replica,
        parts: &Parts,
        authorization: Option<&HeaderValue>,
        body: Bytes,
    ) -> Result<reqwest::Response, SendFault> {
        let mut headers = parts.headers.clone();
        for name in &OF_CONNECTION {
            headers.remove(name);
        }
        if let Some(authorization) = authorization {
            headers.insert(header::AUTHORIZATION, authorization.clone());
        }
        let path = parts.uri.path_and_query().map_or("/mcp", |path| path.as_str());
        self.post(to, path, parts.method.clone(), headers, body).await
    }

    /// Sends a marked request to a path of another replica.
    pub async fn post(
        &self,
        to: &Replica,
        path: &str,
        method: Method,
        mut headers: HeaderMap,
        body: Bytes,
    ) -> Result<reqwest::Response, SendFault> {
        let Some(mark) = self.mark() else {
            let why = "the replicas do not know each other yet".to_string();
            return Err(SendFault::Unsent { is_gone: false, why });
        };
        headers.insert(MARK, mark);
        let url = format!("{}{path}", to.address.trim_end_matches('/'));
        let sending = self.client.request(method, url).headers(headers).body(body).send();
        let sent = tokio::select! {
            sent = sending => sent,
            // The replica's machine may be gone, in which case no error ever arrives.
            () = self.replicas.until_gone(to.number) => {
                return Err(SendFault::Broken("its lease has expired".into()));
            }
        };
        sent.map_err(|error| {
            let (is_unsent, is_gone) = (error.is_connect() || error.is_builder(), is_refused(&error));
            match (is_unsent, web::cause(error)) {
                (true, why) => SendFault::Unsent { is_gone, why },
                (false, why) => SendFault::Broken(why),
            }
        })
    }
}

/// Returns whether an error means that nothing listens at the address.
fn is_refused(error: &reqwest::Error) -> bool {
    let mut at: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = at {
        if let Some(error) = error.downcast_ref::<std::io::Error>()
            && error.kind() == std::io::ErrorKind::ConnectionRefused
        {
            return true;
        }
        at = error.source();
    }
    false
}

/// Returns the headers of a replica's answer, as the client gets them.
pub fn answered_headers(headers: &HeaderMap) -> HeaderMap {
    let mut headers = headers.clone();
    for name in OF_CONNECTION.iter().filter(|name| **name != header::CONTENT_LENGTH) {
        headers.remove(name);
    }
    headers
}

/// Returns the address that this machine uses towards Redis, which most likely reaches it from the other
/// replicas too. Sends nothing.
pub fn own_address(redis: &str) -> Option<IpAddr> {
    let socket = UdpSocket::bind(("0.0.0.0", 0)).ok()?;
    if socket.connect(redis).is_err() {
        let socket = UdpSocket::bind(("::", 0)).ok()?;
        socket.connect(redis).ok()?;
        return Some(socket.local_addr().ok()?.ip());
    }
    Some(socket.local_addr().ok()?.ip())
}
