//! What outlives a call: results that were too large to show, and calls in the background with their results.
//!
//! Both are in the store (`store/kept.rs`), which blocks; so does going through a large result. Both happen here, away from
//! the threads that answer.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use serde_json::{Map, Value, json};
use tokio::sync::OnceCell;

use super::{Gateway, session::Caller};
use crate::{
    fault::{Code, Fault},
    jobs::{Ended, How, Job},
    memory,
    results::{self, Body, Whole},
    select::SelectError,
    store::{Counts, JobRow, JobState, Kept, Limits, is_alive},
    template::{self, Filled, Named, Source},
};

/// How many kept jobs are looked at for those of earlier runs.
const LOOKED_AT: usize = 1_000;
/// From this size of a result on, in bytes, memory is given back to the system after it was handled.
const LARGE: usize = 4 << 20;
/// How long a large result may take to be written to its client.
const AFTERWARDS: Duration = Duration::from_secs(1);

pub(super) type KeptCell = OnceCell<Option<Arc<Kept>>>;

impl Gateway {
    /// The store, opened when it is first wanted: in memory where there is no folder for it, or none that can be used.
    async fn kept(&self) -> Result<Arc<Kept>, String> {
        let opened = self.kept.get_or_init(async || {
            let folder = self.state.clone();
            let own = &self.config().gateway;
            let limits = Limits { bytes: own.keep_results_bytes, age: own.keep_results_for };
            let opened = tokio::task::spawn_blocking(move || {
                if let Some(folder) = folder {
                    match Kept::open(&folder, limits) {
                        Ok(kept) => return Some(kept),
                        Err(error) => {
                            tracing::warn!(%error, "large results and tasks are kept in memory alone")
                        }
                    }
                }
                Kept::in_memory(limits)
                    .map_err(|error| tracing::error!(%error, "large results and tasks cannot be kept"))
                    .ok()
            });
            opened.await.ok().flatten().map(Arc::new)
        });
        opened.await.clone().ok_or_else(|| "there is nowhere to keep it; the log says why".into())
    }

    /// The answer to `gateway.fetch_result`.
    pub(super) async fn fetch(&self, caller: &Caller, query: Map<String, Value>) -> Result<Value, Fault> {
        let reference = query.get("ref").and_then(Value::as_str).unwrap_or_default();
        let whole = self.kept_whole(caller, reference).await?;
        let body = match query.get("select").and_then(Value::as_str) {
            None => whole.body,
            Some(filter) => {
                let selected = self.select(filter, whole).await;
                match selected.map_err(|error| results::bad_query(&query, error.to_string()))? {
                    Value::String(text) => Body::Text(text),
                    value => Body::Json(value.to_string()),
                }
            }
        };
        let budget = caller.limits.max_result_bytes / 2;
        blocking(move || results::read(body, &query, budget)).await?
    }

    /// What a jq filter makes of the value of a result.
    pub(super) async fn select(&self, filter: &str, whole: Whole) -> Result<Value, SelectError> {
        let mut failed = None;
        for reading in whole.readings(filter) {
            match self.selector.select(filter, reading).await {
                Ok(value) => return Ok(value),
                // What the first reading says is about the value that was shown.
                Err(error) => drop(failed.get_or_insert(error)),
            }
        }
        Err(failed.unwrap_or_else(|| SelectError::Failed(filter.into(), "there is no value".into())))
    }

    /// Passes a result on as it is if it fits into `budget` bytes; else keeps it and gives a preview with its reference.
    pub(super) async fn fit(&self, caller: &Caller, result: Value, size: usize, budget: usize) -> Value {
        if !results::must_be_shortened(&result, size, budget) {
            return result;
        }
        let kept = self.kept().await;
        let profile = caller.session.profile.clone();
        let work = tokio::task::spawn_blocking(move || {
            let reference = results::new_reference();
            let put = kept.and_then(|kept| {
                kept.put_result(&reference, profile.as_deref(), &result).map_err(|error| error.to_string())
            });
            if let Err(error) = &put {
                tracing::error!(%error, "a large result was not kept");
            }
            results::shorten(
                result,
                size,
                budget,
                put.as_ref().map(|_| reference.as_str()).map_err(String::as_str),
            )
        });
        work.await.unwrap_or_else(|_| crate::jobs::panicked())
    }

