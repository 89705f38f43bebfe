//! Accounts: the concurrent use of one token, of one person, or of one session without either.
//!
//! New work takes a place before anything is sent, and is refused if there is none. Work that was sent is
//! never refused: a call in flight can always become a job, because calls and jobs together stay below the
//! sum of both quotas. This room knows numbers and counters; it knows nothing about calls, jobs and sessions.

#[cfg(test)]
mod tests;

use std::{
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Weak},
    time::Duration,
};

use arc_swap::ArcSwap;
use dashmap::DashMap;
use nonet_config::{BearerToken, Quotas};
use nonet_text::fault::{Fault, FaultCode, NextStep};
use parking_lot::Mutex;

/// When to retry after a refusal.
const RETRY: Duration = Duration::from_secs(5);
/// When to retry opening a session: unused sessions end after a few minutes.
pub const RETRY_SESSION: Duration = Duration::from_secs(60);
/// The quota of requests of all kinds, as a multiple of the quota of calls: requests about calls and tasks
/// need room beside them.
const REQUESTS: usize = 2;

/// The account of a token or person, or of a session without one. Accounts with the same name are equal.
pub struct Account {
    /// Its number for turn-taking.
    pub id: u64,
    /// Its name in the store. A token's account keeps its name across restarts.
    name: Arc<str>,
    quotas: ArcSwap<Quotas>,
    used: Mutex<PlacesInUse>,
}

/// The places in use, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PlacesInUse {
    requests: usize,
    calls: usize,
    jobs: usize,
    sessions: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlaceKind {
    Request,
    Call,
    Job,
    Session,
}

impl PlacesInUse {
    fn of(&mut self, kind: PlaceKind) -> &mut usize {
        match kind {
            PlaceKind::Request => &mut self.requests,
            PlaceKind::Call => &mut self.calls,
            PlaceKind::Job => &mut self.jobs,
            PlaceKind::Session => &mut self.sessions,
        }
    }
}

/// One place of an account, given back when dropped.
#[derive(Debug)]
pub struct QuotaPlace {
    account: Arc<Account>,
    kind: PlaceKind,
}

impl Drop for QuotaPlace {
    fn drop(&mut self) {
        let mut used = self.account.used.lock();
        let count = used.of(self.kind);
        *count = count.saturating_sub(1);
    }
}

/// The places of work that may become a job; empty for work inside other work, which shares the outer places.
#[derive(Debug, Default)]
pub struct Admission {
    call: Option<QuotaPlace>,
    job: Option<QuotaPlace>,
}

impl Admission {
    /// Exchanges the place of the call for the place of the job.
    pub fn into_job(self, account: &Arc<Account>) -> QuotaPlace {
        let place = self.job.unwrap_or_else(|| account.place(PlaceKind::Job));
        drop(self.call);
        place
    }
}

/// A refusal of new work beyond a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuotaExceeded {
    /// The client has as many calls in flight as `quotas.calls` allows. Holds their number.
    #[error("This client already has {0} calls in flight, its maximum")]
    Calls(usize),
    /// The client's background tasks leave no room under `quotas.calls`. Holds their number.
    #[error("This client already has {0} tasks in the background, its maximum")]
    Jobs(usize),
    /// Too many requests of all kinds are in flight, compared with `quotas.calls`. Holds their number.
    #[error("This client already has {0} requests in flight, its maximum")]
    Requests(usize),
    /// The sessions with this token, or without a token, reach `quotas.sessions`. Holds their number.
    #[error("{0} sessions are open with this token, or without a token, which is the maximum")]
    Sessions(usize),
    /// The limit for all clients together.
    #[error("{0} calls are already running in the background")]
    Gateway(usize),
}

impl From<QuotaExceeded> for Fault {
    fn from(exhausted: QuotaExceeded) -> Self {
        let (then, wait) = match exhausted {
            QuotaExceeded::Calls(_) | QuotaExceeded::Requests(_) => {
                ("wait for one to end, or cancel one; `quotas.calls` of servers.toml is the limit.", RETRY)
            }
            QuotaExceeded::Jobs(_) => (
                "wait for one to end, or cancel one with gateway.background_run {task_id, cancel: true}; `quotas.calls` of servers.toml is the limit.",
                RETRY,
            ),
            QuotaExceeded::Gateway(_) => ("wait for one to end, or cancel one.", RETRY),
            QuotaExceeded::Sessions(_) => (
                "end one with a DELETE request; `quotas.sessions` of servers.toml is the limit.",
                RETRY_SESSION,
            ),
        };
        let fault = Fault::new(FaultCode::RateLimited, format!("{exhausted}. Nothing was sent: {then}"));
        fault
            .retry_after(wait)
            .then(NextStep::own("background_run", serde_json::json!({ "list_tasks": true })))
    }
}

impl Account {
    fn new(name: impl Into<Arc<str>>, quotas: Quotas) -> Self {
        let (name, mut hasher) = (name.into(), DefaultHasher::new());
        name.hash(&mut hasher);
        Self { id: hasher.finish(), name, quotas: ArcSwap::from_pointee(quotas), used: Mutex::default() }
    }

    /// Creates the account of a session without a token.
    pub fn of_session(quotas: Quotas) -> Arc<Self> {
        Arc::new(Self::new(format!("session-{}", uuid::Uuid::new_v4().simple()), quotas))
    }

