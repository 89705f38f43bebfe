//! The path of a call: a server's answer passes through unchanged.

use nonet_core::call::CallRequest;
use serde_json::{Value, json};

use crate::{
    inside::serve_script,
    setup::{Setup, eventually, json_of, notices_of, text_of},
    web::WebClient,
};

/// Returns a result with everything that a server may send, and unknown fields.
fn strange() -> Value {
    json!({
        "extra": { "z": 1, "a": [null, {}, [], ""] },
        "content": [
            { "type": "text", "text": "früh \u{1f600} \"quoted\" \\ \u{7f}", "annotations": { "audience": ["user"], "priority": 0.5 } },
            { "type": "hologram", "depth": 3, "frames": [] },
            { "type": "image", "data": "AAAA", "mimeType": "image/png", "_meta": { "x": 1 } },
            { "type": "audio", "data": "AAAA", "mimeType": "audio/wav" },
            { "type": "resource_link", "uri": "file:///a", "name": "a", "size": 9 },
            { "type": "resource", "resource": { "uri": "file:///b", "text": "b", "new": true } },
            { "text": "a block without a type" },
        ],
        "structuredContent": { "big": 12345678901234567890u64, "neg": -9007199254740993i64, "tiny": 1e-9, "none": null },
        "isError": false,
        "_meta": { "vendor/key": { "deep": [1, 2, 3] }, "progressToken": "not ours" },
    })
}

fn gallery(era: &str) -> Value {
    json!({ "era": era, "tools": [
        { "name": "show", "on": { "result": strange() } },
        { "name": "bare", "on": { "result": { "content": [] } } },
        { "name": "only_structured", "on": { "result": { "structuredContent": { "a": 1 } } } },
        { "name": "fail", "on": { "result": { "content": [{ "type": "text", "text": "no" }], "isError": true, "x": 1 } } },
    ] })
}

#[test]
fn a_result_comes_out_as_it_went_in() {
    let mut client = Setup::new().server("old", gallery("legacy")).server("new", gallery("modern")).start();
    client.until_ready("old");
    client.until_ready("new");
    for server in ["old", "new"] {
        let check =
            |got: Value, expected: Value| assert_eq!(got.to_string(), expected.to_string(), "{server}");
        check(client.execute(&format!("{server}.show"), json!({})), strange());
        check(client.call(&format!("{server}__show"), json!({})), strange());
        check(client.execute(&format!("{server}.bare"), json!({})), json!({ "content": [] }));
        let structured = json!({ "structuredContent": { "a": 1 } });
        check(client.execute(&format!("{server}.only_structured"), json!({})), structured);
        let failed = json!({ "content": [{ "type": "text", "text": "no" }], "isError": true, "x": 1 });
        check(client.execute(&format!("{server}.fail"), json!({})), failed);
    }
}

#[test]
fn a_stateless_client_is_told_the_type_of_the_result_and_nothing_else_is_added() {
    let mut client = Setup::new().server("old", gallery("legacy")).start_silently();
    client.modern("server/discover", json!({}), json!({}));
    let call = json!({ "name": "old__show", "arguments": {} });
    let mut result = crate::setup::eventually("the server is ready", || {
        let answer = client.modern("tools/call", call.clone(), json!({}));
        Some(answer["result"].clone()).filter(|result| result["isError"] == false)
    });
    let kind = result.as_object_mut().expect("an object").remove("resultType");
    assert_eq!(kind, Some(json!("complete")));
    assert_eq!(result, strange());
}

#[tokio::test]
async fn params_reach_the_server_as_they_were_given() {
    let inside = Setup::new().server("echo", json!({ "tools": [{ "name": "say" }] })).open().await;
    for params in [
        json!({}),
        json!({ "text": "früh \u{1f600}\n\t\"\\", "big": 12345678901234567890u64, "neg": -1.5, "none": null }),
        json!({ "name": "x", "params": { "arguments": {} }, "timeout_ms": "later", "select": 1 }),
        json!({ "templates": "{{not.ours}} {{ }} {{{x}}}", "deep": [[[{ "a": [] }]]] }),
    ] {
        let told = inside.execute("echo.say", params.clone()).await;
        assert_eq!(text_of(&told), params.to_string());
        assert_eq!(told["content"].as_array().map(Vec::len), Some(1), "{told}");
    }
}

