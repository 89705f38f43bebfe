//! The waiting room: the questions in this process that wait for an answer, by whichever channel the answer
//! comes. Each has an end; those that a client comes back for have a token and an owner as well. Questions
//! that outlive the process are in the store.

#[cfg(test)]
mod tests;

use std::{
    any::Any,
    collections::BTreeMap,
    ops::RangeInclusive,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use nonet_api::question::{PageAction, PageAnswer, PageQuestion};
use nonet_parts::{approvals::AnswerError, cluster::Cluster, jobs::JobOwner};
use nonet_schema::Schema;
use nonet_servers::downstream::{ClientChannel, InputReplies, InputRequests};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

/// How long a server's question waits for a client that can come back for it.
pub const PARKED_FOR: Duration = Duration::from_secs(600);
/// How long a server's question waits on the page at most: longer than its call.
const ON_PAGE_FOR: Duration = Duration::from_secs(24 * 3_600);
/// The maximum number of parked requests of a profile.
pub const MAX_PARKED: usize = 1_000;
/// How many bytes of questions the chats of one account may have; beyond that, or beyond its quota, its
/// oldest question is dropped.
pub const MAX_CHAT_BYTES: usize = 8 << 20;

/// The questions that wait. `C` is a question in a chat.
#[derive(Debug)]
pub struct WaitingRoom<C> {
    /// The questions of each channel, oldest first.
    waiting: Mutex<BTreeMap<QuestionKey, PendingQuestion<C>>>,
    next: AtomicU64,
    /// Signals a question for the next request of a session.
    posted: Notify,
    /// The other replicas, if there are any.
    pub cluster: Option<Arc<Cluster>>,
}

/// The channel of a question, its session if another request of the session can bring it to the client (else
/// 0), and its number.
type QuestionKey = (ChannelKind, u64, u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ChannelKind {
    Chat,
    Page,
    Task,
    Repeat,
}

impl ChannelKind {
    /// Returns the keys of its questions.
    fn keys(self) -> RangeInclusive<QuestionKey> {
        (self, 0, 0)..=(self, u64::MAX, u64::MAX)
    }
}

/// A question that waits.
#[derive(Debug)]
pub struct PendingQuestion<C> {
    /// The token by which its client gets the answer, or comes back with it; empty if the client knows none.
    pub token: String,
    /// Who asked, and whose quotas the question counts against if its channel has any.
    pub owner: JobOwner,
    /// When it was asked.
    pub since: Instant,
    /// When it expires.
    pub until: Instant,
    channel: QuestionChannel<C>,
}

/// The way by which an answer comes, and what goes on with the answer.
#[derive(Debug)]
enum QuestionChannel<C> {
    /// The chat of its client, the page or the shell. With its size in bytes, and whether it is an approval.
    Chat(C, usize, bool),
    /// The live page, during a call of this tool that its user makes.
    Page(String, ServerQuestion),
    /// Another request of the session of a call that goes on as a task, or the task itself.
    Task { call: u64, by_task: bool, asked: ServerQuestion },
    /// The same request, which its client repeats with the answers: what identifies it, and the request in
    /// flight.
    Repeat(String, Box<dyn Any + Send>, ServerQuestion),
}

/// Requests of a server, which waits for the replies. Dropping them declines them.
#[derive(Debug)]
pub struct ServerQuestion {
    /// The requests without a reply.
    pub requests: InputRequests,
    replies: InputReplies,
    /// Takes the replies.
    pub reply: oneshot::Sender<InputReplies>,
}

impl ServerQuestion {
    /// Creates a question without replies.
    pub fn new(requests: InputRequests, reply: oneshot::Sender<InputReplies>) -> Self {
        Self { requests, replies: InputReplies::new(), reply }
    }

    /// Gives the server the answers that `given` has under the keys of the requests. The others are declined.
    pub fn answer(mut self, given: impl Fn(&str) -> Option<Value>) {
        self.take(given);
        let _ = self.reply.send(self.replies);
    }

    fn take(&mut self, given: impl Fn(&str) -> Option<Value>) {
        let replies = &mut self.replies;
        self.requests.retain(|key, _| {
            let answer = given(key).map(|answer| replies.insert(key.clone(), Ok(answer)));
            answer.is_none()
        });
    }
}

impl<C> PendingQuestion<C> {
    fn is_open(&self) -> bool {
        let is_awaited = match &self.channel {
            QuestionChannel::Page(_, asked) | QuestionChannel::Task { asked, .. } => !asked.reply.is_closed(),
            // A parked request goes on even if its server no longer waits.
            QuestionChannel::Chat(..) | QuestionChannel::Repeat(..) => true,
        };
        is_awaited && self.until > Instant::now()
    }

    /// Returns what a server asks for a call that goes on as a task.
    fn of_call(&mut self, wanted: u64) -> Option<&mut ServerQuestion> {
        match &mut self.channel {
            QuestionChannel::Task { call, asked, .. } if *call == wanted => Some(asked),
            _ => None,
        }
    }
}

impl<C> WaitingRoom<C> {
    /// Creates an empty room. In a cluster, a token names the replica of its question.
    pub fn new(cluster: Option<Arc<Cluster>>) -> Self {
        let (waiting, next, posted) = Default::default();
        Self { waiting, next, posted, cluster }
    }

    /// Returns a new token that begins with `prefix`.
    pub fn token(&self, prefix: &str) -> String {
        let token = format!("{prefix}{}", uuid::Uuid::new_v4().simple());
        self.cluster.as_ref().map_or_else(|| token.clone(), |cluster| cluster.handle(&token))
    }

    /// Adds a question. Returns its key.
    fn put(
        &self,
        token: String,
        owner: JobOwner,
        lasts: Duration,
        channel: QuestionChannel<C>,
    ) -> QuestionKey {
        let kind = match channel {
            QuestionChannel::Chat(..) => ChannelKind::Chat,
            QuestionChannel::Page(..) => ChannelKind::Page,
            QuestionChannel::Task { .. } => ChannelKind::Task,
            QuestionChannel::Repeat(..) => ChannelKind::Repeat,
        };
        let session = owner.session.filter(|_| kind == ChannelKind::Task).unwrap_or_default();
        let (key, since) = ((kind, session, self.next.fetch_add(1, Ordering::Relaxed)), Instant::now());
        let question = PendingQuestion { token, owner, since, until: since + lasts, channel };
        let mut waiting = self.waiting.lock();
        // A parked request is dropped by its own timer.
        waiting.retain(|(kind, ..), one| one.is_open() || *kind == ChannelKind::Repeat);
        waiting.insert(key, question);
        key
    }

    /// Takes the oldest question of a channel that fits.
    fn take_first(
        &self,
        kind: ChannelKind,
        fits: impl Fn(&PendingQuestion<C>) -> bool,
    ) -> Option<PendingQuestion<C>> {
        let mut waiting = self.waiting.lock();
        let key = *waiting.range(kind.keys()).find(|(_, one)| one.is_open() && fits(one))?.0;
        waiting.remove(&key)
    }
}

/// Questions in chats.
impl<C> WaitingRoom<C> {
    /// Adds a question in a chat, in place of its account's oldest ones beyond the quota. What the user has
    /// approved (`is_approval`) has a quota of its own, so that later questions do not cost an approval.
    pub fn put_chat(
        &self,
        token: String,
        owner: JobOwner,
        lasts: Duration,
        question: C,
        (bytes, is_approval): (usize, bool),
    ) {
        let account = owner.account.clone();
        let new = self.put(token, owner, lasts, QuestionChannel::Chat(question, bytes, is_approval));
        let mut waiting = self.waiting.lock();
        let own = waiting.range(ChannelKind::Chat.keys()).filter_map(|(key, one)| match one.channel {
            QuestionChannel::Chat(_, bytes, of) if of == is_approval && one.owner.account == account => {
                Some((*key, bytes))
            }
            _ => None,
        });
        let own: Vec<(QuestionKey, usize)> = own.collect();
        let (mut count, mut whole) = (own.len(), own.iter().map(|(_, bytes)| bytes).sum::<usize>());
        for (oldest, bytes) in own.into_iter().filter(|(one, _)| *one != new) {
            if count <= account.quotas().questions && whole <= MAX_CHAT_BYTES {
                break;
            }
            waiting.remove(&oldest);
            (count, whole) = (count - 1, whole - bytes);
        }
    }

    /// Returns what `read` makes of each open question in a chat, oldest first.
    pub fn chats<R>(&self, read: impl Fn(&PendingQuestion<C>, &C) -> Option<R>) -> Vec<R> {
        let waiting = self.waiting.lock();
        let open = waiting.range(ChannelKind::Chat.keys()).filter(|(_, one)| one.is_open());
        let read = open.filter_map(|(_, one)| match &one.channel {
            QuestionChannel::Chat(question, ..) => read(one, question),
            _ => None,
        });
        read.collect()
    }

    /// Takes the oldest question in a chat that fits.
    pub fn take_chat(&self, fits: impl Fn(&str, &C) -> bool) -> Option<C> {
        let taken = self.take_first(ChannelKind::Chat, |one| match &one.channel {
            QuestionChannel::Chat(question, ..) => fits(&one.token, question),
            _ => false,
        });
        match taken?.channel {
            QuestionChannel::Chat(question, ..) => Some(question),
            _ => None,
        }
    }
}

/// Questions of servers on the page.
impl<C> WaitingRoom<C> {
    /// Asks the user of the page during a call of `tool`. The replies arrive where the question says.
    pub fn ask_on_page(&self, tool: &str, asked: ServerQuestion) {
        let channel = QuestionChannel::Page(tool.into(), asked);
        self.put(String::new(), JobOwner::default(), ON_PAGE_FOR, channel);
    }

    /// Returns the open questions on the page, oldest first.
    pub fn on_page(&self) -> Vec<PageQuestion> {
        let waiting = self.waiting.lock();
        let open = waiting.range(ChannelKind::Page.keys()).filter(|(_, one)| one.is_open());
        let shown = open.filter_map(|(&(_, _, id), one)| {
            let QuestionChannel::Page(tool, asked) = &one.channel else { return None };
            let params = &asked.requests.values().next()?["params"];
            Some(PageQuestion {
                id,
                tool: tool.clone(),
                age_s: one.since.elapsed().as_secs(),
                message: params["message"].clone(),
                url: params.get("url").filter(|_| params["mode"] == "url").cloned(),
                form: params.get("requestedSchema").cloned(),
            })
        });
        shown.collect()
    }

    /// Passes an answer of the page's user on. An answer that does not fit the form leaves the question open.
    ///
    /// # Errors
    ///
    /// If the question is no longer open, or the answer does not fit its form.
    pub fn answer_on_page(&self, id: u64, given: PageAnswer) -> Result<(), AnswerError> {
        let PageAnswer { action, content } = given;
        let key = (ChannelKind::Page, 0, id);
        let form = match self.waiting.lock().get(&key).filter(|one| one.is_open()).map(|one| &one.channel) {
            Some(QuestionChannel::Page(_, asked)) => {
                asked.requests.values().find_map(|it| it["params"].get("requestedSchema")).cloned()
            }
            _ => return Err(AnswerError::Unknown),
        };
        let mut answer = json!({ "action": action });
        if action == PageAction::Accept
            && let Some(form) = form
        {
            let content = Value::Object(content.unwrap_or_default());
            let fit = Schema::new(form).read(content);
            let fit = fit.map_err(|misfit| AnswerError::Unfit(misfit.faults.join("; ")))?;
            answer["content"] = Value::Object(fit.params);
        }
        // Of two answers the first counts.
        let taken = self.waiting.lock().remove(&key);
        let Some(QuestionChannel::Page(_, asked)) = taken.map(|one| one.channel) else {
            return Err(AnswerError::Unknown);
        };
        asked.answer(|_| Some(answer.clone()));
        Ok(())
    }
}

/// Questions of calls that go on as tasks. They wait until their client comes back: with another request of
/// its session, or by its task.
impl<C: Send + 'static> WaitingRoom<C> {
    /// Adds a question of a call of a session.
    pub fn post(self: &Arc<Self>, session: u64, call: u64, by_task: bool, asked: ServerQuestion) {
        let owner = JobOwner { session: Some(session), ..JobOwner::default() };
        let channel = QuestionChannel::Task { call, by_task, asked };
        let key = self.put(String::new(), owner, PARKED_FOR, channel);
        self.expire(key, CancellationToken::new());
        self.posted.notify_waiters();
    }

    /// Waits for a question that another request of the session may bring to the client, and takes it.
    pub async fn next(&self, asker: &ClientChannel, owner: &JobOwner) -> ServerQuestion {
        loop {
            let posted = self.posted.notified();
            tokio::pin!(posted);
            // Before the look, so that nothing is missed.
            posted.as_mut().enable();
            if let Some(taken) = self.take(asker, owner) {
                return taken;
            }
            posted.await;
        }
    }

    /// Takes the oldest question that another request of the session may bring to the client, whose channel
    /// is `asker`. A request that would have to be parked for that leaves it if there is no place.
    pub fn take(&self, asker: &ClientChannel, owner: &JobOwner) -> Option<ServerQuestion> {
        let can = |request: &Value| {
            asker.can_answer(request["method"].as_str().unwrap_or_default(), &request["params"])
        };
        let fits = |one: &PendingQuestion<C>| match &one.channel {
            QuestionChannel::Task { by_task: false, asked, .. } => asked.requests.values().all(can),
            _ => false,
        };
        let mut waiting = self.waiting.lock();
        let of_session = (ChannelKind::Task, asker.session, 0)..=(ChannelKind::Task, asker.session, u64::MAX);
        let key = *waiting.range(of_session).find(|(_, one)| one.is_open() && fits(one))?.0;
        if asker.parks && !has_place(&waiting, owner) {
            return None;
        }
        match waiting.remove(&key)?.channel {
            QuestionChannel::Task { asked, .. } => Some(asked),
            _ => None,
        }
    }

    /// Returns the unanswered requests of a call, under keys that are unique for the call.
    pub fn of_call(&self, call: u64) -> InputRequests {
        let mut waiting = self.waiting.lock();
        let open = waiting.range_mut(ChannelKind::Task.keys()).filter(|(_, one)| one.is_open());
        let own = open.filter_map(|((_, _, number), one)| Some((number, one.of_call(call)?)));
        let keyed = own.flat_map(|(number, asked)| {
            asked.requests.iter().map(move |(key, request)| (format!("{number}-{key}"), request.clone()))
        });
        keyed.collect()
    }

    /// Takes the answers to requests of a call. Once all requests of a server are answered, the server gets
    /// the answers.
    pub fn answer_of_call(&self, call: u64, given: &BTreeMap<String, Value>) {
        let mut waiting = self.waiting.lock();
        let whole = waiting.extract_if(ChannelKind::Task.keys(), |(_, _, number), one| {
            one.of_call(call).is_some_and(|asked| {
                asked.take(|key| given.get(&format!("{number}-{key}")).cloned());
                asked.requests.is_empty()
            })
        });
        for (_, one) in whole {
            if let QuestionChannel::Task { asked, .. } = one.channel {
                asked.answer(|_| None);
            }
        }
    }

    /// Drops a server's question once its time is over or `end` is cancelled, which declines it.
    fn expire(self: &Arc<Self>, key: QuestionKey, end: CancellationToken) {
        let room = Arc::downgrade(self);
        tokio::spawn(async move {
            let _ = tokio::time::timeout(PARKED_FOR, end.cancelled()).await;
            let expired = room.upgrade().and_then(|room| room.waiting.lock().remove(&key));
            drop(expired);
        });
    }
}

/// Requests that wait for their clients' answers.
impl<C: Send + 'static> WaitingRoom<C> {
    /// Whether one more request of an owner may wait for its client.
    pub fn has_place(&self, owner: &JobOwner) -> bool {
        has_place(&self.waiting.lock(), owner)
    }

    /// Parks a request, identified by `what`, until its client repeats it with the answers. It ends after a
    /// while, and with its clients (`end`).
    pub fn park(
        self: &Arc<Self>,
        token: String,
        owner: JobOwner,
        (what, request): (String, Box<dyn Any + Send>),
        asked: ServerQuestion,
        end: CancellationToken,
    ) {
        let key = self.put(token, owner, PARKED_FOR, QuestionChannel::Repeat(what, request, asked));
        self.expire(key, end);
    }

    /// Takes the parked request that a client repeats, with the question that it waits for.
    pub fn resume(
        &self,
        token: &str,
        owner: &JobOwner,
        repeated: &str,
    ) -> Option<(Box<dyn Any + Send>, ServerQuestion)> {
        let fits = |one: &PendingQuestion<C>| match &one.channel {
            QuestionChannel::Repeat(what, ..) => {
                one.token == token && one.owner == *owner && what == repeated
            }
            _ => false,
        };
        let QuestionChannel::Repeat(_, request, asked) = self.take_first(ChannelKind::Repeat, fits)?.channel
        else {
            return None;
        };
        Some((request, asked))
    }
}

/// Whether one more request of an owner may wait for its client: within the account's quota, and within the
/// limit of the profile.
fn has_place<C>(waiting: &BTreeMap<QuestionKey, PendingQuestion<C>>, owner: &JobOwner) -> bool {
    let parked = waiting.range(ChannelKind::Repeat.keys()).map(|(_, one)| &one.owner);
    let of_profile = parked.filter(|one| one.owner.profile() == owner.owner.profile());
    let (all, own) =
        of_profile.fold((0, 0), |(all, own), one| (all + 1, own + usize::from(one.account == owner.account)));
    own < owner.account.quotas().parked && all < MAX_PARKED
}
