//! The backlog of output for a peer that does not read. It is counted, so that producers can stop.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tokio::sync::Notify;

/// The overhead of a waiting message besides its bytes, such as the task that writes it.
const OF_MESSAGE: usize = 500;

/// The messages waiting for one peer.
#[derive(Clone, Debug)]
pub struct Backlog(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    bytes: AtomicUsize,
    limit: usize,
    /// Notified when the bytes fall below half the limit.
    eased: Notify,
}

impl Backlog {
    /// Returns an empty backlog. The peer counts as stuck while `limit` bytes wait for it.
    pub fn new(limit: usize) -> Self {
        Self(Arc::new(Inner { bytes: AtomicUsize::new(0), limit, eased: Notify::new() }))
    }

    /// Counts a message until the returned value is dropped.
    pub fn enter(&self, bytes: usize) -> WaitingMessage {
        let waiting = WaitingMessage { backlog: self.clone(), bytes: bytes + OF_MESSAGE };
        self.0.bytes.fetch_add(waiting.bytes, Ordering::SeqCst);
        waiting
    }

    /// Returns how many bytes are waiting.
    pub fn bytes(&self) -> usize {
        self.0.bytes.load(Ordering::SeqCst)
    }

    /// Returns whether the backlog has reached its limit.
    pub fn is_stuck(&self) -> bool {
        self.bytes() >= self.0.limit
    }

    /// Returns whether the backlog is twice the limit: then even answers to the peer are dropped.
    pub fn is_full(&self) -> bool {
        self.bytes() >= 2 * self.0.limit
    }

    /// Waits until the peer has read enough.
    pub async fn unstuck(&self) {
        if !self.is_stuck() {
            return;
        }
        loop {
            let eased = self.0.eased.notified();
            tokio::pin!(eased);
            eased.as_mut().enable();
            // Half the limit, so that a producer does not stop and start with each message.
            if self.bytes() < self.0.limit / 2 {
                return;
            }
            eased.await;
        }
    }
}

/// A waiting message, or several that are written together.
#[derive(Debug)]
pub struct WaitingMessage {
    backlog: Backlog,
    bytes: usize,
}

impl WaitingMessage {
    /// Waits together with another one of the same backlog.
    pub fn join(&mut self, mut other: Self) {
        self.bytes += std::mem::take(&mut other.bytes);
    }
}

impl Drop for WaitingMessage {
    fn drop(&mut self) {
        let Inner { bytes, limit, eased } = &*self.backlog.0;
        let before = bytes.fetch_sub(self.bytes, Ordering::SeqCst);
        if before >= limit / 2 && before - self.bytes < limit / 2 {
            eased.notify_waiters();
        }
    }
}
