//! Large results: kept whole, shown as a preview, read page by page.

use serde_json::{Value, json};

use crate::{
    inside::Inside,
    setup::{Setup, json_of, text_of},
};

/// The default budget of a result.
const BUDGET: usize = 100_000;

async fn warehouse() -> Inside {
    let image = json!({ "type": "image", "data": "A".repeat(150_000), "mimeType": "image/png" });
    let tools = json!([
        { "name": "text", "on": { "size": 5_000_000 } },
        { "name": "rows", "on": { "json_rows": 5_000 } },
        { "name": "small", "on": { "size": 90_000 } },
        { "name": "structured", "on": { "json_rows": 4_000, "structured": true } },
        { "name": "error", "on": { "error": format!("it begins {} it ends", "x".repeat(300_000)) } },
        { "name": "small_error", "on": { "error": "x".repeat(90_000) } },
        { "name": "fat_error", "on": { "result": { "content": [{ "type": "text", "text": "no" }], "isError": true, "structuredContent": { "a": "x".repeat(300_000) }, "more": "y".repeat(300_000) } } },
        { "name": "refuse", "on": { "rpc_error": { "code": -32000, "message": "x".repeat(50_000) } } },
        { "name": "image", "on": { "result": { "content": [image, { "type": "text", "text": "word ".repeat(40_000) }] } } },
        { "name": "echo" },
    ]);
    Setup::new().server("store", json!({ "tools": tools })).open().await
}

/// Returns the note at the end of a shortened result.
fn note(result: &Value) -> Value {
    let last = result["content"].as_array().and_then(|blocks| blocks.last()).expect("a block");
    serde_json::from_str(last["text"].as_str().expect("text")).expect("a JSON note")
}

async fn read(inside: &Inside, params: Value) -> Value {
    json_of(&inside.execute("gateway.fetch_result", params).await)
}

#[tokio::test]
async fn five_megabytes_of_text_are_shown_by_head_and_tail() {
    let inside = warehouse().await;
    let result = inside.execute("store.text", json!({})).await;
    assert!(result.to_string().len() < BUDGET, "{} bytes", result.to_string().len());
    let (note, shown) = (note(&result), text_of(&result));
    assert_eq!(note["truncated"], true, "{note}");
    assert!(note["bytes"].as_u64().is_some_and(|bytes| bytes > 5_000_000), "{note}");
    assert!(shown.starts_with("line 00000001 "), "{shown}");
    // Cut at line ends.
    assert!(
        shown.lines().all(|line| line.starts_with("line ")
            || line.starts_with("[...")
            || line.chars().all(|c| c == '.')),
        "{shown}"
    );

    // All bytes can be read, each page naming the next.
    let mut whole = String::new();
    let mut params = json!({ "ref": note["ref"], "offset": 0, "limit": 50_000 });
    loop {
        let page = read(&inside, params.clone()).await;
        whole.push_str(page["text"].as_str().expect("text"));
        match page["next_step"]["arguments"]["params"].clone() {
            Value::Null => break,
            next => params = next,
        }
    }
    assert_eq!(whole.len(), 5_000_000);
    assert!(
        whole
            .lines()
            .take(60_000)
            .enumerate()
            .all(|(n, line)| line.starts_with(&format!("line {:08} ", n + 1)))
    );

    let lines = read(&inside, json!({ "ref": note["ref"], "lines": "40000-40002" })).await;
    let numbers: Vec<&str> = lines["text"].as_str().expect("text").lines().map(|line| &line[..13]).collect();
    assert_eq!(numbers, ["line 00040000", "line 00040001", "line 00040002"]);
    let found = read(&inside, json!({ "ref": note["ref"], "grep": "LINE 000123[45]0" })).await;
    assert_eq!(found["total"], 2, "{found}");
    assert_eq!(found["matches"][0]["line"], 12_340, "{found}");
}

#[tokio::test]
async fn an_array_is_shown_by_count_shape_and_first_rows() {
    let inside = warehouse().await;
    let result = inside.execute("store.rows", json!({})).await;
    let note = note(&result);
    let preview = json_of(&result);
    assert_eq!(preview["count"], 5_000, "{preview}");
    assert_eq!(preview["first"][1], json!({ "id": 1, "name": "row 1", "even": false, "price": 1.5 }));
    assert_eq!(preview["shape"]["even"], "boolean", "{preview}");

    let page = read(&inside, json!({ "ref": note["ref"], "offset": 4_998 })).await;
    assert_eq!(page["rows"][1]["id"], 4_999, "{page}");
    assert_eq!(page["rows"].as_array().map(Vec::len), Some(2));
    assert!(page.get("next_step").is_none(), "{page}");
    let page = read(&inside, json!({ "ref": note["ref"], "offset": 5, "limit": 3 })).await;
    assert_eq!(page["next_step"]["arguments"]["params"]["offset"], 8, "{page}");
    let picked =
        read(&inside, json!({ "ref": note["ref"], "select": "map(select(.id > 4990)) | length" })).await;
    assert_eq!(picked["value"], 9, "{picked}");
    // Every `read_on` call in the note works as it is.
    for way in note["read_on"].as_array().expect("ways") {
        let answer = inside.call("execute_tool", way["arguments"].clone()).await;
        assert!(answer.get("isError").is_none(), "{way}: {answer}");
    }
}

