//! Entries as hosts write them, and their results.

use std::{collections::BTreeMap, time::SystemTime};

use serde_json::json;

use super::*;
use crate::{find, parts::as_plain, rules};

#[test]
fn nonet_is_known_by_what_starts_it() {
    let check = |entry: Value, expected: bool| {
        let machine = crate::Machine {
            os: Os::Linux,
            home: "/home/me".into(),
            current: "/work".into(),
            env: BTreeMap::new(),
            now: SystemTime::UNIX_EPOCH,
        };
        let context =
            Context { machine: &machine, host: None, file: Path::new("f"), folder: None, root: &Value::Null };
        assert_eq!(matches!(read(&entry, &context), HostEntry::Nonet), expected, "{entry}");
    };
    check(json!({"command": "/opt/nonet/nonet.exe"}), true);
    check(json!({"command": "npx", "args": ["-y", "nonet", "--config", "x"]}), true);
    check(json!({"command": "/usr/bin/uvx", "args": ["nonet@0.1.0"]}), true);
    check(json!({"command": "cmd", "args": ["/c", "npx", "-y", "nonet"]}), true);
    check(json!({"cmd": "pnpm", "args": ["dlx", "nonet"]}), true);
    check(json!({"command": ["uvx", "nonet"], "type": "local"}), true);
    check(json!({"command": "npx", "args": ["-y", "server-memory", "nonet"]}), false);
    check(json!({"command": "node", "args": ["nonet"]}), false);
}

fn brief(server: &HostServer) -> String {
    let plain = |texts: &EntryText| match texts {
        EntryText::One(parts) => as_plain(parts).unwrap_or("?").to_string(),
        EntryText::List(texts) => texts.len().to_string(),
        EntryText::Named(_) => String::new(),
    };
    let shown = |key: &str| server.connected_by(key).map(plain);
    match (shown("command"), shown("url")) {
        (Some(command), _) => format!("{command} {}", shown("args").unwrap_or_default()),
        (None, Some(url)) => {
            format!("{url}{}", shown("transport").map_or(String::new(), |it| format!(" {it}")))
        }
        (None, None) => "not of a host".into(),
    }
}

fn check(host: Option<&str>, entry: Value, expected: &str) {
    let machine = Machine {
        os: Os::Linux,
        home: "/home/me".into(),
        current: "/work".into(),
        env: BTreeMap::new(),
        now: SystemTime::UNIX_EPOCH,
    };
    let host = host.map(|name| find(name).unwrap());
    let context = Context { machine: &machine, host, file: Path::new("f"), folder: None, root: &Value::Null };
    let shown = match read(&entry, &context) {
        HostEntry::Nonet => "nonet".into(),
        HostEntry::Left(why) => format!("left: {why}"),
        HostEntry::Server(server, notes) => {
            let off = if server.enabled { "" } else { ", off" };
            let time = |time: Option<Duration>| time.map(|time| format!(", {time:?}")).unwrap_or_default();
            let texts = |tools: Vec<ToolNames>| tools.iter().map(ToString::to_string).collect::<Vec<_>>();
            let allowed = rules::shown_tools(&server.rules).map(texts);
            let allowed = allowed.map(|tools| format!(", only {tools:?}")).unwrap_or_default();
            let blocked = texts(rules::hidden_tools(&server.rules).cloned().collect());
            let blocked = if blocked.is_empty() { String::new() } else { format!(", not {blocked:?}") };
            let times = time(server.timeout) + &time(server.start_timeout);
            let notes: String = notes.iter().map(|note| format!("; {note}")).collect();
            format!("{}{off}{times}{allowed}{blocked}{notes}", brief(&server))
        }
    };
    assert!(shown.starts_with(expected), "{entry}: {shown}");
}

