//! Calls that outlive the client's timeout: in the background from the start, or after the soft deadline.

use serde_json::{Value, json};

use crate::{
    inside::{Inside, eventually},
    setup::{Setup, golden, json_of, logged, notices_of, text_of},
};

fn tools() -> Value {
    json!([
        { "name": "fast", "on": { "text": "done" } },
        { "name": "slow", "on": { "delay_ms": 2_700, "text": "done" } },
        { "name": "fail", "on": { "error": "out of order" } },
        { "name": "fail_late", "on": { "delay_ms": 1_500, "error": "out of order" } },
        { "name": "hang", "on": { "hang": true } },
    ])
}

async fn shop(gateway: &str) -> (Inside, std::path::PathBuf) {
    let setup = Setup::new();
    let log = setup.path("calls");
    let setup = setup.server("shop", json!({ "tools": tools(), "call_log": log }));
    (setup.gateway(gateway).open().await, log)
}

async fn task(inside: &Inside, params: Value) -> Value {
    json_of(&inside.execute("gateway.background_run", params).await)
}

/// Waits for the next notice of the session.
async fn notice(inside: &Inside) -> Value {
    eventually("a notice", async || notices_of(&inside.call("list_categories", json!({})).await).pop()).await
}

#[tokio::test]
async fn a_launch_that_ends_at_once_answers_at_once() {
    let (inside, _) = shop("").await;
    let launch = |tool: &str| json!({ "name": tool, "background": true });
    assert_eq!(text_of(&inside.call("execute_tool", launch("shop.fast")).await), "done");
    let failed = inside.call("execute_tool", launch("shop.fail")).await;
    assert_eq!((text_of(&failed), &failed["isError"]), ("out of order", &json!(true)));
    let unknown = inside.fault("execute_tool", launch("shop.nothing")).await;
    assert_eq!(unknown["code"], "unknown_tool");
    let told = inside.execute("gateway.background_run", json!({ "name": "shop.fast" })).await;
    assert_eq!(text_of(&told), "done");
}

#[tokio::test]
async fn a_launch_that_takes_longer_is_a_task() {
    let (inside, _) = shop("").await;
    let launched = inside.answer("execute_tool", json!({ "name": "shop.slow", "background": true })).await;
    insta::assert_json_snapshot!(golden(launched.clone()));
    let id = launched["task_id"].clone();
    assert_eq!(launched["next_step"]["arguments"]["params"]["task_id"], id);
    assert_eq!(task(&inside, json!({ "task_id": id })).await["state"], "running");
    let list = task(&inside, json!({ "list_tasks": true })).await;
    assert_eq!((&list["tasks"][0]["task_id"], &list["total"]), (&id, &json!(1)), "{list}");
    // `wait` returns what the call itself would have returned.
    let waited = inside.call("execute_tool", launched["next_step"]["arguments"].clone()).await;
    assert_eq!(text_of(&waited), "done", "{waited}");
    assert_eq!(task(&inside, json!({ "task_id": id })).await["state"], "completed");
}

#[tokio::test]
async fn a_call_over_the_soft_deadline_goes_on_as_a_task_and_its_end_is_told_once() {
    let (inside, log) = shop("soft_deadline = '500ms'").await;
    let handle = inside.answer("execute_tool", json!({ "name": "shop.fail_late" })).await;
    assert_eq!(
        (&handle["state"], &handle["tool"]),
        (&json!("running"), &json!("shop.fail_late")),
        "{handle}"
    );
    let told = notice(&inside).await;
    assert_eq!(told["task_id"], handle["task_id"]);
    insta::assert_json_snapshot!(golden(told));
    assert_eq!(notices_of(&inside.call("list_categories", json!({})).await), Vec::<Value>::new(), "once");
    let waited = inside.call("execute_tool", handle["next_step"]["arguments"].clone()).await;
    assert_eq!((text_of(&waited), &waited["isError"]), ("out of order", &json!(true)));
    let status = task(&inside, json!({ "task_id": handle["task_id"] })).await;
    assert_eq!((&status["state"], &status["error"]["message"]), (&json!("failed"), &json!("out of order")));
    assert!(logged(&log).iter().all(|line| line.get("cancelled").is_none()), "it was not cancelled");
}

#[tokio::test]
async fn a_task_is_cancelled_and_the_server_is_told() {
    let (inside, log) = shop("soft_deadline = '200ms'").await;
    let handle = inside.answer("execute_tool", json!({ "name": "shop.hang" })).await;
    let id = &handle["task_id"];
    let answer = task(&inside, json!({ "task_id": id, "cancel": true })).await;
    assert_eq!(answer["state"], "cancelled", "{answer}");
    eventually("the server is told", async || {
        logged(&log).iter().any(|line| line.get("cancelled").is_some()).then_some(())
    })
    .await;
    assert_eq!(task(&inside, json!({ "task_id": id, "wait": true })).await["state"], "cancelled");
    assert_eq!(text_of(&inside.execute("shop.fast", json!({})).await), "done");
}

#[tokio::test]
async fn a_wait_that_ends_too_early_says_how_to_wait_on() {
    let (inside, _) = shop("soft_deadline = '200ms'").await;
    let handle = inside.answer("execute_tool", json!({ "name": "shop.slow" })).await;
    // A wait obeys the soft deadline, like any other call.
    let waited = task(&inside, json!({ "task_id": handle["task_id"], "wait": true, "timeout": 1 })).await;
    assert_eq!(waited["state"], "running", "{waited}");
    assert!(waited["next_step"].is_object(), "{waited}");
}

