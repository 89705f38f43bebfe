//! Scripts: what they do with the tools, what they tell when they stop, and what a second run does not repeat.

use std::path::Path;

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

fn tools(on_slow: Value) -> Value {
    let reads = json!({ "readOnlyHint": true });
    let picture = json!({ "content": [{ "type": "text", "text": "a cat" }, { "type": "image", "data": "AAAA", "mimeType": "image/png" }] });
    let path =
        json!({ "type": "object", "properties": { "path": { "type": "string" } }, "required": ["path"] });
    json!([
        { "name": "say", "annotations": reads },
        { "name": "rows", "on": { "json_rows": 3 }, "annotations": reads },
        { "name": "many", "on": { "json_rows": 20_000 }, "annotations": reads },
        { "name": "picture", "on": { "result": picture }, "annotations": reads },
        { "name": "fail", "on": { "error": "out of order" }, "annotations": reads },
        { "name": "write" },
        { "name": "delete", "input_schema": path, "annotations": { "destructiveHint": true } },
        { "name": "slow", "on": on_slow },
    ])
}

fn shop() -> Setup {
    Setup::new().server("shop", json!({ "tools": tools(json!({ "hang": true })) }))
}

/// A shop that logs its calls, whose `delete` needs the user's approval.
fn asking(setup: Setup, log: &Path) -> Setup {
    setup
        .server("shop", json!({ "tools": tools(json!({ "hang": true })), "call_log": log }))
        .toml("[policies.asks]\ntools = ['shop.delete']\npolicy = 'approve'\n")
}

async fn run(inside: &Inside, script: &str) -> Value {
    inside.execute("gateway.run_script", json!({ "script": script })).await
}

async fn output(inside: &Inside, script: &str) -> Value {
    let result = run(inside, script).await;
    assert_ne!(result["isError"], true, "{script}: {result}");
    json_of(&result)["output"].clone()
}

#[tokio::test]
async fn a_script_works_with_the_values_of_calls() {
    let inside = shop().open_with_program().await;
    let table = [
        ("return (await tools.shop.rows()).map(row => row.id)", json!([0, 1, 2])),
        ("return await all([1, 2], n => tools.shop.say({ n }))", json!([{ "n": 1 }, { "n": 2 }])),
        ("return await call('shop__say', { a: 'x' })", json!({ "a": "x" })),
        (
            "try { await tools.shop.fail() } catch (e) { return [e.code, e.message] }",
            json!(["upstream_error", "out of order"]),
        ),
        (
            "try { await call('shop.' + 'sya') } catch (e) { return [e.code, e.did_you_mean[0]] }",
            json!(["unknown_tool", "shop.say"]),
        ),
        ("return (await search('say', { limit: 1 }))[0].name", json!("shop.say")),
        ("return (await describe('shop.delete')).input_schema.required", json!(["path"])),
        (
            "const p = await tools.shop.picture(); return [p.value, p.media[0].mimeType, (await tools.shop.say({ d: p.media[0].data })).d]",
            json!(["a cat", "image/png", "AAAA"]),
        ),
        ("return (await tools.shop.many()).length", json!(20_000)),
    ];
    for (script, expected) in table {
        assert_eq!(output(&inside, script).await, expected, "{script}");
    }
    let result = run(&inside, "return (await tools.shop.picture()).media[0]").await;
    assert_eq!(
        result["content"][1],
        json!({ "type": "image", "data": "AAAA", "mimeType": "image/png" }),
        "{result}"
    );
}

