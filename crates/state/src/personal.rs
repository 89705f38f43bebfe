//! Connections of people with their own accounts at servers, and which tools each of them has there.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use dashmap::DashMap;
use nonet_auth::Person;
use nonet_config::ServerSettings;
use nonet_servers::{
    catalog::{Listing, own_name},
    downstream::{Connection, PersonAccess},
    oauth::SubjectToken,
};
use parking_lot::Mutex;
use serde_json::Value;

/// How long a connection without calls stays open.
pub const IDLE: Duration = Duration::from_secs(900);
/// How many connections of people are open. Beyond that, those go that were used least lately and have no call
/// in flight.
const MOST: usize = 2_000;
/// How many people's lists of a server are remembered, and how many tools that only people list.
const MOST_LISTS: usize = 500;
const MOST_TOOLS: usize = 5_000;
/// How long tools of the last run are shown that nobody has listed in this one.
const SEEN_LASTS: Duration = Duration::from_secs(24 * 3_600);
/// How often a person's connections are looked after at most, and how many people are remembered for that.
const GREETING: Duration = Duration::from_secs(60);
const MOST_GREETED: usize = 10_000;

/// The names of a person's tools, by server.
pub type PersonLists = BTreeMap<Arc<str>, Arc<HashSet<Arc<str>>>>;

/// A server and the key of a person.
type Key = (Arc<str>, Arc<str>);

/// Tools by their server's own names.
type Tools = BTreeMap<Arc<str>, Arc<Value>>;

/// The connections of people.
#[derive(Default)]
pub struct PersonalConnections {
    inner: Mutex<Inner>,
    /// The lists of a person who is connected, by their key. Changed under the lock of `inner`.
    people: DashMap<Arc<str>, Arc<PersonLists>>,
    /// How many people have a list.
    listed: AtomicUsize,
    /// When somebody's connections were looked after last.
    greeted: DashMap<Arc<str>, Instant>,
}

#[derive(Default)]
struct Inner {
    all: HashMap<Key, PersonalConnection>,
    /// What the servers list for the gateway itself and for people.
    lists: BTreeMap<Arc<str>, ServerLists>,
}

struct PersonalConnection {
    connection: Arc<Connection>,
    subject: Arc<SubjectToken>,
    used: Instant,
}

/// The lists of a server, however it is reached at the moment.
struct ServerLists {
    /// The gateway's own connection.
    of: u64,
    shared: Option<Listing>,
    /// The last list of each person, even of one whose connection has ended.
    people: BTreeMap<Arc<str>, Tools>,
    /// The definitions that the catalogue has.
    shown: Tools,
    /// Those of the last run that nobody has listed in this one.
    seen: Tools,
    began: Instant,
}

/// Whose list a connection has read.
pub enum ListOwner {
    /// The gateway's own.
    Gateway,
    /// A person's, by their key.
    Person(Arc<str>),
}