#[tokio::test]
async fn a_tool_is_described_with_its_schema_verbatim() {
    let schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "required": ["zeta"],
        "properties": {
            "zeta": { "description": "The last first", "type": "string" },
            "alpha": { "type": ["integer", "null"], "default": 3, "x-vendor": { "b": 1, "a": 2 } },
        },
        "type": "object",
        "additionalProperties": false,
        "examples": [{ "zeta": "z" }],
    });
    let output = json!({ "type": "object", "properties": { "sum": { "type": "number" } } });
    let tool = json!({
        "name": "count",
        "title": "Count things",
        "description": "Counts.\n\nA second paragraph that lists leave out.",
        "input_schema": schema,
        "output_schema": output,
        "annotations": { "readOnlyHint": true },
    });
    let setup = Setup::new().server("maths", json!({ "tools": [tool] }));
    let inside =
        setup.toml("[servers.maths.tools.count]\naliases = ['zählen']\ntags = ['numbers']").open().await;
    let told = inside.answer("get_tool", json!({ "name": "count" })).await;
    assert_eq!(told["input_schema"].to_string(), schema.to_string());
    assert_eq!(told["output_schema"].to_string(), output.to_string());
    insta::assert_json_snapshot!(told);
    // The suggested call works once its placeholders are filled.
    let mut call = told["call"]["arguments"].clone();
    call["params"]["zeta"] = json!("z");
    assert_eq!(inside.answer("execute_tool", call).await, json!({ "zeta": "z" }));
    let told = inside.answer("get_tool", json!({ "name": "count" })).await;
    assert_eq!((&told["calls"], &told["failures"]), (&json!(1), &json!(0)));
}

#[tokio::test]
async fn up_to_five_tools_are_described_at_once() {
    let inside = Setup::new().server("many", json!({ "tool_count": 6 })).open().await;
    let names: Vec<String> = (0..6).map(|n| format!("many.tool_{n:04}")).collect();
    let told = inside.answer("get_tool", json!({ "names": names[..5] })).await;
    let got: Vec<&Value> =
        told["tools"].as_array().expect("tools").iter().map(|tool| &tool["name"]).collect();
    assert_eq!(json!(got), json!(names[..5]));
    assert!(told["tools"][0]["input_schema"].is_object());
    let fault = inside.fault("get_tool", json!({ "names": names })).await;
    assert_eq!(fault["code"], "invalid_params", "{fault}");
    // An unknown name affects only its own entry.
    let told = inside.answer("get_tool", json!({ "names": ["many.tool_0001", "nowhere.at_all"] })).await;
    assert_eq!(told["tools"][0]["name"], "many.tool_0001", "{told}");
    assert_eq!(told["tools"][1]["error"]["code"], "unknown_tool", "{told}");
    assert_eq!(inside.fault("get_tool", json!({})).await["code"], "invalid_params");
}

#[tokio::test]
async fn a_protocol_error_of_a_server_is_an_upstream_error() {
    let error = json!({ "code": -32042, "message": "The shelf is empty", "data": { "shelf": 7 } });
    let inside = Setup::new()
        .server("shop", json!({ "tools": [{ "name": "buy", "on": { "rpc_error": error } }] }))
        .open()
        .await;
    let answer = inside.golden("execute_tool", json!({ "name": "shop.buy" })).await;
    insta::assert_json_snapshot!(answer);
}

