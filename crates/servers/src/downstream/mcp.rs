//! MCP over rmcp: a server behind a command or an address.

use std::{sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use nonet_base::text::clip;
use nonet_config::{ServerSettings, Transport};
use nonet_text::results::CallResult;
use nonet_wire::Limits;
use parking_lot::Mutex;
use rmcp::{
    RoleClient,
    model::{
        CallToolRequest, CallToolRequestParams, ClientRequest, CompleteRequest, CustomRequest, GetExtensions,
        GetMeta, GetPromptRequest, GetPromptRequestParams, ReadResourceRequest, ReadResourceRequestParams,
        ServerPeerInfo, ServerResult, SetLevelRequestParams, SubscribeRequestParams,
        UnsubscribeRequestParams,
    },
    service::{ClientCacheConfig, Peer, PeerRequestOptions, RequestHandle, RunningService, ServiceError},
};
use serde_json::json;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    CallControl, CallError, ConnectionContext, ConnectionState, Dial, Era, LogLevel,
    child::{Child, StderrTail},
    client_handler::NonetClient,
    credentials::Credentials,
    deepest,
    direct::{DirectCalls, DirectError},
    history::History,
    link::{Connector, Input, Link, LinkError, LinkRequest, RequestError, SignInNeeded},
    listing::{ChangeStream, list},
    placement::{ProgramPlace, ProgramPlacement, RelayedCall},
    refusal::{self, Refusal},
    server_requests::OpenCalls,
    subscriptions::Subscriptions,
    tap::{DeclaredCapabilities, HeldResult},
};
use crate::catalog::Listing;

