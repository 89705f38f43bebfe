//! `nonet doctor`: offers to fix what a check found, one by one.

use std::{
    fs,
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use serde_json::{Value, json};

use crate::{
    client::command,
    hosts::text,
    setup::{Setup, eventually, fake_server},
    sign_in_service::{Manner, Service},
};

/// Writes a script as a program on the PATH.
fn script(folder: &Path, name: &str, lines: &str) {
    fs::create_dir_all(folder).expect("a folder");
    let file = folder.join(name);
    fs::write(&file, format!("#!/bin/sh\n{lines}\n")).expect("written");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("a mode");
}

/// A machine where much is missing: uvx, npx, a variable, a sign-in, and the program that a client starts.
struct Machine {
    setup: Setup,
    _service: Service,
}

impl Machine {
    fn new() -> Self {
        let service = Service::start(Manner::default());
        let fake = fake_server().display().to_string();
        let asks = json!({ "tools": [{ "name": "look", "on": { "env": true } }] });
        let setup = Setup::new()
            .server_of(
                "fetched",
                &format!(
                    "command = 'uvx'\nargs = ['--script', '{}']",
                    json!({ "tools": [{ "name": "go" }] })
                ),
            )
            .server_of("noded", "command = 'npx'\nargs = ['-y', 'x']")
            .server_of(
                "keyed",
                &format!(
                    "command = '{fake}'\nargs = ['--script', '{asks}']\nenv = {{ KEY = '${{DOCTOR_KEY}}' }}"
                ),
            )
            .server_of("web", &format!("url = '{}'", service.url()));
        setup.write();
        let bin = setup.path("bin");
        // A pip whose uv has an uvx that starts the scripted server.
        let uvx = bin.join("uvx");
        let install = format!(
            "echo \"$@\" > '{}'\nprintf '#!/bin/sh\\nexec {fake} \"$@\"\\n' > '{}'\n/bin/chmod +x '{}'",
            setup.path("pip.log").display(),
            uvx.display(),
            uvx.display()
        );
        script(&bin, "pip", &install);
        fs::create_dir_all(setup.path(".cursor")).expect("a folder");
        let entry = json!({ "command": "/gone/nonet", "args": ["--config", setup.path("servers.toml"), "--profile", "p"] });
        fs::write(setup.path(".cursor/mcp.json"), json!({ "mcpServers": { "nonet": entry } }).to_string())
            .expect("written");
        Self { setup, _service: service }
    }

    fn nonet(&self) -> Command {
        let mut nonet = command(self.setup.folder.path());
        nonet.env("PATH", self.setup.path("bin")).env_remove("DOCTOR_KEY");
        nonet
    }

    fn cursor(&self) -> Value {
        let file: Value =
            serde_json::from_slice(&fs::read(self.setup.path(".cursor/mcp.json")).expect("there"))
                .expect("JSON");
        file["mcpServers"]["nonet"].clone()
    }

    fn secrets(&self) -> PathBuf {
        self.setup.path("secrets.env")
    }
}

fn has(output: &Output, parts: &[&str]) {
    let said = text(output);
    for part in parts {
        assert!(said.contains(part), "{part}\n{said}");
    }
}

#[test]
fn without_a_terminal_a_doctor_lists_or_does_what_needs_no_answer() {
    let machine = Machine::new();
    let listed = machine.nonet().args(["check", "--fix"]).stdin(Stdio::null()).output().expect("nonet runs");
    assert_eq!(listed.status.code(), Some(2), "{}", text(&listed));
    has(
        &listed,
        &[
            "would offer this in a terminal:",
            "install uv (`pip install uv`, or your package manager) (for fetched): `pip install uv`",
            "`npx` is not on this machine's PATH: install Node.js, which brings `npx` (for noded)\n",
            "`DOCTOR_KEY` is not set (for [servers.keyed]): `nonet --config",
            "secret set DOCTOR_KEY --file`",
            "`web` requires sign-in: `nonet --config",
            "Cursor starts Nonet with /gone/nonet, which does not exist: `nonet --config",
        ],
    );
    assert!(!machine.setup.path("pip.log").exists() && machine.cursor()["command"] == "/gone/nonet");

    let done = machine.nonet().args(["doctor", "--yes"]).stdin(Stdio::null()).output().expect("nonet runs");
    has(&done, &["run this yourself: `nonet --config", "`nonet` in ", " is updated."]);
    assert_eq!(fs::read_to_string(machine.setup.path("pip.log")).expect("it ran"), "install uv\n");
    let entry = machine.cursor();
    assert_eq!(entry["command"], env!("CARGO_BIN_EXE_nonet"));
    assert_eq!(entry["args"][2], "--profile", "what the entry says stays: {entry}");
    assert!(!machine.secrets().exists());
    // The second check sees the new launcher.
    let said = text(&done);
    let last = said.rfind("fetched").map(|at| &said[at..]).expect("it is listed");
    assert!(last.starts_with("fetched") && said.matches(" fetched  ready").count() == 1, "{said}");
    let sound = machine.nonet().args(["check", "--fix", "--json"]).output().expect("nonet runs");
    assert_eq!(sound.status.code(), Some(2), "{}", text(&sound));
}

#[cfg(target_os = "linux")]
/// Runs `nonet` in its own terminal and types these answers to its questions. Returns the output.
pub fn in_terminal(nonet: &mut Command, answers: &[(&str, &str)]) -> String {
    let pair = nix::pty::openpty(None, None).expect("a terminal");
    let (mut ours, theirs) = (fs::File::from(pair.master), fs::File::from(pair.slave));
    let end = || Stdio::from(theirs.try_clone().expect("another handle"));
    nonet.stdin(end()).stdout(end()).stderr(end());
    let mut child = nonet.spawn().expect("nonet starts");
    let (sender, shown) = std::sync::mpsc::channel();
    let mut reader = ours.try_clone().expect("another handle");
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(read) = std::io::Read::read(&mut reader, &mut bytes) {
            if read == 0 || sender.send(String::from_utf8_lossy(&bytes[..read]).into_owned()).is_err() {
                return;
            }
        }
    });
    let (mut all, mut from) = (String::new(), 0);
    for (question, answer) in answers {
        from = eventually(question, || {
            all.extend(shown.try_iter());
            Some(from + all[from..].find(question)? + question.len())
        });
        ours.write_all(format!("{answer}\n").as_bytes()).expect("typed");
    }
    eventually("it ends", || {
        all.extend(shown.try_iter());
        child.try_wait().expect("a status")
    });
    all.extend(shown.try_iter());
    all
}

