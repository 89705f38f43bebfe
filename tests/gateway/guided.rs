//! `nonet setup`: puts Nonet in front of a machine's clients.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    hosts::{nonet, program, text},
    setup::{eventually, fake_server},
};

const TOKEN: &str = "ghp_0123456789abcdefghijABCDEFGHIJ456789";

/// Returns a working server, or one that needs a secret to start.
fn entry(env: Value) -> Value {
    let script = json!({ "tools": [{ "name": "look", "on": { "env": true } }] });
    json!({ "command": fake_server(), "args": ["--script", script.to_string()], "env": env })
}

fn write(file: &Path, servers: Value) {
    fs::create_dir_all(file.parent().expect("it has one")).expect("a folder");
    let text =
        serde_json::to_string_pretty(&json!({ "globalShortcut": "Ctrl+Space", "mcpServers": servers }));
    fs::write(file, text.expect("JSON") + "\n").expect("it can be written");
}

/// Returns a home with Claude Desktop and Cursor.
fn home() -> (TempDir, PathBuf, PathBuf) {
    let home = tempfile::tempdir().expect("a temporary folder");
    let claude = home.path().join(".config/Claude/claude_desktop_config.json");
    let cursor = home.path().join(".cursor/mcp.json");
    write(&claude, json!({ "plain": entry(json!({})), "keyed": entry(json!({ "API_KEY": TOKEN })) }));
    (home, claude, cursor)
}

fn servers(file: &Path) -> Vec<String> {
    let now: Value = serde_json::from_slice(&fs::read(file).expect("it is there")).expect("JSON");
    now["mcpServers"].as_object().expect("servers").keys().cloned().collect()
}

fn entry_of(file: &Path, name: &str) -> Value {
    let now: Value = serde_json::from_slice(&fs::read(file).expect("it is there")).expect("JSON");
    now["mcpServers"][name].clone()
}

/// Returns every file below a folder that a setup may write, with its content.
fn files(home: &TempDir) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut left = vec![home.path().join(".config"), home.path().join(".cursor")];
    while let Some(folder) = left.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.path() {
                path if path.is_dir() => left.push(path),
                path => found.push((path.clone(), fs::read(&path).expect("it can be read"))),
            }
        }
    }
    found.sort();
    found
}

#[test]
fn a_client_with_a_secret_is_set_up_in_one_command_and_put_back_in_one() {
    let (home, claude, _) = home();
    let before = fs::read(&claude).expect("it is there");
    let dry = nonet(&home, &["setup", "--dry-run"]);
    let said = text(&dry);
    assert!(dry.status.success() && said.contains("Nothing was written"), "{said}");
    assert!(
        said.contains("+command = ") && said.contains("-    \"plain\": {") && !said.contains(TOKEN),
        "{said}"
    );
    assert_eq!(files(&home).len(), 1, "{said}");

    let set_up = nonet(&home, &["setup", "--yes"]);
    let said = text(&set_up);
    assert_eq!(set_up.status.code(), Some(0), "{said}");
    let folder = home.path().join(".config/nonet");
    let secrets = folder.join("secrets.env");
    let kept = fs::read_to_string(&secrets).expect("it was made");
    assert!(kept.contains(&format!("API_KEY={TOKEN}\n")) && !said.contains(TOKEN), "{kept}\n{said}");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = fs::metadata(&secrets).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    assert_eq!(servers(&claude), ["nonet"]);
    let toml = folder.join("servers.toml");
    let (toml, secrets) = (toml.display(), secrets.display());
    let backup = said.lines().find_map(|line| line.strip_prefix("backup:  ")).expect("it is named");
    assert_eq!(fs::read(backup).expect("it is there"), before);
    for part in [
        "2 of 2 servers work, with 2 tools.".into(),
        "To undo the setup:\n  nonet uninstall claude-desktop\n".into(),
        format!("  rm {secrets}\n  rm {toml}\n"),
    ] {
        assert!(said.contains(&part), "{part}\n{said}");
    }
    let check = nonet(&home, &["check"]);
    assert_eq!(check.status.code(), Some(0), "{}", text(&check));

    let after = files(&home);
    let again = nonet(&home, &["setup", "--yes"]);
    assert!(again.status.success() && text(&again).contains("nothing was changed"), "{}", text(&again));
    assert_eq!(files(&home), after);
    nonet(&home, &["uninstall", "claude-desktop"]);
    assert_eq!(fs::read(&claude).expect("it is there"), before, "byte for byte");
}

