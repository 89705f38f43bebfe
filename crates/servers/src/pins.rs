//! Decides which of the servers' definitions are trusted: pins by hash, differences from them, and the lock
//! file.
//!
//! A definition is pinned when it is first seen. Later lists are compared with the pins when they are
//! published, never when a tool is called. This room knows definitions as JSON, the store and the lock file,
//! but nothing of connections or clients.

mod compare;
mod definition;
pub mod lock_file;

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap, HashSet},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use nonet_api::{
    question::{DefinitionView, MarkedPlace},
    tools::DefinitionState,
};
use nonet_base::{clock::Clock, files::FileStamp};
use nonet_config::{NewServers, OnChange};
use nonet_store::{OpenDb, Pin, PinKind, PinStore, StoreError};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::Notify;

pub use self::definition::{difference_of, hash, plain};
use self::{
    compare::{Item, PinComparison, items, stand_in, steps, substituted, told_difference},
    lock_file::{LockFile, LockedServer},
};

/// The maximum number of a server's definitions whose differences are shown.
const MOST_SHOWN: usize = 500;
/// How long after a failure of the shared pins lists are compared again.
const AGAIN: Duration = if cfg!(test) { Duration::from_millis(100) } else { Duration::from_secs(10) };

/// The key in `_meta` of a definition that is held until the user trusts it, whatever the rules: what it
/// calls is on a host that neither the user nor the address of its document names.
pub const ELSEWHERE: &str = "nonet/elsewhere";

/// A definition that is not the trusted one.
#[derive(Clone, Debug, PartialEq)]
pub struct DefinitionChange {
    /// Its state.
    pub standing: DefinitionState,
    /// The consequence for calls.
    pub effect: OnChange,
    /// The key of the configuration that sets the consequence.
    pub rule: String,
    /// Its hash.
    pub hash: Arc<str>,
    /// When it began to wait, in milliseconds since 1970.
    pub since_ms: u64,
    /// The differences from the trusted one, for people; contains text from the server.
    pub difference: String,
    /// The annotations of the trusted definition, if there is one.
    pub trusted_hints: Option<Value>,
}

impl DefinitionChange {
    /// Returns whether calls wait until the user trusts it.
    pub fn is_held(&self) -> bool {
        self.effect == OnChange::Hold
    }
}

/// The trust state of one tool.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolTrust {
    /// The hash of the published definition.
    pub hash: Arc<str>,
    /// The definition that the server lists instead, or without the user's trust.
    pub change: Option<Arc<DefinitionChange>>,
}

/// The trust state of one server.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerTrust {
    /// Its tools, by its own names.
    pub tools: HashMap<String, ToolTrust>,
    /// The change of its instructions, if any.
    pub instructions: Option<Arc<DefinitionChange>>,
}

/// The definitions of one server.
#[derive(Clone, Debug, Default)]
pub struct Definitions {
    /// Its tools.
    pub tools: Vec<Arc<Value>>,
    /// Its prompts.
    pub prompts: Vec<Value>,
    /// Its instructions.
    pub instructions: String,
}

/// The configuration for a server's changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustRules {
    /// What happens when a definition changes.
    pub on_change: OnChange,
    /// The key that sets it.
    pub rule: String,
    /// What happens when the server is seen for the first time.
    pub new_servers: NewServers,
}

/// A change that has not been reported yet.
#[derive(Clone, Debug)]
pub struct ChangeNews {
    /// The pin as reported.
    pub pin: Pin,
    /// The change.
    pub change: Arc<DefinitionChange>,
}

/// What is published for a server, and what is to be reported.
#[derive(Clone, Debug, Default)]
pub struct CheckedListing {
    /// The definitions to publish: where changes are held, the trusted ones.
    pub definitions: Definitions,
    /// The trust state of the definitions.
    pub trust: Arc<ServerTrust>,
    /// Changes that have not been reported.
    pub news: Vec<ChangeNews>,
}

