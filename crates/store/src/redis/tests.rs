//! Tests specific to Redis: expiring keys and leases, newer values, and an unavailable Redis.

use nonet_testing::RedisServer;
use std::collections::BTreeSet;

use nix::sys::signal::Signal;
use nonet_base::{clock::Clock, turns::SharedTake};
use nonet_search::outcomes::{MOST_OUTCOMES, words};
use redis::{Commands, Connection};
use serde_json::json;

use super::{
    super::{
        FactVector, ForgetScope, GatewayStore, JobRow, JobState, KeptCounts, Lifespan, NamedFigures,
        NewRecord, PinKind, PinStep, PinWrite, RateOutcome, RecordKind, RecordQuota, Retention, Share,
        SharedRate, Store,
        tests::{
            NOW,
            engines::{HOUR, ROOMY, store_at},
            numbered, outcome,
        },
    },
    *,
};

fn open(server: &RedisServer) -> GatewayStore {
    store_at(server, ROOMY, &Clock::default())
}

fn share() -> Share {
    Share { of: "me".into(), bytes: u64::MAX }
}

fn watch(id: &str) -> NewRecord {
    NewRecord { id: id.into(), due_ms: Some(5), ..NewRecord::new(RecordKind::Watch, json!({ "n": 1 })) }
}

async fn put(store: &GatewayStore, record: NewRecord) {
    assert_eq!(store.records.put(record, RecordQuota::Refuse(9)).await.expect("written"), Some(0));
}

async fn put_result(store: &GatewayStore, id: &str, bytes: usize) -> Lifespan {
    let value = Arc::new(json!("x".repeat(bytes - 2)));
    store.put_result(id, "", share(), value).await.expect("kept")
}

fn job(id: &str, state: JobState) -> JobRow {
    let (owner, label) = (String::new(), "server.tool".into());
    JobRow { id: id.into(), owner, label, state, started_ms: 1_000, leased: true }
}

fn keys(redis: &mut Connection) -> BTreeSet<String> {
    redis.keys("*").expect("readable")
}

/// Stores something of every kind.
async fn fill(store: &GatewayStore) {
    for kind in RecordKind::ALL {
        put(store, NewRecord { kind, owner: "a".into(), ..watch("1") }).await;
    }
    let vector = FactVector { id: "1".into(), revision: 1, vector: [1.0].into() };
    store.records.put_vectors("a", "m", vec![vector]).await.expect("written");
    put_result(store, "r-1", 2_000_000).await;
    store.put_job(job("job-1", JobState::Working), share(), None).await.expect("written");
    store.put_outcome(numbered(1)).await.expect("written");
    store.add_figures(vec![("a.b".into(), NamedFigures::default().1)]).await.expect("written");
    assert_eq!(store.take_rates(&[&rate()]).await.expect("taken"), RateOutcome::All);
    let pins = store.shared_pins().expect("they are shared");
    let to = PinStep::Wait { hash: "1".into(), text: "{}".into() };
    let write = PinWrite { kind: PinKind::Tool, name: "t".into(), to };
    let pinned = tokio::task::spawn_blocking(move || pins.write("a", &[write], 5)).await;
    pinned.expect("no panic").expect("written");
    let vectors = store.shared_vectors().expect("they are shared");
    vectors.offer("model", &[([1; 16], vec![0.5; 4].into())]).await;
}

fn rate() -> SharedRate {
    SharedRate { name: "a".into(), interval: Duration::from_secs(60), burst: 9 }
}

