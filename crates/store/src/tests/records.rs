//! Tests of records, with every engine.

use serde_json::json;

use super::{
    super::*,
    engines::{Engine, Here, ROOMY, with_both_engines},
};

with_both_engines![
    records_are_of_one_owner_and_one_kind,
    old_records_go_and_parked_ones_with_their_parts,
    an_owner_has_a_quota,
    a_change_needs_the_revision_that_was_read,
    of_many_changes_at_once_one_is_made,
    what_is_due_belongs_to_one_gateway_until_it_ends,
    what_is_due_comes_in_order,
    only_some_kinds_are_due,
    a_record_is_held_by_one_gateway_that_runs,
    of_many_gateways_one_gets_a_record,
    notices_are_free_once_nobody_holds_them,
    a_gateway_sees_that_facts_have_changed,
    a_vector_goes_with_its_text,
];

const WATCH: RecordKind = RecordKind::Watch;

fn new(owner: &str, id: &str) -> NewRecord {
    NewRecord { owner: owner.into(), id: id.into(), held: true, ..NewRecord::new(WATCH, json!({ "id": id })) }
}

fn due(owner: &str, id: &str, due_ms: u64) -> NewRecord {
    NewRecord { due_ms: Some(due_ms), ..new(owner, id) }
}

async fn put(here: &Here, record: NewRecord) {
    assert_eq!(here.records.put(record, RecordQuota::Refuse(100)).await.expect("written"), Some(0));
}

async fn get(here: &Here, owner: &str, id: &str) -> Option<Record> {
    here.records.get(WATCH, owner, id).await.expect("readable")
}

async fn due_ids(here: &Here, now_ms: u64) -> Vec<String> {
    ids(here.records.due(now_ms, &RecordKind::ALL).await.expect("readable"))
}

fn ids(records: Vec<Record>) -> Vec<String> {
    records.into_iter().map(|record| record.id).collect()
}

async fn records_are_of_one_owner_and_one_kind(engine: &Engine) {
    let here = engine.gateway();
    assert_eq!(
        here.records.agenda(&RecordKind::ALL).await.expect("readable"),
        None,
        "there was never a record"
    );
    put(&here, new("a", "1")).await;
    put(&here, new("a", "2")).await;
    put(&here, new("b", "1")).await;
    put(&here, new("a:1", "2:b\n\"x\"")).await;
    put(&here, NewRecord { kind: RecordKind::Fact, ..new("a", "1") }).await;
    assert_eq!(ids(here.records.all(WATCH, "a").await.expect("readable")), ["1", "2"]);
    for (kind, owner, count) in [(WATCH, "a", 2), (RecordKind::Fact, "a", 1), (WATCH, "c", 0)] {
        assert_eq!(here.records.count_of(kind, owner).await.expect("readable"), count, "{owner}");
    }
    assert_eq!(
        ids(here.records.of_kind(WATCH).await.expect("readable")),
        ["1", "2", "1", "2:b\n\"x\""],
        "of every owner, oldest first"
    );
    assert_eq!(get(&here, "b", "2").await, None);
    let taken = here.records.take(WATCH, "a", "1").await.expect("taken").expect("it was there");
    assert_eq!((taken.body, taken.revision), (json!({ "id": "1" }), 1));
    assert!(taken.put_ms.abs_diff(here.clock.unix_ms()) < 60_000);
    assert_eq!(here.records.take(WATCH, "a", "1").await.expect("readable"), None);
    assert_eq!(here.records.all(RecordKind::Fact, "a").await.expect("readable").len(), 1);
}

