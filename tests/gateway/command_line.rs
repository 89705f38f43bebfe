//! Nonet from a shell, without any client: results on stdout, everything else on stderr.

use std::process::Output;

use serde_json::{Value, json};

use crate::{client::command, setup::Setup, shell::Terminal};

fn shop() -> Setup {
    let tools = json!([
        { "name": "buy", "description": "Buys a thing", "input_schema": { "type": "object", "properties": { "item": { "type": "string" } }, "required": ["item"] } },
        { "name": "rows", "on": { "json_rows": 2 } },
        { "name": "fail", "on": { "error": "out of order" } },
        { "name": "hidden" },
    ]);
    Setup::new().server_with("shop", json!({ "tools": tools }), "blocked_tools = ['hidden']")
}

fn run(setup: &Setup, arguments: &[&str]) -> Output {
    setup.write();
    command(setup.folder.path()).args(arguments).output().expect("nonet runs")
}

/// Runs without writing the configuration, or with another one named in the arguments.
fn run_bare(setup: &Setup, arguments: &[&str]) -> Output {
    let folder = setup.folder.path();
    let file = folder.join("servers.toml");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_nonet"));
    command.args(arguments).current_dir(folder).env("HOME", folder).env("NONET_KEYRING", "off");
    command.env_remove("XDG_CACHE_HOME").env_remove("XDG_STATE_HOME").env_remove("NONET_LOG");
    if !arguments.contains(&"--config") {
        command.env("NONET_CONFIG", file);
    }
    command.output().expect("nonet runs")
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).expect("UTF-8")
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).expect("UTF-8")
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}\n{}", stdout(output), stderr(output)))
}

#[test]
fn search_prints_a_table_or_json() {
    let setup = shop();
    let output = run(&setup, &["search", "buys a thing", "--limit", "1", "--json"]);
    assert_eq!(code(&output), Some(0), "{}", stderr(&output));
    let found = json(&output);
    assert_eq!(found["results"][0]["name"], "shop.buy", "{found}");
    let output = run(&setup, &["search", "buys a thing"]);
    assert!(stdout(&output).contains("shop.buy"), "{}", stdout(&output));
    assert!(!stdout(&output).contains('\u{1b}'), "no colours where there is no terminal");
}

#[test]
fn tools_lists_what_may_be_seen() {
    let setup = shop();
    let list = json(&run(&setup, &["tools", "--json"]));
    let names: Vec<&str> =
        list["tools"].as_array().expect("tools").iter().filter_map(|tool| tool["name"].as_str()).collect();
    for name in ["shop.buy", "shop.rows", "gateway.status"] {
        assert!(names.contains(&name), "{name}: {list}");
    }
    assert!(!names.contains(&"shop.hidden"), "{list}");
    let output = run(&setup, &["tools"]);
    assert!(code(&output) == Some(0) && stdout(&output).contains("shop.buy"), "{}", stdout(&output));
}

#[test]
fn get_prints_everything_about_a_tool() {
    let setup = shop();
    let told = json(&run(&setup, &["get", "buy"]));
    assert_eq!((&told["name"], &told["input_schema"]["required"]), (&json!("shop.buy"), &json!(["item"])));
    let output = run(&setup, &["get", "shop.bye"]);
    assert_eq!(code(&output), Some(1), "{}", stderr(&output));
    assert!(format!("{}{}", stdout(&output), stderr(&output)).contains("shop.buy"), "the nearest is named");
}

#[test]
fn call_prints_the_result_and_exits_with_how_it_went() {
    let setup = shop();
    let output = run(&setup, &["call", "shop.buy", "{\"item\": \"tea\"}"]);
    assert_eq!(
        (code(&output), stdout(&output).trim()),
        (Some(0), "{\"item\":\"tea\"}"),
        "{}",
        stderr(&output)
    );
    let output = run(&setup, &["call", "shop__rows", "--json"]);
    assert_eq!(json(&output)["content"][0]["type"], "text");
    let output = run(&setup, &["call", "shop.rows", "--select", ".[1].name"]);
    assert_eq!(stdout(&output).trim(), "row 1");
    let output = run(&setup, &["call", "shop.fail"]);
    assert_eq!((code(&output), stdout(&output)), (Some(1), ""));
    assert!(stderr(&output).contains("out of order"), "{}", stderr(&output));
    let output = run(&setup, &["call", "shop.fail", "--json"]);
    assert_eq!((code(&output), &json(&output)["isError"]), (Some(1), &json!(true)));
    for (arguments, expected) in [
        (["call", "shop.nothing", "{}"], 1),
        (["call", "shop.buy", "{}"], 1),
        (["call", "shop.hidden", "{}"], 1),
        (["call", "shop.buy", "not json"], 2),
    ] {
        let output = run(&setup, &arguments);
        assert_eq!(code(&output), Some(expected), "{arguments:?}: {}", stderr(&output));
        assert!(!stderr(&output).is_empty() && stdout(&output).is_empty(), "{arguments:?}");
    }
}

