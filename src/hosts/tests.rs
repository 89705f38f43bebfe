//! Whole roads through the room, on the files of every host and as every operating system.

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use insta::{assert_json_snapshot, assert_snapshot};
use serde_json::json;
use tempfile::TempDir;

use super::*;

const CLAUDE_DESKTOP: &str = include_str!("samples/claude_desktop.json");
const SYSTEMS: [Os; 3] = [Os::Linux, Os::MacOs, Os::Windows];

/// A file as each host has it.
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
        other => panic!("no sample for {other}"),
    }
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
        let file = find(host).unwrap().file(Scope::User, &self.machine).unwrap();
        self.write(&file, text);
        file
    }

    fn servers_toml(&self) -> std::path::PathBuf {
        self.machine.current.join("servers.toml")
    }

    fn import(&self, text: &str, replace: bool) -> Imported {
        self.try_import(text, Manner { replace, keyring: None }).unwrap()
    }

    fn try_import(&self, text: &str, manner: Manner) -> Result<Imported, Fault> {
        let file = self.machine.current.join("some.json");
        self.write(&file, text);
        import(Source::File(&file), &self.servers_toml(), manner, &self.machine)
    }

    fn import_host(&self, host: &str) -> Imported {
        import(Source::Host(find(host).unwrap()), &self.servers_toml(), Manner::default(), &self.machine)
            .unwrap()
    }

    /// A text without the name of the folder.
    fn plain(&self, text: &str) -> String {
        let root = fs::canonicalize(self.folder.path()).unwrap();
        text.replace(&root.display().to_string(), "")
    }

    /// All that an import says, for a golden file.
    fn told(&self, imported: &Imported) -> String {
        let rows = serde_json::to_string_pretty(&imported.rows).unwrap();
        let variables = serde_json::to_string_pretty(&imported.variables).unwrap();
        let text = String::from_utf8_lossy(imported.change.after.as_deref().unwrap_or_default()).into_owned();
        let notes = imported.notes.join("\n");
        self.plain(&format!("{rows}\n\n{variables}\n\n{notes}\n\n{text}"))
    }
}

fn launch() -> Launch {
    let args = vec!["--config".into(), r"C:\Users\me\servers.toml".into()];
    Launch { command: "/opt/nonet/bin/nonet".into(), args }
}

fn done(imported: &Imported) -> String {
    let row = |row: &Row| match &row.done {
        Done::Skipped { .. } => format!("{} skipped", row.name),
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
    ] {
        assert_eq!(find(typed).unwrap().name, name);
    }
    let fault = find("windsruf").unwrap_err().to_string();
    assert!(
        fault
            .starts_with("no host is called `windsruf`. Did you mean `windsurf`? Known are claude-desktop, ")
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
            places.push(format!("{os:?} {}: {}, {}", host.name, file(Scope::User), file(Scope::Project)));
        }
    }
    assert_snapshot!(places.join("\n"));
    let world = World::new(Os::Linux).with("XDG_CONFIG_HOME", "/conf").with("CODEX_HOME", "/cx");
    let file =
        |host: &str| find(host).unwrap().file(Scope::User, &world.machine).unwrap().display().to_string();
    assert_eq!(file("vscode"), "/conf/Code/User/mcp.json");
    assert_eq!(file("codex"), "/cx/config.toml");
}

#[test]
fn a_file_of_claude_desktop_is_imported() {
    let world = World::new(Os::MacOs);
    world.host_file("claude-desktop", CLAUDE_DESKTOP);
    let imported = world.import_host("claude-desktop");
    let told = world.told(&imported);
    assert_snapshot!(told);
    for secret in
        ["ghp_", "ntn_", "xoxb-", "hunter2", "docs-secret-value", "0a1b2c3d4e5f", "YOUR_API_KEY_HERE"]
    {
        assert!(!told.contains(secret), "{secret}");
        assert!(!imported.change.diff().contains(secret), "{secret}");
    }
}

#[test]
fn files_of_every_other_host_are_imported() {
    for host in HOSTS.iter().map(|host| host.name).filter(|host| *host != "claude-desktop") {
        let world = World::new(Os::Linux).with("LINEAR_API_KEY", "x");
        world.host_file(host, sample(host));
        assert_snapshot!(host, world.told(&world.import_host(host)));
    }
    let world = World::new(Os::Windows);
    let file = world.machine.current.join("hub.json");
    world.write(&file, include_str!("samples/mcp_hub.json"));
    let imported =
        import(Source::File(&file), &world.servers_toml(), Manner::default(), &world.machine).unwrap();
    assert_snapshot!("mcp-hub", world.told(&imported));
}

