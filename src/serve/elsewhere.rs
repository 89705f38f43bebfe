//! Forwards requests that belong to another replica unchanged, and passes the answer back unchanged.

use std::{sync::Arc, time::Duration};

use axum::{body::Body, response::Response};
use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt};
use http::{
    HeaderValue, Method, StatusCode,
    header::{CONTENT_TYPE, RETRY_AFTER},
    request::Parts,
};
use nonet_meta as meta;
use nonet_parts::cluster::{Cluster, MISDIRECTED, SendFault, SessionLocation, answered_headers};
use nonet_store::Replica;
use nonet_text::fault::{Fault, FaultCode};
use nonet_wire::{Message, MessageKind};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::{Instant, sleep};

/// How long a request waits for a replica that does not answer, until the replica's lease expires or Redis
/// names the session's holder.
const PATIENCE: Duration = Duration::from_secs(15);
/// The delay before the next attempt.
const PAUSE: Duration = Duration::from_millis(200);
/// The longest event that is checked for being the answer. A longer one counts as the answer.
const MOST_LOOKED_AT: usize = 1 << 20;

/// A request with its complete body.
pub(super) struct BufferedRequest<'a> {
    pub parts: &'a Parts,
    pub authorization: Option<&'a HeaderValue>,
    pub body: Bytes,
    /// The message in the body of a POST.
    pub message: Option<&'a Message>,
}

/// Forwards a request if its session is not in memory here. `None`: the request is to be answered here.
pub(super) async fn of_session(
    cluster: &Arc<Cluster>,
    session: &str,
    request: BufferedRequest<'_>,
) -> Option<Response> {
    let until = Instant::now() + PATIENCE;
    let mut gone = None;
    loop {
        let (why, replica) = match cluster.find(session, gone).await {
            SessionLocation::Here => return None,
            SessionLocation::Unclear(why) => (why, None),
            SessionLocation::At(replica) => match send(cluster, &replica, &request).await {
                Ok(response) if response.status() == MISDIRECTED => {
                    cluster.forget(session);
                    (format!("`{}` no longer has the session", replica.name), None)
                }
                Ok(response) => return Some(response),
                Err(SendFault::Unsent { is_gone, why }) => {
                    gone = is_gone.then_some(replica.number).or(gone);
                    if is_gone {
                        continue;
                    }
                    (why, Some(replica))
                }
                Err(SendFault::Broken(why)) => match may_run_twice(request.message) {
                    true => (why, Some(replica)),
                    false => return Some(interrupted(&request, &replica)),
                },
            },
        };
        if Instant::now() >= until {
            let name =
                replica.map_or_else(String::new, |replica| format!(" at the replica `{}`", replica.name));
            return Some(unavailable(&format!("the session{name} cannot be reached: {why}")));
        }
        sleep(PAUSE).await;
    }
}

/// Forwards a request without a session to the replica that made its handle. `None`: the request is to be
/// answered here.
pub(super) async fn of_handle(cluster: &Arc<Cluster>, request: BufferedRequest<'_>) -> Option<Response> {
    let handle = handle(request.message?)?;
    let replica = cluster.elsewhere(&handle).await?;
    match send(cluster, &replica, &request).await {
        Ok(response) => Some(response),
        Err(SendFault::Unsent { .. }) => None,
        Err(SendFault::Broken(_)) => Some(interrupted(&request, &replica)),
    }
}

/// Returns the handle by which a stateless request continues an earlier one: `requestState`, or a question's
/// token.
fn handle(message: &Message) -> Option<String> {
    #[derive(Deserialize)]
    struct Params {
        #[serde(rename = "requestState")]
        state: Option<String>,
        arguments: Option<Token>,
    }
    #[derive(Deserialize)]
    struct Token {
        #[serde(default)]
        token: Value,
    }
    if message.kind() != MessageKind::Request {
        return None;
    }
    let params: Params = serde_json::from_slice(message.params()?).ok()?;
    params.state.or_else(|| match params.arguments?.token {
        Value::String(token) => Some(token),
        _ => None,
    })
}

