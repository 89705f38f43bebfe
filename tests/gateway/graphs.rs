//! Graphs of calls: intermediates stay away from the model, loops tell the truth, filters compute without a
//! tool, and graphs are kept.

use std::time::Duration;

use nonet_base::clock::Clock;
use nonet_state::session::Caller;
use serde_json::{Value, json};

use crate::{
    inside::{Inside, eventually},
    setup::{Setup, json_of, logged, notices_of},
};

fn shop() -> Setup {
    let reads = json!({ "readOnlyHint": true });
    let odd =
        json!({ "type": "object", "properties": { "n": { "type": "integer", "not": { "const": 1 } } } });
    let text = json!({ "type": "object", "properties": { "content": { "type": "string" } }, "required": ["content"] });
    let picture = json!({ "content": [{ "type": "image", "data": "AAAA", "mimeType": "image/png" }] });
    let flaky = json!([{ "error": "HTTP 503, try again later" }, { "error": "429" }, { "text": "fine" }]);
    let orders = "id,customer,count\n1,7,2\n2,8,3\n3,7,1\n";
    let customers = "| id | name |\n|---|---|\n| 7 | Ada |\n| 8 | Bob |\n";
    Setup::new().server(
        "shop",
        json!({ "tools": [
            { "name": "say", "annotations": reads },
            { "name": "rows", "on": { "json_rows": 3 }, "annotations": reads },
            { "name": "many", "on": { "json_rows": 500 }, "annotations": reads },
            { "name": "orders", "on": { "text": orders }, "annotations": reads },
            { "name": "customers", "on": { "text": customers }, "annotations": reads },
            { "name": "picture", "on": { "result": picture }, "annotations": reads },
            { "name": "odd", "input_schema": odd, "annotations": reads },
            { "name": "fail", "on": { "error": "out of order" }, "annotations": reads },
            { "name": "busy", "on": { "error": "HTTP 503, try again later" }, "annotations": reads },
            { "name": "flaky", "on": flaky, "annotations": { "idempotentHint": true } },
            { "name": "write", "input_schema": text },
        ] }),
    )
}

async fn run(inside: &Inside, actions: Value) -> Value {
    inside.answer("run_parallel", json!({ "actions": actions })).await
}

/// Returns the counts of a report: succeeded, failed.
fn counts(report: &Value) -> (u64, u64) {
    let count = |key: &str| report[key].as_u64().expect("a number");
    (count("succeeded"), count("failed"))
}

#[tokio::test]
async fn what_another_action_uses_is_named_and_not_shown() {
    let inside = shop().open().await;
    let actions = json!([
        { "id": "many", "name": "shop.many", "select": "map({id, name})" },
        { "id": "rows", "name": "shop.rows", "show": true },
        { "id": "shot", "name": "shop.picture" },
        { "id": "all", "name": "shop.say", "params": { "many": "{{many}}", "shot": "{{shot[0].data}}" }, "select": "[.many[-1].id, .shot]" },
        { "id": "each", "name": "shop.say", "for_each": "{{rows}}", "params": { "n": "{{item.id}}" }, "select": "map(.n)" },
    ]);
    let result = inside.call("run_parallel", json!({ "actions": actions })).await;
    assert_eq!(result["content"].as_array().map(Vec::len), Some(1), "no picture: {result}");
    let report = json_of(&result);
    let results = &report["results"];
    for (at, count) in [(0, 500), (2, 1)] {
        let named = &results[at];
        assert_eq!((&named["success"], &named["used_by"]), (&json!(true), &json!(["all"])), "{named}");
        assert_eq!((&named["count"], named.get("result")), (&json!(count), None), "{named}");
        assert!(named["bytes"].as_u64().is_some_and(|bytes| bytes > 20), "{named}");
    }
    assert_eq!(results[1]["result"][2]["id"], 2, "it is shown on request: {report}");
    assert_eq!(results[3]["result"], json!([499, "AAAA"]), "{report}");
    assert_eq!(results[4]["result"], json!([0, 1, 2]), "{report}");
    assert!(report.to_string().len() < 1_500, "{} bytes", report.to_string().len());
    // What was not shown can be read, as it was after its `select`.
    let read = json!({ "ref": results[0]["ref"], "offset": 499 });
    let read = json_of(&inside.execute("gateway.fetch_result", read).await);
    assert_eq!(read["rows"], json!([{ "id": 499, "name": "row 499" }]), "{read}");
}

