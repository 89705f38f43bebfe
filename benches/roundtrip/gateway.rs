//! Starts the measured programs: Nonet, the servers behind it, and FastMCP's proxy.

use std::{
    net::TcpListener,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    http::{self, Session},
    options::Options,
    rows::Server,
    stdio::Peer,
};

/// How long anything may take to become ready.
const PATIENCE: Duration = Duration::from_secs(60);

/// What FastMCP runs: a proxy in front of one program, with one session for all calls.
const FASTMCP: &str = "\
import asyncio, sys
from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from fastmcp.server import create_proxy
async def main():
    async with Client(StdioTransport(sys.argv[1], ['--echo-server'])) as client:
        await create_proxy(client).run_async(show_banner=False)
asyncio.run(main())
";

/// Returns the path of this program, which also acts as every server.
pub fn own() -> PathBuf {
    std::env::current_exe().expect("a running program has a path")
}

/// Returns the command of this program as a server.
pub fn server(mode: &str) -> Command {
    let mut command = Command::new(own());
    command.arg(mode);
    command
}

/// Returns the table of a server that is this program.
pub fn entry(name: &str, mode: &str) -> String {
    format!("[servers.{name}]\ncommand = {:?}\nargs = [{mode:?}]\n", own())
}

/// A folder with a configuration and all of Nonet's files.
pub struct Folder {
    folder: tempfile::TempDir,
    /// The program that runs Nonet, and its arguments; empty for none.
    under: Vec<String>,
}

impl Folder {
    /// Writes a configuration with these servers.
    pub fn with(servers: &str, options: &Options) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        // Results that a preview would shorten arrive whole.
        let text = format!(
            "[gateway]\nmax_result_bytes = 200_000_000\nallow_without_tokens = true\n[embedder]\ncache = {:?}\n{servers}",
            folder.path().join("cache")
        );
        std::fs::write(folder.path().join("servers.toml"), text).expect("a writable folder");
        Self { folder, under: options.under.clone() }
    }

    /// Returns the command of Nonet with this configuration.
    pub fn nonet(&self) -> Command {
        let path = self.folder.path();
        let mut words = self.under.iter().map(String::as_str).chain([env!("CARGO_BIN_EXE_nonet")]);
        let mut command = Command::new(words.next().expect("at least Nonet itself"));
        command.args(words).arg("serve").arg("--config").arg(path.join("servers.toml"));
        // Every call adds a line to the log, which nobody reads here.
        command.env("XDG_STATE_HOME", path.join("state")).env_remove("NONET_LOG").stderr(Stdio::null());
        command
    }
}

/// Waits until a call of `echo` through the gateway succeeds, and search covers all tools if this build has
/// an engine.
pub fn until_ready(gateway: &mut dyn Server) {
    let mut until = |what: &str, name: &str, params: Value, is_ready: &dyn Fn(&Value) -> bool| {
        let began = Instant::now();
        loop {
            let call = json!({ "name": "execute_tool", "arguments": { "name": name, "params": params } });
            let answer = gateway.ask("tools/call", call);
            if is_ready(&answer["result"]) {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{what}: {answer}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    until("no call succeeds", "echo.echo", json!({ "text": "ready" }), &|result| {
        result["content"][0]["text"] == "ready"
    });
    until("search is not ready", "gateway.status", json!({}), &|result| {
        let text = result["content"][0]["text"].as_str().unwrap_or_default();
        let status: Value = serde_json::from_str(text).unwrap_or_default();
        let search = &status["search"];
        search["indexed"] == search["of"] && search["of"].as_u64() > Some(3)
    });
}

/// A process with a session over HTTP; ends with it.
pub struct OverHttp {
    child: Child,
    pub session: Session,
}

impl OverHttp {
    /// Starts the echo server.
    pub fn echo() -> Self {
        let mut child =
            server("--echo-http").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let port = http::port(child.stdout.as_mut().expect("a piped stdout"));
        Self { child, session: Session::open(port) }
    }

    /// Starts Nonet with a server at this port.
    pub fn nonet(folder: &Folder) -> Self {
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let port = free.expect("a free port").port();
        let mut command = folder.nonet();
        command.arg("--http").arg(format!("127.0.0.1:{port}")).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.spawn().expect("nonet starts");
        let began = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(began.elapsed() < PATIENCE, "nonet does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        Self { child, session: Session::open(port) }
    }

    /// Returns the table of this server in a configuration.
    pub fn entry(&self, name: &str) -> String {
        format!("[servers.{name}]\nurl = \"http://127.0.0.1:{}/mcp\"\n", self.session.port())
    }
}

impl Drop for OverHttp {
    fn drop(&mut self) {
        // Terminated, not killed: a profiler writes its figures at the end.
        let process = nix::unistd::Pid::from_raw(self.child.id().cast_signed());
        let _ = nix::sys::signal::kill(process, nix::sys::signal::Signal::SIGTERM);
        let _ = self.child.wait();
    }
}

/// A separate Redis; ends with the value.
pub struct Redis {
    child: Child,
    port: u16,
}

impl Redis {
    /// Starts a Redis; prints a note and returns `None` without a `redis-server`.
    pub fn start() -> Option<Self> {
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let port = free.expect("a free port").port();
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
        let Ok(child) = command.stdout(Stdio::null()).spawn() else {
            eprintln!("there is no redis-server: the cluster is left out");
            return None;
        };
        Some(Self { child, port })
    }

    /// Returns the table that makes a gateway one of its replicas.
    pub fn table(&self, name: &str) -> String {
        format!("[cluster]\nredis = \"redis://127.0.0.1:{}\"\nname = \"{name}\"\n", self.port)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts FastMCP's proxy, if `python3` has it; otherwise prints that it is left out.
pub fn fastmcp() -> Option<Peer> {
    let quiet = |command: &mut Command| {
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    if !quiet(Command::new("python3").args(["-c", "import fastmcp"])) {
        eprintln!("python3 has no fastmcp: its proxy is left out");
        return None;
    }
    Some(Peer::start(Command::new("python3").args(["-c", FASTMCP]).arg(own()).stderr(Stdio::null())))
}

/// Returns a figure of a process in bytes from `/proc`, such as `VmRSS`; `None` on systems other than Linux.
pub fn memory(child: &Child, figure: &str) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(figure))?;
    let kb: f64 = line.trim_start_matches(':').trim().trim_end_matches(" kB").parse().ok()?;
    Some(kb * 1_024.0)
}
