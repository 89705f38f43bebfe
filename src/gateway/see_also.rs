//! Skills and apps that a search for a tool may have meant as well.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{Gateway, Snapshot, gate::Gate, skills::listed};
use crate::{config::Config, prose, search::outcomes, skills};

/// How long the skills in folders are taken as they were read.
const FRESH: Duration = Duration::from_secs(10);
/// How many are named.
const NAMED: usize = 2;
/// The share of the request's words that one has to have, and how many at least.
const SHARE: f32 = 0.6;
const AT_LEAST: usize = 2;
/// How long a description is, in characters.
const SUMMARY: usize = 100;

/// What there is beside tools, as it was at one moment.
#[derive(Debug)]
pub(super) struct Guides {
    read: Instant,
    generation: u64,
    config: Arc<Config>,
    all: Vec<Guide>,
}

/// A skill or an app.
#[derive(Debug)]
struct Guide {
    /// The server whose prompt it is.
    server: Option<Arc<str>>,
    /// What it is called and about, as the words that count in a request.
    words: BTreeSet<String>,
    /// The call that runs it, and its description.
    shown: Value,
}

impl Guide {
    fn new(server: Option<&Arc<str>>, call: Value, name: &str, description: &str) -> Self {
        let words = outcomes::words(&format!("{} {description}", name.replace(['-', '_', '/'], " ")));
        let mut shown = call;
        let description = prose::plain(description, SUMMARY);
        if !description.is_empty() {
            shown["description"] = json!(description);
        }
        Self { server: server.cloned(), words: words.into_iter().collect(), shown }
    }
}

impl Gateway {
    /// The skills and apps that have most of a request's words, each with the call that runs it.
    pub(super) async fn see_also(&self, gate: &Gate, words: &[String]) -> Vec<Value> {
        let (config, snapshot) = (gate.config(), &gate.snapshot);
        let nothing = config.gateway.skills.is_empty()
            && config.apps.is_empty()
            && snapshot.catalog.servers().values().all(|entry| entry.listing.prompts.is_empty());
        if nothing || words.is_empty() {
            return Vec::new();
        }
        let guides = self.guides(config.clone(), snapshot).await;
        let mut fitting: Vec<(usize, &Guide)> = guides
            .all
            .iter()
            .map(|guide| (words.iter().filter(|word| guide.words.contains(*word)).count(), guide))
            .filter(|(shared, _)| *shared >= AT_LEAST.min(words.len()))
            .filter(|(shared, _)| *shared as f32 >= SHARE * words.len() as f32)
            .filter(|(_, guide)| guide.server.as_ref().is_none_or(|server| gate.sees(server)))
            .collect();
        fitting.sort_by_key(|(shared, _)| std::cmp::Reverse(*shared));
        fitting.into_iter().take(NAMED).map(|(_, guide)| guide.shown.clone()).collect()
    }

    async fn guides(&self, config: Arc<Config>, snapshot: &Snapshot) -> Arc<Guides> {
        if let Some(guides) = self.guides.load_full()
            && guides.generation == snapshot.generation
            && Arc::ptr_eq(&guides.config, &config)
            && (config.gateway.skills.is_empty() || guides.read.elapsed() < FRESH)
        {
            return guides;
        }
        let folders = config.gateway.skills.clone();
        let local = tokio::task::spawn_blocking(move || skills::load(&folders)).await.unwrap_or_default();
        let skills = listed(&local, snapshot, &|_| true).into_iter().map(|skill| {
            // The words of a prompt are its own name's, without its server's.
            let own = skill.server.as_ref().and_then(|server| skill.name.strip_prefix(&**server));
            let call = json!({ "tool": "use_skill", "arguments": { "command": skill.name } });
            Guide::new(skill.server.as_ref(), call, own.unwrap_or(&skill.name), &skill.description)
        });
        let apps = config.apps.iter().map(|(id, app)| {
            let call = json!({ "tool": "call_app", "arguments": { "app_id": id } });
            Guide::new(None, call, id, &app.description)
        });
        let all = skills.chain(apps).collect();
        let generation = snapshot.generation;
        let guides = Arc::new(Guides { read: Instant::now(), generation, config, all });
        self.guides.store(Some(guides.clone()));
        guides
    }
}
