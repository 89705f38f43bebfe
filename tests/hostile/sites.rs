//! HTTP servers that do everything wrong that a web server can: hand-written bytes on a socket.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc, LazyLock,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use serde_json::{Value, json};

use crate::{
    beside::{Beside, Door, SHORT},
    rows::{Act, Batch, Expect, OUT_OF_REACH, Row},
    server::{STRIKE, initialized},
};

const FAMILY: &str = "hostile HTTP servers";

/// One request, and the connection for its answer.
struct Exchange {
    verb: String,
    path: String,
    session: String,
    /// The request's message; `null` without one.
    message: Value,
    socket: TcpStream,
    /// How many requests came before.
    n: usize,
}

impl Exchange {
    /// Writes bytes. Returns whether the gateway still reads.
    fn raw(&mut self, bytes: &[u8]) -> bool {
        self.socket.write_all(bytes).is_ok()
    }

    fn method(&self) -> &str {
        self.message["method"].as_str().unwrap_or_default()
    }

    fn is_call(&self) -> bool {
        self.method() == "tools/call"
    }

    /// Answers with a status, headers (each with its line end) and a body.
    fn reply(&mut self, status: &str, headers: &str, body: &str) -> bool {
        let length = body.len();
        self.raw(
            format!(
                "HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
            )
            .as_bytes(),
        )
    }

    /// Answers with JSON.
    fn json(&mut self, headers: &str, body: &str) -> bool {
        self.reply("200 OK", &format!("Content-Type: application/json\r\n{headers}"), body)
    }

    /// Begins an endless event stream.
    fn stream(&mut self) -> bool {
        self.raw(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
    }

    /// Returns a good server's result, in its envelope.
    fn good(&self) -> String {
        let result = match self.method() {
            "initialize" => initialized("2025-06-18", r#"{"tools":{}}"#),
            "tools/list" => format!(r#"{{"tools":{STRIKE}}}"#),
            "tools/call" => r#"{"content":[{"type":"text","text":"ok"}]}"#.into(),
            "ping" => "{}".into(),
            _ => {
                return format!(
                    r#"{{"jsonrpc":"2.0","id":{},"error":{{"code":-32601,"message":"Method not found"}}}}"#,
                    self.message["id"]
                );
            }
        };
        format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, self.message["id"])
    }

    /// Behaves like a good server.
    fn behave(&mut self) {
        match self.verb.as_str() {
            "POST" if self.message.get("id").is_none() => self.reply("202 Accepted", "", ""),
            "POST" => {
                let session = if self.method() == "initialize" { "Mcp-Session-Id: s1\r\n" } else { "" };
                let body = self.good();
                self.json(session, &body)
            }
            "DELETE" => self.reply("200 OK", "", ""),
            _ => self.reply("405 Method Not Allowed", "", ""),
        };
    }
}

/// The hostile behaviour. `true`: the request was handled.
type Answer = fn(&mut Exchange) -> bool;

/// Serves until the tests end. Returns the address.
fn serve(answer: Answer) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound").to_string();
    let requests = Arc::new(AtomicUsize::new(0));
    thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            let requests = requests.clone();
            thread::spawn(move || {
                if let Some(mut exchange) = read(socket, requests.fetch_add(1, SeqCst))
                    && !answer(&mut exchange)
                {
                    exchange.behave();
                }
            });
        }
    });
    address
}

