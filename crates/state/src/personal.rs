//! Connections of people with their own accounts at servers, and which tools each of them has there.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use dashmap::DashMap;
use nonet_auth::Person;
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
/// How many tools of a server are known that only people list.
const MOST_EXTRA: usize = 2_000;
/// How often a person's connections are looked after at most, and how many people are remembered for that.
const GREETING: Duration = Duration::from_secs(60);
const MOST_GREETED: usize = 10_000;

/// The names of a person's tools, by server.
pub type PersonLists = BTreeMap<Arc<str>, Arc<HashSet<Arc<str>>>>;

/// A server and the key of a person.
type Key = (Arc<str>, Arc<str>);

/// The connections of people.
#[derive(Default)]
pub struct PersonalConnections {
    all: Mutex<HashMap<Key, PersonalConnection>>,
    /// The owners of connections, by the connection's number.
    ids: DashMap<u64, Key>,
    /// The lists of a person, by their key.
    people: DashMap<Arc<str>, Arc<PersonLists>>,
    /// How many people have a list.
    listed: AtomicUsize,
    /// What the servers themselves list, and what only people do.
    lists: Mutex<BTreeMap<Arc<str>, ServerLists>>,
    /// When somebody's connections were looked after last.
    greeted: DashMap<Arc<str>, Instant>,
}

struct PersonalConnection {
    connection: Arc<Connection>,
    subject: Arc<SubjectToken>,
    used: Instant,
}

#[derive(Default)]
struct ServerLists {
    shared: Option<Listing>,
    /// Tools that people list, by name.
    extra: BTreeMap<Arc<str>, Arc<Value>>,
}

impl PersonalConnections {
    /// Returns a person's connection to a server; `begin` makes one if none fits. `fits` tells whether one does.
    pub fn of(
        &self,
        server: &Arc<str>,
        person: &Person,
        page: impl FnOnce() -> String,
        fits: impl Fn(&Connection) -> bool,
        begin: impl FnOnce(&PersonAccess) -> Arc<Connection>,
    ) -> Arc<Connection> {
        let key = (server.clone(), person.key.clone());
        let mut all = self.all.lock();
        let known = all.get_mut(&key).filter(|known| fits(&known.connection));
        if let Some(known) = known {
            known.used = Instant::now();
            // A token that was exchanged before, or refused, is followed by that of this call.
            if let Some(token) = &person.token
                && known.subject.set(token, &person.issuer)
            {
                known.connection.retry_sign_in();
            }
            return known.connection.clone();
        }
        let subject = Arc::new(SubjectToken::default());
        if let Some(token) = &person.token {
            subject.set(token, &person.issuer);
        }
        let access = PersonAccess { person: person.key.clone(), page: page(), subject: subject.clone() };
        let connection = begin(&access);
        self.ids.insert(connection.id, key.clone());
        let new = PersonalConnection { connection: connection.clone(), subject, used: Instant::now() };
        let replaced = all.insert(key.clone(), new);
        let gone = if all.len() > MOST { least_used(&mut all, &key) } else { None };
        drop(all);
        for old in replaced.into_iter().chain(gone) {
            self.end(&old.connection);
        }
        connection
    }

    fn end(&self, connection: &Connection) {
        connection.retired().cancel();
        let Some((_, (server, person))) = self.ids.remove(&connection.id) else { return };
        let is_there = self.all.lock().contains_key(&(server.clone(), person.clone()));
        if !is_there {
            self.change(&person, |lists| drop(lists.remove(&server)));
        }
    }

    /// Ends the connections without calls that nobody has used for [`IDLE`], and those that `stays` refuses.
    pub fn sweep(&self, stays: impl Fn(&str, &Connection) -> bool) {
        let goes = |(server, _): &Key, known: &mut PersonalConnection| {
            let is_idle = known.used.elapsed() >= IDLE && known.connection.in_flight() == 0;
            is_idle || !stays(server, &known.connection)
        };
        let gone: Vec<_> = self.all.lock().extract_if(goes).map(|(_, known)| known.connection).collect();
        for connection in gone {
            self.end(&connection);
        }
    }

    /// Ends a person's connection to a server.
    pub fn end_of(&self, server: &str, person: &str) {
        let gone = self.all.lock().remove(&(server.into(), person.into()));
        if let Some(known) = gone {
            self.end(&known.connection);
        }
    }

