//! Results that were too large to show, and jobs with their results, in Redis. The keys are described in `kept.lua`.

use std::{sync::Arc, time::Duration};

use nonet_base::clock::millis;
use redis::{ScriptInvocation, pipe};
use serde_json::Value;

use super::{
    super::{JobRow, JobState, KeptCounts, KeptDb, KeptRow, Retention, Share, StoreError},
    link::{Methods, RedisLink, VERSION, newer_is_there, script},
    presence::Lease,
    values::{MOST_BYTES, RedisValues},
};

static METHODS: Methods = Methods::new(|| script(include_str!("kept.lua")));

/// The maximum number of entries. Beyond it, as beyond the limit of bytes, the oldest are removed first.
const MOST_ENTRIES: usize = 10_000;
/// The longest time that anything is kept.
const LONGEST_AGE: Duration = Duration::from_secs(400 * 24 * 3600);
/// How much longer a value lives than its entry.
const DAY: Duration = Duration::from_secs(24 * 3600);
/// How many times a value is read again if it is replaced meanwhile.
const READS: usize = 3;

/// A result or a job to store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NewEntry {
    pub id: String,
    pub owner: String,
    pub job: Option<JobRow>,
}

impl NewEntry {
    /// Stores it in memory instead.
    pub(super) fn put_into(
        &self,
        db: &KeptDb,
        share: &Share,
        value: Option<&Value>,
    ) -> Result<u64, StoreError> {
        match (&self.job, value) {
            (Some(job), value) => db.put_job(job, share, value),
            (None, Some(value)) => db.put_result(&self.id, &self.owner, share, value),
            (None, None) => Ok(0),
        }
    }
}

/// The entries of a store.
#[derive(Debug)]
pub(super) struct KeptKeys {
    link: Arc<RedisLink>,
    base: Arc<str>,
    lease: Arc<Lease>,
    values: RedisValues,
    retention: Retention,
}

impl KeptKeys {
    pub(super) fn new(
        link: Arc<RedisLink>,
        base: Arc<str>,
        prefix: &str,
        lease: Arc<Lease>,
        retention: Retention,
    ) -> Self {
        let retention = Retention { age: retention.age.min(LONGEST_AGE), ..retention };
        Self { values: RedisValues::new(link.clone(), prefix), link, base, lease, retention }
    }

