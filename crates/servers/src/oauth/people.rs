//! The accounts of people: one sign-in for each person and server, sealed in the store that gateways share.

use std::{
    path::Path,
    sync::{Arc, OnceLock},
    time::Duration,
};

use backon::{ExponentialBuilder, Retryable};
use dashmap::DashMap;
use nonet_base::{
    clock::{system_time, unix_ms},
    json::set_member,
    text::hex,
};
use nonet_store::{NewRecord, RecordKind, RecordQuota, Records, StoreError};
use nonet_wire::sealing::{SealSource, Sealer};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::{sync::watch, time::Instant};

use super::{SignInRecord, VaultError};

/// What the key is for.
const PURPOSE: &str = "accounts of people";
/// How many accounts a person has at most. Beyond that, the oldest goes.
const MOST: usize = 200;
/// How many clients the gateway keeps that it registered.
const MOST_CLIENTS: usize = 1_000;
/// How long a registered client is used.
const CLIENT_LASTS: Duration = Duration::from_secs(30 * 24 * 3_600);
/// How often the store is read for what other replicas changed, in seconds.
const LOOK_SECS: u64 = 30;
/// How often a change is tried that others interrupt, and the end of a lock.
const TRIES: usize = 5;
const FREE_TRIES: usize = 100;
/// The delay before another look at an account that another replica renews, and the longest wait for it.
const LOCK_LOOK: Duration = Duration::from_millis(20);
const LOCK_LIMIT: Duration = Duration::from_secs(30);

/// The accounts of all people.
pub struct PeopleVault {
    records: Arc<Records>,
    /// The source of the key; also of the keys for other purposes.
    pub seals: SealSource,
    sealer: OnceLock<Sealer>,
    /// Grows with each change in this process.
    changed: watch::Sender<u64>,
    /// The changes of each account in this process, by person and id.
    changes: DashMap<(Arc<str>, String), u64>,
}

impl std::fmt::Debug for PeopleVault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PeopleVault")
    }
}

/// A client that the gateway has registered at a sign-in server, for all people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegisteredClient {
    /// Its id.
    pub client_id: String,
    /// Its secret, if registration gave one.
    pub client_secret: Option<String>,
    /// The sign-in server that knows it.
    pub issuer: Option<String>,
    /// When it was registered, in seconds since 1970.
    pub at: u64,
}

impl PeopleVault {
    /// Returns the accounts in a store, sealed with this key, or with that of a state folder.
    pub fn new(records: Arc<Records>, key: Option<&str>, folder: Option<&Path>) -> Arc<Self> {
        let seals = SealSource::new(key, folder);
        Arc::new(Self {
            records,
            seals,
            sealer: OnceLock::new(),
            changed: watch::Sender::new(0),
            changes: DashMap::new(),
        })
    }

    fn sealer(&self) -> Result<&Sealer, VaultError> {
        if let Some(sealer) = self.sealer.get() {
            return Ok(sealer);
        }
        let made = self.seals.sealer(PURPOSE).map_err(|error| VaultError::Store(error.to_string()))?;
        Ok(self.sealer.get_or_init(|| made))
    }

    /// Returns a person's account at a server. A different address is a different server: no token goes there.
    pub fn account(self: &Arc<Self>, person: &Arc<str>, server: &str, url: &str) -> PersonEntry {
        let id = format!("{server}-{}", hex(&Sha256::digest(url)[..8]));
        PersonEntry { vault: self.clone(), person: person.clone(), server: server.into(), id }
    }

    /// Returns the client that the gateway registered for people at a server.
    pub async fn client(&self, url: &str, redirect_uri: &str) -> Option<RegisteredClient> {
        let id = client_id(url, redirect_uri);
        let record = self.records.get(RecordKind::Account, "", &id).await.ok()??;
        let client: RegisteredClient = self.opened("", &id, &record.body)?;
        let age = now().saturating_sub(client.at);
        (age < CLIENT_LASTS.as_secs()).then_some(client)
    }

    /// Keeps a registered client, or forgets it.
    pub async fn keep_client(&self, url: &str, redirect_uri: &str, client: Option<&RegisteredClient>) {
        let id = client_id(url, redirect_uri);
        let kept = match client {
            Some(client) => self.put("", &id, client, json!({}), MOST_CLIENTS).await,
            None => self.records.take(RecordKind::Account, "", &id).await.map(drop).map_err(VaultError::from),
        };
        if let Err(error) = kept {
            tracing::warn!(%error, "a registered client is not kept");
        }
    }

    async fn put(
        &self,
        owner: &str,
        id: &str,
        content: &impl Serialize,
        about: Value,
        most: usize,
    ) -> Result<(), VaultError> {
        let mut body = about;
        set_member(&mut body, "sealed", self.sealed(owner, id, content)?);
        let (owner, id) = (owner.to_owned(), id.to_owned());
        let record = NewRecord { owner, id, held: false, ..NewRecord::new(RecordKind::Account, body) };
        self.records.put(record, RecordQuota::DropOldest(most)).await?;
        Ok(())
    }

    fn sealed(&self, owner: &str, id: &str, content: &impl Serialize) -> Result<String, VaultError> {
        let text = serde_json::to_vec(content).map_err(|error| VaultError::Store(error.to_string()))?;
        let sealed = self.sealer()?.seal(&place(owner, id), &text);
        sealed.map_err(|error| VaultError::Store(error.to_string()))
    }

    /// Opens a record. `None`: another key sealed it, or it is damaged.
    fn opened<T: DeserializeOwned>(&self, owner: &str, id: &str, body: &Value) -> Option<T> {
        let sealer = self.sealer().inspect_err(|error| tracing::error!("{error}")).ok()?;
        let text = sealer.open(&place(owner, id), body["sealed"].as_str()?);
        if text.is_none() {
            tracing::warn!(
                owner,
                id,
                "an account cannot be opened: it was sealed with another key (`key` in [auth])"
            );
        }
        serde_json::from_slice(&text?).ok()
    }

