//! The log on disk: written by one gateway after another, and edited by hand.

use std::{fs, path::Path};

use serde_json::json;
use tempfile::TempDir;

use super::*;

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

fn settings(folder: &Path) -> AuditSettings {
    AuditSettings { folder: Some(folder.join("audit")), ..AuditSettings::default() }
}

fn open(settings: &AuditSettings) -> Audit {
    Audit::open(settings.clone(), None, Map::from_iter([("version".into(), "1".into())])).expect("it opens")
}

async fn call(audit: &Audit, tool: &str) {
    let entry = AuditEntry { tool: tool.into(), client: "test".into(), ..AuditEntry::default() };
    audit.call(entry, &json!({ "n": 1 })).end("ok").await.expect("written");
}

/// Runs a gateway that makes this many calls and stops.
async fn run(settings: &AuditSettings, calls: usize) {
    let audit = open(settings);
    for n in 0..calls {
        call(&audit, &format!("shop.tool_{n}")).await;
    }
    audit.stop().await;
}

/// Verifies the only chain in the folder.
fn report(folder: &Path) -> ChainReport {
    let mut reports = verify(&folder.join("audit"), &ChainKey::default()).expect("readable");
    assert_eq!(reports.len(), 1, "{reports:?}");
    reports.remove(0)
}

fn whole(folder: &Path) -> ChainReport {
    let report = report(folder);
    assert_eq!(report.broken, None, "{report:?}");
    report
}

fn files(folder: &Path) -> Vec<PathBuf> {
    chain_files(&folder.join("audit")).expect("readable").into_iter().map(|file| file.path).collect()
}

fn lines(folder: &Path) -> Vec<Value> {
    let mut lines = Vec::new();
    each_line(&folder.join("audit"), |line| lines.push(line)).expect("readable");
    lines
}

#[tokio::test]
async fn a_chain_goes_on_from_gateway_to_gateway() {
    let folder = folder();
    let settings = settings(folder.path());
    run(&settings, 3).await;
    run(&settings, 2).await;
    let report = whole(folder.path());
    assert_eq!((report.files, report.lines, report.first, report.last), (1, 9, 1, 9), "{report:?}");
    let events: Vec<String> =
        lines(folder.path()).iter().filter_map(|line| Some(line["event"].as_str()?.into())).collect();
    assert_eq!(events, ["start", "call", "call", "call", "stop", "start", "call", "call", "stop"]);
    let hashes: Vec<Value> = lines(folder.path()).iter().map(|line| line["params"]["hash"].clone()).collect();
    assert_eq!(hashes[1], hashes[6], "equal params have equal hashes in every run");
    assert!(has_line(&folder.path().join("audit"), &report.hash).expect("readable"));
    assert!(!has_line(&folder.path().join("audit"), "0").expect("readable"));
}

#[tokio::test]
async fn half_a_line_is_told_as_the_trace_of_a_crash() {
    let folder = folder();
    let settings = settings(folder.path());
    run(&settings, 3).await;
    let file = &files(folder.path())[0];
    let text = fs::read_to_string(file).expect("readable");
    let begins: Vec<usize> = text.match_indices("{\"seq\"").map(|(at, _)| at).collect();
    // A crash may leave any number of bytes of the last line.
    for cut in [begins[4] + 1, begins[4] + 40, text.len() - 2] {
        fs::write(file, &text[..cut]).expect("written");
        let torn = whole(folder.path());
        assert_eq!((torn.lines, torn.torn), (4, vec![5]), "cut at {cut}");
        run(&settings, 1).await;
        let after = whole(folder.path());
        assert_eq!((after.lines, after.torn), (7, vec![5]), "cut at {cut}");
        let start = &lines(folder.path())[4];
        assert_eq!(start["about"]["torn"]["bytes"], json!(cut - begins[4]), "{start}");
        assert_eq!(start["about"]["torn"]["text"], json!(text[begins[4]..cut]), "{start}");
    }
    // A last line that lacks only its newline counts.
    fs::write(file, &text[..text.len() - 1]).expect("written");
    assert_eq!(whole(folder.path()).lines, 5);
    run(&settings, 0).await;
    assert_eq!((whole(folder.path()).lines, whole(folder.path()).torn), (7, vec![]));
}