#[test]
fn a_second_import_finds_everything_there() {
    for host in &HOSTS {
        let world = World::new(Os::Linux);
        world.host_file(host.name, sample(host.name));
        let first = world.import_host(host.name);
        first.change.apply().unwrap();
        let again = world.import_host(host.name);
        assert!(again.change.is_nothing(), "{}: {}", host.name, again.change.diff());
        let there =
            |row: &Row| matches!(row.done, Done::AlreadyThere { .. } | Done::Nonet | Done::Skipped { .. });
        assert!(again.rows.iter().all(there), "{}: {}", host.name, done(&again));
        // What has to be set is still told.
        let names =
            |imported: &Imported| imported.variables.iter().map(|v| v.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&first), names(&again), "{}", host.name);
    }
}

#[test]
fn all_hosts_are_imported_in_one_step_or_not_at_all() {
    let world = World::new(Os::Linux);
    let all = |world: &World, replace| {
        let manner = Manner { replace, keyring: None };
        import(Source::All, &world.servers_toml(), manner, &world.machine)
    };
    let nothing = all(&world, false).map(|_| ()).unwrap_err().to_string();
    assert_eq!(nothing, "no MCP host was found on this machine. Give a FILE, or a host's name.");

    let server = |token: &str| json!({"command": "gh", "env": {"GITHUB_TOKEN": token}});
    let (one, two) = (server("ghp_aaaaaaaaaaaaaaaaaaaa"), server("ghp_bbbbbbbbbbbbbbbbbbbb"));
    world.host_file("claude-desktop", &config(json!({"gh": one})));
    world.host_file("cursor", &config(json!({"gh": one, "git": {"command": "git-mcp"}})));
    world.host_file("windsurf", &config(json!({"gh": two})));
    // What is shown before anything is written is what is written: the second sees what the first has brought, and
    // replaces nothing of it.
    for replace in [false, true] {
        let imported = all(&world, replace).unwrap();
        let expected = "gh added gh, gh already_there gh, git added git, gh added_as gh-2";
        assert_eq!(done(&imported), expected, "{replace}");
        assert!(imported.rows.iter().all(|row| row.notes.is_empty()), "{:?}", imported.rows);
    }
    world.host_file("gemini-cli", "{ \"mcpServers\": ");
    let broken = all(&world, false).map(|_| ()).unwrap_err().to_string();
    assert!(broken.contains("settings.json") && !world.servers_toml().exists(), "{broken}");
}

#[test]
fn what_is_in_servers_toml_stays_as_it_is() {
    let own = include_str!("../../servers.toml");
    for own in [own.to_string(), own.replace('\n', "\r\n"), format!("\u{feff}{own}")] {
        let world = World::new(Os::Linux);
        world.write(&world.servers_toml(), &own);
        let imported = world.import(&config(json!({"zulu": {"command": "zulu", "args": ["a"]}})), false);
        imported.change.apply().unwrap();
        let after = fs::read_to_string(world.servers_toml()).unwrap();
        let added = "\n[servers.zulu]\ncommand = \"zulu\"\nargs = [\"a\"]\n";
        let added = if own.contains('\r') { added.replace('\n', "\r\n") } else { added.into() };
        assert_eq!(after.replacen(&added, "", 1), own);
        assert!(after.contains(&added));
    }
}

fn check_join(servers_toml: &str, servers: serde_json::Value, replace: bool, expected: &str) -> String {
    let world = World::new(Os::Linux);
    world.write(&world.servers_toml(), servers_toml);
    let imported = world.import(&config(servers), replace);
    assert_eq!(done(&imported), expected);
    imported.change.apply().unwrap();
    let after = fs::read_to_string(world.servers_toml()).unwrap();
    read::toml(&after, &world.servers_toml()).unwrap();
    after
}

#[test]
fn long_lines_are_broken_up() {
    let env: serde_json::Map<_, _> = (0..8).map(|n| (format!("LONG_NAME_{n}"), json!("some text"))).collect();
    let after = check_join(
        "",
        json!({"a": {"command": "x", "env": env, "timeout": 5}, "b": {"command": "y"}}),
        false,
        "a added a, b added b",
    );
    assert!(
        after.contains("[servers.a]\ncommand = \"x\"\ntimeout = \"5s\"\n\n[servers.a.env]\nLONG_NAME_0"),
        "{after}"
    );
    assert!(after.ends_with("LONG_NAME_7 = \"some text\"\n\n[servers.b]\ncommand = \"y\"\n"), "{after}");
    // Read back, it is the same server.
    check_join(&after, json!({"a": {"command": "x", "env": env}}), false, "a already_there a");
}

