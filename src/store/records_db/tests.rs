use serde_json::json;
use tempfile::TempDir;

use super::{
    super::tests::{folder, names, until_ended},
    *,
};
use crate::clock::Clock;

const WATCH: RecordKind = RecordKind::Watch;

fn open(folder: &TempDir) -> RecordsDb {
    RecordsDb::open(folder.path(), Holder::new(Clock::default())).expect("opens")
}

/// Ends a gateway.
fn end(db: RecordsDb, folder: &TempDir) {
    let number = db.holder.number;
    drop(db);
    until_ended(folder, number);
}

fn new(owner: &str, id: &str) -> NewRecord {
    NewRecord { owner: owner.into(), id: id.into(), held: true, ..NewRecord::new(WATCH, json!({ "id": id })) }
}

fn due(owner: &str, id: &str, due_ms: u64) -> NewRecord {
    NewRecord { due_ms: Some(due_ms), ..new(owner, id) }
}

fn put(db: &RecordsDb, record: NewRecord) {
    assert_eq!(db.put(&record, Most::Refuse(100)).expect("written"), Some(0));
}

fn ids(records: &[Record]) -> Vec<&str> {
    records.iter().map(|record| record.id.as_str()).collect()
}

#[test]
fn records_are_of_one_owner_and_one_kind() {
    let db = RecordsDb::in_memory(Holder::new(Clock::default())).expect("opens");
    put(&db, new("a", "1"));
    put(&db, new("a", "2"));
    put(&db, new("b", "1"));
    put(&db, NewRecord { kind: RecordKind::Fact, ..new("a", "1") });
    assert_eq!(ids(&db.all(WATCH, "a").expect("readable")), ["1", "2"]);
    assert_eq!(db.get(WATCH, "b", "2").expect("readable"), None);
    let taken = db.take(WATCH, "a", "1").expect("taken").expect("it was there");
    assert_eq!((taken.body, taken.revision), (json!({ "id": "1" }), 1));
    assert_eq!(db.take(WATCH, "a", "1").expect("readable"), None);
    assert_eq!(db.counts().expect("counted"), (1, 2));
    db.forget().expect("forgotten");
    assert_eq!(db.counts().expect("counted"), (0, 0));
}

#[test]
fn old_records_go_and_parked_ones_with_their_parts() {
    let clock = Clock::default();
    let db = RecordsDb::in_memory(Holder::new(clock.clone())).expect("opens");
    let parked = |owner: &str, id: &str| NewRecord { kind: RecordKind::Parked, ..new(owner, id) };
    let left = |owner: &str| db.all(RecordKind::Parked, owner).expect("readable").len();
    for (owner, id) in [("a", "old"), ("old", "part"), ("a", "taken"), ("taken", "part"), ("b", "other")] {
        put(&db, parked(owner, id));
    }
    // Another kind has no parts.
    put(&db, new("a", "b"));
    db.take(WATCH, "a", "b").expect("taken");
    db.take(RecordKind::Parked, "a", "taken").expect("taken");
    assert_eq!((left("taken"), left("b")), (0, 1));
    clock.advance(std::time::Duration::from_secs(1));
    put(&db, parked("a", "new"));
    let before = clock.unix_ms() - 500;
    assert_eq!(db.drop_old(RecordKind::Parked, "a", before).expect("dropped"), 1);
    assert_eq!((left("a"), left("old"), left("b")), (1, 0, 1));
}

#[test]
fn an_owner_has_a_quota() {
    let db = RecordsDb::in_memory(Holder::new(Clock::default())).expect("opens");
    for (id, expected) in [("1", Some(0)), ("2", Some(0)), ("3", None), ("2", Some(0))] {
        assert_eq!(db.put(&new("a", id), Most::Refuse(2)).expect("written"), expected, "{id}");
    }
    // Another owner has its own.
    assert_eq!(db.put(&new("b", "1"), Most::Refuse(2)).expect("written"), Some(0));
    assert_eq!(db.put(&new("a", "3"), Most::DropOldest(2)).expect("written"), Some(1));
    assert_eq!(ids(&db.all(WATCH, "a").expect("readable")), ["2", "3"]);
}