#[tokio::test]
async fn select_gives_a_part_of_the_result() {
    let inside = Setup::new()
        .server(
            "shop",
            json!({ "tools": [
                { "name": "rows", "on": { "json_rows": 20 } },
                { "name": "structured", "on": { "result": { "content": [{ "type": "text", "text": "[]" }], "structuredContent": { "a": { "b": 5 } } } } },
                { "name": "words", "on": { "text": "just words" } },
                { "name": "fail", "on": { "error": "out of order" } },
            ] }),
        )
        .open()
        .await;
    let select = async |tool: &str, filter: &str| {
        inside.call("execute_tool", json!({ "name": tool, "select": filter })).await
    };
    assert_eq!(json_of(&select("shop.rows", "[.[] | select(.even) | .id] | length").await), json!(10));
    assert_eq!(text_of(&select("shop.rows", ".[3].name").await), "row 3");
    assert_eq!(json_of(&select("shop.structured", ".a").await), json!({ "b": 5 }));
    assert_eq!(text_of(&select("shop.words", "ascii_upcase").await), "JUST WORDS");
    // Errors are not filtered.
    assert_eq!(text_of(&select("shop.fail", ".x").await), "out of order");
    // A filter that fails does not lose the result.
    let fault = json_of(&select("shop.rows", ".x.y").await)["error"].take();
    assert_eq!(fault["code"], "invalid_params", "{fault}");
    let next = fault["next_step"]["arguments"].clone();
    let kept = inside.answer("execute_tool", next).await;
    assert_eq!(kept["rows"].as_array().map(Vec::len), Some(20), "{kept}");
}

