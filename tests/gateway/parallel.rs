//! `run_parallel`: concurrent if possible, ordered if needed, with independent failures.

use serde_json::{Value, json};

use crate::{
    inside::{Inside, eventually},
    setup::{Setup, logged},
};

/// The delay that distinguishes concurrent from sequential, in milliseconds.
const DELAY: u64 = 400;

fn slow(reads: bool) -> Value {
    let mut tool = json!({ "name": "wait", "on": { "delay_ms": DELAY } });
    if reads {
        tool["annotations"] = json!({ "readOnlyHint": true });
    }
    json!({ "tools": [tool] })
}

async fn run(inside: &Inside, actions: Value) -> Value {
    inside.answer("run_parallel", json!({ "actions": actions })).await
}

fn elapsed(report: &Value) -> u64 {
    assert_eq!(report["failed"], 0, "{report}");
    report["elapsed_ms"].as_u64().expect("a number")
}

#[tokio::test]
async fn calls_of_two_servers_run_at_the_same_time() {
    let inside = Setup::new().server("a", slow(false)).server("b", slow(false)).open().await;
    let took = elapsed(&run(&inside, json!([{ "name": "a.wait" }, { "name": "b.wait" }])).await);
    assert!((DELAY..2 * DELAY - 20).contains(&took), "{took} ms");
}

#[tokio::test]
async fn calls_of_one_server_go_one_at_a_time() {
    let inside = Setup::new().server("a", slow(false)).open().await;
    let took = elapsed(&run(&inside, json!([{ "name": "a.wait" }, { "name": "a.wait" }])).await);
    assert!(took >= 2 * DELAY, "{took} ms");
}

#[tokio::test]
async fn calls_that_only_read_run_freely() {
    let inside = Setup::new().server("a", slow(true)).open().await;
    let took = elapsed(&run(&inside, json!([{ "name": "a.wait" }, { "name": "a.wait" }])).await);
    assert!(took < 2 * DELAY - 20, "{took} ms");
}

#[tokio::test]
async fn a_server_or_a_tool_may_be_declared_parallel() {
    let inside = Setup::new()
        .server_with("a", slow(false), "parallel = true")
        .server("b", slow(false))
        .toml("[servers.b.tools.wait]\nparallel = true")
        .open()
        .await;
    for name in ["a.wait", "b.wait"] {
        let took = elapsed(&run(&inside, json!([{ "name": name }, { "name": name }])).await);
        assert!(took < 2 * DELAY - 20, "{name}: {took} ms");
    }
}

fn shop() -> Setup {
    Setup::new().server(
        "shop",
        json!({ "tools": [
            { "name": "echo", "annotations": { "readOnlyHint": true } },
            { "name": "rows", "on": { "json_rows": 3 } },
            { "name": "structured", "on": { "result": { "content": [{ "type": "text", "text": "not this" }], "structuredContent": { "id": 7 } } } },
            { "name": "words", "on": { "text": "just words" } },
            { "name": "fail", "on": { "error": "out of order" } },
            { "name": "strict", "input_schema": { "type": "object", "properties": { "n": { "type": "integer" } }, "required": ["n"] } },
            { "name": "picture", "on": { "result": { "content": [{ "type": "image", "data": "AAAA", "mimeType": "image/png" }] } } },
        ] }),
    )
}

#[tokio::test]
async fn one_result_feeds_another_without_the_model() {
    let inside = shop().open().await;
    let report = inside
        .golden(
            "run_parallel",
            json!({ "actions": [
                { "id": "sum", "name": "shop.echo", "params": { "whole": "{{rows}}", "name": "{{rows[2].name}}", "id": "{{s.id}}", "text": "{{w}}! {{rows.1.id}}" } },
                { "id": "rows", "name": "shop.rows" },
                { "id": "s", "name": "shop.structured" },
                { "id": "w", "name": "shop.words" },
                { "name": "shop.strict", "params": { "n": "{{s.id}}" }, "after": ["w"] },
            ] }),
        )
        .await;
    insta::assert_json_snapshot!(report);
}

