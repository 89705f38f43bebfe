//! What one client may use at the same time, and what it cannot take from others.

use std::{path::Path, sync::Arc, time::Duration};

use nonet_base::clock::Clock;
use nonet_meta::{self as meta, MetaAnswer};
use nonet_state::session::Caller;
use serde_json::{Value, json};
use tokio::{sync::mpsc, task::JoinHandle};

use crate::{
    inside::{Inside, eventually},
    setup::{self, Setup, json_of, logged, text_of},
    web::{WebClient, http},
};

fn tools() -> Value {
    json!([
        { "name": "fast", "on": { "text": "done" } },
        { "name": "late", "on": { "delay_ms": 1_500, "text": "done" } },
        { "name": "short", "on": { "delay_ms": 20, "text": "done" } },
        { "name": "hang", "on": { "hang": true } },
        { "name": "rows", "on": { "json_rows": 5_000 } },
    ])
}

/// Opens a gateway with one server. Returns it with the log of the calls that reached the server.
async fn shop(gateway: &str, keys: &str, more: &str) -> (Inside, std::path::PathBuf) {
    let setup = Setup::new().gateway(gateway).toml(more);
    let log = setup.path("calls");
    let script = json!({ "tools": tools(), "call_log": log });
    (setup.server_with("shop", script, keys).open().await, log)
}

/// Returns how many calls reached the server, and how many of them were cancelled.
fn sent(log: &Path) -> (usize, usize) {
    let lines = logged(log);
    let cancelled = lines.iter().filter(|line| line.get("cancelled").is_some()).count();
    (lines.len() - cancelled, cancelled)
}

/// Returns another client: a caller with its own session.
fn another(inside: &Inside) -> Caller {
    let caller = inside.gateway.sessions.caller(inside.gateway.sessions.open(None), "other");
    Caller { lasting: true, ..caller }
}

/// Begins a call without waiting for it.
fn begin(inside: &Inside, caller: &Caller, name: &str) -> JoinHandle<Value> {
    let (gateway, caller) = (inside.gateway.clone(), caller.clone());
    let arguments = json!({ "name": name }).as_object().cloned().expect("an object");
    tokio::spawn(async move {
        match meta::call(&gateway, &caller, "execute_tool", arguments).await {
            MetaAnswer::Result(result) => result.into_tree().await,
            other => panic!("{other:?}"),
        }
    })
}

fn launch(name: &str) -> Value {
    json!({ "name": name, "background": true })
}

#[tokio::test]
async fn jobs_of_others_never_end_a_call_that_was_sent() {
    let quotas = "[quotas]\ncalls = 1";
    let (inside, log) = shop("soft_deadline = '200ms'", "", quotas).await;
    let first = inside.answer("execute_tool", launch("shop.hang")).await;
    assert_eq!(first["state"], "running", "{first}");
    let refused = inside.fault("execute_tool", launch("shop.hang")).await;
    assert_eq!(
        (&refused["code"], &refused["retryable"]),
        (&json!("rate_limited"), &json!(true)),
        "{refused}"
    );
    assert!(refused["retry_after_ms"].is_u64(), "{refused}");
    assert_eq!(sent(&log), (1, 0), "it was refused before anything was sent");
    // A call past the deadline continues as a task, even though this client's table is full.
    let handle = inside.answer("execute_tool", json!({ "name": "shop.late" })).await;
    assert_eq!(handle["state"], "running", "{handle}");
    eventually("it ends", async || {
        let task = json!({ "task_id": handle["task_id"] });
        let task = json_of(&inside.execute("gateway.background_run", task).await);
        (task["state"] == "completed").then_some(())
    })
    .await;
    assert_eq!(sent(&log), (2, 0), "it was not cancelled");
    // Another client has its own quota.
    let other = json_of(&inside.call_as(&another(&inside), "execute_tool", launch("shop.hang")).await);
    assert_eq!(other["state"], "running", "{other}");
    // The refusal names what can be ended.
    let list = inside
        .answer(
            refused["next_step"]["tool"].as_str().expect("a tool"),
            refused["next_step"]["arguments"].clone(),
        )
        .await;
    assert_eq!(list["tasks"][1]["task_id"], first["task_id"], "{list}");
    inside.execute("gateway.background_run", json!({ "task_id": first["task_id"], "cancel": true })).await;
    let again = inside.answer("execute_tool", launch("shop.hang")).await;
    assert_eq!(again["state"], "running", "{again}");
}

