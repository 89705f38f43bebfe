//! Requests in flight: the messages to their clients in the meantime, and the answers.
//!
//! A client of the session era gets servers' requests while its own request is in flight. A client of the
//! stateless era gets an unfinished result and repeats the request with the answers (SEP-2322); until then
//! the request waits in the room (`state/waiting_room`), under a handle that is valid once, for the same request
//! and owner.

use std::{panic::AssertUnwindSafe, pin::Pin, sync::Arc};

use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use nonet_base::json::set_member;
use nonet_core::Gateway;
use nonet_meta::{self as meta, MetaAnswer};
use nonet_parts::jobs::{self, JobOwner};
use nonet_peer::{client::ClientWay, request::RequestContext};
use nonet_servers::downstream::{ClientChannel, ClientMessage, InputReplies, InputRequests, LogLevel};
use nonet_state::{
    questions::Room,
    session::{Caller, Session},
    waiting_room::{PARKED_FOR, ServerQuestion},
};
use parking_lot::Mutex;
use rmcp::{
    ErrorData,
    model::{
        CallToolRequestParams, ClientCapabilities, InputRequiredResult, InputResponses,
        ProgressNotificationParam,
    },
};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};

/// The maximum number of one call's progress notifications queued for its client.
const PROGRESS_QUEUE: usize = 4_096;
/// The maximum number of servers' requests and log messages queued for one client.
const TOWARD_QUEUE: usize = 256;
/// The prefix of every handle.
const HANDLE: &str = "parked-";

/// A request in flight, with the channels to its client. Its outcome is a `T`.
pub(super) struct InFlightRequest<T> {
    /// The identity of the request, if it may be parked: the client's answers are valid only for the same
    /// request.
    what: String,
    /// Who may come back for it, and whose quotas it counts against.
    owner: JobOwner,
    work: Pin<Box<dyn Future<Output = T> + Send>>,
    progress: Option<mpsc::Receiver<Value>>,
    toward: mpsc::Receiver<ClientMessage>,
    asker: ClientChannel,
    /// The way to the client once the request has been answered.
    way_back: AskRoute,
    /// The message that the client has to get first.
    held: Option<EarlyMessage>,
    cancel: CancellationToken,
    /// Cancels the work if the request is dropped early.
    _cancels: DropGuard,
    /// Marks the session busy until dropped.
    _busy: Arc<()>,
}

/// How a client is asked by a call that goes on as a task.
#[derive(Clone)]
pub(super) enum AskRoute {
    /// At any time: its connection has both directions.
    AtOnce,
    /// During its next request, or by the task if it follows tasks itself.
    NextRequest { room: Arc<Room>, session: u64, by_task: bool },
}

impl AskRoute {
    /// Waits for a question of an earlier call that this request can bring to the client.
    async fn next(&self, asker: &ClientChannel, owner: &JobOwner) -> EarlyMessage {
        match self {
            Self::AtOnce => std::future::pending().await,
            Self::NextRequest { room, .. } => EarlyMessage::Earlier(room.next(asker, owner).await),
        }
    }

    /// Returns a question of an earlier call that this request can bring to the client, if there is one.
    fn take(&self, asker: &ClientChannel, owner: &JobOwner) -> Option<EarlyMessage> {
        let Self::NextRequest { room, .. } = self else { return None };
        room.take(asker, owner).map(EarlyMessage::Earlier)
    }

    /// Brings the questions of a call that goes on as a task to its client, until the call has ended.
    async fn keep(
        self,
        call: u64,
        way: ClientWay,
        mut toward: mpsc::Receiver<ClientMessage>,
        mut asking: FuturesUnordered<BoxFuture<'static, ()>>,
    ) {
        loop {
            let told = tokio::select! {
                told = toward.recv() => told,
                Some(()) = asking.next(), if !asking.is_empty() => continue,
            };
            match (told, &self) {
                (None, _) => break,
                (Some(ClientMessage::Log(_)), _) => {}
                (Some(ClientMessage::Ask(requests, reply)), Self::AtOnce) => {
                    let asked = ask(way.clone(), *requests, reply, CancellationToken::new());
                    asking.push(tokio::time::timeout(PARKED_FOR, asked).map(drop).boxed());
                }
                (Some(ClientMessage::Ask(requests, reply)), Self::NextRequest { room, session, by_task }) => {
                    room.post(*session, call, *by_task, ServerQuestion::new(*requests, reply));
                }
            }
        }
        // A question that the client still shows is withdrawn, because nobody needs its reply.
        if matches!(self, Self::AtOnce) {
            while asking.next().await.is_some() {}
        }
    }
}

