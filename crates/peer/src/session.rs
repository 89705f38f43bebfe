//! A session of a client over HTTP, and how its requests are answered: with plain JSON if the answer is there
//! within moments and nothing goes before it, else with a stream of events, which a session's client can
//! resume.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::{Body, Bytes, HttpBody},
    response::Response,
};
use futures::future::BoxFuture;
use http::{Extensions, HeaderMap, StatusCode};
use hyper::body::{Frame, SizeHint};
use parking_lot::Mutex;
use rmcp::{
    ErrorData,
    model::{RequestId, RequestMetaObject},
};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::{
    Answered, Handler, answered,
    client::{ClientPeer, ClientWay},
    eras, headers, reply,
    request::{ClientMessage, ClientRequest, RequestBody, RequestContext},
    streams::{self, EventStream},
};

/// How long a request may take to be answered with plain JSON.
const MOMENTS: Duration = Duration::from_millis(50);
/// How long a session without a request and without a stream is kept.
const IDLE: Duration = Duration::from_secs(300);
/// How long an answer waits for a client that lost its connection, and how many do in one session.
const UNREAD: Duration = Duration::from_secs(60);
const MOST_UNREAD: usize = 32;

/// A session of a client of the handshake's era.
pub struct HttpSession<H> {
    /// What answers its requests.
    pub handler: Arc<H>,
    /// Its client.
    pub peer: Arc<ClientPeer>,
    /// What belongs to no request.
    common: Arc<EventStream>,
    requests: Arc<SessionRequests>,
    last_stream: AtomicU64,
    end: CancellationToken,
}

/// The requests of one session.
struct SessionRequests {
    /// The streams that are not over, by their number.
    streams: Mutex<BTreeMap<u64, Arc<EventStream>>>,
    /// What cancels each request in flight, and the number of its stream.
    in_flight: Mutex<HashMap<RequestId, (u64, CancellationToken)>>,
    used: Mutex<Instant>,
}

impl<H: Handler> HttpSession<H> {
    /// Returns a new session, which ends with `ending`.
    pub fn new(handler: H, ending: &CancellationToken) -> Arc<Self> {
        let common = EventStream::common();
        Arc::new(Self {
            handler: Arc::new(handler),
            peer: ClientPeer::new(common.clone()),
            common,
            requests: Arc::new(SessionRequests {
                streams: Mutex::default(),
                in_flight: Mutex::default(),
                used: Mutex::new(Instant::now()),
            }),
            last_stream: AtomicU64::new(0),
            end: ending.child_token(),
        })
    }

    /// Notes that it is in use.
    pub fn use_now(&self) {
        self.requests.use_now();
    }

    /// Returns whether nobody has used it for a while.
    pub fn is_idle(&self) -> bool {
        self.requests.are_idle() && !self.common.is_read()
    }

    /// Ends it, with its requests and streams.
    pub fn end(&self) {
        self.end.cancel();
        self.handler.ended();
    }

    /// Opens its common stream, or resumes one of its streams.
    pub fn listen(&self, headers: &HeaderMap) -> Response {
        let last = headers.get("last-event-id").map(|last| last.to_str().ok().and_then(streams::event_id));
        let (stream, after) = match last {
            None => (Some(self.common.clone()), None),
            Some(Some((after, None))) => (Some(self.common.clone()), Some(after)),
            Some(Some((after, Some(number)))) => {
                (self.requests.streams.lock().get(&number).cloned(), Some(after))
            }
            Some(None) => (None, None),
        };
        // An error would make the client try again for ever.
        stream.map_or_else(streams::nothing, |stream| stream.response(after, self.end.clone(), None))
    }

    /// Takes a message that gets no answer.
    pub fn take(&self, message: ClientMessage) {
        match message {
            ClientMessage::Cancelled(id) => self.requests.cancel(&id),
            ClientMessage::Initialized => self.handler.initialized(&self.peer),
            ClientMessage::Answer(id, answer) => self.peer.answered(&id, answer),
            ClientMessage::Request(_) | ClientMessage::Other => {}
        }
    }

