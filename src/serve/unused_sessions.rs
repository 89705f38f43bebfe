//! The sessions over HTTP whose clients have sent no request since their handshake. When an account has no
//! place for a new session, the oldest of these makes room: a client that opens sessions and leaves them
//! locks out nobody.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use nonet_parts::quotas::{Account, QuotaExceeded, QuotaPlace};
use parking_lot::Mutex;

/// The place of a session, which a newer session may take over.
#[derive(Clone, Debug)]
pub(super) struct SessionPlace(Arc<Mutex<Option<QuotaPlace>>>);

impl SessionPlace {
    pub(super) fn of(place: QuotaPlace) -> Self {
        Self(Arc::new(Mutex::new(Some(place))))
    }
}

/// The unused sessions of a door, by their ids.
#[derive(Default)]
pub(super) struct UnusedSessions(Mutex<UnusedTable>);

#[derive(Default)]
struct UnusedTable {
    sessions: HashMap<Box<str>, UnusedSession>,
    last: u64,
}

struct UnusedSession {
    number: u64,
    account: Arc<Account>,
    place: Weak<Mutex<Option<QuotaPlace>>>,
}

impl UnusedSessions {
    /// Takes a place for a new session: a free one, or that of the account's oldest unused session, whose id
    /// is returned: the caller ends it.
    pub(super) fn place(
        &self,
        account: &Arc<Account>,
    ) -> Result<(SessionPlace, Option<Box<str>>), QuotaExceeded> {
        let full = match account.session() {
            Ok(place) => return Ok((SessionPlace::of(place), None)),
            Err(full) => full,
        };
        let mut unused = self.0.lock();
        loop {
            let own = unused.sessions.iter().filter(|(_, session)| session.account == *account);
            let oldest = own.min_by_key(|(_, session)| session.number).map(|(id, _)| id.clone());
            let (id, session) = oldest.and_then(|id| unused.sessions.remove_entry(&id)).ok_or(full)?;
            if let Some(place) = session.place.upgrade().and_then(|place| place.lock().take()) {
                return Ok((SessionPlace::of(place), Some(id)));
            }
        }
    }

    /// Adds a session after its handshake. Forgets those that have ended.
    pub(super) fn opened(&self, id: &str, account: Arc<Account>, place: &SessionPlace) {
        let mut unused = self.0.lock();
        unused.sessions.retain(|_, session| session.place.strong_count() > 0);
        unused.last += 1;
        let session = UnusedSession { number: unused.last, account, place: Arc::downgrade(&place.0) };
        unused.sessions.insert(id.into(), session);
    }

    /// Notes that a session is in use: it makes room for no other.
    pub(super) fn used(&self, id: &str) {
        self.0.lock().sessions.remove(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nonet_config::Quotas;

    #[test]
    fn the_oldest_unused_session_of_the_same_account_makes_room() {
        let account = || Account::of_session(Quotas { sessions: 2, ..Quotas::default() });
        let (one, other, unused) = (account(), account(), UnusedSessions::default());
        let open = |id: &str, account: &Arc<Account>| {
            let (place, ended) = unused.place(account).map_err(|full| full.to_string())?;
            unused.opened(id, account.clone(), &place);
            Ok::<_, String>((place, ended.map(|id| id.to_string())))
        };
        let mut held = vec![open("z", &other).expect("free"), open("a", &one).expect("free")];
        held.extend([open("b", &one).expect("free")]);
        unused.used("a");
        let third = open("c", &one).expect("`b` was never used");
        assert_eq!(third.1.as_deref(), Some("b"));
        unused.used("c");
        assert!(open("d", &one).unwrap_err().contains("2 sessions"), "both are in use");
        // `b` gave its place away, so its end frees none.
        held.pop();
        assert!(open("d", &one).is_err());
        drop(third);
        assert_eq!(open("d", &one).expect("free").1, None);
        assert!(unused.0.lock().sessions.contains_key("z"), "it belongs to another account");
    }
}