/// A message for a client before the answer.
enum EarlyMessage {
    /// The params of a progress notification.
    Progress(Value),
    /// A log message or a question.
    Toward(ClientMessage),
    /// A question of an earlier call, which goes on as a task.
    Earlier(ServerQuestion),
}

/// Where requests wait for their clients' answers.
#[derive(Clone)]
pub(super) struct Parking {
    pub room: Arc<Room>,
    /// Cancelled once no client can come back.
    pub end: CancellationToken,
}

/// How a request left its handler.
pub(super) enum RequestOutcome<T> {
    /// The work has ended.
    Ended(T),
    /// The client has to answer first.
    Asks(Box<InputRequiredResult>),
}

/// The channels from a request to its client.
pub(super) struct ClientChannels {
    /// Takes progress, if the client wants it.
    pub progress: Option<mpsc::Sender<Value>>,
    /// Takes servers' requests and log messages.
    pub asker: ClientChannel,
    /// Cancels the request.
    pub cancel: CancellationToken,
    receivers: (Option<mpsc::Receiver<Value>>, mpsc::Receiver<ClientMessage>),
    busy: Arc<()>,
}

impl ClientChannels {
    /// Returns the channels to a client with these capabilities.
    pub(super) fn new(
        session: &Session,
        can: Arc<Map<String, Value>>,
        parks: bool,
        log: Option<LogLevel>,
        wants_progress: bool,
    ) -> Self {
        let (progress, from_progress) = wants_progress.then(|| mpsc::channel(PROGRESS_QUEUE)).unzip();
        let (to, toward) = mpsc::channel(TOWARD_QUEUE);
        let waits = Arc::default();
        let (session, turns, busy) = (session.id, session.turns.clone(), session.busy.clone());
        let asker = ClientChannel { session, to, can, turns, parks, waits, log };
        let cancel = CancellationToken::new();
        Self { progress, asker, cancel, receivers: (from_progress, toward), busy }
    }

    /// Returns a request in flight that has not started yet.
    pub(super) fn open<T>(
        self,
        what: String,
        owner: JobOwner,
        way_back: AskRoute,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Box<InFlightRequest<T>> {
        let (progress, toward) = self.receivers;
        let (asker, cancel) = (self.asker, self.cancel);
        let (work, held) = (Box::pin(work), None);
        // Boxed: it is moved several times before it runs.
        Box::new(InFlightRequest {
            what,
            owner,
            work,
            progress,
            toward,
            asker,
            way_back,
            held,
            _cancels: cancel.clone().drop_guard(),
            cancel,
            _busy: self.busy,
        })
    }
}

/// Calls a tool or a meta-tool.
pub(super) async fn call(
    gateway: Arc<Gateway>,
    caller: Caller,
    request: CallToolRequestParams,
) -> MetaAnswer {
    let arguments = request.arguments.unwrap_or_default();
    let call = AssertUnwindSafe(meta::call(&gateway, &caller, &request.name, arguments)).catch_unwind();
    call.await.unwrap_or_else(|_| {
        tracing::error!(tool = %request.name, "a call panicked");
        MetaAnswer::Result(jobs::panicked().into())
    })
}

/// Returns the identity of a tool call. Includes the arguments if the client may have to send the call again.
pub(super) fn called(request: &CallToolRequestParams, may_resend: bool) -> String {
    let mut what = ["tools/call ", &request.name].concat();
    if may_resend && let Some(arguments) = &request.arguments {
        let digest = Sha256::digest(serde_json::to_vec(arguments).unwrap_or_default());
        what.push_str(&nonet_base::text::hex(&digest));
    }
    what
}

/// Returns the client's capabilities for servers' requests. `forms`: whether the client's forms are known to
/// work.
pub(super) fn can(capabilities: Option<&ClientCapabilities>, forms: bool) -> Map<String, Value> {
    let Some(Ok(Value::Object(mut all))) = capabilities.map(serde_json::to_value) else { return Map::new() };
    all.retain(|name, _| matches!(name.as_str(), "sampling" | "roots") || name == "elicitation" && forms);
    all
}

impl<T: Send + 'static> InFlightRequest<T> {
    /// Polls the work until it ends, or until a message for the client has to go first. Returns the outcome
    /// if nothing else goes to the client. Dropping the future early loses nothing.
    async fn silent(&mut self, level: Option<LogLevel>) -> Option<T> {
        loop {
            let told = tokio::select! {
                biased;
                ended = &mut self.work => {
                    self.held = self.way_back.take(&self.asker, &self.owner);
                    let silent = self.held.is_none()
                        && self.progress.as_ref().is_none_or(mpsc::Receiver::is_empty)
                        && self.toward.is_empty()
                        && self.asker.waits.task().is_none();
                    if silent {
                        return Some(ended);
                    }
                    self.end(ended);
                    return None;
                }
                Some(told) = next(&mut self.progress, &mut self.toward) => told,
                told = self.way_back.next(&self.asker, &self.owner) => told,
            };
            match told {
                EarlyMessage::Toward(ClientMessage::Log(params)) if !is_wanted(&params, level) => {}
                told => {
                    self.held = Some(told);
                    return None;
                }
            }
        }
    }