#[tokio::test]
async fn a_client_with_too_many_calls_in_flight_is_refused_and_others_are_not() {
    let (inside, log) = shop("", "", "[quotas]\ncalls = 2").await;
    let hanging = [begin(&inside, &inside.caller, "shop.hang"), begin(&inside, &inside.caller, "shop.hang")];
    eventually("both are sent", async || (sent(&log).0 == 2).then_some(())).await;
    for (tool, arguments) in [
        ("execute_tool", json!({ "name": "shop.fast" })),
        ("run_parallel", json!({ "actions": [{ "name": "shop.fast" }] })),
    ] {
        let refused = inside.fault(tool, arguments).await;
        assert_eq!(refused["code"], "rate_limited", "{refused}");
        assert!(refused["message"].as_str().is_some_and(|text| text.contains("quotas.calls")), "{refused}");
    }
    assert_eq!(sent(&log), (2, 0));
    // There is still room for calls that manage calls and tasks.
    assert!(inside.answer("execute_tool", json!({ "name": "gateway.status" })).await["servers"].is_array());
    let result = inside.call_as(&another(&inside), "execute_tool", json!({ "name": "shop.fast" })).await;
    assert_eq!(text_of(&result), "done");
    for one in hanging {
        one.abort();
    }
    eventually("there is room again", async || {
        let result = inside.execute("shop.fast", json!({})).await;
        (result["isError"] != true).then_some(())
    })
    .await;
}

#[tokio::test]
async fn clients_take_turns_at_a_server() {
    let (inside, log) = shop("", "max_concurrency = 1", "").await;
    let (one, other) = (inside.caller.clone(), another(&inside));
    let (done, mut order) = mpsc::unbounded_channel();
    let wait = |who: &'static str, call: JoinHandle<Value>| {
        let done = done.clone();
        tokio::spawn(async move {
            let result = call.await.expect("no panic");
            assert_eq!(text_of(&result), "done");
            done.send(who).expect("the test waits");
        })
    };
    wait("first", begin(&inside, &one, "shop.late"));
    eventually("the first call is sent", async || (sent(&log).0 == 1).then_some(())).await;
    for _ in 0..30 {
        wait("one", begin(&inside, &one, "shop.short"));
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    wait("other", begin(&inside, &other, "shop.short"));
    let mut all = Vec::new();
    for _ in 0..32 {
        all.push(order.recv().await.expect("an end"));
    }
    let place = all.iter().position(|who| *who == "other").expect("it ended");
    assert!(place <= 4, "it waited for all of the other client: {all:?}");
}

/// The reference in the note at the end of a shortened result, and the note.
fn note(result: &Value) -> Value {
    let last = result["content"].as_array().and_then(|blocks| blocks.last()).expect("a block");
    json_of(&json!({ "content": [last] }))
}

#[tokio::test]
async fn kept_results_of_one_client_do_not_push_out_those_of_another() {
    // Each has about 300 kB.
    let (inside, _) = shop("keep_results_bytes = 4000000", "", "").await;
    let mine = note(&inside.execute("shop.rows", json!({})).await)["ref"].clone();
    let other = another(&inside);
    let mut theirs = Vec::new();
    for _ in 0..6 {
        let result = inside.call_as(&other, "execute_tool", json!({ "name": "shop.rows" })).await;
        theirs.push(note(&result)["ref"].clone());
    }
    let fetch =
        async |reference: &Value| inside.execute("gateway.fetch_result", json!({ "ref": reference })).await;
    assert_eq!(json_of(&fetch(&mine).await)["total"], 5_000);
    // Without a profile, both belong to the same user.
    assert_eq!(json_of(&fetch(&theirs[5]).await)["total"], 5_000);
    assert_eq!(fetch(&theirs[0]).await["isError"], true);
}

