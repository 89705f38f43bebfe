//! Servers and clients whose messages are too large, too many or too deep. A good server behind the same
//! gateway still answers, and the gateway's memory use stays low.

use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    client::Client,
    setup::{Setup, eventually, fake_server, json_of, text_of},
};

const MB: usize = 1_000_000;
/// The most memory the gateway may use, in bytes.
#[cfg(target_os = "linux")]
const MOST_MEMORY: usize = 400 * MB;

/// How the hostile server is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Stdio,
    /// Streamable HTTP, answering with events.
    Events,
    /// Streamable HTTP, answering with JSON.
    Json,
    LegacySse,
}

const WAYS: [Way; 4] = [Way::Stdio, Way::Events, Way::Json, Way::LegacySse];

/// The scripted server as a program that serves HTTP.
struct WebServer {
    child: Child,
    port: String,
    _folder: TempDir,
}

impl WebServer {
    fn start(script: &Value) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, port_file) = (folder.path().join("script.json"), folder.path().join("port"));
        std::fs::write(&file, script.to_string()).expect("it can be written");
        let child = Command::new(fake_server())
            .arg("--script-file")
            .arg(&file)
            .args(["--http", "127.0.0.1:0", "--port-file"])
            .arg(&port_file)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the scripted server starts");
        let port = eventually("it listens", || std::fs::read_to_string(&port_file).ok());
        Self { child, port, _folder: folder }
    }
}

impl Drop for WebServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A gateway with hostile servers beside a good one.
struct Bench {
    client: Client,
    _servers: Vec<WebServer>,
}

/// Returns a setup with a good server.
fn setup() -> Setup {
    Setup::new().server(
        "good",
        json!({ "tools": [{ "name": "echo" }, { "name": "text", "on": { "size": 90_000 } }, { "name": "who", "on": { "counter": true } }] }),
    )
}

/// Adds a hostile server, reached in this way.
fn with(setup: Setup, servers: &mut Vec<WebServer>, name: &str, way: Way, mut script: Value) -> Setup {
    match way {
        Way::Stdio => return setup.server(name, script),
        Way::Events => script["sse"] = true.into(),
        Way::Json => {}
        Way::LegacySse => script["legacy_sse"] = true.into(),
    }
    let server = WebServer::start(&script);
    let path = if way == Way::LegacySse { "sse" } else { "mcp" };
    let keys = format!("url = 'http://127.0.0.1:{}/{path}'", server.port);
    servers.push(server);
    setup.server_of(name, &keys)
}

impl Bench {
    fn start(way: Way, script: Value) -> Self {
        let mut servers = Vec::new();
        let setup = with(setup(), &mut servers, "bad", way, script);
        let mut bench = Self { client: setup.start_program(), _servers: servers };
        bench.client.until_ready("good");
        bench
    }

    /// Calls the good server and checks its answer.
    fn good(&mut self, n: usize) {
        let answer = json_of(&self.client.execute("good.echo", json!({ "n": n })));
        assert_eq!(answer, json!({ "n": n }));
    }

    /// Calls tools of the hostile server concurrently while the good server keeps answering. Returns the
    /// results.
    fn attack(&mut self, tools: &[&str]) -> Vec<Value> {
        let ids: Vec<i64> = tools
            .iter()
            .map(|tool| self.client.begin_call("execute_tool", json!({ "name": format!("bad.{tool}") })))
            .collect();
        let mut n = 0;
        eventually(&format!("{tools:?} end"), || {
            self.good(n);
            n += 1;
            ids.iter().all(|id| self.client.has_answer(*id)).then_some(())
        });
        self.good(n);
        let results = ids.into_iter().map(|id| self.client.result(id)).collect();
        self.is_small(&format!("{tools:?}"));
        results
    }

    fn is_small(&self, what: &str) {
        #[cfg(target_os = "linux")]
        {
            let most = crate::setup::memory(self.client.pid(), "VmHWM");
            println!("{what}: at most {} MB", most / MB);
            assert!(most < MOST_MEMORY, "{what}: the gateway took {} MB", most / MB);
        }
        #[cfg(not(target_os = "linux"))]
        let _ = what;
    }
}

/// Returns a message of this size.
fn flood(head: &str, unit: &str, tail: &str, bytes: usize) -> Value {
    json!({ "head": head, "unit": unit, "tail": tail, "bytes": bytes })
}

