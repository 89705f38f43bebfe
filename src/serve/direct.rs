//! Calls of a client over lines, answered outside rmcp's loop once the client has completed its handshake. The client sees no
//! difference: cancellation, progress, questions during a call, and the end of the connection work as in rmcp.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;
use nonet_wire::{LineWriter, Message, VERSION_KEY};
use parking_lot::Mutex;
use rmcp::{
    ErrorData, RoleServer,
    model::{
        CallToolRequest, CallToolRequestParams, ClientRequest, GetExtensions, GetMeta, JsonObject,
        JsonRpcMessage, MetaObject, RequestId,
    },
    service::{Peer, RequestContext, RxJsonRpcMessage},
};
use serde::Deserialize;
use serde_json::Value;
use tokio::io::AsyncWrite;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{NonetServer, calls::CallReply, origin::RequestOrigin, tasks};

/// The params of a `tools/call`.
#[derive(Deserialize)]
pub(super) struct CallParams {
    pub name: String,
    #[serde(default)]
    pub arguments: Option<JsonObject>,
    #[serde(default, rename = "_meta")]
    pub meta: Option<JsonObject>,
    #[serde(default)]
    pub task: Option<Value>,
    #[serde(default, rename = "inputResponses")]
    pub input_responses: Option<Value>,
    #[serde(default, rename = "requestState")]
    pub request_state: Option<Value>,
}

pub(super) struct ToolCall {
    pub id: RequestId,
    params: CallToolRequestParams,
    meta: Option<JsonObject>,
    wants_task: bool,
}

impl ToolCall {
    /// Parses a message that is an ordinary call; `None` for any other.
    pub(super) fn of(message: &Message) -> Option<Self> {
        if message.method().as_deref() != Some("tools/call") || !message.is_versioned() {
            return None;
        }
        let given: CallParams = serde_json::from_slice(message.params()?).ok()?;
        if given.input_responses.is_some() || given.request_state.is_some() {
            return None;
        }
        let mut params = CallToolRequestParams::new(given.name);
        params.arguments = given.arguments;
        let wants_task = given.task.is_some_and(|task| task.is_object());
        Some(Self { id: message.id()?, params, meta: given.meta, wants_task })
    }

    /// Converts the call to rmcp's types.
    pub(super) fn into_message(self) -> RxJsonRpcMessage<RoleServer> {
        let mut request = ClientRequest::CallToolRequest(CallToolRequest::new(self.params));
        if let Some(meta) = self.meta {
            request.get_meta_mut().0 = MetaObject(meta);
        }
        if self.wants_task {
            request.extensions_mut().insert(tasks::TaskMarker);
        }
        JsonRpcMessage::request(request, self.id)
    }

    fn names_version(&self) -> bool {
        self.meta.as_ref().is_some_and(|meta| meta.contains_key(VERSION_KEY))
    }
}

/// Unanswered requests; the ones answered here also have their cancellation token. Of several requests with one id, the first
/// that ends is answered.
#[derive(Default)]
pub(super) struct UnansweredRequests(Mutex<HashMap<RequestId, Option<CancellationToken>>>);

impl UnansweredRequests {
    pub(super) fn count(&self) -> usize {
        self.0.lock().len()
    }

    pub(super) fn begin(&self, id: RequestId, call: Option<CancellationToken>) {
        self.0.lock().insert(id, call);
    }

    /// Forgets a request that is answered or cancelled. Returns whether it was waiting.
    pub(super) fn end(&self, id: &RequestId) -> bool {
        let ended = self.0.lock().remove(id);
        if let Some(Some(call)) = &ended {
            call.cancel();
        }
        ended.is_some()
    }
}

/// Answers the calls of one client.
pub(super) struct CallResponder {
    server: Arc<NonetServer>,
    peer: Peer<RoleServer>,
    ends: CancellationToken,
    calls: TaskTracker,
}

impl CallResponder {
    /// Returns the answerer of calls from the client behind `peer`, until `ended` is cancelled.
    pub(super) fn new(server: NonetServer, peer: Peer<RoleServer>, ended: &CancellationToken) -> Self {
        Self { server: Arc::new(server), peer, ends: ended.child_token(), calls: TaskTracker::new() }
    }

    /// Starts a call in a separate task. Returns the call if rmcp has to handle it, because it is of the stateless era.
    pub(super) fn begin<W: AsyncWrite + Unpin + Send + 'static>(
        &self,
        call: ToolCall,
        unanswered: &Arc<UnansweredRequests>,
        writer: &LineWriter<W>,
    ) -> Option<ToolCall> {
        let mut context = RequestContext::new(call.id.clone(), self.peer.clone());
        if call.names_version() || context.is_stateless() {
            return Some(call);
        }
        let ToolCall { id, params, meta, wants_task } = call;
        let cancel = self.ends.child_token();
        context.ct = cancel.clone();
        if let Some(meta) = meta {
            context.meta.0 = MetaObject(meta);
        }
        if wants_task {
            context.extensions.insert(tasks::TaskMarker);
        }
        unanswered.begin(id.clone(), Some(cancel));
        let (server, unanswered, writer) = (self.server.clone(), unanswered.clone(), writer.clone());
        self.calls.spawn(async move {
            // Boxed, so that the task, which is copied several times before it runs, is small.
            let called = Box::pin(server.call(params, &context)).await;
            if !unanswered.end(&id) {
                tracing::debug!(%id, "a cancelled call gets no answer");
                return;
            }
            let written = match answer(&id, called) {
                Ok(line) => writer.pieces(line).write().await,
                Err(error) => Err(error.into()),
            };
            if let Err(error) = written {
                tracing::error!(%id, %error, "an answer was not written");
            }
        });
        None
    }

    /// Waits until the calls in flight have ended, at most for `limit`. Then cancels the rest.
    pub(super) async fn drain(&self, limit: Duration) {
        self.calls.close();
        if tokio::time::timeout(limit, self.calls.wait()).await.is_err() {
            tracing::warn!(calls = self.calls.len(), "calls in flight are abandoned: their client has left");
        }
        self.ends.cancel();
    }
}

/// Returns the line that answers a call, in pieces.
fn answer(id: &RequestId, called: Result<CallReply, ErrorData>) -> serde_json::Result<Vec<Bytes>> {
    let id_text = serde_json::to_string(id)?;
    Ok(match called {
        Ok(called) => {
            let before = ["{\"jsonrpc\":\"2.0\",\"id\":", &id_text, ",\"result\":"].concat();
            called.written(before.as_bytes(), b"}\n")
        }
        Err(error) => {
            tracing::warn!(%id, ?error, "response error");
            let failure = Message::failure_of(&id_text, &serde_json::to_vec(&error)?);
            vec![failure, Bytes::from_static(b"\n")]
        }
    })
}