#[test]
fn notices_are_sentences_on_stderr() {
    let setup = shop();
    let arguments = ["call", "shop.buy", "{\"Item\": \"tea\"}", "--select", ".item"];
    let output = run(&setup, &arguments);
    assert_eq!(stdout(&output), "tea\n", "{}", stderr(&output));
    assert!(stderr(&output).contains("nonet: `Item` was taken as `item`"), "{}", stderr(&output));
    let output = run(&setup, &[&arguments[..], &["--json"]].concat());
    let blocks = json(&output)["content"].as_array().expect("blocks").clone();
    let last = blocks.last().and_then(|block| block["text"].as_str()).expect("a text");
    assert!(last.contains("params_repaired") && !stderr(&output).contains("was taken"), "{last}");
}

#[test]
fn whoever_asks_for_json_gets_every_fault_as_json() {
    let setup = shop();
    setup.write();
    let broken = setup.path("broken.toml");
    std::fs::write(&broken, "[servers").expect("it can be written");
    let broken = broken.to_str().expect("UTF-8");
    let nowhere = ["--url", "http://127.0.0.1:1"];
    for (arguments, expected, kind) in [
        (&["--config", "/no/such/file", "status"][..], 2, "not_found"),
        (&["--config", "/no/such/file", "search", "x"], 2, "not_found"),
        (&["--config", "/no/such/file", "check"], 2, "not_found"),
        (&["--config", broken, "tools"], 2, "invalid_params"),
        (&["--config", broken, "status"], 2, "invalid_params"),
        (&["--profile", "nothing", "tools"], 2, "invalid_params"),
        (&["call", "shop.buy", "{\"path"], 2, "invalid_params"),
        (&["tools", nowhere[0], nowhere[1]], 1, "server_down"),
        (&["status", nowhere[0], nowhere[1]], 1, "server_down"),
        (&["logs"], 1, "not_found"),
    ] {
        let output = run_bare(&setup, &[arguments, &["--json"]].concat());
        assert_eq!(code(&output), Some(expected), "{arguments:?}: {}", stderr(&output));
        let fault = &json(&output)["error"];
        assert_eq!(fault["code"], kind, "{arguments:?}: {fault}");
        assert!(fault["message"].as_str().is_some_and(|message| !message.is_empty()), "{arguments:?}");
        assert_eq!(stderr(&output), "", "{arguments:?}");
    }
}

#[test]
fn a_server_that_is_left_out_is_told_briefly() {
    let setup = shop().server_of("slack", "command = 'x'\nenv = { KEY = '${NONET_TEST_NEVER_SET}' }");
    let output = run(&setup, &["tools"]);
    let told: Vec<&str> = stderr(&output).lines().filter(|line| line.contains("slack")).collect();
    assert_eq!(told, ["nonet: `slack` is left out; `nonet check` reports why"], "{}", stderr(&output));
    let output = run(&setup, &["call", "slack.post"]);
    let told = stderr(&output);
    assert!(code(&output) == Some(1) && told.contains("NONET_TEST_NEVER_SET"), "{told}");
    assert!(!told.contains("that the server needs is missing"), "no second cause: {told}");
    let output = run(&setup, &["check"]);
    assert!(stdout(&output).contains("NONET_TEST_NEVER_SET"), "{}", stdout(&output));
}

#[test]
fn a_search_without_words_shows_the_categories() {
    let setup = shop();
    let output = run(&setup, &["search", ""]);
    let table = stdout(&output);
    assert!(code(&output) == Some(0) && table.contains("CATEGORY"), "{table}{}", stderr(&output));
    assert!(table.contains("shop") && table.contains("gateway"), "{table}");
    assert!(!stderr(&output).contains("confidence"), "{}", stderr(&output));
    let output = run(&setup, &["search", "", "--category", "shop"]);
    assert!(stdout(&output).contains("shop.buy"), "{}", stdout(&output));
}

