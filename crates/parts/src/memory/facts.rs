//! Facts: remembering, finding and forgetting them.

use std::{collections::BTreeSet, sync::Arc};

use nonet_base::text::{clip, hex};
use nonet_search::{self as search, Boosts, Confidence, Document, Embedder, fold};
use nonet_store::{NewRecord, Record, RecordKind, RecordQuota, StoreError};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{Memory, shelf::FactView};

/// The maximum number of facts per owner.
pub const MOST_FACTS: usize = 10_000;
/// The maximum number of tags per fact.
pub(super) const MOST_TAGS: usize = 10;
/// How many facts are compared with a new one, how many similar ones are named, and the minimum share of
/// common words.
const COMPARED: usize = 8;
const NAMED: usize = 3;
const SIMILAR: f64 = 0.6;
/// How much of a text is compared, in characters.
const COMPARED_TEXT: usize = 400;
/// How many facts without vectors a search waits for.
const FEW: usize = 32;
/// The least score of a fact that is likely about the query.
const NEAR: f32 = 0.45;
/// Hits below this share of the best score are left out, unless the caller sets a limit.
const FAR: f32 = 0.5;

/// A fact, as it is kept.
#[derive(Debug)]
pub struct Fact {
    /// Its id, text and tags.
    pub document: Arc<Document>,
    /// When it was last stated, in milliseconds since 1970.
    pub at_ms: u64,
    pub(super) revision: u64,
}

/// The outcome of remembering a fact.
#[derive(Debug)]
pub enum FactOutcome {
    /// The fact is kept.
    Kept {
        /// `fact-` and 12 hex digits, a hash of the text: the same text always has the same id.
        id: String,
        /// All tags of the fact, including earlier ones, at most 10.
        tags: Vec<String>,
        /// Whether the same fact was known already.
        known: bool,
        /// The ids of facts with almost the same words.
        similar: Vec<Arc<str>>,
    },
    /// The owner has the maximum number of facts.
    Full,
}

/// The result of a search for facts.
#[derive(Debug)]
pub struct FoundFacts {
    /// The facts with their scores, best first; without a query, the newest first.
    pub facts: Vec<(Arc<Fact>, Option<f32>)>,
    /// The number of matching facts.
    pub total: usize,
    /// The number of the owner's facts.
    pub of: usize,
    pub confidence: Option<Confidence>,
    /// Whether only words were compared, because there are no vectors.
    pub by_words: bool,
}

impl FoundFacts {
    /// Whether the first fact is likely about the query.
    pub fn fits(&self) -> bool {
        let is_sure = self.confidence == Some(Confidence::High);
        self.facts.first().is_some_and(|(_, score)| is_sure || score.is_some_and(|score| score >= NEAR))
    }
}

impl Fact {
    /// Reads the fact of a record; `None` if the record is not a fact.
    pub(super) fn of(record: &Record) -> Option<Fact> {
        let content = record.body["content"].as_str()?;
        let tags = record.body["tags"].as_array().into_iter().flatten();
        let tags = tags.filter_map(|tag| tag.as_str().map(str::to_owned)).collect();
        let document = Arc::new(Document::prose(&record.id, content, tags));
        Some(Fact { document, at_ms: record.put_ms, revision: record.revision })
    }

    fn has(&self, tags: &[String]) -> bool {
        tags.iter().all(|tag| self.document.terms.iter().any(|own| fold(own) == *tag))
    }
}

impl Memory {
    /// Remembers a fact. Texts that differ only in case and spacing are the same fact, which then counts as
    /// new and has the tags of both.
    pub async fn remember(
        &self,
        owner: &str,
        content: &str,
        tags: &[String],
        embedder: Option<&Embedder>,
    ) -> Result<FactOutcome, StoreError> {
        let id = id_of(content);
        let shelf = self.shelf(owner);
        let mut state = shelf.current(&self.records, embedder).await?;
        // With many facts, indexing them costs more than including them in this search is worth.
        if state.len() <= MOST_FACTS / 10 {
            state.index().await;
        }
        let known = self.records.get(RecordKind::Fact, owner, &id).await?;
        let before = known.as_ref().and_then(Fact::of);
        let mut all: Vec<String> = before.map(|fact| fact.document.terms.clone()).unwrap_or_default();
        all.extend(tags.iter().cloned());
        let mut seen = BTreeSet::new();
        all.retain(|tag| seen.insert(fold(tag)));
        let all = all.split_off(all.len().saturating_sub(MOST_TAGS));
        let record = NewRecord {
            owner: owner.into(),
            id: id.clone(),
            held: false,
            ..NewRecord::new(RecordKind::Fact, json!({ "content": content, "tags": all }))
        };
        if self.records.put(record, RecordQuota::Refuse(MOST_FACTS)).await?.is_none() {
            return Ok(FactOutcome::Full);
        }
        let fact = Fact {
            document: Arc::new(Document::prose(&id, content, all.clone())),
            at_ms: self.clock.unix_ms(),
            revision: known.as_ref().map_or(1, |record| record.revision + 1),
        };
        let similar = state.view().similar(&fact);
        state.put(fact);
        drop(state);
        self.catch_up(&shelf, embedder);
        Ok(FactOutcome::Kept { id, tags: all, known: known.is_some(), similar })
    }

