//! Documents with everything needed to rank them: keywords, letters, names and, once available, vectors.
//!
//! Immutable. Knows documents, not models or where documents come from.

use std::{borrow::Cow, collections::HashMap, sync::Arc};

use nonet_base::persistent::SharedList;

use super::{
    Boosts, Document, Explanation, Hit, MatchedWord, Passage, Passages, SearchResult, Settings,
    actions::{self, Actions},
    cache::ContentKey,
    fusion,
    keywords::Bm25,
    products::Products,
    query::{Query, QueryPart},
    text,
    vectors::{Graph, Vectors},
    weights::RankingWeights,
};

/// An immutable index. Share it by `Arc`; for other documents, make another index, which shares the unchanged
/// parts.
pub struct Index {
    words: Arc<LexicalIndex>,
    vectors: Option<Vectors>,
    graph_above: usize,
}

/// The parts that stay the same when vectors arrive.
#[derive(Default)]
struct LexicalIndex {
    documents: Vec<Arc<Document>>,
    /// The key of each document's passage.
    keys: Vec<ContentKey>,
    /// The slot of each document in `keywords`, `trigrams` and `names`.
    slots: Vec<u32>,
    /// The document number of each slot, or [`GONE`].
    numbers: Vec<u32>,
    keywords: Bm25<Arc<str>>,
    trigrams: Bm25<u64>,
    /// The names of the documents in slots, as words, sorted, for exact and prefix matches.
    names: SharedList<Name>,
    /// What each document does.
    actions: Vec<Actions>,
    products: Products,
    /// Whether each document declares itself replaced by another.
    deprecated: Vec<bool>,
    weights: &'static RankingWeights,
}

/// A name of the document in a slot.
type Name = (Arc<str>, u32, NameMatch);

/// The number of a removed document.
const GONE: u32 = u32::MAX;
/// How many empty slots an index may have beyond one per document; an index with more is rebuilt from
/// scratch.
const SPARE: usize = 1_000;

/// How well a request matches a document's name. Better matches rank first whatever their scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NameMatch {
    /// No match.
    No,
    /// The start of its name, written as a name.
    Prefix,
    /// One of its other terms, and nothing else: whoever configured the term wants the document found by it.
    Term,
    /// The words of its name.
    Name,
    /// Its full name, letter by letter.
    Full,
}

impl Index {
    /// Indexes documents by keyword, at once. Ids should be unique.
    pub fn new(documents: Vec<Document>, settings: &Settings) -> Index {
        let words = LexicalIndex::empty(settings).updated(documents.into_iter().map(Arc::new).collect());
        Index { words: Arc::new(words), vectors: None, graph_above: settings.hnsw_above }
    }

    /// Returns the index of these documents, by keyword: equal to a new one. Reuses the work for documents
    /// that this index has (the same `Arc`), so only the others cost time.
    pub fn updated(&self, documents: Vec<Arc<Document>>, settings: &Settings) -> Index {
        let (before, empty) = (&*self.words, LexicalIndex::empty(settings));
        let unused = before.numbers.len() - before.documents.len();
        let fits = before.weights == empty.weights;
        let words = if fits && unused <= before.documents.len() + SPARE { before } else { &empty };
        let words = Arc::new(words.updated(documents));
        Index { words, vectors: None, graph_above: settings.hnsw_above }
    }

    /// Returns the same documents with their vectors, in the same order; documents without a vector are
    /// ranked by their words. Drops all vectors if any does not fit: the index then answers from keywords.
    pub fn with_vectors(&self, vectors: Vec<Option<Arc<[f32]>>>) -> Index {
        let (documents, count) = (self.words.documents.len(), vectors.len());
        let made = if count == documents { Vectors::new(vectors) } else { None };
        if made.is_none() && documents > 0 {
            tracing::error!(documents, vectors = count, "vectors do not fit");
        }
        Index { words: self.words.clone(), vectors: made, graph_above: self.graph_above }
    }

    /// Returns the same index with a graph over its vectors, built for them or for an earlier version of
    /// them. Returns the index unchanged without vectors, or if there are too few of them, overall or in the
    /// graph.
    pub fn with_graph(&self, graph: Arc<Graph>) -> Index {
        let same =
            Index { words: self.words.clone(), vectors: self.vectors.clone(), graph_above: self.graph_above };
        match self.vectors.as_ref().filter(|vectors| vectors.len() > self.graph_above) {
            Some(vectors) => {
                let with = vectors.with_graph(graph);
                // Vectors outside the graph are compared one by one; beyond this number the graph is no gain.
                if with.outside() <= self.graph_above { Index { vectors: Some(with), ..same } } else { same }
            }
            None => same,
        }
    }

