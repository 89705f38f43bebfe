//! A request, analysed once: its words and synonyms, its parts if it is long, and possible tool names.
//!
//! Knows text, not documents or scoring.

use std::{
    collections::HashSet,
    sync::{Arc, LazyLock},
};

use regex::Regex;

use super::{
    abbreviations,
    actions::{self, Actions},
    english,
    languages::{self, Gloss},
    synonyms, text, vectors,
    weights::RankingWeights,
};

/// Characters of a request that count.
const MOST_CHARACTERS: usize = 4_000;
/// With fewer parts, a request is scored as a whole: half a sentence says less than the sentence.
const FEWEST_PARTS: usize = 3;
/// The most parts scored separately; each is embedded.
const MOST_PARTS: usize = 8;
/// The fewest words of a meaningful part.
const SHORTEST_PART: usize = 3;
/// Longer texts are not a spelling of a tool's name.
const LONGEST_NAME: usize = 200;

/// A request, ready for scoring.
#[derive(Clone, Debug)]
pub struct Query {
    /// The whole request.
    pub(super) whole: QueryPart,
    /// The parts of a request for several things; empty otherwise.
    pub(super) parts: Vec<QueryPart>,
    /// The request as a name, in lower case.
    pub(super) verbatim: String,
    /// The request's words: `create issue` for `createIssue`; empty if too long for a name.
    pub(super) key: String,
    /// Whether the request can only be a name: `create_iss`, `github.create`.
    pub(super) is_identifier: bool,
    /// Words of the request that can only be names, each as words.
    pub(super) mentions: Vec<String>,
    pub(super) language: RequestLanguage,
}

/// Who can read a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestLanguage {
    /// The built-in encoder of documents.
    English,
    /// The encoder of other languages; a dictionary has an English text for the other one.
    Translated,
    /// The encoder of other languages.
    Other,
}

/// A text to score by.
#[derive(Clone, Debug)]
pub(super) struct QueryPart {
    pub(super) text: String,
    /// The text to embed, in English if there is a dictionary: abbreviations are followed by their meaning.
    spoken: String,
    /// The same in the language of the request.
    written: String,
    /// The words of the text, then words with the same meaning, without duplicates.
    pub(super) terms: Vec<Term>,
    /// How many of the terms are words of the text.
    said: usize,
    /// The wanted actions.
    pub(super) actions: Actions,
    /// Trigrams, without duplicates.
    pub(super) trigrams: Vec<u64>,
    pub(super) vector: Option<Arc<[f32]>>,
}

/// A search term: a stem if that rule is on.
#[derive(Clone, Debug)]
pub(super) struct Term {
    pub(super) term: String,
    pub(super) weight: f32,
    /// The word of the request that this term represents; the term itself if it was in the request.
    pub(super) by: String,
}

impl Query {
    /// Analyses a request of any language and length. The weights must be those of the index.
    pub fn parse(request: &str, weights: &RankingWeights) -> Query {
        let whole = text::cut(request.trim(), MOST_CHARACTERS);
        let is_foreign = !is_identifier(whole) && english::is_other_language(whole);
        let gloss = if is_foreign { languages::gloss(whole) } else { None };
        let (of_whole, parts) = match &gloss {
            None => (
                QueryPart::new(whole, false, weights),
                parts(whole, |part| QueryPart::new(part, false, weights)),
            ),
            Some(Gloss { language, text }) => {
                let glossed = |written: &str, text: &str| {
                    let part = QueryPart::new(text, true, weights);
                    QueryPart { written: written.to_owned(), ..part }
                };
                (glossed(whole, text), parts(whole, |part| glossed(part, &language.into_english(part))))
            }
        };
        // Tools and their aliases may use the language of the request.
        let of_whole = if gloss.is_some() { of_whole.also(text::terms(whole)) } else { of_whole };
        let name =
            whole.trim_matches(|c: char| c.is_whitespace() || "`'\"*".contains(c)).trim_end_matches("()");
        let name = if name.len() <= LONGEST_NAME { name } else { "" };
        let tokens = whole.split_whitespace().map(|word| word.trim_matches(|c: char| !c.is_alphanumeric()));
        Query {
            verbatim: name.to_lowercase(),
            key: text::words(name).join(" "),
            is_identifier: is_identifier(name),
            mentions: tokens
                .filter(|word| is_identifier(word))
                .map(|word| text::words(word).join(" "))
                .collect(),
            parts,
            whole: of_whole,
            language: match gloss {
                Some(_) => RequestLanguage::Translated,
                None if is_foreign => RequestLanguage::Other,
                None => RequestLanguage::English,
            },
        }
    }