#[tokio::test]
async fn a_list_whose_items_all_failed_has_failed() {
    let apps = r#"
[apps.keep]
steps = [{ id = "all", tool = "shop.odd", for_each = "{{input}}", on_error = "keep", params = { n = "{{item}}" } }]
"#;
    let inside = shop().toml(apps).open().await;
    let each = |id: &str, name: &str, items: Value| json!({ "id": id, "name": name, "for_each": items, "on_error": "keep", "params": { "n": "{{item}}" } });
    let actions = json!([
        each("none", "shop.busy", json!([1, 2, 3, 4, 5, 6])),
        each("some", "shop.odd", json!([0, 1, 2])),
        each("all", "shop.odd", json!([0, 2])),
        { "id": "after", "name": "shop.say", "params": { "why": "{{none[5].error.message}}" } },
    ]);
    let report = run(&inside, actions).await;
    assert_eq!(counts(&report), (3, 1), "{report}");
    let results = &report["results"];
    assert_eq!(
        (&results[0]["success"], &results[0]["items"]),
        (&json!(false), &json!({ "total": 6, "failed": 6 }))
    );
    // The words of the tool say whether the call may be made again.
    assert_eq!(results[0]["result"][0]["error"]["retryable"], true, "{report}");
    assert_eq!(
        (&results[1]["success"], &results[1]["items"]),
        (&json!(true), &json!({ "total": 3, "failed": 1 }))
    );
    assert_eq!(results[2].get("items"), None, "{report}");
    assert_eq!(results[3]["result"], json!({ "why": "HTTP 503, try again later" }), "{report}");
    let told = inside.answer("call_app", json!({ "app_id": "keep", "input": [1, 2] })).await;
    assert_eq!(told["items"], json!({ "all": { "total": 2, "failed": 1 } }), "{told}");
}

#[tokio::test]
async fn a_failure_that_is_kept_is_a_value_for_what_comes_after() {
    let inside = shop().open().await;
    let actions = |on_error: &str| {
        json!([
            { "id": "a", "name": "shop.fail", "on_error": on_error },
            { "id": "b", "name": "shop.say", "params": { "why": "{{a.error.message}}" } },
            { "id": "c", "name": "shop.say", "when": ".steps.a.error", "params": { "instead": true } },
        ])
    };
    let report = run(&inside, actions("keep")).await;
    assert_eq!(counts(&report), (2, 1), "{report}");
    assert_eq!(report["results"][0]["success"], false, "{report}");
    assert_eq!(report["results"][1]["result"], json!({ "why": "out of order" }), "{report}");
    assert_eq!(report["results"][2]["result"], json!({ "instead": true }), "{report}");
    let report = run(&inside, actions("stop")).await;
    assert_eq!(counts(&report), (0, 3), "{report}");
}

