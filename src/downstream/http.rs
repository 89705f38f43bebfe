//! A server behind a URL: streamable HTTP through rmcp's worker, with results kept verbatim.
//!
//! rmcp's worker parses answers into its own types. This client hands it each verbatim result
//! wrapped under one key, so that it passes as an unknown result, and unwraps it on the way out.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::{StreamExt, stream::BoxStream};
use http::{HeaderName, HeaderValue, StatusCode, header};
use rmcp::{
    RoleClient,
    model::{
        ClientJsonRpcMessage, ClientNotification, ClientRequest, CustomResult, GetExtensions, JsonRpcMessage,
        RequestId, ServerJsonRpcMessage, ServerNotification, ServerResult,
    },
    service::{RxJsonRpcMessage, TxJsonRpcMessage},
    transport::{
        StreamableHttpClientTransport, Transport,
        auth::{AuthError, WWWAuthenticateParams},
        streamable_http_client::{
            AuthRequiredError, InsufficientScopeError, SseError, StreamableHttpClient,
            StreamableHttpClientTransportConfig, StreamableHttpError, StreamableHttpPostResponse,
        },
    },
};
use serde::Deserialize;
use serde_json::{Value, json};
use sse_stream::Sse;
use tokio_util::sync::DropGuard;

use super::{
    server_requests::{ClientChannel, RelatedCall},
    tap::{Tap, is_verbatim},
};
use crate::{
    oauth::{Account, Attempt, RenewError},
    web::{self, BodyError, MAX_ANSWER},
};

/// The key that a verbatim result is wrapped under on its way through rmcp.
const WRAP: &str = "nonet/verbatim";
/// The most requests of a server that are on their way to be read.
const MOST_ASKED: usize = 1_000;

type Headers = HashMap<HeaderName, HeaderValue>;
type HttpError = StreamableHttpError<reqwest::Error>;

/// The transport of one server.
pub struct HttpTransport {
    worker: StreamableHttpClientTransport<VerbatimClient>,
    pub tap: Tap,
    streams: Streams,
    /// Tells the connection that this transport is gone, by being dropped with it.
    _open: DropGuard,
}

/// Makes the transport; nothing is sent yet.
pub fn transport(
    url: &str,
    headers: Headers,
    account: Option<Arc<Account>>,
    open: DropGuard,
) -> Result<HttpTransport, reqwest::Error> {
    let streams = Streams::default();
    let client = VerbatimClient { client: web::client()?, account, streams: streams.clone() };
    let mut config = StreamableHttpClientTransportConfig::with_uri(url);
    config.custom_headers = headers;
    config.max_sse_event_size = MAX_ANSWER;
    config.max_concurrent_requests = 64;
    let worker = StreamableHttpClientTransport::with_client(client, config);
    Ok(HttpTransport { worker, tap: Tap::default(), streams, _open: open })
}

impl Transport<RoleClient> for HttpTransport {
    type Error = <StreamableHttpClientTransport<VerbatimClient> as Transport<RoleClient>>::Error;

