//! One client's session: its identity, its permissions, and its undelivered notices.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use nonet_auth::{Owner, Person};
use nonet_config::{ClientLimits, Globs, KnownToken, ServerSettings};
use nonet_parts::{
    jobs::JobOwner,
    learning::RecentSearches,
    memory::Worklist,
    quotas::{Account, Admission, QuotaExceeded},
    trace::{self, Span},
};
use nonet_servers::{
    catalog::{EntryKind, GATEWAY, Tool},
    downstream::{ClientChannel, Connection, ELICITATION, ProgressSink, QuestionTurns},
};
use nonet_text::fault::{Fault, FaultCode};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{grants::RunGrants, links::Links, mail::Mail, mailbox::Mailbox};

/// How many graphs of calls a session may keep.
const MAX_GRAPHS: usize = 20;

/// The state shared by a client's requests.
#[derive(Debug, Default)]
pub struct Session {
    /// Its number in this process.
    pub id: u64,
    /// Its profile, if any.
    pub profile: Option<String>,
    /// The person who signed in, as the session's first request described them.
    pub person: Option<Arc<Person>>,
    /// Who owns what outlives its calls.
    pub owner: Owner,
    /// The account whose quotas it uses.
    pub account: Arc<Account>,
    /// Its client, and the revision of the protocol that the client speaks.
    client: OnceLock<(Box<str>, Box<str>)>,
    /// Its undelivered notices.
    pub mailbox: Mailbox,
    /// Tools that the user allowed for the rest of the session.
    approved: Mutex<HashMap<Arc<str>, Arc<str>>>,
    /// Tools that it loaded by name: they rank higher for the rest of the session.
    loaded: Mutex<HashSet<Arc<str>>>,
    /// Servers whose instructions it has received.
    instructed: Mutex<HashSet<Arc<str>>>,
    /// Tools whose answers do not fit their output schemas, as it was told.
    misfits: Mutex<HashSet<Arc<str>>>,
    /// Whether it was told that it gets no user interfaces.
    has_heard_of_ui: AtomicBool,
    /// Whether it has received a list of tools.
    has_list: AtomicBool,
    /// The graphs of calls that it keeps, by name.
    graphs: Mutex<BTreeMap<String, Map<String, Value>>>,
    /// Its latest searches, which still wait for an outcome.
    pub searches: RecentSearches,
    /// Its goal and tasks, if they end with it.
    pub work: Worklist,
    /// Servers that run only for this session and end with it.
    own: Mutex<HashMap<Arc<str>, OwnConnection>>,
    /// Ends the servers that it has added, when the session ends.
    added: OnceLock<DropGuard>,
    /// The links in its results, by server.
    pub links: Links,
    /// Grows with each change that another replica would need to know.
    changes: AtomicU64,
    /// Held by its requests in flight.
    pub busy: Arc<()>,
    /// The questions to its user, which are asked one at a time.
    pub turns: Arc<QuestionTurns>,
    /// Whether nobody can be asked, because its calls run unattended.
    pub unattended: bool,
    /// The app that makes its calls, if the client itself does not.
    pub app: Option<AppScope>,
}

/// The state that a session carries to another replica.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct CarriedSession {
    /// Tools that the user allowed for the rest of the session, with their definitions.
    #[serde(default)]
    approved: Vec<(Arc<str>, Arc<str>)>,
    /// Tools that it loaded by name.
    #[serde(default)]
    loaded: Vec<Arc<str>>,
    /// Servers whose instructions it has received.
    #[serde(default)]
    instructed: Vec<Arc<str>>,
    /// The graphs of calls that it keeps.
    #[serde(default)]
    graphs: BTreeMap<String, Map<String, Value>>,
    /// Its undelivered notices that the store does not keep.
    #[serde(default)]
    notices: Vec<Value>,
}

/// What a model app may call in a client's name.
#[derive(Debug)]
pub struct AppScope {
    /// The app's id.
    pub id: String,
    /// The tools that it may call, by full name.
    pub allowed: Globs,
    /// The session of the client.
    pub of: Arc<Session>,
}

/// Whether a tool returns further parts of kept results: an app that calls tools needs it.
pub fn reads_on(tool: &Tool) -> bool {
    &*tool.server == GATEWAY && &*tool.name == "fetch_result"
}

