//! Fair turns: a number of slots, and a queue in which owners take turns.
//!
//! Each owner has a lane of waiting work, and a free slot goes to the next lane. So an owner with sixty
//! waiting calls delays another owner by one call. This room knows numbers of owners, but not what is done in
//! a slot.

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

/// Slots for the work of several owners.
pub struct Turns {
    most: usize,
    /// The maximum number waiting.
    longest: usize,
    queue: Mutex<Queue>,
    /// Notified when the last slot is released.
    idle: Notify,
    /// How many are waiting, except for cancelled ones.
    waiting: AtomicUsize,
}

#[derive(Default)]
struct Queue {
    free: usize,
    /// One lane per waiting owner, in order of their turns.
    lanes: VecDeque<Lane>,
}

struct Lane {
    owner: u64,
    waiting: VecDeque<oneshot::Sender<Slot>>,
}

/// A slot, released when dropped.
pub struct Slot(Option<Arc<Turns>>);

/// Slots that several processes share.
pub trait SharedSlots: fmt::Debug + Send + Sync {
    /// Takes one of the `most` slots with a name, if one is free. Answers within a moment.
    fn take<'a>(&'a self, name: &'a str, most: usize) -> BoxFuture<'a, SharedTake>;
}

/// The outcome of taking a shared slot.
#[derive(Debug)]
pub enum SharedTake {
    /// The slot is taken until this is dropped.
    Taken(SharedSlot),
    /// No slot is free.
    Full,
    /// The shared slots are unreachable: each process works on its own.
    Alone,
}

/// A shared slot, released when dropped.
pub struct SharedSlot(Option<Box<dyn FnOnce() + Send + Sync>>);

impl SharedSlot {
    /// Returns a slot that `give_back` releases.
    pub fn new(give_back: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self(Some(Box::new(give_back)))
    }

    /// Forgets the slot without releasing it.
    pub fn forget(mut self) {
        self.0 = None;
    }
}

impl fmt::Debug for SharedSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedSlot")
    }
}

impl Drop for SharedSlot {
    fn drop(&mut self) {
        if let Some(give_back) = self.0.take() {
            give_back();
        }
    }
}

/// Too many are already waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueFull;

impl fmt::Debug for Turns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turns")
            .field("most", &self.most)
            .field("taken", &self.taken())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Slot")
    }
}

impl Turns {
    /// Creates `most` slots, with a queue of at most `longest`.
    pub fn new(most: usize, longest: usize) -> Arc<Self> {
        let queue = Mutex::new(Queue { free: most, lanes: VecDeque::new() });
        Arc::new(Self { most, longest, queue, idle: Notify::new(), waiting: AtomicUsize::new(0) })
    }

    /// Takes a slot, or waits for one in the lane of its owner. Dropping the future leaves the lane.
    pub async fn take(self: &Arc<Self>, owner: u64) -> Result<Slot, QueueFull> {
        let turn = {
            let mut queue = self.queue.lock();
            if queue.free > 0 {
                queue.free -= 1;
                return Ok(Slot(Some(self.clone())));
            }
            if self.waiting.load(Ordering::Relaxed) >= self.longest {
                return Err(QueueFull);
            }
            let (sender, turn) = oneshot::channel();
            queue.join(owner, sender);
            turn
        };
        let _waits = Waits::new(&self.waiting);
        // The sender is dropped only with the queue, which lives as long as this borrow.
        turn.await.map_err(|_| QueueFull)
    }

    /// Returns how many slots are taken.
    pub fn taken(&self) -> usize {
        self.most - self.queue.lock().free
    }

    /// Waits until no slot is taken.
    pub async fn idle(&self) {
        loop {
            let idle = self.idle.notified();
            if self.taken() == 0 {
                return;
            }
            idle.await;
        }
    }

