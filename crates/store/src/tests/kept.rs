//! Tests of results and jobs, with every engine.

use serde_json::json;

use super::{
    super::*,
    engines::{Engine, HOUR, Here, ROOMY, with_both_engines},
};

with_both_engines![
    what_was_put_is_there_for_every_gateway,
    values_of_any_length_are_cut_and_joined,
    an_entry_takes_the_place_of_one_with_its_id,
    a_job_that_ended_does_not_run_again,
    the_oldest_go_until_the_rest_fits,
    what_is_too_old_goes,
    jobs_of_dead_gateways_are_told_and_then_go,
    a_client_makes_room_at_its_own_cost,
    an_entry_is_shown_to_its_owner_only,
    jobs_are_listed_newest_first,
    gateways_put_at_once,
    results_are_listed_and_removed,
];

/// Returns the share of a client.
fn share(of: &str, bytes: u64) -> Share {
    Share { of: of.into(), bytes }
}

fn mine() -> Share {
    share("me", u64::MAX)
}

/// Returns a value whose compact JSON has that length.
fn value(bytes: usize) -> Value {
    Value::String("x".repeat(bytes - 2))
}

async fn put_of(here: &Here, id: &str, share: Share, bytes: usize) {
    let lasts = here.store.put_result(id, "", share, Arc::new(value(bytes))).await;
    assert_eq!(lasts.expect("written"), Lifespan::AsConfigured);
}

async fn put(here: &Here, id: &str, bytes: usize) {
    put_of(here, id, mine(), bytes).await;
}

async fn put_job(here: &Here, job: &JobRow, value: Option<Value>) {
    let lasts = here.store.put_job(job.clone(), mine(), value.map(Arc::new)).await;
    assert_eq!(lasts.expect("written"), Lifespan::AsConfigured);
}

/// Returns the value of an entry, parsed.
async fn value_of(here: &Here, id: &str, owner: &str) -> Option<Value> {
    let text = here.store.text(id, owner).await.expect("readable")?;
    Some(serde_json::from_str(&text).expect("JSON"))
}

async fn job_of(here: &Here, id: &str) -> Option<JobRow> {
    here.store.job(id, "").await.expect("readable")
}

async fn counts(here: &Here) -> KeptCounts {
    here.store.counts().await.expect("readable").expect("it was used")
}

/// Returns which of these ids are stored, as a value or a job.
async fn kept(here: &Here, ids: &str) -> String {
    let mut found = Vec::new();
    for id in ids.split(' ') {
        if job_of(here, id).await.is_some() || value_of(here, id, "").await.is_some() {
            found.push(id);
        }
    }
    assert_eq!(counts(here).await.entries, found.len() as u64, "nothing else is kept");
    found.join(" ")
}

/// Returns a job of the gateway that stores it.
fn job(id: &str, state: JobState) -> JobRow {
    let (owner, label) = (String::new(), "server.tool".into());
    JobRow { id: id.into(), owner, label, state, started_ms: 1_000, leased: true }
}

const DONE: JobState = JobState::Done { ended_ms: 2_000, failed: false };

async fn what_was_put_is_there_for_every_gateway(engine: &Engine) {
    let (here, other) = (engine.gateway(), engine.gateway());
    assert_eq!(here.store.counts().await.expect("readable"), None, "it was not used");
    let result =
        json!({"content": [{"type": "text", "text": "查询天气 \"now\"\n🦀"}], "n": [0, -1, 1.5, null, true]});
    let failed = JobState::Done { ended_ms: 2_000, failed: true };
    let ended = JobRow { owner: "work".into(), ..job("job-1", failed) };
    let cancelled = job("job-2", JobState::Cancelled { ended_ms: 3_000 });
    let working = job("job-3", JobState::Working);
    here.store.put_result("r-1", "", mine(), Arc::new(result.clone())).await.expect("written");
    put_job(&here, &ended, Some(result.clone())).await;
    put_job(&here, &cancelled, None).await;
    put_job(&here, &working, None).await;
    assert_eq!(value_of(&other, "r-1", "").await.as_ref(), Some(&result));
    assert_eq!(other.store.text("r-1", "").await.expect("readable"), Some(result.to_string()));
    assert_eq!(value_of(&other, "job-1", "work").await.as_ref(), Some(&result));
    assert_eq!((value_of(&other, "job-2", "").await, value_of(&other, "job-4", "").await), (None, None));
    assert_eq!(other.store.job("job-1", "work").await.expect("readable"), Some(ended));
    assert_eq!(job_of(&other, "job-2").await, Some(cancelled));
    assert_eq!(job_of(&other, "job-3").await, Some(working));
    assert_eq!(job_of(&other, "r-1").await, None);
    let length = result.to_string().len() as u64;
    assert_eq!(counts(&other).await, KeptCounts { entries: 4, bytes: 2 * length });
}