#[tokio::test]
async fn what_is_edited_removed_or_moved_is_found_where_it_is() {
    let folder = folder();
    let settings = settings(folder.path());
    run(&settings, 6).await;
    let file = &files(folder.path())[0];
    let text = fs::read_to_string(file).expect("readable");
    let lines: Vec<&str> = text.lines().collect();
    let check = |changed: Vec<String>, at: usize, why: &str| {
        fs::write(file, changed.join("\n") + "\n").expect("written");
        let broken = report(folder.path()).broken.unwrap_or_else(|| panic!("whole: {why}"));
        assert_eq!((broken.line, &broken.file), (at, file), "{broken:?}");
        assert!(broken.why.contains(why), "{broken:?}");
    };
    let own = || lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
    let with = |change: &dyn Fn(&mut Vec<String>)| {
        let mut own = own();
        change(&mut own);
        own
    };
    check(with(&|lines| lines[3] = lines[3].replace("\"ok\"", "\"no\"")), 4, "edited");
    check(with(&|lines| lines[7] = lines[7].replace("stop", "stoq")), 8, "edited");
    check(with(&|lines| drop(lines.remove(3))), 4, "missing");
    check(with(&|lines| lines.swap(3, 4)), 4, "out of order");
    check(with(&|lines| lines.insert(3, lines[2].clone())), 4, "duplicated");
    check(with(&|lines| lines[3] = "a word".into()), 4, "not a line");
    check(with(&|lines| drop(lines.remove(0))), 1, "missing");
    check(with(&|lines| lines[3].truncate(50)), 4, "not a line");
    // Edit a line, and compute its hash again.
    let forged = |lines: &mut Vec<String>| {
        let content = lines[3].replace("\"ok\"", "\"no\"");
        let content = content.split(",\"hash\":\"").next().expect("content").to_owned();
        let hash = hex(&<Sha256 as sha2::Digest>::digest(&content));
        lines[3] = format!("{content},\"hash\":\"{hash}\"}}");
    };
    check(with(&forged), 5, "does not follow line 4");
    fs::write(file, &text).expect("written");
    whole(folder.path());
    // Only a hash noted elsewhere reveals a missing end of the chain.
    let hash = report(folder.path()).hash;
    fs::write(file, own()[..5].join("\n") + "\n").expect("written");
    whole(folder.path());
    assert!(!has_line(&folder.path().join("audit"), &hash).expect("readable"));
    // A gateway continues a damaged chain behind its last whole line, and the break remains.
    fs::write(file, text.replace("\"event\":\"stop\"", "\"event\":\"stoq\"")).expect("written");
    run(&settings, 1).await;
    let broken = report(folder.path()).broken.expect("broken");
    assert_eq!(broken.line, 8, "{broken:?}");
}

#[tokio::test]
async fn files_rotate_within_their_budget_and_the_chain_says_what_was_removed() {
    let folder = folder();
    let settings = AuditSettings { max_bytes: 1_000_000, ..settings(folder.path()) };
    for _ in 0..4 {
        run(&settings, 1_500).await;
    }
    let report = whole(folder.path());
    assert!(report.files > 1 && report.first > 1, "{report:?}");
    assert_eq!(report.last - report.first + 1, report.lines, "{report:?}");
    let size = |file: &PathBuf| fs::metadata(file).expect("there").len();
    let all: u64 = files(folder.path()).iter().map(size).sum();
    assert!(all < 1_200_000, "{all}");
    // Verification notices files that the chain itself has not removed.
    let second = &files(folder.path())[1];
    fs::remove_file(second).expect("removed");
    assert!(
        verify(&folder.path().join("audit"), &ChainKey::default()).expect("readable")[0].broken.is_some()
    );
}

#[tokio::test]
async fn the_first_file_is_missed_unless_the_chain_has_removed_it() {
    let folder = folder();
    let settings = AuditSettings { max_bytes: 1_000_000, ..settings(folder.path()) };
    run(&settings, 1_000).await;
    let own = files(folder.path());
    assert!(own.len() > 1);
    fs::remove_file(&own[0]).expect("removed");
    let broken = report(folder.path()).broken.expect("broken");
    assert!(broken.why.contains("are missing"), "{broken:?}");
}

