//! `[gateway] notify`: notices sent to people.

use std::{
    fs,
    path::Path,
    sync::{Arc, Mutex},
    thread,
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode},
    routing::post,
};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::{
    client::Client,
    setup::{Setup, eventually, json_of, text_of},
};

/// An address that accepts notices.
#[derive(Clone)]
struct Webhook(Arc<Inner>);

struct Inner {
    address: String,
    /// The status for each request; 0 never answers. The last one repeats.
    statuses: Vec<u16>,
    seen: Mutex<Vec<(String, Value)>>,
}

impl Webhook {
    fn start(statuses: &[u16]) -> Self {
        let statuses = statuses.to_vec();
        let (sender, started) = std::sync::mpsc::channel();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
                let address = listener.local_addr().expect("it is bound").to_string();
                let webhook = Self(Arc::new(Inner { address, statuses, seen: Mutex::default() }));
                sender.send(webhook.clone()).expect("somebody waits");
                let router = Router::new().route("/hook-of-the-user", post(take)).with_state(webhook);
                axum::serve(listener, router).await.expect("it serves");
            });
        });
        started.recv().expect("it starts")
    }

    fn url(&self) -> String {
        format!("http://{}/hook-of-the-user", self.0.address)
    }

    /// Returns the notices of all requests, each with its `x-key` header.
    fn seen(&self) -> Vec<(String, Value)> {
        self.0.seen.lock().expect("no test panics with it").clone()
    }

    fn until(&self, count: usize) -> Vec<(String, Value)> {
        eventually(&format!("{count} requests"), || Some(self.seen()).filter(|seen| seen.len() >= count))
    }
}

async fn take(State(webhook): State<Webhook>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let at = {
        let mut seen = webhook.0.seen.lock().expect("no test panics with it");
        let key = headers.get("x-key").map(|value| value.to_str().expect("text").to_string());
        seen.push((key.unwrap_or_default(), serde_json::from_slice(&body).expect("JSON")));
        seen.len() - 1
    };
    match webhook.0.statuses.get(at).or(webhook.0.statuses.last()) {
        Some(0) => std::future::pending().await,
        Some(status) => StatusCode::from_u16(*status).expect("a status"),
        None => StatusCode::NO_CONTENT,
    }
}

fn shop(notify: &str) -> Client {
    let tools = json!([
        { "name": "slow", "on": { "delay_ms": 2_500, "text": "done" } },
        { "name": "fast", "on": { "text": "done" } },
    ]);
    let setup = Setup::new().server("shop", json!({ "tools": tools }));
    let mut client = setup.gateway(&format!("notify = {notify}")).start_program();
    client.until_ready("shop");
    client
}

/// Launches a background call that nobody waits for; returns its handle.
fn launch(client: &mut Client) -> Value {
    let arguments = json!({ "name": "shop.slow", "background": true });
    let handle = json_of(&client.call("execute_tool", arguments));
    assert_eq!(handle["state"], "running", "{handle}");
    handle["task_id"].clone()
}

#[test]
fn the_end_of_a_task_is_posted() {
    let webhook = Webhook::start(&[]);
    let mut client =
        shop(&format!("{{ webhook = '{}', headers = {{ X-Key = 'key-of-the-user' }} }}", webhook.url()));
    let task = launch(&mut client);
    let (key, notice) = webhook.until(1).remove(0);
    assert_eq!(key, "key-of-the-user");
    assert_eq!((&notice["kind"], &notice["task_id"]), (&json!("task_ended"), &task), "{notice}");
    assert_eq!((&notice["state"], &notice["tool"]), (&json!("completed"), &json!("shop.slow")), "{notice}");
    // The model is notified as well.
    assert_eq!(client.until_notice("task_ended")["task_id"], task);
    // A task that somebody waits for causes no notice.
    let task = launch(&mut client);
    let waited = client.execute("gateway.background_run", json!({ "task_id": task, "wait": true }));
    assert_eq!(text_of(&waited), "done");
    assert_eq!(webhook.seen().len(), 1);
    assert!(!client.stderr().contains("of-the-user"), "neither the address nor the key is in the log");
}

#[test]
fn a_notice_is_tried_three_times() {
    let webhook = Webhook::start(&[500, 302, 500, 200]);
    let mut client = shop(&format!("{{ webhook = '{}' }}", webhook.url()));
    let first = launch(&mut client);
    let tries = webhook.until(3);
    assert!(tries.iter().all(|(_, notice)| notice["task_id"] == first), "{tries:?}");
    eventually("the log says that it was given up", || {
        client.stderr().contains("not delivered: the webhook answered HTTP 500").then_some(())
    });
    let second = launch(&mut client);
    assert_eq!(webhook.until(4)[3].1["task_id"], second, "the next notice is the next");
    assert!(!client.stderr().contains("of-the-user"), "the address is not in the log");
}

