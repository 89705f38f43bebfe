//! The ranking rule: how meaning, keywords and letters become one order, and how sure that order is.
//!
//! Knows signals and weights. The weights were measured over several public tool catalogues at once and lie on a plateau:
//! the cosine orders best by itself, and keywords help most as a small bounded bonus. Counts of keywords, or rank
//! fusion with equal say, drown the meaning.

use std::{cmp::Ordering, collections::HashMap};

use super::{
    Boosts, Confidence, Found, Hit, Signals,
    actions::Fit,
    index::{Index, Pin},
    products::{Bound, Product},
    query::{Part, Query},
    rules::Rule,
    vectors::UNKNOWN,
};

/// What the best keyword score of all adds to a cosine. Measured from 0.08 to 0.22 over seven catalogues.
const KEYWORD: f32 = 0.14;
/// The same where a request has several parts, for the whole and for each part.
const KEYWORD_IN_PARTS: f32 = 0.5;
/// What the best trigram score adds: enough to forgive a typing error.
const TRIGRAM: f32 = 0.03;
/// The same beside a keyword score of at most 1, where there are no vectors.
const TRIGRAM_WITHOUT_DENSE: f32 = 0.15;
/// What a document gains that does what is wanted. Measured from 0 to 0.06; more drowns what it is done to.
const SAME_ACTION: f32 = 0.02;
/// What it loses where one looks and the other changes something. Measured from 0 to 0.12.
const OTHER_ACTION: f32 = 0.05;
/// What it loses where only one of the two takes something away, which cannot be undone.
const TAKES_AWAY: f32 = 0.08;
/// What a document gains that is bound to a product that was named, and what it loses where another one was. Measured from 0
/// to 0.15 and 0.2.
const NAMED_PRODUCT: f32 = 0.05;
const OTHER_PRODUCT: f32 = 0.1;
/// What a document loses that is bound to a product where none was named: enough for an equally good one that is not.
const UNNAMED_PRODUCT: f32 = 0.01;
/// What a document loses that calls itself deprecated.
const DEPRECATED: f32 = 0.1;
/// The share of the best part's best score that a part's best has to have to be given a place among the first.
const WORTH_A_PLACE: f32 = 0.5;
/// The best part's share of the score of a request with several parts; the rest is the whole's.
const BEST_PART: f32 = 0.7;
/// The cosine that a document is taken to have whose vector is not known yet, by its share of the best keyword score. What
/// is asked for has about this cosine on the mean.
const MEANING_BY_WORDS: f32 = 0.5;
/// Candidates that each signal names where there are too many documents to score all.
const CANDIDATES: usize = 100;
/// The hit that the first one is compared with to see how far it stands out: the first that is not shown.
const SIXTH: usize = 5;

/// The scores of one text against all documents.
struct Scored<'a> {
    part: &'a Part,
    /// Shares of the best score, 0..1; empty where the rule is off.
    keyword: Vec<f32>,
    /// The same.
    trigram: Vec<f32>,
    /// Cosines; empty where only candidates are compared, and without vectors.
    dense: Vec<f32>,
}

/// All that a document is scored by.
struct Scoring<'a> {
    index: &'a Index,
    whole: Scored<'a>,
    parts: Vec<Scored<'a>>,
    boosts: &'a Boosts,
    /// What keywords and letters add.
    weights: (f32, f32),
    /// Whether there are vectors on both sides.
    dense: bool,
    /// What each document gains or loses for the products that the request names; empty where that rule is off.
    products: Vec<f32>,
}

pub(super) fn search(
    index: &Index,
    query: &Query,
    limit: usize,
    allowed: &dyn Fn(usize) -> bool,
    boosts: &Boosts,
) -> Found {
    let documents = index.documents();
    let mask: Vec<bool> = (0..documents.len()).map(allowed).collect();
    let scoring = Scoring::new(index, query, &mask, boosts);
    let pins = index.pins(query);
    let mut ranked: Vec<(Pin, Hit)> = scoring
        .candidates(&mask, &pins, limit)
        .into_iter()
        .map(|document| (pins.get(&document).copied().unwrap_or(Pin::No), document))
        .map(|(pin, document)| (pin, scoring.hit(document, pin)))
        // A boost alone is no match.
        .filter(|(pin, hit)| hit.signals.said() > 0.0 || *pin > Pin::No)
        .collect();
    let total = ranked.len();

    let order = |(a_pin, a): &(Pin, Hit), (b_pin, b): &(Pin, Hit)| -> Ordering {
        let by_score = b_pin.cmp(a_pin).then_with(|| b.score.total_cmp(&a.score));
        // Ids are unique; the number is for lists where they are not.
        let by_id = || documents[a.document].id.cmp(&documents[b.document].id);
        by_score.then_with(by_id).then(a.document.cmp(&b.document))
    };
    // Confidence looks at more hits than may be asked for.
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
    let shown = |(_, hit): (Pin, Hit)| {
        let score = if hit.exact { 1.0 } else { (hit.score * scale).clamp(0.0, 1.0) };
        Hit { score, signals: hit.signals.times(scale), ..hit }
    };
    Found { hits: ranked.into_iter().map(shown).collect(), total, confidence }
}

