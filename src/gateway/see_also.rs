//! Skills and apps that a search for a tool may have meant as well.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{Gateway, Snapshot, session::Caller};
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
    pub(super) async fn see_also(
        &self,
        caller: &Caller,
        snapshot: &Snapshot,
        words: &[String],
    ) -> Vec<Value> {
        let config = self.config();
        let nothing = config.gateway.skills.is_empty()
            && config.apps.is_empty()
            && snapshot.catalog.servers().values().all(|entry| entry.prompts.is_empty());
        if nothing || words.is_empty() {
            return Vec::new();
        }
        let guides = self.guides(config, snapshot).await;
        let mut fitting: Vec<(usize, &Guide)> = guides
            .all
            .iter()
            .map(|guide| (words.iter().filter(|word| guide.words.contains(*word)).count(), guide))
            .filter(|(shared, _)| *shared >= AT_LEAST.min(words.len()))
            .filter(|(shared, _)| *shared as f32 >= SHARE * words.len() as f32)
            .filter(|(_, guide)| {
                guide.server.as_ref().is_none_or(|server| self.gate(&caller.session).sees(server))
            })
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
        let call = |tool: &str, key: &str, name: &str| {
            let mut arguments = json!({});
            arguments[key] = json!(name);
            json!({ "tool": tool, "arguments": arguments })
        };
        let mut all: Vec<Guide> = local
            .iter()
            .map(|skill| {
                Guide::new(None, call("use_skill", "command", &skill.name), &skill.name, &skill.description)
            })
            .collect();
        for (server, entry) in snapshot.catalog.servers() {
            for prompt in &entry.prompts {
                let text = |key: &str| prompt.get(key).and_then(Value::as_str).unwrap_or_default();
                let about = if text("description").is_empty() { text("title") } else { text("description") };
                let name = format!("{server}/{}", text("name"));
                all.push(Guide::new(Some(server), call("use_skill", "command", &name), text("name"), about));
            }
        }
        for (id, app) in &config.apps {
            all.push(Guide::new(None, call("call_app", "app_id", id), id, &app.description));
        }
        let generation = snapshot.generation;
        let guides = Arc::new(Guides { read: Instant::now(), generation, config, all });
        self.guides.store(Some(guides.clone()));
        guides
    }
}
