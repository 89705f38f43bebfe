//! A server behind a URL: streamable HTTP through rmcp's worker, with results kept verbatim.
//!
//! rmcp's worker has the protocol (sessions, eras, streams that are resumed), and reads events into its own types. The client
//! under it wraps each verbatim result of an event under one key, so that it passes as an unknown result; the transport
//! unwraps it on the way out.

use std::{
    collections::{HashMap, HashSet},
    future::Future,
    sync::Arc,
};

use bytes::Bytes;
use futures::{StreamExt, stream::BoxStream};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use parking_lot::Mutex;
use rmcp::{
    RoleClient,
    model::{
        ClientJsonRpcMessage, ClientNotification, ClientRequest, CustomResult, ErrorData, GetExtensions,
        JsonRpcMessage, RequestId, ServerJsonRpcMessage, ServerNotification, ServerResult,
    },
    service::{RxJsonRpcMessage, TxJsonRpcMessage},
    transport::{
        StreamableHttpClientTransport, Transport,
        streamable_http_client::{
            SseError, StreamableHttpClient, StreamableHttpClientTransportConfig, StreamableHttpError,
            StreamableHttpPostResponse,
        },
    },
};
use serde_json::{Value, json};
use sse_stream::Sse;
use tokio_util::sync::DropGuard;

use super::{
    server_requests::{ClientChannel, RelatedCall},
    stdio::to_json,
    tap::{Expected, Tap},
};
use crate::wire::{
    BodyStream, EventReader, Expectations, Inbox, Message, MessageKind, OF_SERVER, PAGE, SizeLimit,
    http::{Endpoint, HttpFault, HttpReply, Signer, said},
    judge,
    rmcp::{TransportFault, discover_refused, transport_fault},
};

/// The key that a verbatim result is wrapped under on its way through rmcp.
const WRAP: &str = "nonet/verbatim";
/// The most requests of a server that are on their way to be read.
const MOST_ASKED: usize = 1_000;
/// The session that a server gave to a connection.
const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");

type Headers = HashMap<HeaderName, HeaderValue>;
type Worker = StreamableHttpClientTransport<VerbatimClient>;

/// The transport of one server.
pub struct HttpTransport {
    worker: Worker,
    pub tap: Tap,
    streams: Streams,
    /// Tells the connection that this transport is gone, by being dropped with it.
    _open: DropGuard,
}

/// Makes the transport; nothing is sent yet.
pub fn transport(
    server: Arc<str>,
    url: &str,
    headers: Headers,
    signer: Option<Arc<dyn Signer>>,
    open: DropGuard,
) -> Result<HttpTransport, HttpFault> {
    let streams = Streams::default();
    let client = VerbatimClient { server, endpoint: Endpoint::new(signer)?, streams: streams.clone() };
    let mut config = StreamableHttpClientTransportConfig::with_uri(url);
    config.custom_headers = headers;
    config.max_concurrent_requests = 64;
    let worker = Worker::with_client(client, config);
    Ok(HttpTransport { worker, tap: Tap::default(), streams, _open: open })
}

impl Transport<RoleClient> for HttpTransport {
    type Error = <Worker as Transport<RoleClient>>::Error;

