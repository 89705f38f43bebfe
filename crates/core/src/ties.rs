//! The order of equal hits: first hits whose server is up, then hits whose calls cost less.
//!
//! Only hits that the ranking cannot tell apart are tied. Without figures about calls, the order stays
//! unchanged.

use std::{cmp::Reverse, collections::HashMap};

use nonet_api::tools::{Cost, TieBreak};
use nonet_parts::figures::Figures;
use nonet_search::Hit;
use nonet_servers::catalog::Tool;

use crate::gate::Gate;

/// The largest difference between two equal hits, as a share of the score. The smallest bonus of the ranking
/// is ten times as large, and an answer shows the same score for hits that differ by less.
const EQUAL: f32 = 0.001;
/// The same limit for twins, whose texts differ only in the server's name and description. Measured with the
/// built-in model: unrelated names and descriptions differ by up to 0.05; a hint at one of the servers makes
/// 0.12 or more.
const EQUAL_TWINS: f32 = 0.05;

/// The criteria for equal hits; the better hit has the smaller value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct TieRank {
    is_up: Reverse<bool>,
    cost: Cost,
}

impl TieRank {
    /// Returns why a hit with this standing comes before a hit with another one.
    fn ahead_of(self, other: Self) -> Option<TieBreak> {
        if self >= other {
            None
        } else if self.is_up == other.is_up {
            Some(TieBreak::Cost)
        } else {
            Some(TieBreak::State)
        }
    }
}

/// Decides between the equal hits of one search.
pub(crate) struct Ties<'a> {
    gate: &'a Gate,
    /// `None` if nothing is learned from calls.
    figures: Option<&'a Figures>,
    /// By document.
    decided: HashMap<usize, TieBreak>,
}

impl<'a> Ties<'a> {
    pub(crate) fn new(gate: &'a Gate, figures: Option<&'a Figures>) -> Self {
        Self { gate, figures, decided: HashMap::new() }
    }

    /// Returns why a hit comes before an equal one, if it does.
    pub(crate) fn decided(&self, hit: &Hit) -> Option<TieBreak> {
        self.decided.get(&hit.document).copied()
    }

    /// Sorts adjacent equal hits.
    pub(crate) fn settle(&mut self, hits: &mut [Hit]) {
        let gate = self.gate;
        let standing = |hit: &Hit| match gate.snapshot.tool(hit.document) {
            Some(tool) => self.standing(tool),
            None => TieRank { is_up: Reverse(false), cost: Cost::High },
        };
        let decided = settle(hits, standing);
        self.decided.extend(decided);
    }

    /// Whether a twin of a hit comes before the hit.
    pub(crate) fn prefers(&mut self, (hit, tool): (&Hit, &Tool), (shown, other): (&Hit, &Tool)) -> bool {
        let tie = self.standing(tool).ahead_of(self.standing(other));
        let counts = match tie {
            Some(TieBreak::State) => true,
            // Learned habits and loaded tools say more about the user's intent.
            Some(TieBreak::Cost) => {
                hit.signals.learned >= shown.signals.learned && are_equal(shown, hit, EQUAL_TWINS)
            }
            None => false,
        };
        if counts && let Some(tie) = tie {
            self.decided.insert(hit.document, tie);
        }
        counts
    }

    fn standing(&self, tool: &Tool) -> TieRank {
        let cost = self.figures.map_or(Cost::default(), |figures| figures.cost(&tool.own_full()));
        TieRank { is_up: Reverse(self.gate.trouble(tool.at()).is_none()), cost }
    }
}

/// Sorts adjacent equal hits. Returns, by document, why hits moved ahead.
fn settle(hits: &mut [Hit], standing: impl Fn(&Hit) -> TieRank) -> Vec<(usize, TieBreak)> {
    let (mut decided, mut at) = (Vec::new(), 0);
    while at < hits.len() {
        let first = hits[at];
        let equal = hits[at + 1..].iter().take_while(|hit| are_equal(&first, hit, EQUAL)).count();
        let group = &mut hits[at..=at + equal];
        at += equal + 1;
        if equal == 0 {
            continue;
        }
        let mut ranked: Vec<(TieRank, usize, Hit)> =
            group.iter().enumerate().map(|(place, hit)| (standing(hit), place, *hit)).collect();
        ranked.sort_by_key(|(standing, place, _)| (*standing, *place));
        for (slot, (_, _, hit)) in group.iter_mut().zip(&ranked) {
            *slot = *hit;
        }
        for (now, (own, place, hit)) in ranked.iter().enumerate() {
            let mut passed = ranked[now + 1..].iter().filter(|(_, other, _)| other < place);
            decided.extend(passed.find_map(|(other, ..)| Some((hit.document, own.ahead_of(*other)?))));
        }
    }
    decided
}

