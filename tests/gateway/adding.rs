//! `nonet add`, `remove`, `enable` and `disable`: single servers of `servers.toml`, and the gateway running
//! meanwhile.

use std::{fs, process::Output};

use serde_json::{Value, json};

use crate::{
    client::command,
    hosts::{nonet, program, text},
    inside::serve_script,
    setup::{Setup, fake_server, json_of},
    shell::Terminal,
    sign_in_service::{Manner, Service},
};

const TOKEN: &str = "ghp_0123456789abcdefghijABCDEFGHIJ456789";
const MINE: &str = "# Mine.\n[servers.off]\ncommand = 'no-such-program-of-nonet' # not yet\nenabled = false\n\n# The reader.\n[profiles.reader]\ncategories = ['off']\n";

fn setup() -> Setup {
    let setup = Setup::new().toml(MINE);
    setup.write();
    setup
}

/// Writes a script file and returns the command that starts it.
fn scripted(setup: &Setup, script: &Value) -> Vec<String> {
    let file = setup.path("bank.script.json");
    fs::write(&file, script.to_string()).expect("it can be written");
    vec![fake_server().display().to_string(), "--script-file".into(), file.display().to_string()]
}

fn bank() -> Value {
    json!({ "tools": [{ "name": "look", "on": { "env": true } }, { "name": "pay", "description": "Pays" }] })
}

fn run(setup: &Setup, arguments: &[&str]) -> Output {
    command(setup.folder.path()).args(arguments).output().expect("nonet runs")
}

/// Runs `nonet add` with the words of a command.
fn add(setup: &Setup, arguments: &[&str], words: &[String]) -> Output {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    run(setup, &[&["add"], arguments, &["--"], &words].concat())
}

fn toml(setup: &Setup) -> String {
    fs::read_to_string(setup.path("servers.toml")).expect("it is there")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", text(output)))
}

#[test]
fn a_program_is_added_once_it_has_started_and_its_secrets_stay_out_of_the_file() {
    let setup = setup();
    let before = toml(&setup);
    let words = scripted(&setup, &bank());
    let env = format!("API_TOKEN={TOKEN}");
    let options =
        ["bank", "--env", &env, "--env", "PLACE=${HOME}/bank", "--tag", "money", "--description", "Money"];
    let shown = add(&setup, &[&options[..], &["--dry-run"]].concat(), &words);
    let said = text(&shown);
    assert!(shown.status.success() && said.contains("`bank` starts and has 2 tools."), "{said}");
    assert!(said.contains("This would be done:\n[servers.bank] is added to "), "{said}");
    assert!(said.contains("+[servers.bank]") && said.contains("Nothing was written (--dry-run)."), "{said}");
    assert!(!said.contains(TOKEN) && toml(&setup) == before && !setup.path("secrets.env").exists(), "{said}");

    let added = add(&setup, &options, &words);
    let said = text(&added);
    assert!(added.status.success() && said.contains("[servers.bank] is added to "), "{said}");
    assert!(
        said.contains("API_TOKEN  (for bank)") && said.contains("No shared gateway is running."),
        "{said}"
    );
    let now = toml(&setup);
    assert!(!now.contains(TOKEN) && !said.contains(TOKEN), "{now}\n{said}");
    let (head, tail) = before.split_once("\n# The reader.").expect("it is there");
    let block = now.strip_prefix(head).and_then(|rest| rest.strip_suffix(&format!("\n# The reader.{tail}")));
    let block = block.unwrap_or_else(|| panic!("the rest has changed: {now}"));
    for line in [
        "[servers.bank]",
        "description = \"Money\"",
        "env = { API_TOKEN = \"${API_TOKEN}\", PLACE = \"${HOME}/bank\" }",
        "tags = [\"money\"]",
    ] {
        assert!(block.lines().any(|known| known == line), "{line}: {block}");
    }
    let env = json_of(&json(&run(&setup, &["call", "bank.look", "--json"])))["env"].clone();
    // The server gets its secret, which no answer shows.
    assert_eq!(env["API_TOKEN"], "***");
    assert_eq!(env["PLACE"], json!(format!("{}/bank", setup.folder.path().display())));
}

