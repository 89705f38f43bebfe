//! Work that takes more than about a millisecond: parsing large texts. It runs on separate threads, so that
//! the thread that answers calls is not blocked, and the amount that runs concurrently in this process is
//! limited.

use std::sync::{Arc, LazyLock};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinHandle,
};

/// The number of bytes from which a text is large.
const BYTES: usize = 64 << 10;
/// How much faster a scan is than parsing.
const SCANNED: usize = 16;
/// The number of values from which a text is large, as a scan counts them.
const VALUES: usize = 1_000;
/// The maximum size of all concurrently parsed large texts together, as trees, in kilobytes.
const AT_ONCE: usize = 192 << 10;

static SHARES: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(AT_ONCE)));

/// A share of the memory for large texts.
pub type MemoryShare = OwnedSemaphorePermit;

/// The cost of parsing a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weight {
    /// The length of the text.
    pub bytes: usize,
    /// The number of values; zero if they have not been counted.
    pub values: usize,
}

impl Weight {
    /// Returns the weight of a text with only its length known.
    pub fn of(bytes: usize) -> Self {
        Self { bytes, values: 0 }
    }

    /// Returns the weight of a text that is only scanned, which takes less than a tenth of the time of
    /// parsing it.
    pub fn scanned(bytes: usize) -> Self {
        Self::of(bytes / SCANNED)
    }

    /// Returns the weight of an unscanned text: at most as many values as it has commas and brackets, which
    /// are counted where their number decides.
    pub fn guessed(text: &[u8]) -> Self {
        // A shorter text cannot have so many, and a longer one is large anyway.
        let values = match text.len() {
            VALUES..=BYTES => memchr::memchr3_iter(b',', b'[', b'{', text).count(),
            _ => 0,
        };
        Self { bytes: text.len(), values }
    }

    /// Returns whether the text has more than 64 KiB or 1,000 values, and so is parsed on another thread.
    pub fn is_large(self) -> bool {
        self.bytes > BYTES || self.values > VALUES
    }

    fn kilobytes(self) -> u32 {
        let kilobytes = (self.bytes + 100 * self.values) / 1_000;
        u32::try_from(kilobytes.clamp(1, AT_ONCE)).unwrap_or(1)
    }
}

/// Parses a text here if it is small, else on another thread. Hold a large text's share as long as the
/// result.
pub async fn off_thread<T: Send + 'static>(
    weight: Weight,
    read: impl FnOnce() -> T + Send + 'static,
) -> (T, Option<MemoryShare>) {
    if !weight.is_large() {
        return (read(), None);
    }
    let share = SHARES.clone().acquire_many_owned(weight.kilobytes()).await.ok();
    let read = tokio::task::spawn_blocking(read).await;
    (read.expect("what reads messages does not panic"), share)
}

/// One such parse at a time, for callers that await it in a future that may be dropped and recreated.
#[derive(Default)]
pub enum HeavyParse<T> {
    /// Nothing is in progress: either nothing was begun, or the result was taken.
    #[default]
    Idle,
    /// The result of a small text, parsed at once and not taken yet.
    Done(T),
    /// The task that parses a large text. It yields the result with its share of the memory.
    Running(JoinHandle<(T, Option<MemoryShare>)>),
}

impl<T: Send + 'static> HeavyParse<T> {
    /// Starts to parse a text. Nothing else may be in progress.
    pub fn begin(&mut self, weight: Weight, read: impl FnOnce() -> T + Send + 'static) {
        *self = match weight.is_large() {
            false => Self::Done(read()),
            true => Self::Running(tokio::spawn(off_thread(weight, read))),
        };
    }

    /// Returns the result; `None` if nothing is in progress. Dropping the future early loses nothing.
    pub async fn done(&mut self) -> Option<(T, Option<MemoryShare>)> {
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
        let mut heavy = HeavyParse::default();
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
