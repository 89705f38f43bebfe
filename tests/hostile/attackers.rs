//! HTTP clients that take what they can, beside a client that only calls tools.

use std::{
    collections::BTreeMap,
    io::{ErrorKind, Read, Write},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    beside::{BAD_TOKEN, Door, send},
    rows::{Act, Batch, Row},
    web::{self, Reply, WebClient},
};

const FAMILY: &str = "hostile clients";
/// The time limit of an attack.
const LONG: Duration = Duration::from_secs(10);

/// Attacks the gateway at an address. Returns the outcome, or what should not have happened.
pub type Attack = fn(&str) -> Result<String, String>;

pub fn batches() -> Vec<Batch> {
    let each = attacks().into_iter().enumerate().map(|(at, (name, sent, attack))| Batch {
        at: 4_000 + at,
        door: Door::Http,
        arrange: Box::new(|setup| {
            let slow = json!({ "tools": [{ "name": "wait", "on": { "delay_ms": 30_000 } }, { "name": "big", "on": { "size": 90_000 } }] });
            setup.server("slow", slow)
        }),
        rows: vec![Row { family: FAMILY, name, sent, act: Act::Attack(attack), check: None }],
    });
    each.collect()
}

fn connect(address: &str) -> TcpStream {
    let socket = TcpStream::connect(address).expect("nonet listens");
    socket.set_read_timeout(Some(LONG)).expect("a timeout can be set");
    socket.set_write_timeout(Some(LONG)).expect("a timeout can be set");
    socket
}

/// Sends a request with a hostile client's token.
fn http(address: &str, verb: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
    let authorization = format!("Bearer {BAD_TOKEN}");
    let all = [headers, &[("authorization", authorization.as_str())]].concat();
    web::http(address, verb, path, &all, body)
}

fn head(address: &str, length: usize) -> String {
    format!(
        "POST /mcp HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {BAD_TOKEN}\r\nAccept: application/json, text/event-stream\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n"
    )
}

/// Returns the status of the answer, or what the gateway did instead.
fn status(mut socket: TcpStream) -> String {
    let mut bytes = [0; 64];
    match socket.read(&mut bytes) {
        Ok(0) => "hung up".into(),
        Ok(read) => {
            let text = String::from_utf8_lossy(&bytes[..read]).into_owned();
            text.split(' ').nth(1).unwrap_or("no HTTP").into()
        }
        Err(error) if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error.kind()) => {
            "still waits".into()
        }
        Err(_) => "hung up".into(),
    }
}

fn one_of(found: String, expected: &[&str]) -> Result<String, String> {
    if expected.contains(&found.as_str()) {
        Ok(found)
    } else {
        Err(format!("{found}, not one of {expected:?}"))
    }
}

/// Returns the result or the fault of a call by a client without a session.
fn ended(answer: &Value) -> Result<String, String> {
    let text = answer["result"]["content"][0]["text"].as_str().unwrap_or_default();
    let code = serde_json::from_str::<Value>(text)
        .ok()
        .and_then(|value| value["error"]["code"].as_str().map(String::from));
    match code {
        Some(code) => Ok(format!("`{code}`")),
        None if answer.get("error").is_some() => Ok(format!("error {}", answer["error"]["code"])),
        None if answer.get("result").is_some() => Ok("its result".into()),
        None => Err(format!("no answer: {answer:.300}")),
    }
}

fn execute(name: &str) -> Value {
    json!({ "name": "execute_tool", "arguments": { "name": name } })
}

