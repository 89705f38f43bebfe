//! Servers of the registry that could do what no connected server does.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use nonet_api::{fault::NextStep, tools::RegistryHit};
use nonet_base::text::line;
use nonet_config::RegistrySettings;
use nonet_registry::{FoundServer, Registry, ServerReference};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use crate::servers::Servers;

/// How long a search waits for the registry; what comes later helps the next one.
const PATIENCE: Duration = Duration::from_millis(1_500);
/// How many answers are kept, and for how long.
const KEPT: usize = 64;
const LASTS: Duration = Duration::from_secs(600);
/// How many servers a search names.
const SUGGESTED: usize = 3;
/// The longest text of an answer, in characters.
const SUMMARY: usize = 160;

/// Servers that were found, as answers show them.
type Hits = Arc<[RegistryHit]>;

/// The latest answers of a registry.
#[derive(Default)]
pub(crate) struct Suggestions(Mutex<VecDeque<KeptHits>>);

struct KeptHits {
    at: Instant,
    settings: RegistrySettings,
    words: String,
    hits: Hits,
}

impl Servers {
    /// Finds servers in the registry, or says why that fails.
    pub async fn find_in_registry(&self, words: &str, most: usize) -> Result<Hits, String> {
        let settings = self.config().registry.clone();
        let known = |kept: &&KeptHits| {
            kept.settings == settings
                && kept.words == words
                && kept.at.elapsed() < LASTS
                && kept.hits.len() <= most
        };
        if let Some(kept) = self.suggestions.0.lock().iter().find(known) {
            return Ok(kept.hits.clone());
        }
        let registry = Registry::new(&settings).map_err(|error| error.to_string())?;
        let found = registry.find(words, most).await.map_err(|error| error.to_string())?;
        let hits: Hits = found.iter().map(shown).collect();
        let mut kept = self.suggestions.0.lock();
        kept.truncate(KEPT - 1);
        kept.push_front(KeptHits { at: Instant::now(), settings, words: words.into(), hits: hits.clone() });
        Ok(hits)
    }

    /// Names servers of the registry for a search that found nothing, if the configuration wants that and the
    /// registry answers soon.
    pub async fn suggested(self: &Arc<Self>, words: &str) -> Option<Vec<RegistryHit>> {
        if !self.config().registry.suggest {
            return None;
        }
        let (servers, words) = (self.clone(), line(words, 200));
        let asking = self.life.tasks.spawn(async move { servers.find_in_registry(&words, SUGGESTED).await });
        match tokio::time::timeout(PATIENCE, asking).await {
            Ok(Ok(Ok(hits))) => {
                let bare =
                    |hit: &RegistryHit| RegistryHit { needs: Vec::new(), next_step: None, ..hit.clone() };
                Some(hits.iter().map(bare).collect())
            }
            Ok(Ok(Err(why))) => {
                tracing::warn!(why, "no suggestions from the registry");
                None
            }
            Ok(Err(_)) | Err(_) => None,
        }
    }
}

/// Returns a server as answers show it, with the call that proposes it to the user. A bundle has none, because a model
/// unpacks nothing.
fn shown(server: &FoundServer) -> RegistryHit {
    let detail = &server.detail;
    let ways = nonet_registry::ways(server, None).unwrap_or_default();
    let own = ServerReference::read(&detail.name).map(|reference| reference.short()).unwrap_or_default();
    let usable = ways.iter().copied().find(|way| way.kind() != "mcpb");
    let entry =
        usable.and_then(|way| nonet_registry::entry(server, way, None, &own, &Default::default()).ok());
    let needs: Vec<String> =
        entry.iter().flat_map(|entry| &entry.asked).map(|asked| asked.key.clone()).collect();
    let next_step = entry.filter(|_| needs.is_empty()).map(|entry| {
        let keys = entry
            .keys
            .into_iter()
            .filter(|(key, _)| ["command", "args", "env", "url", "headers"].contains(&&**key));
        let mut params: Map<String, Value> = keys.map(|(key, value)| (key, literal(value))).collect();
        params.insert("name".into(), json!(own));
        NextStep::own("add_server", Value::Object(params))
    });
    RegistryHit {
        name: detail.name.clone(),
        version: line(&detail.version, 40),
        description: line(&detail.description, SUMMARY),
        runs_as: ways.iter().map(|way| way.kind().to_owned()).collect(),
        add: format!("nonet add {}", detail.name),
        needs,
        next_step,
    }
}

/// Returns texts of servers.toml as they are meant: a call takes them literally.
fn literal(value: Value) -> Value {
    match value {
        Value::String(text) => text.replace("$${", "${").into(),
        Value::Array(items) => items.into_iter().map(literal).collect(),
        Value::Object(fields) => fields.into_iter().map(|(key, value)| (key, literal(value))).collect(),
        other => other,
    }
}
