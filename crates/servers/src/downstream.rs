//! The servers that Nonet calls: one supervised connection each.
//!
//! A connection connects, lists its tools, announces the list, watches for changes, and reconnects when it is
//! lost. It knows its own server, but not the other servers, the catalogue or the clients. Supervision
//! (`supervise`, `requests`, `subscriptions`) knows a server only as a [`Connector`] and its [`Link`]: MCP
//! (`mcp`, `connect`), or requests to a REST service (`rest`). An MCP server is at the end of a [`channel`],
//! over lines, streamable HTTP or the legacy SSE transport; what it sends goes through [`incoming`].

mod breaker;
mod channel;
mod child;
mod connect;
mod credentials;
mod descendants;
mod environment;
mod events;
mod handshake;
mod history;
mod http;
mod incoming;
mod legacy_sse;
mod likely_cause;
mod lines;
mod link;
mod listing;
mod mcp;
mod pending;
mod placement;
pub mod process_guard;
mod program;
mod progress;
mod reach;
mod refusal;
mod requests;
mod rest;
mod server_requests;
mod setup;
mod state;
mod subscriptions;
mod supervise;
mod tasks;
mod turns;

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use arc_swap::{ArcSwap, ArcSwapOption};
use nonet_api::{
    servers::HistoryEntry,
    status::{BreakerStatus, Era},
};
use nonet_base::turns::{SharedSlots, Turns};
use nonet_config::{Placement, SandboxSettings, ServerSettings, Transport};
use nonet_sandbox::SandboxSpec;
use nonet_text::leaks::KnownSecrets;
use nonet_wire::issuer::encoded;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{Notify, watch},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use self::{
    breaker::Breaker,
    history::History,
    link::{Connector, Link},
    mcp::McpServer,
    process_guard::ProcessGuard,
    rest::RestServer,
    server_requests::OpenCalls,
    subscriptions::Subscriptions,
};
pub use self::{
    breaker::{BreakerNews, BreakerRefusal},
    child::missing_launcher,
    environment::{is_own_variable, is_usual, named_variables},
    handshake::UI_EXTENSION,
    likely_cause::likely_cause,
    placement::{Placements, ProgramHolder, ProgramPlace, ProgramPlacement, RelayedCall},
    program::run_program,
    progress::ProgressSink,
    reach::{Reach, net_text},
    server_requests::{
        ClientChannel, ClientMessage, ClientWait, DeclinedRequest, ELICITATION, InputReplies, InputRequests,
        LogLevel, SAMPLING,
    },
    state::{CallControl, CallError, ConnectionState, DocumentReport, Remedy, ServerUpdate},
    subscriptions::ResourceSubscription,
    turns::{EscapedTexts, QuestionTurns},
};
use crate::{
    catalog::Listing,
    oauth::{PeopleVault, SubjectToken, Vault},
};

/// The `_meta` key for additions to a call's result: the response `headers` that are wanted, and the
/// `next_step` for the next page.
pub const BESIDE: &str = "nonet/beside";

/// Opens a pair of byte streams to a server that is not a child process. Called once per connection.
pub type Dial =
    dyn Fn() -> (Box<dyn AsyncRead + Send + Unpin>, Box<dyn AsyncWrite + Send + Unpin>) + Send + Sync;

/// How many calls wait for their turn at one server.
const LONGEST_QUEUE: usize = 4_096;

/// The known secrets, which change with the configuration.
pub type SharedSecrets = Arc<ArcSwap<KnownSecrets>>;

/// What all connections of a gateway share.
#[derive(Debug)]
pub struct ConnectionContext {
    /// Ends the child processes if the gateway is killed.
    pub guard: ProcessGuard,
    /// The store of sign-ins, if sign-ins are kept.
    pub vault: Option<Vault>,
    /// The accounts of people, if they have any.
    pub people: Option<Arc<PeopleVault>>,
    /// The command that signs in to a server, up to its name.
    pub login: String,
    /// The secrets of all servers, which are masked in whatever a server says besides its results.
    pub secrets: SharedSecrets,
    /// The sandboxes' folders, and the files that they hide.
    pub sandboxes: SandboxFolders,
    /// Where the programs run that one replica of a cluster runs for all.
    pub placements: Placements,
    /// The slots that the replicas of a cluster share.
    pub slots: Option<Arc<dyn SharedSlots>>,
}

