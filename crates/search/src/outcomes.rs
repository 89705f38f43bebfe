//! Learning from calls: a successful call after a query raises that document for similar queries.
//!
//! A small table of (words of the query, document) with a weight that halves every thirty days, and each
//! document's resulting boost for a query. Pure and without a clock: time is an argument, in seconds since
//! 1970. Knows words and document names; storage, and what counts as a success, belong to others.

use std::{
    cmp::Ordering,
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use super::text;

/// The half-life of an outcome, in seconds. A habit of this month beats one of last quarter, and a two-week
/// holiday costs little.
pub const HALF_LIFE_S: u64 = 30 * 24 * 60 * 60;
/// The lifetime of an outcome that is not repeated, in seconds: its remaining weight is negligible by then.
pub const LIFETIME_S: u64 = 12 * HALF_LIFE_S;
/// The most outcomes. Beyond it, the weakest are dropped.
pub const MOST_OUTCOMES: usize = 5_000;
/// The most outcomes per document, so that a busy tool does not displace the rest. Measured: more outcomes
/// find nothing more.
pub const MOST_PER_DOCUMENT: usize = 10;
/// The first words of a query that count.
pub const MOST_WORDS: usize = 16;
/// The highest boost. Scores reach about 1.3, and a cosine of 0.5 is a good hit, so a boost decides between
/// good hits but does not lift a bad one above them.
pub const MOST_BOOST: f32 = 0.2;

/// The least overlap of two queries: shared words over all words of either.
const LEAST_OVERLAP: f32 = 0.5;
/// The highest weight. More successes would not raise the boost, only make a habit outlast the half-life: an
/// agent in a loop makes thousands.
const MOST_WEIGHT: f32 = 16.0;
/// The share of a habit that remains each time its document is passed over: after three times, a boost is a
/// third.
const PASSED_OVER: f32 = 0.5;
/// Characters of a query that are read for words.
const LONGEST_QUERY: usize = 1_000;
/// The longest run without spaces, in characters. Longer runs are keys, hashes or addresses: useless for
/// other queries, and better not stored.
const LONGEST_RUN: usize = 32;
/// The same for a run of letters and digits, as in keys and passwords.
const LONGEST_MIXED_RUN: usize = 10;

/// Successful calls of a document after a query.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The query's [`words`].
    pub words: Vec<String>,
    /// The document's full name.
    pub document: Arc<str>,
    /// The number of successes, decayed to the time `at`. More than 0, at most 16.
    pub weight: f32,
    /// The time of the last success, in seconds since 1970.
    pub at: u64,
}

impl Outcome {
    /// Returns the decayed weight at another time, in seconds since 1970.
    pub fn weight_at(&self, at: u64) -> f32 {
        self.level(at).exp2() as f32
    }

    fn level(&self, at: u64) -> f64 {
        level(f64::from(self.weight), self.at, at)
    }

    /// Whether [`Outcomes::record`] could have made this outcome. One read from a file may be invalid.
    pub fn is_sound(&self) -> bool {
        let counted = self.weight > 0.0 && self.weight <= MOST_WEIGHT;
        counted && !self.document.is_empty() && !self.words.is_empty() && self.words == tidy(&self.words)
    }

    /// Orders outcomes from weak to strong. Never equal for two outcomes of a table, so removal is
    /// deterministic.
    fn compare(&self, other: &Outcome, at: u64) -> Ordering {
        let names = || (&other.words, &other.document).cmp(&(&self.words, &self.document));
        self.level(at).total_cmp(&other.level(at)).then(self.at.cmp(&other.at)).then_with(names)
    }
}

/// Returns the binary logarithm of the weight left at `now`: an order that distinguishes even the oldest
/// outcomes.
///
/// The weight decays in both directions: an outcome from the future was written with a wrong clock, and
/// counts like one equally far in the past.
pub fn level(weight: f64, at: u64, now: u64) -> f64 {
    weight.log2() - at.abs_diff(now) as f64 / HALF_LIFE_S as f64
}

/// A document's boost for a query, and its source.
#[derive(Clone, Debug, PartialEq)]
pub struct LearnedBoost {
    /// The boost to add to the score: more than 0, at most [`MOST_BOOST`].
    pub boost: f32,
    /// The words of the earlier query.
    pub words: Vec<String>,
}

