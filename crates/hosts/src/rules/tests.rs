//! Rules of clients, and what they become.

use std::{collections::BTreeMap, fs, time::SystemTime};

use serde_json::json;
use tempfile::TempDir;

use super::{
    super::{Machine, Os, find},
    *,
};

fn names(text: &str) -> ToolNames {
    ToolNames::wild(text).unwrap()
}

#[test]
fn patterns_are_compared_as_sets_of_names() {
    let check = |a: &str, b: &str, covers: bool, overlaps: bool| {
        assert_eq!(names(a).covers(&names(b)), covers, "{a} covers {b}");
        assert_eq!(names(a).overlaps(&names(b)), overlaps, "{a} overlaps {b}");
        assert_eq!(names(b).overlaps(&names(a)), overlaps, "{b} overlaps {a}");
    };
    check("*", "a*b?", true, true);
    check("a*", "ab*c", true, true);
    check("a*c", "a*", false, true);
    check("get_*", "*_issue", false, true);
    check("get_*", "set_*", false, false);
    check("a?", "ab", true, true);
    check("ab", "a?", false, true);
    check("a", "a*", false, true);
    check("", "a", false, false);
    check("**", "", true, true);
}

#[test]
fn a_prefix_is_taken_from_a_pattern() {
    let check = |pattern: &str, prefix: &str, expected: &[&str]| {
        let rests: Vec<String> = names(pattern).after(prefix).iter().map(ToString::to_string).collect();
        assert_eq!(rests, expected, "{pattern} after {prefix}");
    };
    check("gh_get", "gh_", &["get"]);
    check("gh_*", "gh_", &["*"]);
    check("gh*", "gh_", &["*"]);
    check("*", "gh_", &["*"]);
    check("g?_a[b]", "gh_", &["a\\[b\\]"]);
    check("*_delete", "gh_", &["*_delete", "delete"]);
    check("gh", "gh_", &[]);
    check("gl_get", "gh_", &[]);
}

