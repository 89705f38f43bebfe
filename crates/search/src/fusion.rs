//! The ranking: how meaning, keywords and letters become one order, and the confidence in it.
//!
//! Knows signals; their weights are in `weights`.

use std::{cmp::Ordering, collections::HashMap};

use super::{
    Boosts, Confidence, Hit, SearchResult, Signals,
    actions::ActionFit,
    index::{Index, NameMatch},
    products::{Product, ProductMatch},
    query::{Query, QueryPart, RequestLanguage},
    vectors::UNKNOWN,
    weights::RankingWeights,
};

/// A part's best score must reach this share of the best part's to get a place among the first hits.
const WORTH_A_PLACE: f32 = 0.5;
/// Candidates per signal where there are too many documents to score all.
const CANDIDATES: usize = 100;
/// The hit to compare the first with: the first that is not shown.
const SIXTH: usize = 5;

/// The scores of one text against all documents.
struct TextScores<'a> {
    part: &'a QueryPart,
    /// Shares of the best score, 0..1; may be empty.
    keyword: Vec<f32>,
    /// Shares of the best score, 0..1; may be empty.
    trigram: Vec<f32>,
    /// Cosines; empty without vectors, and if only candidates are compared.
    dense: Vec<f32>,
}

/// All inputs of a document's score.
struct ScoreInputs<'a> {
    index: &'a Index,
    whole: TextScores<'a>,
    parts: Vec<TextScores<'a>>,
    boosts: &'a Boosts,
    weights: &'a RankingWeights,
    /// The weights of keywords and of letters.
    keyword: f32,
    trigram: f32,
    /// Whether both sides have vectors.
    dense: bool,
    /// Each document's bonus or penalty for the products in the request; empty if the rule is off.
    products: Vec<f32>,
}

pub(super) fn search(
    index: &Index,
    query: &Query,
    limit: usize,
    allowed: &dyn Fn(usize) -> bool,
    boosts: &Boosts,
) -> SearchResult {
    let documents = index.documents();
    let mask: Vec<bool> = (0..documents.len()).map(allowed).collect();
    let scoring = ScoreInputs::new(index, query, &mask, boosts);
    let pins = index.pins(query);
    let mut ranked: Vec<(NameMatch, Hit)> = scoring
        .candidates(&mask, &pins, limit)
        .into_iter()
        .map(|document| (pins.get(&document).copied().unwrap_or(NameMatch::No), document))
        .map(|(pin, document)| (pin, scoring.hit(document, pin)))
        // A boost without a signal is not a match.
        .filter(|(pin, hit)| hit.signals.said() > 0.0 || *pin > NameMatch::No)
        .collect();
    let total = ranked.len();

    let order = |(a_pin, a): &(NameMatch, Hit), (b_pin, b): &(NameMatch, Hit)| -> Ordering {
        let by_score = b_pin.cmp(a_pin).then_with(|| b.score.total_cmp(&a.score));
        // Ids are unique; the number breaks ties in lists where they are not.
        let by_id = || documents[a.document].id.cmp(&documents[b.document].id);
        by_score.then_with(by_id).then(a.document.cmp(&b.document))
    };
    // Confidence needs more hits than the limit may allow.
    let keep = limit.max(SIXTH + 1);
    if ranked.len() > keep {
        ranked.select_nth_unstable_by(keep, order);
        ranked.truncate(keep);
    }
    ranked.sort_by(order);

    scoring.give_each_part_a_place(&mut ranked, limit);
    let confidence = scoring.confidence(&ranked);
    let scale = scoring.scale(&ranked);
    ranked.truncate(limit);
    let shown = |(_, hit): (NameMatch, Hit)| {
        let score = if hit.exact { 1.0 } else { (hit.score * scale).clamp(0.0, 1.0) };
        Hit { score, signals: hit.signals.times(scale), ..hit }
    };
    SearchResult { hits: ranked.into_iter().map(shown).collect(), total, confidence }
}

impl<'a> ScoreInputs<'a> {
    fn new(index: &'a Index, query: &'a Query, mask: &[bool], boosts: &'a Boosts) -> ScoreInputs<'a> {
        // A graph cannot skip disallowed documents without losing its way, so compare all allowed ones.
        let graph = index.has_graph() && mask.iter().all(|&allowed| allowed);
        let score = |part: &'a QueryPart| {
            let vector = part.vector.as_deref().filter(|_| !graph);
            TextScores {
                part,
                keyword: shares(index.keywords(part), mask),
                trigram: shares(index.trigrams(part), mask),
                dense: vector.and_then(|vector| index.vectors()?.scores(vector, mask)).unwrap_or_default(),
            }
        };
        let dense = index.has_vectors() && query.whole.vector.is_some();
        let weights = index.weights();
        let keyword = match (dense, query.parts.is_empty()) {
            (false, _) => 1.0,
            (true, false) => weights.keywords_in_parts,
            (true, true) => weights.keywords,
        };
        let (keyword, trigram) = match (dense, query.language) {
            (true, RequestLanguage::Other) => (keyword * weights.untranslated, 0.0),
            (true, _) => (keyword, weights.letters),
            (false, _) => (keyword, weights.letters_without_meaning),
        };
        let products = match weights.prose {
            true => Vec::new(),
            false => by_products(index, &index.products().named(&query.whole.text)),
        };
        let parts = query.parts.iter().map(score).collect();
        let whole = score(&query.whole);
        ScoreInputs { index, whole, parts, boosts, weights, keyword, trigram, dense, products }
    }

