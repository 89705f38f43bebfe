//! Tests of search outcomes and of tools' figures, with every engine.

use nonet_search::outcomes::{HALF_LIFE_S, LIFETIME_S, MOST_PER_DOCUMENT};

use super::{
    super::*,
    NOW,
    engines::{Engine, Here, with_both_engines},
    numbered, outcome,
};

with_both_engines![
    of_two_with_the_same_key_the_stronger_is_kept,
    old_outcomes_go_unless_the_clock_is_wrong,
    a_document_has_its_bounds,
    gateways_lose_no_outcome,
    figures_of_gateways_add_up,
];

/// Returns the stored outcomes, by document.
async fn outcomes(here: &Here) -> Vec<Outcome> {
    let mut outcomes = here.store.outcomes().await.expect("readable");
    outcomes.sort_by(|a, b| (&a.document, &a.words).cmp(&(&b.document, &b.words)));
    outcomes
}

async fn documents(here: &Here) -> Vec<String> {
    outcomes(here).await.iter().map(|outcome| outcome.document.to_string()).collect()
}

async fn put(here: &Here, outcome: Outcome) {
    here.store.put_outcome(outcome).await.expect("written");
}

async fn of_two_with_the_same_key_the_stronger_is_kept(engine: &Engine) {
    const MONTH: u64 = HALF_LIFE_S;
    let cases = [
        ((1.0, NOW), (2.0, NOW), (2.0, NOW)),
        ((2.0, NOW), (1.0, NOW), (2.0, NOW)),
        ((1.0, NOW), (1.0, NOW + 1), (1.0, NOW + 1)),
        ((3.0, NOW), (1.0, NOW + 2 * MONTH), (1.0, NOW + 2 * MONTH)),
        ((3.0, NOW), (1.0, NOW + MONTH), (3.0, NOW)),
        // Written under a wrong clock, and repeated under the right one.
        ((5.0, NOW + 100 * MONTH), (1.0, NOW), (1.0, NOW)),
    ];
    let (here, other) = (engine.gateway(), engine.gateway());
    let mut expected = Vec::new();
    for (number, (first, second, kept)) in cases.into_iter().enumerate() {
        let named = |(weight, at)| outcome("查询 \"open issue\"", &format!("a:{number}.l'avis"), weight, at);
        put(&here, named(first)).await;
        put(&other, named(second)).await;
        expected.push(named(kept));
        // The first outcome of the last case is so late that all others are too old for it.
        let newest = first.1.max(second.1);
        expected.retain(|outcome| outcome.at + LIFETIME_S >= newest);
        if newest > NOW + LIFETIME_S {
            expected = vec![named(kept)];
        }
        assert_eq!(outcomes(&here).await, expected, "{number}");
    }
}

async fn old_outcomes_go_unless_the_clock_is_wrong(engine: &Engine) {
    let here = engine.gateway();
    for (number, at) in [(1, NOW), (2, NOW + LIFETIME_S), (3, 0)] {
        put(&here, Outcome { at, ..numbered(number) }).await;
    }
    assert_eq!(documents(&here).await, ["server.tool1", "server.tool2", "server.tool3"]);
    put(&here, Outcome { at: NOW + LIFETIME_S + 1, ..numbered(4) }).await;
    assert_eq!(documents(&here).await, ["server.tool2", "server.tool4"]);
}

async fn a_document_has_its_bounds(engine: &Engine) {
    let here = engine.gateway();
    put(&here, outcome("query", "other", 1.0, NOW - 1)).await;
    for number in 0..MOST_PER_DOCUMENT + 5 {
        put(&here, outcome(&format!("query q{number}"), "busy", 1.0, NOW + number as u64)).await;
    }
    let kept = outcomes(&here).await;
    let busy: Vec<&Outcome> = kept.iter().filter(|outcome| *outcome.document == *"busy").collect();
    assert_eq!(busy.len(), MOST_PER_DOCUMENT);
    assert!(busy.iter().all(|outcome| outcome.at >= NOW + 5));
    assert_eq!(kept.len(), MOST_PER_DOCUMENT + 1);
}

async fn gateways_lose_no_outcome(engine: &Engine) {
    let (here, other) = (engine.gateway(), engine.gateway());
    let puts = (0..200).map(|n| put(if n % 2 == 0 { &here } else { &other }, numbered(n)));
    futures::future::join_all(puts).await;
    assert_eq!(documents(&here).await.len(), 200);
}

async fn figures_of_gateways_add_up(engine: &Engine) {
    let gateways = [engine.gateway(), engine.gateway()];
    assert_eq!(gateways[0].store.figures().await.expect("readable"), []);
    let call = |fails: bool| {
        let mut figures = ToolFigures { calls: 1, called_ms: NOW, ..ToolFigures::default() };
        if fails {
            figures.failures = 1;
            figures.recent.failed();
            let (code, message) = ("tool_error".into(), "xylophone out of order".into());
            figures.put_error("reader".into(), LastError { code, message, version: "1".into(), at_ms: NOW });
        } else {
            figures.recent.succeeded(Duration::from_millis(4));
        }
        figures
    };
    let add = async |here: &Here, fails| {
        for _ in 0..15 {
            let fresh = ["a.b", "查.x\"'"].map(|tool| (tool.into(), call(fails)));
            here.store.add_figures(fresh.into()).await.expect("written").expect("kept");
        }
    };
    tokio::join!(add(&gateways[0], true), add(&gateways[1], false));
    let mut kept = gateways[1].store.figures().await.expect("readable");
    kept.sort_by(|(a, _), (b, _)| a.cmp(b));
    let tools: Vec<&str> = kept.iter().map(|(tool, _)| &**tool).collect();
    assert_eq!(tools, ["a.b", "查.x\"'"]);
    for (_, figures) in kept {
        assert_eq!((figures.calls, figures.failures, figures.recent.count()), (30, 15, 30));
        assert_eq!(figures.recent.times_us().collect::<Vec<_>>(), [4_000; 15]);
        assert_eq!(figures.errors["reader"].message, "xylophone out of order");
    }
    let last = gateways[0].store.add_figures(vec![("a.b".into(), call(false))]).await.expect("written");
    assert_eq!(last.expect("kept")[0].1.calls, 31);
}
