//! Workflows that decide, repeat and ask, and the same in `run_parallel`.

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use crate::{
    client::Client,
    inside::Inside,
    setup::{Setup, eventually, json_of, logged},
};

fn shop() -> Setup {
    let reads = json!({ "readOnlyHint": true });
    let text = json!({ "type": "object", "properties": { "content": { "type": "string" } }, "required": ["content"] });
    let listing = json!({
        "content": [{ "type": "text", "text": "[FILE] a.txt\n[FILE] b.txt" }],
        "structuredContent": { "entries": [{ "name": "a.txt" }, { "name": "b.txt" }] },
    });
    let odd =
        json!({ "type": "object", "properties": { "n": { "type": "integer", "not": { "const": 1 } } } });
    Setup::new().server(
        "shop",
        json!({ "tools": [
            { "name": "say", "annotations": reads },
            { "name": "rows", "on": { "json_rows": 3 }, "annotations": reads },
            { "name": "many", "on": { "json_rows": 1_001 } },
            { "name": "odd", "input_schema": odd, "annotations": reads },
            { "name": "fail", "on": { "error": "out of order" } },
            { "name": "shaky", "on": [{ "error": "busy" }, { "error": "busy" }, { "text": "fine" }], "annotations": { "idempotentHint": true } },
            { "name": "list_directory", "on": { "result": listing }, "annotations": reads },
            { "name": "plain_object", "on": { "result": { "content": [], "structuredContent": { "a": [1, 2] } } } },
            { "name": "write_file", "input_schema": text },
        ] }),
    )
}

async fn app(inside: &Inside, id: &str, input: Value) -> Value {
    inside.answer("call_app", json!({ "app_id": id, "input": input })).await
}

#[tokio::test]
async fn a_step_whose_condition_fails_is_skipped_and_its_dependants_see_null() {
    let apps = r#"
[apps.report]
output = { big = "{{big}}", name = "{{big.first.name}}", told = "{{told}}" }
[[apps.report.steps]]
id = "rows"
tool = "shop.rows"
[[apps.report.steps]]
id = "big"
tool = "shop.say"
when = "(.steps.rows | length) > .input.limit"
params = { first = "{{rows[0]}}" }
[[apps.report.steps]]
id = "told"
tool = "shop.say"
params = { saw = "{{big}}" }
[[apps.report.steps]]
id = "never"
tool = "shop.fail"
when = "empty"
"#;
    let inside = shop().toml(apps).open().await;
    let told = app(&inside, "report", json!({ "limit": 5 })).await;
    assert_eq!(told["output"], json!({ "big": null, "name": null, "told": { "saw": null } }), "{told}");
    assert_eq!((&told["skipped"], &told["tool_calls"]), (&json!(["big", "never"]), &json!(2)), "{told}");
    let told = app(&inside, "report", json!({ "limit": 1 })).await;
    assert_eq!(told["output"]["name"], "row 0", "{told}");
}

#[tokio::test]
async fn a_condition_with_several_outputs_holds_if_one_of_them_is_true() {
    let apps = r#"
[apps.any]
steps = [{ tool = "shop.say", params = { ran = true }, when = ".input[] | .ok" }]
[apps.list]
steps = [{ tool = "shop.say", params = { ran = true }, when = "[.input[] | select(.steps.done)]" }]
"#;
    let inside = shop().toml(apps).open().await;
    for (id, input, runs) in [
        ("any", json!([{ "ok": false }, { "ok": false }]), false),
        ("any", json!([{ "ok": false }, {}]), false),
        ("any", json!([{ "ok": false }, { "ok": true }]), true),
        ("any", json!([{ "ok": [] }]), false),
        ("any", json!([]), false),
        // `.steps` of a row.
        ("list", json!([{ "steps": { "done": true } }]), true),
        ("list", json!([{ "steps": {} }]), false),
    ] {
        let told = app(&inside, id, input.clone()).await;
        assert_eq!(told["skipped"].is_null(), runs, "{id} {input}: {told}");
    }
}

#[tokio::test]
async fn a_condition_that_fails_is_a_fault_of_its_step() {
    let apps = r#"
[apps.odd]
steps = [{ tool = "shop.say", when = ".input | error" }]
"#;
    let inside = shop().toml(apps).open().await;
    let fault = inside.fault("call_app", json!({ "app_id": "odd", "input": { "a": 1 } })).await;
    assert!(fault["message"].as_str().is_some_and(|text| text.contains("The `when` of `step1`")), "{fault}");
}

const EACH: &str = r#"
[apps.each]
steps = [{ id = "all", tool = "shop.odd", for_each = "{{input.list}}", params = { n = "{{index}}", of = "{{item.name}}" } }]
[apps.keep]
steps = [{ id = "all", tool = "shop.odd", for_each = "{{input.list}}", on_error = "keep", params = { n = "{{index}}", of = "{{item.name}}" }, select = "map(.of // .error.code)" }]
[apps.many]
steps = [{ id = "many", tool = "shop.many" }, { id = "all", tool = "shop.say", for_each = "{{many}}" }]
"#;

