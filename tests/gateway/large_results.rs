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

    // Similar text stays as it is.
    let own = json!({ "x": "{{ref:mine}} {{ref:}} {{reference}}" });
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
async fn an_error_is_never_shortened() {
    let inside = warehouse().await;
    let result = inside.execute("store.error", json!({})).await;
    assert_eq!(result["isError"], true);
    assert_eq!(result["content"].as_array().map(Vec::len), Some(1));
    assert!(text_of(&result).len() > 300_000 && text_of(&result).ends_with(" it ends"));
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