impl AppScope {
    /// Returns the rule that denies a tool to the app. Of Nonet's own tools, the app may use only those that
    /// read: the others start work or outlast the app. Skills and other apps are always denied.
    pub fn denies(&self, tool: &Tool) -> Option<String> {
        let is_harmless = tool.is_of_server() || tool.kind == EntryKind::Tool && tool.read_only;
        let allowed =
            is_harmless && self.allowed.matches(&tool.full) || !self.allowed.is_empty() && reads_on(tool);
        (!allowed).then(|| self.rule())
    }

    /// Returns the configuration key that decides what the app may call.
    pub fn rule(&self) -> String {
        format!("apps.{}.allowed_tools", self.id)
    }

    /// Whether the app might call tools of a server whose tools are not known yet.
    pub fn may_concern(&self, server: &str) -> bool {
        let own = format!("{server}.");
        let names = |pattern: &String| pattern.starts_with(&own);
        self.allowed.matches(&format!("{server}._")) || self.allowed.patterns().iter().any(names)
    }
}

/// A connection that is retired with its session.
#[derive(Debug)]
struct OwnConnection(Arc<Connection>);

impl Drop for OwnConnection {
    fn drop(&mut self) {
        self.0.retired().cancel();
    }
}

fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Session {
    /// Creates a session under a profile.
    pub fn new(profile: Option<String>) -> Arc<Self> {
        let owner = Owner::new(profile.as_deref(), None);
        Arc::new(Self { id: next_id(), profile, owner, ..Self::default() })
    }

    /// Creates a session under a profile, for a person if somebody has signed in. Undelivered lasting notices
    /// go to the next session of its owner.
    pub fn with_mail(
        profile: Option<String>,
        person: Option<Arc<Person>>,
        account: Arc<Account>,
        mail: Arc<Mail>,
    ) -> Arc<Self> {
        let owner = Owner::new(profile.as_deref(), person.as_deref());
        let mailbox = Mailbox::with_mail(mail, owner.as_str());
        Arc::new(Self { id: next_id(), profile, person, owner, account, mailbox, ..Self::default() })
    }

    /// Returns where its lasting notices go.
    pub fn mail(&self) -> Option<&Arc<Mail>> {
        self.mailbox.mail()
    }

    /// Returns its owner as the store knows owners.
    pub fn owner(&self) -> &str {
        self.owner.as_str()
    }

    /// Creates a session for unattended calls of an owner, whose person is described as they last signed in.
    pub fn unattended(owner: Owner, person: Option<Arc<Person>>) -> Arc<Self> {
        let profile = owner.profile().map(Into::into);
        Arc::new(Self { id: next_id(), profile, person, owner, unattended: true, ..Self::default() })
    }

    /// Creates a session in which an app calls tools for a client: tools that both its rules and the client's
    /// profile allow.
    pub fn of_app(id: &str, allowed: Globs, of: &Arc<Self>) -> Arc<Self> {
        let app = Some(AppScope { id: id.into(), allowed, of: of.clone() });
        let (profile, account) = (of.profile.clone(), of.account.clone());
        let (person, owner) = (of.person.clone(), of.owner.clone());
        Arc::new(Self { id: of.id, profile, person, owner, account, app, ..Self::default() })
    }

    /// Returns the session of the client itself.
    pub fn of_client(&self) -> &Self {
        self.app.as_ref().map_or(self, |app| app.of.of_client())
    }

    /// Adds a notice to the session's next answer.
    pub fn notify(&self, notice: impl Into<Value>) {
        if let (Some(id), Some(mail)) = (self.mailbox.post(notice.into()), self.mail()) {
            mail.returned(self.owner(), vec![id]);
        }
    }

    /// Returns the session's own connection to a server. Calls `begin` to create one if none uses these
    /// settings.
    pub fn connection(
        &self,
        server: &Arc<str>,
        settings: &ServerSettings,
        begin: impl FnOnce() -> Arc<Connection>,
    ) -> Arc<Connection> {
        let mut own = self.of_client().own.lock();
        if let Some(OwnConnection(connection)) = own.get(server)
            && connection.is_reached_by(settings)
        {
            return connection.clone();
        }
        let connection = begin();
        own.insert(server.clone(), OwnConnection(connection.clone()));
        connection
    }

    /// Keeps a guard until the session ends. Only the first guard counts.
    pub fn until_end(&self, guard: impl FnOnce() -> DropGuard) {
        self.of_client().added.get_or_init(guard);
    }

    /// Records the client's name, as the client states it, and the revision of the protocol that it speaks.
    pub fn is_of(&self, client: &str, protocol: &str) {
        let _ = self.client.set((client.into(), protocol.into()));
    }

    /// Returns the client, once it has called.
    pub fn client(&self) -> Option<&str> {
        self.client.get().map(|(client, _)| &**client)
    }

    /// Returns the client, once it has called, with the revision of the protocol that it speaks.
    pub fn client_and_protocol(&self) -> Option<(&str, &str)> {
        self.client.get().map(|(client, protocol)| (&**client, &**protocol))
    }

    /// Records that the user allows every call of a tool with this definition for the rest of the session.
    pub fn approve(&self, tool: &Arc<str>, hash: &Arc<str>) {
        self.approved.lock().insert(tool.clone(), hash.clone());
        self.has_changed();
    }

    /// Whether the user has allowed every call of a tool with this definition.
    pub fn approves(&self, tool: &str, hash: &str) -> bool {
        self.approved.lock().get(tool).is_some_and(|approved| **approved == *hash)
    }

    /// Records that these tools were loaded.
    pub fn load(&self, tools: impl IntoIterator<Item = Arc<str>>) {
        let mut loaded = self.loaded.lock();
        let before = loaded.len();
        loaded.extend(tools);
        if loaded.len() > before {
            self.has_changed();
        }
    }

    /// Records that the session's client reads a list of tools. Returns whether that is its first.
    pub fn reads_first_list(&self) -> bool {
        !self.has_list.swap(true, Ordering::Relaxed)
    }

    /// Records that the session gets a server's instructions. Returns whether they are new to the session.
    pub fn instruct(&self, server: &Arc<str>) -> bool {
        let is_new = self.instructed.lock().insert(server.clone());
        if is_new {
            self.has_changed();
        }
        is_new
    }

    /// Keeps a graph of calls under a name. Returns whether it replaces one.
    pub fn keep_graph(&self, name: &str, graph: Map<String, Value>) -> Result<bool, Fault> {
        let mut graphs = self.of_client().graphs.lock();
        if graphs.len() >= MAX_GRAPHS && !graphs.contains_key(name) {
            let message =
                format!("{MAX_GRAPHS} graphs are kept already, which is the maximum; overwrite one of them.");
            return Err(Fault::new(FaultCode::RateLimited, message));
        }
        let is_overwritten = graphs.insert(name.into(), graph).is_some();
        drop(graphs);
        self.has_changed();
        Ok(is_overwritten)
    }

    /// Returns the graph that is kept under a name.
    pub fn graph(&self, name: &str) -> Option<Map<String, Value>> {
        self.of_client().graphs.lock().get(name).cloned()
    }

    /// Returns the graphs that it keeps.
    pub fn graphs(&self) -> BTreeMap<String, Map<String, Value>> {
        self.of_client().graphs.lock().clone()
    }

    /// Records a change that another replica would need to know.
    pub fn has_changed(&self) {
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns a number that grows with each such change.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Whether one of its requests is in flight.
    pub fn is_busy(&self) -> bool {
        Arc::strong_count(&self.busy) > 1
    }

    /// Returns the state that another replica needs to continue the session; if it ends here, including the
    /// waiting notices.
    pub fn carried(&self, ends: bool) -> CarriedSession {
        let approved = self.approved.lock().iter().map(|(tool, hash)| (tool.clone(), hash.clone())).collect();
        let loaded = self.loaded();
        let instructed = self.instructed.lock().iter().cloned().collect();
        let notices = if ends { self.mailbox.unkept() } else { Vec::new() };
        let graphs = self.graphs.lock().clone();
        CarriedSession { approved, loaded, instructed, graphs, notices }
    }

    /// Continues a session of another replica.
    pub fn carry_on(&self, carried: CarriedSession) {
        self.approved.lock().extend(carried.approved);
        self.loaded.lock().extend(carried.loaded);
        self.instructed.lock().extend(carried.instructed);
        self.graphs.lock().extend(carried.graphs);
        for notice in carried.notices {
            self.notify(notice);
        }
    }

    /// Whether it was told that the answers of a tool do not fit its output schema.
    pub fn knows_of_output(&self, tool: &str) -> bool {
        self.misfits.lock().contains(tool)
    }

    /// Notes that it is told so.
    pub fn tell_of_output(&self, tool: &Arc<str>) {
        self.misfits.lock().insert(tool.clone());
    }

    /// Whether it is to be told now that it gets no user interfaces. True once.
    pub fn hears_of_ui(&self) -> bool {
        !self.has_heard_of_ui.swap(true, Ordering::Relaxed)
    }

    /// Returns the loaded tools.
    pub fn loaded(&self) -> Vec<Arc<str>> {
        self.loaded.lock().iter().cloned().collect()
    }
}

/// When a client accepts a protocol task instead of a result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaskMode {
    /// Never: the client gets a handle in a result instead.
    #[default]
    Never,
    /// For a call that outlives the soft deadline (tasks extension, 2026-07-28).
    IfSlow,
    /// At once, because the client asked for a task (2025-11-25).
    AtOnce,
}