#[tokio::test]
async fn a_step_is_done_for_each_item_in_order() {
    let inside = shop().toml(EACH).open().await;
    let told = app(&inside, "each", json!({ "list": [{ "name": "x" }] })).await;
    assert_eq!(
        (&told["output"], &told["tool_calls"]),
        (&json!([{ "n": 0, "of": "x" }]), &json!(1)),
        "{told}"
    );
    assert_eq!(app(&inside, "each", json!({ "list": [] })).await["output"], json!([]));
    let list = json!([{ "name": "a" }, { "name": "b" }, { "name": "c" }]);
    // The tool's schema refuses the second one.
    let told = app(&inside, "keep", json!({ "list": list })).await;
    assert_eq!(told["output"], json!(["a", "invalid_params", "c"]), "{told}");
    let fault = inside.fault("call_app", json!({ "app_id": "each", "input": { "list": list } })).await;
    assert!(fault["message"].as_str().is_some_and(|text| text.contains("Item 1 of `all` failed")), "{fault}");
    assert_eq!(fault["details"]["error"]["details"]["index"], 1, "{fault}");
}

#[tokio::test]
async fn what_is_no_list_or_too_long_a_list_is_told() {
    let inside = shop().toml(EACH).open().await;
    for (list, part) in [
        (json!({ "rows": [], "total": 0 }), "an object with the keys rows, total"),
        (json!("one, two"), "the text `one, two`"),
        (Value::Null, "null"),
    ] {
        let fault = inside.fault("call_app", json!({ "app_id": "each", "input": { "list": list } })).await;
        assert!(fault["message"].as_str().is_some_and(|text| text.contains(part)), "{fault}");
    }
    let fault = inside.fault("call_app", json!({ "app_id": "many" })).await;
    assert!(fault["message"].as_str().is_some_and(|text| text.contains("1001 items")), "{fault}");
}

#[tokio::test]
async fn actions_of_run_parallel_decide_and_repeat_too() {
    let inside = shop().open().await;
    let actions = json!([
        { "id": "rows", "name": "shop.rows" },
        { "id": "each", "name": "shop.say", "for_each": "{{rows}}", "params": { "was": "{{item.name}}" }, "max_concurrency": 2, "select": "map(.was)" },
        { "id": "none", "name": "shop.say", "when": ".steps.rows | length > 3" },
        { "id": "keep", "name": "shop.odd", "for_each": [5, 6], "on_error": "keep", "params": { "n": "{{index}}" } },
        { "id": "after", "name": "shop.say", "params": { "x": "{{none}}" } },
    ]);
    let report = inside.golden("run_parallel", json!({ "actions": actions })).await;
    insta::assert_json_snapshot!(report);
}

#[tokio::test]
async fn a_failed_call_is_made_again_where_that_does_no_harm() {
    let apps = r#"
[apps.shaky]
steps = [{ tool = "shop.shaky", retry = { times = 3, wait = "1ms", on = ["upstream_error"] } }]
[apps.once]
steps = [{ tool = "shop.say" }, { tool = "shop.fail", retry = { on = ["upstream_error"] } }]
"#;
    let setup = shop().toml(apps);
    let log = setup.path("calls");
    let inside = setup.open().await;
    let told = app(&inside, "shaky", Value::Null).await;
    assert_eq!((&told["output"], &told["tool_calls"]), (&json!("fine"), &json!(3)), "{told}");
    let fault = inside.fault("call_app", json!({ "app_id": "once" })).await;
    assert!(fault["message"].as_str().is_some_and(|text| text.contains("Nothing was run")), "{fault}");
    let unmatched: Vec<String> = inside.gateway.unmatched().iter().map(ToString::to_string).collect();
    assert!(unmatched.iter().any(|rule| rule.starts_with("apps.once.steps.step2.retry: ")), "{unmatched:?}");
    assert_eq!(logged(&log).len(), 0);
}

#[tokio::test]
async fn an_app_runs_another_app() {
    let apps = r#"
[apps.inner]
output = "{{step1[1].name}} for {{input.who}}"
steps = [{ tool = "shop.rows" }]
[apps.outer]
output = { each = "{{each}}", one = "{{one}}" }
steps = [
    { id = "each", app = "inner", input = { who = "{{item}}" }, for_each = ["Ada", "Bob"] },
    { id = "one", app = "said", input = { a = "{{each[0]}}" } },
]
[apps.said]
tool = "shop.say"
[apps.text]
input_schema = { type = "object", properties = { text = { type = "string" } } }
tool = "shop.say"
[apps.texts]
steps = [{ id = "a", tool = "shop.list_directory" }, { app = "text", input = { text = "{{a}}" } }]
[apps.fails]
steps = [{ app = "broken" }]
[apps.broken]
steps = [{ tool = "shop.fail" }]
"#;
    let inside = shop().toml(apps).open().await;
    let told = app(&inside, "outer", Value::Null).await;
    let expected = json!({ "each": ["row 1 for Ada", "row 1 for Bob"], "one": { "a": "row 1 for Ada" } });
    assert_eq!((&told["output"], &told["tool_calls"]), (&expected, &json!(3)), "{told}");
    let told = app(&inside, "texts", Value::Null).await;
    assert_eq!(told["output"], json!({ "text": "[FILE] a.txt\n[FILE] b.txt" }), "{told}");
    assert!(told["repaired"][0].as_str().is_some_and(|note| note.contains("inserted as text")), "{told}");
    let fault = inside.fault("call_app", json!({ "app_id": "fails" })).await;
    assert!(fault["message"].as_str().is_some_and(|text| text.contains("out of order")), "{fault}");
}

