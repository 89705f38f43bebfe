//! Notices that must arrive: kept in the store until an answer has delivered them.
//!
//! A notice for an open session waits in the session's mailbox, and also in the store in case the gateway or
//! the session ends first. A notice without an open session goes out with the next answer to any session of
//! its owner, on any gateway. All writes go through one task, in order, so each notice is delivered once.
//! Clients can also follow notices as they are posted.

mod unwritten;

use std::{
    collections::BTreeSet,
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use nonet_api::notice::Notice;
use nonet_auth::Owner;
use nonet_base::json::set_member;
use nonet_store::{Agenda, NewRecord, Record, RecordKind, RecordQuota, Records, StoreError};
use nonet_text::results::CallResult;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{OnceCell, broadcast, mpsc, oneshot};

use self::unwritten::WriteBacklog;
use crate::{
    mailbox::Letter,
    outward::NoticeDelivery,
    people::People,
    servers::Lifetime,
    session::{Caller, Session},
};

/// How many notices of one owner are kept; the oldest are dropped first.
const MOST_NOTICES: usize = 200;
/// How many writes may wait. Beyond that, a notice for an open session is kept only in memory.
const QUEUE: usize = 1_000;
/// How long an answer waits for the store.
const PATIENCE: Duration = Duration::from_secs(1);
/// How many posted notices wait for a slow follower; the oldest are dropped first.
const FOLLOWED: usize = 64;
/// The id of the record that counts an owner's dropped notices.
const LOST: &str = "lost";

/// The notices that must arrive.
#[derive(Debug)]
pub struct Mail {
    records: Arc<Records>,
    /// Sends notices to people.
    people: Arc<People>,
    outward: NoticeDelivery,
    life: Lifetime,
    /// The owners of notices that no gateway holds.
    waiting: Mutex<BTreeSet<String>>,
    /// Set once the store was asked for waiting notices.
    known: OnceCell<()>,
    writer: OnceLock<mpsc::Sender<WriteJob>>,
    posted: broadcast::Sender<PostedNotice>,
}

/// A notice as it was posted.
#[derive(Clone, Debug)]
struct PostedNotice {
    owner: Arc<str>,
    /// The session that it was posted to; `None` if it was posted to the owner's next session.
    session: Option<u64>,
    notice: Arc<Value>,
}

/// The notices of one session as they are posted.
#[derive(Debug)]
pub struct Follower {
    owner: Arc<str>,
    session: u64,
    posted: broadcast::Receiver<PostedNotice>,
}

impl Follower {
    /// Waits for the next notice. Returns `Some(None)` if notices were dropped because this follower was too
    /// slow, and `None` once the gateway has ended.
    pub async fn next(&mut self) -> Option<Option<Arc<Value>>> {
        loop {
            match self.posted.recv().await {
                Ok(posted) => {
                    let is_mine = posted.session.map_or(posted.owner == self.owner, |id| id == self.session);
                    if is_mine {
                        return Some(Some(posted.notice));
                    }
                }
                Err(broadcast::error::RecvError::Lagged(_)) => return Some(None),
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }
}

/// A job for the writer.
#[derive(Debug)]
enum WriteJob {
    Put(NewRecord, Option<oneshot::Sender<()>>),
    /// Removes delivered notices.
    Remove(String, Vec<String>, Option<oneshot::Sender<()>>),
    /// Releases notices whose session has ended.
    Free(String, Vec<String>),
    /// Claims notices that no gateway holds.
    Claim(String, usize, oneshot::Sender<Vec<Letter>>),
}

impl Mail {
    /// Creates the mail of a gateway, with nothing in it.
    pub fn new(
        records: Arc<Records>,
        people: Arc<People>,
        outward: NoticeDelivery,
        life: Lifetime,
    ) -> Arc<Self> {
        let (waiting, known, writer) = (Mutex::default(), OnceCell::new(), OnceLock::new());
        Arc::new(Self {
            records,
            people,
            outward,
            life,
            waiting,
            known,
            writer,
            posted: broadcast::channel(FOLLOWED).0,
        })
    }

    /// Posts a notice to a session if it is open, else to the next session of its owner.
    pub fn post(&self, owner: &str, session: Option<&Weak<Session>>, notice: Value) {
        self.post_as(uuid::Uuid::new_v4().simple().to_string(), owner, session, notice, None);
    }

    /// Does the same, and returns when the notice is in the store. The notice replaces an undelivered notice
    /// with the same id.
    pub async fn post_for_certain(
        &self,
        id: &str,
        owner: &str,
        session: Option<&Weak<Session>>,
        notice: Value,
    ) {
        self.has_room().await;
        let (done, kept) = oneshot::channel();
        self.post_as(id.into(), owner, session, notice, Some(done));
        // Returns at the latest when the writer ends.
        let _ = kept.await;
    }

    fn post_as(
        &self,
        id: String,
        owner: &str,
        session: Option<&Weak<Session>>,
        notice: Value,
        done: Option<oneshot::Sender<()>>,
    ) {
        self.tell_people(owner, &notice);
        let session = session.and_then(Weak::upgrade).filter(|session| session.owner() == owner);
        let posted = PostedNotice {
            owner: owner.into(),
            session: session.as_ref().map(|session| session.id),
            notice: Arc::new(notice.clone()),
        };
        // Fails if there are no followers.
        let _ = self.posted.send(posted);
        let record = NewRecord {
            owner: owner.into(),
            id: id.clone(),
            held: session.is_some(),
            ..NewRecord::new(RecordKind::Notice, notice.clone())
        };
        let kept = self.write(WriteJob::Put(record, done));
        match session {
            Some(session) => self.hand_over(&session, Letter { notice, kept: kept.then_some(id) }),
            None if kept => drop(self.waiting.lock().insert(owner.into())),
            None => tracing::warn!(owner, %notice, "a notice is lost: too many are waiting to be stored"),
        }
    }

    /// Sends a notice to people too, with the profile and the person of its owner.
    pub fn tell_people(&self, owner: &str, notice: &Value) {
        if owner.is_empty() {
            return self.outward.tell(notice);
        }
        let (owner, mut notice) = (Owner::of(owner), notice.clone());
        if let Some(profile) = owner.profile() {
            set_member(&mut notice, "profile", profile);
        }
        if let Some(key) = owner.person() {
            let name = self.people.name(&owner);
            set_member(&mut notice, "person", name.as_deref().unwrap_or(key));
        }
        self.outward.tell(&notice);
    }

    /// Follows the notices of a session, and those of its owner that go to any session.
    pub fn follow(&self, session: &Session) -> Follower {
        Follower { owner: session.owner().into(), session: session.id, posted: self.posted.subscribe() }
    }

    /// Puts a notice into a session's mailbox. A notice that has to make room goes back to the store.
    fn hand_over(&self, session: &Session, letter: Letter) {
        if let Some(id) = session.mailbox.post(letter) {
            self.returned(session.owner(), vec![id]);
        }
    }

    /// Takes back notices that a session did not deliver before it ended.
    pub fn returned(&self, owner: &str, ids: Vec<String>) {
        if !ids.is_empty() && self.write(WriteJob::Free(owner.into(), ids)) {
            self.waiting.lock().insert(owner.into());
        }
    }

    /// Removes notices that became unnecessary.
    pub fn withdraw(&self, session: &Session, task: &str) {
        let ids = session.mailbox.withdraw(task);
        if !ids.is_empty() {
            self.write(WriteJob::Remove(session.owner().into(), ids, None));
        }
    }

    /// Adds notices to an answer: `own` for this very call, then the notices queued for its session or owner.
    pub async fn deliver(&self, caller: &Caller, answer: &mut CallResult, own: Vec<Value>) {
        let (session, owner) = (&caller.session, caller.session.owner());
        self.read().await;
        let room = session.mailbox.room();
        if room > 0 && self.waiting.lock().contains(owner) {
            for letter in self.claim(owner, room).await {
                self.hand_over(session, letter);
            }
        }
        let told = session.mailbox.attach(answer, own);
        if !told.is_empty() {
            self.has_room().await;
            let (done, removed) = oneshot::channel();
            if self.write(WriteJob::Remove(owner.into(), told, Some(done))) {
                let _ = tokio::time::timeout(PATIENCE, removed).await;
            }
        }
    }

    /// Records which owners have notices in the store.
    pub fn note(&self, agenda: &Agenda) {
        if !agenda.notices.is_empty() {
            self.waiting.lock().extend(agenda.notices.keys().cloned());
        }
    }

    /// Asks the store once, so that the first answer includes earlier notices.
    async fn read(&self) {
        if self.known.initialized() {
            return;
        }
        let read = async || match self.records.agenda(&[]).await {
            Ok(Some(agenda)) => self.note(&agenda),
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, "earlier notices cannot be read"),
        };
        // The next check finds notices that arrive too late.
        let _ = tokio::time::timeout(PATIENCE, self.known.get_or_init(read)).await;
    }

    /// Claims up to `most` notices that no gateway holds.
    async fn claim(&self, owner: &str, most: usize) -> Vec<Letter> {
        let (reply, claimed) = oneshot::channel();
        // Before the store is asked, so that a notice posted meanwhile counts for the next answer.
        self.waiting.lock().remove(owner);
        if !self.write(WriteJob::Claim(owner.into(), most, reply)) {
            self.waiting.lock().insert(owner.into());
            return Vec::new();
        }
        let Ok(claimed) = tokio::time::timeout(PATIENCE, claimed).await else {
            // The writer releases them again.
            self.waiting.lock().insert(owner.into());
            return Vec::new();
        };
        let claimed = claimed.unwrap_or_default();
        if claimed.len() >= most {
            self.waiting.lock().insert(owner.into());
        }
        claimed
    }

    /// Queues a write; `false` if the queue is full.
    fn write(&self, write: WriteJob) -> bool {
        self.writer().try_send(write).is_ok()
    }

    /// Waits until the queue has room.
    async fn has_room(&self) {
        drop(self.writer().reserve().await);
    }

    fn writer(&self) -> &mpsc::Sender<WriteJob> {
        let start = || {
            let (sender, queue) = mpsc::channel(QUEUE);
            self.life.tasks.spawn(keep(self.records.clone(), queue, self.life.clone()));
            sender
        };
        self.writer.get_or_init(start)
    }
}

/// Carries out the writes in order. Writes that are queued when the gateway stops are still carried out.
async fn keep(records: Arc<Records>, mut queue: mpsc::Receiver<WriteJob>, life: Lifetime) {
    let mut unwritten = WriteBacklog::default();
    loop {
        let next = tokio::select! {
            biased;
            next = queue.recv() => next,
            () = life.stop.cancelled() => queue.try_recv().ok(),
        };
        let Some(write) = next else { return };
        let done = match write {
            WriteJob::Put(record, done) => {
                let result = put(&records, record.clone()).await;
                match &result {
                    // An earlier attempt to post the same notice may have failed.
                    Ok(()) => unwritten.remove(&record.owner, &record.id),
                    Err(_) => unwritten.put(record),
                }
                drop(done);
                result
            }
            WriteJob::Remove(owner, ids, done) => {
                let mut result = Ok(());
                for id in ids {
                    unwritten.remove(&owner, &id);
                    result = result.and(records.take(RecordKind::Notice, &owner, &id).await.map(drop));
                }
                if let Some(done) = done {
                    let _ = done.send(());
                }
                result
            }
            WriteJob::Free(owner, ids) => {
                ids.iter().for_each(|id| unwritten.free(&owner, id));
                records.free(RecordKind::Notice, &owner, ids).await
            }
            WriteJob::Claim(owner, most, reply) => {
                let mut letters = unwritten.claim(&owner, most);
                let claimed = records.claim_free(RecordKind::Notice, &owner, most - letters.len()).await;
                let letter = |record: Record| Letter { notice: record.body, kept: Some(record.id) };
                let result = claimed.map(|claimed| letters.extend(claimed.into_iter().map(letter)));
                match reply.send(letters) {
                    Ok(()) => result,
                    // The answer has gone out without these notices.
                    Err(late) => {
                        let late: Vec<String> = late.into_iter().filter_map(|letter| letter.kept).collect();
                        late.iter().for_each(|id| unwritten.free(&owner, id));
                        result.and(records.free(RecordKind::Notice, &owner, late).await)
                    }
                }
            }
        };
        if let Err(error) = done {
            tracing::warn!(%error, "a notice could not be stored");
        }
    }
}

/// Stores a notice and counts the notices that were dropped for it.
async fn put(records: &Records, record: NewRecord) -> Result<(), StoreError> {
    let owner = record.owner.clone();
    let dropped = records.put(record, RecordQuota::DropOldest(MOST_NOTICES)).await?.unwrap_or_default();
    if dropped == 0 {
        return Ok(());
    }
    let before = records.take(RecordKind::Notice, &owner, LOST).await?;
    let mut count = before.and_then(|record| record.body["count"].as_u64()).unwrap_or_default();
    let mut more = dropped;
    // The count itself takes a notice's place when it is stored for the first time.
    while more > 0 {
        count += more as u64;
        let body = Notice::NoticesLost { count }.into();
        let (owner, id) = (owner.clone(), LOST.into());
        let lost = NewRecord { owner, id, held: false, ..NewRecord::new(RecordKind::Notice, body) };
        more = records.put(lost, RecordQuota::DropOldest(MOST_NOTICES)).await?.unwrap_or_default();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use nonet_base::clock::Clock;
    use nonet_store::{GatewayStore, Retention};

    /// How long everything that was posted may take to arrive.
    const LIMIT: Duration = Duration::from_secs(60);

    fn mail(folder: &tempfile::TempDir) -> Arc<Mail> {
        let retention = Retention { bytes: 1 << 20, age: Duration::MAX };
        let store = GatewayStore::in_files(Some(folder.path().into()), retention, Clock::default(), "");
        Mail::new(
            store.records.clone(),
            People::new(store.records),
            NoticeDelivery::closed(),
            Lifetime::default(),
        )
    }

    fn session(mail: &Arc<Mail>, profile: Option<&str>) -> Arc<Session> {
        Session::with_mail(profile.map(Into::into), None, Arc::default(), mail.clone())
    }

    /// Returns the notices in the next answer to a session.
    async fn notices(mail: &Mail, session: &Arc<Session>) -> Vec<Value> {
        let caller = Caller { session: session.clone(), ..Caller::default() };
        let mut answer = json!({ "content": [] }).into();
        mail.deliver(&caller, &mut answer, Vec::new()).await;
        let answer = answer.into_tree().await;
        let Some(text) = answer["content"][0]["text"].as_str() else { return Vec::new() };
        let block: Value = serde_json::from_str(text).expect("JSON");
        block["notices"].as_array().expect("notices").clone()
    }

    /// Returns the `n` of each notice in the next answer.
    async fn next(mail: &Mail, session: &Arc<Session>) -> Vec<u64> {
        let notices = notices(mail, session).await;
        notices.iter().map(|notice| notice["n"].as_u64().expect("a number")).collect()
    }

    #[tokio::test]
    async fn a_notice_arrives_once_whoever_is_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let mail = mail(&folder);
        let (one, other) = (session(&mail, None), session(&mail, None));
        let stranger = session(&mail, Some("p"));
        mail.post("", Some(&Arc::downgrade(&one)), json!({ "n": 1 }));
        mail.post("", None, json!({ "n": 2 }));
        assert_eq!(next(&mail, &stranger).await, [0; 0]);
        assert_eq!(next(&mail, &other).await, [2]);
        assert_eq!(next(&mail, &one).await, [1]);
        assert_eq!((next(&mail, &one).await, next(&mail, &other).await), (vec![], vec![]));
    }

    #[tokio::test]
    async fn a_notice_that_is_posted_again_is_told_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let mail = mail(&folder);
        for n in [1, 2] {
            mail.post_for_certain("one", "", None, json!({ "n": n })).await;
        }
        mail.post_for_certain("other", "", None, json!({ "n": 3 })).await;
        assert_eq!(next(&mail, &session(&mail, None)).await, [2, 3]);
    }

    #[tokio::test]
    async fn what_the_disk_does_not_take_is_told_from_memory() {
        let folder = tempfile::tempdir().expect("a folder");
        let mail = mail(&folder);
        mail.post_for_certain("one", "", None, json!({ "n": 1 })).await;
        let file = rusqlite::Connection::open(folder.path().join("records.db")).expect("it is there");
        let full = "CREATE TRIGGER full BEFORE INSERT ON records BEGIN SELECT RAISE(ABORT, 'full'); END";
        file.execute_batch(full).expect("writable");
        let one = session(&mail, None);
        mail.post_for_certain("two", "", None, json!({ "n": 2 })).await;
        mail.post("", Some(&Arc::downgrade(&one)), json!({ "n": 3 }));
        // The session ends before it delivers the notice.
        drop(one);
        let other = session(&mail, None);
        let mut told = Vec::new();
        while told.len() < 3 {
            told.extend(next(&mail, &other).await);
        }
        told.sort_unstable();
        assert_eq!(told, [1, 2, 3]);
        assert_eq!(next(&mail, &other).await, [0; 0], "once");
        for n in 0..=MOST_NOTICES {
            mail.post_for_certain(&n.to_string(), "", None, json!({ "n": n })).await;
        }
        let first = notices(&mail, &other).await;
        assert_eq!(first[0], json!({ "kind": "notices_lost", "count": 1 }));
    }

    #[tokio::test]
    async fn what_a_session_was_not_told_the_next_one_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let first = mail(&folder);
        let one = session(&first, None);
        first.post("", Some(&Arc::downgrade(&one)), json!({ "n": 1 }));
        first.post("", Some(&Arc::downgrade(&one)), json!({ "n": 2 }));
        assert_eq!(next(&first, &one).await, [1, 2]);
        first.post("", Some(&Arc::downgrade(&one)), json!({ "n": 3 }));
        drop(one);
        assert_eq!(next(&first, &session(&first, None)).await, [3]);

        // The gateway ends before it can deliver the notices.
        let two = session(&first, None);
        first.post("", Some(&Arc::downgrade(&two)), json!({ "n": 4 }));
        first.post("", None, json!({ "n": 5 }));
        first.life.end().await;
        let second = mail(&folder);
        assert_eq!(next(&second, &session(&second, None)).await, [5], "the first gateway still holds 4");
        drop((two, first));
        // A process just started by another test may hold the lock of the first gateway for a moment.
        let mut told = Vec::new();
        while told.is_empty() {
            second.note(&second.records.agenda(&[]).await.expect("readable").expect("there are records"));
            told = next(&second, &session(&second, None)).await;
        }
        assert_eq!(told, [4]);
    }

    #[tokio::test]
    async fn the_oldest_make_room_and_are_counted() {
        let folder = tempfile::tempdir().expect("a folder");
        let mail = mail(&folder);
        for n in 0..MOST_NOTICES + 3 {
            mail.post("", None, json!({ "kind": "reminder", "n": n }));
        }
        let reader = session(&mail, None);
        let mut told = Vec::new();
        // An answer does not wait for a slow store: late notices come with a later answer.
        let all = async {
            while told.len() < MOST_NOTICES {
                told.extend(notices(&mail, &reader).await);
            }
        };
        tokio::time::timeout(LIMIT, all).await.expect("all come");
        // The count is one of the kept notices.
        assert_eq!(told.last(), Some(&json!({ "kind": "notices_lost", "count": 4 })));
        assert_eq!((&told[0]["n"], told.len()), (&json!(4), MOST_NOTICES));
        assert!(notices(&mail, &reader).await.is_empty());
    }

    #[tokio::test]
    async fn what_does_not_fit_into_an_answer_is_not_lost() {
        let folder = tempfile::tempdir().expect("a folder");
        let mail = mail(&folder);
        let text = "x".repeat(3_000);
        for n in 0..120 {
            mail.post("", None, json!({ "n": n, "text": text }));
        }
        // Like requests without a session, each of which gets its own session. If the disk is busy, an answer
        // goes out without notices.
        let mut told = Vec::new();
        while told.is_empty() {
            told = next(&mail, &session(&mail, None)).await;
        }
        assert_eq!(told, [0, 1]);
        let reader = session(&mail, None);
        let all = async {
            while told.len() < 120 {
                told.extend(next(&mail, &reader).await);
            }
        };
        tokio::time::timeout(LIMIT, all).await.expect("all come");
        told.sort();
        assert!(told.iter().copied().eq(0..120), "{told:?}");
    }
}
