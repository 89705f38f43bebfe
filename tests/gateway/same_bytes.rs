//! Results pass unchanged, byte for byte, over every pair of transports.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use proptest::{
    prelude::*,
    strategy::ValueTree,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};
use serde_json::{Value, json};

use crate::{
    client::{VERSION_KEY, command},
    setup::{Setup, eventually, fake_server},
    web::{WebClient, http},
};

/// How many results to send over each pair.
const RESULTS: usize = 40;

/// Generates JSON text that parsing and writing would change: white space, order, numbers, escapes.
fn any_json() -> impl Strategy<Value = String> {
    let number = prop::sample::select(vec![
        "0",
        "-0",
        "1.0",
        "1e2",
        "1E+2",
        "1e400",
        "-1.50e-7",
        "12345678901234567890123",
        "0.1000",
        "9007199254740993",
    ]);
    let leaf = prop_oneof![
        number.prop_map(String::from),
        prop::sample::select(vec!["null", "true", "false", "[]", "{ }", "[ ]"]).prop_map(String::from),
        any_text(),
    ];
    let space = || prop::sample::select(vec!["", "", " ", "\t", "  "]);
    leaf.prop_recursive(12, 40, 4, move |inner| {
        let key =
            prop::sample::select(vec!["z", "a", "\\u0061b", "é", "id", "type", "result", "content", "_meta"]);
        prop_oneof![
            (prop::collection::vec(inner.clone(), 0..4), space())
                .prop_map(|(items, space)| format!("[{space}{}{space}]", items.join(","))),
            (prop::collection::vec((key, inner), 0..4), space()).prop_map(|(members, space)| {
                let members: Vec<_> =
                    members.iter().map(|(key, value)| format!("\"{key}\"{space}:{value}")).collect();
                format!("{{{}{space}}}", members.join(","))
            }),
        ]
    })
}

fn any_text() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "a",
        "text ",
        "é",
        "😀",
        "\\u00e9",
        "\\ud83d\\ude00",
        "\\/",
        "/",
        "\\n",
        "\\\"",
        "\\\\",
        "\\u0000",
        "{",
        "]",
        "id",
    ]);
    prop::collection::vec(piece, 0..6).prop_map(|pieces| format!("\"{}\"", pieces.concat()))
}

/// Generates results of calls, with unknown members.
fn any_result() -> impl Strategy<Value = String> {
    let block = (any_text(), any_json())
        .prop_map(|(text, x)| format!("{{\"x\":{x}, \"type\" :\"text\",\"text\":{text}}}"));
    let blocks =
        prop::collection::vec(block, 0..3).prop_map(|blocks| format!("\"content\": [{}]", blocks.join(" ,")));
    let members = (blocks, any_json(), any_json(), any_json(), any::<bool>());
    members.prop_map(|(blocks, structured, unknown, meta, first)| {
        let rest = format!("\"structuredContent\":{{\"v\":{structured}}},\"unknown\":{unknown},\"_meta\":{{\"m\":{meta}}},\"isError\":false");
        match first {
            true => format!("{{{blocks},{rest}}}"),
            false => format!("{{ {rest} ,{blocks} }}"),
        }
    })
}

fn results() -> Vec<String> {
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    (0..RESULTS).map(|_| any_result().new_tree(&mut runner).expect("a result").current()).collect()
}

fn script(results: &[String], sse: bool) -> Value {
    let tool = |(at, result): (usize, &String)| json!({ "name": format!("r{at}"), "on": { "flood": written(result) } });
    let slow = json!({ "name": "slow", "on": { "delay_ms": 200, "flood": written(&results[0]) } });
    let mut tools: Vec<Value> = results.iter().enumerate().map(tool).collect();
    tools.push(slow);
    json!({ "tools": tools, "sse": sse })
}

/// Returns an answer that is written as it is.
fn written(result: &str) -> Value {
    json!({ "head": format!("{{\"jsonrpc\":\"2.0\",\"id\":{{id}},\"result\":{result}}}"), "answers": true })
}

/// A program that ends with the test.
struct ChildGuard(Child);

impl Drop for ChildGuard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns a setup with the same server on stdio (`pipe`) and over HTTP (`web`).
fn setup(results: &[String]) -> (Setup, ChildGuard) {
    let setup = Setup::new();
    let (file, port) = (setup.path("web.json"), setup.path("port"));
    std::fs::write(&file, script(results, true).to_string()).expect("the script can be written");
    let server = Command::new(fake_server())
        .arg("--script-file")
        .arg(&file)
        .args(["--http", "127.0.0.1:0", "--port-file"])
        .arg(&port)
        .stderr(Stdio::null())
        .spawn()
        .expect("the server starts");
    let port = eventually("the server listens", || std::fs::read_to_string(&port).ok());
    let keys = format!("url = 'http://127.0.0.1:{port}/mcp'");
    (setup.server("pipe", script(results, false)).server_of("web", &keys), ChildGuard(server))
}

