//! Trusted definitions of servers, and waiting ones: by their hash, with their text. Written once for both
//! engines.

use std::{
    collections::{BTreeMap, HashSet},
    path::Path,
    pin::pin,
    sync::Arc,
};

use futures::FutureExt;
use nonet_base::clock::Clock;
use serde::{Deserialize, Serialize};
use tokio::{runtime::Handle, task::block_in_place};

use super::{
    Removable, StoreError,
    engine::{Batch, Engine, Key, NewRow, Row, Scan, TRIES, Table, Write, too_busy},
    formats,
    lease::LeaseHolder,
    sqlite::{SqliteDb, SqliteEngine},
};

/// Pins: the owner is a server of a configuration, the id KIND:NAME, and a pin is due if it waits.
pub(crate) const PINS: Table = "pin";
/// Texts of definitions: the id is KIND:NAME:HASH.
pub(crate) const TEXTS: Table = "pin_text";
/// Grows with each change of a pin.
const VERSION: &str = "count:pins";
/// The maximum size of a server's texts, in bytes. Beyond it, only hashes are stored.
pub(crate) const MOST_TEXT: u64 = 32 << 20;
/// How many texts are stored at a time, and their approximate total size in bytes.
const AT_ONCE: usize = 200;
const BYTES_AT_ONCE: usize = 1 << 20;

/// The kind of a pinned definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PinKind {
    /// The instructions of the server, without a name.
    Instructions,
    /// A tool.
    Tool,
    /// A prompt.
    Prompt,
}

impl PinKind {
    /// Returns the kind as a word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Instructions => "instructions",
            Self::Tool => "tool",
            Self::Prompt => "prompt",
        }
    }

    pub(crate) fn of(name: &str) -> Option<Self> {
        [Self::Instructions, Self::Tool, Self::Prompt].into_iter().find(|kind| kind.as_str() == name)
    }
}

/// The trusted hash of one definition, and the waiting one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The name of the server in the configuration.
    pub server: String,
    /// A tool and a prompt of the same name have separate pins.
    pub kind: PinKind,
    /// The server's own name for it; empty for its instructions.
    pub name: String,
    /// The hash of the trusted definition; `None` if none has been trusted.
    pub trusted: Option<String>,
    /// Whether the user trusted it, rather than the first sight only.
    pub by_user: bool,
    /// The hash of the definition that the server lists instead.
    pub waiting: Option<String>,
    /// When it began to wait, in milliseconds since 1970.
    pub since_ms: u64,
    /// Whether the waiting change has been reported.
    pub told: bool,
}

/// The texts of a pin, where they are stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PinTexts {
    /// The trusted definition, as JSON, shortened if it is large; `None` if it is not stored.
    pub trusted: Option<String>,
    /// The waiting definition, as JSON, shortened if it is large; `None` if it is not stored.
    pub waiting: Option<String>,
}

/// A change of one pin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinWrite {
    /// The kind of the definition whose pin changes.
    pub kind: PinKind,
    /// The server's own name for it; empty for its instructions.
    pub name: String,
    /// What happens to the pin.
    pub to: PinStep,
}

/// A step that changes a pin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PinStep {
    /// Trusted on first sight; ignored if there is a pin already.
    First {
        /// The hash of the definition, in hex.
        hash: String,
        /// The definition, as JSON, shortened if it is large.
        text: String,
    },
    /// Waits to be trusted.
    Wait {
        /// The hash of the definition, in hex.
        hash: String,
        /// The definition, as JSON, shortened if it is large.
        text: String,
    },
    /// Trusted because the lock file has it.
    Vouch {
        /// The hash of the definition, in hex.
        hash: String,
        /// The definition, as JSON, shortened if it is large.
        text: String,
    },
    /// The server lists the trusted definition again.
    Return,
}

impl PinStep {
    /// Returns the hash and the text that come with the step.
    fn given(&self) -> Option<(&str, &str)> {
        match self {
            Self::First { hash, text } | Self::Wait { hash, text } | Self::Vouch { hash, text } => {
                Some((hash, text))
            }
            Self::Return => None,
        }
    }
}

/// A pin without its name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct PinBody {
    trusted: Option<String>,
    by_user: bool,
    waiting: Option<String>,
    since_ms: u64,
    told: bool,
}

impl PinBody {
    /// Returns whether the pin uses a text.
    fn uses(&self, hash: &str) -> bool {
        [&self.trusted, &self.waiting].iter().any(|used| used.as_deref() == Some(hash))
    }

