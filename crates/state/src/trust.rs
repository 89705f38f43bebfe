//! Compares the lists of servers with the trusted definitions before they are published.

use std::{sync::Arc, time::Duration};

use nonet_config::{Config, ServerSettings};
use nonet_servers::{
    catalog::Listing,
    pins::{ChangeNews, Definitions, Pins, TrustRules},
};
use nonet_text::name::RESERVED;

use crate::{
    publisher::{KnownList, KnownLists, Publisher},
    world::World,
};

/// How often it looks whether another process has trusted something.
const LOOK: Duration = Duration::from_secs(1);

/// The rules and pins of a list's last check.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckBasis {
    rules: TrustRules,
    revision: (u64, i64),
}

/// The unreported changes of one server.
pub struct ServerNews {
    /// The server whose definitions changed.
    pub server: Arc<str>,
    /// Its changes.
    pub news: Vec<ChangeNews>,
}

/// Returns the configured rules for changes of a server.
fn rules(config: &Config, server: &str, settings: &ServerSettings) -> TrustRules {
    let (on_change, rule) = match settings.on_change {
        Some(own) => (own, format!("servers.{server}.on_change")),
        None => (config.gateway.on_change, "gateway.on_change".into()),
    };
    TrustRules { on_change, rule, new_servers: config.gateway.new_servers }
}

impl Publisher {
    /// Opens the pins, which takes a while.
    pub async fn open_pins(&self) {
        let pins = self.pins.clone();
        let _ = tokio::task::spawn_blocking(move || pins.revision()).await;
    }

    /// Compares the lists of the file's servers with the pins, unless that was done already. Returns whether
    /// the published lists change, and the unreported changes.
    pub async fn check_lists(&self, known: &mut KnownLists, world: &World) -> (bool, Vec<ServerNews>) {
        let of_file =
            known.iter().filter(|(server, known)| !RESERVED.contains(&&***server) && known.session.is_none());
        let work: Vec<(Arc<str>, KnownList, TrustRules)> = of_file
            .filter_map(|(server, known)| {
                let settings = world.connections.get(server)?.settings();
                let is_of_session = settings.session.is_some();
                (!is_of_session)
                    .then(|| (server.clone(), known.clone(), rules(&world.config, server, &settings)))
            })
            .collect();
        if work.is_empty() {
            return (false, Vec::new());
        }
        let pins = self.pins.clone();
        let checked = tokio::task::spawn_blocking(move || {
            let revision = pins.begin_check();
            pins.retain(|server| work.iter().any(|(known, ..)| known == server));
            let check = |(server, known, rules): (Arc<str>, KnownList, TrustRules)| {
                let with = CheckBasis { rules, revision };
                (known.checked.as_ref() != Some(&with)).then(|| check(&pins, server, &known, with))
            };
            work.into_iter().filter_map(check).collect::<Vec<_>>()
        });
        let Ok(checked) = checked.await else {
            tracing::error!("the lists of servers could not be compared with the pins");
            // Lists that were not compared are not published.
            known.retain(|server, one| {
                RESERVED.contains(&&**server) || one.session.is_some() || one.checked.is_some()
            });
            return (true, Vec::new());
        };
        let mut differs = false;
        let mut news = Vec::new();
        for (server, listing, with, of_server) in checked {
            if let Some(known) = known.get_mut(&server) {
                differs |= known.listing != listing;
                if known.listing != listing {
                    known.listing = listing;
                }
                known.checked = Some(with);
            }
            if !of_server.is_empty() {
                news.push(ServerNews { server, news: of_server });
            }
        }
        (differs, news)
    }

    /// Returns once something may have been trusted: in this process, or in another one while definitions
    /// wait.
    pub async fn trust_moved(&self) {
        let elsewhere = async {
            let mut beat = tokio::time::interval(LOOK);
            loop {
                beat.tick().await;
                if !self.pins.is_waiting() {
                    continue;
                }
                let pins = self.pins.clone();
                if tokio::task::spawn_blocking(move || pins.has_moved()).await.unwrap_or(false) {
                    return;
                }
            }
        };
        tokio::select! {
            () = self.pins.trusted.notified() => {}
            () = elsewhere => {}
        }
    }
}

/// Checks one list. Blocks.
fn check(
    pins: &Pins,
    server: Arc<str>,
    known: &KnownList,
    with: CheckBasis,
) -> (Arc<str>, Arc<Listing>, CheckBasis, Vec<ChangeNews>) {
    let raw = &known.raw;
    let listed = Definitions {
        tools: raw.tools.clone(),
        prompts: raw.prompts.clone(),
        instructions: raw.about.clone(),
    };
    let checked = pins.check(&server, &listed, &with.rules);
    let Definitions { tools, prompts, instructions } = checked.definitions;
    let listing =
        Listing { tools, prompts, about: instructions, trust: checked.trust, ..Listing::clone(raw) };
    (server, Arc::new(listing), with, checked.news)
}