    fn send(
        &mut self,
        mut message: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let id = match &mut message {
            JsonRpcMessage::Request(request) => {
                let asker = request.request.extensions_mut().remove::<ClientChannel>();
                self.streams.open(request.id.clone(), Expected::of(&request.request), asker);
                Some(request.id.clone())
            }
            JsonRpcMessage::Notification(notification) => {
                if let ClientNotification::CancelledNotification(cancelled) = &notification.notification
                    && let Some(id) = &cancelled.params.request_id
                {
                    self.streams.end(id);
                }
                None
            }
            _ => None,
        };
        self.tap.outgoing(&mut message);
        let (sent, streams) = (self.worker.send(message), self.streams.clone());
        async move {
            let sent = sent.await;
            // No answer will come.
            if let (Err(_), Some(id)) = (&sent, &id) {
                streams.end(id);
            }
            sent
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        loop {
            let mut message = self.worker.receive().await?;
            match &mut message {
                JsonRpcMessage::Notification(notification) => {
                    if let ServerNotification::ProgressNotification(progress) = &notification.notification {
                        self.tap.progress(serde_json::to_value(&progress.params).unwrap_or_default());
                        continue;
                    }
                    if let ServerNotification::LoggingMessageNotification(log) = &notification.notification {
                        self.tap.log(serde_json::to_value(&log.params).unwrap_or_default());
                    }
                }
                JsonRpcMessage::Response(response) => {
                    self.streams.end(&response.id);
                    self.tap.answered(&response.id);
                    if let Some(listed) = listed_tools(&mut response.result) {
                        response.result = ServerResult::CustomResult(CustomResult::new(listed));
                    } else if let ServerResult::CustomResult(custom) = &mut response.result
                        && let Some(inner) = custom.0.get_mut(WRAP)
                    {
                        custom.0 = inner.take();
                    }
                }
                JsonRpcMessage::Error(error) => {
                    if let Some(id) = &error.id {
                        self.streams.end(id);
                        self.tap.answered(id);
                    }
                }
                JsonRpcMessage::Request(request) => {
                    if let Some(about) = self.streams.about(&request.id) {
                        request.request.extensions_mut().insert(about);
                    }
                }
            }
            return Some(message);
        }
    }

    fn close(&mut self) -> impl Future<Output = Result<(), Self::Error>> + Send {
        self.worker.close()
    }
}

/// The HTTP client under rmcp's worker.
#[derive(Clone)]
pub struct VerbatimClient {
    server: Arc<str>,
    endpoint: Endpoint,
    streams: Streams,
}

/// The event streams of our requests, and what servers ask on them: a question belongs to the call on whose stream it comes.
#[derive(Clone, Default)]
struct Streams(Arc<Mutex<OpenRequests>>);

#[derive(Default)]
struct OpenRequests {
    /// Our requests that are not answered: what is expected of the answers, and their clients.
    open: HashMap<RequestId, (Expected, Option<ClientChannel>)>,
    /// Requests of the server that are on their way, by the ids that it gave them.
    asked: HashMap<RequestId, RelatedCall>,
}

impl Streams {
    fn open(&self, ours: RequestId, expected: Expected, asker: Option<ClientChannel>) {
        self.0.lock().open.insert(ours, (expected, asker));
    }

    fn end(&self, ours: &RequestId) {
        self.0.lock().open.remove(ours);
    }

    fn expected(&self, ours: &RequestId) -> Option<Expected> {
        self.0.lock().open.get(ours).map(|(expected, _)| *expected)
    }

    /// Notes a request of the server on the stream of one of ours.
    fn ask(&self, ours: &RequestId, theirs: RequestId) {
        let mut all = self.0.lock();
        let about = match all.open.get(ours) {
            Some((_, Some(asker))) => RelatedCall::Call(asker.clone()),
            _ => RelatedCall::Over,
        };
        // Each is taken out as it is read. A server whose requests are not read is at fault.
        if all.asked.len() >= MOST_ASKED {
            all.asked.clear();
        }
        all.asked.insert(theirs, about);
    }