    /// Returns the vectors to build a graph from; `None` if there are too few, or if the current graph has
    /// nearly all of them and little else.
    pub fn wants_graph(&self) -> Option<Vec<Arc<[f32]>>> {
        let vectors = self.vectors.as_ref().filter(|vectors| vectors.len() > self.graph_above)?;
        let much = self.graph_above / 4;
        (vectors.outside() > much || vectors.dead() > vectors.len() / 2).then(|| vectors.rows())
    }

    /// Returns the graph, if any.
    pub fn graph(&self) -> Option<&Arc<Graph>> {
        self.vectors.as_ref()?.graph()
    }

    /// Returns the documents in the order given.
    pub fn documents(&self) -> &[Arc<Document>] {
        &self.words.documents
    }

    /// Whether the index can search by meaning.
    pub fn has_vectors(&self) -> bool {
        self.vectors.is_some()
    }

    /// Whether every document has a vector.
    pub fn has_all_vectors(&self) -> bool {
        self.vectors.as_ref().is_some_and(Vectors::is_whole)
    }

    /// Returns the weights that the index was built with.
    pub fn weights(&self) -> &'static RankingWeights {
        self.words.weights
    }

    /// Analyses a request by the weights of this index.
    pub fn parse(&self, request: &str) -> Query {
        Query::parse(request, self.words.weights)
    }

    /// Returns the best `limit` documents among the allowed ones (by number), best first. `boosts` are added
    /// to the scores of single documents.
    pub fn search(
        &self,
        query: &Query,
        limit: usize,
        allowed: &dyn Fn(usize) -> bool,
        boosts: &Boosts,
    ) -> SearchResult {
        fusion::search(self, query, limit, allowed, boosts)
    }

    /// Explains the rank of a hit.
    pub fn explain(&self, query: &Query, hit: &Hit) -> Explanation {
        let part = hit.part.and_then(|at| query.parts.get(at)).unwrap_or(&query.whole);
        let slot = self.words.slots[hit.document];
        let mut words: Vec<MatchedWord> = part
            .terms
            .iter()
            .map(|term| MatchedWord {
                word: term.term.clone(),
                by: (term.by != term.term).then(|| term.by.clone()),
                share: self.words.keywords.share(term.term.as_str(), term.weight, slot),
            })
            .filter(|word| word.share > 0.0)
            .collect();
        let sum: f32 = words.iter().map(|word| word.share).sum();
        for word in &mut words {
            word.share *= hit.signals.keywords / sum.max(f32::MIN_POSITIVE);
        }
        words.sort_by(|a, b| b.share.total_cmp(&a.share).then_with(|| a.word.cmp(&b.word)));
        let part = hit.part.map(|_| part.text.clone());
        Explanation { signals: hit.signals, name: hit.named, part, words }
    }

    pub(super) fn vectors(&self) -> Option<&Vectors> {
        self.vectors.as_ref()
    }

    pub(super) fn has_graph(&self) -> bool {
        self.graph().is_some()
    }

    /// Returns each document's keyword score; empty without words.
    pub(super) fn keywords(&self, part: &QueryPart) -> Vec<f32> {
        if part.terms.is_empty() {
            return Vec::new();
        }
        self.words.by_number(self.words.keywords.scores(part.weighted()))
    }

    /// Returns each document's trigram score; empty without trigrams.
    pub(super) fn trigrams(&self, part: &QueryPart) -> Vec<f32> {
        if part.trigrams.is_empty() {
            return Vec::new();
        }
        self.words.by_number(self.words.trigrams.scores(part.trigrams.iter().map(|gram| (gram, 1.0))))
    }

    /// Returns the share of the request's words that a document has, 0..1.
    pub(super) fn coverage<'q>(&self, said: impl IntoIterator<Item = &'q str>, document: usize) -> f32 {
        self.words.keywords.coverage(said, self.words.slots[document])
    }

    /// Returns what a document does.
    pub(super) fn actions(&self, document: usize) -> Actions {
        self.words.actions.get(document).copied().unwrap_or_default()
    }

    /// Whether two documents are the same thing from two sources: twin servers, or two versions of one.
    pub(super) fn are_twins(&self, one: usize, other: usize) -> bool {
        /// Cosines of texts that differ in a word or two, and of such texts under the same name.
        const SAME_TEXT: f32 = 0.97;
        const SAME_NAME: f32 = 0.85;
        let near = self.vectors.as_ref().and_then(|vectors| vectors.between(one, other)).unwrap_or(0.0);
        let same_name = || self.words.documents[one].name == self.words.documents[other].name;
        near > SAME_TEXT || (near > SAME_NAME && same_name())
    }

    /// Whether a document declares itself replaced by another.
    pub(super) fn is_deprecated(&self, document: usize) -> bool {
        self.words.deprecated.get(document) == Some(&true)
    }

    pub(super) fn products(&self) -> &Products {
        &self.words.products
    }

    /// Returns the documents that the request names.
    pub(super) fn pins(&self, query: &Query) -> HashMap<usize, NameMatch> {
        let mut pins = HashMap::new();
        let mut pin = |document: usize, how: NameMatch| {
            let known = pins.entry(document).or_insert(how);
            *known = how.max(*known);
        };
        for (document, how) in self.named(&query.key, false) {
            pin(document, how);
        }
        for mention in &query.mentions {
            self.named(mention, false)
                .filter(|&(_, how)| how == NameMatch::Name)
                .for_each(|(at, how)| pin(at, how));
        }
        if query.is_identifier {
            let beginning = self.named(&query.key, true).filter(|&(_, how)| how == NameMatch::Name);
            beginning.for_each(|(document, _)| pin(document, NameMatch::Prefix));
        }
        for (&document, how) in &mut pins {
            if is_full_name(&self.words.documents[document], &query.verbatim) {
                *how = NameMatch::Full;
            }
        }
        pins
    }

    /// Returns the documents with this name or prefix, each with how well it matches.
    fn named(&self, key: &str, prefix: bool) -> impl Iterator<Item = (usize, NameMatch)> {
        let matching =
            move |name: &str| !key.is_empty() && if prefix { name.starts_with(key) } else { name == key };
        let from_key = self.words.names.behind(|(name, ..)| **name < *key);
        from_key
            .take_while(move |(name, ..)| matching(name))
            .map(|&(_, slot, pin)| (self.words.numbers[slot as usize] as usize, pin))
    }
}

