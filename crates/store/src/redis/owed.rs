//! Entries that could not be written to Redis and wait in memory: they are written once Redis is back, so that the other
//! replicas get them too.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;

use super::{
    super::{Share, SpareStore},
    kept::{KeptKeys, NewEntry},
};

/// How often a write is retried.
const AGAIN: Duration = Duration::from_millis(300);

/// The entries in memory that Redis lacks.
#[derive(Debug)]
pub(super) struct UnsyncedEntries {
    kept: Arc<KeptKeys>,
    spare: Arc<SpareStore>,
    entries: Mutex<BTreeMap<String, (NewEntry, Share)>>,
    /// Whether a task is retrying.
    is_tried: AtomicBool,
}

impl UnsyncedEntries {
    pub(super) fn new(kept: Arc<KeptKeys>, spare: Arc<SpareStore>) -> Self {
        Self { kept, spare, entries: Mutex::default(), is_tried: AtomicBool::new(false) }
    }

    /// Adds an entry that is only in memory, and starts to retry.
    pub(super) fn add(self: &Arc<Self>, entry: NewEntry, share: Share) {
        self.entries.lock().insert(entry.id.clone(), (entry, share));
        if self.is_tried.swap(true, Ordering::AcqRel) {
            return;
        }
        let owed = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(AGAIN).await;
                let Some(owed) = owed.upgrade() else { return };
                owed.write_all().await;
                let entries = owed.entries.lock();
                if entries.is_empty() {
                    owed.is_tried.store(false, Ordering::Release);
                    return;
                }
            }
        });
    }

    /// Removes an entry that Redis has by now.
    pub(super) fn remove(&self, id: &str) {
        self.entries.lock().remove(id);
    }

    /// Writes one entry after another, until one fails.
    async fn write_all(&self) {
        let all: Vec<(NewEntry, Share)> = self.entries.lock().values().cloned().collect();
        for (entry, share) in all {
            let (id, owner) = (entry.id.clone(), entry.owner.clone());
            let text = self.spare.read(move |db| db.text(&id, &owner)).await.ok().flatten();
            // Memory had no room for it, or it has expired.
            if text.is_none() && entry.job.is_none() {
                self.remove(&entry.id);
                continue;
            }
            match self.kept.put(&entry, &share, text.unwrap_or_default().as_bytes()).await {
                Ok(()) => {
                    {
                        let mut entries = self.entries.lock();
                        // A job may have ended meanwhile, and then its end is still to be written.
                        if entries.get(&entry.id).is_some_and(|(now, _)| *now != entry) {
                            continue;
                        }
                        entries.remove(&entry.id);
                    }
                    if let Err(error) = self.spare.written(&entry.id).await {
                        tracing::debug!(%error, "an entry that Redis has stays in memory, too");
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "results and tasks still wait in memory");
                    return;
                }
            }
        }
    }
}
