//! From a client's configuration to Nonet and back: `nonet import`, `install`, `uninstall`.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Output},
};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Returns a home with Claude Desktop's configuration: twelve servers of all kinds.
fn home() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let npx = |package: &str| json!({ "command": "npx", "args": ["-y", package] });
    let mut servers = json!({
        "filesystem": { "command": "npx", "args": ["-y", "@modelcontextprotocol/server-filesystem", "/data"] },
        "GitHub": { "command": "npx", "args": ["-y", "@modelcontextprotocol/server-github"], "env": { "GITHUB_PERSONAL_ACCESS_TOKEN": "ghp_0123456789abcdefghijABCDEFGHIJ456789" } },
        "git": { "command": "uvx", "args": ["mcp-server-git"] },
        "docs": { "url": "https://docs.example.com/mcp", "headers": { "Authorization": "Bearer sk-very-secret-0123456789abcdef" } },
        "docker": { "command": "docker", "args": ["run", "-i", "--rm", "mcp/time"] },
    });
    for name in ["memory", "thinking", "everything", "slack", "maps", "notion", "brave search"] {
        servers[name] = npx(&format!("server-{}", name.replace(' ', "-")));
    }
    let file = folder.path().join(".config/Claude/claude_desktop_config.json");
    fs::create_dir_all(file.parent().expect("it has one")).expect("a folder");
    let text =
        serde_json::to_string_pretty(&json!({ "globalShortcut": "Ctrl+Space", "mcpServers": servers }));
    fs::write(&file, text.expect("JSON") + "\n").expect("it can be written");
    (folder, file)
}

pub fn program(home: &TempDir) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nonet"));
    command
        .current_dir(home.path())
        .env("HOME", home.path())
        .env("NONET_KEYRING", "off")
        .env_remove("XDG_CACHE_HOME")
        .env_remove("XDG_CONFIG_HOME")
        .env_remove("XDG_STATE_HOME")
        .env_remove("NONET_CONFIG");
    command
}

pub fn nonet(home: &TempDir, arguments: &[&str]) -> Output {
    program(home).args(arguments).output().expect("nonet runs")
}

pub fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn two_commands_put_nonet_in_front_of_a_clients_servers_and_one_takes_it_back() {
    let (home, file) = home();
    let before = fs::read(&file).expect("it is there");
    let imported = nonet(&home, &["import", "claude-desktop"]);
    let said = text(&imported);
    assert!(imported.status.success(), "{said}");
    let config = home.path().join(".config/nonet/servers.toml");
    let toml = fs::read_to_string(&config).expect("it was made");
    assert_eq!(
        toml.matches("[servers.").filter(|_| true).count() - toml.matches(".env]").count(),
        12,
        "{toml}"
    );
    for secret in ["ghp_0123456789", "sk-very-secret"] {
        assert!(!toml.contains(secret) && !said.contains(secret), "{secret}\n{toml}\n{said}");
    }
    assert!(
        toml.contains("${GITHUB_PERSONAL_ACCESS_TOKEN}") && said.contains("GITHUB_PERSONAL_ACCESS_TOKEN"),
        "{said}"
    );
    let secrets = fs::read_to_string(config.with_file_name("secrets.env")).expect("it was made");
    assert!(secrets.contains("\nGITHUB_PERSONAL_ACCESS_TOKEN=ghp_0123456789"), "there is no keyring");
    // A second import changes nothing.
    nonet(&home, &["import", "claude-desktop"]);
    assert_eq!(fs::read_to_string(&config).expect("it is there"), toml);

    let dry = nonet(&home, &["install", "claude-desktop", "--replace", "--dry-run"]);
    assert!(text(&dry).contains("+"), "{}", text(&dry));
    assert_eq!(fs::read(&file).expect("it is there"), before, "nothing was written");
    let installed = nonet(&home, &["install", "claude-desktop", "--replace"]);
    assert!(installed.status.success(), "{}", text(&installed));
    let now: Value = serde_json::from_slice(&fs::read(&file).expect("it is there")).expect("JSON");
    let servers = now["mcpServers"].as_object().expect("servers");
    assert_eq!(servers.keys().collect::<Vec<_>>(), ["nonet"], "{now}");
    assert_eq!(now["globalShortcut"], "Ctrl+Space");
    assert_eq!(servers["nonet"]["args"], json!(["--config", config]));

    let backups = home.path().join(".local/state/nonet/backups");
    let count = || fs::read_dir(&backups).map_or(0, Iterator::count);
    assert_eq!(count(), 1, "the backup is in the state folder, with those of other files");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = |file: &std::path::Path| fs::metadata(file).expect("there").permissions().mode() & 0o777;
        assert_eq!(mode(&config), 0o600, "a new file is its owner's");
        fs::set_permissions(&config, fs::Permissions::from_mode(0o640)).expect("it is ours");
        assert!(nonet(&home, &["disable", "git"]).status.success());
        assert_eq!(mode(&config), 0o640, "a file keeps its mode");
    }

    let removed = nonet(&home, &["uninstall", "claude-desktop"]);
    assert!(removed.status.success(), "{}", text(&removed));
    assert_eq!(fs::read(&file).expect("it is there"), before, "byte for byte");
    assert_eq!(count(), 0, "the file is its backup again");
}

