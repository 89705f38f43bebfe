//! A file of the store that is opened on first use, and again after it was removed.

use std::{fmt::Debug, sync::Arc};

use parking_lot::Mutex;
use tokio::task::spawn_blocking;

/// An open file of the store: `None` in the inner option if it could not be opened.
#[derive(Debug)]
pub struct OpenDb<Db: ?Sized>(Arc<Mutex<Option<Option<Arc<Db>>>>>);

/// A file that may be removed while it is open.
pub trait Removable {
    /// Whether the file was removed or replaced since it was opened. SQLite would go on writing to what
    /// nobody can find.
    fn is_gone(&self) -> bool;
}

impl<Db: ?Sized> Default for OpenDb<Db> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<Db: Removable + ?Sized> OpenDb<Db> {
    /// Returns whether the file was used before.
    pub fn is_used(&self) -> bool {
        // Whoever holds the lock for longer than a moment opens the file.
        self.0.try_lock().is_none_or(|opened| opened.is_some())
    }

    /// Returns the file if it is open and nobody is opening it.
    pub(crate) fn now(&self) -> Option<Arc<Db>> {
        self.0.try_lock().and_then(|opened| opened.clone()).flatten()
    }

    /// Returns the open file. Blocks while it is opened.
    pub fn get(&self, open: impl FnOnce() -> Option<Arc<Db>>) -> Option<Arc<Db>> {
        let mut opened = self.0.lock();
        match &*opened {
            Some(db) if !is_gone(db) => return db.clone(),
            Some(_) => {
                tracing::warn!("a file of the store was removed while it was in use; it is made again, empty")
            }
            None => {}
        }
        // The old one is closed only afterwards, so that this gateway's leases in the folder last.
        let db = open();
        *opened = Some(db.clone());
        db
    }
}

impl<Db: Removable + Send + Sync + 'static> OpenDb<Db> {
    /// Returns the open file; opens it away from the threads that answer.
    pub async fn get_soon(&self, open: impl FnOnce() -> Option<Db> + Send + 'static) -> Option<Arc<Db>> {
        let now = self.0.try_lock().and_then(|opened| opened.clone()).filter(|db| !is_gone(db));
        if let Some(db) = now {
            return db;
        }
        let this = Self(self.0.clone());
        spawn_blocking(move || this.get(|| open().map(Arc::new))).await.ok().flatten()
    }
}

fn is_gone<Db: Removable + ?Sized>(db: &Option<Arc<Db>>) -> bool {
    db.as_ref().is_some_and(|db| db.is_gone())
}