impl ConnectionContext {
    /// Returns a context for connections of a test: no guard, no sign-ins, no slots.
    pub fn without_guard() -> Self {
        Self {
            guard: ProcessGuard::new(None),
            vault: None,
            people: None,
            login: String::new(),
            secrets: SharedSecrets::default(),
            sandboxes: SandboxFolders::default(),
            placements: Placements::default(),
            slots: None,
        }
    }
}

/// The gateway's own files, as far as sandboxes are concerned.
#[derive(Clone, Debug, Default)]
pub struct SandboxFolders {
    /// The state folder, which contains the home folders of sandboxed servers.
    pub state: Option<PathBuf>,
    /// The configuration file.
    pub config: PathBuf,
}

impl SandboxFolders {
    /// Describes the sandbox of a server. `lasts`: its home folder is kept.
    fn spec(&self, server: &str, settings: &SandboxSettings, cwd: Option<&Path>, lasts: bool) -> SandboxSpec {
        SandboxSpec::new(server, settings, cwd, self.state.as_deref(), &self.config, lasts)
    }
}

/// The person whose connection it is, with their own account at the server.
#[derive(Clone, Debug)]
pub struct PersonAccess {
    /// Their key.
    pub person: Arc<str>,
    /// The page where they sign in to the server.
    pub page: String,
    /// The token of their calls, for servers whose tokens are exchanged for it.
    pub subject: Arc<SubjectToken>,
}

impl PersonAccess {
    /// Returns the page where they sign in, for these scopes besides the usual ones.
    fn page_for(&self, scopes: &[&str]) -> String {
        match scopes.is_empty() {
            true => self.page.clone(),
            false => format!("{}?scope={}", self.page, encoded(&scopes.join(" "))),
        }
    }
}

/// One server and the supervised connection to it.
pub struct Connection {
    /// The server's name.
    pub name: Arc<str>,
    /// Its number in this process, from 1.
    pub id: u64,
    /// The server's settings. Those that decide how the server is reached never change.
    settings: ArcSwap<ServerSettings>,
    /// Held by one call at a time, for servers whose calls must not overlap.
    pub one_at_a_time: Arc<Turns>,
    /// One slot for each concurrent call.
    slots: Arc<Turns>,
    /// Cuts off a server or tool that keeps failing.
    breaker: Breaker,
    state: watch::Sender<ConnectionState>,
    connector: Box<dyn Connector>,
    /// The live link. Set while the server takes requests.
    link: ArcSwapOption<Arc<dyn Link>>,
    /// What happened to the server lately.
    history: Arc<History>,
    /// Why the last link ended.
    last_end: Mutex<String>,
    /// Ends a backoff early.
    kick: Notify,
    /// Cancelled when the server is no longer wanted.
    retired: CancellationToken,
    /// Whether the server should be connected. The user may put it on hold.
    enabled: watch::Sender<bool>,
    restart: Notify,
    was_ready: AtomicBool,
    /// The clients of the calls in flight.
    calls: Arc<OpenCalls>,
    /// The log level that clients have asked for, if any has.
    log_level: Mutex<Option<LogLevel>>,
    subscriptions: Arc<Subscriptions>,
    /// Where the program runs, if one replica of a cluster runs it for all.
    placed: Option<Arc<ProgramPlacement>>,
    /// The key of the person whose it is, if it is one's own.
    person: Option<Arc<str>>,
    /// The server's last list, for other replicas.
    listed: watch::Sender<Option<Arc<Listing>>>,
    /// The requests that wait for an answer.
    sent: AtomicUsize,
    /// The slots that the replicas of a cluster share.
    shared_slots: Option<Arc<dyn SharedSlots>>,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("name", &self.name).field("state", &*self.state.borrow()).finish()
    }
}

impl Connection {
    /// Returns a connection that is not started yet. `dial` replaces the configured transport.
    pub fn new(
        name: Arc<str>,
        settings: ServerSettings,
        context: Arc<ConnectionContext>,
        dial: Option<Box<Dial>>,
    ) -> Self {
        Self::with_account(name, settings, context, dial, None)
    }

