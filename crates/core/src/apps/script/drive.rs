//! The loop of a running script: what the worker asks for is carried out, kept, and answered.

use std::{
    collections::HashMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{
    StreamExt,
    future::{BoxFuture, OptionFuture},
    stream::FuturesUnordered,
};
use nonet_base::text::clip;
use nonet_script::{
    frames::{Failure, FromWorker, Op, Progress, Request, ToWorker},
    ledger::Ledger,
    process::{Unread, Worker, WorkerError},
};
use nonet_servers::downstream::ProgressSink;
use nonet_state::{limit::Limit, session::Caller};
use nonet_text::{
    fault::{Fault, FaultCode},
    results::json_len,
};
use parking_lot::Mutex;
use serde_json::{Value, json, value::to_raw_value};
use tokio::{
    sync::{Notify, Semaphore, mpsc},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{MAX_CALLS, ScriptRun, requests::RequestEnd};
use crate::{
    apps::{Apps, parked::ScriptRecord},
    graph::OpenQuestion,
};

/// How many calls of a script are in flight at a time.
const AT_ONCE: usize = 16;
/// How many requests of all kinds a script may make, and how many bytes of them may wait.
const MAX_REQUESTS: usize = 4 * MAX_CALLS;
const MAX_WAITING: usize = 64 << 20;
/// How many bytes of values are remembered for the report of a script that stops early.
const MAX_NOTED: usize = 16 << 20;
/// How many characters of a tool's name a place has.
const NAME: usize = 100;
/// How many bytes of answers may wait for the script to read them, beside those of requests in flight.
const MAX_UNREAD: usize = 64 << 20;
/// How long answers wait for others to be kept with them.
const KEEP_AFTER: Duration = Duration::from_millis(20);
/// How long calls in flight may take to end when their script has failed.
const GRACE: Duration = Duration::from_secs(10);
/// The same for a script that was cancelled.
const CANCEL_GRACE: Duration = Duration::from_secs(1);

/// How a run of a script ended.
pub(super) enum ScriptEnd {
    Returned {
        value: Value,
        log: String,
    },
    Failed {
        failure: Failure,
        log: String,
    },
    /// It waits for the user.
    Open(Box<Open>),
    TimedOut,
    Cancelled,
    Fault(Box<Fault>),
}

/// A question that waits for the user, with the place of its request.
pub(super) struct Open {
    pub question: OpenQuestion,
    pub place: String,
}

/// A request that has ended.
#[derive(Clone, Debug)]
pub(crate) struct DoneRequest {
    pub name: String,
    /// The beginning of its params.
    pub params: String,
    pub is_call: bool,
    /// Whether the tool may have changed something.
    pub changes: bool,
    /// Whether it is an answer of an earlier run.
    pub is_earlier: bool,
    /// Whether it is not made again, although it failed: what it did is not known, or it was done.
    pub is_final: bool,
    /// The value, or the error.
    pub answer: Arc<Result<Value, Value>>,
}

/// Carries out what one run of a script asks for.
pub(super) struct Driver<'a> {
    pub apps: &'a Arc<Apps>,
    pub caller: &'a Caller,
    pub limit: &'a Limit,
    pub record: &'a ScriptRecord,
    pub script: &'a ScriptRun,
    sink: &'a ProgressSink,
    /// Limits the calls in flight.
    pub slots: Semaphore,
    /// Limits the requests in flight that are no calls.
    pub looks: Semaphore,
    unread: OnceLock<Arc<Unread>>,
    /// Withdraws calls that wait for their turn, and cancels calls in flight.
    pub halt: CancellationToken,
    pub cancel: CancellationToken,
    /// The calls that have asked for an approval: the tool and the params.
    pub asking: Mutex<Vec<(Arc<str>, Value)>>,
    /// How many of them wait until the script does nothing else.
    waiting: AtomicUsize,
    quiet: Notify,
    keep_soon: Notify,
    held: mpsc::Sender<u64>,
    newly_held: Mutex<Option<mpsc::Receiver<u64>>>,
    done: Mutex<Vec<DoneRequest>>,
    /// The size of the values in `done`.
    noted: AtomicUsize,
    /// How many answers of earlier runs were not asked for.
    unused: AtomicUsize,
}

/// A request with the answer that it got.
struct Ended {
    id: u64,
    place: String,
    size: usize,
    end: RequestEnd,
}

impl<'a> Driver<'a> {
    pub(super) fn new(
        apps: &'a Arc<Apps>,
        caller: &'a Caller,
        run: &'a ScriptRun,
        limit: &'a Limit,
        sink: &'a ProgressSink,
    ) -> Self {
        let (held, newly_held) = mpsc::channel(MAX_REQUESTS);
        Self {
            apps,
            caller,
            limit,
            record: &run.record,
            script: run,
            sink,
            slots: Semaphore::new(AT_ONCE),
            looks: Semaphore::new(AT_ONCE),
            unread: OnceLock::new(),
            halt: CancellationToken::new(),
            cancel: caller.cancel.child_token(),
            asking: Mutex::default(),
            waiting: AtomicUsize::new(0),
            quiet: Notify::new(),
            keep_soon: Notify::new(),
            held,
            newly_held: Mutex::new(Some(newly_held)),
            done: Mutex::default(),
            noted: AtomicUsize::new(0),
            unused: AtomicUsize::new(0),
        }
    }

    /// Remembers a call that has ended, with its value as long as there is room.
    fn note(&self, mut done: DoneRequest) {
        if !done.is_call {
            return;
        }
        let size = done.answer.as_ref().as_ref().map_or(0, json_len);
        if self.noted.fetch_add(size, Ordering::AcqRel).saturating_add(size) > MAX_NOTED {
            done.answer = Arc::new(done.answer.as_ref().as_ref().map(|_| Value::Null).map_err(Value::clone));
        }
        self.done.lock().push(done);
    }

    pub(super) fn done(&self) -> Vec<DoneRequest> {
        std::mem::take(&mut *self.done.lock())
    }

    /// Returns how many answers of earlier runs the script did not ask for again.
    pub(super) fn unused(&self) -> usize {
        self.unused.load(Ordering::Acquire)
    }

    fn note_answer(&self, place: &str, done: &DoneRequest, got: (u64, u64)) -> Result<(), Fault> {
        self.apps.scripts.note_answer(self.script, place, done, got)
    }

    /// Whether the script is to read answers before it gets more. Who has taken a place for a request gives it
    /// back then, waits, and takes one again: others may wait for the place.
    pub(super) fn is_full(&self) -> bool {
        let is_full = self.unread.get().is_some_and(|unread| unread.bytes() >= MAX_UNREAD);
        is_full && !self.halt.is_cancelled()
    }

    /// Waits until the script has read enough.
    pub(super) async fn has_read(&self) {
        if let Some(unread) = self.unread.get() {
            tokio::select! {
                () = unread.below(MAX_UNREAD) => {}
                () = self.halt.cancelled() => {}
            }
        }
    }

    /// Keeps what was noted so far.
    pub(super) async fn keep_noted(&self) -> Result<(), Fault> {
        self.apps.scripts.keep_noted(self.script).await
    }

    /// Keeps it while the script goes on: for a call that changes nothing.
    pub(super) fn keep_soon(&self) {
        self.keep_soon.notify_one();
    }

    /// Waits until the script does nothing but wait for the user, so that one question covers all of its
    /// calls of a tool.
    pub(super) async fn is_quiet(&self, id: u64, tool: &Arc<str>, params: &Value) {
        let quiet = self.quiet.notified();
        tokio::pin!(quiet);
        quiet.as_mut().enable();
        self.asking.lock().push((tool.clone(), params.clone()));
        self.waiting.fetch_add(1, Ordering::AcqRel);
        // There is room for every request of a run, and the receiver lives as long.
        let _ = self.held.try_send(id);
        tokio::select! {
            () = quiet => {}
            () = self.halt.cancelled() => {}
        }
        self.waiting.fetch_sub(1, Ordering::AcqRel);
    }

    /// Runs the script to its end, its failure, or a question.
    pub(super) async fn run(&self, worker: Worker) -> ScriptEnd {
        let ledger = Ledger::new(self.record.answers());
        let _ = self.unread.set(worker.unread());
        let newly_held = self.newly_held.lock().take();
        let Some(newly_held) = newly_held else {
            return ScriptEnd::Fault(Box::new(Fault::new(FaultCode::Internal, "The script was run twice.")));
        };
        let mut turn = Turn {
            driver: self,
            worker,
            ledger,
            newly_held,
            running: FuturesUnordered::new(),
            keeping: None,
            open: None,
            sent: 0,
            idles: 0,
            requests: 0,
            calls: 0,
            bytes: 0,
            replayed: HashMap::new(),
            noted_at: None,
            log: String::new(),
        };
        let end = loop {
            if let Some(end) = turn.step().await {
                break end;
            }
        };
        turn.wind_up(end).await
    }
}

/// What the loop waits for.
enum Event {
    Message(Result<FromWorker, WorkerError>),
    Ended(Box<Ended>),
    Held(u64),
    /// What was noted is to be kept.
    Keep,
    Kept(Result<(), Fault>),
}

/// The state of the loop.
struct Turn<'d, 'a> {
    driver: &'d Driver<'a>,
    worker: Worker,
    ledger: Ledger,
    newly_held: mpsc::Receiver<u64>,
    running: FuturesUnordered<BoxFuture<'d, Ended>>,
    /// Writes answers to the store, beside everything else.
    keeping: Option<BoxFuture<'d, Result<(), Fault>>>,
    /// The first question that waits for the user.
    open: Option<Open>,
    /// How many messages the worker got, and how many times it has said that it waits: one more, if it has
    /// read all of them.
    sent: usize,
    idles: usize,
    requests: usize,
    calls: usize,
    /// The size of the requests that wait, and of those among them that wait for an earlier answer.
    bytes: usize,
    replayed: HashMap<u64, usize>,
    /// When the first answer was noted that nobody keeps yet.
    noted_at: Option<Instant>,
    log: String,
}

impl Turn<'_, '_> {
    fn is_idle(&self) -> bool {
        self.idles > self.sent
    }

    /// Handles what comes next. Returns how the run ends, if it does.
    async fn step(&mut self) -> Option<ScriptEnd> {
        let driver = self.driver;
        let keep_at = self.noted_at.map_or_else(Instant::now, |at| at + KEEP_AFTER);
        // Only the wait may be given up: what came is handled to its end.
        let event = tokio::select! {
            message = self.worker.read() => Event::Message(message),
            Some(ended) = self.running.next() => Event::Ended(Box::new(ended)),
            Some(id) = self.newly_held.recv() => Event::Held(id),
            kept = kept(&mut self.keeping) => Event::Kept(kept),
            () = driver.keep_soon.notified(), if self.keeping.is_none() => Event::Keep,
            () = tokio::time::sleep_until(keep_at), if self.keeping.is_none() && self.noted_at.is_some() => {
                Event::Keep
            }
            () = driver.limit.over() => return Some(ScriptEnd::TimedOut),
            () = driver.caller.cancel.cancelled() => return Some(ScriptEnd::Cancelled),
        };
        let handled = match event {
            Event::Message(message) => self.hear(message),
            Event::Ended(ended) => self.take(*ended).await,
            Event::Held(id) => self.send(ToWorker::Held { id }).await,
            Event::Keep => {
                self.noted_at = None;
                self.keeping = Some(Box::pin(driver.keep_noted()));
                Ok(())
            }
            Event::Kept(kept) => {
                self.keeping = None;
                kept.map_err(|fault| ScriptEnd::Fault(Box::new(fault)))
            }
        };
        if let Err(end) = handled {
            return Some(end);
        }
        while let Some((id, place)) = self.ledger.next(self.is_idle()) {
            if let Err(end) = self.repeat(id, &place).await {
                return Some(end);
            }
        }
        self.rest()
    }

    /// Lets the calls ask that wait for an approval, once the script does nothing else; returns the question
    /// that is left when nothing else is.
    fn rest(&mut self) -> Option<ScriptEnd> {
        if !self.is_idle() || !self.newly_held.is_empty() {
            return None;
        }
        let waiting = self.driver.waiting.load(Ordering::Acquire);
        if waiting > 0 && waiting == self.running.len() {
            self.driver.quiet.notify_waiters();
        }
        match self.running.is_empty() {
            true => self.open.take().map(|open| ScriptEnd::Open(Box::new(open))),
            false => None,
        }
    }

    fn hear(&mut self, message: Result<FromWorker, WorkerError>) -> Result<(), ScriptEnd> {
        match message.map_err(|error| self.crashed(&error))? {
            FromWorker::Request(request) => self.begin(request),
            FromWorker::Idle { log } => {
                self.idles += 1;
                if let Some(log) = log {
                    self.log = log;
                }
                Ok(())
            }
            FromWorker::Progress(progress) => {
                self.tell(progress);
                Ok(())
            }
            FromWorker::Done { value, log } => match serde_json::from_str(value.get()) {
                Ok(value) => Err(ScriptEnd::Returned { value, log }),
                Err(error) => Err(self.crashed(&WorkerError::Unreadable(error.to_string()))),
            },
            FromWorker::Failed { failure, log } => Err(ScriptEnd::Failed { failure, log }),
        }
    }

    fn crashed(&self, error: &WorkerError) -> ScriptEnd {
        let message = format!(
            "The script stopped: {error}. It needed more than a script may use, or met a fault of Nonet's."
        );
        ScriptEnd::Fault(Box::new(Fault::new(FaultCode::Internal, message)))
    }

    fn tell(&self, Progress { done, total, message }: Progress) {
        let mut told = json!({ "progress": done.unwrap_or_default() });
        if let Some(total) = total {
            told["total"] = json!(total);
        }
        if let Some(message) = message {
            told["message"] = json!(nonet_base::text::clip(&message, 200));
        }
        self.driver.sink.take(told);
    }

    /// Begins a request, or lets it wait for its answer in the ledger.
    fn begin(&mut self, request: Request) -> Result<(), ScriptEnd> {
        self.requests += 1;
        let Request { id, op } = request;
        self.calls += usize::from(matches!(op, Op::Call { .. }));
        let (key, size) = key_of(&op);
        self.bytes += size;
        // The worker counts calls as well; a script that has got the better of it ends here.
        if self.calls > MAX_CALLS || self.requests > MAX_REQUESTS || self.bytes > MAX_WAITING {
            let message = format!(
                "The script was stopped: it makes more than {MAX_CALLS} calls or {MAX_REQUESTS} requests, or more than {MAX_WAITING} bytes of them wait."
            );
            return Err(ScriptEnd::Fault(Box::new(Fault::new(FaultCode::RateLimited, message))));
        }
        let place = self.ledger.place(&key);
        if self.ledger.ask(id, &place) {
            self.replayed.insert(id, size);
        } else {
            let driver = self.driver;
            self.running.push(Box::pin(async move {
                let end = driver.carry_out(id, &place, op).await;
                Ended { id, place, size, end }
            }));
        }
        Ok(())
    }

    /// Notes the answer of a request, then passes it on.
    async fn take(&mut self, ended: Ended) -> Result<(), ScriptEnd> {
        let Ended { id, place, size, end } = ended;
        self.bytes = self.bytes.saturating_sub(size);
        let (done, lasts) = match end {
            RequestEnd::Open(question) => {
                self.open.get_or_insert(Open { question: *question, place });
                return Ok(());
            }
            RequestEnd::Done { done, lasts } => (done, lasts),
        };
        let at_ms = self.driver.apps.keeping.clock.unix_ms();
        if lasts {
            let got = (self.ledger.number(), at_ms);
            self.driver.note_answer(&place, &done, got).map_err(|fault| ScriptEnd::Fault(Box::new(fault)))?;
            self.noted_at.get_or_insert_with(Instant::now);
        }
        self.answer(id, done, at_ms).await
    }

    /// Answers a request with what an earlier run got.
    async fn repeat(&mut self, id: u64, place: &str) -> Result<(), ScriptEnd> {
        self.bytes = self.bytes.saturating_sub(self.replayed.remove(&id).unwrap_or_default());
        let Some((done, at_ms)) = self.driver.record.earlier(place) else { return Ok(()) };
        self.answer(id, done, at_ms).await
    }

    async fn answer(&mut self, id: u64, done: DoneRequest, at_ms: u64) -> Result<(), ScriptEnd> {
        let (ok, value) = match &*done.answer {
            Ok(value) => (true, value),
            Err(error) => (false, error),
        };
        let value =
            to_raw_value(value).map_err(|error| self.crashed(&WorkerError::Unreadable(error.to_string())))?;
        self.driver.note(done);
        self.send(ToWorker::Settle { id, ok, value, at_ms }).await
    }

    async fn send(&mut self, message: ToWorker) -> Result<(), ScriptEnd> {
        self.sent += 1;
        self.worker.send(&message).await.map_err(|error| self.crashed(&error))
    }

    /// Lets the calls in flight end, and keeps what they answer: they have been sent.
    async fn wind_up(mut self, end: ScriptEnd) -> ScriptEnd {
        let driver = self.driver;
        driver.unused.store(self.ledger.unused(), Ordering::Release);
        driver.halt.cancel();
        if matches!(end, ScriptEnd::TimedOut | ScriptEnd::Cancelled) {
            driver.cancel.cancel();
        }
        let keeping = self.keeping.take();
        let rest = async {
            while let Some(Ended { place, end, .. }) = self.running.next().await {
                if let RequestEnd::Done { done, lasts } = end {
                    let got = (self.ledger.number(), driver.apps.keeping.clock.unix_ms());
                    if lasts && let Err(fault) = driver.note_answer(&place, &done, got) {
                        tracing::warn!(fault = fault.message, "an answer of a script was not kept");
                    }
                    driver.note(done);
                }
                // Calls that wait for an approval are not made any more.
                driver.quiet.notify_waiters();
            }
        };
        // Before anything else: those that wait already.
        driver.quiet.notify_waiters();
        let all = async { tokio::join!(rest, OptionFuture::from(keeping)) };
        let grace = if matches!(end, ScriptEnd::Cancelled) { CANCEL_GRACE } else { GRACE };
        if tokio::time::timeout(grace, all).await.is_err() {
            driver.cancel.cancel();
        }
        // One of them may be about to keep something, and does not go on.
        self.running.clear();
        // The record of a script that has returned is not needed any more.
        if !matches!(end, ScriptEnd::Returned { .. })
            && let Err(fault) = driver.keep_noted().await
        {
            tracing::warn!(fault = fault.message, "answers of a script were not kept");
            // A question would be answered in vain: the script could not go on from it.
            if matches!(end, ScriptEnd::Open(_)) {
                return ScriptEnd::Fault(Box::new(fault));
            }
        }
        match end {
            // The worker can say no more.
            ScriptEnd::Fault(fault) if !self.log.is_empty() => {
                ScriptEnd::Fault(Box::new((*fault).details(json!({ "log": self.log }))))
            }
            end => end,
        }
    }
}

/// Waits for a write to end, or for ever without one.
async fn kept(keeping: &mut Option<BoxFuture<'_, Result<(), Fault>>>) -> Result<(), Fault> {
    match keeping {
        Some(keeping) => keeping.await,
        None => std::future::pending().await,
    }
}

/// Returns what a request asks for as a short text, and its size in bytes.
fn key_of(op: &Op) -> (String, usize) {
    let written = json!(op);
    let size = json_len(&written);
    let digest = crate::graph::digest(&written);
    let digest = digest.get(..16).unwrap_or(&digest);
    let key = match op {
        Op::Call { name, .. } => format!("call {} {digest}", clip(name, NAME)),
        Op::Search { .. } => format!("search {digest}"),
        Op::Describe { .. } => format!("describe {digest}"),
        Op::Result { .. } => format!("result {digest}"),
        Op::Ask { .. } => format!("ask {digest}"),
        Op::Sleep { .. } => format!("sleep {digest}"),
    };
    (key, size)
}
