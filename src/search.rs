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

mod cache;
mod document;
mod embedder;
pub mod eval;
mod fusion;
mod index;
mod int8;
mod keywords;
mod model;
mod onnx;
mod onnxruntime;
pub mod outcomes;
mod query;
mod synonyms;
mod text;
mod vectors;

use std::path::PathBuf;

pub use document::Document;
pub use embedder::{Backend, EmbedError, Embedder};
pub use index::Index;
pub use outcomes::{Learned, Outcome, Outcomes};
pub use query::Query;

/// The sentence embedder and the index.
#[derive(Clone, Debug, serde::Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The ONNX Runtime library to use (1.24 or later). Without it ORT_DYLIB_PATH, the executable's folder and Python's
    /// packages are looked at, and then the built-in engine is used.
    pub onnxruntime: Option<PathBuf>,
    /// A folder with another sentence embedding model: model.onnx and tokenizer.json.
    pub model: Option<PathBuf>,
    /// The folder where vectors are kept between runs. Without it $XDG_CACHE_HOME/nonet or ~/.cache/nonet.
    pub cache: Option<PathBuf>,
    /// With more tools than this a search goes over a graph (HNSW) instead of comparing with every vector.
    // Measured with 384 numbers each: exact takes 0.2 ms at 3,000 vectors, 4.8 ms at 30,000 and 15 ms at 100,000; the
    // graph 0.4, 1.3 and 1.9 ms, after 1.6 s, 104 s and 458 s of building.
    pub hnsw_above: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { onnxruntime: None, model: None, cache: None, hnsw_above: 10_000 }
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
    /// Cosine of its vector and the request's (of a long request: of the best part's), -1..1; 0 without vectors.
    pub dense: f32,
    /// Its keyword score as a share of the best one, 0..1.
    pub keyword: f32,
    /// Its score by three-letter windows as a share of the best one, 0..1.
    pub trigram: f32,
    /// Whether the request is, or mentions, its name.
    pub exact: bool,
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

/// Embeds a request, if that is possible, and searches. Without an embedder, and when embedding fails, the answer
/// comes from keywords.
pub async fn search(
    index: &Index,
    embedder: Option<&Embedder>,
    text: &str,
    limit: usize,
    allowed: &(dyn Fn(&Document) -> bool + Sync),
) -> Found {
    let mut query = Query::parse(text);
    if let Some(embedder) = embedder.filter(|_| index.has_vectors()) {
        let mut vectors = Vec::new();
        for text in query.texts() {
            match embedder.embed_query(&text).await {
                Ok(vector) => vectors.push(vector),
                Err(error) => {
                    tracing::debug!(%error, "answered from keywords");
                    vectors.clear();
                    break;
                }
            }
        }
        query = query.with_vectors(vectors);
    }
    index.search(&query, limit, &|document| allowed(document))
}
