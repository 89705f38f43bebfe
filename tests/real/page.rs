//! The live page in a real browser: Chromium, driven by `page.mjs`, before a gateway with scripted servers.

use std::{fs, path::Path, process::Command};

use serde_json::{Value, json};

use crate::{HttpGateway, NONET, chromium, installed};

/// Returns the recorded tools of a server, scripted: each answers after 30 ms with the id of its process.
fn scripted(server: &str) -> Value {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tools.jsonl");
    let text = fs::read_to_string(data).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let tools = lines.filter(|tool| tool["server"] == server).map(|tool| {
        let on = match tool["name"].as_str() {
            Some("convert_time") => json!({ "error": "there is no such zone" }),
            Some("git_show") => json!({ "hang": true }),
            Some("read_graph") => json!({ "text": "x".repeat(200_000) }),
            Some("list_allowed_directories") => json!({ "elicit": {
                "message": "Which folders?",
                "requestedSchema": { "type": "object", "required": ["which"], "properties": {
                    "which": { "type": "string", "title": "Folders", "enum": ["all", "mine"], "default": "mine" },
                    "depth": { "type": "integer", "minimum": 1 },
                } },
            } }),
            _ => json!({ "counter": true, "delay_ms": 30 }),
        };
        let (name, description, schema) = (&tool["name"], &tool["description"], &tool["input_schema"]);
        json!({ "name": name, "description": description, "input_schema": schema, "on": on })
    });
    json!({ "tools": tools.collect::<Vec<_>>() })
}

/// Writes six working servers and one that is down, whose last output is markup.
fn write_servers(folder: &Path) {
    let fake = Path::new(NONET).with_file_name("examples").join("fake_server");
    assert!(fake.exists(), "{} is missing: run `cargo build --examples`", fake.display());
    let mut config =
        format!("[gateway]\nallow_without_tokens = true\n[embedder]\ncache = {:?}\n", folder.join("cache"));
    let mut add = |name: &str, script: Value| {
        let file = folder.join(format!("{name}.json"));
        fs::write(&file, script.to_string()).unwrap();
        config += &format!("[servers.{name}]\ncommand = {fake:?}\nargs = [\"--script-file\", {file:?}]\n");
        if name == "notion" {
            config += "on_change = \"hold\"\n";
        }
    };
    for name in ["filesystem", "git", "github", "memory", "notion", "time"] {
        add(name, scripted(name));
    }
    let said = ["reading stations.json", "<img src=//example.com/x onerror=alert(1)>no station answers"];
    add("weather", json!({ "exit_at_start": 3, "stderr_lines": said }));
    config += "[policies.careful]\ntools = [\"memory.delete_*\"]\npolicy = \"approve\"\n";
    fs::write(folder.join("servers.toml"), config).unwrap();
}

#[test]
fn the_live_page_works_in_a_browser() {
    let Some(real) = installed() else { return };
    let Some(chromium) = chromium() else { return };
    let pictures = std::env::var_os("NONET_PICTURES");
    // The path of the configuration is in the pictures.
    let named = || tempfile::Builder::new().prefix("nonet").rand_bytes(0).tempdir();
    let folder = if pictures.is_some() { named() } else { tempfile::tempdir() };
    let folder = folder.unwrap();
    write_servers(folder.path());
    let gateway = HttpGateway::start(folder.path());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/real/page.mjs");
    let mut command = Command::new("node");
    command.arg(script).arg(&gateway.page).arg(chromium).env("NONET_REAL", real).env("NONET", NONET);
    // Takes pictures for the docs instead of checking.
    if let Some(folder) = pictures {
        command.arg("--pictures").arg(folder);
    }
    let output = command.output().unwrap();
    let told = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&told));
}
