//! Concurrent calls of one client on stdio: cancelled, polled, with ids of any kind, abandoned.

use std::{cell::Cell, rc::Rc};

use serde_json::{Value, json};

use crate::{
    client::Client,
    setup::{Setup, eventually, json_of, logged},
};

/// Sends a call with an id of any kind.
fn send_call(client: &mut Client, id: &Value, tool: &str, arguments: &Value) {
    let params = json!({ "name": tool, "arguments": arguments });
    client.send(&json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params }));
}

#[test]
fn a_cancelled_call_gets_no_answer_and_the_calls_beside_it_get_theirs() {
    let tools = json!([{ "name": "wait", "on": { "delay_ms": 300 } }, { "name": "echo" }]);
    let mut client = Setup::new().server_with("shop", json!({ "tools": tools }), "parallel = true").start();
    client.until_ready("shop");
    let calls: Vec<i64> = (0..16).map(|n| client.begin_call("shop__wait", json!({ "n": n }))).collect();
    for id in calls.iter().step_by(2) {
        let params = json!({ "requestId": id });
        client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params }));
    }
    for (n, id) in calls.iter().enumerate().skip(1).step_by(2) {
        assert_eq!(json_of(&client.result(*id)), json!({ "n": n }));
    }
    assert_eq!(json_of(&client.call("shop__wait", json!({ "n": 16 }))), json!({ "n": 16 }));
    assert!(!calls.iter().step_by(2).any(|id| client.has_answer(*id)), "a cancelled call has an answer");
    // An id whose call was cancelled is free again.
    send_call(&mut client, &json!(calls[0]), "shop__echo", &json!({ "again": true }));
    assert_eq!(json_of(&client.result(calls[0])), json!({ "again": true }));
}

#[test]
fn of_two_requests_with_one_id_one_is_answered() {
    let tools = json!([{ "name": "wait", "on": { "delay_ms": 200 } }]);
    let mut client = Setup::new().server_with("shop", json!({ "tools": tools }), "parallel = true").start();
    client.until_ready("shop");
    for id in [json!(7_000), json!(7_001)] {
        send_call(&mut client, &id, "shop__wait", &json!({}));
    }
    send_call(&mut client, &json!(7_000), "shop__wait", &json!({}));
    // A call of another kind, which ends first.
    client.send(&json!({ "jsonrpc": "2.0", "id": 7_001, "method": "ping" }));
    assert_eq!(client.finish(7_001)["result"], json!({}), "the ping came first");
    client.result(7_000);
    client.call("shop__wait", json!({}));
    assert!(!client.has_answer(7_000) && !client.has_answer(7_001), "a second answer");
}

#[test]
fn calls_go_on_while_one_of_them_asks_the_user() {
    let form = json!({ "type": "object", "properties": { "city": { "type": "string" } } });
    let tools = json!([
        { "name": "ask", "on": { "elicit": { "message": "Which city?", "requestedSchema": form } } },
        { "name": "echo" },
    ]);
    let mut client = Setup::new()
        .server_with("shop", json!({ "tools": tools }), "parallel = true")
        .start_with(json!({ "elicitation": { "form": {} } }));
    client.until_ready("shop");
    let asked = Rc::new(Cell::new(false));
    let is_asked = asked.clone();
    client.answer_questions(move |_| {
        is_asked.set(true);
        Value::Null
    });
    let asking = client.begin_call("shop__ask", json!({}));
    eventually("the user is asked", || {
        assert!(!client.has_answer(asking));
        asked.get().then_some(())
    });
    let calls: Vec<i64> = (0..16).map(|n| client.begin_call("shop__echo", json!({ "n": n }))).collect();
    for (n, id) in calls.into_iter().enumerate() {
        assert_eq!(json_of(&client.result(id)), json!({ "n": n }));
    }
    assert!(!client.has_answer(asking));
    client.answer_the_rest(json!({ "action": "accept", "content": { "city": "Bonn" } }));
    assert_eq!(json_of(&client.result(asking))["content"], json!({ "city": "Bonn" }));
}

#[test]
fn a_client_that_closes_its_end_still_gets_what_ends_soon_and_the_rest_is_given_up() {
    let setup = Setup::new();
    let log = setup.path("calls");
    let tools =
        json!([{ "name": "wait", "on": { "delay_ms": 700 } }, { "name": "hang", "on": { "hang": true } }]);
    let script = json!({ "tools": tools, "call_log": log });
    let mut client = setup.server_with("shop", script, "parallel = true").start_program();
    client.until_ready("shop");
    let waiting = client.begin_call("shop__wait", json!({ "n": 1 }));
    let hanging = client.begin_call("shop__hang", json!({}));
    eventually("both have arrived", || (logged(&log).len() == 2).then_some(()));
    client.leave();
    assert_eq!(json_of(&client.result(waiting)), json!({ "n": 1 }));
    assert!(client.ended().success());
    assert!(!client.has_answer(hanging), "the call had not ended");
}
