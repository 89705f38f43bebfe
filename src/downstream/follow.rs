//! Resources whose changes clients want to hear of.
//!
//! A server is told of a resource once, however many clients follow it, and again when it is connected anew.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use rmcp::{
    RoleClient,
    model::{SubscribeRequestParams, UnsubscribeRequestParams},
    service::{Peer, ServiceError},
};
use tokio::{
    sync::{Notify, broadcast},
    time::timeout,
};

use super::{CallError, Connection, Era, deepest};

/// How many changes wait for a client that is slow to hear of them; then the oldest are lost, which it cannot notice, as it
/// reads the newest state anyway.
const QUEUE: usize = 64;
/// How long a server may take to take a subscription.
const LIMIT: Duration = Duration::from_secs(20);

/// What is followed at one server.
#[derive(Debug)]
pub(super) struct Followed {
    /// How many clients follow each resource, by the server's own URI.
    uris: Mutex<BTreeMap<String, usize>>,
    /// Told when that changes, for the subscription of the stateless era.
    changed: Notify,
    updates: broadcast::Sender<String>,
    /// Held while a server is told, so that what it is told last is what holds.
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Default for Followed {
    fn default() -> Self {
        Self {
            uris: Mutex::default(),
            changed: Notify::new(),
            updates: broadcast::channel(QUEUE).0,
            turn: Arc::default(),
        }
    }
}

impl Followed {
    /// The resources, by the server's own URIs.
    pub fn uris(&self) -> Vec<String> {
        self.uris.lock().map(|uris| uris.keys().cloned().collect()).unwrap_or_default()
    }

    /// Ends when something else is to be followed.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// A resource has changed.
    pub fn tell(&self, uri: String) {
        // Nobody may be listening just now.
        let _ = self.updates.send(uri);
    }

    /// Tells a server of the session era that was connected anew what is followed.
    pub async fn follow_again(&self, server: &str, peer: &Peer<RoleClient>) {
        for uri in self.uris() {
            if let Ok(Err(error)) = timeout(LIMIT, peer.subscribe(SubscribeRequestParams::new(uri))).await {
                tracing::warn!(server, %error, "a subscription was not taken again");
            }
        }
    }

    /// Counts a client; whether it is the first.
    fn add(&self, uri: &str) -> bool {
        let Ok(mut uris) = self.uris.lock() else { return false };
        let count = uris.entry(uri.into()).or_default();
        *count += 1;
        *count == 1
    }

    /// Counts a client less; whether it was the last.
    fn remove(&self, uri: &str) -> bool {
        let Ok(mut uris) = self.uris.lock() else { return false };
        let Some(count) = uris.get_mut(uri) else { return false };
        *count -= 1;
        let last = *count == 0;
        if last {
            uris.remove(uri);
        }
        last
    }
}

impl Connection {
    /// Follows a resource until what is returned is dropped. The server is told if nobody else follows it.
    pub async fn follow_resource(self: &Arc<Self>, uri: String) -> Result<Following, CallError> {
        let updates = self.followed.updates.subscribe();
        let _turn = self.followed.turn.lock().await;
        let first = self.followed.add(&uri);
        let following = Following { connection: self.clone(), uri, updates };
        if !first {
            return Ok(following);
        }
        self.followed.changed.notify_one();
        if self.is_legacy()
            && let Some(peer) = self.peer.load_full()
        {
            let told = timeout(LIMIT, peer.subscribe(SubscribeRequestParams::new(&*following.uri))).await;
            match told.map_err(|_| CallError::TimedOut(LIMIT))? {
                Ok(()) => {}
                Err(ServiceError::McpError(error)) => return Err(CallError::Rpc(error)),
                Err(error) => return Err(CallError::Closed(deepest(&error))),
            }
        }
        Ok(following)
    }

    fn is_legacy(&self) -> bool {
        self.era.lock().is_ok_and(|era| *era == Some(Era::Legacy))
    }
}

/// One client that follows one resource.
pub struct Following {
    connection: Arc<Connection>,
    uri: String,
    updates: broadcast::Receiver<String>,
}

impl Following {
    /// Waits for the next change of the resource. None: the connection was given up for another one.
    pub async fn updated(&mut self) -> Option<()> {
        loop {
            let update = tokio::select! {
                update = self.updates.recv() => update,
                () = self.connection.retired().cancelled() => return None,
            };
            match update {
                Ok(uri) if uri == self.uri => return Some(()),
                Ok(_) => {}
                // Changes were lost; this resource's may be among them.
                Err(broadcast::error::RecvError::Lagged(_)) => return Some(()),
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        if !self.connection.followed.remove(&self.uri) {
            return;
        }
        self.connection.followed.changed.notify_one();
        if self.connection.is_legacy()
            && let Some(peer) = self.connection.peer.load_full()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let (uri, followed) = (std::mem::take(&mut self.uri), self.connection.followed.clone());
            runtime.spawn(async move {
                let _turn = followed.turn.lock().await;
                if followed.uris().contains(&uri) {
                    return;
                }
                let _ = timeout(LIMIT, peer.unsubscribe(UnsubscribeRequestParams::new(uri))).await;
            });
        }
    }
}