    fn texts(&self) -> impl Iterator<Item = &TextScores<'a>> {
        std::iter::once(&self.whole).chain(&self.parts)
    }

    /// Returns the documents to score: all allowed ones, or with a graph the candidates of each signal.
    fn candidates(&self, mask: &[bool], pins: &HashMap<usize, NameMatch>, limit: usize) -> Vec<usize> {
        if !self.dense || !self.whole.dense.is_empty() {
            return (0..mask.len()).filter(|&document| mask[document]).collect();
        }
        let count = CANDIDATES.max(2 * limit);
        let lifted = self.boosts.iter().filter(|(_, boost)| boost.learned + boost.priority > 0.0);
        let mut found: Vec<usize> =
            pins.keys().chain(lifted.map(|(document, _)| document)).copied().collect();
        for text in self.texts() {
            if let (Some(vectors), Some(vector)) = (self.index.vectors(), text.part.vector.as_deref()) {
                found.extend(vectors.near(vector, count));
            }
            let bonus =
                |at: usize| self.keyword * value(&text.keyword, at) + self.trigram * value(&text.trigram, at);
            let mut best: Vec<(usize, f32)> =
                (0..mask.len()).map(|at| (at, bonus(at))).filter(|&(_, bonus)| bonus > 0.0).collect();
            if best.len() > count {
                best.select_nth_unstable_by(count, |a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
                best.truncate(count);
            }
            found.extend(best.into_iter().map(|(at, _)| at));
        }
        found.retain(|&document| mask.get(document) == Some(&true));
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Scores a document by the whole request and, if there are parts, by the best part.
    fn hit(&self, document: usize, pin: NameMatch) -> Hit {
        let (mut signals, mut dense) = self.by_text(&self.whole, document);
        let parts = self.parts.iter().enumerate().map(|(at, part)| (at, self.by_text(part, document)));
        let best = parts.max_by(|(_, (a, _)), (_, (b, _))| a.sum().total_cmp(&b.sum()));
        let mut part = None;
        if let Some((at, (of_part, dense_of_part))) = best {
            signals = signals.times(1.0 - self.weights.best_part).plus(of_part.times(self.weights.best_part));
            (part, dense) = (Some(at), dense_of_part);
        }
        let boost = self.boosts.get(&document).copied().unwrap_or_default();
        (signals.learned, signals.priority) = (boost.learned, boost.priority);
        Hit {
            document,
            score: signals.sum(),
            exact: pin >= NameMatch::Name,
            named: pin > NameMatch::No,
            dense,
            part,
            signals,
        }
    }

    /// Moves the best document of each part among the first hits, unless it is there or the part asks for
    /// nothing: even `thank you very much` has a best document.
    fn give_each_part_a_place(&self, ranked: &mut [(NameMatch, Hit)], limit: usize) {
        let places = SIXTH.max(self.parts.len()).min(limit).min(ranked.len());
        let best = |part: &TextScores| {
            let scores =
                ranked.iter().map(|(_, hit)| (hit.document, self.by_text(part, hit.document).0.sum()));
            scores.max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)))
        };
        let bests: Vec<(usize, f32)> = self.parts.iter().filter_map(best).collect();
        let most = bests.iter().map(|(_, score)| *score).fold(0.0, f32::max);
        let wanted: Vec<usize> = bests
            .iter()
            .filter(|(_, score)| *score >= most * WORTH_A_PLACE)
            .map(|(document, _)| *document)
            .collect();
        for document in &wanted {
            let Some(at) = ranked.iter().position(|(_, hit)| hit.document == *document) else { continue };
            // Replaces the last of the first hits that no part needs; the best hit stays.
            let free = (1..places)
                .rev()
                .find(|&at| ranked[at].0 == NameMatch::No && !wanted.contains(&ranked[at].1.document));
            if at >= places
                && let Some(free) = free
            {
                ranked[free..=at].rotate_right(1);
            }
        }
    }

    /// Returns the contribution of each signal, and the cosine.
    fn by_text(&self, text: &TextScores, document: usize) -> (Signals, f32) {
        let keyword = value(&text.keyword, document);
        let compared = || {
            let pair = text.part.vector.as_deref().zip(self.index.vectors());
            pair.map_or(UNKNOWN, |(vector, vectors)| vectors.score(vector, document))
        };
        let dense = match self.dense {
            true => text.dense.get(document).copied().unwrap_or_else(compared),
            false => 0.0,
        };
        let dense = if dense.is_nan() { self.weights.meaning_by_words * keyword } else { dense };
        let signals = Signals {
            action: match text.part.actions.fit(self.index.actions(document)) {
                ActionFit::Same => self.weights.same_action,
                ActionFit::Open => 0.0,
                ActionFit::Other => -self.weights.other_action,
                ActionFit::TakesAway => -self.weights.takes_away,
            },
            product: value(&self.products, document),
            deprecated: if self.index.is_deprecated(document) { -self.weights.deprecated } else { 0.0 },
            meaning: dense,
            keywords: self.keyword * keyword,
            letters: self.trigram * value(&text.trigram, document),
            learned: 0.0,
            priority: 0.0,
        };
        (signals, dense)
    }

    /// Returns how much of the request's words, whole or in a part, the best three documents contain, 0..1.
    fn coverage(&self, ranked: &[(NameMatch, Hit)]) -> f32 {
        let texts = if self.parts.is_empty() { std::slice::from_ref(&self.whole) } else { &self.parts };
        let best = ranked.iter().take(3);
        let of = |text: &TextScores, hit: &Hit| self.index.coverage(text.part.said(), hit.document);
        best.flat_map(|(_, hit)| texts.iter().map(|text| of(text, hit))).fold(0.0, f32::max)
    }

    /// Returns the factor for displayed scores. Without vectors, the best hit scores about 1 however bad it
    /// is; scaling by coverage corrects that.
    fn scale(&self, ranked: &[(NameMatch, Hit)]) -> f32 {
        if self.dense { 1.0 } else { self.coverage(ranked) / (1.0 + self.weights.letters_without_meaning) }
    }

    /// Adds up four pieces of evidence: the first hit's nearness in meaning, its lead over the second and
    /// over the sixth hit, and the coverage of the request's words. The weights follow two logistic
    /// regressions over seven catalogues: whether the first hit is right, and whether a right one is among
    /// the first five when half of the requests have their right tools removed. Limits are set so that the
    /// first hit of "high" is right in more than nine of ten answers on average, and "none" is said of three
    /// in a hundred requests with a right tool among the first five (docs/search.md has the results). Further
    /// signals, and trees instead of sums, gave the same on catalogues that they were not fitted on. Without
    /// vectors, two pieces remain.
    fn confidence(&self, ranked: &[(NameMatch, Hit)]) -> Confidence {
        let Some((_, first)) = ranked.first() else { return Confidence::None };
        if first.exact {
            return Confidence::High;
        }
        let fit = first.signals.found();
        // Without another hit there is no lead.
        let found = |hit: Option<&(NameMatch, Hit)>| hit.map_or(fit, |(_, hit)| hit.signals.found());
        // In a shorter list, the last hit stands in for the sixth. Habits show preference, not fit.
        let ahead = fit - ranked.get(SIXTH).or(ranked.last()).map_or(fit, |(_, hit)| hit.signals.found());
        let coverage = self.coverage(ranked);
        let (high, none) = if self.dense {
            let next =
                ranked[1..].iter().find(|(_, hit)| !self.index.are_twins(first.document, hit.document));
            let sure = 2.7 * first.dense + 7.5 * (fit - found(next)) + 4.5 * ahead + 1.3 * coverage;
            (sure >= 4.9, 2.9 * first.dense + 5.8 * ahead < 1.6)
        } else {
            (coverage + ahead >= 1.3, coverage < LEAST_COVERAGE)
        };
        let asked = self.text_of(first).part.actions;
        // A question must not lead to a tool that changes something.
        let fits = !(asked.only_reads() && self.index.actions(first.document).only_writes());
        match (high && fits, none) {
            (_, true) => Confidence::None,
            (true, false) => Confidence::High,
            (false, false) => Confidence::Medium,
        }
    }

    /// Returns the text that a hit fits best: the whole, or a part.
    fn text_of(&self, hit: &Hit) -> &TextScores<'_> {
        hit.part.and_then(|at| self.parts.get(at)).unwrap_or(&self.whole)
    }
}

/// Returns each document's bonus or penalty for the named products.
fn by_products(index: &Index, named: &[Product]) -> Vec<f32> {
    let weights = index.weights();
    let by_product = |document| match index.products().bound(named, document) {
        ProductMatch::Named => weights.named_product,
        ProductMatch::Other if named.is_empty() => -weights.unnamed_product,
        ProductMatch::Other => -weights.other_product,
        ProductMatch::Free => 0.0,
    };
    (0..index.documents().len()).map(by_product).collect()
}

/// Returns the value at an index, 0 if nothing was scored.
fn value(values: &[f32], at: usize) -> f32 {
    values.get(at).copied().unwrap_or(0.0)
}

/// The least coverage that makes a keyword-only answer more than a guess.
const LEAST_COVERAGE: f32 = 0.2;

/// Scales scores to shares of the best allowed one.
fn shares(mut scores: Vec<f32>, mask: &[bool]) -> Vec<f32> {
    let allowed = scores.iter().zip(mask).filter(|(_, allowed)| **allowed).map(|(score, _)| *score);
    let best = allowed.fold(0.0, f32::max);
    if best > 0.0 {
        scores.iter_mut().for_each(|score| *score /= best);
    }
    scores
}