#[tokio::test]
async fn a_kept_result_is_read_in_parts() {
    let inside = shop().open_with_program().await;
    let shown = inside.execute("shop.many", json!({})).await;
    let note = shown["content"].as_array().and_then(|blocks| blocks.last()).expect("a note");
    let note: Value = serde_json::from_str(note["text"].as_str().expect("text")).expect("JSON");
    let reference = note["ref"].as_str().expect("a large result is kept");
    let script = format!(
        "const r = result('{reference}'); let lines = 0; for await (const line of r.lines()) lines++; \
         return [await r.jq('.[-1].id'), (await r.json()).length, (await r.text()).length > 1e5, lines > 0]"
    );
    assert_eq!(output(&inside, &script).await, json!([19_999, 20_000, true, true]));
    let answer = run(&inside, "return await result('r-0000000000').json()").await;
    assert_eq!(json_of(&answer)["error"]["code"], "not_found", "{answer}");
    // What a script returns has the budget of every answer.
    let large = json_of(&run(&inside, "return (await tools.shop.many()).map(row => [row, row])").await);
    assert!(large["ref"].is_string(), "{large}");
}

#[tokio::test]
async fn what_a_text_names_is_checked_before_anything_runs() {
    let setup = Setup::new();
    let log = setup.path("calls");
    let inside = asking(setup, &log)
        .toml("[policies.no]\ntools = ['shop.fail']\npolicy = 'deny'\n")
        .open_with_program()
        .await;
    for (script, code, part) in [
        ("await tools.shop.write();\nawait tools.shop.wirte()", "unknown_tool", "Line 2 of the script"),
        ("await tools.shop.write(); await call('shop.fail')", "forbidden", "shop.fail"),
        ("await tools.shop.write(); let x: number = 1", "invalid_params", "line 1, column"),
        ("", "invalid_params", "`script` is required"),
    ] {
        let result = run(&inside, script).await;
        let fault = json_of(&result)["error"].clone();
        assert_eq!(fault["code"], code, "{script}: {result}");
        assert!(fault["message"].as_str().is_some_and(|text| text.contains(part)), "{fault}");
    }
    assert!(logged(&log).is_empty(), "nothing was called");
}

#[tokio::test]
async fn a_script_that_fails_tells_what_was_done_and_goes_on() {
    let setup = Setup::new();
    let log = setup.path("calls");
    let inside = asking(setup, &log).open_with_program().await;
    let script = "log('begin');\nconst one = await tools.shop.rows();\nawait tools.shop.write({ n: 1 });\nreturn one.nothing.at.all";
    let result = run(&inside, script).await;
    let fault = json_of(&result)["error"].clone();
    let details = &fault["details"];
    assert_eq!(
        (&fault["code"], &details["line"], &details["log"]),
        (&json!("invalid_params"), &json!(4), &json!("begin")),
        "{fault}"
    );
    assert_eq!(
        (&details["calls"], &details["done"][0]["name"]),
        (&json!(2), &json!("shop.write")),
        "writes first: {fault}"
    );
    assert!(details["done"][1]["ref"].is_string(), "{fault}");
    let next = fault["next_step"].clone();
    assert_eq!(next["arguments"]["name"], "gateway.run_script", "{fault}");
    let mut arguments = next["arguments"].clone();
    arguments["params"]["script"] = json!(script.replace("one.nothing.at.all", "one.length"));
    let told = inside.answer("execute_tool", arguments).await;
    assert_eq!(
        (&told["output"], &told["tool_calls"], &told["earlier_calls"]),
        (&json!(3), &json!(0), &json!(2)),
        "{told}"
    );
    assert_eq!(logged(&log).len(), 2, "nothing was called twice");
    // It has ended, so there is nothing to go on from.
    let fault = json_of(&inside.call("execute_tool", next["arguments"].clone()).await)["error"].clone();
    assert_eq!(fault["code"], "not_found", "{fault}");
}

#[tokio::test]
async fn limits_end_a_script_and_not_the_gateway() {
    let inside = shop().open_with_program().await;
    for (script, code) in [
        ("for (;;) {}", "timeout"),
        ("const all = []; for (;;) all.push('x'.repeat(1e6) + all.length)", "invalid_params"),
        ("await new Promise(() => {})", "invalid_params"),
        ("while (true) call('shop.say')", "timeout"),
        ("await Promise.all(Array.from({ length: 501 }, (_, n) => call('shop.say', { n })))", "rate_limited"),
    ] {
        let result = run(&inside, script).await;
        assert_eq!(json_of(&result)["error"]["code"], code, "{script}: {result}");
    }
    let late = json!({ "script": "await tools.shop.slow()", "timeout": 1 });
    let result = inside.execute("gateway.run_script", late).await;
    assert_eq!(json_of(&result)["error"]["code"], "timeout", "{result}");
    let nested =
        "try { await call('gateway.run_script', { script: 'return 1' }) } catch (e) { return e.message }";
    assert!(output(&inside, nested).await.as_str().is_some_and(|text| text.contains("inside of")));
    assert_eq!(output(&inside, "return 1").await, json!(1));
}