#[test]
fn nothing_is_overwritten_unasked() {
    let there = "[servers.git]\ncommand = \"uvx\"\nargs = [\"mcp-server-git\"]\ntags = [\"files\"]\n";
    let same = json!({"git": {"command": "uvx", "args": ["mcp-server-git"], "timeout": 5}});
    assert_eq!(check_join(there, same, false, "git already_there git"), there);
    let other = json!({"git": {"command": "git-server"}});
    let after = check_join(there, other.clone(), false, "git added_as git-2");
    assert_eq!(after, format!("{there}\n[servers.git-2]\ncommand = \"git-server\"\n"));
    assert_eq!(check_join(&after, other.clone(), false, "git already_there git-2"), after);
    let after = check_join(there, other, true, "git replaced git");
    assert_eq!(after, "[servers.git]\ncommand = \"git-server\"\ntags = [\"files\"]\n");
    // Two of one name in one file; and a name that a category has.
    check_join("", json!({"a": {"command": "x"}, "A": {"command": "y"}}), true, "a added a, A added_as a-2");
    let category = "[categories.web]\ndescription = \"w\"\n";
    check_join(category, json!({"web": {"command": "x"}}), false, "web added_as web-2");
    let long = "x".repeat(40);
    let expected = format!("{long} added_as {}", "x".repeat(32));
    check_join("", json!({long: {"command": "x"}}), false, &expected);
    check_join("servers = { a = { command = \"x\" } }\n", json!({"b": {"command": "y"}}), false, "b added b");
    check_join("servers.a.command = \"x\"\n", json!({"b": {"command": "y"}}), false, "b added b");
}