#[test]
fn what_nonet_cannot_run_stays_with_its_client() {
    let (home, claude, cursor) = home();
    write(
        &cursor,
        json!({
            "plain": entry(json!({})),
            "asks": entry(json!({ "KEY": "${env:NONET_TEST_UNSET}" })),
            "dead": { "command": "no-such-program-of-nonet" },
        }),
    );
    let set_up = nonet(&home, &["setup", "--yes"]);
    let said = text(&set_up);
    assert_eq!(set_up.status.code(), Some(0), "{said}");
    assert_eq!(servers(&claude), ["nonet"]);
    assert_eq!(servers(&cursor), ["asks", "dead", "nonet"], "{said}");
    for part in [
        "`asks` stays in its file because Nonet cannot run it: the environment variable `NONET_TEST_UNSET` is not set",
        "`dead` stays in its file because Nonet cannot run it: `no-such-program-of-nonet` is not on this machine",
        "nonet secret set NONET_TEST_UNSET --file",
        "nonet uninstall cursor",
    ] {
        assert!(said.contains(part), "{part}\n{said}");
    }
    let last = said.split("This does not work yet:\n").nth(1).expect("the last thing that is told");
    assert!(last.starts_with("  asks: the environment variable") && last.contains("\n  dead: "), "{said}");
    let after = files(&home);
    let again = nonet(&home, &["setup", "--yes"]);
    assert!(again.status.success() && text(&again).contains("Nothing was changed"), "{}", text(&again));
    assert_eq!(files(&home), after);
    // Missing values are reported again, even if there is nothing else to do.
    let rest = json!({ "asks": entry(json!({ "KEY": "${env:NONET_TEST_UNSET}" })), "nonet": entry_of(&cursor, "nonet") });
    write(&cursor, rest);
    let missing = text(&nonet(&home, &["setup", "--yes"]));
    assert!(missing.contains("secret set NONET_TEST_UNSET --file"), "{missing}");
    assert!(missing.contains("Nothing was changed"), "{missing}");
    // Once the secret is set, the next setup moves the server too.
    let secrets = home.path().join(".config/nonet/secrets.env");
    let text_of = fs::read_to_string(&secrets).expect("it is there");
    fs::write(&secrets, text_of + "NONET_TEST_UNSET=x\n").expect("it can be written");
    let moved = nonet(&home, &["setup", "--yes"]);
    assert_eq!(servers(&cursor), ["nonet"], "{}", text(&moved));
}

#[test]
fn what_is_switched_off_or_known_in_part_stays_with_its_client() {
    let (home, _, cursor) = home();
    let mut filed = entry(json!({}));
    filed["envFile"] = json!(".env");
    let noisy = json!({ "command": "sh", "args": ["-c", "echo one >&2; echo Error: two >&2; exit 1"] });
    let off = entry(json!({ "OFF": "1" }));
    write(&cursor, json!({ "off": off, "on": entry(json!({})), "filed": filed, "noisy": noisy }));
    nonet(&home, &["import", "cursor"]);
    let toml = home.path().join(".config/nonet/servers.toml");
    let written = fs::read_to_string(&toml).expect("it was made");
    let switched = written.replace("[servers.off]\n", "[servers.off]\nenabled = false\n");
    fs::write(&toml, switched).expect("it can be written");
    let before = files(&home);
    let missing = text(&nonet(&home, &["setup", "cursor", "--yes", "--profile", "nope"]));
    assert!(
        missing.contains("there is no [profiles.nope]") && missing.contains("profiles: none"),
        "{missing}"
    );
    let dry = text(&nonet(&home, &["setup", "cursor", "--dry-run"]));
    assert!(dry.contains("`off` stays in its file: "), "{dry}");
    assert_eq!(files(&home), before);

    let said = text(&nonet(&home, &["setup", "cursor", "--yes"]));
    assert_eq!(servers(&cursor), ["off", "filed", "noisy", "nonet"], "{said}");
    for part in [
        "2 of 3 servers work, with 2 tools.",
        "`off` stays in its file: [servers.off] of servers.toml has `enabled = false`.",
        "`filed` stays in its file: Nonet does not read `envFile`",
    ] {
        assert!(said.contains(part), "{part}\n{said}");
    }
    let why = said.lines().find(|line| line.starts_with("`noisy` stays")).expect("it is told");
    assert!(why.contains("Error: two") && !said.contains("\none\n"), "{said}");
    // Once enabled, it moves.
    fs::write(&toml, written).expect("it can be written");
    let said = text(&nonet(&home, &["setup", "cursor", "--yes"]));
    assert_eq!(servers(&cursor), ["filed", "noisy", "nonet"], "{said}");
}

