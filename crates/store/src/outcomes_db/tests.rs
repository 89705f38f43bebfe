//! Tests specific to files, such as the state that a killed gateway leaves; outcomes themselves are tested in
//! `store/tests/learned.rs`.

use std::{
    fs,
    io::{self, BufRead, BufReader, Write},
    path::PathBuf,
    process::{Command, Stdio},
};

use rusqlite::Transaction;

use super::{
    super::tests::{NOW, documents, folder, names, numbered, open, outcome},
    *,
};

#[test]
fn what_was_put_survives_a_reopen() {
    let folder = folder();
    let kept = [
        outcome("open an issue", "github.create_issue", 1.0, NOW),
        outcome("查询天气 \"now\"", "天気.l'avis \"x\"", 2.75, 0),
        outcome("weather", "weather.now", 16.0, NOW),
    ];
    let mut expected = kept.to_vec();
    // The second one is from 1970, and was removed when the third was stored.
    expected.remove(1);
    {
        let store = open(&folder);
        assert_eq!(store.outcomes().expect("readable"), []);
        for outcome in &kept {
            store.put_outcome(outcome).expect("written");
            assert!(store.outcomes().expect("readable").contains(outcome));
        }
    }
    assert_eq!(open(&folder).outcomes().expect("readable"), expected);
    assert_eq!(names(&folder), ["store.db", "store.lock"]);
}

#[test]
fn the_store_has_the_bounds_of_the_table() {
    let folder = folder();
    let store = open(&folder);
    // One transaction, because five thousand would take a while.
    let fill = |transaction: &Transaction| {
        let mut insert = transaction.prepare("INSERT INTO outcomes VALUES (?1, ?2, ?3, ?4)")?;
        for number in 0..MOST_OUTCOMES {
            let (document, words) = (format!("d{number:04}"), format!("[\"w{number}\"]"));
            insert.execute(params![document, words, 2.0, NOW as i64])?;
        }
        Ok(())
    };
    store.database.write(fill).expect("written");
    store.put_outcome(&outcome("x", "d0007", 1.5, NOW)).expect("written");
    store.put_outcome(&outcome("y", "new", 1.0, NOW)).expect("written");
    let kept = store.outcomes().expect("readable");
    assert_eq!(kept.len(), MOST_OUTCOMES);
    // First the last row of the equal words made room, then the weakest of the others.
    let has = |document: &str| kept.iter().filter(|outcome| *outcome.document == *document).count();
    assert_eq!((has("new"), has("d0007"), has("d0999")), (1, 1, 0));
}

#[test]
fn what_is_forgotten_is_gone_from_the_disk() {
    let folder = folder();
    let store = open(&folder);
    store.put_outcome(&outcome("xylophone lessons", "music.book", 1.0, NOW)).expect("written");
    store.forget().expect("forgotten");
    assert_eq!(store.outcomes().expect("readable"), []);
    for name in names(&folder) {
        let bytes = fs::read(folder.path().join(&name)).expect("readable");
        assert!(!bytes.windows(8).any(|window| window == b"xylophon"), "{name}");
    }
    store.put_outcome(&numbered(1)).expect("written");
    assert_eq!(documents(&store), ["server.tool1"]);
}

#[test]
fn rows_that_are_no_outcomes_are_left_out() {
    let folder = folder();
    let store = open(&folder);
    store.put_outcome(&numbered(1)).expect("written");
    let bad = [
        "('a', 'no json', 1.0, 1)",
        "('b', '[]', 1.0, 1)",
        "('c', '[\"z\",\"a\"]', 1.0, 1)",
        "('d', '[1]', 1.0, 1)",
        "('e', '[\"x\"]', 9e999, 1)",
        "('f', '[\"x\"]', 1e30, 1)",
        "('', '[\"x\"]', 1.0, 1)",
        "(CAST(x'ff' AS TEXT), '[\"x\"]', 1.0, 1)",
    ];
    for row in bad {
        let insert = format!("INSERT INTO outcomes VALUES {row}");
        store.database.with(|connection| connection.execute_batch(&insert)).expect(row);
    }
    assert_eq!(documents(&store), ["server.tool1"]);
}

const CHILD: &str = "NONET_TEST_STORE";

/// Run by the next test in a separate process: writes until it is killed, and reports what it has written.
#[test]
#[ignore = "the child of another test"]
fn writes_until_it_is_killed() {
    let Some(folder) = std::env::var_os(CHILD).map(PathBuf::from) else { return };
    let store = OutcomesDb::open(&folder).expect("opens");
    let mut output = io::stdout();
    for number in 0..MOST_OUTCOMES {
        store.put_outcome(&numbered(number)).expect("written");
        writeln!(output, "wrote {number}").expect("told");
    }
}

#[test]
fn a_killed_gateway_loses_nothing_that_it_has_told() {
    // Including the moment when the log is moved into the file, which SQLite does every thousand pages.
    for lines in [1, 2, 30, 250, 300, 350, 400, 900] {
        let folder = folder();
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["outcomes_db::tests::writes_until_it_is_killed", "--exact", "--ignored", "--nocapture"])
            .env(CHILD, folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let mut told = Vec::new();
        for line in output.lines() {
            let line = line.expect("readable");
            let Some((_, number)) = line.split_once("wrote ") else { continue };
            told.push(format!("server.tool{number}"));
            if told.len() == lines {
                child.kill().expect("killed");
            }
        }
        child.wait().expect("ended");
        assert!((lines..MOST_OUTCOMES).contains(&told.len()), "killed after {}", told.len());
        let kept = documents(&open(&folder));
        let lost: Vec<&String> = told.iter().filter(|document| !kept.contains(document)).collect();
        assert!(lost.is_empty(), "lost {lost:?}");
        // The one being written may be there as well.
        assert!(kept.len() <= told.len() + 1);
        assert_eq!(names(&folder), ["store.db", "store.lock"]);
    }
}