#[tokio::test]
async fn a_thousand_items_keep_their_order() {
    let tools = json!([
        { "name": "rows", "on": { "json_rows": 1_000 }, "annotations": { "readOnlyHint": true } },
        { "name": "say", "annotations": { "readOnlyHint": true } },
    ]);
    let app_of_all = r#"
[apps.all]
output = { first = "{{all[0].n}}", last = "{{all[999].n}}", name = "{{all[999].name}}" }
[[apps.all.steps]]
id = "rows"
tool = "shop.rows"
[[apps.all.steps]]
id = "all"
tool = "shop.say"
for_each = "{{rows}}"
max_concurrency = 50
params = { n = "{{index}}", name = "{{item.name}}" }
"#;
    let inside = Setup::new().server("shop", json!({ "tools": tools })).toml(app_of_all).open().await;
    let told = app(&inside, "all", Value::Null).await;
    assert_eq!(told["output"], json!({ "first": 0, "last": 999, "name": "row 999" }), "{told}");
    assert_eq!(told["tool_calls"], 1_001, "{told}");
}

#[tokio::test]
async fn a_result_goes_into_text_as_its_text() {
    let apps = r#"
[apps.listing]
steps = [{ id = "a", tool = "shop.list_directory" }, { tool = "shop.write_file", params = { content = "{{a}}" } }]
"#;
    let inside = shop().toml(apps).open().await;
    let text = "[FILE] a.txt\n[FILE] b.txt";
    let write = |name: &str| json!({ "id": "w", "name": "shop.write_file", "params": { "content": format!("{{{{{name}}}}}") } });
    for (tool, content) in [("shop.list_directory", text), ("shop.plain_object", "{\"a\":[1,2]}")] {
        let actions = json!([{ "id": "a", "name": tool }, write("a")]);
        let report = inside.answer("run_parallel", json!({ "actions": actions })).await;
        assert_eq!(report["results"][1]["result"], json!({ "content": content }), "{report}");
        let repaired = report["results"][1]["repaired"][0].as_str().unwrap_or_default();
        assert!(repaired.contains("inserted as text"), "{report}");
    }
    let told = app(&inside, "listing", Value::Null).await;
    assert_eq!(told["output"], json!({ "content": text }), "{told}");
    assert!(told["repaired"][0].as_str().is_some_and(|note| note.starts_with("step2: content: ")), "{told}");
    // Kept results too.
    let launch = json!({ "name": "shop.list_directory", "background": true });
    let done = inside.call("execute_tool", launch).await;
    assert!(done["structuredContent"].is_object(), "a quick end comes back at once: {done}");
    let kept = inside
        .gateway
        .keeping
        .kept
        .keep(&inside.caller.owner(), std::sync::Arc::new(done))
        .await
        .expect("it is kept")
        .reference;
    let written =
        inside.execute("shop.write_file", json!({ "content": format!("{{{{ref:{kept}}}}}") })).await;
    assert_eq!(json_of(&written), json!({ "content": text }), "{written}");
    assert!(written.to_string().contains("inserted as text"), "{written}");
}

/// Returns thirty repositories, three of which have a release from this week.
fn releases() -> Setup {
    let repos: Vec<Value> = (0..30)
        .map(|n| {
            let year = if n % 10 == 7 { 2999 } else { 2001 };
            json!({ "name": format!("repo-{n}"), "published": format!("{year}-01-01T00:00:00Z") })
        })
        .collect();
    let reads = json!({ "readOnlyHint": true });
    let setup = Setup::new();
    let log = setup.path("calls");
    let tools = json!([
        { "name": "repositories", "on": { "text": json!(repos).to_string() }, "annotations": reads },
        { "name": "latest_release", "annotations": reads },
        { "name": "announce" },
    ]);
    setup.server("hub", json!({ "tools": tools, "call_log": log })).toml(
        r#"
[apps.announce]
description = "Asks which releases of this week to announce"
[[apps.announce.steps]]
id = "repos"
tool = "hub.repositories"
[[apps.announce.steps]]
id = "recent"
tool = "hub.latest_release"
for_each = "{{repos}}"
params = { repo = "{{item.name}}", published = "{{item.published}}" }
retry = { times = 2, wait = "100ms" }
select = "map(select(.published > (now - 604800 | todate)) | .repo)"
[[apps.announce.steps]]
id = "which"
when = ".steps.recent | length > 0"
ask = { question = "Announce which of these?", choices = "{{recent}}", allow_multiple = true }
[[apps.announce.steps]]
id = "told"
tool = "hub.announce"
for_each = "{{which.answer}}"
params = { repo = "{{item}}", by = "{{input.by}}" }
"#,
    )
}

fn start(client: &mut Client) -> Value {
    client.until_ready("hub");
    client.answer("call_app", json!({ "app_id": "announce", "input": { "by": "Ada" } }))
}

fn announced() -> Value {
    json!([{ "repo": "repo-7", "by": "Ada" }, { "repo": "repo-27", "by": "Ada" }])
}