#[test]
fn hints_name_commands_and_no_meta_tools() {
    let setup = shop();
    for arguments in [&["search", "zzqx vvkp"][..], &["search", "x", "--category", "nope"]] {
        let output = run(&setup, arguments);
        let told = stderr(&output);
        assert!(told.contains("`nonet "), "{arguments:?}: {told}");
        for name in ["list_categories", "browse_category"] {
            assert!(!told.contains(name), "{arguments:?}: {told}");
        }
    }
}

#[test]
fn a_server_that_is_down_costs_its_own_tools() {
    let setup = shop().server("bad", json!({ "exit_at_start": 3 }));
    let output = run(&setup, &["call", "shop.buy", "{\"item\": \"tea\"}"]);
    assert_eq!(code(&output), Some(0), "{}", stderr(&output));
    let output = run(&setup, &["tools"]);
    assert!(code(&output) == Some(0) && stderr(&output).contains("exit code 3"), "{}", stderr(&output));
}

#[test]
fn a_fault_is_a_sentence_for_people_and_json_for_machines() {
    let setup = shop();
    let output = run(&setup, &["call", "shop.buy", "{}"]);
    let told = stderr(&output);
    assert!(
        told.starts_with("nonet: The params do not fit `shop.buy`") && !told.contains("{\"error\""),
        "{told}"
    );
    assert!(told.contains("nonet call shop.buy '{\"item\":"), "a call to copy: {told}");
    for arguments in [["call", "shop.buy", "{}", "--json"], ["call", "shop.nothing", "{}", "--json"]] {
        let output = run(&setup, &arguments);
        assert_eq!(code(&output), Some(1), "{}", stderr(&output));
        assert!(json(&output)["error"]["code"].is_string() && json(&output)["error"]["message"].is_string());
    }
    let output = run(&setup, &["get", "shop.bye"]);
    assert!(
        stdout(&output).is_empty() && stderr(&output).contains("did you mean: shop.buy"),
        "{}",
        stderr(&output)
    );
    assert_eq!(json(&run(&setup, &["get", "shop.bye", "--json"]))["error"]["code"], "unknown_tool");
    let output = run(&setup, &["call", "shop.hidden", "{}"]);
    assert!(stderr(&output).starts_with("nonet: `shop.hidden` may not be used"), "{}", stderr(&output));
}

#[test]
fn a_call_that_wants_approval_says_that_a_command_cannot_ask() {
    let script = json!({ "tools": [{ "name": "buy" }] });
    let setup = Setup::new().server_with("shop", script, "[servers.shop.tools.buy]\npolicy = 'approve'");
    let output = run(&setup, &["call", "shop.buy"]);
    let told = stderr(&output);
    assert_eq!(code(&output), Some(1), "{told}");
    assert!(told.contains("A command asks only at a terminal") && !told.contains("token"), "{told}");
    assert_eq!(json(&run(&setup, &["call", "shop.buy", "--json"]))["error"]["code"], "needs_approval");
}

#[test]
fn no_more_results_are_printed_than_asked_for() {
    let servers = ["one", "two", "three", "four", "five", "six"];
    let setup = servers.into_iter().fold(Setup::new(), |setup, name| {
        let about = format!("Paints wall {name}");
        setup.server(name, json!({ "tools": [{ "name": "paint", "description": about }] }))
    });
    let found = json(&run(&setup, &["search", "pant", "--limit", "3", "--json"]));
    assert_eq!(found["confidence"], "none", "{found}");
    assert_eq!(found["results"].as_array().map(Vec::len), Some(3), "{found}");
}

#[test]
fn the_same_tool_of_another_server_is_named_beside_it() {
    let twin = json!({ "tools": [{ "name": "paint", "description": "Paints a wall" }] });
    let setup = Setup::new().server("one", twin.clone()).server("two", twin);
    let output = run(&setup, &["search", "paint a wall"]);
    assert!(stdout(&output).contains("(also two.paint) Paints a wall"), "{}", stdout(&output));
}

#[test]
fn one_tool_is_no_tools() {
    let setup = Setup::new()
        .toml("[profiles.one]\nallow = ['gateway.status']\ndeny = ['gateway.[!s]*', 'gateway.s[!t]*']");
    let output = run(&setup, &["--profile", "one", "tools"]);
    assert!(stderr(&output).ends_with("1 tool\n"), "{}", stderr(&output));
}

