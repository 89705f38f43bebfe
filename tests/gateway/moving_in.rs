//! What moves in keeps its clients' rules: `nonet setup` and `nonet import` over the files of every known
//! client.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    hosts::{nonet, program, text},
    setup::fake_server,
};

/// The files of every known client on Linux, by their places in the home folder.
const CLIENTS: [(&str, &str); 18] = [
    (
        ".config/Claude/claude_desktop_config.json",
        include_str!("../../crates/hosts/src/samples/claude_desktop.json"),
    ),
    (".claude.json", include_str!("../../crates/hosts/src/samples/claude_code.json")),
    (".cursor/mcp.json", include_str!("../../crates/hosts/src/samples/cursor.json")),
    (".config/Code/User/mcp.json", include_str!("../../crates/hosts/src/samples/vscode.json")),
    (".config/zed/settings.json", include_str!("../../crates/hosts/src/samples/zed.json")),
    (".codeium/windsurf/mcp_config.json", include_str!("../../crates/hosts/src/samples/windsurf.json")),
    (".codex/config.toml", include_str!("../../crates/hosts/src/samples/codex.toml")),
    (".gemini/settings.json", include_str!("../../crates/hosts/src/samples/gemini.json")),
    (
        ".cline/data/settings/cline_mcp_settings.json",
        include_str!("../../crates/hosts/src/samples/cline.json"),
    ),
    (
        ".config/Code/User/globalStorage/rooveterinaryinc.roo-cline/settings/mcp_settings.json",
        include_str!("../../crates/hosts/src/samples/roo_code.json"),
    ),
    (".continue/config.yaml", include_str!("../../crates/hosts/src/samples/continue.yaml")),
    (".config/goose/config.yaml", include_str!("../../crates/hosts/src/samples/goose.yaml")),
    (".lmstudio/mcp.json", include_str!("../../crates/hosts/src/samples/lm_studio.json")),
    (".config/opencode/opencode.json", include_str!("../../crates/hosts/src/samples/opencode.json")),
    (".copilot/mcp-config.json", include_str!("../../crates/hosts/src/samples/copilot_cli.json")),
    (".aws/amazonq/mcp.json", include_str!("../../crates/hosts/src/samples/amazon_q.json")),
    (".warp/.mcp.json", include_str!("../../crates/hosts/src/samples/warp.json")),
    (".kiro/settings/mcp.json", include_str!("../../crates/hosts/src/samples/kiro.json")),
];
/// The other files in which these clients keep rules.
const RULES: [(&str, &str); 6] = [
    (".claude/settings.json", include_str!("../../crates/hosts/src/samples/claude_code_settings.json")),
    (".cursor/cli-config.json", include_str!("../../crates/hosts/src/samples/cursor_cli.json")),
    (".config/Code/User/settings.json", include_str!("../../crates/hosts/src/samples/vscode_settings.json")),
    (".continue/permissions.yaml", include_str!("../../crates/hosts/src/samples/continue_permissions.yaml")),
    (".config/goose/permission.yaml", include_str!("../../crates/hosts/src/samples/goose_permission.yaml")),
    (".gemini/policies/own.toml", include_str!("../../crates/hosts/src/samples/gemini_policy.toml")),
];

fn write(home: &TempDir, file: &str, text: &str) -> PathBuf {
    let file = home.path().join(file);
    fs::create_dir_all(file.parent().expect("it has one")).expect("a folder");
    fs::write(&file, text).expect("it can be written");
    file
}

/// Runs Nonet without the variables of this shell.
fn run(home: &TempDir, arguments: &[&str]) -> String {
    let mut command = program(home);
    command.env_clear().env("HOME", home.path()).env("NONET_KEYRING", "off").args(arguments);
    text(&command.output().expect("nonet runs")).replace(&home.path().display().to_string(), "~")
}

/// Returns a server with tools of these names, each of which answers.
fn entry(tools: &[&str]) -> Value {
    let tools: Vec<Value> = tools.iter().map(|name| json!({ "name": name })).collect();
    let script = json!({ "tools": tools });
    json!({ "command": fake_server(), "args": ["--script", script.to_string()] })
}

fn servers(file: &Path) -> Vec<String> {
    let now: Value = serde_json::from_slice(&fs::read(file).expect("it is there")).expect("JSON");
    now["mcpServers"].as_object().expect("servers").keys().cloned().collect()
}

