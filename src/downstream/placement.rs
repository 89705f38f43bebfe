//! Programs that one replica of a cluster runs for all. The gateway finds out where each of them runs; a connection follows: it
//! starts the program, or reaches the replica that has it.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use dashmap::DashMap;
use http::HeaderMap;
use serde_json::{Map, Value, json};
use tokio::sync::{Notify, watch};

use super::{Control, LogLevel};

/// The `_meta` key of what the replica with the program has to know of a call from another one.
const RELAY_KEY: &str = "nonet/relay";

/// Where a program runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// Nowhere, as far as is known.
    #[default]
    Unknown,
    /// On this replica.
    Here,
    /// On this replica until its calls have ended, then on another one.
    Leaving,
    /// On another replica.
    At(Arc<Holder>),
}

impl Place {
    fn is_known(&self) -> bool {
        matches!(self, Self::Here | Self::At(_))
    }
}

/// A replica that runs a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its number in the cluster.
    pub number: u32,
    /// Its name, for people.
    pub name: String,
    /// The address of the program there, by streamable HTTP.
    pub url: String,
    /// What it lets replicas in by.
    pub headers: HeaderMap,
}

/// The places of all such programs.
#[derive(Debug, Default)]
pub struct Placements {
    all: DashMap<Arc<str>, Arc<Placed>>,
    look: Arc<Notify>,
}

impl Placements {
    /// Returns the place of a server's program.
    pub fn of(&self, server: &Arc<str>) -> Arc<Placed> {
        let new = || Arc::new(Placed { look: self.look.clone(), ..Placed::default() });
        self.all.entry(server.clone()).or_insert_with(new).clone()
    }

    /// Has the places looked at soon.
    pub fn look_soon(&self) {
        self.look.notify_one();
    }

    /// Resolves when the places should be looked at: a program was not where it should be.
    pub async fn has_trouble(&self) {
        self.look.notified().await;
    }
}

/// The place of one program.
#[derive(Debug, Default)]
pub struct Placed {
    place: watch::Sender<Place>,
    /// The connections that are up, or on their way.
    links: AtomicUsize,
    is_troubled: AtomicBool,
    look: Arc<Notify>,
}

impl Placed {
    /// Returns the place.
    pub fn get(&self) -> Place {
        self.place.borrow().clone()
    }

    /// Replaces the place.
    pub fn set(&self, place: Place) {
        self.place.send_if_modified(|before| {
            let is_other = *before != place;
            *before = place;
            is_other
        });
    }

    /// Returns whether anything of the program is left here: a process, or a connection to it.
    pub fn is_in_use(&self) -> bool {
        self.links.load(Ordering::Acquire) > 0
    }

    /// Returns whether the program was not reached since this was last asked.
    pub fn take_trouble(&self) -> bool {
        self.is_troubled.swap(false, Ordering::Relaxed)
    }

    /// Says that the program was not reached.
    pub(super) fn report_trouble(&self) {
        self.is_troubled.store(true, Ordering::Relaxed);
        self.look.notify_one();
    }

    /// Counts a connection until the result is dropped.
    pub(super) fn link(self: &Arc<Self>) -> PlacedLink {
        self.links.fetch_add(1, Ordering::AcqRel);
        PlacedLink(self.clone())
    }

    /// Waits until the program has a place.
    pub(super) async fn known(&self) {
        // The sender is here.
        let _ = self.place.subscribe().wait_for(Place::is_known).await;
    }

    /// Waits until the program has another place than this one. Returns it.
    pub(super) async fn left(&self, before: &Place) -> Place {
        let mut places = self.place.subscribe();
        let place = places.wait_for(|place| place != before).await.map(|place| place.clone());
        place.unwrap_or_default()
    }
}

/// A connection to a program that has a place.
pub(super) struct PlacedLink(Arc<Placed>);

impl Drop for PlacedLink {
    fn drop(&mut self) {
        self.0.links.fetch_sub(1, Ordering::AcqRel);
    }
}

/// What the replica with a program has to know of a call from another one.
#[derive(Debug, Default)]
pub struct Relayed {
    /// The session of the call's client, if it can be asked.
    pub session: Option<u64>,
    /// What that client can be asked.
    pub can: Map<String, Value>,
    /// From which level on it wants the server's log.
    pub log: Option<LogLevel>,
    /// Whose turn the call takes.
    pub owner: u64,
    /// How long the call may take, in milliseconds.
    pub timeout_ms: u64,
}

impl Relayed {
    /// Takes it out of the `_meta` of a request.
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

    /// The same conditions of a call, with it in their `_meta`.
    pub(super) fn put(control: &Control) -> Control {
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
        Control {
            timeout: control.timeout,
            cancel: control.cancel.clone(),
            progress: control.progress.clone(),
            meta,
            asker: control.asker.clone(),
            owner: control.owner,
            held: control.held.clone(),
        }
    }
}
