//! Work that people and models leave for later, in Redis. The keys and the methods are described in `records.lua`.

use std::{collections::BTreeMap, sync::Arc};

use redis::ScriptInvocation;

use super::{
    super::{Agenda, FactVector, NewRecord, Record, RecordKind, RecordQuota, StoreError},
    link::{Methods, RedisLink, newer_is_there, script},
    presence::Lease,
};

static METHODS: Methods = Methods::new(|| script(include_str!("records.lua")));

/// How many arguments of one call are given as a list: Lua accepts a few thousand.
const AT_ONCE: usize = 500;

/// The records of a store.
#[derive(Debug)]
pub(super) struct RecordKeys {
    link: Arc<RedisLink>,
    base: Arc<str>,
    lease: Arc<Lease>,
}

/// Records as a script returns them: the number of skipped newer ones, and the rest by field.
type Rows = (u64, Vec<Vec<Vec<u8>>>);

impl RecordKeys {
    pub(super) fn new(link: Arc<RedisLink>, base: Arc<str>, lease: Arc<Lease>) -> Self {
        Self { link, base, lease }
    }

    fn call(&self, method: &str) -> ScriptInvocation<'static> {
        let mut call = METHODS.call(&self.base, method);
        self.lease.sign(&mut call);
        call
    }

    fn of_owner(&self, method: &str, kind: RecordKind, owner: &str) -> ScriptInvocation<'static> {
        let mut call = self.call(method);
        call.arg(kind.as_str()).arg(owner);
        call
    }

    /// Returns a method call for a record as it was read.
    fn of_record(&self, method: &str, record: &Record) -> ScriptInvocation<'static> {
        let mut call = self.of_owner(method, record.kind, &record.owner);
        call.arg(&record.id).arg(record.revision);
        call
    }

    /// See [`Records::put`](super::Records::put).
    pub(super) async fn put(
        &self,
        record: &NewRecord,
        most: RecordQuota,
    ) -> Result<Option<usize>, StoreError> {
        let (how, most) = match most {
            RecordQuota::Refuse(most) => ("refuse", most),
            RecordQuota::DropOldest(most) => ("drop", most),
        };
        let mut call = self.of_owner("put", record.kind, &record.owner);
        call.arg(&record.id).arg(record.body.to_string()).arg(time(record.due_ms)).arg(u8::from(record.held));
        call.arg(how).arg(most);
        let dropped: i64 = self.link.run(&call).await?;
        Ok(usize::try_from(dropped).ok())
    }

    /// Returns the record of an owner with this id.
    pub(super) async fn get(
        &self,
        kind: RecordKind,
        owner: &str,
        id: &str,
    ) -> Result<Option<Record>, StoreError> {
        let mut call = self.of_owner("get", kind, owner);
        call.arg(id);
        Ok(self.read(&call).await?.pop())
    }

    /// Returns all records of an owner, oldest first.
    pub(super) async fn all(&self, kind: RecordKind, owner: &str) -> Result<Vec<Record>, StoreError> {
        self.read(&self.of_owner("all", kind, owner)).await
    }

    /// Returns all records of a kind, oldest first.
    pub(super) async fn of_kind(&self, kind: RecordKind) -> Result<Vec<Record>, StoreError> {
        let mut call = self.call("of_kind");
        call.arg(kind.as_str());
        self.read(&call).await
    }

    /// See [`Records::change`](super::Records::change).
    pub(super) async fn change(&self, record: &Record) -> Result<bool, StoreError> {
        let mut call = self.of_record("change", record);
        call.arg(record.body.to_string()).arg(time(record.due_ms));
        self.link.run(&call).await
    }

    /// See [`Records::remove`](super::Records::remove).
    pub(super) async fn remove(&self, record: &Record) -> Result<bool, StoreError> {
        self.link.run(&self.of_record("remove", record)).await
    }

    /// See [`Records::hold`](super::Records::hold).
    pub(super) async fn hold(&self, record: &Record) -> Result<bool, StoreError> {
        self.link.run(&self.of_record("hold", record)).await
    }

    /// Removes a record and returns it, to one caller only.
    pub(super) async fn take(
        &self,
        kind: RecordKind,
        owner: &str,
        id: &str,
    ) -> Result<Option<Record>, StoreError> {
        let mut call = self.of_owner("take", kind, owner);
        call.arg(id);
        Ok(self.read(&call).await?.pop())
    }

    /// See [`Records::drop_old`](super::Records::drop_old).
    pub(super) async fn drop_old(
        &self,
        kind: RecordKind,
        owner: &str,
        before_ms: u64,
    ) -> Result<usize, StoreError> {
        let mut call = self.of_owner("drop_old", kind, owner);
        call.arg(before_ms);
        self.link.run(&call).await
    }

    /// Returns how many records of a kind an owner has.
    pub(super) async fn count_of(&self, kind: RecordKind, owner: &str) -> Result<usize, StoreError> {
        self.link.run(&self.of_owner("count_of", kind, owner)).await
    }

    /// See [`Records::due`](super::Records::due).
    pub(super) async fn due(&self, now_ms: u64, kinds: &[RecordKind]) -> Result<Vec<Record>, StoreError> {
        let mut call = self.call("due");
        call.arg(now_ms).arg(names(kinds));
        self.read(&call).await
    }

    /// See [`Records::agenda`](super::Records::agenda).
    pub(super) async fn agenda(&self, kinds: &[RecordKind]) -> Result<Option<Agenda>, StoreError> {
        let mut call = self.call("agenda");
        call.arg(names(kinds));
        let Some(list) = self.link.run::<Option<Vec<String>>>(&call).await? else {
            return Ok(None);
        };
        let next_due_ms = list.first().and_then(|next| next.parse().ok());
        let counts = list.get(1..).unwrap_or_default().as_chunks().0.iter();
        let notices: BTreeMap<String, usize> =
            counts.filter_map(|[owner, count]| Some((owner.clone(), count.parse().ok()?))).collect();
        Ok(Some(Agenda { next_due_ms, notices }))
    }

    /// See [`Records::claim_free`](super::Records::claim_free).
    pub(super) async fn claim_free(
        &self,
        kind: RecordKind,
        owner: &str,
        most: usize,
    ) -> Result<Vec<Record>, StoreError> {
        let mut call = self.of_owner("claim_free", kind, owner);
        call.arg(most);
        self.read(&call).await
    }

    /// Releases records that this gateway holds.
    pub(super) async fn free(&self, kind: RecordKind, owner: &str, ids: &[String]) -> Result<(), StoreError> {
        for some in ids.chunks(AT_ONCE) {
            let mut call = self.of_owner("free", kind, owner);
            call.arg(some);
            self.link.run::<()>(&call).await?;
        }
        Ok(())
    }

    /// See [`Records::changes`](super::Records::changes).
    pub(super) async fn changes(&self, owner: &str) -> Result<Option<u64>, StoreError> {
        let mut call = self.call("changes");
        call.arg(owner);
        self.link.run(&call).await
    }

    /// See [`Records::vectors`](super::Records::vectors).
    pub(super) async fn vectors(&self, owner: &str, model: &str) -> Result<Vec<FactVector>, StoreError> {
        let mut call = self.call("vectors");
        call.arg(owner).arg(model);
        let rows: Vec<(String, u64, Vec<u8>)> = self.link.run(&call).await?;
        let vector =
            |bytes: &[u8]| bytes.as_chunks().0.iter().map(|number| f32::from_le_bytes(*number)).collect();
        Ok(rows
            .into_iter()
            .map(|(id, revision, bytes)| FactVector { id, revision, vector: vector(&bytes) })
            .collect())
    }

    /// See [`Records::put_vectors`](super::Records::put_vectors).
    pub(super) async fn put_vectors(
        &self,
        owner: &str,
        model: &str,
        vectors: &[FactVector],
    ) -> Result<(), StoreError> {
        for some in vectors.chunks(AT_ONCE) {
            let mut call = self.call("put_vectors");
            call.arg(owner).arg(model);
            for FactVector { id, revision, vector } in some {
                let bytes: Vec<u8> = vector.iter().flat_map(|number| number.to_le_bytes()).collect();
                call.arg(id).arg(revision).arg(bytes);
            }
            self.link.run::<()>(&call).await?;
        }
        Ok(())
    }

    /// Postpones the expiry of all records.
    pub(super) async fn renew(&self) -> Result<(), StoreError> {
        let mut call = self.call("renew");
        call.arg(names(&RecordKind::ALL));
        self.link.run(&call).await
    }

    /// Runs a method that returns records. Unreadable ones are skipped, with a warning.
    async fn read(&self, call: &ScriptInvocation<'_>) -> Result<Vec<Record>, StoreError> {
        let (newer, rows): Rows = self.link.run(call).await?;
        if newer > 0 {
            newer_is_there();
        }
        Ok(rows.into_iter().filter_map(record_of).collect())
    }
}

fn names(kinds: &[RecordKind]) -> Vec<&'static str> {
    kinds.iter().map(|kind| kind.as_str()).collect()
}

/// Converts a time to a script's argument.
fn time(ms: Option<u64>) -> String {
    ms.map_or_else(String::new, |ms| ms.to_string())
}

/// Returns the record of a row; `None` if the row is invalid.
fn record_of(row: Vec<Vec<u8>>) -> Option<Record> {
    let row: Vec<String> = row.into_iter().map(String::from_utf8).collect::<Result<_, _>>().ok()?;
    let [kind, owner, id, body, due, revision, put] = <[String; 7]>::try_from(row).ok()?;
    let body = serde_json::from_str(&body);
    let unreadable = |error: &_| tracing::warn!(%error, %id, %kind, "a record cannot be read");
    let body = body.inspect_err(unreadable).ok()?;
    let (kind, due_ms) = (RecordKind::of(&kind)?, due.parse().ok());
    Some(Record {
        kind,
        owner,
        id,
        body,
        due_ms,
        revision: revision.parse().ok()?,
        put_ms: put.parse().ok()?,
    })
}