    /// Returns the pin after a step; `None` if nothing changes. `is_listed` tells whether another running
    /// gateway lists the waiting definition.
    fn after(pin: Option<&Self>, step: &PinStep, now_ms: u64, is_listed: bool) -> Option<Self> {
        let trust = |hash: &str| Self { trusted: Some(hash.into()), since_ms: now_ms, ..Self::default() };
        match step {
            PinStep::First { hash, .. } => pin.is_none().then(|| trust(hash)),
            PinStep::Vouch { hash, .. } => {
                let is_so = |pin: &Self| pin.trusted.as_ref() == Some(hash) && pin.waiting.is_none();
                pin.is_none_or(|pin| !is_so(pin)).then(|| trust(hash))
            }
            PinStep::Wait { hash, .. } => {
                let before = pin.cloned().unwrap_or_default();
                let next = Self { waiting: Some(hash.clone()), since_ms: now_ms, told: false, ..before };
                pin.is_none_or(|pin| pin.waiting != next.waiting).then_some(next)
            }
            // A definition that another gateway lists keeps waiting: otherwise two gateways with different
            // servers would change the pin in turns.
            PinStep::Return => {
                let pin = pin.filter(|pin| pin.waiting.is_some() && !is_listed)?;
                Some(Self { waiting: None, told: false, ..pin.clone() })
            }
        }
    }
}

/// The trusted definitions of one configuration's servers. Several gateways, and several threads of one, may
/// use it at the same time. Every call blocks; with a Redis, it must run inside a tokio runtime.
#[derive(Debug)]
pub struct PinStore {
    engine: Arc<dyn Engine>,
    /// The path of the configuration's file; empty in a cluster, whose replicas share one configuration.
    config: String,
    /// The file, if there is one.
    db: Option<Arc<SqliteDb>>,
}

impl Removable for PinStore {
    fn is_gone(&self) -> bool {
        self.db.as_ref().is_some_and(|db| db.is_gone())
    }
}

impl PinStore {
    /// Opens the file in a folder; creates both, readable only by their owner, if they do not exist. `config`
    /// is the path of a servers.toml.
    pub fn open(folder: &Path, config: &str) -> Result<Self, StoreError> {
        let db = SqliteDb::open(folder, &formats::PINS, LeaseHolder::new(Clock::default()))?;
        Ok(Self::of_db(db, config))
    }

    /// Keeps everything in memory, until the value is dropped.
    pub fn in_memory(config: &str) -> Result<Self, StoreError> {
        Ok(Self::of_db(SqliteDb::in_memory(&formats::PINS, LeaseHolder::new(Clock::default()))?, config))
    }

    fn of_db(db: SqliteDb, config: &str) -> Self {
        let db = Arc::new(db);
        Self { engine: Arc::new(SqliteEngine::blocking(db.clone())), config: config.into(), db: Some(db) }
    }

    /// Returns the trust that replicas share.
    pub(crate) fn shared(engine: Arc<dyn Engine>) -> Self {
        Self { engine, config: String::new(), db: None }
    }

    /// Returns a number that changes with each change of a pin.
    pub fn version(&self) -> Result<i64, StoreError> {
        let version = wait(self.engine.counter(VERSION.into()))?.unwrap_or_default();
        Ok(i64::try_from(version).unwrap_or(i64::MAX))
    }

    /// Returns the pins of a server, by kind and name. A newer Nonet's pin is an error: without it, a
    /// definition that the user refused would be trusted on first sight.
    pub fn of_server(&self, server: &str) -> Result<Vec<Pin>, StoreError> {
        let newer = || StoreError::NewerValue { what: format!("a pin of `{server}`") };
        let pins = wait(self.read(server))?.ok_or_else(newer)?;
        let mut pins: Vec<Pin> =
            pins.into_values().filter_map(|(row, body)| self.pin_of(&row, body?)).collect();
        pins.sort_by(order);
        Ok(pins)
    }

    /// Returns the first `most` waiting pins, by server, kind and name, with their texts.
    pub fn waiting(&self, most: usize) -> Result<Vec<(Pin, PinTexts)>, StoreError> {
        wait(async {
            let mut pins = self.all_waiting().await?;
            pins.sort_by(order);
            pins.truncate(most);
            let mut found = Vec::with_capacity(pins.len());
            for pin in pins {
                let texts = self.read_texts(&pin).await?;
                found.push((pin, texts));
            }
            Ok(found)
        })
    }

    /// Returns how many pins wait.
    pub fn count_waiting(&self) -> Result<usize, StoreError> {
        Ok(wait(self.all_waiting())?.len())
    }

    /// Returns the texts of a pin as it was read.
    pub fn texts(&self, pin: &Pin) -> Result<PinTexts, StoreError> {
        wait(self.read_texts(pin))
    }

    /// Writes changes to a server's pins, all or none.
    pub fn write(&self, server: &str, writes: &[PinWrite], now_ms: u64) -> Result<(), StoreError> {
        wait(self.put(server, writes, now_ms))
    }

