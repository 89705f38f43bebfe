//! What a client waits for at the start: the handshake, beside slow or dead servers; the same through a
//! shared gateway; and with a large catalogue the first search by meaning, with the memory afterwards.
//!
//! `cargo bench --bench start [-- STARTS]`. The first run with the large catalogue embeds 3,000 tools, which
//! takes half a minute; the second run is measured.

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

const STARTS: usize = 21;
const TOOLS: usize = 3_000;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|argument| argument == "--server") {
        return server(arguments[at + 1].parse().unwrap_or(0), arguments[at + 2].parse().unwrap_or(0));
    }
    let starts = arguments.iter().find_map(|argument| argument.parse().ok()).unwrap_or(STARTS);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();

    let slow: String = (1..=5).map(|seconds| entry(&format!("slow-{seconds}"), seconds * 1_000, 3)).collect();
    let dead = entry("dead", u64::MAX, 0);
    write(folder, "", &format!("{slow}{dead}"));
    report("five servers that take 1 to 5 s, one that never answers", starts, || Nonet::start(folder));

    // In a separate folder: the gateway exits by itself, a moment after its last client.
    let apart = folder.join("shared");
    std::fs::create_dir(&apart).expect("a writable folder");
    write(&apart, "shared = true\nshared_grace = '200ms'", &slow);
    let first = Instant::now();
    let kept = Nonet::start(&apart);
    println!("shared gateway: the first client, which starts it: {:.1?}", first.elapsed());
    report("shared gateway: each further client", starts, || Nonet::start(&apart));
    drop(kept);

    write(folder, "", &entry("many", 0, TOOLS));
    for known in [false, true] {
        let began = Instant::now();
        let mut nonet = Nonet::start(folder);
        let covered = loop {
            let status = nonet.call("execute_tool", json!({ "name": "gateway.status" }));
            let text = status["content"][0]["text"].as_str().unwrap_or_default();
            let status: Value = serde_json::from_str(text).unwrap_or_default();
            let search = &status["search"];
            if search["indexed"] == search["of"] && search["of"].as_u64() > Some(TOOLS as u64) {
                break began.elapsed();
            }
            if began.elapsed() > Duration::from_secs(300) {
                println!("search by meaning did not come: {search}");
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        if known {
            for n in 0..100 {
                nonet.call("search_tools", json!({ "query": format!("read the file number {n}") }));
            }
            println!("{TOOLS} tools, embedded before: search by meaning covers them after {covered:.2?}");
            println!("memory after 100 searches: {} MB", resident(&nonet.child) / 1_000);
        }
    }
}

fn entry(name: &str, delay: u64, tools: usize) -> String {
    let own = std::env::current_exe().expect("a running program has a path");
    format!("[servers.{name}]\ncommand = {own:?}\nargs = ['--server', '{delay}', '{tools}']\n")
}

fn write(folder: &Path, gateway: &str, servers: &str) {
    let text = format!("[gateway]\n{gateway}\n[embedder]\ncache = {:?}\n{servers}", folder.join("cache"));
    std::fs::write(folder.join("servers.toml"), text).expect("a writable folder");
}

fn report(what: &str, starts: usize, start: impl Fn() -> Nonet) {
    let mut took: Vec<Duration> = (0..starts)
        .map(|_| {
            let began = Instant::now();
            let nonet = start();
            let took = began.elapsed();
            drop(nonet);
            took
        })
        .collect();
    took.sort_unstable();
    println!(
        "{what}: handshake after p50 {:.1?}, p90 {:.1?}, slowest {:.1?} ({starts} starts)",
        took[starts / 2],
        took[starts * 9 / 10],
        took[starts - 1]
    );
}

/// Returns the resident memory of a process in kB.
fn resident(child: &Child) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse().unwrap_or(0)
}

/// The program, once it has answered the handshake.
struct Nonet {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Nonet {
    fn start(folder: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_nonet"))
            .arg("--config")
            .arg(folder.join("servers.toml"))
            .env("XDG_STATE_HOME", folder.join("state"))
            .env_remove("NONET_LOG")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("nonet starts");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut nonet = Self { child, input, output };
        let client = json!({ "name": "bench", "version": "1" });
        nonet.ask(
            "initialize",
            json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client }),
        );
        nonet.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
        nonet
    }

    fn send(&mut self, message: &Value) {
        let input = self.input.as_mut().expect("it is open");
        input.write_all(format!("{message}\n").as_bytes()).expect("nonet reads");
    }

    fn ask(&mut self, method: &str, params: Value) -> Value {
        self.send(&json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }));
        loop {
            let mut line = String::new();
            self.output.read_line(&mut line).expect("nonet answers");
            let mut message: Value = serde_json::from_str(&line).expect("JSON");
            if message["id"] == 1 {
                return message["result"].take();
            }
        }
    }

    fn call(&mut self, tool: &str, arguments: Value) -> Value {
        self.ask("tools/call", json!({ "name": tool, "arguments": arguments }))
    }
}

impl Drop for Nonet {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.child.wait();
    }
}

/// Runs a slow server with this many tools.
fn server(delay: u64, tools: usize) {
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let message: Value = serde_json::from_str(&line).unwrap_or_default();
        let (Some(method), Some(id)) = (message["method"].as_str(), message.get("id")) else { continue };
        if delay == u64::MAX {
            continue;
        }
        std::thread::sleep(Duration::from_millis(delay));
        let answer = match method {
            "initialize" => json!({ "result": {
                "protocolVersion": message["params"]["protocolVersion"],
                "capabilities": { "tools": {} },
                "serverInfo": { "name": "slow", "version": "1" },
            }}),
            "tools/list" => {
                let tool = |n: usize| {
                    let description =
                        format!("Does the thing number {n} with a file, a row or a page of the {n}th kind");
                    json!({ "name": format!("tool_{n}"), "description": description, "inputSchema": { "type": "object" } })
                };
                json!({ "result": { "tools": (0..tools).map(tool).collect::<Vec<_>>() } })
            }
            _ => json!({ "error": { "code": -32601, "message": "not here" } }),
        };
        let mut answer = answer;
        answer["jsonrpc"] = json!("2.0");
        answer["id"] = id.clone();
        println!("{answer}");
    }
}