#[test]
fn an_app_asks_by_a_form_in_the_middle_of_its_work() {
    let mut client = releases().start_with(json!({ "elicitation": {} }));
    client.answer_questions(|params| {
        let choices = &params["requestedSchema"]["properties"]["answer"]["items"]["enum"];
        assert_eq!(*choices, json!(["repo-7", "repo-17", "repo-27"]), "{params}");
        json!({ "action": "accept", "content": { "answer": ["repo-7", "repo-27"] } })
    });
    let told = start(&mut client);
    assert_eq!((&told["output"], &told["tool_calls"]), (&announced(), &json!(33)), "{told}");
    client.answer_questions(|_| json!({ "action": "decline" }));
    let told = start(&mut client);
    let expected = json!({ "app_id": "announce", "step": "which", "tool_calls": 31, "status": "denied" });
    assert_eq!(told, expected);
}

/// Asks in the chat, ends the gateway with `end`, and answers its successor.
fn answered_after(end: impl FnOnce(Client) -> Client, way_on: &str) {
    let setup = releases();
    let log = setup.path("calls");
    let mut client = setup.start_program();
    let asked = start(&mut client);
    assert_eq!((&asked["status"], &asked["app_id"]), (&json!("needs_user"), &json!("announce")), "{asked}");
    assert!(asked["message"].as_str().is_some_and(|text| text.contains("2. repo-17")), "{asked}");
    let token = asked["token"].clone();
    assert_eq!(asked["next_step"], json!({ "tool": "ask_user", "arguments": { "token": token } }), "{asked}");
    let before = logged(&log).len();
    assert_eq!(before, 31, "everything up to the question");

    let mut client = end(client);
    client.initialize("2025-06-18", json!({}));
    client.until_ready("hub");
    // The question stays open until the answer is clear.
    let again = client.answer(way_on, json!({ "token": token }));
    assert_eq!((&again["status"], &again["message"]), (&json!("needs_user"), &asked["message"]), "{again}");
    let again = client.answer(way_on, json!({ "token": token, "answer": "the green one" }));
    assert_eq!((&again["status"], &again["token"]), (&json!("needs_user"), &token), "{again}");
    let told = client.answer(way_on, json!({ "token": token, "answer": "the first and the third" }));
    let told = match told["status"] == "needs_user" {
        true => client.answer(way_on, json!({ "token": token, "answer": "1 and 3" })),
        false => told,
    };
    assert_eq!((&told["output"], &told["tool_calls"]), (&announced(), &json!(33)), "{told}");
    assert_eq!(logged(&log).len(), before + 2, "what had ended did not run again");
    let call = json!({ "name": way_on, "arguments": { "token": token, "answer": "1" } });
    let late = json_of(&client.request("tools/call", call)["result"]);
    assert_eq!(late["error"]["code"], "not_found", "a token is good once: {late}");
}

#[test]
fn without_forms_the_answer_in_the_chat_goes_on() {
    answered_after(|client| client, "ask_user");
}

#[test]
fn an_app_that_asked_goes_on_after_a_restart() {
    answered_after(Client::restart, "call_app");
}

fn killed(client: Client) -> Client {
    let pid = i32::try_from(client.pid()).expect("a process id");
    kill(Pid::from_raw(pid), Signal::SIGKILL).expect("it is there");
    client.restart()
}

#[test]
fn an_app_that_asked_goes_on_after_the_gateway_was_killed() {
    answered_after(killed, "ask_user");
}

/// Answers the question of the app `send`, kills the gateway at the shop's call with this number, which must
/// hang, and continues with other tools. Returns the answer, and the shop's calls.
fn killed_at_call(number: usize, app: &str, tools: Value, later: Value) -> (Value, Vec<Value>) {
    let setup = Setup::new();
    let log = setup.path("calls");
    let script = |tools: Value| json!({ "tools": tools, "call_log": log });
    let mut client = setup.server("shop", script(tools)).toml(app).start_program();
    client.until_ready("shop");
    let token = client.answer("call_app", json!({ "app_id": "send" }))["token"].clone();
    client.begin_call("ask_user", json!({ "token": token, "answer": "Ada" }));
    eventually("the last call runs", || (logged(&log).len() == number).then_some(()));
    let late = json!({ "name": "ask_user", "arguments": { "token": token, "answer": "Bob" } });
    let fault = json_of(&client.request("tools/call", late)["result"]);
    assert!(
        fault["error"]["message"].as_str().is_some_and(|text| text.contains("continues with it")),
        "{fault}"
    );

    let file = client.folder.path().join("shop.script.json");
    std::fs::write(&file, script(later).to_string()).expect("it can be written");
    let mut client = killed(client);
    client.initialize("2025-06-18", json!({}));
    client.until_ready("shop");
    // The answer given first counts.
    let told = client.answer("ask_user", json!({ "token": token, "answer": "Bob" }));
    (told, logged(&log).iter().map(|line| line["params"].clone()).collect())
}