    /// Returns how many there are.
    pub fn count(&self) -> usize {
        self.all.lock().len()
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

    fn change(&self, person: &Arc<str>, change: impl FnOnce(&mut PersonLists)) {
        let before = self.people.get(person).map(|lists| PersonLists::clone(&lists)).unwrap_or_default();
        let mut after = before;
        change(&mut after);
        match after.is_empty() {
            true => drop(self.people.remove(person)),
            false => drop(self.people.insert(person.clone(), Arc::new(after))),
        }
        self.listed.store(self.people.len(), Ordering::Relaxed);
    }

    /// Takes a list of a server of which people have accounts of their own. Returns what the catalogue shows:
    /// everything that the server lists for the gateway itself, and the tools that it lists for people. Their
    /// resources and prompts are not shown to others.
    pub fn take(&self, server: &Arc<str>, connection: u64, listing: Listing) -> Listing {
        let of_person = self.ids.get(&connection).map(|key| key.1.clone());
        let mut lists = self.lists.lock();
        let known = lists.entry(server.clone()).or_default();
        match of_person {
            None => known.shared = Some(listing),
            Some(person) => {
                let names: HashSet<Arc<str>> =
                    listing.tools.iter().filter_map(|tool| Some(own_name(tool)?.into())).collect();
                for tool in listing.tools {
                    let Some(name) = own_name(&tool) else { continue };
                    match known.extra.get(name) {
                        // The first definition stays: it was read, and perhaps trusted.
                        Some(first) if *first != tool => {
                            tracing::info!(%server, tool = name, "the server describes this tool differently to different people");
                        }
                        Some(_) => {}
                        None if known.extra.len() < MOST_EXTRA => {
                            known.extra.insert(name.into(), tool.clone());
                        }
                        None => {
                            tracing::warn!(%server, tool = name, "too many tools that only some people have")
                        }
                    }
                }
                if known.shared.is_none() {
                    known.shared = Some(Listing { about: listing.about, ..Listing::default() });
                }
                self.change(&person, |lists| drop(lists.insert(server.clone(), Arc::new(names))));
            }
        }
        let mut all = known.shared.clone().unwrap_or_default();
        let has: HashSet<Arc<str>> =
            all.tools.iter().filter_map(|tool| Some(own_name(tool)?.into())).collect();
        all.tools.extend(
            known.extra.iter().filter(|(name, _)| !has.contains(*name)).map(|(_, tool)| tool.clone()),
        );
        all
    }

    /// Forgets the lists of servers that are gone.
    pub fn forget(&self, is_there: impl Fn(&str) -> bool) {
        self.lists.lock().retain(|server, _| is_there(server));
    }
}

/// Takes out the connection that was used least lately and has no call in flight, except this one.
fn least_used(all: &mut HashMap<Key, PersonalConnection>, except: &Key) -> Option<PersonalConnection> {
    let idle = all.iter().filter(|(key, known)| *key != except && known.connection.in_flight() == 0);
    let oldest = idle.min_by_key(|(_, known)| known.used).map(|(key, _)| key.clone())?;
    all.remove(&oldest)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn listing(tools: &[&str]) -> Listing {
        let tools = tools.iter().map(|name| Arc::new(json!({ "name": name }))).collect();
        Listing { tools, resources: vec![json!({ "uri": "file:///ann" })], ..Listing::default() }
    }

    #[test]
    fn the_catalogue_shows_the_tools_of_all_and_the_resources_of_none() {
        let personal = PersonalConnections::default();
        let server: Arc<str> = "s".into();
        personal.ids.insert(7, (server.clone(), "ann".into()));
        let names = |listing: &Listing| {
            listing.tools.iter().filter_map(|tool| own_name(tool)).map(String::from).collect::<Vec<_>>()
        };
        let all = personal.take(&server, 7, listing(&["a", "b"]));
        assert_eq!((names(&all), all.resources.len()), (vec!["a".into(), "b".into()], 0));
        let all = personal.take(&server, 1, listing(&["b", "c"]));
        assert_eq!((names(&all), all.resources.len()), (vec!["b".into(), "c".into(), "a".into()], 1));
        let ann = Person::of("i", json!({ "sub": "x" }).as_object().cloned().expect("claims")).expect("one");
        assert!(personal.lists_of(&ann).is_none());
        let lists = personal.people.get("ann").map(|lists| lists["s"].len());
        assert_eq!(lists, Some(2));
        personal.change(&"ann".into(), |lists| lists.clear());
        assert_eq!(personal.listed.load(Ordering::Relaxed), 0);
    }
}
