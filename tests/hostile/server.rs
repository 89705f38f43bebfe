//! A server on stdin and stdout that follows a row's script, and otherwise behaves like a good server.
//! Hand-written and without a runtime: it must be able to do everything wrong.

use std::{
    io::{self, BufRead, Write},
    process::exit,
};

use serde_json::Value;

/// The argument that makes this program a server.
pub const BE_SERVER: &str = "--be-server";

/// A received request or notification.
pub struct Request {
    /// The id as JSON; empty for a notification.
    pub id: String,
    pub method: String,
    pub message: Value,
}

impl Request {
    /// Whether it is a call of a tool.
    pub fn is_call(&self) -> bool {
        self.method == "tools/call"
    }
}

/// The hostile behaviour: called at the start with `None`, then with each message. `true`: the message was
/// handled.
pub type Play = fn(&mut Server, Option<&Request>) -> bool;

pub struct Server {
    /// The tools, as JSON.
    pub tools: String,
    /// How many requests were counted; what counts depends on the row.
    pub count: usize,
    /// Whether the server stays alive when its stdin ends.
    pub stays: bool,
}

/// The tool that every hostile server has.
pub const STRIKE: &str = r#"[{"name":"strike","description":"Strikes","inputSchema":{"type":"object"}}]"#;

impl Server {
    /// Writes bytes.
    pub fn raw(&mut self, bytes: &[u8]) {
        let mut out = io::stdout().lock();
        if out.write_all(bytes).and_then(|()| out.flush()).is_err() {
            exit(0);
        }
    }

    /// Writes a line.
    pub fn say(&mut self, line: &str) {
        self.raw(format!("{line}\n").as_bytes());
    }

    /// Answers with a result, which is JSON or nearly so.
    pub fn answer(&mut self, request: &Request, result: &str) {
        self.say(&format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, request.id));
    }

    /// Answers with an error.
    pub fn fail(&mut self, request: &Request, error: &str) {
        self.say(&format!(r#"{{"jsonrpc":"2.0","id":{},"error":{error}}}"#, request.id));
    }

    /// Answers a call as a good server would.
    pub fn ok(&mut self, request: &Request) -> bool {
        self.answer(request, r#"{"content":[{"type":"text","text":"ok"}]}"#);
        true
    }

    /// Behaves like a good server.
    fn behave(&mut self, request: &Request) {
        if request.id.is_empty() {
            return;
        }
        match request.method.as_str() {
            "initialize" => {
                self.answer(request, &initialized("2025-06-18", r#"{"tools":{"listChanged":true}}"#))
            }
            "ping" | "logging/setLevel" => self.answer(request, "{}"),
            "tools/list" => self.answer(request, &format!(r#"{{"tools":{}}}"#, self.tools)),
            "tools/call" => _ = self.ok(request),
            // An answer of the client.
            "" => {}
            _ => self.fail(request, r#"{"code":-32601,"message":"Method not found"}"#),
        }
    }
}

/// Returns the result of `initialize`.
pub fn initialized(version: &str, capabilities: &str) -> String {
    format!(
        r#"{{"protocolVersion":"{version}","capabilities":{capabilities},"serverInfo":{{"name":"hostile","version":"1"}}}}"#
    )
}

/// Runs a server until its stdin ends.
pub fn run(name: &str) {
    let play = crate::stdio::play(name)
        .or_else(|| crate::answers::play(name))
        .or_else(|| crate::schemas::play(name));
    let Some(play) = play else { panic!("no row is called {name}") };
    let mut server = Server { tools: STRIKE.into(), count: 0, stays: false };
    play(&mut server, None);
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let Ok(message) = serde_json::from_str::<Value>(&line) else { continue };
        let id = message.get("id").map(Value::to_string).unwrap_or_default();
        let method = message["method"].as_str().unwrap_or_default().to_string();
        let request = Request { id, method, message };
        if !play(&mut server, Some(&request)) {
            server.behave(&request);
        }
    }
    if server.stays {
        crate::stdio::hang();
    }
}
