//! Calls that continue in the background: a bounded table of running and finished jobs, and the store's jobs
//! of earlier runs and other gateways.
//!
//! A job is a future that yields a `CallToolResult`. This room knows nothing about tools. Clients see a job
//! as a task, MCP's word for it.

mod of_everybody;
mod summary;
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use dashmap::DashMap;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::{sync::watch, task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;

use nonet_api::work::{TaskState, TaskSummary};
use nonet_auth::Owner;
use summary::stored;

use nonet_base::clock::{Clock, unix_ms};
use nonet_store::{JobRow, JobState, Lifespan, Share, Store, StoreError};
use nonet_text::{
    fault::{Fault, FaultCode},
    results::CallResult,
};

use crate::quotas::{Account, QuotaExceeded, QuotaPlace};

/// How many jobs the table holds. Beyond that, finished jobs are dropped: the oldest of the client with the
/// most. If this many jobs are running, no new work may begin.
const MAX_JOBS: usize = 2_000;
/// How long an answer with a handle waits for the store.
const RECORD_WAIT: Duration = Duration::from_secs(5);
/// How long until a task of another gateway is checked again, at first and at most.
const FIRST_LOOK: Duration = Duration::from_millis(100);
const LAST_LOOK: Duration = Duration::from_secs(1);
/// How many jobs of the store are read to find those of ended gateways.
const MAX_EARLIER: usize = 1_000;

/// The end of a job.
#[derive(Clone, Debug)]
pub struct JobEnd {
    /// Completed, failed or cancelled.
    pub state: TaskState,
    /// The time from the start of the work to its end, without storing the result.
    pub took: Duration,
    /// The result, unless the store has it.
    pub value: Option<Arc<Value>>,
}

/// The owner of a job. A client sees only its own jobs, with one exception: clients of this machine's user
/// may use each other's handles, and so may the sessions of a person who signed in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct JobOwner {
    /// The session that started the job; `None` if requests belong to no session.
    pub session: Option<u64>,
    /// The profile under which the job was started, and the person who had signed in.
    pub owner: Owner,
    /// Whether its client belongs to this machine's user. Such a client may have restarted since.
    pub local: bool,
    /// The account whose quotas the job uses.
    pub account: Arc<Account>,
}

impl JobOwner {
    /// Returns the owner as the store knows it.
    pub fn key(&self) -> &str {
        self.owner.as_str()
    }

    /// Returns the part of the store that the owner may fill.
    pub fn share(&self) -> Share {
        Share { of: self.account.name().clone(), bytes: self.account.quotas().kept_bytes }
    }

    fn shows(&self, other: &JobOwner) -> bool {
        let known = self.session.is_none() || self.session == other.session || self.owner.person().is_some();
        self.owner == other.owner && (known || self.local && other.local)
    }
}

/// Reports the progress of a job, if it is known.
pub type JobProgress = Arc<dyn Fn() -> Option<Value> + Send + Sync>;

/// The questions of a job, for a client that answers them by its task.
pub struct JobQuestions {
    /// The number of the call that asks.
    pub call: u64,
    /// Whether the client's user is being asked.
    pub is_asked: Arc<dyn Fn() -> bool + Send + Sync>,
}

/// The data that a job starts with.
pub struct JobStart {
    /// What runs, for people.
    pub label: String,
    /// The client that may see the job, and whose quotas it uses.
    pub owner: JobOwner,
    /// When the work began, which may be long before it became a job.
    pub began: Instant,
    /// Cancels the work. If it is cancelled, the job ends as cancelled, whatever the result.
    pub cancel: CancellationToken,
    /// Reports the progress. Dropped when the job ends.
    pub progress: JobProgress,
    /// Its place in the owner's quota, held until the job ends.
    pub place: Option<QuotaPlace>,
}

