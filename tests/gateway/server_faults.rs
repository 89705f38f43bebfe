//! A server that is slow, dead, noisy, endless or hostile affects only its own tools. One row per fault.

use std::{fs, time::Instant};

use serde_json::{Value, json};

use crate::{
    client::Client,
    setup::{Setup, eventually, fake_server, json_of, text_of},
};

/// Returns a healthy server, to show that it is not affected.
fn good() -> Value {
    json!({ "tools": [{ "name": "fine", "on": { "text": "fine" } }] })
}

fn beside(name: &str, script: Value) -> Client {
    until_good(with_good(name, script).start())
}

fn with_good(name: &str, script: Value) -> Setup {
    Setup::new().server("good", good()).server(name, script)
}

fn until_good(mut client: Client) -> Client {
    client.until_ready("good");
    client
}

fn is_fine(client: &mut Client) {
    assert_eq!(text_of(&client.execute("good.fine", json!({}))), "fine");
}

#[test]
fn a_crash_during_a_call_is_told_and_healed() {
    let tools = json!([{ "name": "crash", "on": [{ "crash": true }, { "text": "again" }] }, { "name": "count", "on": { "counter": true } }]);
    let mut client = until_good(with_good("bad", json!({ "tools": tools })).start_program());
    client.until_ready("bad");
    let before = json_of(&client.execute("bad.count", json!({})));
    let fault = client.fault("bad.crash", json!({}));
    assert_eq!((&fault["code"], &fault["retryable"]), (&json!("server_down"), &json!(true)), "{fault}");
    assert!(fault["message"].as_str().is_some_and(|text| text.contains("exit code 70")), "{fault}");
    assert!(fault["retry_after_ms"].is_u64(), "{fault}");
    // The next call waits for the restart.
    let after = json_of(&client.execute("bad.count", json!({})));
    assert_ne!(before["pid"], after["pid"], "it is another process");
    is_fine(&mut client);
}

#[test]
fn every_call_that_runs_when_a_server_dies_is_answered() {
    let tools = json!([{ "name": "hang", "on": { "hang": true } }, { "name": "crash", "on": { "delay_ms": 300, "crash": true } }]);
    let mut client = beside("bad", json!({ "tools": tools }));
    client.until_ready("bad");
    let hanging: Vec<i64> = (0..5).map(|_| client.begin_call("bad__hang", json!({}))).collect();
    client.fault("bad.crash", json!({}));
    for id in hanging {
        let fault = json_of(&client.result(id));
        assert_eq!(fault["error"]["code"], "server_down", "{fault}");
    }
}

#[test]
fn a_tool_of_a_server_that_was_never_reached_is_out_of_reach_and_not_unknown() {
    let mut client = Setup::new()
        .server("good", good())
        .server_of("gone", "command = '/nonexistent'")
        .server_of("far", "url = 'http://127.0.0.1:9/mcp'")
        .start();
    client.until_ready("good");
    for (server, name) in [("gone", "gone.x"), ("gone", "mcp__nonet__gone__x"), ("far", "far__x")] {
        client.until(server, "down");
        let fault = client.fault(name, json!({}));
        assert_eq!(fault["code"], "server_down", "{name}: {fault}");
        assert!(
            fault["message"].as_str().is_some_and(|text| text.contains(&format!("`{server}`"))),
            "{fault}"
        );
    }
    assert_eq!(client.fault("goner.x", json!({}))["code"], "unknown_tool");
}

#[test]
fn a_server_that_exits_at_once_is_down_with_what_it_said_last() {
    let script = json!({ "exit_at_start": 3, "stderr_lines": ["first", "the licence is missing"] });
    let mut client = until_good(with_good("bad", script).start_program());
    client.until("bad", "down");
    eventually("the reason names the exit code and the last words", || {
        let error = client.server("bad")["last_error"].as_str()?.to_string();
        (error.contains("exit code 3") && error.contains("the licence is missing")).then_some(())
    });
    is_fine(&mut client);
    let categories = client.answer("list_categories", json!({}));
    assert!(categories["categories"].to_string().contains("\"state\":\"down\""), "{categories}");
}

#[test]
fn a_server_that_comes_up_later_is_found() {
    let setup = Setup::new();
    let file = setup.path("up");
    let script = json!({ "tools": [{ "name": "look" }], "exit_unless_file": file });
    let mut client = setup.server("good", good()).server("late", script).start();
    client.until("late", "down");
    fs::write(&file, "").expect("the file can be written");
    client.until_ready("late");
    assert_eq!(client.answer("late__look", json!({ "a": 1 })), json!({ "a": 1 }));
}