#[tokio::test]
async fn a_run_parallel_over_the_soft_deadline_is_a_task_too() {
    let (inside, _) = shop("soft_deadline = '500ms'").await;
    let actions = json!([{ "id": "a", "name": "shop.fast" }, { "id": "b", "name": "shop.fail_late" }]);
    let handle = inside.answer("run_parallel", json!({ "actions": actions })).await;
    assert_eq!(handle["state"], "running", "{handle}");
    notice(&inside).await;
    let report = inside.answer("execute_tool", handle["next_step"]["arguments"].clone()).await;
    assert_eq!((&report["succeeded"], &report["failed"]), (&json!(1), &json!(1)), "{report}");
}

#[tokio::test]
async fn an_unknown_task_is_told() {
    let (inside, _) = shop("").await;
    let fault = inside.fault("gateway.background_run", json!({ "task_id": "job-0" })).await;
    assert_eq!(fault["code"], "not_found", "{fault}");
    let next = inside.answer("execute_tool", fault["next_step"]["arguments"].clone()).await;
    assert_eq!(next, json!({ "tasks": [], "total": 0 }));
    let fault = inside.fault("gateway.background_run", json!({})).await;
    assert_eq!(fault["code"], "invalid_params", "{fault}");
    let nested = json!({ "name": "gateway.background_run", "params": { "list_tasks": true } });
    assert_eq!(inside.fault("gateway.background_run", nested).await["code"], "invalid_params");
}

#[tokio::test]
async fn a_task_whose_result_was_waited_for_is_no_news() {
    let (inside, _) = shop("soft_deadline = '500ms'").await;
    let handle = inside.answer("execute_tool", json!({ "name": "shop.fail_late" })).await;
    let id = &handle["task_id"];
    eventually("the task ends", async || {
        let status = task(&inside, json!({ "task_id": id })).await;
        (status["state"] == "failed").then_some(())
    })
    .await;
    // The answer reported its end. A task whose result was already fetched is not reported.
    let handle = inside.answer("execute_tool", json!({ "name": "shop.fail_late" })).await;
    let waited = eventually("its result", async || {
        let waited = inside.call("execute_tool", handle["next_step"]["arguments"].clone()).await;
        (text_of(&waited) == "out of order").then_some(waited)
    })
    .await;
    let all = [waited, inside.call("list_categories", json!({})).await];
    assert!(all.iter().all(|answer| notices_of(answer).iter().all(|n| n["task_id"] != handle["task_id"])));
}

#[tokio::test]
async fn a_launch_from_a_background_task_goes_on_after_its_answer() {
    let (inside, _) = shop("soft_deadline = '500ms'").await;
    let actions = json!([
        { "id": "a", "name": "shop.slow" },
        { "id": "b", "name": "gateway.background_run", "params": { "name": "shop.slow" }, "after": ["a"] },
    ]);
    let handle = inside.answer("run_parallel", json!({ "actions": actions })).await;
    // As a client's transport does after the answer.
    inside.caller.cancel.cancel();
    let quiet = nonet_state::session::Caller { cancel: Default::default(), ..inside.caller.clone() };
    let report = eventually("the run ends", async || {
        let wait = json!({ "name": "gateway.background_run", "params": { "task_id": handle["task_id"], "wait": true } });
        let answer = json_of(&inside.call_as(&quiet, "execute_tool", wait).await);
        answer.get("results").is_some_and(|_| answer.get("total").is_some()).then_some(answer)
    })
    .await;
    let second = &report["results"][1];
    assert_eq!(
        (&second["success"], &second["result"]["state"]),
        (&json!(true), &json!("running")),
        "{report}"
    );
}

#[tokio::test]
async fn the_status_of_a_task_shows_how_far_it_is() {
    let tools = json!([{ "name": "steps", "on": { "progress": 5, "progress_every_ms": 700 } }]);
    let inside = Setup::new().server("shop", json!({ "tools": tools })).open().await;
    let handle = inside.answer("execute_tool", json!({ "name": "shop.steps", "background": true })).await;
    let status = task(&inside, json!({ "task_id": handle["task_id"] })).await;
    let step = status["progress"]["progress"].as_u64().unwrap_or_default();
    assert!((1..5).contains(&step), "{status}");
    assert_eq!(status["progress"]["message"], format!("step {step} of 5"), "{status}");
    let waited = inside.call("execute_tool", handle["next_step"]["arguments"].clone()).await;
    assert_eq!(text_of(&waited), "{}", "{waited}");
}

#[tokio::test]
async fn the_result_of_a_task_is_kept_within_the_budget_and_can_be_used_in_params() {
    let tools =
        json!([{ "name": "rows", "on": { "delay_ms": 2_200, "json_rows": 9_000 } }, { "name": "echo" }]);
    let inside = Setup::new().server("shop", json!({ "tools": tools })).open().await;
    let handle = inside.answer("execute_tool", json!({ "name": "shop.rows", "background": true })).await;
    let early = json!({ "ref": handle["task_id"] });
    let fault = inside.fault("gateway.fetch_result", early).await;
    assert_eq!((&fault["code"], &fault["next_step"]["tool"]), (&json!("not_found"), &json!("execute_tool")));
    let waited = inside.call("execute_tool", fault["next_step"]["arguments"].clone()).await;
    assert!(waited.to_string().len() < 100_000, "{} bytes", waited.to_string().len());
    let last = waited["content"].as_array().and_then(|blocks| blocks.get(1)).expect("a note");
    let reference = json_of(&json!({ "content": [last] }))["ref"].clone();
    let params =
        json!({ "row": format!("{{{{ref:{}[8999].id}}}}", reference.as_str().expect("a reference")) });
    assert_eq!(json_of(&inside.execute("shop.echo", params).await), json!({ "row": 8_999 }));
}
