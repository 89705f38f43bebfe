//! What models ask Nonet to remember: facts to find again, and the goal and the tasks of their work.
//!
//! Facts belong to a user and profile; [`Memory`] finds them by the same search as tools. The goal and the tasks are on a
//! [`Desk`]: in the store for clients of this machine, whose next session goes on with them, else in the session. The room
//! knows owners as strings, and neither clients nor tools.

mod desk;
mod facts;
mod shelf;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use desk::{AddedTask, Desk, MOST_TASKS, Todo, TodoState, Work, Worklist};
use facts::Fact;
pub use facts::{MOST_FACTS, Remembered};
use parking_lot::Mutex;
use shelf::Shelf;

use crate::{
    clock::Clock,
    search::{Embedder, Rules, Settings},
    store::Records,
};

/// Facts of all owners that are kept in memory; the owners that used theirs longest ago go first.
const MOST_IN_MEMORY: usize = 2 * MOST_FACTS;

/// Facts, goals and tasks.
#[derive(Clone, Debug)]
pub struct Memory {
    records: Arc<dyn Records>,
    clock: Clock,
    settings: Settings,
    tasks: TaskTracker,
    stop: CancellationToken,
    /// The facts of the owners that used theirs, latest last.
    shelves: Arc<Mutex<Vec<Arc<Shelf>>>>,
}

impl Memory {
    /// Remembers in a store. Vectors are made by one of `tasks` for each owner, until `stop`.
    pub fn new(
        records: Arc<dyn Records>,
        clock: Clock,
        embedder: &Settings,
        tasks: TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        // A quota of facts is compared one by one within milliseconds.
        let settings = Settings { rules: Rules::prose(), hnsw_above: usize::MAX, ..embedder.clone() };
        Self { records, clock, settings, tasks, stop, shelves: Arc::default() }
    }

    /// The shelf of an owner, which is the latest used from now on.
    fn shelf(&self, owner: &str) -> Arc<Shelf> {
        let mut shelves = self.shelves.lock();
        let at = shelves.iter().position(|shelf| shelf.owner == owner);
        let shelf = match at {
            Some(at) => shelves.remove(at),
            None => Arc::new(Shelf::new(owner, &self.settings)),
        };
        shelves.push(shelf.clone());
        let mut count: usize = shelves.iter().map(|shelf| shelf.len()).sum();
        while count > MOST_IN_MEMORY && shelves.len() > 1 {
            count -= shelves.remove(0).len();
        }
        shelf
    }

    /// Indexes what has changed on a shelf in the background, and makes the missing vectors.
    fn catch_up(&self, shelf: &Arc<Shelf>, embedder: Option<&Embedder>) {
        if shelf.begin_catching_up() {
            let (records, shelf, stop) = (self.records.clone(), shelf.clone(), self.stop.clone());
            let embedder = embedder.cloned();
            self.tasks.spawn(async move {
                tokio::select! {
                    () = shelf.catch_up(&*records, embedder.as_ref()) => {}
                    () = stop.cancelled() => {}
                }
            });
        }
    }
}
