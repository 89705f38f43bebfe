//! Tests specific to files, such as the state that a killed gateway leaves; results themselves are tested in
//! `tests/kept.rs`.

use std::{
    fs,
    io::{self, BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::LazyLock,
    thread,
    time::Duration,
};

use futures::executor::block_on;
use nonet_base::clock::Clock;
use rusqlite::Connection;
use serde_json::json;
use tempfile::TempDir;

use super::{
    super::{
        ForgetTarget, JobState, forget,
        formats::LONGEST_LOG,
        sqlite::chunks::{self, CHUNK, ChunkWriter},
        tests::{earlier_file, folder, names},
    },
    *,
};

const HOUR: Duration = Duration::from_secs(3600);
const ROOMY: Retention = Retention { bytes: 1 << 30, age: HOUR };

/// The entries of an open file. Its methods block.
#[derive(Debug)]
struct KeptFile {
    db: Arc<SqliteDb>,
    shelf: Shelf,
}

impl KeptFile {
    fn open(folder: &Path, retention: Retention, holder: LeaseHolder) -> Result<Self, StoreError> {
        let file = Self::of(SqliteDb::open(folder, &formats::KEPT, holder)?, retention);
        block_on(file.shelf.sweep())?;
        Ok(file)
    }

    fn in_memory(retention: Retention, holder: LeaseHolder) -> Result<Self, StoreError> {
        Ok(Self::of(SqliteDb::in_memory(&formats::KEPT, holder)?, retention))
    }

    fn of(db: SqliteDb, retention: Retention) -> Self {
        let db = Arc::new(db);
        Self { shelf: Shelf::new(Arc::new(SqliteEngine::blocking(db.clone())), retention), db }
    }

    fn put(&self, entry: &NewEntry, share: &Share, value: Option<&Value>) -> Result<u64, StoreError> {
        let bytes = value.map_or(0, |value| value.to_string().len() as u64);
        let value = value.map(|value| Blob::Json(Arc::new(value.clone())));
        block_on(self.shelf.put(entry, share, value)).map(|()| bytes)
    }

    fn put_result(&self, id: &str, owner: &str, share: &Share, value: &Value) -> Result<u64, StoreError> {
        self.put(&NewEntry { id: id.into(), owner: owner.into(), job: None }, share, Some(value))
    }

    fn put_job(&self, job: &JobRow, share: &Share, value: Option<&Value>) -> Result<u64, StoreError> {
        let entry = NewEntry { id: job.id.clone(), owner: job.owner.clone(), job: Some(job.clone()) };
        self.put(&entry, share, value)
    }

    fn text(&self, id: &str, owner: &str) -> Result<Option<String>, StoreError> {
        block_on(self.shelf.text(id, owner))
    }

    fn job(&self, id: &str, owner: &str) -> Result<Option<JobRow>, StoreError> {
        block_on(self.shelf.job(id, owner))
    }

    fn jobs(&self, owner: &str) -> Result<Vec<JobRow>, StoreError> {
        block_on(self.shelf.jobs(owner))
    }

    fn counts(&self) -> Result<KeptCounts, StoreError> {
        block_on(self.shelf.counts())
    }

    fn tidy(&self) -> Result<(), StoreError> {
        block_on(self.shelf.sweep())
    }
}

fn open(folder: &TempDir, retention: Retention) -> KeptFile {
    KeptFile::open(folder.path(), retention, here()).expect("opens")
}

fn in_memory(retention: Retention) -> KeptFile {
    KeptFile::in_memory(retention, here()).expect("opens")
}

/// Returns this gateway, which lasts for the whole test run.
fn here() -> LeaseHolder {
    static HERE: LazyLock<LeaseHolder> = LazyLock::new(|| LeaseHolder::new(Clock::default()));
    HERE.clone()
}

fn now_ms() -> u64 {
    here().clock.unix_ms()
}

/// Returns the share of a client.
fn share(of: &str, bytes: u64) -> Share {
    Share { of: of.into(), bytes }
}

fn mine() -> Share {
    share("me", u64::MAX)
}

/// Returns the value of an entry, parsed.
fn value_of(kept: &KeptFile, id: &str, owner: &str) -> Option<Value> {
    let text = kept.text(id, owner).expect("readable")?;
    serde_json::from_str(&text).ok()
}

/// Returns a value whose compact JSON has that length.
fn value(bytes: usize) -> Value {
    Value::String("x".repeat(bytes - 2))
}

fn put(kept: &KeptFile, id: &str, bytes: usize) {
    assert_eq!(kept.put_result(id, "", &mine(), &value(bytes)).expect("written"), bytes as u64);
}

/// Returns a job of this process.
fn job(id: &str, state: JobState) -> JobRow {
    let (owner, label) = (String::new(), "server.tool".into());
    JobRow { id: id.into(), owner, label, state, started_ms: now_ms(), leased: true }
}

fn done(ended_ms: u64) -> JobState {
    JobState::Done { ended_ms, failed: false }
}

/// Returns the ids of everything stored, in the order in which the entries ended.
fn ids(kept: &KeptFile) -> Vec<String> {
    let all = "SELECT id FROM records WHERE kind = 'kept' ORDER BY number";
    let read =
        |connection: &mut Connection| connection.prepare(all)?.query_map([], |row| row.get(0))?.collect();
    kept.db.database.with(read).expect("readable")
}

fn sql_of(kept: &KeptFile, statements: &str) {
    kept.db.database.with(|connection| connection.execute_batch(statements)).expect(statements);
}

/// Returns the number that a query yields.
fn number(kept: &KeptFile, query: &str) -> i64 {
    kept.db.database.with(|connection| connection.query_row(query, [], |row| row.get(0))).expect(query)
}

fn is_whole(kept: &KeptFile) -> bool {
    let check = |connection: &mut Connection| {
        connection.query_row("PRAGMA integrity_check", [], |row| row.get::<_, String>(0))
    };
    kept.db.database.with(check).expect("checked") == "ok"
}

#[test]
fn what_was_put_survives_a_reopen() {
    let folder = folder();
    let result =
        json!({"content": [{"type": "text", "text": "查询天气 \"now\"\n🦀"}], "n": [0, -1, 1.5, null, true]});
    let ended = JobRow {
        owner: "work".into(),
        state: JobState::Done { ended_ms: now_ms(), failed: true },
        ..job("job-1", JobState::Working)
    };
    let cancelled = job("job-2", JobState::Cancelled { ended_ms: now_ms() });
    let working = job("job-3", JobState::Working);
    let length = result.to_string().len() as u64;
    {
        let kept = open(&folder, ROOMY);
        assert_eq!(kept.counts().expect("readable"), KeptCounts::default());
        assert_eq!(kept.put_result("r-1", "", &mine(), &result).expect("written"), length);
        assert_eq!(kept.put_job(&ended, &mine(), Some(&result)).expect("written"), length);
        assert_eq!(kept.put_job(&cancelled, &mine(), None).expect("written"), 0);
        assert_eq!(kept.put_job(&working, &mine(), None).expect("written"), 0);
    }
    assert_eq!(names(&folder), ["kept.db", "kept.lock"]);
    let kept = open(&folder, ROOMY);
    assert_eq!(value_of(&kept, "r-1", "").as_ref(), Some(&result));
    assert_eq!(kept.text("r-1", "").expect("readable"), Some(result.to_string()));
    assert_eq!(value_of(&kept, "job-1", "work").as_ref(), Some(&result));
    assert_eq!(value_of(&kept, "job-2", ""), None);
    assert_eq!(value_of(&kept, "job-4", ""), None);
    assert_eq!(kept.job("job-1", "work").expect("readable"), Some(ended));
    assert_eq!(kept.job("job-2", "").expect("readable"), Some(cancelled));
    assert_eq!(kept.job("job-3", "").expect("readable"), Some(working));
    assert_eq!(kept.job("r-1", "").expect("readable"), None);
    assert_eq!(kept.counts().expect("readable"), KeptCounts { entries: 4, bytes: 2 * length });
}

#[test]
fn values_of_any_length_are_cut_and_joined() {
    let kept = in_memory(ROOMY);
    let check = |bytes: usize, chunks: i64| {
        put(&kept, "r-1", bytes);
        assert_eq!(number(&kept, "SELECT count(*) FROM chunks"), chunks, "{bytes}");
        assert_eq!(number(&kept, "SELECT max(length(data)) FROM chunks"), bytes.min(CHUNK) as i64);
        let text = kept.text("r-1", "").expect("readable").expect("there");
        let expected = value(bytes).to_string();
        assert!(text == expected && text.capacity() == bytes, "{bytes}");
        assert!(value_of(&kept, "r-1", "") == Some(value(bytes)), "{bytes}");
    };
    check(2, 1);
    check(CHUNK - 1, 1);
    check(CHUNK, 1);
    check(CHUNK + 1, 2);
    check(2 * CHUNK, 2);
    check(5_000_000, 5);
}

#[test]
fn bytes_in_any_pieces_become_chunks() {
    let kept = in_memory(ROOMY);
    let check = |pieces: &[usize], expected: &[i64]| {
        let all: Vec<u8> = (0..pieces.iter().sum()).map(|n: usize| (n % 251) as u8).collect();
        let written = kept.db.database.write(|transaction| {
            transaction.execute("DELETE FROM chunks", [])?;
            let mut chunks = ChunkWriter::new(transaction, 1, 0);
            let mut rest = all.as_slice();
            for piece in pieces {
                let (now, later) = rest.split_at(*piece);
                chunks.write_all(now).expect("written");
                rest = later;
            }
            chunks.finish()
        });
        assert_eq!(written.expect("written"), all.len() as u64);
        let lengths = |connection: &mut Connection| {
            let lengths = "SELECT length(data) FROM chunks ORDER BY n";
            connection.prepare(lengths)?.query_map([], |row| row.get(0))?.collect::<Result<Vec<i64>, _>>()
        };
        assert_eq!(kept.db.database.with(lengths).expect("readable"), expected, "{pieces:?}");
        let joined = kept.db.database.write(|transaction| chunks::read(transaction, 1, all.len() as i64));
        assert!(joined.expect("readable") == Some(all), "{pieces:?}");
    };
    const LONG: i64 = CHUNK as i64;
    check(&[], &[]);
    check(&[0], &[]);
    check(&[1], &[1]);
    check(&[CHUNK], &[LONG]);
    check(&[CHUNK - 1, 1], &[LONG]);
    check(&[CHUNK, 0, 1], &[LONG, 1]);
    check(&[CHUNK - 1, 2], &[LONG, 1]);
    check(&[3 * CHUNK + 7], &[LONG, LONG, LONG, 7]);
}

#[test]
fn small_ones_are_counted_too() {
    let kept = in_memory(ROOMY);
    kept.put_job(&job("job-1", JobState::Working), &mine(), None).expect("written");
    sql_of(
        &kept,
        "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 10000)
         INSERT INTO records (kind, owner, id, body, revision, put_ms, holder)
         SELECT 'kept', '', 'r-' || n, '{\"state\":\"done\",\"started_ms\":0,\"bytes\":0,\"share\":\"\",\"aged_ms\":0}', 1, 0, 0
         FROM numbers",
    );
    put(&kept, "new", 2);
    let kept = ids(&kept);
    assert_eq!((kept.len(), &*kept[0], &*kept[1], &*kept[9_999]), (10_000, "job-1", "r-3", "new"));
}

/// Returns a gateway with this clock.
fn open_at(folder: &TempDir, clock: &Clock, hours: u32) -> KeptFile {
    let retention = Retention { age: hours * HOUR, ..ROOMY };
    KeptFile::open(folder.path(), retention, LeaseHolder::new(clock.clone())).expect("opens")
}

/// Lets hours pass as they do while a gateway runs.
fn pass(kept: &KeptFile, clock: &Clock, hours: u32) {
    for _ in 0..hours {
        clock.advance(HOUR);
        kept.tidy().expect("tidied");
    }
}

#[test]
fn a_clock_that_jumps_makes_nothing_old_at_once() {
    const DAYS: Duration = Duration::from_secs(2 * 24 * 3600);
    let (folder, clock) = (folder(), Clock::default());
    let kept = open_at(&folder, &clock, 24);
    put(&kept, "r-1", 10);
    clock.advance(DAYS);
    put(&kept, "r-2", 10);
    put(&kept, "r-3", 10);
    clock.turn_back(2 * DAYS);
    put(&kept, "r-4", 10);
    assert_eq!(ids(&kept), ["r-1", "r-2", "r-3", "r-4"]);
    // Also between two runs.
    drop(kept);
    clock.advance(3 * DAYS);
    let kept = open_at(&folder, &clock, 24);
    put(&kept, "r-5", 10);
    assert_eq!(ids(&kept), ["r-1", "r-2", "r-3", "r-4", "r-5"]);
    // Both jumps together count as two hours.
    pass(&kept, &clock, 21);
    assert_eq!(ids(&kept).len(), 5);
    pass(&kept, &clock, 1);
    assert_eq!(ids(&kept), ["r-2", "r-3", "r-4", "r-5"]);
    pass(&kept, &clock, 24);
    assert_eq!(ids(&kept), [""; 0]);
}

#[test]
fn many_small_entries_push_out_the_same_client_only() {
    let kept = in_memory(ROOMY);
    kept.put_result("r-old", "", &share("other", u64::MAX), &json!(1)).expect("written");
    sql_of(
        &kept,
        "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 10000)
         INSERT INTO records (kind, owner, id, body, revision, put_ms, holder)
         SELECT 'kept', '', 'r-' || n, '{\"state\":\"done\",\"started_ms\":0,\"bytes\":0,\"share\":\"me\",\"aged_ms\":0}', 1, 0, 0
         FROM numbers;
         DELETE FROM records WHERE kind = 'kept_tally'",
    );
    put(&kept, "new", 2);
    let kept = ids(&kept);
    assert_eq!((kept.len(), &*kept[0], &*kept[1], &*kept[9_999]), (10_000, "r-old", "r-3", "new"));
}

#[test]
fn entries_of_earlier_versions_are_carried_over() {
    let rows = "INSERT INTO entries (number, id, profile, label, process, state, started_ms, ended_ms, bytes)
        VALUES (3, 'r-1', 'work', NULL, NULL, 'done', 5, 5, 5), (4, 'job-1', NULL, 'a.b', 7, 'failed', 6, 8, 0),
            (5, 'job-2', NULL, 'a.b', 7, 'working', 6, NULL, 0);
        INSERT INTO chunks VALUES (3, 0, x'227878'), (3, 1, x'7822')";
    for steps in [1, 2] {
        let (folder, clock) = (folder(), Clock::default());
        earlier_file(&folder, &formats::KEPT, steps, rows);
        // They are as old as the first look.
        clock.advance(HOUR * 1_000);
        let kept = open_at(&folder, &clock, 2);
        assert_eq!(ids(&kept), ["r-1", "job-1", "job-2"]);
        assert_eq!(value_of(&kept, "r-1", "work"), Some(json!("xxx")));
        assert_eq!(kept.counts().expect("readable"), KeptCounts { entries: 3, bytes: 5 });
        let failed = kept.job("job-1", "").expect("readable").expect("there");
        assert_eq!((failed.state, failed.started_ms), (JobState::Done { ended_ms: 8, failed: true }, 6));
        let lost = kept.job("job-2", "").expect("readable").expect("there");
        assert_eq!((lost.state, lost.leased, lost.label.as_str()), (JobState::Working, false, "a.b"));
        pass(&kept, &clock, 2);
        assert_eq!(ids(&kept), [""; 0]);
        assert_eq!(number(&kept, "SELECT count(*) FROM chunks"), 0);
    }
}

#[test]
fn a_value_whose_entry_was_never_written_goes() {
    let (folder, clock) = (folder(), Clock::default());
    let kept = open_at(&folder, &clock, 24);
    kept.db.put_blob(&Blob::Text("left over".into()), 3 * HOUR).expect("written");
    pass(&kept, &clock, 2);
    assert_eq!(number(&kept, "SELECT count(*) FROM chunks"), 1);
    pass(&kept, &clock, 1);
    assert_eq!(number(&kept, "SELECT count(*) FROM chunks"), 0);
}

#[test]
fn what_is_forgotten_is_gone_from_the_disk() {
    let folder = folder();
    let kept = open(&folder, ROOMY);
    let text = "xylophone lessons ".repeat(200_000);
    kept.put_result("r-1", "", &mine(), &json!(text)).expect("written");
    kept.put_job(&job("job-1", JobState::Working), &mine(), None).expect("written");
    forget(folder.path(), ForgetTarget::Results).expect("forgotten");
    assert_eq!(kept.counts().expect("readable"), KeptCounts::default());
    for name in names(&folder) {
        let bytes = fs::read(folder.path().join(&name)).expect("readable");
        assert!(!bytes.windows(8).any(|window| window == b"xylophon"), "{name}");
        assert!(bytes.len() < 200_000, "{name}: {}", bytes.len());
    }
    // A running job's result is stored nevertheless.
    kept.put_job(&job("job-1", done(now_ms())), &mine(), Some(&json!(1))).expect("written");
    assert_eq!(value_of(&kept, "job-1", ""), Some(json!(1)));
    assert_eq!(number(&kept, "PRAGMA auto_vacuum"), 2);
}

#[test]
fn the_file_shrinks_when_something_goes() {
    let folder = folder();
    let length = || fs::metadata(folder.path().join("kept.db")).expect("there").len() >> 20;
    let kept = open(&folder, ROOMY);
    (0..30).for_each(|n| put(&kept, &format!("r-{n}"), CHUNK));
    assert_eq!(number(&kept, "PRAGMA auto_vacuum"), 2);
    drop(kept);
    assert!((30..33).contains(&length()), "{}", length());
    let kept = open(&folder, Retention { bytes: 8 << 20, age: HOUR });
    assert_eq!(kept.counts().expect("readable").entries, 8);
    assert!(length() < 10, "{}", length());
    for n in 30..60 {
        put(&kept, &format!("r-{n}"), CHUNK);
        let used = number(
            &kept,
            "SELECT (page_count - freelist_count) * 16384 FROM pragma_page_count, pragma_freelist_count",
        );
        assert!(used < 9 << 20, "{used}");
    }
    drop(kept);
    assert!(length() < 11, "{}", length());
    let log = fs::metadata(folder.path().join("kept.db-wal"));
    assert!(log.is_err(), "the last one to close leaves no log");
}

#[test]
fn the_log_does_not_stay_as_long_as_the_longest_value() {
    let folder = folder();
    let kept = open(&folder, ROOMY);
    let log = || fs::metadata(folder.path().join("kept.db-wal")).expect("there").len();
    put(&kept, "r-1", 30 << 20);
    put(&kept, "r-2", 10);
    assert!(log() <= LONGEST_LOG as u64, "{}", log());
}

#[test]
fn it_is_the_same_in_memory() {
    let kept = in_memory(Retention { bytes: 10 << 20, age: HOUR });
    assert_eq!(number(&kept, "PRAGMA auto_vacuum"), 2);
    for n in 0..40 {
        put(&kept, &format!("r-{n}"), CHUNK + 3);
    }
    assert_eq!(ids(&kept), (31..40).map(|n| format!("r-{n}")).collect::<Vec<_>>());
    assert!(number(&kept, "PRAGMA page_count") < 800);
    kept.put_job(&job("job-1", done(now_ms())), &mine(), Some(&json!([1]))).expect("written");
    assert_eq!(value_of(&kept, "job-1", ""), Some(json!([1])));
}

#[test]
fn a_small_read_does_not_wait_for_a_large_write() {
    let folder = folder();
    let kept = open(&folder, ROOMY);
    put(&kept, "r-1", 10);
    kept.db
        .database
        .write(|transaction| {
            chunks::write(transaction, 1_000, 0, &Blob::Json(Arc::new(value(3 * CHUNK))))?;
            // The writer is in the middle of its transaction, and has a connection of its own.
            assert_eq!(kept.text("r-1", "").expect("readable").map(|text| text.len()), Some(10));
            assert_eq!(kept.counts().expect("readable").entries, 1);
            Ok(())
        })
        .expect("written");
}

#[test]
fn a_value_that_cannot_be_written_leaves_nothing() {
    let kept = in_memory(ROOMY);
    put(&kept, "r-1", 10);
    sql_of(
        &kept,
        "CREATE TEMP TRIGGER full BEFORE INSERT ON chunks WHEN new.n = 2 BEGIN SELECT RAISE(ABORT, 'disk full'); END",
    );
    let error = kept.put_result("r-1", "", &mine(), &value(3 * CHUNK)).expect_err("not written");
    assert!(error.to_string().contains("disk full"), "{error}");
    assert_eq!(value_of(&kept, "r-1", ""), Some(value(10)));
    assert_eq!(number(&kept, "SELECT count(*) FROM chunks"), 1);
}

#[test]
fn what_cannot_be_read_is_not_there() {
    let check = |damage: &str| {
        let kept = in_memory(ROOMY);
        kept.put_job(&job("job-1", done(now_ms())), &mine(), Some(&value(CHUNK + 10))).expect("written");
        sql_of(&kept, &format!("PRAGMA ignore_check_constraints = on; {damage}"));
        assert_eq!(value_of(&kept, "job-1", ""), None, "{damage}");
        kept.counts().expect("readable");
        kept.jobs("").expect("readable");
        put(&kept, "r-1", 10);
    };
    check("DELETE FROM chunks WHERE n = 0");
    check("DELETE FROM chunks");
    check("UPDATE chunks SET data = x'22ff22' WHERE n = 1");
    check("UPDATE chunks SET data = x'ffffffffffffffffffff' WHERE n = 1");
    check("UPDATE records SET body = json_set(body, '$.bytes', 9223372036854775807) WHERE kind = 'kept'");
    check("UPDATE records SET body = json_set(body, '$.bytes', -1) WHERE kind = 'kept'");
    check("UPDATE chunks SET data = zeroblob(length(data))");
    let kept = in_memory(ROOMY);
    kept.put_job(&job("job-1", done(now_ms())), &mine(), None).expect("written");
    for damage in [
        "body = json_set(body, '$.ended_ms', NULL)",
        "body = json_set(body, '$.state', 'asleep')",
        "body = json_set(body, '$.started_ms', -1)",
        "body = '{'",
        "holder = -1",
        "holder = 1 << 40",
    ] {
        sql_of(&kept, &format!("PRAGMA ignore_check_constraints = on; UPDATE records SET {damage}"));
        assert_eq!(kept.job("job-1", "").expect("readable"), None, "{damage}");
        assert_eq!(kept.jobs("").expect("readable"), [], "{damage}");
    }
}

#[test]
fn a_damaged_file_is_set_aside_and_begun_anew() {
    let whole = {
        let folder = folder();
        let kept = open(&folder, ROOMY);
        (0..3).for_each(|n| put(&kept, &format!("r-{n}"), CHUNK));
        drop(kept);
        fs::read(folder.path().join("kept.db")).expect("readable")
    };
    // The tables are in the first pages; the rest holds only the bytes of values.
    let mut noise = whole.clone();
    noise[100..4 * 16_384].fill(0xa7);
    let cut = &whole[..whole.len() / 2];
    for damage in [b"this is not a database".as_slice(), &[0xa7; 40_000], cut, &noise] {
        let folder = folder();
        for round in 1..=2_u8 {
            let damage = [damage, &[round]].concat();
            fs::write(folder.path().join("kept.db"), &damage).expect("writable");
            let kept = open(&folder, ROOMY);
            assert_eq!(kept.counts().expect("readable"), KeptCounts::default());
            put(&kept, "r-1", CHUNK);
            drop(kept);
            // One is enough, because it may be large.
            assert_eq!(names(&folder), ["kept.db", "kept.db.damaged-1", "kept.lock"]);
            assert!(fs::read(folder.path().join("kept.db.damaged-1")).expect("readable") == damage);
        }
    }
}

#[test]
fn a_newer_file_is_not_touched() {
    let folder = folder();
    open(&folder, ROOMY);
    let newer = Connection::open(folder.path().join("kept.db")).expect("opens");
    newer.pragma_update(None, "user_version", 7).expect("written");
    drop(newer);
    let error = KeptFile::open(folder.path(), ROOMY, here()).expect_err("newer");
    assert!(matches!(error, StoreError::Newer { found: 7, known: 5, .. }), "{error}");
    assert_eq!(names(&folder), ["kept.db", "kept.lock"]);
}

#[cfg(unix)]
#[test]
fn only_the_owner_can_read_it() {
    use std::os::unix::fs::PermissionsExt;
    let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
    let parent = folder();
    let folder = parent.path().join("made/when/needed");
    let kept = KeptFile::open(&folder, ROOMY, here()).expect("opens");
    put(&kept, "r-1", 10);
    assert_eq!(mode(&folder), 0o700);
    for name in ["kept.db", "kept.db-wal", "kept.db-shm", "kept.lock"] {
        assert_eq!(mode(&folder.join(name)), 0o600, "{name}");
    }
}

#[test]
fn the_other_file_may_be_in_use_when_this_one_is_damaged() {
    let folder = folder();
    let _outcomes = super::super::tests::open(&folder);
    fs::write(folder.path().join("kept.db"), "this is not a database").expect("writable");
    put(&open(&folder, ROOMY), "r-1", 10);
    assert!(names(&folder).contains(&"kept.db.damaged-1".into()));
}

const CHILD: &str = "NONET_TEST_KEPT";
/// From 1 KB to 3 MB.
const SIZES: [usize; 6] = [1_000, 3 << 20, 20_000, 300_000, CHUNK, 5_000];

/// Returns the text of a child's entry, derived from its id.
fn text_of(id: &str) -> String {
    let number: usize = id.rsplit('-').next().and_then(|n| n.parse().ok()).expect("a number");
    let letter = ["a", "b", "c", "d", "é", "🦀", "\\n"][number % 7];
    format!("\"{id}{}\"", letter.repeat(SIZES[number % SIZES.len()] / letter.len()))
}

/// Run by the tests below in separate processes: stores entries and prints their ids.
#[test]
#[ignore = "the child of other tests"]
fn puts_until_it_is_killed() {
    let Some(settings) = std::env::var(CHILD).ok() else { return };
    let [folder, name, first, entries, bytes] = settings.split('|').collect::<Vec<_>>()[..] else {
        panic!("{settings}");
    };
    let number = |text: &str| text.parse::<usize>().expect("a number");
    let retention = Retention { bytes: number(bytes) as u64, age: HOUR };
    let kept = KeptFile::open(&PathBuf::from(folder), retention, here()).expect("opens");
    let mut output = io::stdout();
    for n in number(first)..number(first) + number(entries) {
        let id = format!("{name}-{n}");
        let value = serde_json::from_str(&text_of(&id)).expect("JSON");
        if n.is_multiple_of(2) {
            kept.put_result(&id, "", &mine(), &value).expect("written");
        } else {
            let started = job(&id, JobState::Working);
            kept.put_job(&started, &mine(), None).expect("written");
            kept.put_job(&JobRow { state: done(now_ms()), ..started }, &mine(), Some(&value))
                .expect("written");
        }
        writeln!(output, "put {id}").expect("told");
    }
}

fn child(folder: &Path, name: &str, first: usize, entries: usize, bytes: u64) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this test"));
    command
        .args(["kept::tests::puts_until_it_is_killed", "--exact", "--ignored", "--nocapture"])
        .env(CHILD, format!("{}|{name}|{first}|{entries}|{bytes}", folder.display()))
        .stdout(Stdio::piped());
    command
}

