//! The states of a connection, the conditions and failures of its calls, and what it reports.

use std::{sync::Arc, time::Duration};

use nonet_api::status::{Era, ServerState};
use rmcp::model::ErrorData;
use serde_json::{Map, Value};
use tokio::{sync::oneshot, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{BreakerRefusal, ClientChannel, ProgressSink};
use crate::catalog::Listing;

/// The state of a connection.
#[derive(Clone, Debug)]
pub enum ConnectionState {
    /// Not connected yet, for the first time.
    Starting,
    /// Connected and listed.
    Ready {
        /// The negotiated revision of the protocol, or `OpenAPI` with the version of a REST service's
        /// document.
        version: String,
        /// The era of that revision; absent if the server does not speak MCP.
        era: Option<Era>,
        /// The time from the start to the published list.
        took: Duration,
        /// When the list was published.
        since: Instant,
    },
    /// Lost, or never reached.
    Down {
        /// What went wrong, and what to do.
        error: String,
        /// The time of the next attempt.
        retry_at: Instant,
    },
    /// The server wants a sign-in.
    AuthRequired {
        /// The server's challenge.
        error: String,
        /// What the user has to do.
        remedy: Remedy,
    },
    /// Stopped by the gateway.
    Stopped,
}

/// How the user gives a server the required sign-in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// By running this command.
    Login(String),
    /// By the person themselves, on this page of the gateway.
    Page(String),
    /// By another token of the person, or other settings of the exchange.
    Exchange,
    /// By another client in `oauth`, with which Nonet signs in by itself.
    Client,
    /// By valid credentials in `headers`.
    Headers,
    /// By the key or header that the service's document names.
    AsDocumented,
    /// By a separate server entry for this host, which does not get the service's credentials.
    OtherHost(String),
}

impl Remedy {
    /// Returns the command that signs in, if there is one.
    pub fn command(&self) -> Option<&str> {
        match self {
            Self::Login(command) => Some(command),
            Self::Page(_)
            | Self::Exchange
            | Self::Client
            | Self::Headers
            | Self::AsDocumented
            | Self::OtherHost(_) => None,
        }
    }
}

impl ConnectionState {
    /// Returns the state as answers show it.
    pub fn shown(&self) -> ServerState {
        match self {
            ConnectionState::Starting => ServerState::Starting,
            ConnectionState::Ready { .. } => ServerState::Ready,
            ConnectionState::Down { .. } => ServerState::Down,
            ConnectionState::AuthRequired { .. } => ServerState::AuthRequired,
            ConnectionState::Stopped => ServerState::Stopped,
        }
    }

    /// Returns whether the first attempt to connect has finished.
    pub fn settled(&self) -> bool {
        !matches!(self, ConnectionState::Starting)
    }
}

/// Why a call did not reach a result.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The server is not connected.
    #[error("the server is {}", .0.shown().as_str())]
    NotReady(ConnectionState),
    /// The connection was lost during the call.
    #[error("the server went away during the call: {0}")]
    Closed(String),
    /// The server did not answer in time.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// The caller gave up.
    #[error("cancelled")]
    Cancelled,
    /// The server was at its maximum of concurrent calls until the time ran out.
    #[error("{0} calls are running")]
    Busy(usize),
    /// The server or the tool is cut off for a while.
    #[error("its calls are paused")]
    Resting(BreakerRefusal),
    /// The server answered with a protocol error.
    #[error("{}", .0.message)]
    Rpc(ErrorData),
    /// The server's answer is not a result.
    #[error("{0}")]
    Unreadable(String),
    /// The arguments do not make a valid request.
    #[error("{0}")]
    Params(String),
    /// The request may not be sent.
    #[error("{0}")]
    NotSent(String),
    /// The server does not allow the call with the credentials it received.
    #[error("{error}")]
    NotAllowed {
        /// What the server said.
        error: String,
        /// What the user has to do.
        remedy: Remedy,
    },
    /// The server accepts no more calls for a while.
    #[error("{error}")]
    RateLimited {
        /// What the server said.
        error: String,
        /// How long that lasts, if the server said so.
        wait: Option<Duration>,
    },
    /// The server, or the way to it, failed.
    #[error("{error}")]
    Upstream {
        /// What went wrong.
        error: String,
        /// When to call again, if the server said so.
        wait: Option<Duration>,
        /// Whether the call may have taken effect, so that a repeat could do it twice.
        is_open: bool,
        /// Whether the server itself answered: it is reachable, and only this call failed.
        is_answer: bool,
    },
}

/// The outcome of reading a REST service's document.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct DocumentReport {
    /// Where it is; none if every endpoint is written by hand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub document: Option<String>,
    /// The number of operations that became tools.
    pub operations: usize,
    /// The operations that did not become tools, each with the reason.
    pub left_out: Vec<String>,
    /// The patterns in `operations` that match none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unmatched: Vec<String>,
}

/// The conditions of one call.
#[derive(Clone, Debug, Default)]
pub struct CallControl {
    /// The hard limit. When it expires, the call ends with a cancellation to the server.
    pub timeout: Duration,
    /// Ends the call early, with a cancellation to the server.
    pub cancel: CancellationToken,
    /// Where progress notifications go, in order.
    pub progress: Option<ProgressSink>,
    /// The part of the caller's `_meta` that is forwarded (trace context and the like).
    pub meta: Map<String, Value>,
    /// The channel to the client, for requests of the server during the call.
    pub asker: Option<ClientChannel>,
    /// The number of the client that takes its turn at the server.
    pub owner: u64,
}

impl CallControl {
    /// Returns the reason for giving up the request, for the server.
    pub(super) fn why_given_up(&self) -> &'static str {
        match self.cancel.is_cancelled() {
            true => "the client cancelled",
            false => "the gateway's time limit for this call was reached",
        }
    }
}

/// News for the gateway, in order.
#[derive(Debug)]
pub enum ServerUpdate {
    /// A server listed its tools.
    Listed {
        /// The server.
        server: Arc<str>,
        /// The number of the connection.
        connection: u64,
        /// The session that the server belongs to, if any.
        session: Option<u64>,
        /// The key of the person whose connection it is, if it is one's own.
        person: Option<Arc<str>>,
        /// The new list; absent if it could not be read again.
        listing: Option<Listing>,
        /// Receives a signal once the list is in the catalogue.
        published: oneshot::Sender<()>,
    },
    /// A lost server is connected again.
    Reconnected {
        /// The server.
        server: Arc<str>,
    },
    /// A server requires a sign-in from now on.
    SignInNeeded {
        /// The server.
        server: Arc<str>,
        /// The command that signs in, if there is one.
        login: Option<String>,
    },
    /// The configuration changed: the catalogue is checked against it, and removed servers are forgotten.
    Reconfigured,
    /// Asks for a signal once everything before this is published.
    Barrier(oneshot::Sender<()>),
}
