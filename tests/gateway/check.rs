//! `nonet check`, and the consequences of a faulty `servers.toml`.

use std::{fs, process::Output};

use serde_json::{Value, json};

use crate::{
    client::command,
    setup::{Setup, fake_server},
};

/// Runs a command with this text as `servers.toml`.
fn run(setup: &Setup, text: &str, arguments: &[&str]) -> Output {
    let folder = setup.folder.path().display();
    let text = text.replace("FAKE", fake_server().to_str().expect("UTF-8"));
    let embedder = format!("\n[embedder]\ncache = '{folder}/cache'\nmodel = '{folder}/no-model'\n");
    fs::write(setup.path("servers.toml"), text + &embedder).expect("it can be written");
    command(setup.folder.path()).env_remove("NONET_TEST_UNSET").args(arguments).output().expect("nonet runs")
}

/// Returns standard output without differences between machines and runs.
fn told(setup: &Setup, bytes: &[u8]) -> String {
    let text = String::from_utf8(bytes.to_vec()).expect("UTF-8");
    let text = text.replace(setup.folder.path().to_str().expect("UTF-8"), "");
    let blank = |word: &str| word.parse::<u64>().map_or(word.to_string(), |_| "N".into());
    let lines = text.lines().map(|line| {
        let words: Vec<String> = line.split_whitespace().map(blank).collect();
        words.join(" ")
    });
    lines.filter(|line| !line.starts_with("definitions:")).collect::<Vec<_>>().join("\n")
}

const FAULTY: &str = r#"
[servers.Good_Name]
command = "FAKE"

[servers.files]
comand = "npx"
args = "-y"

[servers.token]
url = "https://example.com/mcp"
headers = { Authorization = "Bearer ${NONET_TEST_UNSET}" }

[servers.gateway]
command = "FAKE"

[servers.fine]
command = "FAKE"
args = ["--script", '{"tools":[{"name":"look"}]}']
timeout = "10"
"#;

const HALF: &str = r#"
[servers.fine]
command = "FAKE"
args = ["--script", '{"tools":[{"name":"look"}]}']

[servers.bad]
command = "FAKE"
comand = "x"

[servers.token]
url = "https://example.com/mcp"
headers = { Authorization = "Bearer ${NONET_TEST_UNSET}" }
"#;

#[test]
fn check_tells_every_fault_at_once_with_its_line() {
    let setup = Setup::new();
    let output = run(&setup, FAULTY, &["check"]);
    assert_eq!(output.status.code(), Some(2));
    insta::assert_snapshot!(told(&setup, &output.stdout));
}

