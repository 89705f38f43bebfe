//! Programs that one replica of a cluster runs for all. The gateway finds out where each program runs, and a
//! connection follows: it starts the program, or connects to the replica that runs it.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use dashmap::DashMap;
use http::HeaderMap;
use serde_json::{Map, Value, json};
use tokio::sync::{Notify, watch};

use super::{CallControl, LogLevel};

/// The `_meta` key for what the replica with the program needs to know about another replica's call.
const RELAY_KEY: &str = "nonet/relay";

/// Where a program runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ProgramPlace {
    /// Nowhere known.
    #[default]
    Unknown,
    /// On this replica.
    Here,
    /// On this replica until its calls have ended, then on another replica.
    Leaving,
    /// On another replica.
    At(Arc<ProgramHolder>),
}

impl ProgramPlace {
    fn is_known(&self) -> bool {
        matches!(self, Self::Here | Self::At(_))
    }
}

/// A replica that runs a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramHolder {
    /// Its number in the cluster.
    pub number: u32,
    /// Its name, for people.
    pub name: String,
    /// The program's address there, by streamable HTTP.
    pub url: String,
    /// The headers that admit replicas there.
    pub headers: HeaderMap,
}

/// The places of all such programs.
#[derive(Debug, Default)]
pub struct Placements {
    all: DashMap<Arc<str>, Arc<ProgramPlacement>>,
    look: Arc<Notify>,
}

impl Placements {
    /// Returns the place of a server's program.
    pub fn of(&self, server: &Arc<str>) -> Arc<ProgramPlacement> {
        let new = || Arc::new(ProgramPlacement { look: self.look.clone(), ..ProgramPlacement::default() });
        self.all.entry(server.clone()).or_insert_with(new).clone()
    }

    /// Requests that the places be checked soon.
    pub fn look_soon(&self) {
        self.look.notify_one();
    }

    /// Resolves when the places should be checked, because a program was not where it was expected.
    pub async fn has_trouble(&self) {
        self.look.notified().await;
    }
}

/// The place of one program.
#[derive(Debug, Default)]
pub struct ProgramPlacement {
    place: watch::Sender<ProgramPlace>,
    /// The connections that are up or being opened.
    links: AtomicUsize,
    is_troubled: AtomicBool,
    look: Arc<Notify>,
}

impl ProgramPlacement {
    /// Returns the place.
    pub fn get(&self) -> ProgramPlace {
        self.place.borrow().clone()
    }

    /// Replaces the place.
    pub fn set(&self, place: ProgramPlace) {
        self.place.send_if_modified(|before| {
            let is_other = *before != place;
            *before = place;
            is_other
        });
    }

    /// Returns whether any part of the program is left here: a process, or a connection to one.
    pub fn is_in_use(&self) -> bool {
        self.links.load(Ordering::Acquire) > 0
    }

    /// Returns whether the program was unreachable at any time since the last query.
    pub fn take_trouble(&self) -> bool {
        self.is_troubled.swap(false, Ordering::Relaxed)
    }

    /// Reports that the program was unreachable.
    pub(super) fn report_trouble(&self) {
        self.is_troubled.store(true, Ordering::Relaxed);
        self.look.notify_one();
    }

    /// Counts a connection until the returned value is dropped.
    pub(super) fn link(self: &Arc<Self>) -> PlacedLink {
        self.links.fetch_add(1, Ordering::AcqRel);
        PlacedLink(self.clone())
    }

    /// Waits until the program has a place.
    pub(super) async fn known(&self) {
        // Never fails, because the sender lives in `self`.
        let _ = self.place.subscribe().wait_for(ProgramPlace::is_known).await;
    }

    /// Waits until the program's place changes from `before`. Returns the new place.
    pub(super) async fn left(&self, before: &ProgramPlace) -> ProgramPlace {
        let mut places = self.place.subscribe();
        let place = places.wait_for(|place| place != before).await.map(|place| place.clone());
        place.unwrap_or_default()
    }
}

/// A connection to a program with a place.
pub(super) struct PlacedLink(Arc<ProgramPlacement>);

impl Drop for PlacedLink {
    fn drop(&mut self) {
        self.0.links.fetch_sub(1, Ordering::AcqRel);
    }
}

/// What the replica with a program needs to know about another replica's call.
#[derive(Debug, Default)]
pub struct RelayedCall {
    /// The session of the call's client, if the client can be asked.
    pub session: Option<u64>,
    /// The client's capabilities for servers' requests.
    pub can: Map<String, Value>,
    /// The minimum level of server log messages that the client wants.
    pub log: Option<LogLevel>,
    /// The owner of the call's turn.
    pub owner: u64,
    /// How long the call may take, in milliseconds.
    pub timeout_ms: u64,
}

impl RelayedCall {
    /// Takes the conditions out of a request's `_meta`.
    pub fn take(meta: &mut Map<String, Value>) -> Self {
        let given = meta.remove(RELAY_KEY).unwrap_or_default();
        Self {
            session: given["session"].as_u64(),
            can: given["can"].as_object().cloned().unwrap_or_default(),
            log: serde_json::from_value(given["log"].clone()).ok(),
            owner: given["owner"].as_u64().unwrap_or_default(),
            timeout_ms: given["timeout_ms"].as_u64().unwrap_or_default(),
        }
    }

    /// Returns a call's conditions with these data added to their `_meta`.
    pub(super) fn put(control: &CallControl) -> CallControl {
        let asker = control.asker.as_ref();
        let relayed = json!({
            "session": asker.map(|asker| asker.session),
            "can": asker.map(|asker| &*asker.can),
            "log": asker.and_then(|asker| asker.log),
            "owner": control.owner,
            "timeout_ms": u64::try_from(control.timeout.as_millis()).unwrap_or(u64::MAX),
        });
        let mut meta = control.meta.clone();
        meta.insert(RELAY_KEY.into(), relayed);
        CallControl { meta, ..control.clone() }
    }
}