#[tokio::test]
async fn one_question_covers_all_calls_of_a_tool() {
    let setup = Setup::new();
    let log = setup.path("calls");
    let inside = asking(setup, &log).open_with_program().await;
    let script = "const t = Date.now(), r = Math.random(); await tools.shop.write({ t, r });\n\
                  const gone = await all(Array.from({ length: 12 }, (_, n) => n), n => tools.shop.delete({ path: `f${n}` }), { max: 2 });\n\
                  await tools.shop.write({ t, r }); return gone.length";
    let asked = json_of(
        &inside.execute("gateway.run_script", json!({ "script": script, "label": "clean up" })).await,
    );
    assert_eq!((&asked["status"], &asked["script"]), (&json!("needs_user"), &json!("clean up")), "{asked}");
    let question = asked["question"].as_str().or(asked["message"].as_str()).unwrap_or_default().to_string();
    assert!(question.contains("at least 12") && question.contains("f11"), "{asked}");
    assert_eq!(logged(&log).len(), 1, "nothing was deleted yet");
    let told = inside.answer("ask_user", json!({ "token": asked["token"], "answer": "yes" })).await;
    assert_eq!(
        (&told["output"], &told["tool_calls"], &told["earlier_calls"]),
        (&json!(12), &json!(13), &json!(1)),
        "{told}"
    );
    let calls = logged(&log);
    let written: Vec<&Value> = calls
        .iter()
        .map(|call| &call["params"])
        .filter(|call| call["name"] == "write")
        .map(|call| &call["arguments"])
        .collect();
    assert_eq!(written[0], written[1], "time and chance come from the ledger");
    assert_eq!(calls.len(), 14, "nothing was called twice");
}

#[tokio::test]
async fn a_script_asks_its_user() {
    let inside = shop().open_with_program().await;
    let script = "const first = await tools.shop.say({ n: 1 });\nconst color = await ask('Which color?', ['red', 'blue']);\nconst name = await ask('And which name?');\nreturn [first.n, color, name]";
    let asked = json_of(&run(&inside, script).await);
    assert_eq!(asked["status"], "needs_user", "{asked}");
    let again = inside.answer("ask_user", json!({ "token": asked["token"], "answer": "green" })).await;
    assert_eq!(again["status"], "needs_user", "what is no choice is asked again: {again}");
    let asked = inside.answer("ask_user", json!({ "token": asked["token"], "answer": "2" })).await;
    assert_eq!(asked["status"], "needs_user", "{asked}");
    let told = inside.answer("ask_user", json!({ "token": asked["token"], "answer": "Ada" })).await;
    assert_eq!((&told["output"], &told["earlier_calls"]), (&json!([1, "blue", "Ada"]), &json!(1)), "{told}");
    let late = inside.fault("ask_user", json!({ "token": asked["token"], "answer": "Bob" })).await;
    assert_eq!(late["code"], "not_found", "{late}");
}

#[tokio::test]
async fn a_denied_call_is_an_error_of_the_script() {
    let setup = Setup::new();
    let log = setup.path("calls");
    let inside = asking(setup, &log).open_with_program().await;
    let script = "try { await tools.shop.delete({ path: 'a' }) } catch (e) { return e.code }";
    let asked = json_of(&run(&inside, script).await);
    let told = inside.answer("ask_user", json!({ "token": asked["token"], "answer": "no" })).await;
    assert_eq!(told["output"], "forbidden", "{told}");
    assert!(logged(&log).is_empty());
}

