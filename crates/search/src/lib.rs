//! Document search: by meaning, by keyword and by name, fused into one order.
//!
//! An [`Index`] of [`Document`]s answers from keywords at once; with vectors from an [`Embedder`] it answers
//! by meaning. This crate knows documents, not servers, tools or a protocol, and waits for no
//! network but behind [`SharedVectors`].
//!
//! ```text
//! definition -> document -> index (keywords, trigrams, names, vectors) \
//! request    -> query (words, synonyms, parts) -> embedder (vectors)  -> fusion -> hits, confidence
//! ```

mod abbreviations;
mod actions;
mod built_in;
mod cache;
mod document;
mod embedder;
mod english;
mod fusion;
mod index;
mod keywords;
mod languages;
mod model;
mod onnxruntime;
pub mod outcomes;
mod products;
mod query;
mod synonyms;
mod text;
mod vectors;
pub mod verbs;
mod weights;

use std::{collections::HashMap, path::PathBuf, sync::Arc};

use query::RequestLanguage;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Returns what an abbreviation of this field means.
pub use abbreviations::meaning as abbreviation;
pub use built_in::{BuiltInModels, backend, bring, built_in};
pub use cache::ContentKey as VectorKey;
pub use document::{Document, Passage, Passages};
pub use embedder::{Backend, EmbedError, Embedder, SharedVectors};
pub use index::Index;
pub use outcomes::{LearnedBoost, Outcome, Outcomes};
pub use query::Query;
pub use text::fold;
pub use vectors::Graph;
pub use weights::RankingWeights;

/// The sentence embedder and the index.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The ONNX Runtime library (1.24 or later) that runs `model`. Without this key ORT_DYLIB_PATH, the
    /// executable's folder and Python's packages are looked at. The built-in model needs no library.
    pub onnxruntime: Option<PathBuf>,
    /// A folder with another sentence embedding model: model.onnx (or onnx/model.onnx) and tokenizer.json, as
    /// `optimum-cli export onnx` writes them, and the JSON files of sentence-transformers if there are any.
    /// It needs ONNX Runtime: `pip install onnxruntime`.
    pub model: Option<PathBuf>,
    /// The folder where vectors are kept between runs. Without it $XDG_CACHE_HOME/nonet or ~/.cache/nonet.
    pub cache: Option<PathBuf>,
    /// With more tools than this a search goes over a graph (HNSW) instead of comparing with every vector.
    // Where the two curves of docs/scale.svg meet: 1.2 ms against 1.4 at 10,000, 6.7 against 2.5 at 30,000.
    pub hnsw_above: usize,
    /// The weights of the ranking; only measurements change single ones.
    #[serde(skip)]
    pub weights: &'static RankingWeights,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            onnxruntime: None,
            model: None,
            cache: None,
            hnsw_above: 10_000,
            weights: &RankingWeights::TOOLS,
        }
    }
}

impl Settings {
    /// Returns the folder of the vector cache: as configured, or else `nonet` in `$XDG_CACHE_HOME` or
    /// `~/.cache`. `None` without a home folder.
    pub fn cache_folder(&self) -> Option<PathBuf> {
        let set =
            || std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|folder| folder.is_absolute());
        let home = || std::env::home_dir().map(|home| home.join(".cache"));
        self.cache.clone().or_else(|| Some(set().or_else(home)?.join("nonet")))
    }
}

/// The result of a search.
#[derive(Clone, Debug)]
pub struct SearchResult {
    /// The best documents, best first, up to the limit.
    pub hits: Vec<Hit>,
    /// Allowed documents that match; with a graph, only those visited.
    pub total: usize,
    /// How likely a right document is among the first five.
    pub confidence: Confidence,
}

/// One document found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hit {
    /// The index in [`Index::documents`].
    pub document: usize,
    /// The score, 0..1; 1 if the request is the document's name.
    pub score: f32,
    /// Whether the request is or contains the document's name.
    pub exact: bool,
    /// Whether the document ranks first by name: the request matches its name, one of its other terms, or the
    /// start of its name.
    pub named: bool,
    /// The cosine of the document's and the request's vectors, -1..1 (for a long request, of the best part);
    /// 0 without vectors.
    pub dense: f32,
    /// The best part of the request, if it has parts.
    pub part: Option<usize>,
    /// The components of the score.
    pub signals: Signals,
}

