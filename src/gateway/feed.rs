//! Calls as they end, for whoever watches.

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

/// How many calls are remembered for those who come later.
const LATEST: usize = 100;
/// How many calls wait for somebody who reads slowly; then some are missed.
const QUEUE: usize = 256;

/// The last calls, and those to come.
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
    /// Begins to remember calls. Until then they cost nothing.
    pub fn switch_on(&self) {
        self.on.store(true, Ordering::Relaxed);
    }

    /// Takes a call, made only if somebody may want it.
    pub fn push(&self, call: impl FnOnce() -> Value) {
        if !self.on.load(Ordering::Relaxed) {
            return;
        }
        let call = Arc::new(call());
        // In one step with sending, so that whoever begins to follow gets each call once.
        let mut latest = self.latest.lock();
        if latest.len() == LATEST {
            latest.pop_front();
        }
        latest.push_back(call.clone());
        let _ = self.sender.send(call);
    }

    /// The last calls, oldest first, and all that come.
    pub fn follow(&self) -> (Vec<Arc<Value>>, broadcast::Receiver<Arc<Value>>) {
        let latest = self.latest.lock();
        let coming = self.sender.subscribe();
        (latest.iter().cloned().collect(), coming)
    }
}