impl Passages for Index {
    fn keys(&self) -> Cow<'_, [ContentKey]> {
        Cow::Borrowed(&self.words.keys)
    }

    fn passage(&self, at: usize) -> Cow<'_, Passage> {
        Cow::Owned(self.words.documents[at].passage(self.words.weights))
    }
}

impl LexicalIndex {
    fn empty(settings: &Settings) -> LexicalIndex {
        LexicalIndex { weights: settings.weights, ..LexicalIndex::default() }
    }

    /// Returns the words of these documents. Known documents keep their slots.
    fn updated(&self, documents: Vec<Arc<Document>>) -> LexicalIndex {
        let weights = self.weights;
        let (kept, removed) = differences(&self.documents, &documents);
        let added = || documents.iter().zip(&kept).filter(|(_, kept)| kept.is_none());

        let mut next = self.numbers.len() as u32..;
        let slots: Vec<u32> = kept
            .iter()
            .map(|kept| kept.map_or_else(|| next.next().unwrap_or(GONE), |at| self.slots[at]))
            .collect();
        let mut numbers = vec![GONE; next.start as usize];
        for (number, slot) in (0..).zip(&slots) {
            numbers[*slot as usize] = number;
        }

        let keywords = self.keywords.updated::<String, str>(
            removed.iter().map(|&at| (self.slots[at], weighted_terms(&self.documents[at], weights))),
            added().map(|(document, _)| weighted_terms(document, weights)),
            &slots,
        );
        let trigrams = self.trigrams.updated::<u64, u64>(
            removed.iter().map(|&at| (self.slots[at], weighted_trigrams(&self.documents[at]))),
            added().map(|(document, _)| weighted_trigrams(document)),
            &slots,
        );
        let names = self.names_of_updated(&removed, added().map(|(document, _)| document));

        let products = {
            let gone = removed.iter().map(|&at| &self.documents[at]);
            Products::updated(&self.products, &documents, &kept, gone)
        };
        let each = || documents.iter().zip(&kept);
        let actions = |document: &Document| {
            actions::of_document(&document.group, &document.name, &document.description)
        };
        let deprecated = |document: &Document| {
            !weights.prose
                && (text::is_deprecated(&document.title) || text::is_deprecated(&document.description))
        };
        LexicalIndex {
            keys: each()
                .map(|(new, at)| at.map_or_else(|| new.passage(weights).key, |at| self.keys[at]))
                .collect(),
            actions: each().map(|(new, at)| at.map_or_else(|| actions(new), |at| self.actions[at])).collect(),
            deprecated: each()
                .map(|(new, at)| at.map_or_else(|| deprecated(new), |at| self.deprecated[at]))
                .collect(),
            slots,
            numbers,
            keywords,
            trigrams,
            names,
            products,
            weights,
            documents,
        }
    }

