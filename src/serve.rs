//! Nonet as an MCP server: one handler behind stdio and streamable HTTP.
//!
//! [`nonet_peer`] speaks the protocol; [`dispatch`] turns its requests into operations of the gateway.

// Logging is deprecated in the newest revision (SEP-2577); clients of older ones still want it.
#![allow(deprecated)]

mod access;
mod browser;
mod calls;
mod carried;
mod dispatch;
mod door;
mod elsewhere;
mod forwarded;
mod http;

mod in_flight;
mod inquiries;
mod list_changes;
mod listen;
mod neighbours;
mod page;
mod prompts_resources;
mod relays;
#[cfg(unix)]
mod shared;
mod subscriptions;
mod tasks;
mod unused_sessions;
mod user_page;

use std::{
    collections::HashMap,
    future::Future,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ::http::Extensions;
pub(crate) use access::WITHOUT_TOKENS;
pub use http::{HttpOptions, ServeAddress, serve_http};
pub use neighbours::{Neighbours, SilentGateway};
use nonet_api::{notice::Notice, status::ServeMode};
use nonet_auth::Person;
use nonet_base::{json::set_member, text};
use nonet_config::{ClientLimits, Config, KnownToken};
use nonet_core::{FollowedResource, Gate, Gateway};
use nonet_meta::{self as meta, MetaAnswer};
use nonet_parts::{
    quotas::{Account, QuotaExceeded},
    skills::served,
    trace,
};
use nonet_peer::{
    client::{ClientPeer, ClientWay},
    lines,
    reply::Reply,
    request::{RequestContext, RequestParams, TaskWish},
};
use nonet_servers::downstream::{LogLevel, UI_EXTENSION};
use nonet_state::session::{Caller, Session, TaskMode};
use nonet_text::{
    fault::Fault,
    results::{is_own_meta, json_len},
};
use nonet_wire::LineReader;
use parking_lot::Mutex;
use rmcp::{
    ErrorData,
    model::{
        CallToolRequestParams, CompleteRequestParams, DiscoverResult, ErrorCode, GetPromptRequestParams,
        Implementation, InitializeRequestParams, InitializeResult, InputRequiredResult, InputResponses,
        ProtocolVersion, ReadResourceRequestParams, ServerCapabilities, ServerConfig, SubscriptionFilter,
        SubscriptionsListenResult, TASKS_EXTENSION_ID,
    },
};
use serde::Deserialize;
use serde_json::{Map, Value, json};
#[cfg(unix)]
pub use shared::{accept_shared, serve_shared};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::AbortOnDropHandle,
};
pub use user_page::UserPage;

use self::{
    calls::CallAsTask,
    carried::GoesOn,
    in_flight::{AskRoute, ClientChannels, InFlightRequest, LogThreshold, Parking, RequestOutcome},
    list_changes::AnnouncedLists,
    unused_sessions::SessionPlace,
};

/// The error code for a request beyond a quota, from the range for servers.
const RATE_LIMITED: ErrorCode = ErrorCode(-32000);
/// How much of a request's `_meta` is passed on to servers, in bytes of JSON.
const MAX_META: usize = 16 << 10;
/// The beginning of the protocol's own keys in `_meta`, which hold between two neighbours only.
const OF_PROTOCOL: &str = "io.modelcontextprotocol/";
/// The delay before servers start, so that the handshake is not slowed down.
const HEAD_START: Duration = Duration::from_millis(100);
/// How long the servers' start waits until the last known lists are searchable.
const RECALL_LIMIT: Duration = Duration::from_secs(1);

/// Serves one client on stdin and stdout until the client leaves or `stop` resolves.
pub async fn serve_stdio(
    gateway: Arc<Gateway>,
    profile: Option<String>,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let (reader, writer) = rmcp::transport::stdio_pipes();
    offer_page(&gateway, ServeMode::Stdio);
    serve_lines(gateway, profile, reader, writer, stop).await
}

