//! Keyword scores: BM25 over an inverted index, and nothing else.
//!
//! Knows terms and document numbers; what a term is (a stem, three letters) is up to the caller.

use std::{borrow::Borrow, collections::HashMap, hash::Hash};

/// How fast a repeated term saturates. With [`B`], the value that Trotman, Puurula & Burgess 2014,
/// "Improvements to BM25 and Language Models Examined", found best for short texts; over six catalogues, 0.3
/// points of nDCG above 1.2 and 0.75.
const K1: f32 = 0.9;
/// The penalty for document length, 0..1.
const B: f32 = 0.4;

pub(super) struct Bm25<K> {
    numbers: HashMap<K, u32>,
    /// For each term: the documents with it, ascending, and its weight there.
    postings: Vec<Vec<(u32, f32)>>,
    /// For each document: `K1 * (1 - B + B * length / mean length)`.
    norms: Vec<f32>,
}

impl<K: Eq + Hash> Bm25<K> {
    /// Indexes documents given as weighted terms; a weight counts as that many occurrences.
    pub(super) fn new(documents: impl IntoIterator<Item = Vec<(K, f32)>>) -> Bm25<K> {
        let mut numbers = HashMap::new();
        let mut postings: Vec<Vec<(u32, f32)>> = Vec::new();
        let mut lengths = Vec::new();
        for (document, terms) in (0..).zip(documents) {
            let mut length = 0.0;
            for (term, weight) in terms {
                length += weight;
                let next = postings.len() as u32;
                let number = *numbers.entry(term).or_insert(next);
                if number == next {
                    postings.push(Vec::new());
                }
                let list = &mut postings[number as usize];
                match list.last_mut() {
                    Some((last, count)) if *last == document => *count += weight,
                    _ => list.push((document, weight)),
                }
            }
            lengths.push(length);
        }
        let mean = lengths.iter().sum::<f32>() / (lengths.len().max(1) as f32);
        let norm = |length: f32| K1 * (1.0 - B + B * length / mean.max(f32::MIN_POSITIVE));
        Bm25 { numbers, postings, norms: lengths.into_iter().map(norm).collect() }
    }

    /// Returns how well a term distinguishes documents. Never negative; highest for an unknown term.
    pub(super) fn idf<Q: Eq + Hash + ?Sized>(&self, term: &Q) -> f32
    where
        K: Borrow<Q>,
    {
        let with = self.numbers.get(term).map_or(0, |&number| self.postings[number as usize].len()) as f32;
        let all = self.norms.len() as f32;
        (1.0 + (all - with + 0.5) / (with + 0.5)).ln()
    }

    /// Returns each document's score for weighted terms, one entry per document.
    pub(super) fn scores<'q, Q: Eq + Hash + ?Sized + 'q>(
        &self,
        query: impl IntoIterator<Item = (&'q Q, f32)>,
    ) -> Vec<f32>
    where
        K: Borrow<Q>,
    {
        let mut scores = vec![0.0; self.norms.len()];
        for (term, weight) in query {
            let Some(&number) = self.numbers.get(term) else { continue };
            let idf = self.idf(term) * weight;
            for &(document, count) in &self.postings[number as usize] {
                scores[document as usize] += idf * self.saturated(count, document);
            }
        }
        scores
    }

    pub(super) fn has<Q: Eq + Hash + ?Sized>(&self, term: &Q, document: u32) -> bool
    where
        K: Borrow<Q>,
    {
        let list = self.numbers.get(term).map(|&number| &self.postings[number as usize]);
        list.is_some_and(|list| list.binary_search_by_key(&document, |&(at, _)| at).is_ok())
    }

    /// Returns what one term adds to a document's score.
    pub(super) fn share<Q: Eq + Hash + ?Sized>(&self, term: &Q, weight: f32, document: u32) -> f32
    where
        K: Borrow<Q>,
    {
        let Some(&number) = self.numbers.get(term) else { return 0.0 };
        let list = &self.postings[number as usize];
        let found = list.binary_search_by_key(&document, |&(at, _)| at);
        found.map_or(0.0, |at| self.idf(term) * weight * self.saturated(list[at].1, document))
    }

    fn saturated(&self, count: f32, document: u32) -> f32 {
        count * (K1 + 1.0) / (count + self.norms[document as usize])
    }

    /// Returns the share of the terms that a document contains, weighted by `idf`, 0..1.
    pub(super) fn coverage<'q, Q: Eq + Hash + ?Sized + 'q>(
        &self,
        query: impl IntoIterator<Item = &'q Q>,
        document: u32,
    ) -> f32
    where
        K: Borrow<Q>,
    {
        let (mut had, mut all) = (0.0, 0.0);
        for term in query {
            let idf = self.idf(term);
            all += idf;
            if self.has(term, document) {
                had += idf;
            }
        }
        if all > 0.0 { had / all } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(documents: &[&str]) -> Bm25<String> {
        Bm25::new(documents.iter().map(|text| text.split(' ').map(|word| (word.to_owned(), 1.0)).collect()))
    }

    #[test]
    fn rare_terms_and_short_documents_count_more() {
        let index = index(&["read file", "read mail", "read mail from the server and sort it"]);
        let check = |query: &str, order: &[usize]| {
            let scores = index.scores(query.split(' ').map(|word| (word, 1.0)));
            let mut found: Vec<usize> = (0..scores.len()).filter(|&at| scores[at] > 0.0).collect();
            found.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
            assert_eq!(found, order, "{query}");
        };
        check("file", &[0]);
        check("read file", &[0, 1, 2]);
        check("mail", &[1, 2]);
        check("nothing", &[]);
        check("", &[]);
    }

    #[test]
    fn coverage_is_a_share() {
        let index = index(&["read file", "read mail"]);
        assert_eq!(index.coverage(["read", "file"], 0), 1.0);
        assert!(index.coverage(["read", "file"], 1) < 0.5);
        assert_eq!(index.coverage(std::iter::empty::<&str>(), 0), 0.0);
    }

    #[test]
    fn an_empty_index_answers_nothing() {
        assert!(index(&[]).scores([("read", 1.0)]).is_empty());
    }
}
