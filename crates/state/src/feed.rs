//! Finished calls, for observers: each as it ends, and the latest ones with their params and results.
//!
//! Params and results stay in memory, as they were; whoever shows them masks them. One call has a bound in
//! bytes, and so have all of them together.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use nonet_api::page::FinishedCall;
use parking_lot::Mutex;
use tokio::sync::broadcast;

/// How many finished calls are kept.
const LATEST: usize = 200;
/// How many calls are queued for a slow observer; beyond that, the oldest calls are dropped.
const QUEUE: usize = 256;
/// The most bytes of the params of one call, and of its result; of a longer one, the beginning is kept.
pub const MOST_OF_CALL: usize = 64 << 10;
/// The most bytes of all params and results together; the oldest go first.
const MOST_OF_ALL: usize = 4 << 20;

/// The params and the result of a call as JSON: the beginning of a long one, empty if not kept.
#[derive(Clone, Debug, Default)]
pub struct CallContent {
    /// The params as received.
    pub params: Bytes,
    /// The result, or the fault in its place.
    pub result: Bytes,
}

impl CallContent {
    fn len(&self) -> usize {
        self.params.len() + self.result.len()
    }
}

/// The latest calls, and a channel for new ones.
#[derive(Debug)]
pub struct Feed {
    on: AtomicBool,
    latest: Mutex<LatestCalls>,
    sender: broadcast::Sender<Arc<FinishedCall>>,
}

#[derive(Debug, Default)]
struct LatestCalls {
    calls: VecDeque<(Arc<FinishedCall>, CallContent)>,
    /// The number of the last call.
    last: u64,
    /// The size of all contents.
    bytes: usize,
    /// How many of the oldest calls have no content any more.
    emptied: usize,
}

impl Default for Feed {
    fn default() -> Self {
        Self { on: AtomicBool::new(false), latest: Mutex::default(), sender: broadcast::Sender::new(QUEUE) }
    }
}

impl LatestCalls {
    fn push(&mut self, mut call: FinishedCall, content: CallContent) -> Arc<FinishedCall> {
        if self.calls.len() == LATEST
            && let Some((_, content)) = self.calls.pop_front()
        {
            self.bytes -= content.len();
            self.emptied = self.emptied.saturating_sub(1);
        }
        self.last += 1;
        call.id = self.last;
        let call = Arc::new(call);
        self.bytes += content.len();
        self.calls.push_back((call.clone(), content));
        while self.bytes > MOST_OF_ALL
            && let Some((_, oldest)) = self.calls.get_mut(self.emptied)
        {
            self.bytes -= std::mem::take(oldest).len();
            self.emptied += 1;
        }
        call
    }
}

impl Feed {
    /// Starts recording. Until then a call costs nothing.
    pub fn switch_on(&self) {
        self.on.store(true, Ordering::Relaxed);
    }

    /// Whether calls are recorded.
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Records a call with its params and its result.
    pub fn push(&self, call: FinishedCall, content: CallContent) {
        // Under the same lock as sending, so a new observer gets each call exactly once.
        let mut latest = self.latest.lock();
        let call = latest.push(call, content);
        let _ = self.sender.send(call);
    }

    /// Returns the latest calls, oldest first, and a receiver for new ones.
    pub fn follow(&self) -> (Vec<Arc<FinishedCall>>, broadcast::Receiver<Arc<FinishedCall>>) {
        let latest = self.latest.lock();
        let coming = self.sender.subscribe();
        (latest.calls.iter().map(|(call, _)| call.clone()).collect(), coming)
    }

    /// Returns one of the latest calls with its params and its result.
    pub fn find(&self, id: u64) -> Option<(Arc<FinishedCall>, CallContent)> {
        let latest = self.latest.lock();
        latest.calls.iter().find(|(call, _)| call.id == id).cloned()
    }

    /// Forgets all params and results.
    pub fn forget_contents(&self) {
        let latest = &mut *self.latest.lock();
        latest.calls.iter_mut().for_each(|(_, content)| *content = CallContent::default());
        (latest.bytes, latest.emptied) = (0, latest.calls.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_have_a_bound_in_all_and_calls_a_number() {
        let feed = Feed::default();
        let content = CallContent { params: Bytes::from(vec![b'1'; MOST_OF_CALL]), result: Bytes::new() };
        for _ in 0..LATEST + 20 {
            feed.push(FinishedCall::default(), content.clone());
        }
        let (calls, _) = feed.follow();
        assert_eq!((calls.len(), calls[0].id, calls[LATEST - 1].id), (LATEST, 21, 220));
        let kept = |id| feed.find(id).expect("it is one of the latest").1.len();
        assert_eq!((kept(21), kept(220)), (0, MOST_OF_CALL));
        let bytes: usize = calls.iter().map(|call| kept(call.id)).sum();
        assert!(bytes <= MOST_OF_ALL && bytes > MOST_OF_ALL - 2 * MOST_OF_CALL, "{bytes}");
        assert!(feed.find(20).is_none());
        feed.forget_contents();
        feed.push(FinishedCall::default(), content);
        assert_eq!((kept(220), kept(221)), (0, MOST_OF_CALL));
    }
}
