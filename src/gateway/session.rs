//! One client's session: who it is, what it may see, what it has yet to be told.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{learn, prompts_resources::Links};
use crate::{
    config::{ClientLimits, ServerSettings},
    downstream::{Asker, Connection, ELICIT},
    jobs::Owner,
    results::json_len,
    trace::{self, Span},
};

/// How many notices wait for one session; the oldest go first.
const MAX_NOTICES: usize = 50;
/// How many bytes of notices go out with one answer; the rest goes with the next.
const NOTICES_BYTES: usize = 8_000;

#[derive(Debug, Default)]
struct Notices {
    waiting: VecDeque<Value>,
    /// How many had to make room since the last answer.
    lost: usize,
}

/// What a client's requests have in common.
#[derive(Debug, Default)]
pub struct Session {
    /// Its number in this process.
    pub id: u64,
    /// The profile that it was given, if any.
    pub profile: Option<String>,
    client: OnceLock<Box<str>>,
    notices: Mutex<Notices>,
    /// Tools that the user allowed for the rest of the session.
    approved: Mutex<HashSet<Arc<str>>>,
    /// Tools that it loaded by name: they rank higher for the rest of the session.
    loaded: Mutex<HashSet<Arc<str>>>,
    /// Its last searches, whose outcome is awaited.
    searches: Mutex<VecDeque<learn::Search>>,
    /// Servers that were started for it alone; they end with it.
    own: Mutex<HashMap<Arc<str>, OwnConnection>>,
    /// Whose the links in its results are.
    pub(super) links: Links,
}

/// A connection that is retired with its session.
#[derive(Debug)]
struct OwnConnection(Arc<Connection>);

impl Drop for OwnConnection {
    fn drop(&mut self) {
        self.0.retired().cancel();
    }
}

impl Session {
    /// A new session under a profile.
    pub fn new(profile: Option<String>) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Arc::new(Self { id: NEXT.fetch_add(1, Ordering::Relaxed), profile, ..Self::default() })
    }

    /// Tells the session something with its next answer.
    pub fn notify(&self, notice: Value) {
        let mut notices = self.notices.lock();
        if notices.waiting.len() == MAX_NOTICES {
            notices.waiting.pop_front();
            notices.lost += 1;
        }
        notices.waiting.push_back(notice);
    }

    /// The session's own connection to a server, which `begin` starts if there is none that is reached by these settings.
    pub(super) fn connection(
        &self,
        server: &Arc<str>,
        settings: &ServerSettings,
        begin: impl FnOnce() -> Arc<Connection>,
    ) -> Arc<Connection> {
        let mut own = self.own.lock();
        if let Some(OwnConnection(connection)) = own.get(server)
            && connection.is_reached_by(settings)
        {
            return connection.clone();
        }
        let connection = begin();
        own.insert(server.clone(), OwnConnection(connection.clone()));
        connection
    }

    /// Notes which client it is, by the name that it gives of itself.
    pub fn is_of(&self, client: &str) {
        let _ = self.client.set(client.into());
    }

    /// The client, once it has called.
    pub fn client(&self) -> Option<&str> {
        self.client.get().map(|client| &**client)
    }

    /// How many notices wait.
    pub fn waiting_notices(&self) -> usize {
        self.notices.lock().waiting.len()
    }

    /// Takes back that a task has ended: its result is in the client's hands.
    pub fn delivered(&self, task: &str) {
        self.notices.lock().waiting.retain(|notice| notice["task_id"] != task);
    }

    /// Adds notices to an answer, as a last text block: `own` of this very call, then what the session has yet to be told,
    /// each once, in order. What would make the block too long waits for the next answer.
    pub fn attach_notices(&self, answer: &mut Value, own: Vec<Value>) {
        let mut notices = self.notices.lock();
        if notices.waiting.is_empty() && own.is_empty() {
            return;
        }
        let Some(content) = answer.get_mut("content").and_then(Value::as_array_mut) else { return };
        let mut all = own;
        if notices.lost > 0 {
            all.push(json!({ "kind": "notices_lost", "count": std::mem::take(&mut notices.lost) }));
        }
        let mut left = NOTICES_BYTES;
        while let Some(next) = notices.waiting.front() {
            let size = json_len(next);
            if size > left && !all.is_empty() {
                break;
            }
            left = left.saturating_sub(size);
            all.extend(notices.waiting.pop_front());
        }
        content.push(json!({ "type": "text", "text": json!({ "notices": all }).to_string() }));
    }

    /// Remembers that the user allows every call of this tool for the rest of the session.
    pub(super) fn approve(&self, tool: &Arc<str>) {
        self.approved.lock().insert(tool.clone());
    }

    /// Whether the user has allowed every call of this tool.
    pub(super) fn approves(&self, tool: &str) -> bool {
        self.approved.lock().contains(tool)
    }

    /// Remembers that these tools were loaded.
    pub fn load(&self, tools: impl IntoIterator<Item = Arc<str>>) {
        self.loaded.lock().extend(tools);
    }

    /// Remembers a search until it is known what it led to.
    pub(super) fn searched(&self, search: learn::Search) {
        let mut searches = self.searches.lock();
        if searches.len() == learn::SEARCHES {
            searches.pop_front();
        }
        searches.push_back(search);
    }

    /// What a call of this tool says of the last search that found it; counted once.
    pub(super) fn led_to(&self, tool: &str) -> Option<learn::Led> {
        self.searches.lock().iter_mut().rev().find_map(|search| search.led_to(tool))
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
    pub(super) fn forms(&self) -> Option<&Asker> {
        let form = json!({});
        self.asker.as_ref().filter(|asker| !self.unasked && asker.can_answer(ELICIT, &form))
    }

    /// Whose the jobs of this caller are.
    pub fn owner(&self) -> Owner {
        Owner {
            session: self.lasting.then_some(self.session.id),
            profile: self.session.profile.clone(),
            local: self.local,
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
    /// Who sends it, for the log.
    pub client: String,
    /// Cancelled when the client cancels the request or leaves.
    pub cancel: CancellationToken,
    /// Where progress goes, if the client asked for it.
    pub progress: Option<mpsc::Sender<Value>>,
    /// Whether the session lasts beyond this request.
    pub lasting: bool,
    /// Whether it is a client of the user of this machine, over stdio or the socket of the shared gateway.
    pub local: bool,
    /// How it can be asked while the request is open, by servers and by Nonet itself.
    pub asker: Option<Asker>,
    /// Whether Nonet asks nothing of its own by it: nobody waits, or much runs at the same time.
    pub unasked: bool,
    /// `_meta` that is passed on to servers.
    pub meta: Map<String, Value>,
    /// What its client stands.
    pub limits: ClientLimits,
    /// Whether its client takes tasks.
    pub as_task: AsTask,
    /// What its spans hang under.
    pub trace: trace::Parent,
}
