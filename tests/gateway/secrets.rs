//! Secrets in the keyring, on a machine that has none: what is told, and what goes on without them.

use std::{fs, io::Write, process::Stdio};

use serde_json::json;

use crate::{client::command, setup::Setup};

/// How a command ended, and what it said.
fn run(setup: &Setup, arguments: &[&str], stdin: &str) -> (Option<i32>, String) {
    let mut child = command(setup.folder.path())
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("nonet runs");
    // A command that reads nothing may be gone already.
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
    let fault = "servers.docs.headers.A: there is no keyring here (it is switched off by NONET_KEYRING=off).";
    assert!(said.contains(fault) && said.contains("Or use a variable: `${DOCS}`."), "{said}");
    let (code, said) = run(&setup, &["check"], "");
    assert_eq!(code, Some(2), "{said}");
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
