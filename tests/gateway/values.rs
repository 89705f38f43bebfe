//! The value of a result if a server wraps its text: `{"content": "..."}` beside the same text.

use serde_json::{Value, json};

use crate::{
    inside::Inside,
    setup::{Setup, json_of, notices_of, text_of},
};

const TAX: &str = "def tax(amount):\n    return amount * 0.19\n";
const QUERY: &str = "{\"columns\": [\"n\"], \"rows\": [[42]]}";

fn wrapped(member: &str, text: &str) -> Value {
    let mut structured = json!({});
    structured[member] = json!(text);
    json!({ "content": [{ "type": "text", "text": text }], "structuredContent": structured })
}

async fn files() -> Inside {
    let log: String = (1..=40_000)
        .map(|n| {
            format!("line {n} {}\n", if n % 10_000 == 0 { "an error" } else { "all is well, nothing to see" })
        })
        .collect();
    let write = json!({
        "type": "object",
        "required": ["content"],
        "properties": { "content": { "type": "string" }, "rows": { "type": "array" } },
    });
    let tools = json!([
        { "name": "read", "on": { "result": wrapped("content", TAX) } },
        { "name": "query", "on": { "result": wrapped("result", QUERY) } },
        { "name": "log", "on": { "result": wrapped("content", &log) } },
        { "name": "person", "on": { "result": { "content": [{ "type": "text", "text": "Ada, 36" }], "structuredContent": { "name": "Ada", "age": 36 } } } },
        { "name": "write", "input_schema": write },
        { "name": "echo" },
    ]);
    Setup::new().server("files", json!({ "tools": tools })).open().await
}

async fn run(inside: &Inside, actions: Value) -> Vec<Value> {
    let report = inside.answer("run_parallel", json!({ "actions": actions })).await;
    assert_eq!(report["failed"], 0, "{report}");
    report["results"].as_array().expect("results").clone()
}

#[tokio::test]
async fn a_file_that_was_read_goes_into_text_as_it_is() {
    let inside = files().await;
    let results = run(
        &inside,
        json!([
            { "id": "r", "name": "files.read", "show": true },
            { "name": "files.write", "params": { "content": "# copied\n{{r}}" } },
            { "name": "files.write", "params": { "content": "{{r}}" } },
            { "name": "files.write", "params": { "content": "{{r.content}}" } },
        ]),
    )
    .await;
    assert_eq!(results[0]["result"], TAX);
    assert_eq!(results[1]["result"]["content"], format!("# copied\n{TAX}"));
    assert_eq!(results[2]["result"]["content"], TAX);
    assert_eq!(results[3]["result"]["content"], TAX);
}

#[tokio::test]
async fn what_the_visible_text_has_can_be_selected() {
    let inside = files().await;
    for filter in [".rows[0][0]", ".result.rows[0][0]", ".result | fromjson | .rows[0][0]"] {
        let call = json!({ "name": "files.query", "select": filter });
        assert_eq!(text_of(&inside.call("execute_tool", call).await), "42", "{filter}");
    }
    let results = run(
        &inside,
        json!([
            { "id": "q", "name": "files.query" },
            { "name": "files.echo", "params": { "n": "{{q.rows[0][0]}}", "same": "{{q.result.rows.0.0}}" } },
        ]),
    )
    .await;
    assert_eq!(results[1]["result"], json!({ "n": 42, "same": 42 }));
}

#[tokio::test]
async fn a_large_text_in_a_wrapper_is_kept_as_text() {
    let inside = files().await;
    let result = inside.execute("files.log", json!({})).await;
    assert!(result.to_string().len() < 100_000, "{} bytes", result.to_string().len());
    let last = result["content"].as_array().and_then(|blocks| blocks.last()).expect("a note");
    let note: Value = serde_json::from_str(last["text"].as_str().expect("text")).expect("JSON");
    for way in note["read_on"].as_array().expect("ways") {
        let read = json_of(&inside.call("execute_tool", way["arguments"].clone()).await);
        assert!(read.to_string().contains("line 1"), "{way}: {read}");
    }
    let read = async |query: Value| {
        let mut params = json!({ "ref": note["ref"] });
        for (key, value) in query.as_object().expect("params") {
            params[key] = value.clone();
        }
        json_of(&inside.execute("gateway.fetch_result", params).await)
    };
    assert_eq!(read(json!({ "grep": "an error" })).await["total"], 4);
    let lines = read(json!({ "lines": "39999-40000" })).await;
    assert_eq!(lines["total_lines"], 40_000, "{lines}");
    let counted = read(json!({ "select": ".content | split(\"\\n\") | length" })).await;
    assert_eq!(counted["value"], 40_001, "{counted}");
}

