//! Keyword scores: BM25 over an inverted index, and nothing else.
//!
//! Knows terms and document numbers; what a term is (a stem, three letters) is up to the caller.

use std::{borrow::Borrow, collections::HashMap, hash::Hash, sync::Arc};

use nonet_base::persistent::SharedMap;

/// How fast a repeated term saturates. With [`B`], the value that Trotman, Puurula & Burgess 2014,
/// "Improvements to BM25 and Language Models Examined", found best for short texts; over six catalogues, 0.3
/// points of nDCG above 1.2 and 0.75.
const K1: f32 = 0.9;
/// The penalty for document length, 0..1.
const B: f32 = 0.4;

/// An immutable inverted index with BM25 scoring. A document keeps its slot while it is indexed, so
/// [`Bm25::updated`] leaves the postings of other documents unchanged. Slots are never reused.
#[derive(Clone)]
pub(super) struct Bm25<K> {
    /// The number of each term. A term without postings counts as unknown.
    numbers: SharedMap<K, u32>,
    /// For each term: the slots of its documents, ascending, with the term's weight there.
    postings: Vec<Arc<[(u32, f32)]>>,
    /// The document length of each slot.
    lengths: Vec<f32>,
    /// For each slot: `K1 * (1 - B + B * length / mean length)`.
    norms: Vec<f32>,
    documents: usize,
}

impl<K> Default for Bm25<K> {
    fn default() -> Bm25<K> {
        let numbers = SharedMap::default();
        Bm25 { numbers, postings: Vec::new(), lengths: Vec::new(), norms: Vec::new(), documents: 0 }
    }
}

impl<K: Clone + Eq + Hash> Bm25<K> {
    /// Returns the index without the documents in `removed` slots, and with the `added` ones in the next free
    /// slots. A document is a list of terms with weights; a weight counts as that many occurrences. `slots`
    /// are the slots of all resulting documents, in the order in which lengths are summed.
    pub(super) fn updated<T, Q>(
        &self,
        removed: impl IntoIterator<Item = (u32, Vec<(T, f32)>)>,
        added: impl IntoIterator<Item = Vec<(T, f32)>>,
        slots: &[u32],
    ) -> Bm25<K>
    where
        K: Borrow<Q> + From<T>,
        T: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        let mut numbers = self.numbers.clone();
        let mut lengths = self.lengths.clone();
        let mut gone = vec![false; lengths.len()];
        // The postings to append to each changed term.
        let mut changed: HashMap<u32, Vec<(u32, f32)>> = HashMap::new();
        let mut next = self.postings.len() as u32;
        for (slot, terms) in removed {
            gone[slot as usize] = true;
            for (term, _) in terms {
                if let Some(&number) = numbers.get(term.borrow()) {
                    changed.entry(number).or_default();
                }
            }
        }
        for (slot, terms) in (lengths.len() as u32..).zip(added) {
            let mut length = 0.0;
            for (term, weight) in terms {
                length += weight;
                let number = numbers.get(term.borrow()).copied().unwrap_or_else(|| {
                    numbers.insert(term.into(), next);
                    next += 1;
                    next - 1
                });
                let list = changed.entry(number).or_default();
                match list.last_mut() {
                    Some((last, count)) if *last == slot => *count += weight,
                    _ => list.push((slot, weight)),
                }
            }
            lengths.push(length);
        }