/// Returns the words of a query: stems without stop words and prepositions, sorted, without duplicates, at
/// most [`MOST_WORDS`]. Empty if no word has a meaning.
pub fn words(query: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let query = text::cut(query, LONGEST_QUERY);
    let safe: Vec<&str> = query.split_whitespace().filter(|run| !may_be_secret(run)).collect();
    for word in text::terms(&safe.join(" ")) {
        let counts = !text::is_preposition(&word);
        if counts && words.len() < MOST_WORDS && !words.contains(&word) {
            words.push(word);
        }
    }
    words.sort_unstable();
    words
}

/// Whether a run may be a secret that must not be stored.
fn may_be_secret(run: &str) -> bool {
    let mixed = run.contains(|c: char| c.is_ascii_digit()) && run.contains(char::is_alphabetic);
    run.chars().count() > if mixed { LONGEST_MIXED_RUN } else { LONGEST_RUN }
}

/// All outcomes: at most [`MOST_OUTCOMES`], and [`MOST_PER_DOCUMENT`] per document.
#[derive(Debug, Default)]
pub struct Outcomes {
    pub(crate) rows: HashMap<u64, Outcome>,
    /// The rows with each word: all that a lookup visits.
    by_word: HashMap<String, Vec<u64>>,
    by_document: HashMap<Arc<str>, Vec<u64>>,
    next: u64,
}

impl Outcomes {
    /// Builds a table from outcomes in any order. Of duplicates, the stronger one counts; invalid outcomes,
    /// and the weakest beyond the limits, are dropped.
    pub fn new(mut rows: Vec<Outcome>) -> Outcomes {
        rows.retain(Outcome::is_sound);
        let newest = rows.iter().map(|row| row.at).max().unwrap_or_default();
        rows.sort_by(|a, b| b.compare(a, newest));
        let mut outcomes = Outcomes::default();
        for row in rows {
            let of_document = outcomes.by_document.get(&row.document).map_or(0, Vec::len);
            let fits = outcomes.rows.len() < MOST_OUTCOMES && of_document < MOST_PER_DOCUMENT;
            if fits && outcomes.find(&row.words, &row.document).is_none() {
                outcomes.add(row);
            }
        }
        outcomes
    }

    /// Records a success: a query with these [`words`] was followed by a successful call of the document,
    /// `at` seconds since 1970. Returns the updated outcome, to be stored; `None` if there are no words to
    /// learn from.
    ///
    /// A full table drops its weakest other outcome.
    pub fn record(&mut self, words: &[String], document: &str, at: u64) -> Option<Outcome> {
        let words = tidy(words);
        if words.is_empty() || document.is_empty() {
            return None;
        }
        let id = match self.find(&words, document) {
            Some(id) => id,
            None => self.add(Outcome { words, document: document.into(), weight: 0.0, at }),
        };
        let row = self.rows.get_mut(&id)?;
        row.weight = (row.weight_at(at) + 1.0).min(MOST_WEIGHT);
        row.at = at;
        let row = row.clone();

        let siblings = &self.by_document[&row.document];
        if siblings.len() > MOST_PER_DOCUMENT {
            self.remove_weakest(siblings.clone(), id, at);
        } else if self.rows.len() > MOST_OUTCOMES {
            self.remove_weakest(self.rows.keys().copied().collect(), id, at);
        }
        Some(row)
    }

    /// Halves a document's outcomes for similar queries after it ranked first and another document was
    /// called. Returns the changed outcomes, to be stored.
    pub fn pass_over(&mut self, words: &[String], document: &str, at: u64) -> Vec<Outcome> {
        let words = tidy(words);
        let mut changed = Vec::new();
        for id in self.by_document.get(document).into_iter().flatten() {
            let Some(row) = self.rows.get_mut(id) else { continue };
            let shared = row.words.iter().filter(|word| words.binary_search(word).is_ok()).count();
            if overlap(words.len(), row.words.len(), shared) > 0.0 {
                // Never 0: such an outcome would be invalid.
                row.weight = (row.weight_at(at) * PASSED_OVER).max(f32::MIN_POSITIVE);
                row.at = at;
                changed.push(row.clone());
            }
        }
        changed
    }