fn read(socket: TcpStream, n: usize) -> Option<Exchange> {
    let mut reader = BufReader::new(socket.try_clone().ok()?);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let (verb, rest) = line.split_once(' ')?;
    let (verb, path) = (verb.to_string(), rest.split(' ').next()?.to_string());
    let (mut length, mut session) = (0, String::new());
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        match name.to_lowercase().as_str() {
            "content-length" => length = value.trim().parse().ok()?,
            "mcp-session-id" => session = value.trim().into(),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let message = serde_json::from_slice(&body).unwrap_or_default();
    Some(Exchange { verb, path, session, message, socket, n })
}

pub fn batches() -> Vec<Batch> {
    let each = sites().into_iter().enumerate().map(|(at, (name, sent, expect, answer))| {
        let act = Act::Call { server: "bad".into(), tool: "strike".into(), expect };
        let row = Row { family: FAMILY, name, sent, act, check: Some(no_visit) };
        Batch {
            at: 3_000 + at,
            door: if at % 2 == 0 { Door::Stdio } else { Door::Http },
            arrange: Box::new(move |setup| {
                let address = serve(answer);
                setup.server_of("bad", &format!("url = 'http://{address}/mcp'\n{SHORT}"))
            }),
            rows: vec![row],
        }
    });
    each.collect()
}

/// A service on this machine that no hostile server may lead the gateway to.
static PRIVATE: LazyLock<(String, Arc<AtomicUsize>)> = LazyLock::new(|| {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound").to_string();
    let visits = Arc::new(AtomicUsize::new(0));
    let counted = visits.clone();
    thread::spawn(move || listener.incoming().for_each(|_| _ = counted.fetch_add(1, SeqCst)));
    (address, visits)
});

fn no_visit(_: &mut Beside, _: &str, _: &Value) -> Result<(), String> {
    match PRIVATE.1.load(SeqCst) {
        0 => Ok(()),
        visits => Err(format!("the gateway was led to another address of this machine {visits} times")),
    }
}

fn event(text: &str) -> Vec<u8> {
    format!("data: {text}\n\n").into_bytes()
}

/// Returns gzip data that unpacks to this many bytes of one letter: a copy of 258 bytes takes 13 bits.
fn bomb(bytes: usize) -> Vec<u8> {
    let copy = (0b1100_0101_u32, 8);
    let letter = (0x30 + u32::from(b'x'), 8);
    // The last block, with the fixed codes. Codes are written from their first bit on.
    let mut bits = vec![true, true, false];
    let mut code = |(code, length): (u32, u32)| bits.extend((0..length).rev().map(|at| code >> at & 1 == 1));
    code(letter);
    for _ in 0..bytes / 258 {
        code(copy);
        code((0, 5));
    }
    code((0, 7));
    let packed = bits
        .chunks(8)
        .map(|eight| eight.iter().enumerate().fold(0, |byte, (at, bit)| byte | u8::from(*bit) << at));
    let mut out = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03".to_vec();
    out.extend(packed);
    out.extend([0; 8]);
    out
}

const LOG: &str =
    r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}"#;