#[test]
fn a_missing_launcher_is_told_with_a_remedy() {
    let mut client = Setup::new()
        .server("good", good())
        .server_of("bad", "command = 'no-such-program-of-nonet'")
        .server_of("path", "command = './no/such/file'")
        .start();
    let state = client.until("bad", "down");
    insta::assert_snapshot!(state["last_error"].as_str().expect("a reason"));
    client.until("path", "down");
    client.until_ready("good");
    is_fine(&mut client);
}

#[test]
fn noise_on_stdout_is_harmless() {
    let script = json!({
        "tools": [{ "name": "look", "on": { "noise": "{\"half\": " } }],
        "stdout_noise": ["Starting up...", "\u{1b}[32mready\u{1b}[0m", "{}", "[1]", "null", "{\"jsonrpc\":\"2.0\"}", ""],
        "noise_before_each_answer": true,
    });
    let mut client = beside("noisy", script);
    client.until_ready("noisy");
    for n in 0..5 {
        assert_eq!(client.answer("noisy__look", json!({ "n": n })), json!({ "n": n }));
    }
}

#[test]
fn a_flood_on_stderr_is_harmless() {
    let mut client = beside("noisy", json!({ "tools": [{ "name": "look" }], "stderr_flood": true }));
    client.until_ready("noisy");
    for n in 0..3 {
        assert_eq!(client.answer("noisy__look", json!({ "n": n })), json!({ "n": n }));
    }
}

#[test]
fn an_endless_answer_costs_its_own_call() {
    let mut client = beside("bad", json!({ "tools": [{ "name": "pour", "on": { "endless": true } }] }));
    client.until_ready("bad");
    let id = client.begin_call("execute_tool", json!({ "name": "bad.pour", "timeout_ms": 1_500 }));
    is_fine(&mut client);
    let fault = json_of(&client.result(id))["error"].take();
    let code = fault["code"].as_str().expect("a code");
    assert!(["timeout", "server_down", "upstream_error"].contains(&code), "{fault}");
    is_fine(&mut client);
}

#[test]
fn a_server_that_never_answers_delays_nobody() {
    let mut client = beside("silent", json!({ "never_answer": true }));
    let began = Instant::now();
    is_fine(&mut client);
    assert_eq!(client.server("silent")["state"], "starting");
    let fault = client.fault("silent.anything", json!({}));
    assert!(
        ["unknown_tool", "server_starting"].contains(&fault["code"].as_str().expect("a code")),
        "{fault}"
    );
    assert!(began.elapsed().as_secs() < 5, "it took {:?}", began.elapsed());
}

#[test]
fn a_server_that_hangs_in_a_call_delays_nobody() {
    let mut client =
        beside("bad", json!({ "tools": [{ "name": "hang", "on": { "hang": true } }, { "name": "look" }] }));
    client.until_ready("bad");
    let hanging: Vec<i64> = (0..20).map(|_| client.begin_call("bad__hang", json!({}))).collect();
    is_fine(&mut client);
    assert_eq!(
        client.answer("bad__look", json!({ "a": 1 })),
        json!({ "a": 1 }),
        "nor other calls of its own"
    );
    assert!(hanging.into_iter().all(|id| !client.has_answer(id)));
}

#[test]
fn a_call_waits_for_a_server_that_is_starting_again() {
    let setup = Setup::new();
    let tools = json!([{ "name": "crash", "on": { "crash": true } }, { "name": "look" }]);
    let mut client = setup.server("slow", json!({ "tools": tools, "start_delay_ms": 1_000 })).start();
    client.until_ready("slow");
    client.fault("slow.crash", json!({}));
    // The last list is known; the call waits until the server is back.
    assert_eq!(client.answer("slow__look", json!({ "a": 1 })), json!({ "a": 1 }));
}

#[test]
fn a_call_waits_for_a_server_that_is_known_from_the_last_run() {
    let script =
        json!({ "tools": [{ "name": "look", "description": "Looks around" }], "start_delay_ms": 1_500 });
    let mut first = Setup::new().server("slow", script).start_program();
    first.until_ready("slow");
    let mut second = first.restart();
    second.initialize("2025-06-18", json!({}));
    let found = eventually("the tool is found", || {
        let found = second.answer("search_tools", json!({ "query": "look" }));
        found["results"].as_array()?.iter().find(|hit| hit["name"] == "slow.look").cloned()
    });
    assert!(matches!(found["state"].as_str(), Some("starting") | None), "{found}");
    assert_eq!(second.answer("slow__look", json!({ "a": 1 })), json!({ "a": 1 }));
}