#[test]
fn a_server_that_does_not_start_is_not_added() {
    let setup = setup();
    let before = toml(&setup);
    let words = scripted(&setup, &json!({ "stderr_lines": ["no account"], "exit_at_start": 3 }));
    let env = format!("API_TOKEN={TOKEN}");
    let options = ["bank", "--env", &env];
    let failed = add(&setup, &options, &words);
    let said = text(&failed);
    assert_eq!(failed.status.code(), Some(1), "{said}");
    assert!(said.contains("`bank` does not start: ") && said.contains("no account"), "{said}");
    assert!(
        said.contains("Nothing was written. Correct the options") && said.contains("`--no-check`"),
        "{said}"
    );
    assert!(toml(&setup) == before && !setup.path("secrets.env").exists());
    let report = json(&add(&setup, &[&options[..], &["--json"]].concat(), &words));
    assert_eq!((&report["state"], &report["written"]), (&json!("down"), &json!(false)), "{report}");
    assert!(report["last_error"].as_str().is_some_and(|error| error.contains("no account")), "{report}");
    // Unset variables are reported before anything starts.
    let unset = add(&setup, &["bank", "--env", "KEY=${NONET_TEST_NEVER_SET}"], &words);
    let said = text(&unset);
    assert!(unset.status.code() == Some(1) && said.contains("`bank` cannot start: "), "{said}");
    assert!(said.contains("`NONET_TEST_NEVER_SET` is not set"), "{said}");
    assert!(
        said.contains("nonet secret set NONET_TEST_NEVER_SET --file") && !said.contains("no account"),
        "{said}"
    );

    let added = add(&setup, &[&options[..], &["--no-check"]].concat(), &words);
    assert!(
        added.status.success() && text(&added).contains("was not started (--no-check)"),
        "{}",
        text(&added)
    );
    assert!(toml(&setup).contains("[servers.bank]") && setup.path("secrets.env").exists());
}

#[test]
fn an_address_is_added_and_a_sign_in_is_no_failure() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let script = json!({ "tools": [{ "name": "read" }], "require_bearer": "s3cret-of-web" });
    let (address, _server) = runtime.block_on(serve_script("127.0.0.1:0", script));
    let setup = setup();
    let url = format!("http://{address}/mcp");
    let arguments = ["add", "web", &url, "--header", "Authorization: Bearer s3cret-of-web", "--json"];
    let added = run(&setup, &arguments);
    let report = json(&added);
    assert_eq!((&report["state"], &report["tools"]), (&json!("ready"), &json!(1)), "{report}");
    assert_eq!((&report["written"], &report["gateway"]), (&json!(true), &json!({ "running": false })));
    assert_eq!(report["secrets"][0]["name"], "WEB_TOKEN", "{report}");
    let now = toml(&setup);
    assert!(
        now.contains(&format!(
            "url = \"{url}\"\nheaders = {{ Authorization = \"Bearer ${{WEB_TOKEN}}\" }}\n"
        )),
        "{now}"
    );
    let secrets = fs::read_to_string(setup.path("secrets.env")).expect("it was made");
    assert!(secrets.contains("WEB_TOKEN=s3cret-of-web") && !text(&added).contains("s3cret-of-web"));

    let service = Service::start(Manner::default());
    let added = run(&setup, &["add", "notes", &service.url()]);
    let said = text(&added);
    assert!(
        added.status.success() && said.contains("`notes` answers and requires sign-in: run `nonet"),
        "{said}"
    );
    assert!(said.contains("login notes`") && toml(&setup).contains("[servers.notes]"), "{said}");
}