impl Caller {
    /// Returns the channel for forms to the caller's user, if there is one.
    pub fn forms(&self) -> Option<&ClientChannel> {
        self.forms_later().filter(|_| !self.unasked)
    }

    /// Returns the channel for forms to the caller's user, even if this call must not use it.
    pub fn forms_later(&self) -> Option<&ClientChannel> {
        self.asker.as_ref().filter(|asker| asker.can_answer(ELICITATION, &json!({})))
    }

    /// Returns the key of the person whose accounts the call uses, if it is a person's, and the person as far as
    /// they are known.
    pub fn whose(&self) -> Option<(Arc<str>, Option<&Arc<Person>>)> {
        let client = self.session.of_client();
        let person = self.person.as_ref().or(client.person.as_ref());
        let key = person.map(|person| person.key.clone()).or_else(|| client.owner.person().map(Into::into));
        Some((key?, person))
    }

    /// Returns the owner of this caller's jobs.
    pub fn owner(&self) -> JobOwner {
        JobOwner {
            session: self.lasting.then_some(self.session.id),
            owner: self.session.owner.clone(),
            local: self.local,
            account: self.account.clone(),
        }
    }

    /// Reserves a place for new work of this caller, before any of the work is done: for a call that may
    /// become a job later, or for work that is a job from the start, such as a `launch`. Work inside other
    /// work shares its place.
    pub fn admit(&self, launch: bool) -> Result<Admission, QuotaExceeded> {
        match launch || self.as_task == TaskMode::AtOnce {
            _ if self.is_admitted => Ok(Admission::default()),
            true => self.account.job(),
            false => self.account.call(),
        }
    }

