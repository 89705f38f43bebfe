//! The time of day. Durations inside of one process are measured with `Instant`s instead.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// The clock of the system. A test can move it.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    /// Milliseconds that it is ahead of the system's.
    ahead: Arc<AtomicI64>,
}

impl Clock {
    /// The time.
    pub fn now(&self) -> SystemTime {
        let ahead = self.ahead.load(Ordering::Relaxed);
        let by = Duration::from_millis(ahead.unsigned_abs());
        if ahead < 0 { SystemTime::now() - by } else { SystemTime::now() + by }
    }

    /// Milliseconds since 1970.
    pub fn unix_ms(&self) -> u64 {
        unix_ms(self.now())
    }

    /// Seconds since 1970.
    pub fn unix_secs(&self) -> u64 {
        self.unix_ms() / 1_000
    }

    /// How many milliseconds it is ahead of the system's: none outside of tests.
    pub fn ahead_ms(&self) -> i64 {
        self.ahead.load(Ordering::Relaxed)
    }

    /// Moves it, and every clone of it, forward.
    pub fn advance(&self, by: Duration) {
        self.ahead.fetch_add(signed(by), Ordering::Relaxed);
    }

    /// Moves it, and every clone of it, back.
    pub fn turn_back(&self, by: Duration) {
        self.ahead.fetch_sub(signed(by), Ordering::Relaxed);
    }
}

/// A time as milliseconds since 1970; 0 for one before that.
pub fn unix_ms(time: SystemTime) -> u64 {
    millis(time.duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// The end of the year 9999 in milliseconds since 1970: a later time has no date to show.
const END: u64 = 253_402_300_799_999;

/// The time at these milliseconds since 1970, at most the end of the year 9999.
pub fn at_unix_ms(ms: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(ms.min(END))
}

fn signed(by: Duration) -> i64 {
    i64::try_from(by.as_millis()).unwrap_or(i64::MAX)
}

/// A duration in whole milliseconds.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_moved_with_its_clones() {
        let clock = Clock::default();
        let other = clock.clone();
        let before = clock.unix_ms();
        other.advance(Duration::from_secs(3_600));
        assert!(clock.unix_ms() >= before + 3_600_000);
        assert!(Clock::default().unix_ms() < before + 3_600_000);
        other.turn_back(Duration::from_secs(7_200));
        assert!(clock.unix_ms() < before);
    }

    #[test]
    fn times_before_1970_are_its_beginning() {
        assert_eq!(unix_ms(UNIX_EPOCH - Duration::from_secs(1)), 0);
        assert_eq!(unix_ms(at_unix_ms(1_234)), 1_234);
        assert_eq!(unix_ms(at_unix_ms(u64::MAX)), END);
    }
}