#[tokio::test]
async fn into_a_param_of_text_goes_text_and_that_is_told() {
    let inside = files().await;
    let report = inside
        .answer(
            "run_parallel",
            json!({ "actions": [
                { "id": "q", "name": "files.query" },
                { "id": "p", "name": "files.person" },
                { "name": "files.write", "params": { "content": "{{q}}", "rows": "{{q.rows}}" } },
                { "name": "files.write", "params": { "content": "{{q.rows}}" } },
                { "name": "files.write", "params": { "content": "{{p}}" } },
                { "name": "files.echo", "params": { "anything": "{{p}}" } },
            ] }),
        )
        .await;
    assert_eq!(report["failed"], 0, "{report}");
    let results = &report["results"];
    assert_eq!(results[2]["result"], json!({ "content": QUERY, "rows": [[42]] }));
    assert!(results[2]["repaired"][0].as_str().is_some_and(|told| told.contains("content")), "{report}");
    assert_eq!(results[3]["result"]["content"], "[[42]]");
    assert_eq!(results[4]["result"]["content"], "Ada, 36");
    assert_eq!(results[5]["result"]["anything"], json!({ "name": "Ada", "age": 36 }));
    assert!(results[5].get("repaired").is_none(), "{report}");

    // The same with a kept result.
    let shortened = inside.execute("files.log", json!({})).await;
    let last = shortened["content"].as_array().and_then(|blocks| blocks.last()).expect("a note");
    let note: Value = serde_json::from_str(last["text"].as_str().expect("text")).expect("JSON");
    let call = json!({
        "name": "files.write",
        "params": { "content": note["use_in_params"] },
        "select": ".content | length",
    });
    let result = inside.call("execute_tool", call).await;
    assert!(text_of(&result).parse::<usize>().is_ok_and(|length| length > 1_000_000), "{result}");
    assert!(notices_of(&result).is_empty(), "text is put in as it is: {result}");
}

#[tokio::test]
async fn an_action_may_select_from_its_result() {
    let inside = files().await;
    let results = run(
        &inside,
        json!([
            { "id": "q", "name": "files.query", "select": ".rows[0]", "show": true },
            { "name": "files.echo", "params": { "first": "{{q[0]}}" } },
        ]),
    )
    .await;
    assert_eq!(results[0]["result"], json!([42]));
    assert_eq!(results[1]["result"], json!({ "first": 42 }));
    // If a filter fails, the result of the call can still be read.
    let actions = json!([{ "name": "files.query", "select": ".rows | .name" }]);
    let report = inside.answer("run_parallel", json!({ "actions": actions })).await;
    assert_eq!(report["failed"], 1, "{report}");
    assert!(report.to_string().contains("kept as"), "{report}");
}

