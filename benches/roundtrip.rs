//! What the gateway adds to a call: the same echo over stdio, straight to a trivial server and through
//! `execute_tool`, in turns within one run. Prints the p50 of both and their ratio.
//!
//! `cargo bench --bench roundtrip [-- CALLS]`

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

const CALLS: usize = 5_000;
const WARM_UP: usize = 500;
const PAYLOAD: usize = 200;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.iter().any(|argument| argument == "--echo-server") {
        return echo_server();
    }
    let calls = arguments.iter().find_map(|argument| argument.parse().ok()).unwrap_or(CALLS);
    let own = std::env::current_exe().expect("a running program has a path");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let config = folder.path().join("servers.toml");
    let text = format!(
        "[embedder]\ncache = {:?}\n[servers.echo]\ncommand = {:?}\nargs = [\"--echo-server\"]\n",
        folder.path(),
        own
    );
    std::fs::write(&config, text).expect("a writable folder");

    let mut direct = Peer::start(Command::new(&own).arg("--echo-server"));
    let mut gateway = Peer::start(
        Command::new(env!("CARGO_BIN_EXE_nonet"))
            .arg("--config")
            .arg(&config)
            .env("XDG_STATE_HOME", folder.path())
            .env_remove("NONET_LOG")
            // Every call leaves its line in the log; here nobody reads it.
            .stderr(Stdio::null()),
    );
    let arguments = json!({ "text": "x".repeat(PAYLOAD) });
    let straight = json!({ "name": "echo", "arguments": arguments });
    let through =
        json!({ "name": "execute_tool", "arguments": { "name": "echo.echo", "params": arguments } });
    // The model loads and the tools are embedded first, so that nothing else is measured.
    std::thread::sleep(Duration::from_secs(5));
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for n in 0..calls + WARM_UP {
        let (one, other) = (direct.call(&straight), gateway.call(&through));
        if n >= WARM_UP {
            a.push(one);
            b.push(other);
        }
    }
    let (direct_p50, gateway_p50) = (percentile(&mut a, 50), percentile(&mut b, 50));
    println!("{calls} calls, {PAYLOAD} bytes, stdio, one at a time");
    println!("direct   p50 {direct_p50:>8.1?}  p99 {:>8.1?}", percentile(&mut a, 99));
    println!("gateway  p50 {gateway_p50:>8.1?}  p99 {:>8.1?}", percentile(&mut b, 99));
    println!("ratio    {:.2}", gateway_p50.as_secs_f64() / direct_p50.as_secs_f64());
    println!("gateway's own share at p50: {:.1?}", gateway_p50.saturating_sub(direct_p50));
}

fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    times[(times.len() - 1) * percent / 100]
}

/// A server at the other end of two pipes.
struct Peer {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    next: u64,
}

impl Peer {
    fn start(command: &mut Command) -> Self {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program starts");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("a piped stdout"));
        let mut peer = Self { child, input, output, next: 0 };
        peer.request(
            "initialize",
            &json!({
                "protocolVersion": "2025-11-25", "capabilities": {},
                "clientInfo": { "name": "roundtrip", "version": "1" },
            }),
        );
        peer.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
        peer
    }

    fn send(&mut self, message: &Value) {
        let mut line = message.to_string();
        line.push('\n');
        self.input
            .as_mut()
            .and_then(|input| input.write_all(line.as_bytes()).ok())
            .expect("the server reads");
    }

    fn request(&mut self, method: &str, params: &Value) -> Value {
        self.next += 1;
        self.send(&json!({ "jsonrpc": "2.0", "id": self.next, "method": method, "params": params }));
        let mut line = String::new();
        self.output.read_line(&mut line).expect("the server answers");
        serde_json::from_str(&line).expect("an answer is JSON")
    }

    fn call(&mut self, params: &Value) -> Duration {
        let began = Instant::now();
        let answer = self.request("tools/call", params);
        let took = began.elapsed();
        let result = &answer["result"];
        assert!(result["content"].is_array() && result.get("isError").is_none(), "{answer}");
        took
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.input.take();
        let _ = self.child.wait();
    }
}

/// A server that does nothing but echo, as fast as it can.
fn echo_server() {
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let Ok(message) =
            line.map_err(|_| ()).and_then(|line| serde_json::from_str::<Value>(&line).map_err(|_| ()))
        else {
            break;
        };
        let Some(id) = message.get("id") else { continue };
        let result = match message["method"].as_str() {
            Some("initialize") => json!({
                "protocolVersion": "2025-11-25", "capabilities": { "tools": {} },
                "serverInfo": { "name": "echo", "version": "1" },
            }),
            Some("tools/list") => json!({ "tools": [{
                "name": "echo", "description": "Echoes text",
                "inputSchema": { "type": "object", "properties": { "text": { "type": "string" } }, "required": ["text"] },
            }]}),
            Some("tools/call") => {
                json!({ "content": [{ "type": "text", "text": message["params"]["arguments"]["text"] }] })
            }
            _ => {
                let error =
                    json!({ "jsonrpc": "2.0", "id": id, "error": { "code": -32601, "message": "no" } });
                let _ = writeln!(out, "{error}").and_then(|()| out.flush());
                continue;
            }
        };
        let _ = writeln!(out, "{}", json!({ "jsonrpc": "2.0", "id": id, "result": result }))
            .and_then(|()| out.flush());
    }
}
