use serde_json::{Map, Value, json};

use super::*;

fn text_result(text: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": text }] })
}

fn shown(result: Value, budget: usize) -> Value {
    let size = json_len(&result);
    assert!(must_be_shortened(&result, size, budget), "{size} bytes");
    shorten(result, size, budget, Ok("r-0123456789"))
}

fn preview_of(text: &str, budget: usize) -> Value {
    let shown = shown(text_result(text), budget);
    assert!(json_len(&shown) < budget, "{shown}");
    let text = shown["content"][0]["text"].as_str().unwrap();
    serde_json::from_str(text).unwrap_or_else(|_| json!(text))
}

fn read_on(text: &str, query: Value) -> Result<Value, crate::fault::Fault> {
    let query: Map<String, Value> = query.as_object().cloned().unwrap();
    read(ResultValue::of(&text_result(text)).body, &query, 5_000)
}

fn rows(count: usize) -> String {
    let rows: Vec<Value> = (0..count).map(|n| json!({"id": n, "name": format!("row {n}")})).collect();
    Value::Array(rows).to_string()
}

#[test]
fn what_fits_and_what_is_no_text_is_not_shortened() {
    let check = |result: Value, budget: usize| {
        let size = json_len(&result);
        assert!(!must_be_shortened(&result, size, budget), "{size} bytes");
    };
    check(text_result("small"), 1_000);
    check(json!({"content": [{"type": "image", "data": "A".repeat(5_000), "mimeType": "image/png"}]}), 1_000);
}

#[test]
fn an_error_is_shortened_too_and_stays_one() {
    let mut failed = text_result(&format!("begins {} ends", "x".repeat(5_000)));
    failed["isError"] = json!(true);
    failed["_meta"] = json!(5);
    failed["structuredContent"] = json!({ "a": "y".repeat(5_000) });
    let shown = shown(failed, 2_000);
    let text = shown["content"][0]["text"].as_str().unwrap();
    assert!(text.starts_with("begins ") && text.ends_with(" ends") && text.len() < 1_100, "{text}");
    assert_eq!((&shown["isError"], shown.get("structuredContent")), (&json!(true), None));
    assert_eq!(shown["_meta"], json!({ REFERENCE: "r-0123456789" }));
}

#[test]
fn only_nonet_sets_its_keys_of_meta() {
    let mut answer = json!({
        "content": [
            { "type": "text", "text": "a", "_meta": { "nonet/notices": true, "own": 1 } },
            { "type": "resource", "resource": { "uri": "x:y", "_meta": { "Nonet": 1 } }, "_meta": 7 },
            null,
        ],
        "messages": [{ "role": "user", "content": { "type": "text", "_meta": { "nonet/x": 1 } } }],
        "_meta": { "nonet/fault": "timeout", "NONET/ref": "r-1", "nonet": 1, "ünonet": 2, "io.x/nonet": 3 },
    });
    assert!(is_fault(&answer));
    drop_own_meta(&mut answer);
    assert_eq!(answer["_meta"], json!({ "ünonet": 2, "io.x/nonet": 3 }));
    assert_eq!(answer["content"][0]["_meta"], json!({ "own": 1 }));
    assert_eq!(answer["content"][1], json!({ "type": "resource", "resource": { "uri": "x:y" }, "_meta": 7 }));
    assert_eq!(answer["messages"][0]["content"], json!({ "type": "text" }));
    assert!(!is_fault(&answer));
    for mut odd in [json!(null), json!([1]), json!({ "_meta": [], "content": 5 })] {
        let before = odd.clone();
        drop_own_meta(&mut odd);
        assert_eq!(odd, before);
    }
}

#[test]
fn an_array_is_shown_by_count_shape_and_first_rows() {
    let preview = preview_of(&rows(5_000), 10_000);
    assert_eq!(preview["count"], 5_000);
    assert_eq!(preview["first"][0], json!({"id": 0, "name": "row 0"}));
    assert_eq!(preview["shape"], json!({"id": "number", "name": "string (5 bytes)"}));
}