#[tokio::test]
async fn gateways_at_the_same_time_have_chains_of_their_own() {
    let folder = folder();
    let settings = settings(folder.path());
    let (one, other) = (open(&settings), open(&settings));
    for n in 0..50 {
        tokio::join!(call(&one, "a.a"), call(&other, "b.b"));
        // Until each has its chain: the writer of one could otherwise begin after the other has ended.
        while n == 0 && (one.status().file.is_none() || other.status().file.is_none()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    one.stop().await;
    other.stop().await;
    let reports = verify(&folder.path().join("audit"), &ChainKey::default()).expect("readable");
    assert_eq!(reports.iter().map(|chain| chain.lines).collect::<Vec<_>>(), [52, 52]);
    assert!(reports.iter().all(|chain| chain.broken.is_none()), "{reports:?}");
    // Both locks are free again.
    run(&settings, 1).await;
    assert_eq!(verify(&folder.path().join("audit"), &ChainKey::default()).expect("readable").len(), 2);
}

#[tokio::test]
async fn a_chain_that_is_gone_or_cut_off_is_missed_by_the_others() {
    let folder = folder();
    let settings = AuditSettings { sync: AuditSync::Always, ..settings(folder.path()) };
    let (one, other) = (open(&settings), open(&settings));
    for _ in 0..5 {
        call(&one, "a.a").await;
        call(&other, "b.b").await;
    }
    one.stop().await;
    other.stop().await;
    // Another start records the head of the other chain.
    run(&settings, 1).await;
    let check = |expected: &str| {
        let reports = verify(&folder.path().join("audit"), &ChainKey::default()).expect("readable");
        assert_eq!(reports.len(), 2, "{reports:?}");
        assert_eq!(reports[0].broken, None, "{expected}");
        let why = reports[1].broken.as_ref().map_or("", |broken| &*broken.why);
        assert!(why.contains(expected) && why.is_empty() == expected.is_empty(), "{reports:?}");
    };
    check("");
    let second = files(folder.path())[1].clone();
    let text = fs::read_to_string(&second).expect("readable");
    let cut: Vec<&str> = text.lines().take(4).collect();
    fs::write(&second, cut.join("\n") + "\n").expect("written");
    check("the chain ends with line 4, but line 8 of chain 1 saw its line 7");
    // A rewritten end has another head.
    let mut head = line::ChainHead {
        seq: 4,
        hash: line::read(cut[3].as_bytes(), &ChainKey::default()).expect("read").hash,
    };
    let mut forged = (cut.join("\n") + "\n").into_bytes();
    for _ in 0..3 {
        let entry = AuditEntry { event: "call", ..AuditEntry::default() };
        line::write(&mut forged, &mut head, 0, "g", &entry, &ChainKey::default());
    }
    fs::write(&second, forged).expect("written");
    check("it is not the line 7 that line 8 of chain 1 saw");
    fs::remove_file(&second).expect("removed");
    check("it has no file any more, but line 8 of chain 1 saw it");
    #[cfg(target_os = "linux")]
    {
        // A pipe in its place is named, and nobody waits for its writer.
        nix::unistd::mkfifo(&second, nix::sys::stat::Mode::S_IRWXU).expect("made");
        check("it is not a file");
    }
}

#[tokio::test]
async fn only_the_key_makes_lines_of_a_keyed_chain() {
    let folder = folder();
    let plain = settings(folder.path());
    let keyed = |key: &str| AuditSettings { key: Some(nonet_config::Secret::new(key)), ..plain.clone() };
    let audit = folder.path().join("audit");
    let check = |key: Option<&str>, expected: &[&str]| {
        let reports = verify(&audit, &ChainKey::new(key)).expect("readable");
        let told: Vec<&str> =
            reports.iter().map(|report| report.broken.as_ref().map_or("", |broken| &*broken.why)).collect();
        assert_eq!(told.len(), expected.len(), "{told:?}");
        for (told, expected) in told.iter().zip(expected) {
            assert!(
                told.contains(expected) && told.is_empty() == expected.is_empty(),
                "{told:?}, {expected:?}"
            );
        }
        reports
    };
    run(&plain, 2).await;
    check(Some("a key of the user"), &["no line with the key vouches for line 4"]);
    // A keyed gateway continues the chain, and vouches for the lines before.
    run(&keyed("a key of the user"), 2).await;
    let reports = check(Some("a key of the user"), &[""]);
    assert_eq!((reports[0].lines, reports[0].unkeyed), (8, 4), "{reports:?}");
    check(None, &["written with a key"]);
    check(Some("another key"), &["edited, or written with another key"]);
    // Neither a gateway without the key nor one with another key continues the chain.
    run(&plain, 1).await;
    check(Some("a key of the user"), &["", "no line with the key vouches for line 3"]);
    run(&keyed("a key of the user"), 1).await;
    check(Some("a key of the user"), &["", ""]);
    // Whoever can only write the files cannot edit a line, not even with all hashes after it made again.
    let first = files(folder.path())[0].clone();
    let text = fs::read_to_string(&first).expect("readable");
    let lines: Vec<&str> = text.lines().collect();
    let mut forged = (lines[..5].join("\n") + "\n").into_bytes();
    let hash =
        |line: &str| line.rsplit("\"hash\":\"").next().expect("a hash").trim_end_matches("\"}").to_owned();
    let mut head = line::ChainHead { seq: 5, hash: hash(lines[4]) };
    line::write(
        &mut forged,
        &mut head,
        0,
        "g",
        &AuditEntry { event: "call", ..AuditEntry::default() },
        &ChainKey::default(),
    );
    fs::write(&first, forged).expect("written");
    // The line that had recorded the other chain is gone with the edit.
    check(
        Some("a key of the user"),
        &["written without the key, after a line with it", "no line with the key vouches for line 3"],
    );
}

#[tokio::test]
async fn a_call_that_is_dropped_has_its_line_too() {
    let folder = folder();
    let settings = settings(folder.path());
    let audit = open(&settings);
    drop(audit.call(AuditEntry { tool: "a.dropped".into(), ..AuditEntry::default() }, &json!({})));
    audit.call(AuditEntry { tool: "a.forgotten".into(), ..AuditEntry::default() }, &json!({})).forget();
    let open_call = audit.call(AuditEntry { tool: "a.open".into(), ..AuditEntry::default() }, &json!({}));
    audit.stop().await;
    drop(open_call);
    let lines = lines(folder.path());
    let told: Vec<(&Value, &Value)> = lines.iter().map(|line| (&line["event"], &line["outcome"])).collect();
    assert_eq!(
        told,
        [
            (&json!("start"), &Value::Null),
            (&json!("call"), &json!("cancelled")),
            (&json!("stop"), &Value::Null)
        ]
    );
    assert_eq!(lines[1]["tool"], "a.dropped");
    assert_eq!(lines[2]["about"]["open_calls"], 1);
}

#[tokio::test]
async fn an_answer_waits_for_the_disk_where_that_is_wanted() {
    let folder = folder();
    let settings = AuditSettings { sync: AuditSync::Always, ..settings(folder.path()) };
    let audit = open(&settings);
    for n in 0..20 {
        call(&audit, "shop.buy").await;
        // The line of the start, and one for each call.
        assert_eq!(lines(folder.path()).len(), n + 2);
    }
    audit.stop().await;
}

#[tokio::test]
async fn calls_are_refused_or_go_on_while_nothing_can_be_written() {
    for on_failure in [OnAuditFailure::Refuse, OnAuditFailure::Continue] {
        let folder = folder();
        // A file takes the place of the folder.
        let settings = AuditSettings { on_failure, sync: AuditSync::Always, ..settings(folder.path()) };
        fs::write(folder.path().join("audit"), "").expect("written");
        let audit = open(&settings);
        // The first call waits for the failure; the others meet it. None waits for the disk.
        for n in 0..3 {
            let entry = AuditEntry { tool: "shop.first".into(), ..AuditEntry::default() };
            let ended = audit.call(entry, &json!({ "n": n })).end("ok");
            let ended = tokio::time::timeout(Duration::from_secs(20), ended).await.expect("an answer");
            assert_eq!(ended.is_err(), on_failure == OnAuditFailure::Refuse, "{ended:?}");
        }
        let refused = audit.admits();
        assert_eq!(refused.is_err(), on_failure == OnAuditFailure::Refuse, "{refused:?}");
        assert_eq!(json!(audit.status())["state"], "failing");
        fs::remove_file(folder.path().join("audit")).expect("removed");
        while json!(audit.status())["state"] != "ok" {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(audit.admits(), Ok(()));
        call(&audit, "shop.second").await;
        audit.stop().await;
        assert_eq!(whole(folder.path()).lines, 6, "no line is lost");
    }
}

#[tokio::test]
async fn lines_without_room_are_counted_in_the_chain() {
    let folder = folder();
    let settings = settings(folder.path());
    fs::write(folder.path().join("audit"), "").expect("written");
    let audit = open(&settings);
    call(&audit, "shop.first").await;
    while json!(audit.status())["state"] != "failing" {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for _ in 0..QUEUE + 100 {
        call(&audit, "shop.more").await;
    }
    let lost = json!(audit.status())["lost"].as_u64().expect("some are lost");
    assert!((99..=100).contains(&lost), "{lost}");
    fs::remove_file(folder.path().join("audit")).expect("removed");
    while json!(audit.status())["lines"].as_u64() < Some(QUEUE as u64) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    audit.stop().await;
    let report = whole(folder.path());
    assert_eq!(report.lost, lost, "{report:?}");
    let calls = lines(folder.path()).iter().filter(|line| line["event"] == "call").count() as u64;
    assert_eq!(calls + lost, QUEUE as u64 + 101);
}

#[tokio::test]
async fn params_are_hashed_with_a_key_and_shown_without_secrets() {
    let folder = folder();
    let settings = AuditSettings { params: true, ..settings(folder.path()) };
    let audit = open(&settings);
    audit.hide(vec!["value-of-the-config".into()]);
    let params = json!({ "text": "with value-of-the-config", "password": "blue monkey 9", "n": 1 });
    audit.call(AuditEntry::default(), &params).end("ok").await.expect("written");
    audit.stop().await;
    let line = &lines(folder.path())[1];
    assert_eq!(line["params"]["text"], r#"{"text":"with ***","password":"***","n":1}"#);
    let hash = line["params"]["hash"].as_str().expect("a hash");
    assert_eq!(hash.len(), 2 * PARAMS_HASH);
    assert!(
        !hex(&<Sha256 as sha2::Digest>::digest(params.to_string())).starts_with(hash),
        "it needs the key"
    );
}