#[tokio::test]
async fn what_cannot_be_read_is_refused_before_anything_is_called() {
    let write = json!({ "type": "object", "properties": { "content": { "type": "string" } } });
    let tools = json!([
        { "name": "write", "input_schema": write, "on": { "counter": true } },
        { "name": "count", "on": { "counter": true }, "annotations": { "readOnlyHint": true } },
    ]);
    let apps = "[apps.torn]\noutput = '{{s}}'\n[[apps.torn.steps]]\nid = 's'\ntool = 'files.write'\n\
                [[apps.torn.steps]]\nid = 't'\ntool = 'files.write'\nparams = { content = '{{s.rows[}}' }\n";
    let inside = Setup::new().server("files", json!({ "tools": tools })).toml(apps).open().await;
    let write = json!({ "name": "files.write", "params": { "content": "x" } });
    let with = |key: &str, value: Value| {
        let mut call = write.clone();
        call[key] = value;
        call
    };
    let text = |text: &str| with("params", json!({ "content": text }));
    let bad = json!({ "name": "files.count", "select": ".[", "background": true });
    let watch = |key: &str, value: Value| {
        let mut params = json!({ "name": "files.count" });
        params[key] = value;
        json!({ "name": "gateway.watch_start", "params": params })
    };
    for (call, expected) in [
        (with("select", json!(".items[")), "expected `]` for `[` at its end"),
        (with("select", json!(".a b")), "at character 4, before `b`"),
        (with("select", json!("items[0]")), "a member is `.items`"),
        (bad, "expected `]`"),
        (text("{{ref:r-nope}}"), "`{{literal:ref:r-nope}}`"),
        (text("see {{ref r-0123456789}}"), "cannot be read"),
        (text("{{r-f2..}}"), "`{{literal:r-f2..}}`"),
        (text("{{r-d9c0617}}"), "a kept result is"),
        (text("{{r-0123456789}}"), "No result is kept as `r-0123456789`"),
        (watch("select", json!("[")), "`select`: "),
        (watch("notify_config", json!({ "expression": ".result >" })), "expression`: "),
        (json!({ "name": "apps.torn" }), "`{{s.rows[}}` cannot be read"),
        (json!({ "name": "apps.torn", "select": "[" }), "`select`: "),
    ] {
        let fault = inside.fault("execute_tool", call.clone()).await;
        assert!(fault["code"] == "invalid_params" || fault["code"] == "not_found", "{call}: {fault}");
        assert!(fault["message"].as_str().is_some_and(|said| said.contains(expected)), "{call}: {fault}");
    }
    for action in [
        with("select", json!(".items[")),
        with("when", json!(".steps.a |")),
        text("{{a.rows[0}}"),
        text("{{a | length}}"),
        text("{{ref:r-nope}}"),
        text("{{ref:r-0123456789}}"),
        text("{{nobody}}"),
        with("for_each", json!("{{a.*}}")),
    ] {
        let mut first = write.clone();
        first["id"] = json!("a");
        let actions = json!({ "actions": [first, action] });
        let fault = inside.fault("run_parallel", actions.clone()).await;
        assert!(fault["code"] == "invalid_params" || fault["code"] == "not_found", "{actions}: {fault}");
        let escape = "`{{literal:nobody}}`";
        assert_eq!(
            fault["message"].to_string().contains(escape),
            actions.to_string().contains("nobody"),
            "{fault}"
        );
    }
    // These are the first calls of the server.
    for (name, expected) in [("files.count", 1), ("files.write", 2)] {
        // A blank filter is none, and text in braces is text where no action can be meant.
        let call =
            json!({ "name": name, "params": { "content": "{{name}} {{a..b}} {{#each x}}" }, "select": " " });
        assert_eq!(inside.answer("execute_tool", call).await["n"], expected, "{name}");
    }
}

#[tokio::test]
async fn text_in_braces_can_be_written() {
    let inside = files().await;
    let echo = async |call: Value| json_of(&inside.call("execute_tool", call).await)["text"].clone();
    let of = |text: &str| json!({ "name": "files.echo", "params": { "text": text } });
    assert_eq!(echo(of("Dear {{ name }}")).await, "Dear {{ name }}");
    assert_eq!(echo(of("{{literal:ref:main}}, {{name}}")).await, "{{ref:main}}, {{name}}");
    let mut first = of("a");
    first["id"] = json!("a");
    let actions = json!([first, of("{{literal:name}} and {{literal: a.text }}: {{a.text}}")]);
    assert_eq!(run(&inside, actions).await[1]["result"]["text"], "{{name}} and {{ a.text }}: a");
}