/// Whether two hits differ by less than this share of the better one's score. The best tool for a part of the
/// request keeps its place.
fn are_equal(better: &Hit, other: &Hit, share: f32) -> bool {
    // Displayed scores are capped at 1, so compare the raw ones.
    let score = |hit: &Hit| hit.signals.fit() + hit.signals.priority;
    let kind = |hit: &Hit| (hit.exact, hit.named, hit.part.is_some());
    kind(better) == kind(other)
        && better.part.is_none()
        && (score(better) - score(other)).abs() < share * score(better)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nonet_search::Signals;

    fn hit(document: usize, score: f32) -> Hit {
        Hit {
            document,
            score,
            exact: false,
            named: false,
            dense: 0.0,
            part: None,
            signals: Signals { meaning: score, ..Signals::default() },
        }
    }

    const UP: Reverse<bool> = Reverse(true);
    const DOWN: Reverse<bool> = Reverse(false);

    #[test]
    fn only_equal_hits_change_places() {
        use Cost::{High, Low, Medium};
        let check = |hits: &[(f32, Reverse<bool>, Cost)], order: &[usize], because: &[(usize, TieBreak)]| {
            let mut found: Vec<Hit> =
                hits.iter().enumerate().map(|(at, (score, ..))| hit(at, *score)).collect();
            let standing = |hit: &Hit| TieRank { is_up: hits[hit.document].1, cost: hits[hit.document].2 };
            let decided = settle(&mut found, standing);
            assert_eq!(found.iter().map(|hit| hit.document).collect::<Vec<_>>(), order, "{hits:?}");
            assert_eq!(decided, because, "{hits:?}");
        };
        check(&[], &[], &[]);
        check(&[(0.6, UP, High), (0.6, UP, Low)], &[1, 0], &[(1, TieBreak::Cost)]);
        check(&[(0.6, UP, High), (0.5995, UP, Medium)], &[1, 0], &[(1, TieBreak::Cost)]);
        check(&[(0.6, UP, High), (0.599, UP, Low)], &[0, 1], &[]);
        check(&[(0.6, UP, Low), (0.6, UP, Low), (0.6, UP, Low)], &[0, 1, 2], &[]);
        check(&[(0.6, DOWN, Low), (0.6, UP, High)], &[1, 0], &[(1, TieBreak::State)]);
        check(
            &[(0.6, UP, High), (0.6, UP, Medium), (0.6, UP, Low), (0.4, UP, High), (0.4, UP, Low)],
            &[2, 1, 0, 4, 3],
            &[(2, TieBreak::Cost), (1, TieBreak::Cost), (4, TieBreak::Cost)],
        );
        // The first hit of a group sets the range: a long chain of small steps is not one tie.
        check(&[(0.6, UP, High), (0.5996, UP, High), (0.5992, UP, Low)], &[0, 1, 2], &[]);
        // Without scores nothing is known, so nothing is equal.
        check(&[(0.0, UP, High), (0.0, UP, Low)], &[0, 1], &[]);
    }

    #[test]
    fn hits_by_name_and_by_part_stay_where_they_are() {
        let check = |change: fn(&mut Hit), expected: bool| {
            let (one, mut other) = (hit(0, 0.6), hit(1, 0.6));
            change(&mut other);
            assert_eq!(are_equal(&one, &other, EQUAL), expected, "{other:?}");
        };
        check(|_| {}, true);
        check(|hit| hit.exact = true, false);
        check(|hit| hit.named = true, false);
        check(|hit| hit.part = Some(0), false);
        // The displayed score of both is 1.
        check(|hit| hit.signals.priority = 2.0, false);
    }
}
