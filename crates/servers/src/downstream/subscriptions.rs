//! Clients' subscriptions to resource changes.
//!
//! A server gets one subscription per resource, however many clients subscribe, and gets it again after a
//! reconnect.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{sync::broadcast, time::timeout};
use tokio_util::sync::CancellationToken;

use super::{CallError, Connection, Era, link::Link};

/// The maximum number of changes queued for a slow client. The oldest are dropped first, which the client
/// cannot notice, because it reads the newest state anyway.
const QUEUE: usize = 64;
/// The longest time for a server to accept or end a subscription.
const LIMIT: Duration = Duration::from_secs(20);
/// The longest time for a server to accept a log level.
const LEVEL_LIMIT: Duration = Duration::from_secs(5);

/// The subscriptions at one server.
#[derive(Debug)]
pub(super) struct Subscriptions {
    /// The number of clients per resource, by the server's own URI.
    counts: Mutex<BTreeMap<String, usize>>,
    updates: broadcast::Sender<String>,
    /// Held while the server is notified of a change here, so that the last request matches the last count.
    turn: tokio::sync::Mutex<()>,
}

impl Default for Subscriptions {
    fn default() -> Self {
        Self { counts: Mutex::default(), updates: broadcast::channel(QUEUE).0, turn: Default::default() }
    }
}

impl Subscriptions {
    /// Returns the resources, by the server's own URIs.
    pub(super) fn uris(&self) -> Vec<String> {
        self.counts.lock().keys().cloned().collect()
    }

    /// Passes on a change of a resource.
    pub(super) fn updated(&self, uri: String) {
        // Fails if nobody is listening at the moment.
        let _ = self.updates.send(uri);
    }

    /// Adds a client. Returns whether it is the first.
    fn add(&self, uri: &str) -> bool {
        let mut counts = self.counts.lock();
        let count = counts.entry(uri.into()).or_default();
        *count += 1;
        *count == 1
    }

    /// Removes a client. Returns whether it was the last.
    fn remove(&self, uri: &str) -> bool {
        let mut counts = self.counts.lock();
        let Some(count) = counts.get_mut(uri) else { return false };
        *count -= 1;
        let last = *count == 0;
        if last {
            counts.remove(uri);
        }
        last
    }
}

impl Connection {
    /// Returns whether the server is connected and announces changes of single resources.
    pub fn follows_resources(&self) -> bool {
        self.link().is_some_and(|link| link.follows_resources())
    }

    /// Subscribes to a resource until the returned value is dropped. Only the first subscriber causes a
    /// request to the server.
    pub async fn subscribe(self: &Arc<Self>, uri: String) -> Result<ResourceSubscription, CallError> {
        let updates = self.subscriptions.updates.subscribe();
        let _turn = self.subscriptions.turn.lock().await;
        let first = self.subscriptions.add(&uri);
        let subscription = ResourceSubscription { connection: self.clone(), uri, updates };
        if first && let Some(link) = self.link() {
            let subscribed = timeout(LIMIT, link.subscribe(subscription.uri.clone())).await;
            subscribed.map_err(|_| CallError::TimedOut(LIMIT))??;
        }
        Ok(subscription)
    }

    /// Restores the log level and the subscriptions at a session-era server that has just become ready. A
    /// change stream of the stateless era includes them from the start.
    pub(super) fn restore(&self, link: Arc<dyn Link>, closed: &CancellationToken) {
        if link.era() != Some(Era::Session) {
            return;
        }
        let level = *self.log_level.lock();
        let (server, subscriptions) = (self.name.clone(), self.subscriptions.clone());
        tokio::spawn(closed.clone().run_until_cancelled_owned(async move {
            if let Some(level) = level {
                let _ = timeout(LEVEL_LIMIT, link.set_log_level(level)).await;
            }
            for uri in subscriptions.uris() {
                if let Ok(Err(error)) = timeout(LIMIT, link.subscribe(uri)).await {
                    tracing::warn!(%server, %error, "a subscription was refused after a reconnect");
                }
            }
        }));
    }

    /// Sets the log level that the server gets when it connects.
    pub fn begin_with_log(&self, level: Option<super::LogLevel>) {
        *self.log_level.lock() = level;
    }

    /// Sets the server's log level, now and after each reconnect.
    pub async fn set_log_level(&self, level: super::LogLevel) {
        *self.log_level.lock() = Some(level);
        if let Some(link) = self.link() {
            let _ = timeout(LEVEL_LIMIT, link.set_log_level(level)).await;
        }
    }
}

impl Connection {
    /// Lowers the server's log level for another replica, unless it is already that low.
    pub async fn lower_log_level(&self, level: super::LogLevel) {
        let is_lower = self.log_level.lock().is_none_or(|now| level < now);
        if is_lower {
            self.set_log_level(level).await;
        }
    }
}

/// One client's subscription to one resource.
pub struct ResourceSubscription {
    connection: Arc<Connection>,
    uri: String,
    updates: broadcast::Receiver<String>,
}

impl ResourceSubscription {
    /// Waits for the next change of the resource. Returns `None` once the connection is retired.
    pub async fn updated(&mut self) -> Option<()> {
        loop {
            let update = tokio::select! {
                update = self.updates.recv() => update,
                () = self.connection.retired().cancelled() => return None,
            };
            match update {
                Ok(uri) if uri == self.uri => return Some(()),
                Ok(_) => {}
                // Changes were dropped, maybe including this resource's.
                Err(broadcast::error::RecvError::Lagged(_)) => return Some(()),
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }
}

impl Drop for ResourceSubscription {
    fn drop(&mut self) {
        if !self.connection.subscriptions.remove(&self.uri) {
            return;
        }
        if let Some(link) = self.connection.link()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let (uri, subscriptions) = (std::mem::take(&mut self.uri), self.connection.subscriptions.clone());
            runtime.spawn(async move {
                let _turn = subscriptions.turn.lock().await;
                if !subscriptions.uris().contains(&uri) {
                    let _ = timeout(LIMIT, link.unsubscribe(uri)).await;
                }
            });
        }
    }
}
