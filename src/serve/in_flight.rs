//! A call while it is open: what goes to its client meanwhile, and what comes back.
//!
//! A client of the session era is asked by requests of our own while its request is open. One of the stateless era gets an
//! unfinished result and sends the call again with the answers (SEP-2322); until then the call is parked here, under a handle
//! that is good once, for the same tool and profile.

use std::{
    collections::HashMap,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use rmcp::{
    ErrorData, RoleServer,
    model::{
        CallToolRequestParams, ClientCapabilities, InputRequiredResult, InputResponses,
        LoggingMessageNotificationParam, ProgressNotificationParam, ServerRequest,
    },
    service::{Peer, PeerRequestOptions, RequestContext, ServiceError},
};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    downstream::{ClientChannel, InputReplies, InputRequests, LogLevel, ToClient},
    gateway::{Gateway, session::Caller},
    jobs,
    meta::{self, Answer},
};

/// How many progress notifications of one call wait for a client.
const PROGRESS_QUEUE: usize = 4_096;
/// How many requests and log messages of servers wait for one.
const TOWARD_QUEUE: usize = 256;
/// How long a parked call waits for its client.
const PARKED_FOR: Duration = Duration::from_secs(600);
/// How many calls are parked at the same time; above it requests of servers are declined.
const MAX_PARKED: usize = 1_000;
/// What the handle of a parked call begins with.
const HANDLE: &str = "parked-";

/// A request and its ways to the client. It comes to a `T`.
pub(super) struct Open<T> {
    /// What it is about: the answers of the client are good for the same alone.
    what: String,
    profile: Option<String>,
    work: Pin<Box<dyn Future<Output = T> + Send>>,
    progress: Option<mpsc::Receiver<Value>>,
    toward: mpsc::Receiver<ToClient>,
    asker: ClientChannel,
    /// Ends the work if whoever holds it is dropped before its end.
    cancel: DropGuard,
}

/// What waits for its clients, by what it comes to.
#[derive(Clone, Default)]
pub(super) struct Parkings {
    /// Calls.
    pub calls: Arc<Parking<Answer>>,
    /// Prompts and resources.
    pub passed: Arc<Parking<Result<Value, ErrorData>>>,
}

/// InputRequests that wait for what their clients answer.
pub(super) struct Parking<T>(Mutex<HashMap<String, Parked<T>>>);

impl<T> Default for Parking<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

struct Parked<T> {
    open: Open<T>,
    reply: oneshot::Sender<InputReplies>,
    asked: Vec<String>,
}

/// How the work left the hands of one request.
pub(super) enum Left<T> {
    /// It has ended.
    Ended(T),
    /// Its client has to answer first.
    Asks(Box<InputRequiredResult>),
}

/// What goes with a call to its client.
pub(super) struct Ways {
    /// Where its progress goes, if the client wants it.
    pub progress: Option<mpsc::Sender<Value>>,
    /// How servers ask it.
    pub asker: ClientChannel,
    /// Ends the call.
    pub cancel: CancellationToken,
    receivers: (Option<mpsc::Receiver<Value>>, mpsc::Receiver<ToClient>),
}

impl Ways {
    /// The ways to a client that can do this.
    pub fn new(
        session: u64,
        can: Arc<Map<String, Value>>,
        parks: bool,
        log: Option<LogLevel>,
        wants_progress: bool,
    ) -> Self {
        let (progress, from_progress) = wants_progress.then(|| mpsc::channel(PROGRESS_QUEUE)).unzip();
        let (to, toward) = mpsc::channel(TOWARD_QUEUE);
        let (declined, waits) = (Arc::default(), Arc::default());
        let asker = ClientChannel { session, to, can, declined, parks, waits, log };
        let cancel = CancellationToken::new();
        Self { progress, asker, cancel, receivers: (from_progress, toward) }
    }