#[test]
fn replacing_keeps_what_the_user_said() {
    let there = "\
[servers.git]           # mine
command = \"old\"         # why
args = [\"x\"]
env = { A = \"b\" }
policy = \"approve\"

[servers.git.tools.push]
policy = \"deny\"

[gateway]
";
    let after =
        check_join(there, json!({"git": {"command": "new", "args": ["y"]}}), true, "git replaced git");
    let expected = there
        .replace("\"old\"", "\"new\"")
        .replace("[\"x\"]", "[\"y\"]")
        .replace("env = { A = \"b\" }\n", "");
    assert_eq!(after, expected);
    let after = check_join(there, json!({"git": {"url": "https://h/mcp"}}), true, "git replaced git");
    assert!(after.contains("[servers.git]           # mine\npolicy = \"approve\"\nurl = \"https://h/mcp\"\n\n[servers.git.tools.push]"), "{after}");
}

#[test]
fn two_accounts_never_share_a_variable() {
    let world = World::new(Os::Linux);
    let entry = |token: &str| json!({"command": "gh", "env": {"GITHUB_TOKEN": token}});
    let both =
        config(json!({"work": entry("ghp_aaaaaaaaaaaaaaaaaaaa"), "home": entry("ghp_bbbbbbbbbbbbbbbbbbbb")}));
    let imported = world.import(&both, false);
    imported.change.apply().unwrap();
    let text = fs::read_to_string(world.servers_toml()).unwrap();
    assert!(
        text.contains("[servers.work]\ncommand = \"gh\"\nenv = { GITHUB_TOKEN = \"${GITHUB_TOKEN}\" }"),
        "{text}"
    );
    assert!(
        text.contains("[servers.home]\ncommand = \"gh\"\nenv = { GITHUB_TOKEN = \"${HOME_GITHUB_TOKEN}\" }"),
        "{text}"
    );
    // Another file has another account under the same name, while one of the two is set here.
    let world = world.with("GITHUB_TOKEN", "ghp_aaaaaaaaaaaaaaaaaaaa");
    let other = config(json!({"work": entry("ghp_cccccccccccccccccccc")}));
    let imported = world.import(&other, false);
    assert_eq!(done(&imported), "work added_as work-2");
    assert_eq!(imported.variables[0].name, "WORK_2_GITHUB_TOKEN");
    assert_eq!(imported.rows[0].done.to_string(), "added as work-2");
    assert_eq!(done(&world.import(&both, false)), "work already_there work, home already_there home");
}

#[test]
fn a_secret_that_servers_toml_has_itself_needs_no_variable() {
    let world = World::new(Os::Linux);
    world.write(&world.servers_toml(), "[servers.gh]\ncommand = \"gh\"\nenv = { TOKEN = \"abcdef\" }\n");
    let imported = world.import(&config(json!({"gh": {"command": "gh", "env": {"TOKEN": "abcdef"}}})), false);
    assert_eq!(done(&imported), "gh already_there gh");
    assert!(imported.variables.is_empty());
}

#[test]
fn a_broken_servers_toml_is_told_and_left() {
    let world = World::new(Os::Linux);
    let file = world.machine.current.join("some.json");
    world.write(&file, &config(json!({"a": {"command": "x"}})));
    for (text, place) in
        [("[servers.a\n", "servers.toml:1:"), ("servers = 3\n", "servers.toml: `servers` is no table")]
    {
        world.write(&world.servers_toml(), text);
        let fault = import(Source::File(&file), &world.servers_toml(), Manner::default(), &world.machine)
            .err()
            .unwrap();
        assert!(fault.to_string().contains(place), "{fault}");
    }
    let missing =
        import(Source::Host(find("zed").unwrap()), &world.servers_toml(), Manner::default(), &world.machine);
    assert!(missing.err().unwrap().to_string().starts_with("there is no file "));
}

/// The text in the ways in which editors write it.
fn variants(text: &str) -> Vec<String> {
    let tabs = text.replace("  ", "\t");
    let mixed = text.replacen('\n', "\r\n", 3);
    vec![
        text.into(),
        text.trim_end().into(),
        text.replace('\n', "\r\n"),
        format!("\u{feff}{}", text.replace('\n', "\r\n")),
        tabs,
        mixed,
    ]
}

#[test]
fn install_and_uninstall_leave_every_byte_as_it_was() {
    for os in SYSTEMS {
        for host in &HOSTS {
            let mut texts = variants(sample(host.name));
            let empty: &[&str] = if host.name == "codex" {
                &[
                    "",
                    "\n",
                    "# only a comment\n",
                    "\u{feff}",
                    "a = 1",
                    "[mcp_servers]\n",
                    "mcp_servers = {}\n",
                ]
            } else {
                &["", "{}", "{ }\n", "\u{feff}{}", "// c\n{\n}\n", "{\"a\":1}", "{\"a\": [1,\n2,], }"]
            };
            texts.extend(empty.iter().map(ToString::to_string));
            // What differs between systems is where files are, not how they are written.
            texts.truncate(if os == Os::Linux { texts.len() } else { 1 });
            for text in texts {
                for replace in [false, true] {
                    let world = World::new(os);
                    let file = world.host_file(host.name, &text);
                    check_there_and_back(&world, host, &file, &text, replace);
                }
            }
            for scope in [Scope::User, Scope::Project] {
                check_made_and_removed(host, scope, os);
            }
        }
    }
}

/// A file that was not there before is not there afterwards.
fn check_made_and_removed(host: &'static Host, scope: Scope, os: Os) {
    let world = World::new(os);
    let Some(file) = host.file(scope, &world.machine) else { return };
    let change = install(host, scope, &launch(), &[], &world.machine).unwrap();
    assert_eq!(change.apply().unwrap(), Applied { file: Some(file.clone()), backup: None });
    let text = fs::read_to_string(&file).unwrap();
    let servers = edit::Servers { format: host.format, table: host.table, file: &file };
    assert!(servers.entries(&text).unwrap().contains_key("nonet"), "{text}");
    uninstall(host, scope, &world.machine).unwrap().apply().unwrap();
    assert!(!file.exists());
    assert_eq!(beside(&file), Vec::<String>::new());
}

fn check_there_and_back(world: &World, host: &'static Host, file: &Path, text: &str, replace: bool) {
    let context = format!("{} {:?} {text:?}", host.name, world.machine.os);
    let servers = || edit::Servers { format: host.format, table: host.table, file };
    let entries =
        |text: &str| servers().entries(&text.replace('\u{feff}', "").replace("\r\n", "\n")).unwrap();
    let before = entries(text);
    let names: Vec<String> = if replace { before.keys().cloned().collect() } else { Vec::new() };
    let change = install(host, Scope::User, &launch(), &names, &world.machine)
        .unwrap_or_else(|fault| panic!("{context}: {fault}"));
    assert!(!change.diff().contains("ghp_"), "{context}");
    let applied = change.apply().unwrap();
    let backup = applied.backup.expect("what was there is kept");
    assert!(backup.display().to_string().ends_with(".nonet-backup-20261121T170000Z"), "{backup:?}");
    assert_eq!(fs::read_to_string(&backup).unwrap(), text);

    let after = fs::read_to_string(file).unwrap();
    let now = entries(&after);
    assert_eq!(now["nonet"]["command"], launch().command, "{context}");
    assert_eq!(now["nonet"]["args"], json!(launch().args), "{context}");
    let kept: Vec<_> = before.keys().filter(|name| !replace && *name != "nonet").collect();
    assert_eq!(now.keys().filter(|name| *name != "nonet").collect::<Vec<_>>(), kept, "{context}");
    assert_eq!(after.starts_with('\u{feff}'), text.starts_with('\u{feff}'), "{context}");
    if text.contains("\r\n") && !text.replace("\r\n", "").contains('\n') {
        assert!(!after.replace("\r\n", "").contains('\n'), "{context}: {after:?}");
    }

    let again = install(host, Scope::User, &launch(), &names, &world.machine).unwrap();
    assert!(again.is_nothing(), "{context}: {}", again.diff());
    again.apply().unwrap();

    // Where Nonet was in the file already, it comes out and the rest comes back.
    if before.contains_key("nonet") {
        uninstall(host, Scope::User, &world.machine).unwrap().apply().unwrap();
        let sorted = |entries: serde_json::Map<_, _>| entries.into_iter().collect::<BTreeMap<_, _>>();
        let mut expected = sorted(before);
        expected.remove("nonet");
        assert_eq!(sorted(entries(&fs::read_to_string(file).unwrap())), expected, "{context}");
        return;
    }
    let back = uninstall(host, Scope::User, &world.machine).unwrap();
    for secret in ["ghp_", "Zk3v", "0f0f0f0f", "ctx7sk"] {
        assert!(!back.diff().contains(secret), "{context}");
    }
    back.apply().unwrap();
    assert_eq!(fs::read_to_string(file).unwrap(), text, "{context}");
    assert_eq!(beside(file), Vec::<String>::new(), "{context}");
}

/// What is in the folder of a file, besides the file.
fn beside(file: &Path) -> Vec<String> {
    let names = fs::read_dir(file.parent().unwrap()).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    let mut names: Vec<_> =
        names.filter(|name| Some(name.as_str()) != file.file_name().unwrap().to_str()).collect();
    names.sort();
    names
}

#[test]
fn installed_files_look_hand_written() {
    let mut shown = String::new();
    for host in &HOSTS {
        let world = World::new(Os::Linux);
        world.host_file(host.name, sample(host.name));
        let names: Vec<String> = ["kagi", "exa", "context7", "perplexity", "GitHub"].map(Into::into).into();
        let change = install(host, Scope::User, &launch(), &names, &world.machine).unwrap();
        shown.push_str(&world.plain(&format!("{}{}\n\n", change.diff(), change.told.join("\n"))));
    }
    for secret in ["Zk3v", "0f0f0f0f", "ctx7sk", "ghp_"] {
        assert!(!shown.contains(secret), "{secret}");
    }
    assert_snapshot!(shown);
}

#[test]
fn after_other_edits_only_nonet_comes_out() {
    for name in ["cursor", "vscode", "zed", "windsurf", "codex", "gemini-cli"] {
        let host = find(name).unwrap();
        let world = World::new(Os::Linux);
        let file = world.host_file(name, sample(name));
        // What is only planned may not be taken out of the host's file.
        let imported = world.import_host(name);
        assert!(imported.carried(host, Scope::User, &world.machine).is_empty());
        imported.apply().unwrap();
        let carried = world.import_host(name).carried(host, Scope::User, &world.machine);
        assert!(!carried.is_empty());
        install(host, Scope::User, &launch(), &carried, &world.machine).unwrap().apply().unwrap();
        let mark = if name == "codex" { "# edited\n" } else { "// edited\n" };
        let edited = mark.to_string() + &fs::read_to_string(&file).unwrap();
        fs::write(&file, &edited).unwrap();
        let change = uninstall(host, Scope::User, &world.machine).unwrap();
        change.apply().unwrap();
        let after = fs::read_to_string(&file).unwrap();
        assert!(after.starts_with(mark) && !after.contains("nonet"), "{name}: {after}");
        let servers = edit::Servers { format: host.format, table: host.table, file: &file };
        // All servers are back, though not in their old order.
        let sorted = |text: &str| servers.entries(text).unwrap().into_iter().collect::<BTreeMap<_, _>>();
        assert_eq!(sorted(&after), sorted(sample(name)), "{name}");
        assert!(change.told.iter().any(|line| line.contains("put back from")), "{:?}", change.told);
    }
}

#[test]
fn without_a_record_only_nonet_comes_out() {
    let host = find("cursor").unwrap();
    let world = World::new(Os::Linux);
    let file = world.host_file("cursor", sample("cursor"));
    install(host, Scope::User, &launch(), &["figma".into()], &world.machine).unwrap().apply().unwrap();
    for name in beside(&file) {
        fs::remove_file(file.with_file_name(name)).unwrap();
    }
    uninstall(host, Scope::User, &world.machine).unwrap().apply().unwrap();
    let after = fs::read_to_string(&file).unwrap();
    assert!(!after.contains("nonet") && !after.contains("figma") && after.contains("github"), "{after}");
    let nothing = uninstall(host, Scope::User, &world.machine).unwrap();
    assert!(nothing.is_nothing());
    assert!(nothing.told[0].contains("is not in"));
}

#[test]
fn a_second_install_still_goes_back_to_the_beginning() {
    let host = find("cursor").unwrap();
    let mut world = World::new(Os::Linux);
    let file = world.host_file("cursor", sample("cursor"));
    install(host, Scope::User, &launch(), &["figma".into()], &world.machine).unwrap().apply().unwrap();
    world.machine.now += Duration::from_secs(60);
    let other = Launch { command: "/new/nonet".into(), args: Vec::new() };
    install(host, Scope::User, &other, &[], &world.machine).unwrap().apply().unwrap();
    assert!(fs::read_to_string(&file).unwrap().contains("/new/nonet"));
    uninstall(host, Scope::User, &world.machine).unwrap().apply().unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), sample("cursor"));
}