    /// Trusts waiting definitions that are still as the user has seen them. Returns how many were.
    pub fn trust(&self, seen: &[Pin], now_ms: u64) -> Result<usize, StoreError> {
        let trust = |pin: &PinBody| PinBody {
            trusted: pin.waiting.clone(),
            by_user: true,
            since_ms: now_ms,
            ..PinBody::default()
        };
        wait(async {
            for _ in 0..TRIES {
                let (mut batch, found) = (Batch::default(), self.still_waiting(seen).await?);
                for (row, before) in &found {
                    let next = trust(before);
                    batch.put(row_of(row.key.clone(), &next), Some(row));
                    drop_texts(&mut batch, &row.key, before, &next);
                }
                if !batch.is_empty() {
                    batch.writes.push(Write::Bump(VERSION.into()));
                }
                if batch.is_empty() || self.engine.commit(batch).await? {
                    return Ok(found.len());
                }
            }
            Err(too_busy())
        })
    }

    /// Notes that these changes were reported. Returns how many of them still wait.
    pub fn told(&self, seen: &[Pin]) -> Result<usize, StoreError> {
        wait(async {
            for _ in 0..TRIES {
                let (mut batch, found) = (Batch::default(), self.still_waiting(seen).await?);
                for (row, before) in &found {
                    let NewRow { key, body, due, .. } =
                        row_of(row.key.clone(), &PinBody { told: true, ..before.clone() });
                    batch.require(&key, Some(row));
                    // The gateway that lists the definition stays its holder.
                    batch.writes.push(Write::Change { key, body, due });
                }
                if batch.is_empty() || self.engine.commit(batch).await? {
                    return Ok(found.len());
                }
            }
            Err(too_busy())
        })
    }

    /// Returns a server's pins by their ids, without a body if it cannot be read; `None` if a newer Nonet's
    /// are among them.
    async fn read(&self, server: &str) -> Result<Option<ReadPins>, StoreError> {
        let found = self.engine.scan(Scan::owner(PINS, &owner_of(&self.config, server))).await?;
        let pins = found.rows.into_iter().map(|row| {
            let body = body_of(&row);
            (row.key.id.clone(), (row, body))
        });
        Ok((!found.has_newer).then(|| pins.collect()))
    }

    async fn all_waiting(&self) -> Result<Vec<Pin>, StoreError> {
        let found = self.engine.scan(Scan::due(&[PINS], u64::MAX)).await?;
        if found.has_newer {
            return Err(StoreError::NewerValue { what: "a pin that waits".into() });
        }
        Ok(found.rows.iter().filter_map(|row| self.pin_of(row, body_of(row)?)).collect())
    }

    async fn read_texts(&self, pin: &Pin) -> Result<PinTexts, StoreError> {
        let owner = owner_of(&self.config, &pin.server);
        let key = |hash: &Option<String>| {
            let hash = hash.as_deref().unwrap_or_default();
            Key::new(TEXTS, &*owner, text_id(&id_of(pin.kind, &pin.name), hash))
        };
        let mut texts = self.engine.get(vec![key(&pin.trusted), key(&pin.waiting)]).await?.into_iter();
        let mut next = || texts.next().flatten().map(|row| row.body);
        Ok(PinTexts { trusted: next(), waiting: next() })
    }

    async fn put(&self, server: &str, writes: &[PinWrite], now_ms: u64) -> Result<(), StoreError> {
        let owner = owner_of(&self.config, server);
        for _ in 0..TRIES {
            // A newer Nonet's pins are left alone.
            let Some(mut pins) = self.read(server).await? else { return Ok(()) };
            let holders = pins.values().map(|(row, _)| row.holder);
            let others = holders.filter(|holder| *holder != self.engine.me()).collect();
            let running = self.engine.running(others).await?;
            let kept = self.engine.scan(Scan::owner(TEXTS, &owner).heads()).await?.rows;
            let mut texts = NewTexts::new(kept);
            let mut batch = Batch::default();
            for PinWrite { kind, name, to } in writes {
                let id = id_of(*kind, name);
                let old = pins.get(&id);
                let is_listed = old.is_some_and(|(row, _)| running.contains(&row.holder));
                let before = old.and_then(|(_, pin)| pin.as_ref());
                let Some(next) = PinBody::after(before, to, now_ms, is_listed) else { continue };
                if let Some((hash, text)) = to.given() {
                    texts.add(text_id(&id, hash), text);
                }
                batch.put(row_of(Key::new(PINS, &*owner, &*id), &next), old.map(|(row, _)| row));
                if let Some((row, Some(before))) = pins.remove(&id) {
                    drop_texts(&mut batch, &row.key, &before, &next);
                }
            }
            if batch.is_empty() {
                return Ok(());
            }
            batch.writes.extend(texts.write(&*self.engine, &owner).await?);
            batch.writes.push(Write::Bump(VERSION.into()));
            if self.engine.commit(batch).await? {
                return Ok(());
            }
        }
        Err(too_busy())
    }

