//! What outlives a run: large results and tasks' results, in the store.

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use crate::{
    client::Client,
    setup::{self, Setup, eventually, json_of, text_of},
};

fn warehouse() -> Setup {
    let tools = json!([
        { "name": "rows", "on": { "json_rows": 5_000 } },
        { "name": "slow", "on": { "delay_ms": 2_500, "text": "done" } },
        { "name": "fail", "on": { "delay_ms": 2_500, "error": "out of order" } },
        { "name": "hang", "on": { "hang": true } },
        { "name": "echo" },
    ]);
    Setup::new().server("store", json!({ "tools": tools }))
}

/// Returns the reference in the note at the end of a shortened result.
fn reference(result: &Value) -> Value {
    let last = result["content"].as_array().and_then(|blocks| blocks.last()).expect("a block");
    json_of(&json!({ "content": [last] }))["ref"].clone()
}

fn task(client: &mut Client, params: Value) -> Value {
    client.execute("gateway.background_run", params)
}

fn launch(client: &mut Client, name: &str) -> Value {
    client.answer("execute_tool", json!({ "name": name, "background": true }))["task_id"].clone()
}

#[test]
fn large_results_and_tasks_survive_a_restart() {
    let mut client = warehouse().start_program();
    client.until_ready("store");
    let kept = reference(&client.execute("store.rows", json!({})));
    let (done, failed) = (launch(&mut client, "store.slow"), launch(&mut client, "store.fail"));
    let result = task(&mut client, json!({ "task_id": failed, "wait": true }));
    assert_eq!(text_of(&result), "out of order");
    task(&mut client, json!({ "task_id": done, "wait": true }));

    let mut client = client.restart();
    client.initialize("2025-06-18", json!({}));
    let page = json_of(&client.execute("gateway.fetch_result", json!({ "ref": kept, "offset": 4_999 })));
    assert_eq!(page["rows"][0]["id"], 4_999, "{page}");
    let status = json_of(&task(&mut client, json!({ "task_id": done })));
    assert_eq!(status["state"], "completed", "{status}");
    assert_eq!(text_of(&task(&mut client, json!({ "task_id": done, "wait": true }))), "done");
    let status = json_of(&task(&mut client, json!({ "task_id": failed })));
    assert_eq!((&status["state"], &status["error"]["message"]), (&json!("failed"), &json!("out of order")));
    let list = json_of(&task(&mut client, json!({ "list_tasks": true })));
    assert_eq!(list["total"], 2, "{list}");
    // A task's result can be used in params like any other kept result.
    client.until_ready("store");
    let params = json!({ "text": format!("{{{{ref:{}}}}}", done.as_str().expect("a handle")) });
    assert_eq!(json_of(&client.execute("store.echo", params)), json!({ "text": "done" }));
}

#[test]
fn what_had_ended_when_the_gateway_was_killed_is_there_and_what_had_not_is_told() {
    let mut client = warehouse().start_program();
    client.until_ready("store");
    let kept = reference(&client.execute("store.rows", json!({})));
    let (done, running) = (launch(&mut client, "store.slow"), launch(&mut client, "store.hang"));
    assert_eq!(text_of(&task(&mut client, json!({ "task_id": done, "wait": true }))), "done");
    let pid = i32::try_from(client.pid()).expect("a process id");
    kill(Pid::from_raw(pid), Signal::SIGKILL).expect("it is there");

    let mut client = client.restart();
    client.initialize("2025-06-18", json!({}));
    let page = json_of(&client.execute("gateway.fetch_result", json!({ "ref": kept })));
    assert_eq!(page["total"], 5_000, "{page}");
    assert_eq!(text_of(&task(&mut client, json!({ "task_id": done, "wait": true }))), "done");
    let lost = json_of(&task(&mut client, json!({ "task_id": running, "wait": true })));
    assert_eq!(lost["state"], "lost", "{lost}");
    assert!(lost["message"].is_string(), "{lost}");
}

