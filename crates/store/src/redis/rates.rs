//! Rates of calls shared by all replicas, in Redis. The keys are described in `rates.lua`.

use std::{sync::Arc, time::Duration};

use nonet_base::clock::Clock;

use super::{
    super::{RateOutcome, SharedRate, StoreError},
    brisk::BriskLink,
    link::{Methods, RedisLink, script},
};

static METHODS: Methods = Methods::new(|| script(include_str!("rates.lua")));

/// The rates under a prefix.
#[derive(Debug)]
pub(crate) struct RateKeys {
    brisk: BriskLink,
    base: Arc<str>,
    clock: Clock,
}

impl RateKeys {
    pub(super) fn new(link: Arc<RedisLink>, base: Arc<str>, clock: Clock) -> Self {
        Self { brisk: BriskLink::new(link, "the rates of calls"), base, clock }
    }

    /// Sets how long to wait for Redis.
    pub(crate) fn wait_for(&mut self, patience: Duration) {
        self.brisk.wait_for(patience);
    }

    /// Takes a call from each rate, or from none if one is used up.
    pub(crate) async fn take(&self, rates: &[&SharedRate]) -> Result<RateOutcome, StoreError> {
        let mut call = METHODS.call(&self.base, "take");
        call.arg(self.clock.ahead_ms());
        for SharedRate { name, interval, burst } in rates {
            // Often not a whole number, such as a third of a second.
            call.arg(name).arg(interval.as_nanos() as f64 / 1_000.0).arg(*burst);
        }
        let answer: Vec<u64> = self.brisk.run(call).await?;
        Ok(match answer[..] {
            [at, wait, ..] => RateOutcome::UsedUp {
                at: usize::try_from(at).unwrap_or(0),
                wait: Duration::from_micros(wait),
            },
            _ => RateOutcome::All,
        })
    }
}
