//! Tests specific to files; records themselves are tested in `tests/records.rs`.

use std::path::Path;

use futures::executor::block_on;
use nonet_base::clock::Clock;
use serde_json::json;

use super::{
    super::{
        ForgetCount, ForgetTarget, LeaseHolder, SqliteDb, forget, forgettable, formats,
        sqlite::SqliteEngine,
        tests::{earlier_file, folder},
    },
    *,
};

/// The records of an open file. Its methods block.
struct RecordsFile {
    db: Arc<SqliteDb>,
    records: Records,
}

impl RecordsFile {
    fn open(folder: &Path, config: &str) -> Self {
        let holder = LeaseHolder { config: config.into(), ..LeaseHolder::new(Clock::default()) };
        let db = Arc::new(SqliteDb::open(folder, &formats::RECORDS, holder).expect("opens"));
        Self { records: Records::new(Arc::new(SqliteEngine::blocking(db.clone()))), db }
    }

    fn due(&self, now_ms: u64) -> Vec<String> {
        ids(block_on(self.records.due(now_ms, &RecordKind::ALL)).expect("readable"))
    }

    fn next_due_ms(&self) -> Option<u64> {
        block_on(self.records.agenda(&RecordKind::ALL))
            .expect("readable")
            .expect("there are records")
            .next_due_ms
    }
}

const WATCH: RecordKind = RecordKind::Watch;

fn new(owner: &str, id: &str) -> NewRecord {
    NewRecord { owner: owner.into(), id: id.into(), held: true, ..NewRecord::new(WATCH, json!({ "id": id })) }
}

fn due(owner: &str, id: &str, due_ms: u64) -> NewRecord {
    NewRecord { due_ms: Some(due_ms), ..new(owner, id) }
}

fn put(file: &RecordsFile, record: NewRecord) {
    assert_eq!(block_on(file.records.put(record, RecordQuota::Refuse(100))).expect("written"), Some(0));
}

fn ids(records: Vec<Record>) -> Vec<String> {
    records.into_iter().map(|record| record.id).collect()
}

#[test]
fn what_is_forgotten_is_gone() {
    let folder = folder();
    let file = RecordsFile::open(folder.path(), "");
    put(&file, new("a", "1"));
    put(&file, NewRecord { kind: RecordKind::Notice, ..new("b", "1") });
    put(&file, NewRecord { kind: RecordKind::Fact, ..new("a", "1") });
    let vector = FactVector { id: "1".into(), revision: 1, vector: [1.0].into() };
    block_on(file.records.put_vectors("a", "m", vec![vector])).expect("written");
    let counts = || {
        [ForgetTarget::Memory, ForgetTarget::Plans, ForgetTarget::Messages].map(|what| {
            match forgettable(folder.path(), what).expect("counted") {
                ForgetCount::Records(count) => count,
                other => panic!("{other:?}"),
            }
        })
    };
    assert_eq!(counts(), [1, 1, 1]);
    let changes = || block_on(file.records.changes("a")).expect("readable");
    assert!(changes().is_some());
    forget(folder.path(), ForgetTarget::Memory).expect("forgotten");
    assert_eq!((counts(), changes()), ([0, 1, 1], None));
    assert_eq!(block_on(file.records.vectors("a", "m")).expect("readable"), []);
    forget(folder.path(), ForgetTarget::Plans).expect("forgotten");
    forget(folder.path(), ForgetTarget::Messages).expect("forgotten");
    assert_eq!(counts(), [0, 0, 0]);
}

#[test]
fn what_needs_a_configuration_is_due_for_its_gateways_only() {
    let folder = folder();
    let (one, other) = (RecordsFile::open(folder.path(), "a"), RecordsFile::open(folder.path(), "b"));
    put(&one, NewRecord { of_config: true, ..due("", "bound", 10) });
    put(&one, due("", "free", 20));
    assert_eq!(one.due(99), ["bound", "free"]);
    drop(one);
    // A process that another test has just started may hold the lock until it runs its program.
    let began = std::time::Instant::now();
    while other.next_due_ms() != Some(20) {
        assert!(began.elapsed().as_secs() < 20, "the holder has ended");
        std::thread::yield_now();
    }
    assert_eq!(other.due(99), ["free"]);
    let again = RecordsFile::open(folder.path(), "a");
    assert_eq!(again.next_due_ms(), Some(10));
    assert_eq!(again.due(99), ["bound"]);
}

#[test]
fn rows_that_cannot_be_read_are_left_out() {
    let folder = folder();
    let file = RecordsFile::open(folder.path(), "");
    put(&file, due("", "good", 1));
    put(&file, due("", "bad", 1));
    let spoil = "UPDATE records SET body = '{' WHERE id = 'bad'";
    file.db.database.with(|connection| connection.execute_batch(spoil)).expect("spoilt");
    assert_eq!(ids(block_on(file.records.all(WATCH, "")).expect("readable")), ["good"]);
    assert_eq!(file.due(9), ["good"]);
    assert_eq!(block_on(file.records.get(WATCH, "", "bad")).expect("readable"), None);
}

#[test]
fn records_of_earlier_versions_stay() {
    let rows = "INSERT INTO records (kind, owner, id, body, due_ms, revision, put_ms, holder)
        VALUES ('fact', 'a', '1', '{\"n\":1}', 5, 3, 7, 0);
        INSERT INTO vectors VALUES (1, 'm', x'00000000')";
    for (steps, rows) in [(1, rows.split_once(';').map_or(rows, |(first, _)| first)), (2, rows)] {
        let folder = folder();
        earlier_file(&folder, &formats::RECORDS, steps, rows);
        let file = RecordsFile::open(folder.path(), "");
        let fact = block_on(file.records.get(RecordKind::Fact, "a", "1")).expect("readable").expect("there");
        assert_eq!(
            (&fact.body, fact.due_ms, fact.revision, fact.put_ms),
            (&json!({ "n": 1 }), Some(5), 3, 7)
        );
        let changes = || block_on(file.records.changes("a")).expect("readable");
        let before = changes();
        assert_eq!(before.is_some(), steps == 2);
        assert!(block_on(file.records.change(fact)).expect("written"));
        assert!(changes() > before);
    }
}