fn killed(client: Client) -> Client {
    let pid = i32::try_from(client.pid()).expect("a process id");
    kill(Pid::from_raw(pid), Signal::SIGKILL).expect("it is there");
    client.restart()
}

#[test]
fn nothing_that_had_ended_runs_twice_after_a_kill() {
    let setup = Setup::new();
    let log = setup.path("calls");
    let server = |slow: Value| json!({ "tools": tools(slow), "call_log": log });
    let mut client = setup.server("shop", server(json!({ "hang": true }))).start_program();
    client.until_ready("shop");
    let script = "const out = [];\nfor (let n = 0; n < 3; n++) out.push((await tools.shop.write({ n })).n);\n\
                  const t = await call('shop.say', { at: Date.now() });\n\
                  try { await tools.shop.slow({}) } catch (e) { out.push(e.code) }\nreturn out";
    let arguments = json!({ "name": "gateway.run_script", "params": { "script": script } });
    client.begin_call("execute_tool", arguments.clone());
    eventually("the last call runs", || (logged(&log).len() == 5).then_some(()));

    let file = client.folder.path().join("shop.script.json");
    std::fs::write(&file, server(json!({ "text": "later" })).to_string()).expect("it can be written");
    let mut client = killed(client);
    client.initialize("2025-06-18", json!({}));
    client.until_ready("shop");
    // The same script goes on. What was in flight and may have changed something is not made again.
    let told = client.answer("execute_tool", arguments.clone());
    assert_eq!(
        (&told["output"], &told["earlier_calls"]),
        (&json!([0, 1, 2, "cancelled"]), &json!(4)),
        "{told}"
    );
    assert_eq!(logged(&log).len(), 5, "nothing was called twice");
    // Its record went with its end: the same text is a new script.
    let told = client.answer("execute_tool", arguments);
    assert_eq!((&told["output"], &told["tool_calls"]), (&json!([0, 1, 2]), &json!(5)), "{told}");
}

#[test]
fn a_question_of_a_script_outlives_its_gateway() {
    let setup = Setup::new();
    let log = setup.path("calls");
    let mut client = asking(setup, &log).start_program();
    client.until_ready("shop");
    let script = "await tools.shop.write({ n: 1 }); await tools.shop.delete({ path: 'a' }); return 'done'";
    let arguments = json!({ "name": "gateway.run_script", "params": { "script": script } });
    let asked = client.answer("execute_tool", arguments);
    let mut client = killed(client);
    client.initialize("2025-06-18", json!({}));
    client.until_ready("shop");
    let told = client.answer("ask_user", json!({ "token": asked["token"], "answer": "yes" }));
    assert_eq!(told["output"], "done", "{told}");
    assert_eq!(logged(&log).len(), 2, "nothing was called twice");
}

#[test]
fn a_long_script_is_a_task() {
    let setup = Setup::new();
    let mut client = setup
        .server("shop", json!({ "tools": tools(json!({ "hang": true })) }))
        .gateway("soft_deadline = '1s'")
        .start_program();
    client.until_ready("shop");
    let script = "progress(1, 4, 'first'); await tools.shop.say({}); await tools.shop.slow({})";
    let task = client.execute("gateway.run_script", json!({ "script": script, "label": "long" }));
    let task = json_of(&task);
    assert_eq!(task["state"], "running", "{task}");
    let seen = client.execute("gateway.background_run", json!({ "task_id": task["task_id"] }));
    assert_eq!(
        json_of(&seen)["progress"],
        json!({ "progress": 1.0, "total": 4.0, "message": "first" }),
        "{seen}"
    );
    let cancelled =
        client.execute("gateway.background_run", json!({ "task_id": task["task_id"], "cancel": true }));
    assert_eq!(json_of(&cancelled)["state"], "cancelled", "{cancelled}");
}

