//! The time of day. Durations within one process are measured with `Instant`s instead.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Returns the system's time, which no test can move: for the ages of files and the stamps of lines. What is
/// due at a time asks a [`Clock`].
#[expect(clippy::disallowed_methods, reason = "the one place that asks")]
pub fn system_time() -> SystemTime {
    SystemTime::now()
}

/// The system's clock. Tests can move it.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    /// Milliseconds ahead of the system's clock.
    ahead: Arc<AtomicI64>,
}

impl Clock {
    /// Returns the time.
    pub fn now(&self) -> SystemTime {
        let ahead = self.ahead.load(Ordering::Relaxed);
        let by = Duration::from_millis(ahead.unsigned_abs());
        if ahead < 0 { system_time() - by } else { system_time() + by }
    }

    /// Returns the milliseconds since 1970.
    pub fn unix_ms(&self) -> u64 {
        unix_ms(self.now())
    }

    /// Returns the seconds since 1970.
    pub fn unix_secs(&self) -> u64 {
        self.unix_ms() / 1_000
    }

    /// Returns how many milliseconds the clock is ahead of the system's: 0 outside tests.
    pub fn ahead_ms(&self) -> i64 {
        self.ahead.load(Ordering::Relaxed)
    }

    /// Moves the clock and all its clones forward.
    pub fn advance(&self, by: Duration) {
        self.ahead.fetch_add(signed(by), Ordering::Relaxed);
    }

    /// Moves the clock and all its clones back.
    pub fn turn_back(&self, by: Duration) {
        self.ahead.fetch_sub(signed(by), Ordering::Relaxed);
    }
}

/// Returns a time as milliseconds since 1970; 0 for an earlier time.
pub fn unix_ms(time: SystemTime) -> u64 {
    millis(time.duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// The end of the year 9999 in milliseconds since 1970: later times have no printable date.
const END: u64 = 253_402_300_799_999;

/// Returns the time at this many milliseconds since 1970, at most the end of the year 9999.
pub fn at_unix_ms(ms: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(ms.min(END))
}

fn signed(by: Duration) -> i64 {
    i64::try_from(by.as_millis()).unwrap_or(i64::MAX)
}

/// Returns a duration in whole milliseconds.
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
