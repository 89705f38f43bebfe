//! Finding documents: by meaning, by keyword, by name, fused into one order.
//!
//! Give [`Index`] its [`Document`]s and it answers from keywords at once; give it vectors from an [`Embedder`] and it
//! answers by meaning. This room knows documents. It has not heard of servers, tools or a protocol, and nothing in it
//! waits for a network.
//!
//! ```text
//! definition -> document -> index (keywords, trigrams, names, vectors) \
//! request    -> query (words, synonyms, parts) -> embedder (vectors)  -> fusion -> hits, confidence
//! ```

mod abbreviations;
mod actions;
mod cache;
mod document;
mod embedder;
pub mod eval;
mod fusion;
mod index;
mod int8;
mod keywords;
mod languages;
mod model;
mod onnx;
mod onnxruntime;
pub mod outcomes;
mod products;
mod query;
mod rules;
mod synonyms;
mod text;
mod vectors;
pub mod verbs;

use std::{collections::HashMap, path::PathBuf};

pub use document::{Document, Passage, Passages};
pub use embedder::{Backend, EmbedError, Embedder};
pub use index::Index;
pub use outcomes::{Learned, Outcome, Outcomes};
pub use query::Query;
pub use rules::{Rule, Rules};
pub use text::fold;
pub use vectors::Graph;

/// The sentence embedder and the index.
#[derive(Clone, Debug, PartialEq, serde::Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The ONNX Runtime library to use (1.24 or later). Without it ORT_DYLIB_PATH, the executable's folder and Python's
    /// packages are looked at, and then the built-in engine is used.
    pub onnxruntime: Option<PathBuf>,
    /// A folder with another sentence embedding model: model.onnx (or onnx/model.onnx) and tokenizer.json, as
    /// `optimum-cli export onnx` writes them, and the JSON files of sentence-transformers if there are any.
    pub model: Option<PathBuf>,
    /// The folder where vectors are kept between runs. Without it $XDG_CACHE_HOME/nonet or ~/.cache/nonet.
    pub cache: Option<PathBuf>,
    /// With more tools than this a search goes over a graph (HNSW) instead of comparing with every vector.
    // Where the two curves of docs/scale.svg meet: 1.2 ms against 1.4 at 10,000, 6.7 against 2.5 at 30,000.
    pub hnsw_above: usize,
    /// The rules of the ranking; only measurements switch some off.
    #[serde(skip)]
    pub rules: Rules,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { onnxruntime: None, model: None, cache: None, hnsw_above: 10_000, rules: Rules::default() }
    }
}

impl Settings {
    /// The folder where vectors are kept: as set, else `nonet` in `$XDG_CACHE_HOME` or `~/.cache`. None if there is
    /// no home to put it in.
    pub fn cache_folder(&self) -> Option<PathBuf> {
        let set =
            || std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|folder| folder.is_absolute());
        let home = || std::env::home_dir().map(|home| home.join(".cache"));
        self.cache.clone().or_else(|| Some(set().or_else(home)?.join("nonet")))
    }
}

/// What a search found.
#[derive(Clone, Debug)]
pub struct Found {
    /// The best documents, best first, at most as many as asked for.
    pub hits: Vec<Hit>,
    /// Allowed documents that match at all; over a graph, those that were looked at.
    pub total: usize,
    /// Whether what was asked for is likely among the first five.
    pub confidence: Confidence,
}

/// One found document.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hit {
    /// Its place in [`Index::documents`].
    pub document: usize,
    /// What it is ranked by, 0..1; 1 where the request is its name.
    pub score: f32,
    /// Whether the request is, or mentions, its name.
    pub exact: bool,
    /// Whether it comes before all others for its name: that, or one of its other words, or a beginning of its name.
    pub named: bool,
    /// Cosine of its vector and the request's (of a long request: of the best part's), -1..1; 0 without vectors.
    pub dense: f32,
    /// The part of the request that fits it best, if the request has parts.
    pub part: Option<usize>,
    /// What the score is made of.
    pub signals: Signals,
}

/// What each signal adds to a score.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Signals {
    /// Nearness of meaning.
    pub meaning: f32,
    /// Words that both have, synonyms included.
    pub keywords: f32,
    /// Three-letter windows that both have.
    pub letters: f32,
    /// What earlier searches led to, and what the session has loaded.
    pub learned: f32,
    /// What its priority adds, or takes away.
    pub priority: f32,
    /// Whether it does what is wanted.
    pub action: f32,
    /// Whether it is bound to a product that was named, or to one that was not.
    pub product: f32,
    /// What is taken off where it calls itself deprecated; 0 or less.
    pub deprecated: f32,
}

impl Signals {
    fn sum(self) -> f32 {
        self.fit() + self.priority
    }

    /// How well it fits, whatever its priority.
    pub fn fit(self) -> f32 {
        self.found() + self.learned
    }

    /// The sum of what the document itself adds.
    fn found(self) -> f32 {
        self.said() + self.action + self.product + self.deprecated
    }

    /// What is like the request in it. Without any of that it is no match, whatever it does.
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

/// What is added to the scores of single documents, by their number.
pub type Boosts = HashMap<usize, Boost>;

/// What is added to the score of one document. Alone it is no match.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Boost {
    /// For what earlier searches led to, and for being loaded.
    pub learned: f32,
    /// For its priority; below 0 where it is lowered.
    pub priority: f32,
}

/// Why a hit stands where it stands.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Explanation {
    /// What each signal adds to the score.
    pub signals: Signals,
    /// Whether it comes before all others for its name.
    pub name: bool,
    /// The part of a long request that fits it best.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<String>,
    /// The words found in it, the most telling first; as stems.
    pub words: Vec<MatchedWord>,
}

/// A word of a request that a document has.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct MatchedWord {
    /// The word, as a stem.
    pub word: String,
    /// What was said instead of it, where it is a synonym or an abbreviation.
    #[serde(rename = "for", skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Its share in what keywords add.
    pub share: f32,
}

/// How likely the right document is among the first five.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Confidence {
    /// Nine times in ten.
    High,
    /// More often than not.
    Medium,
    /// There may be nothing of the kind.
    Low,
}

impl Confidence {
    /// The word for it, as it stands in the answer.
    pub fn as_str(self) -> &'static str {
        match self {
            Confidence::High => "high",
            Confidence::Medium => "medium",
            Confidence::Low => "low",
        }
    }
}

/// Analyses a request and embeds it, if that is possible. Without an embedder, and when embedding fails, the answer will
/// come from keywords.
pub async fn prepare(index: &Index, embedder: Option<&Embedder>, request: &str) -> Query {
    let query = index.parse(request);
    match embedder.filter(|_| index.has_vectors()) {
        Some(embedder) => match embedder.embed_queries(&query.texts()).await {
            Ok(vectors) => query.with_vectors(vectors),
            Err(error) => {
                tracing::debug!(%error, "answered from keywords");
                query
            }
        },
        None => query,
    }
}