    /// Returns the pins that still wait as they were seen.
    async fn still_waiting(&self, seen: &[Pin]) -> Result<Vec<(Row, PinBody)>, StoreError> {
        let key = |pin: &Pin| Key::new(PINS, owner_of(&self.config, &pin.server), id_of(pin.kind, &pin.name));
        let rows = self.engine.get(seen.iter().map(key).collect()).await?;
        let read = seen.iter().zip(rows).filter_map(|(pin, row)| {
            let row = row?;
            let body = body_of(&row).filter(|body| body.waiting.is_some() && body.waiting == pin.waiting)?;
            Some((row, body))
        });
        Ok(read.collect())
    }

    /// Returns a pin of this configuration; `None` if it belongs to another one, or if its name is invalid.
    fn pin_of(&self, row: &Row, body: PinBody) -> Option<Pin> {
        let server = row.key.owner.strip_prefix(&owner_of(&self.config, ""))?.to_owned();
        let (kind, name) = row.key.id.split_once(':')?;
        let PinBody { trusted, by_user, waiting, since_ms, told } = body;
        let (kind, name) = (PinKind::of(kind)?, name.to_owned());
        Some(Pin { server, kind, name, trusted, by_user, waiting, since_ms, told })
    }
}

/// A server's pins as read, by their ids.
type ReadPins = BTreeMap<String, (Row, Option<PinBody>)>;

/// The texts that a write adds, as long as all of a server's texts fit.
struct NewTexts {
    kept: HashSet<String>,
    bytes: u64,
    fresh: Vec<(String, String)>,
}

impl NewTexts {
    fn new(kept: Vec<Row>) -> Self {
        let bytes = kept.iter().map(|row| row.size).sum();
        Self { kept: kept.into_iter().map(|row| row.key.id).collect(), bytes, fresh: Vec::new() }
    }

    fn add(&mut self, id: String, text: &str) {
        let bytes = self.bytes + text.len() as u64;
        if bytes <= MOST_TEXT && self.kept.insert(id.clone()) {
            self.bytes = bytes;
            self.fresh.push((id, text.to_owned()));
        }
    }

    /// Returns the writes of the texts, which come with the pins. Of many texts, most are written before, in
    /// parts, so that nobody sees a pin without its text.
    async fn write(self, engine: &dyn Engine, owner: &str) -> Result<Vec<Write>, StoreError> {
        let (mut writes, mut bytes) = (Vec::new(), 0);
        for (id, text) in self.fresh {
            if !writes.is_empty() && (writes.len() >= AT_ONCE || bytes + text.len() > BYTES_AT_ONCE) {
                engine.commit(Batch { writes: std::mem::take(&mut writes), ..Batch::default() }).await?;
                bytes = 0;
            }
            bytes += text.len();
            writes.push(Write::Put(NewRow::new(Key::new(TEXTS, owner, id), text)));
        }
        Ok(writes)
    }
}

/// Deletes texts that a pin no longer uses.
fn drop_texts(batch: &mut Batch, pin: &Key, before: &PinBody, next: &PinBody) {
    for hash in [&before.trusted, &before.waiting].into_iter().flatten().filter(|hash| !next.uses(hash)) {
        batch.writes.push(Write::Delete(Key::new(TEXTS, &*pin.owner, text_id(&pin.id, hash))));
    }
}

/// Returns the owner of the pins of a configuration's server.
pub(crate) fn owner_of(config: &str, server: &str) -> String {
    format!("{}:{config}:{server}", config.len())
}

fn id_of(kind: PinKind, name: &str) -> String {
    format!("{}:{name}", kind.as_str())
}

fn text_id(pin: &str, hash: &str) -> String {
    format!("{pin}:{hash}")
}

fn body_of(row: &Row) -> Option<PinBody> {
    serde_json::from_str(&row.body).ok()
}

/// Returns the row of a pin. A definition that waits is held by the gateway that lists it.
fn row_of(key: Key, pin: &PinBody) -> NewRow {
    let due = pin.waiting.as_ref().map(|_| pin.since_ms);
    NewRow { due, held: due.is_some(), ..NewRow::new(key, serde_json::json!(pin).to_string()) }
}

fn order(a: &Pin, b: &Pin) -> std::cmp::Ordering {
    (&a.server, a.kind.as_str(), &a.name).cmp(&(&b.server, b.kind.as_str(), &b.name))
}

/// Waits for the engine on a thread that may block. SQLite's work is done when it is asked for.
fn wait<T>(work: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    let mut work = pin!(work);
    if let Some(done) = work.as_mut().now_or_never() {
        return done;
    }
    let runtime = Handle::try_current().map_err(|_| StoreError::Unusable)?;
    block_in_place(|| runtime.block_on(work))
}

#[cfg(test)]
mod tests;