#[tokio::test]
async fn a_failure_costs_what_depends_on_it_and_nothing_else() {
    let setup = shop();
    let inside = setup.open().await;
    let report = inside
        .golden(
            "run_parallel",
            json!({ "actions": [
                { "id": "bad", "name": "shop.fail" },
                { "id": "wrong", "name": "shop.strict", "params": { "n": "many" } },
                { "id": "needs_bad", "name": "shop.echo", "params": { "x": "{{bad.y}}" } },
                { "id": "needs_that", "name": "shop.echo", "after": ["needs_bad"] },
                { "id": "good", "name": "shop.echo", "params": { "a": 1 } },
                { "id": "no_such_path", "name": "shop.echo", "params": { "x": "{{good.b}}" } },
            ] }),
        )
        .await;
    insta::assert_json_snapshot!(report);
}

#[tokio::test]
async fn fail_fast_starts_nothing_after_a_failure() {
    let setup = Setup::new();
    let log = setup.path("calls");
    let tools = json!([{ "name": "fail", "on": { "error": "no" } }, { "name": "echo" }]);
    let inside = setup.server("shop", json!({ "tools": tools, "call_log": log })).open().await;
    let actions = json!([{ "name": "shop.fail" }, { "name": "shop.echo" }, { "name": "shop.echo" }]);
    let arguments = json!({ "actions": actions, "fail_fast": true, "max_concurrency": 1 });
    let report = inside.answer("run_parallel", arguments).await;
    assert_eq!((&report["failed"], &report["succeeded"]), (&json!(3), &json!(0)), "{report}");
    assert_eq!(report["results"][2]["error"]["code"], "cancelled", "{report}");
    assert_eq!(logged(&log).len(), 1);
    let report = inside.answer("run_parallel", json!({ "actions": actions, "max_concurrency": 1 })).await;
    assert_eq!((&report["failed"], &report["succeeded"]), (&json!(1), &json!(2)), "{report}");
}

#[tokio::test]
async fn a_name_that_is_unknown_costs_its_own_action_alone() {
    let inside = Setup::new().server("shop", json!({ "tools": [{ "name": "echo" }] })).open().await;
    let actions = json!([
        { "id": "a", "name": "shop.echo", "params": { "n": 1 } },
        { "id": "b", "name": "shop.eco" },
        { "id": "c", "name": "shop.echo", "params": { "n": "{{b.n}}" } },
    ]);
    let report = inside.answer("run_parallel", json!({ "actions": actions })).await;
    assert_eq!((&report["succeeded"], &report["failed"]), (&json!(1), &json!(2)), "{report}");
    let results = &report["results"];
    assert_eq!(results[0]["result"], json!({ "n": 1 }), "{report}");
    assert_eq!(results[1]["error"]["code"], "unknown_tool", "{report}");
    assert_eq!(results[1]["error"]["did_you_mean"][0], "shop.echo", "{report}");
    assert_eq!(results[2]["success"], false, "what depends on it does not run: {report}");
}

#[tokio::test]
async fn a_graph_that_cannot_be_run_is_refused_before_anything_runs() {
    let setup = Setup::new();
    let log = setup.path("calls");
    let inside = setup.server("shop", json!({ "tools": [{ "name": "echo" }], "call_log": log })).open().await;
    let echo = |id: &str, after: Value| json!({ "id": id, "name": "shop.echo", "after": after });
    let too_many: Vec<Value> = (0..51).map(|_| json!({ "name": "shop.echo" })).collect();
    for (actions, code) in [
        (json!([echo("a", json!(["b"])), echo("b", json!(["a"]))]), "invalid_params"),
        (json!([echo("a", json!([])), { "name": "execute_tool", "params": {} }]), "invalid_params"),
        (json!([{ "name": "run_parallel", "params": { "actions": [] } }]), "invalid_params"),
        (json!([]), "invalid_params"),
        (json!(too_many), "invalid_params"),
    ] {
        let fault = inside.fault("run_parallel", json!({ "actions": actions })).await;
        assert_eq!(fault["code"], code, "{actions}: {fault}");
    }
    assert_eq!(logged(&log), Vec::<Value>::new(), "no server was called");
}

#[tokio::test]
async fn fifty_actions_run() {
    let inside = shop().open().await;
    let actions: Vec<Value> = (0..50).map(|n| json!({ "name": "shop.echo", "params": { "n": n } })).collect();
    let report = run(&inside, json!(actions)).await;
    assert_eq!((&report["total"], &report["succeeded"]), (&json!(50), &json!(50)), "{report}");
    for (n, one) in report["results"].as_array().expect("results").iter().enumerate() {
        assert_eq!(one["result"], json!({ "n": n }));
    }
}