#[test]
fn the_first_server_makes_the_file_where_an_import_would() {
    let home = tempfile::tempdir().expect("a folder");
    let script = r#"{ "tools": [{ "name": "look" }] }"#;
    let fake = fake_server().display().to_string();
    let added = nonet(&home, &["add", "bank", "--", &fake, "--script", script]);
    assert!(added.status.success(), "{}", text(&added));
    let file = home.path().join(".config/nonet/servers.toml");
    let toml = fs::read_to_string(&file).expect("it was made");
    assert!(toml.starts_with("# The MCP servers behind Nonet.") && toml.contains("[servers.bank]"), "{toml}");
    // A trusted file in this folder takes precedence, as for every other command that reads it.
    fs::write(home.path().join("servers.toml"), "# Here.\n").expect("it can be written");
    let fake = "./fake";
    std::os::unix::fs::symlink(fake_server(), home.path().join("fake")).expect("a link");
    let (code, seen) = Terminal::answer(program(&home).args(["trust", "servers.toml"]), "y\n");
    assert_eq!(code, Some(0), "{seen}");
    let added = nonet(&home, &["add", "here", "--", fake, "--script", script]);
    assert!(added.status.success(), "{}", text(&added));
    assert_eq!(fs::read_to_string(&file).expect("it is there"), toml);
    let here = fs::read_to_string(home.path().join("servers.toml")).expect("it is there");
    assert!(
        here.starts_with("# Here.\n\n[servers.here]\ncommand = \"/") && here.contains("/fake\"\n"),
        "{here}"
    );
}

#[test]
fn what_cannot_be_done_is_said_with_what_to_do() {
    let setup = setup();
    let before = toml(&setup);
    for (arguments, expected) in [
        (&["add", "My Bank", "--", "x"][..], "Use `my-bank`, or another name."),
        (&["add", "apps", "--", "x"], "Use `apps-server`"),
        (&["add", "off", "--", "x"], "It is disabled; `nonet enable off` enables it."),
        (&["add", "bank"], "what should be added?"),
        (&["add", "bank", "https://a.example", "--", "x"], "cannot be used with"),
        (
            &["add", "bank", "npx"],
            "`npx` is not an address. Write a command after `--`: `nonet add bank -- npx ...`",
        ),
        (&["add", "bank", "ftp://a.example"], "servers.bank.url"),
        (&["add", "bank", "--env", "A", "--", "x"], "`--env` needs `NAME=value`"),
        (&["remove", "of"], "Did you mean `off`?"),
        (&["enable", "offf"], "Did you mean `off`?"),
        (&["disable", "zzzz"], "Its servers: `off`."),
        (&["--profile", "reader", "remove", "off"], "--profile has no effect"),
    ] {
        let output = run(&setup, arguments);
        let said = text(&output);
        assert!(output.status.code() == Some(2) && said.contains(expected), "{arguments:?}: {said}");
    }
    let fault = json(&run(&setup, &["remove", "of", "--json"]));
    assert_eq!(fault["error"]["code"], "invalid_params", "{fault}");
    assert_eq!(toml(&setup), before);
}

#[test]
fn a_removed_server_leaves_the_rest_of_the_file_and_says_what_is_left_over() {
    let setup = setup();
    let before = toml(&setup);
    let words = scripted(&setup, &bank());
    add(&setup, &["bank", "--env", &format!("API_TOKEN={TOKEN}")], &words);
    let added = toml(&setup);
    let with_tool =
        added.replace("\n# The reader.", "\n[servers.bank.tools.pay]\nrisk = 'high'\n\n# The reader.");
    fs::write(setup.path("servers.toml"), &with_tool).expect("it can be written");
    let sign_in = setup.path(".local/state/nonet/oauth/bank-0123456789abcdef.json");
    fs::create_dir_all(sign_in.parent().expect("it has one")).expect("a folder");
    fs::write(&sign_in, "{}").expect("it can be written");

    let shown = run(&setup, &["remove", "bank", "--dry-run"]);
    let said = text(&shown);
    assert!(shown.status.success() && said.contains("-[servers.bank.tools.pay]"), "{said}");
    assert_eq!(toml(&setup), with_tool);
    let removed = run(&setup, &["rm", "bank"]);
    let said = text(&removed);
    assert!(removed.status.success() && said.contains("backup: "), "{said}");
    assert_eq!(toml(&setup), before);
    assert!(said.contains("secret remove API_TOKEN --file`") && said.contains("logout bank`"), "{said}");
    let out = run(&setup, &["logout", "bank"]);
    assert!(out.status.success() && !sign_in.exists(), "{}", text(&out));

    let report = json(&run(&setup, &["remove", "off", "--json"]));
    assert_eq!(report["named_in"], json!(["profiles.reader.categories"]), "{report}");
    assert_eq!(report["left_out"], json!(["profiles.reader"]));
    assert!(
        toml(&setup).ends_with("\n# The reader.\n[profiles.reader]\ncategories = ['off']\n\n"),
        "{}",
        toml(&setup)
    );
}