    fn send(
        &mut self,
        mut message: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let id = match &mut message {
            JsonRpcMessage::Request(request) => {
                if let Some(asker) = request.request.extensions_mut().remove::<ClientChannel>() {
                    self.streams.open(request.id.clone(), asker);
                }
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

/// reqwest, with the answers to verbatim requests wrapped, and requests signed where the server wants that.
#[derive(Clone)]
pub struct VerbatimClient {
    client: reqwest::Client,
    account: Option<Arc<Account>>,
    streams: Streams,
}

/// The event streams of our requests, and what servers ask on them: a question belongs to the call on whose stream it comes.
#[derive(Clone, Default)]
struct Streams(Arc<Mutex<Questions>>);

#[derive(Default)]
struct Questions {
    /// The clients of our requests that are not answered.
    open: HashMap<RequestId, ClientChannel>,
    /// Requests of the server that are on their way, by the ids that it gave them.
    asked: HashMap<RequestId, RelatedCall>,
}

impl Streams {
    fn all(&self) -> MutexGuard<'_, Questions> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self, ours: RequestId, asker: ClientChannel) {
        self.all().open.insert(ours, asker);
    }

    fn end(&self, ours: &RequestId) {
        self.all().open.remove(ours);
    }

    /// Notes a request of the server on the stream of one of ours.
    fn ask(&self, ours: &RequestId, theirs: RequestId) {
        let mut all = self.all();
        let about = all.open.get(ours).map_or(RelatedCall::Over, |asker| RelatedCall::Call(asker.clone()));
        // Each is taken out as it is read. A server whose requests are not read is at fault.
        if all.asked.len() >= MOST_ASKED {
            all.asked.clear();
        }
        all.asked.insert(theirs, about);
    }

    fn about(&self, theirs: &RequestId) -> Option<RelatedCall> {
        self.all().asked.remove(theirs)
    }
}

/// Wraps the result of a JSON-RPC response.
fn wrap(mut message: Value) -> Value {
    if let Some(result) = message.get_mut("result") {
        let inner = result.take();
        *result = json!({ WRAP: inner });
    }
    message
}

/// Wraps a list of tools so that rmcp reads names and schemas: it leaves out those whose schema asks for headers that cannot
/// be, and sends such headers with calls of the others (`x-mcp-header`, 2026-07-28).
fn wrap_tools(mut message: Value) -> Value {
    let Some(result) = message.get_mut("result").filter(|result| result["tools"].is_array()) else {
        return wrap(message);
    };
    let inner = result.take();
    let tools = inner["tools"].as_array().into_iter().flatten().filter_map(|tool| {
        let schema = tool.get("inputSchema").filter(|schema| schema.is_object());
        Some(json!({ "name": tool.get("name")?.as_str()?, "inputSchema": schema.unwrap_or(&json!({})) }))
    });
    *result = json!({ "tools": tools.collect::<Vec<_>>(), "_meta": { WRAP: inner } });
    message
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

/// What the head of a message says of its kind.
#[derive(Deserialize)]
struct Head {
    id: Option<RequestId>,
    method: Option<String>,
}

/// Wraps the result in each event of a stream that is a response, and notes the requests in it. `of` is the request of ours
/// that the stream answers.
fn wrap_events(
    events: BoxStream<'static, Result<Sse, SseError>>,
    wrap: fn(Value) -> Value,
    of: Option<RequestId>,
    streams: Streams,
) -> BoxStream<'static, Result<Sse, SseError>> {
    events
        .map(move |event| {
            event.map(|mut event| {
                let Some(data) = &event.data else { return event };
                let Ok(head) = serde_json::from_str::<Head>(data) else { return event };
                match (head, &of) {
                    (Head { id: Some(id), method: Some(_) }, Some(of)) => streams.ask(of, id),
                    (Head { id: Some(_), method: None }, _) if data.contains("\"result\"") => {
                        if let Ok(message) = serde_json::from_str::<Value>(data) {
                            event.data = Some(wrap(message).to_string());
                        }
                    }
                    _ => {}
                }
                event
            })
        })
        .boxed()
}

impl VerbatimClient {
    async fn attempt(&self) -> Result<Attempt<'_>, HttpError> {
        Attempt::first(self.account.as_ref()).await.map_err(unsigned_error)
    }

    /// Sends a request whose result is wanted verbatim: rmcp's own client would parse it.
    async fn post_verbatim(
        &self,
        uri: &str,
        message: &ClientJsonRpcMessage,
        session: Option<&Arc<str>>,
        auth: Option<&str>,
        headers: &Headers,
    ) -> Result<StreamableHttpPostResponse, HttpError> {
        let wrap = match message {
            JsonRpcMessage::Request(request)
                if matches!(request.request, ClientRequest::ListToolsRequest(_)) =>
            {
                wrap_tools
            }
            _ => wrap,
        };
        let mut request = self.client.post(uri).header(header::ACCEPT, "text/event-stream, application/json");
        if let Some(token) = auth {
            request = request.bearer_auth(token);
        }
        for (name, value) in headers {
            request = request.header(name, value);
        }
        if let Some(session) = session {
            request = request.header("mcp-session-id", session.as_ref());
        }
        let response = request.json(message).send().await?;
        let status = response.status();
        if status == StatusCode::NOT_FOUND && session.is_some() {
            return Err(StreamableHttpError::SessionExpired);
        }
        match (status, web::challenge(response.headers())) {
            (StatusCode::UNAUTHORIZED, challenge) => {
                let challenge = challenge.unwrap_or_else(|| format!("HTTP {status}"));
                return Err(StreamableHttpError::AuthRequired(AuthRequiredError::new(challenge)));
            }
            (StatusCode::FORBIDDEN, Some(challenge)) if challenge.contains("insufficient_scope") => {
                let base = reqwest::Url::parse(uri).map_err(|error| {
                    StreamableHttpError::UnexpectedServerResponse(
                        format!("the url is no address: {error}").into(),
                    )
                })?;
                let scope = WWWAuthenticateParams::parse(&challenge, &base).scope;
                return Err(StreamableHttpError::InsufficientScope(InsufficientScopeError::new(
                    challenge, scope,
                )));
            }
            _ => {}
        }
        let kind = response.headers().get(header::CONTENT_TYPE);
        let kind = kind.map(|kind| String::from_utf8_lossy(kind.as_bytes()).into_owned()).unwrap_or_default();
        let session = response.headers().get("mcp-session-id");
        let session = session.and_then(|id| id.to_str().ok()).map(String::from);
        if status.is_success() && kind.starts_with("text/event-stream") {
            let of = match message {
                JsonRpcMessage::Request(request) => Some(request.id.clone()),
                _ => None,
            };
            let events = wrap_events(web::events(response), wrap, of, self.streams.clone());
            return Ok(StreamableHttpPostResponse::Sse(events, session));
        }
        let body = web::body(response).await.map_err(|error| match error {
            BodyError::Broken(error) => StreamableHttpError::Client(error),
            BodyError::TooLong => StreamableHttpError::UnexpectedServerResponse(error.to_string().into()),
        })?;
        let unreadable = |what: &str| {
            let body = String::from_utf8_lossy(&body[..body.len().min(300)]).into_owned();
            let kind = if kind.is_empty() { "no content type" } else { kind.as_str() };
            StreamableHttpError::UnexpectedServerResponse(Cow::Owned(format!(
                "HTTP {status}, {kind}: {what}: {body}"
            )))
        };
        let parsed: Value = serde_json::from_slice(&body).map_err(|_| unreadable("the answer is no JSON"))?;
        let parsed = if status.is_success() { wrap(parsed) } else { parsed };
        let message: ServerJsonRpcMessage =
            serde_json::from_value(parsed).map_err(|_| unreadable("the answer is no JSON-RPC"))?;
        Ok(StreamableHttpPostResponse::Json(message, session))
    }
}

impl StreamableHttpClient for VerbatimClient {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        custom_headers: Headers,
    ) -> Result<StreamableHttpPostResponse, HttpError> {
        self.post_message_with_max_sse_event_size(
            uri,
            message,
            session_id,
            auth_header,
            custom_headers,
            MAX_ANSWER,
        )
        .await
    }

    async fn post_message_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        custom_headers: Headers,
        max_sse_event_size: usize,
    ) -> Result<StreamableHttpPostResponse, HttpError> {
        let verbatim = matches!(&message, JsonRpcMessage::Request(request) if is_verbatim(&request.request));
        let mut attempt = self.attempt().await?;
        loop {
            let token = attempt.token().map(String::from).or_else(|| auth_header.clone());
            let sent = if verbatim {
                let (session, headers) = (session_id.as_ref(), &custom_headers);
                self.post_verbatim(&uri, &message, session, token.as_deref(), headers).await
            } else {
                let (uri, message, session_id) = (uri.clone(), message.clone(), session_id.clone());
                let headers = custom_headers.clone();
                let limit = max_sse_event_size;
                self.client
                    .post_message_with_max_sse_event_size(uri, message, session_id, token, headers, limit)
                    .await
                    .map_err(told)
            };
            if !is_unsigned(&sent) || !attempt.again().await.map_err(unsigned_error)? {
                return sent;
            }
        }
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        auth_header: Option<String>,
        custom_headers: Headers,
    ) -> Result<(), HttpError> {
        let token = self.attempt().await?.token().map(String::from).or(auth_header);
        self.client.delete_session(uri, session_id, token, custom_headers).await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth_header: Option<String>,
        custom_headers: Headers,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, HttpError> {
        let mut attempt = self.attempt().await?;
        loop {
            let token = attempt.token().map(String::from).or_else(|| auth_header.clone());
            let (uri, session_id, last_event_id) = (uri.clone(), session_id.clone(), last_event_id.clone());
            let headers = custom_headers.clone();
            let opened =
                self.client.get_stream(uri, session_id, last_event_id, token, headers).await.map_err(told);
            if !is_unsigned(&opened) || !attempt.again().await.map_err(unsigned_error)? {
                return opened;
            }
        }
    }
}

/// Whether a request was refused for want of a sign-in.
fn is_unsigned<T>(sent: &Result<T, HttpError>) -> bool {
    matches!(sent, Err(StreamableHttpError::AuthRequired(_)))
}

/// rmcp's answer to a refusal without a challenge, as one for want of a sign-in.
fn told(error: HttpError) -> HttpError {
    match error {
        StreamableHttpError::UnexpectedServerResponse(text) if text.starts_with("HTTP 401") => {
            StreamableHttpError::AuthRequired(AuthRequiredError::new(text.into_owned()))
        }
        other => other,
    }
}

fn unsigned_error(error: RenewError) -> HttpError {
    match error {
        RenewError::Over(why) => StreamableHttpError::AuthRequired(AuthRequiredError::new(why)),
        RenewError::Failed(_) => StreamableHttpError::Auth(AuthError::TokenRefreshFailed(error.to_string())),
    }
}