#[test]
fn a_webhook_that_hangs_costs_nothing_else() {
    let webhook = Webhook::start(&[0]);
    let mut client = shop(&format!("{{ webhook = '{}' }}", webhook.url()));
    let task = launch(&mut client);
    webhook.until(1);
    // Calls continue, and the model is notified.
    assert_eq!(text_of(&client.execute("shop.fast", json!({}))), "done");
    assert_eq!(client.until_notice("task_ended")["task_id"], task);
    // Nonet ends without waiting for the delivery.
    client.leave();
    assert!(client.ended().success());
    assert!(client.stderr().contains("1 notices for people were not delivered"), "{}", client.stderr());
}

#[cfg(unix)]
fn script(folder: &Path, text: &str) -> String {
    use std::os::unix::fs::PermissionsExt;
    let file = folder.join("tell.sh");
    fs::write(&file, format!("#!/bin/sh\n{text}\n")).expect("it can be written");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("it can be set");
    file.display().to_string()
}

#[cfg(unix)]
#[test]
fn a_command_gets_the_notice_on_stdin() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = script(folder.path(), "cat > \"$1\"; echo \"token=$SOME_TOKEN\" >> \"$1\"");
    let out = folder.path().join("out");
    let setup =
        Setup::new().server("shop", json!({ "tools": [{ "name": "slow", "on": { "delay_ms": 2_500 } }] }));
    let setup = setup.gateway(&format!("notify = {{ command = ['{program}', '{}'] }}", out.display()));
    let mut client = setup.run_with(&[], &[("SOME_TOKEN", "s3cr3t")]);
    client.initialize("2025-06-18", json!({}));
    client.until_ready("shop");
    let task = launch(&mut client);
    let told = eventually("the program has run", || {
        fs::read_to_string(&out).ok().filter(|text| text.contains("token="))
    });
    let (notice, rest) = told.split_once("token=").expect("both");
    let notice: Value = serde_json::from_str(notice).expect("JSON");
    assert_eq!((&notice["kind"], &notice["task_id"]), (&json!("task_ended"), &task), "{notice}");
    assert_eq!(rest.trim(), "", "a program gets the environment of a server");
}

#[cfg(unix)]
#[test]
fn a_command_that_fails_is_in_the_log() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = script(folder.path(), "echo 'no display' >&2; exit 3");
    let mut client = shop(&format!("{{ command = ['{program}'] }}"));
    launch(&mut client);
    eventually("the log says why", || {
        let log = client.stderr();
        (log.contains("ended with exit code 3") && log.contains("no display")).then_some(())
    });
    // A changed file takes effect at once.
    let webhook = Webhook::start(&[]);
    let file = client.folder.path().join("servers.toml");
    let text = fs::read_to_string(&file).expect("it is there");
    let changed =
        text.replace(&format!("command = ['{program}']"), &format!("webhook = '{}'", webhook.url()));
    fs::write(&file, changed).expect("it can be written");
    eventually("the file is read", || client.stderr().contains("configuration reloaded").then_some(()));
    let task = launch(&mut client);
    assert_eq!(webhook.until(1)[0].1["task_id"], task);
}

#[test]
fn a_sign_in_that_is_needed_is_posted_and_a_command_keeps_it() {
    let webhook = Webhook::start(&[]);
    let service = crate::sign_in_service::Service::start(crate::sign_in_service::Manner::default());
    let setup = Setup::new().gateway(&format!("notify = {{ webhook = '{}' }}", webhook.url()));
    let setup = setup.server_of("docs", &format!("url = '{}'", service.url()));
    setup.write();
    // The user of a command is at the terminal, so no notice is sent.
    let output = crate::client::command(setup.folder.path()).args(["check"]).output().expect("it runs");
    assert!(String::from_utf8_lossy(&output.stdout).contains("docs"), "{output:?}");
    assert_eq!(webhook.seen(), []);
    let _client = setup.start();
    let (_, notice) = webhook.until(1).remove(0);
    assert_eq!((&notice["kind"], &notice["server"]), (&json!("sign_in_needed"), &json!("docs")), "{notice}");
    assert!(notice["command"].as_str().is_some_and(|command| command.contains("login docs")), "{notice}");
}