#[test]
fn an_object_is_shown_member_by_member() {
    let text = json!({
        "total": 7,
        "rows": vec![json!({"n": 1}); 9_000],
        "note": "é\"".repeat(40_000),
        "deep": {"a": {"b": {"c": {"d": vec![0; 50_000]}}}},
    });
    let preview = preview_of(&text.to_string(), 10_000);
    assert_eq!((&preview["keys"], &preview["fields"]["total"]), (&json!(4), &json!(7)));
    assert_eq!(preview["fields"]["rows"]["count"], 9_000);
    assert!(preview["fields"]["note"].as_str().unwrap().starts_with("é\"é\""), "{preview}");
}

#[test]
fn tables_and_json_lines_are_shown_by_their_rows() {
    let mut csv = String::from("id,name,price\n");
    csv.extend((0..3_000).map(|n| format!("{n},\"row, {n}\",{n}.5\n")));
    let preview = preview_of(&csv, 10_000);
    assert_eq!((&preview["preview"], &preview["rows"]), (&json!("table"), &json!(3_000)));
    assert_eq!(preview["columns"], json!(["id", "name", "price"]));
    assert_eq!(
        (&preview["first"][0], &preview["last"]),
        (&json!("0,\"row, 0\",0.5"), &json!("2999,\"row, 2999\",2999.5"))
    );

    let mut markdown = String::from("| id | name |\n|----|------|\n");
    markdown.extend((0..3_000).map(|n| format!("| {n} | row {n} |\n")));
    let preview = preview_of(&markdown, 10_000);
    assert_eq!((&preview["columns"], &preview["rows"]), (&json!(["id", "name"]), &json!(3_000)));

    let lines: String = (0..3_000).map(|n| format!("{{\"id\":{n}}}\n")).collect();
    let preview = preview_of(&lines, 10_000);
    assert_eq!((&preview["count"], &preview["first"][2]), (&json!(3_000), &json!({"id": 2})));
}

#[test]
fn prose_is_shown_by_head_and_tail() {
    let text: String = (0..4_000).map(|n| format!("línea {n}, and, so, on. More.\n")).collect();
    let preview = preview_of(&text, 5_000);
    let preview = preview.as_str().unwrap();
    assert!(
        preview.starts_with("línea 0,") && preview.ends_with("línea 3999, and, so, on. More.\n"),
        "{preview}"
    );
}

#[test]
fn the_note_says_how_to_read_on_or_why_nothing_is_kept() {
    let result = text_result(&rows(5_000));
    let size = json_len(&result);
    let note = |reference| {
        let shown = shorten(result.clone(), size, 10_000, reference);
        let last = shown["content"].as_array().and_then(|blocks| blocks.last()).unwrap();
        serde_json::from_str::<Value>(last["text"].as_str().unwrap()).unwrap()
    };
    let kept = note(Ok("r-0123456789"));
    assert_eq!(kept["ref"], "r-0123456789");
    assert_eq!(kept["read_on"][0]["arguments"]["params"]["ref"], "r-0123456789");
    assert_eq!(note(Err("disk full"))["not_kept"], "disk full");
}

#[test]
fn rows_matches_and_lines_are_read() {
    let text = rows(5_000);
    let page = read_on(&text, json!({"ref": "r", "offset": 4_998})).unwrap();
    assert_eq!(page["rows"], json!([{"id": 4998, "name": "row 4998"}, {"id": 4999, "name": "row 4999"}]));
    assert!(page.get("next_step").is_none());
    assert_eq!(read_on(&text, json!({"grep": "row 12\\b"})).unwrap()["total"], 1);
    assert_eq!(read_on(&text, json!({"lines": "2-3"})).unwrap()["text"], "  {\n    \"id\": 0,\n");
    for bad in [json!({"lines": "0-3"}), json!({"grep": "("})] {
        assert!(read_on(&text, bad.clone()).is_err(), "{bad}");
    }
}

#[test]
fn every_byte_of_a_text_can_be_read() {
    let text: String = (0..4_000).map(|n| format!("línea {n}\n")).collect();
    let (mut whole, mut offset) = (String::new(), 0);
    loop {
        let page = read_on(&text, json!({"ref": "r", "offset": offset})).unwrap();
        whole.push_str(page["text"].as_str().unwrap());
        match page["next_step"]["arguments"]["params"]["offset"].as_u64() {
            Some(next) => offset = next,
            None => break,
        }
    }
    assert_eq!(whole, text);
}

