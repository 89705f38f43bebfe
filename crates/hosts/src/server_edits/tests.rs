//! Edits of a servers.toml in a folder.

use std::{collections::BTreeMap, fs, path::PathBuf, time::SystemTime};

use nonet_config::ValueSources;
use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::Os;

const KEPT: ImportOptions = ImportOptions { replace: false, keyring: None, file: true };
const TOKEN: &str = "ghp_0123456789abcdefghijklmnopqrstuvwxyz";
const FILE: &str = "\
# Mine.

[servers.files]
command = \"files\" # a program

[servers.files.tools.read]
risk = \"low\"

[servers.web]
url = \"https://web.example/mcp\"
headers = { Authorization = \"Bearer ${WEB_TOKEN}\", X = \"${keyring:X}\" }

[categories.text]
description = \"Texts of files. files.read reads them\"
servers = [\"files\"]
tools = [\"web.get_*\"]

[profiles.work]
categories = [\"text\"]
priorities = { \"files.*\" = 2 }

[profiles.home]
categories = [\"web\"]

[policies.careful]
tools = [\"files.write_*\", \"web.*\"]
policy = \"approve\"

[apps.look]
description = \"Looks\"
tool = \"files.read\"
";

struct Place {
    folder: TempDir,
    machine: Machine,
}

impl Place {
    fn new(text: Option<&str>) -> Self {
        let folder = TempDir::new().unwrap();
        let root = folder.path().to_path_buf();
        let machine = Machine {
            os: Os::Linux,
            home: root.clone(),
            current: root,
            env: BTreeMap::new(),
            now: SystemTime::UNIX_EPOCH,
        };
        let place = Self { folder, machine };
        text.into_iter().for_each(|text| fs::write(place.file(), text).unwrap());
        place
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("servers.toml")
    }

    fn text(&self) -> String {
        fs::read_to_string(self.file()).unwrap()
    }

    fn try_add(&self, name: &str, entry: Value) -> Result<ImportPlan, String> {
        let entry = entry.as_object().unwrap();
        let added = add_server(&self.file(), name, entry, KEPT, &self.machine);
        added.map_err(|fault| fault.to_string().replace(&self.file().display().to_string(), "FILE"))
    }

    fn add(&self, name: &str, entry: Value) -> ImportPlan {
        let added = self.try_add(name, entry).unwrap();
        added.apply().unwrap();
        added
    }

    fn remove(&self, name: &str) -> ServerRemoval {
        let removal = remove_server(&self.file(), name, &self.machine).unwrap();
        removal.change.apply().unwrap();
        removal
    }
}

#[test]
fn an_added_server_is_written_without_its_secrets() {
    let place = Place::new(None);
    let added = place.add(
        "github",
        json!({
            "command": "gh-mcp",
            "args": ["--token", TOKEN, "${HOME}/repos", "$${plain}"],
            "env": { "LOG": "warn", "API_KEY": "${MY_KEY:-none}", "OTHER": "${keyring:OTHER}" },
            "tags": ["code"],
            "description": "Issues",
        }),
    );
    let text = place.text();
    let expected = r#"
[servers.github]
description = "Issues"
command = "gh-mcp"
args = ["--token", "${GITHUB_TOKEN}", "${HOME}/repos", "$${plain}"]
env = { LOG = "warn", API_KEY = "${MY_KEY:-none}", OTHER = "${keyring:OTHER}" }
tags = ["code"]
"#;
    assert!(text.starts_with("# The MCP servers behind Nonet.") && text.ends_with(expected), "{text}");
    let secrets = fs::read_to_string(place.folder.path().join("secrets.env")).unwrap();
    assert!(secrets.ends_with(&format!("\nGITHUB_TOKEN={TOKEN}\n")), "{secrets}");
    assert!(!added.change.diff().contains(TOKEN));
    let names: Vec<&str> = added.variables.iter().map(|variable| variable.name.as_str()).collect();
    assert_eq!(names, ["HOME"], "what has a default need not be set");
    place.add("docs", json!({ "url": "https://d.example/sse", "transport": "sse", "headers": { "Authorization": "Bearer abc" } }));
    let expected = r#"
[servers.docs]
transport = "sse"
url = "https://d.example/sse"
headers = { Authorization = "Bearer ${DOCS_TOKEN}" }
"#;
    assert_eq!(place.text(), format!("{text}{expected}"));
    place.remove("docs");
    assert_eq!(place.text(), text);
}

#[test]
fn every_key_of_servers_toml_can_be_written() {
    let place = Place::new(Some("# Mine.\r\n[gateway]\r\n"));
    let long = "a long description of what this tool does, and for whom, and what it must never be used for";
    place.add("x", json!({ "command": "x", "timeout": "10s", "enabled": false, "tools": { "t.u": { "risk": "low", "description": long } } }));
    let expected = format!(
        "# Mine.\r\n[gateway]\r\n\r\n[servers.x]\r\ncommand = \"x\"\r\ntimeout = \"10s\"\r\nenabled = false\r\n\r\n[servers.x.tools]\r\n\r\n[servers.x.tools.\"t.u\"]\r\nrisk = \"low\"\r\ndescription = \"{long}\"\r\n"
    );
    assert_eq!(place.text(), expected);
}

#[test]
fn what_cannot_be_added_is_reported_and_nothing_is_written() {
    let place = Place::new(Some(FILE));
    let check = |name: &str, entry: Value, expected: &str| {
        let fault = place.try_add(name, entry).err().unwrap();
        assert!(fault.starts_with(expected), "{fault}");
    };
    let program = json!({ "command": "x" });
    check(
        "My Server",
        program.clone(),
        "`My Server` is not a valid server name: only a-z, 0-9 and single `-` or `_` between them are allowed. Use `my-server`, or another name.",
    );
    check(
        "skills",
        program.clone(),
        "`skills` is not a valid server name: the name is reserved by Nonet. Use `skills-server`",
    );
    check(
        "files",
        program.clone(),
        "FILE: there is already a server `files`. Choose another name, such as `files-2`, or remove the server first: `nonet remove files`.",
    );
    check("text", program, "FILE: `text` is the name of a category. Choose another name, such as `text-2`.");
    check("x", json!({}), "FILE: servers.x: a server needs `command`");
    check(
        "x",
        json!({ "command": "x", "timeout": "10" }),
        "FILE: servers.x.timeout: `10` must be a time with a unit",
    );
    check("x", json!({ "command": "x", "args": "y" }), "FILE: servers.x.args: ");
    check(
        "x",
        json!({ "command": "x", "url": "https://x.example" }),
        "FILE: servers.x.url: a server cannot have both `command` and `url`",
    );
    check("x", json!({ "command": "x", "cmd": 1 }), "FILE: servers.x.cmd: unknown key");
    check("x", json!({ "url": "ftp://x.example" }), "FILE: servers.x.url: ");
    check("x", json!({ "command": "/usr/bin/nonet" }), "this is Nonet itself. Name");
    assert_eq!(place.text(), FILE);
    // An unset variable is not a fault of the text.
    place
        .try_add("x", json!({ "tags": null, "url": "${BASE}/mcp", "headers": { "A": "${keyring:A}" } }))
        .unwrap();
    let broken = Place::new(Some("[servers"));
    let fault = broken.try_add("x", json!({ "command": "x" })).err().unwrap();
    assert!(fault.starts_with("FILE:1:9: this is not TOML"), "{fault}");
    // Existing faults do not matter.
    let faulty = Place::new(Some("[servers.a]\ncomand = 'a'\n\n[gatway]\n"));
    faulty.add("x", json!({ "command": "x" }));
    assert_eq!(faulty.text(), "[servers.a]\ncomand = 'a'\n\n[servers.x]\ncommand = \"x\"\n\n[gatway]\n");
}

#[test]
fn what_names_a_removed_server_is_told() {
    let place = Place::new(Some(FILE));
    let removal = place.remove("files");
    assert_eq!(
        removal.named_in,
        [
            "categories.text.servers",
            "profiles.work.priorities.\"files.*\"",
            "policies.careful.tools",
            "apps.look.tool"
        ]
    );
    assert_eq!(removal.left_out, ["categories.text"]);
    assert!(removal.unused.is_empty());
    let start = FILE.find("[servers.files]").unwrap();
    let end = FILE.find("[servers.web]").unwrap();
    assert_eq!(place.text(), format!("{}{}", &FILE[..start], &FILE[end..]));
    fs::write(place.folder.path().join("secrets.env"), "WEB_TOKEN=a\nOTHER=b\n").unwrap();
    let removal = place.remove("web");
    assert_eq!(
        removal.named_in,
        ["categories.text.tools", "profiles.home.categories", "policies.careful.tools"]
    );
    assert_eq!(removal.left_out, ["profiles.home"]);
    let unused = |name: &str, store| UnusedSecret { name: name.into(), store };
    assert_eq!(removal.unused, [unused("WEB_TOKEN", SecretStore::File), unused("X", SecretStore::Keyring)]);
    let applied = removal.change.told.join(" ");
    assert!(applied.starts_with("[servers.web] is removed from "), "{applied}");
}

#[test]
fn a_server_is_switched_off_and_on_and_off_again() {
    let place = Place::new(Some(FILE));
    let switch = |name: &str, enabled: bool| {
        let change = enable_server(&place.file(), name, enabled, &place.machine).unwrap();
        change.apply().unwrap();
        change.is_nothing()
    };
    assert!(switch("files", true) && place.text() == FILE);
    assert!(!switch("files", false));
    let off = FILE.replace("[servers.files]\n", "[servers.files]\nenabled = false\n");
    assert_eq!(place.text(), off);
    assert!(switch("files", false) && place.text() == off);
    assert!(!switch("files", true));
    assert_eq!(place.text(), off.replace("= false", "= true"));
    let told = |name: &str| {
        let fault = enable_server(&place.file(), name, true, &place.machine).err().unwrap();
        fault.to_string().replace(&place.file().display().to_string(), "FILE")
    };
    assert_eq!(told("fiels"), "FILE: there is no server `fiels`. Did you mean `files`?");
    assert_eq!(told("zzzz"), "FILE: there is no server `zzzz`. Its servers: `files`, `web`.");
}

#[cfg(unix)]
#[test]
fn the_files_mode_and_its_link_stay() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new(None);
    let real = place.folder.path().join("real.toml");
    fs::write(&real, FILE).unwrap();
    fs::set_permissions(&real, fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::symlink(&real, place.file()).unwrap();
    place.remove("files");
    assert!(fs::symlink_metadata(place.file()).unwrap().is_symlink());
    assert_eq!(fs::metadata(&real).unwrap().permissions().mode() & 0o777, 0o640);
    assert!(!fs::read_to_string(&real).unwrap().contains("servers.files"));
}

#[test]
fn the_lines_of_a_server_are_edited_and_nothing_else() {
    let check = |before: &str, shown: &str, new: &str, after: &str| {
        let place = Place::new(Some(before));
        let table = server_table(&place.file(), "a").unwrap();
        assert_eq!(table.text, shown, "{before:?}");
        let is_shown = |whole: &str| whole == table.whole;
        let edit =
            edit_table(&place.file(), "a", new, is_shown, KEPT, ValueSources::NONE, &place.machine).unwrap();
        edit.imported.apply().unwrap();
        assert_eq!(place.text(), after, "{before:?}");
    };
    let a = "[servers.a]\ncommand = 'x'";
    let b = "[servers.b]\nurl = 'https://b.example'\n";
    check(
        &format!("{a}\n\n{b}"),
        &format!("{a}\n"),
        "# Mine.\n[servers.a]\ncommand='y'\n\n",
        &format!("# Mine.\n[servers.a]\ncommand='y'\n\n{b}"),
    );
    // The last line of a file may lack a line end.
    check(&format!("{b}\n# A.\n{a}"), &format!("# A.\n{a}"), a, &format!("{b}\n{a}"));
    check(
        "[servers.a]\r\ncommand = 'x'\r\n[servers.a.tools.t]\r\nrisk = 'low'\r\n\r\n[gateway]\r\n",
        "[servers.a]\ncommand = 'x'\n[servers.a.tools.t]\nrisk = 'low'\n",
        "[servers.a]\ncommand = 'y'\n",
        "[servers.a]\r\ncommand = 'y'\r\n\r\n[gateway]\r\n",
    );
}

#[test]
fn a_text_that_is_not_taken_tells_the_line() {
    let before = "# The file.\n\n[servers.a]\ncommand = 'x'\n\n[servers.b]\ncommand = 'b'\n";
    let place = Place::new(Some(before));
    let refuse = |text: &str| match edit_table(
        &place.file(),
        "a",
        text,
        |_| true,
        KEPT,
        ValueSources::NONE,
        &place.machine,
    ) {
        Err(EditError::Faults(faults)) => {
            let told = faults.iter().map(|fault| format!("{}: {}", fault.line.unwrap_or(0), fault.message));
            told.collect::<Vec<_>>().join("\n")
        }
        Err(EditError::Stale(fault)) => fault.to_string(),
        Ok(_) => panic!("it was taken: {text}"),
    };
    let check = |text: &str, expected: &str| {
        let told = refuse(text);
        assert!(told.starts_with(expected), "{text:?}: {told}");
    };
    check("[servers.a]\ncommand = 'x'\ncomand = 'y'", "3: `comand`: unknown key");
    check("# One.\n[servers.a]\ncommand = \n", "3: this is not TOML: ");
    check(
        "[servers.a]\ncommand = '${NO_SUCH}'",
        "2: `command`: the environment variable `NO_SUCH` is not set",
    );
    check("", "0: the text has no `[servers.a]`");
    check("[servers.a]\ncommand = 'x'\n[servers.c]\ncommand = 'c'", "0: the text changes more than");
    check("[servers.a]\ncommand = 'x'\n[servers.b]\ncommand = 'c'", "");
    assert_eq!(place.text(), before);
    let stale = edit_table(&place.file(), "a", "", |_| false, KEPT, ValueSources::NONE, &place.machine);
    assert!(matches!(stale, Err(EditError::Stale(_))));

    for text in [
        "servers = { a = { command = 'x' } }\n",
        "[servers.a]\ncommand = 'x'\n[servers.b]\ncommand = 'b'\n[servers.a.tools.t]\nrisk = 'low'\n",
    ] {
        let place = Place::new(Some(text));
        let fault = server_table(&place.file(), "a").unwrap_err();
        assert!(fault.remedy.starts_with("Edit `servers.a` in the file"), "{text}: {fault}");
    }
}
