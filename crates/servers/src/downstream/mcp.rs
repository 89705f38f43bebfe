//! MCP: a server behind a command or an address.

use std::{sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use nonet_base::text::clip;
use nonet_config::{ServerSettings, Transport};
use nonet_text::results::CallResult;
use nonet_wire::{Limits, http::HttpFault};
use parking_lot::Mutex;
use rmcp::model::ServerPeerInfo;
use serde_json::{Value, json};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, timeout},
};

use super::{
    CallControl, CallError, ConnectionContext, ConnectionState, Dial, Era, LogLevel, PersonAccess,
    channel::{Channel, Outgoing, OutgoingParams, RequestFault},
    child::Child,
    credentials::Credentials,
    deepest,
    history::History,
    link::{Connector, Input, Link, LinkError, LinkRequest, RequestError, SignInNeeded},
    listing::{ChangeStream, list},
    pending::AnswerKind,
    placement::{ProgramPlace, ProgramPlacement, RelayedCall},
    refusal::{self, Refusal},
    server_requests::OpenCalls,
    subscriptions::Subscriptions,
};
use crate::catalog::Listing;

/// How long to wait before repeating a call whose token could not be renewed.
const UNSENT: Duration = Duration::from_secs(5);
/// How long a server may take to end a connection.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// One MCP server, behind a command or an address.
pub(super) struct McpServer {
    pub name: Arc<str>,
    pub transport: Transport,
    /// Whether the configuration file defines the server, rather than a session.
    pub lasts: bool,
    pub dial: Option<Box<Dial>>,
    pub context: Arc<ConnectionContext>,
    pub credentials: Arc<Credentials>,
    pub calls: Arc<OpenCalls>,
    pub subscriptions: Arc<Subscriptions>,
    pub limits: Limits,
    /// Whether the server is told that its user interfaces are shown.
    pub ui: bool,
    pub habits: Mutex<ServerQuirks>,
    /// Takes the lines of every process.
    pub history: Arc<History>,
    /// Where the program runs, if one replica of a cluster runs it for all.
    pub placed: Option<Arc<ProgramPlacement>>,
}

/// What earlier attempts learned about a server.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ServerQuirks {
    /// The era of the last handshake.
    pub era: Option<Era>,
    /// Whether the server speaks the old HTTP+SSE transport.
    pub speaks_sse: bool,
}

impl McpServer {
    pub(super) fn new(
        name: &Arc<str>,
        settings: &ServerSettings,
        context: Arc<ConnectionContext>,
        dial: Option<Box<Dial>>,
        calls: &Arc<OpenCalls>,
        subscriptions: &Arc<Subscriptions>,
        person: Option<&PersonAccess>,
    ) -> Self {
        Self {
            name: name.clone(),
            transport: settings.transport.clone(),
            lasts: settings.session.is_none(),
            dial,
            credentials: Arc::new(Credentials::new(name, settings, &context, person)),
            context,
            calls: calls.clone(),
            subscriptions: subscriptions.clone(),
            limits: settings.limits,
            ui: settings.ui,
            habits: Mutex::default(),
            history: Arc::default(),
            placed: None,
        }
    }

    async fn connected(&self, patience: Duration) -> Result<Arc<dyn Link>, LinkError> {
        let placed = self.placed.as_ref().map(|placed| (placed.clone(), placed.get()));
        let reached = match placed.as_ref().map(|(_, place)| place) {
            None | Some(ProgramPlace::Here) => self.reach(patience).await,
            Some(ProgramPlace::At(holder)) => self.greet_holder(holder, patience).await,
            Some(ProgramPlace::Unknown | ProgramPlace::Leaving) => {
                return Err(LinkError::Moved { drains: false });
            }
        };
        let greeted = reached.map_err(|lost| self.credentials.mask_lost(lost))?;
        if !matches!(placed, Some((_, ProgramPlace::At(_)))) {
            self.habits.lock().era = Some(greeted.era);
        }
        Ok(Arc::new(McpLink {
            name: self.name.clone(),
            patience,
            channel: Arc::new(greeted.channel),
            child: Mutex::new(greeted.child),
            era: greeted.era,
            info: greeted.info,
            changes: tokio::sync::Mutex::default(),
            relisten: Notify::new(),
            signed_out: watch::Sender::new(None),
            credentials: self.credentials.clone(),
            subscriptions: self.subscriptions.clone(),
            limits: self.limits,
            placed,
        }))
    }
}

