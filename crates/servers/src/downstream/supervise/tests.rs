//! Supervision over a scripted link, under paused time.

use std::{
    collections::VecDeque,
    path::Path,
    sync::atomic::{AtomicBool, AtomicUsize},
};

use futures::{FutureExt, future::BoxFuture};
use nonet_config::{self as config, ValueSources};
use nonet_text::results::CallResult;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::{sync::Notify, time::advance};

use super::*;
use crate::{
    catalog::Listing,
    downstream::{
        CallControl, CallError, ClientChannel, ClientMessage, Era, LogLevel, Remedy,
        link::{Connector, Input, LinkRequest, RequestError},
        server_requests::OpenCalls,
        subscriptions::Subscriptions,
    },
};

/// The outcome of a request.
enum Reply {
    Result(Value),
    After(Duration, Value),
    Never,
    Fails(fn() -> RequestError),
}

/// An in-memory server. Attempts to connect and requests take the next script; without a script they succeed.
#[derive(Default)]
struct Script {
    /// How each attempt ends; `None` never ends.
    attempts: Mutex<VecDeque<Option<LinkError>>>,
    /// How each listing fails.
    lists: Mutex<VecDeque<LinkError>>,
    replies: Mutex<VecDeque<Reply>>,
    stateless: AtomicBool,
    /// When each attempt began, since the start of the test.
    begun: Mutex<Vec<Instant>>,
    listed: AtomicUsize,
    /// What the server received, in order.
    log: Mutex<Vec<String>>,
    cancelled: AtomicUsize,
    signed_in: Notify,
    link: Mutex<Option<Arc<ScriptedLink>>>,
}

impl Script {
    fn note(&self, what: impl Into<String>) {
        self.log.lock().push(what.into());
    }

    fn link(&self) -> Arc<ScriptedLink> {
        self.link.lock().clone().expect("the server was connected")
    }

    fn reply(&self, reply: Reply) {
        self.replies.lock().push_back(reply);
    }
}

struct ScriptedLink {
    script: Arc<Script>,
    changed: Notify,
    closed: CancellationToken,
}

impl Connector for Arc<Script> {
    fn connect(&self, _patience: Duration) -> BoxFuture<'_, Result<Arc<dyn Link>, LinkError>> {
        self.begun.lock().push(Instant::now());
        let attempt = self.attempts.lock().pop_front();
        async move {
            match attempt {
                Some(Some(lost)) => Err(lost),
                Some(None) => std::future::pending().await,
                None => {
                    let closed = CancellationToken::new();
                    let link = ScriptedLink { script: self.clone(), changed: Notify::new(), closed };
                    let link = Arc::new(link);
                    *self.link.lock() = Some(link.clone());
                    Ok(link as Arc<dyn Link>)
                }
            }
        }
        .boxed()
    }

    fn sign_in_changed(&self) -> BoxFuture<'_, ()> {
        self.signed_in.notified().boxed()
    }

    fn mask(&self, text: &str) -> String {
        text.replace("s3cret", "***")
    }
}

/// Counts a request that is dropped before its reply.
struct PendingCounter<'a>(&'a Script, bool);

