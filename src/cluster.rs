//! Replicas of a gateway: which of them holds a session or a handle, and the way of a request to it.
//!
//! Any replica takes any request. One that belongs to another replica goes there over HTTP as it came, and is judged there as if it had
//! come from its client; a mark, which only replicas can make, says that it goes no further. Knows HTTP, but nothing of MCP.

use std::{
    net::{IpAddr, UdpSocket},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use dashmap::DashMap;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header, request::Parts};
use sha2::{Digest, Sha256};

use crate::{
    store::{Held, Replica, Replicas, StoreError},
    text::hex,
    wire::web,
};

/// Says that a request comes from another replica.
pub const MARK: HeaderName = HeaderName::from_static("x-nonet-replica");
/// The status of a replica that does not have the session of a marked request: 421, Misdirected Request (RFC 9110, section 15.5.20).
pub const MISDIRECTED: StatusCode = StatusCode::MISDIRECTED_REQUEST;
/// Headers that are of one connection (RFC 9110, section 7.6.1), and those that the client of a request makes anew.
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
/// How many sessions are remembered that are not held by the replica in their id.
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
    /// Sessions that are not held by the replica in their id, by their id.
    moved: DashMap<Box<str>, u32>,
}

/// Where a session is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whereabouts {
    /// At this replica, or nowhere.
    Here,
    /// At another one that runs.
    At(Replica),
    /// Redis has to say, and does not answer: why.
    Unclear(String),
}

/// Why a replica has no answer to a request.
#[derive(Debug)]
pub enum SendFault {
    /// It got nothing of it.
    Unsent {
        /// Whether nothing listens there any more: its process has ended.
        is_gone: bool,
        why: String,
    },
    /// It may have got it.
    Broken(String),
}

impl Cluster {
    /// Nothing is sent yet.
    pub fn new(replicas: Arc<Replicas>) -> Self {
        // Fails only without the means of TLS.
        let client = web::builder().connect_timeout(CONNECT_LIMIT).build().unwrap_or_default();
        Self { replicas, client, moved: DashMap::new() }
    }

    /// The replicas.
    pub fn replicas(&self) -> &Arc<Replicas> {
        &self.replicas
    }

