//! Scripts under rules: profiles, risks, questions outside of the chat, sign-ins, schedules, watches, replicas.

use std::{fs, time::Duration};

use nix::sys::signal::Signal;
use nonet_base::clock::Clock;
use nonet_testing::RedisServer;
use serde_json::{Value, json};

use crate::{
    client::command,
    cluster::ends,
    inside::eventually,
    setup::{Setup, json_of, logged, notices_of},
    web::WebClient,
};

/// A token of both replicas.
const TOKEN: &str = "a-token-of-more-than-32-characters";

fn tools() -> Value {
    json!([
        { "name": "say", "annotations": { "readOnlyHint": true } },
        { "name": "write" },
        { "name": "delete", "annotations": { "destructiveHint": true } },
    ])
}

#[tokio::test]
async fn a_script_can_do_what_its_profile_may() {
    let setup = Setup::new();
    let log = setup.path("calls");
    let inside = setup
        .server("shop", json!({ "tools": tools(), "call_log": log }))
        .server("vault", json!({ "tools": tools() }))
        .toml("[profiles.clerk]\nonly = ['shop.*', 'gateway.*']\nmax_risk = 'medium'\n")
        .toml("[profiles.plain]\nonly = ['shop.*']\n")
        .open_with_program()
        .await;
    let clerk = inside.under("clerk");
    let table = [
        ("return (await tools.shop.say({ n: 1 })).n", "", json!(1)),
        ("await tools.shop.write({}); await tools.vault.say({})", "unknown_tool", json!("Line 1")),
        ("await tools.shop.write({}); await tools.shop.delete({})", "forbidden", json!("risk")),
        // What the text does not name is refused when it is called, as an error.
        (
            "const found = []; for (const name of ['vault' + '.say', 'shop' + '.delete']) try { await call(name) } catch (e) { found.push(e.code) } return found",
            "",
            json!(["unknown_tool", "forbidden"]),
        ),
        (
            "return (await search('say something', { limit: 5 })).filter(one => one.name.startsWith('vault'))",
            "",
            json!([]),
        ),
    ];
    for (script, code, expected) in table {
        let params = json!({ "name": "gateway.run_script", "params": { "script": script } });
        let told = json_of(&inside.call_as(&clerk, "execute_tool", params).await);
        if code.is_empty() {
            assert_eq!(told["output"], expected, "{script}: {told}");
        } else {
            assert_eq!(told["error"]["code"], code, "{script}: {told}");
            let message = told["error"]["message"].as_str().unwrap_or_default();
            assert!(message.contains(expected.as_str().unwrap_or_default()), "{script}: {told}");
        }
    }
    assert!(
        logged(&log).iter().all(|call| call["params"]["name"] == "say"),
        "a script that was refused has done nothing"
    );
    // Nor does it see what another profile keeps.
    let kept = json!({ "name": "gateway.run_script", "params": { "script": "return 'x'.repeat(200000)" } });
    let kept = json_of(&inside.call_as(&clerk, "execute_tool", kept).await);
    let reference = kept["ref"].as_str().unwrap_or_else(|| panic!("{kept}")).to_string();
    let read = json!({ "name": "gateway.run_script", "params": { "script": format!("return (await result('{reference}').text()).length") } });
    assert!(
        json_of(&inside.call_as(&clerk, "execute_tool", read.clone()).await)["output"].as_u64()
            >= Some(200_000)
    );
    let other = json_of(&inside.call("execute_tool", read.clone()).await);
    assert_eq!(other["error"]["details"]["line"], 1, "{other}");
    // A profile without Nonet's own tool has no scripts.
    let none = json_of(&inside.call_as(&inside.under("plain"), "execute_tool", read).await);
    assert!(none["error"]["code"].is_string(), "{none}");
}

#[test]
fn a_script_that_its_user_approves_is_saved_and_found() {
    let mut client = Setup::new()
        .server("shop", json!({ "tools": tools() }))
        .gateway("soft_deadline = '4s'")
        .start_program();
    client.until_ready("shop");
    let script = "return [(await tools.shop.say({ n: input.n ?? 1 })).n, 'saved']";
    let ran = json_of(&client.execute("gateway.run_script", json!({ "script": script })));
    let schema = json!({ "type": "object", "properties": { "n": { "type": "integer" } } });
    let save = json!({ "task_id": ran["task_id"], "name": "say-one", "description": "Says a number twice over", "input_schema": schema });
    let asked = json_of(&client.execute("gateway.save_script", save.clone()))["error"].take();
    let folder = client.folder.clone();
    let waiting = command(folder.path()).args(["approve", "--json"]).output().expect("nonet runs");
    let waiting: Value = serde_json::from_slice(&waiting.stdout).expect("JSON");
    let question = &waiting["waiting"][0];
    assert!(
        question["question"].as_str().is_some_and(|text| text.contains(script)),
        "the user sees the text: {waiting}"
    );
    let id = asked["details"]["approval"].as_str().unwrap_or_else(|| panic!("{asked}"));
    let said = command(folder.path()).args(["approve", id]).output().expect("nonet runs");
    assert!(said.status.success(), "{said:?}");
    let saved = json_of(&client.execute("gateway.save_script", save));
    assert!(saved["error"].is_null(), "{saved}");
    let text = fs::read_to_string(folder.path().join("scripts/say-one.js")).expect("the file is there");
    assert!(text.contains(script), "{text}");
    eventually_app(&mut client);
    let told = json_of(&client.execute("apps.say-one", json!({ "n": 7 })));
    assert_eq!(told["output"], json!([7, "saved"]), "{told}");
}