async fn values_of_any_length_are_cut_and_joined(engine: &Engine) {
    let here = engine.gateway();
    for chunk in [512 << 10, 1 << 20] {
        for bytes in [2, chunk - 1, chunk, chunk + 1, 2 * chunk, 4 * chunk, 4 * chunk + 1, 5_000_000] {
            put(&here, "r-1", bytes).await;
            let text = here.store.text("r-1", "").await.expect("readable").expect("there");
            let put = value(bytes).to_string();
            assert!(text == put, "{bytes}");
        }
        // A character may cross a chunk's border.
        for before in 1..=5 {
            let text = json!(format!("{}{}", "x".repeat(chunk - before), "🦀".repeat(3)));
            here.store.put_result("r-1", "", mine(), Arc::new(text.clone())).await.expect("written");
            assert!(value_of(&here, "r-1", "").await == Some(text), "{before}");
        }
    }
    assert_eq!(counts(&here).await.entries, 1);
}

async fn an_entry_takes_the_place_of_one_with_its_id(engine: &Engine) {
    let here = engine.gateway();
    put(&here, "r-1", 3 << 20).await;
    put(&here, "r-2", 10).await;
    put(&here, "r-1", 20).await;
    assert_eq!(counts(&here).await, KeptCounts { entries: 2, bytes: 30 });
    assert_eq!(value_of(&here, "r-1", "").await, Some(value(20)));
}

async fn a_job_that_ended_does_not_run_again(engine: &Engine) {
    let here = engine.gateway();
    let ended = job("job-1", DONE);
    put_job(&here, &ended, Some(json!("x"))).await;
    // The write of its start was slower.
    put_job(&here, &JobRow { state: JobState::Working, ..ended.clone() }, None).await;
    assert_eq!(job_of(&here, "job-1").await, Some(ended));
    assert_eq!(value_of(&here, "job-1", "").await, Some(json!("x")));
}

async fn the_oldest_go_until_the_rest_fits(engine: &Engine) {
    let here = engine.gateway_with(Retention { bytes: 1_000, age: HOUR }, &Clock::default());
    put_job(&here, &job("job-0", JobState::Working), None).await;
    let later = job("job-1", JobState::Working);
    put_job(&here, &later, None).await;
    for id in ["r-1", "r-2", "r-3"] {
        put(&here, id, 300).await;
    }
    const ALL: &str = "job-0 job-1 r-1 r-2 r-3 r-4 r-5 r-6 r-7";
    assert_eq!(kept(&here, ALL).await, "job-0 job-1 r-1 r-2 r-3");
    put(&here, "r-4", 100).await;
    assert_eq!(counts(&here).await.bytes, 1_000);
    put(&here, "r-5", 2).await;
    assert_eq!(kept(&here, ALL).await, "job-0 job-1 r-2 r-3 r-4 r-5");
    // A job's age counts from its end.
    put_job(&here, &JobRow { state: DONE, ..later }, Some(value(301))).await;
    assert_eq!(kept(&here, ALL).await, "job-0 job-1 r-3 r-4 r-5");
    // The newest entry stays, however large it is, and so do running jobs.
    put(&here, "r-6", 5_000).await;
    assert_eq!(kept(&here, ALL).await, "job-0 r-6");
    put(&here, "r-7", 2).await;
    assert_eq!(kept(&here, ALL).await, "job-0 r-7");
    assert_eq!(counts(&here).await.bytes, 2);
}