    /// Whether the query can be compared by meaning.
    pub fn has_vectors(&self) -> bool {
        self.whole.vector.is_some()
    }

    /// Returns the texts whose vectors [`Query::with_vectors`] needs: the parts of a request for several
    /// things, or else the whole. In English if there is a dictionary.
    pub fn texts(&self) -> Vec<String> {
        self.to_embed().iter().map(|part| part.spoken.clone()).collect()
    }

    /// Returns the same texts in the language of the request.
    pub fn written(&self) -> Vec<String> {
        self.to_embed().iter().map(|part| part.written.clone()).collect()
    }

    fn to_embed(&self) -> &[QueryPart] {
        if self.parts.is_empty() { std::slice::from_ref(&self.whole) } else { &self.parts }
    }

    /// Adds a vector for each text, in order. Parts without a vector do not count. The vector of a whole with
    /// parts is their sum: measured to work as well as its own, which would take as long again.
    pub fn with_vectors(mut self, vectors: Vec<Arc<[f32]>>) -> Query {
        if self.parts.is_empty() {
            self.whole.vector = vectors.into_iter().next();
        } else if !vectors.is_empty() {
            self.parts.truncate(vectors.len());
            self.whole.vector = Some(vectors::sum(vectors.iter().map(|vector| (&**vector, 1.0))).into());
            for (part, vector) in self.parts.iter_mut().zip(vectors) {
                part.vector = Some(vector);
            }
        }
        self
    }
}

impl Query {
    /// Returns the query by meaning only, without words, letters, parts and names.
    pub fn vector_only(&self) -> Query {
        let nothing = Query::parse("", &RankingWeights::TOOLS);
        let whole = QueryPart { vector: self.whole.vector.clone(), ..nothing.whole.clone() };
        Query { whole, ..nothing }
    }
}

impl QueryPart {
    fn new(part: &str, is_gloss: bool, weights: &RankingWeights) -> QueryPart {
        let mut terms: Vec<Term> = Vec::new();
        let mut add = |term: String, weight: f32, by: &str| {
            if !terms.iter().any(|known| known.term == term) {
                let by = if by.is_empty() { term.clone() } else { by.to_owned() };
                terms.push(Term { term, weight, by });
            }
        };
        let stems = text::terms(part);
        stems.iter().for_each(|stem| add(stem.clone(), 1.0, ""));
        let mut spoken = part.to_owned();
        let abbreviation = weights.abbreviations;
        if abbreviation > 0.0 {
            let words = text::words(part);
            let alone = standing_alone(part);
            let mut seen = HashSet::new();
            for word in words.iter().filter(|word| alone.contains(*word) && seen.insert(word.as_str())) {
                let singular = word.strip_suffix('s').unwrap_or(word);
                let meaning = abbreviations::meaning(word).or_else(|| abbreviations::meaning(singular));
                if let Some(meaning) = meaning.filter(|meaning| !spoken.to_lowercase().contains(*meaning)) {
                    spoken.push_str(&format!(" ({meaning})"));
                    text::terms(meaning).into_iter().for_each(|term| add(term, abbreviation, word));
                }
            }
            for short in abbreviations::of(&words) {
                let by = abbreviations::meaning(short).unwrap_or_default();
                text::terms(short).into_iter().for_each(|term| add(term, abbreviation, by));
            }
            if ARITHMETIC.is_match(part) {
                spoken.push_str(" (calculate)");
                text::terms("calculate").into_iter().for_each(|term| add(term, abbreviation, part));
            }
        }
        if weights.synonyms > 0.0 {
            for stem in &stems {
                synonyms::of(stem).iter().for_each(|other| add(other.clone(), weights.synonyms, stem));
            }
        }
        let said = terms.iter().filter(|term| term.weight >= 1.0).count();
        // Sorted, so that equal requests get bit-identical scores.
        let mut trigrams = text::trigrams(part);
        trigrams.sort_unstable();
        trigrams.dedup();
        let actions = if weights.prose { Actions::NONE } else { actions::of_request(part, is_gloss) };
        let written = spoken.clone();
        QueryPart { text: part.to_owned(), spoken, written, terms, said, actions, trigrams, vector: None }
    }

    /// Adds search terms that do not count as words of the request.
    fn also(mut self, terms: Vec<String>) -> QueryPart {
        for term in terms {
            if !self.terms.iter().any(|known| known.term == term) {
                self.terms.push(Term { by: term.clone(), term, weight: 1.0 });
            }
        }
        self
    }

    /// Returns the terms of the text itself, without synonyms.
    pub(super) fn said(&self) -> impl Iterator<Item = &str> {
        self.terms[..self.said].iter().map(|term| term.term.as_str())
    }

