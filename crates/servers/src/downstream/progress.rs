//! Progress of a call, from its server to whoever waits for the call.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::mpsc;

/// The destination of a call's progress notifications: their `params`, in order. Remembers the last one.
#[derive(Clone, Debug)]
pub struct ProgressSink(pub(super) Arc<Sink>);

#[derive(Debug)]
pub(super) struct Sink {
    forward: Option<mpsc::Sender<Value>>,
    last: Mutex<Option<Value>>,
    /// Whether a dropped notification has been logged.
    logged: AtomicBool,
}

impl ProgressSink {
    /// Returns a sink that passes progress on to `forward`, if given.
    pub fn new(forward: Option<mpsc::Sender<Value>>) -> Self {
        Self(Arc::new(Sink { forward, last: Mutex::default(), logged: AtomicBool::new(false) }))
    }

    /// Returns the last progress: `progress`, `total`, `message`.
    pub fn last(&self) -> Option<Value> {
        self.0.last.lock().clone()
    }

    /// Takes the params of a notification.
    pub fn take(&self, params: Value) {
        let mut last = params.clone();
        if let Some(fields) = last.as_object_mut() {
            fields.remove("progressToken");
            fields.remove("_meta");
        }
        *self.0.last.lock() = Some(last);
        if let Some(forward) = &self.0.forward
            && let Err(mpsc::error::TrySendError::Full(_)) = forward.try_send(params)
            && !self.0.logged.swap(true, Ordering::Relaxed)
        {
            tracing::warn!("a server sends progress faster than its client reads; some was dropped");
        }
    }
}