    /// Returns the span of a call by this caller.
    pub fn span(&self) -> Span {
        Span::call(&self.trace, &self.client, self.lasting.then_some(self.session.id))
    }

    /// Returns the span of a meta-tool's call.
    pub fn meta_span(&self, name: &'static str) -> Span {
        let span = self.span();
        span.of_tool(name);
        span
    }
}

/// One request of a client, as the gateway sees it.
#[derive(Clone, Default)]
pub struct Caller {
    /// The session of the request.
    pub session: Arc<Session>,
    /// The account whose quotas the request uses.
    pub account: Arc<Account>,
    /// Whether it belongs to work that already has its place in the quotas.
    pub is_admitted: bool,
    /// The client's name, for the log.
    pub client: Arc<str>,
    /// Cancelled when the client cancels the request or leaves.
    pub cancel: CancellationToken,
    /// Receives progress, if the client asked for it.
    pub progress: Option<mpsc::Sender<Value>>,
    /// Receives the progress of Nonet's own work for a caller.
    pub sink: Option<ProgressSink>,
    /// Whether the session lasts beyond this request.
    pub lasting: bool,
    /// The bearer token of the request, if it came with one of the configuration.
    pub token: Option<KnownToken>,
    /// The person who signed in, as the token of the request describes them.
    pub person: Option<Arc<Person>>,
    /// Whether its client shows user interfaces, and the configuration gives it tools that have some.
    pub shows_ui: bool,
    /// Whether it is a client of this machine's user, over stdio or the socket of the shared gateway.
    pub local: bool,
    /// The channel for questions from servers and from Nonet while the request is open.
    pub asker: Option<ClientChannel>,
    /// Whether Nonet must not ask its own questions through this caller: nobody waits, or many calls run at
    /// the same time.
    pub unasked: bool,
    /// Whether answers in a chat do not approve its calls, because nobody reads the chat. The live page,
    /// `nonet approve` or a webhook decides.
    pub approved_elsewhere: bool,
    /// `_meta` to pass on to servers.
    pub meta: Map<String, Value>,
    /// The client's limits.
    pub limits: ClientLimits,
    /// When the client accepts tasks.
    pub as_task: TaskMode,
    /// The parent of its spans.
    pub trace: trace::Parent,
    /// The apps around its calls, the outermost first.
    pub within: Vec<Arc<str>>,
    /// The user's answers about the calls of the run that it belongs to, if it belongs to one.
    pub run: Option<Arc<RunGrants>>,
}