#[test]
fn what_the_user_said_about_nonet_stays() {
    let host = find("vscode").unwrap();
    let world = World::new(Os::Linux);
    let text = "{\n  \"servers\": {\n    \"nonet\": {\n      \"command\": \"old\", // mine\n      \"env\": { \"A\": \"b\" }\n    }\n  }\n}\n";
    let file = world.host_file("vscode", text);
    install(host, Scope::User, &launch(), &[], &world.machine).unwrap().apply().unwrap();
    assert_snapshot!(fs::read_to_string(&file).unwrap());
}

#[test]
fn broken_files_are_told_and_never_touched() {
    let mut faults = Vec::new();
    for (host, text) in [
        ("claude-desktop", "{\n  \"mcpServers\": {\n    \"a\": {\n"),
        ("cursor", "{\"mcpServers\": []}"),
        ("cursor", "{\"mcpServers\": {}, \"mcpServers\": {}}"),
        ("vscode", "[]"),
        ("vscode", "{'servers': {}}"),
        ("zed", "{\"a\": 1 \"b\": 2}"),
        ("codex", "[mcp_servers.a]\ncommand = \n"),
        ("codex", "a = 1\nmcp_servers = 'x'\n"),
    ] {
        let world = World::new(Os::Linux);
        let file = world.host_file(host, text);
        let fault = install(find(host).unwrap(), Scope::User, &launch(), &[], &world.machine).err().unwrap();
        faults.push(world.plain(&fault.to_string()));
        assert!(uninstall(find(host).unwrap(), Scope::User, &world.machine).is_err());
        assert_eq!(fs::read_to_string(&file).unwrap(), text);
        assert_eq!(beside(&file), Vec::<String>::new());
    }
    assert_snapshot!(faults.join("\n"));
    let world = World::new(Os::Linux);
    let fault =
        install(find("windsurf").unwrap(), Scope::Project, &launch(), &[], &world.machine).err().unwrap();
    assert!(fault.to_string().starts_with("Windsurf has no servers for single projects."), "{fault}");
}

