//! One client's session: who it is, what it may see, what it has yet to be told.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{mail::Mail, mailbox::Mailbox, prompts_resources::Links};
use crate::{
    catalog::{GATEWAY, Kind, Tool},
    config::{ClientLimits, Globs, KnownToken, ServerSettings},
    downstream::{ClientChannel, Connection, ELICITATION, QuestionTurns},
    jobs::JobOwner,
    learning::RecentSearches,
    memory::Worklist,
    quotas::{Account, Admission, Exhausted},
    trace::{self, Span},
};

/// What a client's requests have in common.
#[derive(Debug, Default)]
pub struct Session {
    /// Its number in this process.
    pub id: u64,
    /// The profile that it was given, if any.
    pub profile: Option<String>,
    /// Whose quotas it counts against.
    pub account: Arc<Account>,
    client: OnceLock<Box<str>>,
    /// What it has yet to be told.
    pub(super) mailbox: Mailbox,
    /// Tools that the user allowed for the rest of the session.
    approved: Mutex<HashMap<Arc<str>, Arc<str>>>,
    /// Tools that it loaded by name: they rank higher for the rest of the session.
    loaded: Mutex<HashSet<Arc<str>>>,
    /// Servers whose instructions it was given.
    instructed: Mutex<HashSet<Arc<str>>>,
    /// Its last searches, whose outcome may still come.
    pub(super) searches: RecentSearches,
    /// Its goal and tasks, where they end with it.
    pub(super) work: Worklist,
    /// Servers that were started for it alone; they end with it.
    own: Mutex<HashMap<Arc<str>, OwnConnection>>,
    /// Ends the servers that it has added, when it ends.
    added: OnceLock<DropGuard>,
    /// Whose the links in its results are.
    pub(super) links: Links,
    /// Grows whenever something changes that another replica would have to know.
    changes: AtomicU64,
    /// Shared by its requests in flight.
    pub busy: Arc<()>,
    /// The questions to its user, which take turns.
    pub turns: Arc<QuestionTurns>,
    /// Whether nobody is there to be asked: its calls run by themselves.
    pub(super) unattended: bool,
    /// The app that makes its calls, if it is not the client itself.
    pub(super) app: Option<AppScope>,
}

/// What a session takes along to another replica.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct CarriedSession {
    /// Tools that the user allowed for the rest of the session, with their definitions.
    #[serde(default)]
    approved: Vec<(Arc<str>, Arc<str>)>,
    /// Tools that it loaded by name.
    #[serde(default)]
    loaded: Vec<Arc<str>>,
    /// Servers whose instructions it was given.
    #[serde(default)]
    instructed: Vec<Arc<str>>,
    /// What it has yet to be told and the store does not keep.
    #[serde(default)]
    notices: Vec<Value>,
}

/// What an app over a model may call in the name of a client.
#[derive(Debug)]
pub(super) struct AppScope {
    /// The app's id.
    pub id: String,
    /// The tools that it may call, by full name.
    pub allowed: Globs,
    /// The session of the client.
    pub of: Arc<Session>,
}

/// Whether a tool is the one that reads on in kept results: an app that calls tools needs it.
pub(super) fn reads_on(tool: &Tool) -> bool {
    &*tool.server == GATEWAY && &*tool.name == "fetch_result"
}

impl AppScope {
    /// The rule that keeps the app from a tool. Of Nonet's own tools it may use those that only read: the others run
    /// things of their own or outlast the app. Skills and other apps are not for it.
    pub fn denies(&self, tool: &Tool) -> Option<String> {
        let is_harmless = tool.is_of_server() || tool.kind == Kind::Tool && tool.read_only;
        let allowed =
            is_harmless && self.allowed.matches(&tool.full) || !self.allowed.is_empty() && reads_on(tool);
        (!allowed).then(|| self.rule())
    }

    /// The key that says what it may call.
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
    /// A new session under a profile.
    pub fn new(profile: Option<String>) -> Arc<Self> {
        Arc::new(Self { id: next_id(), profile, ..Self::default() })
    }

