//! The cost of a tool's call, in three words.

use std::time::Duration;

use nonet_api::tools::Cost;
use nonet_store::RecentCalls;

/// How many calls a cost needs: a single call may have had bad params, or may have started its server.
const FEWEST: usize = 3;
/// The mean time below which a call is quick, and the mean time from which it is slow.
const QUICK: Duration = Duration::from_secs(1);
const SLOW: Duration = Duration::from_secs(10);

/// Returns the cost of a call after these calls; `None` if there are too few.
pub(super) fn cost_after(recent: &RecentCalls) -> Option<Cost> {
    let (calls, failures) = (recent.count(), recent.failures());
    if calls < FEWEST {
        return None;
    }
    let mean = mean(recent).unwrap_or_default();
    Some(if mean >= SLOW || 2 * failures >= calls {
        Cost::High
    } else if mean < QUICK && 10 * failures <= calls {
        Cost::Low
    } else {
        Cost::Medium
    })
}

/// Returns the mean time of the successful calls.
pub(super) fn mean(recent: &RecentCalls) -> Option<Duration> {
    let sum: u64 = recent.times_us().map(u64::from).sum();
    Some(Duration::from_micros(sum.checked_div(recent.times_us().count() as u64)?))
}

/// Returns the percentile of the times by the nearest rank.
pub(super) fn percentile(recent: &RecentCalls, percent: usize) -> Option<Duration> {
    let mut times: Vec<u32> = recent.times_us().collect();
    times.sort_unstable();
    let rank = (times.len() * percent).div_ceil(100).max(1);
    Some(Duration::from_micros(u64::from(*times.get(rank - 1)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls that took these times in milliseconds; 0 stands for a failure.
    fn recent(calls_ms: &[u64]) -> RecentCalls {
        let mut recent = RecentCalls::default();
        for ms in calls_ms {
            match ms {
                0 => recent.failed(),
                ms => recent.succeeded(Duration::from_millis(*ms)),
            }
        }
        recent
    }

    #[test]
    fn a_call_costs_what_the_last_ones_took_and_how_they_failed() {
        let check = |calls_ms: &[u64], expected: Option<Cost>| {
            assert_eq!(cost_after(&recent(calls_ms)), expected, "{calls_ms:?}");
        };
        check(&[], None);
        check(&[5, 5], None);
        check(&[0, 0], None);
        check(&[5, 5, 5], Some(Cost::Low));
        check(&[5, 5, 2_900], Some(Cost::Low));
        check(&[5, 5, 2_990], Some(Cost::Medium));
        check(&[10_000, 10_000, 10_000], Some(Cost::High));
        check(&[5, 5, 0], Some(Cost::Medium));
        check(&[5, 5, 5, 5, 5, 5, 5, 5, 5, 0], Some(Cost::Low));
        check(&[5, 5, 0, 0], Some(Cost::High));
        check(&[0, 0, 0], Some(Cost::High));
        // A hundred good calls outweigh any earlier failure.
        check(&[&[0; 100][..], &[5; 100]].concat(), Some(Cost::Low));
    }

    #[test]
    fn means_and_percentiles_are_of_the_calls_that_succeeded() {
        let check = |calls_ms: &[u64], expected: Option<(u64, u64)>| {
            let recent = recent(calls_ms);
            let times = mean(&recent).zip(percentile(&recent, 95));
            let expected =
                expected.map(|(mean, p95)| (Duration::from_millis(mean), Duration::from_millis(p95)));
            assert_eq!(times, expected, "{calls_ms:?}");
        };
        check(&[], None);
        check(&[0, 0], None);
        check(&[7], Some((7, 7)));
        check(&[3, 0, 1], Some((2, 3)));
        check(&[(1..=99).collect::<Vec<u64>>(), vec![50]].concat(), Some((50, 94)));
    }
}