#[tokio::test]
async fn every_key_has_the_prefix_and_an_end_that_is_put_off() {
    let Some(server) = RedisServer::start() else { return };
    let store = open(&server);
    fill(&store).await;
    let mut redis = server.connect();
    let all = keys(&mut redis);
    assert!(all.len() > 30, "{all:?}");
    for key in &all {
        let begins = ["nonet:{nonet}:", "nonet:value:{", "nonet:vector:{"];
        assert!(begins.iter().any(|begin| key.starts_with(begin)), "{key}");
        let left: i64 = redis.pttl(key).expect("readable");
        assert!(left > 0, "{key} never ends");
    }
    // Entries with an age limit expire; the rest lives on.
    let for_good = |key: &&String| {
        ["record:", "of:", "kind:", "due", "notices", "changes:", "number", "count", "tables", "carried"]
            .iter()
            .any(|name| key.strip_prefix("nonet:{nonet}:").is_some_and(|key| key.starts_with(name)))
    };
    let for_good: Vec<&String> = all.iter().filter(for_good).collect();
    assert!(for_good.len() > 25, "{for_good:?}");
    for key in &for_good {
        redis.pexpire::<_, ()>(key, 60_000).expect("set");
    }
    store.sweep().await.expect("tidied");
    for key in for_good {
        let left: i64 = redis.pttl(key).expect("readable");
        assert!(left > 300 * 24 * 3_600_000, "{key}: {left}");
    }
}

#[tokio::test]
async fn a_prefix_is_a_store_of_its_own() {
    let Some(server) = RedisServer::start() else { return };
    let other = GatewayStore::in_redis(server.address(), "other", None, ROOMY, Clock::default());
    let store = open(&server);
    fill(&store).await;
    assert_eq!(other.records.of_kind(RecordKind::Watch).await.expect("readable"), []);
    assert_eq!(other.text("r-1", "").await.expect("readable"), None);
    assert_eq!(other.counts().await.expect("readable"), Some(KeptCounts::default()));
    let named = |store: &GatewayStore| store.shared().expect("it is shared").name;
    assert!(named(&store) == "here" && named(&other).ends_with(|c: char| c.is_ascii_digit()));
}

#[tokio::test]
async fn a_value_that_went_leaves_no_chunk() {
    let Some(server) = RedisServer::start() else { return };
    let store = store_at(&server, Retention { bytes: 5_000_000, age: HOUR }, &Clock::default());
    let chunks = |redis: &mut Connection| -> usize {
        redis.keys::<_, Vec<String>>("nonet:value:*").expect("readable").len()
    };
    let mut redis = server.connect();
    for _ in 0..3 {
        put_result(&store, "r-1", 2_000_000).await;
        assert_eq!(chunks(&mut redis), 4);
    }
    put_result(&store, "r-2", 2_000_000).await;
    put_result(&store, "r-3", 2_000_000).await;
    assert_eq!(chunks(&mut redis), 8, "the oldest made room");
    // A chunk is missing.
    let some: Vec<String> = redis.keys("nonet:value:*").expect("readable");
    redis.del::<_, ()>(some).expect("removed");
    assert_eq!(store.text("r-3", "").await.expect("readable"), None);
}

#[tokio::test]
async fn what_has_expired_leaves_the_sums() {
    let Some(server) = RedisServer::start() else { return };
    let store = store_at(&server, Retention { bytes: 1_000, age: HOUR }, &Clock::default());
    let mut redis = server.connect();
    put_result(&store, "r-1", 400).await;
    put_result(&store, "r-2", 400).await;
    store.put_job(job("job-1", JobState::Working), share(), None).await.expect("written");
    put(&store, watch("1")).await;
    redis
        .del::<_, ()>(&[
            "nonet:{nonet}:record:kept:0::r-1",
            "nonet:{nonet}:record:kept:0::job-1",
            "nonet:{nonet}:record:watch:0::1",
        ])
        .expect("removed");
    assert_eq!(store.jobs("", 9).await.expect("readable"), []);
    store.sweep().await.expect("tidied");
    put_result(&store, "r-3", 500).await;
    let counts = store.counts().await.expect("readable");
    assert_eq!(counts, Some(KeptCounts { entries: 2, bytes: 900 }));
    assert_eq!(store.text("r-2", "").await.expect("readable").map(|text| text.len()), Some(400));
    for id in ["1", "2", "3"] {
        assert_eq!(
            store.records.put(watch(id), RecordQuota::Refuse(3)).await.expect("written"),
            Some(0),
            "{id}"
        );
    }
    assert_eq!(store.records.due(9, &RecordKind::ALL).await.expect("readable").len(), 3);
}

