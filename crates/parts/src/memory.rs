//! What models ask Nonet to remember: facts to find again, and the goal and tasks of their work.
//!
//! Facts belong to a user and profile; [`Memory`] finds them with the same search as tools. The goal and the
//! tasks are on a [`WorkPlace`]: in the store for clients of this machine, so that their next session
//! continues with them, else in the session. This room knows owners as strings; it knows no clients or tools.

mod desk;
mod facts;
mod shelf;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use nonet_base::clock::Clock;
use nonet_search::{Embedder, RankingWeights, Settings};
use nonet_store::Records;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use desk::{MOST_TASKS, TaskAddition, Todo, Work, WorkPlace, Worklist};
use facts::Fact;
pub use facts::{FactOutcome, MOST_FACTS};
use parking_lot::Mutex;
use shelf::Shelf;

/// How many facts of all owners are kept in memory; facts of the least recently active owners are dropped
/// first.
const MOST_IN_MEMORY: usize = 2 * MOST_FACTS;

/// Facts, goals and tasks.
#[derive(Clone, Debug)]
pub struct Memory {
    records: Arc<Records>,
    clock: Clock,
    settings: Settings,
    tasks: TaskTracker,
    stop: CancellationToken,
    /// The facts of active owners, the most recent last.
    shelves: Arc<Mutex<Vec<Arc<Shelf>>>>,
}

impl Memory {
    /// Creates a memory over a store. One of `tasks` per owner makes vectors, until `stop`.
    pub fn new(
        records: Arc<Records>,
        clock: Clock,
        embedder: &Settings,
        tasks: TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        // Comparing all facts of one quota takes only milliseconds.
        let settings =
            Settings { weights: &RankingWeights::PROSE, hnsw_above: usize::MAX, ..embedder.clone() };
        Self { records, clock, settings, tasks, stop, shelves: Arc::default() }
    }

    /// Returns the shelf of an owner, and marks it as the most recently used.
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

    /// Updates a shelf's index in the background, and makes the missing vectors.
    fn catch_up(&self, shelf: &Arc<Shelf>, embedder: Option<&Embedder>) {
        if shelf.begin_catching_up() {
            let (records, shelf, stop) = (self.records.clone(), shelf.clone(), self.stop.clone());
            let embedder = embedder.cloned();
            self.tasks.spawn(async move {
                tokio::select! {
                    () = shelf.catch_up(&records, embedder.as_ref()) => {}
                    () = stop.cancelled() => {}
                }
            });
        }
    }
}