#[cfg(target_os = "linux")]
#[test]
fn in_a_terminal_each_thing_is_asked_for() {
    let machine = Machine::new();
    // A terminal asks for values only in the process that controls it.
    let mut nonet = Command::new("/usr/bin/setsid");
    nonet.args(["--ctty", "--wait", env!("CARGO_BIN_EXE_nonet")]);
    let as_usual = machine.nonet();
    nonet.args(as_usual.get_args()).arg("doctor").current_dir(machine.setup.folder.path());
    for (name, value) in as_usual.get_envs() {
        match value {
            Some(value) => nonet.env(name, value),
            None => nonet.env_remove(name),
        };
    }
    let shown = in_terminal(
        &mut nonet,
        &[
            ("Run `pip install uv`? [y/N]", "n"),
            ("DOCTOR_KEY (not shown, Enter to skip):", "a-value-of-the-user"),
            ("login web`? [y/N]", ""),
            ("install cursor`? [y/N]", "y"),
        ],
    );
    assert!(!machine.setup.path("pip.log").exists());
    let kept = fs::read_to_string(machine.secrets()).expect("it was made");
    assert!(kept.contains("DOCTOR_KEY=a-value-of-the-user"), "{kept}");
    assert!(!shown.contains("a-value-of-the-user"), "{shown}");
    assert_eq!(machine.cursor()["command"], env!("CARGO_BIN_EXE_nonet"));
    // The second check includes the server.
    let row = shown.rfind(" keyed ").map(|at| &shown[at..]).expect("a row");
    assert!(row.lines().next().is_some_and(|row| row.contains("ready")), "{shown}");
}

