//! The replicas of a gateway: which of them run and where, and what only one of them holds at a time:
//! clients' sessions, and leases.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use nonet_api::status::ReplicaStatus;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::{
    super::StoreError,
    link::{Methods, RedisLink, newer_is_there, script_that_may},
    presence::{BEAT, LASTS, Lease},
};

/// Also runs in a full Redis: its writes are small, and without them every replica would seem to be gone.
static METHODS: Methods = Methods::new(|| script_that_may("allow-oom", include_str!("replicas.lua")));

/// How long a session is kept after its holder last confirmed that it is open.
pub(super) const SESSION_LIFE: Duration = Duration::from_secs(3_600);
/// The minimum time between two checks of the running replicas, besides the beat.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// How long a call waits for another replica before that replica is checked, and how often it is checked
/// after that, for all calls together.
const WAITED: Duration = Duration::from_secs(2);
const LOOK_WAITING: Duration = Duration::from_millis(400);
/// How long a replica that does not answer must also be silent in Redis to count as ended: longer than its
/// beat.
const SILENT: Duration = Duration::from_secs(4);
/// The number of no replica.
const NOBODY: u32 = 0;
/// When every replica has registered again after Redis has lost its data: a beat, and the longest pause
/// before one asks Redis again.
const REGISTERED_AGAIN: Duration = Duration::from_secs(9);
/// After this time without an answer, twice a beat, Redis was away: the registrations of replicas that run
/// may have expired.
const AWAY: Duration = Duration::from_secs(6);

/// A replica's description of itself for the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replica {
    /// Its number, unique among processes.
    pub number: u32,
    /// Its name, for people.
    pub name: String,
    /// The address at which the others reach it: `http://HOST:PORT`.
    pub address: String,
    /// Its version of Nonet.
    #[serde(default)]
    pub version: String,
    /// A hash of its configuration.
    #[serde(default)]
    pub config: String,
    /// Its labels, which determine what can run on it.
    #[serde(default)]
    pub labels: Vec<String>,
    /// Whether it is about to stop: then it takes nothing over.
    #[serde(default)]
    pub leaving: bool,
}

/// The leases that a replica may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LeaseClaim {
    /// None: only asks for the holder.
    No = 0,
    /// The lease of a replica that has ended.
    OfEnded = 1,
    /// The lease of an ended replica, or a free one.
    Free = 2,
}

/// The holder of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionHolder {
    /// This replica, with the session's record.
    Here(Vec<u8>),
    /// Another replica, by its number.
    By(u32),
    /// No replica, and this one was not to take it over.
    Free,
    /// There is no such session.
    Unknown,
}

/// The replicas with the same Redis and prefix.
#[derive(Debug)]
pub struct Replicas {
    link: Arc<RedisLink>,
    base: Arc<str>,
    lease: Arc<Lease>,
    /// This replica's description of itself, once it has joined.
    own: Mutex<Option<Replica>>,
    known: ArcSwap<Vec<Replica>>,
    looked: Mutex<Option<Instant>>,
    /// When Redis answered last.
    answered: Mutex<Option<Instant>>,
    secret: OnceLock<[u8; 32]>,
    /// The first replica since Redis was empty.
    epoch: Mutex<String>,
    /// When Redis was found to be emptied or to have been away, and how many times it was emptied.
    emptied: Mutex<Option<Instant>>,
    times_emptied: AtomicUsize,
    /// The secret if there is none yet.
    candidate: [u8; 32],
}

impl Replicas {
    pub(super) fn new(link: Arc<RedisLink>, base: Arc<str>, lease: Arc<Lease>) -> Self {
        let mut candidate = [0; 32];
        for half in candidate.chunks_mut(16) {
            half.copy_from_slice(uuid::Uuid::new_v4().as_bytes());
        }
        Self {
            link,
            base,
            lease,
            own: Mutex::default(),
            known: ArcSwap::default(),
            looked: Mutex::default(),
            answered: Mutex::default(),
            secret: OnceLock::new(),
            epoch: Mutex::default(),
            emptied: Mutex::default(),
            times_emptied: AtomicUsize::new(0),
            candidate,
        }
    }

    /// Returns the number of this replica.
    pub fn number(&self) -> u32 {
        self.lease.number()
    }

    /// Returns the name of this replica.
    pub fn name(&self) -> &str {
        &self.lease.name
    }

    /// Returns the host and port of a node of Redis, or of a Sentinel.
    pub fn redis(&self) -> String {
        self.link.first()
    }

    /// Returns why Redis cannot be used at the moment.
    pub fn trouble(&self) -> Option<String> {
        self.link.trouble()
    }

