//! `call_app`: tools and workflows of the configuration.

use serde_json::json;

use crate::{
    inside::Inside,
    setup::{Setup, golden},
};

const APPS: &str = r#"
[apps.shout]
description = "Says it loud"
tool = "shop.say"

[apps.report]
description = "Collects and counts"
output = { count = "{{numbers[2].id}}", text = "For {{input.who}}: {{greeting.hello}}" }

[[apps.report.steps]]
id = "greeting"
tool = "shop.say"
params = { hello = "Hello {{input.who}}" }

[[apps.report.steps]]
id = "numbers"
tool = "shop.rows"
after = ["greeting"]

[[apps.report.steps]]
id = "extra"
tool = "shop.fail"
optional = true

[apps.last]
[[apps.last.steps]]
tool = "shop.rows"
[[apps.last.steps]]
tool = "shop.say"
params = { first = "{{step1[0].name}}" }

[apps.maybe]
steps = [
    { id = "a", tool = "shop.say", params = { a = 1 } },
    { id = "b", tool = "shop.say", params = { b = 2 }, when = ".input.more" },
    { id = "c", tool = "shop.say", params = { c = 3 }, when = ".input.more" },
]

[apps.broken]
[[apps.broken.steps]]
id = "before"
tool = "shop.rows"
[[apps.broken.steps]]
id = "middle"
tool = "shop.fail"
after = ["before"]
[[apps.broken.steps]]
id = "end"
tool = "shop.say"
after = ["middle"]

[apps.strict]
tool = "shop.say"
input_schema = { type = "object", properties = { n = { type = "integer" } }, required = ["n"] }

[apps.nowhere]
tool = "shop.no_such_tool"

[apps.slow]
[[apps.slow.steps]]
tool = "shop.hang"
"#;

async fn shop() -> Inside {
    let said = json!({ "type": "object", "properties": { "text": { "type": "string" }, "loud": { "type": "boolean" } } });
    let tools = json!([
        { "name": "say", "input_schema": said },
        { "name": "rows", "on": { "json_rows": 3 } },
        { "name": "fail", "on": { "error": "out of order" } },
        { "name": "hang", "on": { "hang": true } },
    ]);
    Setup::new().server("shop", json!({ "tools": tools })).toml(APPS).open().await
}

#[tokio::test]
async fn without_an_app_the_apps_are_listed() {
    let inside = shop().await;
    insta::assert_json_snapshot!(inside.answer("call_app", json!({})).await);
    let empty = Setup::new().open().await.answer("call_app", json!({})).await;
    assert_eq!((&empty["apps"], empty["hint"].is_string()), (&json!([]), true), "{empty}");
}

#[tokio::test]
async fn a_tool_app_takes_an_object_or_text() {
    let inside = shop().await;
    let told = inside
        .answer("call_app", json!({ "app_id": "shout", "input": { "text": "hey", "loud": true } }))
        .await;
    assert_eq!(
        told,
        json!({ "app_id": "shout", "output": { "text": "hey", "loud": true }, "tool_calls": 1 })
    );
    let told = inside.answer("call_app", json!({ "app_id": "shout", "input": "hey" })).await;
    assert_eq!(told["output"], json!({ "text": "hey" }));
}

#[tokio::test]
async fn a_workflow_feeds_one_step_into_the_next() {
    let inside = shop().await;
    let told = inside.answer("call_app", json!({ "app_id": "report", "input": { "who": "Ada" } })).await;
    insta::assert_json_snapshot!(golden(told));
    let told = inside.answer("call_app", json!({ "app_id": "last" })).await;
    assert_eq!(told["output"], json!({ "first": "row 0" }), "the last step's value: {told}");
    assert_eq!(told["tool_calls"], 2, "{told}");
}

#[tokio::test]
async fn a_step_that_fails_stops_the_workflow_and_is_named() {
    let inside = shop().await;
    insta::assert_json_snapshot!(golden(inside.answer("call_app", json!({ "app_id": "broken" })).await));
}

#[tokio::test]
async fn input_that_the_workflow_needs_and_does_not_get_is_told() {
    let inside = shop().await;
    let fault = inside.fault("call_app", json!({ "app_id": "report", "input": {} })).await;
    assert!(fault["message"].as_str().is_some_and(|text| text.contains("who")), "{fault}");
    let fault = inside.fault("call_app", json!({ "app_id": "strict", "input": { "n": "many" } })).await;
    assert_eq!(fault["code"], "invalid_params", "{fault}");
    let told = inside.answer("call_app", json!({ "app_id": "strict", "input": { "n": 3 } })).await;
    assert_eq!(told["output"], json!({ "n": 3 }));
}

#[tokio::test]
async fn input_is_read_as_leniently_as_params() {
    let inside = shop().await;
    // The server gets the checked params: text becomes a number, with a note.
    let told = inside.answer("call_app", json!({ "app_id": "strict", "input": "{\"n\": \"3\"}" })).await;
    assert_eq!(told["output"], json!({ "n": 3 }), "{told}");
}

#[tokio::test]
async fn an_app_is_called_as_execute_tool_would_read_it() {
    let inside = shop().await;
    for call in [
        json!({ "app_id": "report", "input": "{\"who\": \"Ada\"}" }),
        json!({ "name": "apps.report", "args": { "who": "Ada" } }),
        json!({ "app_id": "report", "data": { "who": "Ada" } }),
        json!({ "app_id": "report", "who": "Ada" }),
    ] {
        let told = inside.answer("call_app", call.clone()).await;
        assert_eq!(told["output"]["text"], "For Ada: Hello Ada", "{call}: {told}");
    }
    // A member of the input may have another name of the app's.
    let told = inside.answer("call_app", json!({ "app_id": "last", "name": "Ada" })).await;
    assert_eq!(told["output"], json!({ "first": "row 0" }), "{told}");
}

#[tokio::test]
async fn the_output_is_that_of_the_last_step_that_ran() {
    let inside = shop().await;
    let told = inside.answer("call_app", json!({ "app_id": "maybe", "input": { "more": false } })).await;
    assert_eq!((&told["output"], &told["skipped"]), (&json!({ "a": 1 }), &json!(["b", "c"])), "{told}");
    let told = inside.answer("call_app", json!({ "app_id": "maybe", "input": { "more": true } })).await;
    assert_eq!((&told["output"], told.get("skipped")), (&json!({ "c": 3 }), None), "{told}");
}

#[tokio::test]
async fn an_app_has_a_limit() {
    let inside = shop().await;
    let fault = inside.fault("call_app", json!({ "app_id": "slow", "timeout": 1 })).await;
    assert_eq!(fault["code"], "timeout", "{fault}");
}

#[tokio::test]
async fn an_unknown_app_is_answered_with_the_nearest() {
    let inside = shop().await;
    let fault = inside.fault("call_app", json!({ "app_id": "reprot" })).await;
    assert_eq!(
        (&fault["code"], &fault["did_you_mean"][0]),
        (&json!("not_found"), &json!("report")),
        "{fault}"
    );
    let fault = inside.fault("call_app", json!({ "app_id": "nowhere" })).await;
    assert_eq!(fault["code"], "unknown_tool", "{fault}");
}