    /// Returns all terms with their weights.
    pub(super) fn weighted(&self) -> impl Iterator<Item = (&str, f32)> {
        self.terms.iter().map(|term| (term.term.as_str(), term.weight))
    }
}

/// Returns the words that occur on their own, and file extensions (`docx` of `offer.docx`). Parts of a path,
/// an address or a key (`HR-22`) are not abbreviations.
fn standing_alone(text: &str) -> HashSet<String> {
    let runs =
        text.split_whitespace().map(|run| run.trim_matches(|c: char| !c.is_alphanumeric() && c != '/'));
    let words = runs.map(|run| match run.rsplit_once('.') {
        Some((_, ending)) => vec![text::fold(ending)],
        None if run.contains('/') || is_key(run) => Vec::new(),
        None => text::words(run),
    });
    words.flatten().collect()
}

/// Whether a run is an issue key: letters and a number.
fn is_key(run: &str) -> bool {
    run.split_once('-').is_some_and(|(head, number)| {
        let capitals = head.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit());
        capitals && !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
    })
}

/// Text that cannot name a tool and makes parts look alike.
static NOISE: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(
        r#"(?ix) https?://\S+ | (?:\s|^)(?:~|[a-z]:)?[/\\][\w.\-/\\]+
        | \b(?:please|kindly|thanks|thank\s+you|could\s+you|can\s+you|would\s+you|will\s+you|i\s+would\s+like\s+(?:you\s+)?to
        | i'd\s+like\s+(?:you\s+)?to|i\s+want\s+(?:you\s+)?to|i\s+need\s+(?:you\s+)?to|help\s+me)\b"#,
    )
    .expect("a constant that a test compiles")
});

/// Numbers with an operator between them. Dates and addresses have no spaces around their signs.
static ARITHMETIC: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(
        r"(?ix) \d\s*[+*^×÷]\s*\d | \d\s+[-/]\s+\d | \d\s*(?:%|percent|per\s+cent)\s+(?:of|from)\s+\d
        | \b(?:add|sum|multiply|divide|subtract)\s+(?:up\s+)?\d[\d.,]*\s*(?:,|and|by|from|to|with)\s*\d
        | \d\s+(?:plus|minus|times|divided(?:\s+by)?|multiplied(?:\s+by)?|modulo)\s+\d
        | \b(?:square|cube)\s+root\b | \broot\s+(?:of\s+)?\d",
    )
    .expect("a constant that a test compiles")
});

/// The boundary between two things asked for.
static SEAM: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(
        r"(?ix) [.!?]+(?:\s+|$) | [。！？；;\r\n]+ | ,\s*(?:and|then)\b | \band\s+then\b | \balso\b | \bfinally\b",
    )
    .expect("a constant that a test compiles")
});

/// Splits a request for several things into parts, each made by `part`; empty if there are too few.
fn parts(request: &str, part: impl Fn(&str) -> QueryPart) -> Vec<QueryPart> {
    let texts = split(request);
    let few = texts.len() < FEWEST_PARTS;
    if few { Vec::new() } else { texts.iter().take(MOST_PARTS).map(|text| part(text)).collect() }
}

fn split(request: &str) -> Vec<String> {
    let clean = NOISE.replace_all(request, " ");
    let trimmed = SEAM.split(&clean).map(|part| part.trim_matches(|c: char| !c.is_alphanumeric()));
    trimmed.filter(|part| text::words(part).len() >= SHORTEST_PART).map(str::to_owned).collect()
}

