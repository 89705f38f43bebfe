//! `gateway.remember`, `gateway.recall` and `gateway.forget`: facts that outlive the session.

use futures::FutureExt;
use nonet_api::tools::RememberedFact;
use nonet_base::{clock::at_unix_ms, json::set_member, text::clip};
use nonet_parts::memory::{FactOutcome, MOST_FACTS};
use nonet_store::StoreError;
use nonet_text::{
    aliases::Aliases,
    fault::{Fault, FaultCode, NextStep},
    secrets::without_secrets,
};
use serde_json::{Value, json};

use super::{Access, OwnTool, read};
use crate::{Gateway, call::text_result, find::Find, gate::Gate};
use nonet_state::session::Caller;

/// The longest fact and the longest tag, in characters.
const MAX_CONTENT: usize = 4_000;
const MAX_TAG: usize = 50;
/// How much of a fact a search for tools shows, in characters.
const SHOWN_FACT: usize = 500;
/// How many similar facts the fault for a wrong id lists.
const NEAREST: usize = 3;

pub(super) const REMEMBER: OwnTool = OwnTool {
    name: "remember",
    title: "Remember a fact",
    description: "Remember, or note down, a fact for later sessions: preferences, decisions, schedules, names, what the user told you about something. One fact per call, as a sentence that is clear by itself. Secrets are left out.",
    properties: || {
        json!({
            "content": { "type": "string", "minLength": 1, "maxLength": MAX_CONTENT, "description": "The fact" },
            "tags": { "type": "array", "items": { "type": "string", "maxLength": MAX_TAG }, "maxItems": 10 },
        })
    },
    required: &["content"],
    access: Access::Reversible,
    aliases: Aliases(&[
        ("content", &["fact", "text", "note", "memory", "value", "information"]),
        ("tags", &["tag", "labels", "topics"]),
    ]),
    run: |gateway, caller, params| async move { remember(gateway, caller, read(params)?).await }.boxed(),
};

pub(super) const RECALL: OwnTool = OwnTool {
    name: "recall",
    title: "Recall remembered facts",
    description: "Recall what was remembered in earlier sessions: facts, preferences and decisions that the user told you about something, found by meaning. Without query: the newest.",
    properties: || {
        json!({
            "query": { "type": "string", "maxLength": MAX_CONTENT, "description": "What to recall" },
            "tags": { "type": "array", "items": { "type": "string" }, "description": "Only facts with all of these" },
            "limit": { "type": "integer", "minimum": 1, "maximum": 50, "description": "5 if absent" },
        })
    },
    required: &[],
    access: Access::ReadOnly,
    aliases: Aliases(&[
        ("query", &["q", "search", "text", "question", "content", "topic"]),
        ("tags", &["tag", "labels", "topics"]),
        ("limit", &["count", "maxresults", "topk"]),
    ]),
    run: |gateway, caller, params| async move { recall(gateway, caller, read(params)?).await }.boxed(),
};

pub(super) const FORGET: OwnTool = OwnTool {
    name: "forget",
    title: "Forget a remembered fact",
    description: "Forget one remembered fact, by its id from recall. The answer has the fact, so that it can be remembered again.",
    properties: || json!({ "id": { "type": "string", "description": "From recall or remember" } }),
    required: &["id"],
    access: Access::Reversible,
    aliases: Aliases(&[("id", &["fact", "factid", "memoryid"])]),
    run: |gateway, caller, params| async move { forget(gateway, caller, read(params)?).await }.boxed(),
};

#[derive(serde::Deserialize)]
struct RememberArguments {
    content: String,
    #[serde(default)]
    tags: Vec<String>,
}

#[derive(serde::Deserialize)]
struct RecallArguments {
    #[serde(default)]
    query: String,
    #[serde(default)]
    tags: Vec<String>,
    limit: Option<usize>,
}

#[derive(serde::Deserialize)]
struct ForgetArguments {
    id: String,
}

async fn remember(gateway: &Gateway, caller: &Caller, arguments: RememberArguments) -> Result<Value, Fault> {
    let mut left_out = MaskedSecrets::default();
    let content = left_out.clean("content", &arguments.content)?;
    let mut tags = Vec::new();
    for tag in arguments.tags.iter().filter(|tag| !tag.trim().is_empty()) {
        tags.push(left_out.clean("tags", tag)?);
    }
    let (owner, embedder) = (caller.owner(), gateway.publisher.embedder());
    let kept = gateway.keeping.memory.remember(owner.key(), &content, &tags, embedder.as_ref()).await;
    let (id, tags, known, similar) = match kept.map_err(|error| store_fault(&error))? {
        FactOutcome::Kept { id, tags, known, similar } => (id, tags, known, similar),
        FactOutcome::Full => {
            let message = format!(
                "{MOST_FACTS} facts are already remembered, which is the maximum. Forget some first."
            );
            return Err(full(message, recall_call(&content)));
        }
    };
    let mut answer = json!({ "id": id });
    if known {
        answer["known"] = json!(true);
    }
    if !tags.is_empty() {
        answer["tags"] = json!(tags);
    }
    if !similar.is_empty() {
        answer["similar"] = json!(similar);
    }
    left_out.tell(&mut answer);
    Ok(text_result(answer.to_string()))
}