#[expect(clippy::too_many_lines, reason = "a table")]
fn sites() -> Vec<(&'static str, &'static str, Expect, Answer)> {
    use Expect::Ends;
    vec![
        ("redirects to a private address", "307 to another port of this machine", OUT_OF_REACH, |exchange| {
            let to = format!("Location: http://{}/mcp\r\n", PRIVATE.0);
            exchange.reply("307 Temporary Redirect", &to, "")
        }),
        ("redirects calls to a private address", "307 for `tools/call` only", Ends, |exchange| {
            let to = format!("Location: http://{}/mcp\r\n", PRIVATE.0);
            exchange.is_call() && exchange.reply("307 Temporary Redirect", &to, "")
        }),
        ("redirects to the metadata address", "302 to 169.254.169.254", OUT_OF_REACH, |exchange| {
            exchange.reply("302 Found", "Location: http://169.254.169.254/latest/meta-data/\r\n", "")
        }),
        ("redirects to a file", "308 to file:///etc/passwd", OUT_OF_REACH, |exchange| {
            exchange.reply("308 Permanent Redirect", "Location: file:///etc/passwd\r\n", "")
        }),
        ("redirects in a circle", "307 to itself", OUT_OF_REACH, |exchange| {
            exchange.reply("307 Temporary Redirect", "Location: /mcp\r\n", "")
        }),
        (
            "asks for sign-ins in a circle",
            "401 with a sign-in server on this machine, for ever",
            Expect::Fault(&["auth_required", "server_down", "server_starting"]),
            |exchange| {
                let at = format!("http://{}", PRIVATE.0);
                match exchange.path.as_str() {
                "/mcp" => exchange.reply("401 Unauthorized", &format!("WWW-Authenticate: Bearer resource_metadata=\"{at}/.well-known/oauth-protected-resource\", scope=\"\x7f\"\r\n"), ""),
                _ => exchange.json("", &json!({ "resource": "x", "authorization_servers": [at] }).to_string()),
            }
            },
        ),
        ("sends headers without an end", "a header line every millisecond", OUT_OF_REACH, |exchange| {
            exchange.raw(b"HTTP/1.1 200 OK\r\n");
            while exchange.raw(b"X-More: more\r\n") {
                thread::sleep(Duration::from_millis(1));
            }
            true
        }),
        ("sends a header of 10 MB", "one header value", OUT_OF_REACH, |exchange| {
            exchange.raw(b"HTTP/1.1 200 OK\r\nX-Long: ");
            exchange.raw(&vec![b'x'; 10 << 20]);
            exchange.raw(b"\r\nContent-Length: 0\r\n\r\n")
        }),
        ("splits its headers", "a session id with line breaks and controls", Ends, |exchange| {
            let body = exchange.good();
            exchange.method() == "initialize"
                && exchange.json("Mcp-Session-Id: a\tb\x01\x7f\r\n X-Folded: y\r\n", &body)
        }),
        ("sends a bomb", "260 kB of gzip that unpack to 40 MB", Ends, |exchange| {
            if !exchange.is_call() {
                return false;
            }
            let body = bomb(40 << 20);
            exchange.raw(format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\n\r\n", body.len()).as_bytes());
            exchange.raw(&body)
        }),
        ("drips its body", "a byte of JSON every 50 ms", Ends, |exchange| {
            if !exchange.is_call() {
                return false;
            }
            let body = exchange.good();
            exchange.raw(
                format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
                    body.len() * 100
                )
                .as_bytes(),
            );
            for byte in body.bytes().cycle().take(body.len() * 100) {
                if !exchange.raw(&[byte]) {
                    break;
                }
                thread::sleep(Duration::from_millis(50));
            }
            true
        }),
        ("sends a body without an end", "JSON that never ends", Ends, |exchange| {
            if !exchange.is_call() {
                return false;
            }
            exchange.raw(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n{\"jsonrpc\":\"2.0\",\"x\":\"");
            while exchange.raw(&[b'x'; 64 * 1024]) {}
            true
        }),
        (
            "sends a handshake without an end",
            "JSON that never ends, to `initialize`",
            OUT_OF_REACH,
            |exchange| {
                exchange.raw(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n{\"x\":\"");
                while exchange.raw(&[b'x'; 64 * 1024]) {}
                true
            },
        ),
        (
            "streams without an end",
            "an event stream of pings to a call, and no answer",
            Expect::Fault(&["timeout"]),
            |exchange| {
                if !exchange.is_call() {
                    return false;
                }
                exchange.stream();
                while exchange.raw(b": ping\n\n") {
                    thread::sleep(Duration::from_millis(20));
                }
                true
            },
        ),
        (
            "floods events",
            "log messages as fast as they go, and no answer",
            Expect::Fault(&["timeout"]),
            |exchange| {
                if !exchange.is_call() {
                    return false;
                }
                exchange.stream();
                let many = event(LOG).repeat(100);
                while exchange.raw(&many) {}
                true
            },
        ),
        ("sends an event of 50 MB", "one notification in one event, then the answer", Ends, |exchange| {
            if !exchange.is_call() {
                return false;
            }
            exchange.stream();
            exchange.raw(b"data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"level\":\"info\",\"data\":\"");
            for _ in 0..50 {
                exchange.raw(&vec![b'x'; 1 << 20]);
            }
            exchange.raw(b"\"}}\n\n");
            let answer = event(&exchange.good());
            exchange.raw(&answer)
        }),
        ("sends an event of a million lines", "data lines without an end of the event", Ends, |exchange| {
            if !exchange.is_call() {
                return false;
            }
            exchange.stream();
            let many = b"data: {\"a\":1},\n".repeat(10_000);
            for _ in 0..100 {
                exchange.raw(&many);
            }
            let answer = event(&exchange.good());
            exchange.raw(b"\n");
            exchange.raw(&answer)
        }),
        ("closes streams with retry: 0", "an id and `retry: 0`, then the end, for ever", Ends, |exchange| {
            let wants = exchange.is_call() || exchange.verb == "GET";
            wants
                && exchange.stream()
                && exchange.raw(format!("id: {}\nretry: 0\ndata:\n\n", exchange.n).as_bytes())
        }),
        ("asks to retry in a million years", "`Retry-After` and `retry:` beyond all", Ends, |exchange| {
            exchange.is_call()
                && exchange.reply("503 Service Unavailable", "Retry-After: 99999999999999999999\r\n", "")
        }),
        ("forgets its sessions", "404 to each request of a session", Ends, |exchange| {
            !exchange.session.is_empty() && exchange.reply("404 Not Found", "", "no session")
        }),
        ("changes its session id", "another session id with each answer", Ends, |exchange| {
            let (body, id) = (exchange.good(), format!("Mcp-Session-Id: s{}\r\n", exchange.n));
            exchange.message.get("id").is_some() && exchange.json(&id, &body)
        }),
        ("answers with a page", "HTML with status 200", OUT_OF_REACH, |exchange| {
            exchange.reply("200 OK", "Content-Type: text/html\r\n", "<html><script>alert(1)</script></html>")
        }),
        ("lies about its type", "JSON that says to be an event stream", Ends, |exchange| {
            let body = exchange.good();
            exchange.is_call() && exchange.reply("200 OK", "Content-Type: text/event-stream\r\n", &body)
        }),
        ("lies about its length", "Content-Length of 10 GB, then the end", Ends, |exchange| {
            let body = exchange.good();
            exchange.is_call() && exchange.raw(format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 10000000000\r\n\r\n{body}").as_bytes())
        }),
        ("lies about its chunks", "chunk sizes that are negative, huge, no numbers", Ends, |exchange| {
            exchange.is_call()
                && exchange.raw(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n{}\r\n-1\r\nzz\r\n")
        }),
        ("speaks no HTTP", "binary on the socket", OUT_OF_REACH, |exchange| {
            exchange.raw(&[0x16, 3, 1, 0, 0xff, 0, 0x1b, b'[', b'2', b'J'])
        }),
        ("hangs up", "the end of the connection in place of an answer", OUT_OF_REACH, |_| true),
    ]
}
