//! Keyring secrets on a machine without a keyring: reports, and what still works. Also secrets in
//! `secrets.env`.

use std::{fs, io::Write, process::Stdio};

use serde_json::json;

use crate::{
    client::command,
    setup::{Setup, eventually, json_of},
};

/// Returns the exit code and output of a command.
fn run(setup: &Setup, arguments: &[&str], stdin: &str) -> (Option<i32>, String) {
    let mut child = command(setup.folder.path())
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("nonet runs");
    // A command that reads no input may have exited already.
    let _ = child.stdin.take().expect("it is piped").write_all(stdin.as_bytes());
    let output = child.wait_with_output().expect("it ends");
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    (output.status.code(), said.concat())
}

#[test]
fn a_server_whose_secret_cannot_be_read_is_left_out_and_the_others_work() {
    let setup = Setup::new()
        .server("shop", json!({ "tools": [{ "name": "buy", "on": { "text": "bought" } }] }))
        .toml("[servers.docs]\nurl = 'https://example.com'\nheaders = { A = 'Bearer ${keyring:DOCS}' }");
    setup.write();
    let (code, said) = run(&setup, &["call", "shop.buy"], "");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("bought"), "{said}");
    assert!(!said.contains("docs"), "the call has nothing to do with it: {said}");
    let (code, said) = run(&setup, &["check"], "");
    assert_eq!(code, Some(2), "{said}");
    let fault = "servers.docs.headers.A: there is no keyring here (it is switched off by NONET_KEYRING=off).";
    assert!(said.contains(fault) && said.contains("Or use a variable: `${DOCS}`."), "{said}");
    assert!(said.contains("[servers.docs] is left out"), "{said}");
}

#[test]
fn what_cannot_be_stored_is_told() {
    let setup = Setup::new();
    for action in ["set", "remove", "test"] {
        let (code, said) = run(&setup, &["secret", action, "GITHUB_TOKEN"], "s3cr3t\n");
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("there is no keyring here") && !said.contains("s3cr3t"), "{said}");
    }
    let (code, said) = run(&setup, &["secret", "set", "GITHUB_TOKEN"], "\n");
    assert!(code == Some(2) && said.contains("no secret in the first line"), "{said}");
    let (code, said) = run(&setup, &["secret", "set", "git-hub"], "s3cr3t\n");
    assert!(code == Some(2) && said.contains("letters, digits and `_`"), "{said}");
}

#[test]
fn an_import_without_a_keyring_changes_nothing() {
    let setup = Setup::new();
    let servers = json!({ "mcpServers": {
        "plain": { "command": "npx" },
        "github": { "command": "npx", "env": { "GITHUB_TOKEN": "ghp_0123456789abcdefghijABCDEFGHIJ456789" } },
    } });
    let file = setup.path("some.json");
    fs::write(&file, servers.to_string()).expect("it can be written");
    for dry_run in [&[][..], &["--dry-run"]] {
        let arguments = [&["import", "some.json", "--keyring"], dry_run].concat();
        let (code, said) = run(&setup, &arguments, "");
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("there is no keyring here") && said.contains("Nothing was changed"), "{said}");
        assert!(!setup.path("servers.toml").exists());
    }
}

#[test]
fn a_secret_in_the_file_is_for_the_server_that_names_it() {
    let env = json!({ "tools": [{ "name": "look", "on": { "env": true } }] });
    let setup = Setup::new()
        .server_with(
            "keyed",
            env.clone(),
            "leaks = 'off'\nenv = { KEY = '${NONET_TEST_KEPT}', WON = '${NONET_TEST_WON}' }",
        )
        .server("plain", env);
    fs::write(setup.path("secrets.env"), "NONET_TEST_KEPT=s3cr3t-kept\nNONET_TEST_WON=lost\n")
        .expect("written");
    let mut client = setup.run_with(&[], &[("NONET_TEST_WON", "of the environment")]);
    client.initialize("2025-06-18", json!({}));
    client.until_ready("keyed");
    client.until_ready("plain");
    let mut seen = |name: &str| json_of(&client.execute(&format!("{name}.look"), json!({})))["env"].clone();
    let (keyed, plain) = (seen("keyed"), seen("plain"));
    assert_eq!((&keyed["KEY"], &keyed["WON"]), (&json!("s3cr3t-kept"), &json!("of the environment")));
    assert!(keyed.get("NONET_TEST_KEPT").is_none() && !plain.to_string().contains("s3cr3t"), "{plain}");
    // A running gateway picks up a changed secret.
    fs::write(client.folder.path().join("secrets.env"), "NONET_TEST_KEPT=s3cr3t-new\n").expect("written");
    client.until_notice("config_changed");
    eventually("the server has the new secret", || {
        let result = client.execute("keyed.look", json!({}));
        (json_of(&result)["env"]["KEY"] == "s3cr3t-new").then_some(())
    });
}