#[tokio::test]
async fn a_when_that_reads_the_item_leaves_items_out() {
    let apps = r#"
[apps.some]
steps = [{ id = "all", tool = "shop.say", for_each = "{{input.list}}", when = ".item.n >= .input.least", params = { n = "{{item.n}}", at = "{{index}}" } }]
"#;
    let inside = shop().toml(apps).open().await;
    let each = |when: &str| {
        json!([{ "id": "rows", "name": "shop.rows", "show": true },
        { "id": "e", "name": "shop.say", "for_each": "{{rows}}", "when": when, "params": { "id": "{{item.id}}" }, "select": "map(.id)" }])
    };
    for (when, kept) in [
        (".item.even # not the odd ones", json!([0, 2])),
        (".index > 0 and (.steps.rows | length) == 3", json!([1, 2])),
        (".item.name | test(\"9\")", json!([])),
    ] {
        let report = run(&inside, each(when)).await;
        let entry = &report["results"][1];
        assert_eq!(entry["result"], kept, "{when}: {report}");
        let left_out = 3 - kept.as_array().expect("a list").len();
        assert_eq!(entry["items"], json!({ "total": 3, "left_out": left_out }), "{when}: {report}");
    }
    // A filter that fails is quoted as it was written.
    let report = run(&inside, each(".item.name + 1")).await;
    let message = report["results"][1]["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("`.item.name + 1` failed") && !message.contains("$all"), "{report}");
    let list = json!([{ "n": 1 }, { "n": 5 }, { "n": 7 }]);
    let told =
        inside.answer("call_app", json!({ "app_id": "some", "input": { "list": list, "least": 5 } })).await;
    assert_eq!(told["output"], json!([{ "n": 5, "at": 0 }, { "n": 7, "at": 1 }]), "{told}");
    assert_eq!(told["items"]["all"]["left_out"], 1, "{told}");
}

#[tokio::test]
async fn an_action_is_retried_where_that_does_no_harm() {
    let setup = shop();
    let inside = setup.open().await;
    let flaky = |retry: Value| json!([{ "id": "a", "name": "shop.flaky", "retry": retry }]);
    let report = run(&inside, flaky(json!({ "times": 2, "wait": "1ms" }))).await;
    assert_eq!(report["results"][0]["result"], "fine", "by the words of the error: {report}");
    let report = run(&inside, json!([{ "name": "shop.busy" }, { "name": "shop.fail" }])).await;
    let retryable = |at: usize| report["results"][at].get("retryable").cloned();
    assert_eq!((retryable(0), retryable(1)), (Some(json!(true)), None), "{report}");
    let failing =
        |on: Value| json!([{ "name": "shop.fail", "retry": { "times": 1, "wait": "1ms", "on": on } }]);
    let report = run(&inside, failing(json!(["upstream_error"]))).await;
    assert_eq!(counts(&report), (0, 1), "{report}");
    for (actions, part) in [
        (json!([{ "name": "shop.write", "params": { "content": "x" }, "retry": 2 }]), "safe to call again"),
        (failing(json!(["timout"])), "not an error code"),
        (flaky(json!(11)), "give 1 to 10"),
        (flaky(json!({ "wait": "soon" })), "such as `2s`"),
    ] {
        let fault = inside.fault("run_parallel", json!({ "actions": actions })).await;
        assert!(fault["message"].as_str().is_some_and(|text| text.contains(part)), "{fault}");
    }
}

#[tokio::test]
async fn a_filter_joins_and_writes_tables_without_a_tool() {
    let apps = r#"
[apps.totals]
output = "{{lines}}"
steps = [
    { id = "orders", tool = "shop.orders" },
    { id = "lines", filter = ".input.factor as $f | [.steps.orders | fromcsv[] | (.count | tonumber) * $f]" },
    { id = "none", filter = "{a: 1}", when = ".steps.lines | length > 9" },
]
"#;
    let setup = shop().toml(apps);
    let inside = setup.open().await;
    let join = "(.steps.customers | frommd | INDEX(.id)) as $c | .steps.orders | fromcsv \
        | map({name: $c[.customer].name, count: (.count | tonumber)}) | group_by(.name) \
        | map({name: .[0].name, count: (map(.count) | add)})";
    let actions = json!([
        { "id": "orders", "name": "shop.orders" },
        { "id": "customers", "name": "shop.customers" },
        { "id": "sums", "filter": join, "show": true },
        { "id": "page", "filter": "\"# Sums\\n\\n\" + (.steps.sums | tomd)" },
        { "name": "shop.write", "params": { "content": "{{page}}" } },
        { "id": "csv", "filter": ".steps.sums | tocsv" },
        { "id": "params", "filter": ".input.a + 1", "params": { "a": "{{sums[0].count}}" } },
    ]);
    let report = run(&inside, actions).await;
    assert_eq!(counts(&report), (7, 0), "{report}");
    let results = &report["results"];
    assert_eq!(
        results[2]["result"],
        json!([{ "name": "Ada", "count": 3 }, { "name": "Bob", "count": 3 }]),
        "{report}"
    );
    assert_eq!(results[2]["name"], "filter", "{report}");
    let page = "# Sums\n\n| name | count |\n| --- | --- |\n| Ada | 3 |\n| Bob | 3 |\n";
    assert_eq!(results[4]["result"], json!({ "content": page }), "{report}");
    assert_eq!(results[5]["result"], "name,count\nAda,3\nBob,3\n", "{report}");
    assert_eq!(results[6]["result"], 4, "{report}");
    let told = inside.answer("call_app", json!({ "app_id": "totals", "input": { "factor": 2 } })).await;
    assert_eq!(
        (&told["output"], &told["tool_calls"], &told["skipped"]),
        (&json!([4, 6, 2]), &json!(1), &json!(["none"])),
        "{told}"
    );
}

#[tokio::test]
async fn a_filter_that_cannot_work_is_refused_before_anything_runs() {
    let setup = Setup::new();
    let log = setup.path("calls");
    let tools = json!([{ "name": "post" }]);
    let inside = setup.server("shop", json!({ "tools": tools, "call_log": log })).open().await;
    for (second, part) in [
        (json!({ "filter": ".steps.a |" }), "is not a jq filter"),
        (json!({ "filter": ".steps.nope" }), "refers to `nope`"),
        (json!({ "filter": ".a | length" }), "write `.steps.a`"),
        (json!({ "filter": ".steps.a", "for_each": [1] }), "map(...)"),
        (json!({ "filter": ".steps.a", "name": "shop.post" }), "is `select`"),
        (json!({ "id": "b" }), "the `name` of a tool, or a jq `filter`"),
    ] {
        let actions = json!([{ "id": "a", "name": "shop.post" }, second]);
        let fault = inside.fault("run_parallel", json!({ "actions": actions })).await;
        let message = fault["message"].as_str().expect("a message");
        assert!(message.contains(part) && message.contains("Nothing was run"), "{actions}: {message}");
    }
    assert!(logged(&log).is_empty());
    // A filter that fails costs its own action and those that use it.
    let actions = json!([
        { "id": "a", "name": "shop.post", "params": { "n": 1 }, "show": true },
        { "id": "sum", "filter": ".steps.a.n | fromcsv" },
        { "id": "b", "name": "shop.post", "params": { "x": "{{sum}}" } },
    ]);
    let report = run(&inside, actions).await;
    assert_eq!(counts(&report), (1, 2), "{report}");
    let message = report["results"][1]["error"]["message"].as_str().unwrap_or_default();
    assert!(message.starts_with("The `filter` of `sum`: "), "{report}");
}

#[tokio::test]
async fn a_nested_execute_tool_is_unwrapped() {
    let inside = shop().open().await;
    let inner = json!({ "name": "shop.rows", "params": {}, "select": "length", "background": true });
    let nested =
        json!({ "name": "execute_tool", "params": { "name": "shop.say", "params": { "a": "{{n}}" } } });
    let actions = json!([
        { "id": "n", "name": "execute_tool", "params": inner, "show": true },
        { "id": "say", "tool": "nonet.execute_tool", "arguments": nested },
    ]);
    let result = inside.call("run_parallel", json!({ "actions": actions })).await;
    let report = json_of(&result);
    assert_eq!(report["results"][0]["result"], 3, "{report}");
    assert_eq!(report["results"][1]["result"], json!({ "a": 3 }), "{report}");
    assert!(
        notices_of(&result).iter().any(|notice| notice.to_string().contains("was unwrapped")),
        "{result}"
    );
    let fault = inside
        .fault(
            "run_parallel",
            json!({ "actions": [{ "name": "run_parallel", "params": { "actions": [nested] } }] }),
        )
        .await;
    assert_eq!(fault["code"], "invalid_params", "{fault}");
}

#[tokio::test]
async fn too_many_actions_are_not_sent_back() {
    let inside = shop().open().await;
    let actions: Vec<Value> = (0..51).map(|n| json!({ "name": "shop.say", "params": { "n": n } })).collect();
    let fault = inside.fault("run_parallel", json!({ "actions": actions })).await;
    let message = fault["message"].as_str().unwrap_or_default();
    assert!(message.contains("51 entries") && message.contains("`for_each`"), "{fault}");
    assert!(fault.to_string().len() < 400 && fault.get("details").is_none(), "{fault}");
}

async fn graph(inside: &Inside, params: Value) -> Value {
    json_of(&inside.execute("gateway.run_graph", params).await)
}

#[tokio::test]
async fn a_graph_is_kept_under_a_name_and_run_again() {
    let inside = shop().open().await;
    let found =
        inside.answer("search_tools", json!({ "query": "run the same steps again under a name" })).await;
    let hits = found["results"].as_array().expect("hits");
    assert!(hits.iter().any(|hit| hit["name"] == "gateway.run_graph"), "{found}");
    let actions = json!([
        { "id": "rows", "name": "shop.rows" },
        { "id": "some", "filter": ".input.least as $least | [.steps.rows[] | select(.id >= $least) | .name]" },
        { "name": "shop.say", "params": { "to": "{{input.to}}", "names": "{{some}}" } },
    ]);
    let kept = graph(&inside, json!({ "name": "names", "actions": actions })).await;
    assert_eq!((&kept["actions"], kept.get("overwritten")), (&json!(3), None), "{kept}");
    for (least, names) in [(1, json!(["row 1", "row 2"])), (2, json!(["row 2"]))] {
        let params = json!({ "name": "names", "input": { "least": least, "to": "Ada" } });
        let report = graph(&inside, params).await;
        assert_eq!(report["results"][2]["result"], json!({ "to": "Ada", "names": names }), "{report}");
    }
    let once = graph(&inside, json!({ "actions": [{ "name": "shop.say", "params": { "n": 1 } }] })).await;
    assert_eq!(once["succeeded"], 1, "{once}");
    let wrong = graph(&inside, json!({ "actions": [{ "tool": "shop.say", "params": { "n": 1 } }] })).await;
    let wrong = wrong["error"]["message"].as_str().unwrap_or_default().to_string();
    assert!(wrong.contains("unknown field `tool`, expected one of `id`, `name`"), "{wrong}");
    let listed = graph(&inside, json!({})).await;
    assert_eq!((&listed["graphs"][0]["name"], &listed["graphs"][0]["actions"]), (&json!("names"), &actions));
    let again = graph(&inside, json!({ "name": "names", "actions": [{ "name": "shop.rows" }] })).await;
    assert_eq!(again["overwritten"], true, "{again}");
    // It belongs to the session.
    let other = inside.gateway.sessions.caller(inside.gateway.sessions.open(None), "test");
    let call = json!({ "name": "gateway.run_graph", "params": { "name": "names" } });
    let fault = json_of(&inside.call_as(&other, "execute_tool", call).await);
    assert_eq!(fault["error"]["code"], "not_found", "{fault}");
    for (params, part) in [
        (json!({ "name": "nmes" }), "No graph is kept as `nmes`"),
        (json!({ "name": "x", "actions": [{ "name": "shop.say", "after": ["y"] }] }), "refers to `y`"),
        (json!({ "name": "x", "actions": [] }), "give 1 to 50"),
    ] {
        let fault = graph(&inside, params).await;
        assert!(fault["error"]["message"].as_str().is_some_and(|text| text.contains(part)), "{fault}");
    }
    let inner = json!({ "name": "gateway.run_graph", "params": { "name": "names" } });
    for report in [graph(&inside, json!({ "actions": [inner] })).await, run(&inside, json!([inner])).await] {
        assert!(report.to_string().contains("does not run inside of a graph"), "{report}");
    }
    // A run may still keep one.
    let kept = json!({ "name": "gateway.run_graph", "params": { "name": "x", "actions": [{ "name": "shop.rows" }] } });
    assert_eq!(counts(&run(&inside, json!([kept])).await), (1, 0));
}

#[tokio::test]
async fn a_client_without_a_session_keeps_no_graph() {
    let inside = shop().open().await;
    let caller = Caller { lasting: false, ..inside.caller.clone() };
    let params = json!({ "name": "names", "actions": [{ "name": "shop.rows" }] });
    let call = json!({ "name": "gateway.run_graph", "params": params });
    let fault = json_of(&inside.call_as(&caller, "execute_tool", call).await);
    let message = fault["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("no session") && message.contains("run_parallel"), "{fault}");
    let once = json!({ "actions": [{ "name": "shop.rows" }] });
    let call = json!({ "name": "gateway.run_graph", "params": once });
    let report = json_of(&inside.call_as(&caller, "execute_tool", call).await);
    assert_eq!(counts(&report), (1, 0), "{report}");
}

#[tokio::test]
async fn a_graph_is_scheduled() {
    let (clock, state) = (Clock::default(), tempfile::tempdir().expect("a folder"));
    let inside = shop().open_with_clock(&clock, state.path()).await;
    let schedule = async |params: Value| json_of(&inside.execute("gateway.schedule", params).await);
    let actions = |to: Value| json!([{ "id": "r", "name": "shop.rows" }, { "name": "shop.say", "params": { "to": to, "first": "{{r[0].id}}" } }]);
    graph(&inside, json!({ "name": "morning", "actions": actions(json!("{{input.to}}")) })).await;
    let written = json!({ "actions": actions(json!("Ada")) });
    for mut params in [
        json!({ "name": "run_parallel", "params": written }),
        json!({ "name": "morning", "input": { "to": "Ada" } }),
        json!({ "name": "gateway.run_graph", "params": { "name": "morning", "input": { "to": "Ada" } } }),
    ] {
        params["when"] = json!("in 5m");
        let scheduled = schedule(params.clone()).await;
        assert_eq!(scheduled["tool"], "gateway.run_graph", "{params}: {scheduled}");
        clock.advance(Duration::from_secs(301));
        let told = eventually("the run is told", async || {
            let notices = notices_of(&inside.call("list_categories", json!({})).await);
            notices.into_iter().find(|notice| notice["kind"] == "scheduled_run")
        })
        .await;
        assert_eq!(told["success"], true, "{told}");
        assert_eq!(told["result"]["results"][1]["result"], json!({ "to": "Ada", "first": 0 }), "{told}");
    }
    for (mut params, part) in [
        (json!({ "name": "run_parallel", "params": {} }), "actions"),
        (json!({ "name": "run_parallel", "params": { "actions": [{ "name": "shop.nope" }] } }), "shop.nope"),
        (json!({ "name": "gateway.run_graph", "params": { "name": "evening" } }), "No graph is kept"),
        (
            json!({ "name": "run_parallel", "params": { "actions": [{ "name": "shop.say", "arguments": {} }] } }),
            "unknown field `arguments`, expected one of `id`, `name`, `params`",
        ),
    ] {
        params["when"] = json!("in 5m");
        let fault = schedule(params).await;
        assert!(fault["error"]["message"].as_str().is_some_and(|text| text.contains(part)), "{fault}");
    }
}
