//! Reaches a server, by starting its process or dialling its address, and performs the handshake.

use std::{io, sync::Arc, time::Duration};

use ::http::{HeaderMap, StatusCode};
use nonet_base::text::clip;
use nonet_config::{SandboxSettings, Transport};
use nonet_sandbox as sandbox;
use nonet_wire::{
    http::{HttpFault, Signer},
    web,
};
use rmcp::model::ProtocolVersion;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    process::{ChildStdin, ChildStdout},
    time::timeout,
};

use super::{
    Era,
    channel::{Channel, RequestFault, ServerTransport},
    child::{Child, Program, missing_launcher},
    deepest,
    handshake::{self, peer_info},
    http::HttpServer,
    incoming::Incoming,
    legacy_sse::SseServer,
    lines::Lines,
    link::LinkError,
    mcp::{InitializedServer, McpServer},
    placement::ProgramHolder,
    refusal::Refusal,
};
use crate::oauth::header_map;

/// Why a server was not reached over streamable HTTP.
#[derive(Default)]
struct HttpFailure {
    text: String,
    /// Whether the server refuses POST.
    refuses_post: bool,
}

/// How long a server may stay silent before it is also sent `initialize`. Launchers that download first take
/// longer; over stdio either answer is then accepted.
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
                return self.greet(Box::new(stdout), Box::new(stdin), Some(child), silence).await;
            }
            Transport::Http { url, headers, sse, .. } => (url, headers, *sse),
            Transport::Rest(_) => return Err("a REST service does not speak MCP".into()),
        };
        let headers = header_map(headers);
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

    /// Refuses a server whose sandbox this system does not support. Logs a warning for a server that starts
    /// with a weaker one.
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
        let incoming = self.incoming();
        let lines = Lines::open(incoming.clone(), reader, writer);
        let channel = Channel::new(incoming, ServerTransport::Lines(lines));
        let known = self.habits.lock().era;
        let error = match handshake::greet(&channel, known, silence).await {
            Ok((era, info)) => {
                channel.speaks(era);
                return Ok(InitializedServer { channel, child, era, info });
            }
            Err(error) => error,
        };
        // Some old servers exit on an unknown method, so the next attempt goes without it.
        self.habits.lock().era = (known != Some(Era::Session)).then_some(Era::Session);
        let mut reason = error.to_string();
        drop(channel);
        if let Some(mut child) = child {
            if let Some(status) = child.exit_status().await {
                reason = format!("it ended during the handshake ({status})");
            }
            reason = child.with_stderr(&reason);
            child.stop().await;
        }
        Err(LinkError::Failed(reason))
    }

    async fn greet_http(
        &self,
        url: &str,
        headers: HeaderMap,
        patience: Duration,
        silence: Duration,
    ) -> Result<InitializedServer, LinkError> {
        let mut attempts = vec![(Era::Session, patience)];
        if self.habits.lock().era != Some(Era::Session) {
            // Fall back to the other era for a server that never answers the probe.
            attempts.insert(0, (Era::Stateless, silence));
        }
        let mut failed = HttpFailure::default();
        for (era, patience) in attempts {
            match self.try_http(url, headers.clone(), era, patience).await? {
                Ok(greeted) => return Ok(greeted),
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
        self.try_http(&holder.url, headers, Era::Session, patience).await?.map_err(|failed| {
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
        headers: HeaderMap,
        era: Era,
        patience: Duration,
    ) -> Result<Result<InitializedServer, HttpFailure>, LinkError> {
        let incoming = self.incoming();
        let server = HttpServer::new(incoming.clone(), url, headers, self.signer())
            .map_err(|error| LinkError::Failed(format!("no HTTP client: {error}")))?;
        let greeting = async {
            let described = match era {
                Era::Session => server.initialize().await.map(Some),
                Era::Stateless => server.discover().await,
            };
            let Some(result) = described? else { return Ok(None) };
            let version = match era {
                Era::Session => result.get("protocolVersion").cloned().map(serde_json::from_value),
                Era::Stateless => Some(Ok(ProtocolVersion::V_2026_07_28)),
            };
            Ok::<_, RequestFault>(version.and_then(Result::ok).map(|version| peer_info(&result, &version)))
        };
        let fault = match timeout(patience, Box::pin(greeting)).await {
            Ok(Ok(Some(info))) => {
                let channel = Channel::new(incoming, ServerTransport::Http(server));
                channel.speaks(era);
                return Ok(Ok(InitializedServer { channel, child: None, era, info }));
            }
            Ok(Ok(None)) => {
                let text = format!("{}: its handshake names no version that Nonet speaks", web::place(url));
                return Ok(Err(HttpFailure { text, refuses_post: false }));
            }
            Ok(Err(fault)) => fault,
            Err(_) => {
                let text = format!("no answer within {patience:?}");
                return Ok(Err(HttpFailure { text, refuses_post: false }));
            }
        };
        if let RequestFault::NotSent(fault) = &fault
            && let Some(refusal) = Refusal::of(fault)
        {
            return Err(LinkError::SignIn(self.credentials.sign_in_or_token(&refusal).await));
        }
        let refuses_post = is_post_refused(&fault);
        Ok(Err(HttpFailure { text: explain(&fault, url), refuses_post }))
    }

    /// Tries the old HTTP+SSE transport on a server that refuses POST, as the specification asks. Returns
    /// `failure` if the server does not speak that transport either.
    async fn find_sse(
        &self,
        url: &str,
        headers: HeaderMap,
        silence: Duration,
        failure: String,
    ) -> Result<InitializedServer, LinkError> {
        match timeout(silence, self.greet_sse(url, headers, silence)).await {
            Ok(Ok(greeted)) => {
                self.habits.lock().speaks_sse = true;
                tracing::debug!(server = %self.name, "speaks the old HTTP+SSE transport");
                Ok(greeted)
            }
            Err(_) | Ok(Err(RequestFault::NotSent(HttpFault::Status { .. }))) => {
                Err(LinkError::Failed(failure))
            }
            Ok(Err(error)) => Err(self.not_greeted(&error, url).await),
        }
    }

    /// Performs the handshake over the old HTTP+SSE transport, whose servers belong to the session era.
    async fn greet_sse(
        &self,
        url: &str,
        headers: HeaderMap,
        silence: Duration,
    ) -> Result<InitializedServer, RequestFault> {
        let incoming = self.incoming();
        let server = SseServer::open(incoming.clone(), url, headers, self.signer()).await?;
        let channel = Channel::new(incoming, ServerTransport::Sse(server));
        let (era, info) = handshake::greet(&channel, Some(Era::Session), silence).await?;
        channel.speaks(era);
        Ok(InitializedServer { channel, child: None, era, info })
    }

    /// Returns what takes the messages of a new connection.
    fn incoming(&self) -> Arc<Incoming> {
        Incoming::new(self.name.clone(), self.limits, self.ui, self.calls.clone(), self.subscriptions.clone())
    }

    /// Returns the signer of the requests.
    fn signer(&self) -> Option<Arc<dyn Signer>> {
        self.credentials.account.clone().map(|account| account as Arc<dyn Signer>)
    }

    /// Returns why a server of the legacy SSE transport was not reached.
    async fn not_greeted(&self, error: &RequestFault, url: &str) -> LinkError {
        match error {
            RequestFault::NotSent(fault) if let Some(refusal) = Refusal::of(fault) => {
                LinkError::SignIn(self.credentials.sign_in_or_token(&refusal).await)
            }
            error => LinkError::Failed(explain(error, url)),
        }
    }
}

fn explain(error: &RequestFault, url: &str) -> String {
    let place = web::place(url);
    clip(&format!("{place}: {}", deepest(error).replace(url, &place)), 600)
}

/// Returns whether a server refuses streamable HTTP's POST, so that it may speak the legacy SSE transport.
/// The HTTP status is lost if the refusal's body is JSON-RPC.
fn is_post_refused(fault: &RequestFault) -> bool {
    match fault {
        RequestFault::NotSent(HttpFault::Status { status, .. }) => matches!(
            *status,
            StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED
        ),
        RequestFault::Refused(_) => true,
        RequestFault::NotSent(_) | RequestFault::Lost => false,
    }
}
