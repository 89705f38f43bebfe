//! The MCP servers that Nonet calls: one supervised connection each.
//!
//! A connection connects, lists, announces what it found, watches for changes, and connects again
//! when it was lost. It knows its own server and nothing of the others, of the catalogue or of the
//! clients. This room and `serve` are the two that speak rmcp.

// Logging is deprecated in the newest revision (SEP-2577); servers of older ones still do it.
#![allow(deprecated)]

pub mod cause;
mod child;
mod connect;
mod environment;
mod follow;
pub mod guard;
mod handler;
mod handshake;
mod http;
mod legacy_sse;
mod list;
mod refusal;
mod request;
mod stdio;
mod supervise;
mod tap;
mod tasks;
mod wishes;

use std::{
    sync::{Arc, Mutex, atomic::AtomicBool},
    time::Duration,
};

use arc_swap::{ArcSwap, ArcSwapOption};
use rmcp::{RoleClient, model::ErrorData, service::Peer};
use serde_json::{Map, Value};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{Notify, Semaphore, oneshot, watch},
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

pub(crate) use self::environment::is_usual;
use self::{child::Tail, follow::Followed, guard::Guard, refusal::Refusal, wishes::Askers};
pub use self::{
    follow::Following,
    tap::ProgressSink,
    wishes::{Asker, ELICIT, LogLevel, Replies, Requests, Toward},
};
use crate::{
    catalog::Listing,
    config::{ServerSettings, Transport},
    oauth::{Account, Vault},
    wire,
};

/// The shortest value of `env`, `headers` or the keyring that is masked: shorter ones are words, not secrets.
const MASKED: usize = 8;

/// How a server talks: with a handshake and a session, or request by request (2026-07-28 and later).
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Era {
    /// Up to 2025-11-25: `initialize`.
    Legacy,
    /// From 2026-07-28: `server/discover`, metadata in each request.
    Modern,
}

/// How a connection stands.
#[derive(Clone, Debug)]
pub enum State {
    /// Not connected yet, for the first time.
    Starting,
    /// Connected and listed.
    Ready {
        /// What was negotiated.
        version: String,
        /// Which kind of revision that is.
        era: Era,
        /// How long it took from the start to the list.
        took: Duration,
        /// Since when.
        since: Instant,
    },
    /// Lost or never reached.
    Down {
        /// Why, and what to do.
        error: String,
        /// When it is tried again.
        retry_at: Instant,
    },
    /// The server wants a sign-in.
    AuthRequired {
        /// What it said.
        error: String,
        /// What the user has to do.
        remedy: Remedy,
    },
    /// Stopped by the gateway.
    Stopped,
}

/// What gives a server the sign-in that it wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// This command.
    Login(String),
    /// Another client in `oauth`, with which Nonet signs in by itself.
    Client,
    /// Valid credentials in `headers`.
    Headers,
}

impl Remedy {
    /// The command, if one does it.
    pub fn command(&self) -> Option<&str> {
        match self {
            Self::Login(command) => Some(command),
            Self::Client | Self::Headers => None,
        }
    }
}

impl State {
    /// The state in one word, as answers show it.
    pub fn as_str(&self) -> &'static str {
        match self {
            State::Starting => "starting",
            State::Ready { .. } => "ready",
            State::Down { .. } => "down",
            State::AuthRequired { .. } => "auth_required",
            State::Stopped => "stopped",
        }
    }

    /// Whether nothing more is known to come soon: ready, or failed at least once.
    pub fn settled(&self) -> bool {
        !matches!(self, State::Starting)
    }
}

/// Why a call did not reach a result.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The server is not connected.
    #[error("the server is {}", .0.as_str())]
    NotReady(State),
    /// It went away during the call.
    #[error("the server went away during the call: {0}")]
    Closed(String),
    /// It did not answer in time.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// The caller gave up.
    #[error("cancelled")]
    Cancelled,
    /// As many calls as it may have were with it all the time.
    #[error("{0} calls are running")]
    Busy(usize),
    /// It answered with a protocol error.
    #[error("{}", .0.message)]
    Rpc(ErrorData),
    /// It answered with something that is no result.
    #[error("{0}")]
    Unreadable(String),
}