#[test]
fn no_piece_of_a_file_makes_a_broken_one() {
    for host in &HOSTS {
        let text = sample(host.name);
        let world = World::new(Os::Linux);
        let file = host.file(Scope::User, &world.machine).unwrap();
        let servers = edit::Servers { format: host.format, table: host.table, file: &file };
        // Beginnings, and texts with a piece cut out of their middle.
        let ends = (0..text.len()).step_by(3).filter(|at| text.is_char_boundary(*at));
        let pieces = ends.flat_map(|end| {
            let (start, rest) = text.split_at(end);
            [start.to_string(), format!("{start}{}", rest.get(7..).unwrap_or_default())]
        });
        for piece in pieces {
            let root = read::value(&piece, read::format_of(&piece), &file);
            if let Ok(root) = &root {
                let context =
                    entry::Context { machine: &world.machine, host: Some(host), folder: None, root };
                for servers in read::servers(root, &world.machine.current).0 {
                    servers.entries.values().for_each(|value| drop(entry::read(value, &context)));
                }
            }
            let entry = serde_json::Map::from_iter([("command".to_string(), json!("nonet"))]);
            if let Ok(edited) = servers.put(&piece, "nonet", &entry) {
                let entries = servers.entries(&edited).expect("what is written can be read");
                assert_eq!(entries["nonet"]["command"], "nonet");
                let back = servers.take(&edited, &["nonet"]).expect("and taken out again");
                assert!(!servers.entries(&back).expect("and still be read").contains_key("nonet"));
            }
        }
    }
}