/// The `_meta` key for the minimum level of server log messages that a client wants (2026-07-28).
pub(super) const LOG_LEVEL_KEY: &str = "io.modelcontextprotocol/logLevel";
/// How long to wait before repeating a call whose token could not be renewed.
const UNSENT: Duration = Duration::from_secs(5);
/// How long rmcp may take to close a link.
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
    pub habits: Mutex<ServerQuirks>,
    /// The stderr of the last process.
    pub tail: Mutex<Option<StderrTail>>,
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
    ) -> Self {
        Self {
            name: name.clone(),
            transport: settings.transport.clone(),
            lasts: settings.session.is_none(),
            dial,
            credentials: Arc::new(Credentials::new(name, settings, &context)),
            context,
            calls: calls.clone(),
            subscriptions: subscriptions.clone(),
            limits: settings.limits,
            habits: Mutex::default(),
            tail: Mutex::default(),
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
        let peer = greeted.running.peer().clone();
        // rmcp's own cache would serve stale lists; the catalogue is ours.
        peer.set_response_cache_config(ClientCacheConfig::disabled()).await;
        Ok(Arc::new(McpLink {
            name: self.name.clone(),
            patience,
            peer,
            running: Mutex::new(Some(greeted.running)),
            child: Mutex::new(greeted.child),
            era: greeted.era,
            info: greeted.info,
            list_changed: greeted.list_changed,
            changes: tokio::sync::Mutex::default(),
            relisten: Notify::new(),
            closed: greeted.closed,
            signed_out: watch::Sender::new(None),
            credentials: self.credentials.clone(),
            subscriptions: self.subscriptions.clone(),
            limits: self.limits,
            direct: greeted.direct,
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

    fn stderr_tail(&self) -> Vec<String> {
        let text = self.tail.lock().as_ref().map(StderrTail::text).unwrap_or_default();
        self.credentials.mask(&text).lines().map(String::from).collect()
    }

    fn mask(&self, text: &str) -> String {
        self.credentials.mask(text)
    }
}

/// A server after its handshake.
pub(super) struct InitializedServer {
    pub running: RunningService<RoleClient, NonetClient>,
    pub child: Option<Child>,
    pub direct: Option<DirectCalls>,
    pub era: Era,
    pub info: ServerPeerInfo,
    /// Receives a signal for each `list_changed` notification.
    pub list_changed: Arc<Notify>,
    /// Cancelled when the transport is gone.
    pub closed: CancellationToken,
}

/// A live connection to an MCP server.
struct McpLink {
    name: Arc<str>,
    /// The total time for a list's pages.
    patience: Duration,
    peer: Peer<RoleClient>,
    running: Mutex<Option<RunningService<RoleClient, NonetClient>>>,
    child: Mutex<Option<Child>>,
    era: Era,
    info: ServerPeerInfo,
    list_changed: Arc<Notify>,
    /// The change stream of a server of the stateless era.
    changes: tokio::sync::Mutex<ChangeStream>,
    /// Requests that the change stream be reopened for other resources.
    relisten: Notify,
    closed: CancellationToken,
    /// The sign-in that the server required for a request.
    signed_out: watch::Sender<Option<SignInNeeded>>,
    credentials: Arc<Credentials>,
    subscriptions: Arc<Subscriptions>,
    limits: Limits,
    /// Calls that bypass rmcp, where the transport supports them.
    direct: Option<DirectCalls>,
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
            list(&self.peer, &self.info, &self.name, &self.limits, self.patience)
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
            changes.next(&self.peer, &self.info, &self.subscriptions, &self.relisten).await;
        };
        async move {
            tokio::select! {
                () = self.list_changed.notified() => {}
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
                () = self.closed.cancelled() => "it closed the connection".into(),
                lost = signed_out => lost,
            }
        }
        .boxed()
    }

    fn is_relayed(&self) -> bool {
        matches!(self.placed, Some((_, ProgramPlace::At(_))))
    }

    fn is_closed(&self) -> bool {
        self.peer.is_transport_closed()
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
            if let (LinkRequest::CallTool { tool, arguments, as_task: false }, Some(direct)) =
                (&request, &self.direct)
                && input.is_empty()
            {
                match direct.call(tool, arguments, control).await {
                    Ok(result) => return Ok(result),
                    Err(DirectError::Lost) => return Err(RequestError::Lost),
                    Err(DirectError::Unsent(error)) => return Err(self.not_sent(&error)),
                    Err(DirectError::Refused(error)) => {
                        return Err(RequestError::Call(CallError::Rpc(error)));
                    }
                    Err(DirectError::Elsewhere) => {}
                }
            }
            Box::pin(self.send(client_request(request, input), control)).await
        }
        .boxed()
    }

    fn follows_resources(&self) -> bool {
        self.info.capabilities.resources.as_ref().and_then(|resources| resources.subscribe) == Some(true)
    }

    fn subscribe(&self, uri: String) -> BoxFuture<'_, Result<(), CallError>> {
        async {
            if self.era == Era::Stateless {
                self.relisten.notify_one();
                return Ok(());
            }
            self.peer.subscribe(SubscribeRequestParams::new(uri)).await.map_err(|error| match error {
                ServiceError::McpError(error) => CallError::Rpc(error),
                error => CallError::Closed(deepest(&error)),
            })
        }
        .boxed()
    }

    fn unsubscribe(&self, uri: String) -> BoxFuture<'_, ()> {
        async {
            match self.era {
                Era::Stateless => self.relisten.notify_one(),
                Era::Session => {
                    let _ = self.peer.unsubscribe(UnsubscribeRequestParams::new(uri)).await;
                }
            }
        }
        .boxed()
    }

    fn set_log_level(&self, level: LogLevel) -> BoxFuture<'_, ()> {
        async move {
            if self.info.capabilities.logging.is_some()
                && self.era == Era::Session
                && let Err(error) = self.peer.set_level(SetLevelRequestParams::new(level.into())).await
            {
                tracing::debug!(server = %self.name, %error, "the log level was refused");
            }
        }
        .boxed()
    }

    fn close(&self, reason: String) -> BoxFuture<'_, String> {
        let (running, child) = (self.running.lock().take(), self.child.lock().take());
        async move {
            if let Some(mut running) = running {
                let _ = running.close_with_timeout(CLOSE_LIMIT).await;
            }
            let Some(mut child) = child else { return reason };
            let status = child.exit_status().await;
            let reason = match status {
                Some(status) => {
                    self.credentials.mask(&child.tail().added_to(&format!("{reason} ({status})")))
                }
                None => reason,
            };
            child.stop().await;
            reason
        }
        .boxed()
    }
}

impl McpLink {
    async fn send(
        &self,
        mut request: ClientRequest,
        control: &CallControl,
    ) -> Result<CallResult, RequestError> {
        self.annotate(&mut request, control);
        let held = HeldResult::default();
        request.extensions_mut().insert(held.clone());
        let sent = self.peer.send_request_with_option(request, PeerRequestOptions::no_options()).await;
        let handle = sent.map_err(|_| RequestError::Lost)?;
        let mut sent = RequestInFlight { handle: Some(handle), control };
        let failed = match sent.answer().await {
            Ok(Ok(ServerResult::CustomResult(result))) => {
                return Ok(held.result(result.0));
            }
            Ok(Ok(other)) => {
                let other = serde_json::to_value(other);
                return other
                    .map(CallResult::of_server)
                    .map_err(|error| RequestError::Call(CallError::Unreadable(error.to_string())));
            }
            Ok(Err(ServiceError::TransportClosed)) | Err(_) => return Err(RequestError::Lost),
            Ok(Err(error)) => error,
        };
        Err(match failed {
            ServiceError::TransportSend(error) => self.not_sent(error.error.as_ref()),
            ServiceError::McpError(error) => RequestError::Call(CallError::Rpc(error)),
            ServiceError::Cancelled { .. } => RequestError::Call(CallError::Cancelled),
            error => RequestError::Call(CallError::Unreadable(clip(&error.to_string(), 400))),
        })
    }