async fn old_records_go_and_parked_ones_with_their_parts(engine: &Engine) {
    let here = engine.gateway();
    let parked = |owner: &str, id: &str| NewRecord { kind: RecordKind::Parked, ..new(owner, id) };
    let left = async |owner: &str| here.records.all(RecordKind::Parked, owner).await.expect("readable").len();
    for (owner, id) in [("a", "old"), ("old", "part"), ("a", "taken"), ("taken", "part"), ("b", "other")] {
        put(&here, parked(owner, id)).await;
    }
    // Records of another kind have no parts.
    put(&here, new("a", "b")).await;
    here.records.take(WATCH, "a", "b").await.expect("taken");
    here.records.take(RecordKind::Parked, "a", "taken").await.expect("taken");
    assert_eq!((left("taken").await, left("b").await), (0, 1));
    here.clock.advance(Duration::from_secs(60));
    put(&here, parked("a", "new")).await;
    let before = here.clock.unix_ms() - 30_000;
    assert_eq!(here.records.drop_old(RecordKind::Parked, "a", before).await.expect("dropped"), 1);
    assert_eq!((left("a").await, left("old").await, left("b").await), (1, 0, 1));
}

async fn an_owner_has_a_quota(engine: &Engine) {
    let here = engine.gateway();
    let put =
        async |owner: &str, id: &str, most| here.records.put(new(owner, id), most).await.expect("written");
    for (id, expected) in [("1", Some(0)), ("2", Some(0)), ("3", None), ("2", Some(0))] {
        assert_eq!(put("a", id, RecordQuota::Refuse(2)).await, expected, "{id}");
    }
    // Another owner has a separate quota.
    assert_eq!(put("b", "1", RecordQuota::Refuse(2)).await, Some(0));
    assert_eq!(put("a", "3", RecordQuota::DropOldest(2)).await, Some(1));
    assert_eq!(ids(here.records.all(WATCH, "a").await.expect("readable")), ["2", "3"]);
    assert_eq!(
        put("a", "2", RecordQuota::DropOldest(1)).await,
        Some(1),
        "one that is put again is never dropped"
    );
    assert_eq!(ids(here.records.all(WATCH, "a").await.expect("readable")), ["2"]);
}

async fn a_change_needs_the_revision_that_was_read(engine: &Engine) {
    let here = engine.gateway();
    put(&here, new("a", "1")).await;
    let read = get(&here, "a", "1").await.expect("there");
    let change = async |record: Record| here.records.change(record).await.expect("readable");
    assert!(change(Record { body: json!(1), due_ms: Some(5), ..read.clone() }).await);
    assert!(!change(Record { body: json!(2), ..read.clone() }).await, "changed meanwhile");
    let now = get(&here, "a", "1").await.expect("there");
    assert_eq!((&now.body, now.due_ms, now.revision), (&json!(1), Some(5), read.revision + 1));
    assert!(change(Record { due_ms: None, ..now }).await);
    assert_eq!(
        here.records.agenda(&RecordKind::ALL).await.expect("readable").expect("there is one").next_due_ms,
        None
    );
    assert!(!here.records.remove(read).await.expect("readable"), "changed meanwhile");
    let now = get(&here, "a", "1").await.expect("there");
    assert!(here.records.remove(now.clone()).await.expect("removed"));
    assert!(!change(now).await, "removed meanwhile");
}

async fn of_many_changes_at_once_one_is_made(engine: &Engine) {
    let gateways: Vec<Here> = (0..4).map(|_| engine.gateway()).collect();
    put(&gateways[0], new("a", "1")).await;
    for round in 0..10 {
        let read = get(&gateways[0], "a", "1").await.expect("there");
        let changes = (0..20).map(|n| {
            let changed = Record { body: json!([round, n]), ..read.clone() };
            gateways[n % 4].records.change(changed)
        });
        let made = futures::future::join_all(changes).await;
        let made: Vec<bool> = made.into_iter().map(|made| made.expect("readable")).collect();
        let winner = made.iter().position(|made| *made).expect("one was made");
        assert_eq!(made.iter().filter(|made| **made).count(), 1);
        assert_eq!(get(&gateways[0], "a", "1").await.expect("there").body, json!([round, winner]));
    }
}