#[test]
fn a_faulty_server_is_left_out_and_the_others_work() {
    let setup = Setup::new();
    let output = run(&setup, HALF, &["call", "fine.look", "{\"a\": 1}"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "{\"a\":1}");
    insta::assert_snapshot!(told(&setup, &output.stderr));
    let output = run(&setup, HALF, &["check", "--json"]);
    assert_eq!(output.status.code(), Some(2));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let states = report["servers"].as_array().expect("a list").iter();
    let states: Vec<(&str, &str)> =
        states.map(|one| (one["name"].as_str().unwrap_or(""), one["state"].as_str().unwrap_or(""))).collect();
    assert_eq!(states, [("bad", "needs_config"), ("fine", "ready"), ("token", "needs_config")], "{report}");
    assert_eq!(report["faults"].as_array().map(Vec::len), Some(2), "{report}");
    assert_eq!(
        (&report["faults"][0]["line"], &report["faults"][0]["left_out"]),
        (&json!(8), &json!("servers.bad"))
    );
}

#[test]
fn check_says_how_every_server_does() {
    let setup = Setup::new();
    let good = "[servers.fine]\ncommand = 'FAKE'\nargs = ['--script', '{\"tools\":[{\"name\":\"look\"}]}']\n";
    let output = run(&setup, good, &["check"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    insta::assert_snapshot!(told(&setup, &output.stdout));
    let dead = format!(
        "{good}[servers.dead]\ncommand = 'no-such-program-of-nonet'\n[servers.off]\ncommand = 'x'\nenabled = false\n"
    );
    let output = run(&setup, &dead, &["check", "--json"]);
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(
        (&report["servers"][0]["state"], &report["servers"][1]["state"]),
        (&json!("down"), &json!("ready"))
    );
    assert_eq!(report["disabled"], json!(["off"]), "{report}");
    // Nonet's own tools do not count: without Nonet, no client would list them.
    let alone = run(&setup, "", &["check"]);
    let said = String::from_utf8_lossy(&alone.stdout).into_owned();
    assert!(said.contains("definitions: 0 bytes for 0 tools (about 0 tokens)"), "{said}");
    assert!(report["definitions"]["bytes_of_all_tools"].as_u64().is_some_and(|bytes| bytes > 20), "{report}");
}

#[test]
fn a_file_that_cannot_be_used_at_all_is_told_with_its_place() {
    let setup = Setup::new();
    for (text, place) in [
        ("[servers.a\ncommand = 'x'\n", "servers.toml:1:"),
        ("\n\n[gatway]\n", "servers.toml:3:"),
        ("[gateway]\nmax_result_bytes = 'many'\n", "servers.toml:2:"),
        ("[servers.a]\ncommand = 'x'\ncommand = 'y'\n", "servers.toml:3:"),
    ] {
        for arguments in [&["check"][..], &["tools"], &["serve"]] {
            let output = run(&setup, text, arguments);
            assert_eq!(output.status.code(), Some(2), "{arguments:?} {text}");
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(errors.contains(place), "{arguments:?} {text}: {errors}");
            assert!(output.stdout.is_empty(), "{arguments:?}");
        }
        let output = run(&setup, text, &["check", "--json"]);
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!((output.status.code(), &report["usable"]), (Some(2), &json!(false)), "{report}");
    }
}

#[test]
fn no_file_at_all_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = command(folder.path()).arg("tools").output().expect("nonet runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("servers.toml"));
}

#[test]
fn check_says_what_is_likely_behind_a_failure_and_what_is_odd_about_tools() {
    let setup = Setup::new();
    let script = r#"{"tools":[{"name":"a tool"},{"name":"fine","description":"Fine"},{"name":"broken","description":"x","input_schema":{"type":12}}]}"#;
    let text = format!(
        "[servers.odd]\ncommand = \"FAKE\"\nargs = [\"--script\", '{script}']\n[servers.keyless]\ncommand = \"FAKE\"\nargs = [\"--script\", '{{\"stderr_lines\":[\"Error: API_KEY is not set\"],\"exit_at_start\":1}}']\n"
    );
    let output = run(&setup, &text, &["check"]);
    assert_eq!(output.status.code(), Some(1));
    let said = told(&setup, &output.stdout);
    for part in [
        "keyless: A variable or argument that the server needs is missing",
        "odd: 1 of 3 tools has no description",
        "odd: 1 of 3 tools is listed to clients under a shortened or changed name: a tool",
        "odd: 1 of 3 tools has an unusable schema, so their params go unchecked: broken",
    ] {
        assert!(said.contains(&part.replace("1 of 3", "N of N")), "{part}\n{said}");
    }
    let json: Value = serde_json::from_slice(&run(&setup, &text, &["check", "--json"]).stdout).expect("JSON");
    assert_eq!(json["warnings"].as_array().map(Vec::len), Some(3), "{json}");
}

#[test]
fn check_warns_of_rules_that_match_no_tool() {
    let setup = Setup::new();
    let script = r#"{"tools":[{"name":"write_file","description":"Writes"},{"name":"read_file","description":"Reads"}]}"#;
    let server =
        |name: &str| format!("[servers.{name}]\ncommand = \"FAKE\"\nargs = [\"--script\", '{script}']\n");
    let text = [
        &server("gamma"),
        "blocked_tools = ['delete_*', 'raed_*']\n",
        &server("files"),
        "[servers.files.tools.write_fiel]\npolicy = 'approve'\n[servers.dead]\ncommand = 'no-such-program-of-nonet'\nallowed_tools = ['x']\n",
        "[policies.no]\ntools = ['gama.*', 'files.write_*', 'dead.*']\npolicy = 'deny'\n",
        "[profiles.p]\nonly = ['files.read']\npinned = ['files.read_file']\n",
        "[apps.a]\nsteps = [{ tool = 'gamma.read_file' }, { tool = 'gamma.raed_file' }]\n",
    ]
    .concat();
    let output = run(&setup, &text, &["check", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let warnings = report["warnings"].as_array().expect("a list").iter();
    let told: Vec<String> = warnings
        .filter_map(|warning| Some(format!("{}: {}", warning["key"].as_str()?, warning["message"].as_str()?)))
        .collect();
    let expected = [
        "servers.files.tools.write_fiel: `write_fiel` matches no tool of `files`; the nearest is `write_file`",
        "servers.gamma.blocked_tools: `delete_*` matches no tool of `gamma`",
        "servers.gamma.blocked_tools: `raed_*` matches no tool of `gamma`; the nearest is `read_file`",
        "profiles.p.only: `files.read` matches no tool; the nearest is `files.read_file`",
        "policies.no.tools: `gama.*` matches no server; the nearest is `gamma.*`",
        "apps.a.steps.step2: `gamma.raed_file` matches no tool; the nearest is `gamma.read_file`",
    ];
    assert_eq!(told, expected);
    let output = run(&setup, &text, &["check"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    for line in expected {
        assert!(said.contains(&format!("warning: {line}")), "{line}\n{said}");
    }
}

#[test]
fn check_warns_of_a_library_that_nothing_uses() {
    let setup = Setup::new();
    let check = |embedder: &str| {
        fs::write(setup.path("servers.toml"), format!("[embedder]\n{embedder}\n"))
            .expect("it can be written");
        let output = command(setup.folder.path()).arg("check").output().expect("nonet runs");
        String::from_utf8_lossy(&output.stdout)
            .contains("`[embedder] onnxruntime` does nothing without `model`")
    };
    assert!(check("onnxruntime = '/nowhere/libonnxruntime.so'"));
    assert!(!check("onnxruntime = '/nowhere/libonnxruntime.so'\nmodel = '/nowhere'"));
}