/// Lets hours pass as they do while a gateway runs.
async fn pass(here: &Here, hours: u32) {
    for _ in 0..hours {
        here.clock.advance(HOUR);
        here.store.sweep().await.expect("tidied");
    }
}

async fn what_is_too_old_goes(engine: &Engine) {
    let here = engine.gateway_with(Retention { age: 2 * HOUR, ..ROOMY }, &Clock::default());
    put(&here, "r-1", 10).await;
    put_job(&here, &job("running", JobState::Working), None).await;
    pass(&here, 1).await;
    put_job(&here, &job("r-2", JobState::Cancelled { ended_ms: 9_000 }), None).await;
    const ALL: &str = "r-1 running r-2 r-3";
    assert_eq!(kept(&here, ALL).await, "r-1 running r-2");
    here.clock.advance(HOUR);
    put(&here, "r-3", 10).await;
    assert_eq!(kept(&here, ALL).await, "running r-2 r-3");
    pass(&here, 1).await;
    assert_eq!(kept(&here, ALL).await, "running r-3");
    pass(&here, 1).await;
    assert_eq!(kept(&here, ALL).await, "running");
    assert_eq!(counts(&here).await.bytes, 0);
}

async fn jobs_of_dead_gateways_are_told_and_then_go(engine: &Engine) {
    let (clock, retention) = (Clock::default(), Retention { age: 2 * HOUR, ..ROOMY });
    let dead = engine.gateway_with(retention, &clock);
    let old = job("old", JobState::Working);
    put_job(&dead, &old, None).await;
    pass(&dead, 1).await;
    let lost = JobRow { id: "lost".into(), ..old };
    put_job(&dead, &lost, None).await;
    put(&dead, "r-1", 10).await;
    const ALL: &str = "old lost r-1";
    assert_eq!(kept(&dead, ALL).await, ALL);
    engine.end(dead).await;
    clock.advance(HOUR);
    let here = engine.gateway_with(retention, &clock);
    assert_eq!(job_of(&here, "lost").await, Some(JobRow { leased: false, ..lost }));
    here.store.sweep().await.expect("tidied");
    assert_eq!(kept(&here, ALL).await, "lost r-1");
}

async fn a_client_makes_room_at_its_own_cost(engine: &Engine) {
    let here = engine.gateway_with(Retention { bytes: 1_000, age: HOUR }, &Clock::default());
    let put = async |id: &str, of: &str, bytes: usize| put_of(&here, id, share(of, 500), bytes).await;
    const ALL: &str = "a-1 b-1 b-2 b-3 b-4 c-1 c-2 d-1 a-2 a-3 a-4";
    put("a-1", "a", 100).await;
    put("b-1", "b", 300).await;
    put("b-2", "b", 200).await;
    put("b-3", "b", 100).await;
    assert_eq!(kept(&here, ALL).await, "a-1 b-2 b-3", "its oldest went");
    put("b-4", "b", 600).await;
    assert_eq!(kept(&here, ALL).await, "a-1 b-4", "the newest stays, however large it is");
    // Beyond the total limit, the owner of the largest share makes room.
    put("c-1", "c", 200).await;
    put("c-2", "c", 150).await;
    assert_eq!(kept(&here, ALL).await, "a-1 c-1 c-2");
    put("d-1", "d", 450).await;
    put("a-2", "a", 100).await;
    put("a-3", "a", 50).await;
    assert_eq!(kept(&here, ALL).await, "a-1 c-1 c-2 a-2 a-3");
    // A reduced share applies to new entries.
    put_of(&here, "a-4", share("a", 120), 100).await;
    assert_eq!(kept(&here, ALL).await, "c-1 c-2 a-4");
}

