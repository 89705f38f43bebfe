//! From a client's configuration to Nonet and back: `nonet import`, `install`, `uninstall`.

use std::{fs, path::PathBuf, process::Output};

use serde_json::{Value, json};
use tempfile::TempDir;

/// A home with Claude Desktop's configuration: twelve servers of all kinds.
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

fn nonet(home: &TempDir, arguments: &[&str]) -> Output {
    std::process::Command::new(env!("CARGO_BIN_EXE_nonet"))
        .args(arguments)
        .current_dir(home.path())
        .env("HOME", home.path())
        .env("NONET_KEYRING", "off")
        .env_remove("XDG_CONFIG_HOME")
        .env_remove("NONET_CONFIG")
        .output()
        .expect("nonet runs")
}

fn text(output: &Output) -> String {
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
    // Once more changes nothing.
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

    let removed = nonet(&home, &["uninstall", "claude-desktop"]);
    assert!(removed.status.success(), "{}", text(&removed));
    assert_eq!(fs::read(&file).expect("it is there"), before, "byte for byte");
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