    fn give_back(self: Arc<Self>) {
        loop {
            let next = {
                let mut queue = self.queue.lock();
                match queue.next() {
                    Some(next) => next,
                    None => {
                        queue.free += 1;
                        if queue.free == self.most {
                            self.idle.notify_waiters();
                        }
                        return;
                    }
                }
            };
            match next.send(Slot(Some(self.clone()))) {
                Ok(()) => return,
                // The waiter has given up. Emptied, so that dropping the slot does not release it twice.
                Err(mut slot) => drop(slot.0.take()),
            }
        }
    }
}

impl Queue {
    fn join(&mut self, owner: u64, sender: oneshot::Sender<Slot>) {
        match self.lanes.iter_mut().find(|lane| lane.owner == owner) {
            Some(lane) => {
                // Cancelled waiters take no room.
                lane.waiting.retain(|waiting| !waiting.is_closed());
                lane.waiting.push_back(sender);
            }
            None => self.lanes.push_back(Lane { owner, waiting: VecDeque::from([sender]) }),
        }
    }

    /// Takes the first waiter of the next lane, and moves that lane to the end.
    fn next(&mut self) -> Option<oneshot::Sender<Slot>> {
        while let Some(mut lane) = self.lanes.pop_front() {
            let next = lane.waiting.pop_front();
            if !lane.waiting.is_empty() {
                self.lanes.push_back(lane);
            }
            if next.is_some() {
                return next;
            }
        }
        None
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(turns) = self.0.take() {
            turns.give_back();
        }
    }
}

/// Counts a waiter until dropped.
struct Waits<'a>(&'a AtomicUsize);

impl<'a> Waits<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, StreamExt, stream::FuturesUnordered};

    use super::*;

    /// Returns the order in which these owners' work runs, one at a time, if all of it waits at once.
    async fn order(owners: &[u64]) -> Vec<u64> {
        let turns = Turns::new(1, 100);
        let first = turns.take(0).await.expect("free");
        let mut waiting: FuturesUnordered<_> = owners
            .iter()
            .map(|owner| {
                let turns = turns.clone();
                async move { (*owner, turns.take(*owner).await.expect("its turn")) }
            })
            .collect();
        assert!(waiting.next().now_or_never().is_none(), "everybody waits");
        drop(first);
        let mut order = Vec::new();
        while let Some((owner, _slot)) = waiting.next().await {
            order.push(owner);
        }
        order
    }

    #[tokio::test]
    async fn owners_take_turns() {
        assert_eq!(order(&[1, 1, 1, 1, 2]).await, [1, 2, 1, 1, 1]);
        assert_eq!(order(&[1, 1, 2, 2, 3]).await, [1, 2, 3, 1, 2]);
        assert_eq!(order(&[7, 7, 7]).await, [7, 7, 7]);
    }

    #[tokio::test]
    async fn who_gives_up_takes_no_slot_and_no_room() {
        let turns = Turns::new(1, 2);
        let first = turns.take(1).await.expect("free");
        for _ in 0..10 {
            let mut gone = Box::pin(turns.take(1));
            assert!((&mut gone).now_or_never().is_none());
        }
        let (mut second, mut third) = (Box::pin(turns.take(1)), Box::pin(turns.take(2)));
        assert!((&mut second).now_or_never().is_none());
        assert!((&mut third).now_or_never().is_none());
        assert_eq!(turns.take(3).now_or_never().expect("at once").err(), Some(QueueFull));
        drop(first);
        let slot = second.await.expect("its turn");
        // The slot was on its way when the waiter gave up.
        drop(slot);
        drop(third);
        assert_eq!(turns.taken(), 0);
        assert!(turns.take(4).now_or_never().expect("at once").is_ok());
    }

    #[tokio::test]
    async fn idle_is_when_the_last_slot_is_back() {
        let turns = Turns::new(2, 2);
        turns.idle().await;
        let (one, other) = (turns.take(1).await.expect("free"), turns.take(1).await.expect("free"));
        let mut idle = Box::pin(turns.idle());
        assert!((&mut idle).now_or_never().is_none());
        drop(one);
        assert!((&mut idle).now_or_never().is_none());
        drop(other);
        idle.await;
    }
}