    fn about(&self, theirs: &RequestId) -> Option<RelatedCall> {
        self.0.lock().asked.remove(theirs)
    }
}

impl Expectations for Streams {
    fn bound(&self, id: &RequestId) -> Option<SizeLimit> {
        self.expected(id).map(Expected::bound)
    }
}

/// Wraps a list of tools so that rmcp reads names and schemas: it leaves out those whose schema asks for headers that cannot
/// be, and sends such headers with calls of the others (`x-mcp-header`, 2026-07-28).
fn carrier_of_tools(list: Value) -> Option<Value> {
    let tools = list["tools"].as_array()?.iter().filter_map(|tool| {
        let schema = tool.get("inputSchema").filter(|schema| schema.is_object());
        Some(json!({ "name": tool.get("name")?.as_str()?, "inputSchema": schema.unwrap_or(&json!({})) }))
    });
    let tools: Vec<Value> = tools.collect();
    Some(json!({ "tools": tools, "_meta": { WRAP: list } }))
}

/// Takes such a list out again, without the tools that were left out.
fn listed_tools(result: &mut ServerResult) -> Option<Value> {
    let ServerResult::ListToolsResult(carrier) = result else { return None };
    let mut list = carrier.meta.as_mut()?.0.remove(WRAP)?;
    let names: HashSet<&str> = carrier.tools.iter().map(|tool| &*tool.name).collect();
    if let Some(tools) = list["tools"].as_array_mut() {
        tools.retain(|tool| tool["name"].as_str().is_none_or(|name| names.contains(name)));
    }
    Some(list)
}

/// The message of an event as rmcp is to read it: a verbatim result is wrapped.
fn wrapped(message: &Message, streams: &Streams) -> Bytes {
    let wrapped = || {
        let (result, expected) = (message.result()?, streams.expected(&message.id()?)?);
        if expected == Expected::Typed {
            return None;
        }
        let list = (expected == Expected::Tools).then(|| serde_json::from_slice(result).ok()).flatten();
        match list.and_then(carrier_of_tools) {
            Some(carrier) => message.with_result(&[carrier.to_string().as_bytes()]),
            None => message.with_result(&[b"{\"", WRAP.as_bytes(), b"\":", result, b"}"]),
        }
    };
    wrapped().unwrap_or_else(|| message.bytes().clone())
}

/// The message of a JSON answer as rmcp is to have it: a verbatim result goes past its types.
fn read(message: &Message, expected: Expected) -> Result<ServerJsonRpcMessage, serde_json::Error> {
    let (Some(result), Some(id), MessageKind::Result) = (message.result(), message.id(), message.kind())
    else {
        return serde_json::from_slice(message.bytes());
    };
    if expected == Expected::Typed {
        return serde_json::from_slice(message.bytes());
    }
    let result: Value = serde_json::from_slice(result)?;
    if expected == Expected::Tools && result["tools"].is_array() {
        let carrier = carrier_of_tools(result).unwrap_or_default();
        return serde_json::from_value(json!({ "jsonrpc": "2.0", "id": id, "result": carrier }));
    }
    Ok(JsonRpcMessage::response(ServerResult::CustomResult(CustomResult::new(result)), id))
}

/// The events of one stream, as rmcp is to have them.
struct Incoming {
    events: EventReader<BodyStream>,
    inbox: Inbox,
    /// The request of ours that the stream answers.
    of: Option<RequestId>,
    client: VerbatimClient,
    /// Where refusals of the server's requests go, and with which headers.
    back: (Arc<str>, HeaderMap),
}

impl Incoming {
    fn stream(self) -> BoxStream<'static, Result<Sse, SseError>> {
        futures::stream::unfold(self, |mut incoming| async move {
            let next = incoming.next().await?;
            Some((Ok(next), incoming))
        })
        .boxed()
    }

    /// The next event, `None` at the end of the stream.
    async fn next(&mut self) -> Option<Sse> {
        if let Some(message) = self.inbox.pop() {
            return Some(self.event(Some(&message)));
        }
        let streams = &self.client.streams;
        let event = self.events.next(|beginning| judge(beginning, streams)).await?;
        let (id, retry) = (event.id.clone(), event.retry);
        self.inbox.take_event(event, streams);
        for refusal in self.inbox.refusals() {
            let (endpoint, (url, headers)) = (self.client.endpoint.clone(), self.back.clone());
            tokio::spawn(async move { endpoint.post(&*url, headers, refusal).await.map(drop) });
        }
        let message = self.inbox.pop();
        Some(Sse { id, retry, ..self.event(message.as_ref()) })
    }

    fn event(&self, message: Option<&Message>) -> Sse {
        let streams = &self.client.streams;
        if let (Some(message), Some(of)) = (message, &self.of)
            && message.kind() == MessageKind::Request
            && let Some(id) = message.id()
        {
            streams.ask(of, id);
        }
        let data = message.map(|message| {
            String::from_utf8(wrapped(message, streams).into())
                .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
        });
        Sse { data, event: None, id: None, retry: None }
    }
}

/// Requests whose answers are JSON, or nothing.
impl VerbatimClient {
    fn incoming(&self, reply: HttpReply, of: Option<RequestId>, back: (Arc<str>, HeaderMap)) -> Incoming {
        let inbox = Inbox::new(self.server.clone(), "an event");
        Incoming { events: reply.events(OF_SERVER.bytes), inbox, of, client: self.clone(), back }
    }