/// The hashes of the servers' current definitions, by server.
pub type CurrentHashes = BTreeMap<Arc<str>, LockedServer>;

/// The pins of a server, by kind and name.
type ServerPins = HashMap<(PinKind, String), Pin>;

/// The pins for one configuration, shared by all gateways of a user, or by all replicas.
#[derive(Debug)]
pub struct Pins {
    folder: Option<PathBuf>,
    /// The servers.toml that the pins belong to.
    config: String,
    lock: PathBuf,
    /// The pins shared by all replicas; if absent, a file in the folder holds the pins.
    shared: Option<Arc<PinStore>>,
    db: OpenDb<PinStore>,
    /// The shared pins as last read, used while they cannot be read.
    last_read: Mutex<HashMap<Arc<str>, ServerPins>>,
    last_version: AtomicI64,
    /// When shared pins could not be read or written; cleared once lists are compared again.
    missed: Mutex<Option<Instant>>,
    /// Whether there is a folder with unreadable pins.
    is_lost: AtomicBool,
    clock: Clock,
    /// Changes with each write by this process.
    revision: AtomicU64,
    locked: Mutex<LockFileCache>,
    listed: Mutex<CurrentHashes>,
    /// The revision of the last check.
    checked: Mutex<Option<(u64, i64)>>,
    /// The servers with changes.
    waiting: Mutex<HashSet<Arc<str>>>,
    /// Woken when this process trusts a change.
    pub trusted: Notify,
}

/// The lock file as last read.
#[derive(Debug, Default)]
struct LockFileCache {
    stamp: Option<FileStamp>,
    is_read: bool,
    file: Option<Arc<LockFile>>,
}

impl Pins {
    /// Returns the pins in a folder; without a folder, in memory. Accesses no file yet.
    pub fn new(folder: Option<PathBuf>, config: &str, clock: Clock) -> Self {
        Self {
            folder,
            config: config.into(),
            lock: nonet_config::lock_file_beside(Path::new(config)),
            shared: None,
            db: OpenDb::default(),
            last_read: Mutex::default(),
            last_version: AtomicI64::new(0),
            missed: Mutex::default(),
            is_lost: AtomicBool::new(false),
            clock,
            revision: AtomicU64::new(0),
            locked: Mutex::default(),
            listed: Mutex::default(),
            checked: Mutex::default(),
            waiting: Mutex::default(),
            trusted: Notify::new(),
        }
    }

    /// Returns these pins with the shared ones of all replicas, if given, in place of the folder's.
    #[must_use]
    pub fn sharing(mut self, shared: Option<Arc<PinStore>>) -> Self {
        self.shared = shared;
        self
    }

    fn db(&self) -> Option<Arc<PinStore>> {
        let open = || {
            // What is known of a file that was removed says nothing about the new one.
            self.revision.fetch_add(1, Ordering::AcqRel);
            if let Some(shared) = &self.shared {
                return Some(shared.clone());
            }
            if let Some(folder) = &self.folder {
                match PinStore::open(folder, &self.config) {
                    Ok(db) => return Some(Arc::new(db)),
                    Err(error) => {
                        self.is_lost.store(true, Ordering::Release);
                        tracing::error!(%error, "pins cannot be read: where changes are held, every definition is held");
                    }
                }
            }
            let failed = |error: &_| tracing::error!(%error, "definitions cannot be pinned");
            PinStore::in_memory(&self.config).inspect_err(failed).ok().map(Arc::new)
        };
        self.db.get(open)
    }

    /// Returns a value that changes whenever a check of the same list may have a different result. Blocks.
    pub fn revision(&self) -> (u64, i64) {
        let version = match self.db().map(|db| db.version()) {
            Some(Ok(version)) => {
                self.last_version.store(version, Ordering::Release);
                version
            }
            Some(Err(_)) | None => self.last_version.load(Ordering::Acquire),
        };
        self.read_lock();
        (self.revision.load(Ordering::Acquire), version)
    }