impl PersonalConnections {
    /// Returns a person's connection to a server; `begin` makes one if there is none, or if that one reaches the
    /// server in another way. Connections that are not used any more are added to `ended`.
    pub fn of(
        &self,
        (server, key, settings): (&Arc<str>, &Arc<str>, &Arc<ServerSettings>),
        person: Option<&Person>,
        page: impl FnOnce() -> String,
        begin: impl FnOnce(&PersonAccess) -> Arc<Connection>,
        ended: &mut Vec<Arc<Connection>>,
    ) -> Arc<Connection> {
        let token = person.and_then(|person| Some((person.token.as_ref()?, &person.issuer)));
        let place = (server.clone(), key.clone());
        let mut inner = self.inner.lock();
        // They are compared only after a reload: until then, both connections have the same ones.
        let is_set = |known: &Connection| Arc::ptr_eq(&known.settings(), settings);
        let fits = |known: &Connection| {
            (is_set(known) || known.is_reached_by(settings)) && !known.retired().is_cancelled()
        };
        if let Some(known) = inner.all.get_mut(&place).filter(|known| fits(&known.connection)) {
            known.used = Instant::now();
            if !is_set(&known.connection) {
                known.connection.set(settings.clone());
            }
            // A token that was exchanged before, or refused, is followed by that of this call.
            if let Some((token, issuer)) = token
                && known.subject.set(token, issuer)
            {
                known.connection.retry_sign_in();
            }
            return known.connection.clone();
        }
        let subject = Arc::new(SubjectToken::default());
        if let Some((token, issuer)) = token {
            subject.set(token, issuer);
        }
        let access = PersonAccess { person: key.clone(), page: page(), subject: subject.clone() };
        let connection = begin(&access);
        connection.set(settings.clone());
        let new = PersonalConnection { connection: connection.clone(), subject, used: Instant::now() };
        ended.extend(inner.all.insert(place.clone(), new).map(|old| old.connection));
        if inner.all.len() > MOST
            && let Some((gone, old)) = least_used(&mut inner.all, &place)
        {
            self.change(&gone.1, |lists| drop(lists.remove(&gone.0)));
            ended.push(old.connection);
        }
        connection
    }

    /// Takes out the connections without calls that nobody has used for [`IDLE`], and those that `stays` refuses.
    #[must_use]
    pub fn sweep(&self, stays: impl Fn(&str, &Connection) -> bool) -> Vec<Arc<Connection>> {
        let mut inner = self.inner.lock();
        let goes = |(server, _): &Key, known: &mut PersonalConnection| {
            let is_idle = known.used.elapsed() >= IDLE && !known.connection.is_busy();
            is_idle || !stays(server, &known.connection)
        };
        let gone: Vec<_> = inner.all.extract_if(goes).collect();
        for ((server, person), _) in &gone {
            self.change(person, |lists| drop(lists.remove(server)));
        }
        gone.into_iter().map(|(_, known)| known.connection).collect()
    }

    /// Takes out a person's connection to a server, and forgets what the server listed for them.
    pub fn end_of(&self, server: &str, person: &Arc<str>) -> Option<Arc<Connection>> {
        let mut inner = self.inner.lock();
        let gone = inner.all.remove(&(server.into(), person.clone()));
        if let Some(lists) = inner.lists.get_mut(server) {
            lists.people.remove(person);
        }
        self.change(person, |lists| drop(lists.remove(server)));
        gone.map(|known| known.connection)
    }

    /// Returns a person's connection to a server, if there is one.
    pub fn known(&self, server: &str, person: &Arc<str>) -> Option<Arc<Connection>> {
        let key = (server.into(), person.clone());
        self.inner.lock().all.get(&key).map(|known| known.connection.clone())
    }

    /// Returns all connections.
    pub fn connections(&self) -> Vec<Arc<Connection>> {
        self.inner.lock().all.values().map(|known| known.connection.clone()).collect()
    }

    /// Whether a person's connections should be looked after: they have not been for a while.
    pub fn greets(&self, person: &Person) -> bool {
        if self.greeted.get(&person.key).is_some_and(|at| at.elapsed() < GREETING) {
            return false;
        }
        if self.greeted.len() >= MOST_GREETED {
            self.greeted.clear();
        }
        self.greeted.insert(person.key.clone(), Instant::now());
        true
    }

    /// Looks after a person's connections at their next request.
    pub fn forget_greeting(&self, person: &str) {
        self.greeted.remove(person);
    }

    /// Returns the lists of a person. A server that is not among them has not listed anything for them yet.
    pub fn lists_of(&self, person: &Person) -> Option<Arc<PersonLists>> {
        if self.listed.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.people.get(&person.key).map(|lists| lists.clone())
    }

