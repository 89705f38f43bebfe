use std::sync::Arc;

use serde_json::{Value, json};

use super::*;

fn plan(calls: Value) -> Result<Plan, PlanFlaw> {
    Plan::new(serde_json::from_value(calls).unwrap(), &["input"])
}

/// Creates calls `a`, `b`, ... with the dependencies named in each text; `?` makes a call optional.
fn calls(needs: &[&str]) -> Plan {
    let letter = |at: usize| char::from(b'a' + u8::try_from(at).unwrap()).to_string();
    let calls = needs.iter().enumerate().map(|(at, needs)| PlannedCall {
        id: letter(at),
        after: needs.chars().filter(|c| *c != '?').map(String::from).collect(),
        optional: needs.contains('?'),
        ..PlannedCall::default()
    });
    Plan::new(calls.collect(), &[]).unwrap()
}

fn pace(concurrency: usize) -> Pace {
    Pace { concurrency, fail_fast: false, lanes: Vec::new() }
}

/// Plays a script: `begin`, `cancel`, and the end of `a`: `a+` (succeeded), `a-` (failed), `a~` (skipped) and
/// `a?` (open), each with its expected effects: `>a` (start), `a:why` (held back: `c`ancelled, `f`ail_fast,
/// the id of the dependency), `halt`, `?a` (park), `end`.
#[track_caller]
fn check(needs: &[&str], pace: Pace, script: &[(&str, &str)]) {
    let plan = calls(needs);
    let place = |id: &str| plan.calls().iter().position(|call| id.starts_with(&call.id)).unwrap();
    let id = |at: usize| plan.calls()[at].id.as_str();
    let mut schedule = Schedule::new(&plan, pace);
    for (event, expected) in script {
        let effects = schedule.step(match *event {
            "begin" => ScheduleEvent::Begin,
            "cancel" => ScheduleEvent::Cancelled,
            ended => ScheduleEvent::Ended {
                at: place(ended),
                outcome: match ended.chars().last() {
                    Some('+') => StepOutcome::Succeeded,
                    Some('~') => StepOutcome::Skipped,
                    Some('?') => StepOutcome::Open,
                    _ => StepOutcome::Failed,
                },
            },
        });
        let told: Vec<String> = effects
            .iter()
            .map(|effect| match effect {
                ScheduleEffect::Start(at) => format!(">{}", id(*at)),
                ScheduleEffect::HoldBack(at, HoldReason::Cancelled) => format!("{}:cancelled", id(*at)),
                ScheduleEffect::HoldBack(at, HoldReason::FailFast) => format!("{}:fail_fast", id(*at)),
                ScheduleEffect::HoldBack(at, HoldReason::NeedFailed(need)) => format!("{}:{need}", id(*at)),
                ScheduleEffect::Halt => "halt".into(),
                ScheduleEffect::Park(at) => format!("?{}", id(*at)),
                ScheduleEffect::Finished => "end".into(),
            })
            .collect();
        assert_eq!(told.join(" "), *expected, "{needs:?}: {event}");
    }
}

#[test]
fn flawed_calls_are_not_a_plan() {
    let check = |calls: Value, expected: &str| {
        assert_eq!(plan(calls.clone()).unwrap_err().to_string(), expected, "{calls}");
    };
    check(
        json!([{"id": "a", "name": "x"}, {"id": "a", "name": "y"}]),
        "Two actions have the id `a`; give each its own.",
    );
    check(
        json!([{"name": "x", "params": {"p": "{{9.y}}"}}, {"id": "b", "name": "y"}]),
        "The action `1` refers to `9`, which is none of the actions (1, b); the text itself is written `{{literal:9}}`.",
    );
    check(
        json!([{"id": "a", "name": "x", "after": ["input"]}]),
        "The action `a` refers to `input`, which is none of the actions (a).",
    );
    check(json!([{"id": "a", "name": "x", "after": ["a"]}]), "Circular dependency of actions: a -> a.");
    check(
        json!([
            {"id": "a", "name": "x", "after": ["b"]},
            {"id": "b", "name": "y", "params": {"p": "{{c.z}}"}},
            {"id": "c", "name": "z", "params": ["{{b}}"]},
        ]),
        "Circular dependency of actions: b -> c -> b.",
    );
}