/// A call in the background, running or ended. For one that only the store knows, see [`TaskSummary`].
pub struct Job {
    /// The handle that clients use: `job-` and 12 hex digits.
    pub id: String,
    /// Cancels the work. If it is cancelled, the job ends as cancelled, whatever the result.
    pub cancel: CancellationToken,
    label: String,
    owner: JobOwner,
    began: Instant,
    since: SystemTime,
    /// `None` once the job has ended.
    progress: Mutex<Option<JobProgress>>,
    /// Its questions, if its client can be asked.
    questions: OnceLock<JobQuestions>,
    /// How many calls wait for its result.
    waiting: AtomicUsize,
    /// Whether the store has recorded or refused its start.
    recorded: watch::Sender<bool>,
    /// Whether the last state ends with this gateway, because the store keeps it only in memory or not at
    /// all.
    is_passing: AtomicBool,
    /// `None` while the job is running.
    end: watch::Sender<Option<JobEnd>>,
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("id", &self.id).field("label", &self.label).finish_non_exhaustive()
    }
}

impl Job {
    /// Returns how the job ended, if it has.
    pub fn end(&self) -> Option<JobEnd> {
        self.end.borrow().clone()
    }

    /// Sets how its client is asked.
    pub fn asks_by(&self, questions: JobQuestions) {
        let _ = self.questions.set(questions);
    }

    /// Returns its questions, if it runs and its client can be asked.
    pub fn questions(&self) -> Option<&JobQuestions> {
        self.questions.get().filter(|_| self.is_running())
    }

    /// Waits up to `limit` for the end. Returns `None` if the job is still running.
    pub async fn wait(&self, limit: Duration) -> Option<JobEnd> {
        let _waiting = WaiterCount::new(&self.waiting);
        let mut end = self.end.subscribe();
        let _ = tokio::time::timeout(limit, end.wait_for(Option::is_some)).await;
        self.end()
    }

    /// Waits until the store has the job, so that a client with its handle finds it even if this gateway is
    /// killed.
    pub async fn recorded(&self) {
        let mut recorded = self.recorded.subscribe();
        if tokio::time::timeout(RECORD_WAIT, recorded.wait_for(|recorded| *recorded)).await.is_err() {
            tracing::warn!(job = %self.id, "the store is slow: a task is reported before it is stored");
        }
    }

    /// Records the outcome of a write.
    fn kept(&self, outcome: &Result<Lifespan, StoreError>) {
        self.is_passing.store(!matches!(outcome, Ok(Lifespan::AsConfigured)), Ordering::Release);
    }

    /// Whether a call waits for the result, and so learns about the end.
    pub fn is_awaited(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    fn is_running(&self) -> bool {
        self.end.borrow().is_none()
    }

    fn row(&self, state: JobState) -> JobRow {
        JobRow {
            id: self.id.clone(),
            owner: self.owner.key().into(),
            label: self.label.clone(),
            state,
            started_ms: unix_ms(self.since),
            leased: true,
        }
    }

    /// Ends the job with the outcome of its work. The job counts as ended only when its result is in the
    /// store, so a client that learns about the end finds the result.
    async fn finish(&self, value: CallResult, store: &dyn Store, clock: &Clock) {
        let took = self.began.elapsed();
        let ended_ms = clock.unix_ms();
        let (state, stored) = match value.is_error() {
            _ if self.cancel.is_cancelled() => (TaskState::Cancelled, JobState::Cancelled { ended_ms }),
            true => (TaskState::Failed, JobState::Done { ended_ms, failed: true }),
            false => (TaskState::Completed, JobState::Done { ended_ms, failed: false }),
        };
        // The closure may hold on to results.
        *self.progress.lock() = None;
        let value = Arc::new(value.into_tree().await);
        let kept = store.put_job(self.row(stored), self.owner.share(), Some(value.clone())).await;
        self.kept(&kept);
        let value = match kept {
            Ok(_) => None,
            Err(error) => {
                tracing::warn!(%error, job = %self.id, "the result of a task is kept in memory only");
                Some(value)
            }
        };
        self.end.send_replace(Some(JobEnd { state, took, value }));
    }
}

/// Counts a waiting call.
struct WaiterCount<'a>(&'a AtomicUsize);

impl<'a> WaiterCount<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count)
    }
}

impl Drop for WaiterCount<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The table of jobs, with the store behind it. A handle is valid at every gateway that shares the store.
#[derive(Debug)]
pub struct Jobs {
    store: Arc<dyn Store>,
    clock: Clock,
    table: DashMap<String, Arc<Job>>,
    /// How many jobs in the table are running.
    running: Arc<AtomicUsize>,
    most: usize,
}

