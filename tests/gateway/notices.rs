//! Notices that arrive although their client or the gateway ends first.

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use crate::{
    client::Client,
    setup::{Setup, eventually, notices_of},
};

fn shop() -> Setup {
    let tools = json!([{ "name": "slow", "on": { "delay_ms": 2_500, "text": "done" } }, { "name": "echo" }]);
    Setup::new().server("shop", json!({ "tools": tools }))
}

/// Returns the notices in the store.
fn stored(client: &Client) -> Vec<Value> {
    let file = client.folder.path().join(".local/state/nonet/records.db");
    let Ok(records) = rusqlite::Connection::open(file) else { return Vec::new() };
    let Ok(mut notices) = records.prepare("SELECT body FROM records WHERE kind = 'notice'") else {
        return Vec::new();
    };
    let bodies = notices.query_map([], |row| row.get::<_, String>(0)).expect("readable");
    bodies.map(|body| serde_json::from_str(&body.expect("text")).expect("JSON")).collect()
}

/// Launches a task and waits until its end is in the store.
fn task_that_ended(client: &mut Client) -> Value {
    client.until_ready("shop");
    let launched = client.answer("execute_tool", json!({ "name": "shop.slow", "background": true }));
    eventually("the end of the task is in the store", || (!stored(client).is_empty()).then_some(()));
    launched["task_id"].clone()
}

/// Returns the notices in the next answer, by task id.
fn told(client: &mut Client) -> Vec<Value> {
    let notices = notices_of(&client.call("list_categories", json!({})));
    notices
        .into_iter()
        .filter(|notice| notice["kind"] == "task_ended")
        .map(|mut n| n["task_id"].take())
        .collect()
}

#[test]
fn what_a_killed_gateway_did_not_tell_the_next_one_tells_once() {
    let mut client = shop().start_program();
    let task = task_that_ended(&mut client);
    let pid = i32::try_from(client.pid()).expect("a process id");
    kill(Pid::from_raw(pid), Signal::SIGKILL).expect("it is there");

    let mut client = client.restart();
    client.initialize("2025-06-18", json!({}));
    assert_eq!(told(&mut client), [task]);
    assert_eq!(told(&mut client), [Value::Null; 0]);
    assert_eq!(stored(&client), [Value::Null; 0]);
    let mut client = client.restart();
    client.initialize("2025-06-18", json!({}));
    assert_eq!(told(&mut client), [Value::Null; 0]);
}

#[test]
fn what_a_client_was_not_told_another_one_is_once_the_first_has_left() {
    let mut first = shop().start_program();
    let task = task_that_ended(&mut first);
    let mut second = first.beside(&[]);
    second.initialize("2025-06-18", json!({}));
    assert_eq!(told(&mut second), [Value::Null; 0], "the first client is there and will be told");
    first.leave();
    first.ended();
    eventually("the second client is told", || (told(&mut second) == [task.clone()]).then_some(()));
    assert_eq!(stored(&second), [Value::Null; 0]);
}

#[test]
fn what_was_told_is_not_told_again() {
    let mut client = shop().start();
    let task = task_that_ended(&mut client);
    assert_eq!(told(&mut client), [task]);
    assert_eq!(stored(&client), [Value::Null; 0]);
    // A task whose result was read needs no notice.
    let task = task_that_ended(&mut client);
    let result = client.execute("gateway.background_run", json!({ "task_id": task, "wait": true }));
    assert_eq!(notices_of(&result), [Value::Null; 0]);
    eventually("its notice is removed", || stored(&client).is_empty().then_some(()));
}

#[test]
fn clients_of_sessions_get_notices_as_log_messages_too() {
    let mut client = shop().start();
    let task = task_that_ended(&mut client);
    let messages = eventually("a log message", || {
        client.call("list_categories", json!({}));
        let of_task = |message: &&Value| message["params"]["data"]["kind"] == "task_ended";
        let found: Vec<Value> = client.notifications.iter().filter(of_task).cloned().collect();
        (!found.is_empty()).then_some(found)
    });
    assert_eq!(messages[0]["method"], "notifications/message");
    let params = &messages[0]["params"];
    assert_eq!((&params["level"], &params["logger"]), (&json!("notice"), &json!("nonet")));
    assert_eq!((&params["data"]["task_id"], messages.len()), (&task, 1));
}

#[test]
fn a_client_may_follow_its_notices_as_a_resource() {
    const URI: &str = "nonet://gateway/notices";
    let mut client = shop().start();
    assert!(client.request("resources/subscribe", json!({ "uri": URI })).get("result").is_some());
    let task = task_that_ended(&mut client);
    eventually("the resource is updated", || {
        client.request("ping", json!({}));
        let is_update = |message: &&Value| message["method"] == "notifications/resources/updated";
        client
            .notifications
            .iter()
            .any(|message| is_update(&message) && message["params"]["uri"] == URI)
            .then_some(())
    });
    let read = |client: &mut Client| -> Value {
        let answer = client.request("resources/read", json!({ "uri": URI }));
        let text = answer["result"]["contents"][0]["text"].as_str().expect("text").to_owned();
        serde_json::from_str::<Value>(&text).expect("JSON")["notices"].take()
    };
    assert_eq!(read(&mut client)[0]["task_id"], task);
    // Notices that were read are not repeated.
    assert_eq!(read(&mut client), json!([]));
    assert_eq!(told(&mut client), [Value::Null; 0]);
}
