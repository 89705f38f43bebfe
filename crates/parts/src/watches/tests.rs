use serde_json::json;

use super::*;

/// A finding: a value, a failure, or a value with the expression true.
#[derive(Clone, Copy)]
enum F {
    V(i64),
    E,
    T(i64),
}
use F::*;

fn watch(notify_when: NotifyWhen) -> Watch {
    Watch { tool: "a.b".into(), interval_s: 30, notify_when, batch_size: 3, ..Watch::default() }
}

fn finding(found: F) -> WatchFinding {
    let value = |n: i64, is_met| WatchFinding::Value { seen: SeenValue::new(&json!(n), true, 0), is_met };
    match found {
        V(n) => value(n, false),
        T(n) => value(n, true),
        E => WatchFinding::Error(CheckError { code: "server_down".into(), message: "down".into() }),
    }
}

fn take(watch: &mut Watch, found: F) -> Option<WatchNews> {
    watch.take(finding(found), 0, 1)
}

/// Returns why each of these checks has news; `-` for none.
fn whys(watch: &mut Watch, found: &[F]) -> String {
    let why = |news: WatchNews| json!(news.why).as_str().expect("a word").to_string();
    found.iter().map(|one| take(watch, *one).map_or("-".into(), why)).collect::<Vec<_>>().join(" ")
}

#[test]
fn each_way_to_be_told_has_its_news() {
    let check = |notify_when, found: &[F], expected: &str| {
        assert_eq!(whys(&mut watch(notify_when), found), expected, "{notify_when:?}");
    };
    use NotifyWhen::*;
    // The first value has nothing to be compared with, and a failure has no value.
    check(OnChange, &[V(1), V(1), V(2), V(2), V(1)], "- - changed - changed");
    check(OnChange, &[V(1), E, V(1), E, V(2)], "- - - - changed");
    check(OnError, &[V(1), V(2), E, E, V(2), V(2), E], "- - failed - recovered - failed");
    check(OnError, &[E, E], "failed -");
    // Five failures in a row do not end the wait for the tool to work again.
    check(OnError, &[V(1), E, E, E, E, E, E, V(1)], "- failed - - - - - recovered");
    check(OnError, &[E, E, E, E, E, E, V(1), V(1)], "failed - - - - - recovered -");
    // The first value of a tool that failed when the watch began.
    check(OnChange, &[E, E, E, E, E, E, V(1), V(1), V(2)], "- - - - - - recovered - changed");
    check(OnThreshold, &[E, E, E, E, E, E, V(1), T(2)], "- - - - - - - threshold_reached");
    check(OnThreshold, &[V(1), T(2), T(3), V(1), T(2)], "- threshold_reached - - threshold_reached");
    check(OnThreshold, &[T(1), T(2), E, T(2), V(0)], "threshold_reached - - - -");
    check(Summary, &[V(1), V(2), E, V(2), V(2), V(2), V(2)], "- - summary - - summary -");
    check(Always, &[V(1), E, V(1)], "checked checked checked");
}

#[test]
fn a_change_comes_with_the_value_before_it() {
    let mut watch = watch(NotifyWhen::OnChange);
    take(&mut watch, V(1));
    let news = take(&mut watch, V(2)).expect("news");
    assert_eq!((news.changed, news.before, news.counts), (true, Some(json!(1)), None));
    // A large value is compared, but not remembered.
    let large = |n| WatchFinding::Value { seen: SeenValue::new(&json!(n), false, 0), is_met: false };
    watch.take(large(3), 0, 0);
    let news = watch.take(large(4), 0, 0).expect("news");
    assert_eq!((news.changed, news.before), (true, None));
    assert!(watch.last.is_some_and(|last| last.value.is_none()));
}

#[test]
fn a_summary_counts_what_came_since_the_last() {
    let mut watch = Watch { max_checks: 5, ..watch(NotifyWhen::Summary) };
    assert_eq!(whys(&mut watch, &[V(1), E]), "- -");
    let counts = |checks, changes, errors| Some(WatchCounts { checks, changes, errors });
    assert_eq!(take(&mut watch, V(2)).and_then(|news| news.counts), counts(3, 1, 1));
    assert_eq!(take(&mut watch, V(2)), None);
    let last = take(&mut watch, V(3)).expect("news");
    assert_eq!((last.why, last.counts), (NoticeReason::Finished, counts(2, 1, 0)));
}

