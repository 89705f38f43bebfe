//! The way to a gateway behind a URL: streamable HTTP, both eras.
//!
//! Each message is a POST. What the gateway says comes in the answers, and in the session era on a stream of its own. A
//! stream that breaks off is resumed where the gateway can do it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use futures::StreamExt;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use reqwest::{Client, Method, RequestBuilder, Response};
use serde_json::Value;
use tokio::{
    sync::mpsc,
    task::AbortHandle,
    time::{Instant, sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{Back, LOST, Message, error, error_line};
use crate::web;

const SESSION: &str = "mcp-session-id";
const VERSION: &str = "mcp-protocol-version";
const LAST_EVENT: &str = "last-event-id";
const ACCEPT: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");
/// How long a gateway that cannot be reached is tried: it may just be starting anew.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// How long between two tries.
const PAUSE: Duration = Duration::from_millis(250);
/// How long before a stream that ended is opened again, unless the gateway says otherwise.
const REOPEN: Duration = Duration::from_secs(1);
/// How often a stream that breaks off before its answer is resumed.
const RESUMES: u32 = 5;
/// How long the end of the session may take.
const DELETE_LIMIT: Duration = Duration::from_secs(1);
/// How much of an answer that is no JSON-RPC is shown, in bytes.
const SHOWN: usize = 300;

/// Where the gateway is.
#[derive(Clone, Debug)]
pub struct Target {
    /// The address of its MCP endpoint.
    pub url: String,
    /// Sent with each request, such as `Authorization`.
    pub headers: HeaderMap,
}

impl Target {
    /// The address without what may be a secret: name and password before an `@`, and the query.
    pub fn shown(&self) -> String {
        web::place(&self.url)
    }
}

#[derive(Debug, Default)]
struct Session {
    id: Option<String>,
    version: Option<String>,
}

pub(super) struct HttpLink {
    client: Client,
    target: Target,
    back: mpsc::Sender<Back>,
    /// How long a gateway that cannot be reached is tried.
    patience: Duration,
    session: Mutex<Session>,
    /// Open requests of the stateless era, which are cancelled by closing them.
    open: Mutex<HashMap<String, AbortHandle>>,
    /// The gateway does not know the session any more.
    expired: CancellationToken,
    tasks: TaskTracker,
}

impl HttpLink {
    pub fn new(target: Target, back: mpsc::Sender<Back>, patience: Duration) -> anyhow::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            client: web::client()?,
            target,
            back,
            patience,
            session: Mutex::default(),
            open: Mutex::default(),
            expired: CancellationToken::new(),
            tasks: TaskTracker::new(),
        }))
    }

    /// Sends what comes until no more does, or the session is over.
    pub async fn run(self: Arc<Self>, mut lines: mpsc::Receiver<Bytes>) {
        // Whatever ends this ends the streams too.
        let _end = self.expired.clone().drop_guard();
        loop {
            let line = tokio::select! {
                line = lines.recv() => line,
                () = self.expired.cancelled() => {
                    // What is in the queue was not sent.
                    while let Ok(line) = lines.try_recv() {
                        let _ = self.back.send(Back::Unsent(line)).await;
                    }
                    return;
                }
            };
            match line {
                Some(line) => self.clone().send(line).await,
                None => return self.leave().await,
            }
        }
    }

    async fn send(self: Arc<Self>, line: Bytes) {
        let Some(message) = Message::of(&line) else { return self.post(line).await };
        let cancelled = message.cancels().and_then(|id| self.open.lock().ok()?.remove(&id));
        match (message.method(), message.id()) {
            _ if cancelled.is_some() => drop(cancelled.map(|open| open.abort())),
            // Nothing may overtake the handshake.
            (Some("initialize"), Some(_)) => self.post(line).await,
            (Some(_), Some(id)) => {
                let modern = message.version().is_some();
                let link = self.clone();
                let (expired, key) = (self.expired.clone(), id.clone());
                let request = async move {
                    tokio::select! {
                        () = link.post(line) => {}
                        () = expired.cancelled() => {}
                    }
                    if let Ok(mut open) = link.open.lock() {
                        open.remove(&key);
                    }
                };
                let Ok(mut open) = self.open.lock() else { return };
                let task = self.tasks.spawn(request);
                if modern {
                    open.insert(id, task.abort_handle());
                }
            }
            (method, _) => {
                let opens = method == Some("notifications/initialized");
                self.post(line).await;
                if opens && self.session_id().is_some() {
                    let link = self.clone();
                    self.tasks.spawn(async move {
                        tokio::select! {
                            () = link.listen() => {}
                            () = link.expired.cancelled() => {}
                        }
                    });
                }
            }
        }
    }

    fn session_id(&self) -> Option<String> {
        self.session.lock().ok()?.id.clone()
    }

    /// A request with the headers of the session, if there is one.
    fn request(&self, method: Method) -> RequestBuilder {
        let mut request = self.client.request(method, &self.target.url).headers(self.target.headers.clone());
        request = request.header(header::ACCEPT, ACCEPT);
        let Ok(session) = self.session.lock() else { return request };
        if let Some(id) = &session.id {
            request = request.header(SESSION, id);
        }
        match &session.version {
            Some(version) => request.header(VERSION, version),
            None => request,
        }
    }

    /// The request for a message. In the stateless era it carries what is in the message in headers too.
    fn post_of(&self, line: &Bytes, message: Option<&Message<'_>>) -> RequestBuilder {
        let modern = message.and_then(|message| Some((message, message.version()?)));
        let request = match modern {
            None => self.request(Method::POST),
            Some((message, version)) => {
                let request = self.client.post(&self.target.url).headers(self.target.headers.clone());
                let request = request.header(header::ACCEPT, ACCEPT).header(VERSION, version);
                let request = request.header("mcp-method", message.method().unwrap_or_default());
                match message.name() {
                    Some(name) => request.header("mcp-name", name),
                    None => request,
                }
            }
        };
        request.header(header::CONTENT_TYPE, "application/json").body(line.clone())
    }

    /// Sends one message and hands on whatever comes back for it.
    async fn post(&self, line: Bytes) {
        let message = Message::of(&line);
        let id = message.as_ref().and_then(|message| message.method().and(message.id()));
        let id = id.as_deref();
        let modern = message.as_ref().is_some_and(|message| message.version().is_some());
        let session = if modern { None } else { self.session_id() };
        let began = Instant::now();
        let response = loop {
            match self.post_of(&line, message.as_ref()).send().await {
                Ok(response) => break response,
                Err(error) if error.is_connect() && began.elapsed() < self.patience => sleep(PAUSE).await,
                Err(error) => {
                    let url = self.target.shown();
                    let why = match error.is_connect() {
                        true => {
                            format!("nothing can be reached at {url}; is `nonet serve --http` running there?")
                        }
                        false => format!("{url}: {}", plain(&error)),
                    };
                    return self.fail(id, &why).await;
                }
            }
        };
        if response.status() == StatusCode::NOT_FOUND && session.is_some() {
            tracing::info!("the gateway does not know the session any more");
            let _ = self.back.send(Back::Unsent(line.clone())).await;
            self.expired.cancel();
            return;
        }
        if let Some(given) = response.headers().get(SESSION).and_then(|id| id.to_str().ok())
            && let Ok(mut session) = self.session.lock()
        {
            session.id = Some(given.into());
        }
        self.answer(response, id).await;
    }

    /// Hands on the answer to a message; `id` is that of a request.
    async fn answer(&self, response: Response, id: Option<&str>) {
        let status = response.status();
        let kind = response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        if status.is_success() && kind.is_some_and(|kind| kind.starts_with("text/event-stream")) {
            return self.stream(response, id).await;
        }
        let body = match web::body(response).await {
            Ok(body) => body,
            Err(error) => return self.fail(id, &format!("the answer broke off: {error}")).await,
        };
        let answer = Message::of(&body);
        let (Some(id), Some(answer)) = (id, &answer) else {
            return match status.is_success() {
                true if body.is_empty() && id.is_some() => {
                    self.fail(id, "the gateway took the request and answered nothing").await;
                }
                true if body.is_empty() => {}
                true if answer.is_some() || body.trim_ascii().starts_with(b"[") => self.hand_on(&body).await,
                _ => self.fail(id, &self.refusal(status, &body)).await,
            };
        };
        match error_of(&body) {
            // One that names no request is about this one.
            Some(error) if !answer.answers(id) => self.line(error_line(id, &error)).await,
            None if !status.is_success() => self.fail(Some(id), &self.refusal(status, &body)).await,
            _ => self.hand_on(&body).await,
        }
    }

    /// What an answer says that is no JSON-RPC.
    fn refusal(&self, status: StatusCode, body: &[u8]) -> String {
        let hint = match status {
            StatusCode::UNAUTHORIZED => {
                " It wants a token: set NONET_TOKEN, or give `--header 'Authorization: Bearer ${VARIABLE}'`."
            }
            StatusCode::NOT_FOUND => {
                " Is this the address of its MCP endpoint, such as http://host:8931/mcp?"
            }
            _ => "",
        };
        let said = String::from_utf8_lossy(&body[..body.len().min(SHOWN)]).into_owned();
        format!("{} answered HTTP {status}: {}.{hint}", self.target.shown(), said.trim())
    }

    /// Hands on the messages of a stream until it holds the answer to `id`; resumes it where it breaks off before.
    async fn stream(&self, response: Response, id: Option<&str>) {
        let mut seen = Seen::default();
        let mut response = Some(response);
        for _ in 0..=RESUMES {
            if let Some(response) = response.take() {
                let Some(id) = id else {
                    self.events(response, None, &mut seen).await;
                    return;
                };
                if self.events(response, Some(id), &mut seen).await {
                    return;
                }
            }
            let Some(last) = &seen.last else { break };
            sleep(seen.pause()).await;
            let again = self.request(Method::GET).header(LAST_EVENT, last).send().await;
            response = again.ok().filter(|response| response.status().is_success());
        }
        self.fail(id, "the gateway broke off before its answer; whether the call was done is not known")
            .await;
    }

    /// Hands on the messages of a stream. Whether the answer to `id` was among them.
    async fn events(&self, response: Response, id: Option<&str>, seen: &mut Seen) -> bool {
        let mut events = web::events(response);
        while let Some(event) = events.next().await {
            let event = match event {
                Ok(event) => event,
                Err(error) => {
                    tracing::debug!(%error, "a stream broke off");
                    return false;
                }
            };
            if event.id.is_some() {
                seen.last = event.id;
            }
            if let Some(millis) = event.retry {
                seen.retry = Some(Duration::from_millis(millis));
            }
            let Some(data) = event.data.filter(|data| !data.trim().is_empty()) else { continue };
            self.hand_on(data.as_bytes()).await;
            if let Some(id) = id
                && Message::of(data.as_bytes()).is_some_and(|message| message.answers(id))
            {
                return true;
            }
        }
        false
    }

    /// The stream of the session era on which the gateway speaks of its own accord, until the session ends.
    async fn listen(&self) {
        let mut seen = Seen::default();
        loop {
            let mut request = self.request(Method::GET);
            if let Some(last) = &seen.last {
                request = request.header(LAST_EVENT, last);
            }
            match request.send().await {
                Ok(response) if response.status().is_success() => {
                    self.events(response, None, &mut seen).await;
                }
                Ok(response) if response.status() == StatusCode::NOT_FOUND => return self.expired.cancel(),
                Ok(response) if response.status().is_client_error() => {
                    tracing::debug!(status = %response.status(), "the gateway has no stream of its own");
                    return;
                }
                _ => {}
            }
            sleep(seen.pause()).await;
        }
    }

    /// Ends the session.
    async fn leave(&self) {
        self.expired.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        if self.session_id().is_some() {
            let _ = timeout(DELETE_LIMIT, self.request(Method::DELETE).send()).await;
        }
    }

    /// Hands a message on to the client, as one line.
    async fn hand_on(&self, message: &[u8]) {
        if let Some(version) = Message::of(message).and_then(|message| message.agreed_version())
            && let Ok(mut session) = self.session.lock()
        {
            session.version = Some(version);
        }
        let mut line = match message.trim_ascii() {
            // White space of JSON that was written over several lines; in its strings line ends are escaped.
            message if message.contains(&b'\n') => {
                message.iter().filter(|byte| !matches!(byte, b'\n' | b'\r')).copied().collect()
            }
            message => message.to_vec(),
        };
        line.push(b'\n');
        self.line(line.into()).await;
    }

    async fn line(&self, line: Bytes) {
        let _ = self.back.send(Back::Line(line)).await;
    }

    /// Answers a request with an error, or says in the log what happened to something else.
    async fn fail(&self, id: Option<&str>, why: &str) {
        match id {
            Some(id) => self.line(error(id, LOST, why)).await,
            None => tracing::warn!("{why}"),
        }
    }
}

/// How far a stream has come.
#[derive(Debug, Default)]
struct Seen {
    last: Option<String>,
    retry: Option<Duration>,
}

impl Seen {
    fn pause(&self) -> Duration {
        self.retry.unwrap_or(REOPEN)
    }
}

/// What a JSON-RPC error says.
fn error_of(body: &[u8]) -> Option<Value> {
    let mut body: Value = serde_json::from_slice(body).ok()?;
    body.get_mut("error").filter(|error| error.is_object()).map(Value::take)
}

/// An error with what is behind it, without the address, which may hold a secret.
fn plain(error: &reqwest::Error) -> String {
    let mut said = Vec::new();
    let mut next = std::error::Error::source(error);
    while let Some(error) = next {
        said.push(error.to_string());
        next = error.source();
    }
    if said.is_empty() { "the request failed".into() } else { said.join(": ") }
}