/// Waits until the gateway has read the new app.
fn eventually_app(client: &mut crate::client::Client) {
    crate::setup::eventually("the app is found", || {
        let found = client.answer("search_tools", json!({ "query": "says a number twice over" }));
        found["results"].as_array()?.iter().any(|hit| hit["name"] == "apps.say-one").then_some(())
    });
}

#[tokio::test]
async fn a_script_runs_by_schedules_and_watches() {
    let setup = Setup::new();
    let log = setup.path("calls");
    let setup = setup
        .server("shop", json!({ "tools": tools(), "call_log": log }))
        .toml("[apps.report]\ndescription = 'Reports'\nscript = 'report.js'\n[apps.clean]\ndescription = 'Cleans'\nscript = 'clean.js'\n")
        .toml("[servers.shop.tools.delete]\npolicy = 'approve'\n");
    fs::write(setup.path("report.js"), "const one = await tools.shop.say({ n: 3 }); return { sold: one.n }")
        .expect("written");
    fs::write(setup.path("clean.js"), "if (await ask('Delete it?', ['yes', 'no']) === 'yes') await tools.shop.write({ gone: true }); return 'ended'").expect("written");
    let (clock, state) = (Clock::default(), tempfile::tempdir().expect("a folder"));
    let inside = setup.open_program_with_clock(&clock, state.path()).await;
    let own =
        async |tool: &str, params: Value| json_of(&inside.execute(&format!("gateway.{tool}"), params).await);
    let notice = async |kind: &str| {
        eventually(&format!("a notice `{kind}`"), async || {
            let notices = notices_of(&inside.call("list_categories", json!({})).await);
            notices.into_iter().find(|notice| notice["kind"] == kind)
        })
        .await
    };
    own("schedule", json!({ "when": "in 1h", "app_id": "report" })).await;
    clock.advance(Duration::from_secs(3_600));
    let told = notice("scheduled_run").await;
    assert_eq!(told["result"]["output"], json!({ "sold": 3 }), "{told}");
    // A question of an unattended script waits for the user.
    own("schedule", json!({ "when": "in 1h", "app_id": "clean" })).await;
    clock.advance(Duration::from_secs(3_600));
    let told = notice("scheduled_run").await;
    assert_eq!(told["result"]["status"], "needs_user", "{told}");
    let ended = inside.answer("ask_user", json!({ "token": told["result"]["token"], "answer": "yes" })).await;
    assert_eq!(ended["output"], "ended", "{ended}");
    let gone = logged(&log).iter().filter(|call| call["params"]["name"] == "write").count();
    assert_eq!(gone, 1);
    let started =
        own("watch_start", json!({ "name": "apps.report", "notify_when": "always", "interval": 60 })).await;
    assert!(started["error"].is_null(), "{started}");
    clock.advance(Duration::from_secs(61));
    let told = notice("watch").await;
    assert!(told.to_string().contains("sold"), "{told}");
}

#[test]
fn a_replica_goes_on_with_the_script_of_another() {
    let Some(redis) = RedisServer::start() else { return };
    let log = tempfile::NamedTempFile::new().expect("a file");
    let replica = |name: &str| {
        Setup::new()
            .toml(&redis.toml(name))
            .gateway(&format!("tokens = ['{TOKEN}']"))
            .server("shop", json!({ "tools": tools(), "call_log": log.path() }))
            .toml("[servers.shop.tools.delete]\npolicy = 'approve'\n")
            .serve_program()
    };
    let (one, two) = (replica("one"), replica("two"));
    for site in [&one, &two] {
        WebClient::with_token(&site.address, "/mcp", TOKEN).until_ready("shop");
    }
    let mut client = WebClient::with_token(&one.address, "/mcp", TOKEN);
    let script = "await tools.shop.write({ n: 1 }); await tools.shop.delete({ n: 2 }); return 'done'";
    let run = json!({ "name": "gateway.run_script", "params": { "script": script } });
    let asked = client.answer("execute_tool", run);
    assert_eq!(asked["status"], "needs_user", "{asked}");
    let _ended = ends(one, Signal::SIGKILL);
    let mut there = WebClient::with_token(&two.address, "/mcp", TOKEN);
    let told = there.answer("ask_user", json!({ "token": asked["token"], "answer": "yes" }));
    assert_eq!((&told["output"], &told["earlier_calls"]), (&json!("done"), &json!(1)), "{told}");
    assert_eq!(logged(log.path()).len(), 2, "nothing was called twice");
}