    /// Finds facts with all of these tags: the best matches for a query, or the newest facts.
    pub async fn recall(
        &self,
        owner: &str,
        query: &str,
        tags: &[String],
        limit: Option<usize>,
        embedder: Option<&Embedder>,
    ) -> Result<FoundFacts, StoreError> {
        let shelf = self.shelf(owner);
        let mut state = shelf.current(&self.records, embedder).await?;
        let missing = state.missing_vectors();
        if missing > 0 && embedder.is_some() {
            drop(state);
            self.catch_up(&shelf, embedder);
            if missing <= FEW {
                shelf.caught_up().await;
            }
            state = shelf.current(&self.records, embedder).await?;
        }
        let view = state.index().await;
        drop(state);
        let tags: Vec<String> = tags.iter().map(|tag| fold(tag.trim())).collect();
        let most = limit.unwrap_or(5);
        let allowed = |at: usize| view.facts[at].has(&tags);
        if query.trim().is_empty() || view.facts.is_empty() {
            let of = view.facts.len();
            let with_tags: Vec<&Arc<Fact>> = view.facts.iter().filter(|fact| fact.has(&tags)).collect();
            let total = with_tags.len();
            let facts = with_tags.into_iter().take(most).map(|fact| (fact.clone(), None)).collect();
            return Ok(FoundFacts { facts, total, of, confidence: None, by_words: false });
        }
        let request = search::prepare(&view.index, embedder, query).await;
        let found = view.index.search(&request, most, &allowed, &Boosts::new());
        let least = match limit {
            None => found.hits.first().map_or(0.0, |hit| FAR * hit.score),
            Some(_) => 0.0,
        };
        let hits = found.hits.iter().filter(|hit| hit.score >= least);
        Ok(FoundFacts {
            facts: hits.map(|hit| (view.facts[hit.document].clone(), Some(hit.score))).collect(),
            total: found.total,
            of: view.facts.len(),
            confidence: Some(found.confidence),
            by_words: !request.has_vectors(),
        })
    }

    /// Counts an owner's facts.
    pub async fn count(&self, owner: &str) -> Result<usize, StoreError> {
        self.records.count_of(RecordKind::Fact, owner).await
    }

    /// Removes a fact and returns its text and tags; `None` if there is no such fact.
    pub async fn forget(&self, owner: &str, id: &str) -> Result<Option<Value>, StoreError> {
        let shelf = self.shelf(owner);
        let mut state = shelf.current(&self.records, None).await?;
        let taken = self.records.take(RecordKind::Fact, owner, id).await?;
        if taken.is_some() {
            state.remove(id);
            drop(state);
            self.catch_up(&shelf, None);
        }
        Ok(taken.map(|record| record.body))
    }
}

impl FactView {
    /// Returns the ids of facts with almost the same words.
    fn similar(&self, new: &Fact) -> Vec<Arc<str>> {
        let text = clip(&new.document.description, COMPARED_TEXT);
        let found = self.index.search(&self.index.parse(&text), COMPARED, &|_| true, &Boosts::new());
        let own = words(&text);
        let facts = found.hits.iter().map(|hit| &self.facts[hit.document].document);
        let near = facts.filter(|other| other.id != new.document.id).filter(|other| {
            let others = words(&clip(&other.description, COMPARED_TEXT));
            let common = own.intersection(&others).count() as f64;
            common >= SIMILAR * own.union(&others).count().max(1) as f64
        });
        near.take(NAMED).map(|other| other.id.clone()).collect()
    }
}

fn words(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.map(fold).collect()
}

/// Returns the id of a text, regardless of case and spacing: two gateways that store the same fact at the
/// same time keep one.
fn id_of(content: &str) -> String {
    let folded = content.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase();
    format!("fact-{}", hex(&Sha256::digest(folded.as_bytes())[..6]))
}
