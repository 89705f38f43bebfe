//! Nonet without a servers.toml, and Nonet in a cache of npx or uvx.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::Stdio,
    sync::Arc,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use crate::{
    client::Client,
    hosts::{nonet, program, text},
    setup::{eventually, fake_server},
    web::http,
};

#[test]
fn without_a_file_nonet_serves_no_servers_and_says_how_to_add_one() {
    let home = Arc::new(tempfile::tempdir().expect("a temporary folder"));
    let mut client = Client::of(home.clone(), &mut program(&home));
    let greeting = client.initialize("2025-06-18", json!({}));
    let said = greeting["result"]["instructions"].as_str().expect("instructions").to_string();
    assert!(said.contains("No server is configured yet") && said.contains("`nonet setup`"), "{said}");
    for (tool, arguments) in
        [("search_tools", json!({ "query": "read a file" })), ("list_categories", json!({}))]
    {
        let answer = client.answer(tool, arguments);
        let hint = answer["hint"].as_str().unwrap_or_default();
        assert!(hint.contains("`nonet setup`") && hint.contains("`nonet add NAME -- COMMAND`"), "{answer}");
    }
    let stderr = client.stderr();
    assert!(stderr.contains("no servers yet: there is no "), "{stderr}");

    // The running gateway starts the first server.
    let fake = fake_server().display().to_string();
    let script = json!({ "tools": [{ "name": "look" }] }).to_string();
    let added = nonet(&home, &["add", "notes", "--", &fake, "--script", &script]);
    assert!(added.status.success(), "{}", text(&added));
    eventually("the server is there", || {
        let found = client.answer("list_categories", json!({}));
        let names = found["categories"].as_array().expect("a list").iter();
        names.into_iter().any(|one| one["name"] == "notes").then_some(())
    });
    client.until_ready("notes");
    let found = client.answer("search_tools", json!({ "query": "look" }));
    assert!(!found["hint"].to_string().contains("nonet setup"), "{found}");
}

#[test]
fn the_first_server_can_be_added_on_the_page() {
    let home = Arc::new(tempfile::tempdir().expect("a temporary folder"));
    let mut ui =
        program(&home).args(["ui", "--no-browser"]).stdout(Stdio::piped()).spawn().expect("nonet starts");
    let mut link = String::new();
    BufReader::new(ui.stdout.take().expect("piped")).read_line(&mut link).expect("a link");
    let (address, token) = link.trim().split_once("/ui#token=").expect("a link with a token");
    let address = address.strip_prefix("http://").expect("an address");
    let script = home.path().join("script.json");
    fs::write(&script, json!({ "tools": [{ "name": "look" }] }).to_string()).expect("written");
    let command = format!("'{}' --script-file '{}'", fake_server().display(), script.display());
    let body = json!({ "name": "notes", "command": command }).to_string();
    let reply = http(address, "POST", "/ui/api/servers", &[("X-Nonet-Token", token)], &body);
    let told: Value = serde_json::from_str(&reply.body).unwrap_or_default();
    let state = http(address, "GET", "/ui/api/state", &[("X-Nonet-Token", token)], "");
    kill(Pid::from_raw(ui.id() as i32), Signal::SIGTERM).expect("it runs");
    ui.wait().expect("it ends");
    assert_eq!((reply.status, &told["written"]), (200, &json!(true)), "{}", reply.body);
    assert_eq!(told.get("trouble"), None, "{told}");
    let state: Value = serde_json::from_str(&state.body).expect("JSON");
    assert_eq!(state["servers"][0]["name"], "notes", "{state}");
    let file = fs::read_to_string(home.path().join(".config/nonet/servers.toml")).expect("it is there");
    assert!(file.contains("[servers.notes]"), "{file}");
}

#[test]
fn commands_answer_without_a_file_but_not_without_a_named_one() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let found = nonet(&home, &["search", "read a file", "--json"]);
    assert_eq!(found.status.code(), Some(0), "{}", text(&found));
    let told = String::from_utf8_lossy(&found.stderr).into_owned();
    assert!(told.contains("no servers yet") && told.contains("`nonet add`"), "{told}");
    let answer: Value = serde_json::from_slice(&found.stdout).expect("JSON");
    assert!(answer["hint"].as_str().is_some_and(|hint| hint.contains("`nonet setup`")), "{answer}");
    for arguments in
        [&["search", "x", "--config", "other.toml"][..], &["serve", "--config", "other.toml"], &["check"]]
    {
        let missing = nonet(&home, arguments);
        assert_eq!(missing.status.code(), Some(2), "{arguments:?}: {}", text(&missing));
        assert!(text(&missing).contains("no configuration file"), "{}", text(&missing));
    }
}

/// Links the program to another path. Temporary folders may be on another disk, so the link is below
/// `target`.
fn linked(folder: &Path, path: &str) -> std::path::PathBuf {
    let file = folder.join(path);
    fs::create_dir_all(file.parent().expect("it has one")).expect("a folder");
    fs::hard_link(env!("CARGO_BIN_EXE_nonet"), &file).expect("a link");
    file
}

#[test]
fn clients_get_the_command_that_fetches_nonet_and_no_path_in_a_cache() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let cursor = home.path().join(".cursor/mcp.json");
    fs::create_dir_all(cursor.parent().expect("it has one")).expect("a folder");
    let config = home.path().join(".config/nonet/servers.toml");
    fs::create_dir_all(config.parent().expect("it has one")).expect("a folder");
    fs::write(&config, "").expect("written");
    // A command found on the PATH outside of caches is written with its absolute path.
    let tools = home.path().join("tools");
    fs::create_dir_all(&tools).expect("a folder");
    let uvx = tools.join("uvx");
    fs::write(&uvx, "").expect("written");
    for (path, command, first) in [
        ("_npx/8a1f/node_modules/@nonet/linux-x64-gnu/bin/nonet", "npx".into(), &["-y", "nonet"][..]),
        ("uv/archive-v0/Xy1/bin/nonet", uvx.display().to_string(), &["nonet"]),
    ] {
        fs::write(&cursor, "{}\n").expect("written");
        let exe = linked(place.path(), path);
        let run = |arguments: &[&str]| {
            let mut run = std::process::Command::new(&exe);
            let run = run.current_dir(home.path()).env("HOME", home.path()).env("PATH", &tools);
            run.env("NONET_KEYRING", "off").args(arguments).output().expect("nonet runs")
        };
        let installed = run(&["install", "cursor"]);
        assert!(installed.status.success(), "{}", text(&installed));
        let entry = || -> Value {
            let file: Value = serde_json::from_slice(&fs::read(&cursor).expect("there")).expect("JSON");
            file["mcpServers"]["nonet"].clone()
        };
        let mut args: Vec<String> = first.iter().map(ToString::to_string).collect();
        args.extend(["--config".into(), config.display().to_string()]);
        assert_eq!(entry(), json!({ "command": command, "args": args }));
        // The entry is recognised as Nonet: not imported, and not written twice.
        let again = run(&["import", "cursor", "--dry-run"]);
        assert!(
            text(&again).contains("Nonet itself") || !text(&again).contains("[servers.nonet]"),
            "{}",
            text(&again)
        );
        let again = run(&["setup", "cursor", "--yes"]);
        assert!(text(&again).contains("nothing was changed"), "{}", text(&again));
    }
}
