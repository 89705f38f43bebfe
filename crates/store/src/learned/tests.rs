//! Tests specific to files, such as the state that a killed gateway leaves; what is common to both engines is
//! tested in `tests/learned.rs`.

use std::{
    fs,
    io::{self, BufRead, BufReader, Write},
    path::PathBuf,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use super::{
    super::{
        ForgetTarget, forget,
        tests::{LearnedFile, NOW, documents, folder, names, numbered, open, outcome},
    },
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
    let fill = format!(
        "WITH RECURSIVE numbers (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n < {MOST_OUTCOMES} - 1)
        INSERT INTO records (kind, owner, id, body, due_ms, revision, put_ms, holder)
        SELECT 'outcome', format('d%04d', n), format('[\"w%d\"]', n), '{{\"weight\":2.0,\"at\":{NOW}}}', {NOW}, 1, 0, 0 FROM numbers"
    );
    store.db.database.with(|connection| connection.execute_batch(&fill)).expect("written");
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
    forget(folder.path(), ForgetTarget::Learned).expect("forgotten");
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
    let one = r#"'{"weight":1.0,"at":1}'"#;
    let bad = [
        format!("'a', 'no json', {one}"),
        format!("'b', '[]', {one}"),
        format!("'c', '[\"z\",\"a\"]', {one}"),
        format!("'d', '[1]', {one}"),
        r#"'e', '["x"]', '{"weight":9e999,"at":1}'"#.into(),
        r#"'f', '["x"]', '{"weight":1e30,"at":1}'"#.into(),
        r#"'f', '["y"]', '{'"#.into(),
        format!("'', '[\"x\"]', {one}"),
        format!("CAST(x'ff' AS TEXT), '[\"x\"]', {one}"),
    ];
    for row in bad {
        let insert = format!(
            "INSERT INTO records (kind, owner, id, body, revision, put_ms, holder) VALUES ('outcome', {row}, 1, 0, 0)"
        );
        store.db.database.with(|connection| connection.execute_batch(&insert)).expect(&row);
    }
    assert_eq!(documents(&store), ["server.tool1"]);
}

const CHILD: &str = "NONET_TEST_STORE";

/// Run by the next test in a separate process: writes until it is killed, and reports what it has written.
#[test]
#[ignore = "the child of another test"]
fn writes_until_it_is_killed() {
    let Some(folder) = std::env::var_os(CHILD).map(PathBuf::from) else { return };
    let store = LearnedFile::open(&folder).expect("opens");
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
            .args(["learned::tests::writes_until_it_is_killed", "--exact", "--ignored", "--nocapture"])
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

/// Returns one call, which failed if its duration is zero.
fn call(tool: &str, ms: u64, called_ms: u64) -> NamedFigures {
    let mut figures = ToolFigures { calls: 1, called_ms, ..ToolFigures::default() };
    match ms {
        0 => {
            figures.failures = 1;
            figures.recent.failed();
            let (code, message) = ("tool_error".into(), "xylophone out of order".into());
            let error = LastError { code, message, version: "1".into(), at_ms: called_ms };
            figures.put_error("reader".into(), error);
        }
        ms => figures.recent.succeeded(Duration::from_millis(ms)),
    }
    (tool.into(), figures)
}

#[test]
fn figures_survive_a_reopen_and_add_up() {
    let folder = folder();
    let written = {
        let store = open(&folder);
        assert_eq!(store.figures().expect("readable"), []);
        store.add_figures(vec![call("a.b", 5, NOW), call("查.x\"'", 7, NOW)]).expect("written");
        store.add_figures(vec![call("a.b", 0, NOW + 1)]).expect("written")
    };
    let (_, figures) = &written[0];
    assert_eq!((figures.calls, figures.failures, figures.recent.count()), (2, 1, 2));
    let kept = open(&folder).figures().expect("readable");
    assert!(kept.len() == 2 && kept.contains(&written[0]), "{kept:?}");
    assert_eq!(names(&folder), ["store.db", "store.lock"]);
}

#[test]
fn two_gateways_add_up() {
    let folder = folder();
    thread::scope(|scope| {
        for ms in [0, 4] {
            let folder = &folder;
            scope.spawn(move || {
                let store = open(folder);
                for _ in 0..30 {
                    store.add_figures(vec![call("a.b", ms, NOW)]).expect("written");
                }
            });
        }
    });
    let kept = open(&folder).figures().expect("readable");
    let (_, figures) = &kept[0];
    assert_eq!((figures.calls, figures.failures, figures.recent.count()), (60, 30, 60));
    assert_eq!(figures.recent.times_us().collect::<Vec<_>>(), [4_000; 30]);
}

#[test]
fn tools_that_were_not_called_for_the_longest_time_go_first() {
    let folder = folder();
    let store = open(&folder);
    let many = (0..MOST_TOOLS).map(|number| call(&format!("many.t{number}"), 1, NOW + number as u64));
    store.add_figures(many.collect()).expect("written");
    store.add_figures(vec![call("many.t0", 1, 3 * NOW), call("new.tool", 1, 0)]).expect("written");
    store.add_figures(vec![call("newer.tool", 1, 2 * NOW)]).expect("written");
    let kept = store.figures().expect("readable");
    let has = |name: &str| kept.iter().any(|(tool, _)| &**tool == name);
    assert_eq!(kept.len(), MOST_TOOLS);
    assert!(has("many.t0") && has("newer.tool") && !has("many.t1") && !has("new.tool"));
}

#[test]
fn rows_that_are_no_figures_are_left_out_and_replaced() {
    let folder = folder();
    let store = open(&folder);
    for row in [
        r#"'a.b', '{"calls":1,"failures":0,"recent":"010203","called_ms":1,"errors":{}}'"#,
        r#"'c.d', '{"calls":1,"failures":0,"recent":"","called_ms":1,"errors":[]}'"#,
    ] {
        let insert = format!(
            "INSERT INTO records (kind, owner, id, body, revision, put_ms, holder) VALUES ('figures', '', {row}, 1, 0, 0)"
        );
        store.db.database.with(|connection| connection.execute_batch(&insert)).expect(row);
    }
    assert_eq!(store.figures().expect("readable"), []);
    store.add_figures(vec![call("a.b", 5, NOW)]).expect("written");
    assert_eq!(store.figures().expect("readable"), [call("a.b", 5, NOW)]);
}

#[test]
fn forgotten_figures_are_gone_from_the_disk() {
    let folder = folder();
    let store = open(&folder);
    store.add_figures(vec![call("a.b", 0, NOW)]).expect("written");
    forget(folder.path(), ForgetTarget::Learned).expect("forgotten");
    assert_eq!(store.figures().expect("readable"), []);
    for name in names(&folder) {
        let bytes = fs::read(folder.path().join(&name)).expect("readable");
        assert!(!bytes.windows(8).any(|window| window == b"xylophon"), "{name}");
    }
}