impl Connector for McpServer {
    fn connect(&self, patience: Duration) -> BoxFuture<'_, Result<Arc<dyn Link>, LinkError>> {
        self.connected(patience).boxed()
    }

    fn sign_in_changed(&self) -> BoxFuture<'_, ()> {
        self.credentials.changed().boxed()
    }

    fn account_replaced(&self) -> BoxFuture<'_, ()> {
        self.credentials.replaced().boxed()
    }

    fn mask(&self, text: &str) -> String {
        self.credentials.mask(text)
    }
}

/// A server after its handshake.
pub(super) struct InitializedServer {
    pub channel: Channel,
    pub child: Option<Child>,
    pub era: Era,
    pub info: ServerPeerInfo,
}

/// A live connection to an MCP server.
struct McpLink {
    name: Arc<str>,
    /// The total time for a list's pages.
    patience: Duration,
    channel: Arc<Channel>,
    child: Mutex<Option<Child>>,
    era: Era,
    info: ServerPeerInfo,
    /// The change stream of a server of the stateless era.
    changes: tokio::sync::Mutex<ChangeStream>,
    /// Requests that the change stream be reopened for other resources.
    relisten: Notify,
    /// The sign-in that the server required for a request.
    signed_out: watch::Sender<Option<SignInNeeded>>,
    credentials: Arc<Credentials>,
    subscriptions: Arc<Subscriptions>,
    limits: Limits,
    /// Where the program ran when the link began, if it has a place.
    placed: Option<(Arc<ProgramPlacement>, ProgramPlace)>,
}

impl Link for McpLink {
    fn version(&self) -> String {
        self.info.protocol_version.to_string()
    }

    fn era(&self) -> Option<Era> {
        Some(self.era)
    }

    fn list(&self) -> BoxFuture<'_, Result<Listing, LinkError>> {
        async {
            list(&self.channel, &self.info, &self.name, &self.limits, self.patience)
                .await
                .map_err(|error| LinkError::Failed(self.credentials.mask(&error)))
        }
        .boxed()
    }

    fn changed(&self) -> BoxFuture<'_, ()> {
        let streamed = async {
            if self.era == Era::Session {
                return std::future::pending().await;
            }
            let mut changes = self.changes.lock().await;
            changes.next(&self.channel, &self.info, &self.subscriptions, &self.relisten).await;
        };
        async move {
            tokio::select! {
                () = self.channel.incoming().list_changed.notified() => {}
                () = streamed => {}
            }
        }
        .boxed()
    }

    fn lost(&self) -> BoxFuture<'_, LinkError> {
        let signed_out = async {
            let mut signed_out = self.signed_out.subscribe();
            match signed_out.wait_for(Option::is_some).await.ok().and_then(|needed| needed.clone()) {
                Some(needed) => LinkError::SignIn(needed),
                None => std::future::pending().await,
            }
        };
        let moved = async {
            match &self.placed {
                Some((placed, place)) => placed.left(place).await,
                None => std::future::pending().await,
            }
        };
        async move {
            tokio::select! {
                biased;
                place = moved => LinkError::Moved { drains: place == ProgramPlace::Leaving },
                () = self.channel.incoming().closed.cancelled() => "it closed the connection".into(),
                lost = signed_out => lost,
            }
        }
        .boxed()
    }

    fn is_relayed(&self) -> bool {
        matches!(self.placed, Some((_, ProgramPlace::At(_))))
    }

    fn is_closed(&self) -> bool {
        self.channel.incoming().pending.is_closed()
    }

    fn request<'a>(
        &'a self,
        request: LinkRequest,
        input: Input,
        control: &'a CallControl,
    ) -> BoxFuture<'a, Result<CallResult, RequestError>> {
        async move {
            let relayed = self.is_relayed().then(|| RelayedCall::put(control));
            let control = relayed.as_ref().unwrap_or(control);
            let outgoing = outgoing(&request, &input, control);
            self.channel.request(outgoing).await.map_err(|fault| match fault {
                RequestFault::Lost => RequestError::Lost,
                RequestFault::NotSent(fault) => self.not_sent(&fault),
                RequestFault::Refused(error) => RequestError::Call(CallError::Rpc(error)),
            })
        }
        .boxed()
    }

    fn follows_resources(&self) -> bool {
        self.info.capabilities.resources.as_ref().and_then(|resources| resources.subscribe) == Some(true)
    }

    fn subscribe(&self, uri: String) -> BoxFuture<'_, Result<(), CallError>> {
        async move {
            if self.era == Era::Stateless {
                self.relisten.notify_one();
                return Ok(());
            }
            let subscribed = self.own("resources/subscribe", json!({ "uri": uri })).await;
            subscribed.map_err(|fault| match fault {
                RequestFault::Refused(error) => CallError::Rpc(error),
                RequestFault::NotSent(fault) => CallError::Closed(deepest(&fault)),
                RequestFault::Lost => CallError::Closed("the connection closed".into()),
            })
        }
        .boxed()
    }

    fn unsubscribe(&self, uri: String) -> BoxFuture<'_, ()> {
        async move {
            match self.era {
                Era::Stateless => self.relisten.notify_one(),
                Era::Session => {
                    let _ = self.own("resources/unsubscribe", json!({ "uri": uri })).await;
                }
            }
        }
        .boxed()
    }

    fn set_log_level(&self, level: LogLevel) -> BoxFuture<'_, ()> {
        async move {
            if self.info.capabilities.logging.is_some()
                && self.era == Era::Session
                && let Err(error) = self.own("logging/setLevel", json!({ "level": level })).await
            {
                tracing::debug!(server = %self.name, ?error, "the log level was refused");
            }
        }
        .boxed()
    }

    fn close(&self, reason: String) -> BoxFuture<'_, String> {
        let child = self.child.lock().take();
        async move {
            let _ = timeout(CLOSE_LIMIT, self.channel.close()).await;
            let Some(mut child) = child else { return reason };
            let status = child.exit_status().await;
            let reason = match status {
                Some(status) => self.credentials.mask(&child.with_stderr(&format!("{reason} ({status})"))),
                None => reason,
            };
            child.stop().await;
            reason
        }
        .boxed()
    }
}