#[test]
fn a_server_is_disabled_and_enabled_again() {
    let setup = Setup::new()
        .server("bank", bank())
        .toml("[servers.keyed]\nenabled = false\ncommand = 'x'\nenv = { KEY = '${NONET_TEST_NEVER_SET}' }");
    setup.write();
    let before = toml(&setup);
    let names = || {
        let list = json(&run(&setup, &["tools", "--json"]));
        list["tools"].as_array().expect("tools").iter().filter(|tool| tool["server"] == "bank").count()
    };
    assert_eq!(names(), 2);
    let disabled = run(&setup, &["disable", "bank"]);
    assert!(stdout(&disabled).contains("`bank` is disabled in "), "{}", text(&disabled));
    assert_eq!(toml(&setup), before.replace("[servers.bank]\n", "[servers.bank]\nenabled = false\n"));
    assert_eq!(names(), 0);
    let again = run(&setup, &["disable", "bank"]);
    assert!(
        again.status.success() && stdout(&again).contains("`bank` is already disabled"),
        "{}",
        text(&again)
    );
    let shown = run(&setup, &["enable", "bank", "--dry-run"]);
    assert!(stdout(&shown).contains("+enabled = true"), "{}", text(&shown));
    assert_eq!(names(), 0);
    let enabled = json(&run(&setup, &["enable", "bank", "--json"]));
    assert_eq!((&enabled["written"], &enabled["enabled"]), (&json!(true), &json!(true)), "{enabled}");
    assert_eq!(names(), 2);
    let keyed = run(&setup, &["enable", "keyed"]);
    let said = text(&keyed);
    assert!(keyed.status.code() == Some(1) && said.contains("`keyed` is left out: "), "{said}");
    // A faulty server can still be disabled.
    for arguments in [&["disable", "keyed", "--dry-run"][..], &["disable", "keyed"]] {
        let disabled = run(&setup, arguments);
        assert!(disabled.status.success(), "{}", text(&disabled));
    }
    let keyed = json(&run(&setup, &["enable", "keyed", "--json"]));
    assert!(keyed["fault"].as_str().is_some_and(|why| why.contains("NONET_TEST_NEVER_SET")), "{keyed}");
}

#[test]
fn the_gateway_that_runs_takes_the_change_up() {
    let shop = json!({ "tools": [{ "name": "buy" }] });
    let setup = Setup::new().server("shop", shop).gateway("shared = true\nshared_grace = '200ms'");
    let words = scripted(&setup, &bank());
    let mut client = setup.start_program();
    client.until_ready("shop");
    let folder = client.folder.clone();
    let run = |arguments: &[&str]| {
        let output = command(folder.path()).args(arguments).output().expect("nonet runs");
        assert!(output.status.success(), "{}", text(&output));
        stdout(&output)
    };
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let said = run(&[&["add", "bank", "--"], &words[..]].concat());
    assert!(said.contains("The running gateway has `bank`: ready, 2 tools."), "{said}");
    assert!(client.execute("bank.pay", json!({})).get("isError").is_none());
    let said = run(&["disable", "bank"]);
    assert!(said.contains("The running gateway no longer has `bank`."), "{said}");
    let said = run(&["enable", "bank"]);
    assert!(said.contains("The running gateway has `bank`: ready, 2 tools."), "{said}");
    let report: Value = serde_json::from_str(&run(&["remove", "bank", "--json"])).expect("JSON");
    assert_eq!(report["gateway"], json!({ "running": true, "taken_up": true }), "{report}");
}