    /// Returns the secret by which replicas recognize each other and seal handles; `None` until Redis has
    /// answered once.
    pub fn secret(&self) -> Option<&[u8; 32]> {
        self.secret.get()
    }

    /// Returns whether this replica is about to stop.
    pub fn is_leaving(&self) -> bool {
        self.own.lock().as_ref().is_some_and(|own| own.leaving)
    }

    /// Registers this replica with the others. From then on it beats until its lease ends, through any
    /// trouble of Redis.
    pub async fn join(self: &Arc<Self>, own: Replica) {
        let is_first = self.own.lock().replace(own).is_none();
        if let Err(error) = self.beat().await {
            tracing::warn!(%error, "the other replicas do not know this one yet");
        }
        if is_first {
            let replicas = Arc::downgrade(self);
            tokio::spawn(async move {
                loop {
                    tokio::time::sleep(BEAT).await;
                    let Some(replicas) = replicas.upgrade().filter(|replicas| !replicas.lease.has_ended())
                    else {
                        return;
                    };
                    // The link warns about trouble.
                    let _ = replicas.beat().await;
                }
            });
        }
    }

    /// Renews this replica's registration, and reads the running replicas.
    async fn beat(&self) -> Result<(), StoreError> {
        let Some(own) = self.own.lock().clone() else { return Ok(()) };
        let told = serde_json::to_string(&own).unwrap_or_default();
        let candidate = *self.secret.get().unwrap_or(&self.candidate);
        let mut call = METHODS.call(&self.base, "join");
        call.arg(self.number()).arg(&own.name).arg(LASTS.as_millis() as u64).arg(told).arg(&candidate[..]);
        call.arg(uuid::Uuid::new_v4().simple().to_string());
        let (secret, epoch): (Vec<u8>, String) = self.link.run(&call).await?;
        if let Ok(secret) = secret.try_into() {
            let _ = self.secret.set(secret);
        }
        let before = std::mem::replace(&mut *self.epoch.lock(), epoch.clone());
        if !before.is_empty() && before != epoch {
            tracing::warn!(redis = %self.link.place, "Redis has lost what the replicas shared; what this one has is written again");
            *self.emptied.lock() = Some(Instant::now());
            self.times_emptied.fetch_add(1, Ordering::Relaxed);
        }
        self.look().await
    }

    /// Returns how many times Redis was found to have lost its data.
    pub fn times_emptied(&self) -> usize {
        self.times_emptied.load(Ordering::Relaxed)
    }

    /// Announces this replica's new configuration to the others.
    pub async fn has_config(&self, config: String) {
        match &mut *self.own.lock() {
            Some(own) => own.config = config,
            None => return,
        }
        // The link warns about trouble.
        let _ = self.beat().await;
    }

    /// Announces that this replica is about to stop. It still answers.
    pub async fn is_about_to_leave(&self) {
        if let Some(own) = &mut *self.own.lock() {
            own.leaving = true;
        }
        if let Err(error) = self.beat().await {
            tracing::debug!(%error, "the other replicas do not know that this one stops");
        }
    }

    /// Reads the running replicas.
    pub async fn look(&self) -> Result<(), StoreError> {
        let mut call = METHODS.call(&self.base, "look");
        call.arg(self.number());
        let told: Vec<String> = self.link.run(&call).await?;
        let mut all: Vec<Replica> = told.iter().filter_map(|told| serde_json::from_str(told).ok()).collect();
        // Redis has lost what it knew or was away, and others may not have registered again yet.
        let is_lost = self.has_joined() && all.iter().all(|replica| replica.number != self.number());
        if is_lost || self.was_away() {
            *self.emptied.lock() = Some(Instant::now());
        }
        // The others first have to register again.
        if self.awaits_others() {
            let is_missing = |known: &&Replica| all.iter().all(|replica| replica.number != known.number);
            let missing: Vec<Replica> = self.known.load().iter().filter(is_missing).cloned().collect();
            all.extend(missing);
        }
        all.sort_by_key(|replica| replica.number);
        self.known.store(Arc::new(all));
        *self.looked.lock() = Some(Instant::now());
        *self.answered.lock() = Some(Instant::now());
        Ok(())
    }

    fn was_away(&self) -> bool {
        self.answered.lock().is_some_and(|answered| answered.elapsed() >= AWAY)
    }

    fn awaits_others(&self) -> bool {
        self.emptied.lock().is_some_and(|emptied| emptied.elapsed() < REGISTERED_AGAIN)
    }