#[test]
fn every_rule_of_every_client_is_moved_or_keeps_its_server_there() {
    let home = tempfile::tempdir().expect("a temporary folder");
    for (file, text) in CLIENTS.iter().chain(&RULES) {
        write(&home, file, text);
    }
    let setup = run(&home, &["setup", "--dry-run"]);
    let (told, changes) = setup.split_once("--- /dev/null").expect("servers.toml is new");
    let written: Vec<&str> = changes.lines().filter_map(|line| line.strip_prefix('+')).collect();
    let from = written.iter().position(|line| line.starts_with("# Rules of the clients"));
    let to = written.iter().position(|line| line.starts_with("shared = "));
    let policies = written.get(from.expect("there are rules")..=to.expect("clients share a gateway"));
    let is_told = |line: &&str| line.contains("stays in its file") || line.starts_with("nonet: skipping");
    let stay: Vec<&str> = changes.lines().filter(is_told).collect();
    let opencode = run(&home, &["import", "opencode", "--dry-run"]);
    let (opencode, _) = opencode.split_once("This would be done").expect("it adds servers");
    let (stay, policies) = (stay.join("\n"), policies.unwrap_or_default().join("\n"));
    let golden = format!("{told}\n{stay}\n\n{policies}\n\nimport opencode\n{opencode}");
    insta::assert_snapshot!(golden);
}

#[test]
fn what_a_client_denies_or_asks_about_is_denied_or_asked_about_behind_nonet() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let hub = entry(&["get_issue", "merge_pull_request", "create_issue", "delete_repo", "push"]);
    let claude = json!({ "mcpServers": { "Git Hub": hub, "files": entry(&["read", "write"]) } });
    let claude = write(&home, ".claude.json", &claude.to_string());
    let settings = json!({ "permissions": {
        "allow": ["mcp__Git_Hub__get_issue"],
        "deny": ["mcp__Git_Hub__merge_pull_request", "mcp__files__write(path:/etc/*)"],
        "ask": ["mcp__Git_Hub__create_*"],
    } });
    write(&home, ".claude/settings.json", &settings.to_string());
    let mut same = hub.clone();
    same["disabledTools"] = json!(["push"]);
    let cursor = write(&home, ".cursor/mcp.json", &json!({ "mcpServers": { "Git Hub": same } }).to_string());
    let before = [&claude, &cursor].map(|file| fs::read(file).expect("it is there"));

    let dry = run(&home, &["setup", "--dry-run"]);
    assert!(dry.contains("+[policies.clients-deny]\n") && dry.contains("+shared = true\n"), "{dry}");
    assert!(!home.path().join(".config/nonet").exists());
    let said = text(&nonet(&home, &["setup", "--yes"]));
    let params = "`files` stays in its file: its rule `permissions.deny: mcp__files__write(path:/etc/*)` depends on params, which \
                  a policy cannot.";
    for part in [
        params,
        "`git-hub` has different rules in `claude-code`, `cursor`: the strictest for each tool counts, for every client",
        "Always allowing `execute_tool` in a client (Claude Code, Cursor) allows every tool behind Nonet",
        "Nonet asks you before tools of high risk run",
        "`shared = true`",
    ] {
        assert!(said.contains(part), "{part}\n{said}");
    }
    assert_eq!(servers(&claude), ["files", "nonet"], "{said}");
    assert_eq!(servers(&cursor), ["nonet"], "{said}");
    let toml = home.path().join(".config/nonet/servers.toml");
    let written = fs::read_to_string(&toml).expect("it was made");
    for part in [
        "[policies.clients-deny]\ntools = [\"git-hub.merge_pull_request\", \"git-hub.push\"]\npolicy = \"deny\"\n",
        "[policies.clients-ask]\ntools = [\"git-hub.create_*\"]\npolicy = \"approve\"\n",
        "[policies.careful]\nrisk = \"high\"\npolicy = \"approve\"\n",
        "[gateway]\nshared = true\n",
    ] {
        assert!(written.contains(part), "{part}\n{written}");
    }
    assert!(!written.contains("[servers.files]"), "{written}");

    let code = |tool: &str| {
        let called = nonet(&home, &["call", tool, "{}", "--json"]);
        let answer: Value = serde_json::from_slice(&called.stdout).unwrap_or_else(|_| json!(text(&called)));
        answer["code"].as_str().or(answer["error"]["code"].as_str()).unwrap_or("answered").to_string()
    };
    for (tool, expected) in [
        ("git-hub.get_issue", "answered"),
        ("git-hub.merge_pull_request", "forbidden"),
        ("git-hub.push", "forbidden"),
        ("git-hub.create_issue", "needs_approval"),
        ("git-hub.delete_repo", "needs_approval"),
    ] {
        assert_eq!(code(tool), expected, "{tool}");
    }

    // A second setup changes nothing, and everything can be undone.
    let after = fs::read(&toml).expect("it is there");
    let again = text(&nonet(&home, &["setup", "--yes"]));
    assert!(again.contains("nothing was changed") && again.contains(params), "{again}");
    assert_eq!(fs::read(&toml).expect("it is there"), after);
    for client in ["claude-code", "cursor"] {
        nonet(&home, &["uninstall", client]);
    }
    assert_eq!([&claude, &cursor].map(|file| fs::read(file).expect("it is there")), before, "byte for byte");
}

