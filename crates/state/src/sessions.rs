//! The open sessions, and notices to all of them.

use std::sync::{Arc, Weak};

use dashmap::DashMap;
use nonet_parts::{cluster::Cluster, quotas::Account};
use serde_json::Value;

use crate::{links::Seal, mail::Mail, session::Session};

/// The open sessions.
#[derive(Debug)]
pub struct Sessions {
    /// By number.
    open: DashMap<u64, Weak<Session>>,
    /// Seals links in results of requests without a session.
    pub seal: Seal,
}

impl Sessions {
    /// Creates a table without sessions.
    pub fn new(cluster: Option<Arc<Cluster>>) -> Self {
        Self { open: DashMap::new(), seal: Seal::new(cluster) }
    }

    /// Opens a session under a profile. It closes with its last `Arc`.
    pub fn open(&self, profile: Option<String>, account: Arc<Account>, mail: &Arc<Mail>) -> Arc<Session> {
        let session = Session::with_mail(profile, account, mail.clone());
        self.open.retain(|_, session| session.strong_count() > 0);
        self.open.insert(session.id, Arc::downgrade(&session));
        session
    }

    /// Returns the open sessions, in any order.
    pub fn all(&self) -> impl Iterator<Item = Arc<Session>> {
        self.open.iter().filter_map(|session| session.upgrade())
    }

    /// Returns an open session.
    pub fn get(&self, id: u64) -> Option<Arc<Session>> {
        self.open.get(&id)?.upgrade()
    }

    /// Whether a session is open.
    pub fn has(&self, id: u64) -> bool {
        self.open.get(&id).is_some_and(|session| session.strong_count() > 0)
    }

    /// Notifies all sessions without a profile: only these see all servers.
    pub fn notify_unrestricted(&self, notice: &Value) {
        for session in self.all().filter(|session| session.profile.is_none()) {
            session.notify(notice.clone());
        }
    }

    /// Counts the open sessions and the notices queued for them.
    pub fn counts(&self) -> (usize, usize) {
        self.all().fold((0, 0), |(count, notices), session| (count + 1, notices + session.mailbox.waiting()))
    }

    /// Returns number, client name and profile of each session with a known client.
    pub fn clients(&self) -> Vec<(u64, String, Option<String>)> {
        let known = |session: Arc<Session>| {
            Some((session.id, session.client()?.to_string(), session.profile.clone()))
        };
        let mut clients: Vec<_> = self.all().filter_map(known).collect();
        clients.sort();
        clients
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{
        super::{mail, servers::Lifetime},
        *,
    };
    use crate::outward::NoticeDelivery;
    use nonet_base::clock::Clock;
    use nonet_store::{Retention, SqliteStore};

    #[test]
    fn sessions_end_with_their_last_owner() {
        let sessions = Sessions::new(None);
        let retention = Retention { bytes: 0, age: std::time::Duration::ZERO };
        let store = SqliteStore::new(None, retention, Clock::default());
        let mail = mail::Mail::new(Arc::new(store), NoticeDelivery::closed(), Lifetime::default());
        let first = sessions.open(None, Arc::default(), &mail);
        let second = sessions.open(Some("p".into()), Arc::default(), &mail);
        first.is_of("one");
        assert_eq!(sessions.clients(), [(first.id, "one".to_string(), None)]);
        sessions.notify_unrestricted(&json!({}));
        assert_eq!(sessions.counts(), (2, 1));
        let id = first.id;
        drop(first);
        assert!(!sessions.has(id) && sessions.has(second.id));
        assert_eq!(sessions.counts(), (1, 0));
    }
}
