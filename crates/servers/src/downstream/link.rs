//! The seam between supervision and the kinds of servers: a [`Connector`] reaches one server, a [`Link`] is
//! one live connection to it.
//!
//! MCP (`mcp`) and REST (`rest`) are the implementations; tests script another one in memory. Text from this
//! room never contains secrets.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use nonet_text::results::CallResult;
use serde::ser::SerializeMap;
use serde_json::{Map, Value};

use super::{CallControl, CallError, DocumentReport, Era, LogLevel, Remedy};
use crate::catalog::Listing;

/// The way to one server. Remembers what earlier attempts learned about the server.
pub(super) trait Connector: Send + Sync {
    /// Connects once. `patience` is the total time for it; after that the caller drops the future.
    fn connect(&self, patience: Duration) -> BoxFuture<'_, Result<Arc<dyn Link>, LinkError>>;

    /// Resolves once the user has signed in or out.
    fn sign_in_changed(&self) -> BoxFuture<'_, ()>;

    /// Resolves once the person whose account it is has signed in or out, perhaps as somebody else.
    fn account_replaced(&self) -> BoxFuture<'_, ()> {
        std::future::pending().boxed()
    }

    /// Returns a text with the server's secrets masked.
    fn mask(&self, text: &str) -> String;

    /// Returns the outcome of reading the server's document, if it has one.
    fn document(&self) -> Option<DocumentReport> {
        None
    }
}

/// One live connection.
pub(super) trait Link: Send + Sync {
    /// Returns the negotiated version of the protocol.
    fn version(&self) -> String;

    /// Returns the era of the negotiated version; `None` if the server does not speak MCP.
    fn era(&self) -> Option<Era>;

    /// Reads all of the server's lists.
    fn list(&self) -> BoxFuture<'_, Result<Listing, LinkError>>;

    /// Resolves when a list has changed. Dropping the future and calling again loses no change.
    fn changed(&self) -> BoxFuture<'_, ()>;

    /// Resolves when the link has ended on its own.
    fn lost(&self) -> BoxFuture<'_, LinkError>;

    /// Returns whether the link leads to another replica, which runs the server's program.
    fn is_relayed(&self) -> bool {
        false
    }

    /// Returns whether the link has ended.
    fn is_closed(&self) -> bool;

    /// Sends one request and waits for its result, verbatim, and for a call as bytes where possible. Dropping
    /// the future cancels the request.
    fn request<'a>(
        &'a self,
        request: LinkRequest,
        input: Input,
        control: &'a CallControl,
    ) -> BoxFuture<'a, Result<CallResult, RequestError>>;

    /// Returns whether the server announces changes of single resources.
    fn follows_resources(&self) -> bool;

    /// Subscribes to the changes of a resource.
    fn subscribe(&self, uri: String) -> BoxFuture<'_, Result<(), CallError>>;

    /// Ends such a subscription.
    fn unsubscribe(&self, uri: String) -> BoxFuture<'_, ()>;

    /// Sets the server's log level.
    fn set_log_level(&self, level: LogLevel) -> BoxFuture<'_, ()>;

    /// Closes the link and everything behind it. Returns `reason` with the server's last output.
    fn close(&self, reason: String) -> BoxFuture<'_, String>;
}

/// Why a server was not reached, or is no longer connected.
#[derive(Clone, Debug)]
pub(super) enum LinkError {
    Failed(String),
    SignIn(SignInNeeded),
    /// The program has moved elsewhere. If it `drains`, the requests in flight get their answers first.
    Moved {
        drains: bool,
    },
}

impl From<String> for LinkError {
    fn from(reason: String) -> Self {
        Self::Failed(reason)
    }
}

impl From<&str> for LinkError {
    fn from(reason: &str) -> Self {
        Self::Failed(reason.into())
    }
}

/// A sign-in that a server requires.
#[derive(Clone, Debug)]
pub(super) struct SignInNeeded {
    /// The server's challenge.
    pub error: String,
    pub remedy: Remedy,
}

/// Why a request has no result.
#[derive(Debug)]
pub(super) enum RequestError {
    /// The link ended.
    Lost,
    /// The server did not receive it, because its program no longer runs at the destination: why.
    NotThere(String),
    /// The server requires a sign-in for this request.
    SignIn(SignInNeeded),
    /// Anything else.
    Call(CallError),
}

/// A request to a server.
#[derive(Clone, Debug)]
pub(super) enum LinkRequest {
    CallTool {
        tool: Arc<str>,
        arguments: Map<String, Value>,
        /// Whether the server accepts the call only as a task.
        as_task: bool,
    },
    /// Any other request, with its params.
    Other { method: &'static str, params: Map<String, Value> },
}

/// Returns a request other than a call of a tool.
pub(super) fn other(method: &'static str, mut params: Value) -> LinkRequest {
    let params = params.as_object_mut().map(std::mem::take).unwrap_or_default();
    LinkRequest::Other { method, params }
}

/// The client's answers in the previous round (multi round-trip requests, SEP-2322).
#[derive(Clone, Debug, Default)]
pub(super) struct Input {
    pub responses: BTreeMap<String, Value>,
    pub state: Option<String>,
}

impl Input {
    /// Adds the answers to the params of the next round.
    pub(super) fn add_to<M: SerializeMap>(&self, params: &mut M) -> Result<(), M::Error> {
        if !self.responses.is_empty() {
            params.serialize_entry("inputResponses", &self.responses)?;
        }
        if let Some(state) = &self.state {
            params.serialize_entry("requestState", state)?;
        }
        Ok(())
    }
}
