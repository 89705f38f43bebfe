//! The backlog of output for a peer that does not read. It is counted, so that producers can stop.

use std::sync::Arc;

use tokio::sync::watch;

/// The overhead of a waiting message besides its bytes, such as the task that writes it.
const OF_MESSAGE: usize = 500;

/// The messages waiting for one peer.
#[derive(Clone, Debug)]
pub struct Backlog(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    bytes: watch::Sender<usize>,
    limit: usize,
}

impl Backlog {
    /// Returns an empty backlog. The peer counts as stuck while `limit` bytes wait for it.
    pub fn new(limit: usize) -> Self {
        Self(Arc::new(Inner { bytes: watch::Sender::new(0), limit }))
    }

    /// Counts a message until the returned value is dropped.
    pub fn enter(&self, bytes: usize) -> WaitingMessage {
        let waiting = WaitingMessage { backlog: self.clone(), bytes: bytes + OF_MESSAGE };
        // Nobody waits for an increase.
        self.0.bytes.send_if_modified(|all| {
            *all += waiting.bytes;
            false
        });
        waiting
    }

    /// Returns how many bytes are waiting.
    pub fn bytes(&self) -> usize {
        *self.0.bytes.borrow()
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
        if self.is_stuck() {
            // Half the limit, so that a producer does not stop and start with each message.
            let _ = self.0.bytes.subscribe().wait_for(|bytes| *bytes < self.0.limit / 2).await;
        }
    }
}

/// A waiting message.
#[derive(Debug)]
pub struct WaitingMessage {
    backlog: Backlog,
    bytes: usize,
}

impl Drop for WaitingMessage {
    fn drop(&mut self) {
        let Inner { bytes, limit } = &*self.backlog.0;
        bytes.send_if_modified(|all| {
            let was_more = *all >= limit / 2;
            *all -= self.bytes;
            was_more && *all < limit / 2
        });
    }
}
