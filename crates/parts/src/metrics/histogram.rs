//! Times in buckets. Adding a time takes two atomics and no lock; prometheus-client's own histogram locks and
//! cannot be read back, which the quantiles of `gateway.status` need.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Counts times by bucket.
#[derive(Debug)]
pub(super) struct Histogram {
    /// The upper bound of each bucket, ascending, in microseconds. One more bucket is unbounded.
    bounds_us: &'static [u64],
    buckets: Box<[AtomicU64]>,
    sum_ns: AtomicU64,
}

/// A histogram's content at one moment.
#[derive(Clone, Debug)]
pub(super) struct HistogramReading {
    bounds_us: &'static [u64],
    /// The number of times per bucket; the last bucket holds the times above all bounds.
    buckets: Vec<u64>,
    sum_ns: u64,
}

impl Histogram {
    pub(super) fn new(bounds_us: &'static [u64]) -> Self {
        let buckets = (0..=bounds_us.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds_us, buckets, sum_ns: AtomicU64::new(0) }
    }

    pub(super) fn observe(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        // Never out of range: there is one more bucket than bounds.
        let bucket = self.bounds_us.partition_point(|bound| bound * 1_000 < ns);
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.sum_ns.fetch_add(ns, Relaxed);
    }

    pub(super) fn read(&self) -> HistogramReading {
        HistogramReading {
            bounds_us: self.bounds_us,
            buckets: self.buckets.iter().map(|count| count.load(Relaxed)).collect(),
            sum_ns: self.sum_ns.load(Relaxed),
        }
    }
}

impl HistogramReading {
    /// Adds the times of another histogram with the same bounds.
    pub(super) fn add(&mut self, other: &HistogramReading) {
        for (count, more) in self.buckets.iter_mut().zip(&other.buckets) {
            *count += more;
        }
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }

    /// Returns the number of observed times.
    pub(super) fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Returns the sum of the times, in seconds.
    pub(super) fn sum_s(&self) -> f64 {
        self.sum_ns as f64 / 1e9
    }

    /// Returns the upper bound of each bucket in seconds, and the number of times in that bucket alone.
    pub(super) fn buckets_s(&self) -> Vec<(f64, u64)> {
        let bounds = self.bounds_us.iter().map(|us| *us as f64 / 1e6).chain([f64::INFINITY]);
        bounds.zip(self.buckets.iter().copied()).collect()
    }

    pub(super) fn mean_us(&self) -> Option<u64> {
        self.sum_ns.checked_div(self.count()).map(|ns| ns / 1_000)
    }

    /// Returns the time that this percentage of times does not exceed. Times within a bucket are assumed to
    /// be evenly spread.
    pub(super) fn quantile_us(&self, percent: u64) -> Option<u64> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let rank = (count * percent).div_ceil(100).max(1);
        let (mut below, mut lower) = (0, 0);
        for (&upper, &inside) in self.bounds_us.iter().zip(&self.buckets) {
            if below + inside >= rank {
                return Some(lower + (upper - lower) * (rank - below) / inside);
            }
            below += inside;
            lower = upper;
        }
        Some(lower)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(times_us: &[u64], percent: u64, expected: Option<u64>) {
        let histogram = Histogram::new(&[100, 200, 1_000]);
        for us in times_us {
            histogram.observe(Duration::from_micros(*us));
        }
        assert_eq!(histogram.read().quantile_us(percent), expected, "{times_us:?} p{percent}");
    }

    #[test]
    fn quantiles_are_as_near_as_the_buckets() {
        check(&[], 50, None);
        check(&[100], 50, Some(100));
        check(&[101], 50, Some(200));
        check(&[10, 20, 30, 40], 50, Some(50));
        check(&[10, 20, 150, 150], 50, Some(100));
        check(&[10, 20, 150, 150], 95, Some(200));
        check(&[10, 5_000], 95, Some(1_000));
        check(&[0, 0], 0, Some(50));
        check(&[5_000], 100, Some(1_000));
    }

    #[test]
    fn a_time_on_a_bound_is_below_it_and_any_time_has_a_bucket() {
        let histogram = Histogram::new(&[100, 200]);
        for time in [Duration::ZERO, Duration::from_micros(100), Duration::from_nanos(100_001), Duration::MAX]
        {
            histogram.observe(time);
        }
        let buckets: Vec<u64> = histogram.read().buckets_s().iter().map(|(_, count)| *count).collect();
        assert_eq!(buckets, [2, 1, 1]);
    }

    #[test]
    fn readings_add_up() {
        let (one, two) = (Histogram::new(&[100, 200]), Histogram::new(&[100, 200]));
        one.observe(Duration::from_micros(50));
        two.observe(Duration::from_micros(150));
        let mut both = one.read();
        both.add(&two.read());
        assert_eq!((both.count(), both.mean_us()), (2, Some(100)));
        assert_eq!(Histogram::new(&[1]).read().mean_us(), None);
    }
}
