//! The engine in Redis. The keys and the methods are described in `rows.lua`.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use redis::{ScriptInvocation, pipe};
use tokio::{sync::OnceCell, task::spawn_blocking};

use super::{
    super::{
        StoreError, StoreFuture,
        engine::{
            Batch, Blob, BlobName, Condition, Engine, Key, NewRow, Row, Rows, Scan, ScanBy, Table, Write,
        },
    },
    earlier,
    link::{Methods, RedisLink, VERSION, newer_is_there, script},
    presence::Lease,
    values::RedisValues,
};

static METHODS: Methods = Methods::new(|| script(include_str!("rows.lua")));

/// How often the expiry of everything is postponed.
const RENEWAL: Duration = Duration::from_secs(24 * 3_600);
/// The most rows of one answer.
const MOST_ROWS: usize = 1_000_000;
/// The fields of a row, as `HMGET` reads them.
const FIELDS: [&str; 10] = ["v", "owner", "id", "body", "due", "rev", "put", "holder", "n", "kind"];

/// Rows as a script returns them: the number of skipped newer ones, the rest by field, and how many were
/// looked at.
type ScriptRows = (u64, Vec<[Vec<u8>; 10]>, usize);

/// The rows under a prefix.
#[derive(Debug)]
pub(crate) struct RedisEngine {
    pub(super) link: Arc<RedisLink>,
    pub(super) base: Arc<str>,
    lease: Arc<Lease>,
    values: RedisValues,
    /// When the expiry of everything was last postponed.
    renewed: Mutex<Option<Instant>>,
    /// Set once the data of earlier versions has been carried over.
    carried: OnceCell<()>,
}

impl RedisEngine {
    pub(super) fn new(link: Arc<RedisLink>, base: Arc<str>, prefix: &str, lease: Arc<Lease>) -> Self {
        let values = RedisValues::new(link.clone(), prefix);
        Self { link, base, lease, values, renewed: Mutex::default(), carried: OnceCell::new() }
    }

