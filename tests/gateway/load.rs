//! Many concurrent calls: each answer arrives once, at the right caller.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use serde_json::{Value, json};

use crate::{
    setup::{Setup, json_of, notices_of},
    web::{WebClient, modern},
};

const CALLS: usize = 10_000;
const AT_ONCE: usize = 64;

/// Returns three servers that echo their calls; one of them fails every tenth.
fn servers() -> Setup {
    let echo = json!([{ "name": "echo" }]);
    let shaky = json!([{ "name": "echo", "on": { "fail_every": 10 } }]);
    Setup::new()
        .server("one", json!({ "tools": echo }))
        .server("two", json!({ "tools": echo }))
        .server("shaky", json!({ "tools": shaky }))
}

fn call(n: usize) -> Value {
    let server = ["one", "two", "shaky"][n % 3];
    json!({ "name": "execute_tool", "arguments": { "name": format!("{server}.echo"), "params": { "n": n } } })
}

/// Checks one answer; returns whether it was a failure.
fn check(n: usize, result: &Value) -> bool {
    if result["isError"] == true {
        assert_eq!(n % 3, 2, "only one server fails: {result}");
        assert_eq!(result["content"][0]["text"], format!("failed: {{\"n\":{n}}}"), "{n}");
        return true;
    }
    assert_eq!(json_of(result), json!({ "n": n }));
    false
}

#[test]
fn ten_thousand_calls_over_stdio_are_answered_each_with_its_own_number() {
    let mut client = servers().start_program();
    for server in ["one", "two", "shaky"] {
        client.until_ready(server);
    }
    let (mut begun, mut failures) = (0, 0);
    let mut open: std::collections::VecDeque<(i64, usize)> = std::collections::VecDeque::new();
    while begun < CALLS || !open.is_empty() {
        while begun < CALLS && open.len() < AT_ONCE {
            open.push_back((client.begin("tools/call", call(begun)), begun));
            begun += 1;
        }
        if let Some((id, n)) = open.pop_front() {
            failures += usize::from(check(n, &client.result(id)));
        }
    }
    assert_eq!(failures, CALLS / 3 / 10, "a tenth of the third server's calls");
    let status = json_of(&client.execute("gateway.status", json!({})));
    assert_eq!(status["outcomes"]["tool_error"], failures, "{status}");
}

#[test]
fn ten_thousand_calls_over_http_are_answered_each_with_its_own_number() {
    let site = Arc::new(servers().serve_program());
    let mut first = WebClient::new(&site.address, "/mcp");
    for server in ["one", "two", "shaky"] {
        first.until_ready(server);
    }
    let next = Arc::new(AtomicUsize::new(0));
    let failures = Arc::new(AtomicUsize::new(0));
    let workers: Vec<_> = (0..AT_ONCE)
        .map(|_| {
            let (site, next, failures) = (site.clone(), next.clone(), failures.clone());
            thread::spawn(move || {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= CALLS {
                        return;
                    }
                    let failed = check(n, &modern(&site.address, "tools/call", call(n)).result());
                    failures.fetch_add(usize::from(failed), Ordering::Relaxed);
                }
            })
        })
        .collect();
    for worker in workers {
        worker.join().expect("no answer is lost or crossed");
    }
    assert_eq!(failures.load(Ordering::Relaxed), CALLS / 3 / 10);
}

#[tokio::test]
async fn a_thousand_tasks_run_at_once_and_each_is_known() {
    const TASKS: usize = 1_000;
    let tools = json!([{ "name": "wait", "on": { "delay_ms": 14_000 } }]);
    let setup = Setup::new()
        .server_with("shop", json!({ "tools": tools }), "max_concurrency = 1000")
        .toml("[quotas]\ncalls = 1000\njobs = 1000");
    let inside = Arc::new(setup.open().await);
    let launches = (0..TASKS).map(|n| {
        let inside = inside.clone();
        let call = json!({ "name": "shop.wait", "params": { "n": n }, "background": true });
        tokio::spawn(async move { inside.answer("execute_tool", call).await })
    });
    let mut ids = HashSet::new();
    for launch in launches.collect::<Vec<_>>() {
        let handle = launch.await.expect("it is launched");
        assert_eq!(handle["state"], "running", "{handle}");
        ids.insert(handle["task_id"].as_str().expect("a handle").to_string());
    }
    assert_eq!(ids.len(), TASKS);
    assert_eq!(inside.gateway.keeping.jobs.running(), TASKS);
    let (mut numbers, mut told, mut delivered) = (HashSet::new(), 0, 0);
    let mut count = |answer: &Value| {
        for notice in notices_of(answer) {
            match notice["kind"].as_str() {
                Some("task_ended") => told += 1,
                Some("notices_lost") => told += notice["count"].as_u64().expect("a count"),
                other => panic!("{other:?}: {notice}"),
            }
        }
    };
    for id in &ids {
        let wait = json!({ "task_id": id, "wait": true });
        let result = inside.execute("gateway.background_run", wait).await;
        numbers.insert(json_of(&result)["n"].as_u64().expect("its own number"));
        delivered += 1;
        count(&result);
    }
    assert_eq!(numbers.len(), TASKS);
    for _ in 0..50 {
        count(&inside.call("list_categories", json!({})).await);
    }
    // No task is reported twice, and none whose result the session waited for.
    assert!(told < delivered, "{told} of {delivered}");
}
