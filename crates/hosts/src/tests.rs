//! End-to-end tests of the room, on the files of every host and for every operating system.

mod import;
mod install;
mod keyring;
mod secrets_file;

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use insta::assert_snapshot;
use serde_json::json;
use tempfile::TempDir;

use super::{
    imported::{ImportOutcome, ImportRow},
    *,
};

const CLAUDE_DESKTOP: &str = include_str!("samples/claude_desktop.json");
const SYSTEMS: [Os; 3] = [Os::Linux, Os::MacOs, Os::Windows];

/// Returns a sample file of a host.
fn sample(host: &str) -> &'static str {
    match host {
        "claude-desktop" => CLAUDE_DESKTOP,
        "claude-code" => include_str!("samples/claude_code.json"),
        "cursor" => include_str!("samples/cursor.json"),
        "vscode" => include_str!("samples/vscode.json"),
        "zed" => include_str!("samples/zed.json"),
        "windsurf" => include_str!("samples/windsurf.json"),
        "codex" => include_str!("samples/codex.toml"),
        "gemini-cli" => include_str!("samples/gemini.json"),
        "cline" => include_str!("samples/cline.json"),
        "roo-code" => include_str!("samples/roo_code.json"),
        "continue" => include_str!("samples/continue.yaml"),
        "goose" => include_str!("samples/goose.yaml"),
        "lm-studio" => include_str!("samples/lm_studio.json"),
        "opencode" => include_str!("samples/opencode.json"),
        "copilot-cli" => include_str!("samples/copilot_cli.json"),
        "amazon-q" => include_str!("samples/amazon_q.json"),
        "warp" => include_str!("samples/warp.json"),
        "kiro" => include_str!("samples/kiro.json"),
        other => panic!("no sample for {other}"),
    }
}

/// Returns the hosts whose files are edited.
fn edited_hosts() -> impl Iterator<Item = &'static Host> {
    HOSTS.iter().filter(|host| host.by_hand.is_none())
}

fn is_yaml(host: &Host) -> bool {
    matches!(host.format, FileFormat::Yaml(_))
}

/// A machine in a folder of its own.
struct World {
    folder: TempDir,
    machine: Machine,
}

impl World {
    fn new(os: Os) -> Self {
        let folder = TempDir::new().unwrap();
        let root = fs::canonicalize(folder.path()).unwrap();
        let machine = Machine {
            os,
            home: root.join("home"),
            current: root.join("project"),
            env: BTreeMap::new(),
            now: SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_280_400),
        };
        fs::create_dir_all(&machine.home).unwrap();
        fs::create_dir_all(&machine.current).unwrap();
        Self { folder, machine }
    }

    fn with(mut self, variable: &str, value: &str) -> Self {
        self.machine.env.insert(variable.into(), value.into());
        self
    }

    fn write(&self, file: &Path, text: &str) {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    fn host_file(&self, host: &str, text: &str) -> std::path::PathBuf {
        let file = find(host).unwrap().file(FileScope::User, &self.machine).unwrap();
        self.write(&file, text);
        file
    }

    fn servers_toml(&self) -> std::path::PathBuf {
        self.machine.current.join("servers.toml")
    }

    fn import(&self, text: &str, replace: bool) -> ImportPlan {
        self.try_import(text, ImportOptions { replace, ..ImportOptions::default() }).unwrap()
    }

    fn try_import(&self, text: &str, manner: ImportOptions) -> Result<ImportPlan, HostFault> {
        let file = self.machine.current.join("some.json");
        self.write(&file, text);
        import(ImportSource::File(&file), &self.servers_toml(), manner, &self.machine)
    }

    fn import_host(&self, host: &str) -> ImportPlan {
        import(
            ImportSource::Host(find(host).unwrap()),
            &self.servers_toml(),
            ImportOptions::default(),
            &self.machine,
        )
        .unwrap()
    }

    /// Removes the folder's name from a text.
    fn plain(&self, text: &str) -> String {
        let root = fs::canonicalize(self.folder.path()).unwrap();
        text.replace(&root.display().to_string(), "")
    }

    /// Renders everything an import reports, for a golden file.
    fn told(&self, imported: &ImportPlan) -> String {
        let rows = serde_json::to_string_pretty(&imported.rows).unwrap();
        let variables = serde_json::to_string_pretty(&imported.variables).unwrap();
        let text = String::from_utf8_lossy(imported.change.after.as_deref().unwrap_or_default()).into_owned();
        let notes = imported.notes.join("\n");
        self.plain(&format!("{rows}\n\n{variables}\n\n{notes}\n\n{text}"))
    }
}

