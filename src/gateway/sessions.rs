//! The open sessions: who they are, and notices to all of them.

use std::sync::{Arc, Weak};

use dashmap::DashMap;
use serde_json::Value;

use super::{
    prompts_resources::Links,
    session::{Caller, Session},
};

/// The open sessions.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    /// By number.
    open: DashMap<u64, Weak<Session>>,
    /// The links that requests without a session were given.
    links: Links,
}

impl Sessions {
    /// A new session under a profile. It ends with its last `Arc`.
    pub fn open(&self, profile: Option<String>) -> Arc<Session> {
        let session = Session::new(profile);
        self.open.retain(|_, session| session.strong_count() > 0);
        self.open.insert(session.id, Arc::downgrade(&session));
        session
    }

    /// The open sessions.
    pub fn all(&self) -> impl Iterator<Item = Arc<Session>> {
        self.open.iter().filter_map(|session| session.upgrade())
    }

    /// The links that a caller was given: its session's, or those of all requests without a session.
    pub fn links<'a>(&'a self, caller: &'a Caller) -> &'a Links {
        if caller.lasting { &caller.session.links } else { &self.links }
    }

    /// Whether a session is open.
    pub fn has(&self, id: u64) -> bool {
        self.open.get(&id).is_some_and(|session| session.strong_count() > 0)
    }

    /// Notifies every session without a profile: only those see all servers.
    pub fn notify_unrestricted(&self, notice: &Value) {
        for session in self.all().filter(|session| session.profile.is_none()) {
            session.notify(notice.clone());
        }
    }

    /// How many sessions are open, and how many notices wait for them.
    pub fn counts(&self) -> (usize, usize) {
        self.all().fold((0, 0), |(count, notices), session| (count + 1, notices + session.mailbox.waiting()))
    }

    /// The sessions with a known client: number, client name, profile.
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

    use super::*;

    #[test]
    fn sessions_end_with_their_last_owner() {
        let sessions = Sessions::default();
        let first = sessions.open(None);
        let second = sessions.open(Some("p".into()));
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
