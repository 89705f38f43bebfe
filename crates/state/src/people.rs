//! The people who have signed in: how their tokens last described them, for calls that run without them, and
//! for the names that others read.

use std::sync::Arc;

use dashmap::DashMap;
use nonet_auth::{Owner, Person};
use nonet_store::{NewRecord, RecordKind, RecordQuota, Records, StoreError};

/// How many people and profiles are kept. Beyond that, those go whose tokens have said nothing new for the
/// longest time.
const MAX_KEPT: usize = 10_000;
/// How many are in memory.
const MAX_HELD: usize = 2_000;

/// The people who have signed in, under each of their profiles.
pub struct People {
    records: Arc<Records>,
    /// As last seen in this process, by owner.
    seen: DashMap<Owner, Arc<Person>>,
}

impl People {
    /// Returns the people of a store.
    pub fn new(records: Arc<Records>) -> Arc<Self> {
        Arc::new(Self { records, seen: DashMap::new() })
    }

    /// Notes how a token describes a person. Written only if it says anything new.
    pub fn sees(self: &Arc<Self>, owner: &Owner, person: &Arc<Person>) {
        let before = self.seen.get(owner).map(|before| before.clone());
        if before.as_ref().is_some_and(|before| Arc::ptr_eq(before, person)) {
            return;
        }
        if self.seen.len() >= MAX_HELD && before.is_none() {
            self.seen.clear();
        }
        self.seen.insert(owner.clone(), person.clone());
        if before.is_some_and(|before| before.says_the_same(person)) {
            return;
        }
        let (people, owner, person) = (self.clone(), owner.clone(), person.clone());
        tokio::spawn(async move {
            if let Err(error) = people.write(&owner, &person).await {
                tracing::warn!(%error, "what a person's token says is not kept");
            }
        });
    }

    async fn write(&self, owner: &Owner, person: &Person) -> Result<(), StoreError> {
        let kept = self.read(owner).await?;
        if kept.is_some_and(|kept| kept.says_the_same(person)) {
            return Ok(());
        }
        let body = serde_json::to_value(person).unwrap_or_default();
        let id = owner.as_str().to_owned();
        let record = NewRecord { id, held: false, ..NewRecord::new(RecordKind::Person, body) };
        self.records.put(record, RecordQuota::DropOldest(MAX_KEPT)).await.map(drop)
    }

    /// Returns the person of an owner, as last seen by any gateway. `None`: the owner is no person, or nothing
    /// is known of them any more.
    pub async fn of(&self, owner: &Owner) -> Option<Arc<Person>> {
        owner.person()?;
        if let Some(person) = self.seen.get(owner) {
            return Some(person.clone());
        }
        match self.read(owner).await {
            Ok(person) => person.map(Arc::new),
            Err(error) => {
                tracing::warn!(%error, "a person cannot be looked up");
                None
            }
        }
    }

    async fn read(&self, owner: &Owner) -> Result<Option<Person>, StoreError> {
        let record = self.records.get(RecordKind::Person, "", owner.as_str()).await?;
        Ok(record.and_then(|record| serde_json::from_value(record.body).ok()))
    }

    /// Returns the name of an owner's person, if they were seen in this process.
    pub fn name(&self, owner: &Owner) -> Option<Arc<str>> {
        owner.person()?;
        self.seen.get(owner).map(|person| person.name.clone())
    }

    /// Returns the owners who were described last, at most this many.
    pub async fn owners(&self, most: usize) -> Result<Vec<Owner>, StoreError> {
        let kept = self.records.all(RecordKind::Person, "").await?;
        Ok(kept.iter().rev().take(most).map(|record| Owner::of(&record.id)).collect())
    }
}