/// Serves one client over lines, as on stdin and stdout, until the client leaves or `stop` resolves.
pub async fn serve_lines(
    gateway: Arc<Gateway>,
    profile: Option<String>,
    reader: impl AsyncRead + Unpin + Send + 'static,
    writer: impl AsyncWrite + Unpin + Send + 'static,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let limits = gateway.servers.config().limits.messages();
    let lines = LineReader::new(reader, limits.of_client.bytes);
    gateway.errands.ends_with_client();
    gateway.recall();
    connect_soon(&gateway);
    let server = NonetServer::new(gateway.clone(), profile, None, None, None);
    let (ended, greeted) = (CancellationToken::new(), gateway.clone());
    let serving =
        lines::serve(server, lines, writer, limits, ended.clone(), move || connect_recalled(&greeted));
    let mut serving = tokio::spawn(serving);
    tokio::select! {
        _ = &mut serving => {}
        () = stop => ended.cancel(),
    }
    gateway.stop().await;
    Ok(())
}

/// Shows the gateway on the pages of this user's other gateways, after [`HEAD_START`].
fn offer_page(gateway: &Arc<Gateway>, serves: ServeMode) {
    #[cfg(unix)]
    page::gateways::offer(gateway, serves);
    #[cfg(not(unix))]
    let _ = gateway.serves.set(serves);
}

/// Starts the servers after the handshake, or after [`HEAD_START`].
fn connect_soon(gateway: &Arc<Gateway>) {
    let gateway = gateway.clone();
    tokio::spawn(async move {
        tokio::time::sleep(HEAD_START).await;
        connect_recalled(&gateway);
    });
}

/// Starts the servers once the last known lists are searchable: dozens of programs starting at once would
/// slow down the first requests.
fn connect_recalled(gateway: &Arc<Gateway>) {
    let gateway = gateway.clone();
    tokio::spawn(async move {
        let _ = tokio::time::timeout(RECALL_LIMIT, gateway.publisher.searchable()).await;
        gateway.connect();
        gateway.errands.keep_time();
    });
}

/// A client, and its limits under this configuration.
struct KnownClient {
    /// Its name as the client says it.
    told: Box<str>,
    /// Its name as it may be shown.
    name: Arc<str>,
    config: Arc<Config>,
    limits: ClientLimits,
}

/// The account of a request's token over HTTP, stored in the request's extensions.
#[derive(Clone)]
struct RequestAccount(Arc<Account>);

/// The person of a request over HTTP, stored in the request's extensions.
#[derive(Clone)]
struct RequestPerson(Arc<Person>);

/// The handler of one session.
#[derive(Clone)]
pub struct NonetServer {
    gateway: Arc<Gateway>,
    session: Arc<Session>,
    http: bool,
    /// The last client, with its limits under one configuration.
    client: Arc<Mutex<Option<KnownClient>>>,
    /// Cancelled once nobody can come back for the session's parked requests.
    no_return: CancellationToken,
    /// The client's capabilities for servers' requests, from its handshake.
    can: Arc<OnceLock<Arc<Map<String, Value>>>>,
    /// The log level that the client has set.
    log_level: LogThreshold,
    /// The client's subscriptions to resources, by the URI that the client knows.
    subscriptions: Arc<Mutex<HashMap<String, AbortOnDropHandle<()>>>>,
    /// The quotas of this HTTP session, if its requests have no token.
    own_account: Arc<OnceLock<Arc<Account>>>,
    /// Whether it tells its client of changes.
    is_announcing: Arc<AtomicBool>,
    /// The session's place among those over HTTP.
    place: Arc<OnceLock<SessionPlace>>,
    /// Cancelled when the session ends.
    ended: CancellationToken,
    /// Ends the session when the last handler that holds it is dropped.
    _ends: Option<Arc<DropGuard>>,
}

