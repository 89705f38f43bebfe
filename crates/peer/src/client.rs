//! The client of a session, as Nonet sends to it: notifications, and requests with their answers.

use std::{
    collections::HashMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use futures::future::BoxFuture;
use nonet_wire::LineWriter;
use parking_lot::Mutex;
use rmcp::{
    ErrorData,
    model::{InitializeRequestParams, RequestId},
};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::{io::AsyncWrite, sync::oneshot};

use crate::streams::EventStream;

/// The answer of a client to a request of Nonet.
pub type ClientAnswer = Result<Value, ErrorData>;

/// Where messages go that belong to no request of the client.
pub trait Outlet: Send + Sync {
    /// Sends a message. Waits while the client does not read.
    fn send(&self, message: Bytes) -> BoxFuture<'_, io::Result<()>>;
}

impl<W: AsyncWrite + Unpin + Send + 'static> Outlet for LineWriter<W> {
    fn send(&self, message: Bytes) -> BoxFuture<'_, io::Result<()>> {
        // The line counts as waiting from now on: unread output must be known before more input is read.
        let line = self.pieces(vec![message, Bytes::from_static(b"\n")]);
        Box::pin(line.write())
    }
}

impl Outlet for Arc<EventStream> {
    fn send(&self, message: Bytes) -> BoxFuture<'_, io::Result<()>> {
        Box::pin(async move { self.push(message).await })
    }
}

/// The client of a session.
pub struct ClientPeer {
    outlet: Box<dyn Outlet>,
    /// Nonet's requests that the client has not answered yet.
    asked: Mutex<HashMap<u64, oneshot::Sender<ClientAnswer>>>,
    last: AtomicU64,
    /// What it said in its handshake, with the protocol version that was agreed on.
    info: ArcSwapOption<InitializeRequestParams>,
}

impl ClientPeer {
    /// Returns a client that has said nothing yet.
    pub fn new(outlet: impl Outlet + 'static) -> Arc<Self> {
        Arc::new(Self {
            outlet: Box::new(outlet),
            asked: Mutex::default(),
            last: AtomicU64::new(0),
            info: ArcSwapOption::empty(),
        })
    }

    /// Returns what the client said in its handshake.
    pub fn info(&self) -> Option<Arc<InitializeRequestParams>> {
        self.info.load_full()
    }

    /// Notes what the client said in its handshake.
    pub fn set_info(&self, info: InitializeRequestParams) {
        self.info.store(Some(Arc::new(info)));
    }

    /// Takes the client's answer to a request of Nonet.
    pub fn answered(&self, id: &RequestId, answer: ClientAnswer) {
        let RequestId::Number(id) = id else { return };
        let Ok(id) = u64::try_from(*id) else { return };
        let asked = self.asked.lock().remove(&id);
        if let Some(asked) = asked {
            let _ = asked.send(answer);
        }
    }
}

/// A way to a client: the stream of one of its requests, if that has one of its own, else its connection.
#[derive(Clone)]
pub struct ClientWay {
    /// The client.
    pub peer: Arc<ClientPeer>,
    /// The stream of the request, over HTTP.
    pub stream: Option<Arc<EventStream>>,
}

impl ClientWay {
    /// Returns the way that does not depend on any request.
    pub fn of(peer: Arc<ClientPeer>) -> Self {
        Self { peer, stream: None }
    }

    async fn send(&self, message: Bytes) -> io::Result<()> {
        match self.stream.as_ref().filter(|stream| !stream.has_ended()) {
            Some(stream) => stream.push(message).await,
            None => self.peer.outlet.send(message).await,
        }
    }

    /// Sends a notification. Params of `null` are left out.
    pub async fn notify(&self, method: &str, params: Value) -> io::Result<()> {
        #[derive(Serialize)]
        struct Notification<'a> {
            jsonrpc: &'static str,
            method: &'a str,
            #[serde(skip_serializing_if = "Value::is_null")]
            params: Value,
        }
        self.send(serde_json::to_vec(&Notification { jsonrpc: "2.0", method, params })?.into()).await
    }

    /// Sends a request.
    pub async fn ask(&self, method: &str, params: Option<&Value>) -> io::Result<AskedRequest> {
        #[derive(Serialize)]
        struct Request<'a> {
            jsonrpc: &'static str,
            id: u64,
            method: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            params: Option<&'a Value>,
        }
        let id = self.peer.last.fetch_add(1, Ordering::Relaxed);
        let message = serde_json::to_vec(&Request { jsonrpc: "2.0", id, method, params })?;
        let (tell, answer) = oneshot::channel();
        self.peer.asked.lock().insert(id, tell);
        // From here on, dropping forgets the request.
        let asked = AskedRequest { id, answer, way: self.clone() };
        self.send(message.into()).await?;
        Ok(asked)
    }
}

/// A request of Nonet that its client has not answered yet. Dropped, it expects no answer any more.
pub struct AskedRequest {
    id: u64,
    answer: oneshot::Receiver<ClientAnswer>,
    way: ClientWay,
}

impl AskedRequest {
    /// Waits for the answer. Dropping the future early loses nothing.
    pub async fn answer(&mut self) -> ClientAnswer {
        let gone = || ErrorData::internal_error("the client did not answer: it is gone", None);
        (&mut self.answer).await.unwrap_or_else(|_| Err(gone()))
    }

    /// Tells the client that the answer is no longer needed.
    pub async fn withdraw(self, reason: &str) {
        let params = json!({ "requestId": self.id, "reason": reason });
        if let Err(error) = self.way.notify("notifications/cancelled", params).await {
            tracing::debug!(%error, "a question could not be withdrawn");
        }
    }
}

impl Drop for AskedRequest {
    fn drop(&mut self) {
        self.way.peer.asked.lock().remove(&self.id);
    }
}
