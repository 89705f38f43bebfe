//! Tests of the file machinery, mostly with the smaller file. Behaviour common to both engines is tested in
//! `kept`, `learned`, `rates` and `records`.

pub(crate) mod engines;
mod kept;
mod kinds;
mod learned;
mod rates;
mod records;

use std::{fs, thread, time::Instant};

use futures::executor::block_on;
use nonet_search::outcomes::words;
use rusqlite::Connection;
use tempfile::TempDir;

use super::{
    file::{Database, DbFormat, connect},
    formats::LEARNED as FORMAT,
    learned::Learned,
    sqlite::SqliteEngine,
    *,
};

pub(crate) const NOW: u64 = 1_800_000_000;
const FILE: &str = "store.db";

pub(crate) fn folder() -> TempDir {
    tempfile::tempdir().expect("temporary folder")
}

/// The smaller file, open. Its methods block.
#[derive(Debug)]
pub(super) struct LearnedFile {
    pub db: Arc<SqliteDb>,
    learned: Learned,
}

impl LearnedFile {
    pub(super) fn open(folder: &Path) -> Result<Self, StoreError> {
        let db = Arc::new(SqliteDb::open(folder, &FORMAT, LeaseHolder::new(Clock::default()))?);
        let learned = Learned::new(Arc::new(SqliteEngine::blocking(db.clone())));
        Ok(Self { db, learned })
    }

    pub(super) fn outcomes(&self) -> Result<Vec<Outcome>, StoreError> {
        block_on(self.learned.outcomes())
    }

    pub(super) fn put_outcome(&self, outcome: &Outcome) -> Result<(), StoreError> {
        block_on(self.learned.put_outcome(outcome))
    }

    pub(super) fn figures(&self) -> Result<Vec<NamedFigures>, StoreError> {
        block_on(self.learned.figures())
    }

    pub(super) fn add_figures(&self, fresh: Vec<NamedFigures>) -> Result<Vec<NamedFigures>, StoreError> {
        block_on(self.learned.add_figures(fresh))
    }
}

pub(super) fn open(folder: &TempDir) -> LearnedFile {
    LearnedFile::open(folder.path()).expect("opens")
}

pub(crate) fn outcome(query: &str, document: &str, weight: f32, at: u64) -> Outcome {
    Outcome { words: words(query), document: document.into(), weight, at }
}

pub(crate) fn numbered(number: usize) -> Outcome {
    outcome(&format!("query q{number}"), &format!("server.tool{number}"), 1.0, NOW)
}

/// Returns the stored documents, sorted.
pub(super) fn documents(store: &LearnedFile) -> Vec<String> {
    let outcomes = store.outcomes().expect("readable");
    let mut documents: Vec<String> = outcomes.iter().map(|outcome| outcome.document.to_string()).collect();
    documents.sort();
    documents
}

/// Returns the names of a folder's files, sorted, except for the gateways' locks.
pub(crate) fn names(folder: &TempDir) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("readable").flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.retain(|name| !name.starts_with("holder-"));
    names.sort();
    names
}