impl McpLink {
    /// Makes a request of the gateway's own, whose result nobody needs.
    async fn own(&self, method: &'static str, params: Value) -> Result<(), RequestFault> {
        let params = params.as_object().cloned().unwrap_or_default();
        self.channel.request(Outgoing::own(method, params, AnswerKind::Short)).await.map(drop)
    }

    /// Returns why a request did not get through.
    fn not_sent(&self, fault: &HttpFault) -> RequestError {
        if let Some(refusal) = Refusal::of(fault) {
            let needed = self.credentials.sign_in(&refusal);
            // If only this call needs a wider scope, the other calls continue.
            if refusal.scope.is_none() {
                self.signed_out.send_replace(Some(needed.clone()));
            }
            return RequestError::SignIn(needed);
        }
        let text = self.credentials.mask(&clip(&deepest(fault), 400));
        if let Some((placed, ProgramPlace::At(holder))) = &self.placed
            && refusal::is_not_there(fault)
        {
            placed.report_trouble();
            return RequestError::NotThere(format!("the replica `{}` does not have it: {text}", holder.name));
        }
        RequestError::Call(match fault {
            HttpFault::Unsent(_) => {
                CallError::NotReady(ConnectionState::Down { error: text, retry_at: Instant::now() + UNSENT })
            }
            _ => CallError::Closed(text),
        })
    }
}

/// Returns a request of a call as it is sent.
fn outgoing<'a>(request: &'a LinkRequest, input: &'a Input, control: &'a CallControl) -> Outgoing<'a> {
    let (method, params) = match request {
        LinkRequest::CallTool { tool, arguments, as_task } => {
            ("tools/call", OutgoingParams::Call { tool, arguments, as_task: *as_task, input })
        }
        LinkRequest::Other { method, params } => {
            (*method, OutgoingParams::Other { params: params.clone(), input: Some(input) })
        }
    };
    let expected = AnswerKind::Result;
    Outgoing { method, params, expected, control: Some(control), acknowledged: None }
}