    /// Returns the revision for the checks that start now. Blocks.
    pub fn begin_check(&self) -> (u64, i64) {
        let revision = self.revision();
        *self.checked.lock() = Some(revision);
        revision
    }

    /// Returns whether a check may have a different result than the last one. Blocks.
    pub fn has_moved(&self) -> bool {
        let is_due = self.missed.lock().is_some_and(|missed| missed.elapsed() >= AGAIN);
        if is_due && self.db().is_some_and(|db| db.version().is_ok()) {
            *self.missed.lock() = None;
            self.revision.fetch_add(1, Ordering::AcqRel);
        }
        let revision = self.revision();
        self.checked.lock().is_some_and(|checked| checked != revision)
    }

    /// Returns whether a change waits to be trusted, perhaps by another process, or lists are still to be
    /// compared with the shared pins.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.lock().is_empty() || self.missed.lock().is_some()
    }

    /// Notes that shared pins could not be read or written.
    fn miss(&self) {
        if self.shared.is_some() {
            *self.missed.lock() = Some(Instant::now());
        }
    }

    /// Reads the lock file again if it has changed.
    fn read_lock(&self) -> Option<Arc<LockFile>> {
        let mut locked = self.locked.lock();
        let stamp = FileStamp::of(&self.lock);
        if locked.is_read && locked.stamp == stamp {
            return locked.file.clone();
        }
        let file = match LockFile::read(&self.lock) {
            Ok(file) => file,
            Err(why) => {
                let file = self.lock.display();
                tracing::warn!(%file, %why, "the lock file cannot be read: every definition counts as changed");
                Some(LockFile::default())
            }
        };
        *locked = LockFileCache { stamp, is_read: true, file: file.map(Arc::new) };
        self.revision.fetch_add(1, Ordering::AcqRel);
        locked.file.clone()
    }

    /// Compares a server's list with the trusted definitions, and pins new ones. Blocks.
    pub fn check(&self, server: &Arc<str>, listed: &Definitions, rules: &TrustRules) -> CheckedListing {
        let lock = self.read_lock();
        let items = items(listed);
        let hashes: Vec<Arc<str>> = items.iter().map(|item| hash(&item.value).into()).collect();
        let mut now = LockedServer::default();
        for (item, hash) in items.iter().zip(&hashes) {
            now.set(item.kind, item.name, hash);
        }
        self.listed.lock().insert(server.clone(), now);
        let read = self.pins_of(server);
        let is_read = read.is_some();
        let last_read = || self.last_read.lock().get(server).cloned();
        let known = read.or_else(last_read);
        // Where changes are held, unknown definitions may have been pinned before, so they are not trusted on
        // first sight.
        let is_lost = self.is_lost.load(Ordering::Acquire) || known.is_none();
        let is_closed = is_lost && rules.on_change != OnChange::Tell;
        let mut pins = known.unwrap_or_default();
        let new_servers = if is_closed { NewServers::Hold } else { rules.new_servers };
        let rules = &TrustRules { new_servers, ..rules.clone() };
        let writes = steps(&items, &hashes, &pins, lock.as_deref(), server, rules);
        if is_read
            && !writes.is_empty()
            && let Some(db) = self.db()
        {
            match db.write(server, &writes, self.clock.unix_ms()) {
                // Another gateway may have pinned a different definition meanwhile: its pins count.
                Ok(()) => pins = self.pins_of(server).unwrap_or(pins),
                Err(error) => {
                    self.miss();
                    tracing::warn!(%server, %error, "definitions could not be pinned");
                }
            }
        }
        self.judge(server, listed, &PinComparison { items, hashes, pins, lock: lock.as_deref(), rules })
    }

    /// Returns the pins of a server; `None` if they cannot be read.
    fn pins_of(&self, server: &Arc<str>) -> Option<ServerPins> {
        let unreadable = |error: &_| {
            self.miss();
            tracing::warn!(%server, %error, "the pins of a server cannot be read");
        };
        let pins = self.db()?.of_server(server).inspect_err(unreadable).ok()?;
        let pins: ServerPins = pins.into_iter().map(|pin| ((pin.kind, pin.name.clone()), pin)).collect();
        if self.shared.is_some() {
            self.last_read.lock().insert(server.clone(), pins.clone());
        }
        Some(pins)
    }

    /// Decides what is published and what is reported.
    fn judge(&self, server: &Arc<str>, listed: &Definitions, seen: &PinComparison<'_>) -> CheckedListing {
        let end = Instant::now() + definition::PATIENCE;
        let mut differing = 0;
        let mut trust = ServerTrust::default();
        let mut news = Vec::new();
        let mut published: HashMap<(PinKind, &str), Option<Value>> = HashMap::new();
        let mut is_waiting = false;
        for (item, hash) in seen.items.iter().zip(&seen.hashes) {
            let key = (item.kind, item.name.to_string());
            let pin = seen.pins.get(&key);
            let Some(standing) = seen.standing(server, item, hash, pin) else {
                if item.kind == PinKind::Tool {
                    let fine = ToolTrust { hash: hash.clone(), change: None };
                    trust.tools.insert(item.name.into(), fine);
                }
                continue;
            };
            is_waiting = true;
            differing += 1;
            let trusted = pin.filter(|pin| pin.trusted.is_some()).and_then(|pin| self.trusted_text(pin));
            let (effect, rule) = seen.effect(standing, item);
            let change = Arc::new(DefinitionChange {
                standing,
                effect,
                rule,
                hash: hash.clone(),
                since_ms: pin.map_or_else(|| self.clock.unix_ms(), |pin| pin.since_ms),
                difference: match differing > MOST_SHOWN {
                    true => "Too many definitions differ to show each; `nonet trust --list` shows them all."
                        .into(),
                    false => told_difference(standing, trusted.as_ref(), item, end),
                },
                trusted_hints: (standing == DefinitionState::Changed).then(|| {
                    trusted.as_ref().and_then(|old| old.get("annotations").cloned()).unwrap_or_default()
                }),
            });
            if let Some(pin) = pin.filter(|pin| !pin.told && pin.waiting.as_deref() == Some(hash)) {
                news.push(ChangeNews { pin: pin.clone(), change: change.clone() });
            }
            let mut shown = hash.clone();
            if effect != OnChange::Tell {
                let stand_in = stand_in(item, trusted);
                if let Some(value) = &stand_in {
                    shown = pin
                        .and_then(|pin| pin.trusted.as_deref())
                        .map_or_else(|| self::hash(value).into(), Into::into);
                }
                published.insert((item.kind, item.name), stand_in);
            }
            match item.kind {
                PinKind::Tool => {
                    let changed = ToolTrust { hash: shown, change: Some(change) };
                    trust.tools.insert(item.name.into(), changed);
                }
                PinKind::Instructions => trust.instructions = Some(change),
                PinKind::Prompt => {}
            }
        }
        match is_waiting {
            true => drop(self.waiting.lock().insert(server.clone())),
            false => drop(self.waiting.lock().remove(server)),
        }
        CheckedListing { definitions: substituted(listed, &published), trust: Arc::new(trust), news }
    }

    /// Returns a pin's trusted definition, as far as its text is kept.
    fn trusted_text(&self, pin: &Pin) -> Option<Value> {
        let texts = self.db()?.texts(pin).ok()?;
        serde_json::from_str(&texts.trusted?).ok()
    }

    /// Trusts waiting changes, of a whole server or of one of its definitions, as they were seen. Returns how
    /// many. Blocks.
    pub fn trust(&self, seen: &[Pin]) -> Result<usize, StoreError> {
        let db = self.db().ok_or(StoreError::Unusable)?;
        let trusted = db.trust(seen, self.clock.unix_ms())?;
        self.revision.fetch_add(1, Ordering::AcqRel);
        self.trusted.notify_one();
        Ok(trusted)
    }

    /// Notes that changes were reported. Blocks.
    pub fn told(&self, seen: &[Pin]) {
        if let Some(db) = self.db()
            && let Err(error) = db.told(seen)
        {
            tracing::debug!(%error, "could not record that a change was reported");
        }
    }

    /// Returns the store of the pins, if there is one.
    pub fn kept(&self) -> Option<Arc<PinStore>> {
        self.db()
    }

    /// Returns how many definitions wait. Blocks.
    pub fn count_waiting(&self) -> Result<usize, StoreError> {
        self.db().ok_or(StoreError::Unusable)?.count_waiting()
    }

    /// Returns the first `most` waiting definitions, with their differences. Blocks.
    pub fn waiting(&self, most: usize) -> Result<Vec<WaitingPin>, StoreError> {
        let db = self.db().ok_or(StoreError::Unusable)?;
        let end = Instant::now() + definition::PATIENCE;
        let read = |text: Option<String>| text.and_then(|text| serde_json::from_str::<Value>(&text).ok());
        let waiting = db.waiting(most)?.into_iter().map(|(pin, texts)| {
            let standing =
                if pin.trusted.is_some() { DefinitionState::Changed } else { DefinitionState::New };
            let trusted = read(texts.trusted);
            let (difference, marked) = match read(texts.waiting) {
                Some(value) => {
                    let marked = trusted.as_ref().map(|trusted| definition::marked(trusted, &value, end));
                    let item = Item { kind: pin.kind, name: &pin.name, value: Cow::Owned(value) };
                    (told_difference(standing, trusted.as_ref(), &item, end), marked.unwrap_or_default())
                }
                None => {
                    let why = "The definition is too large to be kept; only its hash is known.".to_string();
                    (why, Vec::new())
                }
            };
            WaitingPin { pin, standing, difference, marked }
        });
        Ok(waiting.collect())
    }

    /// Returns the hashes of the servers' current definitions.
    pub fn listed(&self) -> CurrentHashes {
        self.listed.lock().clone()
    }

    /// Forgets servers that are no longer configured; their pins stay.
    pub fn retain(&self, is_known: impl Fn(&Arc<str>) -> bool) {
        self.listed.lock().retain(|server, _| is_known(server));
        self.waiting.lock().retain(|server| is_known(server));
        self.last_read.lock().retain(|server, _| is_known(server));
    }
}