    /// Notes the outcome of a request that has ended.
    pub(super) fn end(&mut self, outcome: T) {
        self.work = Box::pin(std::future::ready(outcome));
    }

    /// Polls the work until it ends or the client has to answer.
    pub(super) async fn run(
        mut self: Box<Self>,
        parking: &Parking,
        context: &RequestContext,
        level: Option<LogLevel>,
    ) -> RequestOutcome<T> {
        if self.held.is_none() {
            let ended = tokio::select! {
                biased;
                ended = self.silent(level) => ended,
                () = context.cancel.cancelled() => None,
            };
            if let Some(ended) = ended {
                return RequestOutcome::Ended(ended);
            }
        }
        // Boxed, because most requests send nothing before their answer.
        Box::pin(self.converse(parking, context, level)).await
    }

    /// Does the same, with messages in both directions.
    async fn converse(
        mut self: Box<Self>,
        parking: &Parking,
        context: &RequestContext,
        level: Option<LogLevel>,
    ) -> RequestOutcome<T> {
        let (token, way) = (context.meta.get_progress_token(), &context.way);
        let forward = async |mut params: Value| {
            set_member(&mut params, "progressToken", json!(token));
            if ProgressNotificationParam::deserialize(&params).is_ok() {
                let _ = way.notify("notifications/progress", params).await;
            }
        };
        let mut asking: FuturesUnordered<BoxFuture<'static, ()>> = FuturesUnordered::new();
        let mut cancelled = false;
        // Withdraws a question that the client still shows when the call ends.
        let over = CancellationToken::new();
        // Questions of earlier calls stay with the client when this request ends.
        let mut earlier: FuturesUnordered<BoxFuture<'static, ()>> = FuturesUnordered::new();
        self.held = self.held.take().or_else(|| self.way_back.take(&self.asker, &self.owner));
        let ended = loop {
            let told = match self.held.take() {
                Some(told) => told,
                None => tokio::select! {
                    biased;
                    ended = &mut self.work => break ended,
                    Some(told) = next(&mut self.progress, &mut self.toward) => told,
                    told = self.way_back.next(&self.asker, &self.owner) => told,
                    Some(()) = asking.next(), if !asking.is_empty() => continue,
                    Some(()) = earlier.next(), if !earlier.is_empty() => continue,
                    () = context.cancel.cancelled(), if !cancelled => {
                        cancelled = true;
                        self.cancel.cancel();
                        continue;
                    }
                },
            };
            match told {
                EarlyMessage::Progress(params) => forward(params).await,
                EarlyMessage::Toward(ClientMessage::Log(params)) => tell(way, *params, level).await,
                EarlyMessage::Toward(ClientMessage::Ask(requests, reply)) if self.asker.parks => {
                    if !parking.room.has_place(&self.owner) {
                        let account = self.owner.account.name();
                        tracing::warn!(%account, "too many requests are waiting for their clients; a server's request finds no room");
                        continue;
                    }
                    match parking.park(self, ServerQuestion::new(*requests, reply)) {
                        Ok(asked) => return RequestOutcome::Asks(asked),
                        Err(open) => self = open,
                    }
                }
                EarlyMessage::Earlier(asked) if self.asker.parks => match parking.park(self, asked) {
                    Ok(asked) => return RequestOutcome::Asks(asked),
                    Err(open) => self = open,
                },
                EarlyMessage::Toward(ClientMessage::Ask(requests, reply)) => {
                    asking.push(ask(way.clone(), *requests, reply, over.clone()).boxed());
                }
                EarlyMessage::Earlier(ServerQuestion { requests, reply, .. }) => {
                    earlier.push(ask(way.clone(), requests, reply, CancellationToken::new()).boxed());
                    // The question goes out before the answer to this request.
                    let _ = futures::poll!(earlier.next());
                }
            }
        };
        let call = self.asker.waits.task();
        if call.is_none() {
            over.cancel();
            while asking.next().await.is_some() {}
        }
        if !earlier.is_empty() {
            let asked = async move { while earlier.next().await.is_some() {} };
            tokio::spawn(tokio::time::timeout(PARKED_FOR, asked));
        }
        // Earlier progress goes out before the answer; the queue is closed, so that a flood does not delay
        // the answer.
        if let Some(mut progress) = self.progress {
            progress.close();
            while let Ok(params) = progress.try_recv() {
                forward(params).await;
            }
        }
        match call {
            // The client keeps its call.
            Some(call) => drop(tokio::spawn(self.way_back.keep(
                call,
                ClientWay::of(way.peer.clone()),
                self.toward,
                asking,
            ))),
            None => {
                self.toward.close();
                while let Ok(toward) = self.toward.try_recv() {
                    if let ClientMessage::Log(params) = toward {
                        tell(way, *params, level).await;
                    }
                }
            }
        }
        RequestOutcome::Ended(ended)
    }
}