    fn call(&self, method: &str) -> ScriptInvocation<'static> {
        let mut call = METHODS.call(&self.base, method);
        self.lease.sign(&mut call);
        call.arg(millis(self.retention.age));
        call
    }

    /// Stores an entry with its value, which is empty for no value, and removes entries to make room.
    pub(super) async fn put(&self, entry: &NewEntry, share: &Share, value: &[u8]) -> Result<(), StoreError> {
        let name = match value {
            [] => String::new(),
            value => self.values.write(value, self.retention.age + DAY).await?,
        };
        let (label, state, started_ms, ended_ms) = match &entry.job {
            Some(job) => {
                let (state, ended_ms) = words(job.state);
                (&*job.label, state, job.started_ms, ended_ms)
            }
            None => ("", "done", 0, Some(0)),
        };
        let mut call = self.call("put");
        call.arg(&entry.id).arg(&entry.owner).arg(label).arg(u8::from(entry.job.is_some()));
        call.arg(state).arg(started_ms).arg(ended_ms.map_or_else(String::new, |ms| ms.to_string()));
        call.arg(value.len()).arg(&name).arg(&*share.of).arg(share.bytes);
        call.arg(self.retention.bytes).arg(MOST_ENTRIES);
        match self.link.run(&call).await {
            Ok(gone) => {
                self.remove(gone).await;
                Ok(())
            }
            // It may have been stored in spite of the error. If not, its value expires by itself.
            Err(error) => Err(error),
        }
    }

    async fn remove(&self, gone: Vec<(String, usize)>) {
        for (name, bytes) in gone {
            self.values.remove(&name, bytes).await;
        }
    }

    /// Returns the value of an entry as compact JSON.
    pub(super) async fn text(&self, id: &str, owner: &str) -> Result<Option<String>, StoreError> {
        let mut earlier = String::new();
        for _ in 0..READS {
            let key = format!("{}entry:{id}", self.base);
            let fields = ["v", "owner", "bytes", "value"];
            let (mut found,): (Vec<Option<Vec<u8>>>,) = self.link.send(pipe().hmget(key, &fields)).await?;
            let mut text = || String::from_utf8(found.pop()??).ok();
            let (name, bytes, of, version) = (text(), text(), text(), text());
            if version.as_deref().is_some_and(|version| version != VERSION) {
                newer_is_there();
            }
            let (Some(VERSION), Some(name)) = (version.as_deref(), name) else { return Ok(None) };
            let bytes = bytes.and_then(|bytes| bytes.parse().ok()).unwrap_or(0);
            if of.as_deref() != Some(owner) || name.is_empty() || name == earlier || bytes > MOST_BYTES {
                return Ok(None);
            }
            if let Some(value) = self.values.read(&name, bytes).await? {
                let unreadable = |error: &_| tracing::warn!(id, %error, "a kept value cannot be read");
                return Ok(String::from_utf8(value).inspect_err(unreadable).ok());
            }
            // The value was removed or replaced.
            earlier = name;
        }
        Ok(None)
    }

    /// Returns the job with this handle.
    pub(super) async fn job(&self, id: &str, owner: &str) -> Result<Option<JobRow>, StoreError> {
        let mut call = self.call("job");
        call.arg(id).arg(owner);
        Ok(self.read(&call).await?.pop())
    }

    /// Returns at most `limit` jobs, latest start first.
    pub(super) async fn jobs(&self, owner: &str, limit: usize) -> Result<Vec<JobRow>, StoreError> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        let mut call = self.call("jobs");
        call.arg(owner).arg(limit.min(MOST_ENTRIES));
        self.read(&call).await
    }

    /// Returns at most `limit` results of all owners, latest first.
    pub(super) async fn results(&self, limit: usize) -> Result<Vec<KeptRow>, StoreError> {
        let mut call = self.call("results");
        call.arg(limit.min(MOST_ENTRIES));
        let rows: Vec<(String, String, u64, f64)> = self.link.run(&call).await?;
        let shown = |(id, owner, bytes, at_ms): (String, String, u64, f64)| KeptRow {
            id,
            owner,
            bytes,
            at_ms: at_ms.max(0.0) as u64,
        };
        Ok(rows.into_iter().map(shown).collect())
    }

    /// Removes an owner's ended entry. Returns false if there is none.
    pub(super) async fn remove_ended(&self, id: &str, owner: &str) -> Result<bool, StoreError> {
        let mut call = self.call("remove_ended");
        call.arg(id).arg(owner);
        let (found, gone): (u8, Vec<(String, usize)>) = self.link.run(&call).await?;
        self.remove(gone).await;
        Ok(found == 1)
    }

    /// Asks the gateway that runs a job to cancel it.
    pub(super) async fn ask_to_cancel(&self, id: &str, owner: &str) -> Result<(), StoreError> {
        let mut call = self.call("ask_to_cancel");
        call.arg(id).arg(owner);
        self.link.run(&call).await
    }

    /// Returns this gateway's jobs that others want cancelled, each once.
    pub(super) async fn to_cancel(&self) -> Result<Vec<String>, StoreError> {
        self.link.run(&self.call("to_cancel")).await
    }

    async fn read(&self, call: &ScriptInvocation<'_>) -> Result<Vec<JobRow>, StoreError> {
        let rows: Vec<Vec<Vec<u8>>> = self.link.run(call).await?;
        Ok(rows.into_iter().filter_map(job_of).collect())
    }

    /// Returns how much is stored, for all owners.
    pub(super) async fn counts(&self) -> Result<KeptCounts, StoreError> {
        let (entries, bytes) = self.link.run(&self.call("counts")).await?;
        Ok(KeptCounts { entries, bytes })
    }

    /// Removes expired entries, and entries beyond the limits.
    pub(super) async fn tidy(&self) -> Result<(), StoreError> {
        let mut call = self.call("tidy");
        call.arg(self.retention.bytes).arg(MOST_ENTRIES);
        let gone = self.link.run(&call).await?;
        self.remove(gone).await;
        Ok(())
    }
}

/// Returns the stored name of a state, and when the state was reached.
fn words(state: JobState) -> (&'static str, Option<u64>) {
    match state {
        JobState::Working => ("working", None),
        JobState::Done { ended_ms, failed: false } => ("done", Some(ended_ms)),
        JobState::Done { ended_ms, failed: true } => ("failed", Some(ended_ms)),
        JobState::Cancelled { ended_ms } => ("cancelled", Some(ended_ms)),
    }
}

/// Returns the job of a row; `None` if the row is invalid.
fn job_of(row: Vec<Vec<u8>>) -> Option<JobRow> {
    let row: Vec<String> = row.into_iter().map(String::from_utf8).collect::<Result<_, _>>().ok()?;
    let [id, owner, label, state, started_ms, ended_ms, leased] = <[String; 7]>::try_from(row).ok()?;
    let ended = || ended_ms.parse().ok();
    let state = match state.as_str() {
        "working" => JobState::Working,
        "done" => JobState::Done { ended_ms: ended()?, failed: false },
        "failed" => JobState::Done { ended_ms: ended()?, failed: true },
        "cancelled" => JobState::Cancelled { ended_ms: ended()? },
        _ => return None,
    };
    Some(JobRow { id, owner, label, state, started_ms: started_ms.parse().ok()?, leased: leased == "1" })
}
