//! Outgoing messages, and the JSON-RPC envelopes.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    sync::Arc,
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncWrite, AsyncWriteExt},
    sync::mpsc,
};

use super::server::Server;

/// Receives a request's answer and everything before it: one queue per stdio connection, or per HTTP request.
#[derive(Clone)]
pub(super) struct Out {
    pub(super) items: mpsc::Sender<Item>,
    pub(super) headers: Arc<BTreeMap<String, String>>,
}

pub(super) enum Item {
    Message(Value),
    Raw(Vec<u8>),
    Crash,
}

impl Out {
    pub(super) fn new() -> (Self, mpsc::Receiver<Item>) {
        Self::with_headers(BTreeMap::new())
    }

    pub(super) fn with_headers(headers: BTreeMap<String, String>) -> (Self, mpsc::Receiver<Item>) {
        let (items, receiver) = mpsc::channel(64);
        (Self { items, headers: Arc::new(headers) }, receiver)
    }

    /// Sends a message; a missing reader is not an error.
    pub(super) async fn send(&self, message: Value) {
        let _ = self.items.send(Item::Message(message)).await;
    }

    /// Sends bytes. Returns false if nobody reads any more.
    pub(super) async fn raw(&self, bytes: Vec<u8>) -> bool {
        self.items.send(Item::Raw(bytes)).await.is_ok()
    }

    /// Crashes after everything sent before is written.
    pub(super) async fn crash(&self) {
        let _ = self.items.send(Item::Crash).await;
    }
}

pub(super) async fn write_lines(
    server: Arc<Server>,
    mut items: mpsc::Receiver<Item>,
    mut writer: impl AsyncWrite + Unpin,
) -> io::Result<()> {
    while let Some(item) = items.recv().await {
        match item {
            Item::Message(message) => {
                if message.get("method").is_none() {
                    if server.script.noise_before_each_answer {
                        writer.write_all(b"noise: this line is not JSON\n").await?;
                    }
                    if server.script.stderr_flood {
                        flood_stderr(256 * 1024).await;
                    }
                }
                writer.write_all(format!("{message}\n").as_bytes()).await?;
            }
            Item::Raw(bytes) => writer.write_all(&bytes).await?,
            Item::Crash => {
                writer.flush().await?;
                server.gone.notify_one();
                return Ok(());
            }
        }
        writer.flush().await?;
    }
    Ok(())
}

/// Blocks until stderr is read, like a server that prints from its main thread.
pub(super) async fn flood_stderr(bytes: usize) {
    let flood = move || {
        let line = format!("flood {}\n", "~".repeat(121));
        for _ in 0..bytes / line.len() {
            let _ = io::stderr().write_all(line.as_bytes());
        }
    };
    let _ = tokio::task::spawn_blocking(flood).await;
}

pub(super) fn success(id: Value, result: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "result": result })
}

pub(super) fn failure(id: Value, error: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "error": error })
}

pub(super) fn rpc_error(code: i64, message: &str) -> Value {
    json!({ "code": code, "message": message })
}