#[tokio::test]
async fn what_the_disk_does_not_take_is_kept_in_memory_and_told() {
    let setup = Setup::new().gateway("soft_deadline = '200ms'");
    let state = setup.path("state");
    let script = json!({ "tools": tools() });
    let inside = setup.server("shop", script).open_with_clock(&Clock::default(), &state).await;
    let lasting = note(&inside.execute("shop.rows", json!({})).await);
    assert_eq!(lasting["lasts"], Value::Null, "{lasting}");
    // Simulates a full disk: no entry can be written or read.
    let file = rusqlite::Connection::open(state.join("kept.db")).expect("it is there");
    file.execute_batch(
        "CREATE TRIGGER full BEFORE INSERT ON chunks BEGIN SELECT RAISE(ABORT, 'full'); END;
        CREATE TRIGGER full_rows BEFORE INSERT ON records BEGIN SELECT RAISE(ABORT, 'full'); END",
    )
    .expect("the test can write");
    let passing = note(&inside.execute("shop.rows", json!({})).await);
    assert!(passing["lasts"].as_str().is_some_and(|lasts| lasts.contains("memory")), "{passing}");
    let fetch =
        async |note: &Value| inside.execute("gateway.fetch_result", json!({ "ref": note["ref"] })).await;
    for kept in [&lasting, &passing] {
        assert_eq!(json_of(&fetch(kept).await)["total"], 5_000);
    }
    let task = inside.answer("execute_tool", json!({ "name": "shop.late" })).await;
    assert!(task["message"].as_str().is_some_and(|text| text.contains("memory")), "{task}");
    let wait = json!({ "task_id": task["task_id"], "wait": true });
    let ended = eventually("it ends", async || {
        let result = inside.execute("gateway.background_run", wait.clone()).await;
        (text_of(&result) == "done").then_some(result)
    })
    .await;
    assert_ne!(ended["isError"], true);
    // There is room again.
    file.execute_batch("DROP TRIGGER full; DROP TRIGGER full_rows").expect("the test can write");
    let lasting = note(&inside.execute("shop.rows", json!({})).await);
    assert_eq!(lasting["lasts"], Value::Null, "{lasting}");
    assert_eq!(json_of(&fetch(&passing).await)["total"], 5_000);
}

#[tokio::test]
async fn a_state_folder_that_cannot_be_used_is_told() {
    let setup = Setup::new();
    let state = setup.path("state");
    std::fs::write(&state, "not a folder").expect("it can be written");
    let script = json!({ "tools": tools() });
    let inside = setup.server("shop", script).open_with_clock(&Clock::default(), &state).await;
    let passing = note(&inside.execute("shop.rows", json!({})).await);
    assert!(passing["lasts"].is_string(), "{passing}");
    let page = inside.execute("gateway.fetch_result", json!({ "ref": passing["ref"] })).await;
    assert_eq!(json_of(&page)["total"], 5_000);
}

#[tokio::test]
async fn a_clock_that_jumps_two_days_deletes_nothing() {
    let clock = Clock::default();
    let setup = Setup::new();
    let state = setup.path("state");
    let inside = setup.server("shop", json!({ "tools": tools() })).open_with_clock(&clock, &state).await;
    let first = note(&inside.execute("shop.rows", json!({})).await)["ref"].clone();
    clock.advance(Duration::from_secs(2 * 24 * 3_600));
    for _ in 0..3 {
        inside.execute("shop.rows", json!({})).await;
    }
    let page = inside.execute("gateway.fetch_result", json!({ "ref": first })).await;
    assert_eq!(json_of(&page)["total"], 5_000, "{page}");
}

#[cfg(unix)]
#[test]
fn whoever_has_a_handle_is_told_of_it_after_a_kill() {
    use nix::{
        sys::signal::{Signal, kill},
        unistd::Pid,
    };
    let mut client = Setup::new().server("shop", json!({ "tools": tools() })).start_program();
    for _ in 0..4 {
        client.until_ready("shop");
        let task = client.answer("execute_tool", launch("shop.hang"))["task_id"].clone();
        kill(Pid::from_raw(i32::try_from(client.pid()).expect("a process id")), Signal::SIGKILL)
            .expect("it is there");
        client = client.restart();
        client.initialize("2025-06-18", json!({}));
        let lost = json_of(&client.execute("gateway.background_run", json!({ "task_id": task })));
        assert_eq!(lost["state"], "lost", "{lost}");
    }
}

