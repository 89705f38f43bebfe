//! A scripted MCP server for tests: behaves like a real server, and on request like a broken one. JSON-RPC is
//! hand-written, without an MCP library, because the server must be able to misbehave.
//!
//! A test writes a [`Script`] as JSON and talks to the server over a pipe in process ([`serve`],
//! [`duplex`]), over HTTP ([`serve_http`]), or starts it as a program (`main.rs` beside this file).

#![allow(dead_code, reason = "each test binary uses a part of this module")]

mod http;
mod http_wire;
mod out;
mod script;
mod server;
mod session;

use std::time::Duration;

use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWrite, BufReader},
    time::timeout,
};

pub use http::serve_http;
use out::{Out, failure, rpc_error, write_lines};
pub use script::Script;
use server::Server;
use session::Session;

/// The exit code of a scripted crash.
pub const CRASH_CODE: i32 = 70;

const MODERN: &str = "2026-07-28";
const LEGACY: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];
const VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";
const CAPABILITIES_KEY: &str = "io.modelcontextprotocol/clientCapabilities";
const SERVER_INFO_KEY: &str = "io.modelcontextprotocol/serverInfo";
const TASKS_KEY: &str = "io.modelcontextprotocol/tasks";
const SUBSCRIPTION_KEY: &str = "io.modelcontextprotocol/subscriptionId";

/// Serves one connection until `reader` ends or the script says so. Returns the exit code for a program;
/// `writer` is closed by then.
pub async fn serve(
    script: Script,
    reader: impl AsyncRead + Unpin + Send,
    writer: impl AsyncWrite + Unpin + Send + 'static,
) -> i32 {
    let server = Server::new(script);
    if let Some(code) = server.start().await {
        return code;
    }
    let (out, items) = Out::new();
    let mut writing = tokio::spawn(write_lines(server.clone(), items, writer));
    for noise in &server.script.stdout_noise {
        out.raw(format!("{noise}\n").into_bytes()).await;
    }

    let session = Session::new(server.clone());
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    let code = loop {
        if server.is_deaf.load(std::sync::atomic::Ordering::SeqCst) {
            server.gone.notified().await;
            break CRASH_CODE;
        }
        line.clear();
        let read = tokio::select! {
            () = server.gone.notified() => break CRASH_CODE,
            read = reader.read_until(b'\n', &mut line) => read,
        };
        if matches!(read, Ok(0) | Err(_)) {
            if server.script.ignore_eof {
                server.gone.notified().await;
                break CRASH_CODE;
            }
            session.stop().await;
            server.listeners.lock().unwrap().clear();
            drop(out);
            // Pending answers are still written, if anyone reads them.
            if timeout(Duration::from_secs(1), &mut writing).await.is_err() {
                writing.abort();
            }
            break 0;
        }
        match serde_json::from_slice(&line) {
            Ok(message) => session.receive(message, &out).await,
            Err(_) if line.trim_ascii().is_empty() => {}
            Err(error) => out.send(failure(Value::Null, rpc_error(-32700, &error.to_string()))).await,
        }
    };
    // Hanging calls and their session keep each other alive.
    session.tasks.lock().unwrap().abort_all();
    code
}

/// Serves in the background. Returns the client's end of the pipe.
pub fn duplex(script: Script) -> tokio::io::DuplexStream {
    let (client, server) = tokio::io::duplex(64 * 1024);
    let (reader, writer) = tokio::io::split(server);
    tokio::spawn(serve(script, reader, writer));
    client
}