    /// Gives memory back to the system after a large result has gone out, or was read.
    pub(super) fn settle_memory(&self, bytes: usize) {
        if bytes >= LARGE {
            tokio::spawn(async {
                tokio::time::sleep(AFTERWARDS).await;
                let _ = tokio::task::spawn_blocking(memory::give_back).await;
            });
        }
    }

    /// Keeps a result for later calls; gives its reference.
    pub(super) async fn keep_whole(&self, caller: &Caller, result: Value) -> Result<String, String> {
        let kept = self.kept().await?;
        let profile = caller.session.profile.clone();
        let work = tokio::task::spawn_blocking(move || {
            let reference = results::new_reference();
            let put = kept.put_result(&reference, profile.as_deref(), &result);
            put.map(|_| reference).map_err(|error| error.to_string())
        });
        work.await.unwrap_or_else(|error| Err(error.to_string()))
    }

    /// The value of a kept result.
    async fn kept_whole(&self, caller: &Caller, reference: &str) -> Result<Whole, Fault> {
        let text = self.kept_text(caller, reference).await?;
        blocking(move || Whole::read(&text)).await
    }

    /// A kept result, as it was given.
    async fn kept_text(&self, caller: &Caller, id: &str) -> Result<String, Fault> {
        let gone = || {
            Fault::new(
                Code::NotFound,
                format!(
                    "No result is kept as `{id}`: it is too old, or the reference is wrong. Make the call again."
                ),
            )
        };
        let broken =
            |error: String| Fault::new(Code::Internal, format!("The result `{id}` cannot be read: {error}"));
        match self.jobs.get(id, &caller.owner()).map(|job| job.ended()) {
            Some(Some(Ended { value: Some(value), .. })) => return blocking(move || value.to_string()).await,
            Some(Some(_)) => {}
            Some(None) => {
                let message = format!("The task `{id}` is still running; its result is not there yet.");
                let wait = super::call::wait_for(id);
                return Err(Fault::new(Code::NotFound, message).next("execute_tool", wait));
            }
            None if self.jobs.knows(id) => return Err(gone()),
            None => {}
        }
        let kept = self.kept().await.map_err(broken)?;
        let (own, profile) = (id.to_string(), caller.session.profile.clone());
        let read = tokio::task::spawn_blocking(move || kept.text(&own, profile.as_deref())).await;
        match read {
            Ok(Ok(text)) => {
                self.settle_memory(text.as_ref().map_or(0, String::len));
                text.ok_or_else(gone)
            }
            Ok(Err(error)) => Err(broken(error.to_string())),
            Err(error) => Err(broken(error.to_string())),
        }
    }

    /// The result of a task that has ended, as the call itself would have given it: one that is too large is shown as a
    /// preview, whose reference is the task's own handle.
    pub async fn task_result(&self, caller: &Caller, id: &str) -> Result<Value, Fault> {
        let text = self.kept_text(caller, id).await?;
        let (id, budget) = (id.to_string(), caller.limits.max_result_bytes);
        blocking(move || {
            let result = serde_json::from_str(&text).map_err(|error| {
                Fault::new(Code::Internal, format!("The result of `{id}` cannot be read: {error}"))
            })?;
            let size = text.len();
            Ok(match results::must_be_shortened(&result, size, budget) {
                true => results::shorten(result, size, budget, Ok(&id)),
                false => result,
            })
        })
        .await?
    }