impl Jobs {
    /// Creates an empty table over a store.
    pub fn new(store: Arc<dyn Store>, clock: Clock) -> Self {
        Self { store, clock, table: DashMap::new(), running: Arc::default(), most: MAX_JOBS }
    }

    /// Creates a handle for a job that is about to start.
    pub fn new_id() -> String {
        format!("job-{}", &uuid::Uuid::new_v4().simple().to_string()[..12])
    }

    /// Takes over work that runs in its own task. A panic in the work becomes an error result. Calls
    /// `announce` once the job has ended. Work in progress is never refused: [`Jobs::has_room`] says whether
    /// new work may begin.
    pub fn adopt(
        &self,
        start: JobStart,
        running: JoinHandle<CallResult>,
        announce: impl FnOnce(&Arc<Job>) + Send + 'static,
    ) -> Arc<Job> {
        self.adopt_as(Self::new_id(), start, running, announce)
    }

    /// Does the same under an existing handle.
    pub fn adopt_as(
        &self,
        id: String,
        start: JobStart,
        running: JoinHandle<CallResult>,
        announce: impl FnOnce(&Arc<Job>) + Send + 'static,
    ) -> Arc<Job> {
        self.make_room();
        let job = Arc::new(Job {
            id,
            label: start.label,
            owner: start.owner,
            began: start.began,
            since: self.clock.now() - start.began.elapsed(),
            cancel: start.cancel,
            progress: Mutex::new(Some(start.progress)),
            questions: OnceLock::new(),
            waiting: AtomicUsize::new(0),
            recorded: watch::Sender::new(false),
            is_passing: AtomicBool::new(false),
            end: watch::Sender::new(None),
        });
        self.table.insert(job.id.clone(), job.clone());
        self.running.fetch_add(1, Ordering::AcqRel);
        let (own, store, clock) = (job.clone(), self.store.clone(), self.clock.clone());
        let (count, place) = (self.running.clone(), start.place);
        tokio::spawn(async move {
            let begun = async {
                let begun = store.put_job(own.row(JobState::Working), own.owner.share(), None).await;
                own.kept(&begun);
                if let Err(error) = begun {
                    tracing::warn!(%error, job = %own.id, "a task could not be stored");
                }
                own.recorded.send_replace(true);
            };
            let ((), ended) = tokio::join!(begun, running);
            let value = ended.unwrap_or_else(|panic| {
                tracing::error!(job = %own.id, %panic, "a background call panicked");
                panicked().into()
            });
            count.fetch_sub(1, Ordering::AcqRel);
            drop(place);
            own.finish(value, &*store, &clock).await;
            announce(&own);
        });
        job
    }

    /// Whether new work may begin, including work that may become a job later.
    pub fn has_room(&self) -> Result<(), QuotaExceeded> {
        match self.running.load(Ordering::Acquire) >= self.most {
            true => Err(QuotaExceeded::Gateway(self.most)),
            false => Ok(()),
        }
    }

    /// Makes room for one more job by dropping finished ones: the oldest of the client with the most.
    fn make_room(&self) {
        if self.table.len() < self.most {
            return;
        }
        let mut ended: HashMap<u64, Vec<(Instant, String)>> = HashMap::new();
        for job in self.table.iter().filter(|job| !job.is_running()) {
            ended.entry(job.owner.account.id).or_default().push((job.began, job.id.clone()));
        }
        let mut left = (self.most / 10).max(1);
        while left > 0
            && let Some(most) =
                ended.values_mut().max_by_key(|jobs| jobs.len()).filter(|jobs| !jobs.is_empty())
        {
            most.sort();
            let going = most.len().div_ceil(2).min(left);
            for (_, id) in most.drain(..going) {
                self.table.remove(&id);
            }
            left -= going;
        }
    }

    /// Returns the job with this handle, if it is in the table and `owner` may see it.
    pub fn get(&self, id: &str, owner: &JobOwner) -> Option<Arc<Job>> {
        self.table.get(id).map(|job| job.clone()).filter(|job| job.owner.shows(owner))
    }

    /// Whether the table has a job with this handle, regardless of its owner.
    pub fn knows(&self, id: &str) -> bool {
        self.table.contains_key(id)
    }

