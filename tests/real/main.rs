//! Nonet with third-party servers, clients and a browser.
//!
//! `.ci/run` installs the servers and clients, and sets NONET_REAL to their folder. Without it, these tests
//! have nothing to talk to: they print a note and end.

#![expect(unreachable_pub, reason = "a program of tests has no face")]
#![expect(clippy::disallowed_methods, reason = "a queue of a test ends with it")]
#![allow(clippy::unwrap_used)] // A test may panic.

mod apps;
mod clients;
mod cluster;
mod codex;
mod documents;
#[path = "../gateway/model_service.rs"]
#[allow(dead_code)] // The tests of model apps use the rest.
mod model_service;
mod page;
mod recording;
#[cfg(target_os = "linux")]
mod sandbox;
mod session;
mod signing_in;

use std::{
    ffi::OsStr,
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

const NONET: &str = env!("CARGO_BIN_EXE_nonet");

/// Returns the browser; `None` without one.
fn chromium() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let programs = ["chromium", "google-chrome"].iter();
    let found = programs
        .flat_map(|name| std::env::split_paths(&path).map(move |folder| folder.join(name)))
        .find(|program| program.is_file());
    if found.is_none() {
        eprintln!("skipped: there is no Chromium on the PATH; `.ci/run` installs it where it can");
    }
    found
}

/// Returns the folder of the real servers; `None` if they are not installed.
fn installed() -> Option<PathBuf> {
    let folder = std::env::var_os("NONET_REAL").map(PathBuf::from);
    if folder.is_none() {
        eprintln!("skipped: NONET_REAL is not set; `.ci/run` installs the real servers and sets it");
    }
    folder
}

/// Returns a program with its home in a folder, so that tests do not learn from each other.
fn at_home(program: impl AsRef<OsStr>, home: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("HOME", home).env_remove("XDG_STATE_HOME");
    command
}

/// A folder with files, a git repository and a configuration of five real servers.
struct Place {
    folder: tempfile::TempDir,
    real: PathBuf,
}

impl Place {
    fn new(real: PathBuf) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        fs::create_dir(at.join("files")).unwrap();
        fs::write(at.join("files/hello.txt"), "Hello from a file.\n").unwrap();
        fs::create_dir(at.join("repo")).unwrap();
        for arguments in [
            &["init", "-q"][..],
            &[
                "-c",
                "user.name=a",
                "-c",
                "user.email=a@example.com",
                "commit",
                "-q",
                "--allow-empty",
                "-m",
                "The first commit",
            ],
        ] {
            let done = Command::new("git").args(arguments).current_dir(at.join("repo")).status().unwrap();
            assert!(done.success());
        }
        let (node, python) = (real.join("node/node_modules/.bin"), real.join("venv/bin"));
        let config = format!(
            "[gateway]\nallow_without_tokens = true\n[embedder]\ncache = {cache:?}\n\
             [servers.everything]\ncommand = {everything:?}\n\
             [servers.filesystem]\ncommand = {filesystem:?}\nargs = [{files:?}]\n\
             [servers.memory]\ncommand = {memory:?}\nenv = {{ MEMORY_FILE_PATH = {store:?} }}\n\
             [servers.git]\ncommand = {git:?}\nargs = [\"--repository\", {repo:?}]\n\
             [servers.time]\ncommand = {time:?}\nargs = [\"--local-timezone\", \"UTC\"]\n",
            cache = at.join("cache"),
            everything = node.join("mcp-server-everything"),
            filesystem = node.join("mcp-server-filesystem"),
            files = at.join("files"),
            memory = node.join("mcp-server-memory"),
            store = at.join("memory.jsonl"),
            git = python.join("mcp-server-git"),
            repo = at.join("repo"),
            time = python.join("mcp-server-time"),
        );
        fs::write(at.join("servers.toml"), config).unwrap();
        Self { folder, real }
    }

    fn path(&self, inside: &str) -> PathBuf {
        self.folder.path().join(inside)
    }

    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        at_home(program, self.folder.path())
    }

    fn nonet(&self, arguments: &[&str]) -> Output {
        let config = self.path("servers.toml");
        self.command(NONET).arg("--config").arg(config).args(arguments).output().unwrap()
    }

    /// Returns a command's output, as JSON; the command must succeed.
    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.nonet(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {error}");
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{arguments:?}: no JSON; {error}"))
    }
}

/// `nonet serve --http` on a free port.
struct HttpGateway {
    process: Child,
    url: String,
    /// The live page, with its token.
    page: String,
}

impl HttpGateway {
    /// Serves the folder's `servers.toml`.
    fn start(folder: &Path) -> Self {
        Self::start_at(folder, "127.0.0.1:0")
    }

