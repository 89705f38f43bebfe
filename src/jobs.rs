//! Calls that go on in the background: a bounded table of running and finished jobs.
//!
//! A job is a future that yields a JSON value. This room has not heard of tools. Statuses are named
//! as MCP names those of tasks.

use std::{
    sync::Arc,
    time::{Duration, Instant},
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
    /// It ended with this result, which may be an error result.
    Done(Arc<Value>),
    /// It was cancelled before it ended.
    Cancelled,
}

/// Whose a job is: one client does not see another's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// The session that started it; none where requests belong to no session.
    pub session: Option<u64>,
    /// The profile that it was started under.
    pub profile: Option<String>,
}

impl Owner {
    fn shows(&self, other: &Owner) -> bool {
        self.profile == other.profile && (self.session.is_none() || self.session == other.session)
    }
}

/// One job.
#[derive(Debug)]
pub struct Job {
    /// Its handle.
    pub id: String,
    /// What it runs, for people.
    pub label: String,
    /// Whose it is.
    pub owner: Owner,
    /// When it started.
    pub started: Instant,
    /// Ends it.
    pub cancel: CancellationToken,
    status: watch::Sender<(Status, Option<Duration>)>,
}

impl Job {
    /// How it stands, and how long it took if it has ended.
    pub fn status(&self) -> (Status, Option<Duration>) {
        self.status.borrow().clone()
    }

    /// How long it has run, or ran, in milliseconds.
    pub fn elapsed_ms(&self) -> u64 {
        let elapsed = self.status.borrow().1.unwrap_or_else(|| self.started.elapsed());
        u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)
    }

    /// Waits at most `limit` for its end. `None`: it is still running.
    pub async fn wait(&self, limit: Duration) -> Option<Status> {
        let mut status = self.status.subscribe();
        let ended = status.wait_for(|(status, _)| !matches!(status, Status::Working));
        match tokio::time::timeout(limit, ended).await {
            Ok(Ok(ended)) => Some(ended.0.clone()),
            _ => None,
        }
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
    /// Takes over work that is running in a task of its own; a panic in it becomes a result that says
    /// so. `done` is called once it has ended, with the job.
    pub fn adopt(
        &self,
        label: String,
        owner: Owner,
        started: Instant,
        cancel: CancellationToken,
        running: JoinHandle<Value>,
        done: impl FnOnce(&Job) + Send + 'static,
    ) -> Result<Arc<Job>, Full> {
        if let Err(full) = self.make_room() {
            cancel.cancel();
            return Err(full);
        }
        let job = Arc::new(Job {
            id: format!("job-{}", &uuid::Uuid::new_v4().simple().to_string()[..12]),
            label,
            owner,
            started,
            cancel: cancel.clone(),
            status: watch::Sender::new((Status::Working, None)),
        });
        self.table.insert(job.id.clone(), job.clone());
        let own = job.clone();
        tokio::spawn(async move {
            let status = match running.await {
                Ok(_) if cancel.is_cancelled() => Status::Cancelled,
                Ok(value) => Status::Done(Arc::new(value)),
                Err(panic) => {
                    tracing::error!(job = %own.id, %panic, "a background call panicked");
                    Status::Done(Arc::new(panicked()))
                }
            };
            own.status.send_replace((status, Some(own.started.elapsed())));
            done(&own);
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
            .filter(|job| !matches!(job.status().0, Status::Working))
            .map(|job| (job.started, job.id.clone()))
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

    /// How many are running.
    pub fn running(&self) -> usize {
        self.table.iter().filter(|job| matches!(job.status().0, Status::Working)).count()
    }

    /// The jobs that `owner` may see, newest first.
    pub fn list(&self, owner: &Owner) -> Vec<Arc<Job>> {
        let seen = self.table.iter().filter(|job| job.owner.shows(owner));
        let mut all: Vec<Arc<Job>> = seen.map(|job| job.clone()).collect();
        all.sort_by(|a, b| b.started.cmp(&a.started).then(a.id.cmp(&b.id)));
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

/// A job as answers show it.
pub fn summary(job: &Job) -> Value {
    let state = match job.status().0 {
        Status::Working => "running",
        Status::Done(value) if value.get("isError") == Some(&Value::Bool(true)) => "failed",
        Status::Done(_) => "completed",
        Status::Cancelled => "cancelled",
    };
    json!({ "task_id": job.id, "state": state, "tool": job.label, "elapsed_ms": job.elapsed_ms() })
}
