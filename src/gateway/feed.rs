//! Finished calls, for observers.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::broadcast;

/// How many finished calls are kept for new observers.
const LATEST: usize = 100;
/// How many calls are queued for a slow observer; beyond that, the oldest calls are dropped.
const QUEUE: usize = 256;

/// The latest calls, and a channel for new ones.
#[derive(Debug)]
pub struct Feed {
    on: AtomicBool,
    latest: Mutex<VecDeque<Arc<Value>>>,
    sender: broadcast::Sender<Arc<Value>>,
}

impl Default for Feed {
    fn default() -> Self {
        Self { on: AtomicBool::new(false), latest: Mutex::default(), sender: broadcast::Sender::new(QUEUE) }
    }
}

impl Feed {
    /// Starts recording. Until then a call costs nothing.
    pub fn switch_on(&self) {
        self.on.store(true, Ordering::Relaxed);
    }

    /// Records a call. `call` runs only after [`Feed::switch_on`].
    pub fn push(&self, call: impl FnOnce() -> Value) {
        if !self.on.load(Ordering::Relaxed) {
            return;
        }
        let call = Arc::new(call());
        // Under the same lock as sending, so a new observer gets each call exactly once.
        let mut latest = self.latest.lock();
        if latest.len() == LATEST {
            latest.pop_front();
        }
        latest.push_back(call.clone());
        let _ = self.sender.send(call);
    }

    /// Returns the latest calls, oldest first, and a receiver for new ones.
    pub fn follow(&self) -> (Vec<Arc<Value>>, broadcast::Receiver<Arc<Value>>) {
        let latest = self.latest.lock();
        let coming = self.sender.subscribe();
        (latest.iter().cloned().collect(), coming)
    }
}
