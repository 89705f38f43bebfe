//! Documents with all that is needed to rank them: keywords, letters, names and, once they are there, vectors.
//!
//! Immutable. Knows documents; has not heard of models or of where documents come from.

use std::{collections::HashMap, sync::Arc};

use super::{Document, Found, Settings, fusion, keywords::Bm25, query::Query, text, vectors::Vectors};

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
    /// What documents are called, as words, sorted, for exact and prefix matches.
    names: Vec<(String, usize, Pin)>,
}

/// How well a request is a document's name; the better ones are ranked first whatever their scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Pin {
    /// It is not.
    No,
    /// A beginning of its name, written as a name.
    Prefix,
    /// One of its other words, and nothing else: who configured it there wants it found by it.
    Term,
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
        let mut names: Vec<(String, usize, Pin)> = Vec::new();
        for (number, document) in documents.iter().enumerate() {
            let mut add = |name: &str, pin| names.push((text::words(name).join(" "), number, pin));
            add(&document.name, Pin::Name);
            add(&format!("{} {}", document.group, document.name), Pin::Name);
            document.terms.iter().for_each(|term| add(term, Pin::Term));
        }
        names.retain(|(name, ..)| !name.is_empty());
        names.sort();
        let words = Arc::new(Words { documents, keywords, trigrams, names });
        Index { words, vectors: None, hnsw_above: settings.hnsw_above }
    }

    /// The same documents with a vector each, in the same order. Vectors that do not fit are left out as a whole: the
    /// index then answers from keywords. Beyond `hnsw_above` documents the graph is built here, which takes seconds to
    /// minutes: call it where blocking is allowed.
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
        for (document, how) in self.named(&query.key, false) {
            pin(document, how);
        }
        for mention in &query.mentions {
            self.named(mention, false)
                .filter(|&(_, how)| how == Pin::Name)
                .for_each(|(at, how)| pin(at, how));
        }
        if query.is_identifier {
            let beginning = self.named(&query.key, true).filter(|&(_, how)| how == Pin::Name);
            beginning.for_each(|(document, _)| pin(document, Pin::Prefix));
        }
        for (&document, how) in &mut pins {
            if is_full_name(&self.words.documents[document], &query.verbatim) {
                *how = Pin::Full;
            }
        }
        pins
    }

    /// The documents that are called so, or whose names begin so, each with what it is to them.
    fn named(&self, key: &str, prefix: bool) -> impl Iterator<Item = (usize, Pin)> {
        let names = &self.words.names;
        let start = names.partition_point(|(name, ..)| name.as_str() < key);
        let matching =
            move |name: &str| !key.is_empty() && if prefix { name.starts_with(key) } else { name == key };
        names[start..]
            .iter()
            .take_while(move |(name, ..)| matching(name))
            .map(|&(_, document, pin)| (document, pin))
    }
}

fn is_full_name(document: &Document, verbatim: &str) -> bool {
    let joined = |by: &str| format!("{}{by}{}", document.group, document.name).to_lowercase() == verbatim;
    document.id.to_lowercase() == verbatim || joined(".") || joined("__")
}

/// A parameter's description says what goes in, not what comes out: it counts less than the other fields. Measured
/// from 0 to 0.5.
const PARAMETER_DESCRIPTION: f32 = 0.3;
/// A group's description says the same of all its documents. Measured from 0 to 0.4.
const GROUP_DESCRIPTION: f32 = 0.2;

/// What a document can be found by, with how much each word counts.
fn weighted_terms(document: &Document) -> Vec<(String, f32)> {
    let mut all = Vec::new();
    let mut add =
        |text: &str, weight: f32| all.extend(text::terms(text).into_iter().map(|term| (term, weight)));
    add(&document.group, 1.0);
    add(&document.name, 1.0);
    add(&document.title, 1.0);
    add(&document.description, 1.0);
    document.terms.iter().for_each(|term| add(term, 1.0));
    for (name, description) in &document.parameters {
        add(name, 1.0);
        add(description, PARAMETER_DESCRIPTION);
    }
    add(&document.group_description, GROUP_DESCRIPTION);
    all
}

