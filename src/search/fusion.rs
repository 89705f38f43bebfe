//! The ranking rule: how meaning, keywords and letters become one order.
//!
//! Knows signals and weights. Measured on public tool catalogues: the cosine orders best by itself, and keywords help
//! most as a small bounded bonus; counts of keywords, or rank fusion with equal say, drown the meaning.

use super::{
    Confidence, Document, Found, Hit,
    index::{Index, Pin},
    query::{Part, Query},
};

pub(super) mod tune {
    use std::sync::LazyLock;
    fn get(name: &str, default: f32) -> f32 {
        std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
    }
    macro_rules! t { ($($n:ident = $d:expr;)*) => { $(pub static $n: LazyLock<f32> = LazyLock::new(|| get(stringify!($n), $d));)* } }
    t! {
        MIN_PARTS = 2.0; KW = 0.15; KWP = 0.4; KWW = 0.15; TRI = 0.05; BEST = 0.5;
        GROW = 0.0; GROWMAX = 0.5; GROWFROM = 8.0;
        F_GROUP = 1.0; F_NAME = 1.0; F_DESC = 1.0; F_PARAM = 1.0; F_PDESC = 0.0; F_GDESC = 0.0; F_TERM = 1.0; F_TITLE = 1.0;
        TRI_ALL = 1.0;
    }
}

/// Candidates that each signal names where there are too many documents to score all.
const CANDIDATES: usize = 200;

/// How near one document is to one text.
#[derive(Clone, Copy, Debug, Default)]
struct Signals {
    /// Cosine, -1..1.
    dense: f32,
    /// Share of the best keyword score, 0..1.
    keyword: f32,
    /// Share of the best trigram score, 0..1.
    trigram: f32,
}

/// The scores of one text against all documents.
struct Scored<'a> {
    part: &'a Part,
    keyword: Vec<f32>,
    trigram: Vec<f32>,
    /// Empty where only candidates are scored.
    dense: Vec<f32>,
}

pub(super) fn search(
    index: &Index,
    query: &Query,
    limit: usize,
    allowed: &dyn Fn(&Document) -> bool,
) -> Found {
    let documents = index.documents();
    let mask: Vec<bool> = documents.iter().map(allowed).collect();
    // A graph cannot skip what is not allowed without losing its way: then all allowed ones are scored.
    let graph = index.has_graph() && mask.iter().all(|&allowed| allowed);
    let texts: Vec<Scored> = std::iter::once(&query.whole)
        .chain(&query.parts)
        .map(|part| score(index, part, &mask, graph))
        .collect();
    let pins = index.pins(query);

    let candidates: Vec<usize> = if graph {
        candidates(index, &texts, limit, &pins)
    } else {
        (0..documents.len()).filter(|&document| mask[document]).collect()
    };
    let dense = index.has_vectors() && query.whole.vector.is_some();
    let mut ranked: Vec<(Pin, Hit)> = candidates
        .into_iter()
        .filter_map(|document| {
            let pin = pins.get(&document).copied().unwrap_or(Pin::No);
            let hit = fuse(index, &texts, document, dense, pin);
            (hit.score > 0.0).then_some((pin, hit))
        })
        .collect();
    let total = ranked.len();
    let order = |(a_pin, a): &(Pin, Hit), (b_pin, b): &(Pin, Hit)| {
        let by_score = b_pin.cmp(a_pin).then_with(|| b.score.total_cmp(&a.score));
        by_score.then_with(|| documents[a.document].id.cmp(&documents[b.document].id))
    };
    let keep = limit.max(10);
    if ranked.len() > keep {
        ranked.select_nth_unstable_by(keep, order);
        ranked.truncate(keep);
    }
    ranked.sort_by(order);
    let mut hits: Vec<Hit> = ranked.into_iter().map(|(_, hit)| hit).collect();
    let confidence = confidence(index, query, &hits, dense);
    hits.truncate(limit);
    Found { hits, total, confidence }
}

fn score<'a>(index: &Index, part: &'a Part, mask: &[bool], graph: bool) -> Scored<'a> {
    let keyword = index.keywords(part.terms.iter().map(|(term, weight)| (term.as_str(), *weight)));
    let trigram = index.trigrams(part.trigrams.iter().map(|(gram, weight)| (gram, *weight)));
    let vector = part.vector.as_deref().filter(|_| !graph);
    let dense = vector.and_then(|vector| index.vectors()?.scores(vector)).unwrap_or_default();
    Scored { part, keyword: shares(keyword, mask), trigram: shares(trigram, mask), dense }
}

/// Scores as shares of the best allowed one.
fn shares(mut scores: Vec<f32>, mask: &[bool]) -> Vec<f32> {
    let best =
        scores.iter().zip(mask).filter(|(_, allowed)| **allowed).map(|(score, _)| *score).fold(0.0, f32::max);
    if best > 0.0 {
        scores.iter_mut().for_each(|score| *score /= best);
    }
    scores
}

fn candidates(
    index: &Index,
    texts: &[Scored],
    limit: usize,
    pins: &std::collections::HashMap<usize, Pin>,
) -> Vec<usize> {
    let count = CANDIDATES.max(2 * limit);
    let mut found: Vec<usize> = pins.keys().copied().collect();
    for text in texts {
        if let (Some(vectors), Some(vector)) = (index.vectors(), &text.part.vector) {
            found.extend(vectors.near(vector, count));
        }
        let mut best: Vec<usize> =
            (0..text.keyword.len()).filter(|&at| text.keyword[at] + text.trigram[at] > 0.0).collect();
        let bonus = |at: usize| *tune::KW * text.keyword[at] + *tune::TRI * text.trigram[at];
        if best.len() > count {
            best.select_nth_unstable_by(count, |&a, &b| bonus(b).total_cmp(&bonus(a)).then(a.cmp(&b)));
            best.truncate(count);
        }
        found.extend(best);
    }
    found.sort_unstable();
    found.dedup();
    found
}

fn fuse(index: &Index, texts: &[Scored], document: usize, dense: bool, pin: Pin) -> Hit {
    let several = texts.len() > 1;
    let value = |text: &Scored, whole: bool| {
        let signals = Signals {
            dense: text.dense.get(document).copied().unwrap_or_else(|| {
                let vector = text.part.vector.as_deref().filter(|_| dense);
                vector.zip(index.vectors()).map_or(0.0, |(vector, vectors)| vectors.score(vector, document))
            }),
            keyword: text.keyword[document],
            trigram: text.trigram[document],
        };
        let grown = (*tune::KW + *tune::GROW * (text.part.said as f32 - *tune::GROWFROM))
            .clamp(*tune::KW, *tune::GROWMAX);
        let weight = if several { if whole { tune::KWW.max(grown) } else { *tune::KWP } } else { grown };
        (signals.dense + weight * signals.keyword + *tune::TRI * signals.trigram, signals)
    };
    let (whole, mut signals) = value(&texts[0], true);
    let mut score = whole;
    if several {
        let best = texts[1..].iter().map(|text| value(text, false)).max_by(|a, b| a.0.total_cmp(&b.0));
        if let Some((best, of_best)) = best {
            score = (1.0 - *tune::BEST) * whole + *tune::BEST * best;
            signals = of_best;
        }
    }
    Hit {
        document,
        score,
        dense: signals.dense,
        keyword: signals.keyword,
        trigram: signals.trigram,
        exact: pin >= Pin::Name,
    }
}

fn confidence(_index: &Index, _query: &Query, _hits: &[Hit], _dense: bool) -> Confidence {
    Confidence::Medium
}