impl NonetServer {
    /// Returns a handler with a new session, for the person who has signed in, if somebody has. `strangers`, over HTTP, is the account of requests without a
    /// token and without a session. `no_return` is cancelled once nobody can come back for parked requests;
    /// without it, they end with the session.
    fn new(
        gateway: Arc<Gateway>,
        profile: Option<String>,
        person: Option<Arc<Person>>,
        strangers: Option<Arc<Account>>,
        no_return: Option<CancellationToken>,
    ) -> Self {
        let http = strangers.is_some();
        let session = match strangers {
            None => gateway.sessions.open(profile),
            Some(strangers) => gateway.sessions.open_under(profile, person, strangers),
        };
        if !http {
            gateway.greet(&session);
        }
        let ended = CancellationToken::new();
        Self {
            gateway,
            session,
            http,
            client: Arc::default(),
            no_return: no_return.unwrap_or_else(|| ended.clone()),
            can: Arc::default(),
            log_level: LogThreshold::default(),
            subscriptions: Arc::default(),
            own_account: Arc::default(),
            is_announcing: Arc::default(),
            place: Arc::default(),
            _ends: Some(Arc::new(ended.clone().drop_guard())),
            ended,
        }
    }

    /// Returns where its requests wait for the client.
    fn parking(&self) -> Parking {
        Parking { room: self.gateway.asking.room.clone(), end: self.no_return.clone() }
    }

    /// Returns a handler of the same session that does not keep it open.
    fn guest(&self) -> Self {
        Self { _ends: None, ..self.clone() }
    }

    fn caller(
        &self,
        context: &RequestContext,
        wish: TaskWish,
        base: Caller,
        ways: &ClientChannels,
    ) -> Caller {
        let takes_tasks = || context.client_capabilities().is_some_and(|can| can.supports_tasks());
        // Clients of the stateless era get questions in an unfinished result.
        let as_task = match ways.asker.parks {
            false if wish.0 => TaskMode::AtOnce,
            true if takes_tasks() => TaskMode::IfSlow,
            _ => TaskMode::Never,
        };
        let trace = trace::Parent::of(&context.meta.0);
        let meta = passed_on(context, &self.session);
        let (cancel, progress) = (ways.cancel.clone(), ways.progress.clone());
        let asker = Some(ways.asker.clone());
        // The request that starts a task has been answered by the time a user could be asked.
        let unasked = as_task == TaskMode::AtOnce;
        Caller { cancel, progress, asker, unasked, as_task, meta, trace, ..base }
    }

    /// Returns the channels to a request's client. A client declares its capabilities once in the session
    /// era, and with each request in the stateless era.
    fn ways(
        &self,
        context: &RequestContext,
        stateless: bool,
        caller: &Caller,
        log: Option<LogLevel>,
    ) -> ClientChannels {
        let told =
            || Arc::new(in_flight::can(context.client_capabilities().as_ref(), caller.limits.elicitation));
        let can = if stateless { told() } else { self.can.get_or_init(told).clone() };
        let wants_progress = context.meta.get_progress_token().is_some();
        ClientChannels::new(&self.session, can, stateless, log, wants_progress)
    }

    /// Returns the name of a client, as it may be shown, and its limits. The last ones are cached, because
    /// there is nearly always one client and one configuration.
    fn known_client(&self, told: &str, context: &RequestContext) -> (Arc<str>, ClientLimits) {
        let config = self.gateway.servers.config();
        let mut known = self.client.lock();
        if let Some(known) = &*known
            && *known.told == *told
            && Arc::ptr_eq(&known.config, &config)
        {
            return (known.name.clone(), known.limits);
        }
        let name: Arc<str> = text::name(told).into();
        let limits = config.limits(&name);
        let quotas = config.quotas(self.session.profile.as_deref());
        self.session.account.set(quotas);
        if let Some(own) = self.own_account.get() {
            own.set(quotas);
        }
        if let Some(version) = context.protocol_version() {
            self.session.is_of(&name, version.as_str());
        }
        *known = Some(KnownClient { told: told.into(), name: name.clone(), config, limits });
        (name, limits)
    }