/// The letters of all but parameters, which would blur names.
fn weighted_trigrams(document: &Document) -> Vec<(u64, f32)> {
    let texts = [&*document.group, &*document.name, &document.title, &document.description];
    let texts = texts.into_iter().chain(document.terms.iter().map(String::as_str));
    texts.flat_map(text::trigrams).map(|gram| (gram, 1.0)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::{
        super::{Confidence, vectors},
        *,
    };

    /// `server.tool: description | other words`, one a line.
    fn documents(lines: &[&str]) -> Vec<Document> {
        let document = |line: &&str| {
            let (id, rest) = line.split_once(": ").expect("an id and a description");
            let (description, terms) = rest.split_once(" | ").unwrap_or((rest, ""));
            let (group, name) = id.split_once('.').expect("a group and a name");
            let terms = terms.split_whitespace().map(str::to_owned).collect();
            Document::from_definition(id, group, name, "", description, &Value::Null, terms, "")
        };
        lines.iter().map(document).collect()
    }

    fn catalogue() -> Index {
        let lines = [
            "github.create_issue: Open a new issue in a repository",
            "github.create_issue_comment: Write a comment",
            "gitlab.create_issue: Open a new issue in a project",
            "files.read_file: Give the content of a file | lire",
            "files.write_file: Put content into a file | écrire speichern",
            "weather.forecast: Tell the weather of the coming days for a city | 天气预报",
            "mail.sendMessage: Send a letter to somebody",
            "search.search: Look something up",
        ];
        Index::new(documents(&lines), &Settings::default())
    }

    fn ids(index: &Index, request: &str) -> Vec<String> {
        let found = index.search(&Query::parse(request), 3, &|_| true);
        found.hits.iter().map(|hit| index.documents()[hit.document].id.to_string()).collect()
    }

    #[test]
    fn keywords_find_by_word_name_alias_and_letters() {
        let index = catalogue();
        let check = |request: &str, first: &str| {
            assert_eq!(ids(&index, request).first().map(String::as_str), Some(first), "{request}");
        };
        check("what will the weather be", "weather.forecast");
        check("wether forcast", "weather.forecast");
        check("天气", "weather.forecast");
        check("ecrire", "files.write_file");
        check("ÉCRIRE", "files.write_file");
        check("post a letter", "mail.sendMessage");
        check("github.create_issue", "github.create_issue");
        check("GitLab.create_issue", "gitlab.create_issue");
        check("gitlab__create_issue", "gitlab.create_issue");
        check("`create_issue_comment`", "github.create_issue_comment");
        check("create_issue_c", "github.create_issue_comment");
        check("gitlab.create", "gitlab.create_issue");
        check("sendMessage", "mail.sendMessage");
        check("send message", "mail.sendMessage");
        check("how do I call read_file for a weather forecast of my city?", "files.read_file");
        check("search", "search.search");
        check("speichern", "files.write_file");
    }

    #[test]
    fn nothing_is_found_for_nothing() {
        let index = catalogue();
        for request in ["", "the", "🦀", "zzzz qqqq"] {
            let found = index.search(&Query::parse(request), 3, &|_| true);
            assert!(found.hits.is_empty() && found.total == 0, "{request}");
            assert_eq!(found.confidence, Confidence::Low);
        }
        let empty = Index::new(Vec::new(), &Settings::default()).with_vectors(Vec::new());
        assert!(empty.search(&Query::parse("x"), 3, &|_| true).hits.is_empty());
    }

    #[test]
    fn equal_scores_are_ordered_by_id() {
        let lines = ["b.get: same", "a.get: same", "c.get: same"];
        let index = Index::new(documents(&lines), &Settings::default());
        assert_eq!(ids(&index, "same get"), ["a.get", "b.get", "c.get"]);
    }

    #[test]
    fn what_is_not_allowed_is_not_found_and_leaves_no_trace() {
        let index = catalogue();
        let query = Query::parse("create_issue");
        let found = index.search(&query, 5, &|document| &*document.group != "github");
        let groups: Vec<&str> =
            found.hits.iter().map(|hit| &*index.documents()[hit.document].group).collect();
        assert!(!groups.contains(&"github"), "{groups:?}");
        assert_eq!(groups.first(), Some(&"gitlab"));
    }

    #[test]
    fn a_name_is_certain_and_scores_are_shares() {
        let index = catalogue();
        let found = index.search(&Query::parse("github.create_issue"), 5, &|_| true);
        assert_eq!(found.confidence, Confidence::High);
        assert!(found.hits[0].exact && found.hits[0].score == 1.0);
        assert!(found.hits.iter().all(|hit| (0.0..=1.0).contains(&hit.score)));
    }

    #[test]
    fn vectors_decide_and_filters_still_fill_the_list() {
        let count = 600;
        let lines: Vec<String> =
            (0..count).map(|number| format!("g{}.tool{number}: thing", number % 20)).collect();
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let vectors = vectors::tests::clustered(count, 48, 12);
        let exact = Index::new(documents(&lines), &Settings::default()).with_vectors(vectors.clone());
        let graph = Index::new(documents(&lines), &Settings { hnsw_above: 100, ..Settings::default() });
        let graph = graph.with_vectors(vectors.clone());
        assert!(exact.has_vectors() && graph.has_graph() && !exact.has_graph());
        let query = Query::parse("unheard of").with_vectors(vec![vectors[7].clone()]);
        for index in [&exact, &graph] {
            assert_eq!(index.search(&query, 10, &|_| true).hits[0].document, 7);
            let found = index.search(&query, 10, &|document| &*document.group == "g3");
            assert_eq!(found.hits.len(), 10);
            assert!(found.hits.iter().all(|hit| hit.document % 20 == 3));
        }
        let numbers = |index: &Index| -> Vec<usize> {
            index.search(&query, 10, &|_| true).hits.iter().map(|hit| hit.document).collect()
        };
        let near = numbers(&graph);
        assert!(numbers(&exact).iter().filter(|number| near.contains(number)).count() >= 9);
    }

    #[test]
    fn vectors_that_do_not_fit_leave_keywords() {
        let index = catalogue().with_vectors(vec![vec![1.0].into()]);
        assert!(!index.has_vectors());
        assert_eq!(ids(&index, "weather")[0], "weather.forecast");
    }
}