#[tokio::test]
async fn what_is_kept_has_a_size() {
    let inside = warehouse().gateway("keep_results_bytes = 1000000").open().await;
    // Each has about 300 kB.
    let mut kept = Vec::new();
    for _ in 0..4 {
        kept.push(reference(&inside.execute("store.rows", json!({})).await));
    }
    let fault = inside.fault("gateway.fetch_result", json!({ "ref": kept[0] })).await;
    assert_eq!(fault["code"], "not_found", "{fault}");
    let page = json_of(&inside.execute("gateway.fetch_result", json!({ "ref": kept[3] })).await);
    assert_eq!(page["total"], 5_000);
    let status = json_of(&inside.execute("gateway.status", json!({})).await);
    assert!(status["kept"]["bytes"].as_u64().is_some_and(|bytes| bytes <= 1_000_000), "{status}");
}

#[test]
fn what_is_removed_under_a_running_gateway_is_made_again() {
    let mut client = warehouse().start_program();
    client.until_ready("store");
    let fact =
        |client: &mut Client, text: &str| client.execute("gateway.remember", json!({ "content": text }));
    let lost = reference(&client.execute("store.rows", json!({})));
    fact(&mut client, "It was noon before");
    let state = client.folder.path().join(".local/state/nonet");
    // The gateway may be making a file in it at that moment.
    eventually("the folder is removed", || std::fs::remove_dir_all(&state).ok());
    // Lists may not be kept yet.
    let _ = std::fs::remove_dir_all(client.folder.path().join("cache"));
    let kept = reference(&client.execute("store.rows", json!({})));
    let page = json_of(&client.execute("gateway.fetch_result", json!({ "ref": kept, "offset": 4_999 })));
    assert_eq!(page["rows"][0]["id"], 4_999, "{page}");
    assert_eq!(client.fault("gateway.fetch_result", json!({ "ref": lost }))["code"], "not_found");
    fact(&mut client, "Deploys are on Tuesdays");
    assert!(state.join("kept.db").exists() && state.join("records.db").exists());
    // `nonet reload` finds the gateway again.
    eventually("a place at the desk", || {
        let reload = crate::client::command(client.folder.path()).arg("reload").output().expect("it runs");
        reload.status.success().then_some(())
    });
    // What is written now outlives the gateway.
    let mut client = client.restart();
    client.initialize("2025-06-18", json!({}));
    let page = json_of(&client.execute("gateway.fetch_result", json!({ "ref": kept, "offset": 4_999 })));
    assert_eq!(page["rows"][0]["id"], 4_999, "{page}");
    let facts = client.execute("gateway.recall", json!({ "query": "deploys" })).to_string();
    assert!(facts.contains("Tuesdays"), "{facts}");
}

/// Passing 50 MB of text takes only a few times that memory, which is freed afterwards.
#[cfg(target_os = "linux")]
#[test]
fn a_result_of_fifty_megabytes_takes_less_than_four_times_its_size() {
    const SIZE: usize = 50_000_000;
    let tools = json!([{ "name": "text", "on": { "size": SIZE } }, { "name": "echo" }]);
    let mut client = Setup::new().server("store", json!({ "tools": tools })).start_program();
    client.until_ready("store");
    client.execute("store.echo", json!({}));
    let pid = client.pid();
    let before = setup::memory(pid, "VmRSS");
    let result = client.execute("store.text", json!({}));
    assert!(result.to_string().len() < 100_000);
    let grown = setup::memory(pid, "VmHWM").saturating_sub(before);
    assert!(grown < 4 * SIZE, "{grown} bytes at the most");
    eventually("the memory falls back", || {
        (setup::memory(pid, "VmRSS").saturating_sub(before) < SIZE / 2).then_some(())
    });
    let read = json!({ "ref": reference(&result), "offset": SIZE - 10, "limit": 100 });
    let page = json_of(&client.execute("gateway.fetch_result", read));
    assert_eq!((&page["total"], page["text"].as_str().map(str::len)), (&json!(SIZE), Some(10)));
}