/// Returns the rules of a client for a server, or why the server stays.
fn told(client: &str, root: Value, others: &[(&str, &str)], server: &str) -> String {
    let folder = TempDir::new().unwrap();
    let home = folder.path().to_path_buf();
    let current = home.join("project");
    for (file, text) in others {
        let file = home.join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
    let machine = Machine { os: Os::Linux, home, current, env: BTreeMap::new(), now: SystemTime::UNIX_EPOCH };
    let host = find(client).unwrap();
    let file = host.file(crate::FileScope::User, &machine).unwrap();
    let rules = of_client(host, &root, &file, true, &machine);
    let off = rules.switches_off(server).map(|rule| format!("off by {rule}; ")).unwrap_or_default();
    let told = match rules.of_server(server) {
        Err(why) => format!("stays: {}", why.replace(&folder.path().display().to_string(), "~")),
        Ok(mapped) => {
            let rules = mapped.rules.iter().map(|rule| {
                let tools: Vec<String> = rule.tools.iter().map(ToString::to_string).collect();
                format!("{:?} {}", rule.effect, tools.join(" "))
            });
            rules.chain(mapped.notes.iter().cloned()).collect::<Vec<_>>().join("; ")
        }
    };
    off + &told
}

#[test]
fn rules_of_claude_code_become_ours() {
    let check = |key: &str, rule: &str, server: &str, expected: &str| {
        let settings = json!({ "permissions": { key: [rule] } }).to_string();
        for file in [".claude/settings.json", ".claude/settings.local.json", "project/.claude/settings.json"]
        {
            assert_eq!(
                told("claude-code", json!({}), &[(file, &settings)], server),
                expected,
                "{rule} in {file}"
            );
        }
    };
    check("deny", "mcp__github__merge_pull_request", "github", "Deny merge_pull_request");
    check("ask", "mcp__github__merge_pull_request", "github", "Ask merge_pull_request");
    check("allow", "mcp__github__merge_pull_request", "github", "");
    check("deny", "mcp__github", "github", "Deny *");
    check("deny", "mcp__github__*", "github", "Deny *");
    check("ask", "mcp__*", "github", "Ask *");
    check("ask", "*", "github", "Ask *");
    check("deny", "mcp__github__get_*", "github", "Deny get_*");
    check("deny", "mcp__github__get_issue(*)", "github", "Deny get_issue");
    check("deny", "mcp__brave_search__find", "brave search", "Deny find");
    check("deny", "mcp__gitlab__merge", "github", "");
    check("deny", "mcp__github2__merge", "github", "");
    check("deny", "Bash(rm *)", "github", "");
    let params = "stays: its rule `permissions.deny: mcp__github__push(branch:main)` depends on params, which a policy cannot";
    check("deny", "mcp__github__push(branch:main)", "github", params);
    check("deny", "mcp__github__push(branch:main)", "gitlab", "");
}

#[test]
fn what_holds_in_a_part_of_claude_code_keeps_the_server_there() {
    let check = |root: Value, file: &str, settings: Value, server: &str, expected: &str| {
        let told = told("claude-code", root, &[(file, &settings.to_string())], server);
        assert_eq!(told, expected, "{settings}");
    };
    let settings = ".claude/settings.json";
    let hook = |matcher: &str| json!({ "hooks": { "PreToolUse": [{ "matcher": matcher, "hooks": [] }] } });
    let why = "stays: its rule `hooks.PreToolUse: mcp__github__push*` is a hook, which a policy cannot be";
    check(json!({}), settings, hook("Bash|mcp__github__push.*"), "github", why);
    check(json!({}), settings, hook("Bash|mcp__github__push.*"), "git", "");
    // These hooks get Nonet's calls too.
    check(json!({}), settings, hook("mcp__.*"), "github", "");
    check(json!({}), settings, hook("*"), "github", "");
    let several = "stays: the client has rules that Nonet cannot read: ~/.claude/settings.json: the hook for `mcp__(github`";
    check(json!({}), settings, hook("mcp__(github|gitlab)__.*"), "github", several);

    let denied = json!({ "permissions": { "deny": ["mcp__github__push"] } });
    let other = json!({ "projects": { "/tmp/no/such/project": { "disabledMcpServers": ["github"] } } });
    let why = "stays: its rule `disabledMcpServers: mcp__github` is for the project /tmp/no/such/project only, which a policy cannot be";
    check(other.clone(), settings, json!({}), "github", why);
    check(other, settings, denied, "gitlab", "");
    let not = json!({ "deniedMcpServers": [{ "serverName": "github" }] });
    check(json!({}), settings, not, "github", "off by deniedMcpServers: github; ");
    let broken = told("claude-code", json!({}), &[(settings, "{ \"permissions\": ")], "github");
    assert!(
        broken.starts_with("stays: the client's rules cannot be read: ~/.claude/settings.json: "),
        "{broken}"
    );
    let odd = json!({ "permissions": { "deny": "mcp__github" } });
    let why = "stays: the client has rules that Nonet cannot read: ~/.claude/settings.json: `permissions.deny` is not a list";
    check(json!({}), settings, odd, "github", why);
}

#[test]
fn rules_of_opencode_become_ours() {
    let check = |root: Value, expected: &str| {
        assert_eq!(told("opencode", root.clone(), &[], "gh"), expected, "{root}");
    };
    check(json!({ "tools": { "gh_*": false } }), "Hide *");
    check(json!({ "tools": { "gh_push": false, "git_push": false, "bash": false } }), "Hide push");
    check(
        json!({ "permission": { "gh_push": "deny", "gh_get_*": "ask", "edit": "ask" } }),
        "Deny push; Ask get_*",
    );
    check(json!({ "permission": "ask" }), "Ask *");
    check(json!({ "permission": { "*": "ask", "gh_*": "allow" } }), "");
    // The last rule that matches counts.
    check(
        json!({ "permission": { "gh_*": "deny", "gh_get_*": "allow", "gh_put": "ask" } }),
        "Only get_* put; Ask put",
    );
    check(
        json!({ "tools": { "gh_*": false, "gh_get": true }, "permission": { "gh_get": "ask" } }),
        "Only get; Ask get",
    );
    check(
        json!({ "permission": { "gh_*": "ask", "gh_get_*": "allow" } }),
        "Ask *; `permission: gh_get_*` is not carried over: Nonet asks for all of `permission: gh_*`",
    );
    check(
        json!({ "permission": { "gh_get_*": "deny", "gh_get_one": "allow" } }),
        "stays: `permission: gh_get_one` is an exception to its rule `permission: gh_get_*`, which a policy cannot have",
    );
    check(json!({ "permission": { "gh_get": { "*": "deny" } } }), "Deny get");
    check(
        json!({ "permission": { "gh_get": { "secret*": "deny", "*": "allow" } } }),
        "stays: its rule `permission: gh_get` depends on params, which a policy cannot",
    );
    check(
        json!({ "agent": { "plan": { "tools": { "gh_push": false } } } }),
        "stays: its rule `agent.plan.tools: gh_push` is for the agent `plan` only, which a policy cannot be",
    );
    // Nonet's tools have such a rule too.
    check(json!({ "agent": { "plan": { "permission": { "*": "deny" } } } }), "");
    let of_project = [("project/opencode.json", r#"{ "permission": { "gh_push": "deny" } }"#)];
    assert_eq!(told("opencode", json!({}), &of_project, "gh"), "Deny push");
}

#[test]
fn rules_of_other_clients_become_ours() {
    let check = |client: &str, root: Value, others: &[(&str, &str)], expected: &str| {
        assert_eq!(told(client, root.clone(), others, "my server"), expected, "{client} {root} {others:?}");
    };
    let denied = r#"{ "permissions": { "deny": ["Mcp(my server:push*)", "Mcp(other:x)", "Shell(rm)"] } }"#;
    check("cursor", json!({}), &[(".cursor/cli-config.json", denied)], "Deny push*");
    let asked =
        r#"{ "chat.tools.eligibleForAutoApproval": { "my server/push": false, "my server/get": true } }"#;
    check("vscode", json!({}), &[(".config/Code/User/settings.json", asked)], "Ask push");

    let zed = |permissions: Value| json!({ "agent": { "tool_permissions": permissions } });
    check(
        "zed",
        zed(json!({ "tools": { "mcp:my server:push": { "default": "confirm" } } })),
        &[],
        "Ask push",
    );
    check("zed", zed(json!({ "default": "deny" })), &[], "Deny *");
    check(
        "zed",
        zed(json!({ "tools": { "mcp:my server:push": { "always_confirm": [{ "pattern": "x" }] } } })),
        &[],
        "stays: its rule `agent.tool_permissions.tools: mcp:my server:push` depends on params, which a policy cannot",
    );
    let profile = json!({ "agent": { "profiles": { "ask": { "context_servers": { "my server": { "tools": { "push": false } } } } } } });
    check(
        "zed",
        profile,
        &[],
        "stays: its rule `agent.profiles.ask: mcp:my server:push` is for the profile `ask` only, which a policy cannot be",
    );

    let exclude = |name: &str| json!({ "tools": { "exclude": [name] } });
    check("gemini-cli", exclude("mcp_my_server_push"), &[], "Deny push");
    check("gemini-cli", exclude("my_server__push"), &[], "Deny push");
    check("gemini-cli", exclude("push"), &[], "Deny push");
    check("gemini-cli", exclude("run_shell_command(rm)"), &[], "");
    check(
        "gemini-cli",
        json!({ "mcp": { "excluded": ["my server"] } }),
        &[],
        "off by mcp.excluded: my server; ",
    );
    let policy = "[[rule]]\nmcpName = 'my server'\ntoolName = 'push'\ndecision = 'deny'\npriority = 1\n";
    check("gemini-cli", json!({}), &[(".gemini/policies/a.toml", policy)], "Deny push");
    let overruled = format!("{policy}[[rule]]\nmcpName = 'my server'\ndecision = 'allow'\npriority = 2\n");
    check("gemini-cli", json!({}), &[(".gemini/policies/a.toml", &overruled)], "");

    let goose = "user:\n  ask_before: [myserver__push]\n  never_allow: ['my server__drop']\n";
    check("goose", json!({}), &[(".config/goose/permission.yaml", goose)], "Ask push; Deny drop");
    let cn = "ask: [push]\nexclude: [Bash, 'drop_*']\n";
    check("continue", json!({}), &[(".continue/permissions.yaml", cn)], "Ask push; Deny drop_*");
    check("windsurf", json!({}), &[], "");
}