    /// Creates the account of all HTTP clients under a profile that have neither a token nor a session.
    pub fn of_strangers(profile: Option<&str>, quotas: Quotas) -> Arc<Self> {
        Arc::new(Self::new(format!("strangers-{}", profile.unwrap_or_default()), quotas))
    }

    /// Creates the account of Nonet's unattended work for an owner.
    pub fn of_errands(owner: &str, quotas: Quotas) -> Arc<Self> {
        Arc::new(Self::new(format!("errands-{owner}"), quotas))
    }

    /// Returns its name in the store.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Returns the quotas as they are now; [`Self::set`] may change them.
    pub fn quotas(&self) -> Quotas {
        **self.quotas.load()
    }

    /// Applies changed quotas from now on.
    pub fn set(&self, quotas: Quotas) {
        if self.quotas() != quotas {
            self.quotas.store(Arc::new(quotas));
        }
    }

    /// Takes a place for a request of any kind.
    pub fn request(self: &Arc<Self>) -> Result<QuotaPlace, QuotaExceeded> {
        let quotas = self.quotas();
        let most = REQUESTS * quotas.calls;
        self.take(PlaceKind::Request, |used| {
            // Requests that turn into tasks need room too.
            let with_jobs = used.requests + used.jobs;
            let full = used.requests >= most || with_jobs >= most + quotas.calls + quotas.jobs;
            if full { Err(QuotaExceeded::Requests(used.requests)) } else { Ok(()) }
        })
    }

    /// Takes a place for a call, which may become a job later.
    pub fn call(self: &Arc<Self>) -> Result<Admission, QuotaExceeded> {
        let quotas = self.quotas();
        let place = self.take(PlaceKind::Call, |used| {
            if used.calls >= quotas.calls {
                return Err(QuotaExceeded::Calls(used.calls));
            }
            let full = used.calls + used.jobs >= quotas.calls + quotas.jobs;
            if full { Err(QuotaExceeded::Jobs(used.jobs)) } else { Ok(()) }
        });
        Ok(Admission { call: Some(place?), job: None })
    }

    /// Takes a place for work that is a job from the start.
    pub fn job(self: &Arc<Self>) -> Result<Admission, QuotaExceeded> {
        let most = self.quotas().jobs;
        let place = self.take(PlaceKind::Job, |used| {
            if used.jobs >= most { Err(QuotaExceeded::Jobs(used.jobs)) } else { Ok(()) }
        });
        Ok(Admission { call: None, job: Some(place?) })
    }

    /// Takes a place for a session, which is given back when the session ends.
    pub fn session(self: &Arc<Self>) -> Result<QuotaPlace, QuotaExceeded> {
        let most = self.quotas().sessions;
        self.take(PlaceKind::Session, |used| {
            if used.sessions >= most { Err(QuotaExceeded::Sessions(used.sessions)) } else { Ok(()) }
        })
    }

    /// Returns how many jobs it has.
    pub fn jobs(&self) -> usize {
        self.used.lock().jobs
    }

    fn take(
        self: &Arc<Self>,
        kind: PlaceKind,
        check: impl FnOnce(&PlacesInUse) -> Result<(), QuotaExceeded>,
    ) -> Result<QuotaPlace, QuotaExceeded> {
        let mut used = self.used.lock();
        check(&used)?;
        *used.of(kind) += 1;
        drop(used);
        Ok(QuotaPlace { account: self.clone(), kind })
    }

    /// Takes a place without checking the quota.
    fn place(self: &Arc<Self>, kind: PlaceKind) -> QuotaPlace {
        *self.used.lock().of(kind) += 1;
        QuotaPlace { account: self.clone(), kind }
    }
}

impl Default for Account {
    /// Creates an account without a name.
    fn default() -> Self {
        Self::new("", Quotas::default())
    }
}

impl PartialEq for Account {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Account {}

impl Hash for Account {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Account").field("name", &self.name).field("used", &*self.used.lock()).finish()
    }
}

/// Whose account it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AccountHolder {
    /// That of a token of the configuration.
    Token(BearerToken),
    /// That of a person who signed in, by their key.
    Person(Arc<str>),
}

/// The accounts of tokens and people; all sessions of a token or person share one.
#[derive(Debug, Default)]
pub struct Accounts(DashMap<(Option<String>, AccountHolder), Weak<Account>>);

impl Accounts {
    /// Returns the account of a token or person under a profile.
    pub fn of(&self, profile: Option<&str>, holder: AccountHolder, quotas: Quotas) -> Arc<Account> {
        let key = (profile.map(Into::into), holder);
        if let Some(account) = self.0.get(&key).and_then(|known| known.upgrade()) {
            account.set(quotas);
            return account;
        }
        self.0.retain(|_, account| account.strong_count() > 0);
        let name = match &key.1 {
            AccountHolder::Token(token) => token.alias(),
            AccountHolder::Person(person) => person.to_string(),
        };
        let mut entry = self.0.entry(key).or_default();
        if let Some(account) = entry.upgrade() {
            return account;
        }
        let account = Arc::new(Account::new(name, quotas));
        *entry = Arc::downgrade(&account);
        account
    }
}
