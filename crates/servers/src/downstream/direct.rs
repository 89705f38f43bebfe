//! Calls that bypass rmcp's loop, which takes a task and three channels for each. On lines, the transport, which rmcp polls,
//! delivers their answers and progress; over HTTP each call reads its own answer.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Weak},
    task::Poll,
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use nonet_text::results::CallResult;
use nonet_wire::{SizeLimit, VERSION_KEY};
use parking_lot::Mutex;
use rmcp::model::{ErrorData, ProgressToken, ProtocolVersion, RequestId};
use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio::sync::oneshot;

use super::{
    CallControl, Era,
    client_handler::client_config,
    http::{HttpCalls, OutgoingCall},
    mcp::LOG_LEVEL_KEY,
    stdio::{ServerWriter, call_to_json},
    tap::{CAPABILITIES_KEY, ProgressSink, Sink, declare},
};

/// The first id of these calls, far above rmcp's ids, which count up from zero, and within 32 bits.
const FIRST_ID: i64 = 1_000_000_000;
const LAST_ID: i64 = i32::MAX as i64;
/// The number of sinks from which abandoned ones are looked for.
const MOST_SINKS: usize = 256;
/// How long the rest of an answer over HTTP is read, so that its connection can be reused.
const DRAIN: Duration = Duration::from_millis(500);

/// The outcome of a call.
type DirectAnswer = Result<CallResult, ErrorData>;

/// The unanswered calls of one connection, and the sinks for their progress.
#[derive(Clone, Debug, Default)]
pub(super) struct OpenRequests(Arc<Mutex<DirectState>>);

#[derive(Debug, Default)]
struct DirectState {
    calls: BTreeMap<i64, oneshot::Sender<DirectAnswer>>,
    last_id: i64,
    is_closed: bool,
    /// Kept while somebody holds the sink: progress of a server's task comes after the answer.
    /// By their tokens, which are numbers: those of rmcp, and the ids of the calls here.
    sinks: BTreeMap<i64, Weak<Sink>>,
}

impl OpenRequests {
    /// Returns the size limit for the answer to a call; `None` if there is no such call.
    pub(super) fn bound(&self, id: &RequestId, limit: SizeLimit) -> Option<SizeLimit> {
        number(id).filter(|id| self.0.lock().calls.contains_key(id)).map(|_| limit)
    }

    /// Takes the call that an answer belongs to.
    pub(super) fn take(&self, id: &RequestId) -> Option<oneshot::Sender<DirectAnswer>> {
        self.0.lock().calls.remove(&number(id)?)
    }

    /// Returns whether a call still waits for its answer.
    pub(super) fn has(&self, id: i64) -> bool {
        self.0.lock().calls.contains_key(&id)
    }

    /// Sends the progress under a token to a sink.
    pub(super) fn follow(&self, token: &ProgressToken, sink: &ProgressSink) {
        if let RequestId::Number(token) = token.0 {
            self.0.lock().follow(token, sink);
        }
    }

    /// Returns the sink for the progress under a token.
    pub(super) fn sink(&self, token: &ProgressToken) -> Option<ProgressSink> {
        let RequestId::Number(token) = &token.0 else { return None };
        self.0.lock().sinks.get(token).and_then(Weak::upgrade).map(ProgressSink)
    }

    /// Ends all calls: no more answers will come.
    pub(super) fn close(&self) {
        let mut open = self.0.lock();
        open.is_closed = true;
        open.calls.clear();
    }

    fn begin(&self, progress: Option<&ProgressSink>) -> Option<(i64, oneshot::Receiver<DirectAnswer>)> {
        let (answer, answered) = oneshot::channel();
        let mut open = self.0.lock();
        if open.is_closed {
            return None;
        }
        let id = if (FIRST_ID..LAST_ID).contains(&open.last_id) { open.last_id + 1 } else { FIRST_ID };
        open.last_id = id;
        open.calls.insert(id, answer);
        if let Some(sink) = progress {
            open.follow(id, sink);
        }
        Some((id, answered))
    }
}

/// Returns the number of a call. Some servers write it as a string.
pub(super) fn number(id: &RequestId) -> Option<i64> {
    let number = match id {
        RequestId::Number(number) => *number,
        RequestId::String(text) => text.parse().ok()?,
    };
    (FIRST_ID..=LAST_ID).contains(&number).then_some(number)
}

impl DirectState {
    fn follow(&mut self, token: i64, sink: &ProgressSink) {
        if self.sinks.len() >= MOST_SINKS {
            self.sinks.retain(|_, sink| sink.strong_count() > 0);
        }
        self.sinks.insert(token, Arc::downgrade(&sink.0));
    }
}

/// Makes the calls of one connection.
pub(super) struct DirectCalls {
    road: CallRoute,
    open: OpenRequests,
    /// What every request of the stateless era carries (2026-07-28).
    meta: Map<String, Value>,
    era: Era,
}

/// How calls are sent.
enum CallRoute {
    Lines(ServerWriter),
    Http(HttpCalls),
}

impl DirectCalls {
    /// Returns calls over this writer, whose answers go to `open`.
    pub(super) fn on_lines(writer: ServerWriter, open: OpenRequests, era: Era) -> Self {
        Self::new(CallRoute::Lines(writer), open, era)
    }