/// How a call is to be made.
#[derive(Debug, Default)]
pub struct Control {
    /// The hard limit. When it is over, the server is told and the call ends.
    pub timeout: Duration,
    /// Ends the call early; the server is told.
    pub cancel: CancellationToken,
    /// Where progress notifications go, in order.
    pub progress: Option<ProgressSink>,
    /// `_meta` of the caller's request that is passed on (trace context and the like).
    pub meta: Map<String, Value>,
    /// The way to the client, for a server that asks something in the middle of the call.
    pub asker: Option<Asker>,
}

/// What the gateway is told, in order.
#[derive(Debug)]
pub enum Update {
    /// A server listed its tools.
    Listed {
        /// The server.
        server: Arc<str>,
        /// What it lists now; absent where it could not be read again.
        listing: Option<Listing>,
        /// Told when the list is in the catalogue.
        published: oneshot::Sender<()>,
    },
    /// A server was lost and is there again.
    Reconnected {
        /// The server.
        server: Arc<str>,
    },
    /// A server wants a sign-in from now on.
    SignInNeeded {
        /// The server.
        server: Arc<str>,
        /// The command that signs in, if one does.
        login: Option<String>,
    },
    /// The configuration changed: what is known is to be looked at anew, and servers that are gone forgotten.
    Reconfigured,
    /// Everything before this is to be published; then the sender is told.
    Barrier(oneshot::Sender<()>),
}

/// A pair of byte streams to a server that is not a child process, made anew for each connection.
pub type Dial =
    dyn Fn() -> (Box<dyn AsyncRead + Send + Unpin>, Box<dyn AsyncWrite + Send + Unpin>) + Send + Sync;

/// What all connections of a gateway have in common.
#[derive(Debug)]
pub struct Around {
    /// Ends what a gateway leaves behind that was killed.
    pub guard: Guard,
    /// Where sign-ins are kept; none if nothing is.
    pub vault: Option<Vault>,
    /// The command that signs in to a server, up to its name.
    pub login: String,
}

/// One server and the connection to it.
pub struct Connection {
    /// The server's name.
    pub name: Arc<str>,
    /// Its settings; those that decide how it is reached never change.
    settings: ArcSwap<ServerSettings>,
    /// Held by one call at a time, where calls must not run beside each other.
    pub one_at_a_time: tokio::sync::Mutex<()>,
    /// One for each call that may be with the server.
    slots: Semaphore,
    state: watch::Sender<State>,
    peer: ArcSwapOption<Peer<RoleClient>>,
    /// The era that it spoke last time.
    era: Mutex<Option<Era>>,
    /// Whether it was found to speak the old HTTP+SSE transport.
    speaks_sse: AtomicBool,
    last_end: Mutex<String>,
    kick: Notify,
    around: Arc<Around>,
    /// What its requests are signed with, where `headers` do not do that.
    account: Option<Arc<Account>>,
    /// What the server said as it refused a request for want of a sign-in, since it was reached.
    signed_out: watch::Sender<Option<Refusal>>,
    dial: Option<Box<Dial>>,
    secrets: Arc<[String]>,
    /// Cancelled when the server is no longer wanted.
    retired: CancellationToken,
    /// Whether it is to be connected; the user may hold it.
    enabled: watch::Sender<bool>,
    restart: Notify,
    /// Whether it has been ready before.
    was_ready: AtomicBool,
    /// What its last process said on stderr.
    tail: Mutex<Option<Tail>>,
    /// The clients of the calls that are with it.
    askers: Arc<Askers>,
    /// What of its log is wanted; none if nobody has said so.
    log_level: Mutex<Option<LogLevel>>,
    /// Resources whose changes somebody wants to hear of.
    followed: Arc<Followed>,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("name", &self.name).field("state", &*self.state.borrow()).finish()
    }
}