/// Returns a message that is not an answer, after which the call ends.
fn noise(head: &str, unit: &str, tail: &str, bytes: usize) -> Value {
    json!({ "flood": flood(head, unit, tail, bytes), "text": "done" })
}

fn times(head: &str, times: usize) -> Value {
    json!({ "flood": { "head": head, "times": times }, "text": "done" })
}

fn answer(head: &str, unit: &str, tail: &str, bytes: usize) -> Value {
    let mut flood = flood(head, unit, tail, bytes);
    flood["answers"] = true.into();
    json!({ "flood": flood })
}

const RESULT: &str = r#"{"jsonrpc":"2.0","id":{id},"result":{"content":[],"structuredContent":{"a":["#;
const NOTICE: &str = r#"{"jsonrpc":"2.0","method":"notifications/x","params":{"a":["#;

#[test]
fn what_a_server_sends_beside_its_answers_costs_nobody_anything() {
    let rows = [
        ("objects", noise(NOTICE, "{},", "0]}}", 50 * MB)),
        ("filled", noise(NOTICE, r#"{"":0},"#, "0]}}", 50 * MB)),
        ("almost", noise(NOTICE, r#"{"":0},"#, "0]}}", 20_000)),
        (
            "text",
            noise(r#"{"jsonrpc":"2.0","method":"notifications/x","params":{"a":""#, "x", "\"}}", 20 * MB),
        ),
        ("deep", noise(NOTICE, "[", "", 20 * MB)),
        (
            "log",
            noise(
                r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":""#,
                "x",
                "\"}}",
                20 * MB,
            ),
        ),
        ("method", noise(r#"{"jsonrpc":"2.0","method":""#, "x", "\"}", 20 * MB)),
        ("long_method", noise(r#"{"jsonrpc":"2.0","id":1,"method":""#, "x", "\"}", 900_000)),
        ("id", noise(r#"{"jsonrpc":"2.0","method":"ping","id":""#, "x", "\"}", 20 * MB)),
        ("long_id", noise(r#"{"jsonrpc":"2.0","method":"ping","id":""#, "x", "\"}", 900_000)),
        ("digits", noise(r#"{"jsonrpc":"2.0","method":"ping","id":1"#, "0", "}", 900_000)),
        ("batch", noise("[", "{},", "{}]", 100 * MB)),
        ("pings", noise("[", r#"{"jsonrpc":"2.0","method":"ping","id":1},"#, "{}]", 7 * MB)),
        (
            "twice",
            noise(r#"{"jsonrpc":"2.0","method":"x","method":"y","params":{"a":[0"#, ",0", "]}}", 900_000),
        ),
        ("nothing", noise("x", "x", "x", 50 * MB)),
        ("stranger", noise(r#"{"jsonrpc":"2.0","id":77777,"result":{"a":[0"#, ",{}", "]}}", 50 * MB)),
        ("late", noise(r#"{"jsonrpc":"2.0","result":{"a":[0"#, ",{}", "]},\"id\":77777}", 50 * MB)),
        (
            "progress",
            times(
                r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":{n}}}"#,
                10_000,
            ),
        ),
        (
            "logs",
            times(
                r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"{n}"}}"#,
                10_000,
            ),
        ),
        (
            "cancels",
            times(
                r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":{n}}}"#,
                10_000,
            ),
        ),
    ];
    for way in WAYS {
        // A JSON answer is not accompanied by other messages.
        if way == Way::Json {
            continue;
        }
        let tools = rows.iter().map(|(name, on)| json!({ "name": name, "on": on }));
        let mut bench = Bench::start(way, json!({ "tools": tools.collect::<Vec<_>>() }));
        bench.client.until_ready("bad");
        for (name, _) in &rows {
            let result = bench.attack(&[name]).remove(0);
            assert_eq!(result["content"][0]["text"], "done", "{way:?} {name}: {result}");
        }
        assert_eq!(bench.client.server("bad")["state"], "ready", "{way:?}");
    }
}

#[test]
fn answers_that_are_too_large_fail_and_large_ones_arrive() {
    let error = r#"{"jsonrpc":"2.0","id":{id},"error":{"code":-32000,"message":"because "#;
    let text = r#"{"jsonrpc":"2.0","id":{id},"result":{"content":[{"type":"text","text":""#;
    let rows = [
        ("bytes", answer(RESULT, "{},", "0]}}}", 100 * MB), "longer than the limit of 67108864 bytes"),
        ("values", answer(RESULT, r#"{"":0},"#, "0]}}}", 20 * MB), "more than 2097152 values"),
        ("numbers", answer(RESULT, "0,", "0]}}}", 20 * MB), "more than 2097152 values"),
        ("deep", answer(RESULT, "[", "", 20 * MB), "nested deeper than 127 levels"),
        ("twice", answer(RESULT, "0,", r#"0]}},"result":{}}"#, MB), "two members `result`"),
        ("error", answer(error, "x", "\"}}", 20 * MB), "longer than the limit of 1048576 bytes"),
        ("said", answer(error, "x", "\"}}", 20 * MB), "because xxx"),
        ("long_error", answer(error, "x", "\"}}", 500_000), "cut: the message had 500008 bytes"),
        (
            "error_data",
            answer(
                r#"{"jsonrpc":"2.0","id":{id},"error":{"code":-32000,"message":"well","data":[0"#,
                ",0",
                "]}}",
                30_000,
            ),
            "well",
        ),
        (
            "error_text",
            answer(
                r#"{"jsonrpc":"2.0","id":{id},"error":{"code":-32000,"message":"well","data":""#,
                "x",
                "\"}}",
                500_000,
            ),
            "its data of 500002 bytes was left out",
        ),
        ("almost", answer(RESULT, r#"{"":0},"#, "0]}}}", 1_500_000), ""),
        ("text", answer(text, "x", "\"}]}}", 20 * MB), ""),
    ];
    for way in WAYS {
        let tools = rows.iter().map(|(name, on, _)| json!({ "name": name, "on": on }));
        let mut bench = Bench::start(way, json!({ "tools": tools.collect::<Vec<_>>() }));
        bench.client.until_ready("bad");
        for (name, _, expected) in &rows {
            let result = bench.attack(&[name]).remove(0);
            let fails = !expected.is_empty();
            assert_eq!(result["isError"] == true, fails, "{way:?} {name}: {result:.300}");
            if fails {
                let said = json_of(&result)["error"]["message"].to_string();
                assert!(said.contains(expected), "{way:?} {name}: {said:.300}");
                assert!(said.len() < 70_000, "{way:?} {name}: {} bytes", said.len());
            }
        }
        for result in bench.attack(&["text"; 4]) {
            assert_ne!(result["isError"], true, "{way:?}: {result:.300}");
        }
        assert_eq!(bench.client.server("bad")["state"], "ready", "{way:?}");
    }
}

#[test]
fn lists_without_end_end() {
    let tool = r#"{"name":"t{n}","description":""#;
    let page = |cursor: &str| {
        let tail = format!("\"}}],\"nextCursor\":\"{cursor}\"}}}}");
        let head = format!("{{\"jsonrpc\":\"2.0\",\"id\":{{id}},\"result\":{{\"tools\":[{tool}");
        (head, tail)
    };
    let (head, tail) = page("{n}");
    let many = "{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{\"tools\":[{\"name\":\"t{n}\"}";
    let end = "],\"nextCursor\":\"{n}\"}}";
    let rows = [
        ("pages", flood(&head, "x", &tail, 20 * MB), "longer than the limit of 8388608 bytes"),
        ("large", flood(&head, "x", &tail, 7 * MB), ""),
        ("small", flood(&head, "x", &tail, 10), ""),
        ("circle", flood(&head, "x", &page("again").1, 10), ""),
        (
            "empty",
            flood(
                "{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{\"tools\":[],\"nextCursor\":\"{n}\"}}",
                "",
                "",
                0,
            ),
            "nothing",
        ),
        ("objects", flood(many, ",{}", end, 8 * MB - 1_000), "more than 419430 values"),
        ("nulls", flood(many, ",{}", end, 500_000), ""),
        ("schemas", flood(many, ",{\"name\":\"x\",\"inputSchema\":{\"a\":{\"b\":{}}}}", end, 800_000), ""),
    ];
    for way in WAYS {
        let mut servers = Vec::new();
        let mut all = setup();
        for (name, list, _) in &rows {
            all =
                with(all, &mut servers, name, way, json!({ "list_flood": list, "tools": [{ "name": "x" }] }));
        }
        let mut bench = Bench { client: all.start_program(), _servers: servers };
        bench.client.until_ready("good");
        for (name, _, expected) in &rows {
            let mut n = 0;
            let server = eventually(&format!("{way:?}: `{name}` is over"), || {
                bench.good(n);
                n += 1;
                let server = bench.client.server(name);
                let is_over = match *expected {
                    "" => server["state"] == "ready" && server["tools"] != 0,
                    "nothing" => server["state"] == "ready",
                    _ => server["state"] == "down",
                };
                is_over.then_some(server)
            });
            if !matches!(*expected, "" | "nothing") {
                let said = server["last_error"].as_str().unwrap_or_default();
                assert!(said.contains(expected), "{way:?} {name}: {server}");
            }
            bench.is_small(&format!("{way:?} {name}"));
        }
    }
}

#[test]
fn what_a_server_writes_on_stderr_costs_nothing() {
    let on = json!({ "stderr_bytes": 20 * MB, "text": "done" });
    let mut bench = Bench::start(Way::Stdio, json!({ "tools": [{ "name": "noisy", "on": on }] }));
    bench.client.until_ready("bad");
    assert_eq!(text_of(&bench.attack(&["noisy"])[0]), "done");
}

#[test]
fn a_server_that_does_not_read_gets_no_more_calls() {
    let tools =
        json!([{ "name": "stop", "on": { "stop_reading": true, "text": "done" } }, { "name": "echo" }]);
    let setup = setup().server("bad", json!({ "tools": tools }));
    let mut bench = Bench { client: setup.start_program(), _servers: Vec::new() };
    bench.client.until_ready("good");
    bench.client.until_ready("bad");
    bench.attack(&["stop"]);
    let text = "x".repeat(4_000_000);
    let mut n = 0;
    let fault = eventually("a call is not sent", || {
        bench.good(n);
        n += 1;
        let call = json!({ "name": "bad.echo", "params": { "text": text }, "timeout_ms": 300 });
        let result = bench.client.call("execute_tool", call);
        // One more call may have been read, and the next ones fit into the pipe and the backlog.
        let fault = json_of(&result)["error"].take();
        (result["isError"] == true && fault["code"] != "timeout").then_some(fault)
    });
    assert_eq!(fault["code"], "server_down", "{fault}");
    assert!(
        fault["message"].as_str().is_some_and(|said| said.contains("does not read its input")),
        "{fault}"
    );
    bench.good(n);
    bench.is_small("unread calls");
}

#[test]
fn a_client_gets_no_further_than_its_limits() {
    let mut bench = Bench { client: setup().start_program(), _servers: Vec::new() };
    bench.client.until_ready("good");
    let ping = |params: String| {
        format!("{{\"jsonrpc\":\"2.0\",\"method\":\"ping\",\"params\":{{\"a\":{params}}},\"id\":990}}")
    };
    let objects = |count: usize| format!("[{}0]", "{\"\":0},".repeat(count));
    for (line, part) in [
        (ping(objects(60 * MB / 7)), "longer than the limit of 4194304 bytes"),
        (ping(objects(500_000)), "more than 20971 values"),
        (ping("[".repeat(60 * MB)), "Parse error"),
        (ping("[".repeat(3 * MB)), "nested deeper"),
        (ping("0".repeat(3 * MB)), "Parse error"),
        (format!("{{\"jsonrpc\":\"2.0\",\"id\":990,\"method\":\"{}\"}}", "x".repeat(3 * MB)), "xxx..."),
        (
            "{\"jsonrpc\":\"2.0\",\"id\":990,\"method\":\"ping\",\"method\":\"x\"}".into(),
            "two members `method`",
        ),
    ] {
        bench.client.send_line(&line);
        let answer = bench.client.finish(990);
        let said = answer["error"]["message"].as_str().unwrap_or_default();
        let part = if part == "Parse error" { "" } else { part };
        assert!(said.contains(part) && said.len() < 1_000, "{said:.300}");
        bench.good(0);
        bench.is_small(part);
    }
    // An id that fits no number type still matches the client's request.
    for id in ["123456789012345678901234567890", "18446744073709551615", "1.5"] {
        bench.client.send_line(&format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"ping\"}}"));
        bench.client.finish(-1);
        assert!(bench.client.line.contains(&format!("\"id\":{id},")), "{}", bench.client.line);
    }
    // Arguments may be larger than other messages.
    let many: Vec<usize> = (0..150_000).collect();
    let echoed = bench.client.execute("good.echo", json!({ "many": many }));
    assert_ne!(echoed["isError"], true, "{echoed:.300}");
}

#[test]
fn a_client_that_does_not_read_is_not_read_from() {
    let setup = setup();
    setup.write();
    let child = start_mute(setup.folder.path());
    let gateway = child.id();
    ask_without_reading(child, gateway, || {});
}

#[test]
#[cfg(target_os = "linux")]
fn nobody_else_at_a_shared_gateway_notices_one_that_does_not_read() {
    let setup = setup().gateway("shared = true\nshared_grace = '200ms'");
    let mut bench = Bench { client: setup.start_program(), _servers: Vec::new() };
    bench.client.until_ready("good");
    let server = json_of(&bench.client.execute("good.who", json!({})))["pid"].as_u64().expect("a process id");
    let status = std::fs::read_to_string(format!("/proc/{server}/status")).expect("it runs");
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")).expect("a parent");
    let gateway = parent.trim().parse().expect("a process id");
    let mut n = 0;
    ask_without_reading(start_mute(bench.client.folder.path()), gateway, || {
        bench.good(n);
        n += 1;
    });
    bench.is_small("the bridge of another client");
}

fn start_mute(folder: &std::path::Path) -> Child {
    crate::client::command(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("nonet starts")
}

/// Sends requests without reading as long as possible, then reads the answers. `meanwhile` runs repeatedly.
fn ask_without_reading(mut child: Child, gateway: u32, mut meanwhile: impl FnMut()) {
    use std::{
        io::{BufRead, BufReader, Write},
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering::SeqCst},
        },
        time::{Duration, Instant},
    };
    const CALLS: usize = 30_000;
    let (mut stdin, mut stdout) =
        (child.stdin.take().expect("it is piped"), BufReader::new(child.stdout.take().expect("it is piped")));
    let mut read = || {
        let mut line = String::new();
        stdout.read_line(&mut line).expect("it answers");
        serde_json::from_str::<Value>(&line).unwrap_or_else(|_| panic!("a line: {line:.100}"))
    };
    let info = json!({ "name": "test", "version": "1" });
    let params = json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": info });
    let mut send = |message: Value| stdin.write_all(format!("{message}\n").as_bytes()).expect("it reads");
    send(json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params }));
    assert!(read()["result"].is_object());
    send(json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
    let call = |id: usize| {
        let params = json!({ "name": "execute_tool", "arguments": { "name": "good.text" } });
        json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params })
    };
    let began = Instant::now();
    loop {
        send(call(1));
        let answer = loop {
            let message = read();
            if message["id"] == 1 {
                break message;
            }
        };
        if answer["result"]["isError"] != true {
            break;
        }
        assert!(began.elapsed() < crate::setup::PATIENCE, "`good` is not ready: {answer}");
    }
    let written = Arc::new(AtomicUsize::new(0));
    let writing = std::thread::spawn({
        let written = written.clone();
        move || {
            for id in 0..CALLS {
                if stdin.write_all(format!("{}\n", call(id + 10)).as_bytes()).is_err() {
                    return None;
                }
                written.fetch_add(1, SeqCst);
            }
            Some(stdin)
        }
    });
    // Until all calls are read, or none for a while.
    let (mut last, mut since) = (0, Instant::now());
    while last < CALLS && since.elapsed() < Duration::from_secs(3) {
        let now = written.load(SeqCst);
        if now != last {
            (last, since) = (now, Instant::now());
        }
        meanwhile();
        std::thread::sleep(Duration::from_millis(20));
    }
    #[cfg(target_os = "linux")]
    for pid in [gateway, child.id()] {
        let most = crate::setup::memory(pid, "VmHWM");
        println!("unread: {last} of {CALLS} calls were read, at most {} MB", most / MB);
        assert!(most < MOST_MEMORY, "the gateway took {} MB", most / MB);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = gateway;
    // A bridge between client and gateway reads more.
    assert!(last < CALLS || gateway != child.id(), "it is read from without end");
    let mut answered = std::collections::HashSet::new();
    while answered.len() < CALLS {
        let message = read();
        if let Some(id) = message["id"].as_u64().filter(|id| *id >= 10) {
            answered.insert(id);
        }
    }
    meanwhile();
    drop(writing.join().expect("it was read"));
    child.wait().expect("it ends");
}