#[test]
fn meta_of_the_client_reaches_the_server_by_every_road() {
    let look = json!({ "tools": [{ "name": "look", "on": { "request": true } }] });
    let app = "[apps.looks]\noutput = '{{s}}'\n[[apps.looks.steps]]\nid = 's'\ntool = 'shop.look'\n";
    let mut client = Setup::new().server("shop", look).toml(app).start();
    client.until_ready("shop");
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let tenant = json!({ "id": 7, "names": ["a", "b"] });
    let meta = json!({
        "traceparent": trace,
        "com.acme/tenant": tenant,
        "progressToken": "of-the-client",
        "io.modelcontextprotocol/related-task": { "taskId": "of-the-client" },
        "nonet/fault": "timeout",
    });
    let action = json!({ "name": "shop.look" });
    for (tool, arguments) in [
        ("shop__look", json!({})),
        ("execute_tool", action.clone()),
        ("execute_tool", json!({ "name": "shop.look", "background": true })),
        ("run_parallel", json!({ "actions": [action.clone(), { "name": "shop.look", "after": ["1"] }] })),
        ("execute_tool", json!({ "name": "gateway.background_run", "params": action })),
        ("call_app", json!({ "app_id": "looks" })),
    ] {
        let params = json!({ "name": tool, "arguments": arguments, "_meta": meta });
        let answer = json_of(&client.request("tools/call", params)["result"]);
        let mut all: Vec<Value> = answer["results"].as_array().cloned().unwrap_or_default();
        all.iter_mut().for_each(|one| *one = one["result"].take());
        if all.is_empty() {
            all.push(answer.get("output").unwrap_or(&answer).clone());
        }
        for seen in all {
            let meta = &seen["params"]["_meta"];
            assert_eq!(
                (&meta["traceparent"], &meta["com.acme/tenant"]),
                (&json!(trace), &tenant),
                "{tool}: {seen}"
            );
            assert!(
                !meta.to_string().contains("of-the-client") && meta.get("nonet/fault").is_none(),
                "{tool}: {seen}"
            );
        }
    }
    // It has a limit, and nothing is lost silently.
    let meta = json!({ "com.acme/tenant": "x".repeat(20_000) });
    let call = json!({ "name": "execute_tool", "arguments": { "name": "shop.look" }, "_meta": meta });
    let answer = client.request("tools/call", call)["result"].take();
    assert!(json_of(&answer)["params"]["_meta"].get("com.acme/tenant").is_none(), "{answer}");
    assert!(notices_of(&answer).iter().any(|notice| notice["kind"] == "meta_left_out"), "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn meta_of_the_client_crosses_http() {
    let look = |era: &str| json!({ "era": era, "tools": [{ "name": "look", "on": { "request": true } }] });
    let (old, _old) = serve_script("127.0.0.1:0", look("legacy")).await;
    let (new, _new) = serve_script("127.0.0.1:0", look("modern")).await;
    let url = |address: String| format!("url = 'http://{address}/mcp'");
    let setup = Setup::new().server("near", look("legacy"));
    let site = setup.server_of("old", &url(old.clone())).server_of("new", &url(new.clone())).serve();
    let mut client = WebClient::new(&site.address, "/mcp");
    for server in ["near", "old", "new"] {
        let wire = format!("{server}__look");
        for (tool, arguments) in
            [("execute_tool", json!({ "name": format!("{server}.look") })), (&*wire, json!({}))]
        {
            let meta = json!({ "com.acme/tenant": "blue" });
            let params = json!({ "name": tool, "arguments": arguments, "_meta": meta });
            let seen = eventually("the server is ready", || {
                let seen = json_of(&client.request("tools/call", params.clone()).result());
                seen.get("params").is_some().then_some(seen)
            });
            assert_eq!(seen["params"]["_meta"]["com.acme/tenant"], "blue", "{server} {tool}: {seen}");
        }
    }
}

#[tokio::test]
async fn an_answer_that_is_no_answer_costs_one_call() {
    let inside = Setup::new()
        .server(
            "shop",
            json!({ "tools": [
                { "name": "text", "on": { "result": "just text" } },
                { "name": "twice", "on": { "twice": true } },
                { "name": "fine", "on": { "text": "fine" } },
            ] }),
        )
        .open()
        .await;
    let fault = inside.fault("execute_tool", json!({ "name": "shop.text" })).await;
    assert_eq!(fault["code"], "upstream_error", "{fault}");
    assert_eq!(json_of(&inside.execute("shop.twice", json!({ "a": 1 })).await), json!({ "a": 1 }));
    assert_eq!(text_of(&inside.execute("shop.fine", json!({})).await), "fine");
}

#[test]
fn three_megabytes_of_params_reach_the_server() {
    let mut client = Setup::new().server("echo", json!({ "tools": [{ "name": "say" }] })).start();
    client.until_ready("echo");
    let params = json!({ "text": "ä".repeat(1_500_000) });
    let call = json!({ "name": "echo.say", "params": params, "select": ".text | length" });
    assert_eq!(json_of(&client.call("execute_tool", call)), json!(1_500_000));
}

#[test]
fn a_call_without_arguments_is_a_call() {
    let mut client = Setup::new().server("echo", json!({ "tools": [{ "name": "say" }] })).start();
    client.until_ready("echo");
    for name in ["list_categories", "echo__say"] {
        let answer = client.request("tools/call", json!({ "name": name }));
        assert!(answer["result"]["content"][0]["text"].is_string(), "{answer}");
        assert!(answer["result"].get("isError").is_none(), "{answer}");
    }
    assert_eq!(client.call("execute_tool", json!({ "name": "echo.say" }))["content"][0]["text"], "{}");
}

/// Each layer of a call moves the future of the one below it.
#[tokio::test]
async fn the_future_of_a_call_is_small() {
    let inside = Setup::new().server("echo", json!({ "tools": [{ "name": "say" }] })).open().await;
    let call = inside.gateway.calls.execute(&inside.caller, CallRequest::default());
    assert!(size_of_val(&call) <= 3_200, "{} bytes", size_of_val(&call));
    let call = nonet_meta::call(&inside.gateway, &inside.caller, "execute_tool", serde_json::Map::new());
    assert!(size_of_val(&call) <= 4_000, "{} bytes", size_of_val(&call));
}