    /// Returns whether Redis was away or has lost its data a moment ago, so that replicas which run may not
    /// be in it yet.
    pub fn may_miss_others(&self) -> bool {
        self.was_away() || self.awaits_others()
    }

    /// Returns the replicas that were alive a moment ago, including this one.
    pub fn known(&self) -> Arc<Vec<Replica>> {
        self.known.load_full()
    }

    /// Returns the same replicas in the form for people; none if there are none.
    pub(super) fn shown(&self) -> Option<Vec<ReplicaStatus>> {
        let config = self.own.lock().as_ref().map(|own| own.config.clone());
        let shown = |replica: &Replica| ReplicaStatus {
            name: replica.name.clone(),
            address: replica.address.clone(),
            version: replica.version.clone(),
            leaving: replica.leaving,
            other_config: config.as_ref().is_some_and(|own| *own != replica.config),
        };
        let replicas: Vec<_> = self.known.load().iter().map(shown).collect();
        (!replicas.is_empty()).then_some(replicas)
    }

    /// Returns a running replica. One that is not known yet is looked up.
    pub async fn get(&self, number: u32) -> Option<Replica> {
        let find = || self.known.load().iter().find(|replica| replica.number == number).cloned();
        if let Some(known) = find() {
            return Some(known);
        }
        let is_fresh = self.looked.lock().is_some_and(|looked| looked.elapsed() < LOOK_AGAIN);
        if !is_fresh && self.look().await.is_ok() {
            return find();
        }
        None
    }

    /// Returns a replica that is missing from Redis, if Redis has just lost its data.
    pub async fn get_anew(&self, number: u32) -> Option<Replica> {
        self.beat().await.ok()?;
        self.known.load().iter().find(|replica| replica.number == number).cloned()
    }

    /// Resolves when Redis says that a replica is no longer running.
    pub async fn until_gone(&self, number: u32) {
        let began = Instant::now();
        while self.known.load().iter().any(|replica| replica.number == number) {
            tokio::time::sleep(LOOK_AGAIN).await;
            if began.elapsed() > WAITED && self.may_look() {
                // The link warns about trouble.
                let _ = self.look().await;
            }
        }
    }

    /// Returns whether the running replicas have not been read for a moment. A caller that gets true reads
    /// them.
    fn may_look(&self) -> bool {
        let mut looked = self.looked.lock();
        let is_old = looked.is_none_or(|looked| looked.elapsed() >= LOOK_WAITING);
        if is_old {
            *looked = Some(Instant::now());
        }
        is_old
    }

    /// Stores the record of a session that this replica holds.
    pub async fn put_session(&self, id: &str, body: &[u8]) -> Result<(), StoreError> {
        let mut call = METHODS.call(&self.base, "put_session");
        call.arg(self.number()).arg(id).arg(body).arg(SESSION_LIFE.as_millis() as u64);
        self.link.run(&call).await
    }

    /// Makes this replica the holder of a session, unless another one holds it. `gone` is a replica that no
    /// longer runs, whatever its lease says. Without `may`, this replica only looks.
    pub async fn claim_session(
        &self,
        id: &str,
        gone: Option<u32>,
        may: bool,
    ) -> Result<SessionHolder, StoreError> {
        let mut call = METHODS.call(&self.base, "claim_session");
        call.arg(self.number()).arg(id).arg(gone.unwrap_or(NOBODY)).arg(u8::from(may));
        let (body, holder): (Vec<u8>, String) = match self.link.run(&call).await {
            Ok(found) => found,
            Err(StoreError::NewerValue { .. }) => {
                newer_is_there();
                return Ok(SessionHolder::Unknown);
            }
            Err(error) => return Err(error),
        };
        Ok(match holder.parse() {
            Ok(NOBODY) => SessionHolder::Free,
            Ok(holder) => SessionHolder::By(holder),
            Err(_) if body.is_empty() => SessionHolder::Unknown,
            Err(_) => SessionHolder::Here(body),
        })
    }

    /// Releases a session, for any replica to take over.
    pub async fn free_session(&self, id: &str) -> Result<(), StoreError> {
        let mut call = METHODS.call(&self.base, "free_session");
        call.arg(self.number()).arg(id);
        self.link.run(&call).await
    }

    /// Forgets a session.
    pub async fn drop_session(&self, id: &str) -> Result<(), StoreError> {
        self.link.send(redis::pipe().del(format!("{}session:{id}", self.base)).ignore()).await
    }