#[tokio::test]
async fn an_app_can_be_a_script() {
    let setup = shop().toml(
        "[apps.double]\ndescription = 'Doubles'\nscript = 'double.js'\n[apps.lost]\nscript = 'lost.js'\n",
    );
    let file = setup.path("double.js");
    std::fs::write(&file, "return [(await tools.shop.say({ n: input.n })).n, input.n * 2]").expect("written");
    let inside = setup.open_with_program().await;
    let told = inside.answer("call_app", json!({ "app_id": "double", "input": { "n": 2 } })).await;
    assert_eq!(
        (&told["app_id"], &told["output"], &told["tool_calls"]),
        (&json!("double"), &json!([2, 4]), &json!(1)),
        "{told}"
    );
    // The file is read at each run.
    std::fs::write(&file, "return await tools.apps.double({})").expect("written");
    let fault = inside.fault("call_app", json!({ "app_id": "double", "input": {} })).await;
    assert!(fault["message"].as_str().is_some_and(|text| text.contains("inside")), "{fault}");
    let fault = inside.fault("call_app", json!({ "app_id": "lost", "input": {} })).await;
    assert_eq!(fault["code"], "not_found", "{fault}");
}

#[test]
fn a_script_is_saved_only_with_the_users_own_approval() {
    let mut client = shop().start_program();
    client.until_ready("shop");
    let script = "return (await tools.shop.rows()).length + (input.more ?? 0)";
    let told = client.execute("gateway.run_script", json!({ "script": script }));
    let id = json_of(&told)["task_id"].clone();
    let save = json!({ "task_id": id, "name": "count-rows", "description": "Counts rows", "input_schema": { "type": "object", "properties": { "more": { "type": "integer" } } } });
    let asked = json_of(&client.execute("gateway.save_script", save));
    // No answer in the chat saves it: the user decides outside of it.
    assert_eq!(asked["error"]["code"], "needs_approval", "{asked}");
    assert!(!client.folder.path().join("scripts/count-rows.js").exists());
}

#[tokio::test]
async fn tools_are_declared_in_typescript() {
    let inside = shop().open_with_program().await;
    let result = inside.execute("gateway.describe_api", json!({ "names": ["shop"] })).await;
    let text = crate::setup::text_of(&result);
    assert!(text.contains("shop: {") && text.contains("delete(args: { path: string"), "{text}");
    assert!(!text.contains("declare function call"), "short for a model: {text}");
    let result = inside.execute("gateway.describe_api", json!({ "full": true })).await;
    let text = crate::setup::text_of(&result);
    assert!(text.contains("declare function call") && text.contains("gateway: {"), "{text}");
}

#[test]
fn a_script_is_run_from_the_shell() {
    let setup = shop();
    let file = setup.path("rows.js");
    std::fs::write(&file, "log('begin'); return (await tools.shop.rows()).length + input.more")
        .expect("written");
    setup.write();
    let mut command = crate::client::command(setup.folder.path());
    let ran = command.args(["run"]).arg(&file).args(["--input", "{\"more\":1}"]).output().expect("it runs");
    let (out, err) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success() && out.trim() == "4" && err.contains("begin"), "{out} {err}");
    let mut command = crate::client::command(setup.folder.path());
    let types = command.args(["types", "shop"]).output().expect("it runs");
    assert!(String::from_utf8_lossy(&types.stdout).contains("declare const tools"), "{types:?}");
}

#[tokio::test]
async fn large_answers_and_large_params_cross() {
    let inside = shop().open_with_program().await;
    let script = "const text = 'x'.repeat(100_000);\nconst all_ = await all(Array.from({ length: 40 }, (_, n) => n), async n => {\n\
                  const one = await tools.shop.say({ n, text }); return (await tools.shop.say(one)).n }, { max: 16 });\nreturn all_.length";
    assert_eq!(output(&inside, script).await, json!(40));
}