#[tokio::test]
async fn many_small_entries_are_counted_too() {
    let Some(server) = RedisServer::start() else { return };
    let store = open(&server);
    let ended = JobState::Cancelled { ended_ms: 2_000 };
    for first in (0..10_000).step_by(500) {
        let puts = (first..first + 500).map(|n| store.put_job(job(&format!("j-{n}"), ended), share(), None));
        futures::future::try_join_all(puts).await.expect("written");
    }
    let counts = async || store.counts().await.expect("readable").expect("used").entries;
    assert_eq!(counts().await, 10_000);
    let other = Share { of: "other".into(), ..share() };
    store.put_result("new", "", other, Arc::new(json!(1))).await.expect("written");
    assert_eq!(counts().await, 10_000);
    assert!(store.text("new", "").await.expect("readable").is_some());
}

#[tokio::test]
async fn outcomes_have_their_bounds() {
    let Some(server) = RedisServer::start() else { return };
    let store = open(&server);
    // As earlier versions had them.
    let base = "nonet:{nonet}:";
    let mut fill = redis::pipe();
    for n in 0..MOST_OUTCOMES + 100 {
        let field = format!("5:d{n:04}:{}", json!(words(&format!("open w{n}"))));
        let value = json!({ "v": 1, "weight": 2.0, "at": NOW - 1 - n as u64 }).to_string();
        fill.hset(format!("{base}outcomes"), &field, value).ignore();
    }
    fill.exec(&mut server.connect()).expect("written");
    store.put_outcome(outcome("the newest", "new", 0.001, NOW)).await.expect("written");
    let kept = store.outcomes().await.expect("readable");
    let has = |document: &str| kept.iter().any(|outcome| *outcome.document == *document);
    assert_eq!(kept.len(), MOST_OUTCOMES);
    assert!(has("new") && has("d0000") && has("d4998") && !has("d4999"), "the weakest went, not the new one");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_earlier_versions_had_is_carried_over_once() {
    let Some(server) = RedisServer::start() else { return };
    let (base, mut redis) = ("nonet:{nonet}:", server.connect());
    let set = |redis: &mut Connection, key: &str, field: &str, value: &str| {
        redis.hset::<_, _, _, ()>(format!("{base}{key}"), field, value).expect("written");
    };
    redis.sadd::<_, _, ()>(format!("{base}pins:servers"), "a").expect("written");
    let pin = r#"{"v":1,"trusted":"1","by_user":true,"waiting":"2","since":"9","told":true,"by":"7"}"#;
    set(&mut redis, "pins:of:a", "tool:t", pin);
    set(&mut redis, "pins:texts:a", "tool:t:2", "text 2");
    let recent = "BQAAAP////8=";
    let figures =
        json!({ "v": 1, "calls": 2, "failures": 1, "recent": recent, "called_ms": 5, "errors": {} });
    set(&mut redis, "figures", "a.b", &figures.to_string());
    redis.zadd::<_, _, _, ()>(format!("{base}ended"), "r-1", 1).expect("written");
    let fields = [
        ("v", "1"),
        ("owner", "work"),
        ("label", ""),
        ("holder", "0"),
        ("state", "done"),
        ("started", "0"),
        ("ended", "0"),
        ("bytes", "3"),
        ("value", "name"),
        ("share", "me"),
        ("aged", "32503680000000"),
    ];
    redis.hset_multiple::<_, _, _, ()>(format!("{base}entry:r-1"), &fields).expect("written");
    redis.set::<_, _, ()>("nonet:value:{name}:0", "\"x\"").expect("written");

    let (here, other) = (open(&server), open(&server));
    let pins = here.shared_pins().expect("they are shared");
    let [(pin, texts)] = &pins.waiting(9).expect("readable")[..] else { panic!("one waits") };
    assert_eq!((pin.trusted.as_deref(), pin.by_user, pin.since_ms, pin.told), (Some("1"), true, 9, true));
    assert_eq!(texts.waiting.as_deref(), Some("text 2"));
    let [(tool, figures)] = &other.figures().await.expect("readable")[..] else { panic!("one tool") };
    assert_eq!((&**tool, figures.calls, figures.recent.count(), figures.recent.failures()), ("a.b", 2, 2, 1));
    assert_eq!(here.text("r-1", "work").await.expect("readable").as_deref(), Some("\"x\""));
    assert_eq!(here.counts().await.expect("readable"), Some(KeptCounts { entries: 1, bytes: 3 }));
    // What has gone since does not come back.
    assert!(here.remove_kept("r-1", "work").await.expect("removed"));
    let later = open(&server);
    assert_eq!(later.text("r-1", "work").await.expect("readable"), None);
}

#[tokio::test]
async fn a_gateway_that_ended_without_a_word_is_taken_over_from() {
    let Some(server) = RedisServer::start() else { return };
    let (gone, here) = (open(&server), open(&server));
    put(&gone, watch("1")).await;
    gone.put_job(job("job-1", JobState::Working), share(), None).await.expect("written");
    let mut redis = server.connect();
    let holders: Vec<String> = redis.keys("nonet:{nonet}:holder:*").expect("readable");
    let [holder] = &holders[..] else { panic!("{holders:?}") };
    let left: i64 = redis.pttl(holder).expect("readable");
    assert!((1..=10_000).contains(&left), "{left}");
    let before = gone.records.get(RecordKind::Watch, "", "1").await.expect("readable").expect("there");
    assert_eq!(here.records.due(9, &RecordKind::ALL).await.expect("readable"), []);
    // Its lease expires.
    redis.del::<_, ()>(holder).expect("removed");
    assert!(!here.job("job-1", "").await.expect("readable").expect("there").leased);
    let taken = here.records.due(9, &RecordKind::ALL).await.expect("readable");
    assert_eq!(taken.len(), 1);
    // The gateway was only away, and comes back: it no longer holds what was taken over.
    assert!(!gone.records.change(before.clone()).await.expect("readable"), "it has another holder now");
    assert!(!gone.records.remove(before).await.expect("readable"));
    assert_eq!(gone.records.due(9, &RecordKind::ALL).await.expect("readable"), []);
    gone.records.free(RecordKind::Watch, "", vec!["1".into()]).await.expect("written");
    assert_eq!(here.records.due(9, &RecordKind::ALL).await.expect("readable"), taken, "nobody else frees it");
    assert!(here.records.change(taken[0].clone()).await.expect("written"));
}

#[tokio::test]
async fn a_lease_is_renewed() {
    let Some(server) = RedisServer::start() else { return };
    let store = open(&server);
    put(&store, watch("1")).await;
    let mut redis = server.connect();
    let holders: Vec<String> = redis.keys("nonet:{nonet}:holder:*").expect("readable");
    redis.del::<_, ()>(&holders).expect("removed");
    let began = Instant::now();
    while !redis.exists::<_, bool>(&holders[0]).expect("readable") {
        assert!(began.elapsed() < Duration::from_secs(30), "nobody renews it");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    store.leave().await.expect("left");
    assert!(!redis.exists::<_, bool>(&holders[0]).expect("readable"));
}

#[tokio::test]
async fn values_of_a_newer_nonet_are_left_alone() {
    let Some(server) = RedisServer::start() else { return };
    let store = open(&server);
    fill(&store).await;
    put(&store, NewRecord { owner: "a".into(), ..watch("2") }).await;
    let mut redis = server.connect();
    let base = "nonet:{nonet}:";
    let words = json!(numbered(1).words).to_string();
    let outcome = format!("record:outcome:12:server.tool1:{words}");
    let newer = [
        "record:watch:1:a:1",
        "record:kept:0::r-1",
        "record:kept:0::job-1",
        "record:figures:0::a.b",
        &*outcome,
    ];
    for key in newer {
        redis.hset::<_, _, _, ()>(format!("{base}{key}"), "v", "2").expect("written");
    }

    let all = store.records.all(RecordKind::Watch, "a").await.expect("readable");
    assert_eq!(all.iter().map(|record| &*record.id).collect::<Vec<_>>(), ["2"]);
    assert_eq!(store.records.take(RecordKind::Watch, "a", "1").await.expect("readable"), None);
    let again = NewRecord { owner: "a".into(), ..watch("1") };
    let error = store.records.put(again, RecordQuota::Refuse(9)).await.expect_err("newer");
    assert!(error.to_string().contains("watch:1:a:1") && error.to_string().contains("update"), "{error}");
    let error = store.put_result("r-1", "", share(), Arc::new(json!(1))).await.expect_err("newer");
    assert!(matches!(error, StoreError::NewerValue { .. }), "{error}");
    assert_eq!(store.text("r-1", "").await.expect("readable"), None);
    assert_eq!(store.jobs("", 9).await.expect("readable"), []);
    store.put_outcome(numbered(1)).await.expect("left alone");
    assert_eq!(store.outcomes().await.expect("readable"), []);
    store.add_figures(vec![("a.b".into(), NamedFigures::default().1)]).await.expect("left alone");
    assert_eq!(store.figures().await.expect("readable"), []);
    store.sweep().await.expect("tidied");

    for key in newer {
        let version: String = redis.hget(format!("{base}{key}"), "v").expect("readable");
        assert_eq!(version, "2", "{key}");
    }
}

#[tokio::test]
async fn what_is_no_record_is_left_out() {
    let Some(server) = RedisServer::start() else { return };
    let store = open(&server);
    put(&store, watch("good")).await;
    let mut redis = server.connect();
    for (id, field, value) in [("a", "body", "{"), ("b", "rev", "x"), ("c", "owner", "\u{0}\u{1}")] {
        put(&store, watch(id)).await;
        let key = format!("nonet:{{nonet}}:record:watch:0::{id}");
        let value = if id == "c" { &[0xff, 0xfe][..] } else { value.as_bytes() };
        redis.hset::<_, _, _, ()>(key, field, value).expect("spoilt");
    }
    let all = store.records.all(RecordKind::Watch, "").await.expect("readable");
    assert_eq!(all.iter().map(|record| &*record.id).collect::<Vec<_>>(), ["good"]);
    assert_eq!(store.records.due(9, &RecordKind::ALL).await.expect("readable").len(), 1);
}

/// Waits until a condition holds.
async fn until(what: &str, is_so: impl AsyncFn() -> bool) {
    let began = Instant::now();
    while !is_so().await {
        assert!(began.elapsed() < Duration::from_secs(30), "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn while_redis_is_away_results_are_kept_here_and_the_rest_says_so() {
    let Some(server) = RedisServer::start() else { return };
    let port = server.port;
    let store = open(&server);
    assert_eq!(put_result(&store, "r-1", 100).await, Lifespan::AsConfigured);
    drop(server);
    assert_eq!(put_result(&store, "r-2", 100).await, Lifespan::UntilEnd);
    assert_eq!(put_result(&store, "r-3", 300).await, Lifespan::UntilEnd);
    assert!(store.text("r-2", "").await.expect("in memory").is_some());
    let working = job("job-1", JobState::Working);
    assert_eq!(store.put_job(working.clone(), share(), None).await.expect("kept"), Lifespan::UntilEnd);
    assert_eq!(store.job("job-1", "").await.expect("in memory"), Some(working));
    let error = store.records.put(watch("1"), RecordQuota::Refuse(9)).await.expect_err("away");
    let told = error.to_string();
    assert!(told.starts_with(&format!("Redis at `127.0.0.1:{port}` does not answer (")), "{told}");
    assert!(told.contains("calls and searches continue") && told.contains("[cluster]"), "{told}");
    assert!(store.text("r-1", "").await.is_err() && store.records.due(9, &RecordKind::ALL).await.is_err());
    assert!(store.shared().expect("shared").trouble.is_some());

    // Redis comes back, empty.
    let Some(server) = RedisServer::start_at(port) else { return };
    until("it is found again", async || store.records.put(watch("1"), RecordQuota::Refuse(9)).await.is_ok())
        .await;
    assert_eq!(store.shared().expect("shared").trouble, None);
    let other = open(&server);
    until("the other replicas get what was kept here", async || {
        let text = other.text("r-3", "").await.expect("readable");
        text.is_some_and(|text| text.len() == 300)
            && other.job("job-1", "").await.expect("readable").is_some()
    })
    .await;
    assert_eq!(put_result(&store, "r-2", 200).await, Lifespan::AsConfigured);
    let text = store.text("r-2", "").await.expect("readable").expect("there");
    assert_eq!(text.len(), 200, "what is in memory does not hide it");
    assert!(
        store.job("job-1", "").await.expect("readable").is_some(),
        "what was told as kept is still there"
    );
    until("nothing is kept twice", async || {
        store.counts().await.expect("readable").expect("used").entries == 3
    })
    .await;
}

#[tokio::test]
async fn a_redis_that_is_silent_costs_one_call_a_moment_and_no_other() {
    let Some(server) = RedisServer::start() else { return };
    let store = open(&server);
    put(&store, watch("1")).await;
    server.signal(Signal::SIGSTOP);
    let error = store.records.due(9, &RecordKind::ALL).await.expect_err("silent");
    assert!(error.to_string().contains("does not answer"), "{error}");
    // While Redis is known to be silent, nothing waits for it.
    let began = Instant::now();
    let calls = (0..100).map(|_| store.records.agenda(&RecordKind::ALL));
    assert!(futures::future::join_all(calls).await.iter().all(Result::is_err));
    assert!(began.elapsed() < Duration::from_secs(10), "a hundred calls did not wait one after the other");
    server.signal(Signal::SIGCONT);
    until("it is found again", async || {
        store.records.due(9, &RecordKind::ALL).await.is_ok_and(|due| due.len() == 1)
    })
    .await;
}

#[tokio::test]
async fn a_redis_that_refuses_is_told_with_its_words() {
    let Some(server) = RedisServer::start() else { return };
    let store = open(&server);
    put(&store, watch("1")).await;
    let mut redis = server.connect();
    let config = |redis: &mut Connection, key: &str, value: &str| {
        redis::cmd("CONFIG").arg("SET").arg(key).arg(value).exec(redis).expect("set");
    };
    config(&mut redis, "maxmemory", "1");
    assert_eq!(put_result(&store, "r-1", 100).await, Lifespan::UntilEnd, "it is full");
    let error = store.records.put(watch("2"), RecordQuota::Refuse(9)).await.expect_err("full");
    assert!(error.to_string().contains("refuses (") && error.to_string().contains("OOM"), "{error}");
    config(&mut redis, "maxmemory", "0");
    put(&store, watch("2")).await;

    redis::cmd("REPLICAOF").arg("127.0.0.1").arg("1").exec(&mut redis).expect("a replica now");
    let error = store.records.put(watch("3"), RecordQuota::Refuse(9)).await.expect_err("read-only");
    assert!(error.to_string().contains("refuses (") && error.to_string().contains("READONLY"), "{error}");
    redis::cmd("REPLICAOF").arg("NO").arg("ONE").exec(&mut redis).expect("no replica any more");
    until("it is found again", async || store.records.put(watch("3"), RecordQuota::Refuse(9)).await.is_ok())
        .await;

    // Another connection is refused, with an answer or without.
    let late = open(&server);
    config(&mut redis, "maxclients", "1");
    assert!(late.records.agenda(&RecordKind::ALL).await.is_err(), "there is no room");
    config(&mut redis, "maxclients", "1000");
    until("it connects again", async || late.records.agenda(&RecordKind::ALL).await.is_ok()).await;

    config(&mut redis, "requirepass", "s3cr3t");
    let stranger = open(&server);
    let error = stranger.records.agenda(&RecordKind::ALL).await.expect_err("no password");
    assert!(error.to_string().contains("refuses ("), "{error}");
    let address = format!("redis://:s3cr3t@127.0.0.1:{}", server.port);
    let address = ::redis::IntoConnectionInfo::into_connection_info(address).expect("an address");
    let known = GatewayStore::in_redis(address, "nonet", None, ROOMY, Clock::default());
    assert!(known.records.agenda(&RecordKind::ALL).await.is_ok());
    assert!(!format!("{known:?}").contains("s3cr3t"));
}

#[tokio::test]
async fn a_script_that_redis_has_forgotten_is_loaded_again() {
    let Some(server) = RedisServer::start() else { return };
    let store = open(&server);
    put(&store, watch("1")).await;
    redis::cmd("SCRIPT").arg("FLUSH").exec(&mut server.connect()).expect("forgotten");
    put(&store, watch("2")).await;
    assert_eq!(store.records.due(9, &RecordKind::ALL).await.expect("readable").len(), 2);
}

#[tokio::test]
async fn a_value_that_is_too_large_is_kept_here() {
    let Some(server) = RedisServer::start() else { return };
    let store = open(&server);
    assert_eq!(put_result(&store, "r-1", values::MOST_BYTES + 1).await, Lifespan::UntilEnd);
    let there = store.text("r-1", "").await.expect("readable").expect("there");
    assert_eq!(there.len(), values::MOST_BYTES + 1);
    assert_eq!(put_result(&store, "r-2", values::MOST_BYTES).await, Lifespan::AsConfigured);
    let other = open(&server);
    let there = other.text("r-2", "").await.expect("readable").expect("there");
    assert_eq!(there.len(), values::MOST_BYTES);
    assert_eq!(other.text("r-1", "").await.expect("readable"), None);
}

#[tokio::test]
async fn a_rate_that_nobody_uses_ends() {
    let Some(server) = RedisServer::start() else { return };
    let store = open(&server);
    for most in [61_000, 121_000] {
        assert_eq!(store.take_rates(&[&rate()]).await.expect("taken"), RateOutcome::All);
        let left: i64 = server.connect().pttl("nonet:{nonet}:rate:a").expect("readable");
        assert!((most - 20_000..=most).contains(&left), "{left}");
    }
}

#[tokio::test]
async fn a_redis_that_is_late_is_asked_for_rates_again_after_a_while() {
    let Some(server) = RedisServer::start() else { return };
    let mut store = open(&server);
    assert_eq!(store.take_rates(&[&rate()]).await.expect("taken"), RateOutcome::All);
    store.wait_for_rates(Duration::from_millis(50));
    server.signal(Signal::SIGSTOP);
    let began = Instant::now();
    let error = store.take_rates(&[&rate()]).await.expect_err("late");
    assert!(error.to_string().contains("answers late"), "{error}");
    for _ in 0..100 {
        assert!(store.take_rates(&[&rate()]).await.is_err());
    }
    assert!(began.elapsed() < Duration::from_secs(3), "each call has waited: {:?}", began.elapsed());
    server.signal(Signal::SIGCONT);
    store.wait_for_rates(Duration::from_secs(10));
    until("it is asked again", async || store.take_rates(&[&rate()]).await.is_ok()).await;
}

#[tokio::test]
async fn slots_are_shared_and_those_of_a_replica_that_ended_are_free_soon() {
    let Some(server) = RedisServer::start() else { return };
    let (one, two) = (open(&server), open(&server));
    let (one, two) = (one.shared_slots().expect("shared"), two.shared_slots().expect("shared"));
    let is_full = |take: &SharedTake| matches!(take, SharedTake::Full);
    let mut taken = Vec::new();
    until("the first answer is in time", async || matches!(one.take("warm", 9).await, SharedTake::Taken(_)))
        .await;
    until("the first answer is in time", async || matches!(two.take("warm", 9).await, SharedTake::Taken(_)))
        .await;
    for slots in [&one, &two] {
        taken.push(slots.take("web", 2).await);
    }
    assert!(taken.iter().all(|take| matches!(take, SharedTake::Taken(_))), "{taken:?}");
    assert!(is_full(&one.take("web", 2).await) && is_full(&two.take("web", 2).await));
    assert!(
        matches!(two.take("other", 2).await, SharedTake::Taken(_)),
        "another server has slots of its own"
    );
    taken.pop();
    until("a slot that was given back is free", async || {
        matches!(one.take("web", 2).await, SharedTake::Taken(_))
    })
    .await;

    // Two slots of a replica that was killed a while ago.
    let mut redis = server.connect();
    for slot in ["9:1", "9:2"] {
        redis.zadd::<_, _, _, ()>("nonet:{nonet}:slots:dead", slot, 1_000).expect("written");
    }
    assert!(matches!(one.take("dead", 1).await, SharedTake::Taken(_)));
}

#[tokio::test]
async fn to_forget_leaves_leases_rates_trust_and_other_prefixes() {
    let Some(server) = RedisServer::start() else { return };
    let store = open(&server);
    let other = GatewayStore::in_redis(server.address(), "nonet2", None, ROOMY, Clock::default());
    fill(&store).await;
    fill(&other).await;
    let mut redis = server.connect();
    redis.set::<_, _, ()>("nonet:of another program", 1).expect("written");
    let before = keys(&mut redis);
    let removed = store.forget_shared(ForgetScope::Kept).await.expect("removed");
    let after = keys(&mut redis);
    assert_eq!(before.len() - after.len(), removed);
    let left: BTreeSet<&str> = after
        .iter()
        .filter_map(|key| key.strip_prefix("nonet:"))
        .map(|key| key.trim_start_matches("{nonet}:").split(':').next().unwrap_or_default())
        .collect();
    assert_eq!(
        left,
        BTreeSet::from([
            "carried",
            "count",
            "counters",
            "due",
            "holder",
            "kind",
            "number",
            "of",
            "of another program",
            "rate",
            "record",
            "tables",
        ])
    );
    assert!(after.iter().filter(|key| key.starts_with("nonet2:")).count() > 30, "another store");
    assert!(store.forget_shared(ForgetScope::Trust).await.expect("removed") > 3);
    assert!(!keys(&mut redis).iter().any(|key| key.starts_with("nonet:{nonet}:") && key.contains(":pin")));

    // A running gateway continues.
    assert_eq!(store.records.of_kind(RecordKind::Watch).await.expect("readable"), []);
    assert_eq!(
        (store.text("r-1", "").await.expect("readable"), store.jobs("", 9).await.expect("readable")),
        (None, vec![])
    );
    assert_eq!(store.outcomes().await.expect("readable"), []);
    put(&store, watch("1")).await;
    assert_eq!(put_result(&store, "r-1", 100).await, Lifespan::AsConfigured);
    assert_eq!(store.records.due(9, &RecordKind::ALL).await.expect("readable").len(), 1);
}
