//! Servers that only answer, as fast as possible: on stdio, over HTTP, and one that never answers.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
};

use serde_json::{Value, json};

use crate::http::{Message, SESSION};

/// The length of a row of `structured`, in bytes.
const ROW: usize = 500;

/// Echoes on stdin and stdout.
pub fn on_stdio() {
    let mut out = std::io::stdout().lock();
    let mut made = HashMap::new();
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let Ok(message) = serde_json::from_str(&line) else { break };
        if let Some(mut answer) = answer(&message, &mut made) {
            answer.push(b'\n');
            if out.write_all(&answer).and_then(|()| out.flush()).is_err() {
                break;
            }
        }
    }
}

/// Reads until the end of stdin and answers nothing.
pub fn silent() {
    let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
}

/// Echoes over HTTP on a free port, which it prints, until stdin ends.
pub fn over_http() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    println!("{}", listener.local_addr().expect("a bound socket has an address").port());
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || connection(stream));
        }
    });
    let _ = std::io::stdin().lock().read(&mut [0]);
}

fn connection(stream: TcpStream) {
    let Ok(mut out) = stream.set_nodelay(true).and_then(|()| stream.try_clone()) else { return };
    let mut input = BufReader::with_capacity(1 << 16, stream);
    let (mut message, mut made) = (Message::default(), HashMap::new());
    while message.read(&mut input).is_ok() {
        let answer = match serde_json::from_slice(&message.body) {
            Ok(request) if message.start.starts_with("POST") => answer(&request, &mut made),
            _ => None,
        };
        let whole = match (answer, message.start.split(' ').next()) {
            (Some(body), _) => {
                let mut whole = format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n{SESSION}: bench\r\nContent-Length: {}\r\n\r\n",
                    body.len()
                )
                .into_bytes();
                whole.extend_from_slice(&body);
                whole
            }
            (None, Some("POST")) => b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n".to_vec(),
            (None, Some("DELETE")) => b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec(),
            _ => b"HTTP/1.1 405 Method Not Allowed\r\nAllow: POST, DELETE\r\nContent-Length: 0\r\n\r\n"
                .to_vec(),
        };
        if out.write_all(&whole).is_err() {
            break;
        }
    }
}

/// Returns the answer to a request, and nothing to a notification. Caches large results.
fn answer(message: &Value, made: &mut HashMap<(String, usize), String>) -> Option<Vec<u8>> {
    let id = message.get("id")?;
    let arguments = &message["params"]["arguments"];
    let result = match (message["method"].as_str(), message["params"]["name"].as_str()) {
        (Some("initialize"), _) => json!({
            "protocolVersion": "2025-11-25", "capabilities": { "tools": {} },
            "serverInfo": { "name": "echo", "version": "1" },
        }),
        (Some("tools/list"), _) => json!({ "tools": tools() }),
        (Some("tools/call"), Some("echo")) => {
            json!({ "content": [{ "type": "text", "text": arguments["text"] }] })
        }
        (Some("tools/call"), Some(name)) => {
            let bytes = arguments["bytes"].as_u64().unwrap_or(0) as usize;
            let result = made.entry((name.to_owned(), bytes)).or_insert_with(|| large(name, bytes));
            return Some(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#).into_bytes());
        }
        _ => {
            let error = json!({ "code": -32601, "message": "no such method" });
            return Some(json!({ "jsonrpc": "2.0", "id": id, "error": error }).to_string().into_bytes());
        }
    };
    Some(json!({ "jsonrpc": "2.0", "id": id, "result": result }).to_string().into_bytes())
}

fn tools() -> Value {
    let tool = |name: &str, about: &str, param: &str, kind: &str| {
        json!({
            "name": name, "description": about, "annotations": { "readOnlyHint": true },
            "inputSchema": { "type": "object", "properties": { param: { "type": kind } }, "required": [param] },
        })
    };
    json!([
        tool("echo", "Echoes text", "text", "string"),
        tool("text", "Returns this many bytes of text", "bytes", "integer"),
        tool("structured", "Returns this many bytes of rows", "bytes", "integer"),
    ])
}

/// Returns a result of this many bytes: one text, or rows as `structuredContent`.
fn large(name: &str, bytes: usize) -> String {
    if name == "text" {
        let line = "All work and no play makes a round trip a dull measure of anything.\n";
        let text: String = line.chars().cycle().take(bytes).collect();
        return json!({ "content": [{ "type": "text", "text": text }] }).to_string();
    }
    let row = |n: usize| {
        let start = format!(r#"{{"id":{n},"name":"row {n}","text":""#);
        format!("{start}{:x<1$}\"}}", "", ROW - start.len() - 3)
    };
    let rows: Vec<String> = (0..bytes / ROW).map(row).collect();
    format!(
        r#"{{"content":[{{"type":"text","text":"{} rows"}}],"structuredContent":{{"rows":[{}]}}}}"#,
        rows.len(),
        rows.join(",")
    )
}