#[tokio::test]
async fn an_approval_is_of_one_text() {
    let setup = Setup::new();
    let log = setup.path("calls");
    let inside = asking(setup, &log).open_with_program().await;
    let script = "await tools.shop.delete({ path: 'a' }); throw new Error('no')";
    let asked = json_of(&run(&inside, script).await);
    // The same script waits already.
    let again = json_of(&run(&inside, script).await)["error"].clone();
    assert_eq!(again["next_step"]["arguments"]["token"], asked["token"], "{again}");
    let failed = inside.call("ask_user", json!({ "token": asked["token"], "answer": "yes" })).await;
    let mut more = json_of(&failed)["error"]["next_step"]["arguments"].clone();
    more["params"]["script"] =
        json!("await tools.shop.delete({ path: 'a' }); await tools.shop.delete({ path: 'b' })");
    let asked = inside.answer("execute_tool", more).await;
    assert_eq!(asked["status"], "needs_user", "{asked}");
    assert_eq!(logged(&log).len(), 1, "nothing more was deleted");
}

#[tokio::test]
async fn equal_scripts_at_once_do_not_share_a_record() {
    let setup = Setup::new();
    let log = setup.path("calls");
    let inside = asking(setup, &log).open_with_program().await;
    let script = "await tools.shop.write({ n: 1 }); await sleep(200); return 1";
    let (one, other) = tokio::join!(run(&inside, script), run(&inside, script));
    assert_eq!((json_of(&one)["output"].clone(), json_of(&other)["output"].clone()), (json!(1), json!(1)));
    assert_eq!(logged(&log).len(), 2);
}

#[tokio::test]
async fn a_call_that_was_made_is_not_made_again_because_its_result_was_too_large() {
    let setup = Setup::new();
    let log = setup.path("calls");
    let reads = json!([{ "name": "huge", "on": { "json_rows": 400_000 } }]);
    let inside = setup.server("shop", json!({ "tools": reads, "call_log": log })).open_with_program().await;
    let failed = json_of(&run(&inside, "return await tools.shop.huge()").await)["error"].clone();
    assert!(failed["message"].as_str().is_some_and(|text| text.contains("The call was made")), "{failed}");
    let again = inside.call("execute_tool", failed["next_step"]["arguments"].clone()).await;
    assert!(again.to_string().contains("The call was made"), "{again}");
    assert_eq!(logged(&log).len(), 1, "it was made once");
}

#[tokio::test]
async fn no_result_becomes_a_part_of_a_script() {
    let setup = Setup::new();
    let log = setup.path("calls");
    let inside = asking(setup, &log).open_with_program().await;
    let evil = json!({ "text": "\"}); await tools.shop.write({ x: 1 }); ({ a: \"" });
    let kept = output(&inside, "return (await tools.shop.many()).length && 1").await;
    assert_eq!(kept, 1);
    let said = inside.execute("shop.many", json!({})).await;
    let note = said["content"].as_array().and_then(|blocks| blocks.last()).expect("a note")["text"].clone();
    let note: Value = serde_json::from_str(note.as_str().expect("text")).expect("JSON");
    let before = logged(&log).len();
    let template = format!("{{{{ref:{}[0].name}}}}", note["ref"].as_str().expect("a reference"));
    // The text of a script stays as it was written; its input takes results.
    let script = format!("return ['{template}', input.name]");
    let told = json_of(
        &inside
            .execute(
                "gateway.run_script",
                json!({ "script": script, "input": { "name": template, "evil": evil } }),
            )
            .await,
    );
    assert_eq!(told["output"], json!([template, "row 0"]), "{told}");
    assert_eq!(logged(&log).len(), before);
}

#[tokio::test]
async fn only_pictures_and_sound_are_shown_of_handles() {
    let inside = shop().open_with_program().await;
    let said = inside.execute("shop.many", json!({})).await;
    let note = said["content"].as_array().and_then(|blocks| blocks.last()).expect("a note")["text"].clone();
    let note: Value = serde_json::from_str(note.as_str().expect("text")).expect("JSON");
    let script = format!(
        "return Array(8).fill({{ data: '{{{{' + 'ref:{}.content.0.data}}}}', mimeType: 'image/png' }})",
        note["ref"].as_str().expect("a reference")
    );
    let result = run(&inside, &script).await;
    assert_eq!(result["content"].as_array().map(Vec::len), Some(1), "{result}");
}