impl Drop for PendingCounter<'_> {
    fn drop(&mut self) {
        if self.1 {
            self.0.cancelled.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Link for ScriptedLink {
    fn version(&self) -> String {
        "2025-11-25".into()
    }

    fn era(&self) -> Option<Era> {
        let is_stateless = self.script.stateless.load(Ordering::Relaxed);
        Some(if is_stateless { Era::Stateless } else { Era::Session })
    }

    fn list(&self) -> BoxFuture<'_, Result<Listing, LinkError>> {
        let number = self.script.listed.fetch_add(1, Ordering::Relaxed) + 1;
        let failed = self.script.lists.lock().pop_front();
        let tools = vec![Arc::new(json!({ "name": format!("tool_{number}") }))];
        let listed = failed.map_or(Ok(Listing { tools, ..Listing::default() }), Err);
        std::future::ready(listed).boxed()
    }

    fn changed(&self) -> BoxFuture<'_, ()> {
        self.changed.notified().boxed()
    }

    fn lost(&self) -> BoxFuture<'_, LinkError> {
        self.closed.cancelled().map(|()| LinkError::from("it closed the connection")).boxed()
    }

    fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    fn request<'a>(
        &'a self,
        request: LinkRequest,
        input: Input,
        _control: &'a CallControl,
    ) -> BoxFuture<'a, Result<CallResult, RequestError>> {
        let what = match request {
            LinkRequest::CallTool { tool, .. } => tool.to_string(),
            LinkRequest::Other { method, .. } => method.into(),
        };
        let answered =
            if input.responses.is_empty() { String::new() } else { json!(input.responses).to_string() };
        self.script.note(what + &answered);
        let reply = self.script.replies.lock().pop_front();
        async move {
            let mut pending = PendingCounter(&self.script, true);
            let result = match reply {
                None => Ok(json!({ "content": [] })),
                Some(Reply::Result(result)) => Ok(result),
                Some(Reply::After(time, result)) => {
                    sleep(time).await;
                    Ok(result)
                }
                Some(Reply::Never) => std::future::pending().await,
                Some(Reply::Fails(error)) => Err(error()),
            };
            pending.1 = false;
            result.map(CallResult::from)
        }
        .boxed()
    }

    fn follows_resources(&self) -> bool {
        true
    }

    fn subscribe(&self, uri: String) -> BoxFuture<'_, Result<(), CallError>> {
        self.script.note(format!("+{uri}"));
        std::future::ready(Ok(())).boxed()
    }

    fn unsubscribe(&self, uri: String) -> BoxFuture<'_, ()> {
        self.script.note(format!("-{uri}"));
        std::future::ready(()).boxed()
    }

    fn set_log_level(&self, level: LogLevel) -> BoxFuture<'_, ()> {
        self.script.note(format!("{level:?}"));
        std::future::ready(()).boxed()
    }

    fn close(&self, reason: String) -> BoxFuture<'_, String> {
        self.closed.cancel();
        std::future::ready(reason).boxed()
    }
}

/// A supervised connection to a scripted server.
struct Bench {
    connection: Arc<Connection>,
    script: Arc<Script>,
    updates: Arc<Mutex<Vec<String>>>,
    stop: CancellationToken,
}

impl Bench {
    fn new(settings: &str, script: Script) -> Self {
        let text = format!("[servers.shop]\ncommand = 'x'\n{settings}");
        let loaded = config::parse(&text, Path::new("servers.toml"), ValueSources::NONE).expect("usable");
        let settings = loaded.config.servers.values().next().expect("one server").clone();
        let script = Arc::new(script);
        let (calls, subscriptions) = (Arc::<OpenCalls>::default(), Arc::<Subscriptions>::default());
        let connector = Box::new(script.clone());
        let connection = Connection::over(connector, "shop".into(), settings, calls, subscriptions);
        Self {
            connection: Arc::new(connection),
            script,
            updates: Arc::default(),
            stop: CancellationToken::new(),
        }
    }

    /// Begins the supervision, and publishes every list at once.
    fn start(self) -> Self {
        let (sender, mut receiver) = mpsc::channel(8);
        let (connection, stop) = (self.connection.clone(), self.stop.clone());
        tokio::spawn(async move { connection.supervise(sender, stop).await });
        let updates = self.updates.clone();
        tokio::spawn(async move {
            while let Some(update) = receiver.recv().await {
                updates.lock().push(match update {
                    ServerUpdate::Listed { listing, published, .. } => {
                        let _ = published.send(());
                        listing.map_or("old list".into(), |listing| {
                            listing.tools[0]["name"].as_str().unwrap_or_default().to_string()
                        })
                    }
                    ServerUpdate::Reconnected { .. } => "reconnected".into(),
                    ServerUpdate::SignInNeeded { login, .. } => format!("sign in: {login:?}"),
                    other => format!("{other:?}"),
                });
            }
        });
        self
    }

    async fn until(&self, state: &str) -> ConnectionState {
        let mut states = self.connection.watch();
        let found =
            timeout(Duration::from_secs(3_600), states.wait_for(|now| now.shown().as_str() == state)).await;
        found.unwrap_or_else(|_| panic!("never {state}")).expect("it is supervised").clone()
    }

    async fn ready(settings: &str, script: Script) -> Self {
        let bench = Self::new(settings, script).start();
        bench.until("ready").await;
        bench
    }

    fn call(&self, control: CallControl) -> impl Future<Output = Result<Value, CallError>> + Send + use<> {
        let connection = self.connection.clone();
        async move {
            let wait = Duration::from_secs(10);
            Ok(connection.call_tool(&"buy".into(), Map::new(), false, control, wait).await?.into_tree().await)
        }
    }