#[tokio::test]
async fn a_kept_result_goes_into_params_without_being_read() {
    let inside = warehouse().await;
    let note = note(&inside.execute("store.rows", json!({})).await);
    let reference = note["ref"].as_str().expect("a reference");
    let params = json!({ "rows": note["use_in_params"], "one": format!("{{{{ref:{reference}[3].name}}}}"), "text": format!("it is {{{{ref:{reference}.7.id}}}}!") });
    let select = "{count: (.rows | length), last: .rows[-1].id, one: .one, text: .text}";
    let call = json!({ "name": "store.echo", "params": params, "select": select });
    let told = inside.answer("execute_tool", call).await;
    assert_eq!(told, json!({ "count": 5_000, "last": 4_999, "one": "row 3", "text": "it is 7!" }));

    let actions =
        json!([{ "name": "store.echo", "params": { "n": format!("{{{{ref:{reference}[9].id}}}}") } }]);
    let report = inside.answer("run_parallel", json!({ "actions": actions })).await;
    assert_eq!(report["results"][0]["result"], json!({ "n": 9 }), "{report}");

    // Similar text stays as it is, unless it is in the place of a reference.
    let own = json!({ "x": "{{mine}} {{ref}} {{reference}}" });
    assert_eq!(json_of(&inside.execute("store.echo", own.clone()).await), own);
    let gone = format!(
        "{{{{ref:{}}}}}",
        reference.replace(|c: char| c.is_ascii_digit(), "0").replace(['a', 'b', 'c'], "f")
    );
    for missing in [gone, format!("{{{{ref:{reference}[3].nothing}}}}")] {
        let call = json!({ "name": "store.echo", "params": { "x": missing } });
        let fault = inside.fault("execute_tool", call).await;
        assert_eq!(fault["code"], "not_found", "{missing}: {fault}");
    }
}

#[tokio::test]
async fn what_fits_the_budget_is_not_touched() {
    let inside = warehouse().await;
    let result = inside.execute("store.small", json!({})).await;
    assert_eq!(result["content"].as_array().map(Vec::len), Some(1));
    assert_eq!(text_of(&result).len(), 90_000);
}

#[tokio::test]
async fn the_budget_is_the_configurations() {
    let tools = json!([{ "name": "text", "on": { "size": 3_000 } }]);
    let inside = Setup::new()
        .server("store", json!({ "tools": tools }))
        .gateway("max_result_bytes = 2000")
        .open()
        .await;
    let result = inside.execute("store.text", json!({})).await;
    assert!(note(&result)["ref"].is_string(), "{result}");
    assert!(result.to_string().len() <= 2_500, "{} bytes", result.to_string().len());
}

#[tokio::test]
async fn an_error_within_the_budget_is_not_touched_and_a_larger_one_is_shown_by_head_and_tail() {
    let inside = warehouse().await;
    let small = inside.execute("store.small_error", json!({})).await;
    assert_eq!((text_of(&small).len(), small["content"].as_array().map(Vec::len)), (90_000, Some(1)));
    let result = inside.execute("store.error", json!({})).await;
    assert_eq!(result["isError"], true);
    let shown = text_of(&result);
    assert!(shown.len() < 5_000 && shown.starts_with("it begins ") && shown.ends_with(" it ends"), "{shown}");
    let page = read(&inside, json!({ "ref": note(&result)["ref"], "offset": 300_010 })).await;
    assert_eq!(page["text"], " it ends", "{page}");
    // No schema requires what else an error holds.
    let fat = inside.execute("store.fat_error", json!({})).await;
    assert!(fat.to_string().len() < 2_000 && fat["isError"] == true && text_of(&fat) == "no", "{fat}");
    let kept = read(&inside, json!({ "ref": note(&fat)["ref"], "select": ".a | length" })).await;
    assert_eq!(kept["value"], 300_000, "{kept}");
}