async fn an_entry_is_shown_to_its_owner_only(engine: &Engine) {
    let here = engine.gateway();
    let owners = ["", "work", "home"];
    for owner in owners {
        let value = Arc::new(json!(owner));
        here.store.put_result(&format!("r-{owner}"), owner, mine(), value.clone()).await.expect("written");
        let job = JobRow { owner: owner.into(), ..job(&format!("job-{owner}"), DONE) };
        here.store.put_job(job, mine(), Some(value)).await.expect("written");
    }
    for owner in owners {
        let (result, job) = (format!("r-{owner}"), format!("job-{owner}"));
        for other in owners {
            let value = (owner == other).then(|| json!(owner));
            assert_eq!(value_of(&here, &result, other).await, value);
            assert_eq!(value_of(&here, &job, other).await, value);
            let found = here.store.job(&job, other).await.expect("readable");
            assert_eq!(found.map(|job| job.owner).as_deref(), (owner == other).then_some(owner));
        }
        let jobs = here.store.jobs(owner, 10).await.expect("readable");
        assert_eq!(jobs.into_iter().map(|job| job.id).collect::<Vec<_>>(), [job]);
    }
}

async fn jobs_are_listed_newest_first(engine: &Engine) {
    let here = engine.gateway();
    put(&here, "r-1", 10).await;
    for (id, started_ms) in [("b", 2_000), ("c", 3_000), ("a", 1_000), ("d", 3_000)] {
        put_job(&here, &JobRow { started_ms, ..job(id, JobState::Working) }, None).await;
    }
    for (most, expected) in [(10, "dcba"), (usize::MAX, "dcba"), (2, "dc"), (0, "")] {
        let jobs = here.store.jobs("", most).await.expect("readable");
        assert_eq!(jobs.into_iter().map(|job| job.id).collect::<String>(), expected, "{most}");
    }
}

async fn gateways_put_at_once(engine: &Engine) {
    let gateways: Vec<Here> = (0..3).map(|_| engine.gateway()).collect();
    let puts = (0..60).map(|n| {
        let here = &gateways[n % 3];
        async move {
            let id = format!("job-{n}");
            put_job(here, &job(&id, JobState::Working), None).await;
            put_job(here, &job(&id, DONE), Some(json!([n, "x".repeat(n * 10_000)]))).await;
        }
    });
    futures::future::join_all(puts).await;
    for n in 0..60 {
        let found = value_of(&gateways[(n + 1) % 3], &format!("job-{n}"), "").await;
        assert!(found == Some(json!([n, "x".repeat(n * 10_000)])), "{n}");
    }
    assert_eq!(counts(&gateways[0]).await.entries, 60);
    assert_eq!(gateways[0].store.jobs("", 100).await.expect("readable").len(), 60);
}

async fn results_are_listed_and_removed(engine: &Engine) {
    let here = engine.gateway();
    put(&here, "first", 20).await;
    let lasts = here.store.put_result("second", "reader", mine(), Arc::new(value(40))).await;
    assert_eq!(lasts.expect("written"), Lifespan::AsConfigured);
    let running = job("job", JobState::Working);
    put_job(&here, &running, None).await;
    let listed = async || {
        let rows = here.store.results(10).await.expect("readable");
        rows.into_iter().map(|row| (row.id, row.owner, row.bytes)).collect::<Vec<_>>()
    };
    let (first, second) =
        (("first".to_string(), String::new(), 20), ("second".to_string(), "reader".to_string(), 40));
    assert_eq!(listed().await, [second.clone(), first.clone()]);
    assert_eq!(here.store.results(1).await.expect("readable").len(), 1);
    let remove = async |id: &str, owner: &str| here.store.remove_kept(id, owner).await.expect("written");
    assert!(!remove("second", "").await, "it is another owner's");
    assert!(!remove("job", "").await, "it runs");
    assert!(remove("second", "reader").await);
    assert!(!remove("second", "reader").await);
    assert_eq!(listed().await, [first]);
    put_job(&here, &job("job", JobState::Done { ended_ms: 2, failed: false }), Some(value(10))).await;
    assert!(remove("job", "").await);
    assert_eq!(job_of(&here, "job").await, None);
    assert_eq!(here.store.counts().await.expect("readable").map(|counts| counts.entries), Some(1));
}
