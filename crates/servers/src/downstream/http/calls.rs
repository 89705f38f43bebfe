//! Calls over streamable HTTP that bypass rmcp's worker, which takes several tasks and channels for each: a call is a POST,
//! and its answer is read directly. Other messages on its stream (requests, progress, logs, notices) are handled like
//! messages on the worker's streams.

use std::{io, sync::Arc, time::Duration};

use http::StatusCode;
use nonet_wire::{
    Inbox, Message, MessageKind,
    http::{HttpFault, call_headers},
    off_thread,
};
use rmcp::{
    RoleClient,
    model::{ErrorData, GetExtensions, JsonRpcMessage, RequestId},
    service::RxJsonRpcMessage,
};
use tokio::{sync::mpsc, time::sleep};

use super::{Address, Body, EventContent, EventStream, UnusableAnswer, VerbatimClient};
use crate::downstream::{
    ClientChannel, Era,
    direct::{DirectError, OpenRequests, number},
    server_requests::RelatedCall,
    tap::{self, AnswerKind, Tap},
};

/// How many times a stream that ended before the answer is reopened, and the first delay. The delay doubles each time, unless
/// the server sets one (SEP-1699).
const ATTEMPTS: u32 = 8;
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Makes the calls of one connection.
#[derive(Clone)]
pub(crate) struct HttpCalls {
    client: VerbatimClient,
    tap: Arc<Tap>,
    /// The channel to rmcp's loop, which answers the server's requests.
    to_rmcp: mpsc::Sender<RxJsonRpcMessage<RoleClient>>,
}

/// A call to be sent.
pub(crate) struct OutgoingCall {
    pub id: i64,
    pub tool: String,
    pub message: Vec<u8>,
    pub era: Era,
    /// The client that the server may send requests to.
    pub asker: Option<ClientChannel>,
}

impl HttpCalls {
    pub(super) fn new(
        client: VerbatimClient,
        tap: Tap,
        to_rmcp: mpsc::Sender<RxJsonRpcMessage<RoleClient>>,
    ) -> Self {
        Self { client, tap: tap.into(), to_rmcp }
    }

    /// Returns the open calls.
    pub(crate) fn open(&self) -> &OpenRequests {
        &self.tap.open
    }

    /// Returns whether calls of a tool can be made here; otherwise rmcp makes them.
    pub(crate) fn can_call(&self, tool: &str) -> bool {
        !self.client.streams.may_need_headers(tool) && self.client.place.get().is_some()
    }

    /// Sends a call and reads its stream to the end. Its answer completes the open call, and may also come on another stream,
    /// even after this function returns.
    pub(crate) async fn exchange(self, posted: OutgoingCall) -> Result<(), DirectError> {
        let OutgoingCall { id, tool, message, era, asker } = posted;
        let Some((url, headers)) = self.client.place.get() else { return Err(DirectError::Elsewhere) };
        let sent = match era {
            Era::Session => headers.clone(),
            Era::Stateless => call_headers(&tool, &headers),
        };
        let reply = match self.client.endpoint.post(&*url, sent, message.into()).await {
            Err(HttpFault::SessionExpired) => {
                self.client.place.leave(&headers);
                return Err(DirectError::Elsewhere);
            }
            reply => reply.map_err(unsent)?,
        };
        if let Some(fault) = reply.wants_sign_in() {
            return Err(unsent(fault));
        }
        if matches!(reply.status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) {
            return Ok(());
        }
        let about = asker.map_or(RelatedCall::Over, RelatedCall::Call);
        if reply.is_events() {
            let events = self.client.incoming(reply, None, (url, headers));
            return self.read_events(events, id, &about).await;
        }
        self.read_body(Body::read(reply, AnswerKind::Call, &self.client.streams.limits).await, id).await
    }