    /// Reads an answer that is not a stream.
    async fn answer(
        &self,
        reply: HttpReply,
        message: &ClientJsonRpcMessage,
        in_session: bool,
    ) -> Result<StreamableHttpPostResponse, HttpFault> {
        let (status, kind, session) = (reply.status, reply.kind(), reply.session());
        let JsonRpcMessage::Request(request) = message else {
            // Nobody waits for what a server answers to anything else, if it takes it.
            return match status.is_success() {
                true => Ok(StreamableHttpPostResponse::Accepted),
                false => Err(reply.refused().await),
            };
        };
        let expected = Expected::of(&request.request);
        let bound = if status.is_success() { expected.bound() } else { PAGE };
        let body = match reply.body(bound.bytes).await {
            Ok(body) => body,
            Err(fault @ HttpFault::TooLong(_)) => {
                return Ok(failed(&request.id, &fault.to_string(), session));
            }
            Err(fault) => return Err(fault),
        };
        if !status.is_success()
            && !in_session
            && matches!(request.request, ClientRequest::DiscoverRequest(_))
            && let Some(refused) = discover_refused(status, &body, request.id.clone())
        {
            return Ok(StreamableHttpPostResponse::Json(refused, None));
        }
        let unreadable = |what: &str| {
            let kind = if kind.is_empty() { "no content type" } else { kind.as_str() };
            let text = format!("HTTP {status}, {kind}: {what}: {}", said_by(&body));
            HttpFault::Status { status, text }
        };
        let refused = status.is_client_error() || status.is_server_error();
        let answer = Message::within(body.clone(), |_| bound);
        match answer {
            Ok(answer) if !refused || answer.kind() == MessageKind::Error => {
                let read = read(&answer, expected).map_err(|_| unreadable("the answer is not JSON-RPC"))?;
                Ok(StreamableHttpPostResponse::Json(read, session))
            }
            Ok(_) => Err(HttpFault::Status { status, text: said(status, &body) }),
            Err(refused) if refused.fault.is_syntax() => Err(unreadable("the answer is not JSON")),
            Err(refused) => {
                let what = format!("the answer is {}; it was dropped", refused.fault);
                Ok(failed(&request.id, &what, session))
            }
        }
    }
}

fn said_by(body: &[u8]) -> String {
    String::from_utf8_lossy(&body[..body.len().min(300)]).into_owned()
}

/// The answer to a request whose own answer cannot be used.
fn failed(id: &RequestId, what: &str, session: Option<String>) -> StreamableHttpPostResponse {
    let error = JsonRpcMessage::error(ErrorData::internal_error(what.to_string(), None), Some(id.clone()));
    StreamableHttpPostResponse::Json(error, session)
}

fn header_map(headers: Headers, session: Option<&str>) -> HeaderMap {
    let mut headers: HeaderMap = headers.into_iter().collect();
    if let Some(session) = session.and_then(|session| HeaderValue::try_from(session).ok()) {
        headers.insert(SESSION, session);
    }
    headers
}

impl StreamableHttpClient for VerbatimClient {
    type Error = HttpFault;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        _auth_header: Option<String>,
        custom_headers: Headers,
    ) -> Result<StreamableHttpPostResponse, TransportFault> {
        let headers = header_map(custom_headers, session_id.as_deref());
        let body = to_json(&message)?;
        let reply = self.endpoint.post(&*uri, headers.clone(), body.into()).await.map_err(transport_fault)?;
        if let Some(fault) = reply.wants_sign_in() {
            return Err(transport_fault(fault));
        }
        if matches!(reply.status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        if reply.is_events() {
            let of = match &message {
                JsonRpcMessage::Request(request) => Some(request.id.clone()),
                _ => None,
            };
            let session = reply.session();
            let events = self.incoming(reply, of, (uri, headers)).stream();
            return Ok(StreamableHttpPostResponse::Sse(events, session));
        }
        self.answer(reply, &message, session_id.is_some()).await.map_err(transport_fault)
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        _auth_header: Option<String>,
        custom_headers: Headers,
    ) -> Result<(), TransportFault> {
        let headers = header_map(custom_headers, Some(&session_id));
        self.endpoint.end_session(&uri, headers).await.map_err(transport_fault)
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        _auth_header: Option<String>,
        custom_headers: Headers,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, TransportFault> {
        let headers = header_map(custom_headers, session_id.as_deref());
        let opened = self.endpoint.stream(&*uri, headers.clone(), last_event_id.as_deref());
        let reply = opened.await.map_err(transport_fault)?;
        if reply.status == StatusCode::METHOD_NOT_ALLOWED {
            return Err(StreamableHttpError::ServerDoesNotSupportSse);
        }
        if !reply.status.is_success() {
            return Err(transport_fault(reply.refused().await));
        }
        if !reply.is_events() {
            return Err(StreamableHttpError::UnexpectedContentType(Some(reply.kind())));
        }
        Ok(self.incoming(reply, None, (uri, headers)).stream())
    }
}
