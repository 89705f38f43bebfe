//! Reaching a server: its process or its address, and the handshake.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use ::http::{HeaderName, HeaderValue, StatusCode};
use rmcp::{
    model::ProtocolVersion,
    service::{
        ClientInitializeError, ClientLifecycleMode, serve_client_with_lifecycle_and_ct,
        serve_directly_with_ct,
    },
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::Notify,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{
    Connection, Era,
    child::{Child, Program, Tail, missing_launcher},
    deepest,
    handler::client_config,
    handshake::{self, HandshakeError},
    http,
    legacy_sse::{Events, SseError},
    refusal::Refusal,
    stdio::Lines,
    supervise::{End, Link},
    tap::Tap,
};
use crate::{
    config::Transport,
    text::clip,
    wire::{
        http::{HttpFault, Signer},
        rmcp::http_fault,
        web,
    },
};

/// How long a silent server is waited for before it is also greeted in the way of the session era.
/// Launchers that download first take longer; over stdio both answers are then understood.
const SILENCE: Duration = Duration::from_secs(8);

impl Connection {
    pub(super) async fn connect(&self) -> Result<Link, End> {
        if let Some(dial) = &self.dial {
            let (reader, writer) = dial();
            return self.greet(reader, writer, None).await;
        }
        match &self.settings().transport {
            Transport::Stdio { command, args, env, inherit_env, cwd } => {
                if let Some(cwd) = cwd.as_deref().filter(|cwd| !cwd.is_dir()) {
                    return Err(End::Failed(format!("its `cwd` is no folder: {}", cwd.display())));
                }
                let program = Program {
                    server: &self.name,
                    secrets: &self.secrets,
                    command,
                    args,
                    env: env.iter().map(|(name, value)| (name.as_str(), value.expose())).collect(),
                    inherit_env,
                    cwd: cwd.as_deref(),
                };
                let (child, stdout, stdin) = Child::spawn(&program, &self.around).map_err(|error| {
                    End::Failed(match error.kind() {
                        std::io::ErrorKind::NotFound => missing_launcher(command),
                        _ => format!("`{command}` could not be started: {error}"),
                    })
                })?;
                if let Ok(mut tail) = self.tail.lock() {
                    *tail = Some(child.tail().clone());
                }
                self.greet(Box::new(stdout), Box::new(stdin), Some(child)).await
            }
            Transport::Http { url, headers, sse, .. } => {
                let headers = headers
                    .iter()
                    .filter_map(|(name, value)| {
                        let name = HeaderName::try_from(name).ok()?;
                        Some((name, HeaderValue::try_from(value.expose()).ok()?))
                    })
                    .collect();
                if *sse {
                    self.connect_sse(url, headers).await.map_err(|error| refused(&error, url))
                } else {
                    self.connect_http(url, headers).await
                }
            }
        }
    }

    async fn greet(
        &self,
        reader: Box<dyn AsyncRead + Send + Unpin>,
        writer: Box<dyn AsyncWrite + Send + Unpin>,
        child: Option<Child>,
    ) -> Result<Link, End> {
        let closed = CancellationToken::new();
        let mut lines = Lines::new(self.name.clone(), reader, writer, closed.clone().drop_guard());
        lines.tap = Tap::new(self.askers.clone());
        let changed = Arc::new(Notify::new());
        let handler = self.handler(&changed);
        let known = self.era.lock().map(|era| *era).unwrap_or_default();
        match handshake::greet(&mut lines, known, &client_config(), self.silence()).await {
            Ok((era, info)) => {
                let token = CancellationToken::new();
                let running = serve_directly_with_ct(handler, lines, Some(info.clone()), token);
                Ok(Link { running, child, era, info, changed, closed })
            }
            Err(error) => {
                // Some old servers leave at a method that they do not know: next time without it.
                if let Ok(mut era) = self.era.lock() {
                    *era = if *era == Some(Era::Legacy) { None } else { Some(Era::Legacy) };
                }
                let mut reason = error.to_string();
                drop(lines);
                if let Some(mut child) = child {
                    if let Some(status) = child.exit_status().await {
                        reason = format!("it ended during the handshake ({status})");
                    }
                    reason = with_tail(&reason, child.tail());
                    child.stop().await;
                }
                Err(End::Failed(reason))
            }
        }
    }

    async fn connect_http(&self, url: &str, headers: HashMap<HeaderName, HeaderValue>) -> Result<Link, End> {
        if self.speaks_sse.load(Ordering::Relaxed) {
            let connected = self.connect_sse(url, headers).await;
            // It may be another server by now: the next try begins anew.
            self.speaks_sse.store(connected.is_ok(), Ordering::Relaxed);
            return connected.map_err(|error| refused(&error, url));
        }
        let known = self.era.lock().map(|era| *era).unwrap_or_default();
        let modern =
            ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] };
        let modes = [(Era::Modern, modern), (Era::Legacy, ClientLifecycleMode::Initialize)];
        let mut failure = String::new();
        let mut refuses_post = false;
        for (era, mode) in
            modes.into_iter().filter(|(era, _)| known != Some(Era::Legacy) || *era == Era::Legacy)
        {
            let changed = Arc::new(Notify::new());
            let handler = self.handler(&changed);
            let closed = CancellationToken::new();
            let mut transport = http::transport(
                self.name.clone(),
                url,
                headers.clone(),
                self.signer(),
                closed.clone().drop_guard(),
            )
            .map_err(|error| End::Failed(format!("no HTTP client: {error}")))?;
            transport.tap = Tap::new(self.askers.clone());
            let token = CancellationToken::new();
            let greeting = serve_client_with_lifecycle_and_ct(handler, transport, mode, token);
            // A server that never answers the probe must still be tried the old way.
            let patience = if era == Era::Modern { self.silence() } else { self.settings().start_timeout };
            let Ok(greeted) = timeout(patience, greeting).await else {
                failure = format!("no answer within {patience:?}");
                refuses_post = false;
                continue;
            };
            match greeted {
                Ok(running) => {
                    let info = running.peer().peer_info().map(|info| (*info).clone());
                    let info = info.ok_or_else(|| End::Failed("it said nothing of itself".into()))?;
                    return Ok(Link { running, child: None, era, info, changed, closed });
                }
                Err(error) => {
                    if let ClientInitializeError::TransportError { error, .. } = &error
                        && let Some(refusal) = Refusal::of(error.error.as_ref())
                    {
                        return Err(End::Unsigned(refusal));
                    }
                    refuses_post = is_post_refused(&error);
                    failure = explain(&error, url);
                }
            }
        }
        if refuses_post {
            return self.find_sse(url, headers, failure).await;
        }
        Err(End::Failed(failure))
    }

    /// Tries the old HTTP+SSE transport on a server that takes no POST, as the specification asks. `failure` is what is
    /// told of one that does not speak it either.
    async fn find_sse(
        &self,
        url: &str,
        headers: HashMap<HeaderName, HeaderValue>,
        failure: String,
    ) -> Result<Link, End> {
        match timeout(self.silence(), self.connect_sse(url, headers)).await {
            Ok(Ok(link)) => {
                self.speaks_sse.store(true, Ordering::Relaxed);
                tracing::debug!(server = %self.name, "speaks the old HTTP+SSE transport");
                Ok(link)
            }
            Err(_) | Ok(Err(HandshakeError::NotTaken(SseError::Http(HttpFault::Status { .. })))) => {
                Err(End::Failed(failure))
            }
            Ok(Err(error)) => Err(refused(&error, url)),
        }
    }

    /// Connects over the old HTTP+SSE transport. Its servers are of the session era.
    async fn connect_sse(
        &self,
        url: &str,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<Link, HandshakeError> {
        let closed = CancellationToken::new();
        let headers = headers.into_iter().collect();
        let mut events = Events::open(self.name.clone(), url, headers, self.signer(), closed.clone()).await?;
        events.tap = Tap::new(self.askers.clone());
        let (era, info) =
            handshake::greet(&mut events, Some(Era::Legacy), &client_config(), self.silence()).await?;
        let changed = Arc::new(Notify::new());
        let handler = self.handler(&changed);
        let token = CancellationToken::new();
        let running = serve_directly_with_ct(handler, events, Some(info.clone()), token);
        Ok(Link { running, child: None, era, info, changed, closed })
    }

    /// Who signs its requests.
    fn signer(&self) -> Option<Arc<dyn Signer>> {
        self.account.clone().map(|account| account as Arc<dyn Signer>)
    }

    /// How long a server may be silent before it is taken for one of the session era.
    fn silence(&self) -> Duration {
        SILENCE.min(self.settings().start_timeout / 2)
    }
}

/// A reason with what the process said last.
pub(super) fn with_tail(reason: &str, tail: &Tail) -> String {
    match tail.text() {
        text if text.is_empty() => reason.to_string(),
        text => format!("{reason}; its stderr ends with: {}", clip(&text, 1200)),
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

/// Whether a server behind a URL does not take the POST of streamable HTTP, which is where a server of the legacy SSE
/// transport may be. A refusal whose body is JSON-RPC has lost its status.
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

/// Why a server of the legacy SSE transport could not be reached.
fn refused(error: &HandshakeError, url: &str) -> End {
    match Refusal::of(error) {
        Some(refusal) => End::Unsigned(refusal),
        None => End::Failed(clip(&format!("{}: {}", web::place(url), deepest(error)), 600)),
    }
}
