//! Documents with all that is needed to rank them: keywords, letters, names and, once they are there, vectors.
//!
//! Immutable. Knows documents; has not heard of models or of where documents come from.

use std::{collections::HashMap, sync::Arc};

use super::{
    Document, Found, Settings,
    fusion::{self, tune},
    keywords::Bm25,
    query::Query,
    text,
    vectors::Vectors,
};

/// An immutable index. Share it by `Arc`; a new set of documents is a new index.
pub struct Index {
    words: Arc<Words>,
    vectors: Option<Vectors>,
    hnsw_above: usize,
}

/// What does not change when vectors arrive.
struct Words {
    documents: Vec<Document>,
    keywords: Bm25<String>,
    trigrams: Bm25<u64>,
    /// Each document's names as words, sorted, for exact and prefix matches.
    names: Vec<(String, usize)>,
}

/// How well a request is a document's name; the better ones are ranked first whatever their scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Pin {
    /// It is not.
    No,
    /// A beginning of its name, written as a name.
    Prefix,
    /// The words of its name.
    Name,
    /// Its full name, letter by letter.
    Full,
}

impl Index {
    /// Indexes documents by keyword, at once. Ids should be unique.
    pub fn new(documents: Vec<Document>, settings: &Settings) -> Index {
        let keywords = Bm25::new(documents.iter().map(weighted_terms));
        let trigrams = Bm25::new(documents.iter().map(weighted_trigrams));
        let mut names: Vec<(String, usize)> = Vec::new();
        for (number, document) in documents.iter().enumerate() {
            names.push((text::words(&document.name).join(" "), number));
            names.push((text::words(&format!("{} {}", document.group, document.name)).join(" "), number));
        }
        names.retain(|(name, _)| !name.is_empty());
        names.sort();
        let words = Arc::new(Words { documents, keywords, trigrams, names });
        Index { words, vectors: None, hnsw_above: settings.hnsw_above }
    }

    /// The same documents with a vector each, in the same order. Vectors that do not fit are left out as a whole: the
    /// index then answers from keywords.
    pub fn with_vectors(&self, vectors: Vec<Arc<[f32]>>) -> Index {
        let fitting = vectors.len() == self.words.documents.len();
        let made = fitting.then(|| Vectors::new(&vectors, self.hnsw_above)).flatten();
        if made.is_none() && !self.words.documents.is_empty() {
            tracing::error!(
                documents = self.words.documents.len(),
                vectors = vectors.len(),
                "vectors do not fit"
            );
        }
        Index { words: self.words.clone(), vectors: made, hnsw_above: self.hnsw_above }
    }

    /// The documents, in the order they were given.
    pub fn documents(&self) -> &[Document] {
        &self.words.documents
    }

    /// Whether it can search by meaning.
    pub fn has_vectors(&self) -> bool {
        self.vectors.is_some()
    }

    /// The best `limit` documents among those allowed, best first.
    pub fn search(&self, query: &Query, limit: usize, allowed: &dyn Fn(&Document) -> bool) -> Found {
        fusion::search(self, query, limit, allowed)
    }

    pub(super) fn vectors(&self) -> Option<&Vectors> {
        self.vectors.as_ref()
    }

    pub(super) fn has_graph(&self) -> bool {
        self.vectors.as_ref().is_some_and(Vectors::has_graph)
    }

    pub(super) fn keywords<'q>(&self, terms: impl IntoIterator<Item = (&'q str, f32)>) -> Vec<f32> {
        self.words.keywords.scores(terms)
    }

    pub(super) fn trigrams<'q>(&self, grams: impl IntoIterator<Item = (&'q u64, f32)>) -> Vec<f32> {
        self.words.trigrams.scores(grams)
    }

    /// The share of what was said that a document has, 0..1.
    pub(super) fn coverage<'q>(&self, said: impl IntoIterator<Item = &'q str>, document: usize) -> f32 {
        self.words.keywords.coverage(said, document as u32)
    }

    /// The documents that the request names.
    pub(super) fn pins(&self, query: &Query) -> HashMap<usize, Pin> {
        let mut pins = HashMap::new();
        let mut pin = |document: usize, how: Pin| {
            let known = pins.entry(document).or_insert(how);
            *known = how.max(*known);
        };
        for key in query.mentions.iter().chain([&query.key]).filter(|key| !key.is_empty()) {
            for document in self.named(key, false) {
                pin(document, Pin::Name);
            }
        }
        if query.is_identifier {
            for document in self.named(&query.key, true) {
                pin(document, Pin::Prefix);
            }
        }
        for (&document, how) in &mut pins {
            if is_full_name(&self.words.documents[document], &query.verbatim) {
                *how = Pin::Full;
            }
        }
        pins
    }

    /// The documents with this name, or with names that begin so.
    fn named(&self, key: &str, prefix: bool) -> impl Iterator<Item = usize> {
        let names = &self.words.names;
        let start = names.partition_point(|(name, _)| name.as_str() < key);
        let matching = move |name: &str| if prefix { name.starts_with(key) } else { name == key };
        names[start..].iter().take_while(move |(name, _)| matching(name)).map(|&(_, document)| document)
    }
}

fn is_full_name(document: &Document, verbatim: &str) -> bool {
    let joined = |by: &str| format!("{}{by}{}", document.group, document.name).to_lowercase() == verbatim;
    document.id.to_lowercase() == verbatim || joined(".") || joined("__")
}

/// What a document can be found by, with how much each field counts.
fn weighted_terms(document: &Document) -> Vec<(String, f32)> {
    let mut all = Vec::new();
    let mut add = |text: &str, weight: f32| {
        if weight > 0.0 {
            all.extend(text::terms(text).into_iter().map(|term| (term, weight)));
        }
    };
    add(&document.group, *tune::F_GROUP);
    add(&document.name, *tune::F_NAME);
    add(&document.title, *tune::F_TITLE);
    add(&document.description, *tune::F_DESC);
    document.terms.iter().for_each(|term| add(term, *tune::F_TERM));
    for (name, description) in &document.parameters {
        add(name, *tune::F_PARAM);
        add(description, *tune::F_PDESC);
    }
    add(&document.group_description, *tune::F_GDESC);
    all
}

fn weighted_trigrams(document: &Document) -> Vec<(u64, f32)> {
    let mut texts = vec![&*document.group, &*document.name, &document.title];
    if *tune::TRI_ALL > 0.0 {
        texts.push(&document.description);
    }
    texts.extend(document.terms.iter().map(String::as_str));
    texts.into_iter().flat_map(text::trigrams).map(|gram| (gram, 1.0)).collect()
}