    /// Whether the client of a request gets tools with user interfaces.
    fn shows_ui(&self, context: &RequestContext) -> bool {
        let config = self.gateway.servers.config();
        config.shows_ui(self.session.profile.as_deref()) && context.declares(UI_EXTENSION)
    }

    /// Returns the minimum level of log messages that a client gets about its request.
    fn log_level_for(&self, context: &RequestContext, stateless: bool) -> Option<LogLevel> {
        match stateless {
            true => context.meta.log_level().map(Into::into),
            false => Some(self.log_level.get()),
        }
    }

    /// Returns a tool call that has not started yet.
    fn open_call(
        &self,
        request: CallToolRequestParams,
        wish: TaskWish,
        context: &RequestContext,
        level: Option<LogLevel>,
    ) -> (Box<InFlightRequest<MetaAnswer>>, Option<CallAsTask>) {
        let stateless = context.is_stateless();
        // Only clients of the stateless era may have to send it again.
        let what = if stateless { in_flight::called(&request, true) } else { String::new() };
        let base = self.who(context);
        let ways = self.ways(context, stateless, &base, level);
        let caller = self.caller(context, wish, base, &ways);
        let (owner, by_task) = (caller.owner(), caller.as_task == TaskMode::IfSlow);
        let as_task = (caller.as_task == TaskMode::AtOnce)
            .then(|| CallAsTask { caller: caller.clone(), tool: request.name.to_string() });
        let work = in_flight::call(self.gateway.clone(), caller, request);
        let way_back = match self.http || stateless {
            true => {
                let (room, session) = (self.gateway.asking.room.clone(), self.session.id);
                AskRoute::NextRequest { room, session, by_task }
            }
            false => AskRoute::AtOnce,
        };
        (ways.open(what, owner, way_back, work), as_task)
    }