#[test]
fn a_rest_service_is_added_by_its_document() {
    let setup = setup();
    let operation = |id: &str| json!({ "operationId": id, "responses": { "200": { "description": "OK" } } });
    let document = json!({
        "openapi": "3.1.0",
        "info": { "title": "Pets", "version": "1" },
        "paths": { "/pets": { "get": operation("list_pets"), "post": operation("add_pet") } },
    });
    fs::write(setup.path("pets.json"), document.to_string()).expect("it can be written");
    let options =
        ["--base-url", "http://127.0.0.1:9/v1", "--header", "X-API-Key: s3cret-of-pets", "--tag", "pets"];
    let added = run(&setup, &[&["add", "pets", "--openapi", "./pets.json"], &options[..]].concat());
    let said = text(&added);
    assert!(added.status.success() && said.contains("`pets` starts and has 2 tools."), "{said}");
    let now = toml(&setup);
    let file = setup.path("pets.json");
    for line in [
        format!("openapi = \"{}\"", file.display()).as_str(),
        "base_url = \"http://127.0.0.1:9/v1\"",
        "headers = { X-API-Key = \"${PETS_API_KEY}\" }",
    ] {
        assert!(now.lines().any(|known| known == line), "{line}: {now}");
    }
    assert!(!said.contains("s3cret-of-pets") && !now.contains("s3cret-of-pets"), "{said}");
    let missing = run(&setup, &["add", "cats", "--openapi", "cats.json"]);
    let said = text(&missing);
    assert!(missing.status.code() == Some(1) && said.contains("cats.json"), "{said}");
    let nowhere = run(&setup, &["add", "dogs", "--openapi", "pets.json"]);
    let said = text(&nowhere);
    assert!(
        nowhere.status.code() == Some(1) && said.contains("`--base-url` is the key `base_url`"),
        "{said}"
    );
    assert_eq!(toml(&setup), now);
}