    /// Returns the task with this handle, if `owner` may see it: a job in the table, or a job that only the
    /// store has, because it is from an earlier run or another gateway, or was dropped from the table.
    ///
    /// # Errors
    ///
    /// If the store, which may have it, cannot be read.
    pub async fn find(&self, id: &str, owner: &JobOwner) -> Result<Option<TaskSummary>, StoreError> {
        if let Some(job) = self.get(id, owner) {
            return Ok(Some(job.summary()));
        }
        // A hidden job in the table belongs to another client.
        if self.knows(id) {
            return Ok(None);
        }
        let row = self.store.job(id, owner.key()).await?;
        Ok(row.map(|row| stored(row, self.clock.unix_ms())))
    }

    /// Waits up to `limit` for the end of a task that `owner` may see. A task of another gateway is polled.
    pub async fn wait(&self, id: &str, owner: &JobOwner, limit: Duration) {
        if let Some(job) = self.get(id, owner) {
            job.wait(limit).await;
            return;
        }
        let until = Instant::now() + limit;
        let mut pause = FIRST_LOOK;
        let is_open = |found: Result<Option<TaskSummary>, StoreError>| match found {
            Ok(task) => task.is_some_and(|task| task.state == TaskState::Running),
            Err(_) => true,
        };
        while is_open(self.find(id, owner).await) && Instant::now() < until {
            tokio::time::sleep_until((Instant::now() + pause).min(until)).await;
            pause = (pause * 2).min(LAST_LOOK);
        }
    }

    /// Cancels a task that `owner` may see, and waits up to `limit` for its end. If the task runs on another
    /// replica, asks that replica to cancel it.
    pub async fn cancel(&self, id: &str, owner: &JobOwner, limit: Duration) {
        if let Some(job) = self.get(id, owner) {
            job.cancel.cancel();
        } else if !self.knows(id)
            && let Err(error) = self.store.ask_to_cancel(id, owner.key()).await
        {
            tracing::warn!(%error, "a task of another replica was not cancelled");
        }
        self.wait(id, owner, limit).await;
    }

    /// Cancels the jobs that other replicas asked to cancel.
    pub async fn cancel_for_others(&self) {
        if self.running.load(Ordering::Acquire) == 0 {
            return;
        }
        // The warning came when Redis went away.
        for id in self.store.to_cancel().await.unwrap_or_default() {
            if let Some(job) = self.table.get(&id) {
                job.cancel.cancel();
            }
        }
    }

    /// Returns how many jobs are running.
    pub fn running(&self) -> usize {
        self.table.iter().filter(|job| job.is_running()).count()
    }

    /// Returns all jobs in the table, newest first: for the user of the machine, not for clients.
    pub fn all(&self) -> Vec<Arc<Job>> {
        self.newest_first(|_| true)
    }

    /// Returns the jobs of a session, newest first. Returns none without a session: a client that knows a
    /// handle may use it, but must not learn about other jobs.
    pub fn list(&self, owner: &JobOwner) -> Vec<Arc<Job>> {
        let is_same = |job: &Job| job.owner.session == owner.session && job.owner.owner == owner.owner;
        self.newest_first(|job| owner.session.is_some() && is_same(job))
    }

    fn newest_first(&self, wanted: impl Fn(&Job) -> bool) -> Vec<Arc<Job>> {
        let mut jobs: Vec<Arc<Job>> =
            self.table.iter().filter(|job| wanted(job)).map(|job| job.clone()).collect();
        jobs.sort_by(|a, b| b.began.cmp(&a.began).then(a.id.cmp(&b.id)));
        jobs
    }

    /// Returns up to `limit` tasks of ended gateways, newest first; none without a session, as in
    /// [`Jobs::list`].
    pub async fn earlier(&self, owner: &JobOwner, limit: usize) -> Vec<TaskSummary> {
        if owner.session.is_none() {
            return Vec::new();
        }
        let rows = self.store.jobs(owner.key(), MAX_EARLIER).await.unwrap_or_default();
        let earlier = rows.into_iter().filter(|row| !row.leased).take(limit);
        earlier.map(|row| stored(row, self.clock.unix_ms())).collect()
    }
}

/// Builds the result of work that panicked.
pub fn panicked() -> Value {
    let message =
        "Nonet itself failed during this call; the log has the reason. Other calls are not affected.";
    Fault::new(FaultCode::Internal, message).to_result()
}