fn launch() -> LaunchCommand {
    let args = vec!["--config".into(), r"C:\Users\me\servers.toml".into()];
    LaunchCommand { command: "/opt/nonet/bin/nonet".into(), args }
}

fn done(imported: &ImportPlan) -> String {
    let row = |row: &ImportRow| match &row.done {
        ImportOutcome::Skipped { .. } => format!("{} skipped", row.name),
        done => {
            let done = serde_json::to_value(done).unwrap();
            let word = |key: &str| done[key].as_str().unwrap_or("itself").to_string();
            format!("{} {} {}", row.name, word("done"), word("server"))
        }
    };
    imported.rows.iter().map(row).collect::<Vec<_>>().join(", ")
}

fn config(servers: serde_json::Value) -> String {
    json!({ "mcpServers": servers }).to_string()
}

#[test]
fn hosts_are_found_by_what_people_type() {
    for (typed, name) in [
        ("cursor", "cursor"),
        ("Claude Desktop", "claude-desktop"),
        ("claude_code", "claude-code"),
        ("VS-Code", "vscode"),
        ("code", "vscode"),
        ("gemini", "gemini-cli"),
        ("LM Studio", "lm-studio"),
        ("roo", "roo-code"),
    ] {
        assert_eq!(find(typed).unwrap().name, name);
    }
    let fault = find("windsruf").unwrap_err().to_string();
    assert!(
        fault.starts_with(
            "unknown client `windsruf`. Did you mean `windsurf`? Known clients: claude-desktop, "
        )
    );
}

#[test]
fn files_are_where_each_system_has_them() {
    let mut places = Vec::new();
    for os in SYSTEMS {
        let env = BTreeMap::from([("appdata".to_string(), "/home/me/Roaming".to_string())]);
        let (home, current) = ("/home/me".into(), "/work".into());
        let machine = Machine { os, home, current, env, now: SystemTime::UNIX_EPOCH };
        for host in &HOSTS {
            let file =
                |scope| host.file(scope, &machine).map_or("-".into(), |file| file.display().to_string());
            places.push(format!(
                "{os:?} {}: {}, {}",
                host.name,
                file(FileScope::User),
                file(FileScope::Project)
            ));
        }
    }
    assert_snapshot!(places.join("\n"));
    let world = World::new(Os::Linux).with("XDG_CONFIG_HOME", "/conf").with("CODEX_HOME", "/cx");
    let file =
        |host: &str| find(host).unwrap().file(FileScope::User, &world.machine).unwrap().display().to_string();
    assert_eq!(file("vscode"), "/conf/Code/User/mcp.json");
    assert_eq!(file("codex"), "/cx/config.toml");
    assert_eq!(file("goose"), "/conf/goose/config.yaml");
}

#[test]
fn files_that_moved_are_found_where_they_are() {
    let world = World::new(Os::Linux);
    let file = |host: &str| find(host).unwrap().file(FileScope::User, &world.machine).unwrap();
    let home = &world.machine.home;
    assert_eq!(file("cline"), home.join(".cline/data/settings/cline_mcp_settings.json"));
    let older = "Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json";
    let older = home.join(".config").join(older);
    world.write(&older, "{}");
    assert_eq!(file("cline"), older);
    world.write(&home.join(".cline/data/settings/cline_mcp_settings.json"), "{}");
    assert_eq!(file("cline"), home.join(".cline/data/settings/cline_mcp_settings.json"));
    assert_eq!(file("lm-studio"), home.join(".lmstudio/mcp.json"));
    let elsewhere = home.join(".cache/lm-studio");
    world.write(&home.join(".lmstudio-home-pointer"), &format!("{}\n", elsewhere.display()));
    assert_eq!(file("lm-studio"), home.join(".lmstudio/mcp.json"));
    fs::create_dir_all(&elsewhere).unwrap();
    assert_eq!(file("lm-studio"), elsewhere.join("mcp.json"));
    assert_eq!(file("opencode"), home.join(".config/opencode/opencode.json"));
    world.write(&home.join(".config/opencode/opencode.jsonc"), "{}");
    assert_eq!(file("opencode"), home.join(".config/opencode/opencode.jsonc"));
}