#[test]
fn a_change_needs_the_revision_that_was_read() {
    let db = RecordsDb::in_memory(Holder::new(Clock::default())).expect("opens");
    put(&db, new("a", "1"));
    let read = db.get(WATCH, "a", "1").expect("readable").expect("there");
    let first = Record { body: json!(1), due_ms: Some(5), ..read.clone() };
    assert!(db.change(&first).expect("written"));
    assert!(!db.change(&Record { body: json!(2), ..read.clone() }).expect("readable"), "changed meanwhile");
    let now = db.get(WATCH, "a", "1").expect("readable").expect("there");
    assert_eq!((now.body, now.due_ms, now.revision), (json!(1), Some(5), read.revision + 1));
    assert!(!db.remove(&read).expect("readable"), "changed meanwhile");
    let now = db.get(WATCH, "a", "1").expect("readable").expect("there");
    assert!(db.remove(&now).expect("removed"));
    assert!(!db.change(&now).expect("readable"), "removed meanwhile");
}

#[test]
fn what_is_due_belongs_to_one_gateway_until_it_ends() {
    let folder = folder();
    let (one, other) = (open(&folder), open(&folder));
    put(&one, due("", "late", 20));
    put(&one, due("", "early", 10));
    put(&one, new("", "never"));
    assert_eq!(ids(&one.due(20).expect("readable")), ["early", "late"]);
    assert_eq!(ids(&one.due(15).expect("readable")), ["early"]);
    assert_eq!(ids(&other.due(99).expect("readable")), [""; 0]);
    assert_eq!(one.agenda().expect("readable").next_due_ms, Some(10));
    assert_eq!(other.agenda().expect("readable").next_due_ms, None);
    let third = open(&folder);
    end(one, &folder);
    assert_eq!(other.agenda().expect("readable").next_due_ms, Some(10));
    assert_eq!(ids(&other.due(15).expect("readable")), ["early"]);
    // Whoever comes first has it, and only what was due.
    assert_eq!(ids(&third.due(99).expect("readable")), ["late"]);
    assert_eq!(ids(&other.due(99).expect("readable")), ["early"]);
}

#[test]
fn what_needs_a_configuration_is_due_for_its_gateways_only() {
    let folder = folder();
    let of = |config: &str| {
        let holder = Holder { config: config.into(), ..Holder::new(Clock::default()) };
        RecordsDb::open(folder.path(), holder).expect("opens")
    };
    let (one, other) = (of("a"), of("b"));
    put(&one, NewRecord { of_config: true, ..due("", "bound", 10) });
    put(&one, due("", "free", 20));
    assert_eq!(ids(&one.due(99).expect("readable")), ["bound", "free"]);
    drop(one);
    // A process that another test has just started may have the lock until it runs its program.
    let began = std::time::Instant::now();
    while other.agenda().expect("readable").next_due_ms != Some(20) {
        assert!(began.elapsed().as_secs() < 20, "the holder has ended");
        std::thread::yield_now();
    }
    assert_eq!(ids(&other.due(99).expect("readable")), ["free"]);
    let again = of("a");
    assert_eq!(again.agenda().expect("readable").next_due_ms, Some(10));
    assert_eq!(ids(&again.due(99).expect("readable")), ["bound"]);
}

#[test]
fn a_record_is_held_by_one_gateway_that_runs() {
    let folder = folder();
    let (one, other) = (open(&folder), open(&folder));
    put(&one, NewRecord { held: false, ..new("", "free") });
    let read = |db: &RecordsDb| db.get(WATCH, "", "free").expect("readable").expect("there");
    let before = read(&one);
    let hold = |db: &RecordsDb, record: &Record| db.hold(record).expect("readable");
    assert!(hold(&one, &before));
    assert!(!hold(&other, &before), "changed since");
    assert!(!hold(&other, &read(&other)) && !hold(&one, &read(&one)), "held");
    assert!(one.change(&Record { body: json!(1), ..read(&one) }).expect("written"), "its holder changes it");
    drop(one);
    let left = read(&other);
    assert_eq!(left.body, json!(1));
    // A process that another test has just started may have the lock until it runs its program.
    let began = std::time::Instant::now();
    while !hold(&other, &left) {
        assert!(began.elapsed().as_secs() < 20, "the holder has ended");
        std::thread::yield_now();
    }
    assert!(!hold(&open(&folder), &read(&other)));
}

