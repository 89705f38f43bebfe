//! Copies of the audit log for others: complete, in order, once the receiver takes them, and told if it does not.

use std::{
    fs,
    io::Read,
    net::TcpListener,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use axum::{Router, body::Bytes, extract::State, http::StatusCode, routing::post};
use serde_json::{Value, json};

use crate::{
    client::{Client, command},
    setup::{Setup, eventually},
};

fn shop(export: &str) -> Setup {
    let setup = Setup::new().server("shop", json!({ "tools": [{ "name": "buy" }] }));
    setup.toml(&format!("[audit]\nfolder = 'audit'\n{export}\n"))
}

/// Returns the lines of the log itself, as texts.
fn lines(folder: &Path) -> Vec<String> {
    let files = fs::read_dir(folder.join("audit")).expect("a folder").flatten().map(|entry| entry.path());
    let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|end| end == "jsonl")).collect();
    files.sort();
    let texts = files.iter().map(|file| fs::read_to_string(file).expect("readable"));
    texts.collect::<String>().lines().map(String::from).collect()
}

fn buy(client: &mut Client, times: usize) {
    client.until_ready("shop");
    for _ in 0..times {
        client.execute("shop.buy", json!({}));
    }
}

/// A syslog server: it reads messages with their length before them.
fn syslog_server() -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound").to_string();
    let received = Arc::new(Mutex::new(Vec::new()));
    let all = received.clone();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let all = all.clone();
            thread::spawn(move || {
                let mut stream = std::io::BufReader::new(stream);
                loop {
                    let mut length = Vec::new();
                    let mut byte = [0];
                    while stream.read_exact(&mut byte).is_ok() && byte[0] != b' ' {
                        length.push(byte[0]);
                    }
                    let Ok(length) = String::from_utf8_lossy(&length).parse() else { return };
                    let mut message = vec![0; length];
                    if stream.read_exact(&mut message).is_err() {
                        return;
                    }
                    all.lock().expect("no panic").push(String::from_utf8(message).expect("UTF-8"));
                }
            });
        }
    });
    (address, received)
}

#[test]
fn each_line_is_exported_once_in_order_and_as_it_is() {
    let (address, received) = syslog_server();
    let export =
        format!("[audit.export.siem]\nsyslog = 'tcp://{address}'\n[audit.export.lake]\nfile = 'lake.jsonl'");
    let mut client = shop(&export).start_program();
    let home = client.folder.clone();
    let folder = home.path().to_owned();
    buy(&mut client, 30);
    let mut client = client.restart();
    client.shake_hands(json!({}));
    buy(&mut client, 30);
    client.leave();
    drop(client);
    let written = lines(&folder);
    let calls = written.iter().filter(|line| line.contains("\"shop.buy\"")).count();
    assert_eq!(calls, 60, "{written:?}");
    let messages = received.lock().expect("no panic").clone();
    let exported: Vec<&str> =
        messages.iter().map(|message| &message[message.find("] {").expect("a message") + 2..]).collect();
    assert_eq!(exported, written);
    assert!(
        messages.iter().all(|message| message.starts_with('<') && message.contains(">1 20")),
        "{messages:?}"
    );
    let lake = fs::read_to_string(folder.join("lake.jsonl")).expect("the file is there");
    let raw: Vec<String> = lake
        .lines()
        .map(|line| {
            serde_json::from_str::<Value>(line).expect("JSON")["raw_data"].as_str().expect("text").to_owned()
        })
        .collect();
    assert_eq!(raw, written);
    // The chain of what was exported is whole.
    let copy = tempfile::tempdir().expect("a folder");
    fs::write(copy.path().join("audit-1-000000000001.jsonl"), raw.join("\n") + "\n").expect("written");
    let checked = command(&folder).args(["audit", "verify"]).arg(copy.path()).output().expect("nonet runs");
    assert!(checked.status.success(), "{checked:?}");
}

/// Whether a webhook takes records, and those that it has.
type Ingest = (Arc<AtomicBool>, Arc<Mutex<Vec<Value>>>);

#[test]
fn a_receiver_that_takes_nothing_is_told_and_misses_nothing() {
    let (takes, received) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::<Value>::new())));
    let state = (takes.clone(), received.clone());
    let (sender, started) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async move {
            let take = async |State((takes, all)): State<Ingest>, body: Bytes| {
                if !takes.load(Ordering::Relaxed) {
                    return StatusCode::SERVICE_UNAVAILABLE;
                }
                let records: Vec<Value> = serde_json::from_slice(&body).expect("a list");
                all.lock().expect("no panic").extend(records);
                StatusCode::OK
            };
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            sender.send(listener.local_addr().expect("it is bound")).expect("somebody waits");
            axum::serve(listener, Router::new().route("/ingest", post(take)).with_state(state))
                .await
                .expect("serves");
        });
    });
    let address = started.recv().expect("it starts");
    let mut client =
        shop(&format!("[audit.export.siem]\nwebhook = 'http://{address}/ingest'")).start_program();
    let home = client.folder.clone();
    let folder = home.path().to_owned();
    buy(&mut client, 10);
    let status = |client: &mut Client| {
        client.answer("execute_tool", json!({ "name": "gateway.status" }))["audit"]["exports"][0].clone()
    };
    let failing = eventually("it is told", || {
        let now = status(&mut client);
        (now["state"] == "failing").then_some(now)
    });
    assert!(failing["error"].as_str().is_some_and(|error| error.contains("503")), "{failing}");
    assert!(failing["waiting_bytes"].as_u64().is_some_and(|bytes| bytes > 1_000), "{failing}");
    takes.store(true, Ordering::Relaxed);
    eventually("everything has arrived", || {
        let now = status(&mut client);
        (now["state"] == "ok" && now["error"].is_null()).then_some(())
    });
    client.leave();
    drop(client);
    let raw: Vec<String> = received
        .lock()
        .expect("no panic")
        .iter()
        .map(|record| record["raw_data"].as_str().expect("text").to_owned())
        .collect();
    let written = lines(&folder);
    assert_eq!(raw, written);
    let has = |event: &str| written.iter().any(|line| line.contains(&format!("\"event\":\"{event}\"")));
    assert!(has("export_failing") && has("export_works"), "{written:?}");
}