#[expect(clippy::too_many_lines, reason = "a table")]
fn attacks() -> Vec<(&'static str, &'static str, Attack)> {
    vec![
        ("a ping of 60 MB", "a request with 60 MB of params", |address| {
            let mut socket = connect(address);
            let _ = socket.write_all(format!("{}\r\n", head(address, 60 << 20)).as_bytes());
            let _ =
                socket.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"params\":{\"x\":\"");
            let chunk = vec![b'x'; 1 << 20];
            while socket.write_all(&chunk).is_ok() {}
            one_of(status(socket), &["413", "400", "hung up"])
        }),
        ("a body without an end", "chunks that never end", |address| {
            let mut socket = connect(address);
            let _ = socket.write_all(
                head(address, 0).replace("Content-Length: 0", "Transfer-Encoding: chunked").as_bytes(),
            );
            let chunk = [b"\r\n10000\r\n".as_slice(), &vec![b'x'; 1 << 16]].concat();
            let began = Instant::now();
            while socket.write_all(&chunk).is_ok() {
                if began.elapsed() > LONG {
                    return Err("it reads for ever".into());
                }
            }
            one_of(status(socket), &["413", "400", "hung up"])
        }),
        ("a body of a million values", "4 MB of numbers as params", |address| {
            let many = "1,".repeat(1_900_000);
            let body = format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"search_tools","arguments":{{"query":[{many}1]}}}}}}"#
            );
            let reply = http(address, "POST", "/mcp", &[], &body);
            one_of(reply.status.to_string(), &["400", "413"])
        }),
        ("a deep body", "a million brackets", |address| {
            let body =
                format!(r#"{{"jsonrpc":"2.0","id":1,"method":"ping","params":{}"#, "[".repeat(1_000_000));
            let reply = http(address, "POST", "/mcp", &[], &body);
            one_of(reply.status.to_string(), &["400", "413"])
        }),
        ("500 connections", "500 connections that say nothing", |address| {
            let all: Vec<_> = (0..500).filter_map(|_| TcpStream::connect(address).ok()).collect();
            thread::sleep(Duration::from_secs(2));
            Ok(format!("{} were taken", all.len()))
        }),
        ("slow headers", "200 connections with a header line each 100 ms", |address| {
            let mut all: Vec<_> = (0..200).filter_map(|_| TcpStream::connect(address).ok()).collect();
            for socket in &mut all {
                let _ = socket.write_all(b"POST /mcp HTTP/1.1\r\n");
            }
            for n in 0..30 {
                for socket in &mut all {
                    let _ = socket.write_all(format!("X-{n}: x\r\n").as_bytes());
                }
                thread::sleep(Duration::from_millis(100));
            }
            Ok("nobody waited for them".into())
        }),
        ("endless headers", "one header of 50 MB", |address| {
            let mut socket = connect(address);
            let _ = socket.write_all(b"POST /mcp HTTP/1.1\r\nX-Long: ");
            let chunk = vec![b'x'; 1 << 20];
            for n in 0.. {
                if socket.write_all(&chunk).is_err() {
                    break;
                }
                if n > 50 {
                    return Err("it reads for ever".into());
                }
            }
            one_of(status(socket), &["431", "400", "hung up"])
        }),
        ("never reads", "1,000 calls with answers of 90 kB on one connection, none read", |address| {
            let mut socket = connect(address);
            socket.set_write_timeout(Some(Duration::from_secs(2))).expect("a timeout can be set");
            let mut params = execute("slow.big");
            params["_meta"] = json!({ "x": "x".repeat(20_000) });
            let call =
                json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params }).to_string();
            let session = WebClient::with_token(address, "/mcp", BAD_TOKEN).session;
            let request = format!("{}Mcp-Session-Id: {session}\r\n\r\n{call}", head(address, call.len()));
            for n in 0..1_000 {
                if socket.write_all(request.as_bytes()).is_err() {
                    return Ok(format!("reading stopped after {n} calls"));
                }
            }
            Err("all calls were taken".into())
        }),
        (
            "idle connections",
            "520 connections that say nothing, and a client with a token after them",
            |address| {
                let all: Vec<_> = (0..520).filter_map(|_| TcpStream::connect(address).ok()).collect();
                let mut client = WebClient::with_token(address, "/mcp", BAD_TOKEN);
                let status = client.status("ping").to_string();
                drop(all);
                one_of(status, &["200"])
            },
        ),
        (
            "a header `Forwarded` of any kind",
            "lists without an end, quotes without an end, bytes of no text",
            |address| {
                let long = "for=192.0.2.1,".repeat(4_000);
                for value in
                    [&*long, "for=\"", "for=\"\\", ";;;=,=,;", "for=[::1", "\u{7f}", "for=\"[::1]:99999999\""]
                {
                    for name in ["forwarded", "x-forwarded-for"] {
                        let reply = http(address, "POST", "/mcp", &[(name, value)], "{}");
                        one_of(reply.status.to_string(), &["400", "422", "431"])
                            .map_err(|why| format!("{value:.20}: {why}"))?;
                    }
                }
                Ok("each is answered".into())
            },
        ),
        (
            "a session for each request",
            "1,100 sessions that nobody ends, and a client after them",
            |address| {
                let params = json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "x".repeat(10_000), "version": "\u{1b}[2J" } });
                let body = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params })
                    .to_string();
                let taken =
                    (0..1_100).filter(|_| http(address, "POST", "/mcp", &[], &body).status == 200).count();
                let mut client = WebClient::with_token(address, "/mcp", BAD_TOKEN);
                one_of(client.status("ping").to_string(), &["200"])?;
                Ok(format!("{taken} were opened"))
            },
        ),
        ("jobs without an end", "500 background calls of 30 seconds", |address| {
            let params =
                json!({ "name": "execute_tool", "arguments": { "name": "slow.wait", "background": true } });
            let launches: Vec<_> = (0..100)
                .map(|_| {
                    let (address, params) = (address.to_string(), params.clone());
                    let launch = move |_| ended(&send(&address, BAD_TOKEN, "tools/call", params.clone()));
                    thread::spawn(move || (0..5).map(launch).collect::<Result<Vec<_>, _>>())
                })
                .collect();
            let mut ends = BTreeMap::<String, usize>::new();
            for launch in launches {
                for end in launch.join().expect("each launch is answered")? {
                    *ends.entry(end).or_default() += 1;
                }
            }
            let ends: Vec<_> = ends.into_iter().map(|(end, count)| format!("{count} times {end}")).collect();
            Ok(ends.join(", "))
        }),
        ("filters that take memory", "four jq filters that make lists without an end", |address| {
            let params = json!({ "name": "execute_tool", "arguments": { "name": "good.fine", "select": "[range(1e12)]" } });
            let calls: Vec<_> = (0..4)
                .map(|_| {
                    let (address, params) = (address.to_string(), params.clone());
                    thread::spawn(move || send(&address, BAD_TOKEN, "tools/call", params))
                })
                .collect();
            let ends: Result<Vec<_>, _> =
                calls.into_iter().map(|call| ended(&call.join().unwrap_or_default())).collect();
            Ok(ends?.join(", "))
        }),
        ("ids of every kind", "ids that are null, of 100 digits, 1e400, an object", |address| {
            for id in ["null", &"9".repeat(100), "1e400", "{}", "1.5", "\"\\u0000\""] {
                let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#);
                let reply = http(address, "POST", "/mcp", &[], &body);
                one_of(reply.status.to_string(), &["200", "202", "400", "404", "422"])
                    .map_err(|why| format!("{id}: {why}"))?;
            }
            Ok("each is answered".into())
        }),
        ("another site's page", "`Host` and `Origin` of another site", |address| {
            let evil = [("host", "evil.example"), ("origin", "https://evil.example")];
            let open = ["/mcp", "/ui", "/metrics", "/readyz"].map(|path| {
                let verb = if path == "/mcp" { "POST" } else { "GET" };
                let status = http(address, verb, path, &evil, "{}").status;
                (status < 400).then(|| format!("{path} answers {status}"))
            });
            let open: Vec<_> = open.into_iter().flatten().collect();
            if !open.is_empty() {
                return Err(open.join(", "));
            }
            Ok("refused".into())
        }),
        ("paths that lead out", "`/../`, encoded dots, NUL", |address| {
            for path in
                ["/../../etc/passwd", "/ui/..%2f..%2fetc/passwd", "/mcp/%00", "/mcp/../ui", "//evil.example/"]
            {
                let reply = http(address, "GET", path, &[], "");
                if reply.status < 400 || reply.body.contains("root:") {
                    return Err(format!("{path} answers {}", reply.status));
                }
            }
            Ok("refused".into())
        }),
        ("two lengths", "Content-Length beside Transfer-Encoding, a request in a request", |address| {
            let mut socket = connect(address);
            let smuggled = "0\r\n\r\nGET /ui HTTP/1.1\r\nHost: x\r\n\r\n";
            let _ = socket.write_all(
                format!("{}Transfer-Encoding: chunked\r\n\r\n{smuggled}", head(address, smuggled.len()))
                    .as_bytes(),
            );
            one_of(status(socket), &["400", "hung up", "413", "422"])
        }),
    ]
}