    /// Changes the lists of a person. Only under the lock of `inner`.
    fn change(&self, person: &Arc<str>, change: impl FnOnce(&mut PersonLists)) {
        let mut lists = self.people.get(person).map(|lists| PersonLists::clone(&lists)).unwrap_or_default();
        change(&mut lists);
        match lists.is_empty() {
            true => drop(self.people.remove(person)),
            false => drop(self.people.insert(person.clone(), Arc::new(lists))),
        }
        self.listed.store(self.people.len(), Ordering::Relaxed);
    }

    /// Takes a list of a server at which people have accounts of their own. `of` is the gateway's own connection
    /// at the moment, and `before` the list that the catalogue has. Returns the list for the catalogue: what the
    /// server lists for the gateway itself, and the tools that it lists for people; not their resources, prompts
    /// and instructions, which may be somebody's own. `None`: the list is of a connection that has ended.
    pub fn take(
        &self,
        (server, of): (&Arc<str>, u64),
        (owner, connection): (ListOwner, u64),
        listing: Listing,
        before: Option<&Listing>,
    ) -> Option<Listing> {
        let mut inner = self.inner.lock();
        match &owner {
            ListOwner::Gateway if connection != of => return None,
            ListOwner::Gateway => {}
            ListOwner::Person(person) => {
                let known = inner.all.get(&(server.clone(), person.clone()));
                known.filter(|known| known.connection.id == connection)?;
            }
        }
        let lists = inner.lists.entry(server.clone()).or_insert_with(|| ServerLists::new(of, before));
        if lists.of != of {
            // It is reached in another way: another server may be there.
            *lists = ServerLists::new(of, None);
        }
        match owner {
            ListOwner::Gateway => lists.shared = Some(listing),
            ListOwner::Person(person) => {
                let tools = tools_of(&listing);
                let names: HashSet<Arc<str>> = tools.keys().cloned().collect();
                self.change(&person, |lists| drop(lists.insert(server.clone(), Arc::new(names))));
                if lists.people.len() >= MOST_LISTS && !lists.people.contains_key(&person) {
                    lists.people.pop_first();
                }
                lists.people.insert(person, tools);
            }
        }
        Some(lists.merged(server))
    }

    /// Forgets the lists of servers that are gone.
    pub fn forget(&self, is_there: impl Fn(&str) -> bool) {
        self.inner.lock().lists.retain(|server, _| is_there(server));
    }
}

impl ServerLists {
    fn new(of: u64, before: Option<&Listing>) -> Self {
        let shown = before.map(tools_of).unwrap_or_default();
        let (people, began) = (BTreeMap::new(), Instant::now());
        Self { of, shared: None, people, seen: shown.clone(), shown, began }
    }

    /// Returns the list for the catalogue. A definition that is shown stays as long as anybody has it; a different
    /// one is a change of the server's, and goes through the pins.
    fn merged(&mut self, server: &str) -> Listing {
        let mut all = self.shared.clone().unwrap_or_default();
        let own: BTreeSet<Arc<str>> = tools_of(&all).into_keys().collect();
        let mut extra = Tools::new();
        for (name, tool) in self.people.values().flatten().filter(|(name, _)| !own.contains(*name)) {
            let is_shown = || self.shown.get(name) == Some(tool);
            if !extra.contains_key(name) && extra.len() >= MOST_TOOLS {
                tracing::warn!(server, tool = &**name, "too many tools that only some people have");
                break;
            }
            match extra.get(name) {
                Some(other) if other == tool => {}
                Some(_) => {
                    tracing::debug!(server, tool = &**name, "people have different definitions of this tool");
                    if is_shown() {
                        extra.insert(name.clone(), tool.clone());
                    }
                }
                None => drop(extra.insert(name.clone(), tool.clone())),
            }
        }
        let listed = |name: &Arc<str>| own.contains(name) || extra.contains_key(name);
        self.seen.retain(|name, _| !listed(name));
        if self.began.elapsed() < SEEN_LASTS {
            // Of people who have not connected yet in this run.
            extra.extend(self.seen.iter().map(|(name, tool)| (name.clone(), tool.clone())));
        }
        all.tools.extend(extra.into_values());
        self.shown = tools_of(&all);
        all
    }
}