#[test]
fn a_value_is_the_same_read_from_text_and_from_a_tree() {
    for result in [
        text_result("plain"),
        text_result("{\"a\": [1, 2]}"),
        text_result("12"),
        text_result(""),
        json!({"content": []}),
        json!({"content": [{"type": "text", "text": "a"}, {"type": "image", "data": ""}, {"type": "text", "text": "b\n"}]}),
        json!({"content": [{"type": "text", "text": "x"}], "structuredContent": {"k": "v\"é"}}),
        json!({"content": [{"type": "text", "text": "x"}], "structuredContent": null}),
    ] {
        let from_text = ResultValue::read(&result.to_string());
        assert_eq!(from_text, ResultValue::of(&result), "{result}");
        let value: Value = serde_json::from_str(&from_text.body.json()).unwrap();
        assert_eq!(value, value_of(&result), "{result}");
    }
}

#[test]
fn a_preview_of_wrapped_text_is_one_of_text() {
    let log = "a line of the log\n".repeat(2_000);
    let result = json!({
        "content": [{"type": "text", "text": log}],
        "structuredContent": {"content": log},
    });
    let shown = shown(result, 10_000);
    let note: Value = serde_json::from_str(shown["content"][1]["text"].as_str().unwrap()).unwrap();
    assert_eq!(note["read_on"][1]["arguments"]["params"]["grep"], "error", "{note}");
    assert!(shown["structuredContent"]["content"].as_str().is_some_and(|text| text.len() < 60), "{shown}");
    assert!(json_len(&shown) < 10_000);
}

#[test]
fn a_short_text_beside_a_large_picture_stays_whole() {
    let text = "line\n".repeat(600);
    let picture = json!({"type": "image", "data": "A".repeat(200_000), "mimeType": "image/png"});
    let result = json!({"content": [{"type": "text", "text": text}, picture]});
    let shown = shown(result.clone(), 100_000);
    assert_eq!(shown["content"][0], result["content"][0]);
    assert_eq!(shown["content"][1], picture);
}

#[test]
fn structured_content_is_never_cut() {
    let structured = json!({"rows": vec![json!({"a": 1}); 1_000]});
    let result = json!({
        "content": [{"type": "text", "text": structured.to_string()}],
        "structuredContent": structured,
    });
    assert_eq!(shown(result, 2_000)["structuredContent"], structured);
}

#[test]
fn of_many_blocks_the_first_stay_and_data_that_is_no_text_is_named() {
    let mut blocks: Vec<Value> =
        (0..500).map(|n| json!({"type": "text", "text": format!("{n} {}", "x".repeat(900))})).collect();
    blocks.push(json!({"type": "image", "data": "A".repeat(5_000), "mimeType": "image/png"}));
    let short = shown(json!({ "content": blocks }), 50_000);
    assert!(json_len(&short) < 50_000 + 6_000, "{} bytes", json_len(&short));
    let shown_blocks = short["content"].as_array().unwrap();
    assert_eq!(shown_blocks[0]["text"].as_str().map(|text| &text[..2]), Some("0 "));
    assert_eq!(shown_blocks[shown_blocks.len() - 2]["type"], "image");
    let note: Value = serde_json::from_str(shown_blocks.last().unwrap()["text"].as_str().unwrap()).unwrap();
    assert_eq!(note["blocks_left_out"], 501 + 1 - shown_blocks.len());

    let pdf = json!({"uri": "file:///a.pdf", "mimeType": "application/pdf", "blob": "A".repeat(80_000)});
    let result = json!({"content": [{"type": "resource", "resource": pdf}]});
    let text = shown(result, 50_000)["content"][0]["text"].as_str().unwrap().to_string();
    assert_eq!(
        serde_json::from_str::<Value>(&text).unwrap(),
        json!({"preview": "blob", "uri": "file:///a.pdf", "bytes": 60_000, "mimeType": "application/pdf"})
    );
}