#[test]
fn a_sound_machine_is_told_so() {
    let setup = Setup::new().server("shop", json!({ "tools": [{ "name": "buy", "description": "Buys" }] }));
    setup.write();
    let sound = command(setup.folder.path()).arg("doctor").stdin(Stdio::null()).output().expect("nonet runs");
    has(&sound, &["Nonet found nothing to fix."]);
}

/// Returns a server that ends because a variable is missing.
fn needy() -> Setup {
    let script = json!({ "stderr_lines": ["Error: BRAVE_API_KEY environment variable is required"], "exit_at_start": 1 });
    Setup::new().server("brave", script)
}

#[test]
fn a_variable_that_a_server_names_is_told_with_the_command_that_sets_it() {
    let setup = needy();
    setup.write();
    let nonet = |arguments: &[&str]| {
        command(setup.folder.path()).args(arguments).stdin(Stdio::null()).output().expect("nonet runs")
    };
    let checked = nonet(&["check"]);
    has(
        &checked,
        &["`brave` names `BRAVE_API_KEY`", "secret set BRAVE_API_KEY --file`", "in [servers.brave]"],
    );
    let report: Value = serde_json::from_slice(&nonet(&["check", "--json"]).stdout).expect("JSON");
    assert_eq!(report["servers"][0]["missing_variables"], json!(["BRAVE_API_KEY"]), "{report}");
    has(&nonet(&["doctor"]), &["its stderr names `BRAVE_API_KEY`: `nonet --config"]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_doctor_gives_a_server_the_variable_that_it_lacks() {
    let setup = needy();
    setup.write();
    let mut nonet = Command::new("/usr/bin/setsid");
    nonet.args(["--ctty", "--wait", env!("CARGO_BIN_EXE_nonet")]);
    let as_usual = command(setup.folder.path());
    nonet.args(as_usual.get_args()).arg("doctor").current_dir(setup.folder.path());
    for (name, value) in as_usual.get_envs() {
        match value {
            Some(value) => nonet.env(name, value),
            None => nonet.env_remove(name),
        };
    }
    let shown = in_terminal(&mut nonet, &[("BRAVE_API_KEY (not shown, Enter to skip):", "the-users-own")]);
    assert!(!shown.contains("the-users-own"), "{shown}");
    let toml = fs::read_to_string(setup.path("servers.toml")).expect("it is there");
    assert!(toml.contains("env = { BRAVE_API_KEY = \"${BRAVE_API_KEY}\" }"), "{toml}\n{shown}");
    let kept = fs::read_to_string(setup.path("secrets.env")).expect("it was made");
    assert!(kept.contains("BRAVE_API_KEY=the-users-own"), "{kept}");
}

#[test]
fn a_doctor_that_is_interrupted_does_not_say_that_nothing_is_wrong() {
    let setup = Setup::new().server("slow", json!({ "never_answer": true }));
    setup.write();
    let terminal = crate::shell::Terminal::new();
    let mut nonet = command(setup.folder.path());
    let child = terminal.spawn(nonet.arg("doctor").env("TERM", "xterm-256color"));
    let mut seen = String::new();
    eventually("it has begun", || {
        seen.push_str(&terminal.read());
        seen.contains("starting servers").then_some(())
    });
    assert_eq!(child.interrupt(), Some(130));
    seen.push_str(&terminal.read());
    assert!(!seen.contains("nothing to fix"), "{seen}");
}