fn tools_of(listing: &Listing) -> Tools {
    listing.tools.iter().filter_map(|tool| Some((own_name(tool)?.into(), tool.clone()))).collect()
}

/// Takes out the connection that was used least lately and has no call in flight, except this one.
fn least_used(all: &mut HashMap<Key, PersonalConnection>, except: &Key) -> Option<(Key, PersonalConnection)> {
    let idle = all.iter().filter(|(key, known)| *key != except && !known.connection.is_busy());
    let oldest = idle.min_by_key(|(_, known)| known.used).map(|(key, _)| key.clone())?;
    all.remove_entry(&oldest)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn listing(tools: &[(&str, &str)]) -> Listing {
        let tool = |(name, about): &(&str, &str)| Arc::new(json!({ "name": name, "description": about }));
        Listing {
            tools: tools.iter().map(tool).collect(),
            resources: vec![json!({ "uri": "file:///own" })],
            about: "signed in as somebody".into(),
            ..Listing::default()
        }
    }

    fn names(listing: &Listing) -> Vec<String> {
        let name = |tool: &Arc<Value>| format!("{}: {}", tool["name"], tool["description"]).replace('"', "");
        listing.tools.iter().map(name).collect()
    }

    #[test]
    fn the_catalogue_has_the_tools_of_all_and_nothing_that_is_somebodys_own() {
        let mut lists = ServerLists::new(1, None);
        lists.people.insert("ann".into(), tools_of(&listing(&[("a", "1"), ("b", "1")])));
        let all = lists.merged("s");
        assert_eq!(
            (names(&all), all.resources.len(), &*all.about),
            (vec!["a: 1".into(), "b: 1".into()], 0, "")
        );
        // A definition stays as long as somebody has it.
        lists.people.insert("aaron".into(), tools_of(&listing(&[("a", "2")])));
        assert_eq!(names(&lists.merged("s")), ["a: 1", "b: 1"]);
        lists.people.insert("ann".into(), tools_of(&listing(&[("a", "2"), ("b", "3")])));
        assert_eq!(names(&lists.merged("s")), ["a: 2", "b: 3"], "the server has changed them");
        lists.shared = Some(listing(&[("b", "own"), ("c", "own")]));
        let all = lists.merged("s");
        assert_eq!(
            (names(&all), all.resources.len()),
            (vec!["b: own".into(), "c: own".into(), "a: 2".into()], 1)
        );
        lists.people.clear();
        assert_eq!(names(&lists.merged("s")), ["b: own", "c: own"]);
    }

    #[test]
    fn what_people_had_in_the_last_run_is_there_until_they_come_back() {
        let before = listing(&[("a", "1"), ("b", "1")]);
        let mut lists = ServerLists::new(1, Some(&before));
        lists.people.insert("bob".into(), tools_of(&listing(&[("a", "2"), ("c", "1")])));
        assert_eq!(names(&lists.merged("s")), ["a: 2", "b: 1", "c: 1"]);
        lists.people.insert("ann".into(), tools_of(&before));
        assert_eq!(names(&lists.merged("s")), ["a: 2", "b: 1", "c: 1"]);
        lists.people.remove("ann");
        assert_eq!(names(&lists.merged("s")), ["a: 2", "c: 1"]);
    }

    #[test]
    fn a_list_of_a_connection_that_has_ended_is_nobodys() {
        let personal = PersonalConnections::default();
        let server: Arc<str> = "s".into();
        let take = |owner: ListOwner, connection: u64| {
            personal.take((&server, 1), (owner, connection), listing(&[("a", "1")]), None).is_some()
        };
        assert!(!take(ListOwner::Person("ann".into()), 7) && !take(ListOwner::Gateway, 2));
        assert!(take(ListOwner::Gateway, 1));
    }
}
