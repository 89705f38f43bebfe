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
            { "id": "r", "name": "files.read" },
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
            { "id": "q", "name": "files.query", "select": ".rows[0]" },
            { "name": "files.echo", "params": { "first": "{{q[0]}}" } },
        ]),
    )
    .await;
    assert_eq!(results[0]["result"], json!([42]));
    assert_eq!(results[1]["result"], json!({ "first": 42 }));
    // If a filter fails, the result of the call can still be read.
    for filter in [".rows[", ".rows | .name"] {
        let actions = json!([{ "name": "files.query", "select": filter }]);
        let report = inside.answer("run_parallel", json!({ "actions": actions })).await;
        assert_eq!(report["failed"], 1, "{report}");
        assert!(report.to_string().contains("kept as"), "{report}");
    }
}

#[tokio::test]
async fn a_result_that_only_other_actions_use_comes_back_short() {
    let inside = files().await;
    let results = run(
        &inside,
        json!([
            { "id": "log", "name": "files.log" },
            { "name": "files.write", "params": { "content": "{{log}}" }, "select": ".content | length" },
            { "id": "small", "name": "files.read" },
            { "name": "files.echo", "params": { "x": "{{small}}" } },
        ]),
    )
    .await;
    let short = &results[0]["result"];
    assert!(short.to_string().len() < 700, "{short}");
    assert!(short["begins"].as_str().is_some_and(|text| text.starts_with("line 1 ")), "{short}");
    let lines = json!({ "ref": short["ref"], "lines": "40000" });
    let read = json_of(&inside.execute("gateway.fetch_result", lines).await);
    assert!(read["text"].as_str().is_some_and(|text| text.starts_with("line 40000 ")), "{read}");
    assert!(results[1]["result"].as_u64().is_some_and(|length| length > 1_000_000), "{}", results[1]);
    assert_eq!(results[2]["result"], TAX);
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