#[test]
fn secrets_are_set_tested_and_removed_in_the_file() {
    let setup = Setup::new();
    let file = setup.path("secrets.env");
    let (code, said) = run(&setup, &["secret", "set", "DOCS_TOKEN", "--file"], "s3cr3t value\n");
    assert!(code == Some(0) && said.contains("`${DOCS_TOKEN}`") && !said.contains("s3cr3t"), "{said}");
    let text = fs::read_to_string(&file).expect("it was made");
    assert!(text.ends_with("\nDOCS_TOKEN=s3cr3t value\n"), "{text}");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = fs::metadata(&file).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    assert_eq!(run(&setup, &["secret", "test", "DOCS_TOKEN", "--file"], "").0, Some(0));
    assert_eq!(run(&setup, &["secret", "remove", "DOCS_TOKEN", "--file"], "").0, Some(0));
    for action in ["test", "remove"] {
        let (code, said) = run(&setup, &["secret", action, "DOCS_TOKEN", "--file"], "");
        assert!(code == Some(1) && said.contains("has no `DOCS_TOKEN`"), "{said}");
    }
    // Without a keyring, the advice is to use the file.
    let (code, said) = run(&setup, &["secret", "set", "DOCS_TOKEN"], "s3cr3t\n");
    assert!(code == Some(1) && said.contains("`nonet secret set DOCS_TOKEN --file`"), "{said}");
}

#[test]
fn check_warns_of_secrets_in_plain_text_and_one_command_moves_them() {
    const LIVE: &str = "sk_live_0123456789abcdefABCD";
    let setup =
        Setup::new().server_with("good", json!({}), &format!("env = {{ STRIPE_KEY = '{LIVE}' }}")).toml(
            "[servers.web]\nurl = 'https://ann:s3cr3t@example.com/mcp?token=s3cr3t2'\nenabled = false\n\
         headers = { X-Api-Key = 's3cr3t3' }",
        );
    setup.write();
    let hides = |said: &str| assert!(!said.contains(LIVE) && !said.contains("s3cr3t"), "{said}");
    let (code, said) = run(&setup, &["check"], "");
    assert_eq!(code, Some(0), "{said}");
    for key in ["servers.good.env.STRIPE_KEY", "servers.web.url", "servers.web.headers.X-Api-Key"] {
        let warning = format!(": {key}: this looks like a secret in plain text. `nonet secret move` ");
        let line =
            said.lines().find(|line| line.contains(&warning)).unwrap_or_else(|| panic!("{key}: {said}"));
        assert!(line.starts_with("warning: ") && line.contains("servers.toml:"), "{line}");
    }
    hides(&said);
    let (_, said) = run(&setup, &["check", "--json"], "");
    assert!(said.contains("\"servers.web.url\""), "{said}");
    hides(&said);
    let (_, said) = run(&setup, &["doctor"], "");
    assert!(said.contains("secrets are in plain text at `servers.good.env.STRIPE_KEY`"), "{said}");
    hides(&said);

    let text = fs::read_to_string(setup.path("servers.toml")).expect("it is there");
    let (code, said) = run(&setup, &["secret", "move", "--dry-run"], "");
    assert!(code == Some(0) && said.contains("${STRIPE_KEY}"), "{said}");
    hides(&said);
    assert_eq!(fs::read_to_string(setup.path("servers.toml")).expect("it is there"), text);
    let (code, said) = run(&setup, &["secret", "move"], "");
    assert!(code == Some(0) && said.contains("4 secrets are moved out of "), "{said}");
    hides(&said);
    let moved = fs::read_to_string(setup.path("servers.toml")).expect("it is there");
    hides(&moved);
    let expected = "url = \"https://ann:${WEB_PASSWORD}@example.com/mcp?token=${WEB_TOKEN}\"";
    assert!(moved.contains(expected) && moved.contains("X-Api-Key = \"${WEB_API_KEY}\""), "{moved}");
    let kept = fs::read_to_string(setup.path("secrets.env")).expect("it was made");
    for line in [
        format!("STRIPE_KEY={LIVE}").as_str(),
        "WEB_PASSWORD=s3cr3t",
        "WEB_TOKEN=s3cr3t2",
        "WEB_API_KEY=s3cr3t3",
    ] {
        assert!(kept.lines().any(|kept| kept == line), "{line}: {kept}");
    }
    let (code, said) = run(&setup, &["check"], "");
    assert!(code == Some(0) && !said.contains("plain text"), "{said}");
    let (code, said) = run(&setup, &["secret", "move"], "");
    assert!(code == Some(0) && said.contains("nothing to change"), "{said}");
}