#[test]
fn a_profile_holds_on_the_command_line_too() {
    let setup = shop().toml("[profiles.none]\ndeny = ['shop.*']");
    let output = run(&setup, &["--profile", "none", "call", "shop.buy", "{\"item\": \"tea\"}"]);
    assert_eq!(code(&output), Some(1), "{}", stdout(&output));
    assert!(stderr(&output).contains("There is no tool `shop.buy`"), "{}", stderr(&output));
    let output = run(&setup, &["--profile", "nothing", "tools"]);
    assert_eq!(code(&output), Some(2), "{}", stdout(&output));
    assert!(stderr(&output).contains("none"), "what there is is named: {}", stderr(&output));
}

#[test]
fn a_command_line_that_cannot_be_used_exits_with_2() {
    let setup = shop();
    for arguments in [
        &["fly"][..],
        &["search"],
        &["search", "x", "--limit", "99"],
        &["--config", "/no/such/file", "tools"],
    ] {
        let output = run(&setup, arguments);
        assert_eq!(code(&output), Some(2), "{arguments:?}: {}", stderr(&output));
        assert!(stdout(&output).is_empty(), "{arguments:?}");
    }
}

#[test]
fn the_version_says_what_the_program_is_made_of() {
    let setup = Setup::new();
    let short = run_bare(&setup, &["-V"]);
    let first = format!("nonet {}", env!("CARGO_PKG_VERSION"));
    assert_eq!(stdout(&short).trim(), first);
    let long = run_bare(&setup, &["--version"]);
    assert_eq!(code(&long), Some(0), "{}", stderr(&long));
    let lines: Vec<&str> = stdout(&long).lines().collect();
    assert_eq!((lines.len(), lines[0]), (4, first.as_str()), "{lines:?}");
    let engine = lines[2].strip_prefix("search by meaning: ").expect("the engine");
    assert!(engine.starts_with("built-in engine ("), "{engine}");
    assert!(
        lines[1].starts_with("commit: ") && lines[3] == "model: minilm-tools.int8w, languages (built in)",
        "{lines:?}"
    );
}

#[test]
fn schema_and_completions_are_printed() {
    let setup = Setup::new();
    let schema = json(&run(&setup, &["schema"]));
    assert!(schema["properties"]["servers"].is_object(), "{schema}");
    for shell in ["bash", "zsh", "fish", "powershell"] {
        let output = run(&setup, &["completions", shell]);
        assert!(code(&output) == Some(0) && stdout(&output).contains("nonet"), "{shell}");
    }
}

#[test]
fn commands_that_are_gone_say_what_to_write() {
    let setup = Setup::new();
    // There is no lock file to compare with, either.
    for (arguments, said) in
        [(&["update"][..], "docs/upgrade.md"), (&["lock", "--check"], "write `nonet trust --lock --check`")]
    {
        let output = run(&setup, arguments);
        assert_eq!(code(&output), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains(said), "{}", stderr(&output));
    }
}