    /// Work that is not begun yet.
    pub fn open<T>(
        self,
        what: String,
        profile: Option<String>,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Open<T> {
        let (progress, toward) = self.receivers;
        let (asker, cancel) = (self.asker, self.cancel.drop_guard());
        Open { what, profile, work: Box::pin(work), progress, toward, asker, cancel }
    }
}

/// The call of a tool.
pub(super) async fn call(gateway: Arc<Gateway>, caller: Caller, request: CallToolRequestParams) -> Answer {
    let arguments = request.arguments.unwrap_or_default();
    let call = AssertUnwindSafe(meta::call(&gateway, &caller, &request.name, arguments)).catch_unwind();
    call.await.unwrap_or_else(|_| {
        tracing::error!(tool = %request.name, "a call panicked");
        Answer::Result(jobs::panicked())
    })
}

/// What the call of a tool is about; with its arguments where the client may have to send it again.
pub(super) fn called(request: &CallToolRequestParams, modern: bool) -> String {
    let mut what = format!("tools/call {}", request.name);
    if modern && let Some(arguments) = &request.arguments {
        let digest = Sha256::digest(serde_json::to_vec(arguments).unwrap_or_default());
        what.push_str(&crate::text::hex(&digest));
    }
    what
}

/// What a client says that it can do for servers.
/// `forms`: whether it is known to do as it says of elicitation.
pub(super) fn can(capabilities: Option<&ClientCapabilities>, forms: bool) -> Map<String, Value> {
    let Some(Ok(Value::Object(mut all))) = capabilities.map(serde_json::to_value) else { return Map::new() };
    all.retain(|name, _| matches!(name.as_str(), "sampling" | "roots") || name == "elicitation" && forms);
    all
}

impl<T: Send + 'static> Open<T> {
    /// Goes on with the work until it ends, or its client has to answer.
    pub async fn run(
        mut self,
        parking: &Arc<Parking<T>>,
        context: &RequestContext<RoleServer>,
        level: Option<LogLevel>,
    ) -> Left<T> {
        let (token, peer) = (context.meta.get_progress_token(), &context.peer);
        let forward = async |mut params: Value| {
            params["progressToken"] = json!(token);
            if let Ok(params) = serde_json::from_value::<ProgressNotificationParam>(params) {
                let _ = peer.notify_progress(params).await;
            }
        };
        // Polled here and not in a task of their own: rmcp sends a request on the stream of the one that is being handled.
        let mut asking: FuturesUnordered<BoxFuture<'_, ()>> = FuturesUnordered::new();
        let mut cancelled = false;
        let ended = loop {
            tokio::select! {
                biased;
                ended = &mut self.work => break ended,
                Some(params) = next(&mut self.progress) => forward(params).await,
                Some(toward) = self.toward.recv() => match toward {
                    ToClient::Log(params) => tell(peer, params, level).await,
                    ToClient::Ask(requests, reply) if self.asker.parks => match parking.park(self, requests, reply) {
                        Ok(asked) => return Left::Asks(asked),
                        Err(open) => self = *open,
                    },
                    ToClient::Ask(requests, reply) => asking.push(ask(peer, requests, reply).boxed()),
                },
                Some(()) = asking.next(), if !asking.is_empty() => {}
                () = context.ct.cancelled(), if !cancelled => {
                    cancelled = true;
                    self.cancel = cancel(self.cancel);
                }
            }
        };
        // What came before the answer goes out before it; a flood that goes on is not waited for.
        if let Some(mut progress) = self.progress {
            progress.close();
            while let Ok(params) = progress.try_recv() {
                forward(params).await;
            }
        }
        self.toward.close();
        while let Ok(toward) = self.toward.try_recv() {
            if let ToClient::Log(params) = toward {
                tell(peer, params, level).await;
            }
        }
        Left::Ended(ended)
    }
}

/// Ends a call and keeps its guard.
fn cancel(guard: DropGuard) -> DropGuard {
    let token = guard.disarm();
    token.cancel();
    token.drop_guard()
}

async fn next(progress: &mut Option<mpsc::Receiver<Value>>) -> Option<Value> {
    match progress {
        Some(progress) => progress.recv().await,
        None => None,
    }
}

/// Puts a server's requests to a client of the session era, one after the other. A server that does not want the answer any
/// more has the client told so.
async fn ask(peer: &Peer<RoleServer>, requests: InputRequests, mut reply: oneshot::Sender<InputReplies>) {
    let mut replies = InputReplies::new();
    for (key, request) in requests {
        let answer = match serde_json::from_value::<ServerRequest>(request) {
            Ok(request) => {
                let sent = peer.send_cancellable_request(request, PeerRequestOptions::no_options()).await;
                match sent {
                    Ok(mut handle) => {
                        let answer = tokio::select! {
                            answer = &mut handle.rx => answer,
                            () = reply.closed() => {
                                let reason = Some("the server does not want it any more".to_string());
                                let _ = handle.cancel(reason).await;
                                return;
                            }
                        };
                        answer.unwrap_or(Err(ServiceError::TransportClosed))
                    }
                    Err(error) => Err(error),
                }
            }
            Err(error) => {
                let why = format!("not a request that a client knows: {error}");
                Err(ServiceError::McpError(ErrorData::invalid_params(why, None)))
            }
        };
        let answer = match answer {
            Ok(result) => serde_json::to_value(result)
                .map_err(|error| ErrorData::internal_error(error.to_string(), None)),
            Err(ServiceError::McpError(error)) => Err(error),
            Err(error) => Err(ErrorData::internal_error(format!("the client did not answer: {error}"), None)),
        };
        replies.insert(key, answer);
    }
    let _ = reply.send(replies);
}