/// Returns the id in a line that a child has written, if the line is complete.
fn told(line: &str) -> Option<String> {
    Some(line.strip_suffix('\n')?.split_once("put ")?.1.to_owned())
}

/// Returns whether an entry exists; if so, checks that it is complete.
fn is_there(kept: &KeptFile, id: &str) -> bool {
    let Some(text) = kept.text(id, "").expect("readable") else { return false };
    assert!(text == text_of(id), "{id} has {} bytes", text.len());
    if text.len() < 50_000 {
        assert!(value_of(kept, id, "").is_some(), "{id} is not JSON");
    }
    true
}

#[test]
fn two_gateways_put_at_once() {
    let folder = folder();
    let children: Vec<_> = ["one", "other"]
        .map(|name| child(folder.path(), name, 0, 24, ROOMY.bytes).spawn().expect("starts"))
        .into_iter()
        .map(|child| child.wait_with_output().expect("ended"))
        .collect();
    assert!(children.iter().all(|child| child.status.success()));
    let kept = open(&folder, ROOMY);
    assert_eq!(kept.counts().expect("readable").entries, 48);
    for n in 0..24 {
        assert!(is_there(&kept, &format!("one-{n}")) && is_there(&kept, &format!("other-{n}")));
    }
    let jobs = kept.jobs("").expect("readable");
    assert_eq!(jobs.len(), 24);
    assert!(jobs.iter().all(|job| matches!(job.state, JobState::Done { .. })));
    assert!(is_whole(&kept));
}