    fn call(&self, method: &str) -> ScriptInvocation<'static> {
        let mut call = METHODS.call(&self.base, method);
        self.lease.sign(&mut call);
        call
    }

    /// Carries over the data of earlier versions, before anything is read or written.
    async fn ready(&self) -> Result<(), StoreError> {
        self.carried.get_or_try_init(|| earlier::carry_over(self)).await.copied()
    }

    pub(super) async fn try_commit(&self, batch: Batch) -> Result<bool, StoreError> {
        let mut call = self.call("commit");
        let holds = |write: &Write| {
            matches!(write, Write::Put(NewRow { held: true, .. }) | Write::Hold { held: true, .. })
        };
        call.arg(u8::from(batch.writes.iter().any(holds))).arg(batch.conditions.len());
        for condition in &batch.conditions {
            match condition {
                Condition::Revision(key, revision) => name(&mut call, "revision", key).arg(*revision),
                Condition::Count { table, owner, count } => {
                    call.arg("count").arg(*table).arg(owner).arg(*count)
                }
            };
        }
        for write in &batch.writes {
            match write {
                Write::Put(NewRow { key, body, due, held, newest, of_config: _ }) => {
                    name(&mut call, "put", key)
                        .arg(body)
                        .arg(text(*due))
                        .arg(u8::from(*held))
                        .arg(u8::from(*newest))
                }
                Write::Change { key, body, due } => name(&mut call, "change", key).arg(body).arg(text(*due)),
                Write::Hold { key, held } => name(&mut call, "hold", key).arg(u8::from(*held)),
                Write::Delete(key) => name(&mut call, "delete", key),
                Write::Bump(counter) => call.arg("bump").arg(counter),
            };
        }
        self.link.run(&call).await
    }

    async fn try_get(&self, keys: &[Key]) -> Result<Vec<Option<Row>>, StoreError> {
        let mut commands = pipe();
        for Key { table, owner, id } in keys {
            commands.hmget(format!("{}record:{table}:{}:{owner}:{id}", self.base, owner.len()), &FIELDS);
        }
        let found: Vec<[Option<Vec<u8>>; 10]> = self.link.send(&commands).await?;
        Ok(keys.iter().zip(found).map(|(key, fields)| row_of(key.table, fields)).collect())
    }

    async fn try_scan(&self, scan: Scan) -> Result<Rows, StoreError> {
        let (heads, limit) = (u8::from(scan.heads), scan.limit.min(MOST_ROWS));
        let call = match &scan.by {
            ScanBy::Due { until, skip } => {
                let mut call = self.call("due");
                // Redis's numbers are exact up to 2^53.
                call.arg(heads).arg((*until).min(1 << 53)).arg(*skip).arg(limit).arg(&scan.tables);
                call
            }
            ScanBy::Owner(_) | ScanBy::Table => {
                let mut call = self.call("scan");
                call.arg(heads)
                    .arg(u8::from(scan.newest_first))
                    .arg(text(scan.after))
                    .arg(limit)
                    .arg(&scan.tables);
                if let ScanBy::Owner(owner) = &scan.by {
                    call.arg(owner);
                }
                call
            }
        };
        if scan.tables.is_empty() {
            return Ok(Rows::default());
        }
        let (newer, found, looked_at): ScriptRows = self.link.run(&call).await?;
        if newer > 0 {
            newer_is_there();
        }
        let mut rows: Vec<Row> =
            found.into_iter().filter_map(|fields| scanned(&scan.tables, fields)).collect();
        if let ScanBy::Due { .. } = scan.by {
            // Redis orders rows with equal numbers by their names.
            rows.sort_by_key(|row| (row.due, row.number));
        }
        Ok(Rows { rows, has_newer: newer > 0, looked_at })
    }

    async fn try_tidy(&self) -> Result<(), StoreError> {
        if self.renewed.lock().is_none_or(|renewed| renewed.elapsed() >= RENEWAL) {
            self.link.run::<()>(&self.call("renew")).await?;
            *self.renewed.lock() = Some(Instant::now());
        }
        Ok(())
    }

    async fn try_put_blob(&self, value: Blob, life: Duration) -> Result<BlobName, StoreError> {
        let bytes = match value {
            Blob::Text(text) => text.into_bytes(),
            // Takes up to a tenth of a second for the largest.
            Blob::Json(_) => {
                let json = spawn_blocking(move || {
                    let mut json = Vec::new();
                    value.write_to(&mut json).map(|()| json)
                });
                json.await.ok().and_then(Result::ok).ok_or(StoreError::Unusable)?
            }
        };
        let name = self.values.write(&bytes, life).await?;
        Ok(BlobName { name, bytes: bytes.len() as u64 })
    }
}

/// Adds a kind and a row's name to a call.
fn name<'a>(
    call: &'a mut ScriptInvocation<'static>,
    kind: &str,
    key: &Key,
) -> &'a mut ScriptInvocation<'static> {
    call.arg(kind).arg(key.table).arg(&key.owner).arg(&key.id)
}

/// Converts a number to a script's argument.
fn text(number: Option<u64>) -> String {
    number.map_or_else(String::new, |number| number.to_string())
}

/// Returns a row as `HMGET` reads it.
fn row_of(table: Table, fields: [Option<Vec<u8>>; 10]) -> Option<Row> {
    let [version, owner, id, body, due, revision, put, holder, number, _] = fields;
    let version = version?;
    if version != VERSION.as_bytes() {
        newer_is_there();
        return None;
    }
    let body = body?;
    let size = body.len().to_string().into_bytes();
    let kind = table.as_bytes().to_vec();
    scanned(&[table], [kind, owner?, id?, body, due?, revision?, put?, holder?, number?, size])
}

/// Returns a row as a script returns it; `None` if it is invalid.
fn scanned(tables: &[Table], fields: [Vec<u8>; 10]) -> Option<Row> {
    let [kind, owner, id, body, due, revision, put, holder, number, size] = fields.map(String::from_utf8);
    let row = || {
        let kind = kind.ok()?;
        let table = *tables.iter().find(|table| **table == kind)?;
        let number_of = |text: Result<String, _>| text.ok()?.parse::<u64>().ok();
        Some(Row {
            key: Key { table, owner: owner.ok()?, id: id.ok()? },
            body: body.ok()?,
            size: number_of(size)?,
            due: due.ok()?.parse().ok(),
            revision: number_of(revision)?,
            put_ms: number_of(put)?,
            holder: holder.ok()?.parse().ok()?,
            number: number_of(number)?,
            is_ours: true,
            // All replicas have one.
            of_config: false,
        })
    };
    let row = row();
    if row.is_none() {
        tracing::warn!(?tables, "a row in Redis cannot be read");
    }
    row
}

