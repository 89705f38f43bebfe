//! Tests specific to files; records themselves are tested in `store/tests/records.rs`.

use nonet_base::clock::Clock;
use serde_json::json;

use super::{super::tests::folder, *};

const WATCH: RecordKind = RecordKind::Watch;

fn new(owner: &str, id: &str) -> NewRecord {
    NewRecord { owner: owner.into(), id: id.into(), held: true, ..NewRecord::new(WATCH, json!({ "id": id })) }
}

fn due(owner: &str, id: &str, due_ms: u64) -> NewRecord {
    NewRecord { due_ms: Some(due_ms), ..new(owner, id) }
}

fn put(db: &RecordsDb, record: NewRecord) {
    assert_eq!(db.put(&record, RecordQuota::Refuse(100)).expect("written"), Some(0));
}

fn ids(records: &[Record]) -> Vec<&str> {
    records.iter().map(|record| record.id.as_str()).collect()
}

#[test]
fn what_is_forgotten_is_gone() {
    let db = RecordsDb::in_memory(LeaseHolder::new(Clock::default())).expect("opens");
    put(&db, new("a", "1"));
    put(&db, new("b", "1"));
    put(&db, NewRecord { kind: RecordKind::Fact, ..new("a", "1") });
    let count = |kinds: &[RecordKind]| db.count(kinds).expect("counted");
    let other = new("a", "1").kind;
    assert_eq!((count(&[RecordKind::Fact]), count(&[other]), count(&RecordKind::ALL)), (1, 2, 3));
    assert!(db.changes("a").expect("readable").is_some());
    db.forget(&[RecordKind::Fact]).expect("forgotten");
    assert_eq!((count(&RecordKind::ALL), db.changes("a").expect("readable")), (2, None));
    db.forget(&RecordKind::ALL).expect("forgotten");
    assert_eq!(count(&RecordKind::ALL), 0);
}

#[test]
fn what_needs_a_configuration_is_due_for_its_gateways_only() {
    let folder = folder();
    let of = |config: &str| {
        let holder = LeaseHolder { config: config.into(), ..LeaseHolder::new(Clock::default()) };
        RecordsDb::open(folder.path(), holder).expect("opens")
    };
    let (one, other) = (of("a"), of("b"));
    put(&one, NewRecord { of_config: true, ..due("", "bound", 10) });
    put(&one, due("", "free", 20));
    assert_eq!(ids(&one.due(99, &RecordKind::ALL).expect("readable")), ["bound", "free"]);
    drop(one);
    // A process that another test has just started may hold the lock until it runs its program.
    let began = std::time::Instant::now();
    while other.agenda(&RecordKind::ALL).expect("readable").next_due_ms != Some(20) {
        assert!(began.elapsed().as_secs() < 20, "the holder has ended");
        std::thread::yield_now();
    }
    assert_eq!(ids(&other.due(99, &RecordKind::ALL).expect("readable")), ["free"]);
    let again = of("a");
    assert_eq!(again.agenda(&RecordKind::ALL).expect("readable").next_due_ms, Some(10));
    assert_eq!(ids(&again.due(99, &RecordKind::ALL).expect("readable")), ["bound"]);
}

#[test]
fn rows_that_cannot_be_read_are_left_out() {
    let db = RecordsDb::in_memory(LeaseHolder::new(Clock::default())).expect("opens");
    put(&db, due("", "good", 1));
    put(&db, due("", "bad", 1));
    let spoil = "UPDATE records SET body = '{' WHERE id = 'bad'";
    db.database.with(|connection| connection.execute_batch(spoil)).expect("spoilt");
    assert_eq!(ids(&db.all(WATCH, "").expect("readable")), ["good"]);
    assert_eq!(ids(&db.due(9, &RecordKind::ALL).expect("readable")), ["good"]);
    assert_eq!(db.get(WATCH, "", "bad").expect("readable"), None);
}