    /// Adds the call's own data to the request.
    fn annotate(&self, request: &mut ClientRequest, control: &CallControl) {
        for (key, value) in &control.meta {
            request.get_meta_mut().0.insert(key.clone(), value.clone());
        }
        if let Some(progress) = &control.progress {
            request.extensions_mut().insert(progress.clone());
        }
        if let Some(asker) = &control.asker {
            request.extensions_mut().insert(asker.clone());
            request.extensions_mut().insert(DeclaredCapabilities(asker.can.clone()));
            if let Some(level) = asker.log.filter(|_| self.era == Era::Stateless) {
                request.get_meta_mut().0.insert(LOG_LEVEL_KEY.into(), json!(level));
            }
        }
    }

    /// Returns why a request did not get through.
    fn not_sent(&self, error: &(dyn std::error::Error + 'static)) -> RequestError {
        if let Some(refusal) = Refusal::of(error) {
            let needed = self.credentials.sign_in(&refusal);
            // If only this call needs a wider scope, the other calls continue.
            if refusal.scope.is_none() {
                self.signed_out.send_replace(Some(needed.clone()));
            }
            return RequestError::SignIn(needed);
        }
        let text = self.credentials.mask(&clip(&deepest(error), 400));
        if let Some((placed, ProgramPlace::At(holder))) = &self.placed
            && refusal::is_not_there(error)
        {
            placed.report_trouble();
            return RequestError::NotThere(format!("the replica `{}` does not have it: {text}", holder.name));
        }
        RequestError::Call(match refusal::is_unsent(error) {
            true => {
                CallError::NotReady(ConnectionState::Down { error: text, retry_at: Instant::now() + UNSENT })
            }
            false => CallError::Closed(text),
        })
    }
}

/// A request in flight. Dropping it before the answer cancels it at the server.
struct RequestInFlight<'a> {
    handle: Option<RequestHandle<RoleClient>>,
    control: &'a CallControl,
}

impl RequestInFlight<'_> {
    async fn answer(&mut self) -> Result<Result<ServerResult, ServiceError>, ()> {
        let Some(handle) = &mut self.handle else { return Err(()) };
        let answer = (&mut handle.rx).await;
        self.handle = None;
        answer.map_err(drop)
    }
}

impl Drop for RequestInFlight<'_> {
    fn drop(&mut self) {
        let Some(handle) = self.handle.take() else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let reason = self.control.why_given_up();
        // In a separate task: a server that does not read would block the caller.
        runtime.spawn(async move {
            let _ = handle.cancel(Some(reason.into())).await;
        });
    }
}

fn client_request(request: LinkRequest, input: Input) -> ClientRequest {
    let responses = (!input.responses.is_empty()).then_some(input.responses);
    match request {
        LinkRequest::CallTool { tool, arguments, as_task: true } => {
            let mut params = json!({ "name": &*tool, "arguments": arguments, "task": {} });
            if let Some(responses) = responses {
                params["inputResponses"] = json!(responses);
            }
            if let Some(state) = input.state {
                params["requestState"] = json!(state);
            }
            ClientRequest::CustomRequest(CustomRequest::new("tools/call", Some(params)))
        }
        LinkRequest::CallTool { tool, arguments, as_task: false } => {
            let mut params = CallToolRequestParams::new(tool.to_string());
            params.arguments = Some(arguments);
            (params.input_responses, params.request_state) = (responses, input.state);
            ClientRequest::CallToolRequest(CallToolRequest::new(params))
        }
        LinkRequest::GetPrompt { prompt, arguments } => {
            let mut params = GetPromptRequestParams::new(prompt);
            params.arguments = Some(arguments);
            (params.input_responses, params.request_state) = (responses, input.state);
            ClientRequest::GetPromptRequest(GetPromptRequest::new(params))
        }
        LinkRequest::ReadResource { uri } => {
            let mut params = ReadResourceRequestParams::new(uri);
            (params.input_responses, params.request_state) = (responses, input.state);
            ClientRequest::ReadResourceRequest(ReadResourceRequest::new(params))
        }
        LinkRequest::Complete(params) => ClientRequest::CompleteRequest(CompleteRequest::new(*params)),
        LinkRequest::Task { method, params } => {
            ClientRequest::CustomRequest(CustomRequest::new(method, Some(params)))
        }
    }
}
