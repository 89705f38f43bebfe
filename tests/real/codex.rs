//! Codex without a person: `codex exec`, with a model that answers by a script, and Nonet as its MCP server.

use std::{fs, path::Path, process::Stdio};

use serde_json::{Value, json};

use crate::{
    NONET, Place, installed,
    model_service::{Model, Reply},
};

/// Returns an answer of the Responses API with one item, as events.
fn answer(item: &Value) -> Reply {
    let usage = json!({ "input_tokens": 1, "output_tokens": 1, "total_tokens": 2 });
    let events = [
        json!({ "type": "response.created", "response": { "id": "r" } }),
        json!({ "type": "response.output_item.done", "output_index": 0, "item": item }),
        json!({ "type": "response.completed", "response": { "id": "r", "usage": usage } }),
    ];
    let lines = events.iter().map(|event| {
        let kind = event["type"].as_str().unwrap_or_default();
        format!("event: {kind}\ndata: {event}\n\n")
    });
    Reply::Raw(200, "text/event-stream".into(), lines.collect())
}

fn calls(turn: usize, tool: &str, arguments: &Value) -> Reply {
    answer(&json!({
        "type": "function_call",
        "id": format!("item-{turn}"),
        "call_id": format!("call-{turn}"),
        "namespace": "mcp__nonet",
        "name": tool,
        "arguments": arguments.to_string(),
    }))
}

fn says(text: &str) -> Reply {
    let content = [json!({ "type": "output_text", "text": text })];
    answer(&json!({ "type": "message", "id": "m", "role": "assistant", "content": content }))
}

/// Runs `codex exec` with a model that searches, then calls a tool a few times, since its server may still be
/// starting, then ends. `install` are options of `nonet install codex`. Returns Codex's events of the search
/// and of the last call.
fn exec(place: &Place, name: &str, install: &[&str]) -> [Value; 2] {
    let echo = json!({ "name": "everything.echo", "params": { "message": "hi" } });
    let search = [calls(0, "search_tools", &json!({ "query": "echo a message" }))];
    let run = (1..=6).map(|turn| calls(turn, "execute_tool", &echo));
    let model = Model::start(search.into_iter().chain(run).chain([says("Done.")]));
    let home = place.path(name);
    fs::create_dir_all(home.join(".codex")).unwrap();
    let config = format!(
        "model = \"scripted\"\nmodel_provider = \"here\"\ncheck_for_update_on_startup = false\n\
         [analytics]\nenabled = false\n\
         [model_providers.here]\nname = \"here\"\nbase_url = {url:?}\nwire_api = \"responses\"\n",
        url = model.base_url(),
    );
    fs::write(home.join(".codex/config.toml"), config).unwrap();
    let mut nonet = place.command(NONET);
    nonet.arg("--config").arg(place.path("servers.toml")).args(["install", "codex"]).args(install);
    let installed = nonet.env("HOME", &home).env_remove("CODEX_HOME").output().unwrap();
    assert!(installed.status.success(), "{}", String::from_utf8_lossy(&installed.stderr));
    let mut codex = place.command(place.real.join("node/node_modules/.bin/codex"));
    codex.env("HOME", &home).env_remove("CODEX_HOME").stdin(Stdio::null());
    codex.args(["exec", "--json", "--ephemeral", "--skip-git-repo-check", "-C"]).arg(&home).arg("Echo hi.");
    let output = codex.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let events: Vec<Value> = output
        .stdout
        .split(|byte| *byte == b'\n')
        .filter_map(|line| serde_json::from_slice(line).ok())
        .collect();
    ["search_tools", "execute_tool"].map(|tool| {
        let ended = |event: &&Value| {
            event["type"] == "item.completed" && event["item"]["tool"].as_str() == Some(tool)
        };
        events.iter().rfind(ended).unwrap_or_else(|| panic!("no call of {tool}: {events:?}\n{error}"))["item"]
            .clone()
    })
}

/// Returns the text of a call that Codex made.
fn text(call: &Value) -> &str {
    assert_eq!(call["status"], "completed", "{call}");
    call["result"]["content"][0]["text"].as_str().unwrap()
}

/// Returns a folder for a test; `None` if Codex is not installed.
fn place() -> Option<Place> {
    let real = installed()?;
    assert!(Path::new(&real).join("node/node_modules/.bin/codex").exists(), "`.ci/run` has installed it");
    Some(Place::new(real))
}

#[test]
fn codex_exec_searches_without_a_question_and_runs_tools_with_its_approval_key() {
    let Some(place) = place() else { return };
    // Nobody can be asked: what reads runs, what may do anything does not.
    let [search, run] = exec(&place, "careful", &[]);
    assert!(text(&search).contains("\"results\""), "{search}");
    assert_eq!(run["status"], "failed", "{run}");
    assert!(run["error"]["message"].as_str().unwrap().contains("requires approval"), "{run}");

    let [search, run] = exec(&place, "allowing", &["--always-allow"]);
    assert!(text(&search).contains("\"results\""), "{search}");
    assert_eq!(text(&run), "Echo: hi");
}