    /// Passes a request through to a server, which may ask the client meanwhile. Returns the result, or the
    /// requests that the client has to answer first. `given` holds the answers of an earlier round.
    async fn pass<W: Future<Output = Result<Value, ErrorData>> + Send + 'static>(
        &self,
        what: String,
        given: (Option<&str>, Option<&InputResponses>),
        context: &RequestContext,
        work: impl FnOnce(Arc<Gateway>, Caller) -> W,
    ) -> Result<Result<Value, Box<InputRequiredResult>>, ErrorData> {
        let owner = || self.who(context).owner();
        let open = match self.parking().resume(|| what.clone(), owner, given.0, given.1) {
            Some(open) => open?,
            None => {
                let caller = self.asker(context);
                let place = caller.account.call().map_err(refused)?;
                let ways = self.ways(context, context.is_stateless(), &caller, None);
                let (asker, owner) = (Some(ways.asker.clone()), caller.owner());
                let caller = Caller { asker, cancel: ways.cancel.clone(), ..caller };
                let work = work(self.gateway.clone(), caller);
                let work = async move {
                    let _place = place;
                    work.await
                };
                ways.open(what, owner, AskRoute::AtOnce, work)
            }
        };
        match open.run(&self.parking(), context, None).await {
            RequestOutcome::Ended(passed) => passed.map(Ok),
            RequestOutcome::Asks(asked) => Ok(Err(asked)),
        }
    }

    /// Notifies the client of each change of a resource, until it unsubscribes.
    fn tell_of(&self, uri: String, caller: Caller, following: FollowedResource, way: ClientWay) {
        let told = uri.clone();
        let tell = async move || way.notify(subscriptions::UPDATED, json!({ "uri": told })).await.is_ok();
        let telling = subscriptions::follow(self.gateway.clone(), caller, uri.clone(), following, tell);
        self.subscriptions.lock().insert(uri, AbortOnDropHandle::new(tokio::spawn(telling)));
        self.session.has_changed();
    }

    /// Renews a subscription of a session that another replica started. The resource's server may not be
    /// ready yet.
    fn subscribe_again(&self, uri: String, context: &RequestContext) {
        let (server, caller) = (self.guest(), self.asker(context));
        let way = ClientWay::of(context.way.peer.clone());
        let caller = Caller { cancel: self.ended.clone(), ..caller };
        tokio::spawn(self.ended.clone().run_until_cancelled_owned(async move {
            for _ in 0..subscriptions::REFOLLOWS {
                if let Ok(following) = server.gateway.calls.follow_resource(&caller, &uri).await {
                    return server.tell_of(uri, caller, following, way);
                }
                tokio::time::sleep(subscriptions::REFOLLOW).await;
            }
        }));
    }

    /// Returns the caller of a request, with the metadata for servers.
    fn asker(&self, context: &RequestContext) -> Caller {
        Caller { meta: passed_on(context, &self.session), ..self.who(context) }
    }

    /// Returns the caller of a request, without the channels of a call.
    fn who(&self, context: &RequestContext) -> Caller {
        let (client, limits) = context.with_client_name(|told| self.known_client(told, context));
        // A stateless request over HTTP belongs to no session: only the id identifies its tasks.
        let lasting = !(self.http && context.is_stateless());
        let account = match of_token(context) {
            Some(account) => account.clone(),
            None if self.http && lasting => {
                let own = || Account::of_session(self.session.account.quotas());
                self.own_account.get_or_init(own).clone()
            }
            None => self.session.account.clone(),
        };
        let person = person_of(&context.beside);
        if let Some(person) = person {
            self.gateway.sessions.people.sees(&self.session.owner, person);
            self.gateway.servers.greet(person);
        }
        Caller {
            session: self.session.clone(),
            account,
            person: person.cloned(),
            client,
            cancel: context.cancel.clone(),
            lasting,
            local: !self.http,
            token: token_of(context),
            shows_ui: self.shows_ui(context),
            limits,
            // Without `..Caller::default()`, which would make a session and an account only to drop them.
            is_admitted: false,
            progress: None,
            sink: None,
            asker: None,
            unasked: false,
            approved_elsewhere: false,
            meta: Map::new(),
            as_task: TaskMode::Never,
            trace: Default::default(),
            within: Vec::new(),
            run: None,
        }
    }
}

/// Returns the account of a request's token, if it has one.
fn of_token(context: &RequestContext) -> Option<&Arc<Account>> {
    context.beside.get::<RequestAccount>().map(|RequestAccount(account)| account)
}

/// Returns the person of a request, if somebody has signed in.
fn person_of(beside: &Extensions) -> Option<&Arc<Person>> {
    beside.get::<RequestPerson>().map(|RequestPerson(person)| person)
}

/// Returns the error for a request beyond a quota.
fn refused(exhausted: QuotaExceeded) -> ErrorData {
    let fault = Fault::from(exhausted);
    ErrorData::new(RATE_LIMITED, fault.message.clone(), Some(fault.to_value()))
}

