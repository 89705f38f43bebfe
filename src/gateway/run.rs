//! Work that somebody waits for, until it takes too long: then it goes on as a job.

use std::{
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use futures::FutureExt;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{
    Gateway,
    call::{background_call, text_result},
    interrupt::Interrupt,
    session::{AsTask, Caller},
};
use crate::{
    fault::{Code, Fault},
    jobs::{self, Job, Progress, Start},
    results::json_len,
};

/// How long a launch in the background waits for a quick end.
const SETTLE: Duration = Duration::from_secs(2);
/// The least that a call is waited for, whatever the soft deadline says.
const LEAST_PATIENCE: Duration = Duration::from_millis(500);
/// How long a cancelled call may take to wind up.
const CANCEL_GRACE: Duration = Duration::from_secs(2);
/// Work that is about to run.
pub(super) struct Run {
    /// What it is, for people.
    pub label: String,
    /// When the client began to wait for it.
    pub began: Instant,
    /// Ends it.
    pub cancel: CancellationToken,
    /// How far it has come.
    pub progress: Progress,
    /// Whether nobody wants to wait for it.
    pub background: bool,
    /// Set once it goes on as a job.
    pub went_on: Arc<AtomicBool>,
}

impl Run {
    /// Work of which nobody knows how far it has come, and that begins now.
    pub fn new(label: String, cancel: CancellationToken) -> Self {
        Self {
            label,
            began: Instant::now(),
            cancel,
            progress: Arc::new(|| None),
            background: false,
            went_on: Arc::default(),
        }
    }
}

/// Ends when a call is to go on as a job: after the settle window of a launch, else when its client has waited long enough.
/// While the client is asked it does not wait.
async fn patience(caller: &Caller, run: &Run) {
    let waits = caller.asker.as_ref().map(|asker| &asker.waits);
    let until = || waits.map_or(run.began, |waits| waits.since()) + caller.limits.soft_deadline;
    let started = Instant::now();
    let mut wait = until().saturating_duration_since(started).max(LEAST_PATIENCE);
    if run.background {
        // Before the call that launches it becomes a task itself.
        wait = SETTLE.min(wait / 2);
    }
    loop {
        tokio::time::sleep(wait).await;
        let left = until().saturating_duration_since(Instant::now());
        let asked = waits.is_some_and(|waits| waits.is_asked());
        match (asked, left.is_zero() || run.background) {
            (false, true) => return,
            _ => wait = left.max(LEAST_PATIENCE),
        }
    }
}

impl Gateway {
    /// A result as the one who called gets it: within the budget, or whole if it is kept as the result of a job.
    pub(super) async fn handed_out(&self, caller: &Caller, result: Value, went_on: &AtomicBool) -> Value {
        if went_on.load(Ordering::Acquire) {
            return result;
        }
        let size = json_len(&result);
        self.fit(caller, result, size, caller.limits.max_result_bytes).await
    }

    /// Runs work. If it outlives the soft deadline, or the settle window of a launch in the background, it goes on as a job
    /// and the answer is its handle.
    pub(super) async fn run(
        self: &Arc<Self>,
        caller: &Caller,
        run: Run,
        work: impl Future<Output = Value> + Send + 'static,
    ) -> Result<Value, Interrupt> {
        let started = Instant::now();
        // Polled here as long as somebody waits: a task of its own costs more than a small call.
        let mut work = Box::pin(AssertUnwindSafe(work).catch_unwind());
        if caller.as_task != AsTask::AtOnce {
            let patience = patience(caller, &run);
            tokio::select! {
                ended = &mut work => return Ok(ended.unwrap_or_else(|_| {
                    tracing::error!(tool = run.label, "a call panicked");
                    jobs::panicked()
                })),
                () = caller.cancel.cancelled() => {
                    run.cancel.cancel();
                    let _ = tokio::time::timeout(CANCEL_GRACE, work).await;
                    let message = format!("The call of `{}` was cancelled.", run.label);
                    return Ok(Fault::new(Code::Cancelled, message).to_result());
                }
                () = patience => {}
            }
        }
        run.went_on.store(true, Ordering::Release);
        let running = tokio::spawn(async move { work.await.unwrap_or_else(|_| jobs::panicked()) });
        let start = Start {
            label: run.label,
            owner: caller.owner(),
            began: started,
            cancel: run.cancel,
            progress: run.progress,
        };
        let job = match self.adopt(caller, start, running) {
            Ok(job) => job,
            Err(full) => {
                return Ok(Fault::new(Code::RateLimited, full.to_string())
                    .retry_after(Duration::from_secs(10))
                    .next(
                        "execute_tool",
                        json!({ "name": "gateway.background_run", "params": { "list_tasks": true } }),
                    )
                    .to_result());
            }
        };
        if caller.as_task != AsTask::Never {
            return Err(Interrupt::Task(job));
        }
        let mut answer = job.summary();
        answer["next_step"] = background_call(json!({ "task_id": job.id, "wait": true }));
        Ok(text_result(answer.to_string()))
    }

    /// A job that has ended with this result already.
    pub async fn ended_job(
        self: &Arc<Self>,
        caller: &Caller,
        label: &str,
        result: Value,
    ) -> Option<Arc<Job>> {
        let start = Start {
            label: label.into(),
            owner: caller.owner(),
            began: Instant::now(),
            cancel: CancellationToken::new(),
            progress: Arc::new(|| None),
        };
        let job = self.adopt(caller, start, tokio::spawn(async move { result })).ok()?;
        job.wait(SETTLE).await;
        Some(job)
    }

    /// Makes work that runs a job of this caller, whose end it is told of.
    pub(super) fn adopt(
        self: &Arc<Self>,
        caller: &Caller,
        start: Start,
        running: tokio::task::JoinHandle<Value>,
    ) -> Result<Arc<Job>, jobs::Full> {
        let session = Arc::downgrade(&caller.session);
        // A client that has the task as its own protocol knows it asks for it itself.
        let told = caller.as_task == AsTask::Never;
        let tell = move |job: &Job| {
            if let Some(session) = session.upgrade().filter(|_| told && !job.is_awaited()) {
                let mut notice = job.summary();
                notice["kind"] = json!("task_ended");
                notice["next_step"] = background_call(json!({ "task_id": job.id, "wait": true }));
                session.notify(notice);
            }
        };
        let (begin, keep) = (self.clone(), self.clone());
        let begin = move |job| async move { begin.note_job(job).await };
        let keep = move |job, how, value| async move { keep.keep_job(job, how, value).await };
        self.jobs.adopt(start, running, begin, keep, tell)
    }
}