#[test]
fn five_failures_in_a_row_pause_it() {
    let mut watch = watch(NotifyWhen::OnChange);
    assert_eq!(whys(&mut watch, &[V(1), E, E, E, E, V(1)]), "- - - - - -");
    assert_eq!(whys(&mut watch, &[E, E, E, E, E]), "- - - - paused");
    assert_eq!(watch.state, WatchState::Paused);
    assert!(watch.resume() && !watch.resume());
    // The count starts again, but the last value stays the one to compare with.
    assert_eq!(whys(&mut watch, &[E, E, E, E, V(2)]), "- - - - changed");
    assert!(watch.pause() && !watch.pause());
    // A check that was in flight when the watch was paused.
    assert_eq!(whys(&mut watch, &[V(3)]), "-");
    assert_eq!(watch.counts, WatchCounts { checks: 17, changes: 2, errors: 13 });
}

#[test]
fn a_watch_finishes_after_its_checks() {
    let mut limited = Watch { max_checks: 3, ..watch(NotifyWhen::OnChange) };
    assert_eq!(whys(&mut limited, &[V(1), V(1), V(1)]), "- - finished");
    assert_eq!(limited.state, WatchState::Finished);
    assert!(!limited.resume() && !limited.pause());
    let mut limited = Watch { max_checks: 2, ..watch(NotifyWhen::OnChange) };
    assert_eq!(whys(&mut limited, &[V(1), V(2)]), "- changed");
    assert_eq!(limited.state, WatchState::Finished);
    // The last check ends the watch instead of pausing it.
    let mut limited = Watch { max_checks: FAILURES_TO_PAUSE, ..watch(NotifyWhen::OnChange) };
    assert_eq!(whys(&mut limited, &[E; 5]), "- - - - finished");
}

#[test]
fn the_history_is_bounded_and_says_what_happened() {
    let mut watch = watch(NotifyWhen::OnChange);
    for n in 0..150 {
        let found = if n % 2 == 0 { V(n / 4) } else { E };
        watch.take(finding(found), u64::try_from(n).expect("small"), 7);
        watch.resume();
    }
    assert_eq!((watch.history.len(), watch.history[0].at_ms), (HISTORY, 50));
    let check = |at_ms, error: Option<&str>, changed| WatchCheck {
        at_ms,
        error: error.map(Into::into),
        changed,
        elapsed_ms: 7,
    };
    assert_eq!(watch.history[98], check(148, None, true));
    assert_eq!(watch.history[99], check(149, Some("server_down"), false));
    let kept: Watch = serde_json::from_value(json!(watch)).expect("it is read again");
    assert_eq!(kept, watch);
    assert!(json!(watch).to_string().len() < 8_000);
}

#[test]
fn the_next_check_follows_the_clock_wherever_it_jumps() {
    let watch = watch(NotifyWhen::OnChange);
    let check = |due: u64, now: u64, expected: u64| {
        assert_eq!(watch.next_ms(due * 1_000, now * 1_000), expected * 1_000, "{due} {now}");
    };
    check(100, 100, 130);
    // A check that took a while, or came late.
    check(100, 109, 130);
    check(100, 131, 161);
    // Forward by a day: one check, not many.
    check(100, 86_500, 86_530);
    // Back by a day.
    check(86_500, 100, 130);
    let pulled = |due: u64, now: u64| watch.pulled_in(due * 1_000, now * 1_000).map(|due| due / 1_000);
    assert_eq!((pulled(130, 100), pulled(131, 100), pulled(50, 100)), (None, Some(130), None));
}

#[test]
fn values_are_compared_and_not_their_text() {
    let check = |one: Value, other: Value, same: bool| {
        assert_eq!(digest(&one) == digest(&other), same, "{one} {other}");
    };
    check(json!({ "a": 1, "b": [2] }), json!({ "b": [2], "a": 1 }), true);
    check(json!([1, 2]), json!([2, 1]), false);
    check(json!([[1], 2]), json!([[1, 2]]), false);
    check(json!("1"), json!(1), false);
    check(json!(""), Value::Null, false);
    check(json!({ "a": { "b": 1 } }), json!({ "a": {}, "b": 1 }), false);
    check(json!(["a", "b"]), json!(["ab", ""]), false);
}
