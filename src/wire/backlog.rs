//! What waits for an end that does not read. It is counted, so that whoever produces it can stop.

use std::sync::Arc;

use tokio::sync::watch;

/// What a message that waits takes besides its bytes: the task that writes it, for one.
const OF_MESSAGE: usize = 500;

/// The messages that wait for one end.
#[derive(Clone, Debug)]
pub struct Backlog(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    bytes: watch::Sender<usize>,
    limit: usize,
}

impl Backlog {
    /// An end counts as stuck while `limit` bytes wait for it.
    pub fn new(limit: usize) -> Self {
        Self(Arc::new(Inner { bytes: watch::Sender::new(0), limit }))
    }

    /// Counts a message until the result is dropped.
    pub fn enter(&self, bytes: usize) -> Waiting {
        let waiting = Waiting { backlog: self.clone(), bytes: bytes + OF_MESSAGE };
        // Nobody waits for more.
        self.0.bytes.send_if_modified(|all| {
            *all += waiting.bytes;
            false
        });
        waiting
    }

    /// How many bytes wait.
    pub fn bytes(&self) -> usize {
        *self.0.bytes.borrow()
    }

    /// Whether as much waits as may.
    pub fn is_stuck(&self) -> bool {
        self.bytes() >= self.0.limit
    }

    /// Whether twice as much waits: then not even what is owed to the other end is kept for it.
    pub fn is_full(&self) -> bool {
        self.bytes() >= 2 * self.0.limit
    }

    /// Waits until the other end has read enough.
    pub async fn unstuck(&self) {
        if self.is_stuck() {
            // Half, so that whoever waits does not start and stop with each message.
            let _ = self.0.bytes.subscribe().wait_for(|bytes| *bytes < self.0.limit / 2).await;
        }
    }
}

/// A message that waits.
#[derive(Debug)]
pub struct Waiting {
    backlog: Backlog,
    bytes: usize,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let Inner { bytes, limit } = &*self.backlog.0;
        bytes.send_if_modified(|all| {
            let was_more = *all >= limit / 2;
            *all -= self.bytes;
            was_more && *all < limit / 2
        });
    }
}
