//! The command line's connection to a running gateway: requests of the stateless era, one at a time.

use std::time::Duration;

use nonet_wire::VERSION_KEY;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{LineLink, ReturnedLine, Target, answers};
#[cfg(unix)]
use nonet_base::json::{set_member, take_member};
use nonet_store::shared::{Hello, SharedPlace};

const VERSION: &str = "2026-07-28";
/// How long sending a cancellation may take.
const CANCEL_LIMIT: Duration = Duration::from_millis(300);

/// A running gateway.
pub struct RunningGateway {
    link: LineLink,
    client: &'static str,
    last_id: u64,
    /// Its version; empty if it has not said.
    pub version: String,
}

/// Why a request has no result.
#[derive(Debug, thiserror::Error)]
pub enum RequestFailure {
    /// The gateway answered with a JSON-RPC error, or could not be reached.
    #[error("{message}")]
    Refused {
        /// The error's code.
        code: i64,
        /// The error's message.
        message: String,
    },
    /// The connection closed first.
    #[error("the gateway ended before it answered; the request may or may not have been carried out")]
    Lost,
}

impl RequestFailure {
    /// Returns whether the gateway does not know the method: an older version, which did nothing.
    pub fn is_unknown_method(&self) -> bool {
        matches!(self, Self::Refused { code: -32601, .. })
    }
}

impl RunningGateway {
    /// Returns the gateway that serves this machine's clients at a place; `None` if none runs. `client` is
    /// the caller's name.
    #[cfg(unix)]
    pub async fn shared(
        place: &SharedPlace,
        hello: &Hello,
        client: &'static str,
    ) -> anyhow::Result<Option<Self>> {
        let found = place.find(hello).await?;
        Ok(found.map(|found| Self {
            link: LineLink::over_lines(found.reader, found.writer),
            client,
            last_id: 0,
            version: found.version,
        }))
    }

    /// Returns the gateway at an address. Nothing is sent before the first request.
    pub fn at(target: Target, client: &'static str) -> anyhow::Result<Self> {
        Ok(Self {
            link: LineLink::over_http(target, Duration::ZERO)?,
            client,
            last_id: 0,
            version: String::new(),
        })
    }

    /// Makes a request and waits for its result.
    pub async fn request(&mut self, method: &str, mut params: Value) -> Result<Value, RequestFailure> {
        self.last_id += 1;
        let meta = json!({
            VERSION_KEY: VERSION,
            "io.modelcontextprotocol/clientInfo": { "name": self.client, "version": env!("CARGO_PKG_VERSION") },
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        set_member(&mut params, "_meta", meta);
        let request = json!({ "jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params });
        self.link.to.send(format!("{request}\n").into()).await.map_err(|_| RequestFailure::Lost)?;
        let id = self.last_id.to_string();
        loop {
            let line = match self.link.from.recv().await {
                Some(ReturnedLine::Line(line)) => line,
                Some(ReturnedLine::Unsent(_)) | None => return Err(RequestFailure::Lost),
            };
            if !answers(&line, &id) {
                continue;
            }
            let mut answer: Value = serde_json::from_slice(&line).map_err(|_| RequestFailure::Lost)?;
            return match answer.get_mut("error") {
                Some(error) => Err(RequestFailure::Refused {
                    code: error["code"].as_i64().unwrap_or_default(),
                    message: error["message"].as_str().unwrap_or("no message").into(),
                }),
                None => Ok(take_member(&mut answer, "result")),
            };
        }
    }

    /// Cancels the open request and disconnects.
    pub async fn cancel(self) {
        let LineLink { to, from, mut tasks } = self.link;
        let params = json!({ "requestId": self.last_id, "reason": "the user interrupted it" });
        let cancel = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params });
        let _ = to.send(format!("{cancel}\n").into()).await;
        drop((to, from));
        let left = async { while tasks.join_next().await.is_some() {} };
        let _ = timeout(CANCEL_LIMIT, left).await;
    }
}
