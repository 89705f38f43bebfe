//! The people who have signed in: how their tokens last described them, for calls that run without them, and
//! for the names that others read.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use dashmap::DashMap;
use nonet_auth::{Owner, Person};
use nonet_store::{NewRecord, RecordKind, RecordQuota, Records, StoreError};

/// How many people and profiles are kept. Beyond that, those go whose tokens have said nothing new for the
/// longest time.
const MAX_KEPT: usize = 10_000;
/// How often the description of a person is written at most.
const WRITE: Duration = Duration::from_secs(60);

/// The people who have signed in, under each of their profiles.
#[derive(Debug)]
pub struct People {
    records: Arc<Records>,
    /// As last seen in this process, by owner.
    seen: DashMap<Owner, SeenPerson>,
}

#[derive(Debug)]
struct SeenPerson {
    person: Arc<Person>,
    /// When their description was written last. Several clients of a person may describe them in turns.
    written: Option<Instant>,
}

impl People {
    /// Returns the people of a store.
    pub fn new(records: Arc<Records>) -> Arc<Self> {
        Arc::new(Self { records, seen: DashMap::new() })
    }

    /// Notes how a token describes a person. Written only if it says anything new.
    pub fn sees(self: &Arc<Self>, owner: &Owner, person: &Arc<Person>) {
        if self.seen.get(owner).is_some_and(|seen| Arc::ptr_eq(&seen.person, person)) {
            return;
        }
        if self.seen.len() >= MAX_KEPT && !self.seen.contains_key(owner) {
            self.seen.clear();
        }
        {
            let new = || SeenPerson { person: person.clone(), written: None };
            let mut seen = self.seen.entry(owner.clone()).or_insert_with(new);
            let is_news = seen.written.is_none() || !seen.person.says_the_same(person);
            seen.person = person.clone();
            if !is_news || seen.written.is_some_and(|at| at.elapsed() < WRITE) {
                return;
            }
            seen.written = Some(Instant::now());
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
        // Another gateway may have seen them later.
        match self.read(owner).await {
            Ok(Some(person)) => Some(Arc::new(person)),
            Ok(None) => self.last_seen(owner),
            Err(error) => {
                tracing::warn!(%error, "a person cannot be looked up");
                self.last_seen(owner)
            }
        }
    }

    fn last_seen(&self, owner: &Owner) -> Option<Arc<Person>> {
        self.seen.get(owner).map(|seen| seen.person.clone())
    }

    async fn read(&self, owner: &Owner) -> Result<Option<Person>, StoreError> {
        let record = self.records.get(RecordKind::Person, "", owner.as_str()).await?;
        Ok(record.and_then(|record| serde_json::from_value(record.body).ok()))
    }

    /// Returns the name of an owner's person, if they were seen in this process.
    pub fn name(&self, owner: &Owner) -> Option<Arc<str>> {
        owner.person()?;
        self.seen.get(owner).map(|seen| seen.person.name.clone())
    }

    /// Returns the owners who were described last, at most this many.
    pub async fn owners(&self, most: usize) -> Result<Vec<Owner>, StoreError> {
        let kept = self.records.all(RecordKind::Person, "").await?;
        Ok(kept.iter().rev().take(most).map(|record| Owner::of(&record.id)).collect())
    }
}
