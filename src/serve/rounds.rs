//! Futures that wake themselves: the parts of one task tell each other that something is there, through channels. The runtime
//! takes such a wake for new work and wakes another thread for it, which costs more than the work.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use futures::task::AtomicWaker;

/// How many times in a row a future is polled before other tasks get their turn.
const ROUNDS: usize = 8;

const RESTING: u8 = 0;
const POLLED: u8 = 1;
const WOKEN: u8 = 2;

/// A future that is polled again at once if it was woken while it was polled.
pub(super) struct InRounds<F> {
    future: Pin<Box<F>>,
    wakes: Arc<Wakes>,
    waker: Waker,
}

struct Wakes {
    /// The waker of the task.
    task: AtomicWaker,
    state: AtomicU8,
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let woken = self.state.compare_exchange(POLLED, WOKEN, Ordering::AcqRel, Ordering::Acquire);
        if woken == Err(RESTING) {
            self.task.wake();
        }
    }
}

/// Polls a future in rounds.
pub(super) fn in_rounds<F: Future>(future: F) -> InRounds<F> {
    let wakes = Arc::new(Wakes { task: AtomicWaker::new(), state: AtomicU8::new(RESTING) });
    InRounds { future: Box::pin(future), waker: wakes.clone().into(), wakes }
}

impl<F: Future> Future for InRounds<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Self { future, wakes, waker } = &mut *self;
        wakes.task.register(context.waker());
        for _ in 0..ROUNDS {
            wakes.state.store(POLLED, Ordering::Release);
            if let Poll::Ready(ended) = future.as_mut().poll(&mut Context::from_waker(waker)) {
                return Poll::Ready(ended);
            }
            if wakes.state.swap(RESTING, Ordering::AcqRel) == POLLED {
                return Poll::Pending;
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, sync::atomic::AtomicUsize, time::Duration};

    use super::*;

    #[derive(Default)]
    struct Counted(AtomicUsize);

    impl Wake for Counted {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Polls a future once that wakes itself in its first `times` polls. Returns how often it was polled, and how often its
    /// task was woken.
    fn polled(times: usize) -> (usize, usize) {
        let (mut polls, task) = (0, Arc::new(Counted::default()));
        let mut future = in_rounds(poll_fn(|context| {
            polls += 1;
            if polls <= times {
                context.waker().wake_by_ref();
            }
            Poll::<()>::Pending
        }));
        assert!(Pin::new(&mut future).poll(&mut Context::from_waker(&task.clone().into())).is_pending());
        drop(future);
        (polls, task.0.load(Ordering::Relaxed))
    }

    #[test]
    fn wakes_of_its_own_do_not_reach_the_task() {
        assert_eq!(polled(0), (1, 0));
        assert_eq!(polled(3), (4, 0));
        // Others get their turn.
        assert_eq!(polled(usize::MAX), (ROUNDS, 1));
    }

    #[tokio::test]
    async fn no_wake_is_lost() {
        let (send, mut messages) = tokio::sync::mpsc::channel(1);
        let sending =
            std::thread::spawn(move || (0..2_000).for_each(|n| send.blocking_send(n).expect("open")));
        let reading = in_rounds(async move {
            let mut next = 0;
            while let Some(message) = messages.recv().await {
                assert_eq!(message, next);
                next += 1;
            }
            next
        });
        let read = tokio::time::timeout(Duration::from_secs(60), reading).await;
        assert_eq!(read.expect("every message wakes the reader"), 2_000);
        sending.join().expect("a sender without a panic");
    }
}