/// Hands a log message of a server on, if the client wants to hear of it.
async fn tell(peer: &Peer<RoleServer>, params: Value, level: Option<LogLevel>) {
    let Some(level) = level else { return };
    if let Ok(params) = serde_json::from_value::<LoggingMessageNotificationParam>(params)
        && LogLevel::from(params.level) >= level
    {
        let _ = peer.notify_logging_message(params).await;
    }
}

impl<T: Send + 'static> Parking<T> {
    fn all(&self) -> MutexGuard<'_, HashMap<String, Parked<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a call until its client answers; gives it back where it cannot be kept.
    fn park(
        self: &Arc<Self>,
        open: Open<T>,
        requests: InputRequests,
        reply: oneshot::Sender<InputReplies>,
    ) -> Result<Box<InputRequiredResult>, Box<Open<T>>> {
        let asked: Vec<String> = requests.keys().cloned().collect();
        let handle = format!("{HANDLE}{}", uuid::Uuid::new_v4().simple());
        let unfinished =
            json!({ "resultType": "input_required", "inputRequests": requests, "requestState": handle });
        let unfinished = match serde_json::from_value(unfinished) {
            Ok(unfinished) if self.all().len() < MAX_PARKED => unfinished,
            Ok(_) => {
                tracing::warn!("too many calls wait for their clients; a server's request was declined");
                return Err(Box::new(open));
            }
            Err(error) => {
                tracing::warn!(%error, "a server's request cannot be put to the client and was declined");
                return Err(Box::new(open));
            }
        };
        // It goes on by itself: a progress notification, a limit.
        let running = tokio::spawn(open.work);
        // It fails only where the whole process ends.
        let work = async move {
            match running.await {
                Ok(ended) => ended,
                Err(_) => std::future::pending().await,
            }
        };
        let open = Open { work: Box::pin(work), ..open };
        self.all().insert(handle.clone(), Parked { open, reply, asked });
        // Not held: what is parked ends with the last client that could come back for it.
        let parking = Arc::downgrade(self);
        tokio::spawn(async move {
            tokio::time::sleep(PARKED_FOR).await;
            if let Some(parking) = parking.upgrade() {
                parking.all().remove(&handle);
            }
        });
        Ok(Box::new(unfinished))
    }

    /// The parked request that one goes on with, once its answers have been handed in. `None`: it is a new one.
    pub fn resume(
        &self,
        what: &str,
        profile: Option<&str>,
        state: Option<&str>,
        given: Option<&InputResponses>,
    ) -> Option<Result<Open<T>, ErrorData>> {
        let handle = state.filter(|state| state.starts_with(HANDLE))?;
        let mut all = self.all();
        let fits = |parked: &Parked<T>| parked.open.what == what && parked.open.profile.as_deref() == profile;
        let fits = all.get(handle).is_some_and(fits);
        let Some(parked) = fits.then(|| all.remove(handle)).flatten() else {
            let why = "this does not wait for an answer, or not any more: it was answered before, too long ago, or is about \
                       another request; send it without `requestState` to begin anew";
            return Some(Err(ErrorData::invalid_params(why, None)));
        };
        let answer = |key: &String| Some((key.clone(), Ok(given?.get(key)?.clone())));
        parked.open.asker.waits.restart();
        let _ = parked.reply.send(parked.asked.iter().filter_map(answer).collect());
        Some(Ok(parked.open))
    }
}

/// The level of a client's server_requests for the log, shared by its requests.
#[derive(Clone, Default)]
pub(super) struct Wanted(Arc<Mutex<Option<LogLevel>>>);

impl Wanted {
    /// Sets it.
    pub fn set(&self, level: LogLevel) {
        if let Ok(mut own) = self.0.lock() {
            *own = Some(level);
        }
    }

    /// What is wanted; everything that a server says by itself, if the client has not said so.
    pub fn get(&self) -> LogLevel {
        self.0.lock().ok().and_then(|own| *own).unwrap_or(LogLevel::Debug)
    }
}