#[test]
fn what_a_readme_offers_is_added_and_imported() {
    let setup = setup();
    let words = scripted(&setup, &bank());
    let json_entry =
        json!({ "command": words[0], "args": &words[1..], "env": { "API_TOKEN": TOKEN } }).to_string();
    let line = words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" ");
    let link =
        percent_encoding::utf8_percent_encode(&json_entry, percent_encoding::NON_ALPHANUMERIC).to_string();
    for (pasted, name) in [
        (format!("\"one\": {json_entry},"), "one"),
        (format!("claude mcp add two -e API_TOKEN={TOKEN} -- {line}"), "two"),
        (format!("Install:\n```json\n{{\"mcpServers\": {{\"three\": {json_entry}}}}}\n```\n"), "three"),
        (format!("vscode:mcp/install?%7B%22four%22%3A{link}%7D"), "four"),
    ] {
        let added = run(&setup, &["add", &pasted]);
        let said = text(&added);
        assert!(added.status.success(), "{said}");
        assert!(said.contains(&format!("`{name}` starts and has 2 tools.")), "{said}");
        assert!(said.contains(&format!("[servers.{name}] is added to ")) && !said.contains(TOKEN), "{said}");
        let now = toml(&setup);
        assert!(now.contains(&format!("[servers.{name}]")) && !now.contains(TOKEN), "{now}");
        let removed = run(&setup, &["remove", name]);
        assert!(removed.status.success(), "{}", text(&removed));
    }
    // Under a name of one's own, and under one that is taken.
    let named = run(&setup, &["add", "mine", &json_entry]);
    assert!(named.status.success() && toml(&setup).contains("[servers.mine]"), "{}", text(&named));
    let again = run(&setup, &["add", "mine", &json_entry]);
    assert!(
        again.status.success() && text(&again).contains("has this server already, as `mine`"),
        "{}",
        text(&again)
    );
    let taken = run(&setup, &["add", "mine", "npx -y other"]);
    assert!(!taken.status.success() && text(&taken).contains("such as `mine-2`"), "{}", text(&taken));
    // From stdin, several at once, with what the user has still to fill in.
    let mut import = command(setup.folder.path());
    import.args(["import", "-"]).stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut import = import.spawn().expect("nonet runs");
    let pasted = "```sh\nclaude mcp add web --transport http https://web.example/mcp -H 'Authorization: Bearer YOUR_TOKEN'\n```\n\
                  ```\nuvx mcp-server-git\n```\n```json\n{\"git\": {\"command\": \"docker\"}}\n```\n";
    std::io::Write::write_all(&mut import.stdin.take().expect("it is piped"), pasted.as_bytes())
        .expect("taken");
    let imported = import.wait_with_output().expect("it ends");
    let (said, now) = (text(&imported), toml(&setup));
    assert!(imported.status.success(), "{said}");
    assert!(said.contains("the text has `git` in another way too, which was passed over"), "{said}");
    assert!(said.contains("secret set WEB_TOKEN --file"), "{said}");
    assert!(now.contains("[servers.git]\ncommand = \"uvx\"") && now.contains("WEB_TOKEN}\""), "{now}");
    assert!(!now.contains("YOUR_TOKEN"), "a placeholder is no secret: {now}");
    // At a terminal, a command to copy is one line.
    let line =
        "claude mcp add site --transport http https://site.example/mcp -H 'Authorization: Bearer YOUR_TOKEN'";
    let mut import = command(setup.folder.path());
    let (_, shown) = crate::shell::Terminal::answer(import.args(["import", line, "--dry-run"]), "");
    let is_whole = |line: &str| {
        line.starts_with("  nonet ") && line.contains("SITE_TOKEN --file  (") && line.ends_with("for site)")
    };
    assert!(shown.lines().any(is_whole), "{shown}");

    for (arguments, expected) in [
        (&["add", "what"][..], "what should be added?"),
        (&["add", "make it so"], "the text has no server. Paste what a README offers"),
        (&["add", "x", "npx"], "`npx` is not an address"),
        (&["add", "npx -y a", "--tag", "t"], "`--tag` belongs to a command or an address"),
        (&["import", "{\"a\": "], "the text:1:"),
    ] {
        let refused = run(&setup, arguments);
        assert!(
            !refused.status.success() && text(&refused).contains(expected),
            "{arguments:?}: {}",
            text(&refused)
        );
    }
}

#[test]
fn a_dry_run_beside_a_lock_file_leaves_nothing_waiting() {
    let setup = setup();
    fs::write(setup.path("servers.lock"), "version = 1\n").expect("it can be written");
    let words = scripted(&setup, &bank());
    let shown = add(&setup, &["bank", "--dry-run"], &words);
    assert!(shown.status.success() && text(&shown).contains("`bank` starts"), "{}", text(&shown));
    let waiting = run(&setup, &["trust", "--list"]);
    assert!(!text(&waiting).contains("bank"), "{}", text(&waiting));
}

#[cfg(unix)]
#[test]
fn a_file_that_is_read_only_is_not_replaced() {
    use std::os::unix::fs::PermissionsExt;
    let setup = setup();
    let mode = |name: &str, mode| {
        fs::set_permissions(setup.path(name), fs::Permissions::from_mode(mode)).expect("it is ours");
    };
    mode("servers.toml", 0o444);
    let before = toml(&setup);
    for arguments in
        [&["enable", "off"][..], &["add", "new", "--no-check", "--", "x"], &["import", "npx -y a-mcp"]]
    {
        let refused = run(&setup, arguments);
        assert!(!refused.status.success(), "{arguments:?}");
        assert!(
            text(&refused).contains("the file is read-only. Make the file writable"),
            "{}",
            text(&refused)
        );
    }
    assert_eq!(toml(&setup), before);
    fs::write(setup.path("secrets.env"), "A=b\n").expect("it can be written");
    mode("secrets.env", 0o400);
    let mut set = command(setup.folder.path());
    set.args(["secret", "remove", "A", "--file"]);
    let refused = set.output().expect("nonet runs");
    assert!(!refused.status.success() && text(&refused).contains("it is read-only"), "{}", text(&refused));
}