    /// Watches for changes of accounts in this process.
    fn watch(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }
}

fn now() -> u64 {
    unix_ms(system_time()) / 1_000
}

/// What a seal is bound to: nobody can give one person's record to another.
fn place(owner: &str, id: &str) -> String {
    format!("{owner}\n{id}")
}

fn client_id(url: &str, redirect_uri: &str) -> String {
    format!("client-{}", hex(&Sha256::digest(format!("{url}\n{redirect_uri}"))[..16]))
}

/// The place of one person's account at one server.
#[derive(Clone, Debug)]
pub struct PersonEntry {
    vault: Arc<PeopleVault>,
    person: Arc<str>,
    server: Arc<str>,
    id: String,
}

impl PersonEntry {
    /// Returns a value that differs when the account may have changed since.
    pub(super) fn stamp(&self) -> (u64, u64) {
        (self.changes(), now() / LOOK_SECS)
    }

    fn changes(&self) -> u64 {
        let key = (self.person.clone(), self.id.clone());
        self.vault.changes.get(&key).map_or(0, |changes| *changes)
    }

    fn has_changed(&self) {
        *self.vault.changes.entry((self.person.clone(), self.id.clone())).or_default() += 1;
        self.vault.changed.send_modify(|changes| *changes += 1);
    }

    /// Returns the sign-in, if there is one. One that cannot be opened counts as none.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    pub async fn read(&self) -> Result<Option<SignInRecord>, VaultError> {
        let record = self.vault.records.get(RecordKind::Account, &self.person, &self.id).await?;
        Ok(record.and_then(|record| self.vault.opened(&self.person, &self.id, &record.body)))
    }

    /// Keeps a new sign-in.
    ///
    /// # Errors
    ///
    /// If the store cannot be written.
    pub async fn keep(&self, record: &SignInRecord) -> Result<(), VaultError> {
        let about = json!({ "server": &*self.server });
        self.vault.put(&self.person, &self.id, record, about, MOST).await?;
        self.has_changed();
        Ok(())
    }

    /// Replaces a sign-in that was renewed, unless there is another one by now.
    pub(super) async fn replace(&self, renewed: &SignInRecord) -> Result<(), VaultError> {
        for _ in 0..TRIES {
            let found = self.vault.records.get(RecordKind::Account, &self.person, &self.id).await?;
            let Some(mut record) = found else { return Ok(()) };
            let stored: Option<SignInRecord> = self.vault.opened(&self.person, &self.id, &record.body);
            if stored.is_none_or(|stored| stored.id != renewed.id) {
                return Ok(());
            }
            let sealed = self.vault.sealed(&self.person, &self.id, renewed)?;
            set_member(&mut record.body, "sealed", sealed);
            if self.vault.records.change(record).await? {
                return Ok(());
            }
        }
        Err(VaultError::Store("the account is changed again and again".into()))
    }

    /// Removes the sign-in. Returns whether there was one.
    ///
    /// # Errors
    ///
    /// If the store cannot be written.
    pub async fn remove(&self) -> Result<bool, VaultError> {
        let taken = self.vault.records.take(RecordKind::Account, &self.person, &self.id).await?;
        self.has_changed();
        Ok(taken.is_some())
    }

    /// Holds the account for a renewal, against other replicas, until the lock is dropped. A replica that ends
    /// loses what it holds.
    pub(super) async fn lock(&self) -> Result<PersonLock, VaultError> {
        let until = Instant::now() + LOCK_LIMIT;
        loop {
            let record = self.vault.records.get(RecordKind::Account, &self.person, &self.id).await?;
            let Some(record) = record else { return Ok(PersonLock(None)) };
            // Made before the answer: it may be lost after the account is held.
            let lock = PersonLock(Some(self.clone()));
            if self.vault.records.hold(&record).await? {
                return Ok(lock);
            }
            lock.forget();
            if Instant::now() >= until {
                return Err(VaultError::Store("another replica holds the account for a renewal".into()));
            }
            tokio::time::sleep(LOCK_LOOK).await;
        }
    }

    /// Resolves when the account may have changed.
    pub(super) async fn changed(&self) {
        let (mut changes, before) = (self.vault.watch(), self.changes());
        let here = async { while self.changes() == before && changes.changed().await.is_ok() {} };
        // The store says what other replicas changed.
        let _ = tokio::time::timeout(Duration::from_secs(LOOK_SECS), here).await;
    }
}

/// Holds an account until dropped.
pub(super) struct PersonLock(Option<PersonEntry>);

impl PersonLock {
    /// Drops a lock that was not taken.
    fn forget(mut self) {
        self.0 = None;
    }
}

impl Drop for PersonLock {
    fn drop(&mut self) {
        let Some(entry) = self.0.take() else { return };
        let free = move || {
            let entry = entry.clone();
            async move {
                entry.vault.records.free(RecordKind::Account, &entry.person, vec![entry.id.clone()]).await
            }
        };
        let pauses = ExponentialBuilder::default().with_max_delay(LOCK_LIMIT).with_max_times(FREE_TRIES);
        tokio::spawn(async move {
            if let Err(error) = free.retry(pauses).sleep(tokio::time::sleep).await {
                tracing::error!(%error, "an account of a person is not renewed any more until this gateway ends");
            }
        });
    }
}

impl From<StoreError> for VaultError {
    fn from(error: StoreError) -> Self {
        Self::Store(error.to_string())
    }
}