    /// Returns the sorted names without the `removed` documents, and with the `added` ones in the next slots.
    fn names_of_updated<'a>(
        &self,
        removed: &[usize],
        added: impl Iterator<Item = &'a Arc<Document>>,
    ) -> SharedList<Name> {
        let named = |document: &Document, slot: u32| -> Vec<Name> {
            names_of(document).map(|(name, pin)| (name.into(), slot, pin)).collect()
        };
        let new = (self.numbers.len() as u32..).zip(added);
        if self.documents.is_empty() {
            let mut names: Vec<Name> = new.flat_map(|(slot, document)| named(document, slot)).collect();
            names.sort();
            return SharedList::of_sorted(&names);
        }
        let mut names = self.names.clone();
        for name in removed.iter().flat_map(|&at| named(&self.documents[at], self.slots[at])) {
            names.remove(|other| other.cmp(&name));
        }
        for name in new.flat_map(|(slot, document)| named(document, slot)) {
            names.insert(name.clone(), |other| other.cmp(&name));
        }
        names
    }

    /// Reorders values by slot into values by document.
    fn by_number(&self, of_slots: Vec<f32>) -> Vec<f32> {
        self.slots.iter().map(|&slot| of_slots[slot as usize]).collect()
    }
}

/// Returns the old index of each new document, if any, and the indexes of the removed ones. Skips the common
/// beginning and end: a change of one group costs only that group's documents.
fn differences(old: &[Arc<Document>], new: &[Arc<Document>]) -> (Vec<Option<usize>>, Vec<usize>) {
    let is_same = |(one, other): &(&Arc<Document>, &Arc<Document>)| Arc::ptr_eq(one, other);
    let first = old.iter().zip(new).take_while(is_same).count();
    let (old_rest, new_rest) = (&old[first..], &new[first..]);
    let last = old_rest.iter().rev().zip(new_rest.iter().rev()).take_while(is_same).count();
    let between = &old_rest[..old_rest.len() - last];
    let mut places: HashMap<*const Document, usize> =
        (first..).zip(between).map(|(at, document)| (Arc::as_ptr(document), at)).collect();
    let mut kept: Vec<Option<usize>> = (0..first).map(Some).collect();
    let changed = &new_rest[..new_rest.len() - last];
    kept.extend(changed.iter().map(|document| places.remove(&Arc::as_ptr(document))));
    kept.extend((old.len() - last..old.len()).map(Some));
    (kept, places.into_values().collect())
}

/// Returns the names of a document, as words.
fn names_of(document: &Document) -> impl Iterator<Item = (String, NameMatch)> {
    let joined = format!("{} {}", document.group, document.name);
    let own = [&*document.name, &joined].map(|name| (text::words(name).join(" "), NameMatch::Name));
    let terms = document.terms.iter().map(|term| (text::words(term).join(" "), NameMatch::Term));
    own.into_iter().chain(terms).filter(|(name, _)| !name.is_empty())
}

fn is_full_name(document: &Document, verbatim: &str) -> bool {
    let joined = |by: &str| format!("{}{by}{}", document.group, document.name).to_lowercase() == verbatim;
    document.id.to_lowercase() == verbatim || joined(".") || joined("__")
}

/// Returns the words that a document can be found by, with their weights.
fn weighted_terms(document: &Document, weights: &RankingWeights) -> Vec<(String, f32)> {
    let mut all = Vec::new();
    let mut add = |text: &str, weight: f32| {
        if weight > 0.0 {
            all.extend(text::terms(text).into_iter().map(|term| (term, weight)));
        }
    };
    add(&document.group, 1.0);
    add(&document.name, 1.0);
    add(&document.title, 1.0);
    add(&document.description, 1.0);
    document.terms.iter().for_each(|term| add(term, 1.0));
    for (name, description) in &document.parameters {
        add(name, weights.parameters);
        add(description, weights.parameter_descriptions);
    }
    add(&document.group_description, weights.group_description);
    all
}

