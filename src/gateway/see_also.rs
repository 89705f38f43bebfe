//! Skills and apps that a search for a tool may have meant as well.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use arc_swap::ArcSwapOption;
use serde_json::{Value, json};

use super::{gate::Gate, skills::listed};
use crate::{config::Config, prose, search::outcomes, skills};

/// How long a reading of the skill folders stays fresh.
const FRESH: Duration = Duration::from_secs(10);
/// How many guides a search names.
const NAMED: usize = 2;
/// The share of the request's words that a guide needs, and the least number of words.
const SHARE: f32 = 0.6;
const AT_LEAST: usize = 2;
/// How long a description is, in characters.
const SUMMARY: usize = 100;

/// The skills and apps beside the tools.
#[derive(Debug, Default)]
pub(super) struct Guides {
    last: ArcSwapOption<KnownGuides>,
}

/// The skills and apps at one moment.
#[derive(Debug)]
struct KnownGuides {
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
    /// The words of its name and description that count in a request.
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

impl Guides {
    /// The skills and apps that have most of a request's words, each with the call that runs it.
    pub async fn see_also(&self, gate: &Gate, words: &[String]) -> Vec<Value> {
        let config = gate.config();
        let nothing = config.gateway.skills.is_empty()
            && config.apps.is_empty()
            && gate.catalog().servers().values().all(|entry| entry.listing.prompts.is_empty());
        if nothing || words.is_empty() {
            return Vec::new();
        }
        let known = self.known(gate).await;
        let mut fitting: Vec<(usize, &Guide)> = known
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

    async fn known(&self, gate: &Gate) -> Arc<KnownGuides> {
        let (config, generation) = (gate.config(), gate.snapshot.generation);
        if let Some(known) = self.last.load_full()
            && known.generation == generation
            && Arc::ptr_eq(&known.config, config)
            && (config.gateway.skills.is_empty() || known.read.elapsed() < FRESH)
        {
            return known;
        }
        let folders = config.gateway.skills.clone();
        let local = tokio::task::spawn_blocking(move || skills::load(&folders)).await.unwrap_or_default();
        let skills = listed(&local, &gate.snapshot, &|_| true).into_iter().map(|skill| {
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
        let known = Arc::new(KnownGuides { read: Instant::now(), generation, config: config.clone(), all });
        self.last.store(Some(known.clone()));
        known
    }
}