    /// Whether another replica runs at an address.
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
        // Twice, so that nothing can be added to the text (RFC 2104 says why).
        let inner =
            Sha256::new_with_prefix(secret).chain_update(purpose).chain_update(":").chain_update(text);
        let outer = Sha256::new_with_prefix(secret).chain_update(inner.finalize()).finalize();
        Some(hex(&outer)[..SEAL].to_owned())
    }

    /// A new handle that says which replica has it, as every other one can see and nobody else can make up: `BASE-NUMBER-SEAL`. Only
    /// the base before Redis has answered once.
    pub fn handle(&self, base: &str) -> String {
        let named = format!("{base}-{:x}", self.replicas.number());
        match self.sealed("handle", &named) {
            Some(seal) => format!("{named}-{seal}"),
            None => base.into(),
        }
    }

    /// The number of the replica that has made a handle.
    pub fn maker(&self, handle: &str) -> Option<u32> {
        let (named, seal) = handle.rsplit_once('-')?;
        let (_, number) = named.rsplit_once('-')?;
        let number = u32::from_str_radix(number, 16).ok()?;
        // Compared as hashes, so that the time says nothing of how much was right.
        let is_good = Sha256::digest(self.sealed("handle", named)?) == Sha256::digest(seal);
        is_good.then_some(number)
    }

    /// Another replica that has made a handle and runs.
    pub async fn elsewhere(&self, handle: &str) -> Option<Replica> {
        let number = self.maker(handle).filter(|number| *number != self.replicas.number())?;
        self.replicas.get(number).await
    }

    /// Finds a session that this replica does not have in memory. `gone` is a replica that does not run any more, whatever its lease
    /// says. Unless this replica is about to stop, it becomes the holder of a session that nobody holds.
    pub async fn find(&self, session: &str, gone: Option<u32>) -> Whereabouts {
        let own = self.replicas.number();
        let last = self.moved.get(session).map(|number| *number).or_else(|| self.maker(session));
        if let Some(number) = last.filter(|number| *number != own && Some(*number) != gone)
            && let Some(replica) = self.replicas.get(number).await
            && !replica.leaving
        {
            return Whereabouts::At(replica);
        }
        let may = !self.replicas.is_leaving();
        match self.replicas.claim_session(session, gone, may).await {
            Ok(Held::By(number)) => match self.replicas.get(number).await {
                Some(replica) => {
                    self.note(session, number);
                    Whereabouts::At(replica)
                }
                // It holds the session as long as its lease lasts, but does not say where it is.
                None => Whereabouts::Unclear("the replica that holds the session is starting or gone".into()),
            },
            Ok(Held::Here(_)) => {
                self.note(session, own);
                Whereabouts::Here
            }
            Ok(Held::Unknown) => match last.filter(|number| *number != own && Some(*number) != gone) {
                // Redis may have lost it; who has it writes it again.
                Some(number) => match self.replicas.get_anew(number).await {
                    Some(replica) => Whereabouts::At(replica),
                    None => Whereabouts::Here,
                },
                None => Whereabouts::Here,
            },
            // This one is about to stop: any other takes the session over.
            Ok(Held::Free) => {
                let known = self.replicas.known();
                let other = known
                    .iter()
                    .find(|other| other.number != own && !other.leaving && Some(other.number) != gone);
                other.map_or(Whereabouts::Here, |other| Whereabouts::At(other.clone()))
            }
            Err(StoreError::Away { .. }) if last.is_none_or(|number| number == own) => Whereabouts::Here,
            Err(error) => Whereabouts::Unclear(error.to_string()),
        }
    }

    /// Takes a session over that came by a marked request; false if another replica has it, or it does not exist.
    pub async fn take_over(&self, session: &str) -> Result<bool, StoreError> {
        let held = self.replicas.claim_session(session, None, !self.replicas.is_leaving()).await?;
        Ok(matches!(held, Held::Here(_)))
    }

    /// Remembers where a session is.
    fn note(&self, session: &str, holder: u32) {
        if self.moved.len() >= MOST_MOVED {
            self.moved.clear();
        }
        self.moved.insert(session.into(), holder);
    }

    /// Forgets where a session was: its holder says that it is not there.
    pub fn forget(&self, session: &str) {
        self.note(session, self.replicas.number());
    }

    /// Takes the mark off a request. Returns whether it was good.
    pub fn is_marked(&self, headers: &mut HeaderMap) -> bool {
        let Some(given) = headers.remove(&MARK) else { return false };
        self.sealed("mark", "").is_some_and(|mark| Sha256::digest(given.as_bytes()) == Sha256::digest(mark))
    }

    /// What a request of a replica has, by which the others know it; none before Redis has answered once.
    pub fn mark(&self) -> Option<HeaderValue> {
        HeaderValue::from_str(&self.sealed("mark", "")?).ok()
    }

    /// Whether nothing listens any more where a replica was.
    pub async fn is_gone(&self, replica: &Replica) -> bool {
        let asked = self.post(replica, "/healthz", Method::GET, HeaderMap::new(), Bytes::new()).await;
        matches!(asked, Err(SendFault::Unsent { is_gone: true, .. }))
    }

    /// Sends a request to another replica as it came.
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
            // Its machine may be gone, which nobody says.
            () = self.replicas.until_gone(to.number) => {
                return Err(SendFault::Broken("its lease has run out".into()));
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

/// Whether nothing listens at an address.
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

/// The headers of an answer of a replica, as its client gets them.
pub fn answered_headers(headers: &HeaderMap) -> HeaderMap {
    let mut headers = headers.clone();
    for name in OF_CONNECTION.iter().filter(|name| **name != header::CONTENT_LENGTH) {
        headers.remove(name);
    }
    headers
}

/// The address of this machine by which Redis sees it, and so the other replicas most likely do. Sends nothing.
pub fn own_address(redis: &str) -> Option<IpAddr> {
    let socket = UdpSocket::bind(("0.0.0.0", 0)).ok()?;
    if socket.connect(redis).is_err() {
        let socket = UdpSocket::bind(("::", 0)).ok()?;
        socket.connect(redis).ok()?;
        return Some(socket.local_addr().ok()?.ip());
    }
    Some(socket.local_addr().ok()?.ip())
}