#[test]
fn an_app_whose_gateway_was_killed_after_the_answer_goes_on_where_it_was() {
    let app = r#"
[apps.send]
output = "{{first.to}}, {{last}}"
steps = [
    { id = "ok", ask = { question = "To whom?" } },
    { id = "first", tool = "shop.say", params = { to = "{{ok.answer}}" } },
    { id = "last", tool = "shop.slow", after = ["first"] },
]
"#;
    let tools = |slow: Value| json!([{ "name": "say" }, { "name": "slow", "on": slow }]);
    let (told, calls) =
        killed_at_call(2, app, tools(json!({ "hang": true })), tools(json!({ "text": "sent" })));
    assert_eq!((&told["output"], &told["tool_calls"]), (&json!("Ada, sent"), &json!(2)), "{told}");
    let calls: Vec<&Value> = calls.iter().map(|call| &call["name"]).collect();
    assert_eq!(calls, ["say", "slow", "slow"], "what had ended did not run again");
}

#[test]
fn items_that_had_ended_are_not_done_again_after_a_kill() {
    let app = r#"
[apps.send]
steps = [
    { id = "who", ask = { question = "By whom?" } },
    { id = "all", tool = "shop.say", for_each = ["a", "b", "c", "d"], params = { to = "{{item}}", by = "{{who.answer}}" } },
]
"#;
    let tools = |on: Value| json!([{ "name": "say", "on": on }]);
    let first = tools(json!([{ "text": "one" }, { "text": "two" }, { "hang": true }]));
    let (told, calls) = killed_at_call(3, app, first, tools(json!({ "text": "later" })));
    assert_eq!(
        (&told["output"], &told["tool_calls"]),
        (&json!(["one", "two", "later", "later"]), &json!(4)),
        "{told}"
    );
    let calls: Vec<&Value> = calls.iter().map(|call| &call["arguments"]["to"]).collect();
    assert_eq!(calls, ["a", "b", "c", "c", "d"], "what had ended did not run again");
}

#[test]
fn steps_of_an_inner_app_that_had_ended_do_not_run_again_after_a_kill() {
    let app = r#"
[apps.send]
output = "{{all}}"
steps = [
    { id = "who", ask = { question = "By whom?" } },
    { id = "all", app = "inner", after = ["who"], for_each = ["a", "b"], max_concurrency = 1, input = { to = "{{item}}" } },
]
[apps.inner]
output = "{{write.to}}: {{send}}"
steps = [
    { id = "write", tool = "shop.write", params = { to = "{{input.to}}" } },
    { id = "send", tool = "shop.send", after = ["write"] },
]
"#;
    let tools = |on: Value| json!([{ "name": "write" }, { "name": "send", "on": on }]);
    let first = tools(json!([{ "text": "sent" }, { "hang": true }]));
    let (told, calls) = killed_at_call(4, app, first, tools(json!({ "text": "sent later" })));
    assert_eq!(
        (&told["output"], &told["tool_calls"]),
        (&json!(["a: sent", "b: sent later"]), &json!(4)),
        "{told}"
    );
    let calls: Vec<&Value> = calls.iter().map(|call| &call["name"]).collect();
    assert_eq!(calls, ["write", "send", "write", "send", "send"], "what had ended did not run again");
}

#[tokio::test]
async fn an_app_that_is_cancelled_after_the_answer_goes_on_by_the_same_token() {
    let app = r#"
[apps.send]
output = "{{first.to}}, {{last}}"
steps = [
    { id = "ok", ask = { question = "To whom?" } },
    { id = "first", tool = "shop.say", params = { to = "{{ok.answer}}" } },
    { id = "last", tool = "shop.slow", after = ["first"] },
]
"#;
    let setup = Setup::new().toml(app);
    let log = setup.path("calls");
    let tools = json!([{ "name": "say" }, { "name": "slow", "on": [{ "hang": true }, { "text": "sent" }] }]);
    let inside = setup.server("shop", json!({ "tools": tools, "call_log": log })).open().await;
    let asked = self::app(&inside, "send", Value::Null).await;
    let caller = nonet_state::session::Caller { cancel: Default::default(), ..inside.caller.clone() };
    let answer = |said: &str| json!({ "token": asked["token"], "answer": said });
    let cancelled = async {
        crate::inside::eventually("the last step runs", async || {
            logged(&log).iter().any(|line| line["params"]["name"] == "slow").then_some(())
        })
        .await;
        caller.cancel.cancel();
    };
    let (told, ()) = tokio::join!(inside.call_as(&caller, "ask_user", answer("Ada")), cancelled);
    assert_eq!(json_of(&told)["error"]["code"], "cancelled", "{told}");
    let told = inside.answer("ask_user", answer("Bob")).await;
    assert_eq!((&told["output"], &told["tool_calls"]), (&json!("Ada, sent"), &json!(2)), "{told}");
    assert_eq!(inside.fault("ask_user", answer("Bob")).await["code"], "not_found");
}

#[tokio::test]
async fn an_answer_after_the_time_of_its_question_is_too_late() {
    let app = r#"
[apps.soon]
steps = [{ id = "ok", timeout = "1s", ask = { question = "Now?" } }, { tool = "shop.say", after = ["ok"] }]
"#;
    let inside = shop().toml(app).open().await;
    let asked = self::app(&inside, "soon", Value::Null).await;
    assert_eq!(asked["status"], "needs_user", "{asked}");
    let token = json!({ "token": asked["token"] });
    let told = crate::inside::eventually("the time is over", async || {
        let told = inside.answer("ask_user", token.clone()).await;
        (told["status"] != "needs_user").then_some(told)
    })
    .await;
    assert_eq!(told, json!({ "app_id": "soon", "step": "ok", "tool_calls": 0, "status": "timed_out" }));
}