/// Returns the next message for the client; `None` if there can be no more.
async fn next(
    progress: &mut Option<mpsc::Receiver<Value>>,
    toward: &mut mpsc::Receiver<ClientMessage>,
) -> Option<EarlyMessage> {
    let progress = async {
        match progress {
            Some(progress) => progress.recv().await,
            None => None,
        }
    };
    tokio::select! {
        biased;
        Some(params) = progress => Some(EarlyMessage::Progress(params)),
        Some(toward) = toward.recv() => Some(EarlyMessage::Toward(toward)),
        else => None,
    }
}

/// Sends a server's requests to a client of the session era, one after another. Cancels the current request
/// at the client once the server no longer needs the reply, or the call is over.
async fn ask(
    way: ClientWay,
    requests: InputRequests,
    mut reply: oneshot::Sender<InputReplies>,
    over: CancellationToken,
) {
    let mut replies = InputReplies::new();
    for (key, request) in requests {
        let Some(method) = request.get("method").and_then(Value::as_str) else {
            let error = ErrorData::invalid_params("not a request to clients: it has no method", None);
            replies.insert(key, Err(error));
            continue;
        };
        let answer = match way.ask(method, request.get("params")).await {
            Ok(mut asked) => {
                let no_longer = async {
                    tokio::select! {
                        () = reply.closed() => "the server no longer needs it",
                        () = over.cancelled() => "the call has ended",
                    }
                };
                tokio::select! {
                    answer = asked.answer() => answer,
                    reason = no_longer => return asked.withdraw(reason).await,
                }
            }
            Err(error) => Err(ErrorData::internal_error(format!("the client was not asked: {error}"), None)),
        };
        replies.insert(key, answer);
    }
    let _ = reply.send(replies);
}

/// Sends a server's log message, if the client wants its level.
async fn tell(way: &ClientWay, params: Value, level: Option<LogLevel>) {
    if is_wanted(&params, level) && params.get("data").is_some() {
        let _ = way.notify("notifications/message", params).await;
    }
}

/// Returns whether a client that wants messages from `level` on gets a log message.
fn is_wanted(params: &Value, level: Option<LogLevel>) -> bool {
    let of_message = || params.get("level").and_then(|of| LogLevel::deserialize(of).ok());
    level.is_some_and(|level| of_message().is_some_and(|of| of >= level))
}

/// Sends a notice as one of Nonet's own log messages, for clients that show these to people.
pub(super) async fn tell_notice(way: &ClientWay, notice: &Value, level: LogLevel) {
    tell(way, json!({ "level": "notice", "logger": "nonet", "data": notice }), Some(level)).await;
}