#[test]
fn notices_are_free_once_nobody_holds_them() {
    let folder = folder();
    let (one, other) = (open(&folder), open(&folder));
    let notice = |id: &str, held| NewRecord { kind: RecordKind::Notice, held, ..new("p", id) };
    for (id, held) in [("free", false), ("held", true), ("freed", true)] {
        put(&one, notice(id, held));
    }
    let waiting = |db: &RecordsDb| db.agenda().expect("readable").notices.get("p").copied();
    assert_eq!((waiting(&one), waiting(&other)), (Some(1), Some(1)));
    one.free(RecordKind::Notice, "p", &["freed".into()]).expect("written");
    assert_eq!(waiting(&other), Some(2));
    let claim = |db: &RecordsDb, most| db.claim_free(RecordKind::Notice, "p", most).expect("readable");
    assert_eq!(ids(&claim(&other, 1)), ["free"]);
    assert_eq!(ids(&claim(&one, 9)), ["freed"]);
    assert_eq!((ids(&claim(&one, 9)), ids(&claim(&other, 9))), (vec![], vec![]));
    end(one, &folder);
    assert_eq!(ids(&claim(&other, 9)), ["held", "freed"]);
    assert_eq!(ids(&claim(&other, 9)), [""; 0]);
    assert!(names(&folder).contains(&"records.db".into()));
}

#[test]
fn rows_that_cannot_be_read_are_left_out() {
    let db = RecordsDb::in_memory(Holder::new(Clock::default())).expect("opens");
    put(&db, due("", "good", 1));
    put(&db, due("", "bad", 1));
    let spoil = "UPDATE records SET body = '{' WHERE id = 'bad'";
    db.database.with(|connection| connection.execute_batch(spoil)).expect("spoilt");
    assert_eq!(ids(&db.all(WATCH, "").expect("readable")), ["good"]);
    assert_eq!(ids(&db.due(9).expect("readable")), ["good"]);
    assert_eq!(db.get(WATCH, "", "bad").expect("readable"), None);
}

#[test]
fn a_gateway_sees_that_facts_have_changed() {
    let db = RecordsDb::in_memory(Holder::new(Clock::default())).expect("opens");
    let fact = |id: &str| NewRecord { kind: RecordKind::Fact, ..new("a", id) };
    let changes = || db.changes("a").expect("readable");
    assert_eq!(changes(), None);
    put(&db, fact("1"));
    let first = changes().expect("it has changed");
    put(&db, fact("2"));
    put(&db, fact("2"));
    // Neither other kinds nor other owners count.
    put(&db, new("a", "1"));
    put(&db, NewRecord { owner: "b".into(), ..fact("1") });
    assert_eq!(changes(), Some(first + 2));
    db.take(RecordKind::Fact, "a", "1").expect("taken");
    assert_eq!(changes(), Some(first + 3));
    db.forget().expect("forgotten");
    assert_eq!(changes(), None);
}

#[test]
fn a_vector_goes_with_its_text() {
    let db = RecordsDb::in_memory(Holder::new(Clock::default())).expect("opens");
    let fact = |id: &str| NewRecord { kind: RecordKind::Fact, ..new("a", id) };
    let vector = |id: &str, revision| FactVector { id: id.into(), revision, vector: [0.5, -1.5].into() };
    let ids = |model: &str| -> Vec<String> {
        db.vectors("a", model).expect("readable").into_iter().map(|vector| vector.id).collect()
    };
    for id in ["1", "2", "3"] {
        put(&db, fact(id));
    }
    // One of a text that has changed since, and one of no fact.
    let vectors = ["1", "2", "4"].map(|id| vector(id, 1)).into_iter().chain([vector("3", 2)]);
    db.put_vectors("a", "m", &vectors.collect::<Vec<_>>()).expect("written");
    assert_eq!(db.vectors("a", "m").expect("readable"), [vector("1", 1), vector("2", 1)]);
    assert!(ids("other").is_empty());
    put(&db, fact("1"));
    assert_eq!(ids("m"), ["2"]);
    db.take(RecordKind::Fact, "a", "2").expect("taken");
    assert!(ids("m").is_empty());
}