    /// Forgets the streams whose clients have not come back.
    pub fn forget_streams(&self) {
        self.requests.streams.lock().retain(|_, stream| !stream.is_over(UNREAD));
    }

    /// Returns the context of one of its requests.
    pub fn context(
        &self,
        id: RequestId,
        meta: RequestMetaObject,
        beside: Extensions,
        stream: Option<Arc<EventStream>>,
    ) -> RequestContext {
        RequestContext {
            id,
            meta,
            beside,
            way: ClientWay { peer: self.peer.clone(), stream },
            cancel: self.end.child_token(),
            is_inline: false,
        }
    }

    /// Answers the request that opens the session.
    pub async fn open(&self, beside: Extensions, request: ClientRequest) -> (RequestId, Answered) {
        let ClientRequest { id, meta, body } = request;
        let context = self.context(id.clone(), meta, beside, None);
        (id, answered(&*self.handler, body, &context).await)
    }

    /// Answers a request.
    pub async fn request(&self, beside: Extensions, request: ClientRequest) -> Response {
        let ClientRequest { id, meta, body } = request;
        let number = self.last_stream.fetch_add(1, Ordering::Relaxed);
        let stream = EventStream::of_request(number);
        let context = self.context(id.clone(), meta, beside, Some(stream.clone()));
        if let Err(error) = eras::check(&body, &context) {
            return headers::failed(StatusCode::OK, Some(&id), &error);
        }
        let cancel = context.cancel.clone();
        let flying = self.requests.begin(&id, number, &cancel);
        let work = Some(work(self.handler.clone(), body, context));
        let exchange = Exchange { work, id, stream, cancel, end: self.end.clone(), flying: Some(flying) };
        exchange.answer(|_| StatusCode::OK).await
    }
}

impl SessionRequests {
    fn use_now(&self) {
        *self.used.lock() = Instant::now();
    }

    fn are_idle(&self) -> bool {
        self.used.lock().elapsed() > IDLE && self.in_flight.lock().is_empty()
    }

    fn begin(self: &Arc<Self>, id: &RequestId, number: u64, cancel: &CancellationToken) -> InFlight {
        self.in_flight.lock().insert(id.clone(), (number, cancel.clone()));
        InFlight { requests: self.clone(), id: id.clone(), number }
    }

    fn cancel(&self, id: &RequestId) {
        let cancelled = self.in_flight.lock().remove(id);
        if let Some((_, cancel)) = cancelled {
            cancel.cancel();
        }
    }

    /// Keeps a stream for a client that may lose its connection.
    fn keep(&self, number: u64, stream: Arc<EventStream>) {
        let mut streams = self.streams.lock();
        streams.retain(|_, stream| !stream.is_over(UNREAD));
        let ended: Vec<u64> =
            streams.iter().filter(|(_, stream)| stream.has_ended()).map(|(number, _)| *number).collect();
        for oldest in ended.iter().take((ended.len() + 1).saturating_sub(MOST_UNREAD)) {
            streams.remove(oldest);
        }
        streams.insert(number, stream);
    }
}

/// Answers a request of the stateless era. `status` returns the status of an error.
pub async fn answer_stateless<H: Handler>(
    handler: Arc<H>,
    body: RequestBody,
    context: RequestContext,
    stream: Arc<EventStream>,
    end: CancellationToken,
    status: impl FnOnce(&ErrorData) -> StatusCode,
) -> Response {
    let (id, cancel) = (context.id.clone(), context.cancel.clone());
    let work = Some(work(handler, body, context));
    Exchange { work, id, stream, cancel, end, flying: None }.answer(status).await
}

/// Returns the work on a request.
fn work<H: Handler>(
    handler: Arc<H>,
    body: RequestBody,
    context: RequestContext,
) -> BoxFuture<'static, Answered> {
    Box::pin(async move { answered(&*handler, body, &context).await })
}

/// An entry among a session's requests in flight, removed on drop.
struct InFlight {
    requests: Arc<SessionRequests>,
    id: RequestId,
    number: u64,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut all = self.requests.in_flight.lock();
        // Another request may have taken the same id.
        if all.get(&self.id).is_some_and(|(number, _)| *number == self.number) {
            all.remove(&self.id);
        }
        drop(all);
        self.requests.use_now();
    }
}