/// Waits until a dropped gateway has ended: a process that another test has just started shares its lock
/// until that process runs its program.
pub(crate) fn until_ended(folder: &TempDir, number: u32) {
    let here = LeaseHolder::new(Clock::default()).enter(folder.path()).expect("enters");
    let began = Instant::now();
    while here.is_held(number) {
        assert!(began.elapsed() < Duration::from_secs(10), "the lock is still held");
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn many_gateways_start_at_the_same_moment() {
    for damaged in [false, true] {
        let folder = folder();
        if damaged {
            fs::write(folder.path().join(FILE), "this is not a database").expect("writable");
        }
        thread::scope(|scope| {
            for number in 0..8 {
                let folder = &folder;
                scope.spawn(move || open(folder).put_outcome(&numbered(number)).expect("written"));
            }
        });
        assert_eq!(documents(&open(&folder)).len(), 8);
        let aside = names(&folder).iter().filter(|name| name.starts_with("store.db.damaged")).count();
        assert_eq!(aside, usize::from(damaged));
    }
}

#[test]
fn a_damaged_file_is_set_aside_and_begun_anew() {
    let whole = {
        let folder = folder();
        let store = open(&folder);
        (0..300).for_each(|number| store.put_outcome(&numbered(number)).expect("written"));
        drop(store);
        fs::read(folder.path().join(FILE)).expect("readable")
    };
    let check = |what: &str, bytes: &[u8], damaged: bool| {
        let folder = folder();
        let file = folder.path().join(FILE);
        fs::write(&file, bytes).expect("writable");
        let store = open(&folder);
        let aside = fs::read(folder.path().join("store.db.damaged-1")).ok();
        assert_eq!(aside.as_deref(), damaged.then_some(bytes), "{what}");
        store.put_outcome(&numbered(1_000)).expect("written");
        assert!(documents(&store).contains(&"server.tool1000".into()), "{what}");
    };
    check("whole", &whole, false);
    check("empty", &[], false);
    // SQLite takes this for empty as well.
    check("cut to 1", &whole[..1], false);
    for size in [2, 15, 16, 50, 100, 511, 512, 1_000, 4_095, 4_096, 4_097, 10_000, whole.len() - 4_096] {
        check(&format!("cut to {size}"), &whole[..size], true);
    }
    check("text", b"this is not a database, and long enough to have the header of one".as_slice(), true);
    check("noise", &[0xa7; 20_000], true);
    check("zeros", &[0; 20_000], true);
    let mut bytes = whole.clone();
    bytes[4_096..8_192].fill(0xa7);
    check("noise in a page", &bytes, true);
    let mut bytes = whole.clone();
    bytes[150..].fill(0);
    check("zeros after the header", &bytes, true);
    // The format's version claims more than is there.
    let mut empty = whole[..100].to_vec();
    empty[60..64].copy_from_slice(&(-1_i32).to_be_bytes());
    empty.extend_from_slice(&whole[100..]);
    check("a negative version", &empty, true);
}

#[test]
fn a_database_without_our_tables_is_set_aside() {
    let folder = folder();
    let tables = [
        "CREATE TABLE other (x); PRAGMA user_version = 1",
        "CREATE TABLE records (x); PRAGMA user_version = 5",
        "CREATE TABLE outcomes (x)",
    ];
    for (number, tables) in (1..).zip(tables) {
        let file = folder.path().join(FILE);
        if number > 1 {
            fs::remove_file(&file).expect("removed");
        }
        Connection::open(file).expect("opens").execute_batch(tables).expect("written");
        open(&folder).put_outcome(&numbered(1)).expect("written");
        assert!(names(&folder).contains(&format!("store.db.damaged-{number}")), "{tables}");
    }
}

#[test]
fn damaged_files_are_kept_up_to_a_bound() {
    let folder = folder();
    for number in 0..FORMAT.most_damaged + 3 {
        fs::write(folder.path().join(FILE), format!("damage {number}")).expect("writable");
        open(&folder);
    }
    let mut expected: Vec<String> =
        (1..=FORMAT.most_damaged).map(|n| format!("store.db.damaged-{n}")).collect();
    expected.insert(0, FILE.into());
    expected.push("store.lock".into());
    assert_eq!(names(&folder), expected);
    let last = fs::read_to_string(folder.path().join(&expected[FORMAT.most_damaged])).expect("readable");
    assert_eq!(last, format!("damage {}", FORMAT.most_damaged + 2));
}

#[test]
fn a_damaged_file_that_others_use_is_left_alone() {
    let folder = folder();
    let running = Database::open(folder.path(), &FORMAT).expect("opens");
    let file = folder.path().join(FILE);
    let damage = "PRAGMA writable_schema = on; UPDATE sqlite_schema SET rootpage = 999";
    running.with(|connection| connection.execute_batch(damage)).expect("damaged");
    let error = LearnedFile::open(folder.path()).expect_err("damaged and in use");
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    assert!(error.to_string().contains("stop all gateways"), "{error}");
    assert!(file.exists() && !names(&folder).iter().any(|name| name.contains("damaged")));
    drop(running);
    assert_eq!(documents(&open(&folder)), [""; 0]);
    assert!(names(&folder).contains(&"store.db.damaged-1".into()));
}

#[test]
fn a_newer_file_is_not_touched() {
    let folder = folder();
    open(&folder).put_outcome(&numbered(1)).expect("written");
    let file = folder.path().join(FILE);
    let newer = Connection::open(&file).expect("opens");
    newer.pragma_update(None, "user_version", 7).expect("written");
    drop(newer);
    let before = fs::read(&file).expect("readable");
    let error = LearnedFile::open(folder.path()).expect_err("newer");
    assert!(matches!(error, StoreError::Newer { found: 7, known, .. } if known == FORMAT.steps.len()));
    assert!(error.to_string().contains("update Nonet") && error.to_string().contains(FILE), "{error}");
    assert_eq!(fs::read(&file).expect("readable"), before);
    assert_eq!(names(&folder), ["store.db", "store.lock"]);
}

/// Makes a file as an earlier version did that knew only the first steps of its format, with these rows.
pub(super) fn earlier_file(folder: &TempDir, format: &DbFormat, steps: usize, rows: &str) {
    let steps = format.steps.iter().take(steps).copied().collect::<Vec<_>>().leak();
    let earlier = DbFormat {
        steps,
        reads: &[],
        name: format.name,
        what: format.what,
        layout: format.layout,
        ..*format
    };
    let Ok(connection) = connect(&folder.path().join(format.name), &earlier) else { panic!("not made") };
    connection.execute_batch(rows).expect("written");
}

#[test]
fn what_earlier_versions_learned_is_carried_over() {
    let outcome = "INSERT INTO outcomes VALUES ('server.tool1', '[\"q1\",\"query\"]', 1.5, 1800000000);";
    let figures = "INSERT INTO figures VALUES ('a.b', 3, 1, x'05000000ffffffff', 7,
        '{\"me\":{\"code\":\"tool_error\",\"version\":\"1\",\"at_ms\":7}}')";
    for (steps, rows) in [(1, outcome.to_owned()), (2, [outcome, figures].concat())] {
        let folder = folder();
        earlier_file(&folder, &FORMAT, steps, &rows);
        for _ in 0..2 {
            let store = open(&folder);
            let outcomes = store.outcomes().expect("readable");
            assert_eq!((documents(&store), outcomes[0].weight), (vec!["server.tool1".to_owned()], 1.5));
            let figures = store.figures().expect("readable");
            let counted =
                figures.first().map(|(tool, figures)| (&**tool, figures.calls, figures.recent.failures()));
            assert_eq!(counted, (steps == 2).then_some(("a.b", 3, 1)));
            assert!(figures.iter().all(|(_, figures)| figures.errors["me"].at_ms == 7));
        }
        assert_eq!(names(&folder), ["store.db", "store.lock"], "nothing was set aside");
    }
}

#[cfg(unix)]
#[test]
fn only_the_owner_can_read_it() {
    use std::os::unix::fs::PermissionsExt;
    let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
    let parent = folder();
    let folder = parent.path().join("made/when/needed");
    let store = LearnedFile::open(&folder).expect("opens");
    store.put_outcome(&numbered(1)).expect("written");
    assert_eq!(mode(&folder), 0o700);
    for name in ["store.db", "store.db-wal", "store.db-shm", "store.lock"] {
        assert_eq!(mode(&folder.join(name)), 0o600, "{name}");
    }
}

#[test]
fn a_folder_that_cannot_be_made_is_told() {
    let parent = folder();
    fs::write(parent.path().join("file"), "").expect("writable");
    let error = LearnedFile::open(&parent.path().join("file/nonet")).expect_err("not a folder");
    assert!(matches!(error, StoreError::Files { .. }));
    assert!(error.to_string().contains("file/nonet") && error.to_string().contains("XDG_STATE_HOME"));
}