#[test]
fn what_cannot_be_done_is_told_with_what_to_do() {
    let (home, file) = home();
    let unknown = nonet(&home, &["install", "claude-desk"]);
    assert!(!unknown.status.success() && text(&unknown).contains("claude-desktop"), "{}", text(&unknown));
    fs::write(&file, "{ \"mcpServers\": { ").expect("it can be written");
    let broken = nonet(&home, &["install", "claude-desktop"]);
    assert!(
        !broken.status.success() && text(&broken).contains("claude_desktop_config.json"),
        "{}",
        text(&broken)
    );
    assert_eq!(fs::read_to_string(&file).expect("it is there"), "{ \"mcpServers\": { ");
}

#[test]
fn what_is_imported_is_what_was_named() {
    let (home, _) = home();
    // A folder with a host's name does no harm, and a missing file is not mistaken for a host.
    fs::create_dir(home.path().join("claude-desktop")).expect("a folder");
    let imported = nonet(&home, &["import", "claude-desktop", "--dry-run"]);
    assert!(imported.status.success() && text(&imported).contains("brave search"), "{}", text(&imported));
    for name in ["servers.jsno", "./missing", "a/b"] {
        let missing = nonet(&home, &["import", name]);
        assert!(
            !missing.status.success() && text(&missing).contains("there is no file"),
            "{}",
            text(&missing)
        );
    }
    let unknown = nonet(&home, &["import", "curser"]);
    assert!(text(&unknown).contains("Did you mean `cursor`?"), "{}", text(&unknown));
}

#[test]
fn an_import_tells_what_it_has_written() {
    let (home, file) = home();
    let write = |servers: Value| {
        fs::write(&file, json!({ "mcpServers": servers }).to_string()).expect("it can be written");
    };
    // Nonet's own entry does not count as missing from servers.toml.
    write(json!({ "nonet": { "command": "/usr/bin/nonet" } }));
    let alone = nonet(&home, &["import", "claude-desktop"]);
    let said = text(&alone);
    assert!(alone.status.success() && said.contains("Nonet itself"), "{said}");
    assert!(said.contains("nothing to change") && !said.contains("nonet check"), "{said}");

    write(json!({ "git": { "command": "one" } }));
    let first = text(&nonet(&home, &["import"]));
    assert!(
        first.contains("written: ") && first.contains("nonet check") && !first.contains("backup: "),
        "{first}"
    );
    write(json!({ "git": { "command": "two" } }));
    let dry = text(&nonet(&home, &["import", "--replace", "--dry-run"]));
    assert!(dry.contains("+command = \"two\"") && dry.contains("Nothing was written"), "{dry}");
    let replaced = text(&nonet(&home, &["import", "--replace"]));
    let backup = replaced.lines().find_map(|line| line.strip_prefix("backup:  ")).expect("it is named");
    assert!(fs::read_to_string(backup).expect("it is there").contains("\"one\""), "{replaced}");

    write(json!({ "git": { "command": "two" }, "odd": { "type": "sse" } }));
    let skipped = nonet(&home, &["import"]);
    assert_eq!(skipped.status.code(), Some(0), "`import && install` goes on: {}", text(&skipped));
    assert!(text(&skipped).contains("skipped: "), "{}", text(&skipped));
}