#[tokio::test]
async fn pictures_are_not_lost() {
    let inside = shop().open().await;
    let actions = json!([{ "name": "shop.picture" }]);
    let result = inside.call("run_parallel", json!({ "actions": actions })).await;
    assert_eq!(result["content"][2]["data"], "AAAA", "{result}");
}

#[tokio::test]
async fn large_results_share_one_budget() {
    let tools = json!([{ "name": "text", "on": { "size": 90_000 } }]);
    let inside = Setup::new().server("store", json!({ "tools": tools })).open().await;
    let actions: Vec<Value> = (0..5).map(|_| json!({ "name": "store.text" })).collect();
    let report = run(&inside, json!(actions)).await;
    assert!(report.to_string().len() < 110_000, "{} bytes", report.to_string().len());
    assert!(report.to_string().contains("read_on"), "what was cut can be read on");
}

#[tokio::test]
async fn an_action_has_a_limit_of_its_own_and_the_others_their_results() {
    let tools = json!([{ "name": "hang", "on": { "hang": true } }, { "name": "echo" }]);
    let setup = Setup::new();
    let log = setup.path("calls");
    let setup = setup.server_with("a", json!({ "tools": tools, "call_log": log }), "parallel = true");
    let inside = setup.open().await;
    let actions = json!([
        { "id": "late", "name": "a.hang", "timeout_ms": 200 },
        { "id": "fine", "name": "a.echo", "params": { "n": 1 } },
        { "id": "after", "name": "a.echo", "params": { "n": "{{fine.n}}" } },
    ]);
    let report = run(&inside, actions).await;
    assert_eq!(report["results"][0]["error"]["code"], "timeout", "{report}");
    assert_eq!(report["results"][2]["result"], json!({ "n": 1 }), "{report}");
    eventually("the server is told", async || {
        logged(&log).iter().any(|line| line.get("cancelled").is_some()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_run_that_takes_long_shows_what_has_ended() {
    let tools = json!([{ "name": "hang", "on": { "hang": true } }, { "name": "echo" }]);
    let setup = Setup::new().server_with("a", json!({ "tools": tools }), "parallel = true");
    let inside = setup.gateway("soft_deadline = '500ms'").open().await;
    let actions = json!([
        { "id": "x", "name": "a.echo", "params": { "n": 1 } },
        { "id": "y", "name": "a.hang" },
    ]);
    let handle = inside.answer("run_parallel", json!({ "actions": actions })).await;
    let progress = &handle["progress"];
    assert_eq!((&progress["ended"], &progress["total"]), (&json!(1), &json!(2)), "{handle}");
    assert_eq!(progress["results"][0]["result"], json!({ "n": 1 }), "{handle}");
    // A cancelled run returns partial results.
    let id = &handle["task_id"];
    inside.execute("gateway.background_run", json!({ "task_id": id, "cancel": true })).await;
    let wait = json!({ "name": "gateway.background_run", "params": { "task_id": id, "wait": true } });
    let report = inside.answer("execute_tool", wait).await;
    assert_eq!((&report["succeeded"], &report["failed"]), (&json!(1), &json!(1)), "{report}");
    assert_eq!(report["results"][1]["error"]["code"], "cancelled", "{report}");
}

#[tokio::test]
async fn a_server_has_only_as_many_calls_as_it_takes() {
    let tools =
        json!([{ "name": "wait", "on": { "delay_ms": 300 }, "annotations": { "readOnlyHint": true } }]);
    let setup = Setup::new().server_with("a", json!({ "tools": tools }), "max_concurrency = 2");
    let inside = setup.open().await;
    let actions: Vec<Value> = (0..6).map(|_| json!({ "name": "a.wait" })).collect();
    let took = elapsed(&run(&inside, json!(actions)).await);
    assert!(took >= 900, "{took} ms: six calls, two at a time");
    // A call that waits too long for its turn gets a fault and never reaches the server.
    let slow: Vec<_> = (0..2)
        .map(|_| {
            let (gateway, caller) = (inside.gateway.clone(), inside.caller.clone());
            tokio::spawn(async move {
                let arguments = json!({ "name": "a.wait" });
                nonet_meta::call(
                    &gateway,
                    &caller,
                    "execute_tool",
                    arguments.as_object().cloned().unwrap_or_default(),
                )
                .await
            })
        })
        .collect();
    while inside.gateway.servers.connections()["a"].in_flight() < 2 {
        tokio::task::yield_now().await;
    }
    let fault = inside.fault("execute_tool", json!({ "name": "a.wait", "timeout_ms": 50 })).await;
    assert_eq!(fault["code"], "rate_limited", "{fault}");
    assert!(fault["retry_after_ms"].is_u64(), "{fault}");
    for call in slow {
        call.await.expect("it ends");
    }
}

/// Returns a server that handles one call at a time, and the file with its log.
fn one_at_a_time(delay: u64) -> (Setup, std::path::PathBuf) {
    let reads = json!({ "readOnlyHint": true });
    let tools = json!([
        { "name": "wait", "on": { "delay_ms": delay }, "annotations": reads },
        { "name": "write", "on": { "delay_ms": delay } },
    ]);
    let setup = Setup::new();
    let log = setup.path("calls");
    let script = json!({ "tools": tools, "call_log": log });
    (setup.server_with("a", script, "max_concurrency = 1\nparallel = true"), log)
}

#[tokio::test]
async fn a_serialized_server_has_one_call_on_every_road() {
    let (setup, _) = one_at_a_time(300);
    let app = "[apps.two]\nsteps = [{ tool = 'a.wait' }, { tool = 'a.write' }]\n[apps.one]\ntool = 'a.wait'";
    let inside = setup.toml(app).open().await;
    let began = std::time::Instant::now();
    let launch = json!({ "name": "gateway.background_run", "params": { "name": "a.wait" } });
    let actions = json!({ "actions": [{ "name": "a.wait" }, { "name": "a.wait" }] });
    // One call directly, one by execute_tool, one in the background, two in a run, two and one by apps.
    let ended = tokio::join!(
        inside.call("a__wait", json!({})),
        inside.execute("a.write", json!({})),
        inside.call("execute_tool", launch),
        inside.call("run_parallel", actions),
        inside.call("call_app", json!({ "app_id": "two", "input": {} })),
        inside.call("call_app", json!({ "app_id": "one", "input": {} })),
        async {
            let mut most = 0;
            while began.elapsed() < std::time::Duration::from_millis(8 * 300 - 100) {
                most = most.max(inside.gateway.servers.connections()["a"].in_flight());
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
            most
        },
    );
    for result in [&ended.0, &ended.1, &ended.2, &ended.3, &ended.4, &ended.5] {
        assert!(result.get("isError").is_none(), "{result}");
    }
    assert!(began.elapsed().as_millis() >= 8 * 300, "{:?}", began.elapsed());
    assert_eq!(ended.6, 1, "never two at a time");
}

#[test]
fn calls_of_a_serialized_server_wait_in_order_and_can_be_cancelled() {
    let (setup, log) = one_at_a_time(400);
    let mut client = setup.gateway("soft_deadline = '600ms'").start();
    client.until_ready("a");
    let ids: Vec<i64> = (0..4).map(|n| client.begin_call("a__wait", json!({ "n": n }))).collect();
    let cancelled = json!({ "requestId": ids[1] });
    client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled }));
    let first = client.result(ids[0]);
    assert_eq!(crate::setup::json_of(&first), json!({ "n": 0 }), "{first}");
    // Waiting counts towards a call's own time: the last one becomes a task.
    let last = crate::setup::json_of(&client.result(ids[3]));
    assert_eq!(last["state"], "running", "{last}");
    let wait = json!({ "task_id": last["task_id"], "wait": true });
    let answer = crate::setup::eventually("the task ends", || {
        let answer = crate::setup::json_of(&client.execute("gateway.background_run", wait.clone()));
        (answer["n"] == 3).then_some(answer)
    });
    assert_eq!(answer, json!({ "n": 3 }));
    // The server's calls came in order, without the cancelled one.
    let numbers: Vec<Value> =
        logged(&log).iter().filter_map(|line| line["params"]["arguments"].get("n").cloned()).collect();
    assert_eq!(numbers, [json!(0), json!(2), json!(3)], "{:?}", logged(&log));
}