async fn what_is_due_belongs_to_one_gateway_until_it_ends(engine: &Engine) {
    let (one, other) = (engine.gateway(), engine.gateway());
    let next = async |here: &Here| {
        here.records.agenda(&RecordKind::ALL).await.expect("readable").expect("some").next_due_ms
    };
    put(&one, due("", "late", 20)).await;
    put(&one, due("", "early", 10)).await;
    put(&one, new("", "never")).await;
    assert_eq!(due_ids(&one, 20).await, ["early", "late"]);
    assert_eq!(due_ids(&one, 15).await, ["early"]);
    assert_eq!(due_ids(&other, 99).await, [""; 0]);
    assert_eq!((next(&one).await, next(&other).await), (Some(10), None));
    let third = engine.gateway();
    engine.end(one).await;
    assert_eq!(next(&other).await, Some(10));
    assert_eq!(due_ids(&other, 15).await, ["early"]);
    // The first caller gets it, and only what was due.
    assert_eq!(due_ids(&third, 99).await, ["late"]);
    assert_eq!(due_ids(&other, 99).await, ["early"]);
}

async fn what_is_due_comes_in_order(engine: &Engine) {
    let here = engine.gateway();
    for (id, at) in [("b", 10), ("a", 10), ("first", 9), ("last", 100)] {
        put(&here, due("", id, at)).await;
    }
    assert_eq!(due_ids(&here, 100).await, ["first", "b", "a", "last"]);
}

async fn only_some_kinds_are_due(engine: &Engine) {
    let here = engine.gateway();
    put(&here, due("", "watch", 5)).await;
    put(&here, NewRecord { kind: RecordKind::Schedule, ..due("", "schedule", 10) }).await;
    for (kinds, next, expected) in [
        (&[][..], None, &[][..]),
        (&[WATCH], Some(5), &["watch"]),
        (&[RecordKind::Schedule], Some(10), &["schedule"]),
        (&[RecordKind::Schedule, WATCH], Some(5), &["watch", "schedule"]),
    ] {
        let agenda = here.records.agenda(kinds).await.expect("readable").expect("some");
        assert_eq!(agenda.next_due_ms, next, "{kinds:?}");
        assert_eq!(ids(here.records.due(99, kinds).await.expect("readable")), expected, "{kinds:?}");
    }
}

async fn a_record_is_held_by_one_gateway_that_runs(engine: &Engine) {
    let (one, other) = (engine.gateway(), engine.gateway());
    put(&one, NewRecord { held: false, ..new("", "free") }).await;
    let read = async |here: &Here| get(here, "", "free").await.expect("there");
    let hold = async |here: &Here, record: &Record| here.records.hold(record).await.expect("readable");
    let before = read(&one).await;
    assert!(hold(&one, &before).await);
    assert!(!hold(&other, &before).await, "changed since");
    assert!(!hold(&other, &read(&other).await).await && !hold(&one, &read(&one).await).await, "held");
    let changed = Record { body: json!(1), ..read(&one).await };
    assert!(one.records.change(changed).await.expect("written"), "its holder changes it");
    engine.end(one).await;
    let left = read(&other).await;
    assert_eq!(left.body, json!(1));
    assert!(hold(&other, &left).await);
    assert!(!hold(&engine.gateway(), &read(&other).await).await);
}

async fn of_many_gateways_one_gets_a_record(engine: &Engine) {
    let gateways: Vec<Here> = (0..4).map(|_| engine.gateway()).collect();
    for id in 0..20 {
        put(&gateways[0], NewRecord { held: false, ..due("a", &id.to_string(), 5) }).await;
    }
    // Each gateway finds all of them due, holds what it finds and takes it.
    let work = gateways.iter().map(async |here| {
        let mut taken = 0;
        for record in here.records.due(9, &RecordKind::ALL).await.expect("readable") {
            taken +=
                usize::from(here.records.take(WATCH, "a", &record.id).await.expect("readable").is_some());
        }
        taken
    });
    let taken: usize = futures::future::join_all(work).await.into_iter().sum();
    assert_eq!(taken, 20);
    for id in 0..20 {
        put(&gateways[0], NewRecord { held: false, ..new("a", &id.to_string()) }).await;
    }
    let claims = gateways.iter().map(|here| here.records.claim_free(WATCH, "a", 7));
    let claimed =
        futures::future::join_all(claims).await.into_iter().map(|claimed| claimed.expect("readable"));
    let mut claimed: Vec<String> = claimed.flat_map(ids).collect();
    claimed.sort();
    claimed.dedup();
    assert_eq!(claimed.len(), 20, "seven for each of three, and one is left");
}