#[test]
fn no_server_moves_before_its_rules_are_there() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let config = json!({ "mcpServers": { "hub": { "command": "hub" }, "own": { "command": "own" } } });
    let claude = write(&home, ".claude.json", &config.to_string());
    run(&home, &["import", "claude-code"]);
    // The user allows a tool in servers.toml, and later denies tools in the client.
    let toml = home.path().join(".config/nonet/servers.toml");
    let own =
        fs::read_to_string(&toml).expect("it was made") + "\n[servers.own.tools.push]\npolicy = \"allow\"\n";
    fs::write(&toml, &own).expect("it can be written");
    let settings = json!({ "permissions": { "deny": ["mcp__hub__push", "mcp__own__push"] } });
    write(&home, ".claude/settings.json", &settings.to_string());
    let said = run(&home, &["install", "claude-code", "--replace"]);
    for part in [
        "`hub` stays in its file: servers.toml does not have its client's rules yet.",
        "`own` stays in its file: its rule `permissions.deny: mcp__own__push` is stricter than [servers.own.tools.push] of servers.toml.",
        "`nonet import claude-code` adds",
    ] {
        assert!(said.contains(part), "{part}\n{said}");
    }
    assert_eq!(servers(&claude), ["hub", "own", "nonet"]);
    let imported = run(&home, &["import", "claude-code", "--json"]);
    let answer: Value = serde_json::from_str(&imported).expect("JSON");
    let rule = json!([{
        "rule": "permissions.deny: mcp__hub__push",
        "file": "~/.claude/settings.json",
        "became": "`policy = \"deny\"` for hub.push",
    }]);
    assert_eq!(answer["servers"][0]["rules"], rule, "{imported}");
    let rules = "\n[policies.clients-deny]\ntools = [\"hub.push\"]\npolicy = \"deny\"\n";
    let now = fs::read_to_string(&toml).expect("it is there");
    assert!(now.starts_with(&own) && now.ends_with(rules), "{now}");
    let said = run(&home, &["install", "claude-code", "--replace"]);
    assert_eq!(servers(&claude), ["own", "nonet"], "{said}");
}

#[test]
fn an_entry_that_only_its_client_understands_stays_there() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let config = json!({
        "inputs": [{ "id": "key", "type": "promptString" }, { "id": "port", "type": "command", "command": "x" }],
        "servers": {
            "folder": { "command": "a", "args": ["${workspaceFolder}/docs"] },
            "root": { "command": "a", "cwd": "${workspaceRoot}" },
            "port": { "command": "a", "args": ["${input:port}"] },
            "unknown": { "command": "a", "args": ["${input:nothing}"] },
            "setting": { "command": "a", "args": ["${config:some.path}"] },
            "asked": { "command": "a", "env": { "KEY": "${input:key}" } },
        },
    });
    write(&home, ".config/Code/User/mcp.json", &config.to_string());
    let said = run(&home, &["setup", "--dry-run"]);
    for part in [
        "`folder` stays in its file: it uses `${workspaceFolder}`, which is another folder in each project",
        "`root` stays in its file: it uses `${workspaceRoot}`",
        "`port` stays in its file: it uses `${input:port}`, which only the client can find out",
        "`unknown` stays in its file: it uses `${input:nothing}`",
        "`setting` stays in its file: it uses `${config}`, which only the client knows",
        "+[servers.asked]",
    ] {
        assert!(said.contains(part), "{part}\n{said}");
    }
    for name in ["folder", "root", "port", "unknown", "setting"] {
        assert!(!said.contains(&format!("+[servers.{name}]")), "{name}\n{said}");
    }
    // In a project's own file, the folder is known.
    let project = json!({ "servers": { "docs": { "command": "a", "args": ["${workspaceFolder}/docs"] } } });
    write(&home, ".vscode/mcp.json", &project.to_string());
    let said = run(&home, &["import", "vscode", "--dry-run"]);
    assert!(said.contains("its project folder is ~, in every client"), "{said}");
}

#[cfg(target_os = "linux")]
#[test]
fn whoever_does_not_want_to_be_asked_about_high_risk_says_so() {
    let set_up = |answer: &str| {
        let home = tempfile::tempdir().expect("a temporary folder");
        write(&home, ".cursor/mcp.json", &json!({ "mcpServers": { "hub": entry(&["get"]) } }).to_string());
        let answers = [
            ("Write these servers", "y"),
            ("Ask you before tools of high risk run", answer),
            ("Replace 1 server of Cursor", "y"),
        ];
        let mut nonet = program(&home);
        let said = crate::doctor::in_terminal(nonet.arg("setup"), &answers);
        let toml = home.path().join(".config/nonet/servers.toml");
        (fs::read_to_string(toml).expect("it was made"), said)
    };
    let (asks, said) = set_up("");
    assert!(asks.contains("[policies.careful]\nrisk = \"high\"\npolicy = \"approve\"\n"), "{asks}\n{said}");
    // A single client shares with nobody.
    assert!(!asks.contains("shared"), "{asks}");
    let (never, said) = set_up("n");
    assert!(never.contains("[servers.hub]") && !never.contains("policies"), "{never}\n{said}");
}