#[test]
fn a_child_gets_what_programs_expect_and_no_tokens() {
    let script = json!({ "tools": [{ "name": "look", "on": { "env": true } }] });
    let usual = [
        ("https_proxy", "http://ann:s3cr3t@proxy.example:3128"),
        ("NO_PROXY", "localhost"),
        ("WAYLAND_DISPLAY", "wayland-7"),
        ("SSH_AUTH_SOCK", "/run/agent"),
        ("npm_config_registry", "https://npm.example/"),
        ("LC_TIME", "C"),
    ];
    let tokens = [
        ("NONET_TEST_TOKEN", "s3cr3t-token"),
        ("npm_config__authToken", "s3cr3t-token"),
        ("UV_PUBLISH_TOKEN", "s3cr3t-token"),
        ("AWS_PROFILE", "s3cr3t-profile"),
        ("KUBECONFIG", "/s3cr3t/kube"),
    ];
    let variables: Vec<_> = usual.iter().chain(&tokens).copied().collect();
    let mut client = Setup::new()
        .gateway("inherit_env = ['KUBECONFIG']")
        .server_with("good", script.clone(), "env = { OWN = 'mine', EXPANDED = '${HOME}', LC_TIME = 'own' }")
        .server_with("cloud", script, "inherit_env = ['AWS_*', 'UV_PUBLISH_TOKEN']")
        .run_with(&[], &variables);
    client.initialize("2025-06-18", json!({}));
    client.until_ready("good");
    client.until_ready("cloud");
    let seen = json_of(&client.execute("good.look", json!({})));
    let env = seen["env"].as_object().expect("variables");
    assert_eq!(
        (&env["OWN"], &env["EXPANDED"], &env["LC_TIME"]),
        (&json!("mine"), &env["HOME"], &json!("own"))
    );
    for (name, value) in &usual[..5] {
        assert_eq!(env[*name], *value, "{name}");
    }
    assert!(env.contains_key("PATH"), "{env:?}");
    let names = |env: &serde_json::Map<String, Value>| {
        let given = tokens.iter().map(|(name, _)| *name);
        given.filter(|name| env.contains_key(*name)).collect::<Vec<_>>()
    };
    assert_eq!(names(env), ["KUBECONFIG"]);
    assert!(!env.contains_key("NONET_LOG"), "{env:?}");
    let cloud = json_of(&client.execute("cloud.look", json!({})));
    let cloud = cloud["env"].as_object().expect("variables");
    assert_eq!(names(cloud), ["UV_PUBLISH_TOKEN", "AWS_PROFILE", "KUBECONFIG"]);
    assert!(
        seen["args"][0].as_str().is_some_and(|arg| arg == fake_server().to_str().expect("UTF-8")),
        "{seen}"
    );
}

#[test]
fn secrets_reach_no_log_and_no_answer() {
    let secret = "hunter2-very-secret";
    let mut client = Setup::new()
        .server_with("good", good(), &format!("env = {{ API_KEY = '{secret}' }}"))
        .server_of(
            "web",
            &format!("url = 'http://127.0.0.1:1/mcp'\nheaders = {{ Authorization = 'Bearer {secret}' }}"),
        )
        .start_program();
    client.until_ready("good");
    client.until("web", "down");
    let status = client.execute("gateway.status", json!({}));
    let categories = client.call("list_categories", json!({}));
    assert!(!format!("{status}{categories}{}", client.stderr()).contains(secret), "{}", client.stderr());
}

#[test]
fn an_answer_to_nobody_is_left_alone() {
    let tools = json!([{ "name": "lost", "on": { "wrong_id": true } }, { "name": "look" }]);
    let mut client = beside("bad", json!({ "tools": tools }));
    client.until_ready("bad");
    let lost = client.call("execute_tool", json!({ "name": "bad.lost", "timeout_ms": 300 }));
    assert_eq!(json_of(&lost)["error"]["code"], "timeout", "{lost}");
    assert_eq!(client.answer("bad__look", json!({ "a": 1 })), json!({ "a": 1 }));
}