#[tokio::test]
async fn a_filter_means_the_kept_value_beside_the_params_and_inside() {
    let events: Vec<Value> = (0..14_000).map(|n| json!({ "id": n, "kind": "click" })).collect();
    let events = json!({ "source": "log", "events": events }).to_string();
    let lines: String = (0..9_000).map(|n| format!("{{\"id\":{n},\"kind\":\"click\"}}\n")).collect();
    let tools = json!([
        { "name": "events", "on": { "text": events } },
        { "name": "lines", "on": { "text": lines } },
        { "name": "echo" },
    ]);
    let inside = Setup::new().server("log", json!({ "tools": tools })).open().await;
    let note = async |name: &str| {
        let shown = inside.execute(name, json!({})).await;
        let last = shown["content"].as_array().and_then(|blocks| blocks.last()).expect("a note").clone();
        json_of(&json!({ "content": [last] }))
    };
    let kept = note("log.events").await;
    // The first way to read on is a filter, which works as it is.
    let first = &kept["read_on"][0]["arguments"]["params"];
    assert_eq!(first["select"], ".events[:50]", "{kept}");
    let page = json_of(&inside.execute("gateway.fetch_result", first.clone()).await);
    assert_eq!(page["rows"].as_array().map(Vec::len), Some(50));

    let fetch = |params: Value, select: Value| {
        let mut call = json!({ "name": "gateway.fetch_result", "params": params, "select": select });
        call["params"]["ref"] = kept["ref"].clone();
        call
    };
    let read = async |params: Value, select: &str| {
        json_of(&inside.call("execute_tool", fetch(params, json!(select))).await)
    };
    assert_eq!(read(json!({}), ".events | length").await, 14_000);
    assert_eq!(read(json!({ "select": ".events # all" }), "length # of them").await, 14_000);
    assert_eq!(read(json!({ "select": ".events | length" }), "").await["value"], 14_000);
    let call = fetch(json!({ "jq": " " }), json!(".source"));
    assert_eq!(text_of(&inside.call("execute_tool", call).await), "log");
    let some = read(json!({}), ".events").await;
    assert_eq!(
        (&some["total"], &some["next_step"]["tool"]),
        (&json!(14_000), &json!("execute_tool")),
        "{some}"
    );
    let some = read(json!({ "grep": "13999" }), ".events").await;
    assert_eq!(some["total"], 1, "{some}");

    let mut counted = fetch(json!({}), json!(".events | length"));
    counted["show"] = json!(true);
    let actions = json!([
        counted,
        { "name": "log.echo", "params": { "n": "{{1}}" } },
        { "name": "log.echo", "params": { "id": format!("{{{{ref: {}.events[-1].id}}}}", kept["ref"].as_str().expect("a ref")) } },
    ]);
    let results = run(&inside, actions).await;
    assert_eq!((&results[0]["result"], &results[1]["result"]["n"]), (&json!(14_000), &json!(14_000)));
    assert_eq!(results[2]["result"]["id"], 13_999);

    // JSON lines are an array, and what is JSON already may be parsed once more.
    let kept = note("log.lines").await;
    let read = async |params: Value| {
        let mut params = params;
        params["ref"] = kept["ref"].clone();
        json_of(&inside.execute("gateway.fetch_result", params).await)
    };
    assert_eq!(read(json!({ "offset": 8_999 })).await["rows"], json!([{ "id": 8_999, "kind": "click" }]));
    assert_eq!(read(json!({ "lines": "9000" })).await["text"], "{\"id\":8999,\"kind\":\"click\"}\n");
    for filter in [
        "length",
        "fromjson | length",
        "map(fromjson) | length",
        "split(\"\\n\") | map(select(. != \"\") | fromjson) | length",
    ] {
        assert_eq!(read(json!({ "select": filter })).await["value"], 9_000, "{filter}");
    }
    let call = json!({ "name": "log.lines", "select": "map(.id) | add" });
    assert_eq!(text_of(&inside.call("execute_tool", call).await), "40495500");
}

#[tokio::test]
async fn a_filter_that_begins_beside_the_value_is_told() {
    let inside = files().await;
    let call = |select: &str| json!({ "name": "files.person", "select": select });
    let told = "no `result`; keys: name, age";
    let result = inside.call("execute_tool", call(".result.people | length")).await;
    assert_eq!(text_of(&result), "0");
    let notices = notices_of(&result);
    assert!(
        notices.iter().any(|notice| notice["message"].as_str().is_some_and(|said| said.contains(told))),
        "{result}"
    );
    assert!(notices_of(&inside.call("execute_tool", call(".result // .name")).await).is_empty());
    let results = run(&inside, json!([call(".result.people | length")])).await;
    assert!(results[0]["repaired"][0].as_str().is_some_and(|said| said.contains(told)), "{results:?}");
    // The same for a filter that fails for this reason.
    let fault = inside.fault("execute_tool", call(".result[] | .name")).await;
    assert!(fault["message"].as_str().is_some_and(|said| said.contains(told)), "{fault}");
}

#[tokio::test]
async fn a_picture_goes_from_one_tool_to_another() {
    let data = "iVBORw0KGgo=".repeat(400);
    let picture = json!({ "type": "image", "data": data, "mimeType": "image/png" });
    let blob = json!({ "type": "resource", "resource": { "uri": "file:///a.pdf", "blob": data } });
    let result = |blocks: Value| json!({ "result": { "content": blocks } });
    let write = json!({
        "type": "object",
        "required": ["base64"],
        "properties": { "base64": { "type": "string" } },
    });
    let tools = json!([
        { "name": "map", "on": result(json!([{ "type": "text", "text": "a map" }, picture])) },
        { "name": "shot", "on": result(json!([picture])) },
        { "name": "page", "on": result(json!([blob])) },
        { "name": "write", "input_schema": write },
    ]);
    let inside = Setup::new().server("draw", json!({ "tools": tools })).open().await;
    let write = |template: &str| json!({ "name": "draw.write", "params": { "base64": template }, "select": ".base64" });
    let actions = json!([
        { "id": "map", "name": "draw.map" },
        { "id": "shot", "name": "draw.shot" },
        { "id": "page", "name": "draw.page" },
        write("{{map.content.1.data}}"),
        write("{{shot.content[0].data}}"),
        write("{{shot}}"),
        write("{{page.content.0.resource.blob}}"),
        write("data:image/png;base64,{{shot}}"),
    ]);
    let results = run(&inside, actions).await;
    for (at, one) in results.iter().enumerate().skip(3).take(4) {
        assert_eq!(one["result"], json!(data), "{at}");
    }
    assert_eq!(results[7]["result"], json!(format!("data:image/png;base64,{data}")));
    // A reference has all of the picture.
    for (at, path) in [(0, ".content.1.data"), (1, ".content.0.data"), (1, "")] {
        let kept = &results[at];
        let reference = kept["ref"].as_str().unwrap_or_else(|| panic!("no reference: {kept}"));
        let written = inside.call("execute_tool", write(&format!("{{{{ref:{reference}{path}}}}}"))).await;
        assert_eq!(text_of(&written), data, "{at} {path}");
    }
}