#[test]
fn entries_of_every_host_are_read() {
    check(None, json!({"command": "npx", "args": ["-y", "x"]}), "npx 2");
    check(None, json!({"type": "stdio", "command": "uvx", "args": ["x", 5]}), "uvx 2");
    check(None, json!({"command": {"path": "/bin/x", "args": ["a"], "env": {}}, "settings": {}}), "/bin/x 1");
    check(None, json!({"type": "http", "url": "https://h/mcp"}), "https://h/mcp");
    check(None, json!({"type": "streamableHttp", "url": "https://h/sse"}), "https://h/sse");
    check(None, json!({"type": "sse", "url": "https://h/x"}), "https://h/x sse");
    check(None, json!({"url": "https://h/v1/sse/"}), "https://h/v1/sse/");
    check(None, json!({"serverUrl": "https://h/mcp"}), "https://h/mcp");
    check(None, json!({"url": "https://h/sse", "httpUrl": "https://h/mcp"}), "https://h/mcp");
    check(None, json!({"command": "x", "disabled": true}), "x 0, off");
    check(None, json!({"command": "x", "enabled": false, "disabledTools": ["a"]}), "x 0, off, not [\"a\"]");
    check(
        Some("gemini-cli"),
        json!({"command": "x", "includeTools": ["a"], "excludeTools": ["b"], "timeout": 5000}),
        "x 0, 5s, only [\"a\"], not [\"b\"]",
    );
    check(
        Some("codex"),
        json!({"command": "x", "startup_timeout_sec": 20, "tool_timeout_sec": 90.5, "enabled_tools": []}),
        "x 0, 90.5s, 20s, only []",
    );
    check(Some("codex"), json!({"command": "x", "startup_timeout_ms": 1500}), "x 0, 1.5s");
    check(Some("zed"), json!({"command": "x", "timeout": 90}), "x 0, 90s");
    check(Some("claude-code"), json!({"command": "x", "timeout": 600}), "x 0, 600ms");
    check(None, json!({"command": "x", "timeout": 60}), "x 0, 60s");
    check(None, json!({"command": "x", "timeout": -1}), "x 0; its timeout was left out");
    check(None, json!({"command": "x", "tools": ["*"]}), "x 0");
    check(None, json!({"command": "x", "tools": ["a"]}), "x 0, only [\"a\"]");
}

#[test]
fn what_cannot_be_carried_over_is_told() {
    check(None, json!({"type": "sse"}), "left: the entry has neither");
    check(
        None,
        json!({"type": "ws", "url": "ws://h"}),
        "left: servers.toml does not support the transport `ws`",
    );
    check(
        None,
        json!({"url": "unix:///run/x.sock"}),
        "left: its address is not an http:// or https:// address (unix://...)",
    );
    check(None, json!({"url": "https://"}), "left: its address is not a valid address");
    check(None, json!({"url": "https://h/a b"}), "left: its address is not a valid address");
    check(None, json!({"url": "https://h:${PORT}/mcp"}), "?");
    check(None, json!({}), "left: the entry has neither");
    check(None, json!({"command": ""}), "left: the entry has neither");
    check(None, json!("npx"), "left: the entry is not an object");
    check(None, json!({"command": "x", "args": "a b"}), "x 0; `args` was left out");
    check(None, json!({"command": "x", "env": {"a-b": null}}), "x 0; the variable `a-b` was left out");
    check(None, json!({"type": "http", "command": "x"}), "x 0");
    check(None, json!({"source": "extension", "settings": {}}), "left: an extension");
    check(
        None,
        json!({"command": "x", "autoApprove": ["a"], "weird": 1}),
        "x 0; `autoApprove` left out: the client decides which tools need no approval; in servers.toml `policy` decides; `weird` left out",
    );
    check(
        None,
        json!({"url": "https://h", "headers": {"Content-Type": "x", "a b": "c", "ok": "é"}}),
        "https://h; the header `Content-Type` was left out: it is a header set by Nonet itself; the header `a b` was left out: it is not a valid",
    );
    for nonet in ["nonet", "/usr/bin/nonet", "C:\\bin\\Nonet.exe", "${HOME}/nonet"] {
        check(None, json!({"command": nonet}), "nonet");
    }
    check(None, json!({"command": "nonet-helper"}), "nonet-helper 0");
}