#[test]
fn no_server_is_taken_from_a_client_that_nonet_would_leave_out() {
    let (home, file) = home();
    let before = fs::read(&file).expect("it is there");
    let imported = nonet(&home, &["import", "claude-desktop", "--variables"]);
    assert!(imported.status.success(), "{}", text(&imported));
    assert!(!home.path().join(".config/nonet/secrets.env").exists());
    for dry_run in [&[][..], &["--dry-run"]] {
        let refused = nonet(&home, &[&["install", "claude-desktop", "--replace"], dry_run].concat());
        let said = text(&refused);
        assert_eq!(refused.status.code(), Some(2), "{said}");
        for part in [
            "nothing was changed: Nonet leaves out 2 servers of Claude Desktop",
            "  docs: the environment variable `DOCS_TOKEN` is not set\n",
            "  github: the environment variable `GITHUB_PERSONAL_ACCESS_TOKEN` is not set\n",
            "`nonet import claude-desktop`",
            "`nonet secret set NAME --file`",
        ] {
            assert!(said.contains(part), "{part}\n{said}");
        }
        assert_eq!(fs::read(&file).expect("it is there"), before);
    }
    // Without `--replace` nothing is removed, and skipped servers are named.
    let beside = nonet(&home, &["install", "claude-desktop", "--dry-run"]);
    assert!(beside.status.success() && text(&beside).contains("2 entries are left out"), "{}", text(&beside));
    // The advice works.
    let kept = nonet(&home, &["import", "claude-desktop"]);
    assert!(
        kept.status.success() && text(&kept).contains("secrets.env, readable only by you:"),
        "{}",
        text(&kept)
    );
    let installed = nonet(&home, &["install", "claude-desktop", "--replace"]);
    assert!(installed.status.success(), "{}", text(&installed));
}

#[test]
fn what_nonet_would_not_run_stays_with_its_client() {
    let (home, file) = home();
    let write = |servers: Value| {
        fs::write(&file, json!({ "mcpServers": servers }).to_string()).expect("it can be written");
    };
    let with_file = json!({ "command": "x", "envFile": ".env" });
    write(json!({ "off": { "command": "a" }, "on": { "command": "b" }, "filed": with_file }));
    nonet(&home, &["import"]);
    let config = home.path().join(".config/nonet/servers.toml");
    let toml = fs::read_to_string(&config).expect("it was made");
    let off = toml.replace("[servers.off]\n", "[servers.off]\nenabled = false\n");
    fs::write(&config, off).expect("it can be written");
    write(json!({
        "off": { "command": "a" }, "on": { "command": "b" }, "filed": with_file, "new": { "command": "c" },
    }));
    let installed = nonet(&home, &["install", "claude-desktop", "--replace"]);
    let said = text(&installed);
    assert!(installed.status.success() && said.contains("servers.toml has them: `on`."), "{said}");
    for part in [
        "`off` stays in its file: [servers.off] of servers.toml has `enabled = false`.",
        "`filed` stays in its file: Nonet does not read `envFile`",
        "`new` stays in its file: it is not in servers.toml.",
        "`nonet import claude-desktop` adds the servers that are not in servers.toml.",
    ] {
        assert!(said.contains(part), "{part}\n{said}");
    }
    let now: Value = serde_json::from_slice(&fs::read(&file).expect("it is there")).expect("JSON");
    let mut names: Vec<_> = now["mcpServers"].as_object().expect("servers").keys().collect();
    names.sort();
    assert_eq!(names, ["filed", "new", "nonet", "off"]);
    // A file that Nonet created is deleted, not rewritten.
    nonet(&home, &["install", "cursor"]);
    let removed = text(&nonet(&home, &["uninstall", "cursor"]));
    assert!(removed.contains("is removed") && !removed.contains("written:"), "{removed}");
    // Without a configuration, the command that creates one is named.
    fs::remove_file(&config).expect("it is there");
    for arguments in [&["search", "time"][..], &["status"], &["check"], &["call", "a.b"]] {
        let said = text(&nonet(&home, arguments));
        assert!(said.contains("`nonet setup`"), "{arguments:?}: {said}");
    }
}

