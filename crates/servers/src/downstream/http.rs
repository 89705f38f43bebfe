//! A server at a URL: streamable HTTP through rmcp's worker, with results kept verbatim.
//!
//! rmcp's worker implements the protocol (sessions, eras, resumed streams) but parses messages into its own types, which
//! takes a hundred times their size. So the client below the worker sets results and large messages aside ([`Streams`]),
//! parsed once and on separate threads, and gives the worker a small message in place of each; the transport puts the
//! original back. After the worker's handshake, calls bypass it ([`calls`]).

mod calls;

use std::{
    collections::{HashMap, HashSet},
    future::Future,
    sync::Arc,
};

use bytes::Bytes;
use futures::{StreamExt, stream::BoxStream};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use nonet_text::results::CallResult;
use nonet_wire::{
    BodyStream, EventReader, Expectations, Inbox, Limits, MemoryShare, Message, MessageKind, ScannedMessage,
    SizeLimit, Weight, error_excerpt,
    http::{HttpFault, HttpReply, SignedClient, Signer, said},
    judge, off_thread,
    rmcp::{TransportFault, discover_refused, transport_fault},
    scan,
};
use parking_lot::Mutex;
use rmcp::{
    RoleClient,
    model::{
        ClientJsonRpcMessage, ClientNotification, ClientRequest, CustomResult, ErrorData, GetExtensions,
        JsonRpcMessage, RequestId, ServerJsonRpcMessage, ServerNotification, ServerRequest, ServerResult,
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
use tokio::sync::mpsc;
use tokio_util::sync::DropGuard;

pub(super) use self::calls::{HttpCalls, OutgoingCall};
use super::{
    direct,
    server_requests::{ClientChannel, RelatedCall},
    stdio::to_json,
    tap::{self, AnswerKind, Tap},
};

/// The member that replaces the content of a result that is set aside.
const KEPT: &str = "nonet/kept";
/// The method that replaces a set-aside message's own.
const KEPT_METHOD: &str = "nonet/kept";
/// The schema key that asks for a header (2026-07-28).
const HEADER_KEY: &str = "x-mcp-header";
/// The maximum number of a server's requests that wait to be read.
const MOST_ASKED: usize = 1_000;
/// The maximum number of servers' messages that wait for rmcp's loop, besides the worker's own.
const MOST_BESIDE: usize = 64;
/// The maximum number of tools that ask for headers.
const MOST_ASKING: usize = 10_000;
/// The session that a server gave to a connection.
const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");

type Headers = HashMap<HeaderName, HeaderValue>;
type Worker = StreamableHttpClientTransport<VerbatimClient>;

/// The transport of one server.
pub(super) struct HttpTransport {
    worker: Worker,
    pub tap: Tap,
    streams: Streams,
    /// Messages from the streams of calls that bypass the worker.
    beside: mpsc::Receiver<RxJsonRpcMessage<RoleClient>>,
    /// Signals to the connection, on drop, that this transport is gone.
    _open: DropGuard,
}

/// Returns the transport, and the calls that bypass its worker. Sends nothing yet.
pub(super) fn transport(
    server: Arc<str>,
    url: &str,
    headers: Headers,
    signer: Option<Arc<dyn Signer>>,
    tap: Tap,
    open: DropGuard,
) -> Result<(HttpTransport, HttpCalls), HttpFault> {
    let streams = Streams {
        limits: *tap.limits(),
        open: Arc::default(),
        direct: tap.open.clone(),
        asking: Arc::default(),
    };
    let endpoint = SignedClient::new(signer)?;
    let client = VerbatimClient { server, endpoint, streams: streams.clone(), place: Place::default() };
    let (to_rmcp, beside) = mpsc::channel(MOST_BESIDE);
    let calls = HttpCalls::new(client.clone(), tap.beside(), to_rmcp);
    let mut config = StreamableHttpClientTransportConfig::with_uri(url);
    config.custom_headers = headers;
    config.max_concurrent_requests = 64;
    let worker = Worker::with_client(client, config);
    Ok((HttpTransport { worker, tap, streams, beside, _open: open }, calls))
}

impl Drop for HttpTransport {
    fn drop(&mut self) {
        self.tap.open.close();
    }
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
                self.streams.open(request.id.clone(), AnswerKind::of(&request.request), asker);
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
            let received = tokio::select! {
                received = self.worker.receive() => received?,
                Some(read) = self.beside.recv() => return Some(read),
            };
            let Some(mut message) = self.streams.whole(received) else { continue };
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
                    let kept = self.streams.end(&response.id);
                    let awaited = self.tap.answered(&response.id);
                    if let Some(kept) = kept {
                        let result = match (kept.result, awaited) {
                            (KeptForm::Called(result), awaited) => {
                                if let Some(awaited) = awaited {
                                    awaited.returns(result.holding(kept.share));
                                }
                                Value::Null
                            }
                            (KeptForm::Tree(result), awaited) => {
                                if let Some(awaited) = awaited {
                                    awaited.holds(kept.share);
                                }
                                listed(result, &kept.asking, &response.result)
                            }
                        };
                        response.result = ServerResult::CustomResult(CustomResult::new(result));
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
pub(super) struct VerbatimClient {
    server: Arc<str>,
    endpoint: SignedClient,
    streams: Streams,
    place: Place,
}

/// The address and headers of the worker's last POST, including the session's headers. `None` before the handshake.
#[derive(Clone, Default)]
struct Place(Arc<Mutex<Option<Address>>>);

/// An address and the headers for it.
type Address = (Arc<str>, HeaderMap);

impl Place {
    fn get(&self) -> Option<Address> {
        self.0.lock().clone()
    }

    /// Notes a message's destination.
    fn note(&self, message: &ClientJsonRpcMessage, url: &Arc<str>, headers: &HeaderMap) {
        if let JsonRpcMessage::Request(request) = message
            && matches!(
                request.request,
                ClientRequest::InitializeRequest(_) | ClientRequest::DiscoverRequest(_)
            )
        {
            return;
        }
        let mut headers = headers.clone();
        let of_one = headers.keys().filter(|name| is_of_one_message(name)).cloned().collect::<Vec<_>>();
        of_one.iter().for_each(|name| drop(headers.remove(name)));
        *self.0.lock() = Some((url.clone(), headers));
    }

    /// Forgets an expired session, unless it has been replaced already.
    fn leave(&self, expired: &HeaderMap) {
        let mut place = self.0.lock();
        if place.as_ref().is_some_and(|(_, headers)| headers.get(SESSION) == expired.get(SESSION)) {
            *place = None;
        }
    }
}

/// Returns whether a header repeats a part of one message (SEP-2243).
fn is_of_one_message(name: &HeaderName) -> bool {
    matches!(name.as_str(), "mcp-method" | "mcp-name") || name.as_str().starts_with("mcp-param-")
}

/// The event streams of our requests, and the server's requests on them: a server's request belongs to the call on whose
/// stream it arrives. Also holds the messages set aside from rmcp.
#[derive(Clone)]
struct Streams {
    limits: Limits,
    open: Arc<Mutex<OpenRequests>>,
    /// The calls that bypass rmcp's worker.
    direct: direct::OpenRequests,
    /// The tools that ask for headers. It only grows.
    asking: Arc<Mutex<HashSet<String>>>,
}

#[derive(Default)]
struct OpenRequests {
    /// Our unanswered requests.
    open: HashMap<RequestId, OpenRequest>,
    /// The server's requests on their way to rmcp, by the server's own ids.
    asked: HashMap<RequestId, RelatedCall>,
    /// The server's large requests and notifications on their way to rmcp.
    large: HashMap<u64, ServerJsonRpcMessage>,
    last_large: u64,
}

struct OpenRequest {
    expected: AnswerKind,
    client: Option<ClientChannel>,
    /// The answer, once it is on its way to rmcp.
    kept: Option<KeptResult>,
}

/// A result that does not go through rmcp.
struct KeptResult {
    result: KeptForm,
    /// The tools in the result that do go through rmcp: the ones that ask for headers.
    asking: HashSet<String>,
    share: Option<MemoryShare>,
}

enum KeptForm {
    Called(CallResult),
    Tree(Value),
}

impl Streams {
    fn open(&self, ours: RequestId, expected: AnswerKind, client: Option<ClientChannel>) {
        self.open.lock().open.insert(ours, OpenRequest { expected, client, kept: None });
    }

    fn end(&self, ours: &RequestId) -> Option<KeptResult> {
        self.open.lock().open.remove(ours).and_then(|open| open.kept)
    }

    fn expected(&self, ours: &RequestId) -> Option<AnswerKind> {
        self.open.lock().open.get(ours).map(|open| open.expected)
    }

    /// Returns whether an answer under this id is awaited. Some servers write numbers as strings.
    fn is_open(&self, id: RequestId) -> bool {
        let id = match &id {
            RequestId::String(text) => text.parse().map_or(id, RequestId::Number),
            RequestId::Number(_) => id,
        };
        self.open.lock().open.contains_key(&id)
    }

    /// Keeps the result of a request that is still in flight.
    fn keep(&self, ours: &RequestId, kept: KeptResult) {
        if let Some(open) = self.open.lock().open.get_mut(ours) {
            open.kept = Some(kept);
        }
    }

    /// Keeps a large message. Returns its number.
    fn keep_large(&self, message: ServerJsonRpcMessage) -> u64 {
        let mut all = self.open.lock();
        all.last_large += 1;
        let number = all.last_large;
        // Each one is removed when it is read.
        if all.large.len() >= MOST_ASKED {
            all.large.clear();
        }
        all.large.insert(number, message);
        number
    }

    /// Returns the original of a message that went through rmcp; `None` if it is gone.
    fn whole(&self, message: ServerJsonRpcMessage) -> Option<ServerJsonRpcMessage> {
        let params = match &message {
            JsonRpcMessage::Request(request) => match &request.request {
                ServerRequest::CustomRequest(custom) if custom.method == KEPT_METHOD => &custom.params,
                _ => return Some(message),
            },
            JsonRpcMessage::Notification(notification) => match &notification.notification {
                ServerNotification::CustomNotification(custom) if custom.method == KEPT_METHOD => {
                    &custom.params
                }
                _ => return Some(message),
            },
            _ => return Some(message),
        };
        let number = params.as_ref()?.get("number")?.as_u64()?;
        self.open.lock().large.remove(&number)
    }

    /// Notes a server's request on the stream of one of ours.
    fn ask(&self, ours: &RequestId, theirs: RequestId) {
        let mut all = self.open.lock();
        let about = match all.open.get(ours) {
            Some(OpenRequest { client: Some(client), .. }) => RelatedCall::Call(client.clone()),
            _ => RelatedCall::Over,
        };
        // Each one is removed when it is read. If they are not read, the server is at fault.
        if all.asked.len() >= MOST_ASKED {
            all.asked.clear();
        }
        all.asked.insert(theirs, about);
    }

    fn about(&self, theirs: &RequestId) -> Option<RelatedCall> {
        self.open.lock().asked.remove(theirs)
    }

    fn ask_for_headers(&self, tools: &HashSet<String>) {
        if !tools.is_empty() {
            self.asking.lock().extend(tools.iter().take(MOST_ASKING).cloned());
        }
    }

    /// Returns whether calls of a tool may need headers that rmcp generates.
    fn may_need_headers(&self, tool: &str) -> bool {
        let asking = self.asking.lock();
        asking.len() >= MOST_ASKING || asking.contains(tool)
    }

    /// Returns a message in the form that rmcp is to read. Large or verbatim content is set aside.
    async fn light(&self, message: Message) -> Bytes {
        match (message.kind(), message.id(), message.id_text()) {
            (MessageKind::Result, Some(id), Some(id_text)) => match self.expected(&id) {
                None | Some(AnswerKind::Typed) => message.bytes().clone(),
                Some(expected) => self.light_result(message, &id, &id_text, expected).await,
            },
            (MessageKind::Error, ..) => {
                let (limit, bytes) = (self.limits.error, message.bytes().clone());
                let cut = off_thread(message.weight(), move || {
                    let error = tap::answer(&message, None, limit);
                    error.ok().and_then(|error| serde_json::to_vec(&error).ok())
                });
                cut.await.0.map_or(bytes, Bytes::from)
            }
            (kind @ (MessageKind::Request | MessageKind::Notification), _, id)
                if message.weight().is_large() =>
            {
                let bytes = message.bytes().clone();
                let (read, _) =
                    off_thread(message.weight(), move || serde_json::from_slice(&bytes).ok()).await;
                // rmcp reports an invalid message, which it gets in a small form.
                let number = read.map(|read| self.keep_large(read));
                let mut light =
                    json!({ "jsonrpc": "2.0", "method": KEPT_METHOD, "params": { "number": number } });
                if let (MessageKind::Request, Some(id)) = (kind, id) {
                    light["id"] = serde_json::from_str(&id).unwrap_or_default();
                }
                light.to_string().into()
            }
            _ => message.bytes().clone(),
        }
    }

    async fn light_result(
        &self,
        message: Message,
        id: &RequestId,
        id_text: &str,
        expected: AnswerKind,
    ) -> Bytes {
        let weight = message.weight();
        let read = move || {
            if expected == AnswerKind::Call {
                let result = CallResult::read(message.result_bytes().unwrap_or_default())?;
                return Ok((KeptForm::Called(result), None));
            }
            let read = serde_json::from_slice(message.result().unwrap_or_default());
            let result: Value = read.map_err(|error| error.to_string())?;
            let asking = match expected {
                AnswerKind::Tools => tools_that_ask(&result),
                _ => None,
            };
            Ok::<_, String>((KeptForm::Tree(result), asking))
        };
        let (read, share) = off_thread(weight, read).await;
        match read {
            Ok((result, asking)) => {
                let names = asking.iter().flatten().filter_map(|tool| tool["name"].as_str());
                let kept = KeptResult { result, asking: names.map(String::from).collect(), share };
                self.ask_for_headers(&kept.asking);
                self.keep(id, kept);
                let light = match asking {
                    Some(tools) => json!({ "tools": tools }),
                    None => json!({ KEPT: true }),
                };
                format!("{{\"jsonrpc\":\"2.0\",\"id\":{id_text},\"result\":{light}}}").into()
            }
            Err(error) => Message::failure(id_text, -32603, &format!("unreadable answer: {error}")),
        }
    }
}

impl Expectations for Streams {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn bound(&self, id: &RequestId) -> Option<SizeLimit> {
        let expected = self.expected(id).map(|expected| expected.bound(&self.limits));
        expected.or_else(|| self.direct.bound(id, self.limits.answer))
    }
}

/// Returns the tools of a list whose schemas ask for headers: rmcp drops the ones with impossible headers, and sends the
/// headers with calls of the others (2026-07-28). `None` if it is not a list.
fn tools_that_ask(list: &Value) -> Option<Vec<Value>> {
    let tools = list["tools"].as_array()?.iter().filter_map(|tool| {
        let schema =
            tool.get("inputSchema").filter(|schema| schema.is_object() && asks_for_headers(schema))?;
        Some(json!({ "name": tool.get("name")?.as_str()?, "inputSchema": schema }))
    });
    Some(tools.collect())
}

fn asks_for_headers(schema: &Value) -> bool {
    match schema {
        Value::Object(members) => members.contains_key(HEADER_KEY) || members.values().any(asks_for_headers),
        Value::Array(items) => items.iter().any(asks_for_headers),
        _ => false,
    }
}

/// Returns a result without the `asking` tools that rmcp has dropped.
fn listed(mut result: Value, asking: &HashSet<String>, through: &ServerResult) -> Value {
    if asking.is_empty() {
        return result;
    }
    let ServerResult::ListToolsResult(list) = through else { return result };
    let stay: HashSet<&str> = list.tools.iter().map(|tool| &*tool.name).collect();
    if let Some(tools) = result.get_mut("tools").and_then(Value::as_array_mut) {
        tools.retain(|tool| {
            tool["name"].as_str().is_none_or(|name| stay.contains(name) || !asking.contains(name))
        });
    }
    result
}

/// The content of an event: at most one message, and the event's stream data.
struct EventContent {
    message: Option<Message>,
    id: Option<String>,
    retry: Option<u64>,
}

struct EventStream {
    events: EventReader<BodyStream>,
    inbox: Inbox,
    /// Our request that the stream answers.
    of: Option<RequestId>,
    client: VerbatimClient,
    /// The address and headers for refusals of the server's requests.
    back: Address,
}

impl EventStream {
    fn stream(self) -> BoxStream<'static, Result<Sse, SseError>> {
        futures::stream::unfold(self, |mut incoming| async move {
            let next = incoming.next().await?;
            Some((Ok(next), incoming))
        })
        .boxed()
    }

    /// Returns the next event for rmcp, `None` at the end of the stream.
    async fn next(&mut self) -> Option<Sse> {
        let EventContent { message, id, retry } = self.read().await?;
        Some(Sse { id, retry, ..self.event(message).await })
    }

    /// Returns the next content, `None` at the end of the stream.
    async fn read(&mut self) -> Option<EventContent> {
        if let Some(message) = self.inbox.pop() {
            return Some(EventContent { message: Some(message), id: None, retry: None });
        }
        let streams = &self.client.streams;
        let event = self.events.next(|beginning| judge(beginning, streams)).await?;
        let (id, retry) = (event.id.clone(), event.retry);
        if let Some(text) = self.inbox.take_event(event, streams) {
            let most = streams.limits.answer.values;
            let (scan, _) = off_thread(Weight::of(text.len()), move || scan(text, most)).await;
            self.inbox.take(scan, streams);
        }
        self.send_refusals();
        Some(EventContent { message: self.inbox.pop(), id, retry })
    }

    fn send_refusals(&mut self) {
        for refusal in self.inbox.refusals() {
            let (endpoint, (url, headers)) = (self.client.endpoint.clone(), self.back.clone());
            tokio::spawn(async move { endpoint.post(&*url, headers, refusal).await.map(drop) });
        }
    }

    async fn event(&mut self, message: Option<Message>) -> Sse {
        let empty = Sse { data: None, event: None, id: None, retry: None };
        let Some(message) = message else { return empty };
        if message.kind() == MessageKind::Request {
            match message.id() {
                Some(id) => {
                    if let Some(of) = &self.of {
                        self.client.streams.ask(of, id);
                    }
                }
                // rmcp does not support such ids and would leave the server waiting.
                None => {
                    self.inbox.refuse_unread(&message, "the id is neither a string nor a 64-bit number");
                    return empty;
                }
            }
        }
        let answered = match message.kind() {
            MessageKind::Result | MessageKind::Error => message.id(),
            _ => None,
        };
        // Some servers answer a call on another call's stream.
        if let Some(call) = answered.as_ref().and_then(|id| self.client.streams.direct.take(id)) {
            let (weight, limit) = (message.weight(), self.client.streams.limits.error);
            let (answer, share) = off_thread(weight, move || tap::called(&message, limit)).await;
            let _ = call.send(answer.map(|result| result.holding(share)));
            return empty;
        }
        // rmcp takes an answer to an unknown request for the end of the stream.
        if answered.is_some_and(|id| !self.client.streams.is_open(id)) {
            self.inbox.note("an answer to an unknown request; skipped", message.bytes());
            return empty;
        }
        let data = self.client.streams.light(message).await;
        let data = String::from_utf8(data.into())
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
        Sse { data: Some(data), ..empty }
    }
}

/// Requests with a JSON answer or none.
impl VerbatimClient {
    fn incoming(&self, reply: HttpReply, of: Option<RequestId>, back: Address) -> EventStream {
        let inbox = Inbox::new(self.server.clone(), "an event");
        EventStream {
            events: reply.events(self.streams.limits.of_server.bytes),
            inbox,
            of,
            client: self.clone(),
            back,
        }
    }

    /// Reads an answer that is not a stream.
    async fn answer(
        &self,
        reply: HttpReply,
        message: &ClientJsonRpcMessage,
        in_session: bool,
    ) -> Result<StreamableHttpPostResponse, HttpFault> {
        let JsonRpcMessage::Request(request) = message else {
            // Nobody waits for the answer to anything else, once the server has accepted it.
            return match reply.status.is_success() {
                true => Ok(StreamableHttpPostResponse::Accepted),
                false => Err(reply.refused().await),
            };
        };
        let session = reply.session();
        let body = match Body::read(reply, AnswerKind::of(&request.request), &self.streams.limits).await {
            Ok(body) => body,
            Err(unread) => return unread.answering(&request.id, session),
        };
        if !body.status.is_success()
            && !in_session
            && matches!(request.request, ClientRequest::DiscoverRequest(_))
            && let Some(refused) = discover_refused(body.status, &body.bytes, request.id.clone())
        {
            return Ok(StreamableHttpPostResponse::Json(refused, None));
        }
        match body.message(&self.streams.limits).await {
            Ok(answer) => {
                let light = self.streams.light(answer).await;
                let read = serde_json::from_slice(&light)
                    .map_err(|_| body.unreadable("the answer is not JSON-RPC"))?;
                Ok(StreamableHttpPostResponse::Json(read, session))
            }
            Err(unread) => unread.answering(&request.id, session),
        }
    }
}

/// The complete body of an answer.
struct Body {
    status: StatusCode,
    kind: String,
    bytes: Bytes,
    bound: SizeLimit,
}

/// Why an answer is not a message.
enum UnusableAnswer {
    Fault(HttpFault),
    /// The request fails with this text.
    Unusable(String),
}

impl UnusableAnswer {
    fn answering(
        self,
        id: &RequestId,
        session: Option<String>,
    ) -> Result<StreamableHttpPostResponse, HttpFault> {
        match self {
            Self::Fault(fault) => Err(fault),
            Self::Unusable(what) => Ok(failed(id, &what, session)),
        }
    }
}

impl Body {
    async fn read(reply: HttpReply, expected: AnswerKind, limits: &Limits) -> Result<Self, UnusableAnswer> {
        let (status, kind) = (reply.status, reply.kind());
        let bound = if status.is_success() { expected.bound(limits) } else { limits.of_server };
        let bytes = reply.body(bound.bytes).await.map_err(|fault| match fault {
            HttpFault::TooLong(_) => UnusableAnswer::Unusable(fault.to_string()),
            fault => UnusableAnswer::Fault(fault),
        })?;
        Ok(Self { status, kind, bytes, bound })
    }

    /// Returns the message in the body.
    async fn message(&self, limits: &Limits) -> Result<Message, UnusableAnswer> {
        let (text, most) = (self.bytes.clone(), self.bound.values);
        let (scanned, _) = off_thread(Weight::of(text.len()), move || ScannedMessage::of(text, most)).await;
        let (bound, of_error) = (self.bound, limits.of_server);
        let refused = self.status.is_client_error() || self.status.is_server_error();
        match scanned.within(|start| if start.kind() == MessageKind::Error { of_error } else { bound }) {
            Ok(answer) if !refused || answer.kind() == MessageKind::Error => Ok(answer),
            Ok(_) => {
                let text = said(self.status, &self.bytes);
                Err(UnusableAnswer::Fault(HttpFault::Status { status: self.status, text }))
            }
            Err(refused) if refused.fault.is_syntax() => {
                Err(UnusableAnswer::Fault(self.unreadable("the answer is not JSON")))
            }
            Err(refused) => {
                let said = error_excerpt(&refused.head, &refused.bytes);
                Err(UnusableAnswer::Unusable(format!(
                    "the answer is {}; it was dropped{said}",
                    refused.fault
                )))
            }
        }
    }

    fn unreadable(&self, what: &str) -> HttpFault {
        let kind = if self.kind.is_empty() { "no content type" } else { self.kind.as_str() };
        let text = format!("HTTP {}, {kind}: {what}: {}", self.status, said_by(&self.bytes));
        HttpFault::Status { status: self.status, text }
    }
}

fn said_by(body: &[u8]) -> String {
    String::from_utf8_lossy(&body[..body.len().min(300)]).into_owned()
}

/// Returns the failure of a request whose answer cannot be used.
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
        self.place.note(&message, &uri, &headers);
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