/// Returns the part of a request's `_meta` that servers get: everything but the keys of the protocol, which
/// Nonet sets itself, and Nonet's own. Tells the session if there is too much of it.
fn passed_on(context: &RequestContext, session: &Session) -> Map<String, Value> {
    let is_passed = |key: &str| key != "progressToken" && !key.starts_with(OF_PROTOCOL) && !is_own_meta(key);
    let given = context.meta.0.0.iter().filter(|(key, _)| is_passed(key));
    let bytes: usize = given.clone().map(|(key, value)| key.len() + json_len(value) + 4).sum();
    if bytes > MAX_META {
        let message = format!(
            "The request's `_meta` has {bytes} bytes beside the protocol's own keys, and at most {MAX_META} are passed on to servers: none of it was."
        );
        session.notify(Notice::MetaLeftOut { message });
        return Map::new();
    }
    given.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Returns the bearer token of a request over HTTP, if access requires one.
fn token_of(context: &RequestContext) -> Option<KnownToken> {
    context.beside.get::<KnownToken>().cloned()
}

impl NonetServer {
    /// Returns the versions that clients may speak.
    fn admitted_versions(&self) -> Vec<ProtocolVersion> {
        let oldest = self.gateway.servers.config().gateway.min_protocol;
        let is_admitted =
            |version: &&ProtocolVersion| oldest.is_none_or(|oldest| version.as_str() >= oldest.as_str());
        ProtocolVersion::KNOWN_VERSIONS.iter().filter(is_admitted).cloned().collect()
    }

    /// Returns the version of a handshake: the client's own, or the newest one with a handshake if the client's is
    /// unknown. Refuses a client that is older than `min_protocol`.
    fn agreed_version(&self, wanted: &ProtocolVersion) -> Result<ProtocolVersion, ErrorData> {
        let is_known = wanted.has_initialize() && ProtocolVersion::KNOWN_VERSIONS.contains(wanted);
        let agreed = if is_known { wanted.clone() } else { ProtocolVersion::LATEST_WITH_INITIALIZE };
        let admitted = self.admitted_versions();
        if admitted.contains(&agreed) {
            return Ok(agreed);
        }
        tracing::warn!(version = %wanted, "a client is older than `min_protocol` and was refused");
        let mut error = ErrorData::unsupported_protocol_version(wanted.clone(), &admitted);
        let oldest = admitted.first().map_or("", ProtocolVersion::as_str);
        error.message =
            format!("Unsupported protocol version: this gateway requires {oldest} or newer (`min_protocol`)")
                .into();
        Err(error)
    }

    fn config(&self) -> ServerConfig {
        // Includes the capabilities of servers that are not ready yet, whose lists are announced later.
        let tools = match meta::list_can_change(&Gate::of(&self.gateway.publisher, &self.session)) {
            true => json!({ "listChanged": true }),
            false => json!({}),
        };
        let mut extensions = json!({ TASKS_EXTENSION_ID: {} });
        if self.gateway.servers.config().shows_ui(self.session.profile.as_deref()) {
            set_member(&mut extensions, UI_EXTENSION, json!({}));
        }
        if !self.gateway.servers.config().gateway.skills.is_empty() {
            set_member(&mut extensions, served::EXTENSION, json!({ "directoryRead": true }));
        }
        let capabilities = json!({
            "extensions": extensions,
            "logging": {},
            "completions": {},
            "prompts": { "listChanged": true },
            "resources": { "listChanged": true, "subscribe": true },
            "tools": tools,
        });
        let capabilities = ServerCapabilities::deserialize(capabilities).expect("these are capabilities");
        ServerConfig::new(capabilities).with_server_info(
            Implementation::new("nonet", env!("CARGO_PKG_VERSION"))
                .with_title("Nonet")
                .with_description("One MCP server in front of all of your MCP servers"),
        )
    }

    async fn initialize(
        &self,
        request: InitializeRequestParams,
        context: &RequestContext,
    ) -> Result<Value, ErrorData> {
        if self.http {
            let place = match context.beside.get::<SessionPlace>() {
                Some(place) => place.clone(),
                // A session that another replica started.
                None => {
                    let account = of_token(context).unwrap_or(&self.session.account);
                    SessionPlace::of(account.session().map_err(refused)?)
                }
            };
            let _ = self.place.set(place);
        }
        let mut result: InitializeResult = self.config();
        result.protocol_version = self.agreed_version(&request.protocol_version)?;
        let client = text::name(&request.client_info.name);
        let agreed = result.protocol_version.clone();
        let mut info = request;
        info.protocol_version = agreed.clone();
        context.way.peer.set_info(info);
        let caller = self.gateway.sessions.caller(self.session.clone(), &client);
        let person = person_of(&context.beside).cloned();
        let caller = Caller { lasting: true, local: !self.http, person, ..caller };
        // Over HTTP, a stateless client has a session per request, and would get the notice with every
        // answer.
        if self.http && context.beside.get::<GoesOn>().is_none() {
            self.gateway.greet(&self.session);
        }
        result.instructions = Some(meta::instructions(&self.gateway, &caller).await);
        let mut result = serde_json::to_value(result).expect("its types are JSON");
        // rmcp's types lack the tasks of this version.
        if agreed == ProtocolVersion::V_2025_11_25 {
            set_member(&mut result["capabilities"], "tasks", tasks::capability());
        }
        Ok(result)
    }

    async fn discover(&self, context: &RequestContext) -> Result<DiscoverResult, ErrorData> {
        let versions = self.admitted_versions();
        let mut result = DiscoverResult::from_server_info(versions, self.config());
        result.instructions = Some(meta::instructions(&self.gateway, &self.who(context)).await);
        Ok(result)
    }

    async fn list_tools(&self, context: &RequestContext) -> Value {
        let constant = !meta::list_can_change(&Gate::of(&self.gateway.publisher, &self.session));
        if !constant {
            self.gateway.calls.first_lists(&self.session).await;
        }
        let who = self.who(context);
        let gate = Gate::of(&self.gateway.publisher, &self.session);
        let tools = meta::listed_tools(&gate, &who.limits, who.shows_ui);
        if !who.shows_ui && context.declares(UI_EXTENSION) {
            self.gateway.tell_of_ui(&gate, &self.session);
        }
        let mut list = json!({ "tools": tools });
        if !context.is_stateless() && self.session.reads_first_list() {
            self.gateway.observing.metrics.listed(json_len(&list["tools"]));
        }
        if context.is_stateless() {
            list["resultType"] = json!("complete");
            list["ttlMs"] = json!(if constant { 3_600_000 } else { 0 });
            list["cacheScope"] = json!(if constant { "public" } else { "private" });
        }
        list
    }

    async fn list_prompts(
        &self,
        cursor: Option<String>,
        context: &RequestContext,
    ) -> Result<Value, ErrorData> {
        let page = self.gateway.calls.prompts(&self.who(context), cursor.as_deref()).await?;
        Ok(prompts_resources::list("prompts", page, context.is_stateless()))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        context: &RequestContext,
    ) -> Result<Reply, ErrorData> {
        let (name, arguments) = (request.name, request.arguments.unwrap_or_default());
        let what = format!("prompts/get {name}");
        let get = |gateway: Arc<Gateway>, caller| async move {
            gateway.calls.get_prompt(&caller, &name, arguments).await
        };
        let given = (request.request_state.as_deref(), request.input_responses.as_ref());
        Ok(match self.pass(what, given, context, get).await? {
            Ok(prompt) => Reply::Verbatim(prompts_resources::prompt(prompt, context.is_stateless())?.into()),
            Err(asked) => Reply::Asks(asked),
        })
    }

    async fn list_resources(
        &self,
        cursor: Option<String>,
        context: &RequestContext,
    ) -> Result<Value, ErrorData> {
        let page = self.gateway.calls.resources(&self.who(context), cursor.as_deref()).await?;
        Ok(prompts_resources::list("resources", page, context.is_stateless()))
    }

    async fn list_resource_templates(
        &self,
        cursor: Option<String>,
        context: &RequestContext,
    ) -> Result<Value, ErrorData> {
        let page = self.gateway.calls.resource_templates(&self.who(context), cursor.as_deref()).await?;
        Ok(prompts_resources::list("resourceTemplates", page, context.is_stateless()))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: &RequestContext,
    ) -> Result<Reply, ErrorData> {
        let uri = request.uri;
        let what = format!("resources/read {uri}");
        let read =
            |gateway: Arc<Gateway>, caller| async move { gateway.calls.read_resource(&caller, &uri).await };
        let given = (request.request_state.as_deref(), request.input_responses.as_ref());
        Ok(match self.pass(what, given, context, read).await? {
            Ok(resource) => {
                Reply::Verbatim(prompts_resources::resource(resource, context.is_stateless())?.into())
            }
            Err(asked) => Reply::Asks(asked),
        })
    }

    async fn list_skills(&self, context: &RequestContext) -> Result<Value, ErrorData> {
        let skills = self.gateway.calls.served_skills(&self.who(context)).await?;
        let entries: Vec<Value> = skills.into_iter().map(|skill| skill.entry).collect();
        Ok(prompts_resources::of_skills(json!({ "skills": entries }), context.is_stateless(), true))
    }

    async fn get_skill(&self, params: RequestParams, context: &RequestContext) -> Result<Value, ErrorData> {
        let method = params.method.clone();
        let uri = params.parse::<ReadResourceRequestParams>()?.uri;
        let answer = self.gateway.calls.served_skill(&self.who(context), &method, &uri).await?;
        let cached = &*method == "skills/get";
        Ok(prompts_resources::of_skills(answer, context.is_stateless(), cached))
    }

    async fn subscribe(&self, uri: String, context: &RequestContext) -> Result<(), ErrorData> {
        let caller = self.asker(context);
        let following = self.gateway.calls.follow_resource(&caller, &uri).await?;
        self.tell_of(uri, caller, following, ClientWay::of(context.way.peer.clone()));
        Ok(())
    }

    fn unsubscribe(&self, uri: &str) {
        self.subscriptions.lock().remove(uri);
        self.session.has_changed();
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        context: &RequestContext,
    ) -> Result<Value, ErrorData> {
        let caller = self.asker(context);
        let _place = caller.account.call().map_err(refused)?;
        let given = self.gateway.calls.complete(&caller, request).await?;
        prompts_resources::completion(given, context.is_stateless())
    }

    fn set_level(&self, level: LogLevel) {
        self.log_level.set(level);
        self.gateway.calls.want_log(self.session.id, level);
        self.session.has_changed();
    }

    /// Begins to announce notices and changed lists to a client whose handshake is complete.
    fn announce(&self, peer: &Arc<ClientPeer>) {
        if self.is_announcing.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut lists = AnnouncedLists::new(self);
        // In tasks that do not hold the session, because the session ends with this handler.
        let ended = self.ended.clone();
        let (mut notices, level) = (self.gateway.sessions.mail.follow(&self.session), self.log_level.clone());
        let way = ClientWay::of(peer.clone());
        let to = way.clone();
        tokio::spawn(ended.clone().run_until_cancelled_owned(async move {
            while let Some(notice) = notices.next().await {
                if let Some(notice) = notice {
                    in_flight::tell_notice(&to, &notice, level.get()).await;
                }
            }
        }));
        tokio::spawn(ended.run_until_cancelled_owned(async move {
            while let Some(changed) = lists.changed().await {
                for method in changed.methods() {
                    if way.notify(method, Value::Null).await.is_err() {
                        return;
                    }
                }
            }
        }));
    }

    /// Tells a client of the stateless era of changes, until it ends the subscription.
    async fn listen(
        &self,
        wanted: SubscriptionFilter,
        context: &RequestContext,
    ) -> Result<SubscriptionsListenResult, ErrorData> {
        let accepted = wanted.supported_by(&self.config().capabilities);
        subscriptions::listen(self, accepted, context).await?;
        // The result of a subscription that the gateway ends.
        let mut result = SubscriptionsListenResult::complete(context.id.clone());
        result.meta.set_server_info(self.config().server_info);
        Ok(result)
    }
}
