//! Cancelled calls, and their progress until then.

use serde_json::{Value, json};

use crate::setup::{Setup, eventually, json_of, logged};

#[test]
fn a_call_over_its_limit_is_a_timeout_and_the_server_is_told() {
    let setup = Setup::new();
    let log = setup.path("calls");
    let tools =
        json!([{ "name": "hang", "on": { "hang": true } }, { "name": "count", "on": { "counter": true } }]);
    let mut client = setup.server("shop", json!({ "tools": tools, "call_log": log })).start();
    client.until_ready("shop");
    let before = json_of(&client.execute("shop.count", json!({})));
    let result = client.call("execute_tool", json!({ "name": "shop.hang", "timeout_ms": 200 }));
    assert_eq!(result["isError"], true, "{result}");
    let fault = json_of(&result)["error"].take();
    assert_eq!((&fault["code"], &fault["retryable"]), (&json!("timeout"), &json!(true)), "{fault}");
    eventually("the server is told", || {
        let lines = logged(&log);
        let hanging = lines.iter().find(|line| line["params"]["name"] == "hang")?["id"].clone();
        lines.iter().any(|line| line.get("cancelled") == Some(&hanging)).then_some(())
    });
    let after = json_of(&client.execute("shop.count", json!({})));
    assert_eq!(before["pid"], after["pid"], "the server stayed connected");
}

#[test]
fn the_servers_own_limit_holds_too() {
    let tools = json!([{ "name": "hang", "on": { "hang": true } }]);
    let mut client = Setup::new().server_with("shop", json!({ "tools": tools }), "timeout = '300ms'").start();
    client.until_ready("shop");
    assert_eq!(client.fault("shop.hang", json!({}))["code"], "timeout");
}

#[test]
fn a_clients_cancel_reaches_the_right_call() {
    let setup = Setup::new();
    let log = setup.path("calls");
    let tools =
        json!([{ "name": "hang", "on": { "hang": true } }, { "name": "wait", "on": { "delay_ms": 1_000 } }]);
    let mut client = setup.server("shop", json!({ "tools": tools, "call_log": log })).start();
    client.until_ready("shop");
    let first = client.begin_call("shop__hang", json!({ "n": 1 }));
    let second = client.begin_call("execute_tool", json!({ "name": "shop.hang", "params": { "n": 2 } }));
    let third = client.begin_call("shop__wait", json!({ "n": 3 }));
    eventually("all have arrived", || (logged(&log).len() == 3).then_some(()));
    let params = json!({ "requestId": second, "reason": "changed my mind" });
    client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params }));
    let cancelled = eventually("the server is told", || {
        let lines = logged(&log);
        let id = lines.iter().find_map(|line| line.get("cancelled"))?.clone();
        lines.into_iter().find(|line| line["id"] == id)
    });
    assert_eq!(cancelled["params"]["arguments"], json!({ "n": 2 }));
    assert_eq!(json_of(&client.result(third)), json!({ "n": 3 }), "the others go on");
    assert!(!client.has_answer(first), "the others go on");
    let told = logged(&log).iter().filter(|line| line.get("cancelled").is_some()).count();
    assert_eq!(told, 1, "{:?}", logged(&log));
}

#[test]
fn a_cancelled_run_parallel_cancels_what_runs_in_it() {
    let setup = Setup::new();
    let log = setup.path("calls");
    let tools = json!([{ "name": "hang", "on": { "hang": true }, "annotations": { "readOnlyHint": true } }]);
    let mut client = setup.server("shop", json!({ "tools": tools, "call_log": log })).start();
    client.until_ready("shop");
    let actions = json!([{ "name": "shop.hang" }, { "name": "shop.hang" }]);
    let id = client.begin_call("run_parallel", json!({ "actions": actions }));
    eventually("both have arrived", || (logged(&log).len() == 2).then_some(()));
    let params = json!({ "requestId": id });
    client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params }));
    eventually("both are cancelled", || {
        (logged(&log).iter().filter(|line| line.get("cancelled").is_some()).count() == 2).then_some(())
    });
}

#[test]
fn a_burst_of_progress_arrives_whole_in_order_and_before_the_answer() {
    let tools = json!([{ "name": "work", "on": { "progress": 300 } }]);
    let mut client = Setup::new().server("shop", json!({ "tools": tools })).start();
    client.until_ready("shop");
    let tokens = [json!("tök-7"), json!(7)];
    let calls: Vec<i64> = tokens
        .iter()
        .map(|token| {
            let meta = json!({ "progressToken": token });
            client.begin("tools/call", json!({ "name": "shop__work", "arguments": {}, "_meta": meta }))
        })
        .collect();
    for (id, token) in calls.into_iter().zip(&tokens) {
        client.result(id);
        let steps: Vec<&Value> = client
            .notifications
            .iter()
            .filter(|note| note["method"] == "notifications/progress")
            .map(|note| &note["params"])
            .filter(|params| params["progressToken"] == *token)
            .collect();
        assert_eq!(steps.len(), 300, "all of {token} have come before the answer");
        for (n, step) in steps.iter().enumerate() {
            assert_eq!(step["progress"].as_f64(), Some((n + 1) as f64), "in order: {step}");
            assert_eq!(step["total"].as_f64(), Some(300.0));
            assert_eq!(step["message"], format!("step {} of 300", n + 1));
        }
    }
    client.request("ping", json!({}));
    assert_eq!(client.notifications.len(), 600, "and none after it");
}

#[test]
fn progress_that_nobody_asked_for_is_not_sent() {
    let tools = json!([{ "name": "work", "on": { "progress": 20 } }]);
    let mut client = Setup::new().server("shop", json!({ "tools": tools })).start();
    client.until_ready("shop");
    client.execute("shop.work", json!({}));
    client.request("ping", json!({}));
    assert_eq!(client.notifications, Vec::<Value>::new());
}

#[test]
fn calls_of_one_client_run_at_the_same_time() {
    let tools = json!([{ "name": "wait", "on": { "delay_ms": 800 } }, { "name": "fast" }]);
    let mut client = Setup::new().server("shop", json!({ "tools": tools })).start();
    client.until_ready("shop");
    let slow = client.begin_call("shop__wait", json!({}));
    client.call("shop__fast", json!({}));
    client.call("list_categories", json!({}));
    assert!(!client.has_answer(slow), "the fast ones have overtaken the slow one");
    client.result(slow);
}
