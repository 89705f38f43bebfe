//! The link to a gateway at a URL: streamable HTTP, both eras.
//!
//! Each message is a POST, and the gateway's messages come in the answers. The session era also has a stream
//! by GET. A broken stream is resumed where the gateway supports that.

use std::{borrow::Cow, collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header::AUTHORIZATION};
use nonet_base::text::clip;
use nonet_store::doors::{OwnerKey, PresentedToken};
use nonet_wire::{
    EventData, Limits, Message, MessageHead, StreamEvent,
    http::{Address, BrokenExchange, HttpFault, HttpReply, SessionHeaders, SignedClient, stateless_headers},
    web,
};
use parking_lot::Mutex;
use tokio::{
    sync::mpsc,
    task::AbortHandle,
    time::{Instant, sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{LOST, ReturnedLine, as_line, error};

/// How long to keep trying a gateway that cannot be reached: it may just be restarting.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// The delay between two attempts.
const PAUSE: Duration = Duration::from_millis(250);
/// The delay before an ended stream is reopened, unless the gateway sets another.
const REOPEN: Duration = Duration::from_secs(1);
/// How many times a stream that breaks before its answer is resumed.
const RESUMES: u32 = 5;
/// How long ending the session may take.
const DELETE_LIMIT: Duration = Duration::from_secs(1);
/// How many characters of an answer that is not JSON-RPC are shown.
const SHOWN: usize = 300;
/// The longest answer, in bytes: a server's result and its envelope.
const MAX_ANSWER: usize = Limits::HIGHEST.answer.bytes + (1 << 20);

/// Where the gateway is.
#[derive(Clone, Debug)]
pub struct Target {
    /// The address of its MCP endpoint.
    pub url: String,
    /// Sent with each request, such as `Authorization`.
    pub headers: HeaderMap,
    /// The token of this machine's user, sent as long as the gateway is one of this user.
    pub owner: Option<Arc<OwnerKey>>,
}

impl Target {
    /// Returns the headers of a request. `None`: nobody listens there yet, so it is not known whether to send
    /// the token.
    fn headers(&self) -> Option<Cow<'_, HeaderMap>> {
        let token = match self.owner.as_ref().map(|owner| owner.shown()) {
            Some(PresentedToken::Token(token)) => token,
            Some(PresentedToken::NotYet) => return None,
            Some(PresentedToken::Nothing) | None => return Some(Cow::Borrowed(&self.headers)),
        };
        let mut headers = self.headers.clone();
        if let Ok(mut value) = HeaderValue::try_from(format!("Bearer {token}")) {
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        Some(Cow::Owned(headers))
    }

    /// Returns the address without possible secrets: the user name and password before an `@`, and the query.
    pub fn shown(&self) -> String {
        web::place(&self.url)
    }
}

pub(super) struct HttpLink {
    endpoint: SignedClient,
    address: Address,
    target: Target,
    back: mpsc::Sender<ReturnedLine>,
    /// How long to keep trying a gateway that cannot be reached.
    patience: Duration,
    session: Mutex<SessionHeaders>,
    /// Open requests of the stateless era. Closing one cancels it.
    open: Mutex<HashMap<String, AbortHandle>>,
    /// Cancelled once the gateway no longer knows the session.
    expired: CancellationToken,
    tasks: TaskTracker,
}

impl HttpLink {
    pub(super) fn new(
        target: Target,
        back: mpsc::Sender<ReturnedLine>,
        patience: Duration,
    ) -> anyhow::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            endpoint: SignedClient::new(None),
            address: Address::parse(&target.url)?,
            target,
            back,
            patience,
            session: Mutex::default(),
            open: Mutex::default(),
            expired: CancellationToken::new(),
            tasks: TaskTracker::new(),
        }))
    }

    /// Sends messages until the queue closes or the session expires.
    pub(super) async fn run(self: Arc<Self>, mut lines: mpsc::Receiver<Bytes>) {
        // The streams end with this function, however it returns.
        let _end = self.expired.clone().drop_guard();
        loop {
            let line = tokio::select! {
                line = lines.recv() => line,
                () = self.expired.cancelled() => {
                    // Messages left in the queue were not sent.
                    while let Ok(line) = lines.try_recv() {
                        let _ = self.back.send(ReturnedLine::Unsent(line)).await;
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
        let Some(message) = Message::of(line.clone()) else { return self.post(line).await };
        let cancelled = message.cancels().and_then(|id| self.open.lock().remove(&id));
        match (message.method().as_deref(), message.id_text()) {
            _ if cancelled.is_some() => drop(cancelled.map(|open| open.abort())),
            // Nothing may overtake the handshake.
            (Some("initialize"), Some(_)) => self.post(line).await,
            (Some(_), Some(id)) => {
                let stateless = message.version().is_some();
                let link = self.clone();
                let (expired, key) = (self.expired.clone(), id.clone());
                let request = async move {
                    tokio::select! {
                        () = link.post(line) => {}
                        () = expired.cancelled() => {}
                    }
                    link.open.lock().remove(&key);
                };
                let mut open = self.open.lock();
                let task = self.tasks.spawn(request);
                if stateless {
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
        self.session.lock().id.clone()
    }

    /// Returns the headers of a request, with the session's id if there is a session.
    fn headers(&self) -> HeaderMap {
        let headers = self.target.headers();
        self.session.lock().beside(headers.as_deref().unwrap_or(&self.target.headers))
    }

    /// Sends one message and passes on everything that comes back for it.
    async fn post(&self, line: Bytes) {
        let message = Message::of(line.clone());
        let asks = message.as_ref().filter(|message| message.method().is_some());
        let id = asks.and_then(Message::id_text);
        let stateless = message.as_ref().and_then(|message| Some((message, message.version()?)));
        let began = Instant::now();
        let sent = loop {
            let headers = match self.target.headers() {
                None if began.elapsed() < self.patience => {
                    sleep(PAUSE).await;
                    continue;
                }
                headers => headers.unwrap_or(Cow::Borrowed(&self.target.headers)),
            };
            let headers = match &stateless {
                Some((message, version)) => stateless_headers(message, version, &headers),
                None => self.session.lock().beside(&headers),
            };
            match self.endpoint.post(&self.address, headers, line.clone()).await {
                Err(HttpFault::Broken(error)) if error.is_connect() && began.elapsed() < self.patience => {
                    sleep(PAUSE).await;
                }
                sent => break sent,
            }
        };
        let url = self.target.shown();
        match sent {
            Ok(reply) => {
                if let Some(given) = reply.session() {
                    self.session.lock().id = Some(given);
                }
                let shakes_hands =
                    asks.is_some_and(|message| message.method().as_deref() == Some("initialize"));
                self.answer(reply, id.as_deref(), shakes_hands).await;
            }
            Err(HttpFault::SessionExpired) => {
                tracing::info!("the gateway no longer knows the session");
                let _ = self.back.send(ReturnedLine::Unsent(line)).await;
                self.expired.cancel();
            }
            Err(HttpFault::Broken(error)) if error.is_connect() => {
                let why = format!("nothing answers at {url}; is `nonet serve --http` running there?");
                self.fail(id.as_deref(), &why).await;
            }
            Err(HttpFault::Broken(error)) => {
                self.fail(id.as_deref(), &format!("{url}: {}", plain(&error))).await;
            }
            Err(fault) => self.fail(id.as_deref(), &format!("{url}: {fault}")).await,
        }
    }

    /// Passes on the answer to a message; `id` is the id of the request, if it is one.
    async fn answer(&self, reply: HttpReply, id: Option<&str>, shakes_hands: bool) {
        if reply.is_events() {
            return self.stream(reply, id, shakes_hands).await;
        }
        let status = reply.status;
        let body = match reply.body(MAX_ANSWER).await {
            Ok(body) => body,
            Err(fault @ HttpFault::TooLong(_)) => return self.fail(id, &fault.to_string()).await,
            Err(fault) => return self.fail(id, &format!("the answer was cut off: {fault}")).await,
        };
        let answer = Message::of(body.clone());
        let (Some(id), Some(answer)) = (id, &answer) else {
            return match status.is_success() {
                true if body.is_empty() && id.is_some() => {
                    self.fail(id, "the gateway accepted the request but sent no answer").await;
                }
                true if body.is_empty() => {}
                true if answer.is_some() || body.trim_ascii().starts_with(b"[") => {
                    self.line(as_line(&body)).await;
                }
                _ => self.fail(id, &self.refusal(status, &body)).await,
            };
        };
        match answer.error() {
            // An error that names no request belongs to this one.
            Some(error) if !answer.answers(id) => {
                self.line(as_line(&Message::failure_of(id, error))).await;
            }
            None if !status.is_success() => self.fail(Some(id), &self.refusal(status, &body)).await,
            _ => self.hand_on(answer, shakes_hands).await,
        }
    }

    /// Returns a description of an answer that is not JSON-RPC.
    fn refusal(&self, status: StatusCode, body: &[u8]) -> String {
        let hint = match status {
            StatusCode::UNAUTHORIZED => {
                " It requires a token: set NONET_TOKEN, or give `--header 'Authorization: Bearer ${VARIABLE}'`. This user's \
                 own token is sent only to this user's own gateway on this machine."
            }
            StatusCode::NOT_FOUND => {
                " Is this the address of its MCP endpoint, such as http://host:8931/mcp?"
            }
            _ => "",
        };
        let said = String::from_utf8_lossy(&body[..body.len().min(4 * SHOWN)]).into_owned();
        format!("{} answered HTTP {status}: {}.{hint}", self.target.shown(), clip(said.trim(), SHOWN))
    }

    /// Passes on a stream's messages until the answer to `id` has come; resumes the stream if it breaks
    /// before.
    async fn stream(&self, reply: HttpReply, id: Option<&str>, shakes_hands: bool) {
        let mut seen = StreamPosition::default();
        let mut reply = Some(reply);
        for _ in 0..=RESUMES {
            if let Some(reply) = reply.take()
                && (self.events(reply, id, &mut seen, shakes_hands).await || id.is_none())
            {
                return;
            }
            let Some(last) = &seen.last else { break };
            sleep(seen.pause()).await;
            let again = self.endpoint.stream(&self.address, self.headers(), Some(last)).await;
            reply = again.ok().filter(HttpReply::is_events);
        }
        self.fail(id, "the gateway's answer was cut off; the call may or may not have been carried out")
            .await;
    }

    /// Passes on a stream's messages. Returns whether the answer to `id` was among them.
    async fn events(
        &self,
        reply: HttpReply,
        id: Option<&str>,
        seen: &mut StreamPosition,
        shakes_hands: bool,
    ) -> bool {
        let mut events = reply.events(MAX_ANSWER);
        while let Some(event) = events.next(|_| 0).await {
            seen.note(&event);
            let message = match event.data {
                EventData::None => continue,
                EventData::Whole(data) => match Message::of(data.clone()) {
                    Some(message) => message,
                    None if data.trim_ascii().is_empty() => continue,
                    None => {
                        self.line(as_line(&data)).await;
                        continue;
                    }
                },
                EventData::TooLong(beginning, tail) => {
                    let of = MessageHead::of(&beginning).with_tail(&tail).id;
                    self.fail(of.as_deref(), &HttpFault::TooLong(MAX_ANSWER).to_string()).await;
                    if id.is_some() && of.as_deref() == id {
                        return true;
                    }
                    continue;
                }
            };
            self.hand_on(&message, shakes_hands).await;
            if id.is_some_and(|id| message.answers(id)) {
                return true;
            }
        }
        false
    }

    /// Passes on the messages of the session's own stream (session era) until the session ends.
    async fn listen(&self) {
        let mut seen = StreamPosition::default();
        loop {
            let opened = self.endpoint.stream(&self.address, self.headers(), seen.last.as_deref()).await;
            match opened {
                Ok(reply) if reply.is_events() => {
                    self.events(reply, None, &mut seen, false).await;
                }
                Ok(reply) if reply.status == StatusCode::NOT_FOUND => return self.expired.cancel(),
                Ok(reply) if reply.status.is_client_error() => {
                    tracing::debug!(status = %reply.status, "the gateway offers no event stream");
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
            let _ = timeout(DELETE_LIMIT, self.endpoint.end_session(&self.address, self.headers())).await;
        }
    }

    /// Passes a message on to the client, as one line.
    async fn hand_on(&self, message: &Message, shakes_hands: bool) {
        if shakes_hands && let Some(version) = message.agreed_version() {
            self.session.lock().version = Some(version);
        }
        self.line(as_line(message.bytes())).await;
    }

    async fn line(&self, line: Bytes) {
        let _ = self.back.send(ReturnedLine::Line(line)).await;
    }

    /// Answers a request with an error, or logs the failure of any other message.
    async fn fail(&self, id: Option<&str>, why: &str) {
        match id {
            Some(id) => self.line(error(id, LOST, why)).await,
            None => tracing::warn!("{why}"),
        }
    }
}

/// The position in a stream, for resuming.
#[derive(Debug, Default)]
struct StreamPosition {
    last: Option<String>,
    retry: Option<Duration>,
}

impl StreamPosition {
    fn note(&mut self, event: &StreamEvent) {
        if event.id.is_some() {
            self.last.clone_from(&event.id);
        }
        if let Some(millis) = event.retry {
            self.retry = Some(Duration::from_millis(millis));
        }
    }

    fn pause(&self) -> Duration {
        self.retry.unwrap_or(REOPEN)
    }
}

/// Returns an error with its causes, without the address, which may contain a secret.
fn plain(error: &BrokenExchange) -> String {
    let mut said = Vec::new();
    let mut next = std::error::Error::source(error);
    while let Some(error) = next {
        said.push(error.to_string());
        next = error.source();
    }
    if said.is_empty() { "the request failed".into() } else { said.join(": ") }
}