#[test]
fn every_flaw_is_found_at_once() {
    let node = |id, after: &[&'static str]| PlanNode { id, after: after.to_vec(), ..PlanNode::default() };
    let (all, flaws) = needs(&[node("a", &["x", "b"]), node("b", &["a", "y"]), node("a", &[])], &["y"]);
    assert_eq!(all.iter().map(|needs| needs.len()).collect::<Vec<_>>(), [1, 1, 0]);
    let places: Vec<&str> = flaws
        .iter()
        .map(|flaw| match flaw {
            PlanFlaw::SameId { first: 0, second: 2, .. } => "same",
            PlanFlaw::UnknownId { at: 0, name, .. } if name == "x" => "unknown x",
            // Only templates can use the given names.
            PlanFlaw::UnknownId { at: 1, name, .. } if name == "y" => "unknown y",
            PlanFlaw::Cycle { calls, .. } if *calls == [0, 1] => "cycle",
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(places, ["same", "unknown x", "unknown y", "cycle"]);
}

#[test]
fn needs_come_from_after_and_from_templates() {
    let plan = plan(json!([
        {"name": "x"},
        {"id": "b", "name": "y", "params": {"p": "{{1.z}} {{input.q}} {{ref:r.s}}"}},
        {"name": "z", "after": ["b"]},
    ]))
    .unwrap();
    let needs: Vec<Vec<usize>> = (0..3).map(|at| plan.needs(at).iter().copied().collect()).collect();
    assert_eq!(needs, [vec![], vec![0], vec![1]]);
    assert_eq!((0..3).map(|at| plan.is_used(at)).collect::<Vec<_>>(), [true, false, false]);
}

#[test]
fn calls_start_when_all_their_needs_have_ended() {
    check(&[], pace(8), &[("begin", "end"), ("cancel", "")]);
    check(&["", "", ""], pace(8), &[("begin", ">a >b >c"), ("b+", ""), ("a+", ""), ("c+", "end")]);
    check(&["b", "c", ""], pace(8), &[("begin", ">c"), ("c+", ">b"), ("b+", ">a"), ("a+", "end")]);
    check(&["", "", "ab"], pace(8), &[("begin", ">a >b"), ("b+", ""), ("a+", ">c"), ("c+", "end")]);
    // An unexpected end changes nothing.
    check(&["", "a"], pace(8), &[("begin", ">a"), ("b+", ""), ("a+", ">b"), ("a+", ""), ("b+", "end")]);
}

#[test]
fn so_many_run_at_a_time() {
    let four = ["", "", "", ""];
    check(&four, pace(1), &[("begin", ">a"), ("a+", ">b"), ("b-", ">c"), ("c+", ">d"), ("d+", "end")]);
    check(&four, pace(2), &[("begin", ">a >b"), ("b+", ">c"), ("a+", ">d"), ("c+", ""), ("d+", "end")]);
    check(&four, pace(3), &[("begin", ">a >b >c"), ("a+", ">d")]);
    check(&four, pace(4), &[("begin", ">a >b >c >d")]);
    check(&four, pace(0), &[("begin", ">a")]);
}

#[test]
fn one_runs_at_a_time_in_a_lane() {
    let lane = |name: &str| (name != "-").then(|| Arc::from(name));
    let lanes = ["x", "x", "-", "y", "x"].map(lane).to_vec();
    let pace = |concurrency| Pace { lanes: lanes.clone(), ..pace(concurrency) };
    let five = ["", "", "", "", ""];
    check(&five, pace(8), &[("begin", ">a >c >d"), ("c+", ""), ("a-", ">b"), ("b+", ">e"), ("d+", "")]);
    // A call that waits for its lane does not take another call's place.
    check(&five, pace(2), &[("begin", ">a >c"), ("c+", ">d"), ("d+", ""), ("a+", ">b")]);
}

#[test]
fn a_failure_holds_its_dependants_back_and_nothing_else() {
    check(&["", "a", "b", ""], pace(8), &[("begin", ">a >d"), ("a-", "b:a c:b"), ("d+", "end")]);
    // Also dependants that come first in the list, and as soon as one of several dependencies has failed.
    check(&["b", "c", ""], pace(8), &[("begin", ">c"), ("c-", "b:c a:b end")]);
    check(&["", "", "ab"], pace(8), &[("begin", ">a >b"), ("b-", "c:b"), ("a+", "end")]);
}

#[test]
fn an_optional_call_may_fail() {
    let hasty = Pace { fail_fast: true, ..pace(1) };
    check(&["?", "a", ""], hasty.clone(), &[("begin", ">a"), ("a-", ">b"), ("b+", ">c"), ("c+", "end")]);
    // An optional call that was held back does not hold back its dependants either.
    check(&["", "?a", "b"], pace(8), &[("begin", ">a"), ("a-", "b:a >c"), ("c+", "end")]);
}

#[test]
fn fail_fast_starts_nothing_after_a_failure() {
    let hasty = |concurrency| Pace { fail_fast: true, ..pace(concurrency) };
    check(&["", "", "a"], hasty(1), &[("begin", ">a"), ("a-", "halt b:fail_fast c:fail_fast end")]);
    check(&["", "", "b"], hasty(8), &[("begin", ">a >b"), ("a-", "halt c:fail_fast"), ("b-", "end")]);
}

#[test]
fn a_cancelled_run_starts_nothing_and_ends_with_what_is_running() {
    check(&["", "a"], pace(1), &[("cancel", "a:cancelled b:cancelled end")]);
    check(
        &["", "", "a"],
        Pace { fail_fast: true, ..pace(1) },
        &[("begin", ">a"), ("cancel", "b:cancelled c:cancelled"), ("a-", "halt end"), ("cancel", "")],
    );
}

#[test]
fn what_a_when_names_is_waited_for() {
    let plan = plan(json!([
        {"id": "a", "name": "x"},
        {"id": "b", "name": "x"},
        {"name": "y", "when": ".steps.a.n > 1 and .input.m == 2"},
        {"name": "z", "after": ["b"], "when": ".steps | length > 0", "params": {"p": "{{3}}"}},
    ]))
    .unwrap();
    let needs: Vec<Vec<usize>> = (0..4).map(|at| plan.needs(at).iter().copied().collect()).collect();
    assert_eq!(needs, [vec![], vec![], vec![0], vec![1, 2]]);
    let seen = |of: &dyn Fn(usize) -> bool| (0..4).filter(|at| of(*at)).collect::<Vec<_>>();
    assert_eq!((seen(&|at| plan.is_used(at)), seen(&|at| plan.is_seen(at))), (vec![2], vec![0, 1, 2]));
}

#[test]
fn what_a_when_may_name_is_waited_for_if_there_is_such_a_call() {
    let plan = plan(json!([
        {"id": "rows", "name": "x", "when": "[.input.rows[] | select(.steps.done or .steps.late)] | length > 0"},
        {"id": "late", "name": "x", "params": {"p": "{{rows}}"}},
        {"id": "c", "name": "x", "when": ". as {$steps} | $steps.rows.n > 1"},
        {"id": "d", "name": "x", "when": "getpath([\"steps\", \"c\"])"},
    ]))
    .unwrap();
    let needs: Vec<Vec<usize>> = (0..4).map(|at| plan.needs(at).iter().copied().collect()).collect();
    assert_eq!(needs, [vec![], vec![0], vec![0], vec![2]]);
    assert!((0..4).all(|at| plan.is_seen(at) == (at == 0 || at == 2)));
}

#[test]
fn an_item_is_known_only_where_there_are_items() {
    let calls = |for_each: Option<&str>| {
        plan(json!([
            {"id": "list", "name": "x"},
            {"id": "each", "name": "y", "for_each": for_each, "params": {"p": "{{item.x}} {{index}}"}},
        ]))
    };
    let plan = calls(Some("{{list.rows}}")).unwrap();
    assert_eq!(plan.needs(1).iter().copied().collect::<Vec<_>>(), [0]);
    let flaw = calls(None).unwrap_err().to_string();
    assert_eq!(
        flaw,
        "The action `each` refers to `index`, which is none of the actions (each, list); an action has items with `for_each`."
    );
    assert!(calls(Some("{{item}}")).is_err(), "the list itself is no item");
}

#[test]
fn a_filter_waits_for_the_steps_that_it_reads_and_uses_them() {
    let plan = plan(json!([
        {"id": "a", "name": "x"},
        {"id": "b", "name": "x", "params": {"p": "{{sum}}"}},
        {"id": "sum", "filter": "[.steps.a[].n] | add"},
        {"id": "all", "filter": "[.steps[] | length]"},
        {"id": "some", "after": ["a"], "filter": ".steps | keys"},
        {"id": "now", "filter": "now"},
    ]))
    .unwrap();
    let needs: Vec<Vec<usize>> = (0..6).map(|at| plan.needs(at).iter().copied().collect()).collect();
    assert_eq!(needs, [vec![], vec![2], vec![0], vec![0, 1, 2], vec![0], vec![]]);
    let users: Vec<String> = (0..6).map(|at| plan.users(at).collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(users, ["sum all some", "all", "b all", "", "", ""]);
    let flaw = self::plan(json!([{"id": "a", "filter": ".steps.nope"}])).unwrap_err().to_string();
    assert_eq!(flaw, "The action `a` refers to `nope`, which is none of the actions (a).");
}

#[test]
fn a_retry_is_a_number_or_a_table() {
    let check = |given: Value, expected: Result<Retry, &str>| match (
        serde_json::from_value::<Retry>(given.clone()),
        expected,
    ) {
        (Ok(retry), Ok(expected)) => {
            assert_eq!(retry, expected, "{given}");
            assert_eq!(serde_json::from_value::<Retry>(json!(retry)).unwrap(), expected, "{given}");
        }
        (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{given}: {error}"),
        (got, _) => panic!("{given}: {got:?}"),
    };
    let second = std::time::Duration::from_secs(1);
    check(json!(2), Ok(Retry { times: 2, wait: second, on: Vec::new() }));
    check(
        json!({"wait": "2s", "on": ["timeout"]}),
        Ok(Retry { times: 3, wait: second * 2, on: vec!["timeout".into()] }),
    );
    check(json!(0), Err("give 1 to 10"));
    check(json!({"wait": "soon"}), Err("such as `2s`"));
    check(json!({"tmes": 1}), Err("unknown field"));
    check(json!("often"), Err("`retry` is {times, wait, on}"));
}

#[test]
fn a_skipped_call_holds_nothing_back() {
    let hasty = Pace { fail_fast: true, ..pace(8) };
    check(&["", "a", "b"], hasty, &[("begin", ">a"), ("a~", ">b"), ("b~", ">c"), ("c+", "end")]);
}

#[test]
fn a_call_that_waits_for_the_user_parks_the_run_when_the_rest_has_ended() {
    check(&["", "a", ""], pace(8), &[("begin", ">a >c"), ("a?", ""), ("c+", "?a")]);
    check(&["", "a"], pace(8), &[("begin", ">a"), ("a?", "?a")]);
    // One question at a time.
    let ask = Pace { lanes: vec![Some(Arc::from("")), Some(Arc::from("")), None], ..pace(8) };
    check(&["", "", ""], ask, &[("begin", ">a >c"), ("a?", ""), ("c+", "?a")]);
    // The run fails: nobody needs the answer.
    let hasty = Pace { fail_fast: true, ..pace(8) };
    check(
        &["", "", "a"],
        hasty,
        &[("begin", ">a >b"), ("a?", ""), ("b-", "halt a:fail_fast c:fail_fast end")],
    );
}

#[test]
fn a_resumed_run_does_what_is_left() {
    let plan = calls(&["", "a", "b", "a"]);
    let ended = [(0, StepOutcome::Succeeded), (1, StepOutcome::Skipped)];
    let mut schedule = Schedule::resumed(&plan, pace(8), &ended);
    assert_eq!(schedule.step(ScheduleEvent::Begin), [ScheduleEffect::Start(2), ScheduleEffect::Start(3)]);
    let ends = |at| ScheduleEvent::Ended { at, outcome: StepOutcome::Succeeded };
    assert_eq!((schedule.step(ends(3)), schedule.step(ends(2))), (vec![], vec![ScheduleEffect::Finished]));
    let mut failed = Schedule::resumed(&plan, pace(8), &[(0, StepOutcome::Failed)]);
    let effects = failed.step(ScheduleEvent::Begin);
    assert!(effects.iter().all(|effect| !matches!(effect, ScheduleEffect::Start(_))), "{effects:?}");
}