    /// Returns calls over streamable HTTP.
    pub(super) fn over_http(calls: HttpCalls, era: Era) -> Self {
        let open = calls.open().clone();
        Self::new(CallRoute::Http(calls), open, era)
    }

    fn new(road: CallRoute, open: OpenRequests, era: Era) -> Self {
        let client = client_config();
        let meta = match era {
            Era::Session => Map::new(),
            Era::Stateless => Map::from_iter([
                (VERSION_KEY.to_owned(), json!(ProtocolVersion::V_2026_07_28)),
                ("io.modelcontextprotocol/clientInfo".to_owned(), json!(client.client_info)),
                (CAPABILITIES_KEY.to_owned(), json!(client.capabilities)),
            ]),
        };
        Self { road, open, meta, era }
    }

    /// Makes a call. Dropping the future cancels it at the server.
    pub(super) async fn call(
        &self,
        tool: &str,
        arguments: &Map<String, Value>,
        control: &CallControl,
    ) -> Result<CallResult, DirectError> {
        if let CallRoute::Http(http) = &self.road
            && !http.can_call(tool)
        {
            return Err(DirectError::Elsewhere);
        }
        let (id, answered) = self.open.begin(control.progress.as_ref()).ok_or(DirectError::Lost)?;
        let mut call = OpenCall { calls: self, id, control, is_open: true };
        let meta = self.meta(id, control);
        let message = call_to_json(&RequestId::Number(id), Some(&meta), tool, Some(arguments));
        let answer = match &self.road {
            CallRoute::Lines(writer) => {
                let mut writing = Box::pin(writer.write(message, true));
                let written = match futures::poll!(&mut writing) {
                    Poll::Ready(written) => written,
                    // A cancelled call must not leave half a line behind.
                    Poll::Pending => tokio::spawn(writing).await.map_err(|_| DirectError::Lost)?,
                };
                match written {
                    Ok(()) => answered.await.map_err(|_| DirectError::Lost),
                    Err(error) => Err(DirectError::Unsent(error)),
                }
            }
            CallRoute::Http(http) => match message {
                Ok(message) => {
                    let (tool, asker) = (tool.to_owned(), control.asker.clone());
                    let posted = OutgoingCall { id, tool, message, era: self.era, asker };
                    exchanged(http.clone().exchange(posted).boxed(), answered).await
                }
                Err(error) => Err(DirectError::Unsent(error.into())),
            },
        };
        // Whatever the outcome, the server has finished the call or never received it.
        call.is_open = false;
        if answer.is_err() {
            self.open.take(&RequestId::Number(id));
        }
        answer?.map_err(DirectError::Refused)
    }

    fn meta(&self, id: i64, control: &CallControl) -> SentMeta {
        if self.meta.is_empty() && control.meta.is_empty() {
            return SentMeta::OfMost { token: id };
        }
        let mut meta = self.meta.clone();
        meta.insert("progressToken".into(), json!(id));
        meta.extend(control.meta.iter().map(|(key, value)| (key.clone(), value.clone())));
        if let (Era::Stateless, Some(asker)) = (self.era, &control.asker) {
            declare(&mut meta, &asker.can);
            if let Some(level) = asker.log {
                meta.insert(LOG_LEVEL_KEY.into(), json!(level));
            }
        }
        SentMeta::Any(meta)
    }
}

/// The `_meta` of a call.
#[derive(Serialize)]
#[serde(untagged)]
enum SentMeta {
    /// That of most calls.
    OfMost {
        #[serde(rename = "progressToken")]
        token: i64,
    },
    Any(Map<String, Value>),
}

/// Returns the answer to a call over HTTP.
async fn exchanged(
    mut exchange: BoxFuture<'static, Result<(), DirectError>>,
    mut answered: oneshot::Receiver<DirectAnswer>,
) -> Result<DirectAnswer, DirectError> {
    let ended = tokio::select! {
        biased;
        answer = &mut answered => {
            let answer = answer.map_err(|_| DirectError::Lost);
            if futures::poll!(&mut exchange).is_pending() {
                tokio::spawn(tokio::time::timeout(DRAIN, exchange));
            }
            return answer;
        }
        ended = &mut exchange => ended,
    };
    match ended {
        // The server accepted it; the answer is there or comes on another stream.
        Ok(()) => answered.await.map_err(|_| DirectError::Lost),
        Err(failed) => Err(failed),
    }
}

/// Why a call has no result.
#[derive(Debug)]
pub(super) enum DirectError {
    /// It was not made here; rmcp has to make it.
    Elsewhere,
    /// The connection ended.
    Lost,
    /// The request did not get through.
    Unsent(io::Error),
    /// The server's own error.
    Refused(ErrorData),
}

/// A call in flight. Dropping it before the answer cancels it at the server.
struct OpenCall<'a> {
    calls: &'a DirectCalls,
    id: i64,
    control: &'a CallControl,
    is_open: bool,
}

impl Drop for OpenCall<'_> {
    fn drop(&mut self) {
        if !self.is_open || self.calls.open.take(&RequestId::Number(self.id)).is_none() {
            return;
        }
        let params = json!({ "requestId": self.id, "reason": self.control.why_given_up() });
        let message = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params });
        match &self.calls.road {
            CallRoute::Lines(writer) => writer.write_soon(message.to_string().into()),
            CallRoute::Http(http) => http.cancel(message.to_string().into(), self.calls.era),
        }
    }
}