    /// The params with kept results in the place of `{{ref:ID.path}}`, if they name any. Other templates are not ours here.
    pub(super) async fn fill_references(
        &self,
        caller: &Caller,
        params: &Value,
    ) -> Result<Option<Filled>, Fault> {
        let references = self.references(caller, params).await?;
        if references.is_empty() {
            return Ok(None);
        }
        let filled = template::fill(params, &|name| reference(&references, name));
        filled.map(Some).map_err(|error| Fault::new(Code::NotFound, error.to_string()))
    }

    /// The kept results that templates in `params` name. Only what looks like one of our references is ours; other text in
    /// braces is somebody's own.
    pub(super) async fn references(
        &self,
        caller: &Caller,
        params: &Value,
    ) -> Result<BTreeMap<String, Arc<Source>>, Fault> {
        let mut found = BTreeMap::new();
        for id in template::references(params).into_iter().filter(|id| results::is_reference(id)) {
            let whole = self.kept_whole(caller, &id).await?;
            let source = blocking(move || whole.into_source()).await?;
            let source = source
                .map_err(|error| Fault::new(Code::Internal, format!("`{id}` cannot be read: {error}")))?;
            found.insert(id, Arc::new(source));
        }
        Ok(found)
    }

    /// Writes down that a job has begun.
    pub(super) async fn note_job(&self, job: Arc<Job>) {
        let Ok(kept) = self.kept().await else { return };
        let written = tokio::task::spawn_blocking(move || kept.put_job(&row(&job), None)).await;
        if let Ok(Err(error)) = written {
            tracing::warn!(%error, "a task is not in the store");
        }
    }

    /// Keeps what a job gave; gives it back if that fails.
    pub(super) async fn keep_job(&self, job: Arc<Job>, how: How, value: Value) -> Option<Value> {
        let Ok(kept) = self.kept().await else { return Some(value) };
        let work = tokio::task::spawn_blocking(move || {
            let ended_ms = unix_ms(SystemTime::now());
            let state = match how {
                How::Cancelled => JobState::Cancelled { ended_ms },
                How::Completed | How::Failed => JobState::Done { ended_ms, failed: how == How::Failed },
            };
            match kept.put_job(&JobRow { state, ..row(&job) }, Some(&value)) {
                Ok(_) => None,
                Err(error) => {
                    tracing::warn!(%error, job = %job.id, "the result of a task is kept in memory alone");
                    Some(value)
                }
            }
        });
        work.await.unwrap_or_default()
    }

    /// A job of an earlier run or of another gateway of this user, or one for which the table of jobs had no room any
    /// more; under the same profile.
    async fn task_row(&self, caller: &Caller, id: &str) -> Option<JobRow> {
        // One that is in the table and not shown is another client's.
        if self.jobs.knows(id) {
            return None;
        }
        let kept = self.kept().await.ok()?;
        let (own, profile) = (id.to_string(), caller.session.profile.clone());
        tokio::task::spawn_blocking(move || kept.job(&own, profile.as_deref())).await.ok()?.ok()?
    }

    /// A task, wherever it is known from.
    pub async fn known_task(&self, caller: &Caller, id: &str) -> Option<Known> {
        match self.jobs.get(id, &caller.owner()) {
            Some(job) => Some(job.into()),
            None => Some(self.known_row(self.task_row(caller, id).await?)),
        }
    }

    /// A job that is not in the table.
    fn known_row(&self, row: JobRow) -> Known {
        let running = self.runs(&row);
        let now = || unix_ms(SystemTime::now());
        let (how, until) = match row.state {
            JobState::Working if running => (None, now()),
            JobState::Working => (Some(How::Failed), now()),
            JobState::Done { ended_ms, failed: true } => (Some(How::Failed), ended_ms),
            JobState::Done { ended_ms, failed: false } => (Some(How::Completed), ended_ms),
            JobState::Cancelled { ended_ms } => (Some(How::Cancelled), ended_ms),
        };
        Known {
            how,
            lost: row.state == JobState::Working && !running,
            since: SystemTime::UNIX_EPOCH + Duration::from_millis(row.started_ms),
            elapsed_ms: until.saturating_sub(row.started_ms),
            progress: None,
            job: None,
            id: row.id,
            label: row.label,
        }
    }