    /// Returns a person's connection, with their own account.
    pub fn of_person(
        name: Arc<str>,
        settings: ServerSettings,
        context: Arc<ConnectionContext>,
        person: &PersonAccess,
    ) -> Self {
        let connection = Self::with_account(name, settings, context, None, Some(person));
        Self { person: Some(person.person.clone()), ..connection }
    }

    fn with_account(
        name: Arc<str>,
        settings: ServerSettings,
        context: Arc<ConnectionContext>,
        dial: Option<Box<Dial>>,
        person: Option<&PersonAccess>,
    ) -> Self {
        let calls = Arc::new(OpenCalls::masking(context.secrets.clone()));
        let (subscriptions, history) = (Arc::default(), Arc::default());
        let shared_slots = context.slots.clone();
        let placed = (settings.placement != Placement::Each).then(|| context.placements.of(&name));
        let connector: Box<dyn Connector> = match &settings.transport {
            Transport::Rest(rest) if dial.is_none() => {
                Box::new(RestServer::new(&name, rest.clone(), &settings, &context, person))
            }
            _ => {
                let server = McpServer::new(&name, &settings, context, dial, &calls, &subscriptions, person);
                Box::new(McpServer { placed: placed.clone(), history: Arc::clone(&history), ..server })
            }
        };
        Self { placed, shared_slots, history, ..Self::over(connector, name, settings, calls, subscriptions) }
    }