#[test]
fn a_variable_of_this_shell_is_no_secret_that_a_client_has() {
    let (home, file) = home();
    let servers = json!({ "mcpServers": { "a": { "command": "a", "env": { "A": "${env:OF_THE_SHELL}", "B": "${env:HOME}" } } } });
    fs::write(&file, servers.to_string()).expect("it can be written");
    nonet(&home, &["import", "claude-desktop"]);
    let install = |home: &TempDir| {
        let mut command = program(home);
        command.args(["install", "claude-desktop", "--replace", "--dry-run"]).env("OF_THE_SHELL", "x");
        text(&command.output().expect("nonet runs"))
    };
    let said = install(&home);
    assert!(said.contains("`OF_THE_SHELL` is set only in this shell") && !said.contains("`HOME`"), "{said}");
    fs::write(home.path().join(".config/nonet/secrets.env"), "OF_THE_SHELL=y\n").expect("it can be written");
    assert!(!install(&home).contains("OF_THE_SHELL` is set only in this shell"));
}

#[test]
fn a_client_is_not_made_to_start_what_fails() {
    let (home, file) = home();
    let before = fs::read(&file).expect("it is there");
    for replace in [&[][..], &["--replace"]] {
        let refused = nonet(&home, &[&["install", "claude-desktop"], replace].concat());
        let said = text(&refused);
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(
            said.contains("does not exist. Run `nonet setup`, or `nonet import claude-desktop`"),
            "{said}"
        );
    }
    let config = home.path().join(".config/nonet/servers.toml");
    fs::create_dir_all(config.parent().expect("it has one")).expect("a folder");
    fs::write(&config, "[gatway]\n").expect("it can be written");
    let refused = nonet(&home, &["install", "claude-desktop"]);
    let said = text(&refused);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("nothing was changed") && said.contains("servers.toml:1:"), "{said}");
    assert_eq!(fs::read(&file).expect("it is there"), before);
}

#[test]
fn a_servers_toml_of_the_current_folder_is_not_written_by_accident() {
    let (home, _) = home();
    let tracked = home.path().join("servers.toml");
    fs::write(&tracked, "# tracked\n").expect("it can be written");
    let imported = nonet(&home, &["import", "claude-desktop"]);
    let said = text(&imported);
    assert!(imported.status.success() && said.contains("in this folder is not changed"), "{said}");
    let own = home.path().join(".config/nonet/servers.toml");
    assert!(said.contains(&format!("`nonet --config {} check`", own.display())), "{said}");
    assert_eq!(fs::read_to_string(&tracked).expect("it is there"), "# tracked\n");
    let installed = nonet(&home, &["install", "claude-desktop", "--replace", "--dry-run"]);
    assert!(text(&installed).contains(&own.display().to_string()), "{}", text(&installed));
    let named = nonet(&home, &["import", "claude-desktop", "--config", "servers.toml"]);
    assert!(named.status.success(), "{}", text(&named));
    assert!(fs::read_to_string(&tracked).expect("it is there").contains("[servers.git]"));
}