impl Engine for RedisEngine {
    fn get(&self, keys: Vec<Key>) -> StoreFuture<'_, Vec<Option<Row>>> {
        Box::pin(async move {
            self.ready().await?;
            self.try_get(&keys).await
        })
    }

    fn scan(&self, scan: Scan) -> StoreFuture<'_, Rows> {
        Box::pin(async move {
            self.ready().await?;
            self.try_scan(scan).await
        })
    }

    fn count(&self, table: Table, owner: Option<String>) -> StoreFuture<'_, usize> {
        Box::pin(async move {
            self.ready().await?;
            let index = match owner {
                Some(owner) => format!("{}of:{table}:{owner}", self.base),
                None => format!("{}kind:{table}", self.base),
            };
            let (count,) = self.link.send(pipe().zcard(index)).await?;
            Ok(count)
        })
    }

    fn count_held(&self, table: Table) -> StoreFuture<'_, Vec<(String, u32, usize)>> {
        Box::pin(async move {
            debug_assert_eq!(table, "notice", "only notices are counted");
            let (all,): (Vec<(String, usize)>,) =
                self.link.send(pipe().hgetall(format!("{}notices", self.base))).await?;
            let counted = |(field, count): (String, usize)| {
                let (holder, owner) = field.split_once(':')?;
                Some((owner.to_owned(), holder.parse().ok()?, count))
            };
            Ok(all.into_iter().filter_map(counted).collect())
        })
    }

    fn commit(&self, batch: Batch) -> StoreFuture<'_, bool> {
        Box::pin(async move {
            self.ready().await?;
            self.try_commit(batch).await
        })
    }

    fn counter(&self, name: String) -> StoreFuture<'_, Option<u64>> {
        Box::pin(async move {
            self.ready().await?;
            let (count,) = self.link.send(pipe().get(format!("{}{name}", self.base))).await?;
            Ok(count)
        })
    }

    fn me(&self) -> u32 {
        self.lease.number()
    }

    fn running(&self, holders: HashSet<u32>) -> StoreFuture<'_, HashSet<u32>> {
        Box::pin(async move {
            // This gateway runs, even if its lease has expired while Redis was away.
            let me = holders.contains(&self.me()).then(|| self.me());
            let others: Vec<u32> =
                holders.into_iter().filter(|holder| *holder != 0 && *holder != self.me()).collect();
            let mut running = HashSet::new();
            if !others.is_empty() {
                let mut call = self.call("running");
                call.arg(&others);
                running = self.link.run(&call).await?;
            }
            running.extend(me);
            Ok(running)
        })
    }

    fn put_blob(&self, value: Blob, life: Duration) -> StoreFuture<'_, BlobName> {
        Box::pin(self.try_put_blob(value, life))
    }

    fn blob(&self, name: BlobName) -> StoreFuture<'_, Option<Vec<u8>>> {
        Box::pin(async move {
            self.values.read(&name.name, usize::try_from(name.bytes).unwrap_or(usize::MAX)).await
        })
    }

    fn drop_blobs(&self, names: Vec<BlobName>) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            for BlobName { name, bytes } in names {
                self.values.remove(&name, usize::try_from(bytes).unwrap_or(usize::MAX)).await;
            }
            Ok(())
        })
    }

    fn age_ms(&self) -> StoreFuture<'_, u64> {
        Box::pin(async { self.link.run::<u64>(&self.call("time")).await })
    }

    fn tidy(&self, _spare: u64) -> StoreFuture<'_, ()> {
        Box::pin(self.try_tidy())
    }

    fn is_used(&self) -> bool {
        self.link.is_used()
    }

    fn is_new(&self) -> StoreFuture<'_, bool> {
        Box::pin(async {
            let (there,): (bool,) = self.link.send(pipe().exists(format!("{}number", self.base))).await?;
            Ok(!there)
        })
    }

    fn lasts(&self) -> bool {
        true
    }
}