async fn recall(gateway: &Gateway, caller: &Caller, arguments: RecallArguments) -> Result<Value, Fault> {
    let RecallArguments { query, tags, limit } = arguments;
    let (owner, embedder) = (caller.owner(), gateway.publisher.embedder());
    let recalled = gateway.keeping.memory.recall(owner.key(), &query, &tags, limit, embedder.as_ref()).await;
    let recalled = recalled.map_err(|error| store_fault(&error))?;
    let facts: Vec<Value> = recalled
        .facts
        .iter()
        .map(|(fact, score)| {
            let mut entry = json!({ "id": &*fact.document.id, "content": fact.document.description });
            if !fact.document.terms.is_empty() {
                entry["tags"] = json!(fact.document.terms);
            }
            entry["at"] = json!(humantime::format_rfc3339_seconds(at_unix_ms(fact.at_ms)).to_string());
            if let Some(score) = score {
                entry["score"] = json!((f64::from(*score) * 1000.0).round() / 1000.0);
            }
            entry
        })
        .collect();
    let mut answer = json!({ "facts": facts, "total": recalled.total });
    if let Some(confidence) = recalled.confidence {
        answer["confidence"] = json!(confidence);
    }
    let hint = match (facts.is_empty(), recalled.of) {
        (true, 0) => Some("Nothing is remembered yet. gateway.remember keeps a fact."),
        (true, _) if !tags.is_empty() => {
            Some("No fact has all of these tags and matches. Try fewer tags, or none.")
        }
        (true, _) if recalled.by_words => Some(
            "No fact matches these words, and search by meaning is not available. Try the words that the fact would have, or recall without query for the newest.",
        ),
        (true, _) => Some("No fact matches. Try other words, or recall without query for the newest."),
        (false, _) if recalled.confidence.is_some() && !recalled.fits() => {
            Some("None of the remembered facts seems to be about this; these are the nearest.")
        }
        (false, _) => None,
    };
    if let Some(hint) = hint {
        answer["hint"] = json!(hint);
    }
    Ok(text_result(answer.to_string()))
}

impl Find {
    /// Counts the facts that a caller can recall.
    pub async fn count_facts(&self, caller: &Caller) -> usize {
        match self.can_recall(caller) {
            true => self.keeping.memory.count(caller.owner().key()).await.unwrap_or_default(),
            false => 0,
        }
    }

    fn can_recall(&self, caller: &Caller) -> bool {
        Gate::of(&self.publisher, &caller.session).offers(&RECALL)
    }

    /// Returns the remembered fact that is likely about a query.
    pub(crate) async fn remembered(&self, caller: &Caller, query: &str) -> Option<RememberedFact> {
        if !self.can_recall(caller) {
            return None;
        }
        let (owner, embedder) = (caller.owner(), self.publisher.embedder());
        let found =
            self.keeping.memory.recall(owner.key(), query, &[], Some(1), embedder.as_ref()).await.ok()?;
        let (fact, _) = found.facts.first().filter(|_| found.fits())?;
        let content = clip(&fact.document.description, SHOWN_FACT);
        Some(RememberedFact { id: fact.document.id.to_string(), content })
    }
}

async fn forget(gateway: &Gateway, caller: &Caller, arguments: ForgetArguments) -> Result<Value, Fault> {
    let owner = caller.owner();
    let id = arguments.id.trim();
    let forgotten =
        gateway.keeping.memory.forget(owner.key(), id).await.map_err(|error| store_fault(&error))?;
    if let Some(mut fact) = forgotten {
        set_member(&mut fact, "forgotten", id);
        return Ok(text_result(fact.to_string()));
    }
    // A call with the text of a fact instead of its id gets the id.
    let near = gateway.keeping.memory.recall(owner.key(), id, &[], Some(NEAREST), None).await;
    let near = near.map(|near| near.facts).unwrap_or_default();
    let message = format!("There is no fact `{}`. recall gives the ids of facts.", clip(id, 60));
    let ids = near.iter().map(|(fact, _)| fact.document.id.clone());
    Err(Fault::new(FaultCode::NotFound, message).suggest(ids).then(recall_call(id)))
}

fn recall_call(query: &str) -> NextStep {
    NextStep::own("recall", json!({ "query": clip(query, 100) }))
}

/// The secrets removed from the texts of a call.
#[derive(Default)]
pub(super) struct MaskedSecrets(Vec<Value>);

impl MaskedSecrets {
    /// Returns a text without its secrets; a fault if nothing else remains.
    pub(super) fn clean(&mut self, field: &str, text: &str) -> Result<String, Fault> {
        let text = text.trim();
        let (clean, kinds) = without_secrets(text);
        if clean.is_empty() || !kinds.is_empty() && !clean.contains(char::is_alphanumeric) {
            let message = match kinds.is_empty() {
                true => format!("`{field}` is empty."),
                false => format!(
                    "`{field}` is a secret and nothing else, and secrets are not kept. Say what it is for and where the user keeps it."
                ),
            };
            return Err(Fault::new(FaultCode::InvalidParams, message));
        }
        self.0.extend(kinds.iter().map(|kind| json!({ "kind": kind.to_lowercase(), "in": field })));
        Ok(clean)
    }

    /// Reports the removed secrets in an answer.
    pub(super) fn tell(self, answer: &mut Value) {
        if !self.0.is_empty() {
            set_member(answer, "left_out", self.0);
            set_member(answer, "hint", "What looks like a secret is not kept: `***` replaces it.");
        }
    }
}

/// Builds the fault for an exhausted quota: the same call succeeds only after another step.
pub(super) fn full(message: String, step: NextStep) -> Fault {
    Fault { retryable: false, ..Fault::new(FaultCode::RateLimited, message).then(step) }
}

/// Builds the fault for a store that cannot be used.
pub(super) fn store_fault(error: &StoreError) -> Fault {
    tracing::warn!(%error, "memory");
    nonet_state::faults::of_store("Nothing was remembered or recalled", error)
}
