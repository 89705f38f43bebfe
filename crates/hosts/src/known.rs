//! The known hosts: where each keeps its file, and how it writes entries.

use std::{fs::File, io::Read, path::PathBuf};

use serde_json::json;

use super::{FileFormat, Host, Machine, Os, Unit, YamlServers};

/// The defaults, shared by most hosts.
const COMMON: Host = Host {
    name: "",
    title: "",
    aliases: &[],
    reload: "",
    table: "mcpServers",
    format: FileFormat::Json,
    user: |machine| machine.home.clone(),
    project: None,
    blank: "",
    program: "command",
    extra: "{}",
    always_allow: "{}",
    timeout: Unit::Guess,
    bare_variables: false,
    by_hand: None,
};
/// The longest path in LM Studio's pointer file, in bytes.
const LONGEST_PATH: u64 = 4096;

/// Every known host, in listing order.
pub static HOSTS: [Host; 18] = [
    Host {
        name: "claude-desktop",
        title: "Claude Desktop",
        aliases: &["claude", "claude-app"],
        reload: "Quit Claude Desktop and start it again.",
        user: |machine| machine.app_folder().join("Claude").join("claude_desktop_config.json"),
        ..COMMON
    },
    Host {
        name: "claude-code",
        title: "Claude Code",
        aliases: &["claude-cli", "cc"],
        reload: "Start a new session of Claude Code.",
        user: |machine| {
            machine.folder("CLAUDE_CONFIG_DIR").unwrap_or(machine.home.clone()).join(".claude.json")
        },
        project: Some(".mcp.json"),
        extra: r#"{"type": "stdio"}"#,
        timeout: Unit::Milliseconds,
        ..COMMON
    },
    Host {
        name: "cursor",
        title: "Cursor",
        reload: "Restart Cursor, or switch the server on under Settings, MCP.",
        user: |machine| machine.home.join(".cursor").join("mcp.json"),
        project: Some(".cursor/mcp.json"),
        ..COMMON
    },
    Host {
        name: "vscode",
        title: "VS Code",
        aliases: &["vs-code", "code", "visual-studio-code", "copilot"],
        reload: "Run \"MCP: List Servers\" in VS Code and start it.",
        table: "servers",
        user: |machine| machine.app_folder().join("Code").join("User").join("mcp.json"),
        project: Some(".vscode/mcp.json"),
        extra: r#"{"type": "stdio"}"#,
        ..COMMON
    },
    Host {
        name: "zed",
        title: "Zed",
        aliases: &["zed-editor"],
        reload: "Zed reads the file as soon as it is saved.",
        table: "context_servers",
        // Zed uses ~/.config on macOS too.
        user: |machine| match machine.os {
            Os::Windows => machine.app_folder().join("Zed").join("settings.json"),
            Os::Linux => machine.app_folder().join("zed").join("settings.json"),
            Os::MacOs => machine.home.join(".config").join("zed").join("settings.json"),
        },
        project: Some(".zed/settings.json"),
        // Versions before 2026 ignore an entry without this key; later ones ignore the key.
        extra: r#"{"source": "custom"}"#,
        timeout: Unit::SecondsUpTo(600),
        ..COMMON
    },
    Host {
        name: "windsurf",
        title: "Windsurf",
        aliases: &["codeium", "cascade"],
        reload: "Press Refresh in Windsurf's list of MCP servers.",
        user: |machine| machine.home.join(".codeium").join("windsurf").join("mcp_config.json"),
        ..COMMON
    },
    Host {
        name: "codex",
        title: "Codex",
        aliases: &["codex-cli", "openai-codex"],
        reload: "Start a new session of Codex.",
        table: "mcp_servers",
        format: FileFormat::Toml,
        user: |machine| {
            machine.folder("CODEX_HOME").unwrap_or(machine.home.join(".codex")).join("config.toml")
        },
        project: Some(".codex/config.toml"),
        always_allow: r#"{"default_tools_approval_mode": "approve"}"#,
        timeout: Unit::Seconds,
        ..COMMON
    },
    Host {
        name: "gemini-cli",
        title: "Gemini CLI",
        aliases: &["gemini", "gemini-code"],
        reload: "Start Gemini CLI again, or run `/mcp refresh` in it.",
        user: |machine| machine.home.join(".gemini").join("settings.json"),
        project: Some(".gemini/settings.json"),
        always_allow: r#"{"trust": true}"#,
        timeout: Unit::Milliseconds,
        bare_variables: true,
        ..COMMON
    },
    Host {
        name: "cline",
        title: "Cline",
        reload: "Press \"Restart Server\" in Cline's list of MCP servers, or start Cline again.",
        // Older versions of the extension keep the file in VS Code's folder.
        user: |machine| {
            let name = "cline_mcp_settings.json";
            let named = machine.var("CLINE_MCP_SETTINGS_PATH").map(PathBuf::from);
            let own = machine.home.join(".cline").join("data").join("settings").join(name);
            let of_extension = extension(machine, "saoudrizwan.claude-dev").join(name);
            let older = !own.exists() && of_extension.exists();
            named.filter(|file| file.is_absolute()).unwrap_or(if older { of_extension } else { own })
        },
        timeout: Unit::Seconds,
        ..COMMON
    },
    Host {
        name: "roo-code",
        title: "Roo Code",
        aliases: &["roo", "roo-cline"],
        reload: "Roo Code reads the file as soon as it is saved.",
        user: |machine| extension(machine, "rooveterinaryinc.roo-cline").join("mcp_settings.json"),
        project: Some(".roo/mcp.json"),
        timeout: Unit::Seconds,
        ..COMMON
    },
    Host {
        name: "continue",
        title: "Continue",
        aliases: &["continue-dev"],
        reload: "Continue reads the file as soon as it is saved, and uses its servers in agent mode.",
        format: FileFormat::Yaml(YamlServers::Listed),
        user: |machine| machine.home.join(".continue").join("config.yaml"),
        project: Some(".continue/mcpServers/nonet.yaml"),
        // Without these keys, Continue rejects the whole file.
        blank: "name: Local Config\nversion: 1.0.0\nschema: v1\n",
        extra: r#"{"name": "nonet"}"#,
        ..COMMON
    },
    Host {
        name: "goose",
        title: "Goose",
        aliases: &["codename-goose", "block-goose"],
        reload: "Start Goose again.",
        table: "extensions",
        format: FileFormat::Yaml(YamlServers::Named),
        user: |machine| match machine.os {
            Os::Windows => {
                machine.app_folder().join("Block").join("goose").join("config").join("config.yaml")
            }
            _ => machine.dot_config().join("goose").join("config.yaml"),
        },
        program: "cmd",
        extra: r#"{"name": "nonet", "type": "stdio", "enabled": true, "timeout": 300}"#,
        timeout: Unit::Seconds,
        ..COMMON
    },
    Host {
        name: "lm-studio",
        title: "LM Studio",
        aliases: &["lmstudio"],
        reload: "LM Studio reads the file as soon as it is saved.",
        user: |machine| lm_studio(machine).join("mcp.json"),
        ..COMMON
    },
    Host {
        name: "opencode",
        title: "opencode",
        aliases: &["open-code"],
        reload: "Start opencode again.",
        table: "mcp",
        user: |machine| {
            let folder = machine.dot_config().join("opencode");
            let commented = folder.join("opencode.jsonc");
            if commented.exists() { commented } else { folder.join("opencode.json") }
        },
        project: Some("opencode.json"),
        timeout: Unit::Milliseconds,
        by_hand: Some(|launch| {
            let command: Vec<_> = std::iter::once(&launch.command).chain(&launch.args).collect();
            let entry = json!({"nonet": {"type": "local", "command": command}});
            let (two, one) = (json!({"mcp": {"servers": entry}}), json!({"mcp": entry}));
            format!("for version 2: {two}, for version 1: {one}")
        }),
        ..COMMON
    },
    Host {
        name: "copilot-cli",
        title: "GitHub Copilot CLI",
        aliases: &["github-copilot-cli", "gh-copilot"],
        reload: "Start a new session of Copilot CLI.",
        user: |machine| {
            let folder = machine.folder("COPILOT_HOME").unwrap_or(machine.home.join(".copilot"));
            folder.join("mcp-config.json")
        },
        project: Some(".github/mcp.json"),
        extra: r#"{"type": "local", "tools": ["*"]}"#,
        ..COMMON
    },
    Host {
        name: "amazon-q",
        title: "Amazon Q Developer",
        aliases: &["amazonq", "q-developer"],
        reload: "Start a new session of Amazon Q.",
        user: |machine| machine.home.join(".aws").join("amazonq").join("mcp.json"),
        project: Some(".amazonq/mcp.json"),
        timeout: Unit::Milliseconds,
        ..COMMON
    },
    Host {
        name: "warp",
        title: "Warp",
        reload: "Start `nonet` on Warp's page of MCP servers.",
        user: |machine| machine.home.join(".warp").join(".mcp.json"),
        project: Some(".warp/.mcp.json"),
        ..COMMON
    },
    Host {
        name: "kiro",
        title: "Kiro",
        reload: "Kiro reads the file as soon as it is saved.",
        user: |machine| machine.home.join(".kiro").join("settings").join("mcp.json"),
        project: Some(".kiro/settings/mcp.json"),
        ..COMMON
    },
];

/// Returns the settings folder of a VS Code extension.
fn extension(machine: &Machine, id: &str) -> PathBuf {
    machine.app_folder().join("Code").join("User").join("globalStorage").join(id).join("settings")
}

/// Returns LM Studio's folder, which a pointer file in the home folder names if it is not the default.
fn lm_studio(machine: &Machine) -> PathBuf {
    let mut named = String::new();
    let pointer = File::open(machine.home.join(".lmstudio-home-pointer"));
    let read = pointer.and_then(|file| file.take(LONGEST_PATH).read_to_string(&mut named));
    let named = read.ok().map(|_| PathBuf::from(named.trim()));
    named.filter(|folder| folder.is_absolute() && folder.is_dir()).unwrap_or(machine.home.join(".lmstudio"))
}