        let mut postings = self.postings.clone();
        postings.resize_with(next as usize, || Arc::from([]));
        for (number, new) in changed {
            let list = &mut postings[number as usize];
            let kept = list.iter().filter(|(slot, _)| !gone[*slot as usize]).copied();
            *list = kept.chain(new).collect();
        }
        let mean = slots.iter().map(|&slot| lengths[slot as usize]).sum::<f32>() / slots.len().max(1) as f32;
        let norm = |length: &f32| K1 * (1.0 - B + B * length / mean.max(f32::MIN_POSITIVE));
        let norms = lengths.iter().map(norm).collect();
        Bm25 { numbers, postings, lengths, norms, documents: slots.len() }
    }

    /// Returns how well a term distinguishes documents. Never negative; highest for an unknown term.
    pub(super) fn idf<Q: Eq + Hash + ?Sized>(&self, term: &Q) -> f32
    where
        K: Borrow<Q>,
    {
        let with = self.numbers.get(term).map_or(0, |&number| self.postings[number as usize].len()) as f32;
        let all = self.documents as f32;
        (1.0 + (all - with + 0.5) / (with + 0.5)).ln()
    }

    /// Returns the score of each slot's document for weighted terms.
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
            for &(slot, count) in self.postings[number as usize].iter() {
                scores[slot as usize] += idf * self.saturated(count, slot);
            }
        }
        scores
    }

    /// Whether the document in a slot has a term.
    pub(super) fn has<Q: Eq + Hash + ?Sized>(&self, term: &Q, slot: u32) -> bool
    where
        K: Borrow<Q>,
    {
        let list = self.numbers.get(term).map(|&number| &self.postings[number as usize]);
        list.is_some_and(|list| list.binary_search_by_key(&slot, |&(at, _)| at).is_ok())
    }

    /// Returns what one term adds to the score of the document in a slot.
    pub(super) fn share<Q: Eq + Hash + ?Sized>(&self, term: &Q, weight: f32, slot: u32) -> f32
    where
        K: Borrow<Q>,
    {
        let Some(&number) = self.numbers.get(term) else { return 0.0 };
        let list = &self.postings[number as usize];
        let found = list.binary_search_by_key(&slot, |&(at, _)| at);
        found.map_or(0.0, |at| self.idf(term) * weight * self.saturated(list[at].1, slot))
    }

    fn saturated(&self, count: f32, slot: u32) -> f32 {
        count * (K1 + 1.0) / (count + self.norms[slot as usize])
    }

    /// Returns the weighted share of the terms that the document in a slot has, 0..1. Rarer terms count more.
    pub(super) fn coverage<'q, Q: Eq + Hash + ?Sized + 'q>(
        &self,
        query: impl IntoIterator<Item = &'q Q>,
        slot: u32,
    ) -> f32
    where
        K: Borrow<Q>,
    {
        let (mut had, mut all) = (0.0, 0.0);
        for term in query {
            let idf = self.idf(term);
            all += idf;
            if self.has(term, slot) {
                had += idf;
            }
        }
        if all > 0.0 { had / all } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(text: &str) -> Vec<(String, f32)> {
        text.split(' ').map(|word| (word.to_owned(), 1.0)).collect()
    }

    fn index(documents: &[&str]) -> Bm25<Arc<str>> {
        let slots: Vec<u32> = (0..documents.len() as u32).collect();
        Bm25::default().updated::<String, str>([], documents.iter().map(|text| terms(text)), &slots)
    }

    #[test]
    fn an_updated_index_scores_like_a_new_one() {
        let old = index(&["read file", "read mail", "send mail now"]);
        let updated = old.updated::<String, str>(
            [(1, terms("read mail"))],
            [terms("read read book"), terms("send now")],
            &[3, 0, 2, 4],
        );
        let new = index(&["read read book", "read file", "send mail now", "send now"]);
        for word in ["read", "file", "mail", "send", "now", "book", "other"] {
            let scores = updated.scores([(word, 1.0)]);
            let scores: Vec<f32> = [3, 0, 2, 4].map(|slot| scores[slot]).to_vec();
            assert_eq!(scores, new.scores([(word, 1.0)]), "{word}");
            assert_eq!(updated.idf(word), new.idf(word), "{word}");
        }
        assert!(!updated.has("mail", 1) && updated.has("mail", 2));
        assert!(old.has("mail", 1), "the old one is as it was");
    }

    #[test]
    fn an_update_copies_the_postings_of_its_terms_and_no_others() {
        let texts: Vec<String> = (0..20_000).map(|at| format!("read file{at}")).collect();
        let old = index(&texts.iter().map(String::as_str).collect::<Vec<_>>());
        let slots: Vec<u32> = (0..20_001).collect();
        let updated = old.updated::<String, str>([], [terms("file7 postcard")], &slots);
        let pairs = || old.postings.iter().zip(&updated.postings);
        assert_eq!(pairs().filter(|(old, new)| !Arc::ptr_eq(old, new)).count(), 1);
        assert_eq!(updated.postings.len(), old.postings.len() + 1);
        assert!(updated.numbers.shares_with(&old.numbers));
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
