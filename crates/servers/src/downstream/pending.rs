//! Our requests to one server that wait for an answer, and the destinations of their progress.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};

use nonet_text::results::CallResult;
use nonet_wire::{Expectations, Limits, SizeLimit};
use parking_lot::Mutex;
use rmcp::model::{ErrorData, RequestId};
use tokio::sync::oneshot;

use super::progress::{ProgressSink, Sink};

/// Ids count up to here and start again: some servers read them as 32-bit numbers.
const LAST_ID: i64 = i32::MAX as i64;
/// The number of sinks from which abandoned ones are looked for.
const MOST_SINKS: usize = 256;

/// What a server answered.
pub(super) type ServerAnswer = Result<CallResult, ErrorData>;

/// The kind of answer that a request expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerKind {
    /// One page of a list.
    Page,
    /// A result for a client, kept as bytes where possible.
    Result,
    /// An answer about the connection itself.
    Short,
}

impl AnswerKind {
    /// Returns the size limit of the answer.
    pub(super) fn bound(self, limits: &Limits) -> SizeLimit {
        match self {
            Self::Result => limits.answer,
            Self::Page => limits.page,
            Self::Short => limits.of_server,
        }
    }
}

/// A request that waits for its answer.
#[derive(Debug)]
pub(super) struct PendingRequest {
    pub expected: AnswerKind,
    pub answer: oneshot::Sender<ServerAnswer>,
    /// Waits until the server has acknowledged the request, a subscription to changes.
    acknowledged: Option<oneshot::Sender<()>>,
}

/// The unanswered requests of one connection.
#[derive(Debug)]
pub(super) struct PendingRequests {
    limits: Limits,
    state: Mutex<PendingState>,
}

#[derive(Debug, Default)]
struct PendingState {
    open: BTreeMap<i64, PendingRequest>,
    last_id: i64,
    is_closed: bool,
    /// By their tokens, which are the ids of their requests. Kept while somebody holds the sink: progress of
    /// a server's task comes after the answer.
    sinks: BTreeMap<i64, Weak<Sink>>,
}

impl PendingRequests {
    /// Returns no requests, whose answers have these limits.
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, state: Mutex::default() }
    }

    /// Adds a request. Returns its id and the receiver of its answer; `None` if no more answers will come.
    pub(super) fn open(
        &self,
        expected: AnswerKind,
        progress: Option<&ProgressSink>,
        acknowledged: Option<oneshot::Sender<()>>,
    ) -> Option<(i64, oneshot::Receiver<ServerAnswer>)> {
        let (answer, answered) = oneshot::channel();
        let mut state = self.state.lock();
        if state.is_closed {
            return None;
        }
        let mut id = state.last_id;
        loop {
            id = if id < LAST_ID { id + 1 } else { 1 };
            if !state.open.contains_key(&id) {
                break;
            }
        }
        state.last_id = id;
        state.open.insert(id, PendingRequest { expected, answer, acknowledged });
        if let Some(sink) = progress {
            if state.sinks.len() >= MOST_SINKS {
                state.sinks.retain(|_, sink| sink.strong_count() > 0);
            }
            state.sinks.insert(id, Arc::downgrade(&sink.0));
        }
        Some((id, answered))
    }

    /// Returns whether several requests wait that a client has made.
    pub(super) fn is_busy(&self) -> bool {
        let state = self.state.lock();
        state.open.values().filter(|request| request.expected == AnswerKind::Result).nth(1).is_some()
    }

    /// Takes the request that an answer belongs to.
    pub(super) fn take(&self, id: &RequestId) -> Option<PendingRequest> {
        self.end(number(id)?)
    }

    /// Removes a request.
    pub(super) fn end(&self, id: i64) -> Option<PendingRequest> {
        self.state.lock().open.remove(&id)
    }

    /// Returns whether a request still waits for its answer.
    pub(super) fn has(&self, id: i64) -> bool {
        self.state.lock().open.contains_key(&id)
    }

    /// Returns whether a request had this id and no longer waits for its answer.
    pub(super) fn is_past(&self, id: &RequestId) -> bool {
        let state = self.state.lock();
        number(id).is_some_and(|id| (1..=state.last_id).contains(&id))
    }

    /// Returns the sink for the progress under a token.
    pub(super) fn sink(&self, token: &RequestId) -> Option<ProgressSink> {
        self.state.lock().sinks.get(&number(token)?).and_then(Weak::upgrade).map(ProgressSink)
    }

    /// Notes that the server has acknowledged a subscription.
    pub(super) fn acknowledged(&self, id: &RequestId) {
        let mut state = self.state.lock();
        let request = number(id).and_then(|id| state.open.get_mut(&id));
        if let Some(waiting) = request.and_then(|request| request.acknowledged.take()) {
            let _ = waiting.send(());
        }
    }

    /// Ends all requests: no more answers will come.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        state.open.clear();
    }

    /// Returns whether no more answers will come.
    pub(super) fn is_closed(&self) -> bool {
        self.state.lock().is_closed
    }
}

impl Expectations for PendingRequests {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn bound(&self, id: &RequestId) -> Option<SizeLimit> {
        let id = number(id)?;
        self.state.lock().open.get(&id).map(|pending| pending.expected.bound(&self.limits))
    }
}

/// Returns the number of a request. Some servers write it as a string.
pub(super) fn number(id: &RequestId) -> Option<i64> {
    match id {
        RequestId::Number(number) => Some(*number),
        RequestId::String(text) => text.parse().ok(),
    }
}