    /// A new session under a profile. What it is not told of lasting notices is told the next session of its owner.
    pub(super) fn with_mail(profile: Option<String>, account: Arc<Account>, mail: Arc<Mail>) -> Arc<Self> {
        let mailbox = Mailbox::with_mail(mail, profile.as_deref().unwrap_or_default());
        Arc::new(Self { id: next_id(), profile, account, mailbox, ..Self::default() })
    }

    /// Where its lasting notices go.
    pub(super) fn mail(&self) -> Option<&Arc<Mail>> {
        self.mailbox.mail()
    }

    /// Whose session it is, as the store knows owners: its profile, or an empty string without one.
    pub(super) fn owner(&self) -> &str {
        self.profile.as_deref().unwrap_or_default()
    }

    /// A session for calls that run by themselves under a profile.
    pub(super) fn unattended(profile: Option<String>) -> Arc<Self> {
        Arc::new(Self { id: next_id(), profile, unattended: true, ..Self::default() })
    }

    /// A session in which an app calls tools for a client: those that its rules and the client's profile allow.
    pub(super) fn of_app(id: &str, allowed: Globs, of: &Arc<Self>) -> Arc<Self> {
        let app = Some(AppScope { id: id.into(), allowed, of: of.clone() });
        let (profile, account) = (of.profile.clone(), of.account.clone());
        Arc::new(Self { id: of.id, profile, account, app, ..Self::default() })
    }

    /// The session of the client itself.
    pub(super) fn of_client(&self) -> &Self {
        self.app.as_ref().map_or(self, |app| app.of.of_client())
    }

    /// Tells the session something with its next answer.
    pub fn notify(&self, notice: Value) {
        if let (Some(id), Some(mail)) = (self.mailbox.post(notice), self.mail()) {
            mail.returned(self.owner(), vec![id]);
        }
    }

    /// The session's own connection to a server, which `begin` starts if there is none that is reached by these settings.
    pub(super) fn connection(
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

    /// Has a guard dropped when the session ends. The first one counts.
    pub(super) fn until_end(&self, guard: impl FnOnce() -> DropGuard) {
        self.of_client().added.get_or_init(guard);
    }

    /// Notes which client it is, by the name that it gives of itself.
    pub fn is_of(&self, client: &str) {
        let _ = self.client.set(client.into());
    }

    /// The client, once it has called.
    pub fn client(&self) -> Option<&str> {
        self.client.get().map(|client| &**client)
    }

    /// Remembers that the user allows every call of a tool with this definition for the rest of the session.
    pub(super) fn approve(&self, tool: &Arc<str>, hash: &Arc<str>) {
        self.approved.lock().insert(tool.clone(), hash.clone());
        self.has_changed();
    }

    /// Whether the user has allowed every call of a tool with this definition.
    pub(super) fn approves(&self, tool: &str, hash: &str) -> bool {
        self.approved.lock().get(tool).is_some_and(|approved| **approved == *hash)
    }

    /// Remembers that these tools were loaded.
    pub fn load(&self, tools: impl IntoIterator<Item = Arc<str>>) {
        let mut loaded = self.loaded.lock();
        let before = loaded.len();
        loaded.extend(tools);
        if loaded.len() > before {
            self.has_changed();
        }
    }

    /// Remembers that the session gets a server's instructions. Returns whether it did not have them before.
    pub(super) fn instruct(&self, server: &Arc<str>) -> bool {
        let is_new = self.instructed.lock().insert(server.clone());
        if is_new {
            self.has_changed();
        }
        is_new
    }

    /// Notes that something has changed that another replica would have to know.
    pub fn has_changed(&self) {
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    /// A number that grows with each such change.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Whether a request of it is in flight.
    pub fn is_busy(&self) -> bool {
        Arc::strong_count(&self.busy) > 1
    }

    /// What another replica needs to go on with it; with the notices that wait, if it ends here.
    pub fn carried(&self, ends: bool) -> CarriedSession {
        let approved = self.approved.lock().iter().map(|(tool, hash)| (tool.clone(), hash.clone())).collect();
        let loaded = self.loaded();
        let instructed = self.instructed.lock().iter().cloned().collect();
        let notices = if ends { self.mailbox.unkept() } else { Vec::new() };
        CarriedSession { approved, loaded, instructed, notices }
    }

    /// Goes on with a session of another replica.
    pub fn carry_on(&self, carried: CarriedSession) {
        self.approved.lock().extend(carried.approved);
        self.loaded.lock().extend(carried.loaded);
        self.instructed.lock().extend(carried.instructed);
        for notice in carried.notices {
            self.notify(notice);
        }
    }

    /// The tools that were loaded.
    pub fn loaded(&self) -> Vec<Arc<str>> {
        self.loaded.lock().iter().cloned().collect()
    }
}

/// Whether a client takes a task of the protocol for a call that takes long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AsTask {
    /// It gets a handle in a result instead.
    #[default]
    Never,
    /// For a call that outlives the soft deadline (tasks extension, 2026-07-28).
    IfSlow,
    /// At once: it asked for it (2025-11-25).
    AtOnce,
}

impl Caller {
    /// The way to the caller's user by a form, if there is one.
    pub(super) fn forms(&self) -> Option<&ClientChannel> {
        let form = json!({});
        self.asker.as_ref().filter(|asker| !self.unasked && asker.can_answer(ELICITATION, &form))
    }