    /// Jobs of gateways that have ended, newest first.
    pub(super) async fn earlier_tasks(&self, caller: &Caller, limit: usize) -> Vec<Known> {
        // Who has no session has no tasks of its own, and learns of no others.
        if caller.owner().session.is_none() {
            return Vec::new();
        }
        let Ok(kept) = self.kept().await else { return Vec::new() };
        let profile = caller.session.profile.clone();
        let rows = tokio::task::spawn_blocking(move || kept.jobs(profile.as_deref(), LOOKED_AT)).await;
        let rows = rows.ok().and_then(Result::ok).unwrap_or_default();
        rows.into_iter().filter(|row| !self.runs(row)).take(limit).map(|row| self.known_row(row)).collect()
    }

    /// Whether the gateway that a job belongs to is running. Process numbers come again: in a container it is always the
    /// same one.
    fn runs(&self, row: &JobRow) -> bool {
        match row.process == std::process::id() {
            true => row.started_ms >= unix_ms(self.since),
            false => is_alive(row.process),
        }
    }

    /// How many results and tasks are kept, and their size in bytes.
    pub async fn kept_counts(&self) -> Option<Counts> {
        let kept = self.kept.get()?.clone()?;
        tokio::task::spawn_blocking(move || kept.counts()).await.ok()?.ok()
    }
}

/// A task that is running or has ended, here or in an earlier run.
#[derive(Clone, Debug)]
pub struct Known {
    /// Its handle.
    pub id: String,
    /// What it runs, for people.
    pub label: String,
    /// How it ended; absent while it runs.
    pub how: Option<How>,
    /// Whether its gateway ended before it.
    pub lost: bool,
    /// When it began.
    pub since: SystemTime,
    /// How long it has run, or ran, in milliseconds.
    pub elapsed_ms: u64,
    /// How far it has come.
    pub progress: Option<Value>,
    /// The job itself, if it is one of this run.
    pub job: Option<Arc<Job>>,
}

impl Known {
    /// The task as answers show it.
    pub fn summary(&self) -> Value {
        let state = match self.how {
            _ if self.lost => "lost",
            None => "running",
            Some(how) => how.as_str(),
        };
        let mut summary =
            json!({ "task_id": self.id, "state": state, "tool": self.label, "elapsed_ms": self.elapsed_ms });
        if let Some(progress) = &self.progress {
            summary["progress"] = progress.clone();
        }
        if self.lost {
            summary["message"] =
                json!("The gateway that ran it ended before it did. Whether it had an effect is not known.");
        }
        summary
    }
}

impl From<Arc<Job>> for Known {
    fn from(job: Arc<Job>) -> Self {
        Self {
            id: job.id.clone(),
            label: job.label.clone(),
            how: job.ended().map(|ended| ended.how),
            lost: false,
            since: job.since,
            elapsed_ms: job.elapsed_ms(),
            progress: job.progress(),
            job: Some(job),
        }
    }
}

/// What a name in a template stands for, of the kept results.
pub(super) fn reference(references: &BTreeMap<String, Arc<Source>>, name: &str) -> Named {
    match name.strip_prefix("ref:").and_then(|id| references.get(id)) {
        Some(value) => Named::Value(value.clone()),
        None => Named::Foreign,
    }
}

/// Does what takes long away from the threads that answer.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Fault> {
    let unread =
        |_| Fault::new(Code::Internal, "Nonet failed while it read a kept result; the log has the reason.");
    tokio::task::spawn_blocking(work).await.map_err(unread)
}

fn row(job: &Job) -> JobRow {
    JobRow {
        id: job.id.clone(),
        label: job.label.clone(),
        profile: job.owner.profile.clone(),
        state: JobState::Working,
        process: std::process::id(),
        started_ms: unix_ms(job.since),
        bytes: 0,
    }
}

/// Milliseconds since 1970.
fn unix_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