#[test]
fn only_the_clients_that_are_named_are_set_up() {
    let (home, claude, cursor) = home();
    let before = fs::read(&claude).expect("it is there");
    write(&cursor, json!({ "other": entry(json!({})) }));
    let set_up = nonet(&home, &["setup", "cursor", "--yes"]);
    assert!(set_up.status.success(), "{}", text(&set_up));
    assert_eq!(servers(&cursor), ["nonet"]);
    assert_eq!(fs::read(&claude).expect("it is there"), before);
    // A client without a file gets one, now that Nonet has servers.
    let new = nonet(&home, &["setup", "windsurf", "--yes"]);
    let file = home.path().join(".codeium/windsurf/mcp_config.json");
    assert_eq!(servers(&file), ["nonet"], "{}", text(&new));
    assert!(text(&new).contains("nonet uninstall windsurf"), "{}", text(&new));
}

#[test]
fn a_file_that_cannot_be_edited_stops_no_other_client() {
    let (home, claude, _) = home();
    let goose = home.path().join(".config/goose/config.yaml");
    let flow = "extensions: { a: { cmd: x, type: stdio } } # by hand\n";
    fs::create_dir_all(goose.parent().expect("it has one")).expect("a folder");
    fs::write(&goose, flow).expect("it can be written");
    let set_up = nonet(&home, &["setup", "--yes"]);
    let said = text(&set_up);
    assert!(set_up.status.success() && said.contains("skipping Goose: "), "{said}");
    assert_eq!(servers(&claude), ["nonet"], "{said}");
    let named = nonet(&home, &["setup", "goose", "--yes"]);
    assert_eq!(named.status.code(), Some(2), "{}", text(&named));
    assert!(text(&named).contains("Edit `nonet` in `extensions` by hand"), "{}", text(&named));
    assert_eq!(fs::read_to_string(&goose).expect("it is there"), flow);
    // In block style, the file is edited, and restored as it was.
    let block = "extensions:\n  # mine\n  memory:\n    type: builtin # of Goose\n    enabled: true\n";
    fs::write(&goose, block).expect("it can be written");
    let added = nonet(&home, &["setup", "goose", "--yes"]);
    let now = fs::read_to_string(&goose).expect("it is there");
    assert!(added.status.success() && now.starts_with(block), "{now}\n{}", text(&added));
    assert!(now.contains("  nonet:\n    name: nonet\n    type: stdio\n"), "{now}");
    nonet(&home, &["uninstall", "goose"]);
    assert_eq!(fs::read_to_string(&goose).expect("it is there"), block);
}