    fn updates(&self) -> Vec<String> {
        self.updates.lock().clone()
    }

    fn log(&self) -> Vec<String> {
        std::mem::take(&mut *self.script.log.lock())
    }
}

fn within(seconds: u64) -> CallControl {
    CallControl { timeout: Duration::from_secs(seconds), ..CallControl::default() }
}

fn failing(times: usize) -> Script {
    let failed = || Some(LinkError::from("connection refused"));
    Script { attempts: Mutex::new((0..times).map(|_| failed()).collect()), ..Script::default() }
}

/// Lets every runnable task run.
async fn settle() {
    sleep(Duration::from_millis(1)).await;
}

#[tokio::test(start_paused = true)]
async fn waits_between_attempts_double_up_to_a_minute_and_begin_again_after_a_steady_link() {
    let bench = Bench::new("", failing(10)).start();
    let state = bench.until("down").await;
    assert!(matches!(state, ConnectionState::Down { error, .. } if error == "connection refused"));
    bench.until("ready").await;
    let begun = bench.script.begun.lock().clone();
    let waits: Vec<f64> = begun.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect();
    for (number, wait) in waits.iter().enumerate() {
        // Jitter adds at most the first delay again.
        let least = (0.5 * f64::powi(2.0, i32::try_from(number).expect("few"))).min(60.0);
        assert!((least..=least * 2.0 + 0.01).contains(wait), "{number}: {waits:?}");
    }
    sleep(STEADY + Duration::from_secs(1)).await;
    bench.script.attempts.lock().push_back(Some("gone".into()));
    bench.script.link().closed.cancel();
    bench.until("down").await;
    let lost = Instant::now();
    bench.until("ready").await;
    assert!(lost.elapsed() < Duration::from_secs(4), "{:?}", lost.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_attempt_ends_with_the_start_timeout() {
    let script = Script { attempts: Mutex::new([None].into()), ..Script::default() };
    let bench = Bench::new("start_timeout = '4s'", script).start();
    let began = Instant::now();
    let state = bench.until("down").await;
    assert!(
        matches!(state, ConnectionState::Down { error, .. } if error.contains("raise `start_timeout` in [servers.shop]"))
    );
    assert_eq!(began.elapsed().as_secs(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_call_ends_the_backoff_and_takes_the_outcome_of_that_attempt() {
    let script = failing(9);
    let bench = Bench::new("", script).start();
    while bench.script.begun.lock().len() < 7 {
        sleep(Duration::from_secs(1)).await;
    }
    let began = Instant::now();
    let failed = bench.call(within(60)).await;
    assert!(matches!(failed, Err(CallError::NotReady(ConnectionState::Down { .. }))), "{failed:?}");
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!(bench.script.begun.lock().len(), 8);
    bench.script.attempts.lock().clear();
    assert!(bench.call(within(60)).await.is_ok());
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_call_waits_for_a_starting_server_only_so_long() {
    let script = Script { attempts: Mutex::new([None].into()), ..Script::default() };
    let bench = Bench::new("start_timeout = '60s'", script).start();
    let began = Instant::now();
    let failed = bench.call(within(300)).await;
    assert!(matches!(failed, Err(CallError::NotReady(ConnectionState::Starting))), "{failed:?}");
    assert_eq!(began.elapsed().as_secs(), 10, "the wait");
    let failed = bench.call(within(5)).await;
    assert!(matches!(failed, Err(CallError::NotReady(ConnectionState::Starting))), "{failed:?}");
    assert_eq!(began.elapsed().as_secs(), 15, "the limit of the call");
}

#[tokio::test(start_paused = true)]
async fn a_burst_of_changes_is_one_new_list_and_a_list_that_fails_leaves_the_old_one() {
    let bench = Bench::ready("", Script::default()).await;
    for _ in 0..5 {
        bench.script.link().changed.notify_one();
        sleep(Duration::from_millis(5)).await;
    }
    sleep(SETTLE * 3).await;
    // A change while the lists settle causes one more listing.
    let lists = bench.updates().len();
    assert!((2..=3).contains(&lists), "{:?}", bench.updates());
    bench.script.lists.lock().push_back("no answer".into());
    bench.script.link().changed.notify_one();
    sleep(SETTLE * 3).await;
    assert_eq!(bench.updates().last().map(String::as_str), Some("old list"));
    assert_eq!(bench.connection.state().shown().as_str(), "ready");
}

#[tokio::test(start_paused = true)]
async fn a_first_list_that_fails_is_an_attempt_that_failed() {
    let script = Script { lists: Mutex::new(["no answer".into()].into()), ..Script::default() };
    let bench = Bench::new("", script).start();
    let state = bench.until("down").await;
    assert!(
        matches!(state, ConnectionState::Down { error, .. } if error == "its tools could not be listed: no answer")
    );
    bench.until("ready").await;
    assert_eq!(bench.updates(), ["tool_2"]);
}

#[tokio::test(start_paused = true)]
async fn a_lost_server_is_connected_again_and_its_calls_learn_why() {
    let bench = Bench::ready("", Script::default()).await;
    bench.script.reply(Reply::Fails(|| RequestError::Lost));
    let call = tokio::spawn(bench.call(within(60)));
    settle().await;
    bench.script.link().closed.cancel();
    let failed = call.await.expect("no panic");
    assert!(
        matches!(&failed, Err(CallError::Closed(why)) if why == "it closed the connection"),
        "{failed:?}"
    );
    bench.until("ready").await;
    settle().await;
    assert_eq!(bench.updates(), ["tool_1", "tool_2", "reconnected"]);
}

#[tokio::test(start_paused = true)]
async fn a_sign_in_or_ten_minutes_end_the_wait_for_a_sign_in() {
    let needed = || {
        let remedy = Remedy::Login("nonet login shop".into());
        Some(LinkError::SignIn(SignInNeeded { error: "Bearer".into(), remedy }))
    };
    let script = Script { attempts: Mutex::new([needed(), needed()].into()), ..Script::default() };
    let bench = Bench::new("", script).start();
    bench.until("auth_required").await;
    let failed = bench.call(within(60)).await;
    assert!(matches!(failed, Err(CallError::NotReady(ConnectionState::AuthRequired { .. }))), "{failed:?}");
    sleep(Duration::from_secs(60)).await;
    assert_eq!(bench.script.begun.lock().len(), 1, "nothing but a sign-in helps");
    bench.script.signed_in.notify_one();
    settle().await;
    assert_eq!(bench.script.begun.lock().len(), 2);
    let began = Instant::now();
    bench.until("ready").await;
    assert_eq!(began.elapsed().as_secs_f64().round(), UNSIGNED.as_secs_f64());
    assert_eq!(bench.updates(), ["sign in: Some(\"nonet login shop\")", "tool_1"], "announced once");
}

#[tokio::test(start_paused = true)]
async fn a_held_server_is_stopped_until_it_is_released() {
    let bench = Bench::ready("", Script::default()).await;
    bench.connection.hold();
    bench.until("stopped").await;
    sleep(Duration::from_secs(600)).await;
    assert_eq!(bench.script.begun.lock().len(), 1);
    let failed = bench.call(within(60)).await;
    assert!(matches!(failed, Err(CallError::NotReady(ConnectionState::Stopped))), "{failed:?}");
    bench.connection.release();
    bench.until("ready").await;
    bench.connection.restart();
    settle().await;
    assert_eq!(bench.connection.state().shown().as_str(), "ready", "without the backoff");
    assert_eq!(bench.script.begun.lock().len(), 3);
    bench.stop.cancel();
    bench.until("stopped").await;
}

#[tokio::test(start_paused = true)]
async fn calls_beyond_the_concurrency_wait_for_a_slot() {
    let bench = Bench::ready("max_concurrency = 2", Script::default()).await;
    for _ in 0..3 {
        bench.script.reply(Reply::After(Duration::from_secs(3), json!({})));
    }
    let began = Instant::now();
    let calls: Vec<_> = (0..3).map(|_| tokio::spawn(bench.call(within(60)))).collect();
    settle().await;
    assert_eq!((bench.connection.in_flight(), bench.log().len()), (2, 2));
    let busy = bench.call(within(1)).await;
    assert!(matches!(busy, Err(CallError::Busy(2))), "{busy:?}");
    for call in calls {
        assert!(call.await.expect("no panic").is_ok());
    }
    assert_eq!((began.elapsed().as_secs(), bench.connection.in_flight()), (6, 0));
}

#[tokio::test(start_paused = true)]
async fn a_call_over_its_limit_or_given_up_is_cancelled_at_the_server() {
    let bench = Bench::ready("", Script::default()).await;
    bench.script.reply(Reply::Never);
    let began = Instant::now();
    let late = bench.call(within(7)).await;
    assert!(matches!(late, Err(CallError::TimedOut(limit)) if limit.as_secs() == 7), "{late:?}");
    assert_eq!((began.elapsed().as_secs(), bench.script.cancelled.load(Ordering::Relaxed)), (7, 1));
    bench.script.reply(Reply::Never);
    let control = within(60);
    let call = tokio::spawn(bench.call(CallControl { cancel: control.cancel.clone(), ..within(60) }));
    settle().await;
    control.cancel.cancel();
    assert!(matches!(call.await.expect("no panic"), Err(CallError::Cancelled)));
    assert_eq!(bench.script.cancelled.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn a_retired_connection_ends_with_its_calls_at_most_after_the_limit() {
    for (call, expected) in [(3, 3), (500, 300)] {
        let bench = Bench::ready("", Script::default()).await;
        bench.script.reply(Reply::After(Duration::from_secs(call), json!({})));
        let call = tokio::spawn(bench.call(within(1_000)));
        settle().await;
        let began = Instant::now();
        bench.connection.retire(Duration::from_secs(300)).await;
        assert!(bench.connection.retired().is_cancelled());
        assert_eq!(began.elapsed().as_secs_f64().round(), f64::from(expected));
        call.abort();
    }
}

fn channel() -> (ClientChannel, mpsc::Receiver<ClientMessage>) {
    let (to, receiver) = mpsc::channel(4);
    let can = Arc::new(Map::from_iter([("elicitation".to_string(), json!({}))]));
    let waits = Arc::default();
    (ClientChannel { session: 1, to, can, turns: Arc::default(), parks: false, waits, log: None }, receiver)
}

#[tokio::test(start_paused = true)]
async fn a_stateless_server_gets_the_answers_of_the_client_and_its_time_is_not_the_servers() {
    let bench = Bench::ready("", Script { stateless: AtomicBool::new(true), ..Script::default() }).await;
    let asks = json!({ "resultType": "input_required", "requestState": "s",
        "inputRequests": { "q": { "method": "elicitation/create", "params": {} } } });
    bench.script.reply(Reply::After(Duration::from_secs(3), asks));
    bench.script.reply(Reply::After(Duration::from_secs(3), json!({ "content": [1] })));
    let (asker, mut questions) = channel();
    let user = tokio::spawn(async move {
        let Some(ClientMessage::Ask(requests, reply)) = questions.recv().await else { return };
        sleep(Duration::from_secs(600)).await;
        let replies = requests.keys().map(|key| (key.clone(), Ok(json!({ "action": "accept" }))));
        let _ = reply.send(replies.collect());
    });
    let result = bench.call(CallControl { asker: Some(asker), ..within(8) }).await;
    assert_eq!(result.expect("in time"), json!({ "content": [1] }));
    assert_eq!(bench.log(), ["buy", "buy{\"q\":{\"action\":\"accept\"}}"]);
    user.await.expect("no panic");
}

#[tokio::test(start_paused = true)]
async fn a_task_of_a_server_is_followed_over_a_reconnect() {
    let bench = Bench::ready("", Script::default()).await;
    let task = |status: &str| json!({ "taskId": "t", "status": status, "pollInterval": 5_000 });
    bench.script.reply(Reply::Result(json!({ "task": task("working") })));
    bench.script.reply(Reply::Result(task("working")));
    let call = tokio::spawn(bench.call(within(60)));
    sleep(Duration::from_secs(6)).await;
    bench.script.link().closed.cancel();
    bench.until("down").await;
    bench.until("ready").await;
    bench.script.reply(Reply::Result(task("completed")));
    bench.script.reply(Reply::Result(json!({ "content": ["done"] })));
    assert_eq!(call.await.expect("no panic").expect("a result"), json!({ "content": ["done"] }));
    assert_eq!(bench.log(), ["buy", "tasks/get", "tasks/get", "tasks/result"]);
    bench.script.reply(Reply::Result(json!({ "task": task("working") })));
    bench.script.replies.lock().extend((0..2).map(|_| Reply::Result(task("working"))));
    let late = bench.call(within(12)).await;
    assert!(matches!(late, Err(CallError::TimedOut(_))), "{late:?}");
    assert_eq!(bench.log(), ["buy", "tasks/get", "tasks/get", "tasks/cancel"]);
}

#[tokio::test(start_paused = true)]
async fn a_server_gets_one_subscription_for_many_clients_and_again_after_a_reconnect() {
    let bench = Bench::ready("", Script::default()).await;
    let subscribe = async || bench.connection.subscribe("file:///a".into()).await.expect("accepted");
    let (mut first, second) = (subscribe().await, subscribe().await);
    bench.connection.set_log_level(LogLevel::Info).await;
    assert_eq!(bench.log(), ["+file:///a", "Info"]);
    bench.connection.subscriptions.updated("file:///other".into());
    bench.connection.subscriptions.updated("file:///a".into());
    assert_eq!(first.updated().await, Some(()));
    drop(second);
    bench.script.link().closed.cancel();
    bench.until("down").await;
    bench.until("ready").await;
    settle().await;
    assert_eq!(bench.log(), ["Info", "+file:///a"]);
    drop(first);
    settle().await;
    assert_eq!(bench.log(), ["-file:///a"]);
    let mut last = subscribe().await;
    bench.connection.retire(Duration::ZERO).await;
    assert_eq!(last.updated().await, None);
    advance(Duration::from_secs(1)).await;
}

/// Returns a tool's own result.
fn said(text: &str, is_error: bool) -> Reply {
    Reply::Result(json!({ "content": [{ "type": "text", "text": text }], "isError": is_error }))
}

const SETUP: &str = "[[servers.shop.setup]]\ntool = 'tool_1'\nparams = { key = 's3cret' }\n\
                     [[servers.shop.setup]]\ntool = 'tool_1'\n";

#[tokio::test(start_paused = true)]
async fn the_setup_is_made_after_each_connect_and_before_the_list() {
    let bench = Bench::ready(SETUP, Script::default()).await;
    assert_eq!(bench.log(), ["tool_1", "tool_1"]);
    // The list read for the names is not the published one.
    assert_eq!(bench.updates(), ["tool_2"]);
    bench.script.listed.store(0, Ordering::Relaxed);
    bench.script.link().closed.cancel();
    bench.until("down").await;
    bench.until("ready").await;
    assert_eq!(bench.log(), ["tool_1", "tool_1"]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_setup_call_fails_the_attempt_unless_it_is_optional() {
    let check = async |setup: &str, reply: Option<Reply>, expected: Option<&str>| {
        let script = Script::default();
        script.replies.lock().extend(reply);
        let bench = Bench::new(setup, script).start();
        match expected {
            Some(expected) => {
                let ConnectionState::Down { error, .. } = bench.until("down").await else {
                    panic!("it is down")
                };
                assert_eq!(error, expected, "{setup}");
                assert_eq!(bench.updates(), Vec::<String>::new(), "{setup}");
                // The next attempt repeats the whole setup.
                if !setup.contains("tool_9") {
                    bench.script.listed.store(0, Ordering::Relaxed);
                    bench.until("ready").await;
                }
            }
            None => drop(bench.until("ready").await),
        }
    };
    let one = "[[servers.shop.setup]]\ntool = 'tool_1'\n";
    let optional = "[[servers.shop.setup]]\ntool = 'tool_1'\noptional = true\n";
    let fails = || Some(said("no project s3cret", true));
    check(one, fails(), Some("its setup call `tool_1` failed: no project ***")).await;
    check(optional, fails(), None).await;
    let unfinished = || Some(Reply::Result(json!({ "resultType": "input_required" })));
    let nobody = "its setup call `tool_1` returned no result, and nobody can be asked for input";
    check(one, unfinished(), Some(nobody)).await;
    let unknown =
        "its setup call `tool_9` names a tool that the server does not have; the nearest are `tool_1`";
    check("[[servers.shop.setup]]\ntool = 'tool_9'\n", None, Some(unknown)).await;
    check("[[servers.shop.setup]]\ntool = 'tool_9'\noptional = true\n", None, None).await;
    let late = "its setup call `tool_1` did not end within the `start_timeout` of [servers.shop], 4s";
    check(&format!("start_timeout = '4s'\n{one}"), Some(Reply::Never), Some(late)).await;
    check(&format!("start_timeout = '4s'\n{optional}"), Some(Reply::Never), None).await;
}