impl Parking {
    /// Parks a request until its client answers. Returns the request if its client cannot get the question,
    /// which is declined.
    fn park<T: Send + 'static>(
        &self,
        mut open: Box<InFlightRequest<T>>,
        asked: ServerQuestion,
    ) -> Result<Box<InputRequiredResult>, Box<InFlightRequest<T>>> {
        let handle = self.room.token(HANDLE);
        let unfinished = json!({
            "resultType": "input_required", "inputRequests": asked.requests, "requestState": handle,
        });
        let unfinished = match serde_json::from_value(unfinished) {
            Ok(unfinished) => unfinished,
            Err(error) => {
                tracing::warn!(%error, "a server's request cannot be sent to the client and was declined");
                return Err(open);
            }
        };
        // The work, including progress and timeouts, continues meanwhile.
        let running = tokio::spawn(std::mem::replace(&mut open.work, Box::pin(std::future::pending())));
        // Fails only if the whole process ends.
        let work = async move {
            match running.await {
                Ok(ended) => ended,
                Err(_) => std::future::pending().await,
            }
        };
        open.work = Box::pin(work);
        self.room.park(handle, open.owner.clone(), (open.what.clone(), open), asked, self.end.clone());
        Ok(Box::new(unfinished))
    }

    /// Resumes the parked request that a request continues, and passes on the client's answers. `None`: the
    /// request is new.
    pub(super) fn resume<T: 'static>(
        &self,
        what: impl FnOnce() -> String,
        owner: impl FnOnce() -> JobOwner,
        state: Option<&str>,
        given: Option<&InputResponses>,
    ) -> Option<Result<Box<InFlightRequest<T>>, ErrorData>> {
        let handle = state.filter(|state| state.starts_with(HANDLE))?;
        let resumed = self.room.resume(handle, &owner(), &what());
        let parked = resumed
            .and_then(|(request, asked)| Some((request.downcast::<InFlightRequest<T>>().ok()?, asked)));
        let Some((request, asked)) = parked else {
            let why = "`requestState` is unknown, expired, already used, or belongs to another request; send the request without it \
                       to start again";
            return Some(Err(ErrorData::invalid_params(why, None)));
        };
        request.asker.waits.restart();
        asked.answer(|key| Some(given?.get(key)?.clone()));
        Some(Ok(request))
    }
}

/// The log level that a client has set, shared by its requests.
#[derive(Clone, Default)]
pub(super) struct LogThreshold(Arc<Mutex<Option<LogLevel>>>);

impl LogThreshold {
    pub(super) fn set(&self, level: LogLevel) {
        *self.0.lock() = Some(level);
    }