#[test]
fn what_cannot_be_set_up_is_told() {
    let (home, claude, cursor) = home();
    let before = files(&home);
    let refuse = |arguments: &[&str], part: &str| {
        let refused = nonet(&home, arguments);
        let said = text(&refused);
        assert!(refused.status.code() == Some(2) && said.contains(part), "{arguments:?}: {said}");
    };
    // Standard input is not a terminal here.
    refuse(&["setup"], "there is no terminal for your answers: add `--yes`");
    refuse(&["setup", "curser"], "Did you mean `cursor`?");
    refuse(&["setup", "--yes", "--profile", "nope"], "there is no [profiles.nope]");
    assert_eq!(files(&home), before);
    // A broken file is left untouched; the other clients are set up.
    fs::create_dir_all(cursor.parent().expect("it has one")).expect("a folder");
    fs::write(&cursor, "{ \"mcpServers\": ").expect("it can be written");
    refuse(&["setup", "cursor", "--yes"], "mcp.json");
    let rest = nonet(&home, &["setup", "--yes"]);
    assert!(rest.status.success() && text(&rest).contains("skipping Cursor"), "{}", text(&rest));
    assert_eq!(servers(&claude), ["nonet"]);
    fs::write(home.path().join(".config/nonet/servers.toml"), "[gatway]\n").expect("it can be written");
    refuse(&["setup", "--yes"], "servers.toml:1:");

    let empty = tempfile::tempdir().expect("a temporary folder");
    let none = nonet(&empty, &["setup", "--yes"]);
    let said = text(&none);
    assert!(none.status.code() == Some(2) && said.contains("no MCP client found"), "{said}");
    let nothing = nonet(&empty, &["setup", "cursor", "--yes"]);
    let said = text(&nothing);
    assert!(nothing.status.code() == Some(2) && said.contains("there is nothing to set up"), "{said}");
    assert!(!empty.path().join(".cursor").exists());
}

#[test]
fn a_nonet_that_is_there_stays_as_its_user_has_it() {
    let (home, claude, cursor) = home();
    nonet(&home, &["setup", "claude-desktop", "--yes"]);
    // Under a profile, with the same configuration: only new servers move.
    let mut now: Value = serde_json::from_slice(&fs::read(&claude).expect("it is there")).expect("JSON");
    let toml = home.path().join(".config/nonet/servers.toml");
    let own =
        json!({ "command": "nonet", "args": ["--profile", "reader", "--config", toml], "env": { "A": "b" } });
    now["mcpServers"] = json!({ "nonet": own, "new": entry(json!({})) });
    fs::write(&claude, now.to_string()).expect("it can be written");
    // With another configuration, or elsewhere: no change.
    for there in [
        json!({ "command": "nonet", "args": ["--config", "/other/servers.toml"] }),
        json!({ "command": "nonet", "args": ["connect", "http://127.0.0.1:8931/mcp"] }),
        json!({ "url": "http://127.0.0.1:8931/mcp" }),
    ] {
        write(&cursor, json!({ "nonet": there, "other": entry(json!({})) }));
        let before = fs::read(&cursor).expect("it is there");
        let set_up = nonet(&home, &["setup", "--yes"]);
        let said = text(&set_up);
        assert!(set_up.status.success() && said.contains("skipping Cursor: its `nonet`"), "{said}");
        assert_eq!(fs::read(&cursor).expect("it is there"), before);
        let named = nonet(&home, &["setup", "cursor", "--yes"]);
        assert_eq!(named.status.code(), Some(2), "{}", text(&named));
    }
    let now: Value = serde_json::from_slice(&fs::read(&claude).expect("it is there")).expect("JSON");
    assert_eq!(now["mcpServers"], json!({ "nonet": own }));
}

#[test]
fn a_setup_that_is_interrupted_has_changed_no_client() {
    let (home, claude, _) = home();
    let asked = home.path().join("asked");
    let script = json!({ "never_answer": true, "message_log": asked });
    let slow = json!({ "command": fake_server(), "args": ["--script", script.to_string()] });
    write(&claude, json!({ "slow": slow }));
    let before = fs::read(&claude).expect("it is there");
    let mut setup = program(&home);
    setup.args(["setup", "--yes"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let setup = setup.spawn().expect("nonet runs");
    eventually("the server is started", || fs::metadata(&asked).ok().filter(|data| data.len() > 0));
    kill(Pid::from_raw(setup.id().try_into().expect("a process id")), Signal::SIGINT).expect("it runs");
    let ended = setup.wait_with_output().expect("it ends");
    let said = text(&ended);
    assert!(ended.status.code() == Some(130) && said.contains("no client was changed"), "{said}");
    let toml = home.path().join(".config/nonet/servers.toml");
    assert!(said.contains(&format!("To undo the setup:\n  rm {}\n", toml.display())), "{said}");
    assert_eq!(fs::read(&claude).expect("it is there"), before);
}
