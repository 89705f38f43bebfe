//! The rates of calls that all replicas share, in Redis. `rates.lua` has the keys.
//!
//! A call waits for Redis a moment only. After an answer that came too late nobody asks for a while, so that a slow Redis costs a
//! call now and then, and not every call.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::{
    super::{SharedRate, StoreError, TakenRates},
    link::{Link, Methods, script},
};
use crate::clock::Clock;

static METHODS: Methods = Methods::new(|| script(include_str!("rates.lua")));

/// How long a call waits for Redis.
const PATIENCE: Duration = Duration::from_millis(50);
/// How long nobody asks after an answer that came too late.
const PAUSE: Duration = Duration::from_secs(1);

/// The rates under a prefix.
#[derive(Debug)]
pub(super) struct RateKeys {
    link: Arc<Link>,
    base: Arc<str>,
    clock: Clock,
    patience: Duration,
    /// Until when nobody asks, after an answer that came too late.
    paused: Mutex<Option<Instant>>,
}

impl RateKeys {
    pub fn new(link: Arc<Link>, base: Arc<str>, clock: Clock) -> Self {
        Self { link, base, clock, patience: PATIENCE, paused: Mutex::default() }
    }

    /// Waits for Redis as long as this.
    #[cfg(test)]
    pub fn wait_for(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Takes a call from each rate, or from none if one is used up.
    pub async fn take(&self, rates: &[&SharedRate]) -> Result<TakenRates, StoreError> {
        if self.paused.lock().is_some_and(|until| Instant::now() < until) {
            return Err(self.late());
        }
        let mut call = METHODS.call(&self.base, "take");
        call.arg(self.clock.ahead_ms());
        for SharedRate { name, interval, burst } in rates {
            // Seldom a whole number: a third of a second.
            call.arg(name).arg(interval.as_nanos() as f64 / 1_000.0).arg(*burst);
        }
        let link = self.link.clone();
        // A task of its own: if it is late, it makes its connection all the same, and notes the trouble.
        let answer = tokio::spawn(async move { link.run::<Vec<u64>>(&call).await });
        let Ok(answer) = tokio::time::timeout(self.patience, answer).await else {
            let before = self.paused.lock().replace(Instant::now() + PAUSE);
            if before.is_none() {
                tracing::warn!(redis = %self.link.place, "Redis answers late: for now, each replica applies the rates of calls by itself");
            }
            return Err(self.late());
        };
        let answer = answer.map_err(|_| StoreError::Unusable)??;
        if self.paused.lock().take().is_some() {
            tracing::info!(redis = %self.link.place, "Redis answers in time: the replicas share the rates of calls again");
        }
        Ok(match answer[..] {
            [at, wait, ..] => {
                TakenRates::UsedUp { at: usize::try_from(at).unwrap_or(0), wait: Duration::from_micros(wait) }
            }
            _ => TakenRates::All,
        })
    }

    fn late(&self) -> StoreError {
        StoreError::Away { place: self.link.place.clone(), what: "answers late".into() }
    }
}