    /// Returns each document's boost for a query with these [`words`], at a time in seconds since 1970.
    /// Leaves out documents without a boost.
    pub fn boosts(&self, words: &[String], at: u64) -> HashMap<Arc<str>, LearnedBoost> {
        let words = tidy(words);
        let mut shared: HashMap<u64, usize> = HashMap::new();
        for id in words.iter().filter_map(|word| self.by_word.get(word)).flatten() {
            *shared.entry(*id).or_default() += 1;
        }
        let mut best: HashMap<Arc<str>, LearnedBoost> = HashMap::new();
        for (id, shared) in shared {
            let row = &self.rows[&id];
            let overlap = overlap(words.len(), row.words.len(), shared);
            if overlap == 0.0 || row.at.abs_diff(at) > LIFETIME_S {
                continue;
            }
            // One fresh success gives half of the boost; each further one gives half of the rest.
            let strength = 1.0 - (-row.weight_at(at)).exp2();
            let boost = MOST_BOOST * overlap * strength;
            let beats = |known: &LearnedBoost| {
                boost.total_cmp(&known.boost).then_with(|| known.words.cmp(&row.words)).is_gt()
            };
            match best.entry(row.document.clone()) {
                Entry::Occupied(known) if !beats(known.get()) => {}
                Entry::Occupied(mut known) => {
                    *known.get_mut() = LearnedBoost { boost, words: row.words.clone() }
                }
                Entry::Vacant(none) => {
                    none.insert(LearnedBoost { boost, words: row.words.clone() });
                }
            }
        }
        best
    }

    fn find(&self, words: &[String], document: &str) -> Option<u64> {
        self.by_document.get(document)?.iter().copied().find(|id| self.rows[id].words == words)
    }

    fn add(&mut self, row: Outcome) -> u64 {
        let id = self.next;
        self.next += 1;
        for word in &row.words {
            self.by_word.entry(word.clone()).or_default().push(id);
        }
        self.by_document.entry(row.document.clone()).or_default().push(id);
        self.rows.insert(id, row);
        id
    }

    /// Removes the weakest rows, except `keep`, which was just recorded: otherwise a new outcome could never
    /// displace old, often repeated ones.
    fn remove_weakest(&mut self, ids: Vec<u64>, keep: u64, at: u64) {
        let others = ids.into_iter().filter(|id| *id != keep);
        let Some(weakest) = others.min_by(|a, b| self.rows[a].compare(&self.rows[b], at)) else { return };
        let Some(row) = self.rows.remove(&weakest) else { return };
        for word in row.words {
            remove_id(self.by_word.entry(word), weakest);
        }
        remove_id(self.by_document.entry(row.document), weakest);
    }
}

/// Removes a row id from a map entry, and the entry if it becomes empty.
fn remove_id<K>(entry: Entry<K, Vec<u64>>, id: u64) {
    if let Entry::Occupied(mut ids) = entry {
        ids.get_mut().retain(|other| *other != id);
        if ids.get().is_empty() {
            ids.remove();
        }
    }
}

/// Returns the Jaccard overlap of two word sets by their sizes; 0 if too small to count.
fn overlap(one: usize, other: usize, shared: usize) -> f32 {
    let overlap = shared as f32 / (one + other - shared) as f32;
    // `list` and `list issues` overlap by half, but a single word says too little about the other query.
    let least = if one.min(other) == 1 { 1.0 } else { LEAST_OVERLAP };
    if overlap >= least { overlap } else { 0.0 }
}