    /// Returns a connection that uses a connector.
    fn over(
        connector: Box<dyn Connector>,
        name: Arc<str>,
        settings: ServerSettings,
        calls: Arc<OpenCalls>,
        subscriptions: Arc<Subscriptions>,
    ) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            name,
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            one_at_a_time: Turns::new(1, LONGEST_QUEUE),
            slots: Turns::new(settings.concurrency(), LONGEST_QUEUE),
            settings: ArcSwap::from_pointee(settings),
            breaker: Breaker::default(),
            state: watch::Sender::new(ConnectionState::Starting),
            connector,
            link: ArcSwapOption::empty(),
            history: Arc::default(),
            last_end: Mutex::default(),
            kick: Notify::new(),
            retired: CancellationToken::new(),
            enabled: watch::Sender::new(true),
            restart: Notify::new(),
            was_ready: AtomicBool::new(false),
            calls,
            log_level: Mutex::default(),
            subscriptions,
            placed: None,
            person: None,
            listed: watch::Sender::new(None),
            sent: AtomicUsize::new(0),
            shared_slots: None,
        }
    }

    /// Returns the current settings.
    pub fn settings(&self) -> Arc<ServerSettings> {
        self.settings.load_full()
    }

    /// Returns whether a server with these settings is reached the same way, so that it needs no new
    /// connection.
    pub fn is_reached_by(&self, other: &ServerSettings) -> bool {
        let own = self.settings();
        own.transport == other.transport
            && own.concurrency() == other.concurrency()
            && own.setup == other.setup
            && own.placement == other.placement
            && own.limits == other.limits
            && own.credentials == other.credentials
            && own.min_protocol == other.min_protocol
            && own.ui == other.ui
    }

    /// Returns the token that is cancelled when the server is no longer wanted.
    pub fn retired(&self) -> &CancellationToken {
        &self.retired
    }

    /// Whether a call or another request is in flight.
    pub fn is_busy(&self) -> bool {
        self.slots.taken() > 0 || self.sent.load(Ordering::Acquire) > 0
    }

    /// Retires the connection once the calls in flight have ended, at most after `limit`.
    pub async fn retire(&self, limit: Duration) {
        let _ = timeout(limit, self.slots.idle()).await;
        self.retired.cancel();
    }

    /// Returns how long the server has been ready, if it is.
    pub fn ready_for(&self) -> Option<Duration> {
        match &*self.state.borrow() {
            ConnectionState::Ready { since, .. } => Some(since.elapsed()),
            _ => None,
        }
    }

    /// Returns the last lines of the server's stderr, without secrets.
    pub fn stderr_tail(&self) -> Vec<String> {
        self.masked(&self.history.tail()).lines().map(String::from).collect()
    }

    /// Returns what happened to the server lately, oldest first, without secrets.
    pub fn history(&self) -> Vec<HistoryEntry> {
        let mut entries = self.history.entries();
        for entry in &mut entries {
            entry.text = self.masked(&entry.text);
        }
        entries
    }

    /// Returns a text of the server or about it without the secrets of any server.
    fn masked(&self, text: &str) -> String {
        self.calls.secrets.load().mask(&self.connector.mask(text)).into_owned()
    }

    /// Enters a state, and notes it in the history.
    fn enter(&self, state: ConnectionState) {
        self.history.entered(&state);
        self.state.send_replace(state);
    }

    /// Returns the outcome of reading the server's document, if it has one.
    pub fn document(&self) -> Option<DocumentReport> {
        let mut report = self.connector.document()?;
        report.left_out.iter_mut().for_each(|reason| *reason = self.masked(reason));
        Some(report)
    }

    /// Ends the current link, if any, and connects again at once.
    pub fn restart(&self) {
        self.breaker.reset();
        self.restart.notify_one();
        self.kick.notify_one();
    }

    /// Returns what is cut off at the moment, if anything.
    pub fn resting(&self) -> Option<BreakerStatus> {
        let mut status = self.breaker.status()?;
        status.last_error = self.masked(&status.last_error);
        Some(status)
    }

    /// Returns whether the breaker has changed since the last query.
    pub fn has_breaker_news(&self) -> bool {
        self.breaker.has_news()
    }

    /// Takes the breaker's changes since the last query.
    pub fn breaker_news(&self) -> Vec<BreakerNews> {
        let mut news = self.breaker.news();
        for one in &mut news {
            if let BreakerNews::Rests(_, resting) = one {
                resting.error = self.masked(&resting.error);
            }
        }
        news
    }

    /// Returns whether the user has put the server on hold.
    pub fn is_held(&self) -> bool {
        !*self.enabled.borrow()
    }

    /// Keeps the server disconnected until it is released or the configuration is reloaded.
    pub fn hold(&self) {
        self.enabled.send_replace(false);
    }

    /// Connects a held server again.
    pub fn release(&self) {
        self.enabled.send_replace(true);
    }

    /// Replaces the settings. Only for settings that [`Connection::is_reached_by`] accepts.
    pub fn set(&self, settings: Arc<ServerSettings>) {
        self.settings.store(settings);
    }

    /// Returns the current state.
    pub fn state(&self) -> ConnectionState {
        self.state.borrow().clone()
    }

    /// Whether it waits for a sign-in.
    pub fn needs_sign_in(&self) -> bool {
        matches!(*self.state.borrow(), ConnectionState::AuthRequired { .. })
    }

    /// Returns a receiver of the states.
    pub fn watch(&self) -> watch::Receiver<ConnectionState> {
        self.state.subscribe()
    }

    /// Returns where the program runs, if one replica of a cluster runs it for all.
    pub fn placed(&self) -> Option<&Arc<ProgramPlacement>> {
        self.placed.as_ref()
    }

    /// Tries again to connect, if the last attempt failed for want of a sign-in. Calls wait for the outcome.
    pub fn retry_sign_in(&self) {
        let is_unsigned = |state: &mut ConnectionState| match state {
            ConnectionState::AuthRequired { .. } => {
                *state = ConnectionState::Starting;
                true
            }
            _ => false,
        };
        if self.state.send_if_modified(is_unsigned) {
            self.kick.notify_one();
        }
    }

    /// Watches the server's last list, if the program has a place.
    pub fn listed(&self) -> watch::Receiver<Option<Arc<Listing>>> {
        self.listed.subscribe()
    }

    /// Returns whether the server takes requests.
    pub fn takes_requests(&self) -> bool {
        self.link().is_some()
    }

    /// Returns the live link, if there is one.
    fn link(&self) -> Option<Arc<dyn Link>> {
        let link = self.link.load();
        link.as_deref().filter(|link| !link.is_closed()).cloned()
    }

    fn last_end(&self) -> String {
        if let ConnectionState::Down { error, .. } = &*self.state.borrow() {
            return error.clone();
        }
        let last = self.last_end.lock();
        if last.is_empty() { "the connection closed".into() } else { last.clone() }
    }
}

/// Returns the innermost cause of an error: the outer ones only say that something failed.
fn deepest(error: &(dyn std::error::Error + 'static)) -> String {
    error.source().map_or_else(|| error.to_string(), deepest)
}