/// A request that is being answered. If its client leaves, a request of a session goes on, and one of the
/// stateless era is cancelled.
struct Exchange {
    /// `None` once it has ended or goes on elsewhere.
    work: Option<BoxFuture<'static, Answered>>,
    id: RequestId,
    stream: Arc<EventStream>,
    cancel: CancellationToken,
    end: CancellationToken,
    /// Its entry in its session; none in the stateless era.
    flying: Option<InFlight>,
}

impl Exchange {
    /// Answers the request. `status` returns the status of an error.
    async fn answer(mut self, status: impl FnOnce(&ErrorData) -> StatusCode) -> Response {
        let Some(work) = &mut self.work else { return streams::nothing() };
        let answered = tokio::select! {
            biased;
            answered = work => Some(answered),
            () = self.cancel.cancelled() => None,
            () = self.stream.speaks() => None,
            () = sleep(MOMENTS) => None,
        };
        if answered.is_some() {
            self.work = None;
        }
        // A cancelled request gets no answer.
        if self.cancel.is_cancelled() {
            return streams::nothing();
        }
        match answered {
            Some(answered) if self.stream.is_silent() => {
                let status = answered.as_ref().err().map_or(StatusCode::OK, status);
                let pieces = Pieces(reply::message(&self.id, answered, false).into());
                headers::in_json(status, Body::new(pieces))
            }
            Some(answered) => {
                self.stream.end(Some(reply::message(&self.id, answered, false)));
                self.events()
            }
            None => {
                let response = self.events();
                self.go_on();
                response
            }
        }
    }

    /// Returns a response with what is said until the end.
    fn events(&self) -> Response {
        let cancels = match &self.flying {
            Some(flying) => {
                flying.requests.keep(flying.number, self.stream.clone());
                None
            }
            None => Some(self.cancel.clone()),
        };
        self.stream.response(None, self.end.clone(), cancels)
    }

    /// Lets the work go on in a task.
    fn go_on(&mut self) {
        let Some(mut work) = self.work.take() else { return };
        let (stream, cancel, flying) = (self.stream.clone(), self.cancel.clone(), self.flying.take());
        let id = self.id.clone();
        tokio::spawn(async move {
            let answered = tokio::select! {
                biased;
                answered = &mut work => Some(answered),
                () = cancel.cancelled() => None,
            };
            let is_running = answered.is_none();
            let answered = answered.filter(|_| !cancel.is_cancelled());
            stream.end(answered.map(|answered| reply::message(&id, answered, false)));
            if is_running {
                let _ = work.await;
            }
            drop(flying);
        });
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if self.work.is_some() {
            self.stream.leave();
            if self.flying.is_none() {
                self.cancel.cancel();
            }
            self.go_on();
        }
    }
}

/// A body in pieces, none of which is copied.
struct Pieces(VecDeque<Bytes>);

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.iter().map(|piece| piece.len() as u64).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers nothing.
    struct Silent;

    impl Handler for Silent {
        async fn handle(&self, _: RequestBody, _: &RequestContext) -> Answered {
            std::future::pending().await
        }

        fn initialized(&self, _: &Arc<ClientPeer>) {}

        fn ended(&self) {}
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_is_idle_without_requests_and_streams() {
        let session = HttpSession::new(Silent, &CancellationToken::new());
        let after_a_while = async || {
            sleep(IDLE * 2).await;
            session.is_idle()
        };
        assert!(after_a_while().await);
        session.use_now();
        assert!(!session.is_idle());
        let stream = session.listen(&HeaderMap::new());
        assert!(!after_a_while().await, "its client listens");
        drop(stream);
        let (id, cancel) = (RequestId::Number(1), CancellationToken::new());
        let flying = session.requests.begin(&id, 0, &cancel);
        assert!(!after_a_while().await, "a request is in flight");
        drop(flying);
        assert!(!session.is_idle(), "its end counts as use");
        assert!(after_a_while().await);
    }
}