    /// Returns the level. A client that has set none gets every message.
    pub(super) fn get(&self) -> LogLevel {
        self.0.lock().unwrap_or(LogLevel::Debug)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nonet_auth::Owner;
    use nonet_config::Quotas;

    use super::*;
    use nonet_parts::quotas::Account;

    fn owner(profile: Option<&str>, account: Arc<Account>) -> JobOwner {
        JobOwner { owner: Owner::new(profile, None), account, ..JobOwner::default() }
    }

    fn parking() -> Parking {
        Parking { room: Arc::new(Room::new(None)), end: CancellationToken::new() }
    }

    /// Parks a request with one question. Returns its handle, the reply's receiver and the future of its
    /// work.
    fn park(
        parking: &Parking,
        what: &str,
        profile: Option<&str>,
    ) -> (String, oneshot::Receiver<InputReplies>) {
        let channels = ClientChannels::new(&Session::default(), Arc::default(), true, None, false);
        let work = std::future::pending::<u8>();
        let request = channels.open(what.into(), owner(profile, Arc::default()), AskRoute::AtOnce, work);
        let question = json!({ "method": "elicitation/create", "params": { "message": "?", "requestedSchema": { "type": "object", "properties": {} } } });
        let (reply, replied) = oneshot::channel();
        let asked = ServerQuestion::new(InputRequests::from_iter([("q".into(), question)]), reply);
        let asked = json!(parking.park(request, asked).unwrap_or_else(|_| panic!("it can be asked")));
        (asked["requestState"].as_str().expect("a handle").into(), replied)
    }

    #[tokio::test]
    async fn a_handle_is_good_once_for_the_same_request_and_profile() {
        let parking = parking();
        let (handle, mut replied) = park(&parking, "tools/call a", Some("reader"));
        let given = InputResponses::from_iter([("q".into(), json!(1)), ("other".into(), json!(2))]);
        let resume = |what: &str, profile: Option<&str>, state: Option<&str>| {
            parking
                .resume::<u8>(|| what.into(), || owner(profile, Arc::default()), state, Some(&given))
                .map(|resumed| resumed.is_ok())
        };
        let other = || owner(Some("reader"), Account::of_session(Quotas::default()));
        let by_other = parking.resume::<u8>(|| "tools/call a".into(), other, Some(&handle), Some(&given));
        assert!(by_other.is_some_and(|resumed| resumed.is_err()), "another client knows the handle");
        for (what, profile, state, expected) in [
            ("tools/call a", Some("reader"), None, None),
            ("tools/call a", Some("reader"), Some("a state of the client's own"), None),
            ("tools/call a", Some("reader"), Some("parked-0"), Some(false)),
            ("tools/call b", Some("reader"), Some(&*handle), Some(false)),
            ("tools/call a", Some("writer"), Some(&*handle), Some(false)),
            ("tools/call a", None, Some(&*handle), Some(false)),
        ] {
            assert_eq!(resume(what, profile, state), expected, "{what} {profile:?} {state:?}");
            assert!(replied.try_recv().is_err(), "nothing is answered: {what} {profile:?} {state:?}");
        }
        assert_eq!(resume("tools/call a", Some("reader"), Some(&handle)), Some(true));
        let replies = replied.await.expect("answered");
        assert_eq!(replies, InputReplies::from_iter([("q".into(), Ok(json!(1)))]), "only what was asked");
        assert_eq!(resume("tools/call a", Some("reader"), Some(&handle)), Some(false), "used");
    }

    #[tokio::test(start_paused = true)]
    async fn a_parked_request_expires_and_declines_its_question() {
        let parking = parking();
        let (handle, mut replied) = park(&parking, "prompts/get a", None);
        tokio::time::sleep(PARKED_FOR - Duration::from_secs(1)).await;
        assert!(replied.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Empty));
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(
            parking
                .resume::<u8>(|| "prompts/get a".into(), JobOwner::default, Some(&handle), None)
                .is_some_and(|it| it.is_err())
        );
        assert!(replied.await.is_err(), "whoever drops the sender has declined");
    }

    #[tokio::test]
    async fn a_parked_request_ends_with_its_clients() {
        let parking = parking();
        let (_, replied) = park(&parking, "tools/call a", None);
        parking.end.cancel();
        assert!(replied.await.is_err(), "nobody can come back");
    }

    #[tokio::test]
    async fn one_client_does_not_take_the_room_of_another() {
        let parking = parking();
        let account = || Account::of_session(Quotas { parked: 2, ..Quotas::default() });
        let (one, other) = (account(), account());
        let park = |account: &Arc<Account>| {
            let has_place = parking.room.has_place(&owner(None, account.clone()));
            let asked = ServerQuestion::new(InputRequests::new(), oneshot::channel().0);
            assert!(parking.park(request(account.clone()), asked).is_ok());
            has_place
        };
        assert_eq!([park(&one), park(&one), park(&one), park(&other)], [true, true, false, true]);
    }

    #[tokio::test]
    async fn a_question_of_an_earlier_call_without_room_waits_for_another_request() {
        let full = owner(None, Account::of_session(Quotas { parked: 0, ..Quotas::default() }));
        let channels = ClientChannels::new(&Session::default(), Arc::default(), true, None, false);
        let (room, (reply, mut replied)) = (parking().room, oneshot::channel());
        let session = channels.asker.session;
        room.post(session, 1, false, ServerQuestion::new(InputRequests::new(), reply));
        let way = AskRoute::NextRequest { room, session, by_task: false };
        assert!(way.take(&channels.asker, &full).is_none(), "there is no room");
        assert!(replied.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Empty));
        assert!(way.take(&channels.asker, &JobOwner::default()).is_some(), "another request finds it");
        assert!(way.take(&channels.asker, &JobOwner::default()).is_none(), "once");
    }

    fn request(account: Arc<Account>) -> Box<InFlightRequest<u8>> {
        let channels = ClientChannels::new(&Session::default(), Arc::default(), true, None, false);
        channels.open(String::new(), owner(None, account), AskRoute::AtOnce, std::future::pending())
    }
}