#[test]
fn imports_of_pieces_give_a_servers_toml_that_can_be_read() {
    for host in &HOSTS {
        let text = sample(host.name);
        let world = World::new(Os::Linux);
        // The last line that closes each server is as good a place to cut as any.
        for (at, _) in text.match_indices('\n') {
            let closing = if host.name == "codex" { "" } else { "}}" };
            let file = world.host_file(host.name, &format!("{}{closing}", text[..at].trim_end_matches(',')));
            match import(Source::File(&file), &world.servers_toml(), Manner::default(), &world.machine) {
                Ok(imported) => {
                    let after = imported.change.after.unwrap_or_default();
                    let after = String::from_utf8(after).unwrap();
                    read::toml(&after, &world.servers_toml()).expect("what is written can be read");
                }
                Err(fault) => assert!(fault.at.is_some(), "{fault}"),
            }
        }
    }
}

#[cfg(unix)]
#[test]
fn links_and_permissions_are_kept() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let host = find("cursor").unwrap();
    let world = World::new(Os::Linux);
    let real = world.machine.current.join("dotfiles/mcp.json");
    world.write(&real, sample("cursor"));
    fs::set_permissions(&real, fs::Permissions::from_mode(0o640)).unwrap();
    let file = host.file(Scope::User, &world.machine).unwrap();
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    symlink(&real, &file).unwrap();
    let applied = install(host, Scope::User, &launch(), &[], &world.machine).unwrap().apply().unwrap();
    assert_eq!(applied.file.as_deref(), Some(real.as_path()));
    let backup = applied.backup.unwrap();
    assert_eq!(backup.parent(), real.parent());
    assert!(fs::symlink_metadata(&file).unwrap().is_symlink());
    for file in [&real, &backup] {
        assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o640);
    }
    uninstall(host, Scope::User, &world.machine).unwrap().apply().unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), sample("cursor"));
    fs::remove_file(&real).unwrap();
    let fault = install(host, Scope::User, &launch(), &[], &world.machine).err().unwrap();
    assert!(fault.to_string().contains("leads nowhere"), "{fault}");
}

#[test]
fn a_file_that_changes_meanwhile_is_not_written() {
    let host = find("cursor").unwrap();
    let world = World::new(Os::Linux);
    let file = world.host_file("cursor", "{}");
    let change = install(host, Scope::User, &launch(), &[], &world.machine).unwrap();
    fs::write(&file, "{\"mine\": 1}").unwrap();
    assert!(change.apply().err().unwrap().to_string().contains("changed by someone else"));
    assert_eq!(fs::read_to_string(&file).unwrap(), "{\"mine\": 1}");
    assert_eq!(beside(&file), Vec::<String>::new());
}

#[test]
fn rows_are_json_for_machines() {
    let world = World::new(Os::Linux);
    let imported = world.import(&config(json!({"My Server": {"command": "x"}, "bad": {}})), false);
    let rows: serde_json::Value =
        serde_json::from_str(&world.plain(&serde_json::to_string(&imported.rows).unwrap())).unwrap();
    assert_json_snapshot!(rows);
}

mod with_a_keyring {
    use super::*;
    use crate::keyring::{
        self, Keyring,
        tests::{holding, missing},
    };

    const TOKEN: &str = "ghp_0123456789abcdefghijklmnopqrstuvwxyz";

    fn github(token: &str) -> String {
        config(json!({
            "github": { "command": "gh-mcp", "env": { "GITHUB_TOKEN": token, "LOG": "warn" } },
            "docs": { "url": "https://docs.example/mcp", "headers": { "Authorization": format!("Bearer {token}x") } },
        }))
    }

