//! Calls that go on in the background: a bounded table of running and finished jobs.
//!
//! A job is a future that yields a JSON value. This room has not heard of tools, nor of where results are kept: whoever
//! starts a job says what becomes of its result. Statuses are named as MCP names those of tasks.

use std::{
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use dashmap::DashMap;
use serde_json::{Value, json};
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

/// How many jobs are remembered. Above it the oldest finished ones are forgotten; if all run, a new
/// one is refused.
pub const MAX_JOBS: usize = 2000;

/// How a job stands.
#[derive(Clone, Debug)]
pub enum Status {
    /// It is running.
    Working,
    /// It ended.
    Ended(Ended),
}

/// How a job ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// With success, with an error, or before its time.
    pub how: How,
    /// After how long.
    pub took: Duration,
    /// Its result, where it is not kept elsewhere.
    pub value: Option<Arc<Value>>,
}

/// In which way a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// It has a result that is no error.
    Completed,
    /// Its result is an error.
    Failed,
    /// It was cancelled before it ended.
    Cancelled,
}

impl How {
    /// The word for it in answers.
    pub fn as_str(self) -> &'static str {
        match self {
            How::Completed => "completed",
            How::Failed => "failed",
            How::Cancelled => "cancelled",
        }
    }
}

/// Whose a job is: one client does not see another's, unless both are of the user of this machine and one knows the handle.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Owner {
    /// The session that started it; none where requests belong to no session.
    pub session: Option<u64>,
    /// The profile that it was started under.
    pub profile: Option<String>,
    /// Whether its client is one of the user of this machine. Such a client may have been started anew since.
    pub local: bool,
}

impl Owner {
    fn shows(&self, other: &Owner) -> bool {
        let known = self.session.is_none() || self.session == other.session;
        self.profile == other.profile && (known || self.local && other.local)
    }
}

/// Says how far a job has come, if that is known.
pub type Progress = Arc<dyn Fn() -> Option<Value> + Send + Sync>;

/// What a job is started with.
pub struct Start {
    /// What it runs, for people.
    pub label: String,
    /// Whose it is.
    pub owner: Owner,
    /// When it began.
    pub began: Instant,
    /// Ends it.
    pub cancel: CancellationToken,
    /// How far it has come.
    pub progress: Progress,
}

/// One job.
pub struct Job {
    /// Its handle.
    pub id: String,
    /// What it runs, for people.
    pub label: String,
    /// Whose it is.
    pub owner: Owner,
    /// When it began.
    pub began: Instant,
    /// When it began, on the clock.
    pub since: SystemTime,
    /// Ends it.
    pub cancel: CancellationToken,
    /// Until it ends.
    progress: Mutex<Option<Progress>>,
    /// How many wait for its result.
    waiting: AtomicUsize,
    status: watch::Sender<Status>,
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("id", &self.id).field("label", &self.label).finish_non_exhaustive()
    }
}

impl Job {
    /// How it stands.
    pub fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    /// How it ended, if it has.
    pub fn ended(&self) -> Option<Ended> {
        match &*self.status.borrow() {
            Status::Working => None,
            Status::Ended(ended) => Some(ended.clone()),
        }
    }

    /// How long it has run, or ran, in milliseconds.
    pub fn elapsed_ms(&self) -> u64 {
        let elapsed = match &*self.status.borrow() {
            Status::Working => self.began.elapsed(),
            Status::Ended(ended) => ended.took,
        };
        u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)
    }

    /// Waits at most `limit` for its end. `None`: it is still running.
    pub async fn wait(&self, limit: Duration) -> Option<Ended> {
        let _waiting = Waiting::new(&self.waiting);
        let mut status = self.status.subscribe();
        let ended = status.wait_for(|status| matches!(status, Status::Ended(_)));
        let _ = tokio::time::timeout(limit, ended).await;
        self.ended()
    }

    /// Whether somebody waits for its result, and so learns of its end.
    pub fn is_awaited(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// How far it has come, if that is known and it has not ended.
    pub fn progress(&self) -> Option<Value> {
        let progress = self.progress.lock().ok()?.clone();
        progress?()
    }

    /// The job as answers show it.
    pub fn summary(&self) -> Value {
        let ended = self.ended();
        let state = ended.as_ref().map_or("running", |ended| ended.how.as_str());
        let mut summary = json!({ "task_id": self.id, "state": state, "tool": self.label, "elapsed_ms": self.elapsed_ms() });
        if let Some(progress) = self.progress() {
            summary["progress"] = progress;
        }
        summary
    }
}

/// Counts somebody who waits.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// All jobs.
#[derive(Debug, Default)]
pub struct Jobs {
    table: DashMap<String, Arc<Job>>,
}