/// Concurrent filters that need more memory than there is.
#[cfg(target_os = "linux")]
#[test]
fn filters_wait_for_their_turn_and_have_an_end() {
    let mut client = Setup::new().server("shop", json!({ "tools": tools() })).start_program();
    client.until_ready("shop");
    let kept = note(&client.execute("shop.rows", json!({})))["ref"].clone();
    let greedy = "[range(20) | \"x\" * 100000000] | length";
    let pid = client.pid();
    let params = json!({ "ref": kept, "select": greedy });
    let calls: Vec<i64> = (0..6)
        .map(|_| {
            let arguments = json!({ "name": "gateway.fetch_result", "params": params });
            client.begin_call("execute_tool", arguments)
        })
        .collect();
    let (mut most, mut memory) = (0, 0);
    for call in calls {
        while !client.has_answer(call) {
            let filters = filters_of(pid);
            most = most.max(filters.len());
            let of_them = filters.iter().filter_map(|pid| memory_of(*pid)).max().unwrap_or_default();
            memory = memory.max(of_them);
        }
        let fault = json_of(&client.finish(call)["result"])["error"].take();
        assert!(fault["message"].as_str().is_some_and(|text| text.contains("memory")), "{fault}");
    }
    assert!((1..=2).contains(&most), "{most} filters at once");
    assert!(memory <= 600 << 20, "{memory} bytes");
    assert!(setup::memory(pid, "VmHWM") < 400 << 20);
    let page = client.execute("gateway.fetch_result", json!({ "ref": kept, "select": ".[1:3]" }));
    assert_eq!(json_of(&page)["total"], 2, "{page}");
}

/// Returns the processes in which a gateway runs filters.
#[cfg(target_os = "linux")]
fn filters_of(gateway: u32) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").expect("readable").flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let read = |what: &str| std::fs::read_to_string(format!("/proc/{pid}/{what}")).unwrap_or_default();
        let parent =
            read("stat").rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok());
        parent == Some(gateway) && read("cmdline").contains("__select")
    })
    .collect()
}

#[cfg(target_os = "linux")]
fn memory_of(pid: u32) -> Option<usize> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<usize>().ok()? * 1024)
}

const MINE: &str = "mine-0123456789abcdef";
const OTHER: &str = "other-0123456789abcdef";

#[test]
fn all_sessions_of_a_token_share_its_quotas() {
    let setup = Setup::new();
    let log = setup.path("calls");
    let site = setup
        .server("shop", json!({ "tools": tools(), "call_log": log }))
        .gateway(&format!("tokens = ['{MINE}', '{OTHER}']"))
        .toml("[quotas]\ncalls = 1\nsessions = 2")
        .serve();
    let open = |token: &str| WebClient::with_token(&site.address, "/mcp", token);
    let (mut one, mut two) = (open(MINE), open(MINE));
    one.until_ready("shop");
    two.request("ping", json!({}));
    // A third session of the token is refused; one of another token is not.
    let initialize = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}"#;
    let authorization = format!("Bearer {MINE}");
    let headers = [("authorization", authorization.as_str())];
    let full = http(&site.address, "POST", "/mcp", &headers, initialize);
    assert_eq!((full.status, full.headers.contains_key("retry-after")), (503, true), "{full:?}");
    let refused = full.answer();
    assert_eq!(refused["error"]["data"]["error"]["code"], "rate_limited", "{refused}");
    let mut other = open(OTHER);
    std::thread::scope(|scope| {
        let hanging = Arc::new(open_as(&two));
        let held = hanging.clone();
        scope.spawn(move || {
            let params = json!({ "name": "shop__late", "arguments": {} });
            held.post(&json!({ "jsonrpc": "2.0", "id": 99, "method": "tools/call", "params": params }))
        });
        setup::eventually("it is sent", || (sent(&log).0 == 1).then_some(()));
        let fault = one.answer("shop__fast", json!({}));
        assert_eq!(fault["error"]["code"], "rate_limited", "{fault}");
        assert_eq!(text_of(&other.call("shop__fast", json!({}))), "done");
    });
    assert_eq!(text_of(&one.call("shop__fast", json!({}))), "done");
    // An ended session makes room.
    let headers = [("authorization", authorization.as_str()), ("mcp-session-id", two.session.as_str())];
    http(&site.address, "DELETE", "/mcp", &headers, "");
    two = setup::eventually("there is room", || {
        let headers = [("authorization", authorization.as_str())];
        let reply = http(&site.address, "POST", "/mcp", &headers, initialize);
        reply.answer().get("result").is_some().then(|| open_as(&two))
    });
    drop(two);
}

/// Returns a client with the same session.
fn open_as(client: &WebClient) -> WebClient {
    WebClient::resumed(&client.address, &client.path, &client.session, &client.authorization)
}