/// The contribution of each signal to a score.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Signals {
    /// Similarity of meaning.
    pub meaning: f32,
    /// Shared words, including synonyms.
    pub keywords: f32,
    /// Shared trigrams.
    pub letters: f32,
    /// Outcomes of earlier searches, and tools loaded by the session.
    pub learned: f32,
    /// The priority's bonus or penalty.
    pub priority: f32,
    /// Whether the document does what is wanted.
    pub action: f32,
    /// Whether the document is bound to a named product, or to another one.
    pub product: f32,
    /// The penalty for a deprecated document; 0 or less.
    pub deprecated: f32,
}

impl Signals {
    fn sum(self) -> f32 {
        self.fit() + self.priority
    }

    /// Returns the fit, regardless of priority.
    pub fn fit(self) -> f32 {
        self.found() + self.learned
    }

    /// Returns the sum of the document's own contributions.
    fn found(self) -> f32 {
        self.said() + self.action + self.product + self.deprecated
    }

    /// Returns the similarity to the request. Without any, the document is not a match, whatever it does.
    fn said(self) -> f32 {
        self.meaning + self.keywords + self.letters
    }

    fn times(self, factor: f32) -> Signals {
        Signals {
            meaning: self.meaning * factor,
            keywords: self.keywords * factor,
            letters: self.letters * factor,
            learned: self.learned * factor,
            priority: self.priority * factor,
            action: self.action * factor,
            product: self.product * factor,
            deprecated: self.deprecated * factor,
        }
    }

    fn plus(self, other: Signals) -> Signals {
        Signals {
            meaning: self.meaning + other.meaning,
            keywords: self.keywords + other.keywords,
            letters: self.letters + other.letters,
            learned: self.learned + other.learned,
            priority: self.priority + other.priority,
            action: self.action + other.action,
            product: self.product + other.product,
            deprecated: self.deprecated + other.deprecated,
        }
    }
}

/// Score boosts by document number.
pub type Boosts = HashMap<usize, Boost>;

/// The score boost of one document. A boost without a signal is not a match.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Boost {
    /// For outcomes of earlier searches, and for being loaded.
    pub learned: f32,
    /// For a priority; negative if lowered.
    pub priority: f32,
}

/// Why a hit has its rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Explanation {
    /// The contribution of each signal.
    pub signals: Signals,
    /// Whether the hit ranks first by name.
    pub name: bool,
    /// The best part of a long request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<String>,
    /// The words found, as stems, the most distinctive first.
    pub words: Vec<MatchedWord>,
}

/// A word of a request that occurs in a document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MatchedWord {
    /// The word, as a stem.
    pub word: String,
    /// The word of the request, if this one is its synonym or abbreviation.
    #[serde(rename = "for", skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The share of the keyword score.
    pub share: f32,
}

/// What an answer is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Confidence {
    /// The first document is right nine times in ten.
    High,
    /// One of the first documents is likely right.
    Medium,
    /// Nothing here seems right.
    None,
}

impl Confidence {
    /// Returns the level as answers spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Confidence::High => "high",
            Confidence::Medium => "medium",
            Confidence::None => "none",
        }
    }
}

/// Analyses a request and embeds it if possible. Without an embedder, or if embedding fails, search uses
/// keywords only.
pub async fn prepare(index: &Index, embedder: Option<&Embedder>, request: &str) -> Query {
    let query = index.parse(request);
    match embedder.filter(|_| index.has_vectors()) {
        Some(embedder) => match embed(embedder, &query, index.weights().translation).await {
            Ok(vectors) => query.with_vectors(vectors),
            Err(error) => {
                tracing::debug!(%error, "answering from keywords");
                query
            }
        },
        None => query,
    }
}

/// Returns the vectors of [`Query::texts`]. A request in another language than English goes to the built-in
/// encoder of such requests; a folder's model gets it as it was written, because it may read that language.
async fn embed(embedder: &Embedder, query: &Query, translation: f32) -> Result<Vec<Arc<[f32]>>, EmbedError> {
    if query.language == RequestLanguage::English {
        return embedder.embed_queries(&query.texts()).await;
    }
    let Some(languages) = embedder.for_languages() else {
        return embedder.embed_queries(&query.written()).await;
    };
    let written = languages.embed_queries(&query.written()).await?;
    if query.language == RequestLanguage::Other {
        return Ok(written);
    }
    let translated = embedder.embed_queries(&query.texts()).await?;
    let both = |(written, translated): (&Arc<[f32]>, &Arc<[f32]>)| {
        vectors::sum([(&**written, 1.0), (&**translated, translation)]).into()
    };
    Ok(written.iter().zip(&translated).map(both).collect())
}