/// The table is full of running jobs.
#[derive(Debug, thiserror::Error)]
#[error("{MAX_JOBS} calls are running in the background already")]
pub struct Full;

impl Jobs {
    /// Takes over work that is running in a task of its own; a panic in it becomes a result that says so. `begin` writes down
    /// that there is such a job. Once it has ended, `keep` gets its result and gives it back if it could not be kept; only
    /// then the job counts as ended, so that whoever reads of its end finds its result. Then `tell` is called.
    pub fn adopt<B, K>(
        &self,
        start: Start,
        running: JoinHandle<Value>,
        begin: impl FnOnce(Arc<Job>) -> B + Send + 'static,
        keep: impl FnOnce(Arc<Job>, How, Value) -> K + Send + 'static,
        tell: impl FnOnce(&Job) + Send + 'static,
    ) -> Result<Arc<Job>, Full>
    where
        B: Future<Output = ()> + Send + 'static,
        K: Future<Output = Option<Value>> + Send + 'static,
    {
        if let Err(full) = self.make_room() {
            start.cancel.cancel();
            return Err(full);
        }
        let job = Arc::new(Job {
            id: format!("job-{}", &uuid::Uuid::new_v4().simple().to_string()[..12]),
            label: start.label,
            owner: start.owner,
            began: start.began,
            since: SystemTime::now().checked_sub(start.began.elapsed()).unwrap_or_else(SystemTime::now),
            cancel: start.cancel,
            progress: Mutex::new(Some(start.progress)),
            waiting: AtomicUsize::new(0),
            status: watch::Sender::new(Status::Working),
        });
        self.table.insert(job.id.clone(), job.clone());
        let own = job.clone();
        tokio::spawn(async move {
            let ((), ended) = tokio::join!(begin(own.clone()), running);
            let value = ended.unwrap_or_else(|panic| {
                tracing::error!(job = %own.id, %panic, "a background call panicked");
                panicked()
            });
            let took = own.began.elapsed();
            let how = match value.get("isError") {
                _ if own.cancel.is_cancelled() => How::Cancelled,
                Some(Value::Bool(true)) => How::Failed,
                _ => How::Completed,
            };
            // It may hold on to results.
            if let Ok(mut progress) = own.progress.lock() {
                *progress = None;
            }
            let value = keep(own.clone(), how, value).await.map(Arc::new);
            own.status.send_replace(Status::Ended(Ended { how, took, value }));
            tell(&own);
        });
        Ok(job)
    }

    fn make_room(&self) -> Result<(), Full> {
        if self.table.len() < MAX_JOBS {
            return Ok(());
        }
        let mut ended: Vec<(Instant, String)> = self
            .table
            .iter()
            .filter(|job| matches!(*job.status.borrow(), Status::Ended(_)))
            .map(|job| (job.began, job.id.clone()))
            .collect();
        ended.sort();
        if ended.is_empty() {
            return Err(Full);
        }
        for (_, id) in ended.iter().take(MAX_JOBS / 10) {
            self.table.remove(id);
        }
        Ok(())
    }

    /// The job with this handle, if `owner` may see it.
    pub fn get(&self, id: &str, owner: &Owner) -> Option<Arc<Job>> {
        self.table.get(id).map(|job| job.clone()).filter(|job| job.owner.shows(owner))
    }

    /// Whether there is a job with this handle, whosever it is.
    pub fn knows(&self, id: &str) -> bool {
        self.table.contains_key(id)
    }

    /// How many are running.
    pub fn running(&self) -> usize {
        self.table.iter().filter(|job| matches!(*job.status.borrow(), Status::Working)).count()
    }

    /// All jobs, newest first: for the user of the machine, not for clients.
    pub fn all(&self) -> Vec<Arc<Job>> {
        let mut all: Vec<Arc<Job>> = self.table.iter().map(|job| job.clone()).collect();
        all.sort_by(|a, b| b.began.cmp(&a.began).then(a.id.cmp(&b.id)));
        all
    }

    /// The jobs of a session, newest first. Without a session there is no list: who knows a handle may use it, and nobody
    /// learns of others.
    pub fn list(&self, owner: &Owner) -> Vec<Arc<Job>> {
        let seen = self.table.iter().filter(|job| job.owner == *owner && owner.session.is_some());
        let mut all: Vec<Arc<Job>> = seen.map(|job| job.clone()).collect();
        all.sort_by(|a, b| b.began.cmp(&a.began).then(a.id.cmp(&b.id)));
        all
    }
}

/// The result of work that panicked.
pub fn panicked() -> Value {
    crate::fault::Fault::new(
        crate::fault::Code::Internal,
        "Nonet itself failed during this call; the log has the reason. Other calls are not touched.",
    )
    .to_result()
}