/// A client on stdio that reads lines without parsing JSON.
struct LineClient {
    _nonet: ChildGuard,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl LineClient {
    fn new(mut command: Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("nonet starts");
        let (stdin, stdout) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        Self { _nonet: ChildGuard(child), stdin, stdout: BufReader::new(stdout) }
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.stdin, "{message}").expect("nonet reads");
    }

    /// Sends a request with the id 5 and returns the line that answers it.
    fn request(&mut self, method: &str, params: Value) -> String {
        self.send(&json!({ "jsonrpc": "2.0", "id": 5, "method": method, "params": params }));
        loop {
            let mut line = String::new();
            self.stdout.read_line(&mut line).expect("nonet answers");
            assert!(!line.is_empty(), "nonet ended");
            if line.starts_with("{\"jsonrpc\":\"2.0\",\"id\":5,") {
                return line.trim_end().into();
            }
        }
    }
}

fn answer_of(result: &str) -> String {
    format!("{{\"jsonrpc\":\"2.0\",\"id\":5,\"result\":{result}}}")
}

/// Returns a result as a client of the stateless era gets it.
fn completed(result: &str) -> String {
    let inside = result.trim_end().strip_suffix('}').expect("an object");
    format!("{inside},\"resultType\":\"complete\"}}")
}

fn names() -> impl Iterator<Item = (usize, String)> {
    let of = |server: &'static str| (0..RESULTS).map(move |at| (at, format!("{server}.r{at}")));
    of("pipe").chain(of("web"))
}

fn execute(name: &str) -> Value {
    json!({ "name": "execute_tool", "arguments": { "name": name } })
}

#[test]
fn a_client_on_stdio_gets_what_servers_wrote() {
    let results = results();
    let (setup, _server) = setup(&results);
    setup.write();
    let mut client = LineClient::new(command(setup.folder.path()));
    let hello = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } });
    client.request("initialize", hello);
    client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
    for server in ["pipe", "web"] {
        eventually("the server is listed", || {
            client.request("tools/call", execute(&format!("{server}.r0"))).contains(&results[0]).then_some(())
        });
    }
    for (at, name) in names() {
        assert_eq!(client.request("tools/call", execute(&name)), answer_of(&results[at]), "{name}");
    }
    assert_eq!(client.request("tools/call", execute("pipe.slow")), answer_of(&results[0]));
    // The stateless era on the same lines.
    let mut client = LineClient::new(command(setup.folder.path()));
    let meta = json!({
        VERSION_KEY: "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "t", "version": "1" },
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let mut stateless = |name: &str| {
        let mut params = execute(name);
        params["_meta"] = meta.clone();
        client.request("tools/call", params)
    };
    for server in ["pipe", "web"] {
        eventually("the server is listed", || {
            stateless(&format!("{server}.r0")).contains("complete").then_some(())
        });
    }
    for (at, name) in names() {
        assert_eq!(stateless(&name), answer_of(&completed(&results[at])), "{name}");
    }
}

#[test]
fn a_client_over_http_gets_what_servers_wrote() {
    let results = results();
    let (setup, _server) = setup(&results);
    let site = setup.serve();
    let client = WebClient::new(&site.address, "/mcp");
    let call = |name: &str| {
        client
            .post(&json!({ "jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": execute(name) }))
            .body
    };
    for server in ["pipe", "web"] {
        eventually("the server is listed", || {
            call(&format!("{server}.r0")).contains(&results[0]).then_some(())
        });
    }
    for (at, name) in names() {
        let body = call(&name);
        let answer = body.lines().find(|line| line.contains("\"result\"")).unwrap_or_default();
        assert_eq!(answer.trim_start_matches("data:").trim(), answer_of(&results[at]), "{name}: {body}");
    }
    // An event stream.
    let body = call("web.slow");
    assert!(body.contains(&format!("data: {}\n", answer_of(&results[0]))), "{body}");
    let headers =
        [("mcp-protocol-version", "2026-07-28"), ("mcp-method", "tools/call"), ("mcp-name", "execute_tool")];
    for (at, name) in names() {
        let mut params = execute(&name);
        params["_meta"] = json!({
            VERSION_KEY: "2026-07-28",
            "io.modelcontextprotocol/clientInfo": { "name": "t", "version": "1" },
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        let message = json!({ "jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": params });
        let body = http(&site.address, "POST", "/mcp", &headers, &message.to_string()).body;
        assert!(body.contains(&answer_of(&completed(&results[at]))), "{name}: {body}");
    }
}