/// Returns the trigrams of a document's texts except parameters, which would blur names.
fn weighted_trigrams(document: &Document) -> Vec<(u64, f32)> {
    let texts = [&*document.group, &*document.name, &document.title, &document.description];
    let texts = texts.into_iter().chain(document.terms.iter().map(String::as_str));
    texts.flat_map(text::trigrams).map(|gram| (gram, 1.0)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::{
        super::{Boost, Confidence, vectors},
        *,
    };

    /// `server.tool: description | other words`, one per line.
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
        let found = index.search(&index.parse(request), 3, &|_| true, &Boosts::new());
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
            let found = index.search(&index.parse(request), 3, &|_| true, &Boosts::new());
            assert!(found.hits.is_empty() && found.total == 0, "{request}");
            assert_eq!(found.confidence, Confidence::None);
        }
        let empty = Index::new(Vec::new(), &Settings::default()).with_vectors(Vec::new());
        assert!(empty.search(&empty.parse("x"), 3, &|_| true, &Boosts::new()).hits.is_empty());
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
        let query = index.parse("create_issue");
        let found = index.search(&query, 5, &|at| &*index.documents()[at].group != "github", &Boosts::new());
        let groups: Vec<&str> =
            found.hits.iter().map(|hit| &*index.documents()[hit.document].group).collect();
        assert!(!groups.contains(&"github"), "{groups:?}");
        assert_eq!(groups.first(), Some(&"gitlab"));
    }

    #[test]
    fn a_name_is_certain_and_scores_are_shares() {
        let index = catalogue();
        let found = index.search(&index.parse("github.create_issue"), 5, &|_| true, &Boosts::new());
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
        let vectors: Vec<Option<Arc<[f32]>>> =
            vectors::tests::clustered(count, 48, 12).into_iter().map(Some).collect();
        let exact = Index::new(documents(&lines), &Settings::default()).with_vectors(vectors.clone());
        let graph = Index::new(documents(&lines), &Settings { hnsw_above: 100, ..Settings::default() });
        let graph = graph.with_vectors(vectors.clone());
        let rows = graph.wants_graph().expect("more than a hundred");
        let graph = graph.with_graph(Arc::new(Graph::new(&rows, &|| false)));
        assert!(graph.has_graph() && graph.wants_graph().is_none());
        assert!(exact.has_vectors() && !exact.has_graph() && exact.wants_graph().is_none());
        let query = exact.parse("unheard of").with_vectors(vectors[7].iter().cloned().collect());
        for index in [&exact, &graph] {
            assert_eq!(index.search(&query, 10, &|_| true, &Boosts::new()).hits[0].document, 7);
            let found = index.search(&query, 10, &|at| &*index.documents()[at].group == "g3", &Boosts::new());
            assert_eq!(found.hits.len(), 10);
            assert!(found.hits.iter().all(|hit| hit.document % 20 == 3));
        }
        let numbers = |index: &Index| -> Vec<usize> {
            index.search(&query, 10, &|_| true, &Boosts::new()).hits.iter().map(|hit| hit.document).collect()
        };
        let near = numbers(&graph);
        assert!(numbers(&exact).iter().filter(|number| near.contains(number)).count() >= 9);
    }

    #[test]
    fn a_document_without_a_vector_yet_is_ranked_by_its_words() {
        let lines = ["a.far: unrelated", "b.new: waters the plants", "c.near: gardening"];
        let vector = |x: f32, y: f32| Some(Arc::from([x, y].as_slice()));
        let vectors = vec![vector(0.1, 0.995), None, vector(0.9, 0.436)];
        let index = Index::new(documents(&lines), &Settings::default()).with_vectors(vectors);
        let search = |request: &str| -> Vec<usize> {
            let query = index.parse(request).with_vectors(vec![Arc::from([1.0, 0.0].as_slice())]);
            index.search(&query, 3, &|_| true, &Boosts::new()).hits.iter().map(|hit| hit.document).collect()
        };
        assert_eq!(search("water plants"), [2, 1, 0]);
        assert_eq!(search("something else"), [2, 0], "no vector and no word");
        assert_eq!(search("b.new")[0], 1);
    }

    #[test]
    fn boosts_lift_and_are_told() {
        let index = catalogue();
        let query = index.parse("write a comment on an issue");
        let plain = index.search(&query, 8, &|_| true, &Boosts::new());
        let last = plain.hits.last().expect("several match").document;
        let lifted = index.search(
            &query,
            8,
            &|_| true,
            &Boosts::from([(last, Boost { learned: 2.0, ..Boost::default() })]),
        );
        assert_eq!(lifted.hits[0].document, last);
        assert!(lifted.hits[0].signals.learned > 0.0);
        assert_eq!(plain.hits[0].signals.learned, 0.0);
    }

    #[test]
    fn priorities_lift_and_lower_what_was_found_and_nothing_else() {
        let index = catalogue();
        let query = index.parse("write a comment on an issue");
        let order = |boosts: &Boosts| -> Vec<usize> {
            index.search(&query, 8, &|_| true, boosts).hits.iter().map(|hit| hit.document).collect()
        };
        let plain = order(&Boosts::new());
        let (first, last) = (plain[0], plain[plain.len() - 1]);
        let unfound = (0..8).find(|document| !plain.contains(document)).expect("not all match");
        let with = |priority: f32| Boost { priority, ..Boost::default() };
        let boosts = Boosts::from([(last, with(2.0)), (first, with(-2.0)), (unfound, with(2.0))]);
        let changed = order(&boosts);
        assert_eq!((changed[0], changed.last(), changed.len()), (last, Some(&first), plain.len()));
        let found = index.search(&query, 8, &|_| true, &boosts);
        assert_eq!(found.total, plain.len(), "a priority alone is no match");
        assert!(found.hits[0].signals.priority > 0.0 && found.hits[0].signals.learned == 0.0);
        assert!(found.hits.iter().all(|hit| (0.0..=1.0).contains(&hit.score)));
        // A named tool is found whatever its priority.
        let named = index.parse("github.create_issue");
        let lowered = Boosts::from([(0, with(-2.0)), (2, with(2.0))]);
        assert_eq!(index.search(&named, 8, &|_| true, &lowered).hits[0].document, 0);
    }

    #[test]
    fn an_explanation_names_the_words_and_what_they_stand_for() {
        let index = catalogue();
        let query = index.parse("put text into files");
        let found = index.search(&query, 1, &|_| true, &Boosts::new());
        let why = index.explain(&query, &found.hits[0]);
        let words: Vec<(&str, Option<&str>)> =
            why.words.iter().map(|word| (word.word.as_str(), word.by.as_deref())).collect();
        assert_eq!(words, [("file", None), ("into", None), ("put", None)]);
        let shares: f32 = why.words.iter().map(|word| word.share).sum();
        assert!((shares - why.signals.keywords).abs() < 1e-5);
        let query = index.parse("post a letter");
        let found = index.search(&query, 1, &|_| true, &Boosts::new());
        let why = index.explain(&query, &found.hits[0]);
        assert!(why.words.iter().any(|word| word.word == "send" && word.by.as_deref() == Some("post")));
        assert!(!why.name && why.part.is_none());
        let query = index.parse("files.wri");
        let found = index.search(&query, 1, &|_| true, &Boosts::new());
        assert!(index.explain(&query, &found.hits[0]).name && !found.hits[0].exact);
    }

    #[test]
    fn a_weight_of_nothing_takes_a_signal_away() {
        let check = |without: &'static RankingWeights, request: &str, found: &str| {
            let lines = [
                "github.create_issue: Open a new issue in a repository",
                "files.read_file: Give the content of a file",
                "boxes.remove_dir: Get rid of it",
            ];
            let first = |weights: &'static RankingWeights| {
                let index = Index::new(documents(&lines), &Settings { weights, ..Settings::default() });
                ids(&index, request).first().cloned()
            };
            assert_eq!(first(&RankingWeights::TOOLS).as_deref(), Some(found), "{request}");
            assert_ne!(first(without).as_deref(), Some(found), "{request}");
        };
        check(&RankingWeights { synonyms: 0.0, ..RankingWeights::TOOLS }, "erase", "boxes.remove_dir");
        check(
            &RankingWeights { abbreviations: 0.0, ..RankingWeights::TOOLS },
            "directory",
            "boxes.remove_dir",
        );
        check(
            &RankingWeights { letters_without_meaning: 0.0, ..RankingWeights::TOOLS },
            "isue",
            "github.create_issue",
        );
    }

    #[test]
    fn vectors_that_do_not_fit_leave_keywords() {
        let index = catalogue().with_vectors(vec![Some(vec![1.0].into())]);
        assert!(!index.has_vectors());
        assert_eq!(ids(&index, "weather")[0], "weather.forecast");
    }
}