    /// Whose the jobs of this caller are.
    pub fn owner(&self) -> JobOwner {
        JobOwner {
            session: self.lasting.then_some(self.session.id),
            profile: self.session.profile.clone(),
            local: self.local,
            account: self.account.clone(),
        }
    }

    /// Takes a place for new work of this caller, before any of it is done: of a call that may become a job later, or of a job
    /// from the beginning, as a `launch` is. Work inside of other work has the place of that.
    pub(super) fn admit(&self, launch: bool) -> Result<Admission, Exhausted> {
        match launch || self.as_task == AsTask::AtOnce {
            _ if self.is_admitted => Ok(Admission::default()),
            true => self.account.job(),
            false => self.account.call(),
        }
    }

    /// The span of a call that this caller makes.
    pub fn span(&self) -> Span {
        Span::call(&self.trace, &self.client, self.lasting.then_some(self.session.id))
    }

    /// The same for a meta-tool.
    pub fn meta_span(&self, name: &'static str) -> Span {
        let span = self.span();
        span.of_tool(name);
        span
    }
}

/// One request of a client, as the gateway sees it.
#[derive(Clone, Default)]
pub struct Caller {
    /// Whose it is.
    pub session: Arc<Session>,
    /// Whose quotas it counts against.
    pub account: Arc<Account>,
    /// Whether it is part of work that has its place in the quotas.
    pub is_admitted: bool,
    /// Who sends it, for the log.
    pub client: String,
    /// Cancelled when the client cancels the request or leaves.
    pub cancel: CancellationToken,
    /// Where progress goes, if the client asked for it.
    pub progress: Option<mpsc::Sender<Value>>,
    /// Whether the session lasts beyond this request.
    pub lasting: bool,
    /// The bearer token of the request, if it came with one.
    pub token: Option<KnownToken>,
    /// Whether it is a client of the user of this machine, over stdio or the socket of the shared gateway.
    pub local: bool,
    /// How it can be asked while the request is open, by servers and by Nonet itself.
    pub asker: Option<ClientChannel>,
    /// Whether Nonet asks nothing of its own by it: nobody waits, or much runs at the same time.
    pub unasked: bool,
    /// Whether no answer in a chat approves its calls: nobody reads one. The live page, `nonet approve` or a webhook decide.
    pub approved_elsewhere: bool,
    /// `_meta` that is passed on to servers.
    pub meta: Map<String, Value>,
    /// What its client stands.
    pub limits: ClientLimits,
    /// Whether its client takes tasks.
    pub as_task: AsTask,
    /// What its spans hang under.
    pub trace: trace::Parent,
    /// The apps that its calls are made inside of, the outermost first.
    pub within: Vec<Arc<str>>,
}