    /// Notifies the server that the answer is no longer wanted. In the stateless era, closing the request does that.
    pub(crate) fn cancel(&self, message: Vec<u8>, era: Era) {
        if let (Era::Session, Some((url, headers))) = (era, self.client.place.get())
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let endpoint = self.client.endpoint.clone();
            runtime.spawn(async move { endpoint.post(&*url, headers, message.into()).await.map(drop) });
        }
    }

    async fn read_body(&self, body: Result<Body, UnusableAnswer>, id: i64) -> Result<(), DirectError> {
        let limits = &self.client.streams.limits;
        let read = match body {
            Ok(body) => body.message(limits).await,
            Err(unread) => Err(unread),
        };
        let message = read.map_err(|unread| match unread {
            UnusableAnswer::Fault(fault) => unsent(fault),
            UnusableAnswer::Unusable(what) => DirectError::Refused(ErrorData::internal_error(what, None)),
        })?;
        let of = message.id();
        let call = match (of.as_ref(), message.kind()) {
            (Some(of), _) if number(of) == Some(id) => self.tap.open.take(of),
            // An unreadable request has no id to return in the error.
            (None, MessageKind::Error) => self.tap.open.take(&RequestId::Number(id)),
            _ => {
                let what = "the answer has the id of another request; it was dropped";
                return Err(DirectError::Refused(ErrorData::internal_error(what, None)));
            }
        };
        let (weight, limit) = (message.weight(), limits.error);
        let (answer, share) = off_thread(weight, move || tap::called(&message, limit)).await;
        if let Some(call) = call {
            let _ = call.send(answer.map(|result| result.holding(share)));
        }
        Ok(())
    }

    async fn read_events(
        &self,
        mut events: EventStream,
        id: i64,
        about: &RelatedCall,
    ) -> Result<(), DirectError> {
        let mut tap = self.tap.beside();
        let (mut last_event, mut wait, mut attempts) = (None, None, 0);
        loop {
            match events.read().await {
                Some(EventContent { message, id, retry }) => {
                    last_event = id.or(last_event);
                    wait = retry.map(Duration::from_millis).or(wait);
                    if let Some(message) = message {
                        attempts = 0;
                        self.take(message, &mut tap, &mut events.inbox, about).await;
                        events.send_refusals();
                    }
                }
                None if !self.tap.open.has(id) => return Ok(()),
                None => {
                    // A stream can be resumed only from an event with an id.
                    let Some(last) = last_event.as_deref() else { return Err(DirectError::Lost) };
                    events = loop {
                        if attempts >= ATTEMPTS {
                            return Err(DirectError::Lost);
                        }
                        let doubled = FIRST_WAIT.saturating_mul(1 << attempts);
                        sleep(wait.unwrap_or(doubled).min(LONGEST_WAIT)).await;
                        attempts += 1;
                        if let Some(resumed) = self.resume(last, &events.back).await? {
                            break resumed;
                        }
                    };
                }
            }
        }
    }

    /// Reopens a stream after the last event seen; `None` if a later attempt may succeed.
    async fn resume(&self, last: &str, back: &Address) -> Result<Option<EventStream>, DirectError> {
        let (url, headers) = back;
        match self.client.endpoint.stream(&**url, headers.clone(), Some(last)).await {
            Ok(reply) if reply.is_events() => Ok(Some(self.client.incoming(reply, None, back.clone()))),
            Ok(reply) if reply.status.is_client_error() => Err(DirectError::Lost),
            Ok(_) | Err(_) => Ok(None),
        }
    }

    /// Takes a message from the stream of a call.
    async fn take(&self, message: Message, tap: &mut Tap, inbox: &mut Inbox, about: &RelatedCall) {
        let reading = tap.reading(&message);
        let (incoming, share) = off_thread(message.weight(), reading).await;
        match tap.take_or_refuse((message.clone(), incoming), share, inbox) {
            None => {}
            Some(JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_)) => {
                inbox.note("an answer to an unknown request; skipped", message.bytes());
            }
            Some(mut typed) => {
                if let JsonRpcMessage::Request(request) = &mut typed {
                    request.request.extensions_mut().insert(about.clone());
                }
                let _ = self.to_rmcp.send(typed).await;
            }
        }
    }
}

fn unsent(fault: HttpFault) -> DirectError {
    DirectError::Unsent(io::Error::other(fault))
}