    /// Serves it at an address.
    fn start_at(folder: &Path, address: &str) -> Self {
        let mut process = at_home(NONET, folder)
            .arg("--config")
            .arg(folder.join("servers.toml"))
            .args(["serve", "--http", address])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let mut address = |before: &str| {
            let mut said = lines.by_ref().map_while(Result::ok);
            let found =
                said.find_map(|line| line.split_once(before)?.1.split_whitespace().next().map(String::from));
            found.expect("the address is printed")
        };
        let url = address("serving MCP at ");
        // An unread log would block the gateway at a full pipe.
        std::thread::spawn(move || lines.for_each(drop));
        let page = Self::page(folder, &url);
        Self { process, url, page }
    }
}

impl HttpGateway {
    /// Returns the link to the page of a gateway, which is printed only at a terminal.
    fn page(folder: &Path, url: &str) -> String {
        let shared = folder.join(".local/state/nonet/shared");
        let is_socket = |path: PathBuf| path.extension().is_some_and(|end| end == "sock");
        let has_socket =
            || fs::read_dir(&shared).is_ok_and(|found| found.flatten().any(|entry| is_socket(entry.path())));
        let began = Instant::now();
        while !has_socket() {
            assert!(began.elapsed() < Duration::from_secs(20), "the gateway of {url} can be found");
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut ui = at_home(NONET, folder);
        ui.arg("--config").arg(folder.join("servers.toml")).args(["ui", "--no-browser"]);
        let link = String::from_utf8(ui.output().unwrap().stdout).unwrap().trim().to_string();
        assert_eq!(link.split_once("/ui#").unwrap().0, url.trim_end_matches("/mcp"));
        link
    }

    /// Returns the host and port.
    fn address(&self) -> String {
        let rest = self.url.trim_start_matches("http://");
        rest.split('/').next().unwrap_or_default().to_string()
    }
}

impl Drop for HttpGateway {
    fn drop(&mut self) {
        let id = self.process.id().to_string();
        let _ = Command::new("kill").arg(&id).status();
        let _ = self.process.wait();
    }
}

#[test]
fn real_servers_are_found_by_meaning_and_called() {
    let Some(real) = installed() else { return };
    let place = Place::new(real);
    let status = place.json(&["check", "--json"]);
    for server in status["servers"].as_array().unwrap() {
        assert_eq!(server["state"], "ready", "{server}");
    }
    // Both eras, as the servers really support them.
    let version = |name: &str| {
        let servers = status["servers"].as_array().unwrap();
        servers.iter().find(|server| server["name"] == name).unwrap()["version"].clone()
    };
    assert_eq!((version("memory"), version("git")), (json!("2025-11-25"), json!("2026-07-28")));

    for (query, tool) in [
        ("what time is it in Tokyo right now", "time.get_current_time"),
        ("show the history of commits", "git.git_log"),
        ("add two numbers", "everything.get-sum"),
        ("remember a person and what is known of them", "memory.create_entities"),
        ("which files are in this folder", "filesystem.list_directory"),
    ] {
        let found = place.json(&["search", query, "--json"]);
        let names: Vec<&str> =
            found["results"].as_array().unwrap().iter().filter_map(|hit| hit["name"].as_str()).collect();
        assert!(names.contains(&tool), "{query}: {names:?}");
    }

    let call = |name: &str, params: Value| place.json(&["call", name, &params.to_string(), "--json"]);
    let text = |result: &Value| result["content"][0]["text"].as_str().unwrap_or_default().to_string();
    let file = place.path("files/hello.txt");
    assert_eq!(text(&call("filesystem.read_text_file", json!({ "path": file }))), "Hello from a file.\n");
    let log = call("git__git_log", json!({ "repo_path": place.path("repo") }));
    assert!(text(&log).contains("The first commit"), "{log}");
    let sum = call("everything/get-sum", json!({ "a": 19, "b": "23" }));
    assert!(text(&sum).contains("42"), "{sum}");
    let entity =
        json!({ "entities": [{ "name": "Ada", "entityType": "person", "observations": ["writes code"] }] });
    call("memory.create_entities", entity);
    assert!(text(&call("memory.read_graph", json!({}))).contains("writes code"));
    let time = call("time.get_current_time", json!({ "timezone": "Asia/Tokyo" }));
    assert!(text(&time).contains("Asia/Tokyo"), "{time}");
    // An image passes unchanged.
    let image = call("everything.get-tiny-image", json!({}));
    assert!(image["content"].as_array().unwrap().iter().any(|block| block["type"] == "image"), "{image}");
}
