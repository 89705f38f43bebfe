//! Reaches a server, by starting its process or dialling its address, and performs the handshake.

use std::{collections::HashMap, io, sync::Arc, time::Duration};

use ::http::{HeaderName, HeaderValue, StatusCode};
use nonet_base::text::clip;
use nonet_config::{SandboxSettings, Transport};
use nonet_sandbox as sandbox;
use nonet_wire::{
    http::{HttpFault, Signer},
    rmcp::http_fault,
    web,
};
use rmcp::{
    model::ProtocolVersion,
    service::{
        ClientInitializeError, ClientLifecycleMode, serve_client_with_lifecycle_and_ct,
        serve_directly_with_ct,
    },
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    process::{ChildStdin, ChildStdout},
    sync::Notify,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{
    Era,
    child::{Child, Program, missing_launcher},
    client_handler::client_config,
    deepest,
    direct::DirectCalls,
    handshake::{self, HandshakeError},
    http,
    legacy_sse::{SseConnection, SseError},
    link::LinkError,
    mcp::{InitializedServer, McpServer},
    placement::ProgramHolder,
    refusal::Refusal,
    stdio::Lines,
    tap::Tap,
};

type HeaderValues = HashMap<HeaderName, HeaderValue>;

/// Why a server was not reached over streamable HTTP.
#[derive(Default)]
struct HttpFailure {
    text: String,
    /// Whether the server refuses POST.
    refuses_post: bool,
}

/// How long a server may stay silent before it is also sent `initialize`. Launchers that download first take longer; over
/// stdio either answer is then accepted.
const SILENCE: Duration = Duration::from_secs(8);

impl McpServer {
    /// Starts or dials the server and performs the handshake.
    pub(super) async fn reach(&self, patience: Duration) -> Result<InitializedServer, LinkError> {
        let silence = SILENCE.min(patience / 2);
        if let Some(dial) = &self.dial {
            let (reader, writer) = dial();
            return self.greet(reader, writer, None, silence).await;
        }
        let (url, headers, is_sse) = match &self.transport {
            Transport::Stdio { command, args, env, inherit_env, cwd, sandbox } => {
                if let Some(settings) = sandbox {
                    self.look_at_sandbox(settings).await?;
                }
                let (child, stdout, stdin) = self.spawn(&Program {
                    server: &self.name,
                    secrets: &self.credentials.secrets,
                    command,
                    args,
                    env: env.iter().map(|(name, value)| (name.as_str(), value.expose())).collect(),
                    inherit_env,
                    cwd: cwd.as_deref(),
                    sandbox: sandbox.as_deref(),
                    lasts: self.lasts,
                    history: &self.history,
                })?;
                *self.tail.lock() = Some(child.tail().clone());
                return self.greet(Box::new(stdout), Box::new(stdin), Some(child), silence).await;
            }
            Transport::Http { url, headers, sse, .. } => (url, headers, *sse),
            Transport::Rest(_) => return Err("a REST service does not speak MCP".into()),
        };
        let headers = headers
            .iter()
            .filter_map(|(name, value)| {
                let name = HeaderName::try_from(name).ok()?;
                Some((name, HeaderValue::try_from(value.expose()).ok()?))
            })
            .collect();
        let known_sse = self.habits.lock().speaks_sse;
        if is_sse || known_sse {
            let greeted = self.greet_sse(url, headers, silence).await;
            // Another server may be at the address by now, so the next attempt starts from the beginning.
            self.habits.lock().speaks_sse = greeted.is_ok() && known_sse;
            return match greeted {
                Ok(greeted) => Ok(greeted),
                Err(error) => Err(self.not_greeted(&error, url).await),
            };
        }
        self.greet_http(url, headers, patience, silence).await
    }

    /// Refuses a server whose sandbox this system does not support. Logs a warning for a server that starts with a weaker
    /// one.
    async fn look_at_sandbox(&self, settings: &SandboxSettings) -> Result<(), LinkError> {
        if let Some(limits) = sandbox::enforcement(settings).filter(|limits| !limits.is_whole()) {
            tracing::warn!(server = %self.name, "limits of its sandbox: {limits}");
        }
        if settings.required {
            let system = std::env::consts::OS;
            return if sandbox::IS_POSSIBLE {
                Ok(())
            } else {
                Err(LinkError::Failed(format!(
                    "its `sandbox` needs Linux, but this is {system}. With `sandbox = {{ required = false }}` it starts without one"
                )))
            };
        }
        let why = match self.context.guard.executable() {
            Some(executable) => sandbox::weakness(executable).await,
            None => None,
        };
        if let Some(why) = why {
            tracing::warn!(server = %self.name, "the server starts with a weaker sandbox or none (`required = false`): {why}");
        }
        Ok(())
    }

    fn spawn(&self, program: &Program<'_>) -> Result<(Child, ChildStdout, ChildStdin), LinkError> {
        if let Some(cwd) = program.cwd.filter(|cwd| !cwd.is_dir()) {
            return Err(format!("its `cwd` is not a folder: {}", cwd.display()).into());
        }
        Child::spawn(program, &self.context).map_err(|error| {
            LinkError::Failed(match error.kind() {
                io::ErrorKind::NotFound => missing_launcher(program.command),
                _ => format!("`{}` could not be started: {error}", program.command),
            })
        })
    }

    /// Performs the handshake over byte streams.
    async fn greet(
        &self,
        reader: Box<dyn AsyncRead + Send + Unpin>,
        writer: Box<dyn AsyncWrite + Send + Unpin>,
        child: Option<Child>,
        silence: Duration,
    ) -> Result<InitializedServer, LinkError> {
        let closed = CancellationToken::new();
        let guard = closed.clone().drop_guard();
        let mut lines = Lines::new(self.name.clone(), reader, writer, self.tap(), guard);
        let list_changed = Arc::new(Notify::new());
        let known = self.habits.lock().era;
        let error = match handshake::greet(&mut lines, known, &client_config(), silence).await {
            Ok((era, info)) => {
                let (client, token) = (self.client(&list_changed), CancellationToken::new());
                let direct = Some(lines.direct(era));
                let running = serve_directly_with_ct(client, lines, Some(info.clone()), token);
                return Ok(InitializedServer { running, child, direct, era, info, list_changed, closed });
            }
            Err(error) => error,
        };
        // Some old servers exit on an unknown method, so the next attempt goes without it.
        self.habits.lock().era = (known != Some(Era::Session)).then_some(Era::Session);
        let mut reason = error.to_string();
        drop(lines);
        if let Some(mut child) = child {
            if let Some(status) = child.exit_status().await {
                reason = format!("it ended during the handshake ({status})");
            }
            reason = child.tail().added_to(&reason);
            child.stop().await;
        }
        Err(LinkError::Failed(reason))
    }

    async fn greet_http(
        &self,
        url: &str,
        headers: HeaderValues,
        patience: Duration,
        silence: Duration,
    ) -> Result<InitializedServer, LinkError> {
        let stateless =
            ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] };
        let mut attempts = vec![(Era::Session, ClientLifecycleMode::Initialize, patience)];
        if self.habits.lock().era != Some(Era::Session) {
            // Fall back to the other era for a server that never answers the probe.
            attempts.insert(0, (Era::Stateless, stateless, silence));
        }
        let mut failed = HttpFailure::default();
        for attempt in attempts {
            match self.try_http(url, headers.clone(), attempt).await? {
                Ok(greeted) => return Ok(*greeted),
                Err(failure) => failed = failure,
            }
        }
        if failed.refuses_post {
            return self.find_sse(url, headers, silence, failed.text).await;
        }
        Err(LinkError::Failed(failed.text))
    }

    /// Performs the handshake with the replica that runs the program.
    pub(super) async fn greet_holder(
        &self,
        holder: &ProgramHolder,
        patience: Duration,
    ) -> Result<InitializedServer, LinkError> {
        let headers = holder.headers.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        let attempt = (Era::Session, ClientLifecycleMode::Initialize, patience);
        self.try_http(&holder.url, headers, attempt).await?.map(|greeted| *greeted).map_err(|failed| {
            LinkError::Failed(format!(
                "it runs on the replica `{}`, and cannot be reached there: {}",
                holder.name, failed.text
            ))
        })
    }

    /// Performs the handshake over streamable HTTP in one era.
    async fn try_http(
        &self,
        url: &str,
        headers: HeaderValues,
        (era, mode, patience): (Era, ClientLifecycleMode, Duration),
    ) -> Result<Result<Box<InitializedServer>, HttpFailure>, LinkError> {
        let (list_changed, closed) = (Arc::new(Notify::new()), CancellationToken::new());
        let (name, guard) = (self.name.clone(), closed.clone().drop_guard());
        let (transport, calls) = http::transport(name, url, headers, self.signer(), self.tap(), guard)
            .map_err(|error| LinkError::Failed(format!("no HTTP client: {error}")))?;
        let (client, token) = (self.client(&list_changed), CancellationToken::new());
        let greeting = serve_client_with_lifecycle_and_ct(client, transport, mode, token);
        let error = match timeout(patience, Box::pin(greeting)).await {
            Ok(Ok(running)) => {
                let info = running.peer().peer_info().map(|info| (*info).clone());
                let info =
                    info.ok_or_else(|| LinkError::from("its handshake does not describe the server"))?;
                return Ok(Ok(Box::new(InitializedServer {
                    running,
                    child: None,
                    direct: Some(DirectCalls::over_http(calls, era)),
                    era,
                    info,
                    list_changed,
                    closed,
                })));
            }
            Ok(Err(error)) => error,
            Err(_) => {
                return Ok(Err(HttpFailure {
                    text: format!("no answer within {patience:?}"),
                    refuses_post: false,
                }));
            }
        };
        if let ClientInitializeError::TransportError { error, .. } = &error
            && let Some(refusal) = Refusal::of(error.error.as_ref())
        {
            return Err(LinkError::SignIn(self.credentials.sign_in_or_token(&refusal).await));
        }
        Ok(Err(HttpFailure { text: explain(&error, url), refuses_post: is_post_refused(&error) }))
    }

    /// Tries the old HTTP+SSE transport on a server that refuses POST, as the specification asks. Returns `failure` if the
    /// server does not speak that transport either.
    async fn find_sse(
        &self,
        url: &str,
        headers: HeaderValues,
        silence: Duration,
        failure: String,
    ) -> Result<InitializedServer, LinkError> {
        match timeout(silence, self.greet_sse(url, headers, silence)).await {
            Ok(Ok(greeted)) => {
                self.habits.lock().speaks_sse = true;
                tracing::debug!(server = %self.name, "speaks the old HTTP+SSE transport");
                Ok(greeted)
            }
            Err(_) | Ok(Err(HandshakeError::NotTaken(SseError::Http(HttpFault::Status { .. })))) => {
                Err(LinkError::Failed(failure))
            }
            Ok(Err(error)) => Err(self.not_greeted(&error, url).await),
        }
    }

    /// Performs the handshake over the old HTTP+SSE transport, whose servers belong to the session era.
    async fn greet_sse(
        &self,
        url: &str,
        headers: HeaderValues,
        silence: Duration,
    ) -> Result<InitializedServer, HandshakeError> {
        let (list_changed, closed) = (Arc::new(Notify::new()), CancellationToken::new());
        let headers = headers.into_iter().collect();
        let (name, tap) = (self.name.clone(), self.tap());
        let mut events = SseConnection::open(name, url, headers, self.signer(), tap, closed.clone()).await?;
        let (era, info) =
            handshake::greet(&mut events, Some(Era::Session), &client_config(), silence).await?;
        let (client, token) = (self.client(&list_changed), CancellationToken::new());
        let running = serve_directly_with_ct(client, events, Some(info.clone()), token);
        Ok(InitializedServer { running, child: None, direct: None, era, info, list_changed, closed })
    }

    /// Returns the taps of a new connection.
    fn tap(&self) -> Tap {
        Tap::new(self.calls.clone(), self.limits)
    }

    /// Returns the signer of the requests.
    fn signer(&self) -> Option<Arc<dyn Signer>> {
        self.credentials.account.clone().map(|account| account as Arc<dyn Signer>)
    }

    /// Returns why a server of the legacy SSE transport was not reached.
    async fn not_greeted(&self, error: &HandshakeError, url: &str) -> LinkError {
        match Refusal::of(error) {
            Some(refusal) => LinkError::SignIn(self.credentials.sign_in_or_token(&refusal).await),
            None => LinkError::Failed(clip(&format!("{}: {}", web::place(url), deepest(error)), 600)),
        }
    }
}

fn explain(error: &ClientInitializeError, url: &str) -> String {
    let inner = match error {
        ClientInitializeError::TransportError { error, .. } => deepest(error.error.as_ref()),
        other => other.to_string(),
    };
    let place = web::place(url);
    clip(&format!("{place}: {}", inner.replace(url, &place)), 600)
}

/// Returns whether a server refuses streamable HTTP's POST, so that it may speak the legacy SSE transport. The HTTP status is
/// lost if the refusal's body is JSON-RPC.
fn is_post_refused(error: &ClientInitializeError) -> bool {
    match error {
        ClientInitializeError::TransportError { error, .. } => matches!(
            http_fault(error.error.as_ref()),
            Some(HttpFault::Status {
                status: StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED,
                ..
            })
        ),
        ClientInitializeError::JsonRpcError(_) | ClientInitializeError::UncorrelatedErrorResponse { .. } => {
            true
        }
        _ => false,
    }
}