#[tokio::test]
async fn a_fault_that_quotes_a_server_at_length_stays_a_fault() {
    let message = format!("it begins {} it ends", "x".repeat(30_000));
    let error = json!({ "code": -32000, "message": message, "data": { "why": "y".repeat(30_000) } });
    let tools = json!([{ "name": "refuse", "on": { "rpc_error": error } }]);
    let inside = Setup::new()
        .server("store", json!({ "tools": tools }))
        .gateway("max_result_bytes = 10000")
        .open()
        .await;
    let result = inside.execute("store.refuse", json!({})).await;
    assert!(result.to_string().len() < 10_000, "{} bytes", result.to_string().len());
    assert_eq!(
        (&result["isError"], &result["_meta"]["nonet/fault"]),
        (&json!(true), &json!("upstream_error"))
    );
    let fault = json_of(&result)["error"].take();
    assert_eq!(
        (&fault["code"], &fault["truncated"]),
        (&json!("upstream_error"), &json!(true)),
        "{fault:.300}"
    );
    let said = fault["message"].as_str().expect("a message");
    assert!(said.contains("it begins ") && said.ends_with(" it ends"), "{said:.100}");
    assert!(fault["next_step"].is_null(), "{fault:.300}");
    for way in fault["read_on"].as_array().expect("ways") {
        let answer = inside.call("execute_tool", way["arguments"].clone()).await;
        assert!(answer["isError"] != true && answer.to_string().len() < 10_000, "{way}: {answer:.300}");
    }
    let pick = json!({ "ref": fault["ref"], "select": ".error.details.data.why | length" });
    assert_eq!(read(&inside, pick).await["value"], 30_000);
}

#[tokio::test]
async fn every_error_of_run_parallel_keeps_to_the_budget() {
    let inside = warehouse().await;
    let names = ["error", "fat_error", "refuse", "small_error", "text", "error", "refuse"];
    let actions: Vec<Value> = names.iter().map(|name| json!({ "name": format!("store.{name}") })).collect();
    let result = inside.call("run_parallel", json!({ "actions": actions })).await;
    assert!(result.to_string().len() < BUDGET, "{} bytes", result.to_string().len());
    let report = json_of(&result);
    let results = report["results"].as_array().expect("results");
    assert_eq!((results.len(), &report["failed"]), (7, &json!(6)), "{report:.500}");
    assert!(results.iter().all(|one| one["success"] == (one["name"] == "store.text")), "{report:.500}");
    let error = note(&results[0]["result"])["ref"].clone();
    let page = read(&inside, json!({ "ref": error, "offset": 300_010 })).await;
    assert_eq!(page["text"], " it ends", "{page}");
    assert_eq!(results[2]["error"]["code"], "upstream_error", "{report:.500}");
}

/// Returns a server whose definitions are larger than any budget.
fn encyclopedia() -> Setup {
    let schema =
        json!({ "type": "object", "properties": { "page": { "type": "string", "description": "Page" } } });
    let tools: Vec<Value> = (0..5)
        .map(|n| {
            json!({
                "name": format!("t{n}"),
                "description": format!("Reads. {} The end.", "words\n".repeat(100_000)),
                "inputSchema": schema,
            })
        })
        .collect();
    let huge: serde_json::Map<String, Value> = (0..3_000)
        .map(|n| (format!("p{n}"), json!({ "type": "string", "description": "d".repeat(200) })))
        .collect();
    let tools: Vec<Value> = tools
        .into_iter()
        .chain([json!({ "name": "huge", "inputSchema": { "type": "object", "properties": huge } })])
        .collect();
    let prompts = json!([{ "name": "plan", "text": format!("First. {} Last.", "line\n".repeat(100_000)) }]);
    Setup::new().server("book", json!({ "tools": tools, "prompts": prompts }))
}