#[tokio::test]
async fn the_step_that_failed_is_named_and_not_one_that_was_held_back() {
    let apps = r#"
[apps.no]
steps = [{ id = "sent", tool = "shop.say", after = ["ok"] }, { id = "ok", ask = { question = "Send?", choices = ["yes", "later"] } }]
[apps.fails]
steps = [{ id = "sent", tool = "shop.say", after = ["draft"] }, { id = "draft", tool = "shop.fail" }]
[apps.slow]
steps = [{ id = "sent", tool = "shop.say", after = ["draft"] }, { id = "draft", tool = "hang.hang", timeout = "100ms" }]
[apps.late]
timeout = "1s"
steps = [{ id = "sent", tool = "shop.say", after = ["draft"] }, { id = "draft", tool = "hang.hang" }]
"#;
    let hang = json!({ "tools": [{ "name": "hang", "on": { "hang": true } }] });
    let inside = shop().server("hang", hang).toml(apps).open().await;
    let asked = app(&inside, "no", Value::Null).await;
    let told = inside.answer("ask_user", json!({ "token": asked["token"], "answer": "no" })).await;
    assert_eq!(told, json!({ "app_id": "no", "step": "ok", "tool_calls": 0, "status": "denied" }));
    let limit = "The limit of the whole app is 1s";
    for (id, code, part, is_over) in [
        ("fails", "upstream_error", "out of order", false),
        ("slow", "timeout", "did not answer within", false),
        ("late", "timeout", limit, true),
    ] {
        let fault = inside.fault("call_app", json!({ "app_id": id })).await;
        let message = fault["message"].as_str().unwrap_or_default();
        assert_eq!(fault["code"], code, "{fault}");
        assert!(message.contains("at the step `draft`") && message.contains(part), "{fault}");
        assert_eq!(message.contains(limit), is_over, "{fault}");
    }
}

#[test]
fn an_app_that_asks_in_the_background_gives_the_question_as_its_result() {
    let app = r#"
[apps.later]
steps = [{ id = "wait", tool = "shop.wait" }, { id = "ok", after = ["wait"], ask = { question = "Go on?" } }]
"#;
    let tools = json!([{ "name": "wait", "on": { "delay_ms": 1_500 } }]);
    let setup = Setup::new().server("shop", json!({ "tools": tools })).toml(app);
    let mut client = setup.gateway("soft_deadline = '500ms'").start_with(json!({ "elicitation": {} }));
    client.until_ready("shop");
    let handle = client.answer("call_app", json!({ "app_id": "later" }));
    let wait = json!({ "task_id": handle["task_id"], "wait": true });
    let asked = eventually("the task ends", || {
        let told = json_of(&client.execute("gateway.background_run", wait.clone()));
        (told["status"] == "needs_user").then_some(told)
    });
    let told = client.answer("ask_user", json!({ "token": asked["token"], "answer": "sure" }));
    assert_eq!(told["output"], json!({ "status": "answered", "answer": "sure" }), "{told}");
}

#[test]
fn a_stateless_client_is_asked_in_the_middle_of_an_app() {
    let app = r#"
[apps.pick]
output = "{{ok.answer}} of {{rows[2].name}}"
steps = [{ id = "rows", tool = "shop.rows" }, { id = "ok", ask = { question = "Which?", choices = ["{{rows[0].name}}", "none"] } }]
"#;
    let tools = json!([{ "name": "rows", "on": { "json_rows": 3 } }]);
    let mut client = Setup::new().server("shop", json!({ "tools": tools })).toml(app).start_silently();
    let forms = json!({ "elicitation": { "form": {} } });
    let mut call = json!({ "name": "call_app", "arguments": { "app_id": "pick" } });
    let asked = eventually("the server is there", || {
        let asked = client.modern("tools/call", call.clone(), forms.clone());
        (asked["result"]["resultType"] == "input_required").then_some(asked)
    });
    let requests = asked["result"]["inputRequests"].as_object().expect("requests");
    let (key, request) = requests.iter().next().expect("one request");
    assert_eq!(request["params"]["requestedSchema"]["properties"]["answer"]["enum"][0], "row 0", "{asked}");
    call["requestState"] = asked["result"]["requestState"].clone();
    call["inputResponses"] = json!({ key: { "action": "accept", "content": { "answer": "none" } } });
    let told = client.modern("tools/call", call, forms);
    assert_eq!(json_of(&told["result"])["output"], "none of row 2", "{told}");
}

