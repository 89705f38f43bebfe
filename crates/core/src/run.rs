//! Work that a client waits for until the soft deadline: then the work continues as a job.

use std::{
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use nonet_api::work::TaskSummary;
use nonet_parts::{
    jobs::{self, Job, JobProgress, JobQuestions, JobStart, Jobs},
    kept::KeptResults,
    quotas::Admission,
};
use nonet_servers::downstream::ProgressSink;
use nonet_text::{
    fault::{Fault, FaultCode},
    results::CallResult,
};
use serde_json::json;
use tokio::{task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{call::text_result, interrupt::Interrupt};
use nonet_state::session::{Caller, TaskMode};

#[cfg(test)]
mod tests;

/// How long a background launch waits for a quick end.
const SETTLE: Duration = Duration::from_secs(2);
/// The minimum wait for a call, whatever the soft deadline is.
const LEAST_PATIENCE: Duration = Duration::from_millis(500);
/// How long a cancelled call may take to end.
const CANCEL_GRACE: Duration = Duration::from_secs(2);

/// Work that is about to run.
pub(super) struct Run {
    /// What runs, for people.
    pub label: Arc<str>,
    /// When the client began to wait for it.
    pub began: Instant,
    /// Cancels the work.
    pub cancel: CancellationToken,
    /// The progress of the work.
    pub progress: JobProgress,
    /// Whether the work was launched in the background: then the client waits only for a quick end.
    pub background: bool,
    /// Set once the work continues as a job.
    pub went_on: Arc<AtomicBool>,
    /// Its places in the quotas, so that it can always continue.
    pub admission: Admission,
}

impl Run {
    /// Creates work that begins now.
    pub(super) fn new(label: impl Into<Arc<str>>, cancel: CancellationToken, progress: JobProgress) -> Self {
        Self {
            label: label.into(),
            began: Instant::now(),
            cancel,
            progress,
            background: false,
            went_on: Arc::default(),
            admission: Admission::default(),
        }
    }

    /// Creates work that begins now, with its own token, and where its servers report progress to its caller.
    pub(super) fn of_caller(label: impl Into<Arc<str>>, caller: &Caller) -> (Self, ProgressSink) {
        let sink = ProgressSink::new(caller.progress.clone());
        let last = sink.clone();
        (Self::new(label, CancellationToken::new(), Arc::new(move || last.last())), sink)
    }

    /// Runs the work. If the work outlives the soft deadline, or the settle window of a background launch, it
    /// continues as a job and the answer is its handle.
    pub(super) async fn wait(
        self,
        jobs: &Jobs,
        caller: &Caller,
        work: BoxFuture<'static, CallResult>,
    ) -> Result<CallResult, Interrupt> {
        let started = Instant::now();
        // Polled here while the client waits: a task of its own would cost more than a small call.
        let mut work = AssertUnwindSafe(work).catch_unwind();
        if caller.as_task != TaskMode::AtOnce {
            tokio::select! {
                ended = &mut work => return Ok(ended.unwrap_or_else(|_| {
                    tracing::error!(tool = &*self.label, "a call panicked");
                    jobs::panicked().into()
                })),
                () = caller.cancel.cancelled() => {
                    self.cancel.cancel();
                    let _ = tokio::time::timeout(CANCEL_GRACE, work).await;
                    let message = format!("The call to `{}` was cancelled.", self.label);
                    return Ok(Fault::new(FaultCode::Cancelled, message).to_result().into());
                }
                () = self.patience(caller) => {}
            }
        }
        self.went_on.store(true, Ordering::Release);
        let questions = caller.asker.as_ref().map(|asker| {
            let waits = asker.waits.clone();
            JobQuestions { call: waits.goes_on(), is_asked: Arc::new(move || waits.is_asked()) }
        });
        let running = tokio::spawn(async move { work.await.unwrap_or_else(|_| jobs::panicked().into()) });
        let Run { label, cancel, progress, admission, .. } = self;
        let place = Some(admission.into_job(&caller.account));
        let owner = caller.owner();
        let start = JobStart { label: label.to_string(), owner, began: started, cancel, progress, place };
        let job = adopt(jobs, caller, start, running);
        if let Some(questions) = questions {
            job.asks_by(questions);
        }
        let begun = job.summary();
        // A client with the handle may come back after this gateway was killed.
        job.recorded().await;
        let told = TaskSummary { message: job.summary().message, ..begun };
        match caller.as_task {
            TaskMode::Never => Ok(text_result(json!(told.with_wait_call()).to_string()).into()),
            _ => Err(Interrupt::Task(job)),
        }
    }

    /// Returns when the work is to continue as a job: after the settle window of a launch, or when the client
    /// has waited long enough. The time in which the client itself is being asked does not count.
    async fn patience(&self, caller: &Caller) {
        let waits = caller.asker.as_ref().map(|asker| &asker.waits);
        let since = || waits.map_or(self.began, |waits| waits.since().into());
        let left = || (since() + caller.limits.soft_deadline).saturating_duration_since(Instant::now());
        let mut wait = left().max(LEAST_PATIENCE);
        if self.background {
            // Returns before the launching call itself becomes a task.
            wait = SETTLE.min(wait / 2);
        }
        loop {
            tokio::time::sleep(wait).await;
            let left = left();
            let asked = waits.is_some_and(|waits| waits.is_asked());
            if !asked && (left.is_zero() || self.background) {
                return;
            }
            wait = left.max(LEAST_PATIENCE);
        }
    }
}

/// Returns a result to its caller: within the budget, or whole if it becomes the result of a job.
pub(super) async fn handed_out(
    kept: &KeptResults,
    caller: &Caller,
    mut result: CallResult,
    went_on: &AtomicBool,
) -> CallResult {
    if went_on.load(Ordering::Acquire) {
        return result;
    }
    let size = result.size().await;
    kept.fit(&caller.owner(), result, size, caller.limits.max_result_bytes).await
}

/// Creates a job that has already ended with this result.
pub async fn ended_job(jobs: &Jobs, caller: &Caller, label: &str, result: CallResult) -> Arc<Job> {
    let start = JobStart {
        label: label.into(),
        owner: caller.owner(),
        began: Instant::now(),
        cancel: CancellationToken::new(),
        progress: Arc::new(|| None),
        place: None,
    };
    let job = adopt(jobs, caller, start, tokio::spawn(async move { result }));
    job.wait(SETTLE).await;
    job
}

/// Turns running work into a job of this caller, who gets a notice when it ends.
fn adopt(jobs: &Jobs, caller: &Caller, start: JobStart, running: JoinHandle<CallResult>) -> Arc<Job> {
    let session = Arc::downgrade(&caller.session);
    let owner = caller.session.owner().to_owned();
    let mail = caller.session.mail().cloned();
    // A client of this machine's user may use a task from the next session. Other clients lose their tasks
    // with their sessions.
    let outlives = caller.local;
    // A client that follows the task in the protocol asks for its end itself.
    let wants_notice = caller.as_task == TaskMode::Never;
    let announce = move |job: &Arc<Job>| {
        if !wants_notice || job.is_awaited() {
            return;
        }
        let notice = job.summary().into_notice();
        match mail {
            Some(mail) if outlives => mail.post(&owner, Some(&session), notice),
            mail => {
                if let Some(mail) = mail {
                    mail.tell_people(&owner, &notice);
                }
                if let Some(session) = session.upgrade() {
                    session.notify(notice);
                }
            }
        }
    };
    jobs.adopt(start, running, announce)
}