impl<'a> Scoring<'a> {
    fn new(index: &'a Index, query: &'a Query, mask: &[bool], boosts: &'a Boosts) -> Scoring<'a> {
        // A graph cannot leave out what is not allowed without losing its way: then all allowed ones are compared.
        let graph = index.has_graph() && mask.iter().all(|&allowed| allowed);
        let score = |part: &'a Part| {
            let vector = part.vector.as_deref().filter(|_| !graph);
            Scored {
                part,
                keyword: shares(index.keywords(part), mask),
                trigram: shares(index.trigrams(part), mask),
                dense: vector.and_then(|vector| index.vectors()?.scores(vector, mask)).unwrap_or_default(),
            }
        };
        let dense = index.has_vectors() && query.whole.vector.is_some();
        let keyword = match (dense, query.parts.is_empty()) {
            (false, _) => 1.0,
            (true, false) => KEYWORD_IN_PARTS,
            (true, true) => KEYWORD,
        };
        let weights = (keyword, if dense { TRIGRAM } else { TRIGRAM_WITHOUT_DENSE });
        let products = match index.rules().has(Rule::Products) {
            true => by_products(index, &index.products().named(&query.whole.text)),
            false => Vec::new(),
        };
        let parts = query.parts.iter().map(score).collect();
        Scoring { index, whole: score(&query.whole), parts, boosts, weights, dense, products }
    }