#[tokio::test]
async fn definitions_and_prompts_keep_to_the_budget_and_can_be_read_on() {
    let inside = encyclopedia().open().await;
    let small = async |tool: &str, arguments: Value| {
        let result = inside.call(tool, arguments).await;
        assert!(result.to_string().len() < BUDGET, "{tool}: {} bytes", result.to_string().len());
        result
    };
    let names: Vec<String> = (0..5).map(|n| format!("book.t{n}")).collect();
    let told = json_of(&small("get_tool", json!({ "names": names })).await);
    let tools = told["tools"].as_array().expect("tools");
    assert_eq!((tools.len(), &told["truncated"]), (5, &json!(true)));
    for tool in tools {
        let about = tool["description"].as_str().expect("text");
        assert!(about.starts_with("Reads. ") && about.ends_with(" The end."), "{about:.100}");
        assert_eq!(tool["input_schema"]["properties"]["page"]["type"], "string", "the schema is whole");
    }
    for way in told["read_on"].as_array().expect("ways") {
        let answer = small("execute_tool", way["arguments"].clone()).await;
        assert!(answer["isError"] != true, "{way}: {answer:.300}");
    }
    let huge = json_of(&small("get_tool", json!({ "name": "book.huge" })).await);
    assert_eq!(huge["name"], "book.huge");
    let pick = json!({ "ref": huge["ref"], "select": ".input_schema.properties.p2999.type" });
    assert_eq!(read(&inside, pick).await["text"], "string");
    assert_eq!(huge["read_on"][0]["arguments"]["params"]["select"], ".input_schema.properties");

    let full = json!({ "query": "reads words", "category": "book", "detail": "full", "limit": 50 });
    assert!(json_of(&small("search_tools", full).await)["results"].is_array());
    small("search_tools", json!({ "query": "reads words" })).await;
    small("browse_category", json!({ "category": "book" })).await;
    let loaded = json!({ "name": "gateway.load_tools", "params": { "names": names } });
    let loaded = json_of(&small("execute_tool", loaded).await);
    assert_eq!(loaded["tools"][4]["input_schema"]["type"], "object", "{loaded:.300}");

    let skill = small("use_skill", json!({ "command": "book/plan" })).await;
    assert!(text_of(&skill).contains("First. ") && text_of(&skill).contains(" Last."), "{skill:.300}");
    let prompt = inside.gateway.calls.get_prompt(&inside.caller, "book__plan", serde_json::Map::new()).await;
    let prompt = prompt.expect("a prompt");
    assert!(prompt.to_string().len() < BUDGET, "{} bytes", prompt.to_string().len());
    let text = |at: usize| prompt["messages"][at]["content"]["text"].as_str().unwrap_or_default();
    assert!(text(0).starts_with("First. ") && text(0).ends_with(" Last."), "{prompt:.300}");
    let note: Value = serde_json::from_str(text(1)).expect("a note");
    let pick = json!({ "ref": note["ref"], "select": ".messages[0].content.text | length" });
    assert_eq!(read(&inside, pick).await["value"], 500_013, "{note}");
}

#[tokio::test]
async fn a_protocol_error_that_is_passed_on_keeps_to_the_budget() {
    let tools = json!([
        { "name": "refuse", "on": { "rpc_error": { "code": -31_234, "message": format!("No. {} Really.", "x".repeat(20_000)), "data": { "why": "y".repeat(20_000) } } } },
    ]);
    let inside = Setup::new()
        .server_with("own", json!({ "tools": tools }), "expose = 'verbatim'")
        .gateway("max_result_bytes = 5000")
        .open()
        .await;
    let answer = nonet_meta::call(&inside.gateway, &inside.caller, "refuse", serde_json::Map::new()).await;
    let nonet_meta::MetaAnswer::Refused(error) = answer else { panic!("{answer:?}") };
    assert_eq!(error.code.0, -31_234);
    let message = &error.message;
    assert!(
        message.len() < 5_000 && message.starts_with("No. ") && message.ends_with(" Really."),
        "{message}"
    );
    let data = error.data.expect("a note");
    let pick = json!({ "ref": data["ref"], "select": ".data.why | length" });
    assert_eq!(read(&inside, pick).await["value"], 20_000, "{data}");
}

#[tokio::test]
async fn structured_content_is_never_cut() {
    let inside = warehouse().await;
    let result = inside.execute("store.structured", json!({})).await;
    assert_eq!(result["structuredContent"]["rows"].as_array().map(Vec::len), Some(4_000));
}

#[tokio::test]
async fn images_are_kept_as_they_are() {
    let inside = warehouse().await;
    let result = inside.execute("store.image", json!({})).await;
    assert_eq!(result["content"][0]["data"].as_str().map(str::len), Some(150_000));
    assert!(result["content"][1]["text"].as_str().is_some_and(|text| text.len() < 20_000));
    assert!(note(&result)["ref"].is_string());
}

#[tokio::test]
async fn a_reference_that_is_wrong_is_told() {
    let inside = warehouse().await;
    let fault = inside.fault("gateway.fetch_result", json!({ "ref": "r-nowhere" })).await;
    assert_eq!(fault["code"], "not_found", "{fault}");
    let reference = note(&inside.execute("store.text", json!({})).await)["ref"].clone();
    for bad in [
        json!({ "lines": "9-3" }),
        json!({ "lines": "x" }),
        json!({ "grep": "(" }),
        json!({ "select": ".[" }),
    ] {
        let mut params = bad.clone();
        params["ref"] = reference.clone();
        let fault = inside.fault("gateway.fetch_result", params).await;
        assert_eq!(fault["code"], "invalid_params", "{bad}: {fault}");
    }
    // Past the end, a page is empty and not an error.
    let page = read(&inside, json!({ "ref": reference, "offset": 90_000_000 })).await;
    assert_eq!(page["text"], "", "{page}");
}
