//! Calls of a server on lines, past rmcp's loop, which takes a task and three channels for each. The transport, which rmcp
//! polls, hands their answers and progress back.

use std::{
    collections::HashMap,
    io,
    sync::{Arc, Weak},
    task::Poll,
};

use parking_lot::Mutex;
use rmcp::model::{ErrorData, ProgressToken, ProtocolVersion, RequestId};
use serde_json::{Map, Value, json};
use tokio::sync::oneshot;

use super::{
    Control, Era,
    client_handler::client_config,
    mcp::LOG_LEVEL_KEY,
    stdio::{SentCall, ServerWriter},
    tap::{CAPABILITIES_KEY, ProgressSink, Sink, declare},
};
use crate::{
    results::CallResult,
    wire::{SizeLimit, VERSION_KEY},
};

/// The ids of these calls begin here, far above those that rmcp counts up from zero, and within 32 bits.
const FIRST_ID: i64 = 1_000_000_000;
const LAST_ID: i64 = i32::MAX as i64;
/// From how many sinks on those are looked for that nobody wants any more.
const MOST_SINKS: usize = 256;

/// What a call comes to.
type Answer = Result<CallResult, ErrorData>;

/// The calls of one connection that have no answer yet, and where progress goes.
#[derive(Clone, Debug, Default)]
pub struct OpenRequests(Arc<Mutex<Open>>);

#[derive(Debug, Default)]
struct Open {
    calls: HashMap<i64, oneshot::Sender<Answer>>,
    last_id: i64,
    is_closed: bool,
    /// For as long as somebody wants it: progress of a server's task comes after the answer.
    sinks: HashMap<ProgressToken, Weak<Sink>>,
}

impl OpenRequests {
    /// How large the answer to a call may be; none if there is no such call.
    pub fn bound(&self, id: &RequestId, limit: SizeLimit) -> Option<SizeLimit> {
        number(id).filter(|id| self.0.lock().calls.contains_key(id)).map(|_| limit)
    }

    /// Takes the call that an answer is for.
    pub fn take(&self, id: &RequestId) -> Option<oneshot::Sender<Answer>> {
        self.0.lock().calls.remove(&number(id)?)
    }

    /// Lets progress under a token go to a sink.
    pub fn follow(&self, token: ProgressToken, sink: &ProgressSink) {
        self.0.lock().follow(token, sink);
    }

    /// Where the progress under a token goes.
    pub fn sink(&self, token: &ProgressToken) -> Option<ProgressSink> {
        self.0.lock().sinks.get(token).and_then(Weak::upgrade).map(ProgressSink)
    }

    /// Ends all calls: no answer will come.
    pub fn close(&self) {
        let mut open = self.0.lock();
        open.is_closed = true;
        open.calls.clear();
    }

    fn begin(&self, progress: Option<&ProgressSink>) -> Option<(i64, oneshot::Receiver<Answer>)> {
        let (answer, answered) = oneshot::channel();
        let mut open = self.0.lock();
        if open.is_closed {
            return None;
        }
        let id = if (FIRST_ID..LAST_ID).contains(&open.last_id) { open.last_id + 1 } else { FIRST_ID };
        open.last_id = id;
        open.calls.insert(id, answer);
        if let Some(sink) = progress {
            open.follow(ProgressToken(RequestId::Number(id)), sink);
        }
        Some((id, answered))
    }
}

/// The number of a call. Some servers write it as a text.
fn number(id: &RequestId) -> Option<i64> {
    let number = match id {
        RequestId::Number(number) => *number,
        RequestId::String(text) => text.parse().ok()?,
    };
    (FIRST_ID..=LAST_ID).contains(&number).then_some(number)
}

impl Open {
    fn follow(&mut self, token: ProgressToken, sink: &ProgressSink) {
        if self.sinks.len() >= MOST_SINKS {
            self.sinks.retain(|_, sink| sink.strong_count() > 0);
        }
        self.sinks.insert(token, Arc::downgrade(&sink.0));
    }
}

/// Makes the calls of one connection.
pub struct DirectCalls {
    writer: ServerWriter,
    open: OpenRequests,
    /// What every request of the stateless era carries (2026-07-28).
    meta: Map<String, Value>,
    era: Era,
}

impl DirectCalls {
    /// Calls over this writer, whose answers come to `open`.
    pub fn new(writer: ServerWriter, open: OpenRequests, era: Era) -> Self {
        let client = client_config();
        let meta = match era {
            Era::Session => Map::new(),
            Era::Stateless => Map::from_iter([
                (VERSION_KEY.to_owned(), json!(ProtocolVersion::V_2026_07_28)),
                ("io.modelcontextprotocol/clientInfo".to_owned(), json!(client.client_info)),
                (CAPABILITIES_KEY.to_owned(), json!(client.capabilities)),
            ]),
        };
        Self { writer, open, meta, era }
    }

    /// Makes a call. Dropping the future cancels it at the server.
    pub async fn call(
        &self,
        tool: &str,
        arguments: &Map<String, Value>,
        control: &Control,
    ) -> Result<CallResult, NotCalled> {
        let (id, answered) = self.open.begin(control.progress.as_ref()).ok_or(NotCalled::Lost)?;
        let mut call = OpenCall { calls: self, id, control, is_open: true };
        let message =
            SentCall::new(&RequestId::Number(id), &self.meta(id, control), tool, arguments).to_json();
        let mut writing = Box::pin(self.writer.write(message, true));
        let written = match futures::poll!(&mut writing) {
            Poll::Ready(written) => written,
            // A call that is given up now must not leave half a line behind.
            Poll::Pending => tokio::spawn(writing).await.map_err(|_| NotCalled::Lost)?,
        };
        if let Err(error) = written {
            call.is_open = false;
            self.open.take(&RequestId::Number(id));
            return Err(NotCalled::Unsent(error));
        }
        let answer = answered.await;
        call.is_open = false;
        match answer {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(error)) => Err(NotCalled::Refused(error)),
            Err(_) => Err(NotCalled::Lost),
        }
    }

    fn meta(&self, id: i64, control: &Control) -> Map<String, Value> {
        let mut meta = self.meta.clone();
        meta.insert("progressToken".into(), json!(id));
        meta.extend(control.meta.iter().map(|(key, value)| (key.clone(), value.clone())));
        if let (Era::Stateless, Some(asker)) = (self.era, &control.asker) {
            declare(&mut meta, &asker.can);
            if let Some(level) = asker.log {
                meta.insert(LOG_LEVEL_KEY.into(), json!(level));
            }
        }
        meta
    }
}

/// Why a call has no result.
#[derive(Debug)]
pub enum NotCalled {
    /// The connection ended.
    Lost,
    /// The request was not written.
    Unsent(io::Error),
    /// The server's own error.
    Refused(ErrorData),
}

/// A call without its answer yet. Cancelled at the server if dropped before the answer.
struct OpenCall<'a> {
    calls: &'a DirectCalls,
    id: i64,
    control: &'a Control,
    is_open: bool,
}

impl Drop for OpenCall<'_> {
    fn drop(&mut self) {
        if !self.is_open || self.calls.open.take(&RequestId::Number(self.id)).is_none() {
            return;
        }
        let params = json!({ "requestId": self.id, "reason": self.control.why_given_up() });
        let message = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params });
        self.calls.writer.write_soon(message.to_string().into());
    }
}