#[cfg(unix)]
#[test]
fn check_warns_of_secrets_that_others_can_read_and_of_lines_that_cannot_be_read() {
    use std::os::unix::fs::PermissionsExt;
    let setup = Setup::new();
    setup.write();
    let file = setup.path("secrets.env");
    fs::write(&file, "A=s3cr3t\n").expect("it can be written");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("it is ours");
    let (code, said) = run(&setup, &["check"], "");
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("secrets.env:1:1: others on this machine can read these secrets"), "{said}");
    let (code, said) = run(&setup, &["check", "--json"], "");
    assert!(code == Some(1) && said.contains("chmod 600"), "{said}");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("it is ours");
    assert_eq!(run(&setup, &["check"], "").0, Some(0));
    fs::write(&file, "A=s3cr3t\nsk-s3cr3t\n").expect("it can be written");
    let (code, said) = run(&setup, &["check"], "");
    assert!(code == Some(2) && said.contains("secrets.env:2:1: this line is not"), "{said}");
    assert!(!said.contains("s3cr3t"), "{said}");
}

#[cfg(unix)]
#[test]
fn a_secret_that_a_program_prints_reaches_its_server_and_a_new_one_is_taken() {
    let setup = Setup::new()
        .server_with(
            "shop",
            json!({ "tools": [{ "name": "show", "on": { "env": true } }] }),
            "env = { SHOP_KEY = '${store:data.key}', SHOP_NAME = '${name}' }",
        )
        .toml(
            "[secrets.store]\ncommand = ['sh', '-c', 'echo run >> runs; cat store.json']\nrefresh = '1s'\n\
             [secrets.name]\ncommand = ['echo', 'corner']\n",
        );
    let write = |key: &str| {
        let text = json!({ "data": { "key": key } }).to_string();
        fs::write(setup.path("store.json"), text).expect("written");
    };
    write("first-0123456789");
    setup.write();
    // A reference is no secret that should be elsewhere.
    let (code, said) = run(&setup, &["check"], "");
    assert!(code == Some(0) && !said.contains("warning"), "{said}");
    let (_, said) = run(&setup, &["secret", "move", "--dry-run"], "");
    assert!(!said.contains("SHOP_KEY"), "{said}");
    fs::remove_file(setup.path("runs")).expect("it ran");
    let runs = setup.path("runs");
    let again = setup.path("store.json");
    let mut client = setup.start_program();
    client.initialize("2025-06-18", json!({}));
    client.until_ready("shop");
    let shown = json_of(&client.call("execute_tool", json!({ "name": "shop.show" })));
    assert_eq!(
        (&shown["env"]["SHOP_KEY"], &shown["env"]["SHOP_NAME"]),
        (&json!("***"), &json!("corner")),
        "it is masked"
    );
    assert_eq!(fs::read_to_string(&runs).expect("it ran").lines().count(), 1);
    fs::write(again, json!({ "data": { "key": "second-0123456789" } }).to_string()).expect("written");
    let notice = client.until_notice("config_changed");
    assert_eq!(notice["restarted"], json!(["shop"]), "{notice}");
}

#[cfg(unix)]
#[test]
fn a_program_that_gives_no_secret_leaves_its_server_out_and_says_why() {
    let setup = Setup::new()
        .server("other", json!({ "tools": [{ "name": "buy", "on": { "text": "bought" } }] }))
        .server_with("shop", json!({}), "env = { KEY = '${store:data.key}' }")
        .toml("[secrets.store]\ncommand = ['sh', '-c', 'echo permission denied >&2; exit 2']\n");
    setup.write();
    let (code, said) = run(&setup, &["check"], "");
    assert_eq!(code, Some(2), "{said}");
    let fault = "servers.shop.env.KEY: `[secrets.store]` gives no value: `sh` failed: permission denied.";
    assert!(said.contains(fault) && said.contains("[servers.shop] is left out"), "{said}");
    assert_eq!(run(&setup, &["call", "other.buy"], "").0, Some(0));
}
