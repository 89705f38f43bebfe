//! Work that takes more than about a millisecond: reading what is large. It runs on threads of its own, so that the thread on
//! which calls are answered goes on, and only so much of it runs at the same time in this process.

use std::sync::{Arc, LazyLock};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinHandle,
};

/// From how many bytes on a text is large.
const BYTES: usize = 64 << 10;
/// From how many values on it is, as a scan counts them.
const VALUES: usize = 1_000;
/// What all large texts that are read at the same time take together as trees, in kilobytes.
const AT_ONCE: usize = 192 << 10;

static SHARES: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(AT_ONCE)));

/// A share of the memory for large texts.
pub type Share = OwnedSemaphorePermit;

/// What it costs to read a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weight {
    pub bytes: usize,
    /// Zero where nobody has counted them yet.
    pub values: usize,
}

impl Weight {
    /// The weight of a text of which only the length is known.
    pub fn of(bytes: usize) -> Self {
        Self { bytes, values: 0 }
    }

    /// The weight of a text that nobody has scanned: at most as many values as it has commas and brackets.
    pub fn guessed(text: &[u8]) -> Self {
        let values = match text.len() > BYTES {
            true => 0,
            false => memchr::memchr3_iter(b',', b'[', b'{', text).count(),
        };
        Self { bytes: text.len(), values }
    }

    pub fn is_large(self) -> bool {
        self.bytes > BYTES || self.values > VALUES
    }

    fn kilobytes(self) -> u32 {
        let kilobytes = (self.bytes + 100 * self.values) / 1_000;
        u32::try_from(kilobytes.clamp(1, AT_ONCE)).unwrap_or(1)
    }
}

/// Reads a text here if it is small, else on another thread. The share of a large one is to be held as long as what came of it.
pub async fn off_thread<T: Send + 'static>(
    weight: Weight,
    read: impl FnOnce() -> T + Send + 'static,
) -> (T, Option<Share>) {
    if !weight.is_large() {
        return (read(), None);
    }
    let share = SHARES.clone().acquire_many_owned(weight.kilobytes()).await.ok();
    let read = tokio::task::spawn_blocking(read).await;
    (read.expect("what reads messages does not panic"), share)
}

/// One such reading at a time, for those who wait for it in a future that may be dropped and made again.
#[derive(Default)]
pub enum Heavy<T> {
    #[default]
    Idle,
    Done(T),
    Running(JoinHandle<(T, Option<Share>)>),
}

impl<T: Send + 'static> Heavy<T> {
    /// Begins to read a text. Nothing else is being read.
    pub fn begin(&mut self, weight: Weight, read: impl FnOnce() -> T + Send + 'static) {
        *self = match weight.is_large() {
            false => Self::Done(read()),
            true => Self::Running(tokio::spawn(off_thread(weight, read))),
        };
    }

    /// What came of it; none if nothing is being read. Nothing is lost if the future is dropped before it is done.
    pub async fn done(&mut self) -> Option<(T, Option<Share>)> {
        let read = match self {
            Self::Idle => return None,
            Self::Done(_) => None,
            Self::Running(running) => Some(running.await.expect("what reads messages does not panic")),
        };
        match std::mem::take(self) {
            Self::Done(read) => Some((read, None)),
            _ => read,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_large_text_is_read_elsewhere_and_holds_its_share() {
        let here = std::thread::current().id();
        let read_on = move || std::thread::current().id() == here;
        let mut heavy = Heavy::default();
        heavy.begin(Weight::of(100), read_on);
        assert!(matches!(heavy.done().await, Some((true, None))));
        assert!(heavy.done().await.is_none());
        heavy.begin(Weight { bytes: 1_000, values: 100_000 }, read_on);
        let dropped = tokio::time::timeout(std::time::Duration::ZERO, heavy.done()).await;
        let done = match dropped {
            Ok(done) => done,
            Err(_) => heavy.done().await,
        };
        assert!(matches!(done, Some((false, Some(_)))));
    }
}
