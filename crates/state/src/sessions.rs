//! The open sessions, and notices to all of them.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};

use dashmap::DashMap;
use nonet_api::status::ClientProtocol;
use nonet_auth::Person;
use nonet_parts::{
    cluster::Cluster,
    quotas::{Account, AccountHolder, Accounts},
};
use serde_json::Value;

use crate::{
    links::Seal,
    mail::Mail,
    people::People,
    servers::Servers,
    session::{Caller, Session},
};

/// How many kinds of clients a status names.
const MAX_PROTOCOLS: usize = 50;

/// The open sessions, and whose they are.
pub struct Sessions {
    /// By number.
    open: DashMap<u64, Weak<Session>>,
    /// Seals links in results of requests without a session.
    pub seal: Seal,
    /// What each token and person uses at present.
    accounts: Accounts,
    /// Those who have signed in.
    pub people: Arc<People>,
    /// Notices that must arrive.
    pub mail: Arc<Mail>,
    servers: Arc<Servers>,
}

impl Sessions {
    /// Creates a table without sessions.
    pub fn new(
        servers: Arc<Servers>,
        mail: Arc<Mail>,
        people: Arc<People>,
        cluster: Option<Arc<Cluster>>,
    ) -> Self {
        let (open, accounts) = (DashMap::new(), Accounts::default());
        Self { open, seal: Seal::new(cluster), accounts, people, mail, servers }
    }

    /// Opens a session under a profile, with quotas of its own.
    pub fn open(&self, profile: Option<String>) -> Arc<Session> {
        let account = Account::of_session(self.servers.config().quotas(profile.as_deref()));
        self.open_under(profile, None, account)
    }

    /// Opens a session under a profile, for a person if somebody has signed in. It counts against the quotas
    /// of an account, and closes with its last `Arc`.
    pub fn open_under(
        &self,
        profile: Option<String>,
        person: Option<Arc<Person>>,
        account: Arc<Account>,
    ) -> Arc<Session> {
        let session = Session::with_mail(profile, person, account, self.mail.clone());
        self.open.retain(|_, session| session.strong_count() > 0);
        self.open.insert(session.id, Arc::downgrade(&session));
        session
    }

    /// Returns the account of a token or person under a profile.
    pub fn account_of(&self, profile: Option<&str>, holder: AccountHolder) -> Arc<Account> {
        self.accounts.of(profile, holder, self.servers.config().quotas(profile))
    }

    /// Returns an account of requests under a profile that have neither a token nor a session.
    pub fn account_of_strangers(&self, profile: Option<&str>) -> Arc<Account> {
        Account::of_strangers(profile, self.servers.config().quotas(profile))
    }

    /// Creates a caller of a session whose client is named `client` (`clientInfo.name`).
    pub fn caller(&self, session: Arc<Session>, client: &str) -> Caller {
        let limits = self.servers.config().limits(client);
        let account = session.account.clone();
        Caller { session, account, client: client.into(), limits, ..Caller::default() }
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

    /// Returns which revisions of the protocol the connected clients speak, without those of one name.
    pub fn protocols_but(&self, left_out: &str) -> Vec<ClientProtocol> {
        let mut counts = BTreeMap::<(String, String), usize>::new();
        for session in self.all() {
            if let Some((client, protocol)) =
                session.client_and_protocol().filter(|(client, _)| *client != left_out)
            {
                *counts.entry((client.into(), protocol.into())).or_default() += 1;
            }
        }
        let shown = |((client, protocol), sessions)| ClientProtocol { client, protocol, sessions };
        counts.into_iter().map(shown).take(MAX_PROTOCOLS).collect()
    }

    /// Returns number, client name and profile of each session with a known client. A person who signed in is
    /// named with their client.
    pub fn clients(&self) -> Vec<(u64, String, Option<String>)> {
        let known = |session: Arc<Session>| {
            let client = session.client()?;
            let name = match &session.person {
                Some(person) => format!("{client} ({})", person.name),
                None => client.to_string(),
            };
            Some((session.id, name, session.profile.clone()))
        };
        let mut clients: Vec<_> = self.all().filter_map(known).collect();
        clients.sort();
        clients
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::{
        super::{mail, servers::Lifetime},
        *,
    };
    use crate::outward::NoticeDelivery;
    use nonet_base::clock::Clock;
    use nonet_config::ValueSources;
    use nonet_servers::downstream::ConnectionContext;
    use nonet_store::{GatewayStore, Retention};

    #[test]
    fn sessions_end_with_their_last_owner() {
        let retention = Retention { bytes: 0, age: std::time::Duration::ZERO };
        let store = GatewayStore::in_files(None, retention, Clock::default(), "");
        let people = People::new(store.records.clone());
        let mail =
            mail::Mail::new(store.records, people.clone(), NoticeDelivery::closed(), Lifetime::default());
        let around = Arc::new(ConnectionContext::without_guard());
        let config = nonet_config::parse("", Path::new("f"), ValueSources::NONE).expect("it is usable");
        let servers = Servers::new(config.config, around, Default::default(), Lifetime::default());
        let sessions = Sessions::new(Arc::new(servers), mail, people, None);
        let (first, second) = (sessions.open(None), sessions.open(Some("p".into())));
        first.is_of("one", "2025-11-25");
        assert_eq!(sessions.clients(), [(first.id, "one".to_string(), None)]);
        sessions.notify_unrestricted(&json!({}));
        assert_eq!(sessions.counts(), (2, 1));
        let id = first.id;
        drop(first);
        assert!(!sessions.has(id) && sessions.has(second.id));
        assert_eq!(sessions.counts(), (1, 0));
    }
}
