//! Tests of call rates: shared in Redis, and not shared on one machine.

use super::{
    super::*,
    engines::{Engine, Here, with_both_engines},
};

with_both_engines![
    a_rate_holds_for_all_who_share_it,
    a_call_that_one_rate_refuses_is_taken_from_none,
    what_was_used_comes_back_with_time,
    a_clock_that_goes_back_does_not_close_a_rate,
];

const HOUR: Duration = Duration::from_secs(3_600);

fn rate(name: &str, each: Duration, burst: u32) -> SharedRate {
    SharedRate { name: name.into(), interval: each, burst }
}

async fn take(here: &Here, rates: &[&SharedRate]) -> RateOutcome {
    here.store.take_rates(rates).await.expect("taken")
}

fn is_shared(engine: &Engine) -> bool {
    matches!(engine, Engine::Redis(_))
}

/// Returns which rate is used up, and the wait in whole seconds.
fn used_up(taken: RateOutcome) -> Option<(usize, u64)> {
    match taken {
        RateOutcome::UsedUp { at, wait } => Some((at, wait.as_secs_f64().round() as u64)),
        RateOutcome::All | RateOutcome::NotShared => None,
    }
}

async fn a_rate_holds_for_all_who_share_it(engine: &Engine) {
    let (here, other) = (engine.gateway(), engine.gateway());
    let rate = rate("a rule with spaces", HOUR, 5);
    if !is_shared(engine) {
        return assert_eq!(take(&here, &[&rate]).await, RateOutcome::NotShared);
    }
    let calls = (0..20).map(async |n| take(if n % 2 == 0 { &here } else { &other }, &[&rate]).await);
    let taken = futures::future::join_all(calls).await;
    assert_eq!(taken.iter().filter(|taken| **taken == RateOutcome::All).count(), 5, "{taken:?}");
    assert_eq!(used_up(take(&other, &[&rate]).await), Some((0, 3_600)));
    let another = SharedRate { name: "another".into(), ..rate };
    assert_eq!(take(&here, &[&another]).await, RateOutcome::All);
}

async fn a_call_that_one_rate_refuses_is_taken_from_none(engine: &Engine) {
    if !is_shared(engine) {
        return;
    }
    let here = engine.gateway();
    let (wide, narrow) = (rate("wide", HOUR, 4), rate("narrow", HOUR, 2));
    for _ in 0..2 {
        assert_eq!(take(&here, &[&narrow, &wide]).await, RateOutcome::All);
    }
    for _ in 0..9 {
        assert_eq!(used_up(take(&here, &[&narrow, &wide]).await), Some((0, 3_600)));
        assert_eq!(used_up(take(&here, &[&wide, &narrow]).await), Some((1, 3_600)));
    }
    for _ in 0..2 {
        assert_eq!(take(&here, &[&wide]).await, RateOutcome::All);
    }
    assert_eq!(used_up(take(&here, &[&narrow, &wide]).await), Some((0, 3_600)), "the first that is used up");
    assert_eq!(used_up(take(&here, &[&wide]).await), Some((0, 3_600)));
}

async fn what_was_used_comes_back_with_time(engine: &Engine) {
    if !is_shared(engine) {
        return;
    }
    let here = engine.gateway();
    // Seven in three seconds: an interval that is not a whole number of microseconds.
    let rate = rate("a", Duration::from_secs(3_000) / 7, 2);
    for _ in 0..2 {
        assert_eq!(take(&here, &[&rate]).await, RateOutcome::All);
    }
    assert_eq!(used_up(take(&here, &[&rate]).await), Some((0, 429)));
    here.clock.advance(Duration::from_secs(420));
    let (at, wait) = used_up(take(&here, &[&rate]).await).expect("too early");
    assert!(at == 0 && wait <= 9, "{wait}");
    here.clock.advance(Duration::from_secs(wait + 1));
    assert_eq!(take(&here, &[&rate]).await, RateOutcome::All);
    assert!(used_up(take(&here, &[&rate]).await).is_some(), "one came back, not two");
    here.clock.advance(HOUR);
    for _ in 0..2 {
        assert_eq!(take(&here, &[&rate]).await, RateOutcome::All);
    }
    assert!(used_up(take(&here, &[&rate]).await).is_some(), "no more than the burst");
}

async fn a_clock_that_goes_back_does_not_close_a_rate(engine: &Engine) {
    if !is_shared(engine) {
        return;
    }
    let here = engine.gateway();
    let rate = rate("a", Duration::from_secs(60), 2);
    here.clock.advance(100 * HOUR);
    assert_eq!(take(&here, &[&rate]).await, RateOutcome::All);
    here.clock.turn_back(100 * HOUR);
    assert_eq!(used_up(take(&here, &[&rate]).await), Some((0, 60)), "at most as long as after a burst");
}
