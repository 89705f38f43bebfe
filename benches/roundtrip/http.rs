//! A server over streamable HTTP (2025-11-25), with persistent blocking sockets.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::TcpStream,
    os::fd::AsFd,
    time::{Duration, Instant},
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::{Value, json};

use crate::rows::{Request, Server, initialize, is_good};

/// The header that names a session.
pub const SESSION: &str = "Mcp-Session-Id";

/// An HTTP/1.1 request or answer, with the relevant parts of its head.
#[derive(Default)]
pub struct Message {
    /// The first line.
    pub start: String,
    pub session: Option<String>,
    pub body: Vec<u8>,
    line: Vec<u8>,
}

impl Message {
    /// Reads the next message.
    pub fn read(&mut self, input: &mut impl BufRead) -> io::Result<()> {
        self.body.clear();
        self.session = None;
        let (mut length, mut chunked, mut first) = (0, false, true);
        loop {
            let line = line(input, &mut self.line)?;
            if std::mem::take(&mut first) {
                self.start = String::from_utf8_lossy(line).into_owned();
                continue;
            }
            if line.is_empty() {
                break;
            }
            let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
            let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
            if name.eq_ignore_ascii_case(b"content-length") {
                length = number(value, 10)?;
            } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
                chunked = true;
            } else if name.eq_ignore_ascii_case(SESSION.as_bytes()) {
                self.session = Some(String::from_utf8_lossy(value).into_owned());
            }
        }
        if !chunked {
            return read_more(input, &mut self.body, length);
        }
        loop {
            let size = number(line(input, &mut self.line)?, 16)?;
            read_more(input, &mut self.body, size)?;
            line(input, &mut self.line)?;
            if size == 0 {
                return Ok(());
            }
        }
    }
}

fn line<'a>(input: &mut impl BufRead, line: &'a mut Vec<u8>) -> io::Result<&'a [u8]> {
    line.clear();
    if input.read_until(b'\n', line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_ascii_end())
}

fn number(digits: &[u8], radix: u32) -> io::Result<usize> {
    let number =
        std::str::from_utf8(digits).ok().and_then(|digits| usize::from_str_radix(digits, radix).ok());
    number.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn read_more(input: &mut impl BufRead, body: &mut Vec<u8>, length: usize) -> io::Result<()> {
    let start = body.len();
    body.resize(start + length, 0);
    input.read_exact(&mut body[start..])
}

/// A session with a server over HTTP, on as many connections as there are calls in flight.
pub struct Session {
    port: u16,
    session: Option<String>,
    connections: Vec<BufReader<TcpStream>>,
    answer: Message,
    request: Request,
}

impl Session {
    /// Opens a session, and returns when the handshake is done.
    pub fn open(port: u16) -> Self {
        let answer = Message::default();
        let mut session =
            Self { port, session: None, connections: Vec::new(), answer, request: Request::default() };
        session.ask("initialize", initialize());
        session.session = session.answer.session.take();
        let initialized = session.whole(br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
        session.send(0, &initialized);
        session.receive(0);
        session
    }

    /// Returns the same session on another port, as a balancer would route it.
    pub fn at(&self, port: u16) -> Self {
        let (session, answer) = (self.session.clone(), Message::default());
        Self { port, session, connections: Vec::new(), answer, request: Request::default() }
    }

    /// Returns the port of the server.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns a complete request with its head.
    fn whole(&self, body: &[u8]) -> Vec<u8> {
        let session = self.session.iter().fold(String::new(), |_, session| {
            format!("{SESSION}: {session}\r\nMCP-Protocol-Version: 2025-11-25\r\n")
        });
        let mut whole = format!(
            "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nAccept: application/json, text/event-stream\r\n\
             Content-Type: application/json\r\n{session}Content-Length: {}\r\n\r\n",
            self.port,
            body.len()
        )
        .into_bytes();
        whole.extend_from_slice(body);
        whole
    }

    fn send(&mut self, connection: usize, bytes: &[u8]) {
        while self.connections.len() <= connection {
            let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("the server listens");
            stream.set_nodelay(true).expect("an open socket");
            self.connections.push(BufReader::with_capacity(1 << 16, stream));
        }
        self.connections[connection].get_mut().write_all(bytes).expect("the server reads");
    }

    fn receive(&mut self, connection: usize) {
        self.answer.read(&mut self.connections[connection]).expect("the server answers");
        assert!(self.answer.start.starts_with("HTTP/1.1 20"), "{}", self.answer.start);
    }

    /// Returns the waiting connections that have data to read.
    fn readable(&self, began: &[Option<Instant>]) -> Vec<usize> {
        let waiting: Vec<usize> = (0..began.len()).filter(|at| began[*at].is_some()).collect();
        if let [only] = waiting[..] {
            return vec![only];
        }
        let descriptor = |at: &usize| PollFd::new(self.connections[*at].get_ref().as_fd(), PollFlags::POLLIN);
        let mut descriptors: Vec<PollFd> = waiting.iter().map(descriptor).collect();
        poll(&mut descriptors, PollTimeout::NONE).expect("open sockets");
        let ready = descriptors.iter().map(|descriptor| descriptor.any() == Some(true));
        waiting.iter().zip(ready).filter_map(|(at, ready)| ready.then_some(*at)).collect()
    }
}

impl Server for Session {
    fn ask(&mut self, method: &str, params: Value) -> Value {
        let message = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let whole = self.whole(message.to_string().as_bytes());
        self.send(0, &whole);
        self.receive(0);
        let text = String::from_utf8_lossy(&self.answer.body);
        // JSON, or an event stream with the answer among its events.
        let mut candidates = text.lines().map(|line| line.strip_prefix("data:").unwrap_or(line).trim());
        let answer = candidates.find(|line| line.contains(r#""id":1"#)).expect("an answer");
        serde_json::from_str(answer).expect("an answer is JSON")
    }

    fn prepare(&mut self, mut request: Request) {
        request.bytes = self.whole(&request.bytes);
        self.request = request;
    }

    fn calls(&mut self, calls: usize, in_flight: usize, took: &mut Vec<Duration>) {
        let mut bytes = self.request.bytes.clone();
        let mut began: Vec<Option<Instant>> = vec![None; in_flight.min(calls)];
        let mut left = calls - began.len();
        let mut send = |session: &mut Self, at: usize| {
            session.request.number(&mut bytes);
            let now = Instant::now();
            session.send(at, &bytes);
            Some(now)
        };
        for (at, began) in began.iter_mut().enumerate() {
            *began = send(self, at);
        }
        while began.iter().any(Option::is_some) {
            for at in self.readable(&began) {
                self.receive(at);
                took.extend(began[at].take().map(|began| began.elapsed()));
                let body = &self.answer.body;
                assert!(is_good(body, &self.request), "{}", String::from_utf8_lossy(body));
                if left > 0 {
                    left -= 1;
                    began[at] = send(self, at);
                }
            }
        }
    }
}

/// Reads the port that a server prints.
pub fn port(output: &mut impl Read) -> u16 {
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line).expect("the server writes");
    line.trim().parse().expect("a port")
}