/// A pin that waits to be trusted.
#[derive(Clone, Debug)]
pub struct WaitingPin {
    /// The pin as last read.
    pub pin: Pin,
    /// Its state.
    pub standing: DefinitionState,
    /// The differences from the trusted definition, or the new definition.
    pub difference: String,
    /// The differences with the words that differ, if the trusted definition is kept.
    pub marked: Vec<MarkedPlace>,
}

impl WaitingPin {
    /// Returns the pin's name for people.
    pub fn name(&self) -> String {
        shown_name(&self.pin)
    }

    /// Returns the pin as answers show it.
    pub fn view(&self) -> DefinitionView {
        DefinitionView {
            name: self.name(),
            server: self.pin.server.clone(),
            kind: self.pin.kind.as_str().into(),
            state: self.standing,
            hash: self.pin.waiting.clone(),
            since_ms: self.pin.since_ms,
            difference: self.difference.clone(),
        }
    }

    /// Returns whether a name on the command line matches this pin or its server.
    pub fn is_named(&self, name: &str) -> bool {
        name == self.pin.server || name == self.name()
    }
}

/// Returns a pin's shown name: `server.tool`, with one more word for a definition other than a tool's.
pub fn shown_name(pin: &Pin) -> String {
    match pin.kind {
        PinKind::Tool => format!("{}.{}", pin.server, pin.name),
        PinKind::Prompt => format!("{}.prompt:{}", pin.server, pin.name),
        PinKind::Instructions => format!("{}.instructions", pin.server),
    }
}

#[cfg(test)]
mod tests;