#[test]
fn the_log_goes_to_a_file_as_json_if_that_is_wanted() {
    let setup = Setup::new().server("shop", json!({ "tools": [{ "name": "buy" }] }));
    setup.write();
    let file = setup.path("logs/nonet.log");
    let output = command(setup.folder.path())
        .args([
            "--log",
            "info",
            "--log-json",
            "--log-file",
            file.to_str().expect("UTF-8"),
            "call",
            "shop.buy",
        ])
        .output()
        .expect("nonet runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let files: Vec<_> = std::fs::read_dir(setup.path("logs")).expect("a folder").flatten().collect();
    let text = std::fs::read_to_string(files[0].path()).expect("a log");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert!(
        lines.iter().any(|line| line["fields"]["outcome"] == "ok" && line["target"] == "nonet::call"),
        "{text}"
    );
}

#[test]
fn the_man_page_has_every_command() {
    let output =
        std::process::Command::new(env!("CARGO_BIN_EXE_nonet")).arg("man").output().expect("nonet runs");
    let page = String::from_utf8(output.stdout).expect("UTF-8");
    for command in ["serve", "import", "install", "check", "trust"] {
        assert!(page.contains(&format!("nonet\\-{command}")), "{command}");
    }
}

#[cfg(not(feature = "otel"))]
#[test]
fn a_build_without_traces_says_so_where_they_are_wanted() {
    let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")];
    let mut client = Setup::new().run_with(&[], &variables);
    client.initialize("2025-06-18", json!({}));
    client.leave();
    client.ended();
    let log = client.stderr();
    assert_eq!(log.matches("this build lacks the feature `otel`").count(), 1, "{log}");
}

#[test]
fn params_are_typed_as_words_with_the_types_of_the_schema() {
    let properties = json!({
        "item": { "type": "string" }, "count": { "type": "integer" }, "tags": { "type": "array", "items": { "type": "string" } },
    });
    let schema = json!({ "type": "object", "properties": properties, "required": ["item"] });
    let setup = Setup::new().server(
        "shop",
        json!({ "tools": [{ "name": "buy", "input_schema": schema, "on": { "echo": true } }] }),
    );
    let output = run(&setup, &["call", "shop.buy", "item=5", "count=5", "tags=a", "tags=b"]);
    assert_eq!(json(&output), json!({ "item": "5", "count": 5, "tags": ["a", "b"] }), "{}", stderr(&output));
    assert!(!stderr(&output).contains("count"), "nothing had to be repaired: {}", stderr(&output));
    for (words, expected) in [(["item=x", "7"], "`7` is not `KEY=VALUE`"), (["count=x", "item=y"], "count")] {
        let output = run(&setup, &["call", "shop.buy", words[0], words[1]]);
        assert!(
            code(&output) != Some(0) && stderr(&output).contains(expected),
            "{words:?}: {}",
            stderr(&output)
        );
    }
    let output = run(&setup, &["call", "shop.bye", "item=5"]);
    assert!(stderr(&output).contains("did you mean: shop.buy"), "{}", stderr(&output));
}

#[cfg(unix)]
#[test]
fn a_call_that_wants_approval_asks_at_the_terminal() {
    let script = json!({ "tools": [{ "name": "buy", "on": { "text": "bought" } }] });
    for gateway in ["approve_by = 'chat'", "approve_by = 'user'"] {
        let setup = Setup::new()
            .gateway(&format!("{gateway}\nshared = true\nshared_grace = '200ms'"))
            .server_with("shop", script.clone(), "[servers.shop.tools.buy]\npolicy = 'approve'");
        setup.write();
        let ask = |typed: &str| {
            let mut nonet = command(setup.folder.path());
            nonet.args(["call", "shop.buy", "item=tea"]).env("NO_COLOR", "1");
            Terminal::answer(&mut nonet, typed)
        };
        let check = || {
            let (ended, seen) = ask("y\n");
            assert!(
                ended == Some(0) && seen.contains("Run it? [y/N]") && seen.contains("bought"),
                "{gateway}: {seen}"
            );
            assert!(seen.contains("tea"), "the params are shown: {seen}");
            let (ended, seen) = ask("n\n");
            assert!(ended == Some(1) && seen.contains("Nothing was called."), "{gateway}: {seen}");
            assert!(!seen.contains("bought"), "{gateway}: {seen}");
        };
        check();
        // The same where a gateway runs.
        let mut client = crate::client::Client::over(std::sync::Arc::new(setup.folder), &[], &[]);
        client.initialize("2025-06-18", json!({}));
        client.until_ready("shop");
        let folder = client.folder.clone();
        let ask = |typed: &str| {
            let mut nonet = command(folder.path());
            nonet.args(["call", "shop.buy", "item=tea"]).env("NO_COLOR", "1");
            Terminal::answer(&mut nonet, typed)
        };
        let (ended, seen) = ask("y\n");
        assert!(ended == Some(0) && seen.contains("bought"), "{gateway}: {seen}");
        let (ended, seen) = ask("n\n");
        assert!(ended == Some(1) && seen.contains("Nothing was called."), "{gateway}: {seen}");
    }
}

#[test]
fn faults_of_servers_that_a_command_does_not_use_are_not_printed() {
    let setup = shop().server_of("lost", "command = 'x'\nenv = { KEY = '${NONET_TEST_NEVER_SET}' }");
    for (arguments, expected) in
        [(&["call", "shop.rows"][..], 0), (&["get", "shop.buy"], 0), (&["logout", "shop"], 2)]
    {
        let output = run(&setup, arguments);
        let told = stderr(&output);
        assert_eq!(code(&output), Some(expected), "{arguments:?}: {told}");
        assert!(!told.contains("lost") && !told.contains("NEVER_SET"), "{arguments:?}: {told}");
    }
    let output = run(&setup, &["call", "lost.look"]);
    assert!(stderr(&output).contains("NONET_TEST_NEVER_SET"), "its own fault: {}", stderr(&output));
    for arguments in [&["tools"][..], &["call", "nothing"]] {
        let output = run(&setup, arguments);
        assert!(stderr(&output).contains("`lost` is left out"), "{arguments:?}: {}", stderr(&output));
    }
}

#[test]
fn secrets_are_listed_without_their_values() {
    let keys = "command = 'x'\nenv = { A = '${LISTED_A}', B = '${LISTED_B}', C = '${keyring:LISTED_C}' }";
    let setup = Setup::new().server_of("one", keys).server_of("two", "url = 'https://a.example/${LISTED_A}'");
    setup.write();
    std::fs::write(setup.path("secrets.env"), "LISTED_A=s3cret\nUNUSED=s3cret\n").expect("it can be written");
    let output = run(&setup, &["secret", "list", "--json"]);
    assert_eq!(code(&output), Some(1), "one is not set: {}", stderr(&output));
    assert!(!stdout(&output).contains("s3cret"));
    let told = json(&output);
    let rows: Vec<(&str, &str)> = told["secrets"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|row| (row["name"].as_str().unwrap_or_default(), row["in"].as_str().unwrap_or_default()))
        .collect();
    assert_eq!(
        rows,
        [
            ("LISTED_A", "secrets.env"),
            ("LISTED_B", "not set"),
            ("LISTED_C", "keyring, which cannot be read"),
            ("UNUSED", "secrets.env")
        ]
    );
    assert_eq!(told["secrets"][0]["used_by"], json!(["servers.one", "servers.two"]), "{told}");
    let shown = run(&setup, &["secret", "list"]);
    assert!(stdout(&shown).contains("servers.one, servers.two"), "{}", stdout(&shown));

    // A default is a value, unless another place has none.
    let keys = "command = 'x'\nargs = ['${LISTED_A:-eu-1}', '${LISTED_B:-}']";
    let setup = Setup::new().server_of("one", keys);
    setup.write();
    let output = run(&setup, &["secret", "list", "--json"]);
    let places = ["LISTED_A", "LISTED_B"]
        .map(|name| json!({ "name": name, "in": "default", "used_by": ["servers.one"] }));
    assert_eq!((code(&output), &json(&output)["secrets"]), (Some(0), &json!(places)), "{}", stderr(&output));
    let setup = setup.server_of("two", "url = 'https://a.example/${LISTED_A}'");
    setup.write();
    let output = run(&setup, &["secret", "list", "--json"]);
    assert_eq!(
        (code(&output), &json(&output)["secrets"][0]["in"]),
        (Some(1), &json!("not set")),
        "{}",
        stdout(&output)
    );
}

#[cfg(unix)]
#[test]
fn forget_asks_shows_and_can_choose() {
    let setup = shop();
    run(&setup, &["call", "shop.buy", "item=tea"]);
    let silent = run(&setup, &["forget"]);
    assert_eq!(code(&silent), Some(2), "{}", stderr(&silent));
    assert!(stderr(&silent).contains("add `--yes` to delete"), "{}", stderr(&silent));
    let shown = run(&setup, &["forget", "--dry-run"]);
    let told = stdout(&shown);
    assert!(code(&shown) == Some(0) && told.contains("Nothing was deleted (--dry-run)."), "{told}");
    for part in ["learned", "results", "memory", "plans", "messages", "homes"] {
        assert!(told.contains(&format!("\n  {part}")), "{part}: {told}");
    }
    let forget = |arguments: &[&str], typed: &str| {
        let mut nonet = command(setup.folder.path());
        nonet.arg("forget").args(arguments).env("NO_COLOR", "1");
        Terminal::answer(&mut nonet, typed)
    };
    let (ended, seen) = forget(&["learned"], "n\n");
    assert!(ended == Some(1) && seen.contains("Nothing was deleted."), "{seen}");
    assert!(!seen.contains("memory"), "only what was chosen: {seen}");
    let (ended, seen) = forget(&["learned", "plans"], "y\n");
    assert!(ended == Some(0) && seen.contains("Deleted."), "{seen}");
    assert_eq!(code(&run(&setup, &["forget", "trust"])), Some(2), "trust has an option of its own");
}