impl Connection {
    /// A connection that is not started yet. `dial` replaces the configured transport.
    pub fn new(
        name: Arc<str>,
        settings: ServerSettings,
        around: Arc<Around>,
        dial: Option<Box<Dial>>,
    ) -> Self {
        let hidden = match &settings.transport {
            Transport::Stdio { env, .. } => env,
            Transport::Http { headers, .. } => headers,
        };
        let hidden = hidden.values().chain(&settings.secrets);
        let secrets = hidden.map(|value| value.expose().trim_start_matches("Bearer ").to_string());
        let inherited = match &settings.transport {
            Transport::Stdio { inherit_env, .. } => Some(environment::named(inherit_env)),
            Transport::Http { .. } => None,
        };
        let secrets = secrets.chain(inherited.into_iter().flatten());
        let secrets = secrets.filter(|value| value.len() >= MASKED).collect();
        let account = match &settings.transport {
            Transport::Http { url, oauth, .. } if settings.transport.is_signed_in_to() => {
                Some(Arc::new(Account::new(&name, url, oauth.clone(), around.vault.as_ref())))
            }
            _ => None,
        };
        Self {
            name,
            one_at_a_time: tokio::sync::Mutex::default(),
            slots: Semaphore::new(settings.concurrency()),
            settings: ArcSwap::from_pointee(settings),
            state: watch::Sender::new(State::Starting),
            peer: ArcSwapOption::empty(),
            era: Mutex::default(),
            speaks_sse: AtomicBool::new(false),
            last_end: Mutex::default(),
            kick: Notify::new(),
            around,
            account,
            signed_out: watch::Sender::new(None),
            dial,
            secrets,
            retired: CancellationToken::new(),
            enabled: watch::Sender::new(true),
            restart: Notify::new(),
            was_ready: AtomicBool::new(false),
            tail: Mutex::default(),
            askers: Arc::default(),
            log_level: Mutex::default(),
            followed: Arc::default(),
        }
    }

    /// Its settings as they are now.
    pub fn settings(&self) -> Arc<ServerSettings> {
        self.settings.load_full()
    }

    /// Whether a server of these settings is reached as this one is, so that it needs no new connection.
    pub fn is_reached_by(&self, other: &ServerSettings) -> bool {
        let own = self.settings();
        own.transport == other.transport && own.concurrency() == other.concurrency()
    }

    /// Cancelled when the server is no longer wanted.
    pub fn retired(&self) -> &CancellationToken {
        &self.retired
    }

    /// Ends the server once the calls that are with it have ended, at most after `limit`.
    pub async fn retire(&self, limit: Duration) {
        let every = u32::try_from(self.settings().concurrency()).unwrap_or(u32::MAX);
        let idle = self.slots.acquire_many(every);
        let _ = timeout(limit, idle).await;
        self.retired.cancel();
    }

    /// For how long it has been ready, if it is.
    pub fn ready_for(&self) -> Option<Duration> {
        match &*self.state.borrow() {
            State::Ready { since, .. } => Some(since.elapsed()),
            _ => None,
        }
    }

    /// The last lines that its process wrote on stderr, without the values of its `env`.
    pub fn stderr_tail(&self) -> Vec<String> {
        let text = self.tail.lock().ok().and_then(|tail| tail.as_ref().map(Tail::text)).unwrap_or_default();
        self.mask(&text).lines().map(String::from).collect()
    }

    /// Connects anew.
    pub fn restart(&self) {
        self.restart.notify_one();
        self.kick.notify_one();
    }

    /// Whether the user holds it.
    pub fn is_held(&self) -> bool {
        !*self.enabled.borrow()
    }

    /// Holds the server until it is let go, or the configuration is read anew.
    pub fn hold(&self) {
        self.enabled.send_replace(false);
    }

    /// Lets it run again.
    pub fn let_go(&self) {
        self.enabled.send_replace(true);
    }

    /// Takes new settings over. Only for those that [`Connection::is_reached_by`] accepts.
    pub fn set(&self, settings: ServerSettings) {
        self.settings.store(Arc::new(settings));
    }

    /// How it stands now.
    pub fn state(&self) -> State {
        self.state.borrow().clone()
    }

    /// Its state, to wait on.
    pub fn watch(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    /// A text without the values of the server's `env` and `headers`, without what it has from the keyring, and without its
    /// access token.
    fn mask(&self, text: &str) -> String {
        let text = mask(&self.secrets, text);
        match &self.account {
            Some(account) => account.mask(text),
            None => text,
        }
    }

    fn last_end(&self) -> String {
        match &*self.state.borrow() {
            State::Down { error, .. } => error.clone(),
            _ => self
                .last_end
                .lock()
                .map(|last| last.clone())
                .ok()
                .filter(|last| !last.is_empty())
                .unwrap_or_else(|| "the connection closed".into()),
        }
    }
}

/// Replaces each of `secrets` in a text.
fn mask(secrets: &[String], text: &str) -> String {
    secrets.iter().fold(text.to_string(), |text, secret| text.replace(secret.as_str(), "***"))
}

/// The innermost cause of an error: the outer ones only say that something failed.
fn deepest(error: &(dyn std::error::Error + 'static)) -> String {
    wire::rmcp::source(error).map_or_else(|| error.to_string(), deepest)
}