    fn to(keyring: &Keyring) -> Manner<'_> {
        Manner { replace: false, keyring: Some(keyring) }
    }

    fn toml(world: &World) -> String {
        fs::read_to_string(world.servers_toml()).unwrap_or_default()
    }

    fn kept(imported: &Imported) -> Vec<(&str, bool)> {
        imported.secrets.iter().map(|kept| (kept.name.as_str(), kept.there)).collect()
    }

    #[test]
    fn secrets_go_into_the_keyring_when_the_file_is_written() {
        let (world, keyring) = (World::new(Os::Linux), holding(&[]));
        let imported = world.try_import(&github(TOKEN), to(&keyring)).unwrap();
        assert_eq!(kept(&imported), [("DOCS_TOKEN", false), ("GITHUB_TOKEN", false)]);
        assert!(imported.variables.is_empty());
        // As with --dry-run: nothing is stored before it is applied.
        assert!(matches!(keyring.get("GITHUB_TOKEN"), Err(keyring::Error::NoSecret(_))));
        assert!(!imported.change.diff().contains(TOKEN));
        imported.apply().unwrap();
        assert_eq!(keyring.get("GITHUB_TOKEN").as_deref(), Ok(TOKEN));
        assert_eq!(keyring.get("DOCS_TOKEN"), Ok(format!("{TOKEN}x")));
        let text = toml(&world);
        assert!(text.contains(r#"GITHUB_TOKEN = "${keyring:GITHUB_TOKEN}", LOG = "warn""#), "{text}");
        assert!(text.contains(r#"Authorization = "Bearer ${keyring:DOCS_TOKEN}""#), "{text}");
        // Once more changes nothing, with the keyring or without.
        let again = world.try_import(&github(TOKEN), to(&keyring)).unwrap();
        assert_eq!(kept(&again), [("DOCS_TOKEN", true), ("GITHUB_TOKEN", true)]);
        assert!(again.change.is_nothing());
        let without = world.import(&github(TOKEN), false);
        assert!(without.change.is_nothing() && without.variables.is_empty(), "{}", done(&without));
        assert_eq!(without.rows[0].notes, ["`GITHUB_TOKEN` in the keyring, so secrets were not compared"]);
        // On a machine whose keyring does not have them yet they are stored under the names of the file.
        let other = holding(&[]);
        let moved = world.try_import(&github(TOKEN), to(&other)).unwrap();
        assert!(moved.change.is_nothing());
        moved.apply().unwrap();
        assert_eq!(other.get("GITHUB_TOKEN").as_deref(), Ok(TOKEN));
    }

    #[test]
    fn a_secret_that_is_there_with_another_value_stays() {
        let (world, keyring) = (World::new(Os::Linux), holding(&[("GITHUB_TOKEN", "of something else")]));
        let imported = world.try_import(&github(TOKEN), to(&keyring)).unwrap();
        imported.apply().unwrap();
        assert_eq!(keyring.get("GITHUB_TOKEN").as_deref(), Ok("of something else"));
        assert_eq!(
            keyring.get("GITHUB_GITHUB_TOKEN").or(keyring.get("GITHUB_TOKEN_2")).as_deref(),
            Ok(TOKEN)
        );
        // One that came in between is not overwritten either, and what was stored is taken out again.
        let (world, keyring) = (World::new(Os::Linux), holding(&[]));
        let imported = world.try_import(&github(TOKEN), to(&keyring)).unwrap();
        keyring.set("GITHUB_TOKEN", "quicker").unwrap();
        let fault = imported.apply().unwrap_err().to_string();
        assert!(fault.contains("another secret `GITHUB_TOKEN`"), "{fault}");
        assert_eq!(keyring.get("GITHUB_TOKEN").as_deref(), Ok("quicker"));
        assert!(keyring.get("DOCS_TOKEN").is_err());
        assert_eq!(toml(&world), "");
    }

    #[test]
    fn secrets_of_a_file_that_cannot_be_written_are_taken_out_again() {
        let (world, keyring) = (World::new(Os::Linux), holding(&[]));
        let imported = world.try_import(&github(TOKEN), to(&keyring)).unwrap();
        world.write(&world.servers_toml(), "# somebody else's");
        assert!(imported.apply().is_err());
        assert!(keyring.get("GITHUB_TOKEN").is_err() && keyring.get("DOCS_TOKEN").is_err());
    }

    #[test]
    fn a_keyring_that_cannot_be_used_is_told_and_nothing_is_changed() {
        let world = World::new(Os::Linux);
        let fault = world.try_import(&github(TOKEN), to(&missing())).err().unwrap().to_string();
        assert_snapshot!(fault);
        assert_eq!(toml(&world), "");
    }

    #[test]
    fn with_replace_what_was_a_variable_moves_into_the_keyring() {
        let (world, keyring) = (World::new(Os::Linux), holding(&[]));
        world.import(&github(TOKEN), false).apply().unwrap();
        assert!(toml(&world).contains("${GITHUB_TOKEN}"));
        let kept = world.try_import(&github(TOKEN), to(&keyring)).unwrap();
        assert!(kept.change.is_nothing(), "{}", done(&kept));
        let manner = Manner { replace: true, keyring: Some(&keyring) };
        let moved = world.try_import(&github(TOKEN), manner).unwrap();
        assert_eq!(done(&moved), "github replaced github, docs replaced docs");
        moved.apply().unwrap();
        let text = toml(&world);
        assert!(text.contains("${keyring:GITHUB_TOKEN}") && !text.contains("${GITHUB_TOKEN}"), "{text}");
        assert_eq!(keyring.get("GITHUB_TOKEN").as_deref(), Ok(TOKEN));
    }
}