const ASKING: &str = r#"
[apps.ask]
steps = [
    { id = "draft", tool = "shop.say", params = { text = "Dear {{input.who}}" } },
    { id = "ok", ask = { question = "Send it?", content = "{{draft.text}}" } },
    { id = "sent", tool = "shop.say", params = { sent = "{{ok.content}}" } },
]
[apps.twice]
steps = [{ id = "a", ask = { question = "A?" } }, { id = "b", ask = { question = "B?" } }]
[apps.maybe]
output = { name = "{{name}}", after = "{{after}}" }
steps = [
    { id = "name", ask = { question = "Who?", form = { type = "object", properties = { who = { type = "string" } } } }, optional = true },
    { id = "after", tool = "shop.say", params = { name = "{{name.answer.who}}" } },
]
"#;

#[tokio::test]
async fn a_no_of_the_user_ends_the_app_unless_the_step_is_optional() {
    let inside = shop().toml(ASKING).open().await;
    let asked = app(&inside, "ask", json!({ "who": "Bob" })).await;
    assert!(asked["message"].as_str().is_some_and(|text| text.contains("Dear Bob")), "{asked}");
    let no = json!({ "decision": "deny", "feedback": "too stiff" });
    let told = inside.answer("ask_user", json!({ "token": asked["token"], "answer": no })).await;
    let expected = json!({ "app_id": "ask", "step": "ok", "tool_calls": 1, "status": "denied", "user_feedback": "too stiff" });
    assert_eq!(told, expected);
    let asked = app(&inside, "ask", json!({ "who": "Bob" })).await;
    let edited = json!({ "token": asked["token"], "answer": "ok", "content": "Hi Bob" });
    let told = inside.answer("ask_user", edited).await;
    assert_eq!(told["output"], json!({ "sent": "Hi Bob" }), "{told}");

    let asked = app(&inside, "maybe", Value::Null).await;
    assert!(asked["form"].is_object(), "{asked}");
    let no = json!({ "token": asked["token"], "answer": { "action": "decline" } });
    let told = inside.answer("call_app", no).await;
    assert_eq!(told["output"], json!({ "name": null, "after": { "name": null } }), "{told}");
    assert!(told["failed_optional_steps"]["name"].is_object(), "{told}");
}

#[tokio::test]
async fn an_app_that_asks_is_not_begun_inside_of_a_run() {
    let setup = Setup::new();
    let log = setup.path("calls");
    let script = json!({ "tools": [{ "name": "say" }], "call_log": log });
    let inside = setup.server("shop", script).toml(ASKING).open().await;
    let actions = json!({ "actions": [{ "name": "apps.ask", "params": { "who": "Bob" } }] });
    let graph = json!({ "name": "gateway.run_graph", "params": actions });
    for (tool, arguments) in [("run_parallel", actions), ("execute_tool", graph)] {
        let report = inside.answer(tool, arguments).await;
        let error = &report["results"][0]["error"];
        assert_eq!(error["code"], "invalid_params", "{report}");
        assert!(error["message"].as_str().is_some_and(|text| text.contains("asks the user")), "{report}");
    }
    assert_eq!(logged(&log), Vec::<Value>::new(), "none of its steps has run");
}

#[tokio::test]
async fn an_app_may_ask_twice() {
    let apps = r#"
[apps.both]
output = "{{a.answer}} and {{b.answer}} of {{rows[0].name}}"
steps = [
    { id = "a", ask = { question = "A?" } },
    { id = "b", ask = { question = "B?" } },
    { id = "rows", tool = "shop.rows" },
]
"#;
    let inside = shop().toml(apps).open().await;
    let first = app(&inside, "both", Value::Null).await;
    assert_eq!((&first["step"], &first["message"]), (&json!("a"), &json!("A?")), "{first}");
    let answer = |asked: &Value, said: &str| json!({ "token": asked["token"], "answer": said });
    let second = inside.answer("ask_user", answer(&first, "one")).await;
    assert_eq!((&second["step"], &second["status"]), (&json!("b"), &json!("needs_user")), "{second}");
    // An answer to the first question does not answer the second.
    let again = inside.answer("ask_user", answer(&first, "again")).await;
    assert_eq!((&again["message"], &again["token"]), (&json!("B?"), &second["token"]), "{again}");
    let told = inside.answer("ask_user", answer(&second, "two")).await;
    assert_eq!((&told["output"], &told["tool_calls"]), (&json!("one and two of row 0"), &json!(1)), "{told}");
}

#[tokio::test]
async fn a_step_has_a_limit_of_its_own() {
    let apps = r#"
[apps.late]
output = "{{after}}"
steps = [
    { id = "slow", tool = "shop.hang", timeout = "100ms", optional = true },
    { id = "after", tool = "shop.say", params = { saw = "{{slow.rows}}" } },
]
"#;
    let tools = json!([{ "name": "hang", "on": { "hang": true } }, { "name": "say" }]);
    let inside = Setup::new().server("shop", json!({ "tools": tools })).toml(apps).open().await;
    let told = app(&inside, "late", Value::Null).await;
    assert_eq!(told["output"], json!({ "saw": null }), "{told}");
    assert_eq!(told["failed_optional_steps"]["slow"]["code"], "timeout", "{told}");
}