async fn send(
    cluster: &Arc<Cluster>,
    to: &Replica,
    request: &BufferedRequest<'_>,
) -> Result<Response, SendFault> {
    let answer = cluster.send(to, request.parts, request.authorization, request.body.clone()).await?;
    let (status, headers) = (answer.status(), answered_headers(answer.headers()));
    let is_stream =
        headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
    let asked = request.message.filter(|message| message.kind() == MessageKind::Request);
    let body = match asked.and_then(Message::id_text) {
        Some(id) if is_stream => {
            let fault = interruption(request.message, &to.name);
            Body::from_stream(until_answered((cluster.clone(), to.number), answer.bytes_stream(), id, fault))
        }
        _ => Body::from_stream(answer.bytes_stream()),
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    Ok(response)
}

/// Passes events on. If they end before the answer to a request, `fault` is sent as the answer.
fn until_answered(
    of: (Arc<Cluster>, u32),
    from: impl Stream<Item = reqwest::Result<Bytes>> + Send + 'static,
    id: String,
    fault: Bytes,
) -> impl Stream<Item = reqwest::Result<Bytes>> + Send {
    let seen = AnswerSearch { id, rest: BytesMut::new(), is_there: false };
    futures::stream::unfold(
        (of, Box::pin(from), seen, Some(fault)),
        async |(of, mut from, mut seen, mut fault)| {
            let next = tokio::select! {
                next = from.next() => next?,
                () = of.0.replicas().until_gone(of.1) => return Some((Ok(fault_event(&fault.take()?)), (of, from, seen, None))),
            };
            // Events after the fault no longer matter.
            fault.as_ref()?;
            match next {
                Ok(bytes) => {
                    seen.read(&bytes);
                    Some((Ok(bytes), (of, from, seen, fault)))
                }
                Err(error) if seen.is_there => {
                    tracing::debug!(%error, "a replica ended after its answer");
                    None
                }
                Err(_) => Some((Ok(fault_event(&fault.take()?)), (of, from, seen, None))),
            }
        },
    )
}

/// Returns a fault as an event. Terminates an incomplete event first, so that the fault is not read as a part
/// of it.
fn fault_event(fault: &[u8]) -> Bytes {
    [b"\n\ndata: ", fault, b"\n\n"].concat().into()
}

/// Searches events for the answer to a request.
struct AnswerSearch {
    id: String,
    rest: BytesMut,
    is_there: bool,
}

impl AnswerSearch {
    fn read(&mut self, bytes: &[u8]) {
        if self.is_there {
            return;
        }
        self.rest.extend_from_slice(bytes);
        while let Some(end) = memchr::memmem::find(&self.rest, b"\n\n") {
            let event = self.rest.split_to(end + 2);
            self.is_there |= event[..].split(|byte| *byte == b'\n').any(|line| {
                line.strip_prefix(b"data:").is_some_and(|data| {
                    Message::of(data.to_vec()).is_some_and(|message| message.answers(&self.id))
                })
            });
        }
        if self.rest.len() > MOST_LOOKED_AT {
            self.is_there = true;
            self.rest = BytesMut::new();
        }
    }
}

/// Returns whether a message may be sent again although it may have arrived.
fn may_run_twice(message: Option<&Message>) -> bool {
    let Some(message) = message.filter(|message| message.kind() == MessageKind::Request) else { return true };
    match message.method().as_deref() {
        Some("tools/call") => message.about().is_some_and(|tool| meta::only_reads(&tool)),
        _ => true,
    }
}

/// Returns the answer to a call that was lost with its replica.
fn interruption(message: Option<&Message>, replica: &str) -> Bytes {
    let id = message.and_then(Message::id_text).unwrap_or_else(|| "null".into());
    if message.and_then(Message::method).as_deref() != Some("tools/call") {
        let why = format!("the replica `{replica}` ended before it answered; send the request again");
        return Message::failure(&id, -32603, &why);
    }
    let mut fault = Fault::new(
        FaultCode::ServerDown,
        format!(
            "The replica `{replica}` of Nonet ended before it answered. The call may have taken effect: check this before you repeat it, unless it is safe to repeat. Other calls are not affected."
        ),
    );
    fault.retryable = true;
    let result = fault.details(serde_json::json!({ "may_have_run": true })).to_result();
    Bytes::from(format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{result}}}"))
}

fn interrupted(request: &BufferedRequest<'_>, replica: &Replica) -> Response {
    tracing::warn!(replica = replica.name, "a replica ended during a call forwarded to it");
    let mut response = Response::new(Body::from(interruption(request.message, &replica.name)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Returns the answer to a request whose session is unreachable at the moment.
pub(super) fn unavailable(why: &str) -> Response {
    tracing::warn!(why, "a request for another replica was not answered");
    let error = Message::failure("null", -32603, &format!("{why}; try again"));
    let mut response = Response::new(Body::from(error));
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

/// Returns the answer to a request that another replica has forwarded here by mistake.
pub(super) fn misdirected() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = MISDIRECTED;
    response
}

/// Returns whether a request may belong to a session: any other method is refused.
pub(super) fn is_of_mcp(method: &Method) -> bool {
    matches!(*method, Method::POST | Method::GET | Method::DELETE)
}