async fn notices_are_free_once_nobody_holds_them(engine: &Engine) {
    let (one, other) = (engine.gateway(), engine.gateway());
    let notice = |id: &str, held| NewRecord { kind: RecordKind::Notice, held, ..new("p:1", id) };
    for (id, held) in [("free", false), ("held", true), ("freed", true)] {
        put(&one, notice(id, held)).await;
    }
    let waiting = async |here: &Here| {
        let agenda = here.records.agenda(&RecordKind::ALL).await.expect("readable").expect("some");
        agenda.notices.get("p:1").copied()
    };
    assert_eq!((waiting(&one).await, waiting(&other).await), (Some(1), Some(1)));
    one.records.free(RecordKind::Notice, "p:1", vec!["freed".into()]).await.expect("written");
    assert_eq!(waiting(&other).await, Some(2));
    let claim = async |here: &Here, most| {
        ids(here.records.claim_free(RecordKind::Notice, "p:1", most).await.expect("readable"))
    };
    assert_eq!(claim(&other, 1).await, ["free"]);
    assert_eq!(claim(&one, 9).await, ["freed"]);
    assert_eq!((claim(&one, 9).await, claim(&other, 9).await), (vec![], vec![]));
    engine.end(one).await;
    assert_eq!(waiting(&other).await, Some(2));
    assert_eq!(claim(&other, 9).await, ["held", "freed"]);
    assert_eq!((claim(&other, 9).await, waiting(&other).await), (vec![], None));
    other.records.take(RecordKind::Notice, "p:1", "held").await.expect("taken");
    let rest = vec!["free".into(), "freed".into(), "held".into()];
    other.records.free(RecordKind::Notice, "p:1", rest).await.expect("written");
    assert_eq!(waiting(&other).await, Some(2));
}

async fn a_gateway_sees_that_facts_have_changed(engine: &Engine) {
    let (here, other) = (engine.gateway_with(ROOMY, &Clock::default()), engine.gateway());
    let fact = |id: &str| NewRecord { kind: RecordKind::Fact, ..new("a", id) };
    let changes = async || other.records.changes("a").await.expect("readable");
    assert_eq!(changes().await, None);
    put(&here, fact("1")).await;
    let first = changes().await.expect("it has changed");
    put(&here, fact("2")).await;
    put(&here, fact("2")).await;
    // Other kinds and other owners do not count.
    put(&here, new("a", "1")).await;
    put(&here, NewRecord { owner: "b".into(), ..fact("1") }).await;
    assert_eq!(changes().await, Some(first + 2));
    here.records.take(RecordKind::Fact, "a", "1").await.expect("taken");
    assert_eq!(changes().await, Some(first + 3));
}

async fn a_vector_goes_with_its_text(engine: &Engine) {
    let here = engine.gateway();
    let fact = |id: &str| NewRecord { kind: RecordKind::Fact, ..new("a", id) };
    let vector = |id: &str, revision| FactVector { id: id.into(), revision, vector: [0.5, -1.5].into() };
    let vectors = async |model: &str| here.records.vectors("a", model).await.expect("readable");
    for id in ["1", "2", "3"] {
        put(&here, fact(id)).await;
    }
    // One vector of a text that has changed since, and one of no fact.
    let some = ["1", "2", "4"].map(|id| vector(id, 1)).into_iter().chain([vector("3", 2)]);
    here.records.put_vectors("a", "m", some.collect()).await.expect("written");
    assert_eq!(vectors("m").await, [vector("1", 1), vector("2", 1)]);
    assert!(vectors("other").await.is_empty());
    put(&here, fact("1")).await;
    assert_eq!(vectors("m").await, [vector("2", 1)]);
    here.records.take(RecordKind::Fact, "a", "2").await.expect("taken");
    assert!(vectors("m").await.is_empty());
}
