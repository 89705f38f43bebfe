//! A server at the other end of two pipes.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::rows::{Request, Server, initialize, is_good};

/// How far from either end of an answer to look for its id.
const EDGE: usize = 100;

/// A program that speaks MCP on stdin and stdout.
pub struct Peer {
    pub child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    line: Vec<u8>,
    request: Request,
}

impl Peer {
    /// Starts a program, and returns once it has answered the handshake.
    pub fn start(command: &mut Command) -> Self {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program starts");
        let input = child.stdin.take();
        let output = BufReader::with_capacity(1 << 16, child.stdout.take().expect("a piped stdout"));
        let mut peer = Self { child, input, output, line: Vec::new(), request: Request::default() };
        peer.ask("initialize", initialize());
        peer.send(b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n");
        peer
    }

    fn send(&mut self, bytes: &[u8]) {
        let input = self.input.as_mut().expect("it is open until the end");
        input.write_all(bytes).expect("the server reads");
    }

    /// Reads the next answer into `line` and returns its id; skips notifications.
    fn answer(&mut self) -> u64 {
        loop {
            self.line.clear();
            let read = self.output.read_until(b'\n', &mut self.line).expect("the server writes");
            assert!(read > 0, "the server ended");
            let length = self.line.len();
            let edges = [&self.line[..length.min(EDGE)], &self.line[length.saturating_sub(EDGE)..]];
            if let Some(id) = edges.into_iter().find_map(id) {
                return id;
            }
        }
    }
}

fn id(edge: &[u8]) -> Option<u64> {
    let at = memchr::memmem::find(edge, b"\"id\":")? + 5;
    let digits = edge[at..].iter().take_while(|byte| byte.is_ascii_digit());
    Some(digits.fold(0, |id, digit| id * 10 + u64::from(digit - b'0'))).filter(|id| *id > 0)
}

impl Server for Peer {
    fn ask(&mut self, method: &str, params: Value) -> Value {
        let message = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        self.send(format!("{message}\n").as_bytes());
        self.answer();
        serde_json::from_slice(&self.line).expect("an answer is JSON")
    }

    fn prepare(&mut self, request: Request) {
        self.request = request;
    }

    fn calls(&mut self, calls: usize, in_flight: usize, took: &mut Vec<Duration>) {
        let mut began: Vec<Instant> = Vec::with_capacity(calls);
        let first = self.request.next;
        let mut bytes = self.request.bytes.clone();
        bytes.push(b'\n');
        let mut send = |peer: &mut Self, began: &mut Vec<Instant>| {
            peer.request.number(&mut bytes);
            began.push(Instant::now());
            peer.send(&bytes);
        };
        for _ in 0..in_flight.min(calls) {
            send(self, &mut began);
        }
        for _ in 0..calls {
            let id = self.answer();
            took.push(began[(id - first) as usize].elapsed());
            assert!(is_good(&self.line, &self.request), "{}", String::from_utf8_lossy(&self.line));
            if began.len() < calls {
                send(self, &mut began);
            }
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.child.wait();
    }
}