    /// Confirms that sessions are still open here. Returns the ones that Redis has lost.
    pub async fn touch_sessions(&self, ids: &[String]) -> Result<Vec<String>, StoreError> {
        let mut call = METHODS.call(&self.base, "touch_sessions");
        call.arg(self.number()).arg(SESSION_LIFE.as_millis() as u64).arg(ids);
        self.link.run(&call).await
    }

    /// Leaves a note for any replica, for a limited time.
    pub async fn put_note(&self, name: &str, life: Duration) -> Result<(), StoreError> {
        let key = format!("{}note:{name}", self.base);
        self.link.send(redis::pipe().pset_ex(key, "", life.as_millis() as u64).ignore()).await
    }

    /// Takes a note, so that no other replica gets it. Returns whether it existed.
    pub async fn take_note(&self, name: &str) -> Result<bool, StoreError> {
        let (taken,): (bool,) =
            self.link.send(redis::pipe().del(format!("{}note:{name}", self.base))).await?;
        Ok(taken)
    }

    /// Takes leases, as far as allowed; each lasts as long as its replica runs. `gone` is a replica that does
    /// not answer: it counts as ended if it has also been silent in Redis for a while. Returns the replica
    /// that holds each lease.
    pub async fn take_leases(
        &self,
        gone: Option<u32>,
        asked: &[(String, LeaseClaim)],
    ) -> Result<Vec<Option<u32>>, StoreError> {
        let mut call = METHODS.call(&self.base, "take_leases");
        let late = LASTS.saturating_sub(SILENT);
        call.arg(self.number()).arg(gone.unwrap_or(NOBODY)).arg(late.as_millis() as u64);
        for (name, claim) in asked {
            call.arg(name).arg(*claim as u8);
        }
        let holders: Vec<String> = self.link.run(&call).await?;
        let number = |holder: &String| holder.parse().ok().filter(|holder| *holder != NOBODY);
        Ok(holders.iter().map(number).collect())
    }

    /// Reads the replicas' secret, for a process that is not one of them.
    pub async fn meet(&self) -> Result<(), StoreError> {
        if self.secret.get().is_none() {
            let key = format!("{}secret", self.base);
            let (secret,): (Option<Vec<u8>>,) = self.link.send(redis::pipe().get(key)).await?;
            if let Some(Ok(secret)) = secret.map(TryInto::try_into) {
                let _ = self.secret.set(secret);
            }
        }
        Ok(())
    }

    /// Returns whether the others know this replica, or will.
    pub fn has_joined(&self) -> bool {
        self.own.lock().is_some()
    }

    /// Ends a lease, if this replica holds it.
    pub async fn end_lease(&self, name: &str) -> Result<(), StoreError> {
        let mut call = METHODS.call(&self.base, "end_lease");
        call.arg(self.number()).arg(name);
        self.link.run(&call).await
    }

    /// Removes this replica from the list.
    pub(super) async fn leave(&self) -> Result<(), StoreError> {
        if self.own.lock().is_none() {
            return Ok(());
        }
        let mut call = METHODS.call(&self.base, "leave");
        call.arg(self.number());
        self.link.run(&call).await
    }
}

#[cfg(test)]
mod tests {
    use nonet_testing::RedisServer;
    use redis::Commands;
    use serde_json::json;

    use super::*;
    use crate::{
        Store,
        tests::engines::{ROOMY, store_at},
    };

    #[tokio::test]
    async fn after_an_outage_a_replica_is_known_until_it_can_have_registered_again() {
        let Some(server) = RedisServer::start() else { return };
        let store = || store_at(&server, ROOMY, &nonet_base::clock::Clock::default());
        let (one, two) = (store(), store());
        let (one, two) = (one.replicas().expect("it has them"), two.replicas().expect("it has them"));
        for replicas in [&one, &two] {
            let told =
                json!({ "number": replicas.number(), "name": replicas.name(), "address": "http://here" });
            replicas.join(serde_json::from_value(told).expect("a replica")).await;
        }
        two.look().await.expect("Redis answers");
        assert_eq!((two.known().len(), two.may_miss_others()), (2, false));
        // Redis was away for a while and comes back with its data; what was registered has expired.
        server.connect().del::<_, ()>(format!("{}holder:{}", one.base, one.number())).expect("deleted");
        *two.answered.lock() = Instant::now().checked_sub(AWAY);
        assert!(two.may_miss_others());
        two.look().await.expect("Redis answers");
        assert_eq!((two.known().len(), two.may_miss_others()), (2, true));
        *two.emptied.lock() = Instant::now().checked_sub(REGISTERED_AGAIN);
        two.look().await.expect("Redis answers");
        assert_eq!((two.known().len(), two.may_miss_others()), (1, false));
    }
}
