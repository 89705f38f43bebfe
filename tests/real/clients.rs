//! Third-party clients: the SDKs of Python and TypeScript, each in a script in this folder, and the
//! inspector. They list, search, call, read, get a prompt and fill in a form, through Nonet.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use crate::{HttpGateway, NONET, Place, installed};

/// A resource and a prompt of server-everything, used by the scripts.
const DOCUMENT: &str = "demo://resource/static/document/features.md";
const PROMPT: &str = "everything__args-prompt";

/// Returns a client's output, as JSON; the client must succeed.
pub fn printed(client: &mut Command) -> Value {
    let output = client.output().unwrap();
    assert!(output.status.success(), "{client:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn names(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().filter_map(Value::as_str).collect()
}

/// Returns the values under `key` in a list from the inspector.
fn listed<'a>(list: &'a Value, key: &str) -> Vec<&'a str> {
    list.as_array().unwrap().iter().filter_map(|entry| entry[key].as_str()).collect()
}

/// Returns the answer of a call, retried while possible: on a busy machine, a server may take longer to start
/// than a call waits.
fn in_time(call: impl Fn() -> Value) -> Value {
    let mut answer = call();
    for _ in 0..10 {
        if !answer.to_string().contains("server_starting") {
            break;
        }
        answer = call();
    }
    answer
}

fn assert_the_nine(names: &[&str]) {
    assert_eq!(names, nonet_meta::NAMES);
}

/// Sends a script through a gateway, over both transports, in each of its modes; a mode comes with the
/// revision to be negotiated.
fn tours(script: &str, modes: &[(Option<&str>, &str)]) {
    let Some(real) = installed() else { return };
    let place = Place::new(real);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/real").join(script);
    let program = match script.extension().and_then(OsStr::to_str) {
        Some("py") => place.real.join("venv/bin/python"),
        _ => PathBuf::from("node"),
    };
    let config = place.path("servers.toml").display().to_string();
    let stdio = ["stdio", NONET, "--config", &config];
    let gateway = HttpGateway::start(place.folder.path());
    let http = [gateway.url.as_str()];
    for (mode, version) in modes {
        for way in [&stdio[..], &http] {
            let mut client = place.command(&program);
            client.arg(&script).args(*mode).args(way).env("NONET_REAL", &place.real);
            let report = printed(&mut client);
            assert_eq!(report["protocol"], *version, "{way:?}");
            assert_the_nine(&names(&report["tools"]));
            assert_eq!(report["call"], "Echo: hi");
            assert!(names(&report["found"]).contains(&"everything.echo"), "{report}");
            assert!(names(&report["resources"]).contains(&DOCUMENT), "{report}");
            assert_eq!(report["read"], "# Everything Server - Features");
            assert!(names(&report["prompts"]).contains(&PROMPT), "{report}");
            assert_eq!(report["prompt"], "What's weather in Bergen?");
            assert!(report["form"].as_str().is_some_and(|text| text.contains("- Name: Ada")), "{report}");
        }
    }
}

#[test]
fn the_python_sdk_does_everything_in_both_eras_over_both_transports() {
    tours("python_client.py", &[(Some("legacy"), "2025-11-25"), (Some("auto"), "2026-07-28")]);
}

#[test]
fn the_typescript_sdk_of_the_session_era_does_everything_over_both_transports() {
    tours("typescript_v1_client.mjs", &[(None, "2025-11-25")]);
}

#[test]
fn the_typescript_sdk_does_everything_in_both_eras_over_both_transports() {
    tours("typescript_v2_client.mjs", &[(Some("legacy"), "2025-11-25"), (Some("auto"), "2026-07-28")]);
}

#[test]
fn the_inspector_lists_and_calls_over_both_transports() {
    let Some(real) = installed() else { return };
    let place = Place::new(real);
    let config = place.path("servers.toml").display().to_string();
    let gateway = HttpGateway::start(place.folder.path());
    let inspector = |arguments: &[&str]| {
        let program = place.real.join("node/node_modules/.bin/mcp-inspector");
        printed(place.command(program).arg("--cli").args(arguments))
    };
    let stdio = ["--", NONET, "--config", &config];
    let http = [gateway.url.as_str(), "--transport", "http"];
    let over_stdio = |method: &[&str]| inspector(&[method, &stdio].concat());
    let over_http = |method: &[&str]| inspector(&[&http, method].concat());

    let list = ["--method", "tools/list"];
    // `--tool-arg` takes everything up to the next option.
    let call = [
        "--tool-name",
        "execute_tool",
        "--tool-arg",
        "name=everything.echo",
        "params={\"message\":\"hi\"}",
        "--method",
        "tools/call",
    ];
    for (answer, result) in
        [(over_stdio(&list), in_time(|| over_stdio(&call))), (over_http(&list), in_time(|| over_http(&call)))]
    {
        assert_the_nine(&listed(&answer["tools"], "name"));
        assert_eq!(result["content"][0]["text"], "Echo: hi");
    }

    // Over stdio, each run of the inspector has its own gateway, which lists what its servers have reported
    // so far. Here, the call above has waited for the server.
    let search =
        ["--tool-name", "search_tools", "--tool-arg", "query=echo a message", "--method", "tools/call"];
    let found = over_http(&search);
    assert!(
        found["content"][0]["text"].as_str().is_some_and(|text| text.contains("everything.echo")),
        "{found}"
    );
    let resources = over_http(&["--method", "resources/list"]);
    assert!(listed(&resources["resources"], "uri").contains(&DOCUMENT), "{resources}");
    let read = over_http(&["--method", "resources/read", "--uri", DOCUMENT]);
    assert_eq!(read["contents"][0]["uri"], DOCUMENT);
    let prompts = over_http(&["--method", "prompts/list"]);
    assert!(listed(&prompts["prompts"], "name").contains(&PROMPT), "{prompts}");
    let get = ["--method", "prompts/get", "--prompt-name", PROMPT, "--prompt-args", "city=Bergen"];
    let prompt = over_http(&get);
    assert_eq!(prompt["messages"][0]["content"]["text"], "What's weather in Bergen?");
    // The inspector has no forms, so Nonet declines on its behalf.
    let form = [
        "--tool-name",
        "execute_tool",
        "--tool-arg",
        "name=everything.trigger-elicitation-request",
        "--method",
        "tools/call",
    ];
    let declined = over_http(&form);
    assert!(declined.to_string().contains("request_declined"), "{declined}");
}