/// Whether a word cannot be natural language: an inner underscore or dot, or a capital after a small letter.
fn is_identifier(word: &str) -> bool {
    let inner = word.trim_matches(|c: char| !c.is_alphanumeric());
    let hump = || inner.chars().zip(inner.chars().skip(1)).any(|(a, b)| a.is_lowercase() && b.is_uppercase());
    inner.len() > 2 && !inner.contains(char::is_whitespace) && (inner.contains(['_', '.']) || hump())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_requests_are_split() {
        let check = |request: &str, expected: &[&str]| assert_eq!(split(request), expected, "{request}");
        check("list my repositories", &["list my repositories"]);
        check(
            "Please find flights to Rome. Then book the cheapest one, and add it to my calendar; finally mail me https://a.b/c the plan",
            &[
                "find flights to Rome",
                "Then book the cheapest one",
                "add it to my calendar",
                "mail me   the plan",
            ],
        );
        check("price of 3.5 litres", &["price of 3.5 litres"]);
        check("Read /data/in/file.csv into a table. Thank you!", &["Read  into a table"]);
        check("", &[]);
        check("...;;;\n\n", &[]);
    }

    #[test]
    fn names_are_told_from_words() {
        let check = |word: &str, expected: bool| assert_eq!(is_identifier(word), expected, "{word}");
        check("create_issue", true);
        check("github.create_issue", true);
        check("github__create_issue", true);
        check("createIssue", true);
        check("weather", false);
        check("check-in", false);
        check("create issue", false);
        check("Rome.", false);
        check("", false);
    }

    #[test]
    fn any_text_can_be_parsed() {
        for request in
            ["", " ", "\u{0}", "查询北京的天气", "🦀🦀", &"a".repeat(100_000), &"word. ".repeat(5_000)]
        {
            let query = Query::parse(request, &RankingWeights::TOOLS);
            assert!((1..=MOST_PARTS).contains(&query.texts().len()));
        }
    }

    #[test]
    fn the_vector_of_a_whole_is_that_of_its_parts_together() {
        let query = Query::parse(
            "find flights to Rome; book the cheapest one; mail me the plan",
            &RankingWeights::TOOLS,
        );
        assert_eq!(query.texts(), ["find flights to Rome", "book the cheapest one", "mail me the plan"]);
        let unit = |at: usize| -> Arc<[f32]> { (0..3).map(|n| f32::from(n == at)).collect() };
        let query = query.with_vectors((0..3).map(unit).collect());
        let whole = query.whole.vector.as_deref().expect("a vector");
        assert!(whole.iter().all(|value| (value - 1.0 / 3f32.sqrt()).abs() < 1e-6));
        assert_eq!(query.parts[2].vector.as_deref(), Some(&*unit(2)));
        let none = Query::parse("a b c; d e f; g h i", &RankingWeights::TOOLS).with_vectors(Vec::new());
        assert!(!none.has_vectors() && none.parts.len() == 3);
    }

    #[test]
    fn synonyms_do_not_count_as_said() {
        let query = Query::parse("remove a folder", &RankingWeights::TOOLS);
        assert_eq!(query.whole.said().collect::<Vec<_>>(), ["remov", "folder"]);
        let synonym = |term: &Term| {
            term.term == "delet" && term.weight == RankingWeights::TOOLS.synonyms && term.by == "remov"
        };
        assert!(query.whole.terms.iter().any(synonym));
        let query =
            Query::parse("remove a folder", &RankingWeights { synonyms: 0.0, ..RankingWeights::TOOLS });
        assert_eq!(query.whole.terms.len(), 2);
    }

    #[test]
    fn requests_in_other_languages_have_two_texts() {
        let query = Query::parse("Datei löschen", &RankingWeights::TOOLS);
        assert_eq!(query.language, RequestLanguage::Translated);
        assert_eq!(
            (query.texts(), query.written()),
            (vec!["file delete".into()], vec!["Datei löschen".into()])
        );
        assert_eq!(query.whole.said().collect::<Vec<_>>(), ["file", "delet"]);
        // An alias in the language of the request is found by its own words.
        assert!(query.whole.terms.iter().any(|term| term.term == text::stem("loschen")));
    }

    #[test]
    fn abbreviations_are_looked_for_as_what_they_stand_for() {
        let weight = |request: &str, term: &str| {
            let query = Query::parse(request, &RankingWeights::TOOLS);
            query.whole.terms.iter().find(|known| known.term == term).map(|known| known.weight)
        };
        assert_eq!(weight("list PRs", "pull"), Some(RankingWeights::TOOLS.abbreviations));
        assert_eq!(weight("list pull requests", "pr"), Some(RankingWeights::TOOLS.abbreviations));
        assert_eq!(
            weight("show statistics", "stat"),
            Some(RankingWeights::TOOLS.abbreviations),
            "as `get_stats` has it"
        );
        assert_eq!(weight("list pull requests", "pull"), Some(1.0));
        assert_eq!(
            Query::parse("restart k8s pods", &RankingWeights::TOOLS).texts(),
            ["restart k8s pods (kubernetes)"]
        );
        let spoken = |request: &str| Query::parse(request, &RankingWeights::TOOLS).texts().remove(0);
        assert_eq!(spoken("close HR-22 in /var/data/env.d"), "close HR-22 in /var/data/env.d");
        assert_eq!(spoken("sign offer.docx"), "sign offer.docx (word document)");
        assert_eq!(spoken("add 19 and 23"), "add 19 and 23 (calculate)");
        assert_eq!(spoken("17.5 percent of 2340"), "17.5 percent of 2340 (calculate)");
        assert_eq!(spoken("add a label to issue 17 by 2026-11-22"), "add a label to issue 17 by 2026-11-22");
        let without = RankingWeights { abbreviations: 0.0, ..RankingWeights::TOOLS };
        assert_eq!(Query::parse("restart k8s pods", &without).texts(), ["restart k8s pods"]);
    }
}