#[test]
fn many_gateways_start_at_the_same_moment() {
    let folder = folder();
    thread::scope(|scope| {
        for n in 0..8 {
            let folder = &folder;
            scope.spawn(move || put(&open(folder, ROOMY), &format!("r-{n}"), 2 * CHUNK));
        }
    });
    let kept = open(&folder, ROOMY);
    assert_eq!(kept.counts().expect("readable").entries, 8);
    assert_eq!(number(&kept, "PRAGMA auto_vacuum"), 2);
    assert_eq!(number(&kept, "PRAGMA page_size"), 16_384);
}

#[test]
fn a_killed_gateway_loses_nothing_that_it_has_told() {
    // Enough for the entries of a few children, so that in half of the rounds old entries are removed and
    // space is freed.
    const TIGHT: u64 = 12 << 20;
    let (mut spacious, mut tight) = (folder(), folder());
    let mut in_all = 0;
    for round in 0..100 {
        // Otherwise the number of entries to check grows with each round.
        if round % 20 == 0 {
            (spacious, tight) = (folder(), folder());
        }
        let (folder, bytes) = if round % 2 == 0 { (&spacious, ROOMY.bytes) } else { (&tight, TIGHT) };
        let retention = Retention { bytes, age: HOUR };
        let life = Duration::from_millis(20 + round * 17 % 60);
        let mut child = child(folder.path(), &format!("round{round}"), round as usize, 1_000, bytes)
            .stderr(Stdio::null())
            .spawn()
            .expect("starts");
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        let mut ids = Vec::new();
        let mut line = String::new();
        // One child in four is killed early, perhaps while it opens the file; the others after they have
        // begun to store.
        while round % 4 != 3 && ids.is_empty() && output.read_line(&mut line).expect("readable") > 0 {
            ids.extend(told(&line));
            line.clear();
        }
        let reader = thread::spawn(move || {
            while output.read_line(&mut line).expect("readable") > 0 {
                ids.extend(told(&line));
                line.clear();
            }
            ids
        });
        thread::sleep(life);
        child.kill().expect("killed");
        child.wait().expect("ended");
        let ids = reader.join().expect("read");
        in_all += ids.len();

        let kept = open(folder, retention);
        assert!(is_whole(&kept), "round {round}");
        let there: Vec<bool> = ids.iter().map(|id| is_there(&kept, id)).collect();
        let gone = there.iter().position(|there| *there).unwrap_or(there.len());
        // To make room, entries were removed in order, and never the last one reported: it and one more fit.
        assert!(there[gone..].iter().all(|there| *there), "round {round}: {ids:?} {there:?}");
        assert!(bytes == TIGHT && gone < there.len().max(1) || gone == 0, "round {round}: {ids:?} {there:?}");
        // A value whose entry was not written yet ends by itself.
        let endless = "SELECT count(*) FROM chunks WHERE until_ms > 1 << 60";
        assert_eq!(number(&kept, endless), 0);
        drop(kept);
        assert_eq!(names(folder), ["kept.db", "kept.lock"]);
    }
    assert!(in_all >= 75, "{in_all} entries were told");
    println!("{in_all} entries were told");
}