    fn texts(&self) -> impl Iterator<Item = &Scored<'a>> {
        std::iter::once(&self.whole).chain(&self.parts)
    }

    /// The documents worth a score: all that are allowed, or over a graph those that one of the signals names.
    fn candidates(&self, mask: &[bool], pins: &HashMap<usize, Pin>, limit: usize) -> Vec<usize> {
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
            let bonus = |at: usize| {
                self.weights.0 * value(&text.keyword, at) + self.weights.1 * value(&text.trigram, at)
            };
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

    /// A document scored by the whole request and, where it has parts, by the part that fits best.
    fn hit(&self, document: usize, pin: Pin) -> Hit {
        let (mut signals, mut dense) = self.by_text(&self.whole, document);
        let parts = self.parts.iter().enumerate().map(|(at, part)| (at, self.by_text(part, document)));
        let best = parts.max_by(|(_, (a, _)), (_, (b, _))| a.sum().total_cmp(&b.sum()));
        let mut part = None;
        if let Some((at, (of_part, dense_of_part))) = best {
            signals = signals.times(1.0 - BEST_PART).plus(of_part.times(BEST_PART));
            (part, dense) = (Some(at), dense_of_part);
        }
        let boost = self.boosts.get(&document).copied().unwrap_or_default();
        (signals.learned, signals.priority) = (boost.learned, boost.priority);
        Hit {
            document,
            score: signals.sum(),
            exact: pin >= Pin::Name,
            named: pin > Pin::No,
            dense,
            part,
            signals,
        }
    }

    /// Moves the best document of each part of a request among the first hits, where it is not there already and the part asks
    /// for something: `thank you very much` has a best document too.
    fn give_each_part_a_place(&self, ranked: &mut [(Pin, Hit)], limit: usize) {
        let places = SIXTH.max(self.parts.len()).min(limit).min(ranked.len());
        let best = |part: &Scored| {
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
            // The last of the first that no part asks for makes room; the best hit of all stays.
            let free = (1..places)
                .rev()
                .find(|&at| ranked[at].0 == Pin::No && !wanted.contains(&ranked[at].1.document));
            if at >= places
                && let Some(free) = free
            {
                ranked[free..=at].rotate_right(1);
            }
        }
    }

    /// What each signal adds, and the cosine.
    fn by_text(&self, text: &Scored, document: usize) -> (Signals, f32) {
        let keyword = value(&text.keyword, document);
        let compared = || {
            let pair = text.part.vector.as_deref().zip(self.index.vectors());
            pair.map_or(UNKNOWN, |(vector, vectors)| vectors.score(vector, document))
        };
        let dense = match self.dense {
            true => text.dense.get(document).copied().unwrap_or_else(compared),
            false => 0.0,
        };
        let dense = if dense.is_nan() { MEANING_BY_WORDS * keyword } else { dense };
        let signals = Signals {
            action: match text.part.actions.fit(self.index.actions(document)) {
                Fit::Same => SAME_ACTION,
                Fit::Open => 0.0,
                Fit::Other => -OTHER_ACTION,
                Fit::TakesAway => -TAKES_AWAY,
            },
            product: value(&self.products, document),
            deprecated: if self.index.is_deprecated(document) { -DEPRECATED } else { 0.0 },
            meaning: dense,
            keywords: self.weights.0 * keyword,
            letters: self.weights.1 * value(&text.trigram, document),
            learned: 0.0,
            priority: 0.0,
        };
        (signals, dense)
    }

    /// How much of what was said the best three documents have, 0..1: of the whole, or of a part of it.
    fn coverage(&self, ranked: &[(Pin, Hit)]) -> f32 {
        let texts = if self.parts.is_empty() { std::slice::from_ref(&self.whole) } else { &self.parts };
        let best = ranked.iter().take(3);
        let of = |text: &Scored, hit: &Hit| self.index.coverage(text.part.said(), hit.document);
        best.flat_map(|(_, hit)| texts.iter().map(|text| of(text, hit))).fold(0.0, f32::max)
    }

    /// What the scores are multiplied with when they are shown. Without vectors the best hit has a score of about 1 however
    /// bad it is; then how much it covers makes it honest.
    fn scale(&self, ranked: &[(Pin, Hit)]) -> f32 {
        if self.dense { 1.0 } else { self.coverage(ranked) / (1.0 + TRIGRAM_WITHOUT_DENSE) }
    }

    /// Four pieces of evidence, added up: how near the first hit's meaning is, how far it stands out from the second and from
    /// the sixth, and how much of what was said is found. The weights follow two logistic regressions over seven catalogues,
    /// of whether the first hit is right, and of whether a right one is among the first five when half of the requests have
    /// theirs taken out. The limits are set so that "high" is right nine times in ten in each catalogue, and that four in five
    /// requests whose right tools were taken out are "low" (docs/search.md has what came of it). Without vectors two pieces are
    /// left.
    fn confidence(&self, ranked: &[(Pin, Hit)]) -> Confidence {
        let Some((_, first)) = ranked.first() else { return Confidence::Low };
        if first.exact {
            return Confidence::High;
        }
        let fit = first.signals.found();
        // Where there is no other, nothing stands out.
        let found = |hit: Option<&(Pin, Hit)>| hit.map_or(fit, |(_, hit)| hit.signals.found());
        // In a list too short for a sixth the last one stands for what does not fit.
        // Habits tell what is liked, not what fits.
        let ahead = fit - ranked.get(SIXTH).or(ranked.last()).map_or(fit, |(_, hit)| hit.signals.found());
        let coverage = self.coverage(ranked);
        let (high, low) = if self.dense {
            let next =
                ranked[1..].iter().find(|(_, hit)| !self.index.are_twins(first.document, hit.document));
            let sure = 2.7 * first.dense + 7.5 * (fit - found(next)) + 4.5 * ahead + 1.3 * coverage;
            (sure >= 5.6, 2.9 * first.dense + 5.8 * ahead < 3.65)
        } else {
            (coverage + ahead >= 1.3, coverage + ahead < 0.9 || coverage < LEAST_COVERAGE)
        };
        let asked = self.text_of(first).part.actions;
        // Who only asks is not sent to what changes something.
        let fits = !(asked.only_reads() && self.index.actions(first.document).only_writes());
        match (high && fits, low) {
            (_, true) => Confidence::Low,
            (true, false) => Confidence::High,
            (false, false) => Confidence::Medium,
        }
    }

    /// The text that a hit fits best: the whole, or a part of it.
    fn text_of(&self, hit: &Hit) -> &Scored<'_> {
        hit.part.and_then(|at| self.parts.get(at)).unwrap_or(&self.whole)
    }
}

/// What each document gains or loses for the products that were named.
fn by_products(index: &Index, named: &[Product]) -> Vec<f32> {
    let by_product = |document| match index.products().bound(named, document) {
        Bound::Named => NAMED_PRODUCT,
        Bound::Other if named.is_empty() => -UNNAMED_PRODUCT,
        Bound::Other => -OTHER_PRODUCT,
        Bound::Free => 0.0,
    };
    (0..index.documents().len()).map(by_product).collect()
}

/// The value at a place, 0 where nothing was scored.
fn value(values: &[f32], at: usize) -> f32 {
    values.get(at).copied().unwrap_or(0.0)
}

/// The share of what was said that has to be found for an answer by words alone to be more than a guess.
const LEAST_COVERAGE: f32 = 0.2;

/// Scores as shares of the best allowed one.
fn shares(mut scores: Vec<f32>, mask: &[bool]) -> Vec<f32> {
    let allowed = scores.iter().zip(mask).filter(|(_, allowed)| **allowed).map(|(score, _)| *score);
    let best = allowed.fold(0.0, f32::max);
    if best > 0.0 {
        scores.iter_mut().for_each(|score| *score /= best);
    }
    scores
}