#[tokio::test]
async fn only_the_owner_answers_and_so_many_apps_wait() {
    let inside = shop().toml(ASKING).toml("[profiles.other]\n").open().await;
    let asked = app(&inside, "ask", json!({ "who": "Bob" })).await;
    let other = inside.under("other");
    let yes = json!({ "token": asked["token"], "answer": "yes" });
    let fault = json_of(&inside.call_as(&other, "ask_user", yes.clone()).await);
    assert_eq!(fault["error"]["code"], "not_found", "{fault}");
    let twice = app(&inside, "twice", Value::Null).await;
    for _ in 2..100 {
        let asked = app(&inside, "ask", json!({ "who": "Bob" })).await;
        assert_eq!(asked["status"], "needs_user", "{asked}");
    }
    let fault = inside.fault("call_app", json!({ "app_id": "ask", "input": { "who": "Bob" } })).await;
    assert_eq!(fault["code"], "rate_limited", "{fault}");
    // A run that asks again takes no further slot.
    let told = inside.answer("ask_user", json!({ "token": twice["token"], "answer": "one" })).await;
    assert_eq!((&told["status"], &told["step"]), (&json!("needs_user"), &json!("b")), "{told}");
    let told = inside.answer("ask_user", yes).await;
    assert_eq!(told["output"], json!({ "sent": "Dear Bob" }), "{told}");
}

#[test]
fn an_app_that_changed_while_it_waited_does_not_go_on() {
    let mut client = releases().start_program();
    let asked = start(&mut client);
    let file = client.folder.path().join("servers.toml");
    let text = std::fs::read_to_string(&file).expect("it is there");
    std::fs::write(&file, text.replace("hub.announce", "hub.latest_release")).expect("it can be written");
    let mut client = client.restart();
    client.initialize("2025-06-18", json!({}));
    let call = json!({ "name": "ask_user", "arguments": { "token": asked["token"], "answer": "1" } });
    let fault = json_of(&client.request("tools/call", call)["result"]);
    assert!(fault["error"]["message"].as_str().is_some_and(|text| text.contains("has changed")), "{fault}");
    assert_eq!(fault["error"]["next_step"]["arguments"]["input"], json!({ "by": "Ada" }), "{fault}");
}

#[tokio::test]
async fn a_list_that_takes_long_counts_its_items() {
    let setup = Setup::new()
        .server("a", json!({ "tools": [{ "name": "hang", "on": [{ "text": "x" }, { "hang": true }] }] }));
    let inside = setup.gateway("soft_deadline = '500ms'").open().await;
    let actions = json!([{ "id": "all", "name": "a.hang", "for_each": [1, 2, 3] }]);
    let handle = inside.answer("run_parallel", json!({ "actions": actions })).await;
    assert_eq!(handle["progress"]["items"]["all"], json!({ "ended": 1, "total": 3 }), "{handle}");
    // Items of a serialized tool run one at a time, and a cancelled run says so.
    let id = &handle["task_id"];
    inside.execute("gateway.background_run", json!({ "task_id": id, "cancel": true })).await;
    let wait = json!({ "name": "gateway.background_run", "params": { "task_id": id, "wait": true } });
    let report = inside.answer("execute_tool", wait).await;
    assert_eq!(report["results"][0]["error"]["code"], "cancelled", "{report}");
}

#[tokio::test]
async fn actions_that_cannot_work_are_refused_before_any_runs() {
    let setup = Setup::new();
    let log = setup.path("calls");
    let tools = json!([{ "name": "post" }]);
    let inside = setup.server("shop", json!({ "tools": tools, "call_log": log })).open().await;
    for (broken, told) in [
        (json!({ "when": ".x |" }), "is not a jq filter"),
        (json!({ "for_each": 5 }), "not an array"),
        (json!({ "for_each": "5" }), "not an array"),
        (json!({ "for_each": vec![1; 1_001] }), "the maximum is 1000"),
    ] {
        let mut second = json!({ "id": "b", "name": "shop.post", "after": ["a"] });
        second.as_object_mut().expect("an object").extend(broken.as_object().expect("an object").clone());
        let actions = json!([{ "id": "a", "name": "shop.post" }, second]);
        let fault = inside.fault("run_parallel", json!({ "actions": actions })).await;
        let message = fault["message"].as_str().expect("a message");
        assert!(message.contains(told) && message.contains("Nothing was run"), "{broken}: {message}");
    }
    assert!(logged(&log).is_empty());
}

#[tokio::test]
async fn the_value_of_a_question_is_its_answer() {
    let apps = r#"
[apps.send]
steps = [
    { id = "who", ask = { question = "To whom?" } },
    { id = "text", ask = { question = "Send it?", content = "Dear {{who}}" } },
    { id = "sent", tool = "shop.say", when = ".steps.who.answer == \"Ada\"", params = { to = "{{who}}", text = "{{text}}", status = "{{who.status}}", old = "{{who.answer}}" } },
]
"#;
    let inside = shop().toml(apps).open().await;
    let asked = app(&inside, "send", Value::Null).await;
    let asked = inside.answer("ask_user", json!({ "token": asked["token"], "answer": "Ada" })).await;
    assert!(asked["message"].as_str().is_some_and(|text| text.contains("Dear Ada")), "{asked}");
    let told = inside.answer("ask_user", json!({ "token": asked["token"], "answer": "yes" })).await;
    let expected = json!({ "to": "Ada", "text": "Dear Ada", "status": "answered", "old": "Ada" });
    assert_eq!(told["output"], expected, "{told}");
}