#[tokio::test]
async fn a_result_that_only_other_actions_use_is_named() {
    let inside = files().await;
    let results = run(
        &inside,
        json!([
            { "id": "log", "name": "files.log" },
            { "name": "files.write", "params": { "content": "{{log}}" }, "select": ".content | length" },
        ]),
    )
    .await;
    let short = &results[0];
    assert!(short.to_string().len() < 200, "{short}");
    let lines = json!({ "ref": short["ref"], "lines": "40000" });
    let read = json_of(&inside.execute("gateway.fetch_result", lines).await);
    assert!(read["text"].as_str().is_some_and(|text| text.starts_with("line 40000 ")), "{read}");
    assert!(results[1]["result"].as_u64().is_some_and(|length| length > 1_000_000), "{}", results[1]);
}

#[tokio::test]
async fn pictures_come_as_blocks_named_by_their_action() {
    let picture = |data: &str| json!({ "type": "image", "data": data, "mimeType": "image/png" });
    let both = json!({ "content": [{ "type": "text", "text": "a map" }, picture("TUFQ")] });
    let tools = json!([
        { "name": "map", "on": { "result": both } },
        { "name": "shot", "on": { "result": { "content": [picture("U0hPVA==")] } } },
    ]);
    let inside = Setup::new().server("draw", json!({ "tools": tools })).open().await;
    let actions = json!([{ "id": "m", "name": "draw.map" }, { "id": "s", "name": "draw.shot" }]);
    let result = inside.call("run_parallel", json!({ "actions": actions })).await;
    let report = json_of(&result);
    assert_eq!(report["results"][0]["result"], "a map");
    assert_eq!(report["results"][0]["media"], json!(["image/png"]));
    assert!(!text_of(&result).contains("TUFQ"), "{report}");
    let blocks = result["content"].as_array().expect("blocks");
    let kinds: Vec<&str> = blocks.iter().filter_map(|block| block["type"].as_str()).collect();
    assert_eq!(kinds, ["text", "text", "image", "text", "image"]);
    assert!(blocks[3]["text"].as_str().is_some_and(|text| text.contains("`s`")), "{result}");
    assert_eq!(blocks[4], picture("U0hPVA=="));
}

#[tokio::test]
async fn the_input_of_an_app_takes_kept_results() {
    let tools = json!([{ "name": "rows", "on": { "json_rows": 5_000 } }, { "name": "echo" }]);
    let apps = "[apps.plain]\ntool = 'files.echo'\n[apps.steps]\noutput = '{{s}}'\n\
                [[apps.steps.steps]]\nid = 's'\ntool = 'files.echo'\nparams = { text = '{{input.text}}' }\n\
                [apps.texts]\ntool = 'files.echo'\ninput_schema = { type = 'object', properties = { text = { type = 'string' } } }\n";
    let inside = Setup::new().server("files", json!({ "tools": tools })).toml(apps).open().await;
    let shortened = inside.execute("files.rows", json!({})).await;
    let last = shortened["content"].as_array().and_then(|blocks| blocks.last()).expect("a note");
    let note: Value = serde_json::from_str(last["text"].as_str().expect("text")).expect("JSON");
    let row = note["use_in_params"].as_str().expect("a template").replace("}}", "[7].id}}");
    for (app, expected) in [("plain", json!(7)), ("steps", json!(7)), ("texts", json!("7"))] {
        let told = inside.answer("call_app", json!({ "app_id": app, "input": { "text": row } })).await;
        assert_eq!(told["output"]["text"], expected, "{app}: {told}");
    }
    let unknown = json!({ "app_id": "plain", "input": { "text": "{{ref:r-0000000000}}" } });
    assert_eq!(inside.fault("call_app", unknown).await["code"], "not_found");
}