#[test]
fn an_option_goes_where_it_counts_or_is_refused() {
    let (home, file) = home();
    nonet(&home, &["import"]);
    let before = fs::read(&file).expect("it is there");
    let missing = nonet(&home, &["install", "claude-desktop", "--profile", "reader"]);
    let said = text(&missing);
    assert!(missing.status.code() == Some(2) && said.contains("there is no [profiles.reader]"), "{said}");
    assert!(said.contains("profiles: none") && fs::read(&file).expect("it is there") == before, "{said}");
    let config = home.path().join(".config/nonet/servers.toml");
    let toml = fs::read_to_string(&config).expect("it is there");
    fs::write(&config, toml + "\n[profiles.reader]\n").expect("it can be written");
    let installed = nonet(&home, &["install", "claude-desktop", "--profile", "reader"]);
    assert!(installed.status.success(), "{}", text(&installed));
    let now: Value = serde_json::from_slice(&fs::read(&file).expect("it is there")).expect("JSON");
    let arguments = now["mcpServers"]["nonet"]["args"].as_array().expect("arguments");
    assert_eq!(arguments[2..], [json!("--profile"), json!("reader")]);

    for arguments in [
        &["import", "--profile", "reader"][..],
        &["uninstall", "claude-desktop", "--profile", "reader"],
        &["secret", "test", "A", "--profile", "reader"],
        &["forget", "--profile", "reader"],
        &["--profile", "reader", "schema"],
        &["--http", "127.0.0.1:0", "schema"],
        &["--http", "127.0.0.1:0", "tools"],
    ] {
        let refused = nonet(&home, arguments);
        let option = arguments.iter().find(|argument| argument.starts_with("--")).expect("an option");
        let said = text(&refused);
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(&format!("{option} has no effect on this command")), "{arguments:?}: {said}");
    }
}

#[test]
fn codex_can_be_told_to_ask_about_no_tool_of_nonet() {
    let (home, _) = home();
    nonet(&home, &["import", "claude-desktop"]);
    let file = home.path().join(".codex/config.toml");
    let installed = nonet(&home, &["install", "codex"]);
    assert!(installed.status.success(), "{}", text(&installed));
    let before = fs::read_to_string(&file).expect("it was made");
    assert!(!before.contains("approval"), "only on request: {before}");
    let allowed = nonet(&home, &["install", "codex", "--always-allow"]);
    let said = text(&allowed);
    assert!(allowed.status.success() && said.contains("servers.toml has no policy"), "{said}");
    let now = fs::read_to_string(&file).expect("it is there");
    assert_eq!(now, format!("{before}default_tools_approval_mode = \"approve\"\n"));
    // An entry that has it stays as it is.
    nonet(&home, &["install", "codex"]);
    assert_eq!(fs::read_to_string(&file).expect("it is there"), now);
    let other = nonet(&home, &["install", "cursor", "--always-allow"]);
    assert!(
        !other.status.success() && text(&other).contains("has no key that allows its tools"),
        "{}",
        text(&other)
    );
    let removed = nonet(&home, &["uninstall", "codex"]);
    assert!(removed.status.success() && !file.exists(), "{}", text(&removed));

    #[cfg(unix)]
    {
        let asked = |typed: &str| {
            let mut install = program(&home);
            install.args(["install", "codex"]).env("NO_COLOR", "1");
            crate::shell::Terminal::answer(&mut install, typed)
        };
        let (code, seen) = asked("n\n");
        assert!(
            code == Some(0) && seen.contains("Let Codex call Nonet's tools without asking? [y/N]"),
            "{seen}"
        );
        assert!(!fs::read_to_string(&file).expect("it was made").contains("approval"));
        let (code, seen) = asked("y\n");
        assert!(code == Some(0), "{seen}");
        assert!(fs::read_to_string(&file).expect("it was made").contains("approval_mode = \"approve\""));
        assert!(!asked("").1.contains("Let Codex"), "it is asked once");
    }
}