/// Sorts words, removes duplicates, and limits their number.
fn tidy(words: &[String]) -> Vec<String> {
    let mut words: Vec<String> = words.iter().filter(|word| !word.is_empty()).cloned().collect();
    words.sort_unstable();
    words.dedup();
    words.truncate(MOST_WORDS);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000;
    const DAY: u64 = 24 * 60 * 60;

    fn outcome(query: &str, document: &str, weight: f32, at: u64) -> Outcome {
        Outcome { words: words(query), document: document.into(), weight, at }
    }

    /// Returns the boost of `a` for a query.
    fn boost(outcomes: &Outcomes, query: &str, at: u64) -> f32 {
        outcomes.boosts(&words(query), at).get("a").map_or(0.0, |learned| learned.boost)
    }

    /// Renders all outcomes as sorted text.
    fn rows(outcomes: &Outcomes) -> Vec<String> {
        let mut rows: Vec<String> = outcomes
            .rows
            .values()
            .map(|row| format!("{} -> {}", row.words.join(" "), row.document))
            .collect();
        rows.sort();
        // The maps agree with the rows.
        assert_eq!(outcomes.by_document.values().map(Vec::len).sum::<usize>(), rows.len());
        let words: usize = outcomes.rows.values().map(|row| row.words.len()).sum();
        assert_eq!(outcomes.by_word.values().map(Vec::len).sum::<usize>(), words);
        rows
    }

    fn close(found: f32, expected: f32) -> bool {
        (found - expected).abs() < 1e-5
    }

    #[test]
    fn words_are_the_stems_that_count_sorted_and_bounded() {
        let check = |query: &str, expected: &str| assert_eq!(words(query).join(" "), expected, "{query}");
        check("Please list all of my repositories", "list repositori");
        check("issues, issue and ISSUE", "issu");
        check("", "");
        check("please, could you?", "");
        check("🦀 !!!", "");
        check("查询天气", "天气 查询 询天");
        check("Погода в Москве", "в москве погода");
        check("e\u{301}crire à l'ÉCOLE", "ecol ecrir l");
        check(&format!("key {}", "f3a9".repeat(10)), "key");
        check("clone with ghp_16C7e42F292c6912E7710c838347Ae178B4a", "clone");
        check("sign in as me with hunter2horse9", "sign");
        check("restart k8s pods in eu-west-1", "1 eu k8s pod restart west");
        check(&"word ".repeat(100_000), "word");
        let many: Vec<String> = (10..60).map(|number| format!("w{number}")).collect();
        assert_eq!(words(&many.join(" ")), many[..MOST_WORDS]);
    }

    #[test]
    fn a_weight_halves_every_thirty_days_in_both_directions() {
        let check = |weight: f32, days: i64, expected: f32| {
            let at = NOW.saturating_add_signed(days * DAY as i64);
            let found = outcome("x", "a", weight, NOW).weight_at(at);
            assert!(close(found, expected), "{weight} after {days} days is {found}");
        };
        check(1.0, 0, 1.0);
        check(1.0, 30, 0.5);
        check(8.0, 90, 1.0);
        check(1.0, 15, std::f32::consts::FRAC_1_SQRT_2);
        check(1.0, -30, 0.5);
        check(1.0, 100_000, 0.0);
        assert_eq!(outcome("x", "a", 1.0, u64::MAX).weight_at(0), 0.0);
    }

    #[test]
    fn successes_add_up_and_fade() {
        let mut outcomes = Outcomes::default();
        let query = words("open an issue");
        let check = |outcome: Option<Outcome>, weight: f32, boost: f32, outcomes: &Outcomes| {
            let outcome = outcome.expect("a query with words");
            assert!(close(outcome.weight, weight), "{outcome:?}");
            assert!(outcome.is_sound());
            let found = super::tests::boost(outcomes, "open an issue", outcome.at);
            assert!(close(found, boost), "{found}");
        };
        let first = outcomes.record(&query, "a", NOW);
        check(first, 1.0, 0.1, &outcomes);
        let second = outcomes.record(&query, "a", NOW);
        check(second, 2.0, 0.15, &outcomes);
        let later = outcomes.record(&query, "a", NOW + 30 * DAY);
        check(later, 2.0, 0.15, &outcomes);
        let clock_set_back = outcomes.record(&query, "a", NOW);
        check(clock_set_back, 2.0, 0.15, &outcomes);
        for _ in 0..1_000 {
            outcomes.record(&query, "a", NOW);
        }
        check(outcomes.record(&query, "a", NOW), MOST_WEIGHT, MOST_BOOST, &outcomes);
        assert!(boost(&outcomes, "open an issue", NOW) <= MOST_BOOST);
        assert_eq!(outcomes.rows.len(), 1);

        assert!(boost(&outcomes, "open an issue", NOW + LIFETIME_S) > 0.0);
        assert_eq!(boost(&outcomes, "open an issue", NOW + LIFETIME_S + 1), 0.0);
    }

    #[test]
    fn queries_overlap_by_half_or_not_at_all() {
        let check = |learned: &str, asked: &str, expected: f32| {
            let outcomes = Outcomes::new(vec![outcome(learned, "a", 1.0, NOW)]);
            let found = boost(&outcomes, asked, NOW);
            assert!(close(found, MOST_BOOST * 0.5 * expected), "{learned} / {asked}: {found}");
        };
        check("open issue", "open an issue", 1.0);
        check("open issue", "issues: open", 1.0);
        check("open issue tracker", "open issue", 2.0 / 3.0);
        check("open issue tracker", "open issue page", 0.5);
        check("open issue tracker now", "open issue page now then", 3.0 / 5.0);
        check("open issue tracker", "open page number", 0.0);
        check("open issue", "open", 0.0);
        check("open", "open issue", 0.0);
        check("open", "Open!", 1.0);
        check("open issue", "closed thing", 0.0);
        check("open issue", "", 0.0);
        check("查询天气", "查询天气", 1.0);
        check("查询北京", "查询天气", 0.0);
    }

    #[test]
    fn the_best_pair_of_each_document_counts() {
        let outcomes = Outcomes::new(vec![
            outcome("open issue", "a", 1.0, NOW),
            outcome("open issue tracker", "a", 4.0, NOW),
            outcome("open issue", "b", 3.0, NOW),
            outcome("weather rome", "c", 16.0, NOW),
        ]);
        let boosts = outcomes.boosts(&words("open issue"), NOW);
        let mut found: Vec<(&str, String, f32)> =
            boosts.iter().map(|(name, learned)| (&**name, learned.words.join(" "), learned.boost)).collect();
        found.sort_by(|a, b| a.0.cmp(b.0));
        let a = MOST_BOOST * (2.0 / 3.0) * (1.0 - 0.5_f32.powi(4));
        assert_eq!(found, [("a", "issu open tracker".into(), a), ("b", "issu open".into(), 0.175)]);
    }

    #[test]
    fn equal_pairs_are_told_apart_by_their_words() {
        let pairs = ["open issue zebra", "open issue apple", "open issue mango"];
        for turn in 0..pairs.len() {
            let mut rows: Vec<Outcome> = pairs.iter().map(|query| outcome(query, "a", 1.0, NOW)).collect();
            rows.rotate_left(turn);
            let boosts = Outcomes::new(rows).boosts(&words("open issue"), NOW);
            assert_eq!(boosts["a"].words.join(" "), "appl issu open");
        }
    }

    #[test]
    fn nothing_is_learned_from_no_words() {
        let mut outcomes = Outcomes::default();
        assert_eq!(outcomes.record(&words("what is it?"), "a", NOW), None);
        assert_eq!(outcomes.record(&words("weather"), "", NOW), None);
        assert!(outcomes.rows.is_empty());
        assert!(outcomes.boosts(&[], NOW).is_empty());
        assert!(Outcomes::new(Vec::new()).boosts(&words("weather"), NOW).is_empty());
    }

    #[test]
    fn words_in_any_order_and_number_are_taken() {
        let given = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let mut outcomes = Outcomes::default();
        outcomes.record(&given(&["open", "issu", "open", ""]), "a", NOW);
        assert_eq!(rows(&outcomes), ["issu open -> a"]);
        assert_eq!(outcomes.boosts(&given(&["issu", "issu", "open"]), NOW)["a"].boost, 0.1);
        let many: Vec<String> = (0..100).map(|number| format!("w{number}")).collect();
        assert!(outcomes.record(&many, "a", NOW).is_some_and(|row| row.is_sound()));
    }

    #[test]
    fn what_is_not_sound_is_left_out() {
        let check = |change: &dyn Fn(&mut Outcome), sound: bool| {
            let mut row = outcome("open issue", "a", 1.0, NOW);
            change(&mut row);
            assert_eq!(row.is_sound(), sound, "{row:?}");
            assert_eq!(Outcomes::new(vec![row]).rows.len(), usize::from(sound));
        };
        check(&|_| {}, true);
        check(&|row| row.at = u64::MAX, true);
        check(&|row| row.weight = 0.0, false);
        check(&|row| row.weight = -1.0, false);
        check(&|row| row.weight = f32::NAN, false);
        check(&|row| row.weight = f32::INFINITY, false);
        check(&|row| row.words.clear(), false);
        check(&|row| row.words.reverse(), false);
        check(&|row| row.words[1] = row.words[0].clone(), false);
        check(&|row| row.words[0].clear(), false);
        check(&|row| row.words = (10..30).map(|number| number.to_string()).collect(), false);
        check(&|row| row.document = "".into(), false);
    }

    #[test]
    fn of_two_with_the_same_key_the_stronger_counts() {
        let weak = outcome("open issue", "a", 1.0, NOW);
        let strong = outcome("issue open", "a", 2.0, NOW);
        for rows in [vec![weak.clone(), strong.clone()], vec![strong.clone(), weak.clone()]] {
            let outcomes = Outcomes::new(rows);
            assert_eq!(outcomes.rows.len(), 1);
            assert!(close(boost(&outcomes, "open issue", NOW), 0.15));
        }
    }

    #[test]
    fn a_document_keeps_its_strongest_and_the_one_just_recorded() {
        let mut outcomes = Outcomes::default();
        for number in 0..MOST_PER_DOCUMENT as u64 {
            // The third is the weakest because it is the oldest.
            let at = if number == 2 { NOW - 90 * DAY } else { NOW - number };
            outcomes.record(&words(&format!("query q{number}")), "a", at);
        }
        outcomes.record(&words("other document"), "b", NOW - 300 * DAY);
        outcomes.record(&words("newcomer here"), "a", NOW);
        let mut expected: Vec<String> =
            (0..10).filter(|number| *number != 2).map(|number| format!("q{number} queri -> a")).collect();
        expected.extend(["newcom -> a".into(), "document -> b".into()]);
        expected.sort();
        assert_eq!(rows(&outcomes), expected);

        // A newcomer still gets in among strong rows, in place of the previous newcomer.
        for number in [0, 1, 3, 4, 5, 6, 7, 8, 9] {
            for _ in 0..3 {
                outcomes.record(&words(&format!("query q{number}")), "a", NOW);
            }
        }
        outcomes.record(&words("second newcomer"), "a", NOW);
        assert!(rows(&outcomes).contains(&"newcom second -> a".into()));
        assert!(!rows(&outcomes).contains(&"newcom -> a".into()));
    }

    #[test]
    fn what_is_passed_over_again_and_again_loses_its_lift() {
        let mut outcomes = Outcomes::default();
        for _ in 0..4 {
            outcomes.record(&words("open an issue"), "a", NOW);
        }
        outcomes.record(&words("weather in Rome"), "a", NOW);
        let before = boost(&outcomes, "open an issue", NOW);
        let mut last = before;
        for _ in 0..4 {
            let changed = outcomes.pass_over(&words("open an issue now"), "a", NOW);
            assert!(changed.len() == 1 && changed[0].is_sound(), "{changed:?}");
            let boost = boost(&outcomes, "open an issue", NOW);
            assert!(boost < last);
            last = boost;
        }
        assert!(last < before / 4.0, "{last} of {before}");
        assert!(close(boost(&outcomes, "weather in Rome", NOW), 0.1), "other requests keep theirs");
        assert!(outcomes.pass_over(&words("open an issue"), "b", NOW).is_empty());
        for _ in 0..500 {
            outcomes.pass_over(&words("open an issue"), "a", NOW);
        }
        assert!(outcomes.rows.values().all(Outcome::is_sound));
    }

    #[test]
    fn the_table_is_bounded_and_what_goes_is_no_accident() {
        let all: Vec<Outcome> = (0..MOST_OUTCOMES as u64 + 100)
            .map(|number| outcome(&format!("query q{number}"), &format!("d{}", number % 1_000), 1.0, NOW))
            .collect();
        let mut shuffled = all.clone();
        shuffled.reverse();
        shuffled.rotate_left(1_234);
        let (mut one, mut other) = (Outcomes::new(all), Outcomes::new(shuffled));
        assert_eq!(one.rows.len(), MOST_OUTCOMES);
        assert_eq!(rows(&one), rows(&other));
        for outcomes in [&mut one, &mut other] {
            for number in 0..50 {
                let query = words(&format!("new n{number}"));
                assert!(outcomes.record(&query, &format!("n{number}"), NOW + number).is_some());
            }
            assert_eq!(outcomes.rows.len(), MOST_OUTCOMES);
            assert_eq!(outcomes.boosts(&words("new n49"), NOW).len(), 1);
        }
        assert_eq!(rows(&one), rows(&other));

        let crowd = (0..50).map(|number| outcome(&format!("query q{number}"), "a", 1.0, NOW + number));
        let kept = Outcomes::new(crowd.collect());
        assert_eq!(kept.rows.len(), MOST_PER_DOCUMENT);
        assert!(rows(&kept).contains(&"q49 queri -> a".into()));
    }
}
